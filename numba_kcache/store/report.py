"""What the verbs of a store answer with."""

from __future__ import annotations

from typing import NamedTuple

from .entry import Header


class EntryInfo(NamedTuple):
    """An entry as it is listed.

    Args:
        key: Its key.
        header: What was stored with it.
        size_bytes: Bytes that its file takes.
        used_s: When it was stored or last used, to the hour, in seconds since the epoch.
        payload_bytes: Unpacked size of each payload.
    """

    key: str
    header: Header
    size_bytes: int
    used_s: float
    payload_bytes: dict[str, int]


class Problem(NamedTuple):
    """A file that `verify` found damaged: the key it was under, and why."""

    key: str
    reason: str


class Removed(NamedTuple):
    """What a pass removed: entries, manifests not counted, and the bytes of both."""

    entries: int
    size_bytes: int


class Usage(NamedTuple):
    """What a store holds.

    Args:
        size_bytes: Of entries and manifests together.
        entries: Their number, manifests not counted.
        walked_s: When it was last counted one by one, in seconds since the epoch; 0 for never.
        records: Changes recorded since then, this count included.
    """

    size_bytes: int
    entries: int
    walked_s: int
    records: int
