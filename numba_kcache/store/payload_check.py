"""Check the payloads of an entry against their sha256 as streams, without holding one unpacked in memory."""

from __future__ import annotations

from ..keys import sha256
from .entry import RAW, WINDOW_BYTES, DamagedEntry, PayloadRecord, Payloads, StoredEntry

_CHUNK_BYTES = 1 << 20


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
        import zstandard  # not at the top: without it, uncompressed payloads can be checked
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
