"""Artifacts: what is stored comes back; what cannot have been stored is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numba_kcache.errors import EntryError
from numba_kcache.model import (
    MAX_PARAMETERS_BYTES,
    Artifact,
    CompiledKernel,
    Parameter,
    Target,
    Variable,
    artifact_from_header,
    parse_target,
)
from numba_kcache.model.header import artifact_header

PARAMETERS = (
    Parameter(0, 4, "f4", "float", "a"),
    Parameter(8, 8, "*kf4", "float const*", "x"),
    Parameter(16, 24, "o", "Box<int>"),
    Parameter(40, 3, "?"),
)
ARTIFACT = Artifact(
    "cuda",
    Target(9, 0, "a"),
    (
        CompiledKernel("axpy<float>", "_Z4axpyIfEvv", PARAMETERS, True, 32, 1024, 16, 8),
        CompiledKernel("empty", "empty"),
    ),
    b"\x7fELF and so on",
    0.125,
    {"carveout": 50},
    {"ptx": b".version 8.0", "log": "größer\n".encode()},
)
PAYLOADS = {"cubin": ARTIFACT.cubin, **ARTIFACT.extras}


def header() -> dict[str, Any]:
    """A header as a store gives it back: through JSON."""
    read: dict[str, Any] = json.loads(json.dumps(artifact_header(ARTIFACT)))
    return read


def test_artifact_comes_back_through_json() -> None:
    """Every field, tuple for tuple."""
    read = artifact_from_header(header(), PAYLOADS)

    assert read._replace(extras={}) == ARTIFACT._replace(extras={})
    assert type(read.kernels) is tuple
    assert type(read.kernels[0].parameters[0]) is Parameter
    assert (read.ptx, read.log) == (b".version 8.0", "größer\n")


def module_header(count: int) -> dict[str, Any]:
    """The stored header of a module whose kernels have equal parameters, but for the last one, which has none."""
    kernels = [CompiledKernel(f"k{number}", f"k{number}", PARAMETERS, True) for number in range(count - 1)]
    artifact = ARTIFACT._replace(kernels=(*kernels, CompiledKernel("empty", "empty")))
    stored: dict[str, Any] = json.loads(json.dumps(artifact_header(artifact)))
    assert artifact_from_header(stored, PAYLOADS).kernels == artifact.kernels
    return stored


def test_equal_parameters_of_a_module_are_written_once() -> None:
    """A further kernel with equal parameters takes less than 45 bytes of the header, and shares the tuple that is
    read."""
    few, many = module_header(3), module_header(303)
    read = artifact_from_header(many, PAYLOADS).kernels

    assert len(json.dumps(many)) - len(json.dumps(few)) < 300 * 45
    assert all(each.parameters is read[0].parameters for each in read[:-1])


def test_shared_parameters_do_not_multiply_without_end() -> None:
    """Otherwise a forged header of a few megabytes would take hours to compare with its code."""
    stored = module_header(3)
    stored["entries"][0][4] = [[at, 1, "?", "", ""] for at in range(MAX_PARAMETERS_BYTES)]
    stored["entries"] = [stored["entries"][0], *[stored["entries"][1]] * 30]
    assert len(artifact_from_header(stored, PAYLOADS).kernels) == 31

    stored["entries"].extend([stored["entries"][1]] * 2)
    with pytest.raises(ValueError, match="too many parameters"):
        artifact_from_header(stored, PAYLOADS)


@pytest.mark.parametrize("number", [1, 2, 3, -1, True, 0.0, "0", None])
def test_parameters_are_those_of_an_earlier_kernel_or_refused(number: Any) -> None:
    """A number in place of parameters means those of an earlier kernel: not of itself, a later one or a missing one."""
    stored = module_header(3)
    stored["entries"][1][4] = number

    with pytest.raises(ValueError):
        artifact_from_header(stored, PAYLOADS)


names = st.text(max_size=20)
counts = st.integers(0, 2**32 - 1)
entries = st.builds(
    CompiledKernel, names, names.filter(bool), st.just(PARAMETERS), st.booleans(), counts, counts, counts, counts,
    st.integers(0, 1024),
)  # fmt: skip


@pytest.mark.slow
@given(
    st.sampled_from(["cuda", "ptx", "cubin", "numba"]),
    st.sampled_from(["sm_75", "sm_90a", "sm_120f"]).map(parse_target),
    st.lists(entries, min_size=1, max_size=4).map(tuple),
    st.binary(min_size=1, max_size=30),
    st.floats(0, 1e6),
)
def test_any_artifact_comes_back(
    kind: str, target: Target, entries: tuple[CompiledKernel, ...], cubin: bytes, seconds: float
) -> None:
    """For any names, resources and bytes, header and payloads give the same artifact."""
    artifact = Artifact(kind, target, entries, cubin, seconds)
    stored = json.loads(json.dumps(artifact_header(artifact)))

    assert artifact_from_header(stored, {"cubin": cubin})._replace(extras={}) == artifact


ATTRIBUTES: list[dict[str, Any]] = [
    {"carveout": "50"},
    {"carveout": 101},
    {"carveout": [1]},
    {"cooperative": 1},
    {"debug": "yes"},
    {"lineinfo": None},
    {"exceptions": 1},
    {"exceptions": [[1, "ValueError", []]]},
    {"exceptions": [[1, "exec", ["print(1)"], None]]},
    {"exceptions": [[1, "__import__", ["os"], None]]},
    {"exceptions": [[1, "print", [], None]]},
    {"exceptions": [[[], "ValueError", [], None]]},
    {"prototypes": ["a"]},
    {"prototypes": {"a": 1}},
    {"constants": {"a": 1}},
    {"constants": [None]},
]


@pytest.mark.parametrize("attributes", ATTRIBUTES)
def test_attribute_of_another_shape_is_refused(attributes: dict[str, Any]) -> None:
    """Fields that a launch or Numba uses must have the right shape; an exception must be a builtin one."""
    with pytest.raises(ValueError, match="attribute"):
        artifact_from_header({**header(), "attributes": attributes}, PAYLOADS)


def test_attributes_of_a_debug_kernel_come_back() -> None:
    """The table of a debug kernel's exceptions comes back, with and without a place in the source."""
    table = [[1, "ZeroDivisionError", ["division by zero"], ["k", "k.py", 3]], [2, None, [], None]]
    attributes = {"debug": True, "carveout": None, "cooperative": False, "exceptions": table, "signature": "void()"}

    assert artifact_from_header({**header(), "attributes": attributes}, PAYLOADS).attributes == attributes


