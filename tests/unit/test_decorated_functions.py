"""Device functions with signatures under `install()`: the code that their decorator made is used while it is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from numba import cuda, float32, float64, types
from numba.cuda.core import config
from numba.cuda.extending import intrinsic

import numba_kcache
from numba_kcache.frontends.numba import Declared
from numba_kcache.frontends.numba.compiled_code import assumed_device, noted
from numba_kcache.frontends.numba.fingerprint import Fingerprint, fingerprint
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.model import Target
from tests.support.compiling import compile_numba

SM_80 = Target(8, 0)

INNER = """
@cuda.jit('float64(float64)', device=True)
def inner(x): return x * FACTOR
"""

OUTER = """
@cuda.jit('float64(float64)', device=True)
def outer(x): return inner(x) + 7.0
@cuda.jit
def kernel(x): x[0] = outer(x[0])
"""


@pytest.fixture
def space() -> Iterator[dict[str, Any]]:
    """A program with two device functions that were compiled for a device of compute capability 8.0."""
    numba_kcache.install()
    found: dict[str, Any] = {"cuda": cuda, "FACTOR": 3.0}
    try:
        with assumed_device(NUMBA, (8, 0)):
            exec(INNER + OUTER, found)
        yield found
    finally:
        numba_kcache.uninstall()


def constants(space: dict[str, Any], target: Target = SM_80) -> set[str]:
    """Compile the kernel, as for an entry of the cache, and return the constants in its PTX."""
    kernel = space["kernel"]
    found = fingerprint(kernel, NUMBA, with_lines=False)
    assert isinstance(found, Fingerprint), found
    declared = Declared(kernel.py_func, kernel.targetoptions)
    built = compile_numba(declared, (float64[::1],), target, device_functions=found.device_functions())
    return {*re.findall(r"0d4\w{15}", built.artifact.ptx.decode())}


def results(space: dict[str, Any]) -> list[Any]:
    return [each for name in ("inner", "outer") for each in space[name].overloads.values()]


def kept(space: dict[str, Any], before: list[Any]) -> list[bool]:
    return [old is new for old, new in zip(before, results(space), strict=True)]


@pytest.mark.slow
def test_code_of_the_decorator_is_used(space: dict[str, Any]) -> None:
    """Nothing changed since the program's decorators compiled it; also for a second kernel of the same functions."""
    before = results(space)

    assert constants(space) == {"0d4008000000000000", "0d401C000000000000"}
    exec("@cuda.jit\ndef kernel(x): x[1] = inner(x[0])\n", space)
    assert constants(space) == {"0d4008000000000000"}

    assert kept(space, before) == [True, True]


def _rebind(space: dict[str, Any], text: str) -> None:
    with assumed_device(NUMBA, (8, 0)):
        exec(text, space)


CHANGES: dict[str, Callable[[dict[str, Any], pytest.MonkeyPatch], Any]] = {
    "a global": lambda space, _: space.update(FACTOR=5.0),
    "a callee": lambda space, _: _rebind(space, INNER.replace("FACTOR", "5.0")),
    "a global, before its caller's decorator ran": lambda space, _: (space.update(FACTOR=5.0), _rebind(space, OUTER)),
    "its code": lambda space, _: setattr(space["inner"].py_func, "__code__", (lambda x: x * 5.0).__code__),
    "its code again": lambda space, _: (space["inner"].overloads.clear(), space.update(FACTOR=5.0),
                                        _compile(space["inner"]), space.update(FACTOR=3.0)),
}  # fmt: skip


def _compile(dispatcher: Any) -> None:
    """Compile it as a program may, not by its decorator."""
    with assumed_device(NUMBA, (8, 0)):
        dispatcher.compile_device((float64,))


@pytest.mark.slow
def test_code_that_is_of_no_module_compiles_as_without_the_cache(space: dict[str, Any]) -> None:
    """What a program executes in a namespace of its own may have no `__name__`."""
    space["inner"].overloads.clear()
    with assumed_device(NUMBA, (8, 0)):
        exec("inner.compile_device((kind,))", {"inner": space["inner"], "kind": float64})

    assert len(space["inner"].overloads) == 1


