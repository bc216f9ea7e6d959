"""Arguments of a launch, on both paths: the bytes that are packed, the values that are refused, and the error texts."""

from __future__ import annotations

import ctypes
import struct
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numba_kcache.errors import ArgumentError, LaunchError
from numba_kcache.model import Parameter
from tests.support.launching import SAXPY, SHAPE, Interface, Kernel, Numba, one

ADDRESS = 0x7F0000001000
COOPERATIVE = struct.pack("=I4xI60x", 2, 1)
PATHS = pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])


@pytest.fixture(scope="module")
def numba() -> Numba:
    return Numba()


def word(address: int) -> bytes:
    return address.to_bytes(8, "little")


@PATHS
def test_saxpy_arrives_as_the_compiler_laid_it_out(numba: Numba, native: bool) -> None:
    """Each parameter has the bytes of the C type; grid, block, shared memory and stream are the binding's."""
    kernel = Kernel(stream=5)

    read = kernel.bytes_of(2, numba.array(ADDRESS), numba.array(ADDRESS + 64), 7, native=native)

    assert read == [np.float32(2).tobytes(), word(ADDRESS), word(ADDRESS + 64), np.int32(7).tobytes()]
    assert kernel.driver.launches == [((3, 2, 1, 32, 4, 1, 16), 5, read)]


@PATHS
def test_launch_attributes_go_with_the_same_shape_and_bytes(numba: Numba, native: bool) -> None:
    """Cooperative and cluster launches take the driver's configuration; nothing else changes."""
    kernel, array = Kernel(stream=5, attributes=COOPERATIVE), numba.array(ADDRESS)

    read = kernel.bytes_of(2.0, array, array, 7, native=native)

    assert kernel.driver.attributes == COOPERATIVE
    assert kernel.driver.launches == [((3, 2, 1, 32, 4, 1, 16), 5, read)]
    assert read == Kernel().bytes_of(2.0, array, array, 7)


@PATHS
def test_kernel_without_parameters_launches(native: bool) -> None:
    """No parameters, no arguments, one launch."""
    assert Kernel(()).bytes_of(native=native) == []


def test_compiled_module_makes_every_launch_but_the_first_two(numba: Numba) -> None:
    """The module learns types from earlier launches, and passes unknown arguments to the interpreted path."""
    kernel, array = Kernel(), numba.array(ADDRESS)
    kernel.bind(native=True)
    launch = kernel.launcher.bind(SHAPE)

    for _ in range(9):
        launch(2.0, array, array, 7)

    assert kernel.launcher.interpreted <= 2
    assert [each[2] for each in kernel.driver.launches] == [kernel.driver.launches[0][2]] * 9


@PATHS
def test_any_grid_is_bound_to_one_block_and_stream(numba: Numba, native: bool) -> None:
    """A grid that is known to fit is bound without a look at it; each launch goes out with its own."""
    kernel, array = Kernel(stream=5), numba.array(ADDRESS)
    kernel.bind(native=native)

    first, second = (kernel.launcher.over_grids((32, 4, 1), 16, 5, 5, *grid) for grid in ((3, 2, 1), (9, 1, 1)))
    first(2.0, array, array, 7)
    second(2.0, array, array, 7)

    read = kernel.driver.launches[0][2]
    assert kernel.driver.launches == [((3, 2, 1, 32, 4, 1, 16), 5, read), ((9, 1, 1, 32, 4, 1, 16), 5, read)]


