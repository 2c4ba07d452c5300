"""Rows of several codebooks, each written some steps later than the first: which tokens of a row are given, not chosen.

A row of ids for each codebook of each sample [batch * codebooks, length], as MusicGen's own ``generate`` keeps them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.engine import Array

if TYPE_CHECKING:
    from fx2onnx.generation.loaded import LoadedModel

_FREE = -1


@dataclass(frozen=True)
class Shifted:
    """``given`` [rows, length to come]: the tokens that are given, -1 where one is chosen."""

    given: Array
    codebooks: int

    def applied(self, ids: Array, first: int) -> Array:
        """``ids`` [rows, length], the first of them in column ``first``, with given tokens in their places."""
        given = self.given[:, first : first + ids.shape[1]]
        result: Array = np.where(given == _FREE, ids, given)
        return result

    def unshifted(self, ids: Array, pad: int) -> Array:
        """[batch, codebooks, length]: what is no padding. Raises UserError E401 where rows ended at different lengths."""
        rows = self.applied(ids, 0)
        counts = set((rows != pad).sum(axis=1).tolist())
        if len(counts) > 1:
            raise UserError(
                "E401", "the codebooks are of different lengths", why=f"the padding token {pad} was generated, too"
            )
        result: Array = rows[rows != pad].reshape(-1, self.codebooks, counts.pop())
        return result


def batch_of(model: LoadedModel, ids: Array) -> int:
    """The number of samples, which may have several rows of ids. Raises UserError E401 for another number of rows."""
    rows = max(len(model.delays), 1)
    if len(ids) % rows:
        raise UserError("E401", f"input_ids has {len(ids)} rows, the model takes {rows} for each sample")
    return len(ids) // rows


def shifted(model: LoadedModel, ids: Array, new: int) -> Shifted | None:
    """How ``new`` tokens follow the prompt ``ids`` [rows, length]; None for models of one token at a time.

    Rows that are too short to be written one after another are not shifted.
    """
    if not model.delays:
        return None
    delays = np.tile(model.delays, batch_of(model, ids))[:, None]
    length, total, last = ids.shape[1], ids.shape[1] + new, int(delays.max())
    if total < 2 * last + 1:
        return Shifted(np.full((len(ids), total), _FREE), len(model.delays))
    columns = np.arange(total)[None]
    place = columns - delays  # of the prompt
    prompt = np.take_along_axis(ids, np.clip(place, 0, length - 1), axis=1)
    given = np.where((place >= 0) & (place < length), prompt, _FREE)
    outside = (place <= 0) | (place >= total - last)
    return Shifted(np.where(outside, _start(model), given), len(model.delays))


def _start(model: LoadedModel) -> int:
    said: Sequence[Mapping[str, Any]] = (model.generation_config, model.config)
    for word in ("decoder_start_token_id", "bos_token_id"):
        for config in said:
            if isinstance(config.get(word), int):
                return int(config[word])
    raise UserError("E401", "neither config.json nor generation_config.json has a bos_token_id")
