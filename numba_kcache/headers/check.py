"""Compare a transcript with the file system: the check of every warm start of a kernel with headers.

Promise     `Match` only if each question would get its recorded answer; otherwise the first difference. A file that
            cannot be read is a difference, never an exception. Nothing is written. A stored transcript, which may be
            forged, makes the check read each file once, and at most `MOST_BYTES`.
Method      A file whose stat is the recorded one is unchanged; otherwise its bytes are digested. A name is absent if
            its folder is, or if the folder's stat is the recorded one.
Not here    Recording (record), and storing the transcript with newer stats (the caller).
"""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Iterator, Mapping, Sequence

from ..errors import why_of
from ..keys import digest_of
from ..model import NamedTuple
from .file_identity import SETTLED_AFTER_NS, FileStat, digest, is_settled, is_settled_without, read_steady, stat_of
from .roots import WORKING, Place, Roots
from .transcript import ABSENT, FILE, FOLDER, Toolkit, Transcript

MOST_BYTES = 1 << 30
"""Most bytes that one check reads."""


class Match(NamedTuple):
    """The headers are unchanged. `refreshed` has newer stats if contents had to be read to find that."""

    refreshed: Transcript | None = None


class Mismatch(NamedTuple):
    """One difference.

    Args:
        kind: The value of a `ReasonKind`:
            "header_search"    The include folders differ, or how they lie within each other: number and places of the
                               folders. Or paths that led to one file lead to several: the number of files.
            "toolkit"          The part of a toolkit's header tree that the compile used differs: its identities.
            "header_shadowed"  A file has appeared that is found before the one that was read: "absent", "present".
            "header_answer"    A file has appeared at another place where there was none: "absent", "present".
            "header_changed"   A header's content differs: its digests. Or it cannot be read any more: its answer, the
                               system's error.
        path: The file or folder.
        old, new: What stands behind the colon, as recorded and as found.
    """

    kind: str
    path: str
    old: str
    new: str


def check_transcript(known: Transcript, roots: Roots, *, now_ns: int, any_compiler: bool = False) -> Match | Mismatch:
    """Compare a transcript with the file system, up to the first difference.

    Args:
        known: The recorded transcript, of this machine or another.
        roots: The folders that are searched for headers now; without those of the toolkit if any will do.
        now_ns: The time, by the wall clock.
        any_compiler: Whether code of any compiler is accepted, with its toolkit's headers.
    """
    checking = Checking(roots, now_ns)
    for mismatch in checking.differences(without_toolkit(known) if any_compiler else known):
        return mismatch
    found = known._replace(stats=checking.stats, toolkit=checking.toolkit or known.toolkit)
    return Match(None if found == known else found)


def without_toolkit(known: Transcript) -> Transcript:
    """Make the transcript without the toolkit's part, for code of any compiler: the toolkit belongs to it."""
    return known._replace(toolkit=None, layout=known.layout[: known.own])


class Checking:
    """One comparison.

    Args:
        roots: The folders that are searched for headers.
        now_ns: The time, by the wall clock.

    Attributes:
        stats: `Transcript.stats` as they are now.
        toolkit: The toolkit's part as it is now.
    """

    def __init__(self, roots: Roots, now_ns: int) -> None:
        self.stats: dict[Place, FileStat] = {}
        self.toolkit: Toolkit | None = None
        self._roots, self._now_ns = roots, now_ns
        self._paths = roots.beginnings()
        self._digests: dict[FileStat, str] = {}
        self._bytes = 0

    def differences(self, known: Transcript) -> Iterator[Mismatch]:
        """Yield each difference from the file system."""
        roots, layout = self._roots, self._roots.layout()
        if known.own != len(roots.own) or known.layout != (layout if known.toolkit else layout[: known.own]):
            yield Mismatch("header_search", "", repr(known.layout), repr(layout))
            return  # the indices in places mean other folders now
        inodes: dict[Place, tuple[int, int]] = {}
        if known.toolkit is not None:
            self.toolkit = toolkit_now(known.toolkit, roots, self._now_ns, inodes)
            if self.toolkit.identity != known.toolkit.identity:
                root = os.path.commonpath(roots.toolkit) if roots.toolkit else ""
                yield Mismatch("toolkit", root, known.toolkit.identity, self.toolkit.identity)
        yield from self._present(known)
        yield from self._files(known, inodes)
        then = (frozenset(place for place in group if place in inodes) for group in known.same_files)
        groups = {group for group in then if len(group) > 1}
        if groups != {frozenset(each) for each in same_files(inodes)}:
            yield Mismatch("header_search", "", str(len(known.same_files)), str(len(same_files(inodes))))

    def _present(self, known: Transcript) -> Iterator[Mismatch]:
        """Yield each place at which there was nothing, and now is something."""
        for place, names in known.absent.items():
            folder = self._paths[place.root] + place.rest
            found = _stat(folder)
            if found is None:
                continue
            stat, _is_folder = found
            if stat == known.stats.get(place):
                self.stats[place] = stat
                continue
            within, is_absent = folder and folder.rstrip("/") + "/", True
            for name in names:
                if _is_file(within + name):
                    if place == (WORKING, "") and self._is_read_elsewhere(within + name, name, known):
                        continue  # a name given to -include leads to the file that it led to, now at once
                    is_absent, toolkit = False, known.toolkit.places if known.toolkit else ()
                    read = {os.path.basename(each.rest) for each in (*known.places, *toolkit)}
                    kind = "header_shadowed" if os.path.basename(name) in read else "header_answer"
                    yield Mismatch(kind, within + name, ABSENT, "present")
            if is_absent and is_settled_without(names, stat, folder, self._now_ns):
                self.stats[place] = stat

    def _is_read_elsewhere(self, path: str, name: str, known: Transcript) -> bool:
        """Check whether the folder of a file is one in which a file of this name was read."""
        others = [self._paths[each.root] + name for each in known.places if each.root >= 0 and each.rest == name]
        here = _stat(os.path.dirname(path))
        return here is not None and any(_stat(os.path.dirname(each)) == here for each in others)

    def _files(self, known: Transcript, inodes: dict[Place, tuple[int, int]]) -> Iterator[Mismatch]:
        """Yield each place at which there was a file or folder, and now is another or none."""
        for place, answer in known.places.items():
            path = self._paths[place.root] + place.rest
            try:
                found = os.stat(path)
                is_folder = modes.S_ISDIR(found.st_mode)
                if is_folder != (answer == FOLDER):
                    yield Mismatch("header_changed", path, answer, FOLDER if is_folder else FILE)
                    continue
                if not is_folder:
                    inodes[place] = found.st_dev, found.st_ino
                if answer in (FOLDER, FILE):
                    continue
                stat = stat_of(found)
                if stat == known.stats.get(place):
                    self.stats[place] = stat
                    continue
                content = self._digest(path, stat, place)
                if content != answer:
                    yield Mismatch("header_changed", path, answer, content)
            except (OSError, ValueError) as error:
                yield Mismatch("header_changed", path, answer, why_of(error))

    def _digest(self, path: str, stat: FileStat, place: Place) -> str:
        """Digest a file, of all paths to it once."""
        if stat not in self._digests:
            self._bytes += stat.size
            if self._bytes > MOST_BYTES:
                raise ValueError("there is too much to read")
            stat, data = read_steady(path)
            self._digests[stat] = digest(data)
        if is_settled(stat, self._now_ns):
            self.stats[place] = stat
        return self._digests[stat]


