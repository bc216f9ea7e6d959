"""Start a real Redis server for a test, and a proxy before it that fails as networks do."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from .programs import program

MISSING = (
    "no redis-server: apt-get install redis-server"
    if shutil.which("redis-server") is None
    else "no redis-py: pip install --group test"
    if find_spec("redis") is None
    else ""
)

needs_redis = pytest.mark.skipif(bool(MISSING), reason=MISSING)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A server on loopback that saves nothing to disk.

    Args:
        directory: Its working directory.
        options: Further words of the command line.
    """

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.port, self._directory, self._options = free_port(), directory, options
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start the server, and return when it accepts connections."""
        words = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]
        self._process = subprocess.Popen(
            [program("redis-server"), *words, "--dir", str(self._directory), *self._options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if "Ready to accept connections" in line:
                threading.Thread(target=self._process.stdout.read, daemon=True).start()
                return
        raise RuntimeError("the server did not start")

    def signal(self, number: int) -> None:
        """Send the server a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End the server by SIGKILL."""
        self._process.kill()
        self._process.wait()

    def told(self, *words: object) -> object:
        """Send one command by redis-py; return the server's answer."""
        import redis

        with contextlib.closing(redis.Redis(port=self.port, protocol=2)) as client:
            return client.execute_command(*words)

    def keys(self) -> list[str]:
        """All keys in the server."""
        return sorted(key.decode() for key in self.told("KEYS", "*"))  # type: ignore[attr-defined]


@contextlib.contextmanager
def redis_server(directory: Path, *options: str) -> Iterator[RedisServer]:
    """Run a server inside the context."""
    server = RedisServer(directory, *options)
    try:
        yield server
    finally:
        server.kill()


class FaultProxy:
    """Passes bytes between its own port and a server's, with faults.

    Attributes:
        fault: Maps the bytes of an answer to those that are passed on; None closes the connection.
        pieces_s: Seconds after each byte of an answer; None to pass answers on at once.
        is_silent: Whether new connections are accepted and then ignored.
        connections: Number of accepted connections.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.fault: Callable[[bytes], bytes | None] = lambda data: data
        self.pieces_s: float | None = None
        self.is_silent = False
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def close(self) -> None:
        for each in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                self._open.append(client)
                if self.is_silent:
                    continue
                server = socket.create_connection(("127.0.0.1", self._server_port))
                self._open.append(server)
                for work in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._pass, args=work, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                passed = self.fault(data) if is_answer else data
                if passed is None:
                    break
                if is_answer and self.pieces_s is not None:
                    for at in range(len(passed)):
                        target.sendall(passed[at : at + 1])
                        time.sleep(self.pieces_s)  # a slow network; no test waits for this thread
                else:
                    target.sendall(passed)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def fault_proxy(port: int) -> Iterator[FaultProxy]:
    """Run a proxy inside the context."""
    proxy = FaultProxy(port)
    try:
        yield proxy
    finally:
        proxy.close()
