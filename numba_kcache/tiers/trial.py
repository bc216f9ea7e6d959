"""Test a tier by writing and reading a small file, and report its error.

Promise     A trial writes one small file, and only to a writable tier. The file's name is always the same, and no entry
            and no manifest can have it.
Not here    The presentation of a failure (doctor).
"""

from __future__ import annotations

import time

from ..errors import KCacheError
from ..keys import sha256
from ..model import NamedTuple
from ..store.entry import ENTRY
from .tier import Tier
from .trust import SIGNATURE

_PROBE = b"numba_kcache was here"
_NAME = sha256(_PROBE).hexdigest()


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
    """Write a small file to a tier and read it back; of a read-only tier, request a file that does not exist."""
    slowest_s, kind = 0.0, ENTRY if tier.readonly else ENTRY + SIGNATURE
    try:
        for is_writing in (False,) if tier.readonly else (True, False):
            start = time.perf_counter()
            if is_writing:
                tier.put(kind, _NAME, _PROBE)
            elif tier.get(kind, _NAME) != _PROBE and not tier.readonly:
                return Trial(slowest_s, "the file that was just written cannot be read")
            slowest_s = max(slowest_s, time.perf_counter() - start)
    except KCacheError as error:
        return Trial(slowest_s, f"{error.what}: {error.why}" if error.why else error.what, error.hint)
    except Exception as error:  # servers, client libraries and disks may raise anything
        return Trial(slowest_s, (str(error) or type(error).__name__).splitlines()[0])
    return Trial(slowest_s)
