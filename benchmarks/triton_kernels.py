"""How long does a fresh process wait for the first launch of a Triton kernel, with Triton's directory and this cache?

Method      Two kernels are launched one after the other in a fresh process that has imported Triton and PyTorch and
            made its arrays. "own": Triton's own filled directory. "cache": `TRITON_CACHE_MANAGER` names this cache's
            manager, and the cache is filled. Triton's launcher is built before in both cases. Medians; the results are
            checked. "ranks": eight processes start at once on an empty cache; the figure is the number of compiles in
            all of them together.
Not shown   Imports, which precede the measurement; the digest of Triton's own files in the first launch, with both.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any

from harness import Arguments, Folders, Result, ranks, run, say

WAYS = {"own": {}, "cache": {"TRITON_CACHE_MANAGER": "numba_kcache.adapters.triton:CacheManager"}}
COUNTS = ("misses", "hits", "errors")
RANKS = 8


def child(_way: str) -> None:
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
    say(first_ms=times[0], second_ms=times[1], **{name: getattr(counts, name) for name in COUNTS})


def measure(result: Result, arguments: Arguments) -> None:
    found: dict[str, Any] = {}
    for way, more in WAYS.items():
        with Folders() as folders:
            answers = [result.take(way, way, folder=folders(), more=more) for _ in range(arguments.samples + 1)]
        if None in answers:
            found[way] = result.left_out[way]
        else:
            cold, *warm = answers
            names = ("first_ms", "second_ms", *COUNTS)
            found[way] = {name: round(median(each[name] for each in warm), 3) for name in names}
            found[way]["cold_ms"] = round(cold["first_ms"] + cold["second_ms"], 1)
        print(way, found[way], flush=True)
        result.write(found=found)
    with Folders() as folders:
        at_once = ranks([([__file__, "--child", "cache"], folders())] * RANKS, WAYS["cache"])
    if isinstance(at_once, dict):
        at_once = {name: sum(each[name] for each in at_once["answers"]) for name in COUNTS}
    found["ranks"] = at_once
    result.write(found=found)
    print("ranks", at_once, flush=True)


if __name__ == "__main__":
    run(__doc__, measure, child, samples=(7, 3))
