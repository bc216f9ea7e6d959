"""Write a bundle.

Promise     The same entries give the same bytes. The file is all there under its name, or not at all.
Method      The format is that of tiers.bundle. Every size is known before the first file is read; one that changed
            since is refused.
Not here    Which entries go in.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from xxhash import xxh3_128

from ..errors import BundleError
from ..keys import sha256
from ..tiers import bundle as form
from ..tiers.bundle import BundledFile, BundleReport
from ..tiers.signing import SIGNATURE_BYTES, sign


def write_bundle(
    path: str,
    entries: Sequence[BundledFile],
    manifests: Sequence[BundledFile],
    read: Callable[[bool, str], bytes | None],
    *,
    signing_key: str | None = None,
) -> BundleReport:
    """Write a bundle, in place of what is there.

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
    """Write a private file beside `path`, sync it, and give it the name; bytes written."""
    private = f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    digest, size_bytes = xxh3_128(), 0
    try:
        with open(private, "xb") as file:
            for part in parts:
                digest.update(part)
                size_bytes += file.write(part)
            size_bytes += file.write(digest.digest())
            file.flush()
            os.fsync(file.fileno())
        os.replace(private, path)
    except BaseException:  # an interrupt too must leave nothing behind
        try:
            os.unlink(private)
        except OSError:
            pass
        raise
    return size_bytes


def _encode_index(entries: Sequence[BundledFile], manifests: Sequence[BundledFile]) -> bytes:
    rows = {"entries": [list(each) for each in entries], "manifests": [list(each[:3]) for each in manifests]}
    return json.dumps(rows, separators=(",", ":"), default=list).encode("ascii")
