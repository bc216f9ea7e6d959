"""Find the version of a Python distribution: in its metadata, or by its content if the metadata cannot be trusted.

Promise     A package imported from a folder that no installer wrote (an editable install, a checkout on `PYTHONPATH`)
            is identified by the content of its files, without folders of tests while no test is imported. If a file
            changed since this process began, the imported content is unknown, and the identity is random: no other
            process has the same.
Method      The record lists folders and files. If all their stats are unchanged, no file was added either: then no
            folder is listed and no file is read. A start takes one stat for each of them, a thousand for Numba and
            its dependencies.
Not here    Which modules are imported, and the record of what was found (Toolchain).
Source      PyPA, "Recording installed projects": a `.dist-info` folder is beside the package that it describes.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from importlib.machinery import PathFinder
from typing import Any

from ..keys import Plain, digest_of, sha256
from ..model import NamedTuple

SETTLED_AFTER_NS = 2_000_000_000
"""The coarsest clock of a local file system that is still in use (FAT, 2 s)."""

_FORKED = 0x40

_NEVER_RUN = (".pyi", ".pxd", ".pyx")  # for type checkers and Cython


class Installed(NamedTuple):
    """A distribution by its metadata: version (None if it is not installed), folder, and the metadata's file."""

    version: str | None
    folder: str = ""
    metadata: str = ""


def find_installed(distribution: str, listed: dict[str, list[str]] | None = None) -> Installed:
    """Find a distribution on `sys.path`, as an import would.

    Args:
        distribution: Its name.
        listed: By folder, the sorted names in it, as earlier calls listed them; this call adds the folders it lists.
    """
    listed = {} if listed is None else listed
    for folder in sys.path:
        found = _in_folder(distribution, folder or os.curdir, listed)
        if found is not None:
            return found
    if not _is_elsewhere(distribution, listed):
        return Installed(None)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Installed(normal_version(version(distribution)))  # of an egg, or in an archive
    except PackageNotFoundError:
        return Installed(None)


def _in_folder(distribution: str, folder: str, listed: dict[str, list[str]]) -> Installed | None:
    wanted = _normal(distribution)
    if folder not in listed:
        try:
            listed[folder] = sorted(os.listdir(folder))
        except OSError:
            listed[folder] = []
    for name in listed[folder]:
        if name[:1].lower() == wanted[:1] and name.endswith(".dist-info") and _normal(name.partition("-")[0]) == wanted:
            path = os.path.join(folder, name, "METADATA")
            try:
                with open(path, encoding="utf-8", errors="replace") as file:
                    for line in file:
                        field, _, value = line.partition(":")
                        if field.lower() == "version":
                            return Installed(normal_version(value.strip()), folder, path)
            except OSError:
                continue
    return None


def _is_elsewhere(distribution: str, listed: dict[str, list[str]]) -> bool:
    """Check whether only importlib.metadata, whose import takes 15 ms, can tell if a distribution is installed.

    It also knows eggs and other kinds of metadata, distributions in archives, and those that other packages' finders
    find.
    """
    if any(each is not PathFinder and hasattr(each, "find_distributions") for each in sys.meta_path):
        return True
    wanted = _normal(distribution)
    return any(
        folder.lower().endswith(".egg")
        or os.path.isfile(folder)
        or any(
            name.lower().endswith((".dist-info", ".egg-info"))
            and _normal(name.rpartition(".")[0].partition("-")[0]) == wanted
            for name in names
        )
        for folder, names in listed.items()
    )


def _normal(name: str) -> str:
    """The one spelling of a distribution's name (PEP 503)."""
    words = name.replace("_", "-").replace(".", "-").lower().split("-")
    return "-".join(each for at, each in enumerate(words) if each or at in (0, len(words) - 1))


def normal_version(version: str) -> str:
    """Spell a version in one way: a module calls "1.0dev3+g1.d2" what its metadata calls "1.0.dev3+g1.d2"."""
    if version.replace(".", "").isdigit():  # most are: to compile the pattern takes a millisecond
        return version
    return re.sub(r"[-_.]*(?=[a-z])", "", version.strip().lower())


