"""Grid, block, shared memory and stream as users write them, and the limits of the device."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numba_kcache import launch as devices
from numba_kcache.errors import LaunchConfigError, LaunchError
from numba_kcache.launch import DeviceLimits, LaunchShape, check_launch, launch_shape, stream_handle, stream_identity
from numba_kcache.launch.failures import launch_error
from numba_kcache.launch.streams import StreamWaits
from tests.support.launching import Driver

LIMITS = DeviceLimits((2**31 - 1, 65535, 65535), (1024, 1024, 64), 512, 101376, 1024)


@pytest.mark.parametrize(("written", "read"), [
    (5, (5, 1, 1)), ((5,), (5, 1, 1)), ((5, 6), (5, 6, 1)), ((5, 6, 7), (5, 6, 7)), ([5, 6], (5, 6, 1)),
    (np.int64(5), (5, 1, 1)), ((np.uint8(5), 6), (5, 6, 1)), (np.int32([5, 6]).tolist(), (5, 6, 1)),
])  # fmt: skip
def test_extents_are_read_as_numba_reads_them(written: Any, read: tuple[int, int, int]) -> None:
    """An integer or one to three of them; missing extents are 1, and the result has plain integers."""
    shape = launch_shape(written, written, np.int64(7))

    assert shape == (read, read, 7)
    assert {type(each) for each in (*shape.grid, *shape.block, shape.shared_bytes)} == {int}


@pytest.mark.parametrize(("grid", "message"), [
    (2.0, ("cannot launch with grid = 2.0: 2.0 is float, not an integer\n"
          "  hint: divide with // (rounding up: (n + threads - 1) // threads)")),
    (True, "cannot launch with grid = True: True is bool, not an integer\n  hint: give integers"),
    ((1, None), ("cannot launch with grid = (1, None): None is NoneType, not an integer\n"
     "  hint: give integers")),
    ("8", "cannot launch with grid = '8': '8' is str, not an integer\n  hint: give integers"),
    ((), "cannot launch with grid = (): it has 0 extents\n  hint: give one to three integers"),
    ((1, 2, 3, 4), ("cannot launch with grid = (1, 2, 3, 4): it has 4 extents\n"
     "  hint: give one to three integers")),
])  # fmt: skip
def test_what_is_no_extent_is_refused(grid: Any, message: str) -> None:
    """Floats, bools, None, text, no extents or too many: the error shows the value."""
    with pytest.raises(LaunchConfigError) as refused:
        launch_shape(grid, 32)

    assert str(refused.value) == message


REFUSED = [
    (((1, 1, 1), (1, 1, 65), 0), ("cannot launch k with block.z = 65: this device takes 1 to 64\n"
     "  hint: fold the excess into another axis or loop inside the kernel")),
    (((0, 1, 1), (1, 1, 65), 0), ("cannot launch k with grid.x = 0: this device takes 1 to 2147483647\n"
     "  hint: skip the launch where there is nothing to do")),
    (((-1, 1, 1), (1, 1, 1), 0), ("cannot launch k with grid.x = -1: this device takes 1 to 2147483647\n"
     "  hint: a count is not negative; blocks are (n + threads - 1) // threads")),
    (((1, 1, 1), (-1, 1, 1), 0), ("cannot launch k with block.x = -1: this device takes 1 to 1024\n"
     "  hint: a count is not negative")),
    (((1, 65536, 1), (1, 1, 1), 0), ("cannot launch k with grid.y = 65536: this device takes 1 to 65535\n"
     "  hint: let each thread take several elements in a loop")),
    (((1, 1, 1), (32, 32, 1), 0), ("cannot launch k with 1024 threads per block: "
     "it takes at most 512 on this device\n"
     "  hint: use a smaller block; registers and __launch_bounds__ can lower the limit of a kernel")),
    (((1, 1, 1), (32, 1, 1), 100353), ("cannot launch k with sharedmem = 100353: "
     "a block takes 0 to 100352 bytes "
     "beside the 1024 of its static arrays\n  hint: use smaller tiles")),
    (((1, 1, 1), (32, 1, 1), -1), ("cannot launch k with sharedmem = -1: a block takes 0 to 100352 bytes "
     "beside the 1024 of its static arrays\n  hint: sharedmem is a number of bytes")),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "message"), REFUSED)
def test_first_offender_is_named_with_its_limit(shape: Any, message: str) -> None:
    """A shape beyond the device's limits is refused before the launch, in the order grid, block, threads, shared
    memory."""
    with pytest.raises(LaunchConfigError) as refused:
        check_launch(LaunchShape(*shape), LIMITS, kernel="k")

    assert str(refused.value) == message


@pytest.mark.parametrize("shape", [
    ((2**31 - 1, 65535, 65535), (1, 1, 1), 0), ((1, 1, 1), (512, 1, 1), 0), ((1, 1, 1), (1, 8, 64), 0),
    ((1, 1, 1), (1, 1, 1), 100352),
])  # fmt: skip
def test_limits_themselves_are_let_through(shape: Any) -> None:
    """The value of each limit is still accepted."""
    check_launch(LaunchShape(*shape), LIMITS)


class Protocol:
    """A stream with nothing but the protocol's method."""

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 40


