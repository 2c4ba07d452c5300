"""The model made to run on what it is for: casts where a kernel is missing, an error where nothing helps."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import onnx_ir as ir

from fx2onnx.base.events import record
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.targets import faults
from fx2onnx.targets.find import DEFAULT, find
from fx2onnx.targets.fit import fit
from fx2onnx.targets.refusal import float64_refusal, named, refusal


@dataclass
class FittedToTarget:
    """What the report says of it."""

    casts: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def fit_to_target(model: ir.Model, options: ExportOptions) -> FittedToTarget:
    """``fit`` for the target asked for, or for the default one if it takes the opset.

    Raises: UserError E204 where a target that was asked for cannot run the model, and for any target where it has a node in
    float32 alone that is in float64; with all such nodes.
    """
    target = find(options.target or DEFAULT)
    if options.target is None and target.opset is not None and options.opset > target.opset:
        target = find("onnx")
    with record("fit to target"):
        fitted = fit(model, target)
        faults.avoid(model, target)
    if fitted.only_narrower:
        raise float64_refusal(fitted.only_narrower, target.name)
    if fitted.left and options.target is not None:
        raise refusal(fitted.left, target.name)
    result = FittedToTarget(fitted.casts)
    if fitted.left:
        result.warnings.append(f"{target.name} has no kernel for {named(fitted.left)}")
    return result
