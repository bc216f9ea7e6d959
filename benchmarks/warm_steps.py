"""How long do import, decoration, first launch and exit take, cold and warm, compared with a bare cubin?

Method      Each sample is a fresh process with one kernel of one source, launched once and checked, or 31 kernels of
            one source, or one reduction of cuda.compute; samples of the systems alternate. Consecutive parts of a
            process: "python" (from its start by the parent to the first statement), "packages" (cuda.bindings, NumPy,
            Numba, CuPy), "import" of this package, "decoration", "arrays" (context and two arrays), "first" (launch and
            wait), "result" (copied back and checked), "exit" (exit handlers of the interpreter), "end" (until the
            parent sees its end), and "all". "sum" is import, decoration, first and exit: the work for the kernel, in
            whichever part it is done. The bare systems read a cubin from a file, load it, find the function, pack and
            launch, without checks: through cuda.bindings, and through Numba's driver layer, which this package must use
            in programs with Numba. Cold: an empty cache. Bytecode is compiled before, as pip does; CUDA_CACHE_DISABLE=1
            turns the driver's own cache off.
Not shown   A cold page cache, a busy node, a network file system; large kernels.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import programs
from harness import Arguments, Folders, Result, run
from programs import Program

MANY = 31
SUM = ("import", "decoration", "first", "exit")
"""The parts of a process that a cache adds or can shorten."""

SYSTEMS = {
    "numba_kcache, CUDA C++": Program("driver", programs.ours),
    "bare cuda.bindings, a cubin from a file": Program("driver", programs.bare),
    "numba_kcache, CUDA C++ with cuda_fp16.h": Program("driver", programs.ours, header="cuda_fp16.h"),
    f"numba_kcache, {MANY} kernels of a module": Program("driver", programs.our_module, MANY),
    "numba_kcache, CUDA C++ on CuPy arrays": Program("cupy", programs.ours),
    "numba_kcache, CUDA C++ on PyTorch tensors": Program("torch", programs.ours),
    "numba_kcache, CUDA C++ on Numba arrays": Program("numba", programs.ours),
    "numba_kcache, Numba kernel": Program("numba", programs.our_functions),
    "numba_kcache.install()": Program("numba", programs.installed),
    "bare Numba driver layer, a cubin from a file": Program("numba", programs.bare_numba),
    "numba_kcache, numba-cuda-mlir kernel": Program("mlir", programs.our_mlir),
    "numba_kcache, cuda.compute reduction": Program("compute", programs.reduction),
    "CuPy RawKernel": Program("cupy", programs.cupy_kernels),
}
WITH_COMPILERS = ("cupy", "torch", "mlir", "compute")
"""Libraries that may map a compiler themselves: in their processes a mapped one does not show that we compiled."""


def sample(result: Result, system: str, folder: Path) -> dict[str, Any] | None:
    """The parts of one fresh process, and whether it mapped a compiler; None if it failed."""
    start = time.time()
    found = result.take(system, system, repr(start), folder=folder)
    if found:
        parts: dict[str, float] = found["parts"]
        parts["sum"] = sum(parts.get(name, 0.0) for name in SUM)
        parts["all"] = time.time() - start
        parts["end"] = parts["all"] - found["result"]
    return found  # type: ignore[no-any-return]


def measure(result: Result, arguments: Arguments) -> None:
    with Folders() as folders:
        result.take("the cubin of the bare systems", "cubin", folder=folders("warm"))
        for number in result.rounds(arguments.rounds, fills=1):
            for system, program in SYSTEMS.items():
                states = {"warm": folders("warm")}
                if 0 <= number < max(1, arguments.rounds // 3) and not system.startswith("bare"):
                    states["cold"] = folders(number, system)
                for state, folder in states.items():
                    found = sample(result, system, folder)
                    if found and number >= 0:
                        is_known = system.startswith("numba_kcache") and program.library not in WITH_COMPILERS
                        assert not is_known or found["compiled"] is (state == "cold"), (system, state, found)
                        result.add(system, state, **found["parts"])


def child(system: str, started: str = "") -> None:
    if started:
        programs.child(SYSTEMS[system], float(started))
    else:
        programs.write_cubin()


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(7, 2))
