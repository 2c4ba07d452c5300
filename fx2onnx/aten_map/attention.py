"""Scaled dot-product attention."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import safe_softmax, softmax_of
from fx2onnx.aten_map.dropout import dropped
from fx2onnx.aten_map.table.axes import filled, steps, swap, unsqueeze, whole
from fx2onnx.aten_map.table.registry import overloads_of, register_shared
from fx2onnx.base.errors import UserError
from fx2onnx.irx.builder import Key
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import Dim, DimLike, apply

aten = torch.ops.aten
BOOL, FLOAT, FLOAT16, BFLOAT16 = ir.DataType.BOOL, ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16
MAX_CONSTANT_MASK = 4096
"""A causal mask of up to this many numbers is a constant; a larger one is two nodes over two vectors."""
MAX_INSPECTED = 1 << 20
"""Constants up to this many numbers are searched for minus infinity."""
MAX_ANCESTORS = 200
"""The number of values that are looked at before a mask is taken to hold minus infinity."""
UNBOUNDED = frozenset(["Log", "Div", "Reciprocal", "Loop", "Scan", "If"])
"""Operators that give minus infinity from finite numbers."""
BOUNDED = frozenset(["Softmax", "Sigmoid", "Tanh", "Cos", "Sin", "ConstantOfShape", "Erf"])
"""Operators that never do."""


def minus_infinity_where(op: Emit, condition: ir.Value, dtype: ir.DataType, when: bool) -> ir.Value:
    """0, and minus infinity where ``condition`` is ``when``; emitted once a condition."""
    key = Key("minus infinity", (condition,), (dtype, when))
    found = op.builder.emitted.get(key)
    if found is None:
        zero, low = op.const(0, dtype), op.const(-math.inf, dtype)
        found = op.Where(condition, low, zero) if when else op.Where(condition, zero, low)
        op.builder.emitted[key] = found
    return found


def causal_bias(op: Emit, rows: DimLike, columns: DimLike, dtype: ir.DataType) -> ir.Value:
    """[rows, columns]: minus infinity above the diagonal that starts at the top left."""
    key = Key("causal", rest=(rows, columns, dtype))
    found = op.builder.emitted.get(key)
    if found is None:
        if not isinstance(rows, Dim) and not isinstance(columns, Dim) and rows * columns <= MAX_CONSTANT_MASK:
            found = op.const(np.triu(np.full((rows, columns), -np.inf), 1), dtype)
        else:
            row = op.const(np.arange(rows)[:, None]) if isinstance(rows, int) else unsqueeze(op, steps(op, rows), 1)
            later = op.Greater(steps(op, columns), row)
            found = minus_infinity_where(op, later, dtype, True)
        op.builder.emitted[key] = found
    return found


def joint_mask(
    op: Emit, query: ir.Value, key: ir.Value, mask: ir.Value | None, is_causal: bool
) -> tuple[ir.Value | None, bool]:
    """(mask, is_causal) where not both are given: a mask and the causal one are added."""
    if mask is None or not is_causal:
        return mask, is_causal
    dtype = op.dtype(query)
    bias = minus_infinity_where(op, mask, dtype, False) if op.dtype(mask) == BOOL else op.cast(mask, dtype)
    return op.Add(bias, causal_bias(op, op.dims(query)[-2], op.dims(key)[-2], dtype)), False


def may_mask_all(op: Emit, mask: ir.Value) -> bool:
    """Return whether a row of the mask may allow nothing: any row of a bool one; looked for once a mask."""
    if op.dtype(mask) == BOOL:
        return True
    verdicts = op.builder.verdicts
    key = Key("may mask all", (mask,))
    if key not in verdicts:
        verdicts[key] = may_be_minus_infinity(op, mask)
    return verdicts[key]


def may_be_minus_infinity(op: Emit, value: ir.Value) -> bool:
    """Return whether a number in ``value`` may be minus infinity: whether one can be found in what it is computed from.

    Float inputs of the graph may be anything; parameters are finite unless they are seen not to be.
    """
    waiting, seen = [value], {id(value)}
    while waiting:
        current = waiting.pop()
        if not op.is_float(current):
            continue
        if op.is_constant(current):
            numbers = op.constant(current, most=MAX_INSPECTED)
            if numbers is not None and bool(np.isneginf(numbers.astype(np.float32)).any()):
                return True
            continue
        producer = op.producer(current)
        if producer is None or producer.op_type in UNBOUNDED or len(seen) > MAX_ANCESTORS:
            return True
        if producer.op_type in BOUNDED:
            continue
        fresh = [operand for operand in producer.inputs if operand is not None and id(operand) not in seen]
        seen.update(map(id, fresh))
        waiting += fresh
    return False


def rows_with_any(op: Emit, mask: ir.Value) -> ir.Value:
    """[..., L, 1]: whether a row of a bool mask allows anything, or a row of a float one is not all minus infinity."""
    key = Key("rows with any", (mask,))
    found = op.builder.emitted.get(key)
    if found is None:
        mask = mask if op.rank(mask) else unsqueeze(op, mask, 0)
        if op.dtype(mask) != BOOL:
            top = op.ReduceMax(mask, axes=[-1], keepdims=1)
            found = op.Not(op.Equal(top, op.const(-math.inf, op.dtype(mask))))
        elif op.opset >= 20:
            found = op.ReduceMax(mask, axes=[-1], keepdims=1)
        else:
            found = op.Cast(op.ReduceMax(op.Cast(mask, to=FLOAT), axes=[-1], keepdims=1), to=BOOL)
        op.builder.emitted[key] = found
    return found


def default_scale(op: Emit, query: ir.Value, scale: float | None) -> float | Dim:
    """``scale``, or 1 / sqrt(size of the last axis)."""
    if scale is not None:
        return scale
    size = op.dims(query)[-1]
    if isinstance(size, Dim):
        return apply("truediv", 1, apply("sqrt", size))
    return 1 / math.sqrt(size) if size else 1.0


def probabilities(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    bias: ir.Value | None,
    scale: float | Dim,
    dropout: float = 0,
    is_safe: bool = False,
) -> ir.Value:
    """softmax(scale * query @ key.T + bias); ``is_safe``: 0 where all scores are minus infinity."""
    dtype = op.dtype(query)
    if isinstance(scale, Dim):
        query = op.Mul(query, op.size(scale, dtype))
    elif scale != 1:
        query = op.Mul(query, op.const(scale, dtype))
    scores = op.MatMul(query, swap(op, key, op.rank(key) - 2, op.rank(key) - 1))
    if bias is not None:
        scores = op.Add(scores, op.cast(bias, dtype))
    weights = safe_softmax(op, scores, -1) if is_safe else softmax_of(op, scores, -1)
    return dropped(op, weights, dropout) if dropout > 0 else weights


def attended(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
    need_weights: bool = False,
    kept: ir.Value | None = None,
) -> tuple[ir.Value, ir.Value | None]:
    """Output and, if asked, the attention weights. ``kept``: where dropout leaves them, in place of a random choice.

    Rows in which a mask allows nothing give 0, as PyTorch's kernels do, not the NaN of a plain softmax.
    Numerics:  half precision in float32, as PyTorch's kernels; scores of 8 or 11 bits would be off by whole numbers.
    """
    dtype = op.dtype(query)
    mask, is_causal = joint_mask(op, query, key, mask, is_causal)
    as_one = not need_weights and _fits_attention(op, query, key, value, mask, dropout, grouped)
    if dtype == BFLOAT16 or (dtype == FLOAT16 and not as_one):
        wide = [op.cast(operand, FLOAT) for operand in (query, key, value)]
        soft = mask if mask is None or op.dtype(mask) != dtype else op.cast(mask, FLOAT)
        found = attended(op, wide[0], wide[1], wide[2], soft, dropout, is_causal, scale, grouped, need_weights, kept)
        return op.cast(found[0], dtype), None if found[1] is None else op.cast(found[1], dtype)
    valid = None
    if mask is not None and not need_weights and may_mask_all(op, mask):
        valid = rows_with_any(op, mask)
    weights = None
    if as_one:
        output = op.Attention(
            query,
            key,
            value,
            mask,
            is_causal=int(is_causal) or None,
            scale=scale,
            outputs=[(op.dtype(query), (*op.dims(query)[:-1], op.dims(value)[-1]))],
        )
    else:
        output, weights = _by_products(
            op, query, key, value, mask, dropout, is_causal, scale, grouped, need_weights, kept
        )
    if valid is not None:
        output = op.Where(valid, output, op.const(0, op.dtype(output)))
    return output, weights if need_weights else None


def _fits_attention(
    op: Emit, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, dropout: float, grouped: bool
) -> bool:
    if op.opset < 23 or dropout > 0 or op.rank(query) != 4 or op.rank(key) != 4 or op.rank(value) != 4:
        return False
    if op.dims(query)[0] != op.dims(key)[0] or (not grouped and op.dims(query)[1] != op.dims(key)[1]):
        return False
    if mask is None:
        return True
    whole = (op.dims(query)[-2], op.dims(key)[-2])
    return 2 <= op.rank(mask) <= 4 and op.dims(mask)[-2:] == whole and op.dtype(mask) in (BOOL, op.dtype(query))


def _by_products(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    mask: ir.Value | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
    grouped: bool,
    is_safe: bool,
    kept: ir.Value | None,
) -> tuple[ir.Value, ir.Value]:
    dtype, dims = op.dtype(query), op.dims(query)
    bias = mask
    if is_causal:
        bias = causal_bias(op, dims[-2], op.dims(key)[-2], dtype)
    elif mask is not None and op.dtype(mask) == BOOL:
        bias = minus_infinity_where(op, mask, dtype, False)
    factor = default_scale(op, query, scale)
    groups = op.dims(key)[-3] if grouped else 1
    if not grouped or groups == dims[-3]:
        weights = probabilities(op, query, key, bias, factor, dropout if kept is None else 0, is_safe)
        if kept is not None:
            weights = op.Where(op.cast(kept, BOOL), weights, op.const(0, dtype))
            value = op.Mul(value, op.const(1 / (1 - dropout) if dropout != 1 else math.inf, dtype))
        return op.MatMul(weights, value), weights
    if kept is not None:
        raise UserError("E203", "attention of grouped heads with a dropout_mask", next="repeat the keys and values")
    place = len(dims) - 3
    times = whole(dims[-3] // groups)
    query = op.reshape(query, (*dims[:-3], groups, times, *dims[-2:]))
    if bias is not None and op.rank(bias) > 2:
        heads = op.dims(bias)[-3]
        split = (1, 1) if heads == 1 else (groups, times)
        bias = op.reshape(bias, (*op.dims(bias)[:-3], *split, *op.dims(bias)[-2:]))
    weights = probabilities(op, query, unsqueeze(op, key, place + 1), bias, factor, dropout, is_safe)
    output = op.MatMul(weights, unsqueeze(op, value, op.rank(value) - 2))
    return op.reshape(output, (*dims[:-1], op.dims(value)[-1])), weights


def _check_pairs(op: Emit, query: ir.Value, key: ir.Value, value: ir.Value) -> None:
    """Refuse (E203) what kernels of PyTorch's take unchecked."""
    rows = (op.dims(key)[-2], op.dims(value)[-2])
    pairs = zip(op.dims(key)[:-2][::-1], op.dims(value)[:-2][::-1], strict=False)
    unlike = [pair for pair in pairs if all(isinstance(size, int) and size != 1 for size in pair) and len({*pair}) > 1]
    if unlike:
        raise UserError(
            "E203",
            f"attention of {unlike[0][0]} keys over {unlike[0][1]} values along an axis before the last two",
            why="PyTorch's kernels read a value for each key",
            next="pass keys and values of the same batches and heads",
        )
    if not op.is_float(query) or (rows[0] != rows[1] and all(isinstance(size, int) for size in rows)):
        raise UserError(
            "E203",
            f"attention of {op.dtype(query).name} queries over {rows[0]} keys and {rows[1]} values",
            why="PyTorch's kernels are for floats and read a value for each key",
            next="pass floats, and as many values as keys",
        )


