"""Kernels and variables that a text declares, as far as the text decides: names to ask the compiler about."""

from __future__ import annotations

import pytest

from numba_kcache.frontends.source.declarations import declarations
from numba_kcache.frontends.source.macros import Macros

C = 'extern "C" __global__ void'


def found(source: str) -> str:
    """Each declaration as a word: C kernels in brackets, templates with <>, variables with a $ in front."""
    return " ".join(
        ("" if each.is_kernel else "$")
        + (f"[{each.name}]" if each.has_c_name else each.name)
        + ("<>" if each.is_template else "")
        for each in declarations(source)
    )


@pytest.mark.parametrize(
    ("source", "names"),
    [
        (f"{C} k(int a) {{}}", "[k]"),
        ('extern "C" { __global__ void a(); namespace n { __global__ void b(int); } } __global__ void c() {}',
         "[a] [n::b] c"),
        ("namespace a::b { namespace { __global__ void k() {} } inline namespace v { __global__ void l() {} } }",
         "a::b::k a::b::v::l"),
        ("template<class T, class U = int> __global__ void t(T *a) {} template __global__ void t<int>(int *);",
         "t<> t<>"),
        ("__global__ void __launch_bounds__(2 * (3)) __cluster_dims__(1, 1, 1) k(int a = f(1, 2)) { if (a) { } }", "k"),
        ("__global__ void n::k(int) {} __global__ void [[x(1)]] l() noexcept {}", "n::k l"),
        ("__device__ int f(int a) { return a; } __device__ int g(int); struct S { __device__ int h() { return 1; } };",
         ""),
        ("__constant__ float a[3] = {1, 2, 3}, b; __device__ int c{4}, d = f(1, {2});", "$a $b $c $d"),
        ("__device__ const Foo<int, 3> v; static __managed__ int *p; extern __constant__ short t[][4];", "$v $p $t"),
        ("typedef __device__ int T; using U = int; __shared__ int s; int host; extern __shared__ float dyn[];", ""),
        ("struct { int a; } __constant__ nameless; struct N { int a; } __constant__ named;", "$named"),
        ("__device__ float (*fp)(float) = f; __device__ int (*t[2])[3]; __global__ void k() {}", "$fp $t k"),
        ("namespace n { __constant__ int v; namespace { __device__ int w; } }", "$n::v $n::w"),
        ("#define K(T, ...) __global__ void k_##T(T *x, ##__VA_ARGS__) {}\nK(int) K(float, int n)", "k_int k_float"),
        ("#define A(x) B(x)\n#define B(x) C##x\n#define C1 k\n__global__ void A(1)() {}", "k"),
        ("#define PRE(x) GLUE(p_, x)\n#define GLUE(a, b) a##b\n#define T float\n__global__ void PRE(T)() {}",
         "p_float"),
        ("#define k(x) x\n__global__ void k (int)() {}\n__global__ void l() {}", "int l"),
        ("#define k(x) x\n__global__ void k\n;", ""),
        ("#define ME ME\n__global__ void ME() {}", "ME"),
        ("#define K __global__ void k()\n#undef K\nK; __global__ void l() {}", "l"),
        ("#if 0\n__global__ void no() {}\n#else\n__global__ void yes() {}\n#endif", "no yes"),
        ("#ifdef X\n#define N a\n#else\n#define N b\n#endif\n__global__ void N() {}", "b"),
        ("#define X\n#ifdef X\n#define N a\n#else\n#define N b\n#endif\n__global__ void N() {}", "a"),
        ("#if Y\n__global__ void k(int a) {\n#else\n__global__ void k(float a) {\n#endif\n}\n__global__ void l() {}",
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
    """Kernels are found with their namespaces, and none in bodies, classes, comments and strings."""
    assert found(source) == names


def test_parameters_are_those_of_the_text_alone() -> None:
    """Parameters that depend on a macro or a condition are reported as uncertain."""
    parameters = [each.parameters for each in declarations(
        "#define T float\n__global__ void a(T x) {}\n__global__ void b(int n,\n#if X\nint m,\n#endif\nint o) {}\n"
        "__global__ void c(const float *x, void (*f)(int, int), A<int, 3> v) {}\n__global__ void d(void) {}"
    )]  # fmt: skip

    assert parameters == [None, None, ("const float*x", "void(*f)(int,int)", "A<int,3>v"), ()]


def test_headers_are_read_where_they_are_included() -> None:
    """Macros of headers apply to the source; recursive and guarded includes end."""
    texts = {
        "a.h": '#pragma once\n#include "b.h"\n#define MADE(n) __global__ void n() {}',
        "b.h": '#include "a.h"\n__constant__ int v;',
        "loop.h": '#include "loop.h"\n',
    }
    asked: list[tuple[str, str]] = []

    def include(name: str, of: str) -> tuple[str, str] | None:
        asked.append((name, of))
        return (f"/dir/{name}", texts[name]) if name in texts else None

    source = '#include "a.h"\n#include <a.h>\n#include "gone.h"\n#include "loop.h"\n#include MACRO\nMADE(k)'
    names = [each.name for each in declarations(source, (), include)]

    assert names == ["v", "k"]
    assert asked[:2] == [("a.h", ""), ("b.h", "/dir/a.h")]
    assert asked.count(("b.h", "/dir/a.h")) == 1, "a header that guards itself is read once"


def test_macros_of_the_options_are_known() -> None:
    """Macros of `-D` options apply."""
    named = declarations("MADE(k) __global__ void NAME() {}", [("MADE(n)", "__global__ void n##_1();"), ("NAME", "l")])

    assert [each.name for each in named] == ["k_1", "l"]


def test_indented_directives_are_directives() -> None:
    """White space before `#` is allowed, also after a line that is continued."""
    text = "#if P == 2\n    #define T double\n#else\n\t# define T float\n#endif\n__global__ void k(T *x) {}"

    (kernel,) = declarations(text)
    assert (kernel.name, kernel.is_kernel) == ("k", True)
    assert found("\n  #define MAKE(n) __global__ void n() {}\n  MAKE(made)") == "made"


def test_expansion_without_end_is_given_up() -> None:
    """Text that each macro doubles, and calls that never close."""
    doubling = "\n".join(f"#define M{n} M{n + 1} M{n + 1}" for n in range(60))

    assert [each.name for each in declarations(f"{doubling}\nM0;\n__global__ void k() {{}}")] in (["k"], [])
    assert found("#define F(x) x\nF(F(F(\n__global__ void k() {}") in ("k", "")


def test_macro_is_expanded_as_the_preprocessor_does() -> None:
    """Arguments are expanded first, except beside # or ##; a function-like macro without a call stays."""
    macros = Macros()
    for each in ("ONE 1", "F(a, b) a + b", "S(x) #x", "J(a, b) a ## b", "V(...) f(__VA_ARGS__)", "N(args...) g(args)"):
        macros.define(each)

    def expanded(text: str) -> str | None:
        name = text.partition("(")[0]
        made = macros.expand(name, text, len(name))[0]
        return made and made.replace(" ", "")

    assert [expanded(each) for each in ("ONE", "F(ONE, (2, 3))", "S(ONE)", "J(ONE, 2)", "V(1, ONE)", "N(2)", "F")] == [
        "1", "1+(2,3)", '""', "ONE2", "f(1,1)", "g(2)", None,
    ]  # fmt: skip
