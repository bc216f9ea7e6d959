"""Another cache's directory as a tier."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from numba_kcache.store import ENTRY, MANIFEST, DamagedEntry
from numba_kcache.store.encoding import encode_entry
from numba_kcache.tiers.directory import DirectoryTier
from tests.support.stores import Events, entry_of, file_of, files_below, key_of, open_store
from tests.support.tiers import Chain

VARIANT = {"key": key_of(1)}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A cache with one entry and one manifest."""
    store = open_store(tmp_path / "filled")
    store.put(entry_of(1))
    store.add_rows(key_of(9), VARIANT)
    return tmp_path / "filled"


def test_hands_over_the_files_as_they_are(filled: Path) -> None:
    """The bytes are those of the file; a missing file gives None."""
    tier = DirectoryTier(str(filled))

    assert tier.get(ENTRY, key_of(1)) == encode_entry(entry_of(1))
    assert tier.get(MANIFEST, key_of(9)) == file_of(open_store(filled), key_of(9), "manifests").read_bytes()
    assert tier.get(ENTRY, key_of(2)) is tier.get(MANIFEST, key_of(8)) is None


def test_path_that_is_no_utf_8_is_a_tier_like_another(tmp_path: Path) -> None:
    """The raw bytes of the name are in no file and in no name of a counter."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xff\xfe")
    open_store(Path(path)).put(entry_of(1))
    chain = Chain(open_store(tmp_path / "local"), [DirectoryTier(path)], Events())

    assert chain.get(key_of(1)) == entry_of(1)
    assert json.dumps(chain.counts).isascii()


def test_reading_changes_nothing(filled: Path) -> None:
    """No file and no byte changes, and no time, not even that of last use."""
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_below(filled)}
    DirectoryTier(str(filled)).get(ENTRY, key_of(1))

    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_below(filled)} == before


def test_absent_directory_is_trouble_each_time(tmp_path: Path) -> None:
    """The error comes each time, since a share may be mounted later."""
    tier = DirectoryTier(str(tmp_path / "later"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            tier.get(ENTRY, key_of(1))
    open_store(tmp_path / "later").put(entry_of(1))

    assert tier.get(ENTRY, key_of(1)) is not None


def test_directory_that_others_can_write_is_refused_unless_shared(filled: Path) -> None:
    """The contents of the directory become code on the GPU."""
    filled.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by others"):
        DirectoryTier(str(filled)).get(ENTRY, key_of(1))

    assert DirectoryTier(str(filled), shared=True).get(ENTRY, key_of(1)) is not None


def test_huge_file_is_not_read(filled: Path) -> None:
    """A sparse file of two GiB is refused by its size."""
    path = file_of(open_store(filled), key_of(2))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(2 << 30)
    with pytest.raises(DamagedEntry, match="too large"):
        DirectoryTier(str(filled)).get(ENTRY, key_of(2))


def test_writable_directory_takes_what_another_cache_reads(tmp_path: Path) -> None:
    """The directory is made at the first put; another cache finds entry and manifest, and no other file is left."""
    tier = DirectoryTier(str(tmp_path / "share"), durability="none")
    tier.readonly = False
    source = open_store(tmp_path / "source")
    source.add_rows(key_of(9), VARIANT)
    tier.put(ENTRY, key_of(1), encode_entry(entry_of(1)))
    tier.put(MANIFEST, key_of(9), file_of(source, key_of(9), "manifests").read_bytes())
    reader = open_store(tmp_path / "share")

    assert reader.get(key_of(1)) == entry_of(1)
    assert reader.get_manifest(key_of(9)) == [VARIANT]
    assert list((tmp_path / "share" / "v1").glob("*.*")) == []


def test_key_that_is_a_path_never_reaches_the_disk(filled: Path) -> None:
    """Every operation refuses such a key."""
    with pytest.raises(ValueError, match="cannot use"):
        DirectoryTier(str(filled)).get(ENTRY, "../" * 20 + "etc/passwd")
