"""Find the compiler libraries and headers that this process would use, and identify the build of each.

Promise     A library is identified by its GNU build-id (its content's digest where it has none), never by
            `nvrtcVersion`, which knows only major.minor. A known identity costs stats, not a dlopen: it is
            taken from a record that holds while the file's size, mtime and inode, and the folders in which
            packages get installed, are unchanged.
Method      `Toolchain` asks cuda.pathfinder, which dlopens, only for what the record lacks; that happens
            where a compile is about to need the library anyway.
Not here    The place of the record: the caller hands in `load` and `save`.
Ground      ELF gABI "Note Section"; NVRTC User Guide "Installation" (libnvrtc-builtins is part of NVRTC).
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO, NamedTuple

from ..errors import ToolchainMissingError
from ..keys import digest_of, encode, sha256
from ..settings import toolchain_surroundings

Record = dict[str, Any]

_PT_NOTE = 4
_BUILD_ID = rb"(?s)\x04\0\0\0([\x08-\x40])\0\0\0\x03\0\0\0GNU\0(.{8,64})"
"""The note NT_GNU_BUILD_ID: sizes of name and content, type, name, and what follows."""


class Library(NamedTuple):
    """One file of a compiler: its path, its build, and its (size, mtime_ns, inode) when that was found."""

    name: str
    path: str
    build: str
    stat: tuple[int, int, int]


class Toolchain:
    """The compilers of this process, identified lazily and remembered in a record.

    Args:
        load: Gives the variants of a manifest, of which the record saved under its name is one.
        save: Keeps a record under a name; may fail silently.
    """

    def __init__(self, load: Callable[[str], Iterable[Mapping[str, Any]]], save: Callable[[str, Record], None]) -> None:
        self.load, self.save_record = load, save
        self._lock = threading.RLock()
        self._name = ""
        self._record: Record | None = None
        self._is_identifying = self._is_dirty = False

    def identify(
        self, libraries: Sequence[str], distributions: Sequence[str], *, looks: bool = True
    ) -> tuple[dict[str, str | None], dict[str, str | None]] | None:
        """Identify compilers: the build of each library and the version of each distribution, None for an absent one.

        Args:
            libraries, distributions: As for `library` and `version`.
            looks: Look for what is not on record; else the result is None where anything is not.
        """
        with self._lock:
            record = self._remembered()
            builds, versions = record.get("libraries", {}), record.get("versions", {})
            if not (builds.keys() >= set(libraries) and versions.keys() >= set(distributions)):
                if not looks:
                    return None
                self._is_identifying = True
                try:
                    for name in libraries:
                        self.library(name)
                    for name in distributions:
                        self.version(name)
                finally:
                    self._is_identifying = False
                    if self._is_dirty:
                        self._save()
                builds, versions = record.get("libraries", {}), record.get("versions", {})
            return (
                {name: builds[name][1] if name in builds else None for name in libraries},
                {name: versions.get(name) for name in distributions},
            )

    def load_record(self, name: str) -> Record | None:
        """Load the record saved under a name."""
        for variant in self.load(name):
            record = variant.get("record")
            if isinstance(record, dict):
                return record
        return None

    def library(self, name: str) -> Library | None:
        """Identify `"nvrtc"`, `"nvrtc-builtins"`, `"nvJitLink"`, `"nvvm"` or `"libdevice"`; None where it is absent."""

        def find() -> list[Any] | None:
            path = _locate(name, self.library)
            stat = _stat(path) if path else None
            return [path, _build_of(str(path)), *stat] if stat else None

        known = self._known("libraries", name, find)
        return known and Library(name, known[0], known[1], (known[2], known[3], known[4]))

    def version(self, distribution: str) -> str | None:
        """Return the version of an installed Python distribution; None where absent."""
        found: str | None = self._known("versions", distribution, lambda: _version(distribution))
        return found

    def include_dirs(self) -> tuple[str, ...]:
        """List the toolkit's own header folders, CCCL's first; empty where no headers are installed."""
        return tuple(self._known("folders", "", installed_include_dirs) or ())

    def folders(self, name: str, find: Callable[[], Sequence[str]], *, is_fresh: bool = False) -> tuple[str, ...]:
        """List further header folders, remembered under a name.

        Args:
            name: Of the list in the record.
            find: Finds them; raises ImportError or RuntimeError where there are none.
            is_fresh: Find them anew, even where the record has them.
        """
        try:
            return tuple(self._known("folders", name, lambda: list(find()), is_fresh=is_fresh) or ())
        except (ImportError, RuntimeError):  # no NVRTC: another compiler's code may still do
            return ()

    def header_trees(self) -> tuple[tuple[str, str], ...]:
        """List (root, identity) of each of the toolkit's header trees. Identified once for an installation, by content.

        The record holds while a root and the folders right in it are unchanged; a header edited in place inside a
        toolkit is not seen before `clear()`.
        """
        with self._lock:
            known = self._remembered().get("header_trees", [])
            roots = _topmost(self.include_dirs())
            if [each[0] for each in known] != roots or any(each[2] != _folder_stats(each[0]) for each in known):
                known = [[root, _tree_identity(root), _folder_stats(root)] for root in roots]
                self._remembered()["header_trees"] = known
                self._save()
            return tuple((root, identity) for root, identity, _ in known)

    def forget(self) -> None:
        """Look at the record again at the next question."""
        with self._lock:
            self._record = None

    def _remembered(self) -> Record:
        if self._record is None:
            folders, found_by = toolchain_surroundings()
            self._name = digest_of([sys.prefix, sys.version, repr(folders), repr(found_by)])
            record, watched = self.load_record(self._name), _watched(folders)
            self._record = record if record is not None and _holds(record, watched) else {"watch": watched}
        return self._record

    def _known(self, table: str, name: str, find: Callable[[], Any], *, is_fresh: bool = False) -> Any:
        """Take a value from the record, or find it and remember it; not one that is absent or empty."""
        with self._lock:
            rows = self._remembered().setdefault(table, {})
            if is_fresh or name not in rows:
                found = find()
                if not found or rows.get(name) == found:
                    return found
                rows[name] = found
                self._save()
            return rows[name]

    def _save(self) -> None:
        """Save the record, unless `identify` does so when it is done: ten answers would be written ten times."""
        self._is_dirty = True
        if not self._is_identifying:
            self._is_dirty = False
            self.save_record(self._name, self._remembered())


def _watched(folders: Iterable[str]) -> list[list[Any]]:
    """Folders whose change means that packages came or went, each with its mtime."""
    stats = ((folder, _stat(folder)) for folder in folders)
    return [[folder, stat[1]] for folder, stat in stats if stat]


def _holds(record: Record, watched: list[list[Any]]) -> bool:
    """Tell if everything the record rests on is as it was. A record of another shape does not hold."""
    try:
        libraries = record.get("libraries", {}).values()
        texts = [*record.get("versions", {}).values(), *(each[1] for each in libraries)]
        for paths in record.get("folders", {}).values():
            texts += paths if type(paths) is list else [None]
        for root, identity, _stats in record.get("header_trees", []):
            texts += [root, identity]
        return (
            all(type(text) is str for text in texts)
            and all(type(each) is list and type(each[0]) is str for each in libraries)
            and bool(record["watch"] == watched)
            and all(_stat(path) == (size, mtime, inode) for path, _build, size, mtime, inode in libraries)
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
        return False


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError, TypeError, OverflowError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _locate(name: str, library: Callable[[str], Library | None]) -> str | None:
    if name != "nvrtc-builtins":
        return loaded_path(name)
    nvrtc = library("nvrtc")
    if nvrtc is None:
        return None
    folder = os.path.dirname(os.path.realpath(nvrtc.path))
    names = [each for each in os.listdir(folder) if each.startswith(("libnvrtc-builtins.so", "nvrtc-builtins64"))]
    return os.path.join(folder, max(names)) if names else None


def loaded_path(name: str) -> str | None:
    """Load a library as the CUDA bindings will, and return its path; None where it is not installed."""
    try:
        from cuda.pathfinder import find_bitcode_lib, load_nvidia_dynamic_lib

        path = find_bitcode_lib("device") if name == "libdevice" else load_nvidia_dynamic_lib(name).abs_path
    except (ImportError, RuntimeError):  # no cuda.pathfinder, or no such library
        return None
    return str(path) if path else None


def installed_include_dirs() -> list[str]:
    """List CCCL before the toolkit, as nvcc orders them: CCCL wheels are newer than the toolkit's copy."""
    try:
        from cuda.pathfinder import find_nvidia_header_directory
    except ImportError:
        return []
    found = [find_nvidia_header_directory(name) for name in ("cccl", "cudart")]
    if found[1] and not found[0]:
        bundled = os.path.join(found[1], "cccl")
        found[0] = bundled if os.path.isdir(bundled) else None
    return [os.path.realpath(path) for path in found if path]


