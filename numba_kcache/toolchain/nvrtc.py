"""Run NVRTC once: compile a source with flags to code, lowered names and a log.

Promise     Always `--no-cache` (otherwise NVRTC calls cuInit and keeps a hidden cache, which falsifies measured
            compile times) and `--modify-stack-limit=false` (otherwise it changes the limit of the host process).
            Works without a driver. A refused source is a result, not an exception.
Method      Where the bindings are not imported, ctypes calls the functions of the mapped library: importing them brings
            the driver's, too, whose enumerations take as long as a small compile.
Not here    The flags of an option (frontends.source) and the file that a line of the log is about (diagnostics).
Source      NVRTC User Guide, "Supported Compile Options" and "Basic Usage".
"""

from __future__ import annotations

import _ctypes
import ctypes
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from ..errors import CompileError
from ..model import NamedTuple
from ..model.text import encoded
from ..waiting import imported
from .loaded import mapped_handle

_ABANDONED_S, _OTHERS_S = 3600, 24 * 3600
"""Ages from which an extraction removes an incomplete folder of headers, and that of another build."""

_ALWAYS = ("--no-cache", "--modify-stack-limit=false")


_thread = threading.local()


@contextmanager
def collected(edit: Callable[[bytes], bytes] | None = None) -> Iterator[list[Mapping[str, bytes]]]:
    """Collect the code of each source that this thread compiles.

    Args:
        edit: Edits the sources, for a compile whose code is only compared.
    """
    outer = getattr(_thread, "made", None), getattr(_thread, "edit", None)
    found = list[Mapping[str, bytes]]()
    _thread.made, _thread.edit = found, edit
    try:
        yield found
    finally:
        _thread.made, _thread.edit = outer


class NvrtcResult(NamedTuple):
    """A result of NVRTC: `code` by kind ("cubin", "ptx", "ltoir"), lowered names, the log. `ok` if it compiled."""

    ok: bool
    log: str
    code: Mapping[str, bytes] = {}
    lowered: Mapping[str, str] = {}


def run_nvrtc(
    source: str,
    program_name: str,
    flags: Sequence[str],
    outputs: Sequence[str],
    expressions: Sequence[str] = (),
) -> NvrtcResult:
    """Compile one program.

    Args:
        source: CUDA C++; bytes that are not UTF-8 as surrogate escapes (`decoded`).
        program_name: Its name in the log and in `__FILE__`.
        flags: NVRTC flags, in order; the two that are always given come on top.
        outputs: Which of "cubin", "ptx" and "ltoir" to fetch.
        expressions: Name expressions whose lowered names are wanted.

    Raises:
        ToolchainMissingError: NVRTC or its bindings are not installed.
        CompileError: NVRTC failed in a way that is not the source's fault; its status is named.
    """
    nvrtc, text = _bindings(), encoded(source)
    edit = getattr(_thread, "edit", None)
    program = _checked(nvrtc.nvrtcCreateProgram(edit(text) if edit else text, encoded(program_name), 0, None, None))
    try:
        for expression in expressions:
            _checked(nvrtc.nvrtcAddNameExpression(program, expression.encode()))
        words = [encoded(flag) for flag in (*flags, *_ALWAYS)]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
        log = fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        text_log = log.rstrip(b"\0").decode("utf-8", "replace").rstrip()
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            if status not in _SOURCE_FAULTS:
                raise CompileError("cannot compile", f"NVRTC returned {status.name}", "see .log", text_log)
            return NvrtcResult(False, text_log or status.name)
        code = {kind: fetch(*_getters(nvrtc, kind), program) for kind in outputs}
        if (made := getattr(_thread, "made", None)) is not None:
            made.append(code)
        names = {each: _checked(nvrtc.nvrtcGetLoweredName(program, each.encode())).decode() for each in expressions}
        return NvrtcResult(True, text_log, code, names)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


_SOURCE_FAULTS = (5, 6, 9, 10)
"""INVALID_OPTION, COMPILATION, NO_NAME_EXPRESSIONS..., NAME_EXPRESSION_NOT_VALID: faults of the request."""


def extract_headers(parent: str, build: str) -> list[str]:
    """Extract the headers that NVRTC 13.3 and later hold, and list the folders to search; empty if there are none.

    They lack `cuda.h` and `cuda_runtime.h` among others. A folder has its name, of its size and of the builtins' build,
    only once it is complete: NVRTC's own marker does not notice edited files, and its lock is waited for without limit.

    Args:
        parent: The folder for them.
        build: The build of NVRTC's builtins.
    """
    import shutil
    from tempfile import mkdtemp

    name = build.rpartition(":")[2][:32]
    found = [each for each in os.listdir(parent) if each.startswith(f"{name}-")]
    if not found:
        for each in os.listdir(parent):  # what killed processes left, and the headers of other builds
            path, is_whole = os.path.join(parent, each), each.rpartition("-")[2].isdigit()
            doomed = path if each.startswith("new-") else os.path.join(parent, f"new-{each}")
            with suppress(OSError):
                age_s = time.time() - os.lstat(path).st_mtime
                if age_s > (_ABANDONED_S if path == doomed else _OTHERS_S if is_whole else math.inf):
                    os.rename(path, doomed)  # no process may find a part of them under their name
                    shutil.rmtree(doomed)
        private = mkdtemp(prefix="new-", dir=parent)
        try:
            handle = mapped_handle("nvrtc")
            status = NvrtcCalls(handle).nvrtcInstallBundledHeaders(encoded(private)) if handle else 1
            sizes = [os.lstat(os.path.join(at, each)).st_blocks for at, _, files in os.walk(private) for each in files]
            if status == 0:
                os.rename(private, os.path.join(parent, f"{name}-{512 * sum(sizes)}"))
        except (AttributeError, OSError):  # an older NVRTC, a full disk, or another process was first
            pass
        finally:
            shutil.rmtree(private, ignore_errors=True)
        found = [each for each in os.listdir(parent) if each.startswith(f"{name}-")]
    return [os.path.join(parent, found[0], each).rstrip("/") for each in ("cccl", "")] if found else []


