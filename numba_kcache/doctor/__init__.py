"""Diagnose everything that a kernel cache needs: driver, compilers, compatible versions, directory, tiers.

Promise     A diagnosis changes nothing, except that it leaves one small file in each writable tier. A missing part or
            package is a finding, not an error. Each finding that is wrong has a next step.
Method      Small functions gather facts (doctor.machine those about the machine), and pure functions judge them.
Not here    Damage in the cache (`verify`).
Source      CUDA Compatibility: a driver runs what a toolkit of its own major version compiles; NumPy 2.5 removed
            what numba-cuda 0.30 calls at its first compile.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..engine import Session
from ..errors import plain
from ..frontends import front_end
from ..frontends.numba.stand_in import HOMES, facts_of
from ..model import NamedTuple
from ..observe.info import CacheInfo
from ..observe.text import aligned, bytes_text, seconds_text, shows_text
from ..settings import unknown_variables
from ..store import SIGNED, is_network
from ..tiers.tier import round_trip
from .machine import Compilers, Device, find_devices, load_compilers

FINE, NOTE, WRONG = "fine", "note", "wrong"

_LEAST_FREE_BYTES = 64 << 20
_LEAST_FREE_FILES = 1000

_RANGES = {
    "cuda-bindings": ("12.9.1", "14"),
    "numba-cuda": ("0.30", ""),
    "numba": ("0.60", ""),
    "numba-cuda-mlir": ("0.5.4", ""),
    "cuda-core": ("0.6", "2"),
    "numpy": ("", "2.5"),
}
"""First version that works, and first one that does not; that of numpy is for numba-cuda 0.30."""

EXTRAS = {"numba-cuda": "numba", "numba-cuda-mlir": "mlir"}
"""Optional compilers of Numba kernels, and the extra that installs each."""

_NEEDED_BY = {"numba": ("numba-cuda",), "cuda-core": tuple(EXTRAS), "numpy": tuple(EXTRAS)}
"""Distributions that count only if one of the others named is installed."""


class Finding(NamedTuple):
    """The result of one check.

    Args:
        subject: What was checked: `"driver"`, `"numpy"`.
        state: `"fine"`, `"note"` (an optional part is missing) or `"wrong"`.
        says: Version, path or problem.
        advice: The next step for the user; "" for none.
    """

    subject: str
    state: str
    says: str
    advice: str = ""


@shows_text
class Diagnosis(NamedTuple):
    """All findings."""

    findings: tuple[Finding, ...]

    @property
    def is_well(self) -> bool:
        """True if nothing is wrong."""
        return all(each.state != WRONG for each in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {"is_well": self.is_well, "findings": [each._asdict() for each in self.findings]}

    def __str__(self) -> str:
        lines = aligned([(f"{each.state:<5}", each.subject, each.says) for each in self.findings])
        for title, state in (("what to do", WRONG), ("what else could be done", NOTE)):
            steps = dict.fromkeys(each.advice for each in self.findings if each.state == state and each.advice)
            if steps:
                lines += ["", title, *(f"  {number}. {step}" for number, step in enumerate(steps, 1))]
        if self.is_well:
            lines += [
                "",
                "nothing is broken" if any(each.state == NOTE for each in self.findings) else "nothing is wrong",
            ]
        return "\n".join(map(plain, lines))


def examine(session: Session, info: CacheInfo) -> Diagnosis:
    """Run all checks.

    Args:
        session: Session of the cache.
        info: Its counts and sizes.
    """
    driver, devices, why = find_devices()
    compilers = load_compilers()
    return Diagnosis(
        (
            Finding("Python", FINE, f"{sys.version.split()[0]} at {sys.executable}"),
            *judged_versions({name: _version(name) for name in _RANGES}, _without_import(session)),
            judged_driver(driver, why, compilers.version),
            *judged_compilers(compilers),
            *(judged_device(ordinal, device, compilers) for ordinal, device in enumerate(devices)),
            *judged_variables(unknown_variables()),
            *judged_directory(session, info),
            *judged_tiers(session),
        )
    )


# -- versions -------------------------------------------------------------------------------------------------


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _without_import(session: Session) -> dict[str, str]:
    """How stored kernels of each Numba start, for those of which anything is stored."""
    found = {}
    for name, kind in EXTRAS.items():
        facts = facts_of(HOMES[kind], front_end(kind).flavour, session)
        if not isinstance(facts, str):
            found[name] = "stored kernels start without it"
        elif "not by a version" in facts:
            found[name] = f"stored kernels import it: {facts}"
    return found


def _numbers(text: str) -> list[int]:
    """The numbers of a version: [2, 5, 0, 1] of 2.5.0rc1."""
    return [int(digits) for digits in re.findall(r"\d+", text)]


def judged_variables(unknown: Mapping[str, str]) -> Iterable[Finding]:
    """Report variables that are named like a setting but belong to none: a misspelt one has no effect."""
    for name, meant in unknown.items():
        advice = f"rename {name} to {meant}" if meant else f"unset {name}; `numba-kcache config` lists all settings"
        yield Finding("environment", WRONG, f"{name} names no setting and is ignored", advice)


def judged_versions(found: Mapping[str, str | None], stored: Mapping[str, str]) -> Iterable[Finding]:
    """Judge the versions of all distributions, None for absent ones, and say how stored kernels of the Numbas start."""
    for name, installed in found.items():
        first, beyond = _RANGES[name]
        users = [user for user in _NEEDED_BY.get(name, ()) if found[user] is not None]
        if name == "numpy" and not str(found["numba-cuda"]).startswith("0.30"):
            beyond = ""
        if installed is None and name in EXTRAS:
            advice = f"for kernels of {name}, pip install 'numba-kcache[{EXTRAS[name]}]'"
            less = stored.get(name, "CUDA C++ kernels do not need it")
            yield Finding(name, NOTE, f"not installed: {less}", advice)
        elif users or name not in _NEEDED_BY:
            judged = _judged_version(name, installed, first, beyond)
            yield judged._replace(says="; ".join(filter(None, (judged.says, stored.get(name)))))


def _judged_version(name: str, found: str | None, first: str, beyond: str) -> Finding:
    wanted = ", ".join(filter(None, (first and f">={first}", beyond and f"<{beyond}")))
    advice = f"pip install '{name}{wanted}'"
    if found is None:
        return Finding(name, WRONG, "not installed", advice)
    if _numbers(found) < _numbers(first) or (beyond and _numbers(found) >= _numbers(beyond)):
        return Finding(name, WRONG, f"{found}; this package works with {wanted}", advice)
    return Finding(name, FINE, found)


# -- driver, compilers and devices ----------------------------------------------------------------------------


def judged_driver(driver: tuple[int, int] | None, why: str, nvrtc: tuple[int, int] | None) -> Finding:
    """Judge the driver's version against NVRTC's; `why` is the reason if no device can be used."""
    if driver is None:
        advice = "to launch kernels, install NVIDIA's driver (in a container: run it with --gpus all); "
        return Finding("driver", NOTE, f"none: {why}", advice + "compiling with an explicit arch works without")
    says = f"CUDA {driver[0]}.{driver[1]}"
    if why:
        return Finding("driver", WRONG, f"{says}, but {why}", "run nvidia-smi: the driver finds no device it can use")
    if nvrtc is not None and nvrtc[0] > driver[0]:
        says += f", which does not run what NVRTC {nvrtc[0]}.{nvrtc[1]} compiles"
        advice = f"update the driver, or take the older toolkit: pip install 'numba-kcache[cu{driver[0]}]'"
        return Finding("driver", WRONG, says, advice)
    return Finding("driver", FINE, says)


def judged_compilers(compilers: Compilers) -> Iterable[Finding]:
    """Judge the compilers that are installed, and the toolkit's headers."""
    for name, path in compilers.paths.items():
        trouble = compilers.troubles.get(name, "")
        if trouble:
            advice = f"reinstall the package that has {name}: pip install --force-reinstall 'numba-kcache[cu13]'"
            yield Finding(name, WRONG, f"{path or 'it'} cannot be used: {trouble}", advice)
        elif path is None:
            advice = "to compile, pip install 'numba-kcache[cu13]' (or [cu12] for a driver older than 580)"
            less = "CUDA C++ does not need it" if name == "nvvm" else "cached kernels are served, nothing is compiled"
            yield Finding(name, NOTE, f"not installed: {less}", advice)
        elif name == "nvrtc" and compilers.version is not None:
            yield Finding(name, FINE, f"{compilers.version[0]}.{compilers.version[1]} at {path}")
        else:
            yield Finding(name, FINE, path)
    if compilers.headers:
        yield Finding("headers", FINE, ", ".join(compilers.headers))
    elif compilers.version is not None:
        advice = "for sources that include cuda_fp16.h, cub and similar headers, "
        advice += "pip install nvidia-cuda-runtime nvidia-cuda-cccl"
        yield Finding("headers", NOTE, "the toolkit's headers are not installed", advice)


