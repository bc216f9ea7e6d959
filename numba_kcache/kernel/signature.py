"""The parameters of a kernel as `inspect.signature` shows them: those of the C++ source once it is compiled."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from ..model.artifact import Entry

if TYPE_CHECKING:
    import inspect


def signature_of(thing: Any, entry: Entry | None, *, of_python: bool) -> inspect.Signature | None:
    """Make the signature of a kernel; None where nothing is known of its parameters.

    Args:
        thing: What the user wraps.
        entry: The kernel of its artifact; None for one of Python, or where it is not resolved.
        of_python: Whether the thing is the kernel's own body.
    """
    import inspect

    if entry is None:
        return inspect.signature(getattr(thing, "py_func", thing)) if of_python else None
    found: dict[str, inspect.Parameter] = {}
    for index, each in enumerate(entry.parameters):
        name = each.name if each.name.isidentifier() and not keyword.iskeyword(each.name) else f"arg{index}"
        name = name if name not in found else f"arg{index}"
        annotation = each.c_type or f"{each.size} bytes"
        found[name] = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY, annotation=annotation)
    return inspect.Signature(list(found.values()))


def text_of(name: str, label: str, entry: Entry | None) -> str:
    """Name a kernel with its parameters, as far as they are known, and where it stands, unless the name says so."""
    taken = f"({', '.join(map(str, entry.parameters))})" if entry is not None and entry.typed else ""
    return f"{name}{taken}" if "." in name or name == label else f"{name}{taken} of {label}"
