"""Modules without a GPU: one source, many kernels, compiled at once or linked one by one."""

from __future__ import annotations

import copy
import pickle
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import CachedModule, Kernel, KernelCache, cached_kernel, cached_module
from numba_kcache.errors import (
    CompileError,
    EntryError,
    FrozenCacheError,
    KCacheWarning,
    LaunchConfigError,
    OptionError,
    UncacheableError,
)
from numba_kcache.model import Artifact, Target
from numba_kcache.model.cubin import read_cubin
from numba_kcache.toolchain import nvjitlink
from tests.support.compiling import SAXPY, compiled, in_python
from tests.support.resolving import definition_of, resolutions_of

SOURCE = r"""
__constant__ double coeffs[3][5];
__device__ const float table[4] = {1, 2, 3, 4};
__device__ int counter;
namespace ns { __device__ float2 pair; }
#define AXPY(T) extern "C" __global__ void axpy_##T(T a, const T *x, T *y, int n) { \
    int i = threadIdx.x; if (i < n) y[i] = a * x[i] + (T)table[i & 3] + (T)coeffs[1][i & 3]; }
AXPY(float)
AXPY(double)
template <class T, int N> struct box { T value[N]; };
template <class T, int N> __global__ void gemm(T *x, box<T, N> b) { x[threadIdx.x] = b.value[N - 1]; }
extern "C" __global__ void count() { atomicAdd(&counter, 1); ns::pair.x += 1; }
"""

NAMES = ["axpy_float", "gemm<float, 32>", "gemm<box<int,2>,3>", "count"]


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache", durability="none")


def artifact_of(found: CachedModule) -> Artifact:
    return resolutions_of(found).exactly(Target(9, 0)).artifact


def module(cache: KernelCache, source: Any = SOURCE, **options: Any) -> CachedModule:
    return cached_module(source, arch="sm_90", cache=cache, **options)


def counts(cache: KernelCache) -> tuple[int, int, int]:
    """(compiles, hits, misses) of this process."""
    info = cache.info("process")
    return info.compiles, info.hits, info.misses


each_way = pytest.mark.parametrize("lazy", [False, True], ids=["eager", "lazy"])


# -- which kernels there are ----------------------------------------------------------------------------------


@each_way
def test_all_kernels_are_found_also_those_that_macros_make(cache: KernelCache, lazy: bool) -> None:
    """Kernels are in the order of the source, with the compiler's parameter types; templates without an instance are
    left out."""
    found = module(cache, lazy=lazy)

    assert list(found) == ["axpy_float", "axpy_double", "count"]
    assert len(found) == 3
    assert [each.c_type for each in found.axpy_double.params] == ["double", "double const*", "double*", "int"]
    made = resolutions_of(found.axpy_double).exactly(Target(9, 0)).artifact
    assert definition_of(found.axpy_double).kernel_in(made).typed
    assert found.axpy_float.regs_per_thread > 0
    assert "axpy_float" in found
    assert "gemm" not in found


def test_linker_s_words_are_kept_with_a_kernel_that_is_linked_alone(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`log` of a lazy module's kernel has the output of nvJitLink at its link, also in the next process."""
    link = nvjitlink.link

    def talking(*arguments: Any) -> tuple[bytes, str]:
        return link(*arguments)[0], "info: 12 registers"

    monkeypatch.setattr(nvjitlink, "link", talking)
    assert module(cache, SAXPY, lazy=True).saxpy.log == "info: 12 registers"
    again = KernelCache(cache.directory, durability="none")
    assert module(again, SAXPY, lazy=True).saxpy.log == "info: 12 registers"


@each_way
def test_kernel_of_a_header_beside_a_header_is_found(cache: KernelCache, tmp_path: Path, lazy: bool) -> None:
    """The macro that makes it is read from the file that the compiler includes, beside the including header."""
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "outer.h").write_text('#include "inner.h"\n')
    (tmp_path / "first" / "inner.h").write_text('#define MAKE(name) extern "C" __global__ void name(float *x) {}\n')
    found = module(cache, '#include "first/outer.h"\nMAKE(made)', lazy=lazy, include_dirs=[str(tmp_path)])

    assert [each.c_type for each in found.made.params] == ["float*"]


