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


_LAYERS = {
    aten.quantized_lstm.input: aten.lstm.input,
    aten.quantized_lstm.data: aten.lstm.data,
    aten.quantized_gru.input: aten.gru.input,
    aten.quantized_gru.data: aten.gru.data,
}
"""The layer of floats, which takes the same arguments by position."""


@register(Kind.RECORD, *_LAYERS)
def _layers(recorder: BaseRecorder, call: Call, params: Sequence[PackedWeight]) -> object:
    """lstm and gru with the weights' numbers; what is multiplied is not rounded, which PyTorch does at each step."""
    weights = _cell_weights(recorder, params)
    args = [weights if each is params else each for each in call.args]
    with recorder.mode:
        return _LAYERS[call.func](*args)


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
    """One step of a recurrent layer on rounded operands. The biases are those that the weights are packed with: PyTorch's
    kernels do not read ``b_ih`` and ``b_hh``.
    """
    first, second = (unpacked(recorder, each) for each in (w_ih, w_hh))
    weights = [first.numbers(recorder), second.numbers(recorder)]
    biases = [first.plain_bias(recorder), second.plain_bias(recorder)]
    x = rounded(recorder, input, True)
    cell = _CELLS[call.func._schema.name.partition("::")[2]]
    states: object = hx  # what a GRU multiplies it also adds, as it is
    if not isinstance(hx, torch.Tensor):
        states = [rounded(recorder, hx[0], True), *hx[1:]]
    elif cell is not aten.gru_cell.default:
        states = rounded(recorder, hx, True)
    with recorder.mode:
        return cell(x, states, *weights, *biases)
