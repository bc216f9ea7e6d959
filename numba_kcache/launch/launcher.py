"""Load an artifact on a device as a module, and launch its kernels: pack the arguments, and call the driver.

Promise     There is one module per artifact and device, also for several threads and kernel objects. `live[0]` of a
            `LoadedKernel` tells whether its handle may still be used: false after `cuda.close()`, a context reset,
            `clear()` or a fork; the kernel then has to be loaded again. A loaded module is never loaded a second time,
            so that its variables have one address.
            Nothing is queued before every argument fits its parameter; the parameter buffer follows the C ABI.
            `Slot.settle` is the complete check of one argument. It returns an address only if the memory is reachable
            from this launch's device, its elements fit the pointee, it is writable where the kernel may write, and it
            is contiguous (unless `strided`). A bare integer is never taken as an address.
            Launches may run in any number of threads, and one may interrupt another: no buffer is shared while in use.
Method      If the program uses Numba, Numba's driver layer loads the module, by `Context.create_module_image(
            ObjectCode.from_cubin(bytes))`: Numba then owns it, so `cuda.close()` and a reset unload it like Numba's own
            modules, and the callback of a weak reference to Numba's module object clears `live`. Each device gets an
            ObjectCode of its own: one shared by two contexts would be unloaded twice, and cuda.close() would fail.
            Otherwise `cuModuleLoadData` loads it, in 0.1 ms less than the library that Numba makes (H200: 0.16 against
            0.26 ms to the first function). If Numba is imported later, the next launch of a kernel of such a module
            starts watching Numba's context, so that no handle from a destroyed context reaches the driver.
            `memory_of` reads the device memory of an argument, `orders_of` the streams of all arguments. Copies that an
            argument needs are collected on the `Call`, and made after all arguments are checked. Here is only the code
            for the commonest types; the rest is imported with the first argument of another type.
            `bind` returns a function of the C module (`native`), which recognises arguments of the commonest exact
            types, packs them and launches. A launch with other arguments goes to `_slow`, which checks the arguments
            one by one. `recognition` describes a kernel to the C module at its second launch, or once many kernels with
            equal parameters were launched, which share the description: importing it takes longer than a launch through
            `_slow`.
Not here    The device, the streams and the shape of a launch (launch/__init__.py); numbers that need a conversion
            (`scalars`), rarer kinds of memory (`memory`), rarer pairs of memory and pointer (`pointers`), Numba's
            arguments, which take several parameters (`typed`); the bound launches of a kernel (frontends).
Source      cuLaunchKernel copies the parameters before it returns, and is called without the GIL. CUDA driver API,
            "Module Management", and cuThreadExchangeStreamCaptureMode: a thread in relaxed mode may make calls that
            would otherwise end another thread's capture. numba-cuda 0.30.4, cudadrv/driver.py:
            Context.create_module_image, CudaPythonModule.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from struct import Struct, pack, pack_into
from typing import Any

from ..errors import ArgumentError, CodeRefusedError, KCacheError, LaunchError, NoDeviceError, OptionError, shorten
from ..model import (
    LONG_WAIT_S,
    SCALAR_SIZES,
    Artifact,
    CompiledKernel,
    Emit,
    Event,
    EventKind,
    Parameter,
    misfit,
    tell_wait,
)
from ..store import renewed_in_children
from . import (
    BLOCK_LIMIT,
    CARRIERS,
    GRID_LIMIT,
    LEGACY_DEFAULT,
    NUMBA_CUDA_MODULE,
    Call,
    CurrentDevice,
    DeviceLimits,
    Dim3,
    Launch,
    LaunchShape,
    Memory,
    Order,
    Slot,
    Unfit,
    address_of,
    bindings,
    bounds_of,
    check_interpreter,
    check_launch,
    choose,
    context_id,
    current_device,
    device_attribute,
    done,
    element_of_dtype,
    is_capturing,
    is_exported,
    limits_of,
    native,
    others,
    stream_handle,
    struct_format,
)

# -- modules -----------------------------------------------------------------------------------------------------------


_SHARED_BY_DEFAULT = 48 * 1024

_FUNCTION_ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 0, "SHARED_SIZE_BYTES": 1, "MAX_DYNAMIC_SHARED_SIZE_BYTES": 8,
    "PREFERRED_SHARED_MEMORY_CARVEOUT": 9, "NON_PORTABLE_CLUSTER_SIZE_ALLOWED": 14,
}  # fmt: skip
"""Numbers of CU_FUNC_ATTRIBUTE names."""

LONGEST_WAIT_S = 5.0
"""Longest wait for another thread that loads the same module; after it both load, and one of the two is unloaded."""


class LoadedKernel:
    """One kernel on one device, ready to be launched.

    Args:
        compiled: The kernel, as its artifact describes it.
        device: The device that it is loaded on.
        function: Its CUfunction.
        module: Its module; kept alive, since it clears `live`.
    """

    def __init__(self, compiled: CompiledKernel, device: CurrentDevice, function: Any, module: Any) -> None:
        self.compiled, self.device, self.function = compiled, device, function
        self.module, self.live = module, module.live
        self._limits, self._has_queried = limits_of(compiled.safe_threads), False
        self._shared_allowed = _SHARED_BY_DEFAULT - compiled.shared_bytes  # static and dynamic memory share the 48 KiB

    def prepare(self, shape: LaunchShape, name: str) -> None:
        """Check a shape against the limits on this device, and allow the dynamic shared memory that it needs.

        Raises:
            LaunchConfigError: The shape exceeds the limits; `name` is the kernel's name in the message.
        """
        limits, (_grid, (x, y, z), dynamic_bytes) = self._limits, shape
        if dynamic_bytes or x * y * z > limits.threads_per_block:
            limits = self.limits(dynamic_bytes)
        check_launch(shape, limits, kernel=name)
        if shape.shared_bytes:
            self.allow_shared(shape.shared_bytes)

    def limits(self, dynamic_bytes: int) -> DeviceLimits:
        """The limits of the kernel on this device; that of shared memory is queried only where a launch needs it."""
        if not self._has_queried or (dynamic_bytes and not self._limits.shared_bytes):
            most, room, taken = self.attribute("MAX_THREADS_PER_BLOCK"), 0, 0
            if dynamic_bytes:
                room, taken = self.of_device("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), self.attribute("SHARED_SIZE_BYTES")
            self._limits, self._has_queried = DeviceLimits(GRID_LIMIT, BLOCK_LIMIT, most, room, taken), True
        return self._limits

    def set_attribute(self, name: str, value: int, action: str) -> None:
        """Set an attribute of the function, by the end of its CU_FUNC_ATTRIBUTE name; `action` is for the error."""
        # a carveout can be -1
        answer = bindings().cuFuncSetAttribute(self.function, _FUNCTION_ATTRIBUTES[name], value & 0xFFFFFFFF)
        done(answer, f"{action} {self.compiled.name}")

    def allow_shared(self, dynamic_bytes: int) -> None:
        """Let a block take this much dynamic shared memory; beyond 48 KiB a kernel needs an attribute for it.

        Source:
            CUDA C++ Programming Guide, "Shared Memory" of compute capability 7.x and later.
        """
        if dynamic_bytes > self._shared_allowed:  # never lowered: another configuration may need it
            action = f"give {dynamic_bytes} bytes of dynamic shared memory to"
            self.set_attribute("MAX_DYNAMIC_SHARED_SIZE_BYTES", dynamic_bytes, action)
            self._shared_allowed = dynamic_bytes

    @property
    def numba_function(self) -> Any:
        """The function object for Numba's own launch code."""
        self.module.stays[0] = True
        return self.module.of_numba().get_function(self.compiled.symbol)

    def attribute(self, name: str) -> int:
        """An attribute of the function, by the end of its CU_FUNC_ATTRIBUTE name."""
        answer = bindings().cuFuncGetAttribute(_FUNCTION_ATTRIBUTES[name], self.function)
        return int(answer[1] if answer[0] == 0 else done(answer, f"ask {self.compiled.name}"))

    def give_out(self) -> int:
        """The driver's handle, for use outside this package; the module stays loaded from then on."""
        self.module.stays[0] = True
        return int(self.function)

    def of_device(self, attribute: str) -> int:
        """An attribute of the device."""
        return device_attribute(self.device.ordinal, attribute)


