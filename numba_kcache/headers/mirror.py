"""Make a private copy of the user's headers, from the bytes that were surveyed, for the compiler to read instead.

Promise     The user's headers that the compiler reads have the bytes that the survey read. Two paths are one file in
            the mirror exactly if the survey found one file, since `#pragma once` compares inodes. Where that is not
            possible there is no mirror.
Method      A mirror reproduces the part of the file system that the survey's paths lead through, below a root of its
            own: folders as folders, links as links, so that `..`, siblings and `#include_next` have the same meaning
            in it. The path above the common parent is left out, and the root is named by the contents, so that a
            checkout that moved has the same mirror. A file that is not in it cannot be read.
Not here    The toolkit's headers, which are read in place and recorded by their tree. Texts whose code may contain a
            path, or whose includes cannot be listed (compile).
Source      NVRTC 13.5: PTX and cubins have the same bytes wherever source and headers are, except for `__FILE__`,
            similar macros and line tables. In-memory headers break nested relative includes and `#include_next`.
"""

from __future__ import annotations

import os
import re
import shutil
import stat as modes
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from ..keys import Plain, digest_of
from ..model import NamedTuple
from ..model.text import decoded, encoded
from .file_identity import digest, stat_of
from .folders import Folders
from .open_watch import OpenWatch
from .precompiled import precompiled
from .search import ABSOLUTE, SOURCE, WORKING, Place, Search, path_of
from .survey import Survey

if TYPE_CHECKING:
    from ..model.request import LinkInput
    from ..toolchain.nvrtc import NvrtcResult

MAX_BYTES = 256 << 20
"""Limit of the headers' total size; larger ones are read in place."""

ABANDONED_S = 86_400.0
"""Age of a mirror, in seconds, at which its compile has certainly ended."""

_NAME = r"[0-9a-f]{32}(-[0-9]{1,5})?"


class Unmirrored(Exception):
    """The headers cannot be mirrored: a copy could not reproduce their paths or files."""


