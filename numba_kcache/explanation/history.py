"""The history of each kernel: the entries stored for it, kept to explain a later miss.

Promise     Records are only reported, never used to find code: a record that is lost, damaged or forged can only make
            an explanation worse. Nothing here adds to the store.
Method      Each kernel has a history, a manifest named by the file that defines it and its qualified name there: so a
            program has one history whether it is run as a script, with `-m`, by a process pool or imported by
            `numba-kcache explain`. A module of a package has the same history in every checkout. A history holds the
            keys of the kernel's last entries, and of their requests. Each new entry adds a record to it; it is read
            only on a miss.
Not here    Which entry is nearest, and the differences from it (nearest, diff).
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..keys import Component, component, derive
from ..model import NamedTuple
from ..model.reason import Reason, ReasonKind
from ..settings import working_directory

if TYPE_CHECKING:
    from ..headers.roots import HeaderSearch
    from ..model import Origin
    from ..store import StoredEntry
    from ..store.disk import DiskStore
    from ..toolchain import Toolchain

ComponentRecord = tuple[str, str, Any]
"""Name, digest and value of a component."""

KINDS: Mapping[str, ReasonKind] = {
    "kind": ReasonKind.SOURCE_CHANGED,
    "source": ReasonKind.SOURCE_CHANGED,
    "entry": ReasonKind.ENTRY,
    "options": ReasonKind.OPTIONS,
    "target": ReasonKind.TARGET,
    "signature": ReasonKind.SIGNATURE,
    "link": ReasonKind.LINK_INPUT,
    "module": ReasonKind.SOURCE_CHANGED,
    "environment": ReasonKind.ENVIRONMENT,
    "lines": ReasonKind.PLACE,
    "headers": ReasonKind.HEADER_CHANGED,
    "paths": ReasonKind.HEADER_SEARCH,
    "depends": ReasonKind.DEPENDS,
    "compilers": ReasonKind.COMPILER,
    "versions": ReasonKind.VERSION,
}
"""The kind of reason for each component of a key. docs/keys.md has a row for each."""

SOURCE_LIMIT_BYTES = 64 << 10
"""Limit of the source and functions stored with an entry to show changed lines; larger ones are kept as digests."""

LOOKED_AT = 8
"""Most entries of a kernel that are read to find the nearest one."""

NEVER_STORED = Reason(ReasonKind.NEVER_STORED)
NEVER_STORED_TEXT = "nothing of this kernel was stored here before"

MOST_RECORDS = 16
"""Most entries in a history: each miss reads it, and each new entry rewrites it."""


class Subject(NamedTuple):
    """The request that is explained.

    Args:
        label: Name of the kernel in messages.
        file: The file that defines it; "" for none.
        name: Qualified name of the kernel in that file.
        components: The components of the request, without compilers and headers.
        headers: The search for the headers that its texts may include.
        texts: Returns the user's texts by component, each with its place.
        kinds: The kinds of reason that its front end adds, by name of the component or by a prefix of it.
    """

    label: str
    file: str
    name: str
    components: Sequence[Component]
    headers: HeaderSearch | None = None
    texts: Callable[[], Mapping[str, tuple[str, Origin]]] = dict
    kinds: Mapping[str, ReasonKind] = {}


class Evidence(NamedTuple):
    """The state of the cache from which a miss is explained.

    Args:
        store: The store of the cache; only read.
        toolchain: Provides the toolkit's folders.
        damaged: The damage that this process found, by key.
        any_compiler: Code of other compilers is accepted.
    """

    store: DiskStore
    toolchain: Toolchain
    damaged: Mapping[str, str]
    any_compiler: bool


def history_name(subject: Subject) -> str:
    """Name the manifest that is the history of a kernel, from its file, its name there, and the requested entry.

    If there is no file (a notebook, a prompt), the working directory is used instead.
    """
    entry = next((each.value for each in subject.components if each.name == "entry"), None)
    wanted = entry.get("name") if isinstance(entry, dict) else None
    packages = _packages_of(subject.file)
    home = "/".join([*packages, os.path.basename(subject.file)]) if packages else subject.file or working_directory()
    return derive([component("history", [home, subject.name, wanted])])


@functools.lru_cache(maxsize=256)
def _packages_of(file: str) -> tuple[str, ...]:
    """List the packages that a file is in, the outermost first."""
    packages: tuple[str, ...] = ()
    folder = os.path.dirname(file)
    while os.path.basename(folder) and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, name = os.path.split(folder)
        packages = name, *packages
    return packages


def payloads_of(subject: Subject, history: str, components: Sequence[Component]) -> dict[str, bytes]:
    """Make the payloads that explain an entry: `report`, and `source` if that is not too large."""
    report = {
        "kernel": subject.label,
        "history": history,
        "python": sys.implementation.cache_tag,
        "created_s": time.time(),
        "kinds": subject.kinds,
        "module": module_of(subject.file),
        "components": [each.record() for each in components],
    }
    texts = {name: text for name, (text, _) in subject.texts().items()}
    source = json.dumps(texts).encode()
    kept = {"source": source} if texts and len(source) <= SOURCE_LIMIT_BYTES else {}
    return {"report": json.dumps(report, default=bytes.hex).encode(), **kept}


def read_history(name: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Read the records of a kernel's entries; empty if there are none."""
    try:
        return list(evidence.store.peeking.get_manifest(name))
    except ValueError:  # not the name of a manifest
        return []


def has_history(subject: Subject, store: DiskStore) -> bool:
    """Check whether the store may have entries of a kernel; if not, `NEVER_STORED` is why it misses."""
    with suppress(Exception):  # a store may contain anything
        return bool(store.get_manifest(history_name(subject)))
    return True


def peek(key: str, evidence: Evidence) -> StoredEntry | None:
    """Read the entry of a key from a history; None if there is none, or the key is malformed (a forged record)."""
    try:
        return evidence.store.peeking.get(key)
    except ValueError:  # not a key
        return None


def module_of(file: str) -> str:
    """The module name of a file when `numba-kcache explain` imports it; "" for no file."""
    return ".".join([*_packages_of(file), os.path.basename(file).removesuffix(".py")])
