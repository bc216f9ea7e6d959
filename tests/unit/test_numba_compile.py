"""Numba kernels compiled for targets that are not there; the cubins are read back as ELF."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numba import cuda, float32, float64, int32, int64, types
from numba.cuda.core.errors import TypingError

from numba_kcache.errors import CompileError, LinkError
from numba_kcache.frontends.numba import Declared
from numba_kcache.frontends.numba.compiled_code import assumed_device
from numba_kcache.frontends.numba.fingerprint import Fingerprint, fingerprint
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.frontends.numba.llvm_compile import why_uncacheable
from numba_kcache.model import Target, artifact_from_header, parse_target
from numba_kcache.model.cubin import read_cubin
from numba_kcache.model.header import artifact_header
from numba_kcache.toolchain.nvrtc import run_nvrtc
from tests.support.compiling import compile_numba

SM_80 = Target(8, 0)
ARRAY = float32[::1]
EXTERNAL = 'extern "C" __device__ int external(int *out, int x) { *out = x * 77 + EXTRA; return 0; }'


def built(dispatcher: Any, signature: tuple[Any, ...], target: Target = SM_80, **options: Any) -> SimpleNamespace:
    """Compile as the cache does: with the digests of the device functions that the kernel calls."""
    found = fingerprint(dispatcher, NUMBA, with_lines=False)
    callees = found.device_functions() if isinstance(found, Fingerprint) else ()
    declared = Declared(dispatcher.py_func, dispatcher.targetoptions | options)
    return compile_numba(declared, signature, target, device_functions=callees)


def ptx_of(build: SimpleNamespace) -> str:
    return build.artifact.ptx.decode()


SPACE: dict[str, Any] = {"FACTOR": 3.0, "cuda": cuda}
exec(
    """
@cuda.jit(device=True)
def scaled(x):
    return x * FACTOR
@cuda.jit
def kernel(x, out):
    i = cuda.grid(1)
    if i < out.size:
        out[i] = scaled(x[i])
""",
    SPACE,
)

OVERLOADED = """
from numba.cuda.extending import overload
def gained(x):
    return x
@overload(gained)
def implement_gained(x):
    def implementation(x):
        return x * GAIN
    return implementation
@cuda.jit
def kernel(x):
    x[0] = gained(x[0])
