"""The site's settings: `python3 tasks.py site` builds it, warnings being errors."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

project = "numba_kcache"
copyright = "2026, the numba_kcache developers"
html_theme = "furo"
html_title = "numba_kcache"
html_show_sourcelink = False

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

default_role = "code"  # docstrings put code between single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_custom_sections = [("Raises, at the first use", "Raises")]
exclude_patterns = ["_build"]
