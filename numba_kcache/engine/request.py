"""One artifact that is wanted, by what it is made of; and what else may serve in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..keys.components import Component
from ..model.artifact import Artifact
from ..model.target import Target

if TYPE_CHECKING:  # a hit goes without them
    from ..headers.search import HeaderQuery
    from ..model.reason import ReasonKind
    from ..model.request import Origin
    from ..toolchain.libraries import Toolchain
    from ..toolchain.time_trace import TimeTrace


class Request(NamedTuple):
    """One artifact that is wanted.

    Args:
        label: Name of the kernel in messages and events.
        target: What to build for.
        components: What is asked for, without compilers, versions and headers.
        libraries: The compiler libraries that would make it.
        distributions: Python distributions whose version can change it.
        build: Compiles it; called at most once. The trace is where NVRTC shall list the headers it read.
        uncacheable: Reason for which no key can be had; "" where one can.
        strict: Refuse rather than run uncached.
        headers: What each CUDA C++ text of the request may include; empty where none asks for a file.
        texts: Gives the user's texts by component, and where each stands: for explanations.
        file: The file that defines the kernel; "" for none.
        name: The kernel within that file: its qualified name, and the entry where the file defines many.
        kinds: What components of this kind of kernel are about, by name or by the start of it (`"global "`).
    """

    label: str
    target: Target
    components: tuple[Component, ...]
    libraries: tuple[str, ...]
    distributions: tuple[str, ...]
    build: Callable[[Toolchain, TimeTrace | None], Artifact]
    uncacheable: str = ""
    strict: bool = False
    headers: tuple[HeaderQuery, ...] = ()
    texts: Callable[[], Mapping[str, tuple[str, Origin]]] = dict
    file: str = ""
    name: str = ""
    kinds: Mapping[str, ReasonKind] = {}


Factory = Callable[[], Request]


class Wanted:
    """A request, and what else may serve in its place.

    Args:
        request: What is built where nothing is found.
        alternatives: Requests whose artifacts do as well.
        fallbacks: Requests whose artifacts do where nothing is compiled: in frozen mode and from read-only tiers.
    """

    __slots__ = ("_alternatives", "_fallbacks", "_made", "request")

    def __init__(
        self, request: Request, alternatives: Sequence[Factory] = (), fallbacks: Sequence[Factory] = ()
    ) -> None:
        self.request, self._alternatives, self._fallbacks = request, alternatives, fallbacks
        self._made: dict[Any, Request] = {}

    def requests(self) -> Iterator[Request]:
        """Yield the request, then its alternatives, each made when it is reached."""
        yield self.request
        yield from map(self._make, self._alternatives)

    def fallbacks(self) -> Iterator[Request]:
        """Yield the fallbacks, each made when it is reached."""
        return map(self._make, self._fallbacks)

    def _make(self, factory: Factory) -> Request:
        found = self._made.get(factory)
        if found is None:
            found = self._made[factory] = factory()
        return found


class Resolution(NamedTuple):
    """An artifact and how it was found.

    Args:
        artifact: What was wanted.
        key: Its key; "" for what cannot be cached.
        source: `"memory"`, `"disk"`, `"tier"`, `"waited"` or `"compiled"`.
        uncacheable: Reason for which it cannot be cached; "" where it is.
    """

    artifact: Artifact
    key: str
    source: str
    uncacheable: str = ""

    @property
    def is_stored(self) -> bool:
        """True where it came from a store."""
        return self.source in ("disk", "tier", "waited")
