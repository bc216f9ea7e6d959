"""Programs that import `cuda` from this package in place of Numba's, on the fake driver, in fresh processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
from glob import glob
from pathlib import Path
from typing import Any, Protocol

import pytest

from numba_kcache import BundleError, KernelCache
from tests.support import numba_server
from tests.support import stand_in_programs as programs
from tests.support.fake_driver import ROOT, build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

EXTERNAL = 'extern "C" __device__ int external(float *out, float x) { *out = x * 2; return 0; }'

AT_IMPORT = {"NUMBA_CUDA_ENABLE_NRT", "PYTHONPATH"}


def said(
    program: str, cache: Path, *, log: Path | None = None, cwd: Path | None = None, is_cold: bool = False,
    real: str = "first", **env: str,
) -> dict[str, Any]:  # fmt: skip
    """What a program says at its end. One that imports Numba itself is forked from a process that has done so, `real`,
    unless a variable is given that an import reads; `is_cold` from one in which a stand-in has done so; others from one
    that has not imported Numba."""
    surroundings = {**environment(build(), log=log), "NUMBA_KCACHE_DIR": str(cache), **env}
    with contextlib.chdir(cwd or "."):
        if AT_IMPORT & env.keys():
            text = run(["-c", program], env=surroundings).stdout
        else:
            way = real if "REAL" in env else "stand-in" if is_cold else "fresh"
            text = numba_server.output(["-c", program], surroundings, env.get("KIND", "numba"), way=way)
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


def in_turn(program: str, cache: Path, **env: str) -> list[dict[str, Any]]:
    """What a program says that compiles, that finds this in a fresh process, and that imports Numba itself."""
    cold, warm = (said(program, cache, is_cold=is_cold, **env) for is_cold in (True, False))
    return [cold, warm, said(program, cache, real="later", **env, REAL="1")]


class Fill(Protocol):
    """Fills a cache with the kernel of `COMMON`, and returns what that program said when it compiled it."""

    def __call__(self, cache: Path, kind: str = "numba") -> dict[str, Any]: ...


@pytest.fixture(scope="module")
def fill(tmp_path_factory: pytest.TempPathFactory) -> Fill:
    made: dict[str, tuple[Path, dict[str, Any]]] = {}

    def copy(cache: Path, kind: str = "numba") -> dict[str, Any]:
        if kind not in made:
            folder = tmp_path_factory.mktemp("common")
            made[kind] = folder, said(programs.COMMON, folder, is_cold=True, KIND=kind)
        folder, found = made[kind]
        shutil.copytree(folder, cache, dirs_exist_ok=True)
        return found

    return copy


def test_default_that_is_replaced_after_the_decorator_is_not_read(tmp_path: Path) -> None:
    """Numba reads the defaults of a device function when it is decorated; so does the stand-in."""
    for env in ({"REAL": "1"}, {}):
        assert not said(programs.DEFAULTS, tmp_path / "cache", **env)["is_replaced"]


@pytest.mark.lane
@pytest.mark.parametrize(("kind", "package"), [("numba", "numba_cuda"), ("mlir", "numba_cuda_mlir")])
def test_second_process_hits_without_numba(tmp_path: Path, kind: str, package: str) -> None:
    """A stored kernel is launched with the same parameters, and neither Numba, llvmlite nor NumPy is imported."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    log = tmp_path / "log"
    cold = said(programs.COMMON, tmp_path / "cache", log=log, is_cold=True, KIND=kind)
    assert (cold["hits"], cold["misses"]) == (0, 1)

    warm = said(programs.COMMON, tmp_path / "cache", log=log, KIND=kind)

    assert (warm["hits"], warm["misses"], warm["loaded"]) == (1, 0, [])
    assert warm["keys"] == cold["keys"]
    launches = [each["parameters"] for each in read_log(log, "launch")]
    assert len(launches) == 6
    sizes = (2, 3, 5, 6, 7) if kind == "numba" else (2, 3, 4, 5)  # all but addresses
    assert [[each[at] for at in sizes] for each in launches] == [[launches[0][at] for at in sizes]] * 6


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_unedited_program_starts_without_numba(tmp_path: Path, kind: str) -> None:
    """With NUMBA_KCACHE_INSTALL=lazy, a program with `from numba import cuda` runs with Numba itself where nothing is
    stored, and stores the kernel and what the next process needs, which imports no Numba."""
    (tmp_path / "program.py").write_text(programs.UNEDITED)
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "NUMBA_KCACHE_INSTALL": "lazy"}
    words = ["-m", "numba_kcache", "run", str(tmp_path / "program.py")]

    cold, warm = (
        json.loads(numba_server.output(words, {**env, "KIND": kind}, kind, way="fresh").splitlines()[-1])
        for _ in range(2)
    )

    assert [(each["hits"], each["misses"], len(each["keys"])) for each in (cold, warm)] == [(0, 1, 0), (1, 0, 1)]
    assert [each["loaded"] == [] for each in (cold, warm)] == [False, True]


