"""Products of matrices in groups, as mixtures of experts use them: a Loop over the groups."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.dtypes import onnx_dtype
from fx2onnx.aten_map.table.registry import translates
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten
BOOL, INT64 = ir.DataType.BOOL, ir.DataType.INT64

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
