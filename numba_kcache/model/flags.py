"""Read a user's raw NVRTC flags: their names and values, and the headers and macros that they add to a compile.

Promise     A flag is accepted only if its effect is known: it depends on its text alone, which is in the key, or its
            further inputs are returned. All others are `unknown`, with the reason, as one that names a file of options.
Method      Tables of NVRTC's flags, and of those that it passes on to ptxas, without their one or two dashes: NVRTC
            refuses a flag with the wrong number. A flag's value follows after "=" or as the next element, for -D, -U
            and -I also directly; the value of -Xptxas is a flag for ptxas.
Not here    Flags that are refused at decoration (options), and dependencies of included files (headers).
Source      NVRTC User Guide, "Supported Compile Options"; CUDA Binary Utilities and nvcc, "Ptxas Options"; checked with
            NVRTC 13.5 by tests/unit/test_flags.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from . import NamedTuple

SWITCHES = frozenset((
    "device-c", "dc", "device-w", "dw", "extensible-whole-program", "ewp", "device-debug", "G", "generate-line-info",
    "lineinfo", "use_fast_math", "extra-device-vectorization", "gen-opt-lto", "optix-ir", "no-cache",
    "no-source-include", "disable-warnings", "w", "restrict", "device-as-default-execution-space", "default-device",
    "device-int128", "device-float128", "display-error-number", "err-no", "no-display-error-number", "no-err-no",
    "fdevice-syntax-only", "minimal",
))  # fmt: skip
"""Flags of NVRTC that take no value."""

_VALUED = frozenset((
    "relocatable-device-code", "rdc", "dopt", "Ofast-compile", "Ofc", "maxrregcount", "ftz", "prec-sqrt", "prec-div",
    "fmad", "jump-table-density", "jtd", "device-stack-protector", "frandom-seed", "define-macro", "D",
    "undefine-macro", "U", "pre-include", "include", "include-path", "I", "std", "builtin-move-forward",
    "builtin-initializer-list", "optimization-info", "opt-info", "diag-error", "diag-suppress", "diag-warn",
    "brief-diagnostics", "brief-diag", "split-compile", "ptxas-options", "Xptxas",
))  # fmt: skip
"""Flags of NVRTC that take a value."""

_FOR_PTXAS = ("ptxas-options", "Xptxas")
_OF_LINKING = ("device-c", "dc", "relocatable-device-code", "rdc", "compile-only", "c")
"""Flags of NVRTC and ptxas for relocatable code."""

_PTXAS_SWITCHES = frozenset((
    "verbose", "v", "warn-on-spills", "warn-spills", "warn-on-local-memory-usage", "warn-lmem-usage",
    "warn-on-double-precision-use", "warn-double-usage", "suppress-stack-size-warning", "disable-warnings", "w",
    "warning-as-error", "Werror", "disable-optimizer-constants", "preserve-relocs", "sp-bounds-check", "compile-only",
    "c",
    "extensible-whole-program", "ewp", "return-at-end", "ret-end", "position-independent-code", "pic",
    "disable-smem-reservation", "override-directive-values", "device-debug", "g", "generate-line-info", "lineinfo",
    "O0", "O1", "O2", "O3",
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


def divided(
    flags: Sequence[str], valued: frozenset[str] = _VALUED
) -> Iterator[tuple[tuple[str, ...], str, str | None]]:
    """Yield the elements of each flag, its name without dashes, and its value: None for a flag without one."""
    rest = iter(flags)
    for flag in rest:
        name, equals, value = flag.partition("=")
        word = name.removeprefix("-").removeprefix("-") if name.startswith("-") else ""
        if word not in valued and flag[:2] in ("-D", "-U", "-I"):
            yield (flag,), flag[1], flag[2:]
        elif word in valued and not equals:
            value = next(rest, "")
            yield (flag, value) if value else (flag,), word, value
        else:
            yield (flag,), word, value if equals else None


def read_flags(flags: Sequence[str]) -> RawFlags:
    """Read flags as NVRTC does."""
    found = list(divided(flags))
    for_ptxas = [value or "" for _, name, value in found if name in _FOR_PTXAS]
    unknown = _unknown(flags, SWITCHES, _VALUED) or _unknown(for_ptxas, _PTXAS_SWITCHES, _PTXAS_VALUED)
    macros = [(value or "").partition("=") for _, name, value in found if name in ("define-macro", "D")]
    linking = [*found, *divided(for_ptxas, _PTXAS_VALUED)]
    return RawFlags(
        unknown,
        tuple(value or "" for _, name, value in found if name in ("pre-include", "include")),
        tuple((name.strip(), text if equals else None) for name, equals, text in macros),
        bool(unknown) or any(name in _OF_LINKING and value != "false" for _, name, value in linking),
    )


def _unknown(flags: Sequence[str], switches: frozenset[str], valued: frozenset[str]) -> str:
    """The reason why flags cannot be keyed; "" if they can."""
    for (flag, *_), name, value in divided(flags, valued):
        if name not in valued and (name not in switches or value is not None):
            return f"the effect of the flag {flag} is not known; depends=[...] can name what it reads"
        if name in valued and (not value or (value.startswith("-") and name not in _FOR_PTXAS)):
            return f"the flag {flag} takes what follows it as its value: {value!r}"
        if name == "split-compile" and value and not value.strip("0 "):
            return f"the flag {flag} makes the code depend on the number of processors"
    return ""
