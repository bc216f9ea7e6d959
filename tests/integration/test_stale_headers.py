"""Changes around headers, for which stale code was once served: served code equals that of a compile without a
cache."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import KCacheWarning, KernelCache, UncacheableError, cached_kernel, cached_module
from numba_kcache.frontends.source import build
from numba_kcache.headers import file_identity
from numba_kcache.launch import native
from numba_kcache.model import EventKind

KERNEL = 'extern "C" __global__ void k(long *out) { *out = VALUE; }\n'
HASH = "__device__ constexpr unsigned hash(const char *s) { return *s ? *s + 31 * hash(s + 1) : 7; }\n"
SPELLINGS = {
    "sizeof": "return sizeof(__FILE__);",
    "hash": "constexpr unsigned h = hash(__FILE__); return h;",
    "wide": "return GLUE(L, __FILE__)[x];",
    "builtin": "return __builtin_FILE()[x];",
    "pasted": "return sizeof(GLUE(__FI, LE__));",
}
"""The ways in which a header puts its path into the code."""


def header(spelling: str) -> str:
    paste = "#define PASTE(a, b) a##b\n#define GLUE(a, b) PASTE(a, b)\n"
    return f"{paste}{HASH}#define VALUE value(*out)\n__device__ inline long value(long x) {{ {SPELLINGS[spelling]} }}\n"


def code(directory: Path, options: dict[str, Any], *, is_cached: bool = True) -> tuple[bytes, int]:
    """Request the code as a new process would; return it with the number of compiles."""
    cache = KernelCache(directory) if is_cached else KernelCache(directory / "none", mode="off")
    options = dict(options)
    source, target = options.pop("source", '#include "value.h"\n' + KERNEL), options.pop("target", "sm_90")
    kernel = cached_kernel(source, arch=target, cache=cache, **options)
    kernel.compile()
    made = kernel.ptx(target).encode() if target.startswith("compute") else kernel.cubin(target)
    return made, cache.info("process").compiles


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90", "compute_90"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_path_in_whatever_form_invalidates_key(tmp_path: Path, spelling: str, target: str) -> None:
    """The header moves to another folder, whose name is in the code by its length, its hash, or as numbers."""
    served = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(header(spelling))
        options = {"include_dirs": [tmp_path / folder], "target": target}
        served.append(code(tmp_path / "cache", options)[0])
        assert served[-1] == code(tmp_path, options, is_cached=False)[0]
        assert code(tmp_path / "cache", options) == (served[-1], 0)

    assert served[0] != served[1]


@pytest.mark.slow
def test_path_in_a_lazy_module_invalidates_key(tmp_path: Path) -> None:
    """LTO-IR cannot be searched for the path."""
    served = []
    for folder in ("one", "another"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(header("sizeof"))
        source = '#include "value.h"\n' + KERNEL
        options: dict[str, Any] = {"include_dirs": [tmp_path / folder], "arch": "sm_90", "lazy": True}
        module = cached_module(source, cache=KernelCache(tmp_path / "cache"), **options)
        served.append(module["k"].cubin("sm_90"))

    assert served[0] != served[1]


@pytest.mark.parametrize("given", ["include_dirs", "source", "link"])
def test_dots_behind_a_link_are_above_its_target(tmp_path: Path, given: str) -> None:
    """As for the system and the compiler, `package/..` is the folder of the package that the link leads to."""
    caller = 'extern "C" __device__ int f(); extern "C" __global__ void k(long *out) { *out = f(); }'
    for folder, value in (("project", 1), ("real", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
        (tmp_path / folder / "k.cu").write_text(KERNEL.replace("VALUE", str(value)))
        (tmp_path / folder / "f.cu").write_text(f'extern "C" __device__ int f() {{ return {value}; }}')
    (tmp_path / "real" / "package").mkdir()
    (tmp_path / "project" / "package").symlink_to(tmp_path / "real" / "package")

    def options(above: Path) -> dict[str, Any]:
        by_name = {"include_dirs": {"include_dirs": [above]}, "source": {"source": above / "k.cu"}}
        return by_name.get(given, {"source": caller, "link": [above / "f.cu"]})

    served = code(tmp_path / "cache", options(tmp_path / "project" / "package" / ".."))

    assert served[0] == code(tmp_path / "cache", options(tmp_path / "real"))[0]
    assert served[0] != code(tmp_path / "cache", options(tmp_path / "project"))[0]


@pytest.mark.slow
@pytest.mark.parametrize("given", ["question", "include"])
def test_what_defines_ask_for_invalidates_key(tmp_path: Path, given: str) -> None:
    """A macro of `defines=` asks if a file is there, or names the file that is included."""
    if given == "question":
        source = "#if ASK\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n" + KERNEL
        options: dict[str, Any] = {"source": source, "defines": {"ASK": '__has_include("value.h")'}}
    else:
        (tmp_path / "value.h").write_text("#define VALUE 2\n")
        options = {"source": "#include HEADER\n" + KERNEL, "defines": {"HEADER": "<value.h>"}}
    options["include_dirs"] = [tmp_path]
    before = code(tmp_path / "cache", options)
    assert code(tmp_path / "cache", options) == (before[0], 0)

    (tmp_path / "value.h").write_text("#define VALUE 1\n")

    after = code(tmp_path / "cache", options)
    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "given", [{"defines": {"N": None}}, {"options": ["-DN"]}, {"options": ["--define-macro", "N"]}]
)
def test_name_from_a_macro_without_a_value_invalidates_key(tmp_path: Path, given: dict[str, Any]) -> None:
    """A macro that is defined without a value is 1, which may become part of a file's name."""
    (tmp_path / "v1.h").write_text("#define VALUE 1\n")
    macros = "#define NAMED(n) <v##n.h>\n#define CALLED(n) NAMED(n)\n"
    options = {"source": f"{macros}#include CALLED(N)\n{KERNEL}", "include_dirs": [tmp_path], **given}
    before = code(tmp_path / "cache", options)
    (tmp_path / "v1.h").write_text("#define VALUE 2\n")

    after = code(tmp_path / "cache", options)

    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["observe", "unwatch"])
