"""CUDA C++, PTX, cubin, fatbin and LTO-IR as kernels and modules: their sources, definition and requests.

Promise     A function that returns source is recognised by its annotation and code alone and called once, at first use.
            An invalid option is an `OptionError` at decoration. Relative paths start from the folder of the file that
            defines the kernel. A request's components contain everything that can change its code; an input that cannot
            be captured makes the request uncacheable, with the reason. Nothing is compiled here.
Not here    Kernels in Python (frontends.numba), compile options (model.options), and what a
            source includes (headers).
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ...engine import Request
from ...errors import CompileError, KCacheError, OptionError, why_of
from ...keys import Component, Plain, components
from ...model import (
    FILE_WORDS,
    IN_USER_CODE,
    LINE_FLAGS,
    SOURCE_KINDS,
    Artifact,
    CompileOptions,
    ModuleKernels,
    NamedTuple,
    Origin,
    SourceInput,
    Target,
)
from ...settings import NVRTC_VARIABLES, path_from, variables, working_directory
from .. import COMMON_OPTIONS, LAUNCH_OPTIONS, Definition, Variant, listed_option

if TYPE_CHECKING:
    from pathlib import Path

    from ...headers.roots import HeaderSearch
    from ...toolchain import Toolchain
    from .inputs import Inputs

_CUDA_LIBRARIES = ("nvrtc", "nvrtc-builtins")
LINKER = ("nvJitLink",)
DISTRIBUTIONS = ("numba", "numba-cuda")


def source_request(
    definition: SourceDefinition,
    text: str | bytes,
    target: Target,
    ptx_target: Target | None,
    inputs: Inputs | None = None,
) -> Request:
    """Make the request of a source kernel or module for one target.

    Args:
        definition: The kernel.
        text: Its source; bytes for compiled code.
        target: The target to build for.
        ptx_target: The virtual target to compile to first, if the user gave one.
        inputs: Its link inputs and dependencies; None to read them.

    Raises:
        OptionError: A link input or dependency cannot be read.
    """
    source, options, kind = definition.source, definition.compile_options, definition.kind
    code, text = (text, "") if isinstance(text, bytes) else (b"", text)
    if inputs is None and (definition.link or definition.depends):
        from .inputs import Inputs

        inputs = Inputs(definition.link, definition.depends, options.base_dir)
    link = inputs.link if inputs else ()
    has_source = kind == "cuda" or definition.signature is not None or any(each.kind == "cu" for each in link)
    is_made = kind not in ("cuda", "cubin")
    is_linked = is_made or options.lto or link or ptx_target or target.virtual or definition.is_lazy
    is_plain = not (link or options.flags or options.defines)
    for word, letter in FILE_WORDS.items():  # no generator, for speed: each source is searched for all words
        is_plain = is_plain and not (letter in text and word in text)
    is_plain = is_plain and not ("##" in text or "%:%:" in text)
    given = None
    if options.flags:
        from ...model.flags import read_flags

        given = read_flags(options.flags)
        is_linked = is_linked or given.is_relocatable
    uncacheable = ""
    headers: HeaderSearch | None = None
    if not is_plain:
        from .surroundings import header_search, with_folder_of_cupy

        options = with_folder_of_cupy(text, options)
        uncacheable, headers = header_search(kind, text, link, options, given)
    if given and given.unknown and not (uncacheable or definition.depends):
        uncacheable = given.unknown
    is_alone = kind == "cuda" and not (headers or uncacheable or options.flags)  # no text can include a file
    wanted = SourceInput(
        kind, definition.label, text, definition.entry_name, source.guess, target, options, link, definition.signature,
        ptx_target, source.origin, bool(headers), definition.module, code,
    )  # fmt: skip
    return Request(
        label=definition.label,
        target=target,
        components=_components(wanted, inputs),
        libraries=(_CUDA_LIBRARIES if has_source else ()) + (LINKER if is_linked else ()),
        distributions=DISTRIBUTIONS,
        build=functools.partial(_build, wanted, has_source and not is_alone),
        uncacheable=uncacheable,
        strict=definition.strict,
        headers=headers,
        texts=dict if code else functools.partial(_texts, text, source.origin),
        file=definition.file,
        name=definition.own_name,
        changed=inputs.files.change if inputs else str,
        prepare=functools.partial(_builder, wanted),
        make=functools.partial(source_request, definition, code or text, inputs=inputs),
    )


def _builder(request: SourceInput) -> Callable[[SourceInput], Artifact]:
    """Import the function that builds a request."""
    if request.module is None:
        from .build import build_source as build
    else:
        from .module_build import build_module as build
    return build


def _components(request: SourceInput, inputs: Inputs | None) -> tuple[Component, ...]:
    """Make the components: requests that compile to different code have different ones.

    docs/keys.md lists what is in the key and what is not, and why. Compilers, versions and headers are added by the
    engine.
    """
    options, kind, origin, ptx_target = request.options, request.kind, request.origin, request.ptx_target
    entry: dict[str, Plain] = {"name": request.name, "guess": request.guess if request.name is None else None}
    if request.module is not None:
        entry = {"names": list(request.module.names), "code": "ltoir" if request.module.lazy else "cubin"}
        entry |= {"guess": request.guess} if request.guess else {}  # the guess is in NVRTC's name for the source
    if origin.is_whole_file and kind == "cuda" and not origin.path.endswith(".cu"):
        entry["suffix"] = os.path.splitext(origin.path)[1]  # it is in NVRTC's name for the source, too
    values: dict[str, Plain] = {"kind": kind, "entry": entry, "options": _changed_options(options)}
    if request.signature is not None:
        values["signature"] = " ".join(request.signature.split())
    values["source"] = request.code or request.source
    values["target"] = [request.target.name, ptx_target.name if ptx_target else None]
    if inputs and inputs.link:
        values["link"] = inputs.linked
    environment = variables(NVRTC_VARIABLES)
    if environment:
        values["environment"] = dict(environment)
    if options.lineinfo or options.debug or not LINE_FLAGS.isdisjoint(options.flags):
        from .surroundings import line_inputs

        values["lines"] = line_inputs(request)
    if inputs and inputs.depends:
        values["depends"] = inputs.depends
    return components(values)


def _changed_options(options: CompileOptions) -> dict[str, Plain]:
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
        chosen["flags"] = [*options.flags]
    return chosen


_DEFAULT = CompileOptions()
_KEYED_OTHERWISE = frozenset(("defines", "flags", "include_dirs", "base_dir"))
"""Options whose form in the key differs from their value; folders count by the headers that are read from them."""


def _build(request: SourceInput, has_headers: bool, toolchain: Toolchain) -> Artifact:
    kind, found = request.kind, "ptx" if is_ptx(request.source) else _MAGICS.get(request.code[:4])
    if kind not in ("cuda", "cubin", found):
        why = f"it has neither PTX's .version directive nor the first bytes of a {kind}"
        raise OptionError(f"cannot use {request.label} as {kind}", why, "correct its kind")
    folders = toolchain.include_dirs() if has_headers else ()  # finding the folders may take longer than the compile
    build = _builder(request)
    try:
        return build(request._replace(toolkit_dirs=folders))
    except CompileError as error:
        if not has_headers or "open source file" not in error.log:
            raise
        from ...headers.observer import observed

        is_there = all(map(os.path.isdir, folders))
        with observed():  # what NVRTC extracts is no question of this compile
            others = toolchain.bundled_dirs()
        if not others or (is_there and others == folders):
            raise
    return build(request._replace(toolkit_dirs=others))


def _texts(text: str, origin: Origin) -> dict[str, tuple[str, Origin]]:
    shown = text if text.isascii() else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return {"source": (shown, origin)}


# -- request -----------------------------------------------------------------------------------------------------------


_PTX = r"(?m)^\s*\.version\s+\d+\.\d+"
PATH_KINDS = {".cu": "cuda", ".ptx": "ptx", ".cubin": "cubin", ".fatbin": "fatbin", ".ltoir": "ltoir"}
_MAGICS = {b"\x7fELF": "cubin", b"\x50\xed\x55\xba": "fatbin", b"\xed\x43\x4e\x7f": "ltoir"}
"""The first bytes of compiled code. An object file is an ELF too, and is refused when it is read as a cubin."""

TEXTS = ("cuda", "ptx")

HAS_ARGS, HAS_KEYWORDS = 0x04, 0x08
"""`co_flags` of a function with *args or **kwargs."""


class Source(NamedTuple):
    """A source, which is read when it is first needed.

    Args:
        kind: One of `SOURCE_KINDS` of model.
        label: Its name in messages, `"package.module.saxpy"`.
        qualname: The function that returns it, with the values of a template; "" for text and files.
        guess: The probable name of its entry; None for no guess.
        origin: Its place in the user's files.
        base_dir: The folder that relative paths start from.
        text: Returns the source, or the bytes of compiled code; exceptions of the user's function pass through.
    """

    kind: str
    label: str
    qualname: str
    guess: str | None
    origin: Origin
    base_dir: str
    text: Callable[[], str | bytes]


def returns_source(function: Callable[..., Any]) -> bool:
    """Check whether a Python function returns source; otherwise it is a Numba kernel.

    Raises:
        OptionError: It has parameters and returns a string, but is not annotated `-> str`.
    """
    annotation = getattr(function, "__annotations__", {}).get("return")
    if annotation is str or annotation in ("str", "'str'"):
        return True
    code = function.__code__
    returned = _returned(code)
    if code.co_argcount + code.co_kwonlyargcount == 0:
        has_source = any(isinstance(each, str) and "__global__" in each for each in code.co_consts)
        if returned == {None} and has_source:
            what, why = f"cannot make a kernel of {function.__qualname__}", "it has CUDA C++ in it and returns nothing"
            raise OptionError(what, why, "did you forget `return` before the source?")
        return bool(returned - {None})
    if annotation is None and str in returned:
        raise OptionError(
            f"cannot tell what {function.__qualname__} is",
            "it has parameters and returns a string",
            "annotate it `-> str` if it returns CUDA C++",
        )
    return False


def define_function(function: Callable[..., Any], kind: str | None, values: Mapping[str, Any] = {}) -> Source:
    """Define the source that a function returns, for these values of its parameters and defaults for the others.

    Raises:
        OptionError: It has parameters without a default, or the kind is one of compiled code.
    """
    code = function.__code__
    path = os.path.abspath(code.co_filename) if os.path.isfile(code.co_filename) else ""
    qualname = function.__qualname__
    label = f"{function.__module__}.{qualname}"
    if kind and kind not in TEXTS:
        raise OptionError(f"cannot use kind={kind!r} for {label}", "a function returns text", "pass bytes or a Path")
    if code.co_argcount or code.co_kwonlyargcount or code.co_flags & (HAS_ARGS | HAS_KEYWORDS):
        template_defaults(function)
    if values:
        chosen = f"({', '.join(f'{name}={value!r}' for name, value in values.items())})"
        label, qualname = label + chosen, qualname + chosen

    def text() -> str:
        me = get_ident()  # threads in IN_USER_CODE run the user's code: other threads do not wait long for them
        depth = IN_USER_CODE[me] = IN_USER_CODE.get(me, 0) + 1
        try:
            returned = function(**values)
        except KCacheError:
            raise
        except Exception as error:
            error.add_note(f"while numba_kcache called {label} for its source")
            raise
        finally:
            IN_USER_CODE[me] = depth - 1
            if depth == 1:
                IN_USER_CODE.pop(me, None)  # a signal handler that ran before this line may have removed it
        if type(returned) is str and returned.isascii() and "\0" not in returned:
            return returned
        from .inputs import checked_source

        return checked_source(returned, label)

    return Source(
        kind or "cuda",
        label,
        qualname,
        function.__name__,
        Origin(path or _cell(code.co_filename), code.co_firstlineno, is_cell=not path),
        os.path.dirname(path) if path else working_directory(),
        text,
    )


def _cell(name: str) -> str:
    """`name` if tracebacks can show its source although it is no file (a notebook's cell); "" otherwise."""
    linecache = sys.modules.get("linecache")
    return name if linecache is not None and name in linecache.cache else ""


def define_text(text: str | bytes, kind: str | None, depth: int) -> Source:
    """Define a source given as text, by the caller `depth` frames up.

    Raises:
        OptionError: It looks like a path, or is not text.
    """
    frame = sys._getframe(depth)
    path, line = frame.f_code.co_filename, frame.f_lineno
    path = os.path.abspath(path) if os.path.isfile(path) else ""
    label = f"{frame.f_globals.get('__name__', '?')}:{line}"
    base_dir = os.path.dirname(path) if path else working_directory()
    if isinstance(text, bytes):
        kind = kind or _MAGICS.get(text[:4])
        if kind and kind not in TEXTS:
            code = bytes.__bytes__(text)
            return Source(kind, label, "", None, Origin(path, 1), base_dir, lambda: code)
    if type(text) is not str or "\0" in text or not text.isascii():
        from .inputs import decode_source

        text = decode_source(text, label)
    if kind and kind not in TEXTS:
        raise OptionError(f"cannot use a str as {kind}", "that is bytes", "pass bytes or pathlib.Path(...)")
    stripped = text.strip()
    if "\n" not in stripped and stripped.endswith(tuple(PATH_KINDS)):
        raise OptionError(f"cannot use {stripped!r} as a source", "it is a path", "pass pathlib.Path(...)")
    kind = kind or ("ptx" if is_ptx(text) else "cuda")
    return Source(kind, label, "", None, Origin(path, 1), base_dir, lambda: text)


def define_path(path: Path, kind: str | None, depth: int) -> Source:
    """Define a source in its own file; a relative path refers to the folder of the caller, `depth` frames up.

    Raises:
        OptionError: The file does not exist, or its suffix is not that of a source.
    """
    known = kind or PATH_KINDS.get(path.suffix)
    if known is None:
        raise OptionError(
            f"cannot use {path.name!r} as a source",
            f"{path.suffix or 'no suffix'} is not one of {', '.join(PATH_KINDS)}",
            'rename it, or say what it is: kind="cuda"',
        )
    caller = sys._getframe(depth).f_code.co_filename
    base = os.path.dirname(os.path.abspath(caller)) if os.path.isfile(caller) else working_directory()
    full = path_from(base, path)
    if not os.path.isfile(full):
        raise OptionError(
            f"cannot use {str(path)!r} as a source",
            f"there is no file {full}",
            f"relative paths start where the kernel is defined: {base}",
        )

    def text() -> str | bytes:
        try:
            with open(full, "rb") as file:
                content = file.read()
            if known not in TEXTS:
                return content
            from .inputs import decode_source

            return decode_source(content, path.name)
        except OSError as error:
            hint = "put the file back, or correct the path"
            raise OptionError(f"cannot use {full!r} as a source", why_of(error), hint) from None

    return Source(known, path.name, "", path.stem, Origin(full, 1, is_whole_file=True), os.path.dirname(full), text)


def is_ptx(text: str) -> bool:
    return ".version" in text and re.search(_PTX, text) is not None  # compiling the pattern takes 0.1 ms


def _returned(code: Any) -> set[Any]:
    """Kinds of value that a function's return statements return: None, str for text, `...` for others."""
    import dis

    found: set[Any] = set()
    previous = None
    for step in dis.get_instructions(code):
        if step.opname in ("RETURN_VALUE", "RETURN_CONST"):
            source = step if step.opname == "RETURN_CONST" else previous
            if source is not None and source.opname in ("LOAD_CONST", "RETURN_CONST"):
                value = source.argval
                found.add(None if value is None else str if isinstance(value, str) else ...)
            else:
                found.add(str if source is not None and source.opname == "BUILD_STRING" else ...)
        previous = step
    return found


def template_defaults(function: Callable[..., Any]) -> dict[str, Any]:
    """The parameters of a function that returns source, each with its default.

    Raises:
        OptionError: A parameter has no default, or cannot be given by name.
    """
    code = function.__code__
    count = code.co_argcount
    defaults = dict(zip(code.co_varnames[:count][::-1], (function.__defaults__ or ())[::-1], strict=False))
    defaults |= function.__kwdefaults__ or {}
    names = code.co_varnames[: count + code.co_kwonlyargcount]
    for name in names:
        if name not in defaults:
            hint = f"give {name} a default; instantiate() replaces it with other values"
            if name in ("self", "cls"):
                hint = f"leave {name} out, as a class has one kernel; where source differs, use cached_kernel(text)"
            raise OptionError(
                f"cannot call {function.__qualname__} for its source", f"its parameter {name} has no default", hint
            )
    if code.co_posonlyargcount or code.co_flags & (HAS_ARGS | HAS_KEYWORDS):
        raise OptionError(
            f"cannot call {function.__qualname__} for its source",
            "values are given to a template by their names alone",
            "give it plain parameters, each with a default",
        )
    return {name: defaults[name] for name in names}


def completed(function: Callable[..., Any], name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Add to the values given for a template its defaults for the other parameters; `name` is the kernel's.

    Raises:
        OptionError: A value is for no parameter, or a parameter has no default.
    """
    defaults = template_defaults(function)
    unknown = [each for each in values if each not in defaults]
    if unknown:
        raise OptionError(
            f"cannot instantiate {name} with {unknown[0]}={values[unknown[0]]!r}",
            f"its parameters are {', '.join(defaults) or 'none'}",
            "use their names",
        )
    return {**defaults, **values}


# -- source ------------------------------------------------------------------------------------------------------------


OWN_OPTIONS = COMMON_OPTIONS | {"name", "link", "signature"}
"""Options other than compile options."""

_TYPES = {"name": str, "signature": str, "strict": bool, "strided": bool}


class SourceDefinition(Definition):
    """A source kernel, or a source as a module.

    Args:
        thing: The object that the user wraps.
        source: The source found in it.
        options: Options of `cached_kernel`.
        module: The entries of a module; None for one kernel.

    Attributes:
        compile_options: The compile options.
        entry_name: The entry that the user requested (`name=`); None to find it.
        own_name: Its name in its file: the function's, or for a text that of its first kernel; "" if unknown.
        link, depends: As the user gave them.
        signature: C++ types of the parameters, as the user gave them; None to use those the compiler reports.
        strict: Refuse rather than run uncached.
        is_lazy: Whether it is a module whose kernels are linked one by one.
    """

    def __init__(
        self, thing: Any, source: Source, options: Mapping[str, Any], module: ModuleKernels | None = None
    ) -> None:
        self.thing, self.options, self.source, self.module = thing, options, source, module
        self.kind, self.label = source.kind, source.label
        self.file = "" if source.origin.is_cell else source.origin.path
        for name, kind in _TYPES.items():
            value = options.get(name)
            if value is not None and not isinstance(value, kind):
                why = f"it is a {type(value).__name__}"
                raise OptionError(f"cannot use {name}={value!r}", why, f"give a {kind.__name__}")
            if isinstance(value, str) and not value.isprintable():
                from ...model.text import check_text

                check_text(value, f"{name}={value!r}")
        self.entry_name, self.signature = options.get("name"), options.get("signature")
        self.entry_name = self.entry_name and str.__str__(self.entry_name)  # an exact str, as keys take it
        self.own_name = source.qualname
        if isinstance(thing, str) and not (source.qualname or source.origin.is_whole_file):
            # inline, for the time of a warm start; the unpickled text of a function or file keeps the name of these
            own = self.entry_name or ""
            mark = ".entry" if self.kind == "ptx" else "__global__"
            _before, _mark, declared = ("", "", "") if own else thing.partition(mark)
            if declared and (module is not None or mark not in declared):
                head, _parenthesis, rest = declared.partition("(")
                if head.endswith("__launch_bounds__"):
                    head = rest.partition(")")[2].partition("(")[0]
                own = head.split()[-1:][0] if head.split() else ""
            if own and own.isprintable():
                self.own_name = f"<text>.{own}"
                if module is None:
                    self.label = f"{source.label.rpartition(':')[0]}.{own}"
        self.strict = bool(options.get("strict"))
        self.link: Sequence[Any] = ()
        self.depends: Sequence[Any] = ()
        if "link" in options or "depends" in options:
            self.link, depends = listed_option(options, "link"), listed_option(options, "depends")
            self.depends = (*depends, *depends.values()) if isinstance(depends, Mapping) else depends
        self.name = source.guess or self.entry_name or ""
        self.is_lazy = module is not None and module.lazy
        self.compile_options = CompileOptions(base_dir=source.base_dir)
        if not OWN_OPTIONS.issuperset(options):
            from ...model.options import compile_options

            compiling = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
            chosen = compile_options(source.kind, compiling, source.base_dir)
            folders = tuple(path_from("", each) for each in chosen.include_dirs)
            self.compile_options = chosen._replace(include_dirs=folders)
        self.runs_as_ptx = self.kind in TEXTS and not (self.is_lazy or self.link or self.compile_options.lto)
        if not LAUNCH_OPTIONS.isdisjoint(options) and any(options.get(name) is not None for name in LAUNCH_OPTIONS):
            from ...launch.attributes import read_launch_options

            self.launch_options = read_launch_options(options, source.kind)
        self._text: str | bytes | None = None

    def text(self) -> str | bytes:
        """The source; the first call runs the user's function, if it is one that returns source."""
        text = self._text
        if text is None:
            text = self.source.text()
            self._text = text = text if self._text is None else self._text  # a signal handler may have set it meanwhile
        return text

    def request(self, target: Target, ptx_target: Target | None, variant: Variant = None) -> Request:
        """Make the request for a target."""
        return source_request(self, self.text(), target, ptx_target)

    def instantiate(self, values: Mapping[str, Any]) -> SourceDefinition:
        """Define the template's instance for these values."""
        return SourceDefinition(self.thing, define_function(self.thing, self.kind, values), self.options)

    def template_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add to the values given for a template its defaults for the other parameters."""
        if not callable(self.thing):
            return super().template_values(values)

        return completed(self.thing, self.name, values)

    def __reduce__(self) -> Any:
        """Pickle by content: the text, its origin, and the options."""
        text = self.text()
        give = functools.partial(bytes, text) if isinstance(text, bytes) else functools.partial(str, text)
        return type(self), (text, self.source._replace(text=give), self.options, self.module)


class SourceFrontEnd:
    """The front end for functions that return source, for text and bytes of code, and for paths."""

    kinds = SOURCE_KINDS

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> SourceDefinition | None:
        """Define a kernel; any function is a source if `kind` names a kind of source."""
        source = source_of(thing, options.get("kind"), depth + 1)
        return source and SourceDefinition(thing, source, options)


def source_of(thing: Any, kind: str | None, depth: int) -> Source | None:
    """The source in a wrapped object; None for an object of another kind."""
    kind = str.__str__(kind) if isinstance(kind, str) else kind  # it may be a member of an enumeration
    if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], (str, bytes)):
        thing, kind = thing[0], "ptx"  # the result of `numba.cuda.compile_ptx`: (PTX, return type)
    if isinstance(thing, (str, bytes)):
        return define_text(thing, kind, depth + 1)
    if hasattr(thing, "__fspath__"):
        from pathlib import Path

        if isinstance(thing, Path):
            return define_path(thing, kind, depth + 1)
    if not callable(thing) or not hasattr(thing, "__code__"):
        return None
    is_source = kind in SOURCE_KINDS if kind is not None else returns_source(thing)
    return define_function(thing, kind) if is_source else None


FRONT_END = SourceFrontEnd()
