"""A model in 16 bits, and what the report says of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from fx2onnx.base.escape import human_size
from fx2onnx.base.events import record
from fx2onnx.precision.draft import BETWEEN, Draft
from fx2onnx.precision.options import Precision
from fx2onnx.precision.rewrite import carry_out
from fx2onnx.precision.search import Search, keep_unmeasured
from fx2onnx.precision.values import Feeds
from fx2onnx.targets.form import Target

REASONS_NAMED = 6
OUTPUTS_NAMED = 5


@dataclass
class Lowered:
    """The result of a conversion to 16 bits."""

    asked: str
    dtype: str
    io: str
    nodes: dict[str, int] = field(default_factory=dict)
    """The number of nodes that compute in 16 bits, by operator."""
    kept: dict[str, dict[str, str]] = field(default_factory=dict)
    """The nodes in float32, by result: operator, why, and the line that each comes from."""
    weights: dict[str, str] = field(default_factory=dict)
    """Weights in float32 whose numbers ask for it."""
    outputs: dict[str, float] = field(default_factory=dict)
    """The relative distance of each output from the reference on the example inputs."""
    allowed: float = 0.0
    judge: str = ""
    """float64, or the model's own dtype where it is too large for that; empty where nothing was measured."""
    casts: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; what is not finite as text."""
        outputs = {name: error if error < float("inf") else "inf" for name, error in self.outputs.items()}
        return {
            "asked": self.asked, "dtype": self.dtype, "io": self.io, "nodes": self.nodes, "kept": self.kept,
            "weights": self.weights, "outputs": outputs, "allowed": self.allowed, "judge": self.judge,
            "casts": self.casts, "bytes_before": self.bytes_before, "bytes": self.bytes_after,
        }  # fmt: skip

    def notes(self) -> list[str]:
        """The lines for a user: how much is in 16 bits, what stays and why, how far the outputs moved."""
        count = sum(self.nodes.values())
        sizes = f"{human_size(self.bytes_before)} of weights became {human_size(self.bytes_after)}"
        said = [f"{count} nodes in {self.dtype}, {len(self.kept)} in float32, {self.casts} casts: {sizes}"]
        reasons = Counter((each["op"], _kind(each["why"])) for each in self.kept.values())
        for (operator, why), number in reasons.most_common(REASONS_NAMED):
            if why != BETWEEN:
                said.append(f"in float32: {number} {operator}: {why}")
        if self.outputs:
            moved = ", ".join(f"{name} {error:.2%}" for name, error in list(self.outputs.items())[:OUTPUTS_NAMED])
            said.append(f"outputs beside {self.judge}: {moved}")
        return said

    @property
    def warnings(self) -> list[str]:
        """Outputs that are farther off than 16 bits explain."""
        return [
            f"{name} is off by {error:.1%} of its size in {self.dtype}; rounded weights alone explain {self.allowed:.1%}"
            for name, error in self.outputs.items()
            if error > self.allowed
        ]


def lower(model: ir.Model, precision: Precision, target: Target, samples: Sequence[Feeds]) -> Lowered:
    """Have weights and compute of ``model`` in 16 bits, in place; without samples by what is known of the operators alone.

    Raises: UserError E001 where nothing bears a float or an input is beyond the range, E202 and E204 where the opset or the target
    has no such dtype.
    """
    with record("precision"):
        draft = Draft(model, precision, target)
        result = Lowered(precision.dtype, precision.word, draft.io.numpy().name)
        result.bytes_before = _weight_bytes(model)
        if samples:
            measured = Search(draft, samples).run()
            result.outputs, result.allowed, result.judge = measured.outputs, measured.allowed, measured.judge
        else:
            keep_unmeasured(draft)
        result.nodes = dict(draft.counted().most_common())
        result.kept = {node.outputs[0].name or "": _described(node, why) for node, why in draft.kept.items()}
        result.weights = {value.name or "": why for value, why in draft.weights.items()}
        result.casts = carry_out(draft)
        result.bytes_after = _weight_bytes(model)
    return result


def _described(node: ir.Node, why: str) -> dict[str, str]:
    found = {"op": str(node.op_type), "why": why}
    source = node.metadata_props.get("source", "")
    return found | ({"source": source} if source else {})


def _kind(why: str) -> str:
    """The reason without what differs from node to node."""
    if " may reach " in why:
        return f"its values may leave the range ({why.partition(', ')[2]})"
    if why.endswith(" needs it exactly"):
        return f"{why.partition(' ')[0]} below needs it exactly"
    return why


def _weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