def test_unedited_program_sees_numba_as_without_the_stand_in(tmp_path: Path, fill: Fill) -> None:
    """Whatever it imports beside `cuda` alone is Numba's own, and so are kernels and device functions made after that;
    an earlier kernel is one of Numba's dispatchers to `isinstance`."""
    fill(tmp_path)

    cold, warm = (said(programs.FAITHFUL, tmp_path, NUMBA_KCACHE_INSTALL="lazy") for _ in range(2))

    assert [(each["hits"], each["misses"]) for each in (cold, warm)] == [(0, 2), (2, 0)]
    assert [each["found"].pop(1) for each in (cold, warm)] == [True, False]  # whether Numba is loaded after a launch
    assert cold["found"] == warm["found"] == [True] * 12


def test_hook_of_unedited_programs_is_hidden_from_warnings_and_tracebacks(tmp_path: Path) -> None:
    """As frames of the import system are: a module's warning names its importer, and a failed import its own lines."""
    (tmp_path / "old.py").write_text("import warnings\nwarnings.warn('old', stacklevel=2)\n")
    (tmp_path / "user.py").write_text("import old\nimport nothing\n")
    program = """
import json, sys, traceback, warnings
import numba_kcache
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    try:
        import user
    except ImportError as error:
        found += traceback.extract_tb(error.__traceback__)
print(json.dumps([each.filename.rpartition("/")[2] for each in found]))
"""
    found = said(program, tmp_path, cwd=tmp_path, NUMBA_KCACHE_INSTALL="lazy")

    assert [each for each in found if "<" not in each] == ["user.py", "user.py"]


def test_module_in_cuda_is_imported_before_and_after_numba(tmp_path: Path) -> None:
    """`numba_kcache.cuda.random` has the functions of `numba.cuda.random`, which an import of `numba` does not load."""
    found = [said(programs.RANDOM, tmp_path, is_cold=True)]
    found += [said(programs.RANDOM, tmp_path, **env) for env in ({"FIRST": "1"}, {}, {"REAL": "1"})]

    assert [(each["hits"], each["misses"]) for each in found] == [(0, 1), (1, 0), (1, 0), (1, 0)]
    assert len({*map(str, (each["keys"] for each in found))}) == 1


def test_light_start_brings_few_modules(tmp_path: Path) -> None:
    """A stored kernel on an array of the driver starts with at most 22 modules of this package."""
    names = "\nprint(json.dumps([each for each in sys.modules if each.startswith('numba_kcache')]))\n"
    said(programs.COMMON, tmp_path)  # the process that compiles finds the compilers, for the record that a start reads

    found = said(programs.COMMON.removesuffix(programs.END).replace("range(3)", "range(1)") + names, tmp_path)

    assert len(found) <= 22, sorted(found)


def test_program_that_imports_numba_hits_the_same_entry(tmp_path: Path, fill: Fill) -> None:
    """The key is that of the same program with `from numba import cuda`, whichever of both compiled it."""
    stored = fill(tmp_path / "one")
    assert said(programs.COMMON, tmp_path / "one", REAL="1") == {
        **stored, "hits": 1, "misses": 0, "why": "", "loaded": stored["loaded"]
    }  # fmt: skip

    by_real = said(programs.COMMON, tmp_path / "two", REAL="1")
    first = said(programs.COMMON, tmp_path / "two")
    second = said(programs.COMMON, tmp_path / "two")

    assert by_real["keys"] == first["keys"] == second["keys"] == stored["keys"]
    assert (first["hits"], first["misses"]) == (second["hits"], second["misses"]) == (1, 0)
    assert "nothing of this numba-cuda is stored yet" in first["why"]
    assert second["loaded"] == []


