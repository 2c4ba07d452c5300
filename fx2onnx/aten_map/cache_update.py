"""``fx2onnx::cache_update``, an operator of ours: new keys or values written into a cache of fixed size."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.emit import Emit

INT64 = ir.DataType.INT64


def cache_update(op: Emit, past: ir.Value, update: ir.Value, start: ir.Value) -> ir.Value:
    """cache_update(Tensor past, Tensor update, Tensor start) -> Tensor

    Shapes:  past [batch, heads, limit, width], update [batch, heads, new, width], start [] -> past's.
    ONNX:    TensorScatter-24 along axis 2, which a runtime may do in place. Refuses older opsets (E202).
    """
    rows = op.expand(op.reshape(op.cast(start, INT64), [1]), op.dims(past)[:1])
    return op.TensorScatter(past, update, rows, axis=2, mode="linear")
