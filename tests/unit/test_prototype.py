"""Parameter types as the compiler writes them: real mangled names from NVRTC, compared with the cubin."""

from __future__ import annotations

import random

import pytest

from numba_kcache.frontends.source import prototype
from numba_kcache.frontends.source.declarations import declarations as declared_in
from numba_kcache.frontends.source.prototype import (
    kernel_name,
    make_probe,
    read_parameters,
    read_variable,
    variable_name,
)
from numba_kcache.model import Parameter
from numba_kcache.model.cubin import read_cubin
from numba_kcache.toolchain.nvrtc import run_nvrtc
from tests.support.compiling import toolkit_dirs


def described(declarations: str, parameters: str, *, headers: bool = False) -> list[tuple[str, str]]:
    """(code, C type) of each parameter of a kernel with this parameter list, as compiled for sm_90."""
    source = f'{declarations}\nextern "C" __global__ void k({parameters}) {{}}'
    probe = make_probe((), declared_in(source))
    flags = ["-arch=sm_90", *(f"-I{folder}" for folder in toolkit_dirs() if headers)]
    result = run_nvrtc(source + probe.text, "k.cu", flags, ("cubin",), probe.expressions)
    assert result.ok, result.log
    (kernel,) = read_cubin(result.code["cubin"]).kernels
    found, typed = read_parameters(probe.types(result.lowered)["k"], kernel.parameters)
    assert typed
    return [(each.code, each.c_type) for each in found]


SCALARS = {
    "bool": "b1", "char": "i1", "signed char": "i1", "unsigned char": "u1", "short": "i2", "unsigned short": "u2",
    "int": "i4", "unsigned": "u4", "long": "i8", "unsigned long": "u8", "long long": "i8",
    "unsigned long long": "u8", "float": "f4", "double": "f8", "wchar_t": "i4", "char16_t": "u2", "char32_t": "u4",
    "size_t": "u8",
}  # fmt: skip


def test_every_scalar_by_value() -> None:
    """A kernel can take all fundamental types by value."""
    found = described("", ", ".join(f"{name} p{i}" for i, name in enumerate(SCALARS)))

    assert [code for code, _ in found] == list(SCALARS.values())


def test_every_scalar_behind_a_pointer() -> None:
    """A kernel can take pointers to all of these types, const or not."""
    codes = list(SCALARS.values())

    assert [code for code, _ in described("", ", ".join(f"{name} *p{i}" for i, name in enumerate(SCALARS)))] == [
        f"*{code}" for code in codes
    ]
    assert [code for code, _ in described("", ", ".join(f"const {name} *p{i}" for i, name in enumerate(SCALARS)))] == [
        f"*k{code}" for code in codes
    ]


@pytest.mark.parametrize(
    ("parameter", "code", "c_type"),
    [
        ("const float a", "f4", "float"),
        ("volatile float *a", "*f4", "float volatile*"),
        ("const volatile int *a", "*ki4", "int const volatile*"),
        ("float *__restrict__ a", "*f4", "float*"),
        ("const float *const __restrict__ a", "*kf4", "float const*"),
        ("void *a", "*?", "void*"),
        ("const void *a", "*k?", "void const*"),
        ("float **a", "*o", "float**"),
        ("const float *const *a", "*ko", "float const* const*"),
        ("float &a", "*f4", "float&"),
        ("const float &a", "*kf4", "float const&"),
        ("float a[10]", "*f4", "float*"),
        ("const float a[][4]", "*kf4", "float const(*)[4]"),
        ("double (*a)[256][128]", "*f8", "double(*)[256][128]"),
        ("const int (**a)[2][3][4]", "*o", "int const(**)[2][3][4]"),
        ("float (*a)[4]", "*f4", None),
        ("float (&a)[4]", "*f4", None),
        ("int (*a)[2][3]", "*i4", None),
        ("void (*a)(int)", "o", None),
        ("Box a", "o", "Box"),
        ("Box *a", "*o", "Box*"),
        ("const Box *a", "*ko", "Box const*"),
        ("ns::Pair<float, 3> a", "o", "ns::Pair<float, 3>"),
        ("ns::Pair<float, 3> *a", "*o", "ns::Pair<float, 3>*"),
        ("Colour a", "o", "Colour"),
        ("real a", "f8", "double"),
        ("const real *a", "*kf8", "double const*"),
        ("float2 a", "v2f4", "float2"),
        ("const double3 *a", "*kv3f8", "double3 const*"),
        ("uchar4 a", "v4u1", "uchar4"),
        ("int1 a", "v1i4", "int1"),
        ("ulonglong2 *a", "*v2u8", "ulonglong2*"),
        ("short3 a", "v3i2", "short3"),
        ("dim3 a", "o", "dim3"),
    ],
)
def test_parameter_is_read(parameter: str, code: str, c_type: str | None) -> None:
    """Qualifiers, references, arrays, structs, templates, typedefs and vectors: parameters that can be passed, and
    their names."""
    declarations = """
struct Box { double a; char b; };
namespace ns { template<class T, int N> struct Pair { T a[N]; }; }
enum Colour { RED };
typedef double real;
"""
    ((found, spelling),) = described(declarations, parameter)

    assert found == code
    assert c_type is None or spelling == c_type


