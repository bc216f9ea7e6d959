"""Compile a kernel of numba-cuda-mlir for a target: lowering to MLIR, code by NVVM, the cubin by nvJitLink.

Promise     Any target on any machine: no device, driver or context is needed, and an existing one has no effect. The
            program is compiled in its present state: a device function that was compiled before, for other globals or
            another target, is compiled again. The compiler's own errors pass unchanged, and the user's options are not
            modified.
Not here    The key, and private names (mlir).
Source      numba-cuda-mlir 0.6.0: `MLIRDispatcher._compile_public`, mlir_compiler.py `compile_mlir`,
            mlir_optimization.py `optimize`, tools.py `resolve_gpu_target`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from ...errors import UncacheableError
from ...model import Artifact, LinkInput, Target
from ...model.linkable import callbacks_of
from .compiled_code import assumed_device, attributes_of, compiler, entry_of, fresh_functions, recorded, rows_of
from .mlir import MLIR, PACKAGE

_alive: list[Any] = []
"""Device arrays whose addresses are in code of this process, kept alive."""


def compile_kernel(
    declared: Any,
    types: Iterable[Any],
    target: Target,
    *,
    ptx_target: Target | None = None,
    device_functions: Iterable[tuple[Any, str]] = (),
    keep_ptx: bool = True,
    links: Iterable[LinkInput] = (),
    runtime_build: str | None = None,
) -> Artifact:
    """Compile one signature of a kernel.

    Args:
        declared: The function with its options (`Declared`).
        types: Types of the arguments, in order.
        target: A real target.
        ptx_target: The virtual target to generate code for, if the user requested one.
        device_functions: Dispatchers it calls, and functions under `@overload` or `@intrinsic`, each with a
            digest of everything that determines its code (`Fingerprint.device_functions`).
        keep_ptx: Whether the artifact contains the PTX, as it is before linking.
        links: Link inputs in the key, which are read again after the compile.
        runtime_build: Build in the key of CUDA's device runtime, which kernels link that synchronise their grid.

    Raises:
        UncacheableError: Its code depends on values of its arguments, or a callee's link input has callbacks.
        CompileError: The linked cubin has no such kernel.
    """
    start, parts, types = time.perf_counter(), compiler(MLIR), tuple(types)
    generated = ptx_target or target
    options = dict(declared.targetoptions)
    options |= {"chip": f"sm_{generated.major}{generated.minor}{generated.suffix}", "cc": None}
    options["link"] = list(options.get("link") or ())
    anew = fresh(device_functions, options["chip"])
    parts.cached_file_read.cache_clear()  # link inputs are read again
    with recorded(parts.global_compiler_lock) as warned, assumed_device(MLIR, target.cc), anew:
        try:
            result = parts.compile_mlir(declared.py_func, None, types, targetoptions=options)
            parts.optimize(result)
        except parts.ForceLiteralArg as error:
            raise UncacheableError("cannot cache it", "its code depends on values of its arguments") from error
    metadata = result.metadata
    _alive.extend(getattr(result.library, "referenced_objects", {}).values())
    foreign = _foreign_callbacks(metadata, options["link"])
    if foreign:
        raise UncacheableError("cannot cache it", "what it links has callbacks to run when it is loaded")
    if metadata.get("_cudadevrt_linked") and runtime_build is None:
        raise UncacheableError("cannot cache it", "CUDA's device runtime was linked, which is not in its key")
    entry = entry_of(metadata["cubin"], metadata["func_name"], declared.py_func.__name__)
    ptx = metadata.get("ptx") or ""
    extras = {"log": b"", **({"ptx": ptx.encode()} if keep_ptx else {})}
    attributes = attributes_of(options, types, is_cooperative=metadata.get("use_cooperative"))
    has_callbacks = metadata.get("setup_callbacks") or metadata.get("teardown_callbacks")
    attributes["needs_setup"] = bool(has_callbacks or metadata.get("needs_nrt"))
    attributes["needs_runtime"] = bool(metadata.get("needs_nrt"))
    if warned:
        attributes["warnings"] = rows_of(warned, declared.py_func)
    return Artifact("mlir", target, (entry,), metadata["cubin"], time.perf_counter() - start, attributes, extras)


def _foreign_callbacks(metadata: Mapping[str, Any], links: Iterable[Any]) -> list[Any]:
    """Callbacks that belong neither to the compiler nor to the kernel's own options."""
    own = [callback for each in links for callback in callbacks_of(each)]
    found = [*(metadata.get("setup_callbacks") or ()), *(metadata.get("teardown_callbacks") or ())]
    return [each for each in found if each not in own and not str(each.__module__).startswith(f"{PACKAGE}.")]


def fresh(device_functions: Iterable[tuple[Any, str]], chip: str) -> AbstractContextManager[None]:
    """Compile for a target without code that was compiled earlier; see `fresh_functions`."""
    return fresh_functions(MLIR, device_functions, chip, lambda function: function, _compile_callee)


def _compile_callee(dispatcher: Any, types: Any, _result: Any) -> None:
    dispatcher._compile_as_device_callee(types)
