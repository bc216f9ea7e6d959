"""`cached_module`: one source, many kernels.

Promise     Making a module compiles nothing and calls no user code. Its kernels are of the class `Kernel`, with the
            same checks, launches and methods.
Not here    The definitions of eager and lazy modules (frontends.source.module), compiling a module and linking a kernel
            (frontends.source.module_build).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine import Session
from .errors import EntryError, LaunchConfigError, OptionError, shorten, shortening
from .frontends import Kernel, Variant
from .frontends.source.module import ModuleDefinition, ModuleKernelDefinition, are_linked, define_module
from .keys import Component
from .model import Artifact, CompiledKernel, ModuleKernels, Target

if TYPE_CHECKING:
    from typing import Unpack

    from .explanation.text import Explanation
    from .frontends.options import Arch, ModuleOptions


class _ModuleKernel(Kernel):
    """A kernel of a `cached_module`."""

    def __init__(self, module: CachedModule, name: str) -> None:
        whole = module._whole
        super().__init__(ModuleKernelDefinition(module._definition, whole._resolutions, name))
        self.__module__ = whole.__module__
        self._of = module

    def _to_send(self) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<kernel {self.__name__} of {self._of!r}>"

    def __reduce__(self) -> Any:
        return CachedModule.__getitem__, (self._of, self.__name__)


class CachedModule:
    """A source with many kernels whose compiled code is kept on disk. Made by `cached_module`.

    `module.axpy` and `module["axpy<float>"]` are kernels; `iter(module)` yields their names, `len(module)` is their
    number. Where `names` was not given, these two compile the module, or find it in the cache.

    Attributes:
        lazy: Whether each kernel is linked when it is first used.
    """

    def __init__(self, definition: ModuleDefinition) -> None:
        entries = definition.module or ModuleKernels()
        self.lazy = entries.lazy
        self._names = dict.fromkeys(entries.names)
        self._definition = definition
        self._whole = Kernel(definition)  # all kernels of the module, as one artifact
        self._label = definition.label
        self._kernels: dict[str, Kernel] = {}
        self._unproven: dict[str, Kernel] = {}  # by names that no compiled module has confirmed
        self.__name__, self.__doc__ = self._whole.__name__, self._whole.__doc__ or type(self).__doc__

    def __getattr__(self, name: str) -> Kernel:
        if name.startswith("_"):  # Python and its tools probe such names on any object; write m["_k"] for a kernel
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        if name in _OF_RAW_MODULE and name not in self._names:
            text = f"cannot use .{name} of {self.__name__}: a module has no such attribute"
            raise AttributeError(f"{text}\n  hint: write {_OF_RAW_MODULE[name]}")
        try:
            found = self[name]
        except EntryError as error:
            raise AttributeError(str(error)) from error
        if name in self._kernels:
            self.__dict__[name] = found  # so that this method is not called again for this name
        return found

    def __getitem__(self, name: str) -> Kernel:
        """The kernel of this name, compiled or linked when it is first used.

        Raises:
            EntryError: The module has no such kernel. Where `names` was not given and nothing is compiled yet, this is
                raised at the kernel's first use.
        """
        if type(name) is not str and not isinstance(name, str):
            self(name)
        found = self._kernels.get(name)
        if found is not None:
            return found
        proven, shared = name, self._whole._resolutions.shared
        if name not in self._names:
            known = shared[1].artifact if shared is not None and not self._names else self._known()
            if known is None:
                return self._unproven.setdefault(name, _ModuleKernel(self, name))
            listed_of, listed = self._definition.listed
            is_listed = listed_of is known and name in listed
            proven = listed[name].name if is_listed else self._definition.find(known, name).name
        unproven = self._unproven.pop(name, None) if self._unproven else None
        return self._kernels.setdefault(proven, unproven or _ModuleKernel(self, proven))

    def __call__(self, *_given: Any) -> None:
        """Refuse a launch without the name of a kernel."""
        name = next(iter(self._names or self._kernels), "name")
        why = "it is a module, whose kernels have names"
        raise LaunchConfigError(f"cannot launch {self._label}", why, f'write module["{name}"][grid, block](...)')

    @shortening
    def __iter__(self) -> Iterator[str]:
        return iter(self._names or [each.name for each in self._artifact().kernels])

    @shortening
    def __len__(self) -> int:
        return len(self._names or self._artifact().kernels)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self._definition.find(self._known() or self._artifact(), name))
        except EntryError:
            return False

    @shortening
    def symbol(self, name: str, dtype: Any = None) -> Any:
        """A `__device__` or `__constant__` variable on the current device, as a device array.

        Args:
            name: Name of the variable in the source, `"ns::coeffs"`.
            dtype: Type of the elements, as NumPy takes it; by default the variable's own type. A struct needs one.

        Returns:
            An array over the variable's memory, without dimensions for a scalar: Numba's where the program uses Numba,
            else one with `__cuda_array_interface__`. It is valid as long as the module is loaded: after
            `clear()`, `configure()` or a reset of the device, call this again.

        Raises:
            EntryError: There is no such variable; the message lists the existing ones.
            OptionError: The module is lazy, or the size of `dtype` does not divide the variable's.
        """
        label = self._label
        if self.lazy:
            raise OptionError(
                f"cannot get {name!r} of {label}",
                "the module is lazy: each of its kernels is linked with its own variables",
                "leave out lazy=True",
            )
        from .launch.variables import device_array

        loaded = self[next(iter(self))]._loaded()[1]
        variables = self._whole._resolutions.for_device(loaded.device.target).artifact.variables
        found = next((each for each in variables if name in (each.name, each.symbol)), None)
        if found is None:
            there_are = ", ".join(each.name for each in variables) or "none that its kernels use"
            hint = "declare it __device__ or __constant__, outside of functions, and use it in a kernel"
            raise EntryError(f"cannot find the variable {name!r} of {label}", f"there are {there_are}", hint)
        return device_array(loaded, found, dtype)

    @shortening
    def compile(self, arch: Arch | None = None) -> None:
        """Compile and store all kernels, without a launch; with an explicit `arch` without GPU, driver or context.

        Args:
            arch: As in `cached_kernel`; None for the module's own.

        Raises:
            UncacheableError: The module cannot be keyed.
            NoDeviceError: No target is named and there is no device.
        """
        self._whole.compile(arch)
        if self.lazy:
            for name in self:
                self[name].compile(arch)

    @shortening
    def key(self, arch: Arch | None = None) -> str:
        """The digest of the request for one target, 64 hexadecimal digits. Never compiles.

        Raises:
            UncacheableError: The module cannot be keyed.
        """
        return self._whole.key(arch)

    @shortening
    def explain(self, arch: Arch | None = None) -> Explanation:
        """Explain whether the module is in the cache for one target, and if not, why. Compiles and changes nothing.

        Args:
            arch: As in `cached_module`; None for the module's own, or the device.

        Raises:
            NoDeviceError: No target is named and there is no device.
        """
        return self._whole.explain(arch)

    @shortening
    def cubin(self, arch: Arch | None = None) -> bytes:
        """The linked module for one target; empty for a lazy module, whose kernels are linked one by one."""
        return bytes(self._whole.cubin(arch))

    @shortening
    def ptx(self, arch: Arch | None = None) -> str:
        """The PTX for one target; "" if it was not kept."""
        return str(self._whole.ptx(arch))

    @property
    @shortening
    def log(self) -> str:
        """The compilers' log, stored with the code."""
        return str(self._whole.log)

    def _known(self) -> Artifact | None:
        """An artifact that lists the module's kernels, if there is one without compiling or loading."""
        if self._names:
            return Artifact("cuda", Target(0, 0), tuple(CompiledKernel(name, name) for name in self._names), b"")
        for found in self._whole._resolutions.known().values():
            return found.artifact
        return None

    def _artifact(self) -> Artifact:
        """The module's artifact for the current device, or, without a device, for the module's first target."""
        return self._whole._any_artifact()

    def _session(self) -> Session:
        return self._whole._session()

    def _requests(self, arch: Any) -> list[tuple[Target, Variant]]:
        return self._whole._requests(arch)

    def _count_if_stored(self, target: Target, variant: Variant) -> bool:
        if not self.lazy:
            return self._whole._count_if_stored(target, variant)
        whole = self._session().find(self._whole._request(target, variant))
        if whole is None:
            return False
        names = self._names or [each.name for each in whole.artifact.kernels]
        kernels = (self[name]._definition for name in names)
        return are_linked(whole, kernels, self._session())  # type: ignore[arg-type]  # they are of this module

    def _identity(self) -> tuple[Component, ...]:
        return self._whole._identity()

    def _to_send(self) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<{'lazy ' if self.lazy else ''}CachedModule {self._label}>"

    def __reduce__(self) -> Any:
        return CachedModule, (self._definition,)


