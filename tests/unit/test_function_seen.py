"""Whether a kernel that was read before would be read the same now: told without reading it, and never wrongly."""

from __future__ import annotations

import builtins
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from numba_kcache.inputs.function_seen import LARGE_ARRAY_BYTES
from numba_kcache.inputs.python_function import Fingerprint, Uncapturable, fingerprint
from tests.support.modules import imported

HELPERS = """
from numba import cuda
import numpy as np
import math
SCALE = 2.0
TABLE = np.arange(4, dtype=np.float32)
SIZES = [1, 2]
@cuda.jit(device=True)
def scaled(x):
    return math.sin(x) * SCALE + TABLE[0] + SIZES[0] + math.pi
def plain(x, by=1):
    return abs(x) + by
"""
KERNELS = """
from numba import cuda, float32
import helpers
from helpers import plain
def make(power):
    @cuda.jit
    def kernel(x, out):
        tile = cuda.shared.array(3, float32)
        for i in range(3):
            out[i] = helpers.scaled(x[i]) ** power + plain(x[i])
    return kernel
kernel = make(2)
"""
PROGRAM = {"helpers": HELPERS, "kernels": KERNELS}


def read(module: ModuleType, **options: Any) -> Fingerprint:
    found = fingerprint(module.kernel, with_lines=False, **options)
    assert isinstance(found, Fingerprint), found
    return found


@pytest.fixture
def program(tmp_path: Path) -> Iterator[ModuleType]:
    with imported(tmp_path, PROGRAM) as module:
        yield module


def function_of(module: ModuleType) -> Any:
    return module.kernel.py_func


def other_code(module: ModuleType) -> None:
    module.plain.__code__ = (lambda x, by=1: abs(x) - by).__code__


def other_closure(module: ModuleType) -> None:
    function_of(module).__closure__[0].cell_contents = 3


def empty_cell(module: ModuleType) -> None:
    del function_of(module).__closure__[0].cell_contents


def other_module_class(module: ModuleType) -> None:
    class Lazy(ModuleType):
        scaled = property(lambda self: module.plain)

    module.helpers.__class__ = Lazy


def fixed(module: ModuleType) -> None:
    module.helpers.scaled._can_compile = False


CHANGES: dict[str, Callable[[ModuleType], object]] = {
    "global of another module": lambda module: vars(module.helpers).update(SCALE=3.0),
    "its type": lambda module: vars(module.helpers).update(SCALE=2),
    "module under a name": lambda module: vars(module).update(helpers=ModuleType("other")),
    "attribute of a module": lambda module: vars(module.helpers).update(scaled=module.plain),
    "class of a module": other_module_class,
    "element of an array": lambda module: module.helpers.TABLE.__setitem__(0, 5),
    "layout of an array": lambda module: setattr(module.helpers.TABLE, "shape", (2, 2)),
    "dtype of an array": lambda module: setattr(module.helpers.TABLE, "dtype", np.int32),
    "element of a list": lambda module: module.helpers.SIZES.__setitem__(0, 9),
    "type in a list": lambda module: module.helpers.SIZES.__setitem__(0, True),
    "code of a function": other_code,
    "default of a function": lambda module: setattr(module.plain, "__defaults__", (7,)),
    "keyword default of a function": lambda module: setattr(module.plain, "__kwdefaults__", {"by": 7}),
    "closure variable": other_closure,
    "closure variable that is gone": empty_cell,
    "option of the kernel": lambda module: module.kernel.targetoptions.update(fastmath=True),
    "option of a device function": lambda module: module.helpers.scaled.targetoptions.update(inline="always"),
    "further option": lambda module: module.kernel.targetoptions.update(more=1),
    "options as a whole": lambda module: setattr(
        module.kernel, "targetoptions", {**module.kernel.targetoptions, "fastmath": True}
    ),
    "extension in the kernel's list": lambda module: module.kernel.targetoptions["extensions"].append(object()),
    "function under a dispatcher": lambda module: setattr(module.helpers.scaled, "py_func", module.plain),
    "signatures of a device function": fixed,
    "name that hides a builtin": lambda module: vars(module.helpers).update(abs=math.fabs),
}


def test_unchanged_program_reads_the_same(program: ModuleType) -> None:
    """Ahead of its use as at its use."""
    ahead, now = read(program, is_ahead=True), read(program)

    assert ahead.holds()
    assert now.holds()
    assert ahead.digest == now.digest


@pytest.mark.parametrize("what", CHANGES)
def test_change_is_noticed(program: ModuleType, what: str) -> None:
    """Each thing that a reading depends on, changed in place."""
    found = read(program)
    assert found.holds()

    CHANGES[what](program)

    assert not found.holds()


