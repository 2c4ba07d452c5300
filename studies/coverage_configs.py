"""Transformers configs made smaller, so that a model of any type builds and runs in a moment.

No rule names a model: they go by the names of fields, by other fields, and by what a field that is None has in
checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_RULES: dict[str, list[tuple[str, int]]] = {
    "depth": [
        (r"^(?!num_feat_extract)(\w+_)?(layers?|depth|blocks)$|^first_k_dense_replace$|_layers_(en|de)coder$", 2),
        (r"^num_kv_shared_layers$", 0),
        (r"^attn_layer_period$", 2),
        (r"^attn_layer_offset$", 1),
        (r"^max_text_length$", 6),  # turns of a decoder's loop in forward, each as deep as a layer
        (r"^(max_position_embeddings|n_positions|max_(text_|source_|target_)?positions|max_seq_len\w*)$", 512),
    ],
    "vocabulary": [(r"vocab(ulary)?_size|_group_vocab$", 1024)],
    "experts": [
        (r"^(num|n)_(local_|routed_)?experts$|^moe_num_experts$|^num_experts$|^n_routed_experts$", 4),
        (r"experts_per_tok(en)?$|^moe_k$|^moe_top_?k$|^num_selects$|^top_k_experts$|^moe_topk$", 2),
        (r"^(n_group|topk_group|num_expert_groups?)$", 1),
    ],
    "chosen keys": [(r"^index_topk$", 8), (r"^index_kpool$", 4)],  # fewer than a sample has
}
_WIDTHS: list[tuple[str, int, int]] = [
    (
        r"^(hidden_size|d_model|n_embd|embed_dim|hidden_dim|dim|embedding_size|width|emb_dim|embedding_dim|decoder_hidden_size)$",
        64,
        512,
    ),
    (
        r"^(word_embed_proj_dim|encoder_hidden_size|cross_hidden_size|encoder_hidden_dim|decoder_hidden_dim|lru_width)$",
        64,
        512,
    ),
    (r"^(projection_dim|out_hidden_size|projector_dim|proj_dim|output_dim|text_embed_dim)$", 64, 512),
    (r"^(adapter_(in|out)_dim|adapter_input_size|text_hidden_size)$", 64, 512),
    (r"^(?!index)(\w+_)?(attention_heads|n_heads?|num_heads|num_query_heads)$", 4, 4),
    (r"^index(er)?_n_heads$", 16, 16),  # among few heads many keys have the score 0, and no order
    (r"^(\w+_)?(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num)$", 2, 2),
    (r"^(\w+_)?head_dim$|^attention_head_dim$|^d_kv$|^kv_channels$", 16, 128),
    (r"^(kv|q)_lora_rank$", 32, 128),
    (r"^(\w*intermediate_size|\w*ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size)$", 128, 512),
]
_RULES["image"] = [(r"^latent_query_num$", 4)]
_RULES["width"] = [(pattern, small) for pattern, small, _ in _WIDTHS]
_RULES["half width"] = [(pattern, medium) for pattern, _, medium in _WIDTHS]
# Configs whose rotary sections or convolution groups are written for heads of 64.
_RULES["heads of 64"] = [(pattern, {64: 256, 16: 64}.get(small, small)) for pattern, small, _ in _WIDTHS]
_SHORT = ("depth", "vocabulary", "experts", "chosen keys")
RECIPES: dict[str, tuple[str, ...]] = {
    "small": (*_SHORT, "width", "image"),
    "small, default image": (*_SHORT, "width"),
    # Layers of the second kind that share their weights with each other.
    "small, four layers": (*_SHORT, "twice", "width", "image"),
    "medium": (*_SHORT, "half width", "image"),
    "heads of 64": (*_SHORT, "heads of 64", "image"),
    # Configs that count layers from the end, or name those whose states are read.
    "narrow": ("vocabulary", "experts", "width", "image"),
    "narrow, default image": ("vocabulary", "experts", "width"),
    # Encoders whose widths are those of layers that no field names.
    "narrow text": (*_SHORT, "width of text"),
    "full width, small image": (*_SHORT, "image"),
    "full width": _SHORT,
    "default": (),
}
"""Fields that are made smaller, by the name of the recipe. Later forms serve configs whose sizes hang together in ways
that the rules break."""


def _layers(config: Mapping[str, Any]) -> int | None:
    return next((config[key] for key in _LAYER_COUNTS if isinstance(config.get(key), int)), None)


def _per_head(config: Mapping[str, Any]) -> Any:
    width, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return width // heads if isinstance(width, int) and isinstance(heads, int) else None


def _each_layer(*words: str) -> Callable[[Mapping[str, Any]], Any]:
    """The words for the first layers, the last of them for all that follow."""

    def made(config: Mapping[str, Any]) -> Any:
        return [words[min(layer, len(words) - 1)] for layer in range(_layers(config) or 0)] or None

    return made


_CODE_COUNT, _CODE_RANGE = 256, range(512, 768)
_CODES = {"<image>": 9, "<|extra_200|>": 8}
_CODES |= {f"<|visual token {number:06d}|>": token for number, token in enumerate(_CODE_RANGE)}
_CODES |= {
    "IMGIMG" + "".join(chr(ord("A") + int(digit)) for digit in str(number)) + "Z": token
    for number, token in enumerate(_CODE_RANGE)
}
"""The tokens that stand for the codes of an image, under the names that Emu3 and Chameleon give them."""
_FILLS: dict[str, Callable[[Mapping[str, Any]], Any]] = {
    "head_dim": _per_head,
    "num_key_value_heads": lambda config: config.get("num_attention_heads"),
    "layer_types": _each_layer("full_attention"),
    "mlp_layer_types": _each_layer("dense", "sparse"),
    "sliding_window": lambda config: 8 if config.get("layer_types") else None,
    "pad_token_id": lambda config: 1 if "mask_token_id" in config else None,
    "attn_layer_indices": lambda config: [1],
    "default_language": lambda config: next(iter(config.get("languages") or ()), None),
} | {
    key: lambda config, value=value: value
    for key, value in {
        "vocab_size": 1024,
        "n_routed_experts": 4,
        "num_experts": 4,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2,
        "top_k_experts": 2,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "prediction_length": 8,
        "context_length": 16,
        "indexer_n_heads": 16,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "vocabulary_map": _CODES,
        "image_token_id": 9,
        "image_token_index": 9,
        "video_token_index": 8,
        "video_token_id": 8,
        "audio_token_id": 7,
        "backbone": "resnet18",
        "clip_qkv": 8.0,
        "downsample_rate": "1/2",
        "deepstack_layer_map": [[0, 0], [1, 1]],
    }.items()
}
"""Values of fields that a config class leaves at None, and without which its model cannot be built, as checkpoints have
them."""


_BESIDE: dict[str, tuple[str, Callable[[Mapping[str, Any]], Any]]] = {
    "kv_n_heads": ("rope_theta", lambda config: 10_000.0),
    "position_id_per_seconds": ("vision_start_token_id", lambda config: 151_652),
    "pad_head_dim_to_multiple_of": ("num_key_value_heads", lambda config: config.get("num_attention_heads")),
}
"""Fields that checkpoints also have where they have another field, and that the config class does not know."""


_PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "vision_use_cls_token": (
        "vision_config",
        {
            "architecture": "vit_pe_core_tiny_patch16_384",
            "model_args": {"embed_dim": 64, "depth": 2, "num_heads": 4, "img_size": [64, 64], "global_pool": ""},
        },
    ),
    "im_newline_id": (
        "text_config",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [16, 16, 16, 16]}},
    ),
}
"""Values in a part of a config, as checkpoints have them, where the part leaves all of it at its defaults; by a field
of the config."""


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    filled = {key: _FILLS[key](config) if value is None and key in _FILLS else value for key, value in config.items()}
    for field, (missing, made) in _BESIDE.items():
        if field in config:
            filled.setdefault(missing, made(config))
    for field, (part, made) in _PARTS.items():
        inner = filled.get(part)
        if field in config and isinstance(inner, dict) and all(inner.get(key) is None for key in list(made)[1:]):
            filled[part] = {**inner, **made}
    if config.get("rope_parameters") == {} and filled.get("layer_types"):
        plain = {"rope_type": "default", "rope_theta": 10_000.0}
        filled["rope_parameters"] = {kind: dict(plain) for kind in sorted(set(filled["layer_types"]))}
    return filled


def shrink(config: Mapping[str, Any], rules: tuple[str, ...]) -> dict[str, Any]:
    """A config dictionary, and those inside it, with the numbers that ``rules`` name cut to their limits.

    Lists with one entry a layer keep two, of different kinds where there are; lists of depths are cut entry by entry;
    special tokens beyond the new vocabulary move to ids below 10, which samples do not use.
    """
    if not all(isinstance(key, str) for key in config):  # id2label
        return dict(config)
    config = _filled(config)
    if isinstance(config.get("architecture"), str):  # a timm model of widths of its own
        rules = tuple(kind for kind in rules if "width" not in kind)
    limits = [rule for kind in rules for rule in _RULES.get(kind, ())]
    of_text = tuple("width" if kind == "width of text" else kind for kind in rules)
    layers = _layers(config) if "depth" in rules else None
    depth = layers or ("depth" in rules and config.get("depth"))
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key == "per_layer_config" and isinstance(value, dict):
            continue
        elif isinstance(value, dict):
            result[key] = shrink(value, of_text if key in _OF_TEXT else rules)
        elif isinstance(value, list) and layers and (_is_by_layer(value, layers) or (key == "block_types" and value)):
            result[key] = _two_kinds(value)
        elif key.endswith("pattern") and isinstance(value, str) and layers and len(value) == layers > 2:
            result[key] = "".join(_two_kinds(list(value)))
        elif layers and key == "cross_attention_layers" and isinstance(value, list):
            result[key] = [min(layers, 2) - 1]
        elif "depth" in rules and isinstance(value, list) and key.endswith("target_layers"):
            result[key] = [place % 2 for place in range(len(value))]  # of the language model's
        elif "depth" in rules and isinstance(value, list) and re.fullmatch(r"(\w+_)?(depths?|num_blocks|layers)", key):
            result[key] = [min(item, 2) if isinstance(item, int) else item for item in value]
        elif depth and isinstance(value, list | tuple) and _INDEXES.search(key):
            result[key] = sorted({min(index, depth - 1) * min(depth, 2) // depth for index in value})
        elif key == "vision_feature_layer" and "depth" in rules and isinstance(value, list):
            result[key] = [-1, -2][: len(value)]
        elif key == "vocab_size" and isinstance(value, int) and 1024 < value < 1100:
            result[key] = value  # hardly larger, with special tokens at its end
        elif key == "num_filters" and "downsampling_ratios" in config and "width" in rules:
            result[key] = 4  # doubled at every ratio
        elif key == "downsample_channels" and "width" in rules:
            result[key] = [64] * len(value)
        elif key == "mrope_section" and "width" in rules:
            result[key] = [2, 3, 3] if len(value) == 3 else [8 // len(value)] * len(value)
        elif isinstance(value, bool) or not isinstance(value, int):
            result[key] = value
        else:
            result[key] = min([value, *(limit for pattern, limit in limits if re.search(pattern, key))])
    _fit_tokens(result, config)
    _fit_state_space(result)
    _fit_widths(result, config)
    if "image" in rules:
        _fit_image(result)
    if config.get("vocabulary_map") is _CODES:
        _fit_codes(result)
    tile = (result.get("vision_config") or {}).get("image_size")
    if "image" in rules and isinstance(tile, int) and "image_grid_pinpoints" in config:
        result["image_grid_pinpoints"] = [[tile, 2 * tile], [2 * tile, tile], [2 * tile, 2 * tile]]
    for heads, shared in (("num_attention_heads", "num_key_value_heads"), ("num_heads", "num_kv_heads")):
        if shared in config and config[shared] == config.get(heads):
            result[shared] = result[heads]
    for derived in (*_DERIVED, *(_BY_DEPTH if "depth" in rules else ())):
        result.pop(derived, None)
    if "twice" in rules and layers:
        result |= {key: min(config[key], 4) for key in _LAYER_COUNTS if isinstance(config.get(key), int)}
        result |= {key: value * 2 for key, value in result.items() if _is_by_layer(config.get(key), layers)}
    if isinstance(config.get("per_layer_config"), dict):
        result["per_layer_config"] = _of_each_layer(config, result, rules)
    return result


def _of_each_layer(config: Mapping[str, Any], shrunk: Mapping[str, Any], rules: tuple[str, ...]) -> dict[str, Any]:
    """The fields in which a layer differs from the others, by layer: what remains of such in ``shrunk``."""
    own = config["per_layer_config"]
    plain = {key: value for key, value in config.items() if key != "per_layer_config"}
    whole = {
        layer: shrink({**plain, **values}, rules)
        for layer, values in (_of_two_kinds(config, own) if "depth" in rules else own).items()
    }
    return {
        layer: {key: value for key, value in values.items() if value != shrunk[key]} for layer, values in whole.items()
    }


_PARTS_AT_FIRST: dict[str, tuple[str, dict[str, Any]]] = {
    "use_ordered_embeddings": ("text_config", {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}),
}
"""Values in a part of a config, as checkpoints have them, without which no config can be made; by a field of its
class."""


def optional_parts(config_class: Any, names: tuple[str, ...]) -> dict[str, Any]:
    """Configs of those parts ``names`` that ``config_class`` leaves out of a config by default, and of those that it
    does not take with their own defaults."""
    parts = getattr(config_class, "sub_configs_defaults", {})
    wanted = {name: parts[name] for name in names if getattr(parts.get(name), "optional", False)}
    known = getattr(config_class, "__dataclass_fields__", {})
    made = {part: dict(values) for field, (part, values) in _PARTS_AT_FIRST.items() if field in known}
    return made | {name: spec.config_class().to_dict() for name, spec in wanted.items()}


_DERIVED = ("transformers_version", "architectures", "qk_head_dim")
_BY_DEPTH = ("out_features", "out_indices", "stage_names", "hybrid_layer_ids")
"""Fields that the config computes anew from those that were cut."""
_INDEXES = re.compile(r"_(attn|visual)_indexes$|_layers_indices$")  # of layers
_OF_TEXT = ("text_config", "llm_config", "audio_config")
"""Parts whose widths are those of embedded tokens."""
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")


def _is_by_layer(value: Any, layers: int) -> bool:
    return isinstance(value, list) and len(value) == layers > 2


def _two_kinds(value: list[Any]) -> list[Any]:
    """Two layers of different kinds: if all layers only keep states, one becomes attention, as checkpoints have it."""
    others = [item for item in value if item != value[0]]
    if not others and value[0] == "linear_attention":
        others = ["full_attention"]
    return [value[0], (others or value)[0]]


def _of_two_kinds(config: Mapping[str, Any], own: Mapping[Any, Any]) -> dict[str, Any]:
    """The values of ``own`` for the two layers that ``_two_kinds`` keeps, of lists with an entry for each layer."""
    by_layer = {int(layer): values for layer, values in own.items()}
    lists = [value for value in config.values() if isinstance(value, list) and len(value) == _layers(config)]
    others = (next((place for place, item in enumerate(value) if item != value[0]), 1) for value in lists)
    kept = {0: 0, 1: next((place for place in others if place in by_layer), 1)}
    return {str(new): by_layer[old] for new, old in kept.items() if old in by_layer}


def _fit_tokens(config: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Special tokens of the new vocabulary; one just beyond the old, which is never generated, stays so."""
    vocabulary = config.get("vocab_size")
    low = iter(range(9, 2, -1))
    for key, value in config.items():
        is_token = re.search(r"_token_(id|index)$|_token_idx$|_code$|_patch_id$", key) and isinstance(value, int)
        if is_token and value >= (vocabulary if isinstance(vocabulary, int) else 1024):
            config[key] = (
                vocabulary if value == before.get("vocab_size") and "num_codebooks" in config else next(low, 3)
            )


