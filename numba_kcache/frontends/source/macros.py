"""Expand the macros of CUDA C++ for the scan of declarations.

Promise     Object-like, function-like and variadic macros, arguments expanded before substitution, # and ##.
            Malformed text is left unchanged: the compiler will report it.
Not here    Finding macro calls, and directives other than #define and #undef (declarations).
"""

from __future__ import annotations

import functools
import re

from ...model import NamedTuple

WORD = r"[A-Za-z_$][\w$]*"
COMMENT = r"//[^\n]*|/\*.*?\*/"
TEXT = r'(?:u8|[uUL])?R"(?P<fence>[^()\\\s]{0,16})\(.*?\)(?P=fence)"' + r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
OTHER = r"\.?\d(?:[eEpP][+-]|'?[\w.])*|::|\#\#|."

_DEFINITION = rf"(?s)({WORD})(\([^()]*\))?[ \t]*(.*)"
_MOST_NESTED = 32
_MOST_CHARACTERS = 1 << 18
"""Limit of the characters of all expansions together: macros that use each other twice grow exponentially."""


@functools.cache
def _token() -> re.Pattern[str]:
    """The pattern of a token, compiled for the first macro that is called."""
    return re.compile(rf"(?P<blank>\s+|{COMMENT})|{TEXT}|{WORD}|{OTHER}", re.DOTALL)


class _Macro(NamedTuple):
    parameters: tuple[str, ...] | None
    body: str


class Macros:
    """The macros that are defined at one place of a text."""

    def __init__(self) -> None:
        self._named: dict[str, _Macro] = {}
        self._room = _MOST_CHARACTERS

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def define(self, text: str) -> None:
        """Define a macro from the text after `#define`."""
        if found := re.match(_DEFINITION, text):
            names = tuple(each.strip() for each in found[2][1:-1].split(",")) if found[2] else None
            self._named[found[1]] = _Macro(names, found[3])

    def undefine(self, name: str) -> None:
        """Undefine the macro named after `#undef`."""
        self._named.pop(name, None)

    def expand(self, name: str, text: str, position: int) -> tuple[str | None, int]:
        """Expand a macro that is called in a text.

        Args:
            name: The macro.
            text: The text that contains its arguments.
            position: Index of the end of its name.

        Returns:
            Its expansion, None if it is not called; and the index of the call's end.
        """
        return self._call(name, text, position, frozenset())

    def _call(self, name: str, text: str, position: int, active: frozenset[str]) -> tuple[str | None, int]:
        macro, arguments = self._named[name], list[str]()
        if macro.parameters is not None:
            found = _arguments(text, position)
            if found is None:
                return None, position
            arguments, position = found
        inner = active | {name}
        made = self._substituted(macro, arguments, inner)
        self._room -= len(made) + 1
        return self._expanded(made, inner), position

    def _expanded(self, text: str, active: frozenset[str]) -> str:
        """Expand all macros in a text, except those in `active`."""
        made, position = [], 0
        while position < len(text):
            found = _token().match(text, position)
            assert found is not None  # the pattern's last alternative matches any character
            position, word = found.end(), found[0]
            if word in self._named and word not in active and len(active) < _MOST_NESTED and self._room > 0:
                called, position = self._call(word, text, position, active)
                word = word if called is None else called
            made.append(word)
        return "".join(made)

    def _substituted(self, macro: _Macro, arguments: list[str], active: frozenset[str]) -> str:
        """Substitute arguments into a macro's body and apply ##."""
        names = macro.parameters or ()
        given = dict(zip(names, arguments, strict=False))
        if names and names[-1].endswith("..."):
            given[names[-1].rstrip(". ") or "__VA_ARGS__"] = ", ".join(arguments[len(names) - 1 :])
        parts = [each[0] for each in _token().finditer(macro.body) if not each["blank"]]
        made: list[str] = []
        for before, part, after in zip(["", *parts], parts, [*parts[1:], ""], strict=False):
            if part == "##" or (part == "#" and after in given):
                continue
            if part in given and before != "#":
                part = given[part].strip() if "##" in (before, after) else self._expanded(given[part], active)
            elif part in given:
                part = '""'
            if before == "##" and made:
                made[-1] += part
            else:
                made.append(part)
        return " ".join(made)


def _arguments(text: str, position: int) -> tuple[list[str], int] | None:
    """The arguments in the next parentheses and the index of their end; None if there are none."""
    depth, found, start = 0, list[str](), 0
    for each in _token().finditer(text, position):
        if depth == 0 and each[0] != "(":
            if each["blank"]:
                continue
            return None
        if each[0] in ("(", "[", "{"):
            depth += 1
            start = start or each.end()
        elif each[0] in (")", "]", "}"):
            depth -= 1
        if depth == 0 or (depth == 1 and each[0] == ","):
            found.append(text[start : each.start()])
            start = each.end()
        if depth == 0:
            return found, each.end()
    return None
