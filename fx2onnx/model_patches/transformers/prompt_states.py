"""Patches of what models keep behind a prompt, whose Python branches on its length, and of prompts of detectors and
documents."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.model_patches.transformers.chunked import attended, by_chunk, grouped, in_order, is_dynamic

_SIZE = 32
"""Positions of a chunk: so many products of a query with keys cost about as much as one with a state of usual heads."""


@patches("transformers.cache_utils:LinearAttentionLayer.update_conv_state", around=True)
def last_of_a_prompt(
    original: Callable[..., Any],
    self: Any,
    conv_states: Tensor,
    state_idx: int = 0,
    conv_kernel_size: int | None = None,
    **kwargs: Any,
) -> Any:
    """``LinearAttentionLayer.update_conv_state``: the first columns are filled with zeros up to the width that is kept,
    which is by none where there are enough.
    """
    length = conv_states.shape[-1]
    is_prompt = not self.has_previous_state[state_idx] and not self.record_past
    if is_prompt and is_dynamic(length):
        width = self.conv_kernel_size[state_idx] if self.is_conv_states_initialized[state_idx] else conv_kernel_size
        if width is not None:
            lacking = torch.sym_max(width - length, 0)  # type: ignore[no-untyped-call]
            conv_states = torch.nn.functional.pad(conv_states, (lacking, 0))
            if not self.is_conv_states_initialized[state_idx]:
                self.lazy_initialization(conv_states=conv_states, state_idx=state_idx, conv_kernel_size=width)
            self.has_previous_state[state_idx] = True
            self.conv_states[state_idx].copy_(conv_states[..., -width:])
            return conv_states
    return original(self, conv_states, state_idx, conv_kernel_size, **kwargs)


@patches("transformers.models.minimax.modeling_minimax:MiniMaxLightningAttention.forward", around=True)
def lightning_attention(
    original: Callable[..., Any],
    self: Any,
    hidden_states: Tensor,
    position_embeddings: Any,
    attention_mask: Tensor | None,
    cache: Any = None,
    **kwargs: Any,
) -> Any:
    """``MiniMaxLightningAttention.forward``, which goes block by block at the prompt and token by token behind it.

    Shapes:  hidden_states [batch, length, width] -> the same, and the state [batch, heads, d, d].
    """
    batch, length, _ = hidden_states.shape
    if not is_dynamic(length):
        return original(self, hidden_states, position_embeddings, attention_mask, cache, **kwargs)
    mixed = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        mixed = (mixed * attention_mask[:, :, None]).to(mixed.dtype)
    heads, width = self.num_attention_heads, self.head_dim
    parts = mixed.reshape(batch, length, heads, 3 * width).split(width, dim=3)
    state = None if cache is None else cache.get_linear_cache(self.layer_idx)
    if state is None:
        state = torch.zeros(batch, heads, width, width, dtype=mixed.dtype)
    decay = -self.slope_rate.reshape(1, 1, heads, 1) * torch.ones_like(hidden_states[:1, :, None, :1])
    query, key, value, decay = (by_chunk(part, _SIZE) for part in (*parts, decay))
    output, state = attended(query, key, value, decay, state)
    output = in_order(output, length).reshape(batch, length, heads * width)
    output = torch.sigmoid(self.output_gate(hidden_states)) * self.norm(output)
    if cache is not None:
        cache.set_linear_cache(self.layer_idx, state)
    return self.out_proj(output), state


@patches(
    *(
        f"transformers.models.{kind}.modeling_{kind}:mamba2_chunk_scan"
        for kind in ("mamba2", "bamba", "nemotron_h", "granitemoehybrid", "zamba2", "falcon_h1")
    ),
    around=True,
)
def state_space_duality(
    original: Callable[..., Any],
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **kwargs: Any,
) -> Any:
    """``mamba2_chunk_scan``, whose chunks are as long as a graphics processor wants them: state = exp(A dt) state + B dt x,
    output = C state.

    Shapes:  hidden_states (x) [batch, length, heads, e], dt [batch, length, heads], A [heads], B and C [batch, length, groups,
        d] -> [batch, length, heads, e], and the last state [batch, heads, e, d].
    """
    if not is_dynamic(hidden_states.shape[1]):
        more = (D, dt_bias, initial_states, dt_softplus, dt_limit, return_final_states)
        return original(hidden_states, dt, A, B, C, chunk_size, *more, **kwargs)
    dt = steps(dt, dt_bias, dt_softplus, dt_limit)
    decay = dt * A.float()
    output, state = chunk_scan(hidden_states.float(), dt, decay, B, C, initial_states)
    if D is not None:
        output = output + D[..., None] * hidden_states.float()
    return (output, state) if return_final_states else output


def steps(dt: Tensor, bias: Tensor | None, is_softplus: bool, limit: tuple[float, float]) -> Tensor:
    """The lengths of the steps of a state space model, in float32."""
    if bias is not None:
        dt = dt + bias.to(dt.dtype)
    if is_softplus:
        dt = torch.nn.functional.softplus(dt)
    return torch.clamp(dt, min=limit[0], max=limit[1]).float()


def chunk_scan(
    inputs: Tensor, dt: Tensor, decay: Tensor, B: Tensor, C: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    """state = exp(decay) state + B dt inputs, output = C state, chunk by chunk in float32.

    Shapes:  inputs [batch, length, heads, e], dt and decay [batch, length, heads], B and C [batch, length, groups, d], state
        [batch, heads, e, d] or None -> [batch, length, heads, e], and the last state.
    """
    length, heads = inputs.shape[1:3]
    groups, width = B.shape[2], inputs.shape[3]
    query, key = (by_chunk(part.float(), _SIZE).unsqueeze(3) for part in (C, B))
    parts = (inputs * dt[..., None], decay[..., None])
    value, decay = (grouped(by_chunk(part, _SIZE), 2, groups) for part in parts)
    if state is None:
        before = inputs.new_zeros(inputs.shape[0], heads, B.shape[-1], width)
    else:
        before = state.float().mT
    output, after = attended(query, key, value, decay, grouped(before, 1, groups))
    return in_order(output.flatten(2, 3), length), after.flatten(1, 2).mT


_PIECE = "max_inference_chunksize"


class _Unlimited:
    """A length that is less than none, symbolic ones included."""

    def __lt__(self, length: object) -> bool:
        return False


@patches(
    "transformers.models.xlstm.modeling_xlstm:xLSTMModel.forward",
    "transformers.models.xlstm.modeling_xlstm:xLSTMForCausalLM.forward",
    around=True,
)
def whole_sequence(
    original: Callable[..., Any],
    self: Any,
    input_ids: Tensor | None = None,
    inputs_embeds: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """``xLSTMModel.forward`` and that of the whole model, which cut long sequences and go on from the state of the piece
    before: in one piece.
    """
    given = input_ids if inputs_embeds is None else inputs_embeds
    if given is None or not is_dynamic(given.shape[1]):
        return original(self, input_ids, inputs_embeds, *args, **kwargs)
    config = vars(self.config)  # which takes a number that its own checks refuse
    limit, config[_PIECE] = config[_PIECE], _Unlimited()
    try:
        return original(self, input_ids, inputs_embeds, *args, **kwargs)
    finally:
        config[_PIECE] = limit


_MODULE = "transformers.models.udop.modeling_udop"


@patches(
    f"{_MODULE}:combine_image_text_embeddings",
    reason="counts the patches without words: they are sorted to the front",
)
def combine_image_text_embeddings(
    image_embeddings: Tensor,
    inputs_embeds: Tensor,
    bbox: Tensor,
    visual_bbox: Tensor | None,
    attention_mask: Tensor | None = None,
    num_patches: int = 14,
    max_len: int = 0,
    image_size: int = 224,
    patch_size: int = 16,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Words get the patch in which they lie; the patches without words follow in their order, filled up with zeros.

    Shapes:  image_embeddings [batch, patches, width], inputs_embeds [batch, words, width], bbox [batch, words, 4]
        -> [batch, words + patches, width], [batch, words + patches, 4], and a mask [batch, words + patches].
    """
    middle_x, middle_y = ((bbox[:, :, side] + bbox[:, :, side + 2]) / 2.0 * num_patches for side in (0, 1))
    column, row = (torch.clip(torch.floor(middle).long(), 0, num_patches - 1) for middle in (middle_x, middle_y))
    places = column + row * num_patches
    bbox = bbox.to(torch.float64)
    mean = bbox.mean(-1)
    under = image_embeddings.gather(1, places.unsqueeze(-1).expand(-1, -1, image_embeddings.shape[-1]))
    inputs_embeds += torch.where(((mean == 0.0) | (mean == 1.0)).unsqueeze(-1), 0.0, under)

    free = torch.ones_like(image_embeddings[:, :, 0], dtype=torch.bool).scatter(1, places, False)
    order = torch.argsort((~free).to(torch.int64), dim=1, stable=True)
    if visual_bbox is None:
        made: Tensor = sys.modules[_MODULE].get_visual_bbox(image_size=image_size, patch_size=patch_size)
        visual_bbox = made.unsqueeze(0).repeat(image_embeddings.shape[0], 1, 1).to(image_embeddings.device)
    wanted = image_embeddings.shape[1] if max_len == 0 else max_len - inputs_embeds.shape[1]
    kept = free.gather(1, order)

    def packed(values: Tensor) -> Tensor:
        """``values`` [batch, patches, n] of the free patches, then zeros, ``wanted`` in all."""
        sorted_values = values.gather(1, order.unsqueeze(-1).expand(-1, -1, values.shape[-1]))
        filled = torch.where(kept.unsqueeze(-1), sorted_values, torch.zeros_like(sorted_values))
        missing = max(wanted - values.shape[1], 0)
        return torch.nn.functional.pad(filled, (0, 0, 0, missing))[:, :wanted]

    if attention_mask is not None:
        ones = packed(torch.ones_like(kept, dtype=attention_mask.dtype).unsqueeze(-1)).squeeze(-1)
        attention_mask = torch.cat([attention_mask, ones], 1)
    joined = torch.cat([inputs_embeds, packed(image_embeddings)], 1)
    return joined, torch.cat([bbox, packed(visual_bbox)], 1), attention_mask


