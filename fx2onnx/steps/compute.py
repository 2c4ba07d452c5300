"""What constant folding asks for operators that it has no evaluator of: the runner computes one node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.irx.one_node import model_of
from fx2onnx.irx.schema import schema_of

Array = np.ndarray[Any, Any]
_NEVER = frozenset({"Identity", "Constant", "Dropout", "DequantizeLinear", "Tile", "Expand"})
"""Operators that other passes remove, or that make more bytes of less."""


def compute(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> Array | None:
    """The one output of ``node`` on these operands in that opset; None where the runner cannot tell."""
    from fx2onnx.runner import InferenceSession

    if node.op_type in _NEVER or node.domain or node.graph is None or len(node.outputs) != 1:
        return None
    try:
        schema_of(node.op_type, opset)
        model, feeds = model_of(node, inputs, opset)
        found = InferenceSession(model).run(None, feeds)[0]
    except (Fx2OnnxError, ValueError, TypeError, KeyError):
        return None
    return np.array(found) if isinstance(found, np.ndarray) else None
