"""From a source request to an artifact: flags, NVRTC, the linker, and what the cubin then says of itself.

Promise     The artifact's entry is the one that was asked for, or the only one there is; otherwise EntryError
            lists the candidates. Its parameters are the compiler's own word (prototype), held against the ELF.
Method      First compile with name expressions for the entry and its prototype. If that is refused, compile
            the untouched source: if this passes, the expressions were at fault and the ELF decides;
            if not, the source is, and its log names the user's own lines.
Not here    Keys, stores, includes that need tracking (inputs.headers).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from ...errors import CompileError, EntryError, LinkError, OptionError
from ...headers.mirror import Folders
from ...model import Target, UnknownTargetError
from ...model.artifact import Artifact
from ...model.cubin import read_cubin
from ...model.fatbin import cubin_in_fatbin
from ...model.request import CompileOptions, LinkInput, Origin, SourceRequest
from ...toolchain.diagnostics import excerpt, first_line, remap, remap_ptx, summary, with_includes
from ...toolchain.nvjitlink import link
from ...toolchain.nvrtc import NvrtcResult, run_nvrtc, supported_targets
from .entries import choose_kernel, describe_kernel, kernels_in
from .prototype import PROBE_SOURCE, probe_expression


def build_source(request: SourceRequest, toolkit_dirs: Sequence[str], headers: Folders | None = None) -> Artifact:
    """Compile and link one request.

    Args:
        request: What to build.
        toolkit_dirs: The toolkit's own header folders, searched last.
        headers: Where the headers of the source and of each link input are read; None for the user's own folders.

    Raises:
        CompileError, LinkError: The compilers refused the source; `.log` has all they said.
        EntryError: The entry is not there, or there are several.
        OptionError: The compilers do not know the target, an option or the signature.
        ToolchainMissingError: A library is not installed.
    """
    start = time.perf_counter()
    if request.kind == "cuda":
        check_target(request.target)
        wanted, result = _compile(request, toolkit_dirs, headers)
    else:
        wanted, result = None, made_before(request)
    cubin, link_log = linked(request, result, toolkit_dirs, headers)
    described = read_cubin(cubin)
    kernel = choose_kernel(request, described, wanted, result.lowered)
    signature = _signature_name(request, toolkit_dirs) if request.signature is not None else None
    entry = describe_kernel(request, kernel, wanted, result.lowered, signature)
    return Artifact(
        kind=request.kind,
        target=request.target,
        entries=(entry._replace(const_bytes=described.const_bytes),),
        cubin=b"" if request.target.virtual else cubin,
        compile_time_s=time.perf_counter() - start,
        extras=extras_of(request, result, link_log),
    )


def link_stored(request: SourceRequest, made: Artifact) -> Artifact:
    """The code for a device of what was compiled to PTX before, as a compile by way of that PTX would give it.

    Raises:
        LinkError: nvJitLink refused it.
        ToolchainMissingError: nvJitLink is not installed.
    """
    start = time.perf_counter()
    result = NvrtcResult(True, made.log, {"ptx": made.ptx})
    cubin, link_log = linked(request, result, (), None)
    described = read_cubin(cubin)
    kernels = {each.symbol: each for each in described.kernels}
    entries = tuple(
        each._replace(
            registers=kernels[each.symbol].registers,
            shared_bytes=kernels[each.symbol].shared_bytes,
            local_bytes=kernels[each.symbol].local_bytes,
            const_bytes=described.const_bytes,
        )
        for each in made.entries
    )
    return made._replace(
        target=request.target,
        entries=entries,
        cubin=cubin,
        compile_time_s=time.perf_counter() - start,
        extras=extras_of(request, result, link_log),
    )


def made_before(request: SourceRequest) -> NvrtcResult:
    """What a compiler made of the request's source before it came here.

    Raises:
        OptionError: It is a cubin for another target, or none.
    """
    if request.kind == "cubin":
        check_cubin(request.code, request)
    if request.kind == "fatbin" and not request.target.virtual:
        cubin = cubin_in_fatbin(request.code, request.target.cc)  # nvJitLink passes over code that is linked
        if cubin is not None:
            check_cubin(cubin, request)
            return NvrtcResult(True, "", {"cubin": cubin})
    return NvrtcResult(True, "", {request.kind: request.code or request.source.encode()})


def check_cubin(code: bytes, request: SourceRequest) -> None:
    """Refuse what is no cubin, or one that devices of the target do not load.

    Raises:
        OptionError: It is so.
    """
    try:
        made_for = read_cubin(code).sm
    except ValueError as error:
        raise OptionError(f"cannot use {request.label} as a cubin", str(error)) from None
    target = request.target
    if target.virtual or not Target(*divmod(made_for, 10)).runs_on(target.cc):
        raise OptionError(
            f"cannot use {request.label} for {target}",
            f"it is a cubin for sm_{made_for}",
            f"give the cubin for {target}, or PTX or LTO-IR, which is linked for any",
        )


def extras_of(request: SourceRequest, result: NvrtcResult, link_log: str) -> dict[str, bytes]:
    """What is kept beside the cubin: the compilers' words, and the PTX where it is wanted."""
    log = "\n".join(filter(None, (result.log, link_log)))
    extras = {"log": log.encode()} if log else {}
    if result.code.get("ptx") and (request.options.keep_ptx or request.target.virtual):
        extras["ptx"] = result.code["ptx"].rstrip(b"\0")
    return extras


