"""From what a user defined, and a target, to a job for the resolver.

Promise     A job's components hold everything that can change its code; what cannot be captured makes the job
            uncacheable, with the reason. Nothing is compiled here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .errors import OptionError
from .inputs.source import SourceDefinition, normalised_ptx, read_link_inputs
from .keys.components import Component, component
from .keys.digests import sha256_hex
from .keys.encoding import Plain
from .keys.requests import fixed_components, source_components
from .model.artifact import Artifact
from .model.options import CompileOptions
from .model.request import LinkInput, SourceRequest
from .model.target import Target
from .settings import NVRTC_VARIABLES, variables
from .toolchain.libraries import Toolchain

_CUDA_LIBRARIES = ("nvrtc", "nvrtc-builtins")
_LINKER = ("nvJitLink",)
_DISTRIBUTIONS = ("numba", "numba-cuda")

CUDA_SOURCE = _CUDA_LIBRARIES, _DISTRIBUTIONS
"""What takes part in the commonest job: CUDA C++ without links."""


class Job(NamedTuple):
    """One artifact that is wanted.

    Args:
        label: What people call the kernel.
        target: What to build for.
        components: What is asked for, without compilers and versions.
        libraries: The compiler libraries that would make it.
        distributions: Python distributions whose version can change it.
        build: Compiles it; called at most once.
        uncacheable: Why no key can be had; "" where one can.
        strict: Refuse rather than run uncached.
    """

    label: str
    target: Target
    components: tuple[Component, ...]
    libraries: tuple[str, ...]
    distributions: tuple[str, ...]
    build: Callable[[Toolchain], Artifact]
    uncacheable: str = ""
    strict: bool = False


class SourcePlan(NamedTuple):
    """All that a user said of a source kernel.

    Args:
        definition: Where the source comes from.
        name: The entry that is wanted; None to find it.
        options: How to compile.
        link: Further link inputs, as the user gave them.
        signature: C++ types of the parameters; None for the compiler's word alone.
        depends: Values or files whose content enters the key.
        strict: Refuse rather than run uncached.
        fixed: The components that are known already (`keys.requests.fixed_components`).
    """

    definition: SourceDefinition
    name: str | None
    options: CompileOptions
    link: Sequence[Any]
    signature: str | None
    depends: Sequence[Any]
    strict: bool
    fixed: tuple[Component, ...]


def source_plan(
    definition: SourceDefinition,
    name: str | None,
    options: CompileOptions,
    *,
    link: Sequence[Any] = (),
    signature: str | None = None,
    depends: Sequence[Any] = (),
    strict: bool = False,
) -> SourcePlan:
    """The plan of a source kernel, with all that can be computed before it is used."""
    fixed = fixed_components(definition.kind, name, definition.guess, options, signature)
    return SourcePlan(definition, name, options, link, signature, depends, strict, fixed)


def source_job(plan: SourcePlan, text: str, target: Target, through: Target | None) -> Job:
    """The job of a source kernel for one target.

    Args:
        plan: The kernel.
        text: Its source.
        target: What to build for.
        through: The virtual target to compile to first, where the user gave one.

    Raises:
        OptionError: A link input or dependency cannot be read.
    """
    definition, options, kind = plan.definition, plan.options, plan.definition.kind
    link = read_link_inputs(plan.link, options.base_dir) if plan.link else ()
    has_lines = options.lineinfo or options.debug
    components = plan.fixed + source_components(
        normalised_ptx(text) if kind == "ptx" else text,
        target,
        through,
        link=link,
        lines=(definition.origin.path, definition.origin.line, options.base_dir) if has_lines else None,
        environment=variables(NVRTC_VARIABLES),
    )
    if plan.depends:
        components += (component("depends", _dependencies(plan.depends, options.base_dir)),)
    has_source = kind == "cuda" or plan.signature is not None or any(each.kind == "cu" for each in link)
    links = kind == "ptx" or options.lto or link or through or target.virtual

    def build(toolchain: Toolchain) -> Artifact:
        from .toolchain.source_build import build_source

        request = SourceRequest(
            kind, definition.label, text, plan.name, definition.guess, target, options, link, plan.signature, through,
            definition.origin,
        )  # fmt: skip
        return build_source(request, toolchain.include_dirs() if has_source else ())

    return Job(
        label=definition.label,
        target=target,
        components=components,
        libraries=(_CUDA_LIBRARIES if has_source else ()) + (_LINKER if links else ()),
        distributions=_DISTRIBUTIONS,
        build=build,
        uncacheable=_uncapturable(kind, text, link, options),
        strict=plan.strict,
    )


def _uncapturable(kind: str, text: str, link: Sequence[LinkInput], options: CompileOptions) -> str:
    """Why the request cannot be keyed; "" where it can."""
    texts = [text] if kind == "cuda" else []
    texts += [each.data.decode("utf-8", "replace") for each in link if each.kind == "cu"]
    for each in texts:
        if "include" in each:
            return "it includes files"
        if "__DATE__" in each or "__TIME__" in each:
            return "it uses __DATE__ or __TIME__"
    if any(flag.lstrip("-").startswith(("include", "pre-include")) for flag in options.flags):
        return "it includes files"
    return ""


def _dependencies(depends: Sequence[Any], base_dir: str) -> Plain:
    """Values as they are; the content of each `pathlib.Path`."""
    found: list[Plain] = []
    for each in depends:
        if isinstance(each, os.PathLike):
            path = os.path.join(base_dir, os.path.expanduser(os.fspath(each)))
            try:
                with open(path, "rb") as file:
                    found.append({"sha256": sha256_hex(file.read())})
            except OSError as error:
                raise OptionError(f"cannot read depends={each!r}", str(error)) from None
        elif each is None or isinstance(each, (bool, int, float, str, bytes, tuple, list, dict)):
            found.append(each)
        else:
            raise OptionError(
                f"cannot use depends={each!r}",
                f"a {type(each).__name__} has no canonical bytes",
                "give plain values or Paths",
            )
    return found
