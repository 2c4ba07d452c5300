"""ONNX forms of fx2onnx's operators in training graphs: recurrent layers, packed sequences, linear layers and attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.activations import softmax_of
from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.matmul import scaled, transposed_weight
from fx2onnx.aten_map.recurrent import packing_of, pad_packed_sequence
from fx2onnx.aten_map.slicing import pieces
from fx2onnx.aten_map.table.axes import filled, swap
from fx2onnx.irx.emit import Emit
from fx2onnx.sizes.expr import product
from fx2onnx.training import packed, recurrent, whole

Body = Callable[..., list[ir.Value]]


def _scan(
    op: Emit,
    states: Sequence[ir.Value],
    scanned: Sequence[ir.Value],
    sizes: Sequence[Any],
    body: Body,
    reverse: bool = False,
) -> tuple[ir.Value, ...]:
    """One step is ``body(op, *states, *rows)``, which gives the next states and the rows of outputs of these sizes."""
    dtype, time = op.dtype(scanned[0]), op.dims(scanned[0])[0]
    formals = [op.subgraph_input(f"state_{i}", dtype, op.dims(value)) for i, value in enumerate(states)]
    formals += [op.subgraph_input(f"row_{i}", dtype, op.dims(value)[1:]) for i, value in enumerate(scanned)]
    graph = op.subgraph("recurrent_step", formals, lambda inner: body(inner, *formals))
    batch = op.dims(scanned[0])[1]
    outputs = [(dtype, op.dims(value)) for value in states] + [(dtype, (time, batch, size)) for size in sizes]
    backward = {"scan_input_directions": [1] * len(scanned), "scan_output_directions": [1] * len(sizes)}
    found = op.Scan(
        *states, *scanned, body=graph, num_scan_inputs=len(scanned), outputs=outputs, **(backward if reverse else {})
    )
    return found if isinstance(found, tuple) else (found,)


def _parts(op: Emit, value: ir.Value, count: int, size: Any) -> list[ir.Value]:
    return list(pieces(op, value, op.rank(value) - 1, [size] * count))


def _rest(op: Emit, value: ir.Value) -> ir.Value:
    """``1 - value``."""
    return op.Sub(op.const(1, op.dtype(value)), value)


def lstm_steps(op: Emit, x: ir.Value, h: ir.Value, c: ir.Value, weight: ir.Value) -> tuple[ir.Value, ...]:
    """lstm_steps(Tensor x, Tensor h, Tensor c, Tensor weight) -> (Tensor, Tensor, Tensor)"""
    size, across = op.dims(h)[-1], transposed_weight(op, weight)

    def body(op: Emit, h: ir.Value, c: ir.Value, x: ir.Value) -> list[ir.Value]:
        i, f, g, o = _parts(op, op.Add(x, op.MatMul(h, across)), 4, size)
        i, f, g, o = op.Sigmoid(i), op.Sigmoid(f), op.Tanh(g), op.Sigmoid(o)
        cell = op.Add(op.Mul(f, c), op.Mul(i, g))
        state = op.Mul(o, op.Tanh(cell))
        return [state, cell, state, cell, joined(op, [i, f, g, o], 1)]

    return _scan(op, [h, c], [x], [size, size, op.dims(x)[-1]], body)[2:]


def lstm_steps_backward(
    op: Emit, grad: ir.Value, grad_cell: ir.Value, gates: ir.Value, cells: ir.Value, before: ir.Value, weight: ir.Value
) -> tuple[ir.Value, ...]:
    """lstm_steps_backward(Tensor grad, Tensor grad_cell, Tensor gates, Tensor cells, Tensor before, Tensor weight) -> (Tensor, Tensor, Tensor)

    Source: the derivative of the cell of lstm_steps, from the last step to the first.
    """

    def body(op: Emit, later: ir.Value, cell: ir.Value, grad: ir.Value, *saved: ir.Value) -> list[ir.Value]:
        return _lstm_derivative(op, weight, op.Add(grad, later), cell, *saved)

    none = op.Mul(grad_cell, op.const(0, op.dtype(grad_cell)))
    of_h, of_c, raw = _scan(
        op, [none, grad_cell], [grad, gates, cells, before], [op.dims(gates)[-1]], body, reverse=True
    )
    return raw, of_h, of_c


def lstm_cells_backward(
    op: Emit, grad: ir.Value, grad_cells: ir.Value, gates: ir.Value, cells: ir.Value, before: ir.Value, weight: ir.Value
) -> tuple[ir.Value, ...]:
    """lstm_cells_backward(Tensor grad, Tensor grad_cells, Tensor gates, Tensor cells, Tensor before, Tensor weight) -> (Tensor, Tensor, Tensor)

    As lstm_steps_backward with a gradient for the cell after every step.
    """

    def body(
        op: Emit, later: ir.Value, cell: ir.Value, grad: ir.Value, grad_cell: ir.Value, *saved: ir.Value
    ) -> list[ir.Value]:
        return _lstm_derivative(op, weight, op.Add(grad, later), op.Add(cell, grad_cell), *saved)

    none = op.expand(op.const(0, op.dtype(grad)), op.dims(grad)[1:])
    rows = [grad, grad_cells, gates, cells, before]
    of_h, of_c, raw = _scan(op, [none, none], rows, [op.dims(gates)[-1]], body, reverse=True)
    return raw, of_h, of_c


def _lstm_derivative(
    op: Emit, weight: ir.Value, of_state: ir.Value, cell: ir.Value, gates: ir.Value, present: ir.Value, before: ir.Value
) -> list[ir.Value]:
    """The gradients of the state and the cell before a step, and of its gates, from those after it."""
    i, f, g, o = _parts(op, gates, 4, op.dims(of_state)[-1])
    curved = op.Tanh(present)
    of_cell = op.Add(cell, op.Mul(op.Mul(of_state, o), _rest(op, op.Mul(curved, curved))))
    raw = [
        op.Mul(op.Mul(of_cell, g), op.Mul(i, _rest(op, i))),
        op.Mul(op.Mul(of_cell, before), op.Mul(f, _rest(op, f))),
        op.Mul(op.Mul(of_cell, i), _rest(op, op.Mul(g, g))),
        op.Mul(op.Mul(of_state, curved), op.Mul(o, _rest(op, o))),
    ]
    of_gates = joined(op, raw, 1)
    return [op.MatMul(of_gates, weight), op.Mul(of_cell, f), of_gates]


def gru_steps(op: Emit, x: ir.Value, h: ir.Value, weight: ir.Value, bias: ir.Value) -> tuple[ir.Value, ...]:
    """gru_steps(Tensor x, Tensor h, Tensor weight, Tensor bias) -> (Tensor, Tensor)"""
    size, across = op.dims(h)[-1], transposed_weight(op, weight)

    def body(op: Emit, h: ir.Value, x: ir.Value) -> list[ir.Value]:
        own, given = _parts(op, op.Add(op.MatMul(h, across), bias), 3, size), _parts(op, x, 3, size)
        reset, update = op.Sigmoid(op.Add(given[0], own[0])), op.Sigmoid(op.Add(given[1], own[1]))
        fresh = op.Tanh(op.Add(given[2], op.Mul(reset, own[2])))
        state = op.Add(fresh, op.Mul(update, op.Sub(h, fresh)))
        return [state, state, joined(op, [reset, update, fresh, own[2]], 1)]

    return _scan(op, [h], [x], [size, 4 * size], body)[1:]


def gru_steps_backward(
    op: Emit, grad: ir.Value, gates: ir.Value, before: ir.Value, weight: ir.Value
) -> tuple[ir.Value, ...]:
    """gru_steps_backward(Tensor grad, Tensor gates, Tensor before, Tensor weight) -> (Tensor, Tensor, Tensor)

    Source: the derivative of the cell of gru_steps, from the last step to the first.
    """
    size, dtype = op.dims(grad)[-1], op.dtype(grad)

    def body(op: Emit, later: ir.Value, grad: ir.Value, gates: ir.Value, before: ir.Value) -> list[ir.Value]:
        reset, update, fresh, own = _parts(op, gates, 4, size)
        of_state = op.Add(grad, later)
        of_fresh = op.Mul(op.Mul(of_state, _rest(op, update)), _rest(op, op.Mul(fresh, fresh)))
        of_update = op.Mul(op.Mul(of_state, op.Sub(before, fresh)), op.Mul(update, _rest(op, update)))
        of_reset = op.Mul(op.Mul(of_fresh, own), op.Mul(reset, _rest(op, reset)))
        of_own = joined(op, [of_reset, of_update, op.Mul(of_fresh, reset)], 1)
        earlier = op.Add(op.Mul(of_state, update), op.MatMul(of_own, weight))
        return [earlier, joined(op, [of_reset, of_update, of_fresh], 1), of_own]

    start = op.expand(op.const(0, dtype), op.dims(grad)[1:])
    of_h, of_x, of_own = _scan(op, [start], [grad, gates, before], [3 * size, 3 * size], body, reverse=True)
    return of_x, of_own, of_h


def rnn_steps(op: Emit, x: ir.Value, h: ir.Value, weight: ir.Value, is_relu: bool) -> ir.Value:
    """rnn_steps(Tensor x, Tensor h, Tensor weight, bool is_relu) -> Tensor"""
    across = transposed_weight(op, weight)

    def body(op: Emit, h: ir.Value, x: ir.Value) -> list[ir.Value]:
        total = op.Add(x, op.MatMul(h, across))
        state = op.Relu(total) if is_relu else op.Tanh(total)
        return [state, state]

    return _scan(op, [h], [x], [op.dims(h)[-1]], body)[1]


def rnn_steps_backward(
    op: Emit, grad: ir.Value, states: ir.Value, weight: ir.Value, is_relu: bool
) -> tuple[ir.Value, ...]:
    """rnn_steps_backward(Tensor grad, Tensor states, Tensor weight, bool is_relu) -> (Tensor, Tensor)"""
    dtype = op.dtype(grad)

    def body(op: Emit, later: ir.Value, grad: ir.Value, state: ir.Value) -> list[ir.Value]:
        slope = op.Sign(state) if is_relu else _rest(op, op.Mul(state, state))
        raw = op.Mul(op.Add(grad, later), slope)
        return [op.MatMul(raw, weight), raw]

    start = op.expand(op.const(0, dtype), op.dims(grad)[1:])
    of_h, raw = _scan(op, [start], [grad, states], [op.dims(grad)[-1]], body, reverse=True)
    return raw, of_h


def _rows(op: Emit, value: ir.Value) -> ir.Value:
    """All vectors of the last axis, as a matrix."""
    dims = op.dims(value)
    return value if len(dims) == 2 else op.reshape(value, (product(list(dims[:-1])), dims[-1]))


def _as_before(op: Emit, rows: ir.Value, like: ir.Value) -> ir.Value:
    dims = op.dims(like)
    return rows if len(dims) == 2 else op.reshape(rows, (*dims[:-1], op.dims(rows)[-1]))


def linear(op: Emit, x: ir.Value, weight: ir.Value, bias: ir.Value | None) -> ir.Value:
    """linear(Tensor x, Tensor weight, Tensor? bias) -> Tensor"""
    return _as_before(op, op.Gemm(_rows(op, x), weight, bias, transB=1), x)


def linear_backward(
    op: Emit, grad: ir.Value, x: ir.Value, weight: ir.Value, mask: Sequence[bool]
) -> tuple[ir.Value | None, ...]:
    """linear_backward(Tensor grad, Tensor x, Tensor weight, bool[3] mask) -> (Tensor, Tensor, Tensor)"""
    rows = _rows(op, grad)
    of_x, of_weight, of_bias = mask
    return (
        _as_before(op, op.Gemm(rows, weight), grad) if of_x else None,
        op.Gemm(rows, _rows(op, x), transA=1) if of_weight else None,
        op.ReduceSum(rows, axes=[0], keepdims=0) if of_bias else None,
    )


def attention(
    op: Emit, query: ir.Value, key: ir.Value, value: ir.Value, mask: ir.Value | None, scale: float
) -> tuple[ir.Value, ...]:
    """attention(Tensor query, Tensor key, Tensor value, Tensor? mask, float scale) -> (Tensor, Tensor)

    A row that sees nothing gives 0.
    """
    rank, dtype = op.rank(query), op.dtype(query)
    scores = op.MatMul(scaled(op, query, scale), swap(op, key, rank - 2, rank - 1))
    if mask is None:
        weights = softmax_of(op, scores, -1)
    else:
        if op.dtype(mask) == ir.DataType.BOOL:
            scores = op.Where(mask, scores, op.const(-math.inf, dtype))
        else:
            scores = op.Add(scores, mask)
        is_blind = op.Equal(op.ReduceMax(scores, axes=[-1], keepdims=1), op.const(-math.inf, dtype))
        weights = op.Where(is_blind, op.const(0, dtype), softmax_of(op, scores, -1))
    return op.MatMul(weights, value), weights


def attention_backward(
    op: Emit, grad: ir.Value, query: ir.Value, key: ir.Value, value: ir.Value, weights: ir.Value, scale: float
) -> tuple[ir.Value, ...]:
    """attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor weights, float scale) -> (Tensor, Tensor, Tensor)

    With w the weights and g = grad @ value.T, the scores' is s = w * (g - sum(g * w)); the query's scale * s @ key, the key's
    s.T @ (scale * query), the value's w.T @ grad.
    """
    rank = op.rank(query)

    def across(matrix: ir.Value) -> ir.Value:
        return swap(op, matrix, rank - 2, rank - 1)

    of_weights = op.MatMul(grad, across(value))
    shares = op.Mul(of_weights, weights)
    of_scores = op.Sub(shares, op.Mul(weights, op.ReduceSum(shares, axes=[-1], keepdims=1)))
    of_query = scaled(op, op.MatMul(of_scores, key), scale)
    of_key = op.MatMul(across(of_scores), scaled(op, query, scale))
    return of_query, of_key, op.MatMul(across(weights), grad)


def pad_packed(
    op: Emit, data: ir.Value, batch_sizes: ir.Value, batch_first: bool, padding_value: float, total_length: int
) -> tuple[ir.Value, ir.Value]:
    """pad_packed(Tensor data, Tensor batch_sizes, bool batch_first, float padding_value, int total_length) -> (Tensor, Tensor)"""
    return pad_packed_sequence(op, data, batch_sizes, batch_first, padding_value, total_length)


def packed_rows(op: Emit, value: ir.Value, batch_sizes: ir.Value, like: ir.Value) -> ir.Value:
    """packed_rows(Tensor value, Tensor batch_sizes, Tensor like) -> Tensor"""
    packing = packing_of(op, batch_sizes, op.dims(value)[1])
    return packing.collect(op, value, op.result[0])


def padded_rows(op: Emit, data: ir.Value, batch_sizes: ir.Value, like: ir.Value, filler: float) -> ir.Value:
    """padded_rows(Tensor data, Tensor batch_sizes, Tensor like, float filler) -> Tensor"""
    time, batch = op.dims(like)[:2]
    packing = packing_of(op, batch_sizes, batch)
    is_whole = time == op.dims(batch_sizes)[0]
    return packing.spread(op, data, filler, None if is_whole else time)


_FORMS = (
    lstm_steps, lstm_steps_backward, lstm_cells_backward, gru_steps, gru_steps_backward, rnn_steps, rnn_steps_backward,
    linear, linear_backward, attention, attention_backward, pad_packed, packed_rows, padded_rows,
)  # fmt: skip
assert {form.__name__ for form in _FORMS} == {*recurrent.SCHEMAS, *whole.SCHEMAS, *packed.SCHEMAS}
FORMS: dict[Any, Callable[..., Any]] = {getattr(torch.ops.fx2onnx, form.__name__).default: form for form in _FORMS}
"""Translations of fx2onnx's operators, by overload."""


def _kept(op: Emit, input: ir.Value, p: float, train: bool | None) -> tuple[ir.Value, ir.Value]:
    return input, filled(op, op.dims(input), 1, ir.DataType.BOOL)


def _gradient(op: Emit, grad_output: ir.Value, mask: ir.Value, scale: float) -> ir.Value:
    return grad_output


DROPOUT_OFF: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.native_dropout.default: _kept,
    torch.ops.aten.native_dropout_backward.default: _gradient,
}
