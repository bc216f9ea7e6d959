"""Point a compiler's message at the line of the user's own file.

Promise     A position is rewritten only where the file really shows the source there; otherwise the log
            stays as the compiler wrote it.
Method      The source's lines are laid over the file at each offset from the definition on; the offset at
            which most lines agree wins, if at least half of them do. That serves plain, raw, indented,
            dedented and formatted strings alike, and needs no parsing of Python.
"""

from __future__ import annotations

import linecache
import re

from ..model.request import Origin


def first_line(source: str, origin: Origin) -> int | None:
    """The line of `origin.path` that holds the first line of `source`; None where the file does not show it."""
    if origin.is_whole_file:
        return 1
    if not origin.path:
        return None
    shown = [line.strip() for line in linecache.getlines(origin.path)]
    wanted = [(index, line.strip()) for index, line in enumerate(source.splitlines()) if line.strip()]
    best, best_score = None, 0
    for start in range(max(origin.line - 1, 0), len(shown)):
        if wanted and start + wanted[0][0] >= len(shown):
            break
        score = sum(_agrees(text, shown, start + index) for index, text in wanted)
        if score > best_score:
            best, best_score = start + 1, score
    return best if best_score * 2 >= len(wanted) else None


def _agrees(text: str, shown: list[str], index: int) -> bool:
    """Whether the file shows `text` on that line, perhaps after an opening or before a closing quote."""
    return index < len(shown) and (shown[index] == text or (len(text) > 3 and text in shown[index]))


def remap(log: str, program_name: str, source: str, origin: Origin) -> str:
    """The log with each `program_name(line)` turned into `file(line)` of the user's file, where it is known."""
    start = first_line(source, origin)
    if start is None:
        return log

    def place(match: re.Match[str]) -> str:
        return f"{origin.path}({int(match[1]) + start - 1})"

    log = re.sub(rf"(?m)(?:^|(?<=[\s\"])){re.escape(program_name)}\((\d+)\)", place, log)
    return log.replace(f'"{program_name}"', f'"{origin.path}"')


def summary(log: str) -> str:
    """The first error line of a log, or its first line."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b", line)]
    return (errors or lines or ["the compiler gave no reason"])[0].strip()


def excerpt(log: str, limit: int = 20) -> str:
    """At most a screenful of a log."""
    lines = log.splitlines()
    if len(lines) <= limit:
        return log
    return "\n".join([*lines[:limit], f"... {len(lines) - limit} more lines in .log"])
