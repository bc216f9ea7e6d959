"""The form of the store's files, the tree of a root, and the calls of the operating system that only Linux has.

Promise     `decode_entry` returns exactly what `encoding.encode_entry` was given for this key; any other bytes raise
            DamagedEntry. No size that a file claims is allocated before it has been checked. There are limits for all
            payloads of an entry together, for the ratio of unpacked to stored bytes, and for the number of JSON values.
            No file outside a `Tree` is touched, no link inside it is followed, and nothing but regular files is read. A
            directory that is not trusted is refused for the life of the process.
Method      prefix | payload table | JSON header | payloads | digest; docs/format.md is the grammar. The digest over
            the stored bytes is checked before anything in them is used. The first payload, which a hit needs,
            is unpacked at once, the others when they are first read; a full check reads them as a stream.
            The path of the root is resolved once, component by component, and the descriptors of the tree's own folders
            are kept (see disk); each folder below is opened by itself.
Not here    Encoding (encoding), and trust. xxh3_128 finds damage, not forgery: a writer of the file can write its
            digest too. Files are trusted by their owner and mode (disk) and by signatures, for which the table
            holds a sha256 of each payload, taken when it was stored.
Source      On a 50 KB cubin xxh3_128 takes 0.5 us, sha256 27 us (with SHA-NI; 120 us without it) and blake2b 73 us;
            each of them finds every damage in tests/crash.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from struct import Struct
from threading import get_ident
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_128_digest

from ..model import NamedTuple

if TYPE_CHECKING:
    from typing import Protocol

    from ..settings import Durability

    class Forked(Protocol):
        """An object with locks or threads that have to be replaced in a forked child."""

        def after_fork(self) -> None:
            """Replace, in the child, locks that another thread of the parent may have held."""


# -- the form of a file -----------------------------------------------------------------------------------------------


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
    ("family", str), ("target", str), ("request", str), ("paths", list),
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
    if len(data) < PREFIX.size:
        raise DamagedEntry(f"{len(data)} bytes are too few")
    magic, version, stored_kind, payloads, header_bytes, written_bytes, stored_key = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise DamagedEntry("not a file of this store")
    if version != FORMAT:
        raise DamagedEntry(f"format {version}, this version reads {FORMAT}")
    if stored_kind != kind:
        raise DamagedEntry("holds another kind of file")
    if payloads > MAX_PAYLOADS or header_bytes > MAX_HEADER_BYTES:
        raise DamagedEntry(f"{payloads} payloads and a header of {header_bytes} bytes are out of bounds")
    if len(data) != written_bytes:
        raise DamagedEntry(f"{len(data)} bytes where {written_bytes} were written")
    table_end = PREFIX.size + payloads * ROW.size
    view, at, end = memoryview(data), table_end + header_bytes, len(data) - DIGEST_BYTES
    if at > end or xxh3_128_digest(view[:end]) != data[end:]:
        raise DamagedEntry("the digest differs")
    if stored_key.hex() != key:
        raise DamagedEntry("of another key")
    records = _payload_table(view[PREFIX.size : table_end])
    header = parse_object(data[table_end:at], is_text=kind == ENTRY)
    packed: dict[str, tuple[PayloadRecord, memoryview]] = {}
    for record in records:
        start, at = at, at + record.stored_bytes
        packed[record.name] = record, view[start:at]
    if at != end or len(packed) != len(records):
        raise DamagedEntry("the payload table is malformed")
    return StoredEntry(key, header, Payloads(packed))


def _payload_table(table: memoryview) -> list[PayloadRecord]:
    unpacked, records = 0, []
    for padded, *rest in ROW.iter_unpack(table):
        name = padded.rstrip(b"\0").decode("latin-1")
        if not 0 < len(name) <= 16 or not name[0].isalpha() or name.strip(NAME_CHARACTERS):
            raise DamagedEntry("a payload's name is malformed")
        stored_bytes, size_bytes = rest[:2]
        if size_bytes > MAX_TEXT_BYTES.get(name, ANY_RATIO_BYTES + MAX_RATIO * stored_bytes):
            raise DamagedEntry(f"payload {name} claims {size_bytes} bytes in {stored_bytes}")
        unpacked += size_bytes
        records.append(tuple.__new__(PayloadRecord, (name, *rest)))
    if unpacked > MAX_UNPACKED_BYTES:
        raise DamagedEntry(f"its payloads claim {unpacked} bytes")
    return records


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


decode_record = functools.partial(decode_entry, kind=RECORD)
"""Decodes the record of a name, written by `encode_entry` as the header of a file without payloads."""


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


# -- calls and descriptors --------------------------------------------------------------------------------------------


CLOEXEC, DIRECTORY, NOFOLLOW, NONBLOCK, NOCTTY = os.O_CLOEXEC, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_NONBLOCK, os.O_NOCTTY
FOLDER = os.O_RDONLY | DIRECTORY | NOFOLLOW | CLOEXEC


class Refused(PermissionError):
    """A directory or file that is not used: others can change it, or its path is a loop of links."""

    def __init__(self, why: str) -> None:
        super().__init__(errno.EACCES, why)

    def __str__(self) -> str:
        return str(self.strerror)


def try_flock(fd: int, *, waits: bool = False) -> None:
    """Lock the open file or folder `fd` exclusively; unless it `waits`, at once.

    Raises:
        BlockingIOError: Another process or thread holds the lock.
        OSError: This filesystem has no locks.
    """
    import fcntl  # not at the top: a hit takes no lock

    fcntl.flock(fd, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(fd: int) -> None:
    """Unlock a file that `try_flock` has locked; closing it is not enough while a forked child has it open."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_UN)


