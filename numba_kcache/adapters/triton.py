"""Triton's kernels in this cache: `TRITON_CACHE_MANAGER=numba_kcache.adapters.triton:CacheManager`.

Promise     A group (the files of one Triton kernel: metadata, cubin, PTX, IR) is returned complete, as it was put, or
            not at all. Of the processes that miss it at once, one compiles. A stored group is checked against Triton's
            own key, and its cubin against target and kernel, before Triton gets a path. Host code is never read from or
            written to the store, a tier or a bundle: Triton keeps it in its own folder.
Method      Triton compiles between `get_group` and `put_group` (turn). After a failed compile it drops the manager,
            whose finalizer ends the turn. Any failure of the cache is one event, and Triton compiles.
            Triton reads files by path: copies in its own folder, where PyTorch's launcher looks for the cubins, too.
Not here    Triton's keys: they cover source, options, target, environment and Triton's own files.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import re
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..engine import process_session
from ..engine.built import Built, Wanted
from ..model import trouble
from ..model.cubin import read_cubin
from ..model.json_values import fits, read_json
from .turn import Turn, find_or_begin, without_trouble

_HOST_SUFFIX = re.compile(r"\.(so(\.\d+)*|o|a)$")
_DEVICE_MACHINES = (190, 224)  # EM_CUDA, EM_AMDGPU
_HOST_MAGIC = (b"!<arch>\n", b"#!")


class CacheManager:
    """The files of one kernel or module, with the interface of Triton's cache managers.

    Args:
        key: Triton's key of the files.
        override: The user overrides compiled files: Triton's own manager is made instead.
        dump: The user dumps compiled files: Triton's own manager is made instead.
    """

    def __new__(cls, key: str, override: bool = False, dump: bool = False) -> Any:
        return _tritons_own(key, override=override, dump=dump) if override or dump else super().__new__(cls)

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self.key = key
        self._contents: dict[str, bytes] = {}
        self._turn: Turn | None = None

    def has_file(self, filename: str) -> bool:
        """Check whether there is a file of this name."""
        return self.get_file(filename) is not None

    def get_file(self, filename: str) -> str | None:
        """Find a file in Triton's own folder; None if there is none."""
        path: str | None = _tritons_own(self.key).get_file(filename)
        return path

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Keep a file in Triton's own folder and return its path; it is stored only if it is in a group put later."""
        content = bytes(data) if isinstance(data, (bytes, bytearray, memoryview)) else str(data).encode()
        self._contents[filename] = content
        return self._written(filename, content)

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Find a group by the name of its metadata: name and path of each file; None if it has to be compiled.

        Raises:
            FrozenCacheError: The group is not stored, and the mode is frozen.
        """
        session, label = process_session(), f"triton:{filename.removesuffix('.json')}"
        components = {"compiler": "triton", "key": self.key, "group": filename}
        with without_trouble(session, "look for", label):
            mismatch = functools.partial(_mismatch, self.key, filename)
            name = threading.get_ident(), self.key, filename
            found = find_or_begin(Wanted(session, components, label), mismatch, name, sys._getframe(1))
            if isinstance(found, Built):
                return {name: self._written(name, content) for name, content in found.payloads.items()}
            self._turn = found
        return None

    def put_group(self, filename: str, group: Mapping[str, str]) -> str:
        """Store the files that were put as a group; return the path of its metadata."""
        turn, self._turn = self._turn, None
        payloads = {name: self._contents[name] for name in group if name in self._contents}
        if turn is not None:
            why = f"only {len(payloads)} of its {len(group)} files were put" if len(payloads) != len(group) else ""
            why = why or _mismatch(self.key, filename, payloads)
            if why:
                process_session().events.emit(trouble("triton", f"cannot store {filename} of {self.key}: {why}"))
            turn.finish(None if why else payloads)
        return group.get(filename, "")

    def _written(self, name: str, content: bytes) -> str:
        """The path of a file in Triton's own folder, which is written unless it is there with this content."""
        own = _tritons_own(self.key)
        path: str = own.get_file(name) or ""
        with contextlib.suppress(OSError):
            if path and Path(path).read_bytes() == content:
                return path
        return str(own.put(content, name))


def _tritons_own(key: str, **options: bool) -> Any:
    from triton.runtime.cache import FileCacheManager

    return FileCacheManager(key, **options)


def _is_host_code(name: str, data: bytes) -> bool:
    """Check whether a file is machine code or a script for the host, by its name or by its bytes."""
    if data[:4] == b"\x7fELF":
        return int.from_bytes(data[18:20], "little" if data[5:6] != b"\2" else "big") not in _DEVICE_MACHINES
    return data.startswith(_HOST_MAGIC) or _HOST_SUFFIX.search(name) is not None


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
            if _is_host_code(name, data):
                return f"its file {name} is code for the host"
            if name.startswith("__grp__"):  # Triton's own manager would follow its paths
                return f"its file {name} lists files"
            if name.endswith(".cubin"):
                cubin = read_cubin(data)
                if cubin.sm != metadata["target"].get("arch"):
                    return f"its cubin is for sm_{cubin.sm}"
                if metadata["name"] not in [each.symbol for each in cubin.kernels]:
                    return f"its cubin has no kernel {metadata['name']}"
    except (KeyError, ValueError) as error:
        return f"it cannot be read: {error}"
    return ""
