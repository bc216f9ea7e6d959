"""What README, docs and examples show is what happens: code blocks and examples run, here without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = [page for page in PAGES if BLOCK.search(page.read_text())]
EXAMPLES = [ROOT / f"examples/{name}.py" for name in ("first_kernels", "numba_kernels", "gemm_module")]


def run(script: Path, directory: Path) -> subprocess.CompletedProcess[str]:
    """The script in a fresh process with a cache of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(directory / "cache"), "PYTHONPATH": path}
    return subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=directory, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("page", SHOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_code_blocks_of_a_page_run(tmp_path: Path, page: Path) -> None:
    """A reader who copies them, one after another, gets no error."""
    script = tmp_path / "blocks.py"
    script.write_text("\n\n".join(BLOCK.findall(page.read_text())))

    done = run(script, tmp_path)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(tmp_path: Path, example: Path) -> None:
    """It exits with 0, and its second process compiles nothing."""
    done = run(example, tmp_path)

    assert done.returncode == 0, done.stderr
    assert re.search(r"second process: .* 0 compiles", done.stdout), done.stdout