def _fit_codes(config: dict[str, Any]) -> None:
    """An encoder of as many codes as the vocabulary has tokens for, narrow, its attention as wide as its last level."""
    for part in (value for value in config.values() if isinstance(value, dict) and "channel_multiplier" in value):
        part |= {key: _CODE_COUNT for key in ("num_embeddings", "codebook_size") if key in part} | {"base_channels": 32}
        if "hidden_size" in part:
            part["hidden_size"] = 32 * part["channel_multiplier"][-1]


_STATE_SPACES = (
    ("num_heads", "head_dim", "expand"),
    ("mamba_n_heads", "mamba_d_head", "mamba_expand"),
    ("mamba_num_heads", "mamba_head_dim", "expand"),
    ("n_mamba_heads", "mamba_headdim", "mamba_expand"),
)
"""Heads, width of each and the factor by which the inner width is more than the hidden one, as Mamba-2 models name them."""


def _fit_state_space(config: dict[str, Any]) -> None:
    width = config.get("hidden_size")
    for heads, head_width, expand in _STATE_SPACES:
        sizes = [width, config.get(heads), config.get(head_width), config.get(expand)]
        if all(isinstance(size, int) and size > 0 for size in sizes):
            inner = width * config[expand]
            config[head_width] = min(config[head_width], inner)
            if inner % config[head_width]:
                config[head_width] = inner // min(config[heads], 8)
            config[heads] = inner // config[head_width]
            if isinstance(config.get("mamba_d_ssm"), int):
                config["mamba_d_ssm"] = inner
    if {"qk_dim_factor", "ffn_round_up_to_multiple_of"} <= config.keys() and isinstance(width, int):
        config["qk_dim_factor"] = max(
            config["qk_dim_factor"], min(1.0, 64 / width)
        )  # keys' widths are whole multiples of 64


