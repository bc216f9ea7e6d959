"""From a job to an artifact: key, look up, compile once, publish, report.

Promise     An artifact is only ever found under the key of exactly what would have been compiled. Cache trouble
            is a miss. Each resolution emits one HIT or MISS; nothing below knows who asked.
Method      A source that includes nothing has its whole key at once, so a warm start reads one file. The
            manifest of a family (the key without compilers and versions) lists what was stored for it; it is read
            where any compiler's code will do, and to explain a miss.
Not here    Kernels, launches and devices (kernel, launch); what users call (cache).
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from .ahead import Read, ReadAhead
from .errors import FrozenCacheError, KCacheError, UncacheableError
from .jobs import CUDA_SOURCE, HeaderQuestion, Job, Learned
from .keys.components import Component, component, derive
from .keys.requests import TOOLCHAIN_COMPONENTS
from .launch.loader import Loader
from .model.artifact import Artifact, artifact_from_header, artifact_header
from .model.event import Emit, Event, EventKind, trouble
from .observe.events import Events, set_log_level
from .observe.statistics import Statistics
from .settings import Settings, default_directory, read_settings
from .store.disk import DiskStore
from .store.entry import StoredEntry
from .store.system import missing
from .toolchain.libraries import Record, Toolchain

if TYPE_CHECKING:  # a hit goes without them, and without what they import
    from .misses import Missed, Past
    from .model.reason import Reason
    from .observe.explain import Explanation
    from .store.manifest import Variant
    from .store.memory import MemoryStore
    from .tiers.chain import Chain, CheckedTier
    from .tiers.tier import Tier, TierReport

MEMORY_LIMIT_BYTES = 64 * 2**20
"""Artifacts kept in memory for other kernel objects of the same key."""

EXPLAINED_LIMIT = 4096
"""Compiles of which a process remembers why; when there are more, it begins anew."""

_TOOLCHAIN_VARIANT = "toolchain"
_NO_KEY = "0" * 64
_LOOKING = ("readwrite", "readonly", "frozen")
"""Modes in which what is stored is served."""


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


class Expected(NamedTuple):
    """A job that was made and keyed ahead of its first use.

    Args:
        job: What is expected to be wanted.
        made_by: The compilers' components that its key holds; another object where they were asked for anew.
        key: Its key.
    """

    job: Job
    made_by: tuple[Component, ...]
    key: str


class Resolver:
    """The machinery behind one cache.

    Args:
        settings: The settings in force.
        directory: Where the store is; None where no home directory is known.
    """

    def __init__(self, settings: Settings, directory: str | None) -> None:
        self.settings = settings
        self.events = Events()
        self.statistics = Statistics()
        self.events.subscribe(self.statistics.listen)
        emit = self.events.emit
        self._damaged: dict[str, str] = {}
        self._compiled_for: dict[str, tuple[Reason, ...]] = {}
        self._is_looking = False
        self.local = _open_store(settings, directory, functools.partial(_tell, emit, self._damaged))
        self.store: DiskStore | MemoryStore | Chain = self.local
        writes = settings.mode not in ("off", "readonly", "frozen")
        self.ahead = ReadAhead(self.local, reads=settings.mode in _LOOKING, writes=writes)
        weakref.finalize(self, _save, self.statistics, self.local, settings.mode, self.ahead)  # at exit: after tiers'
        if settings.tiers and settings.mode != "off":
            from .tiers.opening import open_tiers

            for tier in reversed(open_tiers(settings)):
                self.mount(tier)
        self.toolchain = Toolchain(self._load_record, self._save_record)
        self.loader = Loader(emit)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._memory: OrderedDict[str, Artifact] = OrderedDict()
        self._memory_bytes = 0
        self._made_by: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Component, ...]] = {}
        self._lock = threading.Lock()

    def prepare(self, wanted: tuple[tuple[str, ...], tuple[str, ...]] = CUDA_SOURCE) -> None:
        """Read what the first lookup will ask for: who compiles, if that is on record, and an entry that is not there.

        The compilers are then those of this moment. Should others be installed before the first compile, that compile
        notices: it stores under what really made the code.
        """
        if self.settings.mode != "off":
            self._made_by_known(wanted)
            self.local.get(_NO_KEY)

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

    def read_ahead(self, file: str, label: str, most: int) -> list[Read]:
        """Read the artifacts that a kernel led to last time, newest first; for decorations.

        Args:
            file: The file that defines the kernel.
            label: What people call it.
            most: How many are worth it.
        """
        return self.ahead.expect(file, label, self._read, most)

    def key_ahead(self, job: Job) -> Expected | None:
        """Key a job before its first use; None where that would have to look for compilers, or at headers."""
        if job.uncacheable or job.headers or self.settings.mode not in _LOOKING:
            return None
        made_by = self._made_by_known((job.libraries, job.distributions))
        return None if made_by is None else Expected(job, made_by, derive(job.components + made_by))

    def resolve_expected(self, expected: Expected) -> Resolution | None:
        """What was read ahead for a job that is wanted now; None where it is not there, or other compilers are."""
        job, made_by, key = expected
        if self._made_by.get((job.libraries, job.distributions)) is not made_by or key in self._memory:
            return None
        read = self.ahead.take(key)
        return None if read is None else self._hit(job, key, read.artifact, "disk", read.read_time_s)

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
            raise _uncacheable(job, job.uncacheable)
        return derive(self.components(job))

    # -- resolution ---------------------------------------------------------------------------------

    def resolve(
        self, job: Job, others: Iterable[Callable[[], Job]] = (), stand_ins: Iterable[Callable[[], Job]] = ()
    ) -> Resolution:
        """Find the artifact of a job, or of one of `others` that will do as well; build the first if none is there.

        Args:
            job: What is wanted.
            others: What will do as well.
            stand_ins: What will do where nothing is compiled, or not here: in frozen mode and from read-only tiers.

        Raises:
            KCacheError: The user's own errors, from the compilers.
            UncacheableError, FrozenCacheError: As the job and the mode demand.
        """
        if job.uncacheable:
            return self._uncached(job)
        components = self.components(job)
        looks = self.settings.mode in _LOOKING
        if looks:
            found = self._find(job, components, others, stand_ins)
            if found is not None:
                return found
        if self.settings.mode == "frozen":
            raise self._frozen(job, components)
        with self.store.building(derive(components)) as turn:
            if looks and (turn.found is not None or turn.waited_s > 0):
                found = self._look_up(job, components, "waited")
                if found is not None:
                    self._emit(EventKind.WAITED, job, found.key, waited_s=turn.waited_s)
                    return found
            if looks and self.store is not self.local:
                return self._compile_for_all(job, components)
            return self._compile(job, components)

    def _compile_for_all(self, job: Job, components: Sequence[Component]) -> Resolution:
        """Compile, unless another node is at it; for whoever has this node's turn."""
        with self.store.elected(derive(components)) as election:  # type: ignore[union-attr]
            found = self._look_further([(job, components)], ()) if election.looks else None
            if found is None:
                return self._compile(job, components)
            if election.waited_s > 0:
                self._emit(EventKind.WAITED, job, found.key, waited_s=election.waited_s)
            self.store.settle()  # type: ignore[union-attr]  # those who wait for this node's turn look there
            return found

    def find(self, job: Job) -> Resolution | None:
        """The stored artifact of exactly this job; None where it has to be built.

        Raises:
            UncacheableError: It cannot be keyed.
        """
        if job.uncacheable:
            raise _uncacheable(job, job.uncacheable)
        found = self._find(job, self.components(job), (), ()) if self.settings.mode in _LOOKING else None
        evicted = found is not None and found.source == "memory" and self.local.peek(found.key) is None
        return None if evicted else found

    def store_artifact(
        self, job: Job, components: Sequence[Component], learned: Learned, artifact: Artifact, key: str
    ) -> None:
        """Publish an artifact under its key, and name it in its family's manifest and its kernel's roll.

        Not one whose cubin is for another target than it says, or lacks a kernel that it names: whatever went wrong
        there must not outlive this process.
        """
        wrong = _contradiction(artifact)
        if wrong:
            names = ", ".join(entry.name for entry in artifact.entries)
            error = f"cannot store {names} for {artifact.target}: {wrong}"
            self.events.emit(trouble("cubin", error))
            return
        from . import misses  # a hit goes without it

        everything = (*components, *learned.components)
        payloads = {"cubin": artifact.cubin, **artifact.extras, **misses.payloads_of(job, everything)}
        if self.store.put(StoredEntry(key, artifact_header(artifact), payloads)):
            family = family_of(components)
            variant = variant_of(key, artifact.target.name, derive(components))
            self.store.add_variant(family, {**variant, **learned.variant})
            misses.note(self.local, job, everything, key, family)

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

    def _look_further(
        self, wanted: Iterable[tuple[Job, Sequence[Component]]], stand_ins: Iterable[Callable[[], Job]]
    ) -> Resolution | None:
        """Look in every tier for what is wanted; then, where that will do, for what can stand in for it."""
        tiers = self._tiers
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
            key = derive(components)
        if key is not None:
            artifact = self._memory.get(key)
            if artifact is not None:
                return self._hit(job, key, artifact, "memory", 0.0)
            read = self.ahead.take(key) if tier is None else None
            if read is not None:
                return self._hit(job, key, read.artifact, source, read.read_time_s)
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
        from .closures import find_key

        family = family_of(components)
        variants = (tier or self.local).get_manifest(family)
        if not variants:
            return None, None
        searches = [each.search(self.toolchain) for each in texts]
        found = find_key(variants, components, searches, any_compiler=any_compiler)
        if found.renewed is not None and tier is None and self.settings.mode == "readwrite":
            self.local.add_variant(family, found.renewed)
        return found.key, found.renewed or found.variant

    def _hit(self, job: Job, key: str, artifact: Artifact, source: str, seconds: float) -> Resolution:
        self._remember(key, artifact)
        self.ahead.learn(job.file, job.label, key, artifact)
        fields = {"source": source, "compile_time_s": artifact.compile_time_s, "load_time_s": seconds}
        self._emit(EventKind.HIT, job, key, **fields)
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

    def _compile(self, job: Job, components: Sequence[Component]) -> Resolution:
        key = derive(components)
        reasons = self._missed(job, components).reasons
        self._emit(EventKind.MISS, job, key, **_told(reasons))
        artifact, learned = self._build(job, key)
        if learned.doubt:
            if job.strict:
                raise _uncacheable(job, learned.doubt)
            self._emit(EventKind.UNCACHEABLE, job, "", reason=learned.doubt)
            return Resolution(artifact, "", "compiled", learned.doubt)
        self._made_by.clear()
        actual = self.components(job)  # the libraries are loaded now: these made the code
        key = derive((*actual, *learned.components))
        self._remember(key, artifact)
        if len(self._compiled_for) >= EXPLAINED_LIMIT:
            self._compiled_for.clear()
        self._compiled_for[key] = reasons
        if self.settings.mode == "verify":
            self._compare(job, key, artifact)
        if self.settings.mode not in ("off", "readonly"):
            self.store_artifact(job, actual, learned, artifact, key)
            self.ahead.learn(job.file, job.label, key, artifact)
        return Resolution(artifact, key, "compiled")

    def _compare(self, job: Job, key: str, artifact: Artifact) -> None:
        """Report a stored entry that is not what the compilers make of the same request now."""
        stored = self._read(key)
        if stored is not None and stored.cubin != artifact.cubin:
            difference = f"the stored code of {job.label} is not what the compilers make now ({key})"
            self.events.emit(Event(EventKind.TROUBLE, {"where": f"verify {key}", "error": difference}))

    def _build(self, job: Job, key: str) -> tuple[Artifact, Learned]:
        self._emit(EventKind.COMPILE_BEGIN, job, key)
        try:
            with self._progress(job):
                if not job.headers:
                    artifact, learned = job.build(self.toolchain, None), Learned()
                else:
                    from .closures import compile_and_learn  # 15 ms that a source without includes need not pay

                    build = functools.partial(job.build, self.toolchain)
                    artifact, learned = compile_and_learn(build, job.headers, self.toolchain)
        except BaseException as error:  # Numba's own errors and Ctrl-C end a compile as well
            self._emit(EventKind.COMPILE_FAILED, job, key, error=str(error))
            raise
        self._emit(EventKind.COMPILE_END, job, key, compile_time_s=artifact.compile_time_s)
        return artifact, learned

    def _progress(self, job: Job) -> AbstractContextManager[None]:
        """Says what is compiled, if it takes long."""
        if not self.settings.progress:
            return contextlib.nullcontext()
        from .observe.progress import shown

        return shown(f"{job.label} for {job.target.name}")

    def _uncached(self, job: Job) -> Resolution:
        self.refuse(job)
        return Resolution(self._build(job, "")[0], "", "compiled", job.uncacheable)

    def refuse(self, job: Job, *, is_counted: bool = False) -> None:
        """Report a job that runs uncached.

        Args:
            job: With the reason.
            is_counted: Whether it has been counted as a miss before the reason was known.

        Raises:
            UncacheableError: It may not: the job or the mode says so.
        """
        if job.strict or self.settings.mode == "frozen":
            raise _uncacheable(job, job.uncacheable)
        self._emit(EventKind.UNCACHEABLE, job, "", reason=job.uncacheable)
        if not is_counted:
            from .model.reason import Reason, ReasonKind

            reasons = (Reason(ReasonKind.UNCACHEABLE, new=job.uncacheable),)
            self._emit(EventKind.MISS, job, "", reason=job.uncacheable, reasons=reasons)

    # -- explaining ---------------------------------------------------------------------------------

    def _missed(self, job: Job, components: Sequence[Component]) -> Missed:
        """Why a job was not found."""
        from .misses import Missed, why_missed
        from .model.reason import Reason, ReasonKind

        if self.settings.mode in ("off", "refresh", "verify"):
            return Missed((Reason(ReasonKind.MODE, new=self.settings.mode),))
        try:
            return why_missed(job, components, self._past(components))
        except Exception:  # whatever a store or a user's file gives back: a compile must not fail by its explanation
            return Missed((Reason(ReasonKind.UNKNOWN),))

    def _past(self, components: Sequence[Component] = ()) -> Past:
        from .misses import Past

        any_compiler = bool(components) and self._any_compiler(components)
        return Past(self.local, self.toolchain, self._memory, self._damaged, any_compiler)

    def _frozen(self, job: Job, components: Sequence[Component]) -> FrozenCacheError:
        from .observe.explain import summary

        why = f"the cache is frozen and does not hold it: {summary(self._missed(job, components).reasons)}"
        return FrozenCacheError(f"cannot compile {job.label} for {job.target}", why, "warm it up")

    def explain(
        self, job: Job, others: Iterable[Callable[[], Job]] = (), stand_ins: Iterable[Callable[[], Job]] = ()
    ) -> Explanation:
        """Whether `resolve` of the same would be a hit, where from, and if not, why not. Changes nothing."""
        from .misses import explain
        from .model.reason import Reason, ReasonKind
        from .observe.explain import Explanation

        if job.uncacheable:
            reason = Reason(ReasonKind.UNCACHEABLE, new=job.uncacheable)
            return Explanation(job.label, job.target.name, "", "uncacheable", reasons=(reason,))
        before, self._is_looking = self._is_looking, True
        try:
            frozen = self.settings.mode == "frozen"
            wanted = [(each, self.components(each)) for each in (job, *(make() for make in others))]
            lenient = [*([None] if frozen else []), *(each for each in self._tiers if frozen or each.readonly)]
            spare = [(each, self.components(each)) for each in (make() for make in stand_ins if lenient)]
            tried = [(each, tier) for tier in (None, *self._tiers) for each in wanted]
            tried += [(each, tier) for each in spare for tier in lenient]
            told = explain(tried, self._past(wanted[0][1]), family_of)
        finally:
            self._is_looking = before
        if self.settings.mode in ("off", "refresh", "verify"):
            missed = (Reason(ReasonKind.MODE, new=self.settings.mode), *told.reasons)
            return told._replace(outcome="miss", source="", reasons=missed)
        return told._replace(compiled_for=self._compiled_for.get(told.key, ()) if told.is_hit else ())

    @property
    def _tiers(self) -> Sequence[CheckedTier]:
        return () if self.store is self.local else self.store.tiers  # type: ignore[union-attr]

    def explain_key(self, key: str) -> Explanation:
        """What a stored entry is, and in what the others of its kernel differ from it. Changes nothing."""
        from .misses import explain_key

        return explain_key(key, self._past())

    # -- memory and records -------------------------------------------------------------------------

    def _remember(self, key: str, artifact: Artifact) -> None:
        with self._lock:
            before = self._memory.pop(key, None)
            self._memory[key] = artifact
            self._memory_bytes += _size(artifact) - (_size(before) if before else 0)
            while self._memory_bytes > MEMORY_LIMIT_BYTES and len(self._memory) > 1:
                self._memory_bytes -= _size(self._memory.popitem(last=False)[1])

    def forget(self) -> None:
        """Drop what is kept in memory: the next launch of every kernel resolves anew. Running work is untouched."""
        with self._lock:
            self._memory.clear()
            self._memory_bytes = 0
        self._compiled_for.clear()
        self._damaged.clear()
        self.ahead.forget()
        self.toolchain.forget()
        self._made_by.clear()
        for kernel in list(self.users):
            kernel.forget()
        self.loader.forget()

    def tier_reports(self, sums: Mapping[str, float] | None = None, *, asks: bool = False) -> tuple[TierReport, ...]:
        """What was seen of the stores behind the local one.

        Args:
            sums: Of the counters; None for what this process has counted.
            asks: Ask each first whether it answers.
        """
        if self.store is self.local:
            return ()
        if asks:
            self.store.ask()  # type: ignore[union-attr]
        return self.store.reports(sums)  # type: ignore[union-attr]

    def save_counts(self) -> None:
        """Add what was counted since the last time to the counters beside the store."""
        _save(self.statistics, self.local, self.settings.mode, self.ahead)

    def lifetime(self) -> Mapping[str, float]:
        """The sums of what was counted in all processes since the cache began, this one included."""
        self.save_counts()
        return self.local.counters.read()

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

    def _emit(self, kind: EventKind, job: Job, key: str, **fields: Any) -> None:
        self.events.emit(Event(kind, {"kernel": job.label, "target": job.target.name, "key": key, **fields}))


