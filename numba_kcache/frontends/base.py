"""The interface of front ends: one recognises the object that a user wraps, and defines it for the class `Kernel`.

Promise     A new kind calls `register` when it is imported, or has a row in `BUILT_IN` (frontends/__init__.py);
            no other module changes.
Method      `FrontEnd.define` recognises a thing (the wrapped object) and returns its `Definition`: its name, its
            requests, and its launcher. `Resolutions` keeps the artifacts of one definition in this process. Registered
            front ends are tried before the built-in ones, which are imported in turn until one recognises the thing.
Not here    Configurations and launches (launches), methods of a kernel (kernel), look-ups and compiles (engine).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any

from ..engine.request import Request, Resolution, Wanted
from ..engine.session import Session
from ..errors import FrozenCacheError, KCacheError, OptionError, UncacheableError, UnknownTargetError
from ..keys import OF_ONE_REQUEST, Component
from ..launch.launcher import Launcher, Relaunch
from ..launch.loader import LoadedKernel, LoadedModule
from ..model import Choice, Event, EventKind, Protocol, Target
from ..model.artifact import Artifact, Entry
from . import BUILT_IN, front_end, front_ends_for, not_source

if TYPE_CHECKING:
    from ..explanation.text import Explanation
    from ..launch import LaunchShape
    from ..launch.attributes import LaunchOptions

Variant = Hashable
"""The value that selects one artifact of a kernel: the types of the arguments; None if one serves all types."""

LAUNCH_OPTIONS = frozenset(("cooperative", "cluster", "max_dynamic_shared", "carveout", "launch_bounds"))
COMMON_OPTIONS = LAUNCH_OPTIONS | {"arch", "kind", "cache", "depends", "strict", "strided"}
"""Options that every kind of kernel takes."""

_ANY_TARGET = Target(9, 0)


class FrontEnd(Protocol):
    """One kind of kernel, or several that belong together."""

    kinds: Sequence[str]
    """Values of `kind=` that name it."""

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> Definition | None:
        """Define a thing; None if it is not of these kinds. The thing is inspected and never called.

        Args:
            thing: The object that the user wraps.
            options: Options of `cached_kernel`.
            depth: Number of stack frames between this call and the user's code.

        Raises:
            OptionError: It is of these kinds, and it or an option cannot be used.
        """


_registered: list[FrontEnd] = []


def register(front_end: FrontEnd) -> None:
    """Add a front end for `cached_kernel` to try; the last one registered is tried first."""
    _registered.insert(0, front_end)


def define(thing: Any, options: Mapping[str, Any], depth: int) -> Definition:
    """Define a thing by the first front end that recognises it.

    Args:
        thing: The object that the user wraps.
        options: Options of `cached_kernel`.
        depth: Number of stack frames between this call and the user's code.

    Raises:
        OptionError: No front end recognises it, there is no such kind, or it or an option cannot be used.
    """
    if (kind := options.get("kind")) is not None:
        known = [name for kinds in (*(each.kinds for each in _registered), *BUILT_IN.values()) for name in kinds]
        if kind not in known:
            raise OptionError(f"cannot use kind={kind!r}", "there is no such kind", f"choose from {', '.join(known)}")
    has_parameters = getattr(getattr(thing, "__code__", None), "co_argcount", hasattr(thing, "py_func"))
    candidates: list[Any] = [*_registered, *([] if has_parameters or kind else ["source"]), None]
    for each in candidates:  # grows at the None; a built-in front end is imported when it is reached
        if each is None:  # the source front end takes no function with parameters
            candidates += front_ends_for(thing, kind)
            continue
        chosen: FrontEnd = front_end(each) if isinstance(each, str) else each
        if (found := chosen.define(thing, options, depth + 1)) is not None:
            return found
    raise not_source(thing)


class Definition:
    """A wrapped object with its options; the base class of the definitions that front ends make.

    Attributes:
        thing: The object that the user wraps.
        options: Options of `cached_kernel`; kept for a copy in another process.
        kind: Kind of its artifacts, `"cuda"`.
        label: Name in messages and events, `"package.module.saxpy"`.
        file: The file that defines it; "" for none.
        name: `__name__` of the kernel, and its name in messages of launches; "" for the artifact's own.
        has_variants: Whether the code depends on the types of the arguments.
        launch_options: Options that make its launches differ from plain ones; None for plain ones.
        is_sent_by_name: Whether a worker gets an importable kernel by its name, not by value.
        resolutions: Its `Resolutions`, if it shares them with other definitions.
        make_resolutions: Makes its `Resolutions`, if it has its own.
        runs_as_ptx: Whether its PTX can be launched on a device that the compiler does not know.
        any_variant: A variant for requests to which the variant does not matter.
        asked: Targets that the thing itself names.
        takes_cluster: Whether a configuration may have a cluster as its fifth item.
        argument_names: As in `Launcher.names`.
    """

    kind: str
    label: str
    file: str = ""
    name: str = ""
    has_variants = False
    is_sent_by_name = False
    runs_as_ptx = False
    resolutions: Resolutions | None = None
    make_resolutions: Callable[[Any, Callable[[], Session], Callable[[Target], Choice]], Resolutions]
    any_variant: Variant = None
    asked: tuple[Target, ...] = ()
    takes_cluster = False
    argument_names: tuple[Sequence[str], Sequence[Any]] | None = None
    launch_options: LaunchOptions | None = None
    thing: Any
    options: Mapping[str, Any]

    # -- requests -----------------------------------------------------------------------------------

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one variant for a target.

        Args:
            target: The target to build for.
            ptx_target: The virtual target to compile to first, if the user gave one.
            variant: The variant.

        Raises:
            OptionError: An option cannot be used for it.
        """
        raise NotImplementedError

    def variant(self, arguments: Sequence[Any]) -> Variant:
        """Find the variant for the arguments of a launch."""
        return None

    def variants(self, signature: Any, known: Sequence[Variant]) -> Sequence[Variant]:
        """List the variants that `signature=` names.

        Args:
            signature: The user's argument; None for the definition's own.
            known: Variants resolved so far, returned if there is no signature.

        Raises:
            OptionError: There is none, or it cannot be read.
        """
        if signature is not None:
            raise OptionError(
                f"cannot use signature= with {self.label}", "its code is the same for all arguments", "leave it out"
            )
        return (None,)

    def native(self, device: Target) -> Target:
        """The target to compile for on a device if `arch` names none."""
        return device

    def check_target(self, target: Target) -> None:
        """Refuse a target that this kind of kernel cannot be compiled for.

        Raises:
            OptionError: The target is refused.
        """

    def identity(self) -> tuple[Component, ...]:
        """List the components that all requests of this definition share.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        request = self.request(_ANY_TARGET, None, self.any_variant)
        if request.uncacheable:
            raise UncacheableError(f"cannot cache {self.label}", request.uncacheable)
        return tuple(each for each in request.components if each.name not in OF_ONE_REQUEST)

    # -- launches -----------------------------------------------------------------------------------

    def entry(self, artifact: Artifact) -> Entry:
        """Pick the kernel out of an artifact.

        Raises:
            EntryError: The artifact does not contain it.
        """
        return artifact.entries[0]

    def launch_options_of(self, artifact: Artifact) -> LaunchOptions | None:
        """Launch options for an artifact; None for plain launches."""
        return self.launch_options

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: bytes, **more: Any
    ) -> Launcher | None:
        """Make the launcher of a loaded kernel; None if only `Resolutions.launch_by_front_end` can launch it.

        Args:
            loaded: The kernel, loaded on a device.
            variant: Its variant.
            relaunch: As in `Launcher`.
            attributes: Launch attributes, as `Launcher` takes them.
            more: `artifact`; `debug`: wait for each launch; `otherwise`: takes arguments that the launcher refuses.
        """
        parameters = loaded.entry.parameters
        return Launcher(
            loaded,
            self.name or loaded.entry.name,
            parameters,
            strided="strided" in self.options and bool(self.options["strided"]),
            relaunch=relaunch,
            attributes=attributes,
            debug_labels=parameters if more["debug"] else None,
        )

    # -- the user's object --------------------------------------------------------------------------

    def template_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Add to the values given for a template its defaults for the other parameters.

        Raises:
            OptionError: There is no such parameter, or it is no template.
        """
        why, hint = "only a function that returns source has values", "wrap a function: def k(T='float') -> str"
        raise OptionError(f"cannot instantiate {self.name or self.label}", why, hint)

    def instantiate(self, values: Mapping[str, Any]) -> Definition:
        """Define the template's instance for these values, as `template_values` gave them."""
        raise NotImplementedError

    def by_value(self) -> Definition:
        """Make a definition that can be unpickled without importing the file that defines this one."""
        return self

    def __reduce__(self) -> Any:
        return type(self), (self.thing, self.options)


