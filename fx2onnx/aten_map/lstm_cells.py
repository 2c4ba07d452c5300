"""LSTM with projection (``proj_size``), which ONNX LSTM does not have: one Scan a direction. And single cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir
import torch

from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.matmul import dense, transposed_weight
from fx2onnx.aten_map.slicing import pieces
from fx2onnx.aten_map.table.axes import INT64, steps, unsqueeze
from fx2onnx.aten_map.table.registry import register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.emit import Emit

aten = torch.ops.aten


def lstm_step(op: Emit, gates: ir.Value, cell: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Hidden and cell state from the summed gates i, f, g, o."""
    hidden = op.dims(cell)[-1]
    i, f, g, o = pieces(op, gates, op.rank(gates) - 1, [hidden] * 4)
    new_cell = op.Add(op.Mul(op.Sigmoid(f), cell), op.Mul(op.Sigmoid(i), op.Tanh(g)))
    return op.Mul(op.Sigmoid(o), op.Tanh(new_cell)), new_cell


def projected_layer(
    op: Emit,
    value: ir.Value,
    weights: list[list[ir.Value]],
    states: Sequence[ir.Value],
    first: int,
    has_biases: bool,
    lengths: ir.Value | None,
) -> tuple[ir.Value, ...]:
    """[time, batch, directions * projected], last hidden and cell states. ``first``: the layer's first state.

    With ``lengths``, a state stays as it is at times beyond its sequence's end, and the output there is 0.
    """
    outputs, hidden, cells = [], [], []
    for side, parts in enumerate(weights):
        h0 = op.Gather(states[0], op.const(first + side), axis=0)
        c0 = op.Gather(states[1], op.const(first + side), axis=0)
        found = _scan(op, value, parts, h0, c0, has_biases, reverse=side == 1, lengths=lengths)
        outputs.append(found[2])
        hidden.append(unsqueeze(op, found[0], 0))
        cells.append(unsqueeze(op, found[1], 0))
    return joined(op, outputs, 2), joined(op, hidden, 0), joined(op, cells, 0)


def _scan(
    op: Emit,
    value: ir.Value,
    parts: list[ir.Value],
    h0: ir.Value,
    c0: ir.Value,
    has_biases: bool,
    reverse: bool,
    lengths: ir.Value | None,
) -> tuple[ir.Value, ir.Value, ir.Value]:
    w_ih, w_hh, w_hr = parts[0], transposed_weight(op, parts[1]), transposed_weight(op, parts[-1])
    gates = op.MatMul(value, transposed_weight(op, w_ih))
    if has_biases:
        gates = op.Add(gates, op.Add(parts[2], parts[3]))
    dtype, (time, batch, width) = op.dtype(value), op.dims(gates)
    h = op.subgraph_input("h", dtype, op.dims(h0))
    c = op.subgraph_input("c", dtype, op.dims(c0))
    x = op.subgraph_input("gates", dtype, (batch, width))
    formals, scanned = [h, c, x], [gates]
    running = None
    if lengths is not None:
        mask = op.Less(unsqueeze(op, steps(op, time), 1), op.cast(lengths, INT64))
        scanned.append(unsqueeze(op, mask, 2))
        running = op.subgraph_input("running", ir.DataType.BOOL, (batch, 1))
        formals.append(running)

    def body(inner: Emit) -> list[ir.Value]:
        raw, cell = lstm_step(inner, inner.Add(x, inner.MatMul(h, w_hh)), c)
        new = inner.MatMul(raw, w_hr)
        if running is None:
            return [new, cell, new]
        shown = inner.Where(running, new, inner.const(0, dtype))
        return [inner.Where(running, new, h), inner.Where(running, cell, c), shown]

    graph = op.subgraph("lstm_step", formals, body)
    count = len(scanned)
    directions = {"scan_input_directions": [1] * count, "scan_output_directions": [1]} if reverse else {}
    projected = op.dims(h0)[-1]
    outputs = [(dtype, op.dims(h0)), (dtype, op.dims(c0)), (dtype, (time, batch, projected))]
    result: tuple[ir.Value, ir.Value, ir.Value] = op.Scan(
        h0, c0, *scanned, body=graph, num_scan_inputs=count, outputs=outputs, **directions
    )
    return result


@translates(aten.lstm_cell.default)
def lstm_cell(
    op: Emit,
    input: ir.Value,
    hx: Sequence[ir.Value],
    w_ih: ir.Value,
    w_hh: ir.Value,
    b_ih: ir.Value | None,
    b_hh: ir.Value | None,
) -> tuple[ir.Value, ir.Value]:
    """lstm_cell(Tensor input, Tensor[] hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> (Tensor, Tensor)"""
    gates = op.Add(dense(op, input, w_ih, b_ih), dense(op, hx[0], w_hh, b_hh))
    return lstm_step(op, gates, hx[1])


@translates(aten.gru_cell.default)
def gru_cell(
    op: Emit,
    input: ir.Value,
    hx: ir.Value,
    w_ih: ir.Value,
    w_hh: ir.Value,
    b_ih: ir.Value | None,
    b_hh: ir.Value | None,
) -> ir.Value:
    """gru_cell(Tensor input, Tensor hx, Tensor w_ih, Tensor w_hh, Tensor? b_ih=None, Tensor? b_hh=None) -> Tensor

    r, z = sigmoid; n = tanh(W_in x + r * (W_hn h)); h' = n + z * (h - n).
    """
    size, axis = op.dims(hx)[-1], op.rank(input) - 1
    from_input = pieces(op, dense(op, input, w_ih, b_ih), axis, [size] * 3)
    from_state = pieces(op, dense(op, hx, w_hh, b_hh), axis, [size] * 3)
    reset = op.Sigmoid(op.Add(from_input[0], from_state[0]))
    update = op.Sigmoid(op.Add(from_input[1], from_state[1]))
    fresh = op.Tanh(op.Add(from_input[2], op.Mul(reset, from_state[2])))
    return op.Add(fresh, op.Mul(update, op.Sub(hx, fresh)))


def _simple_cell(activation: str) -> Callable[..., ir.Value]:
    def entry(
        op: Emit,
        input: ir.Value,
        hx: ir.Value,
        w_ih: ir.Value,
        w_hh: ir.Value,
        b_ih: ir.Value | None,
        b_hh: ir.Value | None,
    ) -> ir.Value:
        if not op.is_float(w_ih):
            raise UserError(
                "E203",
                f"a recurrent cell of {op.dtype(w_ih).name.lower()}",
                next="convert its weights and input to float32",
            )
        return op.node(activation, op.Add(dense(op, input, w_ih, b_ih), dense(op, hx, w_hh, b_hh)))

    return entry


register_shared(_simple_cell("Tanh"), "Gemm, Gemm, Add, Tanh", aten.rnn_tanh_cell.default)
register_shared(_simple_cell("Relu"), "Gemm, Gemm, Add, Relu", aten.rnn_relu_cell.default)
