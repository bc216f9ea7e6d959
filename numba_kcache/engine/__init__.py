"""Resolve requests to artifacts: `Request`, the candidates for it, and `Session`, which looks up, else compiles once.

Promise     A `Request` is all that the engine knows of a kernel of any kind: the components of its key, its build
            function, and its names. No other module decides on an order of look-ups: waiting for another process, tiers
            and explanations read `candidates`, too. Compilers are identified no earlier than the first candidate that
            needs them.
            An artifact is found only under the key of the request that would be compiled. Every failure of reading
            stored data is a miss: only `keys` and `_read` read it; each returns a value or emits one event.
            Each resolution emits one HIT or MISS. Of many threads and processes that resolve the same request at once,
            one of them compiles, and the others wait a bounded time.
            The process has one session of its own at a time, made at first use from the settings in force;
            registered tiers and subscribers survive a change of settings.
Method      `Lookup` is the part that never compiles. A source without includes has its complete key at once, so a warm
            start reads one file. The manifest of a family (the key without compilers and versions) lists the entries
            stored for it; it is read where code of any compiler is accepted.
            To find out that compilers are not installed takes longer than the rest of a first launch. So while there is
            no record of them, code of any compiler is looked for first, in the stores where it is accepted.
Not here    Making a request for a kind of kernel (frontends); the work after a miss (turns, compile); kernels, launches
            and devices.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import KCacheError, OptionError, UncacheableError
from ..keys import COVERED, Component, components, derive, family_of
from ..launch.launcher import Loader
from ..model import (
    NO_TARGET,
    Artifact,
    Choice,
    Emit,
    Event,
    EventKind,
    NamedTuple,
    Protocol,
    Resolution,
    Target,
    artifact_from_header,
    resolved_without_key,
    trouble,
)
from ..observe import Events, Statistics
from ..settings import Settings, default_directory, misspelt, read_settings
from ..store import renewed_in_children
from ..store.disk import DiskStore, open_store
from ..store.entry import is_key, variant_of
from ..toolchain import Identified, Toolchain

if TYPE_CHECKING:  # a hit does not import these modules
    from typing import Protocol

    from ..explanation.history import Subject
    from ..explanation.text import Explanation
    from ..headers import HeadersRead
    from ..headers.roots import HeaderSearch
    from ..model import Origin
    from ..model.reason import Reason, ReasonKind
    from ..store.entry import StoredEntry, Variant
    from ..tiers.chain import Chain
    from ..tiers.checked_tier import CheckedTier
    from ..tiers.tier import Tier, TierReport

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
        choice: The targets whose code is accepted in its place; None for no others.
        make: Makes the same request for a target; the second argument is a virtual target to compile to PTX for first,
            or None.
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
    choice: Choice | None = None
    make: Callable[[Target, Target | None], Request] | None = None

    @property
    def alone(self) -> Request:
        """The request, without others in its place."""
        return self._replace(choice=None)

    def requests(self) -> Iterator[Request]:
        """Yield the request, then those whose artifacts are always accepted as well, made when they are tried."""
        yield self
        if self.choice and self.make:
            for target in self.choice.alternatives:
                yield self.make(target, self.choice.ptx_target)

    def fallbacks(self) -> Iterator[Request]:
        """Yield requests whose artifacts are accepted where nothing is compiled: in frozen mode, in read-only tiers."""
        if self.choice and self.make:
            for target in self.choice.fallbacks():
                yield self.make(target, None)

    @property
    def covered(self) -> tuple[str, ...]:
        """Names of the inputs that cannot be read, and that `depends=` represents."""
        return tuple(each.name for each in self.components if each.value == COVERED)

    @property
    def subject(self) -> Subject:
        """The subject of an explanation for it."""
        from ..explanation.history import Subject

        search: Any = self.headers if hasattr(self.headers, "roots") else None
        return Subject(self.label, self.file, self.name, self.components, search, self.texts, self.kinds())

    def refusal(self, why: str) -> UncacheableError:
        """Make the error for a request that cannot be cached."""
        return UncacheableError(f"cannot cache {self.label}", why)

    @property
    def title(self) -> str:
        """Label and target, as in a message."""
        return self.label if self.target == NO_TARGET else f"{self.label} for {self.target}"


# -- candidates --------------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """One request to look up in one store.

    Args:
        request: The request.
        components: Its components; with the compilers, where they were identified.
        tier: The store; None for the local one.
        any_compiler: Whether code of any compiler is accepted.
        is_identified: Whether `components` name this process's compilers; if not, no key can be derived from them.
    """

    request: Request
    components: tuple[Component, ...]
    tier: CheckedTier | None
    any_compiler: bool
    is_identified: bool


# -- looking up --------------------------------------------------------------------------------------------------------


MEMORY_LIMIT_BYTES = 8 * 2**20
"""Limit of the size of artifacts kept in memory for other kernel objects with equal keys, with 1 KiB added for each.

