"""cuda.compute on a real device: built once, then hits in new processes; right results, and no stale code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cuda.compute")
pytest.importorskip("cupy")
pytestmark = pytest.mark.gpu

PROGRAM = """
import json, sys
import cupy, numpy as np
from cuda import compute
import numba_kcache

numba_kcache.install(cuda_compute=True)
asked = json.loads(sys.argv[1])
dtype, operator = asked.get("dtype", "float32"), asked.get("operator", "PLUS")
x = cupy.asarray(np.random.default_rng(0).integers(0, 100, 5000).astype(dtype))
host, out = cupy.asnumpy(x), cupy.empty_like(x)
zero = np.zeros(1, dtype)
op = {"PLUS": compute.OpKind.PLUS, "MAXIMUM": compute.OpKind.MAXIMUM}.get(operator)
if op is None:
    op = eval(operator)

one = cupy.empty(1, dtype)
compute.reduce_into(d_in=x, d_out=one, num_items=x.size, op=op, h_init=zero)
expected = {"PLUS": host.sum(dtype=dtype), "MAXIMUM": host.max()}.get(operator)
if expected is None:
    expected = eval(asked["expected"])
assert np.isclose(float(one[0]), float(expected)), (one, expected)
if operator == "PLUS":
    compute.exclusive_scan(d_in=x, d_out=out, op=op, init_value=zero, num_items=x.size)
    np.testing.assert_allclose(cupy.asnumpy(out)[1:], np.cumsum(host, dtype=dtype)[:-1], rtol=1e-4)
    compute.radix_sort(d_in_keys=x, d_out_keys=out, d_in_values=None, d_out_values=None,
                       num_items=x.size, order=compute.SortOrder.ASCENDING)
    np.testing.assert_array_equal(cupy.asnumpy(out), np.sort(host))
    compute.unary_transform(d_in=x, d_out=out, num_items=x.size, op=compute.OpKind.NEGATE)
    np.testing.assert_array_equal(cupy.asnumpy(out), -host)
counts = numba_kcache.info("process")
print(json.dumps([counts.misses, counts.hits, counts.errors, "numba_cuda_mlir" in sys.modules]))
"""


def said(tmp_path: Path, **asked: Any) -> list[Any]:
    """Misses, hits and errors of a new process, and whether it loaded the compiler of Python operators."""
    (tmp_path / "program.py").write_text(PROGRAM)
    root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}
    command = [sys.executable, str(tmp_path / "program.py"), json.dumps(asked)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_fresh_process_is_served_what_another_built(tmp_path: Path) -> None:
    """Reduction, scan, radix sort and transform: four builds, then four hits, each with right results."""
    assert said(tmp_path) == [4, 0, 0, False]
    assert said(tmp_path) == [0, 4, 0, False]


def test_other_operator_or_dtype_is_built_again(tmp_path: Path) -> None:
    """The new result is right, and the first entry is still served."""
    said(tmp_path, operator="MAXIMUM")

    assert said(tmp_path, operator="MAXIMUM", dtype="int64")[:2] == [1, 0]
    assert said(tmp_path, operator="MAXIMUM", dtype="float64")[:2] == [1, 0]
    assert said(tmp_path, operator="MAXIMUM")[:2] == [0, 1]


def test_python_operator_counts_by_its_code(tmp_path: Path) -> None:
    """Equal code is served without its compiler; code with another constant is built."""
    pytest.importorskip("numba_cuda_mlir")
    less = {"operator": "lambda a, b: a if a > b else b", "expected": "host.max()"}
    other = {"operator": "lambda a, b: a if a + 0 > b else b", "expected": "host.max()"}

    assert said(tmp_path, **less)[:3] == [1, 0, 0]
    assert said(tmp_path, **less) == [0, 1, 0, False]
    assert said(tmp_path, **other)[:3] == [1, 0, 0]


def test_device_is_served_what_was_built_ahead_of_time(tmp_path: Path) -> None:
    """Without a device, for several compute capabilities, of placeholders."""
    ahead = """
import numpy as np, numba_kcache
from cuda import compute
from numba_kcache.adapters.cuda_compute import cached

zero, x = np.zeros(1, np.float32), compute.ProxyArray(np.float32)
with cached():
    compute.make_reduce_into(d_in=x, d_out=x, op=compute.OpKind.MAXIMUM, h_init=zero, compute_capability=[80, 90])
"""
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": ""}
    subprocess.run([sys.executable, "-c", ahead], env=environment, check=True, cwd=Path(__file__).resolve().parents[2])

    assert said(tmp_path, operator="MAXIMUM")[:3] == [0, 1, 0]
