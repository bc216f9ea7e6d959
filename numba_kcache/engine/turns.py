"""Turns to build what is missing, among the threads, processes and nodes of a job that want the same.

Promise     One compiles, and the others wait a bounded time. Who waits for another process builds meanwhile what this
            program will want as well, as far as it says so by itself: no function of the user's is called, and what
            goes wrong is raised to who asks for it, later. Not more at once than the node has cores for.
            While somebody builds, processes that have not compiled yet leave the next kernel of a program to the one
            that has: its compilers are loaded, theirs would be loaded one after another.
Method      Each kernel that is foreseen is tried once, in the order of the program, and passed over where another has
            its turn. A turn that begins or ends changes the folder of turns. A process that has not compiled yet, and
            sees a change within the last `FRESH_S`, leaves the next turn to others for `GRACE_S`; in vain at most twice
            in its life.
Not here    The turns (store.locks, tiers.lease), and compiling (session, compile).
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
    from .session import Session

FRESH_S = 2.0
GRACE_S = 0.25
_PAUSE_S, _LONGEST_PAUSE_S = 0.004, 0.05


class BusyError(Exception):
    """Another process builds it, and this one was not to wait."""


class Turns:
    """The turns that this process takes.

    Attributes:
        waits: Whether to wait for another process; False for a worker that has other things to do.
        grace_s: Seconds that may still be waited in vain for others to take a turn.
        vain_s: Seconds waited in vain for a place among the compilers.
        has_compiled: Whether compilers that load slowly are loaded in this process.
        has_waited: Whether it had to wait for another process: it is one of several that want the same.
        helping: Threads that build what is foreseen.
    """

    def __init__(self) -> None:
        self.waits, self.grace_s, self.vain_s = True, 2 * GRACE_S, 0.0
        self.has_compiled = self.has_waited = False
        self.helping: set[int] = set()


turns = Turns()


def resolve_missing(session: Session, wanted: Wanted, components: Sequence[Component]) -> Resolution:
    """Build a request that is nowhere, or wait for who does.

    Raises:
        KCacheError: The user's own errors, from the compilers.
        BusyError: It would have to wait, and is not to.
    """
    request, looks = wanted.request, session.settings.mode in LOOKING
    key = derive(components)
    helped = _helped(session, request.target)
    meanwhile: Callable[[], bool] = lambda: next(helped, False)  # noqa: E731
    if looks and request.loads_slowly:
        _leave_to_others(session, key)
    with session.store.building(key, None if turns.waits else 0.0, meanwhile=meanwhile) as turn:
        if looks and (turn.found is not None or turn.waited_s > 0):
            found = session.first(candidates(session, only(request), (None,)), "waited")
            turns.has_waited |= turn.found is not None
            if found is not None:
                session.emit(EventKind.WAITED, request, found.key, waited_s=turn.waited_s)
                return found
        if not turns.waits and not turn.is_alone:
            raise BusyError(request.label)
        if looks and session.store is not session.local:
            return _compile_for_all(session, request, components, meanwhile if turns.waits else None)
        return _compile(session, request, components)


def _compile_for_all(
    session: Session, request: Request, components: Sequence[Component], meanwhile: Callable[[], bool] | None
) -> Resolution:
    """Compile, unless another node is at it; for whoever has this node's turn."""
    with session.store.elected(derive(components), meanwhile) as election:  # type: ignore[union-attr]
        if election.is_lost:
            raise BusyError(request.label)
        found = session.first(candidates(session, only(request), session.tiers)) if election.looks else None
        if found is None:
            return _compile(session, request, components)
        if election.waited_s > 0:
            session.emit(EventKind.WAITED, request, found.key, waited_s=election.waited_s)
        session.store.settle()  # type: ignore[union-attr]  # those who wait for this node's turn look there
        return found


def _compile(session: Session, request: Request, components: Sequence[Component]) -> Resolution:
    turns.has_compiled |= request.loads_slowly
    with _placed(session) if request.libraries else nullcontext():  # without: the user builds it, as long as it takes
        return session.compile(request, components)


@contextmanager
def _placed(session: Session) -> Iterator[None]:
    """Have a place among the compilers of this node; wait for it, in bounds."""
    locks, start_s, pause_s = session.store.locks, time.monotonic(), _PAUSE_S
    left_s = 0.0 if is_reentered() else session.settings.build_wait_s - turns.vain_s
    while True:
        with locks.place(cores()) as is_had:
            waited_s = time.monotonic() - start_s
            if is_had or waited_s >= left_s:
                turns.vain_s += 0.0 if is_had else waited_s
                yield
                return
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def _leave_to_others(session: Session, key: str) -> None:
    """Wait until another takes the turn, where some process of this node has just had one, and this one never had."""
    locks, start = session.store.locks, time.monotonic()
    if turns.has_compiled or not turns.has_waited or turns.grace_s <= 0:
        return
    if locks.idle_s() > FRESH_S or is_reentered():
        return
    while not locks.is_taken(key) and session.local.peek(key) is None:
        if time.monotonic() - start > min(turns.grace_s, GRACE_S):
            turns.grace_s -= GRACE_S
            return
        time.sleep(_PAUSE_S)


# -- what is foreseen -------------------------------------------------------------------------------------------------


def _helped(session: Session, target: Target) -> Iterator[bool]:
    """Build what is foreseen, one after another: True after each, False where no core is free for the next."""
    thread, locks = threading.get_ident(), session.store.locks
    locks.give_place_up()  # who waits in the middle of a compile: whom it waits for may want the place
    if thread in turns.helping or session.settings.mode != "readwrite":
        return
    for make in _ahead(session, target):
        is_placed = is_built = False
        while not is_placed:
            turns.helping.add(thread)
            try:
                with locks.place(cores()) as is_placed:
                    is_built = is_placed and _built_ahead(session, make)
            except Exception:  # the user's error is raised to who asks for this kernel
                is_placed, is_built = True, False
            finally:
                turns.helping.discard(thread)
            if is_built or not is_placed:
                yield is_built


def _ahead(session: Session, target: Target) -> Iterator[Callable[[], Wanted]]:
    for each in foreseen.valuerefs():
        things = each()
        with suppress(Exception):  # a signature that cannot be read, a target that it is not for: as above
            if things is not None and things.session() is session:
                yield from things.ahead(target)


def _built_ahead(session: Session, make: Callable[[], Wanted]) -> bool:
    """Build a request, as it is now, if nobody has or is at it; whether it was built."""
    request, store = make().request, session.store
    if request.uncacheable or request.headers:
        return False
    components = session.components(request)
    key = derive(components)
    if store.locks.is_taken(key) or session.local.peek(key) is not None:
        return False
    with store.building(key, 0.0) as turn, ExitStack() as stack:
        if turn.found is not None or not turn.is_alone or store.get(key) is not None:
            return False
        if store is not session.local:
            election = stack.enter_context(store.elected(key, None))  # type: ignore[union-attr]
            if election.is_lost or (election.looks and store.get(key) is not None):
                return False
        turns.has_compiled = True
        session.ahead.add(session.compile(request, components).key)
        return True
