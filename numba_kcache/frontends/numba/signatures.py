"""Read the option `signature=`, and launch through a Numba's own dispatcher in debug mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from ...errors import OptionError
from ...launch import LaunchShape


def read_signature_list(
    given: Any, normalize: Callable[[Any], tuple[Any, Any]], void_types: Sequence[Any]
) -> tuple[tuple[Any, ...], ...]:
    """Read the argument types of a signature as `cuda.jit` takes it, or of a list of these.

    Args:
        given: The user's value.
        normalize: Numba's parser: returns argument types, and the return type.
        void_types: The allowed return types.

    Raises:
        OptionError: One is not a signature, or returns something.
    """
    found = []
    for each in given if isinstance(given, list) else [given]:
        try:
            arguments, returned = normalize(each)
        except Exception as error:  # Numba evaluates the text, which may raise anything; the error is reported
            raise OptionError(
                f"cannot read signature {each!r}", str(error), 'write "void(float32[::1], int64)" or a tuple of types'
            ) from error
        if returned not in void_types:
            raise OptionError(f"cannot use signature {each!r}", f"it returns {returned}", "a kernel returns void")
        found.append(tuple(arguments))
    return tuple(found)


def launch_watched(
    configured: Any, shape: LaunchShape, stream: Any, arguments: Sequence[Any], function: FunctionType
) -> None:
    """Launch by a configured dispatcher, and wait until the kernel has ended; an error shows the arguments."""
    from ...launch.debugging import watched
    from ...launch.devices import bindings

    def queue() -> bool:
        configured(*arguments)
        return True

    watched(
        bindings(), stream, queue, kernel=function.__name__, shape=shape,
        parameters=function.__code__.co_varnames[: len(arguments)], arguments=arguments,
    )  # fmt: skip
