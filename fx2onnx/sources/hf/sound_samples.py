"""Which arguments an encoder of sound takes together, made so that they fit each other. No model is named."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping

import torch

from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext
from fx2onnx.sources.hf.samples import INPUT_FACTORIES, other_forms

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
