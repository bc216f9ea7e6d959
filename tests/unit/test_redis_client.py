"""Redis's protocol: the server's address in a URL, and answers above the limit."""

from __future__ import annotations

import contextlib
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from numba_kcache import KernelCache
from numba_kcache.cli import main
from numba_kcache.store import ENTRY
from numba_kcache.tiers import redis
from numba_kcache.tiers import tier as tier_interface
from numba_kcache.tiers.redis import RedisError, RedisTier, Server, server_of

KEY = "0" * 64


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("redis://host", Server("host", 6379, 0, "", "", False)),
        ("rediss://host:7000/2", Server("host", 7000, 2, "", "", True)),
        ("redis://:pa%40ss@host", Server("host", 6379, 0, "", "pa@ss", False)),
        ("redis://us%3Aer:p%2Fw@[::1]:1", Server("::1", 1, 0, "us:er", "p/w", False)),
    ],
)
def test_url_names_server_database_and_user(url: str, server: Server) -> None:
    """Omitted parts have Redis's defaults; percent-encoded letters reach the server decoded."""
    assert server_of(url) == server


@pytest.mark.parametrize(
    "url", ["redis://", "redis:///0", "redis://:secret@/0", "redis://:secret@h:port", "redis://:secret@h/name"]
)
def test_url_without_host_port_or_database_that_can_be_read_is_refused(url: str) -> None:
    """The reason holds no secret: it is shown to whoever reads the log."""
    with pytest.raises(ValueError, match=r"^it (names no host|must be redis://user:password@host:port/database)$"):
        server_of(url)


@pytest.fixture
def dishonest() -> Iterator[str]:
    """A server that announces four gigabytes in answer to each command, and sends 16 MiB of them."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            try:
                client = server.accept()[0]
                with client:
                    client.recv(1 << 16)
                    client.sendall(b"$4000000000\r\n" + bytes(16 << 20))
            except OSError:
                pass  # the client closed the connection, or the test is over

        threading.Thread(target=work, daemon=True).start()
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.mark.parametrize(
    "use",
    [
        lambda tier: tier.get(ENTRY, KEY),
        lambda tier: tier.put(ENTRY, KEY, b"data"),
        lambda tier: tier.claim(KEY, "token", 1.0),
        lambda tier: tier.renew(KEY, 1.0),
    ],
    ids=["get", "put", "claim", "renew"],
)
def test_answer_above_the_limit_is_refused_unread(dishonest: str, use: Callable[[RedisTier], object]) -> None:
    """An announced length of four gigabytes is refused, for reads and for writes, before it takes memory."""
    with pytest.raises(RedisError, match="an answer of 4000000000 bytes is above the limit"):
        use(RedisTier(dishonest))


def test_server_that_lists_empty_pages_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page names a next one."""
    monkeypatch.setattr(tier_interface, "LISTING_S", 0.2)
    with answering(lambda data: b"*2\r\n$1\r\n7\r\n*0\r\n") as place:
        with pytest.raises(TimeoutError, match="without end"):
            list(RedisTier(f"redis://{place}/0").keys(ENTRY))


@contextlib.contextmanager
def answering(reply: Callable[[bytes], bytes]) -> Iterator[str]:
    """A server that answers each command by a function of its bytes; yields where it is. At its end its clients find
    their connections closed: one that was given up would ask on until the run of tests ends."""
    clients: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    clients.append(client := server.accept()[0])
                    while data := client.recv(1 << 16):
                        client.sendall(reply(data))

        threading.Thread(target=work, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
    for each in clients:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


SECRETS = {"password": "codswallop", "first word": "OOMPH", "a code": "ERR"}


@pytest.mark.parametrize("password", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize(
    "echo",
    [
        lambda data: b"-ERR unknown command 'AUTH', with args beginning with: " + data.replace(b"\r\n", b" ") + b"\r\n",
        lambda data: b"-" + data.split(b"\r\n")[-2] + b"\r\n",
        lambda data: b"-MOVED 1 " + data.split(b"\r\n")[-2] + b":6379\r\n",
        lambda data: data.split(b"\r\n")[-2] + b"\r\n",
    ],
    ids=["server without AUTH", "it is the first word", "redirection", "no answer of Redis"],
)
def test_server_that_repeats_a_password_cannot_show_it(echo: Callable[[bytes], bytes], password: str) -> None:
    """Of an error only a known code and this package's own words are passed on, in no other order than in the table."""
    with answering(echo) as place, pytest.raises((OSError, RedisError)) as raised:
        RedisTier(f"redis://:{password}@{place}/0").get(ENTRY, KEY)

    shown = f"{raised.value!r} {raised.value.__cause__!r}"
    assert password not in shown or password == "ERR"  # a code of Redis is no secret
    assert "args" not in shown


def test_password_is_in_no_output_where_the_server_repeats_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A kernel, `doctor`, `pull` and `info`: events, warnings, log lines and what the commands print."""

    def echo(data: bytes) -> bytes:
        return b"-ERR unknown command 'AUTH', with args beginning with: 'codswallop'\r\n"

    said: list[object] = []
    with answering(echo) as place, warnings.catch_warnings(record=True) as warned, caplog.at_level("DEBUG"):
        warnings.simplefilter("always")
        monkeypatch.setenv("NUMBA_KCACHE_TIERS", f"redis://:codswallop@{place}/0")
        monkeypatch.setenv("NUMBA_KCACHE_DIR", str(tmp_path))
        cache = KernelCache(tmp_path, tiers=f"redis://:codswallop@{place}/0", durability="none")
        cache.subscribe(said.append)
        assert cache.session.tiers[0].get(KEY) is None
        said += [main([verb]) for verb in ("doctor", "pull", "info")]

    said += [str(each.message) for each in warned] + [each.getMessage() for each in caplog.records]
    text = f"{said} {capsys.readouterr()}"
    assert "AUTH" not in text
    assert "codswallop" not in text
    assert text.count("ERR: the log of the server may say why") >= 3


def test_node_of_a_cluster_says_that_clusters_are_not_supported() -> None:
    """The first redirection is an OSError, so that the tier is skipped for a while."""
    with answering(lambda data: b"-MOVED 5 10.0.0.7:6380\r\n") as place:
        with pytest.raises(OSError, match="MOVED: it is one of a Redis Cluster, which is not supported"):
            RedisTier(f"redis://{place}/0").get(ENTRY, KEY)


@pytest.mark.parametrize(
    "answer",
    [
        b"*2\r\n$1\r\n0\r\n*100000000\r\n",
        b"*2\r\n$1\r\n0\r\n*3\r\n" + b"$900\r\n" + bytes(900) + b"\r\n" + b"$900\r\n",
        b"*1\r\n" * 50_000,
        b"*7\r\n" + b":1\r\n" * 7,
        b":1\r\n",
        b"$-1\r\n",
    ],
    ids=["many names", "long names", "deep", "other fields", "a number", "nothing"],
)
def test_listing_that_is_none_is_an_error(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names above the limit of one answer, or an answer of another form, are refused before they take memory."""
    monkeypatch.setattr(redis, "MAX_FILE_BYTES", 1000)
    with answering(lambda data: answer) as place, pytest.raises((ValueError, TypeError, RecursionError)):
        list(RedisTier(f"redis://{place}/0", timeout_s=5.0).keys(ENTRY))
