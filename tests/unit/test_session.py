"""From a request to an artifact: every mode, every trouble with the store, the counts and the events."""

from __future__ import annotations

import functools
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import numba_kcache
from numba_kcache import Event, EventKind, KCacheWarning, KernelCache, cached_kernel, engine
from numba_kcache.engine import Lookup
from numba_kcache.engine import compile as compiling
from numba_kcache.errors import FrozenCacheError, KCacheError, SettingsError, UncacheableError
from numba_kcache.model import parse_target
from numba_kcache.model.header import artifact_header
from numba_kcache.observe.text import bytes_text, seconds_text
from numba_kcache.store import StoredEntry
from numba_kcache.toolchain import installed_include_dirs
from tests.support.compiling import EMPTY, SAXPY, in_python
from tests.support.keying import COMPILERS, VERSIONS, MadeUpToolchain
from tests.support.stores import file_of

pytestmark = pytest.mark.usefixtures("compiled_once")

OTHER = 'extern "C" __global__ void other(int a) {}'


def open_cache(directory: Path, **settings: Any) -> KernelCache:
    return KernelCache(directory, durability="none", **settings)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def compiled(cache: KernelCache, source: str = SAXPY, **options: Any) -> numba_kcache.Kernel:
    """A kernel of this cache, resolved for sm_90."""
    kernel = cached_kernel(source, arch="sm_90", cache=cache, **options)
    kernel.compile()
    return kernel


def counts(cache: KernelCache) -> tuple[int, int, int]:
    """(compiles, hits, misses) of this process."""
    info = cache.info("process")
    return info.compiles, info.hits, info.misses


def heard(cache: KernelCache) -> list[Event]:
    """The cache's events from now on."""
    events: list[Event] = []
    cache.subscribe(events.append)
    return events


# -- where an artifact comes from -------------------------------------------------------------------------------


def test_resolved_kernel_counts_nothing_more(directory: Path) -> None:
    """A resolution is counted once for a kernel and target, however often it is used."""
    cache = open_cache(directory)
    kernel = compiled(cache)
    for _ in range(3):
        kernel.compile()
        assert kernel.cubin()

    assert counts(cache) == (1, 0, 1)


def test_second_kernel_object_is_served_from_memory(directory: Path) -> None:
    """Same key, same process: no file is read, and the bytes are the same object."""
    cache = open_cache(directory)
    first = compiled(cache)
    for path in directory.rglob("entries/*/*"):
        path.unlink()
    second = compiled(cache)

    assert second.cubin() == first.cubin()
    assert counts(cache) == (1, 1, 1)
    assert cache.info("process").loads == 0