It suffices for several modules of a megabyte, which take a quarter of a millisecond to read and verify again (small
ones 0.02); a process that makes and drops 10,000 kernels of 5 KB grows by less than 1 KiB for each of them.
"""

_NOT_IDENTIFIED = components({"compilers": {"": None}, "versions": {}})
"""Placeholder until the compilers are identified."""

_WITHOUT_COMPILERS = components({"compilers": {}, "versions": {}})

_FOUND_QUICKLY = ("nvrtc", "nvJitLink")
"""Libraries whose absence is found quickly; for the others cuda.pathfinder starts a process, which takes 100 ms."""


class Store(Protocol):
    """A store to look up in and to publish to: the local one, alone or with tiers behind it."""

    def get(self, key: str) -> StoredEntry | None:
        """The entry of `key`, verified; None if there is none."""

    def put(self, entry: StoredEntry) -> bool:
        """Store an entry. Returns True if it was stored locally."""

    def add_variant(self, family: str, *variants: Variant) -> bool:
        """Put variants before those of a manifest. Returns True if they were stored locally."""


class Lookup:
    """The store of a cache, and the keys under which requests are looked up. `Session` inherits from it, and compiles.

    Args:
        settings: The settings in force.
        directory: Directory of the store; None if no home directory is known.
        process: Events of the process's cache, if this is that cache.

    Attributes:
        looks: Whether stored entries are used in this mode.
        stores: Whether entries and counts are stored in this mode.
        local: The local store.
        chain: The local store with tiers behind it; None if there are no tiers.
        store: The one of both that is looked up in and published to.
        tiers: The stores behind the local one, in the order in which they are tried.
        refused: Keys of stored code that could not be used; they are not looked up again until compiled.
    """

    def __init__(self, settings: Settings, directory: str | None, process: Events | None = None) -> None:
        self.settings = settings
        self.looks = settings.mode in ("readwrite", "readonly", "frozen")
        self.stores = settings.mode in ("readwrite", "refresh", "verify")
        self.events = Events(process)
        self.statistics = self.events.statistics
        self.damaged: dict[str, str] = {}
        self.refused: set[str] = set()
        self.memory: OrderedDict[str, Artifact] = OrderedDict()
        self._memory_bytes = 0
        self._is_explaining = False
        self.local = open_store(settings, directory, functools.partial(_record_damage, self.events.emit, self.damaged))
        self.store: Store = self.local
        self.chain: Chain | None = None
        self.tiers: Sequence[CheckedTier] = ()
        self.toolchain = Toolchain(self.local.get_record, self._save_record, self._header_folder)
        self._compilers: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Identified, tuple[Component, ...]]] = {}
        self._absent: set[str] = set()
        self._lock = threading.RLock()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Renew locks that another thread of the parent may have held, and reset the counts."""
        self._lock = threading.RLock()
        self.toolchain.after_fork()
        self.statistics.after_fork()

    def mount(self, tier: Tier) -> None:
        """Add a tier behind the local store, before those that are there already."""
        from ..tiers.chain import Chain
        from ..tiers.trust import trust_of

        if self.chain is None:
            self.store = self.chain = Chain(self.local, (), self.events.emit, trust_of(self.settings), refusal_of)
            self.statistics.sources.append(self.chain.take_unsaved)
        self.chain.mount(tier)
        self.tiers = self.chain.tiers

    def settled(self) -> DiskStore:
        """The local store, once all entries found in tiers are stored there."""
        if self.chain is not None:
            self.chain.settle()
        return self.local

    # -- compilers ----------------------------------------------------------------------------------

    def components(self, request: Request) -> tuple[Component, ...]:
        """List all components of a request, with the compilers of this process."""
        found = self.compilers(request)
        assert found is not None  # `looks` is True
        return request.components + found

    def compilers(self, request: Request, *, looks: bool = True) -> tuple[Component, ...] | None:
        """List the components that name the request's compilers.

        With `looks=False`, with which each look-up begins, no compiler is searched for: the components come from the
        record, if that is still true of the libraries that are installed now; otherwise None is returned.
        """
        makers = request.libraries, request.distributions
        if makers == ((), ()):
            return _WITHOUT_COMPILERS
        known = self._compilers.get(makers)
        if known is None or not looks:
            found = self.toolchain.identify(*makers, looks=looks)
            if found is None:
                return None
            if known is None or known[0] != found:
                builds, versions = found
                named = components({"compilers": dict(builds), "versions": dict(versions)})
                known = self._compilers[makers] = found, named
        return known[1]

    def forget_compilers(self) -> None:
        """Identify the compilers again at the next call."""
        self._compilers.clear()

    def lacks_compilers(self, request: Request) -> bool:
        """Check whether one of the request's compilers is not installed, if that can be found quickly."""
        sought = [each for each in _FOUND_QUICKLY if each in request.libraries and each not in self._absent]
        self._absent.update(each for each in sought if self.toolchain.library(each) is None)
        return not self._absent.isdisjoint(request.libraries)

    def takes_any_compiler(self, components: Sequence[Component]) -> bool:
        """Check whether code of any compiler is accepted: by setting, in frozen mode, or if one is not installed."""
        if self.settings.toolchain == "any" or self.settings.mode == "frozen":
            return True
        compilers = next(each.value for each in components if each.name == "compilers")
        return isinstance(compilers, dict) and None in compilers.values()

    # -- looking up ---------------------------------------------------------------------------------

    def candidates(self, request: Request, stores: Sequence[CheckedTier | None] | None = None) -> Iterator[Candidate]:
        """Yield the candidates for a request, best first.

        Args:
            request: The request.
            stores: Stores to look in, with None for the local one; None for all.
        """
        stores = (None, *self.tiers) if stores is None else stores
        local, tiers = [each for each in stores if each is None], [each for each in stores if each is not None]
        frozen = self.settings.mode == "frozen"
        readonly = [each for each in tiers if each.readonly]
        fallback_stores = [*local, *tiers] if frozen else readonly  # nothing is compiled for them

        if self.compilers(request, looks=False) is None:
            if frozen or self.settings.toolchain == "any":
                yield from self._unidentified(request.requests(), local)
                yield from self._unidentified(request.requests(), tiers)
                yield from self._unidentified(request.fallbacks(), fallback_stores)
            else:
                yield from self._unidentified(request.requests(), [one for one in readonly if not one.tier.is_remote])
                if self.lacks_compilers(request):
                    yield from self._unidentified(request.requests(), local)
                    yield from self._unidentified(request.requests(), readonly)
                    yield from self._unidentified(request.fallbacks(), readonly)

        for group in (local, tiers):
            for each in request.requests() if group else ():
                for tier in group:
                    yield self._identified(each, tier)
        for each in request.fallbacks() if fallback_stores else ():
            for tier in fallback_stores:
                yield self._identified(each, tier)

    def _identified(self, request: Request, tier: CheckedTier | None) -> Candidate:
        components = request.components + (self.compilers(request) or ())
        any_compiler = (tier is not None and tier.readonly) or self.takes_any_compiler(components)
        return Candidate(request, components, tier, any_compiler, True)

    def _unidentified(self, requests: Iterable[Request], stores: Sequence[CheckedTier | None]) -> Iterator[Candidate]:
        """Yield candidates without the compilers: their code may come from any."""
        for request in requests if stores else ():
            for tier in stores:
                yield Candidate(request, request.components + _NOT_IDENTIFIED, tier, True, False)

    def key(self, request: Request) -> str:
        """Derive the key of a request.

        Raises:
            UncacheableError: The request cannot be keyed.
        """
        if request.uncacheable:
            raise request.refusal(request.uncacheable)
        self.forget_compilers()
        key = derive(self.components(request))
        self.toolchain.settle()
        return key

    def find(self, request: Request) -> Resolution | None:
        """Find the stored artifact of exactly this request, without alternatives; None if it has to be built.

        Raises:
            UncacheableError: The request cannot be keyed.
        """
        if request.uncacheable:
            raise request.refusal(request.uncacheable)
        if not self.looks:
            return None
        found = self.first(self.candidates(request))
        if found is not None and found.source == "memory" and self.local.peek(found.key) is None:
            return None
        return found

    def first(self, tried: Iterable[Candidate], source: str = "disk", *, is_counted: bool = True) -> Resolution | None:
        """Return the first of these candidates that is stored, and count it as a hit.

        Args:
            tried: The candidates in order.
            source: Source reported for an artifact of the local store.
            is_counted: Whether it counts.
        """
        for candidate in tried:
            start = time.perf_counter()
            request, tier = candidate.request, candidate.tier
            for key, variant in self.keys(candidate):
                artifact = self.memory.get(key)
                if artifact is not None:
                    return self._hit(request, key, artifact, "memory", 0.0, variant)
                artifact = None if key in self.refused else self._read(key, tier)
                if artifact is None:
                    continue
                if artifact.target != request.target:
                    self.set_aside(key, f"it is for {artifact.target}, but {request.target} was requested")
                    continue
                if tier is not None:
                    source, family = "tier", family_of(candidate.components)
                    variant = variant or variant_of(key, artifact.target.name, derive(candidate.components))
                    tier.keep_variant(family, variant)
                if not is_counted:
                    return Resolution(artifact, key, source)
                return self._hit(request, key, artifact, source, time.perf_counter() - start, variant)
        return None

    def keys(self, candidate: Candidate) -> Iterator[tuple[str, Variant | None]]:
        """Yield the keys under which a candidate may be stored, each with its variant of the manifest, if any."""
        try:
            if candidate.request.headers:
                yield from self._keys_by_headers(candidate)
                return
            if candidate.is_identified:
                yield derive(candidate.components), None
            if candidate.any_compiler:
                for variant in self._variants(candidate):
                    if is_key(variant["key"]):
                        yield variant["key"], variant
        except KCacheError:
            raise
        except Exception as error:  # MemoryError, or any other, since a manifest may contain anything
            why = f"cannot read what is stored for {candidate.request.label}: {error!r}"
            self.events.emit(trouble("manifest", why))

    def has_changed_headers(self, request: Request, row: Mapping[str, Any]) -> bool:
        """Check whether a header of a request differs from when the artifact with this row was found or compiled."""
        from ..headers.lookup import is_unchanged

        search: Any = request.headers
        return search is None or not is_unchanged(row, search.roots(self.toolchain))

    def _variants(self, candidate: Candidate) -> Sequence[Variant]:
        family, tier = family_of(candidate.components), candidate.tier
        if tier is not None:
            return tier.get_manifest(family)
        return self.local.peek_manifest(family) if self._is_explaining else self.local.get_manifest(family)

    def _keys_by_headers(self, candidate: Candidate) -> Iterator[tuple[str, Variant | None]]:
        """Yield the key derived from a recorded transcript whose answers are unchanged, if there is one."""
        from ..headers.lookup import find_key
        from ..headers.roots import HeaderSearch

        variants, search = self._variants(candidate), candidate.request.headers
        if not variants or not isinstance(search, HeaderSearch):
            return
        # Code of any compiler is first looked for without the toolkit's folders. They matter if the code contains their
        # paths, or if the user names one of them.
        for toolchain in (None, self.toolchain) if candidate.any_compiler else (self.toolchain,):
            roots = search.roots(toolchain)
            start_s = time.perf_counter()
            found = find_key(variants, candidate.components, roots, any_compiler=candidate.any_compiler)
            if candidate.tier is not None:
                candidate.tier.charge(start_s, "the check of its headers", worth_s=float(found.key is not None))
            if found.key is not None and is_key(found.key):
                is_saved = candidate.tier is None and self.settings.mode == "readwrite" and not self._is_explaining
                if found.renewed is not None and is_saved:
                    self.local.add_variant(family_of(candidate.components), found.renewed)
                yield found.key, found.renewed or found.variant
                return

    def _hit(
        self, request: Request, key: str, artifact: Artifact, source: str, seconds: float, row: Variant | None
    ) -> Resolution:
        self.remember(key, artifact)
        if self.toolchain.is_dirty:
            self.toolchain.settle()
        self.events.emit(Event(EventKind.HIT, {
            "kernel": request.label, "target": request.target.name, "key": key, "source": source,
            "compile_time_s": artifact.compile_time_s, "load_time_s": seconds,
        }))  # fmt: skip
        return Resolution(artifact, key, source, is_stored=source != "memory", row=row or {})

    def _read(self, key: str, tier: CheckedTier | None = None) -> Artifact | None:
        try:
            entry = self.local.get(key)
            if entry is None and tier is not None:
                entry = tier.get(key)
            if entry is None:
                return None
            if self.settings.shared:
                return arrived(entry)
            return artifact_from_header(entry.header, entry.payloads, is_launched=True)
        except (ValueError, KCacheError) as error:
            self.set_aside(key, f"no artifact: {error}")
        except Exception as error:  # MemoryError, or any other: a store's contents must not make a launch fail
            self.events.emit(trouble("entry", f"cannot read the entry {key}: {error!r}"))
        return None

    def set_aside(self, key: str, reason: str) -> None:
        """Quarantine a stored entry that is undamaged but cannot be used, so that it is compiled again."""
        self._forget_one(key)
        self.refused.add(key)
        self.settled().set_aside(key)  # settled, or a tier's copy may be stored after this
        _record_damage(self.events.emit, self.damaged, Event(EventKind.DAMAGED, {"key": key, "reason": reason}))

    def remove(self, key: str) -> bool:
        """Remove an entry from memory and the local store. Returns True if there was one. Tiers keep theirs."""
        is_known = self._forget_one(key)
        return (not self.local.readonly and self.settled().remove(key)) or is_known

    def _forget_one(self, key: str) -> bool:
        with self._lock:
            gone = self.memory.pop(key, None)
            self._memory_bytes -= len(gone.cubin) if gone else 0
        return gone is not None

    # -- memory and records -------------------------------------------------------------------------

    def remember(self, key: str, artifact: Artifact) -> None:
        """Keep an artifact in memory, within `MEMORY_LIMIT_BYTES`."""
        with self._lock:
            before = self.memory.pop(key, None)
            self.memory[key] = artifact
            self._memory_bytes += len(artifact.cubin) - (len(before.cubin) if before else 0)
            if self._memory_bytes + 1024 * len(self.memory) > MEMORY_LIMIT_BYTES:  # a signal handler may spoil the sum
                self._memory_bytes = sum(len(each.cubin) for each in list(self.memory.values()))
            while self._memory_bytes + 1024 * len(self.memory) > MEMORY_LIMIT_BYTES and len(self.memory) > 1:
                self._memory_bytes -= len(self.memory.popitem(last=False)[1].cubin)

    def forget(self) -> None:
        """Drop all artifacts kept in memory."""
        with self._lock:
            self.memory.clear()
            self._memory_bytes = 0
        self.damaged.clear()
        self.refused.clear()
        self.toolchain.forget()
        self._compilers.clear()
        self._absent.clear()

    def _save_record(self, name: str, record: dict[str, Any]) -> None:
        if self.stores:
            self.local.put_record(name, record)

    def _header_folder(self) -> str:
        """The folder for the headers that NVRTC holds itself; "" if nothing is stored, or others may write there."""
        return self.local.header_folder() if self.stores else ""

    def emit(self, kind: EventKind, request: Request, key: str, **fields: Any) -> None:
        """Emit an event about a request."""
        self.events.emit(Event(kind, {"kernel": request.label, "target": request.target.name, "key": key, **fields}))


