"""The driver's functions through ctypes, used where the compiled module (`native.pyi`) is not built."""

from __future__ import annotations

import ctypes
import functools
from typing import Any


def address_of(buffer: bytes | bytearray) -> int:
    """Address of the bytes of a buffer, which must not be resized or freed."""
    kind = ctypes.c_char * len(buffer)
    if isinstance(buffer, bytearray):
        return ctypes.addressof(kind.from_buffer(buffer))
    return int(ctypes.cast(ctypes.c_char_p(buffer), ctypes.c_void_p).value or 0)


def function(name: str, pattern: str) -> tuple[Any, int] | None:
    """Make a function that calls a driver function, by its pattern (`devices._PATTERNS`); returns it and the address.

    None if the driver lacks the function or is missing.
    """
    found = getattr(_library(), name, None)
    if found is None:
        return None
    found.argtypes = [ctypes.c_void_p] * len(pattern)
    address = ctypes.cast(found, ctypes.c_void_p).value or 0
    if not pattern.strip("i"):
        return lambda *given: (found(*given),), address
    kinds: dict[str, Any] = {"n": ctypes.c_int, "x": ctypes.c_int, "w": ctypes.c_uint64, "t": ctypes.c_char_p}
    out_kinds = [kinds.get(letter) for letter in pattern]

    def call(*given: Any) -> tuple[Any, ...]:
        rest, outs, passed = iter(given), [], []
        for letter, kind in zip(pattern, out_kinds):  # noqa: B905
            if kind is None:
                passed.append(next(rest))
                continue
            outs.append(kind(next(rest)) if letter == "x" else kind())
            passed.append(ctypes.addressof(outs[-1]))
        status = found(*passed)
        return status, *[
            out.value.decode() if type(out) is ctypes.c_char_p and out.value else out.value for out in outs
        ]

    return call, address


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
