"""Arrays of CuPy, PyTorch and DLPack exporters, and Numba's copying wrappers, as kernel arguments."""

from __future__ import annotations

import gc
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba.cuda.args import ArgHint

from numba_kcache.errors import ArgumentError
from numba_kcache.launch import memory
from numba_kcache.model import Parameter
from tests.support.launching import CupyArray, DlpackArray, Interface, Kernel, Tensor, fake_cupy, fake_torch, one

ADDRESS = 0x7F0000001000
PATHS = pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])


def word(address: int) -> bytes:
    return address.to_bytes(8, "little")


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The current stream of CuPy and PyTorch, whose stand-ins are in `sys.modules` during a test."""
    current = {"handle": 0}
    monkeypatch.setitem(sys.modules, "torch", fake_torch(current))
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(current))
    return current


@PATHS
@pytest.mark.parametrize("library", [CupyArray, Tensor])
def test_array_of_another_library_gives_its_address(stream: Any, library: Any, native: bool) -> None:
    """The first array of a type of CuPy's or PyTorch's is accepted, and so is the next."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)

    for address in (ADDRESS, ADDRESS + 64, ADDRESS + 128):
        launch(library(address))

    assert [each[2] for each in kernel.driver.launches] == [[word(ADDRESS + 64 * i)] for i in range(3)]
    assert not kernel.waits


@PATHS
@pytest.mark.parametrize("library", [CupyArray, Tensor])
def test_current_stream_of_a_library_is_waited_for(stream: Any, library: Any, native: bool) -> None:
    """Work that the library queues on a stream of its own is ordered before the launch, each time."""
    kernel = Kernel(one("*f4"), stream=9)
    launch = kernel.bind(native=native)

    for handle in (9, 7, 9, 0):
        stream["handle"] = handle
        launch(library(ADDRESS))

    assert [producer or 1 for producer, _ in kernel.waits] == [7, 1]
    assert len(kernel.driver.launches) == 4


@PATHS
@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", "bf"), ("float16", "f2"), ("float8_e4m3fn", "e4")])
def test_tensors_of_small_floats_fit_their_pointee(stream: Any, dtype: str, code: str, native: bool) -> None:
    """PyTorch has types that NumPy lacks; they are recognised by name."""
    kernel = Kernel(one(f"*{code}"))
    launch = kernel.bind(native=native)

    for _ in range(2):
        launch(Tensor(ADDRESS, dtype))

    assert kernel.driver.launches[-1][2] == [word(ADDRESS)]


INVALID = {
    "no shape": {"typestr": "<f4", "data": (ADDRESS, False)},
    "an element without a name": {"shape": (4,), "typestr": None, "data": (ADDRESS, False)},
    "an element of bytes": {"shape": (4,), "typestr": b"<f4", "data": (ADDRESS, False)},
    "an address alone": {"shape": (4,), "typestr": "<f4", "data": (ADDRESS,)},
    "a negative address": {"shape": (4,), "typestr": "<f4", "data": (-8, False)},
    "an address as text": {"shape": (4,), "typestr": "<f4", "data": (str(ADDRESS), False)},
    "a fraction of an address": {"shape": (4,), "typestr": "<f4", "data": (float(ADDRESS), False)},
    "a stride too many": {"shape": (4,), "typestr": "<f4", "data": (ADDRESS, False), "strides": (4, 4)},
    "a stream as text": {"shape": (4,), "typestr": "<f4", "data": (ADDRESS, False), "stream": "1"},
    "a list": [],
}


@PATHS
@pytest.mark.parametrize("what", INVALID)
def test_invalid_array_interface_is_named(stream: Any, what: str, native: bool) -> None:
    """The error is an ArgumentError with the same words on both paths."""
    kernel, value = Kernel(one("*f4")), Interface(ADDRESS)
    launch = kernel.bind(native=native)
    launch(value)
    kernel.driver.launches.clear()
    value.__cuda_array_interface__ = INVALID[what]  # type: ignore[assignment]

    with pytest.raises(ArgumentError, match="its __cuda_array_interface__ is not valid"):
        launch(value)

    assert kernel.untouched


TENSORS = {
    "another element type": ({"dtype": "int32"}, "the kernel takes float32 there"),
    "on the host": ({"device": -1}, "the tensor is on cpu"),
    "on another device": ({"device": 1}, "it is on device 1, the launch on device 0"),
    "strided": (
        {"shape": (4,), "stride": (2,)},
        r"not contiguous, its strides are \(8,\) bytes",
    ),
    "negated": ({"neg": True}, "its conjugation or negation is still pending, so its memory has other values"),
    "sparse": ({"layout": "sparse_coo"}, "its layout is torch.sparse_coo"),
    "without memory": ({"storage": False}, "the tensor has no memory: Cannot access data pointer of Tensor"),
    "freed": ({"address": 0}, "the tensor has no memory: its storage was freed"),
}


