"""Kernels of numba-cuda-mlir on the fake driver: bytes passed to the driver, imports of a warm start,
and defects of numba-cuda-mlir's launcher and cache."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.support import mlir_programs, numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run, without_addresses

pytest.importorskip("numba_cuda_mlir")

pytestmark = [needs_fake_driver, pytest.mark.slow]


def said(
    program: str,
    cache: Path,
    *arguments: str,
    log: Path | None = None,
    devices: tuple[int, ...] = (90,),
    is_later: bool = False,
) -> list[str]:
    """The lines that a program prints under the fake driver, in a fork of a process with numba-cuda-mlir imported.

    `is_later` is for hits on entries that an earlier process stored: another hash seed, other addresses.
    """
    env = {**environment(build(), log=log, devices=devices), "NUMBA_CACHE_DIR": str(cache) + "-its-own"}
    words = ["-c", program, str(cache), *arguments]
    return numba_server.output(words, env, of="mlir", way="later" if is_later else "first").splitlines()


def launches(log: Path, name: str) -> list[list[str]]:
    """The parameters of each launch of a kernel, in hex."""
    return [each["parameters"] for each in read_log(log, "launch") if name in each["kernel"]]


def test_parameters_equal_those_of_numba_cuda_mlir(tmp_path: Path) -> None:
    """Scalars, arrays of every layout and library, records, complex, tuples: our launches pass the bytes that its
    launcher passes, cold and warm."""
    passed = []
    for way, misses in (("cold", "33 misses"), ("warm", "0 misses")):
        log = tmp_path / f"log {misses}"

        printed = said(mlir_programs.PARITY, tmp_path / "cache", way, log=log, is_later=way == "warm")

        found, size = launches(log, "echo"), 1 + 4  # one launch by numba-cuda-mlir, four by this package
        groups = [found[at : at + size] for at in range(0, len(found), size)]
        assert len(groups) == sum(line.startswith("launched") for line in printed)
        assert [each for each in groups if any(one != each[0] for one in each)] == []
        assert printed[-1] == misses
        passed.append([without_addresses(each[0]) for each in groups])
    assert passed[0] == passed[1]


@pytest.mark.lane
@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_values_that_the_launcher_of_numba_cuda_mlir_garbles_arrive(tmp_path: Path, way: str) -> None:
    """Numbers of another width than the first launch's, strided complex arrays, defaults left out, and None."""
    log = tmp_path / "log"

    said(mlir_programs.WRONG, tmp_path / "cache", way, log=log)

    found = [bytes.fromhex(each[0]) for each in launches(log, "echo")]
    numbers, arrays = found[: 6 * 12], launches(log, "echo")[6 * 12 :]
    wanted = [struct.pack(code, value) for code, value in
              (("<f", 2.0), ("<d", 2.0), ("<i", 5), ("<q", 2**40), ("<?", True), ("<q", 258))]  # fmt: skip
    assert [*dict.fromkeys(numbers)] == wanted
    assert {tuple(int.from_bytes(bytes.fromhex(each), "little") for each in one[3:]) for one in arrays} == {
        (4, 10, 20, 2)
    }
    for name in ("with_default", "with_nothing"):
        assert {tuple(each) for each in launches(log, name)} == {("0700000000000000", "0300000000000000")}


@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_record_on_the_device_and_empty_star_arguments_are_launched(tmp_path: Path, way: str) -> None:
    """A record is one parameter, its address; `*args` are as many parameters as there are arguments, also none."""
    log = tmp_path / "log"

    said(mlir_programs.RARE, tmp_path / "cache", way, log=log)

    assert [[len(one) for one in each] for each in launches(log, "of_record")] == [[16]] * 3
    assert launches(log, "of_many") == [["0700000000000000"], ["0700000000000000", "0300000000000000"]] * 3


@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_install_keeps_the_wait_of_the_host_for_the_stream_of_an_array(tmp_path: Path, way: str) -> None:
    """numba-cuda-mlir does so, and programs may rely on it; for kernels of `cached_kernel` the device waits."""
    waits = [str(each) for each in (["one", "two"], ["two"], *[["one", "one"]] * 12)]

    assert said(mlir_programs.STREAMS, tmp_path / "cache", way) == (waits if way == "installed" else ["[]"] * 14)


@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_garbage_that_is_collected_in_a_first_launch_does_not_end_a_capture(tmp_path: Path, way: str) -> None:
    """Finalizers of arrays free memory while a kernel is compiled, or looked up, which a capture forbids."""
    log = tmp_path / "log"

    assert [said(mlir_programs.CAPTURED, tmp_path / "cache", way, log=log) for _ in range(2)] == [["0"], ["0"]]

    assert len(read_log(log, "free")) >= 40, "garbage was collected"
    assert not read_log(log, "forbidden")


