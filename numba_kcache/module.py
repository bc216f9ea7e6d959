"""`cached_module`: one source, many kernels.

Promise     Making a module compiles nothing and calls nothing of the user's. An eager module is one artifact: resolved
            once for each target in a process, loaded once on each device, whichever of its kernels asks. Of a lazy
            module the LTO-IR is one artifact and each kernel another, linked when it is first used. Its kernels are
            `CachedKernel`s: checked, launched and asked about alike.
Not here    How a module is compiled and a kernel linked (toolchain.module_build).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .engine.lookup import Resolution
from .engine.request import Job, lazy_job
from .engine.session import Resolver
from .errors import EntryError, OptionError
from .frontends.source.definition import SourcePlan, define, plan_of
from .kernel import CachedKernel
from .keys.components import Component
from .launchable import Request
from .model.artifact import Artifact, Entry
from .model.request import ModuleEntries
from .model.target import Target, parse_target

if TYPE_CHECKING:
    from .explain.text import Explanation

_LAZY_KINDS = ("cuda", "ltoir")


class ModuleKernel(CachedKernel):
    """A kernel of a `cached_module`. Everything is as for a `CachedKernel`."""

    def __init__(self, module: CachedModule, name: str) -> None:
        whole = module._whole
        plan = whole._plan
        label = f"{plan.definition.label}[{name}]"
        own = plan._replace(definition=plan.definition._replace(label=label, guess=name), name=name)
        super().__init__(None, own, whole._options)
        self.__module__ = whole.__module__
        self._of, self._name = module, name
        if not module.lazy:
            self._resolved = whole._resolved

    def _unkeyed(self) -> str:
        """One name for what all kernels of an eager module share, and with it the module's variables."""
        return super()._unkeyed() if self._of.lazy else self._of._whole.unkeyed

    def _pick(self, artifact: Artifact) -> Entry:
        if self._of.lazy:
            return artifact.entries[0]
        return self._of._find(artifact, self._name)

    def _resolve(
        self,
        target: Target,
        through: Target | None,
        others: Iterable[Target] = (),
        stand_ins: Iterable[Target] = (),
    ) -> Resolution:
        whole = self._of._whole._resolve(target, through, others, stand_ins)
        self._resolver().users.add(self)
        if not self._of.lazy:
            self._pick(whole.artifact)  # compile() too says that there is no such kernel
            return whole
        with self._lock:
            found = self._resolved.get((target, through))
            if found is None:
                job = self._link_job(whole.artifact, whole.key)
                found = self._resolved[target, through] = self._resolver().resolve(job)
            return found

    def _job(self, target: Target, through: Target | None = None) -> Job:
        """The job to ask about; for a lazy module as if its LTO-IR were the one of these compilers and headers."""
        job = self._of._whole._job(target, through)
        if not self._of.lazy or job.uncacheable:
            return job
        return self._link_job(Artifact("ltoir", job.target, (), b""), self._resolver().key(job))

    def _link_job(self, artifact: Artifact, key: str) -> Job:
        text = self._of._whole._source()
        return lazy_job(self._of._whole._plan, text if isinstance(text, str) else "", artifact, key, self._name)

    def _identity(self) -> tuple[Component, ...]:
        return self._of._identity()

    def _is_stored(self, target: Target, types: Any) -> bool:
        if self._of.lazy and self._resolver().find(self._of._whole._own_job(target)) is None:
            return False
        return super()._is_stored(target, types)

    def _to_send(self) -> Any:
        return self

    def explain(self, arch: Any = None, signature: Any = None) -> Explanation:
        """As of a `CachedKernel`; where the LTO-IR of a lazy module is not in the cache, why that is not."""
        if not self._of.lazy or signature is not None:
            return super().explain(arch, signature)
        module = self._of.explain(arch)
        if not module.is_hit:
            return module
        linked_from = Artifact("ltoir", parse_target(module.target), (), b"")
        return self._resolver().explain(self._link_job(linked_from, module.key))

    def __repr__(self) -> str:
        return f"<kernel {self._name} of {self._of!r}>"

    def __reduce__(self) -> Any:
        return CachedModule.__getitem__, (self._of, self._name)


class _Whole(CachedKernel):
    """All of a module as one thing to resolve."""

    def __init__(self, thing: Any, plan: SourcePlan, options: dict[str, Any]) -> None:
        super().__init__(thing, plan, options)
        self.unkeyed = self._unkeyed()

    def forget(self) -> None:
        """Resolve anew at the next use."""
        super().forget()
        self.unkeyed = self._unkeyed()

    def _job(self, target: Target, through: Target | None = None) -> Job:
        if target.virtual and self._plan.module and self._plan.module.lazy:
            raise OptionError(
                f"cannot compile {self.__name__} for {target} lazily",
                "its kernels are linked one by one, which makes no PTX",
                "leave out lazy=True",
            )
        return super()._job(target, through)


