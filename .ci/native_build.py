"""Build the compiled launch module into a wheel or an editable checkout, and set the version of a wheel.

Promise     Without a C compiler or Python's headers, or on another platform than Linux, the build prints that the
            module is left out. The package works without it, with slower launches. One build for the limited API serves
            every CPython from 3.11 on that has a GIL; a free-threaded one gets its own. In a wheel,
            `numba_kcache.__version__` is that of its metadata, which hatch-vcs derives from the tag; in a checkout it
            is that of version.py.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run as a script, below
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "numba_kcache" / "launch" / "native.c"
VERSION = ROOT / "numba_kcache" / "version.py"
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-fwrapv", "-g0", "-fvisibility=hidden", "-shared", "-fPIC")


def build() -> tuple[Path, str]:
    """Compile the module into the folder of its source.

    Returns:
        The module's path, and the tag of a wheel that contains it.

    Raises:
        OSError, subprocess.CalledProcessError: The module cannot be compiled on this machine.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(f"it supports Linux alone, and this is {sys.platform}")
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    suffix = sysconfig.get_config_var("EXT_SUFFIX") if IS_FREE_THREADED else ".abi3.so"
    python, abi = (version, f"{version}t") if IS_FREE_THREADED else ("cp311", "abi3")
    target = SOURCE.with_name(f"native{suffix}")
    temporary = target.with_name(f".{os.getpid()}.{target.name}")
    include = sysconfig.get_path("include")
    limited = () if IS_FREE_THREADED else ("-DPy_LIMITED_API=0x030b0000",)
    compiler = shlex.split(os.environ.get("CC") or "cc")
    command = [*compiler, *FLAGS, *limited, f"-I{include}", str(SOURCE), "-o", str(temporary), "-ldl", "-lm"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        temporary.replace(target)  # a process that has mapped the old file keeps it
    finally:
        temporary.unlink(missing_ok=True)
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return target, f"{python}-{abi}-{platform}"


def left_out(error: Exception) -> str:
    """One line that says why there is no module."""
    why = (getattr(error, "stderr", "") or str(error)).strip().splitlines()
    return f"numba-kcache: the compiled launch module is left out: {why[0] if why else error}"


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """The hook that Hatchling calls before and after it builds a distribution."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the version to the wheel, and the module if it can be built."""
        if version != "editable":
            self._folder = tempfile.TemporaryDirectory()
            text = re.sub(r'(?<=__version__ = ").*(?=")', self.metadata.version, VERSION.read_text())
            file = Path(self._folder.name, VERSION.name)
            file.write_text(text)
            build_data["force_include"][str(file)] = f"numba_kcache/{VERSION.name}"
        try:
            module, tag = build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(left_out(error))
            return
        build_data.update(tag=tag, pure_python=False)
        if version != "editable":
            build_data["force_include"][str(module)] = f"numba_kcache/launch/{module.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary version.py: the wheel is written and contains a copy."""
        if version != "editable":
            self._folder.cleanup()


if __name__ == "__main__":
    try:
        print(build()[0])
    except (OSError, subprocess.CalledProcessError) as problem:
        raise SystemExit(left_out(problem)) from None
