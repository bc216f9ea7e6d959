"""Functions that tests of keys share: requests as decorations make them, and their keys with invented compilers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numba_kcache.engine import Request, Session
from numba_kcache.frontends.source import Source, SourceDefinition, source_request
from numba_kcache.model import ModuleKernels, Origin, parse_target
from numba_kcache.settings import Settings
from numba_kcache.toolchain import Library

COMPILERS = {"nvrtc": "build-id:01", "nvrtc-builtins": "build-id:02", "nvJitLink": "build-id:03"}
VERSIONS = {"numba": "0.68.1", "numba-cuda": "0.30.4"}


class MadeUpToolchain:
    """A replacement of toolchain.Toolchain whose compilers and versions come from two tables."""

    is_dirty = False

    def settle(self) -> None:
        """Do nothing: there are no records."""

    def after_fork(self) -> None:
        """Do nothing: there are no locks."""

    def peeking(self, load: object) -> MadeUpToolchain:
        """Return itself: it saves nothing."""
        return self

    def __init__(self, compilers: Mapping[str, str], versions: Mapping[str, str]) -> None:
        self._compilers, self._versions = compilers, versions

    def library(self, name: str, *, saves: bool = True) -> Library | None:
        """The build in the table, without a file."""
        build = self._compilers.get(name)
        return Library(name, "", build) if build else None

    def version(self, distribution: str) -> str | None:
        """The version in the table."""
        return self._versions.get(distribution)

    def identify(
        self, libraries: Sequence[str], distributions: Sequence[str], *, looks: bool = True
    ) -> tuple[dict[str, str | None], dict[str, str | None]] | None:
        """Look the builds and versions up in the tables."""
        builds = {name: self._compilers.get(name) or None for name in libraries}
        return builds, {name: self._versions.get(name) for name in distributions}


class UnknownToolchain(MadeUpToolchain):
    """A toolchain without records: its libraries are known only after a search."""

    def identify(
        self, libraries: Sequence[str], distributions: Sequence[str], *, looks: bool = True
    ) -> tuple[dict[str, str | None], dict[str, str | None]] | None:
        """Return None unless a search is allowed."""
        return super().identify(libraries, distributions) if looks else None


def definition_of(
    text: str | bytes,
    *,
    kind: str = "cuda",
    guess: str | None = "k",
    label: str = "somewhere.k",
    origin: Origin | None = None,
    base_dir: str = "/project",
    module: ModuleKernels | None = None,
    **options: Any,
) -> SourceDefinition:
    """The definition of a source with these options."""
    source = Source(kind, label, label, guess, origin or Origin("/project/k.py", 3), base_dir, lambda: text)
    return SourceDefinition(None, source, options, module)


def request_of(text: str | bytes, *, target: str = "sm_90", through: str | None = None, **more: Any) -> Request:
    """The request of a source for a target; `through` is the target of the PTX that it is compiled through, if any."""
    ptx_target = parse_target(through) if through else None
    return source_request(definition_of(text, **more), text, parse_target(target), ptx_target)


def key_of(request: Request, compilers: Mapping[str, str] = COMPILERS, versions: Mapping[str, str] = VERSIONS) -> str:
    """The key of a request with these compilers and versions."""
    session = Session(Settings(mode="off"), None)
    session.toolchain = MadeUpToolchain(compilers, versions)  # type: ignore[assignment]
    return session.key(request)
