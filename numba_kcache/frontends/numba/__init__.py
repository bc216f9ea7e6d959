"""Kernels in Python, of both Numbas: the names that differ (`Flavour`), and the state of a Numba that enters the key.

Promise     No module of Numba is imported: a program that has an object of Numba has imported its module.
            All settings count, except those in a list of harmless ones. One key on two machines that differ in cores,
            CPU, home and toolkit folder. Of the modules that take part in compiling, a function or method that is not
            the compiler's own is found if it is a Python function; this package's own are left out.
            Registrations of other packages are found in all of Numba's registries, in their present state. An object
            with unexpected attributes is not recognised, and so its kernel is not cached.
Method      numba-cuda-mlir contains a copy of numba-cuda's front end. `Flavour` is a table with the functions that both
            share; the modules llvm and mlir have the row of each, and what only one has. Undocumented names are probed
            when they are first used. A setting counts by its value in Numba's configuration, which has defaults and
            what the program set; an environment variable that is not in it, by its text.
Not here    Reading values that are not of the compiler (fingerprint). A module whose full name contains `numba.cuda`:
            the import hook of numba-cuda answers for all such names.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib import import_module
from operator import attrgetter, itemgetter
from types import CellType, FunctionType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ...errors import ToolchainMissingError
from ...keys import Component, Plain
from ...launch import is_c_contiguous
from ...model import NamedTuple
from ...settings import variables_starting, working_directory
from .fingerprint import AlwaysRefused, Names, Refused, RefusedByName, Trust, check_texts, value_form

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch
    from ...model import LinkInput

_STARTS = "NUMBA_", "LLVMLITE_"

_HARMLESS = frozenset(name for names in (
    # it prints, logs, warns or measures
    """ALWAYS_WARN_UNINIT_VAR ANNOTATE CAPTURED_ERRORS CHROME_TRACE COLOR_SCHEME CUDA_DUMP_NVVM CUDA_LOG_API_ARGS
    CUDA_LOG_LEVEL CUDA_LOG_SIZE CUDA_LOW_OCCUPANCY_WARNINGS CUDA_MLIR_DUMP_MODERN_BRIDGE_MLIR CUDA_MLIR_DUMP_NVVM
    CUDA_MLIR_ICE_FULL_TB CUDA_VERBOSE_JIT_LOG CUDA_WARN_ON_IMPLICIT_COPY DEBUG_ARRAY_OPT DEBUG_ARRAY_OPT_STATS
    DEBUG_CACHE DEBUG_FRONTEND DEBUG_INLINE_CLOSURE DEBUG_PRINT_AFTER DEBUG_PRINT_BEFORE DEBUG_PRINT_WRAP
    DEBUG_TYPEINFER DEVELOPER_MODE DIFF_IR DISABLE_ERROR_MESSAGE_HIGHLIGHTING DISABLE_PERFORMANCE_WARNINGS
    DUMP_ANNOTATION DUMP_ASSEMBLY DUMP_BYTECODE DUMP_CFG DUMP_FUNC_OPT DUMP_HTML DUMP_IR DUMP_LLVM DUMP_OPTIMIZED
    DUMP_SSA FULL_TRACEBACKS HIGHLIGHT_DUMPS HTML JIT_COVERAGE LLVM_PASS_TIMINGS PARALLEL_DIAGNOSTICS SHOW_HELP TRACE
    USE_TYPEGUARD""",
    # it describes the host, or code for the host
    """CPU_FEATURES CPU_NAME DEFAULT_NUM_THREADS DISABLE_INTEL_SVML ENABLE_AVX ENABLE_PROFILING ENABLE_SYS_MONITORING
    GDB_BINARY LLVMLITE_DIST_TEST LLVMLITE_MEMORY_MANAGER NUM_THREADS RUNNING_UNDER_PROFILER THREADING_LAYER
    THREADING_LAYER_PRIORITY USE_LLVMLITE_MEMORY_MANAGER USING_SVML _HAVE_YAML""",
    # it concerns caches, the driver or launches
    """CACHE_DIR CACHE_LOCATOR_CLASSES CUDA_ARRAY_INTERFACE_SYNC CUDA_DEALLOCS_COUNT CUDA_DEALLOCS_RATIO CUDA_DRIVER
    CUDA_MAX_PENDING_DEALLOCS_COUNT CUDA_MAX_PENDING_DEALLOCS_RATIO CUDA_MEMORY_MANAGER CUDA_MLIR_CACHE_DIR
    CUDA_MLIR_OLD_DISPATCHER_RETAIN_LIMIT CUDA_PER_THREAD_DEFAULT_STREAM CUDA_TEST_BIN_DIR CUDA_TEST_WHEEL_ONLY
    DISABLE_CUDA FUNCTION_CACHE_SIZE""",
    # a folder of headers: the content of those that are read counts
    "CUDA_INCLUDE_PATH",
    # the target of PTX if none is named: here one is
    "CUDA_DEFAULT_PTX_CC",
    # it counts under another name: CUDA_DEBUGINFO_DEFAULT, and the decorator's option `opt`
    "CUDA_DEBUGINFO OPT",
) for name in names.split())  # fmt: skip


def code_variables(known: Mapping[str, Any]) -> dict[str, Plain]:
    """Read the environment variables that count, without those whose value is in a configuration (`known`)."""
    return {
        name: text
        for name, text in variables_starting(_STARTS).items()
        if not name.startswith("NUMBA_KCACHE_")
        and name not in known
        and _HARMLESS.isdisjoint((name, own := name.removeprefix("NUMBA_")))
        and own not in known
    }


_AS_THEY_ARE = (bool, str, type(None))
"""Types of most settings; others count by their `repr`."""


def code_settings(config: Any) -> dict[str, Plain]:
    """Read the settings that count: of Numba's module `config`, and of the environment.

    Numba reads changed environment variables when it starts to compile. It is made to do so here, so that key and code
    have the same settings.
    """
    try:
        config.reload_config()
    except Exception:  # an invalid variable: the compilation reports it, a look-up must not fail
        pass
    known = vars(config)
    found: dict[str, Plain] = {
        name: value if type(value) in _AS_THEY_ARE else repr(value)
        for name, value in sorted(known.items())
        if name.isupper() and name.removeprefix("NUMBA_") not in _HARMLESS
    }
    return found | code_variables(known)


# -- replaced functions -----------------------------------------------------------------------------------------------

CODE_MODULES = (
    "cgutils", "compiler", "core.base", "core.callconv", "core.codegen", "core.compiler", "core.compiler_machinery",
    "core.interpreter", "core.typed_passes", "core.typeinfer", "core.untyped_passes", "cudadrv.nvvm",
    "cudadrv.nvrtc", "datamodel.manager", "datamodel.models", "debuginfo", "descriptor", "lowering", "target",
    "typing.context", "typing.templates",
)  # fmt: skip
"""Modules of `Flavour.code_modules` that both Numbas have in their `home`."""

STATEFUL = "api", "cudadrv.devices", "cudadrv.driver", "cudadrv.runtime", "device_init"
"""Modules of `Flavour.stateful` that both have there."""

_OWN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep


_READABLE = FunctionType, classmethod, staticmethod, property

_OTHERS = sys.stdlib_module_names - {"unittest"} | {"cuda"}
"""Top-level modules, beside the compiler's own packages, whose objects are in its modules."""

