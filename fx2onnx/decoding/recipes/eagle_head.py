"""A drafter of EAGLE-3: layers that read a token beside hidden states of three layers of its base, with a vocabulary of their own.

Source: Li et al., 2025 (EAGLE-3), and checkpoints in its layout: ``midlayer.*``, ``fc``, ``norm``, ``lm_head``, ``d2t``, ``t2d``;
speculators 0.9 for several layers (``layers.0.*``, ...), layers of Qwen3, and the norms ``input_norm`` and ``fc_norm``.
"""

from __future__ import annotations

import re
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
_CONFIG = "transformer_layer_config"
"""The config of the layers inside a config of speculators."""
_LAYER = re.compile(r"layers\.(\d{1,3})\.")
_UNLIKELY = -1e4
"""The logit of tokens that the drafter has none for: finite, so that chances are numbers where only such tokens are allowed."""


class JoinedStates(nn.Module):
    """The hidden states of three layers of the base as one, which the base's graph computes."""

    def __init__(self, head: EagleHead) -> None:
        super().__init__()
        self.fc, self.layers, self.input_norm, self.fc_norm = head.fc, head.read, head.input_norm, head.fc_norm

    def forward(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        read = [states[layer] for layer in self.layers]
        if self.fc_norm is not None:
            read = [norm(state) for norm, state in zip(self.fc_norm, read, strict=True)]
        joined = torch.cat(read, dim=-1)
        found: torch.Tensor = self.fc(joined if self.input_norm is None else self.input_norm(joined))
        return found


class EagleHead(nn.Module):
    """The drafter with the interface of transformers' ``MtpModel``. ``read`` are the base's layers that it reads."""

    config: Config

    def __init__(
        self, config: Config, state: Mapping[str, torch.Tensor], read: Sequence[int], said: Mapping[str, object]
    ) -> None:
        from transformers import AutoModel

        super().__init__()
        self.config, self.read = config, list(read)
        self.keeps_norm, self.hands_on_norm = bool(said.get("norm_before_residual")), bool(said.get("norm_output"))
        with torch.device("meta"):
            decoder = AutoModel.from_config(config)
            self.layers, self.norm = decoder.layers, decoder.norm
            first = self.layers[0]
            for name in ("q_proj", "k_proj", "v_proj"):
                old = getattr(first.self_attn, name)
                wide = nn.Linear(2 * old.in_features, old.out_features, bias=old.bias is not None)
                setattr(first.self_attn, name, wide)

            def norm(width: int) -> nn.Module:
                made: nn.Module = type(self.norm)(width, eps=self.norm.variance_epsilon)
                return made

            first.hidden_norm = norm(config.hidden_size)
            self.fc = _linear(state, "fc")
            self.lm_head = _linear(state, "lm_head")
            self.embed_tokens = nn.Embedding(*state["embed_tokens.weight"].shape)
            self.input_norm = norm(self.fc.in_features) if said.get("norm_before_fc") else None
            width = self.fc.in_features // len(read)
            self.fc_norm = nn.ModuleList([norm(width) for _ in read]) if said.get("fc_norm") else None
        self.rotary_emb = type(decoder.rotary_emb)(config)
        self.places: torch.Tensor | None = None

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
        """The hidden states behind the layers."""
        from transformers.masking_utils import create_causal_mask

        embedded, first = self.embed_tokens(input_ids), self.layers[0]
        given = {
            "attention_mask": create_causal_mask(
                config=self.config,
                inputs_embeds=embedded,
                attention_mask=None,
                past_key_values=mtp_cache,
                position_ids=position_ids,
            ),
            "position_embeddings": self.rotary_emb(embedded, position_ids),
            "past_key_values": mtp_cache,
        }
        normed = first.hidden_norm(last_hidden_states)
        both = torch.cat([first.input_layernorm(embedded), normed], dim=-1)
        attended, _ = first.self_attn(hidden_states=both, **given)
        hidden = (normed if self.keeps_norm else last_hidden_states) + attended
        hidden = hidden + first.mlp(first.post_attention_layernorm(hidden))
        for layer in self.layers[1:]:
            hidden = layer(hidden, **given)
        result: torch.Tensor = self.norm(hidden) if self.hands_on_norm else hidden
        return result

    def _project_to_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Logits of the base's vocabulary."""
        logits: torch.Tensor = self.lm_head(hidden_states if self.hands_on_norm else self.norm(hidden_states))
        if self.places is None:
            return logits
        return nn.functional.pad(logits, (0, 1), value=_UNLIKELY)[..., self.places]


def eagle_head(model: Model, folder: Path) -> EagleHead:
    """The drafter in ``folder``, with the embeddings and the head of ``model`` where it has none.

    Raises:   UserError E302 for a folder that cannot be read, E601 for a drafter of another layout or another base.
    """
    from transformers import LlamaConfig, Qwen3Config

    stated = read_config(folder)
    state = {_name(name): tensor for name, tensor in map_checkpoint(folder).state.items()}
    places = _places(state.pop("d2t", None), state.pop("t2d", None), model, folder)
    base = model.config.get_text_config(decoder=True)
    own = {"embed_tokens": model.get_input_embeddings(), "lm_head": model.get_output_embeddings()}
    tables = {f"{name}.weight": cast(nn.Linear, module).weight.detach() for name, module in own.items()}
    state = tables | state
    eagle, inner = stated.get("eagle_config"), stated.get(_CONFIG)
    said = stated | (eagle if isinstance(eagle, dict) else {})
    sizes = inner if isinstance(inner, dict) else stated
    depth = int(base.num_hidden_layers)
    layers = said.get("eagle_aux_hidden_state_layer_ids") or (2, depth // 2, depth - 3)
    others = ["parallel_drafting"] if said.get("parallel_drafting") else []
    others += ["use_aux_hidden_state false"] if said.get("use_aux_hidden_state") is False else []
    others += ["sliding windows"] if "sliding_attention" in str(sizes.get("layer_types")) else []
    if others:
        raise _unfit(model, folder, f"its config has {', '.join(others)}")
    if not isinstance(layers, list | tuple) or not all(type(one) is int and 0 <= one < depth for one in layers):
        raise _unfit(model, folder, f"it reads the layers {layers!r:.60} of {depth}")
    if "fc.weight" not in state or "layers.0.self_attn.q_proj.weight" not in state:
        raise _unfit(model, folder, "it has no weights midlayer.* (layers.0.*) and fc")
    kind = Qwen3Config if "layers.0.self_attn.q_norm.weight" in state else LlamaConfig
    count = 1 + max(int(found[1]) for found in map(_LAYER.match, state) if found)
    with reported(f"cannot read the drafter '{folder}'", next="give a drafter of EAGLE-3"):
        config = kind(**{name: sizes[name] for name in _SIZES if sizes.get(name) is not None}, num_hidden_layers=count)
        config._attn_implementation = model.config._attn_implementation
        head = EagleHead(config, state, layers, said)
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
    """A weight's name in the layout of speculators."""
    name = name.removeprefix("model.")
    return "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name


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
