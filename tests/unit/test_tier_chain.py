"""A local store with tiers behind it: order, verification, copies kept locally, uploads, trouble."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers import breaker
from numba_kcache.tiers.directory import DirectoryTier
from tests.support.stores import Events, entry_of, file_of, key_of, open_store, sealed
from tests.support.tiers import Chain, MemoryTier, Time

VARIANT = {"key": key_of(1), "target": "sm_90", "request": key_of(2)}


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def local(tmp_path: Path, events: Events) -> DiskStore:
    return open_store(tmp_path / "local", emit=events)


def test_local_hit_asks_no_tier(local: DiskStore, events: Events) -> None:
    """No tier is queried for an entry of the local store."""
    tier = MemoryTier()
    local.put(entry_of(1))

    assert Chain(local, [tier], events).get(key_of(1)) == entry_of(1)
    assert tier.asked == []


def test_tiers_are_asked_in_order_until_one_has_it(local: DiskStore, events: Events) -> None:
    """The first tier with the entry ends the search."""
    first, second, third = MemoryTier("1"), MemoryTier("2").with_entry(entry_of(1)), MemoryTier("3")

    assert Chain(local, [first, second, third], events).get(key_of(1)) == entry_of(1)
    assert [len(each.asked) for each in (first, second, third)] == [1, 1, 0]


def test_tier_hit_is_kept_locally_byte_for_byte(local: DiskStore, events: Events) -> None:
    """The next get queries no tier, and the local file is the one that arrived."""
    tier = MemoryTier().with_entry(entry_of(1, 200_000))
    chain = Chain(local, [tier], events)
    chain.get(key_of(1))
    chain.get(key_of(1))

    assert len(tier.asked) == 1
    assert file_of(local, key_of(1)).read_bytes() == tier.entries[key_of(1)]


def test_put_goes_on_to_writable_tiers_alone(local: DiskStore, events: Events) -> None:
    """They get the bytes of the local file, and the variant before those they have."""
    tier, image = MemoryTier().with_rows(key_of(9), {"key": key_of(5)}), MemoryTier(readonly=True)
    chain = Chain(local, [tier, image], events)

    assert chain.put(entry_of(1))
    assert chain.add_rows(key_of(9), VARIANT)
    assert tier.entries[key_of(1)] == file_of(local, key_of(1)).read_bytes()
    assert chain.tiers[0].get_manifest(key_of(9)) == [VARIANT, {"key": key_of(5)}]
    assert image.asked == []


def test_readonly_local_store_hands_nothing_on(tmp_path: Path, events: Events) -> None:
    """A mode without writing writes to no tier either."""
    tier = MemoryTier()
    chain = Chain(open_store(tmp_path, mode="readonly"), [tier], events)
    chain.put(entry_of(1))
    chain.add_rows(key_of(9), VARIANT)

    assert tier.asked == []


@pytest.mark.parametrize("error", [OSError("gone"), TimeoutError("too slow"), ValueError("nonsense"), MemoryError()])
def test_trouble_with_a_tier_is_a_miss_an_event_and_a_count(local: DiskStore, events: Events, error: Exception) -> None:
    """After any exception the next tiers are queried, and local puts succeed. A tier that is away is asked once."""
    broken, sound = MemoryTier("broken"), MemoryTier("sound").with_entry(entry_of(1))
    broken.error = error
    chain = Chain(local, [broken, sound], events)

    assert chain.get(key_of(1)) == entry_of(1)
    assert chain.put(entry_of(2))
    assert chain.add_rows(key_of(9), VARIANT)
    assert chain.tiers[0].get_manifest(key_of(9)) == []
    assert {event.fields["where"] for event in events.of(EventKind.TROUBLE)} == {"tier broken"}
    report = chain.reports()[0]
    assert (report.hits, report.misses, report.is_reachable) == (0, 1, False)
    assert report.errors == (1 if isinstance(error, OSError) else 5)


def test_directory_that_takes_no_writes_is_still_read(
    local: DiskStore, events: Events, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full share is trouble for each write, and not a reason to skip what is in it."""
    open_store(tmp_path / "share").put(entry_of(1))
    tier = DirectoryTier(str(tmp_path / "share"))
    tier.readonly = False

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tier, "put", full)
    chain = Chain(local, [tier], events)
    assert chain.put(entry_of(2))
    assert len(events.of(EventKind.TROUBLE)) == 1

    assert chain.get(key_of(1)) == entry_of(1)


