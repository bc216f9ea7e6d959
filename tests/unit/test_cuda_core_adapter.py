"""`adapters.ProgramCache`: cuda.core's interface of program caches over this store, and compiles with such a cache."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import FrozenCacheError, KernelCache, OptionError, cached_kernel
from numba_kcache.errors import ToolchainMissingError
from tests.support.compiling import SAXPY, in_python
from tests.support.stores import file_of

core = pytest.importorskip("cuda.core")
utils = pytest.importorskip("cuda.core.utils")
if not hasattr(utils, "ProgramCacheResource"):
    pytest.skip("this cuda.core has no program cache", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::numba_kcache.KCacheWarning")
Open = Callable[..., Any]


@pytest.fixture
def open_programs(tmp_path: Path) -> Open:
    """Makes program caches of one directory, each as a new process would."""
    return lambda **settings: programs_in(KernelCache(tmp_path / "cache", durability="none", **settings))


@pytest.fixture
def open_cache(tmp_path: Path) -> Open:
    """The `KernelCache` of a directory; `programs_in` makes a program cache over it."""
    return lambda **settings: KernelCache(tmp_path / "cache", durability="none", **settings)


def programs_in(cache: KernelCache) -> Any:
    from numba_kcache.adapters import ProgramCache

    return ProgramCache(cache)


def compiled(cache: Any, source: str = SAXPY, target_type: str = "cubin") -> bytes:
    """Compile a source with cuda.core and this program cache; return the code."""
    program = core.Program(source, "c++", core.ProgramOptions(arch="sm_90", name="saxpy"))
    return bytes(program.compile(target_type, cache=cache).code)


# -- the interface ---------------------------------------------------------------------------------------------------


def test_it_is_a_program_cache_resource(open_programs: Open) -> None:
    """The class has cuda.core's base class, is a context manager, and has `update` and `get`."""
    from numba_kcache.adapters import ProgramCache

    assert issubclass(ProgramCache, utils.ProgramCacheResource)
    with open_programs() as programs:
        programs.update({b"a": b"1", "b": b"2"})
        programs.update([(b"c", b"3")])
        assert [programs.get(each) for each in (b"a", b"b", "c", "d")] == [b"1", b"2", b"3", None]
        assert programs.get("d", b"else") == b"else"


def test_what_was_set_is_got_also_by_another_process(open_programs: Open) -> None:
    """Bytes, also empty ones, come back unchanged, under a key given as text or as its UTF-8 bytes."""
    programs = open_programs()
    values: dict[Any, Any] = {b"k": b"code", "ü": bytearray(b"array"), b"\xff\0": memoryview(b"view"), "": b""}
    for key, value in values.items():
        programs[key] = value
    for opened in (programs, open_programs()):
        assert len(opened) == 4
        assert all(opened[key] == bytes(value) for key, value in values.items())
        assert opened["ü".encode()] == b"array"
        assert type(opened[b"k"]) is bytes


def test_last_writer_wins(open_programs: Open) -> None:
    """A key that is set again gives the new code, in this process and in others, and is one program."""
    programs = open_programs()
    for code in (b"one", b"two"):
        programs["k"] = code
        assert (programs["k"], open_programs()["k"], len(programs)) == (code, code, 1)


def test_key_that_is_not_there_is_a_key_error(open_programs: Open) -> None:
    """Reading and deleting a missing key raise KeyError, also after a deletion while the code was in memory."""
    programs = open_programs()
    with pytest.raises(KeyError):
        programs["k"]
    with pytest.raises(KeyError):
        del programs["k"]
    programs["k"] = b"code"
    assert programs["k"] == b"code"
    del programs["k"]
    assert (programs.get("k"), open_programs().get("k"), len(programs)) == (None, None, 0)


@pytest.mark.parametrize("name", ["", "saxpy", "x" * 3000], ids=["none", "short", "long"])
def test_name_of_any_length_is_no_obstacle(open_programs: Open, name: str) -> None:
    """The name of a template's instance may have thousands of letters; its beginning is the entry's label."""
    programs = open_programs()
    programs["k"] = core.ObjectCode.from_ptx(b".version 8.0", name=name)

    assert open_programs()["k"] == b".version 8.0"


@pytest.mark.parametrize("key", [None, 1, ("k",), 1.5])
def test_key_of_another_type_is_a_type_error(open_programs: Open, key: Any) -> None:
    """Keys are bytes or text."""
    programs = open_programs()
    for use in (lambda: programs[key], lambda: programs.__setitem__(key, b""), lambda: programs.__delitem__(key)):
        with pytest.raises(TypeError):
            use()


