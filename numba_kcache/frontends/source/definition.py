"""What a user wraps, and all that is said of it, as the plan of a kernel.

Promise     What the thing is, is told from the thing and `kind` alone; an option of a kind that cannot be used is an
            `OptionError` at decoration. Nothing of the user's is called.
Not here    What a source says of itself (inputs.source), how to compile (model.options), and the job that a plan and a
            target make (jobs).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ...errors import OptionError
from ...keys.components import Component
from ...model.options import SOURCE_KINDS, CompileOptions, compile_options
from ...model.request import ModuleEntries
from ..numba.objects import is_dispatcher
from .components import fixed_components
from .source import (
    SourceDefinition,
    define_function,
    define_path,
    define_text,
    returns_source,
)

if TYPE_CHECKING:
    from ...launch.attributes import LaunchOptions

_KINDS = (*SOURCE_KINDS, "numba")

_LAUNCH_OPTIONS = frozenset(("cooperative", "cluster", "max_dynamic_shared", "carveout", "launch_bounds"))
OWN_OPTIONS = _LAUNCH_OPTIONS | {
    "name", "arch", "kind", "link", "signature", "depends", "strict", "strided", "cache",
}  # fmt: skip
"""Options that are no compile options."""


def define(thing: Any, kind: str | None, *, depth: int) -> tuple[Any, SourceDefinition | None]:
    """What a user wraps, and the source it stands for; None for a Numba kernel. The user is `depth` frames up.

    Raises:
        OptionError: It is nothing that can be wrapped.
    """
    if kind is not None and kind not in _KINDS:
        raise OptionError(f"cannot use kind={kind!r}", "there is no such kind", f"choose from {', '.join(_KINDS)}")
    if isinstance(thing, tuple) and len(thing) == 2 and isinstance(thing[0], (str, bytes)):
        thing, kind = thing[0], "ptx"
    if isinstance(thing, (str, bytes)):
        return thing, define_text(thing, kind, depth)
    if isinstance(thing, Path):
        return thing, define_path(thing, kind, depth)
    if is_dispatcher(thing) or kind == "numba":
        return thing, None
    if callable(thing) and hasattr(thing, "__code__"):
        is_source = kind is not None or returns_source(thing)
        return thing, define_function(thing, kind) if is_source else None
    raise OptionError(
        f"cannot make a kernel of {thing!r}",
        f"a {type(thing).__name__} is not source",
        "wrap a function that returns CUDA C++, a str or a pathlib.Path",
    )


class SourcePlan(NamedTuple):
    """All that a user said of a source kernel.

    Args:
        definition: Where the source comes from.
        name: The entry that is wanted; None to find it.
        options: How to compile.
        link: Further link inputs, as the user gave them.
        signature: C++ types of the parameters; None for the compiler's word alone.
        depends: Values or files whose content enters the key.
        strict: Refuse rather than run uncached.
        fixed: The components that are known already (`keys.requests.fixed_components`).
        module: Which entries, where all of a module are wanted; None for one kernel.
    """

    definition: SourceDefinition
    name: str | None
    options: CompileOptions
    link: Sequence[Any]
    signature: str | None
    depends: Sequence[Any]
    strict: bool
    fixed: tuple[Component, ...]
    module: ModuleEntries | None = None


def plan_of(definition: SourceDefinition, options: dict[str, Any], module: ModuleEntries | None = None) -> SourcePlan:
    """The plan of a source and options as `cached_kernel` takes them.

    Raises:
        OptionError: An option cannot be used.
    """
    compiling = {name: value for name, value in options.items() if name not in OWN_OPTIONS}
    return source_plan(
        definition,
        checked_option(options, "name", str),
        compile_options(definition.kind, compiling, definition.base_dir),
        link=_listed(options, "link"),
        signature=checked_option(options, "signature", str),
        depends=_listed(options, "depends"),
        strict=bool(checked_option(options, "strict", bool)),
        module=module,
    )


def source_plan(
    definition: SourceDefinition,
    name: str | None,
    options: CompileOptions,
    *,
    link: Sequence[Any] = (),
    signature: str | None = None,
    depends: Sequence[Any] = (),
    strict: bool = False,
    module: ModuleEntries | None = None,
) -> SourcePlan:
    """The plan of a source kernel or module, with all that can be computed before it is used."""
    fixed = fixed_components(definition.kind, name, definition.guess, options, signature, module)
    return SourcePlan(definition, name, options, link, signature, depends, strict, fixed, module)


def checked_option(options: dict[str, Any], name: str, kind: type) -> Any:
    value = options.get(name)
    if value is not None and not isinstance(value, kind):
        raise OptionError(f"cannot use {name}={value!r}", f"it is a {type(value).__name__}", f"give a {kind.__name__}")
    return value


def _listed(options: dict[str, Any], name: str) -> tuple[Any, ...]:
    value = options.get(name)
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not hasattr(value, "__iter__"):
        raise OptionError(f"cannot use {name}={value!r}", "it is not a list", f"write {name}=[...]")
    return tuple(value)


def cache_of(options: dict[str, Any]) -> Any:
    value = options.get("cache")
    if value is not None and not hasattr(type(value), "resolver"):  # KernelCache stands above this module
        raise OptionError(f"cannot use cache={value!r}", f"it is a {type(value).__name__}", "give a KernelCache")
    return value


def launch_options(options: dict[str, Any], kind: str) -> LaunchOptions | None:
    """The launch attributes that the user gave; None for a kernel of plain launches, which most are."""
    if not any(options.get(name) is not None for name in _LAUNCH_OPTIONS):
        return None
    from ...launch.attributes import read_launch_options

    return read_launch_options(options, kind)
