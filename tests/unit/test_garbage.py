"""Garbage collection around the registries of both Numbas: paused while they are filled, afterwards as before."""

from __future__ import annotations

import gc
import importlib.util
import subprocess
import sys

import pytest

from numba_kcache.frontends.numba.compiled_code import uncollected


@pytest.mark.parametrize("was_enabled", [True, False])
def test_collection_is_afterwards_as_it_was(was_enabled: bool) -> None:
    """Collection is on or off as before, also after a failed compile."""
    before, seen = gc.isenabled(), []

    @uncollected()
    def fail() -> None:
        seen.append(gc.isenabled())
        raise ValueError("refused")

    try:
        (gc.enable if was_enabled else gc.disable)()
        with pytest.raises(ValueError, match="refused"):
            fail()

        assert [*seen, gc.isenabled()] == [False, was_enabled]
    finally:
        (gc.enable if before else gc.disable)()


def test_objects_that_a_program_froze_stay_frozen() -> None:
    """The program's frozen objects are not unfrozen."""
    script = "import gc; from numba_kcache.frontends.numba.compiled_code import uncollected; gc.freeze()\n"
    script += "before = gc.get_freeze_count()\nwith uncollected(): pass\nprint(before == gc.get_freeze_count() > 0)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "True\n"


def test_objects_that_a_program_froze_are_not_counted_each_time() -> None:
    """Counting takes 10 ms per million objects, and is done only where new objects have to be moved out of the
    collector."""
    script = "import gc; from numba_kcache.frontends.numba.compiled_code import uncollected\n"
    script += "with uncollected(): pass\nasked = []\ngc.get_freeze_count = lambda: asked.append(1) or 1\n"
    script += "with uncollected(): pass\nprint(len(asked))\n"
    script += "with uncollected(): made = [[] for _ in range(100_000)]\nprint(len(asked))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "0\n1\n"


def test_what_is_made_meanwhile_counts_as_old() -> None:
    """The next collection of young objects does not visit the new ones."""
    script = "import gc; from numba_kcache.frontends.numba.compiled_code import uncollected\n"
    script += "with uncollected(): made = [[] for _ in range(100_000)]\n"
    script += "print(len(gc.get_objects(generation=0)) + len(gc.get_objects(generation=1)) < 1000)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert done.stdout == "True\n"


_FIRST = """
import gc, sys, importlib
from importlib import import_module
from numba_kcache.frontends.numba.compiled_code import assumed_device, compiler
flavour = import_module(f"numba_kcache.frontends.numba.{sys.argv[1]}").FRONT_END.flavour
compiler(flavour)
gc.collect()
walked = []
gc.callbacks.append(lambda phase, about: walked.append(about["generation"]))
with assumed_device(flavour, (9, 0)):
    print([each for each in walked if each])
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llvm", "mlir"])
def test_first_compile_walks_nothing_while_registries_are_filled(kind: str) -> None:
    """Otherwise two full collections and dozens of smaller ones would run."""
    if importlib.util.find_spec("numba_cuda" if kind == "llvm" else "numba_cuda_mlir") is None:
        pytest.skip(f"no {kind}")
    done = subprocess.run([sys.executable, "-c", _FIRST, kind], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"
