"""The stream of a launch, and the streams that it is ordered with: the rule, on both paths of a launch."""

from __future__ import annotations

import ctypes
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numba_kcache.errors import ArgumentError
from numba_kcache.launch import launcher, streams
from numba_kcache.model import Parameter
from tests.support.launching import (
    SHAPE,
    CupyArray,
    DlpackArray,
    Driver,
    Interface,
    Kernel,
    Numba,
    Tensor,
    fake_cupy,
    fake_torch,
    one,
)

ADDRESS = 0x7F0000001000
PATHS = pytest.mark.parametrize("native", [False, True], ids=["checked", "compiled"])
TWO = (Parameter(0, 8, "*kf4", "", "x"), Parameter(8, 8, "*f4", "", "y"))
TORCH, CUPY, NUMBA = 7, 9, 11
"""The streams of the three libraries' arrays in these tests."""


@pytest.fixture(autouse=True)
def current(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, int]]:
    """The current streams of PyTorch and CuPy, whose stand-ins are in `sys.modules` during a test."""
    found = {"torch": {"handle": TORCH}, "cupy": {"handle": CUPY}}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(found["torch"]))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(found["cupy"]))
    return found


def array(library: str, numba: Numba | None = None) -> Any:
    """An array of this library; of Numba with a stream of its own, of `"plain"` Numba on the default stream."""
    if library in ("numba", "plain"):
        return (numba or Numba()).array(ADDRESS, stream=NUMBA if library == "numba" else 0)
    return {"torch": Tensor, "cupy": CupyArray}[library](ADDRESS)


def launched_on(kernel: Kernel) -> list[int]:
    """The stream of each launch."""
    return [stream for _, stream, _ in kernel.driver.launches]


# -- one library ---------------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize(("library", "stream"), [("torch", TORCH), ("cupy", CUPY), ("numba", NUMBA), ("plain", 0)])
def test_launch_goes_to_the_stream_of_its_arrays(library: str, stream: int, native: bool) -> None:
    """Its library's current stream, or a Numba array's own: captures, allocators and later operations see it there."""
    numba = Numba()
    kernel = Kernel(TWO, context=numba.context)
    launch = kernel.bind(native=native)

    for _ in range(3):
        launch(array(library, numba), array(library, numba))

    assert launched_on(kernel) == [stream] * 3
    assert not kernel.waits


@PATHS
def test_launch_follows_the_current_stream(current: Any, native: bool) -> None:
    """A bound launch reads it each time, in the thread that launches."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)

    for handle in (7, 0, 8, 2, 1, 7):
        current["torch"]["handle"] = handle
        launch(Tensor(ADDRESS))

    assert launched_on(kernel) == [7, 0, 8, 2, 0, 7]
    assert not kernel.waits


@PATHS
def test_module_stays_loaded_once_launched_on_a_side_stream(current: Any, native: bool) -> None:
    """The stream may be destroyed or captured: nothing tells the end of the work."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)
    current["cupy"]["handle"] = 0
    launch(CupyArray(ADDRESS))
    before = list(kernel.module.stays)

    current["cupy"]["handle"] = CUPY
    launch(CupyArray(ADDRESS))

    assert (before, kernel.module.stays) == ([False], [True])


def test_compiled_module_launches_on_any_side_stream(current: Any) -> None:
    """A stream that was not seen before needs no interpreted launch."""
    kernel = Kernel(one("*f4"))
    kernel.bind(native=True)
    launch = kernel.launcher.bind(SHAPE)
    launch(CupyArray(ADDRESS))
    launch(CupyArray(ADDRESS))
    before = kernel.launcher.interpreted

    for handle in (CUPY, 8, CUPY, 8, 0, CUPY, 8):
        current["cupy"]["handle"] = handle
        launch(CupyArray(ADDRESS))

    assert kernel.launcher.interpreted == before
    assert launched_on(kernel)[-2:] == [CUPY, 8]


@PATHS
def test_launch_without_arrays_goes_to_the_default_stream(native: bool) -> None:
    """Addresses and numbers name no stream."""
    kernel = Kernel(TWO)
    kernel.bind(native=native)(None, ctypes.c_void_p(ADDRESS))

    assert launched_on(kernel) == [0]
    assert not kernel.waits


@PATHS
def test_attributes_of_a_launch_go_with_the_chosen_stream(native: bool) -> None:
    """A launch with attributes passes a configuration, which has the stream too."""
    kernel = Kernel(one("*f4"), attributes=bytes(72))
    launch = kernel.bind(native=native)

    for _ in range(3):
        launch(CupyArray(ADDRESS))

    assert launched_on(kernel) == [CUPY] * 3


