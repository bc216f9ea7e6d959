"""The parts of a source's request that depend on files and folders around it: its headers, and paths in line tables.

Not here    Finding and checking the headers (headers).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ...headers import words
from ...headers.roots import HeaderSearch
from ...headers.words import has_line_directive
from ...keys import Plain
from ...model import DEBUG_FLAGS, Artifact, CompileOptions, LinkInput, SourceInput
from ...model.text import encoded
from ...settings import variables, working_directory

if TYPE_CHECKING:
    from ...model.flags import RawFlags


def header_search(
    kind: str, text: str, link: Sequence[LinkInput], options: CompileOptions, given: RawFlags | None
) -> tuple[str, HeaderSearch | None]:
    """The reason why the request cannot be keyed, "" if it can; and the search for headers, None if no text needs
    it."""
    forced, definitions = (given.forced, given.definitions) if given else ((), ())
    macros = [encoded(value) for _, value in (*options.defines, *definitions) if value]
    if any(map(words.has_clock, macros)) or words.hides_clock(*macros):
        return "its macros use __DATE__ or __TIME__", None
    inputs = [each for each in link if each.kind == "cu"]
    texts = [encoded(text)] if kind == "cuda" else []
    texts += [each.data for each in inputs]
    if any(map(words.certainly_has_clock, texts)):
        return "it uses __DATE__ or __TIME__", None
    for each in inputs:
        if "/" in each.name and words.may_ask(b"\n".join([each.data, *macros])):
            return each.unplaced, None
    if not forced and not any(map(words.may_ask, [*texts, b"\n".join(macros)])):
        return "", None
    folders = [options.base_dir, *options.include_dirs, *(each.folder for each in inputs)]
    return "", HeaderSearch(
        (*texts, *macros),
        tuple(filter(None, folders)),  # equal ones too: `Roots.layout` tells which of them a link input is in
        forced=forced,
        is_working=not options.base_dir or not all(each.folder for each in inputs),
        has_lines=options.has_lines,
        complete=_completed if kind == "cuda" else None,
    )


def with_folder_of_cupy(text: str, options: CompileOptions) -> CompileOptions:
    """Add the folder of CuPy's headers, where CuPy is installed, to the options of a text that names one of them."""
    if "<cupy/" in text or '"cupy/' in text:
        with contextlib.suppress(ImportError, ValueError):  # CuPy is being imported, or was replaced
            spec = find_spec("cupy")
            folders = [os.path.join(each, "_core/include") for each in (spec and spec.submodule_search_locations) or ()]
            return options._replace(include_dirs=(*options.include_dirs, *folders))
    return options


def _completed(artifact: Artifact, texts: Sequence[bytes]) -> Artifact:
    if not any(b"__global__" in each for each in texts[1:]):  # the source has named the parameters of its own
        return artifact
    from .kernels import with_names

    return with_names(artifact, texts)


def line_inputs(request: SourceInput) -> tuple[Plain, ...]:
    """Inputs of line tables: file, the source's first line in it, base folder, working directory.

    The base folder is included because NVRTC gets it as part of the name of a CUDA C++ link input, and of a text that
    is in no file and may include files. The working directory is included if a file name may be relative, and with
    debug information and LTO-IR, which always contain it.
    """
    from ...toolchain.diagnostics import first_line

    options, origin, text = request.options, request.origin, encoded(request.source)
    start = first_line(request.source, origin)
    path = "" if origin.is_cell else origin.path
    found = path, start or origin.line, options.base_dir
    is_absolute = request.asks_files or (path and start is not None)
    is_debug = options.debug or not DEBUG_FLAGS.isdisjoint(options.flags)
    is_plain = not (is_debug or options.lto or has_line_directive(text))
    link = [each for each in request.link if each.kind != "ptx"]  # the assembler of PTX takes file names as they are
    are_plain = all(each.kind == "cu" and each.folder and not has_line_directive(each.data) for each in link)
    return (
        found
        if is_absolute and is_plain and (not link or (request.asks_files and are_plain))
        else (*found, working_folder())
    )


def working_folder() -> str:
    """Return the folder that NVRTC puts before relative paths in line tables: $PWD if that is the working directory.

    Source: LLVM, `sys::fs::current_path`: PWD, if it leads to the folder that this process is in.
    """
    named = variables(("PWD",)).get("PWD", "")
    with contextlib.suppress(OSError, ValueError):
        if os.path.isabs(named) and os.path.samestat(os.stat(named), os.stat(".")):
            return named
    return working_directory()
