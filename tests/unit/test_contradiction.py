"""Artifacts compared with their own code: what real compiles describe fits, and nothing else does."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from numba_kcache.model import Artifact, CompiledKernel, Parameter, Variable, misfit, parse_target
from numba_kcache.model.contradiction import contradiction_of
from numba_kcache.model.cubin import read_cubin
from tests.support.compiling import compiled

SOURCE = r"""
__constant__ float table[10];
struct Box { double a; char b; };
extern "C" __global__ void first(float a, const float *x, char c, Box box, short s) { ((float *)x)[s] = a + table[c]; }
extern "C" __global__ void t() {}
extern "C" __global__ void first_t(int a) {}
template<class T> __global__ void third(T a, T *b) { *b = a; }
template __global__ void third<int>(int, int *);
"""
TARGETS = ["sm_75", "sm_90a", "sm_120"]


def artifact(target: str = "sm_90") -> Artifact:
    """An artifact whose description of its cubin is right."""
    cubin = compiled(SOURCE, "cubin", target)
    entries = tuple(
        CompiledKernel(each.symbol, each.symbol, tuple(Parameter(*place, "?") for place in each.parameters))
        for each in read_cubin(cubin).kernels
    )
    variables = tuple(Variable(each.symbol, each.symbol, each.size_bytes) for each in read_cubin(cubin).variables)
    return Artifact("cuda", parse_target(target), entries, cubin, variables=variables)


@pytest.mark.parametrize("target", TARGETS)
def test_compiled_artifact_fits_its_code(target: str) -> None:
    """The check passes for the whole artifact and for each kernel, also if a name is the end of another."""
    made = artifact(target)

    assert len(made.kernels) == 4
    assert contradiction_of(made) == ""
    assert [misfit(made, each) for each in made.kernels] == [""] * 4


def test_kernels_that_are_asked_about_one_after_another_are_found_and_found_out() -> None:
    """The sections of a cubin are listed once for all kernels; a name that is the end of another's is found too."""
    made = artifact()
    places: dict[str, Any] = {}

    assert [misfit(made, each, places) for each in made.kernels] == [""] * 4
    assert {each.symbol for each in made.kernels} <= set(places)
    assert "has no kernel irst" in misfit(made, made.kernels[0]._replace(symbol="irst"), places)
    assert all("other parameters" in misfit(made, each._replace(parameters=()), places) for each in made.kernels[:1])
    del places[made.kernels[2].symbol]
    assert misfit(made, made.kernels[2], places) == ""


def test_kernels_with_equal_parameters_are_each_compared_with_their_own_records() -> None:
    """A kernel whose records in the cubin differ, or that has one more, is refused even if the kernel before it
    fits."""
    source = "".join(f'extern "C" __global__ void k{n}(float a, float *x) {{ x[{n}] = a; }}' for n in range(4))
    cubin, parameters = compiled(source, "cubin", "sm_90"), (Parameter(0, 4, "f4"), Parameter(8, 8, "*f4"))
    entries = tuple(CompiledKernel(f"k{n}", f"k{n}", parameters) for n in range(4))
    made, places, altered = Artifact("cuda", parse_target("sm_90"), entries, cubin), dict[str, Any](), bytearray(cubin)
    assert misfit(made, entries[0], places) == ""
    _, at, size = places["k1"]
    first, last = cubin.find(b"\4\x17\x0c\0", at, at + size), cubin.rfind(b"\4\x17\x0c\0", at, at + size)
    altered[first + 10] += 4  # an offset
    _, at, size = places["k2"]
    altered[at + size - 16 : at + size] = cubin[last : last + 12] + bytes(4)
    altered[at + size - 16 + 8] = 2  # a third parameter

    told = [misfit(made._replace(cubin=bytes(altered)), each, places) for each in entries]

    assert told == ["", "its cubin has other parameters of k1", "its cubin has other parameters of k2", ""]


@pytest.mark.parametrize(
    ("entry", "target", "why"),
    [
        ({"symbol": "second"}, "sm_90", "has no kernel second"),
        ({"symbol": "irst"}, "sm_90", "has no kernel irst"),
        ({"parameters": ()}, "sm_90", "other parameters of"),
        ({"parameters": (Parameter(0, 4, "?"), Parameter(8, 8, "?"), Parameter(16, 8, "?"))}, "sm_90", "other param"),
        ({}, "sm_80", "is for sm_90"),
        ({}, "sm_100", "is for sm_90"),
    ],
)
def test_header_that_lies_about_a_cubin_is_found_out(entry: dict[str, object], target: str, why: str) -> None:
    """Another kernel, other parameters or another target, in the check of a whole artifact and in that of a hit."""
    made = artifact()
    first = made.kernels[0]._replace(**entry)
    lying = made._replace(kernels=(first, *made.kernels[1:]), target=parse_target(target))

    assert why in contradiction_of(lying)
    assert why in misfit(lying, first)


