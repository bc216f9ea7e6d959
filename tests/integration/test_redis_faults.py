"""A Redis server behind a network that fails: each fault is a miss, an event and a count, and costs one timeout."""

from __future__ import annotations

import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import ENTRY, StoredEntry
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers import redis as client
from numba_kcache.tiers.redis import RedisTier
from tests.support.redis_server import FaultProxy, RedisServer, fault_proxy, free_port, needs_redis, redis_server
from tests.support.stores import Events, children, entry_of, file_of, key_of, open_store
from tests.support.tiers import Chain

pytestmark = needs_redis

TIMEOUT_S = 0.25
WAIT_S = 30.0
LARGE = StoredEntry(key_of(1), {}, {"cubin": random.Random(1).randbytes(300_000)})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis")) as running:
        tier = RedisTier(running.url)
        tier.put(ENTRY, key_of(1), encode_entry(LARGE))
        tier.put(ENTRY, key_of(2), encode_entry(entry_of(2)))
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with fault_proxy(server.port) as running:
        yield running


@pytest.fixture
def events() -> Events:
    return Events()


def node(directory: Path, url: str, events: Events) -> Chain:
    return Chain(open_store(directory), [RedisTier(url, timeout_s=TIMEOUT_S)], events)


def flipped(data: bytes) -> bytes:
    """The data with one bit in the middle flipped."""
    at = len(data) // 2
    return data[:at] + bytes((data[at] ^ 1,)) + data[at + 1 :]


class Cut:
    """Passes the first bytes of an answer and hangs up."""

    def __init__(self, after_bytes: int) -> None:
        self._left = after_bytes

    def __call__(self, data: bytes) -> bytes | None:
        if self._left <= 0:
            return None
        passed, self._left = data[: self._left], self._left - len(data)
        return passed


def test_proxy_without_a_fault_is_the_server(proxy: FaultProxy, tmp_path: Path, events: Events) -> None:
    """Without a fault the proxy changes nothing, so the tests below measure the faults."""
    assert node(tmp_path, proxy.url, events).get(key_of(1)) == LARGE
    assert events.of(EventKind.TROUBLE) == []


@pytest.mark.parametrize("fault", ["cut", "corrupt", "garbage", "endless", "lies"])
def test_answer_that_is_not_whole_is_a_miss(proxy: FaultProxy, tmp_path: Path, events: Events, fault: str) -> None:
    """Cut in the middle, a bit flipped, another protocol, an endless line, a length beyond all limits."""
    proxy.fault = {
        "cut": Cut(100_000),
        "corrupt": flipped,
        "garbage": lambda data: b"HTTP/1.1 400 Bad Request\r\n\r\n",
        "endless": lambda data: b"$1" * 100_000,
        "lies": lambda data: b"$99999999999999\r\n" + data,
    }[fault]
    chain = node(tmp_path, proxy.url, events)
    start = time.monotonic()

    assert chain.get(key_of(1)) is None
    assert time.monotonic() - start < WAIT_S / 3
    assert [event.kind for event in events.of(EventKind.TROUBLE)] == [EventKind.TROUBLE]
    assert not file_of(chain.local, key_of(1)).exists()
    assert ("above the limit" in str(events[-1].fields["error"])) == (fault == "lies")  # refused before the timeout
    report = chain.reports()[0]
    assert (report.hits, report.misses, report.errors) == (0, 1, 1)


def test_answer_in_drops_ends_within_the_timeout(proxy: FaultProxy, tmp_path: Path, events: Events) -> None:
    """The timeout is for the whole operation and does not restart at a packet: 300 KB in single bytes would take
    long."""
    proxy.pieces_s = TIMEOUT_S / 20
    chain = node(tmp_path, proxy.url, events)
    start = time.monotonic()

    assert chain.get(key_of(1)) is None
    assert time.monotonic() - start < WAIT_S / 3
    assert "no answer within" in str(events[-1].fields["error"]) or "timed out" in str(events[-1].fields["error"])


def eight_ranks(directory: Path, url: str, kernels: int = 20) -> list[int]:
    """Eight processes of one node, which share its directory, put, get and claim 20 kernels each: errors of each."""
    start, errors = os.pipe(), os.pipe()

    def rank(_: int) -> None:
        os.close(start[1])
        chain = node(directory, url, Events())
        os.read(start[0], 1)  # returns at the end of the file, in all processes at once
        for number in range(kernels):
            chain.get(key_of(100 + number))
            chain.put(entry_of(200 + number))
            with chain.elected(key_of(number)):
                pass
        assert chain.flush(WAIT_S)
        os.write(errors[1], bytes([chain.reports()[0].errors]))

    with children(8, rank):
        os.close(start[1])
    found = os.read(errors[0], 8)
    for end in (start[0], *errors):
        os.close(end)
    return sorted(found)


