"""The values that a store returns about its contents: entries, problems, removals, usage."""

from __future__ import annotations

from typing import Any

from ..model import NamedTuple
from .entry import Header


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
        return {
            "key": self.key,
            "kernels": list(self.kernels),
            "target": self.target,
            "size_bytes": self.size_bytes,
            "used_s": self.used_s,
            "compile_time_s": self.compile_time_s,
            "hits": self.hits,
        }


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
