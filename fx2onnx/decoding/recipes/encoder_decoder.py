"""Encoder-decoders as two modules: the encoder, which also computes the keys and values of cross attention, and the
decoder with its cache. So one decoder graph serves the first step and all later ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace

import torch

from fx2onnx.decoding.cache.layout import CacheLayout, tensors_of, unmistakable_sizes
from fx2onnx.decoding.decoder import CachedDecoder, add_states, no_cache, trial
from fx2onnx.decoding.recipes.delay_pattern import delays_of
from fx2onnx.decoding.recipes.recipe import MANY_BLOCKS, FolderPart, FolderRequest
from fx2onnx.manifest.names import (
    BATCH,
    DECODER_FILE,
    ENCODER_FILE,
    ENCODER_MASK,
    ENCODER_SIZE,
    ENCODER_STATES,
    HANDED_ON,
    LAST_STATES,
    PAST,
    PRESENT,
    SEQUENCE,
)
from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.hf.inputs import sample_inputs
from fx2onnx.sources.hf.transformers_types import Inputs, Model, Shapes
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source

_SIZES = {"batch": BATCH, "sequence": ENCODER_SIZE}
_DECODER_ONLY = ("decoder_input_ids", "decoder_attention_mask")
_ENCODER_SAMPLE = 13
"""No multiple of a block: encoders that pad to one do so for this sample, and what they pad by is right for any length."""


class EncoderPart(torch.nn.Module):
    """The encoder's last hidden state, what else it hands to the decoder, and what cross attention makes of it."""

    def __init__(self, model: Model, cache_argument: str, layout: CacheLayout) -> None:
        super().__init__()
        self.model = model
        self._cache_argument = cache_argument
        self._names = encoder_states(layout)
        self._rows = rows_of(model)

    def forward(self, **inputs: torch.Tensor) -> Inputs:
        first = next(iter(inputs.values()))
        # One step of the decoder fills the cache; what does not depend on the encoder alone is dropped from the graph.
        ids = torch.zeros(first.shape[0] * self._rows, 1, dtype=torch.int64, device=first.device)
        encoded, result = first_step(self.model, inputs, ids)
        states = tensors_of(result[self._cache_argument])
        outputs = {LAST_STATES: encoded[LAST_STATES]}
        outputs |= {HANDED_ON + name: encoded[name] for name in handed_on(encoded)}
        return outputs | {PRESENT + name: states[name] for name in self._names}


def encoder_states(layout: CacheLayout) -> list[str]:
    return [name for name, state in layout.states.items() if state.is_encoder]


def first_step(model: Model, inputs: Mapping[str, torch.Tensor], ids: torch.Tensor) -> tuple[Inputs, Inputs]:
    """The outputs of the encoder for ``inputs``, and those of the whole model for the decoder's ``ids``."""
    encoder = model.get_encoder()
    encoded = encoder(**_accepted(encoder, inputs), return_dict=True)
    mask = {name: value for name, value in inputs.items() if name == "attention_mask"}
    result = model(
        encoder_outputs=encoded,
        decoder_input_ids=_in_columns(model, ids),
        use_cache=True,
        return_dict=True,
        **_accepted(model, mask),
    )
    return encoded, result


def handed_on(encoded: Mapping[str, object]) -> list[str]:
    """Fields of the encoder's output beside the states themselves that the decoder may read, such as a shortened mask."""
    return [name for name, value in encoded.items() if isinstance(value, torch.Tensor) and name != LAST_STATES]


