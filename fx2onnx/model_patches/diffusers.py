"""Patches of diffusers: prompts of several lengths in a batch, and convolutions of videos."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fx2onnx.model_patches.patching import patches


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
