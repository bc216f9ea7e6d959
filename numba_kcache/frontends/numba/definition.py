"""The definition of a Numba kernel: a function or dispatcher with its options, and the variants by argument types.

Promise     Making one imports no Numba; its options are those of `cuda.jit`, and mean the same.
Not here    The components of a request (request), packing (arguments), and Numba's own dispatcher (resolutions).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...engine.request import Request
from ...engine.session import Session
from ...errors import OptionError
from ...launch.launcher import Launcher, Relaunch
from ...launch.loader import LoadedKernel
from ...model.artifact import Artifact
from ...model.target import Choice, Target
from ..base import COMMON_OPTIONS, Definition, Variant, read_launch_options
from .dispatcher import (
    DECORATOR_OPTIONS,
    declare,
    dump_function,
    has_fixed_signatures,
    load_function,
    read_signatures,
    types_of,
)
from .request import numba_request, read_function

if TYPE_CHECKING:
    from ...launch.attributes import LaunchOptions
    from .resolutions import NumbaResolutions

Types = tuple[Any, ...]
"""Numba types of the arguments: the variant of a Numba kernel."""

_LAUNCH_OPTIONS = ("cooperative", "cluster", "max_dynamic_shared")
"""Launch attributes that Numba has no option for."""

OWN_OPTIONS = (COMMON_OPTIONS - {"launch_bounds"}) | {"signature", "keep_ptx"}


class NumbaDefinition(Definition):
    """A Python function or a dispatcher of `cuda.jit` as a kernel.

    Args:
        thing: The function or dispatcher.
        options: Of `cached_kernel`.
        declared: The dispatcher whose options hold as they are; None to declare one from the options.

    Attributes:
        declared: Function and options under the names of a dispatcher (`objects.Declared`).
        qualname: Of the function.
        depends: Values or files whose content enters the key.
        strict: Refuse rather than run uncached.
        keep_ptx: Keep the PTX beside the cubin.
    """

    kind = "numba"
    has_variants = True
    is_sent_by_name = True
    any_variant: Variant = ()

    def __init__(self, thing: Any, options: Mapping[str, Any], declared: Any = None) -> None:
        super().__init__(thing, options)
        function = self.function = getattr(thing, "py_func", thing)
        self.name, self.qualname = function.__name__, function.__qualname__
        self.label = f"{function.__module__}.{self.qualname}"
        path = function.__code__.co_filename
        self.file = os.path.abspath(path) if os.path.isfile(path) else ""
        self._given = {} if declared is not None else _decorator_options(options, function)
        self.launch_options = read_launch_options(options, "numba", _LAUNCH_OPTIONS)
        self.depends = tuple(options.get("depends") or ())
        self.strict = bool(options.get("strict", False))
        self.keep_ptx = bool(options.get("keep_ptx", True))
        if declared is not None:
            self.declared = declared

    @cached_property
    def declared(self) -> Any:
        """The kernel with all its options, as `cuda.jit` fills them in; imports Numba."""
        return declare(self.thing, self._given)

    # -- what is wanted -----------------------------------------------------------------------------

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one signature for a target, as the function is now."""
        return numba_request(self, read_function(self), target, ptx_target, variant)  # type: ignore[arg-type]

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments as Numba does; None for another number of them, which Numba refuses in its own words.

        Raises:
            ValueError, TypeError: Numba has no type for one.
        """
        if len(arguments) != self.function.__code__.co_argcount:
            return None
        try:
            return types_of(arguments)
        except (ValueError, TypeError) as error:  # Numba's own words, which name no kernel
            error.add_note(self.note)
            raise

    def variants(self, signature: Any, known: Sequence[Variant]) -> Sequence[Variant]:
        """Read `signature=`; where none is given, the definition's own, else what was resolved."""
        given = self.options.get("signature") if signature is None else signature
        assert self.declared  # it says if there is no Numba
        found = read_signatures(given) if given is not None else tuple(known)
        if not found:
            raise OptionError(
                f"cannot compile {self.name}", "it has no signature", 'write signature="void(float32[::1], int64)"'
            )
        return found

    def check_target(self, target: Target) -> None:
        """Refuse PTX alone."""
        if target.virtual:
            raise OptionError(
                f"cannot compile {self.name} for {target} alone",
                "a Numba kernel is linked for a device",
                f"name the device: {target.name.replace('compute', 'sm')!r}",
            )

    def resolutions(self, session: Callable[[], Session], choose: Callable[[Target], Choice]) -> NumbaResolutions:
        """Make the place where what it leads to is kept."""
        from .resolutions import NumbaResolutions

        return NumbaResolutions(self, session, choose)

    @property
    def note(self) -> str:
        """What is added to Numba's own errors."""
        return f"while launching the Numba kernel {self.label}"

    # -- what launches it ---------------------------------------------------------------------------

    def launch_options_of(self, artifact: Artifact) -> LaunchOptions | None:
        """What the user gave, and what Numba found in the code: cooperative grids, the carveout."""
        known, options = artifact.attributes, self.launch_options
        carveout = known.get("carveout")
        if not known.get("cooperative") and carveout is None:
            return options
        from ...launch.attributes import LaunchOptions

        options = options or LaunchOptions()
        is_cooperative = options.cooperative or bool(known.get("cooperative"))
        return options._replace(cooperative=is_cooperative, carveout=None if carveout is None else int(carveout))

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: Sequence[Any], **more: Any
    ) -> Launcher | None:
        """Make what packs arguments of exactly these types; None where Numba's own launch is needed."""
        from .arguments import make_numba_launcher

        is_numbas = more["artifact"].attributes.get("debug") or self.declared.targetoptions.get("extensions")
        if is_numbas or has_fixed_signatures(self.thing):  # which arguments are cast to
            return None
        types: Any = variant
        names = self.function.__code__.co_varnames
        labels = [f"{name}: {kind}" for name, kind in zip(names, types, strict=False)] if more["debug"] else None
        return make_numba_launcher(
            loaded, self.name, types, relaunch=relaunch, otherwise=more["otherwise"], attributes=attributes,
            labels=labels,
        )  # fmt: skip

    # -- the user's object --------------------------------------------------------------------------

    def by_value(self) -> Any:
        """Give the definition with its function by value."""
        return _ByValue(self)


