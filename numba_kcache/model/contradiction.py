"""Check the description in an artifact against its cubin, PTX or LTO-IR.

Promise     Where `contradiction_of` returns "", the code is for the described target and has each kernel and variable
            that is described, with parameters at the same offsets and of the same sizes. Whatever the bytes are, it
            returns text and raises nothing. Payloads of the kind `built` are not examined.
Method      Done once for code from tiers and bundles, and before code is stored. A hit in the local store checks only
            the kernel that is launched (`artifact.misfit`).
Not here    A check that the instructions do what the source says: one relies on the compiler, or on a signature.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from . import BUILT, Artifact, CompiledKernel, misfit
from .cubin import read_cubin

_ENTRY = r"\.entry\s+([\w$]+)\s*(?:\(([^)]*)\))?"
_PARAMETER = r"\.param\s+(?:\.align\s+\d+\s+)?\.[busf](\d+)(?:x2)?\b[^,\[]*(?:\[(\d+)\])?"
_TARGET = r"(?m)^\s*\.target\s+(?:sm|compute)_(\d+)"
_LTO_MAGIC = (b"\x7fNC\xed", b"\xedCN\x7f", b"BC\xc0\xde")


def contradiction_of(artifact: Artifact) -> str:
    """Say how the description in an artifact contradicts its code; "" if it does not."""
    if artifact.kind == BUILT:  # model.built has checked its attributes against its bytes
        return ""
    try:
        if "ltoir" in artifact.extras and not artifact.cubin:
            is_lto = artifact.extras["ltoir"].startswith(_LTO_MAGIC)
            return "" if is_lto else "its LTO-IR has no LTO-IR header"
        return _of_ptx(artifact) if artifact.target.virtual else _of_cubin(artifact)
    except (ValueError, OverflowError) as error:
        return f"its code is not a cubin: {error}"


def _of_cubin(artifact: Artifact) -> str:
    cubin, places = read_cubin(artifact.cubin), dict[str, Any]()
    threads = {each.symbol: each.safe_threads for each in cubin.kernels}
    for compiled in artifact.kernels:
        if wrong := misfit(artifact, compiled, places):
            return wrong
        if compiled.symbol not in threads:  # a device function that was linked in
            return f"its cubin has no kernel {compiled.symbol}"
        if compiled.safe_threads > threads[compiled.symbol]:
            return f"its cubin takes fewer threads of {compiled.symbol}"
    there = {each.symbol: each.size_bytes for each in cubin.variables}
    for each in artifact.variables:
        if there.get(each.symbol) != each.size_bytes:
            return f"its cubin has no variable {each.symbol} of {each.size_bytes} bytes"
    return ""


def _of_ptx(artifact: Artifact) -> str:
    text = artifact.ptx.decode("latin-1")
    named = re.search(_TARGET, text)
    if named is None or int(named[1][:4]) > artifact.target.major * 10 + artifact.target.minor:
        return f"its PTX is not for {artifact.target}"
    kernels = {match[1]: _sizes(match[2] or "") for match in re.finditer(_ENTRY, text)}
    return next(filter(None, (_wrong_in_ptx(each, kernels) for each in artifact.kernels)), "")


def _wrong_in_ptx(compiled: CompiledKernel, kernels: Mapping[str, list[int]]) -> str:
    if compiled.symbol not in kernels:
        return f"its PTX has no kernel {compiled.symbol}"
    is_same = [each.size for each in compiled.parameters] == kernels[compiled.symbol]
    return "" if is_same else f"its PTX has other parameters of {compiled.symbol}"


def _sizes(parameters: str) -> list[int]:
    """Bytes of each parameter in the parentheses behind the name of an entry."""
    found = (re.search(_PARAMETER, each) for each in parameters.split(","))
    return [int(each[1]) // 8 * int(each[2] or 1) for each in found if each and len(each[2] or "") < 10]
