"""Rewrite positions in a compiler's log to lines of the user's file.

Promise     A position names a line of the user's file only where the source was found in that file; otherwise it
            stays a line of the source.
Method      The lines of the source are aligned with those of the file, as a diff does: first from the definition on.
            Quotes, braces and escapes are compared in one spelling, so this works for plain, raw, indented, dedented,
            concatenated and formatted strings, and needs no parsing of Python. Lines between two that are aligned
            follow these if equally many are between them in the file.
"""

from __future__ import annotations

import functools
import linecache
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from ..model import Origin

_SHORT = 3
"""Length up to which a line (`}`, `);`) is in too many places to show one."""

_LONG = 12
"""Length from which a line counts twice: other lines must have the same distance from their places in the file."""

_BEFORE = r"(?:.*[=(,+\s])?[rRfFuU]{0,2}"
"""The text of Python before a string literal."""

_LITERAL = r"(?:return\b|[\w.]+ *=|\+)?[\s(]*[rRfFuU]{0,2}(['\"])(.*?)(?:\\n)?\1[\s),+]*"
"""A line with one string literal of Python: its quote, and its content."""

_SHOWN_LINES = 20
"""Most lines of a log that an error shows."""

MAX_LOG_BYTES = 1 << 20
"""Limit of a log that is stored with the code; the log of a template error can have hundreds of MB."""


def _shown_lines(source: str, origin: Origin) -> dict[int, int]:
    """The line of the user's file for each line of the source that it shows; both count from 0."""
    lines = [_spelled(line) for line in source.splitlines()]
    file = linecache.getlines(origin.path) if origin.path else []
    found, enough = dict[int, int](), sum(map(bool, lines)) / 2
    for start in (max(origin.line - 1, 0), 0):
        shown = [(text, place) for place in range(start, len(file)) for text in _content(file[place])]
        pairs = _aligned(lines, [text for text, _place in shown])
        found = max(found, {index: shown[at][1] for index, at in pairs.items()}, key=len)
        if len(found) >= enough:
            break
    return found


def _aligned(lines: Sequence[str], shown: Sequence[str]) -> dict[int, int]:
    from difflib import SequenceMatcher  # here: not needed if a compile succeeds

    blocks = SequenceMatcher(None, lines, shown).get_matching_blocks()
    pairs = {each.a + at: each.b + at for each in blocks for at in range(each.size) if lines[each.a + at]}
    weights = {index: (len(lines[index]) > _SHORT) + (len(lines[index]) >= _LONG) for index in pairs}
    anchors = Counter(place - index for index, place in pairs.items() for _ in range(weights[index]))
    enough = min(2, sum(len(line) > _SHORT for line in lines))
    pairs = {index: place for index, place in pairs.items() if anchors[place - index] >= enough}
    for before, after in pairwise(sorted(pairs)):
        if pairs[after] - pairs[before] == after - before:
            pairs |= {index: pairs[before] + index - before for index in range(before + 1, after)}
    return pairs


@functools.lru_cache(maxsize=1 << 13)  # the sources of one file are mostly compiled in turn
def _content(line: str) -> list[str]:
    """The lines of a source that a line of the file shows: one, or those in a string literal."""
    before, quotes, after = re.sub(r"'''", '"""', line).strip().partition('"""')
    if quotes and after and re.fullmatch(_BEFORE, before):
        before = after.partition('"""')[0]
    literal = re.fullmatch(_LITERAL, before)
    return [_spelled(each) for each in (literal[2].split("\\n") if literal else [before])]


def _spelled(line: str) -> str:
    """A line with one brace for two and without escapes, as in a formatted string and in its text."""
    line = line.strip()
    for written, meant in (("{{", "{"), ("}}", "}"), ("\\\\", "\\"), ('\\"', '"'), ("\\'", "'")):
        line = line.replace(written, meant)
    return line


def first_line(source: str, origin: Origin) -> int | None:
    """The line of `origin.path` that holds the first line of `source`; None unless it shows at least half of them."""
    if origin.is_whole_file:
        return 1
    places = {} if origin.is_cell else _shown_lines(source, origin)
    wanted = sum(bool(line.strip()) for line in source.splitlines())
    for offset, count in Counter(place - index for index, place in places.items()).most_common(1):
        return offset + 1 if count * 2 >= wanted and offset >= origin.line - 1 else None
    return None


