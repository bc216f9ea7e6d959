"""A front end other than Numba's: only its dialect brings its objects into the fingerprint of a function."""

from __future__ import annotations

import importlib
import operator
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.frontends.numba import External, Flavour, Jitted, Registration, Registrations
from numba_kcache.frontends.numba import fingerprint as python_fingerprint
from numba_kcache.frontends.numba.fingerprint import AlwaysRefused, Fingerprint, Trust, Uncapturable, fingerprint


@dataclass(eq=False)
class Decorated:
    """A function under the toy's decorator."""

    body: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False)
class Writer:
    """The toy's intrinsic."""

    defined_by: Any


@dataclass(eq=False)
class Declared:
    """An external function that the toy finds in linked code."""

    declaration: External


@dataclass(eq=False)
class Scalar:
    """A type of the toy."""

    bits: int


class Toy:
    """A dialect of twenty lines."""

    packages = frozenset({"toolkit"})
    stateful = frozenset({"toolkit.clock"})
    code_modules = ("toolkit.compiler",)
    named_modules = ()
    replaced = Flavour.replaced
    trust = Trust

    def __init__(self, *, of_value: Any = (), of_attribute: Any = (), of_operators: Any = ()) -> None:
        def made(functions: Any) -> list[Registration]:
            return [Registration("hook", None, {}, (each,)) for each in functions]

        by_id = {id(value): made(functions) for value, functions in of_value}
        by_name = {name: made(functions) for name, functions in of_attribute}
        self._registered = Registrations(lambda value: by_id.get(id(value), ()), by_name, made(of_operators))

    def python_function(self, value: Any) -> Any:
        return value.body if type(value) is Decorated else None

    def jitted(self, dispatcher: Any, *, is_kernel: bool) -> Jitted:
        options = {name: value for name, value in dispatcher.options.items() if name not in ("hooks", "links", "echo")}
        hooks = dispatcher.options.get("hooks", ())
        options["casts"] = None if is_kernel else dispatcher.options.get("casts")
        return Jitted(options, dispatcher.options.get("links", ()), "map" in options, hooks)

    def intrinsic(self, value: Any) -> Registration | None:
        return Registration("writer", None, {}, (value.defined_by,)) if type(value) is Writer else None

    def external(self, value: Any) -> External | None:
        return value.declaration if type(value) is Declared else None

    def type_form(self, value: Any, extension: Any) -> Any:
        if type(value) is Scalar and value.bits < 0:
            raise AlwaysRefused("it lives in this process alone")
        return ("toy type", value.bits) if type(value) is Scalar else None

    def untyped(self, value: Any) -> str:
        return ""

    def registrations(self) -> Registrations:
        return self._registered


def function(text: str, **names: Any) -> Any:
    """The function that `text` defines, with these globals."""
    exec(text, names)
    return names["f"]


def taken(kernel: Any, dialect: Toy | None = None, **options: Any) -> Fingerprint:
    found = fingerprint(kernel, dialect or Toy(), with_lines=False, **options)
    assert isinstance(found, Fingerprint), found
    return found


CALL = "def f(x):\n    return g(x) + x.size"
ONE, TWO = (function(f"def f(x):\n    return x * {number}") for number in (1, 2))


def calling(callee: Any, dialect: Toy | None = None, **options: Any) -> str:
    """The digest of a kernel that calls, or reads, `callee`."""
    return taken(Decorated(function(CALL, g=callee), options), dialect).digest


def test_function_behind_a_dispatcher_counts_with_its_options() -> None:
    """Its code and options count, except for those that the dialect leaves out."""
    plain = calling(Decorated(ONE))

    assert calling(Decorated(ONE, {"echo": True})) == plain
    assert calling(Decorated(ONE), casts=("f8",)) == plain
    others = [
        calling(ONE),
        calling(Decorated(TWO)),
        calling(Decorated(ONE, {"fast": True})),
        calling(Decorated(ONE, {"casts": ("f8",)})),
        calling(Decorated(ONE), fast=True),
    ]
    assert len({plain, *others}) == 6


