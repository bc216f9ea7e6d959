"""Many entries in one file: checked as a whole, read by key, mounted as a tier.

Promise     A bundle that is damaged, truncated, too large or not signed as required is refused as a whole:
            `BundleError` says why, and none of its files was used. Each file read later is checked against the sha256
            in the index, since the bundle may change on disk meanwhile.
Method      A bundle is prefix | index | files | signature | digest; docs/format.md has the details. It contains keys,
            no paths. XXH3-128 over all bytes detects damage; the signature covers the index, which holds the sha256 of
            each file.
Not here    Writing one (bundles.writing), and the format of each entry (store.entry).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Any

from xxhash import xxh3_128

from ..errors import BundleError, KCacheError
from ..keys import sha256
from ..model import NamedTuple
from ..store import CLOEXEC, NONBLOCK
from ..store.entry import ENTRY, MANIFEST, MAX_FILE_BYTES, DamagedEntry, parse_object, require_key
from ..store.tree import Descriptor, identity_of
from .trust import SIGNATURE_BYTES, TrustedKeys, statement

FORMAT = 1
MAX_BUNDLE_BYTES = 16 << 30
MAX_INDEX_BYTES = 32 << 20

MAGIC = b"\x89NKB\r\n\x1a\n"
PREFIX = Struct("<8sHHIQ")  # magic, format, number of signatures, size of the index, size of all files
DIGEST_BYTES = 16
_CHUNK_BYTES = 1 << 20


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
    """A bundle that was checked as a whole.

    Args:
        name: Its name in messages.
        read: Returns `size` bytes from an offset, or fewer at the end.
        size_bytes: Size of the file.
        trusted: If not empty, one of these keys must have signed it.

    Raises:
        BundleError: It is refused.
    """

    def __init__(self, name: str, read: Callable[[int, int], bytes], size_bytes: int, trusted: TrustedKeys) -> None:
        self.name, self._read = name, read
        try:
            signatures, index_bytes, files_bytes = _prefix(read, size_bytes)
            _check_digest(read, size_bytes)
            at, index = PREFIX.size + index_bytes, read(PREFIX.size, index_bytes)
            self.entries, self.manifests = _index(index, files_bytes)
            signature, targets = read(at + files_bytes, signatures * SIGNATURE_BYTES), targets_of(self.entries)
            signed_by = signature[:8].hex()
            if trusted:
                signed_by = trusted.check(signature, statement_of(index, files_bytes, targets))
        except (ValueError, OSError, MemoryError) as error:
            why = str(error) or "not enough memory to read it"
            raise BundleError(f"cannot use the bundle {name}", why, "build or fetch it again") from None
        self.report = BundleReport(name, len(self.entries), size_bytes, targets, signed_by)
        self._at: dict[tuple[int, str], tuple[int, BundledFile]] = {}  # offset and row of each file
        for kind, files in ((ENTRY, self.entries), (MANIFEST, self.manifests)):
            for each in files:
                self._at[kind, each.key] = at, each
                at += each.size_bytes

    def get(self, kind: int, key: str) -> bytes | None:
        """The file of the entry or manifest `key`; None if the bundle has none."""
        at, file = self._at.get((kind, key), (0, None))
        if file is None:
            return None
        data = self._read(at, file.size_bytes)
        if len(data) != file.size_bytes or sha256(data).hexdigest() != file.sha256:
            raise DamagedEntry(f"{key} in {self.name} changed after the bundle was checked")
        return data


class BundleTier:
    """A bundle as a tier, opened at the first look-up. An error of opening it is raised again at each look-up."""

    readonly = True
    is_remote = False
    is_trusted = True  # its signature was checked as a whole when it was opened

    def __init__(self, name: str, open_bundle: Callable[[], Bundle]) -> None:
        self.name, self._open = name, open_bundle
        self._bundle: Bundle | KCacheError | None = None

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file. No file of a bundle has a signature of its own: the bundle's one signature covers them all."""
        return self._opened().get(kind, key)

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Raise OSError: bundles are read-only."""
        raise OSError(f"{self.name} is a bundle, and bundles are read-only")

    def put_manifest(self, family: str, data: bytes, before: bytes | None) -> bool:
        """Raise OSError: bundles are read-only."""
        raise OSError(f"{self.name} is a bundle, and bundles are read-only")

    def keys(self, kind: int) -> list[str]:
        """The keys of all entries or manifests."""
        return [each.key for each in (self._opened().entries if kind == ENTRY else self._opened().manifests)]

    def ready(self) -> None:
        """Do nothing: a bundle is not written to."""

    def close(self) -> None:
        """Drop the reference to the file, which is closed with the last one."""
        self._bundle = None

    def _opened(self) -> Bundle:
        if self._bundle is None:
            try:
                self._bundle = self._open()
            except KCacheError as error:  # it is refused, or the package that checks signatures is missing
                self._bundle = error  # a large file is not read in full again at each miss
        if isinstance(self._bundle, KCacheError):
            raise self._bundle.with_traceback(None)  # otherwise each miss would add its frames to those before
        return self._bundle


def open_bundle(path: str, trusted: TrustedKeys) -> Bundle:
    """The bundle in a file.

    Raises:
        BundleError: It is refused.
    """
    try:
        file = _File(path)
        status = os.fstat(file.descriptor)
    except OSError as error:
        raise BundleError(
            f"cannot use the bundle {path}",
            error.strerror or str(error),
            "correct the path, or write it by export_bundle()",
        ) from None
    if not stat.S_ISREG(status.st_mode):
        raise BundleError(f"cannot use the bundle {path}", "it is not a regular file", "correct the path")
    return Bundle(path, file.read, status.st_size, trusted)


def open_resource(package: str, resource: str, trusted: TrustedKeys) -> Bundle:
    """The bundle in a resource of a package.

    Raises:
        BundleError: It is refused, or not there.
    """
    from importlib.resources import files

    name = f"{package}:{resource}"
    try:
        found: Any = files(package)
        for part in resource.split("/"):
            found = found.joinpath(part)
    except Exception as error:  # the package is imported: its own code may raise anything
        why = str(error) or type(error).__name__
        raise BundleError(f"cannot use the bundle {name}", why, "build or fetch it again") from None
    return open_traversable(found, name, trusted)


def open_traversable(found: Any, name: str, trusted: TrustedKeys) -> Bundle:
    """The bundle in an object with `read_bytes`, such as `importlib.resources` returns.

    Raises:
        BundleError: It is refused, or not there.
    """
    if isinstance(found, os.PathLike):
        return open_bundle(os.fspath(found), trusted)
    try:
        data = found.read_bytes()  # for example from a zip file
    except (OSError, KeyError) as error:
        raise BundleError(f"cannot use the bundle {name}", str(error), "build or fetch it again") from None
    return Bundle(name, lambda at, size: data[at : at + size], len(data), trusted)


class _File:
    """An open file, closed with the last reference to it. If the program closes its descriptor, it is reopened."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.descriptor = self._opened()

    def read(self, at: int, size: int) -> bytes:
        self._require()
        data = b""
        while more := os.pread(self.descriptor, size - len(data), at + len(data)):  # b"" once all is read
            data += more
        return data

    def _require(self) -> None:
        """Check that the descriptor still is this file: daemons close descriptors, whose numbers are then reused."""
        with suppress(OSError):
            if identity_of(os.fstat(self.descriptor)) == self.descriptor.identity:
                return
        again = self._opened()
        if again.identity != self.descriptor.identity:
            raise OSError(f"{self._path} is not the file that was checked")
        self.descriptor = again

    def _opened(self) -> Descriptor:
        descriptor = Descriptor(os.open(self._path, os.O_RDONLY | CLOEXEC | NONBLOCK))
        descriptor.identity = identity_of(os.fstat(descriptor))
        return descriptor