def test_module_knows_its_kernels_before_any_is_used(cache: KernelCache) -> None:
    """`in` compiles the module if `names` does not list the kernel; an object that is no text is in no module."""
    names = list(module(cache))
    fresh = module(cache)

    assert names[0] in fresh
    assert "nowhere" not in module(cache)
    assert 3 not in fresh


def test_name_that_was_guessed_is_gone_when_the_kernels_are_known(cache: KernelCache) -> None:
    """An attribute compiles nothing, so at first any name gives a kernel object; a wrong name is dropped after the
    compile."""
    fresh = module(cache)
    guessed = fresh.nowhere
    name = next(iter(fresh))

    assert guessed.__name__ == "nowhere"
    with pytest.raises(AttributeError, match="nowhere"):
        _ = fresh.nowhere
    assert getattr(fresh, name) is fresh[name] is vars(fresh)[name]


@pytest.mark.parametrize("names", [None, ["saxpy"]])
def test_launch_of_a_module_says_what_to_write(cache: KernelCache, names: Any) -> None:
    """As a kernel, as a function, and by the methods of CuPy's RawModule."""
    module: Any = cached_module(SAXPY, names, arch="sm_90", cache=cache)
    for use in (lambda: module[8, 128], lambda: module((8,), (128,), ())):
        with pytest.raises(LaunchConfigError, match="whose kernels have names") as caught:
            use()
        assert '"][grid, block]' in caught.value.hint
    with pytest.raises(AttributeError, match=r'write module\["name"\]'):
        module.get_function("saxpy")
    with pytest.raises(AttributeError, match=r'write module.symbol\("name"\)'):
        module.get_global("table")


@each_way
def test_names_choose_entries_and_instantiate_templates(cache: KernelCache, lazy: bool) -> None:
    """Commas and nested brackets are allowed; spaces do not matter; a bare name is enough if it is unique."""
    source = SOURCE.replace("counter;", "counter; template<class T> __global__ void one(T) {}")
    found = module(cache, source, names=[*NAMES, "one<long long>"], lazy=lazy)

    assert list(found) == [*NAMES, "one<long long>"]
    assert [str(each) for each in found["gemm<float,32>"].params] == ["float* x", "box<float, 32> b"]
    assert found["gemm<float,32>"].params[1].size == 128
    assert found["gemm<box<int, 2>, 3>"].params[1].size == 24
    assert found.one is found["one<long long>"]
    with pytest.raises(EntryError, match=r"there are gemm<float, 32>, gemm<box<int,2>,3>"):
        found["gemm"]


@each_way
def test_overloads_and_namespaces_are_told_apart(cache: KernelCache, lazy: bool) -> None:
    """Kernels with one name are distinguished by their parameter types; an ambiguous bare name is an error."""
    source = """
__global__ void f(int x) {}
__global__ void f(float *x) {}
namespace q { __global__ void f(double x) {} __global__ void g(short x) {} }"""
    found = module(cache, source, lazy=lazy)

    assert {name: found[name].params[0].c_type for name in found} == {
        "f(int)": "int", "f(float*)": "float*", "q::f": "double", "q::g": "short",
    }  # fmt: skip
    assert found.g is found["q::g"]
    assert found["f(float *)"] is found["f(float*)"] is found["f(float*)"]
    with pytest.raises(EntryError, match=r"there are f\(int\), f\(float\*\), q::f"):
        found["f"]
    assert module(cache, source, names=["q::f"], lazy=lazy).f.params[0].c_type == "double"


def test_kernels_are_cached_kernels(cache: KernelCache) -> None:
    """They have all attributes of cached kernels; each name gives the same object every time."""
    kernel = module(cache).axpy_float

    assert isinstance(kernel, Kernel)
    assert module(cache).axpy_float is not kernel
    assert kernel.__name__ == "axpy_float"
    assert (len(kernel.key()), kernel.log, kernel.const_mem_size) == (64, "", 120)
    assert ".entry axpy_float" in kernel.ptx()
    assert {each.symbol for each in read_cubin(kernel.cubin()).kernels} == {"axpy_float", "axpy_double", "count"}


# -- what is stored and counted -------------------------------------------------------------------------------


@each_way
def test_what_is_compiled_ahead_can_be_asked_about_without_a_device(cache: KernelCache, lazy: bool) -> None:
    """After a compile for a named target, attributes can be read, also with arch="auto"."""
    found = cached_module(SOURCE, lazy=lazy, cache=cache)
    found.cubin("sm_80")
    found.axpy_float.compile("sm_80")

    assert (len(found), len(found.axpy_float.params)) == (3, 4)
    assert read_cubin(found.axpy_float.cubin()).sm == 80