# -- array interfaces ----------------------------------------------------------------------------------


@PATHS
def test_stream_of_an_interface_is_where_to_launch_if_no_other_is_known(native: bool) -> None:
    """It wrote the memory; the launch after it needs no wait."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)

    for stream in (7, 7, None, 1):
        launch(Interface(ADDRESS, stream=stream))

    assert launched_on(kernel) == [7, 7, 0, 0]
    assert not kernel.waits


@PATHS
@pytest.mark.parametrize("turned", [False, True])
def test_stream_of_an_interface_is_no_current_stream(turned: bool, native: bool) -> None:
    """Beside an array with a current stream it is waited for, whichever comes first; and it waits for the launch."""
    kernel = Kernel(TWO)
    arguments = [Interface(ADDRESS, stream=5), CupyArray(ADDRESS)]
    kernel.bind(native=native)(*(arguments[::-1] if turned else arguments))

    assert launched_on(kernel) == [CUPY]
    assert kernel.waits == [(5, CUPY), (CUPY, 5)]


# -- several libraries ---------------------------------------------------------------------------------


@PATHS
@pytest.mark.parametrize(
    ("first", "second", "streams_of"),
    [
        ("torch", "cupy", (TORCH, CUPY)), ("cupy", "torch", (CUPY, TORCH)), ("numba", "cupy", (NUMBA, CUPY)),
        ("torch", "numba", (TORCH, NUMBA)), ("plain", "torch", (0, TORCH)), ("torch", "plain", (TORCH, 0)),
    ],
)  # fmt: skip
def test_first_of_several_libraries_decides_and_the_others_are_ordered_on_both_sides(
    first: str, second: str, streams_of: tuple[int, int], native: bool
) -> None:
    """The launch waits for the others' work, and their later work waits for the launch: by events, on the device."""
    numba = Numba()
    kernel = Kernel(TWO, context=numba.context)
    launch = kernel.bind(native=native)

    for _ in range(2):
        launch(array(first, numba), array(second, numba))

    own, other = streams_of
    assert launched_on(kernel) == [own] * 2
    assert kernel.waits == [(other, own), (own, other)] * 2


@PATHS
def test_captured_stream_comes_first_and_no_other_is_made_to_wait(native: bool) -> None:
    """The launch becomes part of the capture; a stream outside it would become part of it by waiting."""
    kernel = Kernel(TWO)
    kernel.driver.capturing = {CUPY}
    kernel.bind(native=native)(Tensor(ADDRESS), CupyArray(ADDRESS))

    assert launched_on(kernel) == [CUPY]
    assert kernel.waits == [(TORCH, CUPY)]


@PATHS
def test_graph_does_not_wait_for_arrays_of_the_default_stream(native: bool) -> None:
    """It cannot, while a stream that synchronises with the default stream is captured; and a replay comes later."""
    numba = Numba()
    kernel = Kernel(TWO, context=numba.context)
    kernel.driver.capturing = {CUPY}
    kernel.bind(native=native)(array("plain", numba), CupyArray(ADDRESS))

    assert launched_on(kernel) == [CUPY]
    assert not kernel.waits


def test_streams_of_one_capture_wait_for_each_other() -> None:
    """Both are in the graph already."""
    driver = Driver()
    driver.capturing = {7, 9}
    waits = streams.StreamWaits(driver)

    waits.follow(7, [9, 11])

    assert driver.events == [("record", 7), ("wait", 9)]


# -- given streams -------------------------------------------------------------------------------------


@PATHS
def test_given_stream_waits_for_producers_and_nothing_waits_for_it(native: bool) -> None:
    """Overlap is the reason to name one."""
    numba = Numba()
    parameters = (*TWO, Parameter(16, 8, "*f4", "", "z"))
    kernel = Kernel(parameters, stream=3, context=numba.context)
    launch = kernel.bind(native=native)

    for _ in range(2):
        launch(Tensor(ADDRESS), CupyArray(ADDRESS), array("numba", numba))

    assert launched_on(kernel) == [3, 3]
    assert kernel.waits == [(TORCH, 3), (CUPY, 3), (NUMBA, 3)] * 2


@PATHS
def test_default_stream_of_numba_is_ordered_with_foreign_arrays_only(native: bool) -> None:
    """What a launch of an unedited Numba program means: its own arrays' streams do not count."""
    numba = Numba()
    kernel = Kernel(TWO, stream=0, context=numba.context)
    launch = kernel.bind(native=native)

    launch(array("numba", numba), array("numba", numba))
    assert not kernel.waits
    launch(array("numba", numba), Tensor(ADDRESS))

    assert launched_on(kernel) == [0, 0]
    assert kernel.waits == [(TORCH, 0), (0, TORCH)]


