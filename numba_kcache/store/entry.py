"""The file format of entries, manifests and records: a key, a JSON header and compressed payloads under one digest.

Promise     `decode_entry` returns exactly what `encoding.encode_entry` was given for this key; any other bytes raise
            DamagedEntry. No size that a file claims is allocated before it has been checked. There are limits for all
            payloads of an entry together, for the ratio of unpacked to stored bytes, and for the number of JSON values.
Method      prefix | payload table | JSON header | payloads | digest; docs/format.md is the grammar. The digest over
            the stored bytes is checked before anything in them is used. The first payload, which a hit needs,
            is unpacked at once, the others when they are first read; a full check reads them as a stream.
Not here    Encoding (encoding), and trust. xxh3_128 finds damage, not forgery: a writer of the file can write its
            digest too. Files are trusted by their owner and mode (store.disk) and by signatures, for which the table
            holds a sha256 of each payload, taken when it was stored.
Source      On a 50 KB cubin xxh3_128 takes 0.5 us, sha256 27 us (with SHA-NI; 120 us without it) and blake2b 73 us;
            each of them finds every damage in tests/crash.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any

from xxhash import xxh3_128_digest

from ..model import NamedTuple

FORMAT = 1
"""Version of this format, in every file and in the name of the directory that contains the files."""

MAX_HEADER_BYTES = 16 << 20
MAX_UNPACKED_BYTES = 160 << 20
"""Limit of all unpacked payloads of an entry; reading the entry takes that much memory, and a copy of its file."""

MAX_FILE_BYTES = 192 << 20
MAX_PAYLOADS = 16
MAX_RATIO = 64
"""Unpacked bytes that a payload may have for each stored byte, beyond the first megabyte; cubins have 3 to 15."""

MAX_TEXT_BYTES = {"log": 4 << 20, "report": 4 << 20, "source": 1 << 20}
"""Limits of unpacked payloads that are parsed as text or JSON; parsing takes many times their size in memory."""

MAX_VALUES = 1 << 20
"""Limit of JSON values in a header: an empty list, two bytes of JSON, takes 64 bytes in memory."""

MAX_ROWS = 64
"""Number of rows that the manifest of a family keeps."""

MAX_MANIFEST_BYTES = 2 << 20
"""Limit of a manifest or record. Where a manifest would be larger, the oldest rows are dropped; a row with 500
headers takes 50 KiB."""

ENTRY, MANIFEST, RECORD = 1, 2, 3
"""The kinds of file: a compiled artifact; the list of rows stored for one family of requests; and facts that this
machine found out, such as the builds of its compilers, as one JSON object."""

MAGIC = b"\x89NKC\r\n\x1a\n"  # like PNG's: a transfer in text mode changes these bytes
PREFIX = Struct("<8sHBBIQ32s")  # magic, format, kind, payloads, header bytes, file bytes, key
ROW = Struct("<16sQQB7x32s")  # name, stored bytes, unpacked bytes, codec, sha256 of the unpacked bytes
DIGEST_BYTES = 16
RAW, ZSTD = 0, 1
NAME_CHARACTERS = "abcdefghijklmnopqrstuvwxyz_0123456789"
ANY_RATIO_BYTES = 1 << 20
_DIGITS = bytes.maketrans(b"123456789", b"000000000")

_read_json = json.JSONDecoder().raw_decode
json_of = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

Header = dict[str, Any]
"""JSON values: dict with str keys, list, str, int, finite float, bool, None."""

StoredRow = dict[str, Any]
"""One of the entries that a manifest lists, by its `"key"`; its other fields are the caller's."""


def row_of(key: str, target: str, request: str) -> StoredRow:
    """Describe an entry for its family's manifest: key, target, and the request with compilers and versions."""
    return {"key": key, "target": target, "request": request}


_ROW_KINDS = (
    ("family", str), ("target", str), ("request", str), ("file", str), ("paths", list),
)  # fmt: skip
"""Types of the optional fields of a row that this version knows."""


class DamagedEntry(ValueError):
    """The bytes of a file differ from those stored under its key; the message names the failed check."""


class PayloadRecord(NamedTuple):
    """One row of the payload table.

    Args:
        name: `"cubin"`, `"ptx"`, `"ltoir"`, ...
        stored_bytes: Bytes it takes in the file.
        size_bytes: Bytes it has when unpacked.
        codec: 0: as it is; 1: a zstd frame.
        sha256: Of the unpacked bytes, for signatures; not checked on hits.
    """

    name: str
    stored_bytes: int
    size_bytes: int
    codec: int
    sha256: bytes


