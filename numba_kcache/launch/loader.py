"""Load an artifact on a device through Numba's own driver layer, and notice when it is gone.

Promise     One module per artifact and device, however many threads and kernel objects ask at once. A
            `LoadedKernel` says by `live[0]` whether its handle may still be used: false after `cuda.close()`,
            a context reset, `clear()` or a fork; whoever sees that asks for it anew.
Method      `Context.create_module_image(ObjectCode.from_cubin(bytes))`: Numba then owns the module, so its
            `cuda.close()` and reset unload it as they do Numba's. Each device gets an ObjectCode of its own: one
            shared by two contexts is unloaded twice and cuda.close() fails. `live` is cleared by a finalizer on
            Numba's module object.
Not here    Whether a grid fits (config) and how arguments are packed (arguments).
Ground      numba-cuda 0.30.4, cudadrv/driver.py: Context.create_module_image, CudaPythonModule; the private
            names that are used all stand in this file and are checked by `_probe` once.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, NamedTuple

from ..errors import LaunchError, NoDeviceError, ToolchainMissingError
from ..model.artifact import Artifact, Entry
from ..model.event import Emit, Event, EventKind
from ..model.target import Target
from .arguments import Launcher
from .config import DeviceLimits
from .pointers import Surroundings
from .streams import StreamOrder

_SHARED_BY_DEFAULT = 48 * 1024


class LoadedKernel(NamedTuple):
    """One kernel on one device, ready to be launched.

    Args:
        entry: The kernel.
        device: Ordinal of the device.
        handle: Its CUfunction as an integer.
        function: Numba's own object for it, with `.attrs` and setters of attributes.
        live: `live[0]` is False once the handle must not be used any more.
    """

    entry: Entry
    device: int
    handle: int
    function: Any
    live: list[bool]

    def allow_shared(self, dynamic_bytes: int) -> None:
        """Let a block take this much dynamic shared memory; beyond 48 KiB a kernel must be told so once.

        Source:
            CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later.
        """
        if dynamic_bytes > _SHARED_BY_DEFAULT:
            from cuda.bindings import driver

            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (status,) = driver.cuFuncSetAttribute(driver.CUfunction(self.handle), attribute, dynamic_bytes)
            if status != 0:
                raise LaunchError(
                    f"cannot give {self.entry.name} {dynamic_bytes} bytes of dynamic shared memory", status.name
                )


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

    def load(self, artifact: Artifact, entry: Entry, key: str, *, stored: bool) -> LoadedKernel:
        """The kernel on the current device.

        Args:
            artifact: Where it is.
            entry: Which kernel of it.
            key: Names the artifact in this process.
            stored: Whether the artifact came from a store, for the statistics.

        Raises:
            NoDeviceError: There is no device.
            LaunchError: The driver refuses the module.
        """
        context = _context()
        device = int(context.device.id)
        with self._lock:
            module = self._modules.get((key, device))
            if module is None or not module.live[0]:
                start = time.perf_counter()
                module = _Module(context, artifact, device)
                self._modules[key, device] = module
                seconds = time.perf_counter() - start
                fields = {"kernel": entry.name, "key": key, "device": device, "load_time_s": seconds, "stored": stored}
                self._emit(Event(EventKind.LOAD, fields))
            return module.kernel(entry)

    def forget(self) -> None:
        """Make every later launch ask anew. Modules stay loaded: queued work may still use them."""
        with self._lock:
            for module in self._modules.values():
                module.live[0] = False
            self._modules.clear()


class _Module:
    """One artifact on one device."""

    def __init__(self, context: Any, artifact: Artifact, device: int) -> None:
        from cuda.core import ObjectCode

        image = ObjectCode.from_cubin(artifact.cubin) if artifact.cubin else ObjectCode.from_ptx(artifact.ptx)
        self.device, self.live = device, [True]
        try:
            proxy = context.create_module_image(image)
            self._numba_module = context.modules[proxy.handle]
        except Exception as error:
            raise _load_error(artifact, device, error) from error
        # A strong reference would keep the module alive through cuda.close(); Numba's context holds it.
        weakref.finalize(self._numba_module, self.live.__setitem__, 0, False).atexit = False
        self._numba_module = weakref.proxy(self._numba_module)
        self._kernels: dict[str, LoadedKernel] = {}

    def kernel(self, entry: Entry) -> LoadedKernel:
        found = self._kernels.get(entry.symbol)
        if found is None:
            try:
                function = self._numba_module.get_function(entry.symbol)
            except Exception as error:
                raise LaunchError(f"cannot load the kernel {entry.name}", _said(error)) from error
            found = LoadedKernel(entry, self.device, int(function.handle), function, self.live)
            self._kernels[entry.symbol] = found
        return found


_FORGET_AFTER_FORK: weakref.WeakSet[Loader] = weakref.WeakSet()


def _after_fork() -> None:
    for loader in _FORGET_AFTER_FORK:
        loader._lock = threading.Lock()
        for module in loader._modules.values():
            module.live[0] = False
        loader._modules.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def device_target() -> Target:
    """The target of the current device: with its architecture-specific suffix from 9.0 on, as Numba builds for it.

    Raises:
        NoDeviceError: There is no device.
    """
    major, minor = _context().device.compute_capability
    return Target(major, minor, "a" if major >= 9 else "")


def current_device() -> int:
    """Ordinal of the device of the current context; -1 where there is none. The quickest way to ask."""
    from cuda.bindings import driver

    try:
        status, device = driver.cuCtxGetDevice()
    except RuntimeError:  # there is no driver library
        return -1
    return int(device) if status == 0 else -1


def device_limits(kernel: LoadedKernel) -> DeviceLimits:
    """What the kernel's device, and the kernel on it, can take."""
    device = _context().device
    return DeviceLimits(
        grid=(device.MAX_GRID_DIM_X, device.MAX_GRID_DIM_Y, device.MAX_GRID_DIM_Z),
        block=(device.MAX_BLOCK_DIM_X, device.MAX_BLOCK_DIM_Y, device.MAX_BLOCK_DIM_Z),
        threads_per_block=kernel.function.attrs.maxthreads,
        shared_bytes=device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        static_shared_bytes=kernel.function.attrs.shared,
    )


