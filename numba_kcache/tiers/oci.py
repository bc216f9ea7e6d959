"""A bundle in an OCI image layout: found by its tag, each blob checked against its digest, unpacked within bounds.

Promise     A blob is parsed only after its size and sha256 were compared with the manifest. No link inside the
            layout is followed, and no name in it is used as a path. The layer is unpacked into an anonymous file of at
            most `_RATIO` times the layer's size, which is then a bundle like any other, refused or used as a whole.
Method      The layer is a tar archive of which one regular file is taken, the one whose name ends in .kcache. Headers
            have 512 bytes each and are read one at a time; all other members are skipped.
Not here    Writing one (bundles.image), and registries: skopeo, oras and podman copy layouts to and from them.
Source      OCI Image Format Specification 1.1, "Image Layout"; POSIX.1-1988, "ustar interchange format".
"""

from __future__ import annotations

import functools
import os
import re
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import IO, Any

from ..errors import BundleError
from ..model.json_values import fits, read_json
from ..model.tier_address import BUNDLE_SUFFIX, LAYOUT_MARK, LayoutPlace
from ..store import CLOEXEC, DIRECTORY, FOLDER
from ..store.tree import READ, Descriptor, identity_of
from .bundle import Bundle
from .signing import TrustedKeys

INDEX, BLOBS = "index.json", ("blobs", "sha256")
LAYOUT_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
REF_NAME = "org.opencontainers.image.ref.name"
DEFAULT_TAG = "latest"
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
GZIP_LAYER_TYPE = "application/vnd.oci.image.layer.v1.tar+gzip"
MAX_LAYER_FILE_BYTES = (8 << 30) - 1
"""Largest file that the header of a tar archive can describe, in bytes."""

_MANIFEST_TYPES = (MANIFEST_TYPE, "application/vnd.docker.distribution.manifest.v2+json")
_GZIP_TYPES = (GZIP_LAYER_TYPE, "application/vnd.docker.image.rootfs.diff.tar.gzip")
_TAR_TYPES = ("application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar")
_MAX_JSON_BYTES = 4 << 20
_MAX_BLOB_BYTES = 16 << 30
_BLOCK_BYTES, _CHUNK_BYTES = 512, 1 << 20
_RATIO, _SLACK_BYTES = 64, 1 << 20
_DESCRIPTOR = {"mediaType": str, "digest": str, "size": int}


def open_layout(place: LayoutPlace, trusted: TrustedKeys) -> Bundle:
    """The bundle in an image layout.

    Raises:
        BundleError: It is refused, or there is none.
    """
    unpack = functools.partial(_unpacked, place)
    try:
        file = _Unpacked(unpack)
        size_bytes = os.fstat(file.descriptor).st_size
    except (ValueError, OSError, EOFError, MemoryError) as error:
        why = getattr(error, "strerror", None) or str(error) or "not enough memory to read it"
        raise BundleError(f"cannot use the bundle {place}", why, "build or fetch it again") from None
    return Bundle(str(place), file.read, size_bytes, trusted)


class _Unpacked:
    """An anonymous file with the unpacked bundle. If the program closes its descriptor, it is unpacked again."""

    def __init__(self, unpack: Callable[[], Descriptor]) -> None:
        self._unpack = unpack
        self.descriptor = unpack()

    def read(self, at: int, size: int) -> bytes:
        """Read `size` bytes from an offset, or fewer at the end."""
        is_ours = False
        with suppress(OSError):
            is_ours = identity_of(os.fstat(self.descriptor)) == self.descriptor.identity
        if not is_ours:
            self.descriptor.identity = (-1, -1)  # the new file may get the number and the inode of the old one
            self.descriptor = self._unpack()
        data = b""
        while more := os.pread(self.descriptor, size - len(data), at + len(data)):
            data += more
        return data


def _unpacked(place: LayoutPlace) -> Descriptor:
    root = os.open(place.directory, os.O_RDONLY | DIRECTORY | CLOEXEC)
    try:
        return _bundle_in(root, _layer_of(root, place.tag))
    except (NotADirectoryError, FileNotFoundError) as error:
        raise ValueError(f"it is not a complete OCI image layout: {error.strerror}: {error.filename}") from None
    finally:
        os.close(root)


def read_index(root: int) -> dict[str, Any]:
    """The index of an open layout.

    Raises:
        ValueError: It is malformed, or of another version.
        OSError: There is none.
    """
    with _opened(root, LAYOUT_MARK) as file:
        layout = read_json(file.read(4096))
    if not fits(layout, {"imageLayoutVersion": str}) or layout["imageLayoutVersion"] != "1.0.0":
        raise ValueError("its image layout is not of version 1.0.0")
    with _opened(root, INDEX) as file:
        data = file.read(_MAX_JSON_BYTES + 1)
    index: dict[str, Any] = read_json(data) if len(data) <= _MAX_JSON_BYTES else {}
    if not fits(index, {"manifests": [_DESCRIPTOR]}):
        raise ValueError("its index.json is malformed")
    return index


def tag_of(descriptor: dict[str, Any]) -> str:
    """The tag of a manifest in an index; "" if it has none."""
    annotations = descriptor.get("annotations")
    return str(annotations.get(REF_NAME, "")) if isinstance(annotations, dict) else ""


