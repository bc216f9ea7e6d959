"""`Session`: resolve requests to artifacts (look up, else compile once and publish); also the process's own session.

Promise     Each resolution emits one HIT or MISS. Of many threads and processes that resolve the same request at once,
            one of them compiles, and the others wait a bounded time.
            The process has one session of its own at a time, made at first use from the settings in force;
            registered tiers and subscribers survive a change of settings.
Not here    Keys and entries (lookup), the order of candidates (engine/__init__.py), the work after a miss (turns,
            compile); kernels, launches and devices.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import OptionError
from ..keys import Component
from ..launch.loader import Loader
from ..model import EventKind
from ..observe import Events, Statistics
from ..settings import Settings, default_directory, misspelt, read_settings
from ..store.disk import DiskStore
from . import candidates
from .lookup import LOOKING, STORING, Lookup, uncacheable
from .request import Request, Resolution, Wanted

if TYPE_CHECKING:  # a hit imports neither these modules nor what they import
    from ..explanation.text import Explanation
    from ..model.artifact import Artifact
    from ..model.reason import Reason
    from ..store.memory import MemoryStore
    from ..tiers.tier import Tier, TierReport


class Session(Lookup):
    """The engine behind one cache.

    Args:
        settings: The settings in force.
        directory: Directory of the store; None if no home directory is known.
        process: Events of the process's cache, if this is that cache.

    Attributes:
        compiled_for: The reasons of each compile, by the key of its artifact.
        served: Keys of `get_or_build` results for which this process counted a hit, by digest of the call.
    """

    def __init__(self, settings: Settings, directory: str | None, process: Events | None = None) -> None:
        if collected:
            save_collected()
        super().__init__(settings, directory, process)
        self.loader = Loader(self.events.emit)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        self.compiled_for: dict[str, tuple[Reason, ...]] = {}
        self.served: dict[str | bytes, str] = {}
        # the counts are saved at exit, or by `save_collected` once this session was garbage collected
        save = weakref.finalize(Session, _save, self.statistics, self.local, settings.mode)
        weakref.finalize(self, collected.append, save).atexit = False
        if settings.tiers and settings.mode != "off":  # import now, so that its atexit function runs after `_save`
            from ..tiers.opening import open_tiers

            for tier in reversed(open_tiers(settings)):
                self.mount(tier)

    def resolve(self, wanted: Wanted) -> Resolution:
        """Find the artifact of a request, or one accepted in its place; otherwise build the request.

        Raises:
            KCacheError: The user's own errors, from the compilers.
            UncacheableError: The request cannot be keyed, and it or the mode forbids to run it uncached.
            FrozenCacheError: The artifact is not stored, and the mode is frozen.
        """
        request = wanted.request
        if request.uncacheable:
            return self._uncached(request)
        looks = self.settings.mode in LOOKING
        found = self.first(candidates(self, wanted)) if looks else None
        if found is not None:
            return found
        components = self.components(request)
        if self.settings.mode == "frozen":
            from .explain import frozen_error

            raise frozen_error(self, request, components)
        from .turns import resolve_missing

        return resolve_missing(self, wanted, components)

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
        return without_key(build(self, request, "")[0], request.uncacheable)

    def refuse(self, request: Request, *, is_counted: bool = False) -> None:
        """Report a request that runs uncached.

        Args:
            request: The request, with the reason.
            is_counted: Whether it was counted as a miss before the reason was known.

        Raises:
            UncacheableError: The request or the mode forbids to run it uncached.
        """
        if request.strict or self.settings.mode == "frozen":
            raise uncacheable(request, request.uncacheable)
        self.emit(EventKind.UNCACHEABLE, request, "", reason=request.uncacheable)
        if not is_counted:
            from ..model.reason import Reason, ReasonKind

            reasons = (Reason(ReasonKind.UNCACHEABLE, new=request.uncacheable),)
            self.emit(EventKind.MISS, request, "", reason=request.uncacheable, reasons=reasons)

    # -- explaining ---------------------------------------------------------------------------------

    def explain(self, wanted: Wanted) -> Explanation:
        """Explain whether `resolve` would find a stored artifact and in which store, or why not. Changes nothing."""
        from .explain import explain

        # meanwhile look-ups, also those of other threads, renew no times of use and save no record of compilers
        before, self._is_explaining = self._is_explaining, True
        self.toolchain.load = self.local.peek_record
        try:
            found = explain(self, wanted)
        finally:
            self._is_explaining = before
            self.toolchain.load = self.local.get_record
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
        _save(self.statistics, self.local, self.settings.mode)

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


def _save(statistics: Statistics, store: DiskStore | MemoryStore, mode: str) -> None:
    unsaved = statistics.take_unsaved()
    if unsaved and mode in STORING:
        store.counters.add(unsaved)


_WITHOUT_KEY = itertools.count()


def without_key(artifact: Artifact, why: str) -> Resolution:
    """Make the resolution of an uncacheable artifact, with a unique name: a counter, since ids are reused."""
    return Resolution(artifact, "", "compiled", why, name=f"uncached {next(_WITHOUT_KEY)}")


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
    """Read the settings in force; apply the log level, and warn of misspelt variables."""
    settings = read_settings(overrides)
    if misspelt:
        _warn_of_misspelt()
    if settings.log_level != "warning":
        from ..observe.log import set_log_level

        set_log_level(settings.log_level)
    return settings


def _warn_of_misspelt() -> None:
    """Warn once of each variable that is named like a setting and is none: a misspelt one has no effect."""
    from ..observe.log import warn

    while misspelt:
        name, meant = misspelt.popitem()
        if name not in _warned_of:
            _warned_of.add(name)
            hint = f"did you mean {meant}?" if meant else "`numba-kcache config` lists all settings"
            warn(f"{name} names no setting and is ignored: {hint}")


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
