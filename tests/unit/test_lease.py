"""Waiting for another node's build: a lease without a sign of life is taken, and the waits of a process are bounded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace

import pytest

from numba_kcache.tiers import lease
from numba_kcache.tiers.lease import LEASE_S, WAIT_S, Election, Elections
from tests.support.interrupts import Interrupt, lines_run
from tests.support.stores import in_child
from tests.support.tiers import Time

Ask = Callable[[Callable[[], object]], object]


class Leases:
    """A server of leases, which expire by a test's clock.

    Attributes:
        held: Value and end of each lease, by name.
        hits: Entries that the tier was asked for and had.
    """

    wait_s = WAIT_S

    def __init__(self, time: Time) -> None:
        self.time, self.hits = time, 0
        self.held: dict[str, tuple[str, float]] = {}

    def claim(self, name: str, token: str, lease_s: float) -> str:
        if not self.value_of(name):
            self.held[name] = token, self.time() + lease_s
        return self.value_of(name)

    def value_of(self, name: str) -> str:
        value, end_s = self.held.get(name, ("", 0.0))
        return value if self.time() < end_s else ""

    def renew(self, name: str, lease_s: float) -> bool:
        value = self.value_of(name)
        if value:
            self.held[name] = value, self.time() + lease_s
        return bool(value)

    def release(self, name: str, value: str, kept_s: float) -> None:
        self.held[name] = value, self.time() + kept_s


class Lying(Leases):
    """A server that has no lease and accepts none."""

    def claim(self, name: str, token: str, lease_s: float) -> str:
        return ""


class Inventing(Leases):
    """A server that makes up a new builder, or a new sign of life of one, at each question."""

    def value_of(self, name: str) -> str:
        return f"builder.{self.time():.3f}"

    def claim(self, name: str, token: str, lease_s: float) -> str:
        return self.value_of(name)


def test_handler_that_raises_at_any_line_leaves_no_lease_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at each line of an election: the thread that renews the lease ends, so another node has it soon; the
    process that was interrupted has it at once."""
    monkeypatch.setattr(lease, "BEAT_S", 0.01)

    time = Time()
    node = of_node(Leases(time), time)

    def elects() -> None:
        with node.elected("key"):
            pass

    def child() -> None:
        number, is_over = 0, False
        while not is_over:
            with suppress(Interrupt):
                is_over = lines_run(elects, number, lease.__file__)
            assert wait(node, "key", time) == 0
            time.now_s += 2 * LEASE_S
            number += 1
        assert number > 10
        for each in threading.enumerate():
            if each.name == "numba_kcache-lease":
                each.join(10)
                assert not each.is_alive()

    assert in_child(child) == 0


def of_node(tier: Leases, time: Time, ask: Ask = lambda ask: ask()) -> Elections:
    """The elections of a node, whose tier does at once what is queued."""
    checked = SimpleNamespace(
        tier=tier, timed=ask, asked=lambda work, is_awaited: ask(work), hits=lambda: tier.hits,
        uploads=SimpleNamespace(add=lambda work: work()), report_wait=lambda what, waited_s: None,
    )  # fmt: skip
    return Elections(checked, clock=time, pause=time.pause)


def wait(node: Elections, key: str, time: Time) -> float:
    """Seconds that a node waits before it builds `key`."""
    start_s = time()
    with node.elected(key):
        return time() - start_s


def test_lease_of_a_dead_builder_is_taken_when_it_expires() -> None:
    """Its holder renews it no more: one other node takes it, and the entry is built by that one."""
    time = Time()
    tier = Leases(time)
    tier.claim("key", "the dead", LEASE_S)
    with of_node(tier, time).elected("key") as election:
        assert LEASE_S <= election.waited_s < WAIT_S
        assert election.looks
        assert tier.value_of("key") not in ("", "the dead")
    assert tier.value_of("key") == "over"


def test_squatted_leases_cost_a_process_five_seconds_in_its_life() -> None:
    """A stranger has set a lease without expiry for each of a hundred keys."""
    time = Time()
    tier = Leases(time)
    node = of_node(tier, time)
    for number in range(100):
        tier.claim(f"key{number}", "a stranger", 3600.0)

    assert sum(wait(node, f"key{number}", time) for number in range(100)) < WAIT_S + 0.1


@pytest.mark.parametrize("server", [Lying, Inventing])
def test_lying_server_costs_a_process_five_seconds_in_its_life(server: type[Leases]) -> None:
    """It has no lease and accepts none, or shows ever new signs of life of builders that do not exist."""
    time = Time()
    node = of_node(server(time), time)

    assert WAIT_S - 0.1 < sum(wait(node, f"key{number}", time) for number in range(100)) < WAIT_S + 0.1


def test_wait_that_ends_with_the_entry_is_not_lost() -> None:
    """A fleet that builds a hundred kernels, one second each, is waited for at every one of them."""
    time = Time()
    tier = Leases(time)
    node = of_node(tier, time)
    for number in range(100):
        key = f"key{number}"
        tier.claim(key, "builder", 1.0)
        with node.elected(key) as election:
            assert election.waited_s >= 1.0
            tier.hits += 1


def test_nodes_that_waited_take_no_lease_once_the_entry_is_there() -> None:
    """A thousand of them would otherwise hold it one after the other."""
    tier = Leases(time := Time())
    with of_node(tier, time).elected("key"):
        pass
    assert tier.value_of("key") == "over"

    with of_node(tier, time).elected("key") as election:
        assert election == Election(0.0, looks=True)
        assert tier.value_of("key") == "over"


def test_builder_that_renews_its_lease_keeps_it() -> None:
    """Each second it is set again, so that others wait for as long as they may."""
    tier = Leases(time := Time())
    tier.claim("key", "builder", LEASE_S)
    time.meanwhile = lambda: tier.renew("key", LEASE_S)

    assert wait(of_node(tier, time), "key", time) >= WAIT_S


def test_node_that_must_not_wait_loses_the_election() -> None:
    """A warm-up has other kernels to build meanwhile."""
    tier = Leases(time := Time())
    tier.claim("key", "builder", LEASE_S)
    with of_node(tier, time).elected("key", waits=False) as election:
        assert election == Election(0.0, looks=False, is_lost=True)


def test_server_that_does_not_answer_is_not_waited_for() -> None:
    """Each node builds for itself, at once."""
    time = Time()
    with of_node(Leases(time), time, lambda ask: None).elected("key") as election:
        assert election == Election(0.0, looks=False)
