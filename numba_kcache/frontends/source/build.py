"""Build the artifact of a source request: flags, NVRTC, the linker, and the description of the cubin.

Promise     The artifact's entry is the requested one, or the only one in the source; otherwise EntryError lists the
            candidates. Its parameters are those that the compiler reports (prototype), checked against the ELF. The
            code is the same as NVRTC and nvJitLink make from source and options alone.
Method      A scan finds kernels and variables (declarations), and NVRTC reports their types in the compile itself, by
            name expressions appended to the source. Those that only the compiled code shows are asked about afterwards.
            Only if NVRTC rejects one, the source is compiled again without it: if that succeeds, the ELF gives the
            parameters; if not, the source has an error, at the user's own lines.
Not here    Keys, stores, includes that need tracking (headers).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping

from ...errors import EntryError, LinkError, OptionError, UnknownTargetError
from ...model import Artifact, CompileOptions, LinkInput, NamedTuple, SourceInput, Target, Variable
from ...model.cubin import CubinKernel, CubinVariable, cubin_in_fatbin, is_relocatable, read_cubin
from ...model.text import decoded, encoded
from ...toolchain.nvrtc import NvrtcResult, run_nvrtc, supported_targets
from .declarations import Declaration, declarations
from .kernels import choose_kernel, describe_kernel, kernels_in, own_name
from .prototype import OWN, SIGNATURE, Probe, kernel_name, make_probe, read_variable


class Compiled(NamedTuple):
    """Code made from a source by NVRTC, or given as compiled code by the user.

    Args:
        result: The code, and symbols by name expression.
        types: Mangled names that contain types, as `prototype.Probe.types` returns them; "" if NVRTC rejected the name.
        declared: Declarations found in the text.
        wanted: The kernel that NVRTC was asked about, for one kernel; None for none.
    """

    result: NvrtcResult
    types: Mapping[str, str] = {}
    declared: tuple[Declaration, ...] = ()
    wanted: str | None = None


def build_source(request: SourceInput) -> Artifact:
    """Compile and link one request.

    Args:
        request: The request.

    Raises:
        CompileError, LinkError: The compilers refused the source; `.log` has their whole log.
        EntryError: The source does not have the entry, or has several candidates.
        OptionError: The compilers do not know the target, an option or the signature.
        ToolchainMissingError: A library is not installed.
    """
    start = time.perf_counter()
    compiled = compile_source(request)
    cubin, log = linked(request, compiled.result)
    described, wanted = read_cubin(cubin), compiled.wanted
    if request.name is None and wanted not in [own_name(each.symbol) for each in described.kernels]:
        wanted = None  # the scan took something else for a kernel
    kernel = choose_kernel(request, described, wanted, compiled.result.lowered)
    chosen = {wanted or kernel_name(kernel.symbol): kernel}
    made = describe(request, compiled, chosen, {}, const_bytes=described.const_bytes)
    return made._replace(
        cubin=b"" if request.target.virtual else cubin,
        compile_time_s=time.perf_counter() - start,
        extras=extras_of(request, compiled.result, log),
    )


def describe(
    request: SourceInput,
    compiled: Compiled,
    chosen: Mapping[str, CubinKernel],
    variables: Mapping[str, CubinVariable],
    *,
    const_bytes: int,
) -> Artifact:
    """Make the artifact of these kernels and variables, by their names in the source, without its code."""
    symbols = [each.symbol for each in chosen.values()]
    types, made = types_of_unseen(request, compiled, symbols, variables), []
    for name, kernel in chosen.items():
        found = describe_kernel(request, kernel, name, types, compiled.declared)
        made.append(found._replace(const_bytes=const_bytes))
    read = [(name, each, read_variable(types.get(name, ""), each.size_bytes)) for name, each in variables.items()]
    return Artifact(
        kind=request.kind,
        target=request.target,
        kernels=tuple(made),
        cubin=b"",
        variables=tuple(
            Variable(name, each.symbol, each.size_bytes, code, shape) for name, each, (code, shape, _const) in read
        ),
    )


def extras_of(request: SourceInput, result: NvrtcResult, link_log: str) -> dict[str, bytes]:
    """The extras of the artifact: the compilers' log, and the PTX if `keep_ptx` is set."""
    log = "\n".join(filter(None, (result.log, link_log)))
    extras = {"log": log.encode()} if log else {}
    if result.code.get("ptx") and (request.options.keep_ptx or request.target.virtual):
        extras["ptx"] = result.code["ptx"].rstrip(b"\0")
    return extras


