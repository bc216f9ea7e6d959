"""Kernels without a GPU: compiled ahead, inspected, pickled, shared between threads and processes."""

from __future__ import annotations

import copy
import inspect
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import Kernel, KernelCache, cached_kernel, cached_module
from numba_kcache.errors import (
    CompileError,
    EntryError,
    FrozenCacheError,
    KCacheWarning,
    LaunchConfigError,
    LaunchError,
    NoDeviceError,
    OptionError,
    UncacheableError,
)
from numba_kcache.model import Target, parse_target, ptx_target, read_arch
from numba_kcache.model.cubin import read_cubin
from numba_kcache.toolchain.nvrtc import supported_targets
from tests.support import kernels
from tests.support.compiling import EMPTY, SAXPY, compiled, in_python
from tests.support.resolving import definition_of, resolutions_of

pytestmark = pytest.mark.usefixtures("compiled_once")


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache", durability="none")


def counts(cache: KernelCache) -> tuple[int, int, int]:
    """(compiles, hits, misses) of this process."""
    info = cache.info("process")
    return info.compiles, info.hits, info.misses


# -- compiling ahead and looking ------------------------------------------------------------------------------


def test_compile_stores_for_an_explicit_target(cache: KernelCache) -> None:
    """Without GPU, driver or context the entry is stored, and all attributes of the kernel can be read."""
    kernel = cached_kernel(SAXPY, arch="sm_90", cache=cache)
    kernel.compile()

    assert cache.info().entries == 1
    assert [str(each) for each in kernel.params] == ["float a", "float const* x", "float* y", "int n"]
    assert read_cubin(kernel.cubin()).sm == 90
    assert kernel.ptx().startswith("//")
    assert (kernel.regs_per_thread > 0, kernel.log) == (True, "")
    assert (kernel.shared_mem_per_block, kernel.local_mem_per_thread, kernel.const_mem_size) == (0, 0, 0)
    assert len(kernel.key()) == 64


def test_resources_are_the_compiler_s(cache: KernelCache) -> None:
    """The resources include static shared memory and the module's own constants."""
    source = """
__constant__ double table[4];
extern "C" __global__ void k(double *x) {
    __shared__ double part[64];
    part[threadIdx.x] = x[0] * table[threadIdx.x];
    __syncthreads();
    x[0] = part[threadIdx.x ^ 1];
}"""
    kernel = cached_kernel(source, arch="sm_80", cache=cache)

    assert (kernel.shared_mem_per_block, kernel.const_mem_size) == (512, 32)


def test_each_target_of_a_list_is_compiled(cache: KernelCache) -> None:
    """arch=[...] compiles all of them ahead; the same target twice is one."""
    kernel = cached_kernel(SAXPY, arch=["sm_80", "sm_90", (8, 0), "compute_90"], cache=cache)
    kernel.compile()

    assert cache.info().entries == 3
    assert {read_cubin(kernel.cubin(arch)).sm for arch in ("sm_80", "sm_90")} == {80, 90}
    assert kernel.cubin("compute_90") == b""
    assert ".target sm_90" in kernel.ptx("compute_90")
    assert counts(cache)[0] == 3


def add_one(x: Any) -> None:
    x[0] += 1


