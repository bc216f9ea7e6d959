"""Where the artifact of a job is found: its key, then memory, disk, tiers.

Promise     An artifact is only ever found under the key of exactly what would have been compiled. Cache trouble
            is a miss. Nothing here compiles.
Method      A source that includes nothing has its whole key at once, so a warm start reads one file. The
            manifest of a family (the key without compilers and versions) lists what was stored for it; it is read
            where any compiler's code will do.
Not here    When to look and what follows a miss (resolver), and why nothing is found (misses, explanations).
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import KCacheError, UncacheableError
from .jobs import HeaderQuestion, Job
from .keys.components import Component, component, derive
from .keys.requests import TOOLCHAIN_COMPONENTS
from .model.artifact import Artifact, artifact_from_header
from .model.event import Emit, Event, EventKind
from .observe.events import Events
from .observe.statistics import Statistics
from .settings import Settings
from .store.disk import DiskStore, open_store
from .store.entry import StoredEntry
from .toolchain.libraries import Record, Toolchain

if TYPE_CHECKING:  # a hit goes without them, and without what they import
    from .rolls import Past
    from .store.entry import Variant
    from .store.memory import MemoryStore
    from .tiers.chain import Chain
    from .tiers.checked_tier import CheckedTier
    from .tiers.tier import Tier

MEMORY_LIMIT_BYTES = 64 * 2**20
"""Artifacts kept in memory for other kernel objects of the same key."""

LOOKING = ("readwrite", "readonly", "frozen")
"""Modes in which what is stored is served."""

_UNASKED = component("compilers", {"": None}), component("versions", {})
"""Stand for the compilers while nobody has looked for them: as where none is installed."""

_FOUND_QUICKLY = ("nvrtc", "nvJitLink")
"""Libraries whose absence shows at once; for the others cuda.pathfinder starts a process, which takes 100 ms."""

_TOOLCHAIN_VARIANT = "toolchain"


class Resolution(NamedTuple):
    """An artifact and how it was found.

    Args:
        artifact: What was wanted.
        key: Its key; "" for what cannot be cached.
        source: `"memory"`, `"disk"`, `"tier"`, `"waited"` or `"compiled"`.
        uncacheable: Why it cannot be cached; "" where it is.
    """

    artifact: Artifact
    key: str
    source: str
    uncacheable: str = ""

    @property
    def is_stored(self) -> bool:
        """Whether it came from a store."""
        return self.source in ("disk", "tier", "waited")


class Lookup:
    """What a cache has, and under which keys: the half of a `Resolver` that never compiles.

    Args:
        settings: The settings in force.
        directory: Where the store is; None where no home directory is known.
    """

    def __init__(self, settings: Settings, directory: str | None) -> None:
        self.settings = settings
        self.events = Events()
        self.statistics = Statistics()
        self.events.subscribe(self.statistics.listen)
        self._damaged: dict[str, str] = {}
        self._is_looking = False
        self.local = open_store(settings, directory, functools.partial(_tell, self.events.emit, self._damaged))
        self.store: DiskStore | MemoryStore | Chain = self.local
        self.toolchain = Toolchain(self._load_record, self._save_record)
        self._memory: OrderedDict[str, Artifact] = OrderedDict()
        self._memory_bytes = 0
        self._made_by: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Component, ...]] = {}
        self._absent: set[str] = set()
        self._lock = threading.Lock()

    def mount(self, tier: Tier) -> None:
        """Ask one more tier where the local store has nothing, before those that are asked already."""
        from .tiers.chain import Chain
        from .tiers.trust import trust_of

        if not isinstance(self.store, Chain):
            self.store = Chain(self.local, (), self.events.emit, trust_of(self.settings))
            self.statistics.sources.append(self.store.take_unsaved)
        self.store.mount(tier)

    def _made_by_known(self, wanted: tuple[tuple[str, ...], tuple[str, ...]]) -> tuple[Component, ...] | None:
        """The compilers' components, where finding them means no more than looking at the record."""
        if wanted not in self._made_by and self.toolchain.is_known(*wanted):
            self._made_by[wanted] = self._ask_toolchain(*wanted)
        return self._made_by.get(wanted)

    # -- keys ---------------------------------------------------------------------------------------

    def components(self, job: Job) -> tuple[Component, ...]:
        """All components of a job, with the compilers of this process."""
        wanted = job.libraries, job.distributions
        made_by = self._made_by.get(wanted)
        if made_by is None:
            made_by = self._made_by[wanted] = self._ask_toolchain(*wanted)
        return job.components + made_by

    def _ask_toolchain(self, libraries: Sequence[str], distributions: Sequence[str]) -> tuple[Component, ...]:
        with self.toolchain.saving_once():
            builds = {name: found.build if (found := self.toolchain.library(name)) else None for name in libraries}
            versions = {name: self.toolchain.version(name) for name in distributions}
        return component("compilers", dict(builds)), component("versions", dict(versions))

    def key(self, job: Job) -> str:
        """The key under which the job's artifact is stored.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        if job.uncacheable:
            raise uncacheable(job, job.uncacheable)
        return derive(self.components(job))

    # -- looking up ---------------------------------------------------------------------------------

    def find(self, job: Job) -> Resolution | None:
        """The stored artifact of exactly this job; None where it has to be built.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        if job.uncacheable:
            raise uncacheable(job, job.uncacheable)
        found = self._find(job, self.components(job), (), ()) if self.settings.mode in LOOKING else None
        evicted = found is not None and found.source == "memory" and self.local.peek(found.key) is None
        return None if evicted else found

    def _find(
        self,
        job: Job,
        components: Sequence[Component],
        others: Iterable[Callable[[], Job]],
        stand_ins: Iterable[Callable[[], Job]],
    ) -> Resolution | None:
        found = self._look_up(job, components)
        wanted = [(job, components)]
        for make in others if found is None else ():
            other = make()
            wanted.append((other, self.components(other)))
            found = self._look_up(*wanted[-1])
            if found is not None:
                break
        if found is None and (self.store is not self.local or self.settings.mode == "frozen"):
            found = self._look_further(wanted, stand_ins)
        return found

    def find_unasked(
        self, job: Job, others: Iterable[Callable[[], Job]], stand_ins: Iterable[Callable[[], Job]]
    ) -> Resolution | None:
        """What will do whoever compiled it, before this machine's compilers are looked for; None if they are on record.

        Where they are not installed, finding that out can take longer than all else of a first launch.
        """
        if self._made_by_known((job.libraries, job.distributions)) is not None:
            return None
        frozen = self.settings.mode == "frozen"
        wanted, lesser = [job, *(make() for make in others)], (make() for make in stand_ins)
        readonly = [tier for tier in self.tiers if tier.readonly]
        if frozen or self.settings.toolchain == "any":
            found = self._first(wanted, [None]) or self._first(wanted, self.tiers)
            return found or self._first(lesser, [None, *self.tiers] if frozen else readonly)
        found = self._first(wanted, [tier for tier in readonly if not tier.tier.is_remote])
        if found is None and self._lacks_compilers(job):
            found = self._first(wanted, [None]) or self._first(wanted, readonly)
            found = found or self._first(lesser, readonly)
        return found

    def _first(self, jobs: Iterable[Job], places: Sequence[CheckedTier | None]) -> Resolution | None:
        """The first of these jobs that is in one of these places, whoever compiled it."""
        for job in jobs if places else ():
            for place in places:
                found = self._look_up(job, job.components + _UNASKED, tier=place)
                if found is not None:
                    return found
        return None

    def _lacks_compilers(self, job: Job) -> bool:
        """Whether one of the compilers is not installed, as far as that can be told quickly."""
        for name in _FOUND_QUICKLY:
            if name in job.libraries and name not in self._absent and self.toolchain.library(name) is None:
                self._absent.add(name)
        return not self._absent.isdisjoint(job.libraries)

    def _look_further(
        self, wanted: Iterable[tuple[Job, Sequence[Component]]], stand_ins: Iterable[Callable[[], Job]]
    ) -> Resolution | None:
        """Look in every tier for what is wanted; then, where that will do, for what can stand in for it."""
        tiers = self.tiers
        for job, components in wanted:
            for tier in tiers:
                found = self._look_up(job, components, tier=tier)
                if found is not None:
                    return found
        frozen = self.settings.mode == "frozen"
        lenient = [*([None] if frozen else []), *(tier for tier in tiers if frozen or tier.readonly)]
        for make in stand_ins if lenient else ():
            job = make()
            components = self.components(job)
            for place in lenient:
                found = self._look_up(job, components, tier=place)
                if found is not None:
                    return found
        return None

    def _look_up(
        self, job: Job, components: Sequence[Component], source: str = "disk", tier: CheckedTier | None = None
    ) -> Resolution | None:
        """Look in the local store, or in one tier."""
        start = time.perf_counter()
        any_compiler = self._any_compiler(components) or (tier is not None and tier.readonly)
        variant: Variant | None = None
        if job.headers:
            key, variant = self._key_by_headers(job.headers, components, any_compiler, tier)
        else:
            key = None if components[-1] is _UNASKED[-1] else derive(components)
        if key is not None:
            artifact = self._memory.get(key)
            if artifact is not None:
                return self._hit(job, key, artifact, "memory", 0.0)
            artifact = self._read(key, tier)
        else:
            artifact = None
        if artifact is None and not job.headers and any_compiler:
            for variant in (tier or self.local).get_manifest(family_of(components)):
                key = str(variant.get("key"))
                artifact = self._read(key, tier)
                if artifact is not None:
                    break
        if artifact is None or key is None:
            return None
        if tier is not None:
            source, request = "tier", derive(components)
            tier.keep_variant(family_of(components), variant or variant_of(key, artifact.target.name, request))
        return self._hit(job, key, artifact, source, time.perf_counter() - start)

    def _key_by_headers(
        self, texts: Sequence[HeaderQuestion], components: Sequence[Component], any_compiler: bool, tier: Any
    ) -> tuple[str | None, Variant | None]:
        """The key that a closure seen leads to, and its variant of the manifest."""
        from .closures import Found, find_key

        family = family_of(components)
        variants = (tier or self.local).get_manifest(family)
        if not variants:
            return None, None
        found = Found(None)
        # where the toolkit's folders are matters for code with their paths in it, and if the user names one of them
        for toolchain in (None, self.toolchain) if any_compiler else (self.toolchain,):
            searches = [each.search(toolchain) for each in texts]
            found = find_key(variants, components, searches, any_compiler=any_compiler)
            if found.key is not None:
                break
        if found.renewed is not None and tier is None and self.settings.mode == "readwrite":
            self.local.add_variant(family, found.renewed)
        return found.key, found.renewed or found.variant

    def _hit(self, job: Job, key: str, artifact: Artifact, source: str, seconds: float) -> Resolution:
        self._remember(key, artifact)
        fields = {"source": source, "compile_time_s": artifact.compile_time_s, "load_time_s": seconds}
        self.emit(EventKind.HIT, job, key, **fields)
        return Resolution(artifact, key, source)

    def _any_compiler(self, components: Sequence[Component]) -> bool:
        """Whether another compiler's code will do: asked for, frozen, or no compiler is here to make better."""
        if self.settings.toolchain == "any" or self.settings.mode == "frozen":
            return True
        compilers = next(each.value for each in components if each.name == "compilers")
        return isinstance(compilers, dict) and None in compilers.values()

    def _read(self, key: str, tier: CheckedTier | None = None) -> Artifact | None:
        entry = self.local.get(key)
        if entry is None and tier is not None:
            entry = tier.get(key)
        return None if entry is None else self._artifact(entry)

    def _artifact(self, entry: StoredEntry) -> Artifact | None:
        try:
            return artifact_from_header(entry.header, entry.payloads)
        except (ValueError, KCacheError) as error:
            self.local.remove(entry.key)
            event = Event(EventKind.DAMAGED, {"key": entry.key, "reason": f"no artifact: {error}"})
            _tell(self.events.emit, self._damaged, event)
            return None

    @property
    def tiers(self) -> Sequence[CheckedTier]:
        return () if self.store is self.local else self.store.tiers  # type: ignore[union-attr]

    def past(self, components: Sequence[Component] = ()) -> Past:
        """Where explanations look, of a job with these components."""
        from .rolls import Past

        any_compiler = bool(components) and self._any_compiler(components)
        return Past(self.local, self.toolchain, self._memory, self._damaged, any_compiler)

    # -- memory and records -------------------------------------------------------------------------

    def _remember(self, key: str, artifact: Artifact) -> None:
        with self._lock:
            before = self._memory.pop(key, None)
            self._memory[key] = artifact
            self._memory_bytes += _size(artifact) - (_size(before) if before else 0)
            while self._memory_bytes > MEMORY_LIMIT_BYTES and len(self._memory) > 1:
                self._memory_bytes -= _size(self._memory.popitem(last=False)[1])

    def forget(self) -> None:
        """Drop what is kept in memory."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        self._damaged.clear()
        self.toolchain.forget()
        self._made_by.clear()
        self._absent.clear()

    def _load_record(self, name: str) -> Record | None:
        look = self.local.peek_manifest if self._is_looking else self.local.get_manifest
        for variant in look(name):
            record = variant.get("record")
            if isinstance(record, dict):
                return record
        return None

    def _save_record(self, name: str, record: Record) -> None:
        if self.settings.mode not in ("off", "readonly", "frozen") and not self._is_looking:
            self.local.add_variant(name, {"key": _TOOLCHAIN_VARIANT, "record": record})

    def emit(self, kind: EventKind, job: Job, key: str, **fields: Any) -> None:
        self.events.emit(Event(kind, {"kernel": job.label, "target": job.target.name, "key": key, **fields}))


def family_of(components: Sequence[Component]) -> str:
    """The name of the manifest that lists what was stored for these components, whoever compiled it."""
    return derive(each for each in components if each.name not in TOOLCHAIN_COMPONENTS)


def _tell(emit: Emit, damaged: dict[str, str], event: Event) -> None:
    """Pass on an event of the store, and keep what was damaged: it explains the miss that follows."""
    if event.kind is EventKind.DAMAGED:
        damaged[str(event.fields.get("key"))] = str(event.fields.get("reason"))
    emit(event)


def variant_of(key: str, target: str, request: str) -> Variant:
    """How a family's manifest names an entry: its key, its target, and the request with compilers and versions."""
    return {"key": key, "target": target, "request": request}


def uncacheable(job: Job, why: str) -> UncacheableError:
    return UncacheableError(f"cannot cache {job.label}", why)


def _size(artifact: Artifact) -> int:
    return len(artifact.cubin) + 1024
