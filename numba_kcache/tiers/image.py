"""A bundle in an OCI image layout: written under a tag, found by it, unpacked within bounds.

Promise     A blob is parsed only after its size and sha256 were compared with the manifest. No link inside the layer is
            followed, and no name in it is used as a path. Unpacking ends with an error before it writes more than the
            layer's own size and one kernel's limit (`MAX_FILE_BYTES`), or a bundle of another size than its first
            bytes state. The anonymous file that it fills is a bundle like any other, refused or used as a whole.
            The same entries give the same digests, with the same versions of Python and zlib: the image contains no
            time, user or host name. The tag leads to the old image or to the new one. Of tags that several processes
            write at once none is lost, unless one of them holds the lock for seconds.
Method      One layer with the bundle, a config with labels, a manifest with the same texts as annotations, then
            index.json, under a lock of the layout's folder. The layer has the gzip format, which model-cache operators
            of Kubernetes require, but is not compressed: entries are compressed already. These operators read only
            files under io.triton.cache; users and volume mounts find the same file under its other name, a hard link.
            Of a layer one regular file is read, the one whose name ends in .kcache, after headers of 512 bytes each;
            all other members are skipped.
Not here    Registries: skopeo, oras and podman copy layouts to and from them. Blobs of images without a tag are not
            removed, as with other tools.
Source      OCI Image Format Specification 1.1, "Image Layout"; POSIX.1-1988, "ustar interchange format".
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import stat
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import chain
from typing import IO, Any

from ..errors import BundleError, why_of
from ..model import parse_target
from ..model.json_values import fits, read_json
from ..model.tier_address import BUNDLE_SUFFIX, LAYOUT_MARK, LayoutPlace
from ..store import CLOEXEC, DIRECTORY, FOLDER, MAX_FILE_BYTES, READ, make_folder_in, open_below, try_flock
from .bundle import CHUNK_BYTES, PREFIX, Assembled, Bundle, BundledFile, BundleReport, OpenFile, publish_in, sizes_of
from .tier import within
from .trust import Trust

UNPACK_S = 2.5
"""Seconds that a look-up may spend to check and unpack an image; calls that open one on purpose have no limit."""

INDEX_WAIT_S = 2.0
"""Longest wait for another process that adds a tag to the same layout, in seconds."""

OUR_ANNOTATIONS = "io.github.numba-kcache"
OPERATOR_LABELS = "cache.triton.image"
"""Prefix of the label that GKM and KServe's model cache look for: `/summary` lists the GPUs that an image is for."""

_INDEX, _BLOBS = "index.json", ("blobs", "sha256")
_FILE, _FOLDER = "kernels.kcache", "io.triton.cache"
_LAYOUT_VERSION = b'{"imageLayoutVersion":"1.0.0"}'
_REF_NAME, _DEFAULT_TAG = "org.opencontainers.image.ref.name", "latest"
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_GZIP_TYPES = ("application/vnd.oci.image.layer.v1.tar+gzip", "application/vnd.docker.image.rootfs.diff.tar.gzip")
_TAR_TYPES = ("application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar")
_DESCRIPTOR = {"mediaType": str, "digest": str, "size": int}
_MAX_JSON_BYTES, _MAX_BLOB_BYTES = 4 << 20, 16 << 30
_MAX_MEMBER_BYTES = (8 << 30) - 1
"""Largest file that the header of a tar archive can describe, in bytes."""

_MAX_TEXT = 4096
_BLOCK_BYTES = 512


# -- reading -----------------------------------------------------------------------------------------------------------


def open_layout(place: LayoutPlace, trusted: Trust, wait_s: float = math.inf) -> Bundle:
    """The bundle in an image layout.

    Raises:
        BundleError: It is refused, or there is none.
    """
    return Bundle(str(place), lambda: OpenFile(_unpacked(place, time.monotonic() + wait_s)), trusted)


def _check_time(end_s: float) -> None:
    if time.monotonic() > end_s:
        raise TimeoutError(f"unpacking it takes more than {UNPACK_S:g} s, too long for a launch: import it")


