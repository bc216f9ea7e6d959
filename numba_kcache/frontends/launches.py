"""Launches of one definition: bind configurations, find variants, and keep loaded kernels for each device.

Promise     `kernel[config]` of a known configuration is one dict look-up. Memory is bounded, even if each grid is new.
            A kernel is loaded once for each device and variant. Before anything is queued, a launch notices that its
            module was unloaded or that another device is current, and loads or selects the right module.
Method      The launch of a configuration is kept from its second use on. For a block, stream and shared memory that
            were bound once, a row binds any grid within the device's limits without checking them again.
Not here    Methods of a kernel (kernel), packing and loading (launch), and resolutions (base).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from ..engine.session import Session, checked_cache, process_session
from ..errors import CodeRefusedError, LaunchConfigError, shorten, shortening
from ..launch import GRID_LIMIT, BindGrid, Dim3, Launch, LaunchShape, is_one_stream, launch_shape, read_extents
from ..launch.devices import check_interpreter, current_device, current_ordinal, stream_handle
from ..launch.launcher import Launcher
from ..launch.loader import LoadedKernel
from ..model import choose_for_device, read_arch
from .base import Definition, RunsUncached, Variant

if TYPE_CHECKING:
    from ..launch.attributes import LaunchOptions

_OnDevice = tuple[Launcher | None, LoadedKernel, "LaunchOptions | None"]
"""The launcher, None if only the front end's own launch works; the loaded kernel; its launch options, if any."""


BOUND_LIMIT = 256
"""Limit of the launch configurations that a kernel keeps; when it is exceeded, all are dropped and bound again."""

_lines: dict[tuple[int, int, int], LaunchShape] = {}  # by grid, block and shared memory, for all kernels
_Row = tuple[list[bool], Dim3, BindGrid]
"""A binding for any grid with one block, stream and shared memory: the kernel's `live`, the largest grid, and the
function."""


class Configurations:
    """The base of kernels: indexing with a configuration returns the function that launches."""

    __name__: str
    _zero: Any = None  # the stream that the integer 0 names, as in `Call.stream`
    _bound: dict[Any, Launch]
    _seen: dict[Any, None]  # configurations used once
    _rows: dict[Any, _Row]

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
        config = "grid, block"
        if len(args) == 3 and all(isinstance(each, tuple) for each in args):  # as CuPy's kernels are launched
            config = ", ".join(str(each[0] if len(each) == 1 else each) for each in args[:2])
        raise LaunchConfigError(
            f"cannot launch {self.__name__}", "it has no grid and block", f"write {name}[{config}](...)"
        )

    def _configure(self, config: Any, shape: LaunchShape, stream: Any) -> Launch | None:
        """Make the launch of a configuration, given as written and as parsed."""
        raise NotImplementedError

    def _in_clusters(self, cluster: Any) -> Configurations | None:
        """The kernel launched in clusters of this shape; None if this kind's configuration has no such item."""
        return None

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
        unset: Any = None
        grid, block, stream, sharedmem = (*config, *(unset, 0)[count - 2 :])  # type: ignore[misc]
        if type(stream) is int and not stream:
            stream = self._zero
        if row is not None and row[0][0]:
            x, y, z = (grid, 1, 1) if type(grid) is int else read_extents(grid, "grid")
            _, (most_x, most_y, most_z), bind = row
            if 1 <= x <= most_x and 1 <= y <= most_y and 1 <= z <= most_z:
                with_grid = bind(x, y, z)
                _put(self._bound if seen else self._seen, config, with_grid if seen else None)
                return with_grid
        is_line = type(grid) is type(block) is type(sharedmem) is int
        shape = _lines.get((grid, block, sharedmem)) if is_line else launch_shape(grid, block, sharedmem)
        if shape is None:
            if len(_lines) >= BOUND_LIMIT:
                _lines.clear()
            shape = _lines[grid, block, sharedmem] = LaunchShape((grid, 1, 1), (block, 1, 1), sharedmem)
        launch = self._configure(config, shape, stream)
        assert launch is not None  # a kind without variants has a launcher
        _put(self._bound if seen else self._seen, config, launch if seen else None)
        return launch

    def keep(self, config: Any, launch: Launch) -> None:
        """Keep the launch that `kernel[config]` returns from now on."""
        _put(self._bound, config, launch)

    def keep_row(self, config: Any, live: list[bool], most: Dim3, bind: BindGrid) -> None:
        """Bind further grids of this block, stream and shared memory by `bind`, while `live[0]`."""
        _put(self._rows, config[1:], (live, most, bind))

    def unbind(self) -> None:
        """Drop all bound configurations."""
        self._bound.clear()
        self._seen.clear()
        self._rows.clear()


