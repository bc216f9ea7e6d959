"""Compile under the observer, and record what NVRTC asked the file system as a `Transcript`.

Promise     The bytes that are recorded are those that the compiler was handed. Where an answer is not known for
            certain, the reason is returned, and the code is not stored.
Method      `launch/observe.c` lists each question of NVRTC with its answer. A text that contains `__DATE__` or the like
            is compiled again without these words: where that gives the same code, the time is in no branch that is
            taken. The code of the first compile is the one that is kept; it is that of a plain compile.
Not here    Whether this NVRTC can be observed (observer), and comparing a transcript later (check).
"""

from __future__ import annotations

import errno
import functools
import os
import stat as modes
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from ..errors import KCacheError
from ..keys import Plain
from ..model import Artifact
from ..settings import variables, working_directory
from ..toolchain import Toolchain
from ..toolchain.nvrtc import collected
from . import HeadersRead, words
from .check import same_files, toolkit_now
from .file_identity import FileStat, digest, is_settled, is_settled_without, stat_of
from .observer import Event, is_seen, observed, unobservable
from .roots import WORKING, HeaderSearch, Place, Roots, located, placing
from .transcript import FILE, FOLDER, Toolkit, Transcript, transcript_components, transcript_to_json

T = TypeVar("T")

_NVRTCS_OWN = ("__nv_nvrtc_builtin_header.h", "__nv_name_map")
"""Names of texts within NVRTC, which it looks up in the working directory first."""

_NOT_THERE = frozenset((errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG))
_REASONS = {
    errno.ENXIO: "it is not a regular file",
    errno.EFBIG: "it is too large",
    errno.EBUSY: "it changed while it was read",
}


def _forced_paths(search: HeaderSearch) -> dict[str, str]:
    """The path in the working directory of each name given to `-include`, with the name."""
    return {os.path.join(working_directory(), name): name for name in search.forced if not name.startswith("/")}