_sound: dict[str, list[tuple[Mapping[str, Any], list[Any]]]] = {}
"""The namespaces of each module and of the classes defined in it, with their values when no function was replaced."""


_PARTS = {
    classmethod: "__func__", staticmethod: "__func__", property: "fget", MethodType: "__func__",
    functools.partial: "func", functools.partialmethod: "func", functools.cached_property: "func",
    functools._lru_cache_wrapper: "__wrapped__",
}  # fmt: skip
"""The attribute with the function inside an object that a module or class may have in its place."""


def _at(module: Any, path: str) -> Any:
    try:
        return attrgetter(path)(module)
    except AttributeError:  # of a local function
        return None


def _is_trusted(function: FunctionType, trust: Trust) -> bool:
    path, home = function.__code__.co_filename, str(function.__globals__.get("__name__"))
    if path.startswith("<"):  # generated code is in no file
        return trust[home]
    return trust.has_file(path) or f"{os.sep}site-packages{os.sep}cuda{os.sep}" in path


# -- registries -------------------------------------------------------------------------------------------------------

Reference = tuple[str, str]
"""A module and a name in it."""

References = tuple[Reference, ...]


def loaded(module: str, name: str) -> Any:
    """An attribute of a module if the module is loaded; None otherwise."""
    return getattr(sys.modules.get(module), name, None)


class Registration(NamedTuple):
    """Code that a program gave to the compiler for a value, a type, an attribute or an operation.

    Args:
        what: The kind of registration, `"overload"`.
        subject: The value, type or text that it is for; None if it is listed under that value.
        options: Everything else that affects the compiler: types, options of the decorator.
        code: The functions and classes that implement it.
    """

    what: str
    subject: Any
    options: dict[str, Any]
    code: tuple[Any, ...]


class Registrations(NamedTuple):
    """All registrations of a program: by value, by attribute name, and those that any code may use implicitly.

    Those of one value, or of one subject, are in the order of registration, which decides between them.
    """

    of_value: Callable[[Any], Sequence[Registration]]
    of_attribute: dict[str, list[Registration]]
    of_all: list[Registration]


_TYPING = tuple((f"typing {name}", name) for name in ("functions", "attributes", "globals"))
_LOWERING = tuple((f"lowering {name}", name) for name in ("functions", "getattrs", "setattrs", "casts", "constants"))

_SUBJECTS: dict[str, Callable[[Any], Any]] = {
    "typing functions": attrgetter("key"), "typing globals": itemgetter(0), "lowering functions": itemgetter(1),
    "model": itemgetter(0), "typing attributes": attrgetter("key"),
}  # fmt: skip
"""The value that an item of each kind of list belongs to. They are functions of C: there are thousands of items."""

