"""The definition of a Numba kernel: a function or dispatcher with its options; and the artifacts that it leads to.

Promise     Making one imports no Numba; its options are those of `cuda.jit`, and mean the same. A signature is
            resolved once for each target in a process, under the fingerprint that the function has then. What cannot be
            cached is compiled by Numba itself, with one warning.
Not here    The components of a request (request), packing (arguments), and what Numba's own dispatcher does: launches
            that no launcher takes, and attributes (dispatcher).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.request import Request, Resolution, Wanted
from ...engine.session import Session
from ...errors import OptionError, ToolchainMissingError, UncacheableError
from ...launch import LaunchShape
from ...launch.launcher import Launcher, Relaunch
from ...launch.loader import LoadedKernel
from ...model import Choice, Target
from ...model.artifact import Artifact
from ..base import COMMON_OPTIONS, Definition, Resolutions, RunsUncached, Variant, read_launch_options
from .arguments import make_numba_launcher, types_of
from .dialect import Declared
from .request import numba_request, read_function

if TYPE_CHECKING:
    from ...launch.attributes import LaunchOptions

_LAUNCH_OPTIONS = ("cooperative", "cluster", "max_dynamic_shared")
"""Launch attributes that Numba has no option for."""

DECORATOR_OPTIONS = (
    "debug", "opt", "lineinfo", "fastmath", "inline", "forceinline", "link", "lto", "max_registers", "launch_bounds",
    "shared_memory_carveout", "extensions",
)  # fmt: skip
"""Options of `cuda.jit` for a kernel."""

OWN_OPTIONS = (COMMON_OPTIONS - {"launch_bounds"}) | {"signature", "keep_ptx"}


class NumbaDefinition(Definition):
    """A Python function or a dispatcher of `cuda.jit` as a kernel.

    Args:
        thing: The function or dispatcher.
        options: Of `cached_kernel`.

    Attributes:
        qualname: Of the function.
        depends: Values or files whose content enters the key.
        strict: Refuse rather than run uncached.
        keep_ptx: Keep the PTX beside the cubin.
    """

    kind = "numba"
    has_variants = True
    is_sent_by_name = True
    any_variant: Variant = ()

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        self.thing, self.options = thing, options
        function = self.function = getattr(thing, "py_func", thing)
        self.name, self.qualname = function.__name__, function.__qualname__
        self.label = f"{function.__module__}.{self.qualname}"
        path = function.__code__.co_filename
        self.file = os.path.abspath(path) if os.path.isfile(path) else ""
        self._given = _decorator_options(options, function)
        if any(options.get(name) is not None for name in _LAUNCH_OPTIONS):
            self.launch_options = read_launch_options(options, "numba")
        self.depends = tuple(options.get("depends") or ())
        self.strict = bool(options.get("strict", False))
        self.keep_ptx = bool(options.get("keep_ptx", True))
        self._declared: Declared | None = None
        self._simulated: Any = None

    @property
    def declared(self) -> Declared:
        """The kernel with all its options, as `cuda.jit` fills them in; imports Numba and builds no target context.

        Raises:
            OptionError: The function is for devices alone, or an option cannot be meant.
            ToolchainMissingError: Numba's CUDA target is not installed.
        """
        if self._declared is None:
            self._declared = _declare(self.thing, self._given)
        return self._declared

    @property
    def simulated(self) -> Any:
        """The kernel as Numba's simulator runs it."""
        if self._simulated is None:
            from .simulator import simulated

            self._simulated = simulated(self.thing, self._given)
        return self._simulated

    # -- what is wanted -----------------------------------------------------------------------------

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one signature for a target, as the function is now."""
        return numba_request(self, read_function(self), variant, target, ptx_target)  # type: ignore[arg-type]

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Type the arguments as Numba does; None for another number of them, which Numba refuses in its own words.

        Raises:
            ValueError, TypeError: Numba has no type for one.
            ToolchainMissingError: numba-cuda is not installed.
        """
        if len(arguments) != self.function.__code__.co_argcount:
            return None
        try:
            return types_of(arguments)
        except ImportError as problem:
            if is_simulated():
                return None  # the simulator types nothing, and takes it as it is
            raise _without_numba(problem) from problem
        except (ValueError, TypeError) as error:  # Numba's own words, which name no kernel
            error.add_note(self.note)
            raise

    def variants(self, signature: Any, known: Sequence[Variant]) -> Sequence[Variant]:
        """Read `signature=`; where none is given, the definition's own, else what was resolved."""
        given = self.options.get("signature") if signature is None else signature
        assert self.declared  # an error if there is no Numba
        from .dispatcher import read_signatures

        found = read_signatures(given) if given is not None else known
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
        is_numbas = more["artifact"].attributes.get("debug") or self.declared.targetoptions.get("extensions")
        if is_numbas or not getattr(self.thing, "_can_compile", True):  # arguments are cast to fixed signatures
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
        from numba.cuda.serialize import dumps

        return _load, (bytes(dumps(self._definition.thing)), self._definition.options)


