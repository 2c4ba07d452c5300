"""``torch.ops.flex_lib``: gradients of what the functions given to ``flex_attention`` read."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from fx2onnx.aten_map.indexing import index_written
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import DimLike


@translates(torch.ops.flex_lib.zeros_and_scatter.default)
def zeros_and_scatter(
    op: Emit, shape: Sequence[DimLike | ir.Value], indices: Sequence[ir.Value], vals: ir.Value
) -> ir.Value:
    """zeros_and_scatter(SymInt[] shape, Tensor[] indices, Tensor vals) -> Tensor"""
    return index_written(op, op.expand(op.const(0, op.dtype(vals)), op.result[0][1]), indices, vals, True)
