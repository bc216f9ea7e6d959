"""Trust by identity: a program's changes to modules pinned by version are read, or refused with the reason."""

from __future__ import annotations

import builtins
import collections
import functools
import importlib.util
import inspect
import math
import operator
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import pytest
from numba import cuda
from numba.cuda import libdevice

from numba_kcache.frontends.numba.fingerprint import Fingerprint, Trust, Uncapturable, fingerprint, value_form
from numba_kcache.frontends.numba.llvm import NUMBA as numba_dialect

TRUST = Trust(numba_dialect.packages)


def read(body: str, **names: Any) -> Fingerprint | Uncapturable:
    """The fingerprint of a kernel with this body and these globals."""
    space = {"__name__": "app", "cuda": cuda, "math": math, "operator": operator, "np": np, **names}
    exec("def kernel(x):\n    " + body.replace("\n", "\n    ") + "\n", space)
    return fingerprint(space["kernel"], numba_dialect, with_lines=False)


def digest(found: Fingerprint | Uncapturable) -> str:
    assert isinstance(found, Fingerprint), found
    return found.digest


def made(body: str, name: str = "f", **names: Any) -> FunctionType:
    space: dict[str, Any] = dict(names)
    exec(f"def {name}(x):\n    return {body}", space)
    function: FunctionType = space[name]
    return function


PATCHES = {
    "math.exp": (math, "exp", libdevice.fast_expf, "x[0] = math.exp(x[0])"),
    "operator.add": (operator, "add", operator.sub, "x[0] = operator.add(x[0], x[1])"),
    "np.sqrt": (np, "sqrt", np.cbrt, "x[0] = np.sqrt(x[0])"),
    "cuda.float32": (cuda, "float32", cuda.float64, "x[0] = cuda.float32(x[0])"),
    "by another name of the module": (math, "exp", math.sin, "m = math\nx[0] = m.exp(x[0])"),
    "by a name in a text": (math, "exp", math.sin, "x[0] = getattr(math, 'exp')(x[0])"),
    "by a name in a tuple": (math, "exp", math.sin, "for n in ('exp',):\n    x[0] = getattr(math, n)(x[0])"),
    "by an import inside": (math, "exp", math.sin, "from math import exp\nx[0] = exp(x[0])"),
    "by an import of the module inside": (math, "exp", math.sin, "import math as m\nx[0] = m.exp(x[0])"),
    "in a submodule": (cuda.libdevice, "sqrt", made("x * 3.0"), "x[0] = cuda.libdevice.sqrt(x[0])"),
    "a builtin function": (builtins, "abs", builtins.round, "x[0] = abs(x[0])"),
    "a data attribute": (math, "pi", 3.0, "x[0] = math.pi"),
}


