"""Labelled counts by day, entry and reason: bounded, and readable from the counters."""

from __future__ import annotations

from pathlib import Path

import pytest

from numba_kcache import engine
from numba_kcache.engine import Statistics
from numba_kcache.model import Event, EventKind
from numba_kcache.model.reason import Reason, ReasonKind
from numba_kcache.observe.info import history_of
from numba_kcache.store import counters
from tests.support.stores import Clock, counters_of, key_of

DAY_S = 86400.0
NOON = 1_795_262_400.0  # 2026-11-21 12:00 UTC


def hit(key: str) -> Event:
    return Event(EventKind.HIT, {"key": key, "source": "disk", "compile_time_s": 2.0, "load_time_s": 0.5})


def test_counts_belong_to_the_day_on_which_they_are_reported() -> None:
    """Hits, misses and time saved of each day, in order, beside the totals."""
    clock = Clock(NOON)
    kept = Statistics(clock)
    sums: dict[str, float] = {}
    for hits in (1, 2):
        for _ in range(hits):
            kept.heard.append(hit(key_of(1)))
        for name, value in kept.take_unsaved().items():
            sums[name] = sums.get(name, 0) + value
        clock.now_s += DAY_S
    days = history_of(sums).days

    assert [(day.date, day.counts.hits, day.counts.time_saved_s) for day in days] == [
        ("2026-11-21", 1, 1.5),
        ("2026-11-22", 2, 3.0),
    ]
    assert sums["hits"] == 3


def test_hits_are_counted_for_each_entry_and_reasons_for_each_miss() -> None:
    """The commonest kind first; a kind counts once in a miss, however many reasons of it there are."""
    kept = Statistics()
    for number in (1, 1, 2):
        kept.heard.append(hit(key_of(number)))
    option, source = Reason(ReasonKind.OPTIONS, new="1"), Reason(ReasonKind.SOURCE_CHANGED)
    for reasons in ((source,), (option, source, option._replace(new="2"))):
        kept.heard.append(Event(EventKind.MISS, {"reason": "text", "reasons": reasons}))
    found = history_of(kept.take_unsaved())

    assert found.hits == {key_of(1)[:16]: 2, key_of(2)[:16]: 1}
    assert list(found.reasons.items()) == [("source_changed", 2), ("options", 1)]
    assert kept.take_unsaved() == {}


def test_counts_of_tiers_are_saved_once_and_not_by_a_child() -> None:
    """Counts that a fork copied are saved by the parent."""
    kept = Statistics()
    kept.heard.append(Event(EventKind.LOAD, {"stored": True, "load_time_s": 0.25}))
    kept.sums["tier/toy/hits"] += 6
    assert history_of(saved := kept.take_unsaved()).days[0].counts.time_saved_s == -0.25
    assert (saved["tier/toy/hits"], kept.take_unsaved()) == (6, {})
    kept.sums["tier/toy/hits"] += 2
    assert kept.take_unsaved() == {"tier/toy/hits": 2}
    kept.sums["tier/toy/hits"] += 4

    kept.after_fork()

    assert kept.take_unsaved() == {}
    kept.sums["tier/toy/hits"] += 1
    assert kept.take_unsaved() == {"tier/toy/hits": 1}


def test_what_a_process_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that resolves a million kernels keeps a limited number of labels, whose counts go on."""
    monkeypatch.setattr(engine, "MOST_NAMES", 7)
    kept = Statistics()
    for number in (*range(10), 0):
        kept.heard.append(hit(key_of(number)))
    found = history_of(kept.take_unsaved())

    assert found.hits == {key_of(0)[:16]: 2, key_of(1)[:16]: 1, key_of(2)[:16]: 1}


@pytest.mark.parametrize(
    "name", ["hits/../../etc", "hits/", "day/x/hits", "day/2026-11-21", "reason/", "unknown/a", "hits"]
)
def test_name_of_no_known_form_is_passed_over(name: str) -> None:
    """Names of a later version, and forged ones, are ignored."""
    found = history_of({name: 1.0})

    assert (found.hits, found.reasons) == ({}, {})
    assert all(day.counts.as_dict() == type(day.counts)().as_dict() for day in found.days)


def test_fold_keeps_the_labels_that_count_most_and_the_latest_days(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters do not grow without bound; names without a label are never dropped."""
    monkeypatch.setattr(counters, "MOST_LABELS", 2)
    monkeypatch.setattr(counters, "FOLD_BYTES", 0)
    kept = counters_of(tmp_path)
    kept.add({"hits": 9, "misses": 1, "compiles": 1, "hits/a": 1, "hits/b": 5, "hits/c": 3})
    kept.add({"day/2026-01-01/hits": 100, "day/2026-01-02/hits": 1, "day/2026-01-03/hits": 1})
    kept.fold()

    assert kept.read() == {
        "hits": 9, "misses": 1, "compiles": 1, "hits/b": 5, "hits/c": 3,
        "day/2026-01-02/hits": 1, "day/2026-01-03/hits": 1,
    }  # fmt: skip
