"""`Request`: one artifact to find or build; `Wanted`: with its alternatives; `Resolution`: the artifact found.

Promise     A `Request` is all that the engine knows of a kernel of any kind: the components of its key, its build
            function, and its names.
Not here    Making one for a kind of kernel (frontends.source.request, frontends.numba.definition), and the order of
            look-ups (engine/__init__.py).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..keys import COVERED, Component
from ..model import NO_TARGET, Choice, NamedTuple, Target
from ..model.artifact import Artifact

if TYPE_CHECKING:  # a hit does not import these modules
    from typing import Protocol

    from ..headers import HeadersRead
    from ..headers.roots import HeaderSearch
    from ..model.reason import ReasonKind
    from ..model.request import Origin
    from ..toolchain import Toolchain

    class Declared(Protocol):
        """The resolutions of a kernel whose signatures are known before a launch (`signature=`)."""

        session: Callable[[], Any]

        def ahead(self, target: Target) -> Sequence[Callable[[], object]]:
            """List a function for each signature that was not resolved for a device of this target; it resolves it."""


class Request(NamedTuple):
    """A request for one artifact.

    Args:
        label: Name of the kernel in messages and events.
        target: The target to build for.
        components: The components of its key, without compilers, versions and headers.
        libraries: The compiler libraries that would build it.
        distributions: Python distributions whose version can change it.
        build: Compiles it; may be called more than once.
        uncacheable: Reason why it cannot be keyed; "" if it can.
        strict: Refuse rather than run uncached.
        headers: Its CUDA C++ texts, and where they search for headers; None if none may ask for a file. For code that
            another library has compiled, the headers that it read.
        texts: Returns the user's texts by component, each with its place; for explanations.
        file: The file that defines the kernel; "" for none.
        name: The kernel within that file: its qualified name, and the entry where the file defines many.
        changed: Called after a compile: reads the inputs again, and returns the reason not to store the code if one
            changed; "" if none did.
        loads_slowly: Whether its compilers take long to load, which a process does once.
        kinds: Returns the kind of reason for each component, by its name or a prefix of it (`"global "`).
        prepare: Imports the modules that `build` needs, while a thread loads the compilers.
    """

    label: str
    target: Target
    components: tuple[Component, ...]
    libraries: tuple[str, ...]
    distributions: tuple[str, ...]
    build: Callable[[Toolchain], Artifact]
    uncacheable: str = ""
    strict: bool = False
    headers: HeaderSearch | HeadersRead | None = None
    texts: Callable[[], Mapping[str, tuple[str, Origin]]] = dict
    file: str = ""
    name: str = ""
    changed: Callable[[], str] = str
    kinds: Callable[[], Mapping[str, ReasonKind]] = dict
    loads_slowly: bool = False
    prepare: Callable[[], object] = str

    @property
    def covered(self) -> tuple[str, ...]:
        """Names of the inputs that cannot be read, and that `depends=` represents."""
        return tuple(each.name for each in self.components if each.value == COVERED)

    @property
    def title(self) -> str:
        """Label and target, as in a message."""
        return self.label if self.target == NO_TARGET else f"{self.label} for {self.target}"


Make = Callable[[Target, "Target | None"], Request]
"""Makes a request for a target; the second argument is a virtual target to compile to PTX for first, or None."""


class Wanted(NamedTuple):
    """A request, and the requests whose artifacts are accepted in its place; these are made only when they are tried.

    Args:
        request: The request for the target of the choice.
        choice: The accepted targets.
        make: Makes such a request for another target.
    """

    request: Request
    choice: Choice
    make: Make

    def requests(self) -> Iterator[Request]:
        """Yield the request, then its alternatives, whose artifacts are always accepted as well."""
        yield self.request
        for target in self.choice.alternatives:
            yield self.make(target, self.choice.ptx_target)

    def fallbacks(self) -> Iterator[Request]:
        """Yield requests whose artifacts are accepted where nothing is compiled: in frozen mode, in read-only tiers."""
        for target in self.choice.fallbacks():
            yield self.make(target, None)


declared: weakref.WeakValueDictionary[int, Declared] = weakref.WeakValueDictionary()
"""Resolutions of this process's kernels with `signature=`, by id, in the order of their creation."""


def only(request: Request) -> Wanted:
    """Wrap a request without alternatives and fallbacks."""
    return Wanted(request, Choice(request.target), lambda _target, _ptx_target: request)


class Resolution(NamedTuple):
    """An artifact and how it was found.

    Args:
        artifact: The artifact.
        key: Its key; "" if it cannot be cached.
        source: `"memory"`, `"disk"`, `"tier"`, `"waited"` or `"compiled"`.
        uncacheable: Reason why it cannot be cached; "" if it can.
        is_stored: Whether it came from a store.
        name: Where it has no key, a name that is unique in this process.
        row: Its row in the kernel's index, if it depends on headers; else it has no transcript.
    """

    artifact: Artifact
    key: str
    source: str
    uncacheable: str = ""
    is_stored: bool = False
    name: str = ""
    row: Mapping[str, Any] = {}
