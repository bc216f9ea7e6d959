"""Arguments of a launch: what is packed, what is refused and how the refusal reads, on both paths."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from numba_kcache.errors import ArgumentError, LaunchError
from numba_kcache.launch.arguments import GENERATE_AFTER
from numba_kcache.model.parameter import Parameter
from tests.support.launching import SAXPY, Interface, Kernel, Numba, one

ADDRESS = 0x7F0000001000
PATHS = pytest.mark.parametrize("generated", [False, True], ids=["interpreted", "generated"])


@pytest.fixture(scope="module")
def numba() -> Numba:
    return Numba()


def word(address: int) -> bytes:
    return address.to_bytes(8, "little")


@PATHS
def test_saxpy_arrives_as_the_compiler_laid_it_out(numba: Numba, generated: bool) -> None:
    """Each parameter has the bytes of the C type; grid, block, shared memory and stream are the binding's."""
    kernel = Kernel(stream=5)

    read = kernel.bytes_of(2, numba.array(ADDRESS), numba.array(ADDRESS + 64), 7, generated=generated)

    assert read == [np.float32(2).tobytes(), word(ADDRESS), word(ADDRESS + 64), np.int32(7).tobytes()]
    assert kernel.driver.launches == [((3, 2, 1, 32, 4, 1, 16), 5, read)]


@PATHS
def test_kernel_without_parameters_launches(generated: bool) -> None:
    """No parameters, no arguments, one launch."""
    assert Kernel(()).bytes_of(generated=generated) == []


def test_bound_launch_goes_on_after_its_code_is_generated(numba: Numba) -> None:
    """A launch that was bound before the code was generated takes it on, and packs the same bytes."""
    kernel, array = Kernel(), numba.array(ADDRESS)
    launch = kernel.bind()
    interpreted = launch.__code__

    for _ in range(GENERATE_AFTER + 3):
        launch(2.0, array, array, 7)

    assert launch.__code__ is not interpreted
    assert [each[2] for each in kernel.driver.launches] == [kernel.driver.launches[0][2]] * (GENERATE_AFTER + 3)


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
        "  hint: convert it with .astype('float32'), or change the parameter"),
    ),
    "strided view": (
        lambda n: (2.0, n.array(), n.array(shape=(512,), strides=(8,)), 7),
        ("cannot pass numba.DeviceNDArray of float32 (512,) as argument 3 of saxpy (float* y): "
        "it does not lie in one piece, its strides are (8,) bytes\n"
        "  hint: pass a contiguous copy, or decorate with strided=True and pass the strides too"),
    ),
    "host array": (
        lambda n: (2.0, np.zeros(3, "f4"), n.array(), 7),
        ("cannot pass numpy.ndarray of float32 (3,) as argument 2 of saxpy (float const* x): "
        "its memory is on the host\n"
        "  hint: copy it with cuda.to_device(), or wrap it in cuda.In(), cuda.Out() or cuda.InOut()"),
    ),
    "read-only": (
        lambda n: (2.0, n.array(), Interface(readonly=True), 7),
        ("cannot pass tests.Interface as argument 3 of saxpy (float* y): "
        "it is read-only, the parameter is not const\n  hint: declare it const, or pass a copy"),
    ),
    "too large an int": (
        lambda n: (2.0, n.array(), n.array(), 1 << 31),
        ("cannot pass 2147483648 (int) as argument 4 of saxpy (int n): "
        "the parameter holds -2147483648 to 2147483647"),
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
        "cannot pass 1e+39 (float) as argument 1 of saxpy (float a): it is too large for the parameter",
    ),
    "text": (
        lambda n: ("2", n.array(), n.array(), 7),
        ("cannot pass '2' (str) as argument 1 of saxpy (float a): "
        "the parameter is a number\n  hint: convert it first"),
    ),
    "pointer for a number": (
        lambda n: (ctypes.c_void_p(64), n.array(), n.array(), 7),
        (
            "cannot pass 64 (ctypes.c_void_p) as argument 1 of saxpy (float a): "
            "the parameter is a number\n  hint: convert it first"
        ),
    ),
    "None for a number": (
        lambda n: (2.0, n.array(), n.array(), None),
        ("cannot pass None as argument 4 of saxpy (int n): "
        "the parameter is an integer\n  hint: None stands for a null pointer only"),
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
def test_unfit_argument_is_refused_before_the_driver(numba: Numba, case: str, generated: bool) -> None:
    """What does not fit is refused with position, name, C type, the value and a hint; nothing is queued."""
    make, message = REFUSED[case]
    kernel = Kernel()
    launch = kernel.bind(generated=generated)

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
    "memory of Numba": (lambda n: n.array(ADDRESS).gpu_data, ADDRESS),
    "read-only for const": (lambda n: Interface(ADDRESS, readonly=True), ADDRESS),
}


@PATHS
@pytest.mark.parametrize("case", ACCEPTED_POINTERS)
def test_pointer_takes_what_stands_for_device_memory(numba: Numba, case: str, generated: bool) -> None:
    """Device memory in each of its forms becomes its address."""
    make, address = ACCEPTED_POINTERS[case]

    assert Kernel(one("*kf4")).bytes_of(make(numba), generated=generated) == [word(address)]


@PATHS
def test_strided_kernels_take_strided_views(numba: Numba, generated: bool) -> None:
    """`strided=True` passes the address of the first element, whatever the strides."""
    view = numba.array(ADDRESS, shape=(8,), strides=(-8,))

    assert Kernel(one("*f4"), strided=True).bytes_of(view, generated=generated) == [word(ADDRESS)]


