"""Sample inputs for any transformers model, from its forward signature and its config.

One table says how each kind of argument is made; no table names a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.sources.source import Options

_MAX_TOKEN = 30_000  # sample ids stay below this, clear of the special tokens that multimodal models put at the end


@dataclass(frozen=True)
class Call:
    """What a sample is made from."""

    config: Any
    options: Options
    has_decoder: bool

    def find(self, *names: str, default: Any = None) -> Any:
        """The first of the config fields ``names`` that the config or one of its sub-configs has."""
        for config in with_sub_configs(self.config):
            for name in names:
                value = getattr(config, name, None)
                if value is not None and not callable(value):
                    return value
        return default

    def image_size(self) -> tuple[int, int]:
        if self.options.image_size is not None:
            return self.options.image_size, self.options.image_size
        size = self.find("image_size", default=224)
        if isinstance(size, dict):
            size = (size.get("height", 224), size.get("width", 224))
        return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


@dataclass(frozen=True)
class _Maker:
    """How one argument is made, and the names of its dynamic axes."""

    make: Callable[[Call], torch.Tensor]
    axes: dict[int, str]


def with_sub_configs(config: Any) -> Iterator[Any]:
    yield config
    for value in vars(config).values():
        if hasattr(value, "to_dict") and hasattr(value, "model_type"):
            yield from with_sub_configs(value)


def _token_ids(call: Call) -> torch.Tensor:
    vocabulary = int(call.find("vocab_size", default=100))
    low = min(10, vocabulary - 1)  # the first ids are padding and the like, whose masks would hide the tokens
    return torch.randint(low, min(vocabulary, _MAX_TOKEN), (call.options.batch_or(), call.options.seq_or()))


def _decoder_ids(call: Call) -> torch.Tensor:
    # A length of its own, so that encoder and decoder lengths cannot be mistaken for each other.
    return _token_ids(call)[:, : max(1, call.options.seq_or() * 3 // 4)]


def _ones(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), call.options.seq_or(), dtype=torch.int64)


def _pixels(call: Call) -> torch.Tensor:
    channels = int(call.find("num_channels", "in_channels", "in_chans", default=3))
    frames = call.find("num_frames")
    lead = (call.options.batch_or(),) if frames is None else (call.options.batch_or(), int(frames))
    return torch.randn(*lead, channels, *call.image_size())


def _video(call: Call) -> torch.Tensor:
    channels = int(call.find("num_channels", "in_channels", "in_chans", default=3))
    frames = int(call.find("num_frames", default=4))
    return torch.randn(call.options.batch_or(), frames, channels, *call.image_size())


def _series(call: Call) -> torch.Tensor:
    length, channels = int(call.find("context_length", default=64)), call.find("num_input_channels")
    return torch.randn(call.options.batch_or(), length, *([] if channels is None else [int(channels)]))


def _waveform(call: Call) -> torch.Tensor:
    frames, mels = call.find("max_length"), call.find("num_mel_bins")
    if frames and mels:  # spectrogram transformers call their input a waveform's name
        return torch.randn(call.options.batch_or(), int(frames), int(mels))
    return torch.randn(call.options.batch_or(), 16_000)


def _spectrogram(call: Call) -> torch.Tensor:
    positions, mels = call.find("max_source_positions"), call.find("num_mel_bins")
    if positions and mels:  # encoders with two convolutions, the second of stride 2, and learned positions
        return torch.randn(call.options.batch_or(), int(mels), 2 * int(positions))
    mels = call.find("input_feat_per_channel", "feature_size", default=mels or 80)
    return torch.randn(call.options.batch_or(), 64, int(mels))


_TEXT_AXES = {0: "batch", 1: "sequence"}
_DECODER_AXES = {0: "batch", 1: "decoder_sequence"}
_MAKERS: dict[str, _Maker] = {
    "input_ids": _Maker(_token_ids, _TEXT_AXES),
    "attention_mask": _Maker(_ones, _TEXT_AXES),
    "decoder_input_ids": _Maker(_decoder_ids, _DECODER_AXES),
    "pixel_values": _Maker(_pixels, {0: "batch"}),
    "pixel_values_videos": _Maker(_video, {0: "batch"}),
    "past_values": _Maker(_series, {0: "batch"}),
    "input_values": _Maker(_waveform, {0: "batch"}),
    "input_features": _Maker(_spectrogram, {0: "batch"}),
}


def sample_inputs(module: Any, options: Options) -> tuple[dict[str, torch.Tensor], dict[str, dict[int, str]]]:
    """Keyword arguments of one sample call of ``module`` and their dynamic axes by argument name.

    Taken are: the model's main input; ``attention_mask`` beside ``input_ids``; ``decoder_input_ids`` for
    encoder-decoders; ``pixel_values`` beside text where the config holds a text and a vision part of equal rank; every
    argument without a default.

    Raises:   UserError E601 where an argument without a default is of an unknown kind.
    """
    config = module.config
    call = Call(config, options, bool(getattr(config, "is_encoder_decoder", False)))
    parameters = inspect.signature(module.forward).parameters
    wanted = [name for name, parameter in parameters.items() if _is_wanted(name, parameter, module, call)]
    unknown = [name for name in wanted if name not in _MAKERS]
    if unknown:
        raise UserError(
            "E601",
            f"no sample input is known for '{unknown[0]}' of {type(module).__name__}",
            next="write a factory that returns (module, args, kwargs): fx2onnx export package.module:factory",
        )
    samples = {name: _MAKERS[name].make(call) for name in wanted}
    return samples, {name: dict(_MAKERS[name].axes) for name in wanted}


def _is_wanted(name: str, parameter: inspect.Parameter, module: Any, call: Call) -> bool:
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return False
    main = module.main_input_name
    if name == main or parameter.default is parameter.empty:
        return True
    beside: dict[str, bool] = {
        "attention_mask": main == "input_ids",
        "decoder_input_ids": call.has_decoder,
        # Image and text encoders side by side (CLIP and its kin) need both inputs; a language model that embeds images
        # at placeholder tokens runs on text alone.
        "pixel_values": hasattr(call.config, "text_config")
        and hasattr(call.config, "vision_config")
        and call.find("image_token_id", "image_token_index") is None,
    }
    return beside.get(name, False)
