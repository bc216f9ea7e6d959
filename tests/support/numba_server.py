"""Run programs that use Numba in children forked from a process that has imported it: 0.3 s each instead of 2 s.

Promise     A child has its own arguments, environment and output; Numba reads its settings again.
Method      A server, started on the fake driver, compiles one kernel, then forks for each line of its input.
Not here    Fresh processes. Children share hash seed, addresses and loaded libraries, so tests of hits in another
            process start that process themselves.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

from tests.support.fake_driver import build, environment

_SERVER = """
import atexit, json, os, runpy, sys, traceback, warnings
warnings.simplefilter("ignore")
import numba.core.config, numba.cuda.core.config
from numba import cuda
cuda.compile_ptx(lambda x: None, (numba.float64[::1],), cc=(9, 0))

def serve(arguments, env):
    os.environ.clear()
    os.environ.update(env)
    numba.core.config.reload_config()
    numba.cuda.core.config.reload_config()
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
def _server() -> subprocess.Popen[str]:
    """Start the server, once in a process of tests; it ends when its input is closed."""
    return subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        env=environment(build()),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(arguments: Sequence[str], env: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a program; its arguments are those of the interpreter, with a file or `-c` first."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([list(arguments), dict(env)]) + "\n")
    server.stdin.flush()
    code, output = json.loads(server.stdout.readline())
    return code, output


def output(arguments: Sequence[str], env: Mapping[str, str]) -> str:
    """Output of a program; the test fails if its exit code is not 0."""
    code, text = run(arguments, env)
    if code:
        pytest.fail(f"the child exited with {code}:\n{text}", pytrace=False)
    return text
