"""The entry of a tier that serves a kernel: the requested one, another compiler's, or one for another target."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import numba_kcache
from numba_kcache import FrozenCacheError, KCacheWarning, KernelCache, UnknownTargetError, cached_kernel, frontends
from numba_kcache.model import Choice, Event, EventKind, Target, parse_target
from tests.support.compiling import EMPTY, SAXPY, in_python
from tests.support.keying import MadeUpToolchain, UnknownToolchain
from tests.support.resolving import resolutions_of
from tests.support.stores import files_below
from tests.support.tiers import MemoryTier

pytestmark = pytest.mark.usefixtures("compiled_once")

OTHERS = MadeUpToolchain({"nvrtc": "build-id:ff", "nvrtc-builtins": "build-id:ff"}, {"numba": "9", "numba-cuda": "9"})
NONE = MadeUpToolchain({}, {})


def open_cache(directory: Path, compilers: Any = None, **settings: Any) -> KernelCache:
    cache = KernelCache(directory, durability="none", **settings)
    if compilers is not None:
        cache.session.toolchain = compilers
    return cache


def fill(directory: Path, *arches: str, source: str = SAXPY) -> Path:
    """A cache with a kernel stored for these targets."""
    cached_kernel(source, cache=open_cache(directory)).compile(list(arches))
    return directory


def launched(cache: KernelCache, device: str, source: str = SAXPY, **options: Any) -> Target:
    """The target of the code that a launch on this device would get."""
    kernel = cached_kernel(source, cache=cache, **options)
    return resolutions_of(kernel).for_device(parse_target(device)).artifact.target


def counts(cache: KernelCache) -> tuple[int, int]:
    """Compiles and hits of this process."""
    info = cache.info("process")
    return info.compiles, info.hits


def test_tier_serves_what_the_local_store_lacks(tmp_path: Path) -> None:
    """One hit, no compile; the next process finds it locally, with the tier gone."""
    image = fill(tmp_path / "image", "sm_90")
    cache = open_cache(tmp_path / "local", tiers=[image])
    events: list[Event] = []
    cache.subscribe(events.append)

    assert launched(cache, "sm_90") == Target(9, 0)
    assert counts(cache) == (0, 1)
    assert [event.fields["source"] for event in events if event.kind is EventKind.HIT] == ["tier"]
    again = open_cache(tmp_path / "local")
    launched(again, "sm_90")
    assert counts(again) == (0, 1)


def test_server_is_not_asked_for_what_is_here(tmp_path: Path) -> None:
    """Without a compiler, any usable entry of the local store is served before a read-only server is queried."""
    cache = open_cache(fill(tmp_path / "local", "sm_90"), UnknownToolchain({}, {}))
    server = MemoryTier(readonly=True, is_remote=True)
    cache.session.mount(server)

    assert launched(cache, "sm_90a") == Target(9, 0)
    assert server.asked == []
    assert counts(cache) == (0, 1)


@pytest.mark.slow
def test_compile_is_handed_on_to_a_writable_directory(tmp_path: Path) -> None:
    """In a team's share one process compiles and the other gets a hit, also for a kernel with a header."""
    (tmp_path / "mine.h").write_text("#define TWO 2\n")
    header = '#include "mine.h"\nextern "C" __global__ void k(int *x) { *x = TWO; }'
    for number in (0, 1):
        cache = open_cache(tmp_path / f"{number}", tiers=f"{tmp_path}/share?readonly=0")
        for source in (SAXPY, header):
            launched(cache, "sm_90", source, include_dirs=[str(tmp_path)])
        assert counts(cache) == ((0, 2) if number else (2, 0))


def test_compiler_record_of_this_machine_is_not_handed_on(tmp_path: Path) -> None:
    """A tier gets entries and their manifests, but not the path of NVRTC on this machine."""
    cache, tier = open_cache(tmp_path / "local"), MemoryTier()
    cache.session.mount(tier)
    launched(cache, "sm_90")

    assert [name for name, _ in tier.asked if name.startswith("put")] == ["put", "put"]


