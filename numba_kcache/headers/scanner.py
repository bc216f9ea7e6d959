"""Find the includes of a source or header without a preprocessor: a superset of those that a compile executes.

Promise     Each `#include` and `__has_include` that the compiler can execute in this text is reported, in any
            spelling: continued lines, digraphs, trigraphs, comments between the tokens, under any `#if`. Uses of
            macros are marked: `computed` and `asked` (an include, a `__has_include` that names a macro), `opaque` (a
            `__has_include` reached through one), `clock` (`__DATE__`, `__TIME__`).
Method      Continued lines are joined, then every occurrence of the word is examined, in comments and strings
            too: a match there costs a needless dependency, and excluding them would take a tokenizer on 5 MB of
            CCCL. If a mark is set, comments and strings are removed, provided that this can be done with certainty, and
            the marks that were caused by comments and strings alone are cleared.
Not here    The names that macros form (include_names), the files that names lead to (search), and which of them were
            actually read (reading).
Source      NVRTC 13.5 takes `#include`, `#include_next`, `%:include`, with -std=c++11 and 14 `??=include`, and
            `__has_include` under another name (`#define H __has_include`); it refuses `#import`, `#embed`,
            `import`, UTF-16 and blanks between a backslash and the end of its line.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from enum import IntEnum

from ..model import NamedTuple
from ..model.text import decoded, encoded
from .dead_code import live, without_dead
from .pasting import is_pasted, may_paste


class Form(IntEnum):
    """The form of an include, which decides the folders to search (`search`)."""

    QUOTE = 0
    ANGLE = 1
    NEXT = 2
    FORCED = 3


class Include(NamedTuple):
    """One include: `name` as it is spelled between the quotes or brackets."""

    form: Form
    name: str


class Scan(NamedTuple):
    """The includes of a text, and other uses that its code may depend on.

    Args:
        includes: The files it may include.
        has_includes: The files whose existence it may test.
        computed: Operands of includes that are macros, as written; after `NEXT_MARK` those of `#include_next`.
        asked: Operands of `__has_include` that are macros, likewise.
        wrappers: Macros that are `__has_include` under another name; each use of them is a test (`wrapper_uses`).
        is_opaque: It may test for files that cannot be determined from the text.
        has_clock: It may expand to the time of the compile.
        has_location: It may expand to the name of a file.
        has_assert: It may contain an assert, which puts the name of the file into the code as text.
        named: Macros that it defines as the name of a file.
    """

    includes: tuple[Include, ...] = ()
    has_includes: tuple[Include, ...] = ()
    computed: tuple[str, ...] = ()
    wrappers: tuple[str, ...] = ()
    is_opaque: bool = False
    has_clock: bool = False
    has_location: bool = False
    named: tuple[tuple[str, Include], ...] = ()
    has_assert: bool = False
    asked: tuple[str, ...] = ()

    @property
    def asks_files(self) -> bool:
        """The compiler may look at another file because of this text."""
        return bool(
            self.includes or self.has_includes or self.computed or self.asked or self.wrappers or self.is_opaque
        )


NEXT_MARK = "include_next "
"""Prefix of the operands of `#include_next` in `Scan.computed`."""

PLAIN = Scan()
"""The scan of a text that depends on no other file."""

_WORDS = (
    b"include", b"__has", b"__D", b"__T", b"E__", b"P__", b"DATE", b"TIME", b"assert", b"source_loc", b"__builtin_",
    b"FILE",
)  # fmt: skip
"""A text that is not plain contains one of these; `E__` covers `__LINE__` and `__FILE__`, too."""
_LOCATION = (b"_FILE__", b"source_location", b"__builtin_FILE")  # `__LINE__` depends on the text alone
_ASSERT = rb"assert\b(?<![0-9A-Za-z_]assert)"  # begins with the literal, which `re` finds fast
GAP = rb"(?:[ \t\v\f\r]|/\*.*?\*/)*"
_LINE = rb"(?s)#" + GAP + rb"(?:line\b|\d)"
_NAME = rb'(?:"([^"\n]*)"|<([^>\n]*)>)'
_INCLUDE = re.compile(rb"include(_next)?\b" + GAP + rb"(?:(\(" + GAP + rb")?" + _NAME + rb"|(?=([^\n]*)))", re.DOTALL)
_DEFINE = rb"(?s)define" + GAP + rb"([A-Za-z_]\w*)([^\n]*)"
_CONDITION = rb"(?s)(?:#|%:|\?\?=)" + GAP + rb"(?:el)?if\b([^\n]*)"
_NAMED = rb"(?s)define" + GAP + rb"([A-Za-z_]\w*)" + GAP + rb'(?=["<])([^\n]*)'
_FILE_NAME = rb"(?s)" + GAP + _NAME + GAP + rb"(?://.*)?"
_WRAPPER = rb"(?m)[ \t]*#[ \t]*define[ \t]+(\w+)\([ \t]*(\w+)[ \t]*\)[ \t]*__has_include[ \t]*\([ \t]*\2[ \t]*\)[ \t\r]*(?://[^\n]*)?$"
_OPERAND = r"[ \t\v\f\r]*\(((?:[^()]|\((?:[^()]|\([^()]*\))*\))*)\)"
_IN_DEFINITION = rb"(?s)[^\n]*(?:define" + GAP + rb"[A-Za-z_]\w*\(|\*/)"  # of a macro with parameters
_DEFINED = rb"[^\n]*(?:define\b|\*/)"
_HARMLESS = rb"(?:define|undef|ifdef|ifndef|defined[ \t]*\(?)[ \t]*\Z"  # before a name that is not expanded
_TOKENS = rb"""(?s)//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\[^\n']{1,10}|[^'\\\n])'"""