def test_changed_global_is_compiled_with_its_new_value(tmp_path: Path, fill: Fill) -> None:
    """A changed global is a miss, by a compile of the present value; the earlier value still hits."""
    first = fill(tmp_path)

    changed = said(programs.COMMON, tmp_path, SCALE="3.0")

    assert (changed["misses"], changed["why"].rpartition(": ")[2]) == (1, "it is not stored")
    assert changed["keys"] != first["keys"]
    assert said(programs.COMMON, tmp_path, SCALE="3.0", REAL="1")["keys"] == changed["keys"]
    assert said(programs.COMMON, tmp_path)["loaded"] == []


def test_explanation_says_why_numba_was_imported(tmp_path: Path, fill: Fill) -> None:
    """`explain`, in the program and in the shell, names the kernel for which Numba was imported, and why."""
    fill(tmp_path)
    cold, warm = (said(programs.EXPLAINED, tmp_path, SCALE="5.0") for _ in range(2))

    assert cold["imported"] == "__main__.kernel: it is not stored"
    assert "\n  Numba was imported for __main__.kernel: it is not stored\n" in cold["told"]
    assert (warm["imported"], warm["loaded"]) == ("", [])
    assert "imported" not in warm["told"]

    (tmp_path / "program.py").write_text("from numba_kcache import cuda\n@cuda.jit\ndef kernel():\n    pass\n")
    words = ["-m", "numba_kcache", "explain", "program.py:kernel", "--arch", "sm_90", "--signature", "void()"]
    with contextlib.chdir(tmp_path):
        _code, shown = numba_server.run(words, {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path)}, way="fresh")
    assert "Numba was imported for program.kernel: only Numba reads signatures" in shown


@pytest.mark.parametrize("use", programs.USES)
def test_each_program_hits_what_it_stored_by_either_import(tmp_path: Path, fill: Fill, use: str) -> None:
    """Whatever a program does to Numba: it hits in its second process and with the real import, with one key."""
    program, why = programs.DIFFERENT[use], programs.USES[use][1]
    fill(tmp_path)

    cold, warm, real = in_turn(program, tmp_path)

    assert [(each["hits"], each["misses"]) for each in (cold, warm, real)] == [(0, 1), (1, 0), (1, 0)]
    assert cold["keys"] == warm["keys"] == real["keys"]
    assert (warm["loaded"] == []) is (why is None)
    assert re.search(why or "^$", warm["why"])


def test_kernel_launched_before_and_after_numba_is_imported_counts_once(tmp_path: Path) -> None:
    """A kernel that was found without Numba is the same kernel with it: each signature is one hit."""
    cold = said(programs.BOTH_WAYS, tmp_path, is_cold=True)
    warm = said(programs.BOTH_WAYS, tmp_path)

    assert (cold["hits"], cold["misses"]) == (0, 2)
    assert (warm["hits"], warm["misses"], warm["why"]) == (2, 0, "")
    assert warm["keys"] == cold["keys"] == said(programs.BOTH_WAYS, tmp_path, REAL="1")["keys"]


@pytest.mark.parametrize(
    "variable", ["NUMBA_OPT", "NUMBA_CUDA_DEBUGINFO", "NUMBA_LOOP_VECTORIZE", "NUMBA_CUDA_ENABLE_NRT"]
)
def test_variable_of_numba_counts_without_numba(tmp_path: Path, fill: Fill, variable: str) -> None:
    """A changed NUMBA_* variable that changes code is a miss, whose entry both imports hit."""
    first, value = fill(tmp_path), "0" if variable in ("NUMBA_OPT", "NUMBA_LOOP_VECTORIZE") else "1"

    cold, warm, real = in_turn(programs.COMMON, tmp_path, **{variable: value})

    assert cold["misses"] == 1
    assert cold["keys"] == warm["keys"] == real["keys"] != first["keys"]
    assert (warm["hits"], real["hits"]) == (1, 1)


