"""The reasons of a miss: in its event, by explain(), and in the error of a frozen cache; a hit computes none."""

from __future__ import annotations

import gc
import json
import linecache
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import Event, EventKind, Explanation, KCacheWarning, KernelCache, Reason, ReasonKind, cached_kernel
from numba_kcache.errors import EntryError, FrozenCacheError, OptionError
from numba_kcache.explanation.history import SOURCE_LIMIT_BYTES, history_name
from numba_kcache.explanation.report import report_of
from numba_kcache.store import MANIFEST, StoredEntry
from numba_kcache.store.encoding import encode_entry
from tests.support.compiling import EMPTY, SAXPY, in_python
from tests.support.keying import COMPILERS, VERSIONS, MadeUpToolchain, request_of
from tests.support.stores import file_of

pytestmark = pytest.mark.usefixtures("compiled_once")

INCLUDES = '#include "a.h"\n#if __has_include("asked.h")\n#endif\nextern "C" __global__ void k(int *o) { *o = N; }\n'


class Program:
    """A user's program: each call looks at the same cache as a new process would."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("first", "second"):
            (root / folder).mkdir(parents=True)
        (root / "second/a.h").write_text('#include "b.h"\n')
        (root / "second/b.h").write_text("#define N 1\n")

    def cache(self, **settings: Any) -> KernelCache:
        return KernelCache(self.root / "cache", durability="none", **settings)

    def kernel(
        self, source: str = SAXPY, *, cache: Any = None, settings: Any = (), toolchain: Any = None, **options: Any
    ) -> Any:
        """The kernel in a cache with nothing in memory, or in the given one."""
        cache = cache or self.cache(**dict(settings))
        if toolchain is not None:
            cache.session.toolchain = toolchain
        options = {"arch": "sm_90", "name": "k" if "void k" in source else "saxpy", **options}
        return cached_kernel(source, cache=cache, **options)

    def including(self, **options: Any) -> Any:
        return self.kernel(INCLUDES, include_dirs=[self.root / "first", self.root / "second"], **options)

    def files(self) -> dict[str, tuple[int, int, bytes]]:
        """Every file of the store except the counters, which earlier caches may write at any time."""
        paths = [path for path in sorted((self.root / "cache").rglob("*")) if path.is_file()]
        paths = [path for path in paths if path.parent.name != "statistics"]
        return {str(each): (each.stat().st_ino, each.stat().st_mtime_ns, each.read_bytes()) for each in paths}


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def told(explanation: Explanation) -> list[tuple[ReasonKind, str, str | None, str | None]]:
    return [(each.kind, each.name, each.old, each.new) for each in explanation.reasons]


# -- the reasons --------------------------------------------------------------------------------------------------


def test_kernel_that_was_never_stored_says_so(program: Program) -> None:
    """There is no entry to compare with."""
    assert told(program.kernel().explain()) == [(ReasonKind.NEVER_STORED, "", None, None)]


def test_hit_says_where_from_and_why_it_was_compiled(program: Program) -> None:
    """In the compiling process the hit is from memory, in the next one from disk."""
    cache = program.cache()
    kernel = program.kernel(cache=cache)
    kernel.compile()
    own, later = kernel.explain(), program.kernel().explain()

    assert (own.outcome, own.source, own.key, own.is_hit) == ("hit", "memory", kernel.key(), True)
    assert [each.kind for each in own.compiled_for] == [ReasonKind.NEVER_STORED]
    assert (later.outcome, later.source, later.compiled_for) == ("hit", "disk", ())
    assert later.entry is not None
    assert later.entry.compile_time_s == cache.session.memory[kernel.key()].compile_time_s
    assert "hit, from disk" in str(later)


def test_miss_names_every_difference_from_the_nearest_entry(program: Program) -> None:
    """Several changes at once: each option, and the first line of the source that differs with its place."""
    program.kernel(fastmath=True, defines={"A": 1, "B": 1}).compile()
    program.kernel(SAXPY.replace("a * x", "x"), std="c++17", arch="sm_80", max_registers=16).compile()
    source = SAXPY.replace("a * x", "a + x")

    found = program.kernel(source, defines={"A": 1, "B": 2}).explain()

    assert told(found)[:2] == [
        (ReasonKind.OPTIONS, "fastmath", "true", None),
        (ReasonKind.OPTIONS, "defines B", "1", "2"),
    ]
    (line,) = (each for each in found.reasons if each.kind is ReasonKind.SOURCE_CHANGED)
    assert (line.old, line.new) == ("if (i < n) y[i] = a * x[i] + y[i];", "if (i < n) y[i] = a + x[i] + y[i];")
    assert len(found.reasons) == 3
    assert found.nearest is not None
    assert found.nearest.target == "sm_90"


@pytest.mark.slow
def test_source_line_is_that_of_the_user_s_file(program: Program, tmp_path: Path) -> None:
    """The source is in a Python file, or is a file of its own."""
    (tmp_path / "k.cu").write_text(SAXPY)
    program.kernel(SAXPY)  # decorating alone stores nothing
    cached_kernel(tmp_path / "k.cu", arch="sm_90", cache=program.cache()).compile()
    (tmp_path / "k.cu").write_text(SAXPY.replace("a * x", "x"))
    (whole,) = cached_kernel(tmp_path / "k.cu", arch="sm_90", cache=program.cache()).explain().reasons
    script = 'from numba_kcache import cached_kernel\n@cached_kernel(arch="sm_90")\ndef k():\n    return r"""\n{}"""\n'
    said = []
    for text, then in ((EMPTY, "k.compile()"), (EMPTY.replace("{}", "{\nint a;\n}"), "print(k.explain())")):
        (tmp_path / "user.py").write_text(script.format(text) + then)
        environment = {"NUMBA_KCACHE_DIR": str(tmp_path / "own")}
        said.append(
            in_python("import runpy, sys; runpy.run_path(sys.argv[1])", str(tmp_path / "user.py"), **environment)
        )

    assert whole.where == f"{tmp_path}/k.cu:4"
    assert f"source at {tmp_path}/user.py:5: `{EMPTY}` is now `{EMPTY[:-1]}`" in said[1]


@pytest.mark.parametrize(
    ("change", "kind", "name", "values"),
    [
        ("edit", ReasonKind.HEADER_CHANGED, "second/b.h", None),
        ("remove", ReasonKind.HEADER_CHANGED, "second/b.h", "No such file or directory"),
        ("shadow", ReasonKind.HEADER_SHADOWED, "first/a.h", "present"),
        ("answer", ReasonKind.HEADER_ANSWER, "second/asked.h", "present"),
    ],
)
def test_header_is_named_with_what_became_of_it(
    program: Program, change: str, kind: ReasonKind, name: str, values: str | None
) -> None:
    """The header was changed, removed, shadowed, or newly included; then the key is known only after the compile."""
    program.including().compile()
    if change == "remove":
        (program.root / name).unlink()
    else:
        (program.root / name).write_text('#include "b.h"\n#define N 2\n')

    found = program.including().explain()

    (reason,) = found.reasons
    assert (reason.kind, reason.name, found.key) == (kind, str(program.root / name), "")
    assert reason.new == values or (values is None and str(reason.new).startswith("sha256 "))
    assert reason.old != reason.new


@pytest.mark.slow
def test_every_header_that_changed_is_named(program: Program) -> None:
    """All changed headers and other changes are named, against the entry with the fewest changes."""
    program.including().compile()
    (program.root / "second/b.h").write_text("#define N 2\n")
    program.including().compile()
    (program.root / "second/a.h").write_text('#include "b.h"\n// more\n')
    (program.root / "first/asked.h").write_text("")
    found = program.including(fastmath=True).explain()

    assert {(each.kind, Path(each.name).name) for each in found.reasons} == {
        (ReasonKind.OPTIONS, "fastmath"),
        (ReasonKind.HEADER_CHANGED, "a.h"),
        (ReasonKind.HEADER_ANSWER, "asked.h"),
    }
    (program.root / "second/b.h").write_text("#define N 3\n")
    assert {Path(each.name).name for each in program.including().explain().reasons} == {"a.h", "b.h", "asked.h"}


def test_headers_are_compared_with_those_of_the_nearest_entry(program: Program) -> None:
    """Of several header sets, the one with the fewest differences is used, not the newest."""
    first = (program.root / "second/b.h").read_text()
    program.including().compile()
    (program.root / "second/a.h").write_text('#include "b.h"\n#define M 1\n')
    (program.root / "second/b.h").write_text("#define N 2\n")
    program.including().compile()
    (program.root / "second/a.h").write_text('#include "b.h"\n')
    (program.root / "second/b.h").write_text(first)
    (program.root / "first/asked.h").write_text("")
    found = program.including().explain()

    assert [(each.kind, Path(each.name).name) for each in found.reasons] == [(ReasonKind.HEADER_ANSWER, "asked.h")]


def test_folders_searched_otherwise_are_named(program: Program) -> None:
    """The number of include folders differs."""
    program.including().compile()
    kernel = program.kernel(INCLUDES, include_dirs=[program.root / "second"])

    assert [each.kind for each in kernel.explain().reasons] == [ReasonKind.HEADER_SEARCH]


def test_other_compiler_and_version_are_named(program: Program) -> None:
    """The reason has the old and the new build; with toolchain="any" a compiler is no reason."""
    program.kernel().compile()
    other = MadeUpToolchain({**COMPILERS, "nvrtc": "build-id:ff"}, {**VERSIONS, "numba": "99"})
    found = program.kernel(toolchain=other).explain()

    assert {(each.kind, each.name) for each in found.reasons} >= {
        (ReasonKind.COMPILER, "nvrtc"),
        (ReasonKind.VERSION, "numba"),
    }
    assert next(each.new for each in found.reasons if each.name == "nvrtc") == "build-id:ff"
    settings = {"toolchain": "any"}
    assert program.kernel(toolchain=other, settings=settings).explain().is_hit
    changed = program.kernel(toolchain=other, settings=settings, fastmath=True).explain()
    assert [each.name for each in changed.reasons] == ["fastmath"]


@pytest.mark.parametrize("including", [False, True])
def test_entry_that_is_gone_or_damaged_is_told_from_a_change(program: Program, including: bool) -> None:
    """The entry was evicted; is damaged; or was found damaged by this process and compiled again."""
    kernel = program.including() if including else program.kernel()
    kernel.compile()
    (entry,) = program.cache().entries()
    path = file_of(program.cache().session.store, entry.key)  # type: ignore[arg-type]
    again = program.including if including else program.kernel
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)

    assert told(again().explain()) == [(ReasonKind.DAMAGED, "", None, "the digest differs")]
    assert path.exists()
    healing = again()
    with pytest.warns(KCacheWarning, match="damaged"):
        healing.compile()
    assert [each.kind for each in healing.explain().compiled_for] == [ReasonKind.DAMAGED]
    path.unlink()
    assert told(again().explain()) == [(ReasonKind.EVICTED_OR_CLEARED, "", None, None)]


def test_evicted_relatives_do_not_tell_the_reason(program: Program) -> None:
    """The components of an evicted entry are lost with it: the reason is unknown, and not that nothing was stored."""
    program.kernel(fastmath=True).compile()
    for entry in program.cache().entries():
        program.cache().session.local.remove(entry.key)
    found = program.kernel().explain()

    assert [each.kind for each in found.reasons] == [ReasonKind.UNKNOWN]
    assert found.nearest is None


def test_evicted_relative_is_passed_over_for_one_that_is_there(program: Program) -> None:
    """A stored entry is preferred, with its old values, even if more of them differ."""
    program.kernel(EMPTY + "//", std="c++17").compile()
    nearest = program.kernel(EMPTY, fastmath=True)
    nearest.compile()
    program.cache().session.local.remove(nearest.key())
    found = program.kernel(EMPTY).explain()

    assert found.nearest is not None
    assert {(each.component, each.old) for each in found.reasons} == {("source", EMPTY + "//"), ("options", "c++17")}


@pytest.mark.slow
def test_no_more_than_a_few_relatives_are_read(program: Program) -> None:
    """A kernel with hundreds of entries is explained as quickly as one with eight."""
    for number in range(10):
        program.kernel(EMPTY, max_registers=32 + 8 * number).compile()
    (key, *_) = [entry.key for entry in program.cache().entries()]

    assert len(program.cache().explain(key).others) == 8


def test_lines_of_the_source_are_looked_for_once(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """One search of the user's file, of a millisecond for some hundred lines, serves all compared entries."""
    for number in range(1, 5):
        program.kernel(SAXPY.replace("a *", f"{number} * a *")).compile()
    looked, real = [], linecache.getlines
    monkeypatch.setattr(linecache, "getlines", lambda *given: looked.append(given) or real(*given))
    fifth = program.kernel(SAXPY.replace("a *", "5 * a *"))

    assert [each.kind for each in fifth.explain().reasons] == [ReasonKind.SOURCE_CHANGED]
    assert len(looked) == 1