Code = tuple[Artifact, dict[str, Any]]  # with the table of sections that `misfit` fills at its first call


def _require_fit(code: Code, compiled: CompiledKernel, live: list[bool]) -> None:
    """Refuse a kernel of a module whose cubin contradicts it; a single kernel was checked when the entry was read."""
    if len(code[0].kernels) > 1 and (wrong := misfit(code[0], compiled, code[1])):
        live[:] = [False]
        raise CodeRefusedError(f"cannot load {compiled.name} for {code[0].target}", wrong)


class Loader:
    """The modules of one cache on the devices of this process.

    Args:
        emit: Takes the events of loads.

    Attributes:
        layouts: Layouts shared by launchers (`launcher.Layout`), by parameters.
        loading: A lock for each module that is being loaded.
    """

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._modules: dict[tuple[str, int], weakref.ref[LoadedModule]] = {}
        self._dropped: list[tuple[Any, ...]] = []
        self.layouts: dict[Any, Any] = {}
        self.loading: dict[tuple[str, int], threading.RLock] = {}
        renewed_in_children.add(self)

    def load(
        self, artifact: Artifact, compiled: CompiledKernel, key: str, device: CurrentDevice, *, stored: bool
    ) -> LoadedKernel:
        """Load a kernel on the current device; within `launch.relaxed()`.

        Args:
            artifact: The artifact with the kernel.
            compiled: The kernel, as its artifact describes it.
            key: Name of the artifact, unique in this process.
            device: The current device.
            stored: Whether the artifact came from a store, for the statistics.

        Raises:
            CodeRefusedError: The driver refuses the code, or it contradicts the kernel's description.
            LaunchError: The driver cannot load it for another reason.
        """
        name, modules = (key, device.ordinal), self._modules
        lock, start = self.loading.setdefault(name, threading.RLock()), time.perf_counter()
        is_alone = lock.acquire(timeout=LONGEST_WAIT_S)
        try:
            waited_s = time.perf_counter() - start
            if waited_s > LONG_WAIT_S:
                tell_wait(self._emit, "another thread that loads the same kernel", waited_s)
            found = modules.get(name)
            module = None if found is None else found()
            if module is not None and not module.has_lost_its_context():
                return module.kernel(compiled)
            if found is not None:
                modules.pop(name, None)
            code = artifact, dict[str, Any]()
            _require_fit(code, compiled, [])
            if self._dropped:
                from .streams import unload_dropped

                unload_dropped(self._dropped, device.ordinal)
            made = LoadedModule(code, device, name, self)
            kernel = made.kernel(compiled)  # a cubin for another device is refused here, not when it is loaded
            first = modules.setdefault(name, weakref.ref(made))()
            if first is not None and first is not made:  # another thread loaded it meanwhile: keep its variables
                return first.kernel(compiled)
        finally:
            self.loading.pop(name, None)
            if is_alone:
                lock.release()
        if modules is not self._modules:
            made.live[0] = False  # `forget` was called meanwhile: the next launch loads again
        fields = {
            "kernel": compiled.name, "key": key, "device": device.ordinal, "stored": stored,
            "load_time_s": time.perf_counter() - start,
        }  # fmt: skip
        self._emit(Event(EventKind.LOAD, fields))
        return kernel

    def forget(self) -> None:
        """Make every later launch load again. A module stays loaded while a launch refers to it, or work is queued."""
        before, self._modules = self._modules, {}
        for module in [found() for found in list(before.values())]:
            if module is not None:
                module.live[0] = False

    def drop(self, name: tuple[str, int], dropped: tuple[Any, ...]) -> None:
        """Record a module without references as an `streams.Dropped`. A finalizer calls this."""
        found = self._modules.get(name)
        if found is not None and found() is None:
            self._modules.pop(name, None)
        self._dropped.append(dropped)

    def after_fork(self) -> None:
        """Forget the parent's modules: CUDA does not survive a fork. Its threads' locks stay locked for ever."""
        self.loading = {}
        self.forget()


