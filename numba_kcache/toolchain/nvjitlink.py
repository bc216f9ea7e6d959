"""Run nvJitLink once: link PTX, LTO-IR, objects and other inputs to a cubin.

Promise     Always `-no-cache` (otherwise it calls cuInit and keeps a hidden cache). Works without a driver.
Source      nvJitLink documentation, "Supported Link Options" and "nvJitLinkInputType".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LinkError
from ..model import LinkInput
from ..model.cubin import is_cubin
from ..waiting import imported
from .locating import missing

_NAMES = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
"""Names given to the linker's inputs. The bindings free a name before the linker reads it; only bytes objects of one
character stay alive, because CPython caches them."""

_INPUT = r" in '(.)'"


def link(inputs: Sequence[LinkInput], arch: str, flags: Sequence[str], output: str = "cubin") -> tuple[bytes, str]:
    """Link the inputs for one target.

    Args:
        inputs: In order; their `kind` says what they are ("cu" must have been compiled before).
        arch: The spelling of the target, `"sm_90a"`.
        flags: nvJitLink flags on top of `-arch` and `-no-cache`.
        output: `"cubin"`, or `"ptx"` with the flag `-ptx`.

    Returns:
        The output and the linker's log.

    Raises:
        ToolchainMissingError: nvJitLink or its bindings are not installed.
        LinkError: The linker refused an input, a flag or the target.
    """
    nvjitlink = _bindings()
    words = [f"-arch={arch}", "-no-cache", *flags]
    try:
        handle = nvjitlink.create(len(words), words)
    except nvjitlink.nvJitLinkError as error:
        raise LinkError(
            f"cannot link for {arch}", f"nvJitLink returned {error} for the options {' '.join(words)}"
        ) from None
    try:
        names = dict(zip(_NAMES, (each.name for each in inputs), strict=False))

        def step(name: str, call: Any, *arguments: Any) -> None:
            try:
                call(handle, *arguments)
            except nvjitlink.nvJitLinkError as error:
                log = read_log(nvjitlink, handle, names, "error")
                why = log.splitlines()[0] if log else str(error)
                hint = "correct the input that is named; the linker's whole log is in .log"
                raise LinkError(f"cannot link {name}", why, hint, log) from None

        for number, each in enumerate(inputs):
            data = each.data + b"\0" if each.kind == "ptx" and not each.data.endswith(b"\0") else each.data
            # nvJitLink silently ignores a cubin that is passed as an object
            is_bare = each.kind == "object" and is_cubin(data)
            kind = getattr(nvjitlink.InputType, ("cubin" if is_bare else each.kind).upper())
            name = _NAMES[number] if number < len(_NAMES) else "-"
            step(each.name, nvjitlink.add_data, kind, data, len(data), name)
        step(arch, nvjitlink.complete)
        made = bytearray(getattr(nvjitlink, f"get_linked_{output}_size")(handle))
        getattr(nvjitlink, f"get_linked_{output}")(handle, made)
        return bytes(made), read_log(nvjitlink, handle, names, "info")
    finally:
        nvjitlink.destroy(handle)


def _bindings() -> Any:
    try:
        nvjitlink = imported("cuda.bindings.nvjitlink")
        nvjitlink.version()
    except (ImportError, RuntimeError) as error:
        raise missing("link PTX or LTO-IR", "nvJitLink") from error
    return nvjitlink


def read_log(nvjitlink: Any, handle: int, names: Mapping[str, str], kind: str) -> str:
    """Read the linker's log, with the inputs under their own names."""
    size = getattr(nvjitlink, f"get_{kind}_log_size")(handle)
    if size < 2:
        return ""
    buffer = bytearray(size)
    getattr(nvjitlink, f"get_{kind}_log")(handle, buffer)
    text = bytes(buffer).rstrip(b"\0").decode("utf-8", "replace").rstrip()
    return re.sub(_INPUT, lambda match: f" in '{names[match[1]]}'" if match[1] in names else "", text)
