"""Settings of ``generate`` by transformers' names, and what they may be."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from fx2onnx.base.errors import UserError
from fx2onnx.base.options import INPUTS, SAMPLING, option
from fx2onnx.judge.engines import Array

_Check: TypeAlias = tuple[Callable[[Any], bool], str]
"""A test of a value, and words for those that pass."""


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
    max_time: float | None = None
    seed: int | None = option(None, "Seed of random numbers.", panel=INPUTS)
    prefix_allowed_tokens_fn: Callable[[int, Any], Sequence[int]] | None = None
    logits_processor: Sequence[Callable[[Any, Any], Any]] = ()
    stopping_criteria: Sequence[Callable[[Any, Any], Any]] = ()
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Settings of ``RULES`` that are given."""

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


NAMES = frozenset(each.name for each in fields(GenerateSettings)) - {"rules"}
NEUTRAL: dict[str, Any] = {
    "temperature": 1.0, "top_h": None, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
}  # fmt: skip
"""Settings of sampling, with the value that changes nothing."""
_BEAMS = ("length_penalty", "early_stopping")
_OTHERS = (
    "generation_config", "num_beam_groups", "diversity_penalty", "force_words_ids", "constraints", "penalty_alpha",
    "assistant_model", "prompt_lookup_num_tokens", "guidance_scale", "return_dict_in_generate", "output_scores",
    "output_logits", "output_attentions", "output_hidden_states", "dola_layers", "watermarking_config",
    "cache_implementation", "synced_gpus", "custom_generate", "tokenizer", "bos_token_id", "token_healing", "use_cache",
    "decoder_start_token_id", "prefill_chunk_size", "assistant_confidence_threshold", "cache_config",
    "num_assistant_tokens_schedule", "max_matching_ngram_size", "compile_config", "disable_compile", "low_memory",
)  # fmt: skip
_NOTHING = {"use_cache": True, "guidance_scale": 1, "num_beam_groups": 1}
"""The values of these that change nothing; of the others False and 0."""


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
    "max_time": (lambda number: number > 0, "a number of seconds"),
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


def _is_token(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**31


def _are_tokens(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_token, value))


def _is_word(value: Any) -> bool:
    return isinstance(value, list | tuple) and _are_tokens(list(value)) and min(value, default=-1) >= 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < np.inf


def _are_biases(value: Any) -> bool:
    pairs = list(value.items() if isinstance(value, Mapping) else value)
    return all(len(pair) == 2 and _is_word(pair[0]) and _is_number(pair[1]) for pair in pairs)


TOKEN: _Check = (_is_token, "a token")
ONE_OR_MORE: _Check = (lambda value: _is_token(value) or _are_tokens(value), "a token or a list of tokens")
_TOKENS: _Check = (_are_tokens, "a list of tokens")
_FACTOR: _Check = (lambda value: _is_number(value) and value > 0, "a positive number")
_COUNT: _Check = (lambda value: _is_token(value) and value >= 0, "a number of tokens")
_BOOL: _Check = (lambda value: type(value) is bool, "True or False")
_SHARE: _Check = (lambda value: _is_number(value) and 0 < value <= 1, "a number above 0 and at most 1")
_CHANCE: _Check = (lambda value: _is_number(value) and 0 <= value < 1, "a number from 0 on, below 1")
RULES: dict[str, _Check] = {
    "sequence_bias": (_are_biases, "a list of a list of tokens and a number each: [[[5, 6], 2.0]]"),
    "encoder_repetition_penalty": _FACTOR,
    "encoder_no_repeat_ngram_size": _COUNT,
    "bad_words_ids": (lambda value: isinstance(value, list) and all(map(_is_word, value)), "a list of lists of tokens"),
    "min_length": _COUNT,
    "forced_bos_token_id": ONE_OR_MORE,
    "forced_eos_token_id": ONE_OR_MORE,
    "remove_invalid_values": _BOOL,
    "exponential_decay_length_penalty": (
        lambda value: len(value) == 2 and all(map(_is_number, value)) and value[1] > 0,
        "the number of tokens where it begins, and a factor: (20, 1.1)",
    ),
    "suppress_tokens": _TOKENS,
    "begin_suppress_tokens": _TOKENS,
    "top_h": _SHARE,
    "typical_p": _SHARE,
    "epsilon_cutoff": _CHANCE,
    "eta_cutoff": _CHANCE,
    "renormalize_logits": _BOOL,
}
"""Rules of generation_config.json for scores that a call may give, too, and the values of each."""
_SPELT = (*sorted({*NAMES, *RULES}), "max_new_tokens", "eos_token_id", "pad_token_id", "on_token")


