"""A Numba kernel with code in three files: an edit of a constant in the third file compiles it again.

program.py has the kernel, forces.py the device functions that it calls, units.py the constants that those read. Four
processes share a cache, and before the third and the fourth a copy of units.py is edited. With a GPU the kernel runs
and is checked against NumPy. Without one it is compiled for sm_90 and stored, and the script prints that launches are
skipped. Run it: `python examples/numba_program/program.py`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import forces
import numpy as np
import units
from numba import cuda

from numba_kcache import cached_kernel

STEPS = (
    ("first process", "0.25"),
    ("second process", "0.25"),
    ("edited constant", "0.5"),
    ("constant as it was", "0.25"),
)


@cached_kernel(signature="void(float64[::1], float64[::1], float64[::1])")
def pull_all(x, mass, out):
    """For each body, add up the pulls of all bodies on it, in one dimension."""
    i = cuda.grid(1)
    if i < x.size:
        sum_ = 0.0
        for j in range(x.size):
            sum_ += forces.pull(x[j] - x[i], mass[j])
        out[i] = sum_


def launch_and_check() -> None:
    """Run the kernel on the device and compare its results with NumPy."""
    random = np.random.default_rng(1)
    x, mass = random.random(515), random.random(515)
    out = cuda.device_array_like(x)
    pull_all.forall(x.size)(cuda.to_device(x), cuda.to_device(mass), out)
    distances = x[None, :] - x[:, None]
    wanted = units.GRAVITY * mass * distances / (distances**2 + units.SOFTENING**2) ** 1.5
    np.testing.assert_allclose(out.copy_to_host(), wanted.sum(axis=1), rtol=1e-9)


def one_process(step: str) -> None:
    """Use the kernel with the constants as they are now."""
    import two_processes

    info = two_processes.one_process(step, launch_and_check, [pull_all])
    assert info.compiles == (step in ("first process", "edited constant")), "it compiles what is new, and nothing else"


def four_processes() -> None:
    """Run a copy of this program four times."""
    here = Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as directory:
        program = Path(shutil.copytree(here, f"{directory}/program", ignore=shutil.ignore_patterns("__pycache__")))
        path = os.pathsep.join(filter(None, [str(here.parent), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "NUMBA_KCACHE_DIR": f"{directory}/cache", "PYTHONPATH": path}
        for step, softening in STEPS:
            (program / "units.py").write_text((here / "units.py").read_text().replace("0.25", softening))
            subprocess.run([sys.executable, str(program / "program.py"), step], env=environment, check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        one_process(sys.argv[1])
    else:
        four_processes()
