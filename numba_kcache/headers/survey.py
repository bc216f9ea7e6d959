"""Survey the headers that a source may include: the includes of each, the files they lead to, and their contents.

Promise     Each path is examined once and each file read once: a survey is one snapshot. The caller compares again to
            find later changes. `walk` follows every branch of every `#if`, every candidate of a `#include_next`, and
            every definition of a macro that names an include.
Method      Before the compiler runs, the user's own headers are walked, as far as they include each other; headers in
            a toolkit's tree are read later, and their scans are cached (tree_scans).
            Afterwards the caller walks again, along the headers that may have been read.
Not here    The headers that the compiler read (reading), and the record made of them (learn).
"""

from __future__ import annotations

import os
import re
import stat as modes
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ..model import NamedTuple
from ..model.text import encoded
from .file_identity import FileStat, digest, is_settled, read_steady
from .paths import Paths
from .scanner import (
    PLAIN,
    Form,
    Include,
    Scan,
    conditions,
    defined_names,
    has_line_directive,
    macro_values,
    scan_includes,
    wrapper_uses,
)
from .search import MEMORY, SOURCE, Place, Search, candidates, path_of
from .tree_scans import TreeScans
from .untrackable import UntrackableError, UntrackableReason

if TYPE_CHECKING:
    from .include_names import IncludeNames

MAX_FILES = 20_000

START = Place(SOURCE, "")
"""The source itself, as an includer."""

_MACRO = r"[A-Za-z_]\w*\Z"


class Lookup(NamedTuple):
    """The search for one include, or for one `__has_include`.

    Args:
        include: The include.
        found: The candidates that are files. An include leads to the first one; `#include_next` to any.
        absent: The candidates that do not exist; of an include only those before the first file.
    """

    include: Include
    found: tuple[Place, ...]
    absent: tuple[Place, ...]

    @property
    def leads_to(self) -> tuple[Place, ...]:
        """The places whose files may be read because of it."""
        return self.found if self.include.form is Form.NEXT else self.found[:1]


class Header(NamedTuple):
    """One file of the survey.

    Args:
        path: Its path; "" for the source.
        scan: Its includes.
        stat: Its stat when it was read.
        sha256: Digest of its content.
        error: The reason why it could not be read.
        is_late: It was read after the compiler had run.
        is_settled: An equal stat implies that its content is unchanged.
        has_writer: It was open or mapped for writing.
    """

    path: str
    scan: Scan
    stat: FileStat | None = None
    sha256: str = ""
    error: str = ""
    is_late: bool = False
    is_settled: bool = False
    has_writer: bool = False


