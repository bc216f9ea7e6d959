"""numba-cuda-mlir's own dispatchers over this cache: they return the code that the cache served."""

from __future__ import annotations

from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest

import numba_kcache
from numba_kcache import KCacheWarning, KernelCache, cached_kernel
from numba_kcache.errors import CompileError
from numba_kcache.model import Artifact, Target
from tests.support.resolving import definition_of, resolutions_of

mlir_cuda = pytest.importorskip("numba_cuda_mlir.cuda")

from numba_kcache.frontends.numba import dispatcher as dispatchers  # noqa: E402
from numba_kcache.frontends.numba import surface  # noqa: E402
from numba_kcache.frontends.numba.compiled_code import assumed_device  # noqa: E402
from numba_kcache.frontends.numba.dispatcher import dispatcher_of  # noqa: E402
from numba_kcache.frontends.numba.mlir import MLIR  # noqa: E402
from numba_kcache.frontends.numba.mlir_dispatcher import DispatcherCache, result_of  # noqa: E402

SIGNATURE = "void(float32[::1])"


def function(x: Any) -> None:
    x[0] = 1


@pytest.fixture
def resolutions() -> Any:
    """The resolutions of a cached kernel."""
    return resolutions_of(cached_kernel(mlir_cuda.jit(function)))


@pytest.fixture
def dispatcher(resolutions: Any) -> Any:
    """The dispatcher that stands behind a cached kernel."""
    return dispatcher_of(resolutions)


def test_older_numba_cuda_mlir_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """`install()` warns once, and the program runs as before; so it does after `uninstall()`."""
    kind = surface(MLIR).Dispatcher
    before = dict(vars(kind))
    monkeypatch.setattr("numba_cuda_mlir.__version__", "0.5.3")
    with pytest.warns(KCacheWarning, match=r"numba-cuda-mlir is of version 0\.5\.3"):
        numba_kcache.install(all=True)

    assert dict(vars(kind)) == before
    numba_kcache.uninstall()


def test_dispatcher_is_of_the_kernel_s_function(resolutions: Any, dispatcher: Any) -> None:
    """There is one dispatcher for as long as the kernel lives."""
    assert dispatcher.py_func is function
    assert dispatcher_of(resolutions) is dispatcher


def test_signature_that_is_served_is_not_compiled(dispatcher: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`compile` returns the served code."""
    served = SimpleNamespace(metadata={})
    monkeypatch.setattr(DispatcherCache, "load_overload", lambda *wanted: served)

    with assumed_device(MLIR, (9, 0)):
        assert dispatcher.compile(SIGNATURE).cres is served


def test_error_in_linked_code_is_raised_by_a_cached_kernel(
    resolutions: Any, dispatcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error comes from the cache; for a kernel with only numba-cuda-mlir's decorator it is left to that."""

    def refuse(*_wanted: object) -> Any:
        raise CompileError("cannot link")

    monkeypatch.setattr(dispatchers, "current_device", lambda: SimpleNamespace(target=Target(9, 0)))
    monkeypatch.setattr(type(resolutions), "for_device", refuse)
    types = (surface(MLIR).types.int64,)

    with assumed_device(MLIR, (9, 0)), pytest.raises(CompileError):
        dispatcher.compile(types)
    assert DispatcherCache(resolutions, dispatcher, is_numbas=True).load_overload(types, None) is None


def test_kernel_that_is_not_cached_is_compiled_as_ever_while_the_cache_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`compile` returns the result of numba-cuda-mlir's own."""
    made = object()
    monkeypatch.setattr(surface(MLIR).MLIRDispatcher, "_compile_public", lambda self, sig, **more: made)
    numba_kcache.install()
    try:
        assert mlir_cuda.jit(function).compile(SIGNATURE) is made
    finally:
        numba_kcache.uninstall()


@pytest.mark.parametrize("links", [[], None])
def test_callbacks_of_linked_files_come_back_with_the_code(links: Any) -> None:
    """The callbacks are those of the running program, since they are not stored. An overload has no object mode."""

    def callback(handle: Any) -> None:
        """Set something up."""

    linked = SimpleNamespace(setup_callback=callback, teardown_callback=None)
    given = links if links is None else [*links, linked, "file.ltoir"]
    entry: Any = SimpleNamespace(symbol="kernel")
    artifact = Artifact("mlir", Target(9, 0), (entry,), b"cubin", 0.1, {"needs_setup": True}, {})
    types = surface(MLIR).types

    found = result_of(SimpleNamespace(targetoptions={"link": given}), (types.int64,), artifact)

    assert found.metadata["setup_callbacks"] == ([] if links is None else [callback])
    assert found.metadata["teardown_callbacks"] == []
    assert found.objectmode is False


@pytest.mark.slow
@pytest.mark.parametrize(("keeps", "lto"), [(True, False), (False, False), (False, True)])
def test_ptx_is_kept_where_it_is_asked_for(tmp_path: Any, keeps: bool, lto: bool) -> None:
    """The PTX is the text that was assembled, also in the next process. What is not kept, or assembled from LTO-IR, is
    made for `inspect_asm`; types are for `inspect_types`."""
    for _ in range(2):
        dispatcher = mlir_cuda.jit(lto=lto)(function)
        kernel = cached_kernel(
            dispatcher, signature=SIGNATURE, arch="sm_90", keep_ptx=keeps,
            cache=KernelCache(tmp_path, durability="none"),
        )  # fmt: skip
        kernel.compile()
        (types,) = definition_of(kernel).variants(None, ())
        artifact = resolutions_of(kernel).exactly(Target(9, 0), None, types).artifact
        dispatcher.overloads[types] = surface(MLIR).CompileResult(result_of(dispatcher, types, artifact))

        assert (b".entry" in artifact.ptx) == keeps
        with assumed_device(MLIR, (9, 0)):
            assert ".entry" in dispatcher.inspect_asm(types)
            dispatcher.inspect_types(text := StringIO())
            assert "x[0] = 1" in text.getvalue()