def test_tier_that_is_copied_on_purpose_has_all_the_time_that_it_needs(
    local: DiskStore, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch skips a tier of three seconds an answer after the first; `pull` does not."""
    time, tier = Time(), MemoryTier()
    monkeypatch.setattr(breaker.Breaker.__init__, "__kwdefaults__", {"clock": time})
    monkeypatch.setattr(breaker.time, "perf_counter", time)
    get = tier.get
    monkeypatch.setattr(tier, "get", lambda *file: (time.pause(3.0), get(*file))[1])
    for is_patient, asked in ((False, 1), (True, 10)):
        chain = Chain(local, [tier], events)
        chain.tiers[0].is_patient = is_patient
        tier.asked.clear()
        for number in range(10):
            assert chain.tiers[0].get(key_of(number)) is None
        assert len(tier.asked) == asked


def damaged(data: bytes) -> list[bytes]:
    return [
        b"", data[:-1], data + b"x", data[:100] + bytes((data[100] ^ 1,)) + data[101:], sealed(data[:-16] + b"more"),
        encode_entry(entry_of(2)), b"\x80\x05.",
    ]  # fmt: skip


@pytest.mark.parametrize("number", range(7))
def test_what_arrives_damaged_is_a_miss_and_is_not_kept(local: DiskStore, events: Events, number: int) -> None:
    """Truncated, longer, flipped, forged, with another key, or no entry at all: reported, counted, not stored."""
    tier = MemoryTier()
    tier.entries[key_of(1)] = damaged(encode_entry(entry_of(1)))[number]
    chain = Chain(local, [tier], events)

    assert chain.get(key_of(1)) is None
    assert [event.kind for event in events] == [EventKind.TROUBLE]
    assert "arrived damaged" in str(events[0].fields["error"])
    assert not file_of(local, key_of(1)).exists()
    assert (chain.reports()[0].errors, chain.reports()[0].misses) == (1, 1)


def test_payload_that_is_not_of_its_sha256_is_not_kept(local: DiskStore, events: Events) -> None:
    """A forged further payload in a file with a valid digest is found on arrival, since hits do not check it."""
    data = encode_entry(entry_of(1))
    forged = bytearray(data[:-16])
    forged[-1] ^= 1
    tier = MemoryTier()
    tier.entries[key_of(1)] = sealed(bytes(forged))

    assert Chain(local, [tier], events).get(key_of(1)) is None


def test_damaged_manifest_is_no_rows(local: DiskStore, events: Events) -> None:
    """The manifest is another family's, or has no list."""
    tier = MemoryTier().with_rows(key_of(9), VARIANT)
    chain = Chain(local, [tier], events)
    tier.manifests[key_of(8)] = tier.manifests[key_of(9)]

    assert chain.tiers[0].get_manifest(key_of(8)) == []
    assert chain.tiers[0].get_manifest(key_of(9)) == [VARIANT]
    assert chain.reports()[0].errors == 1


def test_report_counts_what_was_seen(local: DiskStore, events: Events) -> None:
    """Hits, misses, and bytes in both directions."""
    tier = MemoryTier("team").with_entry(entry_of(1))
    chain = Chain(local, [tier], events)
    chain.get(key_of(1))
    chain.get(key_of(3))
    chain.put(entry_of(2))
    report = chain.reports()[0]

    assert (report.name, report.readonly, report.is_reachable) == ("team", False, True)
    assert (report.hits, report.misses, report.errors) == (1, 1, 0)
    assert (report.bytes_read, report.bytes_written) == (len(tier.entries[key_of(1)]), len(tier.entries[key_of(2)]))
    assert report.latency_s > 0