@PATHS
@pytest.mark.parametrize("case", TENSORS)
def test_unfit_tensor_is_refused(stream: Any, case: str, native: bool) -> None:
    """A tensor that a kernel cannot use in its layout is refused, also once its type is registered."""
    options, why = TENSORS[case]
    kernel = Kernel(one("*f4"), device_of=lambda address: 1)
    launch = kernel.bind(native=native)
    launch(Tensor(ADDRESS))
    kernel.driver.launches.clear()

    with pytest.raises(ArgumentError, match=why):
        launch(Tensor(**{"address": ADDRESS, **options}))

    assert kernel.untouched


@PATHS
def test_empty_tensor_is_a_null_pointer(stream: Any, native: bool) -> None:
    """Without elements it needs no memory."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)

    for _ in range(2):
        launch(Tensor(0, shape=(3, 0)))

    assert kernel.driver.launches[-1][2] == [word(0)]


@PATHS
@pytest.mark.parametrize("code", ["*?", "*c4", "*v2f4"])
def test_conjugated_tensor_is_refused(stream: Any, code: str, native: bool) -> None:
    """The memory of a lazily conjugated tensor has wrong values for every kernel, also one with untyped pointers."""
    kernel = Kernel(one(code))
    launch = kernel.bind(native=native)
    launch(Tensor(ADDRESS, "complex64"))

    with pytest.raises(ArgumentError, match="negation is still pending"):
        launch(Tensor(ADDRESS, "complex64", conj=True))


@PATHS
def test_transposed_tensor_lies_in_one_piece(stream: Any, native: bool) -> None:
    """A tensor in Fortran order is contiguous too."""
    tensor = Tensor(ADDRESS, shape=(2, 3), stride=(1, 2))

    assert Kernel(one("*f4")).bytes_of(tensor, native=native) == [word(ADDRESS)]


@PATHS
@pytest.mark.parametrize("strides", [(8, 1), (1, 8), (1, 1), (16, 4, 1), (12, 8, 1), (1, 2, 12)])
def test_rows_with_gaps_between_them_are_refused(stream: Any, native: bool, strides: tuple[int, ...]) -> None:
    """Also where the elements of each row lie side by side: an element is not where a kernel would look for it."""
    shape = (2, 3, 4)[-len(strides) :]
    launch = Kernel(one("*f4")).bind(native=native)
    launch(Tensor(ADDRESS, shape=(2, 3, 4), stride=(12, 4, 1)))

    with pytest.raises(ArgumentError, match="is not contiguous"):
        launch(Tensor(ADDRESS, shape=shape, stride=strides))


@PATHS
def test_strided_cupy_array_is_refused(stream: Any, native: bool) -> None:
    """A view with gaps is not contiguous memory, whether its type is registered or not."""
    kernel = Kernel(one("*f4"))
    launch = kernel.bind(native=native)
    launch(CupyArray(ADDRESS))

    with pytest.raises(ArgumentError, match="is not contiguous"):
        launch(CupyArray(ADDRESS, contiguous=False))


@PATHS
def test_cupy_array_of_another_device_is_refused(stream: Any, native: bool) -> None:
    """The inline check reads the array's device, the other check asks the driver."""
    kernel = Kernel(one("*f4"), device_of=lambda address: int(address != ADDRESS))
    launch = kernel.bind(native=native)
    for _ in range(2):
        launch(CupyArray(ADDRESS))

    with pytest.raises(ArgumentError, match="it is on device 1"):
        launch(CupyArray(ADDRESS + 64, device=1))


@PATHS
def test_tensor_for_a_number_is_refused_without_asking_for_its_interface(stream: Any, native: bool) -> None:
    """PyTorch's array interface raises for tensors with gradients, and the exception is no AttributeError."""
    with pytest.raises(ArgumentError, match="the parameter is an integer, not an array"):
        Kernel(one("i4")).bind(native=native)(Tensor(ADDRESS))


def test_memory_of_the_device_of_the_launch_takes_one_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """One driver call shows that memory is on this device; only for other memory a second one asks if all devices reach
    it."""
    asked: list[int] = []
    answers = {9: 1, 2: 2, 8: 0}  # its device; it is device memory; it is not managed
    driver = SimpleNamespace(cuPointerGetAttribute=lambda what, address: (asked.append(what) or 0, answers[what]))
    monkeypatch.setattr(memory, "bindings", lambda: driver)

    assert memory.device_of(ADDRESS, here=1) is None
    assert asked == [9]
    assert memory.device_of(ADDRESS, here=0) == 1
    answers[8] = 1
    assert memory.device_of(ADDRESS, here=0) is None


