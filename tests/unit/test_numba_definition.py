"""A Numba kernel is stored as what was compiled: what changes between decoration, reading and the end of a compile."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from numba import cuda

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.engine import RunsUncached
from numba_kcache.errors import KCacheWarning, OptionError, UncacheableError
from numba_kcache.frontends.numba import compiled_code
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.model import EventKind, Target
from tests.support.resolving import definition_of, resolutions_of

SOURCE = """
from numba import cuda
import math, numpy as np
K = 2.0
TABLE = np.arange(4.0)
@cuda.jit(device=True)
def scaled(x, by=3.0):
    return x * by
def make(power):
    def kernel(x):
        x[0] = scaled(x[0]) * K ** power + TABLE[1] + math.fabs(x[1])
    def other():
        nonlocal power
        power += 1
    return kernel, other
kernel, other = make(2)
"""
SIGNATURE = "void(float64[::1])"

CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a global": lambda space: space.update(K=5.0),
    "an element of a global array": lambda space: space["TABLE"].__setitem__(1, 9.0),
    "a callee": lambda space: space.update(scaled=cuda.jit(device=True)(lambda x, by=3.0: x / by)),
    "the code of a callee": lambda space: setattr(space["scaled"].py_func, "__code__", (lambda x, by: x - by).__code__),
    "a cell of the closure": lambda space: space["other"](),
    "a patched module": lambda space: setattr(space["math"], "fabs", space["math"].sqrt),
    "a setting": lambda space: setattr(_config(), "BOUNDSCHECK", 1),
}


def _config() -> Any:
    from numba.cuda.core import config

    return config


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The globals of a program; what a change patches is set back."""
    import math

    monkeypatch.setattr(math, "fabs", math.fabs)
    monkeypatch.setattr(_config(), "BOUNDSCHECK", _config().BOUNDSCHECK)
    space: dict[str, Any] = {"__name__": "app"}
    exec(SOURCE, space)
    return space