class Mirror(Folders):
    """The mirror of one compile; it exists on disk until `close`.

    Args:
        surveys: The surveys of the texts that are compiled together.
        edit: Changes each text, the source too, for a compile whose code is only compared. Absolute names in the texts
            are then redirected into the mirror, too, and its files have a fixed time, since line tables contain times.

    Raises:
        Unmirrored: The headers cannot be mirrored.
        OSError: It cannot be written.

    Attributes:
        root: The private folder that holds it.
        may_precompile: Whether it may be compiled with precompiled headers.
        precompiled: Folder of the precompiled headers that were used; "" for none.
        is_left: The compiler may have read a file outside the mirror by an absolute name.
    """

    is_mirror = True

    def __init__(self, surveys: Sequence[Survey], edit: Callable[[bytes], bytes] | None = None) -> None:
        super().__init__(edit)
        self._is_kept, self.may_precompile = bool(precompiled.root) and edit is None, False
        self.root, self.precompiled, self.is_left = "", "", False
        self._own: dict[str, str] = {}  # folders of the search, and their real paths
        self._real: dict[str, str] = {}  # paths of files, and their real paths
        self._folders: set[str] = set()
        self._links: dict[str, str] = {}
        self._files: dict[str, _File] = {}
        self._forced: dict[str, tuple[str, str]] = {}
        self._absolute: dict[bytes, str] = {}  # absolute names in texts, and their real paths
        self._handed: dict[str, str] = {}  # the user's folders, and the folders passed to the compiler in their place
        if os.name != "posix":
            raise Unmirrored("links and inodes work differently on this system")
        for survey in surveys:
            self._add(survey)
        if sum(len(file.data or b"") for file in self._files.values()) > MAX_BYTES:
            raise Unmirrored(f"more than {MAX_BYTES} bytes")
        self._top = os.path.commonpath([*self._folders, *self._own.values()]) if self._own else "/"
        self._write()

    def folder(self, path: str) -> str:
        """Return the folder of the mirror for one of the user's; any other folder is unchanged."""
        return self._handed.get(path, path)

    def flags(self, flags: Sequence[str]) -> list[str]:
        """Return the raw flags, with the files that they include replaced by those of the mirror."""
        found = [*flags]
        for index, flag in enumerate(flags):
            word, equals, name = flag.partition("=")
            if not equals and index + 1 < len(flags):  # the flag's value may be the next element
                name = flags[index + 1]
            if word in ("-include", "--pre-include") and name in self._forced:
                folder, rest = self._forced[name]
                path = os.path.join(self.folder(folder), rest)
                found[index if equals else index + 1] = f"{word}={path}" if equals else path
        return found

    def paths(self) -> list[str]:
        """List the files that the compiler may read."""
        return [self._at(real) for real in self._files]

    def path(self, place: Place, search: Search) -> str | None:
        """Return the mirror's file for one of the user's places; None if the mirror has none."""
        real = self._real.get(path_of(place, search))
        return None if real is None else self._at(real)

    def map_back(self, text: str) -> str:
        """Replace paths in a message by the user's own."""
        if self.root in text:
            for folder, handed in sorted(self._handed.items(), key=lambda pair: -len(pair[1])):
                text = text.replace(handed, folder)
            text = text.replace(f"{self.root}/0", "" if self._top == "/" else self._top)
        return text

    def edited(self, source: str) -> str:
        """Return the source for the compiler."""
        return decoded(self._edited(encoded(source)))

    def look_at(self, code: bytes) -> None:
        """Search code for the mirror's own paths, which a macro of the toolkit may have put there."""
        self.is_visible = self.is_visible or holds_path(code, self.root)

    def close(self) -> None:
        """Remove the mirror, unless precompiled headers were made from its files."""
        if self.root and not self._is_kept:
            shutil.rmtree(self.root, ignore_errors=True)

    def run(self, of: LinkInput | None, source: str, program: str, flags: Sequence[str], *more: Any) -> NvrtcResult:
        """Run NVRTC on a text, with precompiled headers if they are allowed.

        Sets `is_left` if NVRTC opened a file outside the mirror by an absolute name that is in no text.
        """
        folder = precompiled.folder(self.root, source, flags) if self.may_precompile else ""
        if folder and self.precompiled in ("", folder):
            self.precompiled = folder
            pch = ["--pch", "--pch-messages=false", "--pch-verbose=false", f"--pch-dir={self.precompiled}"]
            result = super().run(of, source, program, [*flags, *pch], *more)
            if result.ok:
                return result  # otherwise the run without them, below, reports the error
        with closing(OpenWatch(self._files if self._absolute else ())) as watch:
            result = super().run(of, source, program, flags, *more)
            self.is_left = self.is_left or bool(self._absolute and not all(map(watch.is_unopened, self._files)))
        return result

    # -- contents -----------------------------------------------------------------------------------

    def _add(self, survey: Survey) -> None:
        search = survey.search
        trees = tuple(tree.rstrip("/") + "/" for tree in search.trees)
        own = [folder for folder, (tree, _) in zip(search.folders, search.layout(), strict=True) if tree < 0]
        if search.source_base == WORKING and own:
            raise Unmirrored("a text without a folder")
        for folder in [*own, *([search.working_folder] if search.forced else [])]:
            self._own.setdefault(folder, os.path.realpath(folder))
        for (base, rest), _first in survey.paths.several():  # the compiler uses the folder's other name, too
            if search.roots[base] in self._own:
                self._follow(self._own[search.roots[base]], [*rest.split("/"), ""])
        for place in survey.reachable():
            path = path_of(place, search)
            folder, rest = self._own.get(search.roots[place.base], ""), place.rest
            if place.base == ABSOLUTE and self.edit:
                folder, rest = os.path.split(path)
                folder = self._own.setdefault(folder, os.path.realpath(folder))
            elif place.base in (ABSOLUTE, SOURCE):
                folder = ""
            header, found = survey.headers.get(place), survey.stat(path)
            if not folder or found is None or (header and header.error):
                raise Unmirrored(path)  # the compiler opens the file by its absolute name, or nobody can read it
            real = self._follow(folder, rest.split("/"))
            stat = header.stat if header and header.stat else stat_of(found)
            file = _File(survey.content(place) if header else None, (stat.device, stat.inode))
            known = self._files.get(real, file)
            if real.startswith(trees) or not file.agrees_with(known):
                raise Unmirrored(path)  # the file is in the toolkit, or was replaced since the survey
            self._real[path] = real
            self._files[real] = known if file.data is None else file
        for name in search.forced:
            for place in survey.forced(name):
                # Other forced files are found through the mirror's folders, by `#include_next` too.
                if search.roots[place.base] == search.working_folder:
                    self._forced[name] = search.roots[place.base], place.rest
                elif place.base == ABSOLUTE:
                    self._forced[name] = os.path.split(path_of(place, search))
        for lookup in survey.lookups():
            for place in lookup.found if lookup.include.name.startswith("/") else ():
                self._absolute[os.fsencode(lookup.include.name)] = self._real[path_of(place, search)]

    def _follow(self, folder: str, names: Sequence[str]) -> str:
        """Resolve a path as the kernel does, recording the folders and links on the way; return the real path."""
        for name in names:
            self._folders.add(folder)
            if name == "..":
                folder = os.path.dirname(folder)
            elif name not in ("", "."):
                path = os.path.join(folder, name)
                if path not in self._links:
                    self._links[path] = os.path.realpath(path) if os.path.islink(path) else path
                folder = self._links[path]
        self._folders.add(os.path.dirname(folder))
        return folder

    # -- on disk ------------------------------------------------------------------------------------

    def _at(self, real: str) -> str:
        """Return the path in the mirror of a real path."""
        return f"{self.root}/0{real[len(self._top.rstrip('/')) :].rstrip('/')}"

    def _write(self) -> None:
        first: dict[tuple[int, int], str] = {}
        for real, file in self._files.items():
            original = first.setdefault(file.inode, real)
            known = self._files[original]
            if not file.agrees_with(known):
                raise Unmirrored(real)
            self._files[original] = known if file.data is None else file
        links = {path: real for path, real in self._links.items() if path != real}
        name = self._name(first, links)
        kept = (name, *sorted(self._folders), *(text for pair in sorted(self._own.items()) for text in pair))
        if self._is_kept and kept in precompiled.mirrors:
            self.root, self._handed = precompiled.mirrors[kept]
            return
        self._is_kept = self._is_kept and bool(precompiled.most)
        for place in (precompiled.root,) if self._is_kept else ("/dev/shm", ""):
            try:
                self.root = make_root(place or tempfile.gettempdir(), name)
                self._fill(first, links)
                if self._is_kept:
                    precompiled.mirrors[kept] = self.root, self._handed
                return
            except BaseException as error:  # an interrupt too must leave nothing behind
                shutil.rmtree(self.root or os.devnull, ignore_errors=True)
                if not isinstance(error, OSError) or place != "/dev/shm":
                    raise

    def _name(self, first: Mapping[tuple[int, int], str], links: Mapping[str, str]) -> str:
        """Name the mirror by a digest of its contents."""
        files = sorted(self._files.items())
        parts: list[Plain] = []
        parts += [[self._at(real), self._at(first[each.inode]), digest(each.data or b"")] for real, each in files]
        parts += [[self._at(path), self._at(real)] for path, real in sorted(links.items())]
        return digest_of(parts)[:32]

    def _edited(self, data: bytes) -> bytes:
        data = self.edit(data) if self.edit else data
        if not self._absolute:
            return data
        names = re.compile(b"|".join(map(re.escape, sorted(self._absolute, key=len, reverse=True))))
        return names.sub(lambda name: os.fsencode(self._at(self._absolute[name[0]])), data)

    def _fill(self, first: Mapping[tuple[int, int], str], links: Mapping[str, str]) -> None:
        for folder in sorted(self._folders.union(filter(os.path.isdir, self._own.values()))):
            os.makedirs(self._at(folder), mode=0o700, exist_ok=True)
        for real, file in self._files.items():
            if first[file.inode] == real:
                with open(self._at(real), "xb") as copy:
                    copy.write(self._edited(file.data or b""))
                if self.edit:
                    os.utime(self._at(real), (0, 0))
            else:
                os.link(self._at(first[file.inode]), self._at(real))
        for path, real in links.items():
            os.symlink(self._at(real), self._at(path))
        self._handed.clear()
        for folder, real in self._own.items():
            handed = self._at(real)
            if handed in self._handed.values():  # two folders of the search are the same one
                handed = f"{self.root}/{len(self._handed) + 1}"
                os.symlink(self._at(real), handed)
            self._handed[folder] = handed