def _unpacked(place: LayoutPlace, end_s: float) -> int:
    """Copy the one bundle of a layout into an anonymous file; returns its descriptor."""
    import gzip
    import tempfile

    root = os.open(place.directory, os.O_RDONLY | DIRECTORY | CLOEXEC)
    try:
        layer = _layer_of(root, place.tag, end_s)
        kind, size_bytes = layer["mediaType"], layer["size"]
        if kind not in (*_GZIP_TYPES, *_TAR_TYPES):
            raise ValueError(f"its layer is of the type {kind[:100]!r}, and neither tar nor tar+gzip")
        with _blob(root, layer, _MAX_BLOB_BYTES, end_s) as blob, tempfile.TemporaryFile() as copy:
            if kind in _TAR_TYPES:
                _copy_bundle(blob, size_bytes, copy, end_s)
            else:
                with gzip.GzipFile(fileobj=blob) as unpacked:
                    _copy_bundle(unpacked, size_bytes + MAX_FILE_BYTES, copy, end_s)
            copy.flush()
            return os.dup(copy.fileno())
    except (NotADirectoryError, FileNotFoundError) as error:
        raise ValueError(f"it is not a complete OCI image layout: {error.strerror}: {error.filename}") from None
    except zlib.error as error:
        raise ValueError(f"its layer cannot be unpacked: {error}") from None
    finally:
        os.close(root)


