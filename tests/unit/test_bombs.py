"""Small files that claim large contents: reading, showing and importing stay within their size and 256 MiB."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest
import zstandard
from xxhash import xxh3_128

from numba_kcache import store as entry_format
from numba_kcache.model import EventKind
from numba_kcache.store import MANIFEST, DamagedEntry, StoredEntry, decode_entry
from numba_kcache.store.encoding import check_payloads, encode_entry
from numba_kcache.tiers import bundle as form
from tests.support.compiling import ROOT
from tests.support.stores import Events, file_of, key_of, open_store
from tests.support.tiers import Chain, MemoryTier
from tests.unit.test_store_entry import KEY, forge

MIB = 1 << 20
ALLOWED = 256 * MIB

MEASURED = """
import json, resource, sys
from numba_kcache.cli import main
from numba_kcache import bundles as transfer
main(["info"])
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
for words in json.loads(sys.argv[1]):
    main(words)
print(peak() - before, file=sys.stderr)
"""


def peak_of(directory: Path, *commands: Sequence[str]) -> tuple[int, str]:
    """Memory that commands take, one after another, beyond that of an empty command, in bytes, and their output."""
    env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(directory)}
    command = [sys.executable, "-c", MEASURED, json.dumps(commands)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    *said, last = done.stderr.splitlines()
    return int(last), "\n".join(said)


def squeezed(size_bytes: int) -> bytes:
    """Compress a number of zeros to a few bytes."""
    packer = zstandard.ZstdCompressor(level=3).compressobj(size=size_bytes)
    zeros = bytes(MIB)
    return b"".join([*(packer.compress(zeros) for _ in range(size_bytes // MIB)), packer.flush()])


def many(size_bytes: int) -> bytes:
    """A header with a list for every three bytes."""
    return b'{"a":[' + b"[]," * (size_bytes // 3) + b"[]]}"


def deep(size_bytes: int) -> bytes:
    """A header with a nested list for every two bytes."""
    return b'{"a":[' + b",".join([b"[" * 400 + b"]" * 400] * (size_bytes // 801)) + b"]}"


def wide(size_bytes: int) -> bytes:
    """A header whose text takes four bytes of memory for each letter."""
    return json.dumps({"a": "a" * (size_bytes - 100) + "\N{FIRE}"}, separators=(",", ":")).encode()


BOMBS: dict[str, Callable[[], bytes]] = {
    "payloads of zeros": lambda: forge(
        payloads=[(b"p%d" % n, packed, 500 * MIB, 1) for packed in [squeezed(500 * MIB)] for n in range(16)]
    ),
    "many payloads within the ratio": lambda: forge(
        payloads=[(b"cubin", b"x", 1, 0)] + [(b"p%d" % n, squeezed(MIB), MIB, 1) for n in range(15)]
    ),
    "a header of lists": lambda: forge(many(15 * MIB)),
    "a header of nested lists": lambda: forge(deep(15 * MIB)),
    "a header of wide text": lambda: forge(wide(15 * MIB)),
    "a report of lists": lambda: forge(payloads=[(b"report", text, len(text), 0) for text in [many(4 * MIB - 10)]]),
    "a log of wide text": lambda: forge(
        payloads=[(b"cubin", b"x", 1, 0), *((b"log", text, len(text), 0) for text in ["🔥".encode() * MIB])]
    ),
    "a payload of random bytes": lambda: forge(payloads=[(b"cubin", os.urandom(MIB) * 150, 150 * MIB, 0)]),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BOMBS)
def test_entry_is_shown_within_256_mib_more_than_its_size(tmp_path: Path, bomb: str) -> None:
    """`show` succeeds or refuses the entry within that limit."""
    data = BOMBS[bomb]()
    store = open_store(tmp_path)
    assert store.put_encoded(KEY, data)

    peak, said = peak_of(tmp_path, ["show", KEY], ["explain", KEY], ["list"])

    assert peak < ALLOWED + len(data)
    assert "Traceback" not in said


def bundle_of(path: Path, index: bytes, files: bytes) -> Path:
    """A bundle with any index and files, under a digest that fits."""
    head = form.PREFIX.pack(form.MAGIC, form.FORMAT, 0, len(index), len(files)) + index
    path.write_bytes(head + xxh3_128(head).digest() + files)
    return path


def row_of(key: str, data: bytes) -> list[object]:
    return [key, len(data), sha256(data).hexdigest()]


@cache
def manifests() -> list[tuple[str, bytes]]:
    """A hundred, each with a hundred thousand lists, in the order of their keys."""
    value = {"variants": [{"closures": [[]] * 100_000, "key": KEY}]}
    return [
        (key, encode_entry(StoredEntry(key, value, {}), MANIFEST))
        for key in sorted(key_of(each) for each in range(100))
    ]


BUNDLES: dict[str, Callable[[Path], Path]] = {
    "an index of lists": lambda path: bundle_of(path, many(31 * MIB), b""),
    "an index of wide text": lambda path: bundle_of(path, wide(31 * MIB), b""),
    "an entry of zeros": lambda path: bundle_of(
        path,
        json.dumps(
            {
                "entries": [[*row_of(KEY, data), "sm_90", []] for data in [BOMBS["payloads of zeros"]()]],
                "manifests": [],
            },
            separators=(",", ":"),
        ).encode(),
        BOMBS["payloads of zeros"](),
    ),
    "a hundred manifests of lists": lambda path: bundle_of(
        path,
        json.dumps(
            {
                "entries": [],
                "manifests": [row_of(key, data) for key, data in manifests()],
            },
            separators=(",", ":"),
        ).encode(),
        b"".join(data for _, data in manifests()),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("bomb", BUNDLES)
def test_bundle_is_imported_within_256_mib_more_than_its_size(tmp_path: Path, bomb: str) -> None:
    """`import` succeeds, or refuses the bundle and adds nothing, within that limit."""
    path = BUNDLES[bomb](tmp_path / "x.kcache")
    peak, said = peak_of(tmp_path / "cache", ["import", str(path)])

    assert peak < ALLOWED + path.stat().st_size
    assert "cannot" in said


@pytest.mark.slow
@pytest.mark.parametrize("size_bytes", [4 * MIB, 100 * MIB])
def test_array_of_zeros_is_kept_all_the_same(size_bytes: int) -> None:
    """A payload whose compressed form would be refused as a bomb is stored uncompressed."""
    entry = StoredEntry(KEY, {}, {"cubin": bytes(size_bytes)})
    read = decode_entry(encode_entry(entry), KEY)

    check_payloads(read)
    assert read.payloads["cubin"] == entry.payloads["cubin"]


def test_entry_beyond_the_sum_is_not_written() -> None:
    """The limits of reading apply to writing too."""
    half = bytes(entry_format.MAX_UNPACKED_BYTES // 2 + 1)
    with pytest.raises(ValueError, match="its payloads claim"):
        encode_entry(StoredEntry(KEY, {}, {"cubin": half, "ptx": half}))
    with pytest.raises(ValueError, match="payload log claims"):
        encode_entry(StoredEntry(KEY, {}, {"log": bytes(entry_format.MAX_TEXT_BYTES["log"] + 1)}))


@pytest.mark.parametrize("stored_bytes", [1, 1000, MIB])
def test_ratio_is_bounded(stored_bytes: int) -> None:
    """Beyond the first megabyte a payload unpacks to at most 64 times its bytes, whatever size its header claims."""
    claimed = entry_format.MAX_RATIO * stored_bytes + MIB + 1
    with pytest.raises(DamagedEntry, match="claims"):
        decode_entry(forge(payloads=[(b"ptx", bytes(stored_bytes), claimed, 1)]), KEY)


def test_no_memory_for_an_entry_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locally and from a tier, with one event each; the entry stays, since it may be sound."""
    entry = StoredEntry(KEY, {}, {"cubin": os.urandom(MIB) * 2})
    events = Events()
    store = open_store(tmp_path, emit=events)
    store.put(entry)
    tier = MemoryTier().with_entry(StoredEntry(key_of(9), {}, {"cubin": os.urandom(MIB) * 2}))
    chain = Chain(store, [tier], events)

    def full(*_: object) -> bytes:
        raise MemoryError

    monkeypatch.setattr(zstandard, "frame_content_size", full)
    assert store.get(KEY) is None
    assert chain.get(key_of(9)) is None
    troubles = [str(event.fields["error"]) for event in events.of(EventKind.TROUBLE)]
    assert len(troubles) == 2
    assert troubles[1].endswith(f"the entry {key_of(9)} arrived damaged: not enough memory")
    assert not events.of(EventKind.DAMAGED)
    assert file_of(store, KEY).exists()
