"""Whether a request is a hit, where from, and if not, why not; and what a stored entry is.

Promise     Looks where a look-up would look, in its order, and nothing is compiled, changed or counted by it.
Not here    Why a request is none of what was stored (misses), and the words (observe.explain).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from .jobs import Job
from .keys.components import Component, derive
from .lookup import Lookup, family_of
from .misses import why_missed
from .model.reason import Reason, ReasonKind
from .model.request import Origin
from .observe.explain import Explanation, Stored
from .observe.reasons import compare, with_line
from .rolls import LOOKED_AT, Past, peek, records_of, report_of, roll, stored_of, texts_of

if TYPE_CHECKING:
    from .store.entry import StoredEntry
    from .tiers.checked_tier import CheckedTier

Wanted = tuple[Job, Sequence[Component]]
"""A job, and all its components without headers."""


def explain(
    cache: Lookup, job: Job, others: Iterable[Callable[[], Job]], stand_ins: Iterable[Callable[[], Job]]
) -> Explanation:
    """Whether the resolution of a job would be a hit, where from, and if not, why not.

    Args:
        cache: Where to look.
        job, others, stand_ins: As for `Resolver.resolve`.
    """
    if job.uncacheable:
        reason = Reason(ReasonKind.UNCACHEABLE, new=job.uncacheable)
        return Explanation(job.label, job.target.name, "", "uncacheable", reasons=(reason,))
    mode = cache.settings.mode
    frozen = mode == "frozen"
    wanted = [(each, cache.components(each)) for each in (job, *(make() for make in others))]
    lenient = [*([None] if frozen else []), *(each for each in cache.tiers if frozen or each.readonly)]
    spare = [(each, cache.components(each)) for each in (make() for make in stand_ins if lenient)]
    tried = [(each, tier) for tier in (None, *cache.tiers) for each in wanted]
    tried += [(each, tier) for each in spare for tier in lenient]
    told = _explain(tried, cache.past(wanted[0][1]))
    if mode in ("off", "refresh", "verify"):
        missed = (Reason(ReasonKind.MODE, new=mode), *told.reasons)
        return told._replace(outcome="miss", source="", reasons=missed)
    return told


def _explain(tried: Sequence[tuple[Wanted, CheckedTier | None]], past: Past) -> Explanation:
    """Of what is tried, the first that is a hit.

    Args:
        tried: Jobs with all their components, and where each is looked for: in a tier, or in the local store (None).
            The first is what is wanted, the others will do as well.
        past: Where to look.
    """
    for (job, components), tier in tried:
        place = past if tier is None else past._replace(any_compiler=past.any_compiler or tier.readonly)
        for key in _keys(job, components, place, family_of(components), tier):
            entry = peek(key, past) if tier is None else tier.peek(key)
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
    entry = peek(key, past)
    if entry is None:
        why = past.store.damage(key)
        reason = Reason(ReasonKind.DAMAGED, new=why) if why else Reason(ReasonKind.NEVER_STORED)
        return Explanation("", "", key, "not stored", reasons=(reason,))
    report, stored = report_of(entry), stored_of(entry)
    others: list[tuple[Stored, tuple[Reason, ...]]] = []
    for variant in roll(str(report.get("roll")), past):
        other = peek(str(variant["key"]), past) if variant["key"] != key else None
        if other is not None and len(others) < LOOKED_AT:
            others.append((stored_of(other), tuple(_between(other, entry))))
    return Explanation(stored.kernel, stored.target, key, "stored", "disk", entry=stored, others=tuple(others))


def _between(old: StoredEntry, new: StoredEntry) -> list[Reason]:
    """Every difference between two stored entries, with the lines that differ."""
    before, after = texts_of(old), texts_of(new)
    found = compare(records_of(report_of(old)), records_of(report_of(new)))
    for index, each in enumerate(found):
        if each.kind is ReasonKind.SOURCE_CHANGED and each.component in after:
            found[index] = with_line(each, before.get(each.component), after[each.component], Origin("", 0))
    return found
