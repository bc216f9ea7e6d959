"""Explain a miss by diffing the request with the nearest stored entry of its kernel.

Promise     Nothing here compiles or changes the store.
Method      The entry of the kernel's history with the fewest differences is read, to show old values and lines.
Not here    The records of a kernel (history), the differences (diff), the words (text), and look-ups (engine).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..keys import Component, names_a_compiler
from ..model import NamedTuple, Origin
from ..model.reason import Reason, ReasonKind
from .diff import compare, with_line
from .history import LOOKED_AT, NEVER_STORED, Evidence, Subject, digests_of, history_of, peek, read_history
from .report import kinds_of, records_here, records_of, report_of, stored_of, texts_here, texts_of
from .text import Explanation, Stored

if TYPE_CHECKING:
    from ..store.entry import StoredEntry

_LEARNED = frozenset(("headers", "paths"))
"""Components that are known only after a compile; the recorded headers are compared instead."""

_MAX_HEADERS = 16
"""Most headers that an explanation lists; switching a branch may change all of them."""

_USUALLY_DIFFERENT = frozenset(("kind", "entry", "target", "signature", "argument types"))
"""Components in which a kernel's entries normally differ; entries that share them are preferred as the nearest."""


class Missed(NamedTuple):
    """The reasons for a miss, and the stored entry that is most like the request."""

    reasons: tuple[Reason, ...]
    nearest: Stored | None = None


def why_missed(subject: Subject, components: Sequence[Component], evidence: Evidence) -> Missed:
    """List every difference of a request from the nearest stored entry of the same kernel.

    Args:
        subject: The request.
        components: Its components with the compilers, without headers.
        evidence: The state of the cache.
    """

    def is_compared(name: str) -> bool:
        return name not in _LEARNED and not (evidence.any_compiler and names_a_compiler(name))

    def distance_of(then: Mapping[str, Any]) -> int:
        changed = [name for name, digest in now.items() if then.get(name) != digest]
        changed += [name for name in then if name not in now]
        return sum(100 if name in _USUALLY_DIFFERENT else 1 for name in changed if is_compared(name))

    now = digests_of(components, subject.kinds)
    ranked = [(distance_of(each["digests"]), each) for each in history_of(subject, evidence)]
    ranked.sort(key=lambda pair: pair[0])
    if not ranked:
        return Missed((NEVER_STORED,))
    records = [each for each in records_here(subject, components) if is_compared(each[0])]
    has_all_digests = not subject.headers and len(now) == len(components)  # then the ranking is exact
    texts, place = cache(lambda: texts_here(subject)), cache(_placed)  # to place a source takes a millisecond
    best: Missed | None = None
    nearest = ranked[0][0]
    for distance, variant in ranked[:LOOKED_AT]:
        entry = peek(str(variant["key"]), evidence)
        if distance and entry is None:
            continue
        if best is not None and (distance > nearest or has_all_digests):
            break
        nearest = distance
        changed: list[Reason] = []
        if distance and entry is not None:
            report = report_of(entry)
            old = [each for each in records_of(report) if is_compared(each[0])]
            changed = _with_python(compare(old, records, subject.kinds), report.get("python"))
            if best is not None and len(changed) >= len(best.reasons):
                continue  # already further from the request, and comparing many headers takes long
            changed = _with_lines(changed, texts_of(entry), texts, place)
        found = [*changed, *_header_reasons(subject, variant, evidence)]
        if not distance and not found:
            return Missed((_gone(variant, entry, evidence),))
        if best is None or len(found) < len(best.reasons):
            best = Missed(tuple(found), stored_of(entry) if entry is not None else None)
    if best is not None:
        return best
    then = ranked[0][1]["digests"]  # the entries were removed: their digests remain, their values do not
    old, new = ([(name, str(each[name]), None) for name in each if is_compared(name)] for each in (then, now))
    return Missed(tuple(compare(old, new, subject.kinds)))


def _gone(variant: Mapping[str, Any], entry: StoredEntry | None, evidence: Evidence) -> Reason:
    """The reason why the entry stored for exactly this request is not a hit."""
    for key in (str(variant["key"]), str(variant.get("family"))):
        why = evidence.damaged.get(key) or (evidence.store.damage(key) if entry is None else "")
        if why:
            return Reason(ReasonKind.DAMAGED, new=why)
    return Reason(ReasonKind.EVICTED_OR_CLEARED if entry is None else ReasonKind.UNKNOWN)