# `##` can join pieces to one of the words searched for, and a macro of another text can do so too. So these pieces are
# searched for as well: each beginning and each end of a word, and its middle, since the ends may be underscores alone.
# No header of CUDA 13 and none of CCCL 2.8 contains one of them as a word.
_CLOCKS = ("__DATE__", "__TIME__", "__TIMESTAMP__")
_PIECES = {part.encode() for word in _CLOCKS for at in range(3, len(word)) for part in (word[:at], word[-at:])}
_LONGEST_PIECE = max(map(len, _PIECES))
_WORD = rb"[A-Za-z_]\w*"
_BEGIN_CLOCK, _END_CLOCK = (b"__D", b"__T"), (b"E__", b"P__")
_FILE = "__FILE__"
_FILE_PIECES = [piece for at in range(3, len(_FILE)) for piece in (_FILE[:at], _FILE[-at:])]
_PASTED_FILE = rf"\b(?:{'|'.join(_FILE_PIECES)}|_?FILE_?|__builtin_(?:F(?:IL?)?)?)\b".encode()
_PASTED_MIDDLE = rb"\b_?(?:DATE|TIME|TIMESTAMP)_?\b"
_UNDERSCORES = rb"\b__?\b"
_PASTED_ASK = rb"\b(?:__has(?:_(?:i(?:n(?:c(?:l(?:ud?)?)?)?)?)?)?|(?:(?:(?:_?h)?a)?s)?_include)\b"
_IN_PASTED_ASK = (b"__has", b"_include")


def scan_includes(text: str | bytes) -> Scan:
    """Scan one text. A text that depends on no other file costs only a few substring searches."""
    data = encoded(text) if isinstance(text, str) else text
    has_trigraphs = b"??/" in data
    is_joined = False
    if b"\\" in data or has_trigraphs:
        before, data = data, joined(data)
        is_joined = data != before
    if not any(map(data.__contains__, _WORDS)) and not may_paste(data):
        return Scan(named=tuple(_named(data)))
    scan = _scan(data)
    is_doubtful = scan.computed or scan.asked or scan.is_opaque or scan.has_clock
    return _without_comments(data, scan, is_joined=is_joined) if is_doubtful and not has_trigraphs else scan


def joined(data: bytes) -> bytes:
    """Join continued lines."""
    if b"??/" in data:
        data = re.sub(rb"\?\?/\r?\n", b"", data)
    data = data.replace(b"\\\n", b"")
    return data.replace(b"\\\r\n", b"") if b"\r" in data else data


def _scan(data: bytes) -> Scan:
    includes: dict[Include, None] = {}
    has_includes: dict[Include, None] = {}
    computed: dict[str, None] = {}
    asked: dict[str, None] = {}
    wrappers: dict[str, None] = {}
    opaque = _holds(data, _IN_PASTED_ASK, _PASTED_ASK) or is_pasted(data, b"__has_include")
    for match, is_question in _occurrences(data):
        following, bracket, quoted, angled, operand = match.groups()
        include = _include(quoted, angled)
        start = data.rfind(b"\n", 0, match.start()) + 1
        if is_question and angled is not None and re.compile(_DEFINED).match(data, start, match.start()):
            opaque = True  # at each use, the text in <> is formed by other macros and arguments
        if include is None:
            spelled, mark = decoded(operand or b"").strip(), NEXT_MARK if following else ""
            if not is_question:
                computed[mark + spelled] = None
            elif wrapper := re.compile(_WRAPPER).match(data, start):
                wrappers[wrapper[1].decode()] = None
            elif re.compile(_HARMLESS).search(data, max(0, match.start() - 80), match.start() - len(b"__has_")):
                pass
            elif (name := re.match(_OPERAND, spelled)) and not _is_in_definition(data, start, match.start()):
                asked[mark + name[1].strip()] = None
            else:
                opaque = True
        elif is_question or bracket is None:
            include = include._replace(form=Form.NEXT) if following else include
            (has_includes if is_question else includes)[include] = None
    return Scan(
        tuple(includes),
        tuple(has_includes),
        tuple(computed),
        tuple(wrappers),
        opaque,
        _has_clock(data),
        any(word in data for word in _LOCATION)
        or _holds(data, (b"##", b"%:%:"), _PASTED_FILE)
        or is_pasted(data, b"__FILE__", b"__builtin_FILE"),
        tuple(_named(data)),
        _holds(data, (b"assert",), _ASSERT),
        tuple(asked),
    )


