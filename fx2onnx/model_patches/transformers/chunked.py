"""Linear recurrences over positions in chunks: all chunks at once, then a scan that carries the state from one to the next.

Positions that fill up the last chunk leave the state as it is: nothing decays there and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.capture.torch_private.operators import HIGHER_ORDER

ELEMENTWISE_SIZE = 32
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


def elementwise(
    decay: Tensor,
    added: Tensor,
    total: Tensor,
    state: Tensor,
    output: Callable[..., Tensor],
    *read: Tensor,
) -> tuple[Tensor, Tensor]:
    """state = decay * state + added and ``output(state, *read)``, at each position: every output, and the last state.

    The chunks' last states come first, as if each began with nothing; then all chunks begin with what they should. So no
    states are kept but one for each chunk.

    Shapes:  decay and added [size, chunks, batch, ...], total (the product of a chunk's decays) [chunks, batch, ...], state
        [batch, ...] -> [size, chunks, ...] and [batch, ...].
    """

    def end(state: Tensor, decay: Tensor, added: Tensor) -> Any:
        return [decay * state + added]

    (ends,), _ = scan(end, [torch.zeros_like(total)], [decay, added], 0)

    def between(state: Tensor, total: Tensor, added: Tensor) -> Any:
        return total * state + added, state.clone()

    (last,), (before,) = scan(between, [state], [total, ends], 1)

    def within(state: Tensor, decay: Tensor, added: Tensor, *read: Tensor) -> Any:
        state = decay * state + added
        return state, output(state, *read)

    _, (outputs,) = scan(within, [before], [decay, added, *read], 1)
    return outputs, last


def attended(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """state = exp(decay) * state + key value, output = query state.

    Shapes:  query and key [batch, heads, chunks, size, d], value [..., e], decay [batch or 1, heads, chunks, size, 1], state
        [batch, heads, d, e] -> [batch, heads, chunks, size, e], and the last state.
    """
    so_far, between_both = decay.cumsum(dim=3), _between(decay)
    total, to_end = so_far[..., -1:, :], between_both[..., -1:, :].mT
    within = (query @ key.mT * causal(between_both).exp()) @ value
    added = (key * to_end.exp()).mT @ value

    def between(state: Tensor, decay: Tensor, added: Tensor) -> Any:
        return state * decay + added, state.clone()

    (last,), (before,) = scan(between, [state], [total.exp().movedim(2, 0), added.movedim(2, 0)], 1)
    return within + (query * so_far.exp()) @ before.movedim(0, 2), last


def _between(decay: Tensor) -> Tensor:
    """The sum of what is behind a column's place up to a row's. Differences of sums from the beginning lose as many digits as
    these are greater.

    Shapes:  [..., size, 1] -> [..., size, size].
    """
    size = decay.shape[-2]
    up_to = torch.ones(size, size).tril()
    return up_to @ (decay * up_to.tril(-1))


def causal(numbers: Tensor) -> Tensor:
    """``numbers`` [..., size, size], -inf where a column is behind its row."""
    size = numbers.shape[-1]
    return numbers.masked_fill(torch.ones(size, size, dtype=torch.bool).triu(1), -torch.inf)


def solved(lower: Tensor, right: Tensor) -> Tensor:
    """What ``lower``, with ones on its diagonal and without what is above, times gives ``right``.

    By the inverse of ever larger blocks on the diagonal: that of two blocks with one below the first is theirs, and minus the
    product of the three below. As stable as going row by row, in as many steps as the size has doublings.

    Shapes:  [..., size, size], [..., size, d] -> [..., size, d].
    """
    size, width = lower.shape[-1], 1
    rows = torch.arange(size)
    inverse = torch.eye(size)
    while width < size:
        blocks = rows // width
        is_between = (blocks[:, None] == blocks + 1) & (blocks % 2 == 0)
        below = lower * is_between
        inverse = inverse - (below if width == 1 else inverse @ below @ inverse)
        width *= 2
    return inverse @ right