@pytest.mark.parametrize("value", [None, 1, "text", ["a"]])
def test_value_of_another_type_is_a_type_error(open_programs: Open, value: Any) -> None:
    """Values are bytes, or what cuda.core compiled."""
    programs = open_programs()
    with pytest.raises(TypeError):
        programs["k"] = value
    assert len(programs) == 0


def test_code_of_a_file_is_kept_and_not_its_path(open_programs: Open, tmp_path: Path) -> None:
    """The file of an ObjectCode with a path is read when it is set; if the file is gone, that is an error."""
    path = tmp_path / "k.cubin"
    path.write_bytes(b"\x7fELF code")
    programs = open_programs()
    programs["k"] = core.ObjectCode.from_cubin(str(path))
    path.unlink()
    assert programs["k"] == b"\x7fELF code"
    with pytest.raises(FileNotFoundError):
        programs["l"] = core.ObjectCode.from_cubin(str(path))


def test_clear_leaves_kernels(open_programs: Open, tmp_path: Path) -> None:
    """`len` counts programs and `clear` removes them; all other entries of the cache stay."""
    programs, cache = open_programs(), KernelCache(tmp_path / "cache", durability="none")
    cached_kernel(SAXPY, arch="sm_90", cache=cache).compile()
    cache.get_or_build({"a": 1}, lambda: b"1", label="cuda.core program of mine")
    cache.get_or_build({"b": 1}, lambda: b"1", meta={"note": ["'resource': 'cuda.core program'"]})
    programs["k"] = b"code"
    assert len(programs) == 1
    programs.clear()
    assert (len(programs), programs.get("k"), cache.info().entries) == (0, None, 3)


# -- compiling -------------------------------------------------------------------------------------------------------


def test_compile_finds_what_was_compiled(open_cache: Open) -> None:
    """The second process compiles nothing, and gets the bytes that a compile makes; both look-ups are counted."""
    caches = open_cache(), open_cache()
    first, second = map(programs_in, caches)
    code = compiled(first)

    assert code == compiled(second) == compiled(None)
    assert compiled(second) == code
    told = [each.info("process") for each in caches]
    counts = [(each.misses, each.compiles, each.hits) for each in told]
    assert counts == [(1, 1, 0), (0, 0, 1)]
    assert told[1].time_saved_s > 0