def test_half_bfloat_and_fp8_of_the_toolkit() -> None:
    """The number classes of cuda_fp16.h, cuda_bf16.h and cuda_fp8.h, by value and behind pointers."""
    headers = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n#include <cuda_fp8.h>\n"
    types = "half, const __half*, half2, __half2*, __nv_bfloat16, nv_bfloat16*, const __nv_bfloat162*, __nv_fp8_e4m3,"

    assert [code for code, _ in described(headers, types + " __nv_fp8_e5m2*", headers=True)] == [
        "f2", "*kf2", "v2f2", "*v2f2", "bf", "*bf", "*kv2bf", "e4", "*e5",
    ]  # fmt: skip


@pytest.mark.slow
def test_complex_of_thrust_in_its_inline_namespace() -> None:
    """thrust::complex, which CuPy's kernels take, stands in a namespace named after version and target."""
    made = "template <class T> struct complex { T a, b; };"
    made = f"namespace thrust {{ inline namespace THRUST_300102_SM_900_NS {{ {made} }} }}"

    assert [code for code, _ in described(made, "thrust::complex<double> a, thrust::complex<float> *b")] == [
        "c8",
        "*c4",
    ]


@pytest.mark.slow
def test_complex_of_the_standard_library() -> None:
    """cuda::std::complex, whose inline namespace has a number that changes from release to release."""
    types = "cuda::std::complex<float> a, const cuda::std::complex<double> *b"

    assert [code for code, _ in described("#include <cuda/std/complex>", types, headers=True)] == ["c4", "*kc8"]


def test_kernel_of_a_template_and_of_a_namespace() -> None:
    """The symbol of a C++ kernel holds its types itself."""
    source = """
namespace ns { template<class T, int N> __global__ void k(const T *a, T b, int n) {} }
template __global__ void ns::k<double, 4>(const double *, double, int);
"""
    result = run_nvrtc(source, "k.cu", ["-arch=sm_90"], ("cubin",))
    (kernel,) = read_cubin(result.code["cubin"]).kernels

    found, typed = read_parameters(kernel.symbol, kernel.parameters)

    assert kernel_name(kernel.symbol) == "ns::k<double, 4>"
    if typed:  # T_ in the symbol refers to the template's arguments
        assert [each.code for each in found] == ["*kf8", "f8", "i4"]


LAYOUT = [(0, 4), (8, 8)]


@pytest.mark.parametrize(
    ("lowered", "layout", "why"),
    [
        (None, LAYOUT, "nothing was asked"),
        ("k", LAYOUT, 'extern "C"'),
        ("", LAYOUT, "an empty name"),
        ("_Z", LAYOUT, "a cut name"),
        ("_Z1kfPf?", LAYOUT, "no mangled name"),
        ("not a name at all", LAYOUT, "no mangled name"),
        ("_Z1kf", LAYOUT, "one parameter too few"),
        ("_Z1kfPfi", LAYOUT, "one parameter too many"),
        ("_Z1kv", LAYOUT, "none"),
        ("_Z1kfPf", [], "the cubin has none"),
        ("_Z1kdPf", LAYOUT, "a double where 4 bytes are"),
        ("_Z1kff", LAYOUT, "a float where 8 bytes are"),
        ("_Z1kPff", LAYOUT, "swapped"),
        ("_Z1k6float4Pf", LAYOUT, "a vector where 4 bytes are"),
        ("_Z1kRPf", [(0, 4)], "a reference where 4 bytes are"),
    ],
)
def test_disagreement_with_the_layout_is_untyped(lowered: str | None, layout: list[tuple[int, int]], why: str) -> None:
    """If name and cubin do not agree, only offsets and sizes are reported: a wrong type would pack wrong bytes."""
    found, typed = read_parameters(lowered, layout)

    if lowered == "_Z1kRPf":  # a reference cannot have 4 bytes, so this is no pointer
        assert not any(each.code.startswith("*") for each in found)
        return
    assert not typed, why
    assert found == tuple(Parameter(offset, size, "?") for offset, size in layout)


