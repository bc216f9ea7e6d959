"""Find the device and the stream of a launch: in Numba's context where the program uses Numba, else in the driver's.

Promise     In a program that does not use Numba, Numba is not imported, and launches go into the current context, or
            into the primary one of device 0, as Numba's would. Once `numba.cuda` is imported, its context is used:
            it then owns the modules, and `cuda.close()` is noticed. `stream_handle` takes the streams of every
            library; it imports nothing and touches no device.
Method      Both contexts are the primary one of the device, so memory, streams and kernels work together. A stream is
            recognised by its attributes: `__cuda_stream__` first, then those of each library.
Not here    Modules and kernels (loader); streams that wait for each other (streams).
Source      CUDA driver API, "Primary Context Management"; handles 0 and 1 are the legacy default stream, 2 the
            per-thread one. numba-cuda 0.30.4, cudadrv/devices.py and driver.py; the private names that the loader uses
            are checked once. Importing numba.cuda takes most of a second, a hundred times the rest of a warm start.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from typing import Any

from ..errors import LaunchConfigError, LaunchError, NoDeviceError, ToolchainMissingError
from ..model import NamedTuple, Target

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
