"""The site's settings: `python3 tasks.py site` builds it, warnings being errors."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

project = "numba_kcache"
copyright = "2026, the numba_kcache developers"
html_theme = "furo"
html_title = "numba_kcache"
html_show_sourcelink = False
html_baseurl = "https://numba-kcache.github.io/numba-kcache/"
html_theme_options = {
    "source_repository": "https://github.com/numba-kcache/numba-kcache/",
    "source_branch": "main",
    "source_directory": "docs/",
}

extensions = [
    "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_design",
    "sphinx_copybutton",
]  # fmt: skip
myst_enable_extensions = ["colon_fence", "deflist", "attrs_inline"]
myst_heading_anchors = 3

default_role = "code"  # docstrings put code between single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_typehints_format = "short"
napoleon_custom_sections = [("Raises, at the first use", "Raises")]
python_maximum_signature_line_length = 88
exclude_patterns = ["_build"]


def _is_field(app, what, name, value, skip, options):
    """Leave out the fields of named tuples: the class says what they are."""
    return True if type(value).__name__ == "_tuplegetter" else None


def setup(app):
    app.connect("autodoc-skip-member", _is_field)
