"""Operators whose output has the shape of their operands, broadcast where there are several."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.facts import BROADCASTING, UNARY_ELEMENTWISE
from fx2onnx.irx.shapes.agreement import check_broadcast, check_equal
from fx2onnx.irx.shapes.table import BOOL, FLOAT, Call, Typed, broadcast_dims, rule
from fx2onnx.irx.values import Dims, dtype_of

COMPARISONS = frozenset({"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})


@rule(
    *(UNARY_ELEMENTWISE - {"Cast", "IsInf", "IsNaN"}),
    *("Bernoulli", "Clip", "CumProd", "CumSum", "Dropout", "GroupNormalization", "Hardmax", "Identity", "LRN"),
    *("InstanceNormalization", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "PRelu", "Trilu"),
    *("RMSNormalization", "ReverseSequence", "RotaryEmbedding", "ScatterElements", "ScatterND", "Softmax"),
)
def _same(call: Call) -> list[Typed]:
    first = (call.dtype(), call.dims())
    return [first] + [(BOOL, call.dims())] * (call.num_outputs - 1)


@rule(*(BROADCASTING - COMPARISONS - {"Where"}))
def _binary(call: Call) -> list[Typed]:
    return [(call.dtype(), _broadcast(call))]


def _broadcast(call: Call) -> Dims:
    shapes = [call.dims(i) for i in range(len(call.inputs))]
    check_broadcast(call, *shapes)
    return broadcast_dims(*shapes)


@rule(*COMPARISONS)
def _compare(call: Call) -> list[Typed]:
    return [(BOOL, _broadcast(call))]


@rule("IsNaN", "IsInf")
def _predicate(call: Call) -> list[Typed]:
    return [(BOOL, call.dims())]


@rule("Where")
def _where(call: Call) -> list[Typed]:
    return [(call.dtype(1), _broadcast(call))]


@rule("Cast", "RandomNormalLike", "RandomUniformLike", "EyeLike")
def _cast(call: Call) -> list[Typed]:
    target = call.attrs.get("to", call.attrs.get("dtype"))
    return [(call.dtype() if target is None else ir.DataType(target), call.dims())]


@rule("RandomNormal", "RandomUniform")
def _random(call: Call) -> list[Typed]:
    return [(ir.DataType(call.attrs.get("dtype", 1)), tuple(call.attrs["shape"]))]


@rule("CastLike")
def _cast_like(call: Call) -> list[Typed]:
    return [(call.dtype(1), call.dims())]


@rule("BatchNormalization")
def _batch_norm(call: Call) -> list[Typed]:
    check_equal(call, call.dims()[1:2], call.dims(1), "channels")
    return [(call.dtype(), call.dims())] + [(call.dtype(3), call.dims(3))] * (call.num_outputs - 1)


@rule("LayerNormalization")
def _layer_norm(call: Call) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", -1) % len(dims)
    check_broadcast(call, dims, call.dims(1))
    reduced = dims[:axis] + (1,) * (len(dims) - axis)
    return [(call.dtype(), dims)] + [(FLOAT, reduced)] * (call.num_outputs - 1)


@rule("QuantizeLinear")
def _quantize(call: Call) -> list[Typed]:
    zero_point = call.optional("y_zero_point")
    target = call.attrs.get("output_dtype")
    dtype = dtype_of(zero_point) if zero_point is not None else ir.DataType(target) if target else ir.DataType.UINT8
    return [(dtype, call.dims())]


@rule("DequantizeLinear")
def _dequantize(call: Call) -> list[Typed]:
    return [(call.dtype(1), call.dims())]