@pytest.mark.slow
@pytest.mark.parametrize("what", CHANGES)
def test_change_since_the_decorator_ran_leads_to_new_code(
    space: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device function reads or calls has changed: neither its code nor that of its callers is used."""
    CHANGES[what](space, monkeypatch)
    before = [*space["outer"].overloads.values()]
    wanted = "0d4008000000000000" if "again" in what else "0d4014000000000000"

    assert constants(space) == {wanted, "0d401C000000000000"}
    assert not any(old is new for old, new in zip(before, space["outer"].overloads.values(), strict=True))


STATES: dict[str, Callable[[dict[str, Any], pytest.MonkeyPatch], Any]] = {
    "an option": lambda space, _: space["inner"].targetoptions.update(fastmath=True),
    "a setting": lambda _, patch: patch.setattr(config, "DEBUG_NRT", "1"),
    "a replaced function": lambda _, patch: patch.setattr("numba.cuda.cgutils.alloca_once", _alloca_once),
}


def _alloca_once(*arguments: Any, **named: Any) -> Any:
    from numba.core.cgutils import alloca_once

    return alloca_once(*arguments, **named)


@pytest.mark.slow
@pytest.mark.parametrize("what", STATES)
def test_other_state_of_the_compiler_leads_to_new_code(
    space: dict[str, Any], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option, a setting, or a function of Numba is another than when the decorator ran."""
    before = results(space)
    STATES[what](space, monkeypatch)

    assert constants(space) >= {"0d401C000000000000"}
    assert not any(kept(space, before))


@pytest.mark.slow
def test_code_for_another_device_is_not_used(space: dict[str, Any]) -> None:
    """The decorator compiled for the current device."""
    before = results(space)

    constants(space, Target(9, 0))

    assert not any(kept(space, before))


@pytest.mark.slow
def test_change_while_the_decorator_compiles_leads_to_new_code(space: dict[str, Any]) -> None:
    """Another thread may set a global meanwhile, and set it back afterwards."""
    with assumed_device(NUMBA, (8, 0)):
        exec("@cuda.jit(device=True)\ndef inner(x): return x * FACTOR\n", space)
        with noted(NUMBA, space["inner"]):
            space["FACTOR"] = 5.0
            space["inner"].compile_device((float64,), float64)
    space["FACTOR"] = 3.0
    exec("@cuda.jit\ndef kernel(x): x[0] = inner(x[0])\n", space)

    assert constants(space) == {"0d4008000000000000"}


@pytest.mark.slow
def test_signature_that_was_compiled_in_another_state_leads_to_new_code(space: dict[str, Any]) -> None:
    """All signatures of a device function are compiled again, if one was compiled with other globals."""
    with assumed_device(NUMBA, (8, 0)):
        exec("@cuda.jit(device=True)\ndef inner(x): return x * FACTOR\n", space)
        for factor, kind in ((5.0, float64), (3.0, float32)):
            space["FACTOR"] = factor
            with noted(NUMBA, space["inner"]):
                space["inner"].compile_device((kind,))
    exec("@cuda.jit\ndef kernel(x): x[0] = inner(x[0])\n", space)

    assert constants(space) == {"0d4008000000000000"}


@pytest.mark.slow
def test_function_inside_an_intrinsic_is_compiled_anew(space: dict[str, Any]) -> None:
    """Numba keeps what an intrinsic compiled for its own use, with the globals that it read then."""
    space.update(intrinsic=intrinsic, types=types)
    with assumed_device(NUMBA, (8, 0)):
        exec("""
def body(x): return x * FACTOR
@intrinsic
def written(context, x):
    def write(context, builder, signature, arguments):
        return context.compile_internal(builder, body, types.float64(types.float64), arguments)
    return types.float64(types.float64), write
@cuda.jit('float64(float64)', device=True)
def inner(x): return written(x)
@cuda.jit
def kernel(x): x[0] = inner(x[0])
""", space)  # fmt: skip
    space["FACTOR"] = 5.0

    assert constants(space) == {"0d4014000000000000"}
