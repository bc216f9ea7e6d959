"""Copy the installed compilers so that they count as other builds: with another GNU build-id and the same code."""

from __future__ import annotations

import shutil
from pathlib import Path

from numba_kcache.toolchain import Toolchain


def copy_of(name: str, folder: Path, *, beside: str = "", byte: int = 0xFF) -> Path:
    """Copy a compiler library with another build-id.

    Args:
        name: The name of the library, as for `Toolchain.library`.
        folder: The target folder, which is created if it does not exist.
        beside: The name of another library, which is copied unchanged to the same folder; "" for none.
        byte: The bits of the build-id's first byte that are inverted.
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
