"""Expand macros in operands of `#include` and `__has_include` to all file names that they may form.

Promise     The list has every name that the compiler may form there, whichever definition of each macro is in force; it
            contains None if the names cannot be enumerated.
Method      The standard's expansion (arguments are expanded before substitution, # and ##, no recursion), but with
            every definition found anywhere in the texts, in comments too, and also with the macro undefined. An operand
            that expands to no file name adds nothing to the list: the compiler refuses it.
Not here    Finding operands in a text (scanner), and the paths where a name is looked for (search).
Source      NVRTC 13.5: text after the name is ignored with a warning; in <> each blank is one space, and trailing
            blanks are dropped. The compiler's own macros have reserved names, except three.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Callable, Sequence

from ..model import NamedTuple
from ..model.text import encoded
from .scanner import GAP, NEXT_MARK, Form, Include, joined

_TOKEN = re.compile(
    r"(?P<blank>(?:\s|//[^\n]*|/\*.*?\*/)+)|(?P<text>\"[^\"\\]*\")|(?P<word>[A-Za-z_\x80-\xff][\w\x80-\xff]*)"
    r"|\.?\d(?:[eEpP][+-]|[\w.\x80-\xff])*|\#\#|%:%:|%:|.",
    re.DOTALL | re.ASCII,
)
_RESERVED = re.compile(r"_[_A-Z]")
_PREDEFINED = re.compile(
    r"(?:unix|linux|i386)\Z|__(?:CUDA|NV|GNU|EDG|STDC|cplusplus|linux|unix|x86|i386|aarch|amd64|LP64|ELF)"
    r"|__(?:LINE|FILE|COUNTER|INCLUDE_LEVEL|DATE|TIME|TIMESTAMP)__"
)
_COMPILER_MACRO_INSIDE = re.compile(
    rf"(?<!\w)(?:{_RESERVED.pattern}|{_PREDEFINED.pattern.replace(chr(92) + 'Z', '(?![0-9A-Za-z_])')})"
)
"""Finds a reserved or predefined macro anywhere in the spelled operand; `_PREDEFINED` matches one whole name."""

_QUESTIONS = {"__has_include": None, "__has_include_next": Form.NEXT}
_MAX_STEPS = 4000
_MAX_DEPTH = 60


class _Unlisted(Exception):
    """There are too many names, or one contains a macro that is unknown here."""


class _Token(NamedTuple):
    """One token; `is_apart`: a blank precedes it; `hidden`: macros it was expanded from, not expanded again."""

    text: str
    is_apart: bool = False
    hidden: frozenset[str] = frozenset()


_Tokens = tuple[_Token, ...]


class _Macro(NamedTuple):
    """A definition: parameter names, None for an object-like macro; and its body, None for an unknown one."""

    parameters: tuple[str, ...] | None
    body: _Tokens | None


class IncludeNames:
    """The names that macros may form.

    Args:
        read: Reads the texts in which macros may be defined; called once, for the first macro.
    """

    def __init__(self, read: Callable[[], Sequence[bytes]]) -> None:
        self._read = functools.cache(read)
        self._known: dict[str, list[_Macro]] = {}
        self._steps = 0
        self._is_condition = False

    def asked(self, condition: str) -> set[Include | None]:
        """List the files for whose existence a condition may ask; {None} if they cannot be enumerated."""
        self._steps, self._is_condition, found = 0, True, set[Include | None]()
        try:
            for tokens in self._expanded(_tokens(condition), 0):
                found.update(*(_asked(tokens, at) for at, each in enumerate(tokens) if each.text in _QUESTIONS))
        except _Unlisted:
            return {None}
        finally:
            self._is_condition = False
        return found

    def listed(self, operand: str) -> set[Include | None]:
        """List the files that an operand may name; {None} if they cannot be enumerated.

        Args:
            operand: The text after `include` or in the parentheses of `__has_include`, as the scanner returns it.
        """
        self._steps = 0
        is_next = operand.startswith(NEXT_MARK)
        spelled = operand.removeprefix(NEXT_MARK)
        try:
            letters = encoded(spelled).decode("latin-1")  # one character per byte, as in all tokens here
            expanded = self._expanded(_tokens(letters), 0)
            found: set[Include | None] = {name for each in expanded for name in _names(each)}
        except _Unlisted:
            return {None}
        if is_next:
            return {each and each._replace(form=Form.NEXT) for each in found}
        return found

    def _expanded(self, tokens: _Tokens, depth: int) -> set[_Tokens]:
        """List all expansions of tokens."""
        self._steps += 1
        if self._steps > _MAX_STEPS or depth > _MAX_DEPTH:
            raise _Unlisted
        for at, token in enumerate(tokens):
            name, rest = token.text, tokens[at + 1 :]
            if not (name[0].isalpha() or name[0] == "_") or name in token.hidden:
                continue
            macros = self._macros(name)
            # In a condition, compiler macros outside the operand of __has_include do not matter; _asked refuses others.
            if not self._is_condition and (_PREDEFINED.match(name) or (not macros and _RESERVED.match(name))):
                raise _Unlisted
            if not macros:
                continue
            found = {(token, *each) for each in self._expanded(rest, depth + 1)}  # the macro may be undefined here
            for macro in macros:
                hidden, arguments, after = token.hidden | {name}, list[_Tokens](), rest
                if macro.parameters is not None:
                    call = _call(rest)
                    if call is None:
                        continue
                    arguments, after, closing = call
                    hidden = (token.hidden & closing.hidden) | {name}
                for body in self._bodies(macro, arguments, depth):
                    inner = [each._replace(hidden=each.hidden | hidden) for each in body]
                    inner[:1] = [each._replace(is_apart=token.is_apart) for each in inner[:1]]
                    found |= self._expanded((*inner, *after), depth + 1)
            return {(*tokens[:at], *each) for each in found}
        return {tokens}

    def _bodies(self, macro: _Macro, arguments: list[_Tokens], depth: int) -> list[list[_Token]]:
        """List the bodies of a macro call, one for each combination of expanded arguments."""
        if macro.body is None:
            raise _Unlisted
        names = macro.parameters or ()
        if names and names[-1] == "__VA_ARGS__":
            most = len(names) - 1
            rest = [part for each in arguments[most:] for part in (_Token(","), *each)]
            arguments = [*arguments[:most], tuple(rest[1:])]
        if len(arguments) != len(names) and not (len(names) < 2 and not any(arguments)):
            raise _Unlisted
        raw = dict(zip(names, arguments, strict=False))
        values = [self._expanded(raw.get(name, ()), depth + 1) for name in names]
        return [
            _substituted(macro.body, raw, dict(zip(names, each, strict=True))) for each in itertools.product(*values)
        ]

    def _macros(self, name: str) -> list[_Macro]:
        """List each definition of a macro."""
        if name not in self._known:
            spelled, macros = name.encode("latin-1"), set[_Macro]()
            pattern = re.compile(
                rb"define" + GAP + spelled + rb"(?:\(([^)\n]*)\))?(?![\w$\x80-\xff])([^\n]*)", re.DOTALL
            )
            for text in self._read():
                for found in pattern.finditer(joined(text)) if spelled in text else ():
                    parameters = None if found[1] is None else found[1].decode("latin-1")
                    macros.add(_macro(parameters, found[2].decode("latin-1")))
            self._known[name] = sorted(macros, key=repr)
        return self._known[name]


def _macro(parameters: str | None, body: str) -> _Macro:
    try:
        tokens = _tokens(body)
    except _Unlisted:
        return _Macro(None if parameters is None else (), None)
    if parameters is None:
        return _Macro(None, tokens)
    names = tuple(each.strip() for each in parameters.split(",")) if parameters.strip() else ()
    names = tuple("__VA_ARGS__" if each == "..." else each for each in names)
    is_plain = all(re.fullmatch(r"[A-Za-z_]\w*", each) for each in names) and "__VA_OPT__" not in body
    return _Macro(names, tokens if is_plain else None)


def _tokens(text: str) -> _Tokens:
    found: list[_Token] = []
    is_apart = False
    for each in _TOKEN.finditer(text):
        if not each["blank"]:
            spelled = {"%:": "#", "%:%:": "##"}.get(each[0], each[0])
            if spelled in ("'", '"', "\\"):
                raise _Unlisted
            found.append(_Token(spelled, is_apart))
        is_apart = bool(each["blank"])
    if any(pair[0].text == "/" and pair[1].text == "*" and not pair[1].is_apart for pair in itertools.pairwise(found)):
        raise _Unlisted  # a comment that continues on the next line
    return tuple(found)


def _call(tokens: _Tokens) -> tuple[list[_Tokens], _Tokens, _Token] | None:
    """Parse a call's arguments, if the next token is "(": the arguments, the tokens after them, the closing ")"."""
    if not tokens or tokens[0].text != "(":
        return None
    depth, arguments = 0, list[list[_Token]]([[]])
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0:
            return [tuple(each) for each in arguments], tokens[at + 1 :], token
        if token.text == "," and depth == 1:
            arguments.append([])
        elif at:
            arguments[-1].append(token)
    return None


