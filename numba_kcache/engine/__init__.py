"""Resolve requests to artifacts: `Request`, the candidates for it, `Session`, which looks up or compiles, its events.

Promise     A `Request` is all that the engine knows of a kernel of any kind: the components of its key, its build
            function, and its names. No other module decides on an order of look-ups: waiting for another process, tiers
            and explanations read `candidates`, too. Compilers are identified no earlier than the first candidate that
            needs them.
            An artifact is found only under the key of the request that would be compiled. Every failure of reading
            stored data is a miss: only `candidates` and `_read` read it; each returns a value or emits one event.
            Each resolution emits one HIT or MISS. Of many threads and processes that resolve the same request at once,
            one of them compiles, and the others wait a bounded time.
            Emitting an event never raises, whatever a subscriber does. Each kind of trouble is one warning per process;
            nothing else is printed. Launches are not counted. The memory used is bounded, however many kernels a
            process resolves.
            The process has one session of its own at a time, made at first use from the settings in force;
            registered tiers and subscribers survive a change of settings.
Method      `Lookup` is the part that never compiles. A source without includes has its complete key at once, so a warm
            start reads one file. The manifest of a family (the key without compilers and versions) lists the entries
            stored for it; it is read where code of any compiler is accepted.
            To find out that compilers are not installed takes longer than the rest of a first launch. So while there is
            no record of them, code of any compiler is looked for first, in the stores where it is accepted.
            Counters are sums with names. A count for one key, reason, day or tier has that in its name: `hits/<key>`,
            `reason/<kind of reason>`, `day/<date>/<name>`, `tier/<which>/<name>`; they are summed like the others. A
            process's counts belong to the day (UTC) on which it saves them.
Not here    Log lines and tables of the sums (observe), making a request for a kind of kernel (frontends); the work
            after a miss (turns, compile); kernels, launches and devices.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import KCacheError, OptionError, UncacheableError
from ..keys import COVERED, Component, components, derive, family_of
from ..launch.launcher import Loader
from ..model import (
    IN_USER_CODE,
    KEY_DIGITS,
    LONG_WAIT_S,
    NO_TARGET,
    Artifact,
    Choice,
    Counts,
    Emit,
    Event,
    EventKind,
    NamedTuple,
    Resolution,
    Target,
    artifact_from_header,
    resolved_without_key,
    trouble,
)
from ..settings import Settings, default_directory, misspelt, read_settings
from ..store import is_key, renewed_in_children, row_of
from ..store.disk import DiskStore, open_store
from ..toolchain import Identified, Toolchain

if TYPE_CHECKING:  # a hit does not import these modules
    from typing import Protocol

    from ..explanation.history import Subject
    from ..explanation.text import Explanation
    from ..headers import HeadersRead
    from ..headers.roots import HeaderSearch
    from ..model import Origin
    from ..model.reason import Reason, ReasonKind
    from ..store import StoredEntry, StoredRow
    from ..tiers.chain import Chain, CheckedTier
    from ..tiers.tier import Tier, TierReport

    class Store(Protocol):
        """A store to publish to: the local one, alone or with tiers behind it."""

        def put(self, entry: StoredEntry) -> bool:
            """Store an entry. Returns True if it was stored locally."""

        def add_rows(self, family: str, *rows: StoredRow) -> bool:
            """Put rows before those of a manifest. Returns True if they were stored locally."""

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


# -- events -----------------------------------------------------------------------------------------------------------


_QUIET = frozenset((EventKind.COMPILE_BEGIN, EventKind.HIT, EventKind.LOAD, EventKind.STORED))
"""Events of ordinary work: sent to subscribers, not logged."""

_ORDINARY = frozenset((EventKind.COMPILE_END, EventKind.COMPILE_FAILED, EventKind.EVICTED, EventKind.WAITED))
"""Events that are logged, but cause no warning."""

MOST_NAMES = 4096
"""Most counters of one key, reason or tier in a process."""

_MOST_HEARD = 256


class Statistics:
    """The counts of this process, made from the events of one cache.

    Args:
        clock: Seconds since the epoch; decides the day that counts belong to.

    Attributes:
        heard: Events that are not counted yet. A launch only appends events; they are counted when statistics are read.
        sums: The counts of this process so far, by the names of counters; tiers add to theirs.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._lock, self._is_counting = threading.RLock(), False
        self._clock = clock
        self.heard: deque[Event] = deque()
        self.sums, self._saved = Counter[str](), Counter[str]()

    @property
    def process(self) -> Counts:
        """The counts of this process so far."""
        self.settle()
        return Counts.of(self.sums)

    def settle(self) -> None:
        """Count the events in `heard`. Taking from a deque is atomic: events of other threads are not lost."""
        with self._lock:
            if self._is_counting:  # called by a signal handler that interrupted the loop below, which counts the rest
                return
            self._is_counting = True
            try:
                while self.heard:
                    for name, number in _counted(self.heard.popleft()):
                        if "/" not in name or name in self.sums or len(self.sums) < MOST_NAMES:
                            self.sums[name] += number
            finally:
                self._is_counting = False

    def take_unsaved(self) -> dict[str, float]:
        """Counts since the last call, to be added to the store's counters."""
        self.settle()
        with self._lock:
            sums = self.sums.copy()  # atomic: the threads of tiers count meanwhile
            before, self._saved = self._saved, sums
        unsaved = {name: more for name, value in sums.items() if (more := value - before[name])}
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        return {**unsaved, **{f"day/{day}/{name}": value for name, value in unsaved.items() if "/" not in name}}

    def after_fork(self) -> None:
        """Drop, in a forked child, the counts from before the fork, which the parent saves."""
        self._lock, self._is_counting = threading.RLock(), False
        self.heard.clear()
        self.sums.clear()
        self._saved = Counter()