def test_eager_module_is_one_artifact_and_one_resolution(cache: KernelCache) -> None:
    """One compile makes all kernels; another module object of the same source is a hit."""
    found = module(cache)
    for name in found:
        found[name].compile()
    assert (cache.info().entries, counts(cache)) == (1, (1, 0, 1))

    module(cache).count.compile()
    assert counts(cache) == (1, 1, 1)


def test_lazy_module_is_ltoir_and_one_artifact_for_each_kernel_used(cache: KernelCache) -> None:
    """The LTO-IR counts as one resolution, each kernel as one; a second module object finds all of them."""
    found = module(cache, lazy=True)
    found.axpy_float.compile()
    assert (cache.info().entries, counts(cache)) == (2, (2, 0, 2))
    assert [each.symbol for each in read_cubin(found.axpy_float.cubin()).kernels] == ["axpy_float"]

    again = module(cache, lazy=True)
    again.axpy_float.compile()
    again.axpy_float.compile()
    assert counts(cache) == (2, 2, 2)
    assert again.axpy_float.cubin() == found.axpy_float.cubin()


def test_stored_ltoir_that_cannot_be_linked_is_compiled_again(cache: KernelCache) -> None:
    """Only what this process compiled is the user's fault; what was stored is set aside, and the kernel linked."""
    linked = module(cache, lazy=True).axpy_float.cubin()
    entries = [entry for each in cache.entries() if (entry := cache.session.local.get(each.key)) is not None]
    for entry in entries:
        cache.session.remove(entry.key)
        if "ltoir" in entry.payloads:
            rubbish = {**entry.payloads, "ltoir": b"\x7fNC\xed and no code"}
            assert cache.session.store.put(entry._replace(payloads=rubbish))

    with pytest.warns(KCacheWarning, match="cannot link"):
        assert module(cache, lazy=True).axpy_float.cubin() == linked
    assert (len(cache.session.damaged), cache.info().entries) == (1, 2)


@each_way
def test_threads_that_ask_at_once_build_each_thing_once(cache: KernelCache, lazy: bool) -> None:
    """The LTO-IR and each kernel are built once, and all threads get the same kernel objects."""
    found = module(cache, lazy=lazy)
    together = threading.Barrier(8)

    def use(name: str) -> tuple[Kernel, int]:
        together.wait()
        return found[name], len(found[name].params)

    with ThreadPoolExecutor(8) as pool:
        used = list(pool.map(use, ["axpy_float", "axpy_double"] * 4))

    assert {count for _, count in used} == {4}
    assert used[0][0] is found.axpy_float
    assert counts(cache) == ((3, 0, 3) if lazy else (1, 0, 1))


def test_compile_of_a_lazy_module_links_every_kernel(cache: KernelCache) -> None:
    """A cache can be filled ahead this way."""
    source = SOURCE.replace("atomicAdd(&counter, 1); ns::pair.x += 1;", "")
    module(cache, source, lazy=True).compile("sm_80")

    assert cache.info().entries == 4
    assert {each.target for each in cache.entries()} == {"sm_80"}


def test_lto_or_direct_code_is_in_the_key(cache: KernelCache) -> None:
    """The key also has the names, their order, and that it is a module; a kernel of a lazy module has its own key."""
    single = cached_kernel(SAXPY, arch="sm_90", cache=cache)
    modules = [
        module(cache, SAXPY), module(cache, SAXPY, lazy=True), module(cache, SAXPY, names=["saxpy"]),
        module(cache, SAXPY, names=["saxpy"], lazy=True), module(cache, names=NAMES), module(cache, names=NAMES[::-1]),
    ]  # fmt: skip
    kernels = [module(cache, lazy=True)[name] for name in ("axpy_float", "axpy_double")]

    keys = [each.key() for each in (single, *modules, *kernels)]
    assert len(set(keys)) == len(keys)
    assert counts(cache) == (0, 0, 0), "asking for a key compiles nothing"


