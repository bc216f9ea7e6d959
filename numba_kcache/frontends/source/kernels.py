"""Choose the kernel of a source that a request means, and describe its parameters.

Promise     The entry is the requested one, or the only one in the source; otherwise EntryError lists the candidates.
            Its parameters have the types that the compiler reports, or those of the user's signature if they do not
            contradict the compiler.
Method      The cubin lists the kernels that exist. The text is scanned only to guess the kernel that NVRTC is asked
            about, and for the names of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...errors import EntryError, OptionError
from ...model import Artifact, CompiledKernel, SourceInput
from ...model.cubin import Cubin, CubinKernel
from .declarations import Declaration, declarations
from .prototype import SIGNATURE, kernel_name, read_parameters


def kernels_in(declared: Iterable[Declaration]) -> tuple[str, ...]:
    """Names that are declared as `__global__`, without namespaces, including those declared by macros."""
    return tuple(dict.fromkeys(each.name for each in declared if each.is_kernel))


def parameter_names(declared: Sequence[Declaration], kernel: str, count: int) -> tuple[str, ...]:
    """Names of a kernel's parameters for messages, as its declarations have them.

    Args:
        declared: The declarations found in the text.
        kernel: The kernel's name, without namespace and template arguments.
        count: Number of its parameters.

    Returns:
        A name for each; "" if it has none, if a macro writes one of its declarations, or if declarations disagree.
    """
    lists = [each.parameters for each in declared if each.is_kernel and each.name == kernel]
    columns = zip(*(names for names in lists if names and len(names) == count), strict=True)
    agreed = [names - {""} for names in map(set, columns)] if None not in lists else []
    return tuple(min(names) if len(names) == 1 else "" for names in agreed) or ("",) * count


def with_names(artifact: Artifact, texts: Iterable[bytes]) -> Artifact:
    """Name the parameters of kernels by all texts that were compiled: the source, and the user's headers."""
    kernels = (text for text in texts if b"__global__" in text)
    declared = [each for text in kernels for each in declarations(text.decode("utf-8", "replace"))]

    def named(compiled: CompiledKernel) -> CompiledKernel:
        names = parameter_names(declared, own_name(compiled.symbol), len(compiled.parameters))
        pairs = zip(compiled.parameters, names, strict=True)
        return compiled._replace(parameters=tuple(each._replace(name=name) for each, name in pairs))

    return artifact._replace(kernels=tuple(map(named, artifact.kernels)))


def own_name(symbol: str) -> str:
    """The name of a kernel without namespaces and template arguments; of a name that has some, too."""
    return kernel_name(symbol).partition("<")[0].split("::")[-1]


def choose_kernel(request: SourceInput, cubin: Cubin, wanted: str | None, lowered: Mapping[str, str]) -> CubinKernel:
    """The kernel that the request means.

    Args:
        request: The request, with the user's `name`, and the Python function's name as `guess`.
        cubin: The compiled code.
        wanted: The entry that NVRTC was asked about; None for none.
        lowered: Symbols by name expression.

    Raises:
        EntryError: There is no such kernel, or several.
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
        if len(named) > 1:  # `k` means the kernel outside all namespaces, if there is such a kernel
            named = [each for each in named if kernel_name(each.symbol) == wanted] or named
    if len(named) == 1:
        return named[0]
    raise no_choice(request, cubin, wanted, bool(named))


_NOTHING = {"cuda": "the source defines no __global__ function", "ptx": "the PTX has no .entry"}
_MARKED = {
    "cuda": 'mark it: extern "C" __global__ void name(...)',
    "ptx": "mark it: .visible .entry name(...)",
    "fatbin": "give code for it, PTX, or code for linking (-rdc=true)",
}


def no_choice(request: SourceInput, cubin: Cubin, wanted: str | None, is_ambiguous: bool) -> EntryError:
    """Make the error that lists the kernels, with a hint how to name one."""
    declared = kernels_in(declarations(request.source)) if request.kind == "cuda" else ()
    symbols = [each.symbol for each in cubin.kernels]
    if {*declared} >= {*map(own_name, symbols)}:  # otherwise, as where macros make some, in the order of the code
        symbols.sort(key=lambda symbol: declared.index(own_name(symbol)))
    names = [*map(kernel_name, symbols)]
    candidates = ", ".join(names)
    option = "name={!r}" if request.module is None else "names=[{!r}]"
    if not cubin.kernels and declared:
        *others, last = declared
        described = f"{', '.join(others)} and {last} are templates" if others else f"{last} is a template"
        return EntryError(
            f"cannot choose a kernel in {request.label}",
            f"{described}, static or only declared, and nothing instantiates {'them' if others else 'it'}",
            f"define it, or name an instance: {option.format(declared[0] + '<float>')}",
        )
    if not cubin.kernels:
        return EntryError(
            f"cannot find a kernel in {request.label}",
            _NOTHING.get(request.kind, "the code has none for this target"),
            _MARKED.get(request.kind, "give a cubin that has a kernel, or PTX"),
        )
    if wanted is None or is_ambiguous:
        return EntryError(
            f"cannot choose a kernel in {request.label}",
            f"the source has {candidates}",
            "use cached_module, whose names of overloads have types"
            if len({*names}) < len(names)
            else f"choose one with {option.format(names[0])}",
        )
    return EntryError(
        f"cannot find the kernel {wanted!r} in {request.label}",
        f"the source has {candidates}",
        "correct name=",
    )


def describe_kernel(
    request: SourceInput,
    kernel: CubinKernel,
    name: str,
    types: Mapping[str, str],
    declared: Sequence[Declaration],
) -> CompiledKernel:
    """The kernel with its parameters.

    Args:
        request, kernel: The request, and the kernel as its cubin describes it.
        name: Its name in the source.
        types: Mangled names that contain types (prototype.Probe.types), including that of the user's signature.
        declared: The declarations found in the text.

    Raises:
        OptionError: The signature contradicts the compiler.
    """
    mangled = types.get(name) or types.get(kernel.symbol)
    if not mangled and request.kind == "cuda" and kernel.symbol.startswith("_Z"):
        mangled = kernel.symbol
    parameters, typed = read_parameters(mangled, kernel.parameters)
    signature = types.get(SIGNATURE)
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
        names = parameter_names(declared, own_name(name), len(parameters))
        parameters = tuple(each._replace(name=own) for each, own in zip(parameters, names, strict=True))
    resources = kernel.registers, kernel.shared_bytes, kernel.local_bytes
    threads = 0 if request.target.virtual else kernel.safe_threads  # for PTX, the driver chooses the registers
    return CompiledKernel(name, kernel.symbol, parameters, typed, *resources, safe_threads=threads)
