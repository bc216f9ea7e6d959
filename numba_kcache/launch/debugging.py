"""Launches that are waited for, so that a failure names the kernel and the arguments that caused it.

Promise     With `debug_launches` a launch that returns has run without an error, and one that failed raises
            `LaunchError` with kernel, shape, arguments and the driver's error. Work that failed before is not blamed
            on the launch. Off, nothing of this is on any path: another class launches.
Method      The stream is waited for before and after each launch, which stays on the interpreted path. A stream that
            is being captured runs nothing yet: it is let alone.
"""

from __future__ import annotations

from typing import Any

from .arguments import BindGrid, Launcher
from .config import Dim3
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
        code = self._wait(site.stream)
        if code:
            raise queued_error(self.kernel, code)
        if not super()._queue(site, arguments, buffer):
            return False  # the launcher that made it has waited
        code = self._wait(site.stream)
        if code:
            raise ran_error(self.kernel, site.shape, self.parameters, arguments, code)
        return True

    def _wait(self, stream: Any) -> Any:
        """The driver's code once all work in the stream is done; 0 where it must not be waited for."""
        handle = stream_handle(stream)
        code, capturing = self.driver.cuStreamIsCapturing(handle)
        if code or capturing:
            return 0
        return self.driver.cuStreamSynchronize(handle)[0]
