"""Waiting for another node's build: an abandoned lease is taken over once, and waits are bounded."""

from __future__ import annotations

from collections.abc import Callable

from numba_kcache.tiers.lease import LEASE_S, SILENT_IN_ALL_S, SILENT_S, Patience, elected
from tests.unit.test_store_locks import Time

WAIT_S = 120.0


class Leases:
    """A server of leases, without expiry: what stands there stands until it is replaced.

    Attributes:
        standing_now: By name.
        asked: Number of questions.
    """

    wait_s = WAIT_S

    def __init__(self) -> None:
        self.standing_now: dict[str, str] = {}
        self.asked = 0

    def ready(self) -> None:
        """The task needs nothing."""

    def claim(self, name: str, token: str, lease_s: float) -> str:
        self.asked += 1
        return self.standing_now.setdefault(name, token)

    def value_of(self, name: str) -> str:
        self.asked += 1
        return self.standing_now.get(name, "")

    def replace(self, name: str, before: str, after: str, kept_s: float) -> bool:
        self.asked += 1
        stood = self.standing_now.get(name) == before
        if stood:
            self.standing_now[name] = after
        return stood


class Lying(Leases):
    """A server that always reports no entry, and accepts no claim."""

    def claim(self, name: str, token: str, lease_s: float) -> str:
        return ""


def now(work: Callable[[], None]) -> bool:
    """Run a task at once."""
    work()
    return True


def wait(tier: Leases, key: str, time: Time, patience: Patience) -> float:
    """Seconds that a node waits before it builds `key`."""
    start = time.now_s
    with elected(tier, key, lambda ask: ask(), lambda ask: ask(), now, lambda: 0, patience):
        return time.now_s - start


def patient(time: Time) -> Patience:
    return Patience(WAIT_S, time, time.pause)


def test_squatted_lease_is_taken_over_and_costs_a_process_a_few_seconds_in_its_life() -> None:
    """A stranger has set a lease without expiry for each of a hundred keys."""
    tier, time = Leases(), Time()
    tier.standing_now = {f"key{number}": "a stranger" for number in range(100)}
    patience = patient(time)
    waits = [wait(tier, f"key{number}", time, patience) for number in range(100)]

    assert SILENT_S <= waits[0] < SILENT_S + 0.1
    assert sum(waits) < SILENT_IN_ALL_S + 0.1
    assert tier.standing_now["key0"] == "done"


def test_one_node_takes_a_dead_lease_over_and_the_others_wait_for_it() -> None:
    """The new owner's token shows the others that it is alive."""
    tier, first = Leases(), Time()
    tier.standing_now["key"] = "a stranger"
    with elected(tier, "key", lambda ask: ask(), lambda ask: ask(), now, lambda: 0, patient(first)) as election:
        assert election.looks
        taken = tier.standing_now["key"]
        assert taken != "a stranger"
        second = Time(lambda: tier.standing_now.update(key="done") if second.now_s > 1002 else None)
        assert 2 < wait(tier, "key", second, patient(second)) < 4
    assert SILENT_S < LEASE_S


def test_builder_that_gives_signs_of_life_is_waited_for() -> None:
    """The token changes each second: the node waits for the whole time, which is also the process's whole allowance."""
    tier = Leases()
    tier.standing_now["key"] = tier.standing_now["other"] = "builder.0"

    def beat() -> None:
        tier.standing_now.update(key=f"builder.{int(time.now_s)}", other=f"builder.{int(time.now_s)}")

    time = Time(beat)
    patience = patient(time)

    assert WAIT_S <= wait(tier, "key", time, patience) < WAIT_S + 2
    assert wait(tier, "other", time, patience) == 0


def test_server_that_takes_no_claim_is_not_waited_for() -> None:
    """The server has no lease and accepts none: a few seconds are lost, once."""
    tier, time = Lying(), Time()
    patience = patient(time)

    assert sum(wait(tier, f"key{number}", time, patience) for number in range(100)) < SILENT_IN_ALL_S + 0.1


def test_server_that_makes_up_builders_is_not_waited_for() -> None:
    """Random tokens are no sign of life: each token of a builder is derived from the one before."""
    tier = Leases()
    tier.standing_now["key"] = "0.0"
    time = Time(lambda: tier.standing_now.update(key=f"{time.now_s:.3f}"))

    assert wait(tier, "key", time, patient(time)) < SILENT_S + 5


def test_server_that_does_not_answer_is_not_waited_for() -> None:
    """Each node builds for itself, at once."""
    time = Time()
    with elected(Leases(), "key", lambda ask: None, lambda ask: None, now, lambda: 0, patient(time)) as election:
        assert election.waited_s == 0
        assert not election.looks