def _substituted(body: _Tokens, raw: dict[str, _Tokens], values: dict[str, _Tokens]) -> list[_Token]:
    """Substitute arguments into a macro's body."""
    made: list[_Token] = []
    is_joined = False
    for at, token in enumerate(body):
        before = body[at - 1].text if at else ""
        after = body[at + 1].text if at + 1 < len(body) else ""
        if token.text == "##" and at and after:
            is_joined = True
            continue
        if token.text == "#" and after in raw:
            continue
        if token.text not in raw:
            parts: Sequence[_Token] = [token]
        elif before == "#":
            parts = [_Token(f'"{_spelled(raw[token.text]).strip()}"')]
            if any(mark in parts[0].text[1:-1] for mark in '"\\'):
                raise _Unlisted
        else:
            parts = raw[token.text] if "##" in (before, after) else values[token.text]
        is_apart = body[at - 1].is_apart if before == "#" and token.text in raw else token.is_apart
        parts = [each._replace(is_apart=each.is_apart if number else is_apart) for number, each in enumerate(parts)]
        if is_joined and made and parts:
            whole = _tokens(made[-1].text + parts[0].text)
            made[-1:] = [whole[0]._replace(is_apart=made[-1].is_apart), *whole[1:]]
            parts = parts[1:]
        is_joined = False
        made += parts
    return made


