"""Numba's own dispatchers: which of them ask this cache, and what they hear of an error."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from numba import cuda
from numba.cuda.dispatcher import CUDADispatcher

import numba_kcache
from numba_kcache import KCacheWarning, Kernel, cached_kernel
from numba_kcache.errors import CompileError, NoDeviceError
from numba_kcache.frontends.numba import dispatcher as dispatchers
from numba_kcache.frontends.numba.llvm import NumbaDefinition
from numba_kcache.frontends.numba.llvm_dispatcher import DispatcherCache
from numba_kcache.model import Target


@pytest.fixture
def uninstalled() -> Iterator[None]:
    """Whatever a test installs is gone after it."""
    yield
    numba_kcache.uninstall()


def is_ours(kernel: Any) -> bool:
    return isinstance(kernel._cache, DispatcherCache)


@pytest.mark.usefixtures("uninstalled")
def test_installed_cache_serves_kernels_that_ask_for_one() -> None:
    """`cache=True` gets this cache while it is installed and Numba's own afterwards; other kernels are left alone."""

    def made(**options: Any) -> Any:
        def kernel(x: Any) -> None:
            x[0] = 1

        return cuda.jit(**options)(kernel)

    before = made(cache=True)
    numba_kcache.install()
    cached, plain = made(cache=True), made()
    assert [is_ours(each) for each in (before, cached, plain)] == [False, True, False]

    numba_kcache.uninstall()
    assert not is_ours(cached)
    assert type(cached._cache) is type(before._cache)
    assert not is_ours(made(cache=True))


@pytest.mark.usefixtures("uninstalled")
def test_older_numba_cuda_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its launches pass other arguments. `install()` warns once, and the program runs as before."""
    monkeypatch.setattr("numba_cuda.__version__", "0.29.0")
    before = dict(vars(CUDADispatcher))
    with pytest.warns(KCacheWarning, match=r"numba-cuda is of version 0\.29\.0"):
        numba_kcache.install(all=True)

    assert dict(vars(CUDADispatcher)) == before


def test_disassembly_of_a_numba_kernel_is_numba_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disassembly is by signature, like Numba's dispatcher, not of one cubin."""

    def kernel(x: Any) -> None:
        x[0] = 1

    monkeypatch.setattr(Kernel, "__getattr__", lambda self, name: lambda target: (name, target))

    assert cached_kernel(cuda.jit(kernel)).inspect_sass("sm_90") == ("inspect_sass", "sm_90")


@pytest.mark.parametrize(
    ("error", "is_numbas", "is_raised"),
    [
        (CompileError("cannot link"), False, True),
        (CompileError("cannot link"), True, False),
        (NoDeviceError("no device"), False, False),
    ],
    ids=["linked code of a cached kernel", "linked code of Numba's kernel", "no device"],
)
def test_error_in_linked_code_is_left_to_numba_where_the_kernel_is_its_own(
    error: Exception, is_numbas: bool, is_raised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result of None makes Numba compile the kernel and raise its own error; a kernel of this cache raises the error
    itself."""

    def refuse(*_wanted: object) -> NoReturn:
        raise error

    monkeypatch.setattr(dispatchers, "current_device", lambda: SimpleNamespace(target=Target(9, 0, "a")))
    definition = NumbaDefinition(lambda: None, {})
    resolutions: Any = SimpleNamespace(known=lambda: (), for_device=refuse, definition=definition)
    asked = DispatcherCache(resolutions, None, is_numbas=is_numbas)
    if is_raised:
        with pytest.raises(type(error)):
            asked.load_overload((), None)
    else:
        assert asked.load_overload((), None) is None
