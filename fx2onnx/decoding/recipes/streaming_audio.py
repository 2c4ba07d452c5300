"""Models that hear while they write: every token, given or generated, has a stretch of sound of its own.

``audio_encoder.onnx`` gives one row for each token, ``decoder_model.onnx`` takes those of its tokens. Two kinds are known:
features that forward adds to the embedded tokens, and codes of a codec that stand beside each token of text. No model is
named: the kind is read from the signatures of forward and ``prepare_inputs_for_generation``.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import Memory, unmistakable_sizes
from fx2onnx.decoding.decoder import (
    BATCH,
    SEQUENCE,
    CachedDecoder,
    add_states,
    prompt_of,
    text_inputs,
    trial,
)
from fx2onnx.sources.hf.sample_context import SampleContext
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source

ENCODER_FILE, DECODER_FILE = "audio_encoder.onnx", "decoder_model.onnx"
STREAM, STREAM_LENGTH = "audio_stream", "audio_sequence_length"
_METHOD = "get_audio_features"
_SAMPLE_ROWS = 7


@dataclass(frozen=True)
class Stream:
    """One kind: the argument of generation that brings the sound, the config field that says how much of it a row is, and
    by how many the rows exceed the stretches.
    """

    argument: str
    stretch: str
    ahead: int

    def is_of(self, model: Any) -> bool:
        """Whether ``model`` hears in this way."""
        raise NotImplementedError

    def sample(self, call: SampleContext, stretches: int) -> torch.Tensor:
        """Sound of so many stretches."""
        raise NotImplementedError

    def rows(self, model: Any, sound: torch.Tensor) -> torch.Tensor:
        """[batch, rows, ...]: what the model hears with each token."""
        raise NotImplementedError

    def heard(self, model: Any, arguments: Mapping[str, Any], rows: torch.Tensor) -> Any:
        """A context in which the model takes ``rows`` with its tokens, and its arguments there."""
        raise NotImplementedError

    def length(self, model: Any) -> int:
        return int(getattr(model.config, self.stretch))


class _Added(Stream):
    """``get_audio_features`` of a model without a token that stands for a feature: one is added to each embedded token."""

    def is_of(self, model: Any) -> bool:
        has_token = any(getattr(model.config, f"audio_token_{word}", None) is not None for word in ("id", "index"))
        return not has_token and hasattr(model, _METHOD) and self._is_complete(model)

    def _is_complete(self, model: Any) -> bool:
        return self.argument in inspect.signature(model.forward).parameters and hasattr(model.config, self.stretch)

    def sample(self, call: SampleContext, stretches: int) -> torch.Tensor:
        mels, frames = int(call.find("num_mel_bins")), stretches * self.length(call.module)
        return torch.randn(call.options.batch_or(), mels, frames)

    def rows(self, model: Any, sound: torch.Tensor) -> torch.Tensor:
        encode: Any = getattr(model, _METHOD)
        found: torch.Tensor = encode(**{self.argument: sound}, return_dict=True).pooler_output
        return found

    @contextlib.contextmanager
    def heard(self, model: Any, arguments: Mapping[str, Any], rows: torch.Tensor) -> Iterator[dict[str, Any]]:
        """Forward asks its own method for features: here it answers with those that are given."""
        owners = [part for part in model.modules() if hasattr(part, _METHOD)]
        for owner in owners:
            setattr(owner, _METHOD, lambda *_, **__: _Features(rows))
        try:
            yield {**arguments, self.argument: rows}
        finally:
            for owner in owners:
                delattr(owner, _METHOD)


class _Features:
    """What an encoder gives, with nothing but features in it."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.pooler_output = rows
        self.past_key_values = self.padding_cache = None


