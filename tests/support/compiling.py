"""Functions that tests of the compilers share: requests with default values for most fields, and child processes."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from numba_kcache.frontends.source.build import build_source
from numba_kcache.model import Artifact, LinkInput, Origin, SourceInput, Target, parse_target
from numba_kcache.model.options import compile_options
from numba_kcache.toolchain import installed_include_dirs
from numba_kcache.toolchain.loaded import called_handle
from numba_kcache.toolchain.nvrtc import NvrtcResult, run_nvrtc

ROOT = Path(__file__).resolve().parents[2]

SAXPY = r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}"""

EMPTY = 'extern "C" __global__ void k() {}'


def request(
    source: str = SAXPY,
    name: str | None = None,
    guess: str | None = None,
    *,
    kind: str = "cuda",
    target: str = "sm_90",
    link: tuple[LinkInput, ...] = (),
    signature: str | None = None,
    through: str | None = None,
    origin: Origin | None = None,
    label: str = "tests.kernel",
    **options: Any,
) -> SourceInput:
    """A request like that of a decorated source."""
    return SourceInput(
        kind,
        label,
        source,
        name,
        guess,
        parse_target(target),
        compile_options(kind, options, ""),
        link,
        signature,
        parse_target(through) if through else None,
        origin or Origin(),
    )


@lru_cache(maxsize=1)
def toolkit_dirs() -> tuple[str, ...]:
    """The toolkit's header folders."""
    return tuple(installed_include_dirs())


def build(*args: Any, **options: Any) -> Artifact:
    """The artifact of `request(...)`."""
    return build_source(request(*args, **options)._replace(toolkit_dirs=toolkit_dirs()))


@lru_cache(maxsize=32)
def compiled(source: str, output: str = "cubin", target: str = "sm_90", *flags: str) -> bytes:
    """NVRTC's code for a source; later calls with the same arguments get the same bytes without a compile."""
    result = run_nvrtc(source, "k.cu", [f"-arch={target}", *flags], (output,))
    assert result.ok, result.log
    return result.code[output]


_results: dict[object, NvrtcResult] = {}


def run_nvrtc_once(
    source: str, program_name: str, flags: Sequence[str], outputs: Sequence[str], expressions: Sequence[str] = ()
) -> NvrtcResult:
    """NVRTC's result for a text; one without `#` is compiled once in a process."""
    asked = called_handle("nvrtc"), source, program_name, *map(tuple, (flags, outputs, expressions))
    found = _results.get(asked) or run_nvrtc(source, program_name, flags, outputs, expressions)
    if found.ok and "#" not in source and not any("include" in each for each in flags):
        _results[asked] = found
    return found


def edited(program: str, old: str, new: str) -> str:
    """The program with another text in the one place that has the old one."""
    assert program.count(old) == 1, old
    return program.replace(old, new)


def said_by_each(module: str, programs: Sequence[str]) -> list[Any]:
    """What each program prints, as JSON; each is run in a fork of one process, which has imported the module."""
    return [json.loads(line) for line in in_python(_FORKS, module, stdin=json.dumps(programs)).splitlines()]


_FORKS = """
import importlib, json, os, sys
importlib.import_module(sys.argv[1])
for program in json.load(sys.stdin):
    child = os.fork()
    if not child:
        exec(program, vars(sys.modules["__main__"]))
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


def in_python(
    code: str, *arguments: str, check: bool = True, cwd: str | None = None, stdin: str = "", **environment: str
) -> str:
    """Run Python code in a fresh interpreter with these environment variables; return its output."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(("NUMBA_", "PYTHONHASH"))}
    path = [str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**inherited, "PYTHONPATH": os.pathsep.join(path), **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        input=stdin,
        timeout=120,
    )
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


def compile_numba(dispatcher: Any, types: Any, target: Target, **more: Any) -> SimpleNamespace:
    """The artifact of a kernel of numba-cuda, as it is compiled to be stored; or the reason why it must not be."""
    from numba.cuda.cudadrv.libs import get_cudalib

    from numba_kcache.errors import UncacheableError
    from numba_kcache.frontends.numba.compiled_code import compile_kernel
    from numba_kcache.frontends.numba.llvm import NUMBA

    runtime = hashlib.sha256(Path(get_cudalib("cudadevrt", static=True)).read_bytes()).hexdigest()
    try:
        artifact = compile_kernel(NUMBA, dispatcher, types, target, runtime_build=f"sha256:{runtime}", **more)
    except UncacheableError as error:
        return SimpleNamespace(artifact=None, uncacheable=error.why)
    return SimpleNamespace(artifact=artifact, uncacheable=None)
