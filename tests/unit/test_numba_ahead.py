"""A Numba kernel is keyed while it is decorated: its first use only compares, and serves nothing that has changed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numba import cuda, types

from numba_kcache import EventKind, KernelCache, cached_kernel, numba_ahead, numba_cache
from numba_kcache.ahead import _name
from numba_kcache.launch.numba_dispatcher import types_from_text, types_of
from numba_kcache.model.target import Target
from numba_kcache.numba_kernel import NumbaKernel

PROGRAM = """
from numba import cuda
SCALE = 2.0
@cuda.jit(device=True)
def scaled(x):
    return x * SCALE
def kernel(x, n):
    x[0] = scaled(x[0]) + n
"""
SIGNATURE = "void(float32[::1], int64)"


class Program:
    """A file with a kernel, and processes that run it one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "program.py"
        self.names: dict[str, Any] = {}

    def start(self, text: str = PROGRAM, signature: Any = SIGNATURE, **options: Any) -> tuple[NumbaKernel, list[str]]:
        """The kernel as a fresh process has it, and where what it uses comes from."""
        self.path.write_text(text)
        self.names = {"__name__": "program"}
        exec(compile(text, str(self.path), "exec"), self.names)
        cache, seen = KernelCache(self.folder / "cache", durability="none"), list[str]()

        def listen(event: Any) -> None:
            if event.kind in (EventKind.HIT, EventKind.MISS):
                seen.append(event.fields.get("source", "compiled"))

        cache.subscribe(listen)
        self.cache = cache
        made = cached_kernel(self.names["kernel"], arch="sm_90", cache=cache, signature=signature, **options)
        assert isinstance(made, NumbaKernel)
        return made, seen

    def run(self, **options: Any) -> None:
        """A whole process: decorates, uses, ends."""
        self.start(**options)[0].compile()
        self.cache.resolver.save_counts()


def use(kernel: NumbaKernel) -> None:
    """Resolve each signature, as a launch does."""
    for each in kernel._signatures(None):
        kernel._entries().resolve(each, Target(9, 0))


@pytest.fixture
def program(tmp_path: Path) -> Program:
    found = Program(tmp_path)
    found.run()
    return found


def unwanted(*_arguments: Any, **_more: Any) -> Any:
    raise AssertionError("the first use did work that was done before")


