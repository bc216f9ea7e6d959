"""Run programs that use a Numba in children forked from a process that has imported it: 0.3 s each instead of 2 s.

Promise     A child has its own arguments, environment, working directory and output; Numba reads its settings again.
Method      A server for each Numba, started on the fake driver, fills its registries, then forks for each program that
            is asked of it. numba-cuda-mlir compiles nothing before: its compiler starts threads, which no child would
            have.
            A hit in another process is seen in a fork of a second server (`way="later"`), which has another hash seed
            and other addresses, has imported the Numba, and has filled no registry; one with `way="early"` is like it,
            with the hash seed of the first.
            Another server (`way="stand-in"`) has imported `cuda` from this package, which has imported the Numba; one
            (`of="cuda.compute"`) has imported cuda.compute alone. That of `way="fresh"` has the Numba hidden
            (`hidden`): its children have imported none, and import one at once. Its hash seed is another one.
            Where FORKS_PROGRAMS is set, `sys.executable` of a child forks too, from the same server.
            All processes of a run of tests share the servers, by a socket; they end with that run.
Not here    Processes that import the Numba themselves: for tests of what an import, a start or an end does.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.fake_driver import build, environment

_SERVER = """
import atexit, contextlib, gc, json, os, runpy, select, socket, sys, traceback, warnings
warnings.simplefilter("ignore")
of, way = sys.argv[1:3]
is_filled = way not in ("early", "later", "fresh")
listener, run_ended = socket.socket(fileno=int(sys.argv[3])), os.pidfd_open(int(sys.argv[4]))
interpreter = listener.getsockname() + "-python"
with open(interpreter, "w") as file:
    file.write(sys.argv[5].format(python=sys.executable, address=listener.getsockname()))
os.chmod(interpreter, 0o700)
if way == "stand-in" and of == "numba":
    from numba_kcache import cuda
    cuda.is_available  # imports the Numba, as a miss does
elif way == "stand-in":
    from numba_kcache.mlir import cuda
    cuda.is_available
if way == "fresh":
    from tests.support.hidden import hide
    names = {"numba": ["numba.core.config", "numba.cuda.core.config", "numba.cuda"],
             "mlir": ["numba_cuda_mlir.numba_cuda.core.config", "numba_cuda_mlir.cuda"]}[of]
    configs = hide("cuda.bindings.driver", "cuda.pathfinder", "xxhash", "zstandard", *names)[4:-1]
elif of == "cuda.compute":
    from cuda import compute
    configs = ()
elif of == "numba":
    import numba.core.config, numba.cuda.core.config
    from numba import cuda
    if is_filled:
        cuda.compile_ptx(lambda x: None, (numba.float64[::1],), cc=(9, 0))
    configs = numba.core.config, numba.cuda.core.config
else:
    import numba_cuda_mlir.cuda
    from numba_cuda_mlir.descriptor import mlir_target
    from numba_cuda_mlir.numba_cuda.core import config
    if is_filled:
        mlir_target.ensure_initialized()
    configs = config,

def serve(arguments, env, folder):
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    if configs:
        default = configs[-1].CUDA_DEFAULT_PTX_CC  # numba-cuda-mlir sets its own when it is imported
        for each in configs:
            each.reload_config()
        configs[-1].CUDA_DEFAULT_PTX_CC = default
    sys.argv = [arguments[0], *arguments[2 if arguments[0] in ("-c", "-m") else 1:]]
    sys.path[1:1] = [each for each in env.get("PYTHONPATH", "").split(":") if each not in ("", *sys.path)]
    if "FORKS_PROGRAMS" in env:
        sys.executable = interpreter
    code = 0
    try:
        try:
            if arguments[0] == "-c":
                exec(arguments[1], {"__name__": "__main__"})
            elif arguments[0] == "-m":
                sys.path[0] = folder
                runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(arguments[0])
                runpy.run_path(arguments[0], run_name="__main__")
        except SystemExit as end:
            code = end.code or 0
        atexit._run_exitfuncs()
        return code
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

