"""Look at everything that a kernel cache needs: driver, compilers, versions that do not fit together, the directory.

Promise     Looking changes nothing but one empty file that is made in the cache's directory and removed. What is
            absent is said; nothing has to be importable for that. Each finding that is wrong says what to do.
Method      Facts are gathered by small functions, judged by pure ones.
Not here    Damage in the cache (`verify`).
Ground      CUDA Compatibility: a driver runs what a toolkit of its own major version compiles; NumPy 2.5 removed
            what numba-cuda 0.30 calls at its first compile.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from .engine.session import Session
from .errors import KCacheError
from .observe.info import CacheInfo, bytes_text
from .store.tree import is_network, refusal
from .toolchain.libraries import installed_include_dirs, loaded_path
from .toolchain.nvrtc import nvrtc_version, supported_targets

FINE, NOTE, WRONG = "fine", "note", "wrong"

_LEAST_FREE_BYTES = 64 << 20
_LEAST_FREE_FILES = 1000
_MOST_SKEW_S = 60.0

_RANGES = {
    "numba": ("0.60", ""),
    "numba-cuda": ("0.30", "0.31"),
    "cuda-core": ("0.6", "2"),
    "cuda-bindings": ("12.9.1", "14"),
    "numpy": ("", "2.5"),
}
"""The first version that will do, and the first one that will not."""


class Finding(NamedTuple):
    """One thing that was looked at.

    Args:
        subject: What: `"driver"`, `"numpy"`.
        state: `"fine"`, `"note"` (something is absent that not everybody needs) or `"wrong"`.
        says: What was found.
        advice: What to do about it; "" for nothing.
    """

    subject: str
    state: str
    says: str
    advice: str = ""


class Diagnosis(NamedTuple):
    """All that was found."""

    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """Whether nothing is wrong."""
        return all(each.state != WRONG for each in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {"is_well": self.is_well, "findings": [each._asdict() for each in self.findings]}

    def __str__(self) -> str:
        width = max(len(each.subject) for each in self.findings)
        lines = [f"{each.state:<5}  {each.subject:<{width}}  {each.says}" for each in self.findings]
        for title, state in (("what to do", WRONG), ("what else could be done", NOTE)):
            steps = [each.advice for each in self.findings if each.state == state and each.advice]
            if steps:
                lines += ["", title, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))]
        if self.is_well:
            lines += ["", "nothing is wrong"]
        return "\n".join(lines)


def examine(session: Session, info: CacheInfo) -> Diagnosis:
    """Look at everything.

    Args:
        session: The cache.
        info: What it holds and what happened in it.
    """
    driver, devices, why = _driver()
    compiler = _compiler()
    return Diagnosis(
        (
            *_versions({name: _version(name) for name in _RANGES}),
            *_judged_driver(driver, why, compiler.version),
            *_judged_compilers(compiler),
            *_judged_devices(devices, compiler),
            *_directory(session, info),
            *_judged_tiers(session),
            *_judged_past(info),
        )
    )


# -- versions -------------------------------------------------------------------------------------------------


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """The leading numbers of a version: (2, 5, 0) of 2.5.0rc1."""
    found = []
    for part in text.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def _versions(installed: Mapping[str, str | None]) -> Iterable[Finding]:
    yield Finding("Python", FINE, f"{sys.version.split()[0]} at {sys.executable}")
    for name, found in installed.items():
        first, last = _RANGES.get(name, ("", ""))
        wanted = ", ".join(filter(None, (first and f">={first}", last and f"<{last}")))
        if found is None:
            yield Finding(name, WRONG, "not installed", f"pip install '{name}{wanted}'")
        elif _numbers(found) < _numbers(first) or (last and _numbers(found) >= _numbers(last)):
            yield Finding(name, WRONG, f"{found}; what works is {wanted}", f"pip install '{name}{wanted}'")
        else:
            yield Finding(name, FINE, found)


# -- driver, compilers and devices ----------------------------------------------------------------------------


class Device(NamedTuple):
    """A device: its name and compute capability."""

    name: str
    major: int
    minor: int


class Compilers(NamedTuple):
    """What compiles.

    Args:
        paths: Where each library is; None where it is absent.
        version: Of NVRTC; None where it is absent.
        targets: Compute capabilities that NVRTC knows, 90 for 9.0.
        headers: The toolkit's header folders.
    """

    paths: Mapping[str, str | None]
    version: tuple[int, int] | None
    targets: tuple[int, ...]
    headers: tuple[str, ...]


def _driver() -> tuple[tuple[int, int] | None, list[Device], str]:
    """The newest CUDA version that the driver knows and its devices; or why there are none."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError as error:
        return None, [], str(error)
    status = library.cuInit(0)
    number, count = ctypes.c_int(), ctypes.c_int()
    library.cuDriverGetVersion(ctypes.byref(number))
    driver = number.value // 1000, number.value % 1000 // 10
    if status:
        return driver, [], f"cuInit says {status}"
    library.cuDeviceGetCount(ctypes.byref(count))
    devices = []
    for ordinal in range(count.value):
        name, handle = ctypes.create_string_buffer(256), ctypes.c_int()
        library.cuDeviceGet(ctypes.byref(handle), ordinal)
        library.cuDeviceGetName(name, len(name), handle)
        parts = ctypes.c_int(), ctypes.c_int()
        for part, attribute in zip(parts, (75, 76), strict=True):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_...
            library.cuDeviceGetAttribute(ctypes.byref(part), attribute, handle)
        devices.append(Device(name.value.decode("utf-8", "replace"), parts[0].value, parts[1].value))
    return driver, devices, ""


