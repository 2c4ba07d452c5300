"""Decoders of sound that write one token of each codebook at a time, a row of ids for each (MusicGen, Dia).

Each codebook is written later than the one before. By how many steps, the model's own ``build_delay_pattern_mask`` says, or
the config's ``delay_pattern``. Of the graph, ``input_ids`` and ``logits`` are [batch * codebooks, sequence].
"""

from __future__ import annotations

import torch

from fx2onnx.decoding.decoder import cached_decoder
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import MODEL_FILE
from fx2onnx.sources.hf.transformers_types import Model

_PATTERN = "build_delay_pattern_mask"
_GIVEN = -7  # no token


def delays_of(model: Model) -> list[int]:
    """The steps by which each codebook is written later than the first; empty for models of one token at a time."""
    if not hasattr(model, _PATTERN):
        return [int(steps) for steps in getattr(model.config, "delay_pattern", None) or ()]
    count = int(model.config.get_text_config(decoder=True).num_codebooks)
    start = torch.zeros(count, 1, dtype=torch.int64)
    _, pattern = getattr(model, _PATTERN)(start, pad_token_id=_GIVEN, max_length=4 * count)
    free = pattern == -1
    return [int(row.int().argmax()) - 1 for row in free]


def fits(request: FolderRequest) -> bool:
    return bool(delays_of(request.model))


def parts(request: FolderRequest) -> list[FolderPart]:
    rows = len(delays_of(request.model))
    return [request.part(MODEL_FILE, cached_decoder(request.model, request.name, request.options, rows=rows))]
