"""The mistakes of tests/support/mistakes.py, and docs/messages.md, which lists their messages.

A change of wording is made on purpose: NUMBA_KCACHE_TEST_MESSAGES=write writes the page again. What a compiler says is
another text with its next version, and the page keeps what it has of that.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import tempfile
from pathlib import Path

import pytest

from tests.support import numba_server
from tests.support.compiling import ROOT
from tests.support.fake_driver import build, environment, needs_fake_driver, run
from tests.support.mistakes import MISTAKES, PRELUDE

pytestmark = [needs_fake_driver, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "messages.md"
WRITES = os.environ.get("NUMBA_KCACHE_TEST_MESSAGES") == "write"
TITLES = {
    "source": "What is wrapped",
    "options": "Options",
    "compile": "Compiling",
    "launch": "Launches",
    "arguments": "Arguments",
    "settings": "Settings and the cache",
    "commands": "The command line",
    "no driver": "Without a device",
}
OF_A_COMPILER = r"error: |nvrtc|ptxas"
"""Found in reasons that are a compiler's words."""

COUNT = sum(map(len, MISTAKES.values()))

HEAD = f"""# Messages

Every error states what could not be done, the reason, and the next step. This page lists {COUNT} mistakes of
newcomers with their messages; `tests/integration/test_mistakes.py` makes all of them and checks it. Errors are classes
of `numba_kcache` under `KCacheError`, with the three parts as `.what`, `.why` and `.hint`. The lines use these names:

```text
{PRELUDE.strip()}
```
"""


@functools.cache
def answered(group: str) -> list[dict[str, str]]:
    """Collect the messages for the mistakes of a group, without differences between machines."""
    with tempfile.TemporaryDirectory() as folder:
        env = environment(build(), devices=() if group == "no driver" else (90,))
        env |= {"NUMBA_KCACHE_DIR": f"{folder}/cache", "COLUMNS": "400", "NO_COLOR": "1"}
        if group == "no driver":  # nor is Numba there
            said = run(["-m", "tests.support.mistakes", group], env=env, cwd=Path(folder)).stdout
        else:
            module = "import runpy; runpy.run_module('tests.support.mistakes', run_name='__main__')"
            with contextlib.chdir(folder):
                said = numba_server.output(["-c", module, group], env)
        found: list[dict[str, str]] = json.loads(said.splitlines()[-1])
        return [{name: neutral(text, folder) for name, text in each.items()} for each in found]


def neutral(text: str, folder: str) -> str:
    text = text.replace(os.path.realpath(folder), "/app").replace(folder, "/app")
    text = re.sub(r"\d+\.\d ms", "0.1 ms", text)
    text = re.sub(r"/\S+/numba_kcache-\d+/\w+", "/var/tmp/numba_kcache-1000/2b074bcdffde", text)
    text = re.sub(r"compiles for (sm_\d+, )*sm_\d+", "compiles for ...", text)
    return re.sub(r"\bat 0x[0-9a-f]{6,}", "at 0x7f0000000000", text)


def cell(text: str) -> str:
    """A text in a table: the first paragraph of a compiler's words, on one line."""
    text = text.partition("\n\n")[0].replace("|", "\\|")
    return "<br>".join(f"`` {line} ``" for line in text.split("\n") if line.strip(" ^"))


def rows(group: str) -> list[tuple[str, ...]]:
    return [
        tuple(
            cell(text.replace(f"{ROOT}/", "/site-packages/"))
            for text in (each["written"], f"{each['kind']}: {each['what']}", each["why"], each["hint"])
        )
        for each in answered(group)
    ]


def page() -> str:
    """docs/messages.md as it should be."""
    parts = [HEAD]
    for group, title in TITLES.items():
        lines = [f"| {' | '.join(row)} |" for row in rows(group)]
        parts.append(
            "\n".join([f"\n## {title}\n", "| written | what | why | next step |", "| --- | --- | --- | --- |", *lines])
        )
    return "\n".join(parts) + "\n"


@pytest.mark.parametrize("group", MISTAKES)
def test_each_mistake_is_answered_by_what_why_and_the_next_step(group: str) -> None:
    """`cannot ...: why`, in lower case and without a full stop, and a hint; whoever is asked."""
    for each in answered(group):
        said = f"{each['written']}\n{each}"
        assert each["what"].startswith("cannot "), said
        assert each["why"].strip(), said
        assert each["hint"].strip(), said
        assert not each["hint"].rstrip().endswith("."), said
        assert each["hint"] != each["why"], said
        assert not re.search(
            r"<locals>|Traceback|\bErrno\b|object at 0x|__main__|NoneType'|a int\b",
            each["what"] + each["why"] + each["hint"],
        ), said


@pytest.mark.parametrize("group", MISTAKES)
def test_page_of_messages_shows_what_is_said(group: str) -> None:
    """The page has the messages word for word, except for the words of compilers."""
    if WRITES and group == "source":
        PAGE.write_text(page(), encoding="utf-8")
    text = PAGE.read_text(encoding="utf-8")
    section = text.partition(f"\n## {TITLES[group]}\n")[2].partition("\n## ")[0]
    shown = [tuple(line.strip("| ").split(" | ")) for line in section.splitlines() if line.startswith("| `")]

    for row, found in zip(rows(group), shown, strict=True):
        assert without_compilers(row) == without_compilers(found)


def without_compilers(row: tuple[str, ...]) -> tuple[str, ...]:
    """A row without its reason, if that is a compiler's message."""
    return (*row[:2], "" if re.search(OF_A_COMPILER, row[2]) else row[2], *row[3:])


def test_page_of_messages_has_all_groups() -> None:
    """The page has the number of mistakes that it states, at least eighty, and defines the names that its lines use."""
    assert PAGE.read_text(encoding="utf-8").startswith(HEAD)
    assert len({each for group in MISTAKES.values() for each in group}) == COUNT >= 80