def test_functions_that_the_compiler_keeps_are_those_of_the_dialect() -> None:
    """These are dispatchers and definitions of intrinsics, each with a digest; a plain function is part of its
    caller."""
    callee, writer = Decorated(ONE), Writer(TWO)
    found = taken(Decorated(function(CALL, g=(callee, writer, TWO))))

    assert [kept for kept, _digest in found.device_functions()] == [callee, TWO]
    assert found.components[0].name.startswith("kernel ")


def test_lines_count_where_the_dialect_says_so() -> None:
    """Line numbers count only for the function with such options."""
    moved = function("\n\ndef f(x):\n    return x * 1")

    assert calling(Decorated(moved)) == calling(Decorated(ONE))
    assert calling(Decorated(moved, {"map": 1})) != calling(Decorated(ONE, {"map": 1}))


def test_registration_counts_where_its_value_attribute_or_operator_is_used() -> None:
    """The implementing function is read, although no name leads to it."""
    target = operator.neg
    for where, used in (("of_value", (target, [ONE])), ("of_attribute", ("size", [ONE])), ("of_operators", ONE)):
        changed = TWO if used is ONE else (used[0], [TWO])
        digests = [calling(target, Toy(**{where: [each]})) for each in (used, changed)]
        assert len({calling(target), *digests}) == 3, where
    assert calling(target, Toy(of_attribute=[("shape", [ONE])])) == calling(target)


def test_types_and_external_functions_count_by_their_declarations(tmp_path: Path) -> None:
    """The linked bytes count too."""
    (tmp_path / "a.cu").write_text("// one")
    declaration = External("g", "f4(f4)", "c", False, (str(tmp_path / "a.cu"),))
    declared, other = Declared(declaration), Declared(declaration._replace(abi="d"))
    digests = [calling(each) for each in (Scalar(32), Scalar(64), declared, other)]
    (tmp_path / "a.cu").write_text("// two")

    assert len({*digests, calling(declared)}) == 5
    assert [each.data for each in taken(function(CALL, g=declared)).links] == [b"// two"]


def test_packages_of_the_dialect_are_pinned_from_their_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function of the packages counts by name; an equal function elsewhere, or one that others add, by its code."""
    monkeypatch.syspath_prepend(str(tmp_path))
    digests = {}
    for package in ("toolkit", "stranger"):
        (tmp_path / package).mkdir()
        for body in (1, 2):
            (tmp_path / package / "__init__.py").write_text(f"def f(x):\n    return {body}\n" + "#" * body)
            monkeypatch.delitem(sys.modules, package, raising=False)
            module = importlib.import_module(package)
            digests[package, body] = calling(module.f)
            module.f = added = function(f"def f(x):\n    return {body}", __name__=package)
            digests[package, body, "added"] = calling(added)

    assert digests["toolkit", 1] == digests["toolkit", 2]
    assert digests["stranger", 1] != digests["stranger", 2]
    assert digests["toolkit", 1, "added"] != digests["toolkit", 2, "added"]


def test_objects_that_the_dialect_cannot_read_need_a_user_who_vouches() -> None:
    """With `depends=` the user can vouch for options that hold objects, but not for a type that lives in one
    process."""
    hooked = Decorated(ONE, {"hooks": [object()]})
    refused = fingerprint(hooked, Toy(), with_lines=False)
    held = fingerprint(function(CALL, g=Scalar(-1)), Toy(), with_lines=False, depends={"global g of f": "1"})

    assert isinstance(refused, Uncapturable)
    assert refused.name.startswith("options of ")
    assert refused.name.endswith(", extensions")
    assert taken(hooked, depends={refused.name: "1"}).digest
    assert isinstance(held, Uncapturable)
    assert held.reason == "it lives in this process alone"


def test_fingerprint_knows_nothing_of_numba() -> None:
    """Without Numba the fingerprint is the same; its module does not contain Numba's name."""
    script = (
        "import sys; from tests.unit.test_python_dialect import *\n"
        "print(calling(Decorated(ONE), Toy(of_operators=[TWO]), fast=True)); assert 'numba' not in sys.modules"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)

    assert done.stdout.strip() == calling(Decorated(ONE), Toy(of_operators=[TWO]), fast=True)
    assert "numba" not in Path(str(python_fingerprint.__file__)).read_text(encoding="utf-8").lower()
