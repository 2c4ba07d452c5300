"""The report as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def summary(report: Mapping[str, Any]) -> str:
    """Strategy, phases with seconds and share, counts, assumptions and warnings."""
    total = report["seconds"] or 1e-9
    lines = [
        f"exported in {report['seconds']:.3f} s   opset {report['opset']}, {report['nodes_onnx']} nodes "
        f"from {report['nodes_captured']} ATen calls, {report['file_bytes'] / 1e6:.1f} MB",
        f"captured by the {report['strategy']} strategy: {report['strategy_reason']}",
    ]
    lines += [f"  {name:<12} {seconds:8.3f} s  {seconds / total:5.0%}" for name, seconds in report["phases"].items()]
    for title, entries in (("assumed", report["assumptions"]), ("warning", report["warnings"])):
        lines += [f"{title}: {entry}" for entry in entries]
    return "\n".join(lines)
