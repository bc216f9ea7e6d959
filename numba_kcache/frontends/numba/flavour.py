"""One of the two Numbas: the names that differ, and what it says about its objects to the fingerprint of a function.

Promise     No module of Numba is imported: a program that has an object of Numba has imported its module.
            Registrations of other packages are found in all of Numba's registries, in their present state. An object
            with unexpected attributes is not recognised, and so its kernel is not cached.
Method      numba-cuda-mlir contains a copy of numba-cuda's front end. `Flavour` is a table with the functions that both
            share; the modules llvm_flavour and mlir_flavour have the row of each, and what only one has.
Not here    Describing a registration (registrations), and reading values that are not of the compiler (value).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from ...errors import ToolchainMissingError
from ...keys import Component, Plain
from ...model import NamedTuple
from .configuration import registries_among
from .graph import External, Jitted, Registration, Registrations
from .value import STANDARD, AlwaysRefused, Refused, Trust, value_form

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch
    from ...model import LinkInput

Place = tuple[str, str]
"""A module and a name in it."""

Table = tuple[tuple[str, str], ...]
"""Names, separated by spaces, for each module or function."""


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


def _on_device(dispatcher: Any) -> Any:
    """The dispatcher that a kernel calls: for that of `njit`, the CUDA dispatcher that Numba made at its first use."""
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


Extension = Callable[[Any], Plain]
"""Returns the form of a type of an extension; raises `Refused` if it cannot be captured."""


def refuse(kind: Any) -> Plain:
    """Refuse a type of an extension, where no other `Extension` is given."""
    raise Refused(f"{kind} is a type of {type(kind).__module__}, not of Numba")


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


@functools.lru_cache(maxsize=4)
def _holders(flavour: Flavour, version: str, _modules_loaded: int) -> tuple[Place, ...]:
    rows = [each.strip().split(": ") for each in flavour.registry_modules.strip().split("\n")]
    known = [f"{flavour.owned}.{package}{name}" for package, names in rows for name in names.split()]
    if not version.startswith(flavour.versions):
        known += [each for each in sys.modules.copy() if each.startswith(flavour.searched)]
    return registries_among(dict.fromkeys(known))


class Flavour:
    """The names and functions of one Numba.

    A program with other objects has a subclass. `jitted`, `intrinsic`, `external` and `type_form` may raise `Refused`
    for a value that can be cached only with `depends=`, and `AlwaysRefused` for one that cannot be cached at all;
    `code_environment` and `linked_headers` raise `Refused`.

    Attributes:
        packages: Dotted names of packages whose versions are in the key, so that their objects count by name.
        stateful: Modules of these packages, and objects in them, whose results depend on more than their arguments.
        home: The package with its `cuda`: `numba.cuda`.
        config: The module with its settings.
        version, versions: Its version, and the starts of those for which `registry_modules` is complete.
        searched: Prefix of names of modules, which are searched for registries in other versions.
        dispatchers, types, intrinsics, signatures: Base classes of dispatchers, Numba types, intrinsics, signatures.
        target: The object with the typing context and the target context.
        owned: Top-level name of its own modules, in which its types are defined.
        registry_modules: Modules with registries: lines of a package in `owned` and names in it.
        models: Managers of data models.
        making: Prefixes of `__module__` of the classes that it registers itself.
        generated: Prefix of names of modules; a function in them that is in no file was generated by this Numba.
        code_modules: Modules whose functions decide about code; a program may have replaced some.
        without_code: Options that do not change code, repeat another option, or concern one compile only.
        libraries, distributions: Its compilers, as in `Request`.
        runtime: The library that it links into kernels which synchronise their grid.
        surface_parts, compiler_parts, linker_parts: The undocumented names that are used from each module (parts).
        parameters: Parameters that functions among them take.
        methods: Undocumented attributes of its class of dispatchers.
        device_readers: Functions that return the current device while it compiles.
        array_codes, array_letters: The parameters of an array: type codes of those before shape and strides, and the
            letters of all (launch.typed).
        packs_all: Whether the launcher packs tuples, records, dates and None too.
        name, hint: Its distribution, and how to install it.
        trust: Makes the record of modules for one fingerprint.
    """

    packages: frozenset[str]
    stateful: frozenset[str]
    home: str
    config: str
    version: Place
    versions: tuple[str, ...]
    searched: str
    dispatchers: tuple[Place, ...]
    types: tuple[Place, ...]
    intrinsics: tuple[Place, ...]
    signatures: tuple[Place, ...]
    target: Place
    owned: str
    registry_modules: str
    models: tuple[Place, ...]
    making: tuple[str, ...]
    generated: str
    code_modules: tuple[str, ...]
    without_code: frozenset[str] = frozenset()
    libraries = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
    distributions: tuple[str, ...]
    runtime: str
    surface_parts: Table
    compiler_parts: Table
    linker_parts: Table
    parameters: Table
    methods = ""
    device_readers: tuple[Place, ...]
    array_codes: tuple[str, ...]
    array_letters: str
    packs_all = False
    name: str
    hint: str
    trust: Callable[[frozenset[str]], Trust] = Trust

    def unsuitable(self, why: str) -> ToolchainMissingError:
        """Make the error for a part that is not there."""
        return ToolchainMissingError("cannot use a Numba kernel", f"{self.name} {why}", self.hint)

    def check_version(self) -> None:
        """Raise `unsuitable` if it is of a version that is too old."""

    def device_answer(self, cc: tuple[int, int], *given: Any, **named: Any) -> Any:
        """The result of one of `device_readers` for a device of this compute capability."""
        raise NotImplementedError

    def fill_registries(self, parts: Any) -> None:
        """Make the compiler fill its registries, as its first compile does."""
        raise NotImplementedError

    def holders(self) -> Iterable[Place]:
        """List the registries in loaded modules."""
        return _holders(self, str(loaded(*self.version)), len(sys.modules))

    def is_dispatcher(self, value: Any) -> bool:
        """Check whether it is a function under `cuda.jit`, or another decorator that device code may call."""
        kind = type(value)
        if kind is FunctionType or kind is Declared:
            return kind is Declared
        return is_a(value, *self.dispatchers)

    def is_numba_type(self, value: Any) -> bool:
        """Check whether it is an instance of one of Numba's own types, not of an extension's."""
        return is_a(value, *self.types) and type(value).__module__.partition(".")[0] == self.owned

    def python_function(self, value: Any) -> Any:
        """The function under a decorator of Numba's; None for other objects."""
        return _on_device(value).py_func if self.is_dispatcher(value) else None

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Jitted:
        """The options of a dispatcher; for a device function also its given signatures, to which arguments are cast.

        Raises:
            AlwaysRefused: Its code depends on more than can be in a key.
        """
        options = {name: value for name, value in dispatcher.targetoptions.items() if name not in self.without_code}
        links, extensions = options.pop("link", None) or (), options.pop("extensions", None)
        links = (links,) if isinstance(links, (str, os.PathLike)) else links
        options["signatures"] = None if is_kernel else fixed_signatures(dispatcher)
        opaque = {"extensions": extensions} if extensions else {}
        pysig = None if is_kernel else signature_read(dispatcher)
        links = self.read_options(dispatcher, options, links, extensions, is_kernel=is_kernel)
        has_lines = bool(options.get("debug") or options.get("lineinfo"))
        return Jitted(options, opaque, links, has_lines, pysig)

    def default_options(self, given: Mapping[str, Any], *, debug: Any, opt: bool) -> dict[str, Any]:
        """The options of a function as `cuda.jit` fills them in, without asking the Numba.

        Args:
            given: The options of the user.
            debug, opt: The settings that are their defaults.

        Raises:
            Refused: Only the Numba can tell.
        """
        raise Refused("only Numba fills in its options")

    def read_options(
        self, dispatcher: Any, options: dict[str, Any], links: Iterable[Any], extensions: Any, *, is_kernel: bool
    ) -> Iterable[Any]:
        """Complete the options of a dispatcher in place, and return its link inputs, as both enter the key."""
        raise NotImplementedError

    def external(self, value: Any) -> External | None:
        """The declaration of an external function; None for other objects."""
        raise NotImplementedError

    def setting(self, name: str) -> Any:
        """The value of a setting; None while its module is not loaded."""
        return loaded(self.config, name)

    def code_environment(self, *, has_lines: bool) -> tuple[Component, ...]:
        """Read the settings that count; () while the compiler is not loaded.

        Args:
            has_lines: Whether any function has line tables.
        """
        raise NotImplementedError

    def linked_headers(self, links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
        """Make the search for headers of CUDA C++ among the link inputs of a kernel and its callees.

        Args:
            links: The link inputs.
            has_lines: Whether the kernel has line tables.
        """
        raise NotImplementedError

    def intrinsic(self, value: Any) -> Registration | None:
        """The definition of an `@intrinsic`; None for other objects."""
        if not is_a(value, *self.intrinsics):
            return None
        function, options = getattr(value, "_defn", None), getattr(value, "_ctor_kwargs", None)
        if not isinstance(function, FunctionType) or not isinstance(options, dict):
            return None
        options = {"prefer_literal": getattr(value, "_prefer_literal", None), **options}
        return Registration("intrinsic", None, options, (function,))

    def type_form(self, value: Any, extension: Extension = refuse) -> Plain | None:
        """The form of a Numba type (its text), of a signature (its types), or of a manager of data models, whose models
        count with their types; None for other objects.

        Raises:
            AlwaysRefused: It refers to an object of this process.
        """
        if is_a(value, *self.signatures):
            types = (value.return_type, *value.args, *([] if value.recvr is None else [value.recvr]))
            return "signature", [self.form_of_type(each, extension) for each in types], str(value.pysig)
        managers = [loaded(*each) for each in self.models]
        if type(value) in map(type, managers):
            known = [id(each._handlers) for each in managers if each is not None]
            chained = getattr(value._handlers, "maps", [value._handlers])
            return ("models",) if all(id(each) in known for each in chained) else None
        return self.form_of_type(value, extension) if is_a(value, *self.types) else None

    def untyped(self, value: Any) -> str:
        """Numba's reason why device code cannot read an object of a program's class; "" if it can."""
        if isinstance(value, (type, FunctionType)) or type(value).__module__.startswith(self.making):
            return ""
        try:
            loaded(f"{self.home}.typing.typeof", "typeof")(value)
        except ValueError as error:
            return str(error).partition("\n")[0]
        except Exception:  # a program's own typeof may raise anything
            pass
        return ""

    def form_of_type(self, kind: Any, extension: Extension = refuse) -> Plain:
        """The form of a type, with everything that its text omits: names of fields, members of an enum.

        Args:
            kind: A type of it, or of an extension of it.
            extension: Makes the form of a type of an extension.

        Raises:
            Refused: It is a type of an extension.
            AlwaysRefused: It refers to an object of this process.
        """
        types = sys.modules[f"{self.home}.types"]
        if not self.is_numba_type(kind):
            return extension(kind)
        bases = type(kind).__mro__  # not isinstance: see is_a
        if types.BaseTuple in bases:
            members = [self.form_of_type(each, extension) for each in kind]
            if types.BaseNamedTuple in bases:
                return "named tuple", self._class_form(kind.instance_class), members
            return "tuple", members
        if types.EnumMember in bases:
            enumeration = self._class_form(kind.instance_class)
            return "enum member", type(kind).__name__, enumeration, self.form_of_type(kind.dtype, extension)
        if types.Array in bases:
            more = () if type(kind) is types.Array else (str(kind),)  # the extents of a nested array
            flags = (kind.ndim, kind.layout, bool(kind.mutable), bool(kind.aligned))
            return "array", type(kind).__qualname__, *more, self.form_of_type(kind.dtype, extension), flags
        text = repr(kind)
        if "<" in text or " at 0x" in text:
            raise AlwaysRefused(f"the type {text} refers to an object of this process")
        inner = [self.form_of_type(each, extension) for each in vars(kind).values() if is_a(each, *self.types)]
        return f"{type(kind).__module__}.{type(kind).__qualname__}", text, str(kind), *inner

    def _class_form(self, kind: type) -> Plain:
        return value_form(kind, Trust(self.packages), self.type_form)

    def registrations(self) -> Registrations:
        """Collect the registrations of programs so far; those for a value are described only when a kernel uses it."""
        lists, read = self._lists(), _read.get(self.home)
        if read is None or lists != read[0]:
            copies = [(kind, [*items]) for kind, items in lists]
            read = _read[self.home] = copies, self._gathered(copies)
        return read[1]

    def registries(self) -> list[Any]:
        """List all registries of typing and lowering, each once."""
        found = [getattr(sys.modules[module], name, None) for module, name in self.holders() if module in sys.modules]
        target = loaded(*self.target)
        for context in (getattr(target, "_typingctx", None), getattr(target, "_targetctx", None)):
            found += getattr(context, "_registries", ())
        return list({id(each): each for each in found if each is not None}.values())

    def _lists(self) -> list[_List]:
        home = self.home
        found: list[_List] = []
        for registry in self.registries():
            parts = _TYPING if hasattr(registry, "globals") else _LOWERING
            found += [(kind, getattr(registry, name)) for kind, name in parts]
        for module, name in self.models:
            models = getattr(loaded(module, name), "_handlers", None) or {}
            found.append(("model", [*models.items()]))
        typeof = loaded(f"{home}.typing.typeof", "typeof_impl")
        found.append(("typeof", [*getattr(typeof, "registry", {}).items()]))
        rewrites = loaded(f"{home}.core.rewrites.registry", "rewrite_registry")
        found += [(f"rewrite {when}", items) for when, items in sorted(getattr(rewrites, "rewrites", {}).items())]
        return found

    def _gathered(self, lists: Iterable[_List]) -> Registrations:
        others: list[_Item] = []  # registrations that code uses without naming their value
        listed = {id(each) for kind, items in lists if kind == "typing functions" for each in items}
        for kind, items in lists:
            chosen: Iterable[Any] = items
            if kind == "model":
                own = f"{self.owned}."
                chosen = [
                    each
                    for each in items
                    if not each[1].__module__.startswith(own) and each[0].__module__.startswith(own)
                ]
            elif kind == "typeof":  # without a user's classes: their types are refused anyway
                chosen = [each for each in items if each[0].__module__.startswith(self.making)]
            elif kind in _OF_VALUE:
                chosen = [
                    each
                    for key, each in zip(_subjects(kind, items), items, strict=True)
                    if type(key) is str or type(key) is tuple or getattr(key, "__module__", None) in _UNNAMED
                ]
                if kind == "typing globals":  # most templates for operators are in "typing functions" as well
                    chosen = [each for each in chosen if listed.isdisjoint(map(id, getattr(each[1], "templates", ())))]
            others += [(kind, each) for each in chosen]
        users, found = self._of_users(others), Registrations(lambda _value: (), {}, [])
        if users:
            from .registrations import describe

            found = describe(users)
        subjects: frozenset[int] = frozenset()  # no dict of lists: so many objects would trigger garbage collections
        users_of: dict[int, list[_Item]] = {}

        def of_value(value: Any) -> Sequence[Registration]:
            nonlocal subjects
            subjects = subjects or frozenset(
                [id(each) for kind, items in lists if items for each in _subjects(kind, items)]
            )
            if id(value) not in subjects:
                return ()
            if id(value) not in users_of:
                is_programs = self._is_programs(value)
                pairs = (
                    (kind, zip(_subjects(kind, items), items, strict=False))
                    for kind, items in lists
                    if is_programs or kind in _OF_VALUE
                )
                found = [(kind, each) for kind, of in pairs for one, each in of if one is value]
                users_of[id(value)] = [*filter(_is_given, found)] if is_programs else self._of_users(found)
            if not users_of[id(value)]:
                return ()
            from .registrations import describe_for

            return describe_for(users_of[id(value)])

        return found._replace(of_value=of_value)

    def _is_programs(self, value: Any) -> bool:
        """Check for a function or class of the program: whoever made a registration for it, it is the program's."""
        trust = Trust(self.packages)
        if type(value) is FunctionType:
            return not trust.has_file(value.__code__.co_filename)
        return isinstance(value, type) and not trust[value.__module__]

    def _of_users(self, items: Iterable[_Item]) -> list[_Item]:
        """List the items that are not Numba's own, judged by their functions.

        Functions are judged by their files, or by their module, since those that Numba generates have no file. A
        closure of Numba's may contain a user's function. The functions of a class are in one file, except for a class
        made by one of Numba's functions: its own functions, or those of its base, may be a user's.
        """
        homes = [folder for name in sorted(self.packages) for folder in loaded(name, "__path__") or ()]
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
                        part.__module__.startswith(self.making) and base.__module__.startswith(self.making)
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
                        is_users = not (file.startswith("<") and made_by.startswith(self.generated))
            if is_users:
                found.append((kind, item))
        return found
