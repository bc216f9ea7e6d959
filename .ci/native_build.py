"""Build the compiled module into a wheel or an editable checkout, and set the version of a wheel.

Promise     A wheel contains the module, or the build stops with one sentence that names what to install. One build for
            the limited API serves every CPython from 3.11 on that has a GIL; a free-threaded one gets its own. In a
            wheel, `numba_kcache.__version__` is that of its metadata, which hatch-vcs derives from the tag; in a
            checkout it is that of version.py.
Method      The compiler is `$CC` or `cc`; where neither works, the build requires ziglang, a compiler that pip can
            install. Where Python's headers are missing, those parts of the limited API that the module uses are
            declared by limited_api/Python.h. The tag of a wheel is read from the module: its processor, and the
            newest glibc whose symbols it needs.
Source      PEP 517 (requirements of a build), PEP 600 (manylinux_X_Y: the glibc that a wheel needs).
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
SOURCES = tuple(ROOT / "numba_kcache" / "launch" / name for name in ("native.c", "observe.c"))
DECLARATIONS = ROOT / ".ci" / "limited_api"
VERSION = ROOT / "numba_kcache" / "version.py"
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
FLAGS = (
    "-std=c11", "-D_GNU_SOURCE", "-O2", "-fwrapv", "-g0", "-fvisibility=hidden", "-shared", "-fPIC",
    "-Werror=implicit-function-declaration", "-Wl,-z,nodelete,-z,relro,-z,now",
)  # fmt: skip
"""`nodelete`: what the module changed in other libraries calls its functions until the process ends. `relro` and `now`:
its own slots are read-only once it is loaded."""

ZIG = "ziglang==0.17.*"
MACHINES = {62: "x86_64", 183: "aarch64"}
"""The processors that the package supports, by their numbers in an ELF header."""

OLDEST_GLIBC = (2, 17)
"""The oldest glibc that a tag names: pip knows no older one on aarch64."""

WITHOUT_COMPILER = "install a C compiler (Debian and Ubuntu: apt install gcc libc6-dev), or pip install ziglang"


def does_work(compiler: list[str]) -> bool:
    """Check if a command compiles and links a library that calls the C library."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <stdlib.h>\nvoid *probe(void) { return malloc(1); }\n")
        command = [*compiler, "-shared", "-fPIC", str(source), "-o", str(Path(folder, "probe.so"))]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def installed_compiler() -> list[str] | None:
    """`$CC` or `cc`, the first that works; None if neither does."""
    wanted = dict.fromkeys((os.environ.get("CC") or "cc", "cc"))
    return next((found for found in map(shlex.split, wanted) if does_work(found)), None)


def zig(machine: str, *python: str) -> list[str]:
    """The C compiler of the ziglang that a Python has: for a processor, and the oldest glibc that a tag names."""
    return [*python, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{OLDEST_GLIBC[0]}.{OLDEST_GLIBC[1]}"]


def check_platform() -> None:
    """Stop where the package cannot work.

    Raises:
        SystemExit: This is not Linux, or the processor is neither x86-64 nor aarch64.
    """
    if not sys.platform.startswith("linux") or os.uname().machine not in MACHINES.values():
        platform = sysconfig.get_platform()
        raise SystemExit(f"cannot build numba-kcache: it needs Linux on x86-64 or aarch64, and this is {platform}")


def build() -> tuple[Path, str]:
    """Compile the module into the folder of its first source.

    Returns:
        The module's path, and the tag of a wheel that contains it.

    Raises:
        SystemExit: The module cannot be compiled on this machine.
    """
    check_platform()
    compiler = installed_compiler() or zig(os.uname().machine, sys.executable)
    include = Path(sysconfig.get_path("include"))
    if IS_FREE_THREADED and not (include / "Python.h").is_file():
        raise SystemExit(
            f"cannot build numba-kcache: {include} has no Python.h, which a Python without the GIL needs: install the "
            f"headers of this Python (Debian and Ubuntu: apt install python3-dev)"
        )
    # zig has a C library of its own, and some distributions' Python.h includes files of the system's.
    if not IS_FREE_THREADED and ("ziglang" in compiler or not (include / "Python.h").is_file()):
        include = DECLARATIONS
    temporary = SOURCES[0].with_name(f".{os.getpid()}.native.so")
    limited = () if IS_FREE_THREADED else ("-DPy_LIMITED_API=0x030b0000",)
    command = [*compiler, *FLAGS, *limited, f"-I{include}", *map(str, SOURCES), "-o", str(temporary), "-ldl", "-lm"]
    try:
        with tempfile.TemporaryDirectory() as cache:  # zig would leave 50 MB in the user's home directory
            kept = {"ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache, **os.environ}
            done = subprocess.run(command, check=False, capture_output=True, text=True, env=kept)
        if done.returncode and "ziglang" in compiler and "No module named" in done.stderr:
            raise SystemExit(f"cannot build numba-kcache: neither $CC nor cc works: {WITHOUT_COMPILER}")
        if done.returncode:
            raise SystemExit(f"cannot build numba-kcache: {shlex.join(command)} failed:\n{done.stderr}")
        tag = tag_of(temporary)
        suffix = f".{tag.split('-')[1]}.so"
        if IS_FREE_THREADED:  # its suffix names the processor; a cross compiler's is another than this machine's
            machine = next(each for each in MACHINES.values() if tag.endswith(each))
            suffix = sysconfig.get_config_var("EXT_SUFFIX").replace(os.uname().machine, machine)
        target = SOURCES[0].with_name(f"native{suffix}")
        temporary.replace(target)  # a process that has mapped the old file keeps it
    finally:
        temporary.unlink(missing_ok=True)
    return target, tag


def tag_of(module: Path) -> str:
    """The tag of a wheel with this module: Python, ABI, and the glibc and processor that the module needs."""
    version = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    python, abi = (version, f"{version}t") if IS_FREE_THREADED else ("cp311", "abi3")
    elf = module.read_bytes()
    machine = MACHINES[int.from_bytes(elf[18:20], "little")]
    needed = [(int(major), int(minor)) for major, minor in re.findall(rb"\0GLIBC_(\d+)\.(\d+)", elf)]
    if not needed:  # another C library: the wheel is for machines like this one
        return f"{python}-{abi}-linux_{machine}"
    return f"{python}-{abi}-{platform_tag(max(OLDEST_GLIBC, *needed), machine)}"


def platform_tag(glibc: tuple[int, int], machine: str) -> str:
    return f"manylinux_{glibc[0]}_{glibc[1]}_{machine}"


class NativeBuildHook(BuildHookInterface):  # type: ignore[misc,valid-type]
    """The hook that Hatchling calls before and after it builds a distribution."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """List what the build needs beside Hatchling: a compiler, where the machine has none."""
        check_platform()
        return [] if installed_compiler() else [ZIG]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the version and the module to the wheel."""
        module, tag = build()
        build_data.update(tag=tag, pure_python=False)
        if version == "editable":
            return
        self._folder = tempfile.TemporaryDirectory()
        text = re.sub(r'(?<=__version__ = ").*(?=")', self.metadata.version, VERSION.read_text())
        file = Path(self._folder.name, VERSION.name)
        file.write_text(text)
        build_data["force_include"][str(file)] = f"numba_kcache/{VERSION.name}"
        build_data["force_include"][str(module)] = f"numba_kcache/launch/{module.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary version.py: the wheel is written and contains a copy."""
        if version != "editable":
            self._folder.cleanup()


if __name__ == "__main__":
    print(build()[0])
