"""Text on a terminal: the same letters, in lines that fit."""

from __future__ import annotations

import io
import random

import pytest

from numba_kcache.observe.console import wrapped
from numba_kcache.observe.text import aligned

LETTERS = "ab /.:-[]0ü火  fine  hint: "


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(text: str) -> str:
    """A text as a terminal has it."""
    return wrapped(text, Terminal())


@pytest.mark.parametrize("columns", [0, 1, 2, 7, 20, 80])
def test_letters_stay_and_lines_fit(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random texts, on terminals of any width: nothing but spaces and ends of lines is added or lost."""
    monkeypatch.setenv("COLUMNS", str(columns))
    chance = random.Random(columns)
    for _ in range(50):
        text = "\n".join("".join(chance.choices(LETTERS, k=chance.randrange(90))) for _ in range(3))
        bare = shown(text)
        assert bare.split() == text.split() or "".join(bare.split()) == "".join(text.split())
        if columns >= 7:
            assert max(len(line.rstrip()) for line in bare.split("\n")) <= columns


def test_long_line_goes_on_under_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are not divided, nor are names in a long path."""
    monkeypatch.setenv("COLUMNS", "40")

    assert shown("fine   nvrtc  13.5 at /opt/venv/lib/python3.11/site-packages/nvidia/libnvrtc.so.13").split("\n") == [
        "fine   nvrtc  13.5 at /opt/venv/lib/",
        "              python3.11/site-packages/",
        "              nvidia/libnvrtc.so.13",
    ]


def test_third_column_that_starts_late_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third column needs a third of the width; otherwise the line continues under the column before it."""
    monkeypatch.setenv("COLUMNS", "60")

    assert shown("  options of a.kernel  04a8ff19a83d  debug false, device false").split("\n") == [
        "  options of a.kernel  04a8ff19a83d  debug false, device",
        " " * 37 + "false",
    ]


@pytest.mark.parametrize("columns", [60, 80, 140])
def test_long_column_of_a_table_hides_no_other(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column keeps its name, and short words stay whole beside names and types of any length."""
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [("kernel", "signature", "target", "took"), ("k" * 90, "float, " * 30, "sm_90", "1.3 ms")]

    bare = shown("\n".join(aligned(rows, (3,))))

    assert all(word in bare for word in ("kernel", "signature", "target", "took", "sm_90", "1.3 ms"))
    assert max(map(len, bare.split("\n"))) <= columns
    assert bare.split("\n")[0].startswith("kernel")


def test_elsewhere_a_text_stays_as_it_is() -> None:
    """In a file or a pipe no line is wrapped."""
    assert wrapped("fine   " + "x" * 200, io.StringIO()) == "fine   " + "x" * 200
