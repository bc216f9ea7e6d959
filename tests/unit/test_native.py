"""The compiled launch module compared with the interpreted path: the same bytes, the same errors, no leaked memory."""

from __future__ import annotations

import ctypes
import math
import sys
from typing import Any

import numpy as np
import pytest
from numba import types
from numba.cuda.np.numpy_support import from_dtype

from numba_kcache import launch as devices
from numba_kcache.errors import ArgumentError
from numba_kcache.frontends.numba.arguments import TypedLauncher, codes_of, lay_out
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.model import SCALAR_SIZES, Parameter
from tests.support.launching import (
    SHAPE,
    CountingLauncher,
    CupyArray,
    Interface,
    Kernel,
    Numba,
    fake_cupy,
    fake_torch,
    one,
)

ADDRESS = 0x7F0000001000


class Pair(ctypes.Structure):
    """A struct by value."""

    _fields_ = (("a", ctypes.c_int), ("b", ctypes.c_float))


_pointer_of = ctypes.PyDLL(None).PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_capsule_of = ctypes.PyDLL(None).PyCapsule_New
_capsule_of.restype, _capsule_of.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_kept: list[Any] = []  # types stay registered while the process runs


class Exporter:
    """An object with DLPack alone, whose memory seems to be on the device."""

    def __init__(self, array: Any, device: tuple[int, int] = (2, 0)) -> None:
        self._array, self._device = array, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int, max_version: tuple[int, int] | None = None) -> Any:
        capsule = self._array.__dlpack__(max_version=max_version)
        tensor = _pointer_of(capsule, b"dltensor_versioned") + 32
        ctypes.c_int32.from_address(tensor + 8).value = self._device[0]
        return capsule


MEMORY = np.arange(64, dtype="f4")
VALUES: dict[str, tuple[str, Any]] = {
    "c_void_p": ("*f4", ctypes.c_void_p(ADDRESS)),
    "null": ("*f4", None),
    "uintp": ("*f4", np.uintp(ADDRESS)),
    "array interface": ("*f4", Interface(ADDRESS)),
    "const array interface": ("*kf4", Interface(ADDRESS, readonly=True)),
    "Fortran order": ("*f4", Interface(ADDRESS, shape=(2, 3), strides=(4, 8))),
    "struct": ("o", Pair(7, 2.5)),
    "bytes": ("o", b"12345678"),
    "record": ("o", np.zeros(1, [("a", "i4"), ("b", "f4")])[0]),
    "complex64": ("c4", np.complex64(1 - 2j)),
    "complex": ("c8", 3 + 4j),
    "a real for a complex": ("c4", 2.5),
    "half": ("f2", np.float16(1.5)),
    "float for half": ("f2", 0.1),
    "float for bfloat16": ("bf", 3.14159),
    "float for e4m3": ("e4", 0.3),
    "float for e5m2": ("e5", -0.07),
    "int32": ("i4", np.int32(-5)),
    "uint64": ("u8", 2**64 - 1),
    "bool": ("b1", True),
    "numpy bool": ("b1", np.bool_(True)),
    "float64 for float": ("f4", np.float64(0.1)),
    "int for float": ("f4", 16777217),
}


def both(parameters: Any, argument: Any, **options: Any) -> list[Any]:
    """Outcomes of an argument on the interpreted path and in the module, as bytes or an error, and which of them
    launched."""
    outcomes: list[Any] = []
    for native in (False, True):
        kernel = Kernel(parameters, **options)
        try:
            outcomes.append(kernel.bytes_of(argument, native=native))
        except ArgumentError as refused:
            outcomes.append(str(refused))
    return [*outcomes, kernel.launcher.interpreted]


@pytest.mark.parametrize("what", VALUES)
def test_common_memory_and_values_go_through_the_module(what: str) -> None:
    """Each has the bytes of the interpreted path, which is not called."""
    code, value = VALUES[what]

    interpreted, compiled, asked = both(one(code, size=8), value)

    assert compiled == interpreted
    assert isinstance(compiled, list)
    assert asked == 0


