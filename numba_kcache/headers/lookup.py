"""Find the key of a request whose texts include files, by the transcripts in the index of its kernel.

Promise     A key is returned only if every answer that the compile got is unchanged. The index only lists which
            transcripts to try: the key is derived again from the one that matches.
Method      ccache's direct mode. The index keeps several rows, so that switching a branch back is a hit. Code that may
            contain the path of an include folder is a hit only if the same folder is searched again.
Not here    The value of a transcript (transcript), comparing it (check), and recording it (record).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..keys import Component, derive
from ..model import NamedTuple
from . import HeadersRead
from .check import Match, check_transcript
from .roots import Roots, located
from .transcript import Transcript, transcript_components, transcript_from_json, transcript_to_json

if TYPE_CHECKING:
    from ..store import StoredRow


class Row(NamedTuple):
    """The headers in a row of the index of a kernel.

    Args:
        transcript: What the compile asked the file system.
        paths: The folders whose paths its code may contain.
    """

    transcript: Transcript
    paths: list[Any]


Index = Iterable[Mapping[str, Any]]
"""The rows of one kernel as they are stored, newest first."""


class FoundKey(NamedTuple):
    """The outcome of a look-up by transcripts.

    Args:
        key: The key derived from the transcript that matches; None if none matches.
        renewed: The row with newer stats if contents had to be compared.
        stored: The row, as it is stored.
    """

    key: str | None
    renewed: StoredRow | None = None
    stored: StoredRow | None = None


def find_key(index: Index, components: Sequence[Component], roots: Roots, *, any_compiler: bool) -> FoundKey:
    """Find the first row whose headers are unchanged, and derive its key.

    Args:
        index: The rows of the kernel.
        components: The components of the request, without headers.
        roots: The folders that are searched for headers; without the toolkit's, if that of any compiler will do.
        any_compiler: Code of any compiler is accepted.
    """
    request, now_ns = derive(components), time.time_ns()
    for stored in index:
        if stored.get("request") != request and not any_compiler:
            continue
        try:
            row = read_row(stored)
        except ValueError:
            continue
        outcome = _checked(row, roots, now_ns, any_compiler=any_compiler)
        if outcome is not None:
            key, renewed = str(stored.get("key")), None
            if stored.get("request") == request:
                key = derive((*components, *transcript_components(*row)))
            if outcome.refreshed is not None:
                renewed = {**stored, "transcript": transcript_to_json(outcome.refreshed)}
            return FoundKey(key, renewed, dict(stored))
    return FoundKey(None)


def is_unchanged(stored: Mapping[str, Any], roots: Roots) -> bool:
    """Check whether the headers of a row are as they were."""
    return _checked(read_row(stored), roots, time.time_ns()) is not None


def _checked(row: Row, roots: Roots, now_ns: int, *, any_compiler: bool = False) -> Match | None:
    """Compare the headers of a row; None if one differs, or is elsewhere and the code contains its path."""
    if not all(is_there_still(each, roots) for each in row.paths):
        return None
    if row.transcript.own > len(roots.own) and not roots.working:
        roots = roots.with_working()  # a forced header was in the working directory
    outcome = check_transcript(row.transcript, roots, now_ns=now_ns, any_compiler=any_compiler)
    return outcome if isinstance(outcome, Match) else None


def read_row(stored: Mapping[str, Any]) -> Row:
    """Read a stored row.

    Raises:
        ValueError: It has no transcript, or is not one that could have been stored.
    """
    paths = stored.get("paths", [])
    if not isinstance(paths, list):
        raise ValueError("not the row of a kernel with headers")
    return Row(transcript_from_json(stored.get("transcript")), paths)


def headers_of(stored: Mapping[str, Any]) -> HeadersRead:
    """Make the headers of a stored row, or of one without any."""
    if "transcript" not in stored:
        return HeadersRead()
    row = read_row(stored)
    return HeadersRead(transcript_components(*row), {"transcript": stored["transcript"], "paths": row.paths})


def without_stats(stored: StoredRow) -> StoredRow:
    """Make the row for other machines, without inodes and times, which are meaningless there."""
    if "transcript" not in stored:
        return stored
    transcript = read_row(stored).transcript
    toolkit = transcript.toolkit and transcript.toolkit._replace(stat="")
    return {**stored, "transcript": transcript_to_json(transcript._replace(stats={}, toolkit=toolkit))}


def is_there_still(path: object, roots: Roots) -> bool:
    """Check whether a folder whose path the code contains has the same number in the search as at compile time."""
    return any(path == [number, folder] for number, folder in located(roots))
