"""`get_or_build`: its keys, results and errors, and every mode, as for kernels."""

from __future__ import annotations

import functools
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import numba_kcache
from numba_kcache import Built, EventKind, FrozenCacheError, KernelCache, OptionError, ReasonKind, cached_kernel
from numba_kcache.engine.built import built_artifact
from numba_kcache.store import StoredEntry
from tests.support.compiling import SAXPY
from tests.support.stores import file_of

SOURCE = "kernel saxpy\n  y = a * x + y\n"
pytestmark = pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")

CODE = {"code.bin": bytes(range(256)) * 200, "names": b"saxpy"}


class Builder:
    """A `build` that counts its calls."""

    def __init__(self, result: Any = None) -> None:
        self.result, self.calls = CODE if result is None else result, 0

    def __call__(self) -> Any:
        self.calls += 1
        return self.result


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def open_cache(directory: Path, **settings: Any) -> KernelCache:
    return KernelCache(directory, durability="none", **settings)


def key_of(directory: Path, components: Any, **more: Any) -> str:
    return open_cache(directory).get_or_build(components, Builder(), **more).key


# -- what comes back -------------------------------------------------------------------------------------------------


def test_what_was_built_is_found_by_the_next_process(directory: Path) -> None:
    """The second cache of a directory gets the same payloads, key and meta, and builds nothing."""
    build, components = Builder(), {"source": SOURCE, "compiler": "toy 1.2"}
    first = open_cache(directory).get_or_build(components, build, label="toy.saxpy", meta={"registers": [3, None]})
    second = open_cache(directory).get_or_build(components, build)

    assert build.calls == 1
    assert first == Built(CODE, first.key, "compiled", {"registers": [3, None]})
    assert second == first._replace(source="disk")


def test_repeated_call_is_served_from_memory_and_counted_once(directory: Path) -> None:
    """One miss and one hit are counted in a process, however often the same is requested."""
    cache, build = open_cache(directory), Builder()
    sources = [cache.get_or_build({"a": 1}, build).source for _ in range(5)]

    assert (sources, build.calls) == (["compiled", *["memory"] * 4], 1)
    assert (cache.info("process").misses, cache.info("process").hits) == (1, 1)


@pytest.mark.slow
def test_hit_of_50_kb_takes_at_most_100_us(directory: Path) -> None:
    """A hit in memory, with a source of 4 KB in its components, takes 100 us at most."""
    cache, components = open_cache(directory), {"source": SOURCE * 128, "options": {"opt": 3}, "arch": "sm_90"}
    times = []
    for _ in range(500):
        start = time.perf_counter()
        cache.get_or_build(components, Builder())
        times.append(time.perf_counter() - start)
    assert min(times) < 100e-6


def test_bytes_alone_are_the_payload_data(directory: Path) -> None:
    """A `build` that returns bytes gives one payload, called `data`; empty bytes are bytes."""
    cache = open_cache(directory)
    assert cache.get_or_build({"a": 1}, lambda: b"code").payloads == {"data": b"code"}
    assert cache.get_or_build({"a": 2}, lambda: b"").payloads == {"data": b""}
    assert open_cache(directory).get_or_build({"a": 2}, Builder()).payloads == {"data": b""}


def test_what_a_caller_changes_in_a_result_stays_with_that_caller(directory: Path) -> None:
    """Each caller has its own payloads and meta; the next caller gets them as stored."""
    cache = open_cache(directory)
    for _ in range(3):
        found = cache.get_or_build({"a": 1}, Builder(), meta={"list": [1]})
        assert (dict(found.payloads), found.meta) == (CODE, {"list": [1]})
        found.payloads.clear()  # type: ignore[attr-defined]
        found.meta["list"].append(2)


def test_module_function_is_of_the_processs_cache() -> None:
    """`numba_kcache.get_or_build` is that of the cache whose `info` the module shows."""
    found = numba_kcache.get_or_build({"test": "module function"}, Builder())
    assert numba_kcache.explain(found.key).is_hit


# -- the key ---------------------------------------------------------------------------------------------------------