@pytest.mark.slow
@each_way
@pytest.mark.parametrize("word", ["__FILE__", "__BASE_FILE__"])
def test_name_of_a_module_s_file_is_in_the_key(cache: KernelCache, tmp_path: Path, lazy: bool, word: str) -> None:
    """NVRTC gets the file's name for the source: it may be in the code, or in mangled names of static functions."""
    sizes = []
    for name in ("a.cu", "another.cu"):
        (tmp_path / name).write_text(f'extern "C" __global__ void k(int *x) {{ *x = sizeof({word}); }}')
        sizes.append(module(cache, tmp_path / name, lazy=lazy).k.cubin())

    assert sizes[0] != sizes[1]


def test_kernel_of_a_lazy_module_is_stored_under_the_key_it_tells(cache: KernelCache) -> None:
    """The compile stores the entry under the key that key() returned before."""
    kernel = module(cache, lazy=True).axpy_float
    wanted = kernel.key()
    kernel.compile()

    assert wanted in {each.key for each in cache.entries()}


def test_every_option_of_the_source_reaches_lazy_kernels(cache: KernelCache) -> None:
    """The key of a lazy kernel contains the module's key."""
    keys = {
        module(cache, lazy=True, **options).axpy_float.key()
        for options in (
            {},
            {"fastmath": True},
            {"defines": {"A": 1}},
            {"max_registers": 32},
            {"opt": 1},
            {"std": "c++20"},
        )
    }
    assert len(keys) == 6


@pytest.mark.slow
@each_way
def test_headers_of_a_module_are_in_its_key(cache: KernelCache, tmp_path: Path, lazy: bool) -> None:
    """An edited header causes a compile; the earlier code is found again when the header is restored."""
    header = tmp_path / "scale.h"
    source = '#include "scale.h"\nextern "C" __global__ void k(float *x) { x[0] *= SCALE; }'

    def code_with(scale: int) -> bytes:
        header.write_text(f"#define SCALE {scale}\n")
        return module(cache, source, lazy=lazy, include_dirs=[str(tmp_path)]).k.cubin()

    first, second, third = code_with(2), code_with(3), code_with(2)

    assert first == third != second
    assert cache.info("process").compiles == (4 if lazy else 2)


@pytest.mark.slow
@each_way
def test_second_process_compiles_nothing(tmp_path: Path, lazy: bool) -> None:
    """The store has all that a launch needs: parameters, types, variables, templates."""
    code = f"""
from numba_kcache import KernelCache, cached_module
cache = KernelCache({str(tmp_path)!r})
m = cached_module({SOURCE!r}, {NAMES[:3]!r}, {lazy}, arch="sm_90", cache=cache)
print([[str(each) for each in m[name].params] for name in m], cache.info("process").compiles)
"""
    first, second = in_python(code), in_python(code)

    assert first.split("]] ")[0] == second.split("]] ")[0]
    assert (first.split()[-1], second.split()[-1]) == ("4" if lazy else "1", "0")


def test_frozen_cache_serves_a_lazy_module_and_compiles_nothing(cache: KernelCache) -> None:
    """A kernel that was linked before is a hit; any other is an error that names it."""
    module(cache, lazy=True).axpy_float.compile()
    frozen = KernelCache(cache.directory, mode="frozen")

    assert module(frozen, lazy=True).axpy_float.params
    with pytest.raises(FrozenCacheError, match=r"\[axpy_double\]"):
        module(frozen, lazy=True).axpy_double.compile()
    with pytest.raises(FrozenCacheError):
        module(frozen, SAXPY).compile()


@each_way
def test_miss_is_explained_by_what_the_kernel_is_made_from(cache: KernelCache, tmp_path: Path, lazy: bool) -> None:
    """The reason is a changed header or option of the source, also for a kernel of a lazy module."""
    header = tmp_path / "scale.h"
    header.write_text("#define SCALE 2\n")
    source = '#include "scale.h"\nextern "C" __global__ void k(float *x) { x[0] *= SCALE; }'

    def told(**options: Any) -> Any:
        return module(cache, source, lazy=lazy, include_dirs=[str(tmp_path)], **options).k.explain()

    module(cache, source, lazy=lazy, include_dirs=[str(tmp_path)]).k.compile()
    assert told().is_hit
    assert "fastmath" in str(told(fastmath=True))
    header.write_text("#define SCALE 30\n")
    assert (told().is_hit, "scale.h" in str(told())) == (False, True)


