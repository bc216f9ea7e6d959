"""The instructions of a kernel are those of Numba's own compile; only the way it is linked differs."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from numba import cuda, float32, float64, int32, int64
from numba.cuda.codegen import CUDACodeLibrary
from numba.cuda.dispatcher import _Kernel

from numba_kcache.frontends.numba.compiled_code import assumed_device
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.model import Target
from tests.support.compiling import compile_numba

TARGET = Target(9, 0, "a")


def plain(x, y):  # type: ignore[no-untyped-def]
    i = cuda.grid(1)
    if i < x.size:
        x[i] = y[i] ** 2 / x[i] + x[0]


@cuda.jit(device=True)
def helped(x):  # type: ignore[no-untyped-def]
    return x * 3.0


def calling(x, y):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        cuda.atomic.add(x, i, helped(y[i]))


def reshaping(x, y):  # type: ignore[no-untyped-def]
    x[0] = y.reshape(2, 2)[1, 0]


def together(x, y):  # type: ignore[no-untyped-def]
    x[0] = y[1]
    cuda.cg.this_grid().sync()
    x[1] = x[0]


def raising(x, y):  # type: ignore[no-untyped-def]
    if x[0] > 3:
        raise ValueError("large")
    x[1] = y[0] // x[2]


declared = cuda.declare_device("external", "int32(int32)")


def linking(x, y):  # type: ignore[no-untyped-def]
    x[0] = declared(y[0])


FLOATS, INTS = (float32[::1], float64[::1]), (int32[::1], int64[::1])
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "plain": (plain, FLOATS, {}),
    "without LTO": (plain, FLOATS, {"lto": False}),
    "fastmath": (plain, FLOATS, {"fastmath": True}),
    "not optimised": (plain, FLOATS, {"opt": False}),
    "line table": (plain, FLOATS, {"lineinfo": True}),
    "device function": (calling, FLOATS, {}),
    "registers and bounds": (calling, FLOATS, {"max_registers": 32, "launch_bounds": 256}),
    "reshape": (reshaping, FLOATS, {}),
    "cooperative": (together, FLOATS, {}),
    "exceptions": (raising, INTS, {"debug": True, "opt": False}),
    "CUDA C": (linking, INTS, {"link": ["device.cu"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", CASES)
def test_machine_code_is_numbas(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The instructions of the kernel and of its link inputs are the same bytes."""
    function, signature, options = CASES[what]
    (tmp_path / "device.cu").write_text('extern "C" __device__ int external(int *o, int x) { *o = x * 7; return 0; }')
    if "link" in options:
        options = {**options, "link": [str(tmp_path / "device.cu")]}
    monkeypatch.setattr(CUDACodeLibrary, "_ensure_cc", lambda self, cc: cc or (9, 0, "a"))
    dispatcher = cuda.jit(function, **options)

    ours = compile_numba(dispatcher, signature, TARGET).artifact
    with assumed_device(NUMBA, (9, 0)):
        kernel = _Kernel(function, signature, **dispatcher.targetoptions)
    own = bytes(kernel._codelibrary.get_cubin().code)

    assert code_sizes(ours.cubin) == code_sizes(own)
    assert ours.attributes["cooperative"] == kernel.cooperative
    assert instructions(ours.cubin, ours.kernels[0].symbol) == instructions(own, kernel.entry_name)


def sections(cubin: bytes) -> dict[str, bytes]:
    """Content by name, of an ELF file."""
    (at,) = struct.unpack_from("<Q", cubin, 40)
    width, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, at + width * each) for each in range(count)]
    start = heads[names][4]

    def name(offset: int) -> str:
        return cubin[start + offset : cubin.index(b"\0", start + offset)].decode()

    return {name(head[0]): cubin[head[4] : head[4] + head[5]] for head in heads}


def instructions(cubin: bytes, symbol: str) -> bytes:
    return sections(cubin)[f".text.{symbol}"]


def code_sizes(cubin: bytes) -> list[int]:
    return sorted(len(content) for name, content in sections(cubin).items() if name.startswith(".text."))
