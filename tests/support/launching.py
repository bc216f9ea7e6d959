"""Launch without a device: a driver that records launches, and arrays with the interfaces of CuPy, PyTorch and Numba.

The driver reads the bytes of parameters as a real one does: through the array of pointers, or the buffer and its size.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from numba_kcache import launch as devices
from numba_kcache.launch import Call, Launch, LaunchShape, is_capturing
from numba_kcache.launch.launcher import Launcher
from numba_kcache.launch.recognition import recognise
from numba_kcache.launch.streams import StreamWaits
from numba_kcache.model import CODE_SIZES, Parameter

SHAPE = LaunchShape((3, 2, 1), (32, 4, 1), 16)

SAXPY = (
    Parameter(0, 4, "f4", "float", "a"),
    Parameter(8, 8, "*kf4", "float const*", "x"),
    Parameter(16, 8, "*f4", "float*", "y"),
    Parameter(24, 4, "i4", "int", "n"),
)


_CALLED = {
    "cuLaunchKernel": 11,
    "cuLaunchKernelEx": 4,
    "cuCtxGetDevice": 1,
    "cuPointerGetAttribute": 3,
}
"""The driver's functions that the compiled module calls, with the number of their arguments."""


class Driver:
    """A fake driver that records every launch.

    Attributes:
        launches: (grid and block and shared bytes, stream, bytes of each parameter) of each launch.
        device_of: The device of an address.
        device: Ordinal of the current device; None where no context is current.
        answer: The code that launches return.
        created: Number of events that were created.
        capturing: Streams that are being captured; if there are any, the default stream cannot be asked about.
        ran: The code that waiting for a stream returns.
    """

    def __init__(self, parameters: Sequence[Parameter] = SAXPY) -> None:
        self.parameters, self.launches = parameters, list[tuple[Any, ...]]()
        self.functions: list[int] = []
        self.events: list[tuple[str, int]] = []
        self.created = 0
        self.device: int | None = 0
        self.answer = 0
        self.capturing: set[int] = set()
        self.ran = 0
        self.device_of: Any = None
        self._callbacks: dict[str, Any] = {}

        self.addresses = {name: self._address(name, words) for name, words in _CALLED.items()}

    def _address(self, name: str, words: int) -> int:
        """The address at which the compiled module calls a function of this driver."""

        def call(*arguments: int | None) -> int:
            if name == "cuPointerGetAttribute":
                out, *ins = (each or 0 for each in arguments)
            else:
                *ins, out = (each or 0 for each in arguments)
            if name in ("cuLaunchKernel", "cuLaunchKernelEx"):
                return int(getattr(self, name)(*ins, out)[0])
            status, value = getattr(self, name)(*ins)
            ctypes.c_int.from_address(out).value = value or 0
            return int(status)

        callback = self._callbacks[name] = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * words)(call)
        return ctypes.cast(callback, ctypes.c_void_p).value or 0

    @staticmethod
    def name_of(code: int) -> str:
        """The driver's name of a code."""
        return devices.bindings().name_of(code)

    def cuCtxGetDevice(self) -> tuple[int, int | None]:
        return (201, None) if self.device is None else (0, self.device)

    def cuLaunchKernel(self, function: int, *rest: Any) -> tuple[int]:
        *extents, stream, address, extra = rest
        self.functions.append(function)
        assert bool(address) != bool(extra)
        pointers = self._packed(extra) if extra else (ctypes.c_uint64 * len(self.parameters)).from_address(address)
        read = [ctypes.string_at(pointer, each.size) for pointer, each in zip(pointers, self.parameters, strict=True)]
        if not self.answer:
            self.launches.append((tuple(extents), stream, read))
        return (self.answer,)

    def _packed(self, extra: int) -> list[int]:
        """List the address of each parameter in one buffer: CU_LAUNCH_PARAM_BUFFER_POINTER, _SIZE, _END."""
        words = (ctypes.c_uint64 * 5).from_address(extra)
        assert (words[0], words[2], words[4]) == (1, 2, 0)
        assert words[1] % 8 == 0
        size = max((each.offset + each.size for each in self.parameters), default=0)
        assert ctypes.c_uint64.from_address(words[3]).value == size
        return [words[1] + each.offset for each in self.parameters]

    def cuLaunchKernelEx(self, config: bytes | int, function: int, address: int, extra: int) -> tuple[int]:
        read = config if isinstance(config, bytes) else ctypes.string_at(config, 56)
        *extents, stream, attributes, count = struct.unpack("=7I4xQQI4x", read)
        self.attributes = ctypes.string_at(attributes, 72 * count)
        return self.cuLaunchKernel(function, *extents, stream, address, extra)

    def cuPointerGetAttribute(self, attribute: int, address: int) -> tuple[int, int]:
        assert attribute == 9
        return 0, self.device_of(address)

    def cuStreamIsCapturing(self, stream: int) -> tuple[int, int | None]:
        return (906, 0) if self.capturing and stream in (0, 1) else (0, int(stream in self.capturing))

    def cuStreamSynchronize(self, stream: int) -> tuple[int]:
        self.events.append(("synchronize", stream))
        return (self.ran,)

    def cuEventCreate(self, flags: int) -> tuple[int, str]:
        self.created += 1
        return 0, f"event {self.created}"

    def cuEventRecord(self, event: str, stream: int) -> tuple[int]:
        self.events.append(("record", stream))
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: str, flags: int) -> tuple[int]:
        self.events.append(("external" if flags else "wait", stream))
        return (0,)


