"""Compile once for a fleet: of all nodes that miss the same kernel at the same time, one holds a lease and builds it.

Promise     While the server answers, one node builds and the others wait for it. A lease ends `LEASE_S` after the last
            sign of life of its holder, by the server's clock, and one other node takes it. A process loses at most
            `wait_s` of the tier to waits that end without the entry, over its whole life and whatever the server
            answers; waits that end with the entry do not count. Correctness does not depend on leases: at worst a
            kernel is compiled twice.
Method      `SET NX PX` of the process's token, whose time a thread renews each second while the build lasts. When the
            build has ended, and its result has been uploaded, the holder replaces it by "over" for a while, so that the
            others neither take the lease nor fail one after the other: each looks once more, and builds what is not
            there. They poll, with growing, randomised pauses. A holder whose lease has expired meanwhile does the same
            to the lease of its successor: nodes that wait for that one then build, too.
Not here    The turn among the processes of a node (store.locks): only its holder comes here.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ..model import NamedTuple

LEASE_S = 4.0
WAIT_S = 5.0
BEAT_S = 1.0
_OVER = "over"
_KEPT_S = 5.0
"""Time for which the server keeps the end of a build, in seconds."""

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


class Election(NamedTuple):
    """Outcome of an election for a node.

    Args:
        waited_s: Seconds for which it waited for another node's build; 0 if it did not wait.
        looks: Whether the entry may exist by now, so that the caller should look it up before it builds.
        is_lost: Whether another node builds the entry and the caller did not want to wait.
    """

    waited_s: float
    looks: bool
    is_lost: bool = False


NO_ELECTION = Election(0.0, looks=False)


class Elections:
    """The leases of one tier, and the time that this process may still wait for other nodes in vain.

    Args:
        checked: The `CheckedTier` of a tier with `claim`, `value_of`, `renew` and `release`: it runs these, contains
            their failures, queues work behind uploads, counts hits, and reports waits.
        clock: Seconds of a clock that is never set.
        pause: Waits for so many seconds.
    """

    def __init__(
        self,
        checked: Any,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._checked, self._tier = checked, checked.tier
        self._clock, self._pause, self._left_s = clock, pause, checked.tier.wait_s
        self._token = os.urandom(8).hex()

    @contextmanager
    def elected(self, key: str, *, waits: bool = True) -> Iterator[Election]:
        """Take a key's lease, or wait until its holder has finished, or until the time to wait is used up.

        Args:
            key: Key of the entry to build.
            waits: Whether to wait; else an election that another node has won is lost.
        """
        # of the process: what an interrupted election has left is its own
        token, pause_s, waited_s = f"{self._token}.{os.getpid()}", _FIRST_PAUSE_S, 0.0
        value = self._claim(key, token)
        while value not in (None, token, _OVER) and self._left_s > 0:
            if not waits:
                yield Election(0.0, looks=False, is_lost=True)
                return
            start_s = self._clock()
            self._pause(min(self._left_s, pause_s * (0.5 + os.urandom(1)[0] / 255)))  # `random` takes 5 ms to import
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            paused_s = self._clock() - start_s
            waited_s, self._left_s = waited_s + paused_s, self._left_s - paused_s
            value = self._checked.timed(lambda: self._tier.value_of(key)) or self._claim(key, token)
        hits, process = self._checked.hits(), os.getpid()
        end = self._renewing(key) if value == token else None
        try:
            yield Election(waited_s, looks=value is not None)
        finally:
            if self._checked.hits() > hits:  # which says that it was waited for
                self._left_s += waited_s
            else:
                self._checked.report_wait("another node's build", waited_s)
            if end is not None and os.getpid() == process:  # a forked child leaves the release to the parent
                end.set()
                over = functools.partial(self._tier.release, key, _OVER, _KEPT_S)
                self._checked.uploads.add(functools.partial(self._checked.asked, over, is_awaited=False))

    def _claim(self, key: str, token: str) -> Any:
        return self._checked.timed(lambda: self._tier.claim(key, token, LEASE_S))

    def _renewing(self, key: str) -> threading.Event:
        """Renew a lease from a thread, as a sign of life, until the returned event is set or has no other reference:
        what an exception interrupts, such as a signal handler's, need not set it."""
        ended = threading.Event()
        referred = weakref.ref(ended)

        def work() -> None:
            while (waited := referred()) is not None and not waited.wait(min(BEAT_S, LEASE_S / 3)):
                del waited
                if not self._checked.asked(lambda: self._tier.renew(key, LEASE_S), is_awaited=False):
                    return

        with suppress(RuntimeError):  # no more threads: the lease expires, and another node may build the entry too
            threading.Thread(target=work, name="numba_kcache-lease", daemon=True).start()
        return ended
