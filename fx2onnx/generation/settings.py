"""Settings of ``generate`` by transformers' names: what they may be, and the scores that they change.

Source: transformers 5.23, ``generation/logits_process.py``; the order of the rules is that of ``_get_logits_processor``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.options import INPUTS, SAMPLING, option
from fx2onnx.judge.engines import Array

Rule: TypeAlias = Callable[[Array, Array, int], None]
"""Changes scores [rows, vocabulary] in place, of the tokens [rows, length] before and the number of the step."""


@dataclass(frozen=True)
class GenerateSettings:
    """Settings that are given; None where generation_config.json decides, else transformers' default."""

    do_sample: bool = option(False, "Draw each token by its probability.", panel=SAMPLING)
    temperature: float | None = option(None, "Divide the scores by it before tokens are drawn.", panel=SAMPLING)
    top_k: int | None = option(None, "Draw from the K likeliest tokens (default: 50; 0: all).", panel=SAMPLING)
    top_p: float | None = option(None, "Draw from the likeliest tokens that make up this share.", panel=SAMPLING)
    min_p: float | None = option(None, "Draw from tokens of at least this share of the likeliest.", panel=SAMPLING)
    repetition_penalty: float | None = option(None, "Make tokens that are there less likely, above 1.", panel=SAMPLING)
    no_repeat_ngram_size: int | None = option(None, "Repeat no sequence of N tokens.", panel=SAMPLING)
    min_new_tokens: int | None = option(None, "Generate at least N tokens.", panel=SAMPLING)
    num_beams: int | None = option(None, "Follow N sequences, and give the most likely.", panel=SAMPLING)
    length_penalty: float | None = option(None, "Beams: above 0 for longer sequences.", panel=SAMPLING)
    early_stopping: bool | str | None = None
    num_return_sequences: int = option(1, "Sequences for each prompt.", panel=SAMPLING)
    max_length: int | None = option(None, "Tokens at most, with those of the prompt.", panel=SAMPLING)
    stop_strings: Sequence[str] = option(
        (), "End where the text has this string, repeatable.", "--stop", panel=SAMPLING, kind=list[str]
    )
    assistant: Any = option(None, "Folder of a smaller model that drafts tokens.", panel=SAMPLING, kind=str)
    use_mtp: bool = option(False, "Draft tokens with the folder's own head.", panel=SAMPLING)
    num_assistant_tokens: int | None = option(None, "Tokens to draft before they are checked (5).", panel=SAMPLING)
    adapter: str | None = option(None, "Name of a LoRA adapter in the folder.", panel=SAMPLING)
    streamer: Any = None
    seed: int | None = option(None, "Seed of random numbers.", panel=INPUTS)
    prefix_allowed_tokens_fn: Callable[[int, Any], Sequence[int]] | None = None
    logits_processor: Sequence[Callable[[Any, Any], Any]] = ()
    stopping_criteria: Sequence[Callable[[Any, Any], Any]] = ()

    @property
    def drafts(self) -> bool:
        return self.use_mtp or self.assistant is not None

    @property
    def beams(self) -> int:
        return self.num_beams or 1

    @property
    def copies(self) -> int:
        """Rows for each row that is given."""
        return self.beams if self.beams > 1 else self.num_return_sequences


NAMES = frozenset(each.name for each in fields(GenerateSettings))
_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_SPELT = (*sorted(NAMES), "max_new_tokens", "eos_token_id", "pad_token_id", "on_token")
_BEAMS = ("length_penalty", "early_stopping")
_TAKEN: dict[str, tuple[Any, ...]] = {"use_cache": (True, None), "typical_p": (1.0, None), "penalty_alpha": (None,)}
"""The values of further settings of transformers that change nothing."""
_OTHERS = (
    "generation_config", "num_beam_groups", "diversity_penalty", "bad_words_ids", "force_words_ids", "constraints",
    "assistant_model", "prompt_lookup_num_tokens", "guidance_scale", "epsilon_cutoff", "eta_cutoff", "top_h", "sequence_bias",
    "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty", "renormalize_logits",
    "return_dict_in_generate", "output_scores", "output_logits", "output_attentions", "output_hidden_states", "max_time",
    "dola_layers", "watermarking_config", "cache_implementation", "synced_gpus", "custom_generate", "tokenizer", "min_length",
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id", "bos_token_id", "token_healing",
    "decoder_start_token_id", "remove_invalid_values", "prefill_chunk_size", "assistant_confidence_threshold", "cache_config",
    "num_assistant_tokens_schedule", "max_matching_ngram_size", "compile_config", "disable_compile", "low_memory",
)  # fmt: skip


