"""What the kernels of a file led to last time, read while they are decorated: their first use then reads nothing.

Promise     What was read ahead is served under exactly the key that the first use leads to; a hint that no longer holds
            costs the reading and nothing else. Nothing is believed before the store has verified it, and no more is
            kept than the limits here. Without a hint: one failed open for each file.
Method      A manifest for each file that defines kernels lists, by kernel, the keys that were used and not expected,
            newest first. It is written when the process ends, in one go, and only where something is new: in the
            steady state nothing is written.
Not here    Keys, and when to look (resolver).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .keys.components import component, derive
from .model.artifact import Artifact
from .store.disk import DiskStore
from .store.manifest import MAX_VARIANTS

if TYPE_CHECKING:
    from .store.memory import MemoryStore

MAX_ENTRIES = 64
"""Artifacts that are read ahead in one process: a library of a thousand kernels must not slow down its import."""

MAX_CUBIN_BYTES = 4 << 20
"""Largest cubin that is read ahead. To read, verify and unpack one of 1.4 MB takes 2 to 3 ms, most of it for touching
memory for the first time; the driver loads it in 0.6."""

MAX_BYTES = 8 << 20
"""Cubins that are read ahead in one process, together: they stay in memory until they are used."""


class Read(NamedTuple):
    """An artifact that was read ahead, how long that took in seconds, and the argument types of a Numba kernel."""

    key: str
    artifact: Artifact
    read_time_s: float
    types: tuple[str, ...] = ()


class ReadAhead:
    """The artifacts that one cache has read ahead, and the hints that led to them.

    Args:
        store: Where hints and entries are.
        reads: Whether entries may be served at all.
        writes: Whether hints may be stored.
    """

    def __init__(self, store: DiskStore | MemoryStore, *, reads: bool, writes: bool) -> None:
        self._store, self._reads, self._writes = store, reads, writes
        self._hints: dict[str, list[dict[str, Any]]] = {}
        self._read: dict[str, Read] = {}
        self._known: set[tuple[str, str]] = set()
        self._taken: set[str] = set()
        self._new: dict[str, dict[str, dict[str, Any]]] = {}
        self._count = self._bytes = 0

    def expect(self, file: str, label: str, read: Callable[[str], Artifact | None], most: int) -> list[Read]:
        """Read what a kernel led to last time, newest first; after it what was read for others of its label before.

        Kernels that are made in a loop, or in one line, have one label: each call reads further ones.

        Args:
            file: The file that defines it; "" for none, of which nothing is known.
            label: What people call the kernel.
            read: Gives the artifact of a key.
            most: How many artifacts of the kernel are worth it.

        Returns:
            `most` of them at most.
        """
        if not file or not self._reads:
            return []
        hints = self._hints.get(file)
        if hints is None:
            hints = self._hints[file] = self._store.get_manifest(_name(file))
        found: list[Read] = []
        before: list[Read] = []
        for hint in hints:
            if hint.get("kernel") != label:
                continue
            self._known.add((file, hint["key"]))
            key, size = hint.get("entry"), hint.get("cubin_bytes")
            if type(size) is not int or not 0 <= size <= MAX_CUBIN_BYTES or type(key) is not str or not _is_key(key):
                continue
            if key in self._read or key in self._taken:
                before += filter(None, [self._read.get(key)])
                continue
            if len(found) == most or self._count == MAX_ENTRIES or self._bytes + size > MAX_BYTES:
                continue
            self._count += 1
            self._bytes += size
            start = time.perf_counter()
            artifact = read(key)
            if artifact is not None:
                self._read[key] = Read(key, artifact, time.perf_counter() - start, _texts(hint.get("types")))
                found.append(self._read[key])
        return (found + before)[:most]

    def take(self, key: str) -> Read | None:
        """What was read ahead under a key; from now on others keep it."""
        found = self._read.pop(key, None)
        if found is not None:
            self._taken.add(key)
        return found

    def learn(self, file: str, label: str, key: str, artifact: Artifact, types: Sequence[str] = ()) -> None:
        """Note what a kernel has led to, for the next process."""
        name = f"{label} {key}"
        if file and self._writes and (file, name) not in self._known:
            self._known.add((file, name))
            hint = {"key": name, "kernel": label, "entry": key, "cubin_bytes": len(artifact.cubin)}
            if types:
                hint["types"] = list(types)
            self._new.setdefault(file, {})[name] = hint

    def save(self) -> None:
        """Store what was learned since the last time; not beside hints that are as many as can be, and all good."""
        new, self._new = self._new, {}
        for file, hints in new.items():
            before = self._hints.get(file, ())
            if len(before) < MAX_VARIANTS or any(hint.get("entry") not in self._taken for hint in before):
                self._store.add_variant(_name(file), *hints.values())

    def forget(self) -> None:
        """Know nothing, and have nothing to save: entries may be gone."""
        for each in (self._hints, self._read, self._known, self._taken, self._new):
            each.clear()


def _name(file: str) -> str:
    return derive((component("kind", "hints"), component("file", file)))


def _texts(given: Any) -> tuple[str, ...]:
    """What a hint says of types; nothing where it is no list of texts."""
    return tuple(given) if type(given) is list and all(type(each) is str for each in given) else ()


def _is_key(key: str) -> bool:
    return len(key) == 64 and not key.strip("0123456789abcdef")
