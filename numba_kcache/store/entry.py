"""The one frame of everything kept on disk: a key, a JSON header and compressed payloads, checked as a whole.

Promise     What `decode_entry` returns is what `encode_entry` was given, for the very key asked for; any
            other bytes raise DamagedEntry, whatever they are. No size that a file claims is allocated before
            it has been held against a limit.
Method      prefix | payload table | JSON header | payloads | digest; docs/format.md is the grammar. The
            digest is taken over the bytes as stored, before anything in them is believed. The first payload
            (the one that a hit needs) is unpacked at once, the others when they are asked for.
Not here    Trust. xxh3_128 finds damage, not malice: whoever can write the file can write its digest. Whom to
            believe is decided by ownership and mode (store.tree) and by signatures, for which the table
            holds a sha256 of each payload, taken when it was stored.
Ground      On a 50 KB cubin xxh3_128 takes 0.5 us where sha256 takes 27 (with SHA-NI; 120 without it) and
            blake2b 73: of the digests that find every damage in tests/crash it is the one that costs nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, NamedTuple, NoReturn

import zstandard
from xxhash import xxh3_128_digest

from ..keys.digests import sha256

FORMAT = 1
"""Number of this grammar, in every file and in the name of the directory that holds them."""

MAX_HEADER_BYTES = 16 << 20
MAX_PAYLOAD_BYTES = 512 << 20
MAX_FILE_BYTES = 1 << 30
MAX_PAYLOADS = 16
MAX_VARIANTS = 64
"""Variants that are kept of a family."""

ENTRY, MANIFEST = 1, 2
"""What a file is: a compiled artifact, or the variants that a family of requests has led to."""

_MAGIC = b"\x89NKC\r\n\x1a\n"  # as PNG's: a transfer that treats it as text damages the first bytes
_PREFIX = Struct("<8sHBBIQ32s")  # magic, format, kind, payloads, header bytes, file bytes, key
_RECORD = Struct("<16sQQB7x32s")  # name, stored bytes, unpacked bytes, codec, sha256 of the unpacked bytes
_DIGEST_BYTES = 16
_SMALLEST = _PREFIX.size + len("{}") + _DIGEST_BYTES
_RAW, _ZSTD = 0, 1
_LEVEL = 3  # on cubins and PTX of 1 to 3 MB a quarter smaller than 1, in the same time; 9 takes five times as long
_LEAST_TO_COMPRESS_BYTES = 512
_LEAST_FIRST_TO_COMPRESS_BYTES = (64 << 10) + 1

_NAME = r"[a-z][a-z0-9_]{0,15}\Z"

Header = dict[str, Any]
"""JSON values: dict with str keys, list, str, int, finite float, bool, None."""


Variant = dict[str, Any]
"""One of the entries that a manifest lists, by its `"key"`; what else it holds is the caller's."""


class DamagedEntry(ValueError):
    """These bytes are not what was stored under this key; the message says what gave it away."""


