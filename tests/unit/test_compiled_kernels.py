"""The kernel of a source that is meant: found in the text or the cubin; the error where it cannot be decided."""

from __future__ import annotations

import pytest

from numba_kcache.errors import CompileError, EntryError
from numba_kcache.frontends.source.declarations import declarations
from numba_kcache.frontends.source.kernels import kernels_in, parameter_names
from tests.support.compiling import build, compiled

TWO = 'extern "C" __global__ void first(int a) {}\nextern "C" __global__ void second(float *x) {}'
OVERLOADED = "__global__ void k(int a) {}\n__global__ void k(float *x, int n) {}"
TEMPLATES = """
template<class T> __global__ void axpy(T a, const T *x, T *y) { y[threadIdx.x] += a * x[threadIdx.x]; }
template<class T, int TILE> __global__ void gemm(const T *a, T *c) { __shared__ T tile[TILE]; *c = tile[0] + *a; }
"""


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("", ()),
        ("__global__ void k() {}", ("k",)),
        ('extern "C" __global__ void __launch_bounds__(256, 2) k(int a) {}', ("k",)),
        ("__global__ __launch_bounds__(128) void k() {}", ("k",)),
        ("static __global__ void\nk\n(int a) {}", ("k",)),
        ("template<class T>\n__global__ void k(T a) {}", ("k",)),
        (TWO, ("first", "second")),
        ("__global__ void k(int); __global__ void k(int a) {}", ("k",)),
        ("// __global__ void no() {}\n/* __global__ void no() {} */ __global__ void k() {}", ("k",)),
        ('const char *s = "__global__ void no() {}"; __global__ void k() {}', ("k",)),
        ("#define KERNEL(n) __global__ void n() {}\nKERNEL(made)", ()),
        ("#define KERNEL(n) \\\n  __global__ void n() {}\n__global__ void k() {}", ("k",)),
        ("__device__ void d() {}\nvoid host() {}", ()),
        ('_Pragma("nv_diag_suppress 177") MACRO_OF_A_HEADER(1)\nextern "C" __global__ void k() {}', ("k",)),
        ("namespace ns { __global__ void k() {} }", ("k",)),
    ],
)
def test_text_is_scanned_for_kernels(source: str, names: tuple[str, ...]) -> None:
    """Attributes, comments, strings and declarations do not mislead; what macros make is found in the compiled code."""
    assert kernels_in(declarations(source)) == names


@pytest.mark.parametrize(
    ("source", "name", "guess", "symbol"),
    [
        (TWO, None, "second", "second"),
        (TWO, "first", "second", "first"),
        ('extern "C" __global__ void only(int a) {}', None, "other", "only"),
        ('extern "C" __global__ void only(int a) {}', None, None, "only"),
        ("__global__ void k(int a) {}", "k", None, "_Z1ki"),
        ("namespace ns { __global__ void k(int a) {} }", "ns::k", None, "_ZN2ns1kEi"),
        ("namespace ns { __global__ void k(int a) {} }", None, None, "_ZN2ns1kEi"),
        ("namespace ns { __global__ void k(int a) {} }", None, "k", "_ZN2ns1kEi"),
        (TEMPLATES, "axpy<float>", None, "_Z4axpyIfEvT_PKS0_PS0_"),
        (TEMPLATES, "gemm<float, 32>", None, "_Z4gemmIfLi32EEvPKT_PS0_"),
        (TEMPLATES, "gemm<double,16*2>", None, "_Z4gemmIdLi32EEvPKT_PS0_"),
        ("template<class T> __global__ void k(T a) {}\ntemplate __global__ void k<int>(int);", None, "k", "_Z1kIiEvT_"),
        ("namespace n { __global__ void k(int) {} } __global__ void k(int *a) {}", "k", None, "_Z1kPi"),
        ("namespace n { __global__ void k(int) {} } __global__ void k(int *a) {}", "n::k", None, "_ZN1n1kEi"),
        ('#define NAME k_float\nextern "C" __global__ void NAME(float *x) {}', "NAME", None, "k_float"),
        ("namespace n { template<class T> __global__ void k(T a) {} template __global__ void k<int>(int); }", None, "k",
         "_ZN1n1kIiEEvT_"),
        ('#define KERNEL(n) extern "C" __global__ void n(float a, int *b) {}\nKERNEL(made)', None, "made", "made"),
        ('#define KERNEL(n) extern "C" __global__ void n(float a, int *b) {}\nKERNEL(made)', "made", None, "made"),
        ('#define KERNEL(n) extern "C" __global__ void n(float a, int *b) {}\nKERNEL(made)', None, None, "made"),
    ],
)  # fmt: skip
def test_entry_is_found(source: str, name: str | None, guess: str | None, symbol: str) -> None:
    """An entry is found by name, by the function's name, or as the only one, with namespaces, templates and macros."""
    entry = build(source, name, guess).kernels[0]

    assert entry.symbol == symbol
    assert entry.typed


