"""Fingerprint a Python kernel: everything that determines its code, apart from argument types.

Promise     A change of any of these changes the digest: the code, constants and defaults of the function and
            of every function it calls, in any file; the globals, closure variables and attributes of
            modules they read; decorator options; the content of linked files; Python's minor version.
            Nothing else does: not process, hash seed, module name, checkout path, comments or lines (unless
            lines are requested). An input that cannot be captured gives `Uncapturable`, and is never left out; if
            the user gives `depends`, it represents the content of such inputs, and only of such.
            `code_form` is equal for two code objects only if they compute the same from the same outer names. Two
            values have equal forms only if a compiler generates the same code for them: types count (1, True and 1.0
            differ), so do signed zeros, NaN payloads, the order of a dict, strides and dtype of an array.
            A registration is keyed completely: its subject, options, types and implementing code. Registrations of
            different subjects are ordered by subject, not by the time of registration.
Method      A graph: a node per function and per value, an edge per name that is read. The digest of a
            function covers the nodes it reaches, numbered in the order of the code that reaches them.
            Objects of the compiler are described by its `Flavour`.
            The form of code is its bytecode with exception table, names and typed constants, those in the order of
            their use; not marshal (its bytes depend on reference counts) and not repr (addresses). The scan walks the
            two-byte words of `co_code` itself: `dis` takes 4 us an instruction.
Not here    Packages that are pinned by version (the compiler, NumPy, the standard library; a separate component)
            and headers that linked CUDA C++ includes (headers).
Source      Python documentation, "dis": LOAD_GLOBAL holds its name's index shifted by one, LOAD_ATTR too
            from 3.12 on; inline caches are CACHE words in between.
"""

from __future__ import annotations

import builtins
import dis
import enum
import functools
import math
import operator
import os
import re
import struct
import sys
import weakref
from _frozen_importlib import BuiltinImporter, FrozenImporter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from types import BuiltinFunctionType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from ...keys import COVERED, Component, Plain, digest_of, encode, sha256
from ...model import LinkInput, NamedTuple, Origin
from ...settings import variables, working_directory

if TYPE_CHECKING:
    from . import External, Flavour, Registration

# -- code --------------------------------------------------------------------------------------------------------------


_CACHE, _EXTENDED_ARG = dis.opmap.get("CACHE", 0), dis.opmap["EXTENDED_ARG"]
_LOAD_GLOBAL, _LOAD_DEREF = dis.opmap["LOAD_GLOBAL"], dis.opmap["LOAD_DEREF"]
_LOAD_ATTR, _LOAD_METHOD = dis.opmap["LOAD_ATTR"], dis.opmap.get("LOAD_METHOD", -1)
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_OF_CLASS = tuple(dis.opmap[name] for name in ("LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS") if name in dis.opmap)
"""Instructions that read a name in the body of a class, where it may be local or global."""

_OF_CLASS_CELLS = tuple(dis.opmap[name] for name in ("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") if name in dis.opmap)
_CELLS = (_LOAD_DEREF, *_OF_CLASS_CELLS)
_READING = re.compile(b"[" + re.escape(bytes((_LOAD_GLOBAL, _IMPORT_NAME, *_OF_CLASS, *_CELLS))) + b"]", re.DOTALL)
_USING = re.compile(b"[" + re.escape(bytes(each for each in dis.hasconst if each < 256)) + b"]", re.DOTALL)
_OPTIMIZED, _VARIADIC, _VARIADIC_KEYWORDS = 0x01, 0x04, 0x08  # in `co_flags`, as named by `inspect`
_HAS_DOCSTRING = 0x4000000  # in `co_flags` from Python 3.13 on
_SKIPPED = bytes((_CACHE, _EXTENDED_ARG))
_ATTR_SHIFT = 1 if sys.version_info >= (3, 12) else 0

SPECIAL = frozenset(
    ("__annotations__", "__code__", "__dict__", "__doc__", "__firstlineno__", "__globals__", "__module__", "__name__",
     "__qualname__")
)  # fmt: skip
"""Special attributes, by which a function or class describes itself. They do not affect its own code, but other code
may read them: that of the kernel, or functions that run while the kernel is typed (`@overload`, `@intrinsic`)."""

BY_TEXT = {"getattr", "hasattr", "attrgetter", "methodcaller", "__getattribute__"}
"""Functions that get an attribute by its name."""

BY_BYTES = {"view", "from_buffer"}
"""Functions that read an array as bytes, in a kernel or in what an intrinsic makes of it."""

_TELLING = BY_TEXT | BY_BYTES | {"dir"}


Names = tuple[str, ...]


class Read(NamedTuple):
    """A name that code reads from outside: `scope` is "global", "closure" or "import". Of its value, `attributes` are
    read, each from the one before."""

    scope: str
    name: str
    attributes: Names = ()


class Reading(NamedTuple):
    """A code object as it is keyed: a digest of its form, its `outer_reads`, the words of its names and constants, and
    those among them that are `telling`."""

    digest: bytes
    reads: tuple[Read, ...]
    words: frozenset[str]
    telling: frozenset[str]


readings: dict[tuple[int, bool, str], tuple[weakref.ref[CodeType], Reading]] = {}
"""The readings of living code objects, by id, `with_lines` and file."""


def read_code(code: CodeType, *, with_lines: bool) -> Reading:
    """Read a code object, once in a process: code objects are immutable, unlike the values that they read.

    Raises:
        TypeError: It holds a constant that no compiler makes.
    """
    key = id(code), with_lines, working_directory() if with_lines else ""
    known = readings.get(key)
    if known is not None and known[0]() is code:
        return known[1]
    form = repr(code_form(code, with_lines=with_lines))  # repr is exact for text, bytes and numbers, and fast
    words = frozenset(_words(code))
    made = Reading(sha256(encode(form)).digest(), outer_reads(code), words, telling(words))
    readings[key] = weakref.ref(code, lambda _gone: readings.pop(key, None)), made
    return made


def code_form(code: CodeType, *, with_lines: bool) -> Plain:
    """The code object as plain values.

    Raises:
        TypeError: It holds a constant that no compiler makes.
    """
    lines: Plain = None
    named = code.co_argcount + code.co_kwonlyargcount
    named += bool(code.co_flags & _VARIADIC) + bool(code.co_flags & _VARIADIC_KEYWORDS)
    if with_lines:
        where: Plain = os.path.normpath(code.co_filename)
        if not os.path.isabs(code.co_filename):  # compilers complete a relative name by one of these folders
            where = code.co_filename, working_directory(), list(variables(("PWD",)).values())
        # a compiler asks the source for the line of `def`, which may be below the decorator
        above = source_text(code).partition(f"def {code.co_name}")[0].count("\n")
        lines, named = (where, code.co_firstlineno, code.co_linetable, above), len(code.co_varnames)
    words, constants = _by_use(code)
    return (
        code.co_qualname,
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags & ~_HAS_DOCSTRING),
        words,
        code.co_exceptiontable,
        *map("\0".join, (code.co_names, code.co_varnames[:named], code.co_cellvars, code.co_freevars)),
        [_constant_form(each, with_lines) for each in constants],
        lines,
    )


def _by_use(code: CodeType) -> tuple[bytes, list[Any]]:
    """The instructions with constants numbered by first use, and these constants, without the docstring."""
    words, numbers, uses = bytearray(code.co_code), dict[int, int](), list[int]()
    for match in _USING.finditer(bytes(words[::2])):
        at = match.start()
        uses.append(numbers.setdefault(_argument(words, at), len(numbers)))
        words[2 * at + 1] = 0
        while at and words[2 * at - 2] == _EXTENDED_ARG:
            at -= 1
            words[2 * at + 1] = 0
    return bytes(words) + repr(uses).encode(), [code.co_consts[each] for each in numbers]