def _scaled_dot_product(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    attn_mask: ir.Value | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    dropout_mask: ir.Value | None = None,
) -> ir.Value | tuple[ir.Value, ir.Value | None]:
    _check_pairs(op, query, key, value)
    if attn_mask is not None and is_causal and op.rank(query) != 4:
        raise UserError(
            "E101",
            "attention of other than four axes with a mask and is_causal=True",
            next="put causality into the mask",
        )
    if attn_mask is not None and op.dtype(attn_mask) not in (BOOL, FLOAT, op.dtype(query)):
        raise UserError(
            "E101",
            f"a mask of {op.dtype(attn_mask).name} beside queries of {op.dtype(query).name}",
            next="give a mask of bool, of float32 or of the queries' dtype",
        )
    need_weights = len(op.result) > 1
    if need_weights and attn_mask is not None and op.dtype(attn_mask) == BOOL:
        attn_mask = op.cast(attn_mask, op.dtype(query))  # this overload adds what it gets: True is 1
    if op.dtype(query) == FLOAT:  # beside operands of half precision
        key, value = op.cast(key, FLOAT), op.cast(value, FLOAT)
    kept = dropout_mask if dropout_p > 0 else None
    output, weights = attended(
        op, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, need_weights, kept
    )
    if 0 in op.result_dims():
        output = filled(op, op.result_dims(), 0, op.dtype(output))
    if weights is None:
        return output
    return output, weights if op.dims(weights) == op.result_dims(1) else op.reshape(weights, op.result_dims(1))


