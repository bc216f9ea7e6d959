"""Count the cores that this process may use, which is the number of compilers that run at once on a node.

Source      sched_getaffinity(2); cgroups(7): `cpu.max` of version 2 has quota and period in microseconds; "max" is no
            quota. A container sees its own cgroup as the root.
"""

from __future__ import annotations

import os
from contextlib import suppress

_LIMIT = "/sys/fs/cgroup/cpu.max"


def cores(limit: str = _LIMIT) -> int:
    """Count the cores of the process's affinity, or of the cgroup's quota if that is less; at least 1.

    Args:
        limit: File with the quota of the cgroup.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError, ZeroDivisionError), open(limit, encoding="ascii") as file:
        quota, period = map(int, file.read().split())
        found = min(found, -(-quota // period))
    return max(1, found)
