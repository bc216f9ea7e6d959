"""One artifact that is wanted, by what it is made of; and what else may serve in its place.

Promise     A `Request` is all that the engine knows of a kernel, of whatever kind: what enters its key, what makes it,
            and what people call it.
Not here    How a kind makes one (frontends.source.request, frontends.numba.request), and the order in which what may
            serve is looked for (engine/__init__.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..keys import Component
from ..model import NO_TARGET, Choice, NamedTuple, Target
from ..model.artifact import Artifact

if TYPE_CHECKING:  # a hit goes without them
    from typing import Protocol

    from ..headers.folders import Folders
    from ..headers.search import HeaderQuery
    from ..model.reason import ReasonKind
    from ..model.request import Origin
    from ..toolchain import Toolchain

    class Foreseen(Protocol):
        """Kernels that know before a launch for which types they will be wanted: those with `signature=`."""

        session: Callable[[], Any]

        def ahead(self, target: Target) -> list[Callable[[], Wanted]]:
            """Give makers of the requests that were not resolved yet, for a device."""


class Request(NamedTuple):
    """One artifact that is wanted.

    Args:
        label: Name of the kernel in messages and events.
        target: What to build for.
        components: What is asked for, without compilers, versions and headers.
        libraries: The compiler libraries that would make it.
        distributions: Python distributions whose version can change it.
        build: Compiles it; it may be called again. `Folders` are where headers are read; None where there are none.
        uncacheable: Reason for which no key can be had; "" where one can.
        strict: Refuse rather than run uncached.
        headers: What each CUDA C++ text of the request may include; empty where none asks for a file.
        texts: Gives the user's texts by component, and where each stands: for explanations.
        file: The file that defines the kernel; "" for none.
        name: The kernel within that file: its qualified name, and the entry where the file defines many.
        changed: Called after a compile: reads again what the components were made of, and returns what differs, for
            which the code does not belong to the key; "" where nothing does.
        loads_slowly: Whether its compilers take long to load, which a process does once.
        kinds: Gives the kind of reason for each component, by its name or by the start of it (`"global "`).
        prepare: Imports what `build` needs, while the compilers are loaded.
    """

    label: str
    target: Target
    components: tuple[Component, ...]
    libraries: tuple[str, ...]
    distributions: tuple[str, ...]
    build: Callable[[Toolchain, Folders | None], Artifact]
    uncacheable: str = ""
    strict: bool = False
    headers: tuple[HeaderQuery, ...] = ()
    texts: Callable[[], Mapping[str, tuple[str, Origin]]] = dict
    file: str = ""
    name: str = ""
    changed: Callable[[], str] = str
    kinds: Callable[[], Mapping[str, ReasonKind]] = dict
    loads_slowly: bool = False
    prepare: Callable[[], object] = str

    @property
    def title(self) -> str:
        """Label and target, as in a message."""
        return self.label if self.target == NO_TARGET else f"{self.label} for {self.target}"


Make = Callable[[Target, "Target | None"], Request]
"""Makes a request for a target, by way of a virtual one where one is given."""


class Wanted(NamedTuple):
    """A request, and the requests whose artifacts may serve in its place, which are made only when they are reached.

    Args:
        request: For the target of the choice.
        choice: The targets that may serve.
        make: Makes the request of another target.
    """

    request: Request
    choice: Choice
    make: Make

    def requests(self) -> Iterator[Request]:
        """Yield the request, then those whose artifacts serve as well."""
        yield self.request
        for target in self.choice.alternatives:
            yield self.make(target, self.choice.ptx_target)

    def fallbacks(self) -> Iterator[Request]:
        """Yield requests whose artifacts serve where nothing is compiled: in frozen mode and from read-only tiers."""
        for target in self.choice.fallbacks():
            yield self.make(target, None)


foreseen: weakref.WeakValueDictionary[int, Foreseen] = weakref.WeakValueDictionary()
"""Kernels of this process that will be wanted for known types, by id, in the order in which they were made."""


def only(request: Request) -> Wanted:
    """A request in whose place nothing else may serve."""
    return Wanted(request, Choice(request.target), lambda _target, _ptx_target: request)


class Resolution(NamedTuple):
    """An artifact and how it was found.

    Args:
        artifact: What was wanted.
        key: Its key; "" for what cannot be cached.
        source: `"memory"`, `"disk"`, `"tier"`, `"waited"` or `"compiled"`.
        uncacheable: Reason for which it cannot be cached; "" where it is.
        is_stored: Whether it came from a store.
        name: For what has no key, a name that no other artifact of this process has.
    """

    artifact: Artifact
    key: str
    source: str
    uncacheable: str = ""
    is_stored: bool = False
    name: str = ""
