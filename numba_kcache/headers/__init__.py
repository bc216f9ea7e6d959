"""Headers that CUDA C++ includes: scanned, surveyed, recorded with each entry, and compared at each look-up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..keys import Component
from ..model import NamedTuple


class HeadersRead(NamedTuple):
    """The dependencies of a compile beside its request: the headers that were read.

    Args:
        components: Of the key.
        variant: For the manifest.
        untracked: Reason for which they cannot be tracked; "" where they are.
    """

    components: tuple[Component, ...] = ()
    variant: Mapping[str, Any] = {}
    untracked: str = ""
