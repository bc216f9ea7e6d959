"""What does it cost to grow: memory for each loaded kernel, for 10^7 launches, and for 10^4 distinct kernels?

Method      Every part is a fresh process. "loaded": so many kernels, each of its own source, run once and are kept; the
            process's resident memory (VmRSS, after a collection) and the device's (cuMemGetInfo) are taken before and
            after. The floor loads the same cubins by cuModuleLoadData. "launches": one kernel, resident memory after
            each tenth of the launches. "distinct": so many sources, which other processes compiled before, each
            decorated, loaded from the cache, run, and dropped; memory after each tenth, and the seconds of each tenth.
            How many were run stands in the result.
Shows not   10 to 10^5 entries in a store, which store.py measures; kernels that are large; another allocator.
"""

from __future__ import annotations

import argparse
import compileall
import gc
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from first_launch import N, Case, numba_arrays, sources
from fresh import ROOT, answer, fresh, say, start

ENTRIES = 20_000
"""As many as a cache holds by default: `distinct` must not evict what it is about to load."""


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def device_bytes() -> int:
    """Memory of the device in use, by whomever."""
    from cuda.bindings import driver

    _, free, total = driver.cuMemGetInfo()
    return int(total) - int(free)


def per_kernel(load: Callable[[str], object], texts: list[str], synchronize: Callable[[], object]) -> None:
    """Say what each kernel after the first tenth took; all are kept."""
    warm = len(texts) // 10
    kept = [load(text) for text in texts[:warm]]
    synchronize()
    before = resident_bytes(), device_bytes()
    kept += [load(text) for text in texts[warm:]]
    synchronize()
    after = resident_bytes(), device_bytes()
    host, device = ((late - early) / (len(texts) - warm) for early, late in zip(before, after, strict=True))
    say(host_bytes=host, device_bytes=device, kernels=len(kept))


