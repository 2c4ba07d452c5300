"""The tokens that transformers itself generates, with which exported folders are compared."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.parts import TASKS, WITH_PAST
from fx2onnx.decoding.recipes.delay_pattern import delays_of
from fx2onnx.decoding.recipes.modality import KINDS, modalities_of, token_of
from fx2onnx.decoding.recipes.recipe import language_of
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.config import offline
from fx2onnx.sources.hf.sample_context import set_use_cache
from fx2onnx.sources.hf.transformers_types import Model
from fx2onnx.sources.registry import resolve


def reference_model(spec: str, task: str, seed: int) -> Model:
    """The model that generates, for ``tokens_of``. Raises UserError E601 where the source cannot be built."""
    word = TASKS.get(task.removesuffix(WITH_PAST))
    if word is not None and "task=" not in spec:
        spec = f"{spec}{'&' if '?' in spec else '?'}task={word}"
    model = cast(Model, resolve(spec, seed=seed).module)
    if not hasattr(model, "generate"):
        raise UserError("E601", f"{spec} is a {type(model).__name__}, which has no generate to compare with")
    set_use_cache(model.config, True)
    return model


FIRST_STEPS = 8
"""The tokens whose scores are compared: later ones tell little more."""


class KeptScores(list[NDArray[np.floating]]):
    """A processor of scores that keeps those [batch, vocabulary] of the first ``most`` steps, by which tokens are chosen.
    ``followed`` [batch, length]: the tokens that are chosen instead.
    """

    def __init__(self, most: int | None = FIRST_STEPS, followed: NDArray[np.int64] | None = None) -> None:
        super().__init__()
        self._most, self._followed = most, followed

    def __call__(self, tokens: Sequence[Sequence[int]], scores: torch.Tensor) -> torch.Tensor:
        if self._most is None or len(self) < self._most:
            self.append(np.array(getattr(scores, "wide", scores)))
        if self._followed is None:
            return scores
        chosen = np.zeros(scores.shape, np.float32)
        chosen[np.arange(len(chosen)), self._followed[:, len(tokens[0])]] = 1
        return torch.from_numpy(chosen)


def tokens_of(
    model: Model, inputs: Mapping[str, ArrayLike], max_new_tokens: int, keep: KeptScores | None = None
) -> NDArray[np.int64]:
    """The tokens [batch, length] that ``model.generate(do_sample=False)`` gives for ``inputs``, as an array. ``keep`` gets the
    scores, none of models that add rows to one another.
    """
    inputs = {**inputs, **_kinds_of_tokens(model, inputs)}
    advice = "leave out --verify, or correct generation_config.json of the checkpoint"
    with reported(f"model.generate of {type(model).__name__} fails", next=advice), offline():
        return generate_rows(model, inputs, max_new_tokens, keep)[0].numpy()


def _kinds_of_tokens(model: Model, inputs: Mapping[str, ArrayLike]) -> dict[str, NDArray[np.int64]]:
    """The kinds of tokens that transformers' processors tell a model: 1 where one stands for an image."""
    ids = np.asarray(inputs.get("input_ids", ()))
    images = [token_of(model, modality) for modality in modalities_of(model) if modality.name == "image"]
    kinds = np.isin(ids, [token for token in images if token is not None]).astype(np.int64)
    is_taken = KINDS in inspect.signature(model.forward).parameters and KINDS not in inputs
    return {KINDS: kinds} if is_taken and kinds.any() else {}


def generate_rows(
    model: Model, inputs: Mapping[str, ArrayLike], max_new_tokens: int, keep: KeptScores | None = None
) -> tuple[torch.Tensor, bool]:
    """Tokens as ``generate_eagerly`` gives them, or each row's alone, and whether it is that: where a step gives states of
    more tokens than it takes, the model has added the rows to one another (RWKV's step of one token).
    """
    mixed: list[bool] = []

    def look(_: torch.nn.Module, args: tuple[object, ...], given: dict[str, object], result: object) -> None:
        ids = given.get("input_ids", args[0] if args else None)
        states = result.get("last_hidden_state") if isinstance(result, Mapping) else None
        if isinstance(ids, torch.Tensor) and isinstance(states, torch.Tensor):
            mixed.append(ids.dim() == 2 and states.dim() == 3 and states.shape[1] > ids.shape[1] == 1)

    handle = getattr(model, "base_model", model).register_forward_hook(look, with_kwargs=True)
    try:
        together = generate_eagerly(model, inputs, max_new_tokens, keep)
    finally:
        handle.remove()
    if not any(mixed):
        return together, False
    if keep is not None:
        keep.clear()
    tensors = {name: torch.as_tensor(value) for name, value in inputs.items()}
    rows = range(len(tensors["input_ids"]))
    alone = [generate_eagerly(model, {k: v[row : row + 1] for k, v in tensors.items()}, max_new_tokens) for row in rows]
    said = model.generation_config
    ends = said.eos_token_id if isinstance(said.eos_token_id, list) else [said.eos_token_id]
    pad = next((token for token in (said.pad_token_id, ends[0]) if token is not None), 0)
    return torch.nn.utils.rnn.pad_sequence([tokens[0] for tokens in alone], True, float(pad)), True


def generate_eagerly(
    model: Model, inputs: Mapping[str, ArrayLike], max_new_tokens: int, keep: KeptScores | None = None
) -> torch.Tensor:
    """Greedy tokens of ``model``; Whisper's own loop over long audio is left aside, since the graphs do one window.

    Of models of several codebooks [batch, codebooks, length], which their own loop alone knows to shift.
    """
    from transformers import GenerationMixin

    is_own = language_of(model) is not model or delays_of(model)
    generate = type(model).generate if is_own else GenerationMixin.generate
    tensors = {name: torch.as_tensor(value).clone() for name, value in inputs.items()}
    with torch.no_grad():
        return generate(
            model,
            **tensors,
            **({} if keep is None else {"logits_processor": [keep]}),
            do_sample=False,
            num_beams=1,
            num_return_sequences=1,
            max_new_tokens=max_new_tokens,
            use_cache=True,
        )
