"""Numba's `Dialect`: dispatchers, intrinsics, declarations, types, and registered implementations.

Promise     A module of Numba that is not loaded stays so: a program that holds an object of Numba has loaded it.
            Registrations of anybody but Numba itself are found in all of its registries, as they are now. An object
            that does not look as expected is not recognised, hence not cached.
Method      This module is the `Dialect`: `fingerprint` is handed it as it is, and asks its functions.
Not here    What a registration is made of (registrations).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from types import CellType, FunctionType
from typing import Any

from ...keys import Plain
from ...model import NamedTuple
from ...model.request import LinkInput
from ..python.dialect import External, Jitted, Registration, Registrations
from ..python.value import STANDARD, Refused, Trust, Unvouchable, value_form

packages = frozenset({"numba", "numba.cuda", "numba_cuda", "numpy", "llvmlite"})

stateful = frozenset(
    ("numba.cuda.api", "numba.cuda.cudadrv.devices", "numba.cuda.cudadrv.driver", "numba.cuda.cudadrv.runtime",
     "numba.cuda.device_init", "numpy.random", "numpy.fromfile", "numpy.genfromtxt", "numpy.load", "numpy.loadtxt",
     "numpy.memmap")
)  # fmt: skip
"""The current device, chance, and files."""

_NRT = "numba.cuda.memory_management.nrt"


class Declared(NamedTuple):
    """A kernel and its options of `cuda.jit`, under the names of a dispatcher, while none has to be made of them."""

    py_func: Any
    targetoptions: dict[str, Any]


def loaded(module: str, name: str) -> Any:
    """An attribute of a module if that is loaded; None otherwise."""
    return getattr(sys.modules.get(module), name, None)


def is_a(value: Any, *places: tuple[str, str]) -> bool:
    """Whether its class is one of these or inherits from one. Not `isinstance`: Numba's have abstract bases, which
    ask every class of Numba at the first meeting of any other (200 us)."""
    bases = type(value).__mro__
    for module, name in places:  # noqa: SIM110  (a generator more costs as much as the rest)
        if loaded(module, name) in bases:
            return True
    return False


def is_dispatcher(value: Any) -> bool:
    """Whether it is a function under `cuda.jit`, or under `njit`, which device code may call as well."""
    kind = type(value)
    if kind is FunctionType or kind is Declared:
        return kind is Declared
    return is_a(value, ("numba.cuda.dispatcher", "CUDADispatcher"), ("numba.core.dispatcher", "Dispatcher"))


def is_numba_type(value: Any) -> bool:
    """Whether it is an instance of one of Numba's own types (an extension's types are code of their own)."""
    return is_a(value, ("numba.core.types", "Type"), ("numba.cuda.types", "Type")) and (
        type(value).__module__.partition(".")[0] == "numba"
    )


def python_function(value: Any) -> Any:
    """The function under `cuda.jit` or `njit`; None for anything else."""
    return value.py_func if is_dispatcher(value) else None


def jitted(dispatcher: Any, *, is_kernel: bool) -> Jitted:
    """The options of a dispatcher, with the signatures given to a device function, to which arguments are cast."""
    options = dict(dispatcher.targetoptions)
    if not is_kernel:  # its compiler never sees it; its default depends on the presence of nvJitLink
        options.pop("lto", None)
    links, extensions = options.pop("link", None) or (), options.pop("extensions", None)
    options["signatures"] = None if is_kernel else _fixed_signatures(dispatcher)
    given = getattr(dispatcher, "locals", None)  # by names, which count for nothing else
    options["locals"] = [given, dispatcher.py_func.__code__.co_varnames] if given else None
    links = (links,) if isinstance(links, (str, os.PathLike)) else links
    opaque = {"extensions": extensions} if extensions else {}
    has_lines = bool(options.get("debug") or options.get("lineinfo"))
    return Jitted(options, opaque, _users_links(links), has_lines)


def _fixed_signatures(dispatcher: Any) -> tuple[str, ...] | None:
    """The signatures given to the decorator; None where there are none."""
    if getattr(dispatcher, "_can_compile", True):
        return None
    results = dispatcher.overloads.values()
    return tuple(str(getattr(each, "signature", each)) for each in results)


def _users_links(links: Iterable[Any]) -> list[Any]:
    """Without those that Numba appends to the user's list while it compiles; its version pins them."""
    return [each for each in links if not _is_own_link(each)]