REFUSED = {
    "swapped": (
        lambda n: (n.array(), 2, n.array(), 7),
        ("cannot pass numba.DeviceNDArray of float32 (1024,) as argument 1 of saxpy (float a): "
        "the parameter is a number, not an array\n  hint: check the order of the arguments"),
    ),
    "bare integer": (
        lambda n: (2.0, 4096, n.array(), 7),
        ("cannot pass 4096 (int) as argument 2 of saxpy (float const* x): "
        "a pointer takes a device array or None, not a bare integer\n"
        "  hint: check the order of the arguments; an address goes as ctypes.c_void_p(address)"),
    ),
    "float64 array": (
        lambda n: (2.0, n.array(dtype="f8"), n.array(), 7),
        ("cannot pass numba.DeviceNDArray of float64 (1024,) as argument 2 of saxpy (float const* x): "
        "the kernel takes float32 there\n"
        "  hint: make it from a host array of float32, or change the parameter"),
    ),
    "strided view": (
        lambda n: (2.0, n.array(), n.array(shape=(512,), strides=(8,)), 7),
        ("cannot pass numba.DeviceNDArray of float32 (512,) as argument 3 of saxpy (float* y): "
        "it is not contiguous, its strides are (8,) bytes\n"
        "  hint: pass a contiguous copy, or decorate with strided=True and pass the strides too"),
    ),
    "host array": (
        lambda n: (2.0, np.zeros(3, "f4"), n.array(), 7),
        ("cannot pass numpy.ndarray of float32 (3,) as argument 2 of saxpy (float const* x): "
        "its memory is on the host\n"
        "  hint: copy it with cuda.to_device(), or wrap it in cuda.In(), cuda.Out() or cuda.InOut()"),
    ),
    "part of a mapped array": (
        lambda n: (2.0, n.on_host("MappedNDArray", ADDRESS)[1:], n.array(), 7),
        ("cannot pass numba.MappedNDArray of float32 (1023,) as argument 2 of saxpy (float const* x): "
        "NumPy made it, and its address on the device is not known\n"
        "  hint: pass the whole mapped or managed array"),
    ),
    "read-only": (
        lambda n: (2.0, n.array(), Interface(readonly=True), 7),
        ("cannot pass tests.Interface as argument 3 of saxpy (float* y): "
        "it is read-only, the parameter is not const\n  hint: declare it const, or pass a copy"),
    ),
    "too large an int": (
        lambda n: (2.0, n.array(), n.array(), 1 << 31),
        ("cannot pass 2147483648 (int) as argument 4 of saxpy (int n): "
        "the parameter takes -2147483648 to 2147483647\n"
        "  hint: declare it long long in the source, or pass another number"),
    ),
    "float for int": (
        lambda n: (2.0, n.array(), n.array(), 7.0),
        ("cannot pass 7.0 (float) as argument 4 of saxpy (int n): "
        "the parameter is an integer\n  hint: convert it with int()"),
    ),
    "complex for float": (
        lambda n: (1j, n.array(), n.array(), 7),
        ("cannot pass 1j (complex) as argument 1 of saxpy (float a): "
        "the parameter is real\n  hint: pass .real or abs() of it"),
    ),
    "too large a float": (
        lambda n: (1e39, n.array(), n.array(), 7),
        ("cannot pass 1e+39 (float) as argument 1 of saxpy (float a): it is too large for the parameter\n"
        "  hint: declare it double, or pass a smaller number"),
    ),
    "text": (
        lambda n: ("2", n.array(), n.array(), 7),
        ("cannot pass '2' (str) as argument 1 of saxpy (float a): "
        "the parameter is a number, not text\n  hint: convert it with float()"),
    ),
    "time difference": (
        lambda n: (2.0, n.array(), n.array(), np.timedelta64(1, "s")),
        ("cannot pass 1 seconds (numpy.timedelta64) as argument 4 of saxpy (int n): "
        "the parameter is an integer\n  hint: pass a number of Python or NumPy"),
    ),
    "pointer for a number": (
        lambda n: (ctypes.c_void_p(64), n.array(), n.array(), 7),
        (
            "cannot pass 64 (ctypes.c_void_p) as argument 1 of saxpy (float a): "
            "the parameter is a number\n  hint: pass a number of Python or NumPy"
        ),
    ),
    "None for a number": (
        lambda n: (2.0, n.array(), n.array(), None),
        ("cannot pass None as argument 4 of saxpy (int n): "
        "the parameter is an integer\n  hint: pass a number; None means a null pointer only"),
    ),
    "no memory": (
        lambda n: (2.0, n.array(), Interface(0), 7),
        ("cannot pass tests.Interface as argument 3 of saxpy (float* y): "
        "its array interface has elements at the address 0\n"
        "  hint: pass the array that holds the memory, or None for a null pointer"),
    ),
    "too few": (
        lambda n: (2.0, n.array(), n.array()),
        ("cannot launch saxpy with 3 arguments: it takes 4: float a, float const* x, float* y, int n\n"
        "  hint: pass one argument for each parameter"),
    ),
    "too many": (
        lambda n: (2.0, n.array(), n.array(), 7, 8),
        ("cannot launch saxpy with 5 arguments: it takes 4: float a, float const* x, float* y, int n\n"
        "  hint: pass one argument for each parameter"),
    ),
}  # fmt: skip


