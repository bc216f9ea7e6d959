"""Make the request of a source kernel for a target: its key components, header queries and build function.

Promise     A request's components contain everything that can change its code; an input that cannot be captured makes
            the request uncacheable, with the reason. Nothing is compiled here.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...engine.request import Request
from ...errors import CompileError
from ...keys import Component, Plain, components, sha256
from ...model import Target
from ...model.artifact import Artifact
from ...model.request import FILE_WORDS, LINE_FLAGS, CompileOptions, LinkInput, Origin, SourceRequest
from ...settings import NVRTC_VARIABLES, variables
from ...toolchain import Toolchain

if TYPE_CHECKING:
    from ...headers.roots import HeaderSearch
    from . import SourceDefinition
    from .flags import RawFlags
    from .inputs import Depends

_CUDA_LIBRARIES = ("nvrtc", "nvrtc-builtins")
LINKER = ("nvJitLink",)
DISTRIBUTIONS = ("numba", "numba-cuda")


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
    link: tuple[LinkInput, ...] = ()
    depends: Depends | None = None
    if definition.link or definition.depends:
        from .inputs import Depends, read_link_inputs

        link = read_link_inputs(definition.link, options.base_dir) if definition.link else ()
        depends = Depends(definition.depends, options.base_dir) if definition.depends else None
    has_source = kind == "cuda" or definition.signature is not None or any(each.kind == "cu" for each in link)
    is_made = kind not in ("cuda", "cubin")
    is_linked = is_made or options.lto or link or ptx_target or target.virtual or definition.is_lazy
    is_plain = not (link or options.flags or options.defines)
    for word, letter in FILE_WORDS.items():  # no generator, for speed: each source is searched for all words
        is_plain = is_plain and not (letter in text and word in text)
    is_plain = is_plain and not ("##" in text or "%:%:" in text)
    given = None
    if options.flags:
        from .flags import read_flags

        given = read_flags(options.flags)
    is_linked = is_linked or (given is not None and given.is_relocatable)
    uncacheable = ""
    headers: HeaderSearch | None = None
    if not is_plain:
        from .surroundings import header_search, with_folder_of_cupy

        options = with_folder_of_cupy(text, options)
        uncacheable, headers = header_search(kind, text, link, options, given)
    if given and given.unknown and not (uncacheable or definition.depends):
        uncacheable = given.unknown
    is_alone = kind == "cuda" and not (headers or uncacheable or options.flags)  # no text can include a file
    wanted = SourceRequest(
        kind, definition.label, text, definition.entry_name, source.guess, target, options, link, definition.signature,
        ptx_target, source.origin, bool(headers), definition.module, code,
    )  # fmt: skip
    made = _components(definition, code or text, target, ptx_target, link, given, depends, asks_files=bool(headers))
    return Request(
        label=definition.label,
        target=target,
        components=made,
        libraries=(_CUDA_LIBRARIES if has_source else ()) + (LINKER if is_linked else ()),
        distributions=DISTRIBUTIONS,
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
    depends: Depends | None,
    *,
    asks_files: bool,
) -> tuple[Component, ...]:
    """Make the components: requests that compile to different code have different ones.

    docs/keys.md lists what is in the key and what is not, and why. Compilers, versions and headers are added by the
    engine.
    """
    source, options, kind = definition.source, definition.compile_options, definition.kind
    entry: dict[str, Plain] = {
        "name": definition.entry_name,
        "guess": source.guess if definition.entry_name is None else None,
    }
    if definition.module is not None:
        entry = {"names": list(definition.module.names), "code": "ltoir" if definition.is_lazy else "cubin"}
        entry |= {"guess": source.guess} if source.guess else {}  # the guess is in NVRTC's name for the source
    if source.origin.is_whole_file and kind == "cuda" and not source.origin.path.endswith(".cu"):
        entry["suffix"] = os.path.splitext(source.origin.path)[1]  # it is in NVRTC's name for the source, too
    values: dict[str, Plain] = {"kind": kind, "entry": entry, "options": _changed_options(options, given)}
    if definition.signature is not None:
        values["signature"] = " ".join(definition.signature.split())
    values["source"] = text
    is_alone = kind == "ptx" and definition.entry_name is None and definition.module is None and not link
    if is_alone and isinstance(text, str):
        from .inputs import normalised_ptx

        values["source"] = normalised_ptx(text)
    values["target"] = [target.name, ptx_target.name if ptx_target else None]
    if link:
        values["link"] = [_link_input(each) for each in link]
    environment = variables(NVRTC_VARIABLES)
    if environment:
        values["environment"] = dict(environment)
    if given and given.files:
        values["flag files"] = [sha256(content).hexdigest() for _index, _path, content in given.files]
    if options.lineinfo or options.debug or not LINE_FLAGS.isdisjoint(options.flags):
        from .surroundings import line_inputs

        of_source = text if isinstance(text, str) else ""
        values["lines"] = line_inputs(source, of_source, options, link, asks_files=asks_files)
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


def _build(request: SourceRequest, has_headers: bool, given: RawFlags | None, toolchain: Toolchain) -> Artifact:
    if given and given.files:
        from .flags import with_files

        with with_files(request.options.flags, given.files) as flags:
            request = request._replace(options=request.options._replace(flags=flags))
            return _build(request, has_headers, None, toolchain)
    folders = toolchain.include_dirs() if has_headers else ()  # finding the folders may take longer than the compile
    if request.module is None:
        from .build import build_source as build
    else:
        from .module_build import build_module as build

    try:
        return build(request, folders)
    except CompileError as error:
        if not has_headers or "open source file" not in error.log:
            raise
        from ...headers.observer import observed

        is_there = all(map(os.path.isdir, folders))
        with observed():  # what NVRTC extracts is no question of this compile
            others = toolchain.bundled_dirs()
        if not others or (is_there and others == folders):
            raise
    return build(request, others)


def _texts(text: str, origin: Origin) -> dict[str, tuple[str, Origin]]:
    shown = text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return {"source": (shown, origin)}