def _record_damage(emit: Emit, damaged: dict[str, str], event: Event) -> None:
    """Pass on an event of the store, and remember a damaged key, which explains the miss that follows."""
    if event.kind is EventKind.DAMAGED:
        damaged[str(event.fields.get("key"))] = str(event.fields.get("reason"))
    emit(event)


class RunsUncached(UncacheableError):
    """The kernel cannot be cached, which was reported, but its front end's own launch runs it uncached."""


# -- code of other stores ----------------------------------------------------------------------------------------------


def arrived(entry: StoredEntry) -> Artifact:
    """Read the artifact of a decoded entry, and check it against its code.

    Raises:
        ValueError: The header is malformed, or contradicts the code.
    """
    try:
        artifact = artifact_from_header(entry.header, entry.payloads)
    except KCacheError as error:
        raise ValueError(str(error)) from None
    from ..model.contradiction import contradiction_of  # here: a hit of the local store does not need it

    if wrong := contradiction_of(artifact):
        raise ValueError(wrong)
    return artifact


def refusal_of(entry: StoredEntry) -> str:
    """The reason not to accept an entry from another store; "" for none."""
    try:
        arrived(entry)
    except ValueError as error:
        return str(error)
    return ""


# -- one cache ---------------------------------------------------------------------------------------------------------