@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_compile_warns_and_a_hit_does_not(tmp_path: Path, way: str) -> None:
    """A warning is issued once, while the kernel is compiled."""
    cold, warm = (said(mlir_programs.WARNS, tmp_path / "cache", way, is_later=each) for each in (False, True))

    assert (cold, warm) == (["NumbaDebugInfoWarning True"], [])


@pytest.mark.lane
def test_warm_start_loads_no_compiler(tmp_path: Path) -> None:
    """A warm start maps neither NVVM, LLVM, NVRTC nor nvJitLink, imports no compiler module and reads no registry."""
    said(mlir_programs.WARM, tmp_path)

    printed = run(["-c", mlir_programs.WARM, str(tmp_path)], env=environment(build())).stdout.splitlines()

    assert printed == ["libraries []", "modules []", "initialized False", "hits 1 misses 0"]


def test_every_option_is_in_the_key(tmp_path: Path) -> None:
    """Options of a function and of a dispatcher are keyed alike; three targets are compiled without a device."""
    printed = said(mlir_programs.OPTIONS, tmp_path, devices=())

    assert printed == ["[]", "['sm_120', 'sm_80', 'sm_90']"]


def test_what_its_own_cache_serves_stale_is_compiled(tmp_path: Path) -> None:
    """An edited callee, another global, a captured array and another device runtime are misses; everything else is a
    hit."""
    cache, log = tmp_path / "cache", tmp_path / "log"
    cold = said(mlir_programs.DEFECTS, cache, "cold", "2.0", "2.0")
    warm = said(mlir_programs.DEFECTS, cache, "warm", "2.0", "2.0", log=log, is_later=True)
    edited = said(mlir_programs.DEFECTS, cache, "edited", "3.0", "5.0")
    relinked = said(mlir_programs.DEFECTS, cache, "relinked", "3.0", "5.0")

    assert cold == [f"{name} compiled" for name in ("calls", "reads", "synced", "captures", "links")]
    assert warm == ["calls hit", "reads hit", "synced hit", "captures compiled", "links hit"]
    assert edited == ["calls compiled", "reads compiled", "synced hit", "captures compiled", "links hit"]
    assert relinked == ["calls hit", "reads hit", "synced compiled", "captures compiled", "links hit"]
    assert [each["cooperative"] for each in read_log(log, "launch") if "synced" in each["kernel"]] == [True]
    assert not list(Path(f"{cache}-its-own").rglob("*.nbi"))


@pytest.mark.lane
def test_text_of_a_served_kernel_is_that_of_its_compile(tmp_path: Path) -> None:
    """The text is MLIR before the passes, for the target that the options name, also if no device here runs its
    code."""
    for misses in (1, 0):
        assert said(mlir_programs.INSPECTED, tmp_path, is_later=misses == 0) == [f"True True {misses}", "True"]


def test_intrinsics_count_by_their_code_and_its_output(tmp_path: Path) -> None:
    """A changed global that an intrinsic's code generator reads, or a change of the MLIR that it writes, is a miss;
    earlier entries are hits."""
    assert said(mlir_programs.INTRINSICS, tmp_path, is_later=True)[-1] == "3 3 3"
    assert said(mlir_programs.INTRINSICS, tmp_path, is_later=True)[-1] == "3 0 0"


def test_program_that_is_not_edited_compiles_once(tmp_path: Path) -> None:
    """`overloads`, `inspect_*` (with `lto` too), `specialize` and pickling work, after a compile and after a hit."""
    cold = said(mlir_programs.INSTALLED, tmp_path)
    warm = said(mlir_programs.INSTALLED, tmp_path, is_later=True)

    assert cold == ["kernel  missed", "compiles 4", "compiles afterwards 4"]
    assert warm == ["kernel hit ", "compiles 0", "compiles afterwards 0"]


def test_install_keeps_errors_warnings_and_overloads(tmp_path: Path) -> None:
    """Errors, warnings and overloads are those of the program without the cache, cold and warm."""
    plain, *installed = [said(mlir_programs.UNEDITED, tmp_path, way) for way in ("plain", "installed")]
    installed.append(said(mlir_programs.UNEDITED, tmp_path, "installed", is_later=True))

    assert installed == [plain, plain]


def test_launch_that_was_configured_before_install_is_cached(tmp_path: Path) -> None:
    """A launch that numba-cuda-mlir configured is compiled with this cache if it is first called under `install()`."""
    program = mlir_programs.START + (
        "@cuda.jit\ndef kernel(x):\n    x[0] = 1\n"
        "launch = kernel[1, 1]\nnumba_kcache.configure(directory=sys.argv[1])\nnumba_kcache.install(all=True)\n"
        "launch(cuda.to_device(np.ones(3)))\nfound = numba_kcache.info('process')\n"
        "print(found.hits, found.misses, len(kernel.overloads))\n"
    )

    assert [said(program, tmp_path, is_later=each) for each in (False, True)] == [["0 1 1"], ["1 0 1"]]


