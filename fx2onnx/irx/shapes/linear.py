"""Elementwise operators, matrix products, reductions, and sliding windows."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.schema import BROADCASTING, UNARY_ELEMENTWISE
from fx2onnx.irx.shapes.agreement import check_broadcast, check_equal
from fx2onnx.irx.shapes.table import BOOL, FLOAT, INT64, Call, Typed, UnknownShape, as_dim, broadcast_dims, rule
from fx2onnx.irx.values import Dims, dtype_of
from fx2onnx.sizes.expr import DimLike


@rule("MatMul", "MatMulInteger")
def _matmul(call: Call) -> list[Typed]:
    dtype = ir.DataType.INT32 if call.op_type == "MatMulInteger" else call.dtype()
    lhs, rhs = call.dims(0), call.dims(1)
    check_equal(call, lhs[-1:], rhs[-2:-1] if len(rhs) > 1 else rhs, "the sizes that are summed over")
    if len(lhs) > 2 and len(rhs) > 2:
        check_broadcast(call, lhs[:-2], rhs[:-2])
    return [(dtype, matmul_dims(lhs, rhs))]


def matmul_dims(lhs: Dims, rhs: Dims) -> Dims:
    """The dims of ``numpy.matmul``."""
    if len(lhs) == 1 and len(rhs) == 1:
        return ()
    if len(lhs) == 1:
        return rhs[:-2] + rhs[-1:]
    if len(rhs) == 1:
        return lhs[:-1]
    batch = broadcast_dims(lhs[:-2], rhs[:-2]) if len(lhs) > 2 or len(rhs) > 2 else ()
    return (*batch, lhs[-2], rhs[-1])


@rule("Gemm")
def _gemm(call: Call) -> list[Typed]:
    rows, depth = call.dims(0)[:: -1 if call.attrs.get("transA") else 1]
    depth_of_other, columns = call.dims(1)[:: -1 if call.attrs.get("transB") else 1]
    check_equal(call, (depth,), (depth_of_other,), "the sizes that are summed over")
    if len(call.inputs) > 2 and call.inputs[2] is not None:
        check_broadcast(call, (rows, columns), call.dims(2))
    return [(call.dtype(), (rows, columns))]


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@rule(*(f"Reduce{name}" for name in _REDUCTIONS))
def _reduce(call: Call) -> list[Typed]:
    dims, axes = call.dims(), call.ints("axes")
    if axes is None and call.optional("axes") is not None:
        raise UnknownShape("reduction over computed axes")
    if not axes:
        gone = set() if call.attrs.get("noop_with_empty_axes") else set(range(len(dims)))
    else:
        gone = {axis % len(dims) for axis in axes}
    return [(call.dtype(), _reduced(dims, gone, bool(call.attrs.get("keepdims", 1))))]


@rule("ArgMax", "ArgMin")
def _arg_reduce(call: Call) -> list[Typed]:
    dims = call.dims()
    gone = {call.attrs.get("axis", 0) % len(dims)}
    return [(INT64, _reduced(dims, gone, bool(call.attrs.get("keepdims", 1))))]


def _reduced(dims: Dims, gone: set[int], keepdims: bool) -> Dims:
    return tuple(1 if axis in gone else size for axis, size in enumerate(dims) if keepdims or axis not in gone)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call) -> list[Typed]:
    dims = call.dims()
    return [(call.dtype(), dims[:2] + (1,) * (len(dims) - 2))]


@rule("Conv")
def _conv(call: Call) -> list[Typed]:
    dims, kernel = call.dims(), call.dims(1)
    check_equal(call, dims[1:2], (as_dim(kernel[1] * call.attrs.get("group", 1)),), "channels")
    spatial = window_dims(call, dims[2:], kernel[2:])
    return [(call.dtype(), (dims[0], kernel[0], *spatial))]


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(call: Call) -> list[Typed]:
    dims = call.dims()
    typed: Typed = (call.dtype(), (*dims[:2], *window_dims(call, dims[2:], tuple(call.attrs["kernel_shape"]))))
    return [typed, (INT64, typed[1])][: call.num_outputs]


def window_dims(call: Call, dims: Dims, kernel: Dims) -> Dims:
    """Output sizes of a sliding window with ``pads``, ``strides``, ``dilations`` and ``ceil_mode``."""
    rank, attrs = len(dims), call.attrs
    if attrs.get("auto_pad", "NOTSET") != "NOTSET":
        raise UnknownShape("auto_pad")
    pads = attrs.get("pads") or [0] * (2 * rank)
    strides, dilations = attrs.get("strides") or [1] * rank, attrs.get("dilations") or [1] * rank
    result: list[DimLike] = []
    for axis in range(rank):
        reach = dilations[axis] * (kernel[axis] - 1) + 1
        free = dims[axis] + pads[axis] + pads[axis + rank] - reach
        steps = -((-free) // strides[axis]) if attrs.get("ceil_mode") else free // strides[axis]
        size = as_dim(steps + 1)
        if attrs.get("ceil_mode") and isinstance(size, int) and isinstance(dims[axis], int):
            size -= (size - 1) * strides[axis] >= dims[axis] + pads[axis]
        result.append(size)
    return tuple(result)


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