class LoadedModule:
    """One artifact loaded on one device, with the data that launches of its kernels share.

    Args:
        code: The artifact, and the table of sections that `misfit` fills.
        device: The current device.
        name: The key of the artifact and the ordinal of the device: the module's name in the loader.
        loader: The loader, which unloads it when there are no references to it any more.

    Attributes:
        driver: `launch.bindings()`.
        handle: The driver's handle of the module, or of the library if Numba loaded it.
        loaded_in: The id of its context.
        count: Number of its kernels.
        layouts, functions: Shared by its launchers: the loader's layouts, and the driver's functions for plans.
        live: One element, false once the handle must not be used any more.
        stays: One element, true if it must not be unloaded, since code outside this package may use it.
        device_of: A function that returns the only device that can reach an address, or None for memory that others
            reach too (managed, host-mapped) and for addresses that the driver does not know. None instead of the
            function where the process sees one device only.
        awaits_numba: One element, true if the module was loaded without Numba and Numba's context is not watched yet.
        numba_context: A proxy of the context that Numba's arrays of this device have their memory in.
        is_watched_in_mlir: Whether the context of numba-cuda-mlir is watched.
    """

    is_watched_in_mlir = False

    def __init__(self, code: Code, device: CurrentDevice, name: tuple[str, int], loader: Loader) -> None:
        self.driver = driver = bindings()
        self.device, self.live, self.stays = device, [True], [True]
        (artifact, _sections), self._code, self.layouts, self.functions = code, code, loader.layouts, b""
        self._name, self._loader, self.count = name, loader, len(artifact.kernels)
        status, count = driver.cuDeviceGetCount()
        self.device_of: Any = None
        if status == 0 and count > 1:
            from .memory import device_of

            self.device_of = functools.partial(device_of, here=device.ordinal)
        self._kernels: dict[str, weakref.ref[LoadedKernel]] = {}  # weak: each kernel refers to the module
        self.loaded_in, self._pid = context_id(), os.getpid()
        self._waits: Any = None
        self._watched = list[Any]()
        self._again: Any = None
        self.numba: Any = None
        self.numba_modules: Any = None
        self.numba_context: Any = None
        self.awaits_numba = [device.numba is None]
        if device.numba is None:
            status, self.handle = driver.cuModuleLoadData(artifact.cubin or artifact.ptx + b"\0")
            if status != 0:
                raise self._refused(f"the driver returned {driver.name_of(status)}")
            self.stays[0] = False
            return
        from cuda.core import ObjectCode

        image = ObjectCode.from_cubin(artifact.cubin) if artifact.cubin else ObjectCode.from_ptx(artifact.ptx)
        try:
            self.numba = device.numba.create_module_image(image)  # a weak proxy: Numba's context owns the module
        except Exception as error:  # of Numba, the driver or cuda.core: the driver refused the module
            raise self._refused(str(error)) from error
        self.handle, self.numba_context = self.numba.handle, weakref.proxy(device.numba)
        self.numba_modules = device.numba.modules
        self._watch(self.numba_modules[self.handle])
        self.stays[0] = False

    def of_numba(self) -> Any:
        """Numba's module: a second one, if this was loaded before the program imported Numba."""
        if self.numba is None and self._again is None:
            self._again = LoadedModule(self._code, current_device(), self._name, self._loader)
            self._again.stays[0] = True
        return (self._again or self).numba

    def __del__(self) -> None:
        if self.stays[0] or functools is None or sys.is_finalizing():  # at exit a `Dropped` would keep Numba alive
            return
        call = functools.partial(self.driver.cuModuleUnload, self.handle)
        unload = call if self.numba is None else functools.partial(self.numba_modules.pop, self.handle, None)
        self._loader.drop(self._name, (self.device.ordinal, self.loaded_in, unload, [], self._pid))

    def is_capturing(self, handle: int) -> bool:
        """Check whether a stream is being captured."""
        return is_capturing(self.driver, handle)

    @property
    def waits(self) -> Any:
        """The `StreamWaits` of the context."""
        if self._waits is None:
            check_interpreter()
            from .streams import waits_in

            self._waits = waits_in(self.loaded_in)
        return self._waits

    def hold_for(self, handle: int, borrowed: Sequence[object]) -> None:
        """Keep objects alive until the work queued on a stream so far is done. The C module calls it, too."""
        self.waits.hold(handle, borrowed)

    def watch_numba_context(self) -> None:
        """Clear `live` when Numba's context is destroyed, as by `cuda.close()`; at once, if that happened before.

        The driver does not always refuse a handle of a context that is gone: on an H200 (580.159.04) a kernel of the
        next context had the same one, and a launch of another ended the process.
        """
        try:
            device = current_device()
        except KCacheError:  # Numba cannot use the device, so it has no context to watch
            return
        if device.ordinal == self.device.ordinal:  # a launch on another device uses another module
            if not self.has_lost_its_context():
                self.watch_context(device.numba.modules)
            self.awaits_numba[0] = False

    def watch_context(self, modules: Any) -> None:
        """Clear `live` when the context of a Numba that has these modules is destroyed."""
        sentinel = _ContextSentinel()
        modules[sentinel] = sentinel
        self._watch(sentinel)

    def _watch(self, owner: Any) -> None:
        live = self.live
        self._watched.append(weakref.ref(owner, lambda _gone: live.__setitem__(0, False)))

    def is_current(self) -> bool:
        """Check whether the module may be used, and was loaded in the current context."""
        return self.live[0] and self.driver.cuCtxGetId(0) == (0, self.loaded_in)

    def has_lost_its_context(self) -> bool:
        """Check whether the context that it was loaded in was destroyed; Numba's contexts are watched instead."""
        if self.numba is None and self.live[0] and context_id() != self.loaded_in:
            self.live[0] = False
        return not self.live[0]

    def kernel(self, compiled: CompiledKernel) -> LoadedKernel:
        """Find a kernel of the module.

        Raises:
            CodeRefusedError: The driver refuses it, or the code contradicts its description.
        """
        kept = self._kernels.get(compiled.symbol)
        found = None if kept is None else kept()
        if found is None:
            _require_fit(self._code, compiled, self.live)
            driver, symbol = self.driver, compiled.symbol.encode()
            if self.numba is None:
                status, function = driver.cuModuleGetFunction(self.handle, symbol)
            else:  # not Module.get_function, which queries five attributes that no launch needs
                status, kernel = driver.cuLibraryGetKernel(int(self.handle), symbol)
                if status == 0:
                    status, function = driver.cuKernelGetFunction(kernel)
            if status != 0:
                answered = driver.name_of(status)
                raise self._refused(f"the driver returned {answered} for the kernel {compiled.symbol}")
            found = LoadedKernel(compiled, self.device, function, self)
            self._kernels[compiled.symbol] = weakref.ref(found)
        return found

    def _refused(self, why: str) -> LaunchError:
        from .failures import load_error

        error = load_error(self._code[0].target, self.device.ordinal, why)
        self.live[0] = self.live[0] and not isinstance(error, CodeRefusedError)
        return error