def test_nvrtc_that_cannot_be_observed_compiles_and_stores_nothing_with_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """It imports a function that could read a file unseen, or nothing of the compile is seen: texts with includes run
    uncached."""
    answers: Any = {"observe": lambda *_: "it imports openat2", "unwatch": list}
    real = native.unwatch
    monkeypatch.setattr(native, what, answers[what] if what == "observe" else lambda: real() and [])
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    source, cache = '#include "value.h"\n' + KERNEL, KernelCache(tmp_path / "cache")
    kernel = cached_kernel(source, arch="sm_90", cache=cache, include_dirs=[tmp_path])

    with pytest.warns(
        KCacheWarning,
        match="cannot be (observed: it imports openat2|captured: what was compiled asked this NVRTC for no file)",
    ):
        assert kernel.cubin()

    assert cache.info().entries == 0
    cached_kernel(KERNEL.replace("VALUE", "1"), arch="sm_90", cache=cache).compile()
    assert cache.info().entries == 1


@pytest.mark.slow
def test_nvrtc_that_another_hooker_took_over_stores_nothing_with_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slots are looked at before each compile: after the first one they may lead past the observer."""
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    cache = KernelCache(tmp_path / "cache")
    options: dict[str, Any] = {"arch": "sm_90", "cache": cache, "include_dirs": [tmp_path]}
    cached_kernel('#include "value.h"\n' + KERNEL, **options).compile()
    assert cache.info().entries == 1

    monkeypatch.setattr(native, "observe", lambda _address: "its import fopen64 cannot be replaced")
    with pytest.warns(KCacheWarning, match="its import fopen64 cannot be replaced"):
        assert cached_kernel('#include "value.h"\n' + KERNEL.replace("k(", "other("), **options).cubin()

    assert cache.info().entries == 1


@pytest.mark.slow
def test_what_defines_ask_for_in_a_linked_text_invalidates_key(tmp_path: Path) -> None:
    """The linked text is compiled with the kernel's macros."""
    device = (
        '#if ASK\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\nextern "C" __device__ int f() { return VALUE; }\n'
    )
    (tmp_path / "device.cu").write_text(device)
    source = 'extern "C" __device__ int f();\nextern "C" __global__ void k(int *out) { *out = f(); }\n'
    options: dict[str, Any] = {
        "source": source, "link": [tmp_path / "device.cu"], "defines": {"ASK": "__has_include(<v.h>)"},
        "include_dirs": [tmp_path / "inc"],
    }  # fmt: skip
    before = code(tmp_path / "cache", options)
    assert code(tmp_path / "cache", options) == (before[0], 0)

    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/v.h").write_text("")

    after = code(tmp_path / "cache", options)
    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "#define HAS(x) /* is it */ __has_include(x)\n#if HAS(<v.h>)",
        "#define HAS(x) __has_include(x)\n#define V <v.h>\n#if HAS(V)",
        "#define HAS(x) __has_include(x)\n#define u v\n#if HAS(<u.h>)",
        "#define HAS __has_include\n#if defined(HAS) && (__CUDA_ARCH__ > 1 || 1) && HAS(<v.h>)",
        "#define HAS(x, y) __has_include(<x.y>)\n#define NAMED(x) HAS(x, h)\n#if 0\n#elif NAMED(v)",
        "#define GLUE(a, b) a##b\n#if GLUE(__has_, include)(<v.h>)",
        "#define GLUE(a, b, c) a##b##c\n#if GLUE(__h, as_inclu, de)(<v.h>)",
        "#define GLUE(a, b, c, d) a%:%:b%:%:c%:%:d\n#if GLUE(_, _h, as_inclu, de)(<v.h>)",
    ],
)
def test_question_behind_macros_invalidates_key(tmp_path: Path, text: str) -> None:
    """A new file changes the value of `__has_include`; a file that no condition asks for does not matter."""
    source = f"{text}\n#define VALUE 1\n#else\n#define VALUE 2\n#endif\n{KERNEL}"
    (tmp_path / "inc").mkdir()
    options: dict[str, Any] = {"source": source, "include_dirs": [tmp_path / "inc"]}
    before = code(tmp_path / "cache", options)
    (tmp_path / "inc/w.h").write_text("")
    assert code(tmp_path / "cache", options) == (before[0], 0)

    (tmp_path / "inc/v.h").write_text("")

    after = code(tmp_path / "cache", options)
    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


