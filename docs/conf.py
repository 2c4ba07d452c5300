"""Sphinx's settings: `make docs` writes the site to out/docs, and any warning is an error."""

import re
from typing import Any

from fx2onnx.base.metadata import VERSION

project = "fx2onnx"
release = version = VERSION
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"fx2onnx {VERSION}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
pygments_dark_style = "github-dark"  # Furo's own underlines names as if they were links
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
suppress_warnings: list[str] = []
exclude_patterns = ["_build"]


def add_contents(app: Any, page: str, source: list[str]) -> None:
    """Make the site's contents from the links of an index, which are plain links so that they work on GitHub as well."""
    if page.split("/")[-1] == "index":
        for heading, links in re.findall(r"^## (.+)\n((?:(?!## ).*\n?)*)", source[0], re.MULTILINE):
            pages = re.findall(r"^[-|] \[[^\]]*\]\(([\w/]+)\.md\)", links, re.MULTILINE)
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```", ""])


def setup(app: Any) -> None:
    """Connect the function above."""
    app.connect("source-read", add_contents)
