"""List the reasons why two requests have different keys, from their components.

Promise     Every component that differs has at least one reason. If both its values are known, every part that differs
            has a reason: each option, each library, each variable. No value from a store raises an exception here.
Method      A table has the kind of reason for each component; another lists those whose values have named parts. The
            functions and values of a Numba kernel are components of their own, so its `function` as a whole is named
            only if none of them differs.
Not here    The words (text), and the choice of the two requests (nearest).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from ..errors import in_cells
from ..model import NamedTuple, Origin
from ..model.reason import Reason, ReasonKind
from ..observe.text import MOST_CHARACTERS, as_text
from .history import KINDS, ComponentRecord

_WITH_PARTS = frozenset((
    "entry", "options", "target", "link", "environment", "argument types", "lines", "depends", "compilers", "versions",
))  # fmt: skip
_PARTS_BY_PLACE = {"target": ("", "PTX"), "lines": ("file", "line", "base folder", "working directory")}


class Difference(NamedTuple):
    """A component that differs between two requests, with its record in each; None for a request that lacks it."""

    name: str
    old: ComponentRecord | None
    new: ComponentRecord | None


def diff(old: Sequence[ComponentRecord], new: Sequence[ComponentRecord]) -> tuple[Difference, ...]:
    """Every component that differs between two lists of records, in the order of `new`, then those only in `old`."""
    before = {each[0]: each for each in old}
    after = {each[0] for each in new}
    changed = [
        Difference(each[0], before.get(each[0]), each)
        for each in new
        if each[0] not in before or before[each[0]][1] != each[1]
    ]
    gone = [Difference(each[0], each, None) for each in old if each[0] not in after]
    return tuple(changed + gone)


def kind_of(name: str, kinds: Mapping[str, ReasonKind]) -> ReasonKind:
    """The kind of reason for a component; UNKNOWN for a component that only another version of this package has.

    Args:
        name: Name of the component.
        kinds: The kinds that a front end adds, by name of the component or by a prefix of it.
    """
    found = KINDS.get(name) or kinds.get(name)
    starts = [start for start in kinds if start.endswith((" ", "[")) and name.startswith(start)]
    return found or (kinds[max(starts, key=len)] if starts else ReasonKind.UNKNOWN)


def compare(
    old: Sequence[ComponentRecord], new: Sequence[ComponentRecord], kinds: Mapping[str, ReasonKind]
) -> list[Reason]:
    """List every reason why two lists of component records have different keys."""
    differences, whole = diff(old, new), {*KINDS, *kinds}
    parts = [each.name for each in differences if each.name not in whole]
    has_parts = any(kind_of(name, kinds) is not ReasonKind.UNKNOWN for name in parts)
    found: list[Reason] = []
    for each in differences:
        if each.name != "function" or not has_parts:
            part = "" if each.name in KINDS else each.name
            is_given = part.startswith("component[")  # named by a caller of get_or_build
            found += _reasons(each, kind_of(each.name, kinds), part[10:-1] if is_given else part)
    return found


def _reasons(difference: Difference, kind: ReasonKind, part: str) -> list[Reason]:
    name, old, new = difference
    before, after = old[2] if old else None, new[2] if new else None
    if (old is None or before is not None) and (new is None or after is not None):
        was, now = _parts(name, before), _parts(name, after)
        changed = [each for each in dict.fromkeys((*was, *now)) if was.get(each) != now.get(each)]
        if changed:
            return [Reason(kind, name, each, was.get(each), now.get(each)) for each in changed]
    # a whole text is too long to show, and equal values say nothing: the digests are shown
    if before == after or (kind is ReasonKind.SOURCE_CHANGED and name != "kind"):
        before = after = None
    return [Reason(kind, name, part, _whole(old, before), _whole(new, after))]


def _parts(name: str, value: Any) -> dict[str, str]:
    """Divide a component's value into named parts, without those that are None; empty if it has no parts."""
    prefix = f"{name.split()[0]}.config." if name.endswith((" settings", " toolkit")) else ""
    suffix = name.removeprefix("options") if name.startswith("options of ") else ""
    if value is None or not (prefix or suffix or name in _WITH_PARTS):
        return {}
    if name == "argument types" and isinstance(value, list):
        value = f"({', '.join(map(str, value))})"
    elif name == "link" and isinstance(value, list):
        value = dict(map(_link_input, enumerate(value)))
    elif isinstance(value, list):
        names = _PARTS_BY_PLACE.get(name) or [f"{name}[{index}]" for index in range(len(value))]
        value = dict(zip(names, value, strict=False))
        for folder in [each for each in value if name == "depends" and isinstance(value[each], dict)]:
            value |= {f"{folder}/{file}": digest for file, digest in value.pop(folder).items()}
    elif name == "options" and isinstance(value, dict):
        value = {**value, "defines": None, **_defines(value.get("defines"))}
    table = value if isinstance(value, dict) else {"": value}
    return {f"{prefix}{part}{suffix}": as_text(each) for part, each in table.items() if each is not None}


