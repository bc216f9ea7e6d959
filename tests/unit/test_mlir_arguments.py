"""Arguments of numba-cuda-mlir's kernels: both launch paths pass the same bytes to the driver, on the same stream."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numba_kcache import cached_kernel
from numba_kcache.model import Parameter
from tests.support.launching import CupyArray, Interface, Kernel, fake_cupy, fake_torch
from tests.support.resolving import definition_of

mlir_cuda = pytest.importorskip("numba_cuda_mlir.cuda")

from numba_kcache.frontends.numba import surface  # noqa: E402
from numba_kcache.frontends.numba.arguments import TypedLauncher, codes_of, lay_out, make_launcher  # noqa: E402
from numba_kcache.frontends.numba.mlir import MLIR  # noqa: E402

ADDRESS = 0x7F0000001000


@pytest.fixture(params=[False, True], ids=["interpreted", "native"])
def native(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    surface(MLIR)  # its imports need the real modules
    current = {"handle": 0}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(current))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(current))
    return current


class Typed:
    """A kernel of one signature on the fake driver, launched without a stream.

    Attributes:
        refused: Arguments that were handed on.
    """

    def __init__(self, *kinds: Any, native: bool, defaults: Sequence[Any] = (), stream: Any = None) -> None:
        codes, found, offset = [code for each in kinds for code in codes_of(MLIR, each)], list[Parameter](), 0
        for code in codes:
            size = int(code[1:]) * (2 if code[0] == "c" else 1)
            offset = -(-offset // size) * size
            found.append(Parameter(offset, size, "?"))
            offset += size
        self.refused: list[Any] = []
        self.interpreted = 0
        test = self

        class Counting(TypedLauncher):
            def _slow(self, *given: Any) -> None:
                test.interpreted += 1
                super()._slow(*given)

        def make(loaded: Any, name: str, parameters: Any, **options: Any) -> Any:
            return Counting(
                loaded, name, parameters, flavour=MLIR, kinds=kinds,
                complete=lambda given: given + tuple(defaults[: len(kinds) - len(given)]),
                otherwise=lambda config, given: self.refused.append(given), **options,
            )  # fmt: skip

        self.kernel = Kernel(lay_out("k", codes, found), stream=stream)
        self.kernel.launcher_class = make
        self.launch = self.kernel.bind(native=native)

    @property
    def launches(self) -> list[tuple[int, bytes]]:
        """Stream and parameters of each launch."""
        return [(stream, b"".join(values)) for _, stream, values in self.kernel.driver.launches]


def array(element: str = "float32", axes: int = 1, layout: str = "C", readonly: bool = False) -> Any:
    types = surface(MLIR).types
    return types.Array(getattr(types, element), axes, layout, readonly=readonly)


def values(address: int, *rest: int) -> bytes:
    """The parameters for an array of numba-cuda-mlir: the address twice, the offset, extents, and strides in
    elements."""
    return struct.pack(f"<3Q{len(rest)}q", address, address, 0, *rest)


class Chosen(CupyArray):
    """A subclass of CuPy's array whose interface names no stream."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {**super().__cuda_array_interface__, "stream": None}


def test_arrays_of_any_library_have_the_same_parameters(libraries: dict[str, int], native: bool) -> None:
    """CuPy's arrays and arrays with an interface take the fast path once their types are known."""
    typed = Typed(array(), native=native)

    typed.launch(CupyArray(ADDRESS))
    typed.launch(Interface(ADDRESS, shape=(4,)))

    assert typed.launches == [(0, values(ADDRESS, 4, 1))] * 2
    assert typed.interpreted == (0 if native else 2)


@pytest.mark.parametrize("kind", [CupyArray, Chosen], ids=["CuPy", "of a class of its own"])
def test_launch_without_a_stream_goes_to_that_of_its_arrays(libraries: dict[str, int], native: bool, kind: Any) -> None:
    """The library's current stream counts, not the stream of the launch before."""
    typed = Typed(array(), native=native)

    for handle in (0, 7, 0, 9):
        libraries["handle"] = handle
        typed.launch(kind(ADDRESS))

    assert [stream for stream, _ in typed.launches] == [0, 7, 0, 9]
    assert typed.kernel.waits == []


def test_launch_on_a_stream_waits_for_that_of_its_arrays(libraries: dict[str, int], native: bool) -> None:
    """The device waits, and the launch is on the given stream."""
    typed = Typed(array(), native=native, stream=5)
    libraries["handle"] = 7

    typed.launch(CupyArray(ADDRESS))

    assert [stream for stream, _ in typed.launches] == [5]
    assert set(typed.kernel.waits) == {(7, 5)}


def test_order_of_foreign_arrays_is_part_of_their_type(libraries: dict[str, int], native: bool) -> None:
    """Arrays in C order, in Fortran order and in neither have three types."""
    orders = {"C": None, "F": (4, 8), "A": (24, 8)}
    for layout in orders:
        typed = Typed(array(axes=2, layout=layout), native=native)
        for strides in orders.values():
            typed.launch(Interface(ADDRESS, shape=(2, 3), strides=strides))
        for order in ("C", "F"):
            typed.launch(CupyArray(ADDRESS, shape=(2, 3), order=order))
        typed.launch(CupyArray(ADDRESS, shape=(2, 3), contiguous=False))
        assert len(typed.launches) == 2
        assert len(typed.refused) == 4


