"""Encode entries and manifests as the bytes of their files, and compress, decompress and check their payloads.

Promise     Without zstandard, uncompressed payloads can be checked. A check holds one payload unpacked in memory.
Not here    The format and decoding (decode_entry). A hit on a small cubin, which is stored uncompressed, does not
            import this module.
"""

from __future__ import annotations

from xxhash import xxh3_128_digest

from ..keys import sha256
from . import (
    ANY_RATIO_BYTES,
    DIGEST_BYTES,
    ENTRY,
    FORMAT,
    MAGIC,
    MANIFEST,
    MAX_MANIFEST_BYTES,
    MAX_RATIO,
    MAX_ROWS,
    NAME_CHARACTERS,
    PREFIX,
    RAW,
    ROW,
    ZSTD,
    DamagedEntry,
    Payloads,
    StoredEntry,
    StoredRow,
    decode_entry,
    json_of,
    require_key,
    unpack,
)

_LEVEL = 3  # cubins and PTX of 1 to 3 MB: a quarter smaller than level 1, as fast; level 9 takes five times as long
_LEAST_TO_COMPRESS_BYTES = 4096  # filesystems allocate no less, and importing zstandard takes 2.5 ms
LEAST_FIRST_TO_COMPRESS_BYTES = (1 << 20) + 1  # a hit unpacks the first: importing zstandard takes most of its time


def encode_entry(entry: StoredEntry, kind: int = ENTRY) -> bytes:
    """Encode `entry` as the bytes of its file.

    Raises:
        ValueError: The entry cannot be stored: a bad key or payload name, NaN, or a size beyond the limits.
        TypeError: The header holds something other than JSON values.
    """
    key = bytes.fromhex(require_key(entry.key))
    header = json_of(entry.header).encode("ascii")
    table: list[bytes] = []
    stored: list[bytes] = []
    for name, payload in entry.payloads.items():
        if not 0 < len(name) <= 16 or not name[0].isalpha() or name.strip(NAME_CHARACTERS):
            raise ValueError(f"cannot name a payload {name!r}: 1 to 16 of a-z, 0-9 and _")
        least = _LEAST_TO_COMPRESS_BYTES if table else LEAST_FIRST_TO_COMPRESS_BYTES
        codec, packed = _pack(payload) if len(payload) >= least else (RAW, payload)
        digest = sha256(payload).digest()
        table.append(ROW.pack(name.encode("ascii"), len(packed), len(payload), codec, digest))
        stored.append(packed)
    size = PREFIX.size + len(table) * ROW.size + len(header) + sum(map(len, stored)) + DIGEST_BYTES
    prefix = PREFIX.pack(MAGIC, FORMAT, kind, len(table), len(header), size, key)
    body = b"".join((prefix, *table, header, *stored))
    data = body + xxh3_128_digest(body)
    if kind == ENTRY:
        decode_entry(data, entry.key)  # what a reader would refuse is not stored
    return data


def encode_manifest(family: str, rows: list[StoredRow]) -> bytes:
    """Encode the rows of a family, newest first: all, or as many as fit into `MAX_MANIFEST_BYTES`."""
    while (size := len(json_of({"variants": rows}))) > MAX_MANIFEST_BYTES:
        rows = rows[: min(len(rows) - 1, len(rows) * MAX_MANIFEST_BYTES // size)]
    return encode_entry(StoredEntry(family, {"variants": rows}, {}), MANIFEST)


def merge(rows: list[StoredRow], *newer: StoredRow, most: int = MAX_ROWS) -> list[StoredRow]:
    """Put `newer`, the last one first, before `rows`; each key is kept once, and at most `most` of them."""
    for row in newer:
        rows = [row, *(each for each in rows if each["key"] != row["key"])][:most]
    return rows


def _pack(payload: bytes) -> tuple[int, bytes]:
    """Compress a payload; one that hardly shrinks, or shrinks more than a reader accepts, stays as it is."""
    try:
        import zstandard

        packed = zstandard.ZstdCompressor(level=_LEVEL).compress(payload)
    except ImportError:  # a broken zstandard costs disk space, no launch
        return RAW, payload
    is_bomb = len(payload) > ANY_RATIO_BYTES + MAX_RATIO * len(packed)  # of zeros, for example
    return (ZSTD, packed) if len(packed) < len(payload) * 0.9 and not is_bomb else (RAW, payload)


def check_payloads(entry: StoredEntry) -> None:
    """Check every payload of a decoded entry against its sha256.

    Raises:
        DamagedEntry: A payload cannot be unpacked, or unpacks to other bytes.
    """
    if not isinstance(entry.payloads, Payloads):
        return
    for record, stored in entry.payloads.packed.values():
        if sha256(unpack(record, stored)).digest() != record.sha256:
            raise DamagedEntry(f"payload {record.name} does not unpack to what was stored")
