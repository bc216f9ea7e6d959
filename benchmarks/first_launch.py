"""How long does a fresh process take to the results of its first kernels, cold and warm, and in which of its parts?

Method      Each sample is a fresh process that runs every kernel once, one after another, and checks the last result.
            "first" starts after imports, decoration and context creation, and ends when all results are synchronised;
            "process" is the whole process. Cold: the system's cache is empty. Warm: an earlier process filled it.
            Samples of the systems alternate, one process at a time; cold ones of several kernels or of parts with Numba
            kernels alone run in parallel. `ROWS` has the numbers of samples: of programs whose imports take seconds
            one cold and half of the warm ones, with `--quick` one, and no row of 300 kernels.
            numba_kcache runs on raw memory with `__cuda_array_interface__`, and on arrays of CuPy and Numba. "module"
            and RawModule have all kernels in one source. Numba and Triton read their kernels from a file.
            torch.cuda._compile_kernel stores nothing on disk: its warm start is a cold one.
            `--part numba_first_launch`: Numba kernels. "launch" is the median over 41 batches of 300 asynchronous
            launches with two arrays and two scalars, in further processes. `--part mlir`: the same for numba-cuda-mlir,
            for a kernel with a device function and launches with the arrays of each installed library. "stand-in"
            imports `cuda` of numba_kcache.mlir, on driver memory.
            `--part warm_steps`: the parts of a process with one kernel, 31 kernels of one source, or a reduction of
            cuda.compute: "python" (until the program begins), "packages" (cuda.bindings, NumPy, Numba, CuPy),
            "import" of this package, "decoration", "arrays" (context and two arrays), "first" (launch and wait),
            "result" (copied back and checked), "exit" (exit handlers), "end" (until the parent sees it), and "all".
            "sum" is import, decoration, first and exit: the work for the kernel, in whichever part it is done. Bare
            systems load a cubin, pack and launch without checks, through cuda.bindings or Numba's driver layer, which
            this package must use in programs with Numba.
            `--part modules`: kernels with equal parameters, warm, each launched once, in `--rounds` processes. One of
            CuPy's has filled the arrays, so that NVRTC is loaded before. "all": from the request of the first kernel to
            the end of the last launch, after imports; "further": the median of those from the third on.
Not shown   A cold page cache, a busy node, a network file system; large headers (workloads.py has CUB). Systems that
            are not installed are listed in the result.
Not shown of numba_first_launch   Host arrays, which both systems pass to the same code; a busy node.
Not shown of warm_steps   A cold page cache, a busy node, a network file system; large kernels.
Not shown of modules   A cold page cache, a busy node; sources whose compile time is spent in headers.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import programs
from harness import AT_ONCE, Arguments, Result, alternated, run, say, temporary_folders
from programs import LIBRARIES, Library, N, Program, System

HEADER = "cuda_fp16.h"
ALL, FEW, CPP = 10**6, 31, ("", HEADER)
SYSTEMS: dict[str, tuple[str, System, int, tuple[str, ...]]] = {
    "numba_kcache": ("driver", programs.our_texts, ALL, CPP),
    "numba_kcache, CuPy arrays": ("cupy", programs.our_texts, ALL, CPP),
    "numba_kcache, Numba arrays": ("numba", programs.our_texts, ALL, CPP),
    "numba_kcache, module": ("driver", programs.our_module, ALL, CPP),
    "numba_kcache, Numba kernel": ("numba", programs.our_functions, FEW, ("",)),
    "cupy RawKernel": ("cupy", programs.cupy_kernels, ALL, CPP),
    "cupy RawModule": ("cupy", programs.cupy_module, ALL, CPP),
    "cuda.core FileStreamProgramCache": ("driver", programs.cuda_core, ALL, CPP),
    "Numba cache=True": ("numba", programs.numba_kernels, FEW, ("",)),
    "Triton": ("torch", programs.triton_kernels, FEW, ("",)),
    "torch _compile_kernel": ("torch", programs.torch_kernels, FEW, CPP),
}
"""The library of a system's arrays; what makes its kernels; the largest number of kernels: more take too long; and the
headers that its kernels can include."""


def saxpy_of(cuda: Any) -> Any:
    """Kernel 1 with a device function."""

    @cuda.jit(device=True)  # type: ignore[misc]
    def scaled(a, x):  # type: ignore[no-untyped-def]
        return a * x

    def saxpy(a, x, y, n):  # type: ignore[no-untyped-def]
        i = cuda.grid(1)
        if i < n:
            y[i] = scaled(a, x[i]) + 1

    return saxpy


STEPS = {
    "numba_kcache, CUDA C++": Program("driver", programs.ours),
    "bare cuda.bindings, a cubin from a file": Program("driver", programs.bare),
    "numba_kcache, CUDA C++ with cuda_fp16.h": Program("driver", programs.ours, header=HEADER),
    "numba_kcache, 31 kernels of a module": Program("driver", programs.our_module, 31),
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
SUM = ("import", "decoration", "first", "exit")
"""The parts of a process that a cache adds or can shorten."""


class Row(NamedTuple):
    """A program, the names of its samples in the result, and the number of samples of each state."""

    program: Program
    path: tuple[str, ...]
    counts: dict[str, int]


def rows(systems: Mapping[str, Program], cold: int, warm: int, launches: int = 0, case: str = "") -> dict[str, Row]:
    """A row for each system, with these numbers of samples."""
    found = {}
    for system, program in systems.items():
        counts = {"cold": cold, "warm": warm, "launches": launches}
        if program.library == "torch" or (program.library == "mlir" and not launches):  # their imports take seconds
            counts = {"cold": 1, "warm": warm // 2}
        if system == "numba-cuda-mlir":  # it has no cache
            counts["warm"] = 0
        path = (case, system) if case else (system,)
        found[", ".join(reversed(path))] = Row(program, path, counts)
    return found


def of_case(kernels: int, header: str, cold: int, warm: int) -> dict[str, Row]:
    """A row for each system that can run this number of kernels with this header."""
    able = {
        name: Program(library, system, kernels, header)
        for name, (library, system, most, headers) in SYSTEMS.items()
        if kernels <= most and header in headers
    }
    return rows(able, cold, warm, case=", ".join(filter(None, (f"{kernels}", header))))


ROWS = {
    "first_launch": {
        **of_case(1, "", 3, 5), **of_case(31, "", 1, 2), **of_case(300, "", 1, 2), **of_case(1, HEADER, 1, 3),
        **of_case(31, HEADER, 1, 2), **of_case(300, HEADER, 1, 1),
    },
    "numba_first_launch": rows({
        "numba_kcache": Program("numba", programs.our_functions),
        "numba_kcache.install()": Program("numba", programs.installed),
        "Numba cache=True": Program("numba", programs.numba_kernels),
    }, 4, 5, launches=2),
    "mlir": rows({
        name: Program(library, programs.python_kernels(how, module, saxpy_of))
        for name, how, library, module in (
            ("numba_kcache", "ours", "mlir", "numba_cuda_mlir"),
            ("numba_kcache.install()", "installed", "mlir", "numba_cuda_mlir"),
            ("numba_kcache, stand-in", "jit", "driver", "numba_kcache.mlir"),
            ("numba-cuda-mlir cache=True", "cache", "mlir", "numba_cuda_mlir"),
            ("numba-cuda-mlir", "jit", "mlir", "numba_cuda_mlir"),
        )
    }, 3, 3, launches=1),
    "warm_steps": rows(STEPS, 2, 4),
}  # fmt: skip
"""The rows of each part of this script."""

LAUNCHES = {
    "numba_first_launch": {"launch": "own"},
    "mlir": {"launch own": "own", "launch cupy": "cupy", "launch torch": "torch"},
}
"""The figures of later launches, with the library of their arrays ("own": those of the first launch)."""


def child(row: str, state: str, part: str) -> None:
    """Run the program of a row; for "launches" print the seconds of a later launch too, with each library's arrays."""

    def later(launches: list[programs.Launch], library: Library, *own: Any) -> dict[str, float]:
        found = {}
        for figure, name in LAUNCHES[part].items():
            try:
                x, y = own if name == "own" else (LIBRARIES[name]().ones(N) for _ in range(2))
                launch = partial(launches[0], 2.0, x, y, N)
                for _ in range(20):
                    launch()
                times = []
                for _ in range(41):
                    library.wait()
                    start = time.perf_counter()
                    for _ in range(300):
                        launch()
                    times.append((time.perf_counter() - start) / 300)
                found[figure] = median(times)
            except Exception as error:  # not installed, or numba-cuda-mlir refuses its arrays
                print(f"{figure}: {error}")
        return found

    programs.child(ROWS[part][row].program, *[later] * (state == "launches"))


