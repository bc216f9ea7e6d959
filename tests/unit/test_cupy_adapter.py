"""CuPy's kernels in this cache, by CuPy 14.2's own compiler module where it is installed, and by one like it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import numba_kcache
from numba_kcache import EventKind, FrozenCacheError, KCacheWarning
from numba_kcache.adapters import turn
from numba_kcache.engine import process_session
from tests.support import fake_cupy
from tests.support.compiling import ROOT

PLAIN = 'extern "C" __global__ void plain(float *x) { *x = 1; }'
VALUED = '#include "value.h"\nextern "C" __global__ void valued(int *x) { *x = VALUE; }'
TEMPLATE = "template<class T> __global__ void __launch_bounds__(32) cast(T *x) { *x = 1; }"


class Compiler:
    """CuPy's compiler, with a look at what it did.

    Args:
        module: `cupy.cuda.compiler`.
    """

    def __init__(self, module: Any) -> None:
        self.module, self.own = module, module._kernel_cache_backend
        self.loaded: list[bytes] = getattr(module, "loaded", [])
        self.compiled: list[Any] = getattr(module, "compiled", [])

    def compile(self, source: str = PLAIN, options: tuple[str, ...] = (), **words: Any) -> bytes:
        """The code that CuPy loads for a source."""
        found = self.module._compile_module_with_cache(source, options, arch="90", **words)
        return found if words.get("to_ltoir") else self.loaded[-1]

    def again(self, *given: Any, **words: Any) -> tuple[bytes, int]:
        """The code that CuPy loads in a new process, and the number of compiles there."""
        process_session().forget()
        before = len(self.compiled)
        return self.compile(*given, **words), len(self.compiled) - before


_real: dict[str, Any] = {}
"""CuPy's modules, once they were imported: they cannot be imported twice."""


def real_compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CuPy's own module without a device: modules keep what they are made of, and a target is given."""
    sys.modules.update(_real)
    try:
        module = pytest.importorskip("cupy.cuda.compiler")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] in ("cupy", "cupyx", "cupy_backends")]:
            _real[name] = sys.modules.pop(name)  # other tests put something like CuPy in its place
        for name, each in _real.items():
            monkeypatch.setitem(sys.modules, name, each)
    if not hasattr(module, "_set_kernel_cache_backend"):
        pytest.skip("this CuPy has no place for a cache")
    loaded, compiled = list[bytes](), list[Any]()

    class Module:
        mapping: Any = None

        def load(self, code: bytes) -> None:
            loaded.append(code)

        def _set_mapping(self, mapping: Any) -> None:
            self.mapping = mapping

    compile_plain = module._compile_using_nvrtc_no_warning

    def compile_using_nvrtc(*given: Any) -> Any:
        compiled.append(given)
        return compile_plain(*given)

    monkeypatch.setattr(module, "function", SimpleNamespace(Module=Module))
    monkeypatch.setattr(module, "_get_arch_for_options_for_nvrtc", lambda arch=None: (f"-arch=sm_{arch}", "cubin"))
    monkeypatch.setattr(module, "_compile_using_nvrtc_no_warning", compile_using_nvrtc)
    monkeypatch.setattr(module, "loaded", loaded, raising=False)
    monkeypatch.setattr(module, "compiled", compiled, raising=False)
    monkeypatch.setattr(module, "_kernel_cache_backend", Dictionary())
    return module


class Dictionary:
    """A backend of CuPy, in place of the one that writes to the home directory."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def load(self, name: str) -> bytes | None:
        return self.kept.get(name)

    def save(self, name: str, cubin: bytes, source: str) -> None:
        self.kept[name] = cubin


@pytest.fixture(params=["like", "own"])
def cupy(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    """CuPy, to which the cache is installed."""
    if request.param == "own":
        module = real_compiler(monkeypatch)
    else:
        for name, each in fake_cupy.modules().items():
            monkeypatch.setitem(sys.modules, name, each)
        monkeypatch.setitem(sys.modules, "cupy.cuda.compiler", None)  # restored in the end
        module = fake_cupy.import_compiler()
    found = Compiler(module)
    numba_kcache.install(cupy=True)
    yield found
    numba_kcache.uninstall()
    assert module._kernel_cache_backend is found.own


@pytest.fixture
def events() -> Iterator[list[Any]]:
    """The events of the process's cache."""
    found: list[Any] = []
    unsubscribe = numba_kcache.subscribe(found.append)
    yield found
    unsubscribe()


