"""Compile once for a fleet: of all nodes that miss the same kernel at the same time, one is elected to build it.

Promise     While the server answers, one node builds and the others wait for it, `wait_s` at most; after that, and
            whenever server or builder fail, a node builds for itself. If a builder dies or stops, one other node takes
            its place. The time that a process waits in vain is bounded over its whole life: by `wait_s`, and by
            `SILENT_IN_ALL_S` for builders without a sign of life. Correctness does not depend on the election: at worst
            a kernel is compiled twice.
Method      A node that finds no value under the key's name puts a token there, which the server drops after `LEASE_S`;
            a thread replaces it by a new token each second while the build lasts. A node that sees the same token for
            `SILENT_S` replaces it by its own with a compare-and-set. When the result has been uploaded, the
            token's owner replaces it by "done" for a while, or by "failed", so that the others do not fail one after
            the other. The others poll the name, with growing, randomised pauses.
Not here    The turn among the processes of a node (store.locks): only its holder comes here.
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
"""Longest wait, in seconds, for builders without a sign of life: for one of them, and for all in a process's life."""

BEAT_S = 1.0
KEPT_S = 5.0
"""Time for which the server keeps the outcome of a build ("done" or "failed"), in seconds."""

_DONE, _FAILED = "done", "failed"
_MOST_SUCCESSORS = 4
"""Successive builders of one key that are waited for; bounds the wait if a server reports a new one at each poll."""

_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0


@runtime_checkable
class Electoral(Protocol):
    """A tier that can hold leases."""

    wait_s: float

    def ready(self) -> None:
        """Prepare for writing."""

    def claim(self, name: str, token: str, lease_s: float) -> str:
        """Set `name` to `token` unless it has a value. Returns the value it has then; "" if that just expired."""

    def value_of(self, name: str) -> str:
        """The value of `name`; "" for none."""

    def replace(self, name: str, before: str, after: str, kept_s: float) -> bool:
        """Set `name` to `after` for `kept_s` if its value is `before`. Returns True if that was so."""


class Patience:
    """The time that a process may still wait in vain.

    Args:
        wait_s: Seconds for builders that show signs of life.
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
        """Subtract a wait in vain, and the part of it without a sign of life, in seconds."""
        self.left_s = max(0.0, self.left_s - waited_s)
        self.silent_left_s = max(0.0, self.silent_left_s - silent_s)


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

Ask = Callable[[Callable[[], str]], str | None]
"""Asks the server and contains its failures; None if it did not answer."""


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
    """Take a key's lease, or wait until its holder has finished, or until the time to wait is used up.

    Args:
        tier: The tier with leases.
        key: Key of the entry to build.
        ask: Runs an operation of the tier.
        tell: Runs an operation for whose result no launch waits.
        afterwards: Queues work behind all uploads so far; returns whether it was accepted.
        errors: Returns the number of failed operations of the tier.
        patience: The time left for waiting.
        meanwhile: Called instead of each pause: does other work, or returns False if there is none. None: do not
            wait; the election is then lost.
    """
    token, start = f"{os.urandom(8).hex()}.0", patience.clock()
    seen, heard_s, successors = "", start, 0
    pause, waited_s, helped_s = _FIRST_PAUSE_S, 0.0, 0.0
    value: str | None = ""
    while True:
        value = ask(lambda: tier.value_of(key)) if value else ""  # each poll is one request
        if value == "":
            value = ask(lambda: tier.claim(key, token, LEASE_S))
        if value is None or value in (token, _DONE, _FAILED):
            break
        if meanwhile is None:
            yield Election(0.0, looks=False, is_lost=True)
            return
        now_s, silent_s = patience.clock(), min(SILENT_S, patience.silent_left_s)
        if silent_s <= 0:
            break
        if value != seen:
            successors += not _is_next(seen, value)
            seen, heard_s = value, now_s if successors <= _MOST_SUCCESSORS else heard_s
        if now_s - heard_s >= silent_s:
            is_last = patience.silent_left_s < SILENT_S
            patience.spend(0.0, now_s - heard_s)
            heard_s = now_s
            if is_last or not value:
                break
            if ask(functools.partial(_replaced, tier, key, value, token, LEASE_S)) == "True":
                value = token
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
    if value != _DONE:
        patience.spend(waited_s, 0.0)
    if value != token:
        yield Election(waited_s, looks=value == _DONE or waited_s > 0)
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

        if os.getpid() == process and not afterwards(release):  # a forked child leaves the release to the parent
            beat.end()


def _is_next(before: str, after: str) -> bool:
    """Check whether a token is a later one of the same builder: a sign of life."""
    (owner, _, was), (other, _, now) = before.partition("."), after.partition(".")
    return owner == other and was.isdecimal() and now.isdecimal() and int(was[:20]) < int(now[:20])


def _replaced(tier: Electoral, key: str, before: str, after: str, kept_s: float) -> str:
    return str(tier.replace(key, before, after, kept_s))


class _Beat:
    """Renew a builder's token from a thread, as a sign of life."""

    def __init__(self, tier: Electoral, key: str, token: str, tell: Ask) -> None:
        self._tier, self._key, self._token, self._tell = tier, key, token, tell
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="numba_kcache-lease", daemon=True)
        with suppress(RuntimeError):  # no more threads: the lease expires, and another node may build the entry too
            self._thread.start()

    def end(self) -> str:
        """Stop renewing. Returns the last token."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(LEASE_S)
        return self._token

    def _work(self) -> None:
        with suppress(Exception):  # the upload will raise and report the same
            self._tier.ready()  # imports the client during the build, so that the upload need not wait for that
        number = 0
        while not self._ended.wait(min(BEAT_S, LEASE_S / 3)):
            number += 1
            after = f"{self._token.partition('.')[0]}.{number}"
            work = functools.partial(_replaced, self._tier, self._key, self._token, after, LEASE_S)
            if self._tell(work) != "True":
                return
            self._token = after
