"""Recurrent overloads: result types by formula, and packed sequences.

PyTorch's fake implementations unroll the time axis, which takes long and specializes its size; the types follow from the
arguments alone. Packing and padding with lengths that only constants (or baked inputs) decide is a selection of rows;
with lengths that the data tells, the number of steps in all and of the longest sequence are sizes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from fx2onnx.base.dims import DimLike
from fx2onnx.base.dims import evaluate as evaluate_dim
from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.overloads.unbacked import record_sized
from fx2onnx.capture.python.constants import evaluate
from fx2onnx.capture.python.frames import user_location
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.capture.torch_private.dispatch import no_dispatch

aten = torch.ops.aten


@register(Kind.RECORD, aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)
def _padded(
    recorder: BaseRecorder,
    call: Call,
    input: torch.Tensor,
    params: Sequence[torch.Tensor],
    num_layers: int,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """input [T, B, F] (or [B, T, F]) -> output [T, B, D*O], h_n [L*D, B, O], for LSTM also c_n [L*D, B, H]."""
    sizes: list[DimLike] = [unwrap(size) for size in input.shape]
    return _record(recorder, call, params, num_layers, bidirectional, sizes[:-1], sizes[0 if batch_first else 1])


@register(Kind.RECORD, aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data)
def _packed(
    recorder: BaseRecorder,
    call: Call,
    data: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    num_layers: int,
    bidirectional: bool,
) -> Any:
    """data [N, F] -> output [N, D*O] and the states."""
    first = hx[0] if isinstance(hx, list | tuple) else hx
    rows = unwrap(data.shape[0])
    return _record(recorder, call, params, num_layers, bidirectional, [rows], unwrap(first.shape[1]))


def _record(
    recorder: BaseRecorder,
    call: Call,
    params: Sequence[torch.Tensor],
    num_layers: int,
    bidirectional: bool,
    leading: list[DimLike],
    batch: DimLike,
) -> Any:
    directions = 2 if bidirectional else 1
    recurrent_weight = params[1]
    is_lstm = "lstm" in call.func._schema.name
    out = int(recurrent_weight.shape[1])
    hidden = int(recurrent_weight.shape[0]) // 4 if is_lstm else out
    layers = int(num_layers) * directions
    dtype = params[0].dtype
    outputs: list[tuple[torch.dtype, list[DimLike]]] = [
        (dtype, [*leading, directions * out]),
        (dtype, [layers, batch, out]),
    ]
    if is_lstm:
        outputs.append((dtype, [layers, batch, hidden]))
    return record_sized(recorder, call, outputs)


def batch_of(recorder: BaseRecorder, node: torch.fx.Node) -> DimLike | None:
    """The batch size, where ``node`` is the first of the batch sizes of packed sequences: all run at the first step."""
    is_first = node.target is aten.select.int and node.args[1:] == (0, 0)
    return recorder.packed_batches.get(node.args[0]) if is_first else None  # type: ignore[arg-type]


def _pack_by_data(
    recorder: BaseRecorder, call: Call, source: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> Any:
    time, batch = (unwrap(source.shape[axis]) for axis in ((1, 0) if batch_first else (0, 1)))
    producer = recorder.node_of(lengths).args[:1]
    if not (producer and isinstance(producer[0], torch.fx.Node) and producer[0].target in _SORTS):
        recorder.shape_env.take_for_true("lengths of packed sequences fall from the first on", user_location())
    steps, longest = recorder.unknown_size(), recorder.unknown_size()
    hints = recorder.shape_env.hints
    hints[str(longest)] = int(evaluate_dim(time, hints))
    outputs = [(source.dtype, [steps, *map(unwrap, source.shape[2:])]), (torch.int64, [longest])]
    data, batch_sizes = record_sized(recorder, call, outputs)
    recorder.packed_batches[recorder.node_of(batch_sizes)] = batch
    return data, batch_sizes


_SORTS = frozenset({aten.sort.default, aten.sort.stable})


@register(Kind.RECORD, aten._pack_padded_sequence.default)
def _pack(recorder: BaseRecorder, call: Call, input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> Any:
    """Rows in order of time, longest sequences first."""
    known = evaluate(recorder.node_of(lengths), recorder.weights, recorder.known)
    if known is None:
        return _pack_by_data(recorder, call, input, lengths, batch_first)
    with no_dispatch():
        steps = [int(length) for length in known.tolist()]
        batch_sizes = torch.tensor([sum(length > t for length in steps) for t in range(max(steps))])
        counts = batch_sizes.tolist()
        times = torch.tensor([t for t, count in enumerate(counts) for _ in range(count)])
        rows = torch.tensor([b for count in counts for b in range(count)])
    time, batch = recorder.constant(times), recorder.constant(rows)
    with recorder.mode:
        data = aten.index.Tensor(input, [batch, time] if batch_first else [time, batch])
    return data, recorder.constant(batch_sizes)


@register(Kind.RECORD, aten._pad_packed_sequence.default)
def _pad(
    recorder: BaseRecorder,
    call: Call,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: Any,
    total_length: int,
) -> Any:
    sizes = recorder.node_of(batch_sizes)
    known = evaluate(sizes, recorder.weights, recorder.known)
    if known is None:
        batch = recorder.packed_batches.get(sizes)
        batch = recorder.unknown_size() if batch is None else batch
        time = unwrap(batch_sizes.shape[0]) if int(total_length) <= 0 else int(total_length)
        shape = [*((batch, time) if batch_first else (time, batch)), *map(unwrap, data.shape[1:])]
        return record_sized(recorder, call, [(data.dtype, shape), (torch.int64, [batch])])
    with no_dispatch():
        counts = [int(count) for count in known.tolist()]
        starts = [sum(counts[:t]) for t in range(len(counts))]
        steps = max(len(counts), int(total_length))
        padding = sum(counts)
        rows = torch.tensor(
            [
                [starts[t] + b if t < len(counts) and b < counts[t] else padding for b in range(counts[0])]
                for t in range(steps)
            ]
        )
        lengths = torch.tensor([sum(count > b for count in counts) for b in range(counts[0])])
        rows = rows.t().contiguous() if batch_first else rows
    index = recorder.constant(rows)
    with recorder.mode:
        empty = aten.full.default([1, *data.shape[1:]], padding_value, dtype=data.dtype)
        padded = aten.index.Tensor(torch.cat([data, empty]), [index])
    return padded, recorder.constant(lengths)
