"""Every header that a source could reach, read before the compiler runs.

Promise     The survey holds at least the headers that a compile of this source reads: all branches of every
            `#if` are followed, all candidates of a `#include_next`, all values that a macro is defined as
            where it names an include. What cannot be followed is named (`unresolved`), never passed over.
Method      Breadth first from the source. Each path is looked at once, each file read once, so that the survey
            is one observation; that nothing changed until the compiler was done is seen by comparing again.
Not here    Which of these headers the compiler really read (headers).
"""

from __future__ import annotations

import os
import re
import stat as modes
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from .file_identity import FileStat, digest, is_settled, read_steady, stat_of
from .include_scanner import PLAIN, Form, Include, Scan, literal_values, scan_includes
from .include_search import MEMORY, SOURCE, Place, Search, candidates, path_of

MAX_FILES = 20_000
_MAX_REMEMBERED = 1 << 14
START = Place(SOURCE, "")
_is_macro = re.compile(r"[A-Za-z_]\w*\Z").match


class Lookup(NamedTuple):
    """One include or question of one file: the candidates at which there is a file, and those before or between
    where there is none. An include leads to the first of `found`, but for `#include_next`: to any."""

    include: Include
    found: tuple[Place, ...]
    absent: tuple[Place, ...]

    @property
    def leads_to(self) -> tuple[Place, ...]:
        """The places whose files may be read because of it."""
        return self.found if self.include.form is Form.NEXT else self.found[:1]


class Reached(NamedTuple):
    """One file of the survey. `error` says why it could not be read; inside a tree `sha256` is empty."""

    path: str
    scan: Scan
    stat: FileStat | None = None
    sha256: str = ""
    error: str = ""


