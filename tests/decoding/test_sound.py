"""Models that hear: encoders of sound before a decoder, and sound among or beside the tokens of a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as T

import fx2onnx
from fx2onnx import verify
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.recipes.delay_pattern import delays_of
from fx2onnx.decoding.recipes.streaming_audio import stream_of
from fx2onnx.decoding.reference_generate import generate_eagerly
from fx2onnx.generation import load
from fx2onnx.sources.hf.inputs import sample_inputs
from fx2onnx.sources.hf.sample_context import SampleContext
from fx2onnx.sources.seeding import seeded
from fx2onnx.sources.source import Options
from studies.coverage_sound import with_sound
from tests.cli.support import invoke
from tests.decoding.test_decoders import ENGINES, assert_same_tokens, prompts
from tests.decoding.test_image_prompts import TEXT, exported


def _speech_and_text() -> Any:
    sound = T.Wav2Vec2Config(
        **{**TEXT, "conv_dim": [16, 16], "conv_kernel": [8, 4], "conv_stride": [8, 4], "num_feat_extract_layers": 2},
        num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2,
    )
    config = T.SpeechEncoderDecoderConfig.from_encoder_decoder_configs(sound, T.BertConfig(**TEXT))
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    return T.SpeechEncoderDecoderModel(config)


@pytest.mark.long
def test_an_encoder_is_called_by_its_own_word_for_sound(tmp_path: Path) -> None:
    model, done = exported(_speech_and_text, tmp_path / "out")
    assert set(done.sources["encoder_model.onnx"].kwargs) == {"input_values"}  # the whole model's is "inputs"
    inputs = {"input_values": torch.randn(3, 16_000, generator=torch.Generator().manual_seed(1))}
    assert_same_tokens(model, done, inputs, new=6)


def _heard_as_features() -> Any:
    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "head_dim": 8}
    text = {**part, "vocab_size": 60, "num_key_value_heads": 2, "sliding_window": 5}
    sound = {**part, "num_mel_bins": 8, "sliding_window": 6}
    return T.VoxtralRealtimeForConditionalGeneration(T.VoxtralRealtimeConfig(audio_config=sound, text_config=text))


def _heard_as_codes() -> Any:
    part = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    codec = T.MimiConfig(
        **part,
        num_hidden_layers=1,
        head_dim=8,
        num_filters=4,
        upsampling_ratios=[4, 2],
        upsample_groups=32,
        codebook_dim=8,
        vector_quantization_hidden_dimension=8,
        codebook_size=16,
        num_quantizers=3,
        num_semantic_quantizers=1,
        sliding_window=4,
    )
    config = T.KyutaiSpeechToTextConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
        vocab_size=60,
        num_codebooks=3,
        codebook_vocab_size=17,
        audio_bos_token_id=16,
        audio_pad_token_id=111,
        sliding_window=5,
        codec_config=codec,
    )
    return T.KyutaiSpeechToTextForConditionalGeneration(config)


@pytest.mark.long
@pytest.mark.parametrize("build", [_heard_as_features, _heard_as_codes])
def test_each_token_is_heard_with_a_stretch_of_sound(build: Any, tmp_path: Path) -> None:
    # The mask and the window of a cache are sizes of their own: other values come with masks shorter than the cache.
    model, done = exported(build, tmp_path / "out", seeds=())
    stream = stream_of(model)
    assert stream is not None
    assert set(done.sources) == {"audio_encoder.onnx", "decoder_model.onnx"}
    for lengths, stretches in (((4, 2, 3), 12), ((1, 1), 9)):
        sound = stream.sample(SampleContext(model.config, Options(batch=len(lengths)), model), stretches)
        inputs = {**prompts(lengths), stream.argument: sound}
        assert_same_tokens(model, done, inputs)
    expected = generate_eagerly(model, inputs, 7)
    loaded = load(tmp_path / "out", "runner")
    for key in ("input_ids", "attention_mask"):  # one call of the folder, and another that goes on
        inputs[key] = expected[:, :4] if key == "input_ids" else torch.ones_like(expected[:, :4])
    whole = loaded(**inputs)
    first = loaded(**{**inputs, "input_ids": expected[:, :3], "attention_mask": inputs["attention_mask"][:, :3]})
    later = loaded(**{**inputs, "input_ids": expected[:, 3:4]}, past_key_values=first.past_key_values)
    assert torch.equal(whole.logits.argmax(-1), expected[:, 1:5])
    assert torch.allclose(later.logits, whole.logits[:, 3:], atol=1e-4)
    rows = stretches + stream.ahead
    assert loaded.generate(**inputs, max_new_tokens=50).shape[1] == rows  # no further than there is sound
    with pytest.raises(UserError, match="the sound ends with the prompt"):
        loaded.generate(**{**inputs, **prompts((rows, rows))})
    with pytest.raises(UserError, match=f"needs {stream.argument}"):
        loaded.generate(**prompts((3,)))


CODES = {
    "vocab_size": 30,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "ffn_dim": 64,
    "num_attention_heads": 4,
    "pad_token_id": 30,
    "bos_token_id": 30,
}


def _music(**more: Any) -> Any:
    model = T.MusicgenForCausalLM(T.MusicgenDecoderConfig(**CODES, **more))
    model.generation_config.decoder_start_token_id = 30
    return model


def _melody() -> Any:
    model = T.MusicgenMelodyForCausalLM(T.MusicgenMelodyDecoderConfig(**CODES, num_codebooks=3))
    model.generation_config.decoder_start_token_id = 30
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    ("build", "delays"),
    [
        (lambda: _music(num_codebooks=4), [0, 1, 2, 3]),
        (lambda: _music(num_codebooks=4, audio_channels=2), [0, 0, 1, 1]),
        (_melody, [0, 1, 2]),
    ],
)
def test_codebooks_are_written_one_after_another(build: Any, delays: list[int], tmp_path: Path) -> None:
    model, done = exported(build, tmp_path / "out", pad=30)
    assert delays_of(model) == delays
    assert list(done.sources) == ["model.onnx"]
    count = len(delays)
    draw = torch.Generator().manual_seed(1)
    for lengths, new in (((1, 1), 12), ((4, 2, 3), 9), ((2,), 1)):  # the last is too short to be shifted
        mask = prompts(lengths)["attention_mask"]
        ids = torch.randint(0, 30, (count * len(lengths), max(lengths)), generator=draw)
        # With a cache, MusicGen's own preparation takes the last token of a longer prompt alone.
        options = {"do_sample": False, "num_beams": 1, "num_return_sequences": 1, "use_cache": False}
        expected = model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=new, **options)
        for engine in ENGINES:
            loaded = load(tmp_path / "out", engine)
            found = loaded.generate(ids, attention_mask=mask, max_new_tokens=new)
            assert torch.equal(found, expected), (engine, lengths)
    with pytest.raises(UserError, match=f"the model takes {count} for each sample"):
        loaded.generate(ids[1:], max_new_tokens=3)


@pytest.mark.long
def test_a_decoder_of_codebooks_that_was_saved_alone(tmp_path: Path) -> None:
    with seeded(0):
        _melody().save_pretrained(tmp_path / "saved")
    fx2onnx.export_folder(f"hf:{tmp_path / 'saved'}", tmp_path / "out")
    prompt = [word for row in ("30", "30", "30") for word in ("--prompt-ids", row)]
    command = [
        "generate",
        str(tmp_path / "out"),
        *prompt,
        "--max-new-tokens",
        "8",
        "--verify",
        "--trust-source",
        "--json",
    ]
    result = invoke(*command)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["verified"] is True
    assert [len(row) for row in said["tokens"]] == [6, 6, 6]


def _windows_of_sound() -> Any:
    sound = {
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "num_mel_bins": 16,
        "downsample_hidden_size": 8,
        "output_dim": 32,
    }
    text = {**TEXT, "num_key_value_heads": 2, "head_dim": 8}
    return T.Qwen3ASRForConditionalGeneration(T.Qwen3ASRConfig(audio_config=sound, text_config=text, audio_token_id=7))


@pytest.mark.long
def test_a_mask_of_frames_is_part_of_the_encoder(tmp_path: Path) -> None:
    model, done = exported(_windows_of_sound, tmp_path / "out")
    assert not done.notes
    form = done.sources["audio_encoder.onnx"]
    assert form.bake == ("input_features_mask",)
    inputs = with_sound(model, prompts((6, 4, 5)))
    assert inputs is not None
    expected = generate_eagerly(model, inputs, 6)
    with torch.no_grad():
        logits = model(**inputs).logits
        silent = model(**{**inputs, "input_features": inputs["input_features"] * 0}).logits
    assert (logits - silent).abs().max() > 5e-3  # so the sound is heard
    del inputs["input_features_mask"]
    for engine in ENGINES:
        loaded = load(tmp_path / "out", engine)
        assert torch.equal(loaded.generate(**inputs, max_new_tokens=6), expected), engine
        seen = inputs["attention_mask"].bool()
        assert torch.allclose(loaded(**inputs).logits[seen], logits[seen], atol=1e-4)


def _dialogue() -> Any:
    part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    text = {**part, "num_key_value_heads": 4, "vocab_size": 40}
    sound = {**part, "num_key_value_heads": 2, "vocab_size": 30, "num_channels": 3}
    sound |= {"cross_hidden_size": 32, "cross_num_attention_heads": 4, "cross_num_key_value_heads": 4}
    sound |= {"cross_head_dim": 8, "eos_token_id": 26, "pad_token_id": 27, "bos_token_id": 28}
    config = T.DiaConfig(encoder_config=text, decoder_config=sound, delay_pattern=[0, 2, 3])
    model = T.DiaForConditionalGeneration(config)
    model.generation_config.decoder_start_token_id = 28
    return model


@pytest.mark.long
def test_codebooks_end_one_after_another(tmp_path: Path) -> None:
    model, done = exported(_dialogue, tmp_path / "out", pad=27)
    assert set(done.sources) == {"encoder_model.onnx", "decoder_model.onnx"}
    draw = torch.Generator().manual_seed(1)
    ids, mask = torch.randint(3, 40, (2, 5), generator=draw), torch.ones(2, 5, dtype=torch.int64)
    mask[1, 3:] = 0
    sound = torch.randint(0, 26, (2, 6, 3), generator=draw)
    sound[:, 0] = 28
    for column, delay in enumerate((0, 2, 3)):  # what is yet to choose, as its processor pads a prompt
        sound[:, : delay + 1, column] = 28
        sound[:, 4 + delay :, column] = 27
    for prompt in ({}, {"decoder_input_ids": sound, "decoder_attention_mask": torch.ones(2, 6, dtype=torch.int64)}):
        for new in (3, 12):
            inputs = {"input_ids": ids, "attention_mask": mask, **prompt}
            expected = generate_eagerly(model, inputs, new)
            inputs.pop("decoder_attention_mask", None)
            for engine in ENGINES:
                found = load(tmp_path / "out", engine).generate(**inputs, max_new_tokens=new)
                assert torch.equal(found, expected), (engine, new, list(prompt))
    ends = [(row == 26).int().argmax() for row in expected[0].T]
    assert [int(end - ends[0]) for end in ends] == [0, 2, 3]
    with pytest.raises(UserError, match="codebooks come last"):
        load(tmp_path / "out", "runner").generate(**{**inputs, "decoder_input_ids": sound[..., :2]})


@pytest.mark.long
@pytest.mark.parametrize("build", [lambda: _music(num_codebooks=4), _melody])
def test_proposed_sizes_of_codebooks(build: Any) -> None:
    """A row of ids for each codebook: so many times the batch, and as long as the mask."""
    module = build().eval()
    module.config.use_cache = False  # as sources have it
    samples, shapes = sample_inputs(module, Options())
    result = fx2onnx.export(module, (), kwargs=samples, dynamic_shapes=shapes)
    verdict = verify(result, module, (), samples)
    verdict.raise_if_failed()
    assert any(row.inputs.startswith("sizes ") for row in verdict.rows)