def test_environment_of_the_compiler_is_in_the_key(open_programs: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuda.core's key does not know the variables that NVRTC itself reads."""
    before = compiled(open_programs())
    monkeypatch.setenv("FINALIZER_USE_LEGACY_ELF_BUILDER", "1")

    assert compiled(open_programs()) != before


def test_other_source_options_or_kind_of_code_are_other_programs(open_programs: Open) -> None:
    """cuda.core's key decides."""
    programs = open_programs()
    others = compiled(programs, SAXPY.replace("a * x", "a / x")), compiled(programs, SAXPY, "ltoir")
    codes = {compiled(programs), *others}
    assert len(codes) == len(programs)


def test_damaged_program_is_compiled_again(open_cache: Open) -> None:
    """cuda.core's own caches return damaged code; here a flipped byte is a miss, and the entry is replaced."""
    code, cache = compiled(programs_in(open_cache())), open_cache()
    (entry,) = cache.entries()
    file = file_of(cache.session.local, entry.key)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    again = open_cache()
    assert compiled(programs_in(again)) == code
    assert again.info("process").compiles == 1
    assert open_cache().verify() == []


def test_program_has_its_code_where_nothing_can_be_stored(tmp_path: Path) -> None:
    """A directory that cannot be written to costs one warning; with cuda.core's own cache the code would be lost."""
    from numba_kcache.adapters import ProgramCache

    (tmp_path / "file").write_text("")
    assert compiled(ProgramCache(KernelCache(tmp_path / "file/cache"))).startswith(b"\x7fELF")


def test_modes_mean_what_they_mean_for_kernels(open_programs: Open, open_cache: Open) -> None:
    """Frozen raises an error for a miss, refresh compiles again, read-only and off store nothing."""
    with pytest.raises(FrozenCacheError):
        compiled(open_programs(mode="frozen"))
    for mode in ("readonly", "off"):
        compiled(open_programs(mode=mode))
    assert len(open_programs()) == 0
    compiled(open_programs())
    cache = open_cache(mode="refresh")
    refresh = programs_in(cache)
    compiled(refresh)
    assert (cache.info("process").compiles, len(refresh)) == (1, 1)
    compiled(open_programs(mode="frozen"))


def test_lists_and_reports_name_the_program(open_cache: Open) -> None:
    """A program is listed by its name in cuda.core, with the kind of its code."""
    cache = open_cache()
    compiled(programs_in(cache))
    (entry,) = cache.entries()
    assert entry.kernels == ("cuda.core program saxpy",)
    assert cache.entry(entry.key).to_dict()["meta"]["code_type"] == "cubin"


def test_default_is_the_processs_cache(tmp_path: Path) -> None:
    """Without a cache it is the one that `numba_kcache.info()` shows; anything else is refused."""
    from numba_kcache.adapters import ProgramCache

    ProgramCache()["of the process"] = b"code"
    assert any(each.kernels == ("cuda.core program",) for each in numba_kcache.entries())
    with pytest.raises(OptionError, match=r"it is a \w+Path.*\n.*KernelCache"):
        ProgramCache(tmp_path)


def test_adapters_import_nothing_before_they_are_used() -> None:
    """`numba_kcache.adapters` can be imported without cuda.core; a name that it does not have is an error."""
    code = "import sys, numba_kcache.adapters as a; print('cuda' in sys.modules, hasattr(a, 'Nonsense'))"
    assert in_python(code).split() == ["False", "False"]


def test_older_cuda_core_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cuda.core has no base class for program caches, the error says what to install."""
    from numba_kcache.adapters.cuda_core import program_cache

    program_cache.cache_clear()
    monkeypatch.setitem(sys.modules, "cuda.core.utils", None)
    with pytest.raises(ToolchainMissingError, match="cannot make a ProgramCache"):
        program_cache()


@pytest.mark.parametrize("question", ["include", "__has_include"])
def test_program_that_asks_for_files_follows_them(
    open_cache: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """Headers in the working directory are in no key of cuda.core: an edit, or a file that appears, is a miss here."""
    source = (
        '#include "value.h"\n'
        if question == "include"
        else '#if __has_include("value.h")\n#include "value.h"\n#else\n#define VALUE 7\n#endif\n'
    ) + 'extern "C" __global__ void saxpy(int *x) { *x = VALUE; }'
    monkeypatch.chdir(tmp_path)
    made = []
    for value in (1, 2, 1):
        if question == "include" or value == 2:
            (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        else:
            (tmp_path / "value.h").unlink(missing_ok=True)
        for _ in range(2):
            cache = open_cache()
            made.append((compiled(programs_in(cache), source), cache.info("process").compiles))

    codes, compiles = zip(*made, strict=True)
    assert compiles == (1, 0, 1, 0, 0, 0)
    assert codes[0] == codes[1] == codes[4] == codes[5] != codes[2] == codes[3]


def made_of_header() -> bytes:
    """Compile a program that includes a header of the working directory, without a cache."""
    source = '#include "value.h"\nextern "C" __global__ void saxpy(int *x) { *x = VALUE; }'
    return bytes(core.Program(source, "c++", core.ProgramOptions(arch="sm_90")).compile("cubin").code)


@pytest.mark.parametrize("order", ["one by one", "all looked up first", "stored in reverse", "failed in between"])
def test_program_is_stored_under_what_was_asked_since_its_own_look_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    """Two caches over one program, and two programs of one cache, on one thread: each is a hit until the edit."""
    monkeypatch.chdir(tmp_path)
    seen = []

    def ask() -> None:
        caches = [programs_in(KernelCache(tmp_path / name, durability="none")) for name in ("first", "second")]
        places = [(programs, key) for programs in caches for key in (b"one", b"other")]
        missed = [] if order == "one by one" else [place for place in places if place[0].get(place[1]) is None]
        code = made_of_header() if missed else b""
        if order == "failed in between":
            places[0][0].get(b"of a compile that fails")
        for programs, key in reversed(missed) if order == "stored in reverse" else missed:
            programs[key] = code
        if order == "one by one":
            for programs, key in places:
                if programs.get(key) is None:
                    programs[key] = made_of_header()
                    missed.append((programs, key))
        assert [programs[key] for programs, key in places] == [made_of_header()] * 4
        seen.append(len(missed))

    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        for _ in range(2):
            ask()
    assert seen == [4, 0, 4, 0]


def test_code_that_another_thread_compiled_is_no_hit_after_an_edit(
    open_cache: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was looked up and missed, but was compiled where its questions are not known to be its own."""
    monkeypatch.chdir(tmp_path)
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        for _ in range(2):
            programs = programs_in(open_cache())
            if programs.get(b"one") is None:
                thread = threading.Thread(target=lambda cache=programs: cache.__setitem__(b"one", made_of_header()))
                thread.start()
                thread.join()
            assert (programs.get(b"one") or made_of_header()) == made_of_header()


@pytest.mark.slow
def test_first_look_up_of_a_process_sees_the_compile_that_follows(tmp_path: Path) -> None:
    """NVRTC need not be loaded before the first look-up."""
    text = f"""
        from cuda.core import Program, ProgramOptions
        from numba_kcache import KernelCache
        from numba_kcache.adapters import ProgramCache

        programs = ProgramCache(KernelCache({str(tmp_path / "cache")!r}, durability="none"))
        code = programs.get(b"one")
        print("miss" if code is None else "hit")
        source = '#include "value.h"\\nextern "C" __global__ void saxpy(int *x) {{ *x = VALUE; }}'
        made = bytes(Program(source, "c++", ProgramOptions(arch="sm_90")).compile("cubin").code)
        if code is None:
            programs[b"one"] = made
        assert code in (None, made)
    """
    found = []
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        found += [in_python(textwrap.dedent(text), cwd=str(tmp_path)).split() for _ in range(2)]
    assert found == [["miss"], ["hit"], ["miss"], ["hit"]]


def test_a_linker_counts_once_cuda_core_calls_it() -> None:
    """A key of C++ leaves nvJitLink unmapped; after a key of PTX the entries are those of the one that is called."""
    text = """
        from cuda.core import ProgramOptions
        from cuda.core.utils import make_program_cache_key
        from numba_kcache.adapters import ProgramCache
        from numba_kcache.toolchain import called
        programs, options = ProgramCache(), ProgramOptions(arch="sm_90", name="k")
        for kind, code in (("c++", "//"), ("ptx", ".version 8.0")):
            key = make_program_cache_key(code=code, code_type=kind, options=options, target_type="cubin")
            assert programs.get(key) is None
            print(kind, "nvrtc" in called, "nvJitLink" in called, "libnvJitLink" in open("/proc/self/maps").read())
    """
    lines = in_python(textwrap.dedent(text)).splitlines()
    assert lines == ["c++ True False False", "ptx True True True"]


def test_more_look_ups_than_are_remembered_store_no_stale_code(
    open_cache: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest of many look-ups without a compile are forgotten; what is stored for them is no hit."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("numba_kcache.adapters.cuda_core.MISSED_LIMIT", 2)
    programs = programs_in(open_cache())
    keys = [b"one", b"two", b"three"]
    for value in (1, 2):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        missed = [key for key in keys if programs.get(key) is None]
        for key in missed:
            programs[key] = made_of_header()
        assert {programs.get(key) or made_of_header() for key in keys} == {made_of_header()}


@pytest.mark.parametrize("way", ["set twice", "copied", "copied after a look-up", "copied by another process"])
def test_code_that_is_set_again_or_elsewhere_keeps_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A second `set`, and a copy into another cache, are stored under what the compile asked, also after an edit."""
    monkeypatch.chdir(tmp_path)
    first, second = (programs_in(KernelCache(tmp_path / name, durability="none")) for name in ("first", "second"))
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    assert first.get("k") is None
    code = first["k"] = made_of_header()
    if way == "copied by another process":
        monkeypatch.setattr("numba_kcache.adapters.cuda_core._rows", {})
        first = programs_in(KernelCache(tmp_path / "first", durability="none"))
        code = first["k"]
    target = first if way == "set twice" else second
    assert way != "copied after a look-up" or second.get("k") is None
    target["k"] = code

    assert target["k"] == code
    (tmp_path / "value.h").write_text("#define VALUE 2\n")
    assert target.get("k") is None
    target["k"] = code
    assert target.get("k") is None
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    assert target["k"] == code


def test_code_of_unknown_headers_is_not_stored(
    open_cache: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that was compiled before its key was looked up is a miss, and one warning says why."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    programs, code = programs_in(open_cache()), made_of_header()
    with pytest.warns(numba_kcache.KCacheWarning, match="look its key up before"):
        programs["early"] = core.ObjectCode.from_cubin(code, name="compiled too early")
    assert programs.get("early") is None
    programs["early"] = made_of_header()
    assert programs["early"] == code
