"""Collect the figures of `info()`, and the details of one entry.

Promise     Nothing here changes the store, but `verify`, which moves damaged files to the quarantine.
Not here    Formatting (observe), and lists of entries (store.listing).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from ..errors import EntryError, KCacheError, OptionError, SettingsError
from ..explanation.report import facts_of
from ..model import BUILT, KEY_DIGITS, Counts, artifact_from_header
from ..observe.detail import EntryDetail
from ..observe.info import CacheInfo, history_of
from ..settings import size_bytes
from ..store import Payloads
from . import arrived

if TYPE_CHECKING:
    from ..store import FoundFile
    from ..store.listing import Problem
    from . import Lookup, Session


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
    usage, limit = session.local.size(), session.settings.max_size_bytes
    figures = (scope, session.local.directory or "", usage.entries, usage.size_bytes, limit)
    is_off = session.settings.mode == "off"
    why = "the mode is off" if is_off else "" if session.local.readonly else session.local.obstacle()
    more = {"reasons": history_of(sums or {}).reasons, **counts.as_dict()}
    return CacheInfo(*figures, tiers=session.tier_reports(sums), obstacle=why, **more)


def verify(session: Session) -> list[Problem]:
    """Read all files of a cache, quarantine those damaged or contradicting their header, and list them."""
    return session.local.verify(arrived)


def keys_named(lookup: Lookup, name: str) -> list[str]:
    """List the keys of the entries that have a kernel of this name (a shell pattern), the last used one first."""
    return [each.key for each in lookup.local.entries() if any(fnmatchcase(kernel, name) for kernel in each.kernels)]


def find_entry(lookup: Lookup, which: str) -> FoundFile:
    """Find the file of the entry that a user means: by the start of its key, else by the name of a kernel in it.

    Of several entries with such a kernel, the one used last is taken.

    Raises:
        EntryError: There is none, or several keys start so.
    """
    store, where = lookup.local, lookup.local.directory or "memory"
    found = store.find(which) if which and not which.strip("0123456789abcdef") else []
    if not found:
        found = [file for key in keys_named(lookup, which)[:1] for file in store.find(key)]
    if len({file.key for file in found}) != 1:
        why = f"{len(found) or 'no'} keys in {where} begin with it{'' if found else ', and no kernel has this name'}"
        hint = "`numba-kcache list` shows both; `explain` also takes MODULE:KERNEL"
        raise EntryError(f"cannot show the entry {which!r}", why, hint)
    return found[0]


def detail_of(lookup: Lookup, file: FoundFile, hits: Mapping[str, int]) -> EntryDetail:
    """Read the details of an entry.

    Args:
        lookup: The cache's `Lookup`.
        file: File of the entry.
        hits: Hits of all entries, by the start of their keys.

    Raises:
        EntryError: The entry is damaged.
    """
    stored = lookup.local.peeking.get(file.key)
    try:
        if stored is None:
            raise ValueError("it cannot be read, or its digest differs")
        artifact = artifact_from_header(stored.header, stored.payloads)
    except (ValueError, KCacheError, MemoryError) as error:
        hint = "`numba-kcache verify` moves it to quarantine, and the next launch compiles it again"
        raise EntryError(f"cannot show the entry {file.key!r}", f"it is damaged ({error})", hint) from None
    assert isinstance(stored.payloads, Payloads)  # those of an entry that was decoded
    sizes = {name: record.size_bytes for name, (record, _) in stored.payloads.packed.items()}
    if artifact.kind == BUILT:
        del sizes[BUILT]
        sizes = {**dict(artifact.attributes["payloads"]), **sizes}
    times_hit = hits.get(file.key[:KEY_DIGITS], 0)
    return EntryDetail(file.key, artifact, file.size_bytes, file.used_ns / 1e9, times_hit, sizes, **facts_of(stored))


def check_limits(max_size_bytes: Any, older_than: Any) -> int | None:
    """Check the limits of `prune`; None for no limit. Returns the size in bytes.

    Raises:
        OptionError: A limit is not a number, or is below zero.
    """
    if isinstance(max_size_bytes, str):
        with suppress(ValueError):
            max_size_bytes = size_bytes(max_size_bytes)
    limits = {
        "max_size_bytes": (max_size_bytes, "bytes", "'512MB'"),
        "older_than": (older_than, "seconds", "30 * 86400"),
    }
    for name, (value, unit, example) in limits.items():
        is_number = isinstance(value, float) or (hasattr(value, "__index__") and not isinstance(value, bool))
        if value is not None and not (is_number and value >= 0):
            what, why = f"cannot prune with {name}={value!r}", f"it is not a number of {unit}"
            raise OptionError(what, why, f"write {name}={example}")
    return None if max_size_bytes is None else int(max_size_bytes)