def measure(result: Result, arguments: Arguments) -> None:
    """In each round fill empty caches, and then read those of the first round, as often as each row asks."""
    most = 1 if arguments.quick else ALL
    chosen = {
        name: row for name, row in ROWS[arguments.part].items() if row.program.count <= FEW or not arguments.quick
    }
    many = [name for name, row in chosen.items() if row.program.count > 1 or arguments.part in LAUNCHES]
    many.sort(key=lambda name: -chosen[name].program.count)
    for row in chosen.values():
        result.samples[row.path[0]] = {}  # the order of the tables: cold ones of most kernels are measured first

    def take(names: Iterable[str], state: str, number: int, at_once: int = 1) -> None:
        now = [name for name in names if number < min(most, chosen[name].counts.get(state, 0))]
        folder = partial(folders, number if state == "cold" else 0)
        words = {name: (name, state) for name in alternated(now, number)}
        for name, found in result.take_all(words, folder, at_once):
            keep(result, chosen[name], state, found)

    with temporary_folders() as folders:
        for number in result.rounds(max(row.counts["warm"] for row in chosen.values())):
            take(many, "cold", number, 2 * AT_ONCE)
            take([name for name in chosen if name not in many], "cold", number)
            take(chosen, "warm", number)
            take(chosen, "launches", number)


