"""CUDA C++ link inputs of numba-cuda-mlir's kernels: queries for their headers, and compiling them from a mirror.

Promise     Link inputs are read again for each compile. The code is that of a plain compile: NVRTC gets
            numba-cuda-mlir's own flags, with include folders that replace the user's (headers.folders).
Method      For the compiling thread, cuda.core's `Program` is replaced by one that runs NVRTC on the user's texts.
Source      numba-cuda-mlir 0.6.0, cudadrv/nvrtc.py `compile`: NVRTC searches the toolkit, then
            `CUDA_NVRTC_EXTRA_SEARCH_PATHS`; not the text's own folder, since the text is passed without one. cuda.core
            1.2, `ProgramOptions.as_bytes`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...headers.folders import Folders
from ...model.request import LinkInput
from ...model.text import decoded
from ..python.numbas import loaded
from .internals import CONFIG, linker_parts

if TYPE_CHECKING:
    from ...headers.search import HeaderQuery

_INCLUDE = "--include-path="


def texts_of(links: Iterable[LinkInput]) -> list[LinkInput]:
    """List the texts among link inputs, in the form in which they are compiled: without their folders."""
    return [*dict.fromkeys(each._replace(folder="") for each in links if each.kind == "cu")]


def linked_headers(links: Sequence[LinkInput], *, has_lines: bool) -> tuple[HeaderQuery, ...]:
    """Make the header queries for CUDA C++ among these link inputs.

    Args:
        links: Link inputs of the kernel and its callees.
        has_lines: Whether line tables are compiled in.

    Raises:
        Refused: They cannot be keyed.
    """
    texts = texts_of(links)
    if not texts:
        return ()
    from ..python.files import scan_texts

    scans = scan_texts(texts)
    if not has_lines and not any(
        each.asks_files or each.has_clock or each.has_location or each.has_assert for each in scans
    ):
        return ()
    from ...headers.search import HeaderQuery

    folders = tuple(map(os.path.abspath, _extra_folders()))
    toolkit = ("mlir_include_dirs", toolkit_dirs)
    return tuple(HeaderQuery(decoded(each.data), folders, each, toolkit=toolkit, has_lines=has_lines) for each in texts)


def _extra_folders() -> list[str]:
    return [*filter(None, str(loaded(CONFIG, "CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":"))]


def toolkit_dirs() -> Sequence[str]:
    """List the toolkit's include folders, which are searched first."""
    from cuda.bindings import nvrtc
    from cuda.pathfinder import locate_nvidia_header_directory

    parts = linker_parts()
    _status, major, _minor = nvrtc.nvrtcVersion()
    cccl = locate_nvidia_header_directory("cccl")
    own = os.path.dirname(os.path.dirname(os.path.abspath(parts.nvrtc.__file__)))
    folders = (parts.get_cuda_paths()["include_dir"].info, *([cccl.abs_path] if cccl else ()), parts.get_include())
    return os.path.join(own, "include", str(major)), *[os.path.realpath(str(each)) for each in folders]


@contextmanager
def linked_from(headers: Folders | None, links: Iterable[LinkInput]) -> Iterator[None]:
    """Make this thread compile a kernel's present link inputs, with headers from these folders.

    Args:
        headers: Folders in place of the user's; None for the user's own.
        links: The link inputs, with the bytes in the key.
    """
    parts = linker_parts()
    parts.cached_file_read.cache_clear()
    if headers is None:
        yield
        return
    texts = {(each.name, decoded(each.data)): each for each in texts_of(links)}
    thread, real, folders = threading.get_ident(), parts.nvrtc.Program, headers

    def program(source: str, kind: str, options: Any) -> Any:
        found = texts.get((options.name, source)) if threading.get_ident() == thread else None
        return real(source, kind, options=options) if found is None else _Program(found, source, options, folders, real)

    parts.nvrtc.Program = program
    try:
        yield
    finally:
        parts.nvrtc.Program = real


class _Program:
    """One text, with the interface of `cuda.core.Program`."""

    def __init__(self, of: LinkInput, source: str, options: Any, folders: Folders, real: Any) -> None:
        self._of, self._source, self._options, self._folders, self._real = of, source, options, folders, real

    def compile(self, kind: str, logs: Any = None) -> Any:
        from cuda.core import ObjectCode

        flags = [self._placed(each.decode()) for each in self._options.as_bytes("nvrtc")]
        result = self._folders.run(self._of, self._source, self._options.name, flags, (kind,))
        if not result.ok:  # the real Program raises its own error
            return self._real(self._source, "c++", options=self._options).compile(kind, logs=logs)
        if result.log and logs is not None:
            logs.write(result.log)
        make = {"ptx": ObjectCode.from_ptx, "ltoir": ObjectCode.from_ltoir}[kind]
        return make(result.code[kind], name=self._options.name)

    def _placed(self, flag: str) -> str:
        if not (flag.startswith(_INCLUDE) and self._folders.is_mirror):
            return flag
        return _INCLUDE + self._folders.folder(os.path.abspath(flag.removeprefix(_INCLUDE)))