def _constant_form(value: Any, with_lines: bool) -> Plain:
    kind = type(value)
    if kind is CodeType:
        return "code", code_form(value, with_lines=with_lines)
    if kind is tuple:
        return "tuple", [_constant_form(each, with_lines) for each in value]
    if kind is frozenset:
        return "frozenset", tuple(sorted(repr(_constant_form(each, with_lines)) for each in value))
    if kind is slice:
        return "slice", [_constant_form(each, with_lines) for each in (value.start, value.stop, value.step)]
    return scalar_form(value)


def scalar_form(value: Any) -> Plain:
    """The form of a constant, with its type. Floats are compared by bits: signed zeros and NaNs count.

    Raises:
        TypeError: It is not a constant of the language.
    """
    kind = type(value)
    if kind in (bool, int, str, bytes) or value is None:
        return kind.__name__, value
    if kind is float:
        return "float", struct.pack("<d", value)
    if kind is complex:
        return "complex", struct.pack("<dd", value.real, value.imag)
    if value is Ellipsis or value is NotImplemented:
        return (str(value),)
    raise TypeError(f"{kind.__name__} is not a constant")


def telling(words: Iterable[str]) -> frozenset[str]:
    """Pick the special attributes of functions and classes, parts of their names, functions that get one by name, and
    those that read an array as bytes."""
    return frozenset([word for word in words if "__" in word or word in _TELLING])


def words_in(text: str) -> list[str]:
    """List the words of a text, which may name attributes."""
    return re.findall(r"\w+", text)


def _words(code: CodeType) -> Iterator[str]:
    """Yield the names, and the words of constants, without docstrings and the implicit start of class bodies."""
    names: Iterable[str] = code.co_names
    if not code.co_flags & _OPTIMIZED:
        own = ("STORE_NAME", "LOAD_NAME")
        used = [(str(each.argval), each.opname) for each in dis.get_instructions(code) if type(each.argval) is str]
        names = [name for name, operation in used if operation not in own or not name.startswith("__")]
    yield from names
    for constant in _by_use(code)[1]:
        yield from _words(constant) if type(constant) is CodeType else words_in(repr(constant))


def outer_reads(code: CodeType) -> tuple[Read, ...]:
    """Every outer name that `code` and the code nested in it read, each once, in order."""
    return tuple(dict.fromkeys(_reads(code, frozenset(code.co_freevars))))


def _reads(code: CodeType, free: frozenset[str]) -> list[Read]:
    found: list[Read] = []
    words, names = code.co_code, code.co_names  # each access to co_code makes a copy
    operations = words[::2]
    for match in _READING.finditer(operations):
        at = match.start()
        word, argument = words[2 * at], _argument(words, at)
        if word == _IMPORT_NAME:
            found.append(Read("import", names[argument]))
        elif word == _LOAD_GLOBAL:
            found.append(Read("global", names[argument >> 1], _attributes(names, words, operations, at + 1)))
        elif word in _OF_CLASS:
            if names[argument] != "__name__":  # a class body reads it only for its __module__
                found.append(Read("global", names[argument], _attributes(names, words, operations, at + 1)))
        elif (name := _local_name(code, argument)) in free:
            found.append(Read("closure", name, _attributes(names, words, operations, at + 1)))
    for constant in code.co_consts:
        if type(constant) is CodeType:
            found += _reads(constant, free & frozenset(constant.co_freevars))
    return found


def _argument(words: bytes | bytearray, at: int) -> int:
    """The argument of instruction `at`, with the higher bytes of preceding EXTENDED_ARG instructions."""
    argument, shift = words[2 * at + 1], 8
    while at and words[2 * at - 2] == _EXTENDED_ARG:
        at -= 1
        argument |= words[2 * at + 1] << shift
        shift += 8
    return argument


def _attributes(names: Names, words: bytes, operations: bytes, at: int) -> Names:
    """The chain of attributes read from the value that the instruction before `at` loaded."""
    found: Names = ()
    rest = operations[at:]
    while rest := rest.lstrip(_SKIPPED):
        at, word = len(operations) - len(rest), rest[0]
        if word == _LOAD_ATTR:
            found += (names[_argument(words, at) >> _ATTR_SHIFT],)
        elif word == _LOAD_METHOD:
            found += (names[_argument(words, at)],)
        else:
            break
        rest = rest[1:]
    return found


def _local_name(code: CodeType, index: int) -> str:
    """The name of a frame slot: local variables, then cells that are not locals, then free variables."""
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return (*code.co_varnames, *cells, *code.co_freevars)[index]


# -- values ------------------------------------------------------------------------------------------------------------

ABSENT = object()
"""The value of an undefined name."""

ORIGINAL = object()
"""The name under which a copy of a namespace has the original (copies), by whose id the copy is known."""

COOPERATIVE = "needs a cooperative launch"
"""Name of the edge that marks a declared function which synchronises the grid."""

OtherForm = Callable[[Any], "Plain | None"]
"""Returns the form of a function or of the compiler's object; None for other values."""

STANDARD = os.path.dirname(os.__file__) + os.sep
_INSTALLED = tuple(STANDARD + folder + os.sep for folder in ("site-packages", "dist-packages"))

_WITHOUT_STATE = frozenset(
    ("__future__", "_collections_abc", "_functools", "_operator", "_struct", "abc", "builtins", "cmath", "collections",
     "contextlib", "copy", "dataclasses", "enum", "fractions", "functools", "itertools", "keyword", "math",
     "numbers", "operator", "re", "string", "struct", "textwrap", "types", "typing", "warnings")
)  # fmt: skip
"""Modules of the standard library whose functions depend on their arguments alone, except `_STATEFUL`."""

_STATEFUL = frozenset((
    *(f"builtins.{name}" for name in ("__import__", "compile", "eval", "exec", "globals", "hash", "id", "input",
                                      "locals", "open", "vars")),
    "typing.get_type_hints",
))  # fmt: skip

OF_NUMPY = frozenset(
    f"numpy.{name}" for name in
    ("array2string", "array_repr", "array_str", "fromfile", "fromregex", "genfromtxt", "get_printoptions", "getbufsize",
     "geterr", "geterrcall", "lib.npyio", "load", "loadtxt", "memmap", "random", "show_config", "show_runtime")
)  # fmt: skip
"""Parts of NumPy whose results depend on files, random numbers, or settings of the process."""

REPR_SAYS_ALL = frozenset({bool, int, str, type(None)})
"""Types whose `repr` is different for different values, also between these types."""


class Refused(Exception):
    """A value that cannot be captured, so that its kernel is cached only with `depends=`; the text is the reason."""


class AlwaysRefused(Refused):
    """A value that `depends=` cannot cover either: mostly, the code would contain an address of this process."""


class RefusedByName(Exception):
    """The kernel cannot be keyed: raised with the reason and a name, which `fingerprint` returns as `Uncapturable`."""


standing: set[type] = set()
"""Classes of stand-ins for a compiler's objects, once the program has imported one."""


def real_of(value: Any) -> Any:
    """The compiler's object in place of a stand-in; others unchanged."""
    return value._stands_for() if type(value) in standing else value


_READ = builtins, math, operator, *filter(None, map(sys.modules.get, ("cmath", "numpy")))
_BEFORE = [(vars(each), dict(vars(each))) for each in _READ]
"""The names of modules for which a compiler registers code as its modules load, as they were when this one was."""


@contextmanager
def unreplaced() -> Iterator[None]:
    """Put back functions of Python and NumPy that the program has replaced, while a compiler loads modules.

    It loads them when it is imported and when it first compiles: with hits, later than without this package. The code
    for `+` would then belong to the program's `operator.add`.
    """
    replaced = [
        (space, name, value, space[name])
        for space, before in _BEFORE for name, value in before.items() if space.get(name, value) is not value
    ]  # fmt: skip
    try:
        for space, name, value, _now in replaced:
            space[name] = value
        yield
    finally:
        for space, name, _value, now in replaced:
            space[name] = now


