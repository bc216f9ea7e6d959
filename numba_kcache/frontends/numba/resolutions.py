"""The artifacts of one Numba kernel, and Numba's own dispatcher over them.

Promise     A signature is resolved once for each target in a process, under the fingerprint that the function has then.
            What cannot be cached is compiled by Numba itself, with one warning. Nothing of the cache's trouble reaches
            a launch.
Method      Arguments that no launcher takes go through a real dispatcher, whose cache this is: Numba's `compile` calls
            `load_overload` before it would compile; what it gets here is always complete, be it from disk or compiled
            just now, so that Numba compiles only what must not be stored.
Not here    How a launch is packed (arguments) and when this is attached to programs that are not edited (install).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

from ...engine.request import Resolution, Wanted
from ...engine.session import Session
from ...errors import CompileError, NoDeviceError, UncacheableError
from ...launch.configurations import LaunchShape
from ...launch.devices import check_interpreter, current_device, numba_stream
from ...launch.loader import LoadedKernel
from ...model.target import Choice, Target
from ..base import Resolutions, RunsUncached, Variant
from .definition import NumbaDefinition, Types
from .dispatcher import compiler_lock, fix_signatures, make_dispatcher, read_signatures, specialize
from .overload import make_overload
from .request import numba_request, read_function

_NUMBAS_NAMES = frozenset((
    "signatures", "nopython_signatures", "inspect_llvm", "inspect_asm", "inspect_lto_ptx", "inspect_sass",
    "inspect_sass_cfg", "inspect_types", "get_regs_per_thread", "get_const_mem_size", "get_shared_mem_per_block",
    "get_max_threads_per_block", "get_local_mem_per_thread", "get_metadata", "stats", "overloads", "recompile",
    "py_func", "targetoptions", "extensions", "specialized",
))  # fmt: skip
"""What a kernel has of Numba's dispatcher, with the same meaning."""


