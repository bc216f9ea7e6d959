"""What a launch is made of: the driver, the device, grid and block, the stream, and the values that arguments become.

Promise     In a program that does not use Numba, Numba is not imported, and launches go into the current context, or
            into the primary one of device 0, as Numba's would. Once `numba.cuda` is imported, its context is used:
            it then owns the modules, and `cuda.close()` is noticed. `stream_handle` takes the streams of every
            library; it imports nothing and touches no device.
            `launch_shape` accepts the same forms of grid and block as Numba; `check_launch` refuses every shape that
            the device would refuse, and names the first invalid extent.
            A launch without a stream is ordered like an operation of the library whose arrays it takes (`choose`):
            streams of other libraries' arguments wait for it, and it waits for them, on the device. A launch on a given
            stream waits for the streams of its arguments, and nothing waits for it.
Method      Both contexts are the primary one of the device, so memory, streams and kernels work together. A stream is
            recognised by its attributes: `__cuda_stream__` first, then those of each library.
Not here    Modules, the checks of arguments and the launch itself (launcher); streams that wait for each other
            (streams); the configurations that a kernel keeps (frontends).
Source      CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; the limits that depend on the
            device or the kernel are queried from the driver. CUDA driver API, "Primary Context Management"; handles 0
            and 1 are the legacy default stream, 2 the per-thread one, and both wait for each other ("Stream
            synchronization behavior"). CUDA Array Interface v3: None needs no wait; the stream is that of the last
            write, not the library's current one. numba-cuda 0.30.4, cudadrv/devices.py and driver.py; the private names
            that are used are checked once. Importing numba.cuda takes most of a second, a hundred times the rest of a
            warm start.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from ..errors import LaunchConfigError, LaunchError, NoDeviceError, ToolchainMissingError
from ..model import SCALAR_SIZES, NamedTuple, Parameter, Target

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
    room = limits.shared_bytes - limits.static_shared_bytes
    if shape.shared_bytes and not 0 < shape.shared_bytes <= room:
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
    "cuCtxSynchronize": "",
    "cuStreamCreate": "wi",
    "cuStreamDestroy_v2": "i",
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
    driver.__dict__["cuThreadExchangeStreamCaptureMode"] = lambda mode: (0, mode)  # where there is no driver
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


@contextlib.contextmanager
def relaxed() -> Iterator[None]:
    """Let no call of this thread end a stream capture: loads, and what finalizers call, of any library, when the
    garbage of a program is collected meanwhile."""
    exchange = bindings().cuThreadExchangeStreamCaptureMode
    status, before = exchange(2)  # CU_STREAM_CAPTURE_MODE_RELAXED
    try:
        yield
    finally:
        exchange(0 if status else before)  # the driver was not initialised before: then it is the default, global


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
        if handle is not None and not isinstance(stream, type) and type(stream).__name__ != "Event":
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


# -- arguments ---------------------------------------------------------------------------------------------------------


STRUCT_LETTERS = {
    "b1": "?", "i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
    "f2": "e", "bf": "H", "f4": "f", "f8": "d", "c4": "ff", "c8": "dd", "e4": "B", "e5": "B",
}  # fmt: skip
"""The `struct` letter of each scalar code; bfloat16 and fp8 as the integer that has their bits."""

CARRIERS = {"bf": "u2", "e4": "u1", "e5": "u1"}
"""Type codes that NumPy lacks, with the unsigned integer of the same size whose arrays hold their bits."""

NUMPY_NAMES = {
    "b1": "bool", "i1": "int8", "i2": "int16", "i4": "int32", "i8": "int64",
    "u1": "uint8", "u2": "uint16", "u4": "uint32", "u8": "uint64",
    "f2": "float16", "f4": "float32", "f8": "float64", "c4": "complex64", "c8": "complex128",
    "bf": "bfloat16", "e4": "float8_e4m3fn", "e5": "float8_e5m2",
}  # fmt: skip
"""NumPy's name of each scalar code; for the last three the name in ml_dtypes and PyTorch."""

CODES = {name: code for code, name in NUMPY_NAMES.items()}


_TOO_LARGE = {
    "f2": 2.0**15 * (2 - 2.0**-11),
    "bf": 2.0**127 * (2 - 2.0**-8),
    "f4": 2.0**127 * (2 - 2.0**-24),
    "f8": 2**1024 - 2**970,  # an integer: Python compares integers with floats exactly
    "e4": 464.00000000000006,  # above 464, which is halfway between 448 (even) and NaN
    "e5": 2.0**15 * (2 - 2.0**-3),
}
"""The smallest magnitude that would round beyond the largest finite value of each format."""


class Call(NamedTuple):
    """One launch on its slow path.

    Args:
        shape: Grid, block and shared memory.
        handle: Handle of the launch stream.
        stream: The launch stream as the user gave it; None: the arguments decide; 0: Numba's default stream, whose
            launches are ordered with other libraries' streams.
        arguments: Arguments of the launch.
        before: Functions to call before the launch, in order.
        after: Functions to call after it: copies back to the host.
        borrowed: Objects to keep alive until the kernel has run.
    """

    shape: tuple[Dim3, Dim3, int]
    handle: int
    stream: Any
    arguments: tuple[Any, ...]
    before: list[Callable[[], object]]
    after: list[Callable[[], object]]
    borrowed: list[object]


Settle: TypeAlias = Callable[[Any, Call], Any]
"""Checks one argument: called with the argument and the `Call`. Returns the value that `struct` packs
(`struct_format`), or a tuple of values; for an address that is known only after `Call.before`, a function that returns
it."""