"""
"""A kernel that calls an overload, which multiplies by the global GAIN."""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_86", "sm_90", "sm_90a", "sm_100a", "sm_120"])
def test_any_target_compiles_without_a_device(arch: str) -> None:
    """A kernel that calls a device function, in one process, for one target after another."""
    target = parse_target(arch)

    build = built(SPACE["kernel"], (ARRAY, ARRAY), target)

    cubin = read_cubin(build.artifact.cubin)
    assert cubin.sm == target.major * 10 + target.minor
    assert [each.symbol for each in cubin.kernels] == [build.artifact.kernels[0].symbol]
    assert len(cubin.kernels[0].parameters) == 14
    assert f".target {arch}\n" in ptx_of(build)
    assert build.uncacheable is None


def test_artifact_survives_a_store() -> None:
    """Header and payloads are plain values: what is read back equals what was stored."""
    artifact = built(SPACE["kernel"], (ARRAY, ARRAY)).artifact

    back = artifact_from_header(artifact_header(artifact), {"cubin": artifact.cubin, **artifact.extras})

    assert artifact_header(back) == artifact_header(artifact)


@pytest.mark.slow
def test_device_function_is_compiled_anew_for_other_globals() -> None:
    """Numba keeps the code that it compiled first, which must not be stored under a key with the new value."""
    space = dict(SPACE)
    exec("@cuda.jit(device=True)\ndef scaled(x):\n    return x * FACTOR\n", space)
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = scaled(x[0])\n", space)
    constants = []
    for factor in (3.0, 5.0, 3.0):
        space["FACTOR"] = factor
        constants.append(re.findall(r"0d40\w{14}", ptx_of(built(space["kernel"], (float64[::1],)))))

    assert constants == [["0d4008000000000000"], ["0d4014000000000000"], ["0d4008000000000000"]]


@pytest.mark.slow
def test_overload_that_numba_compiled_by_itself_is_not_trusted() -> None:
    """Another kernel of this process may have compiled the overload with other globals."""
    space = dict(SPACE)
    exec("@cuda.jit(device=True)\ndef scaled(x):\n    return x * FACTOR\n", space)
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = scaled(x[0])\n", space)
    with assumed_device(NUMBA, (8, 0)):
        space["scaled"].compile_device((float64,))
    space["FACTOR"] = 5.0

    assert "0d4014000000000000" in ptx_of(built(space["kernel"], (float64[::1],)))


@pytest.mark.slow
def test_explicit_overload_is_compiled_anew_with_its_signature() -> None:
    """A device function with an explicit signature keeps it, and the cast of the argument to it."""
    space = dict(SPACE)
    with assumed_device(NUMBA, (7, 5)):
        exec("@cuda.jit('float64(float64)', device=True)\ndef scaled(x):\n    return x * FACTOR\n", space)
    exec("@cuda.jit\ndef kernel(x, out):\n    out[0] = scaled(x[0])\n", space)
    space["FACTOR"] = 5.0

    ptx = ptx_of(built(space["kernel"], (ARRAY, float64[::1])))

    assert "cvt.f64.f32" in ptx
    assert "0d4014000000000000" in ptx


def test_other_threads_keep_their_device() -> None:
    """Only the thread that compiles sees the target as its device."""
    from numba.cuda import dispatcher as dispatchers

    seen: list[object] = []
    real = dispatchers.get_current_device
    dispatchers.get_current_device = lambda: "the device"
    try:
        with assumed_device(NUMBA, (8, 0)):
            here = dispatchers.get_current_device().compute_capability
            thread = threading.Thread(target=lambda: seen.append(dispatchers.get_current_device()))
            thread.start()
            thread.join()
        assert dispatchers.get_current_device() == "the device"
    finally:
        dispatchers.get_current_device = real

    assert here == (8, 0)
    assert seen == ["the device"]


def external_kernel(link: Any) -> Any:
    declared = cuda.declare_device("external", "int32(int32)")

    def kernel(out):  # type: ignore[no-untyped-def]
        out[0] = declared(out[0])

    return cuda.jit(kernel, link=link)


def compiled_external(kind: str, extra: int) -> bytes:
    flags = ["-arch=sm_80", "--relocatable-device-code=true", f"-DEXTRA={extra}"]
    flags += ["--dlink-time-opt"] if kind == "ltoir" else []
    return run_nvrtc(EXTERNAL, "external.cu", flags, (kind,)).code[kind]


@pytest.mark.slow
@pytest.mark.parametrize("lto", [True, False])
def test_cuda_c_with_its_own_header_is_linked_as_it_is_now(tmp_path: Path, lto: bool) -> None:
    """The header beside the file is found, and an edit within the process too: Numba reads each file once."""
    (tmp_path / "device.cu").write_text(f'#include "extra.h"\n{EXTERNAL}')
    link = [str(tmp_path / "device.cu")]
    dispatcher = external_kernel(link)
    cubins = []
    for extra in (5, 6):
        (tmp_path / "extra.h").write_text(f"#define EXTRA {extra}\n")
        cubins.append(built(dispatcher, (int32[::1],), lto=lto).artifact.cubin)

    assert cubins[0] != cubins[1]
    assert all((b".text.external\0" in each) is not lto for each in cubins), "LTO inlines it"
    assert link == [str(tmp_path / "device.cu")]


def test_log_of_linked_cuda_c_is_warned_of(tmp_path: Path) -> None:
    """NVRTC's log is a warning in the same words as Numba's."""
    (tmp_path / "device.cu").write_text(f"#define EXTRA 1\n#warning beware\n{EXTERNAL}")

    with pytest.warns(UserWarning, match="^NVRTC log messages: (?s:.*)beware"):
        built(external_kernel([str(tmp_path / "device.cu")]), (int32[::1],))


@pytest.mark.parametrize("kind", ["ptx", "ltoir", "cubin"])
@pytest.mark.parametrize("memory", [True, False], ids=["object", "file"])
def test_compiled_code_is_linked(tmp_path: Path, kind: str, memory: bool) -> None:
    """PTX, LTO-IR and cubin, from a file and from `LinkableCode`."""
    code = compiled_external(kind, 5)
    (tmp_path / f"device.{kind}").write_bytes(code)
    kinds = {"ptx": cuda.PTXSource, "ltoir": cuda.LTOIR, "cubin": cuda.Cubin}
    item = kinds[kind](code) if memory else str(tmp_path / f"device.{kind}")

    build = built(external_kernel([item]), (int32[::1],))

    assert read_cubin(build.artifact.cubin).sm == 80
    assert build.uncacheable is None


def test_archive_is_linked() -> None:
    """The device runtime is an archive that every toolkit has."""
    from numba.cuda.cudadrv.libs import get_cudalib

    item = get_cudalib("cudadevrt", static=True)

    assert built(cuda.jit(SPACE["kernel"].py_func, link=[item]), (ARRAY, ARRAY)).artifact.cubin


def test_declared_function_brings_its_link_inputs(tmp_path: Path) -> None:
    """`declare_device(link=)` needs no `link=` on the kernel."""
    (tmp_path / "device.cu").write_text("#define EXTRA 1\n" + EXTERNAL)
    declared = cuda.declare_device("external", "int32(int32)", link=str(tmp_path / "device.cu"))

    @cuda.jit
    def kernel(out):  # type: ignore[no-untyped-def]
        out[0] = declared(out[0])

    assert built(kernel, (int32[::1],)).artifact.cubin


@pytest.mark.slow
def test_refused_link_inputs_are_named(tmp_path: Path) -> None:
    """Missing file, unknown suffix, wrong C: each error names the input."""
    (tmp_path / "wrong.cu").write_text("int f( {")
    for item, error in (("absent.cu", LinkError), ("strange.txt", LinkError), ("wrong.cu", CompileError)):
        with pytest.raises(error, match=item):
            built(cuda.jit(SPACE["kernel"].py_func, link=[str(tmp_path / item)]), (ARRAY, ARRAY))


@pytest.mark.slow
def test_reshape_links_numbas_own_helper() -> None:
    """Numba's cache refuses these kernels: they link a file."""

    @cuda.jit
    def kernel(x, out):  # type: ignore[no-untyped-def]
        out[0] = x.reshape(2, 2)[1, 1]

    build = built(kernel, (ARRAY, ARRAY))

    assert build.artifact.cubin
    assert build.uncacheable is None