def test_memory_of_artifacts_is_bounded(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used artifacts, and large ones, are not kept, and are read again."""
    sources = [SAXPY, OTHER, EMPTY]
    cache = open_cache(directory)
    sizes = [len(compiled(cache, source).cubin()) for source in sources]
    monkeypatch.setattr(engine, "KEPT", 2)
    cache = open_cache(directory)
    for source in sources:
        compiled(cache, source)
    before = cache.info("process").loads
    compiled(cache, OTHER)
    compiled(cache, EMPTY)
    assert (before, cache.info("process").loads) == (3, 3)
    compiled(cache, SAXPY)
    assert cache.info("process").loads == 4

    monkeypatch.setattr(engine, "KEPT_BYTES", max(sizes) - 1)
    cache = open_cache(directory)
    for source in sources:
        compiled(cache, source)
    assert len(cache.session.memory) == sum(size < max(sizes) for size in sizes)


def test_second_cache_is_served_from_disk(directory: Path) -> None:
    """Everything about the kernel comes back: types, resources, PTX, log and compile time."""
    source = SAXPY + '\nextern "C" __global__ void k() { int unused; }'
    before = open_cache(directory)
    first = compiled(before, source, name="saxpy")
    cache = open_cache(directory)
    second = compiled(cache, source, name="saxpy")

    assert counts(cache) == (0, 1, 0)
    found, made = (each.session.memory[second.key()] for each in (cache, before))
    assert found._replace(extras={}) == made._replace(extras={})
    assert (second.ptx(), second.log) == (first.ptx(), first.log)
    assert "never referenced" in second.log
    info = cache.info("process")
    assert (info.loads, info.load_time_s > 0) == (1, True)
    assert info.time_saved_s == pytest.approx(found.compile_time_s - info.load_time_s)


def test_resolution_tells_what_it_did(directory: Path) -> None:
    """It emits MISS, COMPILE_BEGIN, COMPILE_END and STORED; a second cache emits HIT with its source."""
    cache = open_cache(directory)
    events = heard(cache)
    kernel = compiled(cache)
    compiled(cache)
    key = kernel.key()

    assert [each.kind for each in events] == [
        EventKind.MISS, EventKind.COMPILE_BEGIN, EventKind.COMPILE_END, EventKind.STORED, EventKind.HIT,
    ]  # fmt: skip
    assert {each.fields["key"] for each in events} == {key}
    assert events[-1].fields["source"] == "memory"
    assert {each.fields["target"] for each in events if "target" in each.fields} == {"sm_90"}


def test_failed_compile_tells_and_stores_nothing(directory: Path) -> None:
    """It emits COMPILE_FAILED with the error; the next attempt compiles again."""
    cache = open_cache(directory)
    events = heard(cache)
    with pytest.raises(numba_kcache.CompileError):
        compiled(cache, "nonsense")

    assert [each.kind for each in events] == [EventKind.MISS, EventKind.COMPILE_BEGIN, EventKind.COMPILE_FAILED]
    assert cache.info().entries == 0


@pytest.mark.parametrize(
    ("source", "wrong", "reason"),
    [
        (SAXPY, {"target": parse_target("sm_80")}, "cannot store saxpy for sm_80: its cubin is for sm_90"),
        (SAXPY, {"cubin": b"\x7fELF"}, "its code is not a cubin"),
        (SAXPY.replace("saxpy", "axpy"), {}, "its cubin has no kernel saxpy"),
    ],
)
def test_code_that_contradicts_its_description_is_used_but_not_stored(
    directory: Path, monkeypatch: pytest.MonkeyPatch, source: str, wrong: dict[str, Any], reason: str
) -> None:
    """Such code stays in this process: one warning, one counted error."""
    other = cached_kernel(source, arch="sm_90", cache=open_cache(directory / "other")).cubin()
    build = compiling.build

    def mixed_up(lookup: Lookup, job: Any, key: str) -> Any:
        artifact, learned = build(lookup, job, key)
        return artifact._replace(**{"cubin": other, **wrong}), learned

    monkeypatch.setattr(compiling, "build", mixed_up)
    cache = open_cache(directory / "cache")
    with pytest.warns(KCacheWarning, match=reason) as said:
        kernels = [compiled(cache) for _ in range(2)]

    assert len(said) == 1
    assert kernels[0].cubin() == kernels[1].cubin()
    assert (counts(cache), cache.info("process").errors) == ((1, 1, 1), 1)
    assert list(cache.entries()) == []
    monkeypatch.undo()
    again = open_cache(directory / "cache")
    compiled(again)
    assert (counts(again), len(list(again.entries()))) == ((1, 0, 1), 1)


def test_other_compiler_is_another_entry(directory: Path) -> None:
    """After an upgrade old code is not served; the old entry stays for processes with the earlier compiler."""
    first = open_cache(directory)
    key = compiled(first).key()
    second = open_cache(directory)
    second.session.toolchain = MadeUpToolchain({**COMPILERS, "nvrtc": "build-id:ff"}, VERSIONS)  # type: ignore[assignment]
    events = heard(second)
    compiled(second)

    assert events[0].kind is EventKind.MISS
    assert events[0].fields["key"] != key


def test_any_compiler_s_code_will_do_where_it_was_asked_for(directory: Path) -> None:
    """toolchain="any": the family's manifest leads to the entry of another compiler."""
    cubin = compiled(open_cache(directory)).cubin()
    for given in (COMPILERS, {}):
        cache = open_cache(directory, toolchain="any" if given else "exact")  # no compiler at all: any stored code
        cache.session.toolchain = MadeUpToolchain(given, VERSIONS)  # type: ignore[assignment]

        assert compiled(cache).cubin() == cubin
        assert counts(cache) == (0, 1, 0)


@pytest.mark.parametrize("named", [False, True])
def test_any_compiler_s_code_with_headers_will_do(directory: Path, tmp_path: Path, named: bool) -> None:
    """The toolkit's headers belong to the compiler and are not checked, unless the user names their folder."""
    (tmp_path / "mine.h").write_text("#define TWO 2\n")
    source = '#include "mine.h"\n#include <cuda_fp16.h>\nextern "C" __global__ void k(int *x) { *x = TWO; }'
    folders = [str(tmp_path), *([installed_include_dirs()[-1]] if named else [])]
    for hits in (0, 1):
        cache = open_cache(directory, toolchain="any")
        if hits and not named:
            cache.session.toolchain = MadeUpToolchain(COMPILERS, VERSIONS)  # type: ignore[assignment]  # knows no header
        kernel = cached_kernel(source, cache=cache, include_dirs=folders, arch="sm_80")
        kernel.compile()
        assert counts(cache) == (1 - hits, hits, 1 - hits)
    (tmp_path / "mine.h").write_text("#define TWO 3\n")
    cache = open_cache(directory, toolchain="any")
    cached_kernel(source, cache=cache, include_dirs=folders, arch="sm_80").compile()
    assert counts(cache) == (1, 0, 1)


# -- modes ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_off_keeps_nothing_on_disk(directory: Path) -> None:
    """mode="off": each kernel object compiles, and no file is written or read."""
    compiled(open_cache(directory / "used"))
    for name in ("used", "fresh"):
        cache = open_cache(directory / name, mode="off")
        compiled(cache)
        compiled(cache)
        assert counts(cache) == (2, 0, 2)
        assert cache.info().hits == 0

    assert not (directory / "fresh").exists()


def test_readonly_reads_and_never_writes(directory: Path) -> None:
    """Hits are served; a miss compiles and leaves no trace, not even a directory."""
    cache = open_cache(directory, mode="readonly")
    compiled(cache)
    cache.info()
    assert not directory.exists()

    writer = open_cache(directory)
    compiled(writer)
    writer.info()  # writes its counts now, not when it is garbage-collected
    before = {path: path.stat().st_mtime_ns for path in directory.rglob("*")}
    cache = open_cache(directory, mode="readonly")
    compiled(cache)
    compiled(cache, OTHER)
    cache.info()

    assert counts(cache) == (1, 1, 1)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("*")} == before


