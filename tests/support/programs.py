"""Programs other than Python that tests start: where one is missing, the tests that ask for it skip, with the reason.

Promise     A test that starts a program of another package by its bare name fails, wherever it runs: a machine that has
            the program would hide that one without it fails. By `program` it starts the path, or is skipped.
Method      conftest.py calls `require_paths`, which looks at each start of a process by a file below tests/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
ALWAYS = {"sh"}
"""Programs of every Linux."""

PACKAGES = {
    "azurite-blob": "npm install azurite", "cc": "apt-get install gcc libc6-dev", "git": "apt-get install git",
    "mkfs.xfs": "apt-get install xfsprogs", "mount": "apt-get install mount", "nvcc": "install the CUDA toolkit",
    "openssl": "apt-get install openssl", "readelf": "apt-get install binutils",
    "redis-server": "apt-get install redis-server", "skopeo": "apt-get install skopeo",
}  # fmt: skip
"""How to get a program."""


def program(name: str) -> str:
    """Find a program on PATH; skip the test, or all tests of the fixture, if it is not there."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"no {name} on PATH" + (f": {PACKAGES[name]}" if name in PACKAGES else ""))
    return path


def require_paths() -> None:
    """Refuse, from now on, that a file of the tests starts a program by its bare name."""
    start = subprocess.Popen.__init__

    def checked(process: Any, args: Any, *more: Any, **named: Any) -> None:
        frame = sys._getframe(1)
        while frame.f_code.co_filename == subprocess.__file__ and frame.f_back:
            frame = frame.f_back
        name = str(args[0]) if isinstance(args, list | tuple) and not named.get("executable") else "/"
        if "/" not in name and name not in ALWAYS and frame.f_code.co_filename.startswith(str(TESTS)):
            raise AssertionError(f"start program({name!r}) of tests/support/programs.py: it may be missing elsewhere")
        start(process, args, *more, **named)

    subprocess.Popen.__init__ = checked  # type: ignore[method-assign]


def starts_programs(*functions: Any) -> bool:
    """Check if functions of the tests look for a program: by `program`, by `which`, or by what does so."""
    seen: set[int] = set()

    def reaches(value: Any) -> bool:
        value = getattr(value, "__wrapped__", value)
        home = getattr(sys.modules.get(getattr(value, "__module__", None) or ""), "__file__", None) or ""
        if value is program or id(value) in seen or not home.startswith(str(TESTS)):
            return value is program
        seen.add(id(value))
        if isinstance(value, type):
            return any(map(reaches, vars(value).values()))
        names = _names(value.__code__) if isinstance(value, FunctionType) else set()
        return "which" in names or any(reaches(value.__globals__.get(name)) for name in names)

    return any(map(reaches, functions))


def _names(code: CodeType) -> set[str]:
    """The names that code reads, and the functions in it."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(name for names in inner for name in names)}
