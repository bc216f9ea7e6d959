"""Make errors for what the compilers refuse: a source, a link input, PTX, a signature; in the user's own terms.

Not here    Running the compilers (build), and reading their logs (toolchain.diagnostics).
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ...errors import CompileError, LinkError, OptionError, in_cells
from ...model import LinkInput, Origin, SourceRequest
from ...toolchain.diagnostics import excerpt, for_user, remap, remap_ptx, summary
from ...toolchain.missing_headers import hint_of

_UNRENDERED = (
    r"\{\{[^{};,]*[A-Za-z_][^{};,]*\}\}|\{%.*?%\}|\$\{?[A-Za-z_]\w*\}?"
    r"|%\([A-Za-z_]\w*\)[a-z]|\{[A-Za-z_]\w*\}(?=\s*[*&\w])"
)
"""A mark of Jinja, Mako, `string.Template`, `%` or `str.format` in a source."""


def refused(request: SourceRequest, program: str, log: str, toolkit_dirs: Sequence[str]) -> CompileError:
    """Make the error for a source that NVRTC refused.

    Args:
        request: With the source.
        program: NVRTC's name for the source.
        log: NVRTC's log.
        toolkit_dirs: The toolkit's own header folders.

    Raises:
        OptionError: An option is at fault.
    """
    folders = [each for each in (request.options.base_dir, *request.options.include_dirs) if each]
    hint = _hint_for_line(log, program, request.source) or hint_of(log, folders, toolkit_dirs)
    log = for_user(log, program, request.source, request.origin, request.label, [*folders, *toolkit_dirs])
    if re.search(r"(?m)^(?:nvrtc: error: |Command-line error)", log):
        what = f"cannot compile {request.label} for {request.target}"
        raise OptionError(what, summary(log), "see the NVRTC User Guide for its targets and flags")
    if not re.search(r"__global__|#\s*(?:include|define)", request.source):  # macros and headers may declare kernels
        hint = 'a kernel is written: extern "C" __global__ void name(float *x) { ... }'
    if re.search(r"(?m)^\s*\.version\s+\d", request.source):
        hint = "this is PTX: say kind='ptx'"
    is_placed = re.search(r"(?m)\(\d+\): |^line \d+ of ", log)
    log = in_cells(log, request.origin.path)
    hint = hint or f"correct the {'line that is shown' if is_placed else 'source'}; .log has all that the compiler said"
    log = re.sub(r"\b0x([0-9a-f]+)(?= (?:bytes|max)\b)", lambda size: str(int(size[1], 16)), log)
    return CompileError(f"cannot compile {request.label} for {request.target}", excerpt(log), hint, log)


def _hint_for_line(log: str, program: str, source: str) -> str:
    """The hint for the first line that NVRTC refused, if it is of a template or of an older CUDA; "" for none."""
    found = re.search(rf"(?m)^{re.escape(program)}\((\d+)\): error", log)
    line = source.split("\n")[int(found[1]) - 1 :][:1] if found else []
    if not line:
        return ""
    if re.search(r"\btexture\s*<|\bsurface\s*<", line[0]):
        return "CUDA 12 has no texture references: pass a texture object as a cudaTextureObject_t"
    mark = re.search(_UNRENDERED, line[0])
    if mark is None:
        return ""
    return (
        f"{mark[0].strip()} is of a template that was not rendered: render it, or return it from a function with values"
    )


def refused_input(
    item: LinkInput, request: SourceRequest, program: str, log: str, toolkit_dirs: Sequence[str]
) -> CompileError:
    """Make the error for a link input of CUDA C++ that NVRTC refused; `program` is NVRTC's name for it."""
    log = remap(log, program, "", Origin(os.path.join(item.folder, item.name), is_whole_file=True))
    hint = hint_of(log, [item.folder, *request.options.include_dirs], toolkit_dirs)
    return CompileError(f"cannot compile the link input {item.name}", excerpt(log), hint, log)


def refused_ptx(request: SourceRequest, error: LinkError) -> LinkError:
    """Make the error for PTX that the linker refused; `error` is the linker's."""
    log = in_cells(remap_ptx(error.log, request.source, request.origin), request.origin.path)
    return LinkError(error.what, excerpt(log), error.hint, log)


def no_signature(request: SourceRequest, log: str) -> OptionError:
    """Make the error for a signature that NVRTC does not understand."""
    return OptionError(
        f"cannot read signature={request.signature!r} of {request.label}",
        summary(log),
        "write C++ types: 'float, int*'",
    )
