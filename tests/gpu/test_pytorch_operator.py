"""The operator of docs/how-to/pytorch.md on a real device."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[2]
FURTHER = """
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    z = torch.full((1 << 20,), 2.0, device="cuda")
    out = scaled(z, 4.0)
torch.cuda.current_stream().wait_stream(side)
assert out.eq(8).all()
assert scaled(torch.ones(0, device="cuda"), 2.0).numel() == 0
assert scaled(torch.ones(4, 4, device="cuda").t(), 2.0).eq(2).all()
print("differentiated, captured, on another stream")
"""


def test_operator_differentiates_and_goes_into_a_graph(tmp_path: Path) -> None:
    """The page's own blocks, checked by opcheck and a replayed graph; then another stream, and no elements."""
    pytest.importorskip("torch")
    page = (ROOT / "docs/how-to/pytorch.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    script = tmp_path / "operator_of_the_page.py"
    script.write_text("\n\n".join([*blocks, FURTHER]))
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "NUMBA_KCACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": path}

    done = subprocess.run(
        [sys.executable, str(script)], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "differentiated, captured" in done.stdout
