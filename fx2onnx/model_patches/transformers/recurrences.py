"""Patches of recurrences that Python steps through, one position at a time: a scan where the length is a dynamic size,
a loop where the data ends it.

Where the number of steps is known, the functions are left as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.transformers.chunked import (
    BLOCK_SIZE,
    ELEMENTWISE_SIZE,
    chunks,
    elementwise,
    every_state,
    is_dynamic,
    later,
    scan,
)
from fx2onnx.torchcompat.operators import HIGHER_ORDER

_MODELS = "transformers.models"


@patches(
    *(f"{_MODELS}.{kind}.modeling_{kind}:mamba_selective_scan" for kind in ("mamba", "falcon_mamba", "jamba", "zamba")),
    around=True,
)
def selective_scan(
    original: Callable[..., Any],
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``mamba_selective_scan``: state = exp(A dt) * state + dt B u, output = C state.

    Shapes:  hidden_states (u) and dt [batch, channels, length], A [channels, states], B and C [batch, states, length]
        -> [batch, channels, length], and the last state [batch, channels, states] where it is asked for.
    """
    if not is_dynamic(hidden_states.shape[2]):
        given = (D, z, delta_bias, delta_softplus, return_last_state, *args)
        return original(hidden_states, dt, A, B, C, *given, **kwargs)
    return scanned(hidden_states, dt, A, B, C, D, z, delta_bias, delta_softplus, return_last_state)


def scanned(
    inputs: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    is_softplus: bool,
    wants_state: bool,
) -> Any:
    """``selective_scan`` for any length; A may also be [batch, channels, states]."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)[..., None]
    if is_softplus:
        dt = _softplus(dt)
    dtype, length = inputs.dtype, dt.shape[-1]
    inputs, dt, B, C = inputs.mT, dt.mT, B.mT, C.mT
    steps, added, read = (_in_blocks(part).unsqueeze(-2) for part in (dt, dt * inputs.float(), C))
    written = _in_blocks(B.float()).unsqueeze(-1)
    decay, (channels, states) = A.mT, A.shape[-2:]
    state = torch.zeros(inputs.shape[0], states, channels, dtype=added.dtype)  # runs of channels are long

    def block(state: Tensor, steps: Tensor, added: Tensor, written: Tensor, read: Tensor) -> Any:
        states = every_state(torch.exp(steps * decay), added * written, state[None])
        return states[-1], torch.matmul(read, states.to(dtype))

    (state,), (output,) = scan(block, [state], [steps, added, written, read], 1)
    output = output.squeeze(-2).flatten(0, 1)[:length].transpose(0, 1)
    if D is not None:
        output = output + inputs * D
    if z is not None:
        output = output * torch.nn.functional.silu(z.mT)
    return (output.mT, state.mT) if wants_state else output.mT


def _softplus(numbers: Tensor) -> Tensor:
    """log(1 + exp(x)), in parts that cost onnxruntime a third of its Softplus: what rounding takes of 1 + e comes back as log1p
    has it, without its care for numbers that exp(-|x|) is not.
    """
    small = torch.exp(-numbers.abs())
    more = 1 + small
    return torch.relu(numbers) + (torch.log(more) + (small - (more - 1)) / more)


def _in_blocks(numbers: Tensor) -> Tensor:
    """Shapes: [batch, length, width] -> [blocks, size, batch, width], filled with zeros."""
    return chunks(numbers.transpose(0, 1), BLOCK_SIZE, axis=0)


def _positions_first(numbers: Tensor) -> Tensor:
    """Shapes: [batch, width, length] -> [size, chunks, batch, width], filled with zeros."""
    return chunks(numbers, ELEMENTWISE_SIZE).permute(3, 2, 0, 1)


@patches(f"{_MODELS}.rwkv.modeling_rwkv:rwkv_linear_attention_cpu", around=True)
def rwkv_attention(
    original: Callable[..., Any],
    time_decay: Tensor,
    time_first: Tensor,
    key: Tensor,
    value: Tensor,
    state: Any = None,
    return_state: bool = False,
) -> Any:
    """``rwkv_linear_attention_cpu``: the mean of the values so far, weighted by keys that decay, kept in range by the
    largest exponent.

    Shapes:  time_decay and time_first [width], key and value [batch, length, width] -> [batch, length, width].
    """
    if not is_dynamic(key.shape[1]):
        return original(time_decay, time_first, key, value, state, return_state)
    if state is None:
        zeros = torch.zeros_like(key[:, 0], dtype=torch.float32)
        before = [zeros, zeros.clone(), zeros - 1e38]
    else:
        before = list(state)
    decay, length = -torch.exp(time_decay), key.shape[1]
    keys, values = key.float().transpose(1, 2), value.float().transpose(1, 2)
    is_there = _positions_first(torch.ones_like(keys[:1, :1]))
    decays, values = decay * is_there, _positions_first(values)
    keys = torch.where(is_there > 0, _positions_first(keys), _NOTHING)

    def end(total: Tensor, weight: Tensor, largest: Tensor, decay: Tensor, key: Tensor, value: Tensor) -> Any:
        return list(_merged((total, weight, largest + decay), (value, torch.ones_like(value), key)))

    none = torch.zeros_like(keys[0])
    ends, _ = scan(end, [none, none.clone(), none + _NOTHING], [decays.expand_as(keys), keys, values], 0)

    def between(*given: Tensor) -> Any:
        (total, weight, largest), decay, chunk = given[:3], given[3], given[4:]
        merged = _merged((total, weight, largest + decay), chunk)
        return *merged, total.clone(), weight.clone(), largest.clone()

    states, begun = scan(between, before, [decays.sum(dim=0).expand_as(none), *ends], 3)

    def within(total: Tensor, weight: Tensor, largest: Tensor, decay: Tensor, key: Tensor, value: Tensor) -> Any:
        one = torch.ones_like(value)
        over, under, _ = _merged((total, weight, largest), (value, one, key + time_first))
        return *_merged((total, weight, largest + decay), (value, one, key)), over / under

    _, (output,) = scan(within, begun, [decays.expand_as(keys), keys, values], 1)
    output = output.permute(2, 1, 0, 3).flatten(1, 2)[:, :length].to(key.dtype)
    return output, states if return_state or state is not None else None


_NOTHING = -1e38
"""The exponent of a weight of nothing, as the model's own states begin."""


