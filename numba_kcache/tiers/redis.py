"""A Redis or Valkey server as a tier, with a client that is bounded in time and memory.

Promise     A command ends within `timeout_s` of its start, one that writes within a second more for each MiB, however
            slowly the server answers. An answer takes no more memory than the limit, whatever length the server claims.
            No text of the server is passed on: of an error its code is looked up in a table (`_CODES`), so that a
            server that repeats a command cannot put its password or user into an error. After any failure the
            connection is closed, so that no answer is taken for that of another command.
Method      One command, one answer, over a socket whose timeout is the time left. A file is a string under
            `<prefix>:<format>/<kind>/<key>`, read in one round trip: GETRANGE has the server truncate what is too long.
Not here    When to ask, verification, and leases (tiers.chain, tiers.breaker, tiers.lease); clusters of servers.
Source      RESP2, the protocol of Redis and Valkey unless the client requests another. redis-py takes 100 ms of CPU to
            import, five times what a warm first launch may lose to a tier. It also bounds neither the size nor the time
            of a whole answer (its timeout restarts with every packet), and its errors repeat the server's text.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from ..model import NamedTuple
from ..model.tier_address import shown_place
from ..store import FORMAT, MAX_FILE_BYTES, require_key
from .lease import WAIT_S
from .tier import Tier, file_name, listed, within

TIMEOUT_S = 1.0
PREFIX = "numba_kcache"
_LEAST_BYTES_PER_S = 1 << 20
"""Speed of the slowest connection over which large files can be written."""

_LINE_BYTES, _READ_BYTES, _ITEM_BYTES = 1 << 10, 1 << 16, 64
_NO_REDIS = "the answer is not in the protocol of Redis"

_UNUSABLE = {
    "NOAUTH": "it requires a password",
    "WRONGPASS": "it does not accept this user and password",
    "NOPERM": "the user may not run this command",
    "LOADING": "it is starting",
    "MASTERDOWN": "its master is down",
    "CLUSTERDOWN": "its cluster is down",
    "MOVED": "it is one of a Redis Cluster, which is not supported",
    "ASK": "it is one of a Redis Cluster, which is not supported",
    "CROSSSLOT": "it is one of a Redis Cluster, which is not supported",
}
"""The codes of errors after which the server is not asked for a while."""

_CODES = {
    **_UNUSABLE,
    "OOM": "its memory is full (maxmemory)",
    "READONLY": "it is a replica, which cannot be written to",
    "MISCONF": "it cannot save to its disk, and takes no writes",
    "NOREPLICAS": "it has too few replicas to take writes",
    "BUSY": "it is running a script",
    "WRONGTYPE": "the key is of another type",
    "ERR": "the log of the server may say why",
}
"""All that is shown of an error: the server's first word if it is one of these, and this meaning."""


class RedisError(ValueError):
    """The server answered with an error, or with something that is too large."""


class Server(NamedTuple):
    """Address of a server and the credentials for it.

    Args:
        host: Name or address.
        port: TCP port.
        database: Its number.
        user: "" for the server's default.
        password: "" for none.
        is_encrypted: Whether the connection uses TLS, with the system's certificates.
    """

    host: str
    port: int
    database: int
    user: str
    password: str
    is_encrypted: bool


def server_of(url: str) -> Server:
    """The server of a `redis://` or `rediss://` URL.

    Raises:
        ValueError: It is not such a URL; the message holds no secret.
    """
    try:
        parts = urlsplit(url)
        port, host = parts.port or 6379, parts.hostname
        database = int(parts.path.strip("/") or 0)
    except ValueError:
        raise ValueError("it must be redis://user:password@host:port/database") from None
    if not host:
        raise ValueError("it names no host")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Server(host, port, database, user, password, parts.scheme == "rediss")