@pytest.mark.parametrize("toolchain", [OTHERS, NONE])
def test_read_only_tier_serves_any_compiler_s_code(tmp_path: Path, toolchain: MadeUpToolchain) -> None:
    """Code of another NVRTC is served, with or without a compiler here: the driver loads it equally."""
    cache = open_cache(tmp_path / "local", toolchain, tiers=[fill(tmp_path / "image", "sm_90")])

    assert launched(cache, "sm_90") == Target(9, 0)
    assert counts(cache) == (0, 1)


def test_other_compiler_s_code_from_a_tier_is_found_here_by_the_next_process(tmp_path: Path) -> None:
    """Entry and variant are kept locally: without the tier, a process with toolchain="any" finds the code."""
    tiers = [fill(tmp_path / "image", "sm_90")]
    first = open_cache(tmp_path / "local", OTHERS, tiers=tiers)
    launched(first, "sm_90")

    again = open_cache(tmp_path / "local", OTHERS, toolchain="any")
    launched(again, "sm_90")

    assert (counts(first), counts(again)) == ((0, 1), (0, 1))


def test_tier_that_is_written_to_serves_other_compilers_code_if_asked(tmp_path: Path) -> None:
    """For nodes with several toolkits; `explain` says beforehand what is served."""
    tiers = f"{fill(tmp_path / 'share', 'sm_90')}?readonly=0"
    exact, lenient = (open_cache(tmp_path / way, OTHERS, tiers=tiers, toolchain=way) for way in ("exact", "any"))
    told = [cached_kernel(SAXPY, arch="sm_90", cache=cache).explain() for cache in (exact, lenient)]
    launched(lenient, "sm_90")

    assert [(each.outcome, each.source) for each in told] == [("miss", ""), ("hit", "tier")]
    assert counts(lenient) == (0, 1)


@pytest.mark.parametrize("mode", ["frozen", "readwrite"])
def test_stand_ins_are_explained_as_they_are_served(tmp_path: Path, mode: str) -> None:
    """Code for a lower minor comes from the cache itself if nothing may be compiled, else only from read-only tiers."""
    image = fill(tmp_path / "image", "sm_80")

    def told(**settings: Any) -> str:
        cache = open_cache(tmp_path / "image" if "tiers" not in settings else tmp_path / "own", mode=mode, **settings)
        kernel = cached_kernel(SAXPY, cache=cache)
        choice = Choice(parse_target("sm_86"), fallbacks=lambda: (parse_target("sm_80"),))
        return str(resolutions_of(kernel).explain(choice, None).outcome)

    is_frozen = mode == "frozen"
    assert told() == ("hit" if is_frozen else "miss")
    assert told(tiers=[image]) == "hit"
    assert told(tiers=f"{image}?readonly=0") == ("hit" if is_frozen else "miss")


@pytest.mark.slow
def test_read_only_tier_serves_any_compiler_s_code_with_headers(tmp_path: Path) -> None:
    """The user's headers must be unchanged; a changed one is a miss."""
    (tmp_path / "mine.h").write_text("#define TWO 2\n")
    source = '#include "mine.h"\nextern "C" __global__ void k(int *x) { *x = TWO; }'
    options = {"include_dirs": [str(tmp_path)]}
    cached_kernel(source, cache=open_cache(tmp_path / "image"), **options).compile("sm_90")
    cache = open_cache(tmp_path / "local", tiers=[tmp_path / "image"], toolchain="any")

    launched(cache, "sm_90", source, **options)
    assert counts(cache) == (0, 1)
    (tmp_path / "mine.h").write_text("#define TWO 3\n")
    cache = open_cache(tmp_path / "local2", tiers=[tmp_path / "image"])
    launched(cache, "sm_90", source, **options)
    assert counts(cache) == (1, 0)


