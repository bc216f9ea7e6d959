"""CUDA C++ link inputs of numba-cuda-mlir's kernels: the search for their headers.

Source      numba-cuda-mlir 0.6.0, cudadrv/nvrtc.py `compile`: NVRTC searches the toolkit, then
            `CUDA_NVRTC_EXTRA_SEARCH_PATHS`; not the text's own folder, since the text is passed without one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.request import LinkInput
from .mlir_internals import CONFIG, linker_parts
from .numbas import loaded

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch


def linked_headers(links: Sequence[LinkInput], *, has_lines: bool) -> HeaderSearch | None:
    """Make the search for headers of CUDA C++ among these link inputs.

    Args:
        links: Link inputs of the kernel and its callees.
        has_lines: Whether line tables are compiled in.

    Raises:
        Refused: They cannot be keyed.
    """
    texts = [*dict.fromkeys(each._replace(folder="") for each in links if each.kind == "cu")]
    if not texts:
        return None
    from .files import check_texts

    if not check_texts(texts) and not has_lines:
        return None
    from ...headers.roots import HeaderSearch

    extra = filter(None, str(loaded(CONFIG, "CUDA_NVRTC_EXTRA_SEARCH_PATHS") or "").split(":"))
    folders = tuple(dict.fromkeys(map(os.path.abspath, extra)))
    toolkit = ("mlir_include_dirs", toolkit_dirs)
    codes = tuple(each.data for each in texts)
    return HeaderSearch(codes, folders, toolkit, is_working=True, has_lines=has_lines, is_edited=False)


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
