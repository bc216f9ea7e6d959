"""The result of a compilation: the bytes the driver loads, and everything a launch must know about them.

Promise     `artifact_from_header` checks each field against its type, its bounds and the closed vocabulary of
            parameter codes, and raises ValueError otherwise. No field names code to run.
            `misfit` checks the description of one kernel against the cubin that is about to be loaded.
Method      Grammar of a parameter's type code:

                code     ::= pointer | value
                pointer  ::= "*" ["k"] (element | "?")          k: the pointee is const; ?: any pointee
                element  ::= scalar | vector | "o"
                value    ::= scalar | vector | "o" | "?"        o: struct by value; ?: only its size is known
                vector   ::= "v" ("1" | "2" | "3" | "4") scalar
                scalar   ::= "b1" | "i1" | "i2" | "i4" | "i8" | "u1" | "u2" | "u4" | "u8"
                           | "f2" | "bf" | "f4" | "f8" | "c4" | "c8" | "e4" | "e5"

            iN and uN are integers of N bytes, b1 is bool, f2 is half, bf is bfloat16, c4 and c8 are complex
            numbers of 8 and 16 bytes, e4 and e5 are fp8 e4m3 and e5m2.
Not here    The header as it is written (header), the file that holds it (store.entry), the key that names it (keys),
            and the check of a whole artifact against its code (contradiction).
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from struct import Struct, unpack_from
from struct import error as StructError
from typing import Any

from ..errors import EntryError
from . import NamedTuple, Target, parse_target

SCALAR_SIZES = {
    "b1": 1, "i1": 1, "i2": 2, "i4": 4, "i8": 8, "u1": 1, "u2": 2, "u4": 4, "u8": 8,
    "f2": 2, "bf": 2, "f4": 4, "f8": 8, "c4": 8, "c8": 16, "e4": 1, "e5": 1,
}  # fmt: skip
"""Bytes of each scalar code."""


def _code_sizes() -> dict[str, int | None]:
    vectors = {f"v{n}{each}": n * size for each, size in SCALAR_SIZES.items() for n in (1, 2, 3, 4)}
    words: dict[str, int | None] = {**SCALAR_SIZES, **vectors, "o": None, "?": None}
    return words | {f"*{const}{element}": 8 for element in words for const in ("", "k")}


CODE_SIZES = _code_sizes()
"""Every type code with its size as a parameter, in bytes; None for `o` and `?`."""


class Parameter(NamedTuple):
    """One kernel parameter.

    Args:
        offset: Bytes from the start of the parameter buffer.
        size: Bytes it takes there.
        code: Its type code, by the grammar above.
        c_type: Its C++ type in full, `"float const*"`; `""` where only the size is known.
        name: Its name in the source; `""` where it could not be read.
    """

    offset: int
    size: int
    code: str
    c_type: str = ""
    name: str = ""

    def __str__(self) -> str:
        return f"{self.c_type or f'{self.size} bytes'}{' ' if self.name else ''}{self.name}"


MAX_PARAMETERS_BYTES = 32764
"""Bytes of parameters one kernel can take (CUDA C++ Programming Guide, "Function Parameters")."""

BUILT = "built"
"""The kind of bytes that another compiler made (model.built): no cubin, no kernel, never launched."""

_MOST_PARAMETERS = 1 << 20  # of all kernels together: 65,536 kernels may share one list, which is checked for each
_MAX_ENTRIES = _MAX_NAME = 65536
_MAX_KIND, _MAX_SECONDS, _MOST_THREADS = 32, 1e9, 1024

_ELF = Struct("<4sB3xB9xH20xQI8xHH")  # magic, class, ABI, machine, section headers, flags, their count and names
_SECTION = Struct("<I20xQQ24x")  # its name, its place and its size
_SECTION_PLACE = Struct("<24xQQ24x")
_INFO = b".nv.info."
_SIZED, _PARAMETER_RECORD, _LARGE_PARAMETER_RECORD = 4, 12 << 16 | 0x1704, 12 << 16 | 0x4504
_RECORD_HEAD, _LARGE_RECORD_HEAD = (
    _PARAMETER_RECORD.to_bytes(4, "little"),
    _LARGE_PARAMETER_RECORD.to_bytes(4, "little"),
)
"""The first words of records: layout, attribute and size. A parameter's record continues with one unused word, one
with ordinal and offset, and one with the size: in its upper 14 bits, or its lower 16 in a large record."""


class Entry(NamedTuple):
    """One kernel of an artifact.

    Args:
        name: Its name in the source, or the user's name expression.
        symbol: Its lowered name in the cubin.
        parameters: In order; with their types only where `typed`.
        typed: Whether the compiler's own prototype was read; otherwise only sizes can be checked.
        registers: Registers per thread.
        shared_bytes: Static shared memory per block.
        local_bytes: Local memory per thread.
        const_bytes: Constant memory of the user's variables, for the whole module.
        safe_threads: Threads per block that it can use on every device of its target; for more, ask the driver.
    """

    name: str
    symbol: str
    parameters: tuple[Parameter, ...] = ()
    typed: bool = False
    registers: int = 0
    shared_bytes: int = 0
    local_bytes: int = 0
    const_bytes: int = 0
    safe_threads: int = 0


class Variable(NamedTuple):
    """A `__device__` or `__constant__` variable of a module.

    Args:
        name: Its name in the source, such as `"ns::coeffs"`.
        symbol: Its name in the cubin.
        size_bytes: Bytes it takes.
        code: Type code of its elements; `"o"` for types without a code.
        shape: Extents of an array; () for a scalar.
    """

    name: str
    symbol: str
    size_bytes: int
    code: str = "o"
    shape: tuple[int, ...] = ()


class Artifact(NamedTuple):
    """The result of one compilation for one target.

    Args:
        kind: The kind of its source, such as `"cuda"`, as its front end names it.
        target: The target that the code was built for.
        entries: The kernels in it, in order.
        cubin: The linked module; empty where `target` is virtual, or where kernels are linked from LTO-IR. For the
            kind `built`, the concatenated payloads.
        compile_time_s: Seconds the compilation took.
        attributes: Launch attributes that are not in the cubin (cooperative, carveout, ...), as plain values.
        extras: Bytes that no launch needs, by name: `"ptx"`, where it was kept; `"log"`, the compilers' messages;
            `"ltoir"`, from which a lazy module links its kernels. Those from a store are unpacked when first read.
        variables: The module's variables that the host can access.
    """

    kind: str
    target: Target
    entries: tuple[Entry, ...]
    cubin: bytes
    compile_time_s: float = 0.0
    attributes: Mapping[str, Any] = {}
    extras: Mapping[str, bytes] = {}
    variables: tuple[Variable, ...] = ()

    @property
    def ptx(self) -> bytes:
        """The PTX it was made from; empty where it was not kept."""
        return self.extras.get("ptx", b"")

    @property
    def log(self) -> str:
        """The compilers' log."""
        return self.extras.get("log", b"").decode("utf-8", "replace")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its kernels; for the kind `built`, its label."""
        if self.kind == BUILT:
            return (self.attributes["label"],)
        return tuple(each.name for each in self.entries)

    def entry(self, name: str, label: str) -> Entry:
        """Find a kernel by its name or symbol, ignoring spaces, or by its name without namespace and template arguments
        where that is unique.

        Raises:
            EntryError: There is none, or several; the message calls the module `label`.
        """
        for each in self.entries:
            if name == each.name or name == each.symbol:
                return each
        wanted = "".join(name.split())
        named = [each for each in self.entries if "".join(each.name.split()) == wanted]
        named = named or [each for each in self.entries if _bare(each.name) == wanted]
        if len(named) == 1:
            return named[0]
        there_are = ", ".join(each.name for each in named or self.entries)
        hint = "give names as in the source, including template arguments"
        raise EntryError(f"cannot find the kernel {name!r} of {label}", f"there are {there_are}", hint)


def _bare(name: str) -> str:
    """Strip namespace, template arguments and parameter types from a name."""
    return name.partition("<")[0].partition("(")[0].split("::")[-1]


def artifact_from_header(
    header: Mapping[str, Any], payloads: Mapping[str, bytes], *, is_launched: bool = False
) -> Artifact:
    """The artifact that `model.header` described, with its payloads: `"cubin"` and the extras.

    Args:
        header: JSON values.
        payloads: Bytes by name.
        is_launched: Check the kernel against the cubin, where there is only one; with several, the caller calls
            `misfit` for the one that it launches.

    Raises:
        ValueError: A field is missing, of another type, or out of bounds; or the header contradicts the cubin.
    """
    try:
        entries, kind = header["entries"], header["kind"]
        seconds, attributes = header["compile_time_s"], header["attributes"]
        if type(attributes) is not dict or type(seconds) not in (int, float) or not 0 <= seconds < _MAX_SECONDS:
            raise ValueError("compile_time_s or attributes")
        if kind == BUILT:
            from .built import built_from_header

            return built_from_header(header, payloads)
        if type(entries) is not list or not 0 < len(entries) <= _MAX_ENTRIES:
            raise ValueError("entries")
        if attributes:
            _check_attributes(attributes)
        if type(kind) is not str or len(kind) > _MAX_KIND or not (kind.isidentifier() and kind.islower()):
            raise ValueError("kind")
        target = parse_target(header["target"])
        cubin = payloads.get("cubin", b"")
        if not cubin and not target.virtual and "ltoir" not in payloads:
            raise ValueError("a real target without a cubin")
        read = _entries(entries)
        variables = tuple([_variable(each) for each in header["variables"]]) if "variables" in header else ()
        artifact = _new(Artifact, (kind, target, read, cubin, float(seconds), attributes, payloads, variables))
        if is_launched and len(read) == 1 and (wrong := misfit(artifact, read[0])):
            raise ValueError(wrong)
        return artifact
    except (KeyError, TypeError) as error:
        raise ValueError(f"header is malformed: {error!r}") from None


_new = tuple.__new__
"""Constructs a named tuple faster than its own constructor; a warm start makes one for each parameter."""


def _entries(rows: Any) -> tuple[Entry, ...]:
    """Read the kernels; in place of parameters, one may have the number of an earlier kernel with the same."""
    read: list[Entry] = []
    for name, symbol, typed, resources, parameters in rows:
        if not (type(name) is type(symbol) is str and type(typed) is bool and 0 < len(symbol) <= _MAX_NAME):
            raise ValueError("entry")
        registers, shared, local, const, threads = resources if len(resources) == 5 else (*resources, 0)
        for amount in resources:
            if type(amount) is not int or not 0 <= amount < 1 << 32:
                raise ValueError("resources")
        if threads > _MOST_THREADS:
            raise ValueError("threads of a block")
        if type(parameters) is int:
            if not 0 <= parameters < len(read):
                raise ValueError("parameters of no kernel before it")
            taken = read[parameters].parameters
        else:
            found, end = [], 0
            for offset, size, code, c_type, label in parameters:
                if not (type(offset) is type(size) is int and type(c_type) is type(label) is str):
                    raise ValueError("parameter")
                own_size = CODE_SIZES.get(code, 0)  # 0: an unknown code
                if not (end <= offset and size > 0 and offset + size <= MAX_PARAMETERS_BYTES):
                    raise ValueError("parameter out of bounds")
                if own_size != size and own_size is not None:
                    raise ValueError("parameter of another size than its type, or of no type that is known")
                end = offset + size
                found.append(_new(Parameter, (offset, size, code, c_type, label)))
            taken = tuple(found)
        read.append(_new(Entry, (name, symbol, taken, typed, registers, shared, local, const, threads)))
    if sum([len(each.parameters) for each in read]) > _MOST_PARAMETERS:
        raise ValueError("too many parameters")
    return tuple(read)


def _variable(fields: Any) -> Variable:
    name, symbol, size, code, shape = fields
    if not (type(name) is type(symbol) is str and type(size) is int and 0 <= size < 1 << 40 and code in CODE_SIZES):
        raise ValueError("variable")
    if type(shape) is not list or len(shape) > 64 or not all(type(n) is int and 0 <= n < 1 << 40 for n in shape):
        raise ValueError("variable of no shape")
    return _new(Variable, (name, symbol, size, code, tuple(shape)))


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    """Check the types of the attributes that this package uses.

    Raises:
        ValueError: An attribute has another type.
    """
    carveout = attributes.get("carveout")
    if carveout is not None and not (type(carveout) is int and -1 <= carveout <= 100):
        raise ValueError("attribute carveout")
    for name, value in attributes.items():
        if name in ("cooperative", "debug", "lineinfo") and type(value) is not bool:
            raise ValueError(f"attribute {name}")
        if name in ("exceptions", "prototypes", "constants") and value:
            from .json_values import fits

            row = (int, _is_exception, list, lambda each: each is None or (type(each) is list and len(each) == 3))
            shapes = {"exceptions": [row], "prototypes": {str: str}, "constants": [str]}
            if not fits(value, shapes[name]):
                raise ValueError(f"attribute {name}")


def _is_exception(name: object) -> bool:
    """Check whether this is the name of a builtin exception: Numba raises the class of that name."""
    found = getattr(builtins, name, None) if type(name) is str else None
    return name is None or (isinstance(found, type) and issubclass(found, Exception))


def misfit(artifact: Artifact, entry: Entry, places: dict[str, Any] | None = None) -> str:
    """Say how a cubin contradicts the entry of one of its kernels; "" if it does not, or where there is no cubin.

    This runs at each hit, so it reads only what concerns this kernel, and calls no other function of this package.
    A caller that checks more kernels gives a dict `places` to be filled: by symbol, the section with the kernel's
    records (() if the kernel is known to fit), and by "" the bytes of records that fit, by the parameters they fit.
    """
    cubin, (major, minor, _suffix, _virtual) = artifact.cubin, artifact.target
    if not cubin:
        return ""
    try:
        place = places[entry.symbol] if places and entry.symbol in places else None
        if place is None:
            magic, width, abi, machine, table, flags, count, names_at = _ELF.unpack_from(cubin)
            if magic != b"\x7fELF" or width != 2 or machine != 190:
                return "its code is not a cubin"
            sm = flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF
            is_earlier = artifact.kind in ("cubin", "fatbin") and major * 10 <= sm <= major * 10 + minor
            if sm != major * 10 + minor and not is_earlier:
                return f"its cubin is for sm_{sm}"
            if not count:  # more sections than the header can count: a module of ten thousand kernels
                from .contradiction import contradiction_of

                wrong = contradiction_of(artifact)
                if places is not None and not wrong:
                    places.update(dict.fromkeys([each.symbol for each in artifact.entries], ()))
                return wrong
            rows = [*_SECTION.iter_unpack(cubin[table : table + 64 * count])]
            sections = {row[0]: row for row in reversed(rows)}  # the first of each name
            names, size = _SECTION_PLACE.unpack_from(cubin, table + 64 * names_at)
            if places is not None:
                _list_kernels(cubin[names : names + size], sections, places)
            name, at = _INFO + entry.symbol.encode() + b"\0", names - 1
            while (at := cubin.find(name, at + 1, names + size)) >= 0 and at - names not in sections:
                pass  # that was the tail of a longer section name
            if at < 0:
                return f"its cubin has no kernel {entry.symbol}"
            place = sections[at - names]
        elif not place:
            return ""
        _name, start, size = place
        fitting: dict[tuple[Parameter, ...], bytes] = {} if places is None else places.setdefault("", {})
        records = fitting.get(entry.parameters)
        if records and len(records) <= size and cubin.startswith(records, start):
            after, past = start + len(records), start + size
            if cubin.find(_RECORD_HEAD, after, past) < 0 and cubin.find(_LARGE_RECORD_HEAD, after, past) < 0:
                return ""  # equal to the records of a kernel with these parameters, and there are no further ones
        words, found, at, end, last = unpack_from(f"<{size // 4}I", cubin, start), {}, 0, size // 4, 0
        while at < end:
            head = words[at]
            if head & 0xFF == _SIZED:
                if head in (_PARAMETER_RECORD, _LARGE_PARAMETER_RECORD):
                    place, word = words[at + 2], words[at + 3]
                    found[place & 0xFFFF] = place >> 16, word >> 18 if head == _PARAMETER_RECORD else word & 0xFFFF
                    last = at + 4
                elif head & 3 << 16:  # a size not in whole words: the next record is not aligned to a word
                    from .contradiction import contradiction_of

                    return contradiction_of(artifact)
                at += head >> 18
            at += 1
        if found != {ordinal: each[:2] for ordinal, each in enumerate(entry.parameters)}:
            return f"its cubin has other parameters of {entry.symbol}"
        fitting[entry.parameters] = cubin[start : start + 4 * last]
    except (StructError, ValueError, OverflowError, IndexError) as error:
        return f"its cubin is damaged: {error}"
    return ""


def _list_kernels(names: bytes, sections: Mapping[int, tuple[int, int, int]], places: dict[str, Any]) -> None:
    """Add each section with a kernel's records (its name, offset and size) to `places`, by the kernel's symbol."""
    before, at = b"\0" + _INFO, 0
    while (at := names.find(before, at)) >= 0:
        start, end = at + len(before), names.find(b"\0", at + 1)
        if at + 1 in sections:
            places.setdefault(names[start:end].decode("utf-8", "replace"), sections[at + 1])
        at = end if end >= 0 else len(names)
