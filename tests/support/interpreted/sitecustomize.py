"""Python started with this folder on PYTHONPATH finds no compiled launch module, as where it was not built."""

import sys

sys.modules["numba_kcache.launch.native"] = None  # type: ignore[assignment]