def test_inputs_are_read_once_for_all_targets_of_a_look_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen cache is asked for code of 29 targets; linked files may have hundreds of megabytes."""
    (tmp_path / "add.cu").write_text('extern "C" __device__ int add(int x) { return x + 1; }')
    (tmp_path / "table").write_bytes(b"1")
    cache = KernelCache(tmp_path / "cache", mode="frozen")
    kernel = cached_kernel(SAXPY, cache=cache, link=[tmp_path / "add.cu"], depends=[tmp_path / "table"])
    opened, open_file = list[str](), open

    def counted(path: Any, *rest: Any, **more: Any) -> Any:
        opened.append(str(path))
        return open_file(path, *rest, **more)

    monkeypatch.setattr("builtins.open", counted)
    with pytest.raises(FrozenCacheError):
        resolutions_of(kernel).for_device(parse_target("sm_90a"))

    assert [opened.count(str(tmp_path / name)) for name in ("add.cu", "table")] == [1, 1]


@pytest.mark.parametrize("given", ["lto", "link", "ltoir"])
def test_linked_code_is_not_compiled_to_ptx_alone(cache: KernelCache, tmp_path: Path, given: str) -> None:
    """Its PTX would lack what is linked: nothing is compiled, and the message names a real target."""
    (tmp_path / "add.cu").write_text('extern "C" __device__ int add(int x) { return x + 1; }')
    options: dict[str, Any] = {"lto": {"lto": True}, "link": {"link": [tmp_path / "add.cu"]}}.get(given, {})
    thing = compiled(SAXPY, "ltoir", "compute_90", "-dlto") if given == "ltoir" else SAXPY
    kernel = cached_kernel(thing, "saxpy", cache=cache, **options)
    for use in (kernel.compile, kernel.ptx, kernel.cubin):
        with pytest.raises(OptionError, match=r"its code is linked for a device\n.*name the device: 'sm_90'"):
            use("compute_90")

    assert counts(cache) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["cuda", "eager module", "lazy module", "numba"])
def test_what_is_compiled_for_a_real_target_is_what_a_launch_asks_for(tmp_path: Path, kind: str) -> None:
    """With arch="compute_80", compile("sm_90") links the PTX of that target, as a launch on such a device does."""

    def kernel() -> Any:
        cache = KernelCache(tmp_path, durability="none")
        if kind == "numba":
            return cached_kernel(add_one, arch="compute_80", signature="void(int32[::1])", cache=cache)
        if "module" in kind:
            return cached_module(SAXPY, ["saxpy"], kind == "lazy module", arch="compute_80", cache=cache).saxpy
        return cached_kernel(SAXPY, arch="compute_80", cache=cache)

    def source_on(device: str) -> str:
        return str(resolutions_of(kernel()).for_device(parse_target(device), variant).source)

    kernel().compile("sm_90")
    again = kernel()
    variant = definition_of(again).variants(None, ())[0]
    target = parse_target("sm_90")
    assert again.explain("sm_90").is_hit
    assert resolutions_of(again).count_if_stored(target, ptx_target(read_arch("compute_80"), target), variant)

    assert source_on("sm_90") == "disk"
    assert source_on("sm_90a") == "disk"
    with pytest.raises(LaunchError, match="it is built only for compute_80"):
        source_on("sm_75")


def test_key_never_compiles(cache: KernelCache) -> None:
    """The digest of the request, for each target its own."""
    kernel = cached_kernel("this does not compile", cache=cache)

    assert len({kernel.key("sm_80"), kernel.key("sm_90"), kernel.key("sm_90a"), kernel.key("compute_90")}) == 4
    assert counts(cache) == (0, 0, 0)


def test_auto_without_a_device_is_said(cache: KernelCache) -> None:
    """`arch="auto"` needs a device; the hint names a target to give."""
    if _has_device():
        pytest.skip("there is a device here")
    kernel = cached_kernel(SAXPY, cache=cache)
    for use in (kernel.compile, kernel.key, lambda: kernel[1, 1]):
        with pytest.raises(NoDeviceError, match="cannot find a CUDA device") as caught:
            use()
        assert "arch='sm_90'" in caught.value.hint


def _has_device() -> bool:
    from numba import cuda

    return bool(cuda.is_available())


@pytest.mark.parametrize(
    ("source", "name", "label"),
    [
        (SAXPY, None, "saxpy"),
        (SAXPY + EMPTY, "k", "k"),
        ("template<class T> __global__ void axpy(T *x) {}", "axpy<float>", "axpy<float>"),
        ('extern "C" __global__ void __launch_bounds__(32) bounded(int *x) {}', None, "bounded"),
        (".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry j()\n{\nret;\n}", None, "j"),
        (SAXPY + EMPTY, None, ""),
        ("#define K __global__ void k() {}\nK", None, ""),
    ],
)
def test_kernel_of_text_is_called_by_its_entry(cache: KernelCache, source: str, name: str | None, label: str) -> None:
    """In events and messages, by `name` or the only kernel of the text; otherwise by its line."""
    kernel = cached_kernel(source, name, arch="sm_90", cache=cache)  # type: ignore[call-overload]

    assert kernel.explain().kernel.rpartition("test_kernel.")[2] == label or not label
    assert ":" not in kernel.explain().kernel or not label


def test_source_and_name_read_like_a_raw_kernel(cache: KernelCache) -> None:
    """`cached_kernel(code, "name", options=(...))`; a name that is given twice is an error."""
    source = f"{SAXPY}\n{EMPTY}"
    positional = cached_kernel(source, "k", arch="sm_90", options=("-DX", "--std=c++17"), cache=cache)
    named = cached_kernel(source, name="k", arch="sm_90", options=("-DX", "--std=c++17"), cache=cache)

    assert positional.key() == named.key()
    with pytest.raises(TypeError, match="name"):
        cached_kernel(source, "k", name="k")  # type: ignore[call-overload]


def test_decorator_of_another_compiler_above_this_one_says_the_order(cache: KernelCache) -> None:
    """Numba asks for the defaults of what it takes as a function."""
    kernel: Any = cached_kernel(SAXPY, cache=cache)
    with pytest.raises(AttributeError, match="put cached_kernel above it"):
        kernel.__defaults__  # noqa: B018


def test_launch_needs_a_configuration(cache: KernelCache) -> None:
    """As in Numba, `kernel(args)` and a wrong number of values in the brackets are errors that show the right form."""
    kernel = cached_kernel(SAXPY, cache=cache)
    with pytest.raises(LaunchConfigError, match="it has no grid and block") as caught:
        kernel(1, 2, 3)
    assert "[grid, block]" in caught.value.hint
    with pytest.raises(LaunchConfigError) as caught:
        kernel((8,), (16, 8), (1, 2, 3))  # as a kernel of CuPy is launched
    assert caught.value.hint == "write kernel[8, (16, 8)](...)"
    for config in (1, (1,), (1, 1, 0, 0, 0)):
        with pytest.raises(LaunchConfigError, match=r"a launch takes \[grid, block\]"):
            kernel[config]
    with pytest.raises(LaunchConfigError, match="a count is not negative"):
        kernel.forall(-1)
    assert kernel.forall(0)(1, 2, 3) is None  # type: ignore[func-returns-value]


def test_refused_source_is_refused_each_time(cache: KernelCache) -> None:
    """A failed compile stores nothing, so the next use compiles and fails again."""
    kernel = cached_kernel("nonsense", arch="sm_90", cache=cache)
    for _ in range(2):
        with pytest.raises(CompileError):
            kernel.compile()

    assert cache.info().entries == 0
    assert counts(cache) == (0, 0, 2)


def test_wrong_entry_is_said_at_first_use(cache: KernelCache) -> None:
    """The error lists the candidates."""
    with pytest.raises(EntryError, match="the source has saxpy"):
        cached_kernel(SAXPY, name="axpy", arch="sm_90", cache=cache).compile()


def test_disassembly_where_the_tool_is_there(cache: KernelCache) -> None:
    """nvdisasm's text, or the error that names what to install."""
    kernel = cached_kernel(SAXPY, arch="sm_90", cache=cache)
    from cuda.pathfinder import find_nvidia_binary_utility

    if find_nvidia_binary_utility("nvdisasm"):
        assert "saxpy" in kernel.inspect_sass()
    else:
        with pytest.raises(numba_kcache.ToolchainMissingError, match="nvdisasm is not installed"):
            kernel.inspect_sass()


