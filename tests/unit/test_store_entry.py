"""The file format of entries: what is stored is read back, and any other file is refused."""

from __future__ import annotations

import struct
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

from numba_kcache import store as entry_format
from numba_kcache.store import MANIFEST, DamagedEntry, StoredEntry, decode_entry, decode_manifest, encoding
from numba_kcache.store.encoding import check_payloads, encode_entry, encode_manifest, merge
from tests.support.stores import DIGEST_BYTES, entry_of, key_of, payload_records, sealed

PREFIX = struct.Struct("<8sHBBIQ32s")
RECORD = struct.Struct("<16sQQB7x32s")
KEY = key_of(1)


def forge(
    header: bytes = b"{}",
    payloads: list[tuple[bytes, bytes, int, int]] | None = None,
    *,
    magic: bytes = b"\x89NKC\r\n\x1a\n",
    version: int = 1,
    count: int | None = None,
    header_bytes: int | None = None,
    file_bytes: int | None = None,
    stored_bytes: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """A file with a valid digest and any other content; a payload is (name, stored, size, codec)."""
    payloads = payloads or []
    table = b"".join(
        RECORD.pack(name, len(stored) if stored_bytes is None else stored_bytes, size, codec, bytes(32))
        for name, stored, size, codec in payloads
    )
    body = table + header + b"".join(stored for _, stored, _, _ in payloads) + tail
    prefix = PREFIX.pack(
        magic,
        version,
        1,
        len(payloads) if count is None else count,
        len(header) if header_bytes is None else header_bytes,
        PREFIX.size + len(body) + DIGEST_BYTES if file_bytes is None else file_bytes,
        bytes.fromhex(KEY),
    )
    return sealed(prefix + body)


GOLDEN = Path(__file__).parents[1] / "data"
GOLDEN_ENTRY = StoredEntry(
    KEY,
    {"kind": "cuda", "entries": [["k\u00fc", 1, 2.5, True, None]]},
    {"cubin": b"small and as it is", "ptx": b"// large and packed\n" * 100, "log": b""},
)
GOLDEN_VARIANTS = {"variants": [{"key": "b", "closure": [["a.h", 3]]}, {"key": "a"}]}


def test_files_of_format_1_stay_readable() -> None:
    """Files written once and kept as test data: entries of a released version are hits, and uncompressed ones are
    written equally."""
    entry, manifest = ((GOLDEN / f"format_1.{kind}").read_bytes() for kind in ("entry", "manifest"))

    assert decode_entry(entry, KEY) == GOLDEN_ENTRY
    check_payloads(decode_entry(entry, KEY))
    assert decode_entry(manifest, KEY, MANIFEST).header == GOLDEN_VARIANTS
    assert encode_entry(StoredEntry(KEY, GOLDEN_VARIANTS, {}), MANIFEST) == manifest


def test_forged_file_without_faults_is_read() -> None:
    """The forger of these tests writes valid files, so each refusal below has a single cause."""
    assert decode_entry(forge(b'{"a":1}', [(b"cubin", b"abc", 3, 0)]), KEY) == StoredEntry(
        KEY, {"a": 1}, {"cubin": b"abc"}
    )


@pytest.mark.parametrize("size_bytes", [0, 1, 511, 512, 4096, 1 << 16, (1 << 16) + 1, 1 << 20, (1 << 20) + 1])
def test_entry_comes_back_as_it_was(size_bytes: int) -> None:
    """Key, header and every payload, at sizes on both sides of each threshold."""
    entry = entry_of(7, size_bytes)

    read = decode_entry(encode_entry(entry), entry.key)

    assert read == entry
    assert list(read.payloads) == ["cubin", "ptx"]
    check_payloads(read)


def test_header_keeps_every_json_value() -> None:
    """Surrogate pairs, large integers, small floats, nesting, empty containers."""
    header = {"s": "\U0001f600\x00", "i": (1 << 64) - 1, "f": 5e-324, "n": None, "l": [[], {}, True, -0.5]}

    assert decode_entry(encode_entry(StoredEntry(KEY, header, {})), KEY).header == header


@pytest.mark.parametrize("name", ["cubin", "built"])
def test_first_payload_is_stored_as_it_is_up_to_a_mebibyte(name: str) -> None:
    """Reading an uncompressed module of hundreds of kernels takes less time than importing the decompressor."""
    for size, codec in ((1 << 20, 0), ((1 << 20) + 1, 1)):
        payloads = {name: bytes(size), "ptx": bytes(5000)}
        records = payload_records(decode_entry(encode_entry(StoredEntry(KEY, {}, payloads)), KEY))
        assert [(each.name, each.codec) for each in records] == [(name, codec), ("ptx", 1)]


def test_further_payloads_below_4_kib_are_stored_as_they_are() -> None:
    """The compile of a small kernel needs no compression, whose import takes longer than writing the bytes."""
    payloads = {"cubin": b"a" * 100, "ptx": b"b" * 4095, "report": b"c" * 4096}
    records = payload_records(decode_entry(encode_entry(StoredEntry(KEY, {}, payloads)), KEY))

    assert [(record.name, record.codec) for record in records] == [("cubin", 0), ("ptx", 0), ("report", 1)]


def test_payload_that_does_not_shrink_is_stored_as_it_is() -> None:
    """Saving less than a tenth is not worth decompressing."""
    import random

    noise = random.Random(1).randbytes(1 << 21)
    records = payload_records(decode_entry(encode_entry(StoredEntry(KEY, {}, {"cubin": noise})), KEY))

    assert records[0].codec == 0


def test_broken_zstandard_costs_disk_space_and_no_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without zstandard payloads are stored as they are, and an entry compressed before is damaged: a miss."""
    entry = entry_of(1, (1 << 20) + 1)
    compressed = encode_entry(entry)
    monkeypatch.delitem(sys.modules, "numba_kcache.store.encoding", raising=False)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    stored = encode_entry(entry)
    assert len(stored) > 1 << 20 > len(compressed)
    assert decode_entry(stored, entry.key).payloads["cubin"] == entry.payloads["cubin"]
    with pytest.raises(DamagedEntry, match="zstandard"):
        _ = decode_entry(compressed, entry.key).payloads["cubin"]


def test_broken_zstandard_leaves_tiers_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of entries that arrive, uncompressed ones are accepted, and compressed ones count as damaged."""
    entry = entry_of(1)
    compressed = encode_entry(entry)
    monkeypatch.setitem(sys.modules, "zstandard", None)

    check_payloads(decode_entry(encode_entry(entry), entry.key))
    with pytest.raises(DamagedEntry, match="zstandard"):
        check_payloads(decode_entry(compressed, entry.key))


def test_other_payloads_are_not_unpacked_until_asked_for() -> None:
    """A hit does not unpack the PTX: damage in it shows only when it is read."""
    data = forge(payloads=[(b"cubin", b"abc", 3, 0), (b"ptx", b"no zstd frame", 100, 1)])

    entry = decode_entry(data, KEY)

    assert entry.payloads["cubin"] == b"abc"
    assert entry.payloads.get("ptx") is None
    with pytest.raises(DamagedEntry):
        check_payloads(entry)


def test_sha256_of_each_payload_is_kept_for_signatures() -> None:
    """It is computed when the entry is stored, so that signing reads no payload again."""
    import hashlib

    entry = entry_of(3, 100_000)
    records = payload_records(decode_entry(encode_entry(entry), entry.key))

    assert {r.name: r.sha256 for r in records} == {
        name: hashlib.sha256(payload).digest() for name, payload in entry.payloads.items()
    }


def test_payload_with_another_sha256_fails_the_full_check() -> None:
    """`verify` checks payloads that hits do not read."""
    with pytest.raises(DamagedEntry):
        check_payloads(decode_entry(forge(payloads=[(b"cubin", b"abc", 3, 0)]), KEY))


@pytest.mark.parametrize("key", ["", "ab", "A" * 64, "../" + "a" * 61, "a" * 65, "a" * 64 + "\n", "é" * 64])
def test_key_must_be_a_digest(key: str) -> None:
    """A key is a file name, so it may have hexadecimal digits only."""
    with pytest.raises(ValueError, match="as a key"):
        encode_entry(StoredEntry(key, {}, {}))


@pytest.mark.parametrize("header", [{"a": float("nan")}, {"a": float("inf")}])
def test_not_a_number_cannot_be_stored(header: dict[str, float]) -> None:
    """NaN is not valid JSON."""
    with pytest.raises(ValueError):
        encode_entry(StoredEntry(KEY, header, {}))


@pytest.mark.parametrize("name", ["", "Cubin", "a" * 17, "a\0b", "../x", "1"])
def test_payload_name_is_a_word(name: str) -> None:
    """1 to 16 of a-z, 0-9 and _."""
    with pytest.raises(ValueError, match="name a payload"):
        encode_entry(StoredEntry(KEY, {}, {name: b""}))


def test_too_many_payloads_cannot_be_stored() -> None:
    """The number of payloads has the same limit in writing as in reading."""
    with pytest.raises(ValueError, match="17 payloads"):
        encode_entry(StoredEntry(KEY, {}, {f"p{number}": b"" for number in range(17)}))


def test_too_large_header_cannot_be_stored() -> None:
    """A header that readers would refuse is not written."""
    with pytest.raises(ValueError, match="out of bounds"):
        encode_entry(StoredEntry(KEY, {"log": "x" * entry_format.MAX_HEADER_BYTES}, {}))


@pytest.mark.parametrize("value", [1 << 64, "\ud800"])
def test_header_that_readers_refuse_is_not_written(value: object) -> None:
    """A number or text that JSON can hold and a reader refuses is an error of the writer."""
    with pytest.raises(ValueError, match="the header holds"):
        encode_entry(StoredEntry(KEY, {"meta": value}, {}))


def test_entry_of_another_key_is_refused() -> None:
    """A sound file under the wrong name is not a hit."""
    with pytest.raises(DamagedEntry, match="another key"):
        decode_entry(encode_entry(entry_of(1)), key_of(2))


def test_manifest_is_no_entry() -> None:
    """The file also contains its kind."""
    with pytest.raises(DamagedEntry, match="kind"):
        decode_entry(encode_entry(entry_of(1), MANIFEST), KEY)


@pytest.mark.parametrize("version", [0, 2, 65535])
def test_old_and_future_formats_are_refused(version: int) -> None:
    """Each format has its own directory, so another number in this one is damage."""
    with pytest.raises(DamagedEntry, match=f"format {version}"):
        decode_entry(forge(version=version), KEY)


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"11",
        b"{ ",
        b"{}x",
        b" {}",
        b'{"a":1,"a":1}',
        b'{"b":{"a":1,"a":2}}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":"\xc3\xbc"}',
        b'{"a":"\x00"}',
        b"{'a':1}",
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' + b"9" * 10_000 + b"}",
    ],
)
def test_header_that_is_not_strict_json_is_refused(header: bytes) -> None:
    """No duplicate names, no NaN, no surrounding text; no depth or length raises another exception."""
    with pytest.raises(DamagedEntry, match="header"):
        decode_entry(forge(header), KEY)


