"""Many entries in one file: written, read by key, mounted as a tier.

Promise     A bundle whose head is damaged, or that is truncated, too large or not signed as required, is refused as a
            whole: `BundleError` says why, and none of its files was used. Each file is checked against the sha256 in
            the index when it is read, so opening a bundle takes the same time whatever its size.
            The same entries give the same bytes, which appear under their name complete, or not at all, and replace
            only a regular file: a link, a device, a pipe or a folder is an error, and is left there.
Method      A bundle is prefix | index | signature | digest | files; docs/format.md has the details. It contains keys,
            no paths. The XXH3-128 digest over all before it detects damage; the signature covers the index, which holds
            the sha256 of each file.
Not here    The choice of entries (bundles), the format of each (store), and an image with a bundle (tiers.image).
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any

from xxhash import xxh3_128_digest

from ..errors import BundleError, why_of
from ..keys import sha256
from ..model import NamedTuple
from ..model.json_values import fits
from ..store import (
    CLOEXEC,
    DIRECTORY,
    ENTRY,
    MANIFEST,
    MAX_FILE_BYTES,
    NONBLOCK,
    DamagedEntry,
    Descriptor,
    identity_of,
    json_of,
    open_in,
    parse_object,
    rename_in,
    require_key,
    stat_in,
    unlink_in,
)
from .tier import Tier
from .trust import SIGNATURE_BYTES, Trust, Unsigned, sign, statement

FORMAT = 2
MAX_BUNDLE_BYTES = 16 << 30
MAX_INDEX_BYTES = 32 << 20
MAGIC = b"\x89NKB\r\n\x1a\n"
PREFIX = Struct("<8sHHIQ")  # magic, format, number of signatures, size of the index, size of all files
DIGEST_BYTES = 16
CHUNK_BYTES = 1 << 20
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_ROW = (str, int, str)
_INDEX = {"entries": [(*_ROW, str, [str])], "manifests": [_ROW]}


class BundledFile(NamedTuple):
    """One file of a bundle: an entry, or a manifest, which has no target and no kernels."""

    key: str
    size_bytes: int
    sha256: str
    target: str = ""
    kernels: tuple[str, ...] = ()


class BundleReport(NamedTuple):
    """Contents of a bundle.

    Args:
        path: Where it is.
        entries: Number of entries.
        size_bytes: Bytes of the file.
        targets: The targets of its code.
        signed_by: Name of the key that signed it, or the key's id if no key is trusted here; "" if unsigned.
    """

    path: str
    entries: int
    size_bytes: int
    targets: tuple[str, ...]
    signed_by: str = ""


class Bundle:
    """A bundle whose head was checked.

    Args:
        name: Its name in messages.
        open_file: Opens the file.
        trusted: The keys of which one must have signed it, if it demands a signature.

    Raises:
        BundleError: It is refused.
    """

    def __init__(self, name: str, open_file: Callable[[], OpenFile | HeldBytes], trusted: Trust) -> None:
        self.name, self._source = name, (open_file, trusted)
        try:
            self._file = open_file()
            read, size_bytes = self._file.read, self._file.size_bytes
            index_bytes, files_bytes = sizes_of(read(0, PREFIX.size), size_bytes)
            at = size_bytes - files_bytes
            head, digest = read(0, at - DIGEST_BYTES), read(at - DIGEST_BYTES, DIGEST_BYTES)
            if xxh3_128_digest(head) != digest:
                raise ValueError("its digest differs: it was damaged")
            index, signature = head[PREFIX.size : PREFIX.size + index_bytes], head[PREFIX.size + index_bytes :]
            self.entries, self.manifests = _files(index, files_bytes)
            targets = _targets_of(self.entries)
            signed_by = signature[:8].hex()
            if trusted.demands:
                signed_by = trusted.check(signature, _statement_of(index, files_bytes, targets))
        except (ValueError, OSError, EOFError, MemoryError) as error:
            raise refused(name, error) from None
        self.report = BundleReport(name, len(self.entries), size_bytes, targets, signed_by)
        self._at: dict[tuple[int, str], tuple[int, BundledFile]] = {}  # offset and row of each file
        for kind, files in ((ENTRY, self.entries), (MANIFEST, self.manifests)):
            for file in files:
                self._at[kind, file.key] = at, file
                at += file.size_bytes

    def reopened(self) -> Bundle:
        """The bundle that is there now."""
        return Bundle(self.name, *self._source)

    def get(self, kind: int, key: str) -> bytes | None:
        """The file of the entry or manifest `key`; None if the bundle has none."""
        at, file = self._at.get((kind, key), (0, None))
        if file is None:
            return None
        data = self._file.read(at, file.size_bytes)
        if len(data) != file.size_bytes or sha256(data).hexdigest() != file.sha256:
            raise DamagedEntry(f"{key} in {self.name} was damaged or changed")
        return data


class BundleTier(Tier):
    """A bundle as a tier, opened at the first look-up that finds it."""

    is_trusted = True  # its signature was checked as a whole when it was opened

    def __init__(self, name: str, open_bundle: Callable[[], Bundle]) -> None:
        self.name, self._open = name, open_bundle
        self._bundle: Bundle | None = None

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file. No file of a bundle has a signature of its own: the bundle's one signature covers them all.

        What cannot be read is read again from the bundle that is there now: a daemon may have closed its descriptor.
        """
        bundle = self._opened()
        try:
            return bundle.get(kind, key)
        except (OSError, DamagedEntry):
            self._bundle = bundle = bundle.reopened()
            return bundle.get(kind, key)

    def targets(self) -> Sequence[str]:
        """The targets of its code; empty until it was opened."""
        return self._bundle.report.targets if self._bundle else ()

    def keys(self, kind: int) -> list[str]:
        """The keys of all entries or manifests."""
        return [key for its_kind, key in self._opened()._at if its_kind == kind]

    def _opened(self) -> Bundle:
        if self._bundle is None:
            self._bundle = self._open()
        return self._bundle


