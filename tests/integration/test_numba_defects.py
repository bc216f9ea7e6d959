"""Each defect of Numba's own kernel cache, shown with Numba and absent here: one program, run with either cache.

The programs are not edited: they have `@cuda.jit(cache=True)`, and run with or without NUMBA_KCACHE_INSTALL=1.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support import numba_server
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log
from tests.support.nvrtc_copies import copy_of

pytestmark = [needs_fake_driver, pytest.mark.slow]

NUMBA, HERE = "numba", "here"
either = pytest.mark.parametrize("whose", [NUMBA, HERE])

PROGRAM = """
import os, re, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
import numba_kcache
from numba import cuda
{head}

@cuda.jit(cache=True{options})
def kernel(x):
{body}

if __name__ == "__main__":
    kernel[1, 1](cuda.to_device(np.ones(4, {dtype!r})))
    ptx = "".join(kernel.inspect_asm().values())
    hits = sum(kernel.stats.cache_hits.values()) if not numba_kcache.info("process").misses else 0
    print(*re.findall(r"0[df][0-9A-Fa-f]{{8,16}}", ptx), *re.findall("div.approx|div.rn", ptx), "hits", hits)
"""
THREE, FIVE = "0d4008000000000000", "0d4014000000000000"


class Project:
    """A program in a folder, and the two caches' folders beside it."""

    def __init__(self, root: Path, whose: str) -> None:
        self.root, self.whose = root, whose
        self.files, self.cache = root / "files", root / "cache"
        self.files.mkdir(parents=True)
        self.log = root / "log"

    def write(self, name: str, text: str) -> Path:
        path = self.files / name
        path.write_text(text)
        shutil.rmtree(self.files / "__pycache__", ignore_errors=True)
        return path

    def program(self, body: str = "x[0] *= 3.0", head: str = "", options: str = "", dtype: str = "f8") -> None:
        lines = "\n".join("    " + line for line in body.splitlines())
        self.write("program.py", PROGRAM.format(head=head, body=lines, options=options, dtype=dtype))

    def filled(self) -> None:
        """The program, and the cache of a process that compiled it: one for all tests."""
        kept = self.root.with_name(f"{self.whose} filled")
        if not kept.exists():
            self.program()
            self.fill()
            shutil.copytree(self.root, kept)
        shutil.copytree(kept, self.root, dirs_exist_ok=True)

    def fill(self, *arguments: str, before: str = "", **env: str) -> str:
        """Output of a program that compiles; the name of the exception where it ends in one.

        These processes share a hash seed and the like, which could only cause a hit, never hide one that is wrong.
        """
        return self._said(arguments, before, env, is_later=False)

    def run(self, *arguments: str, before: str = "", **env: str) -> str:
        """The same of a later process, which has another hash seed and other addresses if the cache is this one."""
        return self._said(arguments, before, env, is_later=self.is_here())

    def _said(self, arguments: tuple[str, ...], before: str, env: dict[str, str], *, is_later: bool) -> str:
        surroundings = environment(build(), log=self.log) | {
            "NUMBA_CACHE_DIR": str(self.cache / NUMBA), "NUMBA_KCACHE_DIR": str(self.cache / HERE),
            "NUMBA_KCACHE_INSTALL": str(int(self.whose == HERE)), "PYTHONDONTWRITEBYTECODE": "1", **env,
        }  # fmt: skip
        script = [str(self.files / "program.py")]
        if before:
            start = f"import runpy, sys\n{before}\nsys.path.insert(0, {str(self.files)!r})\n"
            script = ["-c", start + f"runpy.run_path({script[0]!r}, run_name='__main__')"]
        code, output = numba_server.run([*script, *arguments], surroundings, way="later" if is_later else "first")
        last = output.strip().splitlines()[-1]
        return last.partition(":")[0] if code else last

    def stored(self) -> list[Path]:
        """The files that hold kernels."""
        return sorted(each for each in (self.cache / self.whose).rglob("*") if each.is_file() and _is_kernel(each))

    def is_here(self) -> bool:
        return self.whose == HERE


