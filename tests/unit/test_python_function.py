"""The fingerprint of a Numba kernel: changes that it must show, changes that it must not, and kernels it refuses."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, types
from numba.cuda.extending import overload

from numba_kcache.frontends.numba import fingerprint as python_fingerprint
from numba_kcache.frontends.numba.fingerprint import (
    Fingerprint,
    Read,
    Uncapturable,
    code_form,
    fingerprint,
    outer_reads,
)
from numba_kcache.frontends.numba.llvm import NUMBA as numba_dialect
from numba_kcache.keys import Plain
from tests.support.compiling import said_by_each
from tests.support.modules import imported

HELPERS = """
from numba import cuda
import deeper
SCALE = 2.0
@cuda.jit(device=True)
def scaled(x):
    return deeper.shifted(x) * SCALE
"""
DEEPER = """
from numba import cuda, njit
from collections import namedtuple
from enum import IntEnum
import numpy as np
OFFSET = 1
TABLE = np.arange(4, dtype=np.float32)
KIND = np.float32(1)
class Mode(IntEnum):
    FAST = 1
    SLOW = 2
Point = namedtuple("Point", "x y")
ORIGIN = Point(1, (2, 3))
@cuda.jit(device=True)
def shifted(x, by=OFFSET):
    return x + TABLE[0] + ORIGIN.x + Mode.FAST + KIND + by
@njit
def halved(x):
    return x / 2
"""
KERNELS = """
from numba import cuda, float32, types
from numba.cuda.extending import overload
from deeper import halved
import helpers, math
N = 3
TYPE = float32
def make(power):
    @cuda.jit(fastmath=False)
    def kernel(x, out):
        '''Documentation.'''
        i = cuda.grid(1)
        tile = cuda.shared.array(N, TYPE)
        square = lambda v: v * v + 7
        if i < out.size:
            out[i] = helpers.scaled(x[i]) ** power + math.pi + halved(x[i]) + helpers.deeper.OFFSET
    return kernel
kernel = make(2)
"""
PROGRAM = {"deeper": DEEPER, "helpers": HELPERS, "kernels": KERNELS}


def taken(folder: Path, sources: dict[str, str], *, with_lines: bool = False) -> Fingerprint:
    """The fingerprint of the program's kernel."""
    with imported(folder, sources) as module:
        found = fingerprint(module.kernel, numba_dialect, with_lines=with_lines)
    assert isinstance(found, Fingerprint), found
    return found


def changed(found: Fingerprint, other: Fingerprint) -> set[str]:
    """Labels of the components that differ."""
    old, new = dict(each[:2] for each in found.components), dict(each[:2] for each in other.components)
    return {label for label in old.keys() | new.keys() if old.get(label) != new.get(label)}


CHANGES = {
    "device function of another module": ("helpers", "* SCALE", "/ SCALE", "device function helpers.scaled"),
    "device function two modules away": ("deeper", "x + TABLE", "x - TABLE", "device function deeper.shifted"),
    "constant of another module": ("helpers", "SCALE = 2.0", "SCALE = 3.0", "global SCALE of helpers"),
    "type of a constant": ("helpers", "SCALE = 2.0", "SCALE = 2", "global SCALE of helpers"),
    "sign of a zero": ("helpers", "SCALE = 2.0", "SCALE = -0.0", "global SCALE of helpers"),
    "attribute of a module's module": ("deeper", "OFFSET = 1", "OFFSET = 5", "global OFFSET of deeper"),
    "default of a device function": ("deeper", "by=OFFSET", "by=9", "defaults of deeper.shifted"),
    "element of a global array": ("deeper", "np.arange(4,", "np.ones(4,", "global TABLE of deeper"),
    "dtype of a global array": ("deeper", "4, dtype=np.float32", "4, dtype=np.int32", "global TABLE of deeper"),
    "type of a NumPy scalar": ("deeper", "np.float32(1)", "np.float64(1)", "global KIND of deeper"),
    "member of an enum": ("deeper", "FAST = 1", "FAST = 3", "global Mode of deeper"),
    "namedtuple, deep inside": ("deeper", "(2, 3)", "(2, 4)", "global ORIGIN of deeper"),
    "function under njit": ("deeper", "x / 2", "x * 2", "device function deeper.halved"),
    "option of the kernel": ("kernels", "fastmath=False", "fastmath=True", "options of kernels.make.<locals>.kernel"),
    "option of a device function": ("helpers", "(device=True)", "(device=True, inline='always')",
                                    "options of helpers.scaled"),
    "closure variable": ("kernels", "make(2)", "make(3)", "closure power of kernels.make.<locals>.kernel"),
    "constant in the code": ("kernels", "i < out.size", "i + 1 < out.size", "kernel kernels.make.<locals>.kernel"),
    "constant in nested code": ("kernels", "v * v + 7", "v * v + 8", "kernel kernels.make.<locals>.kernel"),
    "size of a shared array": ("kernels", "N = 3", "N = 4", "global N of kernels"),
    "Numba type in a global": ("kernels", "TYPE = float32", "from numba import int8; TYPE = int8",
                               "global TYPE of kernels"),
}  # fmt: skip


def test_own_cells_are_not_mistaken_for_those_of_the_outer_function() -> None:
    """A kernel whose own locals are captured by nested code reads the variables that it closes over."""

    def make(power: float, unit: SimpleNamespace) -> Any:
        def kernel(x: float, y: float) -> float:
            own, offset = x + 1, y
            return (lambda: own + offset)() ** power + unit.scale * y

        return kernel

    reads = outer_reads(make(2, SimpleNamespace(scale=1)).__code__)

    assert reads == (Read("closure", "power", ()), Read("closure", "unit", ("scale",)))


