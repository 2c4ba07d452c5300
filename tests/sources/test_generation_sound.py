"""Models that hear: encoders of sound before a decoder, and sound among or beside the tokens of a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from fx2onnx.generation import load
from fx2onnx.sources.generation_eager import generate_eagerly
from fx2onnx.sources.torchvision_compat import prepare
from tests.sources.test_generation_images import ENGINES, TEXT, exported

prepare()
import transformers as T  # noqa: E402   after prepare(), which lets it find torchvision


def _speech_and_text() -> Any:
    sound = T.Wav2Vec2Config(
        **{**TEXT, "conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [8, 4], "num_feat_extract_layers": 2},
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    config = T.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(sound, T.BertConfig(**TEXT))
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    return T.SpeechEncoderDecoderModel(config)


def test_an_encoder_is_called_by_its_own_word_for_sound(tmp_path: Path) -> None:
    model, done = exported(_speech_and_text, tmp_path / "out")
    assert set(done.sources["encoder_model.onnx"].kwargs) == {"input_values"}  # the whole model's is "inputs"
    inputs = {"input_values": torch.randn(3, 16_000, generator=torch.Generator().manual_seed(1))}
    expected = generate_eagerly(model, inputs, 6)
    for engine in ENGINES:
        assert torch.equal(load(tmp_path / "out", engine).generate(**inputs, max_new_tokens=6), expected), engine