class Session(Lookup):
    """The engine behind one cache.

    Args:
        settings: The settings in force.
        directory: Directory of the store; None if no home directory is known.
        process: Events of the process's cache, if this is that cache.

    Attributes:
        declared: Resolutions of this process's kernels with `signature=`, by id, in the order of their creation.
        compiled_for: The reasons of each compile, by the key of its artifact.
        served: Keys of `get_or_build` results for which this process counted a hit, by digest of the call.
    """

    declared: ClassVar[weakref.WeakValueDictionary[int, Declared]] = weakref.WeakValueDictionary()

    def __init__(self, settings: Settings, directory: str | None, process: Events | None = None) -> None:
        if collected:
            save_collected()
        super().__init__(settings, directory, process)
        self.loader = Loader(self.events.emit)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled_for: dict[str, tuple[Reason, ...]] = {}
        self.served: dict[str | bytes, str] = {}
        # the counts are saved at exit, or by `save_collected` once this session was garbage collected
        save = weakref.finalize(Session, _save, self.statistics, self.local, self.stores)
        weakref.finalize(self, collected.append, save).atexit = False
        if settings.tiers and settings.mode != "off":  # import now, so that its atexit function runs after `_save`
            from ..tiers.opening import open_tiers

            for tier in reversed(open_tiers(settings)):
                self.mount(tier)

    def resolve(self, request: Request) -> Resolution:
        """Find the artifact of a request, or one accepted in its place; otherwise build the request.

        Raises:
            KCacheError: The user's own errors, from the compilers.
            UncacheableError: The request cannot be keyed, and it or the mode forbids to run it uncached.
            FrozenCacheError: The artifact is not stored, and the mode is frozen.
        """
        if request.uncacheable:
            return self._uncached(request)
        found = self.first(self.candidates(request)) if self.looks else None
        if found is not None:
            return found
        components = self.components(request)
        if self.settings.mode == "frozen":
            from .explain import frozen_error

            raise frozen_error(self, request, components)
        with self.turn_to_build(request, components) as turned:
            return self.compile(request, components) if turned is None else turned

    def turn_to_build(self, request: Request, components: Sequence[Component]) -> Any:
        """A context in which the caller builds a missing request, if it is not given another process's result."""
        from .turns import turn_to_build

        return turn_to_build(self, request, components)

    def build_anew(self, request: Request) -> Resolution:
        """Build and store a request without looking it up."""
        return self.compile(request, self.components(request))

    def compile(self, request: Request, components: Sequence[Component]) -> Resolution:
        """Compile a request, and store it; the caller has the turn (turns)."""
        from ..toolchain.loaded import begin_loading  # here: a hit needs neither this nor the following

        begin_loading(request.libraries, self.toolchain.library)  # in a thread, while the following is imported
        from .compile import compile_and_store

        return compile_and_store(self, request, components)

    def _uncached(self, request: Request) -> Resolution:
        from .compile import build

        self.refuse(request)
        return resolved_without_key(build(self, request, "")[0], request.uncacheable)

    def refuse(self, request: Request, *, is_counted: bool = False) -> None:
        """Report a request that runs uncached.

        Args:
            request: The request, with the reason.
            is_counted: Whether it was counted as a miss before the reason was known.

        Raises:
            UncacheableError: The request or the mode forbids to run it uncached.
        """
        if request.strict or self.settings.mode == "frozen":
            raise request.refusal(request.uncacheable)
        self.emit(EventKind.UNCACHEABLE, request, "", reason=request.uncacheable)
        if not is_counted:
            from ..model.reason import Reason, ReasonKind

            reasons = (Reason(ReasonKind.UNCACHEABLE, new=request.uncacheable),)
            self.emit(EventKind.MISS, request, "", reason=request.uncacheable, reasons=reasons)

    # -- explaining ---------------------------------------------------------------------------------

    def explain(self, request: Request, *, asks_why: bool = True) -> Explanation:
        """Explain whether `resolve` would find a stored artifact and in which store, or why not. Changes nothing."""
        from copy import copy

        from .explain import explain

        reader = copy(self)  # renews no times of use and saves no record of compilers, as other threads go on doing
        reader._is_explaining, reader.toolchain = True, self.toolchain.peeking(self.local.peek_record)
        found = explain(reader, request, asks_why=asks_why)
        return found._replace(compiled_for=self.compiled_for.get(found.key, ())) if found.is_hit else found

    # -- the cache as a whole -----------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all artifacts in memory: each kernel is resolved again at its next launch. Queued launches still run."""
        super().forget()
        self.compiled_for.clear()
        self.served.clear()
        for kernel in all_of(self.users):
            kernel.forget()
        self.loader.forget()

    def tier_reports(self, sums: Mapping[str, float] | None = None, *, asks: bool = False) -> tuple[TierReport, ...]:
        """Report the counts of each tier.

        Args:
            sums: Sums of the counters; None for the counts of this process.
            asks: Send each tier a request first, to test whether it answers.
        """
        if self.chain is None:
            return ()
        if asks:
            self.chain.ask()
        return self.chain.reports(sums)

    def save_counts(self) -> None:
        """Add the counts since the last call to the counters beside the store."""
        save_collected()
        _save(self.statistics, self.local, self.stores)

    def lifetime(self) -> Mapping[str, float]:
        """The sums of all processes' counts since the cache began, this one included."""
        self.save_counts()
        return self.local.counters.read()


