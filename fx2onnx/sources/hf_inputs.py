"""Sample inputs for any transformers model, from its forward signature and its config.

One table says how each kind of argument is made; no table names a model.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
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
    if call.find("codebook_size") is not None:  # codecs keep the axis of channels
        return torch.randn(call.options.batch_or(), int(call.find("audio_channels", default=1)), 16_000)
    return torch.randn(call.options.batch_or(), 16_000)


def _spectrogram(call: Call) -> torch.Tensor:
    positions, mels = call.find("max_source_positions"), call.find("num_mel_bins")
    if positions and mels:  # encoders with two convolutions, the second of stride 2, and learned positions
        return torch.randn(call.options.batch_or(), int(mels), 2 * int(positions))
    names = ("feature_projection_input_dim", "input_feat_per_channel", "feature_size", "input_dim", "input_size")
    return torch.randn(call.options.batch_or(), 64, int(call.find(*names, default=mels or 80)))


def _frames_mask(call: Call) -> torch.Tensor:
    """Ones for every frame of ``input_features``, whichever of its axes they are on."""
    features = _spectrogram(call)
    return torch.ones(features.shape[0], _frames(call, features), dtype=torch.int64)


def _frames(call: Call, features: torch.Tensor) -> int:
    mels = call.find("num_mel_bins", "input_feat_per_channel", "feature_size", default=80)
    return features.shape[2] if features.shape[1] == mels else features.shape[1]


def _grid(call: Call) -> torch.Tensor:
    """Frames, rows and columns of patches of each image: the smallest grid that merges to more than one token."""
    side = 2 * int(call.find("spatial_merge_size", "merge_size", default=2))
    return torch.tensor([[1, side, side]])


def _patches(call: Call) -> torch.Tensor:
    """Flattened patches of the images of ``_grid``, one row each."""
    side = int(call.find("patch_size", default=14))
    frames = int(call.find("temporal_patch_size", default=1))
    channels = int(call.find("in_channels", "in_chans", "num_channels", default=3))
    return torch.randn(int(_grid(call).prod()), channels * frames * side * side)


def _image_pair(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), 2, int(call.find("num_channels", default=3)), *call.image_size())


def _states(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), call.options.seq_or(), int(call.find("state_dim", default=17)))


def _actions(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), call.options.seq_or(), int(call.find("act_dim", default=4)))


def _scalars(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), call.options.seq_or(), 1)


def _positions(call: Call) -> torch.Tensor:
    return torch.arange(call.options.seq_or()).expand(call.options.batch_or(), -1).clone()


def _embeddings(call: Call) -> torch.Tensor:
    width = int(call.find("hidden_size", "d_model", "n_embd", default=64))
    return torch.randn(call.options.batch_or(), call.options.seq_or(), width)


def _encoder_states(call: Call) -> torch.Tensor:
    width = int(call.find("encoder_hidden_size", "hidden_size", default=64))
    # A length of its own, so that it cannot be mistaken for the model's.
    return torch.randn(call.options.batch_or(), call.options.seq_or() + 3, width)


def _latents(call: Call) -> torch.Tensor:
    """What an audio decoder starts from, channels first."""
    width = int(call.find("hidden_size", "latent_dim", "vae_dim", default=64))
    return torch.randn(call.options.batch_or(), width, call.options.seq_or())


def _padding(call: Call) -> torch.Tensor:
    return torch.zeros(_series(call).shape[:2], dtype=torch.int64)


def _observed(call: Call) -> torch.Tensor:
    return torch.ones(_series(call).shape)


def _pixels_mask(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), *call.image_size(), dtype=torch.int64)


_TEXT_AXES = {0: "batch", 1: "sequence"}
_DECODER_AXES = {0: "batch", 1: "decoder_sequence"}
_BATCH = {0: "batch"}
_MAKERS: dict[str, _Maker] = {
    "input_ids": _Maker(_token_ids, _TEXT_AXES),
    "attention_mask": _Maker(_ones, _TEXT_AXES),
    "decoder_input_ids": _Maker(_decoder_ids, _DECODER_AXES),
    "pixel_values": _Maker(_pixels, _BATCH),
    "pixel_values_videos": _Maker(_video, _BATCH),
    "past_values": _Maker(_series, _BATCH),
    "past_values_padding": _Maker(_padding, _BATCH),
    "past_observed_mask": _Maker(_observed, _BATCH),
    "input_values": _Maker(_waveform, _BATCH),
    "input_features": _Maker(_spectrogram, _BATCH),
    "input_features_mask": _Maker(_frames_mask, _BATCH),
    "pixel_mask": _Maker(_pixels_mask, _BATCH),
    "qformer_input_ids": _Maker(_token_ids, _TEXT_AXES),
    "classes_input_ids": _Maker(_token_ids, {}),
    "classes_attention_mask": _Maker(_ones, {}),
    "inputs_embeds": _Maker(_embeddings, _TEXT_AXES),
    "query_embeds": _Maker(_embeddings, _TEXT_AXES),
    "encoder_hidden_states": _Maker(_encoder_states, {0: "batch", 1: "encoder_sequence"}),
    "hidden_states": _Maker(_latents, _BATCH),
    "states": _Maker(_states, _TEXT_AXES),
    "actions": _Maker(_actions, _TEXT_AXES),
    "rewards": _Maker(_scalars, _TEXT_AXES),
    "returns_to_go": _Maker(_scalars, _TEXT_AXES),
    "timesteps": _Maker(_positions, _TEXT_AXES),
}
_PATCH_MAKERS: dict[str, _Maker] = {
    "hidden_states": _Maker(_patches, {}),
    "pixel_values": _Maker(_patches, {}),
    "grid_thw": _Maker(_grid, {}),
    "image_grid_thw": _Maker(_grid, {}),
}
"""For encoders that take the patches of all images in one matrix and the grid of each; the grid's values decide shapes."""


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
    makers = _makers(module, parameters)
    unknown = [name for name in wanted if name not in makers]
    if unknown:
        raise UserError(
            "E601",
            f"no sample input is known for '{unknown[0]}' of {type(module).__name__}",
            next="write a factory that returns (module, args, kwargs): fx2onnx export package.module:factory",
        )
    samples = {name: makers[name].make(call) for name in wanted}
    return samples, {name: dict(makers[name].axes) for name in wanted}


