"""What is kept of each kernel to explain a later miss: its roll, and what its entries say of themselves.

Promise     What a store gives back is only told, never served: a record that is lost, torn or wrong costs an
            explanation. Nothing but `note` changes the store.
Method      Each kernel has a roll, a manifest named by what people call it: the key of each of its last entries,
            and the start of the digest of each component. It is written when an entry is, and read on a miss alone.
Not here    Which entry is nearest, and why a request is none of them (misses).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engine.request import Job
from ..keys.components import Component, component, derive
from .diff import KINDS, Record
from .text import Stored

if TYPE_CHECKING:
    from ..store.disk import DiskStore
    from ..store.entry import StoredEntry
    from ..store.memory import MemoryStore
    from ..toolchain.libraries import Toolchain

SOURCE_LIMIT_BYTES = 64 << 10
"""Of the source and functions of one entry, that are kept to show lines; what is beyond is known by digest alone."""

LOOKED_AT = 8
"""Entries of a kernel that are read to find the nearest."""

_DIGITS = 16

_LINE = r"\A([^:(\[]*):\d+"
"""The line in the label of a kernel or module that was given as text."""

_PROGRAM = r"\A(?:__(?:mp_)?main__|<[^<>]*>|\?)(?=[.:]|\Z)"
"""Modules of labels that name no module: a program, here and in a process of its pool, or code run by hand."""


class Past(NamedTuple):
    """Where to look.

    Args:
        store: Of the cache; only looked at.
        toolchain: Knows the toolkit's folders.
        memory: Artifacts at hand, by key.
        damaged: What this process found damaged: why, by key.
        any_compiler: Whether other compilers' code will do.
    """

    store: DiskStore | MemoryStore
    toolchain: Toolchain
    memory: Mapping[str, object]
    damaged: Mapping[str, str]
    any_compiler: bool


def name_of(job: Job) -> str:
    """The name of the manifest that is the roll of the job's kernel, wherever in a file that stands.

    Every program is `__main__`: the kernels of one are told from those of another by its file, or, where it has none
    (a notebook, a prompt), by the folder it runs in.
    """
    entry = next((each.value for each in job.components if each.name == "entry"), None)
    name = entry.get("name") if isinstance(entry, dict) else None
    label, is_program = re.subn(_PROGRAM, "__main__", re.sub(_LINE, r"\1", job.label))
    return derive([component("roll", [label, name, *([_program_of(job)] if is_program else [])])])


def _program_of(job: Job) -> str:
    if os.path.isfile(job.file):
        return job.file
    try:
        return os.getcwd()
    except OSError:  # the folder is gone
        return ""


def payloads_of(job: Job, components: Sequence[Component]) -> dict[str, bytes]:
    """What an entry keeps to explain it: `report`, and `source` where that is not too large."""
    report = {
        "kernel": job.label,
        "roll": name_of(job),
        "python": sys.implementation.cache_tag,
        "created_s": time.time(),
        "built": built_here(),
        "components": [each.record() for each in components],
    }
    texts = {name: text for name, (text, _) in job.texts().items()}
    source = json.dumps(texts).encode()
    kept = {"source": source} if texts and len(source) <= SOURCE_LIMIT_BYTES else {}
    return {"report": json.dumps(report, default=bytes.hex).encode(), **kept}


def built_here() -> dict[str, str]:
    """What an entry is made on, for people who look at it later; not which machine: caches and bundles travel."""
    import platform

    python = platform.python_implementation() + " " + platform.python_version()
    return {"system": f"{platform.system()} {platform.release()}", "python": python}


def note(store: DiskStore | MemoryStore, job: Job, components: Sequence[Component], key: str, family: str) -> None:
    """Add an entry that was just stored to its kernel's roll."""
    store.add_variant(name_of(job), {"key": key, "family": family, "digests": digests_of(components)})


def digests_of(components: Sequence[Component]) -> dict[str, str]:
    """The start of each component's digest; not of each function and value of a Numba kernel: they may be hundreds."""
    return {each.name: each.digest[:_DIGITS] for each in components if each.name in KINDS}


def roll(name: str, past: Past) -> list[dict[str, Any]]:
    """What a kernel's roll says of its entries; nothing where there is none."""
    try:
        return [each for each in past.store.peek_manifest(name) if isinstance(each.get("digests"), dict)]
    except ValueError:  # no name of one
        return []


def peek(key: str, past: Past) -> StoredEntry | None:
    """The entry of a key, which a roll may have made up."""
    try:
        return past.store.peek(key)
    except ValueError:  # no key
        return None


def _json(entry: StoredEntry, name: str) -> dict[str, Any]:
    try:
        found = json.loads(entry.payloads[name])
    except (KeyError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def report_of(entry: StoredEntry) -> dict[str, Any]:
    """What `payloads_of` kept in it; empty where that is no report."""
    return _json(entry, "report")


def texts_of(entry: StoredEntry) -> dict[str, str]:
    """The user's texts in it, by component."""
    return {name: text for name, text in _json(entry, "source").items() if isinstance(text, str)}


def records_of(report: Mapping[str, Any]) -> list[Record]:
    """The component records of a report; what is none is left out."""
    rows = report.get("components")
    return [
        (row[0], row[1], row[2])
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[1], str)
    ]


def as_json(components: Sequence[Component]) -> list[Record]:
    """The records of components as a report would give them back."""
    report = {"components": [each.record() for each in components]}
    return records_of(json.loads(json.dumps(report, default=bytes.hex)))


def stored_of(entry: StoredEntry) -> Stored:
    """An entry as an explanation tells of it."""
    report, header = report_of(entry), entry.header
    numbers = [report.get("created_s"), header.get("compile_time_s")]
    created_s, seconds = (float(each) if isinstance(each, (int, float)) else 0.0 for each in numbers)
    size = len(entry.payloads["cubin"]) if "cubin" in entry.payloads else 0
    return Stored(entry.key, str(report.get("kernel", "")), str(header.get("target", "")), created_s, seconds, size)
