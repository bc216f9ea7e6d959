"""The history of each kernel: the entries stored for it, kept to explain a later miss.

Promise     What a store gives back is only reported, never served: a record that is lost, torn or wrong costs an
            explanation. Nothing but `append` changes the store.
Method      Each kernel has a history, a manifest named by the file that defines it and its qualified name there: so a
            program run as a script, with `-m` or imported by the shell has one history. It holds the key of each of
            its last entries, and the start of the digest of each component. It is written when an entry is, and read
            on a miss alone.
Not here    Which entry is nearest, and the differences from it (nearest, diff).
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..keys import Component, component, derive, sha256
from ..model.reason import ReasonKind
from .diff import KINDS, Record
from .text import Stored

if TYPE_CHECKING:
    from ..headers.search import HeaderQuery
    from ..model.request import Origin
    from ..store.disk import DiskStore
    from ..store.entry import StoredEntry
    from ..store.memory import MemoryStore
    from ..toolchain import Toolchain

SOURCE_LIMIT_BYTES = 64 << 10
"""Of the source and functions of one entry, that are kept to show lines; what is beyond is known by digest alone."""

LOOKED_AT = 8
"""Entries of a kernel that are read to find the nearest."""

_DIGITS = 16

_PROGRAM = r"__(?:mp_)?main__\b|<[^<>]*>|\?"
"""Start of the labels of kernels of a program, here and in a process of its pool, or of code run by hand."""


class Subject(NamedTuple):
    """What is explained: one request, as the history knows it.

    Args:
        label: Name of the kernel in messages.
        file: The file that defines it; "" for none.
        name: The kernel within that file.
        components: Of the request, without compilers and headers.
        headers: What its texts may include.
        texts: Gives the user's texts by component, and where each stands.
        kinds: What components of this kind of kernel are about, by name or by the start of it.
    """

    label: str
    file: str
    name: str
    components: Sequence[Component]
    headers: Sequence[HeaderQuery] = ()
    texts: Callable[[], Mapping[str, tuple[str, Origin]]] = dict
    kinds: Mapping[str, ReasonKind] = {}


class Evidence(NamedTuple):
    """What a miss is explained with.

    Args:
        store: Of the cache; only looked at.
        toolchain: Knows the toolkit's folders.
        damaged: What this process found damaged: why, by key.
        any_compiler: Whether other compilers' code will do.
    """

    store: DiskStore | MemoryStore
    toolchain: Toolchain
    damaged: Mapping[str, str]
    any_compiler: bool


def history_name(subject: Subject) -> str:
    """Name the manifest that is the history of a kernel: its file, from the top of its package on, and its name there.

    Where there is no file (a notebook, a prompt) the folder that the program runs in stands for it.
    """
    entry = next((each.value for each in subject.components if each.name == "entry"), None)
    wanted = entry.get("name") if isinstance(entry, dict) else None
    return derive([component("history", [_in_package(subject.file), subject.name, wanted])])


def _in_package(file: str) -> str:
    """The path of a file from the top of its package on, which is the same in every checkout."""
    folder, name = os.path.split(file)
    while folder and os.path.isfile(os.path.join(folder, "__init__.py")):
        folder, last = os.path.split(folder)
        name = f"{last}/{name}"
    return name or _working_folder()


def _working_folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it is gone
        return ""


def _digest(file: str) -> str:
    return sha256(os.fsencode(file)).hexdigest()[:_DIGITS]


def payloads_of(subject: Subject, components: Sequence[Component]) -> dict[str, bytes]:
    """Make what an entry keeps to explain it: `report`, and `source` where that is not too large."""
    report = {
        "kernel": subject.label,
        "history": history_name(subject),
        "python": sys.implementation.cache_tag,
        "created_s": time.time(),
        "built": built_here(),
        "kinds": subject.kinds,
        "components": [each.record() for each in components],
    }
    texts = {name: text for name, (text, _) in subject.texts().items()}
    source = json.dumps(texts).encode()
    kept = {"source": source} if texts and len(source) <= SOURCE_LIMIT_BYTES else {}
    return {"report": json.dumps(report, default=bytes.hex).encode(), **kept}


def built_here() -> dict[str, str]:
    """Describe what an entry is made on, for people; not which machine: caches and bundles travel."""
    import platform

    python = platform.python_implementation() + " " + platform.python_version()
    return {"system": f"{platform.system()} {platform.release()}", "python": python}


def append(
    store: DiskStore | MemoryStore, subject: Subject, components: Sequence[Component], key: str, family: str
) -> None:
    """Add an entry that was just stored to its kernel's history."""
    record = {"key": key, "family": family, "digests": digests_of(components, subject.kinds)}
    store.add_variant(history_name(subject), {**record, "file": _digest(subject.file)})


def digests_of(components: Sequence[Component], kinds: Mapping[str, ReasonKind]) -> dict[str, str]:
    """Start of each component's digest; not of each function and value of a Python kernel: they may be hundreds."""
    return {each.name: each.digest[:_DIGITS] for each in components if each.name in KINDS or each.name in kinds}


def read_history(name: str, evidence: Evidence) -> list[dict[str, Any]]:
    """Read the records of a kernel's entries; nothing where there are none."""
    try:
        return [each for each in evidence.store.peek_manifest(name) if isinstance(each.get("digests"), dict)]
    except ValueError:  # no name of one
        return []


def history_of(subject: Subject, evidence: Evidence) -> list[dict[str, Any]]:
    """Read the history of a kernel: of this very file; of the same module elsewhere where that has none.

    A program of the same name elsewhere is another program.
    """
    records, file = read_history(history_name(subject), evidence), _digest(subject.file)
    own = [each for each in records if each.get("file") == file]
    return own or ([] if re.match(_PROGRAM, subject.label) else records)


def peek(key: str, evidence: Evidence) -> StoredEntry | None:
    """Read the entry of a key, which a history may have made up."""
    try:
        return evidence.store.peek(key)
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


def kinds_of(report: Mapping[str, Any]) -> dict[str, ReasonKind]:
    """What a report says its components are about; what is no kind is left out."""
    rows = report.get("kinds")
    known = {each.value: each for each in ReasonKind}
    return {name: known[kind] for name, kind in (rows.items() if isinstance(rows, dict) else ()) if kind in known}


def stored_of(entry: StoredEntry) -> Stored:
    """Describe an entry for an explanation."""
    report, header = report_of(entry), entry.header
    numbers = [report.get("created_s"), header.get("compile_time_s")]
    created_s, seconds = (float(each) if isinstance(each, (int, float)) else 0.0 for each in numbers)
    size = len(entry.payloads["cubin"]) if "cubin" in entry.payloads else 0
    return Stored(entry.key, str(report.get("kernel", "")), str(header.get("target", "")), created_s, seconds, size)