class Trust(dict[str, bool]):
    """A record of which loaded modules, by name, belong to the interpreter or to packages whose version is in the key.

    The origin of a module's spec decides, not its name: a user's `random.py`, a module without a spec and a file that
    was loaded under another name are not trusted, nor is a namespace package, unless all its folders are inside the
    packages. A record is made for each fingerprint.

    Args:
        packages: Dotted names of the packages; each is trusted from the folder of its own `__init__.py` down.

    Attributes:
        standing: Classes of stand-ins, in whose place the objects that they stand for are read.
        homes: The names of modules in the key, by id, of those that stand in for others (light).
        described: Enumerations and classes of named tuples whose members or fields were read (`add_described`).
        stand_in: The class of objects that stand in for others.
        needs_compiler: Checks for an attribute of one that only the compiler can read.
    """

    standing: Container[type] = standing
    homes: Mapping[int, str] = {}
    stand_in: type | None = None
    needs_compiler: Callable[[Any, str], bool]

    def __init__(self, packages: frozenset[str] = frozenset()) -> None:
        self.packages, self.described = packages, dict[Any, None]()

    @cached_property
    def folders(self) -> Names:
        """The folders of the packages."""
        found = []
        for package in self.packages:
            origin = getattr(getattr(sys.modules.get(package), "__spec__", None), "origin", None)
            if isinstance(origin, str) and origin.endswith(os.path.join("", *package.split("."), "__init__.py")):
                found.append(origin.removesuffix("__init__.py"))
        return tuple(found)

    def __missing__(self, name: str) -> bool:
        top = name.partition(".")[0]
        module = sys.modules.get(name) or sys.modules.get(top)  # finding a submodule's spec would import its package
        spec = getattr(module, "__spec__", None) if module is not None else _find_spec(top)
        origin, loader = getattr(spec, "origin", None), getattr(spec, "loader", None)
        if type(origin) is not str:
            places = list(getattr(spec, "submodule_search_locations", None) or ())
            found = bool(places) and all(each.startswith(self.folders) for each in places)
        elif top in sys.stdlib_module_names:
            is_builtin = loader is BuiltinImporter and name in sys.builtin_module_names
            found = is_builtin or is_standard(origin) or (loader is FrozenImporter and origin == "frozen")
        else:
            found = origin.startswith(self.folders)
        self[name] = found
        return found

    def original(self, value: Any) -> str:
        """Name and line of a function of the packages that is no longer found by its name, because it was replaced; ""
        for others."""
        if type(value) is not FunctionType or value.__closure__ or not self.has_file(value.__code__.co_filename):
            return ""
        return f"{name_of(value)} of line {value.__code__.co_firstlineno}"

    def attribute(self, owner: Any, name: str) -> Any:
        """An attribute of a module or another object; `ABSENT` if it has none."""
        found = getattr(owner, name, ABSENT)
        if isinstance(owner, ModuleType) and (found is ABSENT or isinstance(found, ModuleType)):
            return vars(owner).get(name, found) if self.loads(owner, name) else found
        return found

    def loads(self, package: ModuleType, name: str) -> bool:
        """Import a submodule of a pinned package, and check whether it was absent.

        A compile may import it: it then becomes an attribute of the package, in place of another module of that name.
        """
        own = f"{package.__name__}.{name}"
        if own in sys.modules or not hasattr(package, "__path__") or self.name_of(package) is None:
            return False
        try:
            with unreplaced():
                import_module(own)
        except ImportError:
            return False
        return True

    def has_file(self, path: str) -> bool:
        """Check whether code of this file belongs to the interpreter or the packages."""
        return path.startswith(("<frozen ", *self.folders)) or is_standard(path)

    def name_of(self, value: Any) -> str | None:
        """`module.qualname` if that is this same object in a trusted module now; None otherwise."""
        if isinstance(value, ModuleType):
            own = value.__name__
            return own if sys.modules.get(own) is value and self[own] else None
        module = getattr(value, "__module__", None)
        if type(module) is not str or not self[module]:
            return None
        name = getattr(value, "__qualname__", None)
        name = name if isinstance(name, str) else getattr(value, "__name__", None)
        if not isinstance(name, str):
            return None
        if type(value) is FunctionType and not self.has_file(value.__code__.co_filename):
            return None  # its `__module__` is not reliable
        if isinstance(value, type) and getattr(value, "__members__", None):
            return None  # an enum is keyed by its members
        while module:  # a generated stub may be an attribute of a parent package only
            found: Any = sys.modules.get(module)
            for part in name.split("."):
                found = getattr(found, part, None)
            if found is value:
                return f"{module}.{name}"
            module = module.rpartition(".")[0]
        return None


def name_of(function: Any) -> str:
    return f"{getattr(function, '__module__', '?')}.{getattr(function, '__qualname__', '?')}"


def is_standard(path: str) -> bool:
    """Check whether a file is of the standard library."""
    return path.startswith(STANDARD) and not path.startswith(_INSTALLED)


def _find_spec(top: str) -> Any:
    from importlib.util import find_spec

    try:
        return find_spec(top)
    except (ImportError, ValueError):
        return None


def state_of(name: str, stateful: frozenset[str]) -> str:
    """The part of a trusted dotted name whose results depend on more than arguments (on state); "" for none.

    Args:
        name: Dotted name of a trusted module or object.
        stateful: Names of modules and objects with state (`Flavour.stateful`).
    """
    top = name.partition(".")[0]
    if top in sys.stdlib_module_names:
        return name if top not in _WITHOUT_STATE or name in _STATEFUL else ""
    while name:
        if name in stateful:
            return name
        name = name.rpartition(".")[0]
    return ""


def value_form(value: Any, trust: Trust, other_form: OtherForm, inside: tuple[int, ...] = ()) -> Plain:
    """Convert a value to plain values.

    Args:
        value: A value of the program.
        trust: Recognises objects that are pinned by a version, and so count by name.
        other_form: Converts functions and the compiler's objects.
        inside: Ids of the containers around the value.

    Raises:
        Refused: It, or something in it, cannot be captured.
    """
    try:
        return scalar_form(value)
    except TypeError:
        pass
    if len(inside) > 32 or id(value) in inside:
        raise Refused("it contains itself or is nested too deeply")
    within = (*inside, id(value))

    def forms(values: Any) -> list[Plain]:
        return [value_form(each, trust, other_form, within) for each in values]

    kind = type(value)
    if kind is dict and REPR_SAYS_ALL.issuperset(map(type, (*value, *value.values()))):
        return "repr", repr(value)  # a shortcut for decorator options, a third of a fingerprint's time otherwise
    if kind in (tuple, list):
        return kind.__name__, forms(value)
    if kind is dict:
        return "dict", forms(value.keys()), forms(value.values())
    if kind in (set, frozenset):
        return kind.__name__, tuple(sorted(repr(each) for each in forms(value)))
    if kind in (range, slice):
        return kind.__name__, forms((value.start, value.stop, value.step))
    if value is sys.version_info:
        return "version", forms(tuple(value))
    if isinstance(value, enum.Enum):
        enumeration, content = forms((kind, value.value))
        return "enum member", enumeration, value.name, content
    if isinstance(value, tuple) and isinstance(getattr(value, "_fields", None), tuple):
        return "namedtuple", *forms((kind,)), forms(value)
    known = _numpy_form(value) or _class_form(value, trust, forms) or other_form(value)
    if known is None:
        raise _refusal(value)
    return known


def _numpy_form(value: Any) -> Plain | None:
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic, numpy.dtype)):
        return None
    dtype = value if isinstance(value, numpy.dtype) else value.dtype
    if dtype.hasobject:
        raise Refused("it holds Python objects")
    form = repr(dtype), dtype.str, dtype.itemsize, dtype.alignment
    if isinstance(value, numpy.dtype):
        return "numpy dtype", form
    if isinstance(value, numpy.generic):
        return "numpy scalar", type(value).__name__, form, _bytes_of(value)
    if type(value) not in (numpy.ndarray, numpy.recarray):
        raise Refused(f"it is a {type(value).__name__}, a subclass of numpy.ndarray")
    content = sha256(_bytes_of(value)).digest()
    flags = (value.flags.c_contiguous, value.flags.f_contiguous, value.flags.aligned, value.flags.writeable)
    return "numpy array", form, value.shape, value.strides, flags, content