@pytest.mark.parametrize("what", CHANGES)
def test_change_changes_digest_and_is_named(tmp_path: Path, what: str) -> None:
    """Every captured object counts, and the components name it for a later explanation."""
    module, old, new, label = CHANGES[what]
    assert old in PROGRAM[module]
    before = taken(tmp_path, PROGRAM)

    after = taken(tmp_path, {**PROGRAM, module: PROGRAM[module].replace(old, new)})

    assert after.digest != before.digest
    assert label in changed(before, after)


def test_difference_shows_old_and_new_value(tmp_path: Path) -> None:
    """A component of a small value holds the value itself."""
    after = taken(tmp_path, {**PROGRAM, "helpers": HELPERS.replace("2.0", "3.0")})

    values = {each.name: each.value for each in after.components}
    assert values["global SCALE of helpers"] == 3.0
    assert values["device function helpers.scaled"] == "helpers.py:5"


def test_unread_names_comments_and_lines_keep_digest(tmp_path: Path) -> None:
    """Numba discards all kernels of a file whose time or size changes; here only content counts."""
    before = taken(tmp_path, PROGRAM)
    moved = {name: f"# comment\n\nUNREAD = {len(name)}\n{text}# the end\n" for name, text in PROGRAM.items()}
    spaced = {**moved, "kernels": moved["kernels"].replace("        i = cuda", "\n        # here\n        i =   cuda")}

    assert taken(tmp_path, spaced).digest == before.digest


def test_checkout_path_and_touch_keep_digest(tmp_path: Path) -> None:
    """The same files under another path, with other times, are the same kernel."""
    other = tmp_path / "other" / "checkout"
    other.mkdir(parents=True)

    assert taken(other, PROGRAM).digest == taken(tmp_path, PROGRAM).digest


def test_module_name_keeps_digest(tmp_path: Path) -> None:
    """A kernel warmed by import is found by the script that runs as `__main__`."""
    with imported(tmp_path, {**PROGRAM, "script": KERNELS}, "script") as module:
        found = fingerprint(module.kernel, numba_dialect, with_lines=False)

    assert isinstance(found, Fingerprint)
    assert found.digest == taken(tmp_path, PROGRAM).digest


def test_lines_count_where_they_are_compiled_in(tmp_path: Path) -> None:
    """With line tables a moved line changes the key; for a device function its own option decides."""
    moved = {**PROGRAM, "kernels": "\n" + KERNELS}
    assert taken(tmp_path, moved, with_lines=True).digest != taken(tmp_path, PROGRAM, with_lines=True).digest

    with_own = HELPERS.replace("(device=True)", "(device=True, lineinfo=True)")
    before = taken(tmp_path, {**PROGRAM, "helpers": with_own})
    assert taken(tmp_path, {**PROGRAM, "helpers": "\n" + with_own}).digest != before.digest


def test_absent_linker_keeps_digest_of_device_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numba sets their `lto` by whether nvJitLink is installed, and no compiler reads it; a shipped cache may be used
    without nvJitLink."""
    before = taken(tmp_path, PROGRAM)
    monkeypatch.setattr("numba.cuda.decorators._have_nvjitlink", lambda: False)

    assert changed(before, taken(tmp_path, PROGRAM)) <= {"options of kernels.make.<locals>.kernel"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "imports"),
    [("0", "sys"), ("1", "numba.cuda.extending, numpy.ma, numba_kcache"), ("4711", "numba_kcache.doctor, numba.typed")],
)
def test_hash_seed_process_and_import_order_keep_digest(tmp_path: Path, seed: str, imports: str) -> None:
    """In another process sets, dicts and modules come in another order, which does not affect the digest."""
    source = KERNELS.replace("N = 3", "NAMES = frozenset(['ab', 'cd', 'ef']); N = 3").replace(
        "if i < out", "if 'ab' in {'x', 'y', 'zz'} or 'ab' in NAMES or i < out"
    )
    program = {**PROGRAM, "kernels": source}
    script = (
        f"import {imports}; from pathlib import Path; from tests.unit.test_python_function import taken\n"
        f"print(taken(Path({str(tmp_path)!r}), {program!r}).digest)"
    )
    environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}

    printed = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)

    assert printed.stdout.strip() == taken(tmp_path, program).digest


def test_global_set_later_is_seen_at_the_next_reading(tmp_path: Path) -> None:
    """Values are read at each request, not at decoration: two signatures may be compiled with two values."""
    with imported(tmp_path, PROGRAM) as module:
        first = fingerprint(module.kernel, numba_dialect, with_lines=False)
        module.N = 8
        second = fingerprint(module.kernel, numba_dialect, with_lines=False)

    assert isinstance(first, Fingerprint)
    assert isinstance(second, Fingerprint)
    assert first.digest != second.digest


def test_global_from_environment_changes_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file reads two values of a variable: Numba's cache serves the first one's code to both."""
    source = KERNELS.replace("N = 3", "import os; N = int(os.environ['TILE'])")
    digests = set()
    for tile in ("8", "16"):
        monkeypatch.setenv("TILE", tile)
        digests.add(taken(tmp_path, {**PROGRAM, "kernels": source}).digest)

    assert len(digests) == 2


def test_same_size_edit_with_restored_time_changes_digest(tmp_path: Path) -> None:
    """git-restore-mtime, rsync -t and image layers restore times, so size and time do not show an edit."""
    before = taken(tmp_path, PROGRAM)
    path = tmp_path / "deeper.py"
    stat = path.stat()
    edited = {**PROGRAM, "deeper": DEEPER.replace("x + TABLE", "x - TABLE")}
    after = taken(tmp_path, edited)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    assert path.stat().st_size == stat.st_size
    assert after.digest != before.digest