# -- decorator forms, names -----------------------------------------------------------------------------------


def test_decorator_in_all_its_forms(cache: KernelCache) -> None:
    """Bare, called, called with options, and as a function."""

    @cached_kernel
    def bare() -> str:
        return EMPTY

    @cached_kernel()
    def called() -> str:
        return EMPTY

    @cached_kernel(arch="sm_90", cache=cache)
    def with_options() -> str:
        return EMPTY

    for kernel in (bare, called, with_options, cached_kernel(EMPTY), cache.get_or_compile(EMPTY)):
        assert isinstance(kernel, Kernel)
    with_options.compile()
    assert counts(cache) == (1, 0, 1)


def test_resolution_that_is_over_holds_no_other_thread_up(cache: KernelCache) -> None:
    """A kernel that another thread resolves again waits for no earlier resolution."""
    kernel = cached_kernel(EMPTY, arch="sm_90", cache=cache)
    kernel.compile()
    cache.clear()
    again = threading.Thread(target=kernel.compile, daemon=True)
    again.start()
    again.join(20)

    assert not again.is_alive()
    assert cache.info("process").compiles == 2


def test_get_or_compile_is_of_that_cache(cache: KernelCache) -> None:
    """The kernel belongs to the cache whose `get_or_compile` was called."""
    source = SAXPY + "template<class T> __global__ void axpy(T a) {}"
    kernel = cache.get_or_compile(source, "axpy<double>", arch="sm_90", fastmath=True)
    kernel.compile()

    assert cache.info().entries == 1
    assert kernel.params[0].code == "f8"
    assert numba_kcache.info().entries == 0


