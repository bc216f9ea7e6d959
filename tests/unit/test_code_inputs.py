"""Kernels made from compiled code: cubins, fatbins and LTO-IR, as files and as bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from numba_kcache import Kernel, KernelCache, cached_kernel, cached_module
from numba_kcache.errors import KCacheError, LinkError, OptionError
from numba_kcache.model.cubin import cubin_in_fatbin, read_cubin
from tests.support.compiling import SAXPY, compiled, in_python

SIGNATURE = "float, const float*, float*, int"


def fatbin(*cubins: tuple[int, bytes]) -> bytes:
    """A fatbin of cubins, as fatbinary writes them without compression."""
    entries = b""
    for sm, cubin in cubins:
        padded = cubin + bytes(-len(cubin) % 8)
        entries += struct.pack("<HHIQIIIIIIQQQ", 2, 0x101, 64, len(padded), 0, 0, 0, sm, 0, 0, 0x11, 0, 0) + padded
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


MADE = {
    "cubin": lambda: compiled(SAXPY),
    "fatbin": lambda: fatbin((90, compiled(SAXPY))),
    "ltoir": lambda: compiled(SAXPY, "ltoir", "sm_90", "-dlto"),
}


@pytest.fixture
def cache(tmp_path: Path) -> KernelCache:
    return KernelCache(tmp_path / "cache", durability="none")


def kernel_of(cache: KernelCache, thing: Any, arch: str = "sm_90", **options: Any) -> Kernel:
    return cached_kernel(thing, arch=arch, cache=cache, **options)


@pytest.mark.parametrize("kind", MADE)
def test_code_is_told_by_its_first_bytes(cache: KernelCache, kind: str) -> None:
    """The kind of code is read from its first bytes; its parameters have sizes, and types only from a signature."""
    plain, typed = kernel_of(cache, MADE[kind]()), kernel_of(cache, MADE[kind](), signature=SIGNATURE)

    assert [(each.offset, each.size, each.code) for each in plain.params] == [
        (0, 4, "?"), (8, 8, "?"), (16, 8, "?"), (24, 4, "?"),
    ]  # fmt: skip
    assert [each.code for each in typed.params] == ["f4", "*kf4", "*f4", "i4"]
    assert read_cubin(plain.cubin()).sm == 90
    assert plain.key() != typed.key()


@pytest.mark.parametrize("kind", MADE)
def test_code_in_a_file_is_told_by_its_suffix(cache: KernelCache, tmp_path: Path, kind: str) -> None:
    """Code in a file is keyed by its content, not its path; `kind=` overrides the suffix."""
    for name in (f"a.{kind}", "b.bin"):
        (tmp_path / name).write_bytes(MADE[kind]())
    by_suffix = kernel_of(cache, tmp_path / f"a.{kind}")
    by_kind = kernel_of(cache, tmp_path / "b.bin", name="saxpy", kind=kind)

    by_suffix.compile()
    assert by_suffix.regs_per_thread > 0
    assert by_kind.regs_per_thread == by_suffix.regs_per_thread
    assert kernel_of(cache, MADE[kind](), name="saxpy").key() == by_kind.key()


@pytest.mark.slow
@pytest.mark.parametrize("kind", MADE)
def test_second_process_makes_nothing(tmp_path: Path, kind: str) -> None:
    """Linked inputs, and what the signature gave, come from the store."""
    (tmp_path / f"saxpy.{kind}").write_bytes(MADE[kind]())
    code = f"""