def _bytes_of(value: Any) -> bytes:
    """The content of an array or scalar, without the padding between fields of records, which no code reads and NumPy
    leaves uninitialised."""
    names = value.dtype.names
    return b"".join(_bytes_of(value[name]) for name in names) if names else bytes(value.tobytes("A"))


def _class_form(value: Any, trust: Trust, forms: Callable[[Any], list[Plain]]) -> Plain | None:
    if not isinstance(value, type):
        return None
    if issubclass(value, enum.Enum):
        bases = tuple(filter(None, map(trust.name_of, value.__mro__)))
        members = value.__members__
        trust.described[value] = None
        return "enum", value.__name__, bases, tuple(members), forms(each.value for each in members.values())
    name = trust.name_of(value)
    if name:
        return "class", name
    fields, constructor = getattr(value, "_fields", None), value.__new__
    if issubclass(value, tuple) and isinstance(fields, tuple) and type(constructor) is FunctionType:
        if vars(constructor):  # `__signature__` would decide the meaning of a call too
            raise Refused("it is a class of named tuples whose constructor has attributes")
        trust.described[value] = None
        parameters = constructor.__code__.co_varnames, constructor.__defaults__  # these decide the meaning of a call
        return "namedtuple class", value.__name__, fields, forms(parameters)
    return None


def _refusal(value: Any) -> Refused:
    kind = type(value)
    if isinstance(value, type):
        return Refused("it is a class")
    if getattr(value, "__cuda_array_interface__", None) is not None:
        why = "whose address would be in the code: pass it as an argument (depends= cannot represent it)"
        return AlwaysRefused(f"it is a device array, {why}")
    if any(base.__module__ in ("_ctypes", "ctypes") for base in kind.__mro__):
        why = "whose address would be in the code (depends= cannot represent it)"
        return AlwaysRefused(f"it is a {kind.__qualname__} of ctypes, {why}")
    if isinstance(value, ModuleType):
        return Refused("it is a module that is used as a value, not by its attributes alone")
    if isinstance(value, BuiltinFunctionType):
        return Refused("it is compiled code of an extension module")
    return Refused(f"a {kind.__module__}.{kind.__qualname__} has no content that a key could hold")


def shown(value: Any) -> Plain:
    """Show a value in an explanation."""
    if value is None or type(value) in (bool, int, float, str):
        return value if type(value) is not str or len(value) <= 200 else value[:200] + "..."
    numpy = sys.modules.get("numpy")
    if numpy is not None and type(value) is numpy.ndarray:
        return f"{value.dtype.str} array of shape {value.shape}"  # str(dtype) imports a module
    if type(value) is dict:
        return {str(key): each if type(each) is bool else shown(each) for key, each in value.items()}
    text = repr(value)
    return text if len(text) <= 200 and " at 0x" not in text else type(value).__qualname__


# -- functions ---------------------------------------------------------------------------------------------------------


unread: dict[Any, tuple[str, str, Registration]] = {}
"""Registrations that could not be read, as in `Fingerprint`, by their code. They are not read again for
another kernel: whatever they have become, a key without them is right, since a compile shows which it uses."""

Edge = tuple[str, "int | str"]
"""A name that is read, and the node of its value, or a text that identifies the value."""


class Graph:
    """Nodes by index: components[i] describes node i, and edges[i] are the names that it reads. kept[i] is the object
    under which the compiler stores the node's compiled code, with its code object."""

    def __init__(self) -> None:
        self.components: list[Component] = []
        self.edges: list[list[Edge]] = []
        self.kept: dict[int, tuple[Any, CodeType]] = {}
        self.labels: dict[str, int] = {}
        self.has_lines = False  # whether any function has line tables

    def add(self, label: str, digest: bytes, clear: Plain, edges: list[Edge] | None = None) -> int:
        """Add a node; a number is appended to a label that is in use."""
        repeated = self.labels[label] = self.labels.get(label, 0) + 1
        self.components.append(Component(label if repeated == 1 else f"{label} ({repeated})", digest, clear))
        self.edges.append(edges if edges is not None else [])
        return len(self.edges) - 1

    def digest(self, start: int) -> str:
        """The digest of all nodes reachable from `start`."""
        numbers, order = {start: 0}, [start]
        nodes: list[Plain] = []
        for index in order:  # grows while it is walked
            edges: list[Plain] = []
            for name, goal in self.edges[index]:
                if type(goal) is int:
                    if goal not in numbers:
                        numbers[goal] = len(order)
                        order.append(goal)
                    goal = numbers[goal]
                edges += name, goal
            nodes.append((self.components[index].encoded, edges))
        return digest_of((sys.implementation.cache_tag, nodes))


_DATA = frozenset({bool, int, float, complex, str, bytes, tuple})
_PLAIN = _DATA | {type(None), type(sys.version_info)}

Depends = Iterable[Any] | Mapping[Any, Any]
"""The option `depends=`: values and files; or a mapping of objects that cannot be read to what represents them."""


_MISLEADING = {"__wrapped__", "__signature__"}
"""Attributes with which `inspect.signature` describes other parameters than a function has."""


class Uncapturable(NamedTuple):
    """The reason why a kernel cannot be keyed, and the name of the offending function or value."""

    reason: str
    name: str


class Fingerprint(NamedTuple):
    """Everything that determines a kernel's code, apart from argument types.

    Args:
        digest: Digest of all of it, as 64 hexadecimal digits; goes into the key.
        components: Its parts with labels and digests, for explanations. The labels contain names of modules and
            files, which the digest does not cover.
        links: Link inputs of the options and of declared functions, in order.
        graph: For `device_functions`.
        unread: Registrations that cannot be read, and that this kernel seems not to use: the reason, a name, and the
            registration. The key has what they are for. The compile shows whether one is used (`compiled_code`).
    """

    digest: str
    components: tuple[Component, ...]
    links: tuple[LinkInput, ...]
    graph: Graph
    unread: tuple[tuple[str, str, Registration], ...] = ()

    def device_functions(self) -> tuple[tuple[Any, str], ...]:
        """Objects whose compiled code the compiler keeps, callees before callers, with their digests (`call_order`)."""
        once = os.urandom(8).hex() if self.unread else ""  # all are compiled again, to see what they use
        unread = [(code, once) for _why, _name, each in self.unread for code in each.code if type(code) is FunctionType]
        return *unread, *((each, digest + once) for each, digest in kept_objects(self.graph))

    def is_cooperative(self) -> bool:
        """Check whether its code synchronises the grid. An intrinsic may add that later, while it is lowered."""
        edges = repr(self.graph.edges)
        return "this_grid" in edges or COOPERATIVE in edges

    def sources(self) -> dict[str, tuple[str, Origin]]:
        """The Python source of the kernel and of `device_functions`, by component, if a file contains it."""
        found = {}
        for index, (_, code) in self.graph.kept.items():
            text = source_text(code)
            if text:
                found[self.components[index].name] = text, Origin(code.co_filename, code.co_firstlineno)
        return found


