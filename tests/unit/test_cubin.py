"""Reading cubins: real ones are read completely, and any other bytes raise nothing but ValueError."""

from __future__ import annotations

import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from numba_kcache.model.cubin import Cubin, CubinVariable, is_cubin, is_relocatable, read_cubin
from tests.support.compiling import compiled

SOURCE = r"""
__constant__ float table[10];
struct Box { double a; char b; };
extern "C" __global__ void first(float a, const float *x, char c, Box box, short s) {
    __shared__ double part[33];
    volatile float spill[20];
    part[threadIdx.x] = x[0] + table[c];
    for (int i = 0; i < 20; i++) spill[i] = a;
    __syncthreads();
    ((float *)x)[0] = part[32 - threadIdx.x] + spill[s] + box.a;
}
extern "C" __global__ void second() {}
template<class T> __global__ void third(T a, T *b) { *b = a; }
template __global__ void third<int>(int, int *);
"""
TARGETS = ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100a", "sm_103f", "sm_120", "sm_121a"]


@pytest.mark.parametrize("target", TARGETS)
def test_cubin_says_its_target_kernels_parameters_and_resources(target: str) -> None:
    """Cubins for Turing to Blackwell: kernels with the offsets and sizes of C, resources, and the module's
    constants."""
    cubin = read_cubin(compiled(SOURCE, "cubin", target))
    kernels = {each.symbol: each for each in cubin.kernels}

    assert cubin.sm == int(target[3:].rstrip("af"))
    assert set(kernels) == {"first", "second", "_Z5thirdIiEvT_PS0_"}
    assert kernels["first"].parameters == ((0, 4), (8, 8), (16, 1), (24, 16), (40, 2))
    assert kernels["second"].parameters == ()
    assert kernels["_Z5thirdIiEvT_PS0_"].parameters == ((0, 4), (8, 8))
    assert kernels["first"].shared_bytes == 33 * 8  # without the bytes that Hopper and later reserve
    assert kernels["second"].shared_bytes == 0
    assert kernels["first"].local_bytes >= 80
    assert kernels["second"].local_bytes == 0
    assert 8 <= kernels["first"].registers <= 255
    assert cubin.const_bytes == 40


@pytest.mark.parametrize("target", TARGETS)
def test_cubin_says_its_variables(target: str) -> None:
    """Symbol, size and whether it is in constant memory."""
    source = """
__constant__ double coeffs[2][3];
__device__ int counter;
__device__ short initial[3] = {1, 2, 3};
namespace ns { __device__ float2 pair; }
extern "C" __global__ void k(double *x) {
    __shared__ int no_variable;
    no_variable = 1;
    x[0] = coeffs[1][2] + counter++ + initial[1]++ + (ns::pair.x += no_variable);
}"""
    assert set(read_cubin(compiled(source, "cubin", target)).variables) == {
        CubinVariable("coeffs", 48, True),
        CubinVariable("counter", 4, False),
        CubinVariable("initial", 6, False),
        CubinVariable("_ZN2ns4pairE", 8, False),
    }


def test_many_parameters_are_in_order() -> None:
    """A cubin has the record of the last parameter first."""
    types = ["char", "double", "short", "float", "long long", "int"] * 6
    source = f'extern "C" __global__ void k({", ".join(f"{t} p{i}" for i, t in enumerate(types))}) {{}}'
    sizes = {"char": 1, "double": 8, "short": 2, "float": 4, "long long": 8, "int": 4}
    wanted, at = [], 0
    for name in types:
        at = -(-at // sizes[name]) * sizes[name]
        wanted.append((at, sizes[name]))
        at += sizes[name]

    assert list(read_cubin(compiled(source)).kernels[0].parameters) == wanted


def test_cubin_of_many_sections() -> None:
    """All 120 kernels of a module are found."""
    source = "\n".join(f'extern "C" __global__ void k{i}(int a) {{}}' for i in range(120))

    assert {each.symbol for each in read_cubin(compiled(source)).kernels} == {f"k{i}" for i in range(120)}


def test_relocatable_code_is_no_obstacle() -> None:
    """Code that is still to be linked can be read as well."""
    assert {each.symbol for each in read_cubin(compiled(SOURCE, "cubin", "sm_90", "-rdc=true")).kernels} >= {"first"}


def test_kernel_without_its_description_is_lacking() -> None:
    """A `.text` section alone is no kernel: the driver would not find it."""
    cubin = compiled('extern "C" __global__ void k(int a) {}')

    assert [each.symbol for each in read_cubin(cubin).kernels] == ["k"]
    assert "k" not in {each.symbol for each in read_cubin(cubin.replace(b".nv.info.k\0", b".nv.info.j\0")).kernels}
    assert "k" not in {each.symbol for each in read_cubin(cubin.replace(b".text.k\0", b".text.j\0")).kernels}


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02" + bytes(59), b"//\n.version 8.0", bytes(1000)])
def test_other_bytes_are_no_cubin(data: bytes) -> None:
    """Empty, short, an ELF of another machine, PTX, zeros."""
    assert not is_cubin(data)
    with pytest.raises(ValueError, match="not a 64-bit CUDA ELF"):
        read_cubin(data)


def read_or_refuse(data: bytes) -> Cubin | None:
    """Result of reading; None for a ValueError. Any other exception fails the test."""
    try:
        return read_cubin(data)
    except ValueError:
        return None


@pytest.mark.parametrize("target", ["sm_75", "sm_120"])
def test_every_truncation_is_a_value_or_a_value_error(target: str) -> None:
    """A cubin that is cut after any of its bytes is read, or is a ValueError."""
    whole = compiled(SOURCE, "cubin", target)
    assert len(whole) > 4000
    symbols = {each.symbol for each in read_cubin(whole).kernels}

    for size in range(len(whole)):
        found = read_or_refuse(whole[:size])
        assert found is None or {each.symbol for each in found.kernels} <= symbols


@pytest.mark.slow
def test_random_flips_are_a_value_or_a_value_error() -> None:
    """One to eight damaged bytes anywhere, half of them among the headers and tables that are read."""
    whole = compiled(SOURCE, "cubin", "sm_90")
    (table,) = struct.unpack_from("<Q", whole, 40)
    chance = random.Random(2026)

    for _ in range(4000):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 8)):
            place = chance.choice(
                (chance.randrange(64), chance.randrange(table, len(whole)), chance.randrange(len(whole)))
            )
            damaged[place] = chance.randrange(256)
        read_or_refuse(bytes(damaged))


