"""The interface of a store behind the local one: it moves whole files by key, and is not believed.

Promise     A tier hands over the bytes of an entry or manifest as `store.entry.encode_entry` made them, whoever keeps
            them and wherever. It may fail in any way and at any time: its caller (tiers.checked_tier) takes every
            exception for a miss.
Not here    Verification, back-fill, counting (tiers.checked_tier).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ..model import NamedTuple


class Tier(Protocol):
    """A store behind the local one.

    No method reads more than `store.entry.MAX_FILE_BYTES`, and none allocates a size before checking it against that.
    What is not there is None; whatever else is wrong is an exception of any kind. A file is named by its kind, `ENTRY`
    or `MANIFEST`, and its key; with `tiers.trust.SIGNATURE` added to the kind, it is the signature of that file.

    Attributes:
        name: As it is shown to people; holds no secret.
        readonly: Nothing is put there. From such a tier any compiler's code will do, and a lesser target's.
        is_remote: It may be slow or away: what is put there is handed on behind the launch, and it has a breaker.
        is_vouched: What it hands over needs no signature of its own, whoever is trusted.
    """

    name: str
    readonly: bool
    is_remote: bool
    is_vouched: bool

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file."""

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Keep an entry or a signature."""

    def put_manifest(self, family: str, data: bytes, before: bytes | None) -> bool:
        """Keep the file of a manifest in place of `before`, None for none; False where another stands there by now."""

    def keys(self, kind: int) -> Iterable[str]:
        """List the keys of all entries or manifests, in no order."""

    def ready(self) -> None:
        """Do what writing needs and what cannot be done when the process ends: import."""

    def close(self) -> None:
        """Let go of connections and files."""


class TierReport(NamedTuple):
    """Counts of a tier in this process; they may be those of all processes.

    Args:
        name: As it is shown to people.
        readonly: Nothing is put there.
        hits: Entries that it had and that were whole.
        misses: Entries that it did not have.
        errors: What failed, and what arrived damaged.
        bytes_read: Of entries and manifests that arrived.
        bytes_written: Of entries and manifests that it took.
        latency_s: Seconds of one operation on average; 0 before the first.
        is_reachable: The last operation succeeded; None before the first.
    """

    name: str
    readonly: bool
    hits: int
    misses: int
    errors: int
    bytes_read: int
    bytes_written: int
    latency_s: float
    is_reachable: bool | None