def test_first_use_reads_no_function_and_makes_no_key(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were done while the kernel was decorated, and hold."""
    kernel, seen = program.start()
    monkeypatch.setattr(numba_cache, "read_function", unwanted)
    monkeypatch.setattr(numba_cache, "numba_job", unwanted)
    use(kernel)

    assert seen == ["disk"]


def test_unused_cache_is_read_by_no_decoration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a hint there is nothing to expect: a cold start takes no longer to decorate."""
    monkeypatch.setattr(numba_ahead, "read_function", unwanted)

    assert Program(tmp_path).start()[1] == []


def set_scale(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.names["SCALE"] = 3.0


def set_option(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    program.names["scaled"].targetoptions["inline"] = "always"


def set_numba(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_OPT", "1")


def set_nvrtc(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAN_FINALIZE_DEBUG", "1")


@pytest.mark.parametrize("change", [set_scale, set_option, set_numba, set_nvrtc])
def test_change_after_decoration_is_another_key(
    program: Program, monkeypatch: pytest.MonkeyPatch, change: Callable[[Program, pytest.MonkeyPatch], None]
) -> None:
    """What counts is read at the first use: what was expected is then not wanted any more."""
    kernel, seen = program.start()
    change(program, monkeypatch)
    use(kernel)

    assert seen == ["compiled"]
    monkeypatch.undo()


def test_other_target_is_another_key(program: Program) -> None:
    """The device is known at the first launch alone."""
    kernel, seen = program.start()
    kernel._entries().resolve(kernel._signatures(None)[0], Target(8, 0))

    assert seen == ["compiled"]


def test_change_that_is_taken_back_is_served(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the use all is as it was."""
    kernel, seen = program.start()
    program.names["SCALE"], before = 3.0, program.names["SCALE"]
    program.names["SCALE"] = before
    use(kernel)

    assert seen == ["disk"]


def test_edited_program_is_compiled(program: Program) -> None:
    """The hint's key is not the one that the kernel leads to now."""
    kernel, seen = program.start(PROGRAM.replace("2.0", "4.0"))
    use(kernel)

    assert seen == ["compiled"]


def test_function_defined_after_the_kernel_is_read_at_the_first_use(tmp_path: Path) -> None:
    """At decoration its name means nothing yet."""
    late = PROGRAM.replace("def scaled", "def late").replace("scaled(x[0])", "scaled(x[0], 1)")
    program = Program(tmp_path)
    for expected in ("compiled", "disk"):
        kernel, seen = program.start(late)
        program.names["scaled"] = cuda.jit(device=True)(lambda x, y: x + y)
        use(kernel)
        program.cache.resolver.save_counts()
        assert seen == [expected]


def test_second_signature_reads_nothing_anew(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that has not changed is read once in a process, however many signatures it is used with."""
    kernel, seen = program.start()
    monkeypatch.setattr(numba_cache, "read_function", unwanted)
    kernel._entries().resolve((types.float64[::1], types.int64), Target(9, 0))

    assert seen == ["compiled"]


def test_each_of_several_signatures_is_expected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The four that were used last."""
    program = Program(tmp_path)
    signatures = [SIGNATURE, "void(float64[:, ::1], float64)", "void(complex64[:], boolean)"]
    text = PROGRAM.replace("x[0] = scaled(x[0]) + n", "pass")
    program.run(text=text, signature=signatures)
    kernel, seen = program.start(text, signatures)
    monkeypatch.setattr(numba_cache, "numba_job", unwanted)
    use(kernel)

    assert seen == ["disk"] * 3


def test_cleared_cache_is_not_served_from_memory(program: Program) -> None:
    """What was read ahead is forgotten with the rest."""
    kernel, seen = program.start()
    program.cache.clear()
    use(kernel)

    assert seen == ["compiled"]


def test_hint_with_other_types_costs_nothing_but_the_reading(program: Program) -> None:
    """What a hint says of types is looked up and keyed, never believed."""
    ahead = program.start()[0]._resolver().ahead
    ((file, hints),) = ahead._hints.items()
    for types_said in (["array(float64, 1d, C)", "int64"], ["__import__('os')"], [1], "int64", ["array(, 1d, C)"]):
        ahead._store.add_variant(_name(str(program.path)), {**hints[0], "types": types_said})
        kernel, seen = program.start()
        use(kernel)
        assert seen == ["disk"]
    assert os.path.samefile(file, program.path)


@pytest.mark.parametrize(
    "kind",
    [
        types.int8, types.uint64, types.float16, types.complex64, types.boolean,
        types.Array(types.float32, 1, "C"), types.Array(types.boolean, 3, "F"), types.Array(types.complex128, 2, "A"),
        types.Array(types.int16, 0, "C"),
    ],
    ids=str,
)  # fmt: skip
def test_type_is_found_by_what_numba_calls_it(kind: Any) -> None:
    """Numbers and plain arrays of them, as Numba has them."""
    found = types_from_text((str(kind),))

    assert found is not None
    assert found[0] is kind


@pytest.mark.parametrize(
    "text",
    [
        str(types.Array(types.float32, 1, "C", readonly=True)), str(types.Array(types.float32, 1, "C", aligned=False)),
        str(types.Array(types.float32, 12, "C")), str(types.UniTuple(types.int64, 2)), "array(float32, 1d, Z)",
        "array(int32)", "array(array, 1d, C)", "float32, 1d, C", "int64[::1]", "", "Array", "none", "void",
    ],
)  # fmt: skip
def test_text_of_anything_else_is_no_type(text: str) -> None:
    """It came from a store: what Numba does not call so is nothing."""
    assert types_from_text((text,)) is None


def test_hint_names_the_types(program: Program) -> None:
    """Beside the entry; nothing else of the kernel is in it."""
    program.start()
    ((hint, *_rest),) = program.cache.resolver.ahead._hints.values()

    assert hint["types"] == ["array(float32, 1d, C)", "int64"]


ARRAYS: dict[str, Any] = {
    "contiguous": np.zeros(5, np.float32),
    "two axes": np.zeros((3, 4), np.float32),
    "by columns": np.zeros((3, 4), np.float32, order="F"),
    "strided": np.zeros(8, np.float32)[::2],
    "broadcast": np.broadcast_to(np.float32(1), (1,)),
    "broadcast to many": np.broadcast_to(np.float32(1), (4, 2)),
    "no axis": np.zeros((), np.float32),
    "three axes": np.zeros((1, 2, 3), np.float32),
    "long long": np.zeros(2, np.longlong),
    "bool": np.zeros(2, bool),
    "half": np.zeros(2, np.float16),
    "record": np.zeros(2, np.dtype([("a", "f4")])),
    "datetime": np.zeros(2, "M8[ns]"),
}


@pytest.mark.parametrize("what", ARRAYS)
def test_expected_types_are_those_that_numba_finds(what: str) -> None:
    """Whatever a program's kernels are expected to be used with, an array has the type that Numba gives it."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray

    names = ("float32", "int64", "bool", "float16")
    assert types_from_text([f"array({name}, {axes}d, C)" for name in names for axes in range(4)])
    host = ARRAYS[what]

    def array() -> Any:
        return DeviceNDArray(host.shape, host.strides, host.dtype, gpu_data=object())

    theirs, ours = array(), array()
    assert types_of((ours,))[0] is theirs._numba_type_
    assert ours._numba_type_ is theirs._numba_type_


def test_signature_is_the_tuple_of_its_types() -> None:
    """Its hash is taken once, and is the tuple's: Numba looks such tuples up as well."""
    found: tuple[Any, ...] = types_of((1.0, True, 1j))
    plain = (types.float64, types.boolean, types.complex128)

    assert found == plain
    assert {found: 1}[plain] == {plain: 1}[found] == 1
    assert hash(found) == hash(found) == hash(plain)