@pytest.mark.slow
def test_half_and_bfloat16_compile() -> None:
    """Both link CUDA C++ that Numba writes during lowering; Numba's own cache refuses them."""
    from numba.cuda.types import bfloat16

    @cuda.jit
    def half(x, out):  # type: ignore[no-untyped-def]
        out[0] = cuda.fp16.hsin(x[0]) + x[1]

    @cuda.jit
    def brain(out):  # type: ignore[no-untyped-def]
        a = bfloat16(3.0)
        out[0] = float32(a * a)

    for kernel, signature in ((half, (types.float16[::1], types.float16[::1])), (brain, (ARRAY,))):
        build = built(kernel, signature, Target(9, 0, "a"))
        assert read_cubin(build.artifact.cubin).sm == 90
        assert build.uncacheable is None


@pytest.mark.slow
def test_cooperative_grid_is_recorded_and_linked() -> None:
    """Grid synchronisation needs the device runtime in the cubin and a flag at the launch."""

    @cuda.jit
    def kernel(x):  # type: ignore[no-untyped-def]
        x[cuda.grid(1)] = 1
        cuda.cg.this_grid().sync()
        x[0] = x[1]

    assert built(kernel, (int32[::1],)).artifact.attributes["cooperative"] is True
    assert built(SPACE["kernel"], (ARRAY, ARRAY)).artifact.attributes["cooperative"] is False


def test_debug_kernel_carries_its_exceptions() -> None:
    """Error codes in device memory stand for exceptions of the source; the stored table of them has plain values
    only."""

    @cuda.jit(debug=True, opt=False)
    def kernel(x):  # type: ignore[no-untyped-def]
        if x[0] > 3:
            raise ValueError("too large", 3)
        x[1] = x[0] // x[2]

    build = built(kernel, (int64[::1],))

    table = build.artifact.attributes["exceptions"]
    assert ["ValueError", ["too large", 3]] in [each[1:3] for each in table]
    assert "ZeroDivisionError" in [each[1] for each in table]
    place = next(each[3] for each in table if each[1] == "ValueError")
    assert place[1:] == [__file__, kernel.py_func.__code__.co_firstlineno + 3]
    assert build.uncacheable is None
    assert build.artifact.kernels[0].symbol.encode() + b"__errcode__" in build.artifact.cubin


