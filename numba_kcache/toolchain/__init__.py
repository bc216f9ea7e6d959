"""Find the compiler libraries and headers that this process would use, and identify the build of each.

Promise     A library is identified by its GNU build-id (its content's digest if it has none), never by `nvrtcVersion`,
            which has only major.minor. A library mapped into this process, or a package imported, is the one
            identified; so after a compile the identity is that of the compiler that ran. Otherwise it is the one to be
            loaded. It is taken from a stored record as long as the device, inode, size, mtime and ctime of each file,
            and the folders of installed packages, are unchanged; each call checks that, and loads nothing.
Method      A recorded identity costs a few stats, and a search for libraries that are mapped. Where the record is
            outdated, cuda.pathfinder finds the library, and its ELF notes identify the build.
Not here    Storing the record: the caller passes `load` and `save`. Files (locating), builds (build_id), mapped
            libraries (loaded), versions and contents of packages (packages).
Source      NVRTC User Guide "Installation" (libnvrtc-builtins is part of NVRTC).
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..keys import digest_of
from ..model import NamedTuple
from ..settings import toolchain_surroundings

Record = dict[str, Any]
Identified = tuple[dict[str, str | None], dict[str, str | None]]

SOUGHT = {
    "nvrtc": ("nvrtcVersion", "libnvrtc.so.13", "libnvrtc.so.12"),
    "nvJitLink": ("nvJitLinkVersion", "libnvJitLink.so.13", "libnvJitLink.so.12"),
    "nvvm": ("nvvmVersion", "libnvvm.so.4", "libnvvm.so"),
}
"""For each library one of its functions, and the file names by which cuda.pathfinder finds a mapped one, in order."""

PACKAGES = {"numba-cuda": ("numba.cuda.core.sigutils", "numba_cuda"), "cuda-core": ("cuda.core", "cuda/core")}
"""For distributions whose package has another name: a module that only it has, and its folder beside the metadata."""

_BEGAN_NS = time.time_ns()
"""Time at which this module was imported: a package whose files changed later may have been imported before that."""


class Library(NamedTuple):
    """One file of a compiler: its path, its build, and its identity (`file_identities`) when that was found."""

    name: str
    path: str
    build: str
    stat: tuple[int, ...] = ()


class Toolchain:
    """The compilers of this process, identified lazily and remembered in a record.

    Args:
        load: Loads the record of a name; None if there is none.
        save: Stores a record under a name; may fail silently.

    Attributes:
        is_dirty: An identity was found that is not on record; `settle` saves it.
    """

    def __init__(self, load: Callable[[str], Record | None], save: Callable[[str, Record], None]) -> None:
        self.load, self.save_record = load, save
        self.after_fork()
        self._name, self._folders = "", tuple[str, ...]()
        self._record: Record | None = None
        self._facts: dict[str, dict[str, Any]] | None = None
        self._has_loaded, self._contents, self._listed = False, dict[str, str](), dict[str, list[str]]()
        self._packages, self._has_new_packages = dict[str, Any](), False  # in a record of their own: few need them

    def identify(
        self, libraries: Sequence[str], distributions: Sequence[str], *, looks: bool = True
    ) -> Identified | None:
        """Identify the build of each library and the version of each distribution, None for an absent one.
        Without `looks` nothing is searched for: the result is None if any of them is not on record."""
        with self._lock:
            record = self._remembered(is_checked=True)
            rows = [record["libraries"].get(name) for name in libraries]
            known = [record["versions"].get(name) for name in distributions]
            files = [row and row[0] for row in rows] + [row and row[2] for row in known]
            found = dict(zip((*libraries, *distributions), file_identities(files), strict=True))
            here = mapped(libraries)
            builds: dict[str, str | None] = {}
            versions: dict[str, str | None] = {}
            self._is_identifying, self._listed = True, {}
            try:
                for name, row in zip(libraries, rows, strict=True):
                    if row is not None and row[2:] == found[name] and name not in here:
                        builds[name] = row[1]
                        continue
                    if not looks and name not in here:
                        return None
                    library = self._library(name, row)
                    builds[name] = library.build if library else None
                for name, row in zip(distributions, known, strict=True):
                    if sys.modules.get(PACKAGES.get(name, (name,))[0]) is not None:
                        versions[name] = self._imported(name)
                    elif row is not None and row[3:] == found[name]:
                        versions[name] = row[0]
                    elif looks:
                        versions[name] = self.version(name)
                    else:
                        return None
            finally:
                self._is_identifying = False  # not saved: a compile may follow, after which more is known
            return builds, versions

    def settle(self) -> None:
        """Save identities found since the record was last saved."""
        with self._lock:
            if self.is_dirty:
                self._save()

    def after_fork(self) -> None:
        """Replace the lock in a forked child: a thread that exists only in the parent may have held it."""
        self._lock, self._is_identifying, self.is_dirty = threading.RLock(), False, False

    def library(self, name: str, *, saves: bool = True) -> Library | None:
        """Identify `"nvrtc"`, `"nvrtc-builtins"`, `"nvJitLink"`, `"nvvm"`, `"libdevice"`, or an archive that a Numba
        links, as `"numba.cuda:cudadevrt"`; None if it is absent.

        Without `saves`, a new identity is stored by the next call that saves, or by `settle`.
        """
        with self._lock:
            row = self._remembered(is_checked=True)["libraries"].get(name)
            before, self._is_identifying = self._is_identifying, not saves
            try:
                return self._library(name, row)
            finally:
                self._is_identifying = before

    def _library(self, name: str, row: list[Any] | None) -> Library | None:
        if mapped((name,)):
            from .loaded import loaded_library

            self._has_loaded = True
            loaded = loaded_library(name, self.library)
            return loaded and Library(name, *loaded)
        from .build_id import build_of

        path = row[0] if row is not None and os.path.exists(row[0]) else _locate(name, self.library)
        (identity,) = file_identities([path])
        if not path or not identity:
            return None
        if row is None or row[0] != path or row[2:] != identity:
            row = [path, build_of(path), *identity]
            self._keep("libraries", name, row)
        return Library(name, path, row[1], tuple(identity))

    def version(self, distribution: str) -> str | None:
        """Return the version of a distribution: the imported one, else the installed one; None if absent."""
        with self._lock:
            self._remembered()
            if sys.modules.get(PACKAGES.get(distribution, (distribution,))[0]) is not None:
                return self._imported(distribution)
            from .packages import find_installed

            found = find_installed(distribution, self._listed if self._is_identifying else {})
            (identity,) = file_identities([found.metadata])
            self._keep("versions", distribution, [*found, *identity])
            return found.version

    def _imported(self, distribution: str) -> str:
        module, root = PACKAGES.get(distribution, (distribution, distribution))
        path, inside = getattr(sys.modules[module], "__file__", None) or "", os.sep + root.replace("/", os.sep) + os.sep
        folder, is_there, _rest = path.rpartition(inside)
        marked = sys.modules.get(root.replace("/", "."))
        is_its = bool(is_there) and str(getattr(marked, "__file__", "")).startswith(folder + inside)
        version = getattr(marked, "__version__", None) if is_its else None
        if type(version) is str and folder in self._folders:
            if version.replace(".", "").isdigit():
                return version
            from .packages import normal_version

            return normal_version(version)
        package = (folder + inside)[:-1] if is_there else os.path.dirname(path)
        if package not in self._contents:
            from .packages import imported_digest

            self._packages = self._packages or self.load(digest_of([self._name, "packages"])) or {}
            known = self._packages.get(package)
            self._packages[package], self._contents[package] = imported_digest(package, known, _BEGAN_NS)
            if self._packages[package] != known:
                self._has_new_packages = self.is_dirty = True
        return f"{version} {self._contents[package]}"

    def include_dirs(self) -> tuple[str, ...]:
        """List the toolkit's own header folders, CCCL's first; empty if no headers are installed."""

        def find() -> list[str]:
            nvrtc = self.library("nvrtc", saves=False)
            return installed_include_dirs(nvrtc.path if nvrtc else "")

        return tuple(self._known("folders", "", find) or ())

    def folders(self, name: str, find: Callable[[], Sequence[str]], *, is_fresh: bool = False) -> tuple[str, ...]:
        """List further header folders, recorded under a name; `find` raises ImportError or RuntimeError for none."""
        try:
            return tuple(self._known("folders", name, lambda: list(find()), is_fresh=is_fresh) or ())
        except (ImportError, RuntimeError):  # no NVRTC: stored code of another compiler may still be found
            return ()

    def header_trees(self) -> tuple[str, ...]:
        """List the roots of the toolkit's header trees."""
        from .locating import topmost

        return tuple(topmost(self.include_dirs()))

    def forget(self) -> None:
        """Read the record again at the next call."""
        with self._lock:
            self._record, self._packages = None, {}

    def _remembered(self, *, is_checked: bool = False) -> Record:
        """Return the record; with `is_checked`, an empty one if the folders of packages changed since it was made."""
        record = self._record
        if record is None:
            self._folders, found_by = toolchain_surroundings()
            self._name = digest_of([sys.prefix, sys.version, repr(self._folders), repr(found_by)])
            record = self.load(self._name)
            if record is None or not _is_sound(record):
                record = {"watch": [], **{table: {} for table in _TABLES}}
            self._facts = None
        elif not is_checked:
            return record
        watched = file_identities(self._folders)
        if record["watch"] != watched:
            self._facts = self._facts or _facts(record)
            record = {**record, "watch": watched, "libraries": {}, "versions": {}, "folders": {}}
        self._record = record
        return record

    def _known(self, table: str, name: str, find: Callable[[], Any], *, is_fresh: bool = False) -> Any:
        """Take a value from the record, or find and record it; absent and empty values are not recorded."""
        with self._lock:
            known = self._remembered()[table].get(name)
            found = find() if known is None or is_fresh else known
            if found and found != known:
                self._keep(table, name, found, saves=False)
            return found

    def _keep(self, table: str, name: str, row: Any, *, saves: bool = True) -> None:
        """Put a row into the record, and save it now or leave that to `settle`."""
        record = self._remembered()
        self._facts = self._facts or _facts(record)
        record[table][name] = row
        self.is_dirty = True
        if saves:
            self._save()

    def _save(self) -> None:
        """Save the record, once for all that `identify` finds. Where only the identities of files differ, as in each
        container that shares a cache, it is saved only after a compiler was loaded."""
        self.is_dirty = True
        if self._is_identifying:
            return
        if self._has_new_packages:
            self._has_new_packages = False
            self.save_record(digest_of([self._name, "packages"]), self._packages)
        record = self._remembered()
        facts = _facts(record)
        if self._has_loaded or facts != self._facts:
            self.is_dirty, self._facts = False, facts
            self.save_record(self._name, record)


