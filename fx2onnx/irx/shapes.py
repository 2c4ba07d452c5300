"""dtype and dims of the outputs of the ONNX operators that translations emit.

One table, ``RULES``: operator -> rule. A rule takes a ``Call`` (inputs, attributes) and returns one ``(dtype, dims)``
per output. Only what is needed while building a graph lives here; ``onnx.shape_inference`` remains the judge in tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx_ir as ir

from fx2onnx.base.dims import Dim, DimLike, apply, product
from fx2onnx.irx.values import Dims, dims_of, dtype_of, known_ints, known_sizes, rank_of

Typed: TypeAlias = tuple[ir.DataType, Dims]
BOOL, INT64, FLOAT = ir.DataType.BOOL, ir.DataType.INT64, ir.DataType.FLOAT


@dataclass(slots=True)
class Call:
    """One operator call whose output types are wanted."""

    op_type: str
    inputs: Sequence[ir.Value | None]
    attrs: dict[str, Any]
    num_outputs: int
    names: tuple[str, ...]

    def value(self, index: int) -> ir.Value:
        found = self.inputs[index]
        assert found is not None, f"{self.op_type} lacks input {index}"
        return found

    def dims(self, index: int = 0) -> Dims:
        return dims_of(self.value(index))

    def dtype(self, index: int = 0) -> ir.DataType:
        return dtype_of(self.value(index))

    def optional(self, name: str) -> ir.Value | None:
        """The input of that name, if given."""
        index = self.names.index(name) if name in self.names else -1
        return self.inputs[index] if 0 <= index < len(self.inputs) else None

    def ints(self, name: str) -> list[int] | None:
        """An integer list that is an attribute in some opsets and an input in others."""
        if name in self.attrs:
            return list(self.attrs[name])
        return known_ints(self.optional(name))


Rule: TypeAlias = Callable[[Call], list[Typed]]
RULES: dict[str, Rule] = {}


class UnknownShape(Exception):
    """The rule cannot tell; the caller has to give the output types."""


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for op_type in op_types:
            assert op_type not in RULES, f"two shape rules for {op_type}"
            RULES[op_type] = function
        return function

    return register


def infer(call: Call) -> list[Typed]:
    """Output types of ``call``. Raises UnknownShape."""
    found = RULES.get(call.op_type)
    if found is None:
        raise UnknownShape(f"no shape rule for {call.op_type}")
    return found(call)


def broadcast_dims(*shapes: Sequence[DimLike]) -> Dims:
    """NumPy broadcasting. A symbolic size beside a fixed size other than 1 is taken to be that size."""
    rank = max(map(len, shapes))
    result: list[DimLike] = []
    for axis in range(rank):
        size: DimLike = 1
        for shape in shapes:
            index = axis - rank + len(shape)
            if index < 0:
                continue
            dim = shape[index]
            if size == 1 or (isinstance(size, Dim) and isinstance(dim, int) and dim != 1):
                size = dim
        result.append(size)
    return tuple(result)


@rule(
    *[
        "Abs",
        "Acos",
        "Acosh",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "BitwiseNot",
        "Ceil",
        "Celu",
        "Clip",
        "Cos",
        "Cosh",
        "CumSum",
        "CumProd",
        "Dropout",
        "Elu",
        "Erf",
        "Exp",
        "Floor",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Hardmax",
        "Identity",
        "InstanceNormalization",
        "GroupNormalization",
        "LRN",
        "LeakyRelu",
        "Log",
        "LogSoftmax",
        "LpNormalization",
        "MeanVarianceNormalization",
        "Mish",
        "Neg",
        "Not",
        "PRelu",
        "RMSNormalization",
        "Reciprocal",
        "Relu",
        "Round",
        "ScatterElements",
        "ScatterND",
        "Selu",
        "Shrink",
        "Sigmoid",
        "Sign",
        "Sin",
        "Sinh",
        "Softmax",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Trilu",
        "Bernoulli",
        "RotaryEmbedding",
        "ReverseSequence",
    ]
)
def _same(call: Call) -> list[Typed]:
    first = (call.dtype(), call.dims())
    return [first] + [(BOOL, call.dims())] * (call.num_outputs - 1)


@rule(
    *[
        "Add",
        "BitShift",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "Div",
        "Mod",
        "Mul",
        "Pow",
        "Sub",
        "Max",
        "Mean",
        "Min",
        "Sum",
        "And",
        "Or",
        "Xor",
    ]
)
def _binary(call: Call) -> list[Typed]:
    return [(call.dtype(), broadcast_dims(*(call.dims(i) for i in range(len(call.inputs)))))]


@rule("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
def _compare(call: Call) -> list[Typed]:
    return [(BOOL, broadcast_dims(call.dims(0), call.dims(1)))]


@rule("IsNaN", "IsInf")
def _predicate(call: Call) -> list[Typed]:
    return [(BOOL, call.dims())]


@rule("Where")
def _where(call: Call) -> list[Typed]:
    return [(call.dtype(1), broadcast_dims(call.dims(0), call.dims(1), call.dims(2)))]


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
    return [(call.dtype(), call.dims())] + [(call.dtype(3), call.dims(3))] * (call.num_outputs - 1)


@rule("LayerNormalization")
def _layer_norm(call: Call) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", -1) % len(dims)
    reduced = dims[:axis] + (1,) * (len(dims) - axis)
    return [(call.dtype(), dims)] + [(FLOAT, reduced)] * (call.num_outputs - 1)


@rule("MatMul", "MatMulInteger")
def _matmul(call: Call) -> list[Typed]:
    dtype = ir.DataType.INT32 if call.op_type == "MatMulInteger" else call.dtype()
    return [(dtype, matmul_dims(call.dims(0), call.dims(1)))]


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
    rows = call.dims(0)[1 if call.attrs.get("transA") else 0]
    columns = call.dims(1)[0 if call.attrs.get("transB") else 1]
    return [(call.dtype(), (rows, columns))]


@rule("Transpose")
def _transpose(call: Call) -> list[Typed]:
    dims = call.dims()
    perm = call.attrs.get("perm") or tuple(reversed(range(len(dims))))
    return [(call.dtype(), tuple(dims[axis] for axis in perm))]


@rule("Reshape")
def _reshape(call: Call) -> list[Typed]:
    target = known_sizes(call.value(1))
    if target is None:
        raise UnknownShape("Reshape to a computed shape")
    dims = call.dims()
    if not call.attrs.get("allowzero"):
        target = [dims[axis] if size == 0 else size for axis, size in enumerate(target)]
    if -1 in target:
        hole = target.index(-1)
        rest = product([size for axis, size in enumerate(target) if axis != hole])
        target[hole] = _as_dim(product(dims) // rest) if rest != 0 else 0
    return [(call.dtype(), tuple(target))]


def _as_dim(size: Any) -> DimLike:
    return size if isinstance(size, Dim) else int(size)


@rule("Flatten")
def _flatten(call: Call) -> list[Typed]:
    dims, axis = call.dims(), call.attrs.get("axis", 1)
    axis = axis % len(dims) if axis < 0 else axis
    return [(call.dtype(), (product(dims[:axis]), product(dims[axis:])))]


@rule("Squeeze")
def _squeeze(call: Call) -> list[Typed]:
    dims, axes = call.dims(), call.ints("axes")
    if axes is None:
        gone = {axis for axis, size in enumerate(dims) if size == 1}
    else:
        gone = {axis % len(dims) for axis in axes}
    return [(call.dtype(), tuple(size for axis, size in enumerate(dims) if axis not in gone))]


@rule("Unsqueeze")
def _unsqueeze(call: Call) -> list[Typed]:
    axes = call.ints("axes")
    if axes is None:
        raise UnknownShape("Unsqueeze of computed axes")
    rank = rank_of(call.value(0)) + len(axes)
    new = {axis % rank for axis in axes}
    rest = iter(call.dims())
    return [(call.dtype(), tuple(1 if axis in new else next(rest) for axis in range(rank)))]


@rule("Expand")
def _expand(call: Call) -> list[Typed]:
    target = known_sizes(call.value(1))
    if target is None:
        raise UnknownShape("Expand to a computed shape")
    return [(call.dtype(), broadcast_dims(call.dims(), target))]


@rule("Tile")
def _tile(call: Call) -> list[Typed]:
    repeats = known_sizes(call.value(1))
    if repeats is None:
        raise UnknownShape("Tile by computed repeats")
    return [(call.dtype(), tuple(_as_dim(size * times) for size, times in zip(call.dims(), repeats, strict=True)))]


@rule("Concat")
def _concat(call: Call) -> list[Typed]:
    dims = list(call.dims())
    axis = call.attrs["axis"] % len(dims)
    total: Any = 0
    for index in range(len(call.inputs)):
        total = total + call.dims(index)[axis]
    dims[axis] = total
    return [(call.dtype(), tuple(dims))]


@rule("Split")
def _split(call: Call) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", 0) % len(dims)
    sizes: Sequence[DimLike] | None = call.attrs.get("split") or known_sizes(call.optional("split"))
    if sizes is None:
        if not isinstance(dims[axis], int):
            raise UnknownShape("Split of a symbolic size")
        chunk = -(-dims[axis] // call.num_outputs)
        sizes = [min(chunk, dims[axis] - chunk * index) for index in range(call.num_outputs)]
    return [(call.dtype(), (*dims[:axis], size, *dims[axis + 1 :])) for size in sizes]


@rule("Slice")
def _slice(call: Call) -> list[Typed]:
    starts, ends = (known_sizes(call.optional(name)) for name in ("starts", "ends"))
    axes = call.ints("axes")
    if starts is None or ends is None:
        raise UnknownShape("Slice by computed bounds")
    dims = list(call.dims())
    axes = list(range(len(starts))) if axes is None else axes
    steps = call.ints("steps") or [1] * len(axes)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        dims[axis] = slice_size(dims[axis], start, end, step)
    return [(call.dtype(), tuple(dims))]


def slice_size(size: DimLike, start: DimLike, end: DimLike, step: int) -> DimLike:
    """How many elements ``[start:end:step]`` takes of ``size``. Raises UnknownShape for symbolic bounds that differ."""
    if isinstance(size, int) and isinstance(start, int) and isinstance(end, int):
        return len(range(*slice(start, end if step > 0 or end >= -size else None, step).indices(size)))
    if isinstance(start, int) and start == 0 and step == 1:
        if isinstance(end, int) and end >= 2**31 - 1:
            return size
        if end == size:
            return size
    if step == 1 and isinstance(end, int) and end >= 2**31 - 1 and isinstance(start, int):
        if start < 0:
            raise UnknownShape("Slice from the end of a symbolic size")
        return _as_dim(apply("max", size - start, 0))
    if step == 1 and not isinstance(end, int) and not (isinstance(start, int) and start < 0):
        return _as_dim(end - start)
    raise UnknownShape("Slice of a symbolic size")


@rule("Gather")
def _gather(call: Call) -> list[Typed]:
    dims = call.dims()
    axis = call.attrs.get("axis", 0) % len(dims)
    return [(call.dtype(), (*dims[:axis], *call.dims(1), *dims[axis + 1 :]))]


@rule("GatherElements")
def _gather_elements(call: Call) -> list[Typed]:
    return [(call.dtype(), call.dims(1))]


@rule("GatherND")
def _gather_nd(call: Call) -> list[Typed]:
    data, indices = call.dims(), call.dims(1)
    batch, depth = call.attrs.get("batch_dims", 0), indices[-1]
    if not isinstance(depth, int):
        raise UnknownShape("GatherND of a symbolic depth")
    return [(call.dtype(), indices[:-1] + data[batch + depth :])]


@rule("Shape")
def _shape(call: Call) -> list[Typed]:
    count = len(range(rank_of(call.value(0)))[call.attrs.get("start", 0) : call.attrs.get("end")])
    return [(INT64, (count,))]


@rule("Size")
def _size(call: Call) -> list[Typed]:
    return [(INT64, ())]


@rule("ConstantOfShape")
def _constant_of_shape(call: Call) -> list[Typed]:
    dims = known_sizes(call.value(0))
    if dims is None:
        raise UnknownShape("ConstantOfShape of a computed shape")
    value = call.attrs.get("value")
    return [(FLOAT if value is None else value.dtype, tuple(dims))]


@rule("Pad")
def _pad(call: Call) -> list[Typed]:
    pads, dims = known_sizes(call.optional("pads")), list(call.dims())
    if pads is None:
        raise UnknownShape("Pad by computed pads")
    axes = call.ints("axes") or list(range(len(dims)))
    for place, axis in enumerate(axes):
        dims[axis] = _as_dim(dims[axis] + pads[place] + pads[place + len(axes)])
    return [(call.dtype(), tuple(dims))]


@rule("OneHot")
def _one_hot(call: Call) -> list[Typed]:
    depth = known_sizes(call.value(1))
    if depth is None:
        raise UnknownShape("OneHot of a computed depth")
    dims = list(call.dims())
    axis = call.attrs.get("axis", -1) % (len(dims) + 1)
    return [(call.dtype(2), (*dims[:axis], depth[0], *dims[axis:]))]


@rule("TopK")
def _top_k(call: Call) -> list[Typed]:
    count, dims = known_sizes(call.value(1)), list(call.dims())
    if count is None:
        raise UnknownShape("TopK of a computed k")
    dims[call.attrs.get("axis", -1)] = count[0]
    return [(call.dtype(), tuple(dims)), (INT64, tuple(dims))]


@rule(
    *[
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    ]
)
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
        size = _as_dim(steps + 1)
        if attrs.get("ceil_mode") and isinstance(size, int) and isinstance(dims[axis], int):
            size -= (size - 1) * strides[axis] >= dims[axis] + pads[axis]
        result.append(size)
    return tuple(result)


@rule("Range")
def _range(call: Call) -> list[Typed]:
    bounds = [known_sizes(call.value(index)) for index in range(3)]
    if any(bound is None for bound in bounds):
        raise UnknownShape("Range over computed bounds")
    start, limit, delta = (bound[0] for bound in bounds if bound is not None)
    return [(call.dtype(), (_as_dim(apply("max", -((start - limit) // delta), 0)),))]


@rule("NonZero")
def _non_zero(call: Call) -> list[Typed]:
    raise UnknownShape("NonZero's size depends on data")


@rule("DepthToSpace")
def _depth_to_space(call: Call) -> list[Typed]:
    batch, channels, height, width = call.dims()
    block = call.attrs["blocksize"]
    return [
        (call.dtype(), (batch, _as_dim(channels // (block * block)), _as_dim(height * block), _as_dim(width * block)))
    ]


@rule("SpaceToDepth")
def _space_to_depth(call: Call) -> list[Typed]:
    batch, channels, height, width = call.dims()
    block = call.attrs["blocksize"]
    return [
        (call.dtype(), (batch, _as_dim(channels * (block * block)), _as_dim(height // block), _as_dim(width // block)))
    ]


@rule("QuantizeLinear")
def _quantize(call: Call) -> list[Typed]:
    zero_point = call.optional("y_zero_point")
    target = call.attrs.get("output_dtype")
    dtype = dtype_of(zero_point) if zero_point is not None else ir.DataType(target) if target else ir.DataType.UINT8
    return [(dtype, call.dims())]


@rule("DequantizeLinear")
def _dequantize(call: Call) -> list[Typed]:
    return [(call.dtype(1), call.dims())]
