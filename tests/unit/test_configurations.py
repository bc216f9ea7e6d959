"""Configurations of a kernel: kept once bound, limited in number, and refused with a reason."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from numba_kcache.errors import LaunchConfigError
from numba_kcache.frontends import BOUND_LIMIT, Definition, Launches, keep_bounded
from numba_kcache.launch import LaunchShape


class Counting(Launches):
    """Notes each shape, with its stream, that it was asked to bind a launch for."""

    __name__ = "counting"

    def __init__(self, *, row: bool = False) -> None:
        self._bound, self._seen, self._rows, self._definition = {}, {}, {}, Definition()
        self.made: list[tuple[LaunchShape, Any]] = []
        self.live, self.has_row = [True], row

    def kept(self) -> list[int]:
        """Numbers of configurations that are bound, noted, and bound over all grids."""
        return [len(each) for each in (self._bound, self._seen, self._rows)]

    def _configure(self, config: Any, shape: LaunchShape, stream: Any, variant: Any = None) -> Any:
        self.made.append((shape, stream))
        if self.has_row:
            keep_bounded(self._rows, config[1:], (self.live, (100, 100, 100), lambda x, y, z: lambda *_: (x, y, z)))
        return lambda *_: shape.grid


def test_configuration_that_comes_again_is_bound_twice_at_most() -> None:
    """The first use is only noted, the second is kept; from then on it is one look-up."""
    kernel = Counting()
    launches = [kernel[4, 32] for _ in range(5)]

    assert len(kernel.made) == 2
    assert launches[1] is launches[4]
    assert kernel.made[0] == (LaunchShape((4, 1, 1), (32, 1, 1), 0), None)


def test_row_binds_further_grids_without_reading_them_again() -> None:
    """For one block and stream the device's limits are queried once; a grid beyond them is checked in full."""
    kernel = Counting(row=True)
    assert [kernel[grid, 32]() for grid in (1, 2, (3, 4), (5, 6, 7))] == [(1, 1, 1), (2, 1, 1), (3, 4, 1), (5, 6, 7)]
    assert len(kernel.made) == 1

    kernel[101, 32]
    kernel[1, 64]
    assert len(kernel.made) == 3


def test_row_that_is_not_alive_is_not_used() -> None:
    """After a reset it would bind a kernel of a module that was unloaded."""
    kernel = Counting(row=True)
    kernel[1, 32]
    kernel.live[0] = False
    kernel[2, 32]

    assert len(kernel.made) == 2


def test_loop_over_grids_and_blocks_keeps_no_more_than_the_limit() -> None:
    """Memory does not grow with the number of configurations that a program has used."""
    kernel = Counting(row=True)
    for each in range(1, 4 * BOUND_LIMIT):
        assert kernel[each, each]() == kernel[each, each]()

    assert all(0 < each <= BOUND_LIMIT for each in kernel.kept())


class Refusing(Launches):
    """Keeps the launch that takes over arguments which a launcher refused."""

    def __init__(self) -> None:
        self._variant_launches = {}

    def _variant_launch(self, config: Any, shape: LaunchShape, stream: Any) -> Any:
        return SimpleNamespace(refused=lambda variant, args: None)

    def kept_after(self, grid: int) -> int:
        """Number of launches that are kept after this grid was refused too."""
        self._refused(None, (grid, 32, 0, 0), ())
        return len(self._variant_launches)


def test_loop_over_grids_of_several_signatures_keeps_no_more_than_the_limit() -> None:
    """Arguments with another signature than the last launch's use the launch that is kept for their grid."""
    kernel = Refusing()

    assert max(kernel.kept_after(grid) for grid in range(1, 3 * BOUND_LIMIT)) == BOUND_LIMIT


def test_unhashable_configuration_is_bound_each_time() -> None:
    """Numba accepts lists as extents."""
    kernel = Counting(row=True)
    kernel[[1], [32]]
    kernel[[1], [32]]

    assert len(kernel.made) == 2
    assert kernel.kept()[0] == 0


@pytest.mark.parametrize("config", [1, (1,), (1, 1, 0, 0, 0), "ab", None])
def test_wrong_number_in_the_brackets_is_said(config: Any) -> None:
    """Too few and too many values are refused, whatever they are."""
    with pytest.raises(LaunchConfigError, match=r"a launch takes \[grid, block\]"):
        Counting()[config]


def test_launch_without_brackets_is_said() -> None:
    """The error is the same as in Numba."""
    with pytest.raises(LaunchConfigError, match=r"counting\[grid, block\]"):
        Counting()(1, 2)


def test_stream_object_that_names_another_stream_is_asked_again() -> None:
    """A program's own stream object may stand for whichever stream is current: it is read at each indexing."""

    class Current:
        handle = 7

        def __cuda_stream__(self) -> tuple[int, int]:
            return 0, self.handle

    kernel, current = Counting(), Current()
    for current.handle in (7, 7, 7, 9, 9, 7):
        kernel[1, 32, current, 16]

    assert [stream for _shape, stream in kernel.made] == [7, 7, 9, 9]
    assert kernel[1, 32, 7, 16] is kernel[1, 32, current, 16]