class DecoderPart(CachedDecoder):
    """The decoder of an encoder-decoder; ``kind`` is the class of the encoder's output, ``width`` that of its states."""

    def __init__(self, model: Model, cache_argument: str, layout: CacheLayout, kind: type, width: int) -> None:
        super().__init__(model, cache_argument, layout, given=encoder_states(layout))
        self._kind = kind
        self._width = width

    def arguments(self, plain: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]) -> dict[str, object]:
        mask = plain.get(ENCODER_MASK)
        hidden = plain.get(ENCODER_STATES)
        if hidden is None:  # dropped from a graph that does not read it
            own = next(value for name, value in states.items() if self._layout.states[name].is_encoder)
            hidden = own.new_zeros(own.shape[0], own.shape[-2] if mask is None else mask.shape[1], self._width)
        fields = inspect.signature(self._kind).parameters
        extra = {name.removeprefix(HANDED_ON): value for name, value in plain.items() if name.startswith(HANDED_ON)}
        known = {name: value for name, value in extra.items() if name in fields}
        arguments: dict[str, object] = {
            "encoder_outputs": self._kind(last_hidden_state=hidden, **known),
            "decoder_input_ids": _in_columns(self.model, plain["input_ids"]),
        }
        return arguments if mask is None else arguments | _accepted(self.model, {"attention_mask": mask})


def fits(request: FolderRequest) -> bool:
    return bool(getattr(request.model.config, "is_encoder_decoder", False))


def parts(request: FolderRequest) -> list[FolderPart]:
    encoder, decoder = _encoder_and_decoder(request)
    many = replace(request, options=replace(request.options, seq=MANY_BLOCKS))
    return [
        request.part(ENCODER_FILE, encoder, lambda: _encoder_and_decoder(many)[0], narrow=""),
        request.part(DECODER_FILE, decoder, lambda: _encoder_and_decoder(request, one_token=True)[1]),
    ]


def _encoder_and_decoder(request: FolderRequest, *, one_token: bool = False) -> tuple[Source, Source]:
    """Both parts; with ``one_token``, the decoder takes one token a call."""
    model, options = request.model, request.options
    sizes = unmistakable_sizes(model.config)
    trial_inputs, _ = _encoder_inputs(model, Options(batch=sizes.batch, seq=sizes.encoder))
    ids = torch.zeros(sizes.batch * rows_of(model), sizes.past, dtype=torch.int64)
    seen: list[Inputs] = []

    def call(decoder_input_ids: torch.Tensor, **inputs: torch.Tensor) -> Inputs:
        encoded, result = first_step(model, inputs, decoder_input_ids)
        seen.append(encoded)
        return result

    cache_argument, cache = trial(model, trial_inputs | {"decoder_input_ids": ids}, call)
    layout = CacheLayout(cache, sizes)
    if not layout.states:
        raise no_cache(model)
    samples, shapes = _encoder_inputs(model, replace(options, seq=options.seq_or(_ENCODER_SAMPLE)))
    shapes = {key: {axis: _SIZES.get(str(word), word) for axis, word in axes.items()} for key, axes in shapes.items()}
    encoder = Source.of_part(request.name, EncoderPart(model, cache_argument, layout).eval(), samples, shapes)
    encoded = _like_outputs(encoder.module, samples)
    lengths = options.seq_or(_ENCODER_SAMPLE), sizes.encoder
    more, also = (run[LAST_STATES].shape[1] - length for run, length in zip((encoded, seen[-1]), lengths, strict=True))
    if "input_ids" in samples and more == also > 0:  # positions beside those of the text, such as an image's
        layout = CacheLayout(cache, replace(sizes, encoder=sizes.encoder + more))
    width = encoded[LAST_STATES].shape[-1]
    decoder = DecoderPart(model, cache_argument, layout, type(seen[-1]), width).eval()
    masks = _one_number_a_position(encoded, seen[-1])
    return replace(encoder, data_branches="if"), _decoder_source(
        decoder, layout, encoder, encoded, masks, options.batch_or(), 1 if one_token else 4
    )


def rows_of(model: Model) -> int:
    """The rows of the decoder's ids in a sample: one for each codebook."""
    return max(len(delays_of(model)), 1)


