"""Make errors for what the compilers refuse: a source, a link input, PTX, a signature; in the user's own terms.

Method      The hint for a missing header or an undeclared name says what to write or to install. NVRTC has no headers
            of the host compiler. CCCL has the device versions of C++ library headers under `cuda/std/`, so a header is
            looked up there. NVIDIA's other headers are known by name and package. All others count as the user's own,
            for which the hint lists the folders searched.
Not here    Running the compilers (build), and reading their logs (toolchain.diagnostics).
Source      The wheels of CUDA 13.5 and 12.9; NVRTC User Guide, "Language", for what is built in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from glob import glob

from ...errors import CompileError, LinkError, OptionError, in_cells
from ...model import LinkInput, Origin, SourceInput
from ...model.text import meant
from ...toolchain import installed_include_dirs
from ...toolchain.diagnostics import excerpt, for_user, remap, remap_ptx, summary

_UNRENDERED = (
    r"\{\{[^{};,]*[A-Za-z_][^{};,]*\}\}|\{%.*?%\}|\$\{?[A-Za-z_]\w*\}?"
    r"|%\([A-Za-z_]\w*\)[a-z]|\{[A-Za-z_]\w*\}(?=\s*[*&\w])"
)
"""A mark of Jinja, Mako, `string.Template`, `%` or `str.format` in a source."""


def refused(request: SourceInput, program: str, log: str) -> CompileError:
    """Make the error for a source that NVRTC refused.

    Args:
        request: With the source.
        program: NVRTC's name for the source.
        log: NVRTC's log.

    Raises:
        OptionError: An option is at fault.
    """
    folders = [each for each in (request.options.base_dir, *request.options.include_dirs) if each]
    hint = _hint_for_line(log, program, request.source) or hint_of(log, folders, _toolkit_of(request))
    log = for_user(log, program, request.source, request.origin, request.label)
    if re.search(r"(?m)^(?:nvrtc: error: |Command-line error)", log):
        what = f"cannot compile {request.label} for {request.target}"
        raise OptionError(what, summary(log), "see the NVRTC User Guide for its targets and flags")
    if not re.search(r"__global__|#\s*(?:include|define)", request.source):  # macros and headers may declare kernels
        hint = 'a kernel is written: extern "C" __global__ void name(float *x) { ... }'
    if re.search(r"(?m)^\s*\.version\s+\d", request.source):
        hint = "this is PTX: say kind='ptx'"
    is_placed = re.search(r"(?m)\(\d+\): |^line \d+ of ", log)
    log = in_cells(log, request.origin.path)
    hint = hint or f"correct the {'line that is shown' if is_placed else 'source'}; .log has all that the compiler said"
    log = re.sub(r"\b0x([0-9a-f]+)(?= (?:bytes|max)\b)", lambda size: str(int(size[1], 16)), log)
    return CompileError(f"cannot compile {request.label} for {request.target}", excerpt(log), hint, log)


def _hint_for_line(log: str, program: str, source: str) -> str:
    """The hint for the first line that NVRTC refused, if it is of a template or of an older CUDA; "" for none."""
    found = re.search(rf"(?m)^{re.escape(program)}\((\d+)\): error", log)
    line = source.split("\n")[int(found[1]) - 1 :][:1] if found else []
    if not line:
        return ""
    if re.search(r"\btexture\s*<|\bsurface\s*<", line[0]):
        return "CUDA 12 has no texture references: pass a texture object as a cudaTextureObject_t"
    mark = re.search(_UNRENDERED, line[0])
    if mark is None:
        return ""
    return (
        f"{mark[0].strip()} is of a template that was not rendered: render it, or return it from a function with values"
    )


def refused_input(item: LinkInput, request: SourceInput, program: str, log: str) -> CompileError:
    """Make the error for a link input of CUDA C++ that NVRTC refused; `program` is NVRTC's name for it."""
    log = remap(log, program, "", Origin(os.path.join(item.folder, item.name), is_whole_file=True))
    hint = hint_of(log, [item.folder, *request.options.include_dirs], _toolkit_of(request))
    return CompileError(f"cannot compile the link input {item.name}", excerpt(log), hint, log)


