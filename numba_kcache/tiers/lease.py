"""Compile once for a fleet: of all nodes that miss the same kernel at the same time, one is elected to build it.

Promise     While the server answers, one node builds and the others wait for it, `wait_s` at most; then, and whenever
            anything is wrong with server or builder, a node builds for itself. A builder that dies is succeeded by one
            other when its lease has run out. Correctness never rests on it: all that is lost is work.
Method      Who finds nothing under the key's name puts a token there that the server forgets after `LEASE_S`, and a
            thread renews it while the build goes on. When what was built has been handed on, the token's owner puts
            "done" in its place for a while, or "failed", for then the others must not fail one after the other. The
            others look at the name again and again, with growing pauses that chance spreads.
Not here    The turn among the processes of a node (store.locks): its holder alone comes here.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple, Protocol, runtime_checkable

LEASE_S = 10.0
KEPT_S = 5.0
"""How long it can be read what became of a build."""

_DONE, _FAILED = "done", "failed"
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
        """What stands under `name`; "" for nothing."""

    def renew(self, name: str, token: str, lease_s: float) -> bool:
        """Have `token` stand for another `lease_s`; whether it stood."""

    def release(self, name: str, token: str, outcome: str, kept_s: float) -> bool:
        """Put `outcome` in place of `token`, for `kept_s`; whether it stood."""


class Election(NamedTuple):
    """How a node came out of it.

    Args:
        waited_s: Seconds it waited for another's build; 0 where it did not.
        looks: Whether it is worth looking again before building.
    """

    waited_s: float
    looks: bool


NO_ELECTION = Election(0.0, looks=False)

Ask = Callable[[Callable[[], str]], str | None]
"""Asks the server in safety; None where it did not answer."""


@contextmanager
def elected(
    tier: Electoral,
    key: str,
    ask: Ask,
    afterwards: Callable[[Callable[[], None]], bool],
    errors: Callable[[], int],
) -> Iterator[Election]:
    """Take a key's lease, or wait until its holder is through, or until waiting is not worth it.

    Args:
        tier: Where leases are.
        key: What is to be built.
        ask: Asks the tier.
        afterwards: Has a work done when all that was put until then was handed on; whether it will be.
        errors: How many operations of the tier have failed.
    """
    token, start = os.urandom(8).hex(), time.monotonic()
    pause, waited_s = _FIRST_PAUSE_S, 0.0
    standing: str | None = ""
    while True:
        standing = ask(lambda: tier.standing(key)) if standing else ""  # a wait costs one request at each look
        if standing == "":
            standing = ask(lambda: tier.claim(key, token, LEASE_S))
        if standing is None or standing in (token, _DONE, _FAILED):
            break
        left = start + tier.wait_s - time.monotonic()
        if left <= 0:
            break
        time.sleep(min(left, pause * (0.5 + os.urandom(1)[0] / 255)))  # `random` takes 5 ms to import
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        waited_s = time.monotonic() - start
    if standing != token:
        yield Election(waited_s, looks=standing == _DONE or waited_s > 0)
        return
    ended = threading.Event()
    _renew(tier, key, token, ask, ended)
    before, outcome = errors(), _FAILED
    try:
        yield Election(waited_s, looks=True)
        outcome = _DONE
    finally:

        def release() -> None:
            ended.set()
            told = _DONE if outcome == _DONE and errors() == before else _FAILED
            ask(lambda: str(tier.release(key, token, told, KEPT_S)))

        if not afterwards(release):
            ended.set()


def _renew(tier: Electoral, key: str, token: str, ask: Ask, ended: threading.Event) -> None:
    def work() -> None:
        with suppress(Exception):  # it will be said when something is handed on
            tier.ready()  # while the build goes on, which need not wait for it then
        while not ended.wait(LEASE_S / 3):
            if ask(lambda: str(tier.renew(key, token, LEASE_S))) != "True":
                return

    try:
        threading.Thread(target=work, name="numba_kcache-lease", daemon=True).start()
    except RuntimeError:
        pass  # no more threads: the lease runs out, and somebody may build it a second time
