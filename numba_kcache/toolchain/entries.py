"""Which kernel of a source is meant, and what its parameters are.

Promise     The entry is the one that was asked for, or the only one there is; otherwise EntryError lists the
            candidates. Its parameters are the compiler's own word, or the user's signature where it does not
            contradict that word.
Method      The cubin says which kernels exist. A scan of the text only guesses which one to ask NVRTC about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import EntryError, OptionError
from ..model.artifact import Entry
from ..model.cubin import Cubin, CubinKernel
from ..model.request import SourceRequest
from .prototype import kernel_name, probe_expression, read_parameters

_NOISE = re.compile(r"(?m:^[ \t]*#(?:\\\n|[^\n])*)|//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\([^()]*\)")
_KERNEL = re.compile(r"__global__\b[^;{}()]*?\b([A-Za-z_]\w*)\s*\(")


def kernels_in(source: str) -> tuple[str, ...]:
    """Names that the text declares as `__global__`, comments and strings left out; macros are not expanded."""
    text = _BOUNDS.sub(" ", _NOISE.sub(" ", source))
    return tuple(dict.fromkeys(match[1] for match in _KERNEL.finditer(text)))


def choose_kernel(request: SourceRequest, cubin: Cubin, wanted: str | None, lowered: Mapping[str, str]) -> CubinKernel:
    """The kernel that the request means.

    Args:
        request: With the user's `name`, and the `guess` that the Python function's name makes.
        cubin: The kernels there are.
        wanted: The entry that NVRTC was asked about; None where none was.
        lowered: Symbols by name expression.

    Raises:
        EntryError: It is not there, or several are.
    """
    by_symbol = {each.symbol: each for each in cubin.kernels}
    by_name: dict[str, list[CubinKernel]] = {}
    for each in cubin.kernels:
        full = kernel_name(each.symbol)
        base, bracket, arguments = full.partition("<")
        last = base.split("::")[-1]
        for name in {full, base, last, last + bracket + arguments, each.symbol}:
            by_name.setdefault(name, []).append(each)
    wanted = wanted or request.name
    if wanted is None and request.guess in by_name:
        wanted = request.guess
    if wanted is None:
        named = list(cubin.kernels)
    elif lowered.get(wanted) in by_symbol:
        named = [by_symbol[lowered[wanted]]]
    else:
        named = by_name.get(wanted, [])
    if len(named) == 1:
        return named[0]
    raise _no_choice(request, cubin, wanted, bool(named))


def _no_choice(request: SourceRequest, cubin: Cubin, wanted: str | None, is_ambiguous: bool) -> EntryError:
    candidates = ", ".join(kernel_name(each.symbol) for each in cubin.kernels)
    declared = kernels_in(request.source) if request.kind == "cuda" else ()
    if not cubin.kernels and declared:
        return EntryError(
            f"cannot choose a kernel in {request.label}",
            f"{', '.join(declared)} is a template or static, and nothing instantiates it",
            f"name an instance: name={declared[0] + '<float>'!r}",
        )
    if not cubin.kernels:
        return EntryError(
            f"cannot find a kernel in {request.label}",
            "the source defines no __global__ function" if request.kind == "cuda" else "the PTX has no .entry",
        )
    if wanted is None or is_ambiguous:
        return EntryError(
            f"cannot choose a kernel in {request.label}", f"the source has {candidates}", "say which with name="
        )
    return EntryError(
        f"cannot find the kernel {wanted!r} in {request.label}", f"the source has {candidates}", "correct name="
    )


def describe_kernel(
    request: SourceRequest,
    kernel: CubinKernel,
    wanted: str | None,
    lowered: Mapping[str, str],
    signature: str | None,
) -> Entry:
    """The kernel with its parameters.

    Args:
        signature: Mangled name of a function type with the user's signature; None where none was given.

    Raises:
        OptionError: The signature contradicts the compiler.
    """
    name = wanted or kernel_name(kernel.symbol)
    own = kernel.symbol if kernel.symbol.startswith("_Z") and request.kind == "cuda" else None
    parameters, typed = read_parameters(lowered.get(probe_expression(name), own), kernel.parameters)
    if signature is not None:
        given, fits = read_parameters(signature, kernel.parameters)
        if not fits or (typed and [each.code for each in given] != [each.code for each in parameters]):
            raise OptionError(
                f"cannot use signature={request.signature!r} for {request.label}",
                f"the kernel takes ({', '.join(map(str, parameters))})",
                "leave the signature out, or correct it",
            )
        parameters, typed = given, True
    return Entry(name, kernel.symbol, parameters, typed, kernel.registers, kernel.shared_bytes, kernel.local_bytes)