def _is_file(path: str) -> bool:
    """Check whether a path leads to something that NVRTC takes as a header: it skips a folder."""
    found = _stat(path)
    return found is not None and not found[1]


def same_files(inodes: Mapping[Place, tuple[int, int]]) -> tuple[tuple[Place, ...], ...]:
    """List the groups of places with equal (device, inode)."""
    if len({*inodes.values()}) == len(inodes):
        return ()
    groups: dict[tuple[int, int], list[Place]] = {}
    for place, inode in inodes.items():
        groups.setdefault(inode, []).append(place)
    return tuple(sorted(tuple(sorted(group)) for group in groups.values() if len(group) > 1))


def toolkit_now(
    known: Toolkit,
    roots: Roots,
    now_ns: int,
    inodes: dict[Place, tuple[int, int]],
    read: Mapping[Place, tuple[FileStat, str] | None] = {},
) -> Toolkit:
    """Make the toolkit's part as it is now; contents are read only if the stats differ.

    Args:
        known: The part, as it was recorded.
        roots: The folders that are searched for headers.
        now_ns: The time, by the wall clock.
        inodes: Device and inode of each file are added.
        read: The stat and answer of each place that a compile has just got.
    """
    within = roots.beginnings()
    places = [(place, within[place.root] + place.rest) for place in known.places]
    folders = [
        (folder, within[folder.root] + folder.rest) for folder in sorted(known.absent)
    ]  # stored in another order
    rows, newest_ns = list[tuple[int, ...]](), 0
    for place, path in places + folders:
        got = read.get(place)
        looked = (got[0], got[1] == FOLDER) if got else _stat(path)
        if looked is None:
            rows.append(())
            continue
        stat, is_folder = looked
        rows.append((*stat,))
        newest_ns = max(newest_ns, stat.ctime_ns)
        if not is_folder:
            inodes[place] = stat.device, stat.inode
    found = digest(repr(rows).encode())
    if known.stat and found == known.stat:
        return known
    # the type of filesystem is not checked: no program writes to a toolkit's headers through a mapping
    is_settled_ = newest_ns + SETTLED_AFTER_NS <= now_ns
    answers: list[Sequence[str | int]] = []
    for place, path in places:
        _stat_there, answer = read.get(place) or (None, "")
        answers.append([*place, answer or _answer_of(path)])
    for folder, path in folders:
        there = [each for each in known.absent[folder] if os.path.lexists(os.path.join(path, each))]
        answers += [[*folder, each] for each in there if _is_file(os.path.join(path, each))]
        is_settled_ = is_settled_ and not there  # a link that leads nowhere, as for `is_settled_without`
    own = len(roots.own)
    identity = digest_of([[int(root) - own, *rest] for root, *rest in answers])
    return known._replace(identity=identity, stat=found if is_settled_ else "")


def _answer_of(path: str) -> str:
    try:
        return FOLDER if os.path.isdir(path) else digest(read_steady(path)[1])
    except (OSError, ValueError):
        return ABSENT


def _stat(path: str) -> tuple[FileStat, bool] | None:
    """The stat of a path, and whether it is a folder; None if there is nothing."""
    try:
        found = os.stat(path or ".")
    except (OSError, ValueError):
        return None
    return stat_of(found), modes.S_ISDIR(found.st_mode)
