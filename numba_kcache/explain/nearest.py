"""Why a request is none of what was stored of its kernel before.

Promise     Nothing here compiles or changes the store.
Method      Of the entries that the kernel's roll names the one with the fewest differences is read, for old values and
            lines.
Not here    What is kept of a kernel (rolls), what differs (observe.reasons), the words (observe.explain), and serving
            (resolver).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.request import Job
from ..frontends.source.components import TOOLCHAIN_COMPONENTS
from ..keys.components import Component
from ..model.reason import Reason, ReasonKind
from .diff import compare, with_line
from .history import (
    LOOKED_AT,
    Past,
    as_json,
    digests_of,
    name_of,
    peek,
    records_of,
    report_of,
    roll,
    stored_of,
    texts_of,
)
from .text import Stored

if TYPE_CHECKING:
    from ..store.entry import StoredEntry

_LEARNED = frozenset(("headers", "paths"))
"""Components that are known after a compile alone: held against the closures instead."""

_APART = frozenset(("kind", "entry", "target", "signature", "argument types"))
"""Components in which entries of one kernel differ side by side; the nearest entry shares them if any does."""


class Missed(NamedTuple):
    """Why a request is not stored, and the stored entry that is most like it."""

    reasons: tuple[Reason, ...]
    nearest: Stored | None = None


def why_missed(job: Job, components: Sequence[Component], past: Past) -> Missed:
    """Why nothing is stored for a job: every difference from the nearest entry of the same kernel.

    Args:
        job: What is wanted.
        components: All of it, without headers.
        past: Where to look.
    """
    now = digests_of(components)
    ignored = _LEARNED | (TOOLCHAIN_COMPONENTS if past.any_compiler else frozenset())
    ranked = sorted(
        ((_distance(each["digests"], now, ignored), each) for each in roll(name_of(job), past)),
        key=lambda pair: pair[0],
    )
    if not ranked:
        return Missed((Reason(ReasonKind.NEVER_STORED),))
    job = job._replace(texts=cache(job.texts))  # finding the lines of a source in its file takes a millisecond
    best: Missed | None = None
    nearest = ranked[0][0]
    for distance, variant in ranked[:LOOKED_AT]:
        entry = peek(str(variant["key"]), past)
        if distance and entry is None:
            continue
        if best is not None and distance > nearest:
            break
        nearest = distance
        changed = _changes(job, components, entry, ignored) if distance and entry is not None else []
        headers = _header_reasons(job, variant, past)
        if not distance and not headers:
            return Missed((_gone(variant, entry, past),))
        found = Missed((*changed, *(headers or ())), stored_of(entry) if entry is not None else None)
        if best is None or len(found.reasons) < len(best.reasons):
            best = found
    return best or Missed(tuple(_by_digest(ranked[0][1]["digests"], now, ignored)))


def _distance(then: Mapping[str, Any], now: Mapping[str, str], ignored: frozenset[str]) -> int:
    names = (then.keys() | now.keys()) - ignored
    return sum(100 if name in _APART else 1 for name in names if then.get(name) != now.get(name))


def _by_digest(then: Mapping[str, Any], now: Mapping[str, str], ignored: frozenset[str]) -> list[Reason]:
    """The differences from an entry that is not there any more."""
    old, new = ([(n, str(d), None) for n, d in each.items() if n not in ignored] for each in (then, now))
    return compare(old, new)


def _gone(variant: Mapping[str, Any], entry: StoredEntry | None, past: Past) -> Reason:
    """Why what was stored for the very same request is not served."""
    for key in (str(variant["key"]), str(variant.get("family"))):
        why = past.damaged.get(key) or (past.store.damage(key) if entry is None else "")
        if why:
            return Reason(ReasonKind.DAMAGED, new=why)
    return Reason(ReasonKind.EVICTED_OR_CLEARED if entry is None else ReasonKind.UNKNOWN)


def _changes(job: Job, components: Sequence[Component], entry: StoredEntry, ignored: frozenset[str]) -> list[Reason]:
    """Every difference between a stored entry and a job, headers left out, with the lines that differ."""
    report = report_of(entry)
    old = [each for each in records_of(report) if each[0] not in ignored]
    new = [each for each in as_json(components) if each[0] not in ignored]
    found = compare(old, new)
    if report.get("python") != sys.implementation.cache_tag and any(each.component == "function" for each in found):
        python = Reason(ReasonKind.VERSION, "function", "Python", report.get("python"), sys.implementation.cache_tag)
        found = [each for each in found if each.component != "function"] + [python]
    texts = texts_of(entry)
    for index, each in enumerate(found):
        if each.kind is ReasonKind.SOURCE_CHANGED and each.component in (now := job.texts()):
            found[index] = with_line(each, texts.get(each.component), *now[each.component])
    return found


def _header_reasons(job: Job, variant: Mapping[str, Any], past: Past) -> list[Reason] | None:
    """What the headers of an entry are now; None where it is not known any more what they were."""
    if not job.headers:
        return []
    from ..headers.check import Change
    from ..headers.lookup import read_closures, with_toolkit_of
    from ..headers.mismatches import mismatches

    kinds = {
        Change.LAYOUT: ReasonKind.HEADER_SEARCH,
        Change.SAME_FILE: ReasonKind.HEADER_SEARCH,
        Change.TOOLKIT: ReasonKind.TOOLKIT,
        Change.SHADOWED: ReasonKind.HEADER_SHADOWED,
        Change.ANSWER: ReasonKind.HEADER_ANSWER,
    }
    searches = [each.search(past.toolchain) for each in job.headers]
    folders = {folder for search in searches for folder in search.folders}
    for each in past.store.peek_manifest(str(variant.get("family"))):
        if each["key"] != variant["key"]:
            continue
        try:
            closures = read_closures(each, len(searches))
        except ValueError:
            return None
        lost = (str(path) for path in each.get("paths", ()) if str(path) not in folders)
        found = [Reason(ReasonKind.HEADER_SEARCH, "paths", path, path, None) for path in lost]
        for closure, search in zip(closures, searches, strict=True):
            if closure is not None:
                where = with_toolkit_of(closure, search) if past.any_compiler else search
                for change, path, old, new in mismatches(closure, where, now_ns=time.time_ns()):
                    kind = kinds.get(change, ReasonKind.HEADER_CHANGED)
                    found.append(Reason(kind, "headers", path, _short(old), _short(new)))
        return list(dict.fromkeys(found))
    return None


def _short(text: str) -> str:
    return f"sha256 {text[:12]}" if re.fullmatch(r"[0-9a-f]{64}", text) else text
