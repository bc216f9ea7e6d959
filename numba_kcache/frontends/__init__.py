"""`cached_kernel` and the class `Kernel`, launches, and the kinds of kernels: a folder for each, behind one interface.

Promise     Decorating compiles nothing, calls no user code and imports neither Numba nor CUDA: a dispatcher is
            recognised by its class; a function by the `cuda` that its code names: the module, or any object defined by
            it. A new kind calls `register` when it is imported, or has a row in `BUILT_IN`; no other module changes.
            A kernel is resolved once for each target and variant in a process, and loaded once for each device;
            from then on `kernel[config]` of a known configuration is one dict look-up, and the launch packs the
            arguments. Memory is bounded, even if each grid is new. Before anything is queued, a launch notices that its
            module was unloaded or that another device is current, and loads or selects the right module.
Method      `FrontEnd.define` recognises a thing (the wrapped object) and returns its `Definition`: its name, its
            requests, and its launcher. `Resolutions` keeps the artifacts of one definition in this process. Registered
            front ends are tried before the built-in ones, which are imported in turn until one recognises the thing.
            The launch of a configuration is kept from its second use on. For a block, stream and shared memory that
            were bound once, a row binds any grid within the device's limits without checking them again.
Not here    Packing and loading (launch), look-ups and compiles (engine), modules (module).
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from importlib import import_module
from threading import get_ident
from types import FunctionType, ModuleType, NoneType
from typing import TYPE_CHECKING, Any

from ..engine import Lookup, Request, RunsUncached, Session, checked_cache, process_session
from ..errors import (
    CodeRefusedError,
    FrozenCacheError,
    KCacheError,
    LaunchConfigError,
    OptionError,
    UnknownTargetError,
    shorten,
    shortening,
)
from ..keys import OF_ONE_REQUEST, Component
from ..launch import (
    GRID_LIMIT,
    BindGrid,
    Dim3,
    Launch,
    LaunchShape,
    check_interpreter,
    current_device,
    current_ordinal,
    is_one_stream,
    launch_shape,
    read_extents,
    relaxed,
    stream_handle,
)
from ..launch.launcher import Launcher, LoadedKernel, LoadedModule, Relaunch, around, not_pickled
from ..model import (
    Artifact,
    Choice,
    CompiledKernel,
    Event,
    EventKind,
    Resolution,
    Target,
    choose_for_device,
    ptx_target,
    read_arch,
)

if TYPE_CHECKING:
    from typing import Protocol, Unpack, overload

    from ..explanation.text import Explanation
    from ..launch.attributes import LaunchOptions
    from .options import Arch, KernelOptions, NumbaOptions, SourceOptions
    from .typed import IsNumba, IsSource, KernelDecorator, NumbaKernel, SourceKernel

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


BUILT_IN = {"source": ("cuda", "ptx", "cubin", "fatbin", "ltoir"), "numba": ("numba",), "mlir": ("mlir",)}
"""Front ends of this package, and their kinds."""

_HOMES = {"source": "source", "numba": "numba.llvm", "mlir": "numba.mlir"}


@functools.cache
def front_end(name: str) -> Any:
    """Import a front end of this package."""
    return import_module(f".{_HOMES[name]}", __package__).FRONT_END


def front_ends_for(thing: Any, kind: str | None) -> tuple[str, ...]:
    """List the front ends of this package that may recognise a thing, in the order in which they are tried.

    Args:
        thing: The object that the user wraps.
        kind: The user's `kind=`; None to recognise it by the thing.
    """
    if kind is not None:
        return tuple(name for name, kinds in BUILT_IN.items() if kind in kinds)
    built_in = numba_of(thing)
    if built_in:
        return (built_in,)
    has_mlir_alone = "numba_cuda_mlir" in sys.modules and "numba.cuda" not in sys.modules
    numba = "mlir" if has_mlir_alone else "numba"
    is_textless = type(thing) is FunctionType and not _has_text(thing)
    return (numba,) if is_textless else ("source", numba)


def numba_of(thing: Any) -> str:
    """The kind of a dispatcher or function, "numba" or "mlir"; "" if it is not recognised.

    A function annotated to return `str` is of neither, whatever names its code uses.
    """
    if type(thing) is not FunctionType:
        return _kind_of(type(thing).__module__) if hasattr(thing, "py_func") else ""
    if thing.__annotations__.get("return") in (str, "str", "'str'") or not thing.__code__.co_argcount:
        return ""
    return next((kind for value in _named(thing) if (kind := _kind_of_value(value))), "")


def _has_text(function: FunctionType) -> bool:
    """Check whether a function may return source: by its annotation, or by a string constant beside its docstring."""
    texts = [each for each in function.__code__.co_consts if type(each) is str and each != function.__doc__]
    return bool(texts) or "return" in function.__annotations__ or not function.__code__.co_argcount


def _named(function: FunctionType) -> Iterator[Any]:
    """Yield the values of the global and closure names that a function's code uses."""
    namespace = function.__globals__
    for name in function.__code__.co_names:
        if name in namespace:
            yield namespace[name]
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # an empty closure cell
            pass


def _kind_of_value(value: Any) -> str:
    if isinstance(value, ModuleType):
        return _kind_of(value.__name__)
    module = getattr(value, "__module__", None)
    return _kind_of(module if type(module) is str and module in sys.modules else type(value).__module__)


def _kind_of(module: str) -> str:
    top, _, rest = module.partition(".")
    if top == "numba_cuda_mlir":
        return "mlir"
    if top == __name__.partition(".")[0]:  # a stand-in of this package
        return {"cuda": "numba", "mlir": "mlir"}.get(rest.partition(".")[0], "")
    return "numba" if top == "numba_cuda" or (top == "numba" and rest.partition(".")[0] in ("cuda", "core")) else ""