@PATHS
@pytest.mark.parametrize("versioned", [True, False])
def test_dlpack_exporter_is_told_the_launch_stream(versioned: bool, native: bool) -> None:
    """An object with DLPack alone gives its address, and orders its own work before the launch stream."""
    array = DlpackArray(np.arange(6, dtype="f4")[2:], versioned=versioned)

    for handle, told in ((0, 1), (9, 9)):
        read = Kernel(one("*f4"), stream=handle).bytes_of(array, native=native)

        assert read == [word(array.array.ctypes.data)]
        assert array.streams[-1] == told


@pytest.mark.parametrize(("dtype", "code"), [("f8", "f8"), ("i2", "i2"), ("c8", "c4"), ("?", "b1")])
def test_dlpack_element_types_are_held_against_the_pointee(dtype: str, code: str) -> None:
    """An exporter's element type passes for its own pointee and no other."""
    array = DlpackArray(np.zeros(4, dtype))

    assert Kernel(one(f"*{code}")).bytes_of(array) == [word(array.array.ctypes.data)]
    with pytest.raises(ArgumentError, match="the kernel takes float16 there"):
        Kernel(one("*f2")).bytes_of(array)


def test_dlpack_capsule_is_given_back() -> None:
    """The exporter's tensor is released when the launch is queued."""
    array = np.zeros(4, "f4")
    freed = weakref.ref(array)
    exporter = DlpackArray(array)
    Kernel(one("*f4")).bytes_of(exporter)

    del array, exporter
    gc.collect()

    assert freed() is None


def test_dlpack_tensor_lives_until_the_launch_is_queued() -> None:
    """A tensor that is exported only for the launch exists when the driver is called."""
    made: list[weakref.ref[Any]] = []

    class Exporter(DlpackArray):
        def __dlpack__(self, *, stream: int, **newer: Any) -> Any:
            array = np.zeros(4, "f4")
            made.append(weakref.ref(array))
            return array.__dlpack__(**newer)

    kernel = Kernel(one("*f4"))
    plain, alive = kernel.driver.cuLaunchKernel, []

    def watched(*arguments: Any) -> tuple[int]:
        alive.append(made[-1]() is not None)
        return plain(*arguments)

    kernel.driver.cuLaunchKernel = watched  # type: ignore[method-assign]
    kernel.bind()(Exporter(None))

    assert alive == [True]


def test_bfloat16_is_known_by_the_name_of_its_dtype() -> None:
    """Its typestr says only "two bytes"; the array's dtype has the name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = Interface(ADDRESS, "V2")
    array.dtype = np.dtype(ml_dtypes.bfloat16)  # type: ignore[attr-defined]

    assert Kernel(one("*bf")).bytes_of(array) == [word(ADDRESS)]
    assert Kernel(one("bf")).bytes_of(ml_dtypes.bfloat16(1.5)) == [b"\xc0\x3f"]
    with pytest.raises(ArgumentError, match="the kernel takes bfloat16"):
        Kernel(one("*bf")).bytes_of(Interface(ADDRESS, "V2"))


def test_dlpack_on_the_host_is_refused() -> None:
    """Device kind 1 is host memory, whichever library exports it."""
    with pytest.raises(ArgumentError, match="its memory is on the host"):
        Kernel(one("*f4")).bytes_of(DlpackArray(np.zeros(4, "f4"), device=(1, 0)))


@pytest.mark.parametrize(("kind", "is_refused"), [(2, True), (13, False)], ids=["device", "managed"])
def test_dlpack_says_which_device_it_is_on(kind: int, is_refused: bool) -> None:
    """The exporter's device decides: another device's memory is refused; managed memory is on all devices."""
    array = DlpackArray(np.zeros(4, "f4"), device=(kind, 1))
    kernel = Kernel(one("*f4"), device_of=lambda address: None)
    if is_refused:
        with pytest.raises(ArgumentError, match="it is on device 1"):
            kernel.bytes_of(array)
    else:
        assert kernel.bytes_of(array) == [word(array.array.ctypes.data)]


def test_dlpack_exporter_that_refuses_is_quoted_by_its_first_line() -> None:
    """The reason is the first line of the exporter's own exception."""

    class Refusing(DlpackArray):
        def __dlpack__(self, *, stream: int, **newer: Any) -> Any:
            raise BufferError("it requires grad\ncall detach() first")

    with pytest.raises(ArgumentError, match="its __dlpack__ raised: it requires grad\n  hint"):
        Kernel(one("*f4")).bytes_of(Refusing(None))


