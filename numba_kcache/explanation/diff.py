"""From the components of two requests to the reasons why they have two keys.

Promise     Every component that differs is in at least one reason, and where its values are known, every part that
            differs is in one: each option, each library, each variable. Whatever a store gives back is taken as it
            is; no value of it raises.
Method      One table says what a component is about, another how a component's value falls into named parts. The
            functions and values of a Numba kernel are components of their own, so its `function` as a whole is named
            only where none of them differs.
Not here    The words (explain) and which two requests to compare (misses).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..keys import Difference, diff
from ..model.reason import Reason, ReasonKind
from ..model.request import Origin

Record = tuple[str, str, Any]

KINDS: Mapping[str, ReasonKind] = {
    "kind": ReasonKind.SOURCE_CHANGED,
    "source": ReasonKind.SOURCE_CHANGED,
    "entry": ReasonKind.ENTRY,
    "options": ReasonKind.OPTIONS,
    "target": ReasonKind.TARGET,
    "signature": ReasonKind.SIGNATURE,
    "link": ReasonKind.LINK_INPUT,
    "module": ReasonKind.SOURCE_CHANGED,
    "environment": ReasonKind.ENVIRONMENT,
    "lines": ReasonKind.PLACE,
    "headers": ReasonKind.HEADER_CHANGED,
    "paths": ReasonKind.HEADER_SEARCH,
    "depends": ReasonKind.DEPENDS,
    "compilers": ReasonKind.COMPILER,
    "versions": ReasonKind.VERSION,
}
"""What each component of a key is about. docs/keys.md has a row for each."""

_UNKNOWN = ReasonKind.UNKNOWN

_LIMIT = 160
"""Characters of a value in a reason."""


def kind_of(name: str, kinds: Mapping[str, ReasonKind]) -> ReasonKind:
    """Find what a component is about; UNKNOWN for one of another version of this package.

    Args:
        name: Of the component.
        kinds: Of a kind of kernel, by name or by the start of it.
    """
    found = KINDS.get(name) or kinds.get(name)
    starts = [start for start in kinds if start.endswith((" ", "[")) and name.startswith(start)]
    return found or (kinds[max(starts, key=len)] if starts else ReasonKind.UNKNOWN)


def compare(old: Sequence[Record], new: Sequence[Record], kinds: Mapping[str, ReasonKind]) -> list[Reason]:
    """List every reason why two lists of component records have two keys."""
    differences = diff(old, new)
    whole = KINDS.keys() | kinds.keys()
    has_parts = any(each.name not in whole and kind_of(each.name, kinds) is not _UNKNOWN for each in differences)
    found: list[Reason] = []
    for each in differences:
        if each.name != "function" or not has_parts:
            found += _reasons(each, kind_of(each.name, kinds), "" if each.name in KINDS else each.name)
    return found


def _reasons(difference: Difference, kind: ReasonKind, part: str) -> list[Reason]:
    name, old, new = difference
    before, after = old[2] if old else None, new[2] if new else None
    parts = _options_of(name) if name.startswith("options of ") else _PARTS.get(name)
    if parts is not None and (old is None or before is not None) and (new is None or after is not None):
        was, now = parts(before), parts(after)
        found = [
            Reason(kind, name, each, was.get(each), now.get(each))
            for each in dict.fromkeys((*was, *now))
            if was.get(each) != now.get(each)
        ]
        if found:
            return found
    if kind is ReasonKind.SOURCE_CHANGED and name != "kind":  # its value is a place, or all of the text
        before = after = None
    is_shown = before != after
    return [
        Reason(kind, name, part, _whole(old, before if is_shown else None), _whole(new, after if is_shown else None))
    ]


def _whole(record: Record | None, value: Any) -> str | None:
    """A component's value where it is kept, else its digest."""
    if record is None:
        return None
    return f"sha256 {record[1][:12]}" if value is None else as_text(value)


def as_text(value: Any) -> str:
    """A value as a reader sees it, on one line and not too long."""
    text = value if isinstance(value, str) else json.dumps(value, default=repr)
    text = " ".join(text.split())
    return text if len(text) <= _LIMIT else text[: _LIMIT - 3] + "..."


# -- the parts of a component ------------------------------------------------------------------------------------


