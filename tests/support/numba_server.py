"""Run programs that use a Numba in children forked from a process that has imported it: 0.3 s each instead of 2 s.

Promise     A child has its own arguments, environment and output; Numba reads its settings again.
Method      A server for each Numba, started on the fake driver, fills its registries, then forks for each line of its
            input. numba-cuda-mlir compiles nothing before: its compiler starts threads, which no child would have.
            A hit in another process is seen in a fork of a second server (`way="later"`), which has another hash seed
            and other addresses, has imported the Numba, and has filled no registry.
            A third server (`way="stand-in"`) has imported `cuda` from this package, which has imported the Numba.
Not here    Processes that import the Numba themselves: for tests of what an import, a start or an end does.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.fake_driver import build, environment

_SERVER = """
import atexit, json, os, runpy, sys, traceback, warnings
warnings.simplefilter("ignore")
of, way = sys.argv[1:3]
is_later = way == "later"
if way == "stand-in" and of == "numba":
    from numba_kcache import cuda
    cuda.is_available  # imports the Numba, as a miss does
elif way == "stand-in":
    from numba_kcache.mlir import cuda
    cuda.is_available
if of == "numba":
    import numba.core.config, numba.cuda.core.config
    from numba import cuda
    if not is_later:
        cuda.compile_ptx(lambda x: None, (numba.float64[::1],), cc=(9, 0))
    configs = numba.core.config, numba.cuda.core.config
else:
    import numba_cuda_mlir.cuda
    from numba_cuda_mlir.descriptor import mlir_target
    from numba_cuda_mlir.numba_cuda.core import config
    if not is_later:
        mlir_target.ensure_initialized()
    configs = config,

def serve(arguments, env):
    os.environ.clear()
    os.environ.update(env)
    default = configs[-1].CUDA_DEFAULT_PTX_CC  # numba-cuda-mlir sets its own when it is imported
    for each in configs:
        each.reload_config()
    configs[-1].CUDA_DEFAULT_PTX_CC = default
    sys.argv = [arguments[0], *arguments[2 if arguments[0] == "-c" else 1:]]
    try:
        if arguments[0] == "-c":
            exec(arguments[1], {"__name__": "__main__"})
        else:
            sys.path[0] = os.path.dirname(arguments[0])
            runpy.run_path(arguments[0], run_name="__main__")
        atexit._run_exitfuncs()
        return 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

for line in sys.stdin:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(write, 1)
        os.dup2(write, 2)
        os._exit(serve(*json.loads(line)))
    os.close(write)
    with open(read, errors="replace") as pipe:
        output = pipe.read()
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output]), flush=True)
"""


@functools.cache
def _server(of: str, way: str) -> subprocess.Popen[str]:
    """Start a server of a Numba, once in a process of tests; it ends when its input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER, of, way],
        env={**environment(build()), "PYTHONHASHSEED": "2" if way == "later" else "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(arguments: Sequence[str], env: Mapping[str, str], of: str = "numba", *, way: str = "first") -> tuple[int, str]:
    """Exit code and output of a program; its arguments are those of the interpreter, with a file or `-c` first.

    `of` names the Numba that it finds imported, "numba" or "mlir", and `way` the server: "first", "later", "stand-in".
    """
    server = _server(of, way)
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([list(arguments), dict(env)]) + "\n")
    server.stdin.flush()
    code, output = json.loads(server.stdout.readline())
    return code, output


def output(arguments: Sequence[str], env: Mapping[str, str], of: str = "numba", *, way: str = "first") -> str:
    """Output of a program; the test fails if its exit code is not 0."""
    code, text = run(arguments, env, of, way=way)
    if code:
        pytest.fail(f"the child exited with {code}:\n{text}", pytrace=False)
    return text


def in_turn(program: str, cache: Path, env: Mapping[str, str]) -> str:
    """Output of a program that takes a cache's directory; a later process where an earlier one has filled that."""
    return output(["-c", program, str(cache)], env, way="later" if cache.exists() else "first")