def test_dlpack_exporter_goes_through_the_module() -> None:
    """The address of its tensor arrives; another element type has the error of the interpreted path."""
    interpreted, compiled, asked = both(one("*f4"), Exporter(MEMORY))
    assert (compiled, asked) == (interpreted, 0)
    assert compiled == [MEMORY.ctypes.data.to_bytes(8, "little")]

    refused, again, _ = both(one("*i4"), Exporter(MEMORY))
    assert refused == again
    assert "the kernel takes int32 there" in refused


@pytest.mark.slow
def test_every_pair_of_a_value_and_a_parameter_has_one_outcome() -> None:
    """Each value above for each kind of parameter gives the same bytes or the same error on both paths."""
    codes = [*SCALAR_SIZES, "v2f4", "o", "?", *(f"*{code}" for code in ("f4", "i4", "u1", "?", "v4f4")), "*kf4"]
    for code in codes:
        for name, (_, value) in VALUES.items():
            interpreted, compiled, _ = both(one(code, size=8), value)
            assert compiled == interpreted, (code, name)


@pytest.mark.parametrize("ordinal", [0, 1])
def test_memory_that_does_not_name_its_device_is_asked_for_where_there_are_several(ordinal: int) -> None:
    """The driver gives the memory's device, to the module too; memory elsewhere is refused."""
    for value in (Interface(ADDRESS), ctypes.c_void_p(ADDRESS), np.uintp(ADDRESS)):
        interpreted, compiled, asked = both(one("*f4"), value, device_of=lambda _address: ordinal)

        assert compiled == interpreted
        assert isinstance(compiled, str) == bool(ordinal)
        assert asked == ordinal


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize(("stream", "stays"), [(0, False), (1, False), (2, True), (9, True)])
def test_launch_on_a_given_stream_notes_that_the_module_stays(stream: int, stays: bool, native: bool) -> None:
    """The stream may be destroyed, or captured into a graph; the default stream is neither."""
    kernel = Kernel(one("i4"), stream=stream)

    kernel.bind(native=native)(1)

    assert kernel.module.stays == [stays]


def test_keyboard_interrupt_of_an_argument_passes() -> None:
    """After an exception that ends programs, the argument is not read a second time."""

    class Interrupting(Interface):
        is_ending = False

        def __init__(self) -> None:
            pass

        @property
        def __cuda_array_interface__(self) -> Any:  # type: ignore[override]
            if self.is_ending:
                raise KeyboardInterrupt
            return {"shape": (4,), "typestr": "<f4", "data": (ADDRESS, False), "version": 3}

    value, kernel = Interrupting(), Kernel(one("*f4"))
    kernel.bind(native=True)(value)
    launch = kernel.launcher.bind(SHAPE)
    value.is_ending = True

    with pytest.raises(KeyboardInterrupt):
        launch(value)

    assert kernel.launcher.interpreted == 0


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
def test_argument_whose_type_cannot_be_registered_is_launched(native: bool) -> None:
    """A class may be unhashable, or give odd attributes to the registration, which only speeds up later launches."""

    class Comparing(type):
        def __eq__(self, other: object) -> bool:
            return self is other

    class Memory(Interface, metaclass=Comparing):
        pass

    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)

    for _ in range(3):
        launch(Memory(ADDRESS))

    assert [each[2] for each in kernel.driver.launches] == [[ADDRESS.to_bytes(8, "little")]] * 3


def test_module_launches_a_kernel_at_once_whose_parameters_it_knows_of_another() -> None:
    """The same bytes reach another function; an argument that fits no parameter is refused as usual."""
    kernel, array = Kernel(), Numba().array(ADDRESS)
    first = kernel.launcher_at(function=77)
    for _ in range(4):
        first.bind(SHAPE)(2.0, array, array, 7)

    further = kernel.launcher_at(function=78)
    further.bind(SHAPE)(2.0, array, array, 7)

    assert (first.interpreted, further.interpreted) == (3, 0)
    assert kernel.driver.functions == [77, 77, 77, 77, 78]
    assert kernel.driver.launches[3][2] == kernel.driver.launches[4][2]
    with pytest.raises(ArgumentError, match="as argument 2 of saxpy"):
        further.bind(SHAPE)(2.0, 7, array, 7)
    strided = kernel.launcher_at(function=79, strided=True)
    strided.bind(SHAPE)(2.0, array, array, 7)
    assert strided.interpreted == 1


