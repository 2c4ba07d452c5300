"""Shapes of elementwise operators, matrix products, reductions, sliding windows, and onnxruntime's own operators as far as inputs say them."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.irx.schema import BROADCASTING, UNARY_ELEMENTWISE
from fx2onnx.irx.shapes.table import (
    BOOL,
    FLOAT,
    INT64,
    Rule,
    ShapeCall,
    Typed,
    UnknownShape,
    as_dim,
    broadcast_dims,
    check_broadcast,
    check_equal,
    rule,
)
from fx2onnx.irx.values import Dims, dtype_of
from fx2onnx.sizes.expr import DimLike, product


@rule("MatMul", "MatMulInteger")
def _matmul(call: ShapeCall) -> list[Typed]:
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
def _gemm(call: ShapeCall) -> list[Typed]:
    rows, depth = call.dims(0)[:: -1 if call.attrs.get("transA") else 1]
    depth_of_other, columns = call.dims(1)[:: -1 if call.attrs.get("transB") else 1]
    check_equal(call, (depth,), (depth_of_other,), "the sizes that are summed over")
    if len(call.inputs) > 2 and call.inputs[2] is not None:
        check_broadcast(call, (rows, columns), call.dims(2))
    return [(call.dtype(), (rows, columns))]


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")


@rule(*(f"Reduce{name}" for name in _REDUCTIONS))
def _reduce(call: ShapeCall) -> list[Typed]:
    dims, axes = call.dims(), call.ints("axes")
    if not axes:
        gone = set() if call.attrs.get("noop_with_empty_axes") else set(range(len(dims)))
    else:
        gone = {axis % len(dims) for axis in axes}
    return [(call.dtype(), _reduced(dims, gone, bool(call.attrs.get("keepdims", 1))))]


@rule("ArgMax", "ArgMin")
def _arg_reduce(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    gone = {call.attrs.get("axis", 0) % len(dims)}
    return [(INT64, _reduced(dims, gone, bool(call.attrs.get("keepdims", 1))))]


def _reduced(dims: Dims, gone: set[int], keepdims: bool) -> Dims:
    return tuple(1 if axis in gone else size for axis, size in enumerate(dims) if keepdims or axis not in gone)


@rule("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    return [(call.dtype(), dims[:2] + (1,) * (len(dims) - 2))]


@rule("Conv")
def _conv(call: ShapeCall) -> list[Typed]:
    dims, kernel = call.dims(), call.dims(1)
    check_equal(call, dims[1:2], (as_dim(kernel[1] * call.attrs.get("group", 1)),), "channels")
    spatial = window_dims(call, dims[2:], kernel[2:])
    return [(call.dtype(), (dims[0], kernel[0], *spatial))]


@rule("MaxPool", "AveragePool", "LpPool")
def _pool(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    typed: Typed = (call.dtype(), (*dims[:2], *window_dims(call, dims[2:], tuple(call.attrs["kernel_shape"]))))
    return [typed, (INT64, typed[1])][: call.num_outputs]


def window_dims(call: ShapeCall, dims: Dims, kernel: Dims) -> Dims:
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
def _same(call: ShapeCall) -> list[Typed]:
    first = (call.dtype(), call.dims())
    return [first] + [(BOOL, call.dims())] * (call.num_outputs - 1)


@rule(*(BROADCASTING - COMPARISONS - {"Where"}))
def _binary(call: ShapeCall) -> list[Typed]:
    return [(call.dtype(), _broadcast(call))]


def _broadcast(call: ShapeCall) -> Dims:
    shapes = [call.dims(i) for i in range(len(call.inputs))]
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    check_broadcast(call, *shapes)
    return broadcast_dims(*shapes)


@rule(*COMPARISONS)
def _compare(call: ShapeCall) -> list[Typed]:
    return [(BOOL, _broadcast(call))]


@rule("IsNaN", "IsInf")
def _predicate(call: ShapeCall) -> list[Typed]:
    return [(BOOL, call.dims())]


@rule("Where")
def _where(call: ShapeCall) -> list[Typed]:
    return [(call.dtype(1), _broadcast(call))]


@rule("Cast", "RandomNormalLike", "RandomUniformLike", "EyeLike")
def _cast(call: ShapeCall) -> list[Typed]:
    target = call.attrs.get("to", call.attrs.get("dtype"))
    return [(call.dtype() if target is None else ir.DataType(target), call.dims())]


@rule("RandomNormal", "RandomUniform")
def _random(call: ShapeCall) -> list[Typed]:
    return [(ir.DataType(call.attrs.get("dtype", 1)), tuple(call.attrs["shape"]))]


@rule("CastLike")
def _cast_like(call: ShapeCall) -> list[Typed]:
    return [(call.dtype(1), call.dims())]


@rule("BatchNormalization")
def _batch_norm(call: ShapeCall) -> list[Typed]:
    check_equal(call, call.dims()[1:2], call.dims(1), "channels")
    return [(call.dtype(), call.dims())] + [(call.dtype(3), call.dims(3))] * (call.num_outputs - 1)


@rule("LayerNormalization")
def _layer_norm(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", -1) % len(dims)
    check_broadcast(call, dims, call.dims(1))
    reduced = dims[:axis] + (1,) * (len(dims) - axis)
    return [(call.dtype(), dims)] + [(FLOAT, reduced)] * (call.num_outputs - 1)


@rule("QuantizeLinear")
def _quantize(call: ShapeCall) -> list[Typed]:
    zero_point = call.optional("y_zero_point")
    target = call.attrs.get("output_dtype")
    dtype = dtype_of(zero_point) if zero_point is not None else ir.DataType(target) if target else ir.DataType.UINT8
    return [(dtype, call.dims())]


@rule("DequantizeLinear")
def _dequantize(call: ShapeCall) -> list[Typed]:
    return [(call.dtype(1), call.dims())]


MICROSOFT = "com.microsoft"


def _like_first(call: ShapeCall) -> list[Typed]:
    return [(call.dtype(), call.dims())]


def _skip_norm(call: ShapeCall) -> list[Typed]:
    whole, row = (call.dtype(), call.dims()), (FLOAT, (*call.dims()[:-1], 1))
    return [whole, row, row, whole]


def _simplified_norm(call: ShapeCall) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", -1) % len(dims)
    return [(call.dtype(1), dims), (FLOAT, (*dims[:axis], *(1 for _ in dims[axis:])))]


def _fused_matmul(call: ShapeCall) -> list[Typed]:
    sides = []
    for index, name in enumerate("AB"):
        dims = call.dims(index)
        if call.attrs.get(f"transBatch{name}") and len(dims) > 2:
            dims = (*dims[1:-1], dims[0], dims[-1])
        sides.append((*dims[:-2], dims[-1], dims[-2]) if call.attrs.get(f"trans{name}") and len(dims) > 1 else dims)
    return [(call.dtype(), matmul_dims(*sides))]


def _given(call: ShapeCall, index: int) -> Dims | None:
    return call.dims(index) if index < len(call.inputs) and call.inputs[index] is not None else None


def _multi_head(call: ShapeCall) -> list[Typed]:
    query, key, value, heads = call.dims(), _given(call, 1), _given(call, 2), call.attrs["num_heads"]
    if len(query) != 3 or key is None or value is None:
        raise UnknownShape("packed heads")
    width: DimLike = value[2] if len(value) == 3 else as_dim(product((value[1], value[3])))
    found: list[Typed] = [(call.dtype(), (*query[:2], width))]
    past = _given(call, 6)
    for dims in (key, value):
        apart = dims if len(dims) == 4 else (dims[0], heads, dims[1], as_dim(dims[2] // heads))
        length = apart[2] if past is None else as_dim(apart[2] + past[2])
        found.append((call.dtype(), (apart[0], heads, length, apart[3])))
    return found


def _group_query(call: ShapeCall) -> list[Typed]:
    """The output alone: how long the cache gets is said by numbers."""
    dims = call.dims()
    if _given(call, 1) is not None:
        return [(call.dtype(), dims)]
    heads, groups = call.attrs["num_heads"], call.attrs["kv_num_heads"]
    return [(call.dtype(), (*dims[:2], as_dim(dims[2] // (heads + 2 * groups) * heads)))]


CONTRIB: dict[tuple[str, str], Rule] = {
    ("", "SimplifiedLayerNormalization"): _simplified_norm,
    (MICROSOFT, "BiasGelu"): _like_first,
    (MICROSOFT, "FastGelu"): _like_first,
    (MICROSOFT, "FusedMatMul"): _fused_matmul,
    (MICROSOFT, "Gelu"): _like_first,
    (MICROSOFT, "GroupQueryAttention"): _group_query,
    (MICROSOFT, "MoE"): _like_first,
    (MICROSOFT, "MultiHeadAttention"): _multi_head,
    (MICROSOFT, "QMoE"): _like_first,
    (MICROSOFT, "QuickGelu"): _like_first,
    (MICROSOFT, "RotaryEmbedding"): _like_first,
    (MICROSOFT, "SkipLayerNormalization"): _skip_norm,
    (MICROSOFT, "SkipSimplifiedLayerNormalization"): _skip_norm,
}
"""The rules of operators of other domains, by domain and operator. An output that a rule leaves out keeps the type that
the file declares."""


def infer_contrib(domain: str, call: ShapeCall) -> list[Typed]:
    """Output types of ``call``. Raises UnknownShape where there is no rule, or the inputs do not say."""
    found = CONTRIB.get((domain, call.op_type))
    if found is None:
        raise UnknownShape(f"no shape rule for {domain}::{call.op_type}")
    return found(call)