class Survey:
    """What a source could include, and what `__has_include` would be told, at one time.

    Args:
        source: The source's text.
        search: Where headers are looked for.
        now_ns: The time, by the wall clock, before anything is looked at.

    Attributes:
        files: Each file that was reached, by place; the source and in-memory headers included.
        includes: The lookups of each of them, by place.
        questions: Its `__has_include` lookups, by place.
        unresolved: The files with an include that leads nobody knows where.
        is_cut: Whether there were more than `MAX_FILES` files.
    """

    def __init__(self, source: str, search: Search, now_ns: int) -> None:
        self.source, self.search, self.now_ns = source, search, now_ns
        self.files: dict[Place, Reached] = {}
        self.includes: dict[Place, tuple[Lookup, ...]] = {}
        self.questions: dict[Place, tuple[Lookup, ...]] = {}
        self.unresolved: set[Place] = set()
        self.is_cut = False
        self._in_tree = tuple(tree >= 0 for tree, _rest in search.layout())
        self._seen: dict[str, os.stat_result | None] = {}
        self._known: dict[tuple[bool, int, str, Include], Lookup] = {}
        self._arrivals: deque[Place] = deque()
        scan = scan_source(source, search)
        self._add(START, Reached("", scan))
        forced = tuple(self._look(Include(Form.FORCED, name), START) for name in search.forced)
        self.includes[START] += forced
        self._follow(forced)
        self._complete()

    def in_tree(self, place: Place) -> bool:
        """Whether the place lies in a toolkit tree, and is thus known by the tree's identity."""
        return place.base >= 0 and self._in_tree[place.base] and not _climbs(place.rest)

    def suppose(self, includer: Place, include: Include) -> None:
        """Take in an include that one of the files may carry out, and all that it leads to."""
        lookup = self._look(include, includer)
        self.includes[includer] += (lookup,)
        self._follow((lookup,))
        self._complete()

    def _complete(self) -> None:
        self._run()
        while self._resolve_macros():
            self._run()

    def _run(self) -> None:
        while self._arrivals:
            place = self._arrivals.popleft()
            if place not in self.files:
                if len(self.files) > MAX_FILES:
                    self.is_cut = True
                    return
                self._add(place, self._read(place))

    def _add(self, place: Place, reached: Reached) -> None:
        self.files[place] = reached
        scan = reached.scan
        self.includes[place] = tuple(self._look(each, place) for each in scan.includes)
        self.questions[place] = tuple(self._look(each, place, is_question=True) for each in scan.has_includes)
        self._follow(self.includes[place])

    def _follow(self, lookups: tuple[Lookup, ...]) -> None:
        for lookup in lookups:
            self._arrivals.extend(place for place in lookup.leads_to if place not in self.files)

    def _look(self, include: Include, includer: Place, *, is_question: bool = False) -> Lookup:
        has_sibling = include.form is not Form.ANGLE
        folder = os.path.dirname(includer.rest) if has_sibling else ""
        key = (is_question, includer.base if has_sibling else SOURCE, folder, include)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._answer(include, includer, is_question)
        return known

    def _answer(self, include: Include, includer: Place, is_question: bool) -> Lookup:
        if include.name in self.search.memory:
            return Lookup(include, (Place(MEMORY, include.name),), ())
        found: list[Place] = []
        absent: list[Place] = []
        for place in candidates(self.search, include, includer):
            if self.stat(path_of(place, self.search)) is None:
                absent.append(place)
                continue
            found.append(place)
            if not is_question and include.form is not Form.NEXT:
                break
        return Lookup(include, tuple(found), tuple(absent))

    def stat(self, path: str) -> os.stat_result | None:
        """The stat of what the search would not pass over at this path."""
        try:
            return self._seen[path]
        except KeyError:
            pass
        try:
            found = os.stat(path)
        except (OSError, ValueError):
            found = None
        if found is not None and modes.S_ISDIR(found.st_mode):
            found = None
        self._seen[path] = found
        return found

    def _read(self, place: Place) -> Reached:
        if place.base == MEMORY:
            return Reached(place.rest, scan_includes(self.search.memory[place.rest]))
        path = path_of(place, self.search)
        in_tree = self.in_tree(place)
        found = self.stat(path)
        if found is not None:
            remembered = _remembered.get(stat_of(found))
            if remembered is not None and (in_tree or remembered[0]):
                return Reached(path, remembered[1], stat_of(found), "" if in_tree else remembered[0])
        try:
            stat, data = read_steady(path)
        except OSError as error:
            return Reached(path, PLAIN, error=error.strerror or str(error))
        scan, sha256 = scan_includes(data), "" if in_tree else digest(data)
        if is_settled(stat, path, self.now_ns):
            if len(_remembered) >= _MAX_REMEMBERED:
                _remembered.clear()
            _remembered[stat] = (sha256, scan)
        return Reached(path, scan, stat, sha256)

    def _resolve_macros(self) -> bool:
        """Look for what the macros that name includes are defined as; whether that led anywhere new."""
        grown = False
        self.unresolved = set()
        for place, reached in tuple(self.files.items()):
            for operand in reached.scan.computed:
                values, is_known = self._values(operand)
                if not is_known:
                    self.unresolved.add(place)
                fresh = tuple(self._look(each, place) for each in values)
                fresh = tuple(each for each in fresh if each not in self.includes[place])
                self.includes[place] += fresh
                self._follow(fresh)
                grown = grown or bool(fresh)
        return grown

    def _values(self, operand: str) -> tuple[tuple[Include, ...], bool]:
        """The files that an operand of `#include` may name, and whether these are all."""
        if not _is_macro(operand):
            return (), False
        found: dict[Include, None] = {}
        is_known = True
        for data in self._texts():
            values, is_other = literal_values(data, operand)
            found.update(dict.fromkeys(values))
            is_known = is_known and not is_other
        return tuple(found), is_known and (bool(found) or not operand.startswith("_"))

    def _texts(self) -> Iterator[bytes]:
        yield source_text(self.source, self.search)
        for place, reached in self.files.items():
            if place.base == MEMORY:
                yield self.search.memory[place.rest].encode("utf-8", "surrogatepass")
            elif place.base != SOURCE and not reached.error:
                try:
                    yield read_steady(reached.path)[1]
                except OSError:
                    continue  # seen again, and refused, when all is compared after the compile


_remembered: dict[FileStat, tuple[str, Scan]] = {}
"""Digest and scan of settled files, so that a second kernel of the process does not read them again."""


def source_text(source: str, search: Search) -> bytes:
    """The source behind the macros that it is compiled with."""
    lines = [f"#define {name} {'' if text is None else text}\n" for name, text in search.definitions]
    return "".join([*lines, source]).encode("utf-8", "surrogatepass")


def scan_source(source: str, search: Search) -> Scan:
    """What the source asks for, the macros given with `-D` included."""
    return scan_includes(source_text(source, search))


def _climbs(rest: str) -> bool:
    return ".." in rest and os.path.normpath(rest).startswith("..")
