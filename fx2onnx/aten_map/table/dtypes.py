"""dtypes: torch's and ONNX's, and PyTorch's type promotion in one place."""

from __future__ import annotations

from typing import Any, TypeAlias

import onnx_ir as ir
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit
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
