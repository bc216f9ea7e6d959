"""The components of a source request: everything about it that can change the code, under names.

Promise     Two requests that compile to different code have different components; spellings and orders that
            mean the same have the same. docs/keys.md is the table of what is in and what is not, and why.
Not here    Compilers, versions and headers: the session adds what it learns from toolchain/ and headers/.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...keys.components import Component, component
from ...keys.digests import sha256
from ...keys.encoding import Plain
from ...model.options import CompileOptions
from ...model.request import LinkInput, ModuleEntries
from ...model.target import Target


def fixed_components(
    kind: str,
    name: str | None,
    guess: str | None,
    options: CompileOptions,
    signature: str | None,
    module: ModuleEntries | None = None,
) -> tuple[Component, ...]:
    """The components of a source kernel that are known when it is decorated.

    Args:
        kind: One of `model.options.SOURCE_KINDS`.
        name: The entry that the user asked for; None to find it.
        guess: The Python function's name, which then decides among several.
        options: How to compile.
        signature: C++ types of the parameters as the user wrote them.
        module: Which entries, where a module is wanted; None for one kernel.
    """
    entry: Plain = {"name": name, "guess": guess if name is None else None}
    if module is not None:
        entry = {"names": list(module.names), "code": "ltoir" if module.lazy else "cubin"}
    found = [
        component("kind", kind),
        component("entry", entry),
        component("options", _options(options)),
    ]
    if signature is not None:
        found.append(component("signature", " ".join(signature.split())))
    return tuple(found)


def source_components(
    text: str | bytes,
    target: Target,
    through: Target | None,
    *,
    link: Sequence[LinkInput],
    lines: tuple[str, int, str, str] | None,
    environment: Mapping[str, str],
) -> tuple[Component, ...]:
    """The components that are known when a kernel is first used for a target.

    Args:
        text: The source, as the key shall see it (PTX with Numba's counters renumbered).
        target: What to build for.
        through: The virtual target to compile to first, where the user gave one.
        link: Further inputs, in order.
        lines: File, line, base folder and working directory, where a line table will hold them.
        environment: Variables that the compilers read themselves and that can change the code.
    """
    found = [
        component("source", text),
        component("target", [target.name, through.name if through else None]),
    ]
    if link:
        found.append(component("link", [_link_input(each) for each in link]))
    if environment:
        found.append(component("environment", dict(environment)))
    if lines is not None:
        found.append(component("lines", lines))
    return tuple(found)


def lazy_components(module_key: str, name: str) -> tuple[Component, ...]:
    """The components of one kernel of a lazy module; all that its code is made of is in the module's own key."""
    return component("kind", "lazy"), component("module", module_key), component("entry", name)


def _link_input(item: LinkInput) -> Plain:
    """Its content, and for CUDA C++ its name, which __FILE__, assert and line tables put into the code."""
    return [item.kind, item.name if item.kind == "cu" else "", sha256(item.data).hexdigest()]


def _options(options: CompileOptions) -> dict[str, Plain]:
    """Only what is not at its default: an option added in a later version then keeps older keys."""
    chosen: dict[str, Plain] = {
        name: getattr(options, name)
        for name in ("fastmath", "std", "max_registers", "lineinfo", "debug", "lto", "opt", "keep_ptx", "fast_compile")
        if getattr(options, name) != getattr(_DEFAULT, name)
    }
    if options.defines:
        # F and F(x) are one macro: of those the order counts, and sorting by the bare name keeps it
        in_order = sorted(options.defines, key=lambda pair: pair[0].partition("(")[0])
        chosen["defines"] = [[name, text] for name, text in in_order]
    if options.flags:
        chosen["flags"] = list(options.flags)
    return chosen


_DEFAULT = CompileOptions()
