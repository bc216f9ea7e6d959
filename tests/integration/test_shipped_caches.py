"""A cache warmed for five targets on a machine without a GPU serves every device, at any path."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.model import Target
from tests.support import numba_server
from tests.support.compiling import in_python
from tests.support.fake_driver import build, environment, needs_fake_driver
from tests.support.keying import COMPILERS, VERSIONS, MadeUpToolchain
from tests.support.resolving import resolutions_of
from tests.support.stores import in_child

pytestmark = [needs_fake_driver, pytest.mark.slow]

TARGETS = ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"]

EMPTY = 'extern "C" __global__ void empty() {}'

PROGRAM = f"""
from numba_kcache import cached_kernel

@cached_kernel(include_dirs=["include"])
def scale() -> str:
    return '#include "factor.h"\\nextern "C" __global__ void scale(float *x) {{ *x *= FACTOR; }}'

@cached_kernel
def empty() -> str:
    return {EMPTY!r}
"""

LAUNCH = """
import json, sys
sys.path.insert(0, sys.argv[1])
import numba_kcache
if sys.argv[2:]:
    print(numba_kcache.register_bundle(sys.argv[2]).entries, file=sys.stderr)
import program
from numba_kcache.engine import process_session
from numba_kcache.toolchain import Toolchain
found = Toolchain.identify
def of_another_patch(self, libraries, distributions, *, looks=True):
    here = found(self, libraries, distributions, looks=looks)
    return here and ({{name: f"{{build}}-another patch" for name, build in here[0].items()}}, here[1])
def absent(self, libraries, distributions, *, looks=True):
    return (dict.fromkeys(libraries), found(self, (), distributions)[1]) if looks else None
if {toolkit!r} == "other":
    Toolchain.identify = of_another_patch
elif {toolkit!r} == "none":
    Toolchain.identify, Toolchain.library = absent, lambda self, name, **_how: None
program.empty[1, 1]()
program.scale.max_threads_per_block
info = numba_kcache.info("process")
print(json.dumps([info.compiles, info.hits, info.misses]))
"""


WITHOUT_COMPILERS = """
import json, sys
sys.path.insert(0, sys.argv[1])
from numba_kcache import toolchain
from numba_kcache.toolchain import locating, packages
looked_for = []
def absent(what, answer):
    def look(name="", *_more):
        looked_for.append(name if isinstance(name, str) else what)
        return answer
    return look
locating.locate = absent("library", None)
toolchain.installed_include_dirs = absent("headers", [])
packages.find_installed = absent("version", ("", None))
sys.addaudithook(lambda event, given: event == "subprocess.Popen" and looked_for.append(str(given[0])))
import numba_kcache
if sys.argv[2:]:
    numba_kcache.register_bundle(sys.argv[2])
import program
from numba import cuda
cuda.current_context()
looked_for.clear()  # what Numba itself looks for to find the driver
program.empty[1, 1]()
program.scale.max_threads_per_block
info = numba_kcache.info("process")
print(json.dumps([[info.compiles, info.hits, info.misses], looked_for]))
"""


@pytest.fixture(scope="module")
def warmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with its kernels and their cache, and the bundle of it."""
    folder = tmp_path_factory.mktemp("warmed")
    project = folder / "project"
    (project / "include").mkdir(parents=True)
    (project / "include" / "factor.h").write_text("#define FACTOR 3.0f\n")
    (project / "program.py").write_text(PROGRAM)
    code = """
import sys, numba_kcache
print(len(numba_kcache.warm_up(sys.argv[1], sys.argv[3:], workers=2, progress=False).built))
numba_kcache.export_bundle(sys.argv[2])
"""
    built = in_python(
        code, str(project / "program.py"), str(folder / "all.kcache"), *TARGETS, NUMBA_KCACHE_DIR=str(folder / "cache")
    )
    assert built.strip() == "10"
    return folder


def launched(project: Path, toolkit: str, *bundle: str, device: int = 90, **settings: str) -> tuple[int, int, int]:
    """Compiles, hits and misses of a process that launches both kernels on the fake driver's device."""
    around = {**environment(build(), devices=(device,)), **settings}
    said = in_python(LAUNCH.format(toolkit=toolkit), str(project), *bundle, **around)
    compiles, hits, misses = json.loads(said)
    return compiles, hits, misses


