"""dtypes: torch's and ONNX's, PyTorch's type promotion, and operators at dtypes that they do not take."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeAlias

import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.schema import schema_of
from fx2onnx.semantics.schemas import onnx_schema, types_of
from fx2onnx.sizes.expr import Dim

Number: TypeAlias = "bool | int | float | Dim"
Operand: TypeAlias = "ir.Value | Number"

ONNX_DTYPES: dict[torch.dtype, ir.DataType] = {
    torch.float32: ir.DataType.FLOAT,
    torch.float16: ir.DataType.FLOAT16,
    torch.bfloat16: ir.DataType.BFLOAT16,
    torch.float64: ir.DataType.DOUBLE,
    torch.bool: ir.DataType.BOOL,
    torch.uint8: ir.DataType.UINT8,
    torch.int8: ir.DataType.INT8,
    torch.int16: ir.DataType.INT16,
    torch.int32: ir.DataType.INT32,
    torch.int64: ir.DataType.INT64,
    torch.uint16: ir.DataType.UINT16,
    torch.uint32: ir.DataType.UINT32,
    torch.uint64: ir.DataType.UINT64,
    torch.complex64: ir.DataType.COMPLEX64,
    torch.complex128: ir.DataType.COMPLEX128,
    torch.float8_e4m3fn: ir.DataType.FLOAT8E4M3FN,
    torch.float8_e4m3fnuz: ir.DataType.FLOAT8E4M3FNUZ,
    torch.float8_e5m2: ir.DataType.FLOAT8E5M2,
    torch.float8_e5m2fnuz: ir.DataType.FLOAT8E5M2FNUZ,
}
TORCH_DTYPES = {onnx: torch_dtype for torch_dtype, onnx in ONNX_DTYPES.items()}
INTEGERS = frozenset(
    dtype
    for torch_dtype, dtype in ONNX_DTYPES.items()
    if not torch_dtype.is_floating_point and not torch_dtype.is_complex
) - {ir.DataType.BOOL}
FLOATS = frozenset(dtype for torch_dtype, dtype in ONNX_DTYPES.items() if torch_dtype.is_floating_point)


def onnx_dtype(dtype: torch.dtype) -> ir.DataType:
    """The ONNX dtype. Raises UserError E203 where ONNX has none."""
    if dtype not in ONNX_DTYPES:
        raise UserError("E203", f"ONNX has no dtype for {dtype}", next="cast the tensor to a dtype that ONNX has")
    return ONNX_DTYPES[dtype]


def promoted(op: Emit, *operands: Operand) -> ir.DataType:
    """The dtype in which PyTorch computes with ``operands`` (tensors, 0-d tensors and Python numbers rank differently).

    Source: ``torch.result_type``; three classes of operand, each raising the result only to a higher category.
    """
    result: torch.dtype | None = None
    classes: tuple[list[torch.dtype], list[torch.dtype], list[torch.dtype]] = ([], [], [])
    for operand in operands:
        if isinstance(operand, ir.Value):
            classes[0 if op.rank(operand) else 1].append(TORCH_DTYPES[op.dtype(operand)])
        else:
            classes[2].append(_number_dtype(operand))
    for index, dtypes in enumerate(classes):
        if not dtypes:
            continue
        combined = dtypes[0]
        for dtype in dtypes[1:]:
            combined = torch.promote_types(combined, dtype)
        if result is None:
            result = combined if index < 2 or combined != torch.float64 else torch.get_default_dtype()
        elif _category(combined) > _category(result):
            result = torch.get_default_dtype() if index == 2 and combined.is_floating_point else combined
    assert result is not None
    return onnx_dtype(result)


def _number_dtype(number: Any) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    if isinstance(number, Dim):
        return torch.float64 if number.is_real else torch.int64
    return (
        torch.complex128 if isinstance(number, complex) else torch.float64 if isinstance(number, float) else torch.int64
    )


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else 3 if dtype.is_complex else 2 if dtype.is_floating_point else 1


def as_dtype(op: Emit, operand: Operand, dtype: ir.DataType) -> ir.Value:
    """A tensor cast to ``dtype``, or a number as a constant of it."""
    if isinstance(operand, ir.Value):
        return op.cast(operand, dtype)
    if isinstance(operand, Dim):
        return op.size(operand, dtype)
    return op.const(operand, dtype)


D = ir.DataType
SMALL_INTEGERS = frozenset({D.INT8, D.UINT8, D.INT16, D.UINT16})
UNSIGNED_WIDE = frozenset({D.UINT32, D.UINT64})

_WIDER: dict[ir.DataType, ir.DataType] = {
    D.BOOL: D.INT32, D.UINT8: D.INT32, D.INT8: D.INT32, D.UINT16: D.INT32, D.INT16: D.INT32, D.INT32: D.INT64,
    D.UINT32: D.INT64, D.UINT64: D.INT64, D.INT64: D.DOUBLE, D.FLOAT16: D.FLOAT, D.BFLOAT16: D.FLOAT,
    D.FLOAT: D.DOUBLE,
}  # fmt: skip

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
    result = op.node(op_type, *[op.cast(operand, wide) for operand in operands], **keywords)
    return op.cast(result, dtype) if wide != dtype and op.dtype(result) == wide else result


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