class Slot:
    """Checks and converts one argument.

    Attributes:
        form: "pointer", "value", "array" or "number", by which the C module may check it (recognition); "" for others.
        settle: Checks one argument.
        launcher: The `Launcher` of the kernel.
    """

    form = ""
    settle: Settle
    launcher: Any


def bounds_of(code: str) -> tuple[float, float]:
    """The exclusive bounds of the numbers that a scalar of this code can hold."""
    if code[0] not in "iu":
        above = 2 if code == "b1" else _TOO_LARGE[code]
        return -above, above
    above = 1 << 8 * SCALAR_SIZES[code] - (code[0] == "i")
    return (-above if code[0] == "i" else 0) - 1, above


def struct_format(parameters: tuple[Parameter, ...]) -> str:
    """The `struct` format of a parameter buffer: native byte order, padding only as the offsets require."""
    text, end = "=", 0
    for offset, size, code, _c_type, _name in parameters:
        letters = "Q" if code[0] == "*" or (code == "?" and size == 8) else STRUCT_LETTERS.get(code) or f"{size}s"
        text += "x" * (offset - end) + letters
        end = offset + size
    return text


# -- pointers ------------------------------------------------------------------------------------------


class Unfit(Exception):
    """Raised for memory that cannot be passed, with the reason and a hint."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why, hint)
        self.why, self.hint = why, hint


class Memory(NamedTuple):
    """The device memory of an argument. A tuple for speed, since each launch makes some.

    Args:
        address: Address of its first element.
        element: Type code of its elements; None for raw memory, which fits every pointee.
        item_bytes: Size of one element.
        shape: Extents.
        strides: Bytes between neighbours along each axis; None if it is C-contiguous.
        readonly: Whether the memory must not be written.
        device: Ordinal of its device; None if the argument does not state it.
    """

    address: int
    element: str | None = None
    item_bytes: int = 1
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] | None = None
    readonly: bool = False
    device: int | None = None


def device_elsewhere(module: Any, memory: Memory) -> int | None:
    """The device of memory that the device of a module cannot reach; None for reachable memory."""
    device_of, here = module.device_of, module.device.ordinal
    if device_of is None or memory.device == here or not memory.address:
        return None
    device: int | None = device_of(memory.address) if memory.device is None else memory.device
    return None if device == here else device


def is_c_contiguous(memory: Memory) -> bool:
    """Check whether the elements are contiguous in C order; True for empty arrays."""
    if memory.strides is None or 0 in memory.shape:
        return True
    axes = [axis for axis in zip(memory.shape, memory.strides, strict=True) if axis[0] != 1]
    return is_packed(axes[::-1], memory.item_bytes)


def is_packed(axes: list[tuple[int, int]], item_bytes: int) -> bool:
    """Check whether the elements are contiguous along axes of (extent, stride), the innermost first."""
    expected = item_bytes
    for extent, stride in axes:
        if stride != expected:
            return False
        expected *= extent
    return True


def is_exported(value: Any) -> bool:
    """Check whether an array has an interface that says nothing about the order of writes to its memory, and DLPack,
    which is told the launch stream (JAX: its interface has version 2)."""
    interface = getattr(value, "__cuda_array_interface__", None) if hasattr(value, "__dlpack_device__") else None
    return type(interface) is dict and "stream" not in interface


def is_immutable(kind: type) -> bool:
    """Check whether arrays of a type must not be written: JAX's, whose memory XLA may share between arrays."""
    return kind.__module__.partition(".")[0] in ("jax", "jaxlib")


@functools.lru_cache(maxsize=256)
def element_of_dtype(dtype: Any) -> str:
    """The type code of a NumPy dtype, `"o"` for records; `""` where C++ has no such type (big-endian, dates)."""
    if not dtype.isnative:
        return ""
    return CODES.get(dtype.name) or ("o" if dtype.kind == "V" else "")


# -- streams -------------------------------------------------------------------------------------------


class Order(NamedTuple):
    """The stream by which an argument's library orders its work.

    Args:
        handle: Its handle; 0 for the legacy default stream.
        is_current: Whether later operations of the library go to it: its current stream, or that of a Numba array.
            False for the stream of an array interface, on which the memory was written.
        is_numba: Whether it is that of a Numba array.
    """

    handle: int
    is_current: bool
    is_numba: bool


def choose(orders: list[Order], is_capturing: Callable[[int], bool]) -> int:
    """The stream of a launch that was given none: the first current one, else the first that wrote an argument, else
    the default stream. Of different streams, one that is being captured comes first."""
    if not orders:
        return 0
    own = next((each for each in orders if each.is_current), orders[0]).handle
    if len(orders) > 1 and len({each.handle for each in orders}) > 1:
        return next((each.handle for each in orders if is_capturing(each.handle)), own)
    return own


def others(orders: list[Order], handle: int, stream: Any, is_captured: Callable[[int], bool]) -> list[int]:
    """The further streams that a launch is ordered with, each once.

    Args:
        orders: Those of its arguments.
        handle: Handle of its stream.
        stream: As `Call.stream`. A Numba array on the default stream asks no launch on a given stream to wait; with
            Numba's default stream, as in Numba, arrays of Numba ask for nothing.
        is_captured: Tells whether a stream is being captured: a graph does not wait for the default stream of arrays.
    """
    own, is_numbas = stream_identity(handle), type(stream) is int and stream == 0
    found = [
        other for other, _is_current, is_numba in orders
        if other != own and not (is_numba and (is_numbas if other else stream is not None or is_captured(handle)))
    ]  # fmt: skip
    return list(dict.fromkeys(found))
