"""Which compiler libraries and headers this process would use, and exactly which build each is.

Promise     A library is identified by its GNU build-id (its content's digest where it has none), never by
            `nvrtcVersion`, which knows only major.minor. A known identity costs stats, not a dlopen: it is
            taken from a record that holds while the file's size, mtime and inode, and the folders in which
            packages get installed, are unchanged.
Method      `Toolchain` asks cuda.pathfinder, which dlopens, only for what the record lacks; that happens
            where a compile is about to need the library anyway.
Not here    Where the record is kept: the caller hands in `load` and `save`.
Ground      ELF gABI "Note Section"; NVRTC User Guide "Installation" (libnvrtc-builtins is part of NVRTC).
"""

from __future__ import annotations

import os
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

from ..errors import ToolchainMissingError
from ..keys.components import digest_of
from ..keys.digests import sha256
from ..keys.encoding import encode
from ..settings import toolchain_surroundings

Record = dict[str, Any]

_PT_NOTE, _NT_GNU_BUILD_ID = 4, 3


class Library(NamedTuple):
    """One file of a compiler: where it is, which build it is, and its (size, mtime_ns, inode) then."""

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
        self._is_saved_later = self._is_dirty = False

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
                with self._saving_once():
                    for name in libraries:
                        self.library(name)
                    for name in distributions:
                        self.version(name)
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
        """One of `"nvrtc"`, `"nvrtc-builtins"`, `"nvJitLink"`, `"nvvm"`, `"libdevice"`; None where it is absent."""
        with self._lock:
            known = self._remembered().get("libraries", {}).get(name)
            if known is not None:
                return Library(name, known[0], known[1], (known[2], known[3], known[4]))
            path = _locate(name, self.library)
            if path is None:
                return None
            stat = _stat(path)
            if stat is None:
                return None
            found = Library(name, path, _build_of(path), stat)
            self._remember("libraries", name, [path, found.build, *stat])
            return found

    def version(self, distribution: str) -> str | None:
        """The version of an installed Python distribution; None where absent."""
        with self._lock:
            known = self._remembered().get("versions", {}).get(distribution)
            if known is not None:
                return str(known)
            found = _version(distribution)
            if found is not None:
                self._remember("versions", distribution, found)
            return found

    def include_dirs(self) -> tuple[str, ...]:
        """The toolkit's own header folders, CCCL's first; empty where no headers are installed."""
        with self._lock:
            known = self._remembered().get("include_dirs")
            if known is None:
                known = installed_include_dirs()
                if known:
                    self._remembered()["include_dirs"] = known
                    self.save_record(self._name, self._remembered())
            return tuple(known)

    def folders(self, name: str, find: Callable[[], Sequence[str]], *, is_fresh: bool = False) -> tuple[str, ...]:
        """Further header folders, remembered under a name.

        Args:
            name: Of the list in the record.
            find: Finds them; raises ImportError or RuntimeError where there are none.
            is_fresh: Find them anew, even where the record has them.
        """
        with self._lock:
            known = None if is_fresh else self._remembered().get(name)
            if known is None:
                try:
                    known = list(find())
                except (ImportError, RuntimeError):  # no NVRTC: another compiler's code may still do
                    return ()
                if self._remembered().get(name) != known:
                    self._remembered()[name] = known
                    self.save_record(self._name, self._remembered())
            return tuple(known)

    def header_trees(self) -> tuple[tuple[str, str], ...]:
        """(root, identity) of each of the toolkit's header trees. Identified once for an installation, by content.

        The record holds while a root and the folders right in it are unchanged; a header edited in place inside a
        toolkit is not seen before `clear()`.
        """
        with self._lock:
            known = self._remembered().get("header_trees", [])
            roots = _topmost(self.include_dirs())
            if [each[0] for each in known] != roots or any(each[2] != _folder_stats(each[0]) for each in known):
                known = [[root, _tree_identity(root), _folder_stats(root)] for root in roots]
                self._remembered()["header_trees"] = known
                self.save_record(self._name, self._remembered())
            return tuple((root, identity) for root, identity, _ in known)

    @contextmanager
    def _saving_once(self) -> Iterator[None]:
        """Save what is learned inside at the end, in one go: ten questions would write ten times."""
        with self._lock:
            self._is_saved_later = True
            try:
                yield
            finally:
                self._is_saved_later = False
                if self._is_dirty:
                    self._is_dirty = False
                    self.save_record(self._name, self._remembered())

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

    def _remember(self, table: str, name: str, value: Any) -> None:
        record = self._remembered()
        record.setdefault(table, {})[name] = value
        self._is_dirty = True
        if not self._is_saved_later:
            self._is_dirty = False
            self.save_record(self._name, record)


def _watched(folders: Iterable[str]) -> list[list[Any]]:
    """Folders whose change means that packages came or went, each with its mtime."""
    stats = ((folder, _stat(folder)) for folder in folders)
    return [[folder, stat[1]] for folder, stat in stats if stat]