def may_be(value: Any, check: Callable[[Any], bool]) -> bool:
    """Return whether a value is possible; one that ``check`` cannot read is not."""
    try:
        return bool(check(value))
    except (AttributeError, TypeError, ValueError):
        return False


def settings_of(inputs: Collection[str], given: dict[str, Any]) -> GenerateSettings:
    """The settings among ``given``, which are taken out of it; a name in ``inputs`` is the model's own.

    Raises:   UserError E001 for a value out of range and for settings that contradict, E401 for others of transformers.
    """
    for name in [name for name in given if name not in inputs and name in _OTHERS]:
        value = given.pop(name)
        if value is not None and value != _NOTHING.get(name, False):
            raise UserError(
                "E401", f"generate has no setting {name}={value!r:.60}", next=f"it has {', '.join(sorted(_SPELT))}"
            )
    for name in given:
        if name in NAMES or name in RULES or name in inputs:
            continue
        longer = [each for each in _SPELT if each.startswith(f"{name}_")]
        if close := difflib.get_close_matches(name, _SPELT, n=1, cutoff=0.8) or longer:
            raise UserError("E401", f"generate has no setting {name!r}", next=f"did you mean {close[0]}?")
    known = {**RANGES, **RULES}
    found = {name: given.pop(name) for name in [name for name in given if name in (NAMES | RULES.keys()) - {*inputs}]}
    found = {name: value for name, value in found.items() if value is not None}
    for name, (check, words) in known.items():
        if name in found and not may_be(found[name], check):
            raise UserError("E001", f"{name}={found[name]!r:.60} is not possible", next=f"{name} is {words}")
    if isinstance(found.get("stop_strings"), str):
        found["stop_strings"] = (found["stop_strings"],)
    rules = {name: found.pop(name) for name in RULES if name in found}
    settings = GenerateSettings(**found, rules=rules)
    _check_together(settings, found | rules)
    return settings


def _check_together(settings: GenerateSettings, found: Mapping[str, Any]) -> None:
    """Raises UserError E001 for settings that contradict."""
    asked = [name for name, neutral in NEUTRAL.items() if name in found and found[name] != neutral]
    count, beams = settings.num_return_sequences, settings.beams
    wrong = next(
        (
            (what, step)
            for holds, what, step in (
                (
                    asked and not settings.do_sample,
                    f"{', '.join(asked)} without sampling",
                    "pass do_sample=True (--do-sample)",
                ),
                (
                    settings.seed is not None and not settings.do_sample,
                    "a seed without sampling",
                    "pass do_sample=True, or leave out seed",
                ),
                (
                    beams == 1 and any(name in found for name in _BEAMS),
                    "length_penalty or early_stopping without beams",
                    "pass num_beams=4",
                ),
                (
                    beams > 1 and count > beams,
                    f"num_return_sequences={count} with num_beams={beams}",
                    f"pass num_beams={count} or more",
                ),
                (
                    beams == 1 and count > 1 and not settings.do_sample,
                    f"num_return_sequences={count} of the likeliest tokens",
                    "pass do_sample=True or num_beams",
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
                    "pass assistant=FOLDER, or use_mtp=True",
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
