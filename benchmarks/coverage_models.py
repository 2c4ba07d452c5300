"""The models of the coverage table: their names, and how each is built small.

``attempts`` gives builders from the smallest to the default form of a model; the first that builds and runs eagerly is
the one to export.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fx2onnx.sources import Options, Source, names, resolve

SOURCES = ("torchvision", "timm", "hf")
LARGEST_PARAMETERS = 320_000_000
"""Larger shrunk transformers models are not tried: one in float32, float64 and onnxruntime would not fit the memory."""

Attempt = tuple[str, Callable[[], Source]]


def all_names(source: str, full: bool = False) -> list[str]:
    """Every torchvision entry, one architecture per timm family (``full``: every one), every transformers type."""
    if source == "hf":  # in an order that makes the first so many a fair sample
        return sorted(names(source), key=lambda name: zlib.crc32(name.encode()))
    if source == "torchvision":
        return names(source)
    if full:
        return names(source)
    from fx2onnx.sources.timm_kind import _timm as imported

    timm = imported()
    families = {family: timm.list_models(module=family) for family in timm.list_modules()}
    return sorted(_smallest(family) for family in families.values() if family)


_BIG = ("large", "huge", "giant", "gigantic", "enormous", "xl", "base", "128gf", "7b", "_b_", "_l", "_h")
_SMALL = ("tiny", "nano", "pico", "femto", "atto", "small", "mini", "_s", "_t", "_xs")


def _smallest(family: list[str]) -> str:
    """The name that promises the smallest model; timm's own ``test_`` models stand for no published one."""
    real = [name for name in family if not name.startswith("test_")] or family

    def rank(name: str) -> tuple[bool, bool, int, str]:
        return any(word in name for word in _BIG), not any(word in name for word in _SMALL), len(name), name

    return min(real, key=rank)


def attempts(source: str, name: str) -> Iterator[Attempt]:
    """Labelled builders of one model, smallest form first."""
    yield from {"torchvision": _torchvision, "timm": _timm, "hf": _hf}[source](name)


def _torchvision(name: str) -> Iterator[Attempt]:
    # Few detections: among hundreds with random weights some are so nearly equal that rounding decides their order.
    resized = "?min_size=128&max_size=128"
    small: dict[str, tuple[str, int]] = {"raft": ("", 128), "rcnn": (f"{resized}&box_detections_per_img=10", 128)}
    small |= dict.fromkeys(("fcos", "retinanet"), (f"{resized}&detections_per_img=10", 128))
    small["ssd"] = ("?detections_per_img=10", 128)
    keywords, size = next((form for part, form in small.items() if part in name), ("", 64))
    for image_size in (size, 96, 128, 224, None):
        label = f"image {image_size}" if image_size else "default image"
        yield (
            label,
            lambda s=image_size, k=keywords if image_size else "": resolve(f"torchvision:{name}{k}", image_size=s),
        )


def _timm(name: str) -> Iterator[Attempt]:
    from fx2onnx.sources.timm_kind import _timm as imported

    timm = imported()
    configured = timm.get_pretrained_cfg(name)
    if configured is not None and configured.input_size[-1] > 288:
        yield "image 224", lambda: resolve(f"timm:{name}", image_size=224)
    yield "default image", lambda: resolve(f"timm:{name}")


def _hf(name: str) -> Iterator[Attempt]:
    for recipe in RECIPES:
        yield recipe, lambda recipe=recipe: shrunk(name, recipe)


# -- transformers configs ---------------------------------------------------------------------------------------------

_RULES: dict[str, list[tuple[str, int]]] = {
    "depth": [
        (r"^(?!num_feat_extract)(\w+_)?(layers?|depth|blocks)$|^first_k_dense_replace$|_layers_(en|de)coder$", 2),
        (r"vocab(ulary)?_size", 1024),
        (r"^num_kv_shared_layers$", 0),
        (r"^(max_position_embeddings|n_positions|max_(text_|source_|target_)?positions|max_seq_len\w*)$", 512),
    ],
    "experts": [
        (r"^(num|n)_(local_|routed_)?experts$|^moe_num_experts$|^num_experts$|^n_routed_experts$", 4),
        (r"experts_per_tok(en)?$|^moe_k$|^moe_top_?k$|^num_selects$|^top_k_experts$|^moe_topk$", 2),
        (r"^(n_group|topk_group)$", 1),
    ],
}
_WIDTHS: list[tuple[str, int, int]] = [
    (
        r"^(hidden_size|d_model|n_embd|embed_dim|hidden_dim|dim|embedding_size|width|emb_dim|decoder_hidden_size)$",
        64,
        512,
    ),
    (r"^(word_embed_proj_dim|encoder_hidden_size|encoder_hidden_dim|decoder_hidden_dim|lru_width)$", 64, 512),
    (r"^(projection_dim|out_hidden_size|projector_dim|proj_dim|output_dim|text_embed_dim)$", 64, 512),
    (r"^(\w+_)?(attention_heads|n_heads?|num_heads|num_query_heads)$", 4, 4),
    (r"^(num_key_value_heads|num_kv_heads|n_kv_heads|multi_query_group_num)$", 2, 2),
    (r"^(\w+_)?head_dim$|^attention_head_dim$|^d_kv$|^kv_channels$", 16, 128),
    (r"^(kv|q)_lora_rank$", 32, 128),
    (r"^(\w*intermediate_size|\w*ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size)$", 128, 512),
]
_RULES["width"] = [(pattern, small) for pattern, small, _ in _WIDTHS]
_RULES["half width"] = [(pattern, medium) for pattern, _, medium in _WIDTHS]
# Configs whose rotary sections or convolution groups are written for heads of 64.
_RULES["heads of 64"] = [(pattern, {64: 256, 16: 64}.get(small, small)) for pattern, small, _ in _WIDTHS]
RECIPES: dict[str, tuple[str, ...]] = {
    "small": ("depth", "experts", "width", "image"),
    "small, default image": ("depth", "experts", "width"),
    "medium": ("depth", "experts", "half width", "image"),
    "heads of 64": ("depth", "experts", "heads of 64", "image"),
    "full width, small image": ("depth", "experts", "image"),
    "full width": ("depth", "experts"),
    "default": (),
}
"""What is made smaller, by name. Later forms serve configs whose sizes hang together in ways that the rules break."""