APART: list[Any] = [
    1, True, 1.0, "1", b"1", None, 0, False, 0.0, -0.0, "", b"", [], {}, [[]], [1], [True],
    ["1"], {"1": None}, {"a": []}, float("inf"), float("-inf"), float("nan"), 10**30, -1, 2**64, "\ud800",
    [1, [2]], [[1], 2], [1, 2], "a\n", "a\r\n",
]  # fmt: skip
"""Values of which no two are the same, though Python compares some of them as equal."""


def test_values_that_differ_have_keys_that_differ(directory: Path) -> None:
    """True, 1, 1.0 and "1", text and bytes, 0.0 and -0.0, nesting: each has its own entry."""
    cache, build = open_cache(directory), Builder()
    keys = {cache.get_or_build({"value": each}, build).key for each in APART}
    assert len(keys) == build.calls == len(APART)
    assert {open_cache(directory).get_or_build({"value": each}, build).source for each in APART} == {"disk"}


def test_order_and_class_of_a_mapping_and_tuple_or_list_keep_the_key(directory: Path) -> None:
    """Components that mean the same have one key: any order of names, any class of mapping, a tuple for a list."""
    values = [
        {"a": (1, 2), "b": {"x": 1, "y": 2}},
        {"b": {"y": 2, "x": 1}, "a": [1, 2]},
        OrderedDict(b=MappingProxyType({"x": 1, "y": 2}), a=[1, 2]),
    ]
    assert len({key_of(directory, each) for each in values}) == 1


def test_not_a_number_is_found_again(directory: Path) -> None:
    """NaN equals nothing, but as a component it gives the same key each time."""
    assert key_of(directory, {"a": float("nan")}) == key_of(directory, {"a": float("nan")})


@pytest.mark.parametrize(
    "name", ["kind", "compilers", "versions", "cuda toolkit", "target", "depends", "entry", "]", ""]
)
def test_names_of_components_are_the_callers(directory: Path, name: str) -> None:
    """A component with a name that the engine uses counts like any other, also with toolchain="any"."""
    assert key_of(directory, {name: "1"}) != key_of(directory, {name: "2"})
    frozen = open_cache(directory, mode="frozen")
    with pytest.raises(FrozenCacheError):
        frozen.get_or_build({name: "3"}, Builder())


def test_label_and_meta_keep_the_key(directory: Path) -> None:
    """The label and the meta values that are stored with a result are not in its key."""
    assert key_of(directory, {"a": 1}, label="one", meta={"m": 1}) == key_of(directory, {"a": 1}, label="two")


def test_what_build_does_to_the_components_changes_nothing(directory: Path) -> None:
    """The key has the values that the components had when `get_or_build` was called."""
    components: dict[str, Any] = {"options": ["-O3"]}

    def build() -> bytes:
        components["options"].append("-g")
        return b"code"

    first = open_cache(directory).get_or_build(components, build)
    assert open_cache(directory).get_or_build({"options": ["-O3"]}, Builder()).key == first.key


class Level(IntEnum):
    ONE = 1


def nested(depth: int) -> Any:
    return [nested(depth - 1)] if depth else []


UNKNOWN = [object(), Level.ONE, 1j, bytearray(b"1"), {1: 2}, {1, 2}, Path("a"), print, nested(900), 10**5000, iter([])]


@pytest.mark.parametrize("value", [*UNKNOWN, [{"a": [object()]}]], ids=lambda each: type(each).__name__)
def test_value_that_cannot_be_encoded_is_an_option_error(directory: Path, value: Any) -> None:
    """A value that is not plain is refused, at any depth, and nothing is built."""
    build = Builder()
    with pytest.raises(OptionError, match="cannot use components"):
        open_cache(directory).get_or_build({"value": value}, build)
    assert build.calls == 0


@pytest.mark.parametrize("components", [None, {}, [], "a", {1: "a"}, {None: 1}])
def test_components_that_are_no_mapping_of_names_are_refused(directory: Path, components: Any) -> None:
    """Components have names, and there is at least one."""
    with pytest.raises(OptionError, match="cannot use components"):
        open_cache(directory).get_or_build(components, Builder())