@pytest.mark.parametrize("toolkit", ["same", "other", "none"])
@pytest.mark.parametrize("way", ["moved directory", "bundle", "frozen bundle", "imported", "image layer"])
def test_warmed_cache_serves_after_a_move(warmed: Path, tmp_path: Path, way: str, toolkit: str) -> None:
    """Cache and checkout are at another path, with another patch version of NVRTC or none: no compile is counted."""
    project = shutil.copytree(warmed / "project", tmp_path / "elsewhere" / "checkout")
    bundle = str(shutil.copy(warmed / "all.kcache", tmp_path / "moved.kcache"))
    given: list[str] = []
    settings = {"NUMBA_KCACHE_DIR": str(tmp_path / "new")}
    if way == "moved directory":
        shutil.copytree(warmed / "cache", tmp_path / "new")
        settings["NUMBA_KCACHE_TOOLCHAIN"] = "any"
    elif way == "imported":
        KernelCache(tmp_path / "new").import_bundle(bundle)
        settings["NUMBA_KCACHE_TOOLCHAIN"] = "any"
    elif way == "image layer":
        shutil.copytree(warmed / "cache", tmp_path / "image")
        settings["NUMBA_KCACHE_TIERS"] = str(tmp_path / "image")
    else:
        given.append(bundle)
    if way == "frozen bundle":
        settings["NUMBA_KCACHE_MODE"] = "frozen"

    assert launched(project, toolkit, *given, **settings) == (0, 2, 0)


@pytest.mark.parametrize(
    ("way", "looked_for"),
    [
        ("bundle", []), ("frozen bundle", []), ("image layer", []), ("imported, any compiler", []),
        ("imported", ["nvrtc"]),
    ],
)  # fmt: skip
def test_hit_looks_for_no_compiler_and_no_header_of_one(
    warmed: Path, tmp_path: Path, way: str, looked_for: list[str]
) -> None:
    """Without an installed compiler that search takes most of a start; only a cache that compiles needs it."""
    given, settings = [], {"NUMBA_KCACHE_DIR": str(tmp_path / "new")}
    if way == "image layer":
        settings["NUMBA_KCACHE_TIERS"] = str(shutil.copytree(warmed / "cache", tmp_path / "image"))
    elif way.startswith("imported"):
        KernelCache(tmp_path / "new").import_bundle(warmed / "all.kcache")
    else:
        given.append(str(warmed / "all.kcache"))
    if way == "frozen bundle":
        settings["NUMBA_KCACHE_MODE"] = "frozen"
    if way == "imported, any compiler":
        settings["NUMBA_KCACHE_TOOLCHAIN"] = "any"
    for _ in range(2):
        around = {**environment(build(), devices=(90,)), **settings}
        said = numba_server.output(["-c", WITHOUT_COMPILERS, str(warmed / "project"), *given], around, way="later")

        assert json.loads(said) == [[0, 2, 0], looked_for]


NUMBA_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from cuda.bindings import runtime
from numba_kcache import toolchain as libraries
if "none" in sys.argv:  # what a machine without CUDA's runtime and compilers answers
    runtime.getLocalRuntimeVersion = lambda: (runtime.cudaError_t.cudaErrorNotSupported, 0)
    libraries._locate, libraries.installed_include_dirs = lambda *_asked: None, lambda *_asked: []
import numba_kcache
from numba import cuda
from kernel import scale
if "none" in sys.argv:
    numba_kcache.register_bundle(sys.argv[2])
    scale[1, 32](cuda.device_array(32, "float32"), 2.0)
else:
    scale.compile("sm_90")
    numba_kcache.export_bundle(sys.argv[2])
print(numba_kcache.info("process").compiles, numba_kcache.info("process").hits)
"""


def test_numba_kernel_is_served_where_there_is_no_toolkit(tmp_path: Path) -> None:
    """The version of the CUDA runtime sets Numba's defaults for a compile; a hit needs no runtime."""
    (tmp_path / "kernel.py").write_text(
        "from numba_kcache import cached_kernel\n"
        "@cached_kernel(signature='void(float32[::1], float64)')\n"
        "def scale(x, by):\n    x[0] *= by\n"
    )
    said = []
    for toolkit in ("whole", "none"):
        around = {**environment(build(), devices=(90,)), "NUMBA_KCACHE_DIR": str(tmp_path / toolkit)}
        words = (NUMBA_PROGRAM, str(tmp_path), str(tmp_path / "b.kcache"), toolkit)
        said.append(in_python(*words, **around) if toolkit == "none" else numba_server.output(["-c", *words], around))

    assert [each.split() for each in said] == [["1", "0"], ["0", "1"]]


def test_warmed_cache_knows_a_changed_header(warmed: Path, tmp_path: Path) -> None:
    """An entry is served only for the headers that it was compiled with."""
    project = shutil.copytree(warmed / "project", tmp_path / "checkout")
    (project / "include" / "factor.h").write_text("#define FACTOR 4.0f\n")

    found = launched(project, "same", str(warmed / "all.kcache"), NUMBA_KCACHE_DIR=str(tmp_path / "new"))
    assert found == (1, 1, 1)