def _counted(event: Event) -> Iterator[tuple[str, Any]]:
    """Yield the names of the counters that an event adds to, with the numbers."""
    kind, data = event.kind, event.fields
    load_s = data.get("load_time_s", 0.0)
    if kind is EventKind.HIT:
        yield "hits", 1
        yield f"hits/{str(data.get('key'))[:KEY_DIGITS]}", 1
        if data.get("source") == "waited":
            yield "waited", 1
        if data.get("source") != "memory":
            yield "loads", 1
            yield "load_time_s", load_s
            yield "time_saved_s", data.get("compile_time_s", 0.0) - load_s
    elif kind is EventKind.LOAD and data.get("stored"):
        yield "load_time_s", load_s
        yield "time_saved_s", -load_s
    elif kind is EventKind.MISS:
        yield "misses", 1
        for reason in dict.fromkeys(each.kind for each in data.get("reasons", ())):
            yield f"reason/{reason}", 1
    elif kind is EventKind.COMPILE_END:
        yield "compiles", 1
        yield "compile_time_s", data.get("compile_time_s", 0.0)
    elif kind is EventKind.WAITED and data.get("waited_s", 0.0) >= LONG_WAIT_S:
        yield "waits", 1
        yield "wait_time_s", data["waited_s"]
    elif kind is EventKind.EVICTED:
        yield "evictions", data.get("entries", 0)
    elif kind in (EventKind.TROUBLE, EventKind.DAMAGED):
        yield "errors", 1


