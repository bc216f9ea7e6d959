"""Parse a user's raw NVRTC flags: find the headers and macros that they add to a compile beyond their own text.

Promise     A flag is accepted only if its effect is known: it depends on its text alone, which is in the key, or its
            further inputs are returned. All others are `unknown`, with the reason, as one that names a file of options.
Method      Two tables: NVRTC's flags, and those that it passes on to ptxas. NVRTC takes a flag's value after "=" or as
            the next element, for -D and -U also directly after the flag; the value of -Xptxas is a flag for ptxas.
Not here    Flags that are refused at decoration (model.options), and dependencies of included files (headers).
Source      NVRTC User Guide, "Supported Compile Options"; CUDA Binary Utilities and nvcc, "Ptxas Options"; checked with
            NVRTC 13.5 by tests/unit/test_flags.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from ...model import NamedTuple
from ...settings import variables, working_directory

_SWITCHES = frozenset((
    "--device-c", "-dc", "--device-w", "-dw", "--extensible-whole-program", "-ewp", "--device-debug", "-G",
    "--generate-line-info", "-lineinfo", "--use_fast_math", "-use_fast_math", "--extra-device-vectorization",
    "-extra-device-vectorization", "--gen-opt-lto", "-gen-opt-lto", "--optix-ir", "-optix-ir", "--no-cache",
    "-no-cache",
    "--no-source-include", "-no-source-include", "--disable-warnings", "-w", "--restrict", "-restrict",
    "--device-as-default-execution-space", "-default-device", "--device-int128", "-device-int128", "--device-float128",
    "-device-float128", "--display-error-number", "-err-no", "--no-display-error-number", "-no-err-no",
    "--fdevice-syntax-only", "-fdevice-syntax-only", "--minimal", "-minimal",
))  # fmt: skip
"""Flags of NVRTC that take no value."""

_VALUED = frozenset((
    "--relocatable-device-code", "-rdc", "--dopt", "-dopt", "-Ofc", "--maxrregcount", "-maxrregcount", "--ftz", "-ftz",
    "--prec-sqrt", "-prec-sqrt", "--prec-div", "-prec-div", "--fmad", "-fmad", "--jump-table-density", "-jtd",
    "--device-stack-protector", "-device-stack-protector", "--frandom-seed", "-frandom-seed", "--define-macro", "-D",
    "--undefine-macro", "-U", "--pre-include", "-include", "--std", "-std", "--builtin-move-forward",
    "-builtin-move-forward", "--builtin-initializer-list", "-builtin-initializer-list", "--optimization-info",
    "-opt-info",
    "--diag-error", "-diag-error", "--diag-suppress", "-diag-suppress", "--diag-warn", "-diag-warn",
    "--brief-diagnostics", "-brief-diag", "--split-compile", "-split-compile", "--ptxas-options", "-Xptxas",
))  # fmt: skip
"""Flags of NVRTC that take a value."""

_OF_LINKING = (
    "--device-c", "-dc", "--relocatable-device-code", "-rdc", "--compile-only", "-compile-only", "-c", "--c",
)  # fmt: skip
"""Flags of NVRTC and ptxas for relocatable code."""

_FOR_PTXAS = ("--ptxas-options", "-Xptxas")
_JOINED = ("-D", "-U")
"""Flags whose value may follow without a separator."""

_PTXAS_SWITCHES = frozenset((
    "verbose", "v", "warn-on-spills", "warn-spills", "warn-on-local-memory-usage", "warn-lmem-usage",
    "warn-on-double-precision-use", "warn-double-usage", "suppress-stack-size-warning", "disable-warnings", "w",
    "warning-as-error", "Werror", "disable-optimizer-constants", "preserve-relocs", "sp-bounds-check", "compile-only",
    "c",
    "extensible-whole-program", "ewp", "return-at-end", "ret-end", "position-independent-code", "pic",
    "disable-smem-reservation", "override-directive-values", "device-debug", "g", "generate-line-info", "lineinfo",
))  # fmt: skip
_PTXAS_VALUED = frozenset((
    "opt-level", "O", "maxrregcount", "def-load-cache", "dlcm", "def-store-cache", "dscm", "fmad",
    "allow-expensive-optimizations", "minnctapersm", "maxntid", "device-function-maxrregcount", "func-maxrregcount",
    "jump-table-density", "jtd", "split-compile",
))  # fmt: skip


class RawFlags(NamedTuple):
    """The effects of a list of flags.

    Args:
        unknown: Reason why they cannot be keyed; "" if they can.
        forced: Files that they include before the text, in order.
        definitions: Macros that they define; None means no value.
        is_relocatable: Whether they may ask for relocatable code.
    """

    unknown: str = ""
    forced: tuple[str, ...] = ()
    definitions: tuple[tuple[str, str | None], ...] = ()
    is_relocatable: bool = False


def read_flags(flags: Sequence[str]) -> RawFlags:
    """Read flags as NVRTC does."""
    unknown, is_relocatable = "", False
    forced: list[str] = []
    definitions: list[tuple[str, str | None]] = []
    for_ptxas: list[str] = []
    rest = iter(flags)
    for flag in rest:
        name, equals, value = flag.partition("=")
        if flag in _SWITCHES:
            is_relocatable |= flag in _OF_LINKING
            continue
        if name not in _VALUED and flag[:2] in _JOINED:
            name, equals, value = flag[:2], "=", flag[2:]
        if name not in _VALUED:
            unknown = unknown or _unknown(flag)
            continue
        if not equals:
            value = next(rest, "")
            if value == "" or (value.startswith("-") and name not in _FOR_PTXAS):
                unknown = unknown or f"the flag {flag} takes what follows it as its value: {value!r}"
        if name in ("--split-compile", "-split-compile") and not value.strip("0 "):
            unknown = unknown or _of_processors(flag)
        is_relocatable |= name in _OF_LINKING and value != "false"
        if name in ("--pre-include", "-include"):
            forced.append(value)
        elif name in ("--define-macro", "-D"):
            macro, has_value, text = value.partition("=")
            definitions.append((macro.strip(), text if has_value else None))
        elif name in _FOR_PTXAS:
            for_ptxas.append(value)
    unknown = unknown or _unknown_to_ptxas(for_ptxas)
    is_relocatable |= bool(unknown) or any(value in _OF_LINKING for value in for_ptxas)
    return RawFlags(unknown, tuple(forced), tuple(definitions), is_relocatable)


def _unknown_to_ptxas(flags: Sequence[str]) -> str:
    """The reason why elements for ptxas cannot be keyed; "" if they can."""
    rest = iter(flags)
    for flag in rest:
        name, equals, value = flag.partition("=")
        word = name.removeprefix("-").removeprefix("-") if name.startswith("-") else ""
        if not equals and (word in _PTXAS_SWITCHES or (name.startswith("-O") and name[2:].isdigit())):
            continue
        if not equals:
            value = next(rest, "")
        if word not in _PTXAS_VALUED:
            return _unknown(flag)
        if word == "split-compile" and not value.strip("0 "):
            return _of_processors(flag)
    return ""


def _of_processors(flag: str) -> str:
    return f"the flag {flag} makes the code depend on the number of processors"


def _unknown(flag: str) -> str:
    return f"the effect of the flag {flag} is not known; depends=[...] can name what it reads"


def working_folder() -> str:
    """Return the folder that NVRTC puts before relative paths in line tables: $PWD if that is the working directory.

    Source: LLVM, `sys::fs::current_path`: PWD, if it leads to the folder that this process is in.
    """
    named = variables(("PWD",)).get("PWD", "")
    try:
        if os.path.isabs(named) and os.path.samestat(os.stat(named), os.stat(".")):
            return named
    except (OSError, ValueError):
        pass
    return working_directory()