def test_name_that_only_the_text_has_is_no_choice() -> None:
    """The name in the text is a guess, here wrong: the only kernel of the compiled code is meant."""
    source = 'extern "C" __global__ void NAME(float a) {}'

    assert build(source, options=["--define-macro", "NAME=k"]).kernels[0].symbol == "k"


def test_template_instance_has_its_own_types() -> None:
    """An instance has the types of `axpy<double>`, not those written in `axpy<T>`."""
    entry = build(TEMPLATES, "axpy<double>").kernels[0]

    assert entry.name == "axpy<double>"
    assert [each.code for each in entry.parameters] == ["f8", "*kf8", "*f8"]


def test_macro_made_kernel_has_its_types() -> None:
    """Macros in the text give the kernel's name, and the compiler its types."""
    source = '#define KERNEL(n) extern "C" __global__ void n(float a, const int *b) {}\nKERNEL(made)'

    assert [each.code for each in build(source).kernels[0].parameters] == ["f4", "*ki4"]


@pytest.mark.parametrize(
    "scope", ["namespace n {", "namespace n { namespace m {", "namespace n::m { inline namespace v {", "namespace {"]
)
def test_c_kernel_in_a_namespace_has_its_types(scope: str) -> None:
    """Its symbol has no namespace; the compiler finds it in those of the text."""
    source = f'{scope} extern "C" __global__ void k(float a, const int *b) {{}} {"}" * scope.count("{")}'

    assert [each.code for each in build(source).kernels[0].parameters] == ["f4", "*ki4"]


@pytest.mark.parametrize(
    ("source", "name", "guess", "says"),
    [
        (TWO, None, None, r"cannot choose a kernel in tests\.kernel: the source has (first, second|second, first)"),
        (TWO, None, "third", r"cannot choose a kernel"),
        (TWO, "third", None, r"cannot find the kernel 'third' in tests\.kernel: the source has (first|second)"),
        (OVERLOADED, "k", None, r"cannot choose a kernel in tests\.kernel: the source has k, k"),
        (OVERLOADED, None, "k", r"cannot choose a kernel"),
        ("", None, None, r"cannot find a kernel in tests\.kernel: the source defines no __global__ function"),
        ("__device__ int d() { return 1; }", None, "k", "the source defines no __global__ function"),
        (TEMPLATES, None, None, r"axpy and gemm are templates, static or only declared, and nothing instantiates them"),
        (TEMPLATES, "axpy", None, r"axpy and gemm are templates, static or only declared"),
        (TEMPLATES, "axpy<nothing>", None, r"cannot find the kernel 'axpy<nothing>' in tests\.kernel: .*nothing"),
        (TEMPLATES, "axpi<float>", None, r"cannot find the kernel 'axpi<float>'"),
    ],
)
def test_no_choice_lists_the_candidates(source: str, name: str | None, guess: str | None, says: str) -> None:
    """No kernel, several, or another name: the error lists the kernels and what to write."""
    with pytest.raises(EntryError, match=says) as caught:
        build(source, name, guess)

    assert "name=" in caught.value.hint or "the source has" in str(caught.value) or "defines no" in str(caught.value)


def test_template_hint_is_an_instance() -> None:
    """The hint spells out an instance to write."""
    with pytest.raises(EntryError) as caught:
        build("template<class T> __global__ void axpy(T a) {}")

    assert caught.value.hint == "define it, or name an instance: name='axpy<float>'"


def test_overloads_are_untyped_but_usable_by_symbol() -> None:
    """decltype cannot be applied to overloads; one of them is selected by its symbol, whose mangled name has its
    types."""
    entry = build(OVERLOADED, "_Z1kPfi").kernels[0]

    assert entry.symbol == "_Z1kPfi"
    assert [each.code for each in entry.parameters] == ["*f4", "i4"]


