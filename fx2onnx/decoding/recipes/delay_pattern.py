"""Decoders of sound that write one token of each codebook at a time, a row of ids for each (MusicGen, Dia).

Each codebook is written later than the one before. By how many steps, the model's own ``build_delay_pattern_mask`` says, or
the config's ``delay_pattern``.
"""

from __future__ import annotations

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.decoding.cache.layout import Memory, unmistakable_sizes
from fx2onnx.decoding.decoder import BATCH, SEQUENCE, CachedDecoder, add_states, no_cache, prompt_of, text_inputs, trial
from fx2onnx.decoding.recipes.recipe import Part, Request
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.source import Source

_PATTERN = "build_delay_pattern_mask"
_GIVEN = -7  # no token


def delays_of(model: Model) -> list[int]:
    """By how many steps each codebook is written later than the first; empty for models of one token at a time."""
    if not hasattr(model, _PATTERN):
        return [int(steps) for steps in getattr(model.config, "delay_pattern", None) or ()]
    count = int(model.config.get_text_config(decoder=True).num_codebooks)
    start = torch.zeros(count, 1, dtype=torch.int64)
    _, pattern = getattr(model, _PATTERN)(start, pad_token_id=_GIVEN, max_length=4 * count)
    free = pattern == -1
    return [int(row.int().argmax()) - 1 for row in free]


def fits(request: Request) -> bool:
    return bool(delays_of(request.model))


def parts(request: Request) -> list[Part]:
    """``input_ids`` and ``logits`` have batch * codebooks rows."""
    model = request.model
    rows = len(delays_of(model))
    sizes = unmistakable_sizes(model.config)
    prompt = prompt_of(model, sizes)
    prompt["input_ids"] = prompt["input_ids"].repeat(rows, 1)
    argument, cache = trial(model, prompt)
    memory = Memory(cache, sizes)
    if not memory.states:
        raise no_cache(model)
    batch, new = request.options.batch_or(), request.options.seq_or(4)
    kwargs, shapes = text_inputs(model, memory, batch, new)
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    kwargs["input_ids"] = torch.randint(0, vocabulary, (batch * rows, new))
    shapes["input_ids"] = {0: Dim.symbol(BATCH) * rows, 1: SEQUENCE}
    add_states(kwargs, shapes, memory, batch)
    decoder = Source(request.name, CachedDecoder(model, argument, memory).eval(), (), kwargs, shapes)
    return [request.part("model.onnx", decoder)]
