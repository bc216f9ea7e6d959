"""Give a hint if a compile failed for a missing header or an undeclared name: what to write or to install.

Method      NVRTC has no headers of the host compiler. CCCL has the device versions of C++ library headers under
            `cuda/std/`, so a header is looked up there. NVIDIA's other headers are known by name and package.
            All others count as the user's own, for which the hint lists the folders searched.
Source      The wheels of CUDA 13.5 and 12.9; NVRTC User Guide, "Language", for what is built in.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

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

_TYPES = {"cuda/std/cstdint": r"u?int(_fast|_least)?(8|16|32|64)_t|u?int(ptr|max)_t|U?INT(8|16|32|64)_(MAX|MIN|C)",
          "cuda/std/climits": r"(CHAR|U?S?CHAR|U?SHRT|U?INT|U?LONG|U?LLONG)_(MAX|MIN|BIT)",
          "cuda/std/cfloat": r"(FLT|DBL|LDBL)_\w+", "cuda/std/cmath": "INFINITY|NAN|HUGE_VAL"}  # fmt: skip


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
    first = next((line for line in log.splitlines() if re.search(r"\): (?:catastrophic )?error:", line)), "")
    if "/thrust/" in first.partition("(")[0]:
        return "most of Thrust is for nvcc alone: <cuda/std/complex>, <cuda/std/tuple> and others work under NVRTC"
    if found := re.search(r'identifier "(\w+)" is undefined', first):
        for header, names in _TYPES.items():
            if re.fullmatch(names, found[1]) and _has(toolkit_folders, header):
                return f"write #include <{header}>"
    if found := re.search(r'namespace "std" has no (?:actual )?member (?:class )?"(\w+)"', first):
        return f"the library of device code is cuda::std: write cuda::std::{found[1]} and include its header"
    if re.search(r'"std" (?:is undefined|is not a )|name must be a namespace', first):
        return "the library of device code is cuda::std: write #include <cuda/std/...> and cuda::std::..."
    return ""


def _has(folders: Sequence[str], name: str) -> bool:
    return any(os.path.isfile(os.path.join(each, name)) for each in folders)


def _for_header(
    asker: str, name: str, is_quoted: bool, own_folders: Sequence[str], toolkit_folders: Sequence[str]
) -> str:
    stem = name.removesuffix(".h")
    known = _BUILT_IN.get(name)
    names = (_OTHER_NAMES.get(name, name), f"c{stem}") if name.endswith(".h") else (_OTHER_NAMES.get(name, name),)
    device = next((f"cuda/std/{each}" for each in names if _has(toolkit_folders, f"cuda/std/{each}")), None)
    if device is not None:
        without = f"; {known} {'are' if ' and ' in known else 'is'} available without it" if known else ""
        return f"write #include <{device}>, whose names are in cuda::std{without}"
    if known is not None:
        return f"leave the line out: {known} {'are' if ' and ' in known else 'is'} available without it"
    has_cccl = _has(toolkit_folders, "cuda/std/cstdint")
    if has_cccl and re.match(_OF_THE_HOST, name):
        return "leave the line out: this header is for host code, and NVRTC compiles device code alone"
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
