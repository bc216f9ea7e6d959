"""The order of look-ups (`candidates`): which request, in which store, with code of which compiler.

Promise     No other module decides on an order: look-ups, waiting for another process, tiers and explanations all
            read `candidates`. Compilers are identified no earlier than the first candidate that needs them.
Method      To find out that compilers are not installed takes longer than the rest of a first launch. So while there is
            no record of them, code of any compiler is looked for first, in the stores where it is accepted.
Not here    The keys of a candidate and reading its entry (lookup).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..keys import Component
from ..model import NamedTuple
from .request import Request, Wanted

if TYPE_CHECKING:
    from ..tiers.checked_tier import CheckedTier
    from .lookup import Lookup

_SAME_DEVICE = "code for the same device without its architecture-specific instructions"
_ANY_COMPILER = "code of any compiler is accepted there"
_OLDER_TARGET = "code for an earlier target runs on the device, and nothing is compiled for that store"


class Candidate(NamedTuple):
    """One request to look up in one store.

    Args:
        request: The request.
        components: Its components; with the compilers, where they were identified.
        tier: The store; None for the local one.
        any_compiler: Whether code of any compiler is accepted.
        is_identified: Whether `components` name this process's compilers; if not, no key can be derived from them.
        why: Reason why `request` is accepted in place of the wanted one; "" if it is the wanted one.
    """

    request: Request
    components: tuple[Component, ...]
    tier: CheckedTier | None
    any_compiler: bool
    is_identified: bool
    why: str


def candidates(
    lookup: Lookup, wanted: Wanted, stores: Sequence[CheckedTier | None] | None = None
) -> Iterator[Candidate]:
    """Yield the candidates for a request, best first.

    Args:
        lookup: Provides the tiers, the mode and the compilers.
        wanted: The request, its alternatives and its fallbacks.
        stores: Stores to look in, with None for the local one; None for all.
    """
    stores = (None, *lookup.tiers) if stores is None else stores
    local, tiers = [each for each in stores if each is None], [each for each in stores if each is not None]
    settings = lookup.settings
    frozen = settings.mode == "frozen"
    readonly = [each for each in tiers if each.readonly]
    fallback_stores = [*local, *tiers] if frozen else readonly  # nothing is compiled for them

    if lookup.compilers(wanted.request, looks=False) is None:
        if frozen or settings.toolchain == "any":
            yield from _unidentified(lookup, wanted.requests(), local)
            yield from _unidentified(lookup, wanted.requests(), tiers)
            yield from _unidentified(lookup, wanted.fallbacks(), fallback_stores)
        else:
            yield from _unidentified(lookup, wanted.requests(), [each for each in readonly if not each.tier.is_remote])
            if lookup.lacks_compilers(wanted.request):
                yield from _unidentified(lookup, wanted.requests(), local)
                yield from _unidentified(lookup, wanted.requests(), readonly)
                yield from _unidentified(lookup, wanted.fallbacks(), readonly)

    for group in (local, tiers):
        for request in wanted.requests() if group else ():
            for tier in group:
                yield _identified(lookup, request, tier, "" if request is wanted.request else _SAME_DEVICE)
    for request in wanted.fallbacks() if fallback_stores else ():
        for tier in fallback_stores:
            yield _identified(lookup, request, tier, _OLDER_TARGET)


def _identified(lookup: Lookup, request: Request, tier: CheckedTier | None, why: str) -> Candidate:
    components = request.components + (lookup.compilers(request) or ())
    any_compiler = (tier is not None and tier.readonly) or lookup.takes_any_compiler(components)
    return Candidate(request, components, tier, any_compiler, True, why)


def _unidentified(
    lookup: Lookup, requests: Iterable[Request], stores: Sequence[CheckedTier | None]
) -> Iterator[Candidate]:
    """Yield candidates without the compilers: their code may come from any."""
    for request in requests if stores else ():
        for tier in stores:
            yield Candidate(request, lookup.unidentified(request), tier, True, False, _ANY_COMPILER)
