"""Results of value ranges for an ONNX file: bounds of its outputs and of their rounding, findings, and the nodes of which nothing is known."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public_methods


@public_methods
@dataclass(frozen=True, slots=True)
class RangeFinding:
    """A fault that an input in the ranges may cause at a node."""

    kind: str
    """``overflow``, ``nan``, ``division`` or ``index``."""
    problem: str
    op_type: str
    node: str
    module: str
    """The module whose forward makes the node."""
    where: str
    """The line of source code."""
    is_shown: bool
    """True if a sampled input causes it; else the bounds cannot rule it out."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class OutputBound:
    """Bounds of one output over all inputs in the ranges."""

    low: float
    high: float
    rounding: float
    """The largest distance between an element in the file's floats and in real numbers."""
    measured: float
    """The same between the runner and float64 on the sampled inputs."""


@public_methods
@dataclass(repr=False)
class ValueRanges(Shown):
    """Bounds and findings of an ONNX file for declared ranges of its inputs."""

    sizes: dict[str, tuple[int, ...]]
    """The shape of each input that the bounds are for."""
    outputs: dict[str, OutputBound] = field(default_factory=dict)
    findings: list[RangeFinding] = field(default_factory=list)
    float16: list[RangeFinding] = field(default_factory=list)
    """Nodes whose numbers may be too large for float16."""
    unknown: dict[str, str] = field(default_factory=dict)
    """Nodes without a bound, by name: their operators, and the reason where there is a rule."""
    lost_at: str = ""
    """The first node whose rounding may be as large as its largest number, with its line: behind it bounds say little."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; what is not finite as text."""
        outputs = {
            name: {key: value if math.isfinite(value) else str(value) for key, value in asdict(bound).items()}
            for name, bound in self.outputs.items()
        }
        return {**asdict(self), "outputs": outputs}

    def _shown(self) -> dict[str, Any]:
        return {"findings": len(self.findings), "float16": len(self.float16), "unknown": len(self.unknown)}
