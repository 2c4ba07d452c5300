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

from fx2onnx.capture.torch_private.operators import HIGHER_ORDER
from fx2onnx.model_patches.patching import patches


def is_dynamic(size: Any) -> bool:
    return type(size) is torch.SymInt


def scanned(step: Callable[..., Any], states: Sequence[Tensor], inputs: Sequence[Tensor], axis: int) -> list[Tensor]:
    """``step(*states, *inputs at a position)`` gives new states and an output: the last states, and the outputs along
    ``axis``.
    """
    *last, output = HIGHER_ORDER["scan"](step, list(states), [tensor.movedim(axis, 0) for tensor in inputs], [])
    return [*last, output.movedim(0, axis)]


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
    if delta_bias is not None:
        dt = dt + delta_bias.to(dt.dtype)[..., None]
    if delta_softplus:
        dt = torch.nn.functional.softplus(dt)
    decay = torch.exp(A[None, :, :, None] * dt[:, :, None])
    added = dt[:, :, None] * B[:, None].float() * hidden_states[:, :, None].float()
    dtype = hidden_states.dtype

    def step(state: Tensor, decay: Tensor, added: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        state = decay * state + added
        return state, torch.matmul(state.to(dtype), read.unsqueeze(-1)).squeeze(-1)

    state, output = scanned(step, [torch.zeros_like(added[..., 0])], [decay, added, C], axis=-1)
    if D is not None:
        output = output + hidden_states * D[None, :, None]
    if z is not None:
        output = output * torch.nn.functional.silu(z)
    return (output, state) if return_last_state else output


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
    decay = -torch.exp(time_decay)

    def step(total: Tensor, weight: Tensor, largest: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        largest_now = torch.maximum(largest, key + time_first)
        old, new = torch.exp(largest - largest_now), torch.exp(key + time_first - largest_now)
        output = (old * total + new * value) / (old * weight + new)
        largest_next = torch.maximum(largest + decay, key)
        old, new = torch.exp(largest + decay - largest_next), torch.exp(key - largest_next)
        return old * total + new * value, old * weight + new, largest_next, output

    *after, output = scanned(step, before, [key.float(), value], axis=1)
    return output.to(key.dtype), after if return_state or state is not None else None


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
    gate = (recurrent_gate * ~reset).type(acc_dtype)

    def step(state: Tensor, gate: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        state = gate * state + added
        return state, state

    state, output = scanned(step, [recurrent_states.to(acc_dtype)], [gate, hidden_states.type(acc_dtype)], axis=1)
    return output.type(hidden_states.dtype), state


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
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``wrap_chunkwise_arbitrary_sequence_length``, which takes whole chunks at once and the rest in steps: all in steps.

    Shapes:  query and key [batch, heads, length, d], value [batch, heads, length, e], fgate and igate [batch, heads, length]
        -> [batch, heads, length, e], and the last states where they are asked for.
    """
    kernels, parts = (
        (mlstm_chunkwise_kernel, mlstm_sequence_kernel, mlstm_step_kernel),
        (query, key, value, fgate, igate),
    )
    initial = (c_initial, n_initial, m_initial)
    if not is_dynamic(key.shape[2]):
        return original(*kernels, *parts, *initial, return_last_states, eps, *args, **kwargs)
    batch, heads, _, width = key.shape
    sizes = ((batch, heads, width, value.shape[-1]), (batch, heads, width), (batch, heads, 1))
    states = [torch.zeros(size) if given is None else given for given, size in zip(initial, sizes, strict=True)]

    def step(c: Tensor, n: Tensor, m: Tensor, query: Tensor, key: Tensor, value: Tensor, *gates: Tensor) -> Any:
        fgate, igate = gates
        given = {"query": query, "key": key, "value": value, "igate": igate, "fgate": fgate}
        output, after = mlstm_step_kernel(**given, cstate=c, nstate=n, mstate=m, eps=eps)
        return *after, output

    inputs = (query, key, value, fgate[..., None], igate[..., None])
    *after, output = scanned(step, states, inputs, axis=2)
    return (output, tuple(after)) if return_last_states else output


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
