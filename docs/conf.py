"""The site: the same Markdown, built by Sphinx with MyST. ``sphinx-build -W -b html docs site``.

Pages are plain Markdown that reads well without the site. What only Sphinx needs, the tree of pages, is made here from
the lists of links that people read: a page named in the list of its folder's index is in the site.
"""

# ruff: noqa: INP001, A001 - Sphinx finds this file by its name, and reads these names

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import logscope

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "logscope"
author = "the logscope authors"
copyright = "the logscope authors"
version = release = logscope.__version__
extensions = ["myst_parser"]
exclude_patterns = ["_tools", "**/__pycache__"]
html_theme = "furo"
html_title = f"logscope {release}"
html_show_sourcelink = False
# Headings can be linked to as on GitHub.
myst_heading_anchors = 3
# Every reference must lead somewhere.
nitpicky = True

_LINK = re.compile(r"\]\((?!\w+:)([\w./-]+)\.md\)")


def _add_tree(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the tree of the pages an index names, hidden: the list itself is what people see."""
    if page.rpartition("/")[2] != "index":
        return
    here = Path(app.srcdir, page).parent
    named = list(dict.fromkeys(_LINK.findall(source[0])))
    inside = [name for name in named if not name.startswith("..") and (here / f"{name}.md").exists()]
    if page == "reference/index":
        inside += sorted(f"../rules/{path.stem}" for path in Path(app.srcdir, "rules").glob("*.md"))
    source[0] += "\n```{toctree}\n:hidden:\n" + "\n".join(inside) + "\n```\n"


def setup(app: Sphinx) -> None:
    """Let Sphinx call us for every page it reads."""
    app.connect("source-read", _add_tree)
