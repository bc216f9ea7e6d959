"""Wait for launches, so that a failure names the kernel and the arguments that caused it.

Promise     With `debug_launches` a launch that returns has run without an error, and one that failed raises
            `LaunchError` with kernel, shape, arguments and the driver's error. An error of earlier work is not
            attributed to the launch. Without `debug_launches`, this module is not imported.
Method      The stream is synchronised before and after each launch, which always takes the interpreted path. A stream
            that is being captured executes nothing yet, and is not synchronised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import LaunchError
from . import Dim3, bindings, stream_handle
from .failures import describe


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
