"""List what a kernel calls in the order in which it has to be compiled again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .graph import Graph


def kept_objects(graph: Graph) -> tuple[tuple[Any, str], ...]:
    """List the objects whose compiled device code the compiler keeps: the dispatchers that the kernel calls, registered
    implementations, and definitions of intrinsics.

    Returns:
        Each with a digest of what determines its code, after those that it calls; of a cycle one comes too early.
    """
    found, seen, pending = list[int](), set[int](), [(0, False)]
    while pending:
        index, is_done = pending.pop()  # done: with its callees
        if is_done:
            found.append(index)
        elif index not in seen:
            seen.add(index)
            pending.append((index, True))
            pending += [(callee, False) for _name, callee in reversed(graph.edges[index]) if type(callee) is int]
    return tuple(
        (graph.kept[each][0], graph.digest(each)) for each in found if each != 0 and each in graph.kept
    )  # 0: the kernel