def _is_in_definition(data: bytes, start: int, end: int) -> bool:
    return re.compile(_IN_DEFINITION).match(data, start, end) is not None


def _has_clock(data: bytes) -> bool:
    if b"__DATE__" in data or b"__TIME" in data:
        return True
    if _has_piece(data) or is_pasted(data, *map(str.encode, _CLOCKS)):
        return True
    return _holds(data, (b"DATE", b"TIME"), _PASTED_MIDDLE) and re.search(_UNDERSCORES, data) is not None


def _has_piece(data: bytes) -> bool:
    """Check whether a text has a piece of a clock's name as a word; one pattern for all takes four times as long."""
    for begin in _BEGIN_CLOCK:
        for each in re.finditer(begin + rb"\w*", data) if begin in data else ():
            if each[0] in _PIECES and not re.match(rb"\w", data[each.start() - 1 : each.start()]):
                return True
    for end in _END_CLOCK:
        for each in re.finditer(end + rb"\b", data) if end in data else ():
            word = re.search(rb"\w*\Z", data[max(0, each.end() - _LONGEST_PIECE - 1) : each.end()])
            if word and word[0] in _PIECES:
                return True
    return False


def _holds(data: bytes, parts: tuple[bytes, ...], pattern: bytes) -> bool:
    return any(part in data for part in parts) and re.search(pattern, data) is not None


def _named(data: bytes) -> Iterator[tuple[str, Include]]:
    for match in re.finditer(_NAMED, data) if b"define" in data else ():
        name = _file_name(match[2])
        if name is not None:
            yield match[1].decode("ascii"), name


def _occurrences(data: bytes) -> Iterator[tuple[re.Match[bytes], bool]]:
    """Yield each `include` that is a directive or part of `__has_include`; True for the latter."""
    for match in _INCLUDE.finditer(data):
        at = match.start()
        if data.endswith(b"__has_", 0, at):
            yield match, True
            continue
        while at and data[at - 1] in b" \t\v\f\r":
            at -= 1
        if data.endswith((b"#", b"%:", b"??=", b"*/"), 0, at):
            yield match, False


def _without_comments(data: bytes, scan: Scan, *, is_joined: bool) -> Scan:
    """Clear the marks of a scan that only comments and strings had caused.

    All marks stay if the text is ambiguous: an unmatched quote (an apostrophe in `#error`), raw strings, and
    line endings that compilers treat differently.
    """
    bare = _bare(data)
    if bare is None:
        left = live(data) if scan.has_clock and not (is_joined and b'R"' in data) else None
        return scan if left is None else scan._replace(has_clock=_has_clock(left))
    stripped = _scan(re.sub(_TOKENS, _keep_strings, data))
    return scan._replace(
        computed=stripped.computed,
        asked=stripped.asked,
        wrappers=tuple(dict.fromkeys((*scan.wrappers, *stripped.wrappers))),  # a comment may have hidden a wrapper
        is_opaque=stripped.is_opaque,
        has_clock=_has_clock(without_dead(bare)),
    )


def _keep_strings(match: re.Match[bytes]) -> bytes:
    token = match.group()
    return b" " if token.startswith(b"/") else token


def _bare(data: bytes) -> bytes | None:
    """Remove comments and strings; None if that cannot be done with certainty."""
    if b'R"' in data or re.search(rb"\r(?!\n)", data):
        return None
    bare = re.sub(_TOKENS, b" ", data)
    if b'"' in bare or re.search(rb"(?<![0-9a-fA-F])'|'(?![0-9a-fA-F])", bare):  # 1'000 is a number
        return None
    return bare


def without_clock(data: bytes) -> bytes | None:
    """Replace `__DATE__` and similar macros by a meaningless name; None if one could still be formed by `##`."""
    found = re.sub(rb"__(?:DATE|TIME|TIMESTAMP)__", b"numba_kcache_no_clock", data)
    return None if scan_includes(found).has_clock else found


