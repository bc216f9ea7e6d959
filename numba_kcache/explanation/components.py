"""Compare the recorded components of two requests (keys.Component.record)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..model import NamedTuple


class Difference(NamedTuple):
    """A component that differs between two requests, with its record in each; None for a request that lacks it."""

    name: str
    old: tuple[str, str, Any] | None
    new: tuple[str, str, Any] | None


def diff(old: Sequence[tuple[str, str, Any]], new: Sequence[tuple[str, str, Any]]) -> tuple[Difference, ...]:
    """Every component that differs between two lists of records, in the order of `new`, then those only in `old`."""
    before = {each[0]: each for each in old}
    after = {each[0] for each in new}
    changed = [
        Difference(each[0], before.get(each[0]), each)
        for each in new
        if each[0] not in before or before[each[0]][1] != each[1]
    ]
    gone = [Difference(each[0], each, None) for each in old if each[0] not in after]
    return tuple(changed + gone)
