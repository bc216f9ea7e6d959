"""List entries by age, size, cost or hits; and set damaged files aside.

Promise     Files are sorted without opening them, except by cost, and only the listed ones are read. Files that are not
            entries are skipped, as are those that vanish meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import KCacheError, why_of
from ..model import KEY_DIGITS, NamedTuple, artifact_from_header
from . import ENTRY, FOLDERS, MANIFEST, RECORD, FoundFile, decode_entry, decode_manifest, decode_record
from .encoding import check_payloads

if TYPE_CHECKING:
    from .disk import Check, Decode, DiskStore

Order = Literal["age", "size", "cost", "hits"]

ORDERS: tuple[Order, ...] = get_args(Order)
"""Most recently used first, largest first, longest compilation first, most hits first."""

_DECODE: Mapping[int, Decode] = {ENTRY: decode_entry, MANIFEST: decode_manifest, RECORD: decode_record}


class EntryInfo(NamedTuple):
    """The row of an entry in a listing.

    Args:
        key: Key of the entry.
        kernels: The names of the kernels in it, as in the source; for an object of another library, the object's label.
        target: Target that its code was built for, such as `"sm_90"`.
        compile_time_s: Seconds that its compilation took.
        attributes: JSON values that the kind of its kernels keeps.
        size_bytes: Bytes that its file takes.
        used_s: When it was stored or last used, to the hour, in seconds since the epoch.
        hits: Number of hits on it, of all processes; 0 where they were not counted or not requested.
    """

    key: str
    kernels: tuple[str, ...]
    target: str
    compile_time_s: float
    attributes: Mapping[str, Any]
    size_bytes: int
    used_s: float
    hits: int = 0

    def __repr__(self) -> str:
        return f"<EntryInfo {self.key[:12]}: {', '.join(self.kernels)} for {self.target}>"

    def to_dict(self) -> dict[str, Any]:
        """The fields that a listing shows, as JSON values."""
        names = ("key", "target", "size_bytes", "used_s", "compile_time_s", "hits")
        return {"kernels": list(self.kernels), **{each: getattr(self, each) for each in names}}


class Problem(NamedTuple):
    """A finding of `verify`: key of a damaged entry, or name of a file that is not the cache's; and the reason."""

    key: str
    reason: str


class Usage(NamedTuple):
    """Contents of a store, or what was removed from it.

    Args:
        size_bytes: Bytes of entries and manifests together.
        entries: Number of entries, manifests not counted.
    """

    size_bytes: int
    entries: int


def listed(store: DiskStore, by: Order, hits: Mapping[str, int]) -> Iterator[EntryInfo]:
    """Yield the entries of a store in an order.

    Args:
        store: The store.
        by: The order.
        hits: Hits by the leading digits of the key.
    """
    order: dict[Order, Callable[[FoundFile], tuple[Any, ...]]] = {
        "age": lambda file: (-file.used_ns, file.key),
        "size": lambda file: (-file.size_bytes, file.key),
        "hits": lambda file: (-hits.get(file.key[:KEY_DIGITS], 0), -file.used_ns, file.key),
    }

    def infos() -> Iterator[EntryInfo]:
        reader = store.peeking
        for file in sorted(store.files(ENTRY), key=order.get(by, order["age"])):
            entry = reader.get(file.key)
            if entry is not None:
                with suppress(ValueError, KCacheError):  # of another version, or forged
                    made = artifact_from_header(entry.header, entry.payloads)
                    yield EntryInfo(
                        file.key, made.names, made.target.name, made.compile_time_s, made.attributes, file.size_bytes,
                        file.used_ns / 1e9, hits.get(file.key[:KEY_DIGITS], 0),
                    )  # fmt: skip

    return iter(sorted(infos(), key=lambda each: (-each.compile_time_s, each.key))) if by == "cost" else infos()


def verify(store: DiskStore, check: Check) -> Iterator[Problem]:
    """Read each file in full, with all payloads; quarantine and yield those that are damaged or not trusted.

    Args:
        store: The store.
        check: Raises ValueError for an entry that is not to be trusted although its digest is right.
    """
    for file in store.files(*FOLDERS):
        try:
            found: Any = _DECODE[file.kind](file.tree.read(file.kind, file.key), file.key)
            if file.kind == ENTRY:
                check_payloads(found)
                check(found)
        except FileNotFoundError:
            continue
        except (ValueError, OSError, MemoryError) as error:
            problem = Problem(file.key, why_of(error))
            store.set_aside(file.key, file.kind, problem.reason)
            yield problem
