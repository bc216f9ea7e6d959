"""Kernels whose compile does something to its process."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from numba_kcache.engine.session import Session, process_session
from numba_kcache.frontends.base import Definition
from numba_kcache.kernel import Kernel
from numba_kcache.model.target import Target


class _Undefined(Definition):
    """Names a kernel, and makes nothing."""

    def __init__(self, label: str) -> None:
        super().__init__(None, {"arch": "sm_90"})
        self.kind, self.label, self.name = "doomed", label, label


class Doomed(Kernel):
    """A kernel that is never stored.

    Args:
        how: `"killed"`; `"slow"`: writes its process id into `file` and takes a minute; `"raises"` what cannot pickle;
            `"unlike"`: has another key in each process.
        file: For `"slow"`, and for `"unlike"` to write the process that compiled.
    """

    def __init__(self, how: str, file: str = "") -> None:
        super().__init__(_Undefined(how))
        self._how, self._file = how, file

    def __reduce__(self) -> Any:
        return Doomed, (self._how, self._file)

    def _to_send(self) -> Any:
        return self

    def _variants(self, signature: Any) -> list[None]:
        return [None]

    def _resolver(self) -> Session:
        return process_session()

    def _is_stored(self, target: Target, types: Any) -> bool:
        return False

    def key(self, arch: Any = None) -> str:
        return f"{self._how} {os.getpid() if self._how == 'unlike' else ''}"

    def compile(self, arch: Any = None) -> None:
        if self._how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._how == "raises":
            raise Unpicklable(3)
        if self._file:
            part = Path(self._file).with_suffix(f".{os.getpid()}")
            part.write_text(str(os.getpid()))
            part.rename(self._file)
        if self._how == "slow":
            time.sleep(60)


class Unpicklable(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, number: int) -> None:
        super().__init__(f"number {number}", object)
        self.more = lambda: None