def not_source(thing: object) -> OptionError:
    """Make the error for an object that no front end recognises."""
    kind, hint = type(thing).__name__, "wrap a function that returns CUDA C++, a str or a pathlib.Path"
    if isinstance(thing, (staticmethod, classmethod)):
        hint = f"leave out @{kind}: a kernel in a class needs none"
    return OptionError(f"cannot make a kernel of {thing!r:.80}", f"it is of type {kind}, which is not a source", hint)


def listed_option(options: Mapping[str, Any], name: str) -> Any:
    """Read an option that is a list or a mapping; () if it is not given.

    Raises:
        OptionError: It is neither. A set has another order in each process.
    """
    value = options.get(name)
    if value is None:
        return ()
    if isinstance(value, (str, bytes, set, frozenset)) or not hasattr(value, "__iter__"):
        raise OptionError(f"cannot use {name}={value!r}", "it is not a list", f"write {name}=[...]")
    return value if isinstance(value, Mapping) else tuple(value)


# -- base --------------------------------------------------------------------------------------------------------------


Variant = Hashable
"""The value that selects one artifact of a kernel: the types of the arguments; None if one serves all types."""

LAUNCH_OPTIONS = frozenset(("cooperative", "cluster", "max_dynamic_shared", "carveout", "launch_bounds"))
COMMON_OPTIONS = LAUNCH_OPTIONS | {"arch", "kind", "cache", "depends", "strict", "strided"}
"""Options that every kind of kernel takes."""

_ANY_TARGET = Target(9, 0)


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
    if isinstance(thing, Launches) and thing._definition.has_variants:  # by the `cuda.jit` of a stand-in
        thing, options = thing._definition.thing, {**thing._definition.options, **options}
    if (kind := options.get("kind")) is not None:
        known = [name for kinds in (*(each.kinds for each in _registered), *BUILT_IN.values()) for name in kinds]
        if kind not in known:
            raise OptionError(f"cannot use kind={kind!r}", "there is no such kind", f"choose from {', '.join(known)}")
    has_parameters = getattr(getattr(thing, "__code__", None), "co_argcount", hasattr(thing, "py_func"))
    each: FrontEnd
    for each in [*_registered, *([] if has_parameters or kind else [front_end("source")])]:
        if (found := each.define(thing, options, depth + 1)) is not None:
            return found
    for name in front_ends_for(thing, kind):  # each is imported when it is reached
        each = front_end(name)
        if (found := each.define(thing, options, depth + 1)) is not None:
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
        runs_as_ptx: Whether its PTX is all of its code: a device that the compiler does not know can launch it.
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

    def identity(self) -> tuple[Component, ...]:
        """List the components that all requests of this definition share.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        request = self.request(_ANY_TARGET, None, self.any_variant)
        if request.uncacheable:
            raise request.refusal(request.uncacheable)
        return tuple(each for each in request.components if each.name not in OF_ONE_REQUEST)

    # -- launches -----------------------------------------------------------------------------------

    def kernel_in(self, artifact: Artifact) -> CompiledKernel:
        """Pick the kernel out of an artifact.

        Raises:
            EntryError: The artifact does not contain it.
        """
        return artifact.kernels[0]

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
        parameters = loaded.compiled.parameters
        return Launcher(
            loaded,
            self.name or loaded.compiled.name,
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

    def with_options(self, **changed: Any) -> Definition:
        """Define the same thing with other values of some options."""
        make: Callable[..., Definition] = type(self)
        return make(self.thing, {**self.options, **changed})

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
        """Resolve one variant for this target, also if a launch was served with code of another one in its place.

        Raises:
            OptionError: It is PTX alone, of a kernel whose code is linked.
        """
        definition = self.definition
        if target.virtual and not definition.runs_as_ptx and definition.kind != "cubin":
            raise OptionError(
                f"cannot compile {definition.name or definition.label} for {target} alone",
                "its code is linked for a device",
                f"name the device: {target.name.replace('compute', 'sm')!r}",
            )
        found = self.resolved.get((target, ptx_target, variant))
        if found is not None and found.source != "compiled" and found.artifact.target != target:
            self.resolved = {name: each for name, each in self.resolved.items() if each is not found}
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
        return session.resolve(self.request_for(choice, variant))

    def request_for(self, choice: Choice, variant: Variant) -> Request:
        """Make the request for a choice, with those that are accepted in its place."""
        make = functools.partial(self.request, variant=variant)
        made = make(choice.target, choice.ptx_target)
        return made._replace(choice=choice, make=made.make or make)

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of one variant for a target."""
        return self.definition.request(target, ptx_target, variant)

    def explain(self, choice: Choice, variant: Variant) -> Explanation:
        """Explain whether a launch would be a hit. Changes nothing."""
        return self.session().explain(self.request_for(choice, variant))

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
        label = self.definition.name or self.definition.label
        hint = "it is launched as kernel[grid, block](...); .attributes has its resources under CuPy's names"
        raise AttributeError(f"cannot use .{name} of {label}: a kernel has no such attribute\n  hint: {hint}")


Definition.make_resolutions = Resolutions


# -- launches ----------------------------------------------------------------------------------------------------------


_OnDevice = tuple[Launcher | None, LoadedKernel, "LaunchOptions | None"]
"""The launcher, None if only the front end's own launch works; the loaded kernel; its launch options, if any."""


BOUND_LIMIT = 256
"""Limit of the launch configurations that a kernel keeps; when it is exceeded, all are dropped and bound again."""

GridBinding = tuple[list[bool], Dim3, BindGrid]
"""A binding for any grid with one block, stream and shared memory: the kernel's `live`, the largest grid, and the
function."""


def keep_bounded(kept: dict[Any, Any], config: Any, value: Any) -> None:
    if len(kept) >= BOUND_LIMIT:
        kept.clear()
    try:
        kept[config] = value
    except TypeError:  # the configuration contains a list, and is bound again each time
        pass


