"""A drafter of EAGLE-3: one layer that reads a token beside hidden states of three layers of its base, and has a vocabulary of its own.

Source: Li et al., 2025 (EAGLE-3), and checkpoints in its layout: ``midlayer.*``, ``fc``, ``norm``, ``lm_head``, ``d2t``, ``t2d``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import nn

from fx2onnx.base.errors import UserError
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.config import read_config
from fx2onnx.sources.hf.transformers_types import Config, Model
from fx2onnx.sources.weight_files import map_checkpoint

_SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act"),
    *("max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling", "rope_parameters"),
    *("attention_bias", "mlp_bias"),
)
_OTHERS = ("norm_before_fc", "fc_norm", "norm_output", "parallel_drafting")
"""Settings of later drafters, which compute otherwise."""
_UNLIKELY = -1e4
"""The logit of tokens that the drafter has none for: finite, so that chances are numbers where only such tokens are allowed."""


class JoinedStates(nn.Module):
    """The hidden states of three layers of the base as one, which the base's graph computes."""

    def __init__(self, fc: nn.Linear, layers: Sequence[int]) -> None:
        super().__init__()
        self.fc, self.layers = fc, list(layers)

    def forward(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        found: torch.Tensor = self.fc(torch.cat([states[layer] for layer in self.layers], dim=-1))
        return found


class EagleHead(nn.Module):
    """The drafter with the interface of transformers' ``MtpModel``."""

    config: Config

    def __init__(
        self, config: Config, state: Mapping[str, torch.Tensor], layers: Sequence[int], *, keeps_norm: bool
    ) -> None:
        from transformers.models.llama import modeling_llama as llama

        super().__init__()
        self.config, self.layers, self.keeps_norm = config, list(layers), keeps_norm
        with torch.device("meta"):
            self.midlayer = llama.LlamaDecoderLayer(config, 0)
            for name in ("q_proj", "k_proj", "v_proj"):
                old = getattr(self.midlayer.self_attn, name)
                wide = nn.Linear(2 * old.in_features, old.out_features, bias=old.bias is not None)
                setattr(self.midlayer.self_attn, name, wide)
            self.midlayer.hidden_norm = llama.LlamaRMSNorm(
                config.hidden_size, eps=self.midlayer.input_layernorm.variance_epsilon
            )
            self.norm = llama.LlamaRMSNorm(config.hidden_size, eps=self.midlayer.input_layernorm.variance_epsilon)
            self.fc = _linear(state, "fc")
            self.lm_head = _linear(state, "lm_head")
            self.embed_tokens = nn.Embedding(*state["embed_tokens.weight"].shape)
        self.rotary_emb = llama.LlamaRotaryEmbedding(config)
        self.places: torch.Tensor | None = None

    def joined(self) -> JoinedStates:
        return JoinedStates(self.fc, self.layers)

    def new_cache(self) -> object:
        from transformers import DynamicCache

        return DynamicCache(config=self.config)

    def forward_layer(
        self,
        layer_idx: int,
        last_hidden_states: torch.Tensor,
        position_ids: torch.Tensor,
        mtp_cache: object,
        input_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The hidden states behind the layer."""
        from transformers.masking_utils import create_causal_mask

        embedded, layer = self.embed_tokens(input_ids), self.midlayer
        mask = create_causal_mask(
            config=self.config,
            inputs_embeds=embedded,
            attention_mask=None,
            past_key_values=mtp_cache,
            position_ids=position_ids,
        )
        normed = layer.hidden_norm(last_hidden_states)
        attended, _ = layer.self_attn(
            hidden_states=torch.cat([layer.input_layernorm(embedded), normed], dim=-1),
            position_embeddings=self.rotary_emb(embedded, position_ids),
            attention_mask=mask,
            past_key_values=mtp_cache,
        )
        hidden = (normed if self.keeps_norm else last_hidden_states) + attended
        result: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return result

    def _project_to_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits of the base's vocabulary."""
        logits: torch.Tensor = self.lm_head(self.norm(hidden_states))
        if self.places is None:
            return logits
        return nn.functional.pad(logits, (0, 1), value=_UNLIKELY)[..., self.places]


def eagle_head(model: Model, folder: Path) -> EagleHead:
    """The drafter in ``folder``, with the embeddings and the head of ``model`` where it has none.

    Raises:   UserError E302 for a folder that cannot be read, E601 for a drafter of another layout or another base.
    """
    from transformers import LlamaConfig

    stated = read_config(folder)
    state = {_name(name): tensor for name, tensor in map_checkpoint(folder).state.items()}
    places = _places(state.pop("d2t", None), state.pop("t2d", None), model, folder)
    base = model.config.get_text_config(decoder=True)
    own = {"embed_tokens": model.get_input_embeddings(), "lm_head": model.get_output_embeddings()}
    tables = {f"{name}.weight": cast(nn.Linear, module).weight.detach() for name, module in own.items()}
    state = tables | state
    eagle = stated.get("eagle_config")
    said = stated | (eagle if isinstance(eagle, dict) else {})
    depth = int(base.num_hidden_layers)
    layers = said.get("eagle_aux_hidden_state_layer_ids") or (2, depth // 2, depth - 3)
    others = [name for name in _OTHERS if said.get(name)]
    if others or said.get("use_aux_hidden_state") is False:
        raise _unfit(model, folder, f"its config has {', '.join(others) or 'use_aux_hidden_state false'}")
    if not isinstance(layers, list | tuple) or not all(type(one) is int and 0 <= one < depth for one in layers):
        raise _unfit(model, folder, f"it reads the layers {layers!r:.60} of {depth}")
    with reported(f"cannot read the drafter '{folder}'", next="give a drafter of EAGLE-3"):
        config = LlamaConfig(**{name: stated[name] for name in _SIZES if stated.get(name) is not None})
        config._attn_implementation = model.config._attn_implementation
    if "fc.weight" not in state or "midlayer.self_attn.q_proj.weight" not in state:
        raise _unfit(model, folder, "it has no weights midlayer.* and fc")
    with reported(f"cannot read the drafter '{folder}'", next="give a drafter of EAGLE-3"):
        head = EagleHead(config, state, layers, keeps_norm=bool(said.get("norm_before_residual")))
    wanted = {name: tensor.shape for name, tensor in head.state_dict().items()}
    wrong = [name for name in sorted({*wanted, *state}) if name not in state or state[name].shape != wanted.get(name)]
    wrong += ["fc.weight"] if head.fc.in_features != len(layers) * int(base.hidden_size) else []
    wrong += ["lm_head.weight"] if places is None and head.lm_head.out_features != int(base.vocab_size) else []
    wrong += ["d2t"] if places is not None and int(places.max()) != head.lm_head.out_features else []
    wrong += ["embed_tokens.weight"] if head.embed_tokens.num_embeddings < int(base.vocab_size) else []
    if wrong:
        raise _unfit(model, folder, f"of its weights {', '.join(wrong[:3])} is missing, unknown or of another size")
    dtype = tables["lm_head.weight"].dtype
    head.load_state_dict({name: tensor.to(dtype) for name, tensor in state.items()}, assign=True)
    head.places = places
    return head.eval().requires_grad_(False)


def _linear(state: Mapping[str, torch.Tensor], name: str) -> nn.Linear:
    rows, columns = state[f"{name}.weight"].shape
    return nn.Linear(columns, rows, bias=f"{name}.bias" in state)


def _name(name: str) -> str:
    """A weight's name in the layout of EAGLE-3's own checkpoints."""
    name = name.removeprefix("model.")
    return "midlayer." + name.removeprefix("layers.0.") if name.startswith("layers.0.") else name


def _places(
    offsets: torch.Tensor | None, known: torch.Tensor | None, model: Model, folder: Path
) -> torch.Tensor | None:
    """The drafter's token for each of the base's, one behind its last where it has none; None where they are the same."""
    if offsets is None:
        return None
    count = int(model.config.get_text_config(decoder=True).vocab_size)
    drafted = torch.arange(len(offsets)) + offsets.long()
    fits = bool(((drafted >= 0) & (drafted < count)).all()) and len(set(drafted.tolist())) == len(drafted)
    if not fits or (known is not None and len(known) != count):
        raise _unfit(model, folder, f"it is for another vocabulary than one of {count} tokens")
    places = torch.full((count,), len(offsets))
    places[drafted] = torch.arange(len(offsets))
    return places


def _unfit(model: Model, folder: Path, why: str) -> UserError:
    step = "give a drafter that was trained for this model, in the layout of EAGLE-3 (midlayer.*, fc, d2t)"
    return UserError("E601", f"the drafter '{folder}' is not for this {type(model).__name__}", why=why, next=step)
