"""Load .ci/house.py, which has the order of the rooms and the checks of imports; HOUSE is this repository's tree."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("house", ROOT / ".ci/house.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


house = _load()
HOUSE = house.House(ROOT)
