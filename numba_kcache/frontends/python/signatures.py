"""Read what `signature=` takes: as `cuda.jit` takes it, or a list of that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ...errors import OptionError


def read_signature_list(
    given: Any, normalize: Callable[[Any], tuple[Any, Any]], nothing: Sequence[Any]
) -> tuple[tuple[Any, ...], ...]:
    """Read the argument types of what `signature=` takes: as `cuda.jit` takes it, or a list of that.

    Args:
        given: By the user.
        normalize: Numba's reader: argument types, and the type that is returned.
        nothing: What the latter may be.

    Raises:
        OptionError: One is not a signature, or returns something.
    """
    found = []
    for each in given if isinstance(given, list) else [given]:
        try:
            arguments, returned = normalize(each)
        except Exception as error:  # Numba evaluates the text: whatever that raises says what is wrong with it
            raise OptionError(
                f"cannot read signature {each!r}", str(error), 'write "void(float32[::1], int64)" or a tuple of types'
            ) from error
        if returned not in nothing:
            raise OptionError(f"cannot use signature {each!r}", f"it returns {returned}", "a kernel returns void")
        found.append(tuple(arguments))
    return tuple(found)
