"""`debug_launches`: every launch is waited for, and the failed one is named."""

from __future__ import annotations

from typing import Any

import pytest

from numba_kcache import launch as devices
from numba_kcache.errors import LaunchError
from tests.support.launching import SAXPY, Driver, Kernel, Numba

FAILED = 700


def debugged(stream: int = 0) -> tuple[Driver, Any, tuple[Any, ...]]:
    """The driver, a bound launch, and arguments for it."""
    kernel = Kernel(stream=stream, debug_labels=SAXPY)
    numba = Numba()
    arguments = 2.0, numba.array(), numba.array(), 1024
    return kernel.driver, kernel.bind(), arguments


def test_each_launch_is_waited_for() -> None:
    """The driver waits before and after, also where the compiled module would make an ordinary launch."""
    driver, launch, arguments = debugged(stream=9)
    for _ in range(16):
        launch(*arguments)

    assert len(driver.launches) == 16
    assert driver.events == [("synchronize", 9)] * (32)


def test_failed_launch_is_named_with_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernel, arguments as described, shape, the driver's own error."""
    monkeypatch.setattr(devices.Driver, "name_of", lambda _self, code: {700: "CUDA_ERROR_ILLEGAL_ADDRESS"}[code])
    driver, launch, arguments = debugged()

    def fail(stream: int) -> tuple[Any]:
        return (FAILED if driver.launches else 0,)

    driver.cuStreamSynchronize = fail  # type: ignore[method-assign]
    with pytest.raises(LaunchError) as caught:
        launch(*arguments)

    assert caught.value.what == (
        "saxpy(float a = 2.0 (float), float const* x = numba.DeviceNDArray of float32 (1024,), "
        "float* y = numba.DeviceNDArray of float32 (1024,), int n = 1024 (int)) failed with grid (3, 2, 1), "
        "block (32, 4, 1), sharedmem 16"
    )
    assert caught.value.why == "the driver returned CUDA_ERROR_ILLEGAL_ADDRESS"


def test_earlier_failure_is_not_blamed_on_the_launch() -> None:
    """The error says that the failure is earlier, and the launch is not made."""
    driver, launch, arguments = debugged()
    driver.ran = FAILED

    with pytest.raises(LaunchError, match="cannot launch saxpy: work that was queued before it failed"):
        launch(*arguments)
    assert not driver.launches


@pytest.mark.parametrize("stream", [0, 9])
def test_capture_is_let_alone(stream: int) -> None:
    """Waiting would invalidate a capture of this stream or, for the default stream, of any."""
    driver, launch, arguments = debugged(stream)
    driver.capturing = {9}
    launch(*arguments)

    assert (len(driver.launches), driver.events) == (1, [])