def _is_kernel(path: Path) -> bool:
    return path.suffix == ".nbc" or "entries" in str(path)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def project(home: Path, whose: str) -> Project:
    """One in the same place for each test, since Numba's cache has the program's path."""
    shutil.rmtree(home / whose, ignore_errors=True)
    return Project(home / whose, whose)


HELPERS = """
from numba import cuda
K = {k}
@cuda.jit(device=True)
def scaled(x):
    return x * {k}
"""


@either
def test_edited_device_function_of_another_module_is_seen(project: Project) -> None:
    """Numba checks only the kernel's own file (numba#1833, numba#9483)."""
    project.program("x[0] = helpers.scaled(x[0])", "import helpers")
    project.write("helpers.py", HELPERS.format(k="3.0"))
    assert THREE in project.fill()

    project.write("helpers.py", HELPERS.format(k="5.0"))

    assert (FIVE in project.fill()) is project.is_here()


@either
def test_edited_constant_of_another_module_is_seen(project: Project) -> None:
    """A module's attribute that the kernel reads is part of its code."""
    project.program("x[0] *= helpers.K", "import helpers")
    project.write("helpers.py", HELPERS.format(k="3.0"))
    assert THREE in project.fill()

    project.write("helpers.py", HELPERS.format(k="5.0"))

    assert (FIVE in project.fill()) is project.is_here()


@either
def test_global_from_the_environment_is_seen(project: Project) -> None:
    """The file is the same, the global's value is not."""
    project.program("x[0] *= SCALE", 'SCALE = float(os.environ["SCALE"])')
    assert THREE in project.fill(SCALE="3")

    assert (FIVE in project.fill(SCALE="5")) is project.is_here()


@either
def test_decorator_option_is_seen(project: Project) -> None:
    """fastmath is set outside the file: Numba serves the precise kernel."""
    project.program("x[0] = x[0] / x[1]", options=', fastmath=bool(os.environ.get("FAST"))', dtype="f4")
    assert "div.rn" in project.fill()

    assert ("div.approx" in project.fill(FAST="1")) is project.is_here()


@either
@pytest.mark.parametrize("variable", ["NUMBA_OPT", "NUMBA_FORCE_CUDA_CC"])
def test_setting_that_changes_code_is_seen(project: Project, variable: str) -> None:
    """A kernel compiled under another optimisation level or for a forced capability is another kernel."""
    project.filled()

    again = project.fill(**{variable: {"NUMBA_OPT": "0", "NUMBA_FORCE_CUDA_CC": "8.0"}[variable]})

    assert ("hits 0" in again) is project.is_here()


@either
@pytest.mark.parametrize("library", ["nvvm", "nvJitLink", "nvrtc"])
def test_another_build_of_a_compiler_is_seen(project: Project, library: str) -> None:
    """Numba's key has neither NVVM, NVRTC nor nvJitLink in it: code of another build is served as that of the installed
    one."""
    project.program()
    another = copy_of(library, project.root / "another", beside="nvrtc-builtins" if library == "nvrtc" else "")
    loaded = f"import ctypes\nctypes.CDLL({str(another)!r})"
    assert "hits 0" in project.run(before=loaded)

    assert ("hits 0" in project.run()) is project.is_here()
    assert "hits 1" in project.run()


GENERATOR = """
def make(value):
    space = {"cuda": cuda}
    exec(compile(f"@cuda.jit(cache=True)\\ndef kernel(x):\\n    x[0] *= {value}\\n", __file__, "exec"), space)
    return space["kernel"]
first = make(3.0)
first[1, 1](cuda.to_device(np.ones(4)))
kernel = make(5.0)
"""


@either
def test_generated_kernels_of_one_file_are_told_apart(project: Project) -> None:
    """Name, line and bytecode are equal, a constant is not: Numba runs the first kernel's code for the second."""
    project.program()
    text = (project.files / "program.py").read_text()
    start = text.index("@cuda.jit(cache=True)")
    project.write("program.py", text[:start] + GENERATOR + text[text.index("if __name__") :])

    assert (FIVE in project.fill()) is project.is_here()


