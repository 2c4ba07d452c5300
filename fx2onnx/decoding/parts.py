"""What a generating model is exported as: the files, and the module behind each, from the model's own structure."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.static import static_decoder
from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.recipes.cross_attention import image_parts
from fx2onnx.decoding.recipes.delay_pattern import codebook_decoder, delays_of
from fx2onnx.decoding.recipes.encoder_decoder import encoder_and_decoder
from fx2onnx.decoding.recipes.image_prompt import takes_images
from fx2onnx.decoding.recipes.inner_language_model import language_of
from fx2onnx.decoding.recipes.multimodal import (
    beside_embedded,
    encoders_and_embedding,
    modalities_of,
    width_of,
)
from fx2onnx.decoding.recipes.prepared_inputs import prepares_steps, prompt_and_steps
from fx2onnx.decoding.recipes.streaming_audio import encoder_and_hearing_decoder, stream_of
from fx2onnx.sources.registry import fail_unknown, resolve
from fx2onnx.sources.source import Options, Source

WITH_PAST = "-with-past"
# Task as users of exported folders know it -> the word that chooses transformers' model class (hf_tasks.TASKS).
TASKS: dict[str, str] = {
    "text-generation": "causal-lm",
    "text2text-generation": "seq2seq-lm",
    "automatic-speech-recognition": "speech-seq2seq",
    "image-text-to-text": "image-text-to-text",
}
GENERATION_WORDS = [name + end for name in TASKS for end in ("", WITH_PAST)]
_MANY_BLOCKS = 1031
"""A sample for models whose blocks are long: one block is as good as none to Python, which decides by it."""


@dataclass(frozen=True)
class Part:
    """One file of the folder. Of its ``forms`` the first that can be exported whole is taken; ``narrow`` is what the
    last of them takes a call, if that is less.
    """

    file: str
    forms: Sequence[Callable[[], Source]]
    narrow: str = "one token"
    note: str = ""


@dataclass(frozen=True)
class Assembly:
    """A model as the files of a folder; ``folder`` is the checkpoint that it comes from, if any."""

    model: Any
    parts: Sequence[Part]
    folder: Path | None
    origin: str


def is_generation_task(task: str | None) -> bool:
    return task is not None and task.removesuffix(WITH_PAST) in TASKS


def assemble(spec: str, task: str, *, cache: str = "dynamic", in_place: bool = True, **sizes: Any) -> Assembly:
    """The parts of the transformers model ``spec`` (``hf:...``) for ``task``; ``cache`` as ``cached_parts`` takes it.

    Raises:   UserError E601 where the model does not fit the task or keeps no cache, E001 for another kind of source.
    """
    word = TASKS.get(task.removesuffix(WITH_PAST))
    if word is None:
        fail_unknown("generation task", task, GENERATION_WORDS)
    if not spec.startswith("hf:"):
        raise UserError(
            "E001", f"--task {task} has no meaning for '{spec}'", next="it takes hf:FOLDER or hf:MODEL_TYPE"
        )
    source = resolve(spec + ("&" if "?" in spec else "?") + f"task={word}", **sizes)
    name, _, _ = spec.removeprefix("hf:").partition("?")
    folder = Path(name).expanduser()
    if not task.endswith(WITH_PAST):
        parts = [Part("model.onnx", [lambda: source])]
    else:
        parts = cached_parts(source, cache, in_place=in_place, images=not task.startswith("text-generation"))
    return Assembly(source.module, parts, folder if os.path.isdir(folder) else None, source.origin)


def cached_parts(source: Source, cache: str = "dynamic", *, in_place: bool = True, images: bool = True) -> list[Part]:
    """The files that ``source.module``, a generating transformers model, becomes with its cache in and out.

    ``cache`` is ``dynamic`` (it grows) or ``static`` (of a fixed size; ``in_place`` by opset 24's operator).
    Without ``images``, a model that takes them with its prompt becomes a model of text.
    Raises:   UserError E601 where it keeps no such cache, E001 for another word.
    """
    if cache not in ("dynamic", "static"):
        raise UserError("E001", f"cache={cache!r} is not known", next="dynamic or static")
    model: Any = source.module
    language = language_of(model)
    for one in {id(model): model, id(language): language}.values():
        switch_cache_on(one.config)
    options = Options()

    def finished(form: Source) -> Source:
        return replace(form, weight_files=source.weight_files, has_weights=source.has_weights, origin=source.origin)

    if cache == "static":
        if getattr(model.config, "is_encoder_decoder", False) or modalities_of(model):
            raise UserError("E601", f"{type(model).__name__} has no cache of fixed size", why="only decoders have")
        if prepares_steps(model):
            why = "its steps take all tokens, whose number is that of its cache"
            raise UserError("E601", f"{type(model).__name__} has no cache of fixed size", why=why)
        static = finished(static_decoder(model, source.name, options, in_place=in_place))
        return [Part("model.onnx", [lambda: static])]
    if getattr(model.config, "is_encoder_decoder", False):
        encoder, decoder = (finished(form) for form in encoder_and_decoder(model, source.name, options))
        single = partial(encoder_and_decoder, model, source.name, options, one_token=True)
        many_blocks = partial(encoder_and_decoder, model, source.name, replace(options, seq=_MANY_BLOCKS))
        return [
            Part("encoder_model.onnx", [lambda: encoder, lambda: finished(many_blocks()[0])], narrow=""),
            Part("decoder_model.onnx", [lambda: decoder, lambda: finished(single()[1])]),
        ]
    if delays_of(model):
        rows = finished(codebook_decoder(model, source.name, options))
        return [Part("model.onnx", [lambda: rows])]
    stream = stream_of(model)
    if stream is not None:
        found = encoder_and_hearing_decoder(model, stream, source.name, options)
        return [Part(file, [partial(finished, form)]) for file, form in found.items()]
    note = ""
    if modalities_of(model):
        left_out: list[str] = []
        try:
            forms = encoders_and_embedding(model, source.name, options, left_out)
        except UserError as error:
            note = f"text only: {error.what}"
        else:
            embedding: Any = forms["embed_tokens.onnx"][0].module
            embedded = partial(
                cached_decoder,
                language,
                source.name,
                options,
                width=width_of(model),
                axes=embedding.axes,
                beside=beside_embedded(forms["embed_tokens.onnx"][0]),
            )
            parts = [
                Part(file, [partial(finished, form) for form in choices], "one image or recording")
                for file, choices in forms.items()
            ]
            parts[-1] = replace(parts[-1], note="; ".join(left_out))
            decoder = finished(embedded())
            return [
                *parts,
                Part("decoder_model.onnx", [lambda: decoder, *_by_token(embedded, finished)]),
            ]
    elif images and takes_images(model):
        try:
            found = image_parts(model, source.name, options)
        except UserError as error:
            note = f"text only: {error.what}"
        else:
            return [Part(file, [partial(finished, form)]) for file, form in found.items()]
    if prepares_steps(model):
        steps = prompt_and_steps(model, source.name, options)
        return [Part(file, [partial(finished, form)], note=note) for file, form in steps.items()]
    first = finished(cached_decoder(model, source.name, options))  # here, so that a model without cache says so early
    by_token = _by_token(partial(cached_decoder, model, source.name, options), finished)
    return [Part("model.onnx", [lambda: first, *by_token], note=note)]


def _by_token(make: Callable[..., Source], finished: Callable[[Source], Source]) -> list[Callable[[], Source]]:
    """Forms of a decoder that takes one token a call; the last with a long past, so that tokens pooled in blocks make
    several blocks.
    """
    return [lambda: finished(make(one_token=True)), lambda: finished(make(one_token=True, past=_MANY_BLOCKS))]


def switch_cache_on(config: Any) -> None:
    """Undo what sources do to the config for a plain forward."""
    from fx2onnx.sources.hf.sample_context import with_sub_configs

    for part in with_sub_configs(config):
        if hasattr(part, "use_cache"):
            part.use_cache = True
