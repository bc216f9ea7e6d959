"""Suspend garbage collection while Numba fills its registries."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Suspend garbage collection, and move objects made meanwhile to the oldest generation.

    The registries are half a million permanent objects: traversing them repeatedly was 40 % of a first compile.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        is_much = gc.get_count()[0] > gc.get_threshold()[0]  # after the first compile, few objects are made
        if was_enabled and is_much and not gc.get_freeze_count():  # unfreezing would undo the program's own freeze
            gc.freeze()
            gc.unfreeze()  # moves the objects into the oldest generation without traversing them
        if was_enabled:
            gc.enable()
