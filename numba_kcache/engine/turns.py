"""Build a missing request once among the threads, processes (ranks) and nodes of a job; the others wait for it.

Promise     One process compiles, and the others wait a bounded time. While a process waits for another one, it builds
            other kernels that its program declares with `signature=`; no user function is called, and an error is
            raised later, where that kernel is used. No more compilers run at once than the node has cores.
            Processes that have not compiled yet leave the next kernel to one that has just compiled, since its
            compilers are loaded already.
Method      Each of these other kernels is tried once, in program order, and skipped if another process has its turn. A
            turn that begins or ends changes the folder of lock files. A process that has not compiled yet, and sees a
            change within the last `FRESH_S`, leaves the next turn to others for `GRACE_S`. After two such waits in
            which no other process took the turn, it does not wait again.
Not here    The turns themselves (store.locks, tiers.lease), and compiling (session, compile).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

from ..keys import Component, derive
from ..model import EventKind, Target
from ..store.cores import cores
from ..waiting import is_reentered
from . import candidates
from .lookup import LOOKING
from .request import Request, Resolution, Wanted, foreseen, only

if TYPE_CHECKING:
    from ..tiers.chain import Chain
    from .session import Session

FRESH_S = 2.0
GRACE_S = 0.25
_PAUSE_S, _LONGEST_PAUSE_S = 0.004, 0.05


class BusyError(Exception):
    """Raised if another process builds the artifact, and the caller asked not to wait."""


class Turns:
    """The turns that this process takes.

    Attributes:
        waits: Whether to wait for another process; False for a warm-up worker that has other kernels to build.
        grace_s: Seconds that this process may still wait in vain for another one to take a turn.
        vain_s: Seconds that it has waited in vain for a slot for a compiler.
        has_compiled: Whether compilers that load slowly are loaded in this process.
        has_waited: Whether this process waited for another one, which shows that several run the same program.
        helping: Threads that build other kernels while they wait.
    """

    def __init__(self) -> None:
        self.waits, self.grace_s, self.vain_s = True, 2 * GRACE_S, 0.0
        self.has_compiled = self.has_waited = False
        self.helping: set[int] = set()


turns = Turns()


def resolve_missing(session: Session, wanted: Wanted, components: Sequence[Component]) -> Resolution:
    """Build a request that no store has, or wait for the process that builds it.

    Raises:
        KCacheError: The user's own errors, from the compilers.
        BusyError: This process would have to wait, and `turns.waits` is False.
    """
    request, looks = wanted.request, session.settings.mode in LOOKING
    key = derive(components)
    others_built = _build_others(session, request.target)
    meanwhile: Callable[[], bool] = lambda: next(others_built, False)  # noqa: E731
    if looks and request.loads_slowly:
        _leave_to_others(session, key)
    with session.local.building(key, None if turns.waits else 0.0, meanwhile=meanwhile) as turn:
        if looks and (turn.found is not None or turn.waited_s > 0):
            found = session.first(candidates(session, only(request), (None,)), "waited")  # None: the local store
            turns.has_waited |= turn.found is not None
            if found is not None:
                session.emit(EventKind.WAITED, request, found.key, waited_s=turn.waited_s)
                return found
        if not turns.waits and not turn.has_turn:
            raise BusyError(request.label)
        if looks and session.chain is not None:
            return _compile_for_all(session, session.chain, request, components, meanwhile if turns.waits else None)
        return _compile(session, request, components)


def _compile_for_all(
    session: Session,
    chain: Chain,
    request: Request,
    components: Sequence[Component],
    meanwhile: Callable[[], bool] | None,
) -> Resolution:
    """Compile, unless another node does; the caller has this node's turn."""
    with chain.elected(derive(components), meanwhile) as election:
        if election.is_lost:
            raise BusyError(request.label)
        found = session.first(candidates(session, only(request), session.tiers)) if election.looks else None
        if found is None:
            return _compile(session, request, components)
        if election.waited_s > 0:
            session.emit(EventKind.WAITED, request, found.key, waited_s=election.waited_s)
        chain.settle()  # stores it locally, for those that wait for this node's turn
        return found


def _compile(session: Session, request: Request, components: Sequence[Component]) -> Resolution:
    turns.has_compiled |= request.loads_slowly
    with _slot_for_compiler(session) if request.libraries else nullcontext():  # a user's build takes no slot
        return session.compile(request, components)


@contextmanager
def _slot_for_compiler(session: Session) -> Iterator[None]:
    """Take one of the node's slots for compilers; after a bounded wait, go on without one."""
    locks, start_s, pause_s = session.local.locks, time.monotonic(), _PAUSE_S
    left_s = 0.0 if is_reentered() else session.settings.build_wait_s - turns.vain_s
    while True:
        with locks.slot(cores()) as has_slot:
            waited_s = time.monotonic() - start_s
            if has_slot or waited_s >= left_s:
                turns.vain_s += 0.0 if has_slot else waited_s
                yield
                return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _leave_to_others(session: Session, key: str) -> None:
    """Leave the turn to another process for a time, if one of this node just compiled and this process has not yet."""
    locks, start = session.local.locks, time.monotonic()
    if turns.has_compiled or not turns.has_waited or turns.grace_s <= 0:
        return
    if locks.idle_s() > FRESH_S or is_reentered():
        return
    while not locks.is_taken(key) and session.local.peek(key) is None:
        if time.monotonic() - start > min(turns.grace_s, GRACE_S):
            turns.grace_s -= GRACE_S
            return
        time.sleep(_PAUSE_S)


# -- building other kernels while waiting -----------------------------------------------------------------------------


def _build_others(session: Session, target: Target) -> Iterator[bool]:
    """Build the kernels with known signatures one by one: yield True after each, and False while no core is free."""
    thread, locks = threading.get_ident(), session.local.locks
    locks.release_slot()  # the process that this thread waits for may need the slot
    if thread in turns.helping or session.settings.mode != "readwrite":
        return
    for make in _ahead(session, target):
        has_slot = is_built = False
        while not has_slot:
            turns.helping.add(thread)
            try:
                with locks.slot(cores()) as has_slot:
                    is_built = has_slot and _built_ahead(session, make)
            except Exception:  # the error is raised again where this kernel is used
                has_slot, is_built = True, False
            finally:
                turns.helping.discard(thread)
            if is_built or not has_slot:
                yield is_built


def _ahead(session: Session, target: Target) -> Iterator[Callable[[], Wanted]]:
    for each in foreseen.valuerefs():
        resolutions = each()
        with suppress(Exception):  # an invalid signature or target is an error where the kernel is used
            if resolutions is not None and resolutions.session() is session:
                yield from resolutions.ahead(target)


def _built_ahead(session: Session, make: Callable[[], Wanted]) -> bool:
    """Build a request if no process has built it or is building it. Returns True if it was built here."""
    request, local, chain = make().request, session.local, session.chain
    if request.uncacheable or request.headers:
        return False
    components = session.components(request)
    key = derive(components)
    if local.locks.is_taken(key) or local.peek(key) is not None:
        return False
    with local.building(key, 0.0) as turn, ExitStack() as stack:
        if turn.found is not None or not turn.has_turn or session.store.get(key) is not None:
            return False
        if chain is not None:
            election = stack.enter_context(chain.elected(key, None))
            if election.is_lost or (election.looks and chain.get(key) is not None):
                return False
        turns.has_compiled = True
        session.ahead.add(session.compile(request, components).key)
        return True