def test_strides_that_are_said_count_as_they_are(libraries: dict[str, int], native: bool) -> None:
    """Stated strides are used unchanged, also for an axis of one item, where they have no effect."""
    typed = Typed(array(axes=2), native=native)

    typed.launch(Interface(ADDRESS, shape=(1, 3), strides=(12, 4)))
    typed.launch(Interface(ADDRESS, shape=(1, 3), strides=(400, 4)))

    assert typed.launches == [(0, values(ADDRESS, 1, 3, 3, 1))]
    assert len(typed.refused) == 1


def test_other_elements_axes_and_permissions_are_other_types(libraries: dict[str, int], native: bool) -> None:
    """Each is passed to the dispatcher without a launch; a read-only array goes to a kernel of its type."""
    typed = Typed(array(), native=native)
    for other in (
        Interface(ADDRESS, "f8", shape=(4,)), Interface(ADDRESS, shape=(2, 2)), CupyArray(ADDRESS, "i4"),
        Interface(ADDRESS, shape=(4,), readonly=True),
    ):  # fmt: skip
        typed.launch(other)
    assert len(typed.refused) == 4
    assert typed.launches == []

    typed = Typed(array(readonly=True), native=native)
    typed.launch(Interface(ADDRESS, shape=(4,), readonly=True))
    assert typed.launches == [(0, values(ADDRESS, 4, 1))]


def test_complex_number_is_one_parameter(native: bool) -> None:
    """Both parts are one parameter, and the next parameter has the right offset."""
    types = surface(MLIR).types
    typed = Typed(types.complex64, types.int32, types.complex128, native=native)

    typed.launch(np.complex64(1 - 2j), np.int32(3), 4 + 5j)

    assert typed.launches == [(0, struct.pack("<ffidd", 1, -2, 3, 4, 5))]
    assert typed.interpreted == (0 if native else 1)


def test_numbers_go_by_the_type_of_the_kernel(native: bool) -> None:
    """A number of another class is passed to the dispatcher."""
    types = surface(MLIR).types
    typed = Typed(types.int64, types.float16, types.boolean, native=native)

    typed.launch(5, np.float16(0.5), True)
    for other in ((5.0, np.float16(0.5), True), (np.int32(5), np.float16(0.5), True), (5, 0.5, True)):
        typed.launch(*other)

    assert typed.launches == [(0, struct.pack("<qe?", 5, 0.5, True))]
    assert len(typed.refused) == 3


def test_defaults_are_filled_in_on_both_paths(native: bool) -> None:
    """An argument that is left out has its default."""
    types = surface(MLIR).types
    typed = Typed(types.int64, types.int64, native=native, defaults=(3,))

    typed.launch(7)
    typed.launch(7, 4)

    assert typed.launches == [(0, struct.pack("<qq", 7, 3)), (0, struct.pack("<qq", 7, 4))]


def test_arguments_of_star_args_are_launched_as_others_are(native: bool) -> None:
    """The type of `*args` has a member for each argument, and the launch a slot for each."""
    types = surface(MLIR).types
    fast = Kernel([Parameter(0, 8, "?"), Parameter(8, 4, "?")])
    refused: list[Any] = []

    def make(loaded: Any, name: str, parameters: Any, **options: Any) -> Any:
        loaded.compiled.parameters = parameters
        return make_launcher(
            MLIR, loaded, name, [types.StarArgTuple([types.int64, types.int32])], complete=lambda given: given,
            otherwise=lambda config, given: refused.append(given), relaunch=lambda *given: False,
        )  # fmt: skip

    fast.launcher_class = make
    fast.bind(native=native)(5, np.int32(6))

    assert not refused
    assert [b"".join(written) for *_, written in fast.driver.launches] == [struct.pack("<qi", 5, 6)]


def test_host_array_is_left_to_the_dispatcher(native: bool) -> None:
    """Only numba-cuda-mlir copies it; nothing is queued before."""
    typed, given = Typed(array(axes=2), native=native), np.zeros((2, 3), "f4")

    typed.launch(given)

    assert not typed.launches
    assert [[id(each) for each in row] for row in typed.refused] == [[id(given)]]


def test_argument_without_a_type_raises_the_compiler_s_error_with_the_kernel_s_name() -> None:
    """The compiler's message names no kernel; a note does."""

    def kernel(x: Any) -> None:
        x[0] = 1

    made = cached_kernel(mlir_cuda.jit(kernel))
    with pytest.raises((ValueError, TypeError)) as caught:
        definition_of(made).variant((object(),))

    assert "kernel" in caught.value.__notes__[0]


@pytest.mark.parametrize("layout", ["C", "F", "A"])
def test_own_arrays_go_by_the_type_that_they_keep(native: bool, layout: str) -> None:
    """Arrays of every layout pass their strides; a layout other than the compiled one goes to the dispatcher."""
    typed = Typed(array(axes=2, layout=layout), native=native)
    arrays = {"C": own(strides=(12, 4)), "F": own(strides=(4, 8)), "A": own(strides=(24, 8))}

    for each in arrays.values():
        typed.launch(each)

    steps = {"C": (3, 1), "F": (1, 2), "A": (6, 2)}[layout]
    assert typed.launches == [(0, values(ADDRESS, 2, 3, *steps))]
    assert typed.refused == [(each,) for name, each in arrays.items() if name != layout]
    assert typed.interpreted == (2 if native else 3)


def own(strides: tuple[int, ...]) -> Any:
    """An array of numba-cuda-mlir with two rows of three."""
    memory = SimpleNamespace(device_ctypes_pointer=ctypes.c_void_p(ADDRESS), size=1 << 20)
    return surface(MLIR).DeviceNDArray((2, 3), strides, np.dtype("f4"), 0, memory)
