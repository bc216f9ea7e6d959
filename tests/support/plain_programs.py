"""Small CUDA C++ programs that cover the ways to write kernels, parameters and variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple


class Program(NamedTuple):
    """A program that NVRTC compiles.

    Args:
        source: Its text.
        instances: Names of the template instances that are compiled.
        needs: The oldest C++ standard that it compiles under.
        headers: Files beside the source, by name.
        codes: Type codes of the parameters of some kernels, by symbol.
        kernels: Number of its kernels.
    """

    source: str
    instances: tuple[str, ...] = ()
    needs: str = "c++03"
    headers: Mapping[str, str] = {}
    codes: Mapping[str, str] = {}
    kernels: int = 1


SCALARS = ("bool", "char", "signed char", "unsigned char", "short", "unsigned short", "int", "unsigned", "long",
           "unsigned long", "long long", "unsigned long long", "float", "double")  # fmt: skip
VECTORS = ("char4", "uchar2", "short2", "ushort4", "int2", "int4", "uint3", "longlong2", "float2", "float3", "float4",
           "double2")  # fmt: skip


def _each(types: tuple[str, ...], linkage: str) -> Iterator[str]:
    for number, name in enumerate(types):
        yield (
            f"{linkage} __global__ void by_value_{number}({name} a, {name} *out) {{ out[threadIdx.x] = a; }}\n"
            f"{linkage} __global__ void copied_{number}(const {name} *in, {name} *__restrict__ out, int n) {{\n"
            f"    int i = blockIdx.x * blockDim.x + threadIdx.x;\n    if (i < n) out[i] = in[i];\n}}\n"
        )


PROGRAMS = {
    "scalars in C": Program("".join(_each(SCALARS, 'extern "C"')), kernels=2 * len(SCALARS)),
    "scalars in C++": Program("".join(_each(SCALARS, "")), kernels=2 * len(SCALARS)),
    "vectors in C": Program("".join(_each(VECTORS, 'extern "C"')), kernels=2 * len(VECTORS)),
    "vectors in C++": Program("".join(_each(VECTORS, "static")), kernels=2 * len(VECTORS)),
    "block of C": Program(
        'extern "C" {\n__global__ void first(float *x) { *x = 1; }\n__constant__ float scale[4];\n'
        "__global__ void second(const float *x, int n, double *y) { *y = *x * n + scale[2]; }\n}\n",
        codes={"first": "*f4", "second": "*kf4 i4 *f8"}, kernels=2,
    ),
    "structs": Program(
        "struct Point { float x, y; int id; };\ntypedef struct { double m[3]; } Matrix;\n"
        "union Bits { int i; float f; };\n"
        'extern "C" __global__ void s(Point p, Matrix m, Bits b, Point *out) { out->x = p.y + m.m[1] + b.f; }\n'
        "__global__ void t(const Point *p, Matrix &m) { m.m[0] = p->x; }\n",
        codes={"s": "o o o *o"}, kernels=2,
    ),
    "types without names": Program(
        "struct { int a; float b[2]; } __constant__ nameless;\nenum { LEFT, RIGHT } __device__ side;\n"
        'extern "C" __global__ void u(float *x) { *x = nameless.b[1] + side; }\n',
        codes={"u": "*f4"},
    ),
    "private types": Program(
        "class Owner { struct Inner { int z; }; public: typedef Inner Shown; };\n"
        'extern "C" __global__ void p(Owner::Shown *s, float *f) { s->z = *f; }\n'
        'extern "C" __global__ void q(int n, float *f) { *f = n; }\n',
        codes={"q": "i4 *f4"}, kernels=2,
    ),
    "aliases": Program(
        "typedef float real;\ntypedef const real *reals;\nusing index = unsigned long long;\n"
        'extern "C" __global__ void a(real s, reals x, index n, real *y) { y[n] = s * x[n]; }\n',
        needs="c++11", codes={"a": "f4 *kf4 u8 *f4"},
    ),
    "namespaces": Program(
        'namespace a { namespace b { extern "C" __global__ void inner(double *x) { *x = 2; } '
        "__device__ int count; } }\n"
        "namespace { __constant__ float hidden[3]; __device__ int other; }\n"
        'namespace { extern "C" __global__ void unnamed(int *x) { *x = other + hidden[1]; } }\n'
        "namespace a { __global__ void outer(int *x) { *x = b::count; } }\n",
        codes={"inner": "*f8"}, kernels=3,
    ),
    "inline namespaces": Program(
        'namespace lib { inline namespace v2 { __constant__ short table[2][3]; extern "C" __global__ void now('
        "short *x) { *x = table[1][2]; } } }\nnamespace x::y::z { __device__ double deep; "
        "__global__ void far(double *d) { *d = deep; } }\n",
        needs="c++17", codes={"now": "*i2"}, kernels=2,
    ),
    "templates": Program(
        "template<class T> __global__ void axpy(T a, const T *x, T *y) { y[threadIdx.x] += a * x[threadIdx.x]; }\n"
        "template<class T, int N> __global__ void tile(T *x) { __shared__ T s[N]; s[threadIdx.x % N] = *x; "
        "*x = s[0]; }\n"
        "template __global__ void axpy<double>(double, const double *, double *);\n"
        "namespace ns { template<class T> __global__ void k(T *x) { *x = 1; } }\n",
        ("axpy<float>", "axpy<int>", "tile<float, 32>", "tile<long long, 16*2>", "ns::k<char>"), kernels=6,
    ),
    "dependent types": Program(
        "template<class T> struct Traits { typedef float type; };\n"
        "template<> struct Traits<double> { typedef int type; };\n"
        "template<class T> __global__ void dep(typename Traits<T>::type a, T *x) { *x = a; }\n",
        ("dep<double>", "dep<char>"), kernels=2,
    ),
    "variadic templates": Program(
        "template<class... A> __global__ void all(float *x, A... a) { *x = sizeof...(a); }\n"
        "template<int... N> __global__ void none(int *x) { *x = sizeof...(N); }\n",
        ("all<int, double>", "none<1, 2, 3>"), needs="c++11", kernels=2,
    ),
    "overloads": Program(
        "__global__ void over(int a) {}\n__global__ void over(float *x, int n) { x[n] = 1; }\n"
        'extern "C" __global__ void one(int a, float *x) { *x = a; }\n',
        codes={"one": "i4 *f4"}, kernels=3,
    ),
    "macros": Program(
        "#define JOIN_(a, b) a##b\n#define JOIN(a, b) JOIN_(a, b)\n#define REAL float\n#define C extern \"C\"\n"
        "#define FILL(T, ...) C __global__ void fill_##T(T *x, T v, ##__VA_ARGS__) { x[threadIdx.x] = v; }\n"
        "FILL(int) FILL(double, int n)\nC __global__ void JOIN(sum_, REAL)(const REAL *x, REAL *out) "
        "{ *out = x[0] + x[1]; }\n#undef C\n",
        codes={"fill_int": "*i4 i4", "fill_double": "*f8 f8 i4", "sum_float": "*kf4 *f4"}, needs="c++11", kernels=3,
    ),
    "kernels named by macros": Program(
        "#ifdef WIDE\n#define NAME wide\n#else\n#define NAME narrow\n#endif\n#define ARGS float *x, int n\n"
        'extern "C" __global__ void NAME(ARGS) { x[n] = 1; }\n',
        codes={"narrow": "*f4 i4"},
    ),
    "conditions": Program(
        '#ifdef __cplusplus\nextern "C" {\n#endif\n#if 0\n__global__ void never(int a) {}\n#endif\n'
        "#if defined(SOMETHING)\n__global__ void k(double *x) {\n  double v = 1;\n#else\n"
        "__global__ void k(float *x) {\n  float v = 2;\n#endif\n  *x = v;\n}\n"
        "__global__ void after(short *x) { *x = 3; }\n#ifdef __cplusplus\n"
        "}\n#endif\n",
        codes={"k": "*f4", "after": "*i2"}, kernels=2,
    ),
    "constants": Program(
        "__constant__ float c1[16] = {1, 2, 3}, c2;\n__device__ int counter = 7;\n__device__ const double half = 0.5;\n"
        "static __constant__ int unused[8];\nstatic __device__ short also_unused = 3;\n__constant__ int last[2][3];\n"
        'extern "C" __global__ void k(float *x) { *x = c1[threadIdx.x] * c2 + counter + last[1][1]; }\n'
        "__global__ void l(float *x) { atomicAdd(&counter, 1); *x = c1[2]; }\n",
        kernels=2,
    ),
    "managed and declared variables": Program(
        '__managed__ int shared_with_host[4];\nextern __device__ int elsewhere;\n'
        'extern "C" __global__ void k(int *x) { *x = shared_with_host[2]; }\n',
        codes={"k": "*i4"},
    ),
    "variables in C": Program(
        'extern "C" { namespace n { __constant__ float c[2]; __global__ void k(float *x) { *x = c[1]; } } }\n'
        'extern "C" { __device__ int d; }\n',
        codes={"k": "*f4"},
    ),
    "shared memory": Program(
        "extern __shared__ float dynamic[];\n"
        'extern "C" __global__ void __launch_bounds__(128, (2)) s(float *x) { __shared__ float tile[32][33];\n'
        "  tile[threadIdx.x % 32][0] = *x; dynamic[0] = 1; __syncthreads(); *x = tile[0][0] + dynamic[0]; }\n",
    ),
    "state of functions": Program(
        'extern "C" __global__ void k(int *x) { static __device__ int calls; static __shared__ int s; s = *x; '
        '*x = calls++ + s; printf("%d of %s\\n", *x, "k"); }\n',
    ),
    "textures": Program(
        'extern "C" __global__ void t(cudaTextureObject_t image, float *out, cudaSurfaceObject_t surface) {\n'
        "  *out = tex2D<float>(image, 1.f, 2.f); surf2Dwrite(1.f, surface, 4, 2); }\n",
        codes={"t": "u8 *f4 u8"},
    ),
    "device functions": Program(
        "__device__ __noinline__ float f(float x) { return x * 2; }\nstatic __forceinline__ __device__ int g(int);\n"
        "static __forceinline__ __device__ int g(int x) { return x + 1; }\n"
        "__device__ float (*table[2])(float) = {f, f};\n"
        'extern "C" __global__ void k(float *x, int i) { *x = table[i](f(*x)) + g(i); }\n',
        codes={"k": "*f4 i4"},
    ),
    "lambdas": Program(
        "template<class F> __global__ void call(F f, int *x) { *x = f(*x); }\nstruct Twice { __device__ "
        "int operator()(int x) const { return 2 * x; } };\n"
        'extern "C" __global__ void k(int *x) { auto add = [=](int v) { return v + *x; }; *x = add(2); }\n',
        ("call<Twice>",), needs="c++11", kernels=2,
    ),
    "raw strings and odd text": Program(
        "// __global__ void no(int a) {}\n/* extern \"C\" __global__ void no2() { */\n"
        '__device__ const char text[] = R"x(__global__ void no3() { )x";\n__device__ char brace = \'{\';\n'
        'extern "C" __global__ void k(char *x) { *x = text[2] + brace + 1\'000; } // last line',
        needs="c++14", codes={"k": "*i1"},
    ),
    "attributes": Program(
        'extern "C" __global__ __launch_bounds__(64) void a(float *x) { *x = 1; }\n'
        'extern "C" __global__ void b(const __grid_constant__ int n, float *x) { *x = n; }\n'
        'extern "C" [[deprecated("use a")]] __global__ void c(int n) {}\n',
        needs="c++14", codes={"a": "*f4", "b": "i4 *f4", "c": "i4"}, kernels=3,
    ),
    "line numbers": Program(
        'extern "C" __global__ void k(int *x) { x[0] = __LINE__; assert(x[1]);\n'
        '#line 100 "elsewhere.y"\n x[2] = __LINE__; }\n',
    ),
    "ends in a backslash": Program(
        'extern "C" __global__ void k(int *x) { *x = 1; }\n#define LAST \\', codes={"k": "*i4"},
    ),
    "header": Program(
        '#include "own.cuh"\nextern "C" __global__ void k(Real *x) { *x = twice(table[1]); }\nMADE(two)\n',
        headers={
            "own.cuh": "#pragma once\n#include \"deeper.cuh\"\ntypedef float Real;\n"
            "inline __device__ Real twice(Real x) { return 2 * x; }\n"
            "#define MADE(n) extern \"C\" __global__ void made_##n(Real *x) { *x = in_header; }\n",
            "deeper.cuh": "__constant__ float table[5];\n__device__ int in_header;\n"
            'extern "C" __global__ void from_header(short *x) { *x = in_header; }\n',
        },
        codes={"k": "*f4", "made_two": "*f4", "from_header": "*i2"}, kernels=3,
    ),
    "many parameters": Program(
        "struct Large { float f[2000]; };\n"
        'extern "C" __global__ void large(Large a, Large b, int n, float *x) { *x = a.f[n] + b.f[n]; }\n',
        codes={"large": "o o i4 *f4"},
    ),
}  # fmt: skip
"""Programs, named by what they cover."""