def begin(connection):
    for each in (listener, *(other for _, other in children.values())):
        each.close()
    with connection.makefile() as lines:
        asked = json.loads(lines.readline())
    given = os.memfd_create("given")
    os.write(given, asked.pop().encode())
    os.lseek(given, 0, os.SEEK_SET)
    os.dup2(given, 0)
    os.dup2(connection.fileno(), 1)
    os.dup2(connection.fileno(), 2)
    connection.close()
    sys.stdout, sys.stderr = open(1, "w", 1, closefd=False), open(2, "w", 1, errors="backslashreplace", closefd=False)
    os._exit(serve(*asked))

gc.collect()
gc.freeze()  # else each child walks, and so copies, all that was imported
children = {}
while run_ended not in (ready := select.select([listener, run_ended, *children], [], [])[0]):
    for each in children.keys() & ready:
        child, connection = children.pop(each)
        os.close(each)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with connection, contextlib.suppress(OSError):  # a client that was interrupted
            connection.sendall(f"\\0{code}\\0".encode())
    if listener in ready:
        connection, _ = listener.accept()
        child = os.fork()
        if child == 0:
            begin(connection)
        children[os.pidfd_open(child)] = child, connection
os.unlink(listener.getsockname())
os.unlink(interpreter)
"""

_INTERPRETER = """#!{python} -IS
import json, os, re, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    server.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd(), ""]).encode() + b"\\n")
    text = server.makefile(errors="replace").read()
code = re.search("\\0(-?[0-9]+)\\0", text)
print(text.replace(code[0], ""), end="")
sys.exit(int(code[1]))
"""
"""A program that runs its arguments as the interpreter would, in a fork of a server."""


def _connected(of: str, way: str) -> socket.socket:
    """A connection to the server of a Numba, which the first process of the run that asks for it starts."""
    run = os.getppid() if "PYTEST_XDIST_WORKER" in os.environ else os.getpid()
    driver = build()
    address = driver.parent / f"{run}-{of}-{way}"
    made = socket.socket(socket.AF_UNIX)
    with open(driver.parent / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            made.connect(str(address))
        except OSError:  # none yet
            address.unlink(missing_ok=True)  # of an earlier run, which had this number
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(address))
                listener.listen(64)
                subprocess.Popen(
                    [sys.executable, "-c", _SERVER, of, way, str(listener.fileno()), str(run), _INTERPRETER],
                    env={**environment(driver), "PYTHONHASHSEED": {"later": "2", "fresh": "3"}.get(way, "1")},
                    stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()],
                )  # fmt: skip
            made.connect(str(address))
    return made


def run(
    arguments: Sequence[str], env: Mapping[str, str], of: str = "numba", *, way: str = "first", given: str = ""
) -> tuple[int, str]:
    """Exit code and output of a program; its arguments are those of the interpreter, with a file, `-c` or `-m` first.

    `of` names what it finds imported, "numba", "mlir" or "cuda.compute", and `way` the server. `given` is its input.
    """
    with _connected(of, way) as server:
        server.sendall(json.dumps([list(arguments), dict(env), os.getcwd(), given]).encode() + b"\n")
        with server.makefile(errors="replace") as answer:
            text = answer.read()
    ended = re.search(r"\0(-?\d+)\0", text)  # not at the end, if a child of the program wrote later
    assert ended, f"the server of {of}, {way}, has ended:\n{text}"
    return int(ended[1]), text.replace(ended[0], "")


def output(arguments: Sequence[str], env: Mapping[str, str], of: str = "numba", **more: str) -> str:
    """Output of a program; the test fails if its exit code is not 0."""
    code, text = run(arguments, env, of, **more)
    if code:
        pytest.fail(f"the child exited with {code}:\n{text}", pytrace=False)
    return text


def in_turn(program: str, cache: Path, env: Mapping[str, str]) -> str:
    """Output of a program that takes a cache's directory; a later process where an earlier one has filled that."""
    return output(["-c", program, str(cache)], env, way="later" if cache.exists() else "first")
