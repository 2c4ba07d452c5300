"""Max unpooling: values back to the places their indices name, zeros elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import filled
from fx2onnx.aten_map.table.registry import register_shared
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims
from fx2onnx.sizes.expr import product

aten = torch.ops.aten


def _unpooled(op: Emit, value: ir.Value, indices: ir.Value, sizes: Dims) -> ir.Value:
    """PyTorch's indices count within one channel, so each channel is scattered into a vector of its own."""
    lead = op.rank(value) - len(sizes)
    dims = op.dims(value)[:lead]
    plane, taken = product(list(sizes)), product(list(op.dims(value)[lead:]))
    empty = filled(op, (*dims, plane), 0, op.dtype(value))
    places, values = op.reshape(indices, (*dims, taken)), op.reshape(value, (*dims, taken))
    return op.reshape(op.ScatterElements(empty, places, values, axis=lead), (*dims, *sizes))


def _unpool(spatial: int) -> Callable[..., ir.Value]:
    return lambda op, self, indices: _unpooled(op, self, indices, op.result_dims()[-spatial:])


register_shared(_unpool(2), "ScatterElements", aten.max_unpool2d.default)
register_shared(_unpool(3), "ScatterElements", aten.max_unpool3d.default)
