"""The form of a code object or a value in the key, the names that code reads from outside, and refusals with a reason.

Promise     `code_form` is equal for two code objects only if they compute the same from the same outer names.
            It does not depend on process, hash seed, checkout path, comments, docstrings, lines or names of local
            variables; with `with_lines` it also contains file, lines and those names, as debug information does.
            `outer_reads` lists every global and closure variable that is read, nested code included, with the
            chain of attributes read from it.
            Two values have equal forms only if a compiler generates the same code for them: types count (1, True and
            1.0 differ), so do signed zeros, NaN payloads, the order of a dict, strides and dtype of an array. No value
            is captured in part: a value of an unknown kind is `Refused`.
Method      Bytecode with its exception table, names and typed constants, those in the order of their use; not marshal
            (its bytes depend on reference counts) and not repr (addresses). The scan walks the two-byte words of
            `co_code` itself: `dis` takes 4 us an instruction.
Not here    Functions and the compiler's own objects, for which the caller passes `other_form` (definition).
Source      Python documentation, "dis": LOAD_GLOBAL holds its name's index shifted by one, LOAD_ATTR too
            from 3.12 on; inline caches are CACHE words in between.
"""

from __future__ import annotations

import builtins
import dis
import enum
import math
import operator
import os
import re
import struct
import sys
import sysconfig
import weakref
from _frozen_importlib import BuiltinImporter, FrozenImporter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from ...keys import Plain, encode, sha256
from ...model import NamedTuple
from ...settings import variables, working_directory

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


class Read(NamedTuple):
    """A name that code reads from outside: `scope` is "global", "closure" or "import". Of its value, `attributes` are
    read, each from the one before."""

    scope: str
    name: str
    attributes: tuple[str, ...] = ()


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
        lines, named = (where, code.co_firstlineno, code.co_linetable), len(code.co_varnames)
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


def _attributes(names: tuple[str, ...], words: bytes, operations: bytes, at: int) -> tuple[str, ...]:
    """The chain of attributes read from the value that the instruction before `at` loaded."""
    found: tuple[str, ...] = ()
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

_PATHS = sysconfig.get_paths()  # once: it takes 80 us
STANDARD = _PATHS["stdlib"] + os.sep, _PATHS["platstdlib"] + os.sep
_INSTALLED = tuple(each + folder + os.sep for each in STANDARD for folder in ("site-packages", "dist-packages"))

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


class Unread(RefusedByName):
    """A registration cannot be read that any code may use, or none: raised with what `RefusedByName` has, and it."""


standing: set[type] = set()
"""Classes of stand-ins for a compiler's objects, once the program has imported one."""


def real_of(value: Any) -> Any:
    """The compiler's object in place of a stand-in; others unchanged."""
    return value._stands_for() if type(value) in standing else value


_READ = builtins, math, operator, *filter(None, map(sys.modules.get, ("cmath", "numpy")))
_BEFORE = [(vars(each), dict(vars(each))) for each in _READ]
"""The names of modules for which a Numba registers code while its modules load, as they were when this module was."""


@contextmanager
def unreplaced() -> Iterator[None]:
    """Put back functions of Python and NumPy that the program has replaced, while a Numba loads modules.

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
        stand_in: The class of objects that stand in for others.
    """

    standing: Container[type] = standing
    homes: Mapping[int, str] = {}
    stand_in: type | None = None

    def __init__(self, packages: frozenset[str] = frozenset()) -> None:
        self.packages = packages

    @cached_property
    def folders(self) -> tuple[str, ...]:
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
            found = is_standard(origin) or (loader is FrozenImporter and origin == "frozen")
            found = found or (loader is BuiltinImporter and name in sys.builtin_module_names)
        else:
            found = origin.startswith(self.folders)
        self[name] = found
        return found

    def needs_compiler(self, value: Any, attribute: str) -> bool:
        """Check for an attribute of a `stand_in` that only the compiler can read."""
        raise NotImplementedError

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
        return "enum", value.__name__, bases, tuple(members), forms(each.value for each in members.values())
    name = trust.name_of(value)
    if name:
        return "class", name
    fields, constructor = getattr(value, "_fields", None), value.__new__
    if issubclass(value, tuple) and isinstance(fields, tuple) and type(constructor) is FunctionType:
        if vars(constructor):  # `__signature__` would decide the meaning of a call too
            raise Refused("it is a class of named tuples whose constructor has attributes")
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