def test_array_interface_without_data_is_a_null_pointer_that_may_be_written() -> None:
    """The protocol allows `data` to be absent for an array without elements, which then is not read-only."""
    empty = Interface(shape=(0,), data=None)

    assert Kernel(one("*f4")).bytes_of(empty) == [word(0)]


@pytest.mark.parametrize(
    ("typestr", "element"),
    [
        ("<f4", ("f4", 4)), ("<c8", ("c4", 8)), ("|b1", ("b1", 1)), ("|V12", ("o", 12)), ("<U4", ("", 16)),
        ("|S3", ("", 3)), (">f4", ("", 4)), ("<M8[ns]", ("", 8)),
    ],
)  # fmt: skip
def test_typestr_gives_element_and_size(typestr: str, element: tuple[str, int]) -> None:
    """Text counts four bytes a letter, a complex number is two, and foreign byte order is no type of C++."""
    assert memory.element_of_typestr(typestr) == element


def test_buffer_of_cuda_core_gives_handle_and_device() -> None:
    """`cuda.core.Buffer` has no array interface: its handle is the address."""

    class Buffer:
        memory_resource, handle, device_id = object(), ADDRESS, 0

    Buffer.__module__ = "cuda.core._memory._buffer"
    assert Kernel(one("*f4")).bytes_of(Buffer()) == [word(ADDRESS)]

    Buffer.device_id = 1
    with pytest.raises(ArgumentError, match="it is on device 1"):
        Kernel(one("*f4"), device_of=lambda address: None).bytes_of(Buffer())


def test_readonly_dlpack_goes_to_const_only() -> None:
    """The read-only flag of DLPack 1 is respected."""
    array = np.zeros(4, "f4")
    array.flags.writeable = False

    assert Kernel(one("*kf4")).bytes_of(DlpackArray(array)) == [word(array.ctypes.data)]
    with pytest.raises(ArgumentError, match="it is read-only, the parameter is not const"):
        Kernel(one("*f4")).bytes_of(DlpackArray(array))


class Wrapper(ArgHint):  # type: ignore[misc]
    """A copying argument like Numba's that records its calls."""

    def __init__(self, value: Any, log: list[str]) -> None:
        super().__init__(value)
        self.log = log

    def to_device(self, retr: list[Any], stream: Any = 0) -> Any:
        self.log.append(f"copy in on {int(stream.handle)}")
        retr.append(lambda: self.log.append("copy back"))
        return SimpleNamespace(ptr=ADDRESS)


@PATHS
def test_copying_wrapper_copies_around_the_launch(native: bool) -> None:
    """`cuda.InOut` and its kin copy on the launch stream, after all checks, and back after the launch."""
    log: list[str] = []
    kernel = Kernel(one("*f4"), stream=9)

    assert kernel.bytes_of(Wrapper(np.zeros(3, "f4"), log), native=native) == [word(ADDRESS)]

    assert log == ["copy in on 9", "copy back"]


@PATHS
@pytest.mark.parametrize(("value", "why"), [
    (np.zeros(3, "f8"), "the kernel takes float32 there"),
    (np.zeros(6, "f4")[::2], "is not contiguous"),
    (2.0, "a pointer takes a device array"),
])  # fmt: skip
def test_copying_wrapper_of_unfit_array_copies_nothing(value: Any, why: str, native: bool) -> None:
    """The array is checked on the host before any copy."""
    log: list[str] = []

    with pytest.raises(ArgumentError, match=why):
        Kernel(one("*f4")).bytes_of(Wrapper(value, log), native=native)

    assert not log


def test_out_for_a_const_parameter_is_refused() -> None:
    """The kernel would read memory that nothing was written to, and the copy back would overwrite the array."""
    log: list[str] = []
    wrapper = Wrapper(np.zeros(3, "f4"), log)
    wrapper.copy_input = False

    with pytest.raises(ArgumentError, match=r"cuda\.Out copies nothing to the device, and the parameter is const"):
        Kernel(one("*kf4")).bytes_of(wrapper)

    assert not log
    assert Kernel(one("*f4")).bytes_of(wrapper) == [word(ADDRESS)]


def test_later_refusal_copies_nothing() -> None:
    """A wrapper before an argument that is refused copies nothing."""
    log: list[str] = []
    parameters = (*one("*f4"), Parameter(8, 4, "i4", "int", "n"))

    with pytest.raises(ArgumentError):
        Kernel(parameters).bytes_of(Wrapper(np.zeros(3, "f4"), log), 2.5)

    assert not log
