"""Products: linear, matmul, addmm, bilinear and their kin."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.table.axes import flattened, squeeze, swap, unsqueeze, whole, zeros
from fx2onnx.aten_map.table.dtypes import FLOATS, as_dtype, opmath
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.builder import Key
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten
INT32, BOOL = ir.DataType.INT32, ir.DataType.BOOL
NARROW_INTEGERS = frozenset(
    [ir.DataType.BOOL, ir.DataType.UINT8, ir.DataType.INT8, ir.DataType.INT16, ir.DataType.UINT16]
)
"""MatMul has no such dtypes; products in int32 wrap to the same numbers."""


def product(op: Emit, lhs: ir.Value, rhs: ir.Value) -> ir.Value:
    """``MatMul`` in every dtype PyTorch multiplies in. Over no elements onnxruntime 1.31 gives what was in memory before."""
    dtype, length = op.dtype(lhs), op.dims(lhs)[-1]
    found = _product(op, lhs, rhs, dtype)
    if length == 0:
        return zeros(op, op.dims(found), dtype)
    if not op.may_be_zero(length):
        return found
    return op.Where(op.Equal(op.size(length), op.const(0)), op.const(0, op.dtype(found)), found)


def _product(op: Emit, lhs: ir.Value, rhs: ir.Value, dtype: ir.DataType) -> ir.Value:
    if dtype in NARROW_INTEGERS:
        return op.cast(op.MatMul(op.cast(lhs, INT32), op.cast(rhs, INT32)), dtype)
    if op.rank(rhs) == 1 and op.rank(lhs) > 1 and _is_transposed(op, lhs):
        return squeeze(op, op.MatMul(lhs, unsqueeze(op, rhs, 1)), op.rank(lhs) - 1)
    return op.MatMul(lhs, rhs)


def _is_transposed(op: Emit, value: ir.Value) -> bool:
    """onnxruntime 1.31 joins Transpose and MatMul, and then multiplies a vector with the matrix that is not transposed."""
    producer = op.producer(value)
    return producer is not None and producer.op_type == "Transpose"


def transposed_weight(op: Emit, weight: ir.Value) -> ir.Value:
    """``weight`` with its last two axes swapped; emitted once a weight."""
    key = Key("transposed", (weight,))
    found = op.builder.emitted.get(key)
    if found is None:
        found = swap(op, weight, op.rank(weight) - 2, op.rank(weight) - 1)
        op.builder.emitted[key] = found
    return found


def _rounds_beside(op: Emit, value: ir.Value, weight: ir.Value) -> bool:
    """Return whether onnxruntime 1.31 would round ``value`` to 8 bits: it makes a MatMulNBits of a MatMul with a dequantized matrix,
    unless what is multiplied has a constant scale of its own.
    """
    if not op.is_dequantized(weight):
        return False
    other = op.producer(value)
    if other is None or other.op_type != "DequantizeLinear":
        return True
    scale = other.inputs[1]
    return scale is not None and op.producer(scale) is not None


def dense(op: Emit, value: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """``value @ weight.T + bias``; one Gemm for matrices."""
    floating = op.dtype(value) in FLOATS
    if op.rank(value) == 2 and op.rank(weight) == 2 and floating and op.dims(value)[1] != 0:
        return op.Gemm(value, weight, bias, transB=1)
    if floating and op.rank(value) > 2 and op.rank(weight) == 2 and _rounds_beside(op, value, weight):
        rows = flattened(op, value, 0, op.rank(value) - 1)
        found = op.Gemm(rows, weight, bias, transB=1)
        return op.reshape(found, (*op.dims(value)[:-1], op.dims(weight)[0]))
    total = product(op, value, transposed_weight(op, weight) if op.rank(weight) == 2 else weight)
    if bias is not None and op.dtype(bias) != op.dtype(total):
        raise UserError("E203", f"a linear layer of {op.dtype(total).name} with a bias of {op.dtype(bias).name}")
    return total if bias is None else op.Add(total, bias)


_LINEAR = "Gemm(transB=1) for a matrix; else MatMul with the weight's Transpose (folded later), and Add"
register_shared(dense, _LINEAR, aten.linear.default)
register_shared(product, "MatMul", *overloads_of("matmul linalg_matmul mm bmm mv dot vdot"))


@translates(aten._int_mm.default)
def _int_mm(op: Emit, self: ir.Value, mat2: ir.Value) -> ir.Value:
    """_int_mm(Tensor self, Tensor mat2) -> Tensor"""
    return op.MatMul(op.cast(self, INT32), op.cast(mat2, INT32))


def scaled(op: Emit, value: ir.Value, factor: Any) -> ir.Value:
    """``value * factor``; nothing is emitted for 1."""
    if not isinstance(factor, ir.Value) and factor == 1:
        return value
    return op.Mul(value, as_dtype(op, factor, op.dtype(value)))


def _accumulated(op: Emit, self: ir.Value, beta: Any, alpha: Any, total: ir.Value) -> ir.Value:
    """``beta * self + alpha * total``; with beta 0, ``self`` is not even read (it may hold NaN).

    Half precision with factors is computed in float32, bools as integers.
    """
    dtype = op.result_dtype()
    plain = not isinstance(beta, ir.Value) and not isinstance(alpha, ir.Value) and beta in (0, 1) and alpha == 1
    inner = INT32 if dtype == BOOL else dtype if plain and op.dtype(total) == dtype else opmath(dtype)
    total = scaled(op, op.cast(total, inner), _whole(alpha, dtype))
    if not isinstance(beta, ir.Value) and beta == 0:
        return op.cast(total, dtype)
    return op.cast(op.Add(scaled(op, op.cast(self, inner), _whole(beta, dtype)), total), dtype)


def _without_product(op: Emit, self: ir.Value, beta: Any, alpha: Any) -> ir.Value | None:
    """``beta * self`` where alpha is 0, and None elsewhere: BLAS reads no operand of a product times 0, which may hold NaN. PyTorch's own
    kernels, of half precision, do.
    """
    if isinstance(alpha, ir.Value) or alpha != 0 or op.result_dtype() not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    if not isinstance(beta, ir.Value) and beta == 0:
        return op.expand(op.const(0, op.result_dtype()), op.result_dims())
    return op.expand(scaled(op, op.cast(self, op.result_dtype()), beta), op.result_dims())


def _whole(factor: Any, dtype: ir.DataType) -> Any:
    return int(factor) if dtype not in FLOATS and isinstance(factor, float) else factor


@translates(aten.addmm.default)
def addmm(op: Emit, self: ir.Value, mat1: ir.Value, mat2: ir.Value, beta: Any, alpha: Any) -> ir.Value:
    """addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1) -> Tensor

    ONNX:  one Gemm for floats.
    """
    alone = _without_product(op, self, beta, alpha)
    if alone is not None:
        return alone
    numbers = not isinstance(beta, ir.Value) and not isinstance(alpha, ir.Value)
    if op.dtype(mat1) in FLOATS and numbers and op.dims(mat1)[1] != 0:
        scales = [None if factor == 1 else float(factor) for factor in (alpha, beta)]
        return op.Gemm(mat1, mat2, None if beta == 0 else self, alpha=scales[0], beta=scales[1])
    return _accumulated(op, self, beta, alpha, product(op, mat1, mat2))


@translates(aten._addmm_activation.default)
def _addmm_activation(
    op: Emit, self: ir.Value, mat1: ir.Value, mat2: ir.Value, beta: Any, alpha: Any, use_gelu: bool
) -> ir.Value:
    """_addmm_activation(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1, bool use_gelu=False) -> Tensor"""
    from fx2onnx.aten_map.activations import gelu_of, relu

    total = addmm(op, self, mat1, mat2, beta, alpha)
    return gelu_of(op, total, "none") if use_gelu else relu(op, total)


@translates(aten.addmv.default)
def addmv(op: Emit, self: ir.Value, mat: ir.Value, vec: ir.Value, beta: Any, alpha: Any) -> ir.Value:
    """addmv(Tensor self, Tensor mat, Tensor vec, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    alone = _without_product(op, self, beta, alpha)
    return alone or op.expand(_accumulated(op, self, beta, alpha, product(op, mat, vec)), op.result_dims())


@translates(aten.addr.default)
def addr(op: Emit, self: ir.Value, vec1: ir.Value, vec2: ir.Value, beta: Any, alpha: Any) -> ir.Value:
    """addr(Tensor self, Tensor vec1, Tensor vec2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    dtype = op.result_dtype()
    inner = INT32 if dtype == BOOL else opmath(dtype)
    outer = op.Mul(unsqueeze(op, op.cast(vec1, inner), 1), op.cast(vec2, inner))
    return _accumulated(op, self, beta, alpha, outer)


@translates(aten.baddbmm.default)
def baddbmm(op: Emit, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Any, alpha: Any) -> ir.Value:
    """baddbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    return _accumulated(op, self, beta, alpha, product(op, batch1, batch2))


@translates(aten.addbmm.default)
def addbmm(op: Emit, self: ir.Value, batch1: ir.Value, batch2: ir.Value, beta: Any, alpha: Any) -> ir.Value:
    """addbmm(Tensor self, Tensor batch1, Tensor batch2, *, Scalar beta=1, Scalar alpha=1) -> Tensor"""
    dtype = op.dtype(batch1)
    inner = INT32 if dtype in NARROW_INTEGERS else opmath(dtype)
    alone = _without_product(op, self, beta, alpha)
    if alone is not None:
        return alone
    total = op.ReduceSum(op.MatMul(op.cast(batch1, inner), op.cast(batch2, inner)), axes=[0], keepdims=0)
    return _accumulated(op, self, beta, alpha, total)


@translates(aten.bilinear.default)
def bilinear(op: Emit, input1: ir.Value, input2: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """bilinear(Tensor input1, Tensor input2, Tensor weight, Tensor? bias=None) -> Tensor

    The products of all pairs of features, then one dense layer over them: ``y[o] = sum_ij x1[i] W[o, i, j] x2[j]``.
    """
    left, right, rank = op.dims(input1)[-1], op.dims(input2)[-1], op.rank(input1)
    pairs = op.Mul(unsqueeze(op, input1, rank), unsqueeze(op, input2, rank - 1))
    flat = whole(left * right)
    features = op.reshape(pairs, (*op.dims(input1)[:-1], flat))
    return dense(op, features, op.reshape(weight, (op.dims(weight)[0], flat)), bias)
