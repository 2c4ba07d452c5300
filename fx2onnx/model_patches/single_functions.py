"""Libraries of which one or a few functions have a patch: gpytorch's kernel matrices, the parallel scans of mambapy, gateloop_transformer
and torch, diffusers' prompts of several lengths and convolutions of videos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches
from fx2onnx.torchcompat.operators import HIGHER_ORDER
from fx2onnx.torchcompat.pytrees import pytree


@patches("mambapy.pscan:PScan.forward", around=True)
def pscan(original: Any, ctx: Any, A_in: Tensor, X_in: Tensor) -> Tensor:
    """``h[t] = A_in[t] * h[t - 1] + X_in[t]``, from 0.

    Shapes:    A_in, X_in [B, L, D, N] -> [B, L, D, N].
    Source:    mambapy.pscan.PScan.forward.
    """
    if not isinstance(X_in.shape[1], torch.SymInt):
        return original(ctx, A_in, X_in)  # type: ignore[no-any-return]

    def step(state: Tensor, factor: Tensor, added: Tensor) -> list[Tensor]:
        state = factor * state + added
        return [state, state.clone()]

    inputs = [A_in.transpose(0, 1), X_in.transpose(0, 1)]
    _, states = HIGHER_ORDER["scan"](step, [torch.zeros_like(X_in[:, 0])], inputs, [])
    ctx.save_for_backward(A_in, states.permute(1, 2, 0, 3))
    return states.transpose(0, 1)


_IN_TURNS = "steps along the axis, whose size is dynamic, where the library halves it again and again"


@patches("gateloop_transformer.associative_scan:associative_scan", reason=_IN_TURNS, around=True)
def gate_loop_scan(original: Any, operator: Any, elems: Sequence[Tensor]) -> Sequence[Tensor]:
    """``out[:, t] = operator(out[:, t - 1], elems[:, t])``.

    Shapes:    each of elems [B, L, *] -> [B, L, *].
    Source:    gateloop_transformer.associative_scan.associative_scan.
    """
    is_dynamic = isinstance(elems[0].shape[1], torch.SymInt)
    return _in_turns(operator, elems, 1) if is_dynamic else original(operator, elems)


@patches("torch._higher_order_ops.associative_scan:generic_associative_scan", reason=_IN_TURNS, around=True)
def associative_scan(
    original: Any, operator: Any, leaves: Sequence[Tensor], dim: int = 0, additional_inputs: tuple[Any, ...] = ()
) -> Sequence[Tensor]:
    """``out[t] = operator(*out[t - 1], *leaves[t], *additional_inputs)`` along ``dim``.

    Shapes:    each of leaves [*, L, *] -> [*, L, *].
    Source:    torch._higher_order_ops.associative_scan.generic_associative_scan.
    """
    if not any(isinstance(size, torch.SymInt) for each in leaves for size in each.shape):  # of which it asks all
        return original(operator, leaves, dim, additional_inputs)  # type: ignore[no-any-return]
    return _in_turns(lambda left, right: operator(*left, *right, *additional_inputs), leaves, dim)


def _in_turns(operator: Callable[..., Sequence[Tensor]], elems: Sequence[Tensor], dim: int) -> list[Tensor]:
    """``out[t] = operator(out[t - 1], elems[t])`` along ``dim``, which each of them keeps with size 1."""
    first, count = [each.narrow(dim, 0, 1) for each in elems], len(elems)

    def step(*parts: Tensor) -> list[Tensor]:
        state = pytree.tree_leaves(operator([*parts[:count]], [each.unsqueeze(dim) for each in parts[count:]]))
        return [*state, *(each.clone() for each in state)]

    rest = [each.narrow(dim, 1, each.shape[dim] - 1).movedim(dim, 0) for each in elems]
    results = HIGHER_ORDER["scan"](step, first, rest, [])[count:]
    pairs = zip(first, results, strict=True)
    return [torch.cat([one, others.squeeze(dim + 1).movedim(0, dim)], dim) for one, others in pairs]


@patches(
    "gpytorch.models.exact_prediction_strategies:DefaultPredictionStrategy.exact_prediction",
    reason="computes kernel matrices whole for any number of points; gpytorch takes those above a size in parts",
)
def exact_prediction(self: Any, test_mean: Tensor, test_test_covar: Any, test_train_covar: Any) -> tuple[Tensor, Any]:
    """The mean and the covariance of the predictive posterior, from dense matrices.

    Shapes:    test_mean [*, N], test_test_covar [*, N, N], test_train_covar [*, N, M] -> [*, N], [*, N, N].
    Source:    gpytorch.models.exact_prediction_strategies.DefaultPredictionStrategy.exact_prediction.
    """
    between, within = test_train_covar.to_dense(), test_test_covar.to_dense()
    return self.exact_predictive_mean(test_mean, between), self.exact_predictive_covar(within, between)


@patches(
    "diffusers.models.transformers.transformer_lumina2:Lumina2Transformer2DModel.forward",
    reason="puts each image after all tokens of its prompt and masks the padding; diffusers packs a batch by a loop of Python",
)
def lumina2(
    self: Any,
    hidden_states: Tensor,
    timestep: Tensor,
    encoder_hidden_states: Tensor,
    encoder_attention_mask: Tensor,
    attention_kwargs: Any = None,
    return_dict: bool = True,
) -> Any:
    """The transformer of Lumina 2 on sequences ``[prompt, image]``, whose positions are those of the packed ones.

    Shapes:    hidden_states [B, C, H, W], encoder_hidden_states [B, T, D], encoder_attention_mask [B, T] -> [B, C', H, W].
    Numerics:  attention does not depend on the order of tokens, and no token attends to the padding.
    Source:    diffusers.models.transformers.transformer_lumina2: Lumina2RotaryPosEmbed.forward, Lumina2Transformer2DModel.forward.
    """
    batch, _, height, width = hidden_states.shape
    patch = self.config.patch_size
    rows, columns, tokens = height // patch, width // patch, encoder_attention_mask.shape[1]
    temb, prompt = self.time_caption_embed(hidden_states, timestep, encoder_hidden_states)

    lengths = encoder_attention_mask.sum(dim=1).long()
    turns = [table.to(hidden_states.device) for table in self.rope_embedder.freqs_cis]
    at_zero = torch.cat([turns[1][:1], turns[2][:1]], dim=-1)
    prompt_turns = torch.cat([turns[0][torch.arange(tokens)], at_zero.expand(tokens, -1)], dim=-1)
    is_prompt = torch.arange(tokens, device=lengths.device) < lengths.unsqueeze(1)
    prompt_turns = prompt_turns * is_prompt.unsqueeze(-1)
    at_row = turns[1][torch.arange(rows)].unsqueeze(1).expand(-1, columns, -1)
    at_column = turns[2][torch.arange(columns)].unsqueeze(0).expand(rows, -1, -1)
    at_place = torch.cat([at_row, at_column], dim=-1).flatten(0, 1)
    after_prompt = turns[0][lengths].unsqueeze(1).expand(-1, rows * columns, -1)
    image_turns = torch.cat([after_prompt, at_place.expand(batch, -1, -1)], dim=-1)

    image = hidden_states.view(batch, -1, rows, patch, columns, patch).permute(0, 2, 4, 3, 5, 1)
    image = self.x_embedder(image.flatten(3).flatten(1, 2))
    for layer in self.context_refiner:
        prompt = layer(prompt, encoder_attention_mask, prompt_turns)
    for layer in self.noise_refiner:
        image = layer(image, None, image_turns, temb)

    hidden = torch.cat([prompt, image], dim=1)
    mask = torch.cat([is_prompt, is_prompt.new_ones(batch, rows * columns)], dim=1)
    joint_turns = torch.cat([prompt_turns, image_turns], dim=1)
    for layer in self.layers:
        hidden = layer(hidden, mask, joint_turns, temb)
    found = self.norm_out(hidden, temb)[:, tokens:].view(batch, rows, columns, patch, patch, self.out_channels)
    sample = found.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)
    if not return_dict:
        return (sample,)
    from diffusers.models.modeling_outputs import Transformer2DModelOutput

    return Transformer2DModelOutput(sample=sample)


@patches(
    "diffusers.models.autoencoders.autoencoder_kl_cogvideox:CogVideoXSafeConv3d.forward",
    reason="convolves all frames at once; diffusers takes inputs above 2 GB in parts",
)
def safe_conv3d(self: Any, input: Tensor) -> Tensor:
    """One convolution of all frames.

    Shapes:    input [N, C, F, H, W] -> [N, O, F', H', W'].
    Numerics:  the parts overlap by the kernel, so that both are the same sums.
    Source:    diffusers.models.autoencoders.autoencoder_kl_cogvideox.CogVideoXSafeConv3d.forward.
    """
    return torch.nn.Conv3d.forward(self, input)
