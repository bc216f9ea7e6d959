"""Compile with any libnvrtc."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from numba_kcache.launch import native

PROGRAM_NAME = "/nowhere/kernel.cu"
"""The source's path, in a folder that does not exist: no header can be found beside it."""


class Search(NamedTuple):
    """The search of one compile.

    Args:
        folders: Folders in the order of `-I`.
        has_siblings: Whether quoted names are first looked for beside the including file.
        forced: Names given to `-include`, in order.
        memory: In-memory headers by name.
        definitions: Macros given with `-D`.
        working_folder: The working directory of the compile; "" for that of the test.
        source_base: The index of the folder that the source's name has, -1 for a name without folder; None for a folder
            that does not exist.
    """

    folders: tuple[str, ...]
    has_siblings: bool = True
    forced: tuple[str, ...] = ()
    memory: Mapping[str, str] = {}
    definitions: tuple[tuple[str, str | None], ...] = ()
    working_folder: str = ""
    source_base: int | None = None


class Compiled(NamedTuple):
    """Result of one compile; `code` is None if it failed."""

    code: bytes | None
    log: str


@functools.cache
def library_path() -> str:
    """The libnvrtc that is installed beside the CUDA bindings."""
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return str(load_nvidia_dynamic_lib("nvrtc").abs_path)


def flags_of(search: Search) -> list[str]:
    """The flags that make NVRTC search as `search` says."""
    flags = [f"-I{folder}" for folder in search.folders]
    flags += [f"--pre-include={name}" for name in search.forced]
    flags += [f"-D{name}" if text is None else f"-D{name}={text}" for name, text in search.definitions]
    return flags if search.has_siblings else [*flags, "--no-source-include"]


def compile_source(source: str, search: Search, *, library: str = "", options: Iterable[str] = ()) -> Compiled:
    """Compile for sm_90."""
    with contextlib.chdir(search.working_folder or "."):
        nvrtc = _loaded(library or library_path())
        return Compiled(*_run(nvrtc, source, search, [*flags_of(search), *options, "-arch=sm_90"]))


def observe_source(
    source: str, search: Search, *, library: str = "", meanwhile: Callable[[], object] | None = None
) -> tuple[Compiled, list[Any]]:
    """Compile for sm_90, and return what the observer saw; `meanwhile` is called before the compile."""
    path = library or library_path()
    address = ctypes.cast(_loaded(path).nvrtcVersion, ctypes.c_void_p).value
    assert address is not None
    refused = native.observe(address)
    assert refused == "", refused
    with contextlib.chdir(search.working_folder or "."):
        native.watch(False)
        try:
            if meanwhile is not None:
                meanwhile()
            compiled = compile_source(source, search, library=path)
        finally:
            events = native.unwatch()
    return compiled, events


@functools.cache
def _loaded(library: str) -> ctypes.CDLL:
    for builtins in Path(library).parent.glob("libnvrtc-builtins.so*"):
        ctypes.CDLL(str(builtins))  # found by its name later, without LD_LIBRARY_PATH
    return ctypes.CDLL(library)


def _run(nvrtc: ctypes.CDLL, source: str, search: Search, words: list[str]) -> tuple[bytes | None, str]:
    program = ctypes.c_void_p()
    base = search.source_base
    program_name = (
        PROGRAM_NAME if base is None else os.path.join(search.folders[base] if base >= 0 else "", "kernel.cu")
    )
    names = [os.fsencode(name) for name in search.memory]
    texts = [text.encode() for text in search.memory.values()]
    program_text = source.encode("utf-8", "surrogateescape")
    strings = ctypes.c_char_p * len(names)
    status = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), program_text, os.fsencode(program_name), len(names), strings(*texts), strings(*names)
    )
    assert status == 0
    flags = (ctypes.c_char_p * len(words))(*map(os.fsencode, words))
    status = nvrtc.nvrtcCompileProgram(program, len(words), flags)
    log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0")
    code = _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program) if status == 0 else None
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return code, log.decode("utf-8", "replace")


def _fetch(size_of: Callable[..., int], get: Callable[..., int], program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    assert size_of(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value + 1)
    assert get(program, buffer) == 0
    return buffer.raw[: size.value]