class _OwnError(Exception):
    pass


@pytest.mark.slow
def test_what_only_this_process_can_run_is_not_cacheable() -> None:
    """Exceptions of the user's own classes, callbacks of linked code; extensions take part in launches alone."""

    @cuda.jit(debug=True, opt=False)
    def raising(x):  # type: ignore[no-untyped-def]
        raise _OwnError("own")

    plain = SPACE["kernel"].py_func
    called = cuda.CUSource("// nothing", setup_callback=print)

    assert "not built in" in str(built(raising, (ARRAY,)).uncacheable)
    assert built(cuda.jit(plain, extensions=[object()]), (ARRAY, ARRAY)).uncacheable is None
    assert "callbacks" in str(built(cuda.jit(plain, link=[called]), (ARRAY, ARRAY)).uncacheable)


@pytest.mark.slow
def test_launch_bounds_registers_and_fastmath_reach_the_code() -> None:
    """Options of the decorator, or given on top of it."""

    @cuda.jit(launch_bounds=(128, 2), shared_memory_carveout="MaxShared", fastmath=True)
    def kernel(x, y):  # type: ignore[no-untyped-def]
        x[0] = x[1] / y[0]
        a, b, c, d, e, f, g, h = x[2], x[3], x[4], x[5], x[6], x[7], x[8], x[9]
        i, j, k, m, n, o, p, q = y[2], y[3], y[4], y[5], y[6], y[7], y[8], y[9]
        cuda.syncthreads()
        for _ in range(x.size):
            a, b, c, d, e, f, g, h = b * i, c * j, d * k, e * m, f * n, g * o, h * p, a * q
        y[0] = a + b + c + d + e + f + g + h

    build = built(kernel, (ARRAY, ARRAY))
    free = built(kernel, (ARRAY, ARRAY), launch_bounds=None)
    limited = built(kernel, (ARRAY, ARRAY), launch_bounds=None, max_registers=24)

    assert ".maxntid 128" in ptx_of(build)
    assert ".minnctapersm 2" in ptx_of(build)
    assert "div.approx" in ptx_of(build)
    assert build.artifact.attributes["carveout"] == 100
    assert limited.artifact.kernels[0].registers <= 24 < free.artifact.kernels[0].registers


def test_virtual_target_is_generated_for_and_linked() -> None:
    """`arch="compute_75"` on a later device: PTX of the one, a cubin of the other."""
    kernel = SPACE["kernel"]
    build = compile_numba(kernel, (ARRAY, ARRAY), Target(9, 0), ptx_target=Target(7, 5, "", True))

    assert ".target sm_75" in ptx_of(build)
    assert read_cubin(build.artifact.cubin).sm == 90


@pytest.mark.slow
def test_numbas_own_errors_pass_unchanged() -> None:
    """Typing errors and a returned value raise the same class and text as with Numba alone."""

    def returning(x):  # type: ignore[no-untyped-def]
        return x[0]

    def untyped(x):  # type: ignore[no-untyped-def]
        x[0] = x.nonsense

    for function in (returning, untyped):
        with pytest.raises(TypingError) as own, assumed_device(NUMBA, (8, 0)):
            cuda.compile_ptx(function, types.void(ARRAY), cc=(8, 0))
        with pytest.raises(TypingError) as ours:
            built(cuda.jit(function), (ARRAY,))
        assert str(ours.value) == str(own.value)


@pytest.mark.slow
def test_failed_compilation_leaves_numba_as_it_was() -> None:
    """The device is restored, and the next kernel compiles."""
    from numba.cuda import dispatcher as dispatchers

    before = dispatchers.get_current_device
    with pytest.raises(TypingError):
        built(cuda.jit(lambda x: x.nonsense), (ARRAY,))

    assert dispatchers.get_current_device is before
    assert built(SPACE["kernel"], (ARRAY, ARRAY)).artifact.cubin


