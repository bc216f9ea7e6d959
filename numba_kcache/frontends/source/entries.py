"""Which kernel of a source is meant, and what its parameters are.

Promise     The entry is the one that was asked for, or the only one there is; otherwise EntryError lists the
            candidates. Its parameters are the compiler's own word, or the user's signature where it does not
            contradict that word.
Method      The cubin says which kernels exist. A scan of the text only guesses which one to ask NVRTC about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import EntryError, OptionError
from ...model.artifact import Entry
from ...model.cubin import Cubin, CubinKernel
from ...model.request import SourceRequest
from .prototype import kernel_name, probe_expression, read_parameters

_NOISE = re.compile(r"(?m:^[ \t]*#(?:\\\n|[^\n])*)|//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg|block_size)__\s*\([^()]*\)")
_KERNEL = re.compile(r"__global__\b[^;{}()]*?\b([A-Za-z_]\w*)\s*\(")
_BRACKET = re.compile(r"[(\[{<]|[)\]}>]|,")
_ATTRIBUTE = re.compile(r"\[\[.*?\]\]|\b(?:alignas|__align__)\s*\([^()]*\)")
_QUALIFIER = re.compile(r"\b(?:const|volatile|__restrict__|__restrict|__grid_constant__|struct|class|enum|typename)\b")
_NAMED = re.compile(r"[\w>*&]\s*(?<![\w:])([A-Za-z_]\w*)\s*(?:\[[^\[\]]*\]\s*)*\Z")
_TYPE_WORDS = frozenset(("int", "long", "short", "char", "unsigned", "signed", "float", "double", "bool", "void"))


def kernels_in(source: str) -> tuple[str, ...]:
    """Names that the text declares as `__global__`, comments and strings left out; macros are not expanded."""
    text = _BOUNDS.sub(" ", _NOISE.sub(" ", source))
    return tuple(dict.fromkeys(match[1] for match in _KERNEL.finditer(text)))


def parameter_names(source: str, kernel: str, count: int) -> tuple[str, ...]:
    """Names of a kernel's parameters for messages, as its declarations in the text have them.

    Args:
        source: CUDA C++; macros are not expanded.
        kernel: The kernel's name, without namespace and template arguments.
        count: Parameters it has.

    Returns:
        A name for each; "" where none is written, or where declarations disagree.
    """
    text = _BOUNDS.sub(" ", _NOISE.sub(" ", source))
    lists = [_parameters(text, match.end()) for match in _KERNEL.finditer(text) if match[1] == kernel]
    columns = zip(*([_own_name(each) for each in found] for found in lists if len(found) == count), strict=True)
    agreed = [names - {""} for names in map(set, columns)]
    return tuple(min(names) if len(names) == 1 else "" for names in agreed) or ("",) * count


def _parameters(text: str, start: int) -> list[str]:
    """The declarations between the parenthesis that opens before `start` and the one that closes it."""
    found, depth, begin = [], 0, start
    for match in _BRACKET.finditer(text, start):
        if depth == 0 and match[0] in ",)":
            found.append(text[begin : match.start()])
            begin = match.end()
            if match[0] == ")":
                break
        elif match[0] != ",":
            depth += 1 if match[0] in "([{<" else -1
    return [] if len(found) == 1 and found[0].strip() in ("", "void") else found


def _own_name(declaration: str) -> str:
    """The name in one parameter's declaration; "" where it has none."""
    bare = _QUALIFIER.sub(" ", _ATTRIBUTE.sub(" ", declaration.partition("=")[0])).strip()
    named = _NAMED.search(bare)
    return named[1] if named and named[1] not in _TYPE_WORDS else ""


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
    raise no_choice(request, cubin, wanted, bool(named))


_NOTHING = {"cuda": "the source defines no __global__ function", "ptx": "the PTX has no .entry"}


def no_choice(request: SourceRequest, cubin: Cubin, wanted: str | None, is_ambiguous: bool) -> EntryError:
    """The error that says which kernels there are, and how to name one."""
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
            _NOTHING.get(request.kind, "the code has none for this target"),
            "give code for it, PTX, or code for linking (-rdc=true)" if request.kind == "fatbin" else "",
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
    if request.kind == "cuda":
        names = parameter_names(request.source, name.partition("<")[0].split("::")[-1], len(parameters))
        parameters = tuple(each._replace(name=own) for each, own in zip(parameters, names, strict=True))
    return Entry(name, kernel.symbol, parameters, typed, kernel.registers, kernel.shared_bytes, kernel.local_bytes)