def test_frozen_serves_and_refuses(directory: Path) -> None:
    """A miss is an error with kernel and target; no compiler is loaded."""
    compiled(open_cache(directory))
    cache = open_cache(directory, mode="frozen")
    compiled(cache)
    with pytest.raises(FrozenCacheError, match=r"cannot compile .* for sm_90: the cache is frozen"):
        compiled(cache, OTHER)
    with pytest.raises(UncacheableError):
        compiled(cache, "__DATE__")

    assert counts(cache)[:2] == (0, 1)


def test_refresh_compiles_and_overwrites(directory: Path) -> None:
    """mode="refresh": the stored entry is replaced, and the next process gets the new one."""
    key = compiled(open_cache(directory)).key()
    path = file_of(open_cache(directory).session.store, key)  # type: ignore[arg-type]
    before = path.stat().st_ino
    cache = open_cache(directory, mode="refresh")
    compiled(cache)

    assert counts(cache) == (1, 0, 1)
    assert path.stat().st_ino != before
    later = open_cache(directory)
    compiled(later)
    assert counts(later) == (0, 1, 0)


def test_verify_compares_what_is_stored(directory: Path) -> None:
    """mode="verify": equal code passes silently, other code is reported once as trouble."""
    cache = open_cache(directory)
    kernel = compiled(cache)
    made = cache.session.memory[kernel.key()]
    cache = open_cache(directory, mode="verify")
    compiled(cache)
    assert cache.info("process").errors == 0

    header = artifact_header(made)
    assert cache.session.store.put(StoredEntry(kernel.key(), header, {"cubin": made.cubin + b"other code"}))
    cache = open_cache(directory, mode="verify")
    with pytest.warns(KCacheWarning, match="is not what the compilers make now"):
        compiled(cache)
    assert cache.info("process").errors == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["off", "readonly", "frozen"])
