"""Compile a kernel by numba-cuda-mlir: lowering to MLIR, code by NVVM, the cubin by nvJitLink.

Not here    What both Numbas need for a compile (compiled_code), the key, and private names (mlir).
Source      numba-cuda-mlir 0.6.0: `MLIRDispatcher._compile_public`, mlir_compiler.py `compile_mlir`,
            mlir_optimization.py `optimize`, tools.py `resolve_gpu_target`.
"""

from __future__ import annotations

from typing import Any

from ...errors import UncacheableError
from ...model import Target
from ...model.linkable import callbacks_of
from .compiled_code import Code, compiler
from .mlir import MLIR

_alive: list[Any] = []
"""Device arrays whose addresses are in code of this process, kept alive."""


def compile_signature(
    function: Any, types: Any, options: dict[str, Any], _target: Target, generated: Target, _links: Any
) -> Code:
    """Compile one signature; it reads its link inputs again. See `compiled_code.compile_kernel`.

    Raises:
        UncacheableError: Its code depends on values of its arguments.
    """
    parts = compiler(MLIR)
    options = options | {"chip": f"sm_{generated.major}{generated.minor}{generated.suffix}", "cc": None}
    try:
        result = parts.compile_mlir(function, None, types, targetoptions=options)
        parts.optimize(result)
    except parts.ForceLiteralArg as error:
        raise UncacheableError("cannot cache it", "its code depends on values of its arguments") from error
    _alive.extend(getattr(result.library, "referenced_objects", {}).values())
    known = result.metadata
    callbacks = [*(known.get("setup_callbacks") or ()), *(known.get("teardown_callbacks") or ())]
    own = [callback for each in options["link"] for callback in callbacks_of(each)]  # the dispatcher runs these
    needs_runtime = bool(known.get("needs_nrt"))
    return Code(
        known["cubin"], known["func_name"], known.get("ptx") or "", "",
        {"needs_setup": bool(callbacks) or needs_runtime, "needs_runtime": needs_runtime},
        bool(known.get("use_cooperative")), bool(known.get("_cudadevrt_linked")),
        [each for each in callbacks if each not in own],
    )  # fmt: skip


def assumed(target: Target, _generated: Target) -> tuple[Any, ...]:
    """The compute capability of the device that a compile assumes, for which numba-cuda-mlir links."""
    return target.cc


def device_answer(cc: tuple[Any, ...], as_type: type = str, **_named: Any) -> Any:
    """The compute capability, as text or numbers."""
    return cc if as_type is tuple else f"sm_{cc[0]}{cc[1]}"


def compile_callee(dispatcher: Any, types: Any, _result: Any) -> None:
    """Compile a device function for argument types again."""
    dispatcher._compile_as_device_callee(types)


def prepare() -> None:
    """Make numba-cuda-mlir fill its registries, as its first compile does, and drop the link inputs it read."""
    compiler(MLIR).cached_file_read.cache_clear()
    compiler(MLIR).mlir_target.ensure_initialized()
