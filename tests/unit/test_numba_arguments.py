"""The parameters of Numba kernels: sizes against real cubins, values against Numba's own launch code."""

from __future__ import annotations

import ctypes
import enum
import struct
from collections import namedtuple
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from numba import cuda, from_dtype, types
from numba.cuda.dispatcher import _Kernel
from numba.cuda.typing.typeof import typeof

from numba_kcache.errors import ArgumentError
from numba_kcache.frontends.numba.arguments import OtherTypes, codes_of, lay_out, slot_of
from numba_kcache.frontends.numba.llvm import NUMBA, NumbaDefinition
from numba_kcache.launch import struct_format
from numba_kcache.model import Parameter, Target
from tests.support.compiling import compile_numba

NOT_A_NUMBER = np.frombuffer(b"\x01\x7e", np.float16)[0]  # its payload is none that a conversion would give
VALUES: dict[str, Any] = {
    "int": 5,
    "negative": -3,
    "int8": np.int8(-1),
    "uint16": np.uint16(65535),
    "uint64": np.uint64(2**64 - 1),
    "bool": True,
    "numpy bool": np.bool_(False),
    "float": 2.5,
    "float32": np.float32(1.5),
    "float16": np.float16(0.5),
    "float16 NaN": NOT_A_NUMBER,
    "complex": 1 + 2j,
    "complex64": np.complex64(3 - 4j),
}


def words_of(kind: Any, value: Any) -> bytes:
    """List the words that a launch packs for one argument."""
    sizes, offset, places = sizes_of(kind), 0, []
    for size in sizes:
        places.append(Parameter(offset, size, "?"))
        offset += size
    return struct.pack(struct_format(laid_out((kind,), places)), *slot_of(NUMBA, kind).settle(value, None))


def laid_out(kinds: Any, found: Any) -> Any:
    return lay_out("kernel", [code for each in kinds for code in codes_of(NUMBA, each)], found)


def sizes_of(kind: Any) -> list[int]:
    """Bytes of each parameter of Numba's, which are the ones of the cubin (below)."""
    if isinstance(kind, types.Array):
        return [8] * (5 + 2 * kind.ndim)
    return [kind.bitwidth // 16] * 2 if isinstance(kind, types.Complex) else [getattr(kind, "bitwidth", 8) // 8]


@pytest.mark.parametrize("what", VALUES)
def test_values_are_those_of_numbas_own_launch(what: str) -> None:
    """Byte for byte what `_prepare_args` hands to the driver."""
    value = VALUES[what]
    kind = typeof(value)
    own: list[Any] = []
    _Kernel._prepare_args(SimpleNamespace(extensions=[]), kind, value, 0, [], own)

    assert words_of(kind, value) == b"".join(
        bytes(each) if isinstance(each, ctypes._SimpleCData) else bytes([int(each)]) for each in own
    )


def test_layout_is_that_of_the_cubin() -> None:
    """Sizes and order of every kind of argument agree with what Numba compiled."""
    kinds = (
        types.Array(types.float32, 2, "C"), types.boolean, types.int8, types.float64, types.complex64, types.uint16,
        types.float16, types.complex128, types.Array(types.int32, 1, "A"), types.Array(types.int8, 0, "C"), types.int8,
    )  # fmt: skip
    names = ", ".join(f"a{number}" for number in range(len(kinds)))
    space: dict[str, Any] = {}
    exec(f"def kernel({names}):\n    pass\n", space)
    entry = compile_numba(cuda.jit(space["kernel"]), kinds, Target(8, 0)).artifact.kernels[0]

    parameters = laid_out(kinds, entry.parameters)

    assert struct.calcsize(struct_format(parameters)) == entry.parameters[-1].offset + entry.parameters[-1].size
    assert [each.offset for each in parameters] == [each.offset for each in entry.parameters]
    assert [size for kind in kinds for size in sizes_of(kind)] == [each.size for each in entry.parameters]


def test_cubin_of_another_signature_is_refused() -> None:
    """A stored kernel for int8 must not be launched on int64: Numba's cache does, after a race."""
    found = (Parameter(0, 1, "?"),)
    assert laid_out((types.int8,), found)[0].code == "i1"

    with pytest.raises(ArgumentError, match="of other sizes"):
        laid_out((types.int64,), found)
    with pytest.raises(ArgumentError, match="of other sizes"):
        laid_out((types.int8, types.int8), found)


def test_array_of_jax_is_typed_without_its_export() -> None:
    """numba-cuda 0.30.4 exports it to the stream -1, which JAX 0.11 refuses; it must not be written."""

    class JaxArray:
        dtype, ndim, shape = np.dtype("f4"), 2, (3, 4)
        __cuda_array_interface__: ClassVar[dict[str, Any]] = {
            "shape": (3, 4),
            "typestr": "<f4",
            "data": (4096, True),
            "version": 2,
        }

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, *, stream: int) -> object:
            raise RuntimeError(f"CUDA_ERROR_INVALID_HANDLE: {stream}")

    JaxArray.__module__ = "jaxlib._jax"

    assert tuple(NumbaDefinition(lambda x: None, {}).types_of([JaxArray()])) == (
        types.Array(types.float32, 2, "C", readonly=True),
    )


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, np.int32(1), True, 1.0], ids=repr)
def test_value_of_another_class_is_handed_on(value: Any) -> None:
    """A kernel for int64 takes ints of 64 bits: Numba types a larger one otherwise, and compiles for each class."""
    with pytest.raises(OtherTypes):
        slot_of(NUMBA, types.int64).settle(value, None)


def test_what_is_not_common_is_left_to_numba() -> None:
    """Numba's own launch code handles records, tuples, enums, dates and pointers, and refuses invalid arguments."""
    member = enum.IntEnum("Mode", {"FAST": 1}).FAST
    record = from_dtype(np.dtype([("a", np.int32)]))
    left = (
        record, typeof((1, 2.0)), typeof(namedtuple("Point", "x y")(1, 2)), typeof(member), types.NPDatetime("s"),
        types.NPTimedelta("s"), types.CPointer(types.int8), types.unicode_type, types.literal(3),
    )  # fmt: skip

    assert codes_of(NUMBA, types.Array(record, 1, "C"))
    for each in left:
        with pytest.raises(KeyError):
            codes_of(NUMBA, each)