class _ContextSentinel:
    """A member of `modules` of a Numba's context, freed when these are; the context lives on in a reference cycle."""


# -- arguments ---------------------------------------------------------------------------------------------------------


_TYPESTRS = {
    "|b1": "b1", "|i1": "i1", "|u1": "u1", "<i2": "i2", "<u2": "u2", "<i4": "i4", "<u4": "u4", "<i8": "i8",
    "<u8": "u8", "<f2": "f2", "<f4": "f4", "<f8": "f8", "<c8": "c4", "<c16": "c8",
}  # fmt: skip
"""The type code of each `typestr` of an array interface, so that NumPy need not be imported for them."""

_WORDS = 1 << 64

_new = tuple.__new__  # the constructor of a named tuple takes three times as long

_EXACT = {"i": (int,), "u": (int,), "f": (float, int), "b": (bool,)}
"""Python types whose values `struct` packs as the converters would, within bounds; by the first letter of the code."""


class ParameterSlot(Slot):
    """The slot of one parameter of a kernel.

    Args:
        launcher: The `Launcher` of the kernel.
        position: Position of the parameter, counted from 1.
        declared: The parameter as the compiler reported it.
    """

    def __init__(self, launcher: Any, position: int, declared: Parameter) -> None:
        self.launcher, self.position, self.declared = launcher, position, declared
        self.code = declared.code
        self.pointee = self.code.lstrip("*k")  # what a pointer points to
        self._convert: Callable[[Any], Any] | None = None

    @property
    def convert(self) -> Callable[[Any], Any]:
        """The converter of values, which checks one and returns a number or bytes."""
        if self._convert is None:
            check_interpreter()
            from .scalars import converter_for

            self._convert = converter_for(self)
        return self._convert

    def refuse(self, value: object, why: str, hint: str = "") -> ArgumentError:
        """Make the error for `value`."""
        check_interpreter()
        from .failures import argument_error

        return argument_error(self, value, why, hint)


class ValueSlot(ParameterSlot):
    """The slot of a parameter passed by value."""

    form = "value"
    _exact: Any = None  # set at the first launch

    def settle(self, value: Any, _call: Call) -> Any:
        """Check one argument; see `Settle`."""
        if self._exact is None:
            self._exact = _exact_of(self.code)
        types, below, above = self._exact
        if type(value) in types and below < value < above:
            return value
        number = self.convert(value)
        return (number.real, number.imag) if self.code[0] == "c" else number