@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_recompiled_kernel_is_launched_as_it_is_now(tmp_path: Path, way: str) -> None:
    """A global has its value of the first launch; after `recompile()`, its present value."""
    log = tmp_path / "log"

    assert said(mlir_programs.RECOMPILED, tmp_path / "cache", way, log=log) == ["1", "2"]
    found = [each["event"] for each in read_log(log) if each["event"] in ("load", "launch")]
    assert found == ["load", *["launch"] * 6, "load", *["launch"] * 3]


@pytest.mark.parametrize("way", ["decorated", "installed"])
def test_closed_context_is_noticed(tmp_path: Path, way: str) -> None:
    """After `cuda.close()` and a reset the module is loaded again, for launches that were configured before as well."""
    log = tmp_path / "log"

    printed = said(mlir_programs.CLOSED, tmp_path / "cache", way, log=log, is_later=True)

    assert printed == ["1 1"]
    assert [each["result"] for each in read_log(log, "launch")] == [0] * 28


@pytest.mark.parametrize("way", ["module", "variable"])
def test_hook_caches_programs_without_an_edit(tmp_path: Path, way: str) -> None:
    """`numba-kcache run --all PROGRAM`, or the environment variable if the program imports the package."""
    program = tmp_path / "program.py"
    program.write_text(
        ("import numba_kcache\n" if way == "variable" else "")
        + "import numpy as np\nfrom numba_cuda_mlir import cuda\n@cuda.jit\ndef k(x):\n    x[0] = 1\n"
        "k[1, 1](cuda.to_device(np.ones(3)))\nimport numba_kcache\nprint(numba_kcache.info('process').compiles)\n"
    )
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "NUMBA_KCACHE_INSTALL": "all"}
    words = [str(program)]
    if way == "module":
        del env["NUMBA_KCACHE_INSTALL"]
        words = ["-m", "numba_kcache", "run", "--all", str(program)]
    said = [numba_server.output(words, env, "mlir", way="fresh") for _ in range(2)]

    assert [each.strip() for each in said] == ["1", "0"]


def test_target_is_what_was_asked_for(tmp_path: Path) -> None:
    """Two devices have code of their own, a reset works, and `chip=` is the target although the device is newer."""
    log = tmp_path / "log"

    printed = said(mlir_programs.DEVICES, tmp_path / "cache", log=log, devices=(90, 86))

    assert printed == ["sm_80 sm_86 sm_90"]
    assert {each["result"] for each in read_log(log, "launch")} == {0}


def test_what_cannot_be_keyed_runs_and_says_why(tmp_path: Path) -> None:
    """A captured device array, a planner of the program's own: the kernel runs uncached, with the reason. A number
    that a fixed signature cannot hold is refused."""
    printed = said(mlir_programs.REFUSED, tmp_path)

    assert "device array" in printed[0]
    assert [" ".join(each.split()[:7]) for each in printed[1:3]] == [
        "cannot pass 1099511627776 (int) as argument 2",
        "cannot pass 2.5 (float) as argument 2",
    ]
    assert "planner" in printed[3]
    assert printed[4] == "stored 1"


@pytest.mark.lane
def test_both_numbas_take_their_own_kernels(tmp_path: Path) -> None:
    """Each function goes to the Numba whose `cuda` it names; both work in one process."""
    pytest.importorskip("numba.cuda")
    program = mlir_programs.START + (
        "from numba import cuda as other\n"
        "@cached_kernel(cache=cache)\ndef one(x):\n    x[other.grid(1)] = 1\n"
        "@cached_kernel(cache=cache)\ndef two(x):\n    x[cuda.grid(1)] = 1\n"
        "one[1, 8](other.to_device(np.ones(8)))\ntwo[1, 8](cuda.to_device(np.ones(8)))\n"
        "print(*[each._definition.kind for each in (one, two)], cache.info('process').compiles)\n"
    )

    assert said(program, tmp_path) == ["numba mlir 2"]


def test_kernel_whose_source_text_is_compiled_is_not_stored(tmp_path: Path) -> None:
    """A text transform reads the file at the compile and runs parts of it: its code is used, and not stored."""
    module = tmp_path / "transformed.py"
    text = (
        "from numba_cuda_mlir import cuda\nfrom numba_cuda_mlir.cuda.experimental import consteval\nN = 3\n"
        "def k(x):\n    x[0] = consteval(N * 2)\n"
    )
    module.write_text(text)
    program = mlir_programs.START + (
        f"sys.path.insert(0, {str(tmp_path)!r})\nsys.dont_write_bytecode = True\nimport transformed\n"
        "cached_kernel(transformed.k, cache=cache)[1, 1](cuda.to_device(np.ones(8)))\nprint(cache.info().entries)\n"
    )

    assert said(program, tmp_path / "cache") == ["0"]
