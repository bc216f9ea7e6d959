"""A function of either Numba's compiler that a program replaced is in the key, or refused by its name."""

from __future__ import annotations

import functools
from importlib import import_module
from typing import Any, NamedTuple
from unittest.mock import MagicMock

import pytest

from numba_kcache.frontends.numba.fingerprint import Fingerprint, Uncapturable, fingerprint

VALUE: Any = 1

HOMES = {"numba": "numba.cuda", "numba_cuda_mlir": "numba_cuda_mlir.numba_cuda"}


class Program(NamedTuple):
    """A kernel that calls a device function, and the Numba that compiles it."""

    package: str
    kernel: Any
    flavour: Any

    def home(self, name: str) -> Any:
        """An object of the compiler, by its module and name."""
        module, _, attribute = f"{HOMES[self.package]}.{name}".rpartition(".")
        return getattr(import_module(module), attribute)

    def read(self) -> Fingerprint | Uncapturable:
        return fingerprint(self.kernel, self.flavour, with_lines=False)

    def digests(self) -> tuple[str, list[str]]:
        """Of the kernel, and of its device functions."""
        found = self.read()
        assert isinstance(found, Fingerprint), found
        return found.digest, [each for _value, each in found.device_functions()]


@pytest.fixture(params=HOMES)
def program(request: pytest.FixtureRequest) -> Program:
    pytest.importorskip(request.param)
    name, flavour = ("llvm", "NUMBA") if request.param == "numba" else ("mlir", "MLIR")
    cuda = import_module(f"{request.param}.cuda")

    @cuda.jit(device=True)  # type: ignore[untyped-decorator]
    def callee(x: Any) -> Any:
        return x + 1

    @cuda.jit  # type: ignore[untyped-decorator]
    def kernel(x: Any) -> None:
        x[0] = callee(x[1])

    import_module(f"{HOMES[request.param]}.core.base")
    found = getattr(import_module(f"numba_kcache.frontends.numba.{name}"), flavour)
    return Program(request.param, kernel, found)


def _replacement(self, *arguments):  # type: ignore[no-untyped-def]
    return VALUE


class Replacement:
    """An object in place of a function, or of a class."""

    def __call__(self, *arguments: Any) -> Any:
        return VALUE


PLACES = {
    "a method": ("core.base.BaseContext", "get_constant", _replacement),
    "a method more": ("typing.context.BaseContext", "resolve_value_type", _replacement),
    "a property": ("core.base.BaseContext", "enable_boundscheck", property(_replacement)),
    "a class method": ("core.base.BaseContext", "get_data_type", classmethod(_replacement)),
    "a static method": ("core.base.BaseContext", "get_value_type", staticmethod(_replacement)),
    "a function": ("cgutils", "alloca_once", _replacement),
}


def replace(monkeypatch: pytest.MonkeyPatch, program: Program, place: str, name: str, value: Any) -> None:
    owner = import_module(f"{HOMES[program.package]}.{place}") if "." not in place else program.home(place)
    monkeypatch.setattr(owner, name, value, raising=False)


@pytest.mark.parametrize("what", PLACES)
def test_replaced_function_of_the_compiler_invalidates_key(
    monkeypatch: pytest.MonkeyPatch, program: Program, what: str
) -> None:
    """By its code and by what it reads, for the kernel and for the device functions that it calls."""
    before, of_callees = program.digests()

    replace(monkeypatch, program, *PLACES[what])
    patched, callees = program.digests()
    monkeypatch.setitem(globals(), "VALUE", 2)

    assert len({before, patched, program.digests()[0]}) == 3
    assert of_callees != callees
    monkeypatch.undo()
    assert program.digests() == (before, of_callees)


def test_replacement_that_reads_what_has_no_content_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, program: Program
) -> None:
    """Both the place and the object are named."""
    monkeypatch.setitem(globals(), "VALUE", object())
    replace(monkeypatch, program, *PLACES["a method"])

    found = program.read()

    assert isinstance(found, Uncapturable)
    assert found.name == f"global VALUE of {__name__}"
    assert found.reason.startswith(f"in place of {HOMES[program.package]}.core.base.BaseContext.get_constant: ")


OBJECTS = {
    "an object": Replacement(),
    "a class": Replacement,
    "a partial function": functools.partial(_replacement, 1),
    "a method of an object": functools.partialmethod(_replacement, 1),
    "a bound method": Replacement().__call__,
    "a function with a memo": functools.lru_cache(_replacement),
    "a mock": MagicMock(),
}


@pytest.mark.parametrize("what", OBJECTS)
@pytest.mark.parametrize("place", ["a method", "a function"])
def test_replacement_that_is_no_function_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, program: Program, place: str, what: str
) -> None:
    """Its state is not in its code."""
    home, name, _function = PLACES[place]
    replace(monkeypatch, program, home, name, OBJECTS[what])

    found = program.read()

    assert isinstance(found, Uncapturable)
    assert found.reason.startswith(f"in place of {HOMES[program.package]}.{home}.{name}: it is a ")


class Lock:
    """As that of gevent, which a program has in place of `threading.Lock`."""

    def acquire(self) -> None: ...


@pytest.mark.parametrize(("name", "value"), [("_lock", Lock()), ("__loader__", object.__new__(Replacement))])
def test_lock_of_another_library_and_loader_of_an_import_hook_keep_key(
    monkeypatch: pytest.MonkeyPatch, program: Program, name: str, value: object
) -> None:
    """Modules of the compiler have them under gevent, and under a hook as that of beartype: no code depends on them."""
    before = program.digests()
    replace(monkeypatch, program, "cgutils", name, value)

    assert program.digests() == before


def test_wrapper_around_the_compilers_function_is_read(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """As libraries patch Numba: their function calls the one that it replaced, and kernels stay cached."""
    before, owner = program.digests(), program.home("core.base.BaseContext")
    real = owner.get_constant

    def wrapped(self, *given):  # type: ignore[no-untyped-def]
        return real(self, *given)

    monkeypatch.setattr(owner, "get_constant", wrapped)

    assert program.digests() != before


def test_replaced_function_of_lowering_invalidates_key(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    """The module with the code of arrays, which numba-cuda loads when it compiles, counts too."""
    if program.package != "numba":
        pytest.skip("numba-cuda-mlir lowers by other modules")
    arrays = import_module("numba.cuda.np.arrayobj")
    before = program.digests()
    monkeypatch.setattr(arrays, "basic_indexing", _replacement)

    assert program.digests() != before