@functools.cache
def _exact_of(code: str) -> tuple[tuple[type, ...], float, float]:
    """The Python types that `struct` packs for this code without conversion, and exclusive bounds of their values."""
    types = () if code in CARRIERS else _EXACT.get(code[0], ())
    return types, *(bounds_of(code) if types else (0, 0))


class PointerSlot(ParameterSlot):
    """The slot of a parameter that takes a pointer."""

    form = "pointer"

    def settle(self, value: Any, call: Call) -> Any:
        """Check one argument; see `Settle`.

        Raises:
            ArgumentError: The argument does not fit.
        """
        try:
            memory = memory_of(value)
            if memory is None:
                check_interpreter()
                from .pointers import settle_rare

                return settle_rare(self, value, call, memory_of)
        except Unfit as unfit:
            raise self.refuse(value, unfit.why, unfit.hint) from unfit.__cause__
        address, element, _item_bytes, _shape, strides, readonly, device = memory
        module = self.launcher.module
        if (element is not None and (element != self.pointee or strides is not None or readonly)) or (
            module.device_of is not None and device != module.device.ordinal
        ):
            check_interpreter()
            from .pointers import check_memory

            check_memory(self, value, memory)
        return address


class WordSlot(PointerSlot):
    """The slot of eight bytes of unknown type: a pointer, or a scalar whose bytes are certain."""

    def settle(self, value: Any, call: Call) -> Any:
        """Check one argument; see `Settle`."""
        try:
            return int.from_bytes(self.convert(value), "little")
        except ArgumentError:
            if isinstance(value, (int, float, complex)):
                raise
        return super().settle(value, call)


def _word(number: Any, what: str) -> int:
    """Read an unsigned number of 64 bits; None means 0."""
    found = 0 if number is None else operator.index(number)
    if not 0 <= found < _WORDS:
        raise ValueError(f"{found} is not a valid {what}")
    return found


_rare: Any = None
"""The module `memory`, once it is imported: repeating an import statement takes time."""


def _rarer() -> Any:
    global _rare
    check_interpreter()
    from . import memory as _rare

    return _rare


def memory_of(value: Any, protocol: str = "__cuda_array_interface__") -> Memory | None:
    """Read the device memory of an argument; None if it has no interface for device memory.

    Arrays of Numba, CuPy and PyTorch are read directly: CuPy's array interface is slow, PyTorch's refuses
    `requires_grad` and has no bfloat16. For all others their array interface is read. No library is imported for it.

    Args:
        value: The argument.
        protocol: Name of the interface attribute, for arrays on the device or on the host.

    Raises:
        Unfit: The argument is memory, but cannot be passed as it is.
    """
    if value is None:
        return Memory(0)
    if getattr(value, "__cuda_ndarray__", False):  # an array of Numba
        if not hasattr(value, "is_c_contiguous"):
            on_host: Memory = (_rare or _rarer()).mapped_memory(value)
            return on_host
        dtype, strides = value.dtype, None if value.is_c_contiguous() else value.strides
        address = value.gpu_data.device_ctypes_pointer.value or 0
        return _new(Memory, (address, element_of_dtype(dtype), dtype.itemsize, value.shape, strides, False, None))
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    if cupy is not None and type(value) is cupy.ndarray and hasattr(value, "_c_contiguous"):
        data, dtype, strides = value.data, value.dtype, None if value._c_contiguous else value.strides
        code = element_of_dtype(dtype)
        return _new(Memory, (data.ptr, code, dtype.itemsize, value.shape, strides, False, data.device_id))
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    interface = None if is_tensor else getattr(value, protocol, None)
    is_unordered = type(interface) is dict and "stream" not in interface and protocol == "__cuda_array_interface__"
    if interface is None or (is_unordered and hasattr(value, "__dlpack_device__")):
        rare: Memory | None = (_rare or _rarer()).rare_memory(value)
        return rare
    try:
        if interface.get("mask") is not None:
            raise Unfit("it is a masked array", "pass its data and its mask as two arguments")
        element, data = _TYPESTRS.get(interface["typestr"]), interface.get("data")
        if element is None:
            element, item_bytes = (_rare or _rarer()).read_typestr(value, interface["typestr"])
        else:
            item_bytes = SCALAR_SIZES[element]
        address, is_readonly = data if data is not None else (0, False)
        if type(address) is not int or not 0 <= address < _WORDS:
            address = _word(address, "address")
        shape, strides = interface["shape"], interface.get("strides")
        if strides is not None and len(strides) != len(shape):
            raise ValueError(f"{len(strides)} strides for {len(shape)} axes")
        if not address and 0 not in shape:
            hint = "pass the array that holds the memory, or None for a null pointer"
            raise Unfit("its array interface has elements at the address 0", hint)
        if type(producer := interface.get("stream")) is not int and producer is not None:
            _word(producer, "stream")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"its {protocol} is not valid: {type(error).__name__}: {error}"
        raise Unfit(why, "it has shape, typestr, data = (address, is read-only), and perhaps strides") from error
    return _new(Memory, (address, element, item_bytes, shape, strides, bool(is_readonly), None))


