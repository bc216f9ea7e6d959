"""Search CUDA C++ for words: whether a text may ask for files, and whether its code may depend on its path or the time.

Promise     A text for which `may_ask` is False asks NVRTC for no file; the transcript of its compile would show it, and
            the code would not be stored. A word is found in comments and branches that are not taken, too.
Source      C++17, 5.2 "Phases of translation" (lines are joined before words are read) and 19.3.3 "The ## operator".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from ..model import NamedTuple

CLOCK = (b"__DATE__", b"__TIME__", b"__TIMESTAMP__")
_LOCATION = (b"_FILE__", b"source_location", b"__builtin_FILE")  # `__LINE__` depends on the text alone
_PASTED_LOCATION = (b"__FILE__", b"__builtin_FILE")
_SPLICE = rb"(?:\\|\?\?/)[ \t]*\r?\n"
_BLANKS = rb"(?:#|%:|\?\?=)(?:\s|/\*.*?\*/)*"
_INCLUDE = re.compile(_BLANKS + rb"include|__has_include", re.DOTALL)
_LINE = re.compile(_BLANKS + rb"(?:line\b|\d)", re.DOTALL)
_NO_CODE = rb"""(?s)/\*.*?\*/|//[^\n]*|R"(?:[^"\\]|\\.)*"|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_HAS_INCLUDE = b"__has_include"


class _Text(NamedTuple):
    """A text as it was searched.

    Args:
        joined: The text with its lines joined.
        pieces: Its words that are a part of one of the names in this module.
        splits_clock: Whether a line ends within one of these words.
        has_location: Whether it contains one of the words that expand to the name of its file.
    """

    joined: bytes
    pieces: frozenset[bytes]
    splits_clock: bool
    has_location: bool


@functools.lru_cache(maxsize=1024)  # most headers are compiled with many kernels
def _searched(data: bytes) -> _Text:
    whole = joined(data)
    pieces = _parts().intersection(re.findall(rb"\w+", whole))
    splits_clock = whole is not data and any(data.count(word) != whole.count(word) for word in CLOCK)
    return _Text(whole, pieces, splits_clock, any(word in whole for word in _LOCATION))


@functools.cache
def _parts() -> frozenset[bytes]:
    """All parts of the names that may be joined."""
    names = (_HAS_INCLUDE, *CLOCK, *_PASTED_LOCATION)
    return frozenset(name[at:end] for name in names for at in range(len(name)) for end in range(at + 1, len(name) + 1))


def joined(data: bytes) -> bytes:
    """Join the lines that end in a backslash with the next."""
    return re.sub(_SPLICE, b"", data) if b"\\" in data or b"??/" in data else data


def may_ask(data: bytes) -> bool:
    """Check whether a text may include files or test for them, or may use the time."""
    data = joined(data)
    joins = b"##" in data or b"%:%:" in data or b"??=" in data
    others = (re.sub(rb"#[ \t]*include\b", b"", data),) if joins else ()
    return bool(_INCLUDE.search(data)) or has_clock(data) or (joins and _are_joined(others, _HAS_INCLUDE, *CLOCK))


def has_clock(data: bytes) -> bool:
    """Check whether a text contains one of the words that expand to the time."""
    return any(word in data for word in CLOCK)


def certainly_has_clock(data: bytes) -> bool:
    """Check whether a text without conditions expands one of these words in its code, or by a macro that it uses."""
    bare = re.sub(_NO_CODE, b" ", joined(data))
    if not has_clock(bare) or re.search(_BLANKS + rb"if", bare):
        return False
    code = re.sub(rb"(?m)^[ \t]*(?:#|%:|\?\?=).*$", b"", bare)
    macros = [name for name, body in re.findall(rb"(?m)define[ \t]+(\w+)(.*)$", bare) if has_clock(body)]
    return has_clock(code) or not set(macros).isdisjoint(re.findall(rb"\w+", code))


def hides_clock(*texts: bytes) -> bool:
    """Check whether texts may use the time without containing one of the words in one piece."""
    return _are_joined(texts, *CLOCK) or any(_searched(each).splits_clock for each in texts)


def without_clock(data: bytes) -> bytes:
    """Replace the words that expand to the time by others, which are not defined; as observe.c does in headers."""
    for word in CLOCK:
        data = data.replace(word, word[:2] + b"X" + word[3:])
    return data


def has_location(*texts: bytes) -> bool:
    """Check whether texts may put the name of a file into the code in a form that a search does not find."""
    return any(_searched(each).has_location for each in texts) or _are_joined(texts, *_PASTED_LOCATION)


def may_name(texts: bytes, folder: bytes) -> bool:
    """Check whether joined texts may name a folder by its absolute path, also if macros add all but its first part."""
    first = b"/" + folder.lstrip(b"/").split(b"/")[0]
    return first in texts and re.search(rb"(?<![\w./])" + re.escape(first) + rb"(?!\w)", texts) is not None


def has_line_directive(data: bytes) -> bool:
    """Check whether a text may give itself another file name by `#line`."""
    return _LINE.search(joined(data)) is not None


def _are_joined(texts: Iterable[bytes], *names: bytes) -> bool:
    """Check whether words of texts can be joined to one of these names, by a macro of these texts or of another."""
    words = frozenset[bytes]().union(*(_searched(each).pieces for each in texts)).difference(names)
    for name in names:
        reached = {0}
        for at in range(len(name)):
            if at in reached:
                reached.update(end for end in range(at + 1, len(name) + 1) if name[at:end] in words)
        if len(name) in reached:
            return True
    return False