class _Tensor(ctypes.Structure):
    """DLPack's `DLTensor`."""

    _fields_ = (("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64))  # fmt: skip


class _Exchange(ctypes.Structure):
    """DLPack's `DLPackExchangeAPI`, with the two functions that are called."""

    tensor_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
    stream_of = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
    _fields_ = (("head", ctypes.c_void_p * 5), ("tensor", tensor_of), ("stream", stream_of))


@pytest.mark.parametrize("is_in_c", [False, True], ids=["method", "function"])
def test_tensor_that_is_negated_on_paper_is_handed_on(is_in_c: bool) -> None:
    """A pending negation is detected by the method, and by the C function, which gets the tensor's handle behind the
    head of the Python object."""

    class Negatable(ctypes.Structure):
        _fields_ = (("handle", ctypes.c_size_t),)

        def is_neg(self) -> bool:
            return negated[0]

    def describe(_value: Any, tensor: Any) -> int:
        tensor[0] = _Tensor(address[0], (2, 0), 0, 2, 32, 1, None, None, 0)
        return 0

    def is_negated(place: int) -> bool:
        places.append(place)
        return negated[0]

    negated, places, value, address = [False], list[int](), Negatable(), [ADDRESS]
    current = _Exchange.stream_of(lambda _type, _device, stream: stream.__setitem__(0, None) or 0)
    exchange = _Exchange((0,) * 5, _Exchange.tensor_of(describe), current)
    function = ctypes.PYFUNCTYPE(ctypes.c_bool, ctypes.c_size_t)(is_negated)
    parts = (ctypes.cast(function, ctypes.c_void_p).value if is_in_c else Negatable.is_neg, Negatable.is_neg)
    capsule = _capsule_of(ctypes.addressof(exchange), None, None)
    _kept.append((exchange, function, capsule))
    devices.native.know(Negatable, ord("T"), capsule, parts)
    kernel = Kernel(one("*f4"))
    kernel.bind(native=True)(None)
    launch = kernel.launcher.bind(SHAPE)

    launch(value)
    assert kernel.driver.launches[-1][2] == [ADDRESS.to_bytes(8, "little")]
    asked = kernel.launcher.interpreted
    negated[0] = True
    with pytest.raises(ArgumentError):
        launch(value)

    assert kernel.launcher.interpreted == asked + 1
    negated[0], address[0] = False, 0
    with pytest.raises(ArgumentError):  # its storage was freed: the interpreted path checks if it is empty
        launch(value)

    assert kernel.launcher.interpreted == asked + 2
    assert places == [id(value) + object.__basicsize__] * 2 * is_in_c


# -- kernels of one signature ----------------------------------------------------------------------


class CountingTyped(CountingLauncher, TypedLauncher):
    """Counts the launches that the compiled module did not make."""


class Typed:
    """A Numba kernel of one signature on the fake driver."""

    def __init__(self, *kinds: Any, native: bool) -> None:
        sizes, offset = [each.size for each in _parameters(kinds)], 0
        found = []
        for size in sizes:
            offset = -(-offset // size) * size
            found.append(Parameter(offset, size, "?"))
            offset += size
        self.parameters = lay_out("k", [each.code for each in _parameters(kinds)], found)
        self.kernel = Kernel(self.parameters)
        self.refused: list[Any] = []

        def make(loaded: Any, name: str, parameters: Any, **options: Any) -> Any:
            return CountingTyped(
                loaded, name, parameters, flavour=NUMBA, kinds=kinds,
                otherwise=lambda config, args: self.refused.append(args), **options,
            )  # fmt: skip

        self.kernel.launcher_class = make
        self.launch = self.kernel.bind(native=native)


def _parameters(kinds: Any) -> list[Parameter]:
    return [Parameter(0, int(code[1:]), code) for kind in kinds for code in codes_of(NUMBA, kind)]


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    current = {"handle": 0}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(current))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(current))
    return current


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
def test_numba_kernel_takes_arrays_of_cupy_as_its_own(libraries: dict[str, int], native: bool) -> None:
    """The parameters have the same bytes; an array of another type is passed to the dispatcher."""
    numba, kind = Numba(), types.Array(types.float32, 1, "C")
    typed = Typed(kind, types.float64, native=native)

    typed.launch(numba.array(ADDRESS, shape=(4,)), 2.0)
    typed.launch(CupyArray(ADDRESS), 2.0)
    typed.launch(Interface(ADDRESS, shape=(4,)), 2.0)
    first, second, third = (each[2] for each in typed.kernel.driver.launches)
    assert first == second == third

    typed.launch(CupyArray(ADDRESS, contiguous=False), 2.0)
    typed.launch(CupyArray(ADDRESS, "f8"), 2.0)
    typed.launch(Interface(ADDRESS, shape=(2, 2)), 2.0)
    typed.launch(Interface(ADDRESS, readonly=True), 2.0)
    typed.launch(np.zeros(4, "f4"), 2.0)
    assert len(typed.refused) == 5
    assert len(typed.kernel.driver.launches) == 3


@pytest.mark.parametrize(
    ("shape", "strides"),
    [((4,), (4,)), ((1,), (64,)), ((3, 4), (16, 4)), ((1, 4), (9, 4)), ((3, 1), (4, 40)), ((), ())],
)
def test_extents_and_strides_of_numbas_arrays_arrive_as_they_say(shape: Any, strides: Any) -> None:
    """Strides of axes with one item, which may have any value in C order, are passed unchanged on both paths."""
    kind, array = types.Array(types.float32, len(shape), "C"), Numba().array(ADDRESS, shape=shape, strides=strides)
    for native in (False, True):
        typed = Typed(kind, native=native)
        typed.launch(array)
        asked = typed.kernel.launcher.interpreted
        typed.kernel.launcher.bind(SHAPE)(array)

        assert [int.from_bytes(each, "little") for each in typed.kernel.driver.launches[-1][2]] == [
            0, 0, math.prod(shape), 4, ADDRESS, *shape, *strides,
        ]  # fmt: skip
        assert typed.kernel.launcher.interpreted == asked + (not native)


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
def test_arrays_of_large_records_are_launched(native: bool) -> None:
    """An item may be larger than all parameters of a kernel: its size takes more than 16 bits."""
    dtype = np.dtype([("a", "f8", (20_000,)), ("b", "i4")], align=True)
    kind, array = types.Array(from_dtype(dtype), 1, "C"), Numba().array(ADDRESS, dtype, shape=(3,))
    typed = Typed(kind, native=native)

    typed.launch(array)
    asked = typed.kernel.launcher.interpreted
    typed.kernel.launcher.bind(SHAPE)(array)

    assert [int.from_bytes(each, "little") for each in typed.kernel.driver.launches[-1][2]] == [
        0, 0, 3, dtype.itemsize, ADDRESS, 3, dtype.itemsize,
    ]  # fmt: skip
    assert typed.kernel.launcher.interpreted == asked + (not native)


@pytest.mark.parametrize("shape", [(4,), (1,), (3, 4), (1, 4), (2, 3, 4), (0,)])
def test_contiguous_array_of_cupy_has_the_strides_of_c_order(libraries: dict[str, int], shape: Any) -> None:
    """On both paths the strides are those of C order; extents and number of items are the array's."""
    kind, expected = types.Array(types.float32, len(shape), "C"), list[list[int]]()
    for native in (False, True):
        typed = Typed(kind, native=native)
        typed.launch(CupyArray(ADDRESS, shape=shape))
        asked = typed.kernel.launcher.interpreted
        typed.kernel.launcher.bind(SHAPE)(CupyArray(ADDRESS, shape=shape))

        found = [int.from_bytes(each, "little") for each in typed.kernel.driver.launches[-1][2]]
        assert found[: 5 + len(shape)] == [0, 0, math.prod(shape), 4, ADDRESS, *shape]
        expected.append(found)
        assert typed.kernel.launcher.interpreted == asked + (not native)
    assert expected[0] == expected[1]


@pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
def test_numba_kernel_goes_to_the_stream_of_its_arrays_too(libraries: dict[str, int], native: bool) -> None:
    """The launch is queued on CuPy's current stream."""
    typed = Typed(types.Array(types.float32, 1, "C"), native=native)
    typed.launch(CupyArray(ADDRESS))

    libraries["handle"] = 7
    typed.launch(CupyArray(ADDRESS))

    assert [stream for _, stream, _ in typed.kernel.driver.launches] == [0, 7]
    assert not typed.kernel.waits