class HeldBytes:
    """The bytes of a file that has no descriptor, read as those of an `OpenFile`."""

    def __init__(self, data: bytes) -> None:
        self._data, self.size_bytes = data, len(data)

    def read(self, at: int, size: int) -> bytes:
        """Read `size` bytes from an offset, or fewer at the end."""
        return self._data[at : at + size]


class OpenFile:
    """An open file, closed with the last reference to it.

    Args:
        fd: Its descriptor.

    Attributes:
        size_bytes: Its size.

    Raises:
        IsADirectoryError: It is not a regular file.
    """

    def __init__(self, fd: int) -> None:
        self._descriptor, status = Descriptor(fd), os.fstat(fd)
        self._descriptor.identity, self.size_bytes = identity_of(status), status.st_size
        if not stat.S_ISREG(status.st_mode):
            raise IsADirectoryError("it is not a regular file")

    def read(self, at: int, size: int) -> bytes:
        """Read `size` bytes from an offset, or fewer at the end."""
        data = b""
        while more := os.pread(self._descriptor, size - len(data), at + len(data)):  # b"" once all is read
            data += more
        return data


def open_bundle(path: str, trusted: Trust) -> Bundle:
    """The bundle in a file.

    Raises:
        BundleError: It is refused.
    """
    return Bundle(path, lambda: OpenFile(os.open(path, os.O_RDONLY | CLOEXEC | NONBLOCK)), trusted)


def open_traversable(name: str, find: Callable[[], Any], trusted: Trust) -> Bundle:
    """The bundle in an object such as `importlib.resources` returns.

    Raises:
        BundleError: It is refused, or not there.
    """
    try:
        found = find()
        held = None if isinstance(found, os.PathLike) else HeldBytes(found.read_bytes())  # for example from a zip file
    except Exception as error:  # a package is imported: its own code may raise anything
        raise refused(name, error) from None
    return open_bundle(os.fspath(found), trusted) if held is None else Bundle(name, lambda: held, trusted)


def refused(name: str, error: BaseException) -> BundleError:
    """Make the error for a bundle that cannot be used."""
    hint = "name a file that export_bundle() wrote, or fetch it again"
    if isinstance(error, (FileNotFoundError, IsADirectoryError)):
        hint = "correct the path: export_bundle() writes a file; a directory is a tier"
    elif isinstance(error, Unsigned):
        hint = "sign it, or name its key in trusted_keys"
    elif isinstance(error, ImportError):
        hint = "install the package, or write a path with ./ before it"
    return BundleError(f"cannot use the bundle {name}", why_of(error), hint)


def sizes_of(prefix: bytes, size_bytes: int) -> tuple[int, int]:
    """Sizes of the index and of the files, by the prefix of a bundle of this size.

    Raises:
        ValueError: They are too large, or do not fit the size.
    """
    if len(prefix) < PREFIX.size or not prefix.startswith(MAGIC):
        raise ValueError("it is not a bundle")
    _, version, signatures, index_bytes, files_bytes = PREFIX.unpack(prefix)
    if version != FORMAT:
        raise ValueError(f"it has format {version}, this version reads {FORMAT}")
    if size_bytes > MAX_BUNDLE_BYTES or index_bytes > MAX_INDEX_BYTES:
        raise ValueError(f"{size_bytes} bytes with an index of {index_bytes} are too many")
    whole = PREFIX.size + index_bytes + files_bytes + signatures * SIGNATURE_BYTES + DIGEST_BYTES
    if signatures > 1 or whole != size_bytes:
        raise ValueError(f"it has {size_bytes} bytes, but {whole} were written")
    return index_bytes, files_bytes