@pytest.mark.slow
def test_black_hole_costs_each_process_of_a_node_one_timeout(proxy: FaultProxy, tmp_path: Path) -> None:
    """Eight processes that start at once ask once each."""
    proxy.is_silent = True
    assert eight_ranks(tmp_path, proxy.url) == [1] * 8
    assert proxy.connections == 8


@pytest.mark.slow
def test_server_that_answers_is_asked_by_all(proxy: FaultProxy, tmp_path: Path) -> None:
    """Eight processes start at once: none waits for another one's answer."""
    assert eight_ranks(tmp_path, proxy.url, 3) == [0] * 8
    assert proxy.connections >= 8


@pytest.mark.parametrize("has_connection", [False, True])
def test_stopped_server_costs_one_timeout(
    server: RedisServer, tmp_path: Path, events: Events, has_connection: bool
) -> None:
    """A process that is stopped still has its connections accepted by the system, and answers none: look-ups, writes
    and leases of ten kernels lose one timeout together."""
    chain = node(tmp_path, server.url, events)
    if has_connection:
        assert chain.get(key_of(1)) == LARGE
    server.signal(signal.SIGSTOP)
    try:
        start_s = time.monotonic()
        for number in range(10, 20):
            assert chain.get(key_of(number)) is None
            assert chain.put(entry_of(number))
            with chain.elected(key_of(number)) as election:
                assert not election.looks
        waited_s = time.monotonic() - start_s
        assert chain.flush(WAIT_S)
    finally:
        server.signal(signal.SIGCONT)

    assert waited_s < 4 * TIMEOUT_S
    assert len(events.of(EventKind.TROUBLE)) == 1


def test_refused_connection_is_tried_once(tmp_path: Path, events: Events) -> None:
    """No server there."""
    chain = node(tmp_path, f"redis://127.0.0.1:{free_port()}/0", events)
    for number in range(3):
        assert chain.get(key_of(number)) is None

    assert len(events.of(EventKind.TROUBLE)) == 1
    assert "127.0.0.1" in str(events[-1].fields["where"])


def test_host_of_many_addresses_has_the_time_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a partition no address answers: all together get the time of one operation."""
    waited_s, now_s = list[float](), [1000.0]

    class Silent:
        def __init__(self, *_kind: object) -> None: ...

        def settimeout(self, seconds: float) -> None:
            self.timeout_s = seconds

        def connect(self, _address: object) -> None:
            waited_s.append(self.timeout_s)
            now_s[0] += self.timeout_s
            raise TimeoutError

        def close(self) -> None: ...

    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", 6379)) for number in range(1, 9)]
    known = {f"127.0.0.{number}": found[number - 1 : number] for number in range(1, 9)}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *_: known.get(host.decode(), found))
    monkeypatch.setattr(socket, "socket", Silent)
    monkeypatch.setattr(client.time, "monotonic", lambda: now_s[0])

    with pytest.raises(TimeoutError):
        client.Connection(client.server_of("redis://many.example"), now_s[0] + 1.0, 100)
    assert sum(waited_s) <= 1.0


@pytest.mark.slow
def test_name_servers_that_do_not_answer_cost_one_timeout(
    tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resolver would take half a minute; a hundred look-ups wait for it once, no longer than for a server."""
    asked, answered, look_up = list[object](), threading.Event(), socket.getaddrinfo

    def unanswered(host: object, port: object, *how: int) -> object:
        if socket.AI_NUMERICHOST in how[3:]:
            return look_up(host, port, *how)
        asked.append(host)
        assert answered.wait(60), "nobody waits so long"
        raise socket.gaierror("no answer")

    monkeypatch.setattr(socket, "getaddrinfo", unanswered)
    chain = node(tmp_path, "redis://cache.example/0", events)
    try:
        assert [chain.get(key_of(number)) for number in range(100)] == [None] * 100
    finally:
        answered.set()

    assert len(asked) == 1
    assert "no name server" in str(events.of(EventKind.TROUBLE)[0].fields["error"])


def test_name_that_is_unknown_is_trouble(tmp_path: Path, events: Events) -> None:
    """A typing error in the host."""
    chain = node(tmp_path, "redis://no-such-host.invalid/0", events)

    assert chain.get(key_of(1)) is None
    assert len(events.of(EventKind.TROUBLE)) == 1


def test_errors_of_the_server_do_not_open_the_breaker(proxy: FaultProxy, tmp_path: Path, events: Events) -> None:
    """A server that answers with an error is reachable, and is asked again."""
    proxy.fault = lambda data: b"-ERR unknown command\r\n"
    chain = node(tmp_path, proxy.url, events)
    assert chain.get(key_of(1)) is None
    proxy.fault = lambda data: data

    assert chain.get(key_of(1)) == LARGE
    assert chain.reports()[0].errors == 1
