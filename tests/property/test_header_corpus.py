"""A maze of headers under random changes: never stale code, few needless compiles. tests/corpus has the long run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.header_corpus import MAZE_STEPS, maze, run

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", [1, 2])
def test_header_set_is_never_stale_in_a_maze(tmp_path: Path, seed: int) -> None:
    """After each change the header set is compared with the output of a fresh compile."""
    tally = run(maze(tmp_path / "maze", seed), MAZE_STEPS, 40, seed)

    print(tally.report())
    assert tally.stale == {"mirror": [], "scan": [], "watch": []}
    assert not tally.refused["mirror"]
    assert tally.changing.total() >= 20
    for how in ("mirror", "watch"):
        assert len([each for each in tally.needless[how] if not each.startswith("comment")]) <= 4
