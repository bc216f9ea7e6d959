"""Parameter bytes against a model of the C ABI, and the two paths of a launch against each other."""

from __future__ import annotations

import ctypes
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kcache.errors import ArgumentError
from numba_kcache.launch.scalars import small_float_bits
from numba_kcache.model import CODE_SIZES, SCALAR_SIZES, Parameter
from tests.support.launching import Interface, Kernel, Numba

C_TYPES: dict[str, Any] = {
    "b1": ctypes.c_bool,
    "i1": ctypes.c_int8, "i2": ctypes.c_int16, "i4": ctypes.c_int32, "i8": ctypes.c_int64,
    "u1": ctypes.c_uint8, "u2": ctypes.c_uint16, "u4": ctypes.c_uint32, "u8": ctypes.c_uint64,
    "f4": ctypes.c_float, "f8": ctypes.c_double,
}  # fmt: skip
"""What C itself would store; the kinds that C has no word for are modelled with NumPy or by search."""

VECTORS = [f"v{count}{scalar}" for count in "1234" for scalar in SCALAR_SIZES]
POINTERS = [f"*{const}{each}" for const in ("", "k") for each in (*SCALAR_SIZES, *VECTORS, "o", "?")]
EXPONENT_AND_MANTISSA = {"bf": (8, 7), "e4": (4, 3), "e5": (5, 2)}

numba = Numba()


def decoded(bits: int, exponent_bits: int, mantissa_bits: int) -> Fraction:
    """The exact value of a finite positive small float, from the definition of the format."""
    exponent, mantissa = bits >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    significand = Fraction(mantissa, 1 << mantissa_bits) + (1 if exponent else 0)
    return significand * Fraction(2) ** (max(exponent, 1) - bias)


def nearest(value: float, code: str) -> int:
    """The bits of the nearest small float, ties to even, found by bisection over all of them."""
    exponent_bits, mantissa_bits = EXPONENT_AND_MANTISSA[code]
    sign = int(np.signbit(value)) << (exponent_bits + mantissa_bits)
    wanted, low, high = abs(Fraction(value)), 0, (1 << (exponent_bits + mantissa_bits)) - 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if decoded(middle, exponent_bits, mantissa_bits) <= wanted else (low, middle)
    below = wanted - decoded(low, exponent_bits, mantissa_bits)
    above = decoded(high, exponent_bits, mantissa_bits) - wanted
    return sign | (low if below < above or (below == above and low % 2 == 0) else high)


def c_bytes(code: str, value: Any) -> bytes:
    """Bytes that the C ABI stores for a value of a scalar or vector code."""
    if code[0] == "v":
        return b"".join(c_bytes(code[2:], each) for each in value)
    if code in C_TYPES:
        return bytes(C_TYPES[code](value))
    if code == "f2":
        return np.float16(value).tobytes()
    if code[0] == "c":
        return np.dtype(f"c{2 * int(code[1])}").type(value).tobytes()
    return nearest(value, code).to_bytes(SCALAR_SIZES[code], "little")


def floats(code: str) -> st.SearchStrategy[float]:
    largest, width = {
        "f2": (65504.0, 16), "f4": (3.4028234663852886e38, 32), "f8": (None, 64),
        "bf": (3.3895313892515355e38, 64), "e4": (448.0, 64), "e5": (57344.0, 64),
    }[code]  # fmt: skip
    bounds = {} if largest is None else {"min_value": -largest, "max_value": largest}
    return st.floats(allow_nan=False, allow_infinity=False, width=width, **bounds)  # type: ignore[arg-type]


def values(code: str) -> st.SearchStrategy[Any]:
    """Arguments that fit a scalar or vector code, in the forms that users pass."""
    if code[0] == "v":
        count = int(code[1])
        return st.lists(values(code[2:]), min_size=count, max_size=count).map(tuple)
    if code == "b1":
        return st.booleans() | st.integers(0, 1) | st.booleans().map(np.bool_)
    if code[0] in "iu":
        bits = 8 * int(code[1])
        low = -(1 << (bits - 1)) if code[0] == "i" else 0
        plain = st.integers(low, low + (1 << bits) - 1)
        return plain | plain.map(np.dtype(f"{code[0]}{bits // 8}").type) | st.booleans()
    if code[0] == "c":
        part = floats("f4" if code == "c4" else "f8")
        return st.builds(complex, part, part) | part
    return floats(code) | st.integers(-8, 8) | floats(code).map(np.float64)