@PATHS
def test_argument_of_another_stream_is_waited_for_on_the_device(numba: Numba, generated: bool) -> None:
    """An argument of another stream is ordered before the launch; one of the same, or of none, is not."""
    kernel = Kernel(stream=9)
    launch = kernel.bind(generated=generated)

    launch(2.0, Interface(stream=7), numba.array(stream=11), 5)
    launch(2.0, Interface(stream=9), Interface(stream=None), 5)

    assert kernel.waits == [(7, 9), (11, 9)]
    assert len(kernel.driver.launches) == 2


@PATHS
def test_default_stream_has_two_names(generated: bool) -> None:
    """Handles 0 and 1 are one stream: nothing to wait for between them."""
    kernel = Kernel(one("*f4"), stream=0)

    kernel.bytes_of(Interface(stream=1), generated=generated)

    assert not kernel.waits


@PATHS
def test_refusal_of_a_later_argument_queues_no_wait(generated: bool) -> None:
    """Nothing is queued, no event either, before every argument is checked."""
    kernel = Kernel(stream=9)
    launch = kernel.bind(generated=generated)

    with pytest.raises(ArgumentError):
        launch(2.0, Interface(stream=7), Interface(), 5.5)

    assert kernel.untouched


@PATHS
def test_array_of_another_device_is_refused(numba: Numba, generated: bool) -> None:
    """With several devices an address is looked up, unless Numba's own array says it is at home."""
    home, away = (
        numba.array(ADDRESS),
        numba.array(ADDRESS + 64, context=object.__new__(type("Other", (), {}))),
    )
    kernel = Kernel(one("*f4"), context=numba.context, device_of=lambda address: int(address != ADDRESS))
    launch = kernel.bind(generated=generated)

    launch(home)
    with pytest.raises(ArgumentError, match="it is on device 1, the launch on device 0"):
        launch(away)
    with pytest.raises(ArgumentError, match="it is on device 1, the launch on device 0"):
        launch(Interface(ADDRESS + 64))

    assert len(kernel.driver.launches) == 1


@PATHS
@pytest.mark.parametrize("ailment", ["dead", "elsewhere", "no context", "refused"])
def test_launch_that_cannot_be_made_here_is_made_anew(numba: Numba, ailment: str, generated: bool) -> None:
    """No module, another device, no context, a stale handle: the loader is asked, with the arguments."""
    asked: list[Any] = []

    def relaunch(arguments: tuple[Any, ...], code: int) -> bool:
        asked.append((arguments[0], arguments[3], code))
        return True

    kernel = Kernel(relaunch=relaunch, context=numba.context, device_of=lambda address: 0)
    launch = kernel.bind(generated=generated)
    kernel.live[0] = ailment != "dead"
    kernel.driver.device = {"elsewhere": 1, "no context": None}.get(ailment, 0)
    kernel.driver.answer = 400 if ailment == "refused" else 0

    launch(2.0, numba.array(), numba.array(), 7)

    assert asked == [(2.0, 7, kernel.driver.answer)]
    assert not kernel.driver.launches


@PATHS
def test_driver_error_names_kernel_and_cause(numba: Numba, generated: bool) -> None:
    """A code of the driver becomes a LaunchError with the kernel, the shape, the code and a step."""
    kernel = Kernel()
    launch = kernel.bind(generated=generated)
    kernel.driver.answer = 701

    with pytest.raises(LaunchError) as refused:
        launch(2.0, numba.array(), numba.array(), 7)

    assert str(refused.value) == (
        "cannot launch saxpy with grid (3, 2, 1), block (32, 4, 1), sharedmem 16: the driver answered 701\n"
        "  hint: use a smaller block, fewer registers (max_registers, launch_bounds) or less shared memory"
    )


@PATHS
def test_threads_that_launch_at_once_pack_apart(numba: Numba, generated: bool) -> None:
    """Each of many threads finds its own bytes at the driver, which looks only after all have packed."""
    count = 8
    kernel, arrays = Kernel(), [numba.array(ADDRESS + 64 * each) for each in range(count)]
    launch = kernel.bind(generated=generated)
    plain, packed = kernel.driver.cuLaunchKernel, threading.Barrier(count)

    def late(*arguments: Any) -> tuple[int]:
        packed.wait(timeout=30)
        return plain(*arguments)

    kernel.driver.cuLaunchKernel = late  # type: ignore[method-assign]
    if generated:
        kernel.launcher._namespace["launch_kernel"] = late
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


def test_buffers_are_used_again(numba: Numba) -> None:
    """A million launches need one buffer; a thousand show it."""
    kernel, array = Kernel(), numba.array()
    launch = kernel.bind(generated=True)

    for _ in range(1000):
        launch(2.0, array, array, 7)

    assert len(kernel.launcher.idle) == 1


def test_wrong_names_of_a_store_reach_no_code(numba: Numba) -> None:
    """Names and C types are data: what would be code in the generated source is a name in a message."""
    evil = "x):\n    raise SystemExit #"
    parameters = tuple(Parameter(p.offset, p.size, p.code, evil, evil) for p in SAXPY)
    kernel = Kernel(parameters)

    kernel.bytes_of(2.0, numba.array(), None, 7, generated=True)
    with pytest.raises(ArgumentError, match="raise SystemExit"):
        kernel.bind(generated=True)(2.0, 3, None, 7)
