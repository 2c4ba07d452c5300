"""Constants that repeat one row for each of a fixed batch: one row is enough where it meets the batch, which broadcasts it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.schema import BROADCASTING
from fx2onnx.irx.values import known_ints
from fx2onnx.optimize.rewrite import attribute, dims_or_none, is_constant, produced_by
from fx2onnx.sizes.expr import Dim

MOST_BYTES = 64 << 20


def narrow_constants(model: ir.Model, node: ir.Node, sizes: Mapping[str, int]) -> bool:
    """Narrow the constant operands of a broadcasting node, and the constant indices of a Gather that it reads, along the axes at
    which another operand has a size that varies. Whether anything was done.
    """
    if node.domain or node.op_type not in BROADCASTING:
        return False
    all_dims = [dims_or_none(value) for value in node.inputs]
    for place, (value, dims) in enumerate(zip(node.inputs, all_dims, strict=True)):
        for back in range(1, len(dims or ()) + 1):
            size = (dims or ())[-back]
            others = [other[-back] for other in all_dims if other is not None and back <= len(other)]
            if not isinstance(size, int) or size == 1 or not any(_varies(other, sizes, size) for other in others):
                continue
            gather = produced_by(value, "Gather")
            if _narrow(model, node, place, len(dims or ()) - back):
                return True
            is_row = gather is not None and attribute(gather, "axis", 0) == 0 and back == len(dims or ())
            if gather is not None and is_row and len(gather.outputs[0].uses()) == 1 and _narrow(model, gather, 1, 0):
                return True
    return False


def _varies(dim: int | Dim, sizes: Mapping[str, int], size: int) -> bool:
    return isinstance(dim, Dim) and dim.symbols() <= set(sizes) and dim.evaluate(sizes) == size


def _narrow(model: ir.Model, node: ir.Node, place: int, axis: int) -> bool:
    """One row of a constant, or of what repeats a row, in the place of equal ones."""
    value = node.inputs[place]
    expand = produced_by(value, "Expand")
    if expand is not None and value is not None and len(value.uses()) == 1:
        return _narrow_target(model, expand, axis)
    if value is None or not is_constant(value) or value.const_value is None or value.const_value.nbytes > MOST_BYTES:
        return False
    array = np.asarray(value.const_value.numpy())
    first = np.take(array, [0], axis)
    if not np.array_equal(np.broadcast_to(first, array.shape), array):
        return False
    _give(model, node, place, first)
    return True


def _narrow_target(model: ir.Model, expand: ir.Node, axis: int) -> bool:
    """Do not repeat along an axis along which the operand has one row."""
    source, shape = dims_or_none(expand.inputs[0]), expand.inputs[1]
    target = known_ints(shape) if is_constant(shape) else None
    if source is None or target is None or axis >= len(target) or target[axis] == 1:
        return False
    own = axis - (len(target) - len(source))
    if own >= 0 and source[own] != 1:
        return False
    _give(model, expand, 1, np.array([1 if place == axis else size for place, size in enumerate(target)], np.int64))
    return True


def _give(model: ir.Model, node: ir.Node, place: int, array: np.ndarray[Any, Any]) -> None:
    """Put a new weight at an input."""
    old = node.inputs[place]
    assert old is not None
    name = f"{old.name}_row"
    while name in model.graph.initializers:
        name += "_"
    dtype = ir.DataType.from_numpy(array.dtype) if old.const_value is None else old.const_value.dtype
    value = ir.Value(name=name, const_value=ir.Tensor(np.ascontiguousarray(array), dtype=dtype, name=name))
    model.graph.initializers[name] = value
    node.replace_input_with(place, value)
