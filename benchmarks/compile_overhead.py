"""How much more CPU time does a compile take here than NVRTC takes alone, over many sources?

Method      The sources are all texts in tests/, examples/, docs/ and benchmarks/ with a `__global__` that NVRTC
            compiles unchanged, each once; with `--sources`, the .cu files of a folder. They are divided among
            processes, one per core. After a warm-up, each process compiles each source by NVRTC alone to a cubin, and
            by `cached_module`, in alternating order, in several rounds with an empty cache. The figure is the smallest
            CPU time of all threads. "cached_module" includes decoration, key, look-up, compile, prototypes, and all
            that is stored.
Output      Ratios of the two. Also, grouped by the included headers, the additional milliseconds.
Not shown   The first compile of a process, which loads NVRTC and imports modules (added.py measures it).
"""

from __future__ import annotations

import ast
import gc
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from harness import ROOT, Arguments, Result, answer, run, say, start, temporary_folders

ARCH = "sm_90"


def texts(folder: str) -> Iterator[tuple[str, str]]:
    """Place and text of everything that might be a source: .cu files, strings of Python code, code blocks of pages."""
    if folder:
        yield from ((path.name, path.read_text("utf-8", "replace")) for path in sorted(Path(folder).rglob("*.cu")))
        return
    for part in ("tests", "examples", "docs", "benchmarks"):
        for path in sorted((ROOT / part).rglob("*")):
            location = path.relative_to(ROOT).as_posix()
            if path.suffix == ".cu":
                yield location, path.read_text()
            elif path.suffix == ".py":
                for node in ast.walk(ast.parse(path.read_text())):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        yield f"{location}:{node.lineno}", node.value
            elif path.suffix == ".md":
                blocks = path.read_text().split("```")[1::2]
                yield from ((location, block.partition("\n")[2]) for block in blocks)


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


def child(number: str, of: str, core: str, rounds: str, limit: str, end_s: str, folder: str = "") -> None:
    """Print the least CPU seconds of every `of`-th source, on one core, by NVRTC alone and by this package.

    Texts that NVRTC refuses are left out.
    """
    import numba_kcache
    from numba_kcache import cached_module
    from tests.support.compiling import toolkit_dirs

    os.sched_setaffinity(0, [int(core)])
    pairs = reversed([*texts(folder)])
    chosen = {text: location for location, text in pairs if "__global__" in text and text.isascii()}
    sources = dict([*chosen.items()][: int(limit)][int(number) :: int(of)])
    flags = [b"--no-cache", f"-arch={ARCH}".encode(), *(f"-I{folder}".encode() for folder in toolkit_dirs())]
    found: dict[str, dict[str, float]] = {}
    for turn in range(-1, int(rounds)):
        if turn > 0 and time.time() > float(end_s):
            break
        with temporary_folders() as folders:
            cache = numba_kcache.KernelCache(folders())
            for text, location in list(sources.items()):
                least = found.setdefault(location, {"alone": float("inf"), "ours": float("inf")})
                for side in ("alone", "ours") if turn % 2 else ("ours", "alone"):
                    gc.collect()
                    begin = time.process_time()
                    try:
                        if side == "ours":
                            cached_module(text, arch=ARCH, cache=cache).compile()
                        else:
                            compile_alone(text, flags)
                    except (ValueError, numba_kcache.KCacheError):  # not a complete source
                        del sources[text], found[location]
                        break
                    if turn >= 0:
                        least[side] = min(least[side], time.process_time() - begin)
    say(**found)


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


def measure(result: Result, arguments: Arguments) -> None:
    cores = sorted(os.sched_getaffinity(0))[: arguments.processes]
    kinds = {}
    for place, text in texts(arguments.sources):
        found = [kind for kind, begin in KINDS.items() if any(re.match(begin, name) for name in INCLUDE.findall(text))]
        kinds[place] = [*found, "nothing"][0]
    with temporary_folders() as folders:
        half_s = time.time() + result.left_s() / 2  # no round is begun after it
        more = (arguments.rounds, arguments.limit, half_s, *filter(None, [arguments.sources]))
        words = [[sys.argv[0], "--child", index, len(cores), core, *more] for index, core in enumerate(cores)]
        for core, each in zip(cores, [start(each, folders()) for each in words], strict=True):
            found = result.kept(f"sources of core {core}", answer(each, max(1, min(600, result.left_s()))))
            if not found:
                continue
            found.pop("end")
            result.samples |= found
            if not result.samples:  # NVRTC refuses all of them
                continue
            summary: dict[str, Any] = summary_of(result.samples)
            summary["kinds"] = {
                kind: summary_of(of_kind)
                for kind in ("nothing", *reversed(KINDS))
                if (of_kind := {place: each for place, each in result.samples.items() if kinds[place] == kind})
            }
            result.write(summary=summary)


if __name__ == "__main__":
    run(__doc__, measure, child, rounds=(3, 1), limit=(100_000, 40), processes=(8, 8), sources="")
