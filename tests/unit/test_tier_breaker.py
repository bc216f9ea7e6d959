"""The time that launches lose to a slow server: bounded at first, afterwards a share of the process's run time."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import StoredEntry
from numba_kcache.tiers import breaker
from numba_kcache.tiers.breaker import Breaker
from numba_kcache.tiers.directory import DirectoryTier
from tests.support.stores import Events, entry_of, key_of, open_store
from tests.support.tiers import Chain, MemoryTier, Time


class SlowTier(MemoryTier):
    """A tier that answers after a delay."""

    def __init__(self, time: Time, answer_s: float) -> None:
        super().__init__(is_remote=True)
        self.time, self.answer_s, self.lost_s = time, answer_s, 0.0

    def get(self, kind: int, key: str) -> bytes | None:
        self.time.now_s += self.answer_s
        self.lost_s += self.answer_s
        return super().get(kind, key)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    """The clock of tiers and their allowances."""
    time = Time()
    monkeypatch.setattr(breaker.Breaker.__init__, "__kwdefaults__", {"clock": time})
    monkeypatch.setattr(breaker.time, "perf_counter", time)
    return time


@pytest.mark.parametrize("answer_s", [0.2, 0.5, 0.9, 3.0])
@pytest.mark.parametrize("compile_s", [0.1, 0.6])
def test_slow_server_costs_a_hundred_cold_kernels_five_seconds(
    tmp_path: Path, time: Time, answer_s: float, compile_s: float
) -> None:
    """Each kernel costs two requests, both without a result; uploads go on, since no launch waits for them."""
    tier, events = SlowTier(time, answer_s), Events()
    chain = Chain(open_store(tmp_path), [tier], events)
    for number in range(100):
        assert chain.get(key_of(number)) is None
        assert chain.tiers[0].get_manifest(key_of(number)) == []
        time.now_s += compile_s

    assert tier.lost_s <= 5
    assert "it is slow" in str(events.of(EventKind.TROUBLE)[0].fields["error"])


def test_slow_server_that_has_what_is_wanted_is_asked(tmp_path: Path, time: Time) -> None:
    """A slow hit is still faster than a compile."""
    tier = SlowTier(time, 0.9)
    chain = Chain(open_store(tmp_path), [tier], Events())
    for number in range(20):
        tier.with_entry(entry_of(number))
        assert isinstance(chain.get(key_of(number)), StoredEntry)


def test_server_of_the_same_region_is_always_asked(tmp_path: Path, time: Time) -> None:
    """A round trip of 40 ms uses up no allowance."""
    tier = SlowTier(time, 0.04)
    chain = Chain(open_store(tmp_path), [tier], Events())
    for number in range(1000):
        chain.get(key_of(number))

    assert len(tier.asked) == 1000


def test_server_that_lies_slowly_is_left_alone(tmp_path: Path, time: Time) -> None:
    """Waiting for an entry that arrives damaged saves nothing."""
    tier = SlowTier(time, 0.9)
    tier.entries = {key_of(number): b"no entry" for number in range(100)}
    chain = Chain(open_store(tmp_path), [tier], Events())
    for number in range(100):
        assert chain.get(key_of(number)) is None

    assert tier.lost_s <= 3


@pytest.mark.parametrize("has_entries", [False, True], ids=["without the entries", "with them"])
@pytest.mark.parametrize("readonly", [True, False])
def test_directory_on_a_slow_filesystem_costs_twenty_kernels_six_seconds(
    tmp_path: Path, time: Time, monkeypatch: pytest.MonkeyPatch, has_entries: bool, readonly: bool
) -> None:
    """Each open of a file or folder in it takes half a second; each kernel is looked up and, after a miss, stored."""
    share, found, lost_s = open_store(tmp_path / "share"), Events(), 0.0
    for number in range(0 if has_entries else 20, 40):
        share.put(entry_of(number))
    tier = DirectoryTier(str(tmp_path / "share"))
    tier.readonly = readonly
    chain = Chain(open_store(tmp_path / "local"), [tier], found)
    opened, me = os.open, threading.get_ident()

    def slowly(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        at = path if dir_fd is None else os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), path)
        if threading.get_ident() == me and os.fspath(at).startswith(str(tmp_path / "share")):
            time.now_s += 0.5
        return opened(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", slowly)
    for number in range(20):
        start_s = time.now_s
        if chain.get(key_of(number)) is None:
            chain.get(key_of(number))
            chain.put(entry_of(number))
            chain.add_rows(key_of(number), {"key": key_of(number)})
        lost_s += time.now_s - start_s
        time.now_s += 0.2  # the compile

    assert 0.5 < lost_s <= 6
    waits = [event.fields for event in found.of(EventKind.WAITED)]
    assert waits
    assert {fields["what"] for fields in waits} == {f"its answer: tier {tier.name}"}
    assert all(fields["waited_s"] > 1 for fields in waits)
    assert chain.flush(30)


def test_account_fills_again() -> None:
    """A server that is fast again is queried again."""
    time = Time()
    account = Breaker(clock=time)

    assert account.charge(3.05)
    assert account.left_s() == 0
    time.now_s += 88
    assert account.left_s() == 0
    time.now_s += 4
    assert account.left_s() > 0


@pytest.mark.parametrize("readonly", [False, True])
def test_tier_that_failed_is_asked_after_the_period(tmp_path: Path, time: Time, readonly: bool) -> None:
    """It is not asked before, nor written to: once in each period, with one event, until it answers."""

    class Away(MemoryTier):
        def get(self, kind: int, key: str) -> bytes | None:
            super().get(kind, key)
            raise OSError("away")

    tier, events = Away(is_remote=True), Events()
    chain = Chain(open_store(tmp_path, mode="readonly" if readonly else "readwrite"), [tier], events)
    for period in range(1, 4):
        for number in range(10 * period, 10 * period + 10):
            assert chain.get(key_of(number)) is None
            chain.put(entry_of(number))
        assert chain.flush(30)
        assert len(tier.asked) == len(events.of(EventKind.TROUBLE)) == period
        assert not tier.entries
        time.now_s += breaker.PERIOD_S + 1
