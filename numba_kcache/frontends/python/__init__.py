"""The fingerprint of a Python function, and what a front end tells it of its own objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...model import NamedTuple


class Jitted(NamedTuple):
    """All that decides the code of a decorated function beside the function itself.

    Args:
        options: Of the decorator, and whatever else belongs to it, in a dict of their own; without those that decide
            no code.
        opaque: Options that list objects of this process, for whose content only `depends=` can stand.
        links: Paths and `LinkableCode` objects of the user.
        has_lines: Whether file and lines are compiled in.
    """

    options: dict[str, Any]
    opaque: Mapping[str, Iterable[Any]]
    links: Iterable[Any]
    has_lines: bool


class External(NamedTuple):
    """A function that was declared, not defined: name, signature, ABI, and what is linked for it."""

    name: str
    signature: str
    abi: str
    is_cooperative: bool
    links: Iterable[Any]


class Registration(NamedTuple):
    """Code that a program gave to the compiler for a value, a type, an attribute or an operation.

    Args:
        what: The kind of registration, `"overload"`.
        subject: What it is for: a value, a type, a text; None where it stands under that value anyway.
        options: All else that decides what the compiler makes of it: types, options of the decorator.
        code: The functions and classes that implement it.
    """

    what: str
    subject: Any
    options: dict[str, Any]
    code: tuple[Any, ...]


class Registrations(NamedTuple):
    """All of a program: for a value, by attribute name, and those that any code may use unnamed.

    Those of one value, or of one subject, are in the order of registration, which decides between them.
    """

    of_value: Callable[[Any], Sequence[Registration]]
    of_attribute: dict[str, list[Registration]]
    of_all: list[Registration]
