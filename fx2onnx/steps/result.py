"""The arguments of ``optimize_model``, and what an optimized file comes with."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx_ir as ir

from fx2onnx.base.escape import Shown
from fx2onnx.base.metadata import DERIVATION, derivation_text
from fx2onnx.base.stack_frames import public_methods
from fx2onnx.files.digest import sha256_of_file
from fx2onnx.irx.edit import graphs_of
from fx2onnx.irx.io import to_proto
from fx2onnx.judge.verdict import Verdict
from fx2onnx.optimize.driver import AppliedEdit
from fx2onnx.precision.model import Lowered
from fx2onnx.precision.options import Precision
from fx2onnx.quantize.model import Quantized
from fx2onnx.quantize.options import Quantize
from fx2onnx.steps.coarser import Drawn
from fx2onnx.steps.list import Wanted
from fx2onnx.steps.opened import Opened
from fx2onnx.targets.form import DEFAULT, Target, chosen_opset, find


@dataclass
class Size:
    """The size of a file."""

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


@public_methods
@dataclass(repr=False)
class OptimizeResult(Shown):
    """The optimized model, where it was written, and the account of it."""

    model: ir.Model
    path: str
    before: Size
    after: Size
    opset: int
    edits: dict[str, int]
    """The number of edits by each rewrite and pass."""
    refusals: dict[str, dict[str, int]] = field(default_factory=dict)
    """With ``explain``: of each rewrite, why it was not applied, counted."""
    left_out: list[LeftOut] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    comparison: Verdict | None = None
    quantized: Quantized | None = None
    """With ``quantize``: what became of the weights. The comparison is then with the numbers of the codes."""

    precision: Lowered | None = None
    """With ``dtype``: what computes in 16 bits, and what does not and why. The comparison allows for its rounding."""

    def __getstate__(self) -> dict[str, Any]:
        """For ``pickle``: the model as bytes with its weights, which are made only when they are read."""
        return vars(self) | {"model": to_proto(self.model).SerializeToString()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, model=ir.from_proto(onnx.load_from_string(state["model"])))

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
        """True if the file was compared with its input and is right; None where it was not, or could not be."""
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


@dataclass
class OptimizePlan:
    """The wanted properties, and the parts that turn out to be left out."""

    level: int
    opset: int | None
    fix: dict[str, int]
    dynamic: dict[str, str]
    external_data: bool | None
    external_bytes: int
    explain: bool
    check: bool
    target: Target | None = None
    quantize: Quantize | None = None
    precision: Precision | None = None
    without: set[str] = field(default_factory=set)
    growth_bytes: int | None = None
    stores_inside: bool = True
    keeps_metadata: bool = True
    properties: Mapping[str, str] | None = None
    """The user's own entries in the metadata of the file."""
    keeps_types: bool = True

    @property
    def smaller(self) -> OptimizePlan | None:
        """A plan for less where the file would grow: first without types between nodes, then without copies of constants in
        bodies, then without folded constants; None where nothing is left.
        """
        if self.keeps_types:
            return dataclasses.replace(self, keeps_types=False)
        if self.stores_inside:
            return dataclasses.replace(self, stores_inside=False)
        return dataclasses.replace(self, growth_bytes=0) if self.growth_bytes is None else None

    def wanted(self, drawn: Drawn) -> Wanted:
        """The wanted properties of the rewritten graph."""
        usual, is_asked = self.target or find(DEFAULT), self.target is not None
        fitted_to = usual if is_asked or self.precision is not None else None
        return Wanted(drawn, usual, fitted_to, is_asked, is_asked, self.quantize, self.precision)

    def derivation(self, opened: Opened, applied: Sequence[AppliedEdit]) -> dict[str, str]:
        """The entry of the metadata that lists the edits, for ``certify``; empty where there are none, or no notes are wanted."""
        steps = [AppliedEdit("fix_sizes", 1, [f"{name}={size}"]) for name, size in self.fix.items()]
        steps += [AppliedEdit("make_dynamic", 1, [f"{place}={name}"]) for place, name in self.dynamic.items()]
        steps += [AppliedEdit("convert_opset", 1, [str(self.opset)])] if self.opset else []
        steps += applied
        steps += [AppliedEdit("quantize", 1, [self.quantize.kind])] if self.quantize is not None else []
        steps += [AppliedEdit("lower_precision", 1, [self.precision.dtype])] if self.precision is not None else []
        steps += [AppliedEdit("fit_to_target", 1, [self.target.name])] if self.target is not None else []
        if not steps or not self.keeps_metadata:
            return {}
        rules = {each.rule: each.version for each in steps}
        content = None if opened.path else opened.proto.SerializeToString()
        digest = sha256_of_file(opened.path) if content is None else hashlib.sha256(content).hexdigest()
        return {DERIVATION: derivation_text(digest, rules, [each.as_list() for each in steps])}


def opset_for(opened: Opened, asked: int | None, target: Target | None, quantize: Quantize | None) -> int | None:
    """The opset to convert to; None where the target takes the file's, and has the operators that codes need."""
    own = next((each.version for each in opened.proto.opset_import if each.domain in ("", "ai.onnx")), 0)
    chosen = asked
    if target is not None:
        fitting = chosen_opset(target.name, asked, own)
        chosen = fitting if asked is not None or fitting != own else None
    return quantize.least_opset if quantize is not None and chosen is None and own < quantize.least_opset else chosen
