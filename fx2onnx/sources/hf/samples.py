"""How each argument of a transformers model's forward is made, by its name and the config. No model is named."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from fx2onnx.base.dims import Dim
from fx2onnx.sources.hf.call import Call, Maker

_MAX_TOKEN = 30_000  # sample ids stay below this, clear of the special tokens that multimodal models put at the end


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
    lags = call.find("lags_sequence")  # values so many steps back are read, too
    length += max(lags) if isinstance(lags, list | tuple) and lags else 0
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


def _image_sizes(call: Call) -> torch.Tensor:
    return torch.tensor([call.image_size()] * call.options.batch_or())


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


def _time_features(call: Call) -> torch.Tensor:
    return torch.randn(*_series(call).shape[:2], int(call.find("num_time_features", default=0)))


def _future_series(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), int(call.find("prediction_length", default=8)))


def _future_time_features(call: Call) -> torch.Tensor:
    return torch.randn(*_future_series(call).shape, int(call.find("num_time_features", default=0)))


def _frequency(call: Call) -> torch.Tensor:
    return torch.zeros(call.options.batch_or(), 1, dtype=torch.int64)


def _boxes(call: Call) -> torch.Tensor:
    """Left, top, right and bottom of every token; numbers from 0 to 1 where a model embeds them by sines."""
    batch, length, width = call.options.batch_or(), call.options.seq_or(), call.find("dim_bbox")
    if width is not None:
        return torch.rand(batch, length, int(width))
    corners = torch.randint(0, int(call.find("max_2d_position_embeddings", default=1000)) // 2, (batch, length, 2))
    return torch.cat([corners, corners + 8], dim=-1)


def _region_features(call: Call) -> torch.Tensor:
    return torch.randn(
        call.options.batch_or(), 5, int(call.find("visual_feat_dim", "visual_embedding_dim", default=64))
    )


def _region_places(call: Call) -> torch.Tensor:
    return torch.rand(call.options.batch_or(), 5, int(call.find("visual_pos_dim", default=4)))


def _sounds(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), 64, int(call.find("input_feat_size", "num_mel_bins", default=80)))


def _no_sound(call: Call) -> torch.Tensor:
    """True where a frame is padding."""
    return torch.zeros(call.options.batch_or(), 64, dtype=torch.bool)


def _placed_patches(call: Call) -> torch.Tensor:
    """Flattened patches behind their row and column, which count from 1."""
    count, width = 16, int(call.find("patch_embed_hidden_size", default=768))
    places = torch.stack([torch.arange(count) // 4 + 1.0, torch.arange(count) % 4 + 1.0], dim=-1)
    batch = call.options.batch_or()
    return torch.cat([places.expand(batch, -1, -1), torch.randn(batch, count, width)], dim=-1)


def _counts(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), dtype=torch.int64)


def _main_argument(call: Call) -> torch.Tensor:
    return _token_ids(call) if getattr(call.config, "vocab_size", None) else _waveform(call)


_PATCH_ROWS = 6  # a multiple of what models pool or merge: 2 and 3


def _padded_patches(call: Call) -> torch.Tensor:
    """Flattened patches of each image."""
    side, channels = int(call.find("patch_size", default=16)), int(call.find("num_channels", default=3))
    return torch.randn(call.options.batch_or(), _PATCH_ROWS**2, channels * side * side)


def _patch_mask(call: Call) -> torch.Tensor:
    return torch.ones(call.options.batch_or(), _PATCH_ROWS**2, dtype=torch.int64)


def _patch_places(call: Call) -> torch.Tensor:
    """Column and row of every patch."""
    every = torch.arange(_PATCH_ROWS**2)
    places = torch.stack([every % _PATCH_ROWS, every // _PATCH_ROWS], dim=-1)
    return places.expand(call.options.batch_or(), -1, -1).clone()


def _rows_and_columns(call: Call) -> torch.Tensor:
    return torch.full((call.options.batch_or(), 2), _PATCH_ROWS)


def _strip(call: Call) -> torch.Tensor:
    """The patches of one image side by side."""
    side, channels = int(call.find("patch_size", default=14)), int(call.find("num_channels", default=3))
    return torch.randn(1, channels, side, 16 * side)


def _strip_size(_: Call) -> torch.Tensor:
    return torch.tensor([[4, 4]])


_TEXT_AXES = {0: "batch", 1: "sequence"}
_DECODER_AXES = {0: "batch", 1: "decoder_sequence"}
_BATCH = {0: "batch"}
MAKERS: dict[str, Maker] = {
    "input_ids": Maker(_token_ids, _TEXT_AXES),
    "attention_mask": Maker(_ones, _TEXT_AXES),
    "decoder_input_ids": Maker(_decoder_ids, _DECODER_AXES),
    "pixel_values": Maker(_pixels, _BATCH),
    "pixel_values_videos": Maker(_video, _BATCH),
    "past_values": Maker(_series, _BATCH),
    "past_values_padding": Maker(_padding, _BATCH),
    "past_observed_mask": Maker(_observed, _BATCH),
    "input_values": Maker(_waveform, _BATCH),
    "input_features": Maker(_spectrogram, _BATCH),
    "input_features_mask": Maker(_frames_mask, _BATCH),
    "pixel_mask": Maker(_pixels_mask, _BATCH),
    "qformer_input_ids": Maker(_token_ids, _TEXT_AXES),
    "classes_input_ids": Maker(_token_ids, {}),
    "classes_attention_mask": Maker(_ones, {}),
    "inputs_embeds": Maker(_embeddings, _TEXT_AXES),
    "query_embeds": Maker(_embeddings, _TEXT_AXES),
    "encoder_hidden_states": Maker(_encoder_states, {0: "batch", 1: "encoder_sequence"}),
    "hidden_states": Maker(_latents, _BATCH),
    "states": Maker(_states, _TEXT_AXES),
    "actions": Maker(_actions, _TEXT_AXES),
    "rewards": Maker(_scalars, _TEXT_AXES),
    "returns_to_go": Maker(_scalars, _TEXT_AXES),
    "timesteps": Maker(_positions, _TEXT_AXES),
    "past_time_features": Maker(_time_features, _BATCH),
    "future_values": Maker(_future_series, _BATCH),
    "future_time_features": Maker(_future_time_features, _BATCH),
    "freq": Maker(_frequency, _BATCH),
    "bbox": Maker(_boxes, _TEXT_AXES),
    "visual_feats": Maker(_region_features, _BATCH),
    "visual_pos": Maker(_region_places, _BATCH),
    "prompt_pixel_values": Maker(_pixels, _BATCH),
    "prompt_masks": Maker(_pixels, _BATCH),
    "audio_mel": Maker(_sounds, _BATCH),
    "audio_mel_mask": Maker(_no_sound, _BATCH),
    "flattened_patches": Maker(_placed_patches, _BATCH),
    "tasks_input_ids": Maker(_token_ids, {}),
    "tasks_attention_mask": Maker(_ones, {}),
    "classes_structure": Maker(_counts, {}),
    "latents": Maker(_latents, _BATCH),
    "inputs": Maker(_main_argument, _BATCH),
}
PATCH_MAKERS: dict[str, Maker] = {
    "hidden_states": Maker(_patches, {}),
    "pixel_values": Maker(_patches, {}),
    "grid_thw": Maker(_grid, {}),
    "image_grid_thw": Maker(_grid, {}),
    "image_grid_hw": Maker(lambda call: _grid(call)[:, 1:], {}),
}
"""For encoders that take the patches of all images in one matrix and the grid of each; the grid's values decide shapes."""
PADDED_PATCH_MAKERS: dict[str, Maker] = {
    "pixel_values": Maker(_padded_patches, _BATCH),
    "pixel_attention_mask": Maker(_patch_mask, _BATCH),
    "pixel_position_ids": Maker(_patch_places, _BATCH),
    "spatial_shapes": Maker(_rows_and_columns, {}),
}
"""For encoders that take the patches of each image in a row of its own."""
STRIP_MAKERS: dict[str, Maker] = {"pixel_values": Maker(_strip, {}), "target_sizes": Maker(_strip_size, {})}
"""For encoders that take images as strips of patches."""
COMPANIONS: dict[str, Maker] = {"image_sizes": Maker(_image_sizes, {})}
"""What encoders of images take beside the images."""
_CHOICE_AXES = {0: "batch", 1: "choices", 2: "sequence"}
CHOICE_MAKERS: dict[str, Maker] = {
    "input_ids": Maker(lambda call: torch.stack([_token_ids(call) for _ in range(_CHOICES)], 1), _CHOICE_AXES),
    "attention_mask": Maker(lambda call: torch.stack([_ones(call)] * _CHOICES, 1), _CHOICE_AXES),
}
"""For models that choose among several texts."""
PAIR_MAKERS: dict[str, Maker] = {"pixel_values": Maker(_image_pair, _BATCH)}
"""For models that compare two images."""


