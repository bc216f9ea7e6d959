"""Headers of CUDA C++: the transcript of what NVRTC asked the file system in a compile, and its comparison later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..keys import Component
from ..model import NamedTuple


class HeadersRead(NamedTuple):
    """The headers that a compile read, as dependencies of its result.

    Args:
        components: Components that they add to the key.
        row: Fields that they add to the manifest's row.
        untracked: Reason why they cannot be tracked; "" if they are.
    """

    components: tuple[Component, ...] = ()
    row: Mapping[str, Any] = {}
    untracked: str = ""
