"""RNN, GRU and LSTM over whole sequences as ONNX RNN operators: layers, directions, projections, packed sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.aten_map.dropout import dropped
from fx2onnx.aten_map.gathering import nonzero_rows
from fx2onnx.aten_map.layout import joined
from fx2onnx.aten_map.lstm_cells import projected_layer
from fx2onnx.aten_map.table.axes import INT64, sliced, squeeze, steps, transpose, unsqueeze, whole
from fx2onnx.aten_map.table.dtypes import as_dtype
from fx2onnx.aten_map.table.registry import overloads_of, register_shared, translates
from fx2onnx.base.errors import UserError
from fx2onnx.irx.builder import Key
from fx2onnx.irx.emit import Emit
from fx2onnx.irx.values import Dims, OutputType
from fx2onnx.sizes.expr import Dim, DimLike

aten = torch.ops.aten


@dataclass(slots=True)
class Packing:
    """The cells of [time, batch] that hold a step, as a mask, and their coordinates in packed order."""

    mask: ir.Value
    coordinates: ir.Value

    def spread(self, op: Emit, data: ir.Value, filler: Any, time: DimLike | None = None) -> ir.Value:
        """Packed steps over [time, batch, features], ``filler`` elsewhere."""
        dtype, features = op.dtype(data), op.dims(data)[1:]
        rows, batch = op.dims(self.mask)
        rows = rows if time is None else time
        if isinstance(rows, Dim) or isinstance(batch, Dim):
            sizes = op.Shape(self.mask)
            if time is not None:
                sizes = op.Concat(op.sizes([time]), op.Gather(sizes, np.array([1]), axis=0), axis=0)
            shape = op.Concat(sizes, op.sizes(features), axis=0)
            empty = op.Expand(as_dtype(op, filler, dtype), shape, outputs=[(dtype, (rows, batch, *features))])
        else:
            empty = op.expand(as_dtype(op, filler, dtype), (rows, batch, *features))
        return op.ScatterND(empty, self.coordinates, data)

    def collect(self, op: Emit, value: ir.Value, typed: OutputType) -> ir.Value:
        """The steps of [time, batch, features] in packed order."""
        return op.GatherND(value, self.coordinates, outputs=[typed])

    def lengths(self, op: Emit) -> ir.Value:
        """[batch]: how long each sequence is."""
        return op.ReduceSum(op.Cast(self.mask, to=INT64), axes=[0], keepdims=0)


def _of_mask(op: Emit, mask: ir.Value) -> Packing:
    return Packing(mask, transpose(op, nonzero_rows(op, mask), (1, 0)))


def packing_of(op: Emit, batch_sizes: ir.Value, batch: DimLike) -> Packing:
    """The packing with ``batch_sizes``, the number of sequences that run at each time; all ``batch`` of them do at the
    first."""
    if isinstance(batch, Dim):
        most = op.Gather(batch_sizes, op.const(0), axis=0)
        columns = op.Range(op.const(0), most, op.const(1), outputs=[(INT64, (batch,))])
    else:
        columns = steps(op, batch)
    return _of_mask(op, op.Less(columns, unsqueeze(op, batch_sizes, 1)))


@translates(aten._pack_padded_sequence.default)
def _pack_padded_sequence(op: Emit, input: ir.Value, lengths: ir.Value, batch_first: bool) -> tuple[ir.Value, ir.Value]:
    """_pack_padded_sequence(Tensor input, Tensor lengths, bool batch_first) -> (Tensor, Tensor)

    Lengths fall from the first sequence on, so the first one is the longest.
    """
    value = transpose(op, input, (1, 0, *range(2, len(op.dims(input))))) if batch_first else input
    longest = op.Gather(op.cast(lengths, INT64), op.const(0), axis=0)
    time = op.Range(op.const(0), longest, op.const(1), outputs=[(INT64, op.result_dims(1))])
    packing = _of_mask(op, op.Less(unsqueeze(op, time, 1), op.cast(lengths, INT64)))
    sizes = op.ReduceSum(op.Cast(packing.mask, to=INT64), axes=[1], keepdims=0)
    return packing.collect(op, value, op.result[0]), sizes


@translates(aten._pad_packed_sequence.default)
def pad_packed_sequence(
    op: Emit, data: ir.Value, batch_sizes: ir.Value, batch_first: bool, padding_value: Any, total_length: int
) -> tuple[ir.Value, ir.Value]:
    """_pad_packed_sequence(Tensor data, Tensor batch_sizes, bool batch_first, Scalar padding_value, int total_length) -> (Tensor, Tensor)"""
    batch = op.result_dims(1)[0]
    packing = packing_of(op, batch_sizes, batch)
    padded = packing.spread(op, data, padding_value, total_length if total_length > 0 else None)
    output = transpose(op, padded, (1, 0, *range(2, len(op.dims(padded))))) if batch_first else padded
    return output, packing.lengths(op)


GATE_ORDER: dict[str, tuple[int, ...]] = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}
"""PyTorch's blocks of rows (LSTM i f g o, GRU r z n) in ONNX's order (i o f c, z r h)."""


@dataclass(slots=True)
class Stack:
    """The settings that all layers of one recurrent module share."""

    op_type: str
    params: Sequence[ir.Value]
    has_biases: bool
    num_layers: int
    dropout: float
    bidirectional: bool
    is_projected: bool
    activation: str = "Tanh"

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def check(self, op: Emit) -> None:
        """Raises: UserError E203 for weights that are no floating-point numbers."""
        if self.params and not op.is_float(self.params[0]):
            raise UserError(
                "E203",
                f"a recurrent layer of {op.dtype(self.params[0]).name.lower()}",
                why=f"ONNX's {self.op_type} takes floating-point numbers alone",
                next="convert the weights and the input to float32",
            )

    def weights(self, layer: int) -> list[list[ir.Value]]:
        """The weights of each direction: w_ih, w_hh (b_ih, b_hh) (w_hr)."""
        size = (4 if self.has_biases else 2) + self.is_projected
        start = layer * self.directions
        return [list(self.params[(start + side) * size : (start + side + 1) * size]) for side in range(self.directions)]


def is_zero(op: Emit, value: ir.Value) -> bool:
    """Return whether ``value`` is known to hold zeros only: a constant, or one number expanded."""
    producer = op.producer(value)
    if producer is None:
        numbers = op.constant(value, most=1 << 16)
        return numbers is not None and not numbers.any()
    if producer.op_type == "ConstantOfShape":
        number = producer.attributes.get("value")
        return number is None or not np.asarray(number.as_tensor().numpy()).any()
    source = producer.inputs[0] if producer.op_type in ("Expand", "Slice", "Reshape", "Identity") else None
    return source is not None and is_zero(op, source)


def _reordered(op: Emit, value: ir.Value, order: tuple[int, ...]) -> ir.Value:
    """[1, rows, ...]: the blocks of rows in ONNX's order, in one Gather; emitted once a weight."""
    key = Key("rnn rows", (value,), order)
    found = op.builder.emitted.get(key)
    if found is None:
        if len(order) == 1:
            found = unsqueeze(op, value, 0)
        else:
            rows = np.arange(int(op.dims(value)[0])).reshape(len(order), -1)[list(order)]  # type: ignore[arg-type]
            found = op.Gather(value, op.const(rows.reshape(1, -1)), axis=0)
        op.builder.emitted[key] = found
    return found


