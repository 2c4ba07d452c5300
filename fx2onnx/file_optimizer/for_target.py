"""A rewritten graph made to run on what it is for."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.inference import infer_types
from fx2onnx.targets import faults
from fx2onnx.targets.fit import fit
from fx2onnx.targets.form import Target
from fx2onnx.targets.refusal import refusal


def fitted(model: ir.Model, target: Target) -> dict[str, int]:
    """Casts and other forms, in place: how many of each. No digits are lost: float64 stays.

    Raises: UserError E204 with all nodes that the target cannot run.
    """
    infer_types(model)
    found = fit(model, target)
    left = {**found.left, **found.only_narrower}
    if left:
        raise refusal(left, target.name)
    return {**found.casts, **found.forms, **faults.avoid(model, target)}
