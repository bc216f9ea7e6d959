"""What was stored of a kernel before, and why a request is none of it.

Promise     Nothing here compiles, and nothing but `note` changes the store. What a store gives back is only told, never
            served: a record that is lost, torn or wrong costs an explanation.
Method      Each kernel has a roll, a manifest named by what people call it: the key of each of its last entries,
            and the start of the digest of each component. It is written when an entry is, and read on a miss alone; of
            the entries that it names the one with the fewest differences is read, for old values and lines.
Not here    What differs (observe.reasons), the words (observe.explain), and serving (resolver).
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .jobs import Job
from .keys.components import Component, component, derive
from .keys.requests import TOOLCHAIN_COMPONENTS
from .model.reason import Reason, ReasonKind
from .model.request import Origin
from .observe.explain import Explanation, Stored
from .observe.reasons import KINDS, Record, compare, with_line

if TYPE_CHECKING:
    from .store.disk import DiskStore
    from .store.entry import StoredEntry
    from .store.memory import MemoryStore
    from .tiers.chain import CheckedTier
    from .toolchain.libraries import Toolchain

SOURCE_LIMIT_BYTES = 64 << 10
"""Of the source and functions of one entry, that are kept to show lines; what is beyond is known by digest alone."""

_LOOKED_AT = 8
"""Entries of a kernel that are read to find the nearest."""

_LEARNED = frozenset(("headers", "paths"))
"""Components that are known after a compile alone: held against the closures instead."""

_APART = frozenset(("kind", "entry", "target", "signature", "argument types"))
"""Components in which entries of one kernel differ side by side; the nearest entry shares them if any does."""

_DIGITS = 16

Wanted = tuple[Job, Sequence[Component]]
"""A job, and all its components without headers."""


class Past(NamedTuple):
    """Where to look.

    Args:
        store: Of the cache; only looked at.
        toolchain: Knows the toolkit's folders.
        memory: Artifacts at hand, by key.
        damaged: What this process found damaged: why, by key.
        any_compiler: Whether other compilers' code will do.
    """

    store: DiskStore | MemoryStore
    toolchain: Toolchain
    memory: Mapping[str, object]
    damaged: Mapping[str, str]
    any_compiler: bool = False


class Missed(NamedTuple):
    """Why a request is not stored, and the stored entry that is most like it."""

    reasons: tuple[Reason, ...]
    nearest: Stored | None = None


# -- writing -----------------------------------------------------------------------------------------------------


def name_of(job: Job) -> str:
    """The name of the manifest that is the roll of the job's kernel, wherever in a file that stands."""
    entry = next((each.value for each in job.components if each.name == "entry"), None)
    name = entry.get("name") if isinstance(entry, dict) else None
    return derive([component("roll", [re.sub(r":\d+\Z", "", job.label), name])])


def payloads_of(job: Job, components: Sequence[Component]) -> dict[str, bytes]:
    """What an entry keeps to explain it: `report`, and `source` where that is not too large."""
    report = {
        "kernel": job.label,
        "roll": name_of(job),
        "python": sys.implementation.cache_tag,
        "created_s": time.time(),
        "built": built_here(),
        "components": [each.record() for each in components],
    }
    texts = {name: text for name, (text, _) in job.texts().items()}
    source = json.dumps(texts).encode()
    kept = {"source": source} if texts and len(source) <= SOURCE_LIMIT_BYTES else {}
    return {"report": json.dumps(report, default=bytes.hex).encode(), **kept}


def built_here() -> dict[str, str]:
    """Where an entry is made, for people who look at it later."""
    import platform

    python = platform.python_implementation() + " " + platform.python_version()
    return {"host": platform.node(), "system": f"{platform.system()} {platform.release()}", "python": python}


def note(store: DiskStore | MemoryStore, job: Job, components: Sequence[Component], key: str, family: str) -> None:
    """Add an entry that was just stored to its kernel's roll."""
    store.add_variant(name_of(job), {"key": key, "family": family, "digests": _digests(components)})


def _digests(components: Sequence[Component]) -> dict[str, str]:
    """Not those of each function and value of a Numba kernel: they may be hundreds."""
    return {each.name: each.digest[:_DIGITS] for each in components if each.name in KINDS}


# -- a miss ------------------------------------------------------------------------------------------------------


def why_missed(job: Job, components: Sequence[Component], past: Past) -> Missed:
    """Why nothing is stored for a job: every difference from the nearest entry of the same kernel.

    Args:
        job: What is wanted.
        components: All of it, without headers.
        past: Where to look.
    """
    now = _digests(components)
    ignored = _LEARNED | (TOOLCHAIN_COMPONENTS if past.any_compiler else frozenset())
    ranked = sorted(
        ((_distance(each["digests"], now, ignored), each) for each in _roll(name_of(job), past)),
        key=lambda pair: pair[0],
    )
    if not ranked:
        return Missed((Reason(ReasonKind.NEVER_STORED),))
    best: Missed | None = None
    nearest = ranked[0][0]
    for distance, variant in ranked[:_LOOKED_AT]:
        entry = _entry(str(variant["key"]), past)
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


def _roll(name: str, past: Past) -> list[dict[str, Any]]:
    try:
        return [each for each in past.store.peek_manifest(name) if isinstance(each.get("digests"), dict)]
    except ValueError:  # no name of one
        return []


