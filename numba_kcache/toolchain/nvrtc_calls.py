"""Call the mapped NVRTC by ctypes with the interface of the CUDA bindings, if these are not imported.

Promise     The functions are those of the library in which the bindings would look first. They take and return the same
            as the bindings' own: a tuple of the status and the results. The GIL is released meanwhile.
Method      Importing cuda.bindings.nvrtc brings the driver's bindings too, whose enumerations take as long as a small
            compile. ctypes calls the dozen functions that are needed.
Source      NVRTC User Guide, "NVRTC - Runtime Compilation": prototypes.
"""

from __future__ import annotations

import _ctypes
import ctypes
from collections.abc import Sequence
from ctypes import byref, c_char_p, c_int, c_size_t, c_void_p
from typing import Any


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
