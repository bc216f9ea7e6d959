"""Run CuPy's own tests of RawKernel and RawModule with CuPy's classes and with a shim over this cache, and compare.

CuPy's wheel does not contain its tests: `python .ci/cupy_suite.py TEST_FILE [FOLDER]`, where TEST_FILE is
`tests/cupy_tests/core_tests/test_raw.py` of CuPy's repository, in the installed version. Needs a device. FOLDER gets
the logs and `cupy_suite.json`. The shim, which `pytest` loads as a plugin, replaces both classes. It compiles sources
by this cache, whichever compiler the test names; for files and for Jitify it makes CuPy's own object. Tests of Jitify
and of CuPy's own cache are left out. The exit code is 1 if a test passes without the shim and fails with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from mlir_suite import outcomes_of

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

LEFT_OUT = ("-m", "not slow", "-k", "not CachePayload and not NameExpressionCache and not RawJitify")
ATTRIBUTES = (
    "max_threads_per_block", "shared_size_bytes", "const_size_bytes", "local_size_bytes", "num_regs", "ptx_version",
    "binary_version", "cache_mode_ca", "max_dynamic_shared_size_bytes", "preferred_shared_memory_carveout",
)  # fmt: skip
"""CuPy's names of a function's attributes; the index of each is its number in `CUfunction_attribute`."""


class Function:
    """A kernel of this package with the interface of `cupy.RawKernel`."""

    def __init__(self, module: RawModule, name: str) -> None:
        self.module, self.name = module, name
        self.enable_cooperative_groups = module.cooperative

    @property
    def kernel(self) -> Any:
        return self.module.loaded(self.name)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int = 0, stream: Any = None) -> None:
        values = [ctypes.c_void_p(each.ptr) if type(each).__name__ == "MemoryPointer" else each for each in args]
        self.kernel[tuple(map(int, grid)), tuple(map(int, block)), stream, shared_mem](*values)

    def compile(self, log_stream: Any = None) -> None:
        self.module.compile(log_stream)

    @property
    def attributes(self) -> dict[str, int]:
        import cupy

        handle = self.kernel.handle
        return {name: cupy.cuda.driver.funcGetAttribute(number, handle) for number, name in enumerate(ATTRIBUTES)}

    def __getattr__(self, name: str) -> Any:
        if name in ATTRIBUTES:
            return self.attributes[name]
        raise AttributeError(name)

    def __reduce__(self) -> Any:
        return Function, (self.module, self.name)


class RawModule:
    """A module of this package with the interface of `cupy.RawModule`."""

    def __init__(self, code: str, options: tuple[str, ...], names: Any, cooperative: bool, is_translated: bool) -> None:
        from cupy._core.core import assemble_cupy_compiler_options
        from cupy.cuda import compiler

        from numba_kcache import cached_module

        self.arguments = (code, options, names, cooperative, is_translated)
        self.cooperative = cooperative
        if is_translated:
            code = "#include <cupy/complex.cuh>\n" + code.replace("<cuComplex.h>", "<cupy/cuComplex_bridge.h>")
        is_relocatable = "-dc" in options or "-rdc=true" in options
        flags = assemble_cupy_compiler_options(tuple(options))
        self.module = cached_module(
            code, names=names, options=[each for each in flags if not each.startswith("-I")],
            include_dirs=[each[2:] for each in flags if each.startswith("-I")],
            cooperative=cooperative or None, link=[compiler._get_cudadevrt_path()] if is_relocatable else None,
        )  # fmt: skip

    def loaded(self, name: str) -> Any:
        """Compile and load a kernel; raise CuPy's errors if the module has no such kernel or does not compile."""
        import cupy

        from numba_kcache import CompileError, EntryError

        try:
            kernel = self.module[name]
            assert kernel.handle
        except EntryError as error:
            raise cupy.cuda.driver.CUDADriverError(500) from error
        except CompileError as error:
            code, options, *_ = self.arguments
            log = error.log or str(error)
            raise cupy.cuda.compiler.CompileException(log, code, name, options, "nvrtc") from error
        return kernel

    def get_function(self, name: str) -> Function:
        self.loaded(name)
        return Function(self, name)

    def get_global(self, name: str) -> Any:
        import cupy

        self.compile()
        variable = self.module.symbol(name)
        address = variable.__cuda_array_interface__["data"][0]
        memory = cupy.cuda.UnownedMemory(address, 1 << 20, variable)
        return cupy.cuda.MemoryPointer(memory, 0)

    def compile(self, log_stream: Any = None) -> None:
        for name in list(self.module):
            kernel = self.loaded(name)
            if log_stream is not None:
                log_stream.write(str(kernel.log))

    def __reduce__(self) -> Any:
        return RawModule, self.arguments


