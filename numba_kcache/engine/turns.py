"""Build a missing request once among the threads, processes (ranks) and nodes of a job; the others wait for it.

Promise     One process compiles, and the others wait a bounded time. Nobody waits for another request's compile.
Not here    The turns themselves (store.locks, tiers.lease), and compiling (session, compile).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..keys import Component, derive
from ..model import EventKind, tell_wait
from . import candidates
from .lookup import LOOKING
from .request import Request, Resolution, Wanted, only

if TYPE_CHECKING:
    from ..tiers.chain import Chain
    from .session import Session

waits = True
"""Whether to wait for another process; False in a warm-up worker that has other kernels to build."""


class BusyError(Exception):
    """Raised if another process builds the artifact, and the caller asked not to wait."""


def resolve_missing(session: Session, wanted: Wanted, components: Sequence[Component]) -> Resolution:
    """Build a request that no store has, or wait for the process that builds it.

    Raises:
        KCacheError: The user's own errors, from the compilers.
        BusyError: This process would have to wait, and `waits` is False.
    """
    request, looks = wanted.request, session.settings.mode in LOOKING
    with session.local.building(derive(components), None if waits else 0.0) as turn:
        if looks and (turn.found is not None or turn.waited_s > 0):
            found = session.first(candidates(session, only(request), (None,)), "waited")  # None: the local store
            if found is not None:
                session.emit(EventKind.WAITED, request, found.key, waited_s=turn.waited_s)
                return found
        tell_wait(session.events.emit, f"another process's build of {request.label}, in vain", turn.waited_s)
        if not waits and not turn.has_turn:
            raise BusyError(request.label)
        if looks and session.chain is not None:
            return _compile_for_all(session, session.chain, request, components)
        return session.compile(request, components)


def _compile_for_all(session: Session, chain: Chain, request: Request, components: Sequence[Component]) -> Resolution:
    """Compile, unless another node does; the caller has this node's turn."""
    with chain.elected(derive(components), waits=waits) as election:
        if election.is_lost:
            raise BusyError(request.label)
        found = session.first(candidates(session, only(request), session.tiers)) if election.looks else None
        if found is None:
            return session.compile(request, components)
        if election.waited_s > 0:
            session.emit(EventKind.WAITED, request, found.key, waited_s=election.waited_s)
        chain.settle()  # stores it locally, for those that wait for this node's turn
        return found