def _are_functions(value: Any) -> bool:
    return isinstance(value, Sequence) and all(map(callable, value))


def _are_texts(value: Any) -> bool:
    texts = [value] if isinstance(value, str) else value
    return isinstance(texts, Sequence) and all(isinstance(text, str) and text for text in texts)


def whole_numbers(value: Any) -> Array:
    """The integers in a list, an array or a tensor. Raises TypeError where it holds something else."""
    found = np.asarray(value if hasattr(value, "__array__") else list(value))
    if found.size and (found.dtype.kind not in "iu" or found.ndim != 1):
        raise TypeError(f"no list of integers: {value!r:.60}")
    return found.astype(np.int64)


RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda number: number > 0, "above 0; do_sample=False takes the likeliest token"),
    "top_k": (lambda number: number == int(number) and number >= 0, "a whole number; 0 for all tokens"),
    "top_p": (lambda number: 0 < number <= 1, "above 0 and at most 1"),
    "min_p": (lambda number: 0 <= number <= 1, "from 0 to 1"),
    "repetition_penalty": (lambda number: 0 < number < np.inf, "above 0; 1 changes nothing"),
    "no_repeat_ngram_size": (lambda number: number == int(number) and number >= 0, "a whole number; 0 changes nothing"),
    "min_new_tokens": (lambda number: number == int(number) and number >= 0, "a whole number"),
    "num_beams": (lambda number: number == int(number) and number >= 1, "a whole number from 1 on"),
    "num_return_sequences": (lambda number: number == int(number) and number >= 1, "a whole number from 1 on"),
    "max_length": (lambda number: number == int(number) and number >= 1, "a whole number from 1 on"),
    "num_assistant_tokens": (lambda number: number == int(number) and number >= 1, "a whole number from 1 on"),
    "length_penalty": (lambda number: abs(number) < np.inf, "a number"),
    "seed": (
        lambda number: number == int(number) and 0 <= number < 2**63 and not isinstance(number, float),
        "a whole number from 0 on",
    ),
    "do_sample": (lambda value: value in (True, False), "True or False"),
    "use_mtp": (lambda value: value in (True, False), "True or False"),
    "assistant": (
        lambda value: isinstance(value, str | PathLike) or hasattr(value, "graphs"),
        "a folder that export_folder wrote",
    ),
    "stop_strings": (_are_texts, "a text or a list of texts, none of them empty"),
    "prefix_allowed_tokens_fn": (callable, "a function of a row's number and its tokens"),
    "streamer": (lambda value: callable(value.put) and callable(value.end), "an object with put(tokens) and end()"),
    "logits_processor": (_are_functions, "a list of functions: logits_processor=[f]"),
    "stopping_criteria": (_are_functions, "a list of functions: stopping_criteria=[f]"),
    "early_stopping": (lambda value: value in (True, False, "never"), "True, False or 'never'"),
}


