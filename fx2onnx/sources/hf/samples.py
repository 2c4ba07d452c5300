"""Factories for the arguments of a transformers model's forward, by name and config. No model is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import torch
from torch import nn

from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.hf.sample_context import InputFactory, SampleContext

_MAX_TOKEN = 30_000  # sample ids stay below this, clear of the special tokens that multimodal models put at the end
_CHOICES = 3
PATCH_ROWS = 6  # a multiple of what models pool or merge: 2 and 3
_WHOLE_WINDOWS = 15_360  # a multiple of the windows that models cut sound into: 320, 480, 1920
_REGION_WIDTHS = ("visual_feat_dim", "visual_embedding_dim")
_MEL_FIELDS = ("input_feat_size", "num_mel_bins")


def _token_ids(context: SampleContext) -> torch.Tensor:
    vocabulary = context.number("vocab_size", default=100)
    low = min(10, vocabulary - 1)  # the first ids are padding and the like, whose masks would hide the tokens
    return torch.randint(low, min(vocabulary, _MAX_TOKEN), (context.batch, context.seq))


def _decoder_ids(context: SampleContext) -> torch.Tensor:
    # A length of its own, so that encoder and decoder lengths cannot be mistaken for each other.
    return _token_ids(context)[:, : max(1, context.seq * 3 // 4)]


def _ones(context: SampleContext) -> torch.Tensor:
    return torch.ones(context.batch, context.seq, dtype=torch.int64)


def _pixels(context: SampleContext, usual_frames: int | None = None) -> torch.Tensor:
    """Images, or films where the config has a number of frames or ``usual_frames`` gives one."""
    channels = context.number("num_channels", "in_channels", "in_chans", default=3)
    frames = context.find("num_frames", default=usual_frames)
    lead = (context.batch,) if frames is None else (context.batch, int(frames))
    return torch.randn(*lead, channels, *context.image_size())


def _series(context: SampleContext) -> torch.Tensor:
    length, channels = context.number("context_length", default=64), context.find("num_input_channels")
    lags = context.find("lags_sequence")  # values so many steps back are read, too
    length += max(lags) if isinstance(lags, list | tuple) and lags else 0
    return torch.randn(context.batch, length, *([] if channels is None else [int(channels)]))


def _waveform(context: SampleContext) -> torch.Tensor:
    frames, mels = context.find("max_length"), context.find("num_mel_bins")
    if frames and mels:  # spectrogram transformers call their input a waveform's name
        return torch.randn(context.batch, int(frames), int(mels))
    if context.find("codebook_size") is not None:  # codecs keep the axis of channels
        return torch.randn(context.batch, context.number("audio_channels", default=1), 16_000)
    return torch.randn(context.batch, 16_000)


def _spectrogram(context: SampleContext) -> torch.Tensor:
    positions, mels = context.find("max_source_positions"), context.find("num_mel_bins")
    if positions and mels:  # encoders with two convolutions, the second of stride 2, and learned positions
        return torch.randn(context.batch, int(mels), 2 * int(positions))
    names = ("feature_projection_input_dim", "input_feat_per_channel", "feature_size", "input_dim", "input_size")
    return torch.randn(context.batch, 64, context.number(*names, default=mels or 80))


def _frames_mask(context: SampleContext) -> torch.Tensor:
    """Ones for every frame of ``input_features``, whichever of its axes they are on."""
    batch, first, second = _spectrogram(context).shape
    mels = context.find("num_mel_bins", "input_feat_per_channel", "feature_size", default=80)
    return torch.ones(batch, second if first == mels else first, dtype=torch.int64)


def _grid(context: SampleContext) -> torch.Tensor:
    """Frames, rows and columns of patches of each image: the smallest grid that merges to more than one token."""
    side = 2 * context.number("spatial_merge_size", "merge_size", default=2)
    return torch.tensor([[1, side, side]])


def _patches(context: SampleContext) -> torch.Tensor:
    """Flattened patches of the images of ``_grid``, one row each."""
    side = context.number("patch_size", default=14)
    frames = context.number("temporal_patch_size", default=1)
    channels = context.number("in_channels", "in_chans", "num_channels", default=3)
    return torch.randn(int(_grid(context).prod()), channels * frames * side * side)


def _embeddings(context: SampleContext) -> torch.Tensor:
    width = context.number("hidden_size", "d_model", "n_embd", default=64)
    return torch.randn(context.batch, context.seq, width)


def _encoder_states(context: SampleContext) -> torch.Tensor:
    width = context.number("encoder_hidden_size", "hidden_size", default=64)
    # A length of its own, so that it cannot be mistaken for the model's.
    return torch.randn(context.batch, context.seq + 3, width)


def _latents(context: SampleContext) -> torch.Tensor:
    """The latents that an audio decoder starts from, channels first."""
    width = context.number("hidden_size", "latent_dim", "vae_dim", default=64)
    return torch.randn(context.batch, width, context.seq)


def _future_series(context: SampleContext) -> torch.Tensor:
    return torch.randn(context.batch, context.number("prediction_length", default=8))


def _main_argument(context: SampleContext) -> torch.Tensor:
    return _token_ids(context) if getattr(context.config, "vocab_size", None) else _waveform(context)


def _with_time_features(context: SampleContext, batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, context.number("num_time_features", default=0))


def _boxes(context: SampleContext) -> torch.Tensor:
    """Left, top, right and bottom of every token; numbers from 0 to 1 where a model embeds them by sines."""
    batch, length, width = context.batch, context.seq, context.find("dim_bbox")
    if width is not None:
        return torch.rand(batch, length, int(width))
    corners = torch.randint(0, context.number("max_2d_position_embeddings", default=1000) // 2, (batch, length, 2))
    return torch.cat([corners, corners + 8], dim=-1)


def _placed_patches(context: SampleContext) -> torch.Tensor:
    """Flattened patches behind their row and column, which count from 1."""
    count, width = 16, context.number("patch_embed_hidden_size", default=768)
    places = torch.stack([torch.arange(count) // 4 + 1.0, torch.arange(count) % 4 + 1.0], dim=-1)
    batch = context.batch
    return torch.cat([places.expand(batch, -1, -1), torch.randn(batch, count, width)], dim=-1)


def patch_numbers(context: SampleContext, side: int) -> int:
    """Numbers of a flattened patch; ``side`` is the usual one."""
    return context.number("num_channels", default=3) * context.number("patch_size", default=side) ** 2


def _patch_places(context: SampleContext) -> torch.Tensor:
    """Column and row of every patch."""
    every = torch.arange(PATCH_ROWS**2)
    places = torch.stack([every % PATCH_ROWS, every // PATCH_ROWS], dim=-1)
    return places.expand(context.batch, -1, -1).clone()


def _strip(context: SampleContext) -> torch.Tensor:
    """The patches of one image side by side."""
    side = context.number("patch_size", default=14)
    return torch.randn(1, context.number("num_channels", default=3), side, 16 * side)


def _decoder_frames(context: SampleContext) -> torch.Tensor:
    return torch.randn(*_decoder_ids(context).shape, context.number("num_mel_bins", default=80))


def _image_pair(context: SampleContext) -> torch.Tensor:
    return torch.randn(context.batch, 2, context.number("num_channels", default=3), *context.image_size())


_TEXT_AXES = {0: "batch", 1: "sequence"}
_DECODER_AXES = {0: "batch", 1: "decoder_sequence"}
_BATCH = {0: "batch"}
_Make: TypeAlias = Callable[[SampleContext], torch.Tensor]


def _of(axes: Mapping[int, str], makers: Mapping[str, _Make]) -> dict[str, InputFactory]:
    return {name: InputFactory(make, axes) for name, make in makers.items()}


INPUT_FACTORIES: dict[str, InputFactory] = {
    **_of(_DECODER_AXES, {"decoder_input_ids": _decoder_ids, "decoder_input_values": _decoder_frames}),
    **_of({0: "batch", 1: "encoder_sequence"}, {"encoder_hidden_states": _encoder_states}),
    **_of(
        _TEXT_AXES,
        {
            "input_ids": _token_ids,
            "attention_mask": _ones,
            "qformer_input_ids": _token_ids,
            "inputs_embeds": _embeddings,
            "query_embeds": _embeddings,
            "states": lambda context: torch.randn(context.batch, context.seq, context.number("state_dim", default=17)),
            "actions": lambda context: torch.randn(context.batch, context.seq, context.number("act_dim", default=4)),
            "rewards": lambda context: torch.randn(context.batch, context.seq, 1),
            "returns_to_go": lambda context: torch.randn(context.batch, context.seq, 1),
            "timesteps": lambda context: torch.arange(context.seq).expand(context.batch, -1).clone(),
            "bbox": _boxes,
        },
    ),
    **_of(
        {},
        {
            "classes_input_ids": _token_ids,
            "classes_attention_mask": _ones,
            "classes_structure": lambda context: torch.ones(context.batch, dtype=torch.int64),
            "tasks_input_ids": _token_ids,
            "tasks_attention_mask": _ones,
        },
    ),
    **_of(
        _BATCH,
        {
            "pixel_values": _pixels,
            "pixel_values_videos": lambda context: _pixels(context, usual_frames=4),
            "pixel_mask": lambda context: torch.ones(context.batch, *context.image_size(), dtype=torch.int64),
            "prompt_pixel_values": _pixels,
            "prompt_masks": _pixels,
            "flattened_patches": _placed_patches,
            "visual_feats": lambda context: torch.randn(context.batch, 5, context.number(*_REGION_WIDTHS, default=64)),
            "visual_pos": lambda context: torch.rand(context.batch, 5, context.number("visual_pos_dim", default=4)),
            "past_values": _series,
            "past_values_padding": lambda context: torch.zeros(_series(context).shape[:2], dtype=torch.int64),
            "past_observed_mask": lambda context: torch.ones(_series(context).shape),
            "past_time_features": lambda context: _with_time_features(context, *_series(context).shape[:2]),
            "future_values": _future_series,
            "future_time_features": lambda context: _with_time_features(context, *_future_series(context).shape),
            "freq": lambda context: torch.zeros(context.batch, 1, dtype=torch.int64),
            "input_values": _waveform,
            "speaker_embeddings": lambda context: torch.randn(
                context.batch, context.number("speaker_embedding_dim", default=512)
            ),
            "input_features": _spectrogram,
            "input_features_mask": _frames_mask,
            "audio_mel": lambda context: torch.randn(context.batch, 64, context.number(*_MEL_FIELDS, default=80)),
            "audio_mel_mask": lambda context: torch.zeros(context.batch, 64, dtype=torch.bool),  # True is padding
            "hidden_states": _latents,
            "latents": _latents,
            "inputs": _main_argument,
        },
    ),
}
PATCH_FACTORIES = _of(
    {},
    {
        "hidden_states": _patches,
        "pixel_values": _patches,
        "grid_thw": _grid,
        "image_grid_thw": _grid,
        "image_grid_hw": lambda context: _grid(context)[:, 1:],
    },
)
"""For encoders that take the patches of all images in one matrix and the grid of each; the grid's values decide shapes."""
_PATCHES_OF_IMAGES: dict[str, _Make] = {
    "pixel_values": lambda context: torch.randn(context.batch, PATCH_ROWS**2, patch_numbers(context, 16)),
    "pixel_attention_mask": lambda context: torch.ones(context.batch, PATCH_ROWS**2, dtype=torch.int64),
}
PADDED_PATCH_FACTORIES = {
    **_of(_BATCH, _PATCHES_OF_IMAGES),
    **_of({}, {"spatial_shapes": lambda context: torch.full((context.batch, 2), PATCH_ROWS)}),
    **_of(_BATCH, {"pixel_position_ids": _patch_places}),
}
"""For encoders that take the patches of each image in a row of its own."""
STRIP_FACTORIES = _of({}, {"pixel_values": _strip, "target_sizes": lambda _: torch.tensor([[4, 4]])})
"""For encoders that take images as strips of patches."""
COMPANIONS = _of({}, {"image_sizes": lambda context: torch.tensor([context.image_size()] * context.batch)})
"""The arguments that encoders of images take beside the images."""
CHOICE_FACTORIES = _of(
    {0: "batch", 1: "choices", 2: "sequence"},
    {
        "input_ids": lambda context: torch.stack([_token_ids(context) for _ in range(_CHOICES)], 1),
        "attention_mask": lambda context: torch.stack([_ones(context)] * _CHOICES, 1),
    },
)
"""For models that choose among several texts."""
PAIR_FACTORIES = _of(_BATCH, {"pixel_values": _image_pair})
"""For models that compare two images."""