_OF_VALUE = "typing globals", "typing functions", "lowering functions"
"""Lists whose items are usually found by their value."""

_EMPTY = CellType()

_List = tuple[str, list[Any]]
_Item = tuple[str, Any]
"""An item of a registry, with the kind of list that it is in."""

_lists_read: dict[str, tuple[list[_List], Registrations]] = {}
"""The lists of each Numba when they were last read, and the registrations found in them."""


def _is_programs(value: Any, trust: Trust) -> bool:
    """Check for a function or class of the program: whoever made a registration for it, it is the program's, and
    counts where the program names it. Any code may use another value, an operator or `bool`, without naming it."""
    if type(value) is FunctionType:
        return not trust.has_file(value.__code__.co_filename)
    return isinstance(value, type) and not trust[value.__module__]


def _tried(item: Any) -> Sequence[Any]:
    """What of an item of a registry a compile tries."""
    if type(item) is not tuple:
        return (item,)
    return getattr(item[1], "templates", ()) if len(item) == 2 else item[:1]


def _subjects(kind: str, items: Sequence[Any]) -> list[Any]:
    """List the value that each item of a list belongs to; [] if they belong to none.

    Functions of Numba put attributes there for a program's class (`make_attribute_wrapper`)."""
    if kind in ("lowering getattrs", "lowering setattrs"):
        return [(*each[2], None)[0] for each in items]
    return [*map(_SUBJECTS[kind], items)] if kind in _SUBJECTS else []


def _is_given(item: _Item) -> bool:
    """Check for a registration that is neither derived by Numba, from a template of `@overload_attribute` at its first
    use, nor the code of an intrinsic, which belongs to that."""
    waiting = list(item[1][:1]) if type(item[1]) is tuple else []
    if item[0] == "lowering functions" and item[1][0] is item[1][1]:
        return False
    for each in waiting:  # grows while it is walked
        if hasattr(each, "_overload_func"):
            return False
        if type(each) is FunctionType and len(waiting) < 32:
            waiting += [cell.cell_contents for cell in each.__closure__ or () if cell != _EMPTY]
    return True


_REGISTRIES = frozenset((
    "registry", "typing_registry", "lowering_registry", "builtin_registry", "target_registry", "impl_registry",
))  # fmt: skip


@functools.lru_cache(maxsize=4)
def _holders(searched: Names, _number: int, _last: str) -> References:
    found = []
    for name, module in sys.modules.copy().items():
        if name.startswith(searched) and not (names := getattr(module, "__dict__", {})).keys().isdisjoint(_REGISTRIES):
            found += [(name, each) for each in names.keys() & _REGISTRIES if hasattr(names[each], "functions")]
    return tuple(sorted(found))