class NumbaResolutions(Resolutions):
    """The artifacts of one kernel. `load_overload` and what follows it are Numba's names.

    Args:
        definition, session, choose: As for `Resolutions`.
        is_numbas: Whether errors in linked code are left to Numba to raise, as they are where Numba's own decorator
            is all that the program has.

    Attributes:
        dispatcher: Numba's, which asks this; None while there is none.
    """

    definition: NumbaDefinition

    def __init__(
        self,
        definition: NumbaDefinition,
        session: Callable[[], Session],
        choose: Callable[[Target], Choice],
        *,
        is_numbas: bool = False,
    ) -> None:
        super().__init__(definition, session, choose)
        self._is_numbas = is_numbas
        self._uncached: dict[Variant, str] = {}
        self.dispatcher: Any = None

    @property
    def lock(self) -> Any:
        """Numba's own over compilation, so that no two locks are taken crosswise."""
        return compiler_lock()

    def wanted(self, choice: Choice, variant: Variant) -> Wanted:
        """Make the requests of a choice from one reading of the function."""
        make = functools.partial(numba_request, self.definition, read_function(self.definition))
        types: Any = variant
        return Wanted(
            make(choice.target, choice.ptx_target, types),
            [functools.partial(make, each, choice.ptx_target, types) for each in choice.alternatives],
            [functools.partial(make, each, None, types) for each in choice.fallbacks],
        )

    def _resolve_anew(self, choice: Choice, variant: Variant) -> Resolution:
        if variant in self._uncached:
            raise RunsUncached(f"cannot cache {self.definition.label}", self._uncached[variant])
        session, wanted = self.session(), self.wanted(choice, variant)
        request = wanted.request
        if request.uncacheable:
            session.refuse(request)
            raise self._refused(variant, request.uncacheable)
        try:
            return session.resolve(wanted)
        except UncacheableError as error:
            session.refuse(request._replace(uncacheable=error.why), is_counted=True)
            raise self._refused(variant, error.why) from None

    def _refused(self, variant: Variant, why: str) -> RunsUncached:
        self._uncached[variant] = why
        return RunsUncached(f"cannot cache {self.definition.label}", why)

    def load(self, types: Types) -> LoadedKernel:
        """Load the kernel on the current device, with its carveout.

        Raises:
            RunsUncached, UncacheableError: It cannot be cached.
            NoDeviceError: There is no device.
        """
        device = current_device()
        resolution = self.for_device(device.target, types)
        artifact, key = resolution.artifact, resolution.key
        loaded = self.session().loader.load(artifact, artifact.entries[0], key, device, stored=resolution.is_stored)
        carveout = artifact.attributes.get("carveout")
        if carveout is not None:
            loaded.prefer_shared(int(carveout))
        return loaded

    def shared_with(self, dispatcher: Any) -> NumbaResolutions:
        """Give the same resolutions to another dispatcher of the same function and options."""
        other = copy.copy(self)
        other.dispatcher = dispatcher
        return other

    def forget(self) -> None:
        """Resolve anew at the next launch. Running work is untouched."""
        self.flush()
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher._reset_overloads()

    # -- Numba's dispatcher behind the kernel -------------------------------------------------------

    def _made_dispatcher(self) -> Any:
        """Numba's dispatcher, made when something is to be launched, compiled or looked at by Numba itself."""
        definition = self.definition
        declared = definition.declared  # imports Numba, whose lock it is
        with self.lock:
            if self.dispatcher is None:
                dispatcher = make_dispatcher(declared, definition.thing)
                dispatcher._cache = self
                self.dispatcher = dispatcher
        return self.dispatcher

    def _complete_dispatcher(self) -> Any:
        """The dispatcher, which then has every signature that was launched or compiled here."""
        dispatcher = self._made_dispatcher()
        fix_signatures(dispatcher)
        if dispatcher._can_compile:
            for _target, _ptx_target, types in self.known():
                if types not in dispatcher.overloads:
                    dispatcher.compile(types)
        return dispatcher

    def attribute(self, name: str) -> Any:
        """What Numba's dispatcher has under this name."""
        if name == "specialize":
            return self._specialize
        return getattr(self._complete_dispatcher(), name) if name in _NUMBAS_NAMES else super().attribute(name)

    def _specialize(self, *args: Any) -> Any:
        """Make a dispatcher of Numba's for exactly the types of these arguments."""
        made = specialize(self._made_dispatcher(), args, self.attach)
        if self.definition.launch_options:
            from .dispatcher_launch import apply_options

            for kernel in made.overloads.values():
                apply_options(kernel, self.definition.launch_options)
        return made

    def attach(self, dispatcher: Any) -> None:
        """Have another dispatcher of the same function and options ask this cache."""
        dispatcher._cache = self.shared_with(dispatcher)

    def launch_otherwise(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch through Numba's own dispatcher."""
        check_interpreter()
        dispatcher = self._made_dispatcher()
        fix_signatures(dispatcher)
        options, is_watched = self.definition.launch_options, self.session().settings.debug_launches
        try:
            if options or shape.shared_bytes or is_watched:
                from .dispatcher_launch import launch_with

                launch_with(dispatcher, shape, stream, arguments, options, is_watched=is_watched)
            else:
                dispatcher[shape.grid, shape.block, numba_stream(stream), 0](*arguments)
        except NotImplementedError as error:  # a type that Numba compiles for and does not launch
            error.add_note(self.definition.note)
            raise

    def block_size_otherwise(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """Ask Numba's own code for the block size."""
        from_numba = self._specialize(*arguments).forall(1, 0, 0, shared_bytes)
        return int(from_numba._compute_thread_per_block(from_numba.dispatcher))

    # -- what Numba's dispatcher asks ---------------------------------------------------------------

    def load_overload(self, sig: Any, _context: Any) -> Any:
        """Give the kernel of a signature, complete; None where Numba has to compile it."""
        types = sig if isinstance(sig, tuple) else read_signatures(sig)[0]
        dispatcher, is_known = self.dispatcher, any(each == types for _target, _ptx, each in self.known())
        try:
            resolution = self.for_device(current_device().target, types)
        except (NoDeviceError, RunsUncached):
            return None
        except CompileError:
            if self._is_numbas:
                return None
            raise
        if resolution.source == "compiled" and not is_known:  # Numba counts what it gets here as a hit
            dispatcher._cache_hits[sig] -= 1
            dispatcher._cache_misses[sig] += 1
        return make_overload(dispatcher, types, resolution.artifact, lambda: self.load(types))

    def save_overload(self, sig: Any, data: Any) -> None:
        """Nothing: what Numba compiled by itself must not be stored."""

    @property
    def cache_path(self) -> str | None:
        """The directory of the cache."""
        return self.session().store.directory

    def enable(self) -> None:
        """Nothing: there is no switch here."""

    def disable(self) -> None:
        """Nothing: there is no switch here."""

    def flush(self) -> None:
        """Read the function anew at the next launch; entries stay, they are named by what they hold."""
        self._resolved.clear()
        self._uncached.clear()
