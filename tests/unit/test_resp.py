"""Redis's protocol: the server's address in a URL, and answers above the limit."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from numba_kcache.store.entry import ENTRY
from numba_kcache.tiers.redis import RedisTier
from numba_kcache.tiers.resp import RedisError, Server, server_of

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
        lambda tier: tier.put_manifest(KEY, b"data", None),
        lambda tier: tier.claim(KEY, "token", 1.0),
        lambda tier: tier.replace(KEY, "before", "after", 1.0),
    ],
    ids=["get", "put", "put_manifest", "claim", "replace"],
)
def test_answer_above_the_limit_is_refused_unread(dishonest: str, use: Callable[[RedisTier], object]) -> None:
    """An announced length of four gigabytes is refused, for reads and for writes, before it takes memory."""
    with pytest.raises(RedisError, match="an answer of 4000000000 bytes is above the limit"):
        use(RedisTier(dishonest))