class Registries:
    """The registries of one Numba, and what programs have registered in them.

    Attributes:
        packages: Dotted names of packages whose versions are in the key, so that their objects count by name.
        home: The package with its `cuda`: `numba.cuda`.
        searched: Starts of the names of modules that are searched for registries.
        target: The object with the typing context and the target context.
        owned: Top-level name of its own modules, in which its types are defined.
        models: Managers of data models.
    """

    packages: frozenset[str]
    home: str
    searched: Names
    target: Reference
    owned: str
    models: References

    def holders(self) -> Iterable[Reference]:
        """List the registries in loaded modules."""
        return _holders(self.searched, len(sys.modules), next(reversed(sys.modules)))

    def registrations(self) -> Registrations:
        """Collect the registrations of programs so far; those for a value are described only when a kernel uses it."""
        lists, read = self._lists(), _lists_read.get(self.home)
        if read is None or lists != read[0]:
            copies = [(kind, [*items]) for kind, items in lists]
            read = _lists_read[self.home] = copies, self._gathered(copies)
        return read[1]

    def registries(self) -> list[Any]:
        """List all registries of typing and lowering, each once."""
        found = [loaded(*each) for each in self.holders()]
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

    def _gathered(self, lists: Sequence[_List]) -> Registrations:
        trust = Trust(self.packages)
        users = [item for item in self._of_users(lists, trust) if self._is_counted(*item, trust)]
        subjects: frozenset[int] = frozenset()  # no dict of lists: so many objects would trigger garbage collections
        described: dict[int, Sequence[Registration]] = {}  # always the same objects of a value

        def of_value(value: Any) -> Sequence[Registration]:
            nonlocal subjects
            subjects = subjects or frozenset([id(each) for kind, of in lists if of for each in _subjects(kind, of)])
            if id(value) not in subjects or not _is_programs(value, Trust(self.packages)):
                return ()
            if id(value) not in described:
                pairs = ((kind, zip(_subjects(kind, items), items, strict=False)) for kind, items in lists)
                found = [(kind, each) for kind, of in pairs for one, each in of if one is value]
                described[id(value)] = describe_for(filter(_is_given, found), self._is_late)
            return described[id(value)]

        return describe(users, self._is_late)._replace(of_value=of_value)

    def _is_late(self, kind: str, item: Any) -> bool:
        """Check whether Numba tries a registration after some that follow it in the registries, since it was made after
        a compile of this process: the first that fits decides."""
        group, _, name = kind.partition(" ")
        context = getattr(loaded(*self.target), "_typingctx" if group == "typing" else "_targetctx", None)
        if not name or kind not in _SUBJECTS or context is None:
            return False
        of, subject = _SUBJECTS[kind], _SUBJECTS[kind](item)
        wanted = {subject}
        listed = [each for registry in context._registries for each in getattr(registry, name) if of(each) in wanted]
        known = context._defns if group == "lowering" else getattr(context, f"_{name}")
        found = context._lookup_global(subject) if name == "globals" else known.get(subject)
        tried = getattr(found, "templates", getattr(found, "versions", found)) or ()
        parts = [each[1] if type(each) is tuple else each if isinstance(each, type) else type(each) for each in tried]
        ids = [id(part) for each in listed for part in _tried(each)]
        ranks = [ids.index(id(part)) for part in dict.fromkeys([*parts, *_tried(item)]) if id(part) in ids]
        own = [ids.index(id(part)) for part in _tried(item) if id(part) in ids]
        return any(rank in own and max(ranks[: at + 1]) > rank for at, rank in enumerate(ranks))

    def _is_counted(self, kind: str, item: Any, trust: Trust) -> bool:
        """Check for a registration that code may use without naming what it is for."""
        if kind == "model":  # of a program's type, it is found by the type
            return bool(item[0].__module__.startswith(f"{self.owned}."))
        # the type of a program's class is refused, or counts as a type
        subject = item[0] if kind == "typeof" else kind in _OF_VALUE and _SUBJECTS[kind](item)
        return not _is_programs(subject, trust)

    def _of_users(self, lists: Iterable[_List], trust: Trust) -> Iterator[_Item]:
        """Yield the items that are not Numba's own, by the classes in them, and by the files of their functions and of
        those that these close over. There are thousands: no call of a function for each."""
        own = set[str]()
        making = f"{self.owned}.", "numpy.", "abc.", "builtins.", "numbers.", "enum."  # homes of its own classes
        functions = FunctionType, staticmethod, classmethod
        for kind, items in lists:
            for item in items:
                parts = [*item[:2]] if type(item) is tuple else [item]
                if kind == "typing globals":
                    parts = [*getattr(item[1], "templates", ())]
                for part in parts:  # grows while it is walked
                    if type(part) is FunctionType:
                        file = part.__code__.co_filename
                        if file[:1] == "<":  # generated code is in no file
                            file = str(part.__globals__.get("__name__"))
                        if not file.startswith(trust.folders) and file not in own and not _is_trusted(part, trust):
                            yield kind, item
                            break
                        own.add(file)
                        for cell in part.__closure__ or () if len(parts) < 100 else ():
                            if cell != _EMPTY and type(cell.cell_contents) is FunctionType:
                                parts.append(cell.cell_contents)
                    elif isinstance(part, type) and not (type(item) is tuple and part is item[0]):  # what it is for
                        homes = part.__module__ + ".", part.__mro__[1].__module__ + "."
                        if not (homes[0].startswith(making) and homes[1].startswith(making)):
                            yield kind, item
                            break
                        for each in vars(part).values():
                            if type(each) in functions:
                                parts.append(getattr(each, "__func__", each))


# -- descriptions -----------------------------------------------------------------------------------------------------

_OF_TEMPLATE = ("prefer_literal", "unsafe_casting", "exact_match_required", "_strict", "_jit_options", "is_method")
"""Attributes of a typing template that hold options of a decorator."""

_Described = Iterator[tuple["str | None", Registration]]
"""The name of the attribute that a registration is for, None for others, and the registration."""


def _each(items: Iterable[_Item], is_late: Callable[[str, Any], bool]) -> _Described:
    """Describe registrations, each once: Numba has some of typing in several lists."""
    seen = set[Any]()
    for kind, item in items:
        late = {"is_late": True} if is_late(kind, item) else {}
        for attribute, each in _described(kind, item):
            each = each._replace(options=each.options | late)
            name = (each.what, attribute, id(each.subject), *map(id, each.code), repr(each.options))
            if not (kind.startswith("typing") and name in seen):
                seen.add(name)
                yield attribute, each


def describe(items: Iterable[_Item], is_late: Callable[[str, Any], bool]) -> Registrations:
    """Describe registrations for attributes, operators and types, grouped by the name that uses them."""
    made = Registrations(lambda value: (), {}, [])
    for attribute, each in _each(items, is_late):
        of_name = made.of_all if attribute is None else made.of_attribute.setdefault(attribute, [])
        of_name.append(each)
    return made


