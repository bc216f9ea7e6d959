"""Make the request of a source kernel for a target: its key components, header queries and build function.

Promise     A request's components contain everything that can change its code; an input that cannot be captured makes
            the request uncacheable, with the reason. Nothing is compiled here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...engine.request import Request
from ...errors import OptionError
from ...keys import Component, Plain, components, encode, sha256
from ...model import Target
from ...model.artifact import Artifact
from ...model.request import DEBUG_FLAGS, FILE_WORDS, LINE_FLAGS, CompileOptions, LinkInput, Origin, SourceRequest
from ...settings import NVRTC_VARIABLES, variables
from ...toolchain import Toolchain
from .source import Source, normalised_ptx, read_link_inputs

if TYPE_CHECKING:
    from ...headers.folders import Folders
    from ...headers.search import HeaderQuery
    from . import SourceDefinition
    from .flags import RawFlags

_CUDA_LIBRARIES = ("nvrtc", "nvrtc-builtins")
_LINKER = ("nvJitLink",)
_DISTRIBUTIONS = ("numba", "numba-cuda")


def source_request(
    definition: SourceDefinition, text: str | bytes, target: Target, ptx_target: Target | None
) -> Request:
    """Make the request of a source kernel or module for one target.

    Args:
        definition: The kernel.
        text: Its source; bytes for compiled code.
        target: The target to build for.
        ptx_target: The virtual target to compile to first, if the user gave one.

    Raises:
        OptionError: A link input or dependency cannot be read.
    """
    source, options, kind = definition.source, definition.compile_options, definition.kind
    code, text = (text, "") if isinstance(text, bytes) else (b"", text)
    link = read_link_inputs(definition.link, options.base_dir) if definition.link else ()
    has_source = kind == "cuda" or definition.signature is not None or any(each.kind == "cu" for each in link)
    is_made = kind not in ("cuda", "cubin")
    is_linked = is_made or options.lto or link or ptx_target or target.virtual or definition.is_lazy
    is_plain = not (link or options.flags or options.defines)
    for word in FILE_WORDS:  # no generator, for speed: each source is searched for all words
        is_plain = is_plain and word not in text
    given = None
    if options.flags:
        from .flags import read_flags

        given = read_flags(options.flags)
    is_linked = is_linked or (given is not None and given.is_relocatable)
    uncacheable, headers = ("", ()) if is_plain else _header_queries(kind, text, link, options, given)
    if given and given.unknown and not (uncacheable or definition.depends):
        uncacheable = given.unknown
    is_alone = kind == "cuda" and not (headers or uncacheable or options.flags)  # no text can include a file
    wanted = SourceRequest(
        kind, definition.label, text, definition.entry_name, source.guess, target, options, link, definition.signature,
        ptx_target, source.origin, bool(headers), definition.module, code,
    )  # fmt: skip
    depends = _Depends(definition.depends, options.base_dir) if definition.depends else None
    made = _components(definition, code or text, target, ptx_target, link, given, depends, asks_files=bool(headers))
    return Request(
        label=definition.label,
        target=target,
        components=made,
        libraries=(_CUDA_LIBRARIES if has_source else ()) + (_LINKER if is_linked else ()),
        distributions=_DISTRIBUTIONS,
        build=functools.partial(_build, wanted, has_source and not is_alone, given),
        uncacheable=uncacheable,
        strict=definition.strict,
        headers=headers,
        texts=dict if code else functools.partial(_texts, text, source.origin),
        file=definition.file,
        name=source.qualname,
        changed=depends.change if depends else str,
        prepare=functools.partial(_prepare, wanted),
    )


def _prepare(request: SourceRequest) -> None:
    """Import what `_build` needs."""
    if request.module is None:
        from . import build as _imported  # noqa: F401
    else:
        from . import module_build as _module_imported  # noqa: F401


def _components(
    definition: SourceDefinition,
    text: str | bytes,
    target: Target,
    ptx_target: Target | None,
    link: Sequence[LinkInput],
    given: RawFlags | None,
    depends: _Depends | None,
    *,
    asks_files: bool,
) -> tuple[Component, ...]:
    """Make the components: requests that compile to different code have different ones.

    docs/keys.md lists what is in the key and what is not, and why. Compilers, versions and headers are added by the
    engine.
    """
    source, options, kind = definition.source, definition.compile_options, definition.kind
    entry: Plain = {"name": definition.entry_name, "guess": source.guess if definition.entry_name is None else None}
    if definition.module is not None:
        entry = {"names": list(definition.module.names), "code": "ltoir" if definition.is_lazy else "cubin"}
        entry |= {"guess": source.guess} if source.guess else {}  # the guess is in NVRTC's name for the source
    values: dict[str, Plain] = {"kind": kind, "entry": entry, "options": _changed_options(options, given)}
    if definition.signature is not None:
        values["signature"] = " ".join(definition.signature.split())
    is_alone = kind == "ptx" and definition.entry_name is None and definition.module is None and not link
    values["source"] = normalised_ptx(text) if is_alone and isinstance(text, str) else text
    values["target"] = [target.name, ptx_target.name if ptx_target else None]
    if link:
        values["link"] = [_link_input(each) for each in link]
    environment = variables(NVRTC_VARIABLES)
    if environment:
        values["environment"] = dict(environment)
    if given and given.files:
        values["flag files"] = [sha256(content).hexdigest() for _index, _path, content in given.files]
    if options.lineinfo or options.debug or not LINE_FLAGS.isdisjoint(options.flags):
        of_source = text if isinstance(text, str) else ""
        values["lines"] = _lines(source, of_source, options, link, asks_files=asks_files)
    if depends:
        values["depends"] = depends.values
    return components(values)


def _changed_options(options: CompileOptions, given: RawFlags | None) -> dict[str, Plain]:
    """Options that differ from their defaults, so that an option added by a later version keeps older keys."""
    if options[:-1] == _DEFAULT[:-1]:  # all but the folder
        return {}
    chosen: dict[str, Plain] = {
        name: getattr(options, name)
        for name in CompileOptions._fields
        if name not in _KEYED_OTHERWISE and getattr(options, name) != getattr(_DEFAULT, name)
    }
    if options.defines:
        # F and F(x) define the same macro, so their order matters: a stable sort by the bare name preserves it
        in_order = sorted(options.defines, key=lambda pair: pair[0].partition("(")[0])
        chosen["defines"] = [[name, text] for name, text in in_order]
    if options.flags:
        flags = list(options.flags)
        for index, path, _content in given.files if given else ():
            flags[index] = flags[index].removesuffix(path)  # keyed by content, since a checkout may move
        chosen["flags"] = [*flags]
    return chosen


_DEFAULT = CompileOptions()
_KEYED_OTHERWISE = frozenset(("defines", "flags", "include_dirs", "base_dir"))
"""Options whose form in the key differs from their value; folders count by the headers that are read from them."""


def _link_input(item: LinkInput) -> Plain:
    """The form of a link input in the key: its content, and for CUDA C++ its name, which `__FILE__` may use."""
    return [item.kind, item.name if item.kind == "cu" else "", sha256(item.data).hexdigest()]


def _build(
    request: SourceRequest, has_headers: bool, given: RawFlags | None, toolchain: Toolchain, headers: Folders | None
) -> Artifact:
    if given and given.files:
        from .flags import with_files

        with with_files(request.options.flags, given.files) as flags:
            request = request._replace(options=request.options._replace(flags=flags))
            return _build(request, has_headers, None, toolchain, headers)
    folders = toolchain.include_dirs() if has_headers else ()  # finding the folders may take longer than the compile
    if request.module is None:
        from .build import build_source

        return build_source(request, folders, headers)
    from .module_build import build_module

    return build_module(request, folders, headers)


def _texts(text: str, origin: Origin) -> dict[str, tuple[str, Origin]]:
    shown = text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return {"source": (shown, origin)}


def link_request(definition: SourceDefinition, text: str, module: Artifact, module_key: str, name: str) -> Request:
    """Make the request of one kernel of a lazy module; the module's own key covers everything else in its key.

    Args:
        definition: The module.
        text: Its source, for the names of parameters.
        module: Its artifact with the LTO-IR.
        module_key: Key of that artifact; "" if it cannot be cached.
        name: The user's name for the kernel.
    """

    def build(_toolchain: Toolchain, _headers: Folders | None) -> Artifact:
        from .module_build import build_lazy

        request = SourceRequest(definition.kind, label, text, name, None, module.target, definition.compile_options)
        return build_lazy(request, module)

    label = f"{definition.label}[{name}]"
    return Request(
        label=label,
        target=module.target,
        components=components({"kind": "lazy", "module": module_key, "entry": name}),
        libraries=_LINKER,
        distributions=_DISTRIBUTIONS,
        build=build,
        uncacheable="" if module_key else f"its module {definition.label} cannot be cached",
        strict=definition.strict,
        file=definition.file,
        name=f"{definition.source.qualname}[{name}]",
    )


def _lines(
    source: Source, text: str, options: CompileOptions, link: Sequence[LinkInput], *, asks_files: bool
) -> tuple[Plain, ...]:
    """Inputs of line tables: file, the source's first line in it, base folder, working directory.

    The working directory is included if a file name may be relative, and with debug information and LTO-IR, which
    always contain it. The base folder is included for a text that is in no file and may include files, and for CUDA C++
    link inputs, since NVRTC then gets it as part of the text's name.
    """
    from ...headers.scanner import has_line_directive
    from ...model.text import encoded
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


def _header_queries(
    kind: str, text: str, link: Sequence[LinkInput], options: CompileOptions, given: RawFlags | None
) -> tuple[str, tuple[HeaderQuery, ...]]:
    """The reason why the request cannot be keyed, "" if it can; and queries for the headers of its texts."""
    from ...headers.scanner import has_certain_clock, scan_includes
    from ...headers.search import HeaderQuery
    from ...model.text import encoded

    forced, definitions = (given.forced, given.definitions) if given else ((), ())
    values = [value for _, value in options.defines if value] + list(options.flags)
    if values and scan_includes("\n".join(values)).has_clock:
        return "its macros use __DATE__ or __TIME__", ()
    texts: list[tuple[LinkInput | None, str | bytes]] = [(None, text)] if kind == "cuda" else []
    texts += [(each, each.data) for each in link if each.kind == "cu"]
    macros = [f"#define {name} {value or ''}\n" for name, value in options.defines + definitions]
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


class _Depends:
    """Read `depends`: plain values, and the content of each `pathlib.Path`."""

    def __init__(self, given: Sequence[Any], base_dir: str) -> None:
        self._given = given
        self._paths = [
            os.path.join(base_dir, os.path.expanduser(os.fspath(each)))
            for each in given
            if isinstance(each, os.PathLike)
        ]
        self._stats = [_stat(path) for path in self._paths]
        self.values = self._read()

    def change(self) -> str:
        """Reason why a flag may have read other bytes than those in the key; "" for none."""
        try:
            is_same = [_stat(path) for path in self._paths] == self._stats and self._read() == self.values
        except OptionError:
            is_same = False
        return "" if is_same else "a file of depends= changed while it was compiled"

    def _read(self) -> list[Plain]:
        found: list[Plain] = []
        paths = iter(self._paths)
        for each in self._given:
            if isinstance(each, os.PathLike):
                try:
                    with open(next(paths), "rb") as file:
                        found.append({"sha256": sha256(file.read()).hexdigest()})
                except (OSError, ValueError) as error:
                    raise OptionError(f"cannot read depends={each!r}", str(error), "correct the path") from None
            else:
                try:
                    encode(each)
                except TypeError as error:
                    raise OptionError(
                        f"cannot use a {type(each).__name__} in depends=", str(error), "give plain values or Paths"
                    ) from None
                found.append(each)
        return found


def _stat(path: str) -> tuple[int, ...] | None:
    """The fields of a file's stat that a write changes; None for a missing file."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