class Launches:
    """The base of `Kernel`: indexing with a configuration returns the function that launches.

    Args:
        definition: The definition of the kernel.
    """

    __name__: str
    _zero: Any = None  # the stream that the integer 0 names, as in `Call.stream`
    _bound: dict[Any, Launch]
    _seen: dict[Any, None]  # configurations used once
    _rows: dict[Any, GridBinding]

    def __init__(self, definition: Definition) -> None:
        self._bound, self._seen, self._rows, self._definition = {}, {}, {}, definition
        self._arch = read_arch(definition.options["arch"]) if "arch" in definition.options else ()
        self._cache = checked_cache(definition.options["cache"]) if "cache" in definition.options else None
        self.__name__ = definition.name or definition.label
        self._label = definition.label
        self._resolutions = definition.resolutions or definition.make_resolutions(
            definition, self._session, functools.partial(choose_for_device, self._arch, kernel=self.__name__)
        )
        self._on_device: dict[tuple[int, Variant], _OnDevice] = {}
        self._variant_launches: dict[Any, VariantLaunch] = {}
        self._clustered: dict[Any, Launches] = {}

    def __getitem__(self, config: Any) -> Launch:
        try:
            return self._bound[config]
        except (KeyError, TypeError):  # TypeError: the configuration contains a list, which Numba accepts too
            pass
        __tracebackhide__ = True
        try:
            return self._bind(config)
        except Exception as error:
            shorten(error)
            raise

    def __call__(self, *args: Any, **named: Any) -> None:
        """Refuse a launch without a configuration, as Numba does."""
        name = self.__name__ if self.__name__.isidentifier() else "kernel"
        if len(args) == 1 and isinstance(args[0], FunctionType):  # @cached_kernel("void(float32[:])"), as of cuda.jit
            what, why = f"cannot decorate {args[0].__name__}", "the value in the parentheses was taken for a source"
            raise OptionError(what, why, 'name the option, as in @cached_kernel(signature="void(float32[:])")')
        config = "grid, block"
        if len(args) == 3 and all(isinstance(each, tuple) for each in args):  # as CuPy's kernels are launched
            config = ", ".join(str(each[0] if len(each) == 1 else each) for each in args[:2])
        raise LaunchConfigError(
            f"cannot launch {self.__name__}", "it has no grid and block", f"write {name}[{config}](...)"
        )

    def _bind(self, config: Any) -> Launch:
        """Make the launch of a configuration; keep it if the configuration was used before."""
        count = len(config) if isinstance(config, tuple) else 0
        if count == 5 and (clustered := self._in_clusters(config[4])) is not None:
            return clustered[config[:4]]
        if not 2 <= count <= 4:
            raise LaunchConfigError(
                f"cannot launch {self.__name__}[{config!r}]",
                "a launch takes [grid, block], then stream and sharedmem if need be",
                "write kernel[blocks, threads](...), or kernel.forall(count)(...)",
            )
        if count > 2 and not is_one_stream(config[2]):  # the object may name another stream later
            return self[(*config[:2], stream_handle(config[2]), *config[3:])]
        try:
            row, seen = self._rows.get(config[1:]) if self._rows else None, config in self._seen
        except TypeError:  # the configuration contains a list
            row, seen = None, False
        grid, block = config[:2]
        stream, sharedmem = config[2] if count > 2 else None, config[3] if count > 3 else 0
        if type(stream) is int and not stream:
            stream = self._zero
        if row is not None and row[0][0]:
            x, y, z = (grid, 1, 1) if type(grid) is int else read_extents(grid, "grid")
            _, (most_x, most_y, most_z), bind = row
            if 1 <= x <= most_x and 1 <= y <= most_y and 1 <= z <= most_z:
                with_grid = bind(x, y, z)
                keep_bounded(self._bound if seen else self._seen, config, with_grid if seen else None)
                return with_grid
        is_line = type(grid) is type(block) is type(sharedmem) is int
        shape = LaunchShape((grid, 1, 1), (block, 1, 1), sharedmem) if is_line else launch_shape(grid, block, sharedmem)
        launch = self._configure(config, shape, stream)
        assert launch is not None  # a kind without variants has a launcher
        keep_bounded(self._bound if seen else self._seen, config, launch if seen else None)
        return launch

    def _unbind(self) -> None:
        """Drop all bound configurations."""
        self._bound.clear()
        self._seen.clear()
        self._rows.clear()

    def _in_clusters(self, cluster: Any) -> Launches | None:
        """The kernel launched in clusters of this shape; None if this kind's configuration has no such item."""
        definition = self._definition
        if cluster is None or not definition.takes_cluster:
            return self if definition.takes_cluster else None
        shape = cluster if isinstance(cluster, int) else tuple(cluster)
        found = self._clustered.get(shape)
        if found is None:
            found = self._clustered.setdefault(shape, type(self)(definition.with_options(cluster=shape)))
        return found

    def _session(self) -> Session:
        """The session of the current cache."""
        return process_session() if self._cache is None else self._cache.session

    @shortening
    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Launch:
        """A one-dimensional launch of at least `ntasks` threads; the kernel checks its index itself.

        Args:
            ntasks: Number of threads needed; 0 launches nothing.
            tpb: Threads per block; 0 for the size that keeps the most threads resident, as the driver computes it.
            stream: As in `kernel[grid, block, stream]`; None and 0 for that of the arguments.
            sharedmem: Dynamic shared memory per block, in bytes.

        Raises:
            LaunchConfigError: `ntasks` is negative, or not a whole number.
        """
        if type(ntasks) is not int or ntasks < 0:
            from .measures import count_of_tasks

            ntasks = count_of_tasks(self.__name__, ntasks)
        if ntasks == 0:
            return lambda *_args, **_named: None

        def over_tasks(args: tuple[Any, ...]) -> Launch:
            from .measures import blocks_over

            return self[*blocks_over(self, ntasks, tpb, sharedmem, args), stream, sharedmem]

        if tpb or not self._definition.has_variants:
            return over_tasks(())

        @shortening
        def launch(*args: Any, **named: Any) -> None:
            args = self._ordered(args, named) if named else args
            over_tasks(args)(*args)

        return launch

    def _configure(self, config: Any, shape: LaunchShape, stream: Any, variant: Variant = None) -> Launch | None:
        """Make the launch function of a variant; None if only the front end's own launch takes it."""
        if variant is None and self._definition.has_variants:
            return self._variant_launch(config, shape, stream)
        try:
            launcher, loaded, options = self._loaded(variant)
        except RunsUncached:
            return None
        launch = None
        if launcher is None:
            loaded.prepare(shape, self._name_on(loaded))
        else:
            launch = launcher.bind(shape, stream)
            if self._seen and not launcher.attributes:
                bind = functools.partial(
                    launcher.over_grids, shape.block, shape.shared_bytes, stream_handle(stream), stream
                )
                keep_bounded(self._rows, config[1:], (loaded.live, GRID_LIMIT, bind))
        if options:
            options.check(shape, loaded, self._name_on(loaded))
        return launch

    def _variant_launch(self, config: Any, shape: LaunchShape, stream: Any) -> VariantLaunch:
        check_interpreter()

        def otherwise(*args: Any) -> None:
            around(lambda ordered: self._resolutions.launch_by_front_end(shape, ordered, args), stream, args)

        prepare = functools.partial(self._configure, config, shape, stream)
        variant_of = self._definition.variant
        return VariantLaunch(self, config, prepare, variant_of, otherwise, self._ordered)

    def _refused(self, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        """Launch arguments that the launcher of a variant refused; `config` has all four items."""
        found = self._variant_launches.get(config)
        if found is None:
            grid, block, stream, sharedmem = config
            found = self._variant_launch(config, launch_shape(grid, block, sharedmem), stream)
            keep_bounded(self._variant_launches, config, found)
        found.refused(variant, args)

    def _relaunch(
        self, loaded: LoadedKernel, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...], _status: int
    ) -> bool:
        """Launch on the device that is current now, or with the module loaded again; False if neither has changed.

        A thread without a context gets one when the kernel is loaded.
        """
        before = current_ordinal()
        now = self._loaded(variant)[1]
        if now is loaded and before == loaded.device.ordinal and not loaded.module.has_lost_its_context():
            return False
        self._unbind()  # bound launches may be for the previous module or device
        self._variant_launches.clear()
        self._bind(config)(*args)
        return True

    def _loaded(self, variant: Variant = None) -> _OnDevice:
        """Load the kernel on the current device, and make its launcher.

        Raises:
            RunsUncached: Only the front end's own launch can run it.
        """
        on_device, definition, resolutions = self._on_device, self._definition, self._resolutions
        found = on_device.get((current_ordinal(), variant)) if on_device else None
        if found is not None and found[1].module.is_current():
            return found
        shared, loaded = resolutions.shared, None
        if shared is not None and shared[2].is_current():
            session, resolution, module = shared
            session.users.add(self)
            try:
                loaded = module.kernel(definition.kernel_in(resolution.artifact))
            except CodeRefusedError:
                pass  # the same error comes again below, and is handled there
        if loaded is None:
            with relaxed():
                device = current_device()
                found = on_device.get((device.ordinal, variant))
                if found is not None and not found[1].module.has_lost_its_context():
                    return found
                session = self._session()
                session.users.add(self)
                resolution = resolutions.for_device(device.target, variant, session)
                artifact, key, load = resolution.artifact, resolution.key or resolution.name, session.loader.load
                try:
                    loaded = load(artifact, definition.kernel_in(artifact), key, device, stored=resolution.is_stored)
                except CodeRefusedError as error:
                    resolutions.give_up(resolution, error)
                    resolution = resolutions.for_device(device.target, variant, session)
                    artifact, key = resolution.artifact, resolution.key or resolution.name
                    loaded = load(artifact, definition.kernel_in(artifact), key, device, stored=False)
                if variant is None:
                    resolutions.shared = session, resolution, loaded.module
        has_variants, artifact = definition.has_variants, resolution.artifact
        options = definition.launch_options_of(artifact) if has_variants else definition.launch_options
        launcher = definition.launcher(
            loaded,
            variant,
            relaunch=functools.partial(type(self)._relaunch, self, loaded, variant),
            attributes=options.apply(loaded, self._name_on(loaded)) if options else b"",
            artifact=artifact,
            debug=session.settings.debug_launches,
            otherwise=functools.partial(self._refused, variant) if has_variants else None,
        )
        if launcher is not None:
            launcher.names = definition.argument_names
        on_device[loaded.device.ordinal, variant] = found = launcher, loaded, options
        if on_device is not self._on_device:
            loaded.live[0] = False  # `forget` was called meanwhile: the next launch resolves again
        return found

    def _name_on(self, loaded: LoadedKernel) -> str:
        return self._definition.name or loaded.compiled.name

    def _ordered(self, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Put positional and named arguments of a kind with variants into the order of its parameters."""
        from ..launch.keywords import in_order

        names, defaults = self._definition.argument_names or ((), ())
        values = (*args, *named.values())
        return in_order(self.__name__, values, tuple(named), names, labels=names, defaults=defaults)

    def forget(self) -> None:
        """Resolve again at the next launch. Running launches go on."""
        before, self._on_device = self._on_device, {}
        self._resolutions.forget()
        for _launcher, loaded, _options in list(before.values()):
            loaded.live[0] = False
        self._variant_launches.clear()
        self._unbind()


class VariantLaunch:
    """One configuration of a kernel whose code depends on the types of its arguments: one launcher for each variant.

    The launch function of the last variant is kept in the kernel and called directly. If it refuses arguments, they
    come back here, and the launch function of their own variant replaces it. Arguments that no launcher takes go to the
    front end.

    Args:
        kernel: The kernel that keeps the launch function.
        config: The configuration, as written between the brackets.
        prepare: Makes the launch function of a variant; None if only `otherwise` can launch it.
        variant_of: Finds the variant of arguments; None if the front end has to refuse them.
        otherwise: Launches by the front end's own code (Numba's dispatcher).
        ordered: Puts named arguments into the order of the parameters.
    """

    def __init__(
        self,
        kernel: Launches,
        config: Any,
        prepare: Callable[[Hashable], Launch | None],
        variant_of: Callable[[tuple[Any, ...]], Hashable],
        otherwise: Launch,
        ordered: Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]],
    ) -> None:
        self._kernel, self._config, self._ordered = kernel, config, ordered
        self._prepare, self._variant_of, self._otherwise = prepare, variant_of, otherwise
        self._by_variant: dict[Hashable, Launch] = {}
        self._front: Launch = self.launch

    @shortening
    def __call__(self, *args: Any, **named: Any) -> None:
        self._front(*(self._ordered(args, named) if named else args))

    def __reduce__(self) -> Any:
        raise not_pickled(self._kernel.__name__)

    __copy__ = __deepcopy__ = lambda self, *_memo: self

    def launch(self, *args: Any) -> None:
        """Launch arguments of any variant, and keep the launch function of that variant for the next ones."""
        check_interpreter()
        variant = self._variant_of(args)
        if variant is None:
            self._otherwise(*args)
            return
        found = self._by_variant.get(variant) or self._prepare(variant)
        if found is None:
            found = self._otherwise  # takes all variants: the next launch need not determine one
        else:
            self._by_variant[variant] = found
        self._front = found
        keep_bounded(self._kernel._bound, self._config, found)
        found(*args)

    def refused(self, variant: Hashable, args: tuple[Any, ...]) -> None:
        """Launch arguments that a variant's launcher refused: by `otherwise` if they are of that same variant."""
        if self._variant_of(args) == variant:
            self._otherwise(*args)  # for example a host array: of the same type, but not for the launcher
        else:
            self.launch(*args)