def describe_for(items: Iterable[_Item], is_late: Callable[[str, Any], bool]) -> Sequence[Registration]:
    """Describe the registrations for one value, in their order."""
    return tuple([each._replace(subject=None) for _attribute, each in _each(items, is_late)])


def _described(kind: str, item: Any) -> _Described:
    """Describe an item of a registry: subject, types, options, implementation."""
    if kind in ("typing functions", "typing attributes"):
        yield from _template(item, getattr(item, "key", None))
    elif kind == "typing globals":
        templates = getattr(item[1], "templates", None)
        for template in templates or ():
            yield from _template(template, item[0])
        if templates is None:
            yield None, Registration("typing", item[0], {"type": item[1]}, ())
    elif kind == "lowering functions":
        subject = item[1]
        of_method = str(subject[-1]) if isinstance(subject, tuple) else None  # of (type, name of a method)
        yield of_method, Registration(kind, subject, {"types": tuple(item[2] or ())}, item[:1])
    elif kind in ("lowering getattrs", "lowering setattrs"):
        yield item[1], Registration(kind, None, {"attribute": item[1], "types": item[2]}, item[:1])
    elif kind.startswith("lowering"):
        yield None, Registration(kind, None, {"types": tuple(item[1])}, item[:1])
    elif kind.startswith("rewrite"):
        yield None, Registration(kind, None, {}, (item,))
    else:  # a model or typeof
        yield None, Registration(kind, item[0], {}, item[1:])


def _template(template: Any, subject: Any) -> _Described:
    metadata = dict(getattr(template, "metadata", None) or {})
    if getattr(template, "_definition_func", None) is not None or metadata.get("target") == "cpu":
        return  # an intrinsic is reached by its name
    function, inline = getattr(template, "_overload_func", None), getattr(template, "_inline", None)
    if function is None:
        names = [name for name in dir(template) if name.startswith("resolve_")]
        if not names or getattr(template, "generic_resolve", NotImplemented) is not NotImplemented:
            yield None, Registration("typing", subject, {}, (template,))
        for name in names:
            yield name.removeprefix("resolve_"), Registration("typing", subject, {}, (template,))
        return
    options = {name: getattr(template, name) for name in _OF_TEMPLATE if hasattr(template, name)}
    options |= {"metadata": metadata, "inline": getattr(inline, "_inline", inline)}
    yield getattr(template, "_attr", None), Registration("overload", subject, options, (function,))


# -- flavours ----------------------------------------------------------------------------------------------------------


class Jitted(NamedTuple):
    """Everything that determines the code of a decorated function, except the function itself.

    Args:
        options: Options of the decorator, as a new dict, without those that do not affect the code.
        links: Paths and `LinkableCode` objects of the user.
        has_lines: Whether file and lines are compiled in.
        extensions: Objects of this process among the options, whose content only `depends=` can represent.
    """

    options: dict[str, Any]
    links: Iterable[Any]
    has_lines: bool
    extensions: Iterable[Any] = ()


class External(NamedTuple):
    """A function that was declared, not defined: name, signature, ABI, and files to link for it."""

    name: str
    signature: Any
    abi: str
    is_cooperative: bool
    links: Iterable[Any]


Table = tuple[tuple[str, str], ...]
"""Names, separated by spaces, for each module or function."""


class Declared(NamedTuple):
    """A kernel and its `cuda.jit` options, with a dispatcher's attribute names; used while no dispatcher is needed."""

    py_func: Any
    targetoptions: dict[str, Any]


def is_a(value: Any, *classes: Reference) -> bool:
    """Check whether a value's class is one of these or a subclass. `isinstance` is not used: Numba's classes have
    abstract bases, which query every class of Numba at the first check of each other class (200 us)."""
    bases = type(value).__mro__
    for module, name in classes:  # noqa: SIM110  (a generator costs as much as the rest of this function)
        if loaded(module, name) in bases:
            return True
    return False


def on_device(dispatcher: Any) -> Any:
    """The dispatcher that a kernel calls: for that of `njit`, the CUDA dispatcher that Numba made at its first use."""
    return getattr(dispatcher, "_CUDATypingContext__dispatcher", dispatcher)


def is_misread(dispatcher: Any) -> bool:
    """Check whether a device function's dispatcher, when it was made, read other parameters or defaults from
    `inspect.signature` than the function has now."""
    dispatcher = on_device(dispatcher)
    read = getattr(getattr(dispatcher, "_compiler", None), "pysig", None)
    if read is None:
        return False
    function, code = dispatcher.py_func, dispatcher.py_func.__code__
    own = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    defaults = [id(each.default) for each in read.parameters.values() if each.default is not each.empty]
    return (
        defaults != [*map(id, own)] or (*read.parameters,)[: code.co_argcount] != code.co_varnames[: code.co_argcount]
    )


Extension = Callable[[Any], Plain]
"""Returns the form of a type of an extension; raises `Refused` if it cannot be captured."""


