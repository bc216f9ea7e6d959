"""Build a missing request once among the threads, processes (ranks) and nodes of a job; the others wait for it.

Promise     One process compiles, and the others wait a bounded time. Nobody waits for another request's compile. A
            process that would have to wait first resolves other kernels that its program declares with `signature=`,
            until the wait is over; it calls no user function, and an error is raised later, where that kernel is used.
Method      Each of these kernels is tried once, in program order, and skipped if another process builds it.
Not here    The turns themselves (store.locks, tiers.lease), and compiling (engine, compile).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from ..keys import Component, derive
from ..model import EventKind, Target, tell_wait
from ..waiting import is_reentered

if TYPE_CHECKING:
    from ..model import Resolution
    from . import Request, Session

_ahead = threading.local()
"""Of each thread: `is_it` while it resolves a kernel before the program needs it, for which it waits for nobody."""


class BusyError(Exception):
    """Raised if another process builds the artifact, and the caller asked not to wait."""


@contextmanager
def turn_to_build(session: Session, request: Request, components: Sequence[Component]) -> Iterator[Resolution | None]:
    """Wait for the process that builds a request; yield its result, or None, and the caller builds.

    Raises:
        BusyError: This thread would have to wait, and must not.
    """
    looks = session.looks
    key, may_wait = derive(components), not getattr(_ahead, "is_it", False)
    others = _others_resolved(session, request.target) if may_wait and looks else iter(())
    while session.declared and session.local.locks.is_taken(key) and not is_reentered() and next(others, False):
        pass
    with session.local.building(key, None if may_wait else 0.0) as turn, ExitStack() as stack:
        found = None
        may_be_new = turn.found is not None or turn.waited_s > 0 or request.headers or key in session.memory
        if looks and may_be_new:  # without headers the turn has looked under this key
            found = session.first(session.candidates(request.alone, (None,)), "waited")  # None: the local store
        waited_s = turn.waited_s
        if found is None:
            tell_wait(session.events.emit, f"another process's build of {request.label}, in vain", waited_s)
            if not may_wait and not turn.has_turn:
                raise BusyError(request.label)
            if looks and session.chain is not None:  # another node may build it
                election = stack.enter_context(session.chain.elected(key, waits=may_wait))
                if election.is_lost:
                    raise BusyError(request.label)
                waited_s = election.waited_s
                found = session.first(session.candidates(request.alone, session.tiers)) if election.looks else None
        if found is not None and waited_s > 0:
            session.emit(EventKind.WAITED, request, found.key, waited_s=waited_s)
        yield found


def _others_resolved(session: Session, target: Target) -> Iterator[bool]:
    """Resolve declared kernels one by one, without waiting: yield True after each that no other process builds."""
    for reference in session.declared.valuerefs():
        resolves: Sequence[Callable[[], object]] = ()
        with suppress(Exception):  # an invalid signature or target is an error where the kernel is used
            each = reference()
            resolves = each.ahead(target) if each is not None and each.session() is session else ()
        for resolve in resolves:
            _ahead.is_it = True
            try:
                resolve()
            except Exception:  # another process builds it, or the error is raised again where this kernel is used
                continue
            finally:
                _ahead.is_it = False
            yield True