def _files(data: bytes, files_bytes: int) -> tuple[tuple[BundledFile, ...], tuple[BundledFile, ...]]:
    """Entries and manifests of an index.

    Raises:
        ValueError: It is not one that `assemble` could have made.
    """
    index = parse_object(data)
    if list(index) != list(_INDEX) or not fits(index, _INDEX):
        raise ValueError("its index is malformed")
    entries = tuple(BundledFile(*(*row[:4], tuple(row[4]))) for row in index["entries"])
    manifests = tuple(BundledFile(*row) for row in index["manifests"])
    for file in (*entries, *manifests):
        if not 0 < file.size_bytes <= MAX_FILE_BYTES:
            raise ValueError(f"its index has a file of {file.size_bytes} bytes; 1 to {MAX_FILE_BYTES} are allowed")
        require_key(file.key)
        require_key(file.sha256)
    for files in (entries, manifests):
        keys = [file.key for file in files]
        if keys != sorted(set(keys)):
            raise ValueError("its index has a key twice, or out of order")
    if sum(file.size_bytes for file in (*entries, *manifests)) != files_bytes:
        raise ValueError("its index does not add up to the size of the files")
    return entries, manifests


def _targets_of(entries: Iterable[BundledFile]) -> tuple[str, ...]:
    return tuple(sorted({entry.target for entry in entries}))


def _statement_of(index: bytes, files_bytes: int, targets: Sequence[str]) -> bytes:
    """The bytes that a bundle's signature is made over."""
    digest = sha256(index).digest()
    return statement(key=f"bundle {FORMAT}", digest=digest, size_bytes=files_bytes, target=",".join(targets))


# -- writing -----------------------------------------------------------------------------------------------------------


class Assembled(NamedTuple):
    """A bundle that is ready to be written.

    Args:
        parts: Its bytes, in pieces; iterating raises BundleError if an entry has changed since.
        report: The description of its contents.
    """

    parts: Iterator[bytes]
    report: BundleReport


def assemble(
    path: str,
    entries: Sequence[BundledFile],
    manifests: Mapping[str, bytes],
    read: Callable[[str], bytes | None],
    *,
    signing_key: str | None = None,
) -> Assembled:
    """Lay out a bundle.

    Args:
        path: Its path, for messages.
        entries: The entries to put in, in any order.
        manifests: The manifests to put in, by their keys.
        read: Returns the bytes of an entry by its key.
        signing_key: PEM file of the key to sign with.

    Raises:
        BundleError: It is too large.
        SettingsError, ToolchainMissingError: It cannot be signed.
    """
    cannot = f"cannot write the bundle {path}"
    entries, families = sorted(entries), sorted(manifests.items())
    rows = [(family, len(data), sha256(data).hexdigest()) for family, data in families]
    index = json_of({"entries": entries, "manifests": rows}).encode("ascii")
    files_bytes = sum(file.size_bytes for file in entries) + sum(map(len, manifests.values()))
    if len(index) > MAX_INDEX_BYTES or files_bytes > MAX_BUNDLE_BYTES - MAX_INDEX_BYTES - 4096:
        raise BundleError(cannot, f"{files_bytes} bytes in {len(entries)} entries are too many")
    targets = _targets_of(entries)
    signature = sign(signing_key, _statement_of(index, files_bytes, targets)) if signing_key else b""
    head = PREFIX.pack(MAGIC, FORMAT, len(signature) // SIGNATURE_BYTES, len(index), files_bytes) + index + signature

    def parts() -> Iterator[bytes]:
        yield head + xxh3_128_digest(head)
        for file in entries:
            data = read(file.key)
            if data is None or sha256(data).hexdigest() != file.sha256:
                raise BundleError(cannot, f"{file.key} was removed or changed meanwhile", "export once more")
            yield data
        for _family, data in families:
            yield data

    size_bytes = len(head) + DIGEST_BYTES + files_bytes
    return Assembled(parts(), BundleReport(path, len(entries), size_bytes, targets, signature[:8].hex()))


def write_bundle(bundle: Assembled) -> BundleReport:
    """Write a bundle, in place of the file that is there.

    Raises:
        BundleError: It cannot be written, or an entry changed before it was written.
    """
    directory, name = os.path.split(bundle.report.path)
    try:
        folder = os.open(directory or ".", os.O_RDONLY | DIRECTORY | CLOEXEC)
        try:
            _require_file(folder, name)
            publish_in(folder, lambda: name, bundle.parts)
        finally:
            os.close(folder)
    except OSError as error:
        what = f"cannot write the bundle {bundle.report.path}"
        raise BundleError(what, why_of(error), "write it elsewhere") from None
    return bundle.report


def publish_in(folder: int, name: Callable[[], str], parts: Iterable[bytes]) -> None:
    """Write a private file into an open folder, sync it, and rename it to the result of `name()`.

    Raises:
        OSError: It cannot be written, or something else than a regular file has that name.
    """
    private = f".{os.getpid()}.{os.urandom(8).hex()}"
    try:
        with open(open_in(folder, private, _CREATE, 0o666), "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        _require_file(folder, name())
        rename_in(folder, private, folder, name())
    except BaseException:  # an interrupt too must leave nothing behind
        with suppress(OSError):
            unlink_in(folder, private)
        raise


def _require_file(folder: int, name: str) -> None:
    """Raise OSError if a name in an open folder leads to a link, a device, a pipe or a folder."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(stat_in(folder, name).st_mode):
            raise OSError(errno.EEXIST, "only regular files are replaced, and the one there is not")