@PATHS
@pytest.mark.parametrize("case", REFUSED)
def test_unfit_argument_is_refused_before_the_driver(numba: Numba, case: str, native: bool) -> None:
    """An argument that does not fit is refused with position, name, C type, value and a hint; nothing is queued."""
    make, message = REFUSED[case]
    kernel = Kernel()
    launch = kernel.bind(native=native)

    with pytest.raises(ArgumentError) as refused:
        launch(*make(numba))

    assert str(refused.value) == message
    assert kernel.untouched


ACCEPTED_POINTERS = {
    "null": (lambda n: None, 0),
    "c_void_p": (lambda n: ctypes.c_void_p(64), 64),
    "null c_void_p": (lambda n: ctypes.c_void_p(), 0),
    "uintp": (lambda n: np.uintp(64), 64),
    "Fortran order": (lambda n: n.array(ADDRESS, shape=(4, 8), strides=(4, 16)), ADDRESS),
    "0-d": (lambda n: n.array(ADDRESS, shape=(), strides=()), ADDRESS),
    "one element with any stride": (lambda n: n.array(ADDRESS, shape=(1,), strides=(400,)), ADDRESS),
    "not owned by Numba": (lambda n: n.array(ADDRESS, owned=False), ADDRESS),
    "array interface": (lambda n: Interface(ADDRESS), ADDRESS),
    "empty": (lambda n: Interface(0, shape=(0, 3)), 0),
    "empty with any stride": (lambda n: Interface(0, shape=(0, 3), strides=(7, 7)), 0),
    "memory of Numba": (lambda n: n.array(ADDRESS).gpu_data, ADDRESS),
    "mapped": (lambda n: n.on_host("MappedNDArray", ADDRESS), ADDRESS),
    "managed": (lambda n: n.on_host("ManagedNDArray", ADDRESS), ADDRESS),
    "read-only for const": (lambda n: Interface(ADDRESS, readonly=True), ADDRESS),
}


@PATHS
@pytest.mark.parametrize("case", ACCEPTED_POINTERS)
def test_pointer_takes_what_stands_for_device_memory(numba: Numba, case: str, native: bool) -> None:
    """Device memory in each of its forms becomes its address."""
    make, address = ACCEPTED_POINTERS[case]

    assert Kernel(one("*kf4")).bytes_of(make(numba), native=native) == [word(address)]


@PATHS
@pytest.mark.parametrize("address", [0, 16, 8, 4])
def test_vectors_are_read_at_aligned_addresses_only(numba: Numba, address: int, native: bool) -> None:
    """A float4 asks for 16 bytes, which a slice of a float array may not have."""
    kernel = Kernel(one("*v4f4"))
    launch = kernel.bind(native=native)

    if address % 16 == 0:
        launch(numba.array(address))
    else:
        with pytest.raises(ArgumentError, match="not a multiple of the 16 bytes that vectors of 4 x float32 need"):
            launch(numba.array(address))

    assert len(kernel.driver.launches) == (address % 16 == 0)


