"""The store against its model, and the frame against everything that can be put into it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from numba_kcache.model import EventKind
from numba_kcache.store import ENTRY, DamagedEntry, StoredEntry, decode_entry
from numba_kcache.store.encoding import check_payloads, encode_entry
from tests.support.memory_store import MemoryStore
from tests.support.stores import HOUR_S, Clock, Events, file_of, key_of, open_store

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda values: st.lists(values, max_size=4) | st.dictionaries(st.text(), values, max_size=4),
    max_leaves=12,
)
HEADERS = st.dictionaries(st.text(), JSON, max_size=5)
NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,15}", fullmatch=True)
BYTES = st.binary(max_size=200) | st.builds(
    lambda pattern, times: pattern * times, st.binary(max_size=20), st.integers(0, 20_000)
)
ENTRIES = st.builds(
    StoredEntry,
    st.integers(0, 1000).map(key_of),
    HEADERS,
    st.dictionaries(NAMES, BYTES, max_size=4),
)


@pytest.mark.slow
@given(ENTRIES)
def test_what_is_stored_comes_back(entry: StoredEntry) -> None:
    """Any JSON header, any payloads, in their order; the same bytes each time."""
    data = encode_entry(entry)

    read = decode_entry(data, entry.key)

    assert read == entry
    assert list(read.payloads) == list(entry.payloads)
    assert encode_entry(entry) == data
    check_payloads(read)


@pytest.mark.slow
@given(ENTRIES, st.data())
def test_any_change_of_the_bytes_is_found(entry: StoredEntry, data: st.DataObject) -> None:
    """Bytes replaced, cut out or put in, anywhere."""
    whole = encode_entry(entry)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, min(len(whole), start + 40)))
    changed = whole[:start] + data.draw(st.binary(max_size=40)) + whole[end:]
    if changed != whole:
        with pytest.raises(DamagedEntry):
            decode_entry(changed, entry.key)


@given(st.binary(max_size=400))
def test_any_bytes_are_damage_and_nothing_else(data: bytes) -> None:
    """No input makes the reader raise anything but DamagedEntry."""
    for bytes_ in (data, b"\x89NKC\r\n\x1a\n\x01\x00\x01" + data):
        with pytest.raises(DamagedEntry):
            decode_entry(bytes_, key_of(1))


NUMBERS = st.integers(0, 11)
FAMILIES = st.integers(100, 102)


class StoreAgainstModel(RuleBasedStateMachine):
    """The store on disk answers as the one in memory does, through limits, ages, damage and restarts.

    The clock moves two hours at each step, so that hourly recency is as good as the model's exact one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = Clock()
        self.model = MemoryStore(max_size_bytes=6000, max_entries=8, clock=self.clock)
        self.open()

    def open(self) -> None:
        """Open the store as a new process would."""
        self.events = Events()
        self.store = open_store(
            self.root / "cache", max_size_bytes=6000, max_entries=8, clock=self.clock, emit=self.events
        )

    def teardown(self) -> None:
        """Remove the files."""
        self.store.writer.limits.wait()
        troubles = [event.fields["error"] for event in self.events.of(EventKind.TROUBLE)]
        assert all("above the limit" in error for error in troubles)
        shutil.rmtree(self.root)

    @rule(
        numbers=st.permutations(range(12)),
        count=st.integers(1, 10),
        size=st.sampled_from([10, 400, 900, 2500]),
    )
    def put_many(self, numbers: list[int], count: int, size: int) -> None:
        """Enough of them to be above a limit now and then."""
        for number in numbers[:count]:
            self.put(number, size, {"size": size})

    @rule(number=NUMBERS, size=st.integers(0, 7000), header=HEADERS)
    def put(self, number: int, size: int, header: dict[str, object]) -> None:
        """Store or replace."""
        self.clock.now_s += 2 * HOUR_S
        entry = StoredEntry(key_of(number), header, {"cubin": bytes(size)})
        assert self.store.put(entry) == self.model.put(entry)
        self.store.writer.limits.wait()

    @rule(number=NUMBERS)
    def get(self, number: int) -> None:
        """A hit renews recency in both."""
        self.clock.now_s += 2 * HOUR_S
        assert self.store.get(key_of(number)) == self.model.get(key_of(number))

    @rule(number=NUMBERS)
    def remove(self, number: int) -> None:
        """One."""
        assert self.store.remove(key_of(number)) == self.model.remove(key_of(number))

    @rule(family=FAMILIES, name=st.sampled_from("abcd"), value=JSON)
    def add_rows(self, family: int, name: str, value: object) -> None:
        """New or again."""
        self.clock.now_s += 2 * HOUR_S
        variant = {"key": name, "value": value}
        assert self.store.add_rows(key_of(family), variant) == self.model.add_rows(key_of(family), variant)
        self.store.writer.limits.wait()

    @rule(family=FAMILIES)
    def get_manifest(self, family: int) -> None:
        """Return the variants of a manifest in order."""
        self.clock.now_s += 2 * HOUR_S
        assert self.store.get_manifest(key_of(family)) == self.model.get_manifest(key_of(family))

    @rule(name=FAMILIES, record=HEADERS)
    def put_record(self, name: int, record: dict[str, object]) -> None:
        """New or in place of another; the names are those of manifests too."""
        self.clock.now_s += 2 * HOUR_S
        assert self.store.put_record(key_of(name), record) == self.model.put_record(key_of(name), record)
        self.store.writer.limits.wait()

    @rule(name=FAMILIES)
    def get_record(self, name: int) -> None:
        """The last one that was put."""
        self.clock.now_s += 2 * HOUR_S
        assert self.store.get_record(key_of(name)) == self.model.get_record(key_of(name))

    @rule(limit=st.integers(0, 6000))
    def prune_by_size(self, limit: int) -> None:
        """The same entries go."""
        assert self.store.prune(max_size_bytes=limit) == self.model.prune(max_size_bytes=limit)

    @rule(hours=st.integers(0, 40))
    def prune_by_age(self, hours: int) -> None:
        """The same entries go; the odd half hour keeps clear of rounding."""
        age = (hours + 0.5) * HOUR_S
        assert self.store.prune(older_than=age) == self.model.prune(older_than=age)

    @rule()
    def clear(self) -> None:
        """Everything."""
        assert self.store.clear() == self.model.clear()

    @rule()
    def reopen(self) -> None:
        """A new process finds what the last one left."""
        self.store.writer.limits.wait()
        self.open()

    @precondition(lambda self: self.model.size().entries > 0)
    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        """A flipped byte is a miss in the one; the other forgets the entry."""
        key = data.draw(st.sampled_from(sorted(file.key for file in self.model.files(ENTRY))))
        path = file_of(self.store, key)
        whole = bytearray(path.read_bytes())
        offset = data.draw(st.integers(0, len(whole) - 1))
        whole[offset] ^= data.draw(st.integers(1, 255))
        path.write_bytes(whole)
        assert self.store.get(key) is None
        self.model.remove(key)

    @invariant()
    def same_content(self) -> None:
        """Same entries, same sizes, same sums."""
        mine, theirs = (
            {file.key: store.get_encoded(file.key) for file in store.files(ENTRY)} for store in (self.store, self.model)
        )
        assert mine == theirs
        assert self.store.size()[:2] == self.model.size()[:2]


TestStoreAgainstModel = pytest.mark.slow(StoreAgainstModel.TestCase)
TestStoreAgainstModel.settings = settings(max_examples=40, stateful_step_count=25)
