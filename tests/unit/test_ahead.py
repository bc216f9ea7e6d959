"""Read ahead at decoration: the first use finds it, and nothing that has changed meanwhile is ever served."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import EventKind, KernelCache, cached_kernel
from numba_kcache.ahead import MAX_BYTES, MAX_CUBIN_BYTES, MAX_ENTRIES, ReadAhead
from numba_kcache.errors import FrozenCacheError
from numba_kcache.model.artifact import Artifact
from numba_kcache.store.manifest import MAX_VARIANTS
from tests.support.compiling import in_python
from tests.support.stores import key_of, open_store

KERNEL = 'extern "C" __global__ void k(int *x) { *x = %s; }'

MODULE = """
from numba_kcache import cached_kernel
TEXT = {text!r}
called = []
def k():
    called.append(1)
    return TEXT
"""


class Program:
    """A file that defines kernels, and processes that run it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "program.py"

    def start(self, text: str = KERNEL % 1, **settings: Any) -> tuple[dict[str, Any], KernelCache]:
        """The module's names as a fresh process has them, and its cache; no kernel is decorated yet."""
        self.path.write_text(MODULE.format(text=text))
        names: dict[str, Any] = {"__name__": "program"}
        exec(compile(self.path.read_text(), str(self.path), "exec"), names)
        return names, KernelCache(self.folder / "cache", durability="none", **settings)

    def run(self, text: str = KERNEL % 1, **options: Any) -> None:
        """A whole process: decorates, uses, ends."""
        names, cache = self.start(text)
        cached_kernel(names["k"], arch="sm_90", cache=cache, **options).compile()
        cache.resolver.save_counts()

    def entries(self) -> list[Path]:
        return sorted(self.folder.glob("cache/v1/entries/*/*"))

    def hints(self) -> dict[Path, bytes]:
        """Every manifest, by content."""
        return {path: path.read_bytes() for path in self.folder.glob("cache/v1/manifests/*/*")}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def outcome(cache: KernelCache, use: Callable[[], object]) -> list[str]:
    """Where what was used came from: the source of each hit, "compiled" for each miss."""
    seen: list[str] = []

    def listen(event: Any) -> None:
        if event.kind is EventKind.HIT:
            seen.append(event.fields["source"])
        elif event.kind is EventKind.MISS:
            seen.append("compiled")

    unsubscribe = cache.subscribe(listen)
    use()
    unsubscribe()
    return seen


# -- the first use -----------------------------------------------------------------------------------------------


def test_first_use_needs_no_file_that_was_read_at_decoration(program: Program) -> None:
    """The entry is gone from the disk; what was verified before is what its key names."""
    program.run()
    names, cache = program.start()
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    (entry,) = program.entries()
    entry.unlink()

    assert not names["called"], "the user's function is not called before the first use"
    assert outcome(cache, kernel.compile) == ["disk"]
    assert names["called"] == [1]


def test_hit_that_was_read_ahead_counts_like_any_other(program: Program) -> None:
    """One hit, its reading time, and the time saved."""
    program.run()
    names, cache = program.start()
    cached_kernel(names["k"], arch="sm_90", cache=cache).compile()
    info = cache.info("process")

    assert (info.hits, info.misses, info.compiles) == (1, 0, 0)
    assert 0 < info.load_time_s < info.time_saved_s


def test_second_kernel_of_the_same_key_is_served_from_memory(program: Program) -> None:
    """What was taken by one kernel object is where the others look."""
    program.run()
    names, cache = program.start()
    first, second = (cached_kernel(names["k"], arch="sm_90", cache=cache) for _ in range(2))

    assert outcome(cache, lambda: (first.compile(), second.compile())) == ["disk", "memory"]


@pytest.mark.parametrize("mode", ["readonly", "frozen"])
def test_modes_that_only_read_read_ahead_and_note_nothing(program: Program, mode: str) -> None:
    """A read-only cache is written by nobody."""
    program.run()
    before = program.hints()
    names, cache = program.start(mode=mode)
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    program.entries()[0].unlink()

    assert outcome(cache, kernel.compile) == ["disk"]
    cache.resolver.ahead.learn(str(program.path), "another", key_of(1), cache.resolver._memory.popitem()[1])
    cache.resolver.save_counts()
    assert program.hints() == before