def _fused(
    op: Emit,
    query: ir.Value,
    key: ir.Value,
    value: ir.Value,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    attn_mask: ir.Value | None = None,
    attn_bias: ir.Value | None = None,
) -> tuple[ir.Value | None, ...]:
    """The output, and of the CPU's kernel the log-sum-exp of the scores; what the others give serves their backward pass."""
    _check_pairs(op, query, key, value)
    mask = attn_bias if attn_mask is None else attn_mask
    heads = [op.dims(operand)[-3] for operand in (query, key, value)]
    batches = {size for operand in (query, key, value) if isinstance(size := op.dims(operand)[0], int)}
    if len(batches) > 1:
        raise UserError("E203", f"attention of batches of {sorted(batches)}", next="expand the operands to one batch")
    is_known = isinstance(heads[0], int) and isinstance(heads[1], int) and heads[1] > 0
    if heads[1] != heads[2] or (is_known and heads[0] % heads[1] != 0):
        raise UserError(
            "E203",
            f"attention of {heads[0]} heads over {heads[1]} heads of keys and {heads[2]} of values",
            why="each head of keys and values serves as many heads of queries",
            next="repeat the keys and values",
        )
    output = attended(op, query, key, value, mask, dropout_p, is_causal, scale, True)[0]
    if len(op.result) == 2:
        return output, _log_sum_of_scores(op, query, key, mask, is_causal, scale)
    return (output, *(None for _ in op.result[1:]))