def shrunk(name: str, recipe: str) -> Source:
    """The transformers type ``name`` with a config made smaller, random weights and sample inputs."""
    import torch

    from fx2onnx.sources import hf_kind
    from fx2onnx.sources.hf_inputs import baked_inputs, sample_inputs
    from fx2onnx.sources.seeding import move_constants, seeded

    transformers = hf_kind._transformers()
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name]
    rules = RECIPES[recipe]
    config = config_class()
    if rules:
        config = config_class(**shrink(config.to_dict(), rules))
    hf_kind._switch_cache_off(config)
    model_class = hf_kind._model_class(transformers, config, None)
    config = hf_kind.config_for(model_class, config)
    with torch.device("meta"):
        parameters = sum(value.numel() for value in model_class(config).parameters())
    if parameters > LARGEST_PARAMETERS:
        raise MemoryError(f"{parameters / 1e6:.0f} million parameters even when shrunk")
    with seeded(0):
        module = model_class(config).eval()
        move_constants(module)
        kwargs, dynamic_shapes = sample_inputs(module, Options())
    bake = baked_inputs(kwargs)
    return Source(name, module, (), kwargs, dynamic_shapes, origin=model_class.__name__, bake=bake)


def shrink(config: Mapping[str, Any], rules: tuple[str, ...]) -> dict[str, Any]:
    """A config dictionary, and those inside it, with the numbers that ``rules`` name cut to their limits.

    Lists with one entry a layer keep two, of different kinds where there are; lists of depths are cut entry by entry;
    special tokens beyond the new vocabulary move to ids below 10, which samples do not use.
    """
    if not all(isinstance(key, str) for key in config):  # id2label
        return dict(config)
    limits = [rule for kind in rules for rule in _RULES.get(kind, ())]
    layers = next((config[key] for key in _LAYER_COUNTS if isinstance(config.get(key), int)), None)
    result: dict[str, Any] = {}
    for key, value in config.items():
        if key == "per_layer_config" and isinstance(value, dict) and rules:
            result[key] = {layer: own for layer, own in value.items() if int(layer) < 2}
        elif isinstance(value, dict):
            result[key] = shrink(value, rules)
        elif isinstance(value, list) and layers and len(value) == layers > 2:
            result[key] = _two_kinds(value)
        elif key.endswith("pattern") and isinstance(value, str) and layers and len(value) == layers > 2:
            result[key] = "".join(_two_kinds(list(value)))
        elif isinstance(value, list) and re.fullmatch(r"(\w+_)?(depths?|num_blocks|layers)", key):
            result[key] = [min(item, 2) if isinstance(item, int) else item for item in value]
        elif key == "mrope_section" and "width" in rules:
            result[key] = [2, 3, 3]
        elif isinstance(value, bool) or not isinstance(value, int):
            result[key] = value
        else:
            result[key] = min([value, *(limit for pattern, limit in limits if re.search(pattern, key))])
    _fit_tokens(result)
    _fit_state_space(result)
    if "image" in rules:
        _fit_image(result)
    for heads, shared in (("num_attention_heads", "num_key_value_heads"), ("num_heads", "num_kv_heads")):
        if shared in config and config[shared] == config.get(heads):
            result[shared] = result[heads]
    for derived in _DERIVED:
        result.pop(derived, None)
    return result


_DERIVED = ("transformers_version", "architectures", "out_features", "out_indices", "stage_names", "qk_head_dim")
"""Fields that the config computes anew from those that were cut."""
_LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")


def _two_kinds(value: list[Any]) -> list[Any]:
    other = next((item for item in value if item != value[0]), value[1])
    return [value[0], other]


def _fit_tokens(config: dict[str, Any]) -> None:
    vocabulary = config.get("vocab_size")
    low = iter(range(9, 2, -1))
    for key, value in config.items():
        is_token = re.search(r"_token_(id|index)$|_token_idx$|_code$", key) and isinstance(value, int)
        if is_token and value >= (vocabulary if isinstance(vocabulary, int) else 1024):
            config[key] = next(low, 3)


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
            config[heads] = inner // config[head_width]


def _fit_image(config: dict[str, Any]) -> None:
    size, patch = config.get("image_size"), config.get("patch_size")
    if isinstance(size, int) and not isinstance(size, bool):
        config["image_size"] = min(size, 4 * patch if isinstance(patch, int) and patch > 4 else 64)
