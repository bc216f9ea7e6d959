"""Load an artifact on a device through Numba's own driver layer, and notice when it is gone.

Promise     One module per artifact and device, however many threads and kernel objects ask at once. A
            `LoadedKernel` says by `live[0]` whether its handle may still be used: false after `cuda.close()`,
            a context reset, `clear()` or a fork; whoever sees that asks for it anew.
Method      `Context.create_module_image(ObjectCode.from_cubin(bytes))`: Numba then owns the module, so its
            `cuda.close()` and reset unload it as they do Numba's. Each device gets an ObjectCode of its own: one
            shared by two contexts is unloaded twice and cuda.close() fails. `live` is cleared by the callback of a
            weak reference to Numba's module object.
Not here    Whether a grid fits (config) and how arguments are packed (arguments).
Ground      numba-cuda 0.30.4, cudadrv/driver.py: Context.create_module_image, CudaPythonModule; the private
            names that are used all stand in this file and are checked by `_probe` once. CUDA driver API,
            cuThreadExchangeStreamCaptureMode: a relaxed thread may make calls that would end another's capture.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import LaunchError, NoDeviceError, ToolchainMissingError
from ..model.artifact import Artifact, Entry
from ..model.event import Emit, Event, EventKind
from ..model.target import Target
from .arguments import Launcher, Layout, Relaunch
from .config import DeviceLimits
from .pointers import Surroundings
from .streams import StreamOrder

_SHARED_BY_DEFAULT = 48 * 1024

_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_BLOCK_LIMIT = (1024, 1024, 64)
"""The same for every device that CUDA 12 and 13 support (CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability"): not worth six questions to the driver on each warm start."""


class CurrentDevice(NamedTuple):
    """The device that a launch would go to.

    Args:
        context: Numba's context of it.
        ordinal: Its number.
        target: What to compile for it: with the architecture-specific suffix from 9.0 on, as Numba does.
    """

    context: Any
    ordinal: int
    target: Target


class LoadedKernel:
    """One kernel on one device, ready to be launched.

    Args:
        entry: The kernel.
        device: Where it is.
        function: Its CUfunction.
        module: What it belongs to; kept, for it watches over `live`.

    Attributes:
        live: `live[0]` is False once the handle must not be used any more.
    """

    __slots__ = ("_limits", "_module", "_shared_allowed", "device", "entry", "function", "live")

    def __init__(self, entry: Entry, device: CurrentDevice, function: Any, module: _Module | _NumbasModule) -> None:
        self.entry, self.device, self.function, self._module, self.live = entry, device, function, module, module.live
        self._limits: DeviceLimits | None = None
        self._shared_allowed = _SHARED_BY_DEFAULT - entry.shared_bytes  # static and dynamic share what is free

    def attribute(self, name: str) -> int:
        """An attribute of the function, by the end of its CU_FUNC_ATTRIBUTE name."""
        driver = _bindings()
        which = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(_done(driver.cuFuncGetAttribute(which, self.function), f"ask {self.entry.name}"))

    def limits(self, dynamic_bytes: int) -> DeviceLimits:
        """What the kernel can take here; shared memory is asked of the device only where a launch wants any."""
        if self._limits is None or (dynamic_bytes and not self._limits.shared_bytes):
            self._limits = DeviceLimits(
                grid=_GRID_LIMIT,
                block=_BLOCK_LIMIT,
                threads_per_block=self.attribute("MAX_THREADS_PER_BLOCK"),
                shared_bytes=self.device.context.device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN if dynamic_bytes else 0,
                static_shared_bytes=self.attribute("SHARED_SIZE_BYTES") if dynamic_bytes else 0,
            )
        return self._limits

    def allow_shared(self, dynamic_bytes: int) -> None:
        """Let a block take this much dynamic shared memory; beyond 48 KiB a kernel must be told so once.

        Source:
            CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later.
        """
        if dynamic_bytes > self._shared_allowed:  # never lowered: another configuration may need what it has
            import cuda.bindings.driver as driver

            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            answer = driver.cuFuncSetAttribute(self.function, attribute, dynamic_bytes)
            _done(answer, f"give {dynamic_bytes} bytes of dynamic shared memory to {self.entry.name}")
            self._shared_allowed = dynamic_bytes

    def prefer_shared(self, percent: int) -> None:
        """Ask for this share of the memory that L1 cache and shared memory divide, as Numba's carveout does."""
        import cuda.bindings.driver as driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        _done(driver.cuFuncSetAttribute(self.function, attribute, percent), f"set the carveout of {self.entry.name}")

    def allow_large_clusters(self) -> None:
        """Let clusters have more blocks than every device takes."""
        import cuda.bindings.driver as driver

        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _done(driver.cuFuncSetAttribute(self.function, attribute, 1), f"allow large clusters of {self.entry.name}")

    def resident_blocks(self, threads: int, dynamic_bytes: int) -> int:
        """Blocks of this size that the device runs at once (cuOccupancyMaxActiveBlocksPerMultiprocessor)."""
        import cuda.bindings.driver as driver

        self.allow_shared(dynamic_bytes)
        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, dynamic_bytes)
        each = int(_done(answer, f"ask for the occupancy of {self.entry.name}"))
        return each * int(self.device.context.device.MULTIPROCESSOR_COUNT)

    def variable(self, symbol: str) -> Any:
        """A variable of the kernel's module, as memory of Numba's kind.

        Raises:
            LaunchError: The driver does not know it.
        """
        try:
            memory, _size = self._module.numba.get_global_symbol(symbol)
        except Exception as error:  # numba-cuda's, whose module only functions may import
            raise LaunchError(
                f"cannot find the variable {symbol} on device {self.device.ordinal}", str(error)
            ) from error
        return memory

    @property
    def numba_function(self) -> Any:
        """The kernel as Numba's own launch code takes it."""
        return self._module.numba.get_function(self.entry.symbol)

    def potential_block_size(self, dynamic_bytes: int) -> int:
        """The block size at which most threads are resident, from the driver (cuOccupancyMaxPotentialBlockSize)."""
        self.allow_shared(dynamic_bytes)
        _grid, block = self.device.context.get_max_potential_block_size(self.numba_function, 0, dynamic_bytes, 1024)
        return int(block)