class RedisTier(Tier):
    """A server.

    Args:
        url: `redis://` or, with TLS, `rediss://`; may hold user and password.
        ttl_s: Seconds after which entries expire; None: the server's own policy.
        timeout_s: Longest wait for one operation, in seconds.
        wait_s: Longest wait of a process for kernels that other nodes build, in seconds.
        prefix: Prefix of the tier's keys on the server.

    Raises:
        ValueError: It is not such a URL; the message holds no secret.
    """

    is_remote, readonly = True, False

    def __init__(
        self,
        url: str,
        *,
        ttl_s: int | None = None,
        timeout_s: float = TIMEOUT_S,
        wait_s: float = WAIT_S,
        prefix: str = PREFIX,
    ) -> None:
        self.name, self.wait_s = shown_place(url), wait_s
        self._server, self._ttl_s, self._timeout_s = server_of(url), ttl_s, timeout_s
        self._prefix, self._idle, self._pid = prefix, list[Connection](), os.getpid()

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file."""
        name = self._name(kind, key)
        data: bytes = self._ask(b"GETRANGE", name, b"0", b"%d" % MAX_FILE_BYTES)
        if data and len(data) > MAX_FILE_BYTES:
            raise RedisError(f"{name.decode()} is above the limit of {MAX_FILE_BYTES} bytes")
        return data or None

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Write a file."""
        expiry = () if self._ttl_s is None else (b"EX", b"%d" % self._ttl_s)
        self._ask(b"SET", self._name(kind, key), data, *expiry)

    def keys(self, kind: int) -> Iterator[str]:
        """The keys of all entries or manifests, in no order."""
        start = self._name(kind)
        pattern = b"".join(b"\\%c" % letter if letter in b"*?[]\\^-" else b"%c" % letter for letter in start) + b"*"

        def names() -> Iterator[bytes]:
            cursor = b""
            while cursor != b"0":
                cursor, page = self._ask(b"SCAN", cursor or b"0", b"MATCH", pattern, b"COUNT", b"1000")
                yield from page

        return (name[len(start) :].decode("latin-1") for name in listed(names()))

    def claim(self, name: str, token: str, lease_s: float) -> str:
        """Set a lease to `token` unless it has a value. Returns the value it has then; "" if that just expired."""
        lease = self._lease(name)
        if self._ask(b"SET", lease, token.encode(), b"NX", b"PX", b"%d" % (lease_s * 1000)) is not None:
            return token
        return self.value_of(name)

    def value_of(self, name: str) -> str:
        """The value of a lease; "" for none."""
        return str(self._ask(b"GET", self._lease(name)) or b"", "latin-1")

    def renew(self, name: str, lease_s: float) -> bool:
        """Have a lease end in `lease_s`, whatever its value. Returns True if there is one."""
        return bool(self._ask(b"PEXPIRE", self._lease(name), b"%d" % (lease_s * 1000)) == b"1")

    def release(self, name: str, value: str, kept_s: float) -> None:
        """Set a lease to the value of one that is over, for `kept_s`."""
        self._ask(b"SET", self._lease(name), value.encode(), b"PX", b"%d" % (kept_s * 1000))

    def _name(self, kind: int, key: str = "") -> bytes:
        return f"{self._prefix}:{file_name(kind, key)}".encode()

    def _lease(self, name: str) -> bytes:
        return f"{self._prefix}:{FORMAT}/leases/{require_key(name)}".encode()

    def _ask(self, *words: bytes) -> Any:
        """The answer to a command: bytes, a list of answers, or None."""
        if self._pid != os.getpid():  # a child must not read its parent's answers
            self._idle, self._pid = [], os.getpid()
        deadline_s = time.monotonic() + self._timeout_s + sum(map(len, words)) / _LEAST_BYTES_PER_S
        with suppress(IndexError, ConnectionError):  # no idle connection, or the server closed it
            return self._answer(self._idle.pop(), deadline_s, words)
        connect_s = min(deadline_s, time.monotonic() + self._timeout_s)
        return self._answer(Connection(self._server, connect_s, MAX_FILE_BYTES + 1), deadline_s, words)

    def _answer(self, connection: Connection, deadline_s: float, words: tuple[bytes, ...]) -> Any:
        answer = connection.ask(deadline_s, *words)
        self._idle.append(connection)
        return answer