def test_variable_of_numba_that_is_set_between_launches_counts_without_numba(tmp_path: Path, fill: Fill) -> None:
    """A kernel that resolves again is keyed by the variables as they are then, as an import would read them."""
    changed = {"NUMBA_OPT": "0"}
    first, cold = fill(tmp_path), said(programs.COMMON, tmp_path, **changed)
    later = f"os.environ.update({changed})\nkernel.forget()\nkernel[1, 64](Memory(), 2.5, Memory())\nsay()"

    warm = said(programs.COMMON + later, tmp_path)

    assert (warm["hits"], warm["misses"], warm["loaded"]) == (2, 0, [])
    assert warm["keys"] == cold["keys"] != first["keys"]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_signature_casts_arguments_as_numba_does(tmp_path: Path, kind: str) -> None:
    """`cuda.jit("void(...)")` takes no other types, and passes and refuses the same values as the real one."""
    found, launches = [], []
    for name, env in (("cold", {}), ("warm", {}), ("real", {"REAL": "1"})):
        log, is_cold = tmp_path / name, name == "cold"
        told = said(programs.SIGNATURES, tmp_path / "cache", log=log, is_cold=is_cold, KIND=kind, **env)
        found.append(told["found"])
        launches.append([(each["parameters"][3], each["parameters"][5:]) for each in read_log(log, "launch")])

    assert found[0] == found[1] == found[2] != {}
    assert launches[0] == launches[1] == launches[2]
    assert len(launches[0]) >= 9


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_device_function_with_a_signature_is_compiled_once(tmp_path: Path, kind: str) -> None:
    """Its decorator compiles it where it is first needed, and the kernel uses that code, as under `install()`."""
    program = f"""{programs.START}
compiled = []
sys.setprofile(lambda frame, event, _: event == "call" and frame.f_code.co_name in ("compile_cuda", "compile_mlir")
               and compiled.append(frame.f_locals["pyfunc"].__name__))

@cuda.jit("float32(float32)", device=True)
def inner(x):
    return x * 3

@cuda.jit("float32(float32)", device=True)
def outer(x):
    return inner(x) + 1

@jit
def kernel(x):
    x[0] = outer(x[0])

KERNELS = [kernel]
kernel[1, 64](Memory())
say(compiled=compiled)"""

    assert sorted(said(program, tmp_path, is_cold=True, KIND=kind)["compiled"]) == ["inner", "kernel", "outer"]


def test_class_that_numba_types_by_its_base_is_left_to_numba(tmp_path: Path, fill: Fill) -> None:
    """An int with an array interface is an int for Numba, with and without the stand-in."""
    fill(tmp_path)

    cold, warm, real = in_turn(programs.INTEGER, tmp_path)

    assert cold["keys"] == warm["keys"] == real["keys"]
    assert [(each["hits"], each["misses"]) for each in (cold, warm, real)] == [(0, 1), (1, 0), (1, 0)]


@pytest.mark.parametrize("other", ["cuda.jit(device=True)(helper)", "cuda.grid"])
def test_object_of_the_other_numba_is_not_one_of_this(tmp_path: Path, other: str) -> None:
    """Where Numba refuses a device function or name of another Numba, a stored kernel with its own is not launched."""
    program = f"""{programs.START}
def helper(i):
    return i * 5

if "OTHER" in os.environ:
    cuda = importlib.import_module(NAMES["mlir"][not IS_REAL])
other = {other}
cuda = importlib.import_module(NAMES["numba"][not IS_REAL])

@jit
def kernel(x):
    x[0] = other(1)

KERNELS = [kernel]
kernel[1, 64](Memory())
{programs.END}"""
    stored = in_turn(program, tmp_path)
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path), "OTHER": "1"}

    assert [(each["hits"], each["misses"]) for each in stored] == [(0, 1), (1, 0), (1, 0)]
    assert numba_server.run(["-c", program], env, way="fresh")[0] == 1
    assert numba_server.run(["-c", program], {**env, "REAL": "1"})[0] == 1


