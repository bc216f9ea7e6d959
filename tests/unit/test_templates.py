"""Source functions with parameters: one kernel for each set of values."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from numba_kcache import KernelCache, cached_kernel
from numba_kcache.errors import OptionError
from tests.support.compiling import SAXPY

asked: list[tuple[Any, ...]] = []


def fill(T: str = "float", TILE: int = 16, *, start: Any = 0) -> str:
    """Fills."""
    asked.append((T, TILE, start))
    return f'extern "C" __global__ void fill({T} *x) {{ x[threadIdx.x] = SCALE * {TILE} + ({T}){start!r}; }}'


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    asked.clear()
    return KernelCache(tmp_path / "cache", durability="none")


def template(cache: KernelCache, **options: Any) -> Any:
    return cached_kernel(fill, arch="sm_90", cache=cache, **{"defines": {"SCALE": 2}, **options})


def test_template_itself_uses_the_defaults(cache: KernelCache) -> None:
    """The function is called with its defaults, once, at the first use."""
    kernel = template(cache)
    assert asked == []
    kernel.compile()
    kernel.compile()

    assert kernel.params[0].c_type == "float*"
    assert asked == [("float", 16, 0)]


def test_instance_has_the_source_for_its_values(cache: KernelCache) -> None:
    """Values that are not given have their defaults; each source is stored once."""
    kernel = template(cache)
    double = kernel.instantiate(T="double", TILE=32)
    double.compile()

    assert (double.params[0].c_type, double.__name__, double.__doc__) == ("double*", "fill", "Fills.")
    assert asked == [("double", 32, 0)]
    assert len({kernel.key(), double.key(), kernel.instantiate(TILE=32).key()}) == 3
    assert kernel.instantiate().key() == kernel.key()


def test_same_values_are_the_same_kernel_and_equal_values_of_other_types_are_not(cache: KernelCache) -> None:
    """`16` and `16.0` print differently, as do `0.0` and `-0.0`; the order of the given values does not matter."""
    kernel = template(cache)
    made = [kernel.instantiate(start=value) for value in (0, False, 0.0, -0.0, (1, 0), (True, False))]

    assert len({id(each) for each in made}) == 6
    assert kernel.instantiate(start=0, T="float") is kernel.instantiate(T="float", start=0) is made[0]
    assert kernel.instantiate(TILE=16) is kernel.instantiate()


class Shape:
    """An object of a program, which stays equal to itself when it changes."""

    size = 1


def test_object_that_changed_makes_another_source(cache: KernelCache) -> None:
    """A kernel is not kept for an object, in a tuple or a list: the next call reads what it is then."""

    def sized(shapes: Any = ()) -> str:
        return SAXPY + "//" * sum(each.size for each in shapes)

    kernel, shape = cached_kernel(sized, arch="sm_90", cache=cache), Shape()
    before = [kernel.instantiate(shapes=each).key() for each in ((shape,), [shape])]
    shape.size = 2
    after = [kernel.instantiate(shapes=each).key() for each in ((shape,), [shape])]

    assert len({*before}) == len({*after}) == 1
    assert before != after


@pytest.mark.parametrize("make", [ModuleType, lambda _name: lambda: None])
def test_module_or_function_that_changed_makes_another_source(cache: KernelCache, make: Callable[[str], Any]) -> None:
    """A kernel is not kept for a module or a function either: its attributes may be others at the next call."""

    def sized(of: Any = None) -> str:
        return SAXPY + "//" * of.size

    kernel, given = cached_kernel(sized, arch="sm_90", cache=cache), make("given")
    keys = []
    for given.size in (1, 2):
        keys.append(kernel.instantiate(of=given).key())

    assert keys[0] != keys[1]


def test_macros_are_keyed_by_value(cache: KernelCache) -> None:
    """`defines` of a template reaches its instances."""
    keys = {template(cache, defines={"SCALE": value}).instantiate(TILE=8).key() for value in (1, 2, "3", None)}
    assert len(keys) == 4


def test_instances_share_the_store(cache: KernelCache) -> None:
    """Another template object gets hits for the instances that this one compiled."""
    template(cache).instantiate(TILE=4).compile()
    template(cache).instantiate(TILE=4).compile()

    assert (cache.info("process").compiles, cache.info("process").hits) == (1, 1)


def test_instance_pickles(cache: KernelCache) -> None:
    """The unpickled instance has the same source."""
    instance = cached_kernel(fill, arch="sm_90", defines={"SCALE": 2}).instantiate(TILE=4)

    assert pickle.loads(pickle.dumps(instance)).key() == instance.key()


def test_wrong_values_are_refused_at_once(cache: KernelCache) -> None:
    """For an unknown name the error lists the parameters."""
    kernel = template(cache)
    with pytest.raises(OptionError, match=r"with S=1: its parameters are T, TILE, start"):
        kernel.instantiate(S=1)
    assert asked == []
    with pytest.raises(OptionError, match=r"test_templates.saxpy: only a function that returns source has values"):
        cached_kernel(SAXPY).instantiate(T="float")
    with pytest.raises(OptionError, match="its parameters are none"):
        cached_kernel(lambda: SAXPY, kind="cuda").instantiate(T="float")


def required(T) -> str:  # type: ignore[no-untyped-def]
    return str(T)


def any_number(*T: str) -> str:
    return str(T)


def any_name(**T: str) -> str:
    return str(T)


def by_place(T: str = "float", /) -> str:
    return T


@pytest.mark.parametrize("function", [required, any_number, any_name, by_place])
def test_function_that_cannot_be_asked_is_refused_when_it_is_decorated(function: Callable[..., str]) -> None:
    """Each parameter must have a default and a name."""
    with pytest.raises(OptionError, match="for its source"):
        cached_kernel(function)