def check_target(target: Target) -> None:
    """Refuse a target that the installed NVRTC does not compile for.

    Raises:
        UnknownTargetError: NVRTC does not support it.
    """
    known = supported_targets()
    if target.major * 10 + target.minor not in known:
        raise UnknownTargetError(
            f"cannot compile for {target}",
            f"the installed NVRTC compiles for {', '.join(f'sm_{each}' for each in known)}",
            "older targets need the cu12 extra, newer targets a newer NVRTC",
            Target(*divmod(max(known), 10)),
        )


def compile_source(request: SourceInput) -> Compiled:
    """Compile the source of one kernel or of a module, with name expressions for symbols and types in the same run; or
    take the user's compiled code.

    Raises:
        CompileError, EntryError, OptionError: NVRTC refused the source, an instance, an option or the signature.
    """
    if request.kind != "cuda":
        return Compiled(given_code(request), _types_of_signature(request))
    check_target(request.target)
    declared, module, wanted = declarations(request.source), request.module, request.name
    kernels = kernels_in(declared)
    if module is None and wanted is None:
        wanted = request.guess if request.guess in kernels else kernels[0] if len(kernels) == 1 else None
    types_wanted = [each for each in declared if each.has_c_name]
    if module is None:
        types_wanted = [each for each in types_wanted if each.is_kernel and wanted in (None, each.name)]
    # symbols of template instances, and of names without a declaration found
    unknown = [each for each in (module.names if module else (wanted,)) if each and each[:2] != "_Z"]
    names = [each for each in unknown if each.rpartition("::")[2] not in kernels]
    probe = make_probe(names, types_wanted, signature=request.signature)
    first = result = run_once(request, probe)
    current = probe
    while not result.ok:
        of_source, of_probe = _faults(result.log)
        is_asked_again = current is not probe and not (OWN in result.log or _NAME_MAP in result.log)
        if not current.expressions or (of_source and not of_probe) or is_asked_again:
            from .refusals import refused

            raise refused(request, program_name(request), result.log)
        # try again without the rejected expressions; if that cannot help or did not, without any
        accepted = current.without(result.log)
        current = (
            Probe() if of_source or current is not probe or accepted.expressions == current.expressions else accepted
        )
        result = run_once(request, current)
    if request.signature is not None and SIGNATURE not in current.asked:
        from .refusals import no_signature

        raise no_signature(request, first.log)
    rejected = probe.asked.keys() - current.asked.keys()  # they are not asked about again
    types = {**dict.fromkeys(rejected, ""), **current.types(result.lowered)}
    instances = [each for each in names if "<" in each and each not in current.names]
    if instances:
        from ...toolchain.diagnostics import summary

        raise EntryError(
            f"cannot find the kernel {', '.join(map(repr, instances))} in {request.label}",
            summary(first.log),
            f"the source has {', '.join(kernels) or 'none'}",
        )
    return Compiled(result, types, declared, wanted)


_SCOPE = r"\bnamespace\s+(\w+(?:\s*::\s*\w+)*)\s*\{"


def types_of_unseen(
    request: SourceInput,
    compiled: Compiled,
    kernels: Iterable[str],
    variables: Iterable[str] = (),
) -> Mapping[str, str]:
    """Add the types of kernels and variables that the compiled code has and the text does not show, since macros make
    them or headers declare them: NVRTC's front end is run again on the source, with their names.

    Args:
        request: The request with the source.
        compiled: The code, with the types that are known.
        kernels: Symbols of kernels in the code.
        variables: Names of variables in the code.
    """
    symbols = [each for each in kernels if each not in compiled.types and each[:2] != "_Z"]
    unseen = [Declaration(each) for each in symbols]
    unseen += [Declaration(each, is_kernel=False) for each in variables if each not in compiled.types]
    if not unseen or request.kind != "cuda":
        return compiled.types
    is_scoped = any(each.name in symbols for each in compiled.declared)  # it is in no global scope
    probe = make_probe((), unseen, scopes=re.findall(_SCOPE, request.source) if is_scoped else ())
    flags = [*nvrtc_flags(request), "--fdevice-syntax-only"]
    while probe.expressions:
        result = run_nvrtc(request.source + probe.text, program_name(request), flags, (), probe.expressions)
        if result.ok:
            return {**compiled.types, **probe.types(result.lowered)}
        accepted = probe.without(result.log)  # one may be local, or have a type without a name
        probe = Probe() if accepted.expressions == probe.expressions else accepted
    return compiled.types