def _is_own_link(link: Any) -> bool:
    if not isinstance(link, str):
        return link is not None and link is loaded(_NRT, "NRT_LIBRARY")
    folder = next(iter(loaded("numba.cuda", "__path__") or ()), None)
    return folder is not None and link == os.path.join(folder, "reshape_funcs.cu")


def runtime() -> LinkInput | None:
    """CUDA C++ of Numba's runtime, which it links to kernels that need it; None where it is not enabled."""
    if not loaded("numba.cuda.core.config", "CUDA_ENABLE_NRT"):
        return None
    from ...model.linkable import linkable_input

    found, file = linkable_input(loaded(_NRT, "NRT_LIBRARY")), loaded(_NRT, "__file__")
    return found and found._replace(folder=os.path.dirname(str(file)))


def intrinsic(value: Any) -> Registration | None:
    """The definition of an `@intrinsic`; None for anything else."""
    if not is_a(value, ("numba.cuda.extending", "_Intrinsic"), ("numba.core.extending", "_Intrinsic")):
        return None
    function, options = getattr(value, "_defn", None), getattr(value, "_ctor_kwargs", None)
    if not isinstance(function, FunctionType) or not isinstance(options, dict):
        return None
    options = {"prefer_literal": getattr(value, "_prefer_literal", None), **options}
    return Registration("intrinsic", None, options, (function,))


def external(value: Any) -> External | None:
    """The declaration behind a descriptor of `declare_device`; None for anything else.

    Raises:
        Unvouchable: It is a descriptor, but its declaration cannot be read.
    """
    if not is_a(value, ("numba.cuda.compiler", "ExternFunction")):
        return None
    context: Any = getattr(loaded("numba.cuda.descriptor", "cuda_target"), "_targetctx", None)
    try:
        ((_signature, implementation),) = context._defns.get(value).versions
        (library,) = implementation.libs
        (description,) = implementation.__defaults__
        links, cooperative = _users_links(library._linking_files), bool(library.use_cooperative)
        abi = type(description.call_conv).__name__
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Unvouchable("its declaration cannot be read") from None
    return External(value.name, str(value.sig), abi, cooperative, links)


_SIGNATURES = ("numba.cuda.typing.templates", "Signature"), ("numba.core.typing.templates", "Signature")


def type_form(value: Any) -> Plain | None:
    """A type of Numba by its text, and a signature by its types; None for anything else.

    Raises:
        Unvouchable: It stands for an object of this process.
    """
    if is_a(value, *_SIGNATURES):
        types = (value.return_type, *value.args, *([] if value.recvr is None else [value.recvr]))
        forms = [type_form(each) for each in types]
        if None in forms:
            raise Refused(f"the signature {value} has a type that is not Numba's")
        return "signature", forms, str(value.pysig)
    return form_of_type(value) if is_numba_type(value) else None