@pytest.mark.slow
def test_every_byte_of_the_section_table_may_lie() -> None:
    """Each byte of the file header and the section headers is set to 0, 1, 0x7f, 0x80 and 0xff."""
    whole = compiled('extern "C" __global__ void k(int a) {}')
    (table,) = struct.unpack_from("<Q", whole, 40)
    width, count = struct.unpack_from("<HH", whole, 58)

    for place in (*range(64), *range(table, table + width * count)):
        for value in (0, 1, 0x7F, 0x80, 0xFF):
            read_or_refuse(whole[:place] + bytes((value,)) + whole[place + 1 :])


@given(st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_behind_the_magic_are_a_value_or_a_value_error(tail: bytes) -> None:
    """Random bytes after a cubin's magic number are read, or are a ValueError."""
    read_or_refuse(compiled(SOURCE, "cubin", "sm_90")[:40] + tail)
    read_or_refuse(compiled(SOURCE, "cubin", "sm_90")[:64] + tail)


def test_huge_counts_are_refused_at_once() -> None:
    """A section count of 2**64 in section 0 allocates no memory."""
    forged = bytearray(compiled('extern "C" __global__ void k(int a) {}'))
    (table,) = struct.unpack_from("<Q", forged, 40)
    struct.pack_into("<H", forged, 60, 0)
    struct.pack_into("<Q", forged, table + 32, 2**64 - 1)

    with pytest.raises(ValueError, match="more sections than bytes"):
        read_cubin(bytes(forged))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("floats", [1080, 1090, 4000, 8187])
def test_kernel_of_many_bytes_of_parameters_is_read(target: str, floats: int) -> None:
    """Up to 32,764, the most of compute capability 7.0 and later; above 4,352 in records of another kind."""
    source = f'struct L {{ float f[{floats}]; }};\nextern "C" __global__ void k(L l, int n, short s) {{}}'
    (kernel,) = read_cubin(compiled(source, "cubin", target)).kernels

    assert kernel.parameters == ((0, 4 * floats), (4 * floats, 4), (4 * floats + 4, 2))


def test_code_that_is_yet_to_be_linked_is_told() -> None:
    """A relocatable object (-rdc=true) is no finished cubin."""
    assert is_relocatable(compiled(SOURCE, "cubin", "sm_90", "-rdc=true"))
    assert not is_relocatable(compiled(SOURCE, "cubin", "sm_90"))
    assert not is_relocatable(b"")


@pytest.mark.parametrize(
    ("bounds", "threads"), [("", 1024), ("__launch_bounds__(96)", 96), ("__launch_bounds__(1024, 2)", 1024)]
)
def test_cubin_says_how_many_threads_are_certain(bounds: str, threads: int) -> None:
    """Launch bounds limit them, or the 65,536 registers of a block from compute capability 7.0 on."""
    source = f'extern "C" __global__ void {bounds} k(float *x) {{ x[threadIdx.x] = 1; }}'

    assert read_cubin(compiled(source, "cubin", "sm_90")).kernels[0].safe_threads == threads


def test_many_registers_leave_fewer_threads_certain() -> None:
    """With more than 64 registers for each thread, 256 threads are certain to fit, on every device."""
    reads = "".join(f"float v{n} = x[i + {n}];" for n in range(100))
    total, writes = "+".join(f"v{n}" for n in range(100)), "".join(f"x[i * {n}] = v{n} * sum;" for n in range(100))
    source = f'extern "C" __global__ void k(float *x, int i) {{ {reads} float sum = {total}; {writes} }}'
    kernel = read_cubin(compiled(source, "cubin", "sm_90")).kernels[0]

    assert kernel.registers > 64
    assert kernel.safe_threads == 256