def judged_device(ordinal: int, device: Device, compilers: Compilers) -> Finding:
    """Judge whether the installed NVRTC compiles for a device."""
    subject, number = f"device {ordinal}", device.major * 10 + device.minor
    says = f"{device.name}, compute capability {device.major}.{device.minor}"
    if not compilers.targets or number in compilers.targets:
        return Finding(subject, FINE, says)
    says += ", which the installed NVRTC does not know"
    if number > max(compilers.targets):
        advice = "update the toolkit: until then kernels go through PTX, which the driver compiles at each load"
        return Finding(subject, NOTE, says, advice)
    return Finding(subject, WRONG, says, "take the older toolkit: pip install 'numba-kcache[cu12]'")


# -- the cache ------------------------------------------------------------------------------------------------


def judged_directory(session: Session, info: CacheInfo) -> Iterable[Finding]:
    """Judge the cache's directory: owner, filesystem, free space and foreign files."""
    local = session.local
    if not local.directory:
        advice = "set NUMBA_KCACHE_DIR, or a mode other than off"
        yield Finding("directory", WRONG, "kernels are kept in memory only", advice)
        return
    directory = local.directory
    there = next(path for path in (directory, *map(str, Path(directory).parents)) if os.path.exists(path))
    try:
        status, free = os.stat(there), os.statvfs(there)
    except OSError as error:
        yield Finding("directory", WRONG, str(error), "set NUMBA_KCACHE_DIR to a directory of yours")
        return
    is_made = there == directory
    reason = local.obstacle()
    if reason:
        advice = "set NUMBA_KCACHE_DIR to a directory of yours"
        if is_made and os.path.isdir(directory):
            advice = f"chmod 700 {directory} if it is yours, or {advice}"
        says = plain(reason) if directory in reason else f"{directory}: {plain(reason)}"
        yield Finding("directory", WRONG, says, advice)
    elif is_network(status):
        says = f"{directory}, on a network filesystem: locks are on a local disk, and only `prune` enforces limits"
        yield Finding("directory", NOTE, says, "see docs/format.md, 'Filesystems', for what it guarantees there")
    else:
        yield Finding("directory", FINE, directory + ("" if is_made else " (made when something is stored)"))
    if not reason or is_made:
        yield judged_space(free.f_bavail * free.f_frsize, free.f_favail if free.f_files else None, info)
    if SIGNED in local.tree.names:
        says = f"only {directory}/{SIGNED} is used: signatures are demanded, and unsigned files had arrived here before"
        yield Finding("signatures", NOTE, says, "to remove the rest, run `numba-kcache clear` without the keys")