def check_target(target: Target) -> None:
    """Refuse a target that the installed NVRTC does not compile for.

    Raises:
        UnknownTargetError: It is not among NVRTC's.
    """
    known = supported_targets()
    if target.major * 10 + target.minor not in known:
        raise UnknownTargetError(
            f"cannot compile for {target}",
            f"the installed NVRTC compiles for {', '.join(f'sm_{each}' for each in known)}",
            "an older one needs the cu12 extra, a newer one a newer NVRTC",
            Target(*divmod(max(known), 10)),
        )


def _compile(
    request: SourceRequest, toolkit_dirs: Sequence[str], headers: Folders | None
) -> tuple[str | None, NvrtcResult]:
    """The entry's name if it is known by now, and what NVRTC made of it."""
    wanted = request.name
    if wanted is None:
        names = kernels_in(request.source)
        wanted = request.guess if request.guess in names else names[0] if len(names) == 1 else None
    if wanted is not None:
        result = run_once(request, toolkit_dirs, headers, (wanted, probe_expression(wanted)))
        if result.ok:
            return wanted, result
    plain = run_once(request, toolkit_dirs, headers)
    if not plain.ok:
        raise refused(request, plain.log, toolkit_dirs)
    if wanted is not None and "<" in wanted:
        raise EntryError(
            f"cannot find the kernel {wanted!r} in {request.label}",
            summary(result.log),
            f"the source has {', '.join(kernels_in(request.source)) or 'none'}",
        )
    alone = _only_kernel(plain)
    if request.name is None and alone and wanted is None and not alone.startswith("_Z"):
        return _compile(request._replace(name=alone), toolkit_dirs, headers)  # extern "C": its types need the probe
    return wanted, plain


def run_once(
    request: SourceRequest, toolkit_dirs: Sequence[str], headers: Folders | None, expressions: Sequence[str] = ()
) -> NvrtcResult:
    """What NVRTC makes of the request's source; with name expressions, also of the probe that tells types."""
    source = _with_lines(request) + (PROBE_SOURCE if expressions else "")
    headers = headers or Folders()
    flags, program = _nvrtc_flags(request, toolkit_dirs, headers), _program_name(request, headers)
    return headers.run(None, source, program, flags, _outputs(request), expressions)


def _program_name(request: SourceRequest, headers: Folders | None = None) -> str:
    """What NVRTC calls the source. Where files are included, with the folder in which quoted names are looked for.

    Nowhere else: `__FILE__` and assert would put the folder into the code.
    """
    name = f"{re.sub(r'[^A-Za-z0-9_]', '_', request.name or request.guess or 'kernel')}.cu"
    folder = request.options.base_dir
    return os.path.join(headers.folder(folder) if headers else folder, name) if request.asks_files else name


def _only_kernel(result: NvrtcResult) -> str | None:
    """The symbol of the single kernel that NVRTC emitted, where there is just one."""
    kernels = read_cubin(result.code["cubin"]).kernels if result.code.get("cubin") else ()
    return kernels[0].symbol if len(kernels) == 1 else None


def refused(request: SourceRequest, log: str, toolkit_dirs: Sequence[str]) -> CompileError:
    """The error for a source that NVRTC refused with this log; raised at once where an option is at fault."""
    program = _program_name(request)
    folders = [each for each in (request.options.base_dir, *request.options.include_dirs, *toolkit_dirs) if each]
    log = remap(log, program, request.source, request.origin)
    log = with_includes(log, request.source, request.origin, program, folders)
    if re.search(r"(?m)^(?:nvrtc: error: |Command-line error)", log):
        what = f"cannot compile {request.label} for {request.target}"
        raise OptionError(what, summary(log), "see the NVRTC User Guide for its targets and flags")
    hint = "name the file that defines it in link=" if "Unresolved extern" in log else ""
    if re.search(r"(?m)^\s*\.version\s+\d", request.source):
        hint = "this is PTX: say kind='ptx'"
    return CompileError(f"cannot compile {request.label} for {request.target}", excerpt(log), hint, log)


