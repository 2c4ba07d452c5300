"""The report, and how far an output is off, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fx2onnx.base.escape import human_size


def summary(report: Mapping[str, Any]) -> str:
    """Strategy, phases with seconds and share, counts, assumptions that may limit the file, and warnings."""
    total = report["seconds"] or 1e-9
    lines = [
        f"exported in {report['seconds']:.3f} s   opset {report['opset']}, {report['nodes_onnx']} nodes "
        f"from {report['nodes_captured']} ATen calls, {human_size(report['file_bytes'])}",
        f"captured by the {report['strategy']} strategy: {report['strategy_reason']}",
    ]
    lines += [f"  {name:<14} {seconds:8.3f} s  {seconds / total:5.0%}" for name, seconds in report["phases"].items()]
    for title, entries in (("assumed", limits(report)), ("warning", report["warnings"])):
        lines += [f"{title}: {entry}" for entry in entries]
    return "\n".join(lines)


def limits(report: Mapping[str, Any]) -> list[str]:
    """The assumptions that may limit the file, each once."""
    pairs = zip(report["assumptions"], report["assumption_details"], strict=True)
    return list(dict.fromkeys(text for text, details in pairs if details["is_limit"]))


MANY_TIMES = 1000


def of_allowed(error: float | None, allowed: float) -> str:
    """An error as a share of what is allowed: ``12%``, ``3.4 times``, ``over 1000 times``; nothing where no number says it."""
    if error is None or not math.isfinite(error) or (error and not allowed):
        return ""
    share = error / allowed if error else 0.0
    if share <= 1:
        return "<0.1%" if 0 < share < 0.0005 else f"{share:.{1 if 0 < share < 0.1 else 0}%}"
    return f"{share:.{1 if share < 10 else 0}f} times" if share < MANY_TIMES else f"over {MANY_TIMES} times"
