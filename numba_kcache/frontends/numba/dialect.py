"""Numba's `Dialect`: dispatchers, intrinsics, declarations, types, and registered implementations.

Promise     A module of Numba that is not loaded stays so: a program that holds an object of Numba has loaded it.
            `@overload`, `@overload_method` and `@overload_attribute` of anybody but Numba itself are found by what they
            implement. Registries are read as they are. An object that does not look as expected is not recognised,
            hence not cached.
Not here    Lowering written by hand (`lower_builtin` and the like) for types of Numba's own: `depends=` is for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

from ...keys import Plain
from ...model.request import LinkInput
from ..python.dialect import External, Jitted, Registrations
from ..python.value import Unvouchable

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
    options["locals"] = getattr(dispatcher, "locals", None) or None
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


def intrinsic(value: Any) -> Any:
    """The function that defines an `@intrinsic`; None for anything else."""
    if not is_a(value, ("numba.cuda.extending", "_Intrinsic"), ("numba.core.extending", "_Intrinsic")):
        return None
    function = getattr(value, "_defn", None)
    return function if isinstance(function, FunctionType) else None


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


def type_form(value: Any) -> Plain | None:
    """A type of Numba by its text; None for anything else.

    Raises:
        Unvouchable: It stands for an object of this process.
    """
    if not is_numba_type(value):
        return None
    text = repr(value)
    if " at 0x" in text or "<" in text:
        raise Unvouchable(f"the Numba type {text} stands for an object of this process")
    return "numba type", f"{type(value).__module__}.{type(value).__qualname__}", text, str(value)


_HOLDERS = ("numba.cuda.typing.templates", "numba.core.typing.templates")
_read: tuple[list[Any], Registrations] = ([], Registrations({}, {}, []))


def registrations() -> Registrations:
    """Gather the implementations registered up to now. Registries only grow: their lengths show if a reading holds."""
    global _read
    registries = [found for holder in _HOLDERS if (found := loaded(holder, "builtin_registry"))]
    state = [(registry, len(registry.globals), len(registry.attributes)) for registry in registries]
    if _read[0] != state:
        _read = state, _gathered(registries)
    return _read[1]


def _gathered(registries: Iterable[Any]) -> Registrations:
    found = Registrations({}, {}, [])
    for registry in registries:
        of_values = [(value, each) for value, kind in registry.globals for each in getattr(kind, "templates", ())]
        for value, function in _of_users(of_values):
            found.of_value.setdefault(id(value), []).append(function)
            if getattr(value, "__module__", None) in ("_operator", "operator"):
                found.of_operators.append(function)
        of_names = [(getattr(each, "_attr", None), each) for each in registry.attributes]
        for name, function in _of_users(of_names):
            if isinstance(name, str):
                found.of_attribute.setdefault(name, []).append(function)
    return found


def _of_users(templates: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
    """Yield what is implemented and the function under `@overload...`, without those of packages that a version pins.

    Their functions are known by module, or by file: those that Numba generates have no module, and come with its first
    compilation, which must change no key.
    """
    homes = [*(loaded("numba", "__path__") or ()), *(loaded("numba.cuda", "__path__") or ())]
    folders = tuple(f"{folder}{os.sep}" for folder in homes)
    for implemented, template in templates:
        function = getattr(template, "__dict__", {}).get("_overload_func")  # as a static method: cheaper than getattr
        function = getattr(function, "__func__", function)
        if function is None or str(getattr(function, "__module__", "")).partition(".")[0] in packages:
            continue
        if not getattr(getattr(function, "__code__", None), "co_filename", "").startswith(folders):
            yield implemented, function
