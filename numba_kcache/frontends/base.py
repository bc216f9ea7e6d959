"""The seam for kinds of kernels: a front end recognises what a user wraps and defines it for the one `Kernel`.

Promise     A new kind is a folder beside this file; importing it registers it; nothing outside `frontends/` changes.
Method      `FrontEnd.claims` recognises a thing, `FrontEnd.define` gives its `Definition`: how it is called, what its
            requests are made of, and what launches it. `Resolutions` keeps the artifacts that one definition has led
            to. Front ends that were registered are asked before the built-in ones, which are imported one after
            another until one claims the thing.
Not here    Configurations, launches and the verbs of a kernel (kernel), look-ups and compiles (engine).
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from ..engine.request import Request, Resolution, Wanted
from ..engine.session import Session
from ..errors import OptionError, UncacheableError
from ..keys.components import OF_ONE_REQUEST, Component
from ..launch.launcher import Launcher, Relaunch
from ..launch.loader import LoadedKernel
from ..model.artifact import Artifact, Entry
from ..model.target import Choice, Target

if TYPE_CHECKING:
    from ..explain.text import Explanation
    from ..launch.attributes import LaunchOptions
    from ..launch.configurations import LaunchShape

Variant = Hashable
"""What selects one artifact among those of a kernel: the types of the arguments; None where one serves all."""

BUILT_IN = {"source": ("cuda", "ptx", "cubin", "fatbin", "ltoir"), "numba": ("numba",)}
"""Front ends of this package, in the order in which they are asked, and their kinds."""

LAUNCH_OPTIONS = ("cooperative", "cluster", "max_dynamic_shared", "carveout", "launch_bounds")
COMMON_OPTIONS = frozenset(("arch", "kind", "cache", "depends", "strict", "strided", *LAUNCH_OPTIONS))
"""Options that every kind of kernel takes."""

_ANY_TARGET = Target(9, 0)


class FrontEnd(Protocol):
    """One kind of kernel, or several that belong together."""

    kinds: Sequence[str]
    """Values of `kind=` that name it."""

    def claims(self, thing: Any, kind: str | None) -> bool:
        """Tell if it defines this thing; the thing is looked at and never called.

        Raises:
            OptionError: The thing is nearly one of its own, and cannot be used.
        """

    def define(self, thing: Any, options: Mapping[str, Any], depth: int) -> Definition:
        """Define a thing that it claims.

        Args:
            thing: What the user wraps.
            options: Of `cached_kernel`.
            depth: Frames between this call and the user's code.

        Raises:
            OptionError: The thing or an option cannot be used.
        """


_registered: list[FrontEnd] = []


def register(front_end: FrontEnd) -> None:
    """Have `cached_kernel` ask a front end; the last one registered is asked first."""
    _registered.insert(0, front_end)


def front_end_of(thing: Any, kind: str | None) -> FrontEnd:
    """Find the front end that defines a thing.

    Raises:
        OptionError: None does, or there is no such kind.
    """
    known = dict.fromkeys(
        [*(name for each in _registered for name in each.kinds), *itertools.chain(*BUILT_IN.values())]
    )
    if kind is not None and kind not in known:
        raise OptionError(f"cannot use kind={kind!r}", "there is no such kind", f"choose from {', '.join(known)}")
    for each in _registered:
        if each.claims(thing, kind):
            return each
    for name in BUILT_IN:
        front_end: FrontEnd = import_module(f".{name}", __package__).FRONT_END
        if front_end.claims(thing, kind):
            return front_end
    raise OptionError(
        f"cannot make a kernel of {thing!r}",
        f"a {type(thing).__name__} is not source",
        "wrap a function that returns CUDA C++, a str or a pathlib.Path",
    )


class Definition:
    """What a user wrapped, and all that the options say of it. The base of those that front ends make.

    Args:
        thing: What the user wraps.
        options: Of `cached_kernel`; kept, for a copy in another process.

    Attributes:
        kind: Of the artifacts, `"cuda"`.
        label: Name in messages and events, `"package.module.saxpy"`.
        file: The file that defines it; "" for none.
        name: `__name__` of the kernel, and its name in messages of launches; "" for the artifact's own.
        has_variants: Whether the code depends on the types of the arguments.
        launch_options: How its launches differ from plain ones; None for plain ones.
        is_sent_by_name: Whether a worker gets a kernel that can be imported by its name, not by value.
        any_variant: A variant that serves where any will do.
    """

    kind: str
    label: str
    file: str = ""
    name: str = ""
    has_variants = False
    is_sent_by_name = False
    any_variant: Variant = None
    launch_options: LaunchOptions | None = None

    def __init__(self, thing: Any, options: Mapping[str, Any]) -> None:
        self.thing, self.options = thing, options

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
            raise OptionError(f"cannot use signature= with {self.label}", "its code is the same for all arguments")
        return (None,)

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

    def resolutions(self, session: Callable[[], Session], choose: Callable[[Target], Choice]) -> Resolutions:
        """Make the place where what it leads to is kept."""
        return Resolutions(self, session, choose)

    # -- what launches it ---------------------------------------------------------------------------

    def entry(self, artifact: Artifact) -> Entry:
        """Pick the kernel out of an artifact.

        Raises:
            EntryError: It is not there.
        """
        return artifact.entries[0]

    def launch_options_of(self, artifact: Artifact) -> LaunchOptions | None:
        """How launches of an artifact differ from plain ones; None for plain ones."""
        return self.launch_options

    def launcher(
        self, loaded: LoadedKernel, variant: Variant, *, relaunch: Relaunch, attributes: Sequence[Any], **more: Any
    ) -> Launcher | None:
        """Make what packs and launches a loaded kernel; None where only `Resolutions.launch_otherwise` can.

        Args:
            loaded: On its device.
            variant: Of its arguments.
            relaunch: As in `Launcher`.
            attributes: Launch attributes of the driver's kind.
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
        raise OptionError(f"cannot instantiate {self.name}", "only a function that returns source has values")

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
    """

    def __init__(
        self, definition: Definition, session: Callable[[], Session], choose: Callable[[Target], Choice]
    ) -> None:
        self.definition, self.session, self.choose = definition, session, choose
        self._lock = threading.RLock()
        self.uncached_name = _new_name()
        self._resolved: dict[tuple[Target, Target | None, Variant], Resolution] = {}

    @property
    def lock(self) -> Any:
        """Held while something is resolved or loaded."""
        return self._lock

    def for_device(self, device: Target, variant: Variant = None) -> Resolution:
        """Resolve what suits a device: exactly what `arch` names, or what the device is."""
        return self.resolve(self.choose(device), variant)

    def exactly(self, target: Target, ptx_target: Target | None = None, variant: Variant = None) -> Resolution:
        """Resolve one variant for this target."""
        return self.resolve(Choice(target, ptx_target), variant)

    def resolve(self, choice: Choice, variant: Variant) -> Resolution:
        """Resolve one variant of a choice."""
        name = choice.target, choice.ptx_target, variant
        found = self._resolved.get(name)
        if found is None:
            with self.lock:
                found = self._resolved.get(name)
                if found is None:
                    self.session().users.add(self)
                    found = self._resolved[name] = self._resolve_anew(choice, variant)
        return found

    def _resolve_anew(self, choice: Choice, variant: Variant) -> Resolution:
        return self.session().resolve(self.wanted(choice, variant))

    def wanted(self, choice: Choice, variant: Variant) -> Wanted:
        """Make the requests of a choice."""
        make = functools.partial(self.request, variant=variant)
        return Wanted(
            make(choice.target, choice.ptx_target),
            [functools.partial(make, each, choice.ptx_target) for each in choice.alternatives],
            [functools.partial(make, each, None) for each in choice.fallbacks],
        )

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one variant for a target."""
        return self.definition.request(target, ptx_target, variant)

    def explain(self, choice: Choice, variant: Variant) -> Explanation:
        """Explain if a launch would be a hit. Changes nothing."""
        return self.session().explain(self.wanted(choice, variant))

    def is_stored(self, target: Target, ptx_target: Target | None, variant: Variant) -> bool:
        """Tell if a request is a hit, which it then counts as.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        return self.session().find(self.request(target, ptx_target, variant)) is not None

    def known(self) -> dict[tuple[Target, Target | None, Variant], Resolution]:
        """What has been resolved up to now."""
        return dict(self._resolved)

    def forget(self) -> None:
        """Resolve anew at the next use."""
        with self.lock:
            self._resolved.clear()
            self.uncached_name = _new_name()

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


_UNCACHED = itertools.count()


def _new_name() -> str:
    """Name what has no key; never an id, which another object may get."""
    return f"uncached {next(_UNCACHED)}"


def checked_option(options: Mapping[str, Any], name: str, kind: type) -> Any:
    """Read an option that is of one type; None where it is not given.

    Raises:
        OptionError: It is of another.
    """
    value = options.get(name)
    if value is not None and not isinstance(value, kind):
        raise OptionError(f"cannot use {name}={value!r}", f"it is a {type(value).__name__}", f"give a {kind.__name__}")
    return value


def read_launch_options(
    options: Mapping[str, Any], kind: str, names: Sequence[str] = LAUNCH_OPTIONS
) -> LaunchOptions | None:
    """Read the launch attributes that the user gave; None for a kernel of plain launches, which most are."""
    if not any(options.get(name) is not None for name in names):
        return None
    from ..launch import attributes

    return attributes.read_launch_options(options, kind)
