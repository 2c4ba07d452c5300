"""Small diffusers pipelines with random weights, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffusers
import torch
import transformers
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

PIPELINES: dict[str, Callable[[], Any]] = {}


def pipeline(make: Callable[[], Any]) -> Callable[[], Any]:
    """Register the pipeline that ``make`` builds; PyTorch's random numbers are seeded before."""

    def seeded() -> Any:
        torch.manual_seed(0)
        return make()

    PIPELINES[make.__name__] = seeded
    return seeded


def tokenizer(length: int = 16) -> CLIPTokenizer:
    """A tokenizer of single characters, with texts of ``length`` tokens."""
    characters = [chr(code) for code in range(33, 127)]
    words = [*characters, *(character + "</w>" for character in characters), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: place for place, word in enumerate(words)}, merges=[], model_max_length=length)


def text_encoder(kind: Any = CLIPTextModel, width: int = 32) -> Any:
    config = CLIPTextConfig(
        vocab_size=190,
        hidden_size=width,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        projection_dim=width,
        max_position_embeddings=16,
        bos_token_id=188,
        eos_token_id=189,
        pad_token_id=189,
    )
    return kind(config).eval()


def unet(**more: Any) -> Any:
    settings = {
        "block_out_channels": (16, 32),
        "layers_per_block": 1,
        "sample_size": 16,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        "cross_attention_dim": 32,
        "attention_head_dim": 4,
        "norm_num_groups": 4,
    }
    return diffusers.UNet2DConditionModel(**(settings | more)).eval()


def vae(**more: Any) -> Any:
    settings = {
        "block_out_channels": (8, 16),
        "down_block_types": ("DownEncoderBlock2D",) * 2,
        "up_block_types": ("UpDecoderBlock2D",) * 2,
        "norm_num_groups": 4,
        "latent_channels": 4,
    }
    return diffusers.AutoencoderKL(**(settings | more)).eval()


@pipeline
def stable_diffusion() -> Any:
    scheduler = diffusers.DDIMScheduler(clip_sample=False, set_alpha_to_one=False)
    return diffusers.StableDiffusionPipeline(
        vae(), text_encoder(), tokenizer(), unet(), scheduler, None, None, requires_safety_checker=False
    )


CALLS: dict[str, dict[str, Any]] = {}


def call(name: str) -> Callable[[Any], Any]:
    """A function that runs a pipeline of that name on a fixed seed and gives its images as an array."""
    settings = {"height": 32, "width": 48, "num_inference_steps": 2, "output_type": "np"} | CALLS.get(name, {})
    return lambda pipe: pipe("a cat", generator=torch.Generator().manual_seed(3), **settings)[0]
