"""Export by reference of models larger than the memory: processor seconds, memory and bytes written.

``python -m benchmarks.sparse_by_reference sdxl|experts`` writes configs of a published size and sparse safetensors, which take no room (SDXL:
13.9 GB; a decoder with 128 experts in each of 48 layers: 61 GB), and exports the folder in a process of its own. All weights are 0, so
nothing is compared: ``make pipelines`` compares a small SDXL, the tests small decoders with experts.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

UNET: dict[str, Any] = {
    "sample_size": 128,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "cross_attention_dim": 2048,
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
    "use_linear_projection": True,
}
VAE: dict[str, Any] = {
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (128, 256, 512, 512),
    "layers_per_block": 2,
}
TEXT = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
TEXT_2 = {"hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_attention_heads": 20, "projection_dim": 1280}  # fmt: skip
EXPERTS = {
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "tie_word_embeddings": False,
}


def make_experts(folder: Path) -> tuple[str, int]:
    """Config and sparse weights of a Qwen3-MoE type, experts one by one as its checkpoints have them. Returns the source and the bytes."""
    import torch
    import transformers

    config = transformers.Qwen3MoeConfig(**EXPERTS, dtype="bfloat16", architectures=["Qwen3MoeForCausalLM"])
    config.save_pretrained(folder)
    with torch.device("meta"):
        weights = transformers.Qwen3MoeForCausalLM(config).state_dict()
    shapes: dict[str, list[int]] = {}
    for key, value in weights.items():
        if ".experts." not in key:
            shapes[key] = list(value.shape)
            continue
        stem, count, (out, wide) = key.rsplit(".", 1)[0], value.shape[0], value.shape[1:]
        is_joined = key.endswith("gate_up_proj")
        for expert in range(count):
            for part in ("gate_proj", "up_proj") if is_joined else ("down_proj",):
                shapes[f"{stem}.{expert}.{part}.weight"] = [out // 2 if is_joined else out, wide]
    return f"hf:{folder}", _write_shards(folder, shapes)


def _write_shards(folder: Path, shapes: Mapping[str, list[int]]) -> int:
    """Sparse bfloat16 files of one layer each, with their index. Returns the bytes of all."""
    files: dict[str, dict[str, list[int]]] = {}
    for key, shape in shapes.items():
        layer = key.split(".")[2] if key.startswith("model.layers.") else "other"
        files.setdefault(f"model-{layer}.safetensors", {})[key] = shape
    total_bytes = sum(write_sparse(folder / file, held, "BF16", 2) for file, held in files.items())
    weight_map = {key: file for file, held in files.items() for key in held}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return total_bytes


def make_sdxl(folder: Path) -> tuple[str, int]:
    """Configs and sparse weights of the components of SDXL. Returns the source and the bytes of the weights."""
    import diffusers
    import torch
    import transformers

    with torch.device("meta"):
        parts: dict[str, Any] = {
            "unet": diffusers.UNet2DConditionModel(**UNET),
            "vae": diffusers.AutoencoderKL(**VAE),
            "text_encoder": transformers.CLIPTextModel(transformers.CLIPTextConfig(**TEXT)),
            "text_encoder_2": transformers.CLIPTextModelWithProjection(transformers.CLIPTextConfig(**TEXT_2)),
        }
    stated: dict[str, Any] = {"_class_name": "StableDiffusionXLPipeline", "_diffusers_version": diffusers.__version__}
    total_bytes = 0
    for name, part in parts.items():
        is_diffusers = hasattr(part, "save_config")
        (part.save_config if is_diffusers else part.config.save_pretrained)(folder / name)
        file = f"{'diffusion_pytorch_model' if is_diffusers else 'model'}.safetensors"
        total_bytes += write_sparse(
            folder / name / file, {key: list(value.shape) for key, value in part.state_dict().items()}
        )
        stated[name] = ["diffusers" if is_diffusers else "transformers", type(part).__name__]
    diffusers.EulerDiscreteScheduler(beta_schedule="scaled_linear").save_pretrained(folder / "scheduler")
    stated["scheduler"] = ["diffusers", "EulerDiscreteScheduler"]
    stated |= {key: [None, None] for key in ("tokenizer", "tokenizer_2", "image_encoder", "feature_extractor")}
    (folder / "model_index.json").write_text(json.dumps(stated))
    return f"diffusers:{folder}", total_bytes


def write_sparse(path: Path, shapes: Mapping[str, list[int]], dtype: str = "F32", item_bytes: int = 4) -> int:
    """A safetensors file of zeros, without blocks on the disk. Returns their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, shape in shapes.items():
        start, end = end, end + item_bytes * math.prod(shape)
        header[key] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # as the package aligns what follows
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return end


MADE = {"sdxl": make_sdxl, "experts": make_experts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MADE)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        source, weight_bytes = MADE[parser.parse_args().model](folder)
        command = [sys.executable, "-m", "fx2onnx", "export-folder", source, "--weights", "reference", "--no-verify"]
        begun = time.perf_counter()
        subprocess.run(command, check=True)
        seconds = time.perf_counter() - begun
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        written = sum(path.stat().st_size for path in folder.glob("*.onnx"))
        print(
            f"{weight_bytes / 1e9:.1f} GB of weights: {seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of the processor, "
        )
        print(f"{used.ru_maxrss / 1e6:.2f} GB of memory at most, {written / 1e6:.1f} MB written")


if __name__ == "__main__":
    main()
