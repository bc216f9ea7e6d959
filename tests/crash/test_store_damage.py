"""Any byte of a stored file may change, and any other object may be in its place: always a counted miss."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from numba_kcache.model import EventKind
from numba_kcache.store import ENTRY, MANIFEST, DamagedEntry, StoredEntry, decode_entry
from numba_kcache.store.encoding import encode_entry
from tests.support.stores import Events, entry_of, file_of, key_of, open_store, sealed, small_entry, use_every_verb

FILES = {
    "entry": (ENTRY, encode_entry(entry_of(1))),
    "manifest": (MANIFEST, encode_entry(StoredEntry(key_of(1), {"variants": [{"key": "a"}]}, {}), MANIFEST)),
}


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(name: str) -> None:
    """Each bit of each byte alone, and all bits of each byte."""
    kind, data = FILES[name]
    for offset in range(len(data)):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            flipped = bytearray(data)
            flipped[offset] ^= mask
            with pytest.raises(DamagedEntry):
                decode_entry(bytes(flipped), key_of(1), kind)


@pytest.mark.parametrize("name", FILES)
def test_every_truncation_is_found(name: str) -> None:
    """Truncation is found at every length, with nothing, zeros or other bytes after it."""
    kind, data = FILES[name]
    for length in range(len(data)):
        for torn in (data[:length], data[:length].ljust(len(data), b"\0"), data[:length] + data):
            if torn != data:
                with pytest.raises(DamagedEntry):
                    decode_entry(torn, key_of(1), kind)


def test_every_flipped_byte_on_disk_is_a_counted_miss_that_heals(tmp_path: Path) -> None:
    """The store returns None and emits one event, and the next put makes it a hit again."""
    events = Events()
    store = open_store(tmp_path / "cache", emit=events)
    store.put(small_entry(1))
    path = file_of(store, key_of(1))
    data = path.read_bytes()
    for offset in range(len(data)):
        events.clear()
        path.write_bytes(data[:offset] + bytes([data[offset] ^ 0xFF]) + data[offset + 1 :])

        assert store.get(key_of(1)) is None
        assert [event.kind for event in events] == [EventKind.DAMAGED]
        assert store.put(small_entry(1))
        assert store.get(key_of(1)) == small_entry(1)


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"x")


def _symlink(path: Path) -> None:
    target = path.with_name("elsewhere")
    path.rename(target)
    path.symlink_to(target)


def _dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("/nonexistent/elsewhere")


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


def _another(path: Path) -> None:
    path.write_bytes(encode_entry(small_entry(2)))


def _manifest(path: Path) -> None:
    path.write_bytes(encode_entry(small_entry(1), MANIFEST))


def _socket(path: Path) -> None:
    import socket

    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is at most 108 bytes long
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(here)


def _device(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make a device")
    path.unlink()
    os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero: bytes without end


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _claims_much(path: Path) -> None:
    body = bytearray(path.read_bytes()[:-16])
    body[16:24] = (1 << 63).to_bytes(8, "little")
    path.write_bytes(sealed(bytes(body)))


@pytest.mark.parametrize(
    "plant",
    [
        _directory,
        _symlink,
        _dangling,
        _fifo,
        _socket,
        _device,
        _sparse,
        _another,
        _manifest,
        _empty,
        _claims_much,
    ],
)
def test_what_is_no_entry_is_a_miss_that_heals(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    """Under the entry's name is a directory, link, pipe, socket, device, a sparse terabyte, or another sound file."""
    events = Events()
    store = open_store(tmp_path / "cache", emit=events)
    store.put(small_entry(1))
    path = file_of(store, key_of(1))
    plant(path)
    events.clear()

    assert store.get(key_of(1)) is None

    assert [event.kind for event in events] == [EventKind.DAMAGED]
    assert store.put(small_entry(1))
    assert store.get(key_of(1)) == small_entry(1)
    assert store.verify() == [] or plant is _symlink


@pytest.mark.parametrize("plant", [_directory, _symlink, _dangling, _fifo, _socket])
def test_put_replaces_whatever_is_in_its_place(tmp_path: Path, plant: Callable[[Path], None]) -> None:
    """No look-up comes first, as in `refresh` mode."""
    store = open_store(tmp_path / "cache")
    store.put(small_entry(1))
    plant(file_of(store, key_of(1)))

    assert store.put(small_entry(1))
    assert store.get(key_of(1)) == small_entry(1)


@pytest.mark.parametrize(
    "folder", ["entries", "manifests", "records", "tmp", "locks", "statistics", "quarantine", "evict.lock", "."]
)
@pytest.mark.parametrize("plant", ["file", "fifo", "link"])
def test_what_replaces_a_folder_never_raises(tmp_path: Path, folder: str, plant: str) -> None:
    """Any part of the tree is replaced by another object: misses and events, no exception, no blocking."""
    store = open_store(tmp_path / "cache")
    store.put(small_entry(1))
    store.counters.add({"hits": 1})
    path = tmp_path / "cache" / "v1" / folder
    if path.exists():
        path.rename(tmp_path / "away")
    if plant == "file":
        path.write_bytes(b"")
    elif plant == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/nonexistent")

    use_every_verb(open_store(tmp_path / "cache"))
