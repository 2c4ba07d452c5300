"""Linear layers and their weights: Gemm and its parts, batch norms, weights that are reshaped, joined or reordered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, dtype_of
from fx2onnx.optimize.rewrite import (
    Match,
    Rewrite,
    Why,
    attribute,
    attributes,
    dims_or_none,
    is_constant,
    is_float,
    operand,
    operand_produced_by,
    produced_by,
    required,
    same_dims,
    sole_use,
    static_dims,
)
from fx2onnx.optimize.weights import ArrangedTensor, Array, DerivedTensor, ScaledTensor, is_literal, tensors_of


@dataclass(frozen=True, eq=False)
class MatMulAddMatch(Match):
    product: ir.Node
    bias: ir.Value


class FuseMatMulAdd(Rewrite[MatMulAddMatch]):
    """``Add(MatMul(a, b), c)`` -> ``Gemm(a, b, c)``; also of a Gemm that has no bias yet.

    Shapes:    a [M, K], b [K, N], c broadcastable to [M, N]  ->  [M, N].
    Refuses:   rank other than 2, integers, a product read elsewhere, c wider than the product.
    """

    roots: ClassVar = ("Add",)
    since = 11
    moves_rounding = True

    def match(self, node: ir.Node) -> MatMulAddMatch | Why:
        found = operand_produced_by(node, "MatMul", "Gemm")
        if found is None:
            return Why("no operand is a MatMul or Gemm that nobody else reads")
        product, bias = found
        if product.op_type == "Gemm" and operand(product, 2) is not None:
            return Why("the Gemm has a bias")
        dims = dims_or_none(product.outputs[0])
        ranks = [len(dims_or_none(value) or ()) for value in product.inputs[:2]]
        if dims is None or ranks != [2, 2]:
            return Why("MatMul is not 2-D")
        bias_dims = dims_or_none(bias)
        if bias_dims is None or not same_dims(dims_or_none(node.outputs[0]), dims):
            return Why("the other operand is wider than the product")
        if len(bias_dims) > 2 or any(a != 1 and a != b for a, b in zip(bias_dims[::-1], dims[::-1], strict=False)):
            return Why("the other operand does not broadcast to the product")
        if not is_float(bias):
            return Why(f"runtimes have no Gemm of {bias.dtype}")
        return MatMulAddMatch(product, bias)

    def build(self, op: Emit, m: MatMulAddMatch) -> ir.Value:
        lhs, rhs = m.product.inputs
        return op.Gemm(lhs, rhs, m.bias, **attributes(m.product))


@dataclass(frozen=True, eq=False)
class GemmMatch(Match):
    source: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    dims: Dims


class UnflattenGemm(Rewrite[GemmMatch]):
    """``Reshape(Gemm(Reshape(x, [M, K]), w, b), [*, N])`` -> ``Add(MatMul(x, w), b)``.

    Shapes:    x [*, K], w [K, N], b broadcastable to [N]  ->  [*, N].
    Refuses:   a transposed operand, alpha or beta, a bias with rows, steps read elsewhere.
    Cost:      one node less; runtimes fuse the two again, and fuse an activation after them, too.
    """

    roots: ClassVar = ("Reshape",)
    moves_rounding = True

    def match(self, node: ir.Node) -> GemmMatch | Why:
        gemm = produced_by(node.inputs[0], "Gemm")
        if gemm is None or not sole_use(gemm.outputs[0]):
            return Why("the operand is no Gemm that nobody else reads")
        flat = produced_by(gemm.inputs[0], "Reshape", "Flatten")
        if flat is None or flat.inputs[0] is None:
            return Why("the Gemm's rows are not flattened")
        if any(attribute(gemm, name, default) != default for name, default in _PLAIN):
            return Why("the Gemm transposes or scales")
        source, bias = flat.inputs[0], operand(gemm, 2)
        dims, result, weight = (dims_or_none(v) for v in (source, node.outputs[0], gemm.inputs[1]))
        if dims is None or result is None or weight is None or len(dims) < 2:
            return Why("the rank is unknown")
        if dims[-1] != weight[0] or not same_dims(result, (*dims[:-1], weight[1])):
            return Why("the result is not laid out as the operand")
        bias_dims = dims_or_none(bias) if bias is not None else ()
        if bias_dims is None or len(bias_dims) > 1:
            return Why("the bias has rows")
        return GemmMatch(source, required(gemm, 1), bias, result)

    def build(self, op: Emit, m: GemmMatch) -> ir.Value:
        product = op.MatMul(m.source, m.weight, outputs=[(dtype_of(m.source), m.dims)])
        return product if m.bias is None else op.Add(product, m.bias)


_PLAIN = (("transA", 0), ("transB", 0), ("alpha", 1.0), ("beta", 1.0))


MAX_ROWS = 1 << 16
"""The largest number of indices that are looked at."""


@dataclass(frozen=True, eq=False)
class Arrangement(Match):
    weights: list[ir.Value]
    sizes: tuple[int, ...]
    arranged: Callable[..., Array]
    keeps_rows: bool


class ArrangeWeights(Rewrite[Arrangement]):
    """``Reshape(weight)``, ``Concat(weights)``, ``Gather(weight, every row once)`` -> an initializer of those numbers.

    Recurrent layers put their gates in ONNX's order and both directions into one tensor so, group norms their scales.

    Refuses:   a weight read elsewhere, which would be stored twice; indices that leave rows out or repeat them.
    Buffers:   the bytes are made when the file is written and not kept.
    """

    roots: ClassVar = ("Reshape", "Unsqueeze", "Squeeze", "Flatten", "Concat", "Gather")
    changes_weights = True

    def match(self, node: ir.Node) -> Arrangement | Why:
        operands = list(node.inputs) if node.op_type == "Concat" else [node.inputs[0]]
        weights: list[ir.Value] = []
        for weight in operands:
            if (
                weight is None
                or not is_constant(weight)
                or weight.const_value is None
                or is_literal(weight.const_value)
                or weight.dtype == ir.DataType.STRING
            ):
                return Why("an operand is no weight of numbers")
            if not sole_use(weight):
                return Why("a weight is read elsewhere; it would be stored twice")
            weights.append(weight)
        sizes = static_dims(node.outputs[0])
        if sizes is None or node.outputs[0].is_graph_output():
            return Why("the sizes are not known, or the result is a graph output")
        arranged = _arrangement(node, sizes)
        if arranged is None:
            return Why("rows are left out or repeated")
        return Arrangement(weights, sizes, arranged, _keeps_rows(node, sizes))

    def build(self, op: Emit, m: Arrangement) -> ir.Value:
        first = m.weights[0]
        name = f"{first.name}.arranged"
        kind = ArrangedTensor if m.keeps_rows else DerivedTensor
        tensor = kind(m.arranged, tensors_of(m.weights), dtype_of(first), m.sizes, name)
        return op.builder.add_initializer(name, tensor, m.sizes)


def _keeps_rows(node: ir.Node, sizes: tuple[int, ...]) -> bool:
    """Return whether the numbers along the last axis stay beside each other."""
    before = static_dims(node.inputs[0])
    if not before or not sizes or before[-1] != sizes[-1]:
        return False
    return node.op_type not in ("Concat", "Gather") or int(attribute(node, "axis", 0)) % len(before) != len(before) - 1


def _arrangement(node: ir.Node, sizes: tuple[int, ...]) -> Callable[..., Array] | None:
    """The function that the node applies to the arrays of its weights; None where numbers are lost or repeated."""
    if node.op_type == "Concat":
        axis = int(attribute(node, "axis", 0))
        return lambda *arrays: np.concatenate(arrays, axis)
    if node.op_type != "Gather":
        return lambda array: array.reshape(sizes)
    return _rows(node, operand(node, 1), int(attribute(node, "axis", 0)))


def _rows(node: ir.Node, indices: ir.Value | None, axis: int) -> Callable[..., Array] | None:
    weight: Any = node.inputs[0]
    dims = static_dims(weight)
    if indices is None or dims is None or not is_constant(indices) or indices.const_value is None:
        return None
    if not is_literal(indices.const_value) or indices.const_value.size > MAX_ROWS or not dims:
        return None
    given = np.asarray(indices.const_value.numpy())
    chosen = np.where(given < 0, given + dims[axis], given)
    if not np.array_equal(np.sort(chosen, axis=None), np.arange(dims[axis])):
        return None
    return lambda array: np.take(array, chosen, axis)


@dataclass(frozen=True, eq=False)
class BatchNormMatch(Match):
    layer: ir.Node
    weight: ir.Value
    bias: ir.Value | None
    statistics: list[ir.Value]
    channels: tuple[int, ...]
    epsilon: float


class FoldBatchNorm(Rewrite[BatchNormMatch]):
    """``BatchNormalization(Conv(x, w, b), gamma, beta, mean, var)`` -> ``Conv(x, w * s, (b - mean) * s + beta)``.

    Shapes:    s = gamma / sqrt(var + epsilon), one number for each output channel of w.
    Refuses:   training mode, weights that are not constant, a weight or product read elsewhere.
    Numerics:  s in float64, products in float32; each output differs by a few roundings.
    Buffers:   the new weights are computed when the file is written and not kept.
    """

    roots: ClassVar = ("BatchNormalization",)
    since = 9
    changes_weights = True
    moves_rounding = True

    def match(self, node: ir.Node) -> BatchNormMatch | Why:
        layer = produced_by(node.inputs[0], "Conv", "ConvTranspose", "Gemm")
        if layer is None:
            return Why("the input comes from no Conv, ConvTranspose or Gemm")
        if attribute(node, "training_mode", 0) or len(node.outputs) > 1:
            return Why("the statistics are those of the batch")
        if not sole_use(layer.outputs[0]):
            return Why("the layer's output is read elsewhere")
        weight, bias = layer.inputs[1], operand(layer, 2)
        statistics = [required(node, index) for index in range(1, 5)]
        if weight is None or not all(map(is_constant, (weight, *statistics))):
            return Why("a weight is not constant")
        if not sole_use(weight):
            return Why("the weight is read elsewhere; it would be stored twice")
        channels = static_dims(statistics[0])
        if bias is not None and (not is_constant(bias) or static_dims(bias) != channels):
            return Why("the bias is not one constant a channel")
        if not is_float(weight) or any(v is not None and v.dtype != weight.dtype for v in (*statistics, bias)):
            return Why("weights and statistics differ in dtype")
        sizes = static_dims(weight)
        if sizes is None or channels is None:
            return Why("the sizes of a weight are unknown")
        if layer.op_type == "Gemm" and (attribute(layer, "alpha", 1.0) != 1.0 or attribute(layer, "beta", 1.0) != 1.0):
            return Why("the Gemm scales its operands")
        return BatchNormMatch(layer, weight, bias, statistics, channels, attribute(node, "epsilon", 1e-5))

    def build(self, op: Emit, m: BatchNormMatch) -> ir.Value:
        sizes = static_dims(m.weight) or ()
        grouped, view = scale_view(m.layer, sizes)
        epsilon = m.epsilon  # not the match itself: the new weights would keep the old graph

        def factor(gamma: Array, variance: Array) -> Array:
            return _factor(gamma, variance, epsilon).reshape(view)

        def new_bias(gamma: Array, beta: Array, mean: Array, variance: Array, *bias: Array) -> Array:
            shift = (bias[0] if bias else 0.0) - mean.astype(np.float64)
            return np.asarray(shift * _factor(gamma, variance, epsilon) + beta)

        name = f"{m.weight.name}.folded"
        (own,), constants = tensors_of([m.weight]), tensors_of(m.statistics)
        weight = ScaledTensor(own, grouped, factor, [constants[0], constants[3]], name)
        stem = (m.weight.name or "").removesuffix(".T").removesuffix(".weight")
        bias_name = f"{m.bias.name if m.bias is not None else stem + '.bias'}.folded"
        sources = constants + tensors_of([] if m.bias is None else [m.bias])
        bias = DerivedTensor(new_bias, sources, dtype_of(m.weight), m.channels, bias_name)
        result: ir.Value = op.node(
            m.layer.op_type,
            m.layer.inputs[0],
            op.builder.add_initializer(name, weight, sizes),
            op.builder.add_initializer(bias_name, bias, m.channels),
            outputs=(op.result[0],),
            **attributes(m.layer),
        )
        return result


def _factor(gamma: Array, variance: Array, epsilon: float) -> Array:
    return np.asarray(gamma.astype(np.float64) / np.sqrt(variance.astype(np.float64) + epsilon))


def scale_view(layer: ir.Node, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    """The weight's dims split so that the output channels stand apart, and the dims of the factor beside them."""
    if layer.op_type == "Conv":
        return sizes, (-1,) + (1,) * (len(sizes) - 1)
    if layer.op_type == "Gemm":
        return sizes, (-1, 1) if attribute(layer, "transB", 0) else (1, -1)
    groups = attribute(layer, "group", 1)
    return (groups, sizes[0] // groups, *sizes[1:]), (groups, 1, sizes[1]) + (1,) * (len(sizes) - 2)
