"""LSTM, GRU and RNN in float64, by Scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import dims_of
from fx2onnx.sizes.expr import Dim, DimLike
from fx2onnx.targets.float64.node import DOUBLE, INT64, Form, attribute, given, number, operand, size_of, static_dims

ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
"""The activations of a node that names none."""


@dataclass(frozen=True)
class Cell:
    """One direction: what a step needs beside its input and the states."""

    kind: str
    size: int
    functions: Sequence[str]
    recurrence: ir.Value
    """[H, gates H]."""
    hidden_bias: ir.Value | None
    """Recurrent bias of a GRU's candidate, added before the reset gate (``linear_before_reset``)."""
    peepholes: ir.Value | None
    lengths: ir.Value | None
    """[N, 1]."""
    is_reverse: bool

    def part(self, op: Emit, value: ir.Value, index: int, count: int = 1) -> ir.Value:
        """The columns of one gate or more."""
        return op.Slice(value, starts=[index * self.size], ends=[(index + count) * self.size], axes=[-1])

    def stepped(self, op: Emit, gates: ir.Value, states: Sequence[ir.Value]) -> list[ir.Value]:
        """The next states, the hidden one first."""
        if self.kind == "GRU":
            return [self._gru(op, gates, states[0])]
        total = op.Add(gates, op.MatMul(states[0], self.recurrence))
        if self.kind == "RNN":
            return [op.node(self.functions[0], total)]
        gate, candidate, output = self.functions
        i, o, f, c = (self.part(op, total, index) for index in range(4))
        old, peep = states[1], self.peepholes
        if peep is not None:
            i = op.Add(i, op.Mul(self.part(op, peep, 0), old))
            f = op.Add(f, op.Mul(self.part(op, peep, 2), old))
        kept = op.Mul(op.node(gate, f), old)
        cell = op.Add(kept, op.Mul(op.node(gate, i), op.node(candidate, c)))
        if peep is not None:
            o = op.Add(o, op.Mul(self.part(op, peep, 1), cell))
        return [op.Mul(op.node(gate, o), op.node(output, cell)), cell]

    def _gru(self, op: Emit, gates: ir.Value, hidden: ir.Value) -> ir.Value:
        gate, candidate = self.functions
        first = op.MatMul(hidden, self.part(op, self.recurrence, 0, 2))
        both = op.node(gate, op.Add(self.part(op, gates, 0, 2), first))
        update, reset = self.part(op, both, 0), self.part(op, both, 1)
        factor = self.part(op, self.recurrence, 2)
        if self.hidden_bias is None:
            inner = op.MatMul(op.Mul(reset, hidden), factor)
        else:
            inner = op.Mul(reset, op.Add(op.MatMul(hidden, factor), self.hidden_bias))
        new = op.node(candidate, op.Add(self.part(op, gates, 2), inner))
        return op.Add(op.Mul(op.Sub(number(op, 1), update), new), op.Mul(update, hidden))

    def scanned(self, op: Emit, gates: ir.Value, states: Sequence[ir.Value]) -> tuple[ir.Value, ...]:
        """The last states, and the hidden one of each step.  [T, N, H]."""
        steps, batch, width = dims_of(gates)
        dims = (batch, self.size)
        counted = self.lengths is not None
        inside = [op.subgraph_input("state", DOUBLE, dims) for _ in states]
        step = op.subgraph_input("step", INT64, ())
        row = op.subgraph_input("gates", DOUBLE, (batch, width))

        def body(op: Emit) -> list[ir.Value]:
            new = self.stepped(op, row, inside)
            if self.lengths is None:
                return [*new, op.Identity(new[0])]
            runs = op.Less(step, self.lengths)
            shown = op.node("Where", runs, new[0], number(op, 0), outputs=((DOUBLE, dims),))
            kept = [
                op.node("Where", runs, each, old, outputs=((DOUBLE, dims),))
                for each, old in zip(new, inside, strict=True)
            ]
            return [*kept, op.Add(step, op.const(-1 if self.is_reverse else 1, INT64)), shown]

        taken = [*inside, *([step] if counted else []), row]
        first: list[ir.Value] = [*states]
        types: list[tuple[ir.DataType, Sequence[DimLike]]] = [(DOUBLE, dims) for _ in states]
        if counted:
            last = size_of(op, gates, 0) - 1
            first.append(op.size(last if self.is_reverse and isinstance(last, int | Dim) else 0))
            types.append((INT64, ()))
        found: tuple[ir.Value, ...] = op.node(
            "Scan",
            *first,
            gates,
            body=op.subgraph("cell", taken, body),
            num_scan_inputs=1,
            scan_input_directions=[int(self.is_reverse)],
            scan_output_directions=[int(self.is_reverse)],
            outputs=[*types, (DOUBLE, (steps, *dims))],
        )
        return (*found[: len(states)], found[-1])