class Payloads(Mapping[str, bytes]):
    """The payloads of a decoded entry: the first is unpacked at once, the others when they are requested.

    A payload that does not unpack raises KeyError, as if missing: the file's digest was right, so it was forged.
    """

    __slots__ = ("_unpacked", "packed")

    def __init__(self, packed: dict[str, tuple[PayloadRecord, memoryview]]) -> None:
        self.packed = packed
        self._unpacked: dict[str, bytes] = {}
        for name, (record, stored) in packed.items():
            is_raw = record.codec == RAW and record.size_bytes == len(stored)
            self._unpacked[name] = bytes(stored) if is_raw else unpack(record, stored)
            break

    def __getitem__(self, name: str) -> bytes:
        if name not in self._unpacked:
            try:
                self._unpacked[name] = unpack(*self.packed[name])
            except DamagedEntry as error:
                raise KeyError(name) from error
        return self._unpacked[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.packed)

    def __len__(self) -> int:
        return len(self.packed)


class StoredEntry(NamedTuple):
    """An entry as it is stored: key, header and payloads.

    Args:
        key: 64 lower-case hexadecimal digits.
        header: JSON values. Data that every hit reads belongs here; data that only reports read belongs in a payload.
        payloads: Bytes by name. A hit needs only the first.
    """

    key: str
    header: Header
    payloads: Mapping[str, bytes]


def is_key(key: str) -> bool:
    """Check whether `key` can name a file."""
    return len(key) == 64 and not key.strip("0123456789abcdef")


def require_key(key: str) -> str:
    """Return `key` if it can name a file.

    Raises:
        ValueError: The key is not 64 lower-case hexadecimal digits.
    """
    if not is_key(key):
        raise ValueError(f"cannot use {key!r} as a key: it is not 64 lower-case hexadecimal digits")
    return key


def decode_entry(data: bytes, key: str, kind: int = ENTRY) -> StoredEntry:
    """Decode the bytes of `encode_entry`, after checking digest, key and kind.

    Args:
        data: A whole file.
        key: The key under which the file was found; the key in the file must be equal.
        kind: ENTRY, MANIFEST or RECORD; the kind in the file must be equal.

    Raises:
        DamagedEntry: A byte differs from what was written, or the contents break the format.
    """
    at, end = head_bytes(data, kind), len(data) - DIGEST_BYTES
    written_bytes = PREFIX.unpack_from(data)[5]
    if len(data) != written_bytes:
        raise DamagedEntry(f"{len(data)} bytes where {written_bytes} were written")
    view = memoryview(data)
    if at > end or xxh3_128_digest(view[:end]) != data[end:]:
        raise DamagedEntry("the digest differs")
    header, records = _decode_head(data, key, at)
    packed: dict[str, tuple[PayloadRecord, memoryview]] = {}
    for record in records:
        start, at = at, at + record.stored_bytes
        packed[record.name] = record, view[start:at]
    if at != end or len(packed) != len(records):
        raise DamagedEntry("the payload table is malformed")
    return StoredEntry(key, header, Payloads(packed))


def head_bytes(data: bytes, kind: int = ENTRY) -> int:
    """Length of a file's head (prefix, payload table and header) in bytes, read from its prefix.

    Raises:
        DamagedEntry: The data does not begin as a file of this kind.
    """
    if len(data) < PREFIX.size:
        raise DamagedEntry(f"{len(data)} bytes are too few")
    magic, version, stored_kind, payloads, header_bytes = PREFIX.unpack_from(data)[:5]
    if magic != MAGIC:
        raise DamagedEntry("not a file of this store")
    if version != FORMAT:
        raise DamagedEntry(f"format {version}, this version reads {FORMAT}")
    if stored_kind != kind:
        raise DamagedEntry("holds another kind of file")
    if payloads > MAX_PAYLOADS or header_bytes > MAX_HEADER_BYTES:
        raise DamagedEntry("the header is out of bounds")
    return PREFIX.size + int(payloads) * ROW.size + int(header_bytes)


def decode_head(data: bytes, key: str, kind: int = ENTRY) -> tuple[Header, list[PayloadRecord]]:
    """The header and payload table in the head of a file; the digest is not checked.

    Raises:
        DamagedEntry: The data is not the head of a file of `key`.
    """
    return _decode_head(data, key, head_bytes(data, kind))