def test_generated_functions_differ_by_their_constants() -> None:
    """Functions from exec have no file; two of one name and bytecode differ by a constant alone."""
    digests = set()
    for constant in (5, 6, 5):
        space: dict[str, object] = {"cuda": cuda}
        exec(f"@cuda.jit\ndef kernel(out):\n    out[0] = {constant}\n", space)
        found = fingerprint(space["kernel"], numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint)
        digests.add(found.digest)

    assert len(digests) == 2


def test_functions_from_stdin_and_notebooks_are_captured() -> None:
    """The place where a function was typed is in no key: cells get new file names each time."""
    digests = set()
    for file in ("<stdin>", "<ipython-input-1-abc>", "/tmp/ipykernel_7/2.py"):
        space: dict[str, object] = {"cuda": cuda}
        exec(compile("@cuda.jit\ndef kernel(out):\n    out[0] = 5\n", file, "exec"), space)
        found = fingerprint(space["kernel"], numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint)
        digests.add(found.digest)

    assert len(digests) == 1


def test_link_file_counts_by_content(tmp_path: Path) -> None:
    """The bytes count, not the path; the linker gets the bytes that were digested."""

    def body(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    digests = []
    for folder, text in (("a", "// one"), ("b", "// one"), ("b", "// two")):
        path = tmp_path / folder / "device.cu"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        found = fingerprint(cuda.jit(body, link=[str(path)]), numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint)
        assert [(each.kind, each.name, each.data) for each in found.links] == [("cu", "device.cu", text.encode())]
        digests.append(found.digest)

    assert digests[0] == digests[1] != digests[2]


def test_declared_device_function_counts_with_what_it_links(tmp_path: Path) -> None:
    """`declare_device` names code outside of Python: its signature, ABI and linked bytes count."""
    path = tmp_path / "device.cu"
    digests = set()
    for text, signature, abi in (
        ("// one", "int32(int32)", "numba"),
        ("// two", "int32(int32)", "numba"),
        ("// two", "int64(int32)", "numba"),
        ("// two", "int64(int32)", "c"),
    ):
        path.write_text(text)
        declared = cuda.declare_device("external", signature, link=str(path), abi=abi)

        @cuda.jit
        def kernel(x, external=declared):  # type: ignore[no-untyped-def]
            x[0] = declared(x[0])  # noqa: B023

        found = fingerprint(kernel, numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint)
        assert found.links[0].data == text.encode()
        digests.add(found.digest)

    assert len(digests) == 4


def test_files_numba_appends_while_compiling_do_not_count() -> None:
    """Numba appends reshape_funcs.cu to the user's own list, which must not make the second signature another
    kernel."""

    def body(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    links: list[str] = []
    dispatcher = cuda.jit(body, link=links)
    before = fingerprint(dispatcher, numba_dialect, with_lines=False)
    links.append(os.path.join(next(iter(cuda.__path__)), "reshape_funcs.cu"))
    after = fingerprint(dispatcher, numba_dialect, with_lines=False)

    assert isinstance(before, Fingerprint)
    assert isinstance(after, Fingerprint)
    assert after.digest == before.digest


def test_user_module_that_hides_a_standard_one_is_walked(tmp_path: Path) -> None:
    """A `random.py` beside the script is the user's code, whatever its name."""
    random = "from numba import cuda\n@cuda.jit(device=True)\ndef draw(x):\n    return x * 2\n"
    kernels = "from numba import cuda\nimport random\n@cuda.jit\ndef kernel(x):\n    x[0] = random.draw(x[0])\n"
    before = taken(tmp_path, {"random": random, "kernels": kernels})
    after = taken(tmp_path, {"random": random.replace("* 2", "* 3"), "kernels": kernels})

    assert after.digest != before.digest


def test_recursion_and_mutual_calls_end(tmp_path: Path) -> None:
    """A function that calls itself, or its caller, is read once."""
    source = """
from numba import cuda
@cuda.jit(device=True)
def even(n):
    return True if n == 0 else odd(n - 1)
@cuda.jit(device=True)
def odd(n):
    return False if n == 0 else even(n - 1)
@cuda.jit
def kernel(x):
    x[0] = even(x[0])
"""
    before = taken(tmp_path, {"kernels": source})
    after = taken(tmp_path, {"kernels": source.replace("return False", "return True")})

    assert after.digest != before.digest


def test_swapped_roles_change_digest(tmp_path: Path) -> None:
    """Two functions with each other's globals are another program, although the set of parts is equal."""
    source = """
from numba import cuda
A, B = 1, 2
@cuda.jit
def kernel(x):
    x[0] = A
    x[1] = B
"""
    before = taken(tmp_path, {"kernels": source})

    assert taken(tmp_path, {"kernels": source.replace("1, 2", "2, 1")}).digest != before.digest


def test_device_functions_have_digests_of_their_own(tmp_path: Path) -> None:
    """A digest covers the values that a device function reaches: it decides if an overload compiled earlier can be
    used."""
    before = taken(tmp_path, PROGRAM).device_functions()
    after = taken(tmp_path, {**PROGRAM, "helpers": HELPERS.replace("2.0", "3.0")}).device_functions()

    names = [dispatcher.py_func.__name__ for dispatcher, _digest in before]
    assert names == ["shifted", "scaled", "halved"]  # callees before callers
    assert [old[1] == new[1] for old, new in zip(before, after, strict=True)] == [True, False, True]


class _Device(SimpleNamespace):
    __cuda_array_interface__ = {"data": (0, False)}  # noqa: RUF012


def _plain(x):  # type: ignore[no-untyped-def]
    return x


_CYCLE: list[object] = []
_CYCLE.append(_CYCLE)
REFUSED = {
    "device array": _Device(),
    "object of unknown class": SimpleNamespace(a=1),
    "partial": functools.partial(_plain, 1),
    "bound method": "".join,
    "ctypes pointer": ctypes.pointer(ctypes.c_int(1)),
    "ctypes function": ctypes.CFUNCTYPE(None)(lambda: None),
    "class with a metaclass": type("Meta", (type,), {})("Odd", (), {}),
    "module as a value": pytest,
    "array of objects": np.array([object()]),
    "subclass of an array": np.ma.array([1]),
    "list that holds itself": _CYCLE,
    "subclass of int": type("Count", (int,), {})(3),
    "tuple with an unknown object": (1, (2, object())),
    "Numba type of a process": None,  # set below, since it needs a dispatcher
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_captured_is_refused_by_name(what: str) -> None:
    """Left out of the key, it would make two kernels equal; so the kernel runs uncached, and the reason names the
    object."""
    value = REFUSED[what] if what != "Numba type of a process" else cuda.jit(_plain, device=True)._numba_type_
    space = {"cuda": cuda, "CULPRIT": value, "__name__": "app"}
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = CULPRIT\n", space)

    found = fingerprint(space["kernel"], numba_dialect, with_lines=False)

    assert isinstance(found, Uncapturable)
    assert found.name == "global CULPRIT of app"
    assert found.reason


HELD = {"device array", "ctypes pointer", "ctypes function", "Numba type of a process"}


@pytest.mark.parametrize("what", REFUSED)
def test_depends_stands_for_what_cannot_be_read(what: str) -> None:
    """The user vouches for the object, and the digest has the declared value; for an address in this process nobody can
    vouch."""
    value = REFUSED[what] if what != "Numba type of a process" else cuda.jit(_plain, device=True)._numba_type_
    space = {"cuda": cuda, "CULPRIT": value, "OTHER": 1, "__name__": "app"}
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = CULPRIT + OTHER\n", space)

    def taken(depends: object) -> Fingerprint | Uncapturable:
        return fingerprint(space["kernel"], numba_dialect, with_lines=False, depends={"global CULPRIT of app": depends})

    one, again, two = taken("version 1"), taken("version 1"), taken("version 2")
    if what in HELD:
        assert isinstance(one, Uncapturable)
        return
    assert isinstance(one, Fingerprint)
    assert isinstance(again, Fingerprint)
    assert isinstance(two, Fingerprint)
    assert one.digest == again.digest != two.digest
    assert {each.value for each in one.components if each.name == "global CULPRIT of app"} == {"covered by depends="}
    space["OTHER"] = 2  # readable values count all the same
    changed = taken("version 1")
    assert isinstance(changed, Fingerprint)
    assert changed.digest != one.digest


def test_depends_stands_for_extensions_and_inner_imports() -> None:
    """With `depends=` both count by name."""

    def importing(x):  # type: ignore[no-untyped-def]
        import hypothesis

        x[0] = hypothesis.VALUE

    for kernel in (cuda.jit(_plain, extensions=[SimpleNamespace()]), cuda.jit(importing)):
        refused = fingerprint(kernel, numba_dialect, with_lines=False)
        assert isinstance(refused, Uncapturable)
        assert "depends=" in refused.reason
        assert isinstance(fingerprint(kernel, numba_dialect, with_lines=False, depends=["1"]), Uncapturable)
        assert isinstance(
            fingerprint(kernel, numba_dialect, with_lines=False, depends={refused.name: "1"}), Fingerprint
        )


def test_depends_covers_only_what_it_is_given_for() -> None:
    """One unreadable object represented, another not: the kernel is refused, and names the other."""
    space: dict[str, Any] = {"cuda": cuda, "A": np.ma.array([1]), "B": np.ma.array([2]), "__name__": "app"}
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = A[0] + B[0]\n", space)

    def taken(depends: Any) -> Fingerprint | Uncapturable:
        return fingerprint(space["kernel"], numba_dialect, with_lines=False, depends=depends)

    both, by_name, half = (
        taken([1, 2]),
        taken({"global A of app": 1, "global B of app": 2}),
        taken({"global A of app": 1}),
    )

    in_a_list = taken([space["A"], space["B"]])

    assert isinstance(both, Uncapturable)
    assert isinstance(in_a_list, Uncapturable)
    assert isinstance(by_name, Fingerprint)
    assert isinstance(half, Uncapturable)
    assert half.name == "global B of app"


def test_depends_covers_an_object_by_identity() -> None:
    """An equal object is not the one that it was given for."""
    one, other = functools.partial(_plain, 1), functools.partial(_plain, 1)
    space = {"cuda": cuda, "A": one, "__name__": "app"}
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = A(0)\n", space)

    def taken(depends: Any) -> Fingerprint | Uncapturable:
        return fingerprint(space["kernel"], numba_dialect, with_lines=False, depends=depends)

    assert isinstance(taken({other: 1}), Uncapturable)


class _Setting:
    n = 1


def test_instance_of_a_class_of_the_program_is_refused_by_name() -> None:
    """In a kernel, which Numba then refuses, and in typing code, which may read such an object."""
    space: dict[str, Any] = {"cuda": cuda, "SETTING": _Setting(), "__name__": "app", "overload": overload}
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = SETTING.n\n", space)
    exec("def f(x): pass\n@overload(f)\ndef g(x):\n    n = SETTING.n\n    return lambda x: n\n", space)
    exec("@cuda.jit\ndef typed(x):\n    x[0] = f(x)\n", space)

    for name in ("kernel", "typed"):
        found = fingerprint(space[name], numba_dialect, with_lines=False)
        assert isinstance(found, Uncapturable)
        assert found.name == "global SETTING of app"
        assert "depends={'global SETTING of app': ...}" in found.reason


def test_extensions_methods_and_missing_links_are_refused(tmp_path: Path) -> None:
    """Objects of this process among the options, bound methods as kernels, files that are not there."""
    refused = [
        fingerprint(cuda.jit(_plain, extensions=[object()]), numba_dialect, with_lines=False),
        fingerprint(cuda.jit(_plain, link=[str(tmp_path / "absent.cu")]), numba_dialect, with_lines=False),
        fingerprint(cuda.jit(_plain, link=[cuda.CUSource("", setup_callback=print)]), numba_dialect, with_lines=False),
        fingerprint(functools.partial(_plain), numba_dialect, with_lines=False),
        fingerprint(SimpleNamespace.__repr__, numba_dialect, with_lines=False),
    ]

    assert all(isinstance(each, Uncapturable) for each in refused)
    assert isinstance(refused[0], Uncapturable)
    assert refused[0].name == f"options of {__name__}._plain, extensions"


def test_depends_counts_values_functions_and_files(tmp_path: Path) -> None:
    """It takes values that no name in the kernel leads to; a file counts by content, its path relative to the
    kernel's."""
    (tmp_path / "table.bin").write_bytes(b"1")
    with imported(tmp_path, PROGRAM) as module:
        digests = set()
        for depends in ((), (1,), (1.0,), (_plain,), ("table.bin",), (Path("table.bin"),), ({"a": 1},)):
            found = fingerprint(module.kernel, numba_dialect, with_lines=False, depends=depends)
            assert isinstance(found, Fingerprint)
            digests.add(found.digest)
        (tmp_path / "table.bin").write_bytes(b"2")
        found = fingerprint(module.kernel, numba_dialect, with_lines=False, depends=("table.bin",))
        assert isinstance(found, Fingerprint)
        digests.add(found.digest)
        missing = fingerprint(module.kernel, numba_dialect, with_lines=False, depends=(Path("absent.bin"),))

    assert len(digests) == 7
    assert isinstance(missing, Uncapturable)


def test_explicit_signature_of_a_device_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are cast to it, so it is part of the caller's code."""
    from numba.cuda import dispatcher as dispatchers

    monkeypatch.setattr(dispatchers, "get_current_device", lambda: SimpleNamespace(compute_capability=(8, 0)))
    digests = set()
    for signature in ("float32(float32)", "float64(float64)"):
        device = cuda.jit(signature, device=True)(_plain)

        @cuda.jit
        def kernel(x):  # type: ignore[no-untyped-def]
            x[0] = device(x[0])  # noqa: B023

        found = fingerprint(kernel, numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint)
        digests.add(found.digest)

    assert len(digests) == 2


@pytest.mark.slow
def test_reading_loads_no_compiler() -> None:
    """A warm start must not load Numba's registries (300 ms), nor, for a plain function, Numba itself."""
    script = """
import sys
from numba_kcache.frontends.numba.llvm import NUMBA as numba_dialect
from numba_kcache.frontends.numba.fingerprint import fingerprint
def plain(x): return x
fingerprint(plain, numba_dialect, with_lines=False)
assert not [name for name in sys.modules if name.split('.')[0] in ('numba', 'numpy', 'llvmlite', 'cuda')]
from numba import cuda
@cuda.jit(device=True)
def device(x): return x
@cuda.jit
def kernel(x): x[0] = device(cuda.grid(1))
assert fingerprint(kernel, numba_dialect, with_lines=False).digest
assert 'numba.cuda.cudaimpl' not in sys.modules
assert sys.modules['numba.cuda.descriptor'].cuda_target._targetctx is not None  # CUDADispatcher builds it, empty
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    subprocess.run([sys.executable, "-c", script], env=environ, check=True)


def test_numba_types_count_by_what_they_are() -> None:
    """A global type is captured by its description; float32, an array of it, and nested arrays of it differ."""
    digests, nested = set(), [types.NestedArray(float32, (extent,)) for extent in (3, 4)]
    for kind in (float32, float32[:], float32[::1], *nested):
        space = {"cuda": cuda, "KIND": kind}
        exec("@cuda.jit\ndef kernel(x):\n    x[0] = KIND(1)\n", space)
        found = fingerprint(space["kernel"], numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint)
        digests.add(found.digest)

    assert len(digests) == 5


def test_numba_types_count_with_the_names_of_their_fields() -> None:
    """Numba's own text of a named tuple leaves them out, alone and inside another type."""
    digests = set()
    for fields in ("x y", "y x"):
        kind = types.NamedUniTuple(float32, 2, namedtuple("Point", fields))
        for value in (kind, types.Tuple([kind, float32]), float32(kind)):
            space = {"cuda": cuda, "KIND": value}
            exec("@cuda.jit\ndef kernel(x):\n    x[0] = KIND\n", space)
            digests.add(digest_of(space["kernel"]))

    assert len(digests) == 6


REGISTERED = """
from numba import cuda, types
from numba.cuda.extending import overload, overload_attribute, overload_method, intrinsic
import math, operator
GAIN = 1
def clamped(x):
    return x
@overload(clamped)
def implement_clamped(x):
    def implementation(x):
        return x * GAIN + 1
    return implementation
@overload(math.gamma)
def implement_gamma(x):
    return lambda x: x + 2
@overload_method(types.Array, "thrice_kcache")
def implement_thrice(array):
    return lambda array: array[0] * 3
@overload_attribute(types.Array, "nine_kcache")
def implement_nine(array):
    return lambda array: 9
@intrinsic
def doubled(context, x):
    def build(context, builder, signature, arguments):
        return builder.add(arguments[0], arguments[0], name="four")
    return x(x), build
@cuda.jit
def kernel(x):
    x[0] = clamped(x[0]) + math.gamma(x[1]) + x.thrice_kcache() + x.nine_kcache + doubled(x[0])
"""


@pytest.mark.slow
def test_registered_implementation_changes_digest(tmp_path: Path) -> None:
    """`@overload` and its like, and `@intrinsic`: no name in the kernel leads to the implementation."""
    edits = {
        "* GAIN + 1": "* GAIN + 8", "GAIN = 1": "GAIN = 2", "x + 2": "x + 8", "array[0] * 3": "array[0] * 8",
        ": 9": ": 8", "builder.add": "builder.mul",
    }  # fmt: skip
    digest = f"taken(Path({str(tmp_path)!r}), {{'kernels': %r}}).digest"
    head = "import json; from pathlib import Path; from tests.unit.test_python_function import taken\n"
    sources = [REGISTERED, *(REGISTERED.replace(old, new) for old, new in edits.items())]

    before, *after = said_by_each(
        "tests.unit.test_python_function", [f"{head}print(json.dumps({digest % source}))" for source in sources]
    )

    assert [old for old, found in zip(edits, after, strict=True) if found == before] == []
    assert len({*after}) == len(edits)


def test_foreign_function_in_a_trusted_module_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that puts its own device function into `math` is not pinned by Python's version."""
    monkeypatch.setattr("math.doubled_kcache", None, raising=False)
    source = """
from numba import cuda
import math
@cuda.jit(device=True)
def doubled(x):
    return x * 2
math.doubled_kcache = doubled
@cuda.jit
def kernel(x):
    x[0] = math.doubled_kcache(x[0])
"""
    before = taken(tmp_path, {"kernels": source})

    assert taken(tmp_path, {"kernels": source.replace("* 2", "* 3")}).digest != before.digest


def digest_of(function: object) -> str:
    found = fingerprint(function, numba_dialect, with_lines=False)
    assert isinstance(found, Fingerprint), found
    return found.digest


def test_exception_table_counts() -> None:
    """From Python 3.11 on, no instruction shows which instructions a handler covers."""

    def kernel(x):  # type: ignore[no-untyped-def]
        try:
            x[0] = 1
        except ValueError:
            x[1] = 2

    before = digest_of(kernel)
    table = bytearray(kernel.__code__.co_exceptiontable)
    table[1] ^= 1
    kernel.__code__ = kernel.__code__.replace(co_exceptiontable=bytes(table))

    assert digest_of(kernel) != before


def test_names_beyond_the_256th_are_read() -> None:
    """Their index needs EXTENDED_ARG: without it another global would be captured."""
    names = [f"name{number}" for number in range(600)]
    body = "".join(f"    x[0] += {name}\n" for name in names)
    space = dict.fromkeys(names, 0)
    exec(f"def kernel(x):\n{body}", space)
    before = digest_of(space["kernel"])

    for name in ("name0", "name255", "name256", "name511", "name599"):
        space[name] = 1
        assert digest_of(space["kernel"]) != before, name
        space[name] = 0
    assert digest_of(space["kernel"]) == before


def test_borrowed_name_is_not_believed() -> None:
    """`functools.wraps` gives a user's function the name of a pinned one; its code counts all the same."""
    import math

    def made(factor: int) -> object:
        @functools.wraps(math.sqrt)
        def wrapper(x):  # type: ignore[no-untyped-def]
            return x * factor

        space = {"wrapper": wrapper}
        exec("def kernel(x):\n    x[0] = wrapper(x[0])\n", space)
        return space["kernel"]

    assert digest_of(made(2)) != digest_of(made(3))


def test_pinned_function_under_another_name_counts() -> None:
    """The object decides, not the name, also for a function of the standard library."""
    digests = set()
    for imported_name in ("sqrt", "sin"):
        space: dict[str, object] = {}
        exec(f"from math import {imported_name} as f\ndef kernel(x):\n    x[0] = f(x[0])\n", space)
        digests.add(digest_of(space["kernel"]))

    assert len(digests) == 2


class _Hostile:
    def __getattr__(self, name: str) -> object:
        raise RuntimeError("keep out")

    def __repr__(self) -> str:
        raise RuntimeError("keep out")


def test_objects_that_raise_when_looked_at_do_not_reach_the_caller() -> None:
    """The kernel runs uncached: the object's exception must not fail the launch."""
    space = {"CULPRIT": _Hostile(), "__name__": "app"}
    exec("def kernel(x):\n    x[0] = CULPRIT\n", space)

    assert isinstance(fingerprint(space["kernel"], numba_dialect, with_lines=False), Uncapturable)


def test_kernel_that_calls_one_thousand_functions_deep_is_no_error() -> None:
    """Python's recursion limit ends the walk; the kernel is refused, not the launch."""
    space: dict[str, object] = {"f0": 1}
    for number in range(1, 3000):
        exec(f"def f{number}(x):\n    return f{number - 1}\n", space)
    exec("def kernel(x):\n    return f2999\n", space)

    assert isinstance(fingerprint(space["kernel"], numba_dialect, with_lines=False), Uncapturable)


def test_user_source_named_like_numbas_own_counts() -> None:
    """Only the very object that Numba appends is skipped, not another of that name."""

    def body(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    digests = {digest_of(cuda.jit(body, link=[cuda.CUSource(text, name="nrt.cu")])) for text in ("// a", "// b")}

    assert len(digests) == 2


def test_line_of_def_counts_with_lines(tmp_path: Path) -> None:
    """Numba reads it from the source: bytecode and line table begin at the decorator."""
    path, digests = tmp_path / "app.py", []
    for text in ("# comment\ndef k(x):\n    x[0] = 1\n", "def k(x):\n    # comment\n    x[0] = 1\n"):
        path.write_text(f"@decorated\n{text}")
        space: dict[str, Any] = {"decorated": lambda function: function}
        exec(compile(path.read_text(), str(path), "exec"), space)
        digests.append([digest_of(cuda.jit(space["k"], lineinfo=is_lined)) for is_lined in (False, True)])

    (plain, lined), (other_plain, other_lined) = digests
    assert plain == other_plain
    assert lined != other_lined


def test_linked_code_that_asks_for_numbas_runtime_is_other_code() -> None:
    """`nrt=True` makes Numba link its runtime to the kernel, where that is enabled."""

    def body(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    digests = {digest_of(cuda.jit(body, link=[cuda.CUSource("// a", nrt=nrt)])) for nrt in (False, True)}

    assert len(digests) == 2


def test_names_that_the_body_of_an_inner_class_reads_count() -> None:
    """Code of overloads may define classes, whose bodies read names by other instructions."""
    digests = set()
    for value in (1, 2):
        space: dict[str, Any] = {"K": value}
        exec("def f(x):\n    class Inner:\n        k = K\n    return Inner.k", space)
        digests.add(digest_of(space["f"]))
    for value in (1, 2):
        space = {}
        inner = "  def f(x):\n    class Inner:\n        j = k\n    return Inner.j\n  return f\n"
        exec(f"def outer(k):\n{inner}f = outer({value})", space)
        digests.add(digest_of(space["f"]))

    assert len(digests) == 4


PARAMETERS = """
import functools, inspect
from numba import cuda, njit
def other(y, by=1.0): pass
def added(x, by=1.0): return x + by
def give_defaults(function): function.__defaults__ = (2.0,)
def give_signature(function): function.__signature__ = inspect.signature(other)
def give_wrapped(function): functools.update_wrapper(function, other)
{how}
def kernel(x): x[0] = added(x[0])
"""
HOWS = {
    "defaults set after decoration": "added = cuda.jit(device=True)(added); give_defaults(added.py_func)",
    "a signature of its own": "give_signature(added); added = cuda.jit(device=True)(added)",
    "a wrapped function": "give_wrapped(added); added = cuda.jit(device=True)(added)",
    "a wrapped function under njit": "give_wrapped(added); added = njit(added)",
}


@pytest.mark.parametrize("how", HOWS)
def test_function_whose_parameters_the_compiler_misreads_is_refused(how: str) -> None:
    """Numba reads a device function's parameters with `inspect.signature` when it is decorated, not from its code."""
    refused = reading_of(PARAMETERS.format(how=HOWS[how]))

    assert isinstance(refused, Uncapturable)
    assert "inspect.signature" in refused.reason


def test_names_of_parameters_that_a_wrapped_function_lends_count() -> None:
    """Numba orders a kernel's parameters by their names in the signature of the wrapped function."""
    text = "import functools\ndef other({}): pass\n@functools.wraps(other)\ndef kernel(x, y): x[0] = y[1]\n"
    found = [reading_of(text.format(names)) for names in ("x, y", "y, x")]

    assert all(isinstance(each, Fingerprint) for each in found)
    assert found[0] != found[1]


CONTAINED = """
from numba.cuda.extending import overload
def held(x): pass
@overload(held)
def of_held(x): return lambda x: x * {factor}
PLACE = {place}
def used(x): pass
@overload(used)
def of_used(x):
    chosen = PLACE[0]
    return lambda x: chosen(x)
def kernel(x): x[0] = used(x[1])
"""


@pytest.mark.parametrize("place", ["(held,)", "[held]", "{0: held}"])
def test_registered_implementation_of_a_function_in_a_container_changes_digest(place: str) -> None:
    """A function that a tuple, list or dict holds counts with its overloads, as one that code names."""
    found = [reading_of(CONTAINED.format(factor=factor, place=place)) for factor in (2.0, 3.0, 3.0)]

    assert all(isinstance(each, Fingerprint) for each in found)
    assert found[0].digest != found[1].digest == found[2].digest  # type: ignore[union-attr]


def reading_of(text: str) -> Fingerprint | Uncapturable:
    """The fingerprint of the kernel that a text defines, or its refusal."""
    space: dict[str, Any] = {"__name__": "app"}
    exec(text, space)
    return fingerprint(space["kernel"], numba_dialect, with_lines=False)


def test_attributes_of_functions_count_where_they_are_read() -> None:
    """Code that runs while a kernel is typed may read a function's attributes; those that are not read do not count."""
    digests = set()
    for value in (1, 2):
        space: dict[str, Any] = {}
        exec(f"def helper(): pass\nhelper.k = {value}\nhelper.unread = {value}\ndef f(x): return helper.k", space)
        digests.add(digest_of(space["f"]))
        space["helper"].unread = 7
        digests.add(digest_of(space["f"]))

    assert len(digests) == 2


SAME = {
    "docstring": ("Documentation.", "Another one, longer."),
    "no docstring": ("        '''Documentation.'''\n", ""),
    "names of local variables": ("square", "renamed"),
}


@pytest.mark.parametrize("what", SAME)
def test_docstrings_and_names_of_locals_keep_digest(tmp_path: Path, what: str) -> None:
    """Only debug information contains them."""
    old, new = SAME[what]
    assert old in KERNELS
    before = taken(tmp_path, PROGRAM)

    assert taken(tmp_path, {**PROGRAM, "kernels": KERNELS.replace(old, new)}).digest == before.digest


def test_names_of_parameters_count_and_names_of_locals_with_lines() -> None:
    """A call may use names of parameters; debug information has names of locals."""

    def digests(*bodies: str, with_lines: bool) -> int:
        found = set()
        for body in bodies:
            space: dict[str, Any] = {}
            exec(body, space)
            read = fingerprint(space["f"], numba_dialect, with_lines=with_lines)
            assert isinstance(read, Fingerprint)
            found.add(read.digest)
        return len(found)

    renamed = [f"def f(x):\n    {name} = x[0]\n    x[1] = {name}" for name in ("a", "b")]
    assert digests(*renamed, with_lines=False) == 1
    assert digests(*renamed, with_lines=True) == 2
    assert digests("def f(x): return x", "def f(y): return y", with_lines=False) == 2
    assert digests("def f(*, x): return x", "def f(*, y): return y", with_lines=False) == 2
    assert digests("def f(*x): return x", "def f(*y): return y", with_lines=False) == 2


def test_constants_count_by_their_use() -> None:
    """Two constants that change places are another program; one beyond the 256th is read whole."""

    def body(*values: object) -> Any:
        space: dict[str, Any] = {}
        exec("def f(x):\n    'text'\n" + "".join(f"    x[0] = {value!r}\n" for value in values), space)
        return space["f"]

    many = [number + 0.5 for number in range(300)]
    assert digest_of(body(1, 2)) != digest_of(body(2, 1))
    assert digest_of(body("text", 2)) != digest_of(body(2, "text"))
    assert digest_of(body(*many)) != digest_of(body(*many[:-1], 7.25))
    assert digest_of(body(*many, 3.5)) != digest_of(body(*many, 4.5))


def digests_in_two_folders(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Digest a function of a file, with lines, in two working directories."""
    space: dict[str, Any] = {}
    exec(compile("def f(x): x[0] = 1", file, "exec"), space)
    digests = set()
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        monkeypatch.chdir(tmp_path / folder)
        found = fingerprint(space["f"], numba_dialect, with_lines=True)
        assert isinstance(found, Fingerprint)
        digests.add(found.digest)
    return digests


def test_working_directory_keeps_digest_with_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compilers write the file's own path, whatever the working directory is."""
    one = digests_in_two_folders(f"{tmp_path}/kernels.py", tmp_path, monkeypatch)
    other = digests_in_two_folders(f"{tmp_path}/a/../kernels.py", tmp_path, monkeypatch)

    assert len(one | other) == 1


@pytest.mark.parametrize("file", ["kernels.py", "<string>"])
def test_working_directory_counts_with_lines_where_the_file_is_relative(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compilers make a relative path absolute with it."""
    assert len(digests_in_two_folders(file, tmp_path, monkeypatch)) == 2


def test_each_function_is_read_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code objects do not change: another signature reads only globals again; a reading with lines is separate."""
    names = ("one", "two", "three")
    functions = "".join(f"@cuda.jit(device=True)\ndef f{n}(x):\n    return x * K + {n}\n" for n in range(4))
    program = dict.fromkeys(names, f"from numba import cuda\nK = 1.5\n{functions}")
    calls = " + ".join(f"{name}.f{n}(x[0])" for name in names for n in range(4))
    kernel = f"from numba import cuda\nimport one, two, three\n@cuda.jit\ndef kernel(x):\n    x[0] = {calls}\n"
    seen: list[str] = []

    def counting(code: CodeType, *, with_lines: bool) -> Plain:
        seen.append(code.co_qualname)
        return code_form(code, with_lines=with_lines)

    monkeypatch.setattr(python_fingerprint, "code_form", counting)
    with imported(tmp_path, {**program, "kernels": kernel}) as module:
        digests = [fingerprint(module.kernel, numba_dialect, with_lines=False).digest for _ in range(3)]  # type: ignore[union-attr]
        assert (len(seen), len(set(digests))) == (13, 1)
        sys.modules["two"].K = 2.5  # type: ignore[attr-defined]
        assert fingerprint(module.kernel, numba_dialect, with_lines=False).digest != digests[0]  # type: ignore[union-attr]
        assert len(seen) == 13
        fingerprint(module.kernel, numba_dialect, with_lines=True)
        assert len(seen) == 26


def test_memory_of_a_function_goes_with_it() -> None:
    """In a program that keeps making kernels, memory for functions that are gone is freed."""
    before = len(python_fingerprint.readings)
    for n in range(50):
        space: dict[str, Any] = {}
        exec(f"def kernel(x):\n    x[0] = {n}\n", space)
        fingerprint(space["kernel"], numba_dialect, with_lines=False)
    del space
    gc.collect()

    assert len(python_fingerprint.readings) <= before


_DESCRIBED = {
    "method of an enumeration": ("A = 1\n    def n(self): return {}", "Kind.A.n()"),
    "method that Python calls": ("A = 1\n    def __init__(self, value): self.n = {}", "Kind.A.n"),
    "function that a method calls": (
        "A = 1\n    def n(self): return self.m()\n    def m(self): return {}",
        "Kind.A.n()",
    ),
    "property of a named tuple": ("x: int\n    n = property(lambda self: {})", "Kind(1).n"),
    "static method of a named tuple": ("x: int\n    @staticmethod\n    def n(): return {}", "Kind.n()"),
}
_SET_LATER = {"attribute of an enumeration": "Kind.n = {}", "attribute of a member": "Kind.A.n = {}"}


@pytest.mark.parametrize("what", [*_DESCRIBED, *_SET_LATER])
def test_code_of_enumerations_and_named_tuples_counts_where_code_types_the_kernel(what: str) -> None:
    """Their members and fields are all that device code can use; an `@overload` can call their methods."""
    body, use = _DESCRIBED.get(what, ("A = 1", "Kind.n" if "enum" in what else "Kind.A.n"))
    base = "NamedTuple" if "named tuple" in what else "IntEnum"

    def of(number: int, name: str = "typed") -> str:
        space: dict[str, Any] = {"cuda": cuda, "__name__": "app", "overload": overload}
        text = f"class Kind({base}):\n    {body}\n{_SET_LATER.get(what, '')}\n".replace("{}", str(number))
        exec("from enum import IntEnum\nfrom typing import NamedTuple\n" + text, space)
        exec(f"def f(x): pass\n@overload(f)\ndef g(x):\n    n = {use}\n    return lambda x: n\n", space)
        exec("@cuda.jit\ndef typed(x):\n    x[0] = f(x)\n", space)
        exec(f"@cuda.jit\ndef kernel(x):\n    x[0] = {'Kind.A' if base == 'IntEnum' else 'Kind(1).x'}\n", space)
        found = fingerprint(space[name], numba_dialect, with_lines=False)
        assert isinstance(found, Fingerprint), found
        return found.digest

    assert of(1) == of(1)
    assert of(1) != of(2)
    assert of(1, "kernel") == of(2, "kernel")
