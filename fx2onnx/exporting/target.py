"""The model made to run on what it is for: casts where a kernel is missing, an error where nothing helps."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

import onnx_ir as ir

from fx2onnx.base.events import record
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.targets import faults
from fx2onnx.targets.find import DEFAULT, find
from fx2onnx.targets.fit import fit
from fx2onnx.targets.narrowed import METADATA_KEY
from fx2onnx.targets.refusal import named, refusal


@dataclass
class FittedToTarget:
    """What the report says of it."""

    casts: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)


def fit_to_target(model: ir.Model, options: ExportOptions) -> FittedToTarget:
    """``fit`` for the target asked for, or for the default one if it takes the opset.

    Raises: UserError E204 where a target that was asked for cannot run the model, with all such nodes.
    """
    target = find(options.target or DEFAULT)
    if options.target is None and target.opset is not None and options.opset > target.opset:
        target = find("onnx")
    with record("fit to target"):
        fitted = fit(model, target)
        faults.avoid(model, target)
    if fitted.left and options.target is not None:
        raise refusal(fitted.left, target.name)
    result = FittedToTarget(fitted.casts)
    if fitted.left:
        result.warnings.append(f"{target.name} has no kernel for {named(fitted.left)}")
    if fitted.narrowed:
        model.metadata_props[METADATA_KEY] = json.dumps(dict(fitted.narrowed))
        count = sum(fitted.narrowed.values())
        kinds = ", ".join(sorted({text.split()[1] for text in fitted.narrowed}))
        result.warnings.append(
            f"{target.name} has no float64 kernels for {kinds}: {count} nodes compute in float32"
            ' (target="onnx" leaves them as they are)'
        )
    return result
