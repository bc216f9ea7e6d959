"""Generate docs/reference/options.md: each option and setting with its type, default, meaning and an example.

`python -m tests.support.options_page` writes it. Types come from the annotations of the code, the settings' defaults
and meanings from `SETTINGS`; those of the options, and the examples, are written here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ForwardRef

from numba_kcache.frontends import options
from numba_kcache.settings import SETTINGS, Settings
from tests.support.compiling import ROOT

PAGE = ROOT / "docs" / "reference" / "options.md"

SOURCE_OPTIONS = {
    "name": (
        "found",
        (
            'entry in the source, template instances included: `"axpy<float>"`. Default: the function\'s name if '
            "the source defines it, else the only `__global__`"
        ),
        "cached_kernel(SOURCE, name='scale')",
    ),
    "arch": (
        '`"auto"`',
        (
            '`"auto"` or `"native"`: the current device, with its suffix from 9.0 on; `"sm_90"`, `"sm_90a"`, `(9, '
            '0)`, `9.0`, `"9.0"`, `"90"`: exactly that; `"compute_80"`: PTX, linked for the device '
            '(`compile("sm_90")` links it ahead for one); a list: all of them when compiled ahead, the best one '
            "when launched"
        ),
        "cached_kernel(SOURCE, arch=['sm_80', 'sm_90a', 'compute_90'])",
    ),
    "kind": (
        "detected",
        "the kind of kernel, if it is not detected or is detected wrongly",
        "cached_kernel(SOURCE.encode(), kind='cuda')",
    ),
    "fastmath": (
        "`False`",
        (
            "faster and less exact arithmetic: division, square roots and functions in their approximate forms, "
            "denormals as zero"
        ),
        "cached_kernel(SOURCE, fastmath=True)",
    ),
    "lineinfo": ("`False`", "line numbers for profilers, at no cost in speed", "cached_kernel(SOURCE, lineinfo=True)"),
    "debug": (
        "`False`",
        "code for a debugger, unoptimised: `opt=1` and `opt=2` are refused",
        "cached_kernel(SOURCE, debug=True)",
    ),
    "lto": (
        "`False`",
        "compile to LTO-IR and optimise at link time, across the kernel and its `link` inputs",
        "cached_kernel(SOURCE, lto=True)",
    ),
    "std": ("NVRTC's", 'the language standard: `"c++17"`, `"c++20"`', "cached_kernel(SOURCE, std='c++20')"),
    "defines": (
        "none",
        "macros: a mapping of names to `str`, `int` or `None`",
        "cached_kernel(SOURCE, defines={'TILE': 32, 'FAST': None, 'REAL': 'double'})",
    ),
    "include_dirs": (
        "none",
        "folders that are searched for headers",
        "cached_kernel(SOURCE, include_dirs=['include', '../common'])",
    ),
    "max_registers": ("none", "registers per thread, 16 to 255", "cached_kernel(SOURCE, max_registers=64)"),
    "opt": (
        "3",
        "level of optimisation of ptxas and of the linker; a level in `options` (`-O2`) counts only without it",
        "cached_kernel(SOURCE, opt=1)",
    ),
    "options": (
        "none",
        (
            "raw NVRTC flags, in this order; `-I` and `-O` stand for `include_dirs` and `opt`; a flag whose "
            "effect the cache does not know makes the kernel uncacheable unless `depends=` declares what the flag "
            "reads; `--Ofast-compile=max` takes less time to compile and gives slower code"
        ),
        "cached_kernel(SOURCE, options=['--restrict', '--diag-suppress=177'])",
    ),
    "link": (
        "none",
        "`.cu`, `.ptx`, `.ltoir`, `.o`, `.a`, `.fatbin`, `.cubin` files or `numba.cuda` LinkableCode",
        "cached_kernel(SOURCE, link=['noise.cu', 'libtables.a'])",
    ),
    "signature": (
        "the compiler's prototype",
        (
            'types of the parameters in C++, `"float, const float*, int"`: checked against the source; PTX has no '
            "types of its own"
        ),
        "cached_kernel(SOURCE, signature='float*, float')",
    ),
    "depends": (
        "none",
        "additional inputs of the key: plain values, or Paths of files (CUDA C++: and folders), whose content counts",
        "cached_kernel(SOURCE, depends=[VERSION, Path('table.bin')])",
    ),
    "keep_ptx": ("`True`", "store the PTX beside the cubin", "cached_kernel(SOURCE, keep_ptx=False)"),
    "strict": (
        "`False`",
        "raise `UncacheableError` instead of running a kernel uncached",
        "cached_kernel(SOURCE, strict=True)",
    ),
    "strided": ("`False`", "accept arrays that are not contiguous", "cached_kernel(SOURCE, strided=True)"),
    "cooperative": (
        "`False`",
        "all blocks run at once, so that the grid can synchronise; a grid that does not fit is refused",
        "cached_kernel(SOURCE, cooperative=True)",
    ),
    "cluster": (
        "the source's",
        (
            "extents of a cluster in blocks, one to three integers, at most 16 blocks together; the grid must "
            "consist of whole clusters, and `.forall` rounds up"
        ),
        "cached_kernel(SOURCE, cluster=(2, 1, 1))",
    ),
    "max_dynamic_shared": (
        "0",
        (
            "bytes of dynamic shared memory per block, allowed when the kernel is loaded; without it they are "
            "allowed at the first launch that needs them"
        ),
        "cached_kernel(SOURCE, max_dynamic_shared=96 * 1024)",
    ),
    "carveout": (
        "the driver's",
        'percentage of L1 to use as shared memory, -1 to 100, or `"default"`, `"MaxL1"`, `"MaxShared"`',
        "cached_kernel(SOURCE, carveout='MaxShared')",
    ),
    "cache": (
        "the process's",
        "the `KernelCache` that stores the kernel",
        "cached_kernel(SOURCE, cache=KernelCache('kernels'))",
    ),
}
"""Default, meaning and an example of each option of a source."""

OF_NUMBA = {
    "inline": ("whether LLVM may inline the kernel's callees", "cached_kernel(add, inline='never')"),
    "forceinline": ("the device function is inlined into its callers", "cached_kernel(add, forceinline=True)"),
    "launch_bounds": ("threads per block at most, and blocks per multiprocessor at least",
                      "cached_kernel(add, launch_bounds=(256, 2))"),
    "shared_memory_carveout": ("Numba's name for `carveout`", "cached_kernel(add, shared_memory_carveout=50)"),
    "extensions": ("objects that prepare arguments, as in `cuda.jit`", "cached_kernel(add, extensions=[])"),
    "opt_level": ("level of optimisation, 0 to 3, in place of `opt`", "cached_kernel(add, kind='mlir', opt_level=2)"),
    "ptxas_options": ("flags for ptxas", "cached_kernel(add, kind='mlir', ptxas_options=['--verbose'])"),
    "capi": ("the C calling convention", "cached_kernel(add, kind='mlir', capi=False)"),
    "features": ("PTX features of the target", "cached_kernel(add, kind='mlir', features='+ptx80')"),
    "abi": ("the name and calling convention of the entry", "cached_kernel(add, kind='mlir', abi='c')"),
    "experimental_ast_transforms": ("rewrite the function's syntax before typing. Such a kernel is not stored",
                                    "cached_kernel(add, kind='mlir', experimental_ast_transforms=True)"),
}  # fmt: skip
"""Meaning and example of each option that only Numba kernels take; those from `opt_level` on are numba-cuda-mlir's."""