@PATHS
def test_refused_launch_orders_nothing(native: bool) -> None:
    """All arguments are checked before any stream waits."""
    kernel = Kernel((*TWO, Parameter(16, 4, "i4", "", "n")))
    with pytest.raises(ArgumentError):
        kernel.bind(native=native)(Tensor(ADDRESS), CupyArray(ADDRESS), 0.5)

    assert kernel.untouched


# -- DLPack --------------------------------------------------------------------------------------------


class JaxArray(DlpackArray):
    """An array like JAX's: an interface of version 2, without a stream, and DLPack without flags."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        shape, data = self.array.shape, (self.array.ctypes.data, True)
        return {"shape": shape, "typestr": "<f4", "data": data, "version": 2}

    def __dlpack__(self, *, stream: int, **newer: Any) -> Any:
        capsule = super().__dlpack__(stream=stream)
        ctypes.c_int32.from_address(_pointer_of(capsule, b"dltensor") + 8).value = 2  # on a device, to all appearance
        return capsule


_pointer_of = ctypes.PyDLL(None).PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
JaxArray.__module__ = "jaxlib._jax"


def exported(kind: type[DlpackArray] = JaxArray) -> Any:
    return kind(np.arange(4, dtype="f4"), versioned=False)


@PATHS
def test_exporter_without_a_stream_is_told_that_of_the_launch_and_kept(native: bool) -> None:
    """DLPack orders its own work; its memory is kept until an event after the launch, so it may be deleted."""
    kernel, value = Kernel(one("*kf4")), exported()
    launch = kernel.bind(native=native)

    for _ in range(3):
        launch(value)

    assert set(value.streams) == {1}
    assert launched_on(kernel) == [0] * 3
    assert kernel.held == [(0, 1)] * 3


@PATHS
@pytest.mark.parametrize("turned", [False, True])
def test_exporter_beside_a_library_is_told_its_stream(turned: bool, native: bool) -> None:
    """Wherever it stands among the arguments."""
    parameters = (Parameter(0, 8, "*kf4", "", "x"), Parameter(8, 8, "*kf4", "", "y"))
    kernel, value = Kernel(parameters), exported()
    launch = kernel.bind(native=native)
    arguments = (CupyArray(ADDRESS), value) if turned else (value, CupyArray(ADDRESS))

    for _ in range(3):
        launch(*arguments)
        assert value.streams[-1] == CUPY

    assert launched_on(kernel) == [CUPY] * 3
    assert kernel.held == [(CUPY, 1)] * 3


@PATHS
def test_immutable_array_is_an_input(native: bool) -> None:
    """A pointer through which the kernel may write is refused, although DLPack carries no flag."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)
    launch(exported(DlpackArray))

    for _ in range(2):
        with pytest.raises(ArgumentError, match=r"JAX's arrays are inputs.*the parameter is not const"):
            launch(exported())

    assert len(kernel.driver.launches) == 1


class Exchanged(DlpackArray):
    """An array of a library that is known by DLPack's exchange API alone."""

    stream = 5


def _stream_of(_device_type: int, _ordinal: int, out: Any) -> int:
    out[0] = Exchanged.stream
    return 0


_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))(_stream_of)
_REFUSING = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(lambda _object, _tensor: -1)
_API = (ctypes.c_size_t * 7)(
    0, 0, 0, 0, 0, *(ctypes.cast(each, ctypes.c_void_p).value for each in (_REFUSING, _FUNCTION))
)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
Exchanged.__dlpack_c_exchange_api__ = _new_capsule(  # type: ignore[attr-defined]
    ctypes.addressof(_API), b"dlpack_exchange_api", None
)


