"""The report of an export and of its cost, as data."""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fx2onnx.base.escape import Shown, plain
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.sizes.assumptions import Assumed, described, is_limit

if TYPE_CHECKING:
    import onnx_ir as ir

    from fx2onnx.base.events import SpanRecorder
    from fx2onnx.base.memory import MemoryReader
    from fx2onnx.judge.verdict import Verdict
    from fx2onnx.report.profile import Profile


@public_methods
@dataclass(repr=False)
class Report(Shown):
    """The report of an export: the strategy that captured, seconds by phase, sizes, and conditions that were assumed."""

    strategy: str = ""
    strategy_reason: str = ""
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
    """The assumptions of the file, on dynamic sizes above all, with the line; ``str()`` of each says it."""
    mutations: list[str] = field(default_factory=list)
    """Buffers and inputs that forward changes and the file does not."""
    baked: list[str] = field(default_factory=list)
    """Inputs whose sample values are constants of the file."""
    casts: dict[str, int] = field(default_factory=dict)
    """Nodes that stand between casts since the target has no kernel for their dtype: ``bfloat16 MatMul in float`` -> count."""
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences on the requested steps that were done."""
    quantized: dict[str, Any] = field(default_factory=dict)
    """With ``quantize``: each layer's form, bytes and error, what was kept and why, and how far the outputs moved."""
    precision: dict[str, Any] = field(default_factory=dict)
    """With ``dtype``: operators in 16 bits, each node in float32 and why, and how far the outputs are off."""
    functions: dict[str, int] = field(default_factory=dict)
    """With ``functions``: each function, ``domain::Class``, and how often it is called."""
    rewrites: dict[str, int] = field(default_factory=dict)
    """The rewrites and passes of the optimizer, and how often each was applied."""
    resorts: dict[str, str] = field(default_factory=dict)
    """Overloads without an entry in the table, and what took its place: ``decomposition`` or ``torchlib``."""

    verdict: dict[str, Any] = field(default_factory=dict)
    """With ``verify=True``: ``fx2onnx.verify.Verdict.summary()``."""

    def _shown(self) -> dict[str, Any]:
        return {
            "seconds": f"{self.seconds:.3f}",
            "strategy": self.strategy,
            "opset": self.opset,
            "nodes": self.nodes_onnx,
            "bytes": self.file_bytes,
            "warnings": self.warnings,
            "assumptions": list(dict.fromkeys(str(each) for each in self.assumptions if is_limit(each))),
            "notes": self.notes,
        }

    def __str__(self) -> str:
        """Strategy, phases, counts, assumptions and warnings as lines."""
        from fx2onnx.report.text import summary

        return plain(summary(self.as_dict()))

    @property
    def rung(self) -> str:
        """Deprecated: use ``strategy``."""
        return _under_former_name("rung", self.strategy)

    @property
    def rung_reason(self) -> str:
        """Deprecated: use ``strategy_reason``."""
        return _under_former_name("rung_reason", self.strategy_reason)

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types; ``assumption_details`` has the parts of each of ``assumptions``. ``rung`` and ``rung_reason`` are former
        names of ``strategy`` and ``strategy_reason``.
        """
        return asdict(replace(self, assumptions=[])) | {
            "rung": self.strategy,
            "rung_reason": self.strategy_reason,
            "assumptions": [str(assumed) for assumed in self.assumptions],
            "assumption_details": [described(assumed) for assumed in self.assumptions],
        }


def _under_former_name(name: str, value: str) -> str:
    new = name.replace("rung", "strategy")
    warnings.warn(f"Report.{name} is deprecated: use Report.{new}", DeprecationWarning, stacklevel=4)
    return value


@dataclass(frozen=True)
class Measured:
    """The measurements that a profile is made from."""

    source: str
    recorder: SpanRecorder
    memory: MemoryReader | None
    verdict: Verdict | None

    def profile(self, model: ir.Model, report: Report) -> Profile:
        """The profile of the export that made ``model``."""
        from datetime import UTC, datetime

        from fx2onnx.irx.names import graph_outline, weight_outline
        from fx2onnx.report.profile import Profile
        from fx2onnx.report.profile_data import OURS, Export, events_of, machine, tree_of

        events, readings = events_of(tree_of(self.recorder), self.memory)
        return Profile(
            source=self.source,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            machine=machine(),
            exports=[Export(OURS, [events.seconds], events, readings, report.file_bytes, report.nodes_onnx)],
            weights=weight_outline(model),
            graph=graph_outline(model),
            verification=None if self.verdict is None else self.verdict.as_dict(),
            report=report.as_dict(),
        )
