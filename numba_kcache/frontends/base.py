"""The seam for kinds of kernels: a front end recognises what a user wraps and defines it for the one `Kernel`.

Promise     A new kind calls `register` when it is imported, or has a row in `BUILT_IN` (frontends/__init__.py);
            no other module changes.
Method      `FrontEnd.define` recognises a thing and gives its `Definition`: how it is called, what its requests are
            made of, and what launches it. `Resolutions` keeps the artifacts that one definition has led to. Front
            ends that were registered are asked before the built-in ones, which are imported until one knows the thing.
Not here    Configurations and launches (launches), the verbs of a kernel (kernel), look-ups and compiles (engine).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from threading import get_ident
from typing import TYPE_CHECKING, Any, Protocol

from ..engine.request import Request, Resolution, Wanted
from ..engine.session import Session
from ..errors import FrozenCacheError, KCacheError, OptionError, UncacheableError
from ..keys import OF_ONE_REQUEST, Component
from ..launch.launcher import Launcher, Relaunch
from ..launch.loader import LoadedKernel
from ..model import Choice, Event, EventKind, Target, UnknownTargetError
from ..model.artifact import Artifact, Entry
from ..store import IMPORTS, finish_imports
from . import BUILT_IN, asked, not_source

if TYPE_CHECKING:
    from ..explanation.text import Explanation
    from ..launch import LaunchShape
    from ..launch.attributes import LaunchOptions

Variant = Hashable
"""What selects one artifact among those of a kernel: the types of the arguments; None where one serves all."""

LAUNCH_OPTIONS = frozenset(("cooperative", "cluster", "max_dynamic_shared", "carveout", "launch_bounds"))
COMMON_OPTIONS = LAUNCH_OPTIONS | {"arch", "kind", "cache", "depends", "strict", "strided"}
"""Options that every kind of kernel takes."""

_ANY_TARGET = Target(9, 0)


class FrontEnd(Protocol):
    """One kind of kernel, or several that belong together."""

    kinds: Sequence[str]
    """Values of `kind=` that name it."""

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> Definition | None:
        """Define a thing; None where it is not of these kinds. The thing is looked at and never called.

        Args:
            thing: What the user wraps.
            options: Of `cached_kernel`.
            depth: Frames between this call and the user's code.

        Raises:
            OptionError: It is of these kinds, or nearly, and it or an option cannot be used.
        """


_registered: list[FrontEnd] = []


def register(front_end: FrontEnd) -> None:
    """Have `cached_kernel` ask a front end; the last one registered is asked first."""
    _registered.insert(0, front_end)


def define(thing: Any, options: Mapping[str, Any], depth: int) -> Definition:
    """Define what a user wraps, by the first front end that knows it.

    Args:
        thing: What the user wraps.
        options: Of `cached_kernel`.
        depth: Frames between this call and the user's code.

    Raises:
        OptionError: None knows it, or there is no such kind; or it or an option cannot be used.
    """
    if IMPORTS:
        finish_imports()
    if (kind := options.get("kind")) is not None:
        known = [name for kinds in (*(each.kinds for each in _registered), *BUILT_IN.values()) for name in kinds]
        if kind not in known:
            raise OptionError(f"cannot use kind={kind!r}", "there is no such kind", f"choose from {', '.join(known)}")
    has_parameters = getattr(getattr(thing, "__code__", None), "co_argcount", hasattr(thing, "py_func"))
    candidates: list[Any] = [*_registered, *([] if has_parameters or kind else ["source"]), None]
    for each in candidates:  # those built in are imported when they are reached
        if each is None:  # it is no source without parameters
            candidates += asked(thing, kind)
            continue
        front_end: FrontEnd = import_module(f".{each}", __package__).FRONT_END if isinstance(each, str) else each
        if (found := front_end.define(thing, options, depth + 1)) is not None:
            return found
    raise not_source(thing)


class Definition:
    """A user's object as it was wrapped, and all that its options say. The base of those that front ends make.

    Attributes:
        thing: What the user wraps.
        options: Of `cached_kernel`; kept, for a copy in another process.
        kind: Of the artifacts, `"cuda"`.
        label: Name in messages and events, `"package.module.saxpy"`.
        file: The file that defines it; "" for none.
        name: `__name__` of the kernel, and its name in messages of launches; "" for the artifact's own.
        has_variants: Whether the code depends on the types of the arguments.
        launch_options: How its launches differ from plain ones; None for plain ones.
        is_sent_by_name: Whether a worker gets a kernel that can be imported by its name, not by value.
        make_resolutions: Makes the place where what it leads to is kept; default `Resolutions`.
        runs_as_ptx: Whether PTX of it can be launched where the compiler does not know the device.
        any_variant: A variant that serves where any will do.
        default_stream: The stream of launches that name none; None where the arguments decide.
        asked: Targets that the thing itself asks for.
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
    make_resolutions: Callable[[Any, Callable[[], Session], Callable[[Target], Choice]], Resolutions]
    any_variant: Variant = None
    default_stream: Any = 0
    asked: tuple[Target, ...] = ()
    takes_cluster = False
    argument_names: tuple[Sequence[str], Sequence[Any]] | None = None
    launch_options: LaunchOptions | None = None
    thing: Any
    options: Mapping[str, Any]

    # -- what is wanted -----------------------------------------------------------------------------

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one variant for a target.

        Args:
            target: What to build for.
            ptx_target: The virtual target to compile to first, where the user gave one.
            variant: Of the arguments.

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
            signature: As the user gives it; None for the definition's own.
            known: Variants that were resolved, which do where there is no signature.

        Raises:
            OptionError: There is none, or it cannot be read.
        """
        if signature is not None:
            raise OptionError(
                f"cannot use signature= with {self.label}", "its code is the same for all arguments", "leave it out"
            )
        return (None,)

    def native(self, device: Target) -> Target:
        """The target of what is compiled for a device where none is named."""
        return device

    def check_target(self, target: Target) -> None:
        """Refuse a target that this kind is not compiled for.

        Raises:
            OptionError: It is so.
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

    # -- what launches it ---------------------------------------------------------------------------

    def entry(self, artifact: Artifact) -> Entry:
        """Pick the kernel out of an artifact.

        Raises:
            EntryError: It is not there.
        """
        return artifact.entries[0]

    def launch_options_of(self, artifact: Artifact) -> LaunchOptions | None:
        """Launch options by which an artifact differs from plain ones; None for plain ones."""
        return self.launch_options

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: bytes, **more: Any
    ) -> Launcher | None:
        """Make what packs and launches a loaded kernel; None where only `Resolutions.launch_otherwise` can.

        Args:
            loaded: On its device.
            variant: Of its arguments.
            relaunch: As in `Launcher`.
            attributes: Launch attributes, as `Launcher` takes them.
            more: `artifact`; `debug`: each launch is waited for; `otherwise`: takes what the launcher does not.
        """
        parameters = loaded.entry.parameters
        return Launcher(
            loaded,
            self.name or loaded.entry.name,
            parameters,
            strided=bool(self.options.get("strided")),
            relaunch=relaunch,
            attributes=attributes,
            debug_labels=parameters if more["debug"] else None,
        )

    # -- the user's object --------------------------------------------------------------------------

    def template_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Complete the values of a template by its defaults.

        Raises:
            OptionError: There is no such parameter, or it is no template.
        """
        why, hint = "only a function that returns source has values", "wrap a function: def k(T='float') -> str"
        raise OptionError(f"cannot instantiate {self.name or self.label}", why, hint)

    def instantiate(self, values: Mapping[str, Any]) -> Definition:
        """Define the template's instance for these values, as `template_values` gave them."""
        raise NotImplementedError

    def by_value(self) -> Definition:
        """Give the definition as one that pickles without importing the file that made it."""
        return self

    def __reduce__(self) -> Any:
        return type(self), (self.thing, self.options)