def for_user(log: str, program_name: str, source: str, origin: Origin, label: str) -> str:
    """Rewrite a log for the user.

    Positions become lines of the user's file or, where these are unknown, "line N of the source of <label>".

    Args:
        log: As the compiler wrote it.
        program_name: The compiler's name for the source, which is not the name of a file.
        source: The source that was compiled.
        origin: Its place in the user's files.
        label: Its name in messages.
    """
    log = remap(log, program_name, source, origin)
    if origin.is_whole_file:
        return log
    log = re.sub(
        rf"(?m)(?:^|(?<=[\s\"])){re.escape(program_name)}\((\d+)\)",
        lambda match: f"line {match[1]} of the source of {label}",
        log,
    )
    return log.replace(f'"{program_name}"', f"the source of {label}")


def remap(log: str, program_name: str, source: str, origin: Origin) -> str:
    """The log with each `program_name(line)` turned into `file(line)` of the user's file, if it is known."""
    lines = _user_lines(source, origin)
    if not lines:
        return log
    name = re.escape(program_name)

    def placed(text: str, pattern: str, before: str, after: str) -> str:
        def place(match: re.Match[str]) -> str:
            line = lines.get(int(match[1]))
            return match[0] if line is None else f"{before}{line}{after}"

        return re.sub(pattern, place, text)

    in_words, rewritten, is_ours = ("at line ", f' of "{origin.path}"'), [], False
    for text in log.splitlines():
        if re.match(r"\S.*\(\d+\): ", text):
            is_ours = text.startswith(f"{program_name}(")
        text = placed(text, rf"(?:^|(?<=[\s\"])){name}\((\d+)\)", f"{origin.path}(", ")")
        text = placed(text, rf'\bat line (\d+) of "{name}"', *in_words)
        rewritten.append(placed(text, r"\bat line (\d+)$", *in_words) if is_ours else text)
    return "\n".join(rewritten).replace(f'"{program_name}"', f'"{origin.path}"')


def remap_ptx(log: str, source: str, origin: Origin) -> str:
    """The log of ptxas with the lines of the user's PTX turned into lines of the file that holds it."""
    lines, text = _user_lines(source, origin), source.splitlines()

    def place(match: re.Match[str]) -> str:
        number = int(match[1])
        where = f"{origin.path}({lines[number]})" if number in lines else f"line {number}"
        shown = f"\n  {text[number - 1].strip()}" if 0 < number <= len(text) else ""
        return f"{where}: {match[2]}: {match[3]}{shown}"

    return re.sub(r"(?m)^ptxas [^,\n]*, line (\d+); (\w+)\s*: (.*)$", place, log)


def _user_lines(source: str, origin: Origin) -> dict[int, int]:
    """The line of the user's file for each line of the source, if known; both are counted from 1."""
    if origin.is_whole_file:
        return {number: number for number in range(1, source.count("\n") + 3)}
    return {index + 1: place + 1 for index, place in _shown_lines(source, origin).items()}


def summary(log: str) -> str:
    """The first error line of a log, or its first line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)]
    return (errors or lines or ["the compiler gave no reason"])[0].strip()


def bounded(log: bytes) -> bytes:
    """Cut a log down to `MAX_LOG_BYTES`, keeping its beginning and its end."""
    if len(log) <= MAX_LOG_BYTES:
        return log
    half = MAX_LOG_BYTES // 2
    return log[:half] + b"\n... %d bytes left out ...\n" % (len(log) - 2 * half) + log[-half:]


def excerpt(log: str) -> str:
    """At most `_SHOWN_LINES` of a log; if it is longer, errors come first."""
    lines = log.splitlines()
    if len(lines) > _SHOWN_LINES:
        blocks = re.split(r"\n[ \t]*\n", log)
        blocks.sort(key=lambda block: re.search(r"\b(?:error|fatal)\b", block.partition("\n")[0]) is None)
        lines = "\n\n".join(blocks).splitlines()
    more = [f"... {len(lines) - _SHOWN_LINES} more lines in .log"] if len(lines) > _SHOWN_LINES else []
    return "\n".join([*lines[:_SHOWN_LINES], *more])
