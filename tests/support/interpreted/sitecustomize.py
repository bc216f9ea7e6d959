"""Hide the compiled launch module from every Python that is started with this folder on PYTHONPATH."""

import sys

sys.modules["numba_kcache.launch.native"] = None  # type: ignore[assignment]
