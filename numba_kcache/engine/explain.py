"""Explain a request by trying the same candidates as a look-up.

Promise     `explain` reads the same stores as a look-up, in the same order, and compiles, changes and counts nothing.
Not here    The order (engine/__init__.py), the reasons of a miss (explanation.nearest), the words (explanation.text).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..errors import EntryError, FrozenCacheError
from ..explanation.history import Evidence, peek
from ..explanation.nearest import Missed, explain_entry, why_missed
from ..explanation.report import stored_of
from ..explanation.text import Explanation, summary
from ..keys import Component, derive
from ..model import NO_TARGET, parse_target
from ..model.reason import Reason, ReasonKind

if TYPE_CHECKING:
    from ..tiers.chain import CheckedTier
    from . import Lookup, Request


def evidence_of(lookup: Lookup, components: Sequence[Component] = ()) -> Evidence:
    """Collect the evidence for explaining a miss of a request with these components."""
    any_compiler = bool(components) and lookup.takes_any_compiler(components)
    return Evidence(lookup.local, lookup.toolchain, lookup.damaged, any_compiler)


def explain(lookup: Lookup, request: Request) -> Explanation:
    """Explain whether a request would be a hit and from which store, or why it would be a miss."""
    if request.uncacheable:
        reason = Reason(ReasonKind.UNCACHEABLE, new=request.uncacheable)
        return Explanation(request.label, request.target.name, "", "uncacheable", reasons=(reason,))
    found = (_hit(lookup, request) or _miss(lookup, request))._replace(covered=request.covered)
    if lookup.looks:
        return found
    reasons = (Reason(ReasonKind.MODE, new=lookup.settings.mode), *found.reasons)
    return found._replace(outcome="miss", source="", reasons=reasons)


def _hit(lookup: Lookup, request: Request) -> Explanation | None:
    evidence = evidence_of(lookup)
    for wanted, _components, tier, key, _row in lookup.candidates(request):
        entry = peek(key, evidence) if tier is None else tier.peek(key)
        source = "memory" if key in lookup.memory else "" if entry is None else "disk" if tier is None else "tier"
        if source:
            stored = None if entry is None else stored_of(entry)
            return Explanation(wanted.label, wanted.target.name, key, "hit", source, entry=stored)
    return None


def reasons_of(lookup: Lookup, request: Request, components: Sequence[Component]) -> Missed:
    """Find the reasons why a request missed."""
    try:
        found = why_missed(request.subject, components, evidence_of(lookup, components))
        return found._replace(reasons=(*_of_bundles(lookup, request), *found.reasons))
    except Exception:  # stores and users' files may contain anything, and a compile must not fail because of it
        return Missed((Reason(ReasonKind.UNKNOWN),))


def _of_bundles(lookup: Lookup, request: Request) -> Iterator[Reason]:
    """Yield a reason for each bundle that has the kernel for other targets."""
    for tier in lookup.tiers:
        targets = [each for each in tier.tier.targets() if each != NO_TARGET.name]
        others = [request.make(parse_target(each), None) for each in targets] if request.make else []
        names = [each.target.name for each in others if _is_in(lookup, tier, each)]
        if names:
            yield Reason(ReasonKind.OTHER_TARGETS, "target", tier.tier.name, new=", ".join(names))


def _is_in(lookup: Lookup, tier: CheckedTier, request: Request) -> bool:
    return any(tier.peek(each.key) is not None for each in lookup.candidates(request, [tier]))


def frozen_error(lookup: Lookup, request: Request, components: Sequence[Component]) -> FrozenCacheError:
    """Make the error for a request that is not in a frozen cache."""
    why = f"the cache is frozen and does not hold it: {summary(reasons_of(lookup, request, components).reasons)}"
    quarantined = [f"{key} ({reason})" for key, reason in lookup.damaged.items()]
    why += f"; in quarantine: {', '.join(quarantined[-3:])}" if quarantined else ""
    command = "" if request.target == NO_TARGET else f": numba-kcache warm MODULE --arch {request.target}"
    return FrozenCacheError(
        f"cannot compile {request.title}",
        why,
        f"compile it with a cache that is not frozen{command}",
    )


def explain_key(lookup: Lookup, key: str) -> Explanation:
    """Describe a stored entry, and how the other entries of its kernel differ from it. Changes nothing.

    Raises:
        EntryError: The report of the entry, or of another entry of its kernel, cannot be read.
    """
    try:
        return explain_entry(key, evidence_of(lookup))
    except Exception as error:  # its report, and those of its kernel's other entries, may contain anything
        raise EntryError(f"cannot explain the entry {key}", f"its stored report cannot be read: {error!r}") from error


def _miss(lookup: Lookup, request: Request) -> Explanation:
    components = lookup.components(request)
    why = reasons_of(lookup, request, components)
    key = "" if request.headers else derive(components)  # with headers, the key is known only after a compile
    return Explanation(request.label, request.target.name, key, "miss", reasons=why.reasons, nearest=why.nearest)
