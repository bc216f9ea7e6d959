"""Convert source between text and the bytes that compilers read, and refuse text that they would misread.

Promise     Bytes that are not UTF-8 pass through unchanged, in str as surrogate escapes. Text that a compiler would
            not read to its end is an `OptionError` that gives the position.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..errors import OptionError

_ESCAPED = "surrogateescape"
_UNFIT = "[\0\ud800-\udfff]"
_UNFIT_DECODED = "[\0\ud800-\udc7f\udd00-\udfff]"


def meant(name: str, names: Iterable[str]) -> str:
    """The start of a hint, "did you mean ...? ", with the most similar of `names`; "" if none is similar."""
    from difflib import get_close_matches

    known = {each.replace("_", ""): each for each in names}
    found = get_close_matches(name.replace("_", "").lower(), known, 1, 0.7) or [
        each for each in known if len(name) > 2 and each.startswith(name.replace("_", "").lower())
    ]
    return f"did you mean {known[found[0]]}? " if found else ""


def plain(text: str) -> str:
    """Convert text of a subclass (a member of an enumeration, markup, `numpy.str_`) to str: a key holds only str."""
    return str.__str__(text)  # not str(text), which the subclass may define


def encoded(text: str) -> bytes:
    """Encode as UTF-8; surrogate escapes become the bytes that they stand for."""
    return text.encode("utf-8", _ESCAPED)


def decoded(data: bytes) -> str:
    """Decode as UTF-8; other bytes become surrogate escapes."""
    return data.decode("utf-8", _ESCAPED)


def check_text(text: str, what: str, *, is_decoded: bool = False) -> None:
    """Refuse text that the compilers would not read to its end, or that is not valid.

    Args:
        text: The user's text.
        what: Its description in the message: "name='k'".
        is_decoded: The text comes from `decoded`: surrogate escapes in it stand for bytes.

    Raises:
        OptionError: The text holds a NUL, or a lone surrogate.
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
        why = f"{where} is {found[0]!a}, a lone surrogate, which is not a character"
    raise OptionError(f"cannot use {what}", why, "remove it")
