"""The device, the stream, and the grid and block of a launch.

Promise     In a program that does not use Numba, Numba is not imported, and launches go into the current context, or
            into the primary one of device 0, as Numba's would. Once `numba.cuda` is imported, its context is used:
            it then owns the modules, and `cuda.close()` is noticed. `stream_handle` takes the streams of every
            library; it imports nothing and touches no device.
            `launch_shape` accepts the same forms of grid and block as Numba; `check_launch` refuses every shape that
            the device would refuse, and names the first invalid extent.
Method      Both contexts are the primary one of the device, so memory, streams and kernels work together. A stream is
            recognised by its attributes: `__cuda_stream__` first, then those of each library.
Not here    The launch itself (launcher), modules and kernels, with the function attribute for more than 48 KiB of
            dynamic shared memory (loader); streams that wait for each other (streams); the configurations that a kernel
            keeps (frontends).
Source      CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the limits that depend on the
            device or the kernel are queried from the driver (loader). CUDA driver API, "Primary Context Management";
            handles 0 and 1 are the legacy default stream, 2 the per-thread one. numba-cuda 0.30.4, cudadrv/devices.py
            and driver.py; the private names that the loader uses are checked once. Importing numba.cuda takes most of a
            second, a hundred times the rest of a warm start.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from ..errors import LaunchConfigError, LaunchError, NoDeviceError, ToolchainMissingError
from ..model import NamedTuple, Target

Dim3: TypeAlias = tuple[int, int, int]
"""Extents along x, y and z."""

AXES = "xyz"

GRID_LIMIT = (2**31 - 1, 65535, 65535)
BLOCK_LIMIT = (1024, 1024, 64)
"""Most blocks of a grid, and most threads of a block, along x, y and z. Every device that CUDA 12 and 13 support has
these limits, so a warm start need not query the driver for them."""


Launch = Callable[..., None]
"""The type of `kernel[grid, block]`: called with the kernel's arguments, returns when the launch is queued."""

BindGrid = Callable[[int, int, int], Launch]
"""Makes the launch for a grid (x, y, z), with fixed block, shared memory and stream."""


class LaunchShape(NamedTuple):
    """The extents of one launch.

    Args:
        grid: Blocks along (x, y, z).
        block: Threads of a block along (x, y, z).
        shared_bytes: Dynamic shared memory per block; static shared memory comes on top.
    """

    grid: Dim3
    block: Dim3
    shared_bytes: int = 0

    @property
    def threads_per_block(self) -> int:
        """Threads of one block: the product of its extents."""
        x, y, z = self.block
        return x * y * z


class DeviceLimits(NamedTuple):
    """The limits of one device, and of one kernel on it.

    Args:
        grid: Most blocks along (x, y, z).
        block: Most threads of a block along (x, y, z).
        threads_per_block: Most threads of a block of this kernel: the device's limit, or less where the
            kernel's registers or launch bounds allow less.
        shared_bytes: Most static and dynamic shared memory of a block together, opted in.
        static_shared_bytes: Static shared memory of the kernel.
    """

    grid: Dim3
    block: Dim3
    threads_per_block: int
    shared_bytes: int
    static_shared_bytes: int = 0


@functools.cache
def limits_of(threads: int) -> DeviceLimits:
    """Limits that hold on every device, for launches with at most `threads` per block and no dynamic shared memory."""
    return DeviceLimits(GRID_LIMIT, BLOCK_LIMIT, threads, 0)


# -- shapes -------------------------------------------------------------------------------------------


def launch_shape(grid: object, block: object, shared_bytes: object = 0) -> LaunchShape:
    """Read the extents of a launch as users write them.

    Args:
        grid: Blocks: an integer, or one to three of them in a tuple or list. NumPy's count as integers.
        block: Threads of a block, in the same forms.
        shared_bytes: Dynamic shared memory per block, in bytes.

    Raises:
        LaunchConfigError: A value is not an integer (a bool is not), or an extent has none or more than three.
    """
    return LaunchShape(
        (grid, 1, 1) if type(grid) is int else read_extents(grid, "grid"),
        (block, 1, 1) if type(block) is int else read_extents(block, "block"),
        shared_bytes if type(shared_bytes) is int else _integer(shared_bytes, "sharedmem"),
    )


_STREAM_LIBRARIES = ("builtins", "cuda", "cupy", "cupy_backends", "numba", "numba_cuda_mlir", "numpy", "torch")


def is_one_stream(stream: Any) -> bool:
    """Check whether an object always names the same stream: a handle, or a stream of a known library.

    A user's class may, for example, return the current stream from `__cuda_stream__`.
    """
    return type(stream).__module__.partition(".")[0] in _STREAM_LIBRARIES


