"""A rewritten graph made to run on what it is for."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.file_optimizer.opened import Opened
from fx2onnx.irx.inference import infer_types
from fx2onnx.targets import faults
from fx2onnx.targets.find import chosen_opset
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


def opset_for(target: Target, opened: Opened, asked: int | None) -> int | None:
    """The opset to convert to: none where the target takes the file's."""
    own = next((each.version for each in opened.proto.opset_import if each.domain in ("", "ai.onnx")), 0)
    chosen = chosen_opset(target.name, asked, own)
    return chosen if asked is not None or chosen != own else None
