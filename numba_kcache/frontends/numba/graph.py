"""The fingerprint of a Python function, and the values by which a `Dialect` describes its compiler's objects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CodeType
from typing import Any

from ...keys import Component, Plain, digest_of
from ...model import NamedTuple

ABSENT = object()
"""The value of an undefined name."""

ORIGINAL = object()
"""The name under which a copy of a namespace has the original (copies), by whose id the copy is known."""


Edge = tuple[str, "int | str"]
"""A name that is read, and the node of its value, or a text that identifies the value."""


class Graph:
    """Nodes by index: components[i] describes node i, and edges[i] are the names that it reads. kept[i] is the object
    under which the compiler stores the node's compiled code, with its code object."""

    def __init__(self) -> None:
        self.components: list[Component] = []
        self.edges: list[list[Edge]] = []
        self.kept: dict[int, tuple[Any, CodeType]] = {}
        self._labels: dict[str, int] = {}
        self.has_lines = False  # whether any function has line tables

    def add(self, label: str, digest: bytes, clear: Plain, edges: list[Edge] | None = None) -> int:
        """Add a node; a number is appended to a label that is in use."""
        repeated = self._labels[label] = self._labels.get(label, 0) + 1
        self.components.append(Component(label if repeated == 1 else f"{label} ({repeated})", digest, clear))
        self.edges.append(edges if edges is not None else [])
        return len(self.edges) - 1

    def digest(self, start: int) -> str:
        """The digest of all nodes reachable from `start`."""
        numbers, order = {start: 0}, [start]
        nodes: list[Plain] = []
        for index in order:  # grows while it is walked
            edges: list[Plain] = []
            for name, goal in self.edges[index]:
                if type(goal) is int:
                    if goal not in numbers:
                        numbers[goal] = len(order)
                        order.append(goal)
                    goal = numbers[goal]
                edges += name, goal
            nodes.append((self.components[index].encoded, edges))
        return digest_of((sys.implementation.cache_tag, nodes))


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
