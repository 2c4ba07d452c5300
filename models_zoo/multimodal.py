"""Speech and image-text models of transformers, small ones of the published shape."""

from __future__ import annotations

import torch

from fx2onnx.sources.seeding import move_constants, seeded
from fx2onnx.sources.source import DEFAULT_BATCH, DEFAULT_SEQ, Source

from .registry import zoo_model
from .text import _transformers

_MELS, _FRAMES = 16, 64


@zoo_model("whisper_tiny")
def whisper_tiny(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """The architecture of Whisper, 2 layers of width 32, without cache, for fast tests"""
    library = _transformers()
    config = library.WhisperConfig(
        vocab_size=120,
        num_mel_bins=_MELS,
        max_source_positions=_FRAMES // 2,
        max_target_positions=64,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=3,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        use_cache=False,
    )
    with seeded(seed):
        module = library.WhisperForConditionalGeneration(config).eval()
        move_constants(module, seed)
        kwargs = {
            "input_features": torch.randn(batch, _MELS, _FRAMES),
            "decoder_input_ids": torch.randint(4, 120, (batch, seq)),
        }
    axes = {"input_features": {0: "batch"}, "decoder_input_ids": {0: "batch", 1: "decoder_sequence"}}
    outputs = ("logits", "encoder_last_hidden_state")
    return Source("whisper_tiny", module, (), kwargs, axes, outputs, f"zoo, random weights, seed {seed}")


@zoo_model("clip_tiny")
def clip_tiny(*, batch: int = DEFAULT_BATCH, seq: int = DEFAULT_SEQ, seed: int = 0) -> Source:
    """The architecture of CLIP, image and text encoders of 2 layers of width 32, for fast tests"""
    library = _transformers()
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = library.CLIPConfig(
        text_config={**sizes, "vocab_size": 120, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        vision_config={**sizes, "image_size": 32, "patch_size": 8},
        projection_dim=16,
    )
    with seeded(seed):
        module = library.CLIPModel(config).eval()
        move_constants(module, seed)
        ids = torch.randint(3, 120, (batch, seq))
        ids[:, -1] = 2  # the text's embedding is that of its end
        kwargs = {
            "input_ids": ids,
            "pixel_values": torch.randn(batch, 3, 32, 32),
            "attention_mask": torch.ones(batch, seq, dtype=torch.int64),
        }
    text = {0: "batch", 1: "sequence"}
    axes = {"input_ids": text, "pixel_values": {0: "images"}, "attention_mask": text}
    return Source("clip_tiny", module, (), kwargs, axes, (), f"zoo, random weights, seed {seed}")