def _toolkit_of(request: SourceInput) -> Sequence[str]:
    return request.toolkit_dirs or installed_include_dirs()


def refused_ptx(request: SourceInput, error: LinkError) -> LinkError:
    """Make the error for PTX that the linker refused; `error` is the linker's."""
    log = in_cells(remap_ptx(error.log, request.source, request.origin), request.origin.path)
    return LinkError(error.what, excerpt(log), error.hint, log)


def no_signature(request: SourceInput, log: str) -> OptionError:
    """Make the error for a signature that NVRTC does not understand."""
    return OptionError(
        f"cannot read signature={request.signature!r} of {request.label}",
        summary(log),
        "write C++ types: 'float, int*'",
    )


# -- hints -------------------------------------------------------------------------------------------------------------

_MISSING = r'(?m)^(\S.*?)\(\d+\): .*?(?:cannot|could not) open source file "([^"]+)".*\n(.*)$'

_BUILT_IN = {
    "stdio.h": "printf", "cstdio": "printf", "assert.h": "assert", "cassert": "assert", "stdbool.h": "bool",
    "string.h": "memcpy and memset", "cstring": "memcpy and memset", "stdlib.h": "malloc and free",
    "cstdlib": "malloc and free", "new": "placement new",
    "math.h": "sinf and similar functions", "cmath": "sinf and similar functions",
    "stddef.h": "size_t", "cstddef": "size_t", "memory.h": "memcpy and memset",
}  # fmt: skip
"""Headers of the host compiler that need not be included, and the names that NVRTC has built in."""

_OTHER_NAMES = {"complex.h": "complex", "stdalign.h": "cstddef", "inttypes.h": "cstdint", "cinttypes": "cstdint"}

_OF_THE_HOST = (
    r"[a-z_]+\Z|(errno|fcntl|fenv|locale|omp|pthread|setjmp|signal|stdint|limits|float|time|unistd|wchar|sys/\w+)\.h\Z"
    r"|(cublas|cufft|cusparse|cusolver|cudnn|nccl|nvml|npp|nvtx|cuda_profiler|cudaProfiler|nvtx3/)"
)
"""Headers of the host compiler (those of the C++ library have no suffix), and of libraries for host code."""

_PACKAGES = (
    (r"crt/", "nvidia-cuda-crt"),
    (r"curand", "nvidia-curand"),
    (r"(cub|thrust|nv|cuda)/", "nvidia-cuda-cccl"),
    (r"mma\.h$|cooperative_groups|(cuda|vector|device|driver|math|sm|surface|texture)_\w+\.h", "nvidia-cuda-runtime"),
)
"""Prefixes of NVIDIA's header names, and the package with them; for CUDA 12 all package names end in `-cu12`."""

_CUDA_12 = {"nvidia-cuda-crt": "nvidia-cuda-nvcc"}

_BY_NAME = (
    (r"u?int(_fast|_least)?(8|16|32|64)_t|u?int(ptr|max)_t|U?INT(8|16|32|64)_(MAX|MIN|C)", "cuda/std/cstdint"),
    (r"(CHAR|U?S?CHAR|U?SHRT|U?INT|U?LONG|U?LLONG)_(MAX|MIN|BIT)", "cuda/std/climits"),
    (r"(FLT|DBL|LDBL)_\w+", "cuda/std/cfloat"), (r"INFINITY|NAN|HUGE_VAL", "cuda/std/cmath"),
    (r"(__)?half2?(_raw)?|__half2?\w+|__\w+2half2?\w*", "cuda_fp16.h"),
    (r"(__)?(nv_)?bfloat162?|__bfloat162?\w*|__\w+2bfloat162?\w*", "cuda_bf16.h"),
    (r"__nv_fp8\w*", "cuda_fp8.h"), (r"cu(Float|Double)?Complex|(make_)?cu(Float|Double)?C\w+", "cuComplex.h"),
    (r"curand\w*", "curand_kernel.h"), (r"CUDART_\w+", "math_constants.h"),
    (r"cooperative_groups", "cooperative_groups.h"), (r"cub", "cub/cub.cuh"), (r"nvcuda|wmma", "mma.h"),
    (r"complex|array|tuple|optional|span", "cuda/std/{0}"), (r"M_PI", "math_constants.h"),
    (r"u?int(8|16|32|64)", "cuda/std/cstdint"),
)  # fmt: skip
"""Patterns of names that a header declares, and the header."""

