"""Half precision in operators that do not take it: the node in float32 between casts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import onnx_ir as ir

from fx2onnx.irx.builder import Emitter
from fx2onnx.irx.schema import OpSchema, admits, schema_of
from fx2onnx.irx.shapes.table import misfit
from fx2onnx.irx.values import OutputType, dtype_of

FLOAT, FLOAT16, BFLOAT16 = ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16


def missing_half(schema: OpSchema, opset: int, dtypes: Sequence[ir.DataType | None]) -> ir.DataType | None:
    """float16 or bfloat16, where an input has it and the operator does not take it in this opset; else None."""
    if schema.op_type == "Cast" or schema.domain:
        return None
    for index, dtype in enumerate(dtypes):
        if (dtype is FLOAT16 or dtype is BFLOAT16) and not admits(schema.op_type, opset, index, dtype):
            return dtype
    return None


@lru_cache(maxsize=4096)
def takes(op_type: str, opset: int, domain: str, dtypes: tuple[ir.DataType | None, ...]) -> bool:
    """Return whether the operator takes inputs of these dtypes as they are."""
    schema = schema_of(op_type, opset, domain)
    return missing_half(schema, opset, dtypes) is None and misfit(schema, dtypes) is None


def in_float32(
    op: Emitter,
    op_type: str,
    values: Sequence[ir.Value | None],
    half: ir.DataType,
    outputs: int | Sequence[OutputType],
    attrs: dict[str, Any],
) -> Any:
    """The node with every operand of dtype ``half`` cast to float32, and its float32 outputs cast back."""
    operands = [None if v is None else op.cast(v, FLOAT if dtype_of(v) == half else dtype_of(v)) for v in values]
    wide = (
        outputs if isinstance(outputs, int) else [(FLOAT if dtype == half else dtype, dims) for dtype, dims in outputs]
    )
    found: Any = op.node(op_type, *operands, outputs=wide, **attrs)
    results = []
    for index, value in enumerate(found if isinstance(found, tuple) else (found,)):
        narrow = dtype_of(value) == FLOAT and (isinstance(outputs, int) or outputs[index][0] == half)
        results.append(op.cast(value, half) if narrow else value)
    return tuple(results) if isinstance(found, tuple) else results[0]
