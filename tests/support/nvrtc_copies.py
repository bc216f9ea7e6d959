"""Copies of the installed compilers that are other builds: each has its own GNU build-id, and the same code."""

from __future__ import annotations

import shutil
from pathlib import Path

from numba_kcache.toolchain import Toolchain


def copy_of(name: str, folder: Path, *, beside: str = "", byte: int = 0xFF) -> Path:
    """Copy a compiler library with another build-id.

    Args:
        name: As for `Toolchain.library`.
        folder: Where to; made where it is not there.
        beside: A library that is copied beside it as it is.
        byte: The bits of the build-id's first byte that are turned.
    """
    toolchain = Toolchain(lambda _name: (), lambda _name, _record: None)
    found = toolchain.library(name)
    assert found is not None
    build = bytes.fromhex(found.build.removeprefix("build-id:"))
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(found.path).name
    content = bytearray(Path(found.path).read_bytes())
    at = content.rindex(build)
    assert content.count(build) == 1
    content[at] ^= byte
    target.write_bytes(content)
    if beside:
        other = toolchain.library(beside)
        assert other is not None
        shutil.copy(other.path, folder)
    return target