def test_writable_tier_serves_the_same_compiler_alone(tmp_path: Path) -> None:
    """Code of another NVRTC is compiled again: a writable tier is searched with the exact key."""
    fill(tmp_path / "share", "sm_90")
    cache = open_cache(tmp_path / "local", OTHERS, tiers=f"{tmp_path}/share?readonly=0")

    assert launched(cache, "sm_90") == Target(9, 0)
    assert counts(cache) == (1, 0)


@pytest.mark.parametrize(
    ("stored", "device", "served"),
    [
        (["sm_90"], "sm_90a", "sm_90"),
        (["sm_80", "sm_86", "compute_80"], "sm_89", "sm_86"),
        (["sm_80", "compute_75"], "sm_89", "sm_80"),
        (["sm_80", "compute_75", "compute_80"], "sm_90a", "compute_80"),
        (["compute_75"], "sm_121a", "compute_75"),
        (["sm_100f"], "sm_103a", "sm_100f"),
    ],
)
def test_read_only_tier_serves_what_the_device_runs(
    tmp_path: Path, stored: list[str], device: str, served: str
) -> None:
    """The highest lower minor of the same major comes first, then the newest PTX; nothing is compiled."""
    cache = open_cache(tmp_path / "local", tiers=[fill(tmp_path / "image", *stored)])

    assert launched(cache, device) == parse_target(served)
    assert counts(cache) == (0, 1)


@pytest.mark.parametrize("stored", ["sm_89", "sm_103", "compute_103", "sm_100a"])
def test_code_that_the_device_does_not_run_is_not_served(tmp_path: Path, stored: str) -> None:
    """Another major, a later minor, newer PTX, or another chip's own features."""
    cache = open_cache(tmp_path / "local", tiers=[fill(tmp_path / "image", stored, source=EMPTY)])

    assert launched(cache, "sm_100" if stored != "sm_100a" else "sm_103", EMPTY).name != stored
    assert counts(cache) == (1, 0)


def test_local_store_and_writable_tiers_have_no_stand_ins(tmp_path: Path) -> None:
    """A machine that can compile makes code for the device's own target."""
    fill(tmp_path / "local", "sm_80", "compute_80")
    fill(tmp_path / "share", "sm_80", "compute_80")
    cache = open_cache(tmp_path / "local", tiers=f"{tmp_path}/share?readonly=0")

    assert launched(cache, "sm_86") == Target(8, 6)
    assert counts(cache) == (1, 0)


@pytest.mark.parametrize(("stored", "served"), [("sm_80", "sm_80"), ("compute_80", "compute_80"), ("sm_86", "sm_86")])
def test_frozen_cache_serves_what_the_device_runs(tmp_path: Path, stored: str, served: str) -> None:
    """Entries of its own directory are served, made by any compiler."""
    cache = open_cache(fill(tmp_path / "local", stored), OTHERS, mode="frozen")

    assert launched(cache, "sm_86") == parse_target(served)
    with pytest.raises(FrozenCacheError):
        launched(cache, "sm_75")


def test_what_a_kernel_says_is_of_the_code_that_a_launch_gets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first launch, too: in a frozen cache nothing else is there."""
    monkeypatch.setattr(frontends, "current_device", lambda: SimpleNamespace(target=Target(8, 6)))
    cache = open_cache(fill(tmp_path, "sm_80"), OTHERS, mode="frozen")
    kernel, other = (cached_kernel(SAXPY, cache=cache) for _ in range(2))

    kernel.compile()
    assert len(kernel.params) == 4
    with pytest.raises(FrozenCacheError):
        other.cubin("sm_86")


def test_target_that_is_asked_for_is_compiled_after_another_was_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A launch on sm_90a takes code of sm_90; compile("sm_90a") makes that of its own."""
    monkeypatch.setattr(frontends, "current_device", lambda: SimpleNamespace(target=Target(9, 0, "a")))
    cache = open_cache(fill(tmp_path, "sm_90"))
    kernel = cached_kernel(SAXPY, cache=cache)
    kernel.compile()
    assert {each.target for each in cache.entries()} == {"sm_90"}

    kernel.compile("sm_90a")

    assert {each.target for each in cache.entries()} == {"sm_90", "sm_90a"}
    assert kernel.cubin() == kernel.cubin("sm_90a") != kernel.cubin("sm_90")


