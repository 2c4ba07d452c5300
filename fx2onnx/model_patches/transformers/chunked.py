"""Linear recurrences over positions in chunks: all chunks at once, then a scan that carries the state from one to the next.

Positions that fill up the last chunk leave the state as it is: nothing decays there and nothing is added.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER

ELEMENTWISE_SIZE = 32
"""Positions of a chunk of ``elementwise``, whose steps are as many as a chunk has positions and as there are chunks: of the
powers of two the one with the fewest steps for prompts of some hundred tokens.
"""

BLOCK_SIZE = 16
"""Positions that one step of a loop takes, one after another, where states are large: what is the same for each of them is
computed for all at once, and the loop costs less than its work.
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


def chunks(numbers: Tensor, size: int, axis: int = 2, fill: float = 0.0) -> Tensor:
    """``axis`` as chunks and positions of a chunk, which are ``size``: [..., length, ...] -> [..., chunks, size, ...]."""
    length, behind = numbers.shape[axis], numbers.dim() - axis - 1
    filled = torch.nn.functional.pad(numbers, (*(0, 0) * behind, 0, -length % size), value=fill)
    return filled.reshape(*numbers.shape[:axis], -(-length // size), size, *numbers.shape[axis + 1 :])


def by_chunk(numbers: Tensor, size: int) -> Tensor:
    """[batch, length, heads, d] -> [chunks, batch, heads, size, d], filled with zeros: in one copy, in the order of a scan over
    chunks.
    """
    return chunks(numbers, size, axis=1).permute(1, 0, 3, 2, 4)


def in_order(numbers: Tensor, length: Any) -> Tensor:
    """The inverse of ``by_chunk``: [chunks, batch, heads, size, d] -> [batch, length, heads, d]."""
    return numbers.permute(1, 0, 3, 2, 4).flatten(1, 2)[:, :length]


def grouped(heads: Tensor, axis: int, groups: int) -> Tensor:
    """``axis`` of heads as groups and heads of a group."""
    sizes = heads.shape
    return heads.reshape(*sizes[:axis], groups, sizes[axis] // groups, *sizes[axis + 1 :])


def elementwise(
    update: Callable[..., Tensor],
    moving: Sequence[Tensor],
    total: Tensor,
    state: Tensor,
    output: Callable[..., Tensor],
    read: Sequence[Tensor] = (),
) -> tuple[Tensor, Tensor]:
    """state = update(state, *moving), a multiple of the state and something more, and ``output(state, *read)``, at each position:
    every output, and the last state.

    The chunks' last states come first, as if each began with nothing; then all chunks begin with what they should. So no
    states are kept but one for each chunk, and what ``update`` computes of a position stays in the processor's cache.

    Shapes:  moving and read [size, chunks, batch, ...], total (the product of a chunk's multiples) [chunks, batch, ...], state
        [batch, ...] -> [size, chunks, ...] and [batch, ...].
    """

    def end(state: Tensor, *moving: Tensor) -> Any:
        return [update(state, *moving)]

    (ends,), _ = scan(end, [torch.zeros_like(total)], moving, 0)

    def between(state: Tensor, total: Tensor, added: Tensor) -> Any:
        return total * state + added, state.clone()

    (last,), (before,) = scan(between, [state], [total, ends], 1)

    def within(state: Tensor, *given: Tensor) -> Any:
        state = update(state, *given[: len(moving)])
        return state, output(state, *given[len(moving) :])

    _, (outputs,) = scan(within, [before], [*moving, *read], 1)
    return outputs, last


def every_state(multiples: Tensor, added: Tensor, before: Tensor) -> Tensor:
    """state = multiple * state + added at each position of axis 0, all of them.

    Shapes:  [size, ...] each, before [1, ...] -> [size, ...].
    """
    states = [before]
    for multiple, more in zip(torch.split(multiples, 1), torch.split(added, 1), strict=True):
        states.append(multiple * states[-1] + more)
    return torch.cat(states[1:])


def attended(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """state = exp(decay) * state + key value, output = query state. Axes between the first and the last two may be 1 in any of
    them: heads that share keys and queries do not multiply them.

    Shapes:  query and key [chunks, batch, ..., size, d], value [..., e], decay [..., 1], state [batch, ..., d, e]
        -> [chunks, batch, ..., size, e], and the last state.
    """
    so_far, between_both = decay.cumsum(dim=-2), _between(decay)
    total, to_end = so_far[..., -1:, :], between_both[..., -1:, :].mT
    within = (query @ key.mT * (between_both + later(key.shape[-2])).exp()) @ value
    added = key.mT @ (value * to_end.exp())

    def between(state: Tensor, decay: Tensor, added: Tensor) -> Any:
        return state * decay + added, state.clone()

    (last,), (before,) = scan(between, [state], [total.exp(), added], 1)
    return within + query @ before * so_far.exp(), last


def _between(decay: Tensor) -> Tensor:
    """The sum of what is behind a column's place up to a row's. Differences of sums from the beginning lose as many digits as
    these are greater.

    Shapes:  [..., size, 1] -> [..., size, size].
    """
    size = decay.shape[-2]
    up_to = torch.ones(size, size).tril()
    return up_to @ (decay * up_to.tril(-1))


def later(size: int) -> Tensor:
    """The mask that keeps exponents [size, size] from columns behind their row: -inf there, and 0."""
    return torch.full((size, size), -torch.inf).triu(1)


def inverse_of(lower: Tensor) -> Tensor:
    """The inverse of matrices with ones on the diagonal, of which only what is below it is read.

    By that of ever larger blocks on the diagonal: that of two blocks with one below the first is theirs, and minus the
    product of the three below. As stable as going row by row, in as many steps as the size has doublings.

    Shapes:  [..., size, size] -> the same.
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
    return inverse


_CODECS = (("encodec", "Encodec"), ("mimi", "Mimi"), ("pocket_tts_audio_tokenizer", "PocketTTSAudioTokenizer"))


@patches(
    *(
        f"transformers.models.{folder}.modeling_{folder}:{name}Conv1d._get_extra_padding_for_conv1d"
        for folder, name in _CODECS
    ),
    around=True,
)
def extra_padding(original: Any, self: Any, hidden_states: Tensor) -> Any:
    """``EncodecConv1d._get_extra_padding_for_conv1d`` and its copies: ``ceil(length / stride) * stride - length``.

    Theirs is ``(ceil((length - kernel + padding) / stride + 1) - 1) * stride + kernel - padding - length``, where padding
    is ``kernel - stride``. It divides in float32, which is exact below 2**24 samples.
    Shapes:  hidden_states [batch, channels, length] -> a number.
    """
    length = hidden_states.shape[-1]
    if type(length) is int:
        return original(self, hidden_states)
    stride = int(self.conv.stride[0])
    return -(-length // stride) * stride - length


@patches("transformers.models.mobilenet_v1.modeling_mobilenet_v1:apply_tf_padding", around=True)
def tensorflow_padding(original: Any, features: Tensor, conv_layer: Any) -> Any:
    """``apply_tf_padding``: so many zeros that there are ``ceil(size / stride)`` windows, at most one more behind than before.

    Shapes:  features [batch, channels, height, width] -> [batch, channels, height + padding, width + padding].
    """
    return _padded(original, features, conv_layer, (1, 1))


@patches("transformers.models.mobilenet_v2.modeling_mobilenet_v2:apply_tf_padding", around=True)
def dilated_tensorflow_padding(original: Any, features: Tensor, conv_layer: Any) -> Any:
    """``apply_tf_padding``, by the dilation times as many zeros as ``tensorflow_padding``."""
    return _padded(original, features, conv_layer, conv_layer.dilation)


def _padded(original: Any, features: Tensor, conv_layer: Any, times: tuple[int, ...]) -> Any:
    """Theirs asks whether the size is a multiple of the stride; ``(size - 1) % stride`` is right for both."""
    if type(features.shape[2]) is int and type(features.shape[3]) is int:
        return original(features, conv_layer)
    padding: list[Any] = []
    for axis in (1, 0):
        size, stride, kernel = features.shape[2 + axis], conv_layer.stride[axis], conv_layer.kernel_size[axis]
        along = max(kernel - 1 - (size - 1) % stride, 0)
        before = along // 2
        padding += [before * times[axis], (along - before) * times[axis]]
    return torch.nn.functional.pad(features, padding)


_LENGTHS = "_get_feat_extract_output_lengths"


@patches(
    *(f"transformers.models.{name}.modeling_{name}:get_audio_cu_seqlens" for name in ("qwen3_asr", "qwen3_omni_moe")),
    around=True,
)
def audio_cu_seqlens(
    original: Any,
    chunk_lengths: Tensor,
    feature_lens: Tensor,
    n_window_infer: int,
    n_window: int,
    kwargs: dict[str, Any] | None = None,
) -> Tensor:
    """``get_audio_cu_seqlens`` of Qwen's encoders of sound: each sample's frames in windows, cumulated.

    Shapes:  chunk_lengths [chunks], feature_lens [batch] -> int32 [windows + 1].
    """
    lengths_of: Any = original.__globals__.get(_LENGTHS)
    if lengths_of is None or (kwargs is not None and kwargs.get("cu_seqlens") is not None):
        ends: Tensor = original(chunk_lengths, feature_lens, n_window_infer, n_window, kwargs)
        return ends
    window = max(lengths_of(chunk_lengths, n_window).tolist()) * (n_window_infer // (n_window * 2))
    starts = [0]
    for length in lengths_of(feature_lens, n_window).tolist():
        rest = length % window
        starts += [window] * (length // window) + ([rest] if rest else [])
    return torch.tensor(starts, device=feature_lens.device).cumsum(-1, dtype=torch.int32)


@patches("transformers.models.reformer.modeling_reformer:LocalSelfAttention._retrieve_relevant_hidden_states")
def last_chunks(previous_hidden_states: Tensor, chunk_length: int, num_chunks_before: int) -> Tensor:
    """``LocalSelfAttention._retrieve_relevant_hidden_states``, for a past of any length: also where the first chunk
    would begin before it, which to a slice of Python means so many of the last tokens.

    Shapes:  previous_hidden_states [batch, past, width] -> [batch, kept, width].
    """
    past: Any = previous_hidden_states.shape[1]
    start = (past // chunk_length - num_chunks_before) * chunk_length
    is_before = torch.sym_min(torch.sym_max(-start, 0), 1)  # type: ignore[no-untyped-call]
    from_the_end = torch.sym_max((past + start) * is_before, 0)  # type: ignore[no-untyped-call]
    return previous_hidden_states[:, torch.sym_max(start, 0) + from_the_end :]  # type: ignore[no-untyped-call]