def sync_data(fd: int) -> None:
    """Force the bytes of the open file `fd` to the disk."""
    os.fdatasync(fd)


hook: Callable[[str], None] | None = None
"""Called with the name of each point that `reached` marks; set only by tests, to kill the process or fail a call."""


def reached(point: str) -> None:
    """Mark that execution got to `point`."""
    if hook is not None:
        hook(point)


renewed_in_children: weakref.WeakSet[Forked] = weakref.WeakSet()
"""Objects whose `after_fork()` is called in each child that is forked while they exist."""


# A folder is named by its descriptor, and no link is followed in it.


def open_in(folder: int, name: str, flags: int, mode: int = 0o600) -> int:
    """Open a file or folder; with O_CREAT a missing file is made."""
    return os.open(name, flags | NOFOLLOW | CLOEXEC, mode, dir_fd=folder)


def open_below(
    folder: int, names: Sequence[str], flags: int, check: Callable[[os.stat_result, str], object] | None = None
) -> int:
    """Open a file or folder that is some folders further down; `check` refuses a folder on the way by its stat."""
    at = folder
    try:
        for name in names[:-1]:
            above, at = at, os.open(name, FOLDER, dir_fd=at)
            if above != folder:
                os.close(above)
            if check is not None:
                check(os.fstat(at), name)
        return os.open(names[-1], flags, dir_fd=at)
    finally:
        if at != folder:
            os.close(at)