def make_launcher(kernel: LoadedKernel, name: str, *, strided: bool) -> Launcher:
    """What packs and launches the kernel on its device."""
    from cuda.bindings import driver

    around = Surroundings(
        device=kernel.device,
        order_after=StreamOrder(driver).order_after,
        device_of=_device_of if _device_count() > 1 else None,
    )
    return Launcher(
        name,
        kernel.entry.parameters,
        typed=kernel.entry.typed,
        function=driver.CUfunction(kernel.handle),
        driver=driver,
        around=around,
        live=kernel.live,
        strided=strided,
    )


def potential_block_size(kernel: LoadedKernel, sharedmem: int) -> int:
    """The block size at which the most threads are resident, from the driver (cuOccupancyMaxPotentialBlockSize)."""
    _grid, block = _context().get_max_potential_block_size(kernel.function, 0, sharedmem, 1024)
    return int(block)


_probed = False


def _context() -> Any:
    """Numba's current context, made if need be.

    Raises:
        NoDeviceError: There is no driver or no device.
        ToolchainMissingError: numba-cuda is not installed, or not as this version of numba_kcache knows it.
    """
    global _probed
    try:
        from numba.cuda.cudadrv import devices, driver, error
    except ImportError as problem:
        raise ToolchainMissingError(
            "cannot launch", f"numba-cuda cannot be imported: {problem}", "pip install 'numba-kcache[cu13]'"
        ) from problem
    if not _probed:
        _probe(driver, devices)
        _probed = True
    try:
        return devices.get_context()
    except (error.CudaSupportError, error.CudaDriverError) as problem:
        raise NoDeviceError(
            "cannot find a CUDA device", _said(problem), "name a target to compile without one: arch='sm_90'"
        ) from problem


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
    from cuda.bindings import driver

    status, count = driver.cuDeviceGetCount()
    return int(count) if status == 0 else 0


def _device_of(address: int) -> int | None:
    """The device whose memory this is; None for memory that others reach too, or that the driver does not know."""
    from cuda.bindings import driver

    names = driver.CUpointer_attribute
    status, ordinal = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address)
    if status != 0:
        return None
    status, kind = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address)
    if status != 0 or int(kind) != int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE):
        return None
    status, managed = driver.cuPointerGetAttribute(names.CU_POINTER_ATTRIBUTE_IS_MANAGED, address)
    return None if status == 0 and managed else int(ordinal)


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


def _load_error(artifact: Artifact, device: int, error: Exception) -> LaunchError:
    text = _said(error)
    hint = ""
    if "NO_BINARY_FOR_GPU" in text or "UNSUPPORTED_PTX" in text or "INVALID_IMAGE" in text:
        hint = "the code is for another device or newer than the driver: update the driver, or pin an older toolkit"
    return LaunchError(f"cannot load a module for {artifact.target} on device {device}", text, hint)


def _said(error: BaseException) -> str:
    return str(error).strip().replace("\n", " ") or type(error).__name__