def holds_path(code: bytes, path: str) -> bool:
    """Check whether a cubin contains a path, or PTX, which writes text as numbers."""
    name = os.fsencode(path)
    return name in code or ", ".join(map(str, name)).encode() in code


class _File(NamedTuple):
    """A file of the mirror: its bytes, None if the compiler only asks whether it exists; and its identity."""

    data: bytes | None
    inode: tuple[int, int]

    def agrees_with(self, other: _File) -> bool:
        """Check whether both may be the same file, read once."""
        return self.inode == other.inode and (None in (self.data, other.data) or self.data == other.data)


def make_root(place: str, name: str) -> str:
    """Make the root of a mirror; a number is appended to its name if another compile uses the same name."""
    private = _private_folder(place)
    for number in range(1 << 16):
        root = os.path.join(private, f"{name}-{number}" if number else name)
        try:
            os.mkdir(root, 0o700)
        except FileExistsError:
            continue
        return root
    raise Unmirrored(private)


def _private_folder(place: str) -> str:
    """Make this user's private folder for mirrors; under another name if that one is taken."""
    path = os.path.join(place, f"numba_kcache-headers-{os.getuid()}")
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        found = os.lstat(path)
        if not (modes.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077):
            return tempfile.mkdtemp(prefix="numba_kcache-headers-", dir=place)
        sweep(path)
    return os.path.realpath(path)


def sweep(private: str) -> None:
    """Remove mirrors of compiles that were killed: only folders whose names have the form of a mirror's."""
    for name in (each for each in os.listdir(private) if re.fullmatch(_NAME, each)):
        with suppress(OSError):  # another process may have removed the folder
            found = os.stat(path := os.path.join(private, name), follow_symlinks=False)
            if modes.S_ISDIR(found.st_mode) and found.st_mtime < time.time() - ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)