def read_extents(extents: object, name: str) -> Dim3:
    """Read a grid or a block; `name` is for the message. See `launch_shape`."""
    if not isinstance(extents, (tuple, list)):
        return _integer(extents, name), 1, 1
    if not 1 <= len(extents) <= 3:
        raise LaunchConfigError(
            f"cannot launch with {name} = {_shown(extents)}",
            f"it has {len(extents)} extents",
            "give one to three integers",
        )
    x, y, z = (*extents, 1, 1)[:3]
    if not type(x) is type(y) is type(z) is int:
        x, y, z = _integer(x, name, extents), _integer(y, name, extents), _integer(z, name, extents)
    return x, y, z


def _integer(value: Any, name: str, whole: object = None) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise LaunchConfigError(
            f"cannot launch with {name} = {_shown(value if whole is None else whole)}",
            f"{_shown(value)} is {type(value).__name__}, not an integer",
            "divide with // (rounding up: (n + threads - 1) // threads)"
            if isinstance(value, float)
            else "give integers",
        ) from None


def _shown(value: object) -> str:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "(" + ", ".join(map(_shown, value)) + ")"
    text = repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def check_launch(shape: LaunchShape, limits: DeviceLimits, *, kernel: str = "the kernel") -> None:
    """Check one launch against the device and the kernel; nothing is queued.

    Args:
        shape: The launch.
        limits: Limits of the device and of the kernel on it.
        kernel: The kernel's name, for the message.

    Raises:
        LaunchConfigError: An extent is below 1 or above its limit. The first offender in the order grid,
            block, threads, shared memory is named.
    """
    (x, y, z), (most_x, most_y, most_z), shared_bytes = shape.grid, limits.grid, shape.shared_bytes
    room = limits.shared_bytes - limits.static_shared_bytes
    if 0 < x <= most_x and 0 < y <= most_y and 0 < z <= most_z and (not shared_bytes or 0 < shared_bytes <= room):
        (x, y, z), (most_x, most_y, most_z) = shape.block, limits.block
        if 0 < x <= most_x and 0 < y <= most_y and 0 < z <= most_z and x * y * z <= limits.threads_per_block:
            return  # as most launches do
    for name, extents, most in (("grid", shape.grid, limits.grid), ("block", shape.block, limits.block)):
        for axis, extent, limit in zip(AXES, extents, most):  # noqa: B905
            if not 1 <= extent <= limit:
                hint = "fold the excess into another axis or loop inside the kernel"
                if extent < 1:
                    hint = "skip the launch where there is nothing to do" if extent == 0 else "a count is not negative"
                    hint += "; blocks are (n + threads - 1) // threads" if name == "grid" and extent else ""
                elif name == "block" and extent > limits.threads_per_block:
                    hint = "use smaller blocks, and more of them"
                elif name == "grid":
                    hint = "let each thread take several elements in a loop"
                raise LaunchConfigError(
                    f"cannot launch {kernel} with {name}.{axis} = {extent}", f"this device takes 1 to {limit}", hint
                )
    x, y, z = shape.block
    if x * y * z > limits.threads_per_block:
        raise LaunchConfigError(
            f"cannot launch {kernel} with {x * y * z} threads per block",
            f"it takes at most {limits.threads_per_block} on this device",
            "use a smaller block; registers and __launch_bounds__ can lower the limit of a kernel",
        )
    if not 0 <= shape.shared_bytes <= room:
        raise LaunchConfigError(
            f"cannot launch {kernel} with sharedmem = {shape.shared_bytes}",
            f"a block takes 0 to {room} bytes beside the {limits.static_shared_bytes} of its static arrays",
            "use smaller tiles" if shape.shared_bytes > 0 else "sharedmem is a number of bytes",
        )


# -- devices -----------------------------------------------------------------------------------------------------------


try:
    from . import native as native
except ImportError as problem:
    raise ToolchainMissingError(
        "cannot use numba_kcache",
        f"its compiled module cannot be imported: {problem}",
        "pip install --force-reinstall numba-kcache; in a checkout: python3 .ci/native_build.py"
        if sys.platform == "linux"
        else f"use Linux on x86-64 or aarch64: there is no such module for {sys.platform}",
    ) from problem

address_of = native.address_of

NUMBA_CUDA_MODULE = "numba.cuda.core.config"
"""A program that has imported this module of numba-cuda uses Numba, whose cudadrv.devices then manages the contexts.
The CUDA target built into Numba lacks the module: its arrays are treated like CuPy's, in the driver's context."""