def make_module(
    code: Any = None, *, path: Any = None, options: Any = (), backend: str = "nvrtc", translate_cucomplex: bool = False,
    enable_cooperative_groups: bool = False, name_expressions: Any = None, jitify: bool = False,
) -> Any:  # fmt: skip
    """Stand in for `cupy.RawModule`."""
    original = ORIGINAL["RawModule"]
    if code is None or path is not None or jitify or (name_expressions and backend == "nvcc"):
        return original(
            code=code, path=path, options=options, backend=backend, translate_cucomplex=translate_cucomplex,
            enable_cooperative_groups=enable_cooperative_groups, name_expressions=name_expressions, jitify=jitify,
        )  # fmt: skip
    return RawModule(code, tuple(options), name_expressions, enable_cooperative_groups, translate_cucomplex)


def make_kernel(
    code: str, name: str, options: Any = (), backend: str = "nvrtc", translate_cucomplex: bool = False, *,
    enable_cooperative_groups: bool = False, jitify: bool = False,
) -> Any:  # fmt: skip
    """Stand in for `cupy.RawKernel`."""
    if jitify:
        return ORIGINAL["RawKernel"](code, name, options, backend, translate_cucomplex, jitify=jitify)
    return Function(RawModule(code, tuple(options), None, enable_cooperative_groups, translate_cucomplex), name)


ORIGINAL: dict[str, Any] = {}


def pytest_configure() -> None:
    """Replace CuPy's classes by the shim: pytest calls this function of its plugins."""
    import cupy

    ORIGINAL.update(RawKernel=cupy.RawKernel, RawModule=cupy.RawModule)
    cupy.RawKernel, cupy.RawModule = make_kernel, make_module


def run(name: str, test_file: Path, folder: Path, plugin: tuple[str, ...], variables: dict[str, str]) -> dict[str, str]:
    """Run the tests once; return the outcome of each by name: passed, skipped, failure or error."""
    report = folder / f"{name}.xml"
    settings = folder / "pytest.ini"
    settings.write_text("[pytest]\n")
    words = [
        "-q",
        "-c",
        str(settings),
        "-p",
        "no:cacheprovider",
        *plugin,
        *LEFT_OUT,
        f"--junitxml={report}",
        str(test_file),
    ]
    path = os.pathsep.join([str(ROOT / ".ci"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    with (folder / f"{name}.log").open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "pytest", *words], env={**os.environ, "PYTHONPATH": path, **variables}, stdout=out,
            stderr=subprocess.STDOUT, check=False, timeout=1200,
        )  # fmt: skip
    return outcomes_of(name, report)


def main() -> int:
    from header import machine_header

    test_file, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2] if len(sys.argv) > 2 else ".").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        cached = {"NUMBA_KCACHE_DIR": directory}
        outcomes = {
            "plain": run("plain", test_file, folder, (), {}),
            "cold": run("cold", test_file, folder, ("-p", "cupy_suite"), cached),
            "warm": run("warm", test_file, folder, ("-p", "cupy_suite"), cached),
        }
    passed = {test for test, outcome in outcomes["plain"].items() if outcome == "passed"}
    new = {name: sorted(test for test in passed if outcomes[name].get(test) != "passed") for name in ("cold", "warm")}
    counts = {
        name: {word: list(found.values()).count(word) for word in set(found.values())}
        for name, found in outcomes.items()
    }
    result = {"machine": machine_header(), "counts": counts, "passed": sorted(passed), "new": new}
    (folder / "cupy_suite.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(new, indent=1))
    return int(any(new.values()))


if __name__ == "__main__":
    raise SystemExit(main())