UNKNOWN: dict[str, tuple[str, dict[str, str]]] = {
    "question": ('#define H "v.h"\n#if __has_include(H)\n#include H\n#endif\n', {}),
    "question of defines": ("#if __has_include(H)\n#include H\n#endif\n", {"H": "<v.h>"}),
    "joined": ("#define J(x) <x>\n#include J(v.h)\n", {}),
    "of parts": ("#define J(x, y) <x.y>\n#if __has_include(J(v, h))\n#include J(v, h)\n#endif\n", {}),
    "text": ("#define T(x) #x\n#include T(v.h)\n", {}),
    "text of a macro": ("#define T_(x) #x\n#define T(x) T_(x)\n#define N v\n#include T(N.h)\n", {}),
    "text of defines": ("#define T_(x) #x\n#define T(x) T_(x)\n#include T(N.h)\n", {"N": "v"}),
    "wrapped": ("#define HAS(x) /* is it */ __has_include(x)\n#if HAS(<v.h>)\n#include <v.h>\n#endif\n", {}),
}
"""The ways in which macros name a file."""


@pytest.mark.slow
@pytest.mark.parametrize("how", UNKNOWN)
def test_header_that_macros_name_invalidates_key(tmp_path: Path, how: str) -> None:
    """The header is edited, shadowed, removed, made again or renamed: each time, twice, the code is that of a compile
    without a cache."""
    text, defines = UNKNOWN[how]
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    source = f"{text}#ifndef VALUE\n#define VALUE 0\n#endif\n{KERNEL}"
    options: dict[str, Any] = {"source": source, "defines": defines, "include_dirs": [first, second]}
    (second / "w.h").write_text("#define VALUE 5\n")
    served = []

    def ask() -> None:
        made = code(tmp_path / "cache", options)
        assert made == (code(tmp_path, options, is_cached=False)[0], 1)
        assert code(tmp_path / "cache", options) == (made[0], 0)
        (first / f"unrelated{len(served)}.h").write_text("")
        assert code(tmp_path / "cache", options) == (made[0], 0)
        served.append(made[0])

    for value, folder in enumerate((second, second, first)):
        (folder / "v.h").write_text(f"#define VALUE {value + 1}\n")
        ask()
    if "question" in how or how in ("of parts", "wrapped"):
        for folder in (first, second):
            (folder / "v.h").unlink()
        ask()
    else:
        (first / "v.h").unlink()
        assert code(tmp_path / "cache", options) == (served[1], 0)
        options["source"] = source.replace("v.h", "w.h").replace("N v", "N w")
        options["defines"] = {name: value.replace("v", "w") for name, value in defines.items()}
        ask()

    assert len(set(served)) == len(served) == 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        '#line 10 "grammar.y"\n#define VALUE 1\n',
        "#define VALUE 1\n#ifdef WITH_DATE\n__device__ const char *built = __DATE__;\n#endif\n",
        "#define VALUE 1\n#define BUILT __TIMESTAMP__\n",
    ],
)
def test_name_of_a_generated_file_and_clock_in_no_branch_keep_key(tmp_path: Path, text: str) -> None:
    """Such words, in a header or in the source, cause no compile in the second process."""
    (tmp_path / "value.h").write_text(text)
    lines = {"include_dirs": [tmp_path], "lineinfo": True}  # so it is compiled from the user's folders
    absolute = {"source": f'#include "{tmp_path}/value.h"\n' + KERNEL}
    lto = {"include_dirs": [tmp_path], "lto": True}
    for options in ({"include_dirs": [tmp_path]}, {"source": text + KERNEL}, lines, absolute, lto):
        first = code(tmp_path / "cache", options)
        assert first[1] == 1
        assert code(tmp_path / "cache", options) == (first[0], 0)


