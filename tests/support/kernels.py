"""Kernels that can be imported, for tests of pickling and of other processes."""

from __future__ import annotations

from numba_kcache import cached_kernel
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