_TABLES = {"libraries": 2, "versions": 3, "folders": None}
"""Tables of a record, and the number of fields in a row before the identity of its file; None: no identity."""


def _facts(record: Record) -> dict[str, dict[str, Any]]:
    """The values of a record, without the identities of files."""
    return {table: {name: row[:end] for name, row in record[table].items()} for table, end in _TABLES.items()}


def _is_sound(record: Record) -> bool:
    """Check whether a record has the shape of one: it may be of another version, or forged."""
    try:
        lists = [record["watch"], *(row for table in _TABLES for row in record[table].values())]
        texts = [text for row in record["libraries"].values() for text in (row[0], row[1])]
        texts += [text for row in record["versions"].values() for text in (row[0] or "", row[1], row[2])]
        texts += [text for row in record["folders"].values() for text in row]
        return all(type(row) is list for row in lists) and all(type(text) is str for text in texts)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        return False


def file_identities(paths: Iterable[str | None]) -> list[list[int]]:
    """Return device, inode, size, mtime and ctime of each file, which differ if it changed; [] for a missing file.

    Programs cannot set a ctime: it differs even for files that were restored with their old mtime.
    """
    identities = []
    for path in paths:
        try:
            found = os.stat(path) if path else None
        except (OSError, ValueError, TypeError, OverflowError):
            found = None
        fields = [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns] if found else []
        identities.append(fields)
    return identities