def test_kernel_without_cuda_array_and_with_scalars_compiles() -> None:
    """Records, tuples and scalars by value."""
    record = np.dtype([("a", np.int32), ("b", np.float64)], align=True)

    @cuda.jit
    def kernel(r, pair, x, out):  # type: ignore[no-untyped-def]
        out[0] = r[0].b + pair[0] + pair[1] + x

    from numba import from_dtype

    signature = (from_dtype(record)[::1], types.Tuple((int32, float64)), types.complex64, types.complex128[::1])

    assert built(kernel, signature).artifact.cubin


@pytest.mark.slow
def test_overload_and_intrinsic_are_made_anew_for_other_globals() -> None:
    """Numba makes each once in a process; with a changed global it would be stored under the wrong key."""
    space: dict[str, Any] = {"cuda": cuda, "GAIN": 3.0}
    exec(
        OVERLOADED
        + """
from numba.cuda.extending import intrinsic
@intrinsic
def constant(context):
    from llvmlite import ir
    from numba.cuda import types
    value = GAIN
    return types.float64(), lambda context, builder, signature, arguments: ir.Constant(ir.DoubleType(), value)
@cuda.jit
def second(x):
    x[0] = constant()
""",
        space,
    )
    found = {}
    for gain in (3.0, 5.0):
        space["GAIN"] = gain
        for name in ("kernel", "second"):
            ptx = ptx_of(built(space[name], (float64[::1],)))
            found[name, gain] = re.findall(r"0d40\w{14}|46\d{17}", ptx)

    assert all(found[name, 3.0] != found[name, 5.0] for name in ("kernel", "second")), found


@pytest.mark.slow
def test_compiling_keeps_digests() -> None:
    """The first compile loads all of Numba's registries; a process that never loads them must derive the same key."""
    script = """
import math, operator
from numba import cuda, float32
from numba_kcache.frontends.numba.llvm import NUMBA
from numba_kcache.frontends.numba.fingerprint import fingerprint
from numba_kcache.model import Target
from numba_kcache.frontends.numba import Declared
from numba_kcache.frontends.numba.compiled_code import compile_kernel
from numba_kcache.frontends.numba.llvm import NUMBA
@cuda.jit(device=True)
def device(x, y=2): return operator.add(abs(x), math.sqrt(y)) if isinstance(x, float) else max(x, y)
@cuda.jit
def kernel(x, out):
    shared = cuda.shared.array(4, float32)
    for i in range(len(out)):
        out[i] = device(x[i]) + cuda.atomic.add(out, 0, 1.0) + min(i, 3) + x.size + x.sum
@cuda.jit
def plain(x): x[0] = device(x[0])
before = fingerprint(kernel, NUMBA, with_lines=False), NUMBA.code_environment(has_lines=False)
compile_kernel(NUMBA, plain, (float32[::1],), Target(8, 0))
after = fingerprint(kernel, NUMBA, with_lines=False), NUMBA.code_environment(has_lines=False)
assert before[0].components == after[0].components, (before, after)
assert before[0].digest == after[0].digest and before[1] == after[1]
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

    subprocess.run([sys.executable, "-c", script], env=environ, check=True)


@pytest.mark.slow
def test_function_under_njit_is_compiled_anew_for_other_globals() -> None:
    """Numba keeps a device dispatcher for the `njit` function, with the code that it compiled first."""
    space: dict[str, Any] = {"cuda": cuda, "FACTOR": 3.0}
    exec(
        """
from numba import njit
@njit
def scaled(x):
    return x * FACTOR
@cuda.jit
def kernel(x):
    x[0] = scaled(x[0])
""",
        space,
    )
    found = []
    for factor in (3.0, 5.0):
        space["FACTOR"] = factor
        found.append(re.findall(r"0d40\w{14}", ptx_of(built(space["kernel"], (float64[::1],)))))

    assert found == [["0d4008000000000000"], ["0d4014000000000000"]]


@pytest.mark.slow
def test_function_put_into_njit_counts_only_before_the_first_kernel() -> None:
    """The first kernel that calls an `njit` function makes a device dispatcher of it, which keeps the function of that
    time."""
    space: dict[str, Any] = {"cuda": cuda, "FACTOR": 3.0}
    exec(
        """
