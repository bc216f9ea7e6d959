"""Explain a miss by diffing the request with the nearest stored entry of its kernel.

Promise     Nothing here compiles or changes the store.
Method      The last entries of the kernel's history are read; the one with the fewest differences is shown, with its
            old values and lines. Of a request whose own entry is gone, that is the reason.
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

from ..keys import Component, derive, family_of, names_a_compiler
from ..model import NamedTuple, Origin
from ..model.reason import Reason, ReasonKind
from .diff import compare, with_line
from .history import LOOKED_AT, NEVER_STORED, ComponentRecord, Evidence, Subject, history_name, peek, read_history
from .report import kinds_of, records_here, records_of, report_of, stored_of, texts_here, texts_of
from .text import Explanation, Stored

if TYPE_CHECKING:
    from ..store import StoredEntry

_LEARNED = frozenset(("headers", "paths"))
"""Components that are known only after a compile; the recorded headers are compared instead."""

_MAX_HEADERS = 16
"""Most headers that an explanation lists; switching a branch may change all of them."""

_FARTHEST = (1 << 30, 0)

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

    def compared(records: Sequence[ComponentRecord]) -> list[ComponentRecord]:
        """Leave out what is known only after a compile, and the compilers if code of any is accepted."""
        skipped = [each[0] for each in records if any_compiler and names_a_compiler(each[0])]
        return [each for each in records if each[0] not in _LEARNED and each[0] not in skipped]

    any_compiler = evidence.any_compiler
    records = compared(records_here(subject, components))
    this = family_of(components) if any_compiler else derive(components)
    texts, place = cache(lambda: texts_here(subject)), cache(_placed)  # to place a source takes a millisecond
    history = read_history(history_name(subject), evidence)
    best, nearest = Missed((Reason(ReasonKind.UNKNOWN) if history else NEVER_STORED,)), _FARTHEST
    for row in history[:LOOKED_AT]:
        entry, is_this = peek(str(row["key"]), evidence), this in (row.get("request"), row.get("family"))
        if entry is None and not is_this:
            continue
        found: list[Reason] = []
        if entry is not None and not is_this:
            report = report_of(entry)
            found = compare(compared(records_of(report)), records, subject.kinds)
            found = _with_python(found, report.get("python"))
        if _distance(found) >= nearest:
            continue  # further from the request already, and comparing many headers takes long
        found += _header_reasons(subject, row, evidence)
        if is_this and not found:
            return Missed((_gone(row, entry, evidence),))
        if _distance(found) < nearest:
            nearest = _distance(found)
            changed = _with_lines(found, {} if entry is None else texts_of(entry), texts, place)
            best = Missed(tuple(changed), stored_of(entry) if entry is not None else None)
    return best


def _distance(reasons: Sequence[Reason]) -> tuple[int, int]:
    """The distance of an entry from the request: first by the components that entries of one kernel rarely share."""
    return sum(each.component in _USUALLY_DIFFERENT for each in reasons), len(reasons)


def _gone(listed: Mapping[str, Any], entry: StoredEntry | None, evidence: Evidence) -> Reason:
    """The reason why the entry stored for exactly this request is not a hit."""
    for key in (str(listed["key"]), str(listed.get("family"))):
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


def _header_reasons(subject: Subject, listed: Mapping[str, Any], evidence: Evidence) -> list[Reason]:
    """List the changes in the headers of an entry; empty if the headers are no longer recorded."""
    if not subject.headers:
        return []
    from ..headers.check import Checking, without_toolkit
    from ..headers.lookup import is_there_still, read_row

    roots = subject.headers.roots(evidence.toolchain)
    for each in evidence.store.peeking.get_manifest(str(listed.get("family"))):
        if each["key"] != listed["key"]:
            continue
        try:
            row = read_row(each)
        except ValueError:
            return []
        lost = (str(path) for path in row.paths if not is_there_still(path, roots))
        found = [Reason(ReasonKind.HEADER_SEARCH, "paths", path, path, None) for path in lost]
        known = without_toolkit(row.transcript) if evidence.any_compiler else row.transcript
        for kind, path, old, new in islice(Checking(roots, time.time_ns()).differences(known), _MAX_HEADERS):
            found.append(Reason(ReasonKind(kind), "headers", path, _short(old), _short(new)))
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
    for listed in read_history(str(report.get("history")), evidence):
        other = peek(str(listed["key"]), evidence) if listed["key"] != key else None
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
