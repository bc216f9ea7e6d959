"""The functions of a `Dialect` for both Numbas: dispatchers, intrinsics, types, and registered implementations.

Promise     No module of Numba is imported: a program that has an object of Numba has imported its module.
            Registrations of other packages are found in all of Numba's registries, in their present state. An object
            with unexpected attributes is not recognised, and so its kernel is not cached.
Method      numba-cuda-mlir contains a copy of numba-cuda's front end. `Names` has the modules and names of each; the
            functions here take it as first argument, which each front end's module `dialect` binds.
Not here    Describing a registration (registrations), and declarations of external functions.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import CellType, FunctionType
from typing import Any

from ...keys import Plain
from ...model import NamedTuple
from . import Registration, Registrations
from .value import STANDARD, AlwaysRefused, Refused, Trust, value_form

Place = tuple[str, str]
"""A module and a name in it."""


class Names(NamedTuple):
    """The module and attribute names of one of the two Numbas.

    Args:
        packages: Dotted names of packages whose versions are in the key.
        home: The package with its `cuda`: `numba.cuda`.
        dispatchers, types, intrinsics, signatures: Base classes of dispatchers, Numba types, intrinsics, signatures.
        target: The object with the typing context and the target context.
        holders: Registries, read if the module is loaded.
        models: Managers of data models.
        owned: Top-level name of its own modules, in which its types are defined.
        making: Prefixes of `__module__` of the classes that it registers itself.
        generated: Prefix of the names of the modules whose functions without a file it has generated.
    """

    packages: frozenset[str]
    home: str
    dispatchers: tuple[Place, ...]
    types: tuple[Place, ...]
    intrinsics: tuple[Place, ...]
    signatures: tuple[Place, ...]
    target: Place
    holders: Callable[[], Iterable[Place]]
    models: tuple[Place, ...]
    owned: str
    making: tuple[str, ...]
    generated: str


class Declared(NamedTuple):
    """A kernel and its `cuda.jit` options, with a dispatcher's attribute names; used while no dispatcher is needed."""

    py_func: Any
    targetoptions: dict[str, Any]


def loaded(module: str, name: str) -> Any:
    """An attribute of a module if the module is loaded; None otherwise."""
    return getattr(sys.modules.get(module), name, None)


def is_a(value: Any, *places: tuple[str, str]) -> bool:
    """Check whether a value's class is one of these or a subclass. `isinstance` is not used: Numba's classes have
    abstract bases, which query every class of Numba at the first check of each other class (200 us)."""
    bases = type(value).__mro__
    for module, name in places:  # noqa: SIM110  (a generator costs as much as the rest of this function)
        if loaded(module, name) in bases:
            return True
    return False


def is_dispatcher(names: Names, value: Any) -> bool:
    """Check whether it is a function under `cuda.jit`, or another decorator whose functions device code may call."""
    kind = type(value)
    if kind is FunctionType or kind is Declared:
        return kind is Declared
    return is_a(value, *names.dispatchers)


def is_numba_type(names: Names, value: Any) -> bool:
    """Check whether it is an instance of one of Numba's own types, not of an extension's."""
    return is_a(value, *names.types) and type(value).__module__.partition(".")[0] == names.owned


def python_function(names: Names, value: Any) -> Any:
    """The function under a decorator of Numba's; None for other objects."""
    return _on_device(value).py_func if is_dispatcher(names, value) else None


def _on_device(dispatcher: Any) -> Any:
    """The dispatcher that a kernel calls: for one of `njit`, the second one that its first kernel has made of it."""
    return getattr(dispatcher, "_CUDATypingContext__dispatcher", dispatcher)


def fixed_signatures(dispatcher: Any) -> tuple[str, ...] | None:
    """The signatures given to the decorator; None if there are none."""
    if getattr(dispatcher, "_can_compile", True):
        return None
    results = dispatcher.overloads.values()
    return tuple(str(getattr(each, "signature", each)) for each in results)