class _ByValue:
    """Arrives in another process as a definition, whose file that process need not import."""

    def __init__(self, definition: NumbaDefinition) -> None:
        self._definition = definition

    def __reduce__(self) -> Any:
        return _load, (dump_function(self._definition.thing), self._definition.options)


def _load(function: bytes, options: Mapping[str, Any]) -> NumbaDefinition:
    return NumbaDefinition(load_function(function), options)


def _decorator_options(options: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """The options of `cuda.jit` among those of `cached_kernel`; link files start from the function's folder."""
    given = {name: value for name, value in options.items() if name not in OWN_OPTIONS and value is not None}
    if options.get("carveout") is not None:
        given["shared_memory_carveout"] = options["carveout"]
    unknown = sorted(given.keys() - set(DECORATOR_OPTIONS))
    if unknown:
        raise OptionError(
            f"cannot use option {unknown[0]!r} here",
            "a Numba kernel does not take it",
            f"it takes {', '.join(sorted({*DECORATOR_OPTIONS, *OWN_OPTIONS}))}",
        )
    if "opt" in given:
        given["opt"] = bool(given["opt"])
    if "link" in given:
        links = given["link"] if isinstance(given["link"], (list, tuple)) else [given["link"]]
        folder = os.path.dirname(os.path.abspath(function.__code__.co_filename))
        given["link"] = [
            os.path.join(folder, os.fspath(each)) if isinstance(each, (str, os.PathLike)) else each for each in links
        ]
    return given
