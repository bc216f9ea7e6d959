"""Bundles: one file that is refused as a whole, or serves the kernels that were exported to it."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import sys
import traceback
import zipfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_128_digest

import numba_kcache
from numba_kcache import (
    BundleError,
    EntryError,
    FrozenCacheError,
    KCacheWarning,
    KernelCache,
    OptionError,
    SettingsError,
    ToolchainMissingError,
    cached_kernel,
    cached_module,
)
from numba_kcache import store as entry_frame
from numba_kcache import store as faults
from numba_kcache.headers.file_identity import FileStat
from numba_kcache.headers.lookup import without_stats
from numba_kcache.headers.roots import Place
from numba_kcache.headers.transcript import Transcript, transcript_to_json
from numba_kcache.model import Target, parse_target
from numba_kcache.store import MANIFEST, DamagedEntry, StoredEntry, decode_entry
from numba_kcache.store.encoding import encode_entry
from numba_kcache.store.writing import FAULT_POINTS
from numba_kcache.tiers import bundle as form
from numba_kcache.tiers.bundle import Bundle, BundledFile, BundleTier, assemble, open_bundle, write_bundle
from numba_kcache.tiers.trust import Trust
from tests.support.compiling import EMPTY, SAXPY, in_python
from tests.support.keying import COMPILERS, MadeUpToolchain, UnknownToolchain
from tests.support.resolving import resolutions_of
from tests.support.stores import DIGEST_BYTES, entry_of, files_below, key_of, killed_at, payload_records, sealed

pytestmark = pytest.mark.usefixtures("compiled_once")

NOBODY = Trust(())
TWO = 'extern "C" __global__ void two(int *x) { *x = 2; }'
NO_COMPILER = MadeUpToolchain({}, {})


def open_cache(directory: Path, **settings: Any) -> KernelCache:
    return KernelCache(directory, durability="none", **settings)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels, each for two targets."""
    folder = tmp_path_factory.mktemp("compiled")
    for source in (EMPTY, TWO):
        cached_kernel(source, cache=open_cache(folder)).compile(["sm_80", "compute_80"])
    return folder


@pytest.fixture
def filled(compiled: Path, tmp_path: Path) -> KernelCache:
    """A cache of the compiled kernels."""
    shutil.copytree(compiled, tmp_path / "filled")
    return open_cache(tmp_path / "filled")


@pytest.fixture
def bundle(filled: KernelCache, tmp_path: Path) -> Path:
    filled.export_bundle(tmp_path / "all.kcache")
    return tmp_path / "all.kcache"


def keys_of(cache: KernelCache) -> set[str]:
    return {each.key for each in cache.entries()}


# -- writing ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_bundle_holds_every_entry_of_the_cache(filled: KernelCache, tmp_path: Path) -> None:
    """The report lists what was exported; no other file is left beside the bundle."""
    report = filled.export_bundle(tmp_path / "all.kcache")

    assert report.entries == 4
    assert report.targets == ("compute_80", "sm_80")
    assert report.size_bytes == (tmp_path / "all.kcache").stat().st_size
    assert {each.key for each in open_bundle(report.path, NOBODY).entries} == keys_of(filled)
    assert sorted(os.listdir(tmp_path)) == ["all.kcache", "filled"]


def test_same_entries_give_the_same_bytes(filled: KernelCache, bundle: Path, tmp_path: Path) -> None:
    """The bytes depend neither on the time of the export, nor on the cache, nor on the order in which entries were
    stored."""
    other = open_cache(tmp_path / "other")
    other.import_bundle(bundle)
    (tmp_path / "mine.h").write_text("")  # the inode and times of a header are not exported either
    with_header = '#include "mine.h"\n' + EMPTY
    for cache in (filled, other):
        cached_kernel(with_header, include_dirs=[str(tmp_path)], cache=cache, arch="sm_80").compile()
    entries = [filled.session.local.get_encoded(key) for key in keys_of(filled) - keys_of(other)]
    assert entries == []
    first = filled.export_bundle(tmp_path / "1.kcache", arch="compute_80")
    second = other.export_bundle(tmp_path / "2.kcache", arch="compute_80")

    assert first.entries == second.entries == 2
    assert (tmp_path / "1.kcache").read_bytes() == (tmp_path / "2.kcache").read_bytes()
    filled.export_bundle(tmp_path / "3.kcache")
    os.utime(tmp_path / "mine.h", (1, 1))
    cached_kernel(with_header, include_dirs=[str(tmp_path)], cache=filled, arch="sm_80").compile()  # new stats
    filled.export_bundle(tmp_path / "4.kcache")
    assert (tmp_path / "3.kcache").read_bytes() == (tmp_path / "4.kcache").read_bytes()