def _topmost(folders: Sequence[str]) -> list[str]:
    """List those folders that lie in none of the others."""
    return [
        each
        for each in dict.fromkeys(folders)
        if not any(each != other and each.startswith(other.rstrip("/") + "/") for other in folders)
    ]


def _folder_stats(root: str) -> list[list[int]]:
    """List (mtime_ns, inode) of a tree's root and of the folders right in it: what an installation changes."""
    try:
        with os.scandir(root) as entries:
            folders = sorted(each.path for each in entries if each.is_dir())
    except OSError:
        return []
    stats = (_stat(each) for each in (root, *folders))
    return [[each[1], each[2]] for each in stats if each]


def _tree_identity(root: str) -> str:
    """Digest every file's path and content."""
    import hashlib

    found = hashlib.sha256(usedforsecurity=False)
    root = root.rstrip("/")
    for folder, folders, names in os.walk(root):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                with open(path, "rb") as file:
                    content = sha256(file.read()).digest()
            except OSError:
                content = b""
            found.update(encode([path[len(root) + 1 :], content]))  # os.path.relpath takes as long as all else
    return found.hexdigest()


def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _build_of(path: str) -> str:
    """Return the GNU build-id of an ELF library, or the digest of a file that has none."""
    import hashlib
    import re

    with open(path, "rb") as file:
        note = re.search(_BUILD_ID, _notes(file))
        if note is not None:
            return "build-id:" + note[2][: note[1][0]].hex()
        file.seek(0)
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _notes(file: BinaryIO) -> bytes:
    """Read the note segments of a 64-bit ELF file; empty for any other."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
        return b""
    (offset,), (count,) = struct.unpack_from("<Q", head, 32), struct.unpack_from("<H", head, 56)
    file.seek(offset)
    table, notes = file.read(56 * count), b""
    for kind, _flags, start, _va, _pa, size, *_ in struct.iter_unpack("<IIQQQQQQ", table[: len(table) // 56 * 56]):
        if kind == _PT_NOTE and size <= 1 << 16:
            file.seek(start)
            notes += file.read(size)
    return notes


def missing(what: str, library: str) -> ToolchainMissingError:
    """Make the error for a compiler library that is not installed."""
    return ToolchainMissingError(
        f"cannot {what}",
        f"the {library} library is not installed",
        "pip install 'numba-kcache[cu13]' (or [cu12] for a driver older than 580)",
    )