def refuse(kind: Any) -> Plain:
    """Refuse a type of an extension, where no other `Extension` is given."""
    raise Refused(f"{kind} is a type of {type(kind).__module__}, not of Numba")


class Flavour(Registries):
    """The names and functions of one Numba.

    A program with other objects has a subclass. `jitted`, `intrinsic`, `external` and `type_form` may raise `Refused`
    for a value that can be cached only with `depends=`, and `AlwaysRefused` for one that cannot be cached at all;
    `code_environment` and `linked_headers` raise `Refused`.

    Attributes:
        kind: The kind of its kernels.
        room: Prefix of the names of its modules `compile` and `dispatcher`.
        stateful: Modules of these packages, and objects in them, whose results depend on more than their arguments.
        config: The module with its settings.
        dispatchers, types, intrinsics, signatures: Base classes of dispatchers, Numba types, intrinsics, signatures.
        own_cache: The class of caches that `cache=True` makes.
        code_modules: Modules whose functions decide about code; a program may have replaced some.
        named_modules: Modules of names of device code.
        without_code: Options that do not change code, repeat another option, or concern one compile only.
        libraries, distributions: Its compilers, as in `Request`.
        runtime: The library that it links into kernels which synchronise their grid.
        surface_parts, compiler_parts, linker_parts: The undocumented names that are used from each module (parts).
        parameters: Parameters that functions among them take.
        methods: Undocumented attributes of its class of dispatchers.
        device_readers: Functions and methods that return the current device while it compiles.
        array_codes, array_letters: The parameters of an array: type codes of those before shape and strides, and the
            letters of all (arguments).
        links_itself: Whether it compiles linked CUDA C++ itself: without the text's own folder, and with line tables if
            the kernel has them.
        is_complex_whole: Whether a complex number is one parameter.
        is_misreading: Whether its own launch takes a number of another type for one of the parameter's.
        array_slot: The class of slots of arrays, if it has its own.
        other_slot: Makes the slot of an argument that is neither array nor number, if `other_codes` takes its type.
        name, hint: Its distribution, and how to install it.
        oldest: The first version that has every part; later ones are supported if they have them.
        trust: Makes the record of modules for one fingerprint.
        default_options: Fills in the options of a function as `cuda.jit` does, without asking the Numba; from the given
            ones, the settings `debug` and `opt`, and the observed options without given ones (`known`). Raises
            `Refused` if only the Numba can tell.
        read_options: Completes the options of a dispatcher in place, and returns its link inputs.
        external: Returns the declaration of an external function; None for other objects.
        code_environment: Reads the settings that count. `has_lines`: whether any function has line tables.
    """

    kind: str
    room: str
    stateful: frozenset[str]
    config: str
    dispatchers: References
    own_cache: str
    types: References
    intrinsics: References
    signatures: References
    code_modules: Names
    named_modules: Names
    without_code: frozenset[str] = frozenset()
    libraries = ("nvvm", "libdevice", "nvJitLink", "nvrtc", "nvrtc-builtins")
    distributions: Names
    runtime: str
    surface_parts: Table
    compiler_parts: Table
    linker_parts: Table
    parameters: Table
    methods = ""
    device_readers: References
    array_codes: Names
    array_letters: str
    links_itself = is_complex_whole = is_misreading = False
    array_slot: Any = None
    other_slot: Any
    name: str
    hint: str
    oldest: tuple[int, ...] = ()
    trust: Callable[[frozenset[str]], Trust] = Trust
    default_options: Callable[..., dict[str, Any]]
    read_options: Callable[..., Iterable[Any]]
    external: Callable[[Any], External | None]
    code_environment: Callable[..., tuple[Component, ...]]

    def unsuitable(self, why: str) -> ToolchainMissingError:
        """Make the error for a part that is not there."""
        return ToolchainMissingError("cannot use a Numba kernel", f"{self.name} {why}", self.hint)

    def part(self, name: str) -> Any:
        """A module of this Numba alone."""
        return import_module(f".{self.room}_{name}", __package__)

    def other_codes(self, kind: Any) -> Names:
        """The type codes of an argument that is neither array nor number.

        Raises:
            KeyError: The launcher cannot pack it.
        """
        raise KeyError(kind)

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
        return on_device(value).py_func if self.is_dispatcher(value) else None

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Jitted:
        """The options of a dispatcher; for a device function also its given signatures, to which arguments are cast.

        Raises:
            AlwaysRefused: Its code depends on more than can be in a key.
        """
        options = {name: value for name, value in dispatcher.targetoptions.items() if name not in self.without_code}
        links, extensions = options.pop("link", None) or (), options.pop("extensions", None)
        links = (links,) if isinstance(links, (str, os.PathLike)) else links
        options["signatures"] = None
        if not (is_kernel or getattr(dispatcher, "_can_compile", True)):
            results = dispatcher.overloads.values()
            options["signatures"] = tuple([getattr(each, "signature", each) for each in results])
        if not is_kernel and is_misread(dispatcher):
            raise Refused("inspect.signature gave its decorator other parameters, or defaults, than it has")
        links = self.read_options(dispatcher, options, links, is_kernel=is_kernel)
        has_lines = bool(options.get("debug") or options.get("lineinfo"))
        return Jitted(options, links, has_lines, extensions or ())

    def observed_options(self) -> dict[str, Any]:
        """The options of a kernel that is given none, if only the Numba can tell them."""
        return {}

    def layout_of(self, memory: Any) -> str:
        """The layout of an array of another library."""
        return "C" if is_c_contiguous(memory) else "A"

    def replaced(self, trust: Trust) -> list[tuple[str, Any]]:
        """List what replaces a function or class in those of its `code_modules` that are loaded, with its full name: a
        Python function, or an object that cannot be read.

        Raises:
            RefusedByName: A name in one of its `named_modules` is that of another object of the compiler. It reads
                these names when it fills its registries: its code depends on the time of its first compile.
        """
        found, known_files = list[tuple[str, Any]](), dict[str, bool]()
        tops = {each.partition(".")[0] for each in trust.packages} | _OTHERS
        own_folders = (*trust.folders, "<frozen ", _OWN)
        for own in (*self.code_modules, *self.named_modules):
            module = sys.modules.get(own)
            known = _sound.get(own)
            if module is None or (
                known and known[0][0] is module.__dict__ and all([*a.values()] == b for a, b in known)
            ):
                continue
            spaces = [(own, vars(module)), *(
                (f"{own}.{each.__qualname__}", vars(each))
                for each in vars(module).values() if isinstance(each, type) and each.__module__ == own
            )]  # fmt: skip
            here = list[tuple[str, Any]]()
            is_named = own in self.named_modules
            for dotted, space in spaces:
                for name, value in space.items():  # over a thousand: no call of a function of this package for each
                    if is_named:
                        path = f"{dotted}.{name}"[len(own) + 1 :]
                        its_own = getattr(value, "__qualname__", path)
                        home = its_own != path and sys.modules.get(value.__module__)
                        if home and hasattr(home, path.partition(".")[0]) and _at(home, its_own) is value:
                            raise RefusedByName(f"it is {its_own} in this program", f"{own}.{path}")
                        continue
                    part = _PARTS.get(type(value))
                    function = value if part is None else getattr(value, part)
                    if type(function) is not FunctionType:
                        owner = value if isinstance(value, type) else type(value)
                        if not (
                            str(owner.__module__).partition(".")[0] in tops or type(value).__name__[:6] == "cython"
                            or name == "__loader__" or hasattr(owner, "acquire")  # of a hook of imports; of gevent
                        ):  # fmt: skip
                            here.append((f"{dotted}.{name}", value))
                        continue
                    path, home = function.__code__.co_filename, str(function.__globals__.get("__name__"))
                    file = home if path[:1] == "<" else path  # generated code is in no file
                    if file not in known_files:
                        is_own = path.startswith(own_folders) or home.startswith("namedtuple_")
                        known_files[file] = is_own or _is_trusted(function, trust)
                    if not known_files[file]:
                        here.append((f"{dotted}.{name}", function if type(value) in _READABLE else value))
            found += here
            if not here:
                _sound[own] = [(space, [*space.values()]) for _dotted, space in spaces]
        return found

    def setting(self, name: str) -> Any:
        """The value of a setting; None while its module is not loaded."""
        return loaded(self.config, name)

    def linked_runtime(self) -> LinkInput | None:
        """CUDA C++ of its runtime, which it links to kernels that need it; None if there is none."""
        return None

    def linked_headers(self, links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
        """Make the search for headers of CUDA C++ among these link inputs, and of the runtime that may be added.

        Args:
            links: Link inputs of the kernel and its callees.
            has_lines: Whether the kernel has line tables.

        Raises:
            Refused: They cannot be keyed.
        """
        texts, own = [each for each in links if each.kind == "cu"], self.linked_runtime()
        if not texts and own is None:
            return None
        has_lines = has_lines and self.links_itself
        if not check_texts(texts) and own is None and not has_lines:
            return None
        from ...headers.roots import HeaderSearch

        if self.links_itself:
            texts = [*dict.fromkeys(each._replace(folder="") for each in texts)]
        given = filter(None, str(self.setting("CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":"))
        extra = [os.path.join(working_directory(), each) for each in given]  # as NVRTC does: `..` stays
        texts += filter(None, (own,))
        folders = filter(None, (*extra, *(each.folder for each in texts)))  # with repetitions, as they are searched
        toolkit = f"{self.room}_include_dirs", partial(toolkit_dirs, self)
        return HeaderSearch(
            tuple(each.data for each in texts), tuple(folders), toolkit, has_lines=has_lines,
            is_working=not all(each.folder for each in texts), is_edited=not self.links_itself,
        )  # fmt: skip

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

    def form_of_type(self, kind: Any, extension: Extension = refuse) -> Plain:
        """The form of a type, with everything that its text omits: names of fields, members of an enum.

        Args:
            kind: A type of it, or of an extension of it.
            extension: Makes the form of a type of an extension.

        Raises:
            Refused: It is a type of an extension.
            AlwaysRefused: It refers to an object of this process.
        """
        if not self.is_numba_type(kind):
            return extension(kind)
        types, formed = sys.modules[f"{self.home}.types"], partial(self.form_of_type, extension=extension)
        # the text of numba-cuda-mlir's types does not show fields of structs and unions, and attributes of parameters
        held = [each for name, each in vars(kind).items() if type(each) in (list, dict) or name == "union_storage_bits"]
        fields = map(self._value_form, held)
        bases = type(kind).__mro__  # not isinstance: see is_a
        if types.BaseTuple in bases:
            members = [*map(formed, kind)]
            if types.BaseNamedTuple in bases:
                return "named tuple", self._value_form(kind.instance_class), members
            return "tuple", members, *fields
        if types.EnumMember in bases:
            return "enum member", type(kind).__name__, self._value_form(kind.instance_class), formed(kind.dtype)
        if types.Array in bases:
            flags = (kind.ndim, kind.layout, bool(kind.mutable), bool(kind.aligned))
            more = () if type(kind) is types.Array else (str(kind),)  # the extents of a nested array
            return "array", type(kind).__qualname__, *more, formed(kind.dtype), flags, *fields
        text = repr(kind)
        if "<" in text:
            raise AlwaysRefused(f"the type {text} refers to an object of this process")
        inner = [formed(each) for each in vars(kind).values() if is_a(each, *self.types)]
        return f"{type(kind).__module__}.{type(kind).__qualname__}", text, str(kind), *inner, *fields

    def _value_form(self, value: Any) -> Plain:
        return value_form(value, Trust(self.packages), self.type_form)


_OF_HOME = (
    ("types", "Array Integer Float Complex Boolean BaseTuple NoneType"),
    ("typing.typeof", "typeof"),
    ("typing", "signature"),
    ("cudadrv.devicearray", "DeviceNDArray"),
    ("np.numpy_support", "as_dtype from_dtype"),
    ("core.compiler_lock", "global_compiler_lock"),
    ("cudadrv.devices", "get_context"),
    ("core.sigutils", "normalize_signature"),
)
"""Names used from modules of `Flavour.home`, which both Numbas have."""


def gathered(flavour: Flavour, table: Table) -> SimpleNamespace:
    found = SimpleNamespace()
    try:
        for home, names in table:
            module = sys.modules.get(home) or import_module(home)
            vars(found).update({name: getattr(module, name) for name in names.split()})
    except (ImportError, AttributeError) as error:
        use = ": use numpy<2.5" if "numpy" in str(error) else ""
        raise flavour.unsuitable(f"cannot be imported: {error}{use}") from error
    return found


@cache
def surface(flavour: Flavour) -> SimpleNamespace:
    """Import and probe the names that a Numba's `cuda` loads, with the modules `types` and `config`.

    Raises:
        ToolchainMissingError: It is not installed, or of an unsupported version.
    """
    home = flavour.home
    found = gathered(flavour, (*flavour.surface_parts, *((f"{home}.{name}", names) for name, names in _OF_HOME)))
    found.types, found.config = sys.modules[f"{home}.types"], import_module(flavour.config)
    found.Dispatcher, found.OwnCache = getattr(found, flavour.dispatchers[0][1]), getattr(found, flavour.own_cache)
    lacking = [name for name in flavour.methods.split() if not hasattr(found.Dispatcher, name)]
    if lacking:
        raise flavour.unsuitable(f"is of another version: its dispatcher has no {lacking[0]}")
    check_version(flavour)
    return found


def check_version(flavour: Flavour) -> None:
    """Check that a Numba is not too old; its other modules may be half imported.

    Raises:
        ToolchainMissingError: It is.
    """
    package = sys.modules.get(flavour.name.replace("-", "_"))
    version = str(getattr(package, "__version__", None)).split(".")[:3]
    if tuple(int(each) for each in version if each.isdecimal()) < flavour.oldest:
        raise flavour.unsuitable(f"is of version {'.'.join(version)}")


def home_folder(flavour: Flavour) -> str:
    """The folder of `Flavour.home`."""
    return os.path.dirname(str(import_module(flavour.home).__file__))


def toolkit_dirs(flavour: Flavour) -> Names:
    """List the include folders that are searched first for CUDA C++ link inputs of a kernel."""
    from cuda.bindings import nvrtc
    from cuda.pathfinder import locate_nvidia_header_directory

    parts = gathered(flavour, flavour.linker_parts)
    _status, major, _minor = nvrtc.nvrtcVersion()
    cccl = locate_nvidia_header_directory("cccl")
    folders = parts.get_cuda_paths()["include_dir"].info, *([cccl.abs_path] if cccl else ()), parts.get_include()
    return os.path.join(home_folder(flavour), "include", str(major)), *[os.path.realpath(str(each)) for each in folders]
