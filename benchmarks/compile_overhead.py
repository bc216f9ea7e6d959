"""How much more CPU time does a compile take here than NVRTC takes alone, over many sources?

Method      The sources are all texts in tests/, examples/ and benchmarks/ with a `__global__` that NVRTC
            compiles unchanged, each once, and a kernel for each of `HEADERS`. They are divided among processes, of
            which one for two cores runs at a time. Each compiles each source by NVRTC alone to a cubin, and by
            `cached_module` with an empty cache, in alternating order, in `--rounds` rounds after one that warms up.
            The figure is the smallest CPU time of all threads. A source that takes more than 3 s is compiled in the
            first round alone. "cached_module" includes decoration, key, look-up, compile, prototypes, and all that is
            stored.
Output      Ratios of the two. Also, grouped by the included headers, the additional milliseconds.
Not shown   The first compile of a process, which loads NVRTC and imports modules (added.py measures it).
"""

from __future__ import annotations

import ast
import gc
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from harness import AT_ONCE, ROOT, Arguments, Result, alternated, run, say, temporary_folders
from programs import text as including

ARCH = "sm_90"
SLOW_S, PARTS = 3.0, 24
HEADERS = (
    "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "mma.h", "cuda_pipeline.h", "cuComplex.h",
    "math_constants.h", "vector_functions.h", "nv/target", "cooperative_groups.h", "cuda/std/array", "cuda/std/complex",
    "cuda/atomic", "cub/warp/warp_reduce.cuh", "cub/block/block_reduce.cuh", "cub/block/block_scan.cuh",
)  # fmt: skip


def texts() -> Iterator[tuple[str, str]]:
    """Place and text of everything that might be a source: kernels with headers, .cu files, strings of Python code."""
    yield from ((f"<{header}>", including(1, header)) for header in HEADERS)
    folders = (ROOT / part for part in ("tests", "examples", "benchmarks"))
    for path in sorted(path for folder in folders for path in folder.rglob("*")):
        location = path.relative_to(ROOT).as_posix()
        if path.suffix == ".cu":
            yield location, path.read_text()
        elif path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield f"{location}:{node.lineno}", node.value


KINDS = {
    "cooperative groups": r"cooperative_groups", "CCCL": r"(?:cub|thrust|cuda|nv)/", "the toolkit": r"",
}  # fmt: skip
"""Kinds of sources, each with a pattern for the beginning of an included header's name; the first match counts, and one
that includes none is of the kind "nothing"."""

INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)", re.MULTILINE)


def compile_alone(text: str, flags: list[bytes]) -> None:
    """Compile by NVRTC alone.

    Raises:
        ValueError: NVRTC refuses the text.
    """
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"source.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    size = 0
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        nvrtc.nvrtcGetCUBIN(program, bytearray(size))
    nvrtc.nvrtcDestroyProgram(program)
    if not size:
        raise ValueError(text)


def child(file: str, rounds: str) -> None:
    """Print the least CPU seconds of every source in a file, by NVRTC alone and by this package.

    Texts that NVRTC refuses are left out.
    """
    from numba_kcache import KCacheError, KernelCache, cached_module
    from tests.support.compiling import EMPTY, toolkit_dirs

    flags = [b"--no-cache", f"-arch={ARCH}".encode(), *(f"-I{folder}".encode() for folder in toolkit_dirs())]
    cache = KernelCache(os.environ["KC_BENCH_DIR"])
    ways: dict[str, Callable[[str], object]] = {
        "alone": lambda text: compile_alone(text, flags),
        "ours": lambda text: cached_module(text, arch=ARCH, cache=cache).compile(),
    }
    for compiled in ways.values():  # loads compilers and modules
        compiled(EMPTY)
    sources: dict[str, str] = json.loads(Path(file).read_text())
    least: dict[str, dict[str, float]] = {}
    for turn in range(int(rounds) + 1):
        with temporary_folders() as folders:
            cache = KernelCache(folders())
            for place, text in list(sources.items()):
                taken = dict[str, float]()
                try:
                    for way in alternated([*ways], turn):
                        gc.collect()
                        begin = time.process_time()
                        ways[way](text)
                        taken[way] = time.process_time() - begin
                except (ValueError, KCacheError):  # not a complete source
                    del sources[place]
                    continue
                is_slow = taken["alone"] > SLOW_S
                if turn or is_slow:
                    before = least.setdefault(place, taken)
                    least[place] = {way: min(before[way], taken[way]) for way in ways}
                if is_slow:
                    del sources[place]
    say(least=least)


def summary_of(samples: dict[str, dict[str, float]]) -> dict[str, float]:
    """Ratios of this package to NVRTC alone."""
    ordered = sorted(each["ours"] / each["alone"] for each in samples.values())
    return {
        "sources": len(ordered), "median": median(ordered), "worst": ordered[-1],
        "90 %": quantiles(ordered, n=10)[-1] if ordered[1:] else ordered[-1],
        "above 1.15": sum(each > 1.15 for each in ordered),
        "all": sum(each["ours"] for each in samples.values()) / sum(each["alone"] for each in samples.values()),
        "alone, ms": median(each["alone"] * 1e3 for each in samples.values()),
        "more, ms": median((each["ours"] - each["alone"]) * 1e3 for each in samples.values()),
    }  # fmt: skip


def kind_of(text: str) -> str:
    included = INCLUDE.findall(text)
    return next((kind for kind, begin in KINDS.items() if any(re.match(begin, name) for name in included)), "nothing")


def measure(result: Result, arguments: Arguments) -> None:
    chosen = {text: place for place, text in reversed([*texts()]) if "__global__" in text and text.isascii()}
    sources = {chosen[text]: text for text in sorted(chosen, key=len, reverse=True)}  # the slowest starts first
    with temporary_folders() as folders:
        words = {}
        for number in range(PARTS):
            file = folders() / f"{number}.json"
            file.write_text(json.dumps(dict([*sources.items()][number::PARTS])))
            words[f"sources of {file.name}"] = (file, arguments.rounds)
        for _, found in result.take_all(words, folders, AT_ONCE):
            result.samples |= found["least"]
            summary: dict[str, Any] = {**summary_of(result.samples), "kinds": {}}
            for kind in ("nothing", *reversed(KINDS)):
                places = [place for place in result.samples if kind_of(sources[place]) == kind]
                if places:
                    summary["kinds"][kind] = summary_of({place: result.samples[place] for place in places})
            result.write(summary=summary)


if __name__ == "__main__":
    run(__doc__, {"compile_overhead": (measure, child)}, rounds=(3, 1))