def stat_in(folder: int, name: str) -> os.stat_result:
    """The stat of a file, folder or link."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def rename_in(folder: int, name: str, to_folder: int, to_name: str) -> None:
    """Rename a file, in place of any other of the new name."""
    os.rename(name, to_name, src_dir_fd=folder, dst_dir_fd=to_folder)


def unlink_in(folder: int, name: str) -> None:
    """Remove a file or link."""
    os.unlink(name, dir_fd=folder)


def remove_folder_in(folder: int, name: str) -> None:
    """Remove a folder with all that is in it."""
    import shutil

    shutil.rmtree(name, dir_fd=folder)


def is_writable(folder: int) -> bool:
    """Check whether the user may make files in a folder."""
    return os.access(".", os.W_OK | os.X_OK, dir_fd=folder)


def make_folder_in(parent: int | None, name: str, mode: int) -> None:
    """Make a folder. Its owner may use it despite the umask, which another thread may have narrowed.

    Args:
        parent: Descriptor of the folder to make it in; None if `name` is a path.
        name: Its name.
        mode: Its permissions, without those that the umask withholds from others.

    Raises:
        OSError: The folder cannot be made, or something has this name.
    """
    os.mkdir(name, mode, dir_fd=parent)
    made = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if stat.S_ISDIR(made) and made & 0o700 != 0o700:
        os.chmod(name, made & 0o7777 | 0o700, dir_fd=parent)


_MAX_LINKS = 40


def resolve(path: str, *, shared: bool, makes: bool = False) -> tuple[str, list[tuple[str, os.stat_result]]]:
    """Follow the links of a path.

    Args:
        path: Absolute path.
        shared: Others may use the folders that are made, as far as the umask permits.
        makes: Make missing folders.

    Returns:
        The path without links, and each folder on the way in which other users may rename entries, with its stat.

    Raises:
        Refused: Another user may have put a link there.
        OSError: The path does not exist.
    """
    remaining, at, links = path.split("/")[::-1], "", 0
    exposed: list[tuple[str, os.stat_result]] = []
    trusted = 0, os.geteuid()
    while remaining:
        name = remaining.pop()
        if name in ("", ".", ".."):
            at = at if name != ".." else at.rpartition("/")[0]
            continue
        parent = os.lstat(at or "/")
        mode = parent.st_mode
        is_sticky = bool(mode & 0o022 and mode & stat.S_ISVTX)
        is_exposed = parent.st_uid not in trusted or (mode & 0o022 and not is_sticky)  # others may rename entries
        if is_exposed:
            exposed.append((at or "/", parent))
        below = f"{at}/{name}"
        try:
            status = os.lstat(below)
        except FileNotFoundError:
            if not makes:
                raise
            with suppress(FileExistsError):  # another process was faster
                make_folder_in(None, below, 0o777 if shared else 0o700)
            status = os.lstat(below)
        if not stat.S_ISLNK(status.st_mode):
            at = below
            continue
        if is_exposed or (is_sticky and status.st_uid not in (*trusted, parent.st_uid)):
            raise Refused(f"{below} is a link, and others can write to {at or '/'}")
        links += 1
        if links > _MAX_LINKS:
            raise Refused(f"{path} is a loop of links")
        target = os.readlink(below)
        remaining += target.split("/")[::-1]
        at = "" if target.startswith("/") else at
    return at or "/", exposed


_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs"),
    *("lustre", "gpfs", "beegfs", "ceph", "panfs", "wekafs"),
)


MOUNTS = "/proc/self/mountinfo"


def filesystem_of(device: int) -> str:
    """The type of the filesystem on a device; "" if none is mounted, or for a part of one (btrfs)."""
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open(MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            before, _, after = line.partition(" - ")
            if before.split(" ")[2:3] == [number]:
                return after.split(" ")[0]
    return ""


def is_network(status: os.stat_result) -> bool:
    """Check whether a file or folder with this stat is on a filesystem shared with other machines."""
    is_local = os.major(status.st_dev) != 0  # on a block device: the list of mounts need not be read
    kind = "" if is_local else filesystem_of(status.st_dev)
    return kind in _NETWORK or kind.startswith("fuse.")


def _after_fork() -> None:
    """Renew all objects of a child; the error of one, which Python prints, comes after the others have been renewed."""
    _forget_imports_of_others()
    failed: Exception | None = None
    for each in list(renewed_in_children):
        try:
            each.after_fork()
        except Exception as error:
            failed = error
    if failed is not None:
        raise failed


_IMPORTS: Mapping[str, Callable[[], Any]] = getattr(sys.modules.get("_frozen_importlib"), "_module_locks", {})
"""The locks of the modules that are being imported now, by name; nearly always empty.

Source      CPython 3.11 to 3.14, importlib/_bootstrap.py: while a module is imported, it is half-initialised in
            `sys.modules` and has a lock, which stays locked in a forked child. The import returns the module that is in
            `sys.modules` at its end.
"""


def _forget_imports_of_others() -> None:
    """Let a child import again what other threads of its parent were importing; CPython would wait for the threads."""
    for name, reference in list(_IMPORTS.items()):
        lock = reference()
        if lock is None or getattr(lock, "owner", None) == get_ident():
            continue
        _IMPORTS.pop(name, None)  # type: ignore[attr-defined]
        if _is_half_initialised(name):
            del sys.modules[name]


def _is_half_initialised(name: str) -> bool:
    return bool(getattr(getattr(sys.modules.get(name), "__spec__", None), "_initializing", False))


os.register_at_fork(after_in_child=_after_fork)


# -- the tree below a root --------------------------------------------------------------------------------------------


RECENCY_NS = 3600 * 10**9
"""A hit renews a file's time of use if that is longer ago than this, in nanoseconds."""

READ = os.O_RDONLY | NOFOLLOW | CLOEXEC | NONBLOCK | NOCTTY  # a FIFO must not block the reader
FOLDERS = {ENTRY: "entries", MANIFEST: "manifests", RECORD: "records"}
HEADERS = "headers"
"""Folder of the root with the headers that NVRTC holds itself, as extracted."""

SIGNED = "signed"
"""Folder of the root with the tree for sessions that demand signatures."""

ABSENT = (errno.ENOENT, errno.ENOTDIR)


class Descriptor(int):
    """An open descriptor; closed with its last reference, unless its number belongs to another file by then."""

    identity: tuple[int, int]

    def __del__(self) -> None:
        try:
            if identity_of(os.fstat(self)) == self.identity:
                os.close(self)
        except Exception:  # the program has closed it, or the interpreter is shutting down
            pass