def fingerprint(
    function: Any, flavour: Flavour, *, with_lines: bool, depends: Depends = (), is_observed: bool = False
) -> Fingerprint | Uncapturable:
    """Fingerprint a kernel in its present state; since globals may change, this is done at each signature's first use.

    Args:
        function: A Python function, or a dispatcher of the flavour, whose options then count.
        flavour: The flavour of the kernel's compiler.
        with_lines: Whether file and lines count, as they do if line tables or exceptions are compiled in.
            For functions whose own options request lines, they always count.
        depends: Further values, functions, and files (`pathlib.Path`, or `str` if it names a file relative to
            the function's own) whose content counts. As a mapping, each represents its key: a value that cannot be
            read, or the name by which such a value was refused.
        is_observed: Whether the compile will show which registrations it uses (`Fingerprint.unread`).
    """
    plain = flavour.python_function(function) or function

    def read(reader: Reader) -> None:
        reader.add_function(function)
        reader.add_depends(plain)
        if patches := flavour.replaced(reader.trust):
            add_patches(reader, patches)

    try:
        reader = _read(read, flavour, with_lines, depends, is_observed=is_observed)
    except RefusedByName as refusal:
        return Uncapturable(*refusal.args)
    except Exception as error:  # reading a user's object may raise anything; a launch must not fail by it
        return Uncapturable(f"reading it raised {type(error).__name__}: {error}", name_of(plain))
    graph, links = reader.graph, tuple(reader.links)
    return Fingerprint(graph.digest(0), tuple(graph.components), links, graph, tuple(reader.unread.values()))


def type_digest(kind: Any, flavour: Flavour, *, with_lines: bool, depends: Depends = ()) -> str:
    """Digest of an argument's type that a program added, with everything registered for its class; or `Refused`."""
    label = f"class {type(kind).__module__}.{type(kind).__qualname__}"

    def read(reader: Reader) -> None:
        reader.edge(reader.add(label, "argument", None), "type", reader.add_value(kind, label))

    try:
        return _read(read, flavour, with_lines, depends, is_observed=False).graph.digest(0)
    except RefusedByName as refusal:
        raise Refused(f"{refusal.args[1]}: {refusal.args[0]}") from None
    except Exception as error:  # a program's class may raise anything; a launch must not fail by it
        raise Refused(f"reading it raised {type(error).__name__}: {error}") from None


def _read(
    read: Callable[[Reader], None], flavour: Flavour, with_lines: bool, depends: Depends, *, is_observed: bool
) -> Reader:
    reader = Reader(flavour, with_lines, depends, is_observed=is_observed)
    read(reader)
    if reader.trust.described:
        add_described(reader)
    if reader.words:
        add_special(reader)
    return reader


