"""A Redis or Valkey server, or a cluster of them, as a tier.

Promise     A command ends within `timeout_s` of its start, one that writes within a second more for each MiB, and reads
            no answer above the limit into memory. Errors and reports hold neither user nor password. Only the builder
            whose token was claimed can renew and release a lease.
Method      A file is a string under `<prefix>:<format>:<kind>:<key>`, fetched in one round trip: GETRANGE has the
            server truncate what is too long. In a cluster the first request for each slot is redirected, and the slot's
            node is remembered. Only the listing of keys, for `push` and `pull`, uses redis-py: it knows the nodes.
Not here    When to ask, verification, and the protocol of leases (tiers.checked_tier, tiers.breaker, tiers.lease).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from ..errors import ToolchainMissingError
from ..model.tier_address import shown_place
from ..store.entry import ENTRY, FORMAT, MANIFEST, MAX_FILE_BYTES, require_key
from .resp import Connection, Redirection, RedisError, Server, server_of
from .trust import SIGNATURE

Result = TypeVar("Result")

TIMEOUT_S = 1.0
WAIT_S = 60.0
PREFIX = "numba_kcache"
LIMIT_BYTES = min(MAX_FILE_BYTES, 512 << 20)
"""Largest string in a server with the default configuration, in bytes."""

_HOPS = 4
"""Most nodes of a cluster that one operation asks."""

_LEAST_BYTES_PER_S = 1 << 20
"""Speed of the slowest connection over which large files can be written."""

_SLOTS = 16384
_LEASE = 0
_KINDS = {
    ENTRY: "entry",
    ENTRY + SIGNATURE: "entry.signature",
    MANIFEST: "manifest",
    MANIFEST + SIGNATURE: "manifest.signature",
    _LEASE: "lease",
}
_REPLACE_MANIFEST = """
if (redis.call('get', KEYS[1]) or '') ~= ARGV[1] then return 0 end
if ARGV[3] == '0' then redis.call('set', KEYS[1], ARGV[2]) else redis.call('set', KEYS[1], ARGV[2], 'EX', ARGV[3]) end
return 1"""
_REPLACE_LEASE = (
    "return redis.call('get', KEYS[1]) == ARGV[1] and redis.call('set', KEYS[1], ARGV[2], 'PX', ARGV[3]) or 0"
)


class RedisTier:
    """A server.

    Args:
        url: `redis://` or, with TLS, `rediss://`; may hold user and password.
        readonly: Whether writing is refused.
        ttl_s: Seconds after which entries expire; None: the server's own policy.
        timeout_s: Longest wait for one operation, in seconds.
        wait_s: Longest wait for a kernel that another node builds, in seconds.
        prefix: Prefix of the tier's keys on the server.
        limit_bytes: Largest size of an entry or manifest.
        is_trusted: Whether its files are trusted without signatures.

    Raises:
        ValueError: It is not such a URL; the message holds no secret.
    """

    is_remote = True

    def __init__(
        self,
        url: str,
        *,
        readonly: bool = False,
        ttl_s: int | None = None,
        timeout_s: float = TIMEOUT_S,
        wait_s: float = WAIT_S,
        prefix: str = PREFIX,
        limit_bytes: int = LIMIT_BYTES,
        is_trusted: bool = False,
    ) -> None:
        self.name, self.readonly, self.wait_s = shown_place(url), readonly, wait_s
        self.is_trusted = is_trusted
        self._url, self._server, self._ttl_s, self._timeout_s = url, server_of(url), ttl_s, timeout_s
        self._prefix, self._limit_bytes = f"{prefix}:{FORMAT}", limit_bytes
        self._idle: dict[Server, list[Connection]] = {}
        self._slots: dict[int, Server] = {}
        self._client: Any = None
        self._pid = os.getpid()

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file."""
        name = self._name(kind, key)
        data = self._ask(b"GETRANGE", name.encode(), b"0", b"%d" % self._limit_bytes)
        if data and len(data) > self._limit_bytes:
            raise RedisError(f"{name} is above the limit of {self._limit_bytes} bytes")
        return data or None

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Write an entry or a signature."""
        self._check_size(data)
        name = self._name(kind, key)
        expiry = () if self._ttl_s is None else (b"EX", b"%d" % self._ttl_s)
        self._ask(b"SET", name.encode(), data, *expiry)

    def put_manifest(self, family: str, data: bytes, before: bytes | None) -> bool:
        """Replace the manifest `before`, None for none; False if the server has another one by now."""
        self._check_size(data)
        return self._ran(
            _REPLACE_MANIFEST, self._name(MANIFEST, family), before or b"", data, b"%d" % (self._ttl_s or 0)
        )

    def keys(self, kind: int) -> Iterator[str]:
        """The keys of all entries or manifests, in no order."""
        from .tier import listed  # a warm start does not import it

        start = self._name(kind, "")
        pattern = _escaped(start) + "*"
        found = self._run(lambda client: listed(client.scan_iter(match=pattern, count=1000)))
        return (name[len(start) :].decode("latin-1") for name in found)

    # -- leases: the value of a name is the builder's token, or the outcome of its build ---------------------------

    def claim(self, name: str, token: str, lease_s: float) -> str:
        """Set `name` to `token` unless it has a value. Returns the value it has then; "" if that just expired."""
        lease = self._name(_LEASE, name).encode()
        if self._ask(b"SET", lease, token.encode(), b"NX", b"PX", b"%d" % _ms(lease_s)) is not None:
            return token
        return self.value_of(name)

    def value_of(self, name: str) -> str:
        """The value of `name`; "" for none."""
        return (self._ask(b"GET", self._name(_LEASE, name).encode()) or b"").decode("latin-1")

    def replace(self, name: str, before: str, after: str, kept_s: float) -> bool:
        """Set `name` to `after` for `kept_s` if its value is `before`. Returns True if that was so."""
        return self._ran(_REPLACE_LEASE, self._name(_LEASE, name), before.encode(), after.encode(), b"%d" % _ms(kept_s))

    def ready(self) -> None:
        """Import what a connection with TLS needs: once the interpreter shuts down, an import fails."""
        if self._server.is_encrypted:
            import ssl  # noqa: F401

    def close(self) -> None:
        """Close connections."""
        while self._idle:
            for connection in self._idle.popitem()[1]:
                connection.close()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # -- commands on one key -----------------------------------------------------------------------------------------

    def _ran(self, script: str, name: str, *arguments: bytes) -> bool:
        """Run a script on one key. Returns True if it replaced the value."""
        key = name.encode()
        return self._ask(b"EVAL", script.encode(), b"1", key, *arguments, key=key) not in (b"0", None)

    def _ask(self, *words: bytes, key: bytes = b"") -> bytes | None:
        """The answer to a command whose second word is a key, from the node of the cluster that holds it."""
        if self._pid != os.getpid():  # a child must not read its parent's answers
            self._idle, self._pid = {}, os.getpid()
        deadline_s = time.monotonic() + self._timeout_s + sum(map(len, words)) / _LEAST_BYTES_PER_S
        server, needs_asking = self._node(key or words[1]), False
        for _ in range(_HOPS):
            try:
                return self._answer(server, deadline_s, words, needs_asking)
            except Redirection as redirection:
                server, needs_asking = redirection.server(server), not redirection.is_lasting
                if redirection.is_lasting:
                    self._slots[int(redirection.slot)] = server
            except OSError:
                self._slots = {slot: node for slot, node in self._slots.items() if node != server}
                raise
        raise RedisError(f"the cluster redirected more than {_HOPS - 1} times")

    def _node(self, key: bytes) -> Server:
        if not self._slots:  # no cluster, or no redirection yet
            return self._server
        from binascii import crc_hqx

        return self._slots.get(crc_hqx(key, 0) % _SLOTS, self._server)

    def _answer(self, server: Server, deadline_s: float, words: tuple[bytes, ...], needs_asking: bool) -> bytes | None:
        idle = self._idle.setdefault(server, [])
        asked = ((b"ASKING",), words) if needs_asking else (words,)
        with suppress(IndexError, ConnectionError):  # no idle connection, or the server closed it
            return _last_answer(idle.pop(), idle, deadline_s, asked)
        connect_s = min(deadline_s, time.monotonic() + self._timeout_s)
        return _last_answer(Connection(server, connect_s, self._limit_bytes + 1), idle, deadline_s, asked)

    # -- listing -----------------------------------------------------------------------------------------------------

    def _check_size(self, data: bytes) -> None:
        if len(data) > self._limit_bytes:
            raise ValueError(f"{len(data)} bytes are above the limit of {self._limit_bytes}")

    def _run(self, work: Callable[[Any], Result]) -> Result:
        """Run `work` with redis-py, whose errors are raised as those of `tiers.resp`."""
        redis = _redis()
        try:
            client = self._client = self._client or self._connected()
            return work(client)
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.RedisClusterException) as error:
            self._client = None  # reconnect: perhaps the password was refused, or another node is master now
            raise ConnectionError(_first_line(error)) from None
        except redis.RedisError as error:
            raise RedisError(_first_line(error)) from None

    def _connected(self) -> Any:
        redis = _redis()
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        times = {"socket_timeout": self._timeout_s, "socket_connect_timeout": self._timeout_s}
        options: dict[str, Any] = {**times, "protocol": 2, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis.from_url(self._url, **options)
        with suppress(redis.ResponseError):  # the user may not call INFO: take the server for one without a cluster
            if client.info("cluster").get("cluster_enabled"):
                client.close()
                return redis.RedisCluster.from_url(self._url, **options)
        return client

    def _name(self, kind: int, key: str) -> str:
        return f"{self._prefix}:{_KINDS[kind]}:{require_key(key) if key else ''}"


def _last_answer(
    connection: Connection, idle: list[Connection], deadline_s: float, asked: Sequence[tuple[bytes, ...]]
) -> bytes | None:
    try:
        return [connection.ask(deadline_s, *words) for words in asked][-1]
    finally:
        if connection.is_open:
            idle.append(connection)


def _redis() -> Any:
    try:
        import redis
    except ImportError as error:
        raise ToolchainMissingError(
            "cannot list the files of a Redis server", str(error), "install numba-kcache[redis], which brings redis-py"
        ) from None
    return redis


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _escaped(pattern: str) -> str:
    return "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in pattern)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
