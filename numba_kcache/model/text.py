"""Text that the compilers read as bytes, of whatever encoding.

Promise     Bytes that are no UTF-8 pass through unchanged: as surrogate escapes where there must be text. What a
            compiler would not read as it was given is an `OptionError` that says where.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import OptionError

_ESCAPED = "surrogateescape"
_UNFIT = "[\0\ud800-\udfff]"
_UNFIT_DECODED = "[\0\ud800-\udc7f\udd00-\udfff]"


def meant(name: str, names: Iterable[str]) -> str:
    """The beginning of a hint about a name that is not among `names`: the one that it is most like; "" for none."""
    from difflib import get_close_matches

    known = {each.replace("_", ""): each for each in names}
    found = get_close_matches(name.replace("_", "").lower(), known, 1, 0.7) or [
        each for each in known if len(name) > 2 and each.startswith(name.replace("_", "").lower())
    ]
    return f"did you mean {known[found[0]]}? " if found else ""


def encoded(text: str) -> bytes:
    """The bytes of a text that `decoded` gave, or of any other."""
    return text.encode("utf-8", _ESCAPED)


def decoded(data: bytes) -> str:
    """A text that stands for these bytes."""
    return data.decode("utf-8", _ESCAPED)


def check_text(text: str, what: str, *, is_decoded: bool = False) -> None:
    """Refuse text that the compilers would not read to its end, or that is not valid.

    Args:
        text: The user's.
        what: What it is, as a message says it: "name='k'".
        is_decoded: Whether surrogate escapes stand for bytes in it.

    Raises:
        OptionError: It holds a NUL, or a lone surrogate.
    """
    found = re.search(_UNFIT_DECODED if is_decoded else _UNFIT, text)
    if found is None:
        return
    at = found.start()
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    where = f"line {line}, column {column}" if "\n" in text else f"character {column}"
    if found[0] == "\0":
        why = f"{where} is NUL, at which the compiler would stop reading"
    else:
        why = f"{where} is {found[0]!a}, a lone surrogate, which is no character"
    raise OptionError(f"cannot use {what}", why, "remove it")
