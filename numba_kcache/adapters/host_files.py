"""Files that another compiler's runtime opens by path: host code built on this machine, and copies of stored payloads.

Promise     All files are in a folder on a local disk that only this user can use. A file kept for later processes
            is returned only while its bytes have the digest in its name. The folder of copies of an ended process is
            removed when another process ends, or starts and finds many; a folder in use is never removed.
Method      <private>/kept/<digest of the key>/<sha256>.<name>, and <private>/copies/<pid>-<random>/<number>/<name>. A
            process holds a lock on its folder of copies: if another process can take the lock, that process has ended.
Not here    The choice of the private folder (store.folders), and the rule that host code is never stored (triton).
"""

from __future__ import annotations

import atexit
import itertools
import os
import re
import threading
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from ..store import CLOEXEC, NOFOLLOW, try_flock
from ..store.folders import local_directory

LEFT_LIMIT = 16
"""Number of folders of copies: above it, a process removes those of ended processes also when it starts."""

KEPT_LIMIT = 4096
"""Limit of the keys with kept files; beyond it the half that was used longest ago is removed."""

_HOST_SUFFIX = re.compile(r"\.(so(\.\d+)*|pyd|dll|dylib|exe|o|a)$", re.IGNORECASE)
_DEVICE_MACHINES = (190, 224)  # EM_CUDA, EM_AMDGPU
_MACH_O = (b"\xfe\xed\xfa", b"\xce\xfa\xed\xfe", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_HOST_MAGIC = (b"MZ", b"!<arch>\n", b"#!", *_MACH_O)
_COPIES = re.compile(r"\d{1,10}-[0-9a-f]{16}")
_KEY = re.compile(r"[0-9a-f]{64}")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC


class _Folders(NamedTuple):
    """The folders of this process; `lock` is held as long as the process lives."""

    pid: int
    private: str
    copies: str
    lock: int


_folders: _Folders | None = None
_numbers = itertools.count()


def is_host_code(name: str, data: bytes) -> bool:
    """Check whether a file is machine code or a script for the host, by its name or by its bytes."""
    if data[:4] == b"\x7fELF":
        return int.from_bytes(data[18:20], "little" if data[5:6] != b"\2" else "big") not in _DEVICE_MACHINES
    return data.startswith(_HOST_MAGIC) or _HOST_SUFFIX.search(name) is not None


def new_folder() -> str:
    """Make a folder for copies that only the caller uses."""
    folder = f"{_own_folders().copies}/{next(_numbers)}"
    os.mkdir(folder, 0o700)
    return folder


def write_copy(folder: str, name: str, data: bytes) -> str:
    """Write a copy into a folder of `new_folder`, in place of a file of the same name, and return its path."""
    path = f"{folder}/{_checked(name)}"
    try:
        fd = os.open(path, _CREATE, 0o600)
    except FileExistsError:
        os.unlink(path)  # removed first: some file systems flush a file that is truncated or replaced by rename
        fd = os.open(path, _CREATE, 0o600)
    with open(fd, "wb", buffering=0) as file:
        while data:
            data = data[file.write(data) :]
    return path


def keep(key: str, name: str, data: bytes) -> str:
    """Keep a file for later processes of this machine and return its path."""
    folder = f"{_own_folders().private}/kept/{_digest(key)}"
    os.makedirs(folder, 0o700, exist_ok=True)
    _limit_kept(os.path.dirname(folder))
    for other in _named(folder, name):
        with suppress(OSError):
            os.unlink(f"{folder}/{other}")
    path = f"{folder}/{sha256(data).hexdigest()}.{_checked(name)}"
    private = f"{folder}/.{os.getpid()}.{threading.get_ident()}"
    with open(os.open(private, _CREATE, 0o600), "wb") as file:
        file.write(data)
    os.replace(private, path)
    return path


def kept(key: str, name: str) -> str | None:
    """The path of a kept file whose bytes are unchanged; None if there is none."""
    folder = f"{_own_folders().private}/kept/{_digest(key)}"
    for found in _named(folder, name):
        path = f"{folder}/{found}"
        with suppress(OSError), open(os.open(path, os.O_RDONLY | NOFOLLOW | CLOEXEC), "rb") as file:
            if sha256(file.read()).hexdigest() == found[:64]:
                os.utime(folder)
                return path
        with suppress(OSError):
            os.unlink(path)
    return None


def _named(folder: str, name: str) -> list[str]:
    try:
        return [each for each in os.listdir(folder) if _KEY.fullmatch(each[:64]) and each[64:] == f".{name}"]
    except OSError:
        return []


def _checked(name: str) -> str:
    if "/" in name or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"{name!r:.80} is not a file name")
    return name


def _digest(key: str) -> str:
    return sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def _limit_kept(kept_folder: str) -> None:
    """If there are too many keys with kept files, remove the files of the half that was used longest ago."""
    names = [each for each in os.listdir(kept_folder) if _KEY.fullmatch(each)]
    if len(names) <= KEPT_LIMIT:
        return
    used = {}
    for name in names:
        with suppress(OSError):
            used[name] = os.stat(f"{kept_folder}/{name}").st_mtime_ns
    for name in sorted(used, key=lambda each: used[each])[: KEPT_LIMIT // 2]:
        _remove(f"{kept_folder}/{name}")


def _own_folders() -> _Folders:
    global _folders
    folders = _folders
    if folders is None or folders.pid != os.getpid():
        folders = _folders = _make_folders()  # two threads may both make folders, which stay locked until the end
    return folders


def _make_folders() -> _Folders:
    private = local_directory("files for the compilers of others")
    copies = f"{private}/copies"
    for folder in (copies, f"{private}/kept"):
        os.makedirs(folder, 0o700, exist_ok=True)
    if len(os.listdir(copies)) > LEFT_LIMIT:
        _reap_all(copies)
    atexit.register(_reap_all, copies)  # at exit, so that no launch waits for it
    while True:
        mine = f"{copies}/{os.getpid()}-{os.urandom(8).hex()}"
        os.mkdir(mine, 0o700)
        try:
            lock = os.open(mine, os.O_RDONLY | CLOEXEC)
        except FileNotFoundError:  # another process removed it
            continue
        if _try_lock(lock) and os.path.isdir(mine):  # otherwise another process removed it before it was locked
            return _Folders(os.getpid(), private, mine, lock)
        os.close(lock)


def _try_lock(lock: int) -> bool:
    with suppress(OSError):
        try_flock(lock)
        return True
    return False


def _reap_all(copies: str) -> None:
    for name in os.listdir(copies):
        if _COPIES.fullmatch(name):
            _reap(f"{copies}/{name}")


def _reap(folder: str) -> None:
    """Remove a folder of copies whose process has ended."""
    with suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | NOFOLLOW | CLOEXEC)
        try:
            if _try_lock(lock):
                _remove(folder)
        finally:
            os.close(lock)


def _remove(folder: str) -> None:
    """Remove a folder that this package made with its contents, without following links."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
