"""A Redis Cluster of three real masters behind the local store, whichever of them the URL names."""

from __future__ import annotations

from binascii import crc_hqx
from collections.abc import Iterator
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.model import EventKind
from numba_kcache.store.entry import ENTRY, MANIFEST, encode_entry
from numba_kcache.tiers.chain import Chain
from numba_kcache.tiers.redis import RedisTier
from numba_kcache.tiers.resp import Redirection, server_of
from tests.support.compiling import EMPTY
from tests.support.redis_server import RedisServer, fault_proxy, needs_redis, redis_cluster
from tests.support.stores import Events, entry_of, key_of, open_store

pytestmark = [needs_redis, pytest.mark.slow]

WAIT_S = 30.0


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RedisServer]]:
    with redis_cluster(tmp_path_factory.mktemp("cluster")) as masters:
        yield masters


@pytest.fixture
def masters(running: list[RedisServer]) -> list[RedisServer]:
    """The masters, empty."""
    for each in running:
        each.told("FLUSHALL")
        each.told("CONFIG", "RESETSTAT")
    return running


def redirected(masters: list[RedisServer]) -> int:
    """Number of redirections that the masters have sent."""
    stats = [each.told("INFO", "errorstats") for each in masters]
    return sum(found.get("errorstat_MOVED", {}).get("count", 0) for found in stats)  # type: ignore[attr-defined]


def slot_of(name: str) -> int:
    """Compute the slot of a key as the cluster's specification does: CRC16 modulo the number of slots."""
    return crc_hqx(name.encode(), 0) % 16384


def test_what_is_put_at_one_node_is_got_at_another(masters: list[RedisServer]) -> None:
    """Entries are on all three; each is found, by way of each; all are listed; None for what is not there."""
    for number in range(20):
        RedisTier(masters[0].url, ttl_s=1000).put(ENTRY, key_of(number), encode_entry(entry_of(number)))

    assert all(each.keys() for each in masters)
    for master in masters:
        tier = RedisTier(master.url)
        assert [tier.get(ENTRY, key_of(number)) for number in range(20)] == [
            encode_entry(entry_of(number)) for number in range(20)
        ]
        assert tier.get(ENTRY, key_of(99)) is None
        assert sorted(tier.keys(ENTRY)) == sorted(key_of(number) for number in range(20))


def test_each_slot_is_redirected_once(masters: list[RedisServer]) -> None:
    """A slot's node is remembered: reading all keys again sends each request to the right node."""
    tier = RedisTier(masters[0].url)
    slots = {slot_of(f"numba_kcache:1:entry:{key_of(number)}") for number in range(20)}
    for _ in range(3):
        assert [tier.get(ENTRY, key_of(number)) for number in range(20)] == [None] * 20

    assert redirected(masters) == len({slot for slot in slots if slot > 5460})


def test_slot_that_moves_is_asked_where_it_goes(masters: list[RedisServer]) -> None:
    """Redirections are ASK while the slot moves, and MOVED afterwards."""
    number = next(number for number in range(99) if slot_of(f"numba_kcache:1:entry:{key_of(number)}") <= 5460)
    slot = slot_of(f"numba_kcache:1:entry:{key_of(number)}")
    first, second = (str(each.told("CLUSTER", "MYID"), "ascii") for each in masters[:2])  # type: ignore[arg-type]
    tier = RedisTier(masters[0].url)
    masters[1].told("CLUSTER", "SETSLOT", slot, "IMPORTING", first)
    masters[0].told("CLUSTER", "SETSLOT", slot, "MIGRATING", second)
    try:
        RedisTier(masters[2].url).put(ENTRY, key_of(number), b"x")
        assert [tier.get(ENTRY, key_of(number)) for _ in range(2)] == [b"x", b"x"]
        assert masters[0].keys() == []
    finally:
        for each in (masters[1], masters[0], masters[2]):
            each.told("CLUSTER", "SETSLOT", slot, "NODE", second)
    assert tier.get(ENTRY, key_of(number)) == b"x"