def _with_lines(request: SourceRequest) -> str:
    """The source; where line tables are wanted, under the user's own file and line.

    Nowhere else: `#line` would put the user's line numbers into the code through __LINE__ and assert.
    """
    if not (request.options.lineinfo or request.options.debug):
        return request.source
    start = first_line(request.source, request.origin)
    if start is None:
        return request.source
    return f'#line {start} "{request.origin.path}"\n{request.source}'


def _nvrtc_flags(request: SourceRequest, toolkit_dirs: Sequence[str], headers: Folders | None = None) -> list[str]:
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
        (options.fast_compile, f"--Ofast-compile={options.fast_compile}"),
    ):
        if wanted:
            flags.append(flag)
    headers = headers or Folders()
    flags += headers.flags(options.flags)
    folders = [*map(headers.folder, filter(None, (options.base_dir, *options.include_dirs))), *toolkit_dirs]
    return flags + [f"-I{folder}" for folder in folders]


def _outputs(request: SourceRequest) -> tuple[str, ...]:
    if request.options.lto:
        return ("ltoir",)
    return ("ptx",) if request.ptx_target or request.target.virtual else ("cubin", "ptx")


def linked(
    request: SourceRequest, result: NvrtcResult, toolkit_dirs: Sequence[str], headers: Folders | None
) -> tuple[bytes, str]:
    """The cubin and the linker's log, from what NVRTC or the user's own compiler made. A virtual target is linked for
    its own compute capability: nothing else says what its kernels take."""
    if result.code.get("cubin") and not request.link:
        return result.code["cubin"], ""
    kind = next(each for each in ("ltoir", "cubin", "fatbin", "ptx") if each in result.code)
    arch = Target(request.target.major, request.target.minor, request.target.suffix)
    inputs = [LinkInput(kind, f"{request.label}.{kind}", result.code[kind])]
    inputs += [_linkable(each, request, toolkit_dirs, headers) for each in request.link]
    lto = any(each.kind == "ltoir" for each in inputs)
    try:
        return link(inputs, arch.name, link_flags(request.options, lto))
    except LinkError as error:
        if request.kind != "ptx":
            raise
        log = remap_ptx(error.log, request.source, request.origin)
        raise LinkError(error.what, excerpt(log), error.hint, log) from None


def _linkable(
    item: LinkInput, request: SourceRequest, toolkit_dirs: Sequence[str], headers: Folders | None
) -> LinkInput:
    """The input as the linker takes it: CUDA C++ is compiled first, with the kernel's own options."""
    if item.kind != "cu":
        return item
    headers = headers or Folders()
    flags = _nvrtc_flags(
        request._replace(options=request.options._replace(base_dir=item.folder), link=(item,)), toolkit_dirs, headers
    )
    kind = "ltoir" if request.options.lto else "cubin"
    program = os.path.join(headers.folder(item.folder), item.name) if request.asks_files else item.name
    result = headers.run(item, item.data.decode(), program, flags, (kind,))
    if not result.ok:
        log = remap(
            result.log, headers.map_back(program), "", Origin(os.path.join(item.folder, item.name), is_whole_file=True)
        )
        raise CompileError(f"cannot compile the link input {item.name}", excerpt(log), "", log)
    return LinkInput(kind, item.name, result.code[kind])


def link_flags(options: CompileOptions, lto: bool = False) -> list[str]:
    """The options as nvJitLink takes them."""
    flags = [f"-O{options.opt}" if options.opt in (0, 3) else f"-Xptxas=-O{options.opt}"]  # its own are these two
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


def _signature_name(request: SourceRequest, toolkit_dirs: Sequence[str]) -> str:
    """The mangled name of a function type with the user's signature, seen from the source's own types."""
    headers = (("half", "cuda_fp16.h"), ("bfloat16", "cuda_bf16.h"), ("fp8", "cuda_fp8.h"))
    signature = request.signature or ""
    includes = "".join(f"#include <{header}>\n" for word, header in headers if word in signature)
    source = request.source if request.kind == "cuda" else includes
    expression = probe_expression(f"void({signature})", is_type=True)
    flags = _nvrtc_flags(request, toolkit_dirs)
    result = run_nvrtc(source + PROBE_SOURCE, _program_name(request), flags, (), (expression,))
    if not result.ok:
        raise OptionError(
            f"cannot read signature={signature!r} of {request.label}",
            summary(result.log),
            "write C++ types: 'float, int*'",
        )
    return result.lowered[expression]