@pytest.mark.parametrize(
    "meta", [{"a": b"1"}, {"a": float("nan")}, {1: 2}, 3, {"a": 2**70}, {"a": "\ud800"}, {"a": object()}]
)
def test_meta_that_would_not_read_back_is_refused(directory: Path, meta: Any) -> None:
    """Meta must be JSON: a value that would not come back from the store unchanged is an error."""
    with pytest.raises(OptionError, match="meta"):
        open_cache(directory).get_or_build({"a": 1}, Builder(), meta=meta)


@pytest.mark.parametrize("more", [{"label": 3}, {"label": "x" * 2000}, {"depends": [3]}, {"depends": 3}])
def test_arguments_of_other_types_are_refused(directory: Path, more: dict[str, Any]) -> None:
    """Label is text of a bearable length, depends a list of paths."""
    with pytest.raises(OptionError):
        open_cache(directory).get_or_build({"a": 1}, Builder(), **more)


def test_label_of_exactly_the_longest_length_comes_back(directory: Path) -> None:
    """Storing and reading have the same limit."""
    open_cache(directory).get_or_build({"a": 1}, Builder(), label="x" * 1024)

    assert open_cache(directory).get_or_build({"a": 1}, Builder(), label="y").source == "disk"


# -- what build returns and raises -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "../a", "a\\b", "a\0", "a\n", "x" * 300, "ü" * 101, "\ud800", 3]
)
def test_payload_name_that_is_no_file_name_is_refused(directory: Path, name: Any) -> None:
    """A payload's name must be usable as a file name in any folder, and as no path; otherwise nothing is stored."""
    cache = open_cache(directory)
    with pytest.raises(OptionError, match="cannot store what was built"):
        cache.get_or_build({"a": 1}, lambda: {"good": b"1", name: b"2"})
    assert cache.info().entries == 0


@pytest.mark.parametrize("result", [3, "text", {}, {"a": "text"}, [b"a"], {f"{i}": b"" for i in range(5000)}], ids=str)
def test_result_that_is_no_bytes_is_refused(directory: Path, result: Any) -> None:
    """`build` must return bytes, or a mapping of names to bytes."""
    with pytest.raises(OptionError, match="cannot store what was built"):
        open_cache(directory).get_or_build({"a": 1}, Builder(result))
    with pytest.raises(OptionError):
        open_cache(directory).get_or_build({"a": 1}, lambda: None)  # type: ignore[arg-type,return-value]


def test_many_payloads_with_long_and_foreign_names_come_back(directory: Path) -> None:
    """Callers choose the names: spaces, brackets, other scripts, and more payloads than an entry of the store may
    have."""
    result = {f"kernel <float, {i}> größe": bytes([i]) * i for i in range(100)}
    open_cache(directory).get_or_build({"a": 1}, Builder(result))
    assert open_cache(directory).get_or_build({"a": 1}, Builder()).payloads == result


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), MemoryError(), SystemExit(3)], ids=repr)
def test_exception_of_build_passes_through_and_stores_nothing(directory: Path, error: BaseException) -> None:
    """The very exception is raised; the next call builds, at once."""
    cache = open_cache(directory)

    def fail() -> bytes:
        raise error

    with pytest.raises(type(error)) as raised:
        cache.get_or_build({"a": 1}, fail)
    assert raised.value is error
    assert cache.info().entries == 0
    assert cache.get_or_build({"a": 1}, Builder()).source == "compiled"


def test_build_may_build_others_and_kernels(directory: Path) -> None:
    """A `build` that calls `get_or_build` with other components, or compiles a kernel, gets the results."""
    cache = open_cache(directory)

    def outer() -> bytes:
        kernel = cached_kernel(SAXPY, arch="sm_90", cache=cache)
        return kernel.cubin() + cache.get_or_build({"a": "inner"}, lambda: b"inner").payloads["data"]

    assert cache.get_or_build({"a": "outer"}, outer).payloads["data"].endswith(b"inner")
    assert cache.info().entries == 3


