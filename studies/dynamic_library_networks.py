"""Shrunk networks of diffusers, MONAI, torchaudio and transformers: how each is made, its inputs, and sizes to try."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Sizes = dict[str, int]


@dataclass(frozen=True)
class Network:
    """A module, its inputs at given sizes, and the sizes that are tried, of which the first is the example."""

    package: str
    build: Callable[[], torch.nn.Module]
    inputs: Callable[[Sizes], dict[str, torch.Tensor]]
    axes: Mapping[str, Mapping[int, Any]]
    """Names, or ``torch.export.Dim``s with ranges."""
    sizes: Sequence[Sizes]


def images(channels: int, *sizes: tuple[int, int, int]) -> dict[str, Any]:
    """The inputs, axes and sizes of a network of one image, given as (batch, height, width)."""
    return {
        "inputs": lambda at: {"x": torch.randn(at["batch"], channels, at["height"], at["width"])},
        "axes": {"x": {0: "batch", 2: "height", 3: "width"}},
        "sizes": [dict(zip(("batch", "height", "width"), each, strict=True)) for each in sizes],
    }


def volumes(channels: int, names: Sequence[str], *sizes: tuple[int, int, int, int]) -> dict[str, Any]:
    return {
        "inputs": lambda at: {"x": torch.randn(at["batch"], channels, *(at[name] for name in names))},
        "axes": {"x": {0: "batch", **{2 + axis: name for axis, name in enumerate(names)}}},
        "sizes": [dict(zip(("batch", *names), each, strict=True)) for each in sizes],
    }


def sounds(channels: int, *sizes: tuple[int, int]) -> dict[str, Any]:
    return {
        "inputs": lambda at: {"x": torch.randn(at["batch"], channels, at["samples"])},
        "axes": {"x": {0: "batch", 2: "samples"}},
        "sizes": [dict(zip(("batch", "samples"), each, strict=True)) for each in sizes],
    }


class First(torch.nn.Module):
    """The tensor among what a method of a network gives."""

    def __init__(self, network: torch.nn.Module, method: str = "forward", **keywords: Any) -> None:
        super().__init__()
        self.network, self.method, self.keywords = network, method, keywords

    def forward(self, x: torch.Tensor) -> Any:
        found = getattr(self.network, self.method)(x, **self.keywords)
        while not isinstance(found, torch.Tensor):
            found = found[0] if isinstance(found, tuple | list) else next(iter(found.values()))
        return found


class Distribution(torch.nn.Module):
    """The mean of the codes that a VAE gives."""

    def __init__(self, vae: torch.nn.Module) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, x: torch.Tensor) -> Any:
        return self.vae.encode(x).latent_dist.mean


def diffusers(name: str, **config: Any) -> Any:
    return getattr(importlib.import_module("diffusers"), name)(**config)


def monai(name: str, **config: Any) -> Any:
    return getattr(importlib.import_module("monai.networks.nets"), name)(**config)


def torchaudio(file: str, name: str, **config: Any) -> Any:
    found = importlib.util.find_spec("torchaudio")
    folder = Path(found.origin or "").parent if found is not None else Path()
    spec = importlib.util.spec_from_file_location(f"torchaudio_{file}", folder / "models" / f"{file}.py")
    if found is None or spec is None or spec.loader is None:
        raise ModuleNotFoundError("torchaudio")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return getattr(module, name)(**config)


BLOCKS_2D = {
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
    "cross_attention_dim": 8,
    "attention_head_dim": 4,
}
VAE = {
    "block_out_channels": (8, 16, 16),
    "layers_per_block": 1,
    "norm_num_groups": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 3,
    "up_block_types": ("UpDecoderBlock2D",) * 3,
    "latent_channels": 4,
}
TEXT: Mapping[str, Mapping[int, str]] = {
    "sample": {0: "batch", 2: "height", 3: "width"},
    "encoder_hidden_states": {0: "batch", 1: "tokens"},
}
LATENTS = [(2, 8, 12, 5), (1, 16, 8, 7), (3, 10, 14, 5), (2, 24, 24, 77), (1, 2, 6, 1), (4, 8, 32, 9)]


def _unet_sizes() -> list[Sizes]:
    return [dict(zip(("batch", "height", "width", "tokens"), each, strict=True)) for each in LATENTS]


def _sd_inputs(at: Sizes) -> dict[str, torch.Tensor]:
    sample = torch.randn(at["batch"], 4, at["height"], at["width"])
    return {
        "sample": sample,
        "timestep": torch.tensor(3),
        "encoder_hidden_states": torch.randn(at["batch"], at["tokens"], 8),
    }


class SDXL(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        more = {
            "addition_embed_type": "text_time",
            "addition_time_embed_dim": 4,
            "transformer_layers_per_block": (1, 2),
        }
        self.unet = diffusers("UNet2DConditionModel", **BLOCKS_2D, **more, projection_class_embeddings_input_dim=32)

    def forward(self, sample: Any, timestep: Any, encoder_hidden_states: Any, text_embeds: Any, time_ids: Any) -> Any:
        added = {"text_embeds": text_embeds, "time_ids": time_ids}
        return self.unet(sample, timestep, encoder_hidden_states, added_cond_kwargs=added).sample


def _sdxl_inputs(at: Sizes) -> dict[str, torch.Tensor]:
    return _sd_inputs(at) | {"text_embeds": torch.randn(at["batch"], 8), "time_ids": torch.randn(at["batch"], 6)}


def _video_inputs(at: Sizes) -> dict[str, torch.Tensor]:
    sizes = (at["batch"], 4, at["frames"], at["height"], at["width"])
    return _sd_inputs(at) | {"sample": torch.randn(*sizes)}


def _svd_inputs(at: Sizes) -> dict[str, torch.Tensor]:
    return {
        "sample": torch.randn(at["batch"], at["frames"], 4, at["height"], at["width"]),
        "timestep": torch.tensor(3),
        "encoder_hidden_states": torch.randn(at["batch"], 1, 8),
        "added_time_ids": torch.randn(at["batch"], 3),
    }


VIDEO = [(1, 3, 8, 12), (2, 2, 16, 8), (1, 5, 10, 14), (1, 4, 24, 8), (2, 7, 4, 6), (1, 1, 8, 16)]


def _video_sizes(**more: int) -> list[Sizes]:
    return [dict(zip(("batch", "frames", "height", "width"), each, strict=True)) | more for each in VIDEO]


SVD_BLOCKS = {
    "block_out_channels": (32, 64),
    "layers_per_block": 1,
    "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
    "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
    "num_attention_heads": (2, 2),
    "cross_attention_dim": 8,
    "in_channels": 4,
    "addition_time_embed_dim": 4,
    "projection_class_embeddings_input_dim": 12,
}
TEMPORAL_VAE = {"block_out_channels": (32, 64), "layers_per_block": 1, "down_block_types": ("DownEncoderBlock2D",) * 2}
PICTURES = ((2, 32, 48), (1, 64, 32), (3, 40, 56), (1, 96, 96), (2, 33, 47), (1, 36, 100))
BODIES = ((1, 32, 48, 16), (2, 16, 32, 64), (1, 48, 48, 32), (1, 64, 16, 16), (3, 32, 16, 16), (1, 33, 47, 30))
FEW_VOXELS = ((0, "batch", 4), (2, "frames", 9), (3, "height", 128), (4, "width", 128))
"""Beyond 2 GB the network computes in parts, as many as Python loops over."""
NETWORKS: dict[str, Network] = {
    "UNet2DConditionModel, Stable Diffusion": Network(
        "diffusers", lambda: diffusers("UNet2DConditionModel", **BLOCKS_2D), _sd_inputs, TEXT, _unet_sizes()
    ),
    "UNet2DConditionModel, SDXL": Network(
        "diffusers", SDXL, _sdxl_inputs, {**TEXT, "text_embeds": {0: "batch"}, "time_ids": {0: "batch"}}, _unet_sizes()
    ),
    "UNetSpatioTemporalConditionModel, SVD": Network(
        "diffusers",
        lambda: diffusers("UNetSpatioTemporalConditionModel", **SVD_BLOCKS),
        _svd_inputs,
        {
            "sample": {0: "batch", 1: "frames", 3: "height", 4: "width"},
            "encoder_hidden_states": {0: "batch"},
            "added_time_ids": {0: "batch"},
        },
        _video_sizes(),
    ),
    "UNet3DConditionModel": Network(
        "diffusers",
        lambda: diffusers(
            "UNet3DConditionModel",
            **BLOCKS_2D
            | {
                "down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D"),
            },
        ),
        _video_inputs,
        {
            "sample": {0: "batch", 2: "frames", 3: "height", 4: "width"},
            "encoder_hidden_states": {0: "batch", 1: "tokens"},
        },
        _video_sizes(tokens=5),
    ),
    "AutoencoderKL, encode": Network(
        "diffusers", lambda: Distribution(diffusers("AutoencoderKL", **VAE)), **images(3, *PICTURES)
    ),
    "AutoencoderKL, decode": Network(
        "diffusers",
        lambda: First(diffusers("AutoencoderKL", **VAE), "decode", return_dict=False),
        **images(4, *PICTURES),
    ),
    "AutoencoderKLTemporalDecoder, encode": Network(
        "diffusers",
        lambda: Distribution(diffusers("AutoencoderKLTemporalDecoder", **TEMPORAL_VAE)),
        **images(3, *PICTURES),
    ),
    "AutoencoderKLCogVideoX, encode": Network(
        "diffusers",
        lambda: Distribution(
            diffusers(
                "AutoencoderKLCogVideoX",
                block_out_channels=(8, 16),
                down_block_types=("CogVideoXDownBlock3D",) * 2,
                up_block_types=("CogVideoXUpBlock3D",) * 2,
                layers_per_block=1,
                latent_channels=4,
                norm_num_groups=4,
            )
        ),
        **volumes(
            3,
            ("frames", "height", "width"),
            (1, 5, 16, 24),
            (2, 9, 32, 16),
            (1, 3, 24, 40),
            (3, 8, 8, 8),
            (1, 2, 18, 20),
            (2, 6, 48, 16),
        )
        | {"axes": {"x": {axis: torch.export.Dim(name, max=most) for axis, name, most in FEW_VOXELS}}},
    ),
    "UNet": Network(
        "monai",
        lambda: First(
            monai("UNet", spatial_dims=3, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2))
        ),
        **volumes(1, ("depth", "height", "width"), *BODIES),
    ),
    "SegResNet": Network(
        "monai",
        lambda: monai("SegResNet", spatial_dims=3, init_filters=8, in_channels=1, out_channels=2),
        **volumes(1, ("depth", "height", "width"), *BODIES),
    ),
    "SwinUNETR": Network(
        "monai",
        lambda: First(monai("SwinUNETR", in_channels=1, out_channels=2, feature_size=12, spatial_dims=2)),
        **images(1, (1, 64, 96), (2, 96, 64), (1, 128, 64), (1, 160, 128), (3, 64, 64), (1, 32, 96)),
    ),
    "ConvTasNet": Network(
        "torchaudio",
        lambda: First(
            torchaudio(
                "conv_tasnet", "ConvTasNet", msk_num_feats=8, msk_num_hidden_feats=8, msk_num_layers=2, enc_num_feats=16
            )
        ),
        **sounds(1, (2, 400), (1, 401), (3, 1000), (1, 37), (2, 816), (1, 64)),
    ),
    "HDemucs": Network(
        "torchaudio",
        lambda: First(torchaudio("_hdemucs", "HDemucs", sources=["a", "b"], channels=4)),
        **sounds(2, (1, 44_100), (2, 40_000), (1, 50_001), (1, 61_440), (2, 2_201), (1, 70_000))
        | {"axes": {"x": {0: "batch", 2: torch.export.Dim("samples", min=2048)}}},
    ),
    "EncodecModel": Network(
        "transformers",
        lambda: First(_encodec(), return_dict=False),
        **sounds(1, (1, 400), (2, 320), (1, 961), (3, 1000), (1, 80), (2, 641)),
    ),
}


def _encodec() -> torch.nn.Module:
    from transformers import EncodecConfig, EncodecModel

    config = EncodecConfig(
        num_filters=4, hidden_size=8, codebook_size=16, codebook_dim=8, upsampling_ratios=[4, 2], num_residual_layers=1
    )
    model: torch.nn.Module = EncodecModel(config)
    return model