@st.composite
def layouts(draw: st.DrawFn) -> list[tuple[Parameter, Any, bytes]]:
    """Parameters at increasing offsets with gaps as alignment makes them, each with argument and bytes."""
    placed, end = [], 0
    for _ in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(["scalar", "vector", "struct", "pointer"]))
        if kind == "struct":
            size = draw(st.integers(1, 200))
            code, alignment = "o", draw(st.sampled_from([1, 2, 4, 8, 16, 64]))
            argument: Any = draw(st.binary(min_size=size, max_size=size))
            expected = argument
        elif kind == "pointer":
            code, alignment = draw(st.sampled_from(POINTERS)), 8
            address = draw(st.integers(0, (1 << 43) - 1)) * 16
            argument, expected = (
                draw(st.sampled_from([ctypes.c_void_p, np.uintp]))(address),
                address.to_bytes(8, "little"),
            )
        else:
            code = draw(st.sampled_from(list(SCALAR_SIZES) if kind == "scalar" else VECTORS))
            argument = draw(values(code))
            expected, alignment = c_bytes(code, argument), min(16, CODE_SIZES[code] or 1)
        size = CODE_SIZES[code] or size
        offset = -(-end // alignment) * alignment
        placed.append((Parameter(offset, size, code), argument, expected))
        end = offset + size
    return placed


@pytest.mark.slow
@settings(max_examples=150)
@given(layouts())
def test_parameter_bytes_are_those_of_the_c_abi(layout: list[tuple[Parameter, Any, bytes]]) -> None:
    """Every scalar, vector, struct and pointer, at any offset, on both paths."""
    parameters, arguments, expected = zip(*layout, strict=True)
    kernel = Kernel(parameters)

    for native in (False, True):
        assert kernel.bytes_of(*arguments, native=native) == list(expected)


ANYTHING = (
    st.none() | st.booleans() | st.integers() | st.integers(-300, 300) | st.floats() | st.complex_numbers()
    | st.text(max_size=3) | st.binary(max_size=17)
    | st.lists(st.integers(0, 3) | st.floats(), max_size=4).map(tuple)
    | st.builds(
        lambda kind, value: np.dtype(kind).type(value), st.sampled_from("bBhHiIqQefdFD?"), st.integers(0, 9)
    )
    | st.sampled_from([ctypes.c_int(3), ctypes.c_float(3), ctypes.c_double(3), ctypes.c_bool(1)])
    | st.builds(
        lambda dtype, address, kind, layout: (
            numba.array(address, dtype, *layout)
            if kind == "numba"
            else Interface(address, dtype, readonly=kind == "const")
        ),
        st.sampled_from(["f4", "f8", "i4", "u1", "u2", "c8", "?", "V16", ">f4", "M8[s]"]),
        st.sampled_from([0, 64, 68]),
        st.sampled_from(["numba", "interface", "const"]),
        st.sampled_from([((8,),), ((2, 4),), ((2, 4), (64, 32))]),
    )
    | st.just(np.zeros(3, "f4")) | st.just(np.float32([1, 2])) | st.builds(object)
)  # fmt: skip

CODES = [*SCALAR_SIZES, *POINTERS, "v2f4", "v3i4", "v4f4", "v2f8", "v4u1"]


@pytest.mark.slow
@settings(max_examples=600)
@given(st.sampled_from(CODES), ANYTHING)
def test_compiled_module_takes_and_refuses_what_the_interpreted_path_does(code: str, argument: Any) -> None:
    """For any value and any parameter, both paths pass the driver the same bytes or raise the same error."""
    parameters = (Parameter(0, CODE_SIZES[code] or 8, code, "T", "p"),)
    outcomes = []
    for native in (False, True):
        try:
            outcomes.append(Kernel(parameters).bytes_of(argument, native=native))
        except ArgumentError as refused:
            outcomes.append(str(refused))

    assert outcomes[0] == outcomes[1]


@pytest.mark.slow
@settings(max_examples=600)
@given(st.sampled_from([1, 2, 3, 4, 8, 16]), ANYTHING)
def test_parameters_of_known_size_take_certain_bytes_only(size: int, argument: Any) -> None:
    """If only a size is known, what arrives is as long as that, and never a Python number's guess."""
    outcomes = []
    for native in (False, True):
        kernel = Kernel((Parameter(0, size, "?"),), typed=False)
        try:
            outcomes.append(kernel.bytes_of(argument, native=native))
        except ArgumentError as refused:
            outcomes.append(str(refused))

    assert outcomes[0] == outcomes[1]
    if type(argument) in (int, float, complex, str, tuple):
        assert isinstance(outcomes[0], str)


@pytest.mark.parametrize("code", EXPONENT_AND_MANTISSA)
def test_small_floats_that_exist_keep_their_bits(code: str) -> None:
    """Each finite value of the format is its own nearest."""
    exponent_bits, mantissa_bits = EXPONENT_AND_MANTISSA[code]
    highest = 0x7E if code == "e4" else ((1 << exponent_bits) - 1 << mantissa_bits) - 1

    for bits in range(highest + 1):
        assert (
            small_float_bits(float(decoded(bits, exponent_bits, mantissa_bits)), exponent_bits, mantissa_bits) == bits
        )