def _in_columns(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """``ids`` as forward takes them: those of several codebooks [batch, sequence, codebooks]."""
    rows = rows_of(model)
    return ids if rows == 1 else ids.reshape(-1, rows, ids.shape[1]).transpose(1, 2).contiguous()


def _one_number_a_position(encoded: Mapping[str, torch.Tensor], tried: Mapping[str, torch.Tensor]) -> set[str]:
    """The names of tensors that are handed on as [batch, positions of the last hidden state], such as a mask.

    A pooled state [batch, width] can be as wide as one run has positions, but not as two runs of different lengths.
    """
    positions = [run[LAST_STATES].shape[1] for run in (encoded, tried)]
    handed = {name: name.removeprefix(HANDED_ON) for name in encoded if name.startswith(HANDED_ON)}
    return {
        name
        for name, field in handed.items()
        if encoded[name].dim() == 2 and [encoded[name].shape[1], tried[field].shape[1]] == positions
    }


def _decoder_source(
    module: DecoderPart,
    layout: CacheLayout,
    encoder: Source,
    encoded: Mapping[str, torch.Tensor],
    masks: set[str],
    batch: int,
    new: int,
) -> Source:
    varies = any(ENCODER_SIZE in state.axes.values() for state in layout.states.values())
    rows = rows_of(module.model)
    kwargs: Inputs = {"input_ids": torch.randint(3, 10, (batch * rows, new))}
    wide = Dim.symbol(BATCH) * rows if rows > 1 else BATCH
    shapes: Shapes = {"input_ids": {0: wide} if new == 1 else {0: wide, 1: SEQUENCE}}
    if "attention_mask" in encoder.kwargs:
        kwargs[ENCODER_MASK] = encoder.kwargs["attention_mask"]
        shapes[ENCODER_MASK] = dict((encoder.dynamic_shapes or {})["attention_mask"])
    for name, value in encoded.items():
        if name.startswith(HANDED_ON):
            kwargs[name] = value
            shapes[name] = {0: BATCH, 1: ENCODER_SIZE} if varies and name in masks else {0: BATCH}
    add_states(kwargs, shapes, layout, batch)
    for name, value in encoded.items():  # sizes that the encoder makes of its input
        past = PAST + name.removeprefix(PRESENT)
        if past in kwargs:
            kwargs[past] = value
    # Last, so that sizes are read from other inputs and this one can be dropped where its numbers are not needed.
    kwargs[ENCODER_STATES] = encoded[LAST_STATES]
    shapes[ENCODER_STATES] = {0: BATCH, 1: ENCODER_SIZE} if varies else {0: BATCH}
    return Source.of_part(encoder.name, module, kwargs, shapes)


def _like_outputs(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> Inputs:
    """Random tensors of the shapes that ``module(**inputs)`` gives; nothing is computed."""
    outputs: Inputs = run_lightly(module, module, inputs)
    return {
        name: (torch.randn if value.is_floating_point() else torch.ones)(tuple(value.shape)).to(value.dtype)
        for name, value in outputs.items()
    }


def _encoder_inputs(model: Model, options: Options) -> tuple[Inputs, Shapes]:
    samples, shapes = sample_inputs(model, options)
    encoder = model.get_encoder()
    taken = {*inspect.signature(encoder.forward).parameters, "attention_mask"}
    # A model put together of any two (speech-encoder-decoder) calls its input by a word that no encoder has.
    words = {str(model.main_input_name): str(encoder.main_input_name)} if model.main_input_name not in taken else {}
    names = {words.get(name, name): name for name in samples if name not in _DECODER_ONLY}
    kept = {own: name for own, name in names.items() if own in taken}
    return {own: samples[name] for own, name in kept.items()}, {own: dict(shapes[name]) for own, name in kept.items()}


def _accepted(module: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> Inputs:
    parameters = inspect.signature(module.forward).parameters
    return {name: value for name, value in inputs.items() if name in parameters}
