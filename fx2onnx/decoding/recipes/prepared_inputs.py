"""Models whose later steps take more than the last token: all tokens so far, or a few of them and one that stands for the next.

What a step is given, the model's own ``prepare_inputs_for_generation`` makes of the tokens so far; here it is part of the
graphs. One takes the prompt, the other the prompt and what was generated, beside the cache of all but the last token.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import torch

from fx2onnx.base.dims import Dim
from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import Memory, Sizes, tensors_of, unmistakable_sizes
from fx2onnx.decoding.decoder import add_states, prompt_of, trial
from fx2onnx.manifest.names import BATCH, DECODER_FILE, PAST, PAST_SIZE, PRESENT, PROMPT_FILE, SEQUENCE
from fx2onnx.sources.source import Options, Source


@dataclass(frozen=True)
class Findings:
    """What trial runs say: the argument that takes the cache, the cache, and by how many its length exceeds the prompt's."""

    cache_argument: str
    memory: Memory
    ahead: int


class PreparedStep(torch.nn.Module):
    """``model`` on what its own preparation makes of the tokens: of a prompt, or of all tokens so far and a cache."""

    def __init__(self, model: Any, findings: Findings, *, first: bool) -> None:
        super().__init__()
        self.model = model
        self._findings = findings
        self._first = first

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        memory = self._findings.memory
        states = {name.removeprefix(PAST): value for name, value in inputs.items() if name.startswith(PAST)}
        tokens = {name: value for name, value in inputs.items() if not name.startswith(PAST)}
        cache = None if self._first else memory.rebuilt(states, _past(memory, states))
        result = self.model(**_prepared(self.model, tokens, cache), return_dict=True)
        following = memory.taken_from(result[self._findings.cache_argument])
        return {"logits": result["logits"]} | {PRESENT + name: value for name, value in following.items()}


def prepares_steps(model: Any) -> bool:
    """Whether the model's own preparation gives a later step other tokens than the last."""
    from transformers import GenerationMixin

    own = getattr(type(model), "prepare_inputs_for_generation", None)
    if own in (None, GenerationMixin.prepare_inputs_for_generation):
        return False
    sizes = unmistakable_sizes(model.config)
    prompt = prompt_of(model, sizes)
    try:
        _, cache = trial(model, prompt)
        following = {name: torch.cat([value, value[:, -1:]], dim=1) for name, value in prompt.items()}
        given = _prepared(model, following, cache)["input_ids"]
    except Exception:  # a model's own code, called as generation would; another form tells what is wrong
        return False
    return isinstance(given, torch.Tensor) and given.shape[1] > 1


def prompt_and_steps(model: Any, name: str, options: Options) -> dict[str, Source]:
    """The graph of the prompt and that of every later step, by file name.

    Raises:   UserError E601 where the length of no state follows the prompt's.
    """
    found = _findings(model)
    batch, new = options.batch_or(), options.seq_or(4)
    prompt, axes = _tokens(model, batch, new), {0: BATCH, 1: SEQUENCE}
    tokens = _tokens(model, batch, new + 1)
    shapes: dict[str, Any] = {key: {0: BATCH, 1: Dim.symbol(PAST_SIZE) + (1 - found.ahead)} for key in tokens}
    later = dict(tokens)
    add_states(later, shapes, found.memory, batch, past=new + found.ahead)
    return {
        PROMPT_FILE: Source(
            name, PreparedStep(model, found, first=True).eval(), (), prompt, {key: dict(axes) for key in prompt}
        ),
        DECODER_FILE: Source(name, PreparedStep(model, found, first=False).eval(), (), later, shapes),
    }


def _findings(model: Any) -> Findings:
    """Two trial runs: the first says how long a cache is, the second makes one whose length is unmistakable."""
    sizes = unmistakable_sizes(model.config)
    ahead = _ahead(model, sizes)
    longer = unmistakable_sizes(model.config, least=ahead + 2)
    argument, cache = _trial(model, longer.batch, longer.past - ahead)
    return Findings(argument, Memory(cache, longer), ahead)


def _ahead(model: Any, sizes: Sizes) -> int:
    """By how many the length of the cache exceeds that of the prompt."""
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


def _trial(model: Any, batch: int, length: int) -> tuple[str, Any]:
    tokens = _tokens(model, batch, length)
    return trial(model, tokens, lambda **prompt: model(**_prepared(model, prompt, None), return_dict=True))


def _tokens(model: Any, batch: int, length: int) -> dict[str, torch.Tensor]:
    vocabulary = int(model.config.get_text_config(decoder=True).vocab_size)
    ids = torch.randint(min(10, vocabulary - 1), vocabulary, (batch, length))
    known = inspect.signature(model.forward).parameters
    found = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    handed = _prepared(model, found, None)
    return {name: value for name, value in found.items() if name in known and handed.get(name) is not None}


def _prepared(model: Any, tokens: dict[str, torch.Tensor], cache: Any) -> dict[str, Any]:
    """The model's arguments, as generation makes them of all tokens so far."""
    step = {"is_first_iteration": True} if cache is None else {"past_key_values": cache, "next_sequence_length": 1}
    made: dict[str, Any] = model.prepare_inputs_for_generation(**tokens, **step, use_cache=True)
    return made


def _past(memory: Memory, states: dict[str, torch.Tensor]) -> Any:
    return next(
        states[name].shape[axis]
        for name, state in memory.states.items()
        for axis, word in state.axes.items()
        if word == PAST_SIZE
    )
