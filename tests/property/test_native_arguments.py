"""Random arguments, right and wrong, given to the compiled module and to the interpreted path: one outcome."""

from __future__ import annotations

import ctypes
import math
import random
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from numba_kcache.errors import ArgumentError
from numba_kcache.model import CODE_SIZES, SCALAR_SIZES, Parameter
from tests.support.launching import CupyArray, Interface, Kernel, Numba, Tensor, fake_cupy, fake_torch

pytestmark = pytest.mark.slow

STEPS = 1500
ELSEWHERE = 8192
"""From here on memory is another device's, where there are several."""

CODES = [*SCALAR_SIZES, "v2f4", "v4i1", "o", "?", *[f"{star}{code}" for star in ("*", "*k") for code in
         ("f4", "i4", "u1", "f2", "bf", "c4", "?", "v2f4", "v4f4", "o")]]  # fmt: skip
DTYPES = ["f4", "f4", "f4", "i4", "u4", "u1", "f2", "f8", "c8", ">f4", "?", "V8"]
NUMBERS = [0, 1, -1, 2**7, 2**8 - 1, -(2**15), 2**16, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, 2**64 - 1]
REALS = [0.0, -0.0, 0.5, 1e-8, 6e-8, 2.0**-24, 65504.0, 65520.0, 3.4e38, 3.5e38, 1e39, 448.0, 464.0, 465.0, 57344.0,
         61440.0, math.inf, -math.inf, math.nan]  # fmt: skip


class Pair(ctypes.Structure):
    """A struct by value."""

    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_float))


def _number(dice: random.Random) -> Any:
    value: Any = dice.choice([*NUMBERS, *REALS, dice.uniform(-1000, 1000), dice.randrange(-(2**65), 2**65)])
    kinds = [None, None, None, bool, complex, "i1", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "c8", "c16"]
    kind: Any = dice.choice(kinds)
    try:
        with np.errstate(all="ignore"):
            return value if kind is None else kind(value) if callable(kind) else np.dtype(kind).type(value)
    except (OverflowError, ValueError, TypeError):
        return value


def _extents(dice: random.Random, item_bytes: int) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    shape = tuple(dice.choice([0, 1, 2, 3, 64]) for _ in range(dice.randrange(4)))
    packed, step = list[int](), item_bytes
    for extent in reversed(shape):
        packed.insert(0, step)
        step *= extent
    how = dice.randrange(4)
    strides = None if how == 0 else packed if how == 1 else packed[::-1] if how == 2 else [2 * each for each in packed]
    return shape, None if strides is None else tuple(strides)


def _interface(dice: random.Random) -> Any:
    dtype = np.dtype(dice.choice(DTYPES))
    shape, strides = _extents(dice, dtype.itemsize)
    more: dict[str, Any] = {"strides": strides, "readonly": dice.random() < 0.2}
    if dice.random() < 0.3:
        more["stream"] = dice.choice([None, 1, 2, 7])
    if dice.random() < 0.05:
        more["mask"] = dice.choice([None, object()])
    return Interface(dice.choice([4096, 4096, 4100, 4104, ELSEWHERE]), dtype, shape, **more)


def _value(dice: random.Random, numba: Numba) -> Any:
    address = 4096 + dice.choice([0, 0, 4, 16])
    makers: list[Callable[[], Any]] = [
        lambda: _number(dice),
        lambda: _number(dice),
        lambda: _interface(dice),
        lambda: CupyArray(address, dice.choice(["f4", "i4", "f2", "c8"]), contiguous=dice.random() < 0.7),
        lambda: Tensor(
            address, dice.choice(["float32", "bfloat16", "int32", "complex64"]),
            conj=dice.random() < 0.1, neg=dice.random() < 0.1, stride=dice.choice([None, None, (2,)]),
        ),
        lambda: numba.array(address, dice.choice(["f4", "f4", "i4", "u1"]), stream=dice.choice([0, 0, 0, 7])),
        lambda: dice.choice([None, ctypes.c_void_p(address), ctypes.c_void_p(ELSEWHERE), ctypes.c_void_p()]),
        lambda: dice.choice([np.uintp(address), np.uintp(ELSEWHERE), 4096, "x"]),
        lambda: dice.choice([Pair(7, 2.5), b"12345678", bytearray(b"1234"), memoryview(b"12345678")]),
        lambda: dice.choice([ctypes.c_int(5), (1, 2), [1.0, 2.0]]),
        lambda: dice.choice([np.zeros(1, [("a", "i4"), ("b", "f4")])[0], np.zeros(4, "f4"), np.float32(3).reshape(())]),
    ]  # fmt: skip
    return dice.choice(makers)()


def _parameters(dice: random.Random) -> tuple[Parameter, ...]:
    made, offset = [], 0
    for number in range(dice.randrange(1, 5)):
        code = dice.choice(CODES)
        size = 8 if code[0] == "*" else CODE_SIZES[code] or dice.choice([4, 8])
        offset = -(-offset // 16) * 16
        made.append(Parameter(offset, size, code, "", f"p{number}"))
        offset += size
    return tuple(made)


@pytest.mark.parametrize("seed", range(3))
def test_random_arguments_have_one_outcome(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The same bytes on the same stream and the same waits, or the same words; also once every type is recognised."""
    streams = {"handle": 0}, {"handle": 0}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(streams[0]))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(streams[1]))
    dice, numba, launched = random.Random(seed), Numba(), 0
    for step in range(STEPS // 3):
        parameters = _parameters(dice)
        handle, strided = dice.choice([None, None, 0, 7]), dice.random() < 0.2
        several = dice.random() < 0.2
        options: dict[str, Any] = {"stream": handle, "strided": strided, "context": numba.context}
        if several:
            options["device_of"] = lambda address: int(address >= ELSEWHERE)
        kernels = [Kernel(parameters, **options) for _ in range(2)]
        launches = [kernel.bind(native=native) for kernel, native in zip(kernels, (False, True), strict=True)]
        for _ in range(6):
            captured = {dice.choice([7, 9])} if dice.random() < 0.1 else set()
            arguments = [_value(dice, numba) for _ in parameters]
            for each in streams:
                each["handle"] = dice.choice([0, 0, 7, 9])
            for kernel in kernels:
                kernel.driver.capturing = captured
            found = [_outcome(kernel, launch, arguments) for kernel, launch in zip(kernels, launches, strict=True)]
            assert found[0] == found[1], (seed, step, parameters, arguments)
            launched += type(found[0][0]) is tuple
    assert launched > STEPS // 10


def _outcome(kernel: Kernel, launch: Any, arguments: list[Any]) -> tuple[Any, Any]:
    """Bytes that the driver got, or the words of the refusal; and the streams that were waited for."""
    kernel.driver.launches.clear()
    kernel.waits.clear()
    try:
        launch(*arguments)
    except ArgumentError as refused:
        return str(refused), list(kernel.waits)
    except (OverflowError, struct.error) as unworded:
        raise AssertionError(f"{unworded!r} for {arguments}") from unworded
    return kernel.driver.launches[-1], list(kernel.waits)
