"""Models that take sound while they generate: every token, of the prompt or generated, has a stretch of it.

``audio_encoder.onnx`` gives one row for each token, ``decoder_model.onnx`` takes those of its tokens. Two kinds are known:
features that forward adds to the embedded tokens, and codes of a codec that stand beside each token of text. No model is
named: the kind is read from the signatures of forward and ``prepare_inputs_for_generation``.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import CacheLayout, unmistakable_sizes
from fx2onnx.decoding.cache.module_state import CACHE_ARGUMENTS
from fx2onnx.decoding.decoder import CachedDecoder, add_states, prompt_of, text_inputs, trial
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest, ModelPart
from fx2onnx.manifest.names import AUDIO_FILE, BATCH, DECODER_FILE, SEQUENCE, STREAM, STREAM_SIZE
from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.hf.sample_context import SampleContext
from fx2onnx.sources.hf.transformers_types import Config, Inputs, Model
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import AxisName, Source

_METHOD, _CODEC = "get_audio_features", "codec_model"
_SAMPLE_ROWS = 7


@dataclass(frozen=True)
class _Kind:
    """The argument of generation that takes the sound, the config field that says how much of it a row is, and by how many
    the rows exceed the stretches.

    Each kind has ``is_of``, whether a model takes sound so; ``sample``, sound of so many stretches; ``rows`` [batch, rows,
    ...], what the model takes with each token; and ``with_rows``, a context in which it takes these with its tokens, and
    its arguments there.
    """

    argument: str
    stretch: str
    ahead: int

    def length(self, config: Config) -> int:
        return int(getattr(config, self.stretch))


class _Added(_Kind):
    """``get_audio_features`` of a model without a token that stands for a feature: one is added to each embedded token."""

    def is_of(self, model: Model) -> bool:
        has_token = any(getattr(model.config, f"audio_token_{word}", None) is not None for word in ("id", "index"))
        is_complete = hasattr(model, _METHOD) and hasattr(model.config, self.stretch)
        return not has_token and is_complete and self.argument in inspect.signature(model.forward).parameters

    def sample(self, context: SampleContext, stretches: int) -> torch.Tensor:
        mels, frames = context.number("num_mel_bins"), stretches * self.length(context.config)
        return torch.randn(context.batch, mels, frames)

    def rows(self, model: Model, sound: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = getattr(model, _METHOD)(**{self.argument: sound}, return_dict=True).pooler_output
        return rows

    @contextlib.contextmanager
    def with_rows(self, model: Model, arguments: Inputs, rows: torch.Tensor) -> Iterator[Inputs]:
        """Forward asks its own method for features: here it answers with those that are given."""
        features = SimpleNamespace(pooler_output=rows, padding_cache=None, **dict.fromkeys(CACHE_ARGUMENTS))
        owners = [part for part in model.modules() if hasattr(part, _METHOD)]
        for owner in owners:
            setattr(owner, _METHOD, lambda *_, **__: features)
        try:
            yield {**arguments, self.argument: rows}
        finally:
            for owner in owners:
                delattr(owner, _METHOD)


class _Codes(_Kind):
    """The codes of ``codec_model`` beside each token of text, those of a stretch with the token behind it."""

    def is_of(self, model: Model) -> bool:
        prepare = getattr(model, "prepare_inputs_for_generation", None)
        if prepare is None or not hasattr(model, _CODEC) or not hasattr(model.config, self.stretch):
            return False
        taken = inspect.signature(model.forward).parameters
        return self.argument in inspect.signature(prepare).parameters and self.argument not in taken

    def sample(self, context: SampleContext, stretches: int) -> torch.Tensor:
        return torch.randn(context.batch, 1, stretches * self.length(context.config))

    def rows(self, model: Model, sound: torch.Tensor) -> torch.Tensor:
        codes: torch.Tensor = getattr(model, _CODEC).encode(sound).audio_codes.transpose(1, 2)
        first = torch.full_like(codes[:, :1], model.config.audio_bos_token_id)
        return torch.cat([first, codes], dim=1)

    @contextlib.contextmanager
    def with_rows(self, model: Model, arguments: Inputs, rows: torch.Tensor) -> Iterator[Inputs]:
        yield {**arguments, "input_ids": torch.cat([arguments["input_ids"][..., None], rows], dim=2)}


Stream: TypeAlias = _Added | _Codes
_KINDS: tuple[Stream, ...] = (
    _Added("input_features", "audio_length_per_tok", 0),
    _Codes("input_values", "frame_size", 1),
)


class StreamPart(ModelPart[Stream]):
    """Sound -> ``audio_stream`` [batch, rows, ...], a row for each token."""

    def forward(self, **inputs: torch.Tensor) -> Inputs:
        return {STREAM: self.facts.rows(self.model, inputs[self.facts.argument])}


class StreamingDecoder(CachedDecoder):
    """The language model with its cache, and ``audio_stream`` beside its tokens."""

    def __init__(self, model: Model, cache_argument: str, layout: CacheLayout, stream: Stream) -> None:
        super().__init__(model, cache_argument, layout)
        self._stream = stream

    def _run(self, arguments: Mapping[str, Any], cache: object) -> tuple[Mapping[str, torch.Tensor], object]:
        plain = {name: value for name, value in arguments.items() if name != STREAM}
        with self._stream.with_rows(self.model, plain, arguments[STREAM]) as more:
            return super()._run(more, cache)


def stream_of(model: Model) -> Stream | None:
    """The form in which ``model`` takes sound while it generates; None where it does not."""
    return next((kind for kind in _KINDS if kind.is_of(model)), None)


def fits(request: FolderRequest) -> bool:
    return stream_of(request.model) is not None


def parts(request: FolderRequest) -> list[FolderPart]:
    """Raises UserError E601 where the encoder gives other rows than one a stretch, or nothing is kept between calls."""
    model, options, stream = request.model, request.options, stream_of(request.model)
    assert stream is not None
    batch, part = options.batch_or(), StreamPart(model, stream).eval()
    sound = stream.sample(SampleContext(model.config, options, model), _SAMPLE_ROWS)
    rows = run_lightly(model, part, {stream.argument: sound})[STREAM]
    if rows.shape[1] != _SAMPLE_ROWS + stream.ahead:
        raise UserError(
            "E601",
            f"{type(model).__name__} does not hear one stretch of sound with each token",
            why=f"{stream.stretch} says {stream.length(model.config)}; {_SAMPLE_ROWS} of these give {rows.shape[1]} rows",
            next="export it from a factory of your own: fx2onnx export package.module:factory",
        )
    axes: dict[int, AxisName] = {0: BATCH, sound.dim() - 1: Dim.symbol(STREAM_SIZE) * stream.length(model.config)}
    encoder = Source.of_part(request.name, part, {stream.argument: sound}, {stream.argument: axes})
    wide, dtype = tuple(rows.shape[2:]), rows.dtype

    def sample_rows(length: int, count: int) -> torch.Tensor:
        shape = (count, length, *wide)
        return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)

    sizes = unmistakable_sizes(model.config)

    def call(**prompt: torch.Tensor) -> Mapping[str, object]:
        plain = {key: value for key, value in prompt.items() if key != STREAM}
        with stream.with_rows(model, plain, prompt[STREAM]) as arguments:
            result: Mapping[str, object] = model(**arguments, use_cache=True, return_dict=True)
            return result

    prompt = prompt_of(model, sizes) | {STREAM: sample_rows(sizes.past, sizes.batch)}
    argument, cache = trial(model, prompt, call)
    layout = CacheLayout(cache, sizes)
    new = options.seq_or(4)
    kwargs, shapes = text_inputs(model, layout, batch, new)
    kwargs[STREAM], shapes[STREAM] = sample_rows(new, batch), {0: BATCH, 1: SEQUENCE}
    add_states(kwargs, shapes, layout, batch)
    decoder = StreamingDecoder(model, argument, layout, stream).eval()
    return [
        request.part(AUDIO_FILE, encoder),
        request.part(DECODER_FILE, Source.of_part(request.name, decoder, kwargs, shapes)),
    ]
