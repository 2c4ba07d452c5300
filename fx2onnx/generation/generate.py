"""Text generation over an exported decoder, or encoder and decoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.generation.codebooks import Shifted, shifted
from fx2onnx.generation.engine import Graph, as_array, dtype_of
from fx2onnx.generation.media import beside_text
from fx2onnx.generation.opened import OpenedFolder, positions
from fx2onnx.generation.prompt import (
    FolderTokenizer,
    StopStrings,
    array_of,
    is_text,
    prompt_length,
    prompts_of,
    rewritten,
    rows_that_end,
    start_of,
    token_ids,
)
from fx2onnx.generation.scores import Chooser, Rule, RulesOf
from fx2onnx.generation.searches import DRAFTED, BeamSearch, CachedTokens, CutCache, HeadDrafter, drafter_of, following
from fx2onnx.generation.settings import GenerateSettings, settings_of
from fx2onnx.judge.engines import Array
from fx2onnx.manifest.form import PromptRewrite
from fx2onnx.manifest.names import HIDDEN

_LAST_POSITION = "last_position"  # among the states: the greatest number of any token's position [batch]
_LENGTH = 20  # transformers' own default of max_length


@dataclass(frozen=True)
class Stop:
    """The end of a sequence, and the token that fills the rest of its row."""

    max_new_tokens: int
    eos: tuple[int, ...]
    pad: int


def generate(
    model: OpenedFolder,
    input_ids: Any = None,
    *,
    attention_mask: Any = None,
    max_new_tokens: int | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    pad_token_id: int | None = None,
    on_token: Callable[[Array], Any] | None = None,
    **more: Any,
) -> Any:
    """Tokens as ``model.generate`` of transformers gives them: the most likely at every step, unless settings say otherwise.

    input_ids [batch, length]: the prompt; of an encoder-decoder the encoder's text. A text, a chat (a list of messages) or a
    list of those gives text. Prompts of different lengths are padded on the left, with 0 in ``attention_mask``. Rows that end
    early are filled with the pad token. ``on_token`` is called with the tokens [batch] of every step. ``more`` are inputs of
    the model and settings by transformers' names: do_sample, temperature, top_k, top_p, min_p, repetition_penalty,
    no_repeat_ngram_size, min_new_tokens, max_length, num_beams, length_penalty, early_stopping, num_return_sequences,
    max_time, stop_strings, streamer, seed, sequence_bias, typical_p and further rules (docs/generation.md),
    prefix_allowed_tokens_fn, logits_processor, stopping_criteria, assistant (a folder that drafts tokens), use_mtp (the folder's
    own head drafts), num_assistant_tokens, adapter (the name of a LoRA adapter in the folder).

    Returns: prompt and new tokens [batch, length + new], of an encoder-decoder the decoder's tokens; a torch tensor
    where ``input_ids`` (or another input) is one; the new text where text is given.
    Raises: UserError E401 for inputs that do not fit, E001 for settings that contradict.
    """
    settings = settings_of(model.main.inputs, more)
    if on_token is not None and not callable(on_token):
        raise UserError("E001", f"on_token={on_token!r:.60} is not possible", next="on_token is a function of tokens")
    texts, is_list = prompts_of(input_ids) if is_text(input_ids) else ([], False)
    if texts:
        found = tokenizer_of(model).encoded(texts, on_left=model.encoder is None)
        input_ids, attention_mask = found["input_ids"], found["attention_mask"]
    wants_torch = any(hasattr(value, "detach") for value in (input_ids, *more.values()))
    given = {"input_ids": input_ids, "attention_mask": attention_mask, **more}
    arrays = {name: array_of(name, value) for name, value in given.items() if value is not None}
    arrays = rewritten(model.manifest.prompt_rewrite, arrays)
    length = prompt_length(model, arrays) if settings.max_length is not None or texts else 0
    stop = _stop(model, new_tokens(settings, max_new_tokens, length), eos_token_id, pad_token_id)
    handed = _as_torch if wants_torch else np.asarray
    run = _Run(model, settings, stop, handed, Chooser(settings, is_torch=wants_torch))
    result = run.tokens(_copied(model, arrays, settings.copies), on_token)
    if texts:
        answers = [tokenizer_of(model).text(row[length:]) for row in result]
        return answers if is_list or len(answers) > 1 else answers[0]
    return _as_torch(result) if wants_torch else result


def _as_torch(array: Array) -> Any:
    import torch

    return torch.from_numpy(array)


def tokenizer_of(model: OpenedFolder, without: str = "give token ids") -> FolderTokenizer:
    """The folder's tokenizer, which is opened once; ``without`` is the step to take where there is none."""
    found: FolderTokenizer | None = vars(model).get("_tokenizer")
    if found is None:
        found = vars(model)["_tokenizer"] = FolderTokenizer(model.folder, without)
    return found


