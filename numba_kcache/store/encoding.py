"""Encode an entry as the bytes of its file.

Not here    The format, decoding, and manifests (entry).
"""

from __future__ import annotations

from xxhash import xxh3_128_digest

from ..keys import sha256
from .entry import (
    ANY_RATIO_BYTES,
    DIGEST_BYTES,
    FORMAT,
    MAGIC,
    MAX_HEADER_BYTES,
    MAX_PAYLOADS,
    MAX_RATIO,
    MAX_TEXT_BYTES,
    MAX_UNPACKED_BYTES,
    NAME_CHARACTERS,
    PREFIX,
    RAW,
    ROW,
    ZSTD,
    StoredEntry,
    json_of,
    require_key,
)  # fmt: skip

_SMALLEST = PREFIX.size + len("{}") + DIGEST_BYTES
_LEAST_TO_COMPRESS_BYTES = 4096  # filesystems allocate no less, and importing zstandard takes 2.5 ms
LEAST_FIRST_TO_COMPRESS_BYTES = (1 << 20) + 1  # a hit unpacks the first: importing zstandard takes most of its time


def encoded(entry: StoredEntry, kind: int) -> bytes:
    """Encode an entry: the work of `entry.encode_entry`."""
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
    size = _SMALLEST - len("{}") + len(table) * ROW.size + len(header) + sum(map(len, stored))
    unpacked = sum(map(len, entry.payloads.values()))
    if len(header) > MAX_HEADER_BYTES or unpacked > MAX_UNPACKED_BYTES:
        raise ValueError(f"cannot hold an entry with a header of {len(header)} bytes and payloads of {unpacked}")
    for name, payload in entry.payloads.items():
        if len(payload) > MAX_TEXT_BYTES.get(name, MAX_UNPACKED_BYTES):
            raise ValueError(f"cannot hold a payload {name} of {len(payload)} bytes")
    if len(table) > MAX_PAYLOADS:
        raise ValueError(f"cannot hold {len(table)} payloads: at most {MAX_PAYLOADS}")
    prefix = PREFIX.pack(MAGIC, FORMAT, kind, len(table), len(header), size, key)
    body = b"".join((prefix, *table, header, *stored))
    return body + xxh3_128_digest(body)


def _pack(payload: bytes) -> tuple[int, bytes]:
    from .compression import pack

    try:
        packed = pack(payload)
    except ImportError:  # a broken zstandard costs disk space, no launch
        return RAW, payload
    is_bomb = len(payload) > ANY_RATIO_BYTES + MAX_RATIO * len(packed)  # of zeros, for example
    return (ZSTD, packed) if len(packed) < len(payload) * 0.9 and not is_bomb else (RAW, payload)
