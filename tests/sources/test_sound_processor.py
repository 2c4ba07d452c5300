"""Models with their feature extractor in front: samples of any length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.sources import Source
from fx2onnx.sources.hf.sound_processor import with_sound_processor
from tests.support import check

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


class Features(torch.nn.Module):
    """A model that gives back what it is fed."""

    def forward(self, input_features: Any = None, input_values: Any = None) -> torch.Tensor:
        found: torch.Tensor = input_values if input_features is None else input_features
        return found


def _source(name: str) -> Source:
    fed = torch.ones((2, 800) if name == "input_values" else (2, 80, 100))
    return Source("model", Features(), (), {name: fed}, {name: {0: "batch"}})


def _samples(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, generator=torch.Generator().manual_seed(length)) / 4


@pytest.mark.long_cases("mel-40", "plain")
@pytest.mark.parametrize(
    ("kind", "settings", "name"),
    [
        pytest.param("Whisper", {"chunk_length": 1}, "input_features", id="mel"),
        pytest.param(
            "Whisper",
            {"chunk_length": 1, "feature_size": 40, "n_fft": 320, "hop_length": 80},
            "input_features",
            id="mel-40",
        ),
        pytest.param("Wav2Vec2", {"do_normalize": True}, "input_values", id="normalized"),
        pytest.param("Wav2Vec2", {"do_normalize": False}, "input_values", id="plain"),
    ],
)
def test_the_numbers_of_the_extractor(tmp_path: Path, kind: str, settings: dict[str, Any], name: str) -> None:
    extractor = getattr(transformers, f"{kind}FeatureExtractor")(**settings)
    extractor.save_pretrained(tmp_path)
    source = with_sound_processor(_source(name), tmp_path)
    assert source.dynamic_shapes == {"samples": {0: "batch", 1: "samples"}}
    assert "16000 Hz" in source.origin
    samples = [(_samples(*size),) for size in ((2, 800), (1, 801), (3, 20000))]  # the last is longer than a chunk
    for (one,) in samples:
        expected = extractor(list(one.numpy()), sampling_rate=16000, return_tensors="np")[name]
        np.testing.assert_allclose(source.module(samples=one).numpy(), expected, rtol=0, atol=1e-5)
    shapes = source.dynamic_shapes
    check(source.module, samples[0], others=samples[1:], dynamic_shapes=shapes, atol=1e-4)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: transformers.WhisperFeatureExtractor(chunk_length=1, dither=0.1), "random numbers"),
        (lambda: transformers.SpeechT5FeatureExtractor(), "known are"),
        (None, "preprocessor_config.json"),
    ],
)
def test_an_extractor_that_is_no_graph(tmp_path: Path, make: Any, why: str) -> None:
    if make is not None:
        make().save_pretrained(tmp_path)
    with pytest.raises(fx2onnx.UserError, match=why) as caught:
        with_sound_processor(_source("input_values"), tmp_path)
    assert caught.value.code == "E601"
