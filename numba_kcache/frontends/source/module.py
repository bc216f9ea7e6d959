"""The kernels of a module: all in one artifact, or each linked from the module's LTO-IR when it is first used.

Promise     An eager module is one artifact for all its kernels: resolved once for each target in a process, loaded once
            on each device. For a lazy module the LTO-IR is one artifact, and each kernel another.
Not here    Compiling a module and linking a kernel (module_build), and the user's object (`CachedModule` in
            numba_kcache/module.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ...engine import Request, Session
from ...errors import (
    FrozenCacheError,
    KCacheError,
    LinkError,
    OptionError,
    ToolchainMissingError,
    UncacheableError,
)  # fmt: skip
from ...keys import Component, components
from ...model import Artifact, Choice, CompiledKernel, ModuleKernels, Resolution, SourceInput, Target, parse_target
from .. import Definition, Resolutions, Variant, not_source
from . import DISTRIBUTIONS, LINKER, Source, SourceDefinition, source_of

if TYPE_CHECKING:
    from ...explanation.text import Explanation
    from ...toolchain import Toolchain


_LAZY_KINDS = ("cuda", "ltoir")


class ModuleDefinition(SourceDefinition):
    """A source as a module; finds its kernels by name.

    Attributes:
        listed: The artifact that `find` searched last, and its kernels by name and symbol.
    """

    def __init__(self, thing: Any, source: Source, options: Mapping[str, Any], module: ModuleKernels) -> None:
        super().__init__(thing, source, options, module)
        self.listed: tuple[Artifact | None, dict[str, CompiledKernel]] = None, {}
        if module.lazy and source.kind not in _LAZY_KINDS:
            raise OptionError(
                f"cannot use lazy=True with {source.kind}",
                "its kernels cannot be linked one by one",
                "give CUDA C++ or LTO-IR, or leave out lazy=True",
            )
        for unfit in ("link", "lto") if module.lazy else ():
            if options.get(unfit):
                why = (
                    "a lazy module is always linked from LTO-IR"
                    if unfit == "lto"
                    else "the kernels are linked one by one, which does not support it"
                )
                raise OptionError(f"cannot use {unfit}={options[unfit]!r} with lazy=True", why, f"leave out {unfit}=")

    def find(self, artifact: Artifact, name: str) -> CompiledKernel:
        """Find a kernel by name, as `Artifact.kernel` does, but in a table, since a module may have hundreds.

        Raises:
            EntryError: There is none.
        """
        of, listed = self.listed
        if of is not artifact:
            listed = {}
            for each in artifact.kernels:
                listed.setdefault(each.name, each)
                listed.setdefault(each.symbol, each)
            self.listed = artifact, listed
        return listed.get(name) or artifact.kernel(name, self.label)


class ModuleKernelDefinition(Definition):
    """One kernel of a module.

    Args:
        of: The module.
        whole: The module's resolutions.
        name: The user's name for the kernel.
    """

    def __init__(self, of: ModuleDefinition, whole: Resolutions, name: str) -> None:
        self.thing, self.options = None, of.options
        self._of, self._whole, self.name = of, whole, name
        self.kind, self.file, self.launch_options = of.kind, of.file, of.launch_options
        self.label = f"{of.label}[{name}]"
        self.resolutions = None if of.is_lazy else whole

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request of the whole module."""
        return self._whole.request(target, ptx_target, variant)

    def kernel_in(self, artifact: Artifact) -> CompiledKernel:
        """Find the kernel in the module's artifact; in a lazy module, in the kernel's own artifact."""
        of, listed = self._of.listed
        if of is artifact and self.name in listed:
            return listed[self.name]
        return artifact.kernels[0] if self._of.is_lazy else self._of.find(artifact, self.name)

    def identity(self) -> tuple[Component, ...]:
        """List the components that all requests of the module share."""
        return self._of.identity()

    @staticmethod
    def make_resolutions(
        definition: ModuleKernelDefinition, _session: Callable[[], Session], choose: Callable[[Target], Choice]
    ) -> Resolutions:
        """Return the module's resolutions; for a kernel of a lazy module make its own."""
        return definition.resolutions or LinkedResolutions(definition, definition._whole, choose)

    def link_request(self, module: Artifact, module_key: str) -> Request:
        """Make the request of this kernel alone; the module's own key covers everything else in its key.

        Args:
            module: The artifact of the module, with the LTO-IR.
            module_key: Key of that artifact; "" if it cannot be cached.
        """
        of, text = self._of, self._of.text()

        def build(_toolchain: Toolchain) -> Artifact:
            from .module_build import build_lazy

            named = text if isinstance(text, str) else ""  # for the names of parameters
            request = SourceInput(of.kind, self.label, named, self.name, None, module.target, of.compile_options)
            return build_lazy(request, module)

        return Request(
            label=self.label,
            target=module.target,
            components=components({"kind": "lazy", "module": module_key, "entry": self.name}),
            libraries=LINKER,
            distributions=DISTRIBUTIONS,
            build=build,
            uncacheable="" if module_key else f"its module {of.label} cannot be cached",
            strict=of.strict,
            file=self.file,
            name=f"{of.source.qualname}[{self.name}]",
        )


