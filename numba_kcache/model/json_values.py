"""Parse untrusted JSON within limits, and check the result against an expected shape.

Promise     `read_json` takes no more memory than its limits allow; each number that it returns is finite and fits in
            64 bits. Anything else is a ValueError.
Not here    The expected shapes, which callers pass to `fits`; and the header of an entry (store).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_VALUES = 1 << 20
"""Limit of the values in one text: an empty list, two bytes of JSON, takes 64 in memory."""

MAX_TEXT_BYTES = 16 << 20

_MAX_INTEGER = (1 << 64) - 1


def read_json(text: bytes) -> Any:
    """Read a JSON value of any shape.

    Raises:
        ValueError: The text is not JSON, or exceeds the limits.
    """
    if len(text) > MAX_TEXT_BYTES or text.count(b"[") + text.count(b"{") + text.count(b",") > MAX_VALUES:
        raise ValueError("it holds too many values")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not is_in_range(value):
        raise ValueError("it holds a number out of range")
    return value


def is_in_range(value: Any) -> bool:
    """Check whether every number in a JSON value is finite and fits in 64 bits."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) is dict:
            waiting += each.values()
        elif type(each) is list:
            waiting += each
        elif (type(each) is int and abs(each) > _MAX_INTEGER) or (type(each) is float and each - each != 0):
            return False
    return True


def is_unicode(value: Any) -> bool:
    """Check whether no string in a JSON value holds half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


Shape = Any
"""A type; `[shape]` for a list of these; `{str: shape}` for a mapping of names to these; `(a, b)` for a list of exactly
these; `{"name": shape}` for a mapping that has these names, and maybe others; or a predicate."""


def fits(value: Any, shape: Shape) -> bool:
    """Check whether a JSON value has a shape."""
    if isinstance(shape, type):
        return type(value) is shape or (shape is float and type(value) is int)
    if isinstance(shape, list):
        return type(value) is list and all(fits(each, shape[0]) for each in value)
    if isinstance(shape, tuple):
        return type(value) is list and len(value) == len(shape) and all(map(fits, value, shape))
    if isinstance(shape, dict):
        if type(value) is not dict:
            return False
        if str in shape:
            return all(fits(each, shape[str]) for each in value.values())
        return all(name in value and fits(value[name], each) for name, each in shape.items())
    tells: Callable[[Any], bool] = shape
    return bool(tells(value))
