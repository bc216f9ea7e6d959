"""The interface of a store behind the local one: it transfers whole files by key, and is not trusted.

Promise     A tier stores and returns the bytes of `store.encoding.encode_entry` unchanged. It may fail in any way and
            at any time: its caller (tiers.chain) treats every exception as a miss.
Not here    Verification, back-fill, counting (tiers.chain).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import TypeVar

from ..errors import KCacheError, why_of
from ..keys import sha256
from ..model import NamedTuple
from ..store import ENTRY, FOLDERS, FORMAT, require_key
from .trust import SIGNATURE

Result = TypeVar("Result")

MOST_NAMES = 1 << 20
"""Limit of the names that a server may list."""

_PROBE = b"numba_kcache was here"
_PROBE_NAME = sha256(_PROBE).hexdigest()


LISTING_S = 300.0
"""Longest time for the names that a server lists, in seconds: it may send empty pages for ever."""


def listed(names: Iterable[Result]) -> list[Result]:
    """The names that a server lists.

    Raises:
        ValueError: There are more than `MOST_NAMES`; it may go on for ever.
        TimeoutError: They take longer than `LISTING_S`.
    """
    found = within(LISTING_S, lambda: list(islice(names, MOST_NAMES + 1)), "it lists files without end")
    if len(found) > MOST_NAMES:
        raise ValueError(f"it lists more than {MOST_NAMES} files")
    return found


def within(seconds: float, work: Callable[[], Result], late: str) -> Result:
    """Do work that cannot be interrupted in a thread, which is left alone after some time.

    Raises:
        TimeoutError: The work takes longer, with the message `late`.
        Exception: As `work`.
    """
    results: list[Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(work())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in errors:
        raise error
    if not results:
        raise TimeoutError(late)
    return results[0]


def file_name(kind: int, key: str = "") -> str:
    """The name of a file on a server, or the start of the names of a kind."""
    folder = FOLDERS[kind % SIGNATURE] + (".signatures" if kind > SIGNATURE else "")
    return f"{FORMAT}/{folder}/{key and require_key(key)}"


class Tier:
    """A store behind the local one.

    No method reads more than `store.MAX_FILE_BYTES`, or allocates memory for a claimed size above it. A missing
    file is None; every other failure is an exception of any kind. A file is named by its kind, `ENTRY` or `MANIFEST`,
    and its key; with `tiers.trust.SIGNATURE` added to the kind, it is the signature of that file.

    Attributes:
        name: Its name in reports; holds no secret.
        readonly: Writing is refused, and code of any compiler or for a lower target is accepted from the tier.
        is_remote: It is a server: writes happen in the background.
        is_trusted: Its files need no signature of their own, even if keys are trusted.
    """

    name: str
    readonly = True
    is_remote = is_trusted = False

    def get(self, kind: int, key: str) -> bytes | None:
        """Read a file."""
        raise NotImplementedError

    def put(self, kind: int, key: str, data: bytes) -> None:
        """Write a file."""
        raise OSError(f"{self.name} is read-only")

    def targets(self) -> Sequence[str]:
        """The targets of its code, where it has a list of them."""
        return ()

    def keys(self, kind: int) -> Iterable[str]:
        """List the keys of all entries or manifests, in no order."""
        raise NotImplementedError


class TierReport(NamedTuple):
    """Counts of a tier, of this process or of all processes.

    Args:
        name: Its name in reports.
        readonly: Whether writing is refused.
        hits: Entries that it had and that passed verification.
        misses: Entries that it did not have.
        errors: Operations that failed, and files that arrived damaged.
        bytes_read: Bytes of entries and manifests that arrived.
        bytes_written: Bytes of entries and manifests that it accepted.
        latency_s: Seconds of one operation on average; 0 before the first.
        is_reachable: The last operation succeeded; None before the first.
    """

    name: str
    readonly: bool
    hits: int
    misses: int
    errors: int
    bytes_read: int
    bytes_written: int
    latency_s: float
    is_reachable: bool | None


class Trial(NamedTuple):
    """The outcome of a trial.

    Args:
        seconds: Duration of the slower of writing and reading.
        why: The failure; "" for none.
        hint: The next step for the user, if the tier's error has one.
    """

    seconds: float
    why: str = ""
    hint: str = ""


def round_trip(tier: Tier) -> Trial:
    """Write a small file, which no entry and no manifest can be, and read it back; only read from a read-only tier."""
    slowest_s, kind = 0.0, ENTRY if tier.readonly else ENTRY + SIGNATURE
    try:
        for is_writing in (False,) if tier.readonly else (True, False):
            start = time.perf_counter()
            if is_writing:
                tier.put(kind, _PROBE_NAME, _PROBE)
            elif tier.get(kind, _PROBE_NAME) != _PROBE and not tier.readonly:
                return Trial(slowest_s, "the file that was just written cannot be read")
            slowest_s = max(slowest_s, time.perf_counter() - start)
    except KCacheError as error:
        return Trial(slowest_s, f"{error.what}: {error.why}" if error.why else error.what, error.hint)
    except Exception as error:  # servers, client libraries and disks may raise anything
        return Trial(slowest_s, why_of(error).splitlines()[0])
    return Trial(slowest_s)