class LinkedResolutions(Resolutions):
    """The artifacts of one kernel of a lazy module: each linked from the module's LTO-IR for the same target."""

    definition: ModuleKernelDefinition

    def __init__(
        self, definition: ModuleKernelDefinition, whole: Resolutions, choose: Callable[[Target], Choice]
    ) -> None:
        super().__init__(definition, whole.session, choose)
        self._whole = whole

    def _new_resolution(self, session: Session, choice: Choice, variant: Variant) -> Resolution:
        whole = self._whole.resolve(choice, variant)
        try:
            return session.resolve(self.definition.link_request(whole.artifact, whole.key))
        except (FrozenCacheError, UncacheableError, ToolchainMissingError):
            raise
        except Exception as error:
            # stored LTO-IR may be damaged: compile again and link; if the user is at fault, that raises too
            if whole.source == "compiled":
                raise
            known = error if isinstance(error, KCacheError) else LinkError("cannot link it", repr(error))
            self._whole.give_up(whole, known)
        return self._new_resolution(session, choice, variant)

    def request(self, target: Target, ptx_target: Target | None, variant: Variant) -> Request:
        """Make the request for keys and look-ups, assuming LTO-IR of the present compilers and headers."""
        request = self._whole.request(target, ptx_target, variant)
        if request.uncacheable:
            return request
        return self.definition.link_request(Artifact("ltoir", request.target, (), b""), self.session().key(request))

    def explain(self, choice: Choice, variant: Variant) -> Explanation:
        """Explain the kernel, or the module's LTO-IR if that is not in the cache."""
        module = self._whole.explain(choice, variant)
        if not module.is_hit:
            return module
        linked_from = Artifact("ltoir", parse_target(module.target), (), b"")
        request = self.definition.link_request(linked_from, module.key)
        return self.session().explain(request)

    def count_if_stored(self, target: Target, ptx_target: Target | None, variant: Variant) -> bool:
        """Check whether the LTO-IR and the kernel are stored, and count hits for those that are."""
        return self._whole.count_if_stored(target, ptx_target, variant) and super().count_if_stored(
            target, ptx_target, variant
        )


def are_linked(whole: Resolution, kernels: Iterable[ModuleKernelDefinition], session: Session) -> bool:
    """Check whether every kernel of a lazy module is stored, linked from this LTO-IR."""
    requests = (each.link_request(whole.artifact, whole.key) for each in kernels)
    return all(session.find(request) is not None for request in requests)


def define_module(thing: Any, options: Mapping[str, Any], kernels: ModuleKernels, depth: int) -> ModuleDefinition:
    """Define a module of these kernels; `depth` as for a front end.

    Raises:
        OptionError: The thing is not a source, or it or an option cannot be used.
    """
    source = source_of(thing, options.get("kind"), depth + 1)
    if source is None and callable(thing):
        raise OptionError(
            f"cannot make a module of {thing!r}", "it is a Numba kernel", "decorate it with cached_kernel"
        )
    if source is None:
        raise not_source(thing)
    return ModuleDefinition(thing, source, options, kernels)
