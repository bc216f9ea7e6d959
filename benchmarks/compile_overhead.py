"""How much more CPU time does a compile take here than NVRTC takes alone, over many sources?

Method      The sources are all texts in tests/, examples/, docs/ and benchmarks/ with a `__global__` that NVRTC
            compiles unchanged, each once; with `--sources`, the .cu files of a folder. They are divided among
            processes, one per core. After a warm-up of both, each process compiles each source by NVRTC alone to a
            cubin, and by `cached_module`, in alternating order, in several rounds with an empty cache. The figure is
            the smallest CPU time of all threads. "NVRTC alone" creates the program, compiles it for the same
            architecture and headers without NVRTC's own cache, and copies the cubin. "cached_module" includes
            decoration, key, look-up, the reasons of the miss, compile, prototypes, entry, manifest and history on disk.
Output      Ratios of the two: median, 90th percentile, worst, and the sources beyond a limit. Also, grouped by the
            included headers, the additional milliseconds; most of these do not depend on the source.
Not shown   The first compile of a process, which loads NVRTC and imports modules (added.py measures it).
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from fresh import ROOT

ARCH = "sm_90"


def texts(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Place and text of everything that might be a source: .cu files, strings of Python code, code blocks of pages."""
    if folder is not None:
        yield from ((path.name, path.read_text("utf-8", "replace")) for path in sorted(folder.rglob("*.cu")))
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
"""Kinds of sources, each with a pattern for the beginning of an included header's name; the first match counts."""


def kind_of(text: str) -> str:
    """Find the kind of a source by the headers that it includes; "nothing" if it includes none."""
    names = re.findall(r"^\s*#\s*include\s*[<\"]([^>\"]+)", text, re.MULTILINE)
    return next((kind for kind, begin in KINDS.items() if any(re.match(begin, name) for name in names)), "nothing")


def compile_alone(text: str, flags: list[bytes]) -> int | None:
    """Compile by NVRTC alone; return the size of the cubin in bytes, or None if NVRTC refuses the text."""
    from cuda.bindings import nvrtc

    _, program = nvrtc.nvrtcCreateProgram(text.encode(), b"source.cu", 0, [], [])
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), flags)
    size = 0
    if status == nvrtc.nvrtcResult.NVRTC_SUCCESS:
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        nvrtc.nvrtcGetCUBIN(program, bytearray(size))
    nvrtc.nvrtcDestroyProgram(program)
    return size or None


def measure(sources: dict[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """Least CPU seconds of each source by NVRTC alone and by this package; texts that NVRTC refuses are left out."""
    import numba_kcache
    from numba_kcache import cached_module
    from tests.support.compiling import toolkit_dirs

    flags = [b"--no-cache", f"-arch={ARCH}".encode(), *(f"-I{folder}".encode() for folder in toolkit_dirs())]
    found: dict[str, dict[str, float]] = {}
    for number in range(-1, rounds):
        with tempfile.TemporaryDirectory() as folder:
            cache = numba_kcache.KernelCache(folder)
            for text, location in list(sources.items()):
                least = found.setdefault(location, {"alone": float("inf"), "ours": float("inf")})
                for side in ("alone", "ours") if number % 2 else ("ours", "alone"):
                    gc.collect()
                    begin = time.process_time()
                    try:
                        if side == "ours":
                            cached_module(text, arch=ARCH, cache=cache).compile()
                        elif compile_alone(text, flags) is None:
                            raise ValueError
                    except (ValueError, numba_kcache.KCacheError):  # not a complete source
                        del sources[text], found[location]
                        break
                    if number >= 0:
                        least[side] = min(least[side], time.process_time() - begin)
    return found


def measure_in_processes(arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Divide the sources among processes, each on a core of its own, and collect their figures."""
    cores = sorted(os.sched_getaffinity(0))[: arguments.processes]
    words = [sys.executable, __file__, "--rounds", str(arguments.rounds), "--limit", str(arguments.limit)]
    words += ["--sources", str(arguments.sources)] if arguments.sources else []
    children = [
        subprocess.Popen([*words, "--child", str(index), str(len(cores)), str(core)], stdout=subprocess.PIPE, text=True)
        for index, core in enumerate(cores)
    ]
    found: dict[str, dict[str, float]] = {}
    for child in children:
        found |= json.loads(child.communicate()[0].splitlines()[-1])
    return found


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=100_000, help="sources at most")
    parser.add_argument("--sources", type=Path, help="a folder with .cu files")
    parser.add_argument("--processes", type=int, default=8, help="at most; one to a core")
    parser.add_argument("--child", type=int, nargs=3)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    if arguments.child:
        number, of, core = arguments.child
        os.sched_setaffinity(0, [core])
        pairs = reversed([*texts(arguments.sources)])
        chosen = {text: location for location, text in pairs if "__global__" in text and text.isascii()}
        print(json.dumps(measure(dict([*chosen.items()][: arguments.limit][number::of]), arguments.rounds)))
        return
    from header import machine_header, write_result

    samples = measure_in_processes(arguments)
    kinds = {location: kind_of(text) for location, text in texts(arguments.sources)}
    summary: dict[str, Any] = {**summary_of(samples), "from": arguments.sources.name if arguments.sources else ""}
    summary["kinds"] = {
        kind: summary_of(of_kind)
        for kind in ("nothing", *reversed(KINDS))
        if (of_kind := {location: each for location, each in samples.items() if kinds[location] == kind})
    }
    for name, of in (("all", summary), *summary["kinds"].items()):
        figures = ", ".join(f"{word} {value:.3g}" for word, value in of.items() if isinstance(value, (int, float)))
        print(f"{name}: {figures}")
    ratios = {location: each["ours"] / each["alone"] for location, each in samples.items()}
    for location, ratio in sorted(ratios.items(), key=lambda each: -each[1])[:8]:
        least = samples[location]
        print(f"{ratio:6.2f} {least['alone'] * 1e3:8.1f} {least['ours'] * 1e3:8.1f} ms  {location}")
    if arguments.json:
        write_result(arguments.json, "compile_overhead", machine_header(), samples, summary=summary)


if __name__ == "__main__":
    main()