def test_mode_comes_from_the_environment(tmp_path: Path, mode: str) -> None:
    """NUMBA_KCACHE_MODE for the process's cache."""
    code = """
import sys
from numba_kcache import cached_kernel, info, FrozenCacheError
try:
    cached_kernel(sys.argv[1], arch="sm_90").compile()
    print("compiled", info("process").compiles)
except FrozenCacheError:
    print("frozen")
"""
    said = in_python(code, EMPTY, NUMBA_KCACHE_DIR=str(tmp_path / "cache"), NUMBA_KCACHE_MODE=mode)

    assert said.strip() == ("frozen" if mode == "frozen" else "compiled 1")
    assert not (tmp_path / "cache").exists()


# -- trouble ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["readwrite", "readonly", "off"])
def test_user_without_a_home_has_kernels_in_memory(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    """HOME is unset and the user is not in the password file, as in containers: one warning names the setting."""
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_KCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cache = KernelCache(durability="none", mode=mode)
        compiled(cache)

    assert len(caught) == (mode != "off")
    assert all("memory only" in str(each.message) and "NUMBA_KCACHE_DIR" in str(each.message) for each in caught)
    assert cache.directory == ""


def test_home_of_the_password_file_is_used_without_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With HOME unset, the password file has the home."""
    for name in ("HOME", "XDG_CACHE_HOME", "NUMBA_KCACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: SimpleNamespace(pw_dir=str(tmp_path)))

    assert KernelCache().directory == str(tmp_path / ".cache" / "numba_kcache")


@pytest.mark.parametrize("place", ["below a file", "a file", "of others", "nowhere"])
def test_directory_that_cannot_be_used_costs_one_warning(tmp_path: Path, place: str) -> None:
    """Three kernels work, with one warning and a count in errors. Compiling ahead is an error each time."""
    (tmp_path / "file").write_text("")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    where = {
        "below a file": tmp_path / "file" / "cache",
        "a file": tmp_path / "file",
        "of others": tmp_path / "open",
        "nowhere": Path("/proc/no/such/place"),
    }[place]
    cache = open_cache(where)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for source in (SAXPY, OTHER, EMPTY, SAXPY):
            assert cached_kernel(source, arch="sm_90", cache=cache).cubin()
        with pytest.raises(KCacheError, match="cannot be used: "):
            compiled(cache)

    assert [each.category for each in caught] == [KCacheWarning], [str(each.message) for each in caught]
    assert cache.info("process").errors >= 1
    assert counts(cache)[:1] == (3,)
    assert str(where) in str(cache.info())
    assert "cannot be used" in str(cache.info())


def damage_flip(data: bytes) -> bytes:
    return data[:200] + bytes((data[200] ^ 1,)) + data[201:]


def damage_cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def damage_empty(_data: bytes) -> bytes:
    return b""


def damage_other(_data: bytes) -> bytes:
    return b"not an entry at all"


@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_empty, damage_other])
def test_damaged_entry_is_compiled_again(directory: Path, damage: Any) -> None:
    """The entry is quarantined, reported once and counted; the next process hits the new one."""
    kernel = compiled(open_cache(directory))
    path = file_of(open_cache(directory).session.store, kernel.key())  # type: ignore[arg-type]
    path.write_bytes(damage(path.read_bytes()))
    cache = open_cache(directory)
    with pytest.warns(KCacheWarning, match="a damaged cache entry was moved to quarantine") as caught:
        again = compiled(cache)

    assert len(caught) == 1
    assert again.cubin() == kernel.cubin()
    assert (counts(cache), cache.info("process").errors) == ((1, 0, 1), 1)
    healed = open_cache(directory)
    compiled(healed)
    assert counts(healed) == (0, 1, 0)


@pytest.mark.parametrize(
    "header",
    [{}, {"kind": "exe"}, {"target": "sm_90", "kind": "cuda", "entries": [], "compile_time_s": "1", "attributes": {}}],
)
def test_entry_that_holds_no_artifact_is_compiled_again(directory: Path, header: dict[str, Any]) -> None:
    """A valid file with invalid contents is treated like a damaged one."""
    key = compiled(open_cache(directory)).key()
    assert open_cache(directory).session.store.put(StoredEntry(key, header, {"cubin": b"x"}))
    cache = open_cache(directory)
    with pytest.warns(KCacheWarning, match="damaged cache entry"):
        compiled(cache)

    assert (counts(cache), cache.info("process").errors) == ((1, 0, 1), 1)


@pytest.mark.slow
def test_warnings_as_errors_do_not_reach_the_user(directory: Path) -> None:
    """`python -W error`: damage, an unusable directory and an uncacheable kernel still work."""
    code = """
import sys
from numba_kcache import cached_kernel
for source in sys.argv[1:]:
    assert cached_kernel(source, arch="sm_90").params is not None
print("done")
"""
    said = in_python(
        "import warnings; warnings.simplefilter('error')\n" + code, SAXPY, "#define NOW __DATE__\n" + EMPTY,
        NUMBA_KCACHE_DIR="/proc/no/such/place", TMPDIR="/proc/none",
    )  # fmt: skip

    assert said.strip() == "done"


# -- the verbs --------------------------------------------------------------------------------------------------


def test_clear_makes_everything_resolve_again(directory: Path) -> None:
    """Entries are removed, and resolved kernels compile again at their next use."""
    cache = open_cache(directory)
    kernel = compiled(cache)
    compiled(cache, OTHER)

    assert cache.clear() == 2
    assert cache.info().entries == 0
    kernel.compile()
    assert counts(cache) == (3, 0, 3)
    assert cache.clear() == 1
    assert cache.clear() == 0


def test_prune_removes_the_least_recently_used(directory: Path) -> None:
    """It goes down to a size; the number of removed entries is returned, and shown by info()."""
    cache = open_cache(directory)
    for source in (SAXPY, OTHER, EMPTY):
        compiled(cache, source)

    assert cache.prune(max_size_bytes=1) == 3
    assert cache.info().entries == 0


def test_configure_directory_moves_every_kernel(tmp_path: Path) -> None:
    """The next use of a resolved kernel goes to the new directory; going back finds the old entry."""
    kernel = cached_kernel(SAXPY, arch="sm_90")
    numba_kcache.configure(directory=tmp_path / "one")
    kernel.compile()
    numba_kcache.configure(directory=tmp_path / "two")
    kernel.compile()

    assert numba_kcache.info("process").compiles == 1
    assert all(any((tmp_path / name).rglob("entries/*/*")) for name in ("one", "two"))
    numba_kcache.configure(directory=tmp_path / "one")
    kernel.compile()
    assert (numba_kcache.info("process").compiles, numba_kcache.info("process").hits) == (0, 1)


def test_functions_are_those_of_the_process_s_cache(capsys: pytest.CaptureFixture[str]) -> None:
    """info, print_info, subscribe, prune, clear."""
    events: list[Event] = []
    end = numba_kcache.subscribe(events.append)
    cached_kernel(EMPTY, arch="sm_90").compile()
    end()
    numba_kcache.print_info("process")

    assert events
    assert numba_kcache.info().directory == os.environ["NUMBA_KCACHE_DIR"]
    assert "compiles" in capsys.readouterr().out
    assert numba_kcache.prune(older_than=3600) == 0
    assert numba_kcache.clear() == 1


COLLECTED = """
import gc, os, sys
from numba_kcache import KernelCache, cached_kernel
def use():
    cached_kernel(sys.argv[2], arch="sm_90", cache=KernelCache(sys.argv[1])).compile()
use()
opened, modules = [], set(sys.modules)
sys.addaudithook(lambda name, arguments: opened.append(name) if name in ("open", "os.mkdir", "os.rename") else None)
gc.collect()
print(len(opened), len(set(sys.modules) - modules))
if len(sys.argv) > 3:
    print(KernelCache(sys.argv[1]).info().misses)
"""


@pytest.mark.slow
def test_cache_that_is_collected_does_nothing_in_the_collection(tmp_path: Path) -> None:
    """A collection may happen during an import, or under a lock, so its counts are saved by the next cache, or at
    exit."""
    first = in_python(COLLECTED, str(tmp_path), SAXPY)
    second = in_python(COLLECTED, str(tmp_path), OTHER, "and ask")

    assert (first.split(), second.split()) == (["0", "0"], ["0", "0", "2"])


def test_trouble_of_a_cache_that_is_gone_is_not_the_next_one_s(directory: Path) -> None:
    """The first cache's counts cannot be saved; the next cache works."""
    trouble = functools.partial(divmod, 1, 0)
    engine.collected.append(trouble)

    compiled(open_cache(directory))
    assert trouble not in engine.collected


def test_lifetime_counts_what_is_not_saved_yet(directory: Path) -> None:
    """A process's lifetime counts include its own that are not saved yet."""
    cache = open_cache(directory)
    compiled(cache)
    compiled(cache, OTHER)

    assert cache.info().compiles == 2


@pytest.mark.slow
def test_lifetime_counts_all_processes(tmp_path: Path) -> None:
    """Two processes, one compile and one hit between them; the counts survive both."""
    code = "import sys\nfrom numba_kcache import cached_kernel\ncached_kernel(sys.argv[1], arch='sm_90').compile()"
    for _ in range(2):
        in_python(code, SAXPY, NUMBA_KCACHE_DIR=str(tmp_path))
    info = open_cache(tmp_path).info()

    assert (info.compiles, info.hits, info.misses, info.entries, info.loads) == (1, 1, 1, 1, 1)
    assert info.time_saved_s > 0
    assert open_cache(tmp_path).info("process").hits == 0


# -- info -------------------------------------------------------------------------------------------------------


def test_info_is_a_value_that_prints_as_a_table(directory: Path) -> None:
    """Every documented figure is an attribute, and is in the dict, the text and the HTML."""
    cache = open_cache(directory, max_size_bytes="10MB")
    compiled(cache)
    compiled(cache)
    info = cache.info("process")
    text, html, figures = str(info), info._repr_html_(), info.to_dict()

    assert (info.directory, info.max_size_bytes, info.hit_rate, info.entries) == (str(directory), 10**7, 0.5, 1)
    assert {"directory", "entries", "size_bytes", "max_size_bytes", "hits", "misses", "hit_rate", "waited", "evictions",
            "errors", "compile_time_s", "load_time_s", "avg_compile_time_s", "avg_load_time_s", "time_saved_s",
            "tiers"} <= set(figures)  # fmt: skip
    assert all(getattr(info, name) == value for name, value in figures.items())
    assert text.splitlines()[0] == "numba_kcache, this process"
    assert f"directory   {directory}" in text
    assert "hits        1 (50%)" in text
    assert "of 9.5 MiB" in text
    assert html.startswith("<pre>")
    assert f"directory   {directory}\n" in html


def test_html_escapes_the_directory(tmp_path: Path) -> None:
    """A folder's name is text, not markup."""
    html = open_cache(tmp_path / "<b>&").info()._repr_html_()

    assert "&lt;b&gt;&amp;" in html
    assert "<b>" not in html


def test_empty_cache_has_no_rates(directory: Path) -> None:
    """Without look-ups there is no rate."""
    info = open_cache(directory).info()

    assert (info.hit_rate, info.avg_compile_time_s, info.avg_load_time_s, info.entries) == (0, 0, 0, 0)
    assert "in memory" not in str(info)


def test_unknown_scope_is_refused(directory: Path) -> None:
    """There are two scopes."""
    with pytest.raises(SettingsError, match="cannot use scope='today'"):
        open_cache(directory).info("today")


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1468006, "1.4 MiB"), (2**41, "2048.0 GiB")],
)
def test_sizes_read_well(size_bytes: int, text: str) -> None:
    """Sizes have a readable unit."""
    assert bytes_text(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 us"), (85e-6, "85 us"), (2.1e-3, "2.1 ms"), (8.5, "8.5 s"), (190, "3 min 10 s")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    """Durations have a readable unit."""
    assert seconds_text(seconds) == text


def test_process_cache_is_one_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without cache= share it; a KernelCache of the user's is separate."""
    cached_kernel(EMPTY, arch="sm_90").compile()
    cached_kernel(EMPTY, arch="sm_90").compile()

    assert (numba_kcache.info("process").compiles, numba_kcache.info("process").hits) == (1, 1)
    assert "numba" not in vars(sys.modules["numba_kcache.engine"])


def test_explanation_leaves_the_look_ups_of_other_threads_alone(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one thread explains, those of others save records of compilers and renew times of use."""
    import numba_kcache.engine.explain as explaining

    cache, seen = open_cache(directory), list[bool]()
    session, explain, load = cache.session, explaining.explain, cache.session.toolchain.load

    def spy(lookup: Any, *args: Any, **named: Any) -> Any:
        seen.append(session.toolchain.load is load and lookup.toolchain is not session.toolchain)
        return explain(lookup, *args, **named)

    monkeypatch.setattr(explaining, "explain", spy)
    cached_kernel(SAXPY, cache=cache).explain("sm_90")

    assert set(seen) == {True}
