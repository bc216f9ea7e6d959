"""Immutable values that all parts of the package use: targets, events, artifacts, and what NVRTC is asked to compile.

Promise     Each target has one spelling; parsing its `name` gives it back. `artifact_from_header` checks each field
            against its type, its bounds and the closed vocabulary of parameter codes, and raises ValueError otherwise.
            No field names code to run. `misfit` checks the description of one kernel against the cubin that is about to
            be loaded.
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
Not here    The header as it is written (header), the file that holds it (store), the key that names it (keys),
            the check of a whole artifact against its code (contradiction), and `Request`, which the engine looks up and
            builds for kernels of every kind (engine).
Source      CUDA C++ Programming Guide, "Compute Capabilities" and "Feature Set Compiler Targets":
            sm_XYa runs on X.Y alone, sm_XYf on the family, sm_XY on X.Y and later minors of X.
"""

from __future__ import annotations

import builtins
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from struct import Struct, unpack_from
from struct import error as StructError
from typing import TYPE_CHECKING, Any, TypeAlias

from ..errors import EntryError, LaunchError, OptionError

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:
    from collections import _tuplegetter

    _field = functools.cache(_tuplegetter)  # classes share them: each object takes time again when the process ends

    class NamedTuple(tuple):
        """The base of this package's named tuples, whose subclasses are written like those of `typing.NamedTuple`.

        That one compiles the annotations of every field, `collections.namedtuple` a constructor: 3 and 2 ms for the
        thirty such classes of a warm start. Here all share one constructor.
        """

        _fields, _field_defaults = (), {}

        def __init_subclass__(cls) -> None:
            fields = tuple(cls.__annotations__)
            if fields:  # a subclass of a named tuple has that one's
                cls._fields = cls.__match_args__ = fields
                cls._field_defaults = {each: cls.__dict__[each] for each in fields if each in cls.__dict__}
                for at, each in enumerate(fields):
                    setattr(cls, each, _field(at, None))

        def __new__(cls, /, *values: Any, **named: Any) -> Any:
            fields = cls._fields
            if named or len(values) != len(fields):
                given, rest = cls._field_defaults | named, fields[len(values) :]
                if len(values) > len(fields) or not named.keys() <= {*rest} <= given.keys():
                    raise TypeError(f"{cls.__name__}.__new__() takes {', '.join(fields)}, not {values} and {named}")
                values += tuple(map(given.__getitem__, rest))
            return tuple.__new__(cls, values)

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, /, **changed: Any) -> Any:
            values = [*map(changed.pop, self._fields, self)]
            return self.__class__(*values, **changed)

        __replace__ = _replace

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            shown = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{self.__class__.__name__}({shown})"


_KINDS = ("sm", "compute")


class Target(NamedTuple):
    """A compute capability as compilers name it.

    Args:
        major: Major version of the compute capability.
        minor: Minor version, 0 to 9.
        suffix: `""`, `"a"` (architecture-specific) or `"f"` (family-specific).
        virtual: True for `compute_XY`: the code is PTX and still has to be linked for a device.
    """

    major: int
    minor: int
    suffix: str = ""
    virtual: bool = False

    @property
    @functools.cache  # noqa: B019 (one item for each target)
    def name(self) -> str:
        """The spelling that NVRTC and nvJitLink take: `sm_90a`, `compute_80`; `any` for `NO_TARGET`."""
        if not self.major:
            return "any"
        return f"{'compute' if self.virtual else 'sm'}_{self.major}{self.minor}{self.suffix}"

    @property
    def cc(self) -> tuple[int, int]:
        """The compute capability as (major, minor)."""
        return self.major, self.minor

    @property
    def plain(self) -> Target:
        """The same compute capability without a suffix; devices of this target run its code too."""
        return Target(self.major, self.minor, "", self.virtual)

    @property
    def as_virtual(self) -> Target:
        """The PTX target of the same compute capability."""
        return Target(self.major, self.minor, self.suffix, True)

    def runs_on(self, cc: tuple[int, int]) -> bool:
        """Check whether a cubin of this target loads on a device of compute capability `cc`.

        Source:
            CUDA C++ Programming Guide, "Binary Compatibility": same major, same or later minor; with
            suffix `a` the very same capability, with `f` the same family (taken here as the same major).
        """
        if self.virtual:
            return False
        if self.suffix == "a":
            return self.cc == cc
        return self.major == cc[0] and self.minor <= cc[1]

    def fallbacks(self) -> Iterator[Target]:
        """Yield other targets whose code a device of this one runs, best first: lower minors of its major, then PTX."""
        for minor in range(self.minor, -1, -1):
            plain = Target(self.major, minor)
            yield from (plain, plain._replace(suffix="f"))
        if self.suffix:
            yield self.as_virtual
        for minor in range(self.minor, -1, -1):
            yield Target(self.major, minor, virtual=True)
        for number in reversed(_OLDER):
            if number // 10 < self.major:
                yield Target(*divmod(number, 10), virtual=True)

    def __str__(self) -> str:
        return self.name