# -- the kernel --------------------------------------------------------------------------------------------------------


def _figure(field: str, doc: str) -> Any:
    """Make the property of a kernel that is a field of its description."""

    @shortening
    def read(self: Kernel) -> Any:
        return self._read(lambda artifact: getattr(self._definition.kernel_in(artifact), field))

    return property(read, doc=doc)


class Kernel(Launches):
    """A kernel whose compiled code is kept on disk. Made by `cached_kernel`; launched like a Numba kernel.

    `kernel[grid, block](args)`, `kernel[grid, block, stream]`, `kernel[grid, block, stream, sharedmem]`: grid and
    block are integers or tuples of one to three, stream is Numba's, cuda.core's, CuPy's, PyTorch's or a handle,
    sharedmem is dynamic shared memory per block in bytes.

    For a Numba kernel, methods whose result depends on the types of the arguments take a `signature`, or return a
    dict by signature.

    Raises at the first use:
        CompileError, LinkError, EntryError, OptionError: The source or an option has an error.
        NumbaError: Numba's own: typing, lowering, unsupported features.
        NoDeviceError: A launch without a device.
        ToolchainMissingError: The kernel is not in the cache and the compilers are not installed.
    """

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition)
        self._instances: dict[Any, Kernel] = {}
        thing = definition.thing
        self.__qualname__, self.__module__, self.__doc__ = self.__name__, __name__, None
        if thing is not None and callable(thing):
            self.__wrapped__ = function = getattr(thing, "py_func", thing)
            self.__qualname__ = getattr(function, "__qualname__", self.__name__)
            self.__module__ = getattr(function, "__module__", None) or __name__
            self.__doc__ = getattr(function, "__doc__", None)

    # -- resolving ----------------------------------------------------------------------------------

    def _targets(self, arch: Any) -> tuple[Target, ...]:
        """The targets that `arch` (None: the kernel's own) names; if none, those of the thing, or the device's."""
        named = self._arch if arch is None else read_arch(arch)
        return named or self._definition.asked or (self._definition.native(current_device().target),)

    def _variants(self, signature: Any) -> Sequence[Variant]:
        return self._definition.variants(signature, self._known_variants())

    def _known_variants(self) -> list[Variant]:
        """The variants that have been launched or compiled, each once."""
        return list(dict.fromkeys(variant for _target, _ptx_target, variant in self._resolutions.known()))

    def _request(self, target: Target, variant: Variant) -> Request:
        """Make the request for a named target: the same as a launch on such a device makes."""
        return self._resolutions.request(target, ptx_target(self._arch, target), variant)

    def _exactly(self, target: Target, variant: Variant, arch: Any = True) -> Resolution:
        """Resolve for a target; if neither `arch` nor the kernel names one, as a launch on the device does."""
        found = (
            self._resolutions.for_device(target, variant)
            if arch is None and not (self._arch or self._definition.asked)
            else self._resolutions.exactly(target, ptx_target(self._arch, target), variant)
        )
        self._definition.kernel_in(found.artifact)  # raises EntryError if there is no such kernel
        return found

    # -- templates ----------------------------------------------------------------------------------

    @shortening
    def instantiate(self, **values: Any) -> Kernel:
        """The kernel whose source the function returns for these values; the same object for the same numbers, texts,
        enum members, types, and tuples of these. Other objects may have changed: each call makes a new kernel for them.

        `kernel[...]` itself uses the defaults.

        Args:
            values: Parameters of the function that returns the source, by name.

        Raises:
            OptionError: No such parameter, or a kernel not made of a function.
        """
        full = self._definition.template_values(values)
        # with types and texts, since -0.0 == 0.0 and (True,) == (1,)
        key = tuple((type(value), value, repr(value)) for value in full.values())
        is_kept = all(map(_is_fixed, full.values()))
        found = self._instances.get(key) if is_kept else None
        found = found or type(self)(self._definition.instantiate(full))
        return self._instances.setdefault(key, found) if is_kept else found

    # -- compiling ahead, explaining, inspecting -----------------------------------------------------

    @shortening
    def compile(self, arch: Arch | None = None, signature: Any = None) -> None:
        """Compile and store, without a launch; with an explicit `arch` without GPU, driver or context.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own.
            signature: Signature of a Numba kernel, as Numba takes it, or a list; None for the kernel's own.

        Raises:
            UncacheableError: The kernel cannot be keyed.
            NoDeviceError: No target is named and there is no device.
            KCacheError: A directory is configured, and nothing can be stored there.
        """
        for variant in self._variants(signature):
            for target in self._targets(arch):
                request = self._request(target, variant)
                if request.uncacheable:
                    raise request.refusal(request.uncacheable)
                if request.covered:
                    from ..observe.log import INFO, record

                    record(INFO, f"depends= of {request.label} represents: {', '.join(request.covered)}")
                found = self._exactly(target, variant, arch)
                if found.uncacheable:
                    raise request.refusal(found.uncacheable)
                if found.source != "disk":  # else it is there, and would be read again
                    require_directory(self._session(), f"store {request.label}", found.key)

    @shortening
    def key(self, arch: Arch | None = None, signature: Any = None) -> str:
        """The digest of the request for one target, 64 hexadecimal digits. Never compiles.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own.
            signature: Signature of a Numba kernel; None for its own.

        Raises:
            UncacheableError: The kernel cannot be keyed.
        """
        variant = self._variants(signature)[0]
        return self._session().key(self._request(self._targets(arch)[0], variant))

    @shortening
    def explain(self, arch: Arch | None = None, signature: Any = None) -> Explanation:
        """Explain whether the kernel is in the cache for one target, and if not, why. Compiles and changes nothing.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own, or the device.
            signature: Signature of a Numba kernel, as Numba takes it; None for its own, or the first launched.

        Raises:
            OptionError: A signature is missing, or given where the code is the same for all arguments.
            NoDeviceError: No target is named and there is no device.
        """
        variant, target = self._variants(signature)[0], self._targets(arch)[0]
        is_named = arch is not None or self._arch
        choice = Choice(target, ptx_target(self._arch, target)) if is_named else self._resolutions.choose(target)
        return self._resolutions.explain(choice, variant)

    def _any_artifact(self) -> Artifact:
        """Any resolved artifact of the kernel; if there is none, the one for its first target."""
        for found in self._resolutions.known().values():
            return found.artifact
        return self._exactly(self._targets(None)[0], None, None).artifact

    def _read(self, read: Callable[[Artifact], Any], arch: Any = None, signature: Any = None) -> Any:
        """Apply `read` to the artifact. With variants and no signature: a dict of the results for all known ones."""
        definition = self._definition
        if definition.has_variants and signature is None:
            target = None if arch is None else self._targets(arch)[0]
            return {
                variant: read(each.artifact)
                for (known_target, _, variant), each in self._resolutions.known().items()
                if target is None or target == known_target
            }
        if arch is None and not definition.has_variants:
            self._variants(signature)
            return read(self._any_artifact())
        return read(self._exactly(self._targets(arch)[0], self._variants(signature)[0], arch).artifact)

    def _measured(self, measure: Callable[..., Any], what: Any, signature: Any) -> Any:
        """Measure the kernel on the current device."""
        return self._by_variant(lambda variant: measure(self, self._loaded(variant)[1], what), signature)

    def _by_variant(self, ask: Callable[[Variant], Any], signature: Any = None) -> Any:
        if self._definition.has_variants and signature is None:
            return {variant: ask(variant) for variant in self._known_variants()}
        return ask(self._variants(signature)[0])

    @shortening
    def cubin(self, arch: Arch | None = None, signature: Any = None) -> Any:
        """The linked module (ELF) for one target, as bytes."""
        return self._read(lambda artifact: artifact.cubin, arch, signature)

    @shortening
    def ptx(self, arch: Arch | None = None, signature: Any = None) -> Any:
        """The PTX for one target; "" if it was not kept (`keep_ptx`, `lto`)."""
        return self._read(lambda artifact: artifact.ptx.decode(), arch, signature)

    @shortening
    def inspect_sass(self, arch: Arch | None = None) -> Any:
        """The disassembly for one target, by the toolkit's nvdisasm; for a Numba kernel in Numba's form.

        Raises:
            ToolchainMissingError: nvdisasm is not installed.
        """
        if self._definition.has_variants:
            return self.__getattr__("inspect_sass")(arch)
        from ..toolchain.disassembly import disassemble

        return disassemble(self.cubin(arch))

    params = _figure("parameters", "The parameters, in order: C++ type, offset and size in bytes.")
    regs_per_thread = _figure("registers", "Registers per thread.")
    shared_mem_per_block = _figure("shared_bytes", "Static shared memory per block, in bytes.")
    local_mem_per_thread = _figure("local_bytes", "Local memory per thread, in bytes.")
    const_mem_size = _figure("const_bytes", "Constant memory of the module's own variables, in bytes.")

    @property
    @shortening
    def log(self) -> Any:
        """The compilers' log, stored with the code."""
        return self._read(lambda artifact: artifact.log)

    @property
    @shortening
    def handle(self) -> Any:
        """The driver's function on the current device, an int. Its module stays loaded from then on."""
        return self._by_variant(lambda variant: self._loaded(variant)[1].give_out())

    @property
    @shortening
    def max_threads_per_block(self) -> Any:
        """Largest number of threads per block on the current device."""
        return self._by_variant(lambda variant: self._loaded(variant)[1].attribute("MAX_THREADS_PER_BLOCK"))

    @shortening
    def max_cooperative_grid_blocks(self, block: Any, sharedmem: int = 0, signature: Any = None) -> Any:
        """Number of blocks that the current device runs at once: the largest grid of a cooperative launch.

        Args:
            block: Threads of a block, an integer or one to three of them.
            sharedmem: Dynamic shared memory per block, in bytes.
            signature: Signature of a Numba kernel, as Numba takes it.

        Raises:
            LaunchConfigError: The device does not take such a block.
        """
        from .measures import resident

        return self._measured(resident, launch_shape(1, block, sharedmem), signature)

    @property
    @shortening
    def attributes(self) -> Any:
        """Attributes of the function on the current device, by CuPy's names: `["num_regs"]`."""
        from .measures import attributes

        return self._by_variant(lambda variant: attributes(self._loaded(variant)[1]))

    @shortening
    def occupancy(self, block: Any, sharedmem: int = 0, signature: Any = None) -> Any:
        """Blocks that one multiprocessor of the current device holds at once; see `max_cooperative_grid_blocks`."""
        from .measures import occupancy

        return self._measured(occupancy, launch_shape(1, block, sharedmem), signature)

    @shortening
    def suggested_block(self, sharedmem: int = 0, signature: Any = None) -> Any:
        """Threads of a block at which the current device holds most threads at once, from the driver."""
        from .measures import suggested_block

        return self._measured(suggested_block, sharedmem, signature)

    @shortening
    def time(
        self, grid: Any, block: Any, *args: Any, repeats: int = 20, stream: Any = 0, sharedmem: int = 0, **named: Any
    ) -> float:
        """The median of `repeats` launches in milliseconds, by events on the device, after one launch to warm up.

        Everything between the two events counts: for a kernel of a few microseconds, that includes the launch itself.
        The kernel runs `repeats + 1` times on the same arguments.

        Raises:
            OptionError: `repeats` is not a positive integer.
            LaunchError: The stream is being captured, or a launch failed on the device.
        """
        from .measures import time

        return time(self, (grid, block, stream, sharedmem), args, named, repeats)

    def __getattr__(self, name: str) -> Any:
        if name == "__signature__":  # read by `inspect.signature`
            return self._signature()
        if name == "__defaults__":  # read by the decorators of Numba
            why = "it is a kernel of this cache already; to keep the options of cuda.jit, put cached_kernel above it"
            raise AttributeError(f"cannot compile {self.__name__} with another decorator: {why}")
        if name.startswith("_"):  # Python and its tools probe such names on any object
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self._resolutions.attribute(name)

    # -- for warm-up and bundles --------------------------------------------------------------------

    def _requests(self, arch: Any) -> list[tuple[Target, Variant]]:
        """List the requests to compile: each target, with each variant where the code depends on it."""
        return [(target, variant) for variant in self._variants(None) for target in self._targets(arch)]

    def _count_if_stored(self, target: Target, variant: Variant) -> bool:
        """Check whether a request is stored, and if so count a hit.

        Raises:
            UncacheableError: The request cannot be keyed.
        """
        return self._resolutions.count_if_stored(target, ptx_target(self._arch, target), variant)

    def _identity(self) -> tuple[Component, ...]:
        return self._definition.identity()

    def _to_send(self) -> Any:
        """An object that unpickles as this kernel in another process, without importing the file that defines it."""
        # one that no module has pickles by value
        return self if self._definition.is_sent_by_name else type(self)(self._definition)

    def __repr__(self) -> str:
        name, label, compiled = self.__name__, self._label, self._kernel_at_hand()
        if "__wrapped__" in self.__dict__:
            name = f"{self.__module__}.{self.__qualname__}"
        parameters = f"({', '.join(map(str, compiled.parameters))})" if compiled is not None and compiled.typed else ""
        name = compiled.name if name == label and compiled is not None else name
        return f"<Kernel {name}{parameters}{'' if '.' in name or name == label else f' of {label}'}>"

    def _signature(self) -> Any:
        """The signature for `inspect.signature`; that of C++ is known once it is compiled, and None until then."""
        import inspect
        import keyword

        compiled, thing = self._kernel_at_hand(), self._definition.thing
        if compiled is None:
            return inspect.signature(getattr(thing, "py_func", thing)) if self._definition.has_variants else None
        found: dict[str, inspect.Parameter] = {}
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        for index, each in reversed(list(enumerate(compiled.parameters))):
            name = each.name
            if not name.isidentifier() or keyword.iskeyword(name) or name in found:
                # the parameters before a positional-only one must be positional-only too
                name, kind = f"arg{index}", inspect.Parameter.POSITIONAL_ONLY
            found[name] = inspect.Parameter(name, kind, annotation=each.c_type or f"{each.size} bytes")
        return inspect.Signature(list(found.values())[::-1])

    def _kernel_at_hand(self) -> CompiledKernel | None:
        """The kernel in a resolved artifact; None if there is none yet, or the code depends on the arguments' types."""
        for found in () if self._definition.has_variants else self._resolutions.known().values():
            return self._definition.kernel_in(found.artifact)
        return None

    def __reduce__(self) -> Any:
        return self.__qualname__ if found_by_name(self) is self else (type(self), (self._definition.by_value(),))

    __copy__ = __deepcopy__ = lambda self, *_memo: self  # as of a function


