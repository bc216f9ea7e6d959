"""The reference pages list every event, setting, option and verb, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import numba_kcache
from numba_kcache import EventKind, KernelCache, cached_kernel
from numba_kcache.frontends import options
from numba_kcache.model import Event
from numba_kcache.settings import SETTINGS, Settings
from tests.support import options_page
from tests.support.cli_page import section, verbs
from tests.support.compiling import EMPTY

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def events_of_the_page() -> dict[str, set[str]]:
    """The fields of each kind of event, by the table of the page."""
    page = (REFERENCE / "cache.md").read_text(encoding="utf-8").partition("\n## Events and the log\n")[2]
    rows = [line.split("|")[1:-1] for line in page.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): set(re.findall(r"`(\w+)`", row[2])) for row in rows}


def test_every_kind_of_event_is_documented() -> None:
    """The table lists exactly the kinds of events."""
    assert set(events_of_the_page()) == {str(kind) for kind in EventKind}


def test_table_of_settings_is_the_one_in_the_code() -> None:
    """Keyword, variable, default and meaning of each setting, in the order of the code, and no other row."""
    page = (REFERENCE / "settings.md").read_text(encoding="utf-8")
    rows = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in page.splitlines() if "_KCACHE_" in line]
    table = [
        (f"`{each.name}`", f"`{each.variable}`", f"`{getattr(Settings(), each.name)}`", each.meaning)
        for each in SETTINGS
    ]

    assert [row for row in rows if len(row) == 4] == table


def test_every_option_has_a_type_a_default_and_an_example() -> None:
    """The page is generated from the code: `python -m tests.support.options_page` writes it."""
    of_kernels = options_page.kinds(options.SourceOptions, options.KernelOptions, options.NumbaOptions)

    assert {*options_page.SOURCE_OPTIONS, *options_page.OF_NUMBA} == options_page.documented(of_kernels)
    assert set(options_page.OF_SETTINGS) == {each.name for each in SETTINGS}
    assert options_page.PAGE.read_text(encoding="utf-8") == options_page.page()


def test_every_public_name_is_in_the_reference() -> None:
    """The page of names shows the docstring of each public name, and no others of the package."""
    page = (REFERENCE / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\.\. auto\w+:: ([\w.]+)", page, re.MULTILINE)

    assert sorted(name for name in shown if "." not in name) == numba_kcache.__all__
    assert len(shown) == len(set(shown))


def test_events_carry_only_documented_fields(tmp_path: Path) -> None:
    """The events of a compile, a hit and a failure have the fields that the page lists."""
    heard: list[Event] = []
    for source in (EMPTY, EMPTY, "nonsense"):
        cache = KernelCache(tmp_path, durability="none")
        cache.subscribe(heard.append)
        try:
            cached_kernel(source, name="k", arch="sm_90", cache=cache).compile()
        except Exception:
            assert source == "nonsense"
    told = events_of_the_page()

    assert {each.kind for each in heard} >= {"miss", "hit", "compile_begin", "compile_end", "compile_failed", "stored"}
    for each in heard:
        assert set(each.fields) <= told[each.kind], each


@pytest.mark.parametrize("verb", verbs())
def test_verb_is_documented_as_its_help_says(verb: str) -> None:
    """The page has description and arguments word for word; `python -m tests.support.cli_page` prints them."""
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")

    assert section(verb, verbs()[verb]) in page


def test_page_has_no_other_verb() -> None:
    """The page has no section for a verb that does not exist."""
    page = (REFERENCE / "cli.md").read_text(encoding="utf-8")

    assert re.findall(r"(?m)^## (.+)$", page) == list(verbs())