@PATHS
@pytest.mark.parametrize(("code", "dtype", "fits"), [
    ("v2f4", "c8", True), ("v2f4", "V8", True), ("v2f4", "V16", False), ("v2f4", "f8", False), ("v2f4", "f4", True),
    ("c4", "V8", True), ("c4", "V16", False), ("c4", "f4", False), ("bf", "u2", True), ("bf", "f2", False),
    ("e4", "u1", True), ("v2bf", "u2", True), ("f2", "u2", False), ("f4", ">f4", False), ("u1", ">f4", True),
    ("o", "f4", True), ("?", "M8[s]", True), ("i8", "M8[s]", False), ("i4", "u4", False),
    ("u2", "i2", True), ("u4", "i4", True), ("u8", "i8", True), ("v4u4", "i4", True), ("u4", "i8", False),
    ("u4", "f4", False), ("i8", "u8", False), ("v2i4", "u4", False),
])  # fmt: skip
def test_elements_are_held_against_the_pointee(code: str, dtype: str, fits: bool, native: bool) -> None:
    """Vectors take their components, records of their size and complex numbers; uints carry what NumPy lacks.

    Memory of signed integers goes where the kernel takes unsigned ones, and not the other way round.
    """
    kernel = Kernel(one(f"*{code}"))
    launch = kernel.bind(native=native)

    if fits:
        launch(Interface(ADDRESS, dtype))
    else:
        with pytest.raises(ArgumentError, match="the kernel takes"):
            launch(Interface(ADDRESS, dtype))


@PATHS
def test_masked_array_is_refused(native: bool) -> None:
    """A mask cannot be passed with the data."""
    with pytest.raises(ArgumentError, match="it is a masked array"):
        Kernel(one("*f4")).bytes_of(Interface(mask=object()), native=native)


@PATHS
@pytest.mark.parametrize(("code", "argument", "why"), [
    ("b1", 2, "the parameter is a bool"), ("b1", 1.0, "the parameter is a bool"), ("b1", None, "is a bool"),
    ("v2f4", (1.0, 2.0, 3.0), "the vector has 2 components, not 3"), ("v2f4", 1.0, "the parameter is a vector of 2"),
    ("v2f4", b"1234567", "it has 7 bytes, the parameter 8"), ("v2i4", (1, 2.5), "the parameter is an integer"),
    ("f2", 65520.0, "too large"), ("bf", 3.4e38, "too large"), ("e4", 465.0, "too large"), ("e5", 61440.0, "too large"),
    ("e4", float("inf"), "too large"), ("f4", 3.4028235677973366e38, "too large"), ("f4", 1 << 2000, "too large"),
    ("c4", 1e39j, "too large"), ("u4", -1, "takes 0 to 4294967295"), ("i1", 128, "takes -128 to 127"),
])  # fmt: skip
def test_value_that_does_not_fit_is_refused(code: str, argument: Any, why: str, native: bool) -> None:
    """Bools, components, sizes and the ends of every float format."""
    kernel = Kernel(one(code))
    launch = kernel.bind(native=native)

    with pytest.raises(ArgumentError, match=why):
        launch(argument)

    assert kernel.untouched


@PATHS
@pytest.mark.parametrize(("code", "argument", "bits"), [
    ("f2", 65519.0, 0x7BFF), ("f2", float("inf"), 0x7C00), ("e4", 464.0, 0x7E), ("e5", 61439.0, 0x7B),
    ("e5", float("-inf"), 0xFC), ("bf", 3.3961775292304957e38 * 0.999, 0x7F7F), ("bf", float("inf"), 0x7F80),
    ("bf", -0.0, 0x8000), ("e4", float("nan"), 0x7F), ("bf", float("nan"), 0x7FC0), ("bf", 2**-133, 0x0001),
])  # fmt: skip
def test_small_floats_at_their_ends(code: str, argument: float, bits: int, native: bool) -> None:
    """Up to half a step past the largest value rounds back to it; infinity and NaN stay what they are."""
    read = Kernel(one(code)).bytes_of(argument, native=native)

    assert int.from_bytes(read[0], "little") == bits