def supported_targets() -> tuple[int, ...]:
    """The compute capabilities that this NVRTC compiles for, as numbers: 90 for 9.0.

    Raises:
        ToolchainMissingError: NVRTC or its bindings are not installed.
    """
    return tuple(_checked(_bindings().nvrtcGetSupportedArchs()))


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of NVRTC, which determine its features but not its build."""
    _status, major, minor = _bindings().nvrtcVersion()
    return int(major), int(minor)


def _bindings() -> Any:
    """The bindings' module if it is imported, else the same functions of the mapped library by ctypes."""
    if "cuda.bindings.nvrtc" not in sys.modules and (handle := mapped_handle("nvrtc")):
        return NvrtcCalls(handle)
    try:
        nvrtc = imported("cuda.bindings.nvrtc")
        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError) as error:
        from .locating import missing

        raise missing("compile CUDA C++", "NVRTC") from error
    return nvrtc


def _getters(nvrtc: Any, kind: str) -> tuple[Any, Any]:
    return {
        "cubin": (nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN),
        "ptx": (nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX),
        "ltoir": (nvrtc.nvrtcGetLTOIRSize, nvrtc.nvrtcGetLTOIR),
    }[kind]


def fetch(size_of: Any, get: Any, program: Any) -> bytes:
    """Fetch a product of the program, or its log, with NVRTC's two functions for it."""
    size = int(_checked(size_of(program)))
    buffer = bytes(size + 1)  # NVRTC writes into it; never of one byte, since CPython shares those objects
    _checked(get(program, buffer))
    return buffer[:size]


def _checked(result: tuple[Any, ...]) -> Any:
    """The value of a bindings call, which returns (status, value) or (status,)."""
    if int(result[0]) != 0:
        raise CompileError("cannot compile", f"NVRTC returned {result[0].name}")
    return result[1] if len(result) > 1 else None


class Status(int):
    """A nvrtcResult, with its name as in the bindings."""

    name: str


class NvrtcCalls:
    """The functions that `toolchain.nvrtc` uses, under the names that they have in cuda.bindings.nvrtc.

    Args:
        handle: Handle of the library, as dlopen returns it; it stays open.
    """

    class nvrtcResult:
        NVRTC_SUCCESS = 0

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def _call(self, function: str, *arguments: Any, returns: Any = c_int) -> Any:
        try:
            address = _ctypes.dlsym(self._handle, function)
        except OSError as error:
            raise AttributeError(f"this NVRTC has no {function}") from error
        found = ctypes.CFUNCTYPE(returns)(address)(*arguments)
        if returns is not c_int:
            return found
        status = Status(found)
        status.name = "" if found == 0 else self._call("nvrtcGetErrorString", found, returns=c_char_p).decode()
        return status

    def nvrtcVersion(self) -> tuple[Status, int, int]:
        major, minor = c_int(), c_int()
        return self._call("nvrtcVersion", byref(major), byref(minor)), major.value, minor.value

    def nvrtcGetSupportedArchs(self) -> tuple[Status, list[int]]:
        count = c_int()
        status = self._call("nvrtcGetNumSupportedArchs", byref(count))
        numbers = (c_int * count.value)()
        return (status if status else self._call("nvrtcGetSupportedArchs", numbers)), list(numbers)

    def nvrtcCreateProgram(
        self, source: bytes, name: bytes, _count: int, _headers: None, _names: None
    ) -> tuple[Status, c_void_p]:
        program = c_void_p()
        return self._call("nvrtcCreateProgram", byref(program), source, name, 0, None, None), program

    def nvrtcDestroyProgram(self, program: c_void_p) -> tuple[Status]:
        return (self._call("nvrtcDestroyProgram", byref(program)),)

    def nvrtcAddNameExpression(self, program: c_void_p, expression: bytes) -> tuple[Status]:
        return (self._call("nvrtcAddNameExpression", program, expression),)

    def nvrtcCompileProgram(self, program: c_void_p, count: int, flags: Sequence[bytes]) -> tuple[Status]:
        return (self._call("nvrtcCompileProgram", program, count, (c_char_p * count)(*flags)),)

    def nvrtcGetLoweredName(self, program: c_void_p, expression: bytes) -> tuple[Status, bytes]:
        found = c_char_p()
        return self._call("nvrtcGetLoweredName", program, expression, byref(found)), found.value or b""

    def nvrtcInstallBundledHeaders(self, folder: bytes) -> Status:
        without_waiting = 2
        status: Status = self._call("nvrtcInstallBundledHeaders", folder, without_waiting, None)
        return status

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvrtcGet"):
            raise AttributeError(name)
        if name.endswith("Size"):

            def size(program: c_void_p) -> tuple[Status, int]:
                found = c_size_t()
                return self._call(name, program, byref(found)), found.value

            return size
        return lambda program, buffer: (self._call(name, program, buffer),)  # bytes, into which NVRTC writes