def loaded_here(count: int) -> None:
    from numba_kcache import cached_kernel

    x, y, synchronize = numba_arrays()

    def load(source: str) -> object:
        kernel = cached_kernel(source)
        kernel[N // 256, 256](2.0, x, y, N)
        return kernel

    per_kernel(load, sources(Case(count - 1, False)), synchronize)


def loaded_cupy(count: int) -> None:
    import cupy
    import numpy as np

    x, y = cupy.ones(N, cupy.float32), cupy.ones(N, cupy.float32)
    names = iter(range(count))

    def load(source: str) -> object:
        kernel = cupy.RawKernel(source, f"k{next(names)}", backend="nvrtc")
        kernel((N // 256,), (256,), (np.float32(2.0), x, y, np.int32(N)))
        return kernel

    per_kernel(load, sources(Case(count - 1, False)), cupy.cuda.Device().synchronize)


def loaded_bare(count: int) -> None:
    from ctypes import c_float, c_int, c_void_p

    from cuda.bindings import driver

    from numba_kcache import cached_kernel

    x, y, synchronize = numba_arrays()
    values = 2.0, x.device_ctypes_pointer.value, y.device_ctypes_pointer.value, N
    passed = values, (c_float, c_void_p, c_void_p, c_int)
    cubins = {source: cached_kernel(source).cubin() for source in sources(Case(count - 1, False))}
    names = iter(range(count))

    def load(source: str) -> object:
        _, module = driver.cuModuleLoadData(cubins[source])
        _, function = driver.cuModuleGetFunction(module, f"k{next(names)}".encode())
        driver.cuLaunchKernel(function, N // 256, 1, 1, 256, 1, 1, 0, 0, passed, 0)  # what is lazy is loaded now
        return module

    per_kernel(load, list(cubins), synchronize)


def tenths(
    work: Iterable[Callable[[], object]], count: int, synchronize: Callable[[], object]
) -> Iterator[list[float]]:
    """Seconds and resident bytes after each tenth of the calls."""
    start_s = time.perf_counter()
    for number, call in enumerate(work, 1):
        call()
        if number % 1000 == 0:
            synchronize()
        if number % max(1, count // 10) == 0:
            synchronize()
            spent = time.perf_counter() - start_s
            yield [spent, resident_bytes(), device_bytes()]
            start_s = time.perf_counter()


def launches(count: int) -> None:
    from itertools import repeat

    from numba_kcache import cached_kernel

    x, y, synchronize = numba_arrays()
    launch = cached_kernel(sources(Case(1, False))[0])[1, 32]
    for _ in range(min(count, 10_000)):  # what is made once is made
        launch(2.0, x, y, 32)
    synchronize()
    before = resident_bytes()
    rows = list(tenths(repeat(lambda: launch(2.0, x, y, 32), count), count, synchronize))
    say(count=count, before_bytes=before, tenths=rows)


def distinct(count: int) -> None:
    import numba_kcache
    from numba_kcache import cached_kernel

    x, y, synchronize = numba_arrays()

    def run(source: str) -> None:
        cached_kernel(source)[N // 256, 256](2.0, x, y, N)

    texts = sources(Case(count - 1, False))
    before = resident_bytes()
    rows = list(tenths((lambda text=text: run(text) for text in texts), count, synchronize))
    info = numba_kcache.info("process")
    say(count=count, before_bytes=before, tenths=rows, compiles=info.compiles, hits=info.hits)


def compile_slice(count: int, first: int, step: int) -> None:
    """Every `step`-th source, from the `first` on, for the device that is here."""
    import numba_kcache
    from numba_kcache import cached_kernel

    numba_kcache.configure(durability="none")
    for source in sources(Case(count - 1, False))[first::step]:
        cached_kernel(source).compile()
    say()


PARTS: dict[str, Callable[..., None]] = {
    "loaded, numba_kcache": loaded_here,
    "loaded, cupy RawKernel": loaded_cupy,
    "loaded, cuModuleLoadData": loaded_bare,
    "launches": launches,
    "distinct": distinct,
    "compile": compile_slice,
}


def ask(part: str, count: int, folder: Path) -> dict[str, Any] | str:
    return fresh([__file__, "--child", part, "--numbers", str(count)], folder)


def compile_all(count: int, folder: Path) -> float:
    """Fill the cache by as many processes as there are cores, 16 at most; the seconds it took."""
    begin, step = time.perf_counter(), min(16, os.cpu_count() or 1)
    words = [__file__, "--child", "compile", "--numbers"]
    children = [start([*words, f"{count},{first},{step}"], folder) for first in range(step)]
    answers = [answer(child, 500) for child in children]
    if failed := [each for each in answers if isinstance(each, str)]:
        raise SystemExit(f"compile: {failed[0]}")
    return time.perf_counter() - begin


def measure(kernels: int, calls: int, many: int) -> tuple[dict[str, Any], dict[str, str]]:
    """What each part said, and what could not be asked."""
    samples: dict[str, Any] = {}
    left_out: dict[str, str] = {}
    folder = Path(tempfile.mkdtemp())
    for part in ("loaded, numba_kcache", "loaded, cuModuleLoadData", "loaded, cupy RawKernel"):
        samples[part] = ask(part, kernels, folder)
    samples["launches"] = ask("launches", calls, folder)
    shutil.rmtree(folder)
    folder = Path(tempfile.mkdtemp())
    compile_s = compile_all(many, folder)
    samples["distinct"] = ask("distinct", many, folder)
    if isinstance(samples["distinct"], dict):
        samples["distinct"]["compile_s"] = compile_s
    shutil.rmtree(folder)
    left_out = {part: found for part, found in samples.items() if isinstance(found, str)}
    return {part: found for part, found in samples.items() if part not in left_out}, left_out


def show(samples: dict[str, Any]) -> None:
    for part, found in samples.items():
        if "tenths" in found:
            late, early = found["tenths"][-1], found["tenths"][0]
            grown = (late[1] - early[1]) / 1e6
            print(f"{part}, {found['count']}: {grown:+.2f} MB from the first tenth to the last, {early[0]:.2f} s the "
                  f"first, {late[0]:.2f} s the last")  # fmt: skip
        else:
            print(f"{part}: {found['host_bytes'] / 1e3:.1f} KB of the host and {found['device_bytes'] / 1e3:.1f} KB of "
                  "the device for a kernel")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--child", choices=PARTS)
    parser.add_argument("--numbers", help="of a child")
    parser.add_argument("--kernels", type=int, default=300)
    parser.add_argument("--launches", type=int, default=10_000_000)
    parser.add_argument("--distinct", type=int, default=10_000)
    parser.add_argument("--quick", action="store_true", help="10^6 launches and 2000 distinct kernels")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.child:
        PARTS[arguments.child](*map(int, arguments.numbers.split(",")))
        return
    from header import machine_header, write_result

    compileall.compile_dir(str(ROOT / "numba_kcache"), quiet=2)
    counts = arguments.kernels, arguments.launches, min(arguments.distinct, ENTRIES)
    samples, left_out = measure(*((counts[0], 1_000_000, 2_000) if arguments.quick else counts))
    show(samples)
    for part, why in left_out.items():
        print(f"{part}: {why}", file=sys.stderr)
    if arguments.json:
        write_result(arguments.json, "growth", machine_header(), samples, left_out=left_out)


if __name__ == "__main__":
    main()