def form_of_type(kind: Any, is_vouched: bool = False) -> Plain:
    """A type with all that its own text leaves out: names of fields, members of an enum.

    Args:
        kind: Of Numba, or of an extension of it.
        is_vouched: Whether the user says what the code of an extension's types depends on.

    Raises:
        Refused: It is an extension's.
        Unvouchable: It stands for an object of this process.
    """
    types = sys.modules["numba.cuda.types"]
    if not is_vouched and not is_numba_type(kind):
        where = type(kind).__module__
        raise Refused(f"{kind} is a type of {where}, not of Numba (depends= takes what stands for its code)")
    bases = type(kind).__mro__  # not isinstance: see is_a
    if types.BaseTuple in bases:
        members = [form_of_type(each, is_vouched) for each in kind]
        if types.BaseNamedTuple in bases:
            return "named tuple", _class_form(kind.instance_class), members
        return "tuple", members
    if types.EnumMember in bases:
        enumeration = _class_form(kind.instance_class)
        return "enum member", type(kind).__name__, enumeration, form_of_type(kind.dtype, is_vouched)
    if types.Array in bases:
        flags = (kind.ndim, kind.layout, bool(kind.mutable), bool(kind.aligned))
        return "array", type(kind).__qualname__, form_of_type(kind.dtype, is_vouched), flags
    text = repr(kind)
    if "<" in text or " at 0x" in text:
        raise Unvouchable(f"the type {text} stands for an object of this process")
    return f"{type(kind).__module__}.{type(kind).__qualname__}", text, str(kind)


def _class_form(kind: type) -> Plain:
    return value_form(kind, Trust(packages), type_form)


_TYPING = tuple((f"typing {name}", name) for name in ("functions", "attributes", "globals"))
_LOWERING = tuple((f"lowering {name}", name) for name in ("functions", "getattrs", "setattrs", "casts", "constants"))

_HOLDERS = (
    ("numba.core.typing.templates", "builtin_registry"), ("numba.core.imputils", "builtin_registry"),
    ("numba.cuda.typing.templates", "builtin_registry"), ("numba.cuda.core.imputils", "builtin_registry"),
    *((f"numba.cuda.{name}", "registry") for name in (
        "cudadecl", "cudaimpl", "cudamath", "libdevicedecl", "libdeviceimpl", "mathimpl", "printimpl",
        "core.optional", "misc.cffiimpl", "typing.arraydecl", "typing.builtins", "typing.cffi_utils",
        "typing.cmathdecl", "typing.collections", "typing.enumdecl", "typing.npdatetime", "typing.npydecl",
        "np.arraymath", "np.arrayobj", "np.npdatetime", "np.npyimpl", "np.polynomial.polynomial_core",
        "cpython.builtins", "cpython.charseq", "cpython.cmathimpl", "cpython.enumimpl", "cpython.iterators",
        "cpython.listobj", "cpython.mathimpl", "cpython.numbers", "cpython.rangeobj", "cpython.slicing",
        "cpython.tupleobj", "cpython.unicode")),
    *((f"numba.cuda.{name}", f"{kind}_registry") for name in ("fp16", "bf16", "fp8") for kind in ("typing", "target")),
    ("numba.cuda.vector_types", "typing_registry"), ("numba.cuda.vector_types", "impl_registry"),
)  # fmt: skip
"""Modules in which Numba has its registries; those that a program installs are in the contexts."""

_MODELS = ("numba.cuda.datamodel", "default_manager"), ("numba.cuda.models", "cuda_data_manager")

_MAKING = "numba.", "numpy", "abc", "builtins", "numbers", "enum"
"""Starts of the modules that classes of Numba's own registrations say they are of."""

_PLACE_OF_VALUE = {"typing globals": 0, "typing functions": 0, "lowering functions": 1, "model": 0}
"""Place of the value that an item of a list is for, which mostly leads to the item."""

_UNNAMED = ("operator", "_operator")
"""Modules whose functions stand for operations that code uses without their names."""

_EMPTY, _DEEPEST = CellType(), 32

_List = tuple[str, list[Any]]
_Item = tuple[str, Any]
"""Content of a registry, with the kind of list that each item is in."""

_read: tuple[list[_List], Registrations] = ([], Registrations(lambda _value: (), {}, []))


def registrations() -> Registrations:
    """Gather what programs have registered up to now: what stands under a value, when a kernel uses that."""
    global _read
    lists = _lists()
    if lists != _read[0]:
        copies = [(kind, [*items]) for kind, items in lists]
        _read = copies, _gathered(copies)
    return _read[1]


