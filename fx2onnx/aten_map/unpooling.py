"""Max unpooling: values back to the places their indices name, zeros elsewhere."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
import torch

from fx2onnx.aten_map.scattering import scattered
from fx2onnx.aten_map.table.axes import filled, steps, unsqueeze
from fx2onnx.aten_map.table.registry import register_shared
from fx2onnx.base.dims import product
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims

aten = torch.ops.aten


def _unpooled(op: Emit, value: ir.Value, indices: ir.Value, sizes: Dims) -> ir.Value:
    """PyTorch's indices count within one channel, so each channel is scattered into a vector of its own."""
    lead = op.rank(value) - len(sizes)
    dims = op.dims(value)[:lead]
    plane, taken = product(list(sizes)), product(list(op.dims(value)[lead:]))
    empty = filled(op, (*dims, plane), 0, op.dtype(value))
    places, values = op.reshape(indices, (*dims, taken)), op.reshape(value, (*dims, taken))
    return op.reshape(op.ScatterElements(empty, places, values, axis=lead), (*dims, *sizes))


def _max_pool_backward(op: Emit, grad_output: ir.Value, self: ir.Value, indices: ir.Value) -> ir.Value:
    """Overlapping windows add up."""
    sizes = op.dims(self)[-2:]
    lead = op.dims(self)[:-2]
    plane, taken = product(list(sizes)), product(list(op.dims(grad_output)[-2:]))
    places, values = op.reshape(indices, (*lead, taken)), op.reshape(grad_output, (*lead, taken))
    if op.opset >= 16:
        found = scattered(op, filled(op, (*lead, plane), 0, op.dtype(self)), len(lead), places, values, "add")
    else:
        hits = op.Equal(unsqueeze(op, places, len(lead)), unsqueeze(op, steps(op, plane), 1))
        zero = op.const(0, op.dtype(self))
        found = op.ReduceSum(op.Where(hits, unsqueeze(op, values, len(lead)), zero), axes=[len(lead) + 1], keepdims=0)
    return op.reshape(found, op.dims(self))


def _unpool(spatial: int) -> Callable[..., ir.Value]:
    return lambda op, self, indices: _unpooled(op, self, indices, op.result_dims()[-spatial:])


_FORM = "ScatterElements(add) from opset 16 on; before, each place compared with every index"
register_shared(_max_pool_backward, _FORM, aten.max_pool2d_with_indices_backward.default)
register_shared(_unpool(2), "ScatterElements", aten.max_unpool2d.default)
register_shared(_unpool(3), "ScatterElements", aten.max_unpool3d.default)