def _load(function: bytes, options: Mapping[str, Any]) -> NumbaDefinition:
    from numba.cuda.serialize import loads  # what a process dumped that this one works for

    return NumbaDefinition(loads(function), options)


class CompilerLock:
    """Numba's own over compilation. It is held for what Numba does, and never while a subscriber runs."""

    def __enter__(self) -> None:
        from numba.cuda.core.compiler_lock import global_compiler_lock

        global_compiler_lock.acquire()

    def __exit__(self, *_error: object) -> None:
        from numba.cuda.core.compiler_lock import global_compiler_lock

        global_compiler_lock.release()


class NumbaResolutions(Resolutions):
    """The artifacts of one Numba kernel.

    Attributes:
        dispatcher: Numba's, which launches what no launcher takes; None while there is none.
    """

    definition: NumbaDefinition

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.dispatcher: Any = None
        self._uncached: dict[Variant, str] = {}

    def wanted(self, choice: Choice, variant: Variant) -> Wanted:
        """Make the requests of a choice from one reading of the function."""
        read, types = read_function(self.definition), variant
        make = functools.partial(numba_request, self.definition, read, types)  # type: ignore[arg-type]
        return Wanted(make(choice.target, choice.ptx_target), choice, make)

    def _resolve_anew(self, session: Session, choice: Choice, variant: Variant) -> Resolution:
        if variant in self._uncached:
            raise RunsUncached(f"cannot cache {self.definition.label}", self._uncached[variant])
        with CompilerLock():
            wanted = self.wanted(choice, variant)
        request, is_counted = wanted.request, False
        if not request.uncacheable:
            try:
                return session.resolve(wanted)
            except UncacheableError as error:
                request, is_counted = request._replace(uncacheable=error.why), True
        session.refuse(request, is_counted=is_counted)
        self._uncached[variant] = request.uncacheable
        raise RunsUncached(f"cannot cache {self.definition.label}", request.uncacheable)

    def flush(self) -> None:
        """Read the function anew at the next launch."""
        self._resolved, self._uncached = {}, {}

    def forget(self) -> None:
        """Resolve anew at the next launch. Running work is untouched."""
        super().forget()
        self.flush()
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher._reset_overloads()

    def launch_otherwise(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through Numba's own dispatcher."""
        if is_simulated():
            from .simulator import simulate

            simulate(self.definition.simulated, shape, arguments)
            return
        from .dispatcher import launch

        launch(self, shape, stream, arguments)

    def block_size_otherwise(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """Ask Numba's own code for the block size."""
        if is_simulated():
            return 1  # as the simulator's own forall
        from .dispatcher import block_size

        return block_size(self, arguments, shared_bytes)

    def attribute(self, name: str) -> Any:
        """Read what Numba's dispatcher has under this name."""
        from .dispatcher import NUMBAS_NAMES, attribute

        if is_simulated() and name in NUMBAS_NAMES:
            return getattr(self.definition.simulated, name)
        return attribute(self, name) if name in NUMBAS_NAMES else super().attribute(name)


NumbaDefinition.make_resolutions = NumbaResolutions


def _declare(function: Any, given: Mapping[str, Any]) -> Declared:
    try:
        from numba.cuda.core import config
        from numba.cuda.decorators import _validate_shared_memory_carveout
        from numba.cuda.dispatcher import CUDADispatcher
    except ImportError as problem:
        raise _without_numba(problem) from problem
    if is_simulated():
        raise _without_numba()
    if isinstance(function, CUDADispatcher):
        function, options = function.py_func, dict(function.targetoptions)
    else:
        debug = given["debug"] if "debug" in given else bool(config.CUDA_DEBUGINFO_DEFAULT)
        options = {
            "debug": debug, "lineinfo": False, "opt": config.OPT != 0, "link": (), "fastmath": False, "device": False,
            "inline": "never", "forceinline": False, "extensions": [], "launch_bounds": None, "lto": not debug,
            "shared_memory_carveout": None,
        }  # fmt: skip
    if options.get("device"):
        raise OptionError("cannot launch a device function", "it was decorated with device=True", "call it in a kernel")
    options |= given
    if options["shared_memory_carveout"] is not None:
        _validate_shared_memory_carveout(options["shared_memory_carveout"])
    return Declared(function, options)


def is_simulated() -> bool:
    """Tell if the program's Numba is its simulator."""
    return bool(getattr(sys.modules.get("numba.cuda.core.config"), "ENABLE_CUDASIM", False))


def _without_numba(problem: ImportError | None = None) -> ToolchainMissingError:
    """Make the error for a kernel that Numba is needed for, where Numba cannot be imported or only simulates."""
    if is_simulated():
        why = "NUMBA_ENABLE_CUDASIM is set, and Numba's simulator compiles nothing"
        return ToolchainMissingError("cannot compile a Numba kernel", why, "unset it to compile; a launch is simulated")
    why = f"numba-cuda cannot be imported: {problem}"
    return ToolchainMissingError("cannot use a Numba kernel", why, "pip install 'numba-kcache[numba]'")


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