def found_by_name(value: Any) -> Any:
    """The object that any process finds under a value's module and qualified name; None in `__main__`, which is another
    program in the workers of dask."""
    found: Any = None if value.__module__ == "__main__" else sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found


def _is_fixed(value: Any) -> bool:
    """Check for a value that cannot change: a number, text or type, a member of an enumeration, or a tuple of these."""
    if isinstance(value, tuple):
        return all(map(_is_fixed, value))
    kind = type(value)
    return (
        kind in (str, bytes, int, bool, float, complex, NoneType)
        or isinstance(value, type)
        or hasattr(kind, "__members__")
        or (kind.__module__ == "numpy" and kind.__hash__ is not None)
    )


def named_targets(arch: Any) -> tuple[Target, ...] | None:
    """The targets that `arch` names, "native" the current device's; None for None."""
    return None if arch is None else read_arch(arch) or (current_device().target,)


def require_directory(cache: Lookup, what: str, key: str = "", *, is_found: bool = False) -> None:
    """Require that new entries can be written to the configured directory, or that it has the given entry.

    Args:
        cache: The session.
        what: The operation, as in `cannot ...`.
        key: Key of the entry, if it was found or stored; "" if it is not built yet, or its key is not known.
        is_found: Whether the entry was found in some store; then it is enough that the directory can be read.

    Raises:
        KCacheError: A directory was configured and cannot be used.
    """
    local = cache.local
    if cache.settings.directory is None or not cache.stores or not local.directory:
        return
    if (key and local.get_encoded(key)) or (is_found and local.is_usable() and local.tree.status is not None):
        return
    why = local.obstacle()
    if why:
        hint = "name a directory that this user can write to: NUMBA_KCACHE_DIR, or configure(directory=...)"
        raise KCacheError(f"cannot {what}", f"{local.directory} cannot be used: {why}", hint)