def _bias(op: Emit, bias: ir.Value, weight: ir.Value) -> ir.Value:
    """A bias of each gate, which one number may stand for."""
    count = op.dims(weight)[0]
    dims = op.dims(bias)
    if dims == (count,):
        return bias
    if any(size != 1 for size in dims[:-1]) or (dims and dims[-1] not in (1, count)):
        raise UserError(
            "E203", f"a recurrent layer of {count} gates with a bias of {[*dims]}", next="give a number for each gate"
        )
    return op.reshape(op.expand(bias, (1, count)), (count,))


def _layer(
    op: Emit,
    stack: Stack,
    value: ir.Value,
    weights: list[list[ir.Value]],
    states: Sequence[ir.Value | None],
    lengths: ir.Value | None,
) -> tuple[ir.Value, ...]:
    """One layer over [time, batch, features]: [time, batch, directions * hidden] and the last states."""
    order = GATE_ORDER[stack.op_type]
    dtype = op.dtype(value)
    time, batch = op.dims(value)[:2]
    hidden, count = op.dims(weights[0][1])[1], stack.directions
    w, r = (joined(op, [_reordered(op, side[place], order) for side in weights], 0) for place in (0, 1))
    bias = None
    if stack.has_biases:
        sides = [
            joined(op, [_reordered(op, _bias(op, item, side[1]), order) for item in side[2:4]], 1) for side in weights
        ]
        bias = joined(op, sides, 0)
    attrs: dict[str, Any] = {"hidden_size": hidden}
    if stack.bidirectional:
        attrs["direction"] = "bidirectional"
    if stack.op_type == "GRU":
        attrs["linear_before_reset"] = 1
    if stack.activation != "Tanh":
        attrs["activations"] = [stack.activation] * count
    inputs: dict[str, Any] = dict(zip(("initial_h", "initial_c"), states, strict=False))
    last: Dims = (count, batch, hidden)
    outputs = [(dtype, (time, count, batch, hidden))] + [(dtype, last)] * len(states)
    found = op.node(stack.op_type, value, w, r, bias, sequence_lens=lengths, outputs=outputs, **inputs, **attrs)
    every = found[0]
    if count == 1:
        merged = squeeze(op, every, 1)
    else:
        merged = op.reshape(transpose(op, every, (0, 2, 1, 3)), (time, batch, whole(count * hidden)))
    return (merged, *found[1:])


