"""Settings of the documentation site. `make docs` builds it; a build loads nothing from the network, and neither do its pages."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# This file is also used from the folder into which `docs/build.py` gathers the pages.
ROOT = Path(os.environ.get("MHNB_DOCS_ROOT", Path(__file__).parents[1]))
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_extensions")]

import mhnb  # noqa: E402  # found by the path above

project = "mhnb"
author = "The mhnb contributors"
version = release = mhnb.__version__
language = "en"
highlight_language = "ipython"  # a fence without a language is a cell
smartquotes = False  # quotes in help texts are part of commands

extensions = [
  "mhnb_lexer",
  "mhnb_links",
  "mhnb_reference",
  "myst_nb",                # Markdown pages, and notebooks with their outputs
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",    # docstrings in Google's style
]  # fmt: skip
exclude_patterns = ["_extensions", "_static", "README.md"]

# -- links

mhnb_repository = os.environ.get("MHNB_REPOSITORY", "")
"""Address that the path of a file is added to, as https://host/owner/mhnb/blob/main; empty: such files are named, not linked."""

# -- Markdown and notebooks

myst_enable_extensions = [
    "alert",
    "colon_fence",
    "deflist",
    "fieldlist",
]  # alert: `> [!NOTE]` is a box, as on a code host
myst_heading_anchors = 4  # `page.md#a-heading` works as on a code host
nb_execution_mode = "off"  # docs/build.py has executed them, with real ranks
nb_merge_streams = True
nb_render_error_lexer = "myst-ansi"  # messages of mhnb are no tracebacks of IPython
nb_ipywidgets_js = {}  # else a page of a notebook with widgets loads them from another server
nb_mime_priority_overrides = [("html", "text/html", 0)]
suppress_warnings = [
  "mystnb.unknown_mime_type",  # the placeholder of a live view; the HTML beside it is shown
]  # fmt: skip

# -- docstrings

default_role = "code"  # docstrings put code in single backticks
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
nitpicky = True
nitpick_ignore_regex = [
  ("py:.*", r"(?!mhnb).*"),        # names of Python and other projects: their pages are on other servers
  ("py:.*", r"mhnb\.(?!errors).*"),  # internal types in signatures, which have no page
]  # fmt: skip

# -- HTML

html_theme = "pydata_sphinx_theme"
html_title = f"mhnb {release}"
html_static_path = ["_static"]
html_css_files = ["mhnb.css"]
html_js_files = ["mhnb.js"]
html_sidebars = {name: [] for name in ("index", "genindex", "py-modindex", "search")}  # they belong to no section
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
  "logo": {"text": "mhnb"},
  "navbar_align": "left",
  "header_links_before_dropdown": 6,
  "show_toc_level": 2,
  "secondary_sidebar_items": ["page-toc"],
  "footer_start": ["copyright"],
  "footer_end": [],
  "pygments_light_style": "a11y-high-contrast-light",
  "pygments_dark_style": "a11y-high-contrast-dark",
}  # fmt: skip
copyright = author
