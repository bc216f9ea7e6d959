"""Wait for launches, so that a failure names the kernel and the arguments that caused it.

Promise     With `debug_launches` a launch that returns has run without an error, and one that failed raises
            `LaunchError` with kernel, shape, arguments and the driver's error. Work that failed before is not blamed
            on the launch. Off, nothing of this is imported.
Method      The stream is waited for before and after each launch, which stays on the interpreted path. A stream that
            is being captured runs nothing yet: it is let alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import LaunchError
from . import Dim3
from .devices import bindings, stream_handle
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
        driver: `driver.bindings()`, or what offers its functions.
        stream: Of the launch, as the user gave it.
        launch: Queues it, and returns False where that was done elsewhere.
        kernel, shape, parameters, arguments: For the message.

    Raises:
        LaunchError: Something that was queued before has failed, or this has.
    """
    code = _wait(driver, stream)
    if code:
        raise LaunchError(
            f"cannot launch {kernel}",
            f"work that was queued before it failed: the driver answered {bindings().name_of(code)}",
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
                f"the driver answered {bindings().name_of(code)}",
                "run it under compute-sanitizer, with lineinfo=True, to see the line",
            )
    return queued


def _wait(driver: Any, stream: Any) -> Any:
    """The driver's code once all work in the stream is done; 0 where it must not be waited for."""
    handle = stream_handle(stream)
    code, capturing = driver.cuStreamIsCapturing(handle)
    if code or capturing:
        return 0
    return driver.cuStreamSynchronize(handle)[0]
