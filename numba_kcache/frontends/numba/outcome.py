"""What a compiled Numba kernel needs beside its cubin, in plain values; and whether plain values are enough."""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

from ...model.linkable import callbacks_of
from .internals import Internals


def exception_table(call_helper: Any) -> list[Any] | None:
    """The Python exceptions that a debug kernel can raise, by code; None if one is not plain.

    Returns:
        [code, name of a builtin exception, arguments, [function, file, line] or None] of each.
    """
    table: list[Any] = []
    for code, (kind, arguments, place) in call_helper.exceptions.items():
        if kind is not None and getattr(builtins, kind.__name__, None) is not kind:
            return None
        if not all(type(each) in (str, int, float, bool, type(None)) for each in arguments or ()):
            return None
        table.append([code, kind and kind.__name__, list(arguments or ()), list(place) if place else None])
    return table


def why_uncacheable(
    result: Any, chosen: Mapping[str, Any], attributes: Mapping[str, Any], parts: Internals
) -> str | None:
    """Why this kernel is only good for this process; None if its cubin and attributes are all it needs."""
    library = result.library
    if attributes["debug"] and attributes["exceptions"] is None:
        return "it raises an exception that is not built in, or with arguments that are no constants"
    if (getattr(result, "metadata", None) or {}).get("launch_config_sensitive"):
        return "its code depends on the launch configuration"
    if any(hasattr(each, "__cuda_array_interface__") for each in library.referenced_objects.values()):
        return "it uses a device array from its surroundings, whose address is in the code"
    if parts.cuda_target.target_context.enable_nrt and parts.config.CUDA_NRT_STATS:
        return "statistics of Numba's runtime are on"
    callbacks = [*library._setup_functions, *library._teardown_functions]
    callbacks += [callback for each in chosen["link"] or () for callback in callbacks_of(each)]
    foreign = [each for each in callbacks if not str(getattr(each, "__module__", "")).startswith("numba.")]
    return "linked code has callbacks to run when it is loaded" if foreign else None