def _open_store(settings: Settings, directory: str | None, emit: Emit) -> DiskStore | MemoryStore:
    lacks = "" if directory is None or settings.mode == "off" else missing()
    if lacks:
        error = f"no {lacks} on this system: kernels are kept in memory only, and compiled again by the next process"
        emit(Event(EventKind.TROUBLE, {"where": "directory", "error": error}))
    elif directory is None and settings.mode != "off":
        directory = _homeless(settings, emit)
    if directory is None or settings.mode == "off" or lacks:
        from .store.memory import MemoryStore

        return MemoryStore(max_size_bytes=settings.max_size_bytes, max_entries=settings.max_entries)
    return DiskStore(
        directory,
        max_size_bytes=settings.max_size_bytes,
        max_entries=settings.max_entries,
        readonly=settings.mode in ("readonly", "frozen"),
        durability=settings.durability,
        shared=settings.shared,
        emit=emit,
    )


def _homeless(settings: Settings, emit: Emit) -> str | None:
    """A private directory for a user without a known home; None where there is none, or where nothing is written."""
    from .store.directory import private_directory

    path = None if settings.mode in ("readonly", "frozen") else private_directory()
    place = f"kernels are kept in {path or 'memory only'}; set NUMBA_KCACHE_DIR to a better place"
    emit(trouble("directory", f"no home directory is known: {place}"))
    return path


