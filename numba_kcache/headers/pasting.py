"""Find the names that `##` may join from three or more words of a text.

Promise     A name is found if a text has a `##` and all the words that the name can be joined from.
Not here    Names joined from two words: the longer word is long enough for the scanner to recognise it (scanner).
"""

from __future__ import annotations

import re

_OPERATORS = b"##", b"%:%:"
_FIRST = rb"\b_(?:_(?:ha?)?)?\b"
"""First words that are too short for the scanner to recognise them as parts of a name: `_`, `__`, `__h`, `__ha`."""

_DIRECTIVE = rb"#[ \t]*include\b"  # the word `include` in a directive is not an operand of ##


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
