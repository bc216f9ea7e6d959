"""The entries that a user sees: a list with names and times, and a check that reports damage."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import EntryInfo, KernelCache, cached_kernel
from numba_kcache import store as entry_format
from numba_kcache.store import StoredEntry, encoding
from numba_kcache.store.listing import Problem
from tests.support.compiling import EMPTY
from tests.support.stores import file_of, key_of, open_store, small_entry

pytestmark = pytest.mark.usefixtures("compiled_once")

TWO = 'extern "C" __global__ void one(int a) {}\nextern "C" __global__ void two(float *b) {}'


def listed(cache: KernelCache) -> dict[str, EntryInfo]:
    return {each.key: each for each in cache.entries()}


def test_entries_say_what_they_are(tmp_path: Path) -> None:
    """Key, kernels, target, bytes on disk, compile time and last use of each; listing does not count as a use."""
    cache = KernelCache(tmp_path / "cache", durability="none")
    first = cached_kernel(EMPTY, arch="sm_90", cache=cache)
    second = cached_kernel(TWO, name="two", arch="sm_80", cache=cache)
    before = time.time()
    first.compile()
    second.compile()
    path = file_of(open_store(tmp_path / "cache"), first.key())
    os.utime(path, (1_700_000_000, 1_700_000_000))
    found = listed(cache)

    assert set(found) == {first.key(), second.key()}
    one, two = found[first.key()], found[second.key()]
    assert (one.kernels, one.target) == (("k",), "sm_90")
    assert (two.kernels, two.target) == (("two",), "sm_80")
    assert one.size_bytes == path.stat().st_size
    assert one.used_s == 1_700_000_000 == path.stat().st_mtime
    assert before - 1 <= two.used_s <= time.time() + 1
    assert one.compile_time_s == cache.session.memory[first.key()].compile_time_s > 0


def test_entry_without_meaning_is_not_listed(tmp_path: Path) -> None:
    """A header that says nothing, as of another version, is no error; `verify` reports it."""
    store = open_store(tmp_path / "cache")
    store.put(StoredEntry(key_of(1), {}, {"cubin": b"x"}))
    store.put(small_entry(2))

    assert list(listed(KernelCache(tmp_path / "cache"))) == [key_of(2)]


def test_verify_sets_aside_what_is_damaged_and_says_why(tmp_path: Path) -> None:
    """It returns the damaged key with the reason; sound entries stay; the next launch compiles, and then all is
    well."""
    cache = KernelCache(tmp_path / "cache", durability="none")
    kernels = [cached_kernel(source, arch="sm_90", cache=cache) for source in (EMPTY, EMPTY + " ")]
    for kernel in kernels:
        kernel.compile()
    assert cache.verify() == []
    path = file_of(open_store(tmp_path / "cache"), kernels[0].key())
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.warns(numba_kcache.KCacheWarning, match="damaged"):
        problems = cache.verify()

    assert problems == [Problem(kernels[0].key(), "the digest differs")]
    assert set(listed(cache)) == {kernels[1].key()}
    assert len(list((tmp_path / "cache" / "v1" / "quarantine").iterdir())) == 1
    cached_kernel(EMPTY, arch="sm_90", cache=KernelCache(tmp_path / "cache", durability="none")).compile()
    assert cache.verify() == []
    assert set(listed(cache)) == {each.key() for each in kernels}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda header, payloads: payloads.update(cubin=b"no code" * 99), "its code is not a cubin"),
        (lambda header, payloads: header["entries"][0].__setitem__(1, "other"), "its cubin has no kernel other"),
        (lambda header, payloads: header["entries"][0][4].clear(), "its cubin has other parameters"),
        (lambda header, payloads: header.update(target="sm_80"), "its cubin is for sm_90"),
    ],
    ids=["code", "kernel", "parameters", "target"],
)
def test_verify_sets_aside_what_its_header_belies(
    tmp_path: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None], why: str
) -> None:
    """An entry with valid digests whose header contradicts its code is moved aside and compiled again."""
    cache = KernelCache(tmp_path / "cache", durability="none")
    kernel = cached_kernel(TWO, name="one", arch="sm_90", cache=cache)
    kernel.compile()
    path = file_of(open_store(tmp_path / "cache"), kernel.key())
    entry = entry_format.decode_entry(path.read_bytes(), kernel.key())
    header, payloads = json.loads(json.dumps(entry.header)), dict(entry.payloads.items())
    change(header, payloads)
    path.write_bytes(encoding.encode_entry(entry_format.StoredEntry(kernel.key(), header, payloads)))

    with pytest.warns(numba_kcache.KCacheWarning, match="damaged"):
        problems = cache.verify()

    assert [(each.key, each.reason.startswith(why)) for each in problems] == [(kernel.key(), True)], problems
    assert not listed(cache)
    assert cache.verify() == []


def test_functions_of_the_package_are_those_of_the_process_s_cache() -> None:
    """`numba_kcache.entries()` and `.verify()`, before and after the first kernel."""
    assert list(numba_kcache.entries()) == [] == numba_kcache.verify()
    kernel = cached_kernel(EMPTY, arch="sm_90")
    kernel.compile()

    assert [each.key for each in numba_kcache.entries()] == [kernel.key()]
    assert numba_kcache.verify() == []
    assert numba_kcache.clear() == 1
    assert list(numba_kcache.entries()) == []