def test_row_goes_in_without_this_machine_s_inodes() -> None:
    """Size, times, device and inode of a header mean nothing elsewhere, and would make the bytes differ."""
    place = Place(0, "mine.h")
    transcript = Transcript(1, ((-1, ""),), {place: key_of(1)}, stats={place: FileStat(1, 2, 3, 4, 5)})
    variant = {"key": key_of(2), "request": key_of(3)}

    assert without_stats({**variant, "transcript": transcript_to_json(transcript)}) == {
        **variant, "transcript": transcript_to_json(transcript._replace(stats={})),
    }  # fmt: skip
    assert without_stats(variant) == variant


@pytest.mark.slow
def test_row_of_another_version_is_left_out(filled: KernelCache, tmp_path: Path) -> None:
    """A header set that this version cannot read is exported to no bundle and no tier; everything else is."""
    key = next(iter(filled.entries())).key
    filled.session.local.add_rows("ab" * 32, {"key": key, "transcript": {"format": 99}})

    assert filled.export_bundle(tmp_path / "b.kcache").entries == 4
    assert filled.push(f"{tmp_path / 'tier'}?readonly=0").entries == 4


def test_kernels_are_chosen_by_kernel_target_and_module(tmp_path: Path) -> None:
    """A kernel selects all its entries, a module all its kernels, a list those of its members."""
    cache = open_cache(tmp_path / "cache")
    from tests.support import kernels

    one, two = cached_kernel(EMPTY, cache=cache), cached_kernel(TWO, cache=cache)
    for kernel in (one, two, cached_kernel(kernels.SAXPY, name="saxpy", cache=cache)):
        kernel.compile(["sm_80", "sm_90"])
    cached_kernel(kernels.saxpy.__wrapped__, arch="sm_90", cache=cache).compile()

    def chosen(*choice: Any, **more: Any) -> int:
        return cache.export_bundle(tmp_path / "chosen.kcache", *choice, **more).entries

    assert chosen() == 7
    assert chosen(one) == 2
    assert chosen([one, two]) == 4
    assert chosen(one, "sm_90") == 1
    assert chosen(arch=["sm_80"]) == 3
    assert chosen(kernels) == chosen("tests.support.kernels") == chosen(str(Path(kernels.__file__))) == 3


@pytest.mark.slow
def test_numba_kernel_stands_for_all_its_signatures(tmp_path: Path) -> None:
    """A Numba kernel selects its entries of all signatures, and what a start without its Numba has to know."""
    pytest.importorskip("numba.cuda")
    cache = open_cache(tmp_path / "cache")

    def fill(x: Any, value: Any) -> None:
        x[0] = value

    kernel = cached_kernel(fill, cache=cache, signature=["void(float32[::1], float32)", "void(int32[::1], int32)"])
    kernel.compile("sm_80")
    cached_kernel(EMPTY, cache=cache).compile("sm_80")

    assert cache.export_bundle(tmp_path / "all.kcache", cached_kernel(fill, cache=cache)).entries == 2 + 1


@pytest.mark.parametrize(
    ("choice", "error", "why"),
    [
        ({"arch": "sm_75"}, BundleError, "this cache has none of the requested entries"),
        ({"kernels": "no.such.module"}, EntryError, "cannot import no.such.module"),
        ({"kernels": "/no/such/file.py"}, EntryError, "there is no such file"),
        ({"kernels": "tests.support.stores"}, EntryError, "nothing in it was made by cached_kernel"),
        ({"kernels": 3}, OptionError, "cannot find kernels in 3"),
        ({"sign": True}, OptionError, "there is no key"),
    ],
)
def test_bundle_of_nothing_is_refused(
    filled: KernelCache, tmp_path: Path, choice: dict[str, Any], error: type[Exception], why: str
) -> None:
    """The error has the names that select nothing, and no file is left."""
    with pytest.raises(error, match=why):
        filled.export_bundle(tmp_path / "none.kcache", **choice)

    assert not (tmp_path / "none.kcache").exists()


def test_damaged_entry_does_not_go_in(filled: KernelCache, tmp_path: Path) -> None:
    """Entries are verified when exported; a damaged one is left out."""
    path = next(path for path in files_below(tmp_path / "filled") if "entries" in path.parts)
    path.write_bytes(path.read_bytes()[:-1])

    assert filled.export_bundle(tmp_path / "rest.kcache").entries == 3


def test_bundle_that_cannot_be_written_leaves_the_old_one(filled: KernelCache, bundle: Path, tmp_path: Path) -> None:
    """The folder does not exist, or an entry is removed while the bundle is written."""
    before = bundle.read_bytes()
    with pytest.raises(BundleError, match="No such file"):
        filled.export_bundle(tmp_path / "no" / "x.kcache")
    row = BundledFile(key_of(1), 5, key_of(2), "sm_90")
    with pytest.raises(BundleError, match="was removed or changed meanwhile"):
        write_bundle(assemble(str(bundle), [row], {}, lambda _key: None))

    assert bundle.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["all.kcache", "filled"]


# -- importing --------------------------------------------------------------------------------------------------


