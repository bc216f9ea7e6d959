"""Recognise Numba's objects among the values a function reads, without importing Numba.

Promise     A module of Numba that is not loaded stays so: whoever holds a dispatcher has loaded it. Nothing
            here builds a target context or refreshes a registry.
Not here    The compiler's private names (toolchain.numba_internals). The names here are only read, and an
            object that does not look as expected is not recognised, hence not cached.
"""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any, NamedTuple


class ExternalFunction(NamedTuple):
    """What `numba.cuda.declare_device` declared: name, signature, ABI, and what is linked for it."""

    name: str
    signature: str
    abi: str
    is_cooperative: bool
    links: tuple[Any, ...]


class Declared(NamedTuple):
    """A kernel and its options of `cuda.jit`, under the names of a dispatcher, while none has to be made of them."""

    py_func: Any
    targetoptions: dict[str, Any]


def loaded(module: str, name: str) -> Any:
    """An attribute of a module if that is loaded; None otherwise."""
    return getattr(sys.modules.get(module), name, None)


def _is_a(value: Any, *places: tuple[str, str]) -> bool:
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
    return _is_a(value, ("numba.cuda.dispatcher", "CUDADispatcher"), ("numba.core.dispatcher", "Dispatcher"))


def fixed_signatures(dispatcher: Any) -> tuple[str, ...] | None:
    """The signatures given to the decorator, to which callers' arguments are cast; None where there are none."""
    if getattr(dispatcher, "_can_compile", True):
        return None
    results = dispatcher.overloads.values()
    return tuple(str(getattr(each, "signature", each)) for each in results)


def intrinsic_function(value: Any) -> FunctionType | None:
    """The function that defines an `@intrinsic`; None for anything else."""
    if not _is_a(value, ("numba.cuda.extending", "_Intrinsic"), ("numba.core.extending", "_Intrinsic")):
        return None
    function = getattr(value, "_defn", None)
    return function if isinstance(function, FunctionType) else None


def is_numba_type(value: Any) -> bool:
    """Whether it is an instance of one of Numba's own types (an extension's types are code of their own)."""
    return _is_a(value, ("numba.core.types", "Type"), ("numba.cuda.types", "Type")) and (
        type(value).__module__.partition(".")[0] == "numba"
    )


def external_function(value: Any) -> ExternalFunction | None:
    """The declaration behind a descriptor of `declare_device`; None for anything else.

    Raises:
        LookupError: It is a descriptor, but its declaration cannot be read.
    """
    if not _is_a(value, ("numba.cuda.compiler", "ExternFunction")):
        return None
    context: Any = getattr(loaded("numba.cuda.descriptor", "cuda_target"), "_targetctx", None)
    try:
        ((_signature, implementation),) = context._defns.get(value).versions
        (library,) = implementation.libs
        (description,) = implementation.__defaults__
        links, cooperative = tuple(library._linking_files), bool(library.use_cooperative)
        abi = type(description.call_conv).__name__
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise LookupError(str(error)) from None
    return ExternalFunction(value.name, str(value.sig), abi, cooperative, links)