@pytest.mark.parametrize(
    "mention", ["// made at __DATE__\n", "#ifdef NEVER\n__device__ const char *t = __TIME__;\n#endif\n"]
)
@pytest.mark.parametrize("place", ["source", "header"])
def test_lazy_module_that_merely_mentions_the_clock_is_cached(tmp_path: Path, mention: str, place: str) -> None:
    """Its LTO-IR is the same with other words in their place, so the time is in no branch that is taken."""
    (tmp_path / "value.h").write_text(f"{mention if place == 'header' else ''}#define VALUE 1\n")
    text = (mention if place == "source" else "") + '#include "value.h"\n' + KERNEL
    counts = []
    for _ in range(2):
        cache = KernelCache(tmp_path / "cache")
        cached_module(text, lazy=True, include_dirs=[tmp_path], arch="sm_90", cache=cache)["k"].compile()
        counts.append((cache.info("process").compiles, cache.info("process").hits))

    assert counts == [(2, 0), (0, 2)]


@pytest.mark.filterwarnings("ignore:.*is not cached")
def test_lazy_module_that_uses_the_clock_is_not_stored(tmp_path: Path) -> None:
    """The time is in the LTO-IR of a header's function."""
    (tmp_path / "value.h").write_text("#define VALUE __TIME__[*out]\n")
    cache = KernelCache(tmp_path / "cache")
    module = cached_module(
        '#include "value.h"\n' + KERNEL, lazy=True, include_dirs=[tmp_path], arch="sm_90", cache=cache
    )

    with pytest.raises(UncacheableError, match=r"its module .* cannot be cached"):
        module["k"].compile()
    assert cache.info().entries == 0


JOINED = "#define TEXT(x) #x\n#define JOINED(x) TEXT(x)\n"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is not cached")
@pytest.mark.parametrize(
    ("include", "options"),
    [
        ('#include "value.h"', {}),
        ('#include "value.h"', {"lineinfo": True}),
        ('#include "{folder}/value.h"', {}),
        (JOINED + "#define FOLDER {folder}/value\n#include JOINED(FOLDER.h)", {}),
    ],
    ids=["in a folder", "lineinfo", "absolute", "absolute and pasted"],
)
def test_clock_in_a_branch_that_is_taken_is_not_stored(tmp_path: Path, include: str, options: dict[str, Any]) -> None:
    """Whatever name leads to the header, and also if that name is in the code."""
    text = "\n#ifdef TAKEN\nreturn __TIME__[x] + __FILE__[x];\n#endif\nreturn 1;"
    (tmp_path / "value.h").write_text(f"__device__ inline long value(int x) {{ {text} }}\n#define VALUE value(*out)\n")
    source = f"#define TAKEN\n{include.format(folder=tmp_path)}\n{KERNEL}"
    cache = KernelCache(tmp_path / "cache")
    kernel = cached_kernel(source, cache=cache, arch="sm_90", include_dirs=[tmp_path], **options)

    with pytest.raises(UncacheableError, match="__TIME__"):
        kernel.compile()