def test_changed_setting_of_llvmlite_does_not_hit_the_code_without(tmp_path: Path, fill: Fill) -> None:
    """A program that loads llvmlite may have changed it, so that Numba is imported."""
    fill(tmp_path)
    changed = "import llvmlite\nllvmlite.its_setting = True\n" + programs.COMMON

    found = in_turn(changed, tmp_path)

    assert [(each["hits"], each["misses"]) for each in found] == [(0, 1), (1, 0), (1, 0)]
    assert "numba" in found[1]["loaded"]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_replaced_decorator_of_a_stand_in_is_called(tmp_path: Path, kind: str) -> None:
    """A program's own `cuda.jit`, which calls the one before, is used until the program takes it back."""
    cold, warm, real = in_turn(programs.PATCHED, tmp_path / "cache", KIND=kind)

    assert cold["calls"] == warm["calls"] == real["calls"] == 1
    assert (cold["misses"], warm["hits"], real["hits"], warm["loaded"]) == (1, 1, 1, [])
    assert cold["keys"] == warm["keys"] == real["keys"]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_cached_kernel_above_the_decorator_of_a_stand_in_adds_its_options(tmp_path: Path, kind: str) -> None:
    """The kernel has the options of both and one key by either import; the second process needs no Numba."""
    cold, warm, real = in_turn(programs.WRAPPED, tmp_path / "cache", KIND=kind)

    assert (cold["hits"], cold["misses"]) == (0, 1)
    assert (warm["hits"], warm["misses"], warm["loaded"]) == (1, 0, [])
    assert cold["keys"] == warm["keys"] == real["keys"]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_function_that_is_not_declared_a_device_function_is_called(tmp_path: Path, kind: str) -> None:
    """Numba compiles what `cuda.jit` made as a kernel or as a device function, by its use."""
    cold, warm, real = in_turn(programs.CALLED, tmp_path / "cache", KIND=kind)

    assert [(each["hits"], each["misses"]) for each in (cold, warm, real)] == [(0, 1), (1, 0), (1, 0)]
    assert cold["keys"] == warm["keys"] == real["keys"]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_linked_file_is_taken_from_the_working_directory(tmp_path: Path, kind: str) -> None:
    """As by Numba's `cuda.jit`, and not from the folder of the program, as by `cached_kernel`."""
    program, work = tmp_path / "of_program/program.py", tmp_path / "work"
    for path, text in (program, programs.LINKED), (work / "own.cu", EXTERNAL), (program.with_name("own.cu"), "x"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "KIND": kind}

    with contextlib.chdir(work):
        cold, warm = (
            json.loads(numba_server.output([str(program)], env, kind, way=way)) for way in ("stand-in", "fresh")
        )

    assert [(each["hits"], each["misses"]) for each in (cold, warm)] == [(0, 1), (1, 0)]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_device_functions_in_tuples_are_compiled(tmp_path: Path, kind: str) -> None:
    """Numba gets its own device functions there too, and the kernel has one key by either import."""
    cold, warm, real = in_turn(programs.TUPLES, tmp_path / "cache", KIND=kind)

    assert [(each["hits"], each["misses"]) for each in (cold, warm, real)] == [(0, 1), (1, 0), (1, 0)]
    assert cold["keys"] == warm["keys"] == real["keys"]


@pytest.mark.parametrize("real", [{}, {"REAL": "1"}])
@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_kernel_of_main_is_pickled_by_value(tmp_path: Path, kind: str, real: dict[str, str]) -> None:
    """`__main__` is another program in workers of dask and joblib: what the kernel calls and the stand-in go along.
    A copy is the kernel itself, as of a function."""
    env = {"KIND": kind, "PICKLED": str(tmp_path / "kernel"), **real}

    _, sent = (said(programs.PICKLED, tmp_path / "cache", **env) for _ in range(2))

    assert (sent["hits"], sent["misses"]) == (2, 0)


SENDS = """
import pickle, sys
from numba_kcache.cuda import grid, jit
@jit
def scaled(x):
    x[0] = x[0] * 3
@jit
def kernel(x):
    scaled(x)
    x[grid(1)] = x[0]
sys.stdout.write(pickle.dumps(kernel, 0).hex() + " " + kernel.key(arch="sm_90", signature="void(float32[::1])"))
"""


def test_pickled_kernel_finds_a_stand_in_of_which_a_program_imported_names(tmp_path: Path) -> None:
    """Its process has not imported the stand-in otherwise; what it calls is a kernel of the stand-in too."""
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path / "cache")}
    sent, key = numba_server.output(["-c", SENDS], env, way="fresh").split()
    receives = "import pickle, sys; kernel = pickle.loads(bytes.fromhex(sys.argv[1]))\n"
    shows = "print(kernel.key(arch='sm_90', signature='void(float32[::1])'))"

    assert numba_server.output(["-c", receives + shows, sent], env, way="fresh").strip() == key


def test_function_of_python_that_was_replaced_is_not_registered_in_place_of_another(tmp_path: Path) -> None:
    """Numba registers code by Python's functions: it sees those that were there when the stand-in was imported."""
    found = [
        said(programs.SWAPPED, tmp_path / name, **env) for name, env in (("a", {}), ("a", {"REAL": "1"}), ("b", {}))
    ]
    alone = said(programs.SWAPPED, tmp_path / "c", REAL="1")

    assert [each["is_sum"] for each in (*found, alone)] == [True] * 4
    assert [each["misses"] for each in (*found, alone)] == [1, 0, 1, 1]


