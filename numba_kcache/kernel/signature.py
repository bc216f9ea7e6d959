"""The parameters of a kernel for `inspect.signature` and `repr`; those of C++ are known once it is compiled."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

from ..model import Entry

if TYPE_CHECKING:
    import inspect


def signature_of(thing: Any, entry: Entry | None, *, of_python: bool) -> inspect.Signature | None:
    """Make the signature of a kernel; None if its parameters are not known.

    Args:
        thing: The object that the user wrapped.
        entry: The kernel of its artifact; None for a Python kernel, or where it is not resolved.
        of_python: Whether the thing is the Python function that is compiled, with the kernel's own parameters.
    """
    import inspect

    if entry is None:
        return inspect.signature(getattr(thing, "py_func", thing)) if of_python else None
    found: dict[str, inspect.Parameter] = {}
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    for index, each in reversed(list(enumerate(entry.parameters))):
        name = each.name
        if not name.isidentifier() or keyword.iskeyword(name) or name in found:
            # the parameters before a positional-only one must be positional-only too
            name, kind = f"arg{index}", inspect.Parameter.POSITIONAL_ONLY
        found[name] = inspect.Parameter(name, kind, annotation=each.c_type or f"{each.size} bytes")
    return inspect.Signature(list(found.values())[::-1])


def text_of(name: str, label: str, entry: Entry | None) -> str:
    """Format a kernel's name with its parameters, as far as they are known, and its label where the name lacks it."""
    parameters = f"({', '.join(map(str, entry.parameters))})" if entry is not None and entry.typed else ""
    name = entry.name if name == label and entry is not None else name
    return f"{name}{parameters}" if "." in name or name == label else f"{name}{parameters} of {label}"
