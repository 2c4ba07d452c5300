"""Self-contained HTML pages: a frame, a body, the libraries of ``vendor/`` that it needs, and the data as JSON.

Names are a model's or a file's, so anything may stand in them. They reach a page in one way, as JSON in which no
character of HTML is left, and the page's scripts make text nodes of them. Besides, the page's policy lets nothing run
but the scripts of this package, known by their hashes, and nothing be loaded or sent.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fx2onnx.base.escape import plain

FLAMES = ("vendor/d3-flame-graph.min.js", "vendor/d3-flame-graph.css")
"""Bars inside each other: the library, and its style."""
GRAPHS = ("vendor/cytoscape-dagre.min.js",)
CHARTS = ("vendor/echarts.min.js",)

_HERE = Path(__file__).parent
_GRAPH_STYLE = ".__________cytoscape_container { position: relative; }"
"""The style that Cytoscape.js puts into the page."""


def document(title: str, body: str, data: Any, files: Sequence[str]) -> str:
    """A page as text. It loads nothing from anywhere. ``body`` and ``files`` (scripts and styles, in order) are of this
    package; every page has ``assets/core.js`` before its own scripts.
    """
    styles = [name for name in files if name.endswith(".css")]
    style = "\n".join(_read(name) for name in (*styles, "assets/page.css"))
    scripts = [_read(name).replace("</script", "<\\/script") for name in files if name.endswith(".js")]
    parts = {
        "policy": _policy(scripts, [style, _GRAPH_STYLE]),
        "title": html.escape(plain(title)),
        "style": style,
        "body": _read(body),
        "data": _as_json(data),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    head, *rest = _read("assets/frame.html").split("{{")
    return head + "".join(parts[name] + after for name, after in (piece.split("}}", 1) for piece in rest))


def _read(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], styles: Sequence[str]) -> str:
    """The content security policy of the page: it runs and applies these texts, and no more."""
    own, looks = (" ".join(f"'sha256-{_hash(text)}'" for text in texts) for texts in (scripts, styles))
    rest = "img-src data:; connect-src 'none'; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {own}; style-src {looks}; {rest}"


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _as_json(data: Any) -> str:
    """JSON that has a meaning for no reader of HTML or JavaScript: escapes that readers of JSON undo, ASCII only."""
    text = json.dumps(_shown(data), separators=(",", ":"), allow_nan=False)
    return text.translate({ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&"})


def _shown(value: Any) -> Any:
    """The data with its texts as people read them; None for infinity and what is no number, which JSON has not."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {plain(str(key)): _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list | tuple) else value