def new_tokens(settings: GenerateSettings, new: int | None, length: int) -> int | None:
    """The largest number of new tokens. Raises UserError E001 if two settings give it, or the prompt is as long."""
    if settings.max_length is None:
        return new
    if new is not None:
        raise UserError("E001", "max_new_tokens and max_length are both given", next="leave out one of the two")
    if settings.max_length <= length:
        step = "max_new_tokens=N, which does not count the prompt"
        raise UserError("E001", f"max_length={settings.max_length} has no room after {length} tokens", next=step)
    return settings.max_length - length


def _copied(model: OpenedFolder, arrays: dict[str, Array], count: int) -> dict[str, Array]:
    """Inputs with ``count`` rows for each. Raises UserError E001 for models whose inputs have other rows."""
    if count == 1:
        return arrays
    if model.delays or model.graph("embed") is not None or model.manifest.media:
        why = "its images, sounds or codebooks have rows of their own"
        raise UserError(
            "E001",
            "this model generates one sequence for each prompt",
            why=why,
            next="leave out num_beams and num_return_sequences",
        )
    return {name: np.repeat(array, count, axis=0) for name, array in arrays.items()}


@dataclass
class _Run:
    """One call of ``generate``."""

    model: OpenedFolder
    settings: GenerateSettings
    stop: Stop
    handed: Callable[[Array], Any]
    choose: Chooser
    read: Array | None = None
    """The tokens [rows, length] of the prompt, of an encoder-decoder those of the encoder."""

    def tokens(self, arrays: dict[str, Array], on_token: Callable[[Array], Any] | None) -> Array:
        """Prompt and new tokens."""
        model, settings, streamer = self.model, self.settings, self.settings.streamer
        adapter = model.adapter(settings.adapter)
        self.read = arrays.get("input_ids")
        ids, mask, states, fixed = start_of(model, arrays, self.stop.max_new_tokens, adapter)
        fixed = {**fixed, **adapter}
        stream = model.main.form.input("stream")
        if stream:
            self.stop = _until_sound_ends(self.stop, ids, fixed[stream])
        if streamer is not None and len(ids) > 1:
            raise UserError(
                "E001", "a streamer takes one prompt", next="generate the prompts one by one, or give on_token"
            )
        if settings.beams > 1:
            return self._of_beams(ids, mask, states, fixed)
        rows, ids = shifted(model, ids, self.stop.max_new_tokens)
        tokens = [ids]
        if streamer is not None:
            streamer.put(self.handed(ids))
        steps = (
            self._drafted(ids, mask, states, fixed) if settings.drafts else self._steps(ids, mask, states, fixed, rows)
        )
        for step in steps:
            tokens.append(step[:, None])
            if on_token is not None:
                on_token(step)
            if streamer is not None:
                streamer.put(self.handed(step))
        if streamer is not None:
            streamer.end()
        result = np.concatenate(tokens, axis=1)
        return result if rows is None else rows.unshifted(result, self.stop.pad)

    def _rules(self, ids: Array, mask: Array) -> list[Rule]:
        padding = (mask != 0).argmax(1) if mask.shape == ids.shape else np.zeros(len(ids), np.int64)
        said, stop = self.model.generation_config, self.stop
        return RulesOf(
            self.settings, said, list(stop.eos), stop.max_new_tokens, self.handed, padding, self.read, self.model.folder
        ).in_order()

    def _ends(self) -> Callable[[Array, Array | None], Array]:
        """A mask of the rows that are complete, by stop strings and by the user's functions."""
        strings, criteria = self.settings.stop_strings, self.settings.stopping_criteria or ()
        last = None if self.settings.max_time is None else time.monotonic() + self.settings.max_time
        by_string = StopStrings(strings, tokenizer_of(self.model, "leave out the stop strings")) if strings else None

        def ends(tokens: Array, scores: Array | None) -> Array:
            found = np.zeros(len(tokens), bool) if by_string is None else by_string(tokens)
            found |= last is not None and time.monotonic() > last
            given = None if scores is None else self.handed(scores)
            for function in criteria:
                found |= rows_that_end(function(self.handed(tokens), given), len(found))
            return found

        return ends

    def _steps(
        self, ids: Array, mask: Array, states: dict[str, Any], fixed: Mapping[str, Any], rows: Shifted | None
    ) -> Iterator[Array]:
        """The next token of every row [batch], until all rows have ended."""
        model, stop, ends = self.model, self.stop, self._ends()
        open_rows = np.ones(len(ids), bool)
        rules = self._rules(ids, mask)
        rules += [rows.ends] if rows is not None and rows.ends is not None else []
        tokens = ids
        for step in range(stop.max_new_tokens):
            if rows is not None:
                ids = rows.applied(ids, tokens.shape[1] - ids.shape[1])
            logits, states = _advance(model, _taker(model, ids, step), ids, mask, states, fixed)
            fixed = {name: value for name, value in fixed.items() if name in model.main.inputs}
            scores = logits[:, -1].astype(np.float32)
            for rule in rules:
                rule(scores, tokens, step)
            chosen = np.where(open_rows, self.choose(scores), stop.pad).astype(np.int64)
            yield chosen
            tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
            open_rows &= ~np.isin(chosen, stop.eos)
            open_rows &= ~ends(tokens, scores)
            if not open_rows.any():
                return
            mask = np.concatenate([mask, np.ones_like(mask[:, :1])], axis=1)
            ids = tokens if model.main.form.tokens == "all" else chosen[:, None]

    def _drafted(self, ids: Array, mask: Array, states: dict[str, Any], fixed: Mapping[str, Any]) -> Iterator[Array]:
        """``_steps`` for one row, with tokens that the assistant drafts."""
        model, stop, settings = self.model, self.stop, self.settings
        ends, rules = self._ends(), self._rules(ids, mask)
        assistant = None if settings.use_mtp else drafter_of(model, settings.assistant)
        if len(ids) > 1:
            raise UserError("E001", "an assistant drafts for one prompt", next="generate the prompts one by one")

        def score(logits: Array, tokens: Array) -> Array:
            scores = logits.copy()
            for rule in rules:
                rule(scores, tokens, tokens.shape[1] - ids.shape[1])
            return scores

        def advance(folder: OpenedFolder, new: Array, seen: int, *more: Any) -> tuple[Array, dict[str, Any]]:
            return _advance(folder, _taker(folder, new, seen), new, *more)

        target = CachedTokens(model, advance, mask, CutCache(model.main, states), fixed, ids[:, :0])
        if assistant is None:
            drafter: CachedTokens | HeadDrafter = HeadDrafter.of(target)
        else:
            start = start_of(assistant, {"input_ids": ids, "attention_mask": mask}, stop.max_new_tokens, {})
            cache = CutCache(assistant.main, start[2])
            drafter = CachedTokens(assistant, advance, mask, cache, start[3], ids[:, :0])
        tokens, most = ids, ids.shape[1] + stop.max_new_tokens
        count = settings.num_assistant_tokens or DRAFTED
        for chosen, scores in following(target, drafter, ids, score, self.choose, count, most):
            yield chosen
            tokens = np.concatenate([tokens, chosen[:, None]], axis=1)
            if tokens.shape[1] == most or np.isin(chosen, stop.eos).all() or ends(tokens, scores).all():
                return

    def _of_beams(self, ids: Array, mask: Array, states: dict[str, Any], fixed: Mapping[str, Any]) -> Array:
        """The best sequences of several for each prompt."""
        model, settings, stop, said = self.model, self.settings, self.stop, self.model.generation_config
        penalty = said.get("length_penalty") if settings.length_penalty is None else settings.length_penalty
        early = said.get("early_stopping") if settings.early_stopping is None else settings.early_stopping
        search = BeamSearch(
            settings.beams, settings.num_return_sequences, stop.max_new_tokens, stop.eos, stop.pad,
            1.0 if penalty is None else penalty, bool(early) if early != "never" else early,
        )  # fmt: skip
        kept: dict[str, Any] = {"states": states, "fixed": fixed, "mask": mask}

        def advance(tokens: Array, origin: Array) -> Array:
            step = tokens.shape[1] - ids.shape[1]
            if step:
                kept["states"] = model.main.rows(kept["states"], origin)
                kept["mask"] = np.concatenate([kept["mask"], np.ones_like(mask[:, :1])], axis=1)
            given = tokens if not step or model.main.form.tokens == "all" else tokens[:, -1:]
            logits, kept["states"] = _advance(
                model, _taker(model, given, step), given, kept["mask"], kept["states"], kept["fixed"]
            )
            kept["fixed"] = {name: value for name, value in kept["fixed"].items() if name in model.main.inputs}
            return logits[:, -1].astype(np.float32)

        ends = self._ends()
        return search.run(ids, advance, self._rules(ids, mask), lambda tokens: ends(tokens, None), self.choose)


