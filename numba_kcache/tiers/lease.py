"""Compile once for a fleet: of all nodes that miss the same kernel at the same time, one is elected to build it.

Promise     While the server answers, one node builds and the others wait for it, `wait_s` at most; then, and whenever
            anything is wrong with server or builder, a node builds for itself. A builder that dies or stops is
            succeeded by one other. What a process waits in vain is bounded over its whole life: by `wait_s`, and by
            `SILENT_IN_ALL_S` where nobody gives a sign of life. Correctness never rests on it: all that is lost is
            work.
Method      Who finds nothing under the key's name puts a token there that the server forgets after `LEASE_S`, and a
            thread puts another in its place each second while the build goes on. Who sees the same token for `SILENT_S`
            puts its own there, on the condition that it is the same still. When what was built has been handed on, the
            token's owner puts "done" in its place for a while, or "failed", for then the others must not fail one after
            the other. The others look at the name again and again, with growing pauses that chance spreads.
Not here    The turn among the processes of a node (store.locks): its holder alone comes here.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol, runtime_checkable

from ..model import NamedTuple

LEASE_S = 10.0
SILENT_S = 3.0
SILENT_IN_ALL_S = 3.0
"""Longest waits for builders that give no sign of life: for one of them, and for all in a process's life."""

BEAT_S = 1.0
KEPT_S = 5.0
"""How long it can be read what became of a build."""