def test_bundle_is_on_the_disk_before_it_has_its_name(
    filled: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut leaves the old bundle or the whole new one: all bytes are synced before the rename."""
    done: list[tuple[str, int]] = []
    fsync, rename = os.fsync, os.rename
    monkeypatch.setattr(os, "fsync", lambda fd: (done.append(("fsync", os.fstat(fd).st_size)), fsync(fd)))
    monkeypatch.setattr(os, "rename", lambda *names, **at: (done.append(("rename", 0)), rename(*names, **at)))
    path = tmp_path / "kernels.kcache"

    filled.export_bundle(path)

    assert done[:2] == [("fsync", path.stat().st_size), ("rename", 0)]


def test_import_adds_entries_and_manifests(bundle: Path, tmp_path: Path) -> None:
    """The stored files are equal byte by byte; a kernel of the bundle is a hit, also where another compiler is
    installed."""
    cache = open_cache(tmp_path / "new", toolchain="any")
    report = cache.import_bundle(bundle)
    cache.session.toolchain = NO_COMPILER  # type: ignore[assignment]
    cached_kernel(EMPTY, cache=cache, arch="sm_80").compile()

    assert report.entries == len(keys_of(cache)) == 4
    assert (cache.info("process").compiles, cache.info("process").hits) == (0, 1)
    assert cache.info().entries == 4


def test_import_keeps_what_is_there(bundle: Path, tmp_path: Path) -> None:
    """An entry under the same key stays as it is; a damaged one is replaced."""
    cache = open_cache(tmp_path / "new")
    cached_kernel(EMPTY, cache=cache).compile(["sm_80", "compute_80"])
    kept, damaged = [path for path in files_below(tmp_path / "new") if "entries" in path.parts]
    before = kept.read_bytes()
    damaged.write_bytes(damaged.read_bytes()[:-1])
    cache.import_bundle(bundle)

    assert kept.read_bytes() == before
    assert cache.verify() == []
    assert len(keys_of(cache)) == cache.info().entries == 4


def refused(data: bytes, tmp_path: Path) -> str:
    """The reason for which these bytes are refused, by import and by mounting; nothing of them is stored."""
    path = tmp_path / "bad.kcache"
    path.write_bytes(data)
    cache = open_cache(tmp_path / "untouched")
    with pytest.raises(BundleError) as caught:
        cache.import_bundle(path)
    reason = str(caught.value)
    assert str(path) in reason
    with pytest.raises(BundleError):
        cache.register_bundle(path)
    assert cache.session.store is cache.session.local
    assert not (tmp_path / "untouched").exists()
    return reason


def small_bundle(tmp_path: Path) -> bytes:
    """A bundle of one tiny entry and the manifest that leads to it."""
    entry = encode_entry(entry_of(1))
    manifest = encode_entry(StoredEntry(key_of(2), {"variants": [{"key": key_of(1)}]}, {}), MANIFEST)
    row = BundledFile(key_of(1), len(entry), hashlib.sha256(entry).hexdigest(), "sm_90", ("k",))
    path = str(tmp_path / "small.kcache")
    write_bundle(assemble(path, [row], {key_of(2): manifest}, lambda _key: entry))
    return (tmp_path / "small.kcache").read_bytes()


@pytest.mark.slow
def test_changed_byte_anywhere_is_found(tmp_path: Path) -> None:
    """Each offset of a small bundle is tried: an import adds nothing, and of a mounted bundle no such file is used."""
    data = small_bundle(tmp_path)
    whole = open_bundle(str(tmp_path / "small.kcache"), NOBODY)
    head_bytes = len(data) - sum(each.size_bytes for each in (*whole.entries, *whole.manifests))
    path, cache = tmp_path / "changed.kcache", open_cache(tmp_path / "untouched")
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes((data[at] ^ (1 << at % 8),)) + data[at + 1 :])
        with pytest.raises(BundleError):
            cache.import_bundle(path)
        with pytest.raises(BundleError if at < head_bytes else DamagedEntry):
            whole_files_of(open_bundle(str(path), NOBODY))
    assert not (tmp_path / "untouched").exists()
    path.write_bytes(data)
    assert open_bundle(str(path), NOBODY).report.entries == 1


def test_open_bundle_reads_its_head_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of any size, on a slow filesystem too, costs a look-up its index and the file that it asks for."""
    small_bundle(tmp_path)
    read, taken = os.pread, list[int]()
    monkeypatch.setattr(os, "pread", lambda fd, size, at: (taken.append(size), read(fd, size, at))[1])
    opened = open_bundle(str(tmp_path / "small.kcache"), NOBODY)
    files_bytes = sum(each.size_bytes for each in (*opened.entries, *opened.manifests))

    assert sum(taken) < opened.report.size_bytes - files_bytes + 100
    assert opened.get(entry_frame.ENTRY, key_of(1)) is not None


@pytest.mark.slow
def test_program_that_closes_descriptors_loses_no_file_and_no_bundle(tmp_path: Path) -> None:
    """A daemon closes all descriptors and reuses their numbers: the bundle is reopened, its own file stays open."""
    path, other = tmp_path / "a.nkb", tmp_path / "other"
    path.write_bytes(small_bundle(tmp_path))
    other.write_bytes(b"another file")
    opened = BundleTier("a", lambda: open_bundle(str(path), NOBODY))
    key = opened.keys(entry_frame.ENTRY)[0]
    whole = opened.get(entry_frame.ENTRY, key)
    number = next(int(each) for each in os.listdir("/proc/self/fd") if target_of(each) == str(path))
    theirs = os.open(other, os.O_RDONLY)
    os.dup2(theirs, number)

    assert opened.get(entry_frame.ENTRY, key) == whole
    del opened
    assert os.pread(number, 100, 0) == b"another file"
    os.close(number)
    os.close(theirs)


def target_of(number: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        return ""


def test_truncated_bundle_is_refused(tmp_path: Path) -> None:
    """A bundle is refused at every shorter length, and with additional bytes."""
    data = small_bundle(tmp_path)
    path = tmp_path / "cut.kcache"
    for size in range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(BundleError):
            open_bundle(str(path), NOBODY)
    assert "bytes, but" in refused(data + b"\0", tmp_path)


def whole_files_of(bundle: Bundle) -> list[bytes | None]:
    entries = [bundle.get(entry_frame.ENTRY, each.key) for each in bundle.entries]
    return [*entries, *(bundle.get(MANIFEST, each.key) for each in bundle.manifests)]


def sealed_bundle(index: bytes, body: bytes, *, magic: bytes = b"\x89NKB\r\n\x1a\n", **sizes: int) -> bytes:
    """A forger's bundle: any index and files, under a digest that fits."""
    prefix = magic + b"".join((
        sizes.get("version", 2).to_bytes(2, "little"),
        sizes.get("signatures", 0).to_bytes(2, "little"),
        sizes.get("index_bytes", len(index)).to_bytes(4, "little"),
        sizes.get("files_bytes", len(body)).to_bytes(8, "little"),
    ))  # fmt: skip
    return prefix + index + xxh3_128_digest(prefix + index) + body


ENTRY = encode_entry(entry_of(1))
SHA = hashlib.sha256(ENTRY).hexdigest()


def row(
    key: str = key_of(1), size: Any = len(ENTRY), sha: str = SHA, target: str = "sm_90", names: str = '["k"]'
) -> str:
    return f'["{key}",{size},"{sha}","{target}",{names}]'


@pytest.mark.parametrize(
    ("index", "why"),
    [
        (f'{{"entries":[{row("../../../../etc/cron.d/x")}],"manifests":[]}}', "as a key"),
        (f'{{"entries":[{row("/" + key_of(1)[1:])}],"manifests":[]}}', "as a key"),
        (f'{{"entries":[{row(size=1 << 40)}],"manifests":[]}}', "a file of 1099511627776 bytes"),
        (f'{{"entries":[{row(size=-1)}],"manifests":[]}}', "a file of -1 bytes"),
        (f'{{"entries":[{row(size="1e3")}],"manifests":[]}}', "not one JSON object"),
        (f'{{"entries":[{row(size=len(ENTRY) - 1)}],"manifests":[]}}', "does not add up"),
        (f'{{"entries":[{row()},{row()}],"manifests":[]}}', "a key twice"),
        (f'{{"entries":[{row()}],"entries":[],"manifests":[]}}', "not one JSON object"),
        (f'{{"entries":[{row()}]}}', "malformed"),
        (f'{{"entries":[{row()}],"manifests":[["{key_of(2)}",1]]}}', "malformed"),
        (f'{{"entries":[{row(names="[1]")}],"manifests":[]}}', "malformed"),
        (f'{{"entries":[{row(names="null")}],"manifests":[]}}', "its index is malformed"),
        (f'{{"entries":[3,{row()}],"manifests":[]}}', "malformed"),
        ('{"entries":{},"manifests":[]}', "malformed"), ('{"entries":3,"manifests":[]}', "malformed"),
        ('{"entries":[],"manifests":null}', "malformed"),
        ("[]", "not one JSON object"),
        ("\x80\x05.", "not JSON"),
    ],
)  # fmt: skip
def test_forged_index_is_refused(tmp_path: Path, index: str, why: str) -> None:
    """Paths in place of keys, impossible sizes, rows of another shape: no memory is allocated, and nothing is
    stored."""
    assert why in refused(sealed_bundle(index.encode("latin-1"), ENTRY), tmp_path)


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"index_bytes": 1 << 31}, "are too many"),
        ({"files_bytes": 1 << 62}, "bytes, but"),
        ({"signatures": 2}, "bytes, but"),
        ({"version": 3}, "it has format 3, this version reads 2"),
        ({"magic": b"\x89NKC\r\n\x1a\n"}, "it is not a bundle"),
    ],
)
def test_forged_prefix_is_refused(tmp_path: Path, sizes: dict[str, Any], why: str) -> None:
    """Sizes in the prefix are compared with the size of the file before anything is read."""
    data = sealed_bundle(f'{{"entries":[{row()}],"manifests":[]}}'.encode(), ENTRY, **sizes)

    assert why in refused(data, tmp_path)