NO_TARGET = Target(0, 0)
"""The target of bytes that are for no particular device; `parse_target` never returns it."""

_OLDER = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
"""All compute capabilities so far, as major * 10 + minor; the driver compiles PTX of one for any later device."""


def parse_target(spelling: object) -> Target:
    """Read one target as users write it.

    Args:
        spelling: `"sm_90"`, `"sm_90a"`, `"compute_80"`, `(9, 0)` or a `Target`.

    Raises:
        OptionError: The spelling is none of these.
    """
    if isinstance(spelling, Target):
        return spelling
    if isinstance(spelling, tuple) and len(spelling) == 2 and all(type(part) is int for part in spelling):
        major, minor = spelling
        if 1 <= major <= 99 and 0 <= minor <= 9:
            return Target(major, minor)
    if isinstance(spelling, str):
        kind, _, rest = spelling.partition("_")
        digits = rest.rstrip("af")
        suffix = rest[len(digits) :]
        is_number = 2 <= len(digits) <= 3 and digits.isascii() and digits.isdecimal() and digits[0] != "0"
        if kind in _KINDS and is_number and len(suffix) <= 1:
            return Target(int(digits[:-1]), int(digits[-1]), suffix, kind == "compute")
    raise OptionError(
        f"cannot read arch {spelling!r}",
        "it is not a compute capability",
        'write "auto" or "native" alone, "sm_90", "sm_90a", "compute_80", "9.0", (9, 0), or a list of targets',
    )


def read_arch(arch: object) -> tuple[Target, ...]:
    """The targets that `arch` names; none for "auto" and "native"."""
    if arch is None or arch == "auto" or arch == "native":
        return ()
    if isinstance(arch, (list, set, frozenset)):
        if not arch:
            raise OptionError(f"cannot use arch={arch!r}", "it names no target", 'write "auto" or ["sm_80", "sm_90"]')
        return tuple(dict.fromkeys(map(read_target, arch)))
    return (read_target(arch),)


def read_target(spelling: object) -> Target:
    """Read one target as `parse_target`, or a compute capability alone: `8.6`, `"8.6"`, `"86"`, `"9.0a"`."""
    text = str(spelling) if isinstance(spelling, (str, float)) else ""
    is_bare = text[:1].isdecimal() and text.replace(".", "", 1).rstrip("af").isdecimal()
    return parse_target("sm_" + text.replace(".", "", 1) if is_bare else spelling)


class Choice(NamedTuple):
    """The target to build for on a device, and other targets whose code it runs.

    Args:
        target: The target to build for.
        ptx_target: The virtual target to compile to first; None for none.
        alternatives: Targets whose stored code is always accepted as well.
        fallbacks: Returns the targets whose stored code is accepted where nothing can be compiled.
    """

    target: Target
    ptx_target: Target | None = None
    alternatives: tuple[Target, ...] = ()
    fallbacks: Callable[[], Iterable[Target]] = tuple


