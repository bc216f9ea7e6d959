"""Compile once for a fleet: of all nodes that miss the same kernel at the same time, one holds a lease and builds it.

Promise     While the server answers, one node builds and the others wait for it. A lease ends `LEASE_S` after the last
            sign of life of its holder, by the server's clock, and one other node takes it. A process loses at most
            `wait_s` of the tier to waits that end without the entry, over its whole life and whatever the server
            answers; waits that end with the entry do not count. Correctness does not depend on leases: at worst a
            kernel is compiled twice.
Method      `SET NX PX` of the process's token, which a thread renews each second while the build lasts. When the result
            has been uploaded, the holder replaces it by "done" for a while, or by "failed", so that the others neither
            take the lease nor fail one after the other. They poll, with growing, randomised pauses.
Not here    The turn among the processes of a node (store.locks): only its holder comes here.
"""

from __future__ import annotations

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
_DONE, _FAILED = "done", "failed"
_KEPT_S = 5.0
"""Time for which the server keeps the outcome of a build, in seconds."""

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

Ask = Callable[[Callable[[], Any]], Any]
"""Asks the server and contains its failures; None if it did not answer."""


class Elections:
    """The leases of one tier, and the time that this process may still wait for other nodes in vain.

    Args:
        tier: The tier with leases: its `claim`, `value_of` and `replace`.
        ask: Runs an operation of the tier.
        tell: Runs an operation for whose result no launch waits.
        afterwards: Queues work behind all uploads so far; returns whether it was accepted.
        counts: Returns the number of hits and of failures of the tier so far.
        clock: Seconds of a clock that is never set.
        pause: Waits for so many seconds.
    """

    def __init__(
        self,
        tier: Any,
        ask: Ask,
        tell: Ask,
        afterwards: Callable[[Callable[[], None]], bool],
        counts: Callable[[], tuple[int, int]],
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self._tier, self._ask, self._tell, self._afterwards, self._counts = tier, ask, tell, afterwards, counts
        self._clock, self._pause, self._left_s = clock, pause, tier.wait_s
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
        while value not in (None, token, _DONE, _FAILED) and self._left_s > 0:
            if not waits:
                yield Election(0.0, looks=False, is_lost=True)
                return
            start_s = self._clock()
            self._pause(min(self._left_s, pause_s * (0.5 + os.urandom(1)[0] / 255)))  # `random` takes 5 ms to import
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            paused_s = self._clock() - start_s
            waited_s, self._left_s = waited_s + paused_s, self._left_s - paused_s
            value = self._ask(lambda: self._tier.value_of(key)) or self._claim(key, token)
        (hits, errors), process, is_built = self._counts(), os.getpid(), False
        end = self._renewing(key, token) if value == token else None
        try:
            yield Election(waited_s, looks=value in (token, _DONE) or waited_s > 0)
            is_built = True
        finally:
            if self._counts()[0] > hits:
                self._left_s += waited_s

            def release() -> None:
                outcome = _DONE if is_built and self._counts()[1] == errors else _FAILED
                self._tell(lambda: self._tier.replace(key, token, outcome, _KEPT_S))

            if end is not None and os.getpid() == process:  # a forked child leaves the release to the parent
                end.set()
                self._afterwards(release)

    def _claim(self, key: str, token: str) -> Any:
        return self._ask(lambda: self._tier.claim(key, token, LEASE_S))

    def _renewing(self, key: str, token: str) -> threading.Event:
        """Renew a lease from a thread, as a sign of life, until the returned event is set or has no other reference:
        what an exception interrupts, such as a signal handler's, need not set it."""
        ended = threading.Event()
        referred = weakref.ref(ended)

        def work() -> None:
            while (waited := referred()) is not None and not waited.wait(min(BEAT_S, LEASE_S / 3)):
                del waited
                if not self._tell(lambda: self._tier.replace(key, token, token, LEASE_S)):
                    return

        with suppress(RuntimeError):  # no more threads: the lease expires, and another node may build the entry too
            threading.Thread(target=work, name="numba_kcache-lease", daemon=True).start()
        return ended
