"""Changing the dtype: to, type_as, _to_copy, copy."""

from __future__ import annotations

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import FLOATS, SMALL_INTEGERS
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
D = ir.DataType


def cast(op: Emit, value: ir.Value, dtype: ir.DataType) -> ir.Value:
    """Cast with PyTorch's values: towards zero; what does not fit a small integer wraps around, by way of int64."""
    if op.dtype(value) in FLOATS and (dtype in SMALL_INTEGERS or dtype in (D.UINT32, D.UINT64)):
        value = op.cast(value, D.INT64)
    return op.cast(value, dtype)


def _to(op: Emit, self: ir.Value) -> ir.Value:
    return cast(op, self, op.result_dtype())


_TO = "to.device to.dtype to.dtype_layout to.other to.prim_Device to.prim_dtype to.prim_other _to_copy type_as "
_TO += "_cast_Byte _cast_Char _cast_Short _cast_Int _cast_Long _cast_Half _cast_Float _cast_Double "
_TO += "_autocast_to_full_precision _autocast_to_reduced_precision to_dense _to_cpu"
register_shared(_to, "Cast; nothing where the dtype stays", *overloads_of(_TO))


@translates(aten.copy.default)
def copy_default(op: Emit, self: ir.Value, src: ir.Value) -> ir.Value:
    """copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor

    ONNX:    Cast and Expand of ``src``.
    """
    return op.expand(cast(op, src, op.dtype(self)), op.dims(self))


def item(op: Emit, self: ir.Value) -> ir.Value:
    if op.rank(self) == 0:
        return self
    return op.Reshape(self, op.sizes(()))


register_shared(item, "Reshape to rank 0", *overloads_of("item _local_scalar_dense"))