def _compiler() -> Compilers:
    paths = {name: loaded_path(name) for name in ("nvrtc", "nvvm", "nvJitLink")}
    try:
        return Compilers(paths, nvrtc_version(), supported_targets(), tuple(installed_include_dirs()))
    except (KCacheError, ImportError):
        return Compilers(paths, None, (), tuple(installed_include_dirs()))


def _judged_driver(driver: tuple[int, int] | None, why: str, nvrtc: tuple[int, int] | None) -> Iterable[Finding]:
    if driver is None:
        yield Finding(
            "driver",
            NOTE,
            f"none: {why}",
            "to launch kernels, install NVIDIA's driver (in a container: run it with --gpus all); compiling with an "
            "explicit arch works without",
        )
        return
    says = f"CUDA {driver[0]}.{driver[1]}"
    if why:
        yield Finding("driver", WRONG, f"{says}, but {why}", "run nvidia-smi: the driver finds no device it can use")
    elif nvrtc is not None and nvrtc[0] > driver[0]:
        yield Finding(
            "driver",
            WRONG,
            f"{says}, which does not run what NVRTC {nvrtc[0]}.{nvrtc[1]} compiles",
            f"update the driver, or take the older toolkit: pip install 'numba-kcache[cu{driver[0]}]'",
        )
    else:
        yield Finding("driver", FINE, says)


def _judged_compilers(compilers: Compilers) -> Iterable[Finding]:
    for name, path in compilers.paths.items():
        if path is None:
            advice = "to compile, pip install 'numba-kcache[cu13]' (or [cu12] for a driver older than 580)"
            yield Finding(name, NOTE, "not installed: what is cached is served, nothing is compiled", advice)
        elif name == "nvrtc" and compilers.version is not None:
            yield Finding(name, FINE, f"{compilers.version[0]}.{compilers.version[1]} at {path}")
        else:
            yield Finding(name, FINE, path)
    if compilers.version is not None and not compilers.headers:
        advice = (
            "for sources that include cuda_fp16.h, cub and the like, pip install nvidia-cuda-runtime nvidia-cuda-cccl"
        )
        yield Finding("headers", NOTE, "the toolkit's headers are not installed", advice)
    elif compilers.headers:
        yield Finding("headers", FINE, ", ".join(compilers.headers))


def _judged_devices(devices: Sequence[Device], compilers: Compilers) -> Iterable[Finding]:
    for ordinal, (name, major, minor) in enumerate(devices):
        says = f"{name}, compute capability {major}.{minor}"
        if compilers.targets and major * 10 + minor not in compilers.targets:
            is_newer = major * 10 + minor > max(compilers.targets)
            advice = (
                "update the toolkit: until then kernels go through PTX, which the driver compiles at each load"
                if is_newer
                else "take the older toolkit: pip install 'numba-kcache[cu12]'"
            )
            state = NOTE if is_newer else WRONG
            yield Finding(f"device {ordinal}", state, f"{says}, which the installed NVRTC does not know", advice)
        else:
            yield Finding(f"device {ordinal}", FINE, says)