def _log_sum_of_scores(
    op: Emit, query: ir.Value, key: ir.Value, mask: ir.Value | None, is_causal: bool, scale: float | None
) -> ir.Value:
    """log of the sum of exp(scale * query @ key.T + mask) over the keys: [batch, heads, queries]; 0 of rows that see no key."""
    dtype = op.result_dtype(1)
    mask, is_causal = joint_mask(op, query, key, mask, is_causal)
    wide, other = op.cast(query, dtype), op.cast(key, dtype)
    factor = default_scale(op, query, scale)
    wide = op.Mul(wide, op.size(factor, dtype) if isinstance(factor, Dim) else op.const(factor, dtype))
    dims, groups, keys = op.dims(query), op.dims(key)[-3], op.dims(key)[-2]
    if groups != dims[-3]:  # as many rows of queries for each head of keys
        wide = op.reshape(wide, (*dims[:-3], groups, whole(dims[-3] * dims[-2] // groups), dims[-1]))
    scores = op.MatMul(wide, swap(op, other, op.rank(other) - 2, op.rank(other) - 1))
    scores = scores if groups == dims[-3] else op.reshape(scores, (*dims[:-1], keys))
    bias = causal_bias(op, op.dims(query)[-2], op.dims(key)[-2], dtype) if is_causal else mask
    if bias is not None and op.dtype(bias) == BOOL:
        bias = minus_infinity_where(op, bias, dtype, False)
    if bias is not None:
        scores = op.Add(scores, op.cast(bias, dtype))
    found = op.ReduceLogSumExp(scores, axes=[-1], keepdims=0)
    if mask is None or not may_mask_all(op, mask):
        return found
    return op.Where(op.Equal(found, -math.inf), op.const(0, dtype), found)


_FORM = "Attention from opset 23 on, for 4-D operands; else Transpose, Mul, MatMul, Add, Softmax, MatMul"
_KERNELS = "flash_attention_for_cpu efficient_attention flash_attention"
_PRODUCTS = "scaled_dot_product_attention _scaled_dot_product_attention_math"
register_shared(_scaled_dot_product, _FORM, *overloads_of(_PRODUCTS))
register_shared(_fused, _FORM, *overloads_of(" ".join(f"_scaled_dot_product_{name}" for name in _KERNELS.split())))
