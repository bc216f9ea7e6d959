"""`Request`: one artifact to find or build; `candidates`: which request, in which store, with code of which compiler.

Promise     A `Request` is all that the engine knows of a kernel of any kind: the components of its key, its build
            function, and its names. No other module decides on an order of look-ups: waiting for another process, tiers
            and explanations read `candidates`, too. Compilers are identified no earlier than the first candidate that
            needs them.
Method      To find out that compilers are not installed takes longer than the rest of a first launch. So while there is
            no record of them, code of any compiler is looked for first, in the stores where it is accepted.
Not here    Making a request for a kind of kernel (frontends.source, frontends.numba.definition); the keys of a
            candidate and reading its entry (session).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..keys import COVERED, Component
from ..model import NO_TARGET, Artifact, Choice, NamedTuple, Target

if TYPE_CHECKING:
    from ..tiers.checked_tier import CheckedTier
    from .session import Lookup

if TYPE_CHECKING:  # a hit does not import these modules
    from typing import Protocol

    from ..headers import HeadersRead
    from ..headers.roots import HeaderSearch
    from ..model import Origin
    from ..model.reason import ReasonKind
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


# -- request -----------------------------------------------------------------------------------------------------------


_SAME_DEVICE = "code for the same device without its architecture-specific instructions"
_ANY_COMPILER = "code of any compiler is accepted there"
_OLDER_TARGET = "code for an earlier target runs on the device, and nothing is compiled for that store"


class Candidate(NamedTuple):
    """One request to look up in one store.

    Args:
        request: The request.
        components: Its components; with the compilers, where they were identified.
        tier: The store; None for the local one.
        any_compiler: Whether code of any compiler is accepted.
        is_identified: Whether `components` name this process's compilers; if not, no key can be derived from them.
        why: Reason why `request` is accepted in place of the wanted one; "" if it is the wanted one.
    """

    request: Request
    components: tuple[Component, ...]
    tier: CheckedTier | None
    any_compiler: bool
    is_identified: bool
    why: str


def candidates(
    lookup: Lookup, wanted: Wanted, stores: Sequence[CheckedTier | None] | None = None
) -> Iterator[Candidate]:
    """Yield the candidates for a request, best first.

    Args:
        lookup: Provides the tiers, the mode and the compilers.
        wanted: The request, its alternatives and its fallbacks.
        stores: Stores to look in, with None for the local one; None for all.
    """
    stores = (None, *lookup.tiers) if stores is None else stores
    local, tiers = [each for each in stores if each is None], [each for each in stores if each is not None]
    settings = lookup.settings
    frozen = settings.mode == "frozen"
    readonly = [each for each in tiers if each.readonly]
    fallback_stores = [*local, *tiers] if frozen else readonly  # nothing is compiled for them

    if lookup.compilers(wanted.request, looks=False) is None:
        if frozen or settings.toolchain == "any":
            yield from _unidentified(lookup, wanted.requests(), local)
            yield from _unidentified(lookup, wanted.requests(), tiers)
            yield from _unidentified(lookup, wanted.fallbacks(), fallback_stores)
        else:
            yield from _unidentified(lookup, wanted.requests(), [each for each in readonly if not each.tier.is_remote])
            if lookup.lacks_compilers(wanted.request):
                yield from _unidentified(lookup, wanted.requests(), local)
                yield from _unidentified(lookup, wanted.requests(), readonly)
                yield from _unidentified(lookup, wanted.fallbacks(), readonly)

    for group in (local, tiers):
        for request in wanted.requests() if group else ():
            for tier in group:
                yield _identified(lookup, request, tier, "" if request is wanted.request else _SAME_DEVICE)
    for request in wanted.fallbacks() if fallback_stores else ():
        for tier in fallback_stores:
            yield _identified(lookup, request, tier, _OLDER_TARGET)


def _identified(lookup: Lookup, request: Request, tier: CheckedTier | None, why: str) -> Candidate:
    components = request.components + (lookup.compilers(request) or ())
    any_compiler = (tier is not None and tier.readonly) or lookup.takes_any_compiler(components)
    return Candidate(request, components, tier, any_compiler, True, why)


def _unidentified(
    lookup: Lookup, requests: Iterable[Request], stores: Sequence[CheckedTier | None]
) -> Iterator[Candidate]:
    """Yield candidates without the compilers: their code may come from any."""
    for request in requests if stores else ():
        for tier in stores:
            yield Candidate(request, lookup.unidentified(request), tier, True, False, _ANY_COMPILER)
