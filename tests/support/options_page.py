"""Generate docs/reference/options.md: each option and setting with its type, default, meaning and an example.

`python -m tests.support.options_page` writes it. Types come from the annotations of the code, the options' defaults and
meanings from the table of kernel.md, the settings' from `SETTINGS`. Only the examples, and the options that Numba
kernels alone take, are written here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ForwardRef

from numba_kcache.frontends import options
from numba_kcache.settings import SETTINGS, Settings
from tests.support.compiling import ROOT

PAGE = ROOT / "docs" / "reference" / "options.md"

EXAMPLES = {
    "name": "cached_kernel(SOURCE, name='scale')",
    "arch": "cached_kernel(SOURCE, arch=['sm_80', 'sm_90a', 'compute_90'])",
    "kind": "cached_kernel(SOURCE.encode(), kind='cuda')",
    "fastmath": "cached_kernel(SOURCE, fastmath=True)",
    "lineinfo": "cached_kernel(SOURCE, lineinfo=True)",
    "debug": "cached_kernel(SOURCE, debug=True)",
    "lto": "cached_kernel(SOURCE, lto=True)",
    "std": "cached_kernel(SOURCE, std='c++20')",
    "defines": "cached_kernel(SOURCE, defines={'TILE': 32, 'FAST': None, 'REAL': 'double'})",
    "include_dirs": "cached_kernel(SOURCE, include_dirs=['include', '../common'])",
    "max_registers": "cached_kernel(SOURCE, max_registers=64)",
    "opt": "cached_kernel(SOURCE, opt=1)",
    "fast_compile": "cached_kernel(SOURCE, fast_compile='mid')",
    "options": "cached_kernel(SOURCE, options=['--restrict', '--diag-suppress=177'])",
    "link": "cached_kernel(SOURCE, link=['noise.cu', 'libtables.a'])",
    "signature": "cached_kernel(SOURCE, signature='float*, float')",
    "depends": "cached_kernel(SOURCE, depends=[VERSION, Path('table.bin')])",
    "keep_ptx": "cached_kernel(SOURCE, keep_ptx=False)",
    "strict": "cached_kernel(SOURCE, strict=True)",
    "strided": "cached_kernel(SOURCE, strided=True)",
    "cooperative": "cached_kernel(SOURCE, cooperative=True)",
    "cluster": "cached_kernel(SOURCE, cluster=(2, 1, 1))",
    "max_dynamic_shared": "cached_kernel(SOURCE, max_dynamic_shared=96 * 1024)",
    "carveout": "cached_kernel(SOURCE, carveout='MaxShared')",
    "cache": "cached_kernel(SOURCE, cache=KernelCache('kernels'))",
}
"""An example for each option of a source."""

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
    "experimental_ast_transforms": ("rewrite the function's syntax before typing",
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

`cached_module` and `get_or_compile` take them too; [kernel.md](kernel.md#options) has a table.
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
    """Default and meaning of each option, read from the table of kernel.md."""
    page = (ROOT / "docs/reference/kernel.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", page, re.MULTILINE)
    return {name: (default, meaning) for name, default, meaning in rows}


def entry(name: str, kind: str, default: str, meaning: str, example: str) -> str:
    """The section of one option."""
    sentence = (meaning[:1].upper() + meaning[1:]).rstrip(".")
    return f"### `{name}`\n\n`{kind}` · default: {default}\n\n{sentence}.\n\n```python\n{example}\n```\n"


def page() -> str:
    """The whole page."""
    known, types = meanings(), kinds(options.SourceOptions, options.KernelOptions, options.NumbaOptions)
    known["kind"] = ("detected", "the kind of kernel, if it is not detected or is detected wrongly")
    parts = [HEAD]
    parts += [entry(name, types[name], *known[name], _quoted(example)) for name, example in EXAMPLES.items()]
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