def test_function_of_python_that_was_replaced_after_a_hit_is_not_registered_either(tmp_path: Path) -> None:
    """Numba registers code at its first compile: after a hit, that is later than the program expects."""
    said(programs.REPLACED, tmp_path, is_cold=True)

    light, real = said(programs.REPLACED, tmp_path, ADDED="2"), said(programs.REPLACED, tmp_path, ADDED="3", REAL="1")

    assert [(each["hits"], each["misses"]) for each in (light, real)] == [(1, 1), (1, 1)]
    assert "0d4000000000000000" in light["code"]
    assert "0d4008000000000000" in real["code"]


def test_settings_file_of_numba_is_left_to_numba(tmp_path: Path, fill: Fill) -> None:
    """Where a `.numba_config.yaml` lies in the working directory, Numba reads it."""
    (tmp_path / ".numba_config.yaml").write_text("loop_vectorize: 1\n")
    fill(tmp_path / "cache")

    found = [said(programs.COMMON, tmp_path / "cache", cwd=tmp_path, **env) for env in ({}, {}, {"REAL": "1"})]

    assert "numba" in found[1]["loaded"]
    assert found[0]["keys"] == found[1]["keys"] == found[2]["keys"]
    assert found[1]["hits"] == found[2]["hits"] == 1


def test_checkout_in_front_of_the_installed_numba_is_imported(tmp_path: Path, fill: Fill) -> None:
    """A package that an import would take from another folder than its metadata is keyed by content, by Numba's way."""
    spec = importlib.util.find_spec("numba_cuda")
    assert spec is not None
    (tmp_path / "checkout").mkdir()
    shutil.copytree(Path(str(spec.origin)).parent, tmp_path / "checkout" / "numba_cuda")
    path = {"PYTHONPATH": f"{tmp_path / 'checkout'}:{environment(build())['PYTHONPATH']}"}
    stored = fill(tmp_path / "cache")

    cold, warm, real = (said(programs.COMMON, tmp_path / "cache", **env, **path) for env in ({}, {}, {"REAL": "1"}))

    assert "numba" in warm["loaded"]
    assert cold["keys"] == warm["keys"] == real["keys"] != stored["keys"]
    assert (cold["misses"], warm["hits"], real["hits"]) == (1, 1, 1)


def test_numpy_in_a_folder_of_pythonpath_is_the_reason(tmp_path: Path) -> None:
    """A package that counts by its files can be keyed only when it is imported: `explain` names it and its folder."""
    package = Path(str(importlib.util.find_spec("numpy").origin)).parent  # type: ignore[union-attr]
    for each in package.parent.glob("numpy*"):
        (tmp_path / each.name).symlink_to(each)
    path = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment(build())['PYTHONPATH']}"}

    cold, warm = (said(programs.EXPLAINED, tmp_path / "cache", **path) for _ in range(2))

    assert (cold["misses"], warm["hits"]) == (1, 1)
    assert warm["imported"] == f"__main__.kernel: numpy in {tmp_path} counts by its files, not by a version"


def test_facts_are_in_an_export_of_chosen_kernels(tmp_path: Path, fill: Fill) -> None:
    """A bundle of one kernel has the facts without which its program would import Numba, and no other kernel."""
    stored = fill(tmp_path / "cache")
    with pytest.raises(BundleError, match="none of the requested entries"):
        KernelCache(tmp_path / "cache").export_bundle(tmp_path / "none.kcache", arch="sm_75")
    said(programs.COMMON, tmp_path / "cache", is_cold=True, SCALE="7.0")
    said(programs.CHOSEN, tmp_path / "cache", BUNDLE=str(tmp_path / "one.kcache"))
    tier = {"NUMBA_KCACHE_TIERS": str(tmp_path / "one.kcache"), "NUMBA_KCACHE_MODE": "frozen"}

    found = said(programs.COMMON, tmp_path / "empty", **tier)

    assert (found["hits"], found["loaded"], found["keys"]) == (1, [], stored["keys"])
    other = {**environment(build()), **tier, "NUMBA_KCACHE_DIR": str(tmp_path / "empty"), "SCALE": "7.0"}
    assert "FrozenCacheError" in numba_server.run(["-c", programs.COMMON], other, way="fresh")[1]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_kernels_of_programs_that_import_numba_are_exported_with_facts(tmp_path: Path, kind: str) -> None:
    """A process of its own observes the facts for the export, so that the stand-in finds the kernels without Numba."""
    real = said(programs.CHOSEN, tmp_path / "cache", BUNDLE=str(tmp_path / "one.kcache"), REAL="1", KIND=kind)
    tier = {"NUMBA_KCACHE_TIERS": str(tmp_path / "one.kcache"), "NUMBA_KCACHE_MODE": "frozen", "KIND": kind}

    found = said(programs.COMMON, tmp_path / "empty", **tier)

    assert (real["misses"], found["hits"], found["loaded"], found["keys"]) == (1, 1, [], real["keys"])