def signature_read(dispatcher: Any) -> Any:
    """The `inspect.Signature` that a device function's dispatcher read when it was made, if its parameters or defaults
    are not those of the function now; None otherwise."""
    pysig = getattr(getattr(_on_device(dispatcher), "_compiler", None), "pysig", None)
    if pysig is None:
        return None
    function = _on_device(dispatcher).py_func
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = [id(each.default) for each in pysig.parameters.values() if each.default is not each.empty]
    is_same = defaults == [*map(id, function.__defaults__ or ())]
    return None if is_same and (*pysig.parameters,) == names else pysig


def intrinsic(names: Names, value: Any) -> Registration | None:
    """The definition of an `@intrinsic`; None for other objects."""
    if not is_a(value, *names.intrinsics):
        return None
    function, options = getattr(value, "_defn", None), getattr(value, "_ctor_kwargs", None)
    if not isinstance(function, FunctionType) or not isinstance(options, dict):
        return None
    options = {"prefer_literal": getattr(value, "_prefer_literal", None), **options}
    return Registration("intrinsic", None, options, (function,))


def type_form(names: Names, value: Any) -> Plain | None:
    """The form of a Numba type (its text), of a signature (its types), or of a manager of data models, whose models
    count with their types; None for other objects.

    Raises:
        AlwaysRefused: It refers to an object of this process.
    """
    if is_a(value, *names.signatures):
        types = (value.return_type, *value.args, *([] if value.recvr is None else [value.recvr]))
        forms = [type_form(names, each) for each in types]
        if None in forms:
            raise Refused(f"the signature {value} has a type that is not Numba's")
        return "signature", forms, str(value.pysig)
    managers = [loaded(*each) for each in names.models]
    if type(value) in map(type, managers):
        known = [id(each._handlers) for each in managers if each is not None]
        chained = getattr(value._handlers, "maps", [value._handlers])
        return ("models",) if all(id(each) in known for each in chained) else None
    return form_of_type(names, value) if is_numba_type(names, value) else None


def form_of_type(names: Names, kind: Any, is_covered: bool = False) -> Plain:
    """The form of a type, with everything that its text omits: names of fields, members of an enum.

    Args:
        names: The Numba.
        kind: A type of it, or of an extension of it.
        is_covered: Whether `depends=` covers the code of an extension's types.

    Raises:
        Refused: It is a type of an extension.
        AlwaysRefused: It refers to an object of this process.
    """
    types = sys.modules[f"{names.home}.types"]
    if not is_covered and not is_numba_type(names, kind):
        where = type(kind).__module__
        raise Refused(
            f"{kind} is a type of {where}, not of Numba (depends= takes values and files that represent its code)"
        )
    bases = type(kind).__mro__  # not isinstance: see is_a
    if types.BaseTuple in bases:
        members = [form_of_type(names, each, is_covered) for each in kind]
        if types.BaseNamedTuple in bases:
            return "named tuple", _class_form(names, kind.instance_class), members
        return "tuple", members
    if types.EnumMember in bases:
        enumeration = _class_form(names, kind.instance_class)
        return "enum member", type(kind).__name__, enumeration, form_of_type(names, kind.dtype, is_covered)
    if types.Array in bases:
        flags = (kind.ndim, kind.layout, bool(kind.mutable), bool(kind.aligned))
        more = () if type(kind) is types.Array else (str(kind),)  # the extents of a nested array
        return "array", type(kind).__qualname__, *more, form_of_type(names, kind.dtype, is_covered), flags
    text = repr(kind)
    if "<" in text or " at 0x" in text:
        raise AlwaysRefused(f"the type {text} refers to an object of this process")
    return f"{type(kind).__module__}.{type(kind).__qualname__}", text, str(kind)


def _class_form(names: Names, kind: type) -> Plain:
    return value_form(kind, Trust(names.packages), functools.partial(type_form, names))