def test_kernel_is_a_class_attribute() -> None:
    """Class and instance both give the kernel itself, not a bound method."""
    assert kernels.Model.saxpy is kernels.Model().saxpy
    assert kernels.Model.saxpy.__doc__ == "A class attribute."
    assert repr(kernels.Model.saxpy) == "<Kernel tests.support.kernels.Model.saxpy>"


def test_redefined_kernel_is_another(cache: KernelCache) -> None:
    """A notebook cell that is run again with another source: the name then launches the new code."""
    made = []
    for factor in (2, 3):
        names: dict[str, Any] = {"cached_kernel": cached_kernel, "cache": cache}
        cell = f"""
@cached_kernel(arch="sm_90", cache=cache)
def k() -> str:
    return 'extern "C" __global__ void k(float *x) {{ *x *= {factor}; }}'
"""
        exec(cell, names)
        made.append(names["k"].cubin())

    assert made[0] != made[1]
    assert counts(cache)[0] == 2


# -- pickling -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", [kernels.saxpy, kernels.Model.saxpy])
def test_importable_kernel_pickles_by_its_name(kernel: Kernel) -> None:
    """Kernels of a module or class are pickled by name, as functions are: the same object comes back."""
    assert pickle.loads(pickle.dumps(kernel)) is kernel
    assert copy.deepcopy(kernel) is kernel


def test_other_kernels_pickle_by_their_definition(tmp_path: Path) -> None:
    """Nested, renamed, from a text or a relative path: the unpickled kernel has the same source, options and key, and
    the same label and history, since a worker of `warm_up` stores its entry."""

    @cached_kernel(arch="sm_80", fastmath=True, defines={"N": 3})
    def saxpy() -> str:
        return SAXPY + EMPTY

    (tmp_path / "saxpy.cu").write_text(SAXPY + EMPTY)
    names: dict[str, Any] = {"cached_kernel": cached_kernel, "Path": Path}
    (tmp_path / "user.py").write_text("")
    code = "kernel = cached_kernel(Path('saxpy.cu'), arch='sm_80', include_dirs=['include'])"
    exec(compile(code, str(tmp_path / "user.py"), "exec"), names)

    for kernel in (saxpy, kernels.renamed, cached_kernel(SAXPY, arch="sm_80", name="saxpy"), names["kernel"]):
        again = pickle.loads(pickle.dumps(kernel))

        assert again is not kernel
        assert again.key() == kernel.key()
        assert again.__name__ == kernel.__name__
        one, other = definition_of(again), definition_of(kernel)
        assert (one.label, one.own_name) == (other.label, other.own_name)
        assert definition_of(again).compile_options == definition_of(kernel).compile_options
        again.compile()
        assert pickle.loads(pickle.dumps(again)).key() == kernel.key()


def test_kernel_of_a_cache_pickles_with_it(cache: KernelCache) -> None:
    """A kernel pickles with directory and settings: another process hits its entry; a copy shares the cache."""
    kernel = cached_kernel(SAXPY, arch="sm_90", cache=cache)
    kernel.compile()

    assert definition_of(copy.deepcopy(kernel)).options["cache"] is cache
    again = pickle.loads(pickle.dumps(kernel))
    again.compile()
    its_cache = definition_of(again).options["cache"]

    assert again.key() == kernel.key()
    assert its_cache.directory == cache.directory
    assert its_cache.session.settings == cache.session.settings
    assert its_cache.info("process").hits == 1
    assert numba_kcache.info("process").compiles == numba_kcache.info("process").hits == 0
    assert pickle.loads(pickle.dumps(numba_kcache.info)) == numba_kcache.info


# -- threads --------------------------------------------------------------------------------------------------