collected: deque[Callable[[], Any]] = deque()
"""Functions that save the counts of caches that were garbage collected. The finalizer does not call them, since it may
run during an import, where CPython fails (python/cpython#106176), or while a lock is held."""


def save_collected() -> None:
    """Save the counts of caches that were garbage collected."""
    while collected:
        # An error concerns only a cache that is gone, or another thread took the item: the caller must not see it.
        with contextlib.suppress(Exception):
            collected.popleft()()


def _save(statistics: Statistics, store: DiskStore, stores: bool) -> None:
    unsaved = statistics.take_unsaved()
    if unsaved and stores:
        store.counters.add(unsaved)


def all_of(users: weakref.WeakSet[Any]) -> list[Any]:
    """List the members of a set to which a signal handler or another thread may add meanwhile."""
    while True:
        with contextlib.suppress(RuntimeError):  # the set changed during the iteration
            return list(users)


def checked_cache(cache: Any) -> Any:
    """Require that `cache=` is a `KernelCache`, or None for the process's cache."""
    if cache is not None and not hasattr(type(cache), "session"):  # this module must not import KernelCache
        raise OptionError(f"cannot use cache={cache!r}", f"it is a {type(cache).__name__}", "give a KernelCache(...)")
    return cache


# -- the process's own session ---------------------------------------------------------------------------------------