_DONE, _FAILED = "done", "failed"
_MOST_SUCCESSORS = 4
"""Builders of one key in a row that are listened to: a server that makes up a new one each time is not."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


@runtime_checkable
class Electoral(Protocol):
    """A tier that can hold leases."""

    wait_s: float

    def ready(self) -> None:
        """Do what writing needs."""

    def claim(self, name: str, token: str, lease_s: float) -> str:
        """Put `token` under `name` unless something stands there; what stands there now, "" if it just went."""

    def standing(self, name: str) -> str:
        """The value that stands under `name`; "" for nothing."""

    def replace(self, name: str, before: str, after: str, kept_s: float) -> bool:
        """Put `after` in place of `before`, for `kept_s`; whether that stood there."""


class Patience:
    """The waits in vain that a process has left.

    Args:
        wait_s: For builders that give signs of life.
        clock: Seconds of a clock that is never set.
        pause: Waits for so many seconds.
    """

    def __init__(
        self,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        self.left_s, self.silent_left_s, self.clock, self.pause = wait_s, SILENT_IN_ALL_S, clock, pause

    def spend(self, waited_s: float, silent_s: float) -> None:
        """Take off what was waited in vain, and how much of it in silence."""
        self.left_s = max(0.0, self.left_s - waited_s)
        self.silent_left_s = max(0.0, self.silent_left_s - silent_s)


class Election(NamedTuple):
    """Outcome of an election for a node.

    Args:
        waited_s: Seconds it waited for another's build; 0 where it did not.
        looks: Whether it is worth looking again before building.
        is_lost: Whether another node builds it, and this one was not to wait.
    """

    waited_s: float
    looks: bool
    is_lost: bool = False


NO_ELECTION = Election(0.0, looks=False)

Ask = Callable[[Callable[[], str]], str | None]
"""Asks the server in safety; None where it did not answer."""


@contextmanager
def elected(
    tier: Electoral,
    key: str,
    ask: Ask,
    tell: Ask,
    afterwards: Callable[[Callable[[], None]], bool],
    errors: Callable[[], int],
    patience: Patience,
    meanwhile: Callable[[], bool] | None = lambda: False,
) -> Iterator[Election]:
    """Take a key's lease, or wait until its holder is through, or until waiting is not worth it.

    Args:
        tier: Where leases are.
        key: What is to be built.
        ask: Asks the tier.
        tell: Asks it what nobody waits for.
        afterwards: Has a work done when all that was put until then was handed on; whether it will be.
        errors: How many operations of the tier have failed.
        patience: What may be waited.
        meanwhile: Called instead of each pause: does something useful, or tells that there is nothing. None: who
            would have to wait has lost.
    """
    token, start = f"{os.urandom(8).hex()}.0", patience.clock()
    seen, heard_s, successors = "", start, 0
    pause, waited_s, helped_s = _FIRST_PAUSE_S, 0.0, 0.0
    standing: str | None = ""
    while True:
        standing = ask(lambda: tier.standing(key)) if standing else ""  # a wait costs one request at each look
        if standing == "":
            standing = ask(lambda: tier.claim(key, token, LEASE_S))
        if standing is None or standing in (token, _DONE, _FAILED):
            break
        if meanwhile is None:
            yield Election(0.0, looks=False, is_lost=True)
            return
        now_s, silent_s = patience.clock(), min(SILENT_S, patience.silent_left_s)
        if silent_s <= 0:
            break
        if standing != seen:
            successors += not _is_next(seen, standing)
            seen, heard_s = standing, now_s if successors <= _MOST_SUCCESSORS else heard_s
        if now_s - heard_s >= silent_s:
            is_last = patience.silent_left_s < SILENT_S
            patience.spend(0.0, now_s - heard_s)
            heard_s = now_s
            if is_last or not standing:
                break
            if ask(functools.partial(_replaced, tier, key, standing, token, LEASE_S)) == "True":
                standing = token
                break
        left_s = start + helped_s + min(tier.wait_s, patience.left_s) - now_s
        if left_s <= 0:
            break
        if meanwhile():
            helped_s, pause = helped_s + patience.clock() - now_s, _FIRST_PAUSE_S
            continue
        left_s = min(left_s, heard_s + silent_s - now_s)
        patience.pause(min(left_s, pause * (0.5 + os.urandom(1)[0] / 255)))  # `random` takes 5 ms to import
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        waited_s = patience.clock() - start - helped_s
    if standing != _DONE:
        patience.spend(waited_s, 0.0)
    if standing != token:
        yield Election(waited_s, looks=standing == _DONE or waited_s > 0)
        return
    beat = _Beat(tier, key, token, tell)
    process = os.getpid()
    before, outcome = errors(), _FAILED
    try:
        yield Election(waited_s, looks=True)
        outcome = _DONE
    finally:

        def release() -> None:
            last = beat.end()
            told = _DONE if outcome == _DONE and errors() == before else _FAILED
            tell(functools.partial(_replaced, tier, key, last, told, KEPT_S))

        if os.getpid() == process and not afterwards(release):  # in a child it stays the parent's
            beat.end()


def _is_next(before: str, after: str) -> bool:
    """Check whether a token is a later one of the same builder: a sign of life."""
    (owner, _, was), (other, _, now) = before.partition("."), after.partition(".")
    return owner == other and was.isdecimal() and now.isdecimal() and int(was[:20]) < int(now[:20])


def _replaced(tier: Electoral, key: str, before: str, after: str, kept_s: float) -> str:
    return str(tier.replace(key, before, after, kept_s))


class _Beat:
    """Signs of life of a builder, from a thread of their own."""

    def __init__(self, tier: Electoral, key: str, token: str, tell: Ask) -> None:
        self._tier, self._key, self._token, self._tell = tier, key, token, tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="numba_kcache-lease", daemon=True)
        with suppress(RuntimeError):  # no more threads: the lease runs out, and somebody may build it a second time
            self._thread.start()

    def end(self) -> str:
        """Give no more of them; the token that stands there."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(LEASE_S)
        return self._token

    def _work(self) -> None:
        with suppress(Exception):  # it will be said when something is handed on
            self._tier.ready()  # while the build goes on, which need not wait for it then
        number = 0
        while not self._ended.wait(min(BEAT_S, LEASE_S / 3)):
            number += 1
            after = f"{self._token.partition('.')[0]}.{number}"
            work = functools.partial(_replaced, self._tier, self._key, self._token, after, LEASE_S)
            if self._tell(work) != "True":
                return
            self._token = after