def judged_space(free_bytes: int, free_files: int | None, info: CacheInfo) -> Finding:
    """Judge the free space: bytes, inodes (None if the filesystem does not count them), and the cache's limit."""
    says = f"{bytes_text(free_bytes)} free, {bytes_text(info.size_bytes)} used of {bytes_text(info.max_size_bytes)}"
    if free_bytes < _LEAST_FREE_BYTES or (free_files is not None and free_files < _LEAST_FREE_FILES):
        says += "" if free_files is None else f", {free_files} more files can be made"
        advice = "make room: `numba-kcache prune --older-than 30d` removes entries unused for 30 days"
        return Finding("space", WRONG, says, advice)
    if info.size_bytes + free_bytes < info.max_size_bytes:
        advice = f"lower max_size_bytes (NUMBA_KCACHE_MAX_SIZE) below {bytes_text(info.size_bytes + free_bytes)}"
        return Finding("space", NOTE, f"{says}: the disk is full before the limit is reached", advice)
    return Finding("space", FINE, says)


def judged_tiers(session: Session) -> Iterable[Finding]:
    """Send a small file through each tier and back."""
    for tier in (each.tier for each in session.tiers):
        subject, trial = f"tier {tier.name}", round_trip(tier)
        if trial.why:
            advice = trial.hint or "check its address, its permissions and, for a server, that it runs"
            yield Finding(subject, WRONG, plain(trial.why), f"{tier.name}: {advice}; launches work without it")
        else:
            how = "is read" if tier.readonly else "is written and read"
            yield Finding(subject, FINE, f"{how}, in {seconds_text(trial.seconds)}")