def _spelled(tokens: Sequence[_Token]) -> str:
    return "".join(f" {each.text}" if each.is_apart else each.text for each in tokens)


def _asked(tokens: _Tokens, at: int) -> set[Include | None]:
    """List the names that the `__has_include` at an index may ask for; {None} if its operand has compiler macros."""
    call = _call(tokens[at + 1 :])
    if call is None:
        before = [each.text for each in tokens[max(0, at - 2) : at]]
        return set() if before[-1:] == ["defined"] or before == ["defined", "("] else {None}
    operand = tuple(part for number, each in enumerate(call[0]) for part in (*([_Token(",")] * (number > 0)), *each))
    if _COMPILER_MACRO_INSIDE.search(_spelled(operand)):
        return {None}
    form = _QUESTIONS[tokens[at].text]
    return {each if form is None else each._replace(form=form) for each in _names(operand)}


def _names(tokens: _Tokens) -> set[Include]:
    """List the file name that tokens begin with, in parentheses or not: as spelled, and with blanks stripped."""
    tokens = tuple(itertools.dropwhile(lambda each: each.text == "(", tokens))
    first, *rest = [*tokens, _Token("")]
    if first.text.startswith('"'):
        return {_include(Form.QUOTE, first.text[1:-1])}
    end = next((at for at, each in enumerate(rest) if each.text == ">"), -1)
    if first.text != "<" or end < 0:
        return set()
    name = _spelled(rest[:end])
    return {_include(Form.ANGLE, each) for each in (name, name.strip()) if each.strip()}


def _include(form: Form, name: str) -> Include:
    return Include(form, os.fsdecode(name.encode("latin-1", "replace")))
