"""The part of a session that never compiles: its store, the compilers' identities, and looking up a candidate.

Promise     An artifact is found only under the key of the request that would be compiled. Every failure of reading
            stored data is a miss: only `keys` and `_read` read it; each returns a value or emits one event.
Method      A source without includes has its complete key at once, so a warm start reads one file. The manifest of a
            family (the key without compilers and versions) lists the entries stored for it; it is read where code of
            any compiler is accepted.
Not here    The order of candidates (engine/__init__.py), when to look up and the work after a miss (session).
"""

from __future__ import annotations

import functools
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import KCacheError, UncacheableError
from ..keys import Component, components, derive, names_a_compiler
from ..model import Emit, Event, EventKind, Protocol, trouble
from ..model.artifact import Artifact, artifact_from_header
from ..observe import Events
from ..settings import Settings
from ..store import renewed_in_children
from ..store.disk import DiskStore, open_store
from ..store.entry import is_key
from ..toolchain import Identified, Toolchain
from . import Candidate, candidates
from .request import Request, Resolution, only

if TYPE_CHECKING:  # a hit imports neither these modules nor what they import
    from ..store.entry import StoredEntry, Variant
    from ..store.memory import MemoryStore
    from ..tiers.chain import Chain
    from ..tiers.checked_tier import CheckedTier
    from ..tiers.tier import Tier

MEMORY_LIMIT_BYTES = 8 * 2**20
"""Limit of the size of artifacts kept in memory for other kernel objects with equal keys, with 1 KiB added for each.

It suffices for several modules of a megabyte, which take a quarter of a millisecond to read and verify again (small
ones 0.02); a process that makes and drops 10,000 kernels of 5 KB grows by less than 1 KiB for each of them.
"""

LOOKING = ("readwrite", "readonly", "frozen")
"""Modes in which stored entries are used."""

STORING = ("readwrite", "refresh", "verify")
"""Modes in which entries and counts are stored."""

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
        local: The local store.
        chain: The local store with tiers behind it; None if there are no tiers.
        store: The one of both that is looked up in and published to.
        tiers: The stores behind the local one, in the order in which they are tried.
        refused: Keys of stored code that could not be used; they are not looked up again until compiled.
    """

    def __init__(self, settings: Settings, directory: str | None, process: Events | None = None) -> None:
        self.settings = settings
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
        from .arrival import refusal_of

        if self.chain is None:
            self.store = self.chain = Chain(self.local, (), self.events.emit, trust_of(self.settings), refusal_of)
            self.statistics.sources.append(self.chain.take_unsaved)
        self.chain.mount(tier)
        self.tiers = self.chain.tiers

    def settled(self) -> DiskStore | MemoryStore:
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

    def unidentified(self, request: Request) -> tuple[Component, ...]:
        """List the components of a request with placeholders for compilers that are not identified yet."""
        return request.components + _NOT_IDENTIFIED

    def lacks_compilers(self, request: Request) -> bool:
        """Check whether one of the request's compilers is not installed, if that can be found quickly."""
        sought = [each for each in _FOUND_QUICKLY if each in request.libraries and each not in self._absent]
        self._absent.update(each for each in sought if self.toolchain.library(each, saves=False) is None)
        return not self._absent.isdisjoint(request.libraries)

    def takes_any_compiler(self, components: Sequence[Component]) -> bool:
        """Check whether code of any compiler is accepted: by setting, in frozen mode, or if one is not installed."""
        if self.settings.toolchain == "any" or self.settings.mode == "frozen":
            return True
        compilers = next(each.value for each in components if each.name == "compilers")
        return isinstance(compilers, dict) and None in compilers.values()

    # -- looking up ---------------------------------------------------------------------------------

    def key(self, request: Request) -> str:
        """Derive the key of a request.

        Raises:
            UncacheableError: The request cannot be keyed.
        """
        if request.uncacheable:
            raise uncacheable(request, request.uncacheable)
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
            raise uncacheable(request, request.uncacheable)
        if self.settings.mode not in LOOKING:
            return None
        found = self.first(candidates(self, only(request)))
        is_evicted = found is not None and found.source == "memory" and self.local.peek(found.key) is None
        return None if is_evicted else found

    def first(self, tried: Iterable[Candidate], source: str = "disk") -> Resolution | None:
        """Return the first of these candidates that is stored, and count it as a hit.

        Args:
            tried: The candidates in order.
            source: Source reported for an artifact of the local store.
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
        fields = {"kernel": request.label, "target": request.target.name, "key": key, "source": source}
        times = {"compile_time_s": artifact.compile_time_s, "load_time_s": seconds}
        self.events.emit(Event(EventKind.HIT, {**fields, **times}))
        return Resolution(artifact, key, source, is_stored=source != "memory", row=row or {})

    def _read(self, key: str, tier: CheckedTier | None = None) -> Artifact | None:
        try:
            entry = self.local.get(key)
            if entry is None and tier is not None:
                entry = tier.get(key)
            if entry is None:
                return None
            if self.settings.shared:
                from .arrival import arrived

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
        if self.settings.mode in STORING and not self._is_explaining:
            self.local.put_record(name, record)

    def _header_folder(self) -> str:
        """The folder for the headers that NVRTC holds itself; "" if nothing is stored, or others may write there."""
        return self.local.private_folder("headers") if self.settings.mode in STORING else ""

    def emit(self, kind: EventKind, request: Request, key: str, **fields: Any) -> None:
        """Emit an event about a request."""
        self.events.emit(Event(kind, {"kernel": request.label, "target": request.target.name, "key": key, **fields}))


def family_of(components: Sequence[Component]) -> str:
    """Name the manifest that lists the entries for these components, of any compiler."""
    return derive(each for each in components if not names_a_compiler(each.name))


def _record_damage(emit: Emit, damaged: dict[str, str], event: Event) -> None:
    """Pass on an event of the store, and remember a damaged key, which explains the miss that follows."""
    if event.kind is EventKind.DAMAGED:
        damaged[str(event.fields.get("key"))] = str(event.fields.get("reason"))
    emit(event)


def variant_of(key: str, target: str, request: str) -> Variant:
    """Describe an entry for its family's manifest: key, target, and the request with compilers and versions."""
    return {"key": key, "target": target, "request": request}


def uncacheable(request: Request, why: str) -> UncacheableError:
    """Make the error for a request that cannot be cached."""
    return UncacheableError(f"cannot cache {request.label}", why)
