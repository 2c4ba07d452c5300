"""Export by reference of a pipeline of the size of SDXL: processor seconds, memory and bytes written.

``python -m benchmarks.sdxl_by_reference [FOLDER]`` writes the configs of SDXL and 13.9 GB of sparse safetensors, which take no room, and
exports the folder in a process of its own. All weights are 0, so nothing is compared; ``make pipelines`` compares a small SDXL.
"""

from __future__ import annotations

import json
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


def make_folder(folder: Path) -> int:
    """Configs and sparse weights of the components. Returns the bytes of the weights."""
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
    return total_bytes


def write_sparse(path: Path, shapes: Mapping[str, list[int]]) -> int:
    """A safetensors file of float32 zeros, without blocks on the disk. Returns their bytes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, shape in shapes.items():
        start, end = end, end + 4 * _product(shape)
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        stream.truncate(8 + len(text) + end)
    return end


def _product(shape: list[int]) -> int:
    found = 1
    for size in shape:
        found *= size
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else place)
        folder.mkdir(exist_ok=True)
        weight_bytes = make_folder(folder)
        command = [sys.executable, "-m", "fx2onnx", "export-folder", f"diffusers:{folder}", "--weights", "reference", "--no-verify"]  # fmt: skip
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
