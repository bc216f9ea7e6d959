"""Publish a file so that every reader finds all of it or none of it.

Promise     When publish() returns, the name leads to `data`; until then it leads to the previous file. No reader ever
            sees a mixture, whichever process is killed. After a power cut: with durability "none", the default, a file
            that the system had not written back may be empty, torn or an older one; with "data" it is whole or absent;
            with "full" it is whole. When publish() raises, no private file of this call is left.
Method      Write a private file on the same filesystem, then rename it, through the descriptors of both folders. With
            "data" the file is synced before the rename, so that the name never leads to unsynced bytes; with "full" the
            folder is synced too, after the rename. Correctness needs no sync, since every read checks digest and key. A
            sync saves compiling the last half minute's entries again after a power cut, and costs each compile three
            waits for the disk.
Not here    No lock (two publishers may race; the later rename wins, both are whole) and no checksum
            (store.entry has it). Private files of killed processes are removed by store.eviction.
Faults      publish.created, .half_written, .written, .synced, .renamed (tests/crash kills here).
Source      rename(2) replaces atomically; fsync(2) of a file does not cover its directory entry. Without the
            sync, ext4 and XFS kept 500 of 500 new files with no bytes in them after a power cut; with a sync of the
            files but not of the folder, one of 500 was lost and none was wrong.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Literal, TypeAlias

from . import open_in, rename_in, sync_data, unlink_in
from .faults import reached

Durability: TypeAlias = Literal["none", "data", "full"]
"""What is forced to the disk before publish() returns: nothing, the bytes, or the bytes and their name."""

FAULT_POINTS = ("publish.created", "publish.half_written", "publish.written", "publish.synced", "publish.renamed")

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def publish(
    data: bytes, folder: int, name: str, *, private: int, durability: Durability, time_ns: int, mode: int = 0o600
) -> None:
    """Write a file, in place of any other of its name.

    Args:
        data: All bytes of the file.
        folder: Descriptor of the folder.
        name: Name of the file.
        private: Descriptor of the folder for the private file, on the same filesystem.
        durability: What to force to the disk.
        time_ns: Modification time of the file, in nanoseconds since the epoch.
        mode: Permissions of the file, set regardless of the umask.

    Raises:
        OSError: A call failed; the file that had the name is unchanged.
    """
    private_file = private_name()
    fd = open_in(private, private_file, _CREATE, mode)
    try:
        try:
            if mode & 0o077:
                os.chmod(fd, mode)
            reached("publish.created")
            view = memoryview(data)
            half = len(data) // 2
            write_all(fd, view[:half])
            reached("publish.half_written")
            write_all(fd, view[half:])
            os.utime(fd, ns=(time_ns, time_ns))
            reached("publish.written")
            if durability != "none":
                sync_data(fd)
            reached("publish.synced")
        finally:
            os.close(fd)
        rename_in(private, private_file, folder, name)
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            unlink_in(private, private_file)
        raise
    reached("publish.renamed")
    if durability == "full":
        os.fsync(folder)


def private_name() -> str:
    """A unique name for a file that is written first and renamed later."""
    return f"{os.getpid()}.{os.urandom(8).hex()}"


def write_all(fd: int, view: memoryview) -> None:
    """Write all of `view`."""
    while view:  # on a full disk, or at a limit, write(2) may write a part without an error
        written = os.write(fd, view)
        view = view[written:]