def choose_for_device(arch: tuple[Target, ...], device: Target, kernel: str) -> Choice:
    """Choose the target to build for a device: one that `arch` names, or else the device's own.

    Args:
        arch: Targets that the user named; none for "auto".
        device: Target of the device.
        kernel: Name of the kernel, for the message.

    Raises:
        LaunchError: Nothing that `arch` names runs on the device.
    """
    plain = (device.plain,) if device.suffix else ()
    if not arch:
        return Choice(device, None, plain, device.fallbacks)
    real, virtual = real_target(arch, device.cc), ptx_target(arch, device)
    if real is not None:
        return Choice(real)
    if virtual is not None:
        return Choice(device, virtual, plain, lambda: (virtual,))
    names = ", ".join(each.name for each in arch)
    raise LaunchError(
        f"cannot launch {kernel} on a device of {device}",
        f"it is built only for {names}",
        "leave arch= out, or add this device's",
    )


def real_target(arch: tuple[Target, ...], cc: tuple[int, int]) -> Target | None:
    """The best of the targets that `arch` names whose cubins a device of this compute capability loads."""
    real = [each for each in arch if each.runs_on(cc)]
    return max(real, key=lambda each: (each.cc, each.suffix)) if real else None


def ptx_target(arch: tuple[Target, ...], target: Target) -> Target | None:
    """The virtual target that `arch` names as intermediate PTX for a real target; None if it names none."""
    if target.virtual or real_target(arch, target.cc) is not None:
        return None
    virtual = [each for each in arch if each.virtual and each.cc <= target.cc]
    fitting = [each for each in virtual if not each.suffix or each._replace(virtual=False).runs_on(target.cc)]
    return max(fitting, default=None)


# -- events ----------------------------------------------------------------------------------------------------------


class EventKind(StrEnum):
    """The kinds of events, with the fields that each carries.

    Attributes:
        HIT: A resolution was served: kernel, key, target, source ("memory", "disk", ...), compile_time_s, load_time_s.
        MISS: A resolution found nothing: kernel, key, target, reason (text) and reasons (`Reason` values).
        WAITED: Another thread or process compiled it meanwhile: kernel, key, waited_s. Or a wait above a second for
            something else: what, waited_s.
        COMPILE_BEGIN, COMPILE_END, COMPILE_FAILED: kernel, key, target, and seconds or error.
        LOAD: A module was loaded on a device: kernel, key, device, load_time_s.
        STORED: An entry was published: key, size_bytes.
        EVICTED: Entries were removed to keep the limits: entries, size_bytes.
        DAMAGED: An entry or manifest failed verification and was quarantined: key, reason.
        UNCACHEABLE: A kernel runs uncached: kernel, reason.
        FALLBACK: A kernel was built in another way than requested, and works: kernel, target, reason. No error.
        TROUBLE: An operation of the cache failed and was skipped: where, error; errno, for an error of the system.
    """

    HIT = "hit"
    MISS = "miss"
    WAITED = "waited"
    COMPILE_BEGIN = "compile_begin"
    COMPILE_END = "compile_end"
    COMPILE_FAILED = "compile_failed"
    LOAD = "load"
    STORED = "stored"
    EVICTED = "evicted"
    DAMAGED = "damaged"
    UNCACHEABLE = "uncacheable"
    FALLBACK = "fallback"
    TROUBLE = "trouble"


class Event(NamedTuple):
    """Something that happened in the cache."""

    kind: EventKind
    fields: Mapping[str, Any] = {}


Emit: TypeAlias = Callable[[Event], None]
"""The function that takes events: it is called with one and must not raise."""


IN_USER_CODE: dict[int, int] = {}
"""Threads, by `threading.get_ident()`, that run user code called by this package (subscribers, log and warning
handlers, functions that return source), with the depth of such calls: other threads do not wait long for them."""


LONG_WAIT_S = 1.0
"""Waits of this many seconds are events, and counted."""