def _holds(record: Record, watched: list[list[Any]]) -> bool:
    """Whether everything the record rests on is as it was. A record of another shape does not hold."""
    try:
        libraries = record.get("libraries", {}).values()
        lists = [paths for name, paths in record.items() if name.endswith("include_dirs")]
        texts = [*record.get("versions", {}).values(), *(each[1] for each in libraries)]
        texts += [path for paths in lists for path in (paths if type(paths) is list else [None])]
        if not all(type(text) is str for text in texts):
            return False
        return bool(record["watch"] == watched) and all(
            _stat(path) == (size, mtime, inode) for path, _build, size, mtime, inode in libraries
        )
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return False


def _stat(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except (OSError, ValueError, TypeError):
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino


def _locate(name: str, library: Callable[[str], Library | None]) -> str | None:
    if name == "nvrtc-builtins":
        nvrtc = library("nvrtc")
        return _sibling(nvrtc.path, ("libnvrtc-builtins.so", "nvrtc-builtins64")) if nvrtc else None
    return _libdevice_path() if name == "libdevice" else loaded_path(name)


def _libdevice_path() -> str | None:
    try:
        from cuda.pathfinder import BitcodeLibNotFoundError, find_bitcode_lib
    except ImportError:
        return None
    try:
        return str(find_bitcode_lib("device"))
    except BitcodeLibNotFoundError:
        return None


def loaded_path(name: str) -> str | None:
    """Load the library as the CUDA bindings will, and say from where; None where it is not installed."""
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        return None
    try:
        path = load_nvidia_dynamic_lib(name).abs_path
    except DynamicLibNotFoundError:
        return None
    return str(path) if path else None


def _sibling(path: str, prefixes: tuple[str, ...]) -> str | None:
    """The file beside `path` whose name starts with one of `prefixes`: the last one in order."""
    folder = os.path.dirname(os.path.realpath(path))
    names = [name for name in os.listdir(folder) if name.startswith(prefixes)]
    return os.path.join(folder, max(names)) if names else None


def installed_include_dirs() -> list[str]:
    """CCCL before the toolkit, as nvcc orders them: CCCL wheels are newer than the toolkit's copy."""
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
    """Those folders that lie in none of the others."""
    return [
        each
        for each in dict.fromkeys(folders)
        if not any(each != other and each.startswith(other.rstrip("/") + "/") for other in folders)
    ]


def _folder_stats(root: str) -> list[list[int]]:
    """(mtime_ns, inode) of a tree's root and of the folders right in it: what an installation changes."""
    try:
        with os.scandir(root) as entries:
            folders = sorted(each.path for each in entries if each.is_dir())
    except OSError:
        return []
    stats = (_stat(each) for each in (root, *folders))
    return [[each[1], each[2]] for each in stats if each]


def _tree_identity(root: str) -> str:
    """A digest of every file's path and content."""
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
    """The GNU build-id of an ELF library, or the digest of a file that has none."""
    import hashlib

    with open(path, "rb") as file:
        note = _build_id(file)
        if note is not None:
            return "build-id:" + note.hex()
        file.seek(0)
        digest = hashlib.sha256(usedforsecurity=False)
        while block := file.read(1 << 20):
            digest.update(block)
    return "sha256:" + digest.hexdigest()


def _build_id(file: BinaryIO) -> bytes | None:
    """The NT_GNU_BUILD_ID note of an ELF file; None where there is none."""
    head = file.read(64)
    if head[:6] != b"\x7fELF\x02\x01" or len(head) < 64:
        return None
    (offset,) = struct.unpack_from("<Q", head, 32)
    width, count = struct.unpack_from("<HH", head, 54)
    file.seek(offset)
    table = file.read(width * count)
    try:
        for index in range(count):
            kind, _flags, start, _va, _pa, size = struct.unpack_from("<IIQQQQ", table, index * width)
            if kind == _PT_NOTE and size <= 1 << 16:
                file.seek(start)
                for name, note, body in _notes(file.read(size)):
                    if (name, note) == (b"GNU\0", _NT_GNU_BUILD_ID):
                        return body
    except struct.error:
        return None
    return None


def _notes(segment: bytes) -> Iterator[tuple[bytes, int, bytes]]:
    """(name, type, content) of each note."""
    at = 0
    while at + 12 <= len(segment):
        name_size, body_size, note = struct.unpack_from("<III", segment, at)
        name_at = at + 12
        body_at = name_at + (name_size + 3 & ~3)
        yield segment[name_at : name_at + name_size], note, segment[body_at : body_at + body_size]
        at = body_at + (body_size + 3 & ~3)


def missing(what: str, library: str) -> ToolchainMissingError:
    """The error for a compiler library that is not installed."""
    return ToolchainMissingError(
        f"cannot {what}",
        f"the {library} library is not installed",
        "pip install 'numba-kcache[cu13]' (or [cu12] for a driver older than 580)",
    )