def _entry(key: str, past: Past) -> StoredEntry | None:
    try:
        return past.store.peek(key)
    except ValueError:  # no key
        return None


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
    report = _report(entry)
    old = [each for each in _records(report) if each[0] not in ignored]
    new = [each for each in _as_json(components) if each[0] not in ignored]
    found = compare(old, new)
    if report.get("python") != sys.implementation.cache_tag and any(each.component == "function" for each in found):
        python = Reason(ReasonKind.VERSION, "function", "Python", report.get("python"), sys.implementation.cache_tag)
        found = [each for each in found if each.component != "function"] + [python]
    texts = _texts(entry)
    for index, each in enumerate(found):
        if each.kind is ReasonKind.SOURCE_CHANGED and each.component in (now := job.texts()):
            found[index] = with_line(each, texts.get(each.component), *now[each.component])
    return found


def _header_reasons(job: Job, variant: Mapping[str, Any], past: Past) -> list[Reason] | None:
    """What the headers of an entry are now; None where it is not known any more what they were."""
    if not job.headers:
        return []
    from .closures import read_closures, with_toolkit_of
    from .inputs.closure_check import Change
    from .inputs.closure_mismatches import mismatches

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


# -- what entries say of themselves ------------------------------------------------------------------------------


def _json(entry: StoredEntry, name: str) -> dict[str, Any]:
    try:
        found = json.loads(entry.payloads[name])
    except (KeyError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _report(entry: StoredEntry) -> dict[str, Any]:
    return _json(entry, "report")


def _texts(entry: StoredEntry) -> dict[str, str]:
    return {name: text for name, text in _json(entry, "source").items() if isinstance(text, str)}


def _records(report: Mapping[str, Any]) -> list[Record]:
    """The component records of a report; what is none is left out."""
    rows = report.get("components")
    return [
        (row[0], row[1], row[2])
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[1], str)
    ]


def _as_json(components: Sequence[Component]) -> list[Record]:
    """The records of components as a report would give them back."""
    report = {"components": [each.record() for each in components]}
    return _records(json.loads(json.dumps(report, default=bytes.hex)))


def stored_of(entry: StoredEntry) -> Stored:
    """An entry as an explanation tells of it."""
    report, header = _report(entry), entry.header
    numbers = [report.get("created_s"), header.get("compile_time_s")]
    created_s, seconds = (float(each) if isinstance(each, (int, float)) else 0.0 for each in numbers)
    size = len(entry.payloads["cubin"]) if "cubin" in entry.payloads else 0
    return Stored(entry.key, str(report.get("kernel", "")), str(header.get("target", "")), created_s, seconds, size)


# -- explanations ------------------------------------------------------------------------------------------------


def explain(
    tried: Sequence[tuple[Wanted, CheckedTier | None]], past: Past, family: Callable[[Sequence[Component]], str]
) -> Explanation:
    """Whether what is wanted is a hit, where from, and if not, why not.

    Args:
        tried: Jobs with all their components, and where each is looked for: in a tier, or in the local store (None).
            The first is what is wanted, the others will do as well.
        past: Where to look.
        family: The name of the manifest of components.
    """
    for (job, components), tier in tried:
        place = past if tier is None else past._replace(any_compiler=past.any_compiler or tier.readonly)
        for key in _keys(job, components, place, family(components), tier):
            entry = _entry(key, past) if tier is None else tier.peek(key)
            source = "memory" if key in past.memory else "" if entry is None else "disk" if tier is None else "tier"
            if source:
                stored = None if entry is None else stored_of(entry)
                return Explanation(job.label, job.target.name, key, "hit", source, entry=stored)
    job, components = tried[0][0]
    missed = why_missed(job, components, past)
    key = "" if job.headers else derive(components)
    return Explanation(job.label, job.target.name, key, "miss", reasons=missed.reasons, nearest=missed.nearest)


def _keys(job: Job, components: Sequence[Component], past: Past, family: str, tier: CheckedTier | None) -> list[str]:
    """The keys under which a look-up would look."""
    variants = past.store.peek_manifest if tier is None else tier.get_manifest
    if not job.headers:
        others = variants(family) if past.any_compiler else []
        return [derive(components), *(str(each["key"]) for each in others)]
    from .closures import find_key

    searches = [each.search(past.toolchain) for each in job.headers]
    found = find_key(variants(family), components, searches, any_compiler=past.any_compiler)
    return [found.key] if found.key else []


def explain_key(key: str, past: Past) -> Explanation:
    """What a stored entry is, and in what the other entries of its kernel differ from it."""
    entry = _entry(key, past)
    if entry is None:
        why = past.damaged.get(key) or past.store.damage(key)
        reason = Reason(ReasonKind.DAMAGED, new=why) if why else Reason(ReasonKind.NEVER_STORED)
        return Explanation("", "", key, "not stored", reasons=(reason,))
    report, stored = _report(entry), stored_of(entry)
    others: list[tuple[Stored, tuple[Reason, ...]]] = []
    for variant in _roll(str(report.get("roll")), past):
        other = _entry(str(variant["key"]), past) if variant["key"] != key else None
        if other is not None and len(others) < _LOOKED_AT:
            others.append((stored_of(other), tuple(_between(other, entry))))
    return Explanation(stored.kernel, stored.target, key, "stored", "disk", entry=stored, others=tuple(others))


def _between(old: StoredEntry, new: StoredEntry) -> list[Reason]:
    """Every difference between two stored entries, with the lines that differ."""
    before, after = _texts(old), _texts(new)
    found = compare(_records(_report(old)), _records(_report(new)))
    for index, each in enumerate(found):
        if each.kind is ReasonKind.SOURCE_CHANGED and each.component in after:
            found[index] = with_line(each, before.get(each.component), after[each.component], Origin("", 0))
    return found