def test_oversized_bundle_is_refused(tmp_path: Path) -> None:
    """A sparse file above the format's limit is refused, and one above the cache's own."""
    path = tmp_path / "sparse.kcache"
    with path.open("wb") as file:
        file.write(sealed_bundle(b"{}", b"", files_bytes=(17 << 30) - 42)[:24])
        file.truncate(17 << 30)
    with pytest.raises(BundleError, match="are too many"):
        open_bundle(str(path), NOBODY)


@pytest.mark.parametrize("limit", ["MAX_INDEX_BYTES", "MAX_BUNDLE_BYTES"])
def test_bundle_that_nobody_would_read_is_not_written(
    filled: KernelCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """The limits of reading apply to writing too."""
    monkeypatch.setattr(form, limit, 10 if limit == "MAX_INDEX_BYTES" else 32 << 20)
    with pytest.raises(BundleError, match="are too many"):
        filled.export_bundle(tmp_path / "out.kcache")

    assert not (tmp_path / "out.kcache").exists()


def test_bundle_larger_than_the_cache_is_not_imported(bundle: Path, tmp_path: Path) -> None:
    """Its entries would be evicted at once."""
    cache = open_cache(tmp_path / "new", max_size_bytes=5000)
    with pytest.raises(BundleError, match="above the limit of 5000"):
        cache.import_bundle(bundle)

    assert keys_of(cache) == set()


@pytest.mark.parametrize(
    "case", ["not an entry", "another key", "no artifact", "another target", "stray manifest", "another cubin"]
)
def test_bundle_with_one_wrong_file_is_not_imported_at_all(bundle: Path, tmp_path: Path, case: str) -> None:
    """If one file is no entry of its key, although all digests are right, the sound entries are refused with it."""
    good = open_bundle(str(bundle), NOBODY)
    data = {each.key: good.get(entry_frame.ENTRY, each.key) or b"" for each in good.entries}
    rows, manifests = list(good.entries), dict[str, bytes]()
    if case == "stray manifest":
        manifests = {key_of(9): ENTRY}
    elif case == "another target":
        rows[0] = rows[0]._replace(target="sm_75")
    elif case == "another cubin":  # not the one whose sha256 the entry holds and a signature covers
        whole = data[rows[0].key]
        record = payload_records(decode_entry(whole, rows[0].key))[0]
        other = sealed(whole[:-DIGEST_BYTES].replace(record.sha256, bytes(32)))
        rows[0] = rows[0]._replace(sha256=hashlib.sha256(other).hexdigest())
        data[rows[0].key] = other
    else:
        other = {"not an entry": b"x", "another key": data[rows[1].key], "no artifact": encode_entry(entry_of(1))}[case]
        key = key_of(1) if case == "no artifact" else rows[0].key
        rows[0] = rows[0]._replace(key=key, size_bytes=len(other), sha256=hashlib.sha256(other).hexdigest())
        data[key] = other
    write_bundle(assemble(str(tmp_path / "bad.kcache"), rows, manifests, data.get))
    cache = open_cache(tmp_path / "new")
    with pytest.raises(BundleError, match="nothing was imported"):
        cache.import_bundle(tmp_path / "bad.kcache")

    assert keys_of(cache) == set()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("point", FAULT_POINTS[:-1])
def test_import_that_fails_in_the_middle_leaves_whole_entries(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The disk is full at the second file, at each step of writing it: the error has the number of those stored, no
    private file is left, and importing again completes it."""
    seen = []

    def hook(name: str) -> None:
        seen.append(name)
        if name == point and seen.count(name) == 2:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(faults, "hook", hook)
    cache = open_cache(tmp_path / "new")
    with pytest.raises(BundleError, match="the cache took 1 of 4 entries"):
        cache.import_bundle(bundle)

    assert cache.verify() == []
    assert len(keys_of(cache)) == 1
    assert [path.name for path in (tmp_path / "new" / "v1").glob("*.*")] == ["evict.lock"]
    assert open_cache(tmp_path / "new").import_bundle(bundle).entries == len(keys_of(cache)) == 4


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_import_that_is_killed_leaves_whole_entries_alone(bundle: Path, tmp_path: Path, point: str) -> None:
    """A killed import leaves only whole entries; importing again completes it."""
    cache = open_cache(tmp_path / "new")
    assert killed_at(point, lambda: cache.import_bundle(bundle))

    again = open_cache(tmp_path / "new")
    assert again.verify() == []
    assert again.import_bundle(bundle).entries == len(keys_of(again)) == 4


def test_readonly_cache_takes_no_bundle(bundle: Path, tmp_path: Path) -> None:
    """The error names the mode."""
    with pytest.raises(BundleError, match="read-only"):
        open_cache(tmp_path / "new", mode="readonly").import_bundle(bundle)


# -- mounting ---------------------------------------------------------------------------------------------------


def resolved(cache: KernelCache, device: str, source: str = EMPTY) -> Target:
    kernel = cached_kernel(source, cache=cache)
    return resolutions_of(kernel).for_device(parse_target(device)).artifact.target


@pytest.mark.parametrize("mode", ["readwrite", "frozen", "readonly"])
def test_registered_bundle_serves_without_a_compiler(bundle: Path, tmp_path: Path, mode: str) -> None:
    """It serves code for a lower minor of the device's major, or PTX, made by any NVRTC."""
    cache = open_cache(tmp_path / "new", mode=mode)
    cache.session.toolchain = NO_COMPILER  # type: ignore[assignment]
    report = cache.register_bundle(str(bundle))

    assert report.entries == 4
    assert resolved(cache, "sm_86") == Target(8, 0)
    assert resolved(cache, "sm_90a", TWO) == Target(8, 0, virtual=True)
    assert (cache.info("process").compiles, cache.info("process").hits) == (0, 2)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "toolchain", [NO_COMPILER, UnknownToolchain({}, {}), UnknownToolchain({**COMPILERS, "nvrtc": "build-id:ff"}, {})]
)
def test_registered_bundle_serves_a_module(tmp_path: Path, toolchain: Any, lazy: bool) -> None:
    """It serves a lazy module's LTO-IR and each kernel linked from it, with any compiler installed or none."""
    builder, user = open_cache(tmp_path / "1"), open_cache(tmp_path / "2")
    cached_module(EMPTY + "\n" + TWO, lazy=lazy, cache=builder).compile("sm_80")
    user.register_bundle(builder.export_bundle(tmp_path / "b.kcache").path)
    user.session.toolchain = toolchain
    module = cached_module(EMPTY + "\n" + TWO, lazy=lazy, cache=user, arch="sm_80")

    assert {name: module[name].cubin() != b"" for name in module} == {"k": True, "two": True}
    assert (user.info("process").compiles, user.info("process").misses) == (0, 0)


def test_frozen_cache_refuses_what_no_bundle_holds(bundle: Path, tmp_path: Path) -> None:
    """The device is older than all targets of the bundle, or the kernel is not in it."""
    cache = open_cache(tmp_path / "new", mode="frozen")
    cache.register_bundle(bundle)
    for source, device in ((EMPTY, "sm_75"), (SAXPY, "sm_80")):
        with pytest.raises(FrozenCacheError):
            resolved(cache, device, source)


@pytest.mark.parametrize("registered", [False, True])
def test_bundle_is_read_only(bundle: Path, tmp_path: Path, registered: bool) -> None:
    """Compiled code goes to the local directory, and nothing attempts to write to the bundle."""
    before = bundle.read_bytes()
    cache = open_cache(tmp_path / "new", **({} if registered else {"tiers": [bundle]}))
    if registered:
        cache.register_bundle(bundle)
    resolved(cache, "sm_90", SAXPY)
    (report,) = cache.session.tier_reports()

    assert bundle.read_bytes() == before
    assert len(keys_of(cache)) == 1
    assert (report.readonly, report.bytes_written, report.errors) == (True, 0, 0)


def test_bundle_that_changes_after_it_was_mounted_is_not_believed(bundle: Path, tmp_path: Path) -> None:
    """After the file is overwritten in place, a look-up is a miss with a warning, and the kernel compiles."""
    cache = open_cache(tmp_path / "new")
    cache.register_bundle(bundle)
    bundle.write_bytes(bytes(bundle.stat().st_size))
    with pytest.warns(KCacheWarning, match="it is not a bundle"):
        assert resolved(cache, "sm_80") == Target(8, 0)

    assert cache.info("process").compiles == 1


@pytest.fixture
def package(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package that carries its kernels."""
    folder = tmp_path / "site" / "carrier" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "kernels.kcache").write_bytes(bundle.read_bytes())
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield "carrier"
    sys.modules.pop("carrier", None)


def as_name(_tmp_path: Path) -> Any:
    return "carrier:data/kernels.kcache"


def as_traversable(_tmp_path: Path) -> Any:
    return files("carrier") / "data" / "kernels.kcache"


def in_a_zip(tmp_path: Path) -> Any:
    with zipfile.ZipFile(tmp_path / "wheel.zip", "w") as file:
        file.write(tmp_path / "all.kcache", "kernels.kcache")
    return zipfile.Path(tmp_path / "wheel.zip") / "kernels.kcache"


@pytest.mark.parametrize("source", [as_name, as_traversable, in_a_zip])
def test_package_carries_its_kernels(package: str, tmp_path: Path, source: Callable[[Path], Any]) -> None:
    """One line in the package's `__init__` registers them."""
    cache = open_cache(tmp_path / "new", mode="frozen")
    cache.register_bundle(source(tmp_path))

    assert resolved(cache, "sm_80") == Target(8, 0)


def test_bundles_and_resources_are_tiers_too(package: str, bundle: Path, tmp_path: Path) -> None:
    """tiers= takes both; a damaged one is a miss, one warning and a count."""
    assert resolved(open_cache(tmp_path / "1", tiers=[bundle], mode="frozen"), "sm_80") == Target(8, 0)
    named = open_cache(tmp_path / "2", tiers="carrier:data/kernels.kcache", mode="frozen")
    assert resolved(named, "sm_80") == Target(8, 0)
    bundle.write_bytes(bundle.read_bytes()[:-1])
    cache = open_cache(tmp_path / "3", tiers=[bundle])
    with pytest.warns(KCacheWarning, match="bytes, but") as said:
        assert [resolved(cache, "sm_80", source) for source in (EMPTY, TWO)] == [Target(8, 0)] * 2

    assert len(said) == 1
    assert cache.info("process").compiles == 2


@pytest.mark.parametrize("source", ["/no/such.kcache", "no_such_package:x.kcache", "json:no.kcache", "/dev/zero"])
def test_bundle_that_is_not_there_is_an_error(tmp_path: Path, source: str) -> None:
    """Registering is an explicit call of the user, so the error is raised."""
    with pytest.raises(BundleError, match="cannot use the bundle"):
        open_cache(tmp_path).register_bundle(source)
    with pytest.raises(OptionError, match="cannot find a bundle in 3"):
        open_cache(tmp_path).register_bundle(3)


def test_process_s_bundle_stays_registered(bundle: Path, tmp_path: Path) -> None:
    """After configure() and clear() kernels resolve again, and the bundle still serves them."""
    numba_kcache.register_bundle(bundle)
    for number in range(2):
        numba_kcache.configure(directory=tmp_path / f"{number}", mode="frozen")
        found = resolutions_of(cached_kernel(EMPTY))
        assert found.for_device(Target(8, 0)).artifact.target == Target(8, 0)
    numba_kcache.clear()
    assert found.for_device(Target(8, 0)).artifact.target == Target(8, 0)


def test_registering_imports_no_compiler(bundle: Path, tmp_path: Path) -> None:
    """A package registers its bundle when it is imported, which loads no CUDA, Numba or NumPy."""
    code = """
import sys, numba_kcache
numba_kcache.register_bundle(sys.argv[1])
print({"numba", "cuda", "numpy", "cryptography"} & set(sys.modules))
"""
    assert in_python(code, str(bundle), NUMBA_KCACHE_DIR=str(tmp_path / "c")).strip() == "set()"


# -- signatures -------------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, dict[str, str]]:
    """A secret key's file, and the public one under a name."""
    return make_key(tmp_path / "team.pem")


def make_key(path: Path) -> tuple[str, dict[str, str]]:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    secret = Ed25519PrivateKey.from_private_bytes(random.Random(str(path)).randbytes(32))
    path.write_bytes(secret.private_bytes(s.Encoding.PEM, s.PrivateFormat.PKCS8, s.NoEncryption()))
    public = secret.public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
    return str(path), {path.stem: public.decode().splitlines()[1]}


def test_signed_bundle_is_believed_and_others_are_not(
    filled: KernelCache, bundle: Path, tmp_path: Path, keys: tuple[str, dict[str, str]]
) -> None:
    """Unsigned, signed by another key, or with another bundle's signature: refused whole, with the reason."""
    secret, trusted = keys
    other, _ = make_key(tmp_path / "other.pem")
    signer = open_cache(tmp_path / "filled", signing_key=secret)
    report = signer.export_bundle(tmp_path / "signed.kcache")
    open_cache(tmp_path / "filled", signing_key=other).export_bundle(tmp_path / "theirs.kcache")
    signer.export_bundle(tmp_path / "part.kcache", arch="sm_80")
    whole, part = ((tmp_path / name).read_bytes() for name in ("signed.kcache", "part.kcache"))
    ends = [24 + int.from_bytes(each[12:16], "little") for each in (whole, part)]  # of prefix and index
    swapped = part[: ends[1]] + whole[ends[0] : ends[0] + 72]
    swapped += xxh3_128_digest(swapped) + part[ends[1] + 72 + 16 :]
    (tmp_path / "swapped.kcache").write_bytes(swapped)

    def use(name: str) -> Any:
        cache = open_cache(tmp_path / "new", trusted_keys=trusted)
        cache.register_bundle(tmp_path / name)
        return open_cache(tmp_path / "new", trusted_keys=trusted).import_bundle(tmp_path / name)

    assert use("signed.kcache").signed_by == "team"
    assert re.fullmatch(r"[0-9a-f]{16}", report.signed_by)
    assert open_bundle(str(tmp_path / "signed.kcache"), NOBODY).report.signed_by == report.signed_by
    for name, why in (
        ("all.kcache", "it is not signed"),
        ("theirs.kcache", "which is not a trusted key"),
        ("swapped.kcache", "the signature of team does not match these bytes"),
    ):
        with pytest.raises(BundleError, match=why):
            use(name)
    assert open_cache(tmp_path / "anyone").import_bundle(tmp_path / "signed.kcache").entries == 4


def test_signer_imports_no_unsigned_bundle(
    filled: KernelCache, bundle: Path, tmp_path: Path, keys: tuple[str, dict[str, str]]
) -> None:
    """The next export would sign its entries. A bundle that the signer itself signed is imported."""
    open_cache(tmp_path / "filled", signing_key=keys[0]).export_bundle(tmp_path / "signed.kcache")
    signer = open_cache(tmp_path / "new", signing_key=keys[0])

    with pytest.raises(BundleError, match="it is not signed"):
        signer.import_bundle(bundle)
    assert re.fullmatch(r"[0-9a-f]{16}", signer.import_bundle(tmp_path / "signed.kcache").signed_by)


def test_signer_signs_nothing_that_was_imported_unsigned(
    filled: KernelCache, bundle: Path, tmp_path: Path, keys: tuple[str, dict[str, str]]
) -> None:
    """Neither export nor `push` signs entries of an unsigned bundle that was imported before the signing key was
    set."""
    open_cache(tmp_path / "new").import_bundle(bundle)
    signer = open_cache(tmp_path / "new", signing_key=keys[0])

    with pytest.raises(BundleError, match="entries that arrived unsigned are not exported"):
        signer.export_bundle(tmp_path / "signed.kcache")
    assert signer.push(str(tmp_path / "share")).entries == 0
    cached_kernel(EMPTY, cache=signer).compile(["sm_80"])
    assert signer.info("process").compiles == 1
    assert signer.export_bundle(tmp_path / "signed.kcache").entries == 1


def test_signed_bundle_is_the_same_each_time(
    filled: KernelCache, tmp_path: Path, keys: tuple[str, dict[str, str]]
) -> None:
    """Ed25519 signatures are deterministic."""
    signer = open_cache(tmp_path / "filled", signing_key=keys[0])
    for name in ("1", "2"):
        signer.export_bundle(tmp_path / name, sign=True)

    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert signer.export_bundle(tmp_path / "3", sign=False).signed_by == ""


def test_signed_bundle_as_tier_is_held_against_the_keys(
    filled: KernelCache, bundle: Path, tmp_path: Path, keys: tuple[str, dict[str, str]]
) -> None:
    """An unsigned one in tiers= is a miss, as is a registered one once trusted_keys are configured."""
    cache = open_cache(tmp_path / "new", tiers=[bundle], trusted_keys=keys[1])
    with pytest.warns(KCacheWarning, match="it is not signed"):
        resolved(cache, "sm_80")
    assert cache.info("process").compiles == 1
    numba_kcache.register_bundle(bundle)
    numba_kcache.configure(trusted_keys=keys[1])
    with pytest.warns(KCacheWarning, match="it is not signed"):
        resolutions_of(cached_kernel(EMPTY)).for_device(Target(8, 0))


def test_bundle_whose_signature_cannot_be_checked_is_read_once(
    filled: KernelCache, tmp_path: Path, keys: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `cryptography`, later misses neither read the bundle again nor lengthen the error's traceback."""
    open_cache(tmp_path / "filled", signing_key=keys[0]).export_bundle(tmp_path / "signed.kcache")
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    opened, frames = [], []

    def opening() -> Bundle:
        opened.append(True)
        return open_bundle(str(tmp_path / "signed.kcache"), Trust((), keys[0]))

    tier = BundleTier("signed", opening)
    for _ in range(3):
        with pytest.raises(ToolchainMissingError) as caught:
            tier.get(MANIFEST, "0" * 64)
        frames.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(opened) == 1
    assert frames[1] == frames[2]


def test_package_that_fails_to_import_carries_no_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception of the package's own code becomes a BundleError with its text."""
    (tmp_path / "broken_carrier").mkdir()
    (tmp_path / "broken_carrier" / "__init__.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(BundleError, match="not today"):
        open_cache(tmp_path / "new").import_bundle("broken_carrier:kernels.kcache")


@pytest.mark.parametrize("text", ["", "not a key", "-----BEGIN PRIVATE KEY-----\nxx\n-----END PRIVATE KEY-----"])
def test_bad_signing_key_is_a_settings_error(filled: KernelCache, tmp_path: Path, text: str) -> None:
    """The error comes when something is signed, and says how to make a key; it shows nothing of the file."""
    pytest.importorskip("cryptography")
    (tmp_path / "bad.pem").write_text(text)
    cache = open_cache(tmp_path / "filled", signing_key=tmp_path / "bad.pem")
    with pytest.raises(SettingsError, match="cannot use signing_key = ") as caught:
        cache.export_bundle(tmp_path / "x.kcache")

    assert "openssl genpkey" in caught.value.hint