def _state_of(op: Emit, state: ir.Value, stack: Stack, layer: int) -> ir.Value | None:
    """The initial state of one layer; None (zeros) where it is known to be zero."""
    if is_zero(op, state):
        return None
    count = stack.directions
    return sliced(op, state, 0, layer * count, (layer + 1) * count, count)


def _check_weights(op: Emit, stack: Stack, weights: list[list[ir.Value]], features: DimLike) -> None:
    """Raises: UserError E203 for weights that are no matrices, or of other sizes; kernels do not check all."""
    sizes = [[op.dims(matrix) for matrix in side[:2]] for side in weights]
    is_fit = all(len(dims) == 2 for side in sizes for dims in side)
    for of_input, of_state in sizes if is_fit else ():
        rows = of_state[0] if stack.is_projected else len(GATE_ORDER[stack.op_type]) * of_state[1]
        gaps = (of_input[1] - features, of_input[0] - rows, of_state[0] - rows)
        is_fit = is_fit and not any(isinstance(gap, int) and gap for gap in gaps)
    if not is_fit:
        raise UserError(
            "E203",
            f"a recurrent layer over {features} features with weights of {[[*map(list, side)] for side in sizes]}",
            why="w_ih has a row for each gate and a column for each feature, w_hh a column for each number of the state",
            next="give w_ih, w_hh and the biases layer by layer",
        )


def run_stack(
    op: Emit, stack: Stack, value: ir.Value, states: Sequence[ir.Value], train: bool, lengths: ir.Value | None
) -> tuple[ir.Value, ...]:
    """All layers over [time, batch, features]; the last states are joined layer by layer."""
    finals: list[list[ir.Value]] = [[] for _ in states]
    for layer in range(stack.num_layers):
        weights = stack.weights(layer)
        _check_weights(op, stack, weights, op.dims(value)[-1])
        if layer and train and stack.dropout > 0:
            value = dropped(op, value, stack.dropout)
        if stack.is_projected:
            first = layer * stack.directions
            found = projected_layer(op, value, weights, states, first, stack.has_biases, lengths)
        else:
            found = _layer(op, stack, value, weights, [_state_of(op, s, stack, layer) for s in states], lengths)
        value = found[0]
        for place, final in enumerate(found[1:]):
            finals[place].append(final)
    return (value, *(joined(op, parts, 0) for parts in finals))