@pytest.mark.parametrize("home", ["numba.cuda", "numba_cuda_mlir.cuda"])
def test_device_function_is_no_kernel(home: str, tmp_path: Path) -> None:
    """A function that was decorated for device code is refused where it would first be compiled."""
    own = pytest.importorskip(home)
    kernel = cached_kernel(own.jit(device=True)(lambda x: None), cache=KernelCache(tmp_path))

    with pytest.raises(OptionError, match="cannot launch a device function"):
        kernel.compile("sm_80", signature=SIGNATURE)


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_change_during_a_compile_stores_nothing_and_is_reported_once(
    what: str, program: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread sets it after the reading: what was compiled runs, and no later process is served it."""
    seen: list[Any] = []
    cache = KernelCache(tmp_path)
    cache.subscribe(seen.append)
    compiled = compiled_code.compile_kernel

    def meanwhile(*arguments: Any, **more: Any) -> Any:
        made = compiled(*arguments, **more)
        CHANGES[what](program)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(compiled_code, "compile_kernel", meanwhile)
        kernel = cached_kernel(program["kernel"], cache=cache, arch="sm_90", signature=SIGNATURE)
        with pytest.warns(KCacheWarning, match="is not cached"):
            found = resolutions_of(kernel).exactly(Target(9, 0), None, definition_of(kernel).variants(None, ())[0])
    told = [each for each in seen if each.kind is EventKind.UNCACHEABLE]

    assert found.artifact.cubin
    assert not found.key
    assert len(told) == 1
    assert "changed" in told[0].fields["reason"] or "extension module" in told[0].fields["reason"]
    assert cache.info("process").entries == 0


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_change_between_decoration_and_first_use_invalidates_key(
    what: str, program: dict[str, Any], tmp_path: Path
) -> None:
    """The kernel is read when it is wanted, not when it is decorated."""
    cache = KernelCache(tmp_path)
    kernel = cached_kernel(program["kernel"], cache=cache, arch="sm_90", signature=SIGNATURE)
    before = kernel.key()

    CHANGES[what](program)

    assert kernel.key() != before


def _synchronises(x):  # type: ignore[no-untyped-def]
    cuda.cg.this_grid().sync()
    x[0] = 1.0


def _does_not(x):  # type: ignore[no-untyped-def]
    x[0] = 1.0


@pytest.fixture
def device_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of CUDA's device runtime that Numba finds."""
    from numba.cuda.cudadrv import libs

    from numba_kcache.frontends.numba.compiled_code import compiler
    from numba_kcache.frontends.numba.llvm import NUMBA

    copy = tmp_path / "libcudadevrt.a"
    copy.write_bytes(Path(libs.get_cudalib("cudadevrt", static=True)).read_bytes())
    for owner in (libs, compiler(NUMBA)):
        monkeypatch.setattr(owner, "get_cudalib", lambda *_name, **_static: str(copy))
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("function", [_synchronises, _does_not])
def test_device_runtime_counts_where_it_is_linked(tmp_path: Path, device_runtime: Path, function: Any) -> None:
    """Another build of the archive is a miss for a kernel that synchronises the grid, and for no other."""

    def hits() -> int:
        cache = KernelCache(tmp_path / "cache")
        cached_kernel(function, cache=cache, arch="sm_90").compile(signature=SIGNATURE)
        return cache.info("process").hits

    answers = [hits(), hits()]
    archive = device_runtime.read_bytes()
    device_runtime.write_bytes(archive[:24] + b"1234567890" + archive[34:])  # a time in its header

    assert [*answers, hits()] == [0, 1, int(function is _does_not)]


@pytest.mark.slow
def test_device_runtime_that_was_not_keyed_stores_nothing(tmp_path: Path, device_runtime: Path) -> None:
    """The runtime was replaced after the key was derived, so the linked one does not match the key."""
    from numba_kcache.toolchain import Library, Toolchain

    cache = KernelCache(tmp_path / "cache")
    kernel = cached_kernel(_synchronises, cache=cache, arch="sm_90")
    with pytest.MonkeyPatch.context() as patch:
        found = Library("cudadevrt", str(device_runtime), "sha256:0")
        patch.setattr(Toolchain, "library", lambda *_name, **_saves: found)
        with pytest.warns(KCacheWarning), pytest.raises(RunsUncached, match="device runtime"):
            kernel.compile(signature=SIGNATURE)

    assert cache.info("process").entries == 0


@pytest.mark.slow
@pytest.mark.parametrize(("condition", "hits"), [("#ifdef WITH_DATE", 1), ("#ifndef WITH_DATE", None)])
def test_clock_of_what_is_linked_counts_in_a_branch_that_is_taken(
    tmp_path: Path, condition: str, hits: int | None
) -> None:
    """The kernel is compiled again without the clock, and cached if the code is the same."""
    text = f"{condition}\n#define MORE __DATE__[1]\n#else\n#define MORE 1\n#endif\n"
    body = 'extern "C" __device__ int external(double *r, double x) { *r = x + MORE; return 0; }\n'
    (tmp_path / "external.cu").write_text(text + body)
    external = cuda.declare_device("external", "float64(float64)", link=str(tmp_path / "external.cu"))

    def calls(x):  # type: ignore[no-untyped-def]
        x[0] = external(x[0])

    def compiled() -> int | None:
        cache = KernelCache(tmp_path / "cache")
        try:
            cached_kernel(calls, cache=cache, arch="sm_90").compile(signature=SIGNATURE)
        except UncacheableError:
            return None
        return cache.info("process").hits

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", KCacheWarning)
        compiled()

        assert compiled() == hits


def test_registry_of_a_module_that_replaces_another_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of loaded modules is then the one before."""
    monkeypatch.setitem(sys.modules, "kcache_to_be_removed", ModuleType("kcache_to_be_removed"))
    assert "numba.cuda.kcache_added" not in {name for name, _registry in NUMBA.holders()}

    added = ModuleType("numba.cuda.kcache_added")
    added.registry = SimpleNamespace(functions=[])  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "kcache_to_be_removed")
    monkeypatch.setitem(sys.modules, "numba.cuda.kcache_added", added)

    assert "numba.cuda.kcache_added" in {name for name, _registry in NUMBA.holders()}


def test_dependencies_in_a_set_are_refused() -> None:
    """Their order, and so the key, would be another one in each process."""
    with pytest.raises(OptionError, match="it is not a list"):
        cached_kernel(lambda x: None, kind="numba", depends={"a", "b"})
