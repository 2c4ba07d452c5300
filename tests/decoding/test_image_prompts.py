"""Models that take images otherwise than by an encoder of features at placeholder tokens, and what folders refuse."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.exporting.result import ExportedFolder
from fx2onnx.generation import load
from fx2onnx.sources.seeding import seeded
from tests.decoding import test_decoders
from tests.decoding.test_decoders import ENGINES, assert_same_tokens, assert_verified

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 60}


def exported(
    build: Callable[[], Any], folder: Path, *, pad: int = 0, seeds: tuple[int, ...] = (1,)
) -> tuple[Any, ExportedFolder]:
    """The model and its folder, verified; ``seeds`` as ``verify`` takes them."""

    def telling() -> Any:
        model = build()
        for weight in model.parameters():
            weight.data.mul_(4 if weight.dim() > 1 else 1)  # so that tokens tell a wrong image or cache
        return model

    model, done = test_decoders.exported(telling, folder, pad=pad)
    assert_verified(done, seeds=seeds)
    return model, done


def _image_captioner() -> Any:
    vision = T.ViTConfig(**{**TEXT, "image_size": 16, "patch_size": 8})
    text = T.TrOCRConfig(
        d_model=32,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=64,
        vocab_size=60,
        cross_attention_hidden_size=32,
    )
    config = T.VisionEncoderDecoderConfig.from_encoder_decoder_configs(vision, text)
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    return T.VisionEncoderDecoderModel(config)


@pytest.mark.long
def test_the_decoder_of_an_image_takes_a_prompt(tmp_path: Path) -> None:
    model, done = exported(_image_captioner, tmp_path / "out")
    pixels = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    words = torch.tensor([[11, 12, 13], [14, 15, 16], [17, 18, 19]])
    for prompt in (
        {},
        {"decoder_input_ids": words},
        {"decoder_input_ids": torch.cat([words[:, :1] * 0 + 2, words], 1)},
    ):
        assert_same_tokens(model, done, {"pixel_values": pixels, **prompt}, new=6)
    with pytest.raises(UserError, match="the encoder has 3 rows"):
        load(tmp_path / "out", "runner").generate(pixel_values=pixels, decoder_input_ids=words[:2])


VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "image_size": 16,
}


def _git() -> Any:
    vision = {**VISION, "patch_size": 8}
    return T.GitForCausalLM(T.GitConfig(**TEXT, vision_config=vision, max_position_embeddings=64))


def _mllama() -> Any:
    vision = {
        **VISION,
        "patch_size": 8,
        "num_global_layers": 1,
        "attention_heads": 4,
        "intermediate_layers_indices": [0],
    }
    vision |= {"vision_output_dim": 64}
    text = {**TEXT, "num_hidden_layers": 3, "num_key_value_heads": 2, "cross_attention_layers": [1]}
    text |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "pad_token_id": 0}
    model = T.MllamaForConditionalGeneration(
        T.MllamaConfig(vision_config=vision, text_config=text, image_token_index=59)
    )
    for gate in (value for value in model.parameters() if value.numel() == 1):
        gate.data.fill_(2.0)  # closed in a new model
    return model


def _kosmos() -> Any:
    vision = {"hidden_size": 32, "patch_embed_hidden_size": 12, "intermediate_size": 64, "head_dim": 8}
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 4, "max_num_patches": 16}
    text = {"vocab_size": 60, "embed_dim": 32, "layers": 2, "ffn_dim": 64, "attention_heads": 4}
    return T.Kosmos2_5ForConditionalGeneration(
        T.Kosmos2_5Config(text_config=text, vision_config=vision, latent_query_num=3)
    )


def _tiles(count: int) -> dict[str, torch.Tensor]:
    with seeded(2):
        pixels = torch.randn(count, 1, 4, 3, 16, 16)
    ratios = {"aspect_ratio_ids": torch.tensor([[6], [1], [2]][:count])}
    tiles = torch.tensor([[[1, 1, 1, 1]], [[1, 0, 0, 0]], [[1, 1, 0, 0]]][:count])
    shown = tiles[:, None].repeat(1, 5, 1, 1)
    shown[:, :2] = 0  # the first words come before the image
    return {"pixel_values": pixels, **ratios, "aspect_ratio_mask": tiles, "cross_attention_mask": shown}


def _pixels(count: int) -> dict[str, torch.Tensor]:
    with seeded(2):
        return {"pixel_values": torch.randn(count, 3, 16, 16)}


def _patches(count: int) -> dict[str, torch.Tensor]:
    with seeded(2):
        patches = torch.cat([torch.randint(1, 5, (count, 16, 2)).float(), torch.randn(count, 16, 12)], dim=-1)
    return {"flattened_patches": patches, "image_embeds_position_mask": torch.tensor([[0, 0, 1, 1, 1]] * count)}


CROSS, PREFIX = {"vision_encoder.onnx", "decoder_model.onnx"}, {"prompt_model.onnx", "decoder_model.onnx"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "media", "files"), [(_git, _pixels, PREFIX), (_mllama, _tiles, CROSS), (_kosmos, _patches, PREFIX)]
)
def test_images_that_enter_the_language_model_itself(
    build: Callable[[], Any], media: Callable[[int], dict[str, torch.Tensor]], files: set[str], tmp_path: Path
) -> None:
    model, done = exported(build, tmp_path / "out")
    assert set(done.reports) == files
    ids = torch.tensor([[5, 6, 7, 8, 9], [0, 0, 11, 12, 13], [0, 14, 15, 16, 17]])
    for count in (1, 3):
        inputs = {"input_ids": ids[:count], "attention_mask": (ids[:count] > 0).long(), **media(count)}
        expected = generate_eagerly(model, inputs, 6)
        image = next(iter(media(1)))
        with torch.no_grad():
            seen, unseen = (model(**inputs | {image: inputs[image] * by}).logits[:, -1] for by in (1, 0))
        assert (seen - unseen).abs().max() > 1e-3
        for engine in ENGINES:
            loaded = load(tmp_path / "out", engine)
            assert torch.equal(loaded.generate(**inputs, max_new_tokens=6), expected), engine
            with pytest.raises(UserError, match=f"needs {image}"):
                loaded.generate(input_ids=ids)
            with pytest.raises(UserError, match="no input 'pixels'"):
                loaded.generate(**inputs, pixels=ids)