@pytest.mark.parametrize(
    "data",
    [
        forge(magic=b"\x89NKC\n\x1a\n\0"),
        forge(file_bytes=1 << 63),
        forge(file_bytes=0),
        forge(header_bytes=(1 << 32) - 1),
        forge(header_bytes=3),
        forge(header_bytes=0),
        forge(count=255),
        forge(count=1),
        forge(tail=b"x"),
        forge(payloads=[(b"cubin", b"abc", 3, 0)], stored_bytes=(1 << 63)),
        forge(payloads=[(b"cubin", b"abc", 3, 0)], stored_bytes=4),
        forge(payloads=[(b"cubin", b"abc", 3, 0)], stored_bytes=2),
        forge(payloads=[(b"cubin", b"abc", 4, 0)]),
        forge(payloads=[(b"cubin", b"abc", 3, 7)]),
        forge(payloads=[(b"cubin", b"abc", 3, 1)]),
        forge(payloads=[(b"cubin", b"abc", 3, 0)] * 2),
        forge(payloads=[(b"", b"abc", 3, 0)]),
        forge(payloads=[(b"cu\0bin", b"abc", 3, 0)]),
        forge(payloads=[(b"\xff", b"abc", 3, 0)]),
        forge(payloads=[(b"cubin", zstandard.compress(b"abc") + b"x", 3, 1)]),
        forge(payloads=[(b"cubin", zstandard.compress(b"abc") * 2, 3, 1)]),
        forge(payloads=[(b"cubin", zstandard.compress(b"abc")[:-1], 3, 1)]),
        forge(payloads=[(b"cubin", zstandard.ZstdCompressor(write_content_size=False).compress(b"abc"), 3, 1)]),
        b"",
        b"x" * 16,
        bytes(1000),
    ],
)
def test_forged_sizes_and_tables_are_refused(data: bytes) -> None:
    """A valid digest proves nothing about lengths, names, codecs and compressed frames."""
    with pytest.raises(DamagedEntry):
        decode_entry(data, KEY)


