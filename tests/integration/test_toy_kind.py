"""A kind of kernel that is registered from outside: all features work without a change in the package."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import cached_kernel
from tests.support.compiling import ROOT
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

SOURCE = 'extern "C" __global__ void scale(float *x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }'
KERNELS = "from numba_kcache import cached_kernel\nfrom tests.support.toy_kind import Toy\n"
KERNELS += 'scale = cached_kernel(Toy("scale"), arch=["sm_90"])\n'


class Toys:
    """A table of toys, a program with one of them, and a cache."""

    def __init__(self, root: Path) -> None:
        self.root, self.log = root, root / "log"
        compiled = cached_kernel(SOURCE, arch="sm_90")
        (root / "scale.cubin").write_bytes(compiled.cubin())
        self.parameters = [list(each) for each in compiled.params]
        self.write(1)
        (root / "toys.py").write_text(KERNELS)

    def write(self, version: int) -> None:
        """Write the table's row."""
        row = {"version": version, "parameters": self.parameters}
        (self.root / "table.json").write_text(json.dumps({"scale": row}))

    def python(self, script: str, *, check: bool = True, **settings: str) -> str:
        """Run a program with the kernel on the fake driver."""
        environ = environment(build(), log=self.log) | {
            "NUMBA_KCACHE_DIR": str(self.root / "cache"), "TOY_TABLE": str(self.root), "PYTHONPATH": str(ROOT),
            **settings,
        }  # fmt: skip
        head = f"import sys; sys.path.insert(0, {str(self.root)!r})\nimport numba_kcache\nfrom toys import *\n"
        return str(run(["-c", head + script], env=environ, check=check).stdout)

    def shell(self, *arguments: str) -> str:
        """Run a verb of the command line."""
        script = f"from numba_kcache.cli import main\nsys.exit(main({list(arguments)!r}) or 0)"
        return self.python(script, check=False)


@pytest.fixture
def toys(tmp_path: Path) -> Toys:
    return Toys(tmp_path)


LAUNCH = "scale[2, 32](None, 7)\nprint(numba_kcache.info('process').to_dict())"


def test_toy_is_launched_checked_and_served_from_disk(toys: Toys) -> None:
    """The first process compiles it, the second gets it from disk; its typed parameters refuse a wrong argument."""
    counted = [eval(toys.python(LAUNCH)) for _ in range(2)]
    launches = read_log(toys.log, "launch")
    refused = "try:\n    scale[1, 1](None, 1.5)\nexcept numba_kcache.ArgumentError as error:\n    print(error)"

    assert [(each["misses"], each["hits"]) for each in counted] == [(1, 0), (0, 1)]
    assert [each["grid"] for each in launches] == [[2, 1, 1]] * len(launches)
    assert len(launches) in (1, 2), "one a process; the log is of the last or of both"
    assert "int" in toys.python(refused)


def test_explain_names_the_component_that_changed(toys: Toys) -> None:
    """The explanation has the toy's own kinds of components, in the program and in the shell."""
    toys.python("scale.compile()")
    assert "hit, from disk" in toys.shell("explain", f"{toys.root}/toys.py:scale", "--arch", "sm_90")

    toys.write(2)
    told = toys.shell("explain", f"{toys.root}/toys.py:scale", "--arch", "sm_90")
    assert "toy row" in told
    assert "option" in toys.python('print(cached_kernel(Toy("scale"), revision=3, arch="sm_90").explain())')


def test_frozen_cache_refuses_a_toy_that_it_does_not_hold(toys: Toys) -> None:
    """A stored toy is a hit."""
    script = "try:\n    scale[1, 1](None, 1)\n    print('launched')\nexcept numba_kcache.FrozenCacheError as error:\n"
    script += "    print(error)"
    assert "does not hold it" in toys.python(script, NUMBA_KCACHE_MODE="frozen")
    toys.python("scale.compile()")

    assert toys.python(script, NUMBA_KCACHE_MODE="frozen").strip() == "launched"


def test_warm_up_compiles_toys_in_workers_and_says_what_failed(toys: Toys) -> None:
    """Workers get the kernels pickled, and the toys' module registers its kind there."""
    script = "print(numba_kcache.warm_up('toys', progress=False))"
    assert "1 built" in toys.python(script)
    assert "1 hit" in toys.python(script)

    toys.write(-1)
    failed = "try:\n    numba_kcache.warm_up('toys', progress=False)\nexcept numba_kcache.CompileError as error:\n"
    assert "its row is broken" in toys.python(failed + "    print(error)")


def test_bundle_with_a_toy_is_served_without_the_table(toys: Toys) -> None:
    """The bundle is imported by another cache, or mounted read-only."""
    toys.python("scale.compile(); numba_kcache.export_bundle('toys.kcache', kernels=scale)".replace(
        "toys.kcache", str(toys.root / "toys.kcache")
    ))  # fmt: skip
    (toys.root / "scale.cubin").unlink()
    for verb in ("import_bundle", "register_bundle"):
        script = f"numba_kcache.{verb}({str(toys.root / 'toys.kcache')!r})\n" + LAUNCH
        counted: Any = eval(toys.python(script, NUMBA_KCACHE_DIR=str(toys.root / verb)))
        assert (counted["misses"], counted["hits"]) == (0, 1)


def test_administration_handles_entries_of_a_kind_it_does_not_know(toys: Toys) -> None:
    """Processes without the toys' module list, show, explain, verify and remove the entries."""
    toys.python("scale.compile()")
    environ = environment(build()) | {"NUMBA_KCACHE_DIR": str(toys.root / "cache"), "PYTHONPATH": str(ROOT)}

    def shell(*arguments: str) -> str:
        return str(run(["-m", "numba_kcache", *arguments], env=environ).stdout)

    (listed,) = json.loads(shell("list", "--json"))
    assert listed["kernels"] == ["scale"]
    assert "scale" in shell("show", listed["key"])
    assert "toys.scale" in shell("explain", listed["key"])
    shell("verify")
    shell("clear", *(["--yes"] if "--yes" in shell("clear", "--help") else []))
    assert json.loads(shell("list", "--json")) == []
    assert sys.modules.get("tests.support.toy_kind") is None
