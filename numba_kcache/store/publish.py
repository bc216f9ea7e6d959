"""Publish a file so that every reader finds all of it or none of it.

Promise     When publish() returns, `target` holds `data`, also after a power cut if durability is "data" and
            the directory's entry reached the disk ("full" makes sure of that). Before, `target` is as it was.
            No reader ever sees a mixture. When it raises, no private file of this call is left.
Method      Write a private file on the same filesystem, fdatasync it, rename it over `target`, fsync the
            directory. The order is the proof: rename never names unsynced bytes.
Not here    No lock (two publishers may race; the later rename wins, both are whole) and no checksum
            (store.entry has it). Private files of the dead are store.eviction's to reap.
Faults      publish.created, .half_written, .written, .synced, .renamed (tests/crash kills here).
Ground      rename(2) replaces atomically; fsync(2) of a file does not cover its directory entry. Without the
            sync, ext4 and XFS kept 500 of 500 new files with no bytes in them after a power cut; with it, and
            without that of the directory, one of 500 was lost and none was wrong.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal, TypeAlias

from . import CLOEXEC, DIRECTORY, NOFOLLOW, sync_data
from .faults import reached

Durability: TypeAlias = Literal["none", "data", "full"]
"""What is forced to the disk before publish() returns: nothing, the bytes, or the bytes and their name."""

FAULT_POINTS = ("publish.created", "publish.half_written", "publish.written", "publish.synced", "publish.renamed")

_CACHEDIR_TAG = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n"
    b"# This file marks a directory that numba_kcache can make again (https://bford.info/cachedir/).\n"
)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC


def publish(data: bytes, target: str, *, private: str, durability: Durability, time_ns: int, mode: int = 0o600) -> None:
    """Make `target` a file that holds `data`.

    Args:
        data: All the bytes.
        target: Path of the file; its directory must exist.
        private: Directory for the private file, on the filesystem of `target`.
        durability: What to force to the disk.
        time_ns: Modification time that the file is given, in nanoseconds since the epoch.
        mode: Permissions of the file, before umask.

    Raises:
        OSError: Something failed; `target` is as it was.
    """
    path = f"{private}/{os.getpid()}.{os.urandom(8).hex()}"
    fd = os.open(path, _CREATE, mode)
    try:
        try:
            reached("publish.created")
            view = memoryview(data)
            half = len(data) // 2
            _write_all(fd, view[:half])
            reached("publish.half_written")
            _write_all(fd, view[half:])
            os.utime(fd, ns=(time_ns, time_ns))
            reached("publish.written")
            if durability != "none":
                sync_data(fd)
            reached("publish.synced")
        finally:
            os.close(fd)
        os.rename(path, target)
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            os.unlink(path)
        raise
    reached("publish.renamed")
    if durability == "full":
        sync_directory(os.path.dirname(target))


def make_root(path: str, *, shared: bool) -> None:
    """Make `path` with its parents, and tag it for backup programs as something that can be made again.

    Raises:
        OSError: It cannot be made.
    """
    mode = 0o777 if shared else 0o700
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if os.listdir(path):
            return  # tagged already, or it holds other things as well, which backups must not pass over
    with suppress(FileExistsError), open(f"{path}/CACHEDIR.TAG", "xb") as file:
        file.write(_CACHEDIR_TAG)


def sync_directory(path: str) -> None:
    """Force the names in the directory `path` to the disk."""
    fd = os.open(path, os.O_RDONLY | DIRECTORY | CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, view: memoryview) -> None:
    while view:  # a full disk or a limit may take part of it without an error
        written = os.write(fd, view)
        view = view[written:]