def test_builtin_that_is_replaced_is_noticed(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`abs` is read from the builtins where no global hides it."""
    found = read(program)
    monkeypatch.setattr(builtins, "abs", math.fabs)

    assert not found.holds()


def test_trusted_module_that_is_replaced_is_noticed(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a version pins is pinned by its module's name: another module under that is the user's."""
    found = read(program)
    monkeypatch.setitem(sys.modules, "math", ModuleType("math"))

    assert not found.holds()


def test_registration_is_noticed(program: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """`@overload` may give any name of the kernel another meaning."""
    from numba.cuda.typing.templates import builtin_registry

    found = read(program)
    monkeypatch.setattr(builtin_registry, "globals", [*builtin_registry.globals, (object(), object())])

    assert not found.holds()


def test_change_that_is_taken_back_holds_again(program: ModuleType) -> None:
    """What counts is what is there at the use."""
    found = read(program)
    program.helpers.SCALE, before = 3.0, program.helpers.SCALE
    assert not found.holds()
    program.helpers.SCALE = before

    assert found.holds()


NOT_COMPARED = {
    "array that is large": f"import numpy as np\nSCALE = np.ones({LARGE_ARRAY_BYTES + 1}, np.uint8)",
    "member of an enum": "from enum import IntEnum\nclass Mode(IntEnum):\n    A = 1\nSCALE = Mode.A",
    "named tuple": "from collections import namedtuple\nSCALE = namedtuple('P', 'x')(1)",
    "functions in a tuple": "def f(x):\n    return x\nSCALE = (f,)",
    "name that is not there": "",
}


@pytest.mark.parametrize("what", NOT_COMPARED)
def test_what_is_not_compared_never_holds(tmp_path: Path, what: str) -> None:
    """It is read anew at each use, and not before the first."""
    kernels = "from numba import cuda\nimport values\n@cuda.jit\ndef kernel(x):\n    x[0] = values.SCALE\n"
    with imported(tmp_path, {"values": NOT_COMPARED[what], "kernels": kernels}) as module:
        assert not read(module).holds()
        assert isinstance(fingerprint(module.kernel, with_lines=False, is_ahead=True), Uncapturable)


@pytest.mark.parametrize("form", ["[{}]", "({},)", "{}"])
def test_linking_kernel_is_not_read_ahead(tmp_path: Path, form: str) -> None:
    """Its files are read at each use."""
    path = tmp_path / "device.cu"
    link = form.format(repr(str(path)))
    kernels = f"from numba import cuda\n@cuda.jit(link={link})\ndef kernel(x):\n    x[0] = 1\n"
    with imported(tmp_path, {"kernels": kernels}) as module:
        assert isinstance(fingerprint(module.kernel, with_lines=False, is_ahead=True), Uncapturable)
        path.write_text("// two")
        assert not read(module).holds()


def test_vouched_kernel_is_not_read_ahead(program: ModuleType) -> None:
    """There may be files among what stands for it."""
    assert isinstance(fingerprint(program.kernel, with_lines=False, depends=(1,), is_ahead=True), Uncapturable)
    assert not read(program, depends=(1,)).holds()


def test_name_of_a_program_s_own_among_the_builtins_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a name is read there at each use."""
    monkeypatch.setattr(builtins, "SCALE", 2.0, raising=False)
    kernels = "from numba import cuda\n@cuda.jit\ndef kernel(x):\n    x[0] = SCALE\n"
    with imported(tmp_path, {"kernels": kernels}) as module:
        found = read(module)
        assert found.holds()
        monkeypatch.setattr(builtins, "SCALE", 3.0)
        assert not found.holds()


def test_comparing_runs_nothing_of_the_users(program: ModuleType) -> None:
    """An object that came into a list meanwhile is left alone."""
    asked = []

    class Value:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            raise RuntimeError(name)

    found = read(program)
    program.helpers.SIZES.append(Value())

    assert not found.holds()
    assert asked == []


def test_reading_ahead_runs_nothing_of_the_users(tmp_path: Path) -> None:
    """A module that makes attributes when it is asked, and an object whose attributes have code."""
    lazy = "asked = []\ndef __getattr__(name):\n    asked.append(name)\n    return 1.0\n"
    eager = (
        "from lazy import asked\n"
        "class Value:\n"
        "    def __getattribute__(self, name):\n"
        "        asked.append(name)\n"
        "        raise RuntimeError(name)\n"
        "SCALE = Value()\nDEEP = [Value()]\n"
    )
    for name in ("lazy.SCALE", "eager.SCALE", "eager.SCALE.real", "eager.DEEP"):
        kernels = f"from numba import cuda\nimport lazy, eager\n@cuda.jit\ndef kernel(x):\n    x[0] = {name}\n"
        with imported(tmp_path, {"lazy": lazy, "eager": eager, "kernels": kernels}) as module:
            module.lazy.asked.clear()
            found = fingerprint(module.kernel, with_lines=False, is_ahead=True)
            assert isinstance(found, Uncapturable), name
            assert module.lazy.asked == [], name