@PATHS
def test_library_with_the_exchange_api_has_a_current_stream(native: bool) -> None:
    """Any type with DLPack's C functions tells the current stream of its library."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)

    for _ in range(3):
        launch(exported(Exchanged))

    assert launched_on(kernel) == [5] * 3
    assert not kernel.waits


# -- launches by Numba itself ---------------------------------------------------------------------------


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """The driver of launches that other code makes."""
    found = Driver()
    monkeypatch.setattr(launcher, "bindings", lambda: found)
    monkeypatch.setattr(streams, "waits_in", lambda _context: streams.StreamWaits(found))
    monkeypatch.setattr(launcher, "context_id", lambda: 1)
    monkeypatch.setattr(launcher, "current_device", lambda: SimpleNamespace(ordinal=0))
    return found


@pytest.mark.parametrize(
    ("stream", "own", "events"),
    [
        (None, 0, [("record", TORCH), ("wait", 0), ("record", CUPY), ("wait", 0), "launch",
                   ("record", 0), ("wait", TORCH), ("record", 0), ("wait", CUPY)]),
        (0, 0, [("record", TORCH), ("wait", 0), ("record", CUPY), ("wait", 0), "launch",
                ("record", 0), ("wait", TORCH), ("record", 0), ("wait", CUPY)]),
        (3, 3, [("record", TORCH), ("wait", 3), ("record", CUPY), ("wait", 3), "launch"]),
    ],
)  # fmt: skip
def test_launch_by_numba_itself_is_ordered(driver: Any, stream: Any, own: int, events: list[Any]) -> None:
    """Without a stream it goes to the default one, since Numba takes no host arrays on others."""
    given: list[Any] = []

    def launch(handle: Any) -> None:
        given.append(handle)
        driver.events.append("launch")

    launcher.around(launch, stream, (Tensor(ADDRESS), 5, (CupyArray(ADDRESS),)))

    assert given == [own]
    assert driver.events == events


def test_launch_by_numba_itself_joins_a_capture(driver: Any) -> None:
    """A launch on the default stream would be no part of the graph."""
    driver.capturing = {CUPY}
    given: list[Any] = []

    launcher.around(given.append, None, (CupyArray(ADDRESS),))

    assert given == [CUPY]


def test_launch_by_numba_itself_without_arrays_asks_for_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host arrays are copied by Numba on its default stream."""
    monkeypatch.setattr(launcher, "current_device", lambda: pytest.fail("no device is needed"))
    given: list[Any] = []

    launcher.around(given.append, None, (np.zeros(3), 5))

    assert given == [0]


def test_launch_by_numba_itself_orders_and_keeps_an_exporter(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba reads its interface, which says nothing about pending writes."""
    held: list[Any] = []
    keep = lambda _waits, handle, borrowed: held.append((handle, len(borrowed)))  # noqa: E731
    monkeypatch.setattr(streams.StreamWaits, "hold", keep)
    value = exported()

    launcher.around(lambda _stream: None, 5, (value,))

    assert value.streams == [5]
    assert held == [(5, 1)]


# -- what a launch borrowed ----------------------------------------------------------------------------


class Events(Driver):
    """A driver whose events pass when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: set[str] = set()
        self.modes: list[int] = []
        self.destroyed = 0

    def cuEventQuery(self, event: str) -> tuple[int]:
        assert self.modes[-1] == 2, "in relaxed mode, or a capture of another thread ends"
        return (0 if event in self.passed else 600,)

    def cuEventSynchronize(self, event: str) -> tuple[int]:
        self.passed.add(event)
        return (0,)

    def cuEventDestroy_v2(self, event: str) -> tuple[int]:
        self.destroyed += 1
        return (0,)

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[int, int]:
        self.modes.append(mode)
        return 0, 0


class Passed(Events):
    """A driver whose events have all passed, in a capture."""

    def __init__(self) -> None:
        super().__init__()
        self.capturing = {7}

    def cuEventQuery(self, event: str) -> tuple[int]:
        return (0,)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Events:
    made = Events()
    monkeypatch.setattr("numba_kcache.launch.bindings", lambda: made)
    streams.StreamWaits(Passed()).hold(7, ())  # frees what other tests have borrowed, and keeps nothing
    monkeypatch.setattr(streams, "HELD_LIMIT", 3)
    made.modes.clear()
    return made


def borrowed(events: Events, count: int) -> list[weakref.ref[Any]]:
    """Objects that so many launches borrow, one after another."""
    found = []
    for _ in range(count):
        one = set[int]()
        streams.StreamWaits(events).hold(7, [one])
        found.append(weakref.ref(one))
    return found


def are_alive(objects: list[weakref.ref[Any]]) -> list[bool]:
    return [each() is not None for each in objects]


def test_borrowed_objects_are_freed_by_a_later_launch(events: Events) -> None:
    """In order, once the event after their launch has passed; no launch waits for them."""
    objects = borrowed(events, 2)
    assert are_alive(objects) == [True, True]

    events.passed.add("event 1")
    objects += borrowed(events, 1)

    assert are_alive(objects) == [False, True, True]
    assert events.destroyed == 1
    assert events.modes == [2, 0] * 3


def test_list_of_borrowed_objects_is_bounded(events: Events) -> None:
    """With thousands of pending launches, more than a driver queues, the oldest is waited for."""
    assert are_alive(borrowed(events, 9)) == [False] * 6 + [True] * 3


def test_captured_launch_keeps_nothing(events: Events) -> None:
    """A graph may run at any time: its arguments are the user's to keep, and no event of it ever passes."""
    events.capturing = {7}

    assert are_alive(borrowed(events, 1)) == [False]
