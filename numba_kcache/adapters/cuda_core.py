"""`ProgramCache`: a program cache of cuda.core over this store, for `program.compile("cubin", cache=ProgramCache())`.

Promise     The interface of cuda.core's `ProgramCacheResource`: bytes or code under a key, KeyError for a missing one,
            the last writer wins. Stored bytes are verified; a failure to store is reported, and the program still gets
            its code. Code of another build of NVRTC or nvJitLink is a miss; cuda.core's own key has only a version.
Method      An entry is made by `get_or_build`: its components are cuda.core's key and the compilers of this process. A
            miss is counted when the code is stored, with the time since the look-up. From the first of them on, what
            NVRTC asks the file system on a thread is recorded: each code is stored under all that was asked since its
            own look-up. Code that is set again, or in another cache, keeps the headers under which this process stored
            or found it; if they are not known, it is not stored.
Not here    The contents of cuda.core's key.
Source      cuda-core 1.2, `cuda.core.utils.ProgramCacheResource`: the abstract methods, the types of keys and values.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine import Session, checked_cache, process_session
from ..engine.built import ALONE, Wanted
from ..errors import ToolchainMissingError
from ..headers import HeadersRead
from ..headers.lookup import headers_of
from ..headers.observer import Event, Mark, begin_observing, unobservable
from ..headers.record import read_elsewhere
from ..headers.roots import HeaderSearch
from ..toolchain import load_compilers
from ..toolchain.loaded import mapped_handle

_LABEL = "cuda.core program"
_LIBRARIES = ("nvrtc", "nvJitLink")
MISSED_LIMIT = 256
_ROWS_LIMIT = 1024
_MADE_BY_NVRTC = b"\x7fELF\x02", b"//\n//", b"\xedCN\x7f"
"""The beginnings of a cubin, of PTX and of LTO-IR."""

_rows: dict[tuple[bytes, int], Mapping[str, Any]] = {}
"""The headers of programs that this process stored or found, by their keys and the hashes of their code."""


class Programs:
    """A program cache of cuda.core that keeps its code in a `KernelCache`, among its other entries.

    Args:
        cache: A `KernelCache`; None for the process's.

    Raises:
        OptionError: `cache` is not a KernelCache.
    """

    def __init__(self, cache: Any = None) -> None:
        self._cache = checked_cache(cache)
        self._missed: dict[bytes, tuple[float, int, Mark | None]] = {}

    def __getitem__(self, key: bytes | str) -> bytes:
        """The code of a key.

        Raises:
            KeyError: No code is stored under the key.
            FrozenCacheError: No code is stored under the key, and the mode forbids to compile.
        """
        name = _key_bytes(key)
        found = self._wanted(name).find()
        if found is None:
            self._begin(name)
            raise KeyError(key)
        built, row = found
        code = built.payloads[ALONE]
        _keep_row(name, code, row)
        return code

    def __setitem__(self, key: bytes | str, value: Any) -> None:
        """Store code under a key: bytes, or an `ObjectCode`; if that holds a path, the file is read."""
        name, code = _key_bytes(key), _code_bytes(value)
        seconds, since_ns, events = self._end(name)
        headers = self._read(name, code, since_ns, events)
        if not headers.untracked:
            _keep_row(name, code, headers.row)
        label = f"{_LABEL} {getattr(value, 'name', '')}".strip()
        meta = {"resource": _LABEL, "code_type": str(getattr(value, "code_type", ""))}
        self._wanted(name, label[:1024]).keep(code, meta=meta, seconds=seconds, headers=headers)

    def __delitem__(self, key: bytes | str) -> None:
        """Remove the code of a key from this machine; tiers keep it.

        Raises:
            KeyError: No code is stored under the key.
        """
        if not self._wanted(_key_bytes(key)).remove():
            raise KeyError(key)

    def _begin(self, name: bytes) -> None:
        """Remember a look-up that failed, and record what NVRTC asks on this thread until the code is stored."""
        forgotten = [name] if name in self._missed else [*self._missed][: len(self._missed) + 1 - MISSED_LIMIT]
        for each in forgotten:
            self._end(each)
        unobservable()
        self._missed[name] = time.perf_counter(), time.time_ns(), begin_observing()

    def _end(self, name: bytes) -> tuple[float, int, list[Event] | None]:
        """How long ago a key was looked up, when, and what NVRTC asked since on this thread; None if not known."""
        began_s, since_ns, mark = self._missed.pop(name, (time.perf_counter(), 0, None))
        return time.perf_counter() - began_s, since_ns, mark and mark.end()

    def _read(self, name: bytes, code: bytes, since_ns: int, events: list[Event] | None) -> HeadersRead:
        """The headers of a program: those that NVRTC read on this thread since its look-up, or those known of it."""
        row = None if events else _rows.get((name, hash(code)))
        if row is not None:
            return headers_of(row)
        if events is None and code.startswith(_MADE_BY_NVRTC):
            return HeadersRead(
                untracked="its headers are not known: look its key up before it is compiled, on the same thread"
            )
        if not mapped_handle("nvrtc"):
            return HeadersRead()  # nobody compiled it here
        return read_elsewhere(events or (), _search(), self._session().toolchain, since_ns)

    def __len__(self) -> int:
        """Number of stored programs, of all compilers."""
        return len(self._keys())

    def clear(self) -> None:
        """Remove every program; other entries of the cache, such as kernels, stay."""
        session = self._session()
        for key in self._keys():
            session.remove(key)

    def _keys(self) -> list[str]:
        entries = ((each.key, each.attributes.get("meta")) for each in self._session().local.entries())
        return [key for key, meta in entries if isinstance(meta, dict) and meta.get("resource") == _LABEL]

    def _session(self) -> Session:
        return process_session() if self._cache is None else self._cache.session

    def _wanted(self, key: bytes, label: str = _LABEL) -> Wanted:
        session = self._session()
        # cuda.core has decided whether it calls nvJitLink before it makes a key that depends on it
        calls_linker = getattr(sys.modules.get("cuda.core._linker"), "_use_nvjitlink_backend", True)
        load_compilers(each for each in _LIBRARIES[: 1 + bool(calls_linker)] if mapped_handle(each))
        builds = session.toolchain.identify(_LIBRARIES, ())
        compilers = ", ".join(f"{name} {build}" for name, build in builds[0].items()) if builds else ""
        return Wanted(session, {"compilers": compilers, _LABEL: key}, label, _search())


def _keep_row(name: bytes, code: bytes, row: Mapping[str, Any]) -> None:
    if len(_rows) >= _ROWS_LIMIT:
        _rows.clear()
    _rows[name, hash(code)] = row


def _search() -> HeaderSearch:
    """Where NVRTC searches for headers that no option names: in the working directory."""
    return HeaderSearch((), (), is_working=True)


def _key_bytes(key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode()
    if isinstance(key, (bytes, bytearray)):
        return bytes(key)
    raise TypeError(f"cannot use {key!r:.80} as the key of a program: it is neither bytes nor text")


def _code_bytes(value: Any) -> bytes:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    from cuda.core import ObjectCode

    if not isinstance(value, ObjectCode):
        raise TypeError(f"cannot store a {type(value).__name__} as a program: it is not bytes-like or ObjectCode")
    code = value.code
    if not isinstance(code, str):
        return bytes(code)
    try:
        return Path(code).read_bytes()
    except FileNotFoundError as error:
        raise FileNotFoundError(
            error.errno, "cannot store a path-backed ObjectCode as a program: its file is gone", code
        ) from None


@functools.cache
def program_cache() -> type[Programs]:
    """Make the class, whose base class is imported from cuda.core.

    Raises:
        ToolchainMissingError: cuda.core is not installed, or too old.
    """
    try:
        from cuda.core.utils import ProgramCacheResource
    except ImportError as error:
        hint = "pip install 'cuda-core>=1.2'"
        raise ToolchainMissingError(
            "cannot make a ProgramCache", f"cuda.core has no program cache: {error}", hint
        ) from None
    fields = {"__doc__": Programs.__doc__, "__module__": __package__, "__qualname__": "ProgramCache"}
    return type("ProgramCache", (Programs, ProgramCacheResource), fields)
