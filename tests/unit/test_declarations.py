"""Kernels and variables that a text shows: names to ask the compiler about. What macros make is asked for later."""

from __future__ import annotations

import pytest

from numba_kcache.frontends.source.declarations import declarations

C = 'extern "C" __global__ void'


def found(source: str) -> str:
    """Each declaration as a word: C kernels in brackets, templates with <>, variables with a $ in front."""
    return " ".join(
        f"${each.name}" if not each.is_kernel else
        (f"[{each.name}]" if each.has_c_name else each.name) + ("<>" if each.is_template else "")
        for each in declarations(source)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (f"{C} k(int a) {{}}", "[k]"),
        ('extern "C" { __global__ void a(); namespace n { __global__ void b(int); } }', "[a] [b]"),
        ("namespace a::b { namespace { __global__ void k() {} } inline namespace v { __global__ void l() {} } }",
         "k l"),
        ("template<class T, class U = int> __global__ void t(T *a) {} template __global__ void t<int>(int *);",
         "t<> t<>"),
        ("__global__ void __launch_bounds__(2 * (3)) __cluster_dims__(1, 1, 1) k(int a = f(1, 2)) { if (a) { } }", "k"),
        ("__global__ void n::k(int) {} __global__ void [[x(1)]] l() noexcept {}", "k l"),
        ("__device__ int f(int a) { return a; } __device__ int g(int); struct S { __device__ int h() { return 1; } };",
         ""),
        ("struct S { __device__ S() = default; __device__ bool operator==(S) const; __device__ S &operator=(S); };",
         ""),
        ("__constant__ float a[3] = {1, 2, 3}; __device__ int c{4}; __device__ int d = f(1, {2}), *e;", "$a $c $d"),
        ("__device__ const Foo<int, 3> v; static __managed__ int *p, q[2]; extern __constant__ short t[][4];",
         "$v $p $q $t"),
        ("typedef __device__ int T; using U = int; __shared__ int s; int host; extern __shared__ float dyn[];", ""),
        ("struct { int a; } __constant__ nameless; __device__ struct M { int a; } no; auto l = [] __device__ { };", ""),
        ("__global__ void k() {}\n__device__ int v;", "k $v"),
        ("__device__ __align__(16) float4 v; template<class T> __device__ T w;", "$v"),
        ("namespace n { __constant__ int v; namespace { __device__ int w; } }", "$v $w"),
        ("#define K(T, ...) __global__ void k_##T(T *x, ##__VA_ARGS__) {}\nK(int) K(float, int n)", ""),
        ("#define A(x) B(x)\n#define B(x) C##x\n#define C1 k\n__global__ void A(1)() {}", ""),
        ("#define PRE(x) GLUE(p_, x)\n#define GLUE(a, b) a##b\n#define T float\n__global__ void PRE(T)() {}",
         ""),
        ("#define k(x) x\n__global__ void k (int)() {}\n__global__ void l() {}", "l"),
        ("#define k(x) x\n__global__ void k\n;", ""),
        ("#define ME ME\n__global__ void ME() {}", ""),
        ("#define K __global__ void k()\nK; __global__ void l() {}", "l"),
        ("#if 0\n__global__ void no() {}\n#else\n__global__ void yes() {}\n#endif", "no yes"),
        ("#ifdef X\n#define N a\n#else\n#define N b\n#endif\n__global__ void N() {} __device__ int N;", ""),
        ("#if Y\n__global__ void k(int a) {\n#else\n__global__ void k(float b) {\n#endif\n}\n__global__ void l() {}",
         "k k l"),
        ("__global__ void k() {\n#if A\n  if (x) {\n#else\n  if (y) {\n#endif\n  }\n}\n__global__ void l() {}", "k l"),
        ('__global__ void k() { char c = \'{\'; /* { */ auto s = R"({)"; // {\n }\n__global__ void l() {}', "k l"),
        ("__global__ void \\\nk\\\n2() {}", "k2"),
        ("__global__ void k(", ""),
        ("}}}} __global__ void k() {}", "k"),
        ("namespace", ""),
        ("", ""),
    ],
)  # fmt: skip
def test_declarations_are_found(source: str, names: str) -> None:
    """Kernels and variables are found by their own names, and none in comments, strings and functions' heads."""
    assert found(source) == names


def test_parameters_are_those_of_the_text_alone() -> None:
    """Names of parameters; None where they depend on a macro or a condition."""
    parameters = [each.parameters for each in declarations(
        "#define T float\n__global__ void a(T x) {}\n__global__ void b(int n,\n#if X\nint m,\n#endif\nint o) {}\n"
        "__global__ void c(const float *x, void (*f)(int, int), A<int, 3> v, int, const unsigned int) {}\n"
        "__global__ void d(void) {}\n__global__ void e(float y[4], ns::U, B<C> &z, [[a]] struct S s = {}) {}"
    )]  # fmt: skip

    assert parameters == [None, None, ("x", "", "v", "", ""), (), ("y", "", "z", "s")]


def test_indented_directives_are_directives() -> None:
    """White space before `#` is allowed, also after a line that is continued."""
    text = "#if P == 2\n    #define T double\n#else\n\t# define T float\n#endif\n__global__ void k(T *x) {}"

    (kernel,) = declarations(text)
    assert (kernel.name, kernel.is_kernel) == ("k", True)
    assert found("\n  #define made other\n  __global__ void made() {}") == ""