_OMDET = "transformers.models.omdet_turbo.modeling_omdet_turbo:OmDetTurboPreTrainedModel"
_ANEW = "keeps embeddings by tokens: all are computed anew"


@patches(f"{_OMDET}.get_cached_class_embeddings", reason=_ANEW)
def class_embeddings(self: Any, classes_input_ids: Tensor, classes_attention_mask: Tensor) -> Tensor:
    """``OmDetTurboPreTrainedModel.get_cached_class_embeddings``, of every class anew.

    Shapes:  classes_input_ids and classes_attention_mask [classes, length] -> [classes, width].
    """
    embeddings: Tensor = self.language_backbone(classes_input_ids, encode_type="class")
    return embeddings.to(self.device)


@patches(f"{_OMDET}.get_cached_task_embeddings", reason=_ANEW)
def task_embeddings(self: Any, tasks_input_ids: Tensor, tasks_attention_mask: Tensor) -> tuple[Tensor, Tensor]:
    """``OmDetTurboPreTrainedModel.get_cached_task_embeddings``, of every task anew.

    Shapes:  tasks_input_ids and tasks_attention_mask [batch, length] -> [length, batch, width] and [batch, length].
    """
    features, masks = self.language_backbone(tasks_input_ids, mask=tasks_attention_mask, encode_type="task")
    return features.to(self.device), masks.to(self.device)
