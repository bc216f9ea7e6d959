"""The choice of front ends for an object: by the `cuda` module that a function names, before any Numba is imported."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from numba_kcache.frontends import front_ends_for, numba_of


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Modules of both Numbas, which need not be installed, under the names that programs give them."""
    found = {}
    for name, full in (("numba_cuda", "numba.cuda"), ("mlir_cuda", "numba_cuda_mlir.cuda")):
        module = found[name] = ModuleType(full)
        exec("def grid(n): ...", vars(module))
        monkeypatch.setitem(sys.modules, full, module)
    return found


def function(text: str, **names: Any) -> Any:
    """Define the function `k` of a text with these global names."""
    exec(text, names)
    return names["k"]


@pytest.mark.parametrize(("name", "kind"), [("numba_cuda", "numba"), ("mlir_cuda", "mlir")])
def test_kernel_is_of_the_cuda_that_it_names(modules: dict[str, ModuleType], name: str, kind: str) -> None:
    """The function may name the module, a name imported from it, or one in a closure."""
    cuda = modules[name]

    assert front_ends_for(function("def k(x): x[0] = cuda.grid(1)", cuda=cuda), None) == (kind,)
    assert front_ends_for(function("def k(x): x[0] = grid(1)", grid=vars(cuda)["grid"]), None) == (kind,)
    closed = function("def k_of(cuda):\n def k(x): x[0] = cuda.grid(1)\n return k\nk = k_of(given)", given=cuda)
    assert numba_of(closed) == kind


def test_dispatcher_is_known_by_its_class(modules: dict[str, ModuleType]) -> None:
    """None of the dispatcher's methods is called."""
    for module, kind in (("numba.cuda.dispatcher", "numba"), ("numba_cuda_mlir.descriptor", "mlir")):
        made = type("Dispatcher", (), {"__module__": module, "py_func": None})()
        assert front_ends_for(made, None) == (kind,)


def test_source_is_asked_first_where_nothing_tells(modules: dict[str, ModuleType]) -> None:
    """A function annotated to return text is no Numba kernel, whatever it names; `kind=` alone decides."""
    cuda = modules["mlir_cuda"]

    assert front_ends_for(function("def k() -> str: return cuda.text", cuda=cuda), None)[0] == "source"
    assert front_ends_for(function("def k(n) -> str: return cuda.text", cuda=cuda), None)[0] == "source"
    assert front_ends_for("__global__ void k() {}", None)[0] == "source"
    assert front_ends_for(function("def k(x): x[0] = cuda.grid(1)", cuda=cuda), "numba") == ("numba",)
    assert front_ends_for(function("def k(x): x[0] = 1"), "mlir") == ("mlir",)