@each_way
def test_module_that_cannot_be_keyed_runs_uncached(cache: KernelCache, lazy: bool) -> None:
    """There is a warning; compile() and strict=True raise."""
    source = 'extern "C" __global__ void k(int *x) { x[0] = sizeof(__TIME__); }'
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert module(cache, source, lazy=lazy).k.params
    assert cache.info().entries == 0
    with pytest.raises(UncacheableError, match="__TIME__"):
        module(cache, source, lazy=lazy).k.compile()


# -- variables ------------------------------------------------------------------------------------------------


def test_variables_and_their_types_are_kept(cache: KernelCache) -> None:
    """Names as the source has them, extents and elements as the compiler has them, also from the store."""
    for _ in range(2):
        found = artifact_of(module(cache)).variables
        assert {(each.name, each.size_bytes, each.code, each.shape) for each in found} == {
            ("coeffs", 120, "f8", (3, 5)),
            ("table", 16, "f4", (4,)),
            ("counter", 4, "i4", ()),
            ("ns::pair", 8, "v2f4", ()),
        }


def test_kernel_that_writes_to_a_variable_is_not_linked_by_itself(cache: KernelCache) -> None:
    """Other kernels would not see the write. Constants and unused variables do not prevent linking."""
    found = module(cache, lazy=True)
    found.axpy_float.compile()

    with pytest.raises(OptionError, match=r"\[count\] by itself: it uses the variable (counter|ns::pair)") as caught:
        found.count.compile()
    assert "leave out lazy=True" in caught.value.hint


def test_local_state_of_a_function_is_not_duplicated_either(cache: KernelCache) -> None:
    """A static variable of a function that two kernels call must exist once."""
    source = """
__device__ int next() { static __device__ int n = 7; return n++; }
extern "C" __global__ void a(int *x) { x[0] = next(); }
extern "C" __global__ void b(int *x) { x[0] = next(); }"""
    with pytest.raises(OptionError, match="it uses the variable"):
        module(cache, source, lazy=True).a.compile()


def test_what_the_compiler_keeps_in_variables_is_no_state(cache: KernelCache) -> None:
    """The compiler makes variables for texts of printf and assert, tables of sine and virtual tables: kernels with
    these can be linked alone."""
    source = r"""
struct Base { __device__ virtual float f(float x) { return sinf(x); } };
struct Other : Base { __device__ float f(float x) override { return x; } };
extern "C" __global__ void k(float *x, int n) {
    Base b; Other o; Base *p = n ? &b : &o;
    x[0] = p->f(x[1]); printf("%f %d\n", sin((double)x[2]), n);
    assert(n > 0);
}"""
    assert module(cache, source, lazy=True).k.regs_per_thread > 0


@pytest.mark.slow
@each_way
def test_variables_of_the_toolkit_are_not_the_user_s(cache: KernelCache, lazy: bool) -> None:
    """The toolkit's headers define many constants; the user's variables are found among them, with their types."""
    source = """
#include <cooperative_groups.h>
namespace { __device__ const short own[2] = {1, 2}; }
extern "C" __global__ void k(int *x) { x[0] = cooperative_groups::this_thread_block().size() + own[x[1]]; }"""
    found = module(cache, source, lazy=lazy)
    assert found.k.params

    artifact = resolutions_of(found).exactly(Target(9, 0)).artifact
    if lazy:
        assert [name.endswith("3ownE") for name in artifact.attributes["constants"]] == [True]
    else:
        assert [(each.name, each.code, each.shape) for each in artifact.variables] == [("own", "i2", (2,))]


def test_variables_that_are_called_like_a_namespace_of_the_toolkit_are_the_user_s(cache: KernelCache) -> None:
    """A toolkit's namespace is recognised by its members, also in mangled names of a file's static variables."""
    source = """
static __device__ int cuda, cub;
namespace a { namespace cuda { __device__ int own; } }
namespace cudas { __device__ int own; }
namespace thrust { static __device__ int theirs; }
extern "C" __global__ void k(int *x) { x[0] = cuda + cub + a::cuda::own + cudas::own + thrust::theirs; }"""

    found = {each.name for each in artifact_of(module(cache, source)).variables}

    assert found == {"cuda", "cub", "a::cuda::own", "cudas::own"}


def test_symbol_of_a_lazy_module_is_refused(cache: KernelCache) -> None:
    """Each kernel has its own copy, so there is no single variable to return."""
    with pytest.raises(OptionError, match="the module is lazy") as caught:
        module(cache, lazy=True).symbol("coeffs")
    assert "leave out lazy=True" in caught.value.hint


