"""Find the version of a Python distribution: in its metadata, or by its content if the metadata cannot be trusted.

Promise     Two builds of one version differ, if their files of Python do.
            A package imported from a folder that no installer wrote (an editable install, a checkout on `PYTHONPATH`)
            is identified by the content of its files, without folders of tests while no test is imported. If a file
            changed since this process began, the imported content is unknown, and the identity is random: no other
            process has the same.
Not here    Which modules are imported, and the record of the versions found (Toolchain).
Source      PyPA, "Recording installed projects": a `.dist-info` folder is beside the package that it describes, and has
            in RECORD the digest of each file.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from ..keys import Plain, digest_of, sha256
from ..settings import import_path
from .locating import build_of

_LARGE_BYTES = 1 << 20
"""Size from which a file counts by its build-id, if it has one: the libraries of MLIR have hundreds of megabytes."""

_FORKED = 0x40

_NEVER_RUN = (".pyi", ".pxd", ".pyx")  # for type checkers and Cython


def find_installed(distribution: str) -> tuple[str, str | None]:
    """Find a distribution on `sys.path` by its `.dist-info`, or `.egg-info` as in Linux distributions, as an import
    would find it; those that only importlib.metadata knows (in eggs and archives) count by what is imported. Its import
    takes 15 ms.

    Returns:
        The file with its version, in a folder beside it, and version and build; None for an absent one.
    """
    for folder in import_path():
        names = list[str]()
        with contextlib.suppress(OSError):
            names = sorted(os.listdir(folder))
        for name in names:
            if name.endswith((".dist-info", ".egg-info")) and _normal(name.partition("-")[0]) == _normal(distribution):
                path = os.path.join(folder, name, "METADATA" if name.endswith(".dist-info") else "PKG-INFO")
                with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                    for line in file:
                        field, _, value = line.partition(":")
                        if field.lower() == "version":
                            return path, value.strip() + _build(os.path.join(folder, name, "RECORD"))
    return "", None


def _build(record: str) -> str:
    """Tell builds of one version apart by the digests that the installer noted of files of Python: a repository
    has many between two releases. Compiled files differ between interpreters and processors, and do not count."""
    with contextlib.suppress(OSError), open(record, "rb") as file:
        lines = sorted(line for line in file if b".py,sha256=" in line)
        return f" sha256:{sha256(b''.join(lines)).hexdigest()}"
    return ""


def _normal(name: str) -> str:
    """The one spelling of a distribution's name (PEP 503); none that is asked for has a dot."""
    return name.replace("_", "-").lower()


def imported_digest(package: str, running_at_ns: int) -> str:
    """Identify an imported package by the files in it that may be imported or read.

    Args:
        package: Its folder.
        running_at_ns: A time at which this process was running already.
    """
    contents, newest_ns = list[Plain](), 0
    for path in _files(package):
        full = os.path.join(package, path)
        with contextlib.suppress(OSError):  # a link that leads nowhere, or a file that was removed
            found = os.stat(full)
            newest_ns = max(newest_ns, found.st_ctime_ns)  # that of modification may be in the future
            contents.append([path, _content(full, found.st_size)])
    if newest_ns >= min(running_at_ns, _started_ns(running_at_ns)):
        return f"unknown:{os.urandom(16).hex()}"
    return f"sha256:{digest_of(contents)}"


def _content(path: str, size_bytes: int) -> str:
    if size_bytes > _LARGE_BYTES:
        return build_of(path)
    with open(path, "rb") as file:
        return sha256(file.read()).hexdigest()


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


def _files(package: str) -> list[str]:
    """List the files of a package by their paths in it; those of tests only if some are imported."""
    of_tests = ".tests" in "\n".join(sys.modules)
    folders, files, seen = [""], list[str](), set[object]()
    for folder in folders:
        with contextlib.suppress(OSError), os.scandir(os.path.join(package, folder)) as entries:
            for entry in entries:
                path, identity = os.path.join(folder, entry.name), _folder_identity(entry)
                if identity is None:
                    files += [] if path.endswith(_NEVER_RUN) else [path]
                elif identity not in seen and entry.name != "__pycache__" and (of_tests or entry.name != "tests"):
                    seen.add(identity)  # a link may lead to a folder that contains it
                    folders.append(path)
    return sorted(files)


def _folder_identity(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    """Device and inode of a folder; None for anything else."""
    try:
        found = entry.stat() if entry.is_dir() else None
    except OSError:  # a link that leads to itself
        return None
    return found and (found.st_dev, found.st_ino)