def test_what_a_kernel_says_is_of_ptx_on_a_device_newer_than_the_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One warning names the device; a target that is asked for by its name is not replaced."""
    monkeypatch.setattr(frontends, "current_device", lambda: SimpleNamespace(target=Target(19, 9, "a")))
    kernel = cached_kernel(EMPTY, cache=open_cache(tmp_path))

    with pytest.warns(KCacheWarning, match="the compiler does not know sm_199a") as said:
        kernel.compile()
    assert (len(said), kernel.params) == (1, ())
    with pytest.raises(UnknownTargetError):
        kernel.compile("sm_199a")


def test_exact_arch_has_no_stand_in(tmp_path: Path) -> None:
    """arch="sm_86" accepts only that target."""
    cache = open_cache(fill(tmp_path / "local", "sm_80"), mode="frozen")
    with pytest.raises(FrozenCacheError):
        launched(cache, "sm_86", arch="sm_86")


def test_kernel_of_ptx_is_served_its_ptx(tmp_path: Path) -> None:
    """arch="compute_80" was compiled on a machine without a GPU, and is served in a frozen cache."""
    cached_kernel(SAXPY, arch="compute_80", cache=open_cache(tmp_path)).compile()

    assert launched(open_cache(tmp_path, mode="frozen"), "sm_90a", arch="compute_80") == parse_target("compute_80")


@pytest.mark.parametrize("name", ["image", "image.kcache", "os:image.kcache"])
def test_tier_in_trouble_costs_one_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """An image layer or a bundle is not there: every kernel compiles, one warning names it, and it counts once."""
    monkeypatch.chdir(tmp_path)
    cache = open_cache(tmp_path / "local", tiers=[name])
    with pytest.warns(KCacheWarning, match="image") as said:
        assert [launched(cache, "sm_90", source) for source in (SAXPY, EMPTY)] == [Target(9, 0)] * 2

    assert len(said) == 1
    assert counts(cache) == (2, 0)
    assert cache.info("process").errors == 1


def test_mode_off_asks_no_tier(tmp_path: Path) -> None:
    """No tier is read from or written to."""
    fill(tmp_path / "share", "sm_90")
    before = {path: path.read_bytes() for path in files_below(tmp_path / "share")}
    cache = open_cache(tmp_path / "local", tiers=f"{tmp_path}/share?readonly=0", mode="off")
    launched(cache, "sm_90")

    assert counts(cache) == (1, 0)
    assert {path: path.read_bytes() for path in files_below(tmp_path / "share")} == before


@pytest.mark.slow
def test_tiers_come_from_the_environment(tmp_path: Path) -> None:
    """NUMBA_KCACHE_TIERS for the process's cache."""
    fill(tmp_path / "image", "sm_90")
    code = """
import sys
from numba_kcache import cached_kernel, info
cached_kernel(sys.argv[1], arch="sm_90").compile()
print(info("process").compiles, info("process").hits)
"""
    said = in_python(
        code, SAXPY, NUMBA_KCACHE_DIR=str(tmp_path / "local"), NUMBA_KCACHE_TIERS=f"{tmp_path}/no,{tmp_path}/image"
    )

    assert said.strip() == "0 1"


def test_no_tiers_no_room() -> None:
    """Without tiers, a hit imports no module of theirs."""
    code = """
import sys
from numba_kcache import cached_kernel
for _ in range(2):
    cached_kernel(sys.argv[1], arch="sm_90").compile()
print([name for name in sys.modules if "tier" in name and name.startswith("numba_kcache")])
"""
    assert in_python(code, EMPTY).strip() == "[]"
    assert numba_kcache.info("process").tiers == ()
