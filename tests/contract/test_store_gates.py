"""The page that says how the store was tested names every item of the list, and only tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/store-gates.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/\w+/\w+\.py)::(\w+)`", PAGE)))


def test_every_item_of_the_list_has_an_answer() -> None:
    """T1 to T20, each once, with what was asked for, an answer, and a test but for what is not this store's."""
    rows = re.findall(r"^\| (T\d+) \| (.+?) \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)

    assert [name for name, *_ in rows] == [f"T{number}" for number in range(1, 21)]
    assert [name for name, *_, tests in rows if "::test_" not in tests] == ["T16"]


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_named_test_is_there(file: str, name: str) -> None:
    """In the file that the page says."""
    assert re.search(rf"^def {name}\(", (ROOT / file).read_text(), re.MULTILINE)


def test_model_of_the_store_is_there() -> None:
    """The one name on the page that is a class."""
    assert "TestStoreAgainstModel" in PAGE
    assert re.search(
        r"^TestStoreAgainstModel = ", (ROOT / "tests/property/test_store_laws.py").read_text(), re.MULTILINE
    )
