"""Real source, the compiler's own prototype, the real bindings: the bytes that reach the driver, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.echo import CASES
from tests.support.fake_driver import build, environment, needs_fake_driver, read_log, run

pytestmark = [needs_fake_driver, pytest.mark.slow]

CHILD = """
import sys
from numba import cuda
from numba_kcache import KernelCache, cached_kernel
from tests.support.echo import CASES, source

cache, out = KernelCache(sys.argv[1]), cuda.device_array(4096, "u1")
first = list({case.c_type: case for case in CASES}.values())
everything = cached_kernel(source(*first), cache=cache)
for _ in range(4):
    everything[1, 1](*[case.argument for case in first], out)
"""


def test_every_kind_of_parameter_reaches_the_driver_as_cxx_holds_it(tmp_path: Path) -> None:
    """One kernel has parameters of all kinds; interpreted and compiled launches pass the same bytes."""
    log = tmp_path / "log"

    run(["-W", "ignore", "-c", CHILD, str(tmp_path / "cache")], env=environment(build(), log=log))

    expected = [case.expected.hex() for case in {case.c_type: case for case in CASES}.values()]
    launches = read_log(log, "launch")
    assert len(launches) > 2
    assert [each["parameters"][:-1] for each in launches] == [expected] * len(launches)