from numba import njit
@njit
def scaled(x): return x * 3.0
def other(x): return x * 5.0
@cuda.jit
def kernel(x): x[0] = scaled(x[0])
""",
        space,
    )

    def digest() -> str:
        found = fingerprint(space["kernel"], NUMBA, with_lines=False)
        assert isinstance(found, Fingerprint)
        return found.digest

    before, before_other = digest(), space["scaled"].py_func
    space["scaled"].py_func = space["other"]
    with_other = digest()
    space["scaled"].py_func = before_other
    built(space["kernel"], (float64[::1],))
    space["scaled"].py_func = space["other"]

    assert with_other != before
    assert digest() == before
    assert "0d4008000000000000" in ptx_of(built(space["kernel"], (float64[::1],)))


@pytest.mark.slow
def test_numbas_runtime_is_linked_where_it_is_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays that a kernel allocates need it; with its statistics no kernel is cacheable."""
    from numba.cuda.core import config

    monkeypatch.setattr(config, "CUDA_ENABLE_NRT", True)

    @cuda.jit
    def kernel(x):  # type: ignore[no-untyped-def]
        made = np.empty(x.size, np.float32)
        made[0] = x[0]
        x[1] = made[0] + made.size

    @cuda.jit
    def without(x):  # type: ignore[no-untyped-def]
        x[0] = 1

    assert built(kernel, (ARRAY,)).uncacheable is None
    monkeypatch.setattr(config, "CUDA_NRT_STATS", True)
    assert "statistics" in str(built(without, (ARRAY,)).uncacheable)


def test_code_for_one_launch_configuration_is_not_cacheable() -> None:
    """The code contains the grid, which is not in the key."""
    parts = SimpleNamespace(cuda_target=SimpleNamespace(target_context=SimpleNamespace(enable_nrt=False)))
    library = SimpleNamespace(referenced_objects={}, _setup_functions=[], _teardown_functions=[])
    for is_sensitive, reason in ((True, "its code depends on the launch configuration"), (False, "")):
        kernel = SimpleNamespace(library=library, launch_config_sensitive=is_sensitive)
        assert why_uncacheable(kernel, {}, parts) == reason


@pytest.mark.slow
def test_failed_compile_leaves_no_code_of_other_globals() -> None:
    """The failed compile had compiled the device function with its globals; the next one, with the earlier globals,
    makes the earlier code."""
    space = dict(SPACE)
    exec("@cuda.jit(device=True)\ndef scaled(x):\n    return x * FACTOR\n", space)
    exec("@cuda.jit\ndef kernel(x):\n    x[0] = scaled(x[0])\n", space)
    exec("@cuda.jit\ndef failing(x):\n    x[0] = scaled(x[0])\n    x.nonsense\n", space)
    built(space["kernel"], (float64[::1],))
    space["FACTOR"] = 5.0
    with pytest.raises(TypingError):
        built(space["failing"], (float64[::1],))
    space["FACTOR"] = 3.0

    assert "0d4008000000000000" in ptx_of(built(space["kernel"], (float64[::1],)))


@pytest.mark.slow
def test_implementation_that_another_kernel_brought_along_is_not_trusted() -> None:
    """A kernel without a key had compiled an overload for a new type with other globals."""
    space: dict[str, Any] = {"cuda": cuda, "GAIN": 3.0}
    exec(OVERLOADED, space)
    built(space["kernel"], (float64[::1],))
    space["GAIN"] = 5.0
    compile_numba(Declared(space["kernel"].py_func, space["kernel"].targetoptions), (int64[::1],), SM_80)
    space["GAIN"] = 3.0

    assert "0d4008000000000000" in ptx_of(built(space["kernel"], (int64[::1],)))