def orders_of(arguments: Iterable[Any], ordinal: int) -> list[Order]:
    """The streams of the arguments that have one, in their order. No library is imported for it.

    Args:
        arguments: Arguments of a launch; tuples may contain further ones.
        ordinal: Ordinal of the launch's device.
    """
    found: list[Order] = []
    torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
    for value in arguments:
        kind, is_current, is_numba = type(value), True, False
        if kind is int or kind is float or value is None:
            continue
        if isinstance(value, tuple):
            found += orders_of(value, ordinal)
            continue
        if getattr(value, "__cuda_ndarray__", False):  # an array of Numba
            handle, is_numba = getattr(value, "stream", 0), True  # a part of a mapped array has none
            handle = handle if type(handle) is int else stream_handle(handle)
        elif cupy is not None and isinstance(value, cupy.ndarray):
            handle = cupy.cuda.get_current_stream().ptr
        elif (torch is not None and isinstance(value, torch.Tensor)) or hasattr(kind, "__dlpack_c_exchange_api__"):
            handle = (_rare or _rarer()).current_stream(value, torch, ordinal)
        else:
            interface, is_current = getattr(value, "__cuda_array_interface__", None), False
            handle = interface.get("stream") if type(interface) is dict else None
            try:
                handle = handle if handle is None or type(handle) is int else _word(handle, "stream")
            except (TypeError, ValueError):  # `memory_of` refuses it
                continue
        if handle is not None:
            found.append(_new(Order, (0 if handle == LEGACY_DEFAULT else handle, is_current, is_numba)))
    return found


# -- launches ----------------------------------------------------------------------------------------------------------


_HANDLE = Struct("=Q")

_LAYOUTS_LIMIT = 256

_DESCRIBED_AFTER = 32
"""Number of kernels with equal parameters whose first launches, all through `_slow`, take as long as describing one of
them to the C module."""

_MANY = 100
"""Number of kernels of a module that makes it likely that more than `_DESCRIBED_AFTER` of them are launched."""

Relaunch = Callable[[tuple[Any, ...], tuple[Any, ...], int], bool]
"""Called where this launcher cannot launch, with the configuration, the arguments and the driver's error code (0: the
module was unloaded, or its device is not current). Returns True if another launcher launched, False if none can."""


def _functions_of(module: Any) -> bytes:
    """Pack what the plans (native.c) of all kernels of a module share: addresses of driver functions, the device."""
    find = module.driver.addresses
    get_device = find["cuCtxGetDevice"] if module.device_of else 0
    return pack(
        "=4Q2i", find["cuLaunchKernel"], find["cuLaunchKernelEx"], get_device, find["cuPointerGetAttribute"],
        module.device.ordinal, not module.device_of,
    )  # fmt: skip


