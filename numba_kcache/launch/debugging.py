"""Launches that are waited for, so that a failure names the kernel and the arguments that caused it.

Promise     With `debug_launches` a launch that returns has run without an error, and one that failed raises
            `LaunchError` with kernel, shape, arguments and the driver's error. Work that failed before is not blamed
            on the launch. Off, nothing of this is on any path: other classes launch.
Method      The stream is waited for before and after each launch, which stays on the interpreted path. A stream that
            is being captured runs nothing yet: it is let alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..frontends.numba.arguments import NumbaLauncher
from .arguments import BindGrid, Launcher
from .config import Dim3, LaunchShape
from .failures import queued_error, ran_error
from .streams import stream_handle


class DebugLauncher(Launcher):
    """A launcher that waits for what it launched."""

    def generated(self) -> bool:
        """Never: the generated function does not wait."""
        return False

    def over_grids(self, block: Dim3, shared_bytes: int, stream: Any) -> BindGrid | None:
        """Each grid is bound by itself."""
        return None

    def _queue(self, site: Any, arguments: tuple[Any, ...], buffer: tuple[Any, int]) -> bool:
        queue = super()._queue  # False: the launcher that made it elsewhere has waited
        queued: bool = watched(
            self.driver,
            site.stream,
            lambda: queue(site, arguments, buffer),
            kernel=self.kernel,
            shape=site.shape,
            parameters=self._labels(),
            arguments=arguments,
        )
        return queued

    def _labels(self) -> Sequence[object]:
        """What stands before each argument in a message."""
        return self.parameters


class DebugNumbaLauncher(DebugLauncher, NumbaLauncher):
    """The same for a Numba kernel, whose arguments fill several parameters each.

    Args:
        labels: Name and type of each argument.
        more: As for `NumbaLauncher`.
    """

    def __init__(self, *arguments: Any, labels: Sequence[str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._named = labels

    def _labels(self) -> Sequence[object]:
        return self._named


def watched(
    driver: Any,
    stream: Any,
    launch: Callable[[], Any],
    *,
    kernel: str,
    shape: LaunchShape,
    parameters: Sequence[object],
    arguments: Sequence[Any],
) -> Any:
    """Launch between two waits, and return what `launch` does.

    Args:
        driver: `cuda.bindings.driver`, or what offers its functions.
        stream: Of the launch, as the user gave it.
        launch: Queues it; what it returns is false where that was done elsewhere.
        kernel, shape, parameters, arguments: For the message.

    Raises:
        LaunchError: Something that was queued before has failed, or this has.
    """
    code = _wait(driver, stream)
    if code:
        raise queued_error(kernel, code)
    queued = launch()
    if queued:
        code = _wait(driver, stream)
        if code:
            raise ran_error(kernel, shape, parameters, arguments, code)
    return queued


def _wait(driver: Any, stream: Any) -> Any:
    """The driver's code once all work in the stream is done; 0 where it must not be waited for."""
    handle = stream_handle(stream)
    code, capturing = driver.cuStreamIsCapturing(handle)
    if code or capturing:
        return 0
    return driver.cuStreamSynchronize(handle)[0]
