"""Scores of the next token: the rules that change them, and the tokens that are chosen by them.

Source: transformers 5.23, ``generation/logits_process.py``; the order of the rules is that of ``_get_logits_processor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.settings import NEUTRAL, GenerateSettings, whole_numbers
from fx2onnx.judge.engines import Array

Rule: TypeAlias = Callable[[Array, Array, int], None]
"""Changes scores [rows, vocabulary] in place, of the tokens [rows, length] before and the number of the step."""


@dataclass(frozen=True)
class RulesOf:
    """The rules of one call of ``generate``. ``said`` is generation_config.json of ``folder``, over which settings go."""

    settings: GenerateSettings
    said: Mapping[str, Any]
    eos: list[int]
    new: int
    """The most new tokens."""
    handed: Callable[[Array], Any]
    """The array as a function of the user gets it."""
    padding: Array
    """The length of the padding in front of each row."""
    read: Array | None
    """The tokens [rows, length] that the encoder reads, of a decoder the prompt."""
    folder: Path

    def in_order(self) -> list[Rule]:
        """All rules that are asked for, in transformers' order."""
        found = [*self._of_words(), *self._against_an_end()]
        if self.settings.prefix_allowed_tokens_fn is not None:
            found.append(self._allow)
        if self._asks("forced_bos_token_id") or self._asks("forced_eos_token_id"):
            found.append(self._force)
        if self.value("remove_invalid_values", False):
            found.append(lambda scores, *_: np.copyto(scores, np.nan_to_num(scores)))
        if self._asks("exponential_decay_length_penalty") and self.eos:
            found.append(self._decay)
        if self.value("suppress_tokens", ()) or self.value("begin_suppress_tokens", ()):
            found.append(self._suppress)
        found += [_by_function(function, self.handed) for function in self.settings.logits_processor or ()]
        if self.settings.do_sample:
            found.append(self._narrow)
        if self.value("renormalize_logits", False):
            found.append(lambda scores, *_: np.copyto(scores, log_softmax(scores)))
        return found

    def value(self, name: str, usual: Any) -> Any:
        """The value that the call gives, else generation_config.json, else ``usual``."""
        given = (self.settings.rules.get(name), getattr(self.settings, name, None), self.said.get(name))
        return next((value for value in given if value is not None), usual)

    def _asks(self, name: str) -> bool:
        return self.value(name, None) is not None

    def _of_words(self) -> Iterator[Rule]:
        """Rules about single tokens and sequences of them."""
        read = self.read if self.read is not None and self.read.ndim == 2 and self.read.min() >= 0 else None
        bias, words = self.value("sequence_bias", ()), self.value("bad_words_ids", ())
        of_read, penalty = (float(self.value(f"{of}repetition_penalty", 1.0)) for of in ("encoder_", ""))
        size_read, size = (int(self.value(f"{of}no_repeat_ngram_size", 0)) for of in ("encoder_", ""))
        if bias:
            yield _biased(bias.items() if isinstance(bias, Mapping) else bias)
        if of_read != 1.0 and read is not None:
            yield lambda scores, *_: _penalise(scores, read, 1 / of_read)
        if penalty != 1.0:
            yield lambda scores, tokens, _: _penalise(
                scores, map(lambda row, n: row[n:], tokens, self.padding), penalty
            )
        if size:
            yield lambda scores, tokens, _: _forbid_repeats(scores, tokens, tokens, size)
        if size_read and read is not None:
            yield lambda scores, tokens, _: _forbid_repeats(scores, tokens, read, size_read)
        if words:
            yield _biased((word, -np.inf) for word in words if word not in [[end] for end in self.eos])

    def _against_an_end(self) -> Iterator[Rule]:
        """A rule that there are enough tokens."""
        least = self.value("min_new_tokens", None)
        shortest = int(self.value("min_length", 0)) if least is None else 0

        def wait(scores: Array, tokens: Array, step: int) -> None:
            if step < int(least or 0) or tokens.shape[1] < shortest:
                scores[:, self.eos] = -np.inf

        if (least or shortest) and self.eos:
            yield wait

    def _allow(self, scores: Array, tokens: Array, _: int) -> None:
        allowed = self.settings.prefix_allowed_tokens_fn
        assert allowed is not None
        for index, (row, seen) in enumerate(zip(scores, tokens, strict=True)):
            returned = allowed(index // self.settings.copies, self.handed(seen))
            try:
                may = whole_numbers(returned)
                why = "it gave none" if not may.size else f"it gave {may.tolist()[:8]}, the vocabulary has {len(row)}"
            except (TypeError, ValueError):
                may, why = np.empty(0, np.int64), f"it gave {returned!r:.60}"
            if not may.size or may.min() < 0 or may.max() >= len(row):
                raise UserError(
                    "E401",
                    "prefix_allowed_tokens_fn has to give tokens of the vocabulary",
                    why=why,
                    next=f"return a list of one or more token ids from 0 to {len(row) - 1}",
                )
            kept = row[may].copy()
            row[:] = -np.inf
            row[may] = kept

    def _force(self, scores: Array, tokens: Array, step: int) -> None:
        is_last, is_first = step == self.new - 1, tokens.shape[1] == 1
        for name, is_now in (("forced_bos_token_id", is_first), ("forced_eos_token_id", is_last)):
            token = self.value(name, None)
            if token is None or not is_now:
                continue
            forced = token if isinstance(token, list) else [token]
            is_there = all(0 <= each < scores.shape[1] for each in forced)
            why = "" if is_there else f"the vocabulary has {scores.shape[1]}"
            if {*forced} <= {*self.value("suppress_tokens", ())}:
                why = "suppress_tokens forbids it"
            if why:
                is_given = name in self.settings.rules
                what = "generate is to force" if is_given else f"generation_config.json of '{self.folder}' forces"
                raise UserError("E401" if is_given else "E302", f"{what} the token {token}", why=why)
            scores[:] = -np.inf
            scores[:, forced] = 0

    def _decay(self, scores: Array, tokens: Array, step: int) -> None:
        start, factor = self.value("exponential_decay_length_penalty", None)
        if step > start:
            ends = scores[:, self.eos]
            more = np.where(np.isfinite(ends), np.abs(ends), 0) * (pow(factor, step - start) - 1)
            scores[:, self.eos] = ends + more.astype(np.float32)

    def _suppress(self, scores: Array, tokens: Array, step: int) -> None:
        is_behind_forced = tokens.shape[1] - step == 1 and self._asks("forced_bos_token_id")
        chosen = list(self.value("suppress_tokens", ()))
        chosen += self.value("begin_suppress_tokens", ()) if step == int(is_behind_forced) else []
        scores[:, [token for token in chosen if 0 <= token < scores.shape[1]]] = -np.inf

    def _narrow(self, scores: Array, tokens: Array, _: int) -> None:
        """Divide by the temperature, and leave out unlikely tokens. Each beam keeps a token that is no end."""
        kept = max(len(self.eos), 1) + 1 if self.settings.beams > 1 else 1
        scores /= np.float32(self.value("temperature", 1.0))
        for name, leaves in _LEAVE.items():
            value = self.value(name, 50 if name == "top_k" else NEUTRAL[name])
            if value != NEUTRAL[name]:
                scores[leaves(scores, value, min(kept, scores.shape[1]))] = -np.inf


def _biased(pairs: Iterable[tuple[Sequence[int], float]]) -> Rule:
    """Add a number to the score of a token behind the tokens before it, for each sequence."""
    words = {tuple(word): np.float32(bias) for word, bias in pairs}

    def add(scores: Array, tokens: Array, _: int) -> None:
        for (*before, last), bias in words.items():
            start = tokens.shape[1] - len(before)
            if start >= 0 and last < scores.shape[1]:
                scores[(tokens[:, start:] == np.array(before, np.int64)).all(1), last] += bias

    return add


def _penalise(scores: Array, tokens: Iterable[Array], penalty: float) -> None:
    for row, seen in zip(scores, tokens, strict=True):
        there = np.unique(seen)
        row[there] = np.where(row[there] < 0, row[there] * penalty, row[there] / penalty)


def _forbid_repeats(scores: Array, tokens: Array, texts: Array, size: int) -> None:
    """Forbid what makes the last tokens a sequence of ``size`` that a text [rows, length] has."""
    for row, seen, text in zip(scores, tokens, texts, strict=True):
        if len(seen) + 1 < size:
            continue
        windows = np.lib.stride_tricks.sliding_window_view(text, size) if len(text) >= size else np.empty((0, size))
        last = seen[len(seen) - size + 1 :]
        row[windows[(windows[:, :-1] == last).all(1), -1].astype(np.int64)] = -np.inf


def _by_function(function: Callable[[Any, Any], Any], handed: Callable[[Array], Any]) -> Rule:
    def apply(scores: Array, tokens: Array, _: int) -> None:
        returned = np.asarray(function(handed(tokens), handed(scores.copy())))
        if returned.shape != scores.shape or returned.dtype.kind not in "fiu":
            what = f"a function of logits_processor returned {returned.dtype}{list(returned.shape)}"
            raise UserError("E401", what, next=f"return scores as it gets them, {list(scores.shape)}")
        scores[:] = returned

    return apply


def _beyond_entropy(scores: Array, share: float, _: int) -> Array:
    """All but the likeliest tokens, of 100, whose part of the entropy is within this share of it."""
    order = largest(scores, min(100, scores.shape[1]))
    logs = log_softmax(np.take_along_axis(scores, order, 1))
    with np.errstate(invalid="ignore"):
        terms = -np.exp(logs) * logs
        within = np.cumsum(terms, axis=1) <= np.nansum(terms, axis=1, keepdims=True) * np.float32(share)
    within[:, 0] = True
    leave = np.ones(scores.shape, bool)
    np.put_along_axis(leave, order, ~within, 1)
    return leave


def _below_first(scores: Array, count: int, kept: int) -> Array:
    place = -min(max(int(count), kept), scores.shape[1])
    return np.asarray(scores < np.partition(scores, place, axis=1)[:, place, None])


def _below_share(scores: Array, share: float, kept: int) -> Array:
    order = np.argsort(scores, axis=1, kind="stable")
    leave = np.cumsum(softmax(np.take_along_axis(scores, order, 1)), axis=1) <= np.float32(1 - share)
    leave[:, -kept:] = False
    return _in_place(leave, order)


def _far_below_best(scores: Array, share: float, kept: int) -> Array:
    chances = softmax(scores)
    return np.asarray((chances < np.float32(share) * chances.max(1, keepdims=True)) & _below_first(scores, 0, kept))


def _untypical(scores: Array, share: float, kept: int) -> Array:
    """All but the tokens that make up this share, those first whose information is nearest to the entropy."""
    logs = log_softmax(scores)
    with np.errstate(invalid="ignore"):
        far = np.abs(-logs + np.nansum(logs * np.exp(logs), axis=1, keepdims=True))
    order = np.argsort(far, axis=1, kind="stable")
    summed = np.cumsum(softmax(np.take_along_axis(scores, order, 1)), axis=1)
    last = np.minimum((summed < np.float32(share)).sum(1), scores.shape[1] - 1)
    ranked = np.take_along_axis(far, order, 1)
    leave = ranked > np.take_along_axis(ranked, last[:, None], 1)
    leave[:, :kept] = False
    return _in_place(leave, order)


def _below_chance(scores: Array, chance: Any, kept: int) -> Array:
    return np.asarray((softmax(scores) < np.float32(chance)) & _below_first(scores, 0, kept))


def _below_chance_by_entropy(scores: Array, chance: float, kept: int) -> Array:
    logs = log_softmax(scores)
    entropy = -(np.exp(logs) * np.where(np.isfinite(logs), logs, 0)).sum(1, keepdims=True)
    return _below_chance(scores, np.minimum(np.float32(chance), np.sqrt(np.float32(chance)) * np.exp(-entropy)), kept)


_LEAVE: dict[str, Callable[[Array, Any, int], Array]] = {
    "top_h": _beyond_entropy,
    "top_k": _below_first,
    "top_p": _below_share,
    "min_p": _far_below_best,
    "typical_p": _untypical,
    "epsilon_cutoff": _below_chance,
    "eta_cutoff": _below_chance_by_entropy,
}
"""A mask of the scores to leave out, by a setting and the number of tokens to keep."""


def _in_place(marks: Array, order: Array) -> Array:
    """``marks`` of tokens in ``order``, in the order of the vocabulary."""
    found = np.empty_like(marks)
    np.put_along_axis(found, order, marks, 1)
    return found


def softmax(scores: Array) -> Array:
    """Probabilities along the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(-1, keepdims=True)))


def largest(scores: Array, count: int) -> Array:
    """The places of the ``count`` largest in each row, in order."""
    places = np.argpartition(-scores, count - 1, axis=1)[:, :count] if count < scores.shape[1] else None
    if places is None:
        return np.argsort(-scores, axis=1, kind="stable")[:, :count]
    places = np.sort(places, axis=1)
    order = np.argsort(-np.take_along_axis(scores, places, 1), axis=1, kind="stable")
    return np.take_along_axis(places, order, 1)


class Chooser:
    """The next token of each row: the likeliest, or one that is drawn.

    A draw is the largest of ``probability / exponential number``, as ``torch.multinomial`` has it: with PyTorch's generator
    (for torch tensors) the tokens are those of transformers under the same seed, else NumPy's generator draws.
    """

    def __init__(self, settings: GenerateSettings, *, is_torch: bool) -> None:
        self._draw: Callable[[tuple[int, ...]], Array] | None = None
        self.is_drawing = settings.do_sample
        if not settings.do_sample:
            return
        if is_torch:
            import torch

            own = None if settings.seed is None else torch.Generator().manual_seed(settings.seed)
            self._draw = lambda shape: torch.empty(shape).exponential_(1, generator=own).numpy()
        else:
            drawing = np.random.default_rng(settings.seed)
            self._draw = lambda shape: drawing.exponential(size=shape).astype(np.float32)

    def __call__(self, scores: Array) -> Array:
        """Tokens [rows]."""
        if self._draw is None:
            return np.asarray(scores.argmax(axis=-1))
        return np.asarray(self._drawn(scores).argmax(axis=-1))

    def several(self, scores: Array, count: int) -> Array:
        """Different places [rows, count]: of the largest scores, or drawn ones."""
        return largest(scores if self._draw is None else self._drawn(scores), count)

    def _drawn(self, scores: Array) -> Array:
        assert self._draw is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(softmax(scores) / self._draw(scores.shape))

    def uniform(self) -> float:
        """A number from 0 to 1, where tokens are drawn."""
        assert self._draw is not None
        return float(np.exp(-self._draw((1,))[0]))
