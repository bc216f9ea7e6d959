"""The components of a source request: everything about it that can change the code, under names.

Promise     Two requests that compile to different code have different components; spellings and orders that
            mean the same have the same. docs/keys.md is the table of what is in and what is not, and why.
Not here    Compilers, versions and headers: the resolver adds what it learns from toolchain/ and inputs/.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from ..model.options import CompileOptions
from ..model.request import SourceRequest
from .components import Component, component
from .encoding import Plain

TOOLCHAIN_COMPONENTS = frozenset(("compilers", "versions"))
"""Components that say who compiled, not what: a family of requests leaves them out."""


def source_components(request: SourceRequest, text: str, environment: Mapping[str, str]) -> tuple[Component, ...]:
    """The components of a CUDA C++ or PTX request.

    Args:
        request: What is asked for.
        text: Its source, as the key shall see it (PTX without Numba's counters).
        environment: Variables that the compilers read themselves and that can change the code.
    """
    found = [
        component("kind", request.kind),
        component("source", text),
        component("entry", {"name": request.name, "guess": request.guess if request.name is None else None}),
        component("options", _options(request.options)),
        component(
            "target",
            {"arch": request.target.name, "through": request.ptx_target.name if request.ptx_target else None},
        ),
    ]
    if request.signature is not None:
        found.append(component("signature", " ".join(request.signature.split())))
    if request.link:
        found.append(
            component(
                "link", [[each.kind, sha256(each.data, usedforsecurity=False).hexdigest()] for each in request.link]
            )
        )
    if environment:
        found.append(component("environment", dict(environment)))
    if request.options.lineinfo or request.options.debug:
        found.append(component("lines", [request.origin.path, request.origin.line, request.options.base_dir]))
    return tuple(found)


def _options(options: CompileOptions) -> dict[str, Plain]:
    """Only what is not at its default: an option added in a later version then keeps older keys."""
    chosen: dict[str, Plain] = {
        name: getattr(options, name)
        for name in ("fastmath", "std", "max_registers", "lineinfo", "debug", "lto", "opt", "keep_ptx")
        if getattr(options, name) != getattr(_DEFAULT, name)
    }
    if options.defines:
        chosen["defines"] = [[name, text] for name, text in sorted(options.defines, key=lambda pair: pair[0])]
    if options.flags:
        chosen["flags"] = list(options.flags)
    return chosen


_DEFAULT = CompileOptions()
