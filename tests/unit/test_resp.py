"""The address of a server of Redis's protocol, as a URL gives it."""

from __future__ import annotations

import pytest

from numba_kcache.tiers.resp import Server, server_of


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
    """Parts that are left out have Redis's defaults; quoted letters reach the server unquoted."""
    assert server_of(url) == server


@pytest.mark.parametrize(
    "url", ["redis://", "redis:///0", "redis://:secret@/0", "redis://:secret@h:port", "redis://:secret@h/name"]
)
def test_url_without_host_port_or_database_that_can_be_read_is_refused(url: str) -> None:
    """The reason holds no secret: it is shown to whoever reads the log."""
    with pytest.raises(ValueError, match=r"^it (names no host|must be redis://user:password@host:port/database)$"):
        server_of(url)