# -- files -----------------------------------------------------------------------------------------------------------


def test_order_of_files_in_a_set_does_not_count(directory: Path, tmp_path: Path) -> None:
    """It is another one in each process."""
    files = [tmp_path / f"{number}.toy" for number in range(8)]
    for file in files:
        file.write_text(file.name)

    assert key_of(directory, {"a": 1}, depends=set(files)) == key_of(directory, {"a": 1}, depends=files)


def test_content_of_files_and_folders_counts_and_not_their_place(directory: Path, tmp_path: Path) -> None:
    """A changed byte, or a new, renamed or removed file in a folder, gives another key; another path of the same
    content does not."""
    keys = []
    for place in ("one", "two"):
        folder = tmp_path / place
        (folder / "lib/sub").mkdir(parents=True)
        (folder / "lib/a.toy").write_text("a")
        (folder / "main.toy").write_text("main")
        keys.append(key_of(directory, {"a": 1}, depends=[folder / "lib", str(folder / "main.toy")]))
    assert keys[0] == keys[1]

    def now() -> str:
        return key_of(directory, {"a": 1}, depends=(folder / "lib", folder / "main.toy"))

    steps: list[Callable[[], object]] = [
        lambda: (folder / "main.toy").write_text("Main"),
        lambda: (folder / "lib/a.toy").write_text("A"),
        lambda: (folder / "lib/sub/b.toy").write_text("b"),
        lambda: (folder / "lib/sub/b.toy").rename(folder / "lib/sub/c.toy"),
        lambda: (folder / "lib/sub/c.toy").rename(folder / "lib/c.toy"),
    ]
    for step in steps:
        step()
        keys.append(now())
    assert len(set(keys)) == 1 + len(steps)
    (folder / "lib/__pycache__").mkdir()
    (folder / "lib/__pycache__/a.pyc").write_bytes(b"bytecode")
    assert now() == keys[-1]


def test_links_in_a_folder_count_by_what_they_lead_to(directory: Path, tmp_path: Path) -> None:
    """A second link to the same files, and a link to a parent folder, are content: without them the key is another."""
    folder = tmp_path / "lib"
    (folder / "a").mkdir(parents=True)
    (folder / "a/x.toy").write_text("x")
    (folder / "b").symlink_to("a")
    (folder / "a/up").symlink_to("..")
    keys = [key_of(directory, {"a": 1}, depends=[folder])]
    for link in ("b", "a/up"):
        (folder / link).unlink()
        keys.append(key_of(directory, {"a": 1}, depends=[folder]))

    assert len(set(keys)) == 3


def test_miss_names_the_file_of_a_folder_that_differs(directory: Path, tmp_path: Path) -> None:
    """A changed, a new and a removed file are named; unchanged files are not."""
    folder = tmp_path / "lib"
    folder.mkdir()
    for name in ("same", "changed", "gone"):
        (folder / name).write_text("1")
    key_of(directory, {"a": 1}, depends=[folder])
    (folder / "changed").write_text("2")
    (folder / "gone").rename(folder / "new")
    cache, misses = open_cache(directory), list[Any]()
    cache.subscribe(lambda event: misses.append(event.fields) if event.kind is EventKind.MISS else None)
    cache.get_or_build({"a": 1}, Builder(), depends=[folder])

    assert {each.name for each in misses[0]["reasons"]} == {f"depends[0]/{name}" for name in ("changed", "gone", "new")}


def test_dependency_that_changes_under_a_served_result_is_noticed(directory: Path, tmp_path: Path) -> None:
    """A result in memory is also checked against the current files."""
    cache, file = open_cache(directory), tmp_path / "a.toy"
    file.write_text("1")
    found = [cache.get_or_build({"a": 1}, Builder(), depends=[file]) for _ in range(3)]
    file.write_text("2")
    assert cache.get_or_build({"a": 1}, Builder(), depends=[file]).key != found[-1].key