class PayloadRecord(NamedTuple):
    """One line of the payload table.

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
    """The payloads of a decoded entry: the first is unpacked at once, the others when they are asked for.

    One that does not unpack, which the digest leaves to a forged file alone, is not there: KeyError.
    """

    __slots__ = ("_packed", "_unpacked")

    def __init__(self, packed: dict[str, tuple[tuple[Any, ...], memoryview]]) -> None:
        self._packed = packed
        self._unpacked: dict[str, bytes] = {}
        for name in packed:
            self._unpacked[name] = _unpack(*packed[name])
            break

    def __getitem__(self, name: str) -> bytes:
        payload = self._unpacked.get(name)
        if payload is None:
            try:
                payload = self._unpacked[name] = _unpack(*self._packed[name])
            except DamagedEntry as error:
                raise KeyError(name) from error
        return payload

    def __iter__(self) -> Iterator[str]:
        return iter(self._packed)

    def __len__(self) -> int:
        return len(self._packed)

    def __contains__(self, name: object) -> bool:
        return name in self._packed

    def __repr__(self) -> str:
        return f"Payloads({list(self._packed)})"


class StoredEntry:
    """What a key leads to.

    Args:
        key: 64 lower-case hexadecimal digits.
        header: JSON values. Whatever every hit reads belongs here, what only a report reads into a payload.
        payloads: Bytes by name. The first is the one that a hit needs.
    """

    __slots__ = ("header", "key", "payloads")

    def __init__(self, key: str, header: Header, payloads: Mapping[str, bytes]) -> None:
        self.key, self.header, self.payloads = key, header, payloads

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StoredEntry):
            return NotImplemented
        return self.key == other.key and self.header == other.header and dict(self.payloads) == dict(other.payloads)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"StoredEntry({self.key!r}, {self.header!r}, {list(self.payloads)!r})"


def is_key(key: str) -> bool:
    """Whether `key` can name a file."""
    return len(key) == 64 and not key.strip("0123456789abcdef")


def require_key(key: str) -> str:
    """`key` itself, if it can name a file.

    Raises:
        ValueError: It is not 64 lower-case hexadecimal digits.
    """
    if not is_key(key):
        raise ValueError(f"cannot use {key!r} as a key: it is not 64 lower-case hexadecimal digits")
    return key


def encode_entry(entry: StoredEntry, kind: int = ENTRY) -> bytes:
    """The file that holds `entry`.

    Raises:
        ValueError: The entry cannot be held: a bad key or payload name, NaN, or a size beyond the limits.
        TypeError: The header holds something other than JSON values.
    """
    key = bytes.fromhex(require_key(entry.key))
    header = json.dumps(entry.header, separators=(",", ":"), allow_nan=False).encode("ascii")
    table: list[bytes] = []
    stored: list[bytes] = []
    for name, payload in entry.payloads.items():
        if re.match(_NAME, name) is None:
            raise ValueError(f"cannot name a payload {name!r}: 1 to 16 of a-z, 0-9 and _")
        least = _LEAST_TO_COMPRESS_BYTES if table else _LEAST_FIRST_TO_COMPRESS_BYTES
        codec, packed = _pack(payload) if len(payload) >= least else (_RAW, payload)
        digest = sha256(payload).digest()
        table.append(_RECORD.pack(name.encode("ascii"), len(packed), len(payload), codec, digest))
        stored.append(packed)
    size = _SMALLEST - len("{}") + len(table) * _RECORD.size + len(header) + sum(map(len, stored))
    largest = max(map(len, entry.payloads.values()), default=0)
    if len(header) > MAX_HEADER_BYTES or largest > MAX_PAYLOAD_BYTES or size > MAX_FILE_BYTES:
        raise ValueError(f"cannot hold an entry of {size} bytes with a payload of {largest}")
    if len(table) > MAX_PAYLOADS:
        raise ValueError(f"cannot hold {len(table)} payloads: at most {MAX_PAYLOADS}")
    prefix = _PREFIX.pack(_MAGIC, FORMAT, kind, len(table), len(header), size, key)
    body = b"".join((prefix, *table, header, *stored))
    return body + xxh3_128_digest(body)


def decode_entry(data: bytes, key: str, kind: int = ENTRY) -> StoredEntry:
    """The entry that `encode_entry` wrote.

    Args:
        data: A whole file.
        key: The key under which it was found; must be the one inside.
        kind: What it was found as; must be the one inside.

    Raises:
        DamagedEntry: Any byte is not as it was written, or the file was forged badly.
    """
    if len(data) < _SMALLEST:
        raise DamagedEntry(f"{len(data)} bytes are too few")
    magic, version, stored_kind, payloads, header_bytes, file_bytes, stored_key = _PREFIX.unpack_from(data)
    if magic != _MAGIC:
        raise DamagedEntry("not a file of this store")
    if version != FORMAT:
        raise DamagedEntry(f"format {version}, this version reads {FORMAT}")
    if file_bytes != len(data):
        raise DamagedEntry(f"{len(data)} bytes where {file_bytes} were written")
    view = memoryview(data)
    end = file_bytes - _DIGEST_BYTES
    if xxh3_128_digest(view[:end]) != data[end:]:
        raise DamagedEntry("the digest differs")
    if stored_key.hex() != key or stored_kind != kind:
        raise DamagedEntry(f"holds another {'key' if stored_kind == kind else 'kind of file'}")
    table_end = _PREFIX.size + payloads * _RECORD.size
    at = table_end + header_bytes
    if payloads > MAX_PAYLOADS or header_bytes > MAX_HEADER_BYTES or at > end:
        raise DamagedEntry("the header is out of bounds")
    header = parse_object(data[table_end:at])
    packed: dict[str, tuple[tuple[Any, ...], memoryview]] = {}
    for record in _RECORD.iter_unpack(view[_PREFIX.size : table_end]):
        name = _name(record[0])
        start, at = at, at + record[1]
        if name in packed or at > end:
            raise DamagedEntry("the payload table is malformed")
        packed[name] = record, view[start:at]
    if at != end:
        raise DamagedEntry("bytes that belong to no payload")
    return StoredEntry(key, header, Payloads(packed))


def head_bytes(data: bytes) -> int:
    """How many bytes the head of an entry takes, header included, by its first bytes.

    Raises:
        DamagedEntry: These are not the first bytes of an entry.
    """
    if len(data) < _PREFIX.size:
        raise DamagedEntry(f"{len(data)} bytes are too few")
    magic, version, kind, payloads, header_bytes = _PREFIX.unpack_from(data)[:5]
    if (magic, version, kind) != (_MAGIC, FORMAT, ENTRY) or payloads > MAX_PAYLOADS or header_bytes > MAX_HEADER_BYTES:
        raise DamagedEntry("not an entry of this format")
    return _PREFIX.size + int(payloads) * _RECORD.size + int(header_bytes)


def decode_head(data: bytes, key: str) -> tuple[Header, dict[str, int]]:
    """Header and unpacked payload sizes of an entry, from its head alone; not held against the digest.

    Raises:
        DamagedEntry: It is not the head of an entry of `key`.
    """
    end, count = head_bytes(data), _PREFIX.unpack_from(data)[3]
    if len(data) < end or _PREFIX.unpack_from(data)[6].hex() != key:
        raise DamagedEntry("cut short, or of another key")
    table_end = _PREFIX.size + count * _RECORD.size
    records = _RECORD.iter_unpack(memoryview(data)[_PREFIX.size : table_end])
    return parse_object(data[table_end:end]), {_name(record[0]): record[2] for record in records}


def variants_of(header: Header) -> list[Variant]:
    """The variants in a manifest's header.

    Raises:
        ValueError: It does not hold variants.
    """
    variants = header.get("variants")
    if type(variants) is not list or len(variants) > MAX_VARIANTS:
        raise ValueError("holds no list of variants")
    if not all(type(each) is dict and type(each.get("key")) is str for each in variants):
        raise ValueError("holds a variant without a key")
    return variants


def merge(variants: list[Variant], variant: Variant) -> list[Variant]:
    """`variants`, newest first, with `variant` in front, each key once; the one used longest ago goes beyond 64."""
    return [variant, *(each for each in variants if each["key"] != variant["key"])][:MAX_VARIANTS]


def payload_records(entry: StoredEntry) -> list[PayloadRecord]:
    """The payload table of a decoded entry; of one that was not decoded there is none yet."""
    if not isinstance(entry.payloads, Payloads):
        return []
    return [PayloadRecord(name, *record[1:]) for name, (record, _) in entry.payloads._packed.items()]


def payload_sizes(entry: StoredEntry) -> dict[str, int]:
    """Unpacked bytes of each payload of a decoded entry; nothing is unpacked."""
    return {record.name: record.size_bytes for record in payload_records(entry)}


def check_payloads(entry: StoredEntry) -> None:
    """Unpack every payload of a decoded entry and hold it against its sha256.

    Raises:
        DamagedEntry: One does not unpack, or to other bytes.
    """
    for record in payload_records(entry):
        payload = entry.payloads.get(record.name)
        if payload is None or sha256(payload).digest() != record.sha256:
            raise DamagedEntry(f"payload {record.name} does not unpack to what was stored")


def _pack(payload: bytes) -> tuple[int, bytes]:
    packed = zstandard.ZstdCompressor(level=_LEVEL).compress(payload)
    return (_ZSTD, packed) if len(packed) < len(payload) * 0.9 else (_RAW, payload)


_idle: list[zstandard.ZstdDecompressor] = []  # a context serves one thread at a time and takes 9 us to make


def _unpack(record: tuple[Any, ...], stored: memoryview) -> bytes:
    _, stored_bytes, size_bytes, codec, _ = record
    if codec == _RAW and size_bytes == stored_bytes:
        return bytes(stored)
    if codec != _ZSTD or size_bytes > MAX_PAYLOAD_BYTES:
        raise DamagedEntry(f"a payload claims codec {codec} and {size_bytes} bytes")
    try:
        if zstandard.frame_content_size(stored) != size_bytes:  # what decompress() would allocate
            raise DamagedEntry(f"a payload is not of {size_bytes} bytes")
        try:
            context = _idle.pop()
        except IndexError:
            context = zstandard.ZstdDecompressor()
        payload = context.decompress(stored, allow_extra_data=False)
        _idle.append(context)
    except zstandard.ZstdError as error:
        raise DamagedEntry(f"a payload does not unpack: {error}") from None
    return payload


_names = {name.encode().ljust(16, b"\0"): name for name in ("cubin", "ptx", "log", "report")}
"""Names that need no check: the usual ones, and those seen."""


def _name(padded: bytes) -> str:
    name = _names.get(padded)
    if name is None:
        name = padded.rstrip(b"\0").decode("latin-1")
        if re.match(_NAME, name) is None:
            raise DamagedEntry("a payload's name is malformed")
        if len(_names) < 64:
            _names[padded] = name
    return name


def _unique(pairs: list[tuple[str, Any]]) -> Header:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a name is there twice")
    return members


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _finite(number: str) -> float:
    value = float(number)
    if value - value != 0:
        raise ValueError(f"{number} is not finite")
    return value


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)


def parse_object(text: bytes) -> Header:
    """One strict JSON object in ASCII: no name twice, no NaN, nothing around it.

    Raises:
        DamagedEntry: It is none.
    """
    try:
        decoded = text.decode("ascii")
        header, end = _decoder.raw_decode(decoded)
    except (ValueError, RecursionError) as error:
        raise DamagedEntry(f"the header is not JSON: {error}") from None
    if type(header) is not dict or end != len(decoded):
        raise DamagedEntry("the header is not one JSON object")
    return header