@pytest.mark.parametrize("claimed", [1 << 20, 1 << 30, 1 << 62])
def test_zip_bomb_is_refused_before_it_is_unpacked(claimed: int) -> None:
    """A frame larger than the table says, or a table above the limit, allocates no memory."""
    bomb = zstandard.compress(bytes(64 << 20))
    data = forge(payloads=[(b"cubin", bomb, claimed, 1)])
    tracemalloc.start()
    try:
        with pytest.raises(DamagedEntry):
            decode_entry(data, KEY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1 << 20


def test_frame_that_claims_too_much_is_refused() -> None:
    """Frame and table both claim 2**62 bytes, above the limit."""
    lying = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", 1 << 62) + zstandard.compress(b"a")[5:]

    assert zstandard.frame_content_size(lying) == 1 << 62
    with pytest.raises(DamagedEntry):
        decode_entry(forge(payloads=[(b"cubin", lying, 1 << 62, 1)]), KEY)


def closure(edited: int, headers: int = 3_000) -> dict[str, object]:
    """A variant with so many headers, one of which differs from those of any other variant."""
    files = [[1, f"include/h{each}.h", f"{each:064x}", 1000, each, each, 1, each] for each in range(headers)]
    files[edited % headers] = [1, f"include/h{edited % headers}.h", f"{10**9 + edited:064x}"]
    return {"key": key_of(edited), "request": "r", "closures": [{"format": 1, "files": files, "same": []}], "paths": []}


def test_oldest_rows_are_dropped_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest never exceeds its limit, and its size never makes a put raise."""
    monkeypatch.setattr(encoding, "MAX_MANIFEST_BYTES", 100_000)
    variants = [closure(1000 * number, 100) | {"of": number, "own": [[str(number) * 30_000]]} for number in range(6)]

    kept = decode_manifest(encode_manifest(KEY, variants), KEY)

    assert 1 <= len(kept) < 6
    assert kept == variants[: len(kept)]
    assert decode_manifest(encode_manifest(KEY, [closure(1, 2_000)]), KEY) == []


def test_manifest_of_exactly_the_limit_keeps_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit itself is allowed; with a limit lower by one byte the oldest variant is dropped."""
    variants = [{"key": key_of(number), "own": "x" * 100} for number in range(4)]
    size = len(entry_format.json_of({"variants": variants}))
    for limit, count in ((size, 4), (size - 1, 3)):
        monkeypatch.setattr(encoding, "MAX_MANIFEST_BYTES", limit)

        assert decode_manifest(encode_manifest(KEY, variants), KEY) == variants[:count]


@pytest.mark.slow
def test_manifest_of_many_headers_edited_seventy_times_stays_bounded() -> None:
    """Each edit is stored, the last ones are kept, at most 64, and the file's size is bounded."""
    for headers, edits, kept in ((3, 70, 64), (1_000, 24, 15)):
        rows: list[Any] = []
        for number in range(edits):
            data = encode_manifest(KEY, merge(rows, closure(number, headers)))
            rows = decode_manifest(data, KEY)
            assert rows[0] == closure(number, headers)

        keys = [each["key"] for each in rows]
        assert keys == [key_of(edits - 1 - number) for number in range(len(keys))]
        assert kept <= len(keys) <= 64
        assert len(data) < 3 << 20