class Kernel:
    """A launcher with its fake driver, bound to the interpreted path or, where it suffices, to the compiled module.

    Args:
        parameters: The parameters of the kernel.
        options: Options of `Launcher`, or `device_of`, `context`, `stream`, `typed`, `function`.
    """

    def __init__(self, parameters: Sequence[Parameter] = SAXPY, **options: Any) -> None:
        self.driver, self.live = Driver(parameters), [True]
        self.waits: list[tuple[int, int]] = []
        self.held: list[tuple[int, int]] = []  # for each launch with borrowed objects, its stream and their number
        self.driver.device_of = options.get("device_of")
        waits = StreamWaits(self.driver)
        waits.enqueue_wait = lambda producer, consumer: self.waits.append((producer, consumer))  # type: ignore[method-assign]
        module = self.module = SimpleNamespace(
            driver=self.driver, device=SimpleNamespace(ordinal=0), device_of=options.pop("device_of", None),
            numba_context=options.pop("context", None), waits=waits, awaits_numba=[False], stays=[False],
            layouts={}, functions=b"", count=1,
            is_current=lambda: self.live[0] and self.driver.cuCtxGetDevice() == (0, 0),
            is_capturing=lambda handle: is_capturing(self.driver, handle),
            hold_for=lambda handle, borrowed: self.held.append((handle, len(borrowed))),
        )  # fmt: skip
        compiled, function = SimpleNamespace(typed=options.pop("typed", True)), options.pop("function", 77)
        self._stream = options.pop("stream", None)
        self.launcher_class: Any = CountingLauncher

        def make(function: int = function, **more: Any) -> Any:
            loaded = SimpleNamespace(
                compiled=compiled, function=function, module=module, live=self.live, prepare=lambda shape, name: None
            )
            return self.launcher_class(loaded, "saxpy", parameters, **options, **more)

        self.launcher_at = make

    def bind(self, *, native: bool = False) -> Launch:
        """Bind a launch. With `native` it goes through the compiled module, with which each argument's type is
        registered first."""
        launcher = self.launcher = self.launcher_at()
        if not native:
            launcher.plan = None
        launch = launcher.bind(SHAPE, self._stream)
        if launcher.plan is None:
            return launch
        recognise(launcher.plan[1], launcher, (), is_first=True)

        def registered(*arguments: Any) -> None:
            for position, (slot, value) in enumerate(zip(launcher.slots or (), arguments, strict=False)):
                try:
                    slot.settle(value, Call(SHAPE, 0, 0, arguments, [], [], []))
                except Exception:
                    continue
                recognise(launcher.plan[1], launcher, [None] * position + [value], is_first=False)
            launch(*arguments)

        return registered

    def bytes_of(self, *arguments: Any, native: bool = False) -> list[bytes]:
        """Launch, and return the bytes of each parameter that reached the driver."""
        self.bind(native=native)(*arguments)
        return self.driver.launches[-1][2]

    @property
    def untouched(self) -> bool:
        """Check that neither a launch nor a wait reached the driver."""
        return not self.driver.launches and not self.waits


