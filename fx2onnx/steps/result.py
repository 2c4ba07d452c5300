"""What ``optimize_model`` gives back: the model, and what was done to it and why not more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from fx2onnx.base.escape import Shown
from fx2onnx.irx.edit import graphs_of
from fx2onnx.judge.verdict import Verdict
from fx2onnx.precision.model import Lowered
from fx2onnx.quantize.model import Quantized


@dataclass
class Size:
    """How large a file is."""

    nodes: int
    weights: int
    model_bytes: int
    data_bytes: int
    operators: dict[str, int]

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.data_bytes


def measured(model: ir.Model, model_bytes: int, data_bytes: int) -> Size:
    """Nodes of nested graphs count, Constants do not: they are weights in another place."""
    nodes = [node for graph in graphs_of(model) for node in graph if node.op_type != "Constant" or node.domain]
    operators = Counter(f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type) for node in nodes)
    weights = sum(value.const_value is not None for value in model.graph.initializers.values())
    return Size(len(nodes), weights, model_bytes, data_bytes, dict(operators.most_common()))


@dataclass
class LeftOut:
    """A rewrite or pass that made the file differ from its input, and where. The file was written without it."""

    name: str
    where: str
    why: str


@dataclass(repr=False)
class OptimizeResult(Shown):
    """The optimised model, where it was written, and the account of it."""

    model: ir.Model
    path: str
    before: Size
    after: Size
    opset: int
    edits: dict[str, int]
    """Of each rewrite and pass, how many."""
    refusals: dict[str, dict[str, int]] = field(default_factory=dict)
    """With ``explain``: of each rewrite, why it was not applied, counted."""
    left_out: list[LeftOut] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    comparison: Verdict | None = None
    quantized: Quantized | None = None
    """With ``quantize``: what became of the weights. The comparison is then with the numbers of the codes."""

    precision: Lowered | None = None
    """With ``dtype``: what computes in 16 bits, and what does not and why. The comparison allows for its rounding."""

    def _shown(self) -> dict[str, Any]:
        return {
            "path": self.path and repr(self.path),
            "nodes": f"{self.before.nodes} -> {self.after.nodes}",
            "bytes": f"{self.before.total_bytes} -> {self.after.total_bytes}",
            "verified": self.verified,
            "warnings": self.warnings,
        }

    @property
    def done_notes(self) -> list[str]:
        """Sentences on what became of the weights and the compute."""
        said = [] if self.quantized is None else self.quantized.notes()
        return said if self.precision is None else [*said, *self.precision.notes(), *self.precision.warnings]

    @property
    def verified(self) -> bool | None:
        """Whether the file was compared with its input and is right; None where it was not, or could not be."""
        return None if self.comparison is None or not self.comparison.rows else self.comparison.ok

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types, without the model."""
        return {
            "file": self.path,
            "opset": self.opset,
            "before": vars(self.before),
            "after": vars(self.after),
            "edits": self.edits,
            "refusals": self.refusals,
            "left_out": [vars(each) for each in self.left_out],
            "warnings": self.warnings,
            "quantized": None if self.quantized is None else self.quantized.as_dict(),
            "precision": None if self.precision is None else self.precision.as_dict(),
            "verified": self.verified,
            "comparison": None if self.comparison is None else self.comparison.as_dict(),
        }
