"""From a job to an artifact: key, look up, compile once, publish, report.

Promise     Each resolution emits one HIT or MISS; nothing below knows who asked. Of many that want the same at once one
            compiles, and the others wait a bounded time.
Not here    Keys and what is stored (lookup), what follows a miss (compiling), why it was one (misses, explanations),
            the process's own cache (process_cache); kernels, launches and devices (kernel, launch).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import FrozenCacheError
from ..keys.components import Component, derive
from ..launch.loader import Loader
from ..model.artifact import Artifact
from ..model.event import Event, EventKind
from ..observe.statistics import Statistics
from ..settings import Settings
from ..store.disk import DiskStore
from .lookup import (
    LOOKING,
    Lookup,
    Resolution,
    uncacheable,
)
from .request import Job

if TYPE_CHECKING:  # a hit goes without them, and without what they import
    from ..explain.nearest import Missed
    from ..explain.text import Explanation
    from ..model.reason import Reason
    from ..store.memory import MemoryStore
    from ..tiers.tier import TierReport

EXPLAINED_LIMIT = 4096
"""Compiles of which a process remembers why; when there are more, it begins anew."""


class Resolver(Lookup):
    """The machinery behind one cache.

    Args:
        settings: The settings in force.
        directory: Where the store is; None where no home directory is known.
    """

    def __init__(self, settings: Settings, directory: str | None) -> None:
        save_collected()
        super().__init__(settings, directory)
        self.loader = Loader(self.events.emit)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self._compiled_for: dict[str, tuple[Reason, ...]] = {}
        save = weakref.finalize(Resolver, _save, self.statistics, self.local, settings.mode)  # at exit
        weakref.finalize(self, _collected.append, save).atexit = False
        if settings.tiers and settings.mode != "off":  # now: at exit, what was there later has its end first
            from ..tiers.opening import open_tiers

            for tier in reversed(open_tiers(settings)):
                self.mount(tier)

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
        looks, others, stand_ins = self.settings.mode in LOOKING, tuple(others), tuple(stand_ins)
        if looks:
            found = self.find_unasked(job, others, stand_ins)
            if found is not None:
                return found
        components = self.components(job)
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
                    self.emit(EventKind.WAITED, job, found.key, waited_s=turn.waited_s)
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
                self.emit(EventKind.WAITED, job, found.key, waited_s=election.waited_s)
            self.store.settle()  # type: ignore[union-attr]  # those who wait for this node's turn look there
            return found

    def _compile(self, job: Job, components: Sequence[Component]) -> Resolution:
        from .compile import build, publish  # a hit goes without it

        key = derive(components)
        reasons = self._missed(job, components).reasons
        self.emit(EventKind.MISS, job, key, **_told(reasons))
        artifact, learned = build(self, job, key)
        if learned.doubt:
            if job.strict:
                raise uncacheable(job, learned.doubt)
            self.emit(EventKind.UNCACHEABLE, job, "", reason=learned.doubt)
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
            publish(self, job, actual, learned, artifact, key)
        return Resolution(artifact, key, "compiled")

    def _compare(self, job: Job, key: str, artifact: Artifact) -> None:
        """Report a stored entry that is not what the compilers make of the same request now."""
        stored = self._read(key)
        if stored is not None and stored.cubin != artifact.cubin:
            difference = f"the stored code of {job.label} is not what the compilers make now ({key})"
            self.events.emit(Event(EventKind.TROUBLE, {"where": f"verify {key}", "error": difference}))

    def _uncached(self, job: Job) -> Resolution:
        from .compile import build

        self.refuse(job)
        return Resolution(build(self, job, "")[0], "", "compiled", job.uncacheable)

    def refuse(self, job: Job, *, is_counted: bool = False) -> None:
        """Report a job that runs uncached.

        Args:
            job: With the reason.
            is_counted: Whether it has been counted as a miss before the reason was known.

        Raises:
            UncacheableError: It may not: the job or the mode says so.
        """
        if job.strict or self.settings.mode == "frozen":
            raise uncacheable(job, job.uncacheable)
        self.emit(EventKind.UNCACHEABLE, job, "", reason=job.uncacheable)
        if not is_counted:
            from ..model.reason import Reason, ReasonKind

            reasons = (Reason(ReasonKind.UNCACHEABLE, new=job.uncacheable),)
            self.emit(EventKind.MISS, job, "", reason=job.uncacheable, reasons=reasons)

    # -- explaining ---------------------------------------------------------------------------------

    def _missed(self, job: Job, components: Sequence[Component]) -> Missed:
        """Why a job was not found."""
        from ..explain.nearest import Missed, why_missed
        from ..model.reason import Reason, ReasonKind

        if self.settings.mode in ("off", "refresh", "verify"):
            return Missed((Reason(ReasonKind.MODE, new=self.settings.mode),))
        try:
            return why_missed(job, components, self.past(components))
        except Exception:  # whatever a store or a user's file gives back: a compile must not fail by its explanation
            return Missed((Reason(ReasonKind.UNKNOWN),))

    def _frozen(self, job: Job, components: Sequence[Component]) -> FrozenCacheError:
        from ..explain.text import summary

        why = f"the cache is frozen and does not hold it: {summary(self._missed(job, components).reasons)}"
        return FrozenCacheError(f"cannot compile {job.label} for {job.target}", why, "warm it up")

    def explain(
        self, job: Job, others: Iterable[Callable[[], Job]] = (), stand_ins: Iterable[Callable[[], Job]] = ()
    ) -> Explanation:
        """Whether `resolve` of the same would be a hit, where from, and if not, why not. Changes nothing."""
        from ..explain.lookup import explain

        before, self._is_looking = self._is_looking, True
        try:
            told = explain(self, job, others, stand_ins)
        finally:
            self._is_looking = before
        return told._replace(compiled_for=self._compiled_for.get(told.key, ())) if told.is_hit else told

    def explain_key(self, key: str) -> Explanation:
        """What a stored entry is, and in what the others of its kernel differ from it. Changes nothing."""
        from ..explain.lookup import explain_key

        return explain_key(key, self.past())

    # -- the cache as a whole -----------------------------------------------------------------------

    def forget(self) -> None:
        """Drop what is kept in memory: the next launch of every kernel resolves anew. Running work is untouched."""
        super().forget()
        self._compiled_for.clear()
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
        save_collected()
        _save(self.statistics, self.local, self.settings.mode)

    def lifetime(self) -> Mapping[str, float]:
        """The sums of what was counted in all processes since the cache began, this one included."""
        self.save_counts()
        return self.local.counters.read()


_collected: deque[Callable[[], Any]] = deque()
"""What caches that were collected have yet to save. Not in the collection: that may come in the middle of an import,
which CPython does not bear (python/cpython#106176), or while a lock is held."""


def save_collected() -> None:
    """Save what caches that are gone had counted."""
    while _collected:
        # Whatever goes wrong is of a cache that is gone, or another thread took it: not the trouble of who comes next.
        with contextlib.suppress(Exception):
            _collected.popleft()()


def _save(statistics: Statistics, store: DiskStore | MemoryStore, mode: str) -> None:
    unsaved = statistics.take_unsaved()
    if unsaved and mode not in ("off", "readonly", "frozen"):
        store.counters.add(unsaved)


def _told(reasons: tuple[Reason, ...]) -> dict[str, Any]:
    from ..explain.text import summary

    return {"reason": summary(reasons), "reasons": reasons}
