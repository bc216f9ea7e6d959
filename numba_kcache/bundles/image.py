"""Write a bundle as an image into an OCI image layout, for registries, container runtimes and Kubernetes.

Promise     The same entries give the same digests, on every machine: the image contains no time, user or host name, and
            no output of a compressor whose version could matter. The tag leads to the old image or to the new one.
Method      One layer with the bundle, a config with labels, a manifest with the same texts as annotations, then
            index.json. The layer has the gzip format, which model-cache operators of Kubernetes require, but is not
            compressed: entries are compressed already. These operators read only files under io.triton.cache; users
            and volume mounts find the same file under its other name, a hard link.
Not here    Reading one (tiers.oci). Blobs of images without a tag are not removed, as with other tools.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Any

from ..errors import BundleError
from ..model import parse_target
from ..model.tier_address import LAYOUT_MARK, LayoutPlace
from ..store import CLOEXEC, DIRECTORY, FOLDER
from ..tiers import oci
from ..tiers.bundle import BundledFile, BundleReport
from .writing import Assembled, publish_in

OUR_ANNOTATIONS = "io.github.numba-kcache"
OPERATOR_LABELS = "cache.triton.image"
"""Prefix of the label that GKM and KServe's model cache look for: `/summary` lists the GPUs that an image is for."""

_FILE = "kernels.kcache"
_FOLDER = "io.triton.cache"
_MAX_TEXT = 4096
_STORED_BYTES = 65535  # largest block of deflate without compression
_CONFIG_TYPE = "application/vnd.oci.image.config.v1+json"


def write_image(
    place: LayoutPlace, bundle: Assembled, entries: Sequence[BundledFile], toolchain: Mapping[str, Sequence[str]]
) -> BundleReport:
    """Write an image under its tag, and replace an image that has this tag.

    Args:
        place: Directory and tag; a missing directory is made.
        bundle: The bundle to put into it.
        entries: The entries in that bundle.
        toolchain: Versions and builds of the compilers, by the tool's name.

    Raises:
        BundleError: It cannot be written, or the directory holds something else.
    """
    cannot = f"cannot write the image {place}"
    if bundle.size_bytes > oci.MAX_LAYER_FILE_BYTES:
        raise BundleError(cannot, f"{bundle.size_bytes} bytes are more than the layer of an image can hold")
    try:
        os.makedirs(place.directory, exist_ok=True)
        root = os.open(place.directory, os.O_RDONLY | DIRECTORY | CLOEXEC)
        try:
            _write(root, place.tag or oci.DEFAULT_TAG, bundle, describe(bundle.report, entries, toolchain))
        finally:
            os.close(root)
    except (OSError, ValueError) as error:
        raise BundleError(cannot, getattr(error, "strerror", None) or str(error)) from None
    return bundle.report