@pytest.mark.slow
def test_lineinfo_from_another_working_directory_keeps_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line table has absolute names; with `debug=True` it also has the working directory, and the key is
    another."""
    (tmp_path / "k.cu").write_text(KERNEL.replace("VALUE", "clock64()"))
    for option, compiles in (("lineinfo", 0), ("debug", 1)):
        options = {"source": tmp_path / "k.cu", option: True}
        monkeypatch.chdir(tmp_path)
        first = code(tmp_path / "cache", options)[0]
        monkeypatch.chdir("/")

        second = code(tmp_path / "cache", options)

        assert second == (code(tmp_path, options, is_cached=False)[0], compiles)
        assert (first == second[0]) == (option == "lineinfo")


@pytest.mark.slow
def test_header_that_is_mapped_for_writing_is_stored_as_it_was_read(tmp_path: Path) -> None:
    """The compiler is handed a copy of the bytes that are keyed: a write through the mapping is a miss later."""
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    options: dict[str, Any] = {"include_dirs": [tmp_path], "lineinfo": True}

    with open(tmp_path / "value.h", "r+b") as file, mmap.mmap(file.fileno(), 0) as page:
        before = code(tmp_path / "cache", options)
        assert code(tmp_path / "cache", options) == (before[0], 0)
        page[14:15] = b"2"
        after = code(tmp_path / "cache", options)

    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
def test_folder_is_a_prefix_only_at_a_separator(tmp_path: Path) -> None:
    """Many headers beside a folder in which a file was just made are cached."""
    (tmp_path / "include").mkdir()
    (tmp_path / "inc").mkdir()
    for number in range(300):
        (tmp_path / f"include/h{number}.h").write_text(f"#define V{number} {number}\n")
    text = "".join(f"#include <h{number}.h>\n" for number in range(300)) + "#define VALUE V299\n" + KERNEL
    options = {"source": text, "include_dirs": [tmp_path / "inc", tmp_path / "include"]}
    (tmp_path / "inc/just_made").write_text("")

    first = code(tmp_path / "cache", options)

    assert first[1] == 1
    assert code(tmp_path / "cache", options) == (first[0], 0)


@pytest.mark.slow
def test_header_that_comes_and_goes_while_it_is_compiled_is_a_miss_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file shadows another during the compile alone: the code is stored for the time when it does so again."""
    near, far = tmp_path / "near", tmp_path / "far"
    near.mkdir()
    far.mkdir()
    (far / "value.h").write_text("#define VALUE 1\n")
    plain = build.run_nvrtc

    def racing(*arguments: Any) -> Any:
        (near / "value.h").write_text("#define VALUE 2\n")
        try:
            return plain(*arguments)
        finally:
            (near / "value.h").unlink()

    options: dict[str, Any] = {"source": "#include <value.h>\n" + KERNEL, "include_dirs": [near, far], "lineinfo": True}
    with monkeypatch.context() as patched:
        patched.setattr(build, "run_nvrtc", racing)
        shadowed = code(tmp_path / "cache", options)

    made = code(tmp_path / "cache", options)
    assert made == (code(tmp_path, options, is_cached=False)[0], 1)
    assert made[0] != shadowed[0]
    (near / "value.h").write_text("#define VALUE 2\n")
    assert code(tmp_path / "cache", options) == (shadowed[0], 0)


def _moved(folder: Path, *names: str) -> None:
    """Rename the first path to the second, that to the third, and so on in a circle."""
    for name in names:
        (folder / name).rename(folder / f"{name}.moved")
    for name, after in zip(names, (*names[1:], names[0]), strict=True):
        (folder / f"{name}.moved").rename(folder / after)