def _decode_head(data: bytes, key: str, end: int) -> tuple[Header, list[PayloadRecord]]:
    prefix = PREFIX.unpack_from(data)
    if len(data) < end or prefix[6].hex() != key:
        raise DamagedEntry("cut short, or of another key")
    table_end, unpacked = PREFIX.size + prefix[3] * ROW.size, 0
    records = []
    for padded, *rest in ROW.iter_unpack(memoryview(data)[PREFIX.size : table_end]):
        name = padded.rstrip(b"\0").decode("latin-1")
        if not 0 < len(name) <= 16 or not name[0].isalpha() or name.strip(NAME_CHARACTERS):
            raise DamagedEntry("a payload's name is malformed")
        stored_bytes, size_bytes = rest[:2]
        if size_bytes > MAX_TEXT_BYTES.get(name, ANY_RATIO_BYTES + MAX_RATIO * stored_bytes):
            raise DamagedEntry(f"payload {name} claims {size_bytes} bytes in {stored_bytes}")
        unpacked += size_bytes
        records.append(PayloadRecord(name, *rest))
    if unpacked > MAX_UNPACKED_BYTES:
        raise DamagedEntry(f"its payloads claim {unpacked} bytes")
    header = data[table_end:end]
    return parse_object(header, is_text=prefix[2] == ENTRY), records


def decode_manifest(data: bytes, family: str) -> list[StoredRow]:
    """Decode the rows that `encode_manifest` wrote.

    Raises:
        DamagedEntry: As by `decode_entry`, or the file does not hold rows.
    """
    rows = decode_entry(data, family, MANIFEST).header.get("variants")
    if type(rows) is not list or len(rows) > MAX_ROWS:
        raise DamagedEntry("holds no list of rows")
    for row in rows:
        if type(row) is not dict or type(row.get("key")) is not str:
            raise DamagedEntry("holds a row without a key")
        for name, kind in _ROW_KINDS:
            if name in row and type(row[name]) is not kind:
                raise DamagedEntry(f"holds a row whose {name} is a {type(row[name]).__name__}")
    return rows


def decode_record(data: bytes, name: str) -> Header:
    """Decode the record of a name, written by `encode_entry` as the header of a file without payloads.

    Raises:
        DamagedEntry: As by `decode_entry`.
    """
    return decode_entry(data, name, RECORD).header


def unpack(record: PayloadRecord, stored: memoryview) -> bytes:
    """The unpacked bytes of a payload.

    Raises:
        DamagedEntry: They are not of the size in its record, or cannot be unpacked.
    """
    size_bytes, codec = record.size_bytes, record.codec
    if codec == RAW and size_bytes == len(stored):
        return bytes(stored)
    if codec != ZSTD:
        raise DamagedEntry(f"a payload claims codec {codec} and {size_bytes} bytes")
    try:
        import zstandard
    except ImportError as error:
        raise DamagedEntry(str(error)) from None
    try:
        if zstandard.frame_content_size(stored) != size_bytes:  # the size that decompress() would allocate
            raise DamagedEntry(f"a payload is not of {size_bytes} bytes")
        return zstandard.ZstdDecompressor().decompress(stored, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DamagedEntry(f"a payload does not unpack: {error}") from None


def parse_object(text: bytes, *, is_text: bool = True) -> Header:
    """Read one JSON object as `encode_entry` writes it: no name twice, no NaN, nothing around it.

    Args:
        text: The whole text.
        is_text: Refuse unpaired surrogates; the paths in a manifest may contain some.

    Raises:
        DamagedEntry: The text is not such an object, or exceeds the limits.
    """
    if text.count(b"[") + text.count(b"{") + text.count(b",") > MAX_VALUES:
        raise DamagedEntry("the header holds too many values")
    try:
        header: Header = _read_json(text.decode("ascii"))[0]  # the next line finds text after the object
        is_canonical = json_of(header).encode("ascii") == text
    except (ValueError, RecursionError) as error:
        raise DamagedEntry(f"the header is not JSON: {error}") from None
    if type(header) is not dict or not is_canonical:
        raise DamagedEntry("the header is not one JSON object as it is written here")
    # 20 digits may be too large a number (or a part of a digest), and \ud a surrogate (or the start of a letter)
    if b"0" * 20 in text.translate(_DIGITS) or (is_text and b"\\ud" in text):
        from ..model.json_values import is_in_range, is_unicode

        if not is_in_range(header):
            raise DamagedEntry("the header holds a number out of range")
        if is_text and not is_unicode(header):
            raise DamagedEntry("the header holds what is not text")
    return header