_TYPING = tuple((f"typing {name}", name) for name in ("functions", "attributes", "globals"))
_LOWERING = tuple((f"lowering {name}", name) for name in ("functions", "getattrs", "setattrs", "casts", "constants"))

_OF_VALUE = frozenset(("typing globals", "typing functions", "lowering functions", "model"))
"""Lists whose items each belong to a value, by which they are usually found."""

_OF_CLASS = ("typing attributes", "lowering getattrs", "lowering setattrs")
"""Lists in which functions of Numba put items for a program's class (`make_attribute_wrapper`)."""

_UNNAMED = ("operator", "_operator")
"""Modules whose functions represent operators, which code uses without naming the functions."""

_EMPTY, _DEEPEST = CellType(), 32

_List = tuple[str, list[Any]]
_Item = tuple[str, Any]
"""An item of a registry, with the kind of list that it is in."""

_read: dict[str, tuple[list[_List], Registrations]] = {}
"""The lists of each Numba when they were last read, and the registrations found in them."""


def registrations(names: Names) -> Registrations:
    """Collect the registrations of programs so far; those for a value are described only when a kernel uses it."""
    lists, read = _lists(names), _read.get(names.home)
    if read is None or lists != read[0]:
        copies = [(kind, [*items]) for kind, items in lists]
        read = _read[names.home] = copies, _gathered(names, copies)
    return read[1]


def registries(names: Names) -> list[Any]:
    """List all registries of typing and lowering, each once."""
    found = [getattr(sys.modules[module], name, None) for module, name in names.holders() if module in sys.modules]
    target = loaded(*names.target)
    for context in (getattr(target, "_typingctx", None), getattr(target, "_targetctx", None)):
        found += getattr(context, "_registries", ())
    return list({id(each): each for each in found if each is not None}.values())


def _lists(names: Names) -> list[_List]:
    home = names.home
    found: list[_List] = []
    for registry in registries(names):
        parts = _TYPING if hasattr(registry, "globals") else _LOWERING
        found += [(kind, getattr(registry, name)) for kind, name in parts]
    for module, name in names.models:
        models = getattr(loaded(module, name), "_handlers", None) or {}
        found.append(("model", [*models.items()]))
    typeof = loaded(f"{home}.typing.typeof", "typeof_impl")
    found.append(("typeof", [*getattr(typeof, "registry", {}).items()]))
    rewrites = loaded(f"{home}.core.rewrites.registry", "rewrite_registry")
    found += [(f"rewrite {when}", items) for when, items in sorted(getattr(rewrites, "rewrites", {}).items())]
    return found


def _gathered(names: Names, lists: Iterable[_List]) -> Registrations:
    others: list[_Item] = []  # registrations that code uses without naming their value
    for kind, items in lists:
        chosen: Iterable[Any] = items
        if kind == "typing globals":  # not needed: templates for operators are in "typing functions" as well
            chosen = ()
        elif kind == "model":
            own = f"{names.owned}."
            chosen = [
                each for each in items if not each[1].__module__.startswith(own) and each[0].__module__.startswith(own)
            ]
        elif kind == "typeof":  # without a user's classes: their types are refused anyway
            chosen = [each for each in items if each[0].__module__.startswith(names.making)]
        elif kind in _OF_VALUE:
            chosen = [
                each
                for key, each in zip(_subjects(kind, items), items, strict=True)
                if type(key) is str or type(key) is tuple or getattr(key, "__module__", None) in _UNNAMED
            ]
        others += [(kind, each) for each in chosen]
    users, found = _of_users(names, others), Registrations(lambda _value: (), {}, [])
    if users:
        from .registrations import describe

        found = describe(users)
    subjects: frozenset[int] = frozenset()  # no dict of lists: so many objects would trigger garbage collections
    users_of: dict[int, list[_Item]] = {}

    def of_value(value: Any) -> Sequence[Registration]:
        nonlocal subjects
        subjects = subjects or frozenset([id(each) for kind, items in lists for each in _subjects(kind, items)])
        if id(value) not in subjects:
            return ()
        if id(value) not in users_of:
            is_programs = _is_programs(names, value)
            pairs = (
                (kind, zip(_subjects(kind, items), items, strict=False))
                for kind, items in lists
                if is_programs or kind in _OF_VALUE
            )
            found = [(kind, each) for kind, of in pairs for one, each in of if one is value]
            users_of[id(value)] = [*filter(_is_given, found)] if is_programs else _of_users(names, found)
        if not users_of[id(value)]:
            return ()
        from .registrations import describe_for

        return describe_for(users_of[id(value)])

    return found._replace(of_value=of_value)


