"""The Numbas' own dispatchers: code that both need.

Not here    Making a dispatcher, and launches by it (llvm_dispatcher, mlir_dispatcher).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from ...errors import OptionError
from ...launch import LaunchShape, bindings
from .arguments import Signature
from .flavour import Flavour
from .parts import surface

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
    from ...launch.debugging import watched

    def queue() -> bool:
        configured(*arguments)
        return True

    watched(
        bindings(), stream, queue, kernel=function.__name__, shape=shape,
        parameters=function.__code__.co_varnames[: len(arguments)], arguments=arguments,
    )  # fmt: skip
