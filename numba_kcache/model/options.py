"""Read the compile options that a user gave.

Promise     An option that the kind of kernel does not take, or an invalid value, is an `OptionError` at
            decoration. Paths in the result are absolute.
Not here    The flag of NVRTC or nvJitLink for an option (frontends.source.build), the form of options in a key
            (frontends.source), and the effects of raw flags (flags).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import OptionError
from . import CompileOptions
from .flags import SWITCHES, divided
from .text import check_text, meant, plain

STANDARDS = ("c++03", "c++11", "c++14", "c++17", "c++20", "c++23")
"""Language standards that NVRTC knows (NVRTC User Guide, "Language Options", --std)."""

_REFUSED_FLAGS = {
    **dict.fromkeys(("arch", "gpu-architecture", "code", "gencode", "generate-code"), "use arch="),
    "time": "it writes a file beside the code",
    "fdevice-time-trace": "it writes a file beside the code",
    "pch": "NVRTC does not notice edited headers in a precompiled one",
    "create-pch": "NVRTC does not notice edited headers in a precompiled one",
    "use-pch": "NVRTC does not notice edited headers in a precompiled one",
    "pch-dir": "NVRTC does not notice edited headers in a precompiled one",
    "I": "name a folder behind it",
    "include-path": "name a folder behind it",
    "dlto": "use lto=True",
    "dlink-time-opt": "use lto=True",
    "modify-stack-limit": "it would change the stack limit of the whole process",
    **dict.fromkeys(
        ("Xcompiler", "compiler-options", "keep", "cubin", "ptx", "fatbin", "resource-usage", "ccbin", "x", "o"),
        "nvcc takes it, and NVRTC does not: leave it out",
    ),
}
"""Flags that are refused, without their one or two dashes, and the reason."""

_WORDS_OF_OTHERS = {
    "enable_cooperative_groups": "write cooperative=True",
    "name_expressions": "write cached_module(source, names=[...]), or name= for one kernel",
    "code": "pass the source before the options; for a target write arch=",
    "path": "pass a pathlib.Path in place of the source",
    "backend": "leave it out: NVRTC compiles",
    "nvcc": "leave it out: NVRTC compiles",
    "jitify": "leave it out: the toolkit's headers and CCCL are found without it",
    "translate_cucomplex": "leave it out, and include <cuComplex.h> or <cuda/std/complex>",
    "no_extern_c": "leave it out: nothing is added to the source",
    "keep": "leave it out: numba-kcache show KEY has the code",
    "cache_dir": "write cache=KernelCache(folder), or set NUMBA_KCACHE_DIR",
    "use_fast_math": "write fastmath=True",
    "maxrregcount": "write max_registers=",
    "shared_mem": "pass it at the launch: kernel[grid, block, 0, shared_mem]",
    "device": "leave it out: it is for functions in Python",
    "inline": "leave it out: it is for functions in Python",
}
"""Options of CuPy's RawKernel and RawModule, PyCUDA's SourceModule and cuda.jit, and what to write here."""

_MACRO = r"[A-Za-z_$][\w$]*(?:\([^()]*\))?\Z"


OTHERS = (
    "name", "arch", "kind", "signature", "link", "depends", "strict", "strided", "cache", "cooperative", "cluster",
    "max_dynamic_shared", "carveout",
)  # fmt: skip
"""Keywords of the decorators that are not compile options; suggested for a misspelt name."""


def hint_for_function(name: str, known: Sequence[str]) -> str:
    """The hint for an option that a kernel of a Python function does not take."""
    of_source = "CUDA C++ does: annotate the function `-> str`; " if name in _BY_KIND["cuda"] else ""
    return f"{of_source or meant(name, known)}it takes {', '.join(known)}"


def compile_options(kind: str, given: Mapping[str, Any], base_dir: str) -> CompileOptions:
    """Check the compile options that a user gave for a kernel of this kind.

    Args:
        kind: One of `SOURCE_KINDS`.
        given: Options as keywords of `cached_kernel`; None means the default.
        base_dir: Absolute folder that relative include paths start from.

    Raises:
        OptionError: An option is not for this kind, of another type, or out of range.
    """
    chosen: dict[str, Any] = {}
    for name, value in _with_folders(given).items():
        if name not in _BY_KIND[kind]:
            raise OptionError(
                f"cannot use option {name!r} here",
                f"a kernel of kind {kind!r} does not take it",
                _WORDS_OF_OTHERS.get(name)
                or f"{meant(name, [*_BY_KIND[kind], *OTHERS])}"
                f"it takes {', '.join(sorted(_BY_KIND[kind])) or 'no compile options: its code is made'}",
            )
        if value is not None:
            read = _READERS[name](name, value, base_dir)
            chosen["flags" if name == "options" else name] = read
            for text in _texts(read):
                check_text(text, f"{name}={value!r}", is_decoded=name == "include_dirs")
    made = CompileOptions(**chosen, base_dir=base_dir)
    if made.debug and made.opt in (1, 2) and "dopt" not in str(made.flags):
        raise _refuse("opt", made.opt, "ptxas optimises no code with debug=True", "leave out opt")
    return made


def _with_folders(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Take the folders of `-I` and the level of `-O` out of the raw flags, as the options that they stand for."""
    flags = given.get("options")
    if not isinstance(flags, (list, tuple)) or not all(isinstance(each, str) for each in flags):
        return given
    rest: list[str] = []
    folders: list[str] = []
    levels: list[int] = []
    for elements, name, value in divided(flags):
        if name in ("I", "include-path") and value:
            folders.append(value.strip())
        elif re.fullmatch("-O[0-3]", elements[0]):
            levels.append(int(name[1]))
        else:
            rest += elements
    own = given.get("include_dirs") or ()
    is_list = isinstance(own, (list, tuple))
    found = {**given, "options": rest}
    found |= {"include_dirs": [*own, *folders]} if folders and is_list else {}
    return found | ({"opt": levels[-1]} if levels and given.get("opt") is None else {})