def _subjects(kind: str, items: Sequence[Any]) -> Sequence[Any]:
    """List the value that each item of a list belongs to; () if they belong to none."""
    if kind == "lowering functions":  # without the code generators of intrinsics, which belong to them
        return [None if each[0] is each[1] else each[1] for each in items]
    if kind == "typing functions":
        return [each.key for each in items]
    if kind in _OF_CLASS:
        return [each.key for each in items] if kind == "typing attributes" else [(*each[2], None)[0] for each in items]
    return [each[0] for each in items] if kind in _OF_VALUE else ()


def _is_given(item: _Item) -> bool:
    """Check for a registration that Numba has not derived from a template of `@overload_attribute` at its first use."""
    waiting = list(item[1][:1]) if type(item[1]) is tuple else []
    for each in waiting:  # grows while it is walked
        if hasattr(each, "_overload_func"):
            return False
        if type(each) is FunctionType and len(waiting) <= _DEEPEST:
            waiting += [cell.cell_contents for cell in each.__closure__ or () if cell != _EMPTY]
    return True


def _is_programs(names: Names, value: Any) -> bool:
    """Check for a function or class of the program: whoever registers something for it, it is the program's."""
    trust = Trust(names.packages)
    if type(value) is FunctionType:
        return not trust.has_file(value.__code__.co_filename)
    return isinstance(value, type) and not trust[value.__module__]


def _of_users(names: Names, items: Iterable[_Item]) -> list[_Item]:
    """List the items that are not Numba's own, judged by their functions.

    Functions are judged by their files, or by their module, since those that Numba generates have no file. A closure of
    Numba's may contain a user's function. The functions of a class are in one file, except for a class made by one
    of Numba's functions: its own functions, or those of its base, may be a user's.
    """
    homes = [folder for name in sorted(names.packages) for folder in loaded(name, "__path__") or ()]
    folders = (*(f"{folder}{os.sep}" for folder in homes), *STANDARD)
    found: list[_Item] = []
    for kind, item in items:
        waiting: list[Any] = []
        is_users = False
        parts = item[:2] if type(item) is tuple else (item,)
        if kind == "typing globals":
            parts = item[0], *getattr(item[1], "templates", ())
        for part in parts:
            if type(part) is FunctionType:
                waiting.append(part)
            elif isinstance(part, type) and (part is item or part is not parts[0]):
                content, base = vars(part), part.__mro__[1]
                function = content.get("_overload_func") or content.get("generic") or vars(base).get("generic")
                members = () if function else (*content.values(), *vars(base).values())
                function = function or next((each for each in members if type(each) is FunctionType), None)
                waiting.append(getattr(function, "__func__", function))
                is_users = is_users or not (
                    part.__module__.startswith(names.making) and base.__module__.startswith(names.making)
                )
        for function in waiting:  # grows while it is walked
            if is_users or len(waiting) > _DEEPEST:
                break
            if type(function) is FunctionType:
                file = function.__code__.co_filename
                if file.startswith(folders):
                    waiting += [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
                else:
                    made_by = str(function.__globals__.get("__name__"))
                    is_users = not (file.startswith("<") and made_by.startswith(names.generated))
        if is_users:
            found.append((kind, item))
    return found