def test_leases_and_manifests_are_the_cluster_s(masters: list[RedisServer]) -> None:
    """A lease has one owner, whichever node was asked; a manifest is replaced only by the node that read its last
    content."""
    tiers = [RedisTier(each.url) for each in masters]
    for number in range(6):
        mine, yours, third = (tiers[(number + shift) % 3] for shift in range(3))
        assert mine.claim(key_of(number), "mine", 60.0) == "mine"
        assert yours.claim(key_of(number), "yours", 60.0) == "mine"
        assert third.replace(key_of(number), "mine", "mine.1", 60.0)
        assert not third.replace(key_of(number), "mine", "done", 60.0)
        assert third.replace(key_of(number), "mine.1", "done", 60.0)
        assert yours.value_of(key_of(number)) == "done"
        assert mine.put_manifest(key_of(number), b"a", None)
        assert not yours.put_manifest(key_of(number), b"b", None)
        assert yours.put_manifest(key_of(number), b"b", b"a")
        assert third.get(MANIFEST, key_of(number)) == b"b"


def test_kernel_of_one_node_is_a_hit_on_another(masters: list[RedisServer], tmp_path: Path) -> None:
    """The URL of each node names another master."""
    first, second = (
        KernelCache(tmp_path / name, tiers=master.url, durability="none")
        for name, master in zip("ab", masters, strict=False)
    )
    cached_kernel(EMPTY, cache=first).compile("sm_90")
    assert first.session.store.flush(WAIT_S)  # type: ignore[union-attr]
    cached_kernel(EMPTY, cache=second).compile("sm_90")

    assert (second.info("process").compiles, second.info("process").hits) == (0, 1)
    assert (first.info("process").errors, second.info("process").errors) == (0, 0)


def test_redirections_end(tmp_path: Path, masters: list[RedisServer]) -> None:
    """A node that redirects to itself, or nowhere, is a miss and an error, not an endless loop."""
    events = Events()
    with fault_proxy(masters[0].port) as proxy:
        for number, answer in enumerate((f"-MOVED 1 127.0.0.1:{proxy.port}\r\n", "-MOVED 1\r\n", "-ASK x :y\r\n")):
            proxy.fault = lambda data, answer=answer: answer.encode()  # type: ignore[misc]
            assert Chain(open_store(tmp_path / str(number)), [RedisTier(proxy.url)], events).get(key_of(1)) is None

    assert len(events.of(EventKind.TROUBLE)) == 3
    asked = masters[0].told("INFO", "commandstats")["cmdstat_getrange"]  # type: ignore[index]
    assert asked["calls"] + asked["rejected_calls"] == 4 + 1 + 1
    assert "redirected more than 3 times" in str(events[0].fields["error"])


@pytest.mark.parametrize(
    ("line", "host", "port"),
    [("MOVED 5 10.0.0.7:6380", "10.0.0.7", 6380), ("ASK 5 fe80::1:6380", "fe80::1", 6380), ("MOVED 5 :1", "seed", 1)],
)
def test_other_nodes_are_asked_as_the_url_says(line: str, host: str, port: int) -> None:
    """Redirected requests use the URL's user, password and TLS; a redirection without a host keeps the host."""
    asked = server_of("rediss://user:word@seed:6379/0")

    assert Redirection(line).server(asked) == asked._replace(host=host, port=port)


def test_dead_master_is_a_miss_and_a_count(tmp_path: Path) -> None:
    """Entries of other masters are found; slots that another master took over are read there."""
    events = Events()
    with redis_cluster(tmp_path / "cluster") as masters:
        for each in masters:
            each.told("CONFIG", "SET", "cluster-require-full-coverage", "no")
        tier = RedisTier(masters[0].url)
        for number in range(20):
            tier.put(ENTRY, key_of(number), encode_entry(entry_of(number)))
            assert tier.get(ENTRY, key_of(number)) is not None
        masters[2].kill()
        found = []
        for number in range(20):
            chain = Chain(open_store(tmp_path / str(number)), [tier], events)  # its own breaker
            found.append(chain.get(key_of(number)) is not None)
        slots = [slot_of(f"numba_kcache:1:entry:{key_of(number)}") for number in range(20)]
        number = found.index(False)
        masters[0].told("CLUSTER", "SETSLOT", slots[number], "NODE", masters[0].told("CLUSTER", "MYID"))
        assert tier.get(ENTRY, key_of(number)) is None  # asked at the URL's address, not at the dead master's

    assert found == [slot < 2 * 5461 for slot in slots]
    assert len(events.of(EventKind.TROUBLE)) == found.count(False)
