"""Make a scenario that fails smaller, for as long as it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from .world import Edit

Fails = Callable[[list[Edit]], bool]


def shrink(edits: list[Edit], fails: Fails, *, limit_s: float) -> list[Edit]:
    """The smallest scenario that was found in the time.

    Args:
        edits: A scenario that fails.
        fails: Whether another one does.
        limit_s: Seconds after which no further one is tried.
    """
    end = time.monotonic() + limit_s
    tried: set[str] = set()

    def try_(candidate: list[Edit]) -> bool:
        key = repr(candidate)
        if key in tried or time.monotonic() > end:
            return False
        tried.add(key)
        return fails(candidate)

    while time.monotonic() < end:
        before = edits
        edits = _fewer(edits, try_)
        for simpler in (_without_lines, _without_options):
            edits = simpler(edits, try_)
        if edits == before:
            break
    return edits


def _fewer(items: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """The list without what it fails without: halves first, single items last."""
    size = max(1, len(items) // 2)
    while True:
        at = len(items) - size
        while at > -size:
            candidate = items[: max(0, at)] + items[at + size :]
            if len(candidate) < len(items) and fails(candidate):
                items = candidate
            at -= size
        if size == 1:
            return items
        size = max(1, size // 2)


def _replaced(edits: list[Edit], at: int, **changed: Any) -> list[Edit]:
    return [*edits[:at], {**edits[at], **changed}, *edits[at + 1 :]]


def _without_lines(edits: list[Edit], fails: Fails) -> list[Edit]:
    for at in range(len(edits)):
        if "text" in edits[at]:
            lines = edits[at]["text"].splitlines(keepends=True)
            others = edits

            def still(lines: list[str], at: int = at, others: list[Edit] = others) -> bool:
                return fails(_replaced(others, at, text="".join(lines)))

            kept = _fewer(lines, still) if len(lines) > 1 else lines
            if len(kept) < len(lines):
                edits = _replaced(edits, at, text="".join(kept))
        for name in ("way", "keeps_time", "process", "cache", "decorated", "during"):
            if name in edits[at]:
                simpler = [
                    *edits[:at],
                    {key: value for key, value in edits[at].items() if key != name},
                    *edits[at + 1 :],
                ]
                if fails(simpler):
                    edits = simpler
    return edits


def _without_options(edits: list[Edit], fails: Fails) -> list[Edit]:
    for at in range(len(edits)):
        if edits[at]["edit"] == "set" and isinstance(edits[at]["value"], dict):
            for simpler in _smaller_options(edits[at]["value"]):
                if len(repr(simpler)) < len(repr(edits[at]["value"])) and fails(_replaced(edits, at, value=simpler)):
                    edits = _replaced(edits, at, value=simpler)
    return edits


def _smaller_options(options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name, value in options.items():
        yield {key: each for key, each in options.items() if key != name}
        if isinstance(value, dict):
            for inner in value:
                yield {**options, name: {key: each for key, each in value.items() if key != inner}}
        if isinstance(value, list):
            for place in range(len(value)):
                yield {**options, name: value[:place] + value[place + 1 :]}
