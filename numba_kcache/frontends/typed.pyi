"""Types of the results of `cached_kernel`, for type checkers only: at run time every kernel is a `Kernel`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, overload

from ..model import Parameter
from . import Kernel
from .options import Arch

class SourceKernel(Kernel):
    """A `Kernel` of CUDA C++, PTX or compiled code (cubin, fatbin, LTO-IR)."""

    params: tuple[Parameter, ...]
    log: str
    regs_per_thread: int
    shared_mem_per_block: int
    local_mem_per_thread: int
    const_mem_size: int
    max_threads_per_block: int
    handle: int
    attributes: dict[str, int]

    def cubin(self, arch: Arch | None = None, signature: None = None) -> bytes: ...
    def ptx(self, arch: Arch | None = None, signature: None = None) -> str: ...
    def inspect_sass(self, arch: Arch | None = None) -> str: ...
    def max_cooperative_grid_blocks(self, block: Any, sharedmem: int = 0, signature: None = None) -> int: ...
    def occupancy(self, block: Any, sharedmem: int = 0, signature: None = None) -> int: ...
    def suggested_block(self, sharedmem: int = 0, signature: None = None) -> int: ...

class NumbaKernel(Kernel):
    """A `Kernel` of a Python function, whose code depends on the types of its arguments."""

    params: dict[Any, tuple[Parameter, ...]]
    log: dict[Any, str]
    regs_per_thread: dict[Any, int]
    shared_mem_per_block: dict[Any, int]
    local_mem_per_thread: dict[Any, int]
    const_mem_size: dict[Any, int]
    max_threads_per_block: dict[Any, int]
    handle: dict[Any, int]
    attributes: dict[Any, dict[str, int]]

class HasFunction(Protocol):
    """A dispatcher of `cuda.jit`."""

    py_func: Any

IsSource = str | bytes | Path | tuple[str | bytes, Any] | Callable[..., str]
IsNumba = HasFunction | Callable[..., None]

class KernelDecorator(Protocol):
    """The decorator that `cached_kernel(**options)` returns."""

    @overload
    def __call__(self, thing: IsSource, /) -> SourceKernel: ...
    @overload
    def __call__(self, thing: IsNumba, /) -> NumbaKernel: ...
