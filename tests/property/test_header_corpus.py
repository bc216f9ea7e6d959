"""A maze of headers under random changes: never stale code, few needless compiles. tests/corpus has the long run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.header_corpus import MAZE_STEPS, maze, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 2])
def test_transcript_is_never_stale_in_a_maze(tmp_path: Path, seed: int) -> None:
    """After each change the transcript is compared with the output of a fresh compile."""
    tally = run(maze(tmp_path / "maze", seed), MAZE_STEPS, 50, seed)

    print(tally.report())
    assert tally.stale == []
    assert tally.altered == []
    assert not tally.refused
    assert tally.changing.total() >= 20
    assert len([each for each in tally.needless if not each.startswith("comment")]) <= 4
