"""`push` and `pull`: entries between a cache and its tiers, with a real Redis server and with directories."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KCacheError, KernelCache, SettingsError, cached_kernel
from numba_kcache.cli import main
from numba_kcache.store import ENTRY
from numba_kcache.tiers.directory import DirectoryTier
from tests.support.compiling import EMPTY
from tests.support.redis_server import MISSING, free_port, redis_server
from tests.support.stores import DIGEST_BYTES, file_of, files_below, sealed

HEADED = '#include "two.h"\nextern "C" __global__ void k(int *x) { *x = TWO; }'


@pytest.fixture(params=["directory", "redis"])
def tier(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Make an empty tier, in each of the ways to name one."""
    if request.param == "directory":
        yield str(tmp_path / "share")
        return
    if MISSING:
        pytest.skip(MISSING)
    with redis_server(tmp_path / "redis") as server:
        yield server.url


@pytest.fixture
def filled(tmp_path: Path) -> KernelCache:
    """A cache with a kernel for two targets, and one that includes a header."""
    cache = KernelCache(tmp_path / "filled", durability="none")
    cached_kernel(EMPTY, cache=cache).compile(["sm_80", "sm_90"])
    compiled_with_header(tmp_path, cache)
    return cache


def compiled_with_header(tmp_path: Path, cache: KernelCache) -> None:
    (tmp_path / "include").mkdir(exist_ok=True)
    (tmp_path / "include" / "two.h").write_text("#define TWO 2\n")
    cached_kernel(HEADED, cache=cache, include_dirs=[str(tmp_path / "include")]).compile("sm_90")


def counts(cache: KernelCache) -> tuple[int, int]:
    return cache.info("process").compiles, cache.info("process").hits


