"""Operators at dtypes they do not take: the same node one dtype wider, then a cast back."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import onnx_ir as ir

from fx2onnx.aten_map.table.dtypes import FLOATS, Operand, as_dtype
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import schema_of
from fx2onnx.semantics.schemas import onnx_schema, types_of

D = ir.DataType
SMALL_INTEGERS = frozenset({D.INT8, D.UINT8, D.INT16, D.UINT16})
UNSIGNED_WIDE = frozenset({D.UINT32, D.UINT64})

_WIDER: dict[ir.DataType, ir.DataType] = {
    D.BOOL: D.INT32,
    D.UINT8: D.INT32,
    D.INT8: D.INT32,
    D.UINT16: D.INT32,
    D.INT16: D.INT32,
    D.INT32: D.INT64,
    D.UINT32: D.INT64,
    D.UINT64: D.INT64,
    D.INT64: D.DOUBLE,
    D.FLOAT16: D.FLOAT,
    D.BFLOAT16: D.FLOAT,
    D.FLOAT: D.DOUBLE,
}

_REDUCTIONS = ("Sum", "Mean", "Prod", "Max", "Min", "L1", "L2", "LogSumExp", "SumSquare")
NO_KERNEL: dict[str, frozenset[ir.DataType]] = {
    "Where": frozenset({D.BOOL, D.INT16, D.UINT16, D.UINT64}),
    "Max": frozenset({D.INT16, D.UINT16}),
    "Min": frozenset({D.INT16, D.UINT16}),
    "Clip": frozenset({D.INT16, D.UINT16}),
    "Relu": frozenset({D.INT16, D.INT64}),
    "NonZero": SMALL_INTEGERS | UNSIGNED_WIDE,
    "Trilu": SMALL_INTEGERS | UNSIGNED_WIDE,
    "TopK": frozenset({D.UINT16}) | UNSIGNED_WIDE,
    "ArgMax": frozenset({D.INT16, D.UINT16}) | UNSIGNED_WIDE,
    "ArgMin": frozenset({D.INT16, D.UINT16}) | UNSIGNED_WIDE,
    "CumSum": UNSIGNED_WIDE,
    "Einsum": SMALL_INTEGERS | UNSIGNED_WIDE,
    "Unique": SMALL_INTEGERS | UNSIGNED_WIDE | {D.INT32, D.BOOL},
    "EyeLike": SMALL_INTEGERS | {D.UINT32, D.BOOL},
    "OneHot": SMALL_INTEGERS | UNSIGNED_WIDE | {D.INT32, D.BOOL},
    "Pad": frozenset({D.INT16, D.UINT16}),
    "Pow": frozenset(),
    **{f"Reduce{name}": UNSIGNED_WIDE for name in _REDUCTIONS},
}
"""Integer dtypes that the standard admits and onnxruntime 1.31 has no CPU kernel for. Measured node by node."""


@lru_cache(maxsize=4096)
def takes(op_type: str, opset: int, dtype: ir.DataType) -> bool:
    """Return whether ``op_type`` computes with ``dtype`` in ``opset``: the standard admits it and a kernel is known."""
    schema_of(op_type, opset)
    schema = onnx_schema(op_type, opset)
    parameter = schema.inputs[min(1, len(schema.inputs) - 1)] if op_type == "Where" else schema.inputs[0]
    return f"tensor({dtype.name.lower()})" in types_of(parameter, schema) and dtype not in NO_KERNEL.get(op_type, ())


def compute_dtype(op: Emit, op_type: str, dtype: ir.DataType) -> ir.DataType:
    """``dtype``, or the next wider one that ``op_type`` takes; ``dtype`` itself where none is."""
    wide: ir.DataType | None = dtype
    while wide is not None and not takes(op_type, op.opset, wide):
        wide = _WIDER.get(wide)
    return dtype if wide is None else wide


def through(op: Emit, op_type: str, *operands: ir.Value, **keywords: Any) -> ir.Value:
    """One node over operands of one dtype, in a wider dtype where the operator does not take theirs."""
    dtype = op.dtype(operands[0])
    wide = compute_dtype(op, op_type, dtype)
    result = op.node(op_type, *(op.cast(operand, wide) for operand in operands), **keywords)
    return op.cast(result, dtype) if op.dtype(result) == wide else result


def opmath(dtype: ir.DataType) -> ir.DataType:
    """The dtype in which PyTorch computes inside a kernel: float32 for half precision."""
    return D.FLOAT if dtype in (D.FLOAT16, D.BFLOAT16) else dtype


def floating(dtype: ir.DataType) -> ir.DataType:
    """``dtype``, or float32 (torch's default) for integers and bools."""
    return dtype if dtype in FLOATS else D.FLOAT


def in_opmath(op: Emit, formula: Callable[..., ir.Value], *operands: Operand) -> ir.Value:
    """``formula`` over ``operands`` cast to the result's opmath dtype, its value cast to the result's dtype.

    For formulas of several nodes: half precision would round after each of them, PyTorch rounds once.
    """
    target = op.result_dtype()
    wide = opmath(target)
    return op.cast(formula(op, *(as_dtype(op, operand, wide) for operand in operands)), target)
