"""Triton's kernels in this cache: `TRITON_CACHE_MANAGER=numba_kcache.adapters.triton:CacheManager`.

Promise     A group (the files of one Triton kernel: metadata, cubin, PTX, IR) is returned complete, as it was put, or
            not at all. Of the processes that miss it at once, one compiles. A stored group is checked against Triton's
            own key, and its cubin against target and kernel, before Triton gets a path. Host code is never read from or
            written to a tier or a bundle: it is kept on the machine that built it.
Method      Triton compiles between `get_group` and `put_group` (turn). After a failed compile it drops the manager,
            whose finalizer ends the turn. Any failure of the cache is one event, and Triton compiles.
            Triton reads files by path. These are copies in a folder of this process, below a folder that only this user
            can use; another process removes the copies after this one has ended (host_files).
Not here    Triton's keys: they cover source, options, target, environment and Triton's own files.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import sys
import threading
from collections.abc import Mapping
from typing import Any

from ..engine import process_session
from ..engine.built import Built
from ..model import trouble
from ..model.cubin import read_cubin
from ..model.json_values import fits, read_json
from . import host_files
from .turn import Turn, find_or_begin, without_trouble


class CacheManager:
    """The files of one kernel or module, with the interface of Triton's cache managers.

    Args:
        key: Triton's key of the files.
        override: The user overrides compiled files: left to Triton's own manager.
        dump: The user dumps compiled files: left to Triton's own manager.
    """

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key = key
        self._tritons_own: Any = None
        self._files: dict[str, bytes] = {}
        self._turn: Turn | None = None
        self._is_group, self._folder = False, ""
        if override or dump:
            from triton.runtime.cache import FileCacheManager

            self._tritons_own = FileCacheManager(key, override=override, dump=dump)

    def has_file(self, filename: str) -> bool:
        """Check whether there is a file of this name."""
        return self.get_file(filename) is not None

    def get_file(self, filename: str) -> str | None:
        """Find a file that was put by itself on this machine, or by this manager; None if there is none."""
        if self._tritons_own is not None:
            path: str | None = self._tritons_own.get_file(filename)
            return path
        if filename in self._files:
            return self._copy(filename, self._files[filename])
        return host_files.kept(self.key, filename)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Keep a file on this machine and return its path; it is stored only if it is in a group put later."""
        if self._tritons_own is not None:
            path: str = self._tritons_own.put(data, filename, binary=binary)
            return path
        content = bytes(data) if isinstance(data, (bytes, bytearray, memoryview)) else str(data).encode()
        if not self._is_group:
            return host_files.keep(self.key, filename, content)
        self._files[filename] = content
        return self._copy(filename, content)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Find a group by the name of its metadata: name and path of each file; None if it has to be compiled.

        Raises:
            FrozenCacheError: The group is not stored, and the mode is frozen.
        """
        if self._tritons_own is not None:
            group: dict[str, str] | None = self._tritons_own.get_group(filename)
            return group
        self._is_group = True
        payloads = self._find(filename, sys._getframe(1))
        if payloads is None:
            return None
        self._files.update(payloads)
        return {name: self._copy(name, data) for name, data in payloads.items()}

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Store the files that were put as a group; return the path of its metadata."""
        if self._tritons_own is not None:
            path: str = self._tritons_own.put_group(filename, group)
            return path
        turn, self._turn = self._turn, None
        payloads = {name: self._files[name] for name in group if name in self._files}
        if turn is not None:
            why = f"only {len(payloads)} of its {len(group)} files were put" if len(payloads) != len(group) else ""
            why = why or _mismatch(self.key, filename, payloads)
            if why:
                process_session().events.emit(trouble("triton", f"cannot store {filename} of {self.key}: {why}"))
            turn.finish(None if why else payloads)
        return group.get(filename, "")

    def _copy(self, filename: str, content: bytes) -> str:
        self._folder = self._folder or host_files.new_folder()
        return host_files.write_copy(self._folder, filename, content)

    def _find(self, filename: str, caller: Any) -> dict[str, bytes] | None:
        session, label = process_session(), f"triton:{filename.removesuffix('.json')}"
        components = {"compiler": "triton", "key": self.key, "group": filename}
        with without_trouble(session, "look for", label):
            mismatch = functools.partial(_mismatch, self.key, filename)
            name = threading.get_ident(), self.key, filename
            found = find_or_begin(session, components, label, mismatch, name, caller)
            if isinstance(found, Built):
                return dict(found.payloads)
            self._turn = found
        return None


def _mismatch(key: str, filename: str, payloads: Mapping[str, bytes]) -> str:
    """Say why a stored group cannot be the one for Triton's key; "" if it can."""
    try:
        metadata = read_json(payloads[filename])
        if not fits(metadata, {"hash": str, "name": str, "target": {"backend": str}}):
            return "its metadata lacks the hash, name or target"
        with contextlib.suppress(ValueError):
            if key == base64.b32encode(bytes.fromhex(metadata["hash"])).decode().rstrip("="):
                key = metadata["hash"]
        if key != metadata["hash"]:
            return "its metadata has another key"
        for name, data in payloads.items():
            if host_files.is_host_code(name, data):
                return f"its file {name} is code for the host"
            if name.endswith(".cubin"):
                cubin = read_cubin(data)
                if cubin.sm != metadata["target"].get("arch"):
                    return f"its cubin is for sm_{cubin.sm}"
                if metadata["name"] not in [each.symbol for each in cubin.kernels]:
                    return f"its cubin has no kernel {metadata['name']}"
    except (KeyError, ValueError) as error:
        return f"it cannot be read: {error}"
    return ""