OF_SETTINGS = {
    "directory": ("'/scratch/ada/kernels'", "/scratch/ada/kernels"),
    "max_size_bytes": ("'2GiB'", "2GiB"),
    "max_entries": ("5000", "5000"),
    "mode": ("'frozen'", "frozen"),
    "toolchain": ("'any'", "any"),
    "shared": ("True", "1"),
    "durability": ("'full'", "full"),
    "build_wait_s": ("30", "30"),
    "debug_launches": ("True", "1"),
    "log_level": ("'info'", "info"),
    "tiers": ("['/opt/kernels', 'redis://cache/0']", "/opt/kernels,redis://cache/0"),
    "trusted_keys": ("{'team': 'MCowBQYDK2VwAyEA...'}", "team=MCowBQYDK2VwAyEA..."),
    "signing_key": ("'kernels.pem'", "kernels.pem"),
    "progress": ("False", "0"),
}
"""An example of each setting: as a keyword, and in the environment."""

HEAD = """# Options and settings, one by one

The types are those that mypy and pyright check. `None` always stands for the default. The examples share these lines:

```python
from pathlib import Path

from numba_kcache import KernelCache, cached_kernel, configure

VERSION = 3
SOURCE = 'extern "C" __global__ void scale(float *x, float by) { x[threadIdx.x] *= by; }'


def add(x, y):
    x[0] += y[0]
```

## Options of `cached_kernel`

`cached_module` and `get_or_compile` take them too, the latter without `cache`.
"""
SETTINGS_HEAD = """## Settings

Keywords of `configure(...)` and `KernelCache(...)`, and environment variables: [table, and meaning of each
value](settings.md).
"""
_PLAIN = {
    "Arch": 'str | tuple[int, int] | list', "Kind": None, "Standard": None, "Cache": "KernelCache",
    "Sequence[Any] | Mapping[Any, Any]": "list | dict",
    "Sequence[Any]": "list", "Sequence[str]": "list[str]", "Sequence[str | os.PathLike[str]]": "list[str | Path]",
    "Folder": "str | Path", "Size": "int | str", "os.PathLike[str]": "Path",
}  # fmt: skip


