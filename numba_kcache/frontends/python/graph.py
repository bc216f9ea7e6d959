"""The graph of all that a Python function reads, and the digest of what one node reaches.

Promise     Two nodes have one digest only if what they reach is the same, node by node and edge by edge. Labels do
            not count, nor do indices: nodes are numbered in the order in which edges reach them.
"""

from __future__ import annotations

import sys
from types import CodeType
from typing import Any

from ...keys.components import Component
from ...keys.digests import sha256
from ...keys.encoding import Plain, encode, frame

FORMAT = 1
"""Raised when the same function would get another digest."""

Edge = tuple[str, "int | str"]
"""A name that is read, and the node it leads to, or the text that stands for what it is."""


class Graph:
    """Nodes by index: components[i] is what node i is, edges[i] what it reads; kept[i] is what the compiler keeps of
    it, and its code."""

    def __init__(self) -> None:
        self.components: list[Component] = []
        self.edges: list[list[Edge]] = []
        self.kept: dict[int, tuple[Any, CodeType]] = {}
        self._labels: dict[str, int] = {}

    def add(self, label: str, digest: bytes, clear: Plain, edges: list[Edge] | None = None) -> int:
        """Make a node; a label that is taken gets a number."""
        repeated = self._labels[label] = self._labels.get(label, 0) + 1
        self.components.append(Component(label if repeated == 1 else f"{label} ({repeated})", digest, clear))
        self.edges.append(edges if edges is not None else [])
        return len(self.edges) - 1

    def digest(self, start: int) -> str:
        """Of all that node `start` reaches."""
        numbers, order = {start: 0}, [start]
        encoded: dict[int | str, bytes] = {}  # names and numbers come again and again

        def bytes_of(value: int | str) -> bytes:
            return encoded.get(value) or encoded.setdefault(value, encode(value))

        nodes: list[bytes] = [encode(FORMAT), encode(sys.implementation.cache_tag)]
        for index in order:  # grows while it is walked
            edges = []
            for name, goal in self.edges[index]:
                if type(goal) is int:
                    if goal not in numbers:
                        numbers[goal] = len(order)
                        order.append(goal)
                    goal = numbers[goal]
                edges.append(frame((bytes_of(name), bytes_of(goal))))
            nodes.append(frame((encode(self.components[index].digest), frame(edges))))
        return sha256(frame(nodes)).hexdigest()