def _defines(pairs: Any) -> dict[str, Any]:
    """Name each macro; an item that is not a pair (in a forged record) is left out."""
    known = [each for each in pairs if isinstance(each, list) and len(each) == 2] if isinstance(pairs, list) else []
    return {f"defines {macro}": "defined" if text is None else text for macro, text in known}


def _link_input(numbered: tuple[int, Any]) -> tuple[str, Any]:
    """Name a link input by its position and file; only CUDA C++ records the file."""
    index, value = numbered
    if not isinstance(value, list) or len(value) != 3:
        return f"link[{index}]", value
    kind, name, digest = value
    return f"link[{index}] {name or kind}", f"sha256 {str(digest)[:12]}"


def _whole(record: ComponentRecord | None, value: Any) -> str | None:
    """Show a component's value if it is recorded, else its digest."""
    if record is None:
        return None
    return f"sha256 {record[1][:12]}" if value is None else as_text(value)


# -- lines -------------------------------------------------------------------------------------------------------


def with_line(reason: Reason, old: str | None, new: str, origin: Origin) -> Reason:
    """Add to a reason the first line that differs, and its place in the user's file.

    Args:
        reason: About a source or function that changed.
        old: Its text when it was stored; None if that is not known.
        new: Its text now.
        origin: The file that contains it, and the line at which it starts there; line 0 if that is not known.
    """
    is_python = reason.component != "source" and reason.kind is ReasonKind.SOURCE_CHANGED
    before, after = _counted_lines(old or "", is_python), _counted_lines(new, is_python)
    changed = ((was, now) for was, now in zip_longest(before, after) if not (was and now and was[1] == now[1]))
    was, now = next(changed, (None, None))
    if old is None or was is now:  # the text is the same: a value that it refers to differs
        return reason._replace(where=_where(origin, 0))
    index = now[0] if now else after[-1][0] if after else 0
    lines = [each and each[1].strip()[:MOST_CHARACTERS] for each in (was, now)]
    if lines[0] == lines[1]:  # they differ only in the space around them, or behind the limit
        lines = [each and repr(each[1])[:MOST_CHARACTERS] for each in (was, now)]
    return reason._replace(old=lines[0], new=lines[1], where=_where(origin, index))


def _counted_lines(text: str, is_python: bool) -> list[tuple[int, str]]:
    """List (index, line); in Python without blank ones and comments."""
    lines = enumerate(text.splitlines())
    return [each for each in lines if not is_python or (each[1].strip() and not each[1].lstrip().startswith("#"))]


def _where(origin: Origin, index: int) -> str:
    path, line = origin.path, origin.line + index
    if not origin.line:
        return in_cells(f"{path}, line {index + 1} of the source" if path else f"line {index + 1}", path)
    return in_cells(f"{path}:{line}", path) if path else f"line {line}"