@PATHS
@pytest.mark.parametrize(("code", "argument", "expected"), [
    ("v2f8", 3 - 4j, np.complex128(3 - 4j)), ("v2f4", 3 - 4j, np.complex64(3 - 4j)),
    ("v2f8", np.complex64(1j), np.complex128(1j)), ("v2f4", np.complex128(0.1), np.complex64(0.1)),
])  # fmt: skip
def test_complex_number_goes_where_the_kernel_takes_a_pair(
    code: str, argument: Any, expected: Any, native: bool
) -> None:
    """`double2`, which is `cuDoubleComplex`, and `float2`: real part first, rounded as a float would be."""
    assert Kernel(one(code)).bytes_of(argument, native=native) == [expected.tobytes()]


@PATHS
@pytest.mark.parametrize(("code", "raw"), [
    ("f2", b"\0\x3e"), ("bf", b"\xc0\x3f"), ("e4", b"\x3c"), ("c4", struct.pack("ff", 1, 2)),
    ("c8", struct.pack("dd", 1, 2)),
])  # fmt: skip
def test_bytes_of_their_size_stand_for_small_floats_and_complex_numbers(code: str, raw: bytes, native: bool) -> None:
    """As for structs: bytes or a record; more or fewer bytes are refused."""
    kernel = Kernel(one(code))

    assert [kernel.bytes_of(each, native=native) for each in (raw, bytearray(raw), np.void(raw))] == [[raw]] * 3
    for other in (raw + b"\0", raw[1:]):
        with pytest.raises(ArgumentError, match="the parameter is a number"):
            kernel.bind(native=native)(other)


@PATHS
def test_complex_number_does_not_fit_pairs_of_others(native: bool) -> None:
    """A complex number is refused for pairs of other types, and if a part is too large for a float."""
    for code, argument in (("v2i4", 1j), ("v4f4", 1j), ("v2f4", 1e39j)):
        kernel = Kernel(one(code))
        with pytest.raises(ArgumentError, match=r"vector of|too large"):
            kernel.bind(native=native)(argument)
        assert kernel.untouched


@PATHS
@pytest.mark.parametrize("kind", ["TextureObject", "SurfaceObject"])
def test_texture_of_cupy_goes_as_the_number_that_it_is(kind: str, native: bool) -> None:
    """`cudaTextureObject_t` is an `unsigned long long`; no other parameter takes it, nor an object of another name."""
    texture = type(kind, (), {"__module__": "cupy.cuda.texture", "ptr": 2**40 + 3})()
    stranger = type(kind, (), {"__module__": "game", "ptr": 3})()

    assert Kernel(one("u8")).bytes_of(texture, native=native) == [(2**40 + 3).to_bytes(8, "little")]
    assert Kernel(one("?"), typed=False).bytes_of(texture, native=native) == [(2**40 + 3).to_bytes(8, "little")]
    for code, value in (("i8", texture), ("f8", texture), ("*f4", texture), ("u8", stranger)):
        kernel = Kernel(one(code))
        with pytest.raises(ArgumentError, match="cannot pass"):
            kernel.bind(native=native)(value)
        assert kernel.untouched


@PATHS
def test_tensor_map_goes_by_value(native: bool) -> None:
    """The driver's own object, 128 bytes; a parameter of another size does not take it."""
    from cuda.bindings import driver

    described = driver.CUtensorMap()
    described.opaque = [driver.cuuint64_t(3**n) for n in range(16)]

    (read,) = Kernel(one("o", "CUtensorMap", 128)).bytes_of(described, native=native)

    assert read == np.array([3**n for n in range(16)], np.uint64).tobytes()
    with pytest.raises(ArgumentError, match="the parameter 64"):
        Kernel(one("o", "Other", 64)).bytes_of(described, native=native)