def test_more_threads_than_launch_bounds_allow_are_found_out() -> None:
    """The number of safe threads is checked, since below it a launch does not query the driver."""
    source = 'extern "C" __global__ void __launch_bounds__(64) k(int *out) { out[threadIdx.x] = 1; }'
    entry = CompiledKernel("k", "k", (Parameter(0, 8, "*i4"),), safe_threads=64)
    made = Artifact("cuda", parse_target("sm_90"), (entry,), compiled(source, "cubin", "sm_90"))

    assert contradiction_of(made) == ""
    assert "fewer threads of k" in contradiction_of(made._replace(kernels=(entry._replace(safe_threads=65),)))


def test_record_that_is_no_whole_number_of_words_is_refused() -> None:
    """No compiler writes such a record; the parameters of the kernel may stand elsewhere than they seem to."""
    made = artifact()
    places: dict[str, Any] = {}
    entry = made.kernels[0]
    assert misfit(made, entry, places) == ""
    _, at, _ = places[entry.symbol]
    sizes = []
    for _ in range(2):  # both before the parameters: two bytes of the first go to the second, like a head
        layout, attribute, size = struct.unpack_from("<BBH", made.cubin, at + sum(sizes))
        if layout != 4 or attribute == 0x17:
            pytest.skip("this compiler begins with other records")
        sizes.append(4 + size)
    first, second = made.cubin[at : at + sizes[0]], made.cubin[at + sizes[0] : at + sum(sizes)]
    first = first[:2] + struct.pack("<H", sizes[0] - 6) + first[4:-4] + b"\4\0"
    second = second[:2] + struct.pack("<H", sizes[1] - 2) + second[4:] + b"\0\0"
    odd = made._replace(cubin=made.cubin[:at] + first + second + made.cubin[at + sum(sizes) :])

    assert "not whole words" in misfit(odd, entry)
    assert "not whole words" in misfit(odd, entry, {})


@pytest.mark.parametrize("places", [None, {}])
def test_sections_beyond_the_numbers_of_the_header_are_found(places: dict[str, Any] | None) -> None:
    """A cubin of more than 65,279 sections has their number, and that of their names, in its first section."""
    made = artifact()
    code = bytearray(made.cubin)
    (table,), (count, names_at) = struct.unpack_from("<Q", code, 40), struct.unpack_from("<HH", code, 60)
    struct.pack_into("<HH", code, 60, 0, 0xFFFF)
    struct.pack_into("<QI", code, table + 32, count, names_at)
    entry = made.kernels[0]
    shorter = entry._replace(parameters=entry.parameters[:-1])

    assert misfit(made._replace(cubin=bytes(code)), entry, places) == ""
    assert "other parameters" in misfit(made._replace(cubin=bytes(code)), shorter, places)


def test_variable_of_another_size_is_found_out() -> None:
    """The host would get an array that reaches beyond the variable."""
    made = artifact()
    table = made.variables[0]

    assert "no variable" in contradiction_of(made._replace(variables=(table._replace(size_bytes=80),)))
    assert "no variable" in contradiction_of(made._replace(variables=(table._replace(symbol="tables"),)))


def test_cubin_cut_or_flipped_anywhere_is_text_and_no_exception() -> None:
    """Both checks return a reason for a cubin that is damaged or truncated at any position."""
    made = artifact()
    (table,) = struct.unpack_from("<Q", made.cubin, 40)
    places = [*range(64), *range(table, len(made.cubin), 3)]
    broken = [made.cubin[:at] + b"\xff" + made.cubin[at + 1 :] for at in places]
    broken += [made.cubin[:size] for size in range(0, len(made.cubin), 97)] + [b"\x7fELF" + bytes(200), b"x" * 64]

    for cubin in broken:
        forged = made._replace(cubin=cubin)
        assert isinstance(contradiction_of(forged), str)
        assert all(isinstance(misfit(forged, each), str) for each in made.kernels)


def test_large_parameters_are_held_against_their_records() -> None:
    """Parameters beyond 4 KiB are compared with records of another kind."""
    source = 'struct S { char c[5000]; }; extern "C" __global__ void k(S s, int *out) { out[0] = s.c[5]; }'
    entry = CompiledKernel("k", "k", (Parameter(0, 5000, "o"), Parameter(5000, 8, "*i4")))
    made = Artifact("cuda", parse_target("sm_90"), (entry,), compiled(source, "cubin", "sm_90"))

    assert misfit(made, entry) == ""
    assert "other parameters" in misfit(made, entry._replace(parameters=(Parameter(0, 500, "o"),)))


@pytest.mark.parametrize(
    ("parameters", "target", "why"),
    [
        ((4, 8, 1, 16, 2), "compute_80", ""),
        ((4, 8, 1, 16, 2), "compute_75", "not for compute_75"),
        ((4, 8), "compute_80", "other parameters of first"),
    ],
)
def test_ptx_is_held_against_its_text(parameters: tuple[int, ...], target: str, why: str) -> None:
    """The PTX of a virtual target has its target, kernels and sizes in its text."""
    entry = CompiledKernel("first", "first", tuple(Parameter(32 * at, size, "?") for at, size in enumerate(parameters)))
    extras = {"ptx": compiled(SOURCE, "ptx", "compute_80")}
    found = contradiction_of(Artifact("cuda", parse_target(target), (entry,), b"", extras=extras))

    assert (why in found) if why else not found