# -- the cache ------------------------------------------------------------------------------------------------


def _directory(session: Session, info: CacheInfo) -> Iterable[Finding]:
    directory = session.local.directory
    if not directory:
        yield Finding(
            "directory", WRONG, "kernels are kept in memory only", "set NUMBA_KCACHE_DIR, or mode other than off"
        )
        return
    there = directory
    while not os.path.exists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    try:
        status = os.stat(there)
        free = os.statvfs(there)
    except OSError as error:
        yield Finding("directory", WRONG, str(error), "set NUMBA_KCACHE_DIR to a directory of yours")
        return
    is_made = there == directory
    reason = refusal(directory, status, shared=session.settings.shared) if is_made else None
    if reason is None and not os.access(there, os.W_OK | os.X_OK):
        reason = f"{there} cannot be written to"
    if reason is not None:
        advice = f"chmod 700 {directory} if it is yours, or set NUMBA_KCACHE_DIR to a directory of yours"
        yield Finding("directory", WRONG, reason, advice)
    elif is_network(there, status):
        says = f"{directory}, on a network filesystem: a private local copy is kept in front of it"
        yield Finding("directory", NOTE, says, "see docs/format.md, 'Filesystems', for what holds there")
    else:
        yield Finding("directory", FINE, directory + ("" if is_made else " (made when something is stored)"))
    yield _judged_space(free.f_bavail * free.f_frsize, free.f_favail if free.f_files else None, info)
    if is_made and reason is None:
        yield from _clock(directory)


def _judged_space(free_bytes: int, free_files: int | None, info: CacheInfo) -> Finding:
    says = f"{bytes_text(free_bytes)} free, {bytes_text(info.size_bytes)} used of {bytes_text(info.max_size_bytes)}"
    if free_bytes < _LEAST_FREE_BYTES or (free_files is not None and free_files < _LEAST_FREE_FILES):
        says += "" if free_files is None else f", {free_files} more files can be made"
        advice = "make room: `numba-kcache prune --older-than 30d` removes what was not used for a month"
        return Finding("space", WRONG, says, advice)
    if info.size_bytes + free_bytes < info.max_size_bytes:
        advice = f"lower max_size_bytes (NUMBA_KCACHE_MAX_SIZE) below {bytes_text(info.size_bytes + free_bytes)}"
        return Finding("space", NOTE, f"{says}: the disk is full before the limit is reached", advice)
    return Finding("space", FINE, says)


def _clock(directory: str) -> Iterable[Finding]:
    """Whether the filesystem's clock is ours: recency and the age of the dead go by it."""
    path = f"{directory}/.doctor-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            skew_s = os.stat(path).st_mtime - time.time()
        finally:
            os.unlink(path)
    except OSError as error:
        yield Finding("directory", WRONG, str(error), "look whether the disk is full or mounted read-only")
        return
    yield _judged_clock(skew_s)


def _judged_clock(skew_s: float) -> Finding:
    if abs(skew_s) > _MOST_SKEW_S:
        says = f"the directory's filesystem is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}"
        return Finding("clock", WRONG, says, "set the clocks of this machine and the file server by NTP")
    if time.time() < 1_700_000_000:
        return Finding("clock", WRONG, "this machine's clock is before 2023", "set the clock")
    return Finding("clock", FINE, "agrees with the filesystem's")


def _judged_tiers(session: Session) -> Iterable[Finding]:
    """Ask each tier for an entry that is not there: whether it answers."""
    for each in session.tier_reports(asks=True):
        if each.errors or each.is_reachable is False:
            advice = "look at its address, rights and, for a server, whether it runs: launches go on without it"
            yield Finding(f"tier {each.name}", WRONG, "it does not answer", advice)
        else:
            yield Finding(f"tier {each.name}", FINE, f"answers in {each.latency_s * 1e3:.1f} ms")


def _judged_past(info: CacheInfo) -> Iterable[Finding]:
    """What the counters know: troubles of earlier processes."""
    if info.errors:
        advice = "run `numba-kcache verify`, and the program with NUMBA_KCACHE_LOG=info, which says each trouble"
        yield Finding("past", NOTE, f"{info.errors} troubles since the cache began", advice)
