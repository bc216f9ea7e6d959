"""Kernels that can be imported, for tests of pickling and of other processes."""

from __future__ import annotations

from typing import Any

from numba_kcache import cached_kernel, cached_module
from tests.support.compiling import SAXPY


@cached_kernel(arch="sm_90")
def saxpy() -> str:
    """y = a * x + y."""
    return SAXPY


def plain() -> str:
    return SAXPY


renamed = cached_kernel(plain, name="saxpy", arch="sm_90")


class Model:
    """A class with a kernel."""

    @cached_kernel(arch="sm_90")
    def saxpy() -> str:  # type: ignore[misc]
        """A class attribute."""
        return SAXPY


@cached_kernel(signature="void(float32[::1], float32[::1])")
def numba_add(x: Any, y: Any) -> None:
    """x += y, of one element."""
    x[0] += y[0]


many = cached_module('extern "C" __global__ void one() {}\nextern "C" __global__ void two() {}')
