"""`cached_kernel`: what users put above a function, a source or a file, and the kernel they get.

Promise     Decorating compiles nothing, calls nothing of the user's and imports neither Numba nor CUDA. A kernel is
            resolved once for each target in a process; from then on `kernel[grid, block](args)` only packs and
            launches.
Not here    What the thing is and its options say (plans), what a job holds (jobs), finding and building artifacts
            (resolver), loading and packing (launch).
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

from .errors import LaunchError, OptionError, UncacheableError
from .inputs.source import SourceDefinition, define_function, template_defaults
from .jobs import Job, source_job
from .keys.components import Component
from .keys.requests import OF_ONE_REQUEST
from .launch.arguments import Launch, Launcher
from .launch.config import LaunchShape, check_launch, launch_shape
from .launch.devices import current_device, current_ordinal
from .launch.loader import LoadedKernel, make_launcher
from .launchable import Launchable, Sent
from .lookup import Resolution
from .model.artifact import Artifact, Entry
from .model.event import Event, EventKind
from .model.parameter import Parameter
from .model.request import SourceRequest
from .model.target import Target, UnknownTargetError, read_arch
from .numba_kernel import NumbaKernel, make_numba_kernel
from .plans import SourcePlan, cache_of, checked_option, define, launch_options, plan_of
from .process_cache import process_resolver
from .resolver import Resolver

if TYPE_CHECKING:
    from .observe.explain import Explanation
    from .toolchain.libraries import Toolchain
    from .toolchain.time_trace import TimeTrace

_UNCACHED = itertools.count()
"""Names for what has no key; never an id, which another object may get."""

_ANY = Target(9, 0)


class CachedKernel(Launchable):
    """A kernel whose compiled code is kept on disk. Made by `cached_kernel`; launched like a Numba kernel.

    `kernel[grid, block](args)`, `kernel[grid, block, stream]`, `kernel[grid, block, stream, sharedmem]`: grid and
    block are integers or tuples of one to three, stream is Numba's, cuda.core's, CuPy's, PyTorch's or a handle,
    sharedmem is dynamic shared memory per block in bytes.

    Raises, at the first use:
        CompileError, LinkError, EntryError, OptionError: The source or an option is at fault.
        NoDeviceError: A launch without a device.
        ToolchainMissingError: It is not in the cache and the compilers are not installed.
    """

    def __init__(self, thing: Any, plan: SourcePlan, options: dict[str, Any]) -> None:
        self._plan, self._options = plan, options
        super().__init__(read_arch(options.get("arch", "auto")))
        self._strided = bool(checked_option(options, "strided", bool))
        self._cache = cache_of(options)
        self._launch_options = launch_options(options, plan.definition.kind)
        self._label = plan.definition.label
        self.__name__ = plan.definition.guess or plan.name or plan.definition.label
        self.__qualname__ = getattr(thing, "__qualname__", self.__name__)
        self.__module__ = (getattr(thing, "__module__", None) if callable(thing) else None) or __name__
        self.__doc__ = getattr(thing, "__doc__", None) if callable(thing) else None
        if callable(thing):
            self.__wrapped__ = thing
        self._lock = threading.RLock()
        self._text: str | bytes | None = None
        self._instances: dict[Any, CachedKernel] = {}
        self._resolved: dict[tuple[Target, Target | None], Resolution] = {}
        self._launchers: dict[int, tuple[Launcher, LoadedKernel]] = {}

    # -- launching ----------------------------------------------------------------------------------

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
        if ntasks == 0:
            return lambda *_args: None
        block = tpb
        if not block:
            launcher, loaded = self._loaded()
            check_launch(launch_shape(1, 1, sharedmem), loaded.limits(sharedmem), kernel=launcher.kernel)
            block = loaded.potential_block_size(sharedmem)
        return self[self._blocks_for(ntasks, block), block, stream, sharedmem]

    def _configure(self, config: Any, shape: LaunchShape, stream: Any) -> Launch:
        launcher, loaded = self._loaded()
        limits = loaded.limits(shape.shared_bytes)
        check_launch(shape, limits, kernel=launcher.kernel)
        loaded.allow_shared(shape.shared_bytes)
        if self._launch_options:
            self._launch_options.check(shape, loaded, launcher.kernel)
        launch = launcher.bind(shape, stream)
        over_grids = launcher.over_grids(shape.block, shape.shared_bytes, stream)
        if over_grids is not None:
            self._keep_row(config, loaded.live, limits.grid, over_grids)
        return launch

    def _relaunch(self, loaded: LoadedKernel, config: Any, args: tuple[Any, ...], status: int) -> bool:
        """Launch on the device that is current now, or with the module loaded anew; False if that changes nothing.

        A thread that has no context yet gets one by asking for the kernel.
        """
        before = current_ordinal()
        now = self._loaded()[1]
        if now is loaded and before == loaded.device.ordinal and not loaded.has_lost_its_context():
            return False
        self._unbind()  # what is kept may be for the module or device that was
        self._bind(config)(*args)
        return True

    def _loaded(self) -> tuple[Launcher, LoadedKernel]:
        """Launcher and kernel for the current device."""
        found = self._launchers.get(current_ordinal())
        if found is not None and found[1].live[0]:
            return found
        with self._lock:
            device = current_device()
            found = self._launchers.get(device.ordinal)
            if found is not None and not found[1].has_lost_its_context():
                return found
            resolver = self._resolver()
            resolution = self._resolve_for_device(device.target)
            key = resolution.key or self._unkeyed()
            entry = self._pick(resolution.artifact)
            loaded = resolver.loader.load(resolution.artifact, entry, key, device, stored=resolution.is_stored)
            relaunch = functools.partial(self._relaunch, loaded)
            name = self._plan.definition.guess or entry.name
            launcher = make_launcher(
                loaded,
                name,
                strided=self._strided,
                relaunch=relaunch,
                attributes=self._launch_options.apply(loaded, name) if self._launch_options else (),
                debug=resolver.settings.debug_launches,
            )
            found = launcher, loaded
            self._launchers[device.ordinal] = found
            return found

    def _unkeyed(self) -> str:
        return f"uncached {next(_UNCACHED)}"

    # -- resolving ----------------------------------------------------------------------------------

    def _resolver(self) -> Resolver:
        return process_resolver() if self._cache is None else self._cache.resolver

    def _source(self) -> str | bytes:
        if self._text is None:
            self._text = self._plan.definition.text()
        return self._text

    def _resolve_for_device(self, target: Target) -> Resolution:
        """The artifact that suits a device: exactly what `arch` names, or what the device is."""
        if not self._arch:
            return self._resolve_newest(target)
        real, through = self._real(target.cc), self._through(target)
        if real is not None:
            return self._resolve(real, None)
        if through is not None:
            return self._resolve(target, through, (target.plain,) if target.suffix else (), (through,))
        names = ", ".join(each.name for each in self._arch)
        raise LaunchError(f"cannot launch {self.__name__} on a device of {target}", f"it is built for {names} alone")

    def _resolve_newest(self, target: Target) -> Resolution:
        """For the device itself; where NVRTC does not know it yet, the newest PTX that it makes, and one warning."""
        try:
            return self._resolve(target, None, (target.plain,) if target.suffix else (), target.stand_ins())
        except UnknownTargetError as error:
            if error.newest >= target.plain:
                raise
            newest = error.newest.as_virtual
            reason = f"NVRTC does not know {target}; {self.__name__} is compiled to {newest} for the driver to finish"
            fields = {"kernel": self._plan.definition.label, "target": target.name, "reason": reason}
            self._resolver().events.emit(Event(EventKind.FALLBACK, fields))
            return self._resolve(newest, None)

    def _resolve(
        self,
        target: Target,
        through: Target | None,
        others: Iterable[Target] = (),
        stand_ins: Iterable[Target] = (),
    ) -> Resolution:
        with self._lock:
            found = self._resolved.get((target, through))
            if found is None:
                resolver = self._resolver()
                resolver.users.add(self)
                found = resolver.resolve(
                    self._job(target, through),
                    (functools.partial(self._job, each, through) for each in others),
                    (functools.partial(self._job, each) for each in stand_ins),
                )
                self._resolved[target, through] = found
            return found

    def _job(self, target: Target, through: Target | None = None) -> Job:
        job = source_job(self._plan, self._source(), target, through)
        plan, lazy = self._plan, self._plan.module is not None and self._plan.module.lazy
        if through is None or job.headers or plan.link or plan.options.lto or lazy:
            return job
        return job._replace(build=functools.partial(self._build_through, job, through))

    def _own_job(self, target: Target) -> Job:
        """The job for a target that somebody names: of which a launch on such a device asks."""
        return self._job(target, self._through(target))

    def _build_through(self, job: Job, through: Target, toolchain: Toolchain, trace: TimeTrace | None) -> Artifact:
        """Build by way of PTX: from that alone, where `compile` has stored it."""
        stored = None if job.uncacheable else self._resolver().find(self._job(through))
        if stored is None or not stored.artifact.ptx:
            return job.build(toolchain, trace)
        from .toolchain.source_build import link_stored

        definition, options = self._plan.definition, self._plan.options
        request = SourceRequest(definition.kind, definition.label, "", None, None, job.target, options)
        return link_stored(request, stored.artifact)

    def _is_stored(self, target: Target, types: Any) -> bool:
        return self._resolver().find(self._own_job(target)) is not None

    def _to_send(self) -> Any:
        return Sent(_rebuild, *self._portable())

    def _identity(self) -> tuple[Component, ...]:
        return tuple(each for each in self._job(_ANY).components if each.name not in OF_ONE_REQUEST)

    def _at_hand(self) -> Resolution:
        """An artifact to ask about: one that is resolved, else the one for the kernel's first target."""
        for found in self._resolved.values():
            return found
        return self._resolve(self._targets(None)[0], None)

    def forget(self) -> None:
        """Resolve anew at the next launch. Running work is untouched."""
        with self._lock:
            for _launcher, loaded in self._launchers.values():
                loaded.live[0] = False
            self._resolved.clear()
            self._launchers.clear()
            self._unbind()

    # -- templates ----------------------------------------------------------------------------------

    def instantiate(self, **values: Any) -> CachedKernel:
        """The kernel whose source the function returns for these values; the same object for the same values.

        `kernel[...]` itself uses the defaults.

        Args:
            values: Parameters of the function that returns the source, by name.

        Raises:
            OptionError: The function has no such parameter, a value cannot be told from others (it has no hash), or
                the kernel was not made of a function.
        """
        function = getattr(self, "__wrapped__", None)
        if function is None:
            raise OptionError(f"cannot instantiate {self.__name__}", "only a function that returns source has values")
        defaults = template_defaults(function)
        unknown = [name for name in values if name not in defaults]
        if unknown:
            raise OptionError(
                f"cannot instantiate {self.__name__} with {unknown[0]}={values[unknown[0]]!r}",
                f"its parameters are {', '.join(defaults) or 'none'}",
            )
        full = {**defaults, **values}
        key = tuple((type(value), value, repr(value)) for value in full.values())  # -0.0 is 0.0, and (True,) is (1,)
        with self._lock:
            try:
                found = self._instances.get(key)
            except TypeError as error:
                raise OptionError(f"cannot instantiate {self.__name__} with {values!r}", str(error)) from None
            if found is None:
                definition = define_function(function, self._plan.definition.kind, full)
                found = self._instances[key] = _kernel_of(function, definition, self._options)
            return found

    # -- compiling ahead, and looking ---------------------------------------------------------------

    def compile(self, arch: Any = None) -> None:
        """Compile and store, without a launch; with an explicit `arch` without GPU, driver or context.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own.

        Raises:
            UncacheableError: The kernel cannot be keyed.
            NoDeviceError: No target is named and there is no device.
        """
        for target in self._targets(arch):
            job = self._own_job(target)
            if job.uncacheable:
                self._resolver().key(job)  # raises, and says why
            found = self._resolve(target, self._through(target))
            if found.uncacheable:
                raise UncacheableError(f"cannot cache {job.label}", found.uncacheable)

    def key(self, arch: Any = None) -> str:
        """The digest of the request for one target, 64 hexadecimal digits. Never compiles.

        Raises:
            UncacheableError: The kernel cannot be keyed.
        """
        return self._resolver().key(self._own_job(self._targets(arch)[0]))

    def explain(self, arch: Any = None, signature: Any = None) -> Explanation:
        """Whether the kernel is in the cache for one target, and if not, why not. Never compiles, changes nothing.

        Args:
            arch: As in `cached_kernel`; None for the kernel's own, or the device.
            signature: None; Numba kernels have more than one.

        Raises:
            OptionError: A signature is given.
            NoDeviceError: No target is named and there is no device.
        """
        if signature is not None:
            raise OptionError(f"cannot explain {self.__name__} for a signature", "it is the same for all arguments")
        if arch is None and not self._arch:
            target = current_device().target
            others = [functools.partial(self._job, target.plain)] if target.suffix else []
            stand_ins = (functools.partial(self._job, each) for each in target.stand_ins())
            return self._resolver().explain(self._job(target), others, stand_ins)
        return self._resolver().explain(self._own_job(self._targets(arch)[0]))

    def cubin(self, arch: Any = None) -> bytes:
        """The linked module for one target."""
        return self._artifact(arch).cubin

    def ptx(self, arch: Any = None) -> str:
        """The PTX for one target; "" where it was not kept (`keep_ptx`, `lto`)."""
        return self._artifact(arch).ptx.decode()

    def _artifact(self, arch: Any) -> Artifact:
        if arch is None:
            return self._at_hand().artifact
        target = self._targets(arch)[0]
        return self._resolve(target, self._through(target)).artifact

    def inspect_sass(self, arch: Any = None) -> str:
        """The disassembly for one target, by the toolkit's nvdisasm.

        Raises:
            ToolchainMissingError: nvdisasm is not installed.
        """
        from .launch.disassembly import disassemble

        return disassemble(self.cubin(arch))

    @property
    def _entry(self) -> Entry:
        return self._pick(self._at_hand().artifact)

    def _pick(self, artifact: Artifact) -> Entry:
        return artifact.entries[0]

    @property
    def params(self) -> tuple[Parameter, ...]:
        """The parameters, in order: C++ type, offset and size in bytes."""
        return self._entry.parameters

    @property
    def log(self) -> str:
        """What the compilers said, kept on hits."""
        return self._at_hand().artifact.log

    @property
    def regs_per_thread(self) -> int:
        """Registers per thread."""
        return self._entry.registers

    @property
    def shared_mem_per_block(self) -> int:
        """Static shared memory per block, in bytes."""
        return self._entry.shared_bytes

    @property
    def local_mem_per_thread(self) -> int:
        """Local memory per thread, in bytes."""
        return self._entry.local_bytes

    @property
    def const_mem_size(self) -> int:
        """Constant memory of the module's own variables, in bytes."""
        return self._entry.const_bytes

    @property
    def max_threads_per_block(self) -> int:
        """Most threads of a block on the current device."""
        return self._loaded()[1].attribute("MAX_THREADS_PER_BLOCK")

    def max_cooperative_grid_blocks(self, block: Any, sharedmem: int = 0) -> int:
        """Most blocks that the current device runs at once: the largest grid of a cooperative launch.

        Args:
            block: Threads of a block, an integer or one to three of them.
            sharedmem: Dynamic shared memory per block, in bytes.

        Raises:
            LaunchConfigError: The device does not take such a block.
        """
        launcher, loaded = self._loaded()
        shape = launch_shape(1, block, sharedmem)
        check_launch(shape, loaded.limits(shape.shared_bytes), kernel=launcher.kernel)
        return loaded.resident_blocks(shape.threads_per_block, shape.shared_bytes)

    def __repr__(self) -> str:
        return f"<CachedKernel {self.__module__}.{self.__qualname__}>"

    def __reduce__(self) -> Any:
        import sys

        owner: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            owner = getattr(owner, name, None)
        if owner is self:
            return self.__qualname__
        return _rebuild, self._portable()

    def _portable(self) -> tuple[SourceDefinition, dict[str, Any]]:
        """For what cannot be imported (nested, made of text, bound to another name): its source, where it stood, and
        its options."""
        text = self._source()
        give = functools.partial(bytes, text) if isinstance(text, bytes) else functools.partial(str, text)
        definition = self._plan.definition._replace(text=give)
        return definition, self._options