class Loader:
    """The modules of one cache on the devices of this process.

    Args:
        emit: Where loads are reported.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._modules: dict[tuple[str, int], _Module] = {}
        _FORGET_AFTER_FORK.add(self)

    def load(self, artifact: Artifact, entry: Entry, key: str, device: CurrentDevice, *, stored: bool) -> LoadedKernel:
        """The kernel on the current device.

        Args:
            artifact: Where it is.
            entry: Which kernel of it.
            key: Names the artifact in this process.
            device: The current device.
            stored: Whether the artifact came from a store, for the statistics.

        Raises:
            LaunchError: The driver refuses the module.
        """
        with self._lock:
            module = self._modules.get((key, device.ordinal))
            if module is None or not module.live[0]:
                start = time.perf_counter()
                driver = _bindings()
                relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
                before = _done(driver.cuThreadExchangeStreamCaptureMode(relaxed), "load a module beside a capture")
                try:  # this thread may load while a stream is being captured, which the usual mode forbids
                    module = _Module(artifact, device)
                    kernel = module.kernel(entry)  # a cubin for another device is refused here, not when it is loaded
                finally:
                    driver.cuThreadExchangeStreamCaptureMode(before)
                self._modules[key, device.ordinal] = module
                fields = {"kernel": entry.name, "key": key, "device": device.ordinal, "stored": stored}
                self._emit(Event(EventKind.LOAD, {**fields, "load_time_s": time.perf_counter() - start}))
                return kernel
            return module.kernel(entry)

    def forget(self) -> None:
        """Make every later launch ask anew. Modules stay loaded: queued work may still use them."""
        with self._lock:
            for module in self._modules.values():
                module.live[0] = False
            self._modules.clear()


class _Module:
    """One artifact on one device."""

    def __init__(self, artifact: Artifact, device: CurrentDevice) -> None:
        code = _core().ObjectCode
        image = code.from_cubin(artifact.cubin) if artifact.cubin else code.from_ptx(artifact.ptx)
        self._device, self._target, self.live = device, artifact.target, [True]
        try:
            self.numba = device.context.create_module_image(image)  # a weak proxy: Numba's context owns the module
        except Exception as error:
            raise self._refused(str(error)) from error
        live = self.live
        module = device.context.modules[self.numba.handle]
        self._watch = weakref.ref(module, lambda _gone: live.__setitem__(0, False))
        self._kernels: dict[str, LoadedKernel] = {}

    def kernel(self, entry: Entry) -> LoadedKernel:
        found = self._kernels.get(entry.symbol)
        if found is None:
            # Not Module.get_function: it asks the driver for five attributes that no launch needs.
            driver = _bindings()
            status, kernel = driver.cuLibraryGetKernel(self.numba.handle, entry.symbol.encode())
            if status == 0:
                status, function = driver.cuKernelGetFunction(kernel)
            if status != 0:
                raise self._refused(f"the driver answered {status.name} to the kernel {entry.symbol}")
            found = LoadedKernel(entry, self._device, function, self)
            self._kernels[entry.symbol] = found
        return found

    def _refused(self, why: str) -> LaunchError:
        hint = ""
        if "NO_BINARY_FOR_GPU" in why or "UNSUPPORTED_PTX" in why or "INVALID_" in why:
            hint = "it is for another device, or newer than the driver: update the driver, or pin an older toolkit"
        return LaunchError(f"cannot load a module for {self._target} on device {self._device.ordinal}", why, hint)


_FORGET_AFTER_FORK: weakref.WeakSet[Loader] = weakref.WeakSet()


def _after_fork() -> None:
    for loader in _FORGET_AFTER_FORK:
        loader._lock = threading.Lock()
        for module in loader._modules.values():
            module.live[0] = False
        loader._modules.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def current_device() -> CurrentDevice:
    """The device of the current context; Numba makes one on device 0 where there is none.

    Raises:
        NoDeviceError: There is no driver or no device.
    """
    context = _context()
    device = context.device
    major, minor = device.compute_capability
    return CurrentDevice(context, int(device.id), Target(major, minor, "a" if major >= 9 else ""))


def loaded_by_numba(function: Any) -> LoadedKernel:
    """A function that Numba loaded on the current device, as this package prepares and asks its own."""
    import cuda.bindings.driver as driver

    handle = _done(driver.cuKernelGetFunction(function.handle), f"find {function.name}")
    entry = Entry(function.name, function.name, (), False, function.attrs.regs, function.attrs.shared)
    return LoadedKernel(entry, current_device(), handle, _NumbasModule(function.module, [True]))


class _NumbasModule(NamedTuple):
    """What a `LoadedKernel` asks of its module, for one that Numba watches over."""

    numba: Any
    live: list[bool]


def check_interpreter() -> None:
    """Refuse a launch that would have to import something when nothing can be imported any more.

    Raises:
        LaunchError: The interpreter is shutting down.
    """
    if sys.meta_path is None:
        raise LaunchError(
            "cannot launch", "the interpreter is shutting down", "launch before the program ends, or from atexit"
        )


def current_ordinal() -> int:
    """Ordinal of the device of the current context; -1 where there is none. The quickest way to ask.

    Raises:
        LaunchError: The interpreter is shutting down, and modules are gone.
    """
    try:
        status, device = _bindings().cuCtxGetDevice()
    except ImportError:
        check_interpreter()
        return -1
    except RuntimeError:  # there is no driver library
        return -1
    return int(device) if status == 0 else -1


def make_launcher(
    kernel: LoadedKernel,
    name: str,
    *,
    strided: bool,
    relaunch: Relaunch,
    attributes: Sequence[Any] = (),
    debug: bool = False,
    layout: Layout | None = None,
) -> Launcher:
    """What packs and launches the kernel on its device, and asks `relaunch` where it cannot.

    Args:
        kernel: On its device.
        name: For messages.
        strided: Whether arrays that do not lie in one piece are taken.
        relaunch: As in `Launcher`.
        attributes: Launch attributes of the driver's kind.
        debug: Whether each launch is waited for (`debugging`).
        layout: Of the kernel's parameters, where it has been made.
    """
    make = Launcher
    if debug:
        from .debugging import DebugLauncher as make
    return make(
        name,
        layout or kernel.entry.parameters,
        typed=kernel.entry.typed,
        function=kernel.function,
        driver=_bindings(),
        around=surroundings(kernel),
        live=kernel.live,
        strided=strided,
        attributes=attributes,
        relaunch=relaunch,
    )


def surroundings(kernel: LoadedKernel) -> Surroundings:
    """The process as launches of the kernel see it."""
    driver = _bindings()
    return Surroundings(
        device=kernel.device.ordinal,
        order_after=StreamOrder(driver).order_after,
        device_of=_device_of if _device_count() > 1 else None,
        context=weakref.proxy(kernel.device.context),
        numba_stream=_core().Stream.from_handle,
    )


_probed = False
_CONTEXT_IS_DESTROYED = 709


def _context() -> Any:
    """Numba's current context, made if need be.

    Raises:
        NoDeviceError: There is no driver or no device.
        LaunchError: The process is the child of one that used CUDA.
        ToolchainMissingError: numba-cuda is not installed, or not as this version of numba_kcache knows it.
    """
    global _probed
    try:
        import numba.cuda.cudadrv.devices as devices
        import numba.cuda.cudadrv.driver as driver
    except ImportError as problem:
        raise ToolchainMissingError(
            "cannot launch", f"numba-cuda cannot be imported: {problem}", "pip install 'numba-kcache[cu13]'"
        ) from problem
    if not _probed:
        _probe(driver, devices)
        _probed = True
    if driver.driver.pid not in (None, os.getpid()):
        raise LaunchError(
            "cannot launch in a forked process",
            "CUDA was initialised before the fork, and does not survive it",
            "start workers with spawn, or fork before the first CUDA call",
        )
    try:
        try:
            return devices.get_context()
        except driver.CudaAPIError as problem:
            # After cuda.close() cuda.core believes that it still holds the primary context, and every call of Numba's
            # fails; one more retain brings it back.
            if problem.code != _CONTEXT_IS_DESTROYED:
                raise
            driver.driver.cuDevicePrimaryCtxRetain(0)
            return devices.get_context()
    except (driver.CudaSupportError, driver.CudaDriverError) as problem:
        raise NoDeviceError(
            "cannot find a CUDA device", _said(problem), "name a target to compile without one: arch='sm_90'"
        ) from problem


@functools.cache
def _bindings() -> Any:
    """`cuda.bindings.driver`, kept: each import statement costs a first launch as much as a call of the driver."""
    import cuda.bindings.driver as driver

    return driver


@functools.cache
def _core() -> Any:
    import cuda.core as core

    return core


def _probe(driver: Any, devices: Any) -> None:
    for owner, name in (
        (driver.Context, "create_module_image"),
        (driver.Context, "get_max_potential_block_size"),
        (driver.CudaPythonModule, "get_function"),
        (devices, "get_context"),
    ):
        if not callable(getattr(owner, name, None)):
            raise ToolchainMissingError(
                "cannot use this numba-cuda", f"it has no {name}", "pip install 'numba-cuda>=0.30,<0.31'"
            )


def _device_count() -> int:
    driver = _bindings()
    status, count = driver.cuDeviceGetCount()
    return int(count) if status == 0 else 0


def _device_of(address: int) -> int | None:
    """The device whose memory this is; None for memory that others reach too, or that the driver does not know."""
    import cuda.bindings.driver as driver

    names = driver.CUpointer_attribute
    ordinal = _device_ordinal(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
    if ordinal is None:
        return None
    status, kind = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    if status != 0 or int(kind) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
        return None
    status, managed = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
    return None if status == 0 and managed else ordinal


def _device_ordinal(attribute: int, address: int) -> int | None:
    """The ordinal, from the driver library itself: cuda-bindings 13.3 answers 0 for memory of any device."""
    found = ctypes.c_int(-1)
    status = _driver_library().cuPointerGetAttribute(ctypes.byref(found), int(attribute), ctypes.c_uint64(address))
    return found.value if status == 0 else None


@functools.cache
def _driver_library() -> ctypes.CDLL:
    from cuda.pathfinder import load_nvidia_dynamic_lib

    return ctypes.CDLL(load_nvidia_dynamic_lib("cuda").abs_path)


def disassemble(cubin: bytes) -> str:
    """The SASS of a cubin, by the toolkit's nvdisasm.

    Raises:
        ToolchainMissingError: It is not installed.
        LaunchError: It refuses the cubin.
    """
    import subprocess
    import tempfile

    from cuda.pathfinder import find_nvidia_binary_utility

    tool = find_nvidia_binary_utility("nvdisasm")
    if tool is None:
        raise ToolchainMissingError("cannot disassemble", "nvdisasm is not installed", "pip install nvidia-cuda-nvcc")
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([tool, file.name], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LaunchError("cannot disassemble", done.stderr.strip())
    return done.stdout


def _done(answer: tuple[Any, ...], action: str) -> Any:
    """The value of a bindings call, which returns (status, value) or (status,)."""
    if answer[0] != 0:
        raise LaunchError(f"cannot {action}", f"the driver answered {answer[0].name}")
    return answer[1] if len(answer) > 1 else None


def _said(error: BaseException) -> str:
    return str(error).strip().replace("\n", " ") or type(error).__name__
