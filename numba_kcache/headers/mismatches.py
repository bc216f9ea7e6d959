"""Every way in which a header closure does not hold any more, for explanations.

Promise     What `check_closure` finds first comes first; nothing is named that it would not find. Nothing is written.
Method      The check itself finds each, on a closure in which those before it are granted, so that there is no second
            comparison to be kept equal.
Not here    Whether a closure holds (closure_check), which this is never asked.
"""

from __future__ import annotations

import os

from .check import Change, Match, Mismatch, check_closure, is_file, same_files
from .dependencies import Closure
from .search import Search

MAX_MISMATCHES = 16
"""Differences that an explanation names; a branch that was switched may have changed every header."""


def mismatches(closure: Closure, search: Search, *, now_ns: int) -> list[Mismatch]:
    """Every way in which a closure does not hold, up to `MAX_MISMATCHES`: for explanations.

    Each is found by the check itself, on a closure in which the ones before it are granted.
    """
    found: list[Mismatch] = []
    while len(found) < MAX_MISMATCHES:
        outcome = check_closure(closure, search, now_ns=now_ns)
        if isinstance(outcome, Match):
            break
        found.append(outcome)
        if outcome.change is Change.LAYOUT:
            break  # places mean other folders now: nothing more can be said
        granted = _granting(closure, search, outcome)
        if granted == closure:
            break  # it changes while it is looked at
        closure = granted
    return found


def _granting(closure: Closure, search: Search, mismatch: Mismatch) -> Closure:
    """The closure as it would be without this mismatch."""
    roots = [root and root.rstrip("/") + "/" for root in search.roots]
    change, path = mismatch.change, mismatch.path
    if change is Change.TOOLKIT:
        known = {index: tree.identity for index, tree in enumerate(search.trees)}
        trees = ((n, known.get(n, "") if old == mismatch.old else old) for n, old in closure.trees)
        return closure._replace(trees=tuple(trees))
    if change is Change.SHADOWED:
        absent = tuple(
            (place, tuple(name for name in names if os.path.join(roots[place[0]] + place[1], name) != path))
            for place, names in closure.absent
        )
        clear = tuple(place for place in closure.clear if roots[place[0]] + place[1] != path)
        return closure._replace(absent=absent, clear=clear)
    if change is Change.ANSWER:
        answers = list(closure.answers)
        for index, (places, answer) in enumerate(answers):
            if any(is_file(roots[base] + rest) for base, rest in places) != answer:
                answers[index] = places, not answer
                break
        return closure._replace(answers=tuple(answers))
    if change is Change.SAME_FILE:
        return closure._replace(same=_same_now(closure, roots))
    files = list(closure.files)
    for index, file in enumerate(files):
        if roots[file.place[0]] + file.place[1] == path:
            files[index] = file._replace(sha256=mismatch.new, stat=None)
            if change is Change.GONE:
                del files[index]
            break
    without = closure._replace(files=tuple(files))
    return without if change is Change.CONTENT else without._replace(same=_same_now(without, roots))


def _same_now(closure: Closure, roots: list[str]) -> tuple[tuple[int, ...], ...]:
    inodes = []
    for index, file in enumerate(closure.files):
        try:
            status = os.stat(roots[file.place[0]] + file.place[1])
            inodes.append((status.st_dev, status.st_ino))
        except (OSError, ValueError):
            inodes.append((-1, index))
    return same_files(inodes)
