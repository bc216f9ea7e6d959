"""A Numba kernel under `cached_kernel`: launched like any other, with one entry for each signature.

Promise     Launches mean what they mean to Numba, whatever the arguments. Arrays and numbers of the exact types that a
            signature was compiled for go straight to the driver; all else goes through a dispatcher of Numba's own,
            which asks the same cache. A warm start refreshes no registry, builds no target context and loads no
            compiler.
Method      Each configuration has a front: the launch function of the signature that it saw last. What that does not
            take comes back here, is typed by Numba, and becomes the front or is Numba's.
Not here    Resolving (numba_cache), packing (launch.numba_arguments), Numba's own objects (launch.numba_*).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .engine.process import process_resolver
from .engine.session import Resolver
from .errors import LaunchError, OptionError
from .frontends.numba.arguments import NumbaLauncher, make_numba_launcher
from .frontends.numba.definition import NumbaPlan, defining_file
from .frontends.numba.dispatcher import (
    DECORATOR_OPTIONS,
    declare,
    dump_function,
    fix_signatures,
    has_fixed_signatures,
    load_function,
    make_dispatcher,
    read_signatures,
    specialize,
    types_of,
)
from .frontends.numba.dispatcher_cache import (
    Choice,
    DispatcherCache,
    Types,
    Uncached,
)
from .frontends.numba.objects import is_dispatcher
from .frontends.source.components import OF_ONE_REQUEST
from .keys.components import Component
from .launch.arguments import Launch
from .launch.config import LaunchShape, check_launch, launch_shape
from .launch.devices import check_interpreter, current_ordinal
from .launch.loader import LoadedKernel
from .launch.streams import numba_stream
from .launchable import (
    BOUND_LIMIT,
    Launchable,
    Request,
    Sent,
)
from .model.artifact import Artifact
from .model.parameter import Parameter
from .model.target import Target, read_arch

if TYPE_CHECKING:
    from .explain.text import Explanation
    from .launch.attributes import LaunchOptions

_ANY = Target(9, 0)

_LAUNCH_OPTIONS = frozenset(("cooperative", "cluster", "max_dynamic_shared"))
"""Launch attributes that Numba has no option for."""

_OWN_OPTIONS = _LAUNCH_OPTIONS | {
    "arch", "kind", "signature", "depends", "strict", "strided", "keep_ptx", "cache", "carveout",
}  # fmt: skip

_NUMBAS_NAMES = frozenset((
    "signatures", "nopython_signatures", "inspect_llvm", "inspect_asm", "inspect_lto_ptx", "inspect_sass",
    "inspect_sass_cfg", "inspect_types", "get_regs_per_thread", "get_const_mem_size", "get_shared_mem_per_block",
    "get_max_threads_per_block", "get_local_mem_per_thread", "get_metadata", "stats", "overloads", "recompile",
    "py_func", "targetoptions", "extensions", "specialized",
))  # fmt: skip
"""What a kernel has of Numba's dispatcher, with the same meaning."""

_On = tuple[NumbaLauncher | None, LoadedKernel, "LaunchOptions | None"]