def _taker(model: OpenedFolder, ids: Array, step: int) -> Graph:
    """The graph for a step; that of prompts, where there is one, for the first."""
    prompt = model.graph("prompt") if model.main.form.tokens_per_call != ids.shape[1] else None
    return prompt if step == 0 and prompt is not None else model.main


def _stop(model: OpenedFolder, new: int | None, eos: Any, pad: int | None) -> Stop:
    rewrite, said = model.manifest.prompt_rewrite or PromptRewrite(), model.generation_config or model.config
    eos = next((end for end in (eos, rewrite.eos_token_id, said.get("eos_token_id")) if end is not None), None)
    ends = () if eos is None else token_ids("eos_token_id", eos)
    pad = next(token for token in (pad, rewrite.pad_token_id, said.get("pad_token_id"), *ends, 0) if token is not None)
    new = (said.get("max_new_tokens") or _LENGTH) if new is None else new
    if not isinstance(new, Integral) or new < 1:
        raise UserError("E001", f"max_new_tokens must be an integer of at least 1, not {new!r}")
    return Stop(int(new), ends, token_ids("pad_token_id", pad)[0])


def _until_sound_ends(stop: Stop, ids: Array, stream: Array) -> Stop:
    """``stop``, where there is sound for fewer tokens. Raises UserError E401 where the prompt leaves none."""
    room = stream.shape[1] - ids.shape[1]
    if room < 1:
        raise UserError(
            "E401",
            f"the sound ends with the prompt of {ids.shape[1]} tokens",
            why=f"it lasts for {stream.shape[1]} tokens, given and generated",
            next="give longer sound or a shorter prompt",
        )
    return replace(stop, max_new_tokens=min(stop.max_new_tokens, room))