@pytest.mark.parametrize("mode", ["off", "refresh", "verify"])
def test_modes_that_compile_serve_nothing_that_was_read(program: Program, mode: str) -> None:
    """What is stored is not wanted there."""
    program.run()
    names, cache = program.start(mode=mode)

    assert outcome(cache, cached_kernel(names["k"], arch="sm_90", cache=cache).compile) == ["compiled"]


def test_template_text_is_read_ahead_too(program: Program) -> None:
    """A text that cannot be told without calling the function is keyed at the first use, and then found."""
    program.run(KERNEL % 7)
    names, cache = program.start("%s")
    names["KERNEL"] = KERNEL
    exec(compile("def k():\n return KERNEL % 7", str(program.path), "exec"), names)
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    program.entries()[0].unlink()

    assert outcome(cache, kernel.compile) == ["disk"]


# -- never stale ---------------------------------------------------------------------------------------------------


def test_source_that_changed_since_the_decoration_is_compiled(program: Program) -> None:
    """The text at the first use is what counts."""
    program.run()
    names, cache = program.start()
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    names["TEXT"] = KERNEL % 2

    assert outcome(cache, kernel.compile) == ["compiled"]
    assert kernel.key() != cached_kernel(KERNEL % 1, name="k", arch="sm_90", cache=cache).key()


def test_options_that_changed_between_processes_are_another_kernel(program: Program) -> None:
    """A hint leads to what was; the options decide what is."""
    program.run()
    names, cache = program.start()

    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache, fastmath=True)
    assert outcome(cache, kernel.compile) == ["compiled"]


def test_other_target_than_last_time_is_compiled(program: Program) -> None:
    """Another device is another key."""
    program.run()
    names, cache = program.start()
    kernel = cached_kernel(names["k"], arch=["sm_80", "sm_90"], cache=cache)

    assert outcome(cache, lambda: kernel.compile("sm_80")) == ["compiled"]
    assert outcome(cache, lambda: kernel.compile("sm_90")) == ["disk"]


