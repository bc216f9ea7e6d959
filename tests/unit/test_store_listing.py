"""Entries are listed in any order; a list reads no more of them than it has, and skips files that are no entries."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.store import StoredEntry
from tests.support.stores import HEADER, file_of, key_of, open_store, small_entry

HITS = {key_of(2)[:16]: 7, key_of(0)[:16]: 1}


def fill(store: Any) -> None:
    for number, (size, seconds) in enumerate([(300, 2.0), (100, 3.0), (200, 1.0)]):
        store.put(
            StoredEntry(key_of(number), {**HEADER, "compile_time_s": seconds}, {"cubin": bytes(size), "ptx": b"p" * 90})
        )


def numbers(store: Any, by: Any, limit: int | None = None) -> list[int]:
    keys = [key_of(number) for number in range(3)]
    return [keys.index(each.key) for each in store.entries(by, limit, HITS)]


@pytest.mark.parametrize(
    ("by", "order"), [("size", [0, 2, 1]), ("cost", [1, 0, 2]), ("hits", [2, 0, 1]), ("age", [1, 2, 0])]
)
def test_entries_come_in_the_order_that_was_asked_for(tmp_path: Path, by: Any, order: list[int]) -> None:
    """The largest, costliest, most served or last used come first; a limit keeps the first ones."""
    store = open_store(tmp_path)
    fill(store)
    for number, used in enumerate([100, 300, 200]):
        os.utime(file_of(store, key_of(number)), (used, used))

    assert numbers(store, by) == order
    assert numbers(store, by, 2) == order[:2]


def test_hits_are_those_of_the_key(tmp_path: Path) -> None:
    """They are counted by the leading digits of a key; without counts there are none."""
    store = open_store(tmp_path)
    fill(store)

    assert {each.key: each.hits for each in store.entries("age", None, HITS)} == {
        key_of(0): 1, key_of(1): 0, key_of(2): 7,
    }  # fmt: skip
    assert {each.hits for each in store.entries()} == {0}


def test_list_opens_no_more_than_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ordered by size with a limit of one, it opens one entry of three."""
    store = open_store(tmp_path)
    fill(store)
    opened: list[Any] = []
    keys, real = [key_of(number)[2:] for number in range(3)], os.open
    monkeypatch.setattr(os, "open", lambda path, *more, **given: (opened.append(path), real(path, *more, **given))[1])

    assert numbers(store, "size", 1) == [0]
    assert [each for each in opened if each in keys] == [key_of(0)[2:]]


@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "other key", "rubbish", "manifest", "link", "fifo"])
def test_what_is_no_entry_is_passed_over_and_left(tmp_path: Path, damage: str) -> None:
    """`verify` reports such files; a listing changes nothing and waits for no lock."""
    store = open_store(tmp_path)
    store.put(small_entry(1))
    store.put(small_entry(2))
    path = file_of(store, key_of(1))
    data = path.read_bytes()
    path.unlink()
    if damage == "link":
        path.symlink_to(file_of(store, key_of(2)))
    elif damage == "fifo":
        os.mkfifo(path)
    else:
        other = file_of(store, key_of(2)).read_bytes()
        own = {
            "flipped": data[:-1] + bytes([data[-1] ^ 1]), "cut": data[:70], "empty": b"", "rubbish": b"x" * 500,
            "other key": other, "manifest": data[:10] + b"\2" + data[11:],
        }  # fmt: skip
        path.write_bytes(own[damage])

    assert [each.key for each in store.entries()] == [key_of(2)]
    assert os.path.lexists(path)


def test_looking_at_an_entry_is_no_use(tmp_path: Path) -> None:
    """`peeking` and a list leave the time of last use unchanged, and damaged files where they are."""
    store = open_store(tmp_path)
    store.put(small_entry(1))
    path = file_of(store, key_of(1))
    os.utime(path, (100, 100))

    assert store.peeking.get(key_of(1)) == small_entry(1)
    assert next(store.entries()).used_s == path.stat().st_mtime == 100
    path.write_bytes(path.read_bytes()[:-1])
    assert store.peeking.get(key_of(1)) is None
    assert path.exists()
    assert store.peeking.get(key_of(5)) is None