class Resolutions:
    """The artifacts of one definition in this process, each found or compiled once.

    Args:
        definition: The definition, which makes the requests.
        session: Returns the session of the current cache.
        choose: Maps the device's target to the target to build for.

    Attributes:
        resolved: The resolutions so far; `known()` returns a copy, which no thread changes.
        shared: Session, resolution and module of the kernel loaded last, for the other kernels of the same artifact.

    No lock is held during a resolution: threads that need the same one wait for each other by the rules of `waiting`,
    so that it is counted once.
    """

    def __init__(
        self, definition: Definition, session: Callable[[], Session], choose: Callable[[Target], Choice]
    ) -> None:
        self.definition, self.session, self.choose = definition, session, choose
        self.resolved: dict[tuple[Target, Target | None, Variant], Resolution] = {}
        self.shared: tuple[Session, Resolution, LoadedModule] | None = None
        self._resolving: dict[Hashable, tuple[int, int]] = {}

    def for_device(self, device: Target, variant: Variant = None, session: Session | None = None) -> Resolution:
        """Resolve for a device. If the compiler does not know it, resolve PTX for the newest known one; warn once."""
        choice = self.choose(device)
        try:
            return self.resolve(choice, variant, session)
        except UnknownTargetError as error:
            definition, newest = self.definition, error.newest.as_virtual
            if not definition.runs_as_ptx or choice.ptx_target is not None or error.newest >= device.plain:
                raise
            name = definition.name or definition.label
            reason = f"the compiler does not know {device}: the driver compiles PTX of {name} for {newest}"
            fields = {"kernel": definition.label, "target": device.name, "reason": reason}
            self.session().events.emit(Event(EventKind.FALLBACK, fields))
            return self.exactly(newest)

    def exactly(self, target: Target, ptx_target: Target | None = None, variant: Variant = None) -> Resolution:
        """Resolve one variant for this target."""
        return self.resolve(Choice(target, ptx_target), variant)

    def resolve(self, choice: Choice, variant: Variant, session: Session | None = None) -> Resolution:
        """Resolve one variant of a choice, in the session in force if none is given."""
        name, resolved = (choice.target, choice.ptx_target, variant), self.resolved
        found = resolved.get(name)
        if found is not None:
            return found
        owner = mine = get_ident(), os.getpid()
        try:
            owner = self._resolving.setdefault(name, mine)
            if owner is not mine:
                from ..waiting import waited

                if waited(self._resolving, name, owner, tell=self.session().events.emit):
                    return self.resolve(choice, variant, session)
            found = resolved.get(name)
            if found is None:
                (session := session or self.session()).users.add(self)
                # another resolution may have ended first, such as a signal handler's: keep that one's artifact
                found = resolved.setdefault(name, self._new_resolution(session, choice, variant))
            return found
        finally:
            if owner is mine:
                self._resolving.pop(name, None)

    def give_up(self, resolution: Resolution, error: KCacheError) -> None:
        """Quarantine stored code that could not be used, so that the next resolution compiles.

        Args:
            resolution: The resolution with the code.
            error: The error of using it.

        Raises:
            FrozenCacheError: The mode forbids to compile; the message names the entry.
            KCacheError: `error`, if the code was compiled by this process.
        """
        if resolution.source == "compiled" or not resolution.key:
            raise error
        session = self.session()
        session.set_aside(resolution.key, f"{error.what}: {error.why}")
        if session.settings.mode == "frozen":
            what = f"cannot use the entry {resolution.key} for {self.definition.label}"
            raise FrozenCacheError(what, f"{error.why}, and the cache is frozen", "warm it up again") from error
        self.shared = None
        self.resolved = {name: each for name, each in self.resolved.items() if each.key != resolution.key}

    def _new_resolution(self, session: Session, choice: Choice, variant: Variant) -> Resolution:
        return session.resolve(self.wanted(choice, variant))

    def wanted(self, choice: Choice, variant: Variant) -> Wanted:
        """Make the request for a choice, with its alternatives and fallbacks."""
        make = functools.partial(self.request, variant=variant)
        return Wanted(make(choice.target, choice.ptx_target), choice, make)

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one variant for a target."""
        return self.definition.request(target, ptx_target, variant)

    def explain(self, choice: Choice, variant: Variant) -> Explanation:
        """Explain whether a launch would be a hit. Changes nothing."""
        return self.session().explain(self.wanted(choice, variant))

    def count_if_stored(self, target: Target, ptx_target: Target | None, variant: Variant) -> bool:
        """Check whether a request is stored, and if so count a hit.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        return self.session().find(self.request(target, ptx_target, variant)) is not None

    def are_current(self) -> bool:
        """Check whether the headers of all resolutions are as they were."""
        rows = [(name, each.row) for name, each in self.known().items() if "transcript" in each.row]
        try:
            return not any(self.session().has_changed_headers(self.request(*name), row) for name, row in rows)
        except KCacheError:  # another input is gone, which is not read again
            return True

    def known(self) -> dict[tuple[Target, Target | None, Variant], Resolution]:
        """A copy of the resolutions so far."""
        return dict(self.resolved)

    def forget(self) -> None:
        """Drop all resolutions; the next use resolves again."""
        self.shared, self.resolved = None, {}  # a new dict: a resolution in progress goes into the old one

    def launch_by_front_end(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch by the front end's own code arguments that no launcher of the definition takes."""
        raise NotImplementedError

    def block_size_by_front_end(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """The block size at which most threads are resident, for arguments that no launcher takes."""
        raise NotImplementedError

    def attribute(self, name: str) -> Any:
        """An attribute that kernels of this kind have beside those of every kernel.

        Raises:
            AttributeError: There is none of that name.
        """
        label, hint = self.definition.name or self.definition.label, "it is launched as kernel[grid, block](...)"
        raise AttributeError(f"cannot use .{name} of {label}: a kernel has no such attribute\n  hint: {hint}")


class RunsUncached(UncacheableError):
    """The kernel cannot be cached, which was reported, but may run uncached: by `Resolutions.launch_by_front_end`."""


Definition.make_resolutions = Resolutions
