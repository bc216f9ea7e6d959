"""Every lock, thread, thread-local and kept connection of the package, and how it stands re-entrance and forks.

A new one fails here until it is on the list, with what covers it. House rules: a lock is one that its owner may take
again, made again by `after_fork` of an object that is in `renewed_in_children`; what takes long, or calls foreign code,
is marked (waiting) and holds none.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

from numba_kcache import store
from numba_kcache.engine.lookup import Lookup
from numba_kcache.launch.loader import Loader
from numba_kcache.settings import read_settings
from numba_kcache.store.counters import CounterFile
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.limits import Limits
from numba_kcache.store.locks import KeyLocks
from numba_kcache.store.memory import MemoryCounters, MemoryStore
from numba_kcache.tiers.checked_tier import CheckedTier
from numba_kcache.tiers.upload_queue import UploadQueue
from tests.support.house import HOUSE, house
from tests.support.tiers import MemoryTier

MAKERS = {
    "Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "local", "Thread", "Timer",
    "ThreadPoolExecutor", "ProcessPoolExecutor", "Queue", "SimpleQueue", "cached_property", "create_connection",
    "register_at_fork", "allocate_lock", "socketpair", "contextvars",
}  # fmt: skip
"""Calls that make a thing which a handler may meet, or a child inherits in whatever state. CPython 3.11 has a lock
in `cached_property`, held while the user's code runs."""

COVERED = {
    "engine/lookup.py RLock": "renewed",
    "observe/__init__.py RLock": "renewed by the look-up whose statistics they are",
    "toolchain/__init__.py RLock": "renewed by the look-up whose toolchain it is",
    "store/counters.py RLock": "renewed",
    "store/disk.py RLock": "renewed",
    "store/limits.py RLock": "renewed",
    "store/locks.py RLock": "renewed",
    "store/memory.py RLock": "renewed",
    "tiers/checked_tier.py RLock": "renewed",
    "tiers/upload_queue.py Condition": "renewed; of an RLock",
    "store/locks.py Lock": "the seats of keys: waited for as `waiting` has it, and gone in children",
    "observe/__init__.py local": "the reason of a thread's last miss",
    "observe/progress.py Event": "of one compile, and left alone in children",
    "tiers/lease.py Event": "of one election, and left alone in children",
    "observe/progress.py Thread": "of one compile",
    "store/limits.py Thread": "the parent's pass: a child begins its own",
    "tiers/upload_queue.py Thread": "the parent's: a child's queue is empty",
    "tiers/lease.py Thread": "the parent renews its lease",
    "tiers/resp.py create_connection": "kept by RedisTier, which drops them in a child",
    "tiers/resp.py Thread": "asks name servers for the parent's connection: a child makes its own",
    "headers/open_watch.py Thread": "ends a watch that is not asked any more; a child has none to end",
    "toolchain/loaded.py Thread": "maps NVRTC for the parent; in a child it counts as through",
    "waiting.py Thread": "imports for the parent; a child waits for its own alone",
    "store/locks.py Event": "of one turn's signs of life, which a child does not give",
    "store/locks.py Thread": "the parent gives its signs of life",
    "frontends/python/value.py cached_property": "of a reading that one call makes: no other thread has it",
    "adapters/triton.py Thread": "of one question, which a child does not go on with",
    "adapters/triton.py SimpleQueue": "of one question, which a child does not go on with",
    "warmup/workers.py socketpair": "to one worker; one that is forked from another closes that one's",
    "store/__init__.py register_at_fork": "calls after_fork of all that is renewed",
}

RENEWED = {
    Lookup, Loader, DiskStore, Limits, KeyLocks, MemoryStore, MemoryCounters, CounterFile, CheckedTier, UploadQueue,
}  # fmt: skip


def made() -> Iterator[str]:
    """File and maker of each such thing in the package."""
    for path, tree in HOUSE.trees.items():
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            bases = node.bases if isinstance(node, ast.ClassDef) else ()
            decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else ()
            for each in (called, *bases, *decorators):
                name = house.dotted(each).rpartition(".")[2] if each is not None else ""
                is_ours = name == "Event" and isinstance(each, ast.Name)  # of model
                if name in MAKERS and not is_ours:
                    yield f"{HOUSE.name_of(path)} {name}"


def test_each_lock_thread_and_connection_is_covered() -> None:
    """The locks, threads and connections of the package are those of the list."""
    assert set(made()) == set(COVERED)


def test_owners_of_locks_are_renewed_in_children(tmp_path: Path) -> None:
    """Each object of each such class is among those that a child renews, and has new locks then."""
    cache = Lookup(read_settings({}), str(tmp_path))
    cache.mount(MemoryTier("a"))
    kept = [cache, Loader(cache.events.emit), cache.local, cache.local.counters, cache.local.locks]
    kept += [MemoryStore(), MemoryCounters(), *cache.tiers, UploadQueue(), Limits(cache.local)]  # type: ignore[arg-type]
    renewed = list(store.renewed_in_children)

    assert {type(each) for each in kept} == RENEWED
    for each in kept:
        assert any(each is other for other in renewed), each
        before = {name: value for name, value in vars(each).items() if type(value) is type(threading.RLock())}
        each.after_fork()
        assert all(getattr(each, name) is not value for name, value in before.items()), each