_CHOICES = 3
_WHOLE_WINDOWS = 15_360  # a multiple of the windows that models cut sound into: 320, 480, 1920


def _channel_first(call: Call) -> torch.Tensor:
    """Sound with an axis of one channel."""
    return torch.randn(call.options.batch_or(), 1, _WHOLE_WINDOWS)


def _whole_windows(call: Call) -> torch.Tensor:
    return torch.randn(call.options.batch_or(), _WHOLE_WINDOWS)


def _features_of_stem(call: Call) -> torch.Tensor:
    """Frames as the first layer wants them."""
    layer, batch = call.stem("audio", "speech"), call.options.batch_or()
    if isinstance(layer, nn.Conv1d):
        return torch.randn(batch, layer.in_channels, 128)
    if isinstance(layer, nn.Conv2d):
        mels, side = int(call.find("num_mel_bins", default=64)), call.find("spec_size")
        return torch.randn(batch, layer.in_channels, int(side) ** 2 // mels if side else 64, mels)
    return torch.randn(batch, 64, layer.in_features if isinstance(layer, nn.Linear) else 80)


def _patches_of_stem(call: Call) -> torch.Tensor:
    """The patches of ``_grid`` as the layer that embeds them wants them."""
    layer, count = call.stem("patch"), int(_grid(call).prod())
    if isinstance(layer, nn.Conv2d):
        return torch.randn(count, layer.in_channels, *layer.kernel_size)
    return torch.randn(count, layer.in_features) if isinstance(layer, nn.Linear) else _patches(call)


def _several_images(call: Call) -> torch.Tensor:
    return _pixels(call)[:, None]


def _tiles(call: Call) -> torch.Tensor:
    """Each image whole and cut into the fewest tiles that the config knows."""
    height, width = call.image_size()
    rows, columns = min(call.find("image_grid_pinpoints"), key=lambda size: size[0] * size[1])
    count = 1 + -(-rows // height) * -(-columns // width)
    return torch.randn(call.options.batch_or(), count, 3, height, width)


def _codebook_ids(call: Call) -> torch.Tensor:
    """A token of each codebook, besides one of text."""
    return _token_ids(call)[..., None].repeat(1, 1, int(call.find("num_codebooks", default=1)) + 1)


def _codebook_rows(call: Call) -> torch.Tensor:
    """The tokens of each codebook as a row of its own."""
    return _token_ids(call).repeat(int(call.find("num_codebooks", default=1)), 1)


def _channel_ids(call: Call) -> torch.Tensor:
    return _decoder_ids(call)[..., None].repeat(1, 1, int(call.find("num_channels", default=1)))


def other_forms(name: str, call: Call, *, in_patches: bool) -> Iterator[Maker]:
    """Other shapes in which models take the argument ``name``."""
    if in_patches:
        if name in ("pixel_values", "hidden_states"):
            yield Maker(_patches_of_stem, {})
        return
    for argument, field, maker in _OTHER_FORMS:
        if argument == name and (field is None or call.find(field) is not None):
            rows = Dim.symbol("batch") * int(call.find("num_codebooks", default=1))
            yield Maker(maker.make, {0: rows, 1: "sequence"}) if maker.make is _codebook_rows else maker


# Argument, the config field without which no model has the form, and how it is made.
_OTHER_FORMS: tuple[tuple[str, str | None, Maker], ...] = (
    ("input_values", None, Maker(_channel_first, _BATCH)),
    ("input_values", None, Maker(_whole_windows, _BATCH)),
    ("input_features", None, Maker(_features_of_stem, _BATCH)),
    ("pixel_values", None, Maker(_several_images, _BATCH)),
    ("pixel_values", "image_grid_pinpoints", Maker(_tiles, _BATCH)),
    ("input_ids", "num_codebooks", Maker(_codebook_ids, _TEXT_AXES)),
    ("input_ids", "num_codebooks", Maker(_codebook_rows, {})),
    ("decoder_input_ids", "num_channels", Maker(_channel_ids, _DECODER_AXES)),
)
