"""Identify the build of each compiler that this process would use, by a record of the machine's compilers.

Promise     A library is identified by its GNU build-id (its content's digest if it has none), never by `nvrtcVersion`,
            which has only major.minor. Until this process calls a compiler, the identity is that of the installed one,
            whatever others have mapped; from then on that of the library that was called, read from memory. So an entry
            is stored under the compiler that made it, and a hit is code of the compiler in its key.
Method      `Record` holds each library's identity as long as the device, inode, size, mtime and ctime of its file, and
            the folders of installed packages, are unchanged; each call checks that by a few stats, and loads nothing.
            Where the record is outdated, cuda.pathfinder finds the library, and its ELF notes identify the build.
Not here    Storing the record: the caller passes `load` and `save`. Files and builds (locating), called
            libraries (loaded), versions and contents of packages (packages).
Source      NVRTC User Guide "Installation" (libnvrtc-builtins is part of NVRTC).
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from ..keys import digest_of
from ..model import NamedTuple
from ..settings import toolchain_surroundings

Identified = tuple[dict[str, str | None], dict[str, str | None]]

called = set[str]()
"""Libraries that this process has called, or is about to call."""

PACKAGES = {
    "numba-cuda": ("numba.cuda.core.sigutils", "numba_cuda"),
    "cuda-core": ("cuda.core", "cuda/core"),
    "cuda-cccl": ("cuda.cccl", "cuda/cccl"),
}
"""For distributions whose package has another name: a module that only it has, and its folder beside the metadata."""

_BEGAN_NS = os.stat("/proc/self").st_ctime_ns if os.path.exists("/proc/self") else time.time_ns()
"""A time at which this process was running, by the clock of its files, which no test or program sets: a package whose
files changed later may have been imported before that."""


class Record(NamedTuple):
    """The compilers of one installation of Python, as a process found them; it is stored as JSON.

    Args:
        watch: The identities, when it was made, of what changes if compilers may be found elsewhere: the folders of
            installed packages and of the loader, the roots of toolkits.
        files: Path, build and identity (`file_identities`) of each library, and of the metadata of each distribution;
            the build of that is a version, or None if it is not installed.
        folders: Lists of header folders; under "" those of the toolkit.
    """

    watch: list[list[int]]
    files: dict[str, list[Any]]
    folders: dict[str, list[str]]


class Library(NamedTuple):
    """One file of a compiler: its path and its build."""

    name: str
    path: str
    build: str


def load_compilers(names: Iterable[str]) -> bool:
    """Have the bindings load these libraries, if installed, and remember those that are called from now on. Returns
    False if this process had called each of them."""
    names = tuple(names)
    if called.issuperset(names):
        return False
    from . import loaded

    called.update(loaded.load(names))
    called.update(["nvrtc-builtins"] if "nvrtc" in called else [], ["libdevice"] if "nvvm" in called else [])
    return True


class Toolchain:
    """The compilers of this process, identified lazily and remembered in a record.

    Args:
        load: Loads the record of a name; None if there is none.
        save: Stores a record under a name; may fail silently.
        private: Returns a folder in which to keep the headers that NVRTC holds itself; "" for none.

    Attributes:
        is_dirty: An identity was found that is not on record; `settle` saves it.
    """

    is_dirty: bool

    def __init__(
        self,
        load: Callable[[str], dict[str, Any] | None],
        save: Callable[[str, dict[str, Any]], None],
        private: Callable[[], str] = str,
    ) -> None:
        self.load, self.save_record, self._private = load, save, private
        self.after_fork()
        self._name, self._folders, self._watched = "", tuple[str, ...](), list[str]()
        self._record: Record | None = None
        self._imported = dict[str, str]()

    def peeking(self, load: Callable[[str], Any]) -> Toolchain:
        """The same, but records are read by `load`, and none is saved."""
        from copy import copy  # here: only explanations need it

        found = copy(self)
        found.load, found.save_record = load, lambda name, record: None
        return found

    def identify(
        self, libraries: Sequence[str], distributions: Sequence[str], *, looks: bool = True
    ) -> Identified | None:
        """Identify the build of each library and the version of each distribution, None for an absent one.
        Without `looks` nothing is searched for: the result is None if any of them is not on record."""
        with self._lock:
            record = self._remembered(is_checked=True)
            names = (*libraries, *distributions)
            rows = [record.files.get(name) for name in names]
            paths = [row[0] if row and name not in called else None for name, row in zip(names, rows, strict=True)]
            found = file_identities(paths)
            identified: dict[str, str | None] = {}
            for name, row, identity in zip(names, rows, found, strict=True):
                if not row or row[2:] != identity or name in called:
                    if not (looks or name in called):
                        return None
                    before, row = row, self._library(name, row) if name in libraries else self._installed(name)
                    if row and before and row[:6] == before[:6]:  # a link to the file renews its ctime alone: the
                        row = before  # content is that on record
                identified[name] = row[1] if row else None
                if row and name not in libraries and sys.modules.get(PACKAGES.get(name, (name,))[0]) is not None:
                    identified[name] = self._imported_version(name, row)
            return {name: identified[name] for name in libraries}, {name: identified[name] for name in distributions}

    def settle(self) -> None:
        """Save what was found since the last call."""
        with self._lock:
            if self.is_dirty:
                self.is_dirty = False
                self.save_record(self._name, self._remembered()._asdict())

    def after_fork(self) -> None:
        """Replace the lock in a forked child: a thread that exists only in the parent may have held it."""
        self._lock = threading.RLock()
        self.is_dirty = False

    def library(self, name: str) -> Library | None:
        """Identify `"nvrtc"`, `"nvrtc-builtins"`, `"nvJitLink"`, `"nvvm"`, `"libdevice"`, or an archive that a Numba
        links, as `"numba.cuda:cudadevrt"`; None if it is absent."""
        with self._lock:
            found = self._library(name, self._remembered(is_checked=True).files.get(name))
            return Library(name, found[0], found[1]) if found else None

    def _library(self, name: str, row: list[Any] | None) -> list[Any] | None:
        from .locating import build_of, locate

        if name in called:
            from .loaded import loaded_library

            ran = loaded_library(name)
            if ran is not None:
                return [*ran]
        path = row[0] if row and os.path.exists(row[0]) else locate(name, self.library)
        (identity,) = file_identities([path])
        if not path or not identity:
            return None
        if not row or row[0] != path or row[2:] != identity:
            row = [path, build_of(path), *identity]
            self._keep("files", name, row)
        return row

    def _installed(self, distribution: str) -> list[Any]:
        from .packages import find_installed

        path, version = find_installed(distribution)
        row = [path, version, *file_identities([path])[0]]
        self._keep("files", distribution, row)
        return row

    def _imported_version(self, distribution: str, row: list[Any]) -> str:
        """The version on record, or the content of what was imported from elsewhere; it stays the same."""
        if distribution in self._imported:
            return self._imported[distribution]
        module, root = PACKAGES.get(distribution, (distribution, distribution))
        path, inside = getattr(sys.modules[module], "__file__", None) or "", os.sep + root.replace("/", os.sep) + os.sep
        folder, is_there, _rest = path.rpartition(inside)
        marked = sys.modules.get(root.replace("/", "."))
        place = str(getattr(marked, "__file__", ""))
        version = getattr(marked, "__version__", None) if is_there and place.startswith(folder + inside) else None
        known = str(row[1])
        # what was installed later may have replaced what was imported
        is_known = folder in self._folders and row[0].startswith(folder + os.sep) and row[6:] < [_BEGAN_NS]
        if not is_known or known.split(" ")[0].replace(".", "") != str(version).replace(".", ""):
            from .packages import imported_digest

            package = (folder + inside)[:-1] if is_there else os.path.dirname(path)
            known = f"{version} {imported_digest(package, _BEGAN_NS)}"
        self._imported[distribution] = known
        return known

    def include_dirs(self) -> tuple[str, ...]:
        """List the toolkit's own header folders, CCCL's first; empty if no headers are installed."""

        def find() -> list[str]:
            nvrtc = self.library("nvrtc")
            return installed_include_dirs(nvrtc.path if nvrtc else "")

        return self.folders("", find)

    def bundled_dirs(self) -> tuple[str, ...]:
        """List the folders of the headers that NVRTC holds itself, which are extracted if need be; empty if those of a
        toolkit are installed."""
        with self._lock:
            nvrtc, builtins, folder = self.library("nvrtc"), self.library("nvrtc-builtins"), self._private()
            if not (nvrtc and builtins and folder) or installed_include_dirs(nvrtc.path):
                return ()
            from .nvrtc import extract_headers

            found = extract_headers(folder, builtins.build)
            if found:
                self._keep("folders", "", found)
            return tuple(found)

    def folders(self, name: str, find: Callable[[], Sequence[str]], *, is_fresh: bool = False) -> tuple[str, ...]:
        """Take header folders from the record, or find and record them; that there are none is not recorded.

        Args:
            name: Their name in the record.
            find: Finds them; raises ImportError or RuntimeError for none.
            is_fresh: Find them again.
        """
        with self._lock:
            known = self._remembered().folders.get(name)
            try:
                found = list(find()) if known is None or is_fresh else known
            except (ImportError, RuntimeError):  # no NVRTC: stored code of another compiler may still be found
                return ()
            if found and found != known:
                self._keep("folders", name, found)
            return tuple(found)

    def forget(self) -> None:
        """Read the record again at the next call."""
        with self._lock:
            self._record = None

    def _remembered(self, *, is_checked: bool = False) -> Record:
        """Return the record; with `is_checked`, an empty one if the folders of packages changed since it was made."""
        record = self._record
        if record is None:
            self._folders, found_by = toolchain_surroundings()
            self._name = digest_of([sys.prefix, sys.version, repr(self._folders), repr(found_by)])
            self._watched = [*self._folders, "/etc/ld.so.cache"]
            for name, text in found_by.items():
                if name == "CONDA_PREFIX":
                    self._watched.append(f"{text}/conda-meta")
                elif name != "PYTHONPATH":  # the folders of the loader, and toolkits, whose paths are mostly links
                    self._watched += filter(os.path.isabs, text.split(os.pathsep))
            record = _sound_record(self.load(self._name)) or Record([], {}, {})
        elif not is_checked:
            return record
        watched = file_identities(self._watched)
        if record.watch != watched:
            record = Record(watched, {}, {})
        self._record = record
        return record

    def _keep(self, table: str, name: str, row: Any) -> None:
        """Put a row into the record; `settle` saves it."""
        record = self._remembered()
        getattr(record, table)[name] = row
        if name == "nvrtc":
            record.folders.clear()  # they were those of the toolkit of another NVRTC
        self.is_dirty = True


def _sound_record(stored: dict[str, Any] | None) -> Record | None:
    """Make a record of a stored value; None if it does not have the shape of one: it may be forged."""
    try:
        record = Record(**stored or {})
        lists = [record.watch, *record.files.values(), *record.folders.values()]
        texts = [text for row in record.files.values() for text in (row[0], row[1] or "")]
        texts += [text for row in record.folders.values() for text in row]
        is_sound = all(type(row) is list for row in lists) and all(type(text) is str for text in texts)
        return record if is_sound else None
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def file_identities(paths: Iterable[str | None]) -> list[list[int]]:
    """Return device, inode, size, mtime and ctime of each file, which differ if it changed; [] for a missing file.

    Programs cannot set a ctime: it differs even for files that were restored with their old mtime.
    """
    identities = list[list[int]]()
    for path in paths:
        identities.append([])
        with suppress(OSError, ValueError, TypeError, OverflowError):
            found = os.stat(path or "")
            identities[-1] += found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    return identities


def installed_include_dirs(nvrtc: str = "") -> list[str]:
    """List the header folders of the toolkit, CCCL's first; `nvrtc` is the path of NVRTC if that is known."""
    from .locating import header_folders

    return header_folders(nvrtc)
