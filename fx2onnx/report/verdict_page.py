"""The page of a verification's verdict: each comparison with its error beside what is allowed, and all else that it says."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from fx2onnx.report.document import document


def verdict_page(file: str, source: str, verdict: Mapping[str, Any]) -> str:
    """The page as text. ``verdict`` is ``Verdict.as_dict()``: keys that the page does not know are shown as they are."""
    created = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    data = {"file": file, "source": source, "created": created, "verdict": verdict}
    return document(f"{source} - verification", "assets/verdict.html", data, ("assets/core.js", "assets/verdict.js"))
