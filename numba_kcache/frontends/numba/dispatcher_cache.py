"""What a Numba dispatcher asks instead of Numba's own cache: the resolutions of one Numba kernel.

Promise     A signature is resolved once for each target in a process, under the fingerprint that the function has then.
            What cannot be cached is compiled by Numba itself, with one warning. Nothing of the cache's trouble reaches
            a launch.
Method      Numba's `compile` calls `load_overload` before it would compile; what it gets here is always complete, be it
            from disk or compiled just now, so that Numba compiles only what must not be stored.
Not here    How a launch is packed (launch.numba_arguments) and when this is attached (numba_kernel, numba_hook).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from ...engine.lookup import Resolution
from ...engine.request import Job
from ...engine.session import Resolver
from ...errors import CompileError, NoDeviceError, UncacheableError
from ...launch.devices import current_device
from ...launch.loader import LoadedKernel
from ...model.artifact import Artifact
from ...model.target import Target
from .definition import NumbaPlan, numba_job, read_function
from .dispatcher import compiler_lock, read_signatures
from .overload import make_overload

if TYPE_CHECKING:
    from ...explain.text import Explanation

Types = tuple[Any, ...]


class Uncached(UncacheableError):
    """It cannot be cached and may run without: reported, and Numba's to compile."""


class Choice(NamedTuple):
    """What to build for a device.

    Args:
        target: What for.
        through: The virtual target to go through.
        others: Targets that do as well.
        stand_ins: Targets that do where nothing is compiled (`Resolver.resolve`).
    """

    target: Target
    through: Target | None = None
    others: tuple[Target, ...] = ()
    stand_ins: Iterable[Target] = ()