def kinds(*of: Any) -> dict[str, str]:
    """The type of each keyword of some `TypedDict`s, without this package's type aliases."""
    found: dict[str, str] = {}
    for each in of:
        for name, hint in each.__annotations__.items():
            text = hint.__forward_arg__ if isinstance(hint, ForwardRef) else str(hint)
            text = text.removesuffix(" | None")
            for alias, plain in _PLAIN.items():
                spelt = plain or re.sub(r"typing\.", "", str(getattr(options, alias)))
                text = re.sub(rf"(?<![\w.]){re.escape(alias)}(?![\w\[])", lambda _, spelt=spelt: spelt, text)  # type: ignore[misc]
            found.setdefault(name, text.replace("collections.abc.", ""))
    return found


def meanings() -> dict[str, tuple[str, str]]:
    """Default and meaning of each option."""
    return {name: row[:2] for name, row in SOURCE_OPTIONS.items()}


def entry(name: str, kind: str, default: str, meaning: str, example: str) -> str:
    """The section of one option."""
    sentence = (meaning[:1].upper() + meaning[1:]).rstrip(".")
    return f"### `{name}`\n\n`{kind}` · default: {default}\n\n{sentence}.\n\n```python\n{example}\n```\n"


def page() -> str:
    """The whole page."""
    types = kinds(options.SourceOptions, options.KernelOptions, options.NumbaOptions)
    parts = [HEAD]
    for name, (default, meaning, example) in SOURCE_OPTIONS.items():
        parts.append(entry(name, types[name], default, meaning, _quoted(example)))
    parts.append("## Options of Numba kernels alone\n")
    parts += [
        entry(name, types[name], "Numba's", meaning, _quoted(example)) for name, (meaning, example) in OF_NUMBA.items()
    ]
    parts.append(SETTINGS_HEAD)
    types = kinds(options.ProcessSettings)
    for each in SETTINGS:
        keyword, variable = OF_SETTINGS[each.name]
        meaning = f"{each.meaning[:1].upper()}{each.meaning[1:]}"
        parts.append(
            f"### `{each.name}`\n\n`{types[each.name]}` · default: `{getattr(Settings(), each.name)}`\n\n{meaning}.\n\n"
            f"```text\nconfigure({each.name}={_quoted(keyword)})\nexport {each.variable}={variable}\n```\n"
        )
    return "\n".join(parts)


def _quoted(example: str) -> str:
    return example.replace("'", '"')


def documented(of: Mapping[str, Any]) -> set[str]:
    """The keywords that users write."""
    return {name for name in of if not name.startswith("_")}


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