def baked_inputs(samples: Mapping[str, torch.Tensor]) -> tuple[str, ...]:
    """Those of the sample inputs whose values, not only their shapes, decide what forward does."""
    return tuple(name for name in samples if name in _GRIDS)


_GRIDS = ("grid_thw", "image_grid_thw")


def _makers(module: Any, parameters: Mapping[str, inspect.Parameter]) -> Mapping[str, _Maker]:
    """How each kind of argument is made for this module."""
    grids = [name for name in _GRIDS if name in parameters]
    if any(parameters[name].default is inspect.Parameter.empty for name in grids):
        return {**_MAKERS, **_PATCH_MAKERS}
    if "pixel_values" in parameters and _takes_pairs(module):
        return {**_MAKERS, "pixel_values": _Maker(_image_pair, _BATCH)}
    return _MAKERS


def _takes_pairs(module: Any) -> bool:
    """Whether the model compares two images."""
    from transformers.models.auto import modeling_auto

    mapping: Any = getattr(modeling_auto, "MODEL_FOR_KEYPOINT_MATCHING_MAPPING_NAMES", {})
    return module.config.model_type in mapping


def _main_input(module: Any) -> str:
    """The model's main input; the first of forward that a sample is known for where the stated one is none of it."""
    parameters = inspect.signature(module.forward).parameters
    stated = str(module.main_input_name)
    if "query_embeds" in parameters and parameters["query_embeds"].default is inspect.Parameter.empty:
        return "query_embeds"
    return stated if stated in parameters else next((name for name in parameters if name in _MAKERS), stated)


def _is_wanted(name: str, parameter: inspect.Parameter, module: Any, call: Call) -> bool:
    if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
        return False
    main = _main_input(module)
    if name == main or parameter.default is parameter.empty:
        return True
    beside: dict[str, bool] = {
        "attention_mask": main == "input_ids",
        "decoder_input_ids": call.has_decoder,
        "input_ids": main == "pixel_values" and hasattr(call.config, "text_config"),
        "input_features_mask": main == "input_features",
        "encoder_hidden_states": main == "query_embeds",
        # Image and text encoders side by side (CLIP and its kin) need both inputs; a language model that embeds images
        # at placeholder tokens runs on text alone.
        "pixel_values": hasattr(call.config, "text_config")
        and hasattr(call.config, "vision_config")
        and call.find("image_token_id", "image_token_index") is None,
    }
    return beside.get(name, False)
