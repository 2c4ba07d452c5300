"""Recurrent layers that eager quantisation has made: their weights' numbers in the layers of floats."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fx2onnx.capture.overloads.quantized_operators import rounded
from fx2onnx.capture.overloads.quantized_weights import floats_of, state_of, unpacked
from fx2onnx.capture.overloads.registry import Call, Kind, register
from fx2onnx.capture.recording.base_recorder import BaseRecorder
from fx2onnx.capture.torch_private.operators import PackedWeight

aten = torch.ops.aten
ops = torch.ops.quantized


def _cell_weights(recorder: BaseRecorder, params: Sequence[PackedWeight]) -> list[torch.Tensor]:
    """The weights and biases of recurrent layers as ``torch.lstm`` takes them."""
    flat: list[torch.Tensor] = []
    for cell in params:
        kind, tensors, _, _, packed = state_of(cell)
        if kind == "quantized_fp16":
            pairs = [floats_of(recorder, each) for each in packed]
            flat += [pair[0] for pair in pairs] + [pair[1] for pair in pairs if pair[1] is not None]
        else:
            flat += [unpacked(recorder, each).numbers(recorder) for each in packed] + list(tensors)
    return flat


@register(Kind.RECORD, aten.quantized_lstm.input, aten.quantized_lstm.data)
def _lstm(
    recorder: BaseRecorder,
    call: Call,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    params: Sequence[PackedWeight],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> object:
    """lstm with the weights' numbers; what is multiplied is not rounded, which PyTorch does at each step."""
    weights = _cell_weights(recorder, params)
    with recorder.mode:
        if call.func is aten.quantized_lstm.data:
            return aten.lstm.data(*call.args[:2], hx, weights, has_biases, num_layers, dropout, train, bidirectional)
        return aten.lstm.input(
            call.args[0], hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )


@register(Kind.RECORD, aten.quantized_gru.input, aten.quantized_gru.data)
def _gru(
    recorder: BaseRecorder,
    call: Call,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    params: Sequence[PackedWeight],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool = False,
) -> object:
    """gru with the weights' numbers; what is multiplied is not rounded, which PyTorch does at each step."""
    weights = _cell_weights(recorder, params)
    with recorder.mode:
        if call.func is aten.quantized_gru.data:
            return aten.gru.data(*call.args[:2], hx, weights, has_biases, num_layers, dropout, train, bidirectional)
        return aten.gru.input(
            call.args[0], hx, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first
        )


_CELLS = {
    "quantized_lstm_cell_dynamic": aten.lstm_cell.default,
    "quantized_gru_cell_dynamic": aten.gru_cell.default,
    "quantized_rnn_relu_cell_dynamic": aten.rnn_relu_cell.default,
    "quantized_rnn_tanh_cell_dynamic": aten.rnn_tanh_cell.default,
}


@register(Kind.RECORD, *(getattr(ops, name).default for name in _CELLS))
def _cell(
    recorder: BaseRecorder,
    call: Call,
    input: torch.Tensor,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    w_ih: PackedWeight,
    w_hh: PackedWeight,
) -> object:
    """One step of a recurrent layer on rounded operands."""
    first, second = (unpacked(recorder, each).numbers(recorder) for each in (w_ih, w_hh))
    x = rounded(recorder, input, True)
    cell = _CELLS[call.func._schema.name.partition("::")[2]]
    states = [rounded(recorder, hx[0], True), *hx[1:]] if isinstance(hx, list | tuple) else hx
    with recorder.mode:
        return cell(x, states, first, second, *call.args[4:6])
