"""A kernel that writes the bytes of its parameters to memory, and the expected bytes for each kind of parameter.

A case is a C++ type, an argument, and the bytes of that value in C++, made by NumPy or written out.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

PREAMBLE = r"""
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
struct Pair { char tag; double value; };
struct Nested { Pair pair; short counts[3]; float4 colour; };
struct alignas(64) Descriptor { unsigned char opaque[128]; };
enum Mode : int { first = 1, second = 2 };
"""


class Case(NamedTuple):
    """One case: a parameter of the kernel, and the argument for it.

    Args:
        c_type: The type in the kernel's declaration.
        argument: The value that the user passes.
        expected: The bytes that the kernel has to receive.
        padding: Offsets of bytes between members, which may have any value.
    """

    c_type: str
    argument: Any
    expected: bytes
    padding: tuple[int, ...] = ()


class Pair(ctypes.Structure):
    _fields_ = (("tag", ctypes.c_char), ("value", ctypes.c_double))


def _scalars() -> list[Case]:
    kinds = {
        "bool": "?", "char": "i1", "signed char": "i1", "short": "i2", "int": "i4", "long long": "i8", "long": "i8",
        "unsigned char": "u1", "unsigned short": "u2", "unsigned": "u4", "unsigned long long": "u8",
        "unsigned long": "u8", "char16_t": "u2", "char32_t": "u4", "wchar_t": "i4", "__half": "f2", "float": "f4",
        "double": "f8",
    }  # fmt: skip
    cases = []
    for c_type, kind in kinds.items():
        dtype = np.dtype(kind)
        for value in (1, 0) if kind == "?" else (3, np.iinfo(dtype).max if dtype.kind in "iu" else 0.1):
            plain = bool(value) if kind == "?" else value
            expected = dtype.type(value).tobytes()
            cases += [Case(c_type, plain, expected), Case(c_type, dtype.type(value), expected)]
    return [
        *cases,
        Case("int", -5, np.int32(-5).tobytes()),
        Case("Mode", np.int32(2), np.int32(2).tobytes()),
        Case("float", float("nan"), np.float32("nan").tobytes()),
        Case("float", ctypes.c_float(1.5), np.float32(1.5).tobytes()),
        Case("__nv_bfloat16", 1.5, (0x3FC0).to_bytes(2, "little")),
        Case("__nv_fp8_e4m3", -1.5, b"\xbc"),
        Case("__nv_fp8_e5m2", 1.5, b"\x3e"),
    ]


def _vectors() -> list[Case]:
    """Every built-in vector type, with a different number in each element."""
    bases = {
        "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "long": "i8",
        "ulong": "u8", "longlong": "i8", "ulonglong": "u8", "float": "f4", "double": "f8",
    }  # fmt: skip
    cases = []
    for base, kind in bases.items():
        for count in (1, 2, 3, 4):
            numbers = tuple(range(101, 101 + count))
            cases.append(Case(f"{base}{count}", numbers, np.array(numbers, kind).tobytes()))
    return cases


def _aggregates() -> list[Case]:
    nested = np.zeros((), np.dtype([("pair", Pair), ("counts", "i2", 3), ("colour", "f4", 4)], align=True))
    nested["pair"]["tag"], nested["pair"]["value"], nested["counts"] = b"x", 2.5, (1, 2, 3)
    aligned = nested.tobytes()[:22].ljust(32, b"\0") + np.float32([4, 5, 6, 7]).tobytes()  # float4 is aligned to 16
    pair = Pair(b"x", 2.5)
    return [
        *_vectors(),
        Case("float2", (1.0, 2), np.float32([1, 2]).tobytes()),
        Case("float3", (1.0, 2, 3), np.float32([1, 2, 3]).tobytes()),
        Case("float4", np.float32([1, 2, 3, 4]), np.float32([1, 2, 3, 4]).tobytes()),
        Case("float2", np.complex64(1 + 2j), np.float32([1, 2]).tobytes()),
        Case("int3", [1, 2, 3], np.int32([1, 2, 3]).tobytes()),
        Case("uchar4", (1, 2, 3, 255), b"\1\2\3\xff"),
        Case("double2", (0.1, 0.2), np.float64([0.1, 0.2]).tobytes()),
        Case("short1", (7,), np.int16(7).tobytes()),
        Case("Pair", pair, bytes(pair), (*range(1, 8),)),
        Case("Pair", bytes(pair), bytes(pair), (*range(1, 8),)),
        Case("Nested", aligned, aligned, (*range(1, 8), *range(22, 32))),
        Case("Descriptor", bytes(range(128)), bytes(range(128))),
    ]


def _pointers() -> list[Case]:
    return [
        Case("float *", None, bytes(8)),
        Case("const double *", ctypes.c_void_p(0x7F0000001000), (0x7F0000001000).to_bytes(8, "little")),
        Case("void *", np.uintp(64), (64).to_bytes(8, "little")),
    ]


CASES = [*_scalars(), *_aggregates(), *_pointers()]


def source(*cases: Case) -> str:
    """CUDA C++ of `echo`, which takes a parameter for each case and then writes all their bytes to `out`."""
    declared = "".join(f"{case.c_type} p{index}, " for index, case in enumerate(cases))
    copied = "".join(
        f"for (int i = 0; i < sizeof(p{index}); i++) *out++ = ((const unsigned char *)&p{index})[i];\n"
        for index, _ in enumerate(cases)
    )
    return f'{PREAMBLE}\nextern "C" __global__ void echo({declared}unsigned char *out) {{\n{copied}}}'
