"""Beam search: the most likely sequences of several that are followed together.

Source: transformers 5.23, ``GenerationMixin._beam_search``, step by step, with the same scores in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fx2onnx.generation.settings import Rule
from fx2onnx.judge.engines import Array

_NEVER = np.float32(-1e9)

Advance = Callable[[Array, Array], Array]
"""Of tokens [rows, length] and, for each row, the one that it goes on from: scores [rows, vocabulary] of the next."""


@dataclass(frozen=True)
class BeamSearch:
    """The beams of a search: ``beams`` for each prompt, of which the best ``wanted`` are given."""

    beams: int
    wanted: int
    new: int
    eos: Sequence[int]
    pad: int
    length_penalty: float
    early_stopping: bool | str

    def run(self, prompt: Array, advance: Advance, rules: Sequence[Rule], ends: Callable[[Array], Array]) -> Array:
        """Tokens [prompts * wanted, length]. ``prompt`` has a row for each beam; ``ends`` tells which rows are complete."""
        beams, start = self.beams, prompt.shape[1]
        count, total = len(prompt) // beams, start + self.new
        keep = max(2, 1 + len(self.eos)) * beams
        fill = (self.pad or self.eos[0]) if self.eos else -1
        running = np.full((count, beams, total), fill, np.int64)
        running[:, :, :start] = prompt.reshape(count, beams, start)
        scores = np.where(np.arange(beams) == 0, np.float32(0), _NEVER) * np.ones((count, 1), np.float32)
        found = {
            "sequences": running.copy(),
            "scores": np.full((count, beams), _NEVER),
            "lengths": np.zeros((count, beams), np.int64),
            "done": np.zeros((count, beams), bool),
        }
        hopeful, origin, length = np.ones((count, 1), bool), np.arange(count * beams), start
        while True:
            tokens = running[:, :, :length].reshape(count * beams, length)
            logs = _log_softmax(advance(tokens, origin))
            for rule in rules:
                rule(logs, tokens, length - start)
            vocabulary = logs.shape[1]
            summed = (logs.reshape(count, beams, vocabulary) + scores[:, :, None]).reshape(count, -1)
            places = _largest(summed, keep)
            logs_kept, parents = np.take_along_axis(summed, places, 1), places // vocabulary
            sequences = np.take_along_axis(running, parents[:, :, None], 1)
            sequences[:, :, length] = places % vocabulary
            hits = ends(sequences[:, :, : length + 1].reshape(count * keep, -1)).reshape(count, keep)
            hits |= np.isin(sequences[:, :, length], self.eos) | (length + 1 >= total)
            live = logs_kept + hits * _NEVER
            chosen = _largest(live, beams)
            running = np.take_along_axis(sequences, chosen[:, :, None], 1)
            scores = np.take_along_axis(live, chosen, 1)
            origin = (np.take_along_axis(parents, chosen, 1) + np.arange(count)[:, None] * beams).reshape(-1)
            found = self._with_ended(found, sequences, logs_kept, hits, hopeful, length + 1 - start)
            length += 1
            hopeful = hopeful & self._may_improve(found, scores, length - start)
            is_full = bool(found["done"].all()) and self.early_stopping is True
            if not hopeful.any() or is_full or hits.all():
                break
        best = found["sequences"][:, : self.wanted].reshape(-1, total)
        return best[:, : start + int(found["lengths"][:, : self.wanted].max())]

    def _with_ended(
        self, found: Mapping[str, Array], sequences: Array, logs: Array, hits: Array, hopeful: Array, length: int
    ) -> dict[str, Array]:
        """The best complete sequences, with those of ``sequences`` that end now."""
        ended = hits & (np.arange(logs.shape[1]) < self.beams)
        scores = logs / np.float32(length**self.length_penalty)
        is_full = found["done"].all(1, keepdims=True) & (self.early_stopping is True)
        scores = scores + is_full * _NEVER + ~hopeful * _NEVER + ~ended * _NEVER
        more = {"sequences": sequences, "scores": scores, "lengths": np.full(ended.shape, length), "done": ended}
        merged: dict[str, Any] = {name: np.concatenate([found[name], more[name]], 1) for name in found}
        places = _largest(merged["scores"], self.beams)
        return {
            name: np.take_along_axis(value, places[:, :, None] if value.ndim == 3 else places, 1)
            for name, value in merged.items()
        }

    def _may_improve(self, found: Mapping[str, Array], scores: Array, length: int) -> Array:
        if self.early_stopping == "never" and self.length_penalty > 0:
            length = self.new
        best = scores[:, :1] / np.float32(length**self.length_penalty)
        worst = np.where(found["done"], found["scores"].min(1, keepdims=True), _NEVER)
        return np.asarray((best > worst).any(1, keepdims=True))


def _largest(scores: Array, count: int) -> Array:
    """The places of the ``count`` largest in each row, in order."""
    places = np.argpartition(-scores, count - 1, axis=1)[:, :count] if count < scores.shape[1] else None
    if places is None:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    places = np.sort(places, axis=1)
    order = np.argsort(-np.take_along_axis(scores, places, 1), axis=1, kind="stable")
    return np.take_along_axis(places, order, 1)


def _log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))
