"""How long does a fresh process wait for the first launch of a Triton kernel, with Triton's directory and this cache?

Method      Two kernels are launched one after the other in a fresh process that has imported Triton and PyTorch and
            made its arrays. "own": Triton's own filled directory. "cache": `TRITON_CACHE_MANAGER` names this cache's
            manager, and the cache is filled. Triton's launcher is built before in both cases. Medians; the results are
            checked. "ranks": eight processes start at once on an empty cache; the figure is the number of compiles in
            all of them together.
Not shown   Imports, which precede the measurement; the digest of Triton's own files in the first launch, with both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

MANAGER = {"TRITON_CACHE_MANAGER": "numba_kcache.adapters.triton:CacheManager"}
RANKS = 8


def child() -> None:
    """Launch two kernels in this process."""
    import torch
    import triton
    import triton.language as tl

    import numba_kcache

    @triton.jit
    def add(x, y, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)

    @triton.jit
    def softmax(x, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
        at = tl.program_id(0) * n + tl.arange(0, BLOCK)
        row = tl.load(x + at)
        top = tl.exp(row - tl.max(row, axis=0))
        tl.store(out + at, top / tl.sum(top, axis=0))

    n = 1024
    x, y = torch.rand(n, n, device="cuda"), torch.rand(n, n, device="cuda")
    out = torch.empty_like(x)
    torch.cuda.synchronize()
    times = []
    for launch, expected in (
        (lambda: add[(n,)](x, y, out, n * n, BLOCK=n), x + y),
        (lambda: softmax[(n,)](x, out, n, BLOCK=n), torch.softmax(x, 1)),
    ):
        torch.cuda.synchronize()
        start = time.perf_counter()
        launch()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) * 1e3)
        assert torch.allclose(out, expected, atol=1e-5)
    counts = numba_kcache.info("process")
    print(json.dumps({"first_ms": times[0], "second_ms": times[1], "misses": counts.misses, "hits": counts.hits,
                      "errors": counts.errors}))  # fmt: skip


def main() -> None:
    from fresh import answer, start
    from header import machine_header, write_json

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks/results/triton_kernels.json")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child()
        return
    words, found, header = [__file__, "--child"], dict[str, Any](), machine_header()
    for way, more in (("own", {}), ("cache", MANAGER)):
        with tempfile.TemporaryDirectory() as folder:
            answers = [answer(start(words, Path(folder), more)) for _ in range(arguments.samples + 1)]
        wrong = [each for each in answers if isinstance(each, str)]
        if wrong:
            found[way] = wrong[0]
            continue
        cold, *warm = answers
        names = ("first_ms", "second_ms", "misses", "hits", "errors")
        found[way] = {name: round(statistics.median(each[name] for each in warm), 3) for name in names}  # type: ignore[index]
        found[way]["cold_ms"] = round(cold["first_ms"] + cold["second_ms"], 1)  # type: ignore[index]
        print(way, found[way], flush=True)
        write_json(arguments.json, {"machine": header, "found": found})
    with tempfile.TemporaryDirectory() as folder:
        ranks = [start(words, Path(folder), MANAGER) for _ in range(RANKS)]
        answers = [answer(each) for each in ranks]
    found["ranks"] = next((each for each in answers if isinstance(each, str)), None) or {
        name: sum(each[name] for each in answers) for name in ("misses", "hits", "errors")  # type: ignore[index]
    }  # fmt: skip
    print("ranks", found["ranks"], flush=True)
    write_json(arguments.json, {"machine": header, "found": found})


if __name__ == "__main__":
    main()
