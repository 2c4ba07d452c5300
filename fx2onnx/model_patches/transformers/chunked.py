"""Linear recurrences over positions in chunks: all chunks at once, then a scan that carries the state from one to the next.

Positions that fill up the last chunk leave the state as it is: nothing decays there and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.capture.torch_private.operators import HIGHER_ORDER

ELEMENTWISE_SIZE = 16
"""Positions of a chunk of ``elementwise``, whose steps are as many as a chunk has positions and as there are chunks: of the
powers of two the one with the fewest steps for prompts of some hundred tokens.
"""


def is_dynamic(size: Any) -> bool:
    return type(size) is torch.SymInt


def scan(
    step: Callable[..., Any], states: Sequence[Tensor], inputs: Sequence[Tensor], outputs: int
) -> tuple[list[Tensor], list[Tensor]]:
    """``step(*states, *inputs at a position of axis 0)`` gives new states and so many outputs: the last states, and the
    outputs along axis 0.
    """
    found = list(HIGHER_ORDER["scan"](step, list(states), list(inputs), []))
    return found[: len(found) - outputs], found[len(found) - outputs :]


def scanned(step: Callable[..., Any], states: Sequence[Tensor], inputs: Sequence[Tensor], axis: int) -> list[Tensor]:
    """``scan`` over ``axis`` with one output: the last states, and the output along ``axis``."""
    last, (output,) = scan(step, states, [tensor.movedim(axis, 0) for tensor in inputs], 1)
    return [*last, output.movedim(0, axis)]


def chunks(numbers: Tensor, size: int, axis: int = 2, fill: float = 0.0) -> Tensor:
    """``axis`` as chunks and positions of a chunk, which are ``size``: [..., length, ...] -> [..., chunks, size, ...]."""
    length, behind = numbers.shape[axis], numbers.dim() - axis - 1
    filled = torch.nn.functional.pad(numbers, (*(0, 0) * behind, 0, -length % size), value=fill)
    return filled.reshape(*numbers.shape[:axis], -(-length // size), size, *numbers.shape[axis + 1 :])


def elementwise(decay: Tensor, added: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """state = decay * state + added, at each position: every state, and the last.

    Shapes:  decay and added [size, chunks, batch, ...], state [batch, ...] -> [size, chunks, batch, ...] and [batch, ...].
    """

    def within(state: Tensor, product: Tensor, decay: Tensor, added: Tensor) -> Any:
        state, product = decay * state + added, decay * product
        return state, product, state.clone(), product.clone()

    first = [torch.zeros_like(added[0]), torch.ones_like(added[0])]
    _, (own, products) = scan(within, first, [decay, added], 2)

    def between(state: Tensor, product: Tensor, added: Tensor) -> Any:
        return product * state + added, state.clone()

    (last,), (before,) = scan(between, [state], [products[-1], own[-1]], 1)
    return products * before + own, last


def attended(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """state = exp(decay) * state + key value, output = query state.

    Shapes:  query and key [batch, heads, chunks, size, d], value [..., e], decay [batch or 1, heads, chunks, size, 1], state
        [batch, heads, d, e] -> [batch, heads, chunks, size, e], and the last state.
    """
    so_far = decay.cumsum(dim=3)
    total = so_far[..., -1:, :]
    within = (query @ key.mT * causal(so_far - so_far.mT).exp()) @ value
    added = (key * (total - so_far).exp()).mT @ value

    def between(state: Tensor, decay: Tensor, added: Tensor) -> Any:
        return state * decay + added, state.clone()

    (last,), (before,) = scan(between, [state], [total.exp().movedim(2, 0), added.movedim(2, 0)], 1)
    return within + (query * so_far.exp()) @ before.movedim(0, 2), last


def causal(numbers: Tensor) -> Tensor:
    """``numbers`` [..., size, size], -inf where a column is behind its row."""
    size = numbers.shape[-1]
    return numbers.masked_fill(torch.ones(size, size, dtype=torch.bool).triu(1), -torch.inf)
