"""Copy the installed compilers so that they count as other builds: with another GNU build-id and the same code."""

from __future__ import annotations

import functools
import os
import struct
import tempfile
from pathlib import Path

from numba_kcache.toolchain import Toolchain


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    """The folder of the copies that this process made: those of the tests are links to them."""
    return tempfile.TemporaryDirectory(prefix="compilers-")


def copy_of(name: str, folder: Path, *, beside: str = "", byte: int = 0xFF) -> Path:
    """Copy a compiler library with another build-id.

    Args:
        name: The name of the library, as for `Toolchain.library`.
        folder: The target folder, which is created if it does not exist.
        beside: The name of another library, which is copied unchanged to the same folder; "" for none.
        byte: The bits of the build-id's first byte that are inverted; 0 for the same build.
    """
    found = Toolchain(lambda _name: None, lambda _name, _record: None).library(name)
    assert found is not None
    folder.mkdir(parents=True, exist_ok=True)
    target, kept = folder / Path(found.path).name, Path(_kept().name, f"{name} {byte}")
    if not kept.exists():
        content = bytearray(Path(found.path).read_bytes())
        build = bytes.fromhex(found.build.removeprefix("build-id:"))
        at = content.rindex(build)
        assert content.count(build) == 1
        content[at] ^= byte
        kept.write_bytes(content)
    os.link(kept, target)
    if beside:
        copy_of(beside, folder, byte=0)
    return target


IGNORED = 21
"""DT_DEBUG, which the loader ignores in a library."""


def with_runpath(library: Path, tag: int = 29) -> None:
    """Turn the DT_RPATH of a library's file into a DT_RUNPATH, as the wheel of NVRTC 12.8 has: it is searched after
    LD_LIBRARY_PATH; or into another tag."""
    content = bytearray(library.read_bytes())
    (segments,) = struct.unpack_from("<Q", content, 32)
    for at in range(segments, segments + 56 * content[56], 56):
        kind, _flags, offset, _address, _physical, size = struct.unpack_from("<IIQQQQ", content, at)
        for entry in range(offset, offset + size if kind == 2 else offset, 16):
            if struct.unpack_from("<Q", content, entry) == (15,):
                struct.pack_into("<Q", content, entry, tag)
    library.unlink()  # other copies are links to it
    library.write_bytes(content)
