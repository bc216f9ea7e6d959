"""From what a user defined, and a target, to a job for the resolver.

Promise     A job's components hold everything that can change its code; what cannot be captured makes the job
            uncacheable, with the reason. Nothing is compiled here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import OptionError
from ..frontends.source.components import lazy_components, source_components
from ..frontends.source.source import SourceDefinition, normalised_ptx, read_link_inputs
from ..headers.scanner import scan_includes
from ..keys.components import Component, component
from ..keys.digests import sha256
from ..keys.encoding import Plain, encode
from ..model.artifact import Artifact
from ..model.options import CompileOptions
from ..model.request import LinkInput, Origin, SourceRequest
from ..model.target import Target
from ..settings import NVRTC_VARIABLES, variables
from ..toolchain.libraries import Toolchain

if TYPE_CHECKING:
    from ..frontends.source.definition import SourcePlan
    from ..headers.search import Search
    from ..toolchain.time_trace import TimeTrace

_CUDA_LIBRARIES = ("nvrtc", "nvrtc-builtins")
_LINKER = ("nvJitLink",)
_DISTRIBUTIONS = ("numba", "numba-cuda")


class Job(NamedTuple):
    """One artifact that is wanted.

    Args:
        label: What people call the kernel.
        target: What to build for.
        components: What is asked for, without compilers and versions.
        libraries: The compiler libraries that would make it.
        distributions: Python distributions whose version can change it.
        build: Compiles it; called at most once. The trace is where NVRTC shall tell which headers it read.
        uncacheable: Why no key can be had; "" where one can.
        strict: Refuse rather than run uncached.
        headers: What each CUDA C++ text of the job may include; empty where none asks for a file.
        texts: Gives the user's texts by component, and where each stands: for explanations.
        file: The file that defines the kernel; "" for none.
    """

    label: str
    target: Target
    components: tuple[Component, ...]
    libraries: tuple[str, ...]
    distributions: tuple[str, ...]
    build: Callable[[Toolchain, TimeTrace | None], Artifact]
    uncacheable: str = ""
    strict: bool = False
    headers: tuple[HeaderQuestion, ...] = ()
    texts: Callable[[], Mapping[str, tuple[str, Origin]]] = dict
    file: str = ""


class HeaderQuestion(NamedTuple):
    """A text that may include files, and where they are looked for.

    Args:
        text: CUDA C++.
        folders: The user's folders in order, the text's own first, or last if it is linked to a Numba kernel.
        of: The link input that it is; None for the kernel's source.
        definitions: Macros given by options; None stands for no value.
        forced: Files that options include before the text.
        has_siblings: Whether quoted names are looked for beside the including file.
        is_linked_by_numba: Whether the toolkit's folders are those that Numba gives, before the user's.
    """

    text: str
    folders: tuple[str, ...]
    of: LinkInput | None = None
    definitions: tuple[tuple[str, str | None], ...] = ()
    forced: tuple[str, ...] = ()
    has_siblings: bool = True
    is_linked_by_numba: bool = False

    def search(self, toolchain: Toolchain | None, *, is_fresh: bool = False) -> Search:
        """Where NVRTC looks for what the text includes.

        Args:
            toolchain: Knows the toolkit's folders, which come after the user's, or before with Numba; None for the
                user's alone, for code whose compiler brought its own headers.
            is_fresh: Have Numba say anew which they are.
        """
        from ..headers.search import WORKING, Search, Tree

        own = self.folders
        source_base: int | None
        if toolchain is None:
            return Search(own, (), self.has_siblings, self.forced, working_folder=os.getcwd())
        if self.is_linked_by_numba:
            folders = (*toolchain.numba_include_dirs(is_fresh=is_fresh), *own)
            source_base = len(folders) - 1 if self.of and self.of.folder else WORKING
        else:
            folders, source_base = (*own, *toolchain.include_dirs()), None if own else WORKING
        return Search(
            folders=folders,
            trees=tuple(Tree(*each) for each in toolchain.header_trees()),
            has_siblings=self.has_siblings,
            forced=self.forced,
            definitions=self.definitions,
            working_folder=os.getcwd(),
            source_base=source_base,
        )


class Learned(NamedTuple):
    """The closures of a compile as components and as a variant of the manifest; or why there are none."""

    components: tuple[Component, ...] = ()
    variant: Mapping[str, Any] = {}
    doubt: str = ""


def source_job(plan: SourcePlan, text: str | bytes, target: Target, through: Target | None) -> Job:
    """The job of a source kernel or module for one target.

    Args:
        plan: The kernel.
        text: Its source; bytes where it is code.
        target: What to build for.
        through: The virtual target to compile to first, where the user gave one.

    Raises:
        OptionError: A link input or dependency cannot be read.
    """
    definition, options, kind = plan.definition, plan.options, plan.definition.kind
    code, text = (text, "") if isinstance(text, bytes) else (b"", text)
    link = read_link_inputs(plan.link, options.base_dir) if plan.link else ()
    has_lines = options.lineinfo or options.debug
    components = plan.fixed + source_components(
        code or (normalised_ptx(text) if kind == "ptx" else text),
        target,
        through,
        link=link,
        lines=_lines(definition, text, options) if has_lines else None,
        environment=variables(NVRTC_VARIABLES),
    )
    if plan.depends:
        components += (component("depends", _dependencies(plan.depends, options.base_dir)),)
    has_source = kind == "cuda" or plan.signature is not None or any(each.kind == "cu" for each in link)
    is_made = kind not in ("cuda", "cubin")
    links = is_made or options.lto or link or through or target.virtual or (plan.module and plan.module.lazy)

    def build(toolchain: Toolchain, trace: TimeTrace | None) -> Artifact:
        request = SourceRequest(
            kind, definition.label, text, plan.name, definition.guess, target, options, link, plan.signature, through,
            definition.origin, bool(headers), plan.module, code,
        )  # fmt: skip
        dirs = toolchain.include_dirs() if has_source else ()
        if plan.module is None:
            from ..frontends.source.build import build_source

            return build_source(request, dirs, trace)
        from ..frontends.source.module_build import build_module

        return build_module(request, dirs, trace)

    def texts() -> dict[str, tuple[str, Origin]]:
        if code:
            return {}
        from ..toolchain.diagnostics import first_line  # brings linecache and tokenize, which a hit goes without

        start = first_line(text, definition.origin) or 0
        return {"source": (normalised_ptx(text) if kind == "ptx" else text, Origin(definition.origin.path, start))}

    uncacheable, headers = _read_off(kind, text, link, options)
    return Job(
        label=definition.label,
        target=target,
        components=components,
        libraries=(_CUDA_LIBRARIES if has_source else ()) + (_LINKER if links else ()),
        distributions=_DISTRIBUTIONS,
        build=build,
        uncacheable=uncacheable,
        strict=plan.strict,
        headers=headers,
        texts=texts,
        file=definition.origin.path,
    )


def lazy_job(plan: SourcePlan, text: str, module: Artifact, module_key: str, name: str) -> Job:
    """The job of one kernel of a lazy module.

    Args:
        plan: The module.
        text: Its source, where the names of parameters stand.
        module: Its LTO-IR.
        module_key: The key of that; "" where it cannot be cached.
        name: The kernel, as the user calls it.
    """

    def build(_toolchain: Toolchain, _trace: TimeTrace | None) -> Artifact:
        from ..frontends.source.module_build import build_lazy

        definition = plan.definition
        request = SourceRequest(definition.kind, label, text, name, None, module.target, plan.options)
        return build_lazy(request, module)

    label = f"{plan.definition.label}[{name}]"
    return Job(
        label=label,
        target=module.target,
        components=lazy_components(module_key, name),
        libraries=_LINKER,
        distributions=_DISTRIBUTIONS,
        build=build,
        uncacheable="" if module_key else f"its module {plan.definition.label} cannot be cached",
        strict=plan.strict,
    )


def _lines(definition: SourceDefinition, text: str, options: CompileOptions) -> tuple[str, int, str, str]:
    """What a line table holds beside the code: file, the source's first line in it, base folder, working directory."""
    from ..toolchain.diagnostics import first_line

    start = first_line(text, definition.origin)
    path = "" if definition.origin.is_cell else definition.origin.path
    return path, start or definition.origin.line, options.base_dir, os.getcwd()