class _Codes(Stream):
    """The codes of ``codec_model`` beside each token of text, those of a stretch with the token behind it."""

    def is_of(self, model: Any) -> bool:
        prepare: Any = getattr(model, "prepare_inputs_for_generation", None)
        if prepare is None or not hasattr(model, "codec_model") or not hasattr(model.config, self.stretch):
            return False
        taken = inspect.signature(model.forward).parameters
        return self.argument in inspect.signature(prepare).parameters and self.argument not in taken

    def sample(self, call: SampleContext, stretches: int) -> torch.Tensor:
        return torch.randn(call.options.batch_or(), 1, stretches * self.length(call.module))

    def rows(self, model: Any, sound: torch.Tensor) -> torch.Tensor:
        codes = model.codec_model.encode(sound).audio_codes.transpose(1, 2)
        first = torch.full_like(codes[:, :1], model.config.audio_bos_token_id)
        return torch.cat([first, codes], dim=1)

    @contextlib.contextmanager
    def heard(self, model: Any, arguments: Mapping[str, Any], rows: torch.Tensor) -> Iterator[dict[str, Any]]:
        yield {**arguments, "input_ids": torch.cat([arguments["input_ids"][..., None], rows], dim=2)}


_KINDS: tuple[Stream, ...] = (
    _Added("input_features", "audio_length_per_tok", 0),
    _Codes("input_values", "frame_size", 1),
)


class StreamPart(torch.nn.Module):
    """Sound -> ``audio_stream`` [batch, rows, ...], a row for each token."""

    def __init__(self, model: Any, stream: Stream) -> None:
        super().__init__()
        self.model = model
        self._stream = stream

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {STREAM: self._stream.rows(self.model, inputs[self._stream.argument])}


class HearingDecoder(CachedDecoder):
    """The language model with its cache, and ``audio_stream`` beside its tokens."""

    def __init__(self, model: Any, cache_argument: str, memory: Memory, stream: Stream) -> None:
        super().__init__(model, cache_argument, memory)
        self._stream = stream

    def _run(self, arguments: Mapping[str, Any], cache: Any) -> tuple[Any, Any]:
        plain = {name: value for name, value in arguments.items() if name != STREAM}
        with self._stream.heard(self.model, plain, arguments[STREAM]) as more:
            return super()._run(more, cache)


def stream_of(model: Any) -> Stream | None:
    """How ``model`` hears while it writes; None where it does not."""
    return next((kind for kind in _KINDS if kind.is_of(model)), None)


def encoder_and_hearing_decoder(model: Any, stream: Stream, name: str, options: Options) -> dict[str, Source]:
    """Both parts by file name.

    Raises:   UserError E601 where the encoder gives other rows than one a stretch, or nothing is kept between calls.
    """
    batch, part = options.batch_or(), StreamPart(model, stream).eval()
    sound = stream.sample(SampleContext(model.config, options, model), _SAMPLE_ROWS)
    rows = run_lightly(model, part, {stream.argument: sound})[STREAM]
    if rows.shape[1] != _SAMPLE_ROWS + stream.ahead:
        raise UserError(
            "E601",
            f"{type(model).__name__} does not hear one stretch of sound with each token",
            why=f"{stream.stretch} says {stream.length(model)}; {_SAMPLE_ROWS} of these give {rows.shape[1]} rows",
            next="export it from a factory of your own: fx2onnx export package.module:factory",
        )
    axes: dict[int, Any] = {0: BATCH, sound.dim() - 1: Dim.symbol(STREAM_LENGTH) * stream.length(model)}
    encoder = Source(name, part, (), {stream.argument: sound}, {stream.argument: axes})
    wide, dtype = tuple(rows.shape[2:]), rows.dtype

    def heard(length: int, count: int) -> torch.Tensor:
        shape = (count, length, *wide)
        return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)

    sizes = unmistakable_sizes(model.config)

    def call(**prompt: torch.Tensor) -> Any:
        plain = {key: value for key, value in prompt.items() if key != STREAM}
        with stream.heard(model, plain, prompt[STREAM]) as arguments:
            return model(**arguments, use_cache=True, return_dict=True)

    prompt = prompt_of(model, sizes) | {STREAM: heard(sizes.past, sizes.batch)}
    argument, cache = trial(model, prompt, call)
    memory = Memory(cache, sizes)
    new = options.seq_or(4)
    kwargs, shapes = text_inputs(model, memory, batch, new)
    kwargs[STREAM], shapes[STREAM] = heard(new, batch), {0: BATCH, 1: SEQUENCE}
    add_states(kwargs, shapes, memory, batch)
    decoder = HearingDecoder(model, argument, memory, stream).eval()
    return {ENCODER_FILE: encoder, DECODER_FILE: Source(name, decoder, (), kwargs, shapes)}