def mapped(names: Sequence[str]) -> list[str]:
    """List those of the libraries that are mapped into this process, where the bindings find them. Loads nothing."""
    import _ctypes  # a launch imports this module anyway

    loads()
    found: list[str] = []
    for name in names:
        if name == "libdevice":
            numbas = getattr(sys.modules.get("numba.cuda.cudadrv.nvvm"), "LibDevice", None)
            found += [name] if getattr(numbas, "_cache_", None) is not None else []
        sought = "nvrtc" if name == "nvrtc-builtins" else name  # the builtins are part of NVRTC
        if sought in found or (sought != name and name in _seen):
            found.append(name)
        if sys.platform == "win32" or sought in _absent or {sought, name} & {*found} or sought not in SOUGHT:
            continue
        for soname in ("", *(SOUGHT[sought][1:] if sought in _seen else ())):
            try:
                if soname:
                    _ctypes.dlclose(_ctypes.dlopen(soname, os.RTLD_LAZY | os.RTLD_NOLOAD))
                else:  # the global scope
                    _ctypes.dlsym(_ctypes.dlopen(None, os.RTLD_LAZY), SOUGHT[sought][0])  # type: ignore[arg-type]
                found.append(name)
                break
            except OSError:
                pass
        else:
            _absent.add(sought)
    return found


