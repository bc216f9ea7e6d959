"""Watch with inotify which headers are opened while the compiler runs; the others were not read.

Promise     A file counts as unopened only if its watch reported a test opening, no event was lost, and its path leads
            to the same file as before. All others count as opened.
Method      inotify(7) reports openings by any process; one by another process only adds a dependency. Each of the
            user's headers, in the mirror or in place, has its own watch; in a toolkit's tree the folders are watched,
            since it is not known beforehand which of its headers will be used.
Not here    The list of headers that a compile read (reading).
Source      inotify(7): IN_OPEN is reported for a file itself by any of its paths, and for the folder that contains it
            after links are resolved; equal consecutive events are merged, and a queue overflow reports the watch -1.
"""

from __future__ import annotations

import functools
import os
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ..model import NamedTuple
from .file_identity import FileStat, stat_of

_IN_OPEN = 0x20
_HEADER = struct.Struct("iIII")
_BUFFER_BYTES = 1 << 16


class OpenWatch:
    """A watch on files, from construction until `close`.

    Args:
        paths: Paths of single files.
        trees: Roots of trees that are watched completely.
    """

    def __init__(self, paths: Iterable[str], trees: Sequence[str] = ()) -> None:
        self._files: dict[str, tuple[int, FileStat]] = {}
        self._folders: dict[str, int] = {}
        self._opened: set[int | tuple[int, str]] = set()
        self._fd, self._wanted, self._is_over = -1, 0, False
        paths = [*paths]
        try:
            if paths or trees:
                self._start(paths, trees)
        except (OSError, ImportError, AttributeError):  # no inotify, or too many watches: all count as opened
            self._files.clear()
            self._folders.clear()

    def _start(self, paths: Iterable[str], trees: Sequence[str]) -> None:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            return
        for path in paths:
            self._wanted += 1
            number = libc.inotify_add_watch(self._fd, os.fsencode(path), _IN_OPEN)
            if number >= 0:
                self._files[path] = number, _probe(path)
        devices: dict[int, int] = {}  # with the first folder on each: a file system reports all openings or none
        for place in (each for root in trees for each in _folders_of(root)):
            self._wanted += 1
            number = libc.inotify_add_watch(self._fd, os.fsencode(place.folder), _IN_OPEN)
            if number >= 0:
                self._folders[place.folder] = number
                if devices.setdefault(place.device, number) == number:
                    _probe(os.path.join(place.folder, place.name))
        self._read()
        answered = {each if isinstance(each, int) else each[0] for each in self._opened}
        self._files = {path: each for path, each in self._files.items() if each[0] in answered}
        silent = {device for device, number in devices.items() if number not in answered}
        for place in (each for root in trees for each in _folders_of(root) if each.device in silent):
            self._folders.pop(place.folder, None)
        self._opened.clear()

    def is_unopened(self, path: str) -> bool:
        """Check whether a file was certainly not opened since the watch began. Its path may contain links."""
        self._read()
        if -1 in self._opened:
            return False
        if path in self._files:
            number, stat = self._files[path]
            return number not in self._opened and _is_same(path, stat)
        number = self._folders.get(_real_folder(os.path.dirname(path)), -1)
        return number >= 0 and (number, os.path.basename(path)) not in self._opened and not os.path.islink(path)

    def opened_in(self, root: str) -> list[str] | None:
        """List the files of a tree that were opened since the watch began, below its root; None if that is unknown.

        For a link the name of its target is reported, if that is in the tree too.
        """
        self._read()
        real = os.path.realpath(root)
        folders = {number: folder for folder, number in self._folders.items() if (folder + "/").startswith(real + "/")}
        if -1 in self._opened or {each.folder for each in _folders_of(root)} != set(folders.values()):
            return None
        pairs = [each for each in self._opened if isinstance(each, tuple) and each[0] in folders]
        return [os.path.relpath(os.path.join(folders[number], name), real) for number, name in pairs]

    def fileno(self) -> int:
        """Descriptor that can be read from once something was opened."""
        return self._fd

    def is_whole(self) -> bool:
        """Check whether every requested file and tree is watched and no event was lost."""
        self._read()
        return 0 < self._wanted == len(self._files) + len(self._folders) and -1 not in self._opened

    def opened(self) -> list[str]:
        """List the files that were opened since the watch began, or may have been."""
        self._read()
        folders = {number: folder for folder, number in self._folders.items()}
        found = [path for path, (number, _stat) in self._files.items() if number in self._opened]
        pairs = [each for each in self._opened if isinstance(each, tuple) and each[0] in folders]
        return found + [os.path.join(folders[number], name) for number, name in pairs]

    def mark_opened(self, paths: Iterable[str]) -> None:
        """Mark files as opened, since precompiled headers that were made from them are used."""
        for path in paths:
            if path in self._files:
                self._opened.add(self._files[path][0])
            elif os.path.dirname(path) in self._folders:
                self._opened.add((self._folders[os.path.dirname(path)], os.path.basename(path)))

    def stop(self) -> None:
        """Read the last events; later calls, for hundreds of headers, then read none."""
        self._read()
        self._is_over = True

    def close(self) -> None:
        """End the watch.

        The kernel takes milliseconds to end hundreds of watches, so a thread does it.
        """
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            threading.Thread(target=os.close, args=(fd,), name="numba_kcache watch", daemon=True).start()
        except RuntimeError:  # no more threads, or the interpreter is going down
            os.close(fd)

    def _read(self) -> None:
        if not self._is_over:
            self._opened.update(self._events())

    def _events(self) -> Iterator[int | tuple[int, str]]:
        """Yield each opening as a watch, or as (watch, name within its folder); -1 if events may have been lost."""
        while True:
            try:
                data = os.read(self._fd, _BUFFER_BYTES)
            except BlockingIOError:
                return
            except OSError:
                yield -1
                return
            at = 0
            while at < len(data):
                number, _mask, _cookie, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size + length
                name = data[at - length : at].rstrip(b"\0")
                yield (number, os.fsdecode(name)) if name else number


def _probe(path: str) -> FileStat:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return stat_of(os.fstat(handle))
    finally:
        os.close(handle)


def _is_same(path: str, stat: FileStat) -> bool:
    try:
        return stat_of(os.stat(path)) == stat
    except OSError:
        return False


class _Place(NamedTuple):
    """A folder of a tree, the device that it is on, and one of its files."""

    folder: str
    device: int
    name: str


@functools.lru_cache(maxsize=8)
def _folders_of(root: str) -> list[_Place]:
    """List each folder of a tree that has files."""
    found, pending = [], [os.path.realpath(root)]
    for folder in pending:  # grows
        name = ""
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif not name and entry.is_file(follow_symlinks=False):
                    name = entry.name
            if name:
                found.append(_Place(folder, os.stat(folder).st_dev, name))
    return found


@functools.lru_cache(maxsize=4096)
def _real_folder(folder: str) -> str:
    return os.path.realpath(folder)
