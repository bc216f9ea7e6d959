"""Write a bundle.

Promise     The same entries give the same bytes. The file appears under its name complete, or not at all. It replaces
            only a regular file: a link, a device, a pipe or a folder at its path is an error, and is left there.
Method      The format is that of tiers.bundle. The digest and size of each file are determined first; a file that
            changes before it is written is an error.
Not here    The choice of entries (transfer), and an image that contains one (image).
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import NamedTuple

from xxhash import xxh3_128

from ..errors import BundleError
from ..keys import sha256
from ..store import CLOEXEC, DIRECTORY, NOFOLLOW
from ..tiers.bundle import (
    DIGEST_BYTES,
    FORMAT,
    MAGIC,
    MAX_BUNDLE_BYTES,
    MAX_INDEX_BYTES,
    PREFIX,
    BundledFile,
    BundleReport,
    statement_of,
    targets_of,
)  # fmt: skip
from ..tiers.trust import SIGNATURE_BYTES, sign

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOFOLLOW | CLOEXEC


class Assembled(NamedTuple):
    """A bundle that is ready to be written.

    Args:
        parts: Its bytes, in pieces; iterating raises BundleError if an entry has changed since.
        size_bytes: Number of bytes in total.
        report: The description of its contents.
    """

    parts: Iterator[bytes]
    size_bytes: int
    report: BundleReport


def assemble(
    path: str,
    entries: Sequence[BundledFile],
    manifests: Sequence[BundledFile],
    read: Callable[[bool, str], bytes | None],
    *,
    signing_key: str | None = None,
) -> Assembled:
    """Lay out a bundle.

    Args:
        path: Its path, for messages.
        entries: The entries to put in, in any order.
        manifests: The manifests to put in, in any order.
        read: Returns the bytes of an entry (True) or manifest (False) by its key.
        signing_key: PEM file of the key to sign with.

    Raises:
        BundleError: It is too large.
        SettingsError, ToolchainMissingError: It cannot be signed.
    """
    cannot = f"cannot write the bundle {path}"
    entries, manifests = sorted(entries), sorted(manifests)
    index = _encode_index(entries, manifests)
    files_bytes = sum(each.size_bytes for each in (*entries, *manifests))
    if len(index) > MAX_INDEX_BYTES or files_bytes > MAX_BUNDLE_BYTES - MAX_INDEX_BYTES - 4096:
        raise BundleError(cannot, f"{files_bytes} bytes in {len(entries)} entries are too many")
    targets = targets_of(entries)
    signature = sign(signing_key, statement_of(index, files_bytes, targets)) if signing_key else b""
    prefix = PREFIX.pack(MAGIC, FORMAT, len(signature) // SIGNATURE_BYTES, len(index), files_bytes)

    def files() -> Iterator[bytes]:
        for is_entry, chosen in ((True, entries), (False, manifests)):
            for each in chosen:
                data = read(is_entry, each.key)
                if data is None or sha256(data).hexdigest() != each.sha256:
                    raise BundleError(cannot, f"{each.key} was removed or changed meanwhile", "export once more")
                yield data

    def parts() -> Iterator[bytes]:
        digest = xxh3_128()
        for part in chain((prefix, index), files(), (signature,)):
            digest.update(part)
            yield part
        yield digest.digest()

    size_bytes = len(prefix) + len(index) + files_bytes + len(signature) + DIGEST_BYTES
    return Assembled(parts(), size_bytes, BundleReport(path, len(entries), size_bytes, targets, signature[:8].hex()))


def write_bundle(
    path: str,
    entries: Sequence[BundledFile],
    manifests: Sequence[BundledFile],
    read: Callable[[bool, str], bytes | None],
    *,
    signing_key: str | None = None,
) -> BundleReport:
    """Write a bundle, in place of the file that is there; the arguments are those of `assemble`.

    Raises:
        BundleError: It cannot be written, or an entry changed before it was written.
        SettingsError, ToolchainMissingError: It cannot be signed.
    """
    bundle = assemble(path, entries, manifests, read, signing_key=signing_key)
    directory, name = os.path.split(path)
    try:
        folder = os.open(directory or ".", os.O_RDONLY | DIRECTORY | CLOEXEC)
        try:
            _require_file(folder, name)
            publish_in(folder, lambda: name, bundle.parts)
        finally:
            os.close(folder)
    except OSError as error:
        why = error.strerror or str(error)
        raise BundleError(f"cannot write the bundle {path}", why, "write it elsewhere") from None
    return bundle.report


def publish_in(folder: int, name: Callable[[], str], parts: Iterable[bytes]) -> None:
    """Write a private file into an open folder, sync it, and rename it to the result of `name()`.

    Raises:
        OSError: It cannot be written, or something else than a regular file has that name.
    """
    private = f".{os.getpid()}.{os.urandom(8).hex()}"
    fd = os.open(private, _CREATE, 0o666, dir_fd=folder)
    try:
        with open(fd, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        _require_file(folder, name())
        os.rename(private, name(), src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            os.unlink(private, dir_fd=folder)
        raise


def _require_file(folder: int, name: str) -> None:
    """Raise OSError if a name in an open folder leads to a link, a device, a pipe or a folder."""
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EEXIST, "a file exists there that is not regular, and only regular files are replaced")


def _encode_index(entries: Sequence[BundledFile], manifests: Sequence[BundledFile]) -> bytes:
    rows = {"entries": [list(each) for each in entries], "manifests": [list(each[:3]) for each in manifests]}
    return json.dumps(rows, separators=(",", ":"), default=list).encode("ascii")