@pytest.mark.parametrize("mode", ["off", "refresh", "verify"])
def test_mode_that_does_not_look_is_the_reason(program: Program, mode: str) -> None:
    """The mode is the only reason, even if the entry is stored."""
    program.kernel().compile()

    found = program.kernel(settings={"mode": mode}).explain()

    assert (found.outcome, found.reasons[0]) == ("miss", Reason(ReasonKind.MODE, new=mode))


def test_kernel_that_cannot_be_keyed_says_why(program: Program) -> None:
    """The explanation has the reason that the warning gives."""
    found = program.kernel('extern "C" __global__ void k(int *o) { *o = __TIME__[0]; }').explain()

    assert (found.outcome, told(found)) == (
        "uncacheable", [(ReasonKind.UNCACHEABLE, "", None, "it uses __DATE__ or __TIME__")],
    )  # fmt: skip


PROGRAM = """
from numba_kcache import cached_kernel
@cached_kernel(arch="sm_90")
def k():
    return SOURCE
for each in (k, cached_kernel(SOURCE, arch="sm_90", fastmath=True)):
    print(each.explain().reasons[0].kind)
    each.compile()
"""


@pytest.mark.slow
def test_program_s_kernels_are_none_of_another_program(tmp_path: Path) -> None:
    """Both are `__main__`: programs differ by file or, at a prompt, by working directory; moved lines do not matter."""

    def reasons(folder: str, source: str, *, head: str = "", is_typed: bool = False) -> list[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        program = head + PROGRAM.replace("SOURCE", repr(source))
        (tmp_path / folder / "run.py").write_text(program)
        run = f"import os, runpy; os.chdir({str(tmp_path / folder)!r}); "
        run += f"exec({program!r})" if is_typed else "runpy.run_path('run.py', run_name='__main__')"
        return in_python(run, NUMBA_KCACHE_DIR=str(tmp_path / f"cache-{is_typed}")).split()

    for is_typed in (False, True):
        assert reasons("a", EMPTY, is_typed=is_typed) == ["never_stored"] * 2
        assert reasons("b", EMPTY + "// b", is_typed=is_typed) == ["never_stored"] * 2
        assert reasons("a", EMPTY + "// c", is_typed=is_typed, head="\n\n") == ["source_changed"] * 2


def name_in(file: str, text: str = EMPTY, *, name: str = "", label: str = "m.k", **more: Any) -> str:
    """The name of the history of a kernel that this file defines."""
    request = request_of(text, label=label, name=more.pop("entry", None), **more)
    return history_name(request._replace(file=file, name=name).subject)


@pytest.mark.parametrize("label", ["__main__.k", "__mp_main__.k", "<run_path>.k", "train.k", "train:7", "train:9"])
def test_history_is_the_same_whatever_a_process_calls_the_program(label: str) -> None:
    """The file is run as a script, by a pool or by `runpy`, or imported; line numbers are not in the name."""
    assert name_in("/app/train.py", label=label) == name_in("/app/train.py")


@pytest.mark.slow
@pytest.mark.parametrize("wrap", ["cached_kernel", "cached_module"])
def test_each_text_of_a_file_has_a_history(tmp_path: Path, wrap: str) -> None:
    """It is named by the text's first kernel: a text is compared with its own last state, not with another text."""
    program = f"""
from numba_kcache import {wrap}
TEXT = 'extern "C" __global__ void %s(float *x) {{ x[0] = %d; }}'
for name, number in [("a", 1), ("b", 1), ("c", 1), ("a", 2)]:
    kernel = {wrap}(TEXT % (name, number), arch="sm_90")
    print(kernel.explain().reasons[0].kind)
    kernel.compile()
"""
    reasons = in_python(program, NUMBA_KCACHE_DIR=str(tmp_path)).split()

    assert reasons == [*["never_stored"] * 3, "source_changed"]


def test_each_kernel_of_a_file_has_a_history() -> None:
    """A history belongs to a qualified name and the requested entry, which distinguishes kernels of one text."""
    names = [name_in("/app/k.py", name=each) for each in ("", "k", "k(n=3)", "make.<locals>.k")]
    names += [name_in("/app/k.py", EMPTY, entry=each) for each in ("k", "m")]

    assert len(set(names)) == 6
    assert name_in("/app/k.py", EMPTY, entry="k") == name_in("/app/k.py", SAXPY, entry="k", target="sm_80")


def test_kernels_of_texts_that_one_line_makes_have_histories_of_their_own(program: Program) -> None:
    """Another kernel of the loop is no earlier state of this one; an edit of this one is told."""
    cache = program.cache()

    def make(number: int, value: int) -> Any:
        text = f'extern "C" __global__ void k{number}(int *o) {{ *o = {value}; }}'
        return cached_kernel(text, cache=cache, arch="sm_90")

    reasons = []
    for number, value in ((1, 1), (2, 2), (1, 3)):
        reasons.append(make(number, value).explain().reasons[0].kind)
        make(number, value).compile()

    assert reasons == ["never_stored", "never_stored", "source_changed"]


def test_module_of_a_package_has_one_history_in_all_checkouts(tmp_path: Path) -> None:
    """Another checkout is the same code base; a file in no package is a program of its own."""
    for checkout in ("a", "b"):
        (tmp_path / checkout / "app/sub").mkdir(parents=True)
        for package in ("app", "app/sub"):
            (tmp_path / checkout / package / "__init__.py").touch()

    def in_both(file: str) -> int:
        return len({name_in(str(tmp_path / checkout / file)) for checkout in ("a", "b")})

    assert [in_both(each) for each in ("app/k.py", "app/sub/k.py", "k.py")] == [1, 1, 2]
    assert name_in(str(tmp_path / "a/app/k.py")) != name_in(str(tmp_path / "a/app/sub/k.py"))


def test_folder_that_is_gone_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt whose working directory was removed: the kernel compiles and is stored."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert name_in("", label="__main__.k")


def test_other_target_alone_is_a_reason(program: Program) -> None:
    """The nearest entry is one for the same target, if there is one."""
    program.kernel().compile()
    program.kernel(arch="sm_80", fastmath=True).compile()

    assert told(program.kernel().explain("sm_86")) == [(ReasonKind.TARGET, "", "sm_90", "sm_86")]
    assert {each.name for each in program.kernel(std="c++17").explain("sm_80").reasons} == {"fastmath", "std"}


def test_entry_for_the_same_target_is_nearer_than_any_other(program: Program) -> None:
    """An entry for the target with three other options is nearer than one for another target with the same options."""
    program.kernel(EMPTY, fastmath=True, std="c++17", max_registers=16).compile()
    program.kernel(EMPTY, arch="sm_80").compile()
    found = program.kernel(EMPTY).explain()

    assert found.nearest is not None
    assert found.nearest.target == "sm_90"
    assert {each.name for each in found.reasons} == {"fastmath", "std", "max_registers"}


# -- where the reasons appear ---------------------------------------------------------------------------------


def test_reason_stands_in_event_and_log_line_of_every_compile(
    program: Program, caplog: pytest.LogCaptureFixture
) -> None:
    """The event has the values and the text, the log line the text; the kind of reason is counted."""
    caches = program.cache(), program.cache(), program.cache(mode="refresh")
    options: tuple[dict[str, Any], ...] = {}, {"fastmath": True}, {}
    kernels = [program.kernel(cache=each, **more) for each, more in zip(caches, options, strict=True)]
    heard: list[Event] = []
    with caplog.at_level(logging.INFO, "numba_kcache"):
        for cache, kernel in zip(caches, kernels, strict=True):
            cache.subscribe(heard.append)
            kernel.compile()
    misses = [each.fields for each in heard if each.kind is EventKind.MISS]

    texts = [
        "nothing of this kernel was stored here before", "option fastmath: true is new",
        "mode=refresh does not look up entries",
    ]  # fmt: skip
    assert [each["reason"] for each in misses] == texts
    assert [each["reasons"][0].kind for each in misses] == [
        ReasonKind.NEVER_STORED, ReasonKind.OPTIONS, ReasonKind.MODE,
    ]  # fmt: skip
    logged = [each.getMessage() for each in caplog.records if each.getMessage().startswith("compiled ")]
    assert len(logged) == 3
    assert all(text in line for text, line in zip(texts, logged, strict=True))
    for cache in caches:
        cache.info()  # writes its counts now, not when the cache is garbage-collected
    assert program.cache().history().reasons == {"never_stored": 1, "options": 1, "mode": 1}


def test_frozen_cache_names_kernel_target_and_difference(program: Program) -> None:
    """The error has what is missing and how it differs from the stored entries; compilers are no reason in a frozen
    cache."""
    program.kernel(defines={"A": 1}).compile()
    frozen = program.kernel(defines={"A": 2}, settings={"mode": "frozen"}, toolchain=MadeUpToolchain({}, VERSIONS))

    with pytest.raises(FrozenCacheError, match=r"cannot compile .* for sm_90: .*: option defines A: 1 is now 2\n"):
        frozen.compile()


def test_key_of_a_stored_entry_is_explained(program: Program) -> None:
    """The explanation describes the entry and its differences from its relatives; the first digits of the key are
    enough."""
    program.kernel().compile()
    (key,) = [each.key for each in program.cache().entries()]
    program.kernel(fastmath=True).compile()
    cache = program.cache()
    found = cache.explain(key[:12])

    assert (found.outcome, found.key, found.target) == ("stored", key, "sm_90")
    assert [[each.name for each in reasons] for _, reasons in found.others] == [["fastmath"]]
    assert "option fastmath: true is gone" in str(found)
    with pytest.raises(EntryError, match="no keys"):
        cache.explain("0" * 64)
    with pytest.raises(EntryError):
        cache.explain("not a key")


def test_key_of_a_stored_entry_shows_the_line_that_changed(program: Program) -> None:
    """Both texts are in the cache, so the source files are not needed."""
    program.kernel().compile()
    program.kernel(SAXPY.replace("a * x", "a + x"), fastmath=True).compile()
    (newer,) = [entry for entry in program.cache().entries()
                if any(part["name"] == "options" and "fastmath" in str(part) for part in
                       program.cache().entry(entry.key).to_dict()["components"])]  # fmt: skip
    ((_, reasons),) = program.cache().explain(newer.key).others

    assert [(each.name, each.where, each.old, each.new) for each in reasons] == [
        ("fastmath", "", None, "true"),
        ("", "line 4", "if (i < n) y[i] = a * x[i] + y[i];", "if (i < n) y[i] = a + x[i] + y[i];"),
    ]


def test_key_of_a_damaged_entry_says_that_it_is(program: Program) -> None:
    """The explanation says that the entry is damaged."""
    kernel = program.kernel()
    kernel.compile()
    cache = program.cache()
    path = file_of(cache.session.store, kernel.key())  # type: ignore[arg-type]
    path.write_bytes(path.read_bytes()[:-1])
    found = cache.explain(kernel.key())

    assert (found.outcome, found.is_hit) == ("not stored", False)
    assert [each.kind for each in found.reasons] == [ReasonKind.DAMAGED]
    assert found.reasons[0].new


def test_explain_of_the_package_is_the_kernel_s_own(program: Program) -> None:
    """`numba_kcache.explain` looks in the cache that the kernel uses."""
    kernel = program.kernel()
    kernel.compile()

    assert numba_kcache.explain(kernel) == kernel.explain() == numba_kcache.explain(kernel, "sm_90")
    with pytest.raises(OptionError, match="neither a kernel"):
        numba_kcache.explain(3)
    with pytest.raises(OptionError, match="signature"):
        kernel.explain(signature="int")


# -- side effects -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_explaining_compiles_nothing_and_changes_nothing(program: Program) -> None:
    """No event, no file, no time of use, no quarantine, no count."""
    program.kernel().compile()
    program.including().compile()
    gc.collect()  # collected caches write what they learned: now, not between the two listings
    caches = [program.cache() for _ in range(4)]
    kernels = (
        program.kernel(cache=caches[0]),
        program.kernel(cache=caches[1], fastmath=True),
        program.including(cache=caches[2]),
        program.kernel(EMPTY, cache=caches[3]),
    )
    for path in (program.root / "cache").rglob("*"):
        if path.is_file():
            os.utime(path, (1_700_000_000, 1_700_000_000))
    (entry,) = [each for each in program.cache().entries() if each.kernels == ("k",)]
    damaged = file_of(program.cache().session.store, entry.key)  # type: ignore[arg-type]
    damaged.write_bytes(damaged.read_bytes()[:-1])
    before, events = program.files(), []
    for cache, kernel in zip(caches, kernels, strict=True):
        cache.subscribe(events.append)
        kernel.explain()
        kernel.explain("sm_80")
        cache.explain(entry.key)
        assert cache.info("process").to_dict()["misses"] == cache.info("process").hits == 0

    assert program.files() == before
    assert events == []


def test_explaining_in_an_empty_cache_makes_no_directory(program: Program) -> None:
    """The identities of compilers are not stored either."""
    program.including().explain()

    assert not (program.root / "cache").exists()


HIT = """
import os, sys
from pathlib import Path
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1], durability="none")
kernel = cached_kernel(sys.argv[2], arch="sm_90", cache=cache)
seen = []
sys.addaudithook(lambda name, arguments: seen.append(str(arguments[0])) if name in ("open", "os.rename") else None)
kernel.compile()
names = [name for name in seen if len(name) == 62 and not name.strip("0123456789abcdef")]
files = [path.parts[-3] for name in names for path in Path(sys.argv[1]).glob(f"v1/*/*/{name}")]
loaded = [name for name in sys.modules if name.startswith(("numba_kcache.explanation", "numba_kcache.engine.explain",
          "numba_kcache.engine.compile", "numba_kcache.model.reason"))]
print(cache.info("process").hits, *files, *loaded)
"""


@pytest.mark.slow
def test_hit_reads_the_compilers_record_and_its_entry_and_loads_nothing_of_explanations(program: Program) -> None:
    """A warm start imports no module of explanations, and opens two files of the store."""
    directory = str(program.root / "cache")

    assert in_python(HIT, directory, SAXPY).split()[0] == "0"
    assert in_python(HIT, directory, SAXPY).split() == ["1", "records", "entries"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "variants",
    [
        [{"key": "x"}], [{"key": "x", "request": 3}], [{"key": "0" * 64, "family": "x"}],
        [{"key": "0" * 64, "family": 3, "file": [1]}], [{"key": "../..", "request": "../.."}],
    ],
)  # fmt: skip
@pytest.mark.parametrize("including", [False, True])
def test_forged_or_torn_history_costs_an_explanation_alone(
    program: Program, variants: list[dict[str, Any]], including: bool
) -> None:
    """With any history the kernel is compiled and stored, and the next process hits."""
    make = program.including if including else program.kernel
    make().compile()
    store: Any = program.cache().session.store
    (entry,) = program.cache().entries()
    history = json.loads(store.peeking.get(entry.key).payloads["report"])["history"]
    path = file_of(store, history, "manifests")
    path.write_bytes(encode_entry(StoredEntry(history, {"variants": variants}, {}), MANIFEST))
    assert make(fastmath=True).explain().outcome == "miss"
    make(fastmath=True).compile()
    path.write_bytes(b"torn")
    assert make(std="c++17").explain().outcome == "miss"
    with pytest.warns(KCacheWarning, match="damaged"):
        make(std="c++17").compile()

    assert make(std="c++17").explain().is_hit
    assert make().explain().is_hit


def test_entry_of_another_version_is_explained_as_far_as_it_goes(program: Program) -> None:
    """The entry's report is missing, or has another form."""
    program.kernel().compile()
    store: Any = program.cache().session.store
    (entry,) = program.cache().entries()
    stored = store.peeking.get(entry.key)
    for report in (
        b"",
        b"[]",
        b'{"components": [[1]], "created_s": "x", "history": 7}',
        b'{"components": 3}',
        b'{"components": [3, ["a"], [1, "b", 2], [1, "b", null], ["a", 2, null], ["a", "b", "c", "d"]]}',
    ):
        store.put(StoredEntry(entry.key, stored.header, {"cubin": stored.payloads["cubin"], "report": report}))

        assert program.cache().explain(entry.key).outcome == "stored"
        assert program.kernel(fastmath=True).explain().outcome == "miss"
    report = stored.payloads["report"]
    for source in (b"", b"[]", b'{"source": 3}', b'{"source": null}'):
        store.put(StoredEntry(entry.key, stored.header, {"cubin": b"", "report": report, "source": source}))

        (reason,) = program.kernel(SAXPY + "//").explain().reasons
        assert (reason.kind, str(reason.old)[:7]) == (ReasonKind.SOURCE_CHANGED, "sha256 ")


def test_failure_while_explaining_does_not_reach_the_compile(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is then unknown."""
    program.kernel().compile()  # a kernel without history is not compared with anything
    monkeypatch.setattr("numba_kcache.explanation.nearest.read_history", lambda *_: 1 / 0)
    kernel = program.kernel(SAXPY + "//")
    kernel.compile()

    monkeypatch.undo()
    assert [each.kind for each in kernel.explain().compiled_for] == [ReasonKind.UNKNOWN]


def test_code_has_no_source_to_keep(program: Program) -> None:
    """Compiled code is compared by its digest."""
    made = program.kernel()
    made.compile()
    kernel = cached_kernel(made.cubin(), name="saxpy", arch="sm_90", cache=program.cache())
    kernel.compile()

    (entry,) = [each for each in program.cache().entries() if each.key == kernel.key()]
    assert set(program.cache().entry(entry.key).payload_bytes) == {"cubin", "report"}


def test_large_source_is_not_kept(program: Program) -> None:
    """Up to a limit the text is stored, so that a reason can show the line; above it only the digest is compared."""
    large = SAXPY + "\n//" + "x" * SOURCE_LIMIT_BYTES
    program.kernel(large).compile()
    (entry,) = program.cache().entries()
    found = program.kernel(large + "y").explain()

    assert "source" not in program.cache().entry(entry.key).payload_bytes
    (reason,) = found.reasons
    assert str(reason.old).startswith("sha256 ")
    assert reason.where
    program.kernel(large + "y").compile()
    ((_, (differs,)),) = program.cache().explain(entry.key).others
    assert (differs.kind, str(differs.old)[:7], differs.where) == (ReasonKind.SOURCE_CHANGED, "sha256 ", "")


# -- secrets -----------------------------------------------------------------------------------------------------


def test_entry_does_not_say_which_machine_made_it(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries travel with caches and bundles: they name no host."""
    monkeypatch.setattr("platform.node", lambda: "hunters-workstation")
    program.kernel().compile()
    (entry,) = program.cache().entries()
    shown = program.cache().entry(entry.key)

    assert "hunters" not in str(shown)
    assert not any(b"hunters" in data for data in
                   program.cache().session.local.peeking.get(entry.key).payloads.values())  # type: ignore[union-attr]  # fmt: skip


def test_secret_is_nowhere_in_store_event_log_or_text(
    program: Program, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For a variable that compilers read, and for text in `depends`, the reason says that it changed and not its
    value."""
    heard: list[Event] = []
    said = ""
    for number in (1, 2):
        monkeypatch.setenv("NV_NVVM_VERSION", f"hunter{number}")
        cache = program.cache()
        kernel = program.kernel(cache=cache, depends=[f"hunter{number}", b"hunter", 7 + number])
        said += str(kernel.explain()) + json.dumps(kernel.explain().to_dict())
        cache.subscribe(heard.append)
        with caplog.at_level(logging.DEBUG, "numba_kcache"):
            kernel.compile()
    said += str(program.cache().explain(kernel.key())) + str(program.cache().entry(kernel.key()))
    texts = [text for entry in program.cache().entries() for text in
             program.cache().session.local.peeking.get(entry.key).payloads.values()]  # type: ignore[union-attr]  # fmt: skip

    reasons = [each for event in heard if event.kind is EventKind.MISS for each in event.fields["reasons"]]
    assert {(each.kind, each.name) for each in reasons[1:]} == {
        (ReasonKind.ENVIRONMENT, "NV_NVVM_VERSION"), (ReasonKind.DEPENDS, "depends[0]"),
        (ReasonKind.DEPENDS, "depends[2]"),
    }  # fmt: skip
    assert ("8", "9") in [(each.old, each.new) for each in reasons]
    assert "hunter" not in said + caplog.text + repr(heard)
    assert not any(b"hunter" in data for _, _, data in program.files().values())
    assert not any(b"hunter" in data for data in texts)


def test_history_keeps_the_last_16_entries(program: Program) -> None:
    """A miss reads the whole history, and each new entry rewrites it."""
    cache = program.cache()
    for number in range(18):
        kernel = program.kernel(EMPTY, cache=cache, defines={"N": str(number)})
        kernel.compile()

    name = report_of(cache.session.local.peeking.get(kernel.key()))["history"]
    assert len(cache.session.local.get_manifest(name)) == 16