@pytest.fixture
def everybodys() -> Iterator[Path]:
    """A folder that other users can enter; pytest closes its own at each further run."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to become another user: not root")
@pytest.mark.parametrize("way", ["bundle", "image layer"])
def test_bundle_and_image_layer_serve_another_user(warmed: Path, everybodys: Path, way: str) -> None:
    """Root made them; another user runs, at another path, with another patch version of NVRTC."""
    moved = Path(shutil.copytree(warmed, everybodys / "moved"))
    for path in (everybodys, moved, *moved.rglob("*")):
        path.chmod(path.stat().st_mode & ~0o022 | (0o555 if path.is_dir() else 0o444))
    home = everybodys / "home"
    home.mkdir()
    os.chown(home, 65534, 65534)

    def empty() -> str:
        return EMPTY

    def use(directory: Path) -> None:
        cache = KernelCache(directory, tiers=[moved / "cache"] if way == "image layer" else None)
        cache.session.toolchain = MadeUpToolchain({**COMPILERS, "nvrtc": "build-id:ff"}, VERSIONS)  # type: ignore[assignment]
        if way == "bundle":
            cache.register_bundle(moved / "all.kcache")
        kernel = cached_kernel(empty, cache=cache)
        assert resolutions_of(kernel).for_device(Target(9, 0)).source == "tier"
        assert len(list(cache.entries())) == 1
        assert cache.info("process").compiles == 0

    def as_other() -> None:
        os.setgid(65534)
        os.setuid(65534)
        use(home / "cache")

    use(everybodys / "mine")  # imports everything now: another user may be unable to read root's interpreter
    assert in_child(as_other) == 0


@pytest.mark.parametrize("device", [75, 80, 86, 89, 90, 100, 103, 120, 121])
def test_every_device_of_these_majors_is_served(warmed: Path, tmp_path: Path, device: int) -> None:
    """A device is served its own code, or code of a lower minor."""
    found = launched(
        warmed / "project", "none", str(warmed / "all.kcache"), device=device, NUMBA_KCACHE_DIR=str(tmp_path)
    )

    assert found == (0, 2, 0)


OF_OTHER_TARGETS = """
import json, sys
sys.path.insert(0, sys.argv[1])
if sys.argv[3] == "none":  # a machine without compilers
    from numba_kcache import toolchain
    from numba_kcache.toolchain import locating
    locating.locate, toolchain.installed_include_dirs = lambda *_asked: None, lambda *_asked: []
    sys.modules["cuda.bindings.nvrtc"] = None
import numba_kcache
numba_kcache.register_bundle(sys.argv[2])
import program
said = [str(program.scale.explain())]
try:
    program.scale.max_threads_per_block
    said.append(str(program.scale.explain()))
except numba_kcache.KCacheError as error:
    said.append(f"{type(error).__name__}: {error}")
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("mode", "toolkit", "error"),
    [
        ("frozen", "same", "FrozenCacheError"), ("frozen", "none", "FrozenCacheError"), ("readwrite", "same", ""),
        ("readwrite", "none", "ToolchainMissingError"),
    ],
)  # fmt: skip
def test_bundle_without_the_device_s_target_names_those_that_it_has(
    warmed: Path, tmp_path: Path, mode: str, toolkit: str, error: str
) -> None:
    """The error says so, where there is one, and otherwise the reasons of the compile; bytes for any target, which are
    in the bundle too, are no code for it."""
    bundle = tmp_path / "two.kcache"
    cache = KernelCache(shutil.copytree(warmed / "cache", tmp_path / "cache"))
    cache.get_or_build({"of": "another compiler"}, lambda: b"bytes")
    assert "any" in cache.export_bundle(bundle, arch=["sm_80", "sm_100"]).targets
    settings = {"NUMBA_KCACHE_DIR": str(tmp_path / "new"), "NUMBA_KCACHE_MODE": mode}
    around = {**environment(build(), devices=(75,)), **settings}
    before, after = json.loads(in_python(OF_OTHER_TARGETS, str(warmed / "project"), str(bundle), toolkit, **around))

    assert f"{bundle} has it for other targets: sm_100, sm_80" in before
    assert f"{bundle} has it for other targets: sm_100, sm_80" in after
    assert after.startswith(error or "program.scale for sm_75: hit")


def test_warm_up_again_finds_everything(warmed: Path, tmp_path: Path) -> None:
    """A second warm-up of the moved project with the moved cache compiles nothing."""
    project = shutil.copytree(warmed / "project", tmp_path / "checkout")
    code = f"""
import sys, numba_kcache
report = numba_kcache.warm_up(sys.argv[1], {TARGETS!r}, progress=False)
print(len(report.hit), len(report.built), report.workers)
"""
    shutil.copytree(warmed / "cache", tmp_path / "new")
    said = in_python(code, str(project / "program.py"), NUMBA_KCACHE_DIR=str(tmp_path / "new"))

    assert said.split() == ["10", "0", "0"]
