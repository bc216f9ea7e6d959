"""Keys: plain values as canonical bytes, their digests, and the named inputs of a request.

Promise     The key is a pure function of the ordered (name, value) pairs: any change of any component changes it,
            and nothing else does. Encoding is injective over None, bool, int, float, str, bytes, list, tuple and dict
            with str keys: 1, True, 1.0 and "1" differ; a tuple equals a list; dicts do not depend on their order.
Method      <value> ::= <tag: 1 byte> <length of body: 8 bytes, big endian> <body>. A container's body is the
            concatenation of its encoded members, so no separator can be forged by content. key = sha256 over schema,
            then each name and encoded value. sha256 rather than blake2b: hosts in FIPS mode switch blake2b off. Up to
            256 KiB are hashed by CPython's own code, since importing hashlib loads OpenSSL (4 ms).
Not here    Reading files, versions or environment: front ends and the engine pass the values in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from .model import NamedTuple

if TYPE_CHECKING:
    from _hashlib import HASH

Plain: TypeAlias = "bool | int | float | str | bytes | list[Plain] | tuple[Plain, ...] | dict[str, Plain] | None"


def encode(value: Any) -> bytes:
    """Write the canonical bytes of a value.

    Raises:
        TypeError: The value is or contains one of another type.
    """
    body = b""
    members: Iterable[Any] = ()
    kind = type(value)
    if kind is str:
        tag, body = b"s", value.encode("utf-8", "surrogatepass")
    elif kind is bytes:
        tag, body = b"b", value
    elif kind is tuple or kind is list:
        tag, members = b"l", value
    elif value is None:
        tag, body = b"n", b""
    elif kind is bool:
        tag, body = b"t", b"1" if value else b"0"
    elif kind is int:
        tag, body = b"i", b"%d" % value
    elif kind is float:
        tag, body = b"f", value.hex().encode()
    elif kind is dict:
        tag, members = b"d", [each for key in sorted(value) for each in (key, value[key])]
    else:
        raise TypeError(f"values of type {kind.__name__} cannot be in a key")
    if members:
        parts = []
        for each in members:  # most are str, encoded inline: a call would take longer than the encoding
            if type(each) is str:
                text = each.encode("utf-8", "surrogatepass")
                parts.append(b"s" + len(text).to_bytes(8, "big") + text)
            elif each is None:
                parts.append(NOTHING)
            else:
                parts.append(encode(each))
        body = b"".join(parts)
    return tag + len(body).to_bytes(8, "big") + body


NOTHING = b"n" + bytes(8)
"""The canonical bytes of None."""


# -- digests ---------------------------------------------------------------------------------------------------------

try:
    from _sha2 import sha256 as _own  # type: ignore[import-not-found]  # CPython 3.12 and later
except ImportError:
    try:
        from _sha256 import sha256 as _own  # type: ignore[import-not-found]
    except ImportError:
        _own = None

_OWN_LIMIT_BYTES = 256 << 10
"""Size up to which CPython's own code is used, which takes 0.6 ms for 200 KiB."""


def sha256(data: bytes) -> HASH:
    """The sha256 object of `data`, with the interface of hashlib's."""
    digest: Any = _own
    if digest is None or len(data) > _OWN_LIMIT_BYTES:
        from hashlib import sha256 as digest
    found: HASH = digest(data, usedforsecurity=False)
    return found


# -- components ------------------------------------------------------------------------------------------------------

SCHEMA = 5
"""Number of the key schema, incremented whenever the same request would get another key; CHANGELOG.md states it."""

CLEAR_LIMIT_BYTES = 2048
"""Encoded size up to which a component's value itself is recorded, for explanations."""

COVERED = "covered by depends="
"""The value of a component for an input that cannot be read, and that `depends=` represents."""

_VEILED = frozenset(("environment", "depends"))
"""Components whose text may be a secret; so may be the text of a Numba kernel's components named `depends[...`."""

OF_ONE_REQUEST = frozenset(("target", "argument types"))
"""The components that may differ between requests for the same kernel."""

_PREFIX = encode("numba_kcache") + encode(SCHEMA)


class Component(NamedTuple):
    """One named input of a key.

    Args:
        name: Its name, unique within a request.
        encoded: The canonical bytes of name and value.
        value: The value, for explanations.
    """

    name: str
    encoded: bytes
    value: Plain = None

    @property
    def digest(self) -> str:
        """sha256 of the encoded bytes, as 64 hexadecimal digits."""
        return sha256(self.encoded).hexdigest()

    def record(self) -> tuple[str, str, Any]:
        """(name, digest, the value itself where it is small), stored with an entry.

        Text that may be a secret is replaced by the start of its digest, which suffices to compare it.
        """
        value = self.value if len(self.encoded) <= CLEAR_LIMIT_BYTES else None
        is_veiled = self.name in _VEILED or self.name.startswith("depends[")
        return self.name, self.digest, _veiled(value) if is_veiled else value


def component(name: str, value: Plain) -> Component:
    """Make the component of one named value."""
    return components({name: value})[0]


def components(values: Mapping[str, Plain]) -> tuple[Component, ...]:
    """Make the components of several named values, in order."""
    made = []
    for name, value in values.items():
        text = name.encode()
        if type(value) is str:
            of_value = value.encode("utf-8", "surrogatepass")
            encoded = b"s" + len(of_value).to_bytes(8, "big") + of_value
        else:
            encoded = encode(value)
        fields = name, b"s" + len(text).to_bytes(8, "big") + text + encoded, value
        made.append(tuple.__new__(Component, fields))  # its own constructor takes three times as long
    return tuple(made)


def digest_of(value: Plain) -> str:
    """sha256 of the canonical bytes of a value, as 64 hexadecimal digits."""
    return sha256(encode(value)).hexdigest()


def names_a_compiler(name: str) -> bool:
    """Check whether a component names the compilers: `compilers`, `versions`, or a front end's own `... toolkit`."""
    return name in ("compilers", "versions") or name.endswith(" toolkit")


def _veiled(value: Plain) -> Plain:
    if isinstance(value, dict):
        return {name: _veiled(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_veiled(each) for each in value]
    return f"sha256 {sha256(encode(value)).hexdigest()[:12]}" if isinstance(value, (str, bytes)) else value


def derive(components: Iterable[Component]) -> str:
    """The key of these components, as 64 hexadecimal digits. Their order counts."""
    encoded = b"".join([each[1] for each in components])
    return sha256(_PREFIX + encoded).hexdigest()


def family_of(components: Iterable[Component]) -> str:
    """Name the manifest that lists the entries for these components, of any compiler."""
    return derive(each for each in components if not names_a_compiler(each.name))