def _edit_and_put_back(file: Path) -> bytes:
    file.write_text("2")
    file.write_text("1")
    return b"2"


def test_dependency_that_changes_while_it_is_built_is_not_stored(directory: Path, tmp_path: Path) -> None:
    """The result may belong to either content of the file: it is returned and not stored."""
    cache, file = open_cache(directory), tmp_path / "a.toy"
    file.write_text("1")
    found = cache.get_or_build({"a": 1}, lambda: b"%d" % file.write_text("22"), depends=[file])
    assert (found.payloads["data"], found.key, cache.info().entries) == (b"2", "", 0)
    (tmp_path / "folder").mkdir()
    within = tmp_path / "folder" / "b.toy"
    for one, given in ((file, file), (within, within.parent)):  # put back before the build ends
        one.write_text("1")
        build = functools.partial(_edit_and_put_back, one)
        back = cache.get_or_build({"a": 1}, build, depends=[given])
        assert (back.key, cache.info().entries) == ("", 0)
    gone = cache.get_or_build({"a": 1}, lambda: file.unlink() or b"code", depends=[file])  # type: ignore[func-returns-value]
    assert (gone.payloads["data"], gone.key, cache.info().entries) == (b"code", "", 0)


def test_dependency_that_cannot_be_read_is_refused(directory: Path, tmp_path: Path) -> None:
    """A missing file, and a pipe, on which reading would block, are errors; a folder that links to itself is not."""
    os.mkfifo(tmp_path / "pipe")
    for each in (tmp_path / "none", tmp_path / "pipe"):
        with pytest.raises(OptionError, match="cannot read depends"):
            open_cache(directory).get_or_build({"a": 1}, Builder(), depends=[each])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/up").symlink_to(tmp_path / "folder")
    assert key_of(directory, {"a": 1}, depends=tmp_path / "folder")