def _layer_of(root: int, tag: str | None) -> dict[str, Any]:
    manifests = read_index(root)["manifests"]
    wanted = DEFAULT_TAG if tag is None and len(manifests) > 1 else tag
    found = manifests if wanted is None else [each for each in manifests if tag_of(each) == wanted]
    if len(found) != 1:
        there = ", ".join(sorted({tag_of(each)[:100] or "(no tag)" for each in manifests})[:20])
        tagged = "" if wanted is None else f" with the tag {wanted!r}"
        raise ValueError(f"it has {len(found)} images{tagged}" + (f"; its tags are {there}" if there else ""))
    if found[0]["mediaType"] not in _MANIFEST_TYPES:
        raise ValueError(f"its image is of the type {found[0]['mediaType'][:100]!r}")
    with _blob(root, found[0], _MAX_JSON_BYTES) as file:
        manifest = read_json(file.read())
    if not fits(manifest, {"config": _DESCRIPTOR, "layers": [_DESCRIPTOR]}) or len(manifest["layers"]) != 1:
        raise ValueError("its image does not consist of a config and one layer")
    with _blob(root, manifest["config"], _MAX_JSON_BYTES):  # opened only to check its digest
        layer: dict[str, Any] = manifest["layers"][0]
    return layer


def _blob(root: int, descriptor: dict[str, Any], limit_bytes: int) -> IO[bytes]:
    """Open a blob after checking its size and digest against its descriptor."""
    digest, size_bytes = descriptor["digest"], descriptor["size"]
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{digest[:100]!r} in it is not the digest of a blob")
    if not 0 <= size_bytes <= limit_bytes:
        raise ValueError(
            f"a blob in it has {size_bytes} bytes; at most {limit_bytes} are allowed"
            if size_bytes > 0
            else "a blob in it has a negative size"
        )
    file = _opened(root, *BLOBS, digest[7:])
    try:
        there = os.fstat(file.fileno()).st_size
        if there != size_bytes:
            raise ValueError(f"a blob in it has {there} bytes, but {size_bytes} were written")
        found = sha256()
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
        if found.hexdigest() != digest[7:]:
            raise ValueError(f"the blob {digest} in it was damaged")
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


def _opened(root: int, *names: str) -> IO[bytes]:
    """Open a regular file below an open folder without following links."""
    folders: list[int] = []
    try:
        for name in names[:-1]:
            above = folders[-1] if folders else root
            folders.append(os.open(name, FOLDER, dir_fd=above))
        file = open(os.open(names[-1], READ, dir_fd=folders[-1] if folders else root), "rb")  # noqa: SIM115
    finally:
        for folder in folders:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{names[-1]} in it is not a regular file")
    return file


def _bundle_in(root: int, layer: dict[str, Any]) -> Descriptor:
    """Copy the one bundle of a layer into an anonymous file."""
    kind = layer["mediaType"]
    if kind not in (*_GZIP_TYPES, *_TAR_TYPES):
        raise ValueError(f"its layer is of the type {kind[:100]!r}, and neither tar nor tar+gzip")
    with _blob(root, layer, _MAX_BLOB_BYTES) as blob, tempfile.TemporaryFile() as copy:
        if kind in _TAR_TYPES:
            found = _copy_bundle(_Archive(blob, layer["size"]), copy)
        else:
            import gzip
            import zlib

            try:
                with gzip.GzipFile(fileobj=blob) as unpacked:
                    found = _copy_bundle(_Archive(unpacked, layer["size"] * _RATIO + _SLACK_BYTES), copy)
            except zlib.error as error:
                raise ValueError(f"its layer cannot be unpacked: {error}") from None
        if found != 1:
            raise ValueError(f"its layer holds {found or 'no'} files {BUNDLE_SUFFIX} instead of one")
        copy.flush()
        descriptor = Descriptor(os.dup(copy.fileno()))
    descriptor.identity = identity_of(os.fstat(descriptor))
    return descriptor


class _Archive:
    """A tar archive, of which a limited number of bytes is read."""

    def __init__(self, source: Any, limit_bytes: int) -> None:
        self._source, self.left_bytes = source, limit_bytes

    def take(self, size_bytes: int) -> bytes:
        """Read exactly `size_bytes` bytes.

        Raises:
            ValueError: Fewer bytes are left, or more than the limit would be read.
        """
        if size_bytes > self.left_bytes:
            raise ValueError("its layer unpacks to too many bytes")
        self.left_bytes -= size_bytes
        data: bytes = self._source.read(size_bytes)
        if len(data) != size_bytes:
            raise ValueError("its layer is cut short")
        return data


def _copy_bundle(archive: _Archive, copy: IO[bytes]) -> int:
    """Copy the regular files with a bundle's suffix, one after the other. Returns their number."""
    found = 0
    while (header := archive.take(_BLOCK_BYTES)).strip(b"\0"):
        if header[257:262] != b"ustar" or _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 32:
            raise ValueError("its layer is not a tar archive")
        size_bytes, is_file = _octal(header[124:136]), header[156:157] in (b"0", b"\0")
        is_bundle = is_file and header[:100].partition(b"\0")[0].endswith(BUNDLE_SUFFIX.encode())
        found += is_bundle
        padded = -(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES
        if padded > archive.left_bytes:
            raise ValueError(f"a file of {size_bytes} bytes in its layer is too large")
        while padded:
            chunk = archive.take(min(padded, _CHUNK_BYTES))
            if is_bundle:
                copy.write(chunk[:size_bytes])
            size_bytes, padded = max(0, size_bytes - len(chunk)), padded - len(chunk)
    return found


def _octal(field: bytes) -> int:
    digits = field.strip(b" \0")
    if not re.fullmatch(rb"[0-7]*", digits):
        raise ValueError("its layer is not a tar archive")
    return int(digits or b"0", 8)
