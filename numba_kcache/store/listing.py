"""List entries by age, size, cost or hits; and set damaged files aside.

Promise     Files are sorted without opening them, except by cost, and only the listed ones are read. Files that are not
            entries are skipped, as are those that vanish meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..errors import why_of
from ..model import KEY_DIGITS, NamedTuple
from . import (
    ENTRY,
    FOLDERS,
    MANIFEST,
    RECORD,
    FoundFile,
    Header,
    PayloadRecord,
    Payloads,
    StoredEntry,
    decode_entry,
    decode_manifest,
    decode_record,
)
from .encoding import check_payloads

if TYPE_CHECKING:
    from .disk import Check, Decode, DiskStore

Order = Literal["age", "size", "cost", "hits"]

ORDERS: tuple[Order, ...] = ("age", "size", "cost", "hits")
"""Most recently used first, largest first, longest compilation first, most hits first."""

_DECODE: Mapping[int, Decode] = {ENTRY: decode_entry, MANIFEST: decode_manifest, RECORD: decode_record}


class EntryInfo(NamedTuple):
    """The row of an entry in a listing.

    Args:
        key: Key of the entry.
        header: JSON header of the entry.
        size_bytes: Bytes that its file takes.
        used_s: When it was stored or last used, to the hour, in seconds since the epoch.
        payload_bytes: Unpacked size of each payload.
        hits: Number of hits on it, of all processes; 0 where they were not counted or not requested.
    """

    key: str
    header: Header
    size_bytes: int
    used_s: float
    payload_bytes: dict[str, int]
    hits: int = 0

    def __repr__(self) -> str:
        return f"<EntryInfo {self.key[:12]}: {', '.join(self.kernels)} for {self.target}>"

    @property
    def target(self) -> str:
        """Target that its code was built for, such as `"sm_90"`; "" if the header does not say."""
        target = self.header.get("target")
        return target if isinstance(target, str) else ""

    @property
    def kernels(self) -> tuple[str, ...]:
        """The names of the kernels in it, as in the source; for an object of another library, the object's label."""
        attributes = self.header.get("attributes")
        label = attributes.get("label") if isinstance(attributes, dict) and self.header.get("kind") == "built" else None
        if isinstance(label, str):
            return (label,)
        entries = self.header.get("entries")
        rows = entries if isinstance(entries, list) else []
        return tuple(row[0] for row in rows if isinstance(row, list) and row and isinstance(row[0], str))

    @property
    def compile_time_s(self) -> float:
        """Seconds that its compilation took; 0 where the header does not say."""
        seconds = self.header.get("compile_time_s")
        return float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0

    def to_dict(self) -> dict[str, Any]:
        """The fields that a listing shows, as JSON values."""
        names = ("key", "target", "size_bytes", "used_s", "compile_time_s", "hits")
        return {"kernels": list(self.kernels), **{each: getattr(self, each) for each in names}}


class Problem(NamedTuple):
    """A finding of `verify`: key of a damaged entry, or name of a file that is not the cache's; and the reason."""

    key: str
    reason: str


class Removed(NamedTuple):
    """Number of entries that were removed, manifests not counted, and the bytes of both."""

    entries: int
    size_bytes: int


class Usage(NamedTuple):
    """Contents of a store.

    Args:
        size_bytes: Bytes of entries and manifests together.
        entries: Number of entries, manifests not counted.
    """

    size_bytes: int
    entries: int


def listed(
    files: Iterable[FoundFile], read: Callable[[str], StoredEntry | None], by: Order, hits: Mapping[str, int]
) -> Iterator[EntryInfo]:
    """Yield the entries in an order.

    Args:
        files: The files found by a walk.
        read: Returns the entry of a key, verified; None for a file that is none.
        by: The order.
        hits: Hits by the leading digits of the key.
    """
    order: dict[Order, Callable[[FoundFile], tuple[Any, ...]]] = {
        "age": lambda file: (-file.used_ns, file.key),
        "size": lambda file: (-file.size_bytes, file.key),
        "hits": lambda file: (-hits.get(file.key[:KEY_DIGITS], 0), -file.used_ns, file.key),
    }
    found = _infos(sorted(files, key=order.get(by, order["age"])), read, hits)
    return iter(sorted(found, key=lambda each: (-each.compile_time_s, each.key))) if by == "cost" else found


def _infos(
    files: Iterable[FoundFile], read: Callable[[str], StoredEntry | None], hits: Mapping[str, int]
) -> Iterator[EntryInfo]:
    for file in files:
        entry = read(file.key)
        if entry is not None:
            sizes = {each.name: each.size_bytes for each in payload_records(entry)}
            times_hit = hits.get(file.key[:KEY_DIGITS], 0)
            yield EntryInfo(file.key, entry.header, file.size_bytes, file.used_ns / 1e9, sizes, times_hit)


def payload_records(entry: StoredEntry) -> list[PayloadRecord]:
    """The payload table of a decoded entry; empty for one that was not decoded."""
    return [record for record, _ in entry.payloads.packed.values()] if isinstance(entry.payloads, Payloads) else []


def verify(store: DiskStore, check: Check) -> Iterator[Problem]:
    """Read each file in full, with all payloads; quarantine and yield those that are damaged or not trusted.

    Args:
        store: The store.
        check: Raises ValueError for an entry that is not to be trusted although its digest is right.
    """
    for file in store.files(*FOLDERS):
        try:
            found = _DECODE[file.kind](file.tree.read(file.kind, file.key), file.key)
            if isinstance(found, StoredEntry):
                check_payloads(found)
                check(found)
        except FileNotFoundError:
            continue
        except (ValueError, OSError, MemoryError) as error:
            problem = Problem(file.key, why_of(error))
            store.set_aside(file.key, file.kind, problem.reason)
            yield problem
