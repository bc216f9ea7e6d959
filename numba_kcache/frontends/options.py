"""The keywords of `cached_kernel`, `cached_module`, `get_or_compile` and `configure`, as type checkers read them.

Promise     These are exactly the accepted keywords, so that a type checker reports a misspelt keyword or a value of
            a wrong type. Not imported at run time.
Method      A `TypedDict` for all kernels, one for the further options of sources, one for those of Numba kernels.
Not here    Reading the values (model.options, launch.attributes, frontends.numba, settings).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from typing import Any, Literal, Protocol, TypedDict

from ..model import Target

_One = str | tuple[int, int] | Target
Arch = _One | list[str] | list[tuple[int, int]] | list[Target] | list[_One] | Set[str]
"""`"auto"`, `"sm_90"`, `"sm_90a"`, `(9, 0)`, `"compute_80"`, or a list of these."""

Folder = str | os.PathLike[str]
Size = int | str

Kind = Literal["cuda", "ptx", "cubin", "fatbin", "ltoir", "numba", "mlir"]
Standard = Literal["c++03", "c++11", "c++14", "c++17", "c++20", "c++23"]


class Cache(Protocol):
    """A `KernelCache`."""

    @property
    def session(self) -> Any:
        """The engine behind it."""


class CommonOptions(TypedDict, total=False):
    """Options of every kind of kernel. None means the default."""

    arch: Arch | None
    kind: Kind | None
    cache: Cache | None
    depends: Sequence[Any] | Mapping[Any, Any] | None
    strict: bool | None
    strided: bool | None
    keep_ptx: bool | None
    fastmath: bool | None
    max_registers: int | None
    lineinfo: bool | None
    debug: bool | None
    lto: bool | None
    link: Sequence[Any] | None
    cooperative: bool | None
    cluster: int | tuple[int, ...] | None
    max_dynamic_shared: int | None


class ModuleOptions(CommonOptions, total=False):
    """Options of `cached_module`."""

    opt: Literal[0, 1, 2, 3] | None
    std: Standard | None
    defines: Mapping[str, str | int | None] | None
    include_dirs: Sequence[str | os.PathLike[str]] | None
    options: Sequence[str] | None
    carveout: int | str | None


class SourceOptions(ModuleOptions, total=False):
    """Options of `cached_kernel` with CUDA C++, PTX or compiled code."""

    name: str | None
    signature: str | None


class _CodeOptions(TypedDict, total=False):
    """Options of Numba kernels alone; the last seven are numba-cuda-mlir's."""

    signature: Any
    inline: str | bool | None
    forceinline: bool | None
    launch_bounds: int | tuple[int, ...] | None
    shared_memory_carveout: int | str | None
    extensions: Sequence[Any] | None
    opt_level: int | None
    ptxas_options: str | Sequence[str] | None
    capi: bool | None
    features: str | Sequence[str] | None
    abi: Any
    experimental_ast_transforms: Any
    _nrt: Any


class NumbaOptions(CommonOptions, _CodeOptions, total=False):
    """Options of `cached_kernel` with a Numba kernel."""

    opt: bool | Literal[0, 1, 2, 3] | None
    carveout: int | str | None


class CallOptions(ModuleOptions, _CodeOptions, total=False):
    """Options of `get_or_compile` beside source and name: for all kinds of kernels."""


class KernelOptions(CallOptions, total=False):
    """Options of `cached_kernel`, before the kind of kernel is known."""

    name: str | None


class CacheSettings(TypedDict, total=False):
    """Settings of `KernelCache` beside directory and size. None means the environment's, or the default."""

    max_entries: int | str | None
    mode: Literal["readwrite", "readonly", "off", "frozen", "refresh", "verify"] | None
    toolchain: Literal["exact", "any"] | None
    shared: bool | str | None
    durability: Literal["none", "data", "full"] | None
    build_wait_s: float | str | None
    debug_launches: bool | str | None
    log_level: Literal["debug", "info", "warning", "error", "off"] | None
    tiers: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
    trusted_keys: str | Mapping[str, str | bytes] | None
    signing_key: str | os.PathLike[str] | None
    progress: bool | str | None


class ProcessSettings(CacheSettings, total=False):
    """Settings of `configure`."""

    directory: Folder | None
    max_size_bytes: Size | None
