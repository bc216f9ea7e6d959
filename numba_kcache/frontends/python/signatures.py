"""Read the option `signature=`: a signature as `cuda.jit` takes it, or a list of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import OptionError


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
