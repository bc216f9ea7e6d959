"""The named inputs of a request, and the key they make.

Promise     The key is a pure function of the ordered (name, digest) pairs: any change of any component
            changes it, and nothing else does. `diff` names every component that differs, not the first.
Method      component digest = sha256(encode(value)); key = sha256(encode(("numba_kcache", SCHEMA, pairs))).
            sha256 rather than blake2b: hosts in FIPS mode switch blake2b off.
Not here    Reading files, versions or environment: inputs/ does, and hands values over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from .encoding import Plain, encode

SCHEMA = 1
"""Raised whenever the same request would get another key. CHANGELOG.md names it for each release."""

CLEAR_LIMIT_BYTES = 2048
"""A component's value is kept in clear, for explanations, up to this many encoded bytes."""


class Component(NamedTuple):
    """One named input of a key: its digest and, where small and not secret, its value in clear."""

    name: str
    digest: str
    value: Plain = None


class Difference(NamedTuple):
    """A component that two requests do not share; None where one of them lacks it."""

    name: str
    old: Component | None
    new: Component | None


def component(name: str, value: Plain, *, clear: bool = True) -> Component:
    """Name a value. With `clear=False`, or where it is large, only its digest is kept."""
    encoded = encode(value)
    digest = sha256(encoded, usedforsecurity=False).hexdigest()
    return Component(name, digest, value if clear and len(encoded) <= CLEAR_LIMIT_BYTES else None)


def derive(components: Iterable[Component]) -> str:
    """The key of these components, as 64 hexadecimal digits. Their order counts."""
    pairs = tuple((each.name, each.digest) for each in components)
    return sha256(encode(("numba_kcache", SCHEMA, pairs)), usedforsecurity=False).hexdigest()


def diff(old: Sequence[Component], new: Sequence[Component]) -> tuple[Difference, ...]:
    """Every component that differs, in the order of `new`, then what only `old` has."""
    before = {each.name: each for each in old}
    after = {each.name for each in new}
    changed = [
        Difference(each.name, before.get(each.name), each)
        for each in new
        if each.name not in before or before[each.name].digest != each.digest
    ]
    gone = [Difference(each.name, each, None) for each in old if each.name not in after]
    return tuple(changed + gone)
