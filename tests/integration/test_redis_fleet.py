"""Many nodes with one Redis: each kernel is built once, whichever process dies."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numba_kcache.store import StoredEntry
from numba_kcache.tiers import lease
from numba_kcache.tiers.redis import RedisTier
from tests.support import stores
from tests.support.redis_server import RedisServer, needs_redis, redis_server
from tests.support.stores import Events, entry_of, key_of, open_store
from tests.support.tiers import Chain

pytestmark = [needs_redis, pytest.mark.slow]

NODES, RANKS, KERNELS = 8, 8, 20
BOUND_S = 20.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path / "redis") as running:
        yield running


def wanted(node: Chain, number: int, build: Callable[[], None]) -> StoredEntry:
    """Request a kernel as the resolver does, with a build function of the test."""
    key = key_of(number)
    entry = node.get(key)
    if entry is not None:
        return entry
    with node.local.building(key) as turn:
        if turn.found is not None:
            return turn.found
        with node.elected(key) as election:
            entry = node.get(key) if election.looks else None
            if entry is None:
                build()
                entry = entry_of(number)
                node.put(entry)
            return entry


class Fleet:
    """Processes in nodes, whose builds are lines in one file."""

    def __init__(self, directory: Path, url: str, wait_s: float = BOUND_S) -> None:
        self._directory, self._url, self._wait_s = directory, url, wait_s
        self._log = directory / "builds"
        self._log.touch()
        self._children: list[int] = []

    def node(self, number: int) -> Chain:
        return Chain(
            open_store(self._directory / f"node{number}"), [RedisTier(self._url, wait_s=self._wait_s)], Events()
        )

    def start(self, work: Callable[[], None]) -> int:
        """Run `work` in a process."""
        pid = stores.forked(work)
        self._children.append(pid)
        return pid

    def note(self, text: object) -> None:
        """Append one line, which stays whole beside other writers."""
        fd = os.open(self._log, os.O_WRONLY | os.O_APPEND)
        os.write(fd, f"{text}\n".encode())
        os.close(fd)

    def rank(self, node: int, numbers: list[int], build_s: float) -> None:
        """A process of a node that wants these kernels."""
        chain = self.node(node)
        for number in numbers:

            def build(number: int = number) -> None:
                self.note(number)
                time.sleep(build_s)  # what a compile takes; nothing waits for its being that long

            assert wanted(chain, number, build) == entry_of(number)
        assert chain.flush(BOUND_S)

    def ended(self) -> list[int]:
        """The exit statuses of all processes, once they have ended."""
        return [os.waitpid(pid, 0)[1] for pid in self._children]

    def builds(self) -> Counter[str]:
        """Number of times that each was built."""
        return Counter(self._log.read_text().split())

    def seen(self, text: str) -> None:
        """Return when the file has the line."""
        deadline = time.monotonic() + BOUND_S
        while text not in self.builds():
            assert time.monotonic() < deadline
            time.sleep(0.005)


def test_sixty_four_processes_build_each_of_twenty_kernels_once(server: RedisServer, tmp_path: Path) -> None:
    """8 nodes of 8 ranks, all cold, each in an order of its own; counted."""
    fleet = Fleet(tmp_path, server.url)
    for rank in range(NODES * RANKS):
        order = [(number * 7 + rank * 3) % KERNELS for number in range(KERNELS)]
        fleet.start(lambda rank=rank, order=order: fleet.rank(rank % NODES, order, 0.01))  # type: ignore[misc]

    assert fleet.ended() == [0] * 64
    assert fleet.builds() == Counter(map(str, range(KERNELS)))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_builder_that_ends_is_succeeded_by_exactly_one(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: int
) -> None:
    """In the middle of a build: its lease expires, and one of the seven other nodes builds."""
    monkeypatch.setattr(lease, "LEASE_S", 1.0)
    fleet = Fleet(tmp_path, server.url)
    builder = fleet.start(lambda: fleet.rank(0, [1], 3600.0))
    fleet.seen("1")
    os.kill(builder, end)
    others = [fleet.start(lambda node=node: fleet.rank(node, [1], 0.01)) for node in range(1, NODES)]  # type: ignore[misc]

    assert [os.waitpid(pid, 0)[1] for pid in others] == [0] * (NODES - 1)
    assert fleet.builds() == Counter({"1": 2})
    os.kill(builder, signal.SIGKILL)
    os.waitpid(builder, 0)


def test_killed_server_holds_nobody_up(server: RedisServer, tmp_path: Path) -> None:
    """SIGKILL while seven nodes wait for the first: all finish, long before the bound."""
    fleet = Fleet(tmp_path, server.url, wait_s=3600.0)
    start = time.monotonic()
    for node in range(NODES):
        fleet.start(lambda node=node: fleet.rank(node, [1, 2, 3], 0.3))  # type: ignore[misc]
    fleet.seen("1")
    server.kill()

    assert fleet.ended() == [0] * NODES
    assert time.monotonic() - start < BOUND_S
    assert set(fleet.builds()) == {"1", "2", "3"}


def test_wait_is_bounded(server: RedisServer, tmp_path: Path) -> None:
    """A builder that never ends and never dies: another builds for itself when the time is up."""
    fleet = Fleet(tmp_path, server.url, wait_s=0.2)
    builder = fleet.start(lambda: fleet.rank(0, [1], 3600.0))
    fleet.seen("1")
    other = fleet.start(lambda: fleet.rank(1, [1], 0.0))
    status = os.waitpid(other, 0)[1]
    os.kill(builder, signal.SIGKILL)
    os.waitpid(builder, 0)

    assert status == 0
    assert fleet.builds() == Counter({"1": 2})


def test_build_longer_than_the_lease_is_not_taken_over(
    server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is renewed while the build goes on."""
    monkeypatch.setattr(lease, "LEASE_S", 0.3)
    fleet = Fleet(tmp_path, server.url)
    fleet.start(lambda: fleet.rank(0, [1], 1.2))
    fleet.seen("1")
    fleet.start(lambda: fleet.rank(1, [1], 0.0))

    assert fleet.ended() == [0, 0]
    assert fleet.builds() == Counter({"1": 1})


def test_failed_build_lets_the_others_try_at_once(server: RedisServer, tmp_path: Path) -> None:
    """After a failed build all others look once more and build at once, not one after another."""
    fleet = Fleet(tmp_path, server.url)
    broken = fleet.node(0)
    with pytest.raises(ValueError), broken.elected(key_of(1)):
        raise ValueError("it does not compile")
    assert broken.flush(BOUND_S)
    nodes = [fleet.node(number) for number in (1, 2)]
    with nodes[0].elected(key_of(1)) as first, nodes[1].elected(key_of(1)) as second:
        assert (first.waited_s, second.waited_s) == (0.0, 0.0)


def test_lease_is_renewed_while_it_lasts_and_then_over(server: RedisServer) -> None:
    """It stays its holder's until it is released; one that is gone is not renewed."""
    tier = RedisTier(server.url)

    assert not tier.renew(key_of(1), 60.0)
    assert tier.claim(key_of(1), "mine", 60.0) == "mine"
    assert tier.claim(key_of(1), "yours", 60.0) == "mine"
    assert tier.renew(key_of(1), 60.0)
    assert tier.value_of(key_of(1)) == "mine"
    tier.release(key_of(1), "over", 60.0)
    assert tier.claim(key_of(1), "yours", 60.0) == "over"