def test_ptx_entry_is_found() -> None:
    """An entry is found by name, or as the only one; several are listed in the error."""
    one = compiled('extern "C" __global__ void k(int a) {}', "ptx").decode().rstrip("\0")
    two = compiled(TWO, "ptx").decode().rstrip("\0")

    assert build(one, kind="ptx").kernels[0].symbol == "k"
    assert build(two, "second", kind="ptx").kernels[0].parameters[0].size == 8
    with pytest.raises(EntryError, match=r"cannot choose a kernel in tests\.kernel: the source has"):
        build(two, kind="ptx")
    with pytest.raises(EntryError, match="cannot find the kernel 'third'"):
        build(two, "third", kind="ptx")
    with pytest.raises(EntryError, match=r"the PTX has no \.entry"):
        build(".version 8.0\n.target sm_80\n.address_size 64\n", kind="ptx")


def test_source_that_uses_the_probe_s_name_still_compiles() -> None:
    """The probe's name is reserved; a source that has it anyway is compiled without the probe."""
    entry = build('__device__ int numba_kcache_prototype;\nextern "C" __global__ void k(float a) {}').kernels[0]

    assert (entry.symbol, entry.typed) == ("k", False)
    assert [(each.size, each.code) for each in entry.parameters] == [(4, "?")]


@pytest.mark.parametrize("tail", ["// a comment", "\\", "/* open", "#if 0\n#endif // x", "#pragma once"])
def test_last_line_of_the_source_does_not_swallow_the_probe(tail: str) -> None:
    """A source may end in a line comment or a backslash; an open block comment is an error of the user's source."""
    source = 'extern "C" __global__ void k(float a) {}\n' + tail
    if tail.startswith("/*"):
        with pytest.raises(CompileError):
            build(source)
        return
    assert build(source).kernels[0].typed


DECLARED = [
    ("__global__ void __launch_bounds__(256, 2) k(float a, const float *__restrict__ x, float*y /* out, it */, int n)",
     "a x y n"),
    ("__global__ void k() {}", ""),
    ("__global__ void k(void) {}", ""),
    ("template<class T, int N> __global__ void k(cuda::std::array<T, N> v, T (&r)[4], float m[3][N], T const& q)",
     "v - m q"),
    ("__global__ void k(unsigned long long, const Foo, ns::Foo, float4, struct S s, void (*f)(int), unsigned n = 3)",
     "- - - - s - n"),
    ("__global__ void k(const __grid_constant__ CUtensorMap t, alignas(16) Foo f)", "t f"),
    ("__global__ void k(float*, int); // k(float a, int b)\n__global__ void k(float *x, int n) {}", "x n"),
    ("__global__ void k(float *a, int n); __global__ void k(float *x, int n) {}", "- n"),
    ("namespace a { __global__ void k(int n, float x); } namespace b { __global__ void k(float x, int n); }", "- -"),
    ("#define ARGS float a, int b\n__global__ void k(ARGS) {}", "- -"),
    ("#define K(A) __global__ void k(A b, A a)\n#if 0\n__global__ void k(int a, int b);\n#else\nK(int)\n#endif", "- -"),
    ("__global__ void other(float a, int b)", "- -"),
    ("__global__ void k(float a, int b", "- -"),
]  # fmt: skip
"""Declarations and the names in them, - for what is not to be named."""


@pytest.mark.parametrize(("source", "names"), DECLARED)
def test_names_of_parameters_are_read_where_they_are_certain(source: str, names: str) -> None:
    """Each name is as declared, or "-" where the text does not give it or gives two."""
    expected = tuple(name.strip("-") for name in names.split())

    assert parameter_names(declarations(source), "k", len(expected)) == expected


@pytest.mark.parametrize(
    ("source", "name", "shown"),
    [
        ('extern "C" __global__ void k(float a, int *out) {}', None, ["float a", "int* out"]),
        (TEMPLATES, "gemm<float, 32>", ["float const* a", "float* c"]),
        ("namespace ns { __global__ void k(int n) {} }", "ns::k", ["int n"]),
    ],
)
def test_parameters_carry_their_names(source: str, name: str | None, shown: list[str]) -> None:
    """Types from the compiler, names from the text."""
    assert [str(each) for each in build(source, name).kernels[0].parameters] == shown
