"""Mutated values of every kind in decoded JSON, under right digests: a fixed sample of a few hundred each."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fuzz.fuzz_decoded import READERS, Bases, runs

EACH = 400


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_mutated_values_are_refused_or_mean_what_they_say(
    tmp_path: Path, reader: Callable[[Bases, random.Random], None]
) -> None:
    """Readers raise only the exceptions that they document, and accept nothing that contradicts its code."""
    assert runs(tmp_path, reader, iter(range(EACH))) == EACH