def _fit_widths(config: dict[str, Any], before: Mapping[str, Any]) -> None:
    """Attention that is wider than the model stays so many times wider."""
    old, new = before.get("hidden_size"), config.get("hidden_size")
    wide = before.get("attention_hidden_size")
    if isinstance(old, int) and isinstance(new, int) and isinstance(wide, int) and wide % old == 0:
        config["attention_hidden_size"] = wide // old * new
        if "attention_head_dim" in config:
            config["attention_head_dim"] = config["attention_hidden_size"] // config["num_attention_heads"]
    parts = ("qk_nope_head_dim", "qk_rope_head_dim")
    known = all(isinstance(before.get(key), int) for key in ("head_dim", *parts))
    if known and before["head_dim"] == sum(before[key] for key in parts):
        config["head_dim"] = sum(config[key] for key in parts)
    read = config.get("intermediate_layers_indices")
    if isinstance(read, list) and "vision_output_dim" in config and isinstance(new, int):
        config["vision_output_dim"] = new * (1 + len(read))  # what those layers give, side by side
    shuffle = config.get("pixel_shuffle_ratio")
    if isinstance(shuffle, float) and "projector_input_dim" in config and isinstance(new, int):
        config["intermediate_size"] = round(new / shuffle**2)  # a perceptron takes what is shuffled into one patch
        config["vision_output_dim"] = config["projector_output_dim"]


def _fit_image(config: dict[str, Any]) -> None:
    if isinstance(config.get("mm_tokens_per_image"), int):
        config["mm_tokens_per_image"] = min(config["mm_tokens_per_image"], 4)
    size, patch = config.get("image_size"), config.get("patch_size")
    if isinstance(size, int) and not isinstance(size, bool):
        config["image_size"] = min(size, 4 * patch if isinstance(patch, int) and patch > 4 else 64)