def settings_of(inputs: Collection[str], given: dict[str, Any]) -> GenerateSettings:
    """The settings among ``given``, which are taken out of it; a name in ``inputs`` is the model's own.

    Raises:   UserError E001 for a value out of range and for settings that contradict, E401 for others of transformers.
    """
    for name in [name for name in given if name not in inputs and (name in _TAKEN or name in _OTHERS)]:
        value = given.pop(name)
        if value is not None and value not in _TAKEN.get(name, (False,)):
            raise UserError(
                "E401", f"generate has no setting {name}={value!r:.60}", next=f"it has {', '.join(sorted(_SPELT))}"
            )
    for name in given:
        close = [] if name in NAMES or name in inputs else difflib.get_close_matches(name, _SPELT, n=1, cutoff=0.8)
        if close:
            raise UserError("E401", f"generate has no setting {name!r}", next=f"did you mean {close[0]}?")
    found = {name: given.pop(name) for name in [name for name in given if name in NAMES and name not in inputs]}
    found = {name: value for name, value in found.items() if value is not None}
    for name, (may_be, words) in RANGES.items():
        try:
            is_right = name not in found or bool(may_be(found[name]))
        except (AttributeError, TypeError, ValueError):
            is_right = False
        if not is_right:
            raise UserError("E001", f"{name}={found[name]!r:.60} is not possible", next=f"{name} is {words}")
    if isinstance(found.get("stop_strings"), str):
        found["stop_strings"] = (found["stop_strings"],)
    settings = GenerateSettings(**found)
    _check_together(settings, found)
    return settings


def _check_together(settings: GenerateSettings, found: Mapping[str, Any]) -> None:
    """Raises UserError E001 for settings that contradict."""
    neutral = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    asked = [name for name in _SAMPLING if name in found and found[name] != neutral[name]]
    count, beams = settings.num_return_sequences, settings.beams
    wrong = next(
        (
            (what, step)
            for holds, what, step in (
                (
                    asked and not settings.do_sample,
                    f"{', '.join(asked)} without sampling",
                    "do_sample=True (--do-sample)",
                ),
                (settings.do_sample and beams > 1, "do_sample with num_beams", "leave out one of the two"),
                (
                    settings.seed is not None and not settings.do_sample,
                    "a seed without sampling",
                    "do_sample=True, or leave out seed",
                ),
                (
                    beams == 1 and any(name in found for name in _BEAMS),
                    "length_penalty or early_stopping without beams",
                    "num_beams=4",
                ),
                (
                    beams > 1 and count > beams,
                    f"num_return_sequences={count} with num_beams={beams}",
                    f"num_beams={count} or more",
                ),
                (
                    beams == 1 and count > 1 and not settings.do_sample,
                    f"num_return_sequences={count} of the likeliest tokens",
                    "do_sample=True or num_beams",
                ),
                (
                    settings.drafts and settings.copies > 1,
                    "drafted tokens of several sequences",
                    "leave out num_beams and num_return_sequences, or the assistant",
                ),
                (settings.use_mtp and settings.assistant is not None, "use_mtp with an assistant", "leave out one"),
                (
                    not settings.drafts and settings.num_assistant_tokens is not None,
                    "num_assistant_tokens without an assistant",
                    "assistant=FOLDER, or use_mtp=True",
                ),
                (
                    settings.streamer is not None and settings.copies > 1,
                    "a streamer for several sequences",
                    "give one prompt, without num_beams and num_return_sequences",
                ),
            )
            if holds
        ),
        None,
    )
    if wrong:
        raise UserError("E001", f"generate cannot do {wrong[0]}", next=wrong[1])