_process: Resolver | None = None
_overrides: dict[str, Any] = {}
_process_lock = threading.RLock()

process_listeners = Events()
"""Who listens to the process's cache, whichever resolver the settings lead to."""


def process_resolver() -> Resolver:
    """The resolver of the process's own cache, made at first use from the settings in force."""
    global _process
    if _process is None:
        with _process_lock:
            if _process is None:
                settings = read_settings(_overrides)
                set_log_level(settings.log_level)
                _process = Resolver(settings, settings.directory or default_directory())
                for make in _registered.values():
                    _process.mount(make(settings))
                _process.events.subscribe(process_listeners.tell)
    return _process


def configured() -> dict[str, Any]:
    """What was configured of the process's cache, for a process that works for this one."""
    return {name: value for name, value in _overrides.items() if name not in ("progress", "log_level")}


_registered: dict[str, Callable[[Settings], Tier]] = {}


def register(name: str, make: Callable[[Settings], Tier]) -> None:
    """Have the process's cache ask a tier under whichever settings it will have."""
    with _process_lock:
        _registered[name] = make


def configure_process(overrides: Mapping[str, Any]) -> Settings:
    """Change settings of the process's cache; the next launch of each kernel resolves anew.

    Raises:
        SettingsError: A setting is unknown or a value cannot be used; nothing has changed.
    """
    global _process
    with _process_lock:
        merged = {**_overrides, **overrides}
        settings = read_settings(merged)
        _overrides.update(overrides)
        before, _process = _process, None
        set_log_level(settings.log_level)
    if before is not None:
        before.forget()
    return settings


def _save(statistics: Statistics, store: DiskStore | MemoryStore, mode: str, ahead: ReadAhead) -> None:
    ahead.save()
    unsaved = statistics.take_unsaved()
    if unsaved and mode not in ("off", "readonly", "frozen"):
        store.counters.add(unsaved)


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


def _told(reasons: tuple[Reason, ...]) -> dict[str, Any]:
    from .observe.explain import summary

    return {"reason": summary(reasons), "reasons": reasons}


def _contradiction(artifact: Artifact) -> str:
    from .model.cubin import contradiction  # a hit goes without it

    major, minor = artifact.target.cc
    symbols = [entry.symbol for entry in artifact.entries]
    if artifact.target.virtual or "ltoir" in artifact.extras:  # there is no cubin yet
        return ""
    is_given = artifact.kind in ("cubin", "fatbin")  # by the user: it may be for an earlier minor
    return contradiction(artifact.cubin, major * 10 + minor, symbols, is_exact=not is_given)


def _uncacheable(job: Job, why: str) -> UncacheableError:
    return UncacheableError(f"cannot cache {job.label}", why)


def _size(artifact: Artifact) -> int:
    return len(artifact.cubin) + 1024