class CachedModule:
    """A source with many kernels whose compiled code is kept on disk. Made by `cached_module`.

    `module.axpy` and `module["axpy<float>"]` are kernels; `iter(module)` gives their names, `len(module)` says how many
    there are. Where `names` was not given, these two compile the module, or load it from the cache, to know.

    Attributes:
        lazy: Whether each kernel is linked when it is first used.
    """

    def __init__(self, thing: Any, plan: SourcePlan, options: dict[str, Any]) -> None:
        entries = plan.module or ModuleEntries()
        self.lazy = entries.lazy
        self._names = entries.names
        self._whole = _Whole(thing, plan, options)
        self._label = self._whole._label
        self._kernels: dict[str, ModuleKernel] = {}
        self._unproven: dict[str, ModuleKernel] = {}
        self._listed: tuple[Artifact | None, dict[str, Entry]] = None, {}
        self.__name__, self.__doc__ = self._whole.__name__, self._whole.__doc__ or type(self).__doc__

    def __getattr__(self, name: str) -> ModuleKernel:
        if name.startswith("_"):  # what Python and its tools ask of any object; m["_k"] serves kernels so named
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        try:
            found = self[name]
        except EntryError as error:
            raise AttributeError(str(error)) from error
        if name in self._kernels:
            self.__dict__[name] = found  # the next time Python finds it by itself
        return found

    def __getitem__(self, name: str) -> ModuleKernel:
        """The kernel of this name, compiled or linked when it is first used.

        Raises:
            EntryError: The module has no such kernel. Where `names` was not given and nothing is compiled yet, its
                first use says so.
        """
        found = self._kernels.get(name)
        if found is not None:
            return found
        known = self._known()
        if known is None:
            return self._unproven.setdefault(name, ModuleKernel(self, name))
        proven = self._find(known, name).name
        waiting = self._unproven.pop(name, None)
        return self._kernels.setdefault(proven, waiting or ModuleKernel(self, proven))

    def _find(self, artifact: Artifact, name: str) -> Entry:
        """The kernel of this name, as `Artifact.entry` finds it; of hundreds each is looked for several times."""
        of, listed = self._listed
        if of is not artifact:
            listed = {}
            for each in artifact.entries:
                listed.setdefault(each.name, each)
                listed.setdefault(each.symbol, each)
            self._listed = artifact, listed
        return listed.get(name) or artifact.entry(name, self._whole._plan.definition.label)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names or [each.name for each in self._artifact().entries])

    def __len__(self) -> int:
        return len(self._names or self._artifact().entries)

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and bool(self._find(self._known() or self._artifact(), name))
        except EntryError:
            return False

    def symbol(self, name: str, dtype: Any = None) -> Any:
        """A `__device__` or `__constant__` variable on the current device, as a device array.

        Args:
            name: As the source calls it, `"ns::coeffs"`.
            dtype: Type of the elements; default what the compiler says. Structs need one.

        Returns:
            A Numba device array over the variable itself; one of no dimension for a scalar. It is the variable for as
            long as the module is loaded: after `clear()`, `configure()` or a reset of the device, ask anew.

        Raises:
            EntryError: There is no such variable; those there are are listed.
            OptionError: The module is lazy, or `dtype` does not divide the variable.
        """
        label = self._whole._plan.definition.label
        if self.lazy:
            raise OptionError(
                f"cannot get {name!r} of {label}",
                "the module is lazy: each of its kernels is linked with variables of its own",
                "leave out lazy=True",
            )
        from .launch.variables import device_array

        loaded = self[next(iter(self))]._loaded()[1]
        variables = self._whole._resolve_for_device(loaded.device.target).artifact.variables
        found = next((each for each in variables if name in (each.name, each.symbol)), None)
        if found is None:
            there_are = ", ".join(each.name for each in variables) or "none that its kernels use"
            raise EntryError(f"cannot find the variable {name!r} of {label}", f"there are {there_are}")
        return device_array(loaded, found, dtype)

    def compile(self, arch: Any = None) -> None:
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

    def key(self, arch: Any = None) -> str:
        """The digest of the request for one target, 64 hexadecimal digits. Never compiles.

        Raises:
            UncacheableError: The module cannot be keyed.
        """
        return self._whole.key(arch)

    def explain(self, arch: Any = None) -> Explanation:
        """Whether the module is in the cache for one target, and if not, why not. Never compiles, changes nothing.

        Args:
            arch: As in `cached_module`; None for the module's own, or the device.

        Raises:
            NoDeviceError: No target is named and there is no device.
        """
        return self._whole.explain(arch)

    def cubin(self, arch: Any = None) -> bytes:
        """The linked module for one target; empty for a lazy one, whose kernels have theirs."""
        return self._whole.cubin(arch)

    def ptx(self, arch: Any = None) -> str:
        """The PTX for one target; "" where it was not kept."""
        return self._whole.ptx(arch)

    @property
    def log(self) -> str:
        """What the compilers said, kept on hits."""
        return self._whole.log

    def _known(self) -> Artifact | None:
        """What tells which kernels there are, without compiling or loading anything."""
        if self._names:
            return Artifact("cuda", Target(0, 0), tuple(Entry(name, name) for name in self._names), b"")
        for found in list(self._whole._resolved.values()):
            return found.artifact
        return None

    def _artifact(self) -> Artifact:
        """The module for the current device, or, where there is none, for its first target."""
        return self._whole._at_hand().artifact

    def _resolver(self) -> Resolver:
        return self._whole._resolver()

    def _requests(self, arch: Any) -> list[Request]:
        return self._whole._requests(arch)

    def _is_stored(self, target: Target, types: Any) -> bool:
        whole = self._resolver().find(self._whole._own_job(target))
        if whole is None or not self.lazy:
            return whole is not None
        names = self._names or [each.name for each in whole.artifact.entries]
        jobs = (self[name]._link_job(whole.artifact, whole.key) for name in names)
        return all(self._resolver().find(job) is not None for job in jobs)

    def _identity(self) -> tuple[Component, ...]:
        return self._whole._identity()

    def _to_send(self) -> Any:
        return self

    def __repr__(self) -> str:
        return f"<{'lazy ' if self.lazy else ''}CachedModule {self._whole._plan.definition.label}>"

    def __reduce__(self) -> Any:
        whole = self._whole
        return _rebuild, (*whole._portable(), self._names, self.lazy)