_NO_DEVICE = "cannot find a CUDA device"
_WITHOUT_ONE = "`numba-kcache doctor` says what is missing; to compile without one name a target: arch='sm_90'"
LEGACY_DEFAULT = 1
"""The explicit handle of the legacy default stream; 0 means the same stream."""

_NOT_INITIALIZED, _NO_CONTEXT, _CONTEXT_IS_DESTROYED = 3, 201, 709  # CUresult

DISABLE_TIMING = 2
"""CU_EVENT_DISABLE_TIMING."""

_DEVICE_ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 16, "COMPUTE_CAPABILITY_MAJOR": 75, "COMPUTE_CAPABILITY_MINOR": 76,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
}  # fmt: skip
"""Numbers of CU_DEVICE_ATTRIBUTE names."""

_PATTERNS = {
    "cuInit": "i",
    "cuGetErrorName": "it",
    "cuDeviceGet": "ni",
    "cuDeviceGetCount": "n",
    "cuDeviceGetAttribute": "nii",
    "cuDevicePrimaryCtxRetain": "wi",
    "cuDevicePrimaryCtxRelease_v2": "i",
    "cuCtxGetDevice": "n",
    "cuCtxGetCurrent": "w",
    "cuCtxSetCurrent": "i",
    "cuCtxGetId": "iw",
    "cuModuleLoadData": "wi",
    "cuModuleUnload": "i",
    "cuModuleGetFunction": "wii",
    "cuModuleGetGlobal_v2": "wwii",
    "cuLibraryGetKernel": "wii",
    "cuLibraryGetGlobal": "wwii",
    "cuKernelGetFunction": "wi",
    "cuFuncGetAttribute": "nii",
    "cuFuncSetAttribute": "iii",
    "cuLaunchKernel": "i" * 11,
    "cuLaunchKernelEx": "iiii",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": "niii",
    "cuOccupancyMaxPotentialBlockSize": "nniiii",
    "cuPointerGetAttribute": "nii",
    "cuThreadExchangeStreamCaptureMode": "x",
    "cuStreamIsCapturing": "in",
    "cuStreamSynchronize": "i",
    "cuStreamWaitEvent": "iii",
    "cuEventCreate": "wi",
    "cuEventRecord": "ii",
    "cuEventQuery": "i",
    "cuEventSynchronize": "i",
    "cuEventElapsedTime": "nii",
    "cuEventDestroy_v2": "i",
}
"""The driver functions used, with a letter for each parameter: i is an input; n (32 bits), w (64) and t (text) are
outputs through a pointer; x is both. Bytes are passed by address."""


class Driver:
    """The functions of `_PATTERNS` as attributes.

    Attributes:
        addresses: Address of each function, by name.
    """

    addresses: dict[str, int]

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"libcuda.so.1 cannot be loaded, or has no {name}")

    def name_of(self, code: Any) -> str:
        """The driver's own name of a result code."""
        try:
            status, name = self.cuGetErrorName(code)
        except RuntimeError:  # the driver's library cannot be loaded
            return str(code)
        return str(code) if status else str(name)


@functools.cache
def bindings() -> Driver:
    """The driver of this process. Where its library is missing, using a function raises RuntimeError."""
    driver = Driver()
    driver.addresses = {}
    for name, pattern in _PATTERNS.items():
        found = native.function(name, pattern)
        if found is not None:
            driver.__dict__[name], driver.addresses[name] = found
    return driver


def done(answer: tuple[Any, ...], action: str, hint: str = "") -> Any:
    """Check the status of a driver call, and return the first of its outputs.

    Raises:
        LaunchError: The driver refused.
    """
    if answer[0] != 0:
        raise LaunchError(f"cannot {action}", f"the driver returned {bindings().name_of(answer[0])}", hint)
    return answer[1] if len(answer) > 1 else None


class CurrentDevice(NamedTuple):
    """The device that a launch would go to.

    Args:
        numba: Numba's context on it; None if the program does not use Numba.
        ordinal: Its ordinal.
        target: The target to compile for it: with the architecture-specific suffix from 9.0 on, as Numba does.
    """

    numba: Any
    ordinal: int
    target: Target