class CountingLauncher(Launcher):
    """Counts the launches that the compiled module did not make."""

    interpreted = 0

    def _slow(self, *arguments: Any) -> None:
        self.interpreted += 1
        super()._slow(*arguments)


def one(code: str, c_type: str = "", size: int | None = None) -> tuple[Parameter]:
    """The parameters of a kernel with one parameter, of this type code."""
    return (Parameter(0, CODE_SIZES[code] or size or 8, code, c_type, "p"),)


class Numba:
    """Makes Numba device arrays over addresses; keeps their memory objects alive."""

    def __init__(self) -> None:
        self.context = type("Context", (), {})()
        self._kept: list[Any] = []

    def array(
        self, address: int = 0x7F0000001000, dtype: Any = "f4", shape: Any = (1024,), strides: Any = None,
        stream: Any = 0, owned: bool = True, context: Any = None,
    ) -> Any:  # fmt: skip
        """An array at this address: `owned` like one of `cuda.to_device`, else like one of `cuda.as_cuda_array`."""
        import cuda.bindings.driver as binding
        from numba.cuda.cudadrv.devicearray import DeviceNDArray
        from numba.cuda.cudadrv.driver import MemoryPointer

        dtype = np.dtype(dtype)
        if strides is None:
            strides = np.empty(shape, np.dtype((np.void, dtype.itemsize))).strides
        memory = MemoryPointer(context or self.context, binding.CUdeviceptr(address), 1 << 20)
        self._kept.append(memory)
        array = DeviceNDArray(shape, strides, dtype, stream, memory.own() if owned else memory)
        assert array.gpu_data is not None
        return array

    def on_host(self, kind: str, address: int) -> Any:
        """An array of `cuda.mapped_array` or `cuda.managed_array`, of this class, which the device has there."""
        from numba.cuda.cudadrv import devicearray

        array: Any = np.zeros(1024, "f4").view(getattr(devicearray, kind))
        array.device_setup(self.array(address).gpu_data)
        return array


class Interface:
    """An array with no interface but `__cuda_array_interface__`."""

    def __init__(self, address: int = 0x7F0000002000, dtype: Any = "f4", shape: Any = (1024,), **more: Any) -> None:
        dtype = np.dtype(dtype)
        readonly = more.pop("readonly", False)
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": dtype.str, "data": (address, readonly), "strides": None, "version": 3,
            **more,
        }  # fmt: skip


class CupyArray:
    """The part of `cupy.ndarray` that the launch uses, and nothing else."""

    def __init__(
        self, address: int, dtype: Any = "f4", *, contiguous: bool = True, device: int = 0,
        shape: tuple[int, ...] = (4,), order: Any = "C",
    ) -> None:  # fmt: skip
        self.data = SimpleNamespace(ptr=address, device_id=device)
        self.dtype, self.shape, self.ndim, self.size = np.dtype(dtype), shape, len(shape), math.prod(shape)
        like = np.empty(shape, dtype, order) if contiguous else np.empty((*shape, 2), dtype)[..., 0]
        self.strides, self._f_contiguous = like.strides, like.flags.f_contiguous
        self._contiguous = like.flags.c_contiguous

    @property
    def _c_contiguous(self) -> bool:
        return self._contiguous

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.data.ptr, False),
            "strides": None if self._contiguous else self.strides,
            "version": 3,
            "stream": sys.modules["cupy"].cuda.get_current_stream().ptr or 1,
        }