class Connection:
    """One connection.

    Args:
        server: The server to connect to.
        deadline_s: Deadline for connecting, on the clock `time.monotonic`.
        limit_bytes: Largest size of an answer.

    Raises:
        OSError: The server was not reached in time, or refused the credentials.
    """

    def __init__(self, server: Server, deadline_s: float, limit_bytes: int) -> None:
        self._deadline_s, self._limit_bytes, self._data = deadline_s, limit_bytes, bytearray()
        self._socket = self._connected(server)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if server.is_encrypted:
            import ssl

            self._socket.settimeout(self._left())
            context = ssl.create_default_context()
            self._socket = context.wrap_socket(self._socket, server_hostname=server.host)
        try:
            if server.password:
                self.ask(deadline_s, b"AUTH", *filter(None, (server.user.encode(), server.password.encode())))
            if server.database:
                self.ask(deadline_s, b"SELECT", b"%d" % server.database)
        except RedisError as error:
            raise PermissionError(str(error)) from None

    def ask(self, deadline_s: float, *words: bytes) -> Any:
        """Send a command and return its answer. The connection is closed unless the answer arrived as a whole.

        Raises:
            RedisError: The server answered with an error, or too much.
            OSError: It did not answer in time, or not completely, or cannot be used at all.
        """
        self._deadline_s, self._left_bytes, is_answered = deadline_s, self._limit_bytes, False
        try:
            self._socket.settimeout(self._left())
            length = b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
            self._socket.sendall(b"*%d\r\n%b" % (len(words), length))
            answer = self._read()
            is_answered = not self._data
            return answer
        finally:
            if not is_answered:
                self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):  # the constructor got as far as connecting
            self._socket.close()

    def _connected(self, server: Server) -> socket.socket:
        """Connect to one of the host's addresses; all attempts together share one deadline."""
        host: Any = server.host.encode() if server.host.isascii() else server.host  # a str costs 3 ms: the idna codec
        failed = OSError("it has no address")
        for *_, address in _addresses(host, server.port, self._left()):
            place: Any = str(address[0]).encode(), address[1]
            try:
                return socket.create_connection(place, self._left())
            except OSError as error:
                failed = error
        raise failed

    def _read(self) -> Any:
        while b"\r\n" not in self._data:
            if len(self._data) > _LINE_BYTES:
                raise ConnectionError(_NO_REDIS)
            self._receive()
        line = bytes(self._data[: self._data.index(b"\r\n")])
        del self._data[: len(line) + 2]
        kind, text = line[:1], line[1:]
        if kind == b"-":
            raise _refusal(text)
        if kind in (b"+", b":"):
            return text
        if kind not in (b"$", b"*") or not text.removeprefix(b"-").isdigit():
            raise ConnectionError(_NO_REDIS)
        size = int(text)
        if size < 0:
            return None
        self._left_bytes -= size if kind == b"$" else size * _ITEM_BYTES
        if self._left_bytes < 0:
            raise RedisError(f"an answer of {size} bytes is above the limit of {self._limit_bytes}")
        return self._string(size) if kind == b"$" else [self._read() for _ in range(size)]

    def _string(self, size: int) -> bytes:
        while len(self._data) < size + 2:
            self._receive()
        if self._data[size : size + 2] != b"\r\n":
            raise ConnectionError("the answer has another length than it declares")
        data = bytes(memoryview(self._data)[:size])
        del self._data[: size + 2]
        return data

    def _receive(self) -> None:
        self._socket.settimeout(self._left())
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise ConnectionResetError("the server closed the connection within its answer")
        self._data += data

    def _left(self) -> float:
        left = self._deadline_s - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer within the time limit")
        return left


def _refusal(line: bytes) -> Exception:
    """Make the error for an error of the server, without any text of it."""
    code = str(line.partition(b" ")[0], "latin-1")
    kind = PermissionError if code in _UNUSABLE else RedisError
    return kind(f"{code}: {_CODES[code]}" if code in _CODES else "it answers with an error that is not known")


def _addresses(host: Any, port: int, wait_s: float) -> list[Any]:
    """Look up the addresses of a host within a time; a resolver that gets no answer would take half a minute."""
    with suppress(socket.gaierror):  # the host is a name, not an address
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    return within(
        wait_s, lambda: socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM), "no name server answered in time"
    )
