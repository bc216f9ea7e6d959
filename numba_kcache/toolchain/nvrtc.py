"""Run NVRTC once: compile a source with flags to code, lowered names and a log.

Promise     Always `--no-cache` (otherwise NVRTC calls cuInit and keeps a hidden cache, which falsifies measured
            compile times) and `--modify-stack-limit=false` (otherwise it changes the limit of the host process).
            Works without a driver. A refused source is a result, not an exception.
Method      ctypes calls the functions of the library that the bindings call, or would call: importing them brings the
            driver's, too, whose enumerations take as long as a small compile.
Not here    The flags of an option (frontends.source) and the file that a line of the log is about (diagnostics).
Source      NVRTC User Guide, "Supported Compile Options" and "Basic Usage".
"""

from __future__ import annotations

import _ctypes
import ctypes
import functools
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any

from ..errors import CompileError, KCacheError
from ..model import NamedTuple
from ..model.text import encoded
from ..waiting import imported
from .loaded import called_handle, loaded_library

_UNUSED_S = 24 * 3600
"""Age from which an extraction removes an incomplete folder of headers, and that of another build."""

_ALWAYS = ("--modify-stack-limit=false", "--no-cache")
"""The last is unknown to NVRTC before 12.9, which has no cache."""


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
    text, program = encoded(source), c_void_p()
    edit = getattr(_thread, "edit", None)
    _call("CreateProgram", byref(program), edit(text) if edit else text, encoded(program_name), 0, None, None)
    try:
        for expression in expressions:
            _call("AddNameExpression", program, expression.encode())
        words = [encoded(flag) for flag in (*flags, *_ALWAYS[: 2 if nvrtc_version() >= (12, 9) else 1])]
        loaded_library("nvrtc-builtins")  # maps those that this NVRTC is to get
        status = function("CompileProgram")(program, len(words), (c_char_p * len(words))(*words))
        log = fetch("ProgramLog", program).rstrip(b"\0").decode("utf-8", "replace").rstrip()
        if status:
            if status not in _SOURCE_FAULTS:
                raise CompileError("cannot compile", f"NVRTC returned {name_of(status)}", "see .log", log)
            return NvrtcResult(False, log or name_of(status))
        code = {kind: fetch(kind.upper(), program) for kind in outputs}
        if (made := getattr(_thread, "made", None)) is not None:
            made.append(code)
        return NvrtcResult(True, log, code, {each: _lowered_name(program, each) for each in expressions})
    finally:
        function("DestroyProgram")(byref(program))


_SOURCE_FAULTS = (5, 6, 9, 10)
"""INVALID_OPTION, COMPILATION, NO_NAME_EXPRESSIONS..., NAME_EXPRESSION_NOT_VALID: faults of the request."""


def extract_headers(parent: str, build: str) -> list[str]:
    """Extract the headers that NVRTC 13.3 and later hold, and list the folders to search; empty if there are none.

    They lack `cuda.h` and `cuda_runtime.h` among others. A folder has its name, of the builtins' build, only once it is
    complete: NVRTC's own marker does not notice edited files, and its lock is waited for without limit.

    Args:
        parent: The folder for them.
        build: The build of NVRTC's builtins.
    """
    import shutil
    from tempfile import mkdtemp

    whole = os.path.join(parent, build.rpartition(":")[2][:32])
    if not os.path.isdir(whole):
        for each in os.listdir(parent):  # what killed processes left, and the headers of other builds
            path, doomed = os.path.join(parent, each), os.path.join(parent, f"new-{each}")
            with suppress(OSError):
                is_ours = each.startswith("new-") or re.fullmatch("[0-9a-f]{32}", each)
                if is_ours and time.time() - os.lstat(path).st_mtime > _UNUSED_S:
                    os.rename(path, doomed)  # no process may find a part of them under their name
                    shutil.rmtree(doomed)
        private = mkdtemp(prefix="new-", dir=parent)
        try:
            if not function("InstallBundledHeaders")(encoded(private), 2, None):  # 2: do not wait for its lock
                os.rename(private, whole)
        except (KCacheError, OSError):  # no NVRTC, an older one, a full disk, or another process was first
            pass
        finally:
            shutil.rmtree(private, ignore_errors=True)
    return [os.path.join(whole, "cccl"), whole] if os.path.isdir(whole) else []


def supported_targets() -> tuple[int, ...]:
    """The compute capabilities that this NVRTC compiles for, as numbers: 90 for 9.0.

    Raises:
        ToolchainMissingError: NVRTC or its bindings are not installed.
    """
    return _targets_of(called_handle("nvrtc"))


@functools.cache
def _targets_of(_handle: int) -> tuple[int, ...]:
    count = c_int()
    _call("GetNumSupportedArchs", byref(count))
    numbers = (c_int * count.value)()
    _call("GetSupportedArchs", numbers)
    return tuple(numbers)


def nvrtc_version() -> tuple[int, int]:
    """Major and minor version of NVRTC, which determine its features but not its build."""
    major, minor = c_int(), c_int()
    _call("Version", byref(major), byref(minor))
    return major.value, minor.value


def fetch(what: str, program: c_void_p) -> bytes:
    """Fetch a product of the program, or its log, with NVRTC's two functions for it."""
    size = c_size_t()
    _call(f"Get{what}Size", program, byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    _call(f"Get{what}", program, buffer)
    return buffer.raw


def _lowered_name(program: c_void_p, expression: str) -> str:
    found = c_char_p()
    _call("GetLoweredName", program, expression.encode(), byref(found))
    return (found.value or b"").decode()


def name_of(status: int) -> str:
    """The name of a nvrtcResult, as in the bindings."""
    found: bytes = function("GetErrorString", c_char_p)(status)
    return found.decode()


def _call(name: str, *arguments: Any) -> None:
    status = function(name)(*arguments)
    if status:
        raise CompileError("cannot compile", f"NVRTC returned {name_of(status)}")


def function(name: str, returns: Any = c_int) -> Any:
    """A function of NVRTC, which is loaded as the bindings do.

    Raises:
        ToolchainMissingError: NVRTC is not installed, or is too old to have the function.
    """
    try:
        if not called_handle("nvrtc"):
            imported("cuda.bindings.nvrtc").nvrtcVersion()
        return _function_of(called_handle("nvrtc"), f"nvrtc{name}", returns)
    except (ImportError, RuntimeError, OSError) as error:
        from .locating import missing

        raise missing("compile CUDA C++", "NVRTC") from error


@functools.cache
def _function_of(handle: int, name: str, returns: Any) -> Any:
    return ctypes.CFUNCTYPE(returns)(_ctypes.dlsym(handle, name))
