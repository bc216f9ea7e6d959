"""The fingerprint of a Python function, and the values by which a `Dialect` describes its compiler's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...model import NamedTuple

ABSENT = object()
"""The value of an undefined name."""


class Jitted(NamedTuple):
    """Everything that determines the code of a decorated function, except the function itself.

    Args:
        options: Options of the decorator, as a new dict, without those that do not affect the code.
        opaque: Options that list objects of this process, whose content only `depends=` can represent.
        links: Paths and `LinkableCode` objects of the user.
        has_lines: Whether file and lines are compiled in.
        pysig: The signature by which calls are resolved, if the decorator read another one than the function has now.
    """

    options: dict[str, Any]
    opaque: Mapping[str, Iterable[Any]]
    links: Iterable[Any]
    has_lines: bool
    pysig: Any = None


class External(NamedTuple):
    """A function that was declared, not defined: name, signature, ABI, and files to link for it."""

    name: str
    signature: str
    abi: str
    is_cooperative: bool
    links: Iterable[Any]


class Registration(NamedTuple):
    """Code that a program gave to the compiler for a value, a type, an attribute or an operation.

    Args:
        what: The kind of registration, `"overload"`.
        subject: The value, type or text that it is for; None if it is listed under that value.
        options: Everything else that affects the compiler: types, options of the decorator.
        code: The functions and classes that implement it.
    """

    what: str
    subject: Any
    options: dict[str, Any]
    code: tuple[Any, ...]


class Registrations(NamedTuple):
    """All registrations of a program: by value, by attribute name, and those that any code may use implicitly.

    Those of one value, or of one subject, are in the order of registration, which decides between them.
    """

    of_value: Callable[[Any], Sequence[Registration]]
    of_attribute: dict[str, list[Registration]]
    of_all: list[Registration]