class Layout:
    """The layout of a parameter buffer, and the C module's plan for it; shared by kernels with equal parameters.

    Args:
        parameters: As the compiler reported them, or split into smaller ones at the same bytes.

    Attributes:
        offsets: Offsets of the parameters.
        idle: Buffers that are not in use; a list, because pop and append are atomic.
        plan: The C module's plan of the first of these kernels that was described to it; None until then. The slots of
            later kernels are copied from it.
        launched: Number of launches through `_slow`.
    """

    __slots__ = ("idle", "launched", "offsets", "pack", "plan", "size_bytes")

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        layout = Struct(struct_format(parameters))
        self.pack, self.size_bytes, self.offsets = layout.pack_into, layout.size, [each.offset for each in parameters]
        self.idle: list[tuple[Any, int]] = []
        self.plan: Any = None
        self.launched = 0

    def new_buffer(self) -> tuple[Any, int]:
        """Make a buffer with the parameters and the array of pointers to them; return it with the array's address."""
        start = -(-self.size_bytes // 8) * 8
        memory = bytearray(start + 8 * len(self.offsets) + 1)  # never resized: its address must not change
        base = address_of(memory)
        pack_into(f"={len(self.offsets)}Q", memory, start, *[base + each for each in self.offsets])
        return memory, base + start


def not_pickled(kernel: str) -> OptionError:
    """Make the error for pickling a kernel with its configuration, which may name a stream of this process."""
    hint = f"pickle {kernel} itself, and write {kernel}[grid, block](...) where it is unpickled"
    return OptionError(f"cannot pickle a launch of {kernel}", "it belongs to a context of this process", hint)


class Bound(tuple[Any, ...]):
    """What the launch functions of the C module are bound to, which no other process has: they cannot be pickled."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise not_pickled(self[0].__self__.name)


class Launcher:
    """Launches one kernel on one device.

    Attributes:
        names: Names of the arguments, and defaults of the last of them; None if each has the name of its parameter.
        shares_layout: Whether kernels with equal parameters accept equal arguments: if each argument is one parameter.
        waits_on_host: Whether the host waits for the streams of array interfaces, as it does in numba-cuda-mlir.
        plan: The kernel's plan in the C module, and what else its launch functions share; None without that module.

    Args:
        loaded: The kernel on its device.
        name: Its name in messages.
        parameters: As the compiler reported them, or split into smaller ones at the same bytes.
        strided: Whether arrays that are not contiguous are accepted.
        attributes: Concatenated launch attributes as the driver takes them; empty for a plain launch.
        relaunch: Called where this launcher cannot launch; see `Relaunch`.
        debug_labels: Where each launch is waited for (`failures.watched`), the labels of the arguments; else None.
    """

    names: tuple[Sequence[str], Sequence[Any]] | None = None
    shares_layout, waits_on_host = True, False

    def __init__(
        self,
        loaded: LoadedKernel,
        name: str,
        parameters: Sequence[Parameter],
        *,
        strided: bool = False,
        attributes: bytes = b"",
        relaunch: Relaunch | None = None,
        debug_labels: Sequence[object] | None = None,
    ) -> None:
        self.name, self.parameters, self.strided, self.typed = name, tuple(parameters), strided, loaded.compiled.typed
        self.function, self.module, self.live = loaded.function, loaded.module, loaded.live
        self.driver, self._loaded = loaded.module.driver, loaded
        self.attributes, self._relaunch, self._debug_labels = attributes, relaunch, debug_labels
        self.slots: list[Slot] | None = None
        layouts = loaded.module.layouts
        layout = layouts.get((self.parameters, strided)) if self.shares_layout else None
        if layout is None:
            layout = Layout(self.parameters)
            if loaded.module.count >= _MANY:
                layout.launched = _DESCRIBED_AFTER - 1  # the second one is described
            if len(layouts) >= _LAYOUTS_LIMIT:  # a program may make kernels without end
                layouts.clear()
            if self.shares_layout:
                layouts[self.parameters, strided] = layout
        self.layout, self.pack, self.idle = layout, layout.pack, layout.idle
        self.plan: Any = None
        if debug_labels is None:
            module = loaded.module
            functions = module.functions = module.functions or _functions_of(module)
            plan = native.plan(_HANDLE.pack(self.function) + functions, layout.plan)
            flags = self.live, module.awaits_numba, module.stays
            self.plan = Bound((self._slow, plan, self._by_name, *flags, module.numba_context, module))
        self._is_described = self._is_launched = layout.plan is not None

    def make_slots(self) -> list[Slot]:
        """Make a slot for each parameter, at the first launch."""
        slots: list[Slot] = []
        for position, declared in enumerate(self.parameters, 1):
            code = declared.code
            kind = PointerSlot if code[0] == "*" else WordSlot if code == "?" and declared.size == 8 else ValueSlot
            slots.append(kind(self, position, declared))
        self.slots = slots
        return slots

    def bind(self, shape: LaunchShape, stream: Any = None) -> Launch:
        """Make the function that launches with this shape on this stream.

        Args:
            shape: Grid, block and shared memory.
            stream: As `stream_handle` takes it; None and 0 as in `Call.stream`.

        Raises:
            LaunchConfigError: The shape exceeds the limits of the kernel and its device, or `stream` is not a stream.
        """
        self._loaded.prepare(shape, self.name)
        handle = 0 if stream is None else stream_handle(stream)
        if self.plan is not None and not self.attributes:
            launch: Launch = native.bind(self.plan, shape, handle, stream, None)
            return launch
        return self.over_grids(shape.block, shape.shared_bytes, handle, stream, *shape.grid)

    def over_grids(self, block: Dim3, shared_bytes: int, handle: int, stream: Any, x: int, y: int, z: int) -> Launch:
        """Make the function that launches a grid of x, y and z blocks; the shape was checked before."""
        shape = (x, y, z), block, shared_bytes
        if self.plan is None:
            return lambda *arguments, **named: (
                self._by_name((*arguments, *named.values()), 0, shape, handle, stream, tuple(named))
                if named
                else self._slow(arguments, 0, shape, handle, stream)
            )
        config = self._configuration(shape, handle) if self.attributes else None
        launch: Launch = native.bind(self.plan, shape, handle, stream, config)
        return launch

    def _configuration(self, shape: tuple[Dim3, Dim3, int], handle: int) -> bytes:
        """The CUlaunchConfig of a launch with attributes."""
        count = len(self.attributes) // 72
        return pack("=7I4xQQI4x", *shape[0], *shape[1], shape[2], handle, address_of(self.attributes), count)

    # -- the interpreted path, for launches of any kind ----------------------------------------------

    def _by_name(self, arguments: tuple[Any, ...], *launch: Any) -> None:
        """Launch with named arguments: their values end `arguments`, their names end `launch`; see `_slow`."""
        check_interpreter()
        from .keywords import in_order

        _code, (grid, block, shared_bytes), handle, stream, names = launch
        known, defaults = self.names or ([each.name for each in self.parameters], ())
        labels = known if self.names else self.parameters
        ordered = in_order(self.name, arguments, names, known, labels=labels, defaults=defaults)
        self.over_grids(block, shared_bytes, handle, stream, *grid)(*ordered)

    def _slow(
        self,
        arguments: tuple[Any, ...],
        code: int,
        shape: tuple[Dim3, Dim3, int],
        handle: int,
        stream: Any,
    ) -> None:
        """Launch with every check, or raise.

        Args:
            arguments: Arguments of the launch.
            code: The driver's error code, if it refused the launch; 0 if it was not called yet.
            shape: Grid, block and shared memory.
            handle: Handle of the stream.
            stream: As `Call.stream`.
        """
        module = self.module
        if code:
            self._recover((*shape, stream), arguments, code)
            return
        if module.awaits_numba[0] and NUMBA_CUDA_MODULE in sys.modules:
            module.watch_numba_context()
        is_here = module.device_of is None or module.is_current()  # with one device, the launch checks it
        if not is_here or not self.live[0]:
            self._recover((*shape, stream), arguments, 0)
            return
        slots, orders = self.slots or self.make_slots(), orders_of(arguments, module.device.ordinal)
        if self.waits_on_host:
            orders = self.left_after_waits(orders, handle)
        if stream is None and orders:
            handle = choose(orders, module.is_capturing)
        call: Call = tuple.__new__(Call, (shape, handle, stream, arguments, [], [], []))
        values: list[Any] = []
        try:
            if len(arguments) != len(slots):
                raise self._wrong_count(call)
            for slot, argument in zip(slots, arguments):  # noqa: B905
                value = slot.settle(argument, call)
                if type(value) is tuple:
                    values += value
                else:
                    values.append(value)
        except Exception as error:
            shorten(error)
            raise
        if self.plan is not None:
            layout = self.layout
            if (self._is_launched or layout.launched >= _DESCRIBED_AFTER) and sys.meta_path is not None:
                from .recognition import recognise

                recognise(self.plan[1], self, arguments, is_first=not self._is_described)
                self._is_described, layout.plan = True, self.plan[1]
            self._is_launched, layout.launched = True, layout.launched + 1
        further = others(orders, handle, stream, module.is_capturing) if orders else []
        if call.before or further:
            if not module.is_current():
                self._recover((*shape, stream), arguments, 0)
                return
            for each in further:
                module.waits.enqueue_wait(each, handle)
            for prepare in call.before:
                prepare()
            values = [each() if callable(each) else each for each in values]
        if self._queue(call, values) if self._debug_labels is None else self._queue_watched(call, values):
            for finish in call.after:
                finish()
            if further and (stream is None or (type(stream) is int and not stream)):
                module.waits.follow(handle, further)
            if call.borrowed:
                module.hold_for(handle, call.borrowed)

    def left_after_waits(self, orders: list[Order], handle: int) -> list[Order]:
        """Wait on the host for the streams of array interfaces, and return the streams that are left; `handle` is that
        of the stream given to the launch, or 0."""
        raise NotImplementedError

    def _queue(self, call: Call, values: list[Any]) -> bool:
        """Pack the values and launch; False if another launcher launched instead."""
        try:
            buffer = self.idle.pop()
        except IndexError:
            buffer = self.layout.new_buffer()
        self.pack(buffer[0], 0, *values)
        if call.handle > LEGACY_DEFAULT:
            self.module.stays[0] = True  # the stream may be destroyed, or captured: nothing tells the end of the work
        grid, block, shared = call.shape
        if self.attributes:
            config = self._configuration(call.shape, call.handle)
            answer = self.driver.cuLaunchKernelEx(config, self.function, buffer[1], 0)
        else:
            answer = self.driver.cuLaunchKernel(self.function, *grid, *block, shared, call.handle, buffer[1], 0)
        self.idle.append(buffer)
        if answer[0]:
            self._recover((*call.shape, call.stream), call.arguments, int(answer[0]))
            return False
        return True

    def _queue_watched(self, call: Call, values: list[Any]) -> bool:
        from .failures import watched

        queued: bool = watched(
            self.driver, call.handle, lambda: self._queue(call, values), kernel=self.name, shape=call.shape,
            parameters=self._debug_labels or (), arguments=call.arguments,
        )  # fmt: skip
        return queued  # False: another launcher launched, and waited

    def _recover(self, config: tuple[Dim3, Dim3, int, Any], arguments: tuple[Any, ...], code: int) -> None:
        """Launch by another launcher after the driver refused with this code (0: see `Relaunch`), or raise.

        Args:
            config: Grid, block, shared memory and stream.
            arguments: Arguments of the launch.
            code: The driver's error code.
        """
        check_interpreter()
        from .failures import RECOVERABLE, launch_error

        grid, block, shared, stream = config
        relaunch = self._relaunch if code == 0 or code in RECOVERABLE else None
        if relaunch is not None and relaunch((grid, block, stream, shared), arguments, code):
            return
        if code:
            raise launch_error(self.name, (grid, block, shared), code)
        raise LaunchError(
            f"cannot launch {self.name}",
            f"it is not loaded on the current device, or no longer on device {self.module.device.ordinal}",
            "make a device current, and index the kernel again: kernel[grid, block]",
        )

    def _wrong_count(self, call: Call) -> Exception:
        """Make the error for a wrong number of arguments."""
        from .keywords import wrong_count

        return wrong_count(self.name, len(call.arguments), self.parameters)


def around(launch: Callable[[Any], object], stream: Any, arguments: Sequence[Any]) -> None:
    """Launch by Numba's own code, which passes over the streams of arguments.

    A launch without a stream goes to the default stream, ordered with all others on both sides: on another one Numba
    takes no host arrays. If one of them is being captured, it goes there.

    Args:
        launch: Queues the launch on the stream that it is called with.
        stream: As `Call.stream`.
        arguments: Arguments of the launch.

    Raises:
        LaunchError: The driver refused.
    """
    from .dlpack import borrowed_of
    from .streams import waits_in

    exporters = [each for each in arguments if is_exported(each)]
    try:
        ordinal = current_device().ordinal if exporters or orders_of(arguments, 0) else -1
    except NoDeviceError:  # arrays of Numba's simulator; without a device the launch itself raises
        ordinal = -1
    if ordinal < 0:
        launch(0 if stream is None else stream)
        return
    driver, waits, orders = bindings(), waits_in(context_id()), orders_of(arguments, ordinal)
    is_captured, handle = functools.partial(is_capturing, driver), stream_handle(stream)
    if stream is None:
        handle = next((each.handle for each in orders if is_captured(each.handle)), 0)
    further = others(orders, handle, stream, is_captured)
    for each in further:
        waits.enqueue_wait(each, handle)
    borrowed = [found[1] for each in exporters if (found := borrowed_of(each, handle))]
    launch(handle if stream is None else stream)
    if stream is None or (type(stream) is int and not stream):
        waits.follow(handle, further)
    if borrowed:
        waits.hold(handle, borrowed)
