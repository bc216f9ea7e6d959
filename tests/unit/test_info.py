"""Advice of info() beside its figures: for repeated misses, limits that are reached, and trouble."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from numba_kcache.model import Counts
from numba_kcache.model.reason import ReasonKind
from numba_kcache.observe.info import CacheInfo
from numba_kcache.observe.text import REASONS, bytes_text, entries_text, reason_text, seconds_text
from numba_kcache.tiers.tier import TierReport

TIER = TierReport("team", True, 3, 1, 0, 100, 0, 0.5, True)


def info(*tiers: TierReport, reasons: Mapping[str, int] = MappingProxyType({}), **counts: Any) -> CacheInfo:
    figures = {"reasons": dict(reasons), **Counts.of(counts).as_dict()}
    return CacheInfo("lifetime", "/c", 1, 1, 10, tiers=tiers, **figures)


def test_each_kind_of_reason_has_words() -> None:
    """A report names no member of an enumeration."""
    assert {kind.value for kind in ReasonKind} == set(REASONS)
    assert not [kind for kind in REASONS if "_" in kind and kind in reason_text(kind)]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({}, []),
        ({"hits": 90, "misses": 10}, []),
        ({"hits": 1, "misses": 18}, []),
        ({"hits": 9, "reasons": {"never_stored": 90, "options": 20}}, ["again and again", "a compile option changed"]),
        ({"misses": 100, "reasons": {"never_stored": 60, "target": 40}}, []),
        ({"hits": 1, "evictions": 5}, ["5 entries were removed", "NUMBA_KCACHE_MAX_SIZE", "max_entries"]),
        ({"hits": 1, "errors": 2}, ["trouble 2 times", "numba-kcache doctor"]),
    ],
    ids=["nothing yet", "high rate", "too few to say", "repeated", "warmed up", "evictions", "errors"],
)
def test_info_says_what_to_do_where_something_is_amiss(counts: dict[str, int], words: list[str]) -> None:
    """Text, HTML and JSON have the next step; without a problem there is none."""
    found = info(**counts)

    assert bool(found.advice) == bool(words)
    assert all(each in " ".join(found.advice) for each in words)
    assert str(found).count("hint: ") == len(found.advice)
    assert found._repr_html_().count("hint: ") == len(found.advice)
    assert json.loads(json.dumps(found.to_dict()))["advice"] == list(found.advice)


def test_info_of_an_empty_cache_has_no_averages() -> None:
    """Without compiles and loads there are no times or shares; the counts 1 and 2 are written as "once" and "twice"."""
    text = str(info())

    assert "on average" not in text
    assert "0 us" not in text
    assert re.search(r"hits +0\n", text)
    assert "1 entry was removed" in str(info(evictions=1))
    assert "trouble once: " in str(info(errors=1))
    assert "1 hit, 1 miss, 1 error" in str(info(TIER._replace(hits=1, errors=1)))


def test_info_tells_of_each_tier() -> None:
    """A row for each, and everything in the dict."""
    found = info(TIER)

    assert "team, read-only: answers in 500.0 ms; 3 hits" in str(found)
    assert json.loads(json.dumps(found.to_dict()))["tiers"] == [TIER._asdict()]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (bytes_text(1023), "1023 B"), (bytes_text(1536), "1.5 KiB"), (bytes_text(5 << 40), "5120.0 GiB"),
        (seconds_text(85e-6), "85 us"), (seconds_text(0.0021), "2.1 ms"), (seconds_text(8.5), "8.5 s"),
        (seconds_text(190), "3 min 10 s"), (entries_text(1), "1 entry"), (entries_text(0), "0 entries"),
    ],
)  # fmt: skip
def test_figures_are_written_as_people_read_them(text: str, wanted: str) -> None:
    """Units fit the size; "1 entry" is singular."""
    assert text == wanted
