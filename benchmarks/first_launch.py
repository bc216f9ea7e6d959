"""How long does a fresh process take to the results of 1, 31 and 300 cached kernels, cold and warm?

Method      Each sample is a fresh process that runs every kernel once, one after another, and checks the last result.
            "first" starts after imports, decoration and context creation, and ends when all results are synchronised.
            "process" is the whole process. A system is this package, or another one with its own cache. Cold: that
            cache is empty. Warm: an earlier process filled it. numba_kcache runs on raw memory with
            `__cuda_array_interface__` and on CuPy's arrays, without Numba, and on Numba's arrays. "module" and
            RawModule have all kernels in one source. With a header, the source includes and uses cuda_fp16.h (CUDA C++
            only). Numba and Triton read their kernels from a file with as many functions. torch.cuda._compile_kernel
            stores nothing on disk, so its warm start is a cold one. Bytecode is compiled before, as pip does; the
            driver's own cache is off. Samples of the systems alternate, one process at a time. Cold samples of many
            kernels run in parallel, one process per system, if there are enough cores.
Not shown   A cold page cache, a busy node, a network file system; large headers (workloads.py has CUB). Systems that
            are not installed, or not measured for a number of kernels, are listed in the result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import programs
from harness import Arguments, Folders, Result, compiles, fresh, is_pretended, rounds, run, say
from programs import Program, System

HEADER = "cuda_fp16.h"
ALL = 10**6


class Row(NamedTuple):
    """A system of the table.

    Args:
        library: The library of its arrays.
        system: Makes its kernels.
        most: The largest number of kernels that is measured: more take a minute or longer.
        with_header: Whether its kernels can include a header.
        quick: `most` with `--quick`, as far as it is smaller.
    """

    library: str
    system: System
    most: int = ALL
    with_header: bool = True
    quick: int = ALL


SYSTEMS = {
    "numba_kcache": Row("driver", programs.our_texts),
    "numba_kcache, CuPy arrays": Row("cupy", programs.our_texts, quick=1),
    "numba_kcache, Numba arrays": Row("numba", programs.our_texts, quick=1),
    "numba_kcache, module": Row("driver", programs.our_module),
    "numba_kcache, Numba kernel": Row("numba", programs.our_functions, 31, False, 1),
    "cupy RawKernel": Row("cupy", programs.cupy_kernels),
    "cupy RawModule": Row("cupy", programs.cupy_module),
    "cuda.core FileStreamProgramCache": Row("driver", programs.cuda_core, quick=31),
    "Numba cache=True": Row("numba", programs.numba_kernels, 31, False, 1),
    "Triton": Row("torch", programs.triton_kernels, 31, False, 1),
    "torch _compile_kernel": Row("torch", programs.torch_kernels, 31, quick=1),
}


class Case(NamedTuple):
    """The number of kernels and their header, and the numbers of cold and warm samples, usually and with `--quick`."""

    kernels: int
    header: str
    cold: tuple[int, int]
    warm: tuple[int, int]

    @property
    def name(self) -> str:
        return f"{self.kernels}, {self.header}" if self.header else f"{self.kernels}"


CASES = (
    Case(1, "", (5, 1), (9, 3)), Case(31, "", (1, 1), (5, 2)), Case(300, "", (1, 1), (3, 2)),
    Case(1, HEADER, (3, 1), (7, 3)), Case(31, HEADER, (1, 1), (3, 2)), Case(300, HEADER, (1, 0), (3, 0)),
)  # fmt: skip


def child(system: str, kernels: str, header: str = "") -> None:
    """Measure one system."""
    row, ends = SYSTEMS[system], dict[str, float]()
    program = Program(row.library, row.system, int(kernels), header)
    program.run(lambda part: ends.setdefault(part, time.perf_counter()))
    is_ours = system.startswith("numba_kcache")
    say(first=ends["first"] - ends["arrays"], **({"compiles": compiles()} if is_ours else {}))


def take(result: Result, case: Case, system: str, found: dict[str, Any] | str, state: str) -> None:
    """Keep the answer of a process, or the reason of its failure."""
    if isinstance(found, str):
        result.leave_out(system if "No module named" in found else f"{system}, {case.name}", found)
        return
    if system.startswith("numba_kcache"):
        assert (found["compiles"] > 0) == (state == "cold"), (system, state, found)
    result.add(case.name, system, prefix=f"{state} ", first=found["first"], process=found["process"])


def measure_case(result: Result, case: Case, systems: Sequence[str], is_quick: bool, within_s: float) -> None:
    """Collect the samples of one case: each round fills empty caches, then reads them."""
    at_once = (os.cpu_count() or 1) if case.kernels > 1 and not is_pretended() else 1
    cold = case.cold[is_quick]
    for number in rounds(cold, within_s):
        with Folders() as folders, ThreadPoolExecutor(at_once) as pool:

            def able() -> list[str]:
                return [each for each in systems if not {each, f"{each}, {case.name}"} & {*result.left_out}]

            def ask(system: str, folders: Folders = folders) -> dict[str, Any] | str:
                words = [__file__, "--child", system, case.kernels, *filter(None, [case.header])]
                return fresh(words, folders(system))

            for system, found in zip(able(), pool.map(ask, able()), strict=True):
                take(result, case, system, found, "cold")
            for _ in range(number, case.warm[is_quick], cold):
                for system in able():
                    take(result, case, system, ask(system), "warm")


def measure(result: Result, arguments: Arguments) -> None:
    for case in CASES:
        if not case.cold[arguments.quick] or f"{case.kernels}" not in arguments.kernels.split(","):
            continue
        able = {system: row for system, row in SYSTEMS.items() if row.with_header or not case.header}
        systems = [
            system for system, row in able.items()
            if case.kernels <= (min(row.quick, row.most) if arguments.quick else row.most)
        ]  # fmt: skip
        if skipped := [system for system in able if system not in systems]:
            result.left_out[case.name] = f"not asked in this turn: {', '.join(skipped)}"
        measure_case(result, case, systems, arguments.quick, arguments.within / len(CASES))


if __name__ == "__main__":
    run(__doc__, measure, child, kernels="1,31,300")
