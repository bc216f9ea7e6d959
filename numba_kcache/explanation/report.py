"""Read what an entry keeps to explain later misses: its report and the user's texts.

Promise     Nothing that is stored raises an exception here: malformed fields are left out.
Not here    Writing them (history).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..keys import Component
from ..model import BUILT
from ..model.json_values import read_json
from ..model.reason import ReasonKind
from .history import ComponentRecord, Subject, module_of
from .text import Stored

if TYPE_CHECKING:
    from ..model import Origin
    from ..store import StoredEntry

_MAX_TIME_S = 1e11
"""Some three thousand years, the range of the system's calendar functions, in seconds."""


def _json(entry: StoredEntry, name: str) -> dict[str, Any]:
    try:
        found = read_json(entry.payloads[name])
    except (KeyError, ValueError, MemoryError):
        return {}
    return found if isinstance(found, dict) else {}


def report_of(entry: StoredEntry) -> dict[str, Any]:
    """Read the report that `payloads_of` put into an entry; empty if the entry has none."""
    return _json(entry, "report")


def texts_of(entry: StoredEntry) -> dict[str, str]:
    """Read the user's texts in an entry, by component."""
    texts, module = _json(entry, "source"), report_of(entry).get("module")
    return {_as_imported(name, module): text for name, text in texts.items() if isinstance(text, str)}


def records_of(report: Mapping[str, Any]) -> list[ComponentRecord]:
    """Read the component records of a report; malformed ones are left out."""
    rows = report.get("components")
    return [
        (_as_imported(row[0], report.get("module")), row[1], row[2])
        for row in (rows if isinstance(rows, list) else ())
        if isinstance(row, list) and len(row) == 3 and isinstance(row[0], str) and isinstance(row[1], str)
    ]


def records_here(subject: Subject, components: Sequence[Component]) -> list[ComponentRecord]:
    """Make the records of a request's components, as `records_of` would read them from the report of its entry."""
    report = {"module": module_of(subject.file), "components": [each.record() for each in components]}
    return records_of(json.loads(json.dumps(report, default=bytes.hex)))


def texts_here(subject: Subject) -> dict[str, tuple[str, Origin]]:
    """Read the user's texts by component, each with its place."""
    module = module_of(subject.file)
    return {_as_imported(name, module): text for name, text in subject.texts().items()}


def _as_imported(name: str, module: Any) -> str:
    """Replace `__main__` in a component's name by the name under which `numba-kcache explain` imports the file."""
    name = name.replace("__mp_main__", "__main__")
    return name.replace("__main__", module) if module and isinstance(module, str) else name


def kinds_of(report: Mapping[str, Any]) -> dict[str, ReasonKind]:
    """Read the kinds of a report's components; unknown kinds are left out."""
    rows = report.get("kinds")
    known = {each.value: each for each in ReasonKind}
    return {
        name: known[str(kind)] for name, kind in (rows.items() if isinstance(rows, dict) else ()) if str(kind) in known
    }


def facts_of(entry: StoredEntry) -> dict[str, Any]:
    """Read what the details of an entry show of its report, by their fields; malformed fields are empty."""
    report, stored = report_of(entry), stored_of(entry)
    return {
        "created_s": stored.created_s,
        "kernel": stored.kernel,
        "components": tuple(records_of(report)),
    }


def stored_of(entry: StoredEntry) -> Stored:
    """Describe an entry for an explanation."""
    report, header = report_of(entry), entry.header
    numbers = [report.get("created_s"), header.get("compile_time_s")]
    is_known = [isinstance(each, (int, float)) and 0 <= each < _MAX_TIME_S for each in numbers]
    created_s, seconds = (float(each or 0) if known else 0.0 for each, known in zip(numbers, is_known, strict=True))
    size = next((len(entry.payloads[name]) for name in ("cubin", BUILT) if name in entry.payloads), 0)
    return Stored(entry.key, str(report.get("kernel", "")), str(header.get("target", "")), created_s, seconds, size)
