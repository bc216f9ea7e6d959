"""Build the fake CUDA driver, start Python children that use it instead of a GPU's, and read its log.

Promise     build() gives a folder that holds the whole driver, made once per content of its sources, also
            when many test processes ask at the same time. Only a child that was started with environment()
            loads it; this process and its other children keep the machine's driver, if it has one.
Method      The dynamic loader finds libcuda by name along LD_LIBRARY_PATH, which it reads when a process
            starts: hence children. The driver is compiled into a private folder, which is then renamed.
Not here    No kernel runs: memory has only the bytes that the host copied, so no result of a launch can be checked.
Source      dlopen(3) on LD_LIBRARY_PATH; rename(2). What the driver serves is at the head of fake_driver.c.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from .programs import program

SOURCES = tuple(
    Path(__file__).with_name(name) for name in ("fake_driver.c", "fake_device.h", "fake_call.h", "fake_cubin.h")
)
COMPILE = ("-std=gnu11", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread")
ROOT = Path(__file__).parents[2]


def compiler() -> str | None:
    """The C compiler on PATH, `$CC` first; None if there is none."""
    return shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc") or shutil.which("clang")


needs_fake_driver = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None,
    reason="the fake CUDA driver needs Linux and a C compiler (cc)",
)
"""Mark for tests and modules that start children under the fake driver."""


def build(directory: Path | None = None) -> Path:
    """Compile the driver unless that is done already, and return the folder for LD_LIBRARY_PATH.

    Args:
        directory: The folder of built drivers, with a folder for each content of the sources. Default: a folder
            of this user in the system's folder for temporary files.

    Raises:
        subprocess.CalledProcessError: The sources do not compile; the compiler's messages are on stderr.
    """
    cc = compiler() or program("cc")
    digest = hashlib.sha256("\0".join((cc, *COMPILE)).encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    if directory is None:
        directory = Path(tempfile.gettempdir()) / f"kcache-fake-driver-{os.getuid()}"
    folder = directory / digest.hexdigest()[:16]
    if folder.exists():
        return folder
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as private:
        built = Path(private, "built")
        built.mkdir()
        library = built / "libcuda.so.1"
        subprocess.run([cc, *COMPILE, f"-Wl,-soname,{library.name}", "-o", library, SOURCES[0]], check=True)
        (built / "libcuda.so").symlink_to(library.name)  # Numba asks for this name first
        try:
            built.rename(folder)
        except OSError:
            if not folder.exists():
                raise  # if it exists, another process has built the same driver
    return folder


def prepended(folder: Path, variable: str) -> str:
    """The search path of this environment variable with `folder` in front."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get(variable)])])


def environment(
    directory: Path,
    *,
    log: Path | None = None,
    devices: Sequence[int] = (90,),
    driver_version: int = 13000,
    fail: Iterable[str] = (),
    accept_ptx: bool = False,
    eager_loading: bool = False,
) -> dict[str, str]:
    """The whole environment of a child that runs on the fake driver.

    Args:
        directory: The folder that build() returned.
        log: File to which events are appended; read it with read_log().
        devices: Compute capability of each device, as in sm_XY; empty: a driver that finds no device.
        driver_version: The version that cuDriverGetVersion returns: 1000 * major + 10 * minor.
        fail: Rules `function:code@n`, `n` from 1: the n-th call of the driver function, named without `_v2`,
            fails with this CUresult before it does anything. `function:code@*`: every call.
        accept_ptx: Accept PTX in place of a cubin. Its kernels have names, but no known parameters.
        eager_loading: Refuse an unusable library when it is loaded. By default, and on a GPU, the error comes
            when the first kernel or variable is requested from it.
    """
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("KC_FAKE_")},
        "LD_LIBRARY_PATH": prepended(directory, "LD_LIBRARY_PATH"),
        "PYTHONPATH": prepended(ROOT, "PYTHONPATH"),
        "KC_FAKE_DEVICES": str(len(devices)),
        **{f"KC_FAKE_CC{ordinal}": str(capability) for ordinal, capability in enumerate(devices)},
        "KC_FAKE_DRIVER_VERSION": str(driver_version),
        "KC_FAKE_LOG": "" if log is None else str(log),
        "KC_FAKE_FAIL": ",".join(fail),
        "KC_FAKE_ACCEPT_PTX": str(int(accept_ptx)),
        "KC_FAKE_EAGER_LOADING": str(int(eager_loading)),
    }


def without_addresses(parameters: Sequence[str]) -> list[str]:
    """The parameters of a launch, in hex, with one word for every address, which each process has others of."""
    return ["address" if each.endswith(("550000", "560000", "7f0000")) else each for each in parameters]


def run(
    script: str | Path | Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout_s: float = 120.0,
    check: bool = True,
    given: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a Python child with the environment `env`, and return its output and exit code.

    Args:
        script: Source text, a path to a script, or the interpreter's arguments.
        env: The result of environment(), with further variables that the child needs.
        cwd: The child's working directory.
        timeout_s: Seconds until the child is killed.
        check: Fail the test, with the child's stderr in the message, when the child does not exit with 0.
        given: The child's input.
    """
    if isinstance(script, str):
        arguments = ["-c", script]
    else:
        arguments = [str(script)] if isinstance(script, Path) else [*script]
    done = subprocess.run(
        [sys.executable, *arguments],
        env=env,
        cwd=cwd,
        timeout=timeout_s,
        input=given,
        capture_output=True,
        text=True,
        check=False,
    )
    if check and done.returncode:
        pytest.fail(f"the child exited with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)
    return done


def read_log(path: Path, *events: str) -> list[dict[str, Any]]:
    """The events in `path` in their order, or only those of the named kinds; none if there is no file.

    An event has `event` (init, load, unload, get_kernel, launch, set_attribute, alloc, free, memcpy, memset,
    synchronize, event_record, stream_wait, capture_begin, capture_end, graph_launch, context_end, set_limit,
    fault, unknown), `call` (the driver function), `pid`, `result` (a CUresult) and what belongs to its kind.
    A launch has `kernel`, `grid`, `block`, `cluster`, `shared_bytes`, `stream` (the handle), `device`,
    `cooperative`, `programmatic`, `captured` and `parameters`, the bytes of each in hex, in their order.
    """
    if not path.exists():
        return []
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [event for event in found if not events or event["event"] in events]
