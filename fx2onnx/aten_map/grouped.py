"""Products of matrices in groups, as mixtures of experts use them: a Loop over the groups; experts as onnxruntime's operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.shapes.linear import MICROSOFT
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
BOOL, FLOAT, INT64 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.INT64

Product = Callable[[Emit, ir.Value, ir.Value, ir.Value], ir.Value]
"""(emitter, group, start, end) -> that group's product; the three numbers are int64 [1]."""


@translates(aten._grouped_mm.default)
def _grouped_mm(
    op: Emit,
    self: ir.Value,
    mat2: ir.Value,
    offs: ir.Value | None,
    bias: ir.Value | None,
    out_dtype: torch.dtype | None,
) -> ir.Value:
    """_grouped_mm(Tensor self, Tensor mat2, Tensor? offs=None, Tensor? bias=None, ScalarType? out_dtype=None) -> Tensor

    Shapes:  self [M, K] or [G, M, K], mat2 [G, K, N] or [K, N]; ``offs`` [G] says where each group ends along the axis
             that only one of the two splits: M, N, or (both without G) K, which gives [G, M, N].
    ONNX:    MatMul for two stacks of matrices; else a Loop of G rounds, its length read from ``offs``.
    """
    if offs is None:
        product = op.MatMul(self, mat2)
    elif op.rank(self) == 2 and op.rank(mat2) == 2:
        product = _stacked(op, offs, lambda op, _, start, end: op.MatMul(
            _part(op, self, 1, start, end), _part(op, mat2, 0, start, end)
        ))  # fmt: skip
    elif op.rank(self) == 2:
        product = _joined(op, offs, 0, lambda op, group, start, end: op.MatMul(
            _part(op, self, 0, start, end), _member(op, mat2, group)
        ))  # fmt: skip
    else:
        product = _joined(op, offs, 1, lambda op, group, start, end: op.MatMul(
            _member(op, self, group), _part(op, mat2, 1, start, end)
        ))  # fmt: skip
    if bias is not None:
        product = op.Add(product, bias)
    return product if out_dtype is None else op.cast(product, onnx_dtype(out_dtype))


def _part(op: Emit, matrix: ir.Value, axis: int, start: ir.Value, end: ir.Value) -> ir.Value:
    """``matrix[start:end]`` along ``axis``."""
    dims: list[DimLike] = list(op.dims(matrix))
    dims[axis] = Dim.symbol(op.builder.unique("group"))
    return op.Slice(matrix, start, end, op.const(np.array([axis])), outputs=[(op.dtype(matrix), dims)])


def _member(op: Emit, matrices: ir.Value, group: ir.Value) -> ir.Value:
    return op.Squeeze(op.Gather(matrices, group, axis=0), axes=[0])


def _stacked(op: Emit, offs: ir.Value, product: Product) -> ir.Value:
    """The products of all groups, one above the other: a scan output of the Loop."""
    ends, result = op.cast(offs, INT64), op.result[0]
    index, go_on, start = _formal(op)

    def round_(op: Emit) -> list[ir.Value]:
        group = op.Reshape(index, [1])
        end = op.Gather(ends, group, axis=0)
        return [op.Identity(go_on), end, product(op, group, start, end)]

    graph = op.subgraph("group", [index, go_on, start], round_)
    zero = op.const(np.array([0]))
    outputs = [(INT64, (1,)), result]
    _, stacked = op.Loop(op.size(op.dims(offs)[0]), op.const(np.array(True)), zero, body=graph, outputs=outputs)
    return stacked  # type: ignore[no-any-return]


def _joined(op: Emit, offs: ir.Value, axis: int, product: Product) -> ir.Value:
    """The products of all groups side by side along ``axis``, then zeros up to the result's size."""
    ends, (dtype, dims) = op.cast(offs, INT64), op.result[0]
    grown: list[DimLike] = list(dims)
    grown[axis] = Dim.symbol(op.builder.unique("grouped"))
    index, go_on, start = _formal(op)
    before = op.subgraph_input("before", dtype, tuple(grown))

    def round_(op: Emit) -> list[ir.Value]:
        group = op.Reshape(index, [1])
        end = op.Gather(ends, group, axis=0)
        both = op.Concat(before, product(op, group, start, end), axis=axis, outputs=[(dtype, tuple(grown))])
        return [op.Identity(go_on), end, both]

    graph = op.subgraph("group", [index, go_on, start, before], round_)
    none = [0 if place == axis else size for place, size in enumerate(dims)]
    outputs = [(INT64, (1,)), (dtype, tuple(grown))]
    end, joined = op.Loop(
        op.size(op.dims(offs)[0]), op.const(np.array(True)), op.const(np.array([0])), op.expand(op.const(0, dtype), none),
        body=graph, outputs=outputs,
    )  # fmt: skip
    return _padded(op, joined, axis, end)


def _padded(op: Emit, joined: ir.Value, axis: int, end: ir.Value) -> ir.Value:
    """Pad ``joined`` with zeros behind ``offs``, where PyTorch leaves the values undefined."""
    dtype, dims = op.result[0]
    missing = op.Sub(op.sizes([dims[axis]]), end)
    sizes = [missing if place == axis else op.sizes([size]) for place, size in enumerate(dims)]
    shape = op.Concat(*sizes, axis=0)
    rest: list[DimLike] = list(dims)
    rest[axis] = Dim.symbol(op.builder.unique("ungrouped"))
    zeros = op.Expand(op.const(0, dtype), shape, outputs=[(dtype, tuple(rest))])
    return op.Concat(joined, zeros, axis=axis, outputs=[op.result[0]])


