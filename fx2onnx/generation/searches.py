"""Searches that follow several sequences: beams, and the drafts of a small model that the model checks in one call.

Source: transformers 5.23, ``GenerationMixin._beam_search``, step by step, with the same scores in float32, and Leviathan et al., 2023, as
transformers has it for ``assistant_model``: the same tokens, or the same chances, in fewer calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.engine import Graph, as_array
from fx2onnx.generation.opened import OpenedFolder
from fx2onnx.generation.scores import Chooser, Rule, largest, log_softmax, softmax
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.form import FIXED
from fx2onnx.manifest.names import HIDDEN

DRAFTED = 5
"""Tokens that are drafted before they are checked."""
AdvanceOf: TypeAlias = Callable[[OpenedFolder, Array, int, Array, dict[str, Any], Mapping[str, Any]], Any]
"""Logits after some tokens and the states that follow: of the model, the tokens, how many are cached, the mask, states, other inputs."""
Score: TypeAlias = Callable[[Array, Array], Array]
"""The scores [1, vocabulary] of logits, behind tokens [1, length]."""


def drafter_of(model: OpenedFolder, assistant: Any) -> OpenedFolder:
    """The folder that drafts for ``model``. Raises: UserError E401 where one of the two cannot, E302 where there is none."""
    found = assistant if isinstance(assistant, OpenedFolder) else None
    if found is None:
        path = Path(assistant).expanduser()
        if not any(path.glob("**/*.onnx")):
            raise UserError("E302", f"there is no exported model in '{path}'", next="fx2onnx export-folder hf:DRAFTER")
        found = OpenedFolder(path, model.engine)
    _check_fit(model, "model")
    _check_fit(found, "assistant")
    sizes = [folder.main.outputs[folder.main.form.output("logits")].shape[-1] for folder in (model, found)]
    if sizes[0] != sizes[1]:
        raise UserError(
            "E401",
            f"the assistant '{found.folder}' has another vocabulary",
            why=f"{sizes[1]} tokens, the model {sizes[0]}",
            next="an assistant is a smaller model with the same tokenizer",
        )
    return found


def _check_fit(folder: OpenedFolder, what: str) -> None:
    why = _unfit(folder)
    if why:
        raise UserError(
            "E401",
            f"the {what} '{folder.folder}' cannot generate with drafted tokens",
            why=why,
            next="leave out the assistant, or take decoders that keep keys and values of tokens",
        )


def _unfit(model: OpenedFolder) -> str:
    form, states = model.main.form, model.main.past.values()
    if not form.output("logits") or not states or form.tokens == "all" or form.tokens_per_call is not None:
        return "it has no cache, or takes one token a call"
    if model.encoder is not None or model.graph("embed") is not None or model.delays:
        return "it takes more than tokens"
    others = [
        state.name
        for state in states
        if state.length not in FIXED and (state.axis is None or state.length not in ("past", "window"))
    ]
    return f"its cache cannot be cut: {others[0]}" if others else ""


@dataclass
class CutCache:
    """The cache of ``graph`` behind ``length`` tokens, of which it can go back to the first. What leaves a sliding window is kept in
    ``whole``.
    """

    graph: Graph
    states: dict[str, Any]
    length: int = 0
    whole: dict[str, Array] = field(default_factory=dict)

    def cut(self, length: int) -> None:
        """Keep the first ``length`` tokens. A cache of fixed size stays: what is behind them is written again before it is read."""
        for name, state in self.graph.past.items() if length < self.length else ():
            if state.length in FIXED:
                continue
            assert state.axis is not None
            end, first = length, 0
            if state.window is not None:
                end = self.whole[name].shape[state.axis] - (self.length - length)
                self.whole[name] = np.split(self.whole[name], [end], state.axis)[0]
                first = max(end - state.window, 0)
            array = as_array(self.states[name]) if state.window is None else self.whole[name]
            part = np.split(array, [first, end], state.axis)[1]
            self.states[name] = self.graph.value(name, np.ascontiguousarray(part))
        self.length = length

    def follow(self, states: dict[str, Any], new: int) -> None:
        """Take the states behind ``new`` more tokens."""
        self.states, self.length = states, self.length + new
        for name, state in self.graph.past.items():
            if state.window is not None and state.axis is not None:
                found = as_array(states[name])
                if name in self.whole and new <= found.shape[state.axis]:
                    more = np.split(found, [found.shape[state.axis] - new], state.axis)[1]
                    found = np.concatenate([self.whole[name], more], state.axis)
                self.whole[name] = found


@dataclass
class CachedTokens:
    """A decoder, and the tokens [1, length] that its cache has seen."""

    model: OpenedFolder
    advance: AdvanceOf
    mask: Array
    cache: CutCache
    fixed: Mapping[str, Any]
    tokens: Array
    hidden: Array | None = None
    """The last hidden states [1, length, width] of ``tokens``, where the graph gives them."""

    def logits(self, tokens: Array, count: int) -> Array:
        """Logits [count, vocabulary] after the last ``count`` of ``tokens``; the cache keeps what it has of them."""
        kept = self.shared(tokens, count)
        if kept < self.tokens.shape[1]:
            self.cache.cut(kept)
        more = tokens.shape[1] - self.mask.shape[1]
        mask = np.concatenate([self.mask, np.ones((1, max(more, 0)), self.mask.dtype)], 1)[:, : tokens.shape[1]]
        found, states = self.advance(self.model, tokens[:, kept:], kept, mask, self.cache.states, self.fixed)
        self.fixed = {name: value for name, value in self.fixed.items() if name in self.model.main.inputs}
        self.tokens = tokens
        if HIDDEN in states:
            hidden = as_array(states.pop(HIDDEN))
            before = hidden[:, :0] if self.hidden is None else self.hidden[:, :kept]
            self.hidden = np.concatenate([before, hidden], axis=1)
        self.cache.follow(states, tokens.shape[1] - kept)
        if found.shape[1] < count:
            raise UserError(
                "E401",
                f"'{self.model.folder}' gives the logits of the last token only, drafted tokens need those of all",
                next="export it without --logits last",
            )
        return np.asarray(found[0, found.shape[1] - count :], np.float32)

    def shared(self, tokens: Array, count: int) -> int:
        """The number of first ``tokens`` that the cache has seen, all but the last ``count`` at most."""
        most = min(self.tokens.shape[1], tokens.shape[1] - count)
        same = self.tokens[0, :most] == tokens[0, :most]
        return most if same.all() else int(same.argmin())


@dataclass
class HeadDrafter:
    """The head of a model that drafts: of each token and the hidden state before it, the token behind. ``sure`` of the tokens in its
    cache have the model's own hidden states; those of later ones are the head's.
    """

    target: CachedTokens
    cache: CutCache
    sure: int = 0
    last: Array | None = None

    @staticmethod
    def of(target: CachedTokens) -> HeadDrafter:
        """Raises UserError E401 for a folder that has no head, or cannot generate with drafted tokens."""
        model = target.model
        graph = model.graph("draft")
        if graph is None or not model.main.form.output("hidden"):
            what = f"the folder '{model.folder}' has no head that drafts tokens"
            raise UserError("E401", what, next="fx2onnx export-folder hf:FOLDER -o OUT --drafter mtp")
        _check_fit(model, "model")
        return HeadDrafter(target, CutCache(graph, graph.empty(1)))

    def logits(self, tokens: Array, _: int) -> Array:
        """Logits [1, vocabulary] of the token behind ``tokens``."""
        known, length = self.target.shared(tokens, 1), tokens.shape[1]
        if known > self.sure:
            assert self.target.hidden is not None
            self.cache.cut(self.sure)
            first, hidden = self.sure, self.target.hidden[:, self.sure : known]
            self.sure = known
        else:
            assert self.last is not None
            first, hidden = length - 2, self.last
        padding = int((self.target.mask == 0).sum())
        places = np.maximum(np.arange(first + 1, length) - padding, 0)[None]
        by_role = {"tokens": tokens[:, first + 1 :], "hidden": hidden, "positions": places}
        graph = self.cache.graph
        outputs = graph.run(graph.feeds(by_role, self.cache.states))
        self.cache.follow(graph.following(outputs, graph), hidden.shape[1])
        self.last = as_array(outputs[HIDDEN])[:, -1:]
        return np.asarray(as_array(outputs[graph.form.output("logits")])[0, -1:], np.float32)


def following(
    target: CachedTokens,
    drafter: CachedTokens | HeadDrafter,
    tokens: Array,
    score: Score,
    choose: Chooser,
    count: int,
    most: int,
) -> Iterator[tuple[Array, Array]]:
    """The next tokens [1] one after the other, each with its scores; ``count`` are drafted at a time, of ``most`` in all."""
    windows = [state.window for state in target.model.main.past.values() if state.window is not None]
    count = min([count, *(window - 1 for window in windows)])  # a call of more tokens leaves too little to go back to
    while True:
        drafted, chances = tokens, []
        room = most - tokens.shape[1] - 1 if target.tokens.size else 0  # nothing is drafted behind the prompt alone
        for _ in range(min(count, room)):
            scores = score(drafter.logits(drafted, 1), drafted)
            drafted = np.concatenate([drafted, choose(scores)[:, None]], axis=1)
            chances.append(softmax(scores)[0])
        rows = target.logits(drafted, len(chances) + 1)
        for place, row in enumerate(rows):
            scores = score(row[None], tokens)
            draft = int(drafted[0, tokens.shape[1]]) if place < len(chances) else None
            if draft is None or not choose.is_drawing:
                chosen = choose(scores)
            else:
                chosen = accepted(softmax(scores)[0], chances[place], draft, choose)
            yield chosen, scores
            tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
            if draft is None or int(chosen[0]) != draft:
                break


def accepted(wanted: Array, drafted: Array, draft: int, choose: Chooser) -> Array:
    """The drafted token by the chance that gives tokens the chances ``wanted`` in all, else one of those that were drafted too
    rarely.
    """
    if choose.uniform() * drafted[draft] < wanted[draft]:
        return np.array([draft])
    rest = np.maximum(wanted - drafted, 0)
    with np.errstate(divide="ignore"):
        return choose(np.log(rest if rest.sum() > 0 else wanted)[None])


_NEVER = np.float32(-1e9)

Advance = Callable[[Array, Array], Array]
"""Scores [rows, vocabulary] of the next token, for tokens [rows, length] and, for each row, the row that it goes on from."""


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

    def run(
        self,
        prompt: Array,
        advance: Advance,
        rules: Sequence[Rule],
        ends: Callable[[Array], Array],
        choose: Chooser,
    ) -> Array:
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
            logs = log_softmax(advance(tokens, origin))
            for rule in rules:
                rule(logs, tokens, length - start)
            vocabulary = logs.shape[1]
            summed = (logs.reshape(count, beams, vocabulary) + scores[:, :, None]).reshape(count, -1)
            places = choose.several(summed, keep)
            logs_kept, parents = np.take_along_axis(summed, places, 1), places // vocabulary
            sequences = np.take_along_axis(running, parents[:, :, None], 1)
            sequences[:, :, length] = places % vocabulary
            hits = ends(sequences[:, :, : length + 1].reshape(count * keep, -1)).reshape(count, keep)
            hits |= np.isin(sequences[:, :, length], self.eos) | (length + 1 >= total)
            live = logs_kept + hits * _NEVER
            chosen = largest(live, beams)
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
        places = largest(merged["scores"], self.beams)
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