class Tensor:
    """The part of `torch.Tensor` that the launch uses; its `__cuda_array_interface__` raises, as some tensors' does."""

    def __init__(
        self, address: int, dtype: str = "float32", *, shape: tuple[int, ...] = (4,),
        stride: tuple[int, ...] | None = None, device: int = 0, conj: bool = False, neg: bool = False,
        layout: str = "strided", storage: bool = True,
    ) -> None:  # fmt: skip
        torch = sys.modules["torch"]
        self.dtype, self.layout = getattr(torch, dtype), getattr(torch, layout)
        self.shape, self._stride, self._address = shape, stride, address
        self._device, self._conj, self._neg, self._storage = device, conj, neg, storage
        self.device = SimpleNamespace(type="cpu" if device < 0 else "cuda", index=device)
        self.is_cuda = device >= 0

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

    def is_contiguous(self) -> bool:
        if self.layout != "torch.strided":
            raise RuntimeError("Tensors of type SparseTensorImpl do not have is_contiguous")
        return self._stride is None

    def stride(self) -> tuple[int, ...] | None:
        return self._stride

    def get_device(self) -> int:
        return self._device

    def is_conj(self) -> bool:
        return self._conj

    def is_neg(self) -> bool:
        return self._neg

    def element_size(self) -> int:
        return 2 if self.dtype.name == "bfloat16" else 8 if self.dtype.name == "complex64" else 4

    def data_ptr(self) -> int:
        if not self._storage:
            raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage\nmore")
        return self._address


class _TorchDtype:
    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


def fake_torch(stream: dict[str, int]) -> ModuleType:
    """A module `torch` whose current stream is `stream["handle"]`."""
    torch = ModuleType("torch")
    for name in ("float32", "bfloat16", "float16", "int32", "complex64", "float8_e4m3fn"):
        setattr(torch, name, _TorchDtype(name))
    torch.strided, torch.sparse_coo = "torch.strided", "torch.sparse_coo"  # type: ignore[attr-defined]
    torch.Tensor = Tensor  # type: ignore[attr-defined]
    current = lambda _device: SimpleNamespace(cuda_stream=stream["handle"])  # noqa: E731
    torch.cuda = SimpleNamespace(current_stream=current, is_initialized=lambda: True)  # type: ignore[attr-defined]
    return torch


def fake_cupy(stream: dict[str, int]) -> ModuleType:
    """A module `cupy` whose current stream is `stream["handle"]`."""
    cupy = ModuleType("cupy")
    cupy.ndarray = CupyArray  # type: ignore[attr-defined]
    # The compiled module keeps the first `get_current_stream` that it sees, since a process has one CuPy.
    current = lambda: SimpleNamespace(ptr=sys.modules["cupy"].cuda.stream["handle"])  # noqa: E731
    cupy.cuda = SimpleNamespace(get_current_stream=current, stream=stream)  # type: ignore[attr-defined]
    return cupy


class DlpackArray:
    """An array with no interface but DLPack; a host array stands in for memory of the device."""

    def __init__(self, array: Any, device: tuple[int, int] = (2, 0), versioned: bool = True) -> None:
        self.array, self._device, self._versioned = array, device, versioned
        self.streams: list[int] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device

    def __dlpack__(self, *, stream: int, **newer: Any) -> Any:
        if newer and not self._versioned:
            raise TypeError("unexpected keyword argument 'max_version'")
        self.streams.append(stream)
        return self.array.__dlpack__(**newer)
