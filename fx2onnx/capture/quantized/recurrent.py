"""Recurrent layers that eager quantization has made.

Their products round what they multiply by its own range, as ATen/native/RNN.cpp has it: the input of a layer at once, for all
time steps, and the state at each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from fx2onnx.capture.quantized.operands import Packed, floats_of, state_of, unpacked
from fx2onnx.capture.quantized.operators import rounded
from fx2onnx.capture.recording.tracer import Tracer
from fx2onnx.capture.registry import Call, Kind, register
from fx2onnx.torchcompat.operators import HIGHER_ORDER, PackedWeight

aten = torch.ops.aten
ops = torch.ops.quantized
States: TypeAlias = Sequence[torch.Tensor]


@dataclass(frozen=True, eq=False)
class _Product:
    """linear(x, w, b) of rounded x."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    reduce_range: bool

    def of(self, x: torch.Tensor) -> torch.Tensor:
        return aten.linear.default(rounded(x, self.reduce_range), self.weight, self.bias)  # type: ignore[no-any-return]


def _product(tracer: Tracer, packed: PackedWeight, reduce_range: bool) -> _Product:
    held: Packed = unpacked(tracer, packed)
    return _Product(held.numbers(tracer), held.plain_bias(tracer), reduce_range)


def lstm_step(first: torch.Tensor, second: torch.Tensor, states: States) -> tuple[torch.Tensor, ...]:
    into, forget, cell, out = (first + second).chunk(4, 1)
    after = forget.sigmoid() * states[1] + into.sigmoid() * cell.tanh()
    return out.sigmoid() * after.tanh(), after


def gru_step(first: torch.Tensor, second: torch.Tensor, states: States) -> tuple[torch.Tensor, ...]:
    x_reset, x_update, x_new = first.chunk(3, 1)
    h_reset, h_update, h_new = second.chunk(3, 1)
    new = (x_new + h_new * (x_reset + h_reset).sigmoid()).tanh()
    return ((states[0] - new) * (x_update + h_update).sigmoid() + new,)


Step: TypeAlias = Callable[[torch.Tensor, torch.Tensor, States], tuple[torch.Tensor, ...]]
"""The states after a step, of the products of its input and of the state before."""

_CELLS: dict[str, Step] = {
    "quantized_lstm_cell_dynamic": lstm_step,
    "quantized_gru_cell_dynamic": gru_step,
    "quantized_rnn_relu_cell_dynamic": lambda first, second, states: ((first + second).relu(),),
    "quantized_rnn_tanh_cell_dynamic": lambda first, second, states: ((first + second).tanh(),),
}


@register(Kind.RECORD, *(getattr(ops, name).default for name in _CELLS))
def _cell(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    w_ih: PackedWeight,
    w_hh: PackedWeight,
) -> object:
    """One step. The biases are those that the weights are packed with: PyTorch's kernels do not read ``b_ih``, ``b_hh``."""
    step = _CELLS[call.func._schema.name.partition("::")[2]]
    first, second = (_product(tracer, each, True) for each in (w_ih, w_hh))
    states = [hx] if isinstance(hx, torch.Tensor) else hx
    with tracer.mode:
        after = step(first.of(input), second.of(states[0]), states)
    return after if len(after) > 1 else after[0]


@register(Kind.RECORD, aten.quantized_lstm.input, aten.quantized_gru.input)
def _layers(
    tracer: Tracer,
    call: Call,
    input: torch.Tensor,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    params: Sequence[PackedWeight],
    bidirectional: bool,
    batch_first: bool,
) -> object:
    """A Scan for each layer and direction; in half precision the layers of floats."""
    if state_of(params[0])[0] == "quantized_fp16":
        return _layers_of_floats(tracer, call, params)
    step = gru_step if isinstance(hx, torch.Tensor) else lstm_step

    pairs = [[_product(tracer, each, reduces_range(cell)) for each in state_of(cell)[4]] for cell in params]

    def direction(number: int, x: torch.Tensor, start: States) -> tuple[torch.Tensor, States]:
        first, second = pairs[number]

        def body(*values: torch.Tensor) -> list[torch.Tensor]:
            states, (product, weight, *bias) = values[: len(start)], values[len(start) :]
            inner = _Product(weight, bias[0] if bias else None, second.reduce_range)
            after = step(product, inner.of(states[0]), states)
            return [*after, after[0].clone()]

        held = [second.weight] if second.bias is None else [second.weight, second.bias]
        *end, outputs = HIGHER_ORDER["scan"](body, start, [first.of(x)], held)
        return outputs, end

    with tracer.mode:
        return through_layers(input, hx, len(params), bidirectional, batch_first, direction)


