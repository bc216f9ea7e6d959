"""CuPy's programs under `install(cupy=True)` on a real device: right results, then hits, and no stale code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

PROGRAM = """
import json, os, sys
import cupy
from cupyx import jit

folder = sys.argv[1]
x = cupy.arange(1000, dtype=cupy.float32)
y = cupy.zeros_like(x)

raw = cupy.RawKernel(r'''
#include <cupy/complex.cuh>
#include "factor.h"
extern "C" __global__ void scale(const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = FACTOR * x[i];
}''', "scale", options=(f"-I{folder}",))
raw((8,), (128,), (x, y, 1000))
factor = int(open(f"{folder}/factor.h").read().split()[-1])
assert (y == factor * x).all(), "stale"

module = cupy.RawModule(code=r'''
template<class T> __global__ void add(const T *x, T *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += x[i];
}''', name_expressions=("add<float>", "add<double>"))
for dtype, name in ((cupy.float32, "add<float>"), (cupy.float64, "add<double>")):
    a, b = cupy.arange(1000, dtype=dtype), cupy.ones(1000, dtype)
    module.get_function(name)((8,), (128,), (a, b, 1000))
    assert (b == a + 1).all()

squared = cupy.ElementwiseKernel("T x, T y", "T z", "z = (x - y) * (x - y)", "squared_difference")
assert (squared(x, cupy.float32(1)) == (x - 1) ** 2).all()

norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "l2norm")
assert abs(float(norm(x)) - float((x.astype(cupy.float64) ** 2).sum() ** 0.5)) < 1

@cupy.fuse()
def fused(a, b):
    return (a * b + a) / 2

assert cupy.allclose(fused(x, x), (x * x + x) / 2)

@jit.rawkernel()
def doubled(a, b, n):
    i = jit.blockIdx.x * jit.blockDim.x + jit.threadIdx.x
    if i < n:
        b[i] = a[i] * 2

doubled((8,), (128,), (x, y, cupy.int32(1000)))
assert (y == 2 * x).all()
try:
    cupy.RawKernel('extern "C" __global__ void bad() { nope; }', "bad")((1,), (1,), ())
except cupy.cuda.compiler.CompileException as error:
    assert "nope" in str(error)
else:
    raise AssertionError("it compiled")
assert (cupy.sort(x[::-1]) == x).all()
"""

COUNTED = """
import sys, numba_kcache
if sys.argv[2] == "after":
    import cupy
numba_kcache.install(cupy=True)
exec(compile(open(sys.argv[3]).read(), sys.argv[3], "exec"))  # cupyx.jit reads its file
from cupy.cuda import compiler
counts = numba_kcache.info("process")
numba_kcache.uninstall()
print(json.dumps([counts.compiles, counts.hits, counts.errors, type(compiler._kernel_cache_backend).__name__]))
"""


class Program:
    """The program, with a header, a cache, and a cache of CuPy's own, all of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder, root = folder, str(Path(__file__).resolve().parents[2])
        (folder / "program.py").write_text(PROGRAM)
        (folder / "counted.py").write_text(COUNTED)
        self.environment = {
            **os.environ,
            "NUMBA_KCACHE_DIR": str(folder / "cache"),
            "CUPY_CACHE_DIR": str(folder / "own"),
            "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]),
        }
        self.edit(2)

    def edit(self, factor: int) -> None:
        (self.folder / "factor.h").write_text(f"#define FACTOR {factor}\n")

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, *words], env=self.environment, **pipes)

    def counts(self, when: str = "before") -> list[Any]:
        """Compiles, hits and errors of a new process, and the cache that CuPy has in the end."""
        return read(
            self.start(str(self.folder / "counted.py"), str(self.folder), when, str(self.folder / "program.py"))
        )


def read(process: subprocess.Popen[str]) -> list[Any]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    found: list[Any] = json.loads(out.splitlines()[-1])
    return found


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


@pytest.mark.parametrize("when", ["before", "after"])
def test_second_process_has_hits_alone(program: Program, when: str) -> None:
    """Raw, elementwise, reduction, fused and jit kernels; CuPy gets its own cache back, in which there is nothing."""
    compiles, hits, errors, backend = program.counts(when)
    assert (errors, backend) == (0, "DiskKernelCacheBackend")
    assert compiles >= 7

    assert program.counts(when) == [0, compiles + hits, 0, "DiskKernelCacheBackend"]
    assert not list((program.folder / "own").glob("*.cubin"))


def test_edited_header_is_never_stale(program: Program) -> None:
    """The program itself compares its result with the header; one kernel is compiled again, and then none."""
    program.counts()
    program.edit(3)
    assert program.counts()[0] == 1
    assert program.counts()[0] == 0
    program.edit(2)
    assert program.counts()[0] == 0


def test_eight_processes_compile_each_kernel_once(program: Program) -> None:
    """They start at once on an empty cache."""
    words = (str(program.folder / "counted.py"), str(program.folder), "before", str(program.folder / "program.py"))
    found = [read(each) for each in [program.start(*words) for _ in range(8)]]

    entries = program.start("-m", "numba_kcache", "list", "--json")
    kernels = len(json.loads(entries.communicate(timeout=60)[0]))
    assert sum(each[0] for each in found) == kernels >= 7
    assert len({each[0] + each[1] for each in found}) == 1


def test_program_runs_from_the_shell(program: Program) -> None:
    """`numba-kcache run`: the second time CuPy's kernels are hits."""
    words = ("-m", "numba_kcache", "run", str(program.folder / "program.py"), str(program.folder))
    for _ in range(2):
        done = program.start(*words)
        assert done.wait(300) == 0, done.communicate()[1]
    listed = program.start("-m", "numba_kcache", "info", "--json")
    info = json.loads(listed.communicate(timeout=60)[0])

    assert info["hits"] >= info["misses"] - 2 >= 7  # the kernel that does not compile is a miss each time
    assert info["errors"] == 0