def test_virtual_artifact_needs_no_cubin() -> None:
    """An artifact of a virtual target may have PTX alone; one of a real target may not."""
    virtual = {**header(), "target": "compute_80"}

    assert artifact_from_header(virtual, {"ptx": b".version"}).cubin == b""
    with pytest.raises(ValueError, match="without a cubin"):
        artifact_from_header(header(), {"ptx": b".version"})


def test_entry_is_found_by_name_and_symbol() -> None:
    """An entry is found by the user's name, ignoring spaces, by the driver's name, and by its bare name if that is
    unique."""
    assert ARTIFACT.kernel("axpy<float>", "m") is ARTIFACT.kernel("_Z4axpyIfEvv", "m") is ARTIFACT.kernel("axpy", "m")
    assert ARTIFACT.kernel("axpy< float >", "m") is ARTIFACT.kernel("axpy<float>", "m")
    with pytest.raises(EntryError, match=r"'gemm' of m: there are axpy<float>"):
        ARTIFACT.kernel("gemm", "m")


def test_variables_survive_and_are_checked() -> None:
    """Variables that the host may reach are kept with their layout; one that no compiler could write is refused."""
    table = Variable("ns::table", "_ZN2ns5tableE", 96, "f8", (3, 4))
    kept = artifact_header(ARTIFACT._replace(variables=(table,)))

    assert artifact_from_header(json.loads(json.dumps(kept)), {"cubin": b"x"}).variables == (table,)
    assert "variables" not in artifact_header(ARTIFACT), "entries of single kernels are as they were"
    for wrong in (["a", "a", 4, "f9", []], ["a", "a", -1, "f4", []], ["a", "a", 4, "f4", [-1]], ["a", "a", 4, "f4", 1]):
        with pytest.raises(ValueError, match=r"variable|malformed"):
            artifact_from_header({**kept, "variables": [wrong]}, {"cubin": b"x"})