@PATHS
def test_strided_kernels_take_strided_views(numba: Numba, native: bool) -> None:
    """`strided=True` passes the address of the first element, whatever the strides."""
    view = numba.array(ADDRESS, shape=(8,), strides=(-8,))

    assert Kernel(one("*f4"), strided=True).bytes_of(view, native=native) == [word(ADDRESS)]


@PATHS
def test_argument_of_another_stream_is_waited_for_on_the_device(numba: Numba, native: bool) -> None:
    """An argument of another stream is ordered before the launch; one of the same, or of none, is not."""
    kernel = Kernel(stream=9)
    launch = kernel.bind(native=native)

    launch(2.0, Interface(stream=7), numba.array(stream=11), 5)
    launch(2.0, Interface(stream=9), Interface(stream=None), 5)

    assert kernel.waits == [(7, 9), (11, 9)]
    assert len(kernel.driver.launches) == 2


@PATHS
def test_array_bound_to_another_stream_is_waited_for(numba: Numba, native: bool) -> None:
    """Numba's arrays carry a stream too: another one is waited for, the launch's own object is not."""
    own = SimpleNamespace(__cuda_stream__=(0, 9))
    kernel = Kernel(one("*f4"), stream=own)
    launch = kernel.bind(native=native)

    for stream in (11, own, 9, 0):
        launch(numba.array(stream=stream))

    assert kernel.waits == [(11, 9)]
    assert len(kernel.driver.launches) == 4


@PATHS
def test_default_stream_has_two_names(native: bool) -> None:
    """Handles 0 and 1 are one stream: nothing to wait for between them."""
    kernel = Kernel(one("*f4"), stream=0)

    kernel.bytes_of(Interface(stream=1), native=native)

    assert not kernel.waits


@PATHS
def test_refusal_of_a_later_argument_queues_no_wait(native: bool) -> None:
    """Nothing is queued, no event either, before every argument is checked."""
    kernel = Kernel(stream=9)
    launch = kernel.bind(native=native)

    with pytest.raises(ArgumentError):
        launch(2.0, Interface(stream=7), Interface(), 5.5)

    assert kernel.untouched


@PATHS
def test_array_of_another_device_is_refused(numba: Numba, native: bool) -> None:
    """With several devices the driver reports the device of an address, except for Numba arrays, which know it."""
    home, away = (
        numba.array(ADDRESS),
        numba.array(ADDRESS + 64, context=object.__new__(type("Other", (), {}))),
    )
    kernel = Kernel(one("*f4"), context=numba.context, device_of=lambda address: int(address != ADDRESS))
    launch = kernel.bind(native=native)

    launch(home)
    with pytest.raises(ArgumentError, match="it is on device 1, the launch on device 0"):
        launch(away)
    with pytest.raises(ArgumentError, match="it is on device 1, the launch on device 0"):
        launch(Interface(ADDRESS + 64))

    assert len(kernel.driver.launches) == 1


@PATHS
@pytest.mark.parametrize("ailment", ["dead", "elsewhere", "no context", "refused"])
def test_launch_that_cannot_be_made_here_is_made_again(numba: Numba, ailment: str, native: bool) -> None:
    """No module, another device, no context, a stale handle: the loader is asked, with the arguments."""
    asked: list[Any] = []

    def relaunch(config: Any, arguments: tuple[Any, ...], code: int) -> bool:
        asked.append((arguments[0], arguments[3], code))
        return True

    kernel = Kernel(relaunch=relaunch, context=numba.context, device_of=lambda address: 0)
    launch = kernel.bind(native=native)
    kernel.live[0] = ailment != "dead"
    kernel.driver.device = {"elsewhere": 1, "no context": None}.get(ailment, 0)
    kernel.driver.answer = 400 if ailment == "refused" else 0

    launch(2.0, numba.array(), numba.array(), 7)

    assert asked == [(2.0, 7, kernel.driver.answer)]
    assert not kernel.driver.launches


