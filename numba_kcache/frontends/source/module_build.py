"""Build the artifact of a module, with many kernels, or link one kernel from a lazy module's LTO-IR.

Promise     The kernels are the requested ones, in that order, or all that the source defines, including those defined
            by macros; for a missing one EntryError lists those that exist. A kernel linked by itself never has a copy
            of a variable that another kernel may write to.
Method      Eager: one cubin, which lists its kernels. Lazy: one compile to LTO-IR, whose kernels are listed by the PTX
            that nvJitLink makes of it without optimising; `build_lazy` links one (-kernels-used) without unused
            variables (-optimize-unused-variables), so that its cubin has exactly those it uses. The compile also
            reports the types of all kernels and variables that the text declares, and a second run of the front end
            those of the others.
Not here    One kernel of a source (build), and resolving the kernels of a lazy module (module).
Source      nvJitLink documentation, "Supported Link Options".
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

from ...errors import EntryError, LinkError, OptionError
from ...model import Artifact, CompiledKernel, LinkInput, SourceInput
from ...model.cubin import Cubin, CubinKernel, read_cubin
from .build import Compiled, compile_source, describe, extras_of, link_flags, linked, types_of_unseen
from .declarations import declarations
from .kernels import choose_kernel, describe_kernel, no_choice
from .prototype import kernel_name, overload_name, read_variable, variable_name

_ENTRY = re.compile(r"^\s*(?:\.(?:visible|weak|extern)\s+)*\.entry\s+([\w$]+)", re.MULTILINE)
_GLOBAL = re.compile(
    r"^\s*(?:\.(?:visible|weak|extern)\s+)*\.global\b[^;={]*?([\w$]+)(?:\[\d*\])*\s*[;={]", re.MULTILINE
)

KERNELS_USED = "-,{},-", "{}"
"""Values of -kernels-used, tried in turn. nvJitLink 13 puts a * before and after the list, and uses the parts between
commas as patterns: a name between two others is matched exactly, `axpy` alone would keep `axpy_arg` and `my_axpy` too.
An nvJitLink that parses the list differently finds no kernel for the first value."""

_COMPILERS_OWN = (
    "$", ".", "__unnamed_", "__cudart_", "__nv_", "__internal_", "cuda::", "cub::", "thrust::", "std::",
    "cooperative_groups::",
)  # fmt: skip
"""Prefixes of the names of the toolkit's own variables (tables, texts, constants), which are never written to."""

_COMPILERS_SCOPES = r"(?:4cuda|3cub|6thrust|3std|18cooperative_groups)L?\d|\d+__"
"""The namespaces of `_COMPILERS_OWN` in a mangled name, after `_ZN` and before the length of a member's name, and those
whose names are reserved (C++17, 5.10 [lex.name], 3), as `__cccl_internal` is."""

_COMPILERS_TABLES = ("_ZTV", "_ZTI", "_ZTS", "_ZTT")
"""Virtual tables and type information (Itanium C++ ABI, 5.1.4.1)."""


def build_module(request: SourceInput) -> Artifact:
    """Compile a module.

    Args:
        request: The request; `request.module` has the kernels, and whether to stop at LTO-IR.

    Raises:
        CompileError, LinkError, EntryError, OptionError, ToolchainMissingError: As `build_source`.
    """
    start = time.perf_counter()
    is_lazy = request.module is not None and request.module.lazy
    if is_lazy:
        request = request._replace(options=request.options._replace(lto=True))
    made = (_lazy if is_lazy else _eager)(request, compile_source(request))
    return made._replace(compile_time_s=time.perf_counter() - start)


def _eager(request: SourceInput, compiled: Compiled) -> Artifact:
    result, (cubin, log) = compiled.result, linked(request, compiled.result)
    described = read_cubin(cubin)
    in_order = {symbol: place for place, symbol in enumerate(_entries_of(result.code.get("ptx", b"")))}
    kernels = sorted(described.kernels, key=lambda each: in_order.get(each.symbol, 0))
    chosen = _chosen(request, described._replace(kernels=tuple(kernels)), result.lowered)
    found = {variable_name(each.symbol): each for each in described.variables if _is_users(each.symbol)}
    found = {name: each for name, each in found.items() if not name.startswith("_Z")}  # without local variables
    made = describe(request, compiled, chosen, found, const_bytes=described.const_bytes)
    return made._replace(cubin=b"" if request.target.virtual else cubin, extras=extras_of(request, result, log))


