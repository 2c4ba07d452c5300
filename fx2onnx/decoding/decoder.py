"""Models that generate text, as modules whose caches are plain tensors: one graph for the prompt and every later step.

``cached_decoder`` gives a ``Source`` with inputs ``input_ids``, ``attention_mask``, ``position_ids`` (where forward
takes them) and ``past_key_values.{i}.key`` and the like, and outputs ``logits`` and ``present.{i}.key``. At the prompt
the past has length 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.cells import DTYPES, FIELDS, Cells, with_cells
from fx2onnx.decoding.cache.layout import (
    CacheLayout,
    CacheTensor,
    TrialSizes,
    tokens_for_every_state,
    unmistakable_sizes,
)
from fx2onnx.decoding.cache.module_state import (
    CACHE_ARGUMENTS,
    OWN_SIZES,
    cache_argument,
    generated_argument,
    is_holding,
    may_hold,
    state_behind,
    step,
    untouched,
)
from fx2onnx.decoding.probes import before_the_prompt
from fx2onnx.decoding.recipes.modality import DEEP, KINDS, behind_layers
from fx2onnx.manifest.names import BATCH, EMBEDDED, HIDDEN, PAST, PAST_SIZE, PRESENT, SEQUENCE, TOTAL
from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.hf.transformers_types import Inputs, Model, Shapes
from fx2onnx.sources.light_run import Result, run_lightly
from fx2onnx.sources.source import AxisName, Options, Source

HiddenOf: TypeAlias = Callable[..., torch.Tensor]
_PAST_SAMPLE = 6
_PROMPT_SAMPLE = 7
"""More than convolutions are wide, no multiple of a block."""


class CachedDecoder(torch.nn.Module):
    """``model`` with its cache as flat tensors: ``forward(input_ids=..., **{"past_key_values.0.key": ...})``.

    The states ``given`` come from an encoder and stay as they are.
    """

    def __init__(
        self,
        model: Model,
        cache_argument: str,
        layout: CacheLayout,
        *,
        one_token: bool = False,
        given: Collection[str] = (),
        cells: Cells | None = None,
        hidden_of: HiddenOf | None = None,
    ) -> None:
        super().__init__()
        self._given = given
        self._cells, self._hidden_of = cells, hidden_of
        self.model = model
        self.takes_one_token = one_token
        self._cache_argument = cache_argument
        self._layout = layout
        self._whole = [name for name, state in layout.states.items() if state.is_row_of_numbers]
        self._behind_padding: dict[str, torch.Tensor] = {}
        if self._whole and not any(weight.is_meta for weight in model.parameters()):  # else the graph computes them
            with torch.no_grad(), untouched(model):
                self._behind_padding = self._behind(torch.zeros(1, 2, dtype=torch.int64))

    @property
    def is_recurrent(self) -> bool:
        """True if a layer keeps one state of all tokens: models make that of many tokens in chunks, which are slow for one."""
        return any(state.is_of_all_tokens for state in self._layout.states.values())

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        states = {name.removeprefix(PAST): value for name, value in inputs.items() if name.startswith(PAST)}
        plain = {name: value for name, value in inputs.items() if not name.startswith(PAST)}
        cache = self._cache(plain, states)
        with behind_layers(self.model, plain.pop(DEEP, None)):
            result, behind = self._run(self.arguments(plain, states), cache)
        following = {name: value for name, value in self._layout.taken_from(behind).items() if name not in self._given}
        if self.takes_one_token and not is_holding(cache) and "attention_mask" in plain:
            seen = plain["attention_mask"][:, -1] != 0
            following = {name: self._kept(name, seen, states[name], value) for name, value in following.items()}
        return outputs_of(result, following, self._hidden_of)

    def _cache(self, plain: Mapping[str, torch.Tensor], states: dict[str, torch.Tensor]) -> object:
        """The cache before the tokens."""
        cache = self._layout.rebuilt(self._begun(plain, states), self._past(plain, states))
        return before_the_prompt(cache) if KINDS in plain else cache

    def _run(self, arguments: Mapping[str, object], cache: object) -> tuple[Mapping[str, torch.Tensor], object]:
        """The outputs of the model, and its cache behind them."""
        if is_holding(cache):
            return step(self.model, arguments, cache)
        result = self.model(**arguments, **{self._cache_argument: cache}, use_cache=True)
        return result, result[self._cache_argument]

    def arguments(self, plain: Mapping[str, torch.Tensor], _: Mapping[str, torch.Tensor]) -> dict[str, object]:
        """The model's arguments beside the cache."""
        return {**plain, **asking_for(self._hidden_of)}

    def _kept(self, name: str, seen: torch.Tensor, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """The new state where the row's token is none of padding; models leave a single token's padding unmasked."""
        axes = self._layout.states[name].axes
        if list(axes.values()) != [BATCH]:
            return new
        shape = [1] * new.dim()
        shape[next(iter(axes))] = -1
        return torch.where(seen.reshape(shape), new, old)

    def _begun(self, plain: Mapping[str, torch.Tensor], states: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """``states``; of rows without a token so far, whole numbers (the last tokens) are as the model itself begins with
        them, which is how it leaves them behind padding alone.
        """
        if not self._whole or not {"input_ids", "attention_mask"} <= set(plain):
            return states
        ids, mask = plain["input_ids"], plain["attention_mask"]
        known = self._behind_padding or self._behind(ids[:, :1].repeat(1, 2) * 0)
        is_empty = mask[:, : mask.shape[1] - ids.shape[1]].sum(dim=1, keepdim=True) == 0
        return states | {name: torch.where(is_empty, first, states[name]) for name, first in known.items()}

    def _behind(self, padding: torch.Tensor) -> dict[str, torch.Tensor]:
        """The states of whole numbers that the model leaves behind ``padding`` [batch, length]."""
        known = inspect.signature(self.model.forward).parameters
        alike = {name: padding for name in ("input_ids", "attention_mask", "position_ids") if name in known}
        states = self._layout.taken_from(self.model(**alike, use_cache=True)[self._cache_argument])
        return {name: states[name] for name in self._whole}

    def _past(self, plain: Mapping[str, torch.Tensor], states: Mapping[str, torch.Tensor]) -> int:
        for name, state in self._layout.states.items():
            for axis, word in state.axes.items():
                if word == PAST_SIZE:
                    return states[name].shape[axis]
        mask = plain.get("attention_mask")
        return (
            0
            if mask is None
            else mask.shape[1] - (plain["input_ids"] if "input_ids" in plain else plain[EMBEDDED]).shape[1]
        )


def asking_for(hidden_of: HiddenOf | None) -> dict[str, bool]:
    """The argument of a model whose hidden states are read."""
    return {"output_hidden_states": True} if hidden_of else {}


def outputs_of(
    result: Mapping[str, torch.Tensor], following: Mapping[str, torch.Tensor], hidden_of: HiddenOf | None
) -> dict[str, torch.Tensor]:
    """The outputs of a decoder: the logits of ``result``, what ``hidden_of`` gives of its hidden states, and the cache that follows."""
    hidden = {HIDDEN: hidden_of(result[HIDDEN])} if hidden_of else {}
    return {"logits": result["logits"]} | hidden | {PRESENT + name: value for name, value in following.items()}


class WholePrompt(CachedDecoder):
    """``model`` at its prompt, which it takes without a cache and gives one."""

    def _cache(self, plain: Mapping[str, torch.Tensor], states: dict[str, torch.Tensor]) -> object:
        return None

    def _run(self, arguments: Mapping[str, object], cache: object) -> tuple[Mapping[str, torch.Tensor], object]:
        if self._layout.is_of_modules:
            return state_behind(self.model, arguments)
        name = self._cache_argument
        result = self.model(**arguments, use_cache=True, return_dict=True)
        if result.get(name) is None:
            result = _with_cache(self.model, **arguments)
        return result, with_cells(self.model, result[name], self._cells) if self._cells else result[name]


def cached_decoder(
    model: Model,
    name: str,
    options: Options,
    *,
    one_token: bool = False,
    whole_prompt: bool = False,
    width: int | None = None,
    axes: int = 0,
    beside: Mapping[str, tuple[int, ...]] | None = None,
    past: int = _PAST_SAMPLE,
    rows: int = 1,
    cells: Cells | None = None,
    hidden_of: HiddenOf | None = None,
) -> Source:
    """``model`` as one graph with its cache in and out.

    With ``one_token``, a graph that takes one token a call; with ``whole_prompt``, one that takes the first tokens and no
    cache; with ``width``, one that takes embedded tokens of so many
    numbers; with ``axes``, one that takes so many numbers as the position of each token (a time, a row and a column); with
    ``beside``, one that takes more for each token, of the sizes that it says by name. ``past`` is the example's number of past
    tokens; ``rows``, how many rows of ids there are for each sample, one for each codebook. ``cells``: in which keys and values are kept. ``hidden_of``: what it
    gives of the hidden states of all layers is an output, too.

    Raises:   UserError E601 where the model keeps nothing between calls.
    """
    beside = beside or {}
    cache_argument, layout = _layout_of(model, unmistakable_sizes(model.config), width, beside, rows, cells)
    if not layout.states:
        raise no_cache(model)
    batch, new = options.batch_or(), 1 if one_token else options.seq_or(_PROMPT_SAMPLE if whole_prompt else 4)
    if whole_prompt:
        module: CachedDecoder = WholePrompt(model, cache_argument, layout, cells=cells, hidden_of=hidden_of).eval()
        kwargs, shapes = text_inputs(model, layout, batch, new, past=0)
        shapes = {key: {**words, 1: SEQUENCE} for key, words in shapes.items()}
    else:
        module = CachedDecoder(
            model, cache_argument, layout, one_token=one_token, cells=cells, hidden_of=hidden_of
        ).eval()
        kwargs, shapes = text_inputs(model, layout, batch, new, past)
    if width is not None:
        del kwargs["input_ids"]
        kwargs[EMBEDDED], shapes[EMBEDDED] = torch.randn(batch, new, width), shapes.pop("input_ids")
    if rows > 1:
        kwargs["input_ids"], shapes["input_ids"][0] = kwargs["input_ids"].repeat(rows, 1), Dim.symbol(BATCH) * rows
    for key, wide in beside.items():
        sample = torch.randn(batch, new, *wide) if wide else torch.zeros(batch, new, dtype=torch.int64)
        kwargs[key], shapes[key] = sample, {0: BATCH, 1: SEQUENCE}
    if axes and "position_ids" in kwargs:
        kwargs["position_ids"] = kwargs["position_ids"].repeat(axes, 1, 1)
        shapes["position_ids"] = {axis + 1: word for axis, word in shapes["position_ids"].items()}
    if not whole_prompt:
        add_states(kwargs, shapes, layout, batch, past)
    if one_token:
        one_token_a_call(shapes)
    return Source.of_part(name, module, kwargs, shapes)


def one_token_a_call(shapes: Shapes) -> None:
    """Take the number of tokens of a call for constant."""
    for words in shapes.values():
        for axis in [axis for axis, word in words.items() if word == SEQUENCE]:
            del words[axis]


def _layout_of(
    model: Model,
    sizes: TrialSizes,
    width: int | None,
    beside: Mapping[str, tuple[int, ...]],
    rows: int,
    cells: Cells | None,
) -> tuple[str, CacheLayout]:
    """The argument that takes the cache, and what a trial run says that it holds behind a text that is long enough."""
    known = inspect.signature(model.forward).parameters
    more = {
        key: torch.zeros(sizes.batch, sizes.past, *wide, dtype=torch.float32 if wide else torch.int64)
        for key, wide in beside.items()
        if key in known
    }
    prompt = prompt_of(model, sizes, width) | more
    if rows > 1:
        prompt["input_ids"] = prompt["input_ids"].repeat(rows, 1)
    cache_argument, cache = trial(model, prompt)
    tokens = tokens_for_every_state(cache)
    if tokens > sizes.past:
        longer = unmistakable_sizes(model.config, least=tokens)
        return _layout_of(model, replace(longer, batch=sizes.batch), width, beside, rows, cells)
    return cache_argument, CacheLayout(with_cells(model, cache, cells) if cells else cache, sizes)


def add_states(kwargs: Inputs, shapes: Shapes, layout: CacheLayout, batch: int, past: int = _PAST_SAMPLE) -> None:
    """The cache's tensors beside the other inputs."""
    for state in layout.states.values():
        kwargs[PAST + state.name] = _sample_state(state, batch, past)
        shapes[PAST + state.name] = dict(state.axes)


def no_cache(model: Model) -> UserError:
    return UserError(
        "E601",
        f"{type(model).__name__} keeps no cache between steps",
        why="its forward, called with use_cache=True, returns none",
        next="export it without: --task text-generation",
    )


def trial(
    model: Model, prompt: Mapping[str, torch.Tensor], call: Callable[..., Mapping[str, object]] | None = None
) -> tuple[str, object]:
    """The argument of forward that takes the cache, and the cache that follows ``prompt``.

    ``call(**prompt)`` runs the model, as ``model`` itself does.
    """
    with untouched(model):
        result = run_lightly(model, call or partial(model, use_cache=True, return_dict=True), prompt)
    parameters = inspect.signature(model.forward).parameters
    hands_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in result:
        is_taken = name in parameters or (name in CACHE_ARGUMENTS and hands_on)
        if is_taken and name not in prompt and not isinstance(result[name], torch.Tensor):
            return name, result[name]
    argument = cache_argument(model.forward)
    if call is None and argument and may_hold(model):
        _, state = run_lightly(model, partial(_as_keywords, state_behind, model), prompt)
        return argument, state
    if call is None and argument:  # some fill a cache that is given, and make none
        result = run_lightly(model, partial(_with_cache, model), prompt)
        if result.get(argument) is not None:
            return argument, result[argument]
    raise no_cache(model)


def _with_cache(model: Model, **inputs: object) -> Any:
    """A run with the cache that ``generate`` gives to a model."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    name = cache_argument(model.forward) or generated_argument(model)
    return model(**inputs, **{name: cache}, use_cache=True, return_dict=True)


def _as_keywords(call: Callable[..., Result], model: Model, **inputs: object) -> Result:
    return call(model, inputs)


def prompt_of(model: Model, sizes: TrialSizes, width: int | None = None) -> dict[str, torch.Tensor]:
    """Inputs of the trial run of a decoder, embedded where ``width`` says how wide."""
    parameters = inspect.signature(model.forward).parameters
    ids = torch.zeros(sizes.batch, sizes.past, dtype=torch.int64)
    first = {"input_ids": ids} if width is None else {EMBEDDED: torch.zeros(*ids.shape, width)}
    every = {**first, "attention_mask": torch.ones_like(ids), "position_ids": ids}
    left_out = dropped_in_steps(model)
    return {name: value for name, value in every.items() if name in parameters and name not in left_out}


def dropped_in_steps(model: Model) -> set[str]:
    """The arguments that forward takes and generation does not pass, by the model's own preparation of a step."""
    from transformers import GenerationMixin

    def own(name: str) -> bool:
        return getattr(type(model), name, None) not in (None, getattr(GenerationMixin, name, None))

    ids = torch.zeros(1, 2, dtype=torch.int64)
    given = {"attention_mask": torch.ones_like(ids)}
    dropped = set()
    try:
        if own("prepare_inputs_for_generation"):
            handed = model.prepare_inputs_for_generation(ids, **given, is_first_iteration=True, use_cache=True)
            dropped |= {name for name in given if handed.get(name) is None}
        if own("_prepare_position_ids_for_generation"):
            counted = model._prepare_position_ids_for_generation(ids, dict(given))
            dropped |= {"position_ids"} if counted is None else set()
    except Exception:  # a model's own code, called as generation would; the trial run shows what is wrong
        return set()
    return dropped


def text_inputs(
    model: Model, layout: CacheLayout, batch: int, new: int, past: int = _PAST_SAMPLE
) -> tuple[Inputs, Shapes]:
    parameters = inspect.signature(model.forward).parameters
    lengths = [state for state in layout.states.values() if PAST_SIZE in state.axes.values()]
    recurrent_only = not any(set(state.axes.values()) - {BATCH} for state in layout.states.values())
    total = past + new
    mask_dim: AxisName = TOTAL
    if lengths:
        mask_dim = Dim.symbol(PAST_SIZE) + (1 if new == 1 else Dim.symbol(SEQUENCE))
    if recurrent_only:
        total, mask_dim = new, SEQUENCE
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    made: dict[str, tuple[torch.Tensor, AxisName]] = {
        "input_ids": (torch.randint(min(10, vocabulary - 1), vocabulary, (batch, new)), SEQUENCE),
        "attention_mask": (torch.ones(batch, total, dtype=torch.int64), mask_dim),
        "position_ids": (torch.arange(total - new, total).expand(batch, -1).contiguous(), SEQUENCE),
    }
    left_out = dropped_in_steps(model)
    kept = {name: pair for name, pair in made.items() if name in parameters and name not in left_out}
    return {name: value for name, (value, _) in kept.items()}, {
        name: {0: BATCH, 1: word} for name, (_, word) in kept.items()
    }


def _sample_state(state: CacheTensor, batch: int, past: int) -> torch.Tensor:
    def size_of(axis: int, size: int) -> int:
        word = state.axes.get(axis, "")
        is_window = bool(word) and not word.startswith(OWN_SIZES)
        return {BATCH: batch, PAST_SIZE: past}.get(word, min(size, past) if is_window else size)

    shape = [size_of(axis, size) for axis, size in enumerate(state.shape)]
    if state.dtype == torch.int8:
        return torch.randint(-127, 128, shape, dtype=torch.int8)
    if state.name.endswith(tuple(FIELDS.values())):
        return torch.rand(shape) / DTYPES["int8"][1]
    return (
        torch.randn(shape).to(state.dtype) if state.dtype.is_floating_point else torch.zeros(shape, dtype=state.dtype)
    )
