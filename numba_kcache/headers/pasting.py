"""Find the names that `##` may join from three or more words of a text.

Promise     A name whose words all stand in the text, a `##` with them, is found.
Not here    Names joined from two words, whose longer part shows them (scanner).
"""

from __future__ import annotations

import re

_OPERATORS = b"##", b"%:%:"
_FIRST = rb"\b_(?:_(?:ha?)?)?\b"
"""The first words that the scanner does not know as a part of one of its names."""

_DIRECTIVE = rb"#[ \t]*include\b"  # its word is no operand


def may_paste(data: bytes) -> bool:
    """Check whether a text may join words to a name that begins with an underscore: a cheap test."""
    return any(each in data for each in _OPERATORS) and re.search(_FIRST, data) is not None


def is_pasted(data: bytes, *names: bytes) -> bool:
    """Check whether words of a text can be joined to one of these names."""
    if not may_paste(data):
        return False
    words = set(re.findall(rb"\w+", re.sub(_DIRECTIVE, b"", data))).difference(names)
    for name in names:
        reached = {0}
        for at in range(len(name)):
            if at in reached:
                reached.update(end for end in range(at + 1, len(name) + 1) if name[at:end] in words)
        if len(name) in reached:
            return True
    return False