def test_export_goes_on_where_numba_does_not_answer(tmp_path: Path) -> None:
    """A process that does not observe the facts in time is ended, and the bundle has the kernel without them."""
    limited = (
        "from numba_kcache.frontends.numba import learning\nlearning._LONGEST_S = 0.01\nnumba_kcache.KernelCache()."
    )
    program = programs.CHOSEN.replace("numba_kcache.KernelCache().", limited)
    real = said(program, tmp_path / "cache", BUNDLE=str(tmp_path / "one.kcache"), REAL="1")

    found = said(programs.COMMON, tmp_path / "empty", NUMBA_KCACHE_TIERS=str(tmp_path / "one.kcache"))

    assert (real["misses"], found["hits"], found["keys"]) == (1, 1, real["keys"])
    assert "nothing of this numba-cuda is stored yet" in found["why"]


def test_warm_up_of_a_program_that_imports_numba_stores_facts(tmp_path: Path) -> None:
    """A module with `from numba import cuda` is warmed; the same module by the stand-in then starts without Numba."""
    module = """
import os
from numba_kcache import cached_kernel
if "REAL" in os.environ:
    from numba import cuda
else:
    from numba_kcache import cuda
@cached_kernel(kind="numba", signature="void(float32[::1], float32[::1])")
def kernel(x, out):
    out[cuda.grid(1)] = x[0]
"""
    (tmp_path / "warmed.py").write_text(module)
    env = {**environment(build()), "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "REAL": "1"}
    with contextlib.chdir(tmp_path):
        numba_server.output(["-m", "numba_kcache", "warm", "warmed.py", "--arch", "sm_90a"], env, way="fresh")
    program = f"{programs.START}\nfrom warmed import kernel\nKERNELS = [kernel]\nkernel[1, 64](Memory(), Memory())\n"

    found = said(program + programs.END, tmp_path / "cache", cwd=tmp_path)

    assert (found["hits"], found["loaded"], found["why"]) == (1, [], "")


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_memory_of_numba_is_made_by_numba(tmp_path: Path, kind: str) -> None:
    """`to_device`, `device_array` and pinned memory are Numba's own, and kernels on them hit the same entries."""
    cold, warm, real = in_turn(programs.HOST, tmp_path, KIND=kind)

    assert cold["keys"] == warm["keys"] == real["keys"]
    assert [(each["hits"], each["misses"]) for each in (cold, warm, real)] == [(0, 1), (1, 0), (1, 0)]
    assert cold["kinds"] == warm["kinds"] == real["kinds"]
    assert "uses numba_kcache" in warm["why"]


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_streams_and_events_need_no_numba(tmp_path: Path, kind: str) -> None:
    """The driver makes them, launches go to them, and Numba takes them for its own once it is loaded."""
    log = tmp_path / "log"
    said(programs.STREAMS, tmp_path / "cache", is_cold=True, KIND=kind)

    light = said(programs.STREAMS, tmp_path / "cache", log=log, KIND=kind)
    after, real = (
        said(programs.STREAMS, tmp_path / "cache", KIND=kind, AFTER="1", **env) for env in ({}, {"REAL": "1"})
    )

    assert (light["hits"], light["loaded"]) == (1, [])
    assert len({each["stream"] for each in read_log(log, "launch")} - {0}) == 1
    assert (after["hits"], real["hits"], after["keys"]) == (1, 1, real["keys"])


def test_event_whose_work_is_pending_is_not_done_yet(tmp_path: Path) -> None:
    """It is polled: `query()` is false while the driver's answer is that the work is pending; true after that."""
    program = programs.START + "KERNELS, event = [], cuda.event()\nsay(done=[event.query() for _ in range(2)])"

    polled = said(program, tmp_path, KC_FAKE_FAIL="cuEventQuery:600@1")

    assert (polled["done"], polled["loaded"]) == ([False, True], [])


def test_kernel_whose_compile_warned_needs_no_numba(tmp_path: Path) -> None:
    """A compile warns once; a hit issues no warning, as with Numba's own cache, and imports no Numba."""
    cold, warm, real = in_turn(programs.WARNED, tmp_path)

    assert [each["warned"] for each in (cold, warm, real)] == [["NumbaWarning"], [], []]
    assert (cold["misses"], warm["hits"], real["hits"]) == (1, 1, 1)
    assert warm["loaded"] == []


@pytest.mark.parametrize("kind", ["numba", "mlir"])
def test_facts_travel_in_a_bundle(tmp_path: Path, fill: Fill, kind: str) -> None:
    """A kernel in a mounted bundle is launched without Numba, in an empty cache and in a frozen one."""
    stored = fill(tmp_path / "cache", kind)
    cache = KernelCache(tmp_path / "cache")
    cache.export_bundle(tmp_path / "all.kcache")

    for mode in ("readwrite", "frozen"):
        env = {"NUMBA_KCACHE_TIERS": str(tmp_path / "all.kcache"), "NUMBA_KCACHE_MODE": mode, "KIND": kind}
        found = said(programs.COMMON, tmp_path / mode, **env)

        assert (found["hits"], found["misses"], found["loaded"], found["keys"]) == (1, 0, [], stored["keys"])


def test_machine_without_numba_launches_from_a_bundle(tmp_path: Path, fill: Fill) -> None:
    """Where neither Numba nor NumPy is installed, a bundle's kernel is launched, a miss says what is missing, and
    `doctor` what can run; packages and bundle take less than 150 MB."""
    stored = fill(tmp_path / "cache")
    KernelCache(tmp_path / "cache").export_bundle(tmp_path / "all.kcache")
    site, packages = tmp_path / "site", Path(str(importlib.util.find_spec("xxhash").origin)).parents[1]  # type: ignore[union-attr]
    (site / "cuda").mkdir(parents=True)
    for pattern in ("cuda_bindings*", "cuda_pathfinder*", "platformdirs*", "zstandard*", "xxhash*", "cuda/bindings",
                    "cuda/pathfinder"):  # fmt: skip
        for each in packages.glob(pattern):
            (site / each.relative_to(packages)).symlink_to(each)
    env = {
        **environment(build()), "PYTHONPATH": f"{site}{os.pathsep}{ROOT}", "NUMBA_KCACHE_DIR": str(tmp_path / "empty"),
        "NUMBA_KCACHE_TIERS": str(tmp_path / "all.kcache"), "NUMBA_KCACHE_MODE": "frozen",
    }  # fmt: skip

    found = json.loads(run(["-S", "-c", programs.COMMON], env=env).stdout.splitlines()[-1])
    missed = run(["-S", "-c", programs.COMMON], env={**env, "SCALE": "9.0"}, check=False)
    lazy = run(["-S", "-c", programs.UNEDITED], env={**env, "NUMBA_KCACHE_INSTALL": "lazy"}, check=False)
    unfrozen = {**env, "SCALE": "9.0", "NUMBA_KCACHE_MODE": "readwrite"}
    shown = run(["-S", "-m", "numba_kcache", "doctor"], env=env, check=False).stdout
    shipped = [each for folder in (site, ROOT / "numba_kcache") for each in glob(f"{folder}/**", recursive=True)]

    assert (found["hits"], found["misses"], found["loaded"], found["keys"]) == (1, 0, [], stored["keys"])
    assert "FrozenCacheError: cannot compile __main__.kernel" in missed.stderr
    assert lazy.stderr.endswith("ModuleNotFoundError: No module named 'numba'\n")
    assert "ToolchainMissingError" in run(["-S", "-c", programs.COMMON], env=unfrozen, check=False).stderr
    assert re.search("note +numba-cuda +not installed: stored kernels start without it\n", shown)
    assert re.search("note +numba-cuda-mlir +not installed: CUDA C\\+\\+ kernels do not need it\n", shown)
    assert sum(os.path.getsize(each) for each in [*shipped, tmp_path / "all.kcache"]) < 150e6