def _features_of_stem(context: SampleContext) -> torch.Tensor:
    """Frames as the first layer wants them."""
    layer, batch = context.stem("audio", "speech"), context.batch
    if isinstance(layer, nn.Conv1d):
        return torch.randn(batch, layer.in_channels, 128)
    if isinstance(layer, nn.Conv2d):
        mels, side = context.number("num_mel_bins", default=64), context.find("spec_size")
        return torch.randn(batch, layer.in_channels, int(side) ** 2 // mels if side else 64, mels)
    return torch.randn(batch, 64, layer.in_features if isinstance(layer, nn.Linear) else 80)


def _patches_of_stem(context: SampleContext) -> torch.Tensor:
    """The patches of ``_grid`` as the layer that embeds them wants them."""
    layer, count = context.stem("patch"), int(_grid(context).prod())
    if isinstance(layer, nn.Conv2d):
        return torch.randn(count, layer.in_channels, *layer.kernel_size)
    return torch.randn(count, layer.in_features) if isinstance(layer, nn.Linear) else _patches(context)


def _tiles(context: SampleContext) -> torch.Tensor:
    """Each image whole and cut into the fewest tiles that the config knows."""
    height, width = context.image_size()
    rows, columns = min(context.find("image_grid_pinpoints"), key=lambda size: size[0] * size[1])
    count = 1 + -(-rows // height) * -(-columns // width)
    return torch.randn(context.batch, count, 3, height, width)


def _codebook_ids(context: SampleContext) -> torch.Tensor:
    """A token of each codebook, besides one of text."""
    return _token_ids(context)[..., None].repeat(1, 1, context.number("num_codebooks", default=1) + 1)


def _codebook_rows(context: SampleContext) -> torch.Tensor:
    """The tokens of each codebook as a row of its own."""
    return _token_ids(context).repeat(context.number("num_codebooks", default=1), 1)


def _channel_ids(context: SampleContext) -> torch.Tensor:
    return _decoder_ids(context)[..., None].repeat(1, 1, context.number("num_channels", default=1))


def other_forms(name: str, context: SampleContext, *, in_patches: bool) -> Iterator[InputFactory]:
    """The further shapes in which models take the argument ``name``."""
    if in_patches:
        if name in ("pixel_values", "hidden_states"):
            yield InputFactory(_patches_of_stem, {})
        return
    for argument, field, make, axes in _OTHER_FORMS:
        if argument == name and (field is None or context.find(field) is not None):
            rows = Dim.symbol("batch") * context.number("num_codebooks", default=1)
            yield InputFactory(make, {0: rows, 1: "sequence"} if make is _codebook_rows else axes)


# Argument, the config field without which no model has the form, how it is made, and its dynamic axes.
_OTHER_FORMS: tuple[tuple[str, str | None, _Make, Mapping[int, str]], ...] = (
    ("input_values", None, lambda context: torch.randn(context.batch, 1, _WHOLE_WINDOWS), _BATCH),
    ("input_values", None, lambda context: torch.randn(context.batch, _WHOLE_WINDOWS), _BATCH),
    ("input_features", None, _features_of_stem, _BATCH),
    ("pixel_values", None, lambda context: _pixels(context)[:, None], _BATCH),
    ("pixel_values", "image_grid_pinpoints", _tiles, _BATCH),
    ("input_ids", "num_codebooks", _codebook_ids, _TEXT_AXES),
    ("input_ids", "num_codebooks", _codebook_rows, _TEXT_AXES),
    ("decoder_input_ids", "num_channels", _channel_ids, _DECODER_AXES),
)
