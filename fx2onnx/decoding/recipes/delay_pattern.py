"""Decoders of sound that write one token of each codebook at a time, a row of ids for each (MusicGen, Dia).

Each codebook is written later than the one before. By how many steps, the model's own ``build_delay_pattern_mask`` says, or
the config's ``delay_pattern``.
"""

from __future__ import annotations

from typing import Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.decoding.cache.layout import Memory, unmistakable_sizes
from fx2onnx.decoding.decoder import CachedDecoder, add_states, no_cache, prompt_of, text_inputs, trial
from fx2onnx.manifest.names import BATCH, SEQUENCE
from fx2onnx.sources.source import Options, Source

_PATTERN = "build_delay_pattern_mask"
_GIVEN = -7  # no token


def delays_of(model: Any) -> list[int]:
    """By how many steps each codebook is written later than the first; empty for models of one token at a time."""
    if not hasattr(model, _PATTERN):
        return [int(steps) for steps in getattr(model.config, "delay_pattern", None) or ()]
    count = int(model.config.get_text_config(decoder=True).num_codebooks)
    start = torch.zeros(count, 1, dtype=torch.int64)
    _, pattern = getattr(model, _PATTERN)(start, pad_token_id=_GIVEN, max_length=4 * count)
    free = pattern == -1
    return [int(row.int().argmax()) - 1 for row in free]


def codebook_decoder(model: Any, name: str, options: Options) -> Source:
    """``model`` as one graph with its cache in and out; ``input_ids`` [batch * codebooks, sequence], ``logits`` likewise.

    Raises:   UserError E601 where the model keeps nothing between calls.
    """
    rows = len(delays_of(model))
    sizes = unmistakable_sizes(model.config)
    prompt = prompt_of(model, sizes)
    prompt["input_ids"] = prompt["input_ids"].repeat(rows, 1)
    argument, cache = trial(model, prompt)
    memory = Memory(cache, sizes)
    if not memory.states:
        raise no_cache(model)
    batch, new = options.batch_or(), options.seq_or(4)
    kwargs, shapes = text_inputs(model, memory, batch, new)
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    kwargs["input_ids"] = torch.randint(0, vocabulary, (batch * rows, new))
    shapes["input_ids"] = {0: Dim.symbol(BATCH) * rows, 1: SEQUENCE}
    add_states(kwargs, shapes, memory, batch)
    return Source(name, CachedDecoder(model, argument, memory).eval(), (), kwargs, shapes)