class FoundFile(NamedTuple):
    """A file found by a walk."""

    kind: int
    key: str
    tree: Tree
    size_bytes: int
    used_ns: int


class Tree:
    """The tree below one root.

    Args:
        root: Absolute path of the directory.
        shared: Trust the directory's owner, and the group that may write to it.
        below: Names of the folders between the root and the tree.
        durability: What a write forces to the disk before it returns: nothing, the bytes, or the bytes and their name.

    Attributes:
        status: The stat of the root, when it was last opened; None before.
        refusal: The reason why the directory is not trusted; "" if it is, or was not opened yet.
        is_private: No other user can write below the root, so its files need no check of their own.
        takes_unsigned: Each write marks the tree as one with code whose signature was not checked (store.signed).
    """

    takes_unsigned = False

    def __init__(
        self, root: str, *, shared: bool = False, below: tuple[str, ...] = (), durability: Durability = "none"
    ) -> None:
        self.root, self.shared, self.durability = root, shared, durability
        self.names = (*below, f"v{FORMAT}")
        self.status: os.stat_result | None = None
        self.refusal = self._resolved = ""
        self._kept: dict[str, Descriptor] = {}
        self._is_network: bool | None = None
        self.is_private = False

    # Opening

    def base(self, name: str = "") -> int:
        """The descriptor of the tree's own folder, or of a folder in it, which was checked; the tree closes it.

        Raises:
            Refused: The folder is not trusted.
            OSError: The path does not exist, or is not a folder.
        """
        kept = self._kept.get(name)
        if kept is not None:
            try:
                status = os.fstat(kept)
                if status.st_nlink and (status.st_dev, status.st_ino) == kept.identity:
                    return kept
            except OSError:
                pass  # closed by the program, or gone from the file server
        if name:
            at = os.open(name, FOLDER, dir_fd=self.base())
        else:
            at = self.open_root()
            for below in self.names:
                above = at
                try:
                    at = os.open(below, FOLDER, dir_fd=above)
                finally:
                    os.close(above)
        try:
            status = os.fstat(at)
            if not self.is_private:
                self.require_trusted(status, name or self.names[-1])
        except BaseException:
            os.close(at)
            raise
        kept = Descriptor(at)
        kept.identity = status.st_dev, status.st_ino
        self._kept[name] = kept
        return kept

    def forget(self) -> None:
        """Open and check the root again when it is next needed."""
        self._kept = {}

    def open_root(self, *, makes: bool = False) -> int:
        """A descriptor of the root, which was checked; the caller closes it.

        Args:
            makes: Make the root and its parents if they are missing.

        Raises:
            Refused: The root is not trusted.
            OSError: The root does not exist.
        """
        if self.refusal:
            raise Refused(self.refusal)
        try:
            resolved, exposed = resolve(self._resolved or self.root, shared=self.shared, makes=makes)
            fd = os.open(resolved, FOLDER)
            try:
                status = os.fstat(fd)
                is_private = status.st_uid == os.geteuid() and not status.st_mode & 0o077
                if not is_private:  # a private root is never refused
                    self._require_root(status, exposed)
            except BaseException:
                os.close(fd)
                raise
        except Refused as error:
            self.refusal = str(error)
            raise
        self.status, self.is_private, self._resolved = status, is_private and not self.shared, resolved
        return fd

    def _require_root(self, status: os.stat_result, exposed: Sequence[tuple[str, os.stat_result]]) -> None:
        """Raise Refused if other users may have made the root, or the files in it."""
        path, mode = self.root, status.st_mode & 0o777
        for parent, above in exposed:
            is_known = above.st_uid in (0, os.geteuid(), status.st_uid) and not above.st_mode & 0o002
            if not (self.shared and is_known and above.st_gid == status.st_gid):
                use = f"below such a folder, a store must be yours and have mode 700 (this one has mode {mode:o})"
                raise Refused(
                    f"{parent} can be written by others, who may put another directory in place of {path}: {use}"
                )
        if not self.shared and status.st_uid not in (0, os.geteuid()):
            raise Refused(f"{path} belongs to user {status.st_uid}; set shared=True to trust it")
        if not self.shared and mode & 0o022:
            raise Refused(f"{path} can be written by others (mode {mode:o}); chmod 700 it or set shared=True")

    def require_trusted(self, status: os.stat_result, name: str) -> None:
        """Raise Refused if a user who is not trusted may have written to this file or folder of the tree."""
        if self.is_private:
            return
        assert self.status is not None
        mode, owners = self.status.st_mode, (0, os.geteuid(), self.status.st_uid)
        if not self.shared:
            is_bad = status.st_uid not in owners or status.st_mode & 0o022
        elif mode & 0o002:  # everybody may put files there: those of other users are not trusted
            is_bad = not stat.S_ISDIR(status.st_mode) and (status.st_uid not in owners or status.st_mode & 0o002)
        else:
            is_bad = status.st_mode & 0o002
        if is_bad:
            why = f"belongs to user {status.st_uid}, or others can write to it (mode {status.st_mode & 0o777:o})"
            raise Refused(f"{name} in {self.root} is not trusted: it {why}")

    def is_network(self) -> bool:
        """Check whether the tree is on a filesystem shared with other machines; False as long as that is not known."""
        if self._is_network is None and self.status is not None:
            self._is_network = is_network(self.status)
        return bool(self._is_network)

    @contextmanager
    def opened(self, name: str = "", shard: str = "") -> Iterator[int]:
        """Open a folder for a context, which was checked.

        Args:
            name: The tree's folder that is opened, or that it is in; "" for the tree's own folder.
            shard: The folder in that one; "" for that one itself.

        Raises:
            Refused: A folder is not trusted.
            OSError: The path does not exist, or a folder on the way is none.
        """
        fd = os.open(shard or ".", FOLDER, dir_fd=self.base(name))  # a duplicate shares its place in a listing
        try:
            if shard and not self.is_private:
                self.require_trusted(os.fstat(fd), shard)
            yield fd
        finally:
            os.close(fd)

    # Files

    def read(self, kind: int, key: str, now_ns: int | None = None) -> bytes:
        """Read a file, and renew its time of use if that is an hour old, on the network a day.

        Raises:
            ValueError: `key` is not 64 lower-case hexadecimal digits.
            Refused: The file is not trusted.
            OSError: The file cannot be read, or is itself not regular (ELOOP, ENXIO).
            DamagedEntry: The file is larger than the format allows.
        """
        if len(key) != 64 or key.strip("0123456789abcdef"):
            require_key(key)  # raises
        base = self.base(FOLDERS[kind])
        check = None if self.is_private else self.require_trusted
        fd = open_below(base, (key[:2], key[2:]), READ, check)
        try:
            status = os.fstat(fd)
            size = status.st_size
            if not stat.S_ISREG(status.st_mode):
                raise OSError(errno.ENXIO, "not a regular file")
            if size > MAX_FILE_BYTES:
                raise DamagedEntry(f"too large: {size} bytes")
            if check is not None:
                check(status, key)
            data = os.read(fd, size + 1)
            while len(data) < size and (more := os.read(fd, size + 1 - len(data))):
                data += more  # a network filesystem may return the file in parts
            age_ns = 0 if now_ns is None or status.st_nlink > 1 else abs(now_ns - status.st_mtime_ns)
            if now_ns is not None and age_ns > RECENCY_NS and (age_ns > 24 * RECENCY_NS or not self.is_network()):
                touch(fd, now_ns)
            return data
        finally:
            os.close(fd)

    def walk(self, *kinds: int) -> Iterator[FoundFile]:
        """Yield each file of these kinds; files that vanish meanwhile are skipped."""
        for kind in kinds:
            shards: list[str] = []
            with suppress(OSError), self.opened(FOLDERS[kind]) as folder:
                shards = sorted(name for name in os.listdir(folder) if len(name) == 2)
            for shard in shards:
                found: list[FoundFile] = []
                with suppress(OSError), self.opened(FOLDERS[kind], shard) as folder:
                    found = self.scan(kind, shard, folder)
                yield from found

    def scan(self, kind: int, shard: str, folder: int) -> list[FoundFile]:
        """List the files of a kind in one of its 256 folders, which is open."""
        found = []
        with os.scandir(folder) as files:
            for file in files:
                with suppress(OSError, ValueError):
                    key, status = require_key(shard + file.name), file.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode):
                        found.append(FoundFile(kind, key, self, status.st_size, status.st_mtime_ns))
        return found


def touch(fd: int, now_ns: int) -> None:
    """Set the time of use of an open file. On another user's file, utime(2) allows only the current time."""
    with suppress(OSError):  # a read-only filesystem: eviction is then less exact
        try:
            os.utime(fd, ns=(now_ns, now_ns))
        except PermissionError:
            os.utime(fd)


def identity_of(status: os.stat_result) -> tuple[int, int]:
    """Device and inode."""
    return status.st_dev, status.st_ino