@pytest.mark.parametrize("what", PATCHES)
def test_patched_name_of_a_trusted_module_invalidates_key(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name's present object counts, whatever it was at the start; after it is set back, the key is the first
    again."""
    module, name, value, body = PATCHES[what]
    before = read(body)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, value)
        patched = read(body)

    assert digest(before) != digest(patched)
    assert digest(read(body)) == digest(before)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [(cuda, "popc", cuda.clz), (cuda.atomic, "add", cuda.atomic.sub), (cuda.libdevice, "sqrt", cuda.libdevice.rsqrt)],
)
def test_name_of_device_code_that_means_another_is_refused(
    owner: Any, name: str, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numba compiles `cuda.popc` as the one or the other, by whether it compiled anything before the change."""
    before = read("x[0] = 1")
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        refused = read("x[0] = 1")  # also of a kernel without the name: Numba may compile `sub` as `add`

    assert isinstance(refused, Uncapturable)
    assert name in refused.name
    assert refused.reason == f"it is {value.__qualname__} in this program"
    assert digest(read("x[0] = 1")) == digest(before)


def test_swapped_functions_of_c_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two functions of C that swapped their names cannot be distinguished from others."""
    exp, sin = math.exp, math.sin
    monkeypatch.setattr(math, "exp", sin)
    monkeypatch.setattr(math, "sin", exp)

    found = read("x[0] = math.exp(x[0])")
    assert isinstance(found, Uncapturable)
    assert "extension module" in found.reason


@pytest.mark.parametrize("make", [np.float64, int, float, lambda n: (n, n), np.arange, lambda n: np.dtype(f"i{4 * n}")])
def test_data_added_to_a_trusted_module_counts_by_value(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added data counts by value even if its type claims to be from a trusted package."""
    digests = set()
    for number in (1, 2):
        monkeypatch.setattr(math, "KK", make(number), raising=False)
        digests.add(digest(read("x[0] = math.KK")))

    assert len(digests) == 2


@pytest.mark.parametrize("lies", [False, True])
def test_function_added_to_a_trusted_module_counts_by_code(lies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added functions count by code even if they claim to be from that module."""
    digests = set()
    for number in (1, 2):
        function = made(f"x + {number}", "added")
        if lies:
            function.__module__ = "math"
        monkeypatch.setattr(math, "added", function, raising=False)
        digests.add(digest(read("x[0] = math.added(x[0])")))

    assert len(digests) == 2


def test_attribute_added_to_a_trusted_class_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Added data and functions count, although the class keeps its name."""
    from numba.cuda import types

    digests = set()
    for value in (1, 2, made("x + 1"), made("x + 2")):
        monkeypatch.setattr(types.Array, "KK", value, raising=False)
        digests.add(digest(read("x[0] = types.Array.KK", types=types)))

    assert len(digests) == 4


def test_enum_that_a_program_runs_into_a_trusted_module_counts_by_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """The class claims to be from the module and is in it, but the module's version does not identify it."""
    digests = set()
    for number in (1, 2):
        space = {"__name__": "math"}
        exec(f"import enum\nclass Mode(enum.IntEnum):\n    FAST = {number}", space)
        monkeypatch.setattr(math, "Mode", space["Mode"], raising=False)
        digests.add(digest(read("x[0] = math.Mode.FAST")))

    assert len(digests) == 2


def _loaded(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _namespace(name: str, folder: Path) -> ModuleType:
    (folder / name).mkdir(exist_ok=True)
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is None
    return importlib.util.module_from_spec(spec)


IMPOSTORS: dict[str, tuple[str, Callable[[str, Path], ModuleType]]] = {
    "a namespace package under the name of a module of another system": ("nt", _namespace),
    "a file under the name of a standard module": ("random", _loaded),
    "a file under the name of a module of Numba": ("numba.cuda.extra", _loaded),
    "a file under the name of a package of Numba": ("llvmlite", _loaded),
    "a module that was made under the name of a built-in one": ("marshal", lambda name, _path: ModuleType(name)),
}


@pytest.mark.parametrize("what", IMPOSTORS)
def test_impostor_of_a_trusted_module_is_read(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in `sys.modules` proves nothing: functions and values of such a module count by content."""
    name, load = IMPOSTORS[what]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, name, raising=False)
    path = tmp_path / "impostor.py"
    path.write_text("")
    module = load(name, tmp_path if load is _namespace else path)
    monkeypatch.setitem(sys.modules, name, module)
    digests = set()
    for number in (1, 2):
        space = vars(module)
        exec(f"K = {number}\ndef f(x):\n    return x * {number}", space)
        assert space["f"].__module__ == name
        digests |= {digest(read(body, m=module)) for body in ("x[0] = m.K", "x[0] = m.f(x[0])")}
        digests.add(digest(read("x[0] = g(x[0])", g=space["f"])))

    assert len(digests) == 6
    assert isinstance(read("m = given\nx[0] = m.f(x[0])", given=module), Uncapturable)


def test_modules_of_interpreter_numba_and_numpy_are_trusted() -> None:
    """These are built in, frozen, in files or extension modules; packages installed beside them are not trusted."""
    for name in ("math", "builtins", "os", "_operator", "collections", "numba", "numba.cuda", "numba.cuda.stubs",
                 "numpy", "numba.core.types", "llvmlite.ir"):  # fmt: skip
        __import__(name)
        assert TRUST[name], name
    for name in ("pytest", "hypothesis", "tests", "numba_kcache", "no_such_module_at_all"):
        assert not TRUST[name], name


def test_names_of_numba_keep_key() -> None:
    """Names that programs use have the same digest however they are imported."""
    by_module = "x[0] = {}".format
    for name in ("grid", "popc", "syncthreads", "threadIdx", "atomic", "float32", "float32x4"):
        assert digest(read(by_module(f"cuda.{name}"))) == digest(read(by_module(f"cuda.{name}"), unread=1))
        assert digest(read(by_module("thing"), thing=getattr(cuda, name)))


STATE = {
    "environment": "import os\nx[0] = os.environ['TILE']",
    "environment, by a function": "import os\nx[0] = os.getenv('TILE')",
    "arguments": "import sys\nx[0] = len(sys.argv)",
    "arguments, by another name": "import sys as s\nx[0] = len(s.argv)",
    "flags": "import sys\nx[0] = sys.flags.optimize",
    "working directory": "import os\nx[0] = os.getcwd()",
    "clock": "from time import time\nx[0] = time()",
    "chance": "import random\nx[0] = random.random()",
    "chance of NumPy": "import numpy\nx[0] = numpy.random.rand()",
    "a file": "x[0] = open('tile').read()",
    "a file by NumPy": "x[0] = np.load('tile')",
    "the device": "x[0] = cuda.get_current_device().id",
    "hash of a text": "x[0] = hash('a')",
    "all globals": "x[0] = globals()['K']",
    "settings of NumPy": "x[0] = np.geterr()['over'] == 'warn'",
    "text of NumPy's printing": "x[0] = len(np.array_str(x))",
    "the stack": "import inspect\nx[0] = len(inspect.stack())",
    "names of parameters": "import inspect\nx[0] = len(inspect.signature(np.cumsum).parameters)",
    "a path": "import pathlib\nx[0] = pathlib.Path.home()",
}


@pytest.mark.parametrize("where", ["inside", "outside"])
@pytest.mark.parametrize("what", STATE)
def test_state_of_a_trusted_module_is_refused_with_the_reason(what: str, where: str) -> None:
    """Code of overloads that reads such state gives other code in another process; `depends=` declares it."""
    lines = STATE[what].split("\n")
    space: dict[str, Any] = {"__name__": "app", "np": np, "cuda": cuda}
    if where == "outside":
        exec("\n".join(lines[:-1]), space)
        lines = lines[-1:]
    exec("def kernel(x):\n    " + "\n    ".join(lines), space)

    found = fingerprint(space["kernel"], numba_dialect, with_lines=False)
    beside = fingerprint(space["kernel"], numba_dialect, with_lines=False, depends=["as it is"])
    vouched, names = found, dict[str, str]()
    while isinstance(vouched, Uncapturable) and vouched.name not in names:
        names[vouched.name] = "as it is"
        vouched = fingerprint(space["kernel"], numba_dialect, with_lines=False, depends=names)

    assert isinstance(found, Uncapturable)
    assert beside == found, "a value that represents nothing"
    assert f"depends={{{found.name!r}: ...}}" in found.reason
    assert isinstance(vouched, Fingerprint)


@pytest.mark.parametrize(
    ("said", "change"),
    [
        ("f.__doc__", lambda f: setattr(f, "__doc__", "2")),
        ("f.__name__", lambda f: setattr(f, "__name__", "other")),
        ("f.__qualname__", lambda f: setattr(f, "__qualname__", "other")),
        ("f.__annotations__['x']", lambda f: f.__annotations__.update(x="2")),
        ("g.__doc__", lambda f: setattr(f, "__doc__", "2")),
        ("g.py_func.__doc__", lambda f: setattr(f, "__doc__", "2")),
        ("C.__doc__", lambda f: setattr(f.kind, "__doc__", "2")),
    ],
)
def test_what_a_function_says_of_itself_counts_where_it_is_read(said: str, change: Callable[[Any], None]) -> None:
    """Code of overloads may read attributes of a function, dispatcher or class; a kernel that only calls them keeps its
    key."""

    def digests(text: str) -> tuple[str, str]:
        found = []
        for edit in (lambda _f: None, change):

            def f(x: 1 = 0):  # type: ignore[no-untyped-def, valid-type]
                "1"
                return x

            class C:
                "1"

            f.kind = C  # type: ignore[attr-defined]
            edit(f)
            found.append(digest(read(text, f=f, g=cuda.jit(device=True)(f), C=C)))
        return found[0], found[1]

    one, other = digests(f"x[0] = len({said})")
    kept, same = digests("x[0] = f(g(x[1])) + (C is not None)")

    assert one != other
    assert kept == same


def _described(doc: str, *, name: str = "f", line: int = 1) -> dict[str, Any]:
    """A function, a class with a method, and more, which differ only in their metadata."""
    space: dict[str, Any] = {"__name__": "app"}
    text = f"""def f(x):
    {doc!r}
    return x
class C:
    {doc!r}
    def m(self):
        {doc!r}
        return 1
    p = property(lambda self: 1, doc={doc!r})
class D:
    def m(self):
        {doc!r}
        return 1
    p = property(lambda self: 1, doc={doc!r})
"""
    exec(compile("\n" * line + text, "app.py", "exec"), space)
    space["f"].__name__ = name
    return {**space, "g": cuda.jit(device=True)(space["f"]), "NAME": "__doc__", "FORM": "{0.__doc__}"}


INDIRECT = {
    "by getattr": "x[0] = len(getattr(f, '__doc__'))",
    "of a dispatcher": "x[0] = len(getattr(g, '__doc__'))",
    "by hasattr": "x[0] = hasattr(f, '__doc__')",
    "by another name of getattr": "x[0] = len(ask(f, '__doc__'))",
    "by a text of the module": "x[0] = len(getattr(f, NAME))",
    "by a text in a container of the module": "x[0] = len(getattr(f, NAMES[0]))",
    "by a text in a loop": "for n in ('__doc__', '__name__'):\n    x[0] += len(getattr(f, n))",
    "by a text in pieces": "for n in ('doc', 'name'):\n    x[0] += len(getattr(f, f'__{n}__'))",
    "by a text in pieces and another name": "for n in ('doc', 'name'):\n    x[0] += len(ask(f, f'__{n}__'))",
    "by all its attributes": "for n in dir(f):\n    x[0] += len(str(getattr(f, n)))",
    "by attrgetter": "x[0] = len(operator.attrgetter('__doc__')(f))",
    "by methodcaller": "x[0] = len(operator.methodcaller('__getattribute__', '__doc__')(f))",
    "by formatting": "x[0] = len('{0.__doc__}'.format(f))",
    "by a format of the module": "x[0] = len(FORM.format(f))",
    "by matching": "match f:\n    case object(__doc__=d):\n        x[0] = len(d)",
    "by a local variable": "h = f\nx[0] = len(h.__doc__)",
    "in the body of a class": "class T:\n    h = f\n    t = h.__doc__\nx[0] = len(T.t)",
    "in a method of a class": "class T:\n    def m(self, h):\n        return h.__doc__\nx[0] = len(T().m(f))",
    "in a container": "x[0] = len(FS[0].__doc__)",
    "of a method": "x[0] = len(D.m.__doc__)",
    "of a method by getattr": "x[0] = len(getattr(D.m, '__doc__'))",
    "of a property": "x[0] = len(D.p.__doc__)",
    "of a class by getattr": "x[0] = len(getattr(C, '__doc__'))",
    "of the class of an instance": "x[0] = len(C().__class__.__doc__)",
    "among the constants of the code": "h = f\nx[0] = len(h.__code__.co_consts[0])",
}


@pytest.mark.parametrize("how", INDIRECT)
def test_what_a_function_says_of_itself_counts_however_it_is_asked_for(how: str) -> None:
    """A docstring counts if any code names `__doc__`: as text, for a method, or as the value of a variable."""

    def of(doc: str) -> str:
        space = _described(doc)
        return digest(read(INDIRECT[how], **space, ask=getattr, NAMES=("__doc__",), FS=(space["f"],)))

    assert of("1") == of("1")
    assert of("1") != of("2")


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("getattr(f, '__name__')", {"name": "other"}),
        ("getattr(f, '__code__').co_firstlineno", {"line": 2}),
        ("next(iter([f])).__code__.co_firstlineno", {"line": 2}),
    ],
)
def test_name_and_lines_count_where_code_names_them(text: str, change: dict[str, Any]) -> None:
    """This holds for a function's other metadata; a kernel whose code names none of it keeps its key."""
    one, other = (digest(read(f"x[0] = len(str({text}))", **_described("1", **each))) for each in ({}, change))
    kept, same = (digest(read("x[0] = f(x[0]) + D().m()", **_described("1", **each))) for each in ({}, change))

    assert one != other
    assert kept == same


NESTED = """1
class T:
    "A class has a docstring, and asks for the name of its module."
    a: int = 1
    def m(self):
        return f(1)
"""


@pytest.mark.parametrize("text", ["getattr(f, 'kind', 1)", "f(x[0]) + C().p", "hasattr(x, 'shape')", "D().m()", NESTED])
def test_docstrings_keep_key_where_no_code_asks_for_them(text: str) -> None:
    """Code that reads attributes by plain text, as overloads do, names none of them."""
    one, other = (digest(read(f"x[0] = {text}", **_described(doc))) for doc in ("1", "2"))

    assert one == other


@pytest.mark.parametrize(
    "text", ["f.kind", "getattr(f, 'kind')", "getattr(g, 'kind')", "h.kind", "D.m.kind", "getattr(f, KIND)"]
)
def test_attributes_put_on_functions_count_however_code_asks_for_them(text: str) -> None:
    """Attributes that no code names do not count."""

    def of(text: str, kind: int) -> str:
        space = _described("1")
        space["f"].kind = space["D"].m.kind = kind
        return digest(read(f"h = f\nx[0] = {text}", **space, KIND="kind"))

    assert of(text, 1) != of(text, 2)
    assert of("f(1) + D().m()", 1) == of("f(1) + D().m()", 2)


@pytest.mark.parametrize("text", ["getattr(f, '__globals__')['K']", "h.__globals__['K']"])
def test_globals_that_are_asked_of_a_function_are_refused(text: str) -> None:
    """The code may mean any global: `depends=` declares them."""
    space = _described("1")

    found = read(f"h = f\nx[0] = {text}", **space)

    assert isinstance(found, Uncapturable)
    assert found.reason.startswith("cached code reads globals through it")
    assert "depends=" in found.reason


def test_named_tuple_with_a_signature_of_its_own_is_refused() -> None:
    """Numba reads the order of a named tuple's parameters from the signature of its `__new__`."""
    point = collections.namedtuple("Point", "x y")
    assert digest(read("x[0] = P(1, 2).x", P=point))
    point.__new__.__signature__ = inspect.signature(lambda cls, y, x: None)

    assert isinstance(read("x[0] = P(1, 2).x", P=point), Uncapturable)


@pytest.mark.parametrize("text", ["D.__subclasses__()[0]()", "getattr(D, '__subclasses__')()[0]()"])
def test_subclasses_that_code_lists_are_refused(text: str) -> None:
    """No name in the code leads to the subclasses, so the key cannot cover them."""
    found = read(f"x[0] = len({text})", **_described("1"))

    assert isinstance(found, Uncapturable)
    assert found.reason.startswith("cached code lists subclasses")


@pytest.mark.parametrize("kind", ["partial", "bound method", "attrgetter"])
def test_objects_that_hold_a_function_out_of_sight_are_refused(kind: str) -> None:
    """The functions that such an object calls cannot be read."""
    space = _described("1")
    made = {
        "partial": lambda: functools.partial(getattr, space["f"]),
        "bound method": lambda: MethodType(space["f"], 1),
        "attrgetter": lambda: operator.attrgetter("__doc__"),
    }[kind]()

    assert isinstance(read("x[0] = len(h(f))", **space, h=made), Uncapturable)


def test_name_that_leads_to_another_of_two_known_classes_counts() -> None:
    """Each class is read once; a further name must show which of the two classes it leads to."""
    space: dict[str, Any] = {"__name__": "app"}
    exec("class C:\n    'short'\nclass D:\n    'longer'\n", space)
    space["D"].__name__ = space["D"].__qualname__ = "C"

    one, same, other = (
        digest(read("for c in (C, D, E):\n    x[0] += len(getattr(c, '__doc__'))", **space, E=space[name]))
        for name in ("C", "C", "D")
    )

    assert one == same != other


def test_constants_of_stateful_modules_count_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers and texts of `sys` are read, and so is the version."""
    import os

    one = digest(read("x[0] = sys.maxsize + sys.version_info[0] + (os.sep == '/')", sys=sys, os=os))
    monkeypatch.setattr(sys, "maxsize", 7)

    assert digest(read("x[0] = sys.maxsize + sys.version_info[0] + (os.sep == '/')", sys=sys, os=os)) != one


def test_version_of_python_counts_with_each_of_its_parts() -> None:
    """All five parts of the version count; its class cannot be instantiated for this test."""
    parts = [value_form(each, TRUST, lambda value: None) for each in sys.version_info]

    assert value_form(sys.version_info, TRUST, lambda value: None) == ("version", parts)
    assert len(parts) == 5


def test_defaults_of_a_named_tuple_count() -> None:
    """Numba fills in the fields that a call leaves out."""
    digests = set()
    for default in (1, 2):
        kind = collections.namedtuple("Point", "x y", defaults=(default,))
        digests |= {digest(read("x[0] = P(1).y", P=kind)), digest(read("x[0] = P.y", P=kind(1, 1)))}

    assert len(digests) == 4


@pytest.mark.parametrize("what", ["array", "record", "nested"])
def test_padding_of_records_keeps_key(what: str) -> None:
    """Bytes between the fields of a record are no value: NumPy leaves earlier memory there."""
    inner = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    kind = np.dtype([("c", "i2"), ("d", inner, (2,))], align=True) if what == "nested" else inner

    def filled(padding: int, value: float) -> Any:
        array = np.full(2 * kind.itemsize, padding, np.uint8).view(kind)
        fields = array["d"] if what == "nested" else array
        fields["a"], fields["b"] = 1, value
        if what == "nested":
            array["c"] = 3
        return array[0] if what == "record" else array

    one, other, changed = (digest(read("return G", G=filled(*each))) for each in ((0, 2.0), (171, 2.0), (0, 3.0)))

    assert one == other
    assert one != changed


@pytest.mark.parametrize("body", ["return G.view(np.uint8)[1]", "return G[0].view(np.uint8)", "return from_buffer(G)"])
@pytest.mark.parametrize("what", ["array", "tuple"])
def test_padding_counts_where_code_reads_records_as_bytes(body: str, what: str) -> None:
    """A kernel may view a constant array of records as bytes; its code then contains the padding."""
    kind = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    arrays = [np.full(2 * kind.itemsize, padding, np.uint8).view(kind) for padding in (0, 171, 0)]
    for array in arrays:
        array["a"], array["b"] = 1, 2.0
    values = [(array,) for array in arrays] if what == "tuple" else arrays

    one, other, again = (digest(read(body, G=each, np=np, from_buffer=len)) for each in values)

    assert one != other
    assert one == again
