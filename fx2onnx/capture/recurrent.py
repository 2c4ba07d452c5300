"""Recurrent overloads: result types by formula, and packed sequences with known lengths.

PyTorch's fake implementations unroll the time axis, which takes long and pins its size; the types follow from the
arguments alone. Packing and padding with lengths that only constants (or baked inputs) decide is a selection of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fx2onnx.base.dims import DimLike
from fx2onnx.capture.constants import evaluate
from fx2onnx.capture.symnode import unwrap
from fx2onnx.capture.torch_private import no_dispatch
from fx2onnx.capture.unbacked import Special, record_sized

if TYPE_CHECKING:
    from fx2onnx.capture.recorder import Recorder

aten = torch.ops.aten
OpOverload = torch._ops.OpOverload


def _given(func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in func._schema.arguments]
    return dict(zip(names, args, strict=False)) | kwargs


def _padded(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """input [T, B, F] (or [B, T, F]) -> output [T, B, D*O], h_n [L*D, B, O], for LSTM also c_n [L*D, B, H]."""
    given = _given(func, args, kwargs)
    source = given["input"]
    sizes: list[DimLike] = [unwrap(size) for size in source.shape]
    return _record(recorder, func, args, kwargs, given, sizes[:-1], sizes[0 if given["batch_first"] else 1])


def _packed(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """data [N, F] -> output [N, D*O] and the states."""
    given = _given(func, args, kwargs)
    state = given["hx"]
    first = state[0] if isinstance(state, list | tuple) else state
    return _record(recorder, func, args, kwargs, given, [unwrap(given["data"].shape[0])], unwrap(first.shape[1]))


def _record(
    recorder: Recorder,
    func: OpOverload,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: dict[str, Any],
    leading: list[DimLike],
    batch: DimLike,
) -> Any:
    directions = 2 if given["bidirectional"] else 1
    recurrent_weight = given["params"][1]
    is_lstm = "lstm" in func._schema.name
    out = int(recurrent_weight.shape[1])
    hidden = int(recurrent_weight.shape[0]) // 4 if is_lstm else out
    layers = int(given["num_layers"]) * directions
    dtype = given["params"][0].dtype
    outputs: list[tuple[torch.dtype, list[DimLike]]] = [
        (dtype, [*leading, directions * out]),
        (dtype, [layers, batch, out]),
    ]
    if is_lstm:
        outputs.append((dtype, [layers, batch, hidden]))
    return record_sized(recorder, func, args, kwargs, outputs)


def _known(recorder: Recorder, tensor: torch.Tensor, func: OpOverload, what: str) -> torch.Tensor:
    value = evaluate(recorder.node_of(tensor), recorder.weights)
    if value is None:
        raise recorder.refuse(
            "E107",
            f"{func} has {what} that only the data tells",
            next=(
                "give the lengths as constants, or bake the input that holds them (bake=[...])",
                "or mask the padded steps instead of packing them",
            ),
        )
    return value


def _pack(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_pack_padded_sequence(input, lengths, batch_first): rows in order of time, longest sequences first."""
    source, lengths, batch_first = args
    known = _known(recorder, lengths, func, "lengths")
    with no_dispatch():
        steps = [int(length) for length in known.tolist()]
        batch_sizes = torch.tensor([sum(length > t for length in steps) for t in range(max(steps))])
        counts = batch_sizes.tolist()
        times = torch.tensor([t for t, count in enumerate(counts) for _ in range(count)])
        rows = torch.tensor([b for count in counts for b in range(count)])
    time, batch = recorder.constant(times), recorder.constant(rows)
    with recorder.mode:
        data = aten.index.Tensor(source, [batch, time] if batch_first else [time, batch])
    return data, recorder.constant(batch_sizes)


def _pad(recorder: Recorder, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """_pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length)."""
    data, batch_sizes, batch_first, padding_value, total_length = args
    known = _known(recorder, batch_sizes, func, "batch sizes")
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


SPECIAL: dict[OpOverload, Special] = {
    **dict.fromkeys(
        (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input),
        _padded,
    ),
    **dict.fromkeys((aten.lstm.data, aten.gru.data, aten.rnn_tanh.data, aten.rnn_relu.data), _packed),
    aten._pack_padded_sequence.default: _pack,
    aten._pad_packed_sequence.default: _pad,
}