def tell_wait(emit: Emit, what: str, waited_s: float) -> None:
    """Emit the event of a wait if it was long.

    Args:
        emit: Takes the event.
        what: What was waited for.
        waited_s: For how many seconds.
    """
    if waited_s >= LONG_WAIT_S:
        emit(Event(EventKind.WAITED, {"what": what, "waited_s": waited_s}))


def trouble(where: str, error: object) -> Event:
    """Make the event of an operation that failed and was skipped."""
    fields: dict[str, Any] = {"where": where, "error": str(error)}
    if isinstance(error, OSError) and error.errno:
        fields["errno"] = error.errno
    return Event(EventKind.TROUBLE, fields)


KEY_DIGITS = 16
"""Leading digits of a key under which its hits are counted."""


class Counts:
    """Sums over some period. Times are in seconds."""

    hits = misses = waited = evictions = errors = compiles = loads = waits = 0
    compile_time_s = load_time_s = time_saved_s = wait_time_s = 0.0

    @classmethod
    def of(cls, sums: Mapping[str, float]) -> Counts:
        """Read sums by name; unknown names, of other versions, are ignored."""
        counts = cls()
        for name in _COUNTED:
            setattr(counts, name, type(getattr(cls, name))(sums.get(name, 0)))
        return counts

    def as_dict(self) -> dict[str, Any]:
        """List all sums by name."""
        return {name: getattr(self, name) for name in _COUNTED}


_COUNTED = tuple(name for name in vars(Counts) if not name.startswith("_") and name not in ("of", "as_dict"))


# -- artifact ----------------------------------------------------------------------------------------------------------


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
"""The kind of bytes that another compiler made: no cubin, no kernel, the target `any`, which no device and no request
for a kernel has, so they are never launched. The payloads are concatenated; their names and sizes are in the
attributes, beside label and meta."""

_MOST_PARAMETERS = 1 << 20  # of all kernels together: 65,536 kernels may share one list, which is checked for each
_MOST_KERNELS = _MAX_NAME = 65536
_MAX_KIND, _MAX_SECONDS, _MOST_THREADS = 32, 1e9, 1024
_MAX_BUILT, _MAX_BUILT_LABEL, _MAX_PAYLOAD_NAME_BYTES = 4096, 1024, 200

_ELF = Struct("<4sB3xB9xH20xQI8xHH")  # magic, class, ABI, machine, section headers, flags, their count and names
_SECTION = Struct("<I20xQQ24x")  # its name, its place and its size
_SECTION_PLACE = Struct("<24xQQ24x")
_COUNTS = Struct("<32xQI")  # of the first section, where the header has no room: their count and names
_INFO = b".nv.info."
_SIZED, _PARAMETER_RECORD, _LARGE_PARAMETER_RECORD = 4, 12 << 16 | 0x1704, 12 << 16 | 0x4504
_RECORD_HEAD, _LARGE_RECORD_HEAD = (
    _PARAMETER_RECORD.to_bytes(4, "little"),
    _LARGE_PARAMETER_RECORD.to_bytes(4, "little"),
)
"""The first words of records: layout, attribute and size. A parameter's record continues with one unused word, one
with ordinal and offset, and one with the size: in its upper 14 bits, or its lower 16 in a large record."""


