"""Explanations as users get them: of Numba kernels, modules, tiers and launches, and in the shell after a program."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import numba_kcache
from numba_kcache import Explanation, KernelCache, ReasonKind, cached_kernel, cached_module
from tests.support import numba_server
from tests.support.compiling import EMPTY, SAXPY
from tests.support.fake_driver import ROOT, build, environment, needs_fake_driver, run
from tests.support.modules import imported

HELPERS = """
from numba import cuda
SCALE = 2.0
@cuda.jit(device=True)
def scaled(x):
    return x * SCALE
"""
KERNELS = """
from numba import cuda
import helpers
def make(power):
    def kernel(x, out):
        i = cuda.grid(1)
        if i < out.size:
            out[i] = helpers.scaled(x[i]) ** power
    return kernel
kernel = make(2)
"""
SIGNATURE = "void(float32[::1], float32[::1])"


def numba_kernel(folder: Path, helpers: str = HELPERS, kernels: str = KERNELS, **options: Any) -> Any:
    """The program's kernel as it is now, in a cache that has nothing in memory."""
    options = {"arch": "sm_90", "signature": SIGNATURE, **options}
    cache = KernelCache(folder / "cache", durability="none")
    with imported(folder, {"helpers": helpers, "kernels": kernels}) as module:
        return cached_kernel(module.kernel, cache=cache, **options)


def told(explanation: Explanation) -> set[tuple[ReasonKind, str, str | None, str | None, str]]:
    return {each[:1] + each[2:] for each in explanation.reasons}


@pytest.mark.slow
def test_numba_kernel_names_function_line_value_and_option(tmp_path: Path) -> None:
    """Differences in any file are named; changed comments and moved lines are none."""
    numba_kernel(tmp_path).compile()
    assert numba_kernel(tmp_path).explain().is_hit
    assert numba_kernel(tmp_path, kernels="# moved\n\n" + KERNELS).explain().is_hit
    helpers = HELPERS.replace("2.0", "3.0").replace("return x * SCALE", "# why\n    return x + SCALE")
    kernels = KERNELS.replace("make(2)", "make(3)")
    found = numba_kernel(tmp_path, helpers, kernels, fastmath=True).explain()

    assert told(found) == {
        (ReasonKind.SOURCE_CHANGED, "device function helpers.scaled", "return x * SCALE", "return x + SCALE",
         f"{tmp_path}/helpers.py:7"),
        (ReasonKind.VALUE_CHANGED, "global SCALE of helpers", "2.0", "3.0", ""),
        (ReasonKind.VALUE_CHANGED, "closure power of kernels.make.<locals>.kernel", "2", "3", ""),
        (ReasonKind.OPTIONS, "fastmath of kernels.make.<locals>.kernel", "false", "true", ""),
    }  # fmt: skip


def test_what_depends_represents_is_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """By `compile` in the log, by `explain` as a field and in its text."""
    kernels = KERNELS.replace("import helpers", "import helpers, functools\nheld = functools.partial(print)").replace(
        "** power", "** power + held(1)"
    )
    kernel = numba_kernel(tmp_path, kernels=kernels, depends={"global held of kernels": 1})
    with caplog.at_level("INFO", "numba_kcache"), pytest.raises(Exception, match="Untyped global name 'held'"):
        kernel.compile()

    assert "represents: global held of kernels" in caplog.text
    assert kernel.explain().covered == ("global held of kernels",)
    assert "depends= represents: global held of kernels" in str(kernel.explain())
    assert numba_kernel(tmp_path, depends=[1]).explain().covered == ()


