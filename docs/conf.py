"""How the site is built: `make docs`."""

import sys
from pathlib import Path

from fedbnsl import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "fedbnsl"
author = "The fedbnsl authors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "numpydoc", "generated_reference"]
exclude_patterns = ["_ext", "results"]
source_suffix = {".md": "markdown"}
# Every heading down to the third level can be linked to, by the name that code hosts give it.
myst_heading_anchors = 3
myst_enable_extensions = ["deflist"]

autosummary_generate = False  # numpydoc loads it; no page uses it
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
# Types in docstrings are words for people: "ndarray of shape (d, d)".
numpydoc_xref_param_type = False
nitpick_ignore_regex = [("py:.*", ".*")]

# Two dashes are an option, not a dash.
smartquotes = False

html_theme = "pydata_sphinx_theme"
html_title = "fedbnsl"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "show_nav_level": 1,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
}
