"""numba-cuda-mlir as a flavour: CUDA C++ that its kernels link, and the members of a program's types in the key."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.model import LinkInput

pytest.importorskip("numba_cuda_mlir")

from numba_cuda_mlir import cuda, types
from numba_cuda_mlir.type_defs import aggregate_types

from numba_kcache.frontends.numba import toolkit_dirs
from numba_kcache.frontends.numba.compiled_code import assumed_device
from numba_kcache.frontends.numba.definition import signature_component
from numba_kcache.frontends.numba.fingerprint import Fingerprint, Refused, fingerprint
from numba_kcache.frontends.numba.mlir import MLIR


def text(content: str, name: str = "device.cu") -> LinkInput:
    return LinkInput("cu", name, content.encode(), "/somewhere")


def test_folders_are_those_that_it_names_to_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toolkit's folders in its order, then the setting's; the text's own folder is not among them."""
    from numba_cuda_mlir.numba_cuda.core import config
    from numba_cuda_mlir.numba_cuda.cudadrv import nvrtc

    class Seen(Exception):
        pass

    def program(_source: str, _kind: str, options: Any) -> Any:
        raise Seen(options.include_path)

    monkeypatch.setattr(config, "CUDA_NVRTC_EXTRA_SEARCH_PATHS", f"{tmp_path}:/elsewhere")
    monkeypatch.setattr(nvrtc, "Program", program)
    with pytest.raises(Seen) as seen:
        nvrtc.compile("", "device.cu", (9, 0))

    search = MLIR.linked_headers([text('#include "value.h"\n')], has_lines=False)

    (folders,) = seen.value.args
    assert [os.path.realpath(each) for each in folders] == [
        *map(os.path.realpath, toolkit_dirs(MLIR)), os.path.realpath(tmp_path), "/elsewhere",
    ]  # fmt: skip
    assert search is not None
    assert search.folders == (str(tmp_path), "/elsewhere")


def test_text_that_asks_for_nothing_needs_no_look_at_headers() -> None:
    """An exception is a text with line tables, whose code contains its path."""
    assert MLIR.linked_headers([text("int x;\n")], has_lines=False) is None
    assert MLIR.linked_headers([text("int x;\n")], has_lines=True) is not None
    assert MLIR.linked_headers([LinkInput("ptx", "a.ptx", b"#include", "")], has_lines=True) is None


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [("const char *t = __TIME__;\n", "a.cu", "__TIME__"), ('#include "b.h"\n', "own/a.cu", "folder in its name")],
)
def test_what_no_key_can_hold_is_refused(content: str, name: str, why: str) -> None:
    """The text reads the time of the compile, or its name contains a folder."""
    with pytest.raises(Refused, match=why):
        MLIR.linked_headers([text(content, name)], has_lines=False)


PROGRAM = """
from numba_cuda_mlir import cuda, extending
from numba_cuda_mlir.models import StructModel, register_model
from numba_cuda_mlir.numba_cuda import types
class PairType(types.Type):
    def __init__(self): super().__init__("Pair")
@register_model(PairType)
class PairModel(StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("low", types.float64), ("high", types.float64)])
extending.make_attribute_wrapper(PairType, "{first}", "first")
extending.make_attribute_wrapper(PairType, "{second}", "second")
def code(builder, target, args, kwargs): pass
@extending.intrinsic
def pair(context, low, high): return PairType()(types.float64, types.float64), code
def kernel(x): x[0] = pair(x[0], x[1]).first
"""


@pytest.mark.lane
def test_member_behind_an_attribute_counts() -> None:
    """`make_attribute_wrapper` registers functions of numba-cuda-mlir that hold the member's name, which is in the
    key."""
    found = []
    for first, second in (("low", "high"), ("high", "low"), ("high", "low")):
        space: dict[str, Any] = {"__name__": "app"}
        exec(PROGRAM.format(first=first, second=second), space)
        found.append(fingerprint(space["kernel"], MLIR, with_lines=False))

    assert all(isinstance(each, Fingerprint) for each in found), found
    assert found[0].digest != found[1].digest == found[2].digest


def struct_of(*fields: Any) -> Any:
    return types.AggregateType("Struct", [*fields])


@pytest.mark.parametrize(
    "make",
    [struct_of, lambda *of: types.CPointer(struct_of(*of)), lambda *of: types.UnionType("U", [("s", struct_of(*of))])],
    ids=["struct", "pointer to a struct", "union"],
)
def test_fields_of_a_struct_are_part_of_its_type(make: Callable[..., Any]) -> None:
    """numba-cuda-mlir's text of it is its name alone."""
    found = list[str]()
    first, other = ("a", types.float64), ("b", types.float32)
    for fields in ((first, other), (other, first), (first, ("b", types.float64)), (("a", types.uint32, 4),)):
        found += [signature_component(MLIR, (make(*fields),)).digest for _ in range(2)]
        for name in ("Struct", "U"):  # as in a new process: it would return the struct of before for its name
            aggregate_types._map_be_type_names_to_fe_types.pop(name, None)

    assert [len({*found[:end]}) for end in range(2, 9, 2)] == [1, 2, 3, 4]


def test_fields_of_a_struct_in_a_signature_count() -> None:
    """In that of a declared function, and of a device function: a kernel may get its struct from there alone."""
    struct = struct_of(("a", types.float32), ("b", types.float32))
    pointer = types.CPointer(struct)
    with assumed_device(MLIR, (9, 0)):
        given = cuda.jit(types.int64(pointer), device=True)(lambda _given: 1)
    for called in (cuda.declare_device("declared", types.int64(pointer)), given):
        space = {"__name__": "app", "called": called}
        exec("def kernel(x):\n    x[0] = called(x[0])", space)
        found = [fingerprint(cuda.jit(space["kernel"]), MLIR, with_lines=False)]
        struct.fields.reverse()
        found.append(fingerprint(cuda.jit(space["kernel"]), MLIR, with_lines=False))

        one, other = found
        assert isinstance(one, Fingerprint), one
        assert isinstance(other, Fingerprint), other
        assert one.digest != other.digest
    aggregate_types._map_be_type_names_to_fe_types.pop("Struct")


@pytest.mark.parametrize(
    "kind",
    [types.ByValPointerType(types.float32), types.Array(types.float64, 3, "C"), types.UniTuple(types.int8, 5)],
    ids=["pointer", "array", "tuple"],
)
def test_attributes_of_a_parameter_are_part_of_its_type(kind: Any) -> None:
    """`alignas` and `grid_constant` set them on a type, whose text stays the same."""
    kind = copy.copy(kind)  # others keep theirs
    changes = copy.copy, types.grid_constant, lambda kind: types.alignas(kind, 64), lambda kind: types.alignas(kind, 16)
    found = [signature_component(MLIR, (change(kind),)).digest for change in changes]

    assert len({*found}) == 4


def test_place_of_a_struct_in_a_union_is_part_of_its_type() -> None:
    """A union that has it sets in which word its bits are, also where it is used alone."""
    struct = struct_of(("low", types.uint32, 4), ("high", types.uint32, 4))
    found = [signature_component(MLIR, (types.CPointer(struct),)).digest]
    struct.union_storage_bits = 32
    found.append(signature_component(MLIR, (types.CPointer(struct),)).digest)
    aggregate_types._map_be_type_names_to_fe_types.pop("Struct")

    assert found[0] != found[1]