class CompiledKernel(NamedTuple):
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
        kernels: The kernels in it, in order.
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
    kernels: tuple[CompiledKernel, ...]
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
        return tuple(each.name for each in self.kernels)

    def kernel(self, name: str, label: str) -> CompiledKernel:
        """Find a kernel by its name or symbol, ignoring spaces, or by its name without namespace and template arguments
        where that is unique.

        Raises:
            EntryError: There is none, or several; the message calls the module `label`.
        """
        for each in self.kernels:
            if name == each.name or name == each.symbol:
                return each
        wanted = "".join(name.split())
        named = [each for each in self.kernels if "".join(each.name.split()) == wanted]
        named = named or [each for each in self.kernels if _bare(each.name) == wanted]
        if len(named) == 1:
            return named[0]
        there_are = ", ".join(each.name for each in named or self.kernels)
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
        kernels, kind = header["entries"], header["kind"]
        seconds, attributes = header["compile_time_s"], header["attributes"]
        if type(attributes) is not dict or type(seconds) not in (int, float) or not 0 <= seconds < _MAX_SECONDS:
            raise ValueError("compile_time_s or attributes")
        if kind == BUILT:
            if header["target"] != NO_TARGET.name or kernels != []:
                raise ValueError("kernels or a target where there are none")
            return checked_built(Artifact(BUILT, NO_TARGET, (), payloads[BUILT], float(seconds), attributes))
        if type(kernels) is not list or not 0 < len(kernels) <= _MOST_KERNELS:
            raise ValueError("kernels")
        if attributes:
            _check_attributes(attributes)
        if type(kind) is not str or len(kind) > _MAX_KIND or not (kind.isidentifier() and kind.islower()):
            raise ValueError("kind")
        target = parse_target(header["target"])
        cubin = payloads.get("cubin", b"")
        if not cubin and not target.virtual and "ltoir" not in payloads:
            raise ValueError("a real target without a cubin")
        read = _kernels(kernels)
        variables = tuple([_variable(each) for each in header["variables"]]) if "variables" in header else ()
        artifact = _new(Artifact, (kind, target, read, cubin, float(seconds), attributes, payloads, variables))
        if is_launched and len(read) == 1 and (wrong := misfit(artifact, read[0])):
            raise ValueError(wrong)
        return artifact
    except (KeyError, TypeError) as error:
        raise ValueError(f"header is malformed: {error!r}") from None


_new = tuple.__new__
"""Constructs a named tuple faster than its own constructor; a warm start makes one for each parameter."""


def checked_built(artifact: Artifact) -> Artifact:
    """Check label, meta, names and sizes of an artifact of the kind `built`, none of which is trusted.

    Raises:
        ValueError: They are malformed, contradict the bytes, or a payload's name could lead out of a folder.
    """
    attributes, total, names = artifact.attributes, 0, set()
    rows, label, meta = attributes.get("payloads"), attributes.get("label"), attributes.get("meta")
    if not (type(label) is str and type(meta) is dict and type(rows) is list):
        raise ValueError("attributes of another form")
    for row in rows:  # by hand: this runs at each hit
        if not (type(row) is list and len(row) == 2 and type(row[0]) is str and type(row[1]) is int):
            raise ValueError("no payload")
        name, size = row
        if not is_safe_name(name):
            raise ValueError(f"a payload is called {name!r}")
        if size < 0:
            raise ValueError("a payload of negative size")
        total += size
        names.add(name)
    if not 0 < len(rows) == len(names) <= _MAX_BUILT:
        raise ValueError(f"{len(rows)} payloads")
    if total != len(artifact.cubin):
        raise ValueError("payloads of other sizes than its bytes")
    if not label or len(label) > _MAX_BUILT_LABEL:
        raise ValueError("label")
    return artifact


def is_safe_name(name: str) -> bool:
    """Check whether a payload's name can be the name of a file in any folder."""
    is_plain = name.isprintable() and name not in ("", ".", "..") and "/" not in name and "\\" not in name
    return (
        is_plain and len(name.encode("utf-8", "surrogatepass")) <= _MAX_PAYLOAD_NAME_BYTES
    )  # surrogates are not printable


def _kernels(rows: Any) -> tuple[CompiledKernel, ...]:
    """Read the kernels; in place of parameters, one may have the number of an earlier kernel with the same."""
    read: list[CompiledKernel] = []
    for name, symbol, typed, resources, parameters in rows:
        if not (type(name) is type(symbol) is str and type(typed) is bool and 0 < len(symbol) <= _MAX_NAME):
            raise ValueError("kernel")
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
        read.append(_new(CompiledKernel, (name, symbol, taken, typed, registers, shared, local, const, threads)))
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


