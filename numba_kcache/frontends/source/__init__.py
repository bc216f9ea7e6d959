"""CUDA C++, PTX, cubin, fatbin and LTO-IR as kernels and modules: their definition, and the front end that makes it.

Promise     An invalid option is an `OptionError` at decoration. The user's function is called at the first use, and
            only once.
Not here    Sources (source), compile options (model.options), and the components of a request (request).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...engine.request import Request
from ...errors import OptionError
from ...model import Target
from ...model.request import SOURCE_KINDS, CompileOptions, ModuleEntries
from ..base import COMMON_OPTIONS, LAUNCH_OPTIONS, Definition, Resolutions, Variant
from .request import source_request
from .source import Source, completed, define_function, define_text, returns_source

if TYPE_CHECKING:
    from ...model.artifact import Artifact
    from ...toolchain import Toolchain

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
        link, depends: As the user gave them.
        signature: C++ types of the parameters, as the user gave them; None to use those the compiler reports.
        strict: Refuse rather than run uncached.
        is_lazy: Whether it is a module whose kernels are linked one by one.
    """

    runs_as_ptx = True

    def __init__(
        self, thing: Any, source: Source, options: Mapping[str, Any], module: ModuleEntries | None = None
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
        if isinstance(thing, str) and module is None:  # inline, for the time of a warm start
            own = self.entry_name or ""
            mark = ".entry" if self.kind == "ptx" else "__global__"
            _before, _mark, declared = ("", "", "") if own else thing.partition(mark)
            if declared and mark not in declared:
                head, _parenthesis, rest = declared.partition("(")
                if head.endswith("__launch_bounds__"):
                    head = rest.partition(")")[2].partition("(")[0]
                own = head.split()[-1:][0] if head.split() else ""
            if own and own.isprintable():
                self.label = f"{source.label.rpartition(':')[0]}.{own}"
        self.strict = bool(options.get("strict"))
        self.link: tuple[Any, ...] = ()
        self.depends: tuple[Any, ...] = ()
        if "link" in options or "depends" in options:
            from .inputs import listed

            self.link, self.depends = listed(options, "link"), listed(options, "depends")
        self.name = source.guess or self.entry_name or ""
        self.is_lazy = module is not None and module.lazy
        self.compile_options = CompileOptions(base_dir=source.base_dir)
        if not OWN_OPTIONS.issuperset(options):
            from ...model.options import compile_options

            compiling = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
            self.compile_options = compile_options(source.kind, compiling, source.base_dir)
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
        if target.virtual and self.is_lazy:
            raise OptionError(
                f"cannot compile {self.name or self.label} for {target} lazily",
                "its kernels are linked one by one, which makes no PTX",
                "leave out lazy=True",
            )
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


class SourceResolutions(Resolutions):
    """The artifacts of a source; those that are built by way of PTX are linked from stored PTX if there is any."""

    definition: SourceDefinition

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of the source for a target."""
        definition = self.definition
        request = definition.request(target, ptx_target)
        is_split = request.headers or definition.link or definition.compile_options.lto or definition.is_lazy
        if ptx_target is None or is_split:
            return request
        return request._replace(build=functools.partial(self._build_from_ptx, request, ptx_target))

    def _build_from_ptx(self, request: Request, ptx_target: Target, toolchain: Toolchain) -> Artifact:
        """Link the PTX that `compile` has stored; if there is none, compile."""
        stored = None
        if not request.uncacheable:
            stored = self.session().find(self.definition.request(ptx_target, None))
        if stored is None or not stored.artifact.ptx:
            return request.build(toolchain)
        from ...model.request import SourceRequest
        from .build import link_stored

        definition = self.definition
        wanted = SourceRequest(
            definition.kind, definition.label, "", None, None, request.target, definition.compile_options
        )
        return link_stored(wanted, stored.artifact)


SourceDefinition.make_resolutions = SourceResolutions


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
            from .inputs import define_path

            return define_path(thing, kind, depth + 1)
    if not callable(thing) or not hasattr(thing, "__code__"):
        return None
    is_source = kind in SOURCE_KINDS if kind is not None else returns_source(thing)
    return define_function(thing, kind) if is_source else None


FRONT_END = SourceFrontEnd()