def test_environment_that_changed_since_the_decoration_is_in_the_key(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Variables that the compiler reads are those of the first use."""
    program.run()
    names, cache = program.start()
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    monkeypatch.setenv("NVVM_IR_VER_CHK", "0")

    assert outcome(cache, kernel.compile) == ["compiled"]


def test_header_that_changed_since_the_decoration_is_compiled(program: Program) -> None:
    """What was read ahead of a source with headers is served where the headers are what they were."""
    header = program.folder / "value.h"
    header.write_text("#define VALUE 1\n")
    text = '#include "value.h"\n' + KERNEL % "VALUE"
    program.run(text)
    names, cache = program.start(text)
    same, changed = (cached_kernel(names["k"], arch="sm_90", cache=cache) for _ in range(2))
    assert outcome(cache, same.compile) == ["disk"]
    header.write_text("#define VALUE 2\n")

    assert outcome(cache, changed.compile) == ["compiled"]


def test_dependency_that_changed_since_the_decoration_is_in_the_key(program: Program) -> None:
    """Files of `depends=` are read at the first use."""
    table = program.folder / "table.bin"
    table.write_bytes(b"1")
    program.run(depends=[table])
    names, cache = program.start()
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache, depends=[table])
    table.write_bytes(b"2")

    assert outcome(cache, kernel.compile) == ["compiled"]


def test_cleared_cache_serves_nothing_that_was_read_before(program: Program) -> None:
    """`clear()` means compiled anew, and leaves no hint of what is gone."""
    program.run()
    names, cache = program.start()
    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    cache.clear()

    assert program.hints() == {}
    assert outcome(cache, kernel.compile) == ["compiled"]


def test_damaged_entry_is_compiled_anew(program: Program) -> None:
    """Read ahead or not, it is verified before anything in it is believed."""
    program.run()
    (entry,) = program.entries()
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    names, cache = program.start()
    with pytest.warns(UserWarning, match="damaged cache entry"):
        kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)

    assert outcome(cache, kernel.compile) == ["compiled"]
    names, cache = program.start()
    assert outcome(cache, cached_kernel(names["k"], arch="sm_90", cache=cache).compile) == ["disk"], "it is healed"


def test_two_kernels_of_one_name_get_each_its_own(program: Program) -> None:
    """The hint names both; the key decides."""
    names, cache = program.start()
    first = cached_kernel(names["k"], arch="sm_90", cache=cache)
    first.compile()
    names["TEXT"] = KERNEL % 2
    second = cached_kernel(names["k"], arch="sm_90", cache=cache)
    second.compile()
    cubins = first.cubin(), second.cubin()
    cache.resolver.save_counts()

    names, cache = program.start()
    again = cached_kernel(names["k"], arch="sm_90", cache=cache), cached_kernel(names["k"], arch="sm_90", cache=cache)
    assert again[0].cubin() == cubins[0]
    names["TEXT"] = KERNEL % 2
    assert again[1].cubin() == cubins[1] != cubins[0]
    assert cache.info("process").compiles == 0


# -- hints ---------------------------------------------------------------------------------------------------------


def test_steady_state_writes_nothing(program: Program) -> None:
    """The second process notes what the first could not know; from then on there is nothing to note."""
    program.run()
    before = program.hints()
    program.run()

    assert program.hints() == before
    assert any(b'"kernel":"program.k"' in each for each in before.values())


def test_interpreter_that_ends_leaves_its_hints(program: Program) -> None:
    """Nobody has to call anything."""
    program.start()
    code = """
import runpy, sys
names = runpy.run_path(sys.argv[1], run_name="program")
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[2])
seen = []
cache.subscribe(lambda event: seen.append(event.fields.get("source", event.kind.value)))
cached_kernel(names["k"], arch="sm_90", cache=cache).compile()
print(len(cache.resolver.ahead._taken))
"""
    assert in_python(code, str(program.path), str(program.folder / "cache")) == "0\n"
    assert in_python(code, str(program.path), str(program.folder / "cache")) == "1\n"


def test_kernel_without_a_file_leaves_no_hint(tmp_path: Path) -> None:
    """What is typed, or read from stdin, is not met again."""
    cache = KernelCache(tmp_path, durability="none")
    names: dict[str, Any] = {"__name__": "typed"}
    exec(f"def k():\n return {KERNEL % 1!r}", names)
    cached_kernel(names["k"], arch="sm_90", cache=cache).compile()
    cache.resolver.save_counts()

    assert not any(b'"cubin_bytes"' in path.read_bytes() for path in tmp_path.glob("v1/manifests/*/*"))


ARTIFACT = Artifact("cuda", (9, 0, ""), (), b"cubin")  # type: ignore[arg-type]


def learned(folder: Path, names: list[str], file: str = "/a.py") -> ReadAhead:
    """A process that has used kernels of these names, and ended."""
    ahead = ReadAhead(open_store(folder), reads=True, writes=True)
    for name in names:
        ahead.expect(file, name, lambda _key: ARTIFACT, 1)
    for number, name in enumerate(names):
        ahead.take(key_of(number))
        ahead.learn(file, name, key_of(number), ARTIFACT)
    ahead.save()
    return ahead


def test_process_reads_no_more_than_the_limit_ahead(tmp_path: Path) -> None:
    """However many kernels are decorated, and whatever the hints say."""
    reads: list[str] = []

    def read(key: str) -> Artifact:
        reads.append(key)
        return ARTIFACT

    for file in ("/a.py", "/b.py"):
        learned(tmp_path, [f"k{number}" for number in range(MAX_VARIANTS)], file)
    ahead = ReadAhead(open_store(tmp_path), reads=True, writes=True)
    for file in ("/a.py", "/b.py"):
        for number in range(MAX_VARIANTS):
            ahead.expect(file, f"k{number}", read, 1)

    assert len(reads) == MAX_ENTRIES


@pytest.mark.parametrize(
    ("sizes", "is_read"),
    [
        ([MAX_CUBIN_BYTES], [True]),
        ([MAX_CUBIN_BYTES + 1, 1], [False, True]),
        ([MAX_CUBIN_BYTES, MAX_BYTES - MAX_CUBIN_BYTES - 1, 2, 1, 1], [True, True, False, True, False]),
    ],
)
def test_process_reads_no_more_bytes_than_the_limits_ahead(
    tmp_path: Path, sizes: list[int], is_read: list[bool]
) -> None:
    """A module of many kernels is read ahead; one larger than the limit, or than what is left of it, is not."""
    past = ReadAhead(open_store(tmp_path), reads=True, writes=True)
    for number, size in enumerate(sizes):
        past.learn("/a.py", f"k{number}", key_of(number), ARTIFACT._replace(cubin=bytes(size)))
    past.save()
    ahead = ReadAhead(open_store(tmp_path), reads=True, writes=True)

    assert [bool(ahead.expect("/a.py", f"k{n}", lambda _key: ARTIFACT, 1)) for n in range(len(sizes))] == is_read


def test_kernel_reads_no_more_than_is_worth_it(tmp_path: Path) -> None:
    """The newest first; of the others it is only known that they are known."""
    learned(tmp_path, ["k"] * 10)
    ahead = ReadAhead(open_store(tmp_path), reads=True, writes=True)

    assert [each.key for each in ahead.expect("/a.py", "k", lambda _key: ARTIFACT, 2)] == [key_of(9), key_of(8)]


def test_kernels_of_one_label_are_each_read_once(tmp_path: Path) -> None:
    """Kernels made in a loop stand on one line: each decoration reads what those before it did not."""
    learned(tmp_path, ["k"] * 5)
    ahead, reads = ReadAhead(open_store(tmp_path), reads=True, writes=True), list[str]()

    def read(key: str) -> Artifact:
        reads.append(key)
        return ARTIFACT

    found = [[each.key for each in ahead.expect("/a.py", "k", read, 2)] for _ in range(4)]
    keys = [key_of(number) for number in (4, 3, 2, 1, 0)]

    assert reads == keys
    assert found == [keys[:2], keys[2:4], [keys[4], keys[0]], keys[:2]]
    ahead.take(keys[0])
    assert [each.key for each in ahead.expect("/a.py", "k", read, 2)] == keys[1:3]
    assert reads == keys, "what was taken is not read again"


def test_full_hints_that_are_all_good_are_left_alone(tmp_path: Path) -> None:
    """More kernels in a file than hints are kept: they do not push each other out at the end of every process."""
    names = [f"k{number}" for number in range(MAX_VARIANTS)]
    learned(tmp_path, names)
    before = {path: path.read_bytes() for path in tmp_path.rglob("manifests/*/*")}
    learned(tmp_path, [*names, "one more"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("manifests/*/*")} == before

    learned(tmp_path, ["one more"])
    assert {path: path.read_bytes() for path in tmp_path.rglob("manifests/*/*")} != before


@pytest.mark.parametrize(
    "lie",
    [{"entry": "../../etc/passwd"}, {"entry": None}, {"entry": 1}, {"cubin_bytes": "1"}, {"cubin_bytes": 2**40}, {}],
    ids=json.dumps,
)
def test_hint_that_lies_is_passed_over(program: Program, lie: dict[str, Any]) -> None:
    """Whatever stands in it: nothing is read, nothing is raised, and the first use is as without."""
    program.run()
    names, cache = program.start()
    store, file = cache.resolver.store, str(program.path)
    from numba_kcache.ahead import _name

    (hint,) = store.get_manifest(_name(file))
    store.clear()
    store.add_variant(_name(file), {**hint, **lie} if lie else {"key": "x"})
    assert MAX_CUBIN_BYTES < 2**40

    kernel = cached_kernel(names["k"], arch="sm_90", cache=cache)
    assert outcome(cache, kernel.compile) == ["compiled"]


def test_frozen_cache_without_the_entry_refuses(program: Program) -> None:
    """A hint is no entry."""
    program.run()
    for entry in program.entries():
        os.unlink(entry)
    names, cache = program.start(mode="frozen")
    with pytest.raises(FrozenCacheError):
        cached_kernel(names["k"], arch="sm_90", cache=cache).compile()