class NumbaKernel(Launchable):
    """A Numba kernel whose compiled code is kept on disk. Made by `cached_kernel`; launched like a Numba kernel.

    Raises, at the first use of a signature:
        NumbaError: Numba's own: typing, lowering, unsupported features.
        NoDeviceError: A launch without a device.
        ToolchainMissingError: It is not in the cache and the compilers are not installed.
    """

    def __init__(self, thing: Any, options: dict[str, Any]) -> None:
        function = getattr(thing, "py_func", thing)
        self._thing, self._options = thing, options
        super().__init__(read_arch(options.get("arch", "auto")))
        self._given = _decorator_options(options, function)
        self._launch_options = _launch_options(options)
        self._cache_given = options.get("cache")
        self.__wrapped__, self.__doc__, self.__name__ = function, function.__doc__, function.__name__
        self.__qualname__, self.__module__ = function.__qualname__, function.__module__
        self._made: DispatcherCache | None = None
        self._lock = threading.Lock()
        self._launchers: dict[tuple[int, Types], _On] = {}
        self._behind: dict[Any, _Configured] = {}
        self._label, self._file = f"{self.__module__}.{self.__qualname__}", defining_file(function)

    # -- Numba's dispatcher behind it ---------------------------------------------------------------

    def _entries(self) -> DispatcherCache:
        """What is resolved of the kernel; no dispatcher of Numba's is made, nor a target context for it."""
        if self._made is None:
            plan = NumbaPlan(
                declare(self._thing, self._given),
                self._label,
                tuple(self._options.get("depends") or ()),
                bool(self._options.get("strict", False)),
                bool(self._options.get("keep_ptx", True)),
                self._file,
            )
            self._made = DispatcherCache(plan, self._resolver, self._choose)
            self._made.forgotten = self._forget
        return self._made

    def _numbas(self) -> Any:
        """Numba's dispatcher, made when something is to be launched, compiled or looked at by Numba itself."""
        entries = self._entries()
        with self._lock:
            if entries.dispatcher is None:
                dispatcher = make_dispatcher(entries.plan.dispatcher, self._thing)
                dispatcher._cache = entries
                entries.dispatcher = dispatcher
        return entries.dispatcher

    def _is_fixed(self) -> bool:
        """Whether arguments are cast to the signatures that were given, which is for Numba to do."""
        made = None if self._made is None else self._made.dispatcher
        return has_fixed_signatures(self._thing) or has_fixed_signatures(made)

    def _dispatcher(self) -> Any:
        """The dispatcher, which then has every signature that was launched or compiled here."""
        dispatcher = self._numbas()
        fix_signatures(dispatcher)
        if dispatcher._can_compile:
            for types, _target in self._entries().resolved():
                if types not in dispatcher.overloads:
                    dispatcher.compile(types)
        return dispatcher

    def __getattr__(self, name: str) -> Any:
        if name in _NUMBAS_NAMES:
            return getattr(self._dispatcher(), name)
        raise AttributeError(f"a Numba kernel of numba_kcache has no attribute {name!r}")

    def specialize(self, *args: Any) -> Any:
        """A dispatcher of Numba's for exactly the types of these arguments."""
        made = specialize(self._numbas(), args, self._attach)
        if self._launch_options:
            from .frontends.numba.dispatcher_launch import tell

            for kernel in made.overloads.values():
                tell(kernel, self._launch_options)
        return made

    def _attach(self, dispatcher: Any) -> None:
        dispatcher._cache = self._entries().shared_with(dispatcher)

    def _resolver(self) -> Resolver:
        return process_resolver() if self._cache_given is None else self._cache_given.resolver

    # -- launching ----------------------------------------------------------------------------------

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        """The kernel itself, as a class attribute too."""
        return self

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
        self._check_tasks(ntasks)

        def launch(*args: Any) -> None:
            if ntasks:
                block = tpb or self._block_size(args, sharedmem)
                self[self._blocks_for(ntasks, block), block, stream, sharedmem](*args)

        return launch

    def _block_size(self, args: tuple[Any, ...], sharedmem: int) -> int:
        try:
            return self._on_device(types_of(args))[1].potential_block_size(sharedmem)
        except Uncached:
            from_numba = self.specialize(*args).forall(1, 0, 0, sharedmem)
            return int(from_numba._compute_thread_per_block(from_numba.dispatcher))

    def _configure(self, config: Any, shape: LaunchShape, stream: Any) -> Launch:
        return _Configured(self, config, shape, stream)

    def _on_device(self, types: Types) -> _On:
        """Launcher, where the types are for it, kernel on the current device, and what its launches differ in.

        Raises:
            Uncached: It is Numba's to compile.
        """
        found = self._launchers.get((current_ordinal(), types))
        if found is not None and found[1].live[0]:
            return found
        entries = self._entries()
        loaded, artifact = entries.load(types)
        extensions = entries.plan.dispatcher.targetoptions.get("extensions")
        is_straight = not (artifact.attributes.get("debug") or extensions)

        def otherwise(config: tuple[Any, ...], args: tuple[Any, ...]) -> None:
            self._configured(config).otherwise(types, args)

        def relaunch(config: tuple[Any, ...], args: tuple[Any, ...], status: int) -> bool:
            if status != 0 and loaded.live[0]:
                return False
            now = self._on_device(types)[1]
            if now is loaded and current_ordinal() == loaded.device.ordinal:
                return False
            self._configured(config).anew(types, args)
            return True

        launcher, name, options = None, self.__name__, self._told(artifact)
        attributes = options.apply(loaded, name) if options else ()
        if is_straight:
            launcher = make_numba_launcher(
                loaded, name, types, relaunch=relaunch, otherwise=otherwise, attributes=attributes,
                labels=self._labels(types) if self._resolver().settings.debug_launches else None,
            )  # fmt: skip
        self._launchers[loaded.device.ordinal, types] = found = launcher, loaded, options
        return found

    def _told(self, artifact: Artifact) -> LaunchOptions | None:
        """What the user said of launches, and whether the code needs all its blocks at once; None for plain ones."""
        if not artifact.attributes.get("cooperative"):
            return self._launch_options
        from .launch.attributes import LaunchOptions

        return (self._launch_options or LaunchOptions())._replace(cooperative=True)

    def _labels(self, types: Types) -> list[str]:
        return [f"{name}: {kind}" for name, kind in zip(self.__wrapped__.__code__.co_varnames, types, strict=False)]

    def _configured(self, config: Any) -> _Configured:
        """What stands behind the fronts of a configuration, as a front names it: all four, in full."""
        found = self._behind.get(config)
        if found is None:
            grid, block, stream, sharedmem = config
            found = _Configured(self, config, launch_shape(grid, block, sharedmem), stream)
            if len(self._behind) >= BOUND_LIMIT:
                self._behind.clear()
            self._behind[config] = found
        return found

    def _choose(self, target: Target) -> Choice:
        """What to build for a device: exactly what `arch` names, or what the device is."""
        if not self._arch:
            return Choice(target, None, (target.plain,) if target.suffix else (), target.stand_ins())
        real, through = self._real(target.cc), self._through(target)
        if real is not None:
            return Choice(real)
        if through is not None:
            return Choice(target, through, (target.plain,) if target.suffix else (), (through,))
        names = ", ".join(each.name for each in self._arch)
        raise LaunchError(f"cannot launch {self.__name__} on a device of {target}", f"it is built for {names} alone")

    def _forget(self) -> None:
        """Launch anew from the cache. Running work is untouched."""
        for _launcher, loaded, _options in list(self._launchers.values()):
            loaded.live[0] = False
        self._launchers.clear()
        self._unbind()
        self._behind.clear()

    # -- compiling ahead, and looking ---------------------------------------------------------------

    def compile(self, arch: Any = None, signature: Any = None) -> None:
        """Compile and store, without a launch; with an explicit `arch` without GPU, driver or context.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own.
            signature: As Numba takes it, or a list of that; None for the kernel's own.

        Raises:
            UncacheableError: The kernel cannot be keyed.
            NoDeviceError: No target is named and there is no device.
        """
        cache = self._entries()
        for types in self._signatures(signature):
            for target in self._targets(arch):
                if target.virtual:
                    raise OptionError(
                        f"cannot compile {self.__name__} for {target} alone",
                        "a Numba kernel is linked for a device",
                        f"name the device: {target.name.replace('compute', 'sm')!r}",
                    )
                job = cache.job(types, target, self._through(target))
                if job.uncacheable:
                    self._resolver().key(job)  # raises, and says why
                cache.resolve(types, target, self._through(target))

    def key(self, arch: Any = None, signature: Any = None) -> str:
        """The digest of the request for one target and signature, 64 hexadecimal digits. Never compiles.

        Raises:
            UncacheableError: The kernel cannot be keyed.
        """
        types, target = self._signatures(signature)[0], self._targets(arch)[0]
        return self._resolver().key(self._entries().job(types, target, self._through(target)))

    def _requests(self, arch: Any) -> list[Request]:
        return [(target, types) for types in self._signatures(None) for target in self._targets(arch)]

    def _is_stored(self, target: Target, types: Any) -> bool:
        return self._resolver().find(self._entries().job(types, target, self._through(target))) is not None

    def _to_send(self) -> Any:
        owner: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            owner = getattr(owner, name, None)
        if self.__module__ != "__main__" and (owner is self or owner is self._thing):
            return self
        return Sent(_rebuild, dump_function(self._thing), self._options)

    def _identity(self) -> tuple[Component, ...]:
        job = self._entries().job((), _ANY)
        if job.uncacheable:
            self._resolver().key(job)  # raises, and says why
        return tuple(each for each in job.components if each.name not in OF_ONE_REQUEST)

    def explain(self, arch: Any = None, signature: Any = None) -> Explanation:
        """Whether the kernel is in the cache for one target and signature, and if not, why not. Never compiles.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own, or the device.
            signature: As Numba takes it; None for the kernel's own, or the first that was launched or compiled.

        Raises:
            OptionError: There is no signature.
            NoDeviceError: No target is named and there is no device.
        """
        is_auto = arch is None and not self._arch
        target = self._targets(arch)[0]
        choice = self._choose(target) if is_auto else Choice(target, self._through(target))
        return self._entries().explain(self._signatures(signature)[0], choice)

    def cubin(self, arch: Any = None, signature: Any = None) -> Any:
        """The linked module; without a signature a dict of them by signature."""
        return self._by_signature(lambda artifact: artifact.cubin, arch, signature)

    def ptx(self, arch: Any = None, signature: Any = None) -> Any:
        """The PTX before linking; without a signature a dict by signature."""
        return self._by_signature(lambda artifact: artifact.ptx.decode(), arch, signature)

    @property
    def params(self) -> dict[Types, tuple[Parameter, ...]]:
        """The parameters of the cubin, by signature."""
        return self._by_signature(lambda artifact: artifact.entries[0].parameters)  # type: ignore[no-any-return]

    @property
    def log(self) -> dict[Types, str]:
        """What the linker said, by signature."""
        return self._by_signature(lambda artifact: artifact.log)  # type: ignore[no-any-return]

    @property
    def regs_per_thread(self) -> dict[Types, int]:
        """Registers per thread, by signature."""
        return self._by_signature(lambda artifact: artifact.entries[0].registers)  # type: ignore[no-any-return]

    @property
    def shared_mem_per_block(self) -> dict[Types, int]:
        """Static shared memory per block in bytes, by signature."""
        return self._by_signature(lambda artifact: artifact.entries[0].shared_bytes)  # type: ignore[no-any-return]

    @property
    def local_mem_per_thread(self) -> dict[Types, int]:
        """Local memory per thread in bytes, by signature."""
        return self._by_signature(lambda artifact: artifact.entries[0].local_bytes)  # type: ignore[no-any-return]

    @property
    def const_mem_size(self) -> dict[Types, int]:
        """Constant memory of the module's own variables in bytes, by signature."""
        return self._by_signature(lambda artifact: artifact.entries[0].const_bytes)  # type: ignore[no-any-return]

    @property
    def max_threads_per_block(self) -> dict[Types, int]:
        """Most threads of a block on the current device, by signature."""
        return {types: self._on_device(types)[1].attribute("MAX_THREADS_PER_BLOCK") for types in self._known_types()}

    def max_cooperative_grid_blocks(self, block: Any, sharedmem: int = 0, signature: Any = None) -> Any:
        """Most blocks that the current device runs at once: the largest grid of a cooperative launch.

        Args:
            block: Threads of a block, an integer or one to three of them.
            sharedmem: Dynamic shared memory per block, in bytes.
            signature: As Numba takes it; without one the result is a dict by signature.

        Raises:
            LaunchConfigError: The device does not take such a block.
        """
        shape = launch_shape(1, block, sharedmem)

        def most(types: Types) -> int:
            loaded = self._on_device(types)[1]
            check_launch(shape, loaded.limits(shape.shared_bytes), kernel=self.__name__)
            return loaded.resident_blocks(shape.threads_per_block, shape.shared_bytes)

        if signature is not None:
            return most(self._signatures(signature)[0])
        return {types: most(types) for types in self._known_types()}

    def _known_types(self) -> list[Types]:
        """The signatures that have been launched or compiled."""
        return self._entries().resolved_types()

    def _by_signature(self, read: Callable[[Artifact], Any], arch: Any = None, signature: Any = None) -> Any:
        cache = self._entries()
        if signature is not None:
            target = self._targets(arch)[0]
            return read(cache.resolve(self._signatures(signature)[0], target, self._through(target)).artifact)
        wanted = None if arch is None else self._targets(arch)[0]
        resolved = cache.resolved().items()
        return {types: read(each.artifact) for (types, target), each in resolved if wanted in (None, target)}

    def _signatures(self, signature: Any) -> tuple[Types, ...]:
        given = self._options.get("signature") if signature is None else signature
        self._entries()
        found = read_signatures(given) if given is not None else tuple(self._known_types())
        if not found:
            raise OptionError(
                f"cannot compile {self.__name__}", "it has no signature", 'write signature="void(float32[::1], int64)"'
            )
        return found

    def __repr__(self) -> str:
        return f"<NumbaKernel {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> Any:
        owner: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            owner = getattr(owner, name, None)
        if owner is self:
            return self.__qualname__
        return NumbaKernel, (self._thing, self._options)