class Resolutions:
    """The artifacts that one definition has led to in this process, each found or compiled once.

    Args:
        definition: Makes the requests.
        session: Gives the session of the cache in force.
        choose: From the device's target to what to build.

    Attributes:
        resolved: What has been resolved up to now; `known()` gives a copy, which no thread changes.

    No lock is held while something is resolved: threads that want the same wait for each other as `waiting` says.
    """

    def __init__(
        self, definition: Definition, session: Callable[[], Session], choose: Callable[[Target], Choice]
    ) -> None:
        self.definition, self.session, self.choose = definition, session, choose
        self.resolved: dict[tuple[Target, Target | None, Variant], Resolution] = {}
        self._resolving: dict[Hashable, tuple[int, int]] = {}

    def for_device(self, device: Target, variant: Variant = None, session: Session | None = None) -> Resolution:
        """Resolve what suits a device: exactly what `arch` names, or what the device is.

        Where the compiler does not know the device yet, the newest PTX that it makes, and one warning.
        """
        choice = self.choose(device)
        try:
            return self.resolve(choice, variant, session)
        except UnknownTargetError as error:
            definition, newest = self.definition, error.newest.as_virtual
            if not definition.runs_as_ptx or choice.ptx_target is not None or error.newest >= device.plain:
                raise
            name = definition.name or definition.label
            reason = f"the compiler does not know {device}; {name} is compiled to {newest} for the driver to finish"
            fields = {"kernel": definition.label, "target": device.name, "reason": reason}
            self.session().events.emit(Event(EventKind.FALLBACK, fields))
            return self.exactly(newest)

    def exactly(self, target: Target, ptx_target: Target | None = None, variant: Variant = None) -> Resolution:
        """Resolve one variant for this target."""
        return self.resolve(Choice(target, ptx_target), variant)

    def resolve(self, choice: Choice, variant: Variant, session: Session | None = None) -> Resolution:
        """Resolve one variant of a choice, in the session in force where none is given."""
        name, resolved = (choice.target, choice.ptx_target, variant), self.resolved
        found = resolved.get(name)
        if found is not None:
            return found
        owner = mine = get_ident(), os.getpid()
        try:
            owner = self._resolving.setdefault(name, mine)
            if owner is not mine:
                from ..waiting import waited

                if waited(self._resolving, name, owner):
                    return self.resolve(choice, variant, session)
            found = resolved.get(name)
            if found is None:
                session = session or self.session()
                session.users.add(self)
                # whoever was first, a signal handler in the middle of this, say: there is one artifact
                found = resolved.setdefault(name, self._resolve_anew(session, choice, variant))
            return found
        finally:
            if owner is mine:
                self._resolving.pop(name, None)

    def give_up(self, resolution: Resolution, error: KCacheError) -> None:
        """Have stored code that could not be used set aside, so that the next resolution compiles.

        Args:
            resolution: With the code.
            error: Of who could not use it.

        Raises:
            FrozenCacheError: Nothing is compiled here; it names the entry.
            KCacheError: `error`, where the code was compiled here.
        """
        if resolution.source == "compiled" or not resolution.key:
            raise error
        session = self.session()
        session.set_aside(resolution.key, f"{error.what}: {error.why}")
        if session.settings.mode == "frozen":
            what = f"cannot use the entry {resolution.key} for {self.definition.label}"
            raise FrozenCacheError(what, f"{error.why}, and the cache is frozen", "warm it up anew") from error
        self.resolved = {name: each for name, each in self.resolved.items() if each.key != resolution.key}

    def _resolve_anew(self, session: Session, choice: Choice, variant: Variant) -> Resolution:
        return session.resolve(self.wanted(choice, variant))

    def wanted(self, choice: Choice, variant: Variant) -> Wanted:
        """Make the request of a choice, with what else may serve."""
        make = functools.partial(self.request, variant=variant)
        return Wanted(make(choice.target, choice.ptx_target), choice, make)

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one variant for a target."""
        return self.definition.request(target, ptx_target, variant)

    def explain(self, choice: Choice, variant: Variant) -> Explanation:
        """Explain if a launch would be a hit. Changes nothing."""
        return self.session().explain(self.wanted(choice, variant))

    def count_if_stored(self, target: Target, ptx_target: Target | None, variant: Variant) -> bool:
        """Count a request as a hit if it is stored; tell if it is.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        return self.session().find(self.request(target, ptx_target, variant)) is not None

    def known(self) -> dict[tuple[Target, Target | None, Variant], Resolution]:
        """Resolutions up to now."""
        return dict(self.resolved)

    def forget(self) -> None:
        """Resolve anew at the next use."""
        self.resolved = {}  # another one: what is being resolved now goes into the one that was

    def launch_otherwise(self, shape: LaunchShape, stream: Any, arguments: tuple[Any, ...]) -> None:
        """Launch what no launcher of the definition takes."""
        raise NotImplementedError

    def block_size_otherwise(self, arguments: tuple[Any, ...], shared_bytes: int) -> int:
        """The block size at which most threads are resident, for what no launcher takes."""
        raise NotImplementedError

    def attribute(self, name: str) -> Any:
        """An attribute that kernels of this kind have beside those of every kernel.

        Raises:
            AttributeError: There is none of that name.
        """
        raise AttributeError(f"a {self.definition.kind} kernel of numba_kcache has no attribute {name!r}")


class RunsUncached(UncacheableError):
    """It cannot be cached and may run without: reported, and for `Resolutions.launch_otherwise` to launch."""


Definition.make_resolutions = Resolutions