def _with_python(reasons: list[Reason], old: Any) -> list[Reason]:
    """Replace the reason that the function changed by Python's version, if another Python made the stored entry."""
    new = sys.implementation.cache_tag
    others = [each for each in reasons if each.component != "function"]
    if old == new or len(others) == len(reasons):
        return reasons
    return [*others, Reason(ReasonKind.VERSION, "function", "Python", old, new)]


def _with_lines(
    reasons: Sequence[Reason],
    before: Mapping[str, str],
    texts: Callable[[], Mapping[str, tuple[str, Origin]]],
    place: Callable[[str, Origin], Origin],
) -> list[Reason]:
    """Add the line that differs to each reason about a text."""
    found = list(reasons)
    for index, each in enumerate(found):
        if each.kind in (ReasonKind.SOURCE_CHANGED, ReasonKind.COMPONENT) and each.component in texts():
            text, origin = texts()[each.component]
            if each.component == "source":
                origin = place(text, origin)
            found[index] = with_line(each, before.get(each.component), text, origin)
    return found


def _placed(text: str, origin: Origin) -> Origin:
    """The line of the file at which a source starts. It reads the file, so it is called only for reasons shown."""
    from ..toolchain.diagnostics import first_line

    return Origin(origin.path, first_line(text, origin) or 0)


def _header_reasons(subject: Subject, variant: Mapping[str, Any], evidence: Evidence) -> list[Reason]:
    """List the changes in the headers of an entry; empty if the headers are no longer recorded."""
    if not subject.headers:
        return []
    from ..headers.check import Change, Checking, without_toolkit
    from ..headers.lookup import is_there_still, read_row

    kinds = {
        Change.LAYOUT: ReasonKind.HEADER_SEARCH,
        Change.SAME_FILE: ReasonKind.HEADER_SEARCH,
        Change.TOOLKIT: ReasonKind.TOOLKIT,
        Change.SHADOWED: ReasonKind.HEADER_SHADOWED,
        Change.ANSWER: ReasonKind.HEADER_ANSWER,
    }
    roots = subject.headers.roots(evidence.toolchain)
    for each in evidence.store.peek_manifest(str(variant.get("family"))):
        if each["key"] != variant["key"]:
            continue
        try:
            row = read_row(each)
        except ValueError:
            return []
        lost = (str(path) for path in row.paths if not is_there_still(path, roots))
        found = [Reason(ReasonKind.HEADER_SEARCH, "paths", path, path, None) for path in lost]
        known = without_toolkit(row.transcript) if evidence.any_compiler else row.transcript
        for change, path, old, new in islice(Checking(roots, time.time_ns()).differences(known), _MAX_HEADERS):
            kind = kinds.get(change, ReasonKind.HEADER_CHANGED)
            found.append(Reason(kind, "headers", path, _short(old), _short(new)))
        return list(dict.fromkeys(found))
    return []


def _short(text: str) -> str:
    return f"sha256 {text[:12]}" if re.fullmatch(r"[0-9a-f]{64}", text) else text


def explain_entry(key: str, evidence: Evidence) -> Explanation:
    """Describe a stored entry, and how the other entries of its kernel differ from it."""
    entry = peek(key, evidence)
    if entry is None:
        why = evidence.store.damage(key)
        reason = Reason(ReasonKind.DAMAGED, new=why) if why else NEVER_STORED
        return Explanation("", "", key, "not stored", reasons=(reason,))
    report, stored = report_of(entry), stored_of(entry)
    others: list[tuple[Stored, tuple[Reason, ...]]] = []
    for variant in read_history(str(report.get("history")), evidence):
        other = peek(str(variant["key"]), evidence) if variant["key"] != key else None
        if other is not None and len(others) < LOOKED_AT:
            others.append((stored_of(other), tuple(_between(other, entry))))
    return Explanation(stored.kernel, stored.target, key, "stored", "disk", entry=stored, others=tuple(others))


def _between(old: StoredEntry, new: StoredEntry) -> list[Reason]:
    """List every difference between two stored entries, with the lines that differ."""
    report, nowhere = report_of(new), Origin("", 0)
    found = compare(records_of(report_of(old)), records_of(report), kinds_of(report))
    return _with_lines(
        found, texts_of(old), lambda: {name: (text, nowhere) for name, text in texts_of(new).items()}, _placed
    )