def _rebuild(function: bytes, options: dict[str, Any]) -> NumbaKernel:
    return NumbaKernel(load_function(function), options)


class _Configured:
    """One launch configuration of a kernel, before its first launch and for all that its front does not take."""

    def __init__(self, kernel: NumbaKernel, config: Any, shape: LaunchShape, stream: Any) -> None:
        self._kernel, self._config, self._shape, self._stream = kernel, config, shape, stream
        self._by_types: dict[Types, Launch] = {}
        self._front: Launch = self._any

    def __call__(self, *args: Any) -> None:
        self._front(*args)

    def _any(self, *args: Any) -> None:
        """Launch arguments of whatever types, and be ready for the next ones of the same."""
        check_interpreter()
        if len(args) != self._kernel.__wrapped__.__code__.co_argcount:
            self._numba(*args)  # Numba says how many it takes
            return
        try:
            types = types_of(args)
        except (ValueError, TypeError) as error:  # Numba's own words, which name no kernel
            error.add_note(self._said)
            raise
        launch = self._by_types.get(types) or self._prepare(types)
        self._front = launch
        self._kernel._keep(self._config, launch)
        launch(*args)

    def _prepare(self, types: Types) -> Launch:
        kernel, shape = self._kernel, self._shape
        try:
            launcher, loaded, options = kernel._on_device(types)
        except Uncached:
            return self._numba
        limits = loaded.limits(shape.shared_bytes)
        check_launch(shape, limits, kernel=kernel.__name__)
        loaded.allow_shared(shape.shared_bytes)
        if options:
            options.check(shape, loaded, kernel.__name__)
        if launcher is None or kernel._is_fixed():
            return self._numba
        over_grids = launcher.over_grids(shape.block, shape.shared_bytes, self._stream)
        if over_grids is not None:
            kernel._keep_row(self._config, loaded.live, limits.grid, over_grids)
        launch = self._by_types[types] = launcher.bind(shape, self._stream)
        return launch

    def otherwise(self, types: Types, args: tuple[Any, ...]) -> None:
        """Launch what the function of these types did not take."""
        if len(args) == len(types) and types_of(args) == types:
            self._numba(*args)  # a host array, say: the same types, but not for the straight way
        else:
            self._any(*args)

    def anew(self, types: Types, args: tuple[Any, ...]) -> None:
        """Launch on the device that is current now, or with the module loaded anew."""
        self._by_types.pop(types, None)
        self._any(*args)

    def _numba(self, *args: Any) -> None:
        """Launch through Numba's own dispatcher."""
        check_interpreter()
        kernel, shape = self._kernel, self._shape
        dispatcher = kernel._numbas()
        fix_signatures(dispatcher)
        options, is_watched = kernel._launch_options, kernel._resolver().settings.debug_launches
        try:
            if options or shape.shared_bytes or is_watched:
                from .frontends.numba.dispatcher_launch import launch_with

                launch_with(dispatcher, shape, self._stream, args, options, is_watched=is_watched)
            else:
                dispatcher[shape.grid, shape.block, numba_stream(self._stream), 0](*args)
        except NotImplementedError as error:  # a type that Numba compiles for and does not launch
            error.add_note(self._said)
            raise

    @property
    def _said(self) -> str:
        return f"while launching the Numba kernel {self._kernel.__module__}.{self._kernel.__qualname__}"