def rules_of(
    settings: GenerateSettings,
    said: Mapping[str, Any],
    eos: Sequence[int],
    handed: Callable[[Array], Any],
    padding: Array,
) -> list[Rule]:
    """Rules of the settings that stand before those of generation_config.json about single tokens.

    ``handed`` makes of an array what a function of the user gets. Each row begins with that much ``padding``.
    """
    rules: list[Rule] = []
    penalty = _chosen(settings.repetition_penalty, said, "repetition_penalty", 1.0)
    size = int(_chosen(settings.no_repeat_ngram_size, said, "no_repeat_ngram_size", 0))
    allowed = settings.prefix_allowed_tokens_fn

    def penalise(scores: Array, tokens: Array, _: int) -> None:
        for row, seen, first in zip(scores, tokens, padding, strict=True):
            seen = np.unique(seen[first:])
            row[seen] = np.where(row[seen] < 0, row[seen] * penalty, row[seen] / penalty)

    def forbid_repeats(scores: Array, tokens: Array, _: int) -> None:
        for row, seen in zip(scores, tokens, strict=True):
            if len(seen) + 1 < size:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(seen, size) if len(seen) >= size else np.empty((0, size))
            last = seen[len(seen) - size + 1 :]
            row[windows[(windows[:, :-1] == last).all(1), -1].astype(np.int64)] = -np.inf

    def allow(scores: Array, tokens: Array, _: int) -> None:
        assert allowed is not None
        for index, (row, seen) in enumerate(zip(scores, tokens, strict=True)):
            returned = allowed(index // settings.copies, handed(seen))
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

    if penalty != 1.0:
        rules.append(penalise)
    if size:
        rules.append(forbid_repeats)
    rules += _forbidding(settings, said, eos)
    if allowed is not None:
        rules.append(allow)
    return rules


def _forbidding(settings: GenerateSettings, said: Mapping[str, Any], eos: Sequence[int]) -> list[Rule]:
    """Rules against words, and against an end before there are enough tokens."""
    least = _chosen(settings.min_new_tokens, said, "min_new_tokens", None)
    shortest = int(said.get("min_length") or 0) if least is None else 0
    words = [word for word in said.get("bad_words_ids") or () if word not in [[end] for end in eos]]

    def forbid_words(scores: Array, tokens: Array, _: int) -> None:
        for *before, last in words:
            start = tokens.shape[1] - len(before)
            if start >= 0 and last < scores.shape[1]:
                scores[(tokens[:, start:] == np.array(before, np.int64)).all(1), last] = -np.inf

    def wait(scores: Array, tokens: Array, step: int) -> None:
        if step < int(least or 0) or tokens.shape[1] < shortest:
            scores[:, list(eos)] = -np.inf

    return [*([forbid_words] if words else []), *([wait] if (least or shortest) and eos else [])]


def last_rules(settings: GenerateSettings, said: Mapping[str, Any], handed: Callable[[Array], Any]) -> list[Rule]:
    """The user's functions of scores, and what narrows down the tokens to sample from."""
    rules: list[Rule] = []
    for function in settings.logits_processor or ():

        def apply(scores: Array, tokens: Array, _: int, function: Callable[[Any, Any], Any] = function) -> None:
            returned = np.asarray(function(handed(tokens), handed(scores.copy())))
            if returned.shape != scores.shape or returned.dtype.kind not in "fiu":
                what = f"a function of logits_processor returned {returned.dtype}{list(returned.shape)}"
                raise UserError("E401", what, next=f"return scores as it gets them, {list(scores.shape)}")
            scores[:] = returned

        rules.append(apply)
    if settings.do_sample:
        temperature = float(_chosen(settings.temperature, said, "temperature", 1.0))
        top_k = int(_chosen(settings.top_k, said, "top_k", 50))
        top_p, min_p = (float(_chosen(getattr(settings, n), said, n, d)) for n, d in (("top_p", 1.0), ("min_p", 0.0)))
        rules.append(lambda scores, tokens, step: _narrow(scores, temperature, top_k, top_p, min_p))
    return rules


def _chosen(given: Any, said: Mapping[str, Any], name: str, usual: Any) -> Any:
    if given is not None:
        return given
    return said[name] if said.get(name) is not None else usual


def _narrow(scores: Array, temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    """Divide by the temperature, and leave out unlikely tokens."""
    scores /= np.float32(temperature)
    if 0 < top_k < scores.shape[1]:
        least = np.partition(scores, -top_k, axis=1)[:, -top_k, None]
        scores[scores < least] = -np.inf
    if top_p < 1:
        order = np.argsort(scores, axis=1, kind="stable")
        summed = np.cumsum(softmax(np.take_along_axis(scores, order, 1)), axis=1)
        leave = summed <= np.float32(1 - top_p)
        leave[:, -1] = False
        out = np.zeros_like(leave)
        np.put_along_axis(out, order, leave, 1)
        scores[out] = -np.inf
    if min_p > 0:
        chances = softmax(scores)
        scores[chances < np.float32(min_p) * chances.max(1, keepdims=True)] = -np.inf


def softmax(scores: Array) -> Array:
    """Probabilities along the last axis."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


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
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray((softmax(scores) / self._draw(scores.shape)).argmax(axis=-1))

    def uniform(self) -> float:
        """A number from 0 to 1, where tokens are drawn."""
        assert self._draw is not None
        return float(np.exp(-self._draw((1,))[0]))