from pathlib import Path
from numba_kcache import KernelCache, cached_kernel
cache = KernelCache({str(tmp_path / "cache")!r})
kernel = cached_kernel(Path({str(tmp_path)!r}) / "saxpy.{kind}", arch="sm_90", cache=cache, signature={SIGNATURE!r})
print(len(kernel.params), cache.info("process").compiles)"""

    assert [in_python(code).split() for _ in range(2)] == [["4", "1"], ["4", "0"]]


def test_cubin_serves_later_minors_of_its_major_and_nothing_else(cache: KernelCache) -> None:
    """The error names both targets."""
    code = compiled(SAXPY, "cubin", "sm_80")

    assert kernel_of(cache, code, "sm_80").params
    assert kernel_of(cache, code, "sm_86").params
    for arch in ("sm_75", "sm_90", "sm_90a", "compute_80"):
        with pytest.raises(OptionError, match=f"for {arch}: it is a cubin for sm_80") as caught:
            kernel_of(cache, code, arch).compile()
        assert "PTX or LTO-IR" in caught.value.hint


def test_fatbin_gives_the_best_code_for_the_target(cache: KernelCache) -> None:
    """Linked code is taken unchanged; relocatable code and PTX are linked; if none fits, the error says what to
    give."""
    old, new = compiled(SAXPY, "cubin", "sm_80"), compiled(SAXPY, "cubin", "sm_90")
    relocatable = compiled(SAXPY, "cubin", "sm_90", "-rdc=true")

    assert kernel_of(cache, fatbin((80, old), (90, new))).cubin()[: len(new)] == new
    assert kernel_of(cache, fatbin((80, old), (90, new)), "sm_86").cubin()[: len(old)] == old
    assert kernel_of(cache, fatbin((90, relocatable))).params
    for wrong in (fatbin((80, old)), fatbin((90, new))[:200], fatbin()):
        with pytest.raises(KCacheError, match="cannot") as caught:
            kernel_of(cache, wrong).compile()
        assert isinstance(caught.value, LinkError) or "PTX" in caught.value.hint


def test_damaged_fatbin_has_no_cubin() -> None:
    """Truncated anywhere, or with any length in its headers: nothing outside of it is read."""
    whole = fatbin((80, compiled(SAXPY, "cubin", "sm_80")))
    assert cubin_in_fatbin(whole, (8, 6)) is not None
    for size in range(0, len(whole), 7):
        assert cubin_in_fatbin(whole[:size], (8, 6)) is None
    for at in range(80):
        for value in (0, 1, 255):
            cubin_in_fatbin(whole[:at] + bytes([value]) + whole[at + 1 :], (8, 6))


def test_device_functions_that_were_linked_in_are_no_kernels(cache: KernelCache) -> None:
    """Device functions have sections of code and attributes, as kernels do."""
    source = """
extern "C" __device__ __noinline__ int f(int x) { return x * 3; }
extern "C" __global__ void k(int *x) { x[0] = f(x[0]); }"""
    code = compiled(source, "cubin", "sm_90", "-rdc=true")

    assert [each.symbol for each in read_cubin(code).kernels] == ["k"]
    assert list(cached_module(code, arch="sm_90", cache=cache)) == ["k"]


WRONG = {
    "damaged": (lambda: compiled(SAXPY)[:90], "as a cubin"),
    "a host's object": (lambda: b"\x7fELF" + bytes(80), "not a 64-bit CUDA ELF"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bytes_that_are_no_code_are_refused(cache: KernelCache, case: str) -> None:
    """The error comes at decoration, or for a file when it is first read."""
    code, why = WRONG[case]
    with pytest.raises(OptionError, match=why):
        kernel_of(cache, code()).compile()


def test_options_that_made_code_does_not_take_are_refused(cache: KernelCache) -> None:
    """Compiled code accepts no compile options; a function or a str is not compiled code."""
    with pytest.raises(OptionError, match="takes no compile options"):
        kernel_of(cache, MADE["cubin"](), fastmath=True)
    with pytest.raises(OptionError, match="does not take it"):
        kernel_of(cache, MADE["fatbin"](), std="c++17")
    with pytest.raises(OptionError, match="cannot use a str as cubin"):
        kernel_of(cache, SAXPY, kind="cubin")
    with pytest.raises(OptionError, match="a function returns text"):
        kernel_of(cache, lambda: SAXPY, kind="ltoir")
    with pytest.raises(OptionError, match="it is a path"):
        kernel_of(cache, "saxpy.cubin")


def test_linker_options_reach_ltoir(cache: KernelCache) -> None:
    """LTO-IR is compiled when it is linked."""
    keys = {kernel_of(cache, MADE["ltoir"](), **options).key() for options in ({}, {"opt": 0}, {"max_registers": 16})}

    assert len(keys) == 3
    assert kernel_of(cache, MADE["ltoir"](), opt=0).params


def test_cubin_is_linked_with_what_it_lacks(cache: KernelCache, tmp_path: Path) -> None:
    """A relocatable cubin is linked with the file that defines the function it calls."""
    (tmp_path / "f.cu").write_text("__device__ int f(int x) { return x + 1; }")
    source = '__device__ int f(int); extern "C" __global__ void k(int *x) { x[0] = f(x[0]); }'
    code = compiled(source, "cubin", "sm_90", "-rdc=true")

    assert len(kernel_of(cache, code, link=[str(tmp_path / "f.cu")]).params) == 1


# -- a faster compile -----------------------------------------------------------------------------------------


def test_flag_for_a_faster_compile_changes_code_and_key(cache: KernelCache) -> None:
    """Each level has a key of its own."""
    levels = [[], *([f"--Ofast-compile={level}"] for level in ("min", "mid", "max"))]
    loop = 'extern "C" __global__ void k(float *x) { for (int i = 0; i < 64; i++) x[i] = sinf(x[i]) + x[i] * i; }'
    slow, fast = (kernel_of(cache, loop, options=levels[level]) for level in (0, 3))

    assert len({kernel_of(cache, SAXPY, options=level).key() for level in levels}) == 4
    assert slow.cubin() != fast.cubin()
