"""The parameters of Numba kernels: sizes against real cubins, values against Numba's own launch code."""

from __future__ import annotations

import ctypes
import enum
import struct
from collections import namedtuple
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda, from_dtype, types
from numba.cuda.dispatcher import _Kernel
from numba.cuda.np import numpy_support
from numba.cuda.typing.typeof import typeof

from numba_kcache.errors import ArgumentError
from numba_kcache.frontends.numba.abi import flatten, lay_out
from numba_kcache.frontends.numba.compile import compile_numba
from numba_kcache.launch.arguments import struct_format
from numba_kcache.model.parameter import Parameter
from numba_kcache.model.target import Target


class Mode(enum.IntEnum):
    FAST = 1
    SLOW = 70000


Point = namedtuple("Point", "x y")
RECORD = np.dtype([("a", np.int32), ("b", np.float64)], align=True)
VALUES: dict[str, Any] = {
    "int": 5,
    "negative": -3,
    "int8": np.int8(-1),
    "uint16": np.uint16(65535),
    "uint64": np.uint64(2**64 - 1),
    "bool": True,
    "float": 2.5,
    "float32": np.float32(1.5),
    "float16": np.float16(0.5),
    "complex": 1 + 2j,
    "complex64": np.complex64(3 - 4j),
    "datetime64": np.datetime64("2026-01-01", "ns"),
    "timedelta64": np.timedelta64(-7, "s"),
    "enum member": Mode.SLOW,
    "tuple": (1, 2.0, np.int8(3)),
    "nested tuple": ((1, np.float32(2)), (np.complex64(1j),)),
    "named tuple": Point(np.int16(1), 2.0),
}


@pytest.mark.parametrize("what", VALUES)
def test_values_are_those_of_numbas_own_launch(what: str) -> None:
    """Word for word what `_prepare_args` hands to the driver."""
    value = VALUES[what]
    kind = typeof(value)
    own: list[Any] = []
    _Kernel._prepare_args(SimpleNamespace(extensions=[], _prepare_args=prepare), kind, value, 0, [], own)
    argument = flatten((kind,))[0]

    ours = struct.pack("=" + argument.letters, *argument.spread(value))

    assert ours == b"".join(bytes(each) if isinstance(each, ctypes._SimpleCData) else bytes([each]) for each in own)


def prepare(kind: Any, value: Any, stream: Any, back: list[Any], words: list[Any]) -> None:
    _Kernel._prepare_args(SimpleNamespace(extensions=[], _prepare_args=prepare), kind, value, stream, back, words)


ARRAYS = [np.zeros((2, 3), np.float32), np.zeros((4, 6), np.int16)[::2, ::3], np.zeros((2, 3), order="F"), np.zeros(0),
          np.zeros(())]  # fmt: skip


@pytest.mark.parametrize("array", ARRAYS, ids=lambda each: f"{each.shape}{each.strides}")
def test_array_is_seven_or_more_words(array: np.ndarray[Any, Any]) -> None:
    """Two zeros, items, item size, address, shape, strides in bytes; strides are filled in where they are implied."""
    argument = flatten((typeof(array),))[0]
    strides = None if array.flags.c_contiguous else array.strides
    memory = SimpleNamespace(address=4096, item_bytes=array.itemsize, shape=array.shape, strides=strides)

    words = struct.unpack("=" + argument.letters, struct.pack("=" + argument.letters, *argument.spread(memory)))

    assert argument.kind == "array"
    implied = numpy_support.strides_from_shape(
        shape=array.shape, itemsize=array.itemsize, c_contiguous=True, f_contiguous=False
    )
    assert words == (0, 0, array.size, array.itemsize, 4096, *array.shape, *(strides or implied))


def test_layout_is_that_of_the_cubin() -> None:
    """Sizes and order of every kind of argument agree with what Numba compiled."""
    kinds = (
        types.Array(types.float32, 2, "C"), types.boolean, types.int8, types.float64, types.complex64, types.uint16,
        typeof(VALUES["nested tuple"]), typeof(VALUES["named tuple"]), types.float16, types.complex128,
        from_dtype(RECORD), typeof(Mode.FAST), types.NPDatetime("s"), types.Array(types.int32, 1, "A"), types.int8,
    )  # fmt: skip
    names = ", ".join(f"a{number}" for number in range(len(kinds)))
    space: dict[str, Any] = {}
    exec(f"def kernel({names}):\n    pass\n", space)
    entry = compile_numba(cuda.jit(space["kernel"]), kinds, Target(8, 0)).artifact.entries[0]

    arguments = flatten(kinds)
    parameters = lay_out("kernel", arguments, entry.parameters)

    assert struct.calcsize(struct_format(parameters)) == entry.parameters[-1].offset + entry.parameters[-1].size
    assert [each.offset for each in parameters] == [each.offset for each in entry.parameters]


def test_cubin_of_another_signature_is_refused() -> None:
    """A stored kernel for int8 must not be launched on int64: Numba's cache does, after a race."""
    found = (Parameter(0, 1, "?"),)
    assert lay_out("kernel", flatten((types.int8,)), found)[0].code == "i1"

    with pytest.raises(ArgumentError, match="of other sizes"):
        lay_out("kernel", flatten((types.int64,)), found)
    with pytest.raises(ArgumentError, match="of other sizes"):
        lay_out("kernel", flatten((types.int8, types.int8)), found)


def test_what_numba_cannot_launch_raises_as_numba_does() -> None:
    """A type without a row in the table."""
    with pytest.raises(NotImplementedError):
        flatten((types.unicode_type,))
