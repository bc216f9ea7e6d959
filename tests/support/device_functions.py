"""Programs that name every device function of a Numba, for tests of keys; run as children by test_load_order."""

from __future__ import annotations

START = """
import importlib, json, math, pkgutil, sys, types, warnings
warnings.simplefilter("ignore")
import numpy as np
package, state, directory = sys.argv[1:4]
cuda = importlib.import_module({"numba": "numba.cuda", "numba_cuda_mlir": "numba_cuda_mlir.cuda"}[package])
from numba_kcache import KernelCache, cached_kernel

cache = KernelCache(directory)
names = {"cuda": cuda, "math": math, "np": np, "__name__": "program"}

def made(text):
    exec(text, own := dict(names))
    return cached_kernel(own["k"], cache=cache)

def import_all():
    found = "numba.cuda" if package == "numba" else package
    for each in pkgutil.walk_packages(importlib.import_module(found).__path__, found + "."):
        if not any(word in each.name for word in ("test", "simulator")):
            try:
                importlib.import_module(each.name)
            except Exception:
                pass

if "imported" in state:
    import_all()
if "compiled" in state or "loaded" in state:
    made("def k(x):\\n    x[0] = x[0] + 1\\n").compile("sm_90", "void(float32[::1])")
"""
"""`state` is what the process does first: "fresh", "compiled", "loaded", "imported", also "reversed" after a comma."""

NAMES = (
    START
    + """
GROUPS = ("atomic", "bf16", "cg", "const", "fp16", "fp8", "libdevice", "local", "random", "shared", "vector")

def chains(owner, prefix, depth):
    for name in sorted(set(dir(owner))):
        value = getattr(owner, name, None)
        if not name.startswith("_") and value is not None:
            yield f"{prefix}.{name}"
            if depth and name in GROUPS:
                yield from chains(value, f"{prefix}.{name}", 0)

import_all()
print(json.dumps([*chains(cuda, "cuda", 1)]))
"""
)
"""Print every name that device code may use."""

KEYS = (
    START
    + """
found, corpus = {}, json.load(sys.stdin)
for text in corpus[::-1] if "reversed" in state else corpus:
    try:
        found[text] = made("def k(x):\\n" + text + "\\n").key("sm_90", "void(float32[::1])")
    except Exception as refusal:
        found[text] = str(refusal)
print(json.dumps(found))
"""
)
"""Print the key of a kernel with each of the given bodies, or its refusal."""

COMMON = {
    "half": ("x, y", "x[0] = cuda.fp16.hfma(cuda.fp16.hsin(x[1]), y[0], y[1])", "float16[::1], float16[::1]"),
    "greater half": ("x, y", "x[0] = cuda.fp16.hmax(cuda.fp16.hexp(x[0]), y[0])", "float16[::1], float16[::1]"),
    "libdevice": ("x", "x[0] = cuda.libdevice.fast_sinf(cuda.libdevice.rsqrtf(x[1]))", "float32[::1]"),
    "group": ("x", "cuda.cg.this_grid().sync()\n    x[0] = 1", "float32[::1]"),
    "atomics": ("x", "cuda.atomic.add(x, 0, 1)\n    cuda.atomic.cas(x, 1, x[3], x[4])\n    cuda.atomic.max(x, 2, 3)",
                "int32[::1]"),
    "shuffles": ("x", "x[0] = cuda.shfl_xor_sync(-1, x[1], 1) + cuda.ballot_sync(-1, True)", "int32[::1]"),
    "vectors": ("x", "v = cuda.float32x2(x[0], x[1])\n    x[2] = v.x * v.y", "float32[::1]"),
    "bits": ("x", "x[0] = cuda.popc(x[1]) + cuda.brev(x[2]) + cuda.clz(x[3]) + cuda.ffs(x[4])", "int32[::1]"),
    "shared": ("x", ("s = cuda.shared.array(32, np.float32)\n    s[cuda.threadIdx.x] = x[0]\n    cuda.syncthreads()\n"
               "    x[cuda.grid(1)] = math.sin(s[0]) + cuda.laneid + cuda.warpsize"), "float32[::1]"),
}  # fmt: skip
"""Kernels by name: parameters, body and types, in both Numbas."""

OWN = {
    "numba": {
        "brain": ("x", "x[0] = np.float32(cuda.bf16.bfloat16(x[1]) * cuda.bf16.bfloat16(x[2]))", "float32[::1]"),
        "brain functions": ("x", "x[0] = cuda.bf16.bfloat162float(cuda.bf16.float2bfloat16(x[0]))", "float32[::1]"),
        "random": ("s, x", "x[0] = cuda.random.xoroshiro128p_uniform_float32(s, 0)", "STATES[::1], float32[::1]"),
    },
    "numba_cuda_mlir": {},  # 0.6.0 does not compile cuda.random
}

COMPILED = (
    START
    + f"\nCORPUS = {COMMON!r} | {OWN!r}[package]\n"
    + """
if package == "numba":
    import numba.cuda.random
for name in [*CORPUS][::-1] if "reversed" in state else CORPUS:
    parameters, body, types = CORPUS[name]
    kernel = made(f"def k({parameters}):\\n    {body}\\n")
    if "STATES" in types:
        types = (cuda.random.xoroshiro128p_type[::1], cuda.types.float32[::1])
    else:
        types = f"void({types})"
    kernel.compile("sm_90", types)
info = cache.info("process")
print(json.dumps([info.hits, info.misses]))
"""
)
"""Compile or load each kernel of the corpus; print hits and misses."""