@PATHS
def test_wait_before_a_launch_needs_the_context_of_one_device_too(native: bool) -> None:
    """A thread without a context, one device: the launch is made again before anything is queued."""
    asked: list[int] = []
    kernel = Kernel(one("*f4"), relaunch=lambda config, arguments, code: not asked.append(code), stream=9)
    launch = kernel.bind(native=native)
    kernel.driver.device = None

    launch(Interface(stream=7))

    assert asked == [0]
    assert kernel.untouched


def test_driver_is_asked_for_the_current_device_where_there_are_several(numba: Numba) -> None:
    """With one device the launch itself fails if it must; with several, each launch queries the current device
    first."""
    for device_of, questions in ((None, 0), (lambda address: 0, 1)):
        kernel = Kernel(device_of=device_of, context=numba.context)
        launch = kernel.bind()
        asked: list[int] = []
        kernel.driver.cuCtxGetDevice = lambda asked=asked: (asked.append(0) or 0, 0)  # type: ignore[method-assign]

        launch(2.0, numba.array(), numba.array(), 7)

        assert len(asked) == questions
        assert len(kernel.driver.launches) == 1


@PATHS
def test_driver_error_names_kernel_and_cause(numba: Numba, native: bool) -> None:
    """A code of the driver becomes a LaunchError with the kernel, the shape, the code and a step."""
    asked: list[int] = []
    kernel = Kernel(relaunch=lambda config, arguments, code: asked.append(code))
    launch = kernel.bind(native=native)
    kernel.driver.answer = 701

    with pytest.raises(LaunchError) as refused:
        launch(2.0, numba.array(), numba.array(), 7)

    assert str(refused.value) == (
        "cannot launch saxpy with grid (3, 2, 1), block (32, 4, 1), sharedmem 16: the driver returned 701\n"
        "  hint: use a smaller block, fewer registers (max_registers, launch_bounds) or less shared memory"
    )
    assert not asked, "a launch that is too large is as large elsewhere"


@PATHS
def test_threads_that_launch_at_once_pack_apart(numba: Numba, native: bool) -> None:
    """Each of many threads finds its own bytes at the driver, which looks only after all have packed."""
    count = 8
    kernel, arrays = Kernel(), [numba.array(ADDRESS + 64 * each) for each in range(count)]
    launch = kernel.bind(native=native)
    launch(0.0, None, None, 0)  # leaves a buffer that all may want
    kernel.driver.launches.clear()
    plain, packed = kernel.driver.cuLaunchKernel, threading.Barrier(count)

    def late(*arguments: Any) -> tuple[int]:
        packed.wait(timeout=30)
        return plain(*arguments)

    kernel.driver.cuLaunchKernel = late  # type: ignore[method-assign]
    threads = [
        threading.Thread(target=launch, args=(float(each), arrays[each], arrays[-1 - each], each))
        for each in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    expected = sorted(
        [
            np.float32(i).tobytes(),
            word(ADDRESS + 64 * i),
            word(ADDRESS + 64 * (count - 1 - i)),
            np.int32(i).tobytes(),
        ]
        for i in range(count)
    )
    assert sorted(each[2] for each in kernel.driver.launches) == expected


@PATHS
def test_buffers_are_used_again(numba: Numba, native: bool) -> None:
    """Any number of launches, one after the other, need one buffer."""
    kernel, array = Kernel(), numba.array()
    launch = kernel.bind(native=native)

    for _ in range(7):
        launch(2.0, array, array, 7)

    assert len(kernel.launcher.idle) == int(not native)  # the module packs on the stack


def test_wrong_names_of_a_store_reach_no_code(numba: Numba) -> None:
    """Names and C types are data: a name is a name in a message, whatever it reads like."""
    evil = "x):\n    raise SystemExit #"
    parameters = tuple(Parameter(p.offset, p.size, p.code, evil, evil) for p in SAXPY)
    kernel = Kernel(parameters)

    kernel.bytes_of(2.0, numba.array(), None, 7, native=True)
    with pytest.raises(ArgumentError, match="raise SystemExit"):
        kernel.bind(native=True)(2.0, 3, None, 7)