def misfit(artifact: Artifact, compiled: CompiledKernel, places: dict[str, Any] | None = None) -> str:
    """Say how a cubin contradicts the description of one of its kernels; "" if it does not, or where there is no cubin.

    This runs at each hit, so it reads only what concerns this kernel, and calls no other function of this package.
    A caller that checks more kernels gives a dict `places` to be filled: by symbol, the section with the kernel's
    records, and by "" the bytes of records that fit, by the parameters they fit.
    """
    cubin, (major, minor, _suffix, _virtual) = artifact.cubin, artifact.target
    if not cubin:
        return ""
    try:
        place = places[compiled.symbol] if places and compiled.symbol in places else None
        if place is None:
            magic, width, abi, machine, table, flags, count, names_at = _ELF.unpack_from(cubin)
            if magic != b"\x7fELF" or width != 2 or machine != 190:
                return "its code is not a cubin"
            sm = flags >> 8 & 0xFF if abi >= 8 else flags & 0xFF
            is_earlier = artifact.kind in ("cubin", "fatbin") and major * 10 <= sm <= major * 10 + minor
            if sm != major * 10 + minor and not is_earlier:
                return f"its cubin is for sm_{sm}"
            if not count:  # more than the header can count: the first section has the numbers
                count, names_at = _COUNTS.unpack_from(cubin, table)
            rows = [*_SECTION.iter_unpack(cubin[table : table + 64 * count])]
            sections = {row[0]: row for row in reversed(rows)}  # the first of each name
            names, size = _SECTION_PLACE.unpack_from(cubin, table + 64 * names_at)
            if places is not None:
                _list_kernels(cubin[names : names + size], sections, places)
            name, at = _INFO + compiled.symbol.encode() + b"\0", names - 1
            while (at := cubin.find(name, at + 1, names + size)) >= 0 and at - names not in sections:
                pass  # that was the tail of a longer section name
            if at < 0:
                return f"its cubin has no kernel {compiled.symbol}"
            place = sections[at - names]
        _name, start, size = place
        fitting: dict[tuple[Parameter, ...], bytes] = {} if places is None else places.setdefault("", {})
        records = fitting.get(compiled.parameters)
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
                elif head & 3 << 16:
                    return "its cubin has records that are not whole words, which no compiler writes"
                at += head >> 18
            at += 1
        if found != {ordinal: each[:2] for ordinal, each in enumerate(compiled.parameters)}:
            return f"its cubin has other parameters of {compiled.symbol}"
        fitting[compiled.parameters] = cubin[start : start + 4 * last]
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


class Resolution(NamedTuple):
    """An artifact and how it was found.

    Args:
        artifact: The artifact.
        key: Its key; "" if it cannot be cached.
        source: `"memory"`, `"disk"`, `"tier"`, `"waited"` or `"compiled"`.
        uncacheable: Reason why it cannot be cached; "" if it can.
        is_stored: Whether it came from a store.
        name: Where it has no key, a name that is unique in this process.
        row: Its row in the kernel's index, if it depends on headers; else it has no transcript.
    """

    artifact: Artifact
    key: str
    source: str
    uncacheable: str = ""
    is_stored: bool = False
    name: str = ""
    row: Mapping[str, Any] = {}


def copied(value: Any) -> Any:
    """Copy lists and mappings, so that a later change by their owner does not change the copy."""
    if isinstance(value, Mapping):
        return {name: copied(each) for name, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list) else value


_unkeyed = itertools.count()


def resolved_without_key(artifact: Artifact, why: str) -> Resolution:
    """Make the resolution of an uncacheable artifact, with a unique name: a counter, since ids are reused."""
    return Resolution(artifact, "", "compiled", why, name=f"uncached {next(_unkeyed)}")


# -- request -----------------------------------------------------------------------------------------------------------


SOURCE_KINDS = ("cuda", "ptx", "cubin", "fatbin", "ltoir")
"""The kinds of source that a kernel other than a Numba kernel is made from."""


FILE_WORDS = {
    "include": "u", "__has": "h", "__D": "D", "__T": "T", "E__": "E", "P__": "P", "DATE": "A", "TIME": "M",
    "assert": "a", "source_loc": "u", "__builtin_": "b", "\\": "\\", "??/": "?",
}  # fmt: skip
"""A CUDA C++ text that may include files, or whose code may depend on its path or the time, contains one of these.
`E__` covers `__LINE__` and `__FILE__`; a backslash is there because a line may be continued within a word. The value
of each word is its rarest letter: a search for a letter takes a thirtieth of the time, and mostly finds none."""