def test_agreement_with_the_layout_is_typed() -> None:
    """The counter-example: the same layout with a matching name."""
    found, typed = read_parameters("_Z1kfPKf", LAYOUT)

    assert typed
    assert [(each.offset, each.size, each.code) for each in found] == [(0, 4, "f4"), (8, 8, "*kf4")]


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("saxpy", "saxpy"),
        ("_Z4axpyIfEvT_", "axpy<float>"),
        ("_ZN2ns1kEPf", "ns::k"),
        ("_Z1kILin3ELb1ELj7EEvPf", "k<-3, true, 7>"),
        ("_Zbroken", "_Zbroken"),
    ],
)
def test_symbol_is_named_as_the_source_does(symbol: str, name: str) -> None:
    """Symbols in lists of candidates are demangled; those that cannot be are unchanged."""
    assert kernel_name(symbol) == name


VARIABLES = {
    "int": (4, "i4", (), False),
    "const double": (8, "f8", (), True),
    "unsigned long": (8, "u8", (), False),
    "float[4]": (16, "f4", (4,), False),
    "const float[4]": (16, "f4", (4,), True),
    "short[2][3]": (12, "i2", (2, 3), False),
    "const bool[2][3][5]": (30, "b1", (2, 3, 5), True),
    "float2": (8, "v2f4", (), False),
    "int4[3]": (48, "v4i4", (3,), False),
    "float *": (8, "u8", (), False),
    "float *const[2]": (16, "u8", (2,), True),
    "Box<int>": (24, "o", (), False),
    "const Box<int>[2]": (48, "o", (), True),
}


@pytest.mark.parametrize("kind", VARIABLES)
def test_variable_is_read(kind: str) -> None:
    """Element, extents and const, as the compiler resolved them; structs have no word."""
    size, code, shape, is_const = VARIABLES[kind]
    source = f"template <class T> struct Box {{ T value[6]; }};\nusing type = {kind};\n__device__ extern type v;"
    probe = make_probe((), declared_in(source))
    result = run_nvrtc(source + probe.text, "k.cu", ["-arch=sm_90", "-rdc=true"], (), probe.expressions)
    assert result.ok, result.log
    told = probe.types(result.lowered)["v"]

    assert read_variable(told, size) == (code, shape, is_const)
    assert read_variable(told, size + 1)[:2] == ("o", ())


@pytest.mark.parametrize("lowered", ["", "v", "_Z", "_Z1kv", "_Z22numba_kcache_prototypeI", "_Z1xIA_iE", "_Z1xILi3EE"])
def test_what_tells_no_type_is_no_type(lowered: str) -> None:
    """Names that the demangler does not know, and names of other things than variables."""
    assert read_variable(lowered, 4) == ("o", (), False)


@pytest.mark.parametrize(
    ("symbol", "name"),
    [
        ("v", "v"),
        ("_ZN2ns1vE", "ns::v"),
        ("_ZL1v", "v"),
        ("_ZZ1kvE1v", "_ZZ1kvE1v"),
        ("$str", "$str"),
        ("_Znonsense", "_Znonsense"),
        ("_ZN25_INTERNAL_00000000_4_k_cu2ns1vE", "ns::v"),
    ],
)
def test_variable_is_named_as_the_source_does(symbol: str, name: str) -> None:
    """Variables have their namespaces; one that cannot be named from outside keeps its symbol."""
    assert variable_name(symbol) == name


def test_numbers_and_pointers_are_read_as_by_the_demangler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random lists of these types, with the back references of mangling, are read as the demangler reads them; other
    types are left to it."""
    chance, letters = random.Random(19), "wbcahstijlmxyfd"
    start = f"_Z{len(prototype.PROBE)}{prototype.PROBE}IFv"
    for _ in range(300):
        known, text, sizes = ["the probe"], "", []
        for _ in range(chance.randrange(1, 7)):
            kind = chance.choice(("", "P", "PK"))
            full = kind + chance.choice(letters + "v" * bool(kind))
            text += f"S{known.index(full) - 1}_" if full in known[:10] else full
            known += [] if full in known or not kind else [full[1:], full] if kind == "PK" else [full]
            sizes.append(chance.choice((4, 8)))
        plain, nodes = prototype.plain_types(f"{start}{text}EEvv"), prototype.argument_types(f"{start}{text}EEvv")

        assert plain is not None, text
        assert nodes is not None, text
        described = [prototype.describe_node(node, size) for node, size in zip(nodes, sizes, strict=True)]
        assert [prototype.describe_node(node, size) for node, size in zip(plain, sizes, strict=True)] == described, text

    monkeypatch.setattr("itanium_demangler.parse", None)
    assert read_parameters(f"{start}fPKfPfiEEvv", [(0, 4), (8, 8), (16, 8), (24, 4)])[1]
    assert read_parameters(f"{start}vEEvv", []) == ((), True)
    for other in ("6float2EEvv", "PFvvEEEvv", "S_EEvv", "S0_EEvv", "PKfS9_EEvv", "PEEvv", "fE", "zEEvv", "vfEEvv"):
        assert not read_parameters(start + other, [(0, 8)])[1], other
