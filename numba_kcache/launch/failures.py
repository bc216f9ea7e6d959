"""Errors for arguments that do not fit, for launches that the driver refuses, and for those that fail later.

Promise     `argument_error` names position, C type and name of the parameter, the type and value given, the reason and
            a step. Describing a value never runs code of its class that could wait for the device. `launch_error` names
            kernel, shape and the driver's own error name, and a step where one is known.
            With `debug_launches` a launch that returns has run without an error (`watched`), and one that failed raises
            `LaunchError` with kernel, shape, arguments and the driver's error. An error of earlier work is not
            attributed to the launch.
Not here    A grid or block that is refused before the driver is called (launch/__init__.py, attributes).
Source      CUDA driver API, `CUresult`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, CodeRefusedError, LaunchError
from ..model import Target
from . import Dim3, bindings, stream_handle

if TYPE_CHECKING:
    from .launcher import ParameterSlot

_SHOWN_LENGTH = 60
_HINTS = {
    1: "check grid, block and shared memory against the kernel's launch bounds",
    3: "CUDA does not survive fork(): start workers with spawn, or fork before the first CUDA call",
    4: "the process is shutting down",
    98: "the kernel is not loaded on this device",
    201: "make a device current first, for example with cuda.select_device()",
    209: "compile for this device: arch='auto'",
    218: "the driver is older than the compiler that made the PTX",
    400: "the stream or its context was destroyed",
    701: "use a smaller block, fewer registers (max_registers, launch_bounds) or less shared memory",
    709: "the context was destroyed; a new launch loads the kernel again",
    720: "its blocks must all fit on the device at once: see .max_cooperative_grid_blocks()",
    **dict.fromkeys(
        (700, 714, 715, 716, 717, 718, 719),
        "an earlier kernel failed and left the context unusable; NUMBA_KCACHE_DEBUG=1 names the kernel",
    ),
    900: "a stream that is being captured cannot do this",
    906: "the legacy default stream cannot be used while another is being captured: name the stream",
}

_CODE_ERRORS = (
    "INVALID_IMAGE", "INVALID_PTX", "INVALID_SOURCE", "INVALID_VALUE", "NO_BINARY_FOR_GPU", "UNSUPPORTED_PTX_VERSION",
    "SHARED_OBJECT_SYMBOL_NOT_FOUND", "SHARED_OBJECT_INIT_FAILED", "ERROR_NOT_FOUND",
)  # fmt: skip
"""Parts of the driver's names of errors in the code; other errors concern memory, the context or the device."""

RECOVERABLE = frozenset((3, 4, 98, 201, 400, 709))
"""Codes after which the kernel may run if it is loaded again or its context made current."""


def launch_error(kernel: str, shape: tuple[Dim3, Dim3, int], code: int) -> LaunchError:
    """Make the error for a launch that the driver refused with `code` (a CUresult)."""
    grid, block, shared_bytes = shape
    return LaunchError(
        f"cannot launch {kernel} with grid {grid}, block {block}, sharedmem {shared_bytes}",
        f"the driver returned {bindings().name_of(code)}",
        _HINTS.get(code, ""),
    )


def load_error(target: Target, ordinal: int, why: str) -> LaunchError:
    """Make the error for a module, or a kernel of one, that the driver does not load."""
    hint = ""
    if "NO_BINARY_FOR_GPU" in why or "UNSUPPORTED_PTX" in why or "INVALID_" in why:
        hint = "it is for another device, or newer than the driver: update the driver, or pin an older toolkit"
    error_class = CodeRefusedError if any(name in why for name in _CODE_ERRORS) else LaunchError
    return error_class(f"cannot load a module for {target} on device {ordinal}", why, hint)


def argument_error(parameter: ParameterSlot, value: object, why: str, hint: str = "") -> ArgumentError:
    """Make the error for `value` as the argument of `parameter`."""
    kernel = parameter.launcher.name
    return ArgumentError(
        f"cannot pass {describe(value)} as argument {parameter.position} of {kernel} ({parameter.declared})",
        why,
        hint,
    )


def describe(value: Any) -> str:
    """Describe a value in a message: numbers in full, arrays by library, element type and shape."""
    kind = type(value)
    if value is None:
        return "None"
    if kind in (int, float, complex, bool, str, bytes, tuple, list):
        text = repr(value) if kind not in (tuple, list) else f"{kind.__name__} of {len(value)}"
        return _short(text) if kind in (tuple, list, bool) else f"{_short(text)} ({kind.__name__})"
    if isinstance(value, ctypes._SimpleCData):
        return f"{_short(repr(value.value))} (ctypes.{kind.__name__})"
    module = kind.__module__.partition(".")[0]
    full = f"{module}.{kind.__name__}" if module not in ("builtins", "__main__") else kind.__name__
    if module == "numpy" and getattr(value, "shape", None) == () and kind.__name__ != "ndarray":
        return f"{_short(str(value))} ({full})"
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, tuple) or dtype is None:  # a module and a class may have one as well
        return full
    element = getattr(dtype, "name", None) or str(dtype).removeprefix("torch.")
    swapped = "" if getattr(dtype, "isnative", True) else "byte-swapped "
    return f"{full} of {swapped}{element} {tuple(shape)}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LENGTH else text[: _SHOWN_LENGTH - 3] + "..."


def watched(
    driver: Any,
    stream: Any,
    launch: Callable[[], Any],
    *,
    kernel: str,
    shape: tuple[Dim3, Dim3, int],
    parameters: Sequence[object],
    arguments: Sequence[Any],
) -> Any:
    """Launch between two waits, and return the value of `launch`.

    Args:
        driver: `devices.bindings()`, or an object with its functions.
        stream: The user's launch stream.
        launch: Queues the launch; returns False if another launcher queued it.
        kernel, shape, parameters, arguments: For the message.

    Raises:
        LaunchError: Work that was queued before failed, or this launch did.
    """
    code = _wait(driver, stream)
    if code:
        raise LaunchError(
            f"cannot launch {kernel}",
            f"work that was queued before it failed: the driver returned {bindings().name_of(code)}",
            "it was not launched by a cached kernel with debug_launches, which would have named it",
        )
    queued = launch()
    if queued:
        code = _wait(driver, stream)
        if code:
            passed = ", ".join(f"{each} = {describe(value)}" for each, value in zip(parameters, arguments, strict=True))
            grid, block, shared_bytes = shape
            raise LaunchError(
                f"{kernel}({passed}) failed with grid {grid}, block {block}, sharedmem {shared_bytes}",
                f"the driver returned {bindings().name_of(code)}",
                "run it under compute-sanitizer, with lineinfo=True, to see the line",
            )
    return queued


def _wait(driver: Any, stream: Any) -> Any:
    """Synchronise the stream and return the driver's code; 0 without synchronising while it is captured."""
    handle = stream_handle(stream)
    code, capturing = driver.cuStreamIsCapturing(handle)
    if code or capturing:
        return 0
    return driver.cuStreamSynchronize(handle)[0]
