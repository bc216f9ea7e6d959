"""`cached_kernel`, which wraps a function, a source or a file, and `Kernel`, the class of the result.

Promise     Decorating compiles nothing, calls no user code and imports neither Numba nor CUDA. A kernel is resolved
            once for each target and variant in a process; from then on `kernel[grid, block](args)` only packs the
            arguments and launches.
Not here    Recognising the thing and reading its options (frontends), finding and building artifacts (engine), loading
            and packing (launch), modules (module).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..engine import Lookup, Request
from ..errors import KCacheError, LaunchError, OptionError, shorten, shortening
from ..frontends import Definition, Launches, Variant, define
from ..keys import Component
from ..launch import current_device, launch_shape
from ..model import Artifact, Choice, Entry, Resolution, Target, ptx_target, read_arch

if TYPE_CHECKING:
    from typing import Unpack, overload

    from ..explanation.text import Explanation
    from ..frontends.options import Arch, KernelOptions, NumbaOptions, SourceOptions
    from .typed import IsNumba, IsSource, KernelDecorator, NumbaKernel, SourceKernel


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

    def _exactly(self, target: Target, variant: Variant) -> Resolution:
        found = self._resolutions.exactly(target, ptx_target(self._arch, target), variant)
        self._definition.entry(found.artifact)  # raises EntryError if there is no such kernel
        return found

    # -- templates ----------------------------------------------------------------------------------

    @shortening
    def instantiate(self, **values: Any) -> Kernel:
        """The kernel whose source the function returns for these values; the same object for the same values.

        `kernel[...]` itself uses the defaults.

        Args:
            values: Parameters of the function that returns the source, by name.

        Raises:
            OptionError: No such parameter, a value that is not hashable, or a kernel not made of a function.
        """
        full = self._definition.template_values(values)
        # with types and texts, since -0.0 == 0.0 and (True,) == (1,)
        key = tuple((type(value), value, repr(value)) for value in full.values())
        try:
            found = self._instances.get(key)
        except TypeError as error:
            raise OptionError(
                f"cannot instantiate {self.__name__} with {values!r}",
                str(error),
                "give numbers, text, or tuples of these",
            ) from None
        return found or self._instances.setdefault(key, type(self)(self._definition.instantiate(full)))

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
                self._definition.check_target(target)
                request = self._request(target, variant)
                if request.uncacheable:
                    raise request.refusal(request.uncacheable)
                if request.covered:
                    from ..observe.log import INFO, record

                    record(INFO, f"depends= of {request.label} represents: {', '.join(request.covered)}")
                found = self._exactly(target, variant)
                if found.uncacheable:
                    raise request.refusal(found.uncacheable)
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
        is_auto = arch is None and not self._arch
        choice = self._resolutions.choose(target) if is_auto else Choice(target, ptx_target(self._arch, target))
        found = self._resolutions.explain(choice, variant)
        if found.outcome == "miss" and not is_auto:
            with contextlib.suppress(LaunchError):  # its `arch` names no target for such a device
                of_launch = self._resolutions.explain(self._resolutions.choose(target), variant, asks_why=False)
                return found._replace(instead=of_launch.target if of_launch.is_hit else "")
        return found

    def _any_artifact(self) -> Artifact:
        """Any resolved artifact of the kernel; if there is none, the one for its first target."""
        for found in self._resolutions.known().values():
            return found.artifact
        return self._exactly(self._targets(None)[0], None).artifact

    def _read(self, read: Callable[[Artifact], Any], arch: Any = None, signature: Any = None) -> Any:
        """Apply `read` to the artifact. With variants and no signature: a dict of the results for all known ones."""
        definition, known = self._definition, self._resolutions.known()
        target = None if arch is None else self._targets(arch)[0]
        if definition.has_variants and signature is None:
            return {
                variant: read(each.artifact)
                for (known_target, _, variant), each in known.items()
                if target is None or target == known_target
            }
        if target is None and not definition.has_variants:
            self._variants(signature)
            return read(self._any_artifact())
        return read(self._exactly(target or self._targets(None)[0], self._variants(signature)[0]).artifact)

    def _read_entry(self, name: str) -> Any:
        return self._read(lambda artifact: getattr(self._definition.entry(artifact), name))

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

    @property
    @shortening
    def params(self) -> Any:
        """The parameters, in order: C++ type, offset and size in bytes."""
        return self._read_entry("parameters")

    @property
    @shortening
    def log(self) -> Any:
        """The compilers' log, stored with the code."""
        return self._read(lambda artifact: artifact.log)

    @property
    @shortening
    def regs_per_thread(self) -> Any:
        """Registers per thread."""
        return self._read_entry("registers")

    @property
    @shortening
    def shared_mem_per_block(self) -> Any:
        """Static shared memory per block, in bytes."""
        return self._read_entry("shared_bytes")

    @property
    @shortening
    def local_mem_per_thread(self) -> Any:
        """Local memory per thread, in bytes."""
        return self._read_entry("local_bytes")

    @property
    @shortening
    def const_mem_size(self) -> Any:
        """Constant memory of the module's own variables, in bytes."""
        return self._read_entry("const_bytes")

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
        from ..frontends.measures import resident

        return self._measured(resident, launch_shape(1, block, sharedmem), signature)

    @property
    @shortening
    def attributes(self) -> Any:
        """Attributes of the function on the current device, by CuPy's names: `["num_regs"]`."""
        from ..frontends.measures import attributes

        return self._by_variant(lambda variant: attributes(self._loaded(variant)[1]))

    @shortening
    def occupancy(self, block: Any, sharedmem: int = 0, signature: Any = None) -> Any:
        """Blocks that one multiprocessor of the current device holds at once; see `max_cooperative_grid_blocks`."""
        from ..frontends.measures import occupancy

        return self._measured(occupancy, launch_shape(1, block, sharedmem), signature)

    @shortening
    def suggested_block(self, sharedmem: int = 0, signature: Any = None) -> Any:
        """Threads of a block at which the current device holds most threads at once, from the driver."""
        from ..frontends.measures import suggested_block

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
        from ..frontends.measures import time

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
        named, definition = self._by_name(), self._definition
        is_found = named is self or named is definition.thing
        if definition.is_sent_by_name and self.__module__ != "__main__" and is_found:
            return self
        return _Sent(self)

    def _by_name(self) -> Any:
        """The object that the kernel's module has under the kernel's qualified name."""
        found: Any = sys.modules.get(self.__module__)
        for name in self.__qualname__.split("."):
            found = getattr(found, name, None)
        return found

    def __repr__(self) -> str:
        name, label, entry = self.__name__, self._label, self._entry_at_hand()
        if "__wrapped__" in self.__dict__:
            name = f"{self.__module__}.{self.__qualname__}"
        parameters = f"({', '.join(map(str, entry.parameters))})" if entry is not None and entry.typed else ""
        name = entry.name if name == label and entry is not None else name
        return f"<Kernel {name}{parameters}{'' if '.' in name or name == label else f' of {label}'}>"

    def _signature(self) -> Any:
        """The signature for `inspect.signature`; that of C++ is known once it is compiled, and None until then."""
        import inspect
        import keyword

        entry, thing = self._entry_at_hand(), self._definition.thing
        if entry is None:
            return inspect.signature(getattr(thing, "py_func", thing)) if self._definition.has_variants else None
        found: dict[str, inspect.Parameter] = {}
        kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
        for index, each in reversed(list(enumerate(entry.parameters))):
            name = each.name
            if not name.isidentifier() or keyword.iskeyword(name) or name in found:
                # the parameters before a positional-only one must be positional-only too
                name, kind = f"arg{index}", inspect.Parameter.POSITIONAL_ONLY
            found[name] = inspect.Parameter(name, kind, annotation=each.c_type or f"{each.size} bytes")
        return inspect.Signature(list(found.values())[::-1])

    def _entry_at_hand(self) -> Entry | None:
        """The kernel in a resolved artifact; None if there is none yet, or the code depends on the arguments' types."""
        for found in () if self._definition.has_variants else self._resolutions.known().values():
            return self._definition.entry(found.artifact)
        return None

    def __reduce__(self) -> Any:
        return self.__qualname__ if self._by_name() is self else (Kernel, (self._definition,))