_RENAMED = {
    "M_PI": "CUDART_PI", "bfloat16": "__nv_bfloat16", "wmma": "nvcuda::wmma",
    **{f"{name}": f"cuda::std::{name}" for name in ("complex", "array", "tuple", "optional", "span")},
    **{f"{u}int{n}": f"{u}int{n}_t" for u in ("", "u") for n in (8, 16, 32, 64)},
}  # fmt: skip
"""Names that are written in another way, with the header."""

_BY_NAME_ALONE = (
    (r"cg", "write #include <cooperative_groups.h> and namespace cg = cooperative_groups;"),
    (r"thrust", "Thrust is for nvcc: in device code use cub:: or cuda::std::, and their headers"),
    (r"std", "the library of device code is cuda::std: write #include <cuda/std/...> and cuda::std::..."),
    (r"vector|string|map|list", "device code has no containers: use an array, of fixed size or given by the caller"),
    (r"True|False|None", "this is Python: write true, false or nullptr"),
    (r"np|numpy|math|cupy|torch", "this is Python: device code has sqrtf, expf, powf and others without a module"),
    (r"cout|cerr|endl|print", "write printf(...), which is available without a header"),
    (r"cuda[A-Z]\w+", "this is a function of the host: call it, or its like in CuPy or Numba, from Python"),
    (r"__(shfl\w*|any|all|ballot)", "write {0}_sync, with the mask of the threads first: 0xffffffff"),
)  # fmt: skip
"""Patterns of names that no header declares, and the hint."""

_BUILT_IN_NAMES = re.findall(
    r"\w+",
    """
threadIdx blockIdx blockDim gridDim warpSize __syncthreads __syncwarp __shared__ __restrict__ __device__
atomicAdd atomicMax atomicMin atomicCAS printf
""",
)

_BY_MESSAGE = (
    (r"too much shared data", "use less, or declare it extern __shared__ and launch kernel[grid, block, 0, bytes]"),
    (r"too much global constant data", "keep __constant__ variables below 64 KiB, and pass the rest as an array"),
    (r"device-side kernel launch", "launch it from Python: kernels that launch kernels need nvcc"),
    (r"expression must have a constant value", "make the size a macro, defines={'N': 1024}, or a template's parameter"),
    (r"considered a host function", "write __device__ before the function, or options=['-default-device']"),
    (r"considered a host variable", "write __device__ or __constant__ before the variable"),
    (r"Not a name of any known instruction|Ptx assembly aborted", "correct the asm statement: it is PTX"),
)  # fmt: skip
"""Patterns of the compilers' messages, the most specific first, and the hint."""


def hint_of(log: str, own_folders: Sequence[str], toolkit_folders: Sequence[str]) -> str:
    """The hint for a failed compile; "" if the log reports neither a missing header nor an undeclared name.

    Args:
        log: NVRTC's log.
        own_folders: The user's include folders, in order.
        toolkit_folders: The toolkit's include folders, which were searched after those.
    """
    if found := re.search(_MISSING, log):
        return _for_header(found[1], found[2], f'"{found[2]}"' in found[3], own_folders, toolkit_folders)
    if "Unresolved extern" in log:
        return "name the file that defines it in link="
    if re.search(r"(?m)^\S*/thrust/.*error:", log):
        return "most of Thrust is for nvcc alone: <cuda/std/complex>, <cuda/std/tuple> and others work under NVRTC"
    of_std = re.findall(r'namespace "std" has no (?:actual )?member (?:class )?"(\w+)"', log)
    for name in (*of_std, *_undeclared(log)):
        if hint := _for_name(name, toolkit_folders):
            return hint
    if of_std:
        return f"the library of device code is cuda::std: write cuda::std::{of_std[0]} and include its header"
    return next((hint for pattern, hint in _BY_MESSAGE if re.search(pattern, log)), "")


