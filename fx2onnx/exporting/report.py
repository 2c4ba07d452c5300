"""What an export did, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fx2onnx.sizes.assumptions import Assumed, described


@dataclass
class Report:
    """What happened: which rung captured, seconds by phase, sizes, what was assumed."""

    rung: str = ""
    rung_reason: str = ""
    attempts: list[str] = field(default_factory=list)
    """Every run of the module: by which strategy, and what made it differ from the one before."""
    opset: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each phase, in order."""
    seconds: float = 0.0
    nodes_captured: int = 0
    nodes_onnx: int = 0
    file_bytes: int = 0
    """Bytes on disk, weights included; 0 where nothing was written."""
    input_names: list[str] = field(default_factory=list)
    output_names: list[str] = field(default_factory=list)
    assumptions: list[Assumed] = field(default_factory=list)
    """What the file takes for true, of dynamic sizes above all, with the line; ``str()`` of each says it."""
    mutations: list[str] = field(default_factory=list)
    """Buffers and inputs that forward changes and the file does not."""
    baked: list[str] = field(default_factory=list)
    """Inputs whose sample values are constants of the file."""
    casts: dict[str, int] = field(default_factory=dict)
    """Nodes that stand between casts since the target has no kernel for their dtype: ``bfloat16 MatMul in float`` -> count."""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was done that was asked for, in sentences."""
    quantized: dict[str, Any] = field(default_factory=dict)
    """With ``quantize``: each layer's form, bytes and error, what was kept and why, and how far the outputs moved."""
    precision: dict[str, Any] = field(default_factory=dict)
    """With ``dtype``: operators in 16 bits, each node in float32 and why, and how far the outputs are off."""
    functions: dict[str, int] = field(default_factory=dict)
    """With ``functions``: each function, ``domain::Class``, and how often it is called."""
    resorts: dict[str, str] = field(default_factory=dict)
    """Overloads without an entry in the table, and what took its place: ``decomposition`` or ``torchlib``."""

    verdict: dict[str, Any] = field(default_factory=dict)
    """With ``verify=True``: ``fx2onnx.verify.Verdict.summary()``."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; ``assumption_details`` has the parts of each of ``assumptions``."""
        return asdict(replace(self, assumptions=[])) | {
            "assumptions": [str(assumed) for assumed in self.assumptions],
            "assumption_details": [described(assumed) for assumed in self.assumptions],
        }
