"""Which arguments an encoder of sound takes together, made so that they fit each other. No model is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fx2onnx.sources.hf.call import Call, Maker
from fx2onnx.sources.hf.samples import MAKERS, other_forms

_MASKS = ("input_features_mask", "feature_attention_mask")
_MELS = ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_feat_size")


def sound_forms(argument: str, parameters: Mapping[str, Any], call: Call) -> Iterator[dict[str, Maker]]:
    """Sets of arguments to try, the usual form first: the sound alone where it may be, then with a mask of its frames."""
    forms = [MAKERS[argument], *other_forms(argument, call, in_patches=False)]
    if isinstance(call.find("n_window"), int):  # half of what is encoded at a time
        forms.append(Maker(_windows, MAKERS[argument].axes))
    masks = [name for name in _MASKS if name in parameters]
    if all(parameters[name].default is not parameters[name].empty for name in masks):
        yield from ({argument: maker} for maker in forms)
    for name in masks:
        for kind in (torch.int64, torch.bool):  # some invert theirs
            yield from ({argument: maker, name: _mask(maker, kind)} for maker in forms)


def _windows(call: Call) -> torch.Tensor:
    """Two windows of frames [batch, mels, frames]."""
    return torch.randn(call.options.batch_or(), int(call.find(*_MELS)), 4 * int(call.find("n_window")))


def _frames_axis(call: Call, sample: torch.Tensor) -> int:
    mels = {value for name in _MELS if isinstance(value := call.find(name), int)}
    return 2 if sample.shape[1] in mels else 1


def _mask(sound: Maker, kind: torch.dtype) -> Maker:
    """Ones for every frame of ``sound`` [batch, mels, frames] or [batch, frames, mels]."""

    def make(call: Call) -> torch.Tensor:
        sample = sound.make(call)
        return torch.ones(sample.shape[0], sample.shape[_frames_axis(call, sample)], dtype=kind)

    return Maker(make, {})