def together(count: int, work: Any) -> list[BaseException]:
    """Run `work(0..count-1)` in as many threads that start at once; return the exceptions they raised."""
    begin, failed = threading.Barrier(count), list[BaseException]()

    def one(number: int) -> None:
        begin.wait()
        try:
            work(number)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def test_threads_of_one_kernel_compile_once(cache: KernelCache) -> None:
    """Eight threads, one kernel object: one compile, one miss, the same code for all."""
    asked = []

    def text() -> str:
        asked.append(1)
        return SAXPY

    kernel = cached_kernel(text, kind="cuda", name="saxpy", arch="sm_90", cache=cache)
    cubins: dict[int, bytes] = {}

    assert not together(8, lambda number: cubins.__setitem__(number, kernel.cubin()))
    assert len(set(cubins.values())) == 1
    assert (counts(cache), len(asked)) == ((1, 0, 1), 1)


def test_threads_of_equal_kernels_compile_once(cache: KernelCache) -> None:
    """Eight kernel objects of one key: one compile, seven hits."""
    made = [cached_kernel(SAXPY, arch="sm_90", cache=cache) for _ in range(8)]

    assert not together(8, lambda number: made[number].compile())
    assert counts(cache) == (1, 7, 1)


def test_threads_of_different_kernels_do_not_disturb_each_other(cache: KernelCache) -> None:
    """Each thread gets its own kernel's code."""
    sources = [f'extern "C" __global__ void k{n}(int *x) {{ *x = {n}; }}' for n in range(8)]
    made = [cached_kernel(source, arch="sm_90", cache=cache) for source in sources]

    assert not together(8, lambda number: made[number].compile())
    for number, kernel in enumerate(made):
        assert [each.symbol for each in read_cubin(kernel.cubin()).kernels] == [f"k{number}"]
    assert counts(cache) == (8, 0, 8)


# -- a second process -----------------------------------------------------------------------------------------

SERVED = """
import sys
import numba_kcache
from numba_kcache import cached_kernel
source = sys.argv[1]

@cached_kernel(arch="sm_90")
def saxpy() -> str:
    return source

linked = cached_kernel(source, arch="sm_90", lto=True)
for kernel in (saxpy, linked):
    kernel.compile()
maps = open("/proc/self/maps").read()
info = numba_kcache.info("process")
names = ("libnvrtc", "libnvvm", "libnvJitLink", "libcuda.so")
print(info.compiles, info.hits, info.misses, *[name in maps for name in names], "numba" in sys.modules)
print(saxpy.key(), linked.key(), *saxpy.params, sep="|")
"""


@pytest.mark.slow
def test_second_process_compiles_nothing_and_maps_no_compiler(tmp_path: Path) -> None:
    """It is served from disk: no NVRTC, NVVM, nvJitLink or driver is mapped, and Numba is not imported."""
    first, second = (in_python(SERVED, SAXPY, NUMBA_KCACHE_DIR=str(tmp_path)).splitlines() for _ in range(2))

    assert first[0] == "2 0 2 True False True False False"
    assert second[0] == "0 2 0 False False False False False"
    assert first[1] == second[1]
    assert second[1].endswith("|float a|float const* x|float* y|int n")


WITHOUT_COMPILERS = (
    """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("cuda", "numba"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
"""
    + SERVED
)


@pytest.mark.slow
def test_hit_needs_no_compiler_installed(tmp_path: Path) -> None:
    """A process in which neither CUDA nor Numba can be imported gets a hit."""
    in_python(SERVED, SAXPY, NUMBA_KCACHE_DIR=str(tmp_path))

    said = in_python(WITHOUT_COMPILERS, SAXPY, NUMBA_KCACHE_DIR=str(tmp_path)).splitlines()

    assert said[0] == "0 2 0 False False False False False"


# -- what cannot be cached ------------------------------------------------------------------------------------

STAMPED = '#define NOW __DATE__\nextern "C" __global__ void k(char *x) { *x = NOW[0]; }'


def test_uncacheable_kernel_compiles_with_one_warning(cache: KernelCache) -> None:
    """A source that reads the time runs uncached, and warns once however often it is used."""
    kernel = cached_kernel(STAMPED, arch="sm_90", cache=cache)
    with pytest.warns(numba_kcache.KCacheWarning, match="is not cached: it uses __DATE__ or __TIME__") as caught:
        assert kernel.params[0].code == "*i1"
    assert len(caught) == 1

    cache.session.forget()
    assert kernel.cubin()
    assert cache.info().entries == 0
    assert counts(cache) == (2, 0, 2)