@pytest.mark.slow
@pytest.mark.parametrize("callees", ["inner(x[0]) + outer(x[0])", "outer(x[0]) + inner(x[0])", "outer(x[0])"])
@pytest.mark.parametrize("inner", ["('float64(float64)', device=True)", "(device=True)"])
def test_explicit_overload_is_compiled_anew_after_what_it_calls(callees: str, inner: str) -> None:
    """A device function with an explicit signature is compiled at its decoration, with the code that its callees have
    then."""
    space = dict(SPACE)
    with assumed_device(NUMBA, (8, 0)):
        exec(f"@cuda.jit{inner}\ndef inner(x):\n    return x * FACTOR\n", space)
        exec("@cuda.jit('float64(float64)', device=True)\ndef outer(x):\n    return inner(x)\n", space)
    exec(f"@cuda.jit\ndef kernel(x):\n    x[0] = {callees}\n", space)
    constants = []
    for factor in (3.0, 5.0):
        space["FACTOR"] = factor
        constants.append({*re.findall(r"0d40\w{14}", ptx_of(built(space["kernel"], (float64[::1],))))})

    assert constants == [{"0d4008000000000000"}, {"0d4014000000000000"}]


PASSED = """
import enum
import numba
from numba import cuda, types
from numba.cuda.extending import intrinsic, overload
from numba.extending import overload as overload_of_core
GAIN = 3.0
class Mode(enum.IntEnum):
    ONE = 3
@cuda.jit(device=True)
def scaled(x): return x * GAIN
@numba.njit
def scaled_under_njit(x): return x * GAIN
def owned(x): pass
@overload(owned)
def implement_owned(x): return lambda x: x * GAIN
def of_core(x): pass
@overload_of_core(of_core)
def implement_of_core(x): return lambda x: x * GAIN
def body(x): return x * GAIN
@intrinsic
def written(context, x):
    def write(context, builder, signature, arguments):
        return context.compile_internal(builder, body, types.float64(types.float64), arguments)
    return types.float64(types.float64), write
@cuda.jit(device=True)
def applied(function, x): return function(x)
@cuda.jit(device=True)
def applied_in_tuple(functions, x): return functions[0](x)
@cuda.jit(device=True)
def of_enum(kind, x): return x * kind.ONE.value
IN_TUPLE = scaled,
@cuda.jit
def kernel(x): x[0] = {used}
@cuda.jit
def another(x): x[0] = scaled(x[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "used",
    ["applied(scaled, x[0])", "applied(scaled_under_njit, x[0])", "applied(owned, x[0])", "applied(written, x[0])",
     "applied_in_tuple(IN_TUPLE, x[0])", "of_enum(Mode, x[0])", "of_core(x[0])", "written(x[0])"],
)  # fmt: skip
def test_code_for_objects_of_the_program_is_made_anew(used: str) -> None:
    """A device function's code depends on functions and classes that are passed to it.

    Between the two compiles another kernel compiles the passed function with its new global, so that the passed
    function itself no longer shows a change.
    """
    space: dict[str, Any] = {"__name__": "app"}
    exec(PASSED.replace("{used}", used), space)
    before = ptx_of(built(space["kernel"], (float64[::1],)))
    space["GAIN"], space["Mode"].ONE._value_ = 5.0, 5
    built(space["another"], (float64[::1],))
    after = ptx_of(built(space["kernel"], (float64[::1],)))

    assert ["0d4008000000000000" in each for each in (before, after)] == [True, False]
    assert ["0d4014000000000000" in each for each in (before, after)] == [False, True]


@pytest.mark.slow
def test_operator_of_the_program_is_made_anew_in_device_functions() -> None:
    """A device function names no implementation of an operator, yet is compiled again when one changes."""
    script = """
import operator, sys
from numba import cuda, types, float64
from numba.cuda.extending import overload
from tests.unit.test_numba_compile import built, ptx_of
GAIN = 3.0
@overload(operator.sub)
def implement_sub(a, b):
    if isinstance(a, types.BaseTuple): return lambda a, b: (a[0] + b[0]) * GAIN
@cuda.jit(device=True)
def subtracted(x): return (x, x) - (x, x)
@cuda.jit
def kernel(x): x[0] = subtracted(x[0])
before = ptx_of(built(kernel, (float64[::1],)))
GAIN = 5.0
after = ptx_of(built(kernel, (float64[::1],)))
assert ("0d4008000000000000" in before, "0d4014000000000000" in before) == (True, False), before
assert ("0d4008000000000000" in after, "0d4014000000000000" in after) == (False, True), after
"""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.getcwd()])}

    subprocess.run([sys.executable, "-c", script], env=environ, check=True)