def _row(op: Emit, value: ir.Value, index: int) -> ir.Value:
    """``value[index]``."""
    return op.Squeeze(op.Slice(value, starts=[index], ends=[index + 1], axes=[0]), axes=[0])


def _cut(op: Emit, value: ir.Value, start: int, end: int) -> ir.Value:
    return op.Slice(value, starts=[start], ends=[end], axes=[0])


def _direction(
    op: Emit, node: ir.Node, index: int, functions: Sequence[str], lengths: ir.Value | None, is_reverse: bool
) -> tuple[ir.Value, ...]:
    """The last states and all hidden ones of one direction."""
    kind, (x, weight, recurrence) = node.op_type, given(node, 3)
    width, size = (int(dim) for dim in dims_of(recurrence)[1:] if isinstance(dim, int))
    gates = op.MatMul(x, op.Transpose(_row(op, weight, index), perm=[1, 0]))
    bias, peepholes, hidden_bias = operand(node, 3), operand(node, 7), None
    after = kind == "GRU" and bool(attribute(node, "linear_before_reset", 0))
    if after:
        hidden_bias = number(op, 0)
    if bias is not None:
        own = _row(op, bias, index)
        hidden = _cut(op, own, width, 2 * width)
        if after:
            hidden_bias = _cut(op, hidden, 2 * size, 3 * size)
            hidden = op.Concat(_cut(op, hidden, 0, 2 * size), op.const(np.zeros(size)), axis=0)
        gates = op.Add(gates, op.Add(_cut(op, own, 0, width), hidden))
    states = []
    for place in (5, 6)[: 1 + (kind == "LSTM")]:
        start = operand(node, place)
        if start is None:
            shape = op.Concat(_cut(op, op.Shape(x), 1, 2), op.const(np.array([size])), axis=0)
            dims = (dims_of(x)[1], size)
            states.append(op.node("Expand", number(op, 0), shape, outputs=((DOUBLE, dims),)))
        else:
            states.append(_row(op, start, index))
    cell = Cell(
        kind,
        size,
        functions,
        op.Transpose(_row(op, recurrence, index), perm=[1, 0]),
        hidden_bias,
        None if peepholes is None else _row(op, peepholes, index),
        lengths,
        is_reverse,
    )
    return cell.scanned(op, gates, states)


def recurrent(op: Emit, node: ir.Node) -> tuple[ir.Value, ...] | None:
    """With the usual functions, and without what PyTorch has not: clipping, coupled gates, batch first."""
    recurrence = given(node, 3)[2]
    usual, direction = ACTIVATIONS[node.op_type], attribute(node, "direction", "forward")
    count = 2 if direction == "bidirectional" else 1
    functions = list(attribute(node, "activations", [*usual] * count))
    refused = any(attribute(node, name, 0) for name in ("clip", "input_forget", "layout"))
    if refused or not {*functions} <= {"Sigmoid", "Tanh", "Relu"} or static_dims(recurrence) is None:
        return None
    lengths = operand(node, 4)
    if lengths is not None:
        lengths = op.Unsqueeze(op.cast(lengths, INT64), axes=[1])
    per = [
        _direction(
            op,
            node,
            index,
            functions[index * len(usual) : (index + 1) * len(usual)],
            lengths,
            is_reverse=direction == "reverse" or index == 1,
        )
        for index in range(count)
    ]
    *states, hidden = zip(*per, strict=True)
    together = op.Concat(*(op.Unsqueeze(each, axes=[1]) for each in hidden), axis=1)
    return (together, *(op.Concat(*(op.Unsqueeze(each, axes=[0]) for each in group), axis=0) for group in states))


FORMS: dict[str, Form] = dict.fromkeys(ACTIVATIONS, recurrent)