def counts() -> tuple[int, int]:
    info = numba_kcache.info("process")
    return info.hits, info.misses


# -- look-ups --------------------------------------------------------------------------------------------------------


def test_later_process_compiles_nothing(cupy: Compiler) -> None:
    """It gets the bytes that CuPy compiled, under the kernel's name; CuPy's own cache stays empty."""
    first = cupy.compile()

    assert cupy.again() == (first, 0)
    assert first.startswith(b"\x7fELF")
    assert counts() == (1, 1)
    assert [each.kernels for each in numba_kcache.entries()] == [("cupy:plain",)]
    assert not cupy.own.kept


def test_names_of_templates_come_with_the_code(cupy: Compiler) -> None:
    """CuPy keeps the mangled names before the code; the entry has the names that the program wrote."""
    words = {"name_expressions": ("cast<float>", "cast<int>")}
    first = cupy.compile(TEMPLATE, **words)

    assert cupy.again(TEMPLATE, **words) == (first, 0)
    assert [each.kernels for each in numba_kcache.entries()] == [("cupy:cast<float>, cast<int>",)]


def test_code_of_templates_of_cupy_14_1_is_found(cupy: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the code without the names, which it reads from the loaded module."""
    if isinstance(cupy.own, Dictionary):
        pytest.skip("CuPy 14.2 itself keeps the names")
    monkeypatch.delattr(cupy.module, "_decode_cache_payload")
    words = {"name_expressions": ("cast<float>", "cast<int>")}
    first = cupy.compile(TEMPLATE, **words)

    assert first.startswith(b"\x7fELF")
    assert cupy.again(TEMPLATE, **words) == (first, 0)


def test_edited_header_is_never_stale(cupy: Compiler, tmp_path: Path) -> None:
    """CuPy's name knows no headers: an edit is a miss, and the former content is a hit again."""
    found = []
    for value in (1, 2, 1):
        (tmp_path / "value.h").write_text(f"#define VALUE {value}\n")
        found += [cupy.again(VALUED, (f"-I{tmp_path}",)) for _ in range(2)]

    codes, compiles = zip(*found, strict=True)
    assert compiles == (1, 0, 1, 0, 0, 0)
    assert codes[0] == codes[1] == codes[4] == codes[5] != codes[2] == codes[3]


def test_environment_of_the_compiler_is_in_the_key(cupy: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's name does not know the variables that NVRTC itself reads."""
    cupy.compile()
    monkeypatch.setenv("FINALIZER_USE_LEGACY_ELF_BUILDER", "1")

    assert [cupy.again()[1] for _ in range(2)] == [1, 0]
    monkeypatch.delenv("FINALIZER_USE_LEGACY_ELF_BUILDER")
    assert cupy.again()[1] == 0


def test_compiles_of_the_same_headers_have_one_entry(cupy: Compiler, tmp_path: Path) -> None:
    """CuPy's folder for a compile has another name each time; it is in no key."""
    (tmp_path / "value.h").write_text("#define VALUE 1\n")
    numba_kcache.configure(mode="refresh")
    for _ in range(2):
        assert cupy.again(VALUED, (f"-I{tmp_path}",))[1] == 1

    assert len(list(numba_kcache.entries())) == 1


def test_header_that_shadows_another_is_a_miss(cupy: Compiler, tmp_path: Path) -> None:
    """A file that appears in an earlier folder of the search is the one that is included from then on."""
    options = tuple(f"-I{tmp_path / name}" for name in ("first", "second"))
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    (tmp_path / "second/value.h").write_text("#define VALUE 1\n")
    before = cupy.compile(VALUED, options)
    (tmp_path / "first/value.h").write_text("#define VALUE 2\n")

    code, compiles = cupy.again(VALUED, options)

    assert (compiles, code == before) == (1, False)


def test_header_is_followed_within_a_process(cupy: Compiler, tmp_path: Path) -> None:
    """CuPy looks up each new object of a kernel; a hit of this process is compared with the files again."""
    header = tmp_path / "value.h"
    header.write_text("#define VALUE 1\n")
    before = cupy.compile(VALUED, (f"-I{tmp_path}",))
    assert cupy.compile(VALUED, (f"-I{tmp_path}",)) == before
    header.write_text("#define VALUE 22\n")

    assert cupy.compile(VALUED, (f"-I{tmp_path}",)) != before


@pytest.mark.parametrize(
    ("text", "options"),
    [
        (PLAIN.replace("1", "sizeof(__TIME__)"), ()),
        (f"#define NOW __DATE__\n{PLAIN}", ()),
        (PLAIN.replace("1", "sizeof(NOW)"), ("-DNOW=__TIME__",)),
    ],
)
def test_source_that_uses_the_time_is_not_stored(cupy: Compiler, text: str, options: tuple[str, ...]) -> None:
    """CuPy itself would return the date of an earlier day."""
    with pytest.warns(KCacheWarning, match="cupy:plain is not cached: it uses __DATE__"):
        cupy.compile(text, options)

    assert list(numba_kcache.entries()) == []


def test_miss_says_what_differs(cupy: Compiler) -> None:
    """The reason names the line of the source."""
    reasons: list[str] = []
    numba_kcache.subscribe(lambda event: reasons.append(str(event.fields.get("reason", ""))))
    cupy.compile(PLAIN)
    cupy.compile(PLAIN.replace("1", "2"))

    assert any("source" in each for each in reasons)


def test_ltoir_is_kept(cupy: Compiler) -> None:
    """What CuPy compiles for the operators of cuda.compute."""
    if not isinstance(cupy.own, Dictionary):
        pytest.skip("only CuPy itself compiles to LTO-IR")
    first = cupy.compile(PLAIN, to_ltoir=True)

    assert cupy.again(PLAIN, to_ltoir=True) == (first, 0)


# -- compiles --------------------------------------------------------------------------------------------------------


def failed(cupy: Compiler) -> Exception:
    with pytest.raises(Exception, match="nope") as caught:
        cupy.compile(PLAIN.replace("1", "nope"))
    return caught.value


def test_failed_compile_is_cupy_s_own_error(cupy: Compiler, events: list[Any]) -> None:
    """It ends at the thread's next look-up, although its traceback is kept, and stores nothing."""
    error = failed(cupy)
    code = cupy.compile()

    assert type(error).__name__ == "CompileException"
    assert code == cupy.again()[0]
    assert [each.kernels for each in numba_kcache.entries()] == [("cupy:plain",)]
    assert EventKind.COMPILE_FAILED in [each.kind for each in events]


def test_failed_compile_lets_its_turn_go_without_another_look_up(
    cupy: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread that asks for the same kernel then compiles, and gets the error at once."""
    monkeypatch.setattr(turn, "LOOK_S", 0.01)
    kept = failed(cupy)
    with ThreadPoolExecutor(1) as pool:
        assert type(pool.submit(failed, cupy).result(30)) is type(kept)


def test_one_of_many_threads_compiles(cupy: Compiler) -> None:
    """The others get its code."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cupy.compile(), range(8)))

    assert (len(cupy.compiled), len(set(cupy.loaded)), len(cupy.loaded)) == (1, 1, 8)


RANK = """
import sys
from tests.support import fake_cupy
sys.modules.update(fake_cupy.modules())
compiler = fake_cupy.import_compiler()
import numba_kcache
numba_kcache.install(cupy=True)
for number in range(3):
    compiler._compile_module_with_cache(sys.argv[1].replace("1", str(number)))
print(len(compiler.compiled), len(compiler.loaded))
"""


@pytest.mark.slow
def test_eight_ranks_compile_each_kernel_once() -> None:
    """The processes start at once on an empty cache."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", RANK, PLAIN]
    ranks = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(8)]
    compiles, loads = zip(*(map(int, rank.communicate()[0].split()) for rank in ranks), strict=True)

    assert (sum(compiles), loads) == (3, (3,) * 8)


# -- what is left to CuPy, and trouble -------------------------------------------------------------------------------


def left_to_cupy(cupy: Compiler, options: tuple[str, ...]) -> None:
    with pytest.warns(KCacheWarning, match="left to CuPy's own cache"):
        cupy.compile(PLAIN, options)


@pytest.mark.parametrize("options", [("-DCUPY_USE_JITIFY",), ("--pch",), ("-rdc=true",), ("--device-c",)], ids="".join)
def test_compile_that_cannot_be_observed_is_left_to_cupy(
    cupy: Compiler, options: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """CuPy's own cache has it, as without this one; in a frozen cache it is an error."""
    code = b"code of another compiler"
    monkeypatch.setattr(cupy.own, "load", lambda name: code)
    monkeypatch.setattr(cupy.module, "_compile_module_with_cache", own_steps(cupy))
    left_to_cupy(cupy, options)

    assert cupy.loaded[-1] == code
    assert list(numba_kcache.entries()) == []
    numba_kcache.configure(mode="frozen")
    with pytest.raises(FrozenCacheError, match="cannot be observed"):
        cupy.compile(PLAIN, options)


def own_steps(cupy: Compiler) -> Any:
    """Look up as CuPy does, without its preparations for Jitify and nvcc."""

    def look_up(source: str, options: tuple[str, ...], arch: str, backend: str = "nvrtc") -> None:
        name_expressions, to_ltoir = None, False
        found = cupy.module._kernel_cache_backend.load("name.cubin")
        assert (name_expressions, to_ltoir) == (None, False)
        cupy.loaded.append(found)

    return look_up


def test_compile_that_is_left_to_cupy_is_kept_by_cupy(cupy: Compiler) -> None:
    """What CuPy saves goes to the cache that it had."""
    backend = cupy.module._kernel_cache_backend
    backend.save("name.cubin", b"code", "source")

    assert cupy.own.kept == {"name.cubin": b"code"}


def test_unknown_version_is_left_to_cupy(cupy: Compiler) -> None:
    """A function without the variables by which this package knows how CuPy compiles."""
    with pytest.warns(KCacheWarning, match="this version of CuPy compiles in another way"):
        assert cupy.module._kernel_cache_backend.load("name.cubin") is None


def test_compile_that_was_not_observed_is_not_stored(cupy: Compiler) -> None:
    """A compile by another process, or by another NVRTC of this process."""

    def look_up(
        name: str, source: str, options: Any, arch: str, backend: str, name_expressions: Any, to_ltoir: bool
    ) -> None:
        assert cupy.module._kernel_cache_backend.load(name) is None
        assert arch
        cupy.module._kernel_cache_backend.save(name, b"code", source)

    cupy.compile(TEMPLATE)  # NVRTC is loaded
    with pytest.warns(KCacheWarning, match="its compile was not observed"):
        look_up("name.cubin", PLAIN, (), "90", "nvrtc", None, False)
    assert len(list(numba_kcache.entries())) == 1


@pytest.mark.parametrize("code", [b"\x7fELF and nothing", "sm_80"], ids=["senseless", "target"])
def test_stored_code_that_cannot_be_the_kernel_is_compiled_again(
    cupy: Compiler, code: bytes | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry with the right digests and a wrong meaning is set aside."""
    right = cupy.compile()
    numba_kcache.clear()
    if isinstance(code, str):
        code = numba_kcache.cached_kernel(PLAIN, arch=code).cubin()
    finish = turn.Turn.finish
    with monkeypatch.context() as patched:
        patched.setattr(turn.Turn, "finish", lambda self, _files: finish(self, {"data": code}))
        cupy.compile()

    assert cupy.again() == (right, 1)
    assert cupy.again() == (right, 0)


def test_trouble_of_the_cache_leaves_cupy_to_compile(cupy: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """One warning, and the code of a plain compile."""
    right = cupy.compile()
    numba_kcache.clear()
    monkeypatch.setattr(turn.Wanted, "turn", lambda *_: (_ for _ in ()).throw(RuntimeError("no turn")))
    with pytest.warns(KCacheWarning, match="cannot look for cupy:plain: no turn"):
        assert cupy.compile() == right


def test_bundle_and_frozen_cache_serve_cupy(cupy: Compiler, tmp_path: Path) -> None:
    """What is not in them is an error with the kernel's name, before CuPy compiles."""
    first = cupy.compile()
    numba_kcache.export_bundle(tmp_path / "all.kcache")
    numba_kcache.configure(directory=tmp_path / "elsewhere", mode="frozen")
    numba_kcache.register_bundle(tmp_path / "all.kcache")

    assert cupy.again() == (first, 0)
    with pytest.raises(FrozenCacheError, match="cupy:cast"):
        cupy.compile(TEMPLATE.replace("template<class T>", "typedef int T;"))


# -- installing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", ["_set_kernel_cache_backend", "_kernel_cache_backend"])
def test_older_cupy_is_named(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    """The warning says which version has the place; the program runs as before."""
    for name, each in fake_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, each)
    monkeypatch.setitem(sys.modules, "cupy._version", SimpleNamespace(__version__="13.6.0"))
    monkeypatch.setitem(sys.modules, "cupy.cuda.compiler", None)
    delattr(fake_cupy.import_compiler(), missing)
    with pytest.warns(KCacheWarning, match=r"CuPy 13\.6\.0 has no place for a cache"):
        numba_kcache.install(cupy=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numba_kcache.uninstall()
