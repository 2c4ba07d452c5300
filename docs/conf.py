"""Sphinx's settings: `make docs` writes the site to out/docs, and any warning is an error."""

from fx2onnx.base.metadata import VERSION

project = "fx2onnx"
release = version = VERSION
extensions = ["myst_parser"]
html_theme = "furo"
html_title = f"fx2onnx {VERSION}"
html_show_copyright = False
html_show_sphinx = False
myst_heading_anchors = 3
myst_enable_extensions = ["attrs_block"]
suppress_warnings: list[str] = []
exclude_patterns = ["_build"]
