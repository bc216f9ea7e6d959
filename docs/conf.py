"""The site's settings: `python3 tasks.py site` builds it, warnings being errors."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from numba_kcache.frontends import options as types  # noqa: E402
from tests.support.options_page import kinds, meanings  # noqa: E402

project = "numba_kcache"
copyright = "2026, the numba_kcache developers"
html_theme = "furo"
html_title = "numba_kcache"
html_show_sourcelink = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
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
napoleon_custom_sections = [("Raises at the first use", "params_style")]
python_maximum_signature_line_length = 88
exclude_patterns = ["_build"]


def _is_field(app, what, name, value, skip, options):
    """Leave out the fields of named tuples: the class says what they are."""
    return True if type(value).__name__ == "_tuplegetter" else None


TYPES = {
    "numba_kcache.cached_kernel": kinds(types.SourceOptions, types.KernelOptions, types.NumbaOptions),
    "numba_kcache.KernelCache": kinds(types.ProcessSettings),
}
"""The keywords that a name takes as `**options`, and their types."""


def _with_types(app, what, name, value, options, lines):
    """Give each keyword of a docstring its type, and each of a list of options its own meaning and default."""
    known, told, given, is_replaced = TYPES.get(name, {}), meanings(), list(lines), False
    lines.clear()
    for line in given:
        found = re.match(r"    ([a-z_]+(?:, [a-z_]+)*): (.*)", line)
        if found or not line.startswith("        "):
            is_replaced = False
        if not found or not all(each in known for each in found[1].split(", ")):
            if not is_replaced:
                lines.append(line)
            continue
        for each in found[1].split(", "):
            text, is_list = found[2], "," in found[1]
            if is_list and each in told:
                default, meaning = told[each]
                text, is_replaced = f"{meaning[:1].upper()}{meaning[1:]} (default: {default}).".replace("`", "``"), True
            lines.append(f"    {each} ({known[each]}): {text}")


def setup(app):
    app.connect("autodoc-skip-member", _is_field)
    app.connect("autodoc-process-docstring", _with_types, priority=400)  # before napoleon reads it