def test_lazy_module_has_ltoir_in_place_of_a_cubin() -> None:
    """Kernels are linked from the LTO-IR; an artifact for a real target without cubin and LTO-IR is invalid."""
    kept = artifact_header(ARTIFACT._replace(cubin=b"", extras={"ltoir": b"ir"}))

    assert artifact_from_header(kept, {"cubin": b"", "ltoir": b"ir"}).extras["ltoir"] == b"ir"
    with pytest.raises(ValueError, match="without a cubin"):
        artifact_from_header(kept, {"cubin": b""})


def at(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The header with one field replaced."""
    changed: Any = header()
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return dict(changed)


ENTRY = ("entries", 0)
PARAMETER = ("entries", 0, 4, 1)
NO_TEXT = (None, 1, 1.5, True, [], {}, ["x"])
NO_COUNT = (None, "1", 1.0, True, [], {}, -1, 1 << 32)
NO_LIST = (None, 1, "abcd", {}, True)
WRONG = [
    *((("kind",), value) for value in ("", "CUDA", "a kind", "x" * 33, *NO_TEXT)),
    *((("target",), value) for value in ("", "sm_", "auto", [9, 0], *NO_TEXT)),
    *((("entries",), value) for value in NO_LIST),
    *((("entries",), [value]) for value in (*NO_LIST, [], ["a"], ["a", "b", True, [0, 0, 0, 0], [], 0])),
    *(((*ENTRY, 0), value) for value in NO_TEXT),
    *(((*ENTRY, 1), value) for value in ("x" * 65537, *NO_TEXT)),
    *(((*ENTRY, 2), value) for value in (None, 1, 0, "true", [])),
    *(((*ENTRY, 3), value) for value in (*NO_LIST, [], [1, 2, 3], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 1025])),
    *(((*ENTRY, 3, index), value) for index in range(4) for value in NO_COUNT),
    *(((*ENTRY, 4), value) for value in (None, 1, True, "abcde", [[]], [[0, 4, "f4", "float"]], [1])),
    *(((*PARAMETER, 0), value) for value in (0, 3, 17, -8, 1 << 40, *NO_COUNT)),
    *(((*PARAMETER, 1), value) for value in (0, 4, 16, 1 << 40, *NO_COUNT)),
    *(((*PARAMETER, 2), value) for value in ("", "*", "exec", "f4", "i4 ", "v9f4", *NO_TEXT)),
    *(((*PARAMETER, 3), value) for value in NO_TEXT),
    *(((*PARAMETER, 4), value) for value in NO_TEXT),
    *((("compile_time_s",), value) for value in (None, "1", True, [], {})),
    *((("attributes",), value) for value in (None, "1", True, [], 1)),
]


@pytest.mark.parametrize(("path", "value"), WRONG, ids=lambda each: str(each)[:30])
def test_malformed_field_is_refused(path: tuple[Any, ...], value: object) -> None:
    """A field of another type or out of bounds is a ValueError: the entry counts as damaged."""
    with pytest.raises(ValueError):
        artifact_from_header(at(path, value), PAYLOADS)


@pytest.mark.parametrize("name", list(header()))
def test_missing_field_is_refused(name: str) -> None:
    """No field has a default."""
    short = header()
    del short[name]

    with pytest.raises(ValueError):
        artifact_from_header(short, PAYLOADS)


def test_parameters_end_where_the_buffer_ends() -> None:
    """The last byte of the parameter buffer can be used, the one after cannot."""
    last = [MAX_PARAMETERS_BYTES - 8, 8, "*f4", "float*", ""]
    assert artifact_from_header(at((*ENTRY, 4), [last]), PAYLOADS).kernels[0].parameters[0].offset == last[0]
    with pytest.raises(ValueError, match="bounds"):
        artifact_from_header(at((*ENTRY, 4), [[last[0] + 1, *last[1:]]]), PAYLOADS)


def test_no_compile_time_is_infinite() -> None:
    """A header that claims an infinite time is refused: sums of times must stay finite."""
    for value in (float("nan"), float("inf"), -1.0):
        with pytest.raises(ValueError):
            artifact_from_header(at(("compile_time_s",), value), PAYLOADS)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=15,
)


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from(list(header())), json_values), st.booleans())
def test_any_json_is_an_artifact_or_a_value_error(changes: dict[str, Any], with_cubin: bool) -> None:
    """Any JSON is read, or is a ValueError, the only exception that readers of a store catch."""
    try:
        artifact_from_header({**header(), **changes}, PAYLOADS if with_cubin else {})
    except ValueError:
        pass