class Events:
    """The events of one cache.

    Args:
        process: The events of the process's own cache, whose subscribers receive these as well.

    Attributes:
        statistics: The counts of these events.
    """

    def __init__(self, process: Events | None = None) -> None:
        self.statistics = Statistics()
        self._process = process
        self._subscribers: dict[object, Callable[[Event], object]] = {}
        self._warned: dict[str, object] = {}
        self._missed = threading.local()

    def subscribe(self, subscriber: Callable[[Event], object]) -> Callable[[], None]:
        """Call `subscriber` with every event from now on. Returns the function that unsubscribes it."""
        if not callable(subscriber):
            raise OptionError(f"cannot subscribe {subscriber!r}", "it cannot be called", "give a function of one event")
        token = object()
        self._subscribers[token] = subscriber

        def unsubscribe() -> None:
            self._subscribers.pop(token, None)

        return unsubscribe

    def emit(self, event: Event) -> None:
        """Count an event, pass it to the subscribers and the log, and warn the user of trouble once."""
        heard = self.statistics.heard
        heard.append(event)
        if len(heard) > _MOST_HEARD:
            self.statistics.settle()
        subscribers = list(self._subscribers.values())
        if self._process:
            subscribers += self._process._subscribers.values()
        if not subscribers and event.kind in _QUIET:
            return  # not logged, so that emitting costs a warm start next to nothing
        me = get_ident()
        depth = IN_USER_CODE[me] = IN_USER_CODE.get(me, 0) + 1
        try:
            self._tell(event, subscribers)
        finally:
            IN_USER_CODE[me] = depth - 1
            if depth == 1:
                IN_USER_CODE.pop(me, None)  # a signal handler that ran before this line may have removed it

    def _tell(self, event: Event, subscribers: Iterable[Callable[[Event], object]]) -> None:
        """Call user code: subscribers, and the handlers of logs and warnings."""
        for subscriber in subscribers:
            try:
                subscriber(event)
            except Exception:  # user code: its errors must not reach a launch
                from ..observe.log import ERROR, record

                record(ERROR, "a subscriber of numba_kcache failed", with_error=True)
        if event.kind in _QUIET:
            return
        if event.kind is EventKind.MISS:
            self._missed.reason = event.fields.get("reason")  # for the log line of this thread's next compile
            return
        if "logging" in sys.modules:  # importing it costs 5 ms, and a program without it has no handlers
            from ..observe.log import INFO, line_of, record

            record(INFO, line_of(event, getattr(self._missed, "reason", None)))
        if event.kind in _ORDINARY:
            return
        from ..observe.log import warn, warning_of

        subject, text = warning_of(event)
        token = object()
        if text and self._warned.setdefault(subject, token) is token:
            warn(text)