def _faults(log: str) -> tuple[bool, bool]:
    """Check whether NVRTC's log has errors in the source or options, and whether it has some in appended names."""
    if re.search(r"(?m)^(?:nvrtc: error: |Command-line error)", log):
        return True, False
    blocks = [each for each in log.split("\n\n") if re.match(r"\S.*\(\d+\): (?:catastrophic )?error\b", each)]
    ours = [each for each in blocks if _NAME_MAP in each or OWN in each]
    return len(ours) < len(blocks), bool(ours) or not blocks


_NAME_MAP = "__nv_name_map"
"""NVRTC's file name for the text that it makes of name expressions."""


def run_once(request: SourceInput, probe: Probe) -> NvrtcResult:
    """Run NVRTC on the request's source with the text and name expressions of a probe."""
    flags, program = nvrtc_flags(request), program_name(request)
    result = run_nvrtc(_with_lines(request) + probe.text, program, flags, _outputs(request), probe.expressions)
    if not result.ok or _NAME_MAP not in result.log:
        return result
    blocks = [each for each in result.log.split("\n\n") if not each.startswith(f"{_NAME_MAP}(")]
    return result._replace(log="\n\n".join(blocks))  # without warnings about the appended text


def program_name(request: SourceInput) -> str:
    """The source's program name for NVRTC; for line tables the user's own file.

    The name contains the folder for quoted includes only if files are included: otherwise `__FILE__` and assert would
    put the folder into the code for no reason.
    """
    if request.origin.is_whole_file and request.options.has_lines:
        return request.origin.path
    name = request.name or request.guess or "kernel"
    suffix = os.path.splitext(request.origin.path)[1] if request.origin.is_whole_file else ".cu"
    name = f"{name if name.isascii() and name.isidentifier() else re.sub(r'[^A-Za-z0-9_]', '_', name)}{suffix}"
    folder = request.options.base_dir
    return os.path.join(folder, name) if request.asks_files else name


def _with_lines(request: SourceInput) -> str:
    """The source; if line tables are requested and it is part of a file, with a `#line` for its place in front.

    Without line tables, `#line` would only put the user's line numbers into the code, by __LINE__ and assert.
    """
    if request.origin.is_whole_file or not request.options.has_lines:
        return request.source
    from ...toolchain.diagnostics import first_line

    start = first_line(request.source, request.origin)
    return request.source if start is None else f'#line {start} "{request.origin.path}"\n{request.source}'


def nvrtc_flags(request: SourceInput) -> list[str]:
    options = request.options
    arch = request.ptx_target or request.target
    flags = [f"-arch={arch.name}"]
    flags += [f"-D{name}" if text is None else f"-D{name}={text}" for name, text in options.defines]
    for wanted, flag in (
        (options.std, f"--std={options.std}"),
        (options.fastmath, "--use_fast_math"),
        (options.max_registers, f"--maxrregcount={options.max_registers}"),
        (options.lineinfo, "--generate-line-info"),
        (options.debug, "--device-debug"),
        (options.lto, "--dlink-time-opt"),
        (request.link and not options.lto, "--relocatable-device-code=true"),
        (options.opt != 3 and not options.lto, f"--ptxas-options=-O{options.opt}"),
    ):
        if wanted:
            flags.append(flag)
    flags += options.flags
    folders = [*filter(None, (options.base_dir, *options.include_dirs)), *request.toolkit_dirs]
    return flags + [f"-I{folder}" for folder in folders]


def _outputs(request: SourceInput) -> tuple[str, ...]:
    if request.options.lto:
        return ("ltoir",)
    return ("ptx",) if request.ptx_target or request.target.virtual else ("cubin", "ptx")


def linked(request: SourceInput, result: NvrtcResult) -> tuple[bytes, str]:
    """Link the code of NVRTC or of the user's compiler. Returns the cubin and the linker's log. For a virtual target
    the cubin is for the same compute capability, since only a cubin lists the parameters of its kernels."""
    made = result.code.get("cubin")
    if made and not request.link and not is_relocatable(made):
        return made, ""
    from ...toolchain.nvjitlink import link

    kind = next(each for each in ("ltoir", "cubin", "fatbin", "ptx") if each in result.code)
    arch = request.target._replace(virtual=False)
    inputs = [LinkInput(kind, f"{request.label}.{kind}", result.code[kind])]
    inputs += [_linkable(each, request) for each in request.link]
    lto = any(each.kind == "ltoir" for each in inputs)
    try:
        return link(inputs, arch.name, link_flags(request.options, lto))
    except LinkError as error:
        if request.kind != "ptx":
            raise
        from .refusals import refused_ptx

        raise refused_ptx(request, error) from None