def _advance(
    model: OpenedFolder, graph: Graph, ids: Array, mask: Array, states: dict[str, Any], fixed: Mapping[str, Any]
) -> tuple[Array, dict[str, Any]]:
    """Logits after ``ids``, and the states that follow. A graph of one token a call is called once a token."""
    length = ids.shape[1]
    form, stream = graph.form, graph.form.input("stream")
    made, places = _embedded(model, ids, mask, states, fixed)
    width = form.tokens_per_call or length
    for first in range(0, length, width):
        seen = mask[:, : mask.shape[1] - length + first + width]
        part = slice(seen.shape[1] - width, seen.shape[1])
        by_role = {
            "tokens": ids[:, first : first + width],
            "mask": seen[:, part] if form.mask == "new" else seen,
            "length": np.asarray(seen.shape[1] - width),
            "pages": graph.table(states, len(ids)),
        }
        if form.positions != "none":
            by_role["positions"] = positions(seen)[:, part] if places is None else places[..., first : first + width]
        if stream:
            by_role["stream"] = fixed[stream][:, part]
        by_name = {**states, **fixed, **{name: value[:, first : first + width] for name, value in made.items()}}
        by_name |= {
            p.name: _of_tokens(fixed[p.name], first, width, length)
            for p in form.inputs
            if p.role == "token_mask" and p.name in fixed
        }
        outputs = graph.run(graph.feeds(by_role, by_name))
        states = states | graph.following(outputs, model.main)
        if HIDDEN in outputs:
            states[HIDDEN] = outputs[HIDDEN]
    if places is not None:
        states[_LAST_POSITION] = places.max(axis=(0, 2))
    return as_array(outputs[form.output("logits")]), states


def _of_tokens(value: Any, first: int, width: int, length: int) -> Any:
    """The rows of an input with one for each token that belong to this call; later tokens go on with the last."""
    return value[:, first : first + width] if value.shape[1] == length else value[:, -1:]


def _embedded(
    model: OpenedFolder, ids: Array, mask: Array, states: Mapping[str, Any], fixed: Mapping[str, Any]
) -> tuple[dict[str, Array], Array | None]:
    """``ids`` embedded, with the features of ``fixed`` in their places, and what else there is for every token; no
    features after the prompt. And, where images have rows and columns, the tokens' positions [axes, batch, length].
    Nothing where the language model takes the tokens themselves.
    """
    graph = model.graph("embed")
    if graph is None:
        return {}, None
    images = [graph.inputs[port.name] for port in beside_text(graph)]
    none = {arg.name: np.zeros((0, *arg.shape[1:]), dtype_of(arg.type)) for arg in images}
    feeds = graph.feeds({"tokens": ids, "mask": mask[:, mask.shape[1] - ids.shape[1] :]}, {**none, **fixed})
    outputs = {name: as_array(value) for name, value in graph.run(feeds).items()}
    places = outputs.pop(graph.form.output("positions"), None)
    if places is not None and _LAST_POSITION in states:
        following = states[_LAST_POSITION][:, None] + 1 + np.arange(ids.shape[1])
        places = np.repeat(following[None], len(places), axis=0)
    return outputs, places
