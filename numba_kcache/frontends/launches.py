"""Launches of one definition: configurations bound, variants told apart, and loaded kernels kept for each device.

Promise     A kernel is loaded once for each device and variant; a module that is gone, or a device that is not the
            current one any more, is noticed before anything is queued, and the launch goes where it belongs.
Not here    The verbs of a kernel (kernel), packing and loading (launch), and what is loaded (base).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ..engine.session import Session, process_session
from ..errors import LaunchConfigError, OptionError
from ..launch import BOUND_LIMIT, Configurations, Launch, LaunchShape, VariantLaunch, launch_shape
from ..launch.devices import check_interpreter, current_device, current_ordinal
from ..launch.launcher import Launcher
from ..launch.loader import LoadedKernel
from ..model import choose_for_device, read_arch
from .base import Definition, RunsUncached, Variant

if TYPE_CHECKING:
    from ..launch.attributes import LaunchOptions

_OnDevice = tuple[Launcher | None, LoadedKernel, "LaunchOptions | None"]
"""What packs and launches, where anything here can; the loaded kernel; how its launches differ."""


class Launches(Configurations):
    """The base of `Kernel`: all that a launch needs.

    Args:
        definition: What is launched.
    """

    def __init__(self, definition: Definition) -> None:
        super().__init__()
        self._definition, options = definition, definition.options
        self._arch = read_arch(options["arch"]) if "arch" in options else ()
        self._cache = _checked_cache(options["cache"]) if "cache" in options else None
        self.__name__ = definition.name or definition.label
        self._label = definition.label
        self._choose = functools.partial(choose_for_device, self._arch, kernel=self.__name__)
        self._resolutions = definition.make_resolutions(definition, self._session, self._choose)
        self._on_device: dict[tuple[int, Variant], _OnDevice] = {}
        self._variant_launches: dict[Any, VariantLaunch] = {}

    def _session(self) -> Session:
        """The session of the cache in force."""
        return process_session() if self._cache is None else self._cache.session

    def forall(self, ntasks: int, tpb: int = 0, stream: Any = 0, sharedmem: int = 0) -> Launch:
        """A one-dimensional launch of at least `ntasks` threads; the kernel checks its index itself.

        Args:
            ntasks: Threads that are needed; 0 launches nothing.
            tpb: Threads of a block; 0 takes what keeps most threads resident, from the driver.
            stream: As in `kernel[grid, block, stream]`.
            sharedmem: Dynamic shared memory per block, in bytes.

        Raises:
            LaunchConfigError: `ntasks` is negative.
        """
        if ntasks < 0:
            raise LaunchConfigError(f"cannot launch {self.__name__} for {ntasks} tasks", "a count is not negative")
        if ntasks == 0:
            return lambda *_args: None

        def over_tasks(block: int) -> Launch:
            options = self._definition.launch_options
            blocks = -(-ntasks // block)
            if options and options.cluster:
                blocks += -blocks % options.cluster[0]
            return self[blocks, block, stream, sharedmem]

        if tpb or not self._definition.has_variants:
            return over_tasks(tpb or self._block_size((), sharedmem))
        return lambda *args: over_tasks(self._block_size(args, sharedmem))(*args)

    def _configure(self, config: Any, shape: LaunchShape, stream: Any) -> Launch:
        if self._definition.has_variants:
            return self._variant_launch(config, shape, stream)
        launch = self._bound_to(config, shape, stream, None)
        assert launch is not None  # a kind without variants has a launcher
        return launch

    def _bound_to(self, config: Any, shape: LaunchShape, stream: Any, variant: Variant) -> Launch | None:
        """Make the launch function of a variant; None where only the front end's own launch takes it."""
        try:
            launcher, loaded, options = self._loaded(variant)
        except RunsUncached:
            return None
        name = self._definition.name or loaded.entry.name
        limits = loaded.prepare(shape, name)
        if options:
            options.check(shape, loaded, name)
        if launcher is None:
            return None
        over_grids = launcher.over_grids(shape.block, shape.shared_bytes, stream)
        if over_grids is not None:
            self.keep_row(config, loaded.live, limits.grid, over_grids)
        return launcher.bind(shape, stream)

    def _variant_launch(self, config: Any, shape: LaunchShape, stream: Any) -> VariantLaunch:
        check_interpreter()
        otherwise = functools.partial(self._resolutions.launch_otherwise, shape, stream)
        return VariantLaunch(
            self,
            config,
            functools.partial(self._bound_to, config, shape, stream),
            self._definition.variant,
            lambda *args: otherwise(args),
        )

    def _refused(self, variant: Variant, config: tuple[Any, ...], args: tuple[Any, ...]) -> None:
        """Launch what the launcher of a variant did not take; `config` is all four, in full."""
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
        """Launch on the device that is current now, or with the module loaded anew; False if that changes nothing.

        A thread that has no context yet gets one by asking for the kernel.
        """
        before = current_ordinal()
        now = self._loaded(variant)[1]
        if now is loaded and before == loaded.device.ordinal and not loaded.has_lost_its_context():
            return False
        self.unbind()  # what is kept may be for the module or device that was
        self._variant_launches.clear()
        self._bind(config)(*args)
        return True

    def _loaded(self, variant: Variant = None) -> _OnDevice:
        """Load the kernel on the current device, with what launches it there.

        Raises:
            RunsUncached: Only the front end's own launch can run it.
        """
        found = self._on_device.get((current_ordinal(), variant)) if self._on_device else None
        if found is not None and found[1].live[0]:
            return found
        with self._resolutions.lock:
            device, definition = current_device(), self._definition
            found = self._on_device.get((device.ordinal, variant))
            if found is not None and not found[1].has_lost_its_context():
                return found
            session = self._session()
            session.users.add(self)
            resolution = self._resolutions.for_device(device.target, variant, session)
            artifact, key = resolution.artifact, resolution.key or resolution.name
            entry = definition.entry(artifact)
            loaded = session.loader.load(artifact, entry, key, device, stored=resolution.is_stored)
            options = definition.launch_options_of(artifact)
            launcher = definition.launcher(
                loaded,
                variant,
                relaunch=functools.partial(self._relaunch, loaded, variant),
                attributes=options.apply(loaded, self._name_on(loaded)) if options else (),
                artifact=artifact,
                debug=session.settings.debug_launches,
                otherwise=functools.partial(self._refused, variant),
            )
            self._on_device[device.ordinal, variant] = found = launcher, loaded, options
            return found

    def _name_on(self, loaded: LoadedKernel) -> str:
        return self._definition.name or loaded.entry.name

    def _block_size(self, args: tuple[Any, ...], sharedmem: int) -> int:
        try:
            variant = self._definition.variant(args)
            if variant is None and self._definition.has_variants:
                return self._resolutions.block_size_otherwise(args, sharedmem)
            loaded = self._loaded(variant)[1]
        except RunsUncached:
            return self._resolutions.block_size_otherwise(args, sharedmem)
        loaded.prepare(launch_shape(1, 1, sharedmem), self._name_on(loaded))
        return loaded.potential_block_size(sharedmem)

    def forget(self) -> None:
        """Resolve anew at the next launch. Running work is untouched."""
        with self._resolutions.lock:
            for _launcher, loaded, _options in list(self._on_device.values()):
                loaded.live[0] = False
            self._on_device.clear()
            self._variant_launches.clear()
            self.unbind()
            self._resolutions.forget()


def _checked_cache(cache: Any) -> Any:
    if cache is not None and not hasattr(type(cache), "session"):  # KernelCache stands above this module
        raise OptionError(f"cannot use cache={cache!r}", f"it is a {type(cache).__name__}", "give a KernelCache")
    return cache