def _formal(op: Emit) -> tuple[ir.Value, ir.Value, ir.Value]:
    """The body's round, condition and the end of the group before."""
    return (
        op.subgraph_input("round", INT64, ()),
        op.subgraph_input("go_on", BOOL, ()),
        op.subgraph_input("start", INT64, (1,)),
    )


LEAST_SHARE = 1e-30
"""The number in the place of a share of 0, which has no logarithm."""


def experts(
    op: Emit,
    x: ir.Value,
    index: ir.Value,
    shares: ir.Value,
    up: ir.Value,
    up_bias: ir.Value | None,
    down: ir.Value,
    down_bias: ir.Value | None,
    activation: str,
    alpha: float,
    beta: float,
    limit: float,
    interleaved: bool,
    turned: bool,
) -> ir.Value:
    """experts(Tensor x, Tensor index, Tensor shares, Tensor up, Tensor? up_bias, Tensor down, Tensor? down_bias, str activation, float alpha, float beta, float limit, bool interleaved, bool turned) -> Tensor

    Shapes:  x [T, H]; index, shares [T, k]; up [E, I, H], of swiglu [E, 2 * I, H]; down [E, H, I]; turned: [E, H, I], [E, I, H].
    ONNX:    MoE, which takes the numbers of a gate in turn, in rows.
    """
    if turned:
        up, down = (op.Transpose(weight, perm=[0, 2, 1]) for weight in (up, down))
    attrs: dict[str, Any] = {"k": int(op.dims(index)[1]), "activation_type": activation}  # type: ignore[arg-type]
    if activation == "swiglu":
        attrs |= {"swiglu_fusion": 1, "activation_alpha": alpha, "activation_beta": beta}
        attrs |= {} if limit == math.inf else {"swiglu_limit": limit}
        if not interleaved:
            rows = op.const(np.arange(int(op.dims(up)[1])).reshape(2, -1).T.reshape(-1))  # type: ignore[arg-type]
            up = op.Gather(up, rows, axis=1)
            up_bias = None if up_bias is None else op.Gather(up_bias, rows, axis=1)
    logits, is_scaled, total = _routing(op, index, shares, op.dims(up)[0])
    operands = [x, logits, up, up_bias, down, down_bias]
    while operands[-1] is None:
        operands.pop()
    typed = [(op.dtype(x), op.dims(x))]
    (found,) = op.custom(MICROSOFT, "MoE", operands, typed, normalize_routing_weights=is_scaled, **attrs)
    # onnxruntime (1.23 to 1.31) writes the result over x while it is read, unless x is read again afterwards.
    found = op.Where(op.const(True), found, x)
    return found if total is None else op.Mul(found, total)


def _routing(op: Emit, index: ir.Value, shares: ir.Value, count: DimLike) -> tuple[ir.Value, int, ir.Value | None]:
    """Logits whose softmax gives the shares of the chosen experts; whether they are divided by their sum, and what is left to
    multiply with: the router's own logits where they do, else logarithms of the shares.
    """
    known = _router_logits(op, index, shares)
    if known is not None:
        return *known, None
    dims = (op.dims(index)[0], count)
    logarithms = op.Log(op.Max(op.cast(shares, FLOAT), op.const(LEAST_SHARE, FLOAT)))
    logits = op.ScatterElements(op.expand(op.const(-math.inf, FLOAT), dims), index, logarithms, axis=1)
    return logits, 1, op.ReduceSum(op.cast(shares, FLOAT), axes=[1], keepdims=1)


def _router_logits(op: Emit, index: ir.Value, shares: ir.Value) -> tuple[ir.Value, int] | None:
    """The logits, and whether their shares are divided by their sum, where ``index`` and ``shares`` are the largest of a softmax;
    ``softmax(topk(logits))`` is such a quotient.
    """
    total, is_scaled = _made_by(op, shares, "Div"), 0
    if total is not None:
        summed = _made_by(op, _input(total, 1), "ReduceSum")
        if summed is None or summed.inputs[0] is not total.inputs[0] or op.dims(summed.outputs[0])[1:] != (1,):
            return None
        shares, is_scaled = _input(total, 0), 1
    after = None if is_scaled else _made_by(op, shares, "Softmax")
    largest = _made_by(op, shares if after is None else _input(after, 0), "TopK")
    if largest is None or largest.outputs[1] is not index or _is_smallest(largest):
        return None
    if after is not None:
        return _input(largest, 0), 1
    softmax = _made_by(op, _input(largest, 0), "Softmax")
    return None if softmax is None else (_input(softmax, 0), is_scaled)


def _made_by(op: Emit, value: ir.Value, op_type: str) -> ir.Node | None:
    """The node that makes ``value``, if it is one of these, along the last axis of two."""
    node = op.producer(value)
    axis = node.attributes.get("axis") if node is not None else None
    is_last = axis is None or axis.as_int() in (-1, 1)
    return node if node is not None and node.op_type == op_type and is_last else None


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _is_smallest(node: ir.Node) -> bool:
    return "largest" in node.attributes and not node.attributes["largest"].as_int()
