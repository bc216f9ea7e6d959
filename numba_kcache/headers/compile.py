"""Compile texts with includes from a private copy (mirror) of the headers, and record which headers were included.

Promise     The header contents that are recorded are those that the compiler read. If paths of the mirror would get
            into the code, or the mirror may lack a file, the compiler reads the user's own files, which are compared
            before and after. A header that changed while the compiler ran never enters a manifest.
Method      The first compile reads the mirror. If it fails, if its code contains the mirror's path, or if the toolkit's
            headers include files of the user that the mirror lacks, a second compile reads the user's folders, after a
            survey that follows the toolkit's headers as well.
Not here    The mirror itself (mirror), which headers were read (reading), making the record (learn).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress

from ..errors import KCacheError
from ..keys import Plain
from ..model.artifact import Artifact
from ..model.text import encoded
from ..toolchain import Toolchain
from . import HeadersRead
from .dependencies import HeaderSet, sets_components, sets_to_json
from .file_identity import FileStat, stat_of
from .folders import Folders
from .learn import learn_headers
from .lookup import located
from .mirror import Mirror, Unmirrored, holds_path
from .open_watch import OpenWatch
from .precompiled import precompiled
from .scanner import has_certain_clock, without_clock
from .search import MEMORY, HeaderQuery, Place, path_of
from .survey import Survey
from .tree_scans import save_scans, tree_scans
from .untrackable import UntrackableError, UntrackableReason

_MAY_LACK_A_FILE = (UntrackableReason.COMPUTED, UntrackableReason.OPAQUE)
"""Reasons for which a mirror may have lacked a file that the compiler looked for."""


_Found = tuple[Artifact, list[HeaderSet | None]]


def compile_and_learn(
    build: Callable[[Folders], Artifact], queries: Sequence[HeaderQuery], toolchain: Toolchain
) -> tuple[Artifact, HeadersRead]:
    """Compile texts that include files, and record the headers that the result depends on.

    Args:
        build: Compiles with the include folders that it is given in place of the user's.
        queries: The texts and the folders that are searched for files.
        toolchain: The compilers.
    """
    compile_ = TrackedCompile(build, queries, toolchain)
    artifact, sets, untracked = compile_.run()
    if untracked:
        return artifact, HeadersRead(untracked=str(untracked))
    paths = compile_.paths()
    return artifact, HeadersRead(sets_components(sets, paths), {"closures": sets_to_json(sets), "paths": paths})


class TrackedCompile:
    """One compile of texts that include files.

    Args:
        build: Compiles with the include folders that it is given in place of the user's.
        queries: The texts and the folders that are searched for files.
        toolchain: The compilers.
        now_ns: Returns the time by the wall clock, in nanoseconds.
    """

    def __init__(
        self,
        build: Callable[[Folders], Artifact],
        queries: Sequence[HeaderQuery],
        toolchain: Toolchain,
        *,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._now_ns = now_ns
        self._build, self._queries, self._toolchain = build, queries, toolchain
        self._searches = [query.search(toolchain, is_fresh=True) for query in queries]
        roots = {root for search in self._searches for root in search.trees}
        self._scans = {each: tree_scans(each, toolchain.load_record) for each in roots}
        self._surveys: list[Survey] = []
        self._artifact: Artifact | None = None
        self._refused: set[tuple[str, str]] | None = None  # the contents of a mirror from which the compile failed

    def run(self) -> tuple[Artifact, list[HeaderSet | None], UntrackableError | None]:
        """Compile; return the artifact, the header set of each text, and the reason if headers cannot be tracked."""
        try:
            found = self._from_mirror() or self._in_place()
            self._artifact = found[0]
        except UntrackableError as error:
            artifact = self._artifact or self._build(Folders())
            return artifact, [], error
        save_scans(self._scans, self._toolchain.save_record)
        return (*found, None)

    def paths(self) -> list[Plain]:
        """List the folders whose paths the code may contain, each with its number among the user's (`located`)."""
        found: dict[tuple[int | str, ...], None] = {}
        for query, survey in zip(self._queries, self._surveys, strict=True):
            for number, folder in located(survey.search):
                if number == -2:
                    may_contain = query.has_lines and survey.has_line_directive()
                else:
                    may_contain = query.has_lines or (number != -1 and survey.has_location())
                if may_contain or (number != -2 and self._holds(str(folder), survey)):
                    found[number, folder] = None
        return [list(each) for each in found]

    def _from_mirror(self) -> _Found | None:
        """Compile from a mirror; None if there can be none, or if its result may differ from a plain compile."""
        self._survey(is_thorough=False)
        if any(query.has_lines for query in self._queries):
            return None
        if any(each.has_location() or each.has_assert() or not each.is_certain() for each in self._surveys):
            return None
        try:
            mirror = Mirror(self._surveys)
        except (Unmirrored, OSError):
            return None
        trees = self._trees()
        others = sorted({*self._searches[0].trees} - {*trees}) if precompiled.root else []
        with (
            closing(mirror),
            closing(OpenWatch(mirror.paths(), trees)) as watch,
            closing(OpenWatch((), others)) as aside,  # one tree of the toolkit may include from another
        ):
            since_ns = self._now_ns()
            if len(self._queries) == 1 and watch.is_whole() and (aside.is_whole() or not others):
                mirror.may_precompile = True
            try:
                with self._scanning(watch, trees):
                    artifact = self._build(mirror)
            except KCacheError:  # the mirror may lack a file; if not, the second compile's error has the user's paths
                self._refused = self._contents()
                return None
            finally:  # headers may have been precompiled in a compile that failed later
                if mirror.precompiled:
                    precompiled.learn(mirror.precompiled, (watch, aside), [*trees, *others], since_ns)
            try:
                sets = self._learned(mirror, watch)
            except UntrackableError as error:
                # The survey did not read the toolkit's headers before the compile: one of them may only seem modified.
                is_uncertain = error.reason is UntrackableReason.MODIFIED
                if is_uncertain or not all(self._has_all(survey, mirror) for survey in self._surveys):
                    return None
                self._artifact = None if error.reason in _MAY_LACK_A_FILE else artifact
                if error.reason is not UntrackableReason.CLOCK or not self._is_timeless(mirror):
                    raise
                sets = self._learned(mirror, watch, is_timeless=True)
        for code in (artifact.cubin, artifact.extras.get("ptx", b"")):  # linked code was not searched yet
            mirror.look_at(code)
        is_plain = not mirror.is_visible and all(self._has_all(survey, mirror) for survey in self._surveys)
        if "ltoir" in artifact.extras and any(map(_names_toolkit_file, self._surveys)):
            is_plain = False  # LTO-IR cannot be searched for the mirror's path
        return (artifact, sets) if is_plain else None

    def _scanning(self, watch: OpenWatch, trees: Sequence[str]) -> AbstractContextManager[object]:
        """While the compiler runs, scan the headers of those trees of which no scans are cached."""
        new = [root for root in trees if not self._scans[root].rows]
        if not new or os.name != "posix":
            return nullcontext()
        from .scan_beside import ScanBeside

        return closing(ScanBeside(watch, self._scans, new, self._now_ns()))

    def _in_place(self) -> _Found:
        """Compile from the user's own folders."""
        self._survey(is_thorough=True)
        own = {each.headers[place].path for each in self._surveys for place in each.surveyed()}
        folders, before = Folders(), self._folder_stats()
        with closing(OpenWatch(sorted(own), self._trees())) as watch:
            self._artifact = artifact = self._build(folders)
            for folder, stat in self._folder_stats().items():
                if before[folder] != stat:  # a file may have been added and removed again meanwhile
                    raise UntrackableError(UntrackableReason.MODIFIED, folder)
            try:
                sets = self._learned(folders, watch)
            except UntrackableError as error:
                if error.reason is not UntrackableReason.CLOCK or not self._is_timeless(folders):
                    raise
                sets = self._learned(folders, watch, is_timeless=True)
        if self._refused is not None and self._contents() <= self._refused:
            raise UntrackableError(UntrackableReason.COMPUTED)  # only this compile succeeds: it read an unlisted file
        for survey, headers in zip(self._surveys, sets, strict=True):
            for file in headers.files if headers else ():
                if survey.headers[file.place].has_writer:  # it may have changed and changed back meanwhile
                    raise UntrackableError(UntrackableReason.WRITABLE, survey.headers[file.place].path)
        return artifact, sets

    def _contents(self) -> set[tuple[str, str]]:
        """List the user's files that the compiler may have looked for, each with the digest of what was read of it."""
        return {
            (path_of(place, survey.search), survey.headers[place].sha256 if place in survey.headers else "")
            for survey in self._surveys
            for place in survey.reachable()
        }

    def _folder_stats(self) -> dict[str, FileStat | None]:
        """List the folders in which files were looked for, with their stats, which a new or removed file changes."""
        stats: dict[str, FileStat | None] = {}
        for folder in {folder for survey in self._surveys for folder in survey.folders_seen()}:
            stats[folder] = None
            with suppress(OSError):
                stats[folder] = stat_of(os.stat(folder))
        return stats

    def _survey(self, *, is_thorough: bool) -> None:
        now_ns = self._now_ns()
        self._surveys = [
            Survey(query.text, search, now_ns=now_ns, scans=self._scans, is_thorough=is_thorough)
            for query, search in zip(self._queries, self._searches, strict=True)
        ]
        for survey in self._surveys:
            with suppress(UntrackableError):  # raised again later, if the compiler read that header
                survey.run_wrappers({*survey.headers})

    def _learned(self, folders: Folders, watch: OpenWatch, *, is_timeless: bool = False) -> list[HeaderSet | None]:
        watch.stop()  # the compile is over

        def learned(query: HeaderQuery, survey: Survey) -> HeaderSet:
            def is_unread(place: Place) -> bool:
                path = folders.path(place, survey.search) or path_of(place, survey.search)
                return place.base != MEMORY and watch.is_unopened(path)

            says_names = query.has_lines or survey.has_location() or survey.has_assert() or _names_toolkit_file(survey)
            return learn_headers(
                survey, is_unread, opened_in=watch.opened_in, is_mirrored=folders.is_mirror, is_timeless=is_timeless,
                has_names=says_names and not folders.is_mirror,
            )  # fmt: skip

        pairs = zip(self._queries, self._surveys, strict=True)  # a text may be unused, such as Numba's own library
        return [learned(query, survey) if query.of in folders.compiled else None for query, survey in pairs]

    def _is_timeless(self, folders: Folders) -> bool:
        """Check whether `__DATE__` and similar macros do not affect the code, because they are in no branch that is
        taken.

        Args:
            folders: The folders that the texts were compiled from. Where these are the user's own and headers have such
                words, two mirrors are compiled and compared, so that both have the same kind of paths in the code.
        """
        own = [each.content(place) for each in self._surveys for place in each.surveyed()]
        texts = [*own, *(encoded(query.text) for query in self._queries)]
        if any(has_certain_clock(text) or without_clock(text) is None for text in texts):
            return False
        is_in_place = not folders.is_mirror and all(without_clock(text) == text for text in own)
        if not folders.is_mirror and not is_in_place and any(survey.has_location() for survey in self._surveys):
            return False  # the code, and so the branches taken, may depend on the paths of files
        is_known = (folders.is_mirror or is_in_place) and not any("ltoir" in each for each in folders.made)
        made = [folders.made] if is_known else []
        try:
            for edit in (bytes, _without_clock)[len(made) :]:
                with closing(Folders(edit) if is_in_place else Mirror(self._surveys, edit)) as compared:
                    self._build(compared)
                made.append(compared.made)
                is_left = isinstance(compared, Mirror) and compared.is_left
        except (KCacheError, Unmirrored, OSError):
            return False
        return made[0] == made[1] and not is_left

    def _trees(self) -> list[str]:
        """List the toolkit's trees, if one of the user's headers includes from them."""
        used = {
            survey.search.layout()[place.base][0]
            for survey in self._surveys
            for of in survey.includes.values()
            for lookup in of
            for place in lookup.found
            if survey.in_tree(place)
        }
        return [root for index, root in enumerate(self._searches[0].trees) if index in used]

    def _has_all(self, survey: Survey, mirror: Mirror) -> bool:
        """Check whether the mirror had each of the user's files that the compiler may have looked for."""
        return all(mirror.path(place, survey.search) for place in survey.reachable())

    def _holds(self, folder: str, survey: Survey) -> bool:
        """Check whether the code may contain the path of a folder, as text."""
        artifact = self._artifact
        if artifact is None:
            return False
        if "ltoir" in artifact.extras:  # LTO-IR cannot be searched
            return survey.has_assert() or _names_toolkit_file(survey)
        return any(holds_path(code, folder) for code in (artifact.cubin, artifact.extras.get("ptx", b"")))


def _without_clock(text: bytes) -> bytes:
    return without_clock(text) or b""


def _names_toolkit_file(survey: Survey) -> bool:
    """Check whether a toolkit header that was read may put a path into the code."""
    scans = [header.scan for place, header in survey.headers.items() if survey.in_tree(place)]
    return any(scan.has_location or scan.has_assert for scan in scans)
