"""Small diffusers pipelines with random weights, by name, and the arguments with which each is called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from studies.tiny_pipelines import images, unets, videos
from studies.tiny_pipelines.parts import PIPELINES

__all__ = ["CALLS", "PIPELINES", "call", "images", "unets", "videos"]  # the last three fill PIPELINES

_VIDEO = {"num_frames": 9, "height": 32, "width": 32}
CALLS: dict[str, dict[str, Any]] = {
    "latent_consistency": {"num_inference_steps": 2, "original_inference_steps": 20},
    "controlnet": {"image": torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(1))},
    "stable_diffusion_3": {"max_sequence_length": 16},
    "flux": {"max_sequence_length": 16},
    "pixart": {"use_resolution_binning": False, "max_sequence_length": 16},
    "sana": {
        "use_resolution_binning": False,
        "max_sequence_length": 16,
        "complex_human_instruction": None,
        "width": 64,
    },
    "hunyuan_dit": {"use_resolution_binning": False},
    "wan": _VIDEO | {"max_sequence_length": 16},
    "cogvideox": _VIDEO | {"max_sequence_length": 16},
    "ltx": _VIDEO | {"max_sequence_length": 16},
    "mochi": _VIDEO | {"num_frames": 7, "max_sequence_length": 16},
    "lumina2": {"max_sequence_length": 16},
    "kandinsky": {
        "prompt": None,
        "image_embeds": torch.randn(1, 32, generator=torch.Generator().manual_seed(1)),
        "negative_image_embeds": torch.randn(1, 32, generator=torch.Generator().manual_seed(2)),
    },
    "kandinsky_prior": {"height": None, "width": None},
    "audioldm": {"height": None, "width": None, "audio_length_in_s": 0.016},
}


def call(name: str) -> Callable[[Any], Any]:
    """A function that runs a pipeline of that name on a fixed seed and gives its images as an array."""
    settings = {
        "prompt": "a cat",
        "height": 32,
        "width": 48,
        "num_inference_steps": 2,
        "output_type": "np",
    } | CALLS.get(name, {})
    given = {key: value for key, value in settings.items() if value is not None or key.startswith("complex")}
    return lambda pipe: pipe(generator=torch.Generator().manual_seed(3), **given)[0]
