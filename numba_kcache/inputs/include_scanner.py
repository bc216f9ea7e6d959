"""What a source or header asks of other files, found without a preprocessor: more than it does, never less.

Promise     Each `#include` and `__has_include` that the compiler can carry out in this text is reported, in
            whatever spelling: continued lines, digraphs, trigraphs, comments between the tokens, under any
            `#if`. What cannot be read off the text is said to be so: `computed` (an include that names a macro),
            `opaque` (a `__has_include` reached through one), `clock` (`__DATE__`, `__TIME__`).
Method      Continued lines are joined, then every occurrence of the word is looked at, in comments and strings
            too: a hit there costs a needless dependency, and telling them apart costs a tokenizer on 5 MB of
            CCCL. Only where one of the three doubts arises are comments and strings taken out, and only where
            that can be done with certainty does the doubt go away.
Not here    Where a name leads (include_search) and which branch of an `#if` is taken (the compiler's trace).
Ground      NVRTC 13.5 takes `#include`, `#include_next`, `%:include`, with -std=c++11 and 14 `??=include`, and
            `__has_include` under another name (`#define H __has_include`); it refuses `#import`, `#embed`,
            `import`, UTF-16 and blanks between a backslash and the end of its line.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple


class Form(IntEnum):
    """How a file is asked for; what it means for the search is include_search's."""

    QUOTE = 0
    ANGLE = 1
    NEXT = 2
    FORCED = 3


class Include(NamedTuple):
    """One file asked for: `name` as it is spelled between the quotes or brackets."""

    form: Form
    name: str


class Scan(NamedTuple):
    """What a text asks for.

    Args:
        includes: The files it may include.
        has_includes: The files whose existence it may ask about.
        computed: Operands of includes that name no file, as written.
        is_opaque: Whether it may ask about files that cannot be told from the text.
        has_clock: Whether it may expand to the time of the compile.
        has_location: Whether it may expand to a line number or a file name.
    """

    includes: tuple[Include, ...] = ()
    has_includes: tuple[Include, ...] = ()
    computed: tuple[str, ...] = ()
    is_opaque: bool = False
    has_clock: bool = False
    has_location: bool = False

    @property
    def asks_files(self) -> bool:
        """Whether the compiler may look at any other file because of this text."""
        return bool(self.includes or self.has_includes or self.computed or self.is_opaque)


PLAIN = Scan()
"""Of a text that depends on nothing but itself."""

_WORDS = ("include", "__DATE__", "__TIME", "__LINE__", "_FILE__", "assert", "source_location", "__builtin_")
_CONTINUED = re.compile(rb"(?:\\|\?\?/)\r?\n")
_lazily = functools.partial(functools.partial, re.compile)  # re remembers what it compiled; most processes need none
_LOCATION = _lazily(rb"\bassert\b|__LINE__|_FILE__|source_location|__builtin_(?:LINE|FILE|COLUMN|FUNCTION)\b")
_GAP = rb"(?:[ \t\v\f\r]|/\*.*?\*/)*"
_INCLUDE = _lazily(
    rb"include(_next)?\b" + _GAP + rb"(?:(\(" + _GAP + rb')?(?:"([^"\n]*)"|<([^>\n]*)>)|(?=([^\n]*)))', re.DOTALL
)
_HARMLESS = _lazily(rb"(?:define|undef|ifdef|ifndef|defined[ \t]*\(?)[ \t]*\Z")
_TOKENS = _lazily(rb"""//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\[^\n']{1,10}|[^'\\\n])'""", re.DOTALL)


def _halves(word: str) -> str:
    """A pattern of the longer parts of `word` that `##` could be handed."""
    parts = {part for cut in range(1, len(word)) for part in (word[:cut], word[cut:]) if 2 * len(part) >= len(word)}
    return "|".join(sorted(parts))


_PASTED_CLOCK = _lazily(rf"\b(?:{_halves('__DATE__')}|{_halves('__TIME__')})\b".encode())
_PASTED_ASK = _lazily(rf"\b(?:{_halves('__has_include')})\b".encode())


def scan_includes(text: str | bytes) -> Scan:
    """Look through one text. A source that depends on nothing else costs a few searches for a word."""
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if b"\\" in data or b"??/" in data:
        data = _CONTINUED.sub(b"", data)
    pasted = b"##" in data
    if not pasted and not any(word in data for word in _WORDS_IN_BYTES):
        return PLAIN
    scan = _scan(data, pasted)
    if scan.computed or scan.is_opaque or scan.has_clock:
        return _without_comments(data, pasted, scan)
    return scan


_WORDS_IN_BYTES = tuple(word.encode() for word in _WORDS)


