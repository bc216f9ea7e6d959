"""Load an artifact on a device, and notice when it is gone.

Promise     One module per artifact and device, however many threads and kernel objects ask at once. A
            `LoadedKernel` says by `live[0]` whether its handle may still be used: false after `cuda.close()`,
            a context reset, `clear()` or a fork; whoever sees that asks for it anew. A module is never loaded twice
            while it lives: its variables have one place.
Method      Through Numba's own driver layer where the program uses Numba, `Context.create_module_image(
            ObjectCode.from_cubin(bytes))`: Numba then owns the module, so its `cuda.close()` and reset unload it as
            they do Numba's, and `live` is cleared by the callback of a weak reference to Numba's module object. Each
            device gets an ObjectCode of its own: one shared by two contexts is unloaded twice and cuda.close() fails.
            Where the program does not use Numba, by `cuModuleLoadData`, which takes 0.1 ms less than the library that
            Numba makes (H200: 0.16 against 0.26 to the first function). If Numba comes later, the next launch of such a
            module has it watch Numba's context, before a handle of a context that is gone can reach the driver.
Not here    Which device it is (devices), whether a grid fits (config), how arguments are packed (arguments).
Ground      numba-cuda 0.30.4, cudadrv/driver.py: Context.create_module_image, CudaPythonModule. CUDA driver API,
            "Module Management", and cuThreadExchangeStreamCaptureMode: a relaxed thread may make calls that would end
            another's capture.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..errors import KCacheError, LaunchError, ToolchainMissingError
from ..model.artifact import Artifact, Entry
from ..model.event import Emit, Event, EventKind
from .arguments import Launcher, Relaunch
from .config import DeviceLimits
from .devices import (
    CurrentDevice,
    bindings,
    context_id,
    current_device,
    device_attribute,
    device_count,
    device_of,
    done,
)
from .pointers import Surroundings
from .streams import StreamOrder

_SHARED_BY_DEFAULT = 48 * 1024

_GRID_LIMIT = (2**31 - 1, 65535, 65535)
_BLOCK_LIMIT = (1024, 1024, 64)
"""The same for every device that CUDA 12 and 13 support (CUDA C++ Programming Guide, "Technical Specifications per
Compute Capability"): not worth six questions to the driver on each warm start."""


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
        driver = bindings()
        which = getattr(driver.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(done(driver.cuFuncGetAttribute(which, self.function), f"ask {self.entry.name}"))

    def limits(self, dynamic_bytes: int) -> DeviceLimits:
        """What the kernel can take here; shared memory is asked of the device only where a launch wants any."""
        if self._limits is None or (dynamic_bytes and not self._limits.shared_bytes):
            self._limits = DeviceLimits(
                grid=_GRID_LIMIT,
                block=_BLOCK_LIMIT,
                threads_per_block=self.attribute("MAX_THREADS_PER_BLOCK"),
                shared_bytes=self._of_device("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN") if dynamic_bytes else 0,
                static_shared_bytes=self.attribute("SHARED_SIZE_BYTES") if dynamic_bytes else 0,
            )
        return self._limits

    def allow_shared(self, dynamic_bytes: int) -> None:
        """Let a block take this much dynamic shared memory; beyond 48 KiB a kernel must be told so once.

        Source:
            CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later.
        """
        if dynamic_bytes > self._shared_allowed:  # never lowered: another configuration may need what it has
            driver = bindings()
            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            answer = driver.cuFuncSetAttribute(self.function, attribute, dynamic_bytes)
            done(answer, f"give {dynamic_bytes} bytes of dynamic shared memory to {self.entry.name}")
            self._shared_allowed = dynamic_bytes

    def prefer_shared(self, percent: int) -> None:
        """Ask for this share of the memory that L1 cache and shared memory divide, as Numba's carveout does."""
        driver = bindings()
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT
        done(driver.cuFuncSetAttribute(self.function, attribute, percent), f"set the carveout of {self.entry.name}")

    def allow_large_clusters(self) -> None:
        """Let clusters have more blocks than every device takes."""
        driver = bindings()
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        done(driver.cuFuncSetAttribute(self.function, attribute, 1), f"allow large clusters of {self.entry.name}")

    def resident_blocks(self, threads: int, dynamic_bytes: int) -> int:
        """Blocks of this size that the device runs at once (cuOccupancyMaxActiveBlocksPerMultiprocessor)."""
        driver = bindings()
        self.allow_shared(dynamic_bytes)
        answer = driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.function, threads, dynamic_bytes)
        each = int(done(answer, f"ask for the occupancy of {self.entry.name}"))
        return each * self._of_device("MULTIPROCESSOR_COUNT")

    def variable(self, symbol: str) -> Any:
        """Where a variable of the kernel's module lies, as the driver's kind of address.

        Raises:
            LaunchError: The driver does not know it.
        """
        driver = bindings()
        find = driver.cuModuleGetGlobal if self._module.numba is None else driver.cuLibraryGetGlobal
        status, address, _size = find(self._module.handle, symbol.encode())
        if status != 0:
            where = f"cannot find the variable {symbol} on device {self.device.ordinal}"
            raise LaunchError(where, f"the driver answered {status.name}")
        return address

    def has_lost_its_context(self) -> bool:
        """Whether it must be loaded anew because the context that it was loaded in is gone."""
        return self._module.has_lost_its_context()

    @property
    def alone(self) -> Sequence[bool]:
        """One element: whether the module was loaded without Numba, and does not watch Numba's context yet."""
        return self._module.alone

    def meet_numba(self) -> None:
        """Watch Numba's context, which the program has imported since the module was loaded."""
        self._module.meet_numba()

    @property
    def numba_function(self) -> Any:
        """The kernel as Numba's own launch code takes it."""
        return self._module.numba.get_function(self.entry.symbol)

    def potential_block_size(self, dynamic_bytes: int) -> int:
        """The block size at which most threads are resident, from the driver (cuOccupancyMaxPotentialBlockSize)."""
        self.allow_shared(dynamic_bytes)
        answer = bindings().cuOccupancyMaxPotentialBlockSize(self.function, None, dynamic_bytes, 0)
        if answer[0] != 0:
            raise LaunchError(
                f"cannot ask for a block size of {self.entry.name}", f"the driver answered {answer[0].name}"
            )
        return int(answer[2])

    def _of_device(self, attribute: str) -> int:
        return device_attribute(self.device.ordinal, attribute)


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
            if module is None or module.has_lost_its_context():
                start = time.perf_counter()
                driver = bindings()
                relaxed = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
                before = done(driver.cuThreadExchangeStreamCaptureMode(relaxed), "load a module beside a capture")
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
        self.device, self._target, self.live = device, artifact.target, [True]
        self._kernels: dict[str, LoadedKernel] = {}
        self._context_id: int | None = None
        self.numba: Any = None
        self.alone = [device.numba is None]
        if device.numba is None:
            self.handle = self._load(artifact)
            self._context_id = context_id()
        else:
            self.numba = self._numbas(artifact)
            self.handle = self.numba.handle
            self._watch(device.numba.modules[self.handle])

    def _numbas(self, artifact: Artifact) -> Any:
        """A weak proxy: Numba's context owns the module."""
        code = _core().ObjectCode
        image = code.from_cubin(artifact.cubin) if artifact.cubin else code.from_ptx(artifact.ptx)
        try:
            return self.device.numba.create_module_image(image)
        except Exception as error:
            raise self._refused(str(error)) from error

    def _load(self, artifact: Artifact) -> Any:
        status, module = bindings().cuModuleLoadData(artifact.cubin or artifact.ptx + b"\0")
        if status != 0:
            raise self._refused(f"the driver answered {status.name}")
        return module

    def meet_numba(self) -> None:
        """Be gone when Numba's context is, which `cuda.close()` destroys; at once, if it has been destroyed before."""
        try:
            device = current_device()
        except KCacheError:  # Numba cannot use the device: then there is nothing of its to watch
            return
        if device.ordinal == self.device.ordinal:  # on another one the launch is led elsewhere
            if not self.has_lost_its_context():
                self._watch(_put_among_modules(device.numba))
            self.alone[0] = False

    def _watch(self, owner: Any) -> None:
        live = self.live
        self._watched = weakref.ref(owner, lambda _gone: live.__setitem__(0, False))

    def has_lost_its_context(self) -> bool:
        """Whether the context that it was loaded in was destroyed; Numba tells of its own."""
        if self._context_id is not None and self.live[0] and context_id() != self._context_id:
            self.live[0] = False
        return not self.live[0]

    def kernel(self, entry: Entry) -> LoadedKernel:
        found = self._kernels.get(entry.symbol)
        if found is None:
            driver, symbol = bindings(), entry.symbol.encode()
            if self.numba is None:
                status, function = driver.cuModuleGetFunction(self.handle, symbol)
            else:  # not Module.get_function: it asks the driver for five attributes that no launch needs
                status, kernel = driver.cuLibraryGetKernel(self.handle, symbol)
                if status == 0:
                    status, function = driver.cuKernelGetFunction(kernel)
            if status != 0:
                raise self._refused(f"the driver answered {status.name} to the kernel {entry.symbol}")
            found = LoadedKernel(entry, self.device, function, self)
            self._kernels[entry.symbol] = found
        return found

    def _refused(self, why: str) -> LaunchError:
        hint = ""
        if "NO_BINARY_FOR_GPU" in why or "UNSUPPORTED_PTX" in why or "INVALID_" in why:
            hint = "it is for another device, or newer than the driver: update the driver, or pin an older toolkit"
        return LaunchError(f"cannot load a module for {self._target} on device {self.device.ordinal}", why, hint)


class _AmongModules:
    """Stands among the modules of Numba's context, and is gone with them. The context itself is part of a cycle."""


def _put_among_modules(context: Any) -> _AmongModules:
    guest = _AmongModules()
    context.modules[guest] = guest
    return guest


_FORGET_AFTER_FORK: weakref.WeakSet[Loader] = weakref.WeakSet()


def _after_fork() -> None:
    for loader in _FORGET_AFTER_FORK:
        loader._lock = threading.Lock()
        for module in loader._modules.values():
            module.live[0] = False
        loader._modules.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def loaded_by_numba(function: Any) -> LoadedKernel:
    """A function that Numba loaded on the current device, as this package prepares and asks its own."""
    driver = bindings()
    handle = done(driver.cuKernelGetFunction(function.handle), f"find {function.name}")
    entry = Entry(function.name, function.name, (), False, function.attrs.regs, function.attrs.shared)
    return LoadedKernel(entry, current_device(), handle, _NumbasModule(function.module, function.module.handle, [True]))


class _NumbasModule(NamedTuple):
    """What a `LoadedKernel` asks of its module, for one that Numba loaded and watches over."""

    numba: Any
    handle: Any
    live: list[bool]
    alone: tuple[bool] = (False,)

    def has_lost_its_context(self) -> bool:
        return False

    def meet_numba(self) -> None:
        """Numba loaded it."""


def make_launcher(
    kernel: LoadedKernel,
    name: str,
    *,
    strided: bool,
    relaunch: Relaunch,
    attributes: Sequence[Any] = (),
    debug: bool = False,
) -> Launcher:
    """What packs and launches the kernel on its device, and asks `relaunch` where it cannot.

    Args:
        kernel: On its device.
        name: For messages.
        strided: Whether arrays that do not lie in one piece are taken.
        relaunch: As in `Launcher`.
        attributes: Launch attributes of the driver's kind.
        debug: Whether each launch is waited for (`debugging`).
    """
    make = Launcher
    if debug:
        from .debugging import DebugLauncher as make
    return make(
        name,
        kernel.entry.parameters,
        typed=kernel.entry.typed,
        function=kernel.function,
        driver=bindings(),
        around=surroundings(kernel),
        live=kernel.live,
        strided=strided,
        attributes=attributes,
        relaunch=relaunch,
    )


def surroundings(kernel: LoadedKernel) -> Surroundings:
    """The process as launches of the kernel see it."""
    numba = kernel.device.numba
    return Surroundings(
        device=kernel.device.ordinal,
        order_after=StreamOrder(bindings()).order_after,
        device_of=device_of if device_count() > 1 else None,
        context=None if numba is None else weakref.proxy(numba),
        alone=kernel.alone,
        meet_numba=kernel.meet_numba,
        numba_stream=_numba_stream,
    )


def _numba_stream(handle: int) -> Any:
    return _core().Stream.from_handle(handle)


@functools.cache
def _core() -> Any:
    import cuda.core as core

    return core


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
        printed = subprocess.run([tool, file.name], capture_output=True, text=True, check=False)
    if printed.returncode != 0:
        raise LaunchError("cannot disassemble", printed.stderr.strip())
    return printed.stdout