def _run_input(
    op: Emit, stack: Stack, value: ir.Value, states: Sequence[ir.Value], train: bool, batch_first: bool
) -> tuple[ir.Value, ...]:
    if op.rank(value) != 3:
        raise UserError(
            "E203", f"a recurrent layer over {op.rank(value)} axes", next="give the input as [time, batch, features]"
        )
    if batch_first:
        value = transpose(op, value, (1, 0, 2))
    batch = op.dims(value)[1]
    if any(op.rank(state) != 3 or op.dtype(state) != op.dtype(states[0]) for state in states):
        raise UserError("E203", "an initial state that has other axes than [layers, batch, features], or another dtype")
    if any(isinstance(gap := op.dims(state)[1] - batch, int) and gap for state in states):
        raise UserError(
            "E203",
            f"the input has {batch} sequences, the initial state another number",
            why="PyTorch repeats the smaller, ONNX's recurrent operators do not",
            next="expand the state or the input to one size of batch before the call",
        )
    output, *finals = run_stack(op, stack, value, states, train, None)
    return (transpose(op, output, (1, 0, 2)) if batch_first else output, *finals)


def _run_packed(
    op: Emit, stack: Stack, data: ir.Value, batch_sizes: ir.Value, states: Sequence[ir.Value], train: bool
) -> tuple[ir.Value, ...]:
    """Packed data is spread over [time, batch], run with the sequences' lengths, and packed again."""
    if op.rank(batch_sizes) != 1 or op.rank(data) != 2:
        raise UserError(
            "E203",
            f"packed data of {op.rank(data)} axes with sizes of batches along {op.rank(batch_sizes)}",
            next="give a row for each step of each sequence, and one size of batch for each time",
        )
    rows, times = op.dims(data)[0], op.dims(batch_sizes)[0]
    if isinstance(rows, int) and isinstance(times, int) and rows < times:
        raise UserError(
            "E101",
            f"{rows} rows of packed data for {times} points in time",
            why="at each point in time one sequence runs at least",
            next="pass what torch.nn.utils.rnn.pack_padded_sequence gives",
        )
    batch = op.dims(states[0])[1]
    if isinstance(rows, int) and isinstance(times, int) and isinstance(batch, int) and rows > times * batch:
        raise UserError(
            "E203",
            f"{rows} rows of packed data at {times} points in time, and an initial state of {batch} sequences",
            next="give the initial state for each sequence",
        )
    packing: Packing = packing_of(op, batch_sizes, batch)
    padded = packing.spread(op, data, 0)
    output, *finals = run_stack(op, stack, padded, states, train, op.cast(packing.lengths(op), ir.DataType.INT32))
    return (packing.collect(op, output, op.result[0]), *finals)


def _recurrent(op_type: str, activation: str = "Tanh") -> Callable[..., tuple[ir.Value, ...]]:
    def entry(
        op: Emit,
        hx: ir.Value | Sequence[ir.Value],
        params: Sequence[ir.Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        input: ir.Value | None = None,
        batch_first: bool = False,
        data: ir.Value | None = None,
        batch_sizes: ir.Value | None = None,
    ) -> tuple[ir.Value, ...]:
        """Whole sequences ``input``, or packed ``data``."""
        states = [hx] if isinstance(hx, ir.Value) else hx
        is_projected = any(op.dims(state)[2] != op.dims(states[0])[2] for state in states)
        stack = Stack(op_type, params, has_biases, num_layers, dropout, bidirectional, is_projected, activation)
        stack.check(op)
        if data is not None and batch_sizes is not None:
            return _run_packed(op, stack, data, batch_sizes, states, train)
        assert input is not None
        return _run_input(op, stack, input, states, train, batch_first)

    return entry


for _name, _kind in {"lstm": ("LSTM",), "gru": ("GRU",), "rnn_tanh": ("RNN",), "rnn_relu": ("RNN", "Relu")}.items():
    _form = (
        f"one {_kind[0]} a layer, with sequence_lens for packed data; a Scan a direction where there is a projection"
    )
    register_shared(_recurrent(*_kind), _form, *overloads_of(f"{_name}.input {_name}.data"))
