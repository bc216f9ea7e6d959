"""The collection of garbage while a Numba fills its registries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Let no garbage be collected, and have what is made meanwhile count as old.

    The registries are half a million objects that stay: walking them again and again was 40 % of a first compile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, which takes no walk
        if was_enabled:
            gc.enable()