def _undeclared(log: str) -> list[str]:
    """List the names that a log reports as unknown: quoted in an error, or marked by the caret below its line."""
    found = re.findall(r'error: (?:identifier )?"(\w+)" is (?:undefined|not a )', log)
    marked = r'error: name (?:followed by "::" must|must be a).*\n(.*)\n( *)\^'
    return found + [
        name[0] for line, space in re.findall(marked, log) if (name := re.match(r"\w+", line[len(space) :]))
    ]


def _for_name(name: str, toolkit_folders: Sequence[str]) -> str:
    """The hint for an undeclared name; "" if nothing is known of it."""
    for pattern, header in _BY_NAME:
        if re.fullmatch(pattern, name):
            header, renamed = header.format(name), f", and {_RENAMED[name]} for {name}" if name in _RENAMED else ""
            if _has(toolkit_folders, header):
                return f"write #include <{header}>{renamed}"
            return f"{_for_header('', header, False, (), toolkit_folders)}, and write #include <{header}>{renamed}"
    for pattern, hint in _BY_NAME_ALONE:
        if re.fullmatch(pattern, name):
            return hint.format(name)
    return meant(name, _BUILT_IN_NAMES).strip()


def _has(folders: Sequence[str], name: str) -> bool:
    return any(os.path.isfile(os.path.join(each, name)) for each in folders)


def _for_header(
    asker: str, name: str, is_quoted: bool, own_folders: Sequence[str], toolkit_folders: Sequence[str]
) -> str:
    known = _BUILT_IN.get(name)
    names = _OTHER_NAMES.get(name, name), f"c{name.removesuffix('.h')}"
    device = next((f"cuda/std/{each}" for each in names if _has(toolkit_folders, f"cuda/std/{each}")), None)
    if device is not None:
        without = f"; {known} {'are' if ' and ' in known else 'is'} available without it" if known else ""
        return f"write #include <{device}>, whose names are in cuda::std{without}"
    if known is not None:
        return f"leave the line out: {known} {'are' if ' and ' in known else 'is'} available without it"
    has_cccl = _has(toolkit_folders, "cuda/std/cstdint")
    if has_cccl and re.match(_OF_THE_HOST, name):
        return "leave the line out: this header is for host code, and NVRTC compiles device code alone"
    there = [each for root in toolkit_folders for each in glob(f"{os.path.dirname(name)}/*".lstrip("/"), root_dir=root)]
    if near := meant(name, there):
        return near.strip()
    if package := next((package for begins, package in _PACKAGES if re.match(begins, name)), ""):
        return f"pip install {_for_release(package, toolkit_folders)}"
    if name.startswith("cupy/"):
        return "pip install cupy-cuda13x: its headers are found where it is installed"
    if name.startswith("pycuda-"):
        return "write #include <cuda/std/complex>, and cuda::std::complex<float> for pycuda::complex<float>"
    if re.match(r"(cutlass|cute)/", name):
        return "pip install nvidia-cutlass, and name its cutlass_library/source/include in include_dirs=[...]"
    if re.match(_OF_THE_HOST, name):
        return f"pip install {_for_release('nvidia-cuda-cccl', toolkit_folders)}, and write #include <cuda/std/...>"
    beside = [os.path.dirname(asker)] if is_quoted and os.path.dirname(asker) else []
    searched = list(dict.fromkeys(each for each in (*beside, *own_folders) if each))
    listed = ", ".join(each if os.path.isdir(each) else f"{each} (there is no such folder)" for each in searched)
    return f"name its folder in include_dirs=[...]; it was looked for in {listed or 'no folder of yours'}" + (
        " and the toolkit's" if toolkit_folders else ""
    )


def _for_release(package: str, toolkit_folders: Sequence[str]) -> str:
    """The name of a package for the CUDA release whose headers are installed."""
    if any("/nvidia/" in each and "/nvidia/cu13/" not in f"{each}/" for each in toolkit_folders):
        return f"{_CUDA_12.get(package, package)}-cu12"
    return package
