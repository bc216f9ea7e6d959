"""What happened, as values: every room reports through an `emit` it is handed; observe/ listens.

Promise     An event's `kind` is one of `EventKind`; its `fields` are plain values and never hold a secret.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeAlias


class EventKind(StrEnum):
    """The kinds of events, with the fields that each carries.

    HIT         A resolution was served: kernel, key, target, source ("memory", "disk", ...), compile_time_s,
                load_time_s.
    MISS        A resolution found nothing: kernel, key, target, reason (text) and reasons (`Reason` values).
    WAITED      Another thread or process compiled it meanwhile: kernel, key, waited_s.
    COMPILE_BEGIN / COMPILE_END / COMPILE_FAILED   kernel, key, target, and seconds or error.
    LOAD        A module was loaded on a device: kernel, key, device, load_time_s.
    STORED      An entry was published: key, size_bytes.
    EVICTED     Entries were removed to keep the limits: entries, size_bytes.
    DAMAGED     An entry or manifest failed verification and was moved aside: key, reason.
    UNCACHEABLE A kernel runs uncached: kernel, reason.
    FALLBACK    A kernel is made in another way than was asked for, and works: kernel, target, reason. No error.
    TROUBLE     The cache could not do something and went on without: where, error; errno, where the system said it.
    """

    HIT = "hit"
    MISS = "miss"
    WAITED = "waited"
    COMPILE_BEGIN = "compile_begin"
    COMPILE_END = "compile_end"
    COMPILE_FAILED = "compile_failed"
    LOAD = "load"
    STORED = "stored"
    EVICTED = "evicted"
    DAMAGED = "damaged"
    UNCACHEABLE = "uncacheable"
    FALLBACK = "fallback"
    TROUBLE = "trouble"


class Event(NamedTuple):
    """Something that happened in the cache."""

    kind: EventKind
    fields: Mapping[str, Any] = {}


Emit: TypeAlias = Callable[[Event], None]
"""How a room reports: it is called with one event and must not raise."""


def trouble(where: str, error: object) -> Event:
    """The event of something that the cache could not do."""
    fields: dict[str, Any] = {"where": where, "error": str(error)}
    if isinstance(error, OSError) and error.errno:
        fields["errno"] = error.errno
    return Event(EventKind.TROUBLE, fields)
