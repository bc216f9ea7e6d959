"""The time that launches lose to a slow server: bounded at first, afterwards a share of the process's run time."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store.entry import StoredEntry
from numba_kcache.tiers import allowance, checked_tier
from numba_kcache.tiers.allowance import Allowance
from numba_kcache.tiers.chain import Chain
from tests.support.stores import Events, entry_of, key_of, open_store
from tests.support.tiers import MemoryTier
from tests.unit.test_store_locks import Time


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
    monkeypatch.setattr(allowance.Allowance.__init__, "__defaults__", (time,))
    monkeypatch.setattr(checked_tier.time, "perf_counter", time)
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


def test_account_fills_again() -> None:
    """A server that is fast again is queried again."""
    time = Time()
    account = Allowance(time)

    assert account.charge(3.05)
    assert account.is_spent()
    time.now_s += 88
    assert account.is_spent()
    time.now_s += 4
    assert not account.is_spent()
