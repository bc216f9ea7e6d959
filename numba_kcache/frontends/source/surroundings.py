"""The parts of a source's request that depend on files and folders around it: its headers, and paths in line tables.

Not here    Finding and checking the headers (headers).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...headers.scanner import has_certain_clock, has_line_directive, scan_includes
from ...headers.search import HeaderQuery
from ...keys import Plain
from ...model.request import DEBUG_FLAGS, CompileOptions, LinkInput
from ...model.text import encoded
from .source import Source

if TYPE_CHECKING:
    from .flags import RawFlags


def header_queries(
    kind: str, text: str, link: Sequence[LinkInput], options: CompileOptions, given: RawFlags | None
) -> tuple[str, tuple[HeaderQuery, ...]]:
    """The reason why the request cannot be keyed, "" if it can; and queries for the headers of its texts."""
    forced, definitions = (given.forced, given.definitions) if given else ((), ())
    values = [value for _, value in options.defines if value] + list(options.flags)
    if values and scan_includes("\n".join(values)).has_clock:
        return "its macros use __DATE__ or __TIME__", ()
    texts: list[tuple[LinkInput | None, str | bytes]] = [(None, text)] if kind == "cuda" else []
    texts += [(each, each.data) for each in link if each.kind == "cu"]
    macros = [f"#define {name} {'1' if value is None else value}\n" for name, value in options.defines + definitions]
    before = encoded("".join(macros))
    codes = [encoded(each) if isinstance(each, str) else each for _of, each in texts]
    scans = [scan_includes(before + code) for code in codes]
    if any(scan.has_clock and has_certain_clock(code) for scan, code in zip(scans, codes, strict=True)):
        return "it uses __DATE__ or __TIME__", ()
    for (of, _text), scan in zip(texts, scans, strict=True):
        if of and "/" in of.name and scan.asks_files:
            return of.unplaced, ()
    if not forced and not any(scan.asks_files or scan.has_clock for scan in scans):
        return "", ()
    siblings = not any(flag.lstrip("-") == "no-source-include" for flag in options.flags)
    return "", tuple(
        HeaderQuery(
            each if isinstance(each, str) else each.decode("utf-8", "surrogateescape"),
            tuple(filter(None, (of.folder if of else options.base_dir, *options.include_dirs))),
            of,
            options.defines + definitions,
            forced,
            siblings,
            has_lines=options.has_lines,
        )
        for of, each in texts
    )


def line_inputs(
    source: Source, text: str, options: CompileOptions, link: Sequence[LinkInput], *, asks_files: bool
) -> tuple[Plain, ...]:
    """Inputs of line tables: file, the source's first line in it, base folder, working directory.

    The base folder is included because NVRTC gets it as part of the name of a CUDA C++ link input, and of a text that
    is in no file and may include files. The working directory is included if a file name may be relative, and with
    debug information and LTO-IR, which always contain it.
    """
    from ...toolchain.diagnostics import first_line
    from .flags import working_folder

    start = first_line(text, source.origin)
    path = "" if source.origin.is_cell else source.origin.path
    found = path, start or source.origin.line, options.base_dir
    is_absolute = asks_files or (path and start is not None)
    is_debug = options.debug or not DEBUG_FLAGS.isdisjoint(options.flags)
    is_plain = not (is_debug or options.lto or has_line_directive(encoded(text)))
    are_plain = all(each.kind == "cu" and each.folder and not has_line_directive(each.data) for each in link)
    return (
        found if is_absolute and is_plain and (not link or (asks_files and are_plain)) else (*found, working_folder())
    )