_absent: set[str] = set()
"""Libraries that were not mapped when `loads` last returned a new number."""

_seen = set[str]() if sys.platform == "linux" else set(SOUGHT)
"""Libraries whose name is in the file name or SONAME of a loaded file. Only these are opened by name: for any other
library, the dynamic linker would search its path for a file."""

_newest: list[int] = [0]
"""The number that `loads` returned last, and the address of the `struct link_map` of the last object loaded. That
object is kept loaded, so that `l_next` can be read."""


def loads() -> int:
    """Return a number that grows if this process has loaded a library since the last call."""
    if sys.platform == "linux" and _newest[1:] and not ctypes.c_void_p.from_address(_newest[1] + 24).value:
        return _newest[0]
    _absent.clear()
    _newest[0] += 1
    if sys.platform != "linux":
        return _newest[0]
    import _ctypes

    word, text = ctypes.c_void_p.from_address, ctypes.c_char_p.from_address
    at, following = 0, (_newest[1:] or [_ctypes.dlopen(None, os.RTLD_LAZY)])[0]  # type: ignore[arg-type]
    while following:
        at, name, following = following, text(following + 8).value or b"", word(following + 24).value or 0
        if b".cpython-" in name or b".abi3.so" in name or b"/libcuda.so" in name or b"/" not in name:
            continue
        if not (b"-packages/" in name or b"libs/lib" in name or b"/lib/lib" in name or name.startswith(_SYSTEM)):
            from .build_id import soname_of

            name += soname_of(name)
        _seen.update([each for each in (*SOUGHT, "nvrtc-builtins") if each.encode() in name])
    try:
        _newest[1:] = [_ctypes.dlopen(os.fsdecode(text(at + 8).value or b""), os.RTLD_LAZY | os.RTLD_NOLOAD)]
    except OSError:
        _newest[1:] = []
    return _newest[0]


_SYSTEM = *(os.fsencode(each) + b"/" for each in {sys.base_prefix, sys.prefix}), b"/lib/", b"/lib64/", b"/usr/lib"
"""Folders in which the name of a library's file is its SONAME, as in those of packages and of bundled libraries."""


def _locate(name: str, library: Callable[[str], Library | None]) -> str | None:
    from .locating import locate

    return locate(name, library)


def installed_include_dirs(nvrtc: str = "") -> list[str]:
    """List the header folders of the toolkit, CCCL's first; `nvrtc` is the path of NVRTC if that is known."""
    from .locating import header_folders

    return header_folders(nvrtc)