def _named(value: Any) -> dict[str, str]:
    """`{name: value}`; what is None is not there."""
    table = value if isinstance(value, dict) else {}
    return {str(name): as_text(each) for name, each in table.items() if each is not None}


def _options(value: Any) -> dict[str, str]:
    table = dict(value) if isinstance(value, dict) else {}
    defines = table.pop("defines", None)
    found = _named(table)
    for pair in defines if isinstance(defines, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            found[f"defines {pair[0]}"] = "defined" if pair[1] is None else as_text(pair[1])
    return found


def _options_of(name: str) -> Callable[[Any], dict[str, str]]:
    """The options of one function under `cuda.jit`."""
    return lambda value: {f"{option} {name.removeprefix('options ')}": text for option, text in _named(value).items()}


def _settings(value: Any) -> dict[str, str]:
    return {f"numba.config.{name}": text for name, text in _named(value).items()}


def _types(value: Any) -> dict[str, str]:
    is_list = isinstance(value, list)
    return {"": f"({', '.join(map(str, value))})" if is_list else as_text(value)} if value is not None else {}


def _target(value: Any) -> dict[str, str]:
    name, through = value if isinstance(value, list) and len(value) == 2 else (value, None)
    found = {} if name is None else {"": as_text(name)}
    return {**found, "through": as_text(through)} if through else found


def _links(value: Any) -> dict[str, str]:
    """By position; the name of CUDA C++ is known."""
    found = {}
    for index, each in enumerate(value if isinstance(value, list) else ()):
        if isinstance(each, list) and len(each) == 3:
            kind, name, digest = map(str, each)
            found[f"link[{index}] {name or kind}"] = f"sha256 {digest[:12]}"
    return found


def _positions(value: Any) -> dict[str, str]:
    return {f"depends[{n}]": as_text(each) for n, each in enumerate(value if isinstance(value, list) else ())}


def _place(value: Any) -> dict[str, str]:
    names = ("file", "line", "base folder", "working directory")
    return dict(zip(names, map(as_text, value), strict=False)) if isinstance(value, list) else {}


_PARTS: Mapping[str, Callable[[Any], dict[str, str]]] = {
    "entry": _named,
    "options": _options,
    "target": _target,
    "link": _links,
    "environment": _named,
    "numba settings": _settings,
    "numba toolkit": _settings,
    "argument types": _types,
    "lines": _place,
    "depends": _positions,
    "compilers": _named,
    "versions": _named,
}


# -- lines -------------------------------------------------------------------------------------------------------


def with_line(reason: Reason, old: str | None, new: str, origin: Origin) -> Reason:
    """The reason with the first line that differs, and its place in the user's file.

    Args:
        reason: About a source or function that changed.
        old: Its text when it was stored; None where that is not known.
        new: Its text now.
        origin: The file that shows it, and the line at which it starts there; line 0 where that is not known.
    """
    is_python = reason.component != "source"
    before, after = _telling_lines(old or "", is_python), _telling_lines(new, is_python)
    if old is None:
        return reason._replace(where=_where(origin, 0))
    pairs = enumerate(zip(before, after, strict=False))
    same = next((index for index, ((_, was), (_, now)) in pairs if was != now), min(len(before), len(after)))
    if same == len(before) == len(after):
        return reason._replace(where=_where(origin, 0))  # the text is the same: what it means is not
    lost, found = before[same : same + 1], after[same : same + 1]
    index = found[0][0] if found else after[-1][0] if after else 0
    lines = [each[0][1].strip() if each else None for each in (lost, found)]
    if lines[0] == lines[1]:  # they differ in the space around them
        lines = [repr(each[0][1]) for each in (lost, found)]
    was_text, now_text = (each if each is None else each[:_LIMIT] for each in lines)
    return reason._replace(old=was_text, new=now_text, where=_where(origin, index))


def _telling_lines(text: str, is_python: bool) -> list[tuple[int, str]]:
    """(index, line); without those that say nothing in Python."""
    lines = enumerate(text.splitlines())
    if not is_python:
        return list(lines)
    return [(index, line) for index, line in lines if line.strip() and not line.lstrip().startswith("#")]


def _where(origin: Origin, index: int) -> str:
    if origin.line:
        return f"{origin.path}:{origin.line + index}" if origin.path else f"line {origin.line + index}"
    return f"{origin.path}, line {index + 1} of the source" if origin.path else f"line {index + 1}"