def _lazy(request: SourceInput, compiled: Compiled) -> Artifact:
    from ...toolchain.nvjitlink import link

    result = compiled.result
    code = LinkInput("ltoir", request.label, result.code["ltoir"])
    ptx = link([code], request.target.name, ["-lto", "-ptx", "-O0"], "ptx")[0]
    kernels = tuple(CubinKernel(symbol, (), 0, 0, 0) for symbol in _entries_of(ptx))
    chosen = _chosen(request, Cubin(0, kernels, 0), result.lowered)
    found = [*filter(_is_users, _GLOBAL.findall(ptx.decode("utf-8", "replace")))]
    named = [name for name in map(variable_name, found) if not name.startswith("_Z")]
    types = types_of_unseen(request, compiled, [each.symbol for each in chosen.values()], named)
    prototypes = {each.symbol: types.get(name) or types.get(each.symbol) for name, each in chosen.items()}
    return Artifact(
        kind=request.kind,
        target=request.target,
        kernels=tuple(CompiledKernel(name, kernel.symbol) for name, kernel in chosen.items()),
        cubin=b"",
        attributes={
            "prototypes": {symbol: each for symbol, each in prototypes.items() if each},
            "constants": [each for each in found if read_variable(types.get(variable_name(each), ""), 0)[2]],
        },
        extras={"ltoir": code.data, **extras_of(request, result, "")},
    )


def _entries_of(ptx: bytes) -> list[str]:
    """The symbols of the kernels in PTX, in the order of the source."""
    return list(dict.fromkeys(_ENTRY.findall(ptx.decode("utf-8", "replace"))))


def _chosen(request: SourceInput, cubin: Cubin, lowered: Mapping[str, str]) -> dict[str, CubinKernel]:
    """The kernels of the module by name, in order."""
    wanted = request.module.names if request.module else ()
    if not wanted:
        if not cubin.kernels:
            raise no_choice(request, cubin, None, False)
        names = [kernel_name(each.symbol) for each in cubin.kernels]
        return {
            name if names.count(name) == 1 else overload_name(each.symbol): each
            for name, each in zip(names, cubin.kernels, strict=True)
        }
    try:
        return {name: choose_kernel(request._replace(name=name), cubin, name, lowered) for name in wanted}
    except EntryError as error:
        raise EntryError(error.what, error.why, error.hint.replace("name=", "names=")) from None


def _is_users(symbol: str) -> bool:
    if symbol.startswith(_COMPILERS_TABLES):
        return False
    unit = re.match(r"_ZN(\d{1,4})(?=_INTERNAL_)", symbol)
    at = unit.end() + int(unit[1]) if unit else len("_ZN")
    if symbol.startswith("_ZN") and re.compile(_COMPILERS_SCOPES).match(symbol, at):
        return False  # the toolkit's headers have hundreds of such names, and parsing one takes 40 us
    return not variable_name(symbol).startswith(_COMPILERS_OWN)


def build_lazy(request: SourceInput, module: Artifact) -> Artifact:
    """Link one kernel of a lazy module.

    Args:
        request: The request, with the kernel's name, and the text, for names of parameters.
        module: The artifact of the module, with its LTO-IR.

    Raises:
        EntryError: The module has no such kernel.
        OptionError: The kernel uses a variable that others may write to.
        LinkError: The linker refused it.
    """
    from ...toolchain.nvjitlink import link

    start = time.perf_counter()
    listed = module.kernel(request.name or "", request.label)
    target = request.target._replace(virtual=False)
    flags = [*link_flags(request.options, True), "-optimize-unused-variables"]
    code = LinkInput("ltoir", request.label, module.extras["ltoir"])
    for used in KERNELS_USED:
        cubin, log = link([code], target.name, [*flags, f"-kernels-used={used.format(listed.symbol)}"])
        described = read_cubin(cubin)
        kernel = next((each for each in described.kernels if each.symbol == listed.symbol), None)
        if kernel is not None:
            break
    else:
        raise LinkError(f"cannot link {request.label}", f"nvJitLink leaves out {listed.symbol}", "", log)
    _refuse_shared_state(request, module, described)
    prototype = module.attributes.get("prototypes", {}).get(listed.symbol)
    types = {listed.symbol: prototype} if isinstance(prototype, str) else {}
    made_kernel = describe_kernel(request, kernel, listed.name, types, declarations(request.source))
    return Artifact(
        kind=module.kind,
        target=request.target,
        kernels=(made_kernel._replace(const_bytes=described.const_bytes),),
        cubin=cubin,
        compile_time_s=time.perf_counter() - start,
        extras={"log": log.encode()} if log else {},
    )


def _refuse_shared_state(request: SourceInput, module: Artifact, cubin: Cubin) -> None:
    constants = set(module.attributes.get("constants", ()))
    for each in cubin.variables:
        if not each.is_constant and each.symbol not in constants and _is_users(each.symbol):
            raise OptionError(
                f"cannot link {request.label} by itself",
                f"it uses the variable {variable_name(each.symbol)}, of which it would have its own copy",
                "leave out lazy=True, or declare the variable const",
            )