def test_numba_kernel_names_signature_setting_and_dependency(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is named alone; text in `depends`, which may be a secret, by its digest."""
    numba_kernel(tmp_path, depends=["hunter1"]).compile()
    other = numba_kernel(tmp_path, depends=["hunter1"]).explain(signature="void(float64[::1], float32[::1])")
    secret = numba_kernel(tmp_path, depends=["hunter2"]).explain()
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")
    setting = numba_kernel(tmp_path, depends=["hunter1"]).explain()

    arrays = "(array({}, 1d, C), array(float32, 1d, C))"
    assert told(other) == {
        (ReasonKind.SIGNATURE, "", arrays.format("float32"), arrays.format("float64"), ""),
    }  # fmt: skip
    assert [(each.kind, each.name) for each in setting.reasons] == [
        (ReasonKind.ENVIRONMENT, "numba.config.BOUNDSCHECK")
    ]
    assert [(each.kind, each.name) for each in secret.reasons] == [(ReasonKind.DEPENDS, "depends[0]")]
    assert "hunter" not in str(secret) + json.dumps(secret.to_dict())
    store = [path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not any(b"hunter" in data for data in store)


def test_numba_kernel_without_a_signature_cannot_be_explained(tmp_path: Path) -> None:
    """The error asks for `signature=`; after a compile the signature is known."""
    kernel = numba_kernel(tmp_path, signature=None)
    with pytest.raises(numba_kcache.OptionError, match="signature"):
        kernel.explain()
    kernel.compile(signature=SIGNATURE)

    assert kernel.explain().is_hit
    assert numba_kcache.explain(kernel, "sm_80", SIGNATURE).reasons[0].kind is ReasonKind.TARGET


def test_tier_is_where_a_hit_comes_from_and_stays_there(tmp_path: Path) -> None:
    """Explaining copies nothing to the local store, and counts nothing."""
    cached_kernel(SAXPY, arch="sm_90", cache=KernelCache(tmp_path / "image", durability="none")).compile()
    local = KernelCache(tmp_path / "local", durability="none", tiers=[tmp_path / "image"])
    found = cached_kernel(SAXPY, arch="sm_90", cache=local).explain()

    assert (found.outcome, found.source) == ("hit", "tier")
    assert not (tmp_path / "local").exists()
    info = local.info("process")
    assert (info.hits, info.misses) == (0, 0)
    assert [tier.hits for tier in local.session.chain.reports()] == [0]  # type: ignore[union-attr]
    assert not cached_kernel(SAXPY, arch="sm_90", fastmath=True, cache=local).explain().is_hit


@pytest.mark.parametrize("lazy", [False, True])
def test_module_and_its_kernels_are_explained(tmp_path: Path, lazy: bool) -> None:
    """A module as a whole, and each kernel of it."""

    def module(**options: Any) -> Any:
        cache = KernelCache(tmp_path / "cache", durability="none")
        return cached_module(SAXPY, arch="sm_90", lazy=lazy, cache=cache, **options)

    module().compile()
    changed = module(fastmath=True)

    assert numba_kcache.explain(module()).is_hit
    assert numba_kcache.explain(module().saxpy).is_hit
    assert [each.name for each in numba_kcache.explain(changed).reasons] == ["fastmath"]
    assert [each.component for each in changed.saxpy.explain().reasons] == ["options"]


LAUNCH = f"""
import sys, json
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache(sys.argv[1], durability="none")
heard = []
cache.subscribe(lambda event: heard.append(event) if event.kind in ("miss", "hit") else None)
kernel = cached_kernel({SAXPY!r}, cache=cache, fastmath=sys.argv[2] == "1")
before = kernel.explain()
kernel[1, 32](2.0, None, None, 0)
(event,) = heard
print(json.dumps([before.outcome, event.kind, event.fields.get("reason", ""),
                  [each.kind for each in event.fields.get("reasons", ())], kernel.explain().source]))
"""


@pytest.mark.slow
@needs_fake_driver
def test_launch_that_misses_says_why_in_its_event(tmp_path: Path) -> None:
    """The `miss` event of a launch on the device has the reason, cold and with another option; a warm launch has
    none."""

    def launched(fastmath: str) -> Any:
        surroundings = {**environment(build()), "NUMBA_KCACHE_DIR": os.devnull}
        return json.loads(run(["-c", LAUNCH, str(tmp_path / "cache"), fastmath], env=surroundings).stdout)

    nothing = "nothing of this kernel was stored here before"
    assert launched("0") == ["miss", "miss", nothing, ["never_stored"], "memory"]
    assert launched("1") == ["miss", "miss", "option fastmath: true is new", ["options"], "memory"]
    assert launched("0") == ["hit", "hit", "", [], "memory"]


# -- the shell after a program ------------------------------------------------------------------------------------

SCRIPT = """
from numba_kcache import cached_kernel
@cached_kernel(arch="sm_90", OPTIONS)
def kernel():
    return SOURCE
if __name__ == "__main__":
    kernel.compile()
"""
NUMBA_SCRIPT = """
from numba import cuda
from numba_kcache import cached_kernel
SCALE = 2
@cuda.jit(device=True)
def scaled(x):
    return SCALE * x
@cached_kernel(arch="sm_90", signature="void(float32[::1])", OPTIONS)
def kernel(x):
    x[cuda.threadIdx.x] = scaled(x[0])
if __name__ == "__main__":
    kernel.compile()
"""
POOL = """
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from numba_kcache import cached_kernel
@cached_kernel(arch="sm_90", OPTIONS)
def kernel():
    return SOURCE
def work():
    kernel.compile()
    return __name__
if __name__ == "__main__":
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        print(pool.submit(work).result())
"""
CELL = """
import linecache, sys
text, name = TEXT, sys.argv[1]
linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
names = {"__name__": "__main__"}
exec(compile(text, name, "exec"), names)
for reason in names["kernel"].explain().reasons:
    print(reason.kind, reason.name)
names["kernel"].compile()
"""
LOOP = """
from numba_kcache import cached_kernel
def make(value):
    def kernel():
        return SOURCE + f"// {value}"
    return cached_kernel(kernel, arch="sm_90", OPTIONS)
kernels = [make(value) for value in range(3)]
first, second, third = kernels
if __name__ == "__main__":
    for each in kernels:
        each.compile()
"""


class Checkout:
    """A folder with a user's files, in which Python and the shell run; checkouts share a cache. With `has_numba` they
    fork from a process that hides Numba."""

    has_numba = False

    def __init__(self, root: Path, name: str = "a") -> None:
        self.folder, self.cache = root / name, root / "cache"
        self.folder.mkdir()

    def write(self, name: str, text: str, options: str = "") -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.replace("OPTIONS", options).replace("SOURCE", repr(EMPTY)))

    def python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT), "NUMBA_KCACHE_DIR": str(self.cache)}
        env["PYTHONDONTWRITEBYTECODE"] = "1"  # else an edit of equal length within a second would run old bytecode
        if self.has_numba:
            with contextlib.chdir(self.folder):
                code, said = numba_server.run(arguments, {**environment(build(), devices=()), **env}, way="fresh")
            return subprocess.CompletedProcess(arguments, code, said, said)
        return subprocess.run(
            [sys.executable, *arguments], env=env, cwd=self.folder, capture_output=True, text=True, check=False
        )

    def run(self, *arguments: str) -> str:
        done = self.python(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def reasons(self, what: str) -> list[tuple[str, str]]:
        """Read the reasons of a miss from the output of the shell command."""
        done = self.python("-m", "numba_kcache", "explain", what, "--json")
        assert done.returncode == 1, done.stderr
        return [(each["kind"], each["name"]) for each in json.loads(done.stdout)["reasons"]]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "option"), [(SCRIPT, "fastmath"), (NUMBA_SCRIPT, "fastmath of train.kernel")], ids=["source", "numba"]
)
def test_option_changed_after_a_run_is_named_in_the_shell(checkout: Checkout, script: str, option: str) -> None:
    """`python train.py`, an edit, `numba-kcache explain train.py:kernel`: the program and the shell share a history."""
    checkout.has_numba = script == NUMBA_SCRIPT
    checkout.write("train.py", script)
    checkout.run("train.py")
    checkout.write("train.py", script, "fastmath=True")

    assert checkout.reasons("train.py:kernel") == [("options", option)]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["pkg.mod:kernel", "pkg/mod.py:kernel"])
def test_option_changed_after_a_run_as_a_module_is_named_in_the_shell(checkout: Checkout, what: str) -> None:
    """`python -m pkg.mod`; the shell may be given the module or the file."""
    checkout.write("pkg/__init__.py", "")
    checkout.write("pkg/mod.py", SCRIPT)
    checkout.run("-m", "pkg.mod")
    checkout.write("pkg/mod.py", SCRIPT, "fastmath=True")

    assert checkout.reasons(what) == [("options", "fastmath")]


@pytest.mark.slow
def test_option_changed_in_a_cell_is_named_by_the_kernel(checkout: Checkout) -> None:
    """A notebook's cell has no file, and another name in each session, so its folder is used in place of the file."""
    said = []
    for number, options in enumerate(("", "fastmath=True")):
        cell = repr(SCRIPT.partition("if __name__")[0].replace("OPTIONS", options).replace("SOURCE", repr(EMPTY)))
        (checkout.folder / "session.py").write_text(CELL.replace("TEXT", cell))
        said.append(checkout.run("session.py", f"/tmp/ipykernel_{number}/{number}.py"))

    assert said == ["never_stored \n", "options fastmath\n"]


@pytest.mark.slow
def test_kernels_made_in_a_loop_share_a_history(checkout: Checkout) -> None:
    """Each is compared with its own entry, which has the fewest differences."""
    checkout.write("train.py", LOOP)
    checkout.run("train.py")
    checkout.write("train.py", LOOP, "fastmath=True")

    for name in ("first", "second", "third"):
        assert checkout.reasons(f"train.py:{name}") == [("options", "fastmath")]


@pytest.mark.slow
def test_package_in_another_checkout_has_its_history(checkout: Checkout, tmp_path: Path) -> None:
    """The same module of the same package, elsewhere; what is stored of this very file comes first."""
    other = Checkout(tmp_path, "b")
    for each, options in ((checkout, "fastmath=True"), (other, "max_registers=16")):
        each.write("pkg/__init__.py", "")
        each.write("pkg/mod.py", SCRIPT, options)
    checkout.run("-m", "pkg.mod")
    elsewhere = other.reasons("pkg.mod:kernel")
    other.run("-m", "pkg.mod")
    other.write("pkg/mod.py", SCRIPT, "max_registers=24")

    assert sorted(elsewhere) == [("options", "fastmath"), ("options", "max_registers")]
    assert other.reasons("pkg.mod:kernel") == [("options", "max_registers")]


@pytest.mark.slow
def test_program_of_the_same_name_elsewhere_is_another_one(checkout: Checkout, tmp_path: Path) -> None:
    """None of its entries is a reason, even if the shell imports the program under the same name."""
    other = Checkout(tmp_path, "b")
    checkout.write("train.py", SCRIPT)
    other.write("train.py", SCRIPT, "fastmath=True")
    checkout.run("train.py")

    assert other.reasons("train.py:kernel") == [("never_stored", "")]


@pytest.mark.slow
def test_worker_of_a_pool_is_the_same_program(checkout: Checkout) -> None:
    """The main module of a pool's worker is `__mp_main__`, and has the program's history."""
    checkout.write("train.py", POOL)
    assert checkout.run("train.py") == "__mp_main__\n"
    checkout.write("train.py", POOL, "fastmath=True")

    assert checkout.reasons("train.py:kernel") == [("options", "fastmath")]


def test_no_module_hides_a_public_name() -> None:
    """Importing a submodule binds its name in the package: `explain` would be a package, not a function."""
    package = Path(numba_kcache.__file__).parent
    modules = {path.stem for path in package.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}

    assert modules.isdisjoint(numba_kcache.__all__)