def _lists() -> list[_List]:
    modules = sys.modules
    registries = [getattr(modules[module], name, None) for module, name in _HOLDERS if module in modules]
    target = getattr(modules.get("numba.cuda.descriptor"), "cuda_target", None)
    for context in (getattr(target, "_typingctx", None), getattr(target, "_targetctx", None)):
        registries += getattr(context, "_registries", ())
    found: list[_List] = []
    for registry in {id(each): each for each in registries if each is not None}.values():
        names = _TYPING if hasattr(registry, "globals") else _LOWERING
        found += [(kind, getattr(registry, name)) for kind, name in names]
    for module, name in _MODELS:
        models = getattr(getattr(modules.get(module), name, None), "_handlers", None) or {}
        found.append(("model", [*models.items()]))
    typeof = getattr(modules.get("numba.cuda.typing.typeof"), "typeof_impl", None)
    found.append(("typeof", [*getattr(typeof, "registry", {}).items()]))
    rewrites = getattr(modules.get("numba.cuda.core.rewrites.registry"), "rewrite_registry", None)
    found += [(f"rewrite {when}", items) for when, items in sorted(getattr(rewrites, "rewrites", {}).items())]
    return found


def _gathered(lists: Iterable[_List]) -> Registrations:
    others: list[_Item] = []  # what code uses without naming what it is for
    for kind, items in lists:
        chosen: Iterable[Any] = items
        if kind == "typing globals":  # templates for operators are among the functions as well
            chosen = ()
        elif kind == "model":
            chosen = [each for each in items if each[0].__module__[:6] == "numba." != each[1].__module__[:6]]
        elif kind == "typeof":  # those for a user's classes lead to types that are refused anyway
            chosen = [each for each in items if each[0].__module__.startswith(_MAKING)]
        elif kind in _PLACE_OF_VALUE:
            keys = [each.key if kind == "typing functions" else each[1] for each in items]
            chosen = [
                each
                for key, each in zip(keys, items, strict=True)
                if type(key) is str or type(key) is tuple or getattr(key, "__module__", None) in _UNNAMED
            ]
        others += [(kind, each) for each in chosen]
    users, found = _of_users(others), Registrations(lambda _value: (), {}, [])
    if users:
        from .registrations import describe

        found = describe(users)
    by_value: dict[int, list[_Item]] = {}
    users_of: dict[int, list[_Item]] = {}

    def of_value(value: Any) -> Sequence[Registration]:
        for kind, items in lists if not by_value else ():
            for item in items if kind in _PLACE_OF_VALUE else ():
                subject = item.key if kind == "typing functions" else item[_PLACE_OF_VALUE[kind]]
                by_value.setdefault(id(subject), []).append((kind, item))
        if id(value) not in by_value:
            return ()
        if id(value) not in users_of:
            users_of[id(value)] = _of_users(by_value[id(value)])
        if not users_of[id(value)]:
            return ()
        from .registrations import describe_for

        return describe_for(users_of[id(value)])

    return found._replace(of_value=of_value)


def _of_users(items: Iterable[_Item]) -> list[_Item]:
    """List the items that are not Numba's own, as their functions show.

    Functions are known by their files, or by their module: those that Numba generates have no file. A closure of
    Numba's may hold a user's function. The functions of a class come from one file, but for a class that one of
    Numba's functions made: its own are a user's, or its base is.
    """
    homes = [folder for name in ("numba", "numba.cuda", "numpy") for folder in loaded(name, "__path__") or ()]
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
                is_users = is_users or not (part.__module__.startswith(_MAKING) and base.__module__.startswith(_MAKING))
        for function in waiting:  # grows while it is walked
            if is_users or len(waiting) > _DEEPEST:
                break
            if type(function) is FunctionType:
                file = function.__code__.co_filename
                if file.startswith(folders):
                    waiting += [cell.cell_contents for cell in function.__closure__ or () if cell != _EMPTY]
                else:
                    made_by = str(function.__globals__.get("__name__"))
                    is_users = not (file.startswith("<") and made_by.startswith("numba."))
        if is_users:
            found.append((kind, item))
    return found