def _linked_to(folder: Path, name: str, target: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


def _made(folder: Path, name: str, text: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(text)


ONE, TWO = "#define VALUE 1\n", "#define VALUE 2\n"
NEXT = "#include_next <v.h>\n"
ATTACKS: dict[str, tuple[dict[str, str], str, tuple[str, ...], Callable[[Path], object]]] = {
    "folders trade names": (
        {"a/v.h": ONE, "b/v.h": TWO}, '#include "a/v.h"\n', (), lambda at: _moved(at, "a", "b"),
    ),
    "files trade names": (
        {"v.h": ONE, "w.h": TWO}, '#include "v.h"\n', (), lambda at: _moved(at, "v.h", "w.h"),
    ),
    "an include folder that is a link leads elsewhere": (
        {"a/v.h": ONE, "b/v.h": TWO}, "#include <v.h>\n", ("link", "b"), lambda at: _linked_to(at, "link", "b"),
    ),
    "a link in a name leads elsewhere": (
        {"v.h": ONE, "b/v.h": TWO}, '#include "link/v.h"\n', (), lambda at: _linked_to(at, "link", "b"),
    ),
    "an include_next finds a file between": (
        {"a/v.h": NEXT, "b/x.h": "", "c/v.h": ONE}, "#include <v.h>\n", ("a", "b", "c"),
        lambda at: _made(at, "b/v.h", TWO),
    ),
    "a folder of the list is made": (
        {"b/v.h": ONE}, "#include <v.h>\n", ("a", "b"), lambda at: _made(at, "a/v.h", TWO),
    ),
    "a folder of a header's name becomes a header": (
        {"a/v.h/x.h": "", "b/v.h": ONE}, "#include <v.h>\n", ("a", "b"),
        lambda at: ((at / "a/v.h/x.h").unlink(), (at / "a/v.h").rmdir(), _made(at, "a/v.h", TWO)),
    ),
    "a header is asked for by another case": (
        {"v.h": ONE}, '#if __has_include("V.h")\n' + TWO + "#else\n" + ONE + "#endif\n", (),
        lambda at: (at / "v.h").rename(at / "V.h"),
    ),
    "a toolkit header is shadowed beside the source": (
        {"x.h": ""}, "#include <vector_types.h>\n#ifndef VALUE\n" + ONE + "#endif\n", (".",),
        lambda at: _made(at, "vector_types.h", TWO),
    ),
    "hard links of a file that counts once are parted": (
        {"v.h": "#pragma once\n#ifdef VALUE\n#undef VALUE\n" + TWO + "#else\n" + ONE + "#endif\n"},
        '#include "v.h"\n#include "w.h"\n', (),
        lambda at: ((at / "w.h").unlink(), (at / "w.h").write_bytes((at / "v.h").read_bytes())),
    ),
}  # fmt: skip
"""Files, includes of the source, folders, and an edit that makes VALUE 2 of 1."""


@pytest.mark.slow
@pytest.mark.parametrize("what", ATTACKS)
def test_other_file_under_a_name_invalidates_key(tmp_path: Path, what: str) -> None:
    """No file's content changes: names, links and folders lead to other files, and the served code follows."""
    files, includes, folders, edit = ATTACKS[what]
    tree = tmp_path / "tree"
    for name, text in files.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text)
    (tree / "link").symlink_to("a" if "a/v.h" in files else ".")
    if what.startswith("hard links"):
        (tree / "w.h").hardlink_to(tree / "v.h")
    (tree / "k.cu").write_text(includes + KERNEL)
    options: dict[str, Any] = {"source": tree / "k.cu", "include_dirs": [tree / each for each in folders]}
    before = code(tmp_path / "cache", options)
    assert code(tmp_path / "cache", options) == (before[0], 0)

    edit(tree)

    after = code(tmp_path / "cache", options)
    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the stat of each file and folder count as settled, as it is two seconds after the last change."""
    monkeypatch.setattr(file_identity, "SETTLED_AFTER_NS", 0)
    monkeypatch.setattr(file_identity, "WRITTEN_BACK_AFTER_NS", 0)
    monkeypatch.setattr(file_identity, "_kind", lambda *_: "ext4")


@pytest.mark.slow
@pytest.mark.usefixtures("settled")
def test_link_to_nothing_that_leads_somewhere_later_invalidates_key(tmp_path: Path) -> None:
    """The folder of the link does not change when the file appears to which the link leads."""
    (tmp_path / "inc").mkdir()
    (tmp_path / "inc/value.h").symlink_to(tmp_path / "made.h")
    text = '#if __has_include("value.h")\n#include "value.h"\n#else\n#define VALUE 1\n#endif\n'
    options: dict[str, Any] = {"source": text + KERNEL, "include_dirs": [tmp_path / "inc"]}
    before = code(tmp_path / "cache", options)
    assert code(tmp_path / "cache", options) == (before[0], 0)

    (tmp_path / "made.h").write_text("#define VALUE 2\n")

    after = code(tmp_path / "cache", options)
    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
def test_equal_link_input_in_another_searched_folder_invalidates_key(tmp_path: Path) -> None:
    """Its quoted includes begin in its own folder, which is searched in both cases."""
    for folder, value in (("one", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
        device = '#include "value.h"\nextern "C" __device__ int f() { return VALUE; }\n'
        (tmp_path / folder / "device.cu").write_text(device)
    source = 'extern "C" __device__ int f();\nextern "C" __global__ void k(int *out) { *out = f(); }\n'
    options: dict[str, Any] = {"source": source, "include_dirs": [tmp_path / "one", tmp_path / "other"]}
    before = code(tmp_path / "cache", {**options, "link": [tmp_path / "one/device.cu"]})
    options["link"] = [tmp_path / "other/device.cu"]

    after = code(tmp_path / "cache", options)

    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["macros", "joined lines", "flag"])
def test_absolute_name_in_pieces_names_the_same_file_from_a_moved_checkout(tmp_path: Path, how: str) -> None:
    """The text goes on naming the header of the first checkout, which is edited."""
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "value.h").write_text("#define VALUE 1\n")
    texts = {
        "macros": JOINED + "#include JOINED(HOME/first/value.h)\n", "flag": "",
        "joined lines": f'#include "{tmp_path}/fi\\\nrst/value.h"\n',
    }  # fmt: skip
    options: dict[str, Any] = {"source": texts[how] + KERNEL, "defines": {"HOME": str(tmp_path)}}
    if how == "flag":
        options["options"] = [f"-include={first}/value.h"]
    before = code(tmp_path / "cache", {**options, "include_dirs": [first]})
    (first / "value.h").write_text("#define VALUE 2\n")
    options["include_dirs"] = [second]

    after = code(tmp_path / "cache", options)

    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before[0]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is not cached")
def test_working_directory_that_changes_during_the_compile_is_that_of_the_compile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread changes it once NVRTC has found the file that `-include` names."""
    for folder, value in (("one", 1), ("other", 2)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "value.h").write_text(f"#define VALUE {value}\n")
    (tmp_path / "k.cu").write_text(KERNEL)
    options: dict[str, Any] = {"source": tmp_path / "k.cu", "options": ["-include=value.h"]}
    run = build.run_nvrtc

    def left(*arguments: Any) -> Any:
        found = run(*arguments)
        monkeypatch.chdir(tmp_path / "other")
        return found

    monkeypatch.chdir(tmp_path / "one")
    with monkeypatch.context() as during:
        during.setattr(build, "run_nvrtc", left)
        cache = KernelCache(tmp_path / "cache")
        before = cached_kernel(options["source"], cache=cache, options=options["options"]).cubin("sm_90")

    after = code(tmp_path / "cache", options)

    assert after == (code(tmp_path, options, is_cached=False)[0], 1)
    assert after[0] != before


HEADERS, EDITS, SERVED = 8, 66, 64


@pytest.mark.slow
def test_last_64_edits_of_headers_are_served_and_the_directory_stays_small(tmp_path: Path) -> None:
    """Headers that an edit did not change are stored once."""
    names = [f"h{number}.h" for number in range(HEADERS)]
    for name in names:
        (tmp_path / name).write_text("#pragma once\n")
    text = "".join(f'#include "{name}"\n' for name in names) + 'extern "C" __global__ void k() {}\n'
    (tmp_path / "k.cu").write_text(text)
    seen: list[EventKind] = []
    directory = tmp_path / "cache"

    def ask(edit: int) -> str:
        (tmp_path / names[edit % 7]).write_text(f"#pragma once  // {edit}\n")
        cache = KernelCache(directory, durability="none")
        cache.subscribe(lambda event: seen.append(event.kind))
        cached_kernel(tmp_path / "k.cu", arch="sm_90", cache=cache).compile()
        return "hit" if cache.info("process").hits else "miss"

    def content() -> list[bytes]:
        return [(tmp_path / name).read_bytes() for name in names[:7]]

    def size() -> int:
        return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())

    states, before = [], 0
    for edit in range(EDITS):
        assert ask(edit) == "miss"
        states.append(content())
        before = before or size()
    stored = KernelCache(directory).info().entries
    answers = []
    for state in states[-SERVED:]:
        for name, data in zip(names, state, strict=False):
            (tmp_path / name).write_bytes(data)
        cache = KernelCache(directory, durability="none")
        cached_kernel(tmp_path / "k.cu", arch="sm_90", cache=cache).compile()
        answers.append(cache.info("process").hits)

    assert stored == EDITS
    assert answers == [1] * SERVED
    assert EventKind.TROUBLE not in seen
    assert size() < EDITS * before, "an edit takes as much as the first compile"