def content_digest(package: str, known: Any, began_ns: int) -> tuple[list[str], str]:
    """Digest the files of an imported package that may be imported or read; tests only if some are imported.

    Args:
        package: Its folder.
        known: From the record: digest of the stats, digest of the contents, paths of the folders, paths of the files.
            While the stats are the same, no folder is listed and no file is read. A malformed value is ignored.
        began_ns: Time at which this process began: a file changed later may have been imported in its earlier state.

    Returns:
        The four of `known` as they are now, and the identity of the package.
    """
    if type(known) is not list or [type(each) for each in known] != [str] * 4:
        known = None  # written by another version, or forged
    now_ns = time.time_ns()
    of_tests = ".tests" in "\n".join(sys.modules)
    stats, newest_ns = _look(package, *known[2:], of_tests=of_tests) if known is not None else ("", (0, 0))
    if known is None or known[0] != stats:
        folders, files = _listing(package, of_tests=of_tests)
        stats, newest_ns = _look(package, folders, files, of_tests=of_tests)
        contents: list[Plain] = [[path, _content(os.path.join(package, path))] for path in files.split("//")]
        # a file that changed a moment ago may change again and have the same times
        is_settled = max(newest_ns) + SETTLED_AFTER_NS <= now_ns
        known = [stats if is_settled else "", digest_of(contents), folders, files]
    if newest_ns[1] >= began_ns:
        return known, f"unknown:{os.urandom(16).hex()}"
    return known, f"sha256:{known[1]}"


def imported_digest(package: str, known: Any, running_at_ns: int) -> tuple[list[str], str]:
    """Digest the files of a package as `content_digest` does, with the start of this process as `began_ns`.

    Args:
        package, known: As in `content_digest`.
        running_at_ns: A time at which the process was running already.
    """
    return content_digest(package, known, min(running_at_ns, _started_ns(running_at_ns)))


def _started_ns(otherwise_ns: int) -> int:
    """When this process began, by the wall clock; `otherwise_ns` where the system does not tell.

    A package may have been imported, and edited, before numba_kcache was imported. A process that was
    forked has what its parent imported, so the start of the nearest ancestor that was not forked counts; if that is
    unknown, 0.

    Source:
        proc_pid_stat(5): `starttime` is in clock ticks since the boot, rounded down. One tick is added:
        no process imports anything that early.
        `flags` has PF_FORKNOEXEC (0x40, linux/sched.h) from a fork to the next exec.
    """
    unknown_ns, ancestor = otherwise_ns, "self"
    try:
        while True:
            with open(f"/proc/{ancestor}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if not int(fields[6]) & _FORKED:
                break
            unknown_ns, ancestor = 0, fields[1].decode()
        ticks = int(fields[19])
        age_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return unknown_ns
    return time.time_ns() - age_ns if ticks and age_ns > 0 else unknown_ns


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _look(package: str, folders: str, files: str, *, of_tests: bool) -> tuple[str, tuple[int, int]]:
    """Digest the stats of folders and files. Returns it with the times of the newest folder and the newest file."""
    numbers, newest_ns, stat = list[int](), list[int](), os.stat
    for paths in (folders, files):
        start = len(numbers)
        for path in paths.split("//"):
            try:
                found = stat(f"{package}/{path}")
            except OSError:  # a link that leads nowhere, or a file that was removed
                numbers += 0, 0, 0, 0, 0
            else:
                numbers += found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        newest_ns.append(max(*numbers[start + 3 :: 5], *numbers[start + 4 :: 5]))
    from array import array  # here: few processes import a package from a checkout

    try:
        written = array("q", numbers).tobytes()  # `repr` of thousands of numbers takes longer than most of the stats
    except OverflowError:
        written = repr(numbers).encode()
    return sha256(written + bytes(of_tests)).hexdigest(), (newest_ns[0], newest_ns[1])


def _listing(package: str, *, of_tests: bool) -> tuple[str, str]:
    """List the folders of a package and the files in them, by their paths below it, with `//` between."""
    folders, files, seen = [""], list[str](), set[tuple[int, int] | None]()
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(os.path.join(package, folder)) as entries:
            for entry in sorted(entries, key=lambda each: each.name):
                path, identity = os.path.join(folder, entry.name), _folder_identity(entry)
                if identity is None:
                    files += [] if path.endswith(_NEVER_RUN) else [path]
                elif identity not in seen and entry.name != "__pycache__" and (of_tests or entry.name != "tests"):
                    seen.add(identity)  # a link may lead to a folder that contains it
                    folders.append(path)
    return "//".join(folders), "//".join(sorted(files))


def _folder_identity(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Device and inode of a folder; None for anything else."""
    try:
        found = entry.stat() if entry.is_dir() else None
    except OSError:  # a link that leads to itself
        return None
    return found and (found.st_dev, found.st_ino)