class Reader:
    """Follow the names that functions read, and build the graph of their values."""

    def __init__(self, flavour: Flavour, with_lines: bool, depends: Depends = (), *, is_observed: bool = False) -> None:
        self.graph, self.links, self.words, self.named = Graph(), list[LinkInput](), set[str](), set[str]()
        self.flavour, self.trust = flavour, flavour.trust(flavour.packages)
        self._with_lines, self._depends, self.is_observed = with_lines, depends, is_observed
        self.unread = dict[Any, Any]()
        self._covered = depends if isinstance(depends, Mapping) else ()
        self.known = {} if self._covered or not is_observed else unread
        self._refused: dict[int, Any] = {}  # functions, by id
        self.is_within = False  # whether a registration is read
        self.left = 1_000  # functions of registrations to read: some packages register a map of all that they have
        self.is_patch = False  # whether a function is read that replaces one of the compiler's
        self.functions: dict[int, int] = {}
        self.values: dict[tuple[int, str], int | str] = {}
        self.registrations = flavour.registrations()
        self.alive: list[Any] = []  # no other object gets their `id()` while these live

    def add_function(self, value: Any) -> int:
        """The node of a function or dispatcher; added, with all that it reaches, at the first call."""
        if id(value) in self.functions:
            return self.functions[id(value)]
        if id(value) not in self._refused:
            try:
                return self._new_function(value)
            except RefusedByName as refusal:
                self._refused[id(value)] = value, refusal.args
        raise RefusedByName(*self._refused[id(value)][1])

    def _new_function(self, value: Any) -> int:
        self.left -= self.is_within
        if self.left < 0:
            raise RecursionError("registrations reach too many functions")
        function = self.flavour.python_function(value) or value
        name = name_of(function)
        if type(function) is not FunctionType:
            raise RefusedByName(f"it is a {type(function).__qualname__}, not a Python function", name)
        word = "kernel" if not self.graph.edges else "function" if function is value else "device function"
        code = function.__code__
        try:
            jitted = None if function is value else self.flavour.jitted(value, is_kernel=not self.graph.edges)
            lines = self._with_lines or (jitted is not None and jitted.has_lines)
            self.graph.has_lines |= lines
            reading = read_code(code, with_lines=lines)
        except (Refused, TypeError) as error:
            raise RefusedByName(str(error), name) from None
        line = f"{code.co_filename.rpartition(os.sep)[2]}:{code.co_firstlineno}"
        index = self.graph.add(f"{word} {name}", reading.digest, line)
        self.words |= {*reading.telling, *("." for _ in vars(function))}  # "." tells that a function has attributes
        self.named |= reading.words
        self.functions[id(value)] = index
        self.alive.append(value)
        if jitted is not None:
            self.graph.kept[index] = value, code
            for each in jitted.extensions:
                refusal, label = Refused("it is an object of this process"), f"options of {name}, extensions"
                self.edge(index, "extensions", self.refused(refusal, label, each))
            options = dict(sorted(jitted.options.items()))
            self.edge(index, "options", self.add_value(options, f"options of {name}"))
            add_links(self, index, jitted.links, name)
        if any(defaults := (function.__defaults__, function.__kwdefaults__)):
            self.edge(index, "defaults", self.add_value(defaults, f"defaults of {name}"))
        for word in sorted(_MISLEADING & vars(function).keys()):
            self.edge(index, word, self.add_value(vars(function)[word], f"{word} of {name}"))
        self._add_reads(index, function, reading.reads, name)
        if self.registrations.of_attribute or self.registrations.of_all:
            add_implied(self, index, code)
        return index

    @contextmanager
    def taken_back(self) -> Iterator[None]:
        """Take back everything that was added if something cannot be read."""
        graph, kept, links, alive = self.graph, {**self.graph.kept}, len(self.links), len(self.alive)
        counts = [*map(len, graph.edges)]
        words, named, functions, values = {*self.words}, {*self.named}, {**self.functions}, {**self.values}
        described, labels, has_lines = {**self.trust.described}, {**graph.labels}, graph.has_lines
        try:
            yield
        except Exception:
            graph.kept, graph.labels, graph.has_lines, self.trust.described = kept, labels, has_lines, described
            del graph.components[len(counts) :]
            graph.edges = [edges[:count] for edges, count in zip(graph.edges, counts, strict=False)]
            del self.links[links:], self.alive[alive:]  # no new list: `add_special` walks it meanwhile
            self.words, self.named, self.functions, self.values = words, named, functions, values
            raise

    def add_depends(self, function: Any) -> None:
        """Add the values and files of `depends=`."""
        depends = self._depends
        for position, each in enumerate(depends.values() if isinstance(depends, Mapping) else depends):
            label = f"depends[{position}]"
            if not isinstance(each, (str, os.PathLike)):
                self.edge(0, label, self.add_value(each, label))
                continue
            try:
                form = dependency_form(each, os.path.dirname(function.__code__.co_filename))
            except Refused as refusal:
                raise RefusedByName(str(refusal), label) from None
            named = f"{label} {os.fspath(each)}" if form[0] == "file" else label  # any other text may be a secret
            self.edge(0, label, self.add(named, form, None))

    def add(self, label: str, form: Plain, clear: Plain, edges: list[Edge] | None = None) -> int:
        encoded = encode(form)
        self.words |= telling(words_in(encoded.decode("utf-8", "replace")))
        return self.graph.add(label, sha256(encoded).digest(), clear, edges)

    def edge(self, start: int, name: str, goal: int | str) -> None:
        self.graph.edges[start].append((name, goal))

    def _add_reads(self, index: int, function: FunctionType, reads: Iterable[Read], name: str) -> None:
        """Add edges from a function to the present values of the names that it reads."""
        for read in reads:
            if read.scope == "import":
                goal: int | str = add_import(self, function.__code__, read.name, f"module {read.name} in {name}")
            else:
                goal = self._follow(function, read, name)
            self.edge(index, ".".join((read.name, *read.attributes)), goal)

    def _follow(self, function: FunctionType, read: Read, name: str) -> int | str:
        """Follow one name of a function to its value, and return that value's node."""
        scope, where, home = read.scope, read.name, ""
        if scope == "closure":
            at, owner, value = id(function.__closure__), name, _content(function, where)
        else:
            namespace: Mapping[Any, Any] = function.__globals__
            original: Any = namespace.get(ORIGINAL, namespace)
            at, owner, value = id(original), namespace.get("__name__", "?"), namespace.get(where, ABSENT)
            if value is ABSENT:
                value = vars(builtins).get(where, ABSENT)
                if getattr(function, "__builtins__", None) is not vars(builtins):
                    raise RefusedByName("its __builtins__ are not those of Python", name)
        standing = self.trust.standing
        value = real_of(value) if type(value) in standing else value
        for attribute in read.attributes:
            if not (isinstance(value, ModuleType) or self.is_added(value, attribute)):
                break
            space: Any = value.__dict__ if isinstance(value, ModuleType) else {}  # a class makes a new __dict__
            at = id(space.get(ORIGINAL, space or value))
            scope, where, owner = "global", attribute, getattr(value, "__name__", type(value).__name__)
            owner = self.trust.homes.get(id(value), owner)
            home, value = owner, self.trust.attribute(value, attribute)
            value = real_of(value) if type(value) in standing else value
        if value is ABSENT:
            return "undefined"
        goal = self.values.get((at, where))
        if goal is None:
            label = f"global {where} of {owner}" if scope == "global" else f"closure {where} of {owner}"
            if isinstance(value, ModuleType):
                return add_module(self, function.__code__, value, label)
            if home and type(value) not in _PLAIN and self.trust[home] and not self.trust.name_of(value):
                state = state_of(home, self.flavour.stateful)
                if state:
                    return self.refused(Refused(f"it belongs to {state}, whose state cannot be in a key"), label)
            goal = self.values[at, where] = self.add_value(value, label)
        return f"{home}.{where} is {goal}" if home and type(goal) is str and self.trust[home] else goal

    def is_added(self, value: Any, attribute: str) -> bool:
        """Check whether an attribute needs its own node: one that a program set on a trusted class, or a special one.
        Those of functions are added where code names them (`add_special`)."""
        if type(value) is self.trust.stand_in and self.trust.needs_compiler(value, attribute):
            raise RefusedByName(f"only the compiler knows its {attribute}", repr(value))
        if not isinstance(value, type) or self.trust.name_of(value) is None:
            return False
        found = getattr(value, attribute, None)
        is_foreign = type(found) is FunctionType and self.trust.name_of(found) is None
        return attribute in SPECIAL or type(found) in _DATA or is_foreign

    def refused(self, refusal: Refused, label: str, value: Any = ABSENT) -> int:
        """Add a node for a value that cannot be captured if `depends=` covers it; raise `RefusedByName` otherwise."""
        if isinstance(refusal, AlwaysRefused):
            raise RefusedByName(str(refusal), label)
        if not any(each is value or (type(each) is str and each == label) for each in self._covered):
            raise RefusedByName(
                f"{refusal} (depends={{{label!r}: ...}} takes a value or file that represents it)", label
            )
        kind = "" if value is ABSENT else f"{type(value).__module__}.{type(value).__qualname__}"
        return self.add(label, (COVERED, kind), COVERED)

    def add_value(self, value: Any, label: str) -> int | str:
        """The node of a value; for a function its own node, for an object pinned by a version its name."""
        edges: list[Edge] = []

        def other_form(inner: Any) -> Plain | None:
            return self.other_form(inner, edges)

        try:
            named = self._named(value, label)
            if named is not None:
                return named
            form, clear = value_form(value, self.trust, other_form), shown(value)
        except Refused as refusal:
            return self.refused(refusal, label, value)
        self.alive.append(value)
        return self.add(label, form, clear, edges)

    def _named(self, value: Any, label: str) -> int | str | None:
        """The node of a function, or of an object with registrations; the name of an object that a version pins; None
        for other values.

        Raises:
            Refused: What it returns depends on more than its arguments.
        """
        if isinstance(value, ModuleType):
            return None
        pinned = self.trust.name_of(value)
        registered = self.registrations.of_value(value)
        if registered:
            return add_overloads(self, value, registered, pinned, label)
        if pinned is not None:
            self.words |= telling(words_in(pinned))
            if state := state_of(pinned, self.flavour.stateful):
                raise Refused(f"{state} depends on more than its arguments")
            return pinned
        kind = type(value)
        if kind is not FunctionType and (kind in _DATA or self.flavour.python_function(value) is None):
            return None
        return (self.is_patch and self.trust.original(value)) or self.add_function(value)

    def other_form(self, value: Any, edges: list[Edge]) -> Plain | None:
        """The form of a function, a class or a compiler's object inside a value; its code is added to the edges."""
        value = real_of(value) if type(value) in self.trust.standing else value
        named = self._named(value, name_of(value))
        if named is None:
            definition = self.flavour.intrinsic(value)
            if definition is None:
                form = self.flavour.type_form(value, lambda kind: extension_form(self, kind, edges))
                if form is not None:
                    return form
                external = self.flavour.external(value)
                named = add_class(self, value) if isinstance(value, type) else external and add_external(self, external)
            else:
                named = add_registration(self, definition, name_of(value))
        if type(named) is int:
            edges.append((str(len(edges)), named))
            return type(value).__qualname__, len(edges) - 1
        return named and ("pinned", named)


def _content(function: FunctionType, name: str) -> Any:
    """The value of a closure variable."""
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


def kept_objects(graph: Graph) -> tuple[tuple[Any, str], ...]:
    """List the objects whose compiled device code the compiler keeps: the dispatchers that the kernel calls, registered
    implementations, and definitions of intrinsics.

    Returns:
        Each with a digest of what determines its code, after those that it calls; of a cycle one comes too early.
    """
    found, seen, pending = list[int](), set[int](), [(0, False)]
    while pending:
        index, is_done = pending.pop()  # done: with its callees
        if is_done:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            pending.append((index, True))
            pending += [(callee, False) for _name, callee in reversed(graph.edges[index]) if type(callee) is int]
    return tuple(
        (graph.kept[each][0], graph.digest(each)) for each in found if each and each in graph.kept
    )  # 0: the kernel


# -- rarer objects -----------------------------------------------------------------------------------------------------


_TEXTS = {"__annotations__", "__doc__", "__name__", "__qualname__"}
"""Attributes in which functions and classes describe themselves as text."""

_OF_PYTHON = frozenset(
    ("__abstractmethods__", "__annotations_cache__", "__dict__", "__doc__", "__firstlineno__", "__hash__", "__module__",
     "__orig_bases__", "__parameters__", "__qualname__", "__static_attributes__", "__weakref__", "_abc_impl")
)  # fmt: skip
"""Attributes of a class that its code does not read, that repeat other attributes, or that decide nothing but the place
of an object in a dict."""


def add_import(reader: Reader, code: CodeType, name: str, label: str) -> int | str:
    """The node of an import inside a function: the attributes that its code may take from that module."""
    if not reader.trust[name]:
        return reader.refused(Refused("it is imported inside the function"), label)
    try:
        modules = [import_module(each) for each in dict.fromkeys((name.partition(".")[0], name))]  # as the code will
    except ImportError as error:
        return reader.refused(Refused(str(error)), label)
    node = reader.add(label, name, None)
    for each in modules:
        reader.edge(node, each.__name__, add_module(reader, code, each, label))
    return node