def _texts(value: Any) -> list[str]:
    """The texts in the value of an option."""
    if isinstance(value, str):
        return [value]
    return [text for each in value for text in _texts(each)] if isinstance(value, tuple) else []


def _refuse(name: str, value: object, why: str, hint: str = "") -> OptionError:
    return OptionError(f"cannot use {name}={value!r}", why, hint)


def _bool(name: str, value: Any, _base: str) -> bool:
    if type(value) is not bool:
        raise _refuse(name, value, f"it is a {type(value).__name__}", "write True or False")
    return value


def _std(name: str, value: Any, _base: str) -> str:
    if value not in STANDARDS:
        raise _refuse(name, value, "NVRTC does not know it", f"choose from {', '.join(STANDARDS)}")
    return plain(value)


def _defines(name: str, value: Any, _base: str) -> tuple[tuple[str, str | None], ...]:
    if not isinstance(value, Mapping):
        raise _refuse(name, value, "it is not a mapping", "write defines={'TILE': 32, 'FAST': None}")
    pairs = []
    for macro, text in value.items():
        if not (isinstance(macro, str) and re.match(_MACRO, macro, re.ASCII)):
            raise _refuse(name, value, f"{macro!r} is not the name of a macro", "write defines={'TILE': 32}")
        if not (text is None or isinstance(text, str) or type(text) is int):
            raise _refuse(name, value, f"{macro} is a {type(text).__name__}", "give str, int or None")
        pairs.append((plain(macro), None if text is None else plain(text) if isinstance(text, str) else str(text)))
    return tuple(pairs)


def _include_dirs(name: str, value: Any, base: str) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise _refuse(name, value, "it is not a list of folders", f"write include_dirs={[value]}")
    folders = []
    for path in value:
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(text, str):
            raise _refuse(name, value, f"{path!r} is not a path", "write include_dirs=['include']")
        folders.append(os.path.join(base, os.path.expanduser(text)))
    return tuple(folders)


def _max_registers(name: str, value: Any, _base: str) -> int:
    if type(value) is not int or not 16 <= value <= 255:
        raise _refuse(name, value, "registers per thread are 16 to 255", "write max_registers=64")
    return value


def _opt(name: str, value: Any, _base: str) -> int:
    if type(value) is not int or not 0 <= value <= 3:
        raise _refuse(name, value, "optimisation levels are 0, 1, 2 and 3", f"write opt={0 if value is False else 3}")
    return value


def _flags(name: str, value: Any, _base: str) -> tuple[str, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        flags = value.split() if isinstance(value, str) else [value]
        raise _refuse(name, value, "it is not a list of flags", f"write options={flags}")
    hint, may_be_value = "flags begin with -: options=['--restrict']", False
    for each in value:
        if not isinstance(each, str):
            raise _refuse(name, each, "it is not an NVRTC flag", hint)
    for (flag, *_), word, given in divided(value):
        why = "use link=" if re.match("-l(?!ineinfo)|-L", flag) else _REFUSED_FLAGS.get(word.split(" ")[0])
        if why:
            raise _refuse(name, flag, "this flag is not accepted", why)
        if flag[:1] != "-" and not may_be_value:
            raise _refuse(name, flag, "it is not an NVRTC flag", hint)
        may_be_value = flag[:1] == "-" and given is None and word not in SWITCHES  # of a flag of a newer NVRTC
    return tuple(map(plain, value))


_READERS = {
    "fastmath": _bool, "std": _std, "defines": _defines, "include_dirs": _include_dirs,
    "max_registers": _max_registers, "lineinfo": _bool, "debug": _bool, "lto": _bool, "opt": _opt,
    "options": _flags, "keep_ptx": _bool,
}  # fmt: skip
_BY_KIND = {
    "cuda": {*_READERS},
    "ptx": {"max_registers", "lineinfo", "debug", "opt", "keep_ptx"},
    "cubin": set[str](),
    "fatbin": {"max_registers", "lineinfo", "debug", "opt"},
    "ltoir": {"fastmath", "max_registers", "lineinfo", "debug", "opt"},
}
