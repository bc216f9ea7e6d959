"""A function of the compiler that a program replaced is in the key, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest
from numba import cuda
from numba.cuda import cgutils, target
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.core.base import BaseContext

from numba_kcache.frontends.numba.function import Fingerprint, Uncapturable, fingerprint
from numba_kcache.frontends.numba.llvm import NUMBA as dialect

VALUE: Any = 1


@cuda.jit(device=True)
def _callee(x):  # type: ignore[no-untyped-def]
    return x + 1


@cuda.jit
def _kernel(x):  # type: ignore[no-untyped-def]
    x[0] = _callee(x[1])


def read() -> Fingerprint | Uncapturable:
    return fingerprint(_kernel, dialect, with_lines=False)


def digest() -> str:
    found = read()
    assert isinstance(found, Fingerprint), found
    return found.digest


def _replacement(self, *arguments):  # type: ignore[no-untyped-def]
    return VALUE


PLACES = {
    "a method": (target.CUDATargetContext, "get_constant_generic", _replacement),
    "an inherited method": (BaseContext, "get_constant", _replacement),
    "a property": (target.CUDATargetContext, "enable_boundscheck", property(_replacement)),
    "a class method": (CUDACodeLibrary, "get_cubin", classmethod(_replacement)),
    "a function": (cgutils, "alloca_once", _replacement),
}


@pytest.mark.parametrize("what", PLACES)
def test_replaced_function_of_the_compiler_invalidates_key(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """By its code and by what it reads, for the kernel and for the device functions that it calls."""
    owner, name, replacement = PLACES[what]
    before, of_callee = digest(), [each for _value, each in read().device_functions()]  # type: ignore[union-attr]

    monkeypatch.setattr(owner, name, replacement, raising=False)
    patched = digest()
    callee = [each for _value, each in read().device_functions()]  # type: ignore[union-attr]
    monkeypatch.setitem(globals(), "VALUE", 2)

    assert len({before, patched, digest()}) == 3
    assert of_callee != callee
    monkeypatch.undo()
    assert digest() == before


def test_replacement_that_cannot_be_read_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the place and the object are named."""
    monkeypatch.setitem(globals(), "VALUE", object())
    monkeypatch.setattr(target.CUDATargetContext, "get_constant_generic", _replacement, raising=False)

    found = read()

    assert isinstance(found, Uncapturable)
    assert found.name == f"global VALUE of {__name__}"
    assert found.reason.startswith("in place of numba.cuda.target.CUDATargetContext.get_constant_generic: ")


def test_wrapper_around_the_compilers_function_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As libraries patch Numba: their function calls the one that it replaced, and kernels stay cached."""
    before, real = digest(), CUDACodeLibrary.get_cubin

    def wrapped(self, cc=None):  # type: ignore[no-untyped-def]
        return real(self, cc)

    monkeypatch.setattr(CUDACodeLibrary, "get_cubin", wrapped)

    assert digest() != before