CUstream = type("CUstream", (), {"__int__": lambda self: 48})


@pytest.mark.parametrize(("stream", "handle"), [
    (0, 0), (None, 0), (17, 17), (np.int64(17), 17), (Protocol(), 40), (CUstream(), 48),
    (SimpleNamespace(cuda_stream=41), 41),
    (SimpleNamespace(ptr=42), 42),
    (SimpleNamespace(handle=43), 43),
    (SimpleNamespace(handle=CUstream()), 48),
    (SimpleNamespace(handle=ctypes.c_void_p(44)), 44),
    (SimpleNamespace(handle=ctypes.c_void_p()), 0),
    (SimpleNamespace(__cuda_stream__=(0, 45)), 45),
    (SimpleNamespace(stream=Protocol()), 40),
])  # fmt: skip
def test_stream_of_any_library_has_a_handle(stream: Any, handle: int) -> None:
    """The protocol, PyTorch's, CuPy's, Numba's and the driver's own streams, graph builders, handles."""
    assert stream_handle(stream) == handle


@pytest.mark.parametrize("stream", [True, -1, 1.5, "0", object()])
def test_what_is_no_stream_is_refused(stream: Any) -> None:
    """A bool is no handle, and an object without a handle no stream."""
    with pytest.raises(LaunchConfigError, match="it is not a stream"):
        stream_handle(stream)


def test_default_stream_has_one_order() -> None:
    """0 and 1 name one stream; every other handle is a stream of its own."""
    assert [stream_identity(handle) for handle in (0, 1, 2, 77)] == [0, 0, 2, 77]


def test_order_is_made_with_events_on_the_device() -> None:
    """An event is recorded on the producer's stream, and the consumer's waits for it; one event serves all pairs."""
    driver = Driver()
    waits = StreamWaits(driver)

    waits.enqueue_wait(7, 9)
    waits.enqueue_wait(8, 9)

    assert driver.events == [("record", 7), ("wait", 9), ("record", 8), ("wait", 9)]
    assert driver.created == 1


def test_stream_that_takes_no_event_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream under capture may refuse an event: the error has the stream and the driver's status."""
    driver = Driver()
    names = {905: "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"}
    monkeypatch.setattr(devices.Driver, "name_of", lambda _self, code: names[code])
    driver.cuStreamWaitEvent = lambda *_: (905,)  # type: ignore[method-assign]

    with pytest.raises(LaunchError, match="stream 0x9: the driver returned CUDA_ERROR_STREAM_CAPTURE_ISOLATION"):
        StreamWaits(driver).enqueue_wait(7, 9)


@pytest.mark.parametrize(("name", "words"), [
    ("INVALID_VALUE", "launch bounds"), ("NOT_INITIALIZED", "does not survive"), ("DEINITIALIZED", "shutting down"),
    ("INVALID_CONTEXT", "make a device current"), ("NO_BINARY_FOR_GPU", "arch='auto'"),
    ("INVALID_PTX", "the driver is older"), ("INVALID_HANDLE", "was destroyed"),
    ("LAUNCH_OUT_OF_RESOURCES", "fewer registers"), ("CONTEXT_IS_DESTROYED", "loads the kernel again"),
    ("COOPERATIVE_LAUNCH_TOO_LARGE", "max_cooperative_grid_blocks"), ("ILLEGAL_ADDRESS", "an earlier kernel failed"),
    ("MISALIGNED_ADDRESS", "an earlier kernel failed"), ("LAUNCH_FAILED", "an earlier kernel failed"),
    ("STREAM_CAPTURE_UNSUPPORTED", "that is being captured"), ("STREAM_CAPTURE_IMPLICIT", "legacy default stream"),
])  # fmt: skip
def test_hint_of_a_launch_that_fails_is_that_of_the_drivers_error(name: str, words: str) -> None:
    """By the driver's name of its number."""
    code = getattr(pytest.importorskip("cuda.bindings.driver").CUresult, f"CUDA_ERROR_{name}")

    assert words in launch_error("saxpy", ((1, 1, 1), (1, 1, 1), 0), int(code)).hint


def test_capture_waits_for_a_stream_outside_it_through_the_graph() -> None:
    """The graph waits for an event that is recorded outside; within one capture, and without one, the wait is as
    usual."""
    driver = Driver()
    waits = StreamWaits(driver)
    driver.capturing = {9}
    waits.enqueue_wait(7, 9)
    kept = driver.events.copy()
    driver.capturing = {7, 9}
    waits.enqueue_wait(7, 9)
    created = driver.created
    driver.capturing = set()
    waits.enqueue_wait(7, 9)

    assert kept == [("record", 7), ("external", 9)]
    assert driver.events[2:] == [("record", 7), ("wait", 9)] * 2
    assert created == driver.created == 2, "the graph's event is not recorded again, the other one is"


def test_default_stream_cannot_be_waited_for_in_a_capture() -> None:
    """The wait would invalidate the capture: it is refused with a hint, and no event is recorded."""
    driver = Driver()
    driver.capturing = {9}

    with pytest.raises(
        LaunchError, match=r"(?s)wait for stream 0x1 on stream 0x9: .*hint: in the argument's library, make"
    ):
        StreamWaits(driver).enqueue_wait(1, 9)
    assert not driver.events