def keep(result: Result, row: Row, state: str, found: Mapping[str, Any]) -> None:
    """Add the figures of a process to the result."""
    system, parts = row.path[-1], found["parts"]
    assert state != "warm" or not (system.startswith("numba_kcache") and found["is_cold"]), system
    if state == "launches":
        result.add(*row.path, **found["later"])
    elif result.question != "warm_steps":
        result.add(*row.path, prefix=f"{state} ", first=parts["first"], process=found["process"])
    elif state == "warm" or not system.startswith("bare"):  # the first of the bare processes compiles their cubin
        parts |= {"sum": sum(parts.get(name, 0.0) for name in SUM), "python": found["python"]}
        result.add(*row.path, state, **parts, all=found["process"], end=found["ended"])


MANY = {
    "300 of a module, ours": (300, programs.our_module), "300 of a module, cupy": (300, programs.cupy_module),
    "31 of a module, ours": (31, programs.our_module), "31 of a module, cupy": (31, programs.cupy_module),
    "31 sources, ours": (31, programs.ours), "31 sources, cupy": (31, programs.cupy_kernels),
}  # fmt: skip
"""The number of kernels and the system of each row."""


def launched_once(name: str) -> None:
    """Print the seconds of the first kernel, of a further one and of all, from its request to the end of its launch."""
    from numba_kcache import cached_kernel, cached_module  # noqa: F401 (added.py measures the import)

    (count, system), library = MANY[name], LIBRARIES["cupy"]()
    x, y = library.ones(N), library.ones(N)
    ends, kept = [time.perf_counter()], []
    for launch in system(range(1, count + 1), ""):
        launch(2.0, x, y, N)
        ends.append(time.perf_counter())
        kept.append(launch)  # a program keeps its kernels too
    each = [after - before for before, after in itertools.pairwise(ends)]
    say(all=sum(each), first=each[0], further=median(each[2:]))


def measure_modules(result: Result, arguments: Arguments) -> None:
    with temporary_folders() as folders:
        for name, found in result.sampled({name: [name] for name in MANY}, lambda _: folders(), arguments.rounds):
            result.add(name, **{figure: found[figure] for figure in ("all", "first", "further", "process")})


if __name__ == "__main__":
    parts = {part: (measure, partial(child, part=part)) for part in ROWS}
    run(__doc__, {**parts, "modules": (measure_modules, launched_once)}, rounds=(5, 3))
