"""The kind of linker input that a path or one of Numba's `LinkableCode` objects is.

Promise     Numba is not imported: its classes are recognised by name, since their `kind` is sometimes a string and
            sometimes a constant of the driver's bindings.
"""

from __future__ import annotations

import os
from typing import Any

from . import LinkInput
from .text import check_text

LINK_SUFFIXES = {
    ".cu": "cu", ".ptx": "ptx", ".ltoir": "ltoir", ".o": "object", ".a": "library", ".lib": "library",
    ".fatbin": "fatbin", ".cubin": "cubin",
}  # fmt: skip
"""The kind of a file by its suffix."""

_CLASSES = {
    "CUSource": "cu", "PTXSource": "ptx", "LTOIR": "ltoir", "Object": "object", "Archive": "library",
    "Fatbin": "fatbin", "Cubin": "cubin",
}  # fmt: skip


def kind_of_path(path: str) -> str | None:
    """The kind of a file; None for an unknown suffix."""
    return LINK_SUFFIXES.get(os.path.splitext(path)[1])


def linkable_input(item: Any) -> LinkInput | None:
    """Read a `LinkableCode` object in its present state (text may be appended later); None for other objects."""
    for each in type(item).__mro__:
        if each.__name__ in _CLASSES and hasattr(item, "data"):
            data = item.data
            if isinstance(data, str):
                check_text(data, f"the text of {item.name}")
                data = data.encode()
            return LinkInput(_CLASSES[each.__name__], str(item.name), bytes(data))
    return None


def callbacks_of(item: Any) -> tuple[Any, ...]:
    """The functions of a `LinkableCode` object to call when its module is loaded or unloaded."""
    found = (getattr(item, "setup_callback", None), getattr(item, "teardown_callback", None))
    return tuple(each for each in found if each is not None)
