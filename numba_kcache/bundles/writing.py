"""Write a bundle.

Promise     The same entries give the same bytes. The file is all there under its name, or not at all. It replaces a
            regular file or nothing: a link, a device, a pipe or a folder at its path is an error, and stays.
Method      The format is that of tiers.bundle. Every size is known before the first file is read; one that changed
            since is refused.
Not here    Which entries go in.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

from xxhash import xxh3_128

from ..errors import BundleError
from ..keys import sha256
from ..store import CLOEXEC, DIRECTORY, NOFOLLOW
from ..tiers import bundle as form
from ..tiers.bundle import BundledFile, BundleReport
from ..tiers.signing import SIGNATURE_BYTES, sign

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC


def write_bundle(
    path: str,
    entries: Sequence[BundledFile],
    manifests: Sequence[BundledFile],
    read: Callable[[bool, str], bytes | None],
    *,
    signing_key: str | None = None,
) -> BundleReport:
    """Write a bundle, in place of the file that is there.

    Args:
        path: Where to.
        entries: What goes in, in any order.
        manifests: What goes in, in any order.
        read: Gives the bytes of an entry (True) or manifest (False) by its key.
        signing_key: PEM file of the key to sign with.

    Raises:
        BundleError: It cannot be written, or an entry changed meanwhile.
        SettingsError, ToolchainMissingError: It cannot be signed.
    """
    cannot = f"cannot write the bundle {path}"
    entries, manifests = sorted(entries), sorted(manifests)
    index = _encode_index(entries, manifests)
    files_bytes = sum(each.size_bytes for each in (*entries, *manifests))
    if len(index) > form.MAX_INDEX_BYTES or files_bytes > form.MAX_BUNDLE_BYTES - form.MAX_INDEX_BYTES - 4096:
        raise BundleError(cannot, f"{files_bytes} bytes in {len(entries)} entries are too many")
    targets = form.targets_of(entries)
    signature = sign(signing_key, form.statement_of(index, files_bytes, targets)) if signing_key else b""
    prefix = form.PREFIX.pack(form.MAGIC, form.FORMAT, len(signature) // SIGNATURE_BYTES, len(index), files_bytes)

    def parts() -> Iterator[bytes]:
        yield prefix
        yield index
        for is_entry, files in ((True, entries), (False, manifests)):
            for each in files:
                data = read(is_entry, each.key)
                if data is None or sha256(data).hexdigest() != each.sha256:
                    raise BundleError(cannot, f"{each.key} went or changed meanwhile")
                yield data
        yield signature

    try:
        size_bytes = _publish(path, parts())
    except OSError as error:
        raise BundleError(cannot, error.strerror or str(error)) from None
    return BundleReport(path, len(entries), size_bytes, targets, signature[:8].hex())


def _publish(path: str, parts: Iterable[bytes]) -> int:
    """Write a private file beside `path`, sync it, and give it the name; bytes written.

    Raises:
        OSError: It cannot be written, or something stands there that is no regular file.
    """
    directory, name = os.path.split(path)
    folder = os.open(directory or ".", os.O_RDONLY | DIRECTORY | CLOEXEC)
    try:
        return _publish_in(folder, name, parts)
    finally:
        os.close(folder)


def _publish_in(folder: int, name: str, parts: Iterable[bytes]) -> int:
    _require_file(folder, name)
    private = f".{os.getpid()}.{os.urandom(8).hex()}"
    digest, size_bytes = xxh3_128(), 0
    fd = os.open(private, _CREATE, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            for part in parts:
                digest.update(part)
                size_bytes += file.write(part)
            size_bytes += file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        _require_file(folder, name)
        os.rename(private, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            os.unlink(private, dir_fd=folder)
        raise
    return size_bytes


def _require_file(folder: int, name: str) -> None:
    """Raise OSError if a name in an open folder leads to a link, a device, a pipe or a folder."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EEXIST, "something is there that is no regular file, and is not replaced")


def _encode_index(entries: Sequence[BundledFile], manifests: Sequence[BundledFile]) -> bytes:
    rows = {"entries": [list(each) for each in entries], "manifests": [list(each[:3]) for each in manifests]}
    return json.dumps(rows, separators=(",", ":"), default=list).encode("ascii")