def _scan(data: bytes, pasted: bool) -> Scan:
    includes: dict[Include, None] = {}
    has_includes: dict[Include, None] = {}
    computed: dict[str, None] = {}
    opaque = pasted and _PASTED_ASK().search(data) is not None
    for match, is_question in _occurrences(data):
        following, bracket, quoted, angled, operand = match.groups()
        if quoted is None and angled is None:
            if not is_question:
                computed[operand.decode("utf-8", "replace").strip()] = None
            elif not _HARMLESS().search(data, max(0, match.start() - 80), match.start() - len(b"__has_")):
                opaque = True
        else:
            form = Form.NEXT if following else Form.ANGLE if quoted is None else Form.QUOTE
            include = Include(form, os.fsdecode(angled if quoted is None else quoted))
            if is_question:
                has_includes[include] = None
            elif bracket is None:
                includes[include] = None
    return Scan(
        tuple(includes),
        tuple(has_includes),
        tuple(computed),
        opaque,
        b"__DATE__" in data or b"__TIME" in data or (pasted and _PASTED_CLOCK().search(data) is not None),
        _LOCATION().search(data) is not None,
    )


def _occurrences(data: bytes) -> Iterator[tuple[re.Match[bytes], bool]]:
    """Each `include` that is a directive or part of `__has_include`, and whether it is the latter."""
    for match in _INCLUDE().finditer(data):
        at = match.start()
        if data.endswith(b"__has_", 0, at):
            yield match, True
            continue
        while at and data[at - 1] in b" \t\v\f\r":
            at -= 1
        if data.endswith((b"#", b"%:", b"??=", b"*/"), 0, at):
            yield match, False


def _without_comments(data: bytes, pasted: bool, scan: Scan) -> Scan:
    """`scan`, with each doubt that comments and strings alone had raised taken back.

    A quote that is left over says that the text has not been understood (a raw string, an apostrophe in
    `#error`): then every doubt stands. So does it in a text that holds raw strings at all.
    """
    if b'R"' in data:
        return scan
    bare = _TOKENS().sub(_blank, data)
    if _leftover(bare):
        return scan
    stripped = _scan(_TOKENS().sub(_keep_strings, data), pasted)
    return scan._replace(
        computed=stripped.computed, is_opaque=stripped.is_opaque, has_clock=_scan(bare, pasted).has_clock
    )


def _blank(match: re.Match[bytes]) -> bytes:
    return b" "


def _keep_strings(match: re.Match[bytes]) -> bytes:
    token = match.group()
    return b" " if token.startswith(b"/") else token


def _leftover(bare: bytes) -> bool:
    return b'"' in bare or re.search(rb"(?<![0-9a-fA-F])'|'(?![0-9a-fA-F])", bare) is not None


def unconditional_includes(source: str) -> tuple[Include, ...]:
    """The includes that a source which compiled must have carried out: literal, and under no `#if`.

    None at all where comments and strings cannot be taken out with certainty.
    """
    data = _CONTINUED.sub(b"", source.encode("utf-8", "surrogatepass"))
    if b"include" not in data or b'R"' in data or _leftover(_TOKENS().sub(_blank, data)):
        return ()
    depth = 0
    found: list[Include] = []
    for line in _TOKENS().sub(_keep_strings, data).split(b"\n"):
        words = line.strip().removeprefix(b"%:").removeprefix(b"#").split()
        if not words or not line.strip().startswith((b"#", b"%:")):
            continue
        if words[0].startswith(b"if"):
            depth += 1
        elif words[0] == b"endif":
            depth -= 1
        elif depth == 0:
            found += _scan(line, False).includes
    return tuple(found)


def literal_values(data: bytes, macro: str) -> tuple[tuple[Include, ...], bool]:
    """The file names that the text may define `macro` as, and whether it may define it as anything else."""
    pattern = rb"(?:#|%:|\?\?=)" + _GAP + rb"define" + _GAP + re.escape(macro.encode()) + rb"(?![0-9A-Za-z_])([^\n]*)"
    found: list[Include] = []
    is_other = False
    for match in re.finditer(pattern, _CONTINUED.sub(b"", data), re.DOTALL):
        value = re.fullmatch(_GAP + rb'(?:"([^"\n]*)"|<([^>\n]*)>)' + _GAP + rb"(?://.*)?", match[1], re.DOTALL)
        if value is None:
            is_other = True
        else:
            form = Form.ANGLE if value[1] is None else Form.QUOTE
            found.append(Include(form, os.fsdecode(value[2] if value[1] is None else value[1])))
    return tuple(found), is_other