class DispatcherCache:
    """The entries of one kernel. `load_overload` and what follows it are Numba's names.

    Args:
        plan: The kernel.
        resolver: Gives the cache in force.
        choose: From the device's target to what to build.
        is_numbas: Whether errors in linked code are left to Numba to raise, as they are where Numba's own decorator
            is all that the program says.

    Attributes:
        plan: As given.
        dispatcher: Numba's, which asks this; None while there is none.
        forgotten: Called when everything resolved was forgotten.
    """

    def __init__(
        self,
        plan: NumbaPlan,
        resolver: Callable[[], Resolver],
        choose: Callable[[Target], Choice],
        *,
        is_numbas: bool = False,
    ) -> None:
        self.plan, self._resolver, self._choose, self._is_numbas = plan, resolver, choose, is_numbas
        self._resolved: dict[tuple[Types, Target], Resolution] = {}
        self._uncached: dict[Types, str] = {}
        self.forgotten: Callable[[], None] | None = None
        self.dispatcher: Any = None

    # -- resolving ----------------------------------------------------------------------------------

    def resolve_for_device(self, types: Types, target: Target) -> Resolution:
        """The artifact that suits a device.

        Raises:
            Uncached: There is none to be had.
            UncacheableError: Nor may it run without.
        """
        return self._resolve(types, self._choose(target))

    def resolve(self, types: Types, target: Target, through: Target | None = None) -> Resolution:
        """The artifact of one signature for exactly this target, made by way of another where one is given.

        Raises:
            Uncached: It cannot be cached.
            UncacheableError: Nor may it run without.
            FrozenCacheError, CompileError, ToolchainMissingError, and Numba's own errors: It cannot be had.
        """
        return self._resolve(types, Choice(target, through))

    def _resolve(self, types: Types, choice: Choice) -> Resolution:
        found = self._resolved.get((types, choice.target))
        if found is not None:
            return found
        with compiler_lock():
            found = self._resolved.get((types, choice.target))
            if found is None:
                if self._uncached and types in self._uncached:
                    raise Uncached(f"cannot cache {self.plan.label}", self._uncached[types])
                found = self._resolved[types, choice.target] = self._resolve_anew(types, choice)
            return found

    def _resolve_anew(self, types: Types, choice: Choice) -> Resolution:
        resolver = self._resolver()
        resolver.users.add(self)
        read = read_function(self.plan)
        job = numba_job(self.plan, read, types, choice.target, choice.through)
        if job.uncacheable:
            resolver.refuse(job)
            raise self._refused(types, job.uncacheable)
        as_well = (functools.partial(numba_job, self.plan, read, types, each, choice.through) for each in choice.others)
        stand_ins = (functools.partial(numba_job, self.plan, read, types, each, None) for each in choice.stand_ins)
        try:
            return resolver.resolve(job, as_well, stand_ins)
        except UncacheableError as error:
            resolver.refuse(job._replace(uncacheable=error.why), is_counted=True)
            raise self._refused(types, error.why) from None

    def _refused(self, types: Types, why: str) -> Uncached:
        self._uncached[types] = why
        return Uncached(f"cannot cache {self.plan.label}", why)

    def job(self, types: Types, target: Target, through: Target | None = None) -> Job:
        """The request of one signature for a target, as the function is now."""
        return numba_job(self.plan, read_function(self.plan), types, target, through)

    def explain(self, types: Types, choice: Choice) -> Explanation:
        """Whether one signature is in the cache, and if not, why not. Nothing changes."""
        job = functools.partial(numba_job, self.plan, read_function(self.plan), types)
        others = (functools.partial(job, each, choice.through) for each in choice.others)
        stand_ins = (functools.partial(job, each, None) for each in choice.stand_ins)
        return self._resolver().explain(job(choice.target, choice.through), others, stand_ins)

    def resolved(self) -> dict[tuple[Types, Target], Resolution]:
        """What has been resolved up to now."""
        return dict(self._resolved)

    def resolved_types(self) -> list[Types]:
        """The signatures that have been resolved, each once."""
        return list(dict.fromkeys(types for types, _target in self._resolved))

    def load(self, types: Types) -> tuple[LoadedKernel, Artifact]:
        """The kernel on the current device, and what it is from.

        Raises:
            Uncached, UncacheableError: It cannot be cached.
            NoDeviceError: There is no device.
        """
        device = current_device()
        resolution = self.resolve_for_device(types, device.target)
        artifact, key, stored = resolution.artifact, resolution.key, resolution.is_stored
        loaded = self._resolver().loader.load(artifact, artifact.entries[0], key, device, stored=stored)
        carveout = artifact.attributes.get("carveout")
        if carveout is not None:
            loaded.prefer_shared(int(carveout))
        return loaded, artifact

    def shared_with(self, dispatcher: Any) -> DispatcherCache:
        """The same resolutions for another dispatcher of the same function and options."""
        other = copy.copy(self)
        other.dispatcher, other.forgotten = dispatcher, None
        return other

    def forget(self) -> None:
        """Resolve anew at the next launch. Running work is untouched."""
        self.flush()
        if self.dispatcher is not None and self.dispatcher._can_compile:
            self.dispatcher._reset_overloads()
        if self.forgotten is not None:
            self.forgotten()

    # -- what Numba's dispatcher asks ---------------------------------------------------------------

    def load_overload(self, sig: Any, _context: Any) -> Any:
        """The kernel of a signature, complete; None where Numba has to compile it."""
        types = sig if isinstance(sig, tuple) else read_signatures(sig)[0]
        dispatcher, known = self.dispatcher, self.resolved_types()
        try:
            resolution = self.resolve_for_device(types, current_device().target)
        except (NoDeviceError, Uncached):
            return None
        except CompileError:
            if self._is_numbas:
                return None
            raise
        if resolution.source == "compiled" and types not in known:  # Numba counts what it gets here as a hit
            dispatcher._cache_hits[sig] -= 1
            dispatcher._cache_misses[sig] += 1
        return make_overload(dispatcher, types, resolution.artifact, lambda: self.load(types)[0])

    def save_overload(self, sig: Any, data: Any) -> None:
        """Nothing: what Numba compiled by itself must not be stored."""

    @property
    def cache_path(self) -> str | None:
        """The directory of the cache."""
        return self._resolver().store.directory

    def enable(self) -> None:
        """Nothing: there is no switch here."""

    def disable(self) -> None:
        """Nothing: there is no switch here."""

    def flush(self) -> None:
        """Read the function anew at the next launch; entries stay, they are named by what they hold."""
        self._resolved.clear()
        self._uncached.clear()