def has_certain_clock(source: bytes) -> bool:
    """Check whether a source certainly expands to the compile's time: outside any `#if`, directly or by a macro."""
    data = joined(source)
    if not _has_clock(data) or _bare(data) is None:
        return False
    depth, in_code, macros = 0, [], {}
    for line in re.sub(_TOKENS, b" ", data).split(b"\n"):
        words = line.replace(b"%:", b"#", 1).strip().removeprefix(b"#").split()
        if not line.lstrip().startswith((b"#", b"%:")):
            in_code += [] if depth else [line]
        elif words and words[0].startswith(b"if"):
            depth += 1
        elif words and words[0] == b"endif":
            depth -= 1
        elif len(words) > 1 and words[0] == b"define" and not depth:
            macros[words[1].partition(b"(")[0]] = line
    code = b"\n".join(in_code)
    clocks = {name for name, line in macros.items() if _has_clock(line)}
    words_of = {name: re.findall(_WORD, line)[2:] for name, line in macros.items()}
    while more := {name for name, words in words_of.items() if not clocks.isdisjoint(words)} - clocks:
        clocks |= more
    return _has_clock(code) or not clocks.isdisjoint(re.findall(_WORD, code))


def has_line_directive(data: bytes) -> bool:
    """Check whether a text may give itself another file name by `#line`."""
    if b"%" in data or b"??" in data:  # the # as a digraph or trigraph, perhaps split by a line continuation
        data = joined(data).replace(b"%:", b"#").replace(b"??=", b"#")
    return b"#" in data and re.search(_LINE, joined(data)) is not None


def conditions(data: bytes) -> list[str]:
    """List the conditions of each `#if` and `#elif`."""
    return [match[1].decode("latin-1") for match in re.finditer(_CONDITION, joined(data))]


def defined_names(data: bytes) -> set[bytes]:
    """List the macros that a text may define."""
    return {match[1] for match in re.finditer(_DEFINE, joined(data))}


def unconditional_includes(source: str) -> tuple[Include, ...]:
    """List the includes that the compiler must have executed in a source: literal, and outside any `#if`.

    Empty if comments and strings cannot be removed with certainty.
    """
    data = joined(encoded(source))
    if b"include" not in data or _bare(data) is None:
        return ()
    depth = 0
    found: list[Include] = []
    for line in re.sub(_TOKENS, _keep_strings, data).split(b"\n"):
        words = line.strip().removeprefix(b"%:").removeprefix(b"#").split()
        if not words or not line.strip().startswith((b"#", b"%:")):
            continue
        if words[0].startswith(b"if"):
            depth += 1
        elif words[0] == b"endif":
            depth -= 1
        elif depth == 0:
            found += _scan(line).includes
    return tuple(found)


def macro_values(data: bytes, macros: frozenset[str]) -> dict[str, set[Include | None]]:
    """List what a text may define these macros as: the names of files, or None for anything else."""
    values: dict[str, set[Include | None]] = {}
    if b"define" in data:
        for match in re.finditer(_DEFINE, joined(data)):
            name = match[1].decode("ascii")
            if name in macros:
                values.setdefault(name, set()).add(_file_name(match[2]))
    return values


def wrapper_uses(data: bytes, wrappers: frozenset[str]) -> tuple[set[Include], bool]:
    """List the files that a text tests for through these macros, and whether there may be others."""
    names = [wrapper.encode() for wrapper in sorted(wrappers)]
    if not any(name in data for name in names):
        return set(), False
    data = joined(data)
    pattern = re.compile(rb"\b(?:" + b"|".join(names) + rb")\b(?:" + GAP + rb"\(" + GAP + _NAME + rb")?", re.DOTALL)
    found, is_other = _uses(pattern, data)
    if is_other and _bare(data) is not None and b"??/" not in data:
        _found, is_other = _uses(pattern, re.sub(_TOKENS, _keep_strings, data))
    return found, is_other


def _uses(pattern: re.Pattern[bytes], data: bytes) -> tuple[set[Include], bool]:
    found: set[Include] = set()
    is_other = False
    for match in pattern.finditer(data):
        include = _include(match[1], match[2])
        if include is not None:
            found.add(include)
        elif not re.compile(_HARMLESS).search(data, max(0, match.start() - 80), match.start()):
            is_other = True
    return found, is_other


def _file_name(value: bytes) -> Include | None:
    match = re.fullmatch(_FILE_NAME, value)
    return match and _include(match[1], match[2])


def _include(quoted: bytes | None, angled: bytes | None) -> Include | None:
    if quoted is not None:
        return Include(Form.QUOTE, os.fsdecode(quoted))
    return None if angled is None else Include(Form.ANGLE, os.fsdecode(angled))
