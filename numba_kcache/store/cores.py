"""Count the cores that this process may use: as many compilers run at once on a node.

Source      sched_getaffinity(2); cgroups(7): `cpu.max` of version 2, quota and period in microseconds, "max" for none;
            in a container its own group is the root of what it sees.
"""

from __future__ import annotations

import os
from contextlib import suppress

_LIMIT = "/sys/fs/cgroup/cpu.max"


def cores(limit: str = _LIMIT) -> int:
    """Count the cores of the affinity, or of the group's share of time where that is less; at least 1.

    Args:
        limit: File with the quota of the group.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError, ZeroDivisionError), open(limit, encoding="ascii") as file:
        quota, period = map(int, file.read().split())
        found = min(found, -(-quota // period))
    return max(1, found)
