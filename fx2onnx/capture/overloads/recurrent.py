"""Recurrent overloads: result types by formula, and packed sequences.

PyTorch's fake implementations unroll the time axis, which takes long and specializes its size; the types follow from the
arguments alone. Packing and padding with lengths that only constants (or constant inputs) decide is a selection of rows;
with lengths that depend on data, the number of steps in all and of the longest sequence are sizes of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.fx

from fx2onnx.capture.overloads.common import Shape, check_probability, record_sized
from fx2onnx.capture.recording.eager_refusals import not_tried
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.recording.values import dims_of
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.capture.shapes.symnode import unwrap
from fx2onnx.sizes.expr import evaluate
from fx2onnx.torchcompat.dispatch import no_dispatch
from fx2onnx.torchcompat.frames import user_location

aten = torch.ops.aten


@register(
    Kind.RECORD,
    *(
        getattr(packet, form)
        for packet in (aten.lstm, aten.gru, aten.rnn_tanh, aten.rnn_relu)
        for form in ("input", "data")
    ),
)
def _recurrent(
    tracer: Tracer,
    call: Call,
    hx: torch.Tensor | Sequence[torch.Tensor],
    params: Sequence[torch.Tensor],
    num_layers: int,
    bidirectional: bool,
    input: torch.Tensor | None = None,
    data: torch.Tensor | None = None,
    batch_first: bool = False,
    dropout: float = 0.0,
) -> object:
    """input [T, B, F] (or [B, T, F]) -> output [T, B, D*O], h_n [L*D, B, O], for LSTM also c_n [L*D, B, H]; packed data
    [N, F] -> output [N, D*O] and the states.
    """
    check_probability(dropout)
    parts = {"aten::lstm": 4, "aten::gru": 3}.get(call.func._schema.name, 1)
    of_one = len(params) // max(int(num_layers) * (2 if bidirectional else 1), 1)  # with a projection last where odd
    for place, parameter in enumerate(params):
        rows = unwrap(parameter.shape[0]) if parameter.dim() else 0
        if isinstance(rows, int) and rows % parts and (of_one % 2 == 0 or (place + 1) % of_one):
            raise not_tried(RuntimeError(f"parameter {place} has {rows} rows, which are not {parts} parts of one size"))
    if data is not None:
        leading, batch = dims_of(data)[:1], dims_of(hx if isinstance(hx, torch.Tensor) else hx[0])[1]
    else:
        assert input is not None
        leading = dims_of(input)[:-1]
        batch = leading[0 if batch_first else 1]
        tracer.sizes.check_some([leading[1 if batch_first else 0]])
    directions = 2 if bidirectional else 1
    gates, out = (int(size) for size in params[1].shape)
    layers = int(num_layers) * directions
    shapes = [[*leading, directions * out], [layers, batch, out], [layers, batch, gates // 4]]
    is_lstm = "lstm" in call.func._schema.name
    return record_sized(tracer, call, [(params[0].dtype, shape) for shape in shapes[: 2 + is_lstm]])


def _pack_by_data(
    tracer: Tracer, call: Call, source: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    dims = dims_of(source)
    time, batch = (dims[1], dims[0]) if batch_first else dims[:2]
    producer = tracer.values.node_of(lengths).args[:1]
    if not (producer and isinstance(producer[0], torch.fx.Node) and producer[0].target in _SORTS):
        tracer.sizes.assume("lengths of packed sequences fall from the first on", user_location())
    steps, longest = tracer.sizes.new_unbacked(), tracer.sizes.new_unbacked()
    hints = tracer.sizes.hints
    tracer.sizes.hints = {**hints, str(longest): int(evaluate(time, hints))}
    outputs: list[tuple[torch.dtype, Shape]] = [(source.dtype, [steps, *dims[2:]]), (torch.int64, [longest])]
    data, batch_sizes = record_sized(tracer, call, outputs)
    tracer.packed_batches[tracer.values.node_of(batch_sizes)] = batch
    return data, batch_sizes


_SORTS = frozenset({aten.sort.default, aten.sort.stable})


@register(Kind.RECORD, aten._pack_padded_sequence.default)
def _pack(tracer: Tracer, call: Call, input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> object:
    """Rows in order of time, longest sequences first."""
    if lengths.dtype != torch.int64 or lengths.dim() != 1:
        raise RuntimeError("'lengths' argument should be a 1D CPU int64 tensor")
    if 0 in dims_of(input):
        raise RuntimeError("Cannot pack empty tensors.")
    count, sequences = dims_of(lengths)[0], dims_of(input)[0 if batch_first else 1]
    if isinstance(count, int) and isinstance(sequences, int) and count != sequences:  # as eager PyTorch says
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {count} (batch_size={sequences})"
        )
    tracer.sizes.expect_equal(count, sequences)
    known = tracer.values.value_of(tracer.values.node_of(lengths))
    if known is None:
        return _pack_by_data(tracer, call, input, lengths, batch_first)
    with no_dispatch():
        steps = [int(length) for length in known.tolist()]
        batch_sizes = torch.tensor([sum(length > t for length in steps) for t in range(max(steps))])
        counts = batch_sizes.tolist()
        times = torch.tensor([t for t, count in enumerate(counts) for _ in range(count)])
        rows = torch.tensor([b for count in counts for b in range(count)])
    time, batch = tracer.values.constant(times), tracer.values.constant(rows)
    with tracer.mode:
        data = aten.index.Tensor(input, [batch, time] if batch_first else [time, batch])
    return data, tracer.values.constant(batch_sizes)


@register(Kind.RECORD, aten._pad_packed_sequence.default)
def _pad(
    tracer: Tracer,
    call: Call,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    batch_first: bool,
    padding_value: float,
    total_length: int,
) -> object:
    """Padded steps, and the lengths of the sequences."""
    longest = dims_of(batch_sizes)[0]
    if longest == 0:  # as eager PyTorch says, here and below
        raise RuntimeError("batch_sizes can not be empty")
    if isinstance(longest, int) and 0 < int(total_length) < longest:
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length} and max sequence length being {longest}"
        )
    sizes = tracer.values.node_of(batch_sizes)
    known = tracer.values.value_of(sizes)
    if known is None:
        batch = tracer.packed_batches.get(sizes)
        batch = tracer.sizes.new_unbacked() if batch is None else batch
        time = unwrap(batch_sizes.shape[0]) if int(total_length) <= 0 else int(total_length)
        shape = [*((batch, time) if batch_first else (time, batch)), *dims_of(data)[1:]]
        return record_sized(tracer, call, [(data.dtype, shape), (torch.int64, [batch])])
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
    index = tracer.values.constant(rows)
    with tracer.mode:
        empty = aten.full.default([1, *data.shape[1:]], padding_value, dtype=data.dtype)
        padded = aten.index.Tensor(torch.cat([data, empty]), [index])
    return padded, tracer.values.constant(lengths)


@register(Kind.RECORD, "fx2onnx::pad_packed")
def _pad_packed(tracer: Tracer, call: Call) -> object:
    """``pad_packed_sequence`` as ``_pad_packed_sequence``, which autograd splits."""
    return _pad(tracer, call, *call.args)


@register(Kind.RECORD, "fx2onnx::packed_rows")
def _packed_rows(tracer: Tracer, call: Call) -> object:
    """Rows of value [time, batch, ..], as many as ``like`` has."""
    value, _, like = call.args
    return record_sized(tracer, call, [(value.dtype, [*dims_of(like)[:1], *dims_of(value)[2:]])])


@register(Kind.RECORD, "fx2onnx::padded_rows")
def _padded_rows(tracer: Tracer, call: Call) -> object:
    """Rows of data over the [time, batch] of ``like``."""
    data, _, like, _ = call.args
    return record_sized(tracer, call, [(data.dtype, [*dims_of(like)[:2], *dims_of(data)[1:]])])
