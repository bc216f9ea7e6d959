"""Parameters of made-up kernels: the compiler's layout against a model of the C ABI, and the bytes of a launch."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kcache import cached_kernel
from tests.support.launching import Kernel

SCALARS = {
    "bool": "?", "char": "i1", "signed char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2",
    "int": "i4", "unsigned": "u4", "long": "i8", "unsigned long": "u8", "long long": "i8", "unsigned long long": "u8",
    "float": "f4", "double": "f8", "char16_t": "u2", "char32_t": "u4", "wchar_t": "i4",
}  # fmt: skip
"""C++ types and how NumPy stores them."""

_VECTOR_SCALARS = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "long": "i8", "ulong": "u8",
    "longlong": "i8", "ulonglong": "u8", "float": "f4", "double": "f8",
}  # fmt: skip
_BANK_ALIGNMENT = 16
"""Where the parameters start in the constant bank: what is to be aligned further may stand behind a gap in front."""


class Type(NamedTuple):
    """A C++ type by the rules of the C ABI and of CUDA's vector types.

    Args:
        name: In C++.
        size: In bytes.
        alignment: In bytes.
        fields: (offset, type) of each member of a struct; of a vector or scalar none.
        dtype: How NumPy stores a scalar, or an element of a vector.
    """

    name: str
    size: int
    alignment: int
    fields: tuple[tuple[int, Type], ...] = ()
    dtype: str = ""


def scalar(name: str) -> Type:
    size = np.dtype(SCALARS[name]).itemsize
    return Type(name, size, size, (), SCALARS[name])


def vector(name: str) -> Type:
    """CUDA C++ Programming Guide, "Built-in Vector Types": aligned to two or four elements, to 16 bytes at most."""
    base, count = _VECTOR_SCALARS[name[:-1]], int(name[-1])
    size = np.dtype(base).itemsize
    alignment = min(16, size * (1 if count == 3 else count))
    return Type(name, size * count, alignment, (), base)


def struct(name: str, members: list[Type], alignas: int) -> Type:
    end, alignment, fields = 0, max(alignas, *(each.alignment for each in members)), []
    for each in members:
        end = -(-end // each.alignment) * each.alignment
        fields.append((end, each))
        end += each.size
    return Type(name, -(-end // alignment) * alignment, alignment, tuple(fields))


LEAVES = [*map(scalar, SCALARS), *(vector(f"{base}{n}") for base in _VECTOR_SCALARS for n in "1234")]


class Program(NamedTuple):
    """Definitions of structs, and the types of a kernel's parameters."""

    definitions: list[str]
    types: list[Type]


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Kernels whose parameters are scalars, vectors, pointers and structs of structs, some under `alignas`."""
    definitions, structs = list[str](), list[Type]()
    for number in range(draw(st.integers(1, 4))):
        members = draw(st.lists(st.sampled_from(LEAVES + structs * 8), min_size=1, max_size=5))
        strictest = max(each.alignment for each in members)
        alignas = draw(st.sampled_from([0, 0] + [each for each in (8, 16, 32, 64) if each >= strictest]))
        name = f"S{number}"
        body = " ".join(f"{each.name} m{index};" for index, each in enumerate(members))
        definitions.append(f"struct {f'alignas({alignas}) ' if alignas else ''}{name} {{ {body} }};")
        structs.append(struct(name, members, alignas))
    chosen = draw(st.lists(st.sampled_from([*LEAVES, *structs * 12]), min_size=1, max_size=12))
    return Program(definitions, chosen)


def written(kind: Type, values: st.DataObject) -> tuple[Any, bytes]:
    """An argument of this type, and the bytes that C++ would hold for it with zeros between members."""
    if not kind.fields:
        numbers = np.frombuffer(values.draw(st.binary(min_size=kind.size, max_size=kind.size)), "u1")
        if kind.dtype == "?":
            numbers = numbers & 1
        elements = np.frombuffer(numbers.tobytes(), kind.dtype)
        elements = np.where(np.isnan(elements), 0, elements).astype(kind.dtype) if kind.dtype[0] == "f" else elements
        is_vector = kind.name[-1] in "1234"
        return elements.copy() if is_vector else elements[0], elements.tobytes()
    held = bytearray(kind.size)
    for offset, each in kind.fields:
        held[offset : offset + each.size] = written(each, values)[1]
    wrap: Any = values.draw(st.sampled_from([bytes, _record, _structure]))
    return wrap(bytes(held)), bytes(held)


def _record(held: bytes) -> Any:
    return np.frombuffer(held, f"V{len(held)}")[0]


def _structure(held: bytes) -> Any:
    kind: Any = type("Struct", (ctypes.Structure,), {"_fields_": [("held", ctypes.c_char * len(held))]})
    return kind.from_buffer_copy(held)


@pytest.mark.slow
@settings(max_examples=25)
@given(programs(), st.data())
def test_launch_lays_parameters_out_as_the_compiler_does(program: Program, values: st.DataObject) -> None:
    """Offsets, sizes and bytes of every scalar, vector, nested struct and alignment, interpreted and compiled."""
    whole = struct("all", program.types, 0)
    declared = ", ".join(f"{each.name} p{index}" for index, each in enumerate(program.types))
    source = "\n".join([*program.definitions, f'extern "C" __global__ void k({declared}) {{}}'])
    kernel = cached_kernel(source, arch="sm_90")
    kernel.compile()

    places = [(offset, each.size) for offset, each in whole.fields]
    if whole.alignment <= _BANK_ALIGNMENT:
        assert [(each.offset, each.size) for each in kernel.params] == places, source
    assert [each.size for each in kernel.params] == [size for _, size in places], source
    assert all(one.offset + one.size <= other.offset for one, other in itertools.pairwise(kernel.params)), source
    codes = {each.code for each, kind in zip(kernel.params, program.types, strict=True) if not kind.fields}
    assert not codes & {"o", "?"}, kernel.params

    arguments, expected = zip(*(written(each, values) for each in program.types), strict=True)
    launcher = Kernel(kernel.params)
    for native in (False, True):
        assert launcher.bytes_of(*arguments, native=native) == list(expected), source


@settings(max_examples=1)
@given(st.data())
def test_every_scalar_and_vector_type_arrives_in_one_kernel(values: st.DataObject) -> None:
    """One kernel has all types, so that none depends on the random draw."""
    test_launch_lays_parameters_out_as_the_compiler_does.hypothesis.inner_test(  # type: ignore[attr-defined]
        Program([], LEAVES), values
    )
