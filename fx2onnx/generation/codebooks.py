"""Rows of several codebooks, each written some steps later than the first: which tokens of a row are given, not chosen.

A row of ids for each codebook of each sample [batch * codebooks, length], as the models' own ``generate`` keeps them.
MusicGen's rows start and end one after another with tokens that are given; Dia's prompt says which are, and its rows end
in turn where the first has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.opened import OpenedFolder
from fx2onnx.judge.engines import Array

_FREE = -1


class EndInTurn:
    """A rule of scores: the first codebook alone may choose the end, and the others end so many steps behind it.

    No token behind the end's is ever chosen. Source: ``DiaEOSChannelFilterLogitsProcessor`` and
    ``DiaEOSDelayPatternLogitsProcessor`` of transformers.
    """

    def __init__(self, delays: Sequence[int], end: int, batch: int, total: int) -> None:
        self._end = end
        self._left = np.tile(np.asarray(delays), (batch, 1))
        self._last = total - max(delays) - 1
        self._ends = np.zeros(batch, bool)

    def __call__(self, scores: Array, tokens: Array, _: int) -> None:
        """Changes ``scores`` [batch * codebooks, vocabulary] in place."""
        end, by_codebook = self._end, scores.reshape(len(self._left), -1, scores.shape[1])
        by_codebook[:, 1:, end:] = by_codebook[:, 0, end + 1 :] = -np.inf
        is_end = scores.argmax(axis=1) == end
        scores[is_end, :end] = -np.inf
        scores[~is_end, end] = -np.inf
        self._ends |= is_end.reshape(self._left.shape)[:, 0] | (tokens.shape[1] == self._last)
        forced = self._ends[:, None] & (self._left == 0)
        by_codebook[forced] = -np.inf
        by_codebook[forced, end] = 0
        self._left -= self._ends[:, None]


@dataclass(frozen=True)
class Shifted:
    """``given`` [rows, length to come]: the tokens that are given, -1 where one is chosen."""

    given: Array
    codebooks: int
    ends: EndInTurn | None = None

    def applied(self, ids: Array, first: int) -> Array:
        """``ids`` [rows, length], the first of them in column ``first``, with given tokens in their places."""
        given = self.given[:, first : first + ids.shape[1]]
        result: Array = np.where(given == _FREE, ids, given)
        return result

    def unshifted(self, ids: Array, pad: int) -> Array:
        """[batch, codebooks, length]: what is no padding; of rows that end in turn all, [batch, length, codebooks].

        Raises:   UserError E401 where rows ended at different lengths.
        """
        rows = self.applied(ids, 0)
        if self.ends is not None:
            return np.ascontiguousarray(rows.reshape(-1, self.codebooks, rows.shape[1]).swapaxes(1, 2))
        counts = set((rows != pad).sum(axis=1).tolist())
        if len(counts) > 1:
            raise UserError(
                "E401", "the codebooks are of different lengths", why=f"the padding token {pad} was generated, too"
            )
        result: Array = rows[rows != pad].reshape(-1, self.codebooks, counts.pop())
        return result


def batch_of(model: OpenedFolder, ids: Array) -> int:
    """The number of samples, which may have several rows of ids. Raises UserError E401 for another number of rows."""
    rows = max(len(model.delays), 1)
    if len(ids) % rows:
        raise UserError("E401", f"input_ids has {len(ids)} rows, the model takes {rows} for each sample")
    return len(ids) // rows


def rows_of_prompt(model: OpenedFolder, prompt: Any, batch: int, start: int) -> Array:
    """The decoder's prompt [batch, length, codebooks] as rows; the start token alone where none is given."""
    count = len(model.delays)
    prompt = np.full((batch, 1, count), start) if prompt is None else np.asarray(prompt)
    if prompt.ndim != 3 or len(prompt) != batch or prompt.shape[2] != count or not prompt.shape[1]:
        raise UserError(
            "E401",
            f"decoder_input_ids is {list(prompt.shape)}, not [{batch}, length, {count}]",
            why="codebooks come last",
        )
    rows: Array = prompt.swapaxes(1, 2).reshape(batch * count, -1).astype(np.int64)
    return rows


def shifted(model: OpenedFolder, ids: Array, new: int) -> tuple[Shifted | None, Array]:
    """The order in which ``new`` tokens follow the prompt ``ids`` [rows, length], and that prompt; None for models of
    one token at a time. Rows that are too short to be written one after another are not shifted.

    Rows that are too short to be written one after another are not shifted.
    """
    if not model.delays:
        return None, ids
    if model.encoder is not None:
        return _of_padded_prompt(model, ids, new)
    delays = np.tile(model.delays, batch_of(model, ids))[:, None]
    length, total, last = ids.shape[1], ids.shape[1] + new, int(delays.max())
    if total < 2 * last + 1:
        return Shifted(np.full((len(ids), total), _FREE), len(model.delays)), ids
    columns = np.arange(total)[None]
    place = columns - delays  # of the prompt
    prompt = np.take_along_axis(ids, np.clip(place, 0, length - 1), axis=1)
    given = np.where((place >= 0) & (place < length), prompt, _FREE)
    outside = (place <= 0) | (place >= total - last)
    return Shifted(np.where(outside, _start(model), given), len(model.delays)), ids


def _of_padded_prompt(model: OpenedFolder, ids: Array, new: int) -> tuple[Shifted, Array]:
    """The shifted form of a prompt in which padding stands for tokens to choose; the choice of the first codebook is yet to
    come.
    """
    said: Mapping[str, Any] = model.config.get("decoder_config") or model.config
    count, pad = len(model.delays), said.get("pad_token_id")
    chosen = ids == pad
    length = ids.shape[1] - int(chosen[::count].sum(axis=1).max())
    if length < 1:
        raise UserError("E401", "the decoder's prompt is padding alone", why=f"token {pad} stands for tokens to choose")
    given = np.full((len(ids), length + new), _FREE)
    width = min(ids.shape[1], length + new)
    given[:, :width] = np.where(chosen, _FREE, ids)[:, :width]
    end = said.get("eos_token_id")
    if not isinstance(end, int):
        raise UserError("E302", f"config.json of '{model.folder}' has no single eos_token_id", why=f"it is {end}")
    ends = EndInTurn(model.delays, end, len(ids) // count, length + new)
    return Shifted(given, count, ends), ids[:, :length]


def _start(model: OpenedFolder) -> int:
    said: Sequence[Mapping[str, Any]] = (model.generation_config, model.config)
    for word in ("decoder_start_token_id", "bos_token_id"):
        for config in said:
            if isinstance(config.get(word), int):
                return int(config[word])
    raise UserError("E401", "neither config.json nor generation_config.json has a bos_token_id")
