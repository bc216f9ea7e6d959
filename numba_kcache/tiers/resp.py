"""A small client for Redis' protocol, bounded in time and memory.

Promise     `Connection.ask` ends at its deadline, however slowly the server answers, and takes no more memory than its
            limit, whatever length the server claims. After any failure the connection is closed, so that no answer is
            taken for that of another request. Errors name no user and no password.
Method      One request, one answer, over a socket whose timeout is the time left.
Not here    Following a cluster's redirections, and listing keys (both in tiers.redis).
Source      RESP2, the protocol of Redis and Valkey unless the client requests another. redis-py takes 150 to 200 ms of
            CPU to import, forty times what a warm first launch may lose to a tier. It also bounds neither the size nor
            the time of a whole answer: its timeout restarts with every packet.
"""

from __future__ import annotations

import socket
import threading
import time
from typing import Any
from urllib.parse import unquote, urlsplit

from ..model import NamedTuple

_REPLY_BYTES = 1 << 16
_LINE_BYTES = 1 << 10
_NO_REDIS = "the answer is not in the protocol of Redis"


class RedisError(ValueError):
    """The server answered with an error."""


class Redirection(RedisError):
    """Another node of a cluster has the key: permanently (MOVED), or for this request while it moves (ASK)."""

    def __init__(self, line: str) -> None:
        super().__init__(f"the cluster redirects: {line}")
        kind, self.slot, self.address = (*line.split(" "), "", "")[:3]
        self.is_lasting = kind == "MOVED"

    def server(self, asked: Server) -> Server:
        """The node that the redirection names, with the credentials used for `asked`."""
        host, _, port = self.address.rpartition(":")
        if not (port.isdigit() and self.slot.isdigit()):
            raise ConnectionError(_NO_REDIS)
        return asked._replace(host=host.strip("[]") or asked.host, port=int(port))


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
        self._deadline_s, self._limit_bytes = deadline_s, limit_bytes
        self._socket = self._connected(server)
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if server.is_encrypted:
                import ssl

                self._socket.settimeout(self._left())
                context = ssl.create_default_context()
                self._socket = context.wrap_socket(self._socket, server_hostname=server.host)
            self._log_in(server)
        except BaseException:
            self.close()
            raise

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

    def _log_in(self, server: Server) -> None:
        greeting: list[tuple[bytes, ...]] = []
        if server.password:
            greeting.append((b"AUTH", *filter(None, (server.user.encode(), server.password.encode()))))
        if server.database:
            greeting.append((b"SELECT", b"%d" % server.database))
        for words in greeting:
            try:
                self._exchange(words)
            except RedisError as error:
                raise PermissionError(str(error)) from None

    def ask(self, deadline_s: float, *words: bytes) -> bytes | None:
        """Send a command whose answer is a string, a number or nil, and return the answer.

        Raises:
            Redirection: Another node has the key.
            RedisError: The server answered with an error, or with a value of another type.
            OSError: It did not answer in time, or not completely.
        """
        self._deadline_s = deadline_s
        try:
            return self._exchange(words)
        except Redirection:
            raise  # a complete answer: the connection stays open
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        """Check whether another command may be sent."""
        return self._socket.fileno() >= 0

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def __del__(self) -> None:
        if hasattr(self, "_socket"):  # the constructor got as far as connecting
            self._socket.close()

    def _exchange(self, words: tuple[bytes, ...]) -> bytes | None:
        self._socket.settimeout(self._left())
        self._socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(each), each) for each in words))
        data = b""
        while b"\r\n" not in data:
            if len(data) > _LINE_BYTES:
                raise ConnectionError(_NO_REDIS)
            data += self._receive(_REPLY_BYTES)
        line, _, rest = data.partition(b"\r\n")
        kind, text = line[:1], line[1:].decode("latin-1")
        if kind == b"-":
            if text.startswith(("NOAUTH", "WRONGPASS", "NOPERM", "LOADING", "MASTERDOWN", "CLUSTERDOWN")):
                raise PermissionError(text)
            raise Redirection(text) if text.startswith(("MOVED ", "ASK ")) else RedisError(text)
        if kind in (b"+", b":"):
            return line[1:]
        if kind != b"$" or not text.removeprefix("-").isdecimal():
            raise ConnectionError(_NO_REDIS)
        return None if int(text) < 0 else self._answer(bytearray(rest), int(text))

    def _answer(self, data: bytearray, size: int) -> bytes:
        """Receive the rest of a string of `size` bytes, of which `data` has arrived."""
        if size > self._limit_bytes:
            raise RedisError(f"an answer of {size} bytes is above the limit of {self._limit_bytes}")
        while len(data) < size + 2:
            data += self._receive(max(_REPLY_BYTES, min(size + 2 - len(data), 1 << 20)))
        if data[size:] != b"\r\n":
            raise ConnectionError("the answer has another length than it declares")
        return bytes(memoryview(data)[:size])

    def _receive(self, most: int) -> bytes:
        self._socket.settimeout(self._left())
        data = self._socket.recv(most)
        if not data:
            raise ConnectionResetError("the server closed the connection within its answer")
        return data

    def _left(self) -> float:
        left = self._deadline_s - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer within the time limit")
        return left


def _addresses(host: Any, port: int, wait_s: float) -> list[Any]:
    """Look up the addresses of a host within a time; a resolver that gets no answer would take half a minute."""
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # the host is a name, not an address
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM))
        except OSError as error:
            answer.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(wait_s)
    if not answer:
        raise TimeoutError("no name server answered in time")
    if isinstance(answer[0], OSError):
        raise answer[0]
    found: list[Any] = answer[0]
    return found