_process: dict[str, Session] = {}
"""The session of the process's own cache, under "", once it was made; `setdefault` is atomic."""

_overrides: dict[str, Any] = {}
_registered: dict[str, Callable[[Settings], Tier]] = {}
_configured: object = None
"""Replaced by a new object at each change of the variables above, so that `process_session` notices the change."""

process_events = Events()
"""Events of the process's cache, which outlive each of its sessions."""


def process_session() -> Session:
    """Return the session of the process's own cache, made at first use from the settings in force."""
    found = _process.get("")
    while found is None:
        configured = _configured
        settings = settings_of(_overrides)
        made = Session(settings, settings.directory or default_directory(), process_events)
        for make in list(_registered.values()):
            made.mount(make(settings))
        if configured is _configured:  # no subscriber and no other thread changed it meanwhile
            found = _process.setdefault("", made)  # another thread, or a signal handler, may have made one
    return found


def settings_of(overrides: Mapping[str, Any]) -> Settings:
    """Read the settings in force; apply the log level.

    Warns once of each variable that is named like a setting and is none: a misspelt one has no effect.
    """
    settings = read_settings(overrides)
    if misspelt or settings.log_level != "warning":
        from ..observe.log import set_log_level, warn

        while misspelt:
            name, meant = misspelt.popitem()
            if name not in _warned_of:
                _warned_of.add(name)
                hint = f"did you mean {meant}?" if meant else "`numba-kcache config` lists all settings"
                warn(f"{name} names no setting and is ignored: {hint}")
        set_log_level(settings.log_level)
    return settings


_warned_of: set[str] = set()


def configured() -> dict[str, Any]:
    """The configured settings of the process's cache, for its worker processes."""
    return {name: value for name, value in _overrides.items() if name not in ("progress", "log_level")}


def register(name: str, make: Callable[[Settings], Tier]) -> None:
    """Add a tier to the process's cache; `make` is called again after each change of settings."""
    global _configured
    _registered[name], _configured = make, object()


def configure_process(overrides: Mapping[str, Any]) -> Settings:
    """Change settings of the process's cache; each kernel is resolved again at its next launch.

    Raises:
        SettingsError: A setting is unknown or a value cannot be used; nothing has changed.
    """
    global _configured
    settings = settings_of({**_overrides, **overrides})
    _overrides.update(overrides)
    _configured = object()
    before = _process.pop("", None)
    if before is not None:
        before.forget()
    return settings
