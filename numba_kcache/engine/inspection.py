"""Collect the figures of `info()`, and the details of one entry.

Promise     Nothing here changes the store, but `verify`, which moves damaged files to the quarantine.
Not here    Formatting (observe), and lists of entries (store.listing).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import EntryError, KCacheError, OptionError, SettingsError
from ..model.artifact import BUILT, artifact_from_header
from ..observe import KEY_DIGITS, Counts
from ..observe.detail import EntryDetail, read_report
from ..observe.info import CacheInfo
from ..observe.progress import shown_count
from ..store.entry import payload_records
from .arrival import refusal_of

if TYPE_CHECKING:
    from ..store.report import Problem
    from ..store.tree import Found
    from .lookup import Lookup
    from .session import Session


def info_of(session: Session, scope: str) -> CacheInfo:
    """Collect sizes and counts of a cache: the counts of all processes (`"lifetime"`) or of this one (`"process"`).

    Raises:
        SettingsError: There is no such scope.
    """
    if scope not in ("lifetime", "process"):
        raise SettingsError(
            f"cannot use scope={scope!r}", "it is neither 'lifetime' nor 'process'", "write scope='process'"
        )
    sums = session.lifetime() if scope == "lifetime" else None
    counts = session.statistics.process if sums is None else Counts.of(sums)
    usage, limit = session.settled().size(), session.settings.max_size_bytes
    figures = (scope, session.local.directory or "", usage.entries, usage.size_bytes, limit)
    why = "" if session.local.readonly else session.local.obstacle()
    return CacheInfo(*figures, tiers=session.tier_reports(sums), obstacle=why, **counts.as_dict())


def verify(session: Session) -> list[Problem]:
    """Read all files of a cache, quarantine those damaged or contradicting their header, and list them."""
    with shown_count("verifying", "verified", session.settings.progress) as tell:
        return session.settled().verify(refusal_of, tell)


def find_entry(lookup: Lookup, key: str) -> Found:
    """Find the file of the entry whose key has this prefix.

    Raises:
        EntryError: There is none, or there are several.
    """
    found = lookup.settled().find(key) if key and not key.strip("0123456789abcdef") else []
    if len({file.key for file in found}) != 1:
        why = f"{len(found) or 'no'} keys in {lookup.local.directory or 'memory'} begin with it"
        raise EntryError(f"cannot show the entry {key!r}", why, "`numba-kcache list` shows them")
    return found[0]


def detail_of(lookup: Lookup, file: Found, hits: Mapping[str, int]) -> EntryDetail:
    """Read the details of an entry.

    Args:
        lookup: The cache's `Lookup`.
        file: File of the entry.
        hits: Hits of all entries, by the start of their keys.

    Raises:
        EntryError: The entry is damaged.
    """
    stored = lookup.local.peek(file.key)
    try:
        if stored is None:
            raise ValueError("it cannot be read, or its digest differs")
        artifact = artifact_from_header(stored.header, stored.payloads)
    except (ValueError, KCacheError, MemoryError) as error:
        hint = "`numba-kcache verify` moves it to quarantine, and the next launch compiles it again"
        raise EntryError(f"cannot show the entry {file.key!r}", f"it is damaged ({error})", hint) from None
    report = read_report(stored.payloads.get("report", b""))
    sizes = {each.name: each.size_bytes for each in payload_records(stored)}
    if artifact.kind == BUILT:
        from ..model.built import sizes_of

        sizes = {**sizes_of(artifact), **{name: size for name, size in sizes.items() if name != BUILT}}
    times_hit = hits.get(file.key[:KEY_DIGITS], 0)
    return EntryDetail(file.key, artifact, file.size_bytes, file.used_ns / 1e9, times_hit, sizes, **report)


def check_limits(**limits: Any) -> None:
    """Check the limits of `prune`: bytes and seconds; None for no limit.

    Raises:
        OptionError: A limit is not a number, or is below zero.
    """
    for name, value in limits.items():
        is_number = isinstance(value, float) or (hasattr(value, "__index__") and not isinstance(value, bool))
        if value is not None and not (is_number and value >= 0):
            unit, example = ("seconds", "30 * 86400") if name == "older_than" else ("bytes", "2**30")
            raise OptionError(
                f"cannot prune with {name}={value!r}", f"it is not a number of {unit}", f"write {name}={example}"
            )