class _Sent:
    """An object whose pickle is that of a kernel with this definition."""

    def __init__(self, kernel: Kernel) -> None:
        self._made = type(kernel), (kernel._definition.by_value(),)

    def __reduce__(self) -> Any:
        return self._made


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
    is_configured = cache.settings.directory is not None and cache.stores
    if not is_configured or not cache.local.directory:
        return
    if key and cache.local.has(key):
        return
    if is_found and cache.local.is_usable() and cache.local.tree.status is not None:
        return
    why = cache.local.prepare()
    if why:
        hint = "name a directory that this user can write to: NUMBA_KCACHE_DIR, or configure(directory=...)"
        raise KCacheError(f"cannot {what}", f"{cache.local.directory} cannot be used: {why}", hint)


def require_lasting(cache: Lookup, what: str) -> None:
    """Require that new entries outlive this process.

    Raises:
        KCacheError: New entries would be kept only in memory, and the mode is not off.
    """
    why = cache.local.prepare()
    if not cache.local.place and cache.settings.mode != "off":
        where = f"kernels would be kept in the memory of this process alone{why and f': {why}'}"
        raise KCacheError(f"cannot {what}", where, "name a directory to write to: --directory, or NUMBA_KCACHE_DIR")


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
        fast_compile: For development: `"min"`, `"mid"` or `"max"` take less compile time and give slower code (False).
        fastmath, lineinfo, debug, lto: The compilers' options of these names (False).
        std: The language standard, `"c++17"` (NVRTC's).
        defines, include_dirs: Macros, a mapping to `str`, `int` or `None`; folders that are searched for headers.
        max_registers, opt: Registers per thread; level of optimisation, 0 to 3 (3).
        options: Further flags of NVRTC, in this order.
        link: CUDA C++, PTX, LTO-IR, object, archive or fatbin files, or `numba.cuda` LinkableCode.
        signature: C++ types of the parameters, `"float, const float*, int"`: checked against the source; needed for
            the types of PTX.
        depends: Plain values, or Paths of files, whose content enters the key; for a Numba kernel also a mapping.
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