def add_module(reader: Reader, code: CodeType, module: ModuleType, label: str) -> int | str:
    """The node of a module that is used as a value: all its attributes that the code may name."""
    name, node_key = reader.trust.name_of(module), (id(module.__dict__), f"{id(code)}")
    if name is None:
        return reader.refused(Refused("it is a module that is used as a value, not by its attributes alone"), label)
    state = state_of(name, reader.flavour.stateful)
    if state:
        return reader.refused(Refused(f"it is {state}, whose state cannot be in a key"), label)
    if node_key not in reader.values:
        node = reader.values[node_key] = reader.add(label, name, name)
        words, known = read_code(code, with_lines=False).words, vars(module)
        for word in words:
            if isinstance(known.get(word, module), ModuleType):
                reader.trust.loads(module, word)
        for word in sorted(words & known.keys()):
            value, inner = known[word], f"global {word} of {name}"
            is_module = isinstance(value, ModuleType)
            goal = add_module(reader, code, value, inner) if is_module else reader.add_value(value, inner)
            reader.edge(node, word, goal)
    return reader.values[node_key]


def add_links(reader: Reader, index: int, links: Iterable[Any], name: str) -> None:
    """Read the link inputs of a function, and add their nodes with edges from the function."""
    for item in links:
        from ...model.linkable import callbacks_of  # here: few kernels link something

        try:
            each = read_link(item)
            if callbacks_of(item):
                raise Refused("it has callbacks to run when it is loaded")
        except Refused as refusal:
            raise RefusedByName(str(refusal), f"link of {name}") from None
        digest = sha256(each.data).hexdigest()
        spelled = each.name if each.kind == "cu" else ""  # __FILE__ and assert put the name into the code
        form = each.kind, spelled, digest, getattr(item, "nrt", False)  # whether a runtime is linked, too
        node = reader.add(f"link {each.name} of {name}", form, digest)
        reader.edge(index, "link", node)
        reader.links.append(each)


def add_external(reader: Reader, external: External) -> int:
    """The node of a function that was declared, with what it links."""
    node = reader.add_value(list(external[:4]), f"declaration of {external.name}")
    assert type(node) is int
    add_links(reader, node, external.links, external.name)
    if external.is_cooperative:
        reader.edge(node, COOPERATIVE, "")
    return node


def add_class(reader: Reader, value: type) -> int:
    """The node of a program's class: its bases, and everything that its body defines."""
    if id(value) in reader.functions:
        return reader.functions[id(value)]
    if reader.trust.name_of(type(value)) is None:
        raise Refused("it is a class with its own metaclass")
    name = f"{value.__module__}.{value.__qualname__}"
    node = reader.functions[id(value)] = reader.add(f"class {name}", ("class", value.__name__), None)
    reader.alive.append(value)
    for base in value.__bases__:
        reader.edge(node, "base", reader.add_value(base, f"class {base.__module__}.{base.__qualname__}"))
    for attribute, item in sorted(vars(value).items()):
        if attribute not in _OF_PYTHON:
            if isinstance(item, property):
                reader.alive.append(item)  # for `add_special`, since a property has a docstring
            for part in parts_of(item):
                goal = reader.add_value(part, f"global {attribute} of {name}")
                reader.edge(node, f"{type(item).__name__} {attribute}", goal)
    return node


def add_described(reader: Reader) -> None:
    """Add what enumerations and classes of named tuples define beside members and fields, and what was set on members,
    where code is read that types the kernel: device code cannot use it."""
    kinds = [*reader.trust.described]
    for kind in kinds if any(each.name.startswith("function ") for each in reader.graph.components) else ():
        for owner in (*kind.__mro__, *type(kind).__mro__, *getattr(kind, "__members__", {}).values()):
            own = {} if reader.trust[owner.__module__] else vars(owner)
            for name, part in [(name, part) for name, item in own.items() for part in parts_of(item)]:
                label = f"global {name} of {kind.__module__}.{kind.__qualname__}"
                is_data = name not in getattr(kind, "_fields", ()) and name[0] + name[-1] != "__"
                if _is_written(part, reader.trust) if type(part) is FunctionType else is_data:
                    _add_to_all(reader, label, reader.add_value(part, label))
        kinds += [each for each in reader.trust.described if each not in kinds]


def _is_written(function: FunctionType, trust: Trust) -> bool:
    """Check for a function that Python has not made for an enumeration or a class of named tuples."""
    return not (
        str(function.__globals__.get("__name__")).startswith("namedtuple_")
        or trust.has_file(function.__code__.co_filename)
    )


def extension_form(reader: Reader, kind: Any, edges: list[Any]) -> Plain:
    """The form of a type that a program added to the compiler: the state of the instance, and the code of its class
    with everything that is registered for the class, as edges."""
    of = type(kind)
    if any("__slots__" in vars(each) for each in of.__mro__ if reader.trust.name_of(each) is None):
        raise Refused(f"the type {kind} keeps its state in __slots__")
    label = f"class {of.__module__}.{of.__qualname__}"
    edges.append((f"type {len(edges)}", add_class(reader, of)))
    registered = reader.registrations.of_value(of)
    if registered:
        edges.append((f"type {len(edges)}", add_overloads(reader, of, registered, None, label)))
    state = {name: each for name, each in vars(kind).items() if name != "_code"}  # a number of this process
    form = value_form(state, reader.trust, lambda inner: reader.other_form(inner, edges))
    return "type of an extension", len(edges), str(kind), form


def parts_of(item: Any) -> tuple[Any, ...]:
    """List the functions in an item of a class body (property, classmethod, ...)."""
    if isinstance(item, (staticmethod, classmethod)):
        return (item.__func__,)
    if isinstance(item, property):
        return item.fget, item.fset, item.fdel
    if isinstance(item, functools.cached_property):
        return (item.func,)
    return ("slot",) if isinstance(item, (MemberDescriptorType, GetSetDescriptorType)) else (item,)


def add_patches(reader: Reader, patches: Iterable[tuple[str, FunctionType]]) -> None:
    """Add functions of the compiler that the program replaced; device functions have them too."""
    for name, function in patches:
        try:
            reader.is_patch = True
            node = reader.add_function(function)
            reader.is_patch = False
        except RefusedByName as refusal:
            raise RefusedByName(f"in place of {name}: {refusal.args[0]}", refusal.args[1]) from None
        _add_to_all(reader, f"in place of {name}", node)


def _add_to_all(reader: Reader, name: str, node: int | str) -> None:
    """Add an edge from the kernel and from each function whose compiled code the compiler keeps."""
    for index in (0, *filter(None, reader.graph.kept)):
        reader.edge(index, name, node)


def add_special(reader: Reader) -> None:
    """Add special attributes (docstring, name, annotations) of all functions and classes, and attributes set by the
    program, where any code or text constant names them: typing code may reach the object indirectly, and the attribute
    by `getattr`. Add all bytes of constant records, padding included, where any code names a function that reads arrays
    as bytes."""
    words, is_any = reader.words, not reader.words.isdisjoint(BY_TEXT)
    if "__subclasses__" in words:
        reader.refused(Refused("cached code lists subclasses, which may be defined anywhere"), "__subclasses__")
    content: list[Plain] = [] if words.isdisjoint(BY_BYTES) else [*_record_digests(reader.alive)]
    if content:
        _add_to_all(reader, "bytes of records", reader.add("bytes of records", content, None))
    read = words & SPECIAL
    has_parts = any("__" in each and not re.fullmatch("__.+__", each) for each in words)
    if "__dict__" in read or "dir" in words or (is_any and has_parts):
        read |= _TEXTS
    edges, seen = list[Any](), set[int]()
    for each in reader.alive:  # grows while it is walked
        for value in (each, reader.flavour.python_function(each)):
            if isinstance(value, (type, FunctionType, property)) and id(value) not in seen:
                seen.add(id(value))
                set_by_program = vars(value) if type(value) is FunctionType else ()
                for word in sorted(read.union([name for name in set_by_program if is_any or name in reader.named])):
                    edges.append((word, _add_attribute(reader, value, word, f"{word} of {name_of(value)}")))
    if edges:
        _add_to_all(reader, "special attributes", reader.add("special attributes", tuple(sorted(read)), None, edges))


