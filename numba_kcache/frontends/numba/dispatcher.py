"""The Numbas' own dispatchers, and patching them for unedited programs: code that both need.

Promise     Patched kernels remain Numba's dispatchers with unchanged behaviour; only their compiled code comes from
            the cache. Kernels that were decorated before `install()` use it from their next compilation on.
            `uninstall()` undoes all.
Not here    Making a dispatcher, and launches by it (llvm_dispatcher, mlir_dispatcher).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from ...errors import OptionError
from ...launch import LaunchShape, bindings
from .arguments import Signature
from .flavour import Flavour, surface

NAMES = frozenset((
    "signatures", "nopython_signatures", "inspect_llvm", "inspect_asm", "inspect_lto_ptx", "inspect_sass",
    "get_regs_per_thread", "get_const_mem_size", "get_shared_mem_per_block", "get_max_threads_per_block",
    "get_local_mem_per_thread", "get_metadata", "stats", "overloads", "recompile", "py_func", "targetoptions",
    "extensions", "specialized", "specialize",
))  # fmt: skip
"""Attributes of a Numba's dispatcher that a kernel has with the same meaning."""


def attribute_of(resolutions: Any, name: str, make: Callable[[Any], Any], specialize: Callable[..., Any]) -> Any:
    """Read an attribute of the dispatcher of a kernel, which is first given every resolved signature.

    Args:
        resolutions: Resolutions of the kernel.
        name: One of `NAMES`, or of those that one Numba alone has.
        make: Returns the dispatcher.
        specialize: Makes a dispatcher for the types of given arguments.
    """
    if name == "specialize":
        return functools.partial(specialize, resolutions)
    dispatcher = make(resolutions)
    if dispatcher._can_compile:
        for _target, _ptx_target, types in resolutions.known():
            if tuple(types) not in dispatcher.overloads:
                dispatcher.compile(tuple(types))
    return functools.partial(resolutions.recompile, dispatcher) if name == "recompile" else getattr(dispatcher, name)


def specialized(flavour: Flavour, dispatcher: Any, key: Any, prepare: Callable[[Any], None]) -> Any:
    """Make what `dispatcher.specialize` makes for a compute capability and types; `prepare` compiles it."""
    found = dispatcher.specializations.get(key)
    if found is None:
        found = surface(flavour).Dispatcher(dispatcher.py_func, targetoptions=dispatcher.targetoptions)
        prepare(found)
        dispatcher.specializations[key] = bound(found)
    return found


def bound(dispatcher: Any) -> Any:
    """Restrict a dispatcher to the types that it was compiled for."""
    dispatcher.disable_compile()
    dispatcher._specialized = True
    return dispatcher


def read_signature_list(flavour: Flavour, given: Any) -> tuple[Signature, ...]:
    """Read the argument types of a signature as `cuda.jit` takes it, or of a list of these.

    Raises:
        OptionError: One is not a signature, or returns something.
    """
    parts, found = surface(flavour), []
    for each in given if isinstance(given, list) else [given]:
        try:
            arguments, returned = parts.normalize_signature(each)
        except Exception as error:  # Numba evaluates the text, which may raise anything; the error is reported
            raise OptionError(
                f"cannot read signature {each!r}", str(error), 'write "void(float32[::1], int64)" or a tuple of types'
            ) from error
        if returned not in (None, parts.types.void):
            raise OptionError(f"cannot use signature {each!r}", f"it returns {returned}", "a kernel returns void")
        found.append(Signature(arguments))
    return tuple(found)


def launch_watched(
    configured: Any, shape: LaunchShape, stream: Any, arguments: Sequence[Any], function: FunctionType
) -> None:
    """Launch by a configured dispatcher, and wait until the kernel has ended; an error shows the arguments."""
    from ...launch.failures import watched

    def queue() -> bool:
        configured(*arguments)
        return True

    watched(
        bindings(), stream, queue, kernel=function.__name__, shape=shape,
        parameters=function.__code__.co_varnames[: len(arguments)], arguments=arguments,
    )  # fmt: skip


class Patch:
    """The methods of one Numba's dispatcher class while they are replaced.

    Args:
        flavour: The Numba.

    Attributes:
        attached: Dispatchers that use this cache, with their previous cache; None for the one that `cache=True` would
            make.
    """

    def __init__(self, flavour: Flavour) -> None:
        self._flavour, self._replaced = flavour, dict[str, Any]()
        self.attached: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()

    def replace(self, kind: Any, methods: Mapping[str, Any]) -> None:
        """Replace these methods of a class."""
        for name, method in methods.items():
            self._replaced[name] = vars(kind)[name]
            method.__doc__ = self._replaced[name].__doc__
            setattr(kind, name, method)

    def restore(self) -> None:
        """Undo `replace`, and give each dispatcher its previous cache back."""
        if not self._replaced:
            return
        parts = surface(self._flavour)
        for name, method in self._replaced.items():
            setattr(parts.Dispatcher, name, method)
        self._replaced.clear()
        for kernel, before in list(self.attached.items()):
            if before is not None:
                kernel._cache = before
                continue
            try:
                kernel.enable_caching()
            except RuntimeError:  # no folder for Numba's cache: the decorator would have raised this without `install`
                kernel._cache = parts.NullCache()
        self.attached.clear()


class CacheOfDispatcher:
    """The cache of one of a Numba's dispatchers, with the interface of its caches.

    Args:
        resolutions: Resolutions of the dispatcher's function and options.
    """

    def __init__(self, resolutions: Any) -> None:
        self.resolutions = resolutions

    @property
    def cache_path(self) -> str | None:
        """The directory of the cache."""
        found: str | None = self.resolutions.session().local.directory
        return found

    def save_overload(self, _sig: Any, _data: Any) -> None:
        """Do nothing: a kernel that Numba compiled itself is one that must not be stored."""

    def enable(self) -> None:
        """Do nothing: this cache cannot be switched per dispatcher."""

    disable = enable

    def flush(self) -> None:
        """Read the function again at the next launch; entries stay, since their keys cover their content."""
        self.resolutions.flush()