def describe(
    report: BundleReport, entries: Sequence[BundledFile], toolchain: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Labels and annotations of an image."""
    kernels = sorted({kernel for entry in entries for kernel in entry.kernels})
    capabilities = sorted({parse_target(each).cc for each in report.targets if "_" in each})
    gpus = [{"backend": "cuda", "arch": f"{major}{minor}", "warp_size": 32} for major, minor in capabilities]
    ours = {
        "entries": str(report.entries),
        "targets": ",".join(report.targets),
        "kernels": _first(kernels),
        "toolchain": _first([f"{tool}={'|'.join(builds)}" for tool, builds in toolchain.items()]),
        "signed-by": report.signed_by,
    }
    return {
        "org.opencontainers.image.title": "numba_kcache kernels",
        **{f"{OUR_ANNOTATIONS}.{name}": text for name, text in ours.items() if text},
        f"{OPERATOR_LABELS}/entry-count": str(report.entries),
        f"{OPERATOR_LABELS}/cache-size-bytes": str(report.size_bytes),
        f"{OPERATOR_LABELS}/summary": _json({"targets": gpus}).decode(),
    }


def _first(texts: Sequence[str]) -> str:
    """List as many texts as fit into a label, and the number of the others."""
    kept: list[str] = []
    for text in texts:
        if sum(map(len, kept)) + len(kept) + len(text) > _MAX_TEXT:
            return ",".join([*kept, f"and {len(texts) - len(kept)} more"])
        kept.append(text)
    return ",".join(kept)


def _write(root: int, tag: str, bundle: Assembled, about: dict[str, str]) -> None:
    there = os.listdir(root)
    if there and LAYOUT_MARK not in there:
        raise OSError(errno.EEXIST, "the directory is neither empty nor an OCI image layout")
    publish_in(root, lambda: LAYOUT_MARK, [oci.LAYOUT_VERSION])
    manifests = oci.read_index(root)["manifests"] if oci.INDEX in there else []
    others = [each for each in manifests if oci.tag_of(each) != tag]
    blobs = _folder(root, oci.BLOBS)
    try:
        tar = sha256()
        layer = _publish_blob(blobs, oci.GZIP_LAYER_TYPE, _gzip(_digested(_tar(bundle), tar)))
        platform = {"architecture": "amd64", "os": "linux"}  # registries require one; the image has no CPU code
        rootfs = {"type": "layers", "diff_ids": [f"sha256:{tar.hexdigest()}"]}
        config_json = _json({**platform, "config": {"Labels": about}, "rootfs": rootfs})
        config = _publish_blob(blobs, _CONFIG_TYPE, [config_json])
        form = {"schemaVersion": 2, "mediaType": oci.MANIFEST_TYPE}
        manifest_json = _json({**form, "config": config, "layers": [layer], "annotations": about})
        manifest = _publish_blob(blobs, oci.MANIFEST_TYPE, [manifest_json])
    finally:
        os.close(blobs)
    images = [*others, {**manifest, "annotations": {oci.REF_NAME: tag}}]
    index = {"schemaVersion": 2, "manifests": sorted(images, key=oci.tag_of)}
    publish_in(root, lambda: oci.INDEX, [_json(index)])


def _folder(root: int, names: Sequence[str]) -> int:
    """Open a folder below an open one without following links; it is made if missing."""
    folder = os.dup(root)
    for name in names:
        above = folder
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
            folder = os.open(name, FOLDER, dir_fd=above)
        finally:
            os.close(above)
    return folder


def _publish_blob(blobs: int, kind: str, parts: Iterable[bytes]) -> dict[str, Any]:
    """Write a blob under its digest and describe it."""
    digest, size_bytes = sha256(), 0

    def counted() -> Iterator[bytes]:
        nonlocal size_bytes
        for part in _digested(parts, digest):
            size_bytes += len(part)
            yield part

    publish_in(blobs, digest.hexdigest, counted())
    return {"mediaType": kind, "digest": f"sha256:{digest.hexdigest()}", "size": size_bytes}


def _digested(parts: Iterable[bytes], digest: Any) -> Iterator[bytes]:
    """Pass the parts on, and add each to a digest."""
    for part in parts:
        digest.update(part)
        yield part


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii")


def _tar(bundle: Assembled) -> Iterator[bytes]:
    yield _header(f"{_FOLDER}/", b"5", 0o755)
    yield _header(f"{_FOLDER}/{_FILE}", b"0", 0o644, bundle.size_bytes)
    yield from bundle.parts
    yield bytes(-bundle.size_bytes % 512)
    yield _header(_FILE, b"1", 0o644, link=f"{_FOLDER}/{_FILE}")
    yield bytes(1024)


def _header(name: str, kind: bytes, mode: int, size_bytes: int = 0, *, link: str = "") -> bytes:
    """A ustar header, with owner root and modification time 0."""
    fields = (name.encode(), 100), (b"%07o" % mode, 8), (b"%07o" % 0, 8), (b"%07o" % 0, 8), (b"%011o" % size_bytes, 12)
    front = b"".join(text.ljust(width, b"\0") for text, width in (*fields, (b"%011o" % 0, 12)))
    rest = (kind + link.encode().ljust(100, b"\0") + b"ustar\00000").ljust(512 - len(front) - 8, b"\0")
    checksum = sum(front) + sum(rest) + 8 * 32
    return front + b"%06o\0 " % checksum + rest


def _gzip(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Wrap as gzip (RFC 1952) in stored blocks (RFC 1951, 3.2.4), not by zlib, whose versions may split differently."""
    yield b"\x1f\x8b\x08\0\0\0\0\0\0\xff"
    checksum, size_bytes, held = 0, 0, b""
    for part in parts:
        checksum, size_bytes = zlib.crc32(part, checksum), size_bytes + len(part)
        held += part
        whole = len(held) - len(held) % _STORED_BYTES
        for at in range(0, whole, _STORED_BYTES):
            yield b"\0\xff\xff\0\0" + held[at : at + _STORED_BYTES]
        held = held[whole:]
    yield b"\1" + len(held).to_bytes(2, "little") + (len(held) ^ 0xFFFF).to_bytes(2, "little") + held
    yield checksum.to_bytes(4, "little") + (size_bytes & 0xFFFFFFFF).to_bytes(4, "little")
