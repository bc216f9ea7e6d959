"""Arguments of a launch by name: their order, and the errors for names that do not fit."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from numba_kcache.errors import ArgumentError
from numba_kcache.launch.keywords import in_order
from numba_kcache.model import Parameter
from tests.support.launching import SAXPY, SHAPE, Kernel

PATHS = pytest.mark.parametrize("native", [False, True], ids=["interpreted", "native"])
NAMES = ("a", "x", "y", "n")


@PATHS
def test_named_arguments_arrive_as_those_by_position_do(native: bool) -> None:
    """Names work in any order, and after positional arguments; later positional launches are unchanged."""
    kernel = Kernel()
    kernel.bind(native=native)(2.0, None, None, 7)
    launch = kernel.launcher.bind(SHAPE)

    launch(n=7, y=None, x=None, a=2.0)
    launch(2.0, None, n=7, y=None)
    launch(2.0, None, None, 7)

    seen = {tuple(launched[2]) for launched in kernel.driver.launches}
    assert seen == {(struct.pack("f", 2.0), bytes(8), bytes(8), struct.pack("i", 7))}
    assert len(kernel.driver.launches) == 4


def test_compiled_module_makes_launches_by_name_too() -> None:
    """Python puts the named arguments into order; the compiled module launches."""
    kernel = Kernel()
    kernel.bind(native=True)(2.0, None, None, 7)
    launch, before = kernel.launcher.bind(SHAPE), kernel.launcher.interpreted

    launch(2.0, None, y=None, n=7)
    launch(2.0, None, None, 7)

    assert kernel.launcher.interpreted == before


REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "missing": ((), {"a": 2.0}, ("with 1 argument: it takes 4: float a, float const* x, float* y, int n; "
                "x, y, n are missing\n  hint: pass one argument for each parameter")),
    "one is missing": ((2.0, None), {"n": 1}, "; y is missing\n"),
    "unknown": ((2.0,), {"m": 1}, ("with an argument named 'm': it takes float a, float const* x, float* y, int n\n"
                "  hint: the names are a, x, y, n")),
    "twice": ((2.0,), {"a": 1}, ("with two arguments for 'a': argument 1, given by position, is 'a' already\n"
              "  hint: pass it once")),
}  # fmt: skip


@PATHS
@pytest.mark.parametrize("case", REFUSED)
def test_names_that_do_not_fit_are_refused_before_the_driver(case: str, native: bool) -> None:
    """The error lists the parameters of the source, and the missing ones."""
    args, named, said = REFUSED[case]
    kernel = Kernel()
    launch = kernel.bind(native=native) if not native else kernel.bind(native=True) and kernel.launcher.bind(SHAPE)

    with pytest.raises(ArgumentError) as caught:
        launch(*args, **named)

    assert said in str(caught.value)
    assert str(caught.value).startswith("cannot launch saxpy ")
    assert kernel.untouched


def test_misspelt_name_is_guessed() -> None:
    """The hint begins with the most similar name."""
    with pytest.raises(ArgumentError, match="did you mean alpha"):
        in_order("k", (1, 2), ("alhpa", "x"), ("alpha", "x"), labels=("float alpha", "float* x"))


def test_names_that_are_not_known_are_said_to_be_so() -> None:
    """Parameters of PTX, of cubins and of macros have no known names: these must be passed by position."""
    kernel = Kernel([each._replace(name="") for each in SAXPY])
    with pytest.raises(ArgumentError, match="the names of its parameters are not known"):
        kernel.bind()(2.0, None, None, n=7)

    half = Kernel([SAXPY[0], SAXPY[1], SAXPY[2], Parameter(24, 4, "i4", "int", "")])
    with pytest.raises(ArgumentError, match="some parameters have no known name"):
        half.bind()(2.0, None, None, n=7)
    with pytest.raises(ArgumentError, match="int is missing"):
        half.bind()(2.0, y=None, x=None)
    assert half.untouched


def test_defaults_fill_what_is_left_out() -> None:
    """Defaults work as in Python; a parameter without a default is missing."""
    order = {"labels": NAMES, "defaults": (8, 9)}

    assert in_order("k", (1, 2), ("x",), NAMES, **order) == (1, 2, 8, 9)
    assert in_order("k", (1, 2, 3), ("n",), NAMES, **order) == (1, 2, 8, 3)
    with pytest.raises(ArgumentError, match="x is missing"):
        in_order("k", (1, 2), ("n",), NAMES, **order)