DEBUG_FLAGS = frozenset(("-G", "--device-debug"))
LINE_FLAGS = DEBUG_FLAGS | {"-lineinfo", "--generate-line-info"}
"""Raw flags of NVRTC for line tables."""


class CompileOptions(NamedTuple):
    """Compile options. Fields as in `cached_kernel`; `base_dir` is the folder that relative paths start from."""

    fastmath: bool = False
    std: str | None = None
    defines: tuple[tuple[str, str | None], ...] = ()
    include_dirs: tuple[str, ...] = ()
    max_registers: int | None = None
    lineinfo: bool = False
    debug: bool = False
    lto: bool = False
    opt: int = 3
    flags: tuple[str, ...] = ()
    keep_ptx: bool = True
    base_dir: str = ""

    @property
    def has_lines(self) -> bool:
        """True if the code has line tables, which contain paths."""
        return self.lineinfo or self.debug or not LINE_FLAGS.isdisjoint(self.flags)


class LinkInput(NamedTuple):
    """One input of the linker beside the kernel: `kind` as in `model.linkable`, a name for messages, its bytes.

    Quoted includes in a `cu` input are searched for in `folder` first.
    """

    kind: str
    name: str
    data: bytes
    folder: str = ""

    @property
    def unplaced(self) -> str:
        """The reason why an input given as text, with a path as its name, cannot be keyed if it includes files."""
        return (
            f"the link input {self.name} includes files from the folder in its name (link the file itself by its path)"
        )


class Origin(NamedTuple):
    """Place of a source in the user's files, for messages and line tables.

    Args:
        path: The user's file; `""` where there is none (exec, stdin).
        line: The line of that file at which the source, or what defines it, starts; 1-based.
        is_whole_file: Whether the file itself is the source.
        is_cell: Whether `path` is the name of a notebook's cell: messages name it, line tables and keys do not, since
            it differs in each session.
    """

    path: str = ""
    line: int = 1
    is_whole_file: bool = False
    is_cell: bool = False


class ModuleKernels(NamedTuple):
    """A request for several kernels of one source, as a module.

    Args:
        names: The kernels wanted, name expressions included, in order; () for all that the source defines.
        lazy: Whether to compile it to LTO-IR alone, from which each kernel is linked when it is first used.
    """

    names: tuple[str, ...] = ()
    lazy: bool = False


class SourceInput(NamedTuple):
    """A source, or code that a compiler made of one, to be built for one target.

    Args:
        kind: One of `SOURCE_KINDS`.
        label: Name of the kernel in messages, `"package.module.saxpy"`; not part of any key.
        source: The text; "" if there is code instead.
        name: The kernel that the user requested, a name expression included; None to find it.
        guess: The name of the Python function that returned the source; it decides among several kernels.
        target: What to build for.
        options: The compile options.
        link: Further inputs, in order.
        signature: C++ types of the parameters as the user wrote them; None to use those the compiler reports.
        ptx_target: The virtual target to compile for first, where the user gave one.
        origin: Place of the source in the user's files.
        asks_files: Whether the source, or CUDA C++ that it links, may include files.
        module: The kernels requested, for a module; None for one kernel.
        code: A cubin, fatbin or LTO-IR, as the kind says.
        toolkit_dirs: The toolkit's own header folders, which are searched last; in no key.
    """

    kind: str
    label: str
    source: str
    name: str | None
    guess: str | None
    target: Target
    options: CompileOptions
    link: tuple[LinkInput, ...] = ()
    signature: str | None = None
    ptx_target: Target | None = None
    origin: Origin = Origin()
    asks_files: bool = False
    module: ModuleKernels | None = None
    code: bytes = b""
    toolkit_dirs: tuple[str, ...] = ()
