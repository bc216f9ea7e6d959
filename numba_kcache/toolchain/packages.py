"""Find the version of a Python distribution: in its metadata, or by its content where the metadata cannot be trusted.

Promise     A package that is imported from where no installer put it (an editable install, a checkout on `PYTHONPATH`)
            counts by the content of all its files. If one changed since this process began, nobody can know what was
            imported, and the answer is random: no other process gets it.
Not here    Which modules are imported, and the record of what was found (Toolchain).
Ground      PyPA, "Recording installed projects": a `.dist-info` folder lies beside the package that it describes.
"""

from __future__ import annotations

import os
import re
import sys

from ..keys import Plain, digest_of, sha256
from ..model import NamedTuple


class Installed(NamedTuple):
    """A distribution by its metadata: version (None where it is not installed), folder, and the metadata's file."""

    version: str | None
    folder: str = ""
    metadata: str = ""


def find_installed(distribution: str) -> Installed:
    """Find a distribution on `sys.path`, as an import would."""
    for folder in sys.path:
        found = _in_folder(distribution, folder or os.curdir)
        if found is not None:
            return found
    from importlib.metadata import PackageNotFoundError, version

    try:
        return Installed(normal_version(version(distribution)))  # an egg, or out of an archive
    except PackageNotFoundError:
        return Installed(None)


def _in_folder(distribution: str, folder: str) -> Installed | None:
    wanted = _normal(distribution)
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return None
    for name in names:
        if name.endswith(".dist-info") and _normal(name.partition("-")[0]) == wanted:
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


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def normal_version(version: str) -> str:
    """Spell a version in one way: a module calls "1.0dev3+g1.d2" what its metadata calls "1.0.dev3+g1.d2"."""
    return re.sub(r"[-_.]*(?=[a-z])", "", version.strip().lower())


def content_digest(package: str, known: list[str] | None, began_ns: int) -> tuple[list[str], str]:
    """Digest all files of an imported package.

    Args:
        package: Its folder.
        known: Digests of stats and of bytes that were found before: where the stats are the same no file is read.
        began_ns: When this process began: what changed later may have been imported as it was before.

    Returns:
        Both digests as they are now, and what the package counts by.
    """
    found = sorted(_files(package))
    stats = sha256(repr(found).encode()).hexdigest()  # quicker to write than canonical bytes: they are a thousand
    if known is None or known[0] != stats:
        contents: list[Plain] = [[path, _content(os.path.join(package, path))] for path, *_numbers in found]
        known = [stats, digest_of(contents)]
    if any(max(mtime_ns, ctime_ns) >= began_ns for *_names, mtime_ns, ctime_ns in found):
        return known, f"unknown:{os.urandom(16).hex()}"
    return known, f"sha256:{known[1]}"


def _content(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return sha256(file.read()).hexdigest()
    except OSError:
        return ""


def _files(folder: str, inside: str = "") -> list[tuple[str, int, int, int, int]]:
    """List path within the package, inode, size, mtime and ctime of each file that may be imported or read."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                path = inside + entry.name
                try:
                    if not entry.is_dir():
                        stat = entry.stat()
                        found.append((path, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))
                    elif entry.name != "__pycache__" and not entry.is_symlink():
                        found += _files(entry.path, path + os.sep)
                except OSError:
                    continue
    except OSError:
        pass
    return found
