"""Every lock, thread, thread-local and kept connection of the package, and why re-entrance and forks are safe.

A new one fails here until the list has it with the reason. Rules: a lock is reentrant, and is replaced by
`after_fork` of an object in `renewed_in_children`; work that takes long or calls foreign code is marked (waiting)
and holds no lock, or one that is waited for a bounded time.
"""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from pathlib import Path

from numba_kcache import store
from numba_kcache.engine import Lookup
from numba_kcache.launch.launcher import Loader
from numba_kcache.settings import read_settings
from numba_kcache.store.disk import DiskStore
from numba_kcache.store.eviction import Limits
from numba_kcache.store.locks import KeyLocks
from numba_kcache.tiers.chain import CheckedTier
from numba_kcache.tiers.upload_queue import UploadQueue
from tests.support.house import HOUSE, house
from tests.support.tiers import MemoryTier

MAKERS = {
    "Lock", "RLock", "Condition", "Event", "Semaphore", "BoundedSemaphore", "Barrier", "local", "Thread", "Timer",
    "ThreadPoolExecutor", "ProcessPoolExecutor", "Queue", "SimpleQueue", "cached_property", "create_connection",
    "register_at_fork", "start_new_thread", "allocate_lock", "socketpair", "contextvars",
}  # fmt: skip
"""Calls that make an object which a signal handler may find locked, or a child inherit in any state. In CPython 3.11
`cached_property` has a lock, held while the user's code runs."""

COVERED = {
    "engine/__init__.py RLock": "replaced in children",
    "engine/__init__.py local": "the reason of a thread's last miss",
    "engine/turns.py local": "whether a thread resolves a kernel ahead; a child has that of its own thread",
    "launch/launcher.py RLock": "of one load, waited for 5 s at most; a child forgets those of its parent",
    "toolchain/__init__.py RLock": "replaced by the look-up that the toolchain belongs to",
    "store/disk.py RLock": "replaced in children",
    "store/eviction.py RLock": "replaced in children",
    "tiers/chain.py RLock": "replaced in children",
    "tiers/upload_queue.py Condition": "replaced in children; made from an RLock",
    "observe/progress.py Event": "belongs to one compile; children do not use it",
    "tiers/lease.py Event": "belongs to one election; children do not use it",
    "observe/progress.py Thread": "belongs to one compile",
    "store/eviction.py Thread": "runs the parent's eviction; a child starts its own",
    "tiers/upload_queue.py Thread": "works for the parent; a child's queue is empty",
    "tiers/lease.py Thread": "renews the parent's lease",
    "tiers/redis.py create_connection": "kept by RedisTier, which drops them in a child",
    "tiers/tier.py Thread": "asks a server or name servers for the parent: a child asks for itself",
    "toolchain/nvrtc.py local": "of each thread its own",
    "headers/observer.py local": "of each thread its own, like the recording",
    "toolchain/loaded.py Thread": "maps NVRTC for the parent; a child treats it as finished",
    "waiting.py Thread": "imports for the parent; a child waits only for its own",
    "frontends/numba/fingerprint.py cached_property": "of an object that one call makes and no other thread sees",
    "frontends/numba/copies.py local": "of each thread its own: the functions that its call has copied",
    "adapters/cupy.py local": "the kernel that a thread compiles; the recording is that thread's, too",
    "adapters/turn.py Thread": "is listed by its process: a child starts its own",
    "adapters/turn.py register_at_fork": "forgets the turns of the parent, which finishes and counts its builds",
    "warmup/workers.py socketpair": "leads to one worker; a worker forked from another closes the other's",
    "store/__init__.py register_at_fork": "calls after_fork of all objects in `renewed_in_children`",
}

RENEWED = {
    Lookup, Loader, DiskStore, Limits, KeyLocks, CheckedTier, UploadQueue,
}  # fmt: skip


def made() -> Iterator[str]:
    """File and constructor of each such object in the package."""
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
    kept = [cache, Loader(cache.events.emit), cache.local, cache.local.locks]
    kept += [*cache.tiers, UploadQueue(), Limits(cache.local)]
    renewed = list(store.renewed_in_children)

    assert {type(each) for each in kept} == RENEWED
    for each in kept:
        assert any(each is other for other in renewed), each
        before = {name: value for name, value in vars(each).items() if type(value) is type(threading.RLock())}
        each.after_fork()
        assert all(getattr(each, name) is not value for name, value in before.items()), each
