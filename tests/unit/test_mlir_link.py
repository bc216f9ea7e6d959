"""CUDA C++ that kernels of numba-cuda-mlir link: folders, texts, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from numba_kcache.model import LinkInput

pytest.importorskip("numba_cuda_mlir")

from numba_kcache.frontends.numba import toolkit_dirs
from numba_kcache.frontends.numba.fingerprint import Refused
from numba_kcache.frontends.numba.mlir import MLIR


def text(content: str, name: str = "device.cu") -> LinkInput:
    return LinkInput("cu", name, content.encode(), "/somewhere")


def test_folders_are_those_that_it_names_to_nvrtc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The toolkit's folders in its order, then the setting's; the text's own folder is not among them."""
    from numba_cuda_mlir.numba_cuda.core import config
    from numba_cuda_mlir.numba_cuda.cudadrv import nvrtc

    class Seen(Exception):
        pass

    def program(_source: str, _kind: str, options: Any) -> Any:
        raise Seen(options.include_path)

    monkeypatch.setattr(config, "CUDA_NVRTC_EXTRA_SEARCH_PATHS", f"{tmp_path}:/elsewhere")
    monkeypatch.setattr(nvrtc, "Program", program)
    with pytest.raises(Seen) as seen:
        nvrtc.compile("", "device.cu", (9, 0))

    search = MLIR.linked_headers([text('#include "value.h"\n')], has_lines=False)

    (folders,) = seen.value.args
    assert [os.path.realpath(each) for each in folders] == [
        *map(os.path.realpath, toolkit_dirs(MLIR)), os.path.realpath(tmp_path), "/elsewhere",
    ]  # fmt: skip
    assert search is not None
    assert search.folders == (str(tmp_path), "/elsewhere")


def test_text_that_asks_for_nothing_needs_no_look_at_headers() -> None:
    """An exception is a text with line tables, whose code contains its path."""
    assert MLIR.linked_headers([text("int x;\n")], has_lines=False) is None
    assert MLIR.linked_headers([text("int x;\n")], has_lines=True) is not None
    assert MLIR.linked_headers([LinkInput("ptx", "a.ptx", b"#include", "")], has_lines=True) is None


@pytest.mark.parametrize(
    ("content", "name", "why"),
    [("const char *t = __TIME__;\n", "a.cu", "__TIME__"), ('#include "b.h"\n', "own/a.cu", "folder in its name")],
)
def test_what_no_key_can_hold_is_refused(content: str, name: str, why: str) -> None:
    """The text reads the time of the compile, or its name contains a folder."""
    with pytest.raises(Refused, match=why):
        MLIR.linked_headers([text(content, name)], has_lines=False)
