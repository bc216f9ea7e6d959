"""Sum the files that processes appended their counts to (counters), fold the old ones into one, and clear them.

Method      The sum of the files that are folded, and their names, are written to `total` in one publish; then they are
            removed. A file named in `total` is not read again. Of counters with a label (`group/label`), a fold keeps
            the 20,000 highest of each group; of the group `day`, the latest days.
Faults      counters.summed, .folded, .dropped (tests/crash kills here).
"""

from __future__ import annotations

import json
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress

from ..model import Emit, trouble
from . import try_flock, unlock
from .counters import Counts
from .faults import reached
from .folders import Folder

MOST_LABELS = 20_000
_PROCESS_FILE = r"[0-9]{1,10}-[0-9a-f]{16}\.jsonl"
_MAX_FILE_BYTES = 64 << 20
_MAX_COUNT = 1e15


def read(folder: Folder, emit: Emit) -> Counts:
    """The sums of all that was added."""
    try:
        for _ in range(8):  # a fold between the two reads would hide the counts that it moved
            before = _total_identity(folder)
            total, folded = _read_total(folder, emit)
            counts = _sum([total, *_read_files(folder, emit, _process_files(folder) - folded)])
            if _total_identity(folder) == before:
                break
        return counts
    except OSError as error:
        emit(trouble("counters", error))
        return {}


def clear(folder: Folder, emit: Emit) -> bool:
    """Remove all counts. Returns True if none is left. Counts that others add meanwhile may be removed as well."""
    try:
        for name in [*sorted(_process_files(folder)), "total"]:
            with suppress(FileNotFoundError):
                folder.unlink(name)
    except FileNotFoundError:  # nothing was ever counted
        pass
    except OSError as error:
        emit(trouble("counters", error))
        return False
    return True


def fold(folder: Folder, emit: Emit, stale_s: float) -> None:
    """Sum the files that no process appends to any more into `total`.

    Args:
        stale_s: Age, in seconds, from which a file counts as no longer written to.
    """
    try:
        lock = folder.open("fold.lock", os.O_RDWR | os.O_CREAT)
        try:
            try_flock(lock)
            os.utime(lock)
            _fold(folder, emit, os.fstat(lock).st_mtime - stale_s)
        except BlockingIOError:
            pass
        finally:
            unlock(lock)  # closing is not enough: a child forked meanwhile has the file open, too
            os.close(lock)
    except OSError as error:
        emit(trouble("counters", error))


def _fold(folder: Folder, emit: Emit, stale_before_s: float) -> None:
    total, folded = _read_total(folder, emit)
    present = _process_files(folder)
    stale = {name for name in present - folded if folder.status(name).st_mtime < stale_before_s}
    if stale:
        total = _bounded(_sum([total, *_read_files(folder, emit, stale)]))
        reached("counters.summed")
        record = {"counts": total, "folded": sorted(stale | (folded & present))}
        folder.publish("total", json.dumps(record).encode("ascii"), durability="data", time_ns=time.time_ns())
        reached("counters.folded")
    for name in stale | (folded & present):
        folder.unlink(name)
        reached("counters.dropped")


def _process_files(folder: Folder) -> set[str]:
    return {name for name in folder.names() if re.fullmatch(_PROCESS_FILE, name)}


def _total_identity(folder: Folder) -> tuple[int, int] | None:
    try:
        status = folder.status("total")
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def _read_total(folder: Folder, emit: Emit) -> tuple[Counts, set[str]]:
    try:
        record = json.loads(_read(folder, "total"))
        return _checked(record["counts"]), {str(name) for name in record["folded"]}
    except FileNotFoundError:
        return {}, set()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        emit(trouble("counters", error))
        return {}, set()


def _read_files(folder: Folder, emit: Emit, names: Iterable[str]) -> list[Counts]:
    counts = []
    for name in names:
        try:
            text = _read(folder, name)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # not a file, or owned by an untrusted user
                emit(trouble("counters", error))
            continue
        for line in text.split(b"\n"):
            try:
                if line:
                    counts.append(_checked(json.loads(line)))
            except (ValueError, TypeError, RecursionError):
                continue  # torn by a crash or a full disk
    return counts


def _read(folder: Folder, name: str) -> bytes:
    fd = folder.open(name, os.O_RDONLY)
    try:
        return os.read(fd, min(os.fstat(fd).st_size, _MAX_FILE_BYTES))
    finally:
        os.close(fd)


def _checked(record: object) -> Counts:
    if type(record) is not dict:
        raise ValueError("not counts")
    for value in record.values():
        if type(value) not in (int, float) or not -_MAX_COUNT <= value <= _MAX_COUNT:
            raise ValueError("not a count")
    return record


def _sum(many: Iterable[Counts]) -> Counts:
    total: defaultdict[str, float] = defaultdict(int)
    for counts in many:
        for name, value in counts.items():
            total[name] = max(-_MAX_COUNT, min(total[name] + value, _MAX_COUNT))
    return dict(total)


def _bounded(counts: Counts) -> Counts:
    """The counts, reduced to the limit of labels: the smallest of each group and the oldest days are dropped."""
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for name in counts:
        if "/" in name:
            groups[name.partition("/")[0]].append(name)
    for group, names in groups.items():
        names.sort(key=None if group == "day" else counts.__getitem__)
        for name in names[:-MOST_LABELS]:
            del counts[name]
    return counts