def _launch_options(options: Mapping[str, Any]) -> LaunchOptions | None:
    """The launch attributes that the user gave; None for a kernel of plain launches, which most are."""
    if not any(options.get(name) is not None for name in _LAUNCH_OPTIONS):
        return None
    from .launch.attributes import read_launch_options

    return read_launch_options(options, "numba")


def make_numba_kernel(thing: Any, options: Mapping[str, Any]) -> NumbaKernel:
    """The kernel of a Python function or dispatcher.

    Raises:
        OptionError: The thing or an option cannot be used.
    """
    function = thing.py_func if is_dispatcher(thing) else thing
    if not hasattr(function, "__code__"):
        raise OptionError(f"cannot make a Numba kernel of {thing!r}", f"it is a {type(thing).__name__}")
    return NumbaKernel(thing, dict(options))


def _decorator_options(options: Mapping[str, Any], function: Any) -> dict[str, Any]:
    """The options of `cuda.jit` among those of `cached_kernel`; link files start from the function's folder."""
    given = {name: value for name, value in options.items() if name not in _OWN_OPTIONS and value is not None}
    if options.get("carveout") is not None:
        given["shared_memory_carveout"] = options["carveout"]
    unknown = sorted(given.keys() - set(DECORATOR_OPTIONS))
    if unknown:
        raise OptionError(
            f"cannot use option {unknown[0]!r} here",
            "a Numba kernel does not take it",
            f"it takes {', '.join(sorted({*DECORATOR_OPTIONS, *_OWN_OPTIONS}))}",
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