# -- the linker's list of kernels -----------------------------------------------------------------------------


def test_kernel_whose_name_is_part_of_others_is_linked_alone(cache: KernelCache) -> None:
    """nvJitLink's -kernels-used matches its text anywhere in a name."""
    kernels = ["axpy", "axpy_arg", "my_axpy"]
    source = "\n".join(f'extern "C" __global__ void {name}(float *x) {{ x[0] += {len(name)}; }}' for name in kernels)
    found = module(cache, source + "\nnamespace q { __global__ void axpy(int) {} }", lazy=True)

    for name in kernels:
        assert [each.symbol for each in read_cubin(found[name].cubin()).kernels] == [name]
    assert [each.symbol for each in read_cubin(found["q::axpy"].cubin()).kernels] == ["_ZN1q4axpyEi"]


def test_linker_that_knows_no_lists_of_patterns_still_serves(
    cache: KernelCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the exact pattern matches no kernel, the plain name is tried."""
    from numba_kcache.frontends.source import module_build

    monkeypatch.setattr(module_build, "KERNELS_USED", ("no such {}", "{}"))

    assert module(cache, lazy=True).axpy_float.params


# -- what is refused ------------------------------------------------------------------------------------------


@pytest.mark.slow
@each_way
def test_unknown_entry_lists_those_there_are(cache: KernelCache, lazy: bool) -> None:
    """The error is raised at once if the names are known, else at first use."""
    named, unnamed = module(cache, names=["count"], lazy=lazy), module(cache, lazy=lazy)

    with pytest.raises(EntryError, match=r"'axpy_float' of .*: there are count"):
        named["axpy_float"]
    with pytest.raises(EntryError, match=r"there are axpy_float, axpy_double, count"):
        unnamed["nope"].compile()
    with pytest.raises(AttributeError, match=r"there are axpy_float, axpy_double, count"):
        _ = unnamed.nope
    with pytest.raises(EntryError, match=r"'nope' in .*: the source has axpy_float, axpy_double, count") as caught:
        module(cache, names=["count", "nope"], lazy=lazy).compile()
    assert caught.value.hint == "correct names="
    with pytest.raises(EntryError, match=r"cannot find the kernel 'gemm<float>'"):
        module(cache, names=["count", "gemm<float>"], lazy=lazy).compile()
    assert not hasattr(unnamed, "_repr_html_")


def test_module_without_kernels_is_said(cache: KernelCache) -> None:
    """A source with only an uninstantiated template is an error too."""
    with pytest.raises(EntryError, match="defines no __global__"):
        module(cache, "__device__ int x;").compile()
    with pytest.raises(EntryError, match="gemm is a template"):
        module(cache, "template <class T> __global__ void gemm(T *x) {}", lazy=True).compile()


def test_fault_of_the_source_is_the_compiler_s_word(cache: KernelCache) -> None:
    """The compiler's error is raised at each use, with and without `names`."""
    broken = SOURCE + "\nint f() { return nonsense; }"
    for options in ({}, {"names": NAMES}, {"lazy": True}):
        with pytest.raises(CompileError, match="nonsense"):
            module(cache, broken, **options).compile()


REFUSED = {
    "one name": ({"names": "count"}, "it is not a list"),
    "no name": ({"names": []}, "it names no kernel"),
    "a name twice": ({"names": ["gemm<int, 1>", "gemm<int,1>"]}, "is there twice"),
    "a number": ({"names": [3]}, "3 is not a name"),
    "a name of cached_kernel": ({"name": "count"}, "a module has many kernels"),
    "a signature": ({"signature": "int"}, "a module has many kernels"),
    "lazy of another type": ({"lazy": 1}, "it is a int"),
    "lazy with lto": ({"lazy": True, "lto": True}, "a lazy module is always linked from LTO-IR"),
    "lazy with link": (
        {"lazy": True, "link": ["a.cu"]},
        "the kernels are linked one by one, which does not support it",
    ),
    "an unknown option": ({"fastmaths": True}, "does not take it"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_option_that_means_nothing_is_refused_at_once(cache: KernelCache, case: str) -> None:
    """The error is raised before anything is compiled."""
    options, why = REFUSED[case]
    with pytest.raises(OptionError, match=why):
        module(cache, **options)


def test_lazy_needs_something_to_link_from(cache: KernelCache) -> None:
    """PTX and cubins are refused when the module is made, a virtual target when it is requested."""
    for given in (compiled(SAXPY, "ptx").decode(), compiled(SAXPY)):
        with pytest.raises(OptionError, match="cannot be linked one by one"):
            module(cache, given, lazy=True)
    with pytest.raises(OptionError, match="its code is linked for a device"):
        module(cache, lazy=True).compile("compute_90")


def test_python_kernel_is_no_module(cache: KernelCache) -> None:
    """A Numba kernel is decorated with cached_kernel."""

    def add(x, y):  # type: ignore[no-untyped-def]
        x[0] = y[0]

    with pytest.raises(OptionError, match="it is a Numba kernel"):
        module(cache, add)


# -- other sources --------------------------------------------------------------------------------------------


def test_module_of_a_function_is_asked_once_and_not_before_its_use(cache: KernelCache) -> None:
    """The function is called once, at first use, as for a kernel."""
    asked = []

    def source() -> str:
        """Kernels."""
        asked.append(1)
        return SOURCE

    found = module(cache, source)
    assert (asked, found.__name__, found.__doc__) == ([], "source", "Kernels.")
    assert len(found) == 3
    assert found.count.params == ()
    assert asked == [1]


def test_module_of_a_path(cache: KernelCache, tmp_path: Path) -> None:
    """A module may be given as the path of a .cu file."""
    (tmp_path / "many.cu").write_text(SOURCE)

    assert len(module(cache, tmp_path / "many.cu", lazy=True)) == 3


@pytest.mark.parametrize("output", ["ptx", "cubin", "ltoir"])
def test_module_of_what_a_compiler_made(cache: KernelCache, output: str) -> None:
    """For PTX, a cubin or LTO-IR only the sizes of parameters are known."""
    code = compiled(SOURCE, output, "sm_90", *(["-dlto"] if output == "ltoir" else []))
    found = module(cache, code.rstrip(b"\0") if output == "ptx" else code)

    assert set(found) == {"axpy_float", "axpy_double", "count"}
    assert [each.size for each in found.axpy_double.params] == [8, 8, 8, 4]


def test_lazy_module_of_ltoir(cache: KernelCache) -> None:
    """A lazy module accepts LTO-IR that was compiled before."""
    found = module(cache, compiled(SAXPY + 'extern "C" __global__ void k() {}', "ltoir", "sm_90", "-dlto"), lazy=True)

    assert [each.symbol for each in read_cubin(found.saxpy.cubin()).kernels] == ["saxpy"]


def test_module_for_a_virtual_target_keeps_its_ptx(cache: KernelCache) -> None:
    """Only an eager module can be PTX, which serves devices newer than the compiler."""
    found = module(cache, names=NAMES)
    found.compile("compute_90")

    assert (found.cubin("compute_90"), ".entry axpy_float" in found.ptx("compute_90")) == (b"", True)


def test_link_inputs_serve_an_eager_module(cache: KernelCache, tmp_path: Path) -> None:
    """Its kernels may call a function of a linked file."""
    (tmp_path / "f.cu").write_text("__device__ int f(int x) { return x + 1; }")
    source = '__device__ int f(int); extern "C" __global__ void k(int *x) { x[0] = f(x[0]); }'

    assert module(cache, source, link=[str(tmp_path / "f.cu")]).k.params


@each_way
def test_module_and_its_kernels_pickle(cache: KernelCache, lazy: bool) -> None:
    """They pickle by definition: the unpickled object makes the same request."""
    found = cached_module(SOURCE, names=NAMES, lazy=lazy, arch="sm_90")
    again, kernel = pickle.loads(pickle.dumps((found, found.count)))

    assert (list(again), again.lazy, again.key(), kernel.key()) == (NAMES, lazy, found.key(), found.count.key())
    assert again.count is kernel
    assert copy.copy(found).key() == found.key()


@pytest.mark.slow
@each_way
def test_clear_makes_a_module_resolve_again(cache: KernelCache, lazy: bool) -> None:
    """Module and kernels are compiled again."""
    found = module(cache, lazy=lazy)
    found.axpy_float.compile()
    cache.clear()
    assert cache.info().entries == 0
    found.axpy_float.compile()

    assert cache.info().entries == (2 if lazy else 1)
