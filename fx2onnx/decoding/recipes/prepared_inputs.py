"""Models whose later steps take more than the last token: all tokens so far, or a few of them and one that stands for the next.

What a step is given, the model's own ``prepare_inputs_for_generation`` makes of the tokens so far; here it is part of the
graphs. One takes the prompt, the other the prompt and what was generated, beside the cache of all but the last token.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import CacheLayout, TrialSizes, tensors_of, unmistakable_sizes
from fx2onnx.decoding.cache.module_state import generated_argument
from fx2onnx.decoding.decoder import add_states, prompt_of, trial
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest, ModelPart
from fx2onnx.manifest.names import BATCH, DECODER_FILE, PAST, PAST_SIZE, PRESENT, PROMPT_FILE, SEQUENCE
from fx2onnx.sizes.expr import Dim
from fx2onnx.sources.hf.transformers_types import Inputs, Model, Shapes
from fx2onnx.sources.source import Source


@dataclass(frozen=True)
class PreparedInputTrials:
    """The findings of trial runs: the argument that takes the cache, the cache, and by how many its length exceeds the
    prompt's.
    """

    cache_argument: str
    layout: CacheLayout
    ahead: int


class PreparedStep(ModelPart[PreparedInputTrials]):
    """``model`` on what its own preparation makes of the tokens: of a prompt, or of all tokens so far and a cache."""

    def __init__(self, model: Model, facts: PreparedInputTrials, *, first: bool) -> None:
        super().__init__(model, facts)
        self._first = first

    def forward(self, **inputs: torch.Tensor) -> Inputs:
        layout = self.facts.layout
        states = {name.removeprefix(PAST): value for name, value in inputs.items() if name.startswith(PAST)}
        tokens = {name: value for name, value in inputs.items() if not name.startswith(PAST)}
        cache = None if self._first else layout.rebuilt(states, _past(layout, states))
        argument = self.facts.cache_argument
        result = self.model(**_prepared(self.model, tokens, argument, cache), return_dict=True)
        following = layout.taken_from(result[argument])
        return {"logits": result["logits"]} | {PRESENT + name: value for name, value in following.items()}


def fits(request: FolderRequest) -> bool:
    """Return whether the model's own preparation gives a later step other tokens than the last."""
    from transformers import GenerationMixin

    model = request.model
    own = getattr(type(model), "prepare_inputs_for_generation", None)
    if own in (None, GenerationMixin.prepare_inputs_for_generation):
        return False
    sizes = unmistakable_sizes(model.config)
    prompt = prompt_of(model, sizes)
    try:
        argument, cache = trial(model, prompt)
        following = {name: torch.cat([value, value[:, -1:]], dim=1) for name, value in prompt.items()}
        given = _prepared(model, following, argument, cache)["input_ids"]
    except Exception:  # a model's own code, called as generation would; another recipe shows what is wrong
        return False
    return isinstance(given, torch.Tensor) and given.shape[1] > 1


def parts(request: FolderRequest) -> list[FolderPart]:
    """The graph of the prompt and that of every later step.

    Raises:   UserError E601 where the length of no state follows the prompt's.
    """
    model, options = request.model, request.options
    findings = _findings(model)
    batch, new = options.batch_or(), options.seq_or(4)
    prompt, axes = _tokens(model, batch, new), {0: BATCH, 1: SEQUENCE}
    tokens = _tokens(model, batch, new + 1)
    shapes: Shapes = {key: {0: BATCH, 1: Dim.symbol(PAST_SIZE) + (1 - findings.ahead)} for key in tokens}
    later = dict(tokens)
    add_states(later, shapes, findings.layout, batch, past=new + findings.ahead)
    first, step = (PreparedStep(model, findings, first=first).eval() for first in (True, False))
    return [
        request.part(PROMPT_FILE, Source.of_part(request.name, first, prompt, {key: dict(axes) for key in prompt})),
        request.part(DECODER_FILE, Source.of_part(request.name, step, later, shapes)),
    ]


def _findings(model: Model) -> PreparedInputTrials:
    """Two trial runs: the first says how long a cache is, the second makes one whose length is unmistakable."""
    sizes = unmistakable_sizes(model.config)
    ahead = _ahead(model, sizes)
    longer = unmistakable_sizes(model.config, least=ahead + 2)
    argument, cache = _trial(model, longer.batch, longer.past - ahead)
    return PreparedInputTrials(argument, CacheLayout(cache, longer), ahead)


def _ahead(model: Model, sizes: TrialSizes) -> int:
    """The number of places by which the length of the cache exceeds that of the prompt."""
    one, two = (tensors_of(_trial(model, sizes.batch, length)[1]) for length in (sizes.past, sizes.encoder))
    for name, state in one.items():
        for short, long in zip(state.shape, two[name].shape, strict=True):
            if long - short == sizes.encoder - sizes.past:
                return int(short - sizes.past)
    raise UserError(
        "E601",
        f"the cache of {type(model).__name__} does not grow with its prompt",
        why="its steps take more than the last token, so its length has to say how many there are",
        next="export it without: --task text-generation",
    )


def _trial(model: Model, batch: int, length: int) -> tuple[str, object]:
    tokens = _tokens(model, batch, length)
    return trial(model, tokens, lambda **prompt: model(**_prepared(model, prompt), return_dict=True))


def _tokens(model: Model, batch: int, length: int) -> Inputs:
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(min(10, vocabulary - 1), vocabulary, (batch, length))
    known = inspect.signature(model.forward).parameters
    every = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    handed = _prepared(model, every)
    return {name: value for name, value in every.items() if name in known and handed.get(name) is not None}


def _prepared(model: Model, tokens: Inputs, argument: str = "", cache: object = None) -> dict[str, object]:
    """The model's arguments, as generation makes them of all tokens so far, and of the cache that forward takes as ``argument``.

    Releases differ in whether a cache that forward calls otherwise comes under that name or the usual one.
    """
    step: dict[str, object] = {"is_first_iteration": True}
    if cache is not None:
        step = {argument: cache, generated_argument(model): cache, "next_sequence_length": 1}
    return model.prepare_inputs_for_generation(**tokens, **step, use_cache=True)


def _past(layout: CacheLayout, states: Inputs) -> int:
    return next(
        states[name].shape[axis]
        for name, state in layout.states.items()
        for axis, word in state.axes.items()
        if word == PAST_SIZE
    )
