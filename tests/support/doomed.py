"""Kernels whose compile kills its process, blocks, or fails in unusual ways."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from typing import Any

from numba_kcache.frontends import Definition, Kernel
from numba_kcache.model import Target

_open_until_exit: list[socket.socket] = []


class _Undefined(Definition):
    """A definition that only names a kernel and makes no requests."""

    def __init__(self, label: str) -> None:
        self.thing, self.options = None, {"arch": "sm_90"}
        self.kind, self.label, self.name = "doomed", label, label


class Doomed(Kernel):
    """A kernel that is never stored.

    Args:
        how: `"killed"`: the compile kills its process. `"held"`: it connects to `port`, sends "begun ", waits for a
            byte, and sends "done"; the connection stays open until the process ends. `"raises"`: it raises
            `Unpicklable`. `"unlike"`: the key is another one in each process.
        file: A file to which the compile writes the id of its process; "" for none.
        port: For `"held"`: the port of loopback on which the test listens.
    """

    def __init__(self, how: str, file: str = "", port: int = 0) -> None:
        super().__init__(_Undefined(how))
        self._how, self._file, self._port = how, file, port

    def __reduce__(self) -> Any:
        return Doomed, (self._how, self._file, self._port)

    def _to_send(self) -> Any:
        return self

    def _variants(self, signature: Any) -> list[None]:
        return [None]

    def _count_if_stored(self, target: Target, types: Any) -> bool:
        return False

    def key(self, arch: Any = None) -> str:
        return f"{self._how} {os.getpid() if self._how == 'unlike' else ''}"

    def compile(self, arch: Any = None) -> None:
        if self._how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "raises":
            raise Unpicklable(3)
        if self._how == "held":
            held = socket.create_connection(("127.0.0.1", self._port))
            _open_until_exit.append(held)
            held.sendall(b"begun ")
            held.recv(1)
            held.sendall(b"done")
        if self._file:
            Path(self._file).write_text(str(os.getpid()))


class Unpicklable(Exception):
    """An exception that can be neither pickled nor rebuilt from its arguments."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}", object)
        self.more = lambda: None