def _copy_bundle(archive: Any, left_bytes: int, copy: IO[bytes], end_s: float) -> None:
    """Copy the one regular file with a bundle's suffix out of a tar archive that holds at most so many bytes."""
    from tarfile import AREGTYPE, REGTYPE, TarError, TarInfo

    def take(size_bytes: int) -> bytes:
        nonlocal left_bytes
        _check_time(end_s)
        left_bytes -= size_bytes
        if left_bytes < 0:
            raise ValueError("its layer unpacks to too many bytes")
        data: bytes = archive.read(size_bytes)
        if len(data) != size_bytes:
            raise ValueError("its layer is cut short")
        return data

    found = 0
    while (header := take(_BLOCK_BYTES)).strip(b"\0"):
        try:
            member = TarInfo.frombuf(header, "latin-1", "strict")
        except TarError:
            raise ValueError("its layer is not a tar archive") from None
        is_bundle = member.type in (REGTYPE, AREGTYPE) and member.name.endswith(BUNDLE_SUFFIX)
        found += is_bundle
        if not 0 <= member.size <= left_bytes:
            raise ValueError(f"a file of {member.size} bytes in its layer is too large")
        for at in range(0, member.size, CHUNK_BYTES):
            size_bytes = min(CHUNK_BYTES, member.size - at)
            chunk = take(-(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES)
            if is_bundle:
                if at == 0:
                    sizes_of(chunk[: min(PREFIX.size, size_bytes)], member.size)
                copy.write(chunk[:size_bytes])
    if found != 1:
        raise ValueError(f"its layer holds {found or 'no'} files {BUNDLE_SUFFIX} instead of one")


def _layer_of(root: int, tag: str | None, end_s: float) -> dict[str, Any]:
    manifests = _read_index(root)["manifests"]
    wanted = _DEFAULT_TAG if tag is None and len(manifests) > 1 else tag
    found = manifests if wanted is None else [each for each in manifests if _tag_of(each) == wanted]
    if len(found) != 1:
        there = ", ".join(sorted({_tag_of(each)[:100] or "(no tag)" for each in manifests})[:20])
        tagged = "" if wanted is None else f" with the tag {wanted!r}"
        raise ValueError(f"it has {len(found)} images{tagged}" + (f"; its tags are {there}" if there else ""))
    if found[0]["mediaType"] not in _MANIFEST_TYPES:
        raise ValueError(f"its image is of the type {found[0]['mediaType'][:100]!r}")
    with _blob(root, found[0], _MAX_JSON_BYTES, end_s) as file:
        manifest = read_json(file.read())
    if not fits(manifest, {"config": _DESCRIPTOR, "layers": [_DESCRIPTOR]}) or len(manifest["layers"]) != 1:
        raise ValueError("its image does not consist of a config and one layer")
    with _blob(root, manifest["config"], _MAX_JSON_BYTES, end_s):  # opened only to check its digest
        layer: dict[str, Any] = manifest["layers"][0]
    return layer


def _read_index(root: int) -> dict[str, Any]:
    with _opened(root, LAYOUT_MARK) as file:
        layout = read_json(file.read(4096))
    if not fits(layout, {"imageLayoutVersion": str}) or layout["imageLayoutVersion"] != "1.0.0":
        raise ValueError("its image layout is not of version 1.0.0")
    with _opened(root, _INDEX) as file:
        data = file.read(_MAX_JSON_BYTES + 1)
    index: dict[str, Any] = read_json(data) if len(data) <= _MAX_JSON_BYTES else {}
    if not fits(index, {"manifests": [_DESCRIPTOR]}):
        raise ValueError("its index.json is malformed")
    return index


def _tag_of(descriptor: dict[str, Any]) -> str:
    annotations = descriptor.get("annotations")
    return str(annotations.get(_REF_NAME, "")) if isinstance(annotations, dict) else ""


def _blob(root: int, descriptor: dict[str, Any], limit_bytes: int, end_s: float) -> IO[bytes]:
    """Open a blob after checking its size and digest against its descriptor."""
    digest, size_bytes = descriptor["digest"], descriptor["size"]
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ValueError(f"{digest[:100]!r} in it is not the digest of a blob")
    if not 0 <= size_bytes <= limit_bytes:
        size = f"{size_bytes} bytes; at most {limit_bytes} are allowed" if size_bytes > 0 else "a negative size"
        raise ValueError(f"a blob in it has {size}")
    file = _opened(root, *_BLOBS, digest[7:])
    try:
        there = os.fstat(file.fileno()).st_size
        if there != size_bytes:
            raise ValueError(f"a blob in it has {there} bytes, but {size_bytes} were written")
        found = sha256()
        while chunk := file.read(CHUNK_BYTES):
            _check_time(end_s)
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
    file = open(open_below(root, names, READ), "rb")  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ValueError(f"{names[-1]} in it is not a regular file")
    return file


# -- writing -----------------------------------------------------------------------------------------------------------


def write_image(place: LayoutPlace, bundle: Assembled, entries: Sequence[BundledFile]) -> BundleReport:
    """Write an image under its tag, and replace an image that has this tag.

    Args:
        place: Directory and tag; a missing directory is made.
        bundle: The bundle to put into it.
        entries: The entries in that bundle.

    Raises:
        BundleError: It cannot be written, or the directory holds something else.
    """
    cannot = f"cannot write the image {place}"
    if bundle.report.size_bytes > _MAX_MEMBER_BYTES:
        raise BundleError(cannot, f"{bundle.report.size_bytes} bytes are more than the layer of an image can hold")
    try:
        os.makedirs(place.directory, exist_ok=True)
        root = os.open(place.directory, os.O_RDONLY | DIRECTORY | CLOEXEC)
        try:
            _write(root, place.tag or _DEFAULT_TAG, bundle, describe(bundle.report, entries))
        finally:
            os.close(root)
    except (OSError, ValueError) as error:
        raise BundleError(cannot, why_of(error)) from None
    return bundle.report


def describe(report: BundleReport, entries: Sequence[BundledFile]) -> dict[str, str]:
    """Labels and annotations of an image."""
    kernels = ",".join(sorted({kernel for entry in entries for kernel in entry.kernels}))
    capabilities = sorted({parse_target(each).cc for each in report.targets if "_" in each})
    gpus = [{"backend": "cuda", "arch": f"{major}{minor}", "warp_size": 32} for major, minor in capabilities]
    ours = {
        "entries": str(report.entries),
        "targets": ",".join(report.targets),
        "kernels": kernels if len(kernels) <= _MAX_TEXT else "",
        "signed-by": report.signed_by,
    }
    return {
        "org.opencontainers.image.title": "numba_kcache kernels",
        **{f"{OUR_ANNOTATIONS}.{name}": text for name, text in ours.items() if text},
        f"{OPERATOR_LABELS}/entry-count": str(report.entries),
        f"{OPERATOR_LABELS}/cache-size-bytes": str(report.size_bytes),
        f"{OPERATOR_LABELS}/summary": _json({"targets": gpus}).decode(),
    }


def _write(root: int, tag: str, bundle: Assembled, about: dict[str, str]) -> None:
    there = os.listdir(root)
    if there and LAYOUT_MARK not in there:
        raise OSError(errno.EEXIST, "the directory is neither empty nor an OCI image layout")
    publish_in(root, lambda: LAYOUT_MARK, [_LAYOUT_VERSION])
    for at in range(len(_BLOBS)):
        with suppress(FileExistsError):
            make_folder_in(root, "/".join(_BLOBS[: at + 1]), 0o777)
        os.close(open_below(root, _BLOBS[: at + 1], FOLDER))  # raises for a link
    blobs = open_below(root, _BLOBS, FOLDER)
    try:
        tar = sha256()
        layer = _publish_blob(blobs, _GZIP_TYPES[0], _layer(bundle, tar))
        platform = {"architecture": "amd64", "os": "linux"}  # registries require one; the image has no CPU code
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{tar.hexdigest()}"]}
        config_json = _json({**platform, "config": {"Labels": about}, "rootfs": rootfs})
        config = _publish_blob(blobs, _CONFIG_TYPE, [config_json])
        form = {"schemaVersion": 2, "mediaType": _MANIFEST_TYPES[0]}
        manifest_json = _json({**form, "config": config, "layers": [layer], "annotations": about})
        manifest = _publish_blob(blobs, _MANIFEST_TYPES[0], [manifest_json])
    finally:
        os.close(blobs)
    with suppress(OSError):  # there are no locks, or their owner is stopped: of two tags at once one may be lost
        within(INDEX_WAIT_S, lambda: try_flock(root, waits=True), "it is locked")
    manifests = _read_index(root)["manifests"] if _INDEX in os.listdir(root) else []
    others = [each for each in manifests if _tag_of(each) != tag]
    images = [*others, {**manifest, "annotations": {_REF_NAME: tag}}]
    publish_in(root, lambda: _INDEX, [_json({"schemaVersion": 2, "manifests": sorted(images, key=_tag_of)})])


def _publish_blob(blobs: int, kind: str, parts: Iterable[bytes]) -> dict[str, Any]:
    """Write a blob under its digest and describe it."""
    digest, sizes = sha256(), list[int]()

    def counted() -> Iterator[bytes]:
        for part in parts:
            digest.update(part)
            sizes.append(len(part))
            yield part

    publish_in(blobs, digest.hexdigest, counted())
    return {"mediaType": kind, "digest": f"sha256:{digest.hexdigest()}", "size": sum(sizes)}


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii")


def _layer(bundle: Assembled, digest: Any) -> Iterator[bytes]:
    """A tar archive in the gzip format, not compressed; its parts are added to a digest before that."""
    from tarfile import DIRTYPE, LNKTYPE, REGTYPE, USTAR_FORMAT, TarInfo

    def header(name: str, kind: bytes, mode: int, size_bytes: int = 0, link: str = "") -> bytes:
        member = TarInfo(name)  # its owner is root, its time 0
        member.type, member.mode, member.size, member.linkname = kind, mode, size_bytes, link
        return member.tobuf(USTAR_FORMAT)

    path, size_bytes = f"{_FOLDER}/{_FILE}", bundle.report.size_bytes
    gzip = zlib.compressobj(0, zlib.DEFLATED, 16 + zlib.MAX_WBITS)
    parts = chain(
        (header(_FOLDER, DIRTYPE, 0o755), header(path, REGTYPE, 0o644, size_bytes)),
        bundle.parts,
        (bytes(-size_bytes % _BLOCK_BYTES), header(_FILE, LNKTYPE, 0o644, link=path), bytes(2 * _BLOCK_BYTES)),
    )
    for part in parts:
        digest.update(part)
        yield gzip.compress(part)
    yield gzip.flush()