def _put(kept: dict[Any, Any], config: Any, value: Any) -> None:
    if len(kept) >= BOUND_LIMIT:
        kept.clear()
    try:
        kept[config] = value
    except TypeError:  # the configuration contains a list, and is bound again each time
        pass


class Launches(Configurations):
    """The base of `Kernel`: everything that a launch needs.

    Args:
        definition: The definition of the kernel.
    """

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
        self._clustered: dict[Any, Configurations] = {}

    def _in_clusters(self, cluster: Any) -> Configurations | None:
        """The same kernel, launched in clusters of this shape."""
        definition = self._definition
        if cluster is None or not definition.takes_cluster:
            return self if definition.takes_cluster else None
        shape = cluster if isinstance(cluster, int) else tuple(cluster)
        found = self._clustered.get(shape)
        if found is None:
            made = type(self)(type(definition)(definition.thing, {**definition.options, "cluster": shape}))  # type: ignore[call-arg]
            found = self._clustered.setdefault(shape, made)
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
        if launcher is None:
            loaded.prepare(shape, self._name_on(loaded))
        launch = None if launcher is None else launcher.bind(shape, stream)
        if options:
            options.check(shape, loaded, self._name_on(loaded))
        if launcher is not None and self._seen and not launcher.attributes:
            bind = functools.partial(
                launcher.over_grids, shape.block, shape.shared_bytes, stream_handle(stream), stream
            )
            self.keep_row(config, loaded.live, GRID_LIMIT, bind)
        return launch

    def _variant_launch(self, config: Any, shape: LaunchShape, stream: Any) -> VariantLaunch:
        check_interpreter()

        def otherwise(*args: Any) -> None:
            from ..launch.typed import around

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
            if len(self._variant_launches) >= BOUND_LIMIT:
                self._variant_launches.clear()
            self._variant_launches[config] = found
        found.refused(variant, args)

    def _relaunch(
        self, loaded: LoadedKernel, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...], _status: int
    ) -> bool:
        """Launch on the device that is current now, or with the module loaded again; False if neither has changed.

        A thread without a context gets one when the kernel is loaded.
        """
        before = current_ordinal()
        now = self._loaded(variant)[1]
        if now is loaded and before == loaded.device.ordinal and not loaded.has_lost_its_context():
            return False
        self.unbind()  # bound launches may be for the previous module or device
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
        if found is not None and found[1].live[0]:
            return found
        shared, loaded = resolutions.shared, None
        if shared is not None and shared[2].is_current():
            session, resolution, module = shared
            session.users.add(self)
            try:
                loaded = module.kernel(definition.entry(resolution.artifact))
            except CodeRefusedError:
                pass  # the same error comes again below, and is handled there
        if loaded is None:
            device = current_device()
            found = on_device.get((device.ordinal, variant))
            if found is not None and not found[1].has_lost_its_context():
                return found
            session = self._session()
            session.users.add(self)
            resolution = resolutions.for_device(device.target, variant, session)
            artifact, key, load = resolution.artifact, resolution.key or resolution.name, session.loader.load
            try:
                loaded = load(artifact, definition.entry(artifact), key, device, stored=resolution.is_stored)
            except CodeRefusedError as error:
                resolutions.give_up(resolution, error)
                resolution = resolutions.for_device(device.target, variant, session)
                artifact, key = resolution.artifact, resolution.key or resolution.name
                loaded = load(artifact, definition.entry(artifact), key, device, stored=False)
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
        return self._definition.name or loaded.entry.name

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
        self.unbind()


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
        kernel: Configurations,
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
        self._kernel.keep(self._config, found)
        found(*args)

    def refused(self, variant: Hashable, args: tuple[Any, ...]) -> None:
        """Launch arguments that a variant's launcher refused: by `otherwise` if they are of that same variant."""
        if self._variant_of(args) == variant:
            self._otherwise(*args)  # for example a host array: of the same type, but not for the launcher
        else:
            self.launch(*args)