def cached_module(
    source_or_path: Any, names: Sequence[str] | None = None, lazy: bool = False, **options: Any
) -> CachedModule:
    """Compile a source with many kernels once and launch them from disk ever after.

    Args:
        source_or_path: What `cached_kernel` takes, Numba kernels aside: a function that returns CUDA C++, text,
            bytes or a `pathlib.Path`.
        names: The kernels wanted, template instances included: `["scan", "gemm<float, 32>"]`. Default: all that the
            source defines, also by macros.
        lazy: Link each kernel when it is first used, from LTO-IR that the whole source is compiled to once.
        options: As for `cached_kernel`, for all kernels; without `name` and `signature`.

    Raises:
        OptionError: The source or an option cannot be used.
    """
    for refused, hint in (("name", "use names="), ("signature", "wrap the kernel alone, with cached_kernel")):
        if options.get(refused) is not None:
            raise OptionError(f"cannot use {refused}={options[refused]!r}", "a module has many kernels", hint)
    thing, definition = define(source_or_path, options.get("kind"), depth=3)
    if definition is None:
        raise OptionError(
            f"cannot make a module of {source_or_path!r}", "it is a Numba kernel", "decorate it with cached_kernel"
        )
    return _module_of(thing, definition, options, _checked_names(names), lazy)


def _module_of(
    thing: Any, definition: Any, options: dict[str, Any], names: tuple[str, ...], lazy: bool
) -> CachedModule:
    if type(lazy) is not bool:
        raise OptionError(f"cannot use lazy={lazy!r}", f"it is a {type(lazy).__name__}", "write True or False")
    if lazy and definition.kind not in _LAZY_KINDS:
        raise OptionError(
            f"cannot use lazy=True with {definition.kind}",
            "there is nothing to link kernels from one by one",
            "give CUDA C++ or LTO-IR, or leave out lazy=True",
        )
    for unfit in ("link", "lto", "fast_compile") if lazy else ():
        if options.get(unfit):
            why = "it is what a lazy module does" if unfit == "lto" else "kernels that are linked alone do without it"
            raise OptionError(f"cannot use {unfit}={options[unfit]!r} with lazy=True", why, f"leave out {unfit}=")
    return CachedModule(thing, plan_of(definition, options, ModuleEntries(names, lazy)), options)


def _rebuild(definition: Any, options: dict[str, Any], names: tuple[str, ...], lazy: bool) -> CachedModule:
    return _module_of(definition.text(), definition, options, names, lazy)


def _checked_names(names: Any) -> tuple[str, ...]:
    if names is None:
        return ()
    if isinstance(names, (str, Path)) or not hasattr(names, "__iter__"):
        raise OptionError(f"cannot use names={names!r}", "it is not a list", "write names=['axpy<float>']")
    given = tuple(names)
    seen: set[str] = set()
    for each in given:
        if not isinstance(each, str) or not each.strip():
            raise OptionError(f"cannot use names={names!r}", f"{each!r} is not a name")
        if "".join(each.split()) in seen:
            raise OptionError(f"cannot use names={names!r}", f"{each!r} is there twice")
        seen.add("".join(each.split()))
    if not given:
        raise OptionError("cannot use names=[]", "it names no kernel", "leave it out for all kernels")
    return given