def current_device() -> CurrentDevice:
    """The device of the current context; without one, device 0, whose primary context is made current.

    Raises:
        NoDeviceError: There is no driver or no device.
        LaunchError: The process was forked from one that used CUDA, or its context is not the primary one.
    """
    if NUMBA_CUDA_MODULE in sys.modules:
        context = _numba_context()
        ordinal = int(context.device.id)
    else:
        context, ordinal = None, _enter_primary_context()
    target = _targets.get(ordinal)
    if target is None:
        major = device_attribute(ordinal, "COMPUTE_CAPABILITY_MAJOR")
        minor = device_attribute(ordinal, "COMPUTE_CAPABILITY_MINOR")
        target = _targets[ordinal] = Target(major, minor, "a" if major >= 9 else "")
    return CurrentDevice(context, ordinal, target)


def current_ordinal() -> int:
    """Ordinal of the device of the current context; -1 without a context. The fastest query for it.

    Raises:
        LaunchError: The interpreter is shutting down, and modules are gone.
    """
    try:
        status, device = bindings().cuCtxGetDevice()
    except (ImportError, RuntimeError):  # RuntimeError: there is no driver library
        check_interpreter()
        return -1
    return device if status == 0 else -1


_modules_without_driver = 0
"""Number of imported modules when the driver's library was last searched for in vain; -1 once it is in the process."""


def is_device_current() -> bool:
    """Check whether this thread has a current CUDA context. Imports and initialises nothing."""
    global _modules_without_driver
    if _modules_without_driver >= 0:
        if len(sys.modules) == _modules_without_driver:
            return False
        import ctypes

        try:
            ctypes.CDLL("libcuda.so.1", os.RTLD_NOLOAD | os.RTLD_NOW)
            _modules_without_driver = -1
        except OSError:  # search again only after further imports: it takes longer than the look-up of a kernel
            _modules_without_driver = len(sys.modules)
            return False
    return current_ordinal() >= 0


def check_interpreter() -> None:
    """Refuse a launch that would have to import a module while the interpreter shuts down.

    Raises:
        LaunchError: The interpreter is shutting down.
    """
    if sys.meta_path is None:
        raise LaunchError(
            "cannot launch", "the interpreter is shutting down", "launch before the program ends, or from atexit"
        )


def device_attribute(ordinal: int, name: str) -> int:
    """An attribute of a device, by the end of its CU_DEVICE_ATTRIBUTE name."""
    answer = bindings().cuDeviceGetAttribute(_DEVICE_ATTRIBUTES[name], ordinal)
    return int(answer[1] if answer[0] == 0 else done(answer, f"query device {ordinal}"))


def context_id() -> int | None:
    """The unique id of the current context, which a later context of the same device does not have."""
    status, found = bindings().cuCtxGetId(0)  # 0: the current context
    return int(found) if status == 0 else None


# -- the driver's context ------------------------------------------------------------------------------

_pid: int | None = None
"""The process that entered a context here: CUDA does not survive a fork."""

_targets: dict[int, Target] = {}
"""The target of each device by ordinal, once queried."""

_entered: dict[tuple[int, int], int] = {}
"""The device of each primary context that was entered, by the context's id, which the driver never reuses."""

_retained: set[int] = set()
"""The devices whose primary context this process has retained, until it ends."""


def _enter_primary_context() -> int:
    """Make the primary context of the current device, or of device 0, the current one; returns its ordinal."""
    global _pid
    if _pid not in (None, os.getpid()):
        raise _forked()
    try:
        driver = bindings()
        if _entered and (known := driver.cuCtxGetId(0))[0] == 0 and known in _entered:
            return _entered[known]
        status, device = driver.cuCtxGetDevice()
        if status == _NOT_INITIALIZED:
            (status,) = driver.cuInit(0)
            if status == _NOT_INITIALIZED:  # returned in the forked child of a process that used CUDA
                raise _forked()
            status = status or _NO_CONTEXT
        if lacks_context := status == _NO_CONTEXT:
            status, device = driver.cuDeviceGet(0)
        if status == 0:
            status, context = driver.cuDevicePrimaryCtxRetain(device)
    except RecursionError:
        raise
    except RuntimeError as problem:  # the driver's library is missing
        raise NoDeviceError(_NO_DEVICE, _message_of(problem), _WITHOUT_ONE) from problem
    if status != 0:
        raise NoDeviceError(_NO_DEVICE, f"the driver returned {driver.name_of(status)}", _WITHOUT_ONE)
    ordinal = int(device)
    if ordinal in _retained and not lacks_context:  # without a current context, the retained one may have been reset
        driver.cuDevicePrimaryCtxRelease_v2(device)
    _retained.add(ordinal)
    answer = driver.cuCtxGetCurrent()
    current = answer[1] if answer[0] == 0 else done(answer, "query the current context")
    if not current:
        done(driver.cuCtxSetCurrent(context), f"enter the context of device {ordinal}")
    elif current != context:
        raise LaunchError(
            "cannot launch in the current context",
            f"it is not the primary context of device {ordinal}",
            "use the primary context, as Numba, CuPy and PyTorch do",
        )
    _pid = os.getpid()
    _entered[driver.cuCtxGetId(0)] = ordinal
    return ordinal


