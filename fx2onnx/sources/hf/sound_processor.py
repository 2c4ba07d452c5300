"""Sound: models with their feature extractor in front, and the arguments that an encoder of sound takes together."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.image_processor import check_files, unfit
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext
from fx2onnx.sources.hf.samples import INPUT_FACTORIES, other_forms
from fx2onnx.sources.hf.transformers_types import Processor
from fx2onnx.sources.source import Source

_MASKS = ("input_features_mask", "feature_attention_mask")
_MELS = ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_feat_size")


def sound_forms(
    argument: str, parameters: Mapping[str, inspect.Parameter], context: SampleContext
) -> Iterator[dict[str, InputFactory]]:
    """Sets of arguments to try, the usual form first: the sound alone where it may be, then with a mask of its frames."""
    forms = [INPUT_FACTORIES[argument], *other_forms(argument, context, in_patches=False)]
    if isinstance(context.find("n_window"), int):  # half of what is encoded at a time
        forms.append(InputFactory(_windows, INPUT_FACTORIES[argument].axes))
    masks = [name for name in _MASKS if name in parameters]
    if all(parameters[name].default is not parameters[name].empty for name in masks):
        yield from ({argument: factory} for factory in forms)
    for name in masks:
        for kind in (torch.int64, torch.bool):  # some invert theirs
            yield from ({argument: factory, name: _mask(factory, kind)} for factory in forms)


def _windows(context: SampleContext) -> torch.Tensor:
    """Two windows of frames [batch, mels, frames]."""
    return torch.randn(context.batch, context.number(*_MELS), 4 * context.number("n_window"))


def _frames_axis(context: SampleContext, sample: torch.Tensor) -> int:
    mels = {value for name in _MELS if isinstance(value := context.find(name), int)}
    return 2 if sample.shape[1] in mels else 1


def _mask(sound: InputFactory, kind: torch.dtype) -> InputFactory:
    """Ones for every frame of ``sound`` [batch, mels, frames] or [batch, frames, mels]."""

    def make(context: SampleContext) -> torch.Tensor:
        sample = sound.make(context)
        return torch.ones(sample.shape[0], sample.shape[_frames_axis(context, sample)], dtype=kind)

    return InputFactory(make, {})


SOUNDS = ("input_features", "input_values")
_LENGTHS = (5000, 1601)
"""Numbers of samples on which the features are compared with the extractor's own."""
_TOLERANCE = 1e-4


class _Mel(nn.Module):
    """Whisper's features: the logarithm of a mel spectrogram of ``n_samples`` samples, cut off 8 below its greatest value.

    Source:    WhisperFeatureExtractor._torch_extract_fbank_features of transformers.
    """

    window: Tensor
    filters: Tensor

    def __init__(self, extractor: Processor) -> None:
        super().__init__()
        self.length, self.n_fft, self.hop = extractor.n_samples, extractor.n_fft, extractor.hop_length
        self.register_buffer("window", torch.hann_window(self.n_fft))
        self.register_buffer("filters", torch.from_numpy(extractor.mel_filters).float().T.contiguous())

    def forward(self, samples: Tensor) -> Tensor:
        """Shapes:  samples [batch, n] -> [batch, filters, frames]."""
        padded = F.pad(samples, (0, self.length))[:, : self.length]
        spectrum = torch.stft(padded, self.n_fft, self.hop, window=self.window, return_complex=True)
        power = spectrum[..., :-1].abs() ** 2
        found = torch.clamp(self.filters @ power, min=1e-10).log10()
        return (torch.maximum(found, found.amax(dim=(1, 2), keepdim=True) - 8.0) + 4.0) / 4.0


class _Normalized(nn.Module):
    """Wav2Vec2's features: the samples, with mean 0 and variance 1 where the extractor says so."""

    def __init__(self, extractor: Processor) -> None:
        super().__init__()
        self.is_normalized = bool(extractor.do_normalize)

    def forward(self, samples: Tensor) -> Tensor:
        """Shapes:  samples [batch, n] -> the same."""
        if not self.is_normalized:
            return samples
        moved = samples - samples.mean(dim=1, keepdim=True)
        return moved / torch.sqrt(moved.square().mean(dim=1, keepdim=True) + 1e-7)


_KINDS: dict[str, type[nn.Module]] = {"WhisperFeatureExtractor": _Mel, "Wav2Vec2FeatureExtractor": _Normalized}


class Heard(nn.Module):
    """The features of samples, then the model."""

    def __init__(self, model: nn.Module, features: nn.Module, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.features, self._name, self._dtype = model, features, name, dtype

    def forward(self, samples: Tensor, **others: Tensor) -> object:
        return self.model(**{self._name: self.features(samples).to(self._dtype)}, **others)


def with_sound_processor(source: Source, folder: Path) -> Source:
    """``source`` with ``samples``, float32 [batch, n] between -1 and 1 at the extractor's rate, instead of its features.

    Raises:   UserError E601 where the folder has no feature extractor, or one of another kind.
    """
    check_files(folder, "feature extractor")
    with reported(f"cannot read the feature extractor of '{folder}'"):
        auto = importlib.import_module("transformers").AutoFeatureExtractor
        extractor = cast(Processor, auto.from_pretrained(folder, local_files_only=True, trust_remote_code=False))
    name = next(name for name in SOUNDS if name in source.kwargs)
    kind = _KINDS.get(type(extractor).__name__)
    if kind is None or getattr(extractor, "dither", None):
        raise unfit(extractor, "it adds random numbers" if kind else f"known are {', '.join(_KINDS)}")
    features = kind(extractor)
    for length in _LENGTHS:
        samples = torch.rand(2, length) - 0.5
        expected = extractor(list(samples.numpy()), sampling_rate=extractor.sampling_rate, return_tensors="pt")[name]
        found = features(samples)
        if found.shape != expected.shape or not torch.allclose(found, expected, rtol=0, atol=_TOLERANCE):
            raise unfit(extractor, f"its {name} are not the numbers that fx2onnx computes")
    given = source.kwargs[name]
    shapes = dict(source.dynamic_shapes or {})
    batch = shapes.pop(name, {}).get(0, "batch")
    masks = [key for key, value in source.kwargs.items() if "mask" in key and value.shape[-1] == given.shape[-1]]
    others = {key: value for key, value in source.kwargs.items() if key != name and key not in masks}
    count = given.shape[-1] if given.dim() == 2 else extractor.sampling_rate // 2
    samples = torch.rand(given.shape[0], count) - 0.5
    return replace(
        source,
        module=Heard(source.module, features, name, given.dtype).eval(),
        kwargs={"samples": samples, **others},
        dynamic_shapes={"samples": {0: batch, 1: "samples"}, **{n: a for n, a in shapes.items() if n in others}},
        origin=f"{source.origin}, with {type(extractor).__name__} at {extractor.sampling_rate} Hz",
    )
