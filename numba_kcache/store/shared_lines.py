"""Encode a manifest with each distinct line once: its variants list mostly the same header files."""

from __future__ import annotations

import json
from typing import Any

from .entry import Header, Variant, json_of

MAX_SHARED_LINES = 1 << 22
"""Limit of the lines that the variants of a manifest refer to, summed over all variants."""


def share(variants: list[Variant]) -> Header:
    """Replace each list of lists (lines) in the variants by `{"lines": [number, ...]}`, and add each distinct line."""
    lines: dict[str, int] = {}
    known: dict[int, int] = {}  # by id(): a manifest that was read has one object for equal lines

    def number(line: Any) -> int:
        if id(line) not in known:
            known[id(line)] = lines.setdefault(json_of(line), len(lines))
        return known[id(line)]

    def pack(value: Any) -> Any:
        if type(value) is dict:
            is_flat = not any(type(each) in (dict, list, tuple) for each in value.values())
            return value if is_flat else {name: pack(each) for name, each in value.items()}
        if type(value) not in (list, tuple):
            return value
        if value and all(type(each) in (list, tuple) for each in value):
            return {"lines": [*map(number, value)]}
        return [pack(each) for each in value]

    packed = [pack(each) for each in variants]
    return {"variants": packed, "lines": [json.loads(each) for each in lines]}


def unshare(variants: list[Variant], lines: list[Any]) -> list[Variant]:
    """Undo `share`: replace the numbers by their lines.

    Raises:
        TypeError, IndexError, RecursionError: The variants are malformed, or refer to more than `MAX_SHARED_LINES`.
    """
    remaining = [MAX_SHARED_LINES]
    return [_unshared(each, lines, remaining) for each in variants]


def _unshared(value: Any, lines: list[Any], remaining: list[int]) -> Any:
    if type(value) is dict:
        if value.keys() == {"lines"}:
            remaining[0] -= len(value["lines"])
            if remaining[0] < 0:
                raise IndexError
            return [lines[number] for number in value["lines"]]
        return {name: _unshared(each, lines, remaining) for name, each in value.items()}
    return [_unshared(each, lines, remaining) for each in value] if type(value) is list else value
