"""Coverage-guided fuzzing of the reader of stored files. Not part of the suite; needs the package atheris.

    python tests/fuzz/fuzz_entry.py tests/fuzz/corpus -atheris_runs=1000000 -max_len=2048

Promise     Whatever the bytes, decode_entry returns or raises DamagedEntry, and what it returns can be read
            and written again. The digest is set right after each mutation, or no input would get past it.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["numba_kcache.store"]):
    from numba_kcache.store import ENTRY, MANIFEST, DamagedEntry, decode_entry, decode_manifest
    from numba_kcache.store.encoding import encode_entry
from xxhash import xxh3_128_digest

from numba_kcache.store.encoding import check_payloads

_KEY_AT, _SIZE_AT, _PREFIX = 24, 16, 56


def one_input(data: bytes) -> None:
    """Read `data` as it is, and with key, length and digest made to fit."""
    key = bytes(range(32))
    for kind in (ENTRY, MANIFEST):
        read(data, key.hex(), kind)
        if len(data) >= _PREFIX:
            body = bytearray(data)
            body[_KEY_AT : _KEY_AT + 32] = key
            body[_SIZE_AT : _SIZE_AT + 8] = (len(body) + 16).to_bytes(8, "little")
            read(bytes(body) + xxh3_128_digest(bytes(body)), key.hex(), kind)


def read(data: bytes, key: str, kind: int) -> None:
    """Read, unpack everything, and write what was read."""
    try:
        entry = decode_entry(data, key, kind)
    except DamagedEntry:
        return
    try:
        check_payloads(entry)
    except DamagedEntry:
        return
    try:
        decode_manifest(data, key)
    except DamagedEntry:
        pass
    assert decode_entry(encode_entry(entry, kind), key, kind) == entry


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