class Survey:
    """Everything that a source could include, and the results of `__has_include`, at one time.

    Made right before the compiler starts.

    Args:
        source: The text as the compiler gets it.
        search: The folders that are searched for headers.
        now_ns: The time by the wall clock before any file is examined, in nanoseconds.
        scans: Cached scans of the toolkit's trees, by the tree's root; grows.
        is_thorough: Walk the toolkit's headers at once, too, since they include some of the user's.

    Raises:
        UntrackableError: There are more than `MAX_FILES` headers.

    Attributes:
        headers: Each file that was read, by place; the source and in-memory headers included.
        includes: The lookups of each of them, by place.
        questions: The `__has_include` lookups of each of them, by place.
        unlisted: The user's headers whose includes, or definitions of macros in includes, cannot be listed.
        opaque: The headers that may test for files that cannot be listed.
        paths: The links and folders on the way to the user's headers.
    """

    def __init__(
        self,
        source: str,
        search: Search,
        *,
        now_ns: int,
        scans: Mapping[str, TreeScans] | None = None,
        is_thorough: bool = False,
    ) -> None:
        self.source, self.search, self.now_ns = source, search, now_ns
        self.headers: dict[Place, Header] = {}
        self.includes: dict[Place, tuple[Lookup, ...]] = {}
        self.paths = Paths(search)
        self.opaque: set[Place] = set()
        self.questions: dict[Place, tuple[Lookup, ...]] = {}
        self._trees = tuple(
            (TreeScans() if scans is None else scans[search.trees[tree]], rest) if tree >= 0 else None
            for tree, rest in search.layout()
        )
        lines = [f"#define {name} {'1' if text is None else text}\n" for name, text in search.definitions]
        text = encoded("".join([*lines, source]))
        self._contents = {START: text}
        self._seen: dict[str, os.stat_result | None] = {}
        self._known: dict[tuple[bool, int, str, Include], Lookup] = {}
        self._is_late = False
        self._add(START, Header("", scan_includes(text)))
        self.includes[START] += tuple(self._look(Include(Form.FORCED, name), START) for name in search.forced)
        is_new, self.unlisted = True, set[Place]()
        while is_new:
            self.walk(lambda place: is_thorough or not self.in_tree(place))
            is_new, self.unlisted = self.run_macros()
        self._is_late = True

    def in_tree(self, place: Place) -> bool:
        """Check whether the place is in a toolkit's tree, and is recorded as part of that tree."""
        climbs = ".." in place.rest and os.path.normpath(place.rest).startswith("..")
        return place.base >= 0 and self._trees[place.base] is not None and not climbs

    def walk(self, is_wanted: Callable[[Place], bool]) -> set[Place]:
        """Read the files that the includes lead to, from the source on, as far as `is_wanted`; return their places.

        Raises:
            UntrackableError: There are more than `MAX_FILES` headers.
        """
        reached, pending = {START}, [START]
        for place in pending:  # grows
            for lookup in self.includes[place]:
                for target in lookup.leads_to:
                    if target not in reached and is_wanted(target):
                        reached.add(target)
                        pending.append(target)
                        if target not in self.headers:
                            self._add(target, self._read(target))
        return reached

    def lookups(self) -> Iterator[Lookup]:
        """Yield each include and each `__has_include` of the files read so far."""
        return (lookup for of in (self.includes, self.questions) for each in of.values() for lookup in each)

    def reachable(self) -> set[Place]:
        """List the user's files that the files read so far may include or test for."""
        found = {place for lookup in self.lookups() for place in lookup.found}
        return {place for place in found if place.base != MEMORY and not self.in_tree(place)}

    def forced(self, name: str) -> tuple[Place, ...]:
        """List the place that a name given to `-include` leads to, if there is one."""
        return self._look(Include(Form.FORCED, name), START).leads_to

    def content(self, place: Place) -> bytes:
        """Return the bytes of one of the user's headers, as they were read."""
        return self._contents[place]

    def has_location(self) -> bool:
        """Check whether the source or one of the user's headers may put a path into the code in any form."""
        return any(header.scan.has_location for place, header in self.headers.items() if not self.in_tree(place))

    def has_assert(self) -> bool:
        """Check whether the source or one of the user's headers may put a path into the code as text."""
        return any(header.scan.has_assert for place, header in self.headers.items() if not self.in_tree(place))

    def has_line_directive(self) -> bool:
        """Check whether one of the user's headers may give itself another, relative name."""
        return any(has_line_directive(data) for place, data in self._contents.items() if not self.in_tree(place))

    def is_certain(self) -> bool:
        """Check whether every name that the source and the user's headers may ask for could be listed."""
        return not self.unlisted and all(map(self.in_tree, self.opaque))

    def surveyed(self) -> set[Place]:
        """List the user's headers that were read before the compiler ran."""
        return {
            place
            for place, header in self.headers.items()
            if place.base > SOURCE and not header.is_late and not self.in_tree(place)
        }

    def add_include(self, includer: Place, include: Include) -> bool:
        """Add an include that a header may execute; return True if it is a new one."""
        lookup = self._look(include, includer)
        if lookup in self.includes[includer]:
            return False
        self.includes[includer] += (lookup,)
        return True

    def run_macros(self) -> tuple[bool, set[Place]]:
        """Add the includes named by macros, with every definition of these in the headers read so far.

        Returns:
            Whether that added includes, and the user's headers whose includes, or definitions of macros that a
            toolkit's includes name, cannot be listed.
        """
        computing = [(place, each) for place, header in self.headers.items() for each in header.scan.computed]
        asking = [(place, each) for place, header in self.headers.items() for each in header.scan.asked]
        own = {operand for place, operand in computing if not self.in_tree(place)}
        toolkits = {operand for place, operand in computing if self.in_tree(place) and re.match(_MACRO, operand)}
        operands = {*own, *(operand for _, operand in asking)}
        names = self._names() if operands else None
        values = {operand: names.listed(operand) for operand in operands} if names else {}
        is_new, unlisted = False, set()
        defined: dict[str, set[Include | None]] = {}
        for place, header in tuple(self.headers.items()) if toolkits else ():
            found: list[tuple[str, set[Include | None]]] = []
            found += [(macro, {include}) for macro, include in header.scan.named if macro in toolkits]
            if not self.in_tree(place):
                found += macro_values(self._text(place), frozenset(toolkits)).items()
            for macro, includes in found:
                defined.setdefault(macro, set()).update(includes)
                if None in includes:
                    unlisted.add(place)
        for place, operand in computing:
            included = (defined if self.in_tree(place) else values).get(operand, set())
            if None in included and not self.in_tree(place):
                unlisted.add(place)
            for include in sorted(each for each in included if each is not None):
                is_new = self.add_include(place, include) or is_new
        for place, operand in asking:
            if None in values[operand]:
                unlisted.add(place)
            asked = [self._look(each, place, is_question=True) for each in values[operand] if each]
            self.questions[place] = tuple(dict.fromkeys((*self.questions[place], *asked)))
        self.opaque = {place for place, header in self.headers.items() if header.scan.is_opaque}
        if not all(map(self.in_tree, self.opaque)) and self._run_conditions():
            self.opaque = set(filter(self.in_tree, self.opaque))
        return is_new, unlisted

    def _run_conditions(self) -> bool:
        """Add the `__has_include` tests in conditions of the user's headers; return whether all could be listed."""
        names, own = self._names(), [place for place in self.headers if not self.in_tree(place)]
        macros = set[bytes]().union(*(defined_names(self._text(place)) for place in own))
        used = re.compile(rb"\b(?:" + b"|".join(map(re.escape, sorted(macros))) + rb")\b").search
        if macros and any(used(self._text(place)) for place in self.headers if self.in_tree(place)):
            return False  # a header of the toolkit may test for files through these macros
        for place in own:
            asked = {name for each in conditions(self._text(place)) for name in names.asked(each)}
            if None in asked:
                return False
            lookups = [self._look(each, place, is_question=True) for each in asked if each]
            self.questions[place] = tuple(dict.fromkeys((*self.questions[place], *lookups)))
        return True

    def _is_part_a_macro(self, name: str) -> bool:
        """Check whether part of a name in <> is a macro of the user's headers, which would expand to another name."""
        parts = set(map(os.fsencode, re.findall(r"\w+", name)))
        return any(parts & defined_names(self._text(place)) for place in self.headers if not self.in_tree(place))

    def _names(self) -> IncludeNames:
        from .include_names import IncludeNames  # few texts include what macros name

        return IncludeNames(lambda: [self._text(place) for place in self.headers])

    def run_wrappers(self, places: set[Place]) -> None:
        """Add the tests of these headers through macros that wrap `__has_include`.

        Raises:
            UntrackableError: One of them passes such a macro something else than a file name.
        """
        wrappers = frozenset(each for place in places for each in self.headers[place].scan.wrappers)
        name = " ".join(sorted(wrappers))
        for place in sorted(places) if wrappers else ():
            known, content = self._tree(place)[0], self.headers[place].sha256
            uses = known.uses.get(name, {}).get(content) if known else None
            if uses is None:
                found, is_other = wrapper_uses(self._text(place), wrappers)
                uses = tuple(sorted(found)), is_other
                if known:
                    known.uses.setdefault(name, {})[content] = uses
            is_other = uses[1] or (not known and any(self._is_part_a_macro(each.name) for each in uses[0]))
            if is_other and (known or not self._run_conditions()):
                raise UntrackableError(UntrackableReason.OPAQUE, self.headers[place].path)
            asked = (self._look(each, place, is_question=True) for each in uses[0])
            self.questions[place] = tuple(dict.fromkeys((*self.questions[place], *asked)))

    def folders_seen(self) -> set[str]:
        """List the folders in which files were looked for."""
        return {os.path.dirname(path) for path in self._seen}

    def stat(self, path: str) -> os.stat_result | None:
        """The stat of the file at this path; None if the search for a header would skip the path."""
        if path not in self._seen:
            try:
                found: os.stat_result | None = os.stat(path)
            except (OSError, ValueError):
                found = None
            self._seen[path] = None if found is not None and modes.S_ISDIR(found.st_mode) else found
        return self._seen[path]

    def _add(self, place: Place, header: Header) -> None:
        if len(self.headers) >= MAX_FILES:
            raise UntrackableError(UntrackableReason.TOO_MANY)
        self.headers[place] = header
        self.includes[place] = tuple(self._look(each, place) for each in header.scan.includes)
        self.questions[place] = tuple(self._look(each, place, is_question=True) for each in header.scan.has_includes)

    def _look(self, include: Include, includer: Place, *, is_question: bool = False) -> Lookup:
        has_sibling = include.form is not Form.ANGLE
        folder = os.path.dirname(includer.rest) if has_sibling else ""
        key = (is_question, includer.base if has_sibling else SOURCE, folder, include)
        if key not in self._known:
            self._known[key] = self._answer(include, includer, is_question)
        return self._known[key]

    def _answer(self, include: Include, includer: Place, is_question: bool) -> Lookup:
        if include.name in self.search.memory:
            return Lookup(include, (Place(MEMORY, include.name),), ())
        found: list[Place] = []
        absent: list[Place] = []
        for place in candidates(self.search, include, includer):
            if not self.in_tree(place):
                place = self.paths.first_name(place)
            if self.stat(path_of(place, self.search)) is None:
                absent.append(place)
                continue
            found.append(place)
            if not is_question and include.form is not Form.NEXT:
                break
        return Lookup(include, tuple(found), tuple(absent))

    def _read(self, place: Place) -> Header:
        if place.base == MEMORY:
            return Header(place.rest, scan_includes(self._text(place)))
        path = path_of(place, self.search)
        known, inside = self._tree(place)
        try:
            if known:
                row = known.look(inside, path, self.now_ns)
                return Header(path, row.scan, row.stat, row.sha256, is_late=self._is_late)
            self.paths.note_links(path)
            reading = read_steady(path)
        except OSError as error:
            return Header(path, PLAIN, error=error.strerror or str(error))
        self._contents[place] = reading.data
        scan = scan_includes(reading.data)
        return Header(
            path, scan, reading.stat, digest(reading.data), is_late=self._is_late,
            is_settled=is_settled(reading, path, self.now_ns), has_writer=bool(reading.has_writer),
        )  # fmt: skip

    def _tree(self, place: Place) -> tuple[TreeScans | None, str]:
        """The scans of the tree that contains a place, None for none, and the path from the tree's root."""
        tree = self._trees[place.base] if self.in_tree(place) else None
        return (tree[0], self.inside(place)) if tree else (None, "")

    def inside(self, place: Place) -> str:
        """The path of a place in a tree from that tree's root."""
        tree = self._trees[place.base]
        return os.path.normpath(os.path.join(tree[1], place.rest)) if tree else ""

    def _text(self, place: Place) -> bytes:
        if place.base == MEMORY:
            return encoded(self.search.memory[place.rest])
        if place not in self._contents:
            try:
                self._contents[place] = read_steady(self.headers[place].path).data
            except OSError:
                return b""  # the final comparison will refuse it
        return self._contents[place]