def _record_digests(value: Any) -> Iterator[bytes]:
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from _record_digests(each)
    elif getattr(getattr(value, "dtype", None), "names", None) and hasattr(value, "tobytes"):
        yield sha256(value.tobytes("A")).digest()


def _add_attribute(reader: Reader, value: Any, word: str, label: str) -> int | str:
    found = getattr(value, word, None)
    if isinstance(found, CodeType):
        texts = tuple(each for each in found.co_consts if type(each) is str)  # a docstring is among them
        return reader.add(label, (repr(code_form(found, with_lines=True)), texts), None)
    if word == "__globals__" and found is not None:
        return reader.refused(Refused("cached code reads globals through it"), label)
    return "a class's" if isinstance(value, type) and word == "__dict__" else reader.add_value(found, label)


def add_overloads(
    reader: Reader, value: Any, registered: Iterable[Registration], pinned: str | None, label: str
) -> int:
    """The node of a value for which there are registrations."""
    node_key = id(value), "overloads"
    if node_key in reader.values:  # the implementation of an overload refers to the value itself
        node = reader.values[node_key]
        assert type(node) is int
        if type(value) is FunctionType and pinned is None and id(value) not in reader.functions:
            reader.edge(node, "itself", reader.add_function(value))
        return node
    node = reader.values[node_key] = reader.add(f"overload of {label}", pinned, None)
    for each in registered:
        reader.edge(node, each.what, _add_unless_unread(reader, each, label))
    return node


def add_registration(reader: Reader, registration: Registration, label: str) -> int:
    """The node of one registration; if it cannot be read, nothing of it is added."""
    if id(registration) in reader.functions:
        return reader.functions[id(registration)]
    with reader.taken_back():
        reader.alive.append(registration)
        node = reader.functions[id(registration)] = reader.add(f"overload of {label}", registration.what, None)
        subject = registration.subject
        if subject is not None:
            reader.edge(node, "for", reader.trust.name_of(subject) or reader.add_value(subject, f"overload of {label}"))
        reader.edge(node, "options", reader.add_value(registration.options, f"options of {label}"))
        for each in registration.code:
            index = add_class(reader, each) if isinstance(each, type) else reader.add_function(each)
            if not isinstance(each, type):
                reader.graph.kept[index] = each, each.__code__  # the function under which the compiler stores the code
            reader.edge(node, "code", index)
        return node


def add_implied(reader: Reader, index: int, code: CodeType) -> None:
    """Add edges to the program's registrations for operators, and for attributes that this code may use.

    A device function has them too, since its own digest decides whether its compiled code is used again."""
    _of_value, of_attribute, of_all = reader.registrations
    for name in sorted(of_attribute.keys() & read_code(code, with_lines=False).words):
        for label, each in _in_order(reader, of_attribute[name]):
            reader.edge(index, f".{name} {each.what}", _add_unless_unread(reader, each, f"{label}.{name}"))
    for label, each in _in_order(reader, of_all) if index == 0 or index in reader.graph.kept else ():
        reader.edge(index, f". {each.what}", _add_unless_unread(reader, each, label))


def _add_unless_unread(reader: Reader, registration: Registration, label: str) -> int:
    """The node of a registration that any code may use; of what it is for alone, if it cannot be read and a compile
    shows whether it is used."""
    code = registration.code
    if code not in reader.known:
        is_within, reader.is_within = reader.is_within, True
        try:
            return add_registration(reader, registration, label)
        except Exception as error:  # a refusal, or what a program's object raised
            is_seen = registration.what != "model" and all(map(_is_seen, code or "-"))
            if not (reader.is_observed and is_seen):
                raise
            why, name = error.args if isinstance(error, RefusedByName) else (str(error), label)
            reader.known[code] = why, name, registration
            if is_within and isinstance(error, RecursionError):  # all that led here would end here again
                raise
        finally:
            reader.is_within = is_within
    reader.unread[code] = reader.known[code]
    form = "not read", registration.what, label, _named(reader, registration.options)
    return reader.add(f"overload of {label}", form, None)


def _is_seen(code: Any) -> bool:
    """Check whether a compile that uses this calls a Python function of it (`compiled_code.observed`)."""
    if not hasattr(code, "generic_resolve"):
        return isinstance(code.__init__ if hasattr(code, "__mro__") else code, FunctionType)
    resolving = [value for each in code.__mro__ for name, value in vars(each).items() if "resolve" in name]
    return all(type(part) is FunctionType for each in resolving if callable(each) for part in parts_of(each))


def _named(reader: Reader, value: Any) -> Plain:
    """The names of the types and values that a registration is for, without their content and addresses."""
    if isinstance(value, dict):
        value = [*value.items()]
    if isinstance(value, (tuple, list)):
        return [_named(reader, each) for each in value]
    return reader.trust.name_of(value) or re.sub(" at 0x[0-9a-f]+", "", getattr(value, "__qualname__", str(value)))


def _in_order(reader: Reader, group: Iterable[Registration]) -> list[tuple[str, Registration]]:
    """Sort registrations by kind and subject; those of one subject keep their order."""
    labelled = [(str(_named(reader, each.subject)), each) for each in group]
    return sorted(labelled, key=lambda item: (item[1].what, item[0]))


def read_link(item: Any) -> LinkInput:
    """Read a path, which is relative to the working directory, or a `LinkableCode` object.

    Raises:
        Refused: It is neither, or the file does not exist.
    """
    from ...model.linkable import kind_of_path, linkable_input

    if not isinstance(item, (str, os.PathLike)):
        found = linkable_input(item)
        if found is None:
            raise Refused(f"a {type(item).__name__} is neither a path nor LinkableCode")
        return found
    path = os.path.abspath(item)
    try:
        with open(path, "rb") as file:
            return LinkInput(kind_of_path(path) or "", os.path.basename(path), file.read(), os.path.dirname(path))
    except OSError as error:
        raise Refused(f"{os.fspath(item)}: {error.strerror or error}") from None


def check_texts(texts: Sequence[LinkInput]) -> list[bytes]:
    """Return the linked CUDA C++ texts that may ask for files, or whose code may depend on their path or the time.

    Raises:
        Refused: The code of a text depends on the time, or its includes on a folder that is not known.
    """
    from ...headers import words

    for each in texts:
        if words.certainly_has_clock(each.data):
            raise Refused("what it links uses __DATE__ or __TIME__")
        if "/" in each.name and words.may_ask(each.data):
            raise Refused(each.unplaced)
    return [
        each.data
        for each in texts
        if words.may_ask(each.data) or words.has_location(each.data) or b"assert" in each.data
    ]


def dependency_form(given: str | os.PathLike[str], folder: str) -> tuple[str, Plain]:
    """The form of a file of `depends`, relative to the kernel's file; a `str` that names no file is a value.

    Raises:
        Refused: A path's file cannot be read.
    """
    try:
        with open(os.path.join(folder, os.fspath(given)), "rb") as file:
            return "file", sha256(file.read()).digest()
    except (OSError, ValueError) as error:
        if isinstance(given, str):
            return "value", given
        raise Refused(str(error)) from None


def source_text(code: CodeType) -> str:
    """Read the source of a function; "" if its file does not contain it, or changed since it was compiled.

    Not by `inspect.getsource`, which searches all modules of the program for the file: 50 ms if there are many.
    """
    import inspect
    import linecache
    from tokenize import TokenError

    linecache.checkcache(code.co_filename)
    try:
        return "".join(inspect.getblock(linecache.getlines(code.co_filename)[code.co_firstlineno - 1 :]))
    except (SyntaxError, IndexError, TokenError):
        return ""