def through_layers(
    x: torch.Tensor,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    count: int,
    bidirectional: bool,
    batch_first: bool,
    direction: Callable[[int, torch.Tensor, States], tuple[torch.Tensor, States]],
) -> tuple[torch.Tensor, ...]:
    """Outputs and last states, as ``torch.nn.LSTM`` and ``GRU`` have them. ``direction`` goes through the time steps of x,
    [T, B, columns], with the weights of that number from the states given, and returns the outputs, [T, B, hidden], and the last states.
    """
    whole = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    ways = 2 if bidirectional else 1
    ends: list[States] = []
    x = x.transpose(0, 1) if batch_first else x
    for level in range(count // ways):
        outputs = []
        for number in range(level * ways, level * ways + ways):
            is_reverse = number % ways == 1
            start = [state.select(0, number) for state in whole]
            found, end = direction(number, x.flip(0) if is_reverse else x, start)
            outputs.append(found.flip(0) if is_reverse else found)
            ends.append(end)
        x = torch.cat(outputs, 2) if ways > 1 else outputs[0]
    states = [torch.stack(list(group)) for group in zip(*ends, strict=True)]
    return (x.transpose(0, 1) if batch_first else x, *states)


def reduces_range(cell: PackedWeight) -> bool:
    """Return whether the operands of a layer's products are rounded to 7 bits."""
    return bool(state_of(cell)[3][0])


_OF_FLOATS = {
    aten.quantized_lstm.input: aten.lstm.input,
    aten.quantized_lstm.data: aten.lstm.data,
    aten.quantized_gru.input: aten.gru.input,
    aten.quantized_gru.data: aten.gru.data,
}
"""The layer of floats, which takes the same arguments by position."""


@register(Kind.RECORD, aten.quantized_lstm.data, aten.quantized_gru.data)
def _packed_sequences(
    tracer: Tracer,
    call: Call,
    data: torch.Tensor,
    batch_sizes: torch.Tensor,
    hx: Sequence[torch.Tensor] | torch.Tensor,
    params: Sequence[PackedWeight],
    bidirectional: bool,
) -> object:
    """The layer on packed sequences, as on whole ones, where a sequence that has ended, or has not begun from its end, keeps its state.

    Such states are zeros in the product: the range of what a step rounds holds zero, so they do not change it.
    """
    if state_of(params[0])[0] == "quantized_fp16":
        return _layers_of_floats(tracer, call, params)
    step = gru_step if isinstance(hx, torch.Tensor) else lstm_step
    pairs = [[_product(tracer, each, reduces_range(cell)) for each in state_of(cell)[4]] for cell in params]
    whole = [hx] if isinstance(hx, torch.Tensor) else list(hx)
    ways = 2 if bidirectional else 1

    def direction(number: int, x: torch.Tensor, start: States) -> tuple[torch.Tensor, States]:
        first, second = pairs[number]
        is_reverse = number % ways == 1
        product, lengths = aten._pad_packed_sequence.default(first.of(x), batch_sizes, False, 0.0, -1)
        runs = (torch.arange(product.shape[0])[:, None] < lengths[None]).unsqueeze(2)

        def body(*values: torch.Tensor) -> list[torch.Tensor]:
            states, (made, does_run, weight, *bias) = values[: len(start)], values[len(start) :]
            inner = _Product(weight, bias[0] if bias else None, second.reduce_range)
            after = step(made, inner.of(states[0] * does_run.to(states[0].dtype)), states)
            kept = [torch.where(does_run, new, old) for new, old in zip(after, states, strict=True)]
            return [*kept, kept[0].clone()]

        held = [second.weight] if second.bias is None else [second.weight, second.bias]
        turned = [each.flip(0) if is_reverse else each for each in (product, runs)]
        *end, outputs = HIGHER_ORDER["scan"](body, start, turned, held)
        return aten._pack_padded_sequence.default(outputs.flip(0) if is_reverse else outputs, lengths, False)[0], end

    with tracer.mode:
        ends: list[States] = []
        for level in range(len(params) // ways):
            outputs = []
            for number in range(level * ways, level * ways + ways):
                found, end = direction(number, data, [state.select(0, number) for state in whole])
                outputs.append(found)
                ends.append(end)
            data = torch.cat(outputs, 1) if ways > 1 else outputs[0]
        states = [torch.stack(list(group)) for group in zip(*ends, strict=True)]
        return (data, *states)


def _layers_of_floats(tracer: Tracer, call: Call, params: Sequence[PackedWeight]) -> object:
    weights = _cell_weights(tracer, params)
    args = [weights if each is params else each for each in call.args]
    with tracer.mode:
        return _OF_FLOATS[call.func](*args)


def _cell_weights(tracer: Tracer, params: Sequence[PackedWeight]) -> list[torch.Tensor]:
    """The weights and biases of recurrent layers as ``torch.lstm`` takes them."""
    flat: list[torch.Tensor] = []
    for cell in params:
        kind, tensors, _, _, packed = state_of(cell)
        if kind == "quantized_fp16":
            pairs = [floats_of(tracer, each) for each in packed]
            flat += [pair[0] for pair in pairs] + [pair[1] for pair in pairs if pair[1] is not None]
        else:
            flat += [unpacked(tracer, each).numbers(tracer) for each in packed] + list(tensors)
    return flat