def require_lasting(cache: Lookup, what: str) -> None:
    """Require that new entries outlive this process.

    Raises:
        KCacheError: New entries would be kept only in memory, or nowhere, and the mode is not off.
    """
    local = cache.local
    why, place = "" if local.readonly else local.obstacle(), local.place
    if (why or not place) and cache.settings.mode != "off":
        where = f"{place} cannot be used" if place else "kernels would be kept in the memory of this process alone"
        hint = "name a directory to write to: --directory, or NUMBA_KCACHE_DIR"
        raise KCacheError(f"cannot {what}", f"{where}{why and f': {why}'}", hint)


if TYPE_CHECKING:  # at run time `typing` would hold these functions, and through them Numba, until after exit

    @overload
    def cached_kernel(thing: IsSource, name: str, /, **options: Unpack[SourceOptions]) -> SourceKernel: ...
    @overload
    def cached_kernel(thing: IsSource, /, **options: Unpack[SourceOptions]) -> SourceKernel: ...
    @overload
    def cached_kernel(thing: IsNumba, /, **options: Unpack[NumbaOptions]) -> NumbaKernel: ...
    @overload
    def cached_kernel(**options: Unpack[KernelOptions]) -> KernelDecorator: ...


def cached_kernel(thing: Any = None, name: Any = None, /, *more: Any, **options: Any) -> Any:
    """Wrap a kernel so that it is compiled once and loaded from disk by every later process.

    Use it as `@cached_kernel`, `@cached_kernel(arch="auto", ...)`, or call it: `cached_kernel(thing, ...)`.

    Args:
        thing: A function that returns CUDA C++ (annotated `-> str`, or without parameters; with parameters, all with
            defaults, it is a template: see `instantiate`); a `str` of CUDA C++ or PTX; `bytes` of these, or a cubin,
            fatbin or LTO-IR; the tuple of `numba.cuda.compile_ptx`; a `pathlib.Path` to a `.cu`, `.ptx`, `.cubin`,
            `.fatbin` or `.ltoir` file.
        name: The entry in the source, a template instance included (`"axpy<float>"`); also by its keyword. Default:
            the function's name if the source defines it, else the only `__global__`.
        arch: `"auto"` (the current device), `"sm_90"`, `"sm_90a"`, `(9, 0)`, `"compute_80"` (PTX, linked for the
            device), or a list.
        kind: `"cuda"`, `"ptx"`, `"cubin"`, `"fatbin"`, `"ltoir"`, `"numba"` or `"mlir"`, where it cannot be told
            from the thing.
        fastmath, lineinfo, debug, lto: The compilers' options of these names (False).
        std: The language standard, `"c++17"` (NVRTC's).
        defines, include_dirs: Macros, a mapping to `str`, `int` or `None`; folders that are searched for headers.
        max_registers, opt: Registers per thread; level of optimisation, 0 to 3 (3).
        options: Further flags of NVRTC, in this order.
        link: CUDA C++, PTX, LTO-IR, object, archive or fatbin files, or `numba.cuda` LinkableCode.
        signature: C++ types of the parameters, `"float, const float*, int"`: checked against the source; needed for
            the types of PTX.
        depends: Plain values, or Paths of files, whose content enters the key; a list or a mapping.
        keep_ptx: Store the PTX with the cubin (True).
        strict, strided: Refuse to run uncached; accept arrays that are not contiguous (False).
        cooperative, cluster, max_dynamic_shared, carveout: Launch attributes, applied on every device.
        cache: A `KernelCache`; default the process's.

    Returns:
        A `Kernel`, or the decorator that makes one.

    Raises:
        OptionError: The thing or an option cannot be used.
    """
    __tracebackhide__ = True
    if more or "__global__" in str(name):
        what = f"cannot use {(more or (name,))[0]!r:.80} after the source"
        raise OptionError(
            what, "only the name of the kernel stands there", "write cached_kernel(source, name, options=...)"
        )
    if name is not None:
        options = dict(name=name, **options)

    def decorate(thing: Any) -> Kernel:
        __tracebackhide__ = True
        try:
            return Kernel(define(thing, options, depth=2))
        except Exception as error:
            shorten(error)
            raise

    if thing is None:
        return decorate
    try:
        return Kernel(define(thing, options, depth=2))
    except Exception as error:
        shorten(error)
        raise
