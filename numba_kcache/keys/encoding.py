"""Write any plain value as bytes, so that two values have the same bytes only if they are the same.

Promise     Injective over None, bool, int, float, str, bytes, list or tuple, and dict with str keys.
            1, True, 1.0 and "1" differ; a tuple equals a list; dicts do not depend on their order.
Method      <value> ::= <tag: 1 byte> <length of body: 8 bytes, big endian> <body>. A container's body is
            the concatenation of its encoded members, so no separator can be forged by content.
Not here    Sets and objects: the caller says what they are made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | tuple[Plain, ...] | dict[str, Plain] | None"


def encode(value: Any) -> bytes:
    """Write the canonical bytes of a value.

    Raises:
        TypeError: A value of another type is inside.
    """
    body: bytes
    kind = type(value)
    if kind is str:
        tag, body = b"s", value.encode("utf-8", "surrogatepass")
    elif kind is bytes:
        tag, body = b"b", value
    elif kind is tuple or kind is list:
        tag, body = b"l", _joined(value)
    elif value is None:
        tag, body = b"n", b""
    elif kind is bool:
        tag, body = b"t", b"1" if value else b"0"
    elif kind is int:
        tag, body = b"i", b"%d" % value
    elif kind is float:
        tag, body = b"f", value.hex().encode()
    elif kind is dict:
        tag, body = b"d", _joined([each for key in sorted(value) for each in (key, value[key])])
    else:
        raise TypeError(f"cannot encode a {kind.__name__} into a key")
    return tag + len(body).to_bytes(8, "big") + body


def _joined(members: Iterable[Any]) -> bytes:
    """The bytes of one member after another. Most are text: a call for each would take longer than its encoding."""
    parts = []
    for each in members:
        if type(each) is str:
            text = each.encode("utf-8", "surrogatepass")
            parts.append(b"s" + len(text).to_bytes(8, "big") + text)
        elif each is None:
            parts.append(NOTHING)
        else:
            parts.append(encode(each))
    return b"".join(parts)


NOTHING = b"n" + bytes(8)
"""The canonical bytes of None."""


def frame(members: Iterable[bytes]) -> bytes:
    """Write the canonical bytes of a list whose members are encoded already."""
    body = b"".join(members)
    return b"l" + len(body).to_bytes(8, "big") + body