def _merged(one: Sequence[Tensor], other: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Two sums of weighted values and of weights, each with the exponent that it is to be multiplied by, as one."""
    (total, weight, exponent), (more, beside, other_exponent) = one, other
    largest = torch.maximum(exponent, other_exponent)
    old, new = torch.exp(exponent - largest), torch.exp(other_exponent - largest)
    return old * total + new * more, old * weight + new * beside, largest


@patches(f"{_MODELS}.recurrent_gemma.modeling_recurrent_gemma:RecurrentGemmaRglru._rnn_scan", around=True)
def griffin_recurrence(
    original: Callable[..., Any],
    self: Any,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    acc_dtype: torch.dtype = torch.float32,
) -> Any:
    """``RecurrentGemmaRglru._rnn_scan``: state = gate * state + input, where a document begins without the state.

    Shapes:  hidden_states, recurrent_gate, reset [batch, length, width] -> [batch, length, width] and [batch, width].
    """
    if not is_dynamic(hidden_states.shape[1]):
        return original(self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype)
    if recurrent_states is None:
        recurrent_states = torch.zeros_like(hidden_states[:, 0], dtype=acc_dtype)
    gate, length = (recurrent_gate * ~reset).type(acc_dtype), hidden_states.shape[1]
    gate = chunks(gate, ELEMENTWISE_SIZE, axis=1, fill=1.0).permute(2, 1, 0, 3)
    added = chunks(hidden_states.type(acc_dtype), ELEMENTWISE_SIZE, axis=1).permute(2, 1, 0, 3)

    def update(state: Tensor, gate: Tensor, added: Tensor) -> Tensor:
        return gate * state + added

    before = recurrent_states.to(acc_dtype)
    states, state = elementwise(update, (gate, added), gate.prod(dim=0), before, torch.clone)
    return states.permute(2, 1, 0, 3).flatten(1, 2)[:, :length].type(hidden_states.dtype), state


@patches(f"{_MODELS}.xlstm.modeling_xlstm:wrap_chunkwise_arbitrary_sequence_length", around=True)
def matrix_lstm(
    original: Callable[..., Any],
    mlstm_chunkwise_kernel: Callable[..., Any],
    mlstm_sequence_kernel: Callable[..., Any],
    mlstm_step_kernel: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    fgate: Tensor,
    igate: Tensor,
    c_initial: Tensor | None = None,
    n_initial: Tensor | None = None,
    m_initial: Tensor | None = None,
    return_last_states: bool = True,
    eps: float = 1e-6,
    autocast_kernel_dtype: torch.dtype = torch.bfloat16,
    chunk_size: int = 64,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``wrap_chunkwise_arbitrary_sequence_length``: c = exp(log f) c + exp(i) key value, output = query c, divided by the same
    with ones for values, all numbers kept in range by the largest exponent m.

    Shapes:  query and key [batch, heads, length, d], value [batch, heads, length, e], fgate and igate [batch, heads, length]
        -> [batch, heads, length, e], and the last states where they are asked for.
    """
    initial = (c_initial, n_initial, m_initial)
    if not is_dynamic(key.shape[2]):
        kernels = (mlstm_chunkwise_kernel, mlstm_sequence_kernel, mlstm_step_kernel)
        more = (*initial, return_last_states, eps, autocast_kernel_dtype, chunk_size, *args)
        return original(*kernels, query, key, value, fgate, igate, *more, **kwargs)
    batch, heads, length, width = key.shape
    sizes = ((batch, heads, width, value.shape[-1]), (batch, heads, width), (batch, heads, 1))
    c, n, m = (torch.zeros(size) if state is None else state for state, size in zip(initial, sizes, strict=True))
    values = torch.cat([value, torch.ones_like(value[..., :1])], dim=-1)
    forget = torch.nn.functional.logsigmoid(fgate.float())
    state, m = torch.cat([c, n.unsqueeze(-1)], dim=-1).float(), m.float().unsqueeze(-1)
    output, state, m = _exponential(
        *(chunks(part.float(), chunk_size) for part in (query * width**-0.5, key, values, forget.unsqueeze(-1))),
        add=chunks(igate.float().unsqueeze(-1), chunk_size, fill=-torch.inf),
        before=(state, m),
        eps=eps,
    )
    output = output.flatten(2, 3)[:, :, :length].to(query.dtype)
    after = (state[..., :-1], state[..., -1], m.squeeze(-1))
    return (output, after) if return_last_states else output


def _exponential(
    query: Tensor,
    key: Tensor,
    values: Tensor,
    forget: Tensor,
    *,
    add: Tensor,
    before: tuple[Tensor, Tensor],
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the last state and its exponent; ``values`` end with ones, ``forget`` and ``add`` are exponents.

    Shapes:  [batch, heads, chunks, size, d, e, or 1], and before [batch, heads, d, e] and [batch, heads, 1, 1].
    """
    so_far = forget.cumsum(dim=3)
    total = so_far[..., -1:, :]
    exponents = so_far - so_far.mT + add.mT + later(query.shape[-2])
    largest = exponents.amax(dim=-1, keepdim=True)
    own = (query @ key.mT * (exponents - largest).exp()) @ values
    at_end = largest[..., -1:, :]
    added = (key * (total - so_far + add - at_end).exp()).mT @ values

    def between(state: Tensor, m: Tensor, total: Tensor, at_end: Tensor, added: Tensor) -> Any:
        after = torch.maximum(total + m, at_end)
        new = (total + m - after).exp() * state + (at_end - after).exp() * added
        return new, after, state.clone(), m.clone()

    inputs = [part.movedim(2, 0) for part in (total, at_end, added)]
    (state, m), found = scan(between, before, inputs, 2)
    states, ms = (part.movedim(0, 2) for part in found)
    m_now = torch.maximum(so_far + ms, largest)
    both = (largest - m_now).exp() * own + (so_far + ms - m_now).exp() * (query @ states)
    return both[..., :-1] / (torch.maximum(both[..., -1:].abs(), (-m_now).exp()) + eps), state, m


_NO_LIST = "as many as the data tells"
"""Instead of a list of every step's logits, which is dropped where it is not asked for, and else left out with a warning."""


@patches(
    *(f"{_MODELS}.{kind.lower()}.modeling_{kind.lower()}:{kind}SLAHead.forward" for kind in ("SLANet", "SLANeXt")),
    reason="steps in a loop of the file; Python's is left where every table has its end",
    around=True,
)
def table_structure(
    original: Callable[..., Any], self: Any, hidden_states: Tensor, targets: Any = None, **kwargs: Any
) -> Any:
    """``SLANetSLAHead`` (and SLANeXt's): one token of every table at a time, until each has its last one.

    Shapes:  hidden_states [batch, places, width] -> probabilities [batch, steps, tokens].
    """
    if kwargs.get("output_attentions", self.config.output_attentions):
        return original(self, hidden_states, targets, **kwargs)
    tokens, limit, batch = self.config.out_channels, self.config.max_text_length + 1, hidden_states.shape[0]
    seen = hidden_states.float()

    def is_going_on(step: Tensor, features: Tensor, token: Tensor, done: Tensor, logits: Tensor) -> Tensor:
        is_open: Tensor = (step < limit) & ~done.all()
        return is_open

    def one_step(step: Tensor, features: Tensor, token: Tensor, done: Tensor, logits: Tensor) -> tuple[Tensor, ...]:
        before = torch.nn.functional.one_hot(token, tokens).float()
        features, _ = self.structure_attention_cell(features, seen, before)
        scores = self.structure_generator(features)
        token = scores.argmax(dim=1)
        done = done | (token == tokens - 1)
        return step + 1, features, token, done, logits.index_copy(0, step.reshape(1), scores[None])

    start = (
        torch.zeros((), dtype=torch.int64),
        torch.zeros((batch, self.config.hidden_size)),
        torch.zeros(batch, dtype=torch.int64),
        torch.zeros(batch, dtype=torch.bool),
        torch.zeros((limit, batch, tokens)),
    )
    steps, *_, logits = HIGHER_ORDER["while_loop"](is_going_on, one_step, start, ())
    made = logits[: steps.item()].transpose(0, 1)
    probabilities = torch.softmax(made, dim=-1, dtype=torch.float32).to(hidden_states.dtype)
    output: Callable[..., Any] = sys.modules[type(self).__module__].BaseModelOutput
    return output(last_hidden_state=probabilities, hidden_states=_NO_LIST)