def test_dependency_of_a_caller_without_a_file_needs_no_working_directory(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a prompt in a folder that was removed, an absolute path is read, and a relative one is the user's error."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    call = compile("cache.get_or_build({'a': 1}, bytes, depends=[path])", "<prompt>", "eval")
    here = {"cache": open_cache(directory), "path": __file__}

    assert eval(call, here).source == "compiled"
    with pytest.raises(OptionError, match="cannot read depends"):
        eval(call, {**here, "path": "a.toy"})


def test_relative_dependency_is_in_the_folder_of_the_caller(directory: Path) -> None:
    """As for kernels, a relative path starts from the calling file's folder."""
    here = key_of(directory, {"a": 1}, depends=[Path(__file__).name])
    assert here == key_of(directory, {"a": 1}, depends=[__file__])


# -- modes -----------------------------------------------------------------------------------------------------------


def test_frozen_cache_names_the_component_that_differs(directory: Path) -> None:
    """A miss in a frozen cache is an error with label, component, old and new value; a hit is a hit."""
    open_cache(directory).get_or_build({"source": SOURCE, "version": "1.2"}, Builder(), label="toy.saxpy")
    frozen, build = open_cache(directory, mode="frozen"), Builder()

    assert frozen.get_or_build({"source": SOURCE, "version": "1.2"}, build).source == "disk"
    with pytest.raises(FrozenCacheError, match=r"cannot compile toy.saxpy: .*version: 1.2 is now 1.3"):
        frozen.get_or_build({"source": SOURCE, "version": "1.3"}, build, label="toy.saxpy")
    assert build.calls == 0


@pytest.mark.parametrize(
    ("mode", "calls", "entries"), [("readonly", 1, 0), ("off", 2, 0), ("refresh", 2, 1), ("verify", 2, 1)]
)
def test_mode_says_what_is_looked_for_and_stored(directory: Path, mode: str, calls: int, entries: int) -> None:
    """Read-only keeps a result in memory only; off, refresh and verify build at each call; refresh and verify store."""
    cache, build = open_cache(directory, mode=mode), Builder()
    for _ in range(2):
        cache.get_or_build({"a": 1}, build)
    assert build.calls == calls
    assert open_cache(directory).info().entries == entries


@pytest.mark.parametrize("result", [b"other", {"other name": b"code"}])
def test_verify_reports_what_is_built_otherwise_now(directory: Path, result: Any) -> None:
    """Mode verify compares the stored payloads with what `build` returns now, by name and by bytes."""
    open_cache(directory).get_or_build({"a": 1}, lambda: b"code", label="toy")
    cache = open_cache(directory, mode="verify")
    troubles: list[str] = []
    cache.subscribe(lambda event: troubles.append(event.fields["error"]) if event.kind is EventKind.TROUBLE else None)
    cache.get_or_build({"a": 1}, lambda: b"code", label="toy")
    assert not troubles
    cache.get_or_build({"a": 1}, Builder(result), label="toy")
    assert ["stored code of toy" in each for each in troubles] == [True]


def test_clear_has_the_next_call_build(directory: Path) -> None:
    """`clear` drops results in memory and on disk."""
    cache, build = open_cache(directory), Builder()
    for _ in range(3):
        cache.get_or_build({"a": 1}, build)
    cache.clear()
    assert (cache.get_or_build({"a": 1}, build).source, build.calls) == ("compiled", 2)


# -- lists and reports ------------------------------------------------------------------------------------------------


def test_lists_reports_and_entries_have_it_by_its_label(directory: Path) -> None:
    """`entries`, `listing`, `entry`, `report` and `explain` show a result by its label, and name its payloads."""
    cache = open_cache(directory)
    found = cache.get_or_build({"source": SOURCE}, Builder(), label="toy.saxpy", meta={"r": 3})

    assert [each.kernels for each in (*cache.entries(), *cache.listing())] == [("toy.saxpy",)] * 2
    detail = cache.entry(found.key[:10])
    assert {"code.bin", "names"} < detail.payload_bytes.keys()
    assert detail.to_dict()["meta"] == {"r": 3}
    assert '{"r": 3}' in str(detail)
    assert all("toy.saxpy" in text for text in (str(detail), cache.report(), str(cache.explain(found.key))))


def test_label_is_the_name_of_build_where_none_is_given(directory: Path) -> None:
    """Without a label, lists show the name of the function that built a result, through `functools.partial` too."""

    def compile_it(what: bytes) -> bytes:
        return what

    cache = open_cache(directory)
    cache.get_or_build({"a": 1}, functools.partial(compile_it, b"1"))
    ((name,),) = [each.kernels for each in cache.entries()]
    assert name.endswith("compile_it")


def test_miss_names_the_line_of_a_text_and_each_component_that_differs(directory: Path) -> None:
    """The event of a miss, and the explanation of an entry, have reasons of the kind COMPONENT with old and new."""
    cache = open_cache(directory)
    cache.get_or_build({"source": SOURCE, "gone": 1, "opt": 3}, Builder(), label="toy")
    misses: list[Any] = []
    cache.subscribe(lambda event: misses.append(event.fields) if event.kind is EventKind.MISS else None)
    found = cache.get_or_build({"source": SOURCE.replace("*", "/"), "new": 1, "opt": 2}, Builder(), label="toy")

    reasons = {each.name: (each.kind, each.old, each.new, each.where) for each in misses[0]["reasons"]}
    kind = ReasonKind.COMPONENT
    assert reasons == {
        "source": (kind, "y = a * x + y", "y = a / x + y", "line 2"),
        "gone": (kind, "1", None, ""),
        "new": (kind, None, "1", ""),
        "opt": (kind, "3", "2", ""),
    }
    assert "component opt: 3 is now 2" in str(cache.explain(found.key))
    assert cache.explain(found) == cache.explain(found.key)
    assert "'code.bin': 51200 bytes" in repr(found)


def test_bundle_carries_it_and_targets_keep_it(directory: Path, tmp_path: Path) -> None:
    """A result is in a bundle, even one for a single target, and is served from it, mounted or imported."""
    open_cache(directory).get_or_build({"a": 1}, Builder(), label="toy")
    path = tmp_path / "kernels.kcache"
    report = open_cache(directory).export_bundle(path, arch="sm_90")
    assert (report.entries, report.targets) == (1, ("any",))

    mounted, imported = open_cache(tmp_path / "mounted"), open_cache(tmp_path / "imported")
    mounted.register_bundle(path)
    imported.import_bundle(path)
    sources = [each.get_or_build({"a": 1}, Builder()).source for each in (mounted, imported)]
    assert sources == ["tier", "disk"]


# -- strangers' bytes ------------------------------------------------------------------------------------------------


def header_of(**changes: Any) -> dict[str, Any]:
    attributes = {"label": "toy", "meta": {}, "payloads": [["a", 1], ["b", 2]], **changes}
    return {"kind": "built", "target": "any", "entries": [], "compile_time_s": 0.1, "attributes": attributes}


@pytest.mark.parametrize(
    "header",
    [
        header_of(payloads=[["../a", 1], ["b", 2]]),
        header_of(payloads=[["a", 1], ["a", 2]]),
        header_of(payloads=[["a", -1], ["b", 4]]),
        header_of(payloads=[["a", 1], ["b", 3]]),
        header_of(payloads=[]),
        header_of(payloads=[["a", True], ["b", 2]]),
        header_of(payloads=None),
        header_of(label=3),
        header_of(label=""),
        header_of(meta="{}"),
        header_of(meta=[]),
        {**header_of(), "target": "sm_90"},
        {**header_of(), "entries": [["k", "k", True, [0, 0, 0, 0], []]]},
        {**header_of(), "kind": "cuda"},
        {**header_of(), "attributes": []},
    ],
)
def test_entry_that_contradicts_itself_is_built_again(directory: Path, header: dict[str, Any]) -> None:
    """An entry with valid digests and a contradictory header is quarantined; the next process finds a good one."""
    cache = open_cache(directory)
    key = cache.get_or_build({"a": 1}, lambda: b"abc").key
    cache.session.local.put(StoredEntry(key, header, {"built": b"abc"}))

    build = Builder()
    assert open_cache(directory).get_or_build({"a": 1}, build).payloads == CODE
    assert (build.calls, open_cache(directory).get_or_build({"a": 1}, build).source) == (1, "disk")


def test_damaged_entry_is_built_again(directory: Path) -> None:
    """A flipped byte of a payload is found before the caller gets it."""
    key = open_cache(directory).get_or_build({"a": 1}, Builder()).key
    file = file_of(open_cache(directory).session.local, key)  # type: ignore[arg-type]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    build = Builder()
    assert open_cache(directory).get_or_build({"a": 1}, build).payloads == CODE
    assert build.calls == 1


def test_no_kernel_is_made_of_what_was_built(directory: Path) -> None:
    """Bytes of `get_or_build` under a kernel's key are moved to quarantine, and never loaded as a kernel."""
    kernel = cached_kernel(SAXPY, arch="sm_90", cache=open_cache(directory))
    key = kernel.key()
    artifact = built_artifact("toy", {"data": b"\x7fELF"}, {}, 0.1)
    header = header_of(payloads=[["data", 4]])
    open_cache(directory).session.local.put(StoredEntry(key, header, {"built": artifact.cubin}))

    kernel.compile()
    assert kernel.cubin().startswith(b"\x7fELF")
    assert kernel.cubin() != b"\x7fELF"


def test_no_code_of_a_kernel_is_given_for_what_was_built(directory: Path) -> None:
    """An entry of a kernel under a key of `get_or_build` is moved to quarantine as well."""
    cache = open_cache(directory)
    kernel = cached_kernel(SAXPY, arch="sm_90", cache=cache)
    kernel.compile()
    entry = cache.session.local.get(kernel.key())
    built = cache.get_or_build({"a": 1}, Builder())
    assert entry is not None
    cache.session.local.put(StoredEntry(built.key, entry.header, dict(entry.payloads)))

    found: Mapping[str, bytes] = open_cache(directory).get_or_build({"a": 1}, Builder({"data": b"anew"})).payloads
    assert found == {"data": b"anew"}