def test_uncacheable_kernel_is_refused_where_caching_was_asked_for(cache: KernelCache) -> None:
    """`.key()`, `.compile()` and strict=True raise the reason, and nothing is compiled."""
    loose = cached_kernel(STAMPED, arch="sm_90", cache=cache)
    strict = cached_kernel(STAMPED, arch="sm_90", cache=cache, strict=True)

    uses = (loose.key, loose.compile, strict.key, strict.compile, strict.cubin, lambda: strict.params)
    for use in uses:
        with pytest.raises(UncacheableError, match="it uses __DATE__ or __TIME__"):
            use()
    assert counts(cache) == (0, 0, 0)


def test_depends_enter_the_key(cache: KernelCache, tmp_path: Path) -> None:
    """Plain values and the contents of files count; an edited file gives another key, a touched one does not."""
    file = tmp_path / "weights.txt"
    file.write_text("1")

    def key(*depends: Any) -> str:
        return cached_kernel(EMPTY, arch="sm_90", cache=cache, depends=depends).key()

    before = key(file)
    file.touch()
    assert key(file) == before
    file.write_text("2")
    assert key(file) != before
    assert len({key(), key(1), key("1"), key(b"1"), key(None), key([1]), key({"a": 1})}) == 7
    for wrong, says in (
        ({1}, "a set in depends=: values of type set cannot be in a key"),
        ([{1}], "values of type set cannot be in a key"),
        (tmp_path / "gone", "cannot read"),
    ):
        with pytest.raises(OptionError, match=says):
            key(wrong)


def test_bytes_in_depends_can_be_stored(cache: KernelCache) -> None:
    """Bytes, infinities and lone surrogates, which JSON does not have, are stored with the explanation of the key."""
    kernel = cached_kernel(EMPTY, arch="sm_90", cache=cache, depends=[b"\xff", float("inf"), "\ud800"])
    kernel.compile()

    assert cache.info().entries == 1


def test_device_newer_than_the_compiler_gets_its_newest_ptx(tmp_path: Path) -> None:
    """For a device that NVRTC does not know, the driver compiles NVRTC's newest PTX: one warning and no error."""
    cache = KernelCache(tmp_path / "cache")
    kernel = cached_kernel(SAXPY, cache=cache)

    with pytest.warns(KCacheWarning, match="sm_990a") as said:
        found = resolutions_of(kernel).for_device(Target(99, 0, "a"))

    assert len(said) == 1
    assert found.artifact.target == Target(*divmod(max(supported_targets()), 10)).as_virtual
    assert not found.artifact.cubin
    assert b".entry saxpy" in found.artifact.ptx
    assert cache.info("process").errors == 0


def test_target_that_the_toolkit_dropped_is_not_replaced(tmp_path: Path) -> None:
    """A device older than all targets is an error that lists the targets."""
    with pytest.raises(OptionError, match="sm_75"):
        resolutions_of(cached_kernel(SAXPY, cache=KernelCache(tmp_path / "cache"))).for_device(Target(7, 0))


def test_signature_and_repr_show_the_parameters_once_it_is_resolved(tmp_path: Path) -> None:
    """`inspect.signature` shows names and C++ types, for help and completion; for a Numba kernel, those of its
    function."""
    kernel = cached_kernel(SAXPY, name="saxpy", arch="sm_90", cache=KernelCache(tmp_path, durability="none"))
    before = str(inspect.signature(kernel)), repr(kernel)
    kernel.compile()

    assert before == ("(*args: 'Any', **named: 'Any') -> 'None'", f"<Kernel saxpy of {definition_of(kernel).label}>")
    assert list(inspect.signature(kernel).parameters) == ["a", "x", "y", "n"]
    assert inspect.signature(kernel).parameters["x"].annotation == "float const*"
    assert repr(kernel).startswith("<Kernel saxpy(float a, float const* x, ")

    unnamed = cached_kernel(SAXPY, arch="sm_90", cache=KernelCache(tmp_path, durability="none"))
    label = definition_of(unnamed).label
    assert repr(unnamed) == f"<Kernel {label}>"
    unnamed.compile()
    assert repr(unnamed) == f"<Kernel saxpy(float a, float const* x, float* y, int n) of {label}>"

    def add(x, y):  # type: ignore[no-untyped-def]
        y[0] = x[0]

    assert str(inspect.signature(cached_kernel(add))) == "(x, y)"
    assert "definition" in inspect.signature(Kernel).parameters