_OF_RAW_MODULE = {"get_function": 'module["name"]', "get_global": 'module.symbol("name")'}
"""Methods of CuPy's RawModule, and what to write here."""


def cached_module(
    source_or_path: Any, names: Sequence[str] | None = None, lazy: bool = False, **options: Unpack[ModuleOptions]
) -> CachedModule:
    """Wrap a source with many kernels so that it is compiled once and loaded from disk by every later process.

    Args:
        source_or_path: A source as `cached_kernel` takes it, but no Numba kernel: a function that returns CUDA C++,
            text, bytes or a `pathlib.Path`.
        names: The kernels of the module, template instances included: `["scan", "gemm<float, 32>"]`. Default: all that
            the source defines, including those defined by macros.
        lazy: Link each kernel when it is first used, from LTO-IR that the whole source is compiled to once.
        options: As for `cached_kernel`, for all kernels; without `name` and `signature`.

    Raises:
        OptionError: The source or an option cannot be used.
    """
    given: dict[str, Any] = {**options}
    try:
        for refused, hint in (("name", "use names="), ("signature", "wrap the kernel alone, with cached_kernel")):
            if given.get(refused) is not None:
                raise OptionError(f"cannot use {refused}={given[refused]!r}", "a module has many kernels", hint)
        if type(lazy) is not bool:
            raise OptionError(f"cannot use lazy={lazy!r}", f"it is a {type(lazy).__name__}", "write True or False")
        return CachedModule(define_module(source_or_path, given, ModuleKernels(_checked_names(names), lazy), depth=2))
    except Exception as error:
        shorten(error)
        raise


def _checked_names(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    if isinstance(names, (str, Path)) or not hasattr(names, "__iter__"):
        raise OptionError(f"cannot use names={names!r}", "it is not a list", f"write names=[{str(names)!r}]")
    given = tuple(str.__str__(each) if isinstance(each, str) else each for each in names)
    seen: set[str] = set()
    for each in given:
        if not isinstance(each, str) or not each.strip():
            raise OptionError(f"cannot use names={names!r}", f"{each!r} is not a name", "write names=['axpy<float>']")
        if not each.isprintable():
            from .model.text import check_text

            check_text(each, f"names={names!r}")
        if "".join(each.split()) in seen:
            raise OptionError(f"cannot use names={names!r}", f"{each!r} is there twice", "leave one out")
        seen.add("".join(each.split()))
    if not given:
        raise OptionError("cannot use names=[]", "it names no kernel", "leave it out for all kernels")
    return given