def _read_off(
    kind: str, text: str, link: Sequence[LinkInput], options: CompileOptions
) -> tuple[str, tuple[HeaderQuestion, ...]]:
    """Why the request cannot be keyed, "" where it can; and what its texts may include, if any may."""
    forced, definitions = _given_by_flags(options.flags)
    macros = [value for _, value in options.defines if value] + list(options.flags)
    if macros and scan_includes("\n".join(macros)).has_clock:
        return "its macros use __DATE__ or __TIME__", ()
    if forced is None:
        return "one of its options takes the next as its value", ()
    texts: list[tuple[LinkInput | None, str | bytes]] = [(None, text)] if kind == "cuda" else []
    texts += [(each, each.data) for each in link if each.kind == "cu"]
    scans = [scan_includes(each) for _of, each in texts]
    if any(scan.has_clock and not scan.asks_files for scan in scans):
        return "it uses __DATE__ or __TIME__", ()
    if not forced and not any(scan.asks_files for scan in scans):
        return "", ()
    siblings = not any(flag.lstrip("-") == "no-source-include" for flag in options.flags)
    return "", tuple(
        HeaderQuestion(
            each if isinstance(each, str) else each.decode("utf-8", "replace"),
            tuple(filter(None, (of.folder if of else options.base_dir, *options.include_dirs))),
            of,
            options.defines + definitions,
            forced,
            siblings,
        )
        for of, each in texts
    )


def _given_by_flags(flags: Sequence[str]) -> tuple[tuple[str, ...] | None, tuple[tuple[str, str | None], ...]]:
    """The files that raw flags include, and the macros that they define; None where a flag's value is the next one."""
    forced: list[str] = []
    definitions: list[tuple[str, str | None]] = []
    for flag in flags:
        word, equals, value = flag.partition("=")
        if word in ("-include", "--pre-include", "--define-macro", "-D") and not equals:
            return None, ()
        if word in ("-include", "--pre-include"):
            forced.append(value)
        elif flag.startswith(("-D", "--define-macro=")):
            given = value if word in ("-D", "--define-macro") else flag[2:]
            name, has_value, text = given.partition("=")
            definitions.append((name.strip(), text if has_value else None))
    return tuple(forced), tuple(definitions)


def _dependencies(depends: Sequence[Any], base_dir: str) -> Plain:
    """Values as they are; the content of each `pathlib.Path`."""
    found: list[Plain] = []
    for each in depends:
        if isinstance(each, os.PathLike):
            path = os.path.join(base_dir, os.path.expanduser(os.fspath(each)))
            try:
                with open(path, "rb") as file:
                    found.append({"sha256": sha256(file.read()).hexdigest()})
            except OSError as error:
                raise OptionError(f"cannot read depends={each!r}", str(error)) from None
        else:
            try:
                encode(each)
            except TypeError as error:
                raise OptionError(f"cannot use depends={each!r}", str(error), "give plain values or Paths") from None
            found.append(each)
    return found