def _prefix(read: Callable[[int, int], bytes], size_bytes: int) -> tuple[int, int, int]:
    """Number of signatures, size of the index and of the files in bytes; all checked against the size of the bundle."""
    data = read(0, PREFIX.size)
    if len(data) < PREFIX.size or not data.startswith(MAGIC):
        raise ValueError("it is not a bundle")
    _, version, signatures, index_bytes, files_bytes = PREFIX.unpack(data)
    if version != FORMAT:
        raise ValueError(f"it has format {version}, this version reads {FORMAT}")
    if size_bytes > MAX_BUNDLE_BYTES or index_bytes > MAX_INDEX_BYTES:
        raise ValueError(f"{size_bytes} bytes with an index of {index_bytes} are too many")
    whole = PREFIX.size + index_bytes + files_bytes + signatures * SIGNATURE_BYTES + DIGEST_BYTES
    if signatures > 1 or whole != size_bytes:
        raise ValueError(f"it has {size_bytes} bytes, but {whole} were written")
    return signatures, index_bytes, files_bytes


def _check_digest(read: Callable[[int, int], bytes], size_bytes: int) -> None:
    digest, end = xxh3_128(), size_bytes - DIGEST_BYTES
    for at in range(0, end, _CHUNK_BYTES):
        digest.update(read(at, min(_CHUNK_BYTES, end - at)))
    if digest.digest() != read(end, DIGEST_BYTES):
        raise ValueError("its digest differs: it was damaged")


def _index(data: bytes, files_bytes: int) -> tuple[tuple[BundledFile, ...], tuple[BundledFile, ...]]:
    """Entries and manifests of an index.

    Raises:
        ValueError: It is not one that `write_bundle` could have made.
    """
    index = parse_object(data)
    if list(index) != ["entries", "manifests"] or any(type(rows) is not list for rows in index.values()):
        raise ValueError("its index is malformed")
    entries = tuple(_row(row, 5) for row in index["entries"])
    manifests = tuple(_row(row, 3) for row in index["manifests"])
    for files in (entries, manifests):
        keys = [each.key for each in files]
        if keys != sorted(set(keys)):
            raise ValueError("its index has a key twice, or out of order")
    if sum(each.size_bytes for each in (*entries, *manifests)) != files_bytes:
        raise ValueError("its index does not add up to the size of the files")
    return entries, manifests


def _row(row: Any, fields: int) -> BundledFile:
    if type(row) is not list or len(row) != fields:
        raise ValueError("its index is malformed")
    key, size_bytes, digest, target, kernels = (*row, "", [])[:5]
    if type(size_bytes) is not int or type(kernels) is not list:
        raise ValueError("its index is malformed")
    if not 0 < size_bytes <= MAX_FILE_BYTES:
        raise ValueError(f"its index has a file of {size_bytes} bytes; 1 to {MAX_FILE_BYTES} are allowed")
    if not all(type(text) is str for text in (key, digest, target, *kernels)):
        raise ValueError("its index is malformed")
    return BundledFile(require_key(key), size_bytes, require_key(digest), target, tuple(kernels))


def targets_of(entries: Iterable[BundledFile]) -> tuple[str, ...]:
    """Targets of the code of these entries."""
    return tuple(sorted({each.target for each in entries}))


def statement_of(index: bytes, files_bytes: int, targets: Sequence[str]) -> bytes:
    """The bytes that a bundle's signature is made over."""
    digest = sha256(index).digest()
    return statement(key=f"bundle {FORMAT}", digest=digest, size_bytes=files_bytes, target=",".join(targets))
