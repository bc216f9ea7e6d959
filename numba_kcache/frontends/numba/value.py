"""Convert a Python value that a kernel reads to plain values for the key, or refuse it with a reason.

Promise     The result is the value's form. Two values have equal forms only if a compiler generates the same code for
            them: types count (1, True and 1.0 differ), so do signed zeros, NaN payloads, the order of a dict, strides
            and dtype of an array. No value is captured in part: a value of an unknown kind is `Refused`.
Not here    Functions and the compiler's own objects, for which the caller passes `other_form`.
"""

from __future__ import annotations

import builtins
import enum
import math
import operator
import os
import sys
import sysconfig
from _frozen_importlib import BuiltinImporter, FrozenImporter
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from ...keys import Plain, sha256
from .code import scalar_form

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
        (space, name, value, space.get(name, ABSENT))
        for space, before in _BEFORE for name, value in before.items() if space.get(name, ABSENT) is not value
    ]  # fmt: skip
    try:
        for space, name, value, _now in replaced:
            space[name] = value
        yield
    finally:
        for space, name, _value, now in replaced:
            if now is ABSENT:
                del space[name]
            else:
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
