"""The parts that a generating model is exported as: the files, and the module behind each, from the model's own
structure.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from fx2onnx.base.cache_names import CELLS
from fx2onnx.base.errors import InternalError, UserError
from fx2onnx.decoding.adapters import Adapters
from fx2onnx.decoding.cache import static
from fx2onnx.decoding.recipes import (
    cross_attention,
    delay_pattern,
    encoder_decoder,
    multimodal,
    plain_decoder,
    prepared_inputs,
    streaming_audio,
)
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest, Recipe, TextOnly
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.sources.hf.gguf_file import file_of
from fx2onnx.sources.hf.sample_context import set_use_cache
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.registry import fail_unknown, resolve
from fx2onnx.sources.source import Source

WITH_PAST = "-with-past"
# Task as users of exported folders know it -> the word that chooses transformers' model class (``TASKS`` of sources/hf/tasks.py).
TASKS: dict[str, str] = {
    "text-generation": "causal-lm",
    "text2text-generation": "seq2seq-lm",
    "automatic-speech-recognition": "speech-seq2seq",
    "image-text-to-text": "image-text-to-text",
}
GENERATION_WORDS = [name + end for name in TASKS for end in ("", WITH_PAST)]
RECIPES: tuple[Recipe, ...] = (
    static,
    encoder_decoder,
    delay_pattern,
    streaming_audio,
    multimodal,
    cross_attention,
    prepared_inputs,
    plain_decoder,
)
"""The first that fits a model is taken."""


@dataclass(frozen=True)
class Assembly:
    """A model as the files of a folder; ``folder`` or the file ``gguf`` is the checkpoint that it comes from, if any, and
    ``adapters`` can be switched at run time.
    """

    model: Model
    parts: Sequence[FolderPart]
    folder: Path | None
    origin: str
    gguf: Path | None = None
    adapters: Adapters | None = None


def with_adapters(assembly: Assembly, folders: Mapping[str, Path]) -> Assembly:
    """``assembly``, whose graphs take the products of the adapters in ``folders``, if any, as optional inputs.

    Raises:   UserError E302 for a folder that is no adapter, E601 for one of another base, or that cannot be switched.
    """
    if not folders:
        return assembly
    adapters = Adapters(assembly.model, folders)
    return replace(assembly, parts=[adapters.part(part) for part in assembly.parts], adapters=adapters)


def is_generation_task(task: str | None) -> bool:
    return task is not None and task.removesuffix(WITH_PAST) in TASKS


def assemble(
    spec: str,
    task: str,
    *,
    cache: str = "dynamic",
    prompts: Mapping[str, object] | None = None,
    drafter: str | None = None,
    in_place: bool = True,
    logits: str = "all",
    **sizes: Any,
) -> Assembly:
    """The parts of the transformers model ``spec`` (``hf:...`` or ``gguf:FILE``) for ``task``; ``cache``, ``prompts`` and ``logits`` as ``cached_parts``
    takes them.

    Raises:   UserError E601 where the model does not fit the task or keeps no cache, E001 for another kind of source.
    """
    if not isinstance(spec, str):
        raise UserError(
            "E001",
            f"a folder is made of a source such as hf:FOLDER, not of a {type(spec).__name__}",
            next="model.save_pretrained(FOLDER), then fx2onnx.export_folder('hf:FOLDER', ...)",
        )
    word = TASKS.get(task.removesuffix(WITH_PAST))
    if word is None:
        kind, past, _ = task.partition(WITH_PAST)
        same = [f"{name}{past or WITH_PAST}" for name, each in TASKS.items() if each == kind]
        if same:
            step = f"--task {same[0]}   (task= in Python)"
            raise UserError("E601", f"unknown generation task '{task}'", next=step)
        hint = f"a model that generates nothing: fx2onnx export '{spec}?task={task}'"
        fail_unknown("generation task", task, GENERATION_WORDS, hint=hint)
    if not spec.startswith(("hf:", "gguf:")):
        step = (
            f"write hf:{spec}" if os.path.isdir(spec) else "a folder is made of hf:FOLDER, hf:MODEL_TYPE or gguf:FILE"
        )
        raise UserError("E001", f"the task {task} is for hf: and gguf: sources, and '{spec}' is none", next=step)
    if logits != "all" and not task.endswith(WITH_PAST):
        raise UserError(
            "E001", f"logits={logits!r} has no meaning for {task}", next=f"--task {task}{WITH_PAST}   (task= in Python)"
        )
    source = _resolved(spec + ("&" if "?" in spec else "?") + f"task={word}", task, sizes)
    place = Path(spec.partition(":")[2].partition("?")[0]).expanduser()
    gguf = file_of(place) if os.path.exists(place) else None
    folder = place if gguf is None and os.path.isdir(place) else None
    if not task.endswith(WITH_PAST):
        parts = [FolderPart(MODEL_FILE, [lambda: source])]
    else:
        images = not task.startswith("text-generation")
        parts = cached_parts(
            source, cache, prompts=prompts, drafter=drafter, in_place=in_place, logits=logits, images=images
        )
    return Assembly(cast(Model, source.module), parts, folder, source.origin, gguf)


def _resolved(spec: str, task: str, sizes: dict[str, Any]) -> Source:
    """The source. An error for a model that has another generation task names that task."""
    try:
        return resolve(spec, **sizes)
    except UserError as error:
        listed = " ".join(error.next).replace(",", "").split() if error.code == "E601" else []
        past = WITH_PAST if task.endswith(WITH_PAST) else ""
        fitting = [f"{name}{past}" for name, word in TASKS.items() if word in listed]
        if fitting:
            step = f"--task {' or '.join(fitting)}   (task= in Python)"
            raise UserError(error.code, error.what, where=error.where, why=error.why, next=step) from error
        raise


def cached_parts(
    source: Source,
    cache: str = "dynamic",
    *,
    prompts: Mapping[str, object] | None = None,
    drafter: str | None = None,
    in_place: bool = True,
    logits: str = "all",
    images: bool = True,
) -> list[FolderPart]:
    """The files that ``source.module``, a generating transformers model, becomes with its cache in and out.

    ``cache`` is ``dynamic`` (it grows), ``static`` (of a fixed size; ``in_place`` by opset 24's operator), ``paged`` (of pages that rows share) or ``grouped`` (as
    ``dynamic``, with fused attention where the model has such) or one of ``CELLS`` (as ``dynamic``, with keys and values in
    8 bits, whose constant scales are calibrated on ``prompts``).
    ``logits`` are ``all``, or ``last``: of the last position alone.
    ``drafter``: ``mtp``, for the model's own head that drafts as one more file, or the folder of an EAGLE-3 drafter.
    Without ``images``, a model that takes them with its prompt becomes a model of text.
    Raises:   UserError E601 where it keeps no such cache, E001 for another word.
    """
    if cache not in ("dynamic", "static", "paged", "grouped", *CELLS):
        raise UserError("E001", f"cache={cache!r} is not known", next="dynamic, static or paged")
    if logits not in ("all", "last"):
        raise UserError("E001", f"logits={logits!r} is not known", next="all or last")
    request, note = FolderRequest(source, cache, in_place, logits, prompts, drafter, images), ""
    for model in {request.model, request.language}:
        set_use_cache(model.config, True)
    for recipe in RECIPES:
        if recipe.fits(request):
            if cache in CELLS and recipe is not plain_decoder:
                raise UserError(
                    "E601",
                    f"{type(request.model).__name__} has no cache of 8 bits",
                    why="only decoders whose cache is one of keys and values of their tokens have",
                    next=f"leave out --kv {cache}",
                )
            if drafter and recipe not in (plain_decoder, static):
                why, step = "only decoders of tokens have", "leave out --drafter"
                raise UserError("E601", f"{type(request.model).__name__} has no drafting head", why=why, next=step)
            parts = recipe.parts(request)
            if not isinstance(parts, TextOnly):
                return [replace(part, note=note) for part in parts] if note else parts
            note = f"text only: {parts.why}"
    raise InternalError("E900", f"no recipe fits {type(source.module).__name__}")
