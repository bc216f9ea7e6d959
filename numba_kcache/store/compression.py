"""Compress the payloads of an entry with zstd, decompress them to exactly the size in their record, and check them.

Promise     Without zstandard, uncompressed payloads can be checked. A check holds no payload unpacked in memory.

Not here    The choice of payloads to compress, and their limits (entry). A hit on a small cubin, which is stored
            uncompressed, does not import this module.
"""

from __future__ import annotations

from ..keys import sha256
from .entry import RAW, WINDOW_BYTES, DamagedEntry, PayloadRecord, Payloads, StoredEntry

_CHUNK_BYTES = 1 << 20
_LEVEL = 3  # cubins and PTX of 1 to 3 MB: a quarter smaller than level 1, as fast; level 9 takes five times as long


def pack(payload: bytes) -> bytes:
    """Compress a payload to a zstd frame."""
    import zstandard

    return zstandard.ZstdCompressor(level=_LEVEL).compress(payload)


def unpack(frame: memoryview, size_bytes: int) -> bytes:
    """Decompress a frame to its payload.

    Raises:
        ValueError: The frame is damaged, or its payload is not of `size_bytes`.
    """
    import zstandard

    try:
        if zstandard.frame_content_size(frame) != size_bytes:  # the size that decompress() would allocate
            raise ValueError(f"a payload is not of {size_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a payload does not unpack: {error}") from None


def check_payloads(entry: StoredEntry) -> None:
    """Check every payload of a decoded entry against its sha256.

    Raises:
        DamagedEntry: A payload cannot be unpacked, or unpacks to other bytes.
    """
    if not isinstance(entry.payloads, Payloads):
        return
    for record, stored in entry.payloads.packed.values():
        if _digest_of(record, stored) != record.sha256:
            raise DamagedEntry(f"payload {record.name} does not unpack to what was stored")


def _digest_of(record: PayloadRecord, stored: memoryview) -> bytes:
    """The sha256 of a payload's unpacked bytes; b"" if it cannot be unpacked."""
    if record.codec == RAW:
        return sha256(bytes(stored)).digest() if record.size_bytes == len(stored) else b""
    try:
        import zstandard
    except ImportError:
        return b""
    digest, size_bytes = sha256(b""), 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES).stream_reader(stored) as reader:
            while chunk := reader.read(_CHUNK_BYTES):
                size_bytes += len(chunk)
                if size_bytes > record.size_bytes:
                    return b""
                digest.update(chunk)
    except zstandard.ZstdError:
        return b""
    return digest.digest()
