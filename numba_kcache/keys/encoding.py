"""Write any plain value as bytes, so that two values have the same bytes only if they are the same.

Promise     Injective over None, bool, int, float, str, bytes, list or tuple, and dict with str keys.
            1, True, 1.0 and "1" differ; a tuple equals a list; dicts do not depend on their order.
Method      <value> ::= <tag: 1 byte> <length of body: 8 bytes, big endian> <body>. A container of scalars is
            written as Python's `ascii` writes it; another's body is the concatenation of its encoded members, so no
            separator can be forged by content.
Not here    Sets and objects: the caller says what they are made of.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | tuple[Plain, ...] | dict[str, Plain] | None"


_SCALARS = frozenset((str, bytes, int, bool, float, type(None)))


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
        if _SCALARS.issuperset(map(type, value)):  # most containers: Python's own notation tells all of them apart
            tag, body = b"a", ascii(tuple(value)).encode()
        else:
            tag, body = b"l", b"".join(map(encode, value))
    elif kind is dict and {str}.issuperset(map(type, value)):
        if _SCALARS.issuperset(map(type, value.values())):
            tag, body = b"m", ascii(sorted(value.items())).encode()
        else:
            tag, body = b"d", b"".join([encode(key) + encode(value[key]) for key in sorted(value)])
    elif kind in _SCALARS:
        tag, body = b"v", ascii(value).encode()
    else:
        raise TypeError(f"cannot encode a {kind.__name__} into a key")
    return tag + len(body).to_bytes(8, "big") + body
