"""The variants that one family of requests has led to, newest first, at most 64.

Promise     Merging never loses a variant that was there, but for the one used longest ago beyond the limit;
            each is there once, by its `key`.
Not here    The meaning of a variant, beyond its `"key"`.
"""

from __future__ import annotations

from typing import Any

MAX_VARIANTS = 64
"""Variants that are kept of a family."""

Variant = dict[str, Any]


def merge(variants: list[Variant], variant: Variant) -> list[Variant]:
    """`variants` with `variant` in front."""
    return [variant, *(each for each in variants if each["key"] != variant["key"])][:MAX_VARIANTS]


def variants_of(header: dict[str, Any]) -> list[Variant]:
    """The variants in a manifest's header.

    Raises:
        ValueError: It does not hold variants.
    """
    variants = header.get("variants")
    if type(variants) is not list or len(variants) > MAX_VARIANTS:
        raise ValueError("holds no list of variants")
    if not all(type(each) is dict and type(each.get("key")) is str for each in variants):
        raise ValueError("holds a variant without a key")
    return variants
