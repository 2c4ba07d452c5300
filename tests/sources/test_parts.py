"""Models of transformers that are called part by part: codecs and transducers as folders, beside the models themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import UserError
from fx2onnx.files.pipeline_index import is_parted
from tests.cli.support import invoke

transformers = pytest.importorskip("transformers")
_ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "subsampling_conv_channels": 8,
    "num_mel_bins": 16,
    "subsampling_factor": 4,
}
_TRANSDUCER = {"vocab_size": 20, "encoder_config": _ENCODER, "decoder_hidden_size": 16, "num_decoder_layers": 1}
_BLANK = 19
_ENGINES = ("runner", "onnxruntime")


def _encodec(**stated: Any) -> Any:
    small = {"num_filters": 4, "hidden_size": 16, "num_residual_layers": 1, "codebook_size": 16, "num_lstm_layers": 1}
    rates = {"target_bandwidths": [32.0, 64.0], "upsampling_ratios": [4, 2], "sampling_rate": 16000}
    return transformers.EncodecModel(transformers.EncodecConfig(**small, **rates, **stated))


def _mimi() -> Any:
    small = {"num_filters": 4, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "head_dim": 16}
    small |= {"num_key_value_heads": 2, "intermediate_size": 32, "upsampling_ratios": [4, 2], "upsample_groups": 32}
    books = {"codebook_size": 16, "codebook_dim": 16, "vector_quantization_hidden_dimension": 16, "num_quantizers": 4}
    return transformers.MimiModel(transformers.MimiConfig(**small, **books, num_semantic_quantizers=1))


def _dac() -> Any:
    small = {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32, "codebook_size": 16}
    return transformers.DacModel(transformers.DacConfig(**small, n_codebooks=3, codebook_dim=4, sampling_rate=16000))


@pytest.mark.long
@pytest.mark.parametrize("make", [_dac, pytest.param(_encodec, marks=pytest.mark.slow), pytest.param(_mimi, marks=pytest.mark.slow)])  # fmt: skip
def test_sound_to_codes_and_back(make: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = make().eval()
    model.save_pretrained(tmp_path / "model")
    fx2onnx.export_folder(f"hf:{tmp_path / 'model'}", tmp_path / "out", verify=make is _mimi)
    sound = torch.randn(3, 1, 1003)
    with torch.no_grad():
        codes = model.encode(sound).audio_codes
        back = model.decode(audio_codes=codes, **({"audio_scales": [None]} if make is _encodec else {})).audio_values
    for engine in _ENGINES:
        loaded = fx2onnx.load(tmp_path / "out", engine=engine)
        found = loaded.call("encoder", input_values=sound.numpy()).audio_codes
        assert np.array_equal(found, codes.numpy())
        assert np.abs(loaded.call("decoder", audio_codes=found).audio_values - back.numpy()).max() < 1e-5


def _recognised(loaded: Any, features: torch.Tensor, mask: torch.Tensor, durations: list[int] | None) -> list[int]:
    """The tokens of one sound by greedy search, without durations at most ten a frame, as ``generate`` of the model finds them."""
    heard = loaded.call("encoder", input_features=features.numpy(), attention_mask=mask.numpy())
    frames = heard.encoder_output[:, : int(heard.output_mask.sum())]
    state = {name: np.zeros((1, 1, 16), np.float32) for name in ("hidden", "cell")}
    tokens, place, here, last = [], 0, 0, _BLANK
    stepped = loaded.call("decoder", input_ids=np.array([[last]]), **state)
    while place < frames.shape[1]:
        scores = loaded.call(
            "joiner", encoder_output=frames[:, place : place + 1], decoder_output=stepped.decoder_output
        )
        token = int(scores.logits[0, 0, :20].argmax())
        ahead = durations[int(scores.logits[0, 0, 20:].argmax())] if durations else int(token == _BLANK)
        if token == _BLANK and durations:
            ahead = max(ahead, 1)
        if token != _BLANK:
            tokens.append(token)
            state = {name: stepped[f"{name}.next"] for name in state}
            stepped = loaded.call("decoder", input_ids=np.array([[token]]), **state)
        here = 0 if ahead or durations else here + 1
        if here >= 10:
            ahead, here = 1, 0
        place += ahead
    return tokens


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Using the model-agnostic default")
@pytest.mark.parametrize("name", ["RNNT", pytest.param("TDT", marks=pytest.mark.slow)])
def test_a_recogniser_in_three_parts_hears_what_the_model_hears(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = getattr(transformers, f"Parakeet{name}Config")(**_TRANSDUCER, pad_token_id=0, blank_token_id=_BLANK)
    model = getattr(transformers, f"ParakeetFor{name}")(config).eval()
    with torch.no_grad():  # so that blanks and tokens take turns
        for weight in (model.decoder.lstm.weight_hh_l0, model.joint.head.weight, model.decoder.embedding.weight):
            weight.copy_(torch.randn_like(weight))
        if name == "TDT":  # most symbols are tokens of one frame
            model.joint.head.bias[_BLANK], model.joint.head.bias[21] = -1.0, 5.0
    model.save_pretrained(tmp_path / "model")
    done = invoke("export", str(tmp_path / "model"), "-o", str(tmp_path / "out"), "--no-verify")
    assert done.exit_code == 0, done.output
    assert {path.name for path in (tmp_path / "out").glob("*.onnx")} == {"encoder.onnx", "decoder.onnx", "joiner.onnx"}
    durations = list(config.durations) if name == "TDT" else None
    model.generation_config.decoder_start_token_id = _BLANK
    model.generation_config.suppress_tokens = [20 + place for place in range(len(durations or ()))] or None
    features = torch.randn(1, 61, 16)
    mask = torch.ones(1, 61, dtype=torch.bool)
    wanted = model.generate(input_features=features, attention_mask=mask)
    wanted = getattr(wanted, "sequences", wanted)[0].tolist()
    wanted = [token for token in wanted if token not in (0, _BLANK)]
    for engine in _ENGINES:
        found = _recognised(fx2onnx.load(tmp_path / "out", engine=engine), features, mask, durations)
        assert len(wanted) > 2
        assert [token for token in found if token] == wanted


@pytest.mark.parametrize(
    ("stated", "query", "expected"),
    [
        ('{"architectures": ["MimiModel"]}', "", True),
        ('{"architectures": ["MimiModel"]}', "?task=features", False),
        ('{"architectures": ["BertModel"]}', "", False),
        ('{"architectures": 3}', "", False),
        ("{}", "", False),
        ("[", "", False),
    ],
)
def test_a_class_that_is_called_part_by_part(tmp_path: Path, stated: str, query: str, expected: bool) -> None:
    (tmp_path / "config.json").write_text(stated)
    assert is_parted(f"hf:{tmp_path}{query}") is expected
    assert is_parted(f"{tmp_path}{query}") is expected


def test_codes_of_chunks_with_a_scale_each_are_refused(tmp_path: Path) -> None:
    stated = {"architectures": ["EncodecModel"], "normalize": True, "chunk_length_s": 1.0}
    (tmp_path / "config.json").write_text(json.dumps(stated))
    with pytest.raises(UserError, match="encodes chunks, each with a scale") as caught:
        fx2onnx.export_folder(str(tmp_path), tmp_path / "out")
    assert caught.value.code == "E601"
    assert not (tmp_path / "out").exists()