class Untracked(Exception):
    """An answer that NVRTC got is not known for certain: the reason, and the file."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(f"its headers cannot be captured: {why}{f': {path}' if path else ''}")


def compile_observed(
    build: Callable[[], Artifact], search: HeaderSearch, toolchain: Toolchain
) -> tuple[Artifact, HeadersRead]:
    """Compile, and record the headers that the result depends on.

    Args:
        build: Compiles.
        search: The texts, and the folders that are searched for files.
        toolchain: The compilers.
    """
    why = unobservable()
    since_ns = time.time_ns()
    with observed() as events, collected() as made:
        artifact = build()
    try:
        if why:
            raise Untracked(f"this NVRTC cannot be observed: {why}")
        if not events and (made or not search.is_edited):  # not seen; or another library kept the code
            raise Untracked("what was compiled asked this NVRTC for no file")
        roots, forced = search.roots(toolchain, is_fresh=True), _forced_paths(search)
        texts = [*search.texts, *(each[4] for each in events)] if forced else []
        is_named = search.has_lines or words.has_location(*texts)
        is_named = is_named or any(b"assert" in each or b"include_next" in each for each in texts)
        is_beside = any(each[0] == "r" and os.fsdecode(each[1]) in forced for each in events)
        if is_beside and not roots.working:
            roots, forced = roots.with_working(), {}  # what it includes is searched for beside it
        if is_named:  # by which path it is found matters: with a folder, the check takes no other
            forced = {path: f"./{name}" for path, name in forced.items()}
        recording = Recording(events, roots, since_ns, time.time_ns(), forced)
        clock = _clock_of(build, made, search, recording)
        if clock:
            return artifact, HeadersRead(untracked=clock)
        transcript = recording.transcript()
    except Untracked as untracked:
        return artifact, HeadersRead(untracked=str(untracked))
    paths = _paths(artifact, search, recording)
    if search.complete is not None:
        artifact = search.complete(artifact, [search.texts[0], *recording.texts.values()])
    return artifact, _headers_of(transcript, paths)


def _headers_of(transcript: Transcript, paths: list[Plain]) -> HeadersRead:
    row = {"transcript": transcript_to_json(transcript), "paths": paths}
    return HeadersRead(transcript_components(transcript, paths), row)


def read_elsewhere(events: Sequence[Event], search: HeaderSearch, toolchain: Toolchain, since_ns: int) -> HeadersRead:
    """Record the headers of a compile that another library made, between `begin_observing` and `end_observing`."""
    why = unobservable()
    if not (events or why or is_seen()):
        why = "the observer does not see what it reads"
    try:
        recording = Recording(events, search.roots(toolchain), since_ns, time.time_ns())
        if why:
            raise Untracked(f"this NVRTC cannot be observed: {why}")
        if search.read is None and all(each[0] == "l" for each in events):
            return HeadersRead()  # it asked for no file
        texts = [*search.texts, *recording.texts.values()]
        if any(map(words.has_clock, texts)) or words.hides_clock(*texts):
            return HeadersRead(untracked="it uses __DATE__ or __TIME__")
        transcript = recording.transcript()
    except Untracked as untracked:
        return HeadersRead(untracked=str(untracked))
    return _headers_of(transcript, [])


class Recording:
    """The questions of one compile.

    Args:
        events: What the observer saw.
        roots: The folders that were searched.
        since_ns: The time before the compile started.
        now_ns: The time after it ended.
        forced: Paths at which `-include` found nothing in the working directory, each with the name.

    Attributes:
        answers: The stat and the digest of each place; "" for a file that was not read; None where there was nothing.
        texts: The user's headers that were read, by their path.
        others: The toolkit's.

    Raises:
        Untracked: An answer is not known for certain.
    """

    def __init__(
        self, events: Iterable[Event], roots: Roots, since_ns: int, now_ns: int, forced: Mapping[str, str] = {}
    ) -> None:
        self.answers: dict[Place, tuple[FileStat, str] | None] = {}
        self.texts: dict[str, bytes] = {}
        self.others: dict[str, bytes] = {}
        self._roots, self._since_ns, self._now_ns = roots, since_ns, now_ns
        working, place_of = roots.working or working_directory(), functools.cache(placing(roots.folders, roots.working))
        places = {".", working, *variables(("PWD",)).values()}  # NVRTC looks which of them is the working directory
        for kind, name, error, (*stat, mode), data in events:
            path = os.fsdecode(name)
            if path in places:
                continue
            if path.endswith(_NVRTCS_OWN) and os.path.basename(path) in _NVRTCS_OWN:
                if os.path.dirname(path) not in ("", working):
                    raise Untracked("the working directory changed while it was compiled")
                continue
            if kind == "o":
                raise Untracked(_REASONS.get(error, os.strerror(error) if error else "NVRTC calls"), path)
            place = place_of(path)
            if path in forced and error in _NOT_THERE:  # the same name is absent in any other working directory
                self.answers[Place(WORKING, forced[path])] = None
                if place.root < 0:
                    continue
            before, is_new = self.answers.get(place), place not in self.answers
            if error:
                if error not in _NOT_THERE and (before or error != errno.EACCES):
                    raise Untracked(os.strerror(error), path)
                if before:
                    raise Untracked("it was modified", path)
                self.answers[place] = None
                continue
            texts = self.others if place.root >= len(roots.own) else self.texts
            if kind == "r" and before and texts.get(path) == data:
                continue  # the same bytes once more
            content = digest(data) if kind == "r" else FOLDER if modes.S_ISDIR(mode) else ""
            if not is_new and (before is None or bool(before[1] and content and before[1] != content)):
                raise Untracked("it was modified", path)
            if is_new or content:
                self.answers[place] = FileStat(*stat), content
            if kind == "r":
                texts[path] = data

    def transcript(self) -> Transcript:
        """Make the transcript."""
        roots, own = self._roots, len(self._roots.own)
        places, stats, inodes = dict[Place, str](), dict[Place, FileStat](), dict[Place, tuple[int, int]]()
        lacking: dict[Place, list[str]] = {}
        for place in sorted(self.answers):
            answer = self.answers[place]
            if answer is None:
                within, _, name = place.rest.rpartition("/")
                lacking.setdefault(Place(place.root, within or "/"[: place.rest.startswith("/")]), []).append(name)
                continue
            stat, content = answer
            places[place] = content or FILE
            if content != FOLDER:
                inodes[place] = stat.device, stat.inode
            if place.root < own and content not in ("", FOLDER) and is_settled(stat, self._now_ns):
                stats[place] = stat
        absent = {folder: tuple(names) for folder, names in lacking.items()}
        own_absent, beginnings = _within(absent, WORKING, own), roots.beginnings()
        for folder, missing in own_absent.items():
            path = beginnings[folder.root] + folder.rest
            with suppress(OSError, ValueError):
                stat = stat_of(os.stat(path))
                if is_settled_without(missing, stat, path, self._since_ns):  # unchanged since before the compile
                    stats[folder] = stat
        toolkit, found = None, tuple(each for each in places if each.root >= own)
        if found or len(own_absent) < len(absent):  # unchanged since before the compile, for its stats to be kept
            known = Toolkit("", found, _within(absent, own, len(roots.folders)))
            toolkit = toolkit_now(known, roots, self._since_ns, {}, self.answers)
        layout = roots.layout()
        return Transcript(
            own,
            layout if toolkit else layout[:own],  # it does not matter which toolkit was not asked
            _within(places, WORKING, own),
            own_absent,
            same_files(inodes),
            toolkit,
            stats,
        )


def _within(answers: Mapping[Place, T], first: int, end: int) -> dict[Place, T]:
    """Take what is in the folders from `first` up to `end`."""
    return {place: each for place, each in answers.items() if first <= place.root < end}


def _clock_of(
    build: Callable[[], Artifact], made: list[Mapping[str, bytes]], search: HeaderSearch, recording: Recording
) -> str:
    """Return the reason why the code may depend on the time of the compile; "" if it does not."""
    texts = [*search.texts, *recording.texts.values()]
    is_hidden, is_named = words.hides_clock(*texts), any(map(words.has_clock, texts))
    if not is_hidden and not is_named:
        return ""
    mentions = [path for path, text in recording.texts.items() if words.has_clock(text) or words.hides_clock(text)]
    why = f"it uses __DATE__ or __TIME__{f' in {mentions[0]}' if mentions else ''}"
    if is_hidden or not search.is_edited:
        return why
    try:
        with collected(words.without_clock) as others, observed(is_edited=True):
            build()
    except KCacheError:
        return why
    return "" if made == others else why  # not the linked code: Numba's has names that count its compiles


def _paths(artifact: Artifact, search: HeaderSearch, recording: Recording) -> list[Plain]:
    """List the folders whose paths the code may contain, each with its number among the user's (`located`)."""
    texts = [*search.texts, *recording.texts.values()]
    is_hidden = words.has_location(*texts)
    codes = [artifact.cubin, artifact.extras.get("ptx", b"")]
    if "ltoir" in artifact.extras:  # it cannot be searched
        spelled = [*texts, *recording.others.values()]
        is_hidden = is_hidden or any(words.has_location(text) or b"assert" in text for text in spelled)
    found: list[Plain] = []
    names = b"\n".join([*map(words.joined, texts), *map(os.fsencode, search.forced)])
    for number, folder in located(recording._roots):
        name = os.fsencode(folder)
        numbers = ", ".join(map(str, name)).encode()  # in PTX, text is written as numbers
        is_named = any(name in code or numbers in code for code in codes) or words.may_name(names, name)
        if number == -2:
            is_named = search.has_lines and any(map(words.has_line_directive, texts))
        elif search.has_lines or (is_hidden and (number != -1 or "ltoir" in artifact.extras)):
            is_named = True
        if is_named:
            found.append([number, folder])
    return found