# -- candidates --------------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """One key under which one store may have the code of a request.

    Args:
        request: The request.
        components: Its components; with the compilers, where they were identified.
        tier: The store; None for the local one.
        key: The key.
        row: The row of the kernel's index that has this key; None for a key that was derived.
    """

    request: Request
    components: tuple[Component, ...]
    tier: CheckedTier | None
    key: str
    row: StoredRow | None


# -- looking up --------------------------------------------------------------------------------------------------------


KEPT = 64
"""Most artifacts kept in memory for other kernel objects with equal keys."""

KEPT_BYTES = 128 << 10
"""Size of the code of the largest artifact that is kept: reading and verifying a megabyte again takes 0.25 ms."""

_NOT_IDENTIFIED = components({"compilers": {"": None}, "versions": {}})
"""Placeholder until the compilers are identified."""

_WITHOUT_COMPILERS = components({"compilers": {}, "versions": {}})

_FOUND_QUICKLY = ("nvrtc", "nvJitLink")
"""Libraries whose absence is found quickly; for the others cuda.pathfinder starts a process, which takes 100 ms."""


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
        store: The one of both that is published to.
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
        self.local = open_store(settings, directory, functools.partial(_record_damage, self.events.emit, self.damaged))
        self.store: Store = self.local
        self.chain: Chain | None = None
        self.tiers: Sequence[CheckedTier] = ()
        self.toolchain = Toolchain(self.local.get_record, self._save_record, self._header_folder)
        self._compilers: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Identified, tuple[Component, ...]]] = {}
        self._absent: set[str] = set()
        renewed_in_children.add(self)

    def after_fork(self) -> None:
        """Renew what another thread of the parent may have held, and reset the counts."""
        self.toolchain.after_fork()
        self.statistics.after_fork()

    def mount(self, tier: Tier) -> None:
        """Add a tier behind the local store, before those that are there already."""
        if self.chain is None:
            self.store = self.chain = self.chain_of(())
        self.chain.mount(tier)
        self.tiers = self.chain.tiers

    def chain_of(self, tiers: Sequence[Tier]) -> Chain:
        """Put tiers behind the local store."""
        from ..tiers.chain import Chain
        from ..tiers.trust import trust_of

        return Chain(self.local, tiers, self.events.emit, trust_of(self.settings), arrived, self.statistics.sums)

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
        in_turn = self._in_turn

        if self.compilers(request, looks=False) is None:  # code of any compiler, before they are searched for
            takes_any = frozen or self.settings.toolchain == "any"
            if not takes_any:
                at_hand = [each for each in readonly if not each.tier.is_remote]
                yield from in_turn(request.requests, at_hand, is_identified=False)
            if takes_any or self.lacks_compilers(request):
                yield from in_turn(request.requests, local, is_identified=False)
                yield from in_turn(request.requests, tiers if takes_any else readonly, is_identified=False)
                yield from in_turn(request.fallbacks, fallback_stores, is_identified=False)
        yield from in_turn(request.requests, local)
        yield from in_turn(request.requests, tiers)
        yield from in_turn(request.fallbacks, fallback_stores)

    def _in_turn(
        self,
        requests: Callable[[], Iterable[Request]],
        stores: Sequence[CheckedTier | None],
        *,
        is_identified: bool = True,
    ) -> Iterator[Candidate]:
        """Yield the candidates for each request in each store; without the compilers, code may come from any."""
        for request in requests() if stores else ():
            for tier in stores:
                components = request.components + (
                    (self.compilers(request) or ()) if is_identified else _NOT_IDENTIFIED
                )
                any_compiler = not is_identified or bool(tier and tier.readonly) or self.takes_any_compiler(components)
                try:
                    if is_identified and not request.headers:
                        yield Candidate(request, components, tier, derive(components), None)
                    if any_compiler or request.headers:
                        yield from self._in_index(request, components, tier, any_compiler=any_compiler)
                except KCacheError:
                    raise
                except Exception as error:  # MemoryError, or any other, since a manifest may contain anything
                    why = f"cannot read what is stored for {request.label}: {error!r}"
                    self.events.emit(trouble("manifest", why))

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
        if found is not None and found.source == "memory" and self.local.peeking.get(found.key) is None:
            return None
        return found

    def first(self, tried: Iterable[Candidate], source: str = "disk", *, is_counted: bool = True) -> Resolution | None:
        """Return the first of these candidates that is stored, and count it as a hit.

        Args:
            tried: The candidates in order.
            source: Source reported for an artifact of the local store.
            is_counted: Whether it counts.
        """
        start = time.perf_counter()
        for request, named, tier, key, row in tried:
            artifact = self.memory.get(key)
            if artifact is not None:
                return self._hit(request, key, artifact, "memory", 0.0, row)
            artifact = None if key in self.refused else self._read(key, tier)
            if artifact is None:
                continue
            if artifact.target != request.target:
                self.set_aside(key, f"it is for {artifact.target}, but {request.target} was requested")
                continue
            if tier is not None:
                source = "tier"
                row = row or row_of(key, artifact.target.name, derive(named))
                self.local.add_rows(family_of(named), row)  # so that the next process need not ask the tier
            if not is_counted:
                return Resolution(artifact, key, source)
            return self._hit(request, key, artifact, source, time.perf_counter() - start, row)
        return None

    def has_changed_headers(self, request: Request, row: Mapping[str, Any]) -> bool:
        """Check whether a header of a request differs from when the artifact with this row was found or compiled."""
        from ..headers.lookup import is_unchanged

        search: Any = request.headers
        return search is None or not is_unchanged(row, search.roots(self.toolchain))

    def _in_index(
        self, request: Request, components: tuple[Component, ...], tier: CheckedTier | None, *, any_compiler: bool
    ) -> Iterator[Candidate]:
        """Yield the candidates that a kernel's index names: of any compiler, or with headers that are unchanged."""
        family = family_of(components)
        rows = (tier or self.local).get_manifest(family)
        if not request.headers:
            for row in rows:
                if is_key(row["key"]):
                    yield Candidate(request, components, tier, row["key"], row)
            return
        from ..headers.lookup import find_key
        from ..headers.roots import HeaderSearch

        if not rows or not isinstance(request.headers, HeaderSearch):
            return
        # Code of any compiler is first looked for without the toolkit's folders. They matter if the code contains their
        # paths, or if the user names one of them.
        for toolchain in (None, self.toolchain) if any_compiler else (self.toolchain,):
            roots = request.headers.roots(toolchain)
            start_s = time.perf_counter()
            found = find_key(rows, components, roots, any_compiler=any_compiler)
            if tier is not None:
                tier.charge(start_s, "the check of its headers", worth_s=float(found.key is not None))
            if found.key is not None and is_key(found.key):
                if found.renewed is not None and tier is None and self.settings.mode == "readwrite":
                    self.local.add_rows(family, found.renewed)
                yield Candidate(request, components, tier, found.key, found.renewed or found.stored)
                return

    def _hit(
        self, request: Request, key: str, artifact: Artifact, source: str, seconds: float, row: StoredRow | None
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
        """Quarantine a stored entry that is undamaged but cannot be used, so that it is compiled again.

        One that another process has stored in its place since it was read goes with it, at the price of one compile.
        """
        self.memory.pop(key, None)
        self.refused.add(key)
        self.local.set_aside(key)
        _record_damage(self.events.emit, self.damaged, Event(EventKind.DAMAGED, {"key": key, "reason": reason}))

    def remove(self, key: str) -> bool:
        """Remove an entry from memory and the local store. Returns True if there was one. Tiers keep theirs."""
        is_known = self.memory.pop(key, None) is not None
        return (not self.local.readonly and self.local.remove(key)) or is_known

    # -- memory and records -------------------------------------------------------------------------

    def remember(self, key: str, artifact: Artifact) -> None:
        """Keep an artifact in memory, unless it is large."""
        self.memory.pop(key, None)
        if len(artifact.cubin) <= KEPT_BYTES:
            self.memory[key] = artifact
        if len(self.memory) > KEPT:
            self.memory.popitem(last=False)

    def forget(self) -> None:
        """Drop all artifacts kept in memory."""
        self.memory.clear()
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
        served: Keys of `get_or_build` results for which this process counted a hit, by their components.
    """

    declared: ClassVar[weakref.WeakValueDictionary[int, Declared]] = weakref.WeakValueDictionary()

    def __init__(self, settings: Settings, directory: str | None, process: Events | None = None) -> None:
        if collected:
            save_collected()
        super().__init__(settings, directory, process)
        self.loader = Loader(self.events.emit)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled_for: dict[str, tuple[Reason, ...]] = {}
        self.served: dict[bytes, str] = {}
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

    def explain(self, request: Request) -> Explanation:
        """Explain whether `resolve` would find a stored artifact and in which store, or why not. Changes nothing."""
        from copy import copy

        from .explain import explain

        reader = copy(self)  # renews no times of use and saves no record of compilers, as other threads go on doing
        reader.local = self.local.peeking
        reader.toolchain = self.toolchain.peeking(reader.local.get_record)
        found = explain(reader, request)
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

    def tier_reports(self, sums: Mapping[str, float] | None = None) -> tuple[TierReport, ...]:
        """Report the counts of each tier: of this process, or those in `sums` of the counters."""
        return () if self.chain is None else self.chain.reports(sums)

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
    """Read the settings in force; apply the log level, which the default leaves to the program.

    Warns once of each variable that is named like a setting and is none: a misspelt one has no effect.
    """
    settings = read_settings(overrides)
    is_level_set = settings.log_level != "warning" or "log_level" in overrides
    if misspelt or is_level_set:
        from ..observe.log import set_log_level, warn

        while misspelt:
            name, meant = misspelt.popitem()
            if name not in _warned_of:
                _warned_of.add(name)
                hint = f"did you mean {meant}?" if meant else "`numba-kcache config` lists all settings"
                warn(f"{name} names no setting and is ignored: {hint}")
        if is_level_set:
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


def configure_process(overrides: Mapping[str, Any]) -> None:
    """Change settings of the process's cache; each kernel is resolved again at its next launch.

    Raises:
        SettingsError: A setting is unknown or a value cannot be used; nothing has changed.
    """
    global _configured
    settings_of({**_overrides, **overrides})  # raises
    _overrides.update(overrides)
    _configured = object()
    before = _process.pop("", None)
    if before is not None:
        before.forget()