def _linkable(item: LinkInput, request: SourceInput) -> LinkInput:
    """Prepare an input for the linker: CUDA C++ is compiled first, with the kernel's own options."""
    if item.kind != "cu":
        return item
    options = request.options._replace(base_dir=item.folder)
    relocatable = request._replace(options=options, link=(item,))  # `link` is not empty: relocatable code
    flags = nvrtc_flags(relocatable)
    kind = _outputs(relocatable)[0]
    program = os.path.join(item.folder, item.name) if request.asks_files else item.name
    result = run_nvrtc(decoded(item.data), program, flags, (kind,))
    if not result.ok:
        from .refusals import refused_input

        raise refused_input(item, request, program, result.log)
    return LinkInput(kind, item.name, result.code[kind])


def link_flags(options: CompileOptions, lto: bool = False) -> list[str]:
    """The flags of nvJitLink for these options."""
    level = 0 if options.debug and options.opt == 3 else options.opt  # with debug information the default becomes 0
    flags = [f"-O{level}" if level in (0, 3) else f"-Xptxas=-O{level}"]  # nvJitLink's own -O has these two levels
    for wanted, flag in (
        (lto, "-lto"),
        (options.max_registers, f"-maxrregcount={options.max_registers}"),
        (options.lineinfo, "-lineinfo"),
        (options.debug, "-g"),
        (lto and options.fastmath, "-ftz=1"),
        (lto and options.fastmath, "-prec-div=0"),
        (lto and options.fastmath, "-prec-sqrt=0"),
    ):
        if wanted:
            flags.append(flag)
    return flags


def _types_of_signature(request: SourceInput) -> dict[str, str]:
    """The mangled type of the user's signature, for compiled code; empty if there is no signature."""
    if request.signature is None:
        return {}
    headers = (("half", "cuda_fp16.h"), ("bfloat16", "cuda_bf16.h"), ("fp8", "cuda_fp8.h"))
    includes = "".join(f"#include <{header}>\n" for word, header in headers if word in request.signature)
    probe = make_probe((), (), signature=request.signature)
    from ...headers.observer import observed

    request = request._replace(options=request.options._replace(base_dir=""))  # without the user's headers
    flags = nvrtc_flags(request)
    with observed():  # the toolkit's types are not what is compiled: they are no dependency of the code
        result = run_nvrtc(includes + probe.text, program_name(request), flags, (), probe.expressions)
    if not result.ok:
        from .refusals import no_signature

        raise no_signature(request, result.log)
    return probe.types(result.lowered)


def given_code(request: SourceInput) -> NvrtcResult:
    """Take the request's compiled code as if NVRTC had returned it.

    Raises:
        OptionError: It is a cubin for another target, or not a cubin.
    """
    if request.kind == "cubin":
        check_cubin(request.code, request)
    if request.kind == "fatbin" and not request.target.virtual:
        cubin = cubin_in_fatbin(request.code, request.target.cc)  # nvJitLink ignores linked code in a fatbin
        if cubin is not None:
            check_cubin(cubin, request)
            return NvrtcResult(True, "", {"cubin": cubin})
    return NvrtcResult(True, "", {request.kind: request.code or encoded(request.source)})


def check_cubin(code: bytes, request: SourceInput) -> None:
    """Check that code is a cubin that devices of the target can load.

    Raises:
        OptionError: It is not.
    """
    try:
        made_for = read_cubin(code).sm
    except ValueError as error:
        hint = "give all the bytes that nvcc -cubin or .cubin() made"
        raise OptionError(f"cannot use {request.label} as a cubin", str(error), hint) from None
    target = request.target
    if target.virtual or not Target(*divmod(made_for, 10)).runs_on(target.cc):
        raise OptionError(
            f"cannot use {request.label} for {target}",
            f"it is a cubin for sm_{made_for}",
            f"give the cubin for {target}, or PTX or LTO-IR, which is linked for any",
        )