def test_tier_that_was_pushed_to_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`push` and `pull` let go of their connections at once, not at the end of the process."""
    opened: list[weakref.ref[DirectoryTier]] = []
    real = DirectoryTier.__init__

    def init(tier: DirectoryTier, *given: Any, **named: Any) -> None:
        real(tier, *given, **named)
        opened.append(weakref.ref(tier))

    monkeypatch.setattr(DirectoryTier, "__init__", init)
    cache = KernelCache(tmp_path / "own", durability="none")
    cached_kernel(EMPTY, arch="sm_90", cache=cache).compile()
    gc.disable()
    try:
        assert cache.push(str(tmp_path / "share")).entries == 1
        assert KernelCache(tmp_path / "other", durability="none").pull(str(tmp_path / "share")).entries == 1
        assert [each() for each in opened] == [None, None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_what_is_pushed_is_pulled(filled: KernelCache, tier: str, tmp_path: Path) -> None:
    """Bytes are equal; the kernel with a header is found by its manifest. A second push or pull moves nothing."""
    pushed = filled.push(tier)
    other = KernelCache(tmp_path / "other", durability="none")
    pulled = other.pull(tier)

    assert (pushed.entries, pushed.present, pushed.failed) == (3, 0, 0)
    assert (pulled.entries, pulled.present, pulled.failed) == (3, 0, 0)
    assert pulled.size_bytes == pushed.size_bytes > 0
    for key in (each.key for each in filled.entries()):
        assert file_of(other.session.local, key).read_bytes() == file_of(filled.session.local, key).read_bytes()
    cached_kernel(EMPTY, cache=other).compile("sm_80")
    compiled_with_header(tmp_path, other)
    assert counts(other) == (0, 2)
    assert filled.push(tier)[1:] == (0, 0, 3, 0)
    assert other.pull(tier)[1:] == (0, 0, 3, 0)


@pytest.mark.slow
def test_this_machine_s_record_of_compilers_stays_here(filled: KernelCache, tmp_path: Path) -> None:
    """Only entries and their manifests are pushed."""
    filled.push(str(tmp_path / "share"))

    assert b"toolchain" not in b"".join(path.read_bytes() for path in files_below(tmp_path / "share"))


@pytest.mark.parametrize("change", ["damaged", "replaced", "removed"])
def test_entry_that_changes_after_it_was_verified_is_not_pushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """The entry counts as failed, and the others are pushed: only verified bytes are sent, or signed."""
    cache = KernelCache(tmp_path / "own", durability="none")
    cached_kernel(EMPTY, cache=cache).compile(["sm_80", "sm_90"])
    put, last = DirectoryTier.put, file_of(cache.session.local, max(each.key for each in cache.entries()))
    data = last.read_bytes()

    def put_and_change(*arguments: Any) -> Any:
        if change == "removed":
            last.unlink(missing_ok=True)
        else:
            last.write_bytes(data[:-1] if change == "damaged" else sealed(data[: -DIGEST_BYTES - 1] + b"x"))
        return put(*arguments)

    monkeypatch.setattr(DirectoryTier, "put", put_and_change)
    moved = cache.push(str(tmp_path / "share"))

    assert (moved.entries, moved.failed) == (1, 1)


@pytest.mark.slow
def test_damaged_entry_is_not_pulled(filled: KernelCache, tmp_path: Path) -> None:
    """The others are pulled; the damaged one is counted."""
    share = str(tmp_path / "share")
    filled.push(share)
    damaged = next(iter(DirectoryTier(share).keys(ENTRY)))
    path = Path(share) / "v1" / "entries" / damaged[:2] / damaged[2:]
    path.write_bytes(path.read_bytes()[:-1])
    other = KernelCache(tmp_path / "other", durability="none")

    assert other.pull(share)[1:2] + other.pull(share)[3:] == (2, 2, 1)


@pytest.fixture
def pull_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[str], str], Any]:
    """Pull one entry of a directory which lists other names, too, and may then fail."""
    cache, keys = KernelCache(tmp_path / "own", durability="none"), DirectoryTier.keys
    cached_kernel(EMPTY, arch="sm_90", cache=cache).compile()
    cache.push(str(tmp_path / "share"))

    def pull(names: Iterable[str], error: str = "") -> Any:
        def listed(tier: DirectoryTier, kind: int) -> Iterator[str]:
            yield from keys(tier, kind)
            yield from names
            if error:
                raise OSError(error)

        monkeypatch.setattr(DirectoryTier, "keys", listed)
        return KernelCache(tmp_path / "other", durability="none").pull(str(tmp_path / "share"))

    return pull


def test_names_in_a_tier_that_are_no_keys_are_passed_over(pull_of: Callable[..., Any]) -> None:
    """A bucket, or a shared Redis, has other files too."""
    key = "0123456789abcdef" * 4

    pulled = pull_of(["README", key.upper(), "g" * 64, f"../{key[3:]}", ""])

    assert (pulled.entries, pulled.failed) == (1, 0)


def test_listing_that_ends_in_an_error_is_not_taken_for_a_whole_one(pull_of: Callable[..., Any]) -> None:
    """The names before the error are no list of all."""
    with pytest.raises(KCacheError, match=r"cannot pull from .*: reset"):
        pull_of([], "reset")


@pytest.mark.slow
def test_verbs_move_and_say_so(
    filled: KernelCache, tier: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`numba-kcache push` and `pull`, with --json and without."""
    assert main(["push", "--directory", filled.directory, "--json", tier]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == 3
    assert main(["pull", "--directory", str(tmp_path / "other"), tier]) == 0
    assert "copied 3 entries from" in capsys.readouterr().out


@pytest.mark.slow
def test_info_verb_shows_whether_each_tier_answers(
    filled: KernelCache, tier: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reachability, latency, hits, misses, errors and bytes of all processes; an unreachable tier is shown as such."""
    filled.push(tier)
    assert filled.info("process").tiers == ()  # the tier was an argument, not a setting
    filled.session.save_counts()  # as at the end of a process
    away = f"redis://127.0.0.1:{free_port()}/0"
    monkeypatch.setenv("NUMBA_KCACHE_TIERS", f"{tier},{away}")
    assert main(["info", "--directory", filled.directory]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "  tier" in line]

    assert tier in lines[0]
    assert "answers in" in lines[0]
    assert "0 hits, 0 misses, 0 errors, 0 B read, " in lines[0]
    assert "KiB written" in lines[0]
    assert f"{away}: does not answer" in lines[1]


def test_no_tier_is_an_error_that_says_so(tmp_path: Path) -> None:
    """It is an error if no tier is set or named, if it is read-only or does not answer, or if the mode forbids it."""
    cache = KernelCache(tmp_path / "a", tiers=str(tmp_path))
    with pytest.raises(KCacheError, match="cannot push: no writable tier is set"):
        cache.push()
    with pytest.raises(SettingsError, match="cannot use the tier 'redis://cache/0': redis://cache/0 takes readonly"):
        cache.push("redis://cache/0?timout=3")
    with pytest.raises(KCacheError, match="cannot pull: no tier is set"):
        KernelCache(tmp_path / "a").pull()
    with pytest.raises(KCacheError, match="cannot pull from redis://127"):
        cache.pull(f"redis://:codswallop@127.0.0.1:{free_port()}/0")
    with pytest.raises(KCacheError, match="missing: No such file or directory"):
        cache.pull(str(tmp_path / "missing"))
    with pytest.raises(KCacheError, match="mode readonly"):
        KernelCache(tmp_path / "a", mode="readonly").pull(str(tmp_path))