@either
def test_same_size_edit_with_restored_time_is_seen(project: Project) -> None:
    """rsync -t, containers and reproducible builds do that to files."""
    project.filled()
    path = project.files / "program.py"
    stamp = path.stat()

    path.write_text(path.read_text().replace("3.0", "5.0"))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))

    assert (FIVE in project.fill()) is project.is_here()


@either
@pytest.mark.parametrize("change", ["touch", "comment", "moved"])
def test_edit_that_changes_no_code_keeps_the_kernel(project: Project, change: str) -> None:
    """Numba compiles every kernel of the file again after a checkout, a comment or an added line."""
    project.filled()
    path = project.files / "program.py"
    if change == "touch":
        os.utime(path, ns=(1, 1))
    elif change == "comment":
        path.write_text(path.read_text() + "# a remark\n")
    else:
        path.write_text("\n\n" + path.read_text())

    assert ("hits 1" in project.run()) is project.is_here()


@either
@pytest.mark.parametrize("damage", ["empty", "truncated"])
def test_damaged_file_is_compiled_again(project: Project, damage: str) -> None:
    """Numba's launch raises EOFError or UnpicklingError, at every start from then on."""
    project.filled()
    for each in project.stored():
        content = each.read_bytes()
        each.write_bytes(b"" if damage == "empty" else content[: len(content) // 2])

    assert project.fill().startswith(THREE) is project.is_here()


@either
def test_flipped_bit_is_noticed(project: Project) -> None:
    """Numba loads the changed bytes; here a checksum covers every byte."""
    project.filled()
    for each in project.stored():
        content = bytearray(each.read_bytes())
        at = content.rindex(b"\x7fELF") + 200 if b"\x7fELF" in content else len(content) // 2
        content[at] ^= 1
        each.write_bytes(content)

    assert ("hits 1" in project.fill()) is not project.is_here()


@either
def test_full_disk_does_not_reach_the_launch(project: Project) -> None:
    """Numba's launch raises OSError after the compile."""
    project.program()

    said = project.fill(before="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))")

    assert said.startswith(THREE) is project.is_here()


@either
def test_planted_file_runs_no_code(project: Project) -> None:
    """Numba unpickles an index before it checks it; here no stored byte ever runs in this process."""
    project.filled()
    mark = project.root / "mark"
    evil = b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
    for each in (project.cache / project.whose).rglob("*"):
        if each.is_file():
            each.write_bytes(evil)

    project.fill()

    assert mark.exists() is not project.is_here()


_EXTERNAL = 'external = cuda.declare_device("external", "float64(float64)")'
_LINK = ', link=[os.path.join(os.path.dirname(__file__), "external.cu")]'
_BF16 = "from numba.cuda.types import bfloat16\nfrom numba import float32"
_DECLARED = 'external = cuda.declare_device("external", "float64(float64)", link=' + _LINK.split("link=[")[1][:-1] + ")"
KERNELS = {
    "declared": ("x[0] = external(x[0])", _DECLARED, "", "f8"),
    "link": ("x[0] = external(x[0])", _EXTERNAL, _LINK, "f8"),
    "reshape": ("y = x.reshape(2, 2)\nx[0] = y[1, 1]", "", "", "f8"),
    "fp16": ("x[0] = x[0] * x[1]", "", "", "f2"),
    "bf16": ("a = bfloat16(1.0)\nx[0] = float32(a + a)", _BF16, "", "f4"),
}


@either
@pytest.mark.parametrize("what", KERNELS)
def test_kernel_that_links_is_cached(project: Project, what: str) -> None:
    """Numba's launch raises `Cannot pickle CUDACodeLibrary with linking files`."""
    project.write(
        "external.cu",
        'extern "C" __device__ int external(double *r, double x) { *r = 3.0 * x; return 0; }',
    )
    body, head, options, dtype = KERNELS[what]
    project.program(body, head, options, dtype)
    first = project.fill()

    assert ("hits 1" in project.run()) is project.is_here(), first


NO_FILE = {"exec": "<string>", "stdin": "<stdin>", "notebook": "/tmp/ipykernel_{pid}/2170931437.py"}


OPTIONS = {
    "cooperative": ("cuda.cg.this_grid().sync()\nx[0] *= 3.0", ""),
    "debug": ("if x[0] > 7:\n    raise ValueError('too much')\nx[0] *= 3.0", ", debug=True, opt=False"),
    "lineinfo": ("x[0] *= 3.0", ", lineinfo=True"),
    "bounds": ("x[0] *= 3.0", ", launch_bounds=(64, 2)"),
    "registers": ("x[0] *= 3.0", ", max_registers=32"),
    "without lto": ("x[0] *= 3.0", ", lto=False"),
    "inlined": ("x[0] *= 3.0", ", forceinline=True"),
}


@pytest.mark.parametrize("whose", [HERE])
@pytest.mark.parametrize("what", OPTIONS)
def test_kernel_of_any_option_is_cached(project: Project, what: str) -> None:
    """Grid synchronisation, exceptions, bounds and the rest: from disk in the second process, launched the same way."""
    body, options = OPTIONS[what]
    project.program(body, options=options)
    seen = []
    for start in (project.fill, project.run):
        project.log.unlink(missing_ok=True)
        said = start()
        launches = read_log(project.log, "launch")
        seen.append([(each["cooperative"], each["result"], len(each["parameters"])) for each in launches])

    assert said.endswith("hits 1")
    assert seen[0] == seen[1] == [(what == "cooperative", 0, 7)]


@either
@pytest.mark.parametrize("where", NO_FILE)
def test_function_without_a_file_is_cached(project: Project, where: str) -> None:
    """exec, stdin and notebooks, whose cells have another path in each session: Numba refuses at decoration."""
    body = "cuda.jit(cache=True)\ndef kernel(x):\n    x[0] *= 3.0\n"
    name = f"{NO_FILE[where]!r}.format(pid=os.getpid())"
    space = f'space = {{"cuda": cuda}}\nexec(compile({"@" + body!r}, {name}, "exec"), space)\n'
    project.program()
    text = (project.files / "program.py").read_text()
    start = text.index("@cuda.jit(cache=True)")
    end = text.index("if __name__")
    project.write("program.py", f'{text[:start]}{space}kernel = space["kernel"]\n{text[end:]}')
    project.fill()

    assert ("hits 1" in project.run()) is project.is_here()


@either
def test_program_in_a_read_only_tree_is_cached(project: Project) -> None:
    """Numba can write neither beside the file nor in the home, and refuses at decoration."""
    project.program()
    project.write("__pycache__", "a file, so that no folder can be made here, root or not")
    nowhere = {"NUMBA_CACHE_DIR": "", "HOME": "/dev/null/home", "XDG_CACHE_HOME": "/dev/null/cache"}
    project.fill(**nowhere)

    assert ("hits 1" in project.run(**nowhere)) is project.is_here()


@either
def test_forall_is_cached(project: Project) -> None:
    """Numba's `forall` makes a dispatcher that has no cache."""
    project.program()
    text = (project.files / "program.py").read_text()
    start = text[: text.index("    ptx =")].replace("kernel[1, 1](", "kernel.forall(4)(")
    made = "next(iter(kernel.specializations.values()))"
    project.write("program.py", f"{start}    print('hits', sum({made}.stats.cache_hits.values()))\n")
    assert project.fill() == "hits 0"

    assert (project.run() == "hits 1") is project.is_here()


@either
def test_carveout_survives_a_hit(project: Project) -> None:
    """Numba sets it only after a compile."""
    project.program(options=', shared_memory_carveout="MaxShared"')
    counts = []
    for start in (project.fill, project.run):
        project.log.unlink(missing_ok=True)
        start()
        counts.append(len(read_log(project.log, "set_attribute")))

    assert counts[0] > 0
    assert (counts[1] > 0) is project.is_here()


@either
def test_moved_kernel_leaves_nothing_behind(project: Project) -> None:
    """With Numba, files of kernels at other lines stay for ever."""
    project.program()
    path = project.files / "program.py"
    for start in (project.fill, project.run, project.run):
        start()
        path.write_text("\n" + path.read_text())

    assert (len(project.stored()) == 1) is project.is_here()


@either
def test_writers_at_once_lose_nothing(project: Project) -> None:
    """Numba reads and writes its index without a lock: a writer in between loses an entry, or the index names its
    file."""
    project.program()
    text = (project.files / "program.py").read_text()
    meet = """
from numba.cuda.core import caching
real = caching.IndexDataCacheFile._save_index
def late(self, overloads):  # another process saves between the reading of the index and its writing
    if sys.argv[1:] == ["late"]:
        import subprocess
        subprocess.run([sys.executable, __file__, "other"], check=True, stdout=subprocess.DEVNULL)
    real(self, overloads)
caching.IndexDataCacheFile._save_index = late
"""
    kind = 'np.ones(4, "f4" if sys.argv[1:] == ["other"] else "f8")'
    text = text.replace("from numba import cuda\n", "from numba import cuda\n" + meet, 1)
    project.write("program.py", text.replace("np.ones(4, 'f8')", kind))
    project.fill("late", FORKS_PROGRAMS="1")
    if project.is_here():
        project.fill("other")

    assert ("hits 1" in project.run("other")) is project.is_here()


MEETING = """
from numba.cuda.core import caching
kind = caching.IndexDataCacheFile
save_index, save_data = kind._save_index, kind._save_data
if sys.argv[1:] == ["first"]:
    import socket
    here, there = socket.socketpair()
    if os.fork():
        def index(self, overloads):
            here.recv(4)  # the other one has read the index, which is empty
            save_index(self, overloads)
        def data(self, name, content):
            here.sendall(b"go")  # it writes its index over ours, and its kernel under the name that ours will have
            os.wait()
            save_data(self, name, content)
        kind._save_index, kind._save_data = index, data
    else:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.argv[1:] = ["other"]
        def index(self, overloads):
            there.sendall(b"read")
            there.recv(2)
            save_index(self, overloads)
        kind._save_index = index
"""


@either
def test_writers_at_once_never_leave_another_signature_s_kernel(project: Project) -> None:
    """Two signatures at once: Numba's index then names the one and the file holds the other: float runs double's."""
    project.program()
    text = (project.files / "program.py").read_text()
    kind = 'np.ones(4, "f8" if sys.argv[1:] == ["first"] else "f4")'
    text = text.replace("from numba import cuda\n", "from numba import cuda\n" + MEETING, 1)
    project.write("program.py", text.replace("np.ones(4, 'f8')", kind))
    if project.is_here():
        project.fill("alone")
    assert THREE in project.run("first")

    said = project.run("alone")  # float

    assert "hits 1" in said
    assert (THREE not in said) is project.is_here()


def test_uninstalled_program_gets_numbas_cache_back(tmp_path: Path) -> None:
    """`uninstall()` restores Numba's class and dispatchers."""
    project = Project(tmp_path, HERE)
    project.program(
        head="from numba.cuda.dispatcher import CUDADispatcher as kind\n"
        "numba_kcache.uninstall()\nbefore = kind.compile\nnumba_kcache.install()"
    )
    path = project.files / "program.py"
    end = "    numba_kcache.uninstall()\n    print(type(kernel._cache).__name__, kind.compile is before)\n"
    path.write_text(path.read_text() + end)

    assert project.run() == "CUDACache True"


def test_installer_runs_a_program(tmp_path: Path) -> None:
    """`numba-kcache run program.py`, or `run -m program`, needs neither an edit nor the environment variable."""
    project = Project(tmp_path, HERE)
    project.program()
    surroundings = environment(build()) | {"NUMBA_KCACHE_DIR": str(project.cache / HERE)}
    surroundings["PYTHONPATH"] = os.pathsep.join([surroundings["PYTHONPATH"], str(project.files)])
    for hits, words in enumerate([[str(project.files / "program.py")], ["-m", "program"]]):
        said = numba_server.output(["-m", "numba_kcache", "run", *words], surroundings, way="fresh")
        assert said.split()[-2:] == ["hits", str(hits)]


SIGNED = """
import numba_kcache
from numba import cuda
def body(x, y):
    x[0] = y
signed = numba_kcache.cached_kernel(cuda.jit("void(float32[:], float32)")(body))
signed.compile(arch="sm_80")
several = numba_kcache.cached_kernel(cuda.jit(["void(float32[:], float32)", "void(float64[:], float64)"])(body))
several.compile(arch="sm_80")
print(len([*numba_kcache.entries()]))
try:
    cuda.jit("void(float32[:], float32)")(numba_kcache.cached_kernel(body))
except AttributeError as error:
    print("put cached_kernel above it" in str(error))
"""


def test_signature_of_cuda_jit_is_kept(tmp_path: Path) -> None:
    """A dispatcher that `@cuda.jit("void(...)")` made compiles ahead without `signature=`; the other order says why."""
    surroundings = environment(build()) | {"NUMBA_KCACHE_DIR": str(tmp_path / "cache")}

    assert numba_server.output(["-c", SIGNED], surroundings).split() == ["2", "True"]


WARNED = """
import sys, warnings
import numpy as np
import numba_kcache
numba_kcache.configure(directory=sys.argv[1])
numba_kcache.install(all=True)
from numba import cuda

@cuda.jit(launch_bounds=(128, 2))
def kernel(x):
    print(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
          31, 32, 33)

with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    kernel[1, 32](np.zeros(1))
print(numba_kcache.info("process").misses, sorted(f"{each.category.__name__} {each.message}" for each in found))

import pickle
overload, = kernel.overloads.values()
print(type(pickle.loads(pickle.dumps(overload))).__name__, overload.launch_bounds)
"""


def test_compile_warns_once_and_an_overload_of_a_hit_is_like_numbas(tmp_path: Path) -> None:
    """As with Numba's own cache, a hit issues no warning; its overload can be pickled, and reads as a `_Kernel`."""
    cold, warm = (numba_server.in_turn(WARNED, tmp_path / "cache", environment(build())) for _ in range(2))

    assert (cold.split()[0], warm.split()[0]) == ("1", "0")
    assert [each.count("NumbaWarning CUDA print() cannot print") for each in (cold, warm)] == [1, 0]
    assert cold.splitlines()[1:] == warm.splitlines()[1:] == ["_Kernel (128, 2)"]


STRICT = """
import sys, warnings
import numpy as np
import numba_kcache
numba_kcache.configure(directory=sys.argv[1])
if sys.argv[2] == "installed":
    numba_kcache.install(all=True)
from numba import cuda
from numba.cuda.core.errors import NumbaWarning

@cuda.jit(device=True)
def helper(x):
    print(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30,
          31, 32, 33)
    return x

@cuda.jit
def kernel(x):
    x[0] = helper(x[0])

with warnings.catch_warnings():
    warnings.simplefilter("error", NumbaWarning)
    try:
        kernel[1, 1](np.zeros(1))
    except NumbaWarning as error:
        print(type(error), error)
print(len([*numba_kcache.entries()]))
with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    kernel[1, 1](np.zeros(1))
print(len([*numba_kcache.entries()]), [str(each.message)[:12] for each in found if each.category is NumbaWarning])
"""


def test_warning_that_the_program_makes_an_error_fails_the_compile(tmp_path: Path) -> None:
    """As in Numba it is raised from the launch; nothing is stored, and the next launch compiles again."""
    plain, installed = (
        numba_server.output(["-c", STRICT, str(tmp_path / way), way], environment(build())).splitlines()
        for way in ("plain", "installed")
    )

    assert installed[:-2] == plain[:-2] != []
    assert installed[-2:] == ["0", "1 ['CUDA print()']"]
