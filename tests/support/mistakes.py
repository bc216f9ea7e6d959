"""Mistakes that newcomers make, each as one line of their program; run as a program, this prints the message for each.

Method      `python -m tests.support.mistakes GROUP` makes the mistakes of a group on the fake driver, in the working
            directory, and prints a list of the messages. A line that begins with `$ ` is a command line. `PRELUDE`
            defines the names that the lines use. Group "no driver" is for a process without a driver.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

PRELUDE = r"""
import ctypes
import numpy as np
from pathlib import Path
from numba import cuda
from numba_kcache import *

SAXPY = '''extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}'''
TWO = 'extern "C" __global__ void one() {} extern "C" __global__ void two() {}'
TEMPLATE = 'template <class T> __global__ void axpy(T a, T *x) { *x += a; }'
saxpy = cached_kernel(SAXPY, name="saxpy")
x, y, n = cuda.device_array(1000, "float32"), cuda.device_array(1000, "float32"), 1000

def kernel(parameters, body="", **options):
    return cached_kernel(f'extern "C" __global__ void k({parameters}) {{ {body} }}', name="k", **options)
"""

MISTAKES: dict[str, tuple[str, ...]] = {
    "source": (
        'cached_kernel("kernels/saxpy.cu")',
        'cached_kernel(Path("nowhere.cu")).compile("sm_90")',
        'cached_kernel(Path("saxpy.cpp"))',
        "cached_kernel(42)",
        'cached_kernel("").compile("sm_90")',
        'exec("@cached_kernel\\ndef k() -> str: pass"); k.compile("sm_90")',
        'exec("@cached_kernel\\ndef k(T) -> str: return SAXPY")',
        "exec(\"@cached_kernel\\ndef k(T='float'): return f'__global__ void k({T} *x) {{}}'\")",
        'cached_kernel("__device__ int x;").compile("sm_90")',
        'cached_kernel(TWO).compile("sm_90")',
        'cached_kernel(TWO, name="three").compile("sm_90")',
        'cached_kernel(TEMPLATE).compile("sm_90")',
        'cached_kernel(b"\\x7fELF and more").compile("sm_90")',
        'cached_kernel(SAXPY, kind="cuda11")',
        'cached_kernel(SAXPY).instantiate(T="double")',
        'cached_module(SAXPY, names="saxpy")',
        'cached_module(SAXPY)["sax"].compile("sm_90")',
        "cached_module(SAXPY).symbol('coeffs')",
        "saxpy.num_regs",
        "cached_kernel(SAXPY, options=['-G', '-lcublas'])",
        "install('cupy')",
        "install(cupy='yes')",
        "exec(\"@cached_kernel\\ndef k() -> str:\\n    '''__global__ void k() {}'''\"); k.compile(\"sm_90\")",
        "exec(\"@cached_kernel\\ndef k():\\n    r'''__global__ void k() {}'''\"); k.compile(\"sm_90\")",
        'exec("@cached_kernel\\ndef k():\\n    source = SAXPY"); k.compile("sm_90")',
        'exec("@cached_kernel\\ndef k() -> str:\\n    return 3"); k.compile("sm_90")',
        'exec("@cached_kernel\\ndef k() -> str:\\n    return None"); k.compile("sm_90")',
        'exec("@cached_kernel\\ndef k() -> str:\\n    yield SAXPY"); k.compile("sm_90")',
        'exec("@cached_kernel\\nasync def k() -> str:\\n    return SAXPY"); k.compile("sm_90")',
        'cached_kernel("void saxpy(float *x) { *x = 1; }").compile("sm_90")',
        'cached_kernel("__global__ int k() { return 1; }").compile("sm_90")',
        'cached_kernel("__kernel void k(__global float *x) {}").compile("sm_90")',
        'cached_kernel("saxpy").compile("sm_90")',
        'cached_kernel("import numpy").compile("sm_90")',
        'cached_kernel("saxpy.cubin")',
        'cached_kernel(b"hello").compile("sm_90")',
        "cached_kernel([SAXPY])",
        'cached_kernel({"source": SAXPY})',
        "cached_kernel(saxpy)",
        'cached_kernel(TEMPLATE, name="axpy").compile("sm_90")',
        'cached_kernel(TEMPLATE, name="axpy<flaot>").compile("sm_90")',
        'cached_kernel(TEMPLATE, name="axpy<float").compile("sm_90")',
        'cached_kernel(TEMPLATE, name="axpy<float, int>").compile("sm_90")',
        'cached_kernel(Path("."))',
        'cached_kernel(Path("text.kcache"))',
        'cached_kernel(Path("saxpy"))',
        "cached_kernel(str)",
        "cached_kernel(len)",
        'exec("@cached_kernel\\nclass K: pass")',
        "cached_kernel()(SAXPY).launch()",
        "cached_kernel(SAXPY).run()",
        "saxpy.lunch(1, 2)",
        'cached_module(SAXPY)["saxpy<float>"].compile("sm_90")',
        'cached_module("nowhere.cu")',
        "cached_module(42)",
        "cached_kernel(SAXPY, 'saxpy', 'sm_90')",
        "cached_kernel('saxpy', SAXPY).compile('sm_90')",
        "cached_kernel(SAXPY, ('-DN=4',))",
        "cached_module(SAXPY, name='saxpy')",
        "cached_module(SAXPY, ['saxpy', 3]).compile('sm_90')",
        "cached_module(SAXPY, names=['saxpi']).compile('sm_90')",
        "cached_module(SAXPY).get_function('saxpy')",
        "cached_module(SAXPY, lazy='yes')",
        "cached_module(SAXPY)[1, 128](2.0, x, y, n)",
        "cached_kernel(SAXPY.encode('utf-16')).compile('sm_90')",
    ),
    "options": (
        "cached_kernel(SAXPY, fast_math=True)",
        'cached_kernel(SAXPY, arch="hopper").compile()',
        'saxpy.compile("sm_999")',
        "saxpy.compile(90)",
        "cached_kernel(SAXPY, max_registers=1000)",
        "cached_kernel(SAXPY, opt=4)",
        'cached_kernel(SAXPY, std="c++99")',
        'cached_kernel(SAXPY, options="--use_fast_math")',
        'cached_kernel(SAXPY, options=["--no-such-flag"], strict=True).compile("sm_90")',
        'cached_kernel(SAXPY, include_dirs="include")',
        'cached_kernel(SAXPY, defines=["TILE"])',
        'cached_kernel(SAXPY, link=["nowhere.o"]).compile("sm_90")',
        'cached_kernel(SAXPY, signature="float, float*").compile("sm_90")',
        "cached_kernel(SAXPY, launch_bounds=128)",
        "cached_kernel(SAXPY, cluster=64)",
        'cached_kernel(SAXPY, cooperative="yes")',
        "cached_kernel(SAXPY, carveout=200)",
        'cached_kernel(SAXPY, cache="/tmp/cache")',
        'cached_kernel(SAXPY, depends=[object()]).compile("sm_90")',
        'cached_kernel(SAXPY, lto=True, fast_compile="max")',
        'cached_kernel(lambda x: None, std="c++17")',
        'cached_kernel(lambda x: None).compile("sm_90")',
        "cached_kernel(SAXPY, maxrregcount=32)",
        "cached_kernel(SAXPY, use_fast_math=True)",
        'cached_kernel(SAXPY, options=("-std=c++17", "--gpu-architecture=sm_90"))',
        'cached_kernel(SAXPY, options=["-lineinfo", "-G", "-g"]).compile("sm_90")',
        'cached_kernel(SAXPY, options="-lineinfo")',
        'cached_kernel(SAXPY, backend="nvcc")',
        "cached_kernel(SAXPY, translate_cucomplex=True)",
        "cached_kernel(SAXPY, jitify=True)",
        'cached_kernel(SAXPY, include_dir="include")',
        'cached_kernel(SAXPY, includes=["include"])',
        'cached_kernel(SAXPY, macros={"N": 1})',
        'cached_kernel(SAXPY, define={"N": 1})',
        'cached_kernel(SAXPY, defines={"N": 1.5})',
        'cached_kernel(SAXPY, defines={"N M": 1})',
        "cached_kernel(SAXPY, std=17)",
        'cached_kernel(SAXPY, std="C++17")',
        'cached_kernel(SAXPY, std="c++98")',
        'cached_kernel(SAXPY, opt="O3")',
        "cached_kernel(SAXPY, opt=True)",
        "cached_kernel(SAXPY, debug=1)",
        'cached_kernel(SAXPY, fastmath="yes")',
        'cached_kernel(SAXPY, max_registers="32")',
        "cached_kernel(SAXPY, device=True)",
        "cached_kernel(SAXPY, cache=True)",
        "cached_kernel(SAXPY, inline=True)",
        'cached_kernel(SAXPY, target="sm_90")',
        'cached_kernel(SAXPY, archs=["sm_90"])',
        'cached_kernel(SAXPY, arch="90x").compile()',
        "cached_kernel(SAXPY, arch=90).compile()",
        'cached_kernel(SAXPY, arch="sm90").compile()',
        'cached_kernel(SAXPY, arch="SM_90")',
        'cached_kernel(SAXPY, arch="A100").compile()',
        'cached_kernel(SAXPY, arch="sm_35").compile()',
        "cached_kernel(SAXPY, arch=(9,)).compile()",
        "cached_kernel(SAXPY, arch=[]).compile()",
        'cached_kernel(SAXPY, arch="").compile()',
        'cached_kernel(SAXPY, signature="void(float32[:])").compile("sm_90")',
        'cached_kernel(SAXPY, signature=["float"]).compile("sm_90")',
        'cached_kernel(SAXPY, link="other.cu")',
        'cached_kernel(SAXPY, link=["cublas"]).compile("sm_90")',
        'cached_kernel(SAXPY, link=["text.kcache"]).compile("sm_90")',
        "cached_kernel(SAXPY, cluster=(2, 2, 2, 2))",
        'cached_kernel(SAXPY, max_dynamic_shared="100KB")',
        "cached_kernel(SAXPY, max_dynamic_shared=-1)",
        'cached_kernel(SAXPY, strict="yes")',
        'cached_kernel(SAXPY, depends="config.json").compile("sm_90")',
        'cached_kernel(SAXPY, depends=[Path("nowhere.json")]).compile("sm_90")',
        'cached_kernel(SAXPY, kind="cpp")',
        'cached_kernel(SAXPY, kind="numba")',
        "cached_kernel(SAXPY, name=3)",
        'cached_kernel(lambda x: None, signature="void(float32").compile("sm_90")',
        "cached_kernel(SAXPY, arch='sm_90,sm_80').compile()",
        "cached_kernel(SAXPY, arch='sm_9.0').compile()",
        "cached_kernel(SAXPY, arch='cc90').compile()",
        "cached_kernel(SAXPY, define_macros=[('N', 4)])",
        "cached_kernel(SAXPY, options=['-arch', 'sm_80'])",
        "cached_kernel(SAXPY, options=[32])",
        "cached_kernel(SAXPY, max_registers=8)",
        "cached_kernel(SAXPY, defines={1: 2})",
        "cached_kernel(SAXPY, include_dirs=[3])",
        "cached_kernel(SAXPY, shared_mem=1024)",
        "cached_kernel(SAXPY, stream=0)",
        "cached_kernel(lambda x: x + 1, signature='float32(float32)').compile('sm_90')",
        "cached_kernel(lambda x: None, signature=3).compile('sm_90')",
    ),
    "compile": (
        'kernel("int *x", "*x = nowhere;").compile("sm_90")',
        'kernel("int *x", "*x = 1").compile("sm_90")',
        'cached_kernel("#include <cstdint>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <vector>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel(\'#include "mine.h"\\n\' + SAXPY).compile("sm_90")',
        'kernel("float *x", "*x = std::min(1.f, 2.f);").compile("sm_90")',
        'cached_kernel(\'__device__ int f(); extern "C" __global__ void k(int *x) { *x = f(); }\').compile("sm_90")',
        'cached_kernel(".version 8.0\\n.target sm_80\\n.address_size 64\\n.entry k() { nonsense; }").compile("sm_90")',
        'cached_kernel(saxpy.cubin("sm_80"), signature="float, const float*, float*, int")[8, 128](2.0, x, y, n)',
        'kernel("", "printf(__TIME__);", strict=True).compile("sm_90")',
        'KernelCache("frozen", mode="frozen").get_or_compile(SAXPY, arch="sm_90")',
        'kernel("half *x", "*x = 1;").compile("sm_90")',
        'kernel("__half *x", "*x = 1;").compile("sm_90")',
        'kernel("half2 *x", "").compile("sm_90")',
        'kernel("__nv_bfloat16 *x", "").compile("sm_90")',
        'kernel("nv_bfloat162 *x", "").compile("sm_90")',
        'kernel("bfloat16 *x", "").compile("sm_90")',
        'kernel("float *x", "half h = __float2half(*x);").compile("sm_90")',
        'kernel("float *x", "*x = __half2float(*(__half*)x);").compile("sm_90")',
        'kernel("__nv_fp8_e4m3 *x", "").compile("sm_90")',
        'kernel("float *x", "int n = 1024; __shared__ float s[n]; *x = s[0];").compile("sm_90")',
        'kernel("float *x", "cooperative_groups::this_grid().sync();").compile("sm_90")',
        'kernel("float *x", "namespace cg = cooperative_groups; cg::this_thread_block().sync();").compile("sm_90")',
        'kernel("unsigned *x", "curandState s; curand_init(1, 0, 0, &s);").compile("sm_90")',
        'kernel("float *x", "cub::BlockReduce<float, 128> r;").compile("sm_90")',
        'kernel("float *x", "thrust::sort(x, x + 10);").compile("sm_90")',
        'kernel("float *x", "nvcuda::wmma::fragment<int> f;").compile("sm_90")',
        'kernel("float *x", "cuFloatComplex c;").compile("sm_90")',
        'kernel("float *x", "complex<float> c;").compile("sm_90")',
        'kernel("int32_t *x", "").compile("sm_90")',
        'kernel("uint8 *x", "").compile("sm_90")',
        'kernel("float *x", "std::cout << x;").compile("sm_90")',
        'kernel("float *x", "cudaMalloc(&x, 4);").compile("sm_90")',
        'kernel("float *x", "k<<<1, 1>>>(x);").compile("sm_90")',
        'kernel("float *x", "vector<float> v;").compile("sm_90")',
        'kernel("float *x", "*x = M_PI;").compile("sm_90")',
        'kernel("float *x", "*x = FLT_MAX;").compile("sm_90")',
        'kernel("float *x", "int i = blockidx.x;").compile("sm_90")',
        'kernel("float *x", "x[i] = 1;").compile("sm_90")',
        'kernel("float *x", "float y = x;").compile("sm_90")',
        'kernel("const float *x", "*x = 1;").compile("sm_90")',
        'kernel("float *x", "host();").compile("sm_90")',
        'cached_kernel("void host() {} __global__ void k() { host(); }").compile("sm_90")',
        'cached_kernel("#include <iostream>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <cuda_runtime.h>\\n#include <helper_cuda.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <torch/extension.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <cublas_v2.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <cutlass/cutlass.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <cub/cub.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <math_constant.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("#include <cuda_fp61.h>\\n" + SAXPY).compile("sm_90")',
        'cached_kernel("int main() { return 0; }\\n" + SAXPY + "\\n#include <stdio.h>").compile("sm_90").x',
        'cached_kernel("__global__ void k(float *x) { atomicAdd_block(x, 1.0) }").compile("sm_90")',
        'cached_kernel("__global__ void k(double *x) { __nanosleep(x); }").compile("sm_90")',
        'cached_kernel("__global__ void k(float *x) { asm(\\"nonsense;\\"); }").compile("sm_90")',
        'cached_kernel("__global__ void k(float *x) { while (1) { }").compile("sm_90")',
        'cached_kernel("__global__ void k(float x[], n) {}").compile("sm_90")',
        'cached_kernel("texture<float> t; __global__ void k(float *x) { *x = tex1D(t, 1); }").compile("sm_90")',
        'cached_kernel("__global__ void k(float *x) { *x = __shfl(*x, 0); }").compile("sm_90")',
        "cached_kernel('#include <cooperative_group.h>\\n' + SAXPY).compile('sm_90')",
        "kernel('float *x', 'print(x);').compile('sm_90')",
        "kernel('float *x', '__syncthread();').compile('sm_90')",
        "kernel('float *x', 'x[0] = threadIdx;').compile('sm_90')",
        "kernel('float[] x').compile('sm_90')",
        "kernel('float *x', 'x[0] = True;').compile('sm_90')",
        "kernel('float *x', 'x[0] = np.sqrt(2);').compile('sm_90')",
        "cached_kernel('#include <mma.h>\\n__global__ void q() { wmma::fragment f; }').compile('sm_90')",
    ),
    "launch": (
        "saxpy(2.0, x, y, n)",
        "saxpy[8](2.0, x, y, n)",
        "saxpy[8, 128, 0, 0, 0](2.0, x, y, n)",
        "saxpy[n / 128, 128](2.0, x, y, n)",
        "saxpy[0, 128](2.0, x, y, n)",
        "saxpy[-1, 128](2.0, x, y, n)",
        "saxpy[8, 2048](2.0, x, y, n)",
        "saxpy[8, (1, 1, 65)](2.0, x, y, n)",
        "saxpy[8, (64, 64)](2.0, x, y, n)",
        "saxpy[(1, 2, 3, 4), 128](2.0, x, y, n)",
        'saxpy[8, 128, "stream"](2.0, x, y, n)',
        "saxpy[8, 128, 0, 300_000](2.0, x, y, n)",
        "saxpy.forall(-1)(2.0, x, y, n)",
        "cached_kernel(SAXPY, cooperative=True)[10**6, 128](2.0, x, y, n)",
        "cached_kernel(SAXPY, cluster=4)[6, 128](2.0, x, y, n)",
        "saxpy.occupancy(2048)",
        "saxpy.time(8, 128, 2.0, x, y, n, repeats=0)",
        "saxpy[8, 128](2.0, x, y)",
        "saxpy[8, 128](2.0, x, y, n, n)",
        "saxpy[8, 128](a=2.0)",
        "saxpy[8, 128](2.0, x, y, count=n)",
        "saxpy[8, 128](2.0, x, y, n, a=1.0)",
        "saxpy.forall(x)(2.0, x, y, n)",
        "saxpy.forall(x.shape)(2.0, x, y, n)",
        'saxpy.forall("1000")(2.0, x, y, n)',
        "saxpy.forall(1000.0)(2.0, x, y, n)",
        "saxpy.forall(None)(2.0, x, y, n)",
        "saxpy.forall(n, tpb=2048)(2.0, x, y, n)",
        'saxpy.forall(n, tpb="128")(2.0, x, y, n)',
        "saxpy.forall(n, 128, 0, 10**9)(2.0, x, y, n)",
        "saxpy(2.0, x, y, n, grid=(8,), block=(128,))",
        "saxpy((8,), (128,), (2.0, x, y, n))",
        "saxpy[8, 128]((2.0, x, y, n))",
        "saxpy[8, 128]()",
        "saxpy[8:128](2.0, x, y, n)",
        'saxpy["8", 128](2.0, x, y, n)',
        "saxpy[8, None](2.0, x, y, n)",
        "saxpy[(8, 1.0), 128](2.0, x, y, n)",
        "saxpy[(), 128](2.0, x, y, n)",
        "saxpy[x.shape, 128](2.0, x, y, np.float32(n))",
        "saxpy[np.float64(8), 128](2.0, x, y, n)",
        "saxpy[x, 128](2.0, x, y, n)",
        "saxpy[2**40, 128](2.0, x, y, n)",
        "saxpy[(1, 70000), 128](2.0, x, y, n)",
        "saxpy[8, 1025](2.0, x, y, n)",
        "saxpy[8, 0](2.0, x, y, n)",
        "saxpy[8, 128, 0, -1](2.0, x, y, n)",
        'saxpy[8, 128, 0, "1KB"](2.0, x, y, n)',
        "saxpy[8, 128, x](2.0, x, y, n)",
        "saxpy[8, 128, -5](2.0, x, y, n)",
        "saxpy[8, 128](2.0, x, y, n=n, m=3)",
        "saxpy.time(8, 128)",
        "saxpy.time(8, 128, 2.0, x, y, n, repeats=2.5)",
        'saxpy.occupancy("128")',
        "saxpy.suggested_block(10**9)",
        "saxpy.max_cooperative_grid_blocks(4096)",
        'saxpy.cubin("sm_9x")',
        'saxpy.explain("hopper")',
        'saxpy.explain(signature="void(float32)")',
        'saxpy.compile(signature="void(float32)")',
        "cached_kernel(lambda x: None)[8, 128]()",
        "cached_kernel(lambda x: None)[8, 128](x, y)",
        "saxpy.forall()(2.0, x, y, n)",
        "saxpy.forall(n, 2.0, x, y, n)",
        "saxpy.compile(target='sm_90')",
        "saxpy.compile('sm_90', 'sm_80')",
        "saxpy.launch((8,), (128,), 2.0, x, y, n)",
        "saxpy[8, 128](2.0, x, y, n, stream=0)",
        "saxpy[8, 128, True](2.0, x, y, n)",
        "saxpy.get_regs_per_thread()",
        "saxpy[8, 128, cuda.event()](2.0, x, y, n)",
    ),
    "arguments": (
        "saxpy[8, 128](2.0, np.ones(1000, 'float32'), y, n)",
        "saxpy[8, 128](2.0, [1.0, 2.0], y, n)",
        "saxpy[8, 128](2.0, cuda.device_array(1000, 'float64'), y, n)",
        "saxpy[8, 128](2.0, cuda.device_array((1000, 2), 'float32')[:, 0], y, n)",
        "saxpy[8, 128](2.0, x, 4096, n)",
        "saxpy[8, 128](x, 2.0, y, n)",
        "saxpy[8, 128](2.0, x, y, 1000.0)",
        "saxpy[8, 128](2.0, x, y, 2**40)",
        "saxpy[8, 128](2.0, x, y, '1000')",
        "saxpy[8, 128](None, x, y, n)",
        "saxpy[8, 128](2j, x, y, n)",
        'kernel("unsigned n")[1, 1](-1)',
        'kernel("bool b")[1, 1](2)',
        'kernel("float4 v")[1, 1]((1, 2, 3))',
        'cached_kernel("struct P { int a; double b; }; __global__ void k(P p) {}")[1, 1](b"1234")',
        "kernel('float4 *v')[1, 1](cuda.device_array(1001, 'float32')[1:])",
        'cached_kernel(saxpy.ptx("sm_90"))[8, 128](2.0, x, y, n)',
        "saxpy[8, 128](2.0, 'x', y, n)",
        "saxpy[8, 128]('2.0', x, y, n)",
        "saxpy[8, 128](2.0, x, y, [n])",
        "saxpy[8, 128](2.0, x, y, x.shape)",
        "saxpy[8, 128](2.0, x, y, None)",
        "saxpy[8, 128](2.0, x, y, True + 0.5)",
        "saxpy[8, 128](2.0, x, np.float32(3), n)",
        "saxpy[8, 128](2.0, x, np.zeros(3, 'float32'), n)",
        "saxpy[8, 128](2.0, x, {'y': y}, n)",
        "saxpy[8, 128](2.0, x, memoryview(b'1234'), n)",
        "saxpy[8, 128](2.0, x, lambda: y, n)",
        "saxpy[8, 128](2.0, x, cuda.device_array(1000, 'int32'), n)",
        "saxpy[8, 128](2.0, x, y, np.int64(2**33))",
        "saxpy[8, 128](float('1e300'), x, y, n)",
        "saxpy[8, 128](2.0, np, y, n)",
        "saxpy[8, 128](2.0, x, y, float('nan'))",
        "saxpy[8, 128](2.0, x.copy_to_host(), y, n)",
        "saxpy[8, 128](2.0, ctypes.c_int(3), y, n)",
        "saxpy[8, 128](2.0, (x, y), y, n)",
        "saxpy[8, 128](2.0, cuda.mapped_array(1000, 'float32')[1:], y, n)",
    ),
    "settings": (
        'configure(max_size="1GB")',
        'configure(max_size_bytes="a lot")',
        'configure(mode="read-only")',
        'configure(tiers=["ftp://server/cache"])',
        'configure(max_entries="many")',
        "$ NUMBA_KCACHE_MODE=fast numba-kcache info",
        "$ NUMBA_KCACHE_MAX_SIZE=large numba-kcache info",
        'KernelCache("/proc/nowhere").get_or_compile(SAXPY, arch="sm_90").compile()',
        'info(scope="today")',
        'prune(older_than="yesterday")',
        "subscribe(42)",
        'KernelCache("empty").export_bundle("out.kcache")',
        'import_bundle("nowhere.kcache")',
        'import_bundle("text.kcache")',
        'register_bundle("nowhere.kcache")',
        'get_or_build({"path": Path("x")}, lambda: b"code")',
        'get_or_build({"level": 1}, lambda: "text")',
        'warm_up(["no_such_module"], arch=["sm_90"])',
        'KernelCache("cache").entry("f00d")',
        'configure(dir="/tmp/x")',
        "configure(directory=3)",
        'configure(directory="")',
        'configure(cache_dir="/tmp/x")',
        "configure(max_size_bytes=-1)",
        "configure(max_size_bytes=0.5)",
        'configure(mode="ro")',
        'configure(mode=None, toolchain="latest")',
        'configure(log_level="verbose")',
        "configure(verbose=True)",
        'configure(build_wait_s="a minute")',
        'configure(tiers="redis:/host")',
        'configure(tiers="host:6379")',
        "configure(tiers=42)",
        'configure(trusted_keys="ci")',
        'configure(signing_key="nowhere.pem"); export_bundle("o.kcache")',
        'configure(shared="maybe")',
        'configure(progress="loud")',
        "KernelCache(42)",
        'KernelCache("c", size="1GB")',
        "info(1)",
        'explain("saxpy")',
        'explain("nothing")',
        "explain(42)",
        "explain(lambda: 1)",
        'warm_up(saxpy, arch="hopper")',
        'warm_up(saxpy, ["sm_90"], workers=0)',
        "warm_up(42)",
        'warm_up(SAXPY, arch="sm_90")',
        'register_bundle("nopkg:bundle.kcache")',
        'register_bundle("numba_kcache:nowhere.kcache")',
        "register_bundle(42)",
        'import_bundle(".")',
        'import_bundle("oci:nowhere")',
        'export_bundle("nofolder/out.kcache", saxpy)',
        'export_bundle("out.kcache", "no_such_module")',
        "push()",
        'pull("http://server")',
        'get_or_build("key", lambda: b"x")',
        "get_or_build({}, None)",
        'get_or_compile(SAXPY, "saxpy", arch="sm_9")',
        "configure('frozen')",
        "configure(log_level=10)",
        "entries('saxpy')",
        "subscribe()",
        "warm_up(saxpy, 'sm_90', 'sm_80')",
        "warm_up('kernels.cu', arch='sm_90')",
        "export_bundle(saxpy)",
        "KernelCache('c', 'd')",
        "get_or_build({'a': 1}, b'code')",
    ),
    "commands": (
        "$ numba-kcache warmup kernels.py",
        "$ numba-kcache warm no_such_module --arch sm_90",
        "$ numba-kcache warm nowhere.py --arch sm_90",
        "$ numba-kcache warm empty.py --arch sm_90",
        "$ numba-kcache warm broken.py --arch sm_90",
        "$ numba-kcache warm empty.py --arch hopper",
        "$ numba-kcache show f00d",
        "$ numba-kcache explain empty:nothing",
        "$ numba-kcache remove nothing*",
        "$ numba-kcache prune --max-size huge",
        "$ numba-kcache prune --older-than never",
        "$ numba-kcache info --jsn",
        "$ numba-kcache list --directory text.kcache",
        "$ numba-kcache import nowhere.kcache",
        "$ numba-kcache push",
        "$ numba-kcache report nowhere/report.html",
        "$ numba-kcache",
        "$ numba-kcache ls",
        "$ numba-kcache stats",
        "$ numba-kcache warm",
        "$ numba-kcache warm kernels.py --arch sm90",
        "$ numba-kcache warm kernels.py --targets sm_90",
        "$ numba-kcache warm broken.py",
        "$ numba-kcache warm text.kcache --arch sm_90",
        "$ numba-kcache explain",
        "$ numba-kcache explain nothing",
        "$ numba-kcache explain kernels:q --arch sm_90",
        "$ numba-kcache explain kernels.py:k --arch sm_90,sm_80",
        "$ numba-kcache explain nowhere.py:k",
        "$ numba-kcache show",
        "$ numba-kcache show xyz",
        "$ numba-kcache remove",
        "$ numba-kcache remove ''",
        "$ numba-kcache prune --older-than 30",
        "$ numba-kcache prune --max-size 0",
        "$ numba-kcache list --sort name",
        "$ numba-kcache list --limit many",
        "$ numba-kcache export",
        "$ numba-kcache export nofolder/x.kcache",
        "$ numba-kcache export x.kcache --kernels nothing",
        "$ numba-kcache import",
        "$ numba-kcache import text.kcache",
        "$ numba-kcache pull ftp://host",
        "$ numba-kcache push redis://127.0.0.1:1",
        "$ numba-kcache report",
        "$ numba-kcache report .",
        "$ numba-kcache --json",
        "$ numba-kcache info --directory",
        "$ NUMBA_KCACHE_TIERS=ftp://x numba-kcache info",
        "$ numba-kcache warm kernels --arch sm_90 sm_80",
        "$ numba-kcache run",
        "$ numba-kcache run nowhere.py",
        "$ numba-kcache compile kernels.py",
        "$ numba-kcache clear saxpy",
        "$ numba-kcache config mode frozen",
        "$ numba-kcache export --kernels kernels.py",
        "$ NUMBA_KCACHE_MAX_ENTRIES=0 numba-kcache info",
    ),
    "no driver": (
        "saxpy[8, 128](2.0, None, None, 0)",
        "saxpy.compile()",
        "saxpy.occupancy(128)",
        "$ numba-kcache warm kernels.py --arch native",
    ),
}

FILES = {
    "text.kcache": "hello",
    "empty.py": "",
    "broken.py": "from numba_kcache import *\nk = cached_kernel('__global__ void k(int *x) { *x = y; }')\n",
    "kernels.py": "from numba_kcache import *\nk = cached_kernel('extern \"C\" __global__ void k(int *x) {}')\n",
}
"""Files of the working directory."""


def answers(group: str) -> list[dict[str, str]]:
    """Make the mistakes of a group; return for each the line `written`, the `kind` of error, and `what`, `why` and
    `hint` of its message."""
    for name, text in FILES.items():
        Path(name).write_text(text, encoding="utf-8")
    names: dict[str, Any] = {"__name__": "app"}
    prelude = (
        PRELUDE if group != "no driver" else re.sub(r"(?m)^(x, y, n =|from numba import|import numpy).*$", "", PRELUDE)
    )
    exec(compile(prelude, "prelude.py", "exec"), names)
    found = []
    for written in MISTAKES[group]:
        kind, parts = _shell(written[2:]) if written.startswith("$ ") else _python(written, names)
        found.append({"written": written, "kind": kind, **dict(zip(("what", "why", "hint"), parts, strict=True))})
        names["configure"](mode="readwrite", directory=os.environ["NUMBA_KCACHE_DIR"])
    return found


Parts = tuple[str, str, str]


def _python(written: str, names: dict[str, Any]) -> tuple[str, Parts]:
    from numba_kcache import KCacheError

    Path("app.py").write_text(written + "\n", encoding="utf-8")
    try:
        exec(compile(written, "app.py", "exec"), dict(names))
    except KCacheError as error:
        return type(error).__name__, (error.what, error.why, error.hint)
    except Exception as error:
        return type(error).__name__, _parts(str(error))
    return "", ("no message", "", "")


def _parts(text: str) -> Parts:
    first, _, hint = text.partition("\n  hint: ")
    what, _, why = first.partition(": ")
    return what, why, hint


def _shell(line: str) -> tuple[str, Parts]:
    from numba_kcache.cli import main

    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
    before, output = dict(os.environ), io.StringIO()
    os.environ.update(variables)
    try:
        with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
            code = main(words[len(variables) + 1 :])
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        os.environ.clear()
        os.environ.update(before)
    text = output.getvalue().strip().removeprefix("numba-kcache: ")
    return f"exit {code}", _parts(text[text.index("cannot ") :] if "cannot " in text else text)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.path.insert(0, os.getcwd())
    print(json.dumps(answers(sys.argv[1])))