def _forked() -> LaunchError:
    return LaunchError(
        "cannot launch in a forked process",
        "CUDA was initialised before the fork, and does not survive it",
        "start workers with spawn, or fork before the first CUDA call",
    )


# -- Numba's context -----------------------------------------------------------------------------------


def _numba_context() -> Any:
    """Numba's current context, made if necessary.

    Raises:
        NoDeviceError: There is no driver or no device.
        LaunchError: The process was forked from one that used CUDA.
        ToolchainMissingError: This version of numba-cuda is not supported.
    """
    try:
        import numba.cuda.cudadrv.devices as devices
        import numba.cuda.cudadrv.driver as driver
    except ImportError as problem:
        raise ToolchainMissingError(
            "cannot launch", f"numba-cuda cannot be imported: {problem}", "pip install 'numba-kcache[numba]'"
        ) from problem
    if driver.__name__.startswith("numba.cuda.simulator"):
        raise NoDeviceError(
            _NO_DEVICE,
            "NUMBA_ENABLE_CUDASIM is set, and Numba's simulator runs no compiled code",
            f"unset it to launch; {_WITHOUT_ONE}",
        )
    _check_names(driver, devices)
    if driver.driver.pid not in (None, os.getpid()):
        raise _forked()
    try:
        try:
            return devices.get_context()
        except driver.CudaAPIError as problem:
            # After cuda.close(), cuda.core still counts the primary context as retained, and all calls of Numba fail;
            # retaining it once more makes it usable.
            if problem.code != _CONTEXT_IS_DESTROYED:
                raise
            driver.driver.cuDevicePrimaryCtxRetain(0)
            return devices.get_context()
    except (driver.CudaSupportError, driver.CudaDriverError) as problem:
        raise NoDeviceError(_NO_DEVICE, _message_of(problem), _WITHOUT_ONE) from problem


@functools.cache
def _check_names(driver: Any, devices: Any) -> None:
    context, module = driver.Context, driver.CudaPythonModule
    for owner, name in ((context, "create_module_image"), (module, "get_function"), (devices, "get_context")):
        if not callable(getattr(owner, name, None)):
            raise ToolchainMissingError(
                "cannot use this numba-cuda", f"it has no {name}", "pip install 'numba-cuda>=0.30'"
            )


def _message_of(error: BaseException) -> str:
    return str(error).strip().replace("\n", " ") or type(error).__name__


# -- streams -------------------------------------------------------------------------------------------


def stream_handle(stream: Any) -> int:
    """The driver handle of a stream, 0 for the default stream.

    Raises:
        LaunchConfigError: The object is not a known kind of stream.
    """
    if stream is None or (type(stream) is int and stream >= 0):
        return stream or 0
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        _version, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    for name in ("cuda_stream", "ptr", "handle"):  # of PyTorch; of CuPy; of Numba and older versions of cuda.core
        handle = getattr(stream, name, None)
        if handle is not None and not isinstance(stream, type):
            return int(getattr(handle, "value", handle) or 0)
    inner = getattr(stream, "stream", None)  # cuda.core's GraphBuilder captures into its stream
    if inner is not None and not hasattr(stream, "__cuda_array_interface__"):  # an array of Numba has one too
        return stream_handle(inner)
    if type(stream).__name__ == "CUstream":  # cuda.bindings: a handle with __int__ alone
        return int(stream)
    try:
        if isinstance(stream, bool):
            raise TypeError
        handle = operator.index(stream)
        if handle >= 0:
            return handle
    except TypeError:
        pass
    raise LaunchConfigError(
        f"cannot launch on stream {stream!r}" if isinstance(stream, (bool, int, float, str)) else
        f"cannot launch on a {type(stream).__module__}.{type(stream).__name__}",
        "it is not a stream",
        "pass a stream of Numba, cuda.core, CuPy or PyTorch, anything with __cuda_stream__, or its handle",
    )  # fmt: skip


def is_capturing(driver: Any, handle: int) -> bool:
    """Check whether a stream is being captured."""
    status, capturing = driver.cuStreamIsCapturing(handle)
    return not status and bool(capturing)


def stream_identity(handle: int) -> int:
    """A number that two handles have in common exactly if they name the same stream."""
    return 0 if handle == LEGACY_DEFAULT else handle
