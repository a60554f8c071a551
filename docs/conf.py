"""How Sphinx builds the site: ``make docs``.

The pages are Markdown. The references of commands, settings and the library are generated from
the code when the site is built, so they cannot differ from it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent))

import genesis_fp16  # noqa: E402
from docs import generated_pages  # noqa: E402

project = "genesis-fp16"
release = version = genesis_fp16.__version__
copyright = "the authors of genesis-fp16"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
highlight_language = "text"  # of blocks that name none
html_theme = "furo"
html_title = f"genesis-fp16 {version}"
html_favicon = "../genesis_fp16/api/page/static/icon.svg"
html_copy_source = html_show_sourcelink = False
templates_path: list[str] = []

# Headings have the anchors that GitHub gives them, so that links work in both places.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

# A docstring has code between single backticks, as Markdown has.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
napoleon_use_ivar = True


def setup(app: Sphinx) -> None:
    """Write the generated pages before Sphinx looks for pages."""
    generated_pages.leave_out_bounds()
    app.connect("config-inited", lambda *_: generated_pages.write(DOCS / "reference" / "generated"))