@overload
def cached_kernel(thing: Any, /, **options: Any) -> CachedKernel: ...


@overload
def cached_kernel(**options: Any) -> Callable[[Any], CachedKernel]: ...


def cached_kernel(thing: Any = None, /, **options: Any) -> Any:
    """Wrap a kernel so that it is compiled once and launched from disk ever after.

    Use it as `@cached_kernel`, `@cached_kernel(arch="auto", ...)`, or call it: `cached_kernel(thing, ...)`.

    Args:
        thing: A function that returns CUDA C++ (annotated `-> str`, or without parameters; with parameters, all with
            defaults, it is a template: see `instantiate`); a `str` of CUDA C++ or PTX; `bytes` of these, or a cubin,
            fatbin or LTO-IR; the tuple of `numba.cuda.compile_ptx`; a `pathlib.Path` to a `.cu`, `.ptx`, `.cubin`,
            `.fatbin` or `.ltoir` file.
        name: The entry in the source, a template instance included (`"axpy<float>"`). Default: the function's name
            if the source defines it, else the only `__global__`.
        arch: `"auto"` (the current device), `"sm_90"`, `"sm_90a"`, `(9, 0)`, `"compute_80"` (PTX, linked for the
            device), or a list.
        kind: `"cuda"`, `"ptx"`, `"cubin"`, `"fatbin"`, `"ltoir"` or `"numba"`, where it cannot be told from the thing.
        fast_compile: For development: `"min"`, `"mid"` or `"max"` compile faster to slower code (False).
        fastmath, std, defines, include_dirs, max_registers, lineinfo, debug, lto, opt, options: How to compile.
        link: CUDA C++, PTX, LTO-IR, object, archive or fatbin files, or `numba.cuda` LinkableCode.
        signature: C++ types of the parameters, `"float, const float*, int"`: held against the source; needed for
            the types of PTX.
        depends: Plain values, or Paths, whose content enters the key.
        keep_ptx: Keep the PTX beside the cubin (True).
        strict: Refuse to run uncached (False).
        strided: Take arrays that do not lie in one piece (False).
        cooperative, cluster, max_dynamic_shared, carveout: Launch attributes, applied on every device.
        cache: A `KernelCache`; default the process's.

    Returns:
        A `CachedKernel`, or the decorator that makes one.

    Raises:
        OptionError: The thing or an option cannot be used.
    """
    if thing is None:
        return lambda given: make_kernel(given, options, depth=3)
    return make_kernel(thing, options, depth=3)


def make_kernel(thing: Any, options: dict[str, Any], *, depth: int) -> CachedKernel | NumbaKernel:
    """The kernel of a thing and options as `cached_kernel` takes them; its user stands `depth` frames up."""
    thing, definition = define(thing, options.get("kind"), depth=depth + 1)
    return make_numba_kernel(thing, options) if definition is None else _kernel_of(thing, definition, options)


def _kernel_of(thing: Any, definition: SourceDefinition, options: dict[str, Any]) -> CachedKernel:
    return CachedKernel(thing, plan_of(definition, options), options)


def _rebuild(definition: SourceDefinition, options: dict[str, Any]) -> CachedKernel:
    return _kernel_of(definition.text(), definition, options)
