"""``config.json`` and ``generation_config.json`` of a checkpoint, as far as fx2onnx itself reads them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fx2onnx.sources.hf.config import read_config
from tests.fuzz.mutate import as_json, structurally

TEXT = {"num_hidden_layers": 1, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "vocab_size": 20}
BERT = TEXT | {"model_type": "bert", "architectures": ["BertForMaskedLM"], "max_position_embeddings": 32}
VIT = {"model_type": "vit", "image_size": 32, "patch_size": 16} | TEXT
VALID: list[dict[str, Any]] = [
    BERT,
    VIT,
    TEXT | {"model_type": "llama", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "dtype": "float32"},
    {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 20, "bos_token_id": 1, "eos_token_id": 1},
    {"model_type": "t5", "num_layers": 1, "num_decoder_layers": 1, "d_model": 16, "d_ff": 16, "num_heads": 2, "vocab_size": 20},
    {"model_type": "vision-encoder-decoder", "encoder": VIT, "decoder": BERT},
    {"model_type": "timm_wrapper", "architecture": "resnet10t", "num_classes": 2, "label_names": ["a", "b"], "model_args": {}},
    {"model_type": "clip", "text_config": TEXT, "vision_config": VIT, "projection_dim": 16},
]  # fmt: skip
KEYS = ["attn_implementation", "_attn_implementation", "experts_implementation", "auto_map", "backbone", "architecture",
        "model_args", "configuration_files", "quantization_config", "transformers_weights", "use_kernels", "kernels",
        "text_config", "vision_config", "model_type", "architectures", "dtype", "num_labels", "id2label", "rope_scaling",
        "backbone_config", "use_timm_backbone", "custom_generate", "_name_or_path", "per_layer_config", "hidden_act",
        "layer_types", "image_size", "fusion_config", "is_decoder", "torch_dtype", "sub_configs"]  # fmt: skip


def case(rng: random.Random, folder: Path) -> None:
    written(rng, folder)
    stated = read_config(folder)
    _check(stated)


def written(rng: random.Random, folder: Path) -> None:
    valid = rng.choice(VALID)
    keys = [*KEYS, *valid]
    (folder / "config.json").write_bytes(as_json(structurally(valid, rng, keys), rng))
    if rng.random() < 0.2:
        stated = {"eos_token_id": 1, "max_new_tokens": 3, "top_k": 4}
        (folder / "generation_config.json").write_bytes(as_json(structurally(stated, rng, keys), rng))


def _check(stated: dict[str, Any]) -> None:
    """By other means than the code that refuses: the text of what came through."""
    for part in json.dumps(stated).split('implementation": ')[1:]:
        assert not part.startswith(('"owner/', '{"": "owner/')), part[:80]
