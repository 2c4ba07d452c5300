"""Prompts on which the constant scales of a cache are calibrated, and on which the error of a rounded cache is measured."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.cells import FIELDS, LARGEST_ERROR, Cells, unfit
from fx2onnx.decoding.cache.layout import unmistakable_sizes
from fx2onnx.decoding.cache.module_state import untouched
from fx2onnx.decoding.decoder import prompt_of, trial
from fx2onnx.manifest.names import IDS, MASK, PAST, POSITIONS
from fx2onnx.sources.hf.transformers_types import Inputs, Model

_ROWS, _TOKENS = 4, 16


@dataclass(frozen=True)
class Prompts:
    """Rows of tokens [rows, length] and their mask, and where they are from."""

    ids: torch.Tensor
    mask: torch.Tensor
    where: str
    is_given: bool = False

    @staticmethod
    def of(model: Model, given: Mapping[str, object] | None) -> Prompts:
        """The prompts that are ``given`` as arrays, ``input_ids`` and perhaps ``attention_mask``, or random ones.

        Raises:   UserError E401 for arrays that are no prompts of the model.
        """
        config = model.config.get_text_config(decoder=True)
        vocabulary = int(config.vocab_size)
        if given is None:
            shape = _ROWS, min(_TOKENS, int(getattr(config, "max_position_embeddings", None) or _TOKENS))
            drawn = torch.randint(
                min(10, vocabulary - 1), vocabulary, shape, generator=torch.Generator().manual_seed(0)
            )
            return Prompts(drawn, torch.ones_like(drawn), f"{shape[0]} prompts of {shape[1]} random tokens")
        unknown = sorted(set(given) - {IDS, MASK})
        ids, mask = (np.asarray(given[name]) if name in given else None for name in (IDS, MASK))
        why = ""
        if unknown or ids is None:
            why = f"it has {', '.join(given) or 'nothing'}"
        elif ids.ndim != 2 or not ids.size or ids.dtype.kind not in "iu":
            why = f"{IDS} is {ids.dtype} {list(ids.shape)}"
        elif int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            why = f"{IDS} has {int(ids.min())} to {int(ids.max())}, the vocabulary has {vocabulary} tokens"
        elif mask is not None and (mask.shape != ids.shape or not np.isin(mask, (0, 1)).all() or not mask.any()):
            why = f"{MASK} is {mask.dtype} {list(mask.shape)}, {IDS} {list(ids.shape)}; it has 1 where a token is and 0 where none is"
        if why or ids is None:
            step = f"an array {IDS} [prompts, length] of tokens, and {MASK} of that shape where prompts are padded on the left"
            raise UserError("E401", "the calibration of the cache does not fit", why=why, next=step)
        tokens, seen = (
            torch.from_numpy(each.astype(np.int64)) for each in (ids, np.ones_like(ids) if mask is None else mask)
        )
        return Prompts(tokens, seen, f"{len(ids)} given prompts of {ids.shape[1]} tokens", is_given=True)

    def inputs(self, names: Collection[str]) -> Inputs:
        """The inputs of a model that takes ``names``."""
        places = (self.mask.cumsum(1) - 1).clamp_min(0)
        given = {IDS: self.ids, MASK: self.mask, POSITIONS: places}
        return {name: value for name, value in given.items() if name in names}

    def loss(self, logits: torch.Tensor) -> float:
        """The mean loss of each token behind the first, by the logits [rows, length, vocabulary] before it."""
        goes_on = (self.mask[:, 1:] * self.mask[:, :-1]).bool()
        return float(torch.nn.functional.cross_entropy(logits[:, :-1][goes_on], self.ids[:, 1:][goes_on]))


def calibrated(model: Model, cells: Cells, prompts: Prompts) -> Cells:
    """``cells`` with scales for the keys and values that ``model`` computes of ``prompts``.

    Raises:   UserError E601 where the model has no weights to run with.
    """
    if not cells.is_calibrated:
        return cells
    if any(weight.is_meta for weight in model.parameters()):
        why = "a calibration runs the model, whose weights are only referred to"
        raise unfit(model, cells, why, f"leave out --weights, or take --kv {cells.kind.partition(':')[0]}")
    from transformers import DynamicCache

    names = prompt_of(model, unmistakable_sizes(model.config))
    argument, own = trial(model, names)
    cache = DynamicCache(config=model.config.get_text_config(decoder=True))
    for layer in cache.layers:
        if hasattr(layer, "activate_past_recording"):
            layer.activate_past_recording()  # else a window keeps its last tokens alone
    given = {argument: cache} if type(own) is DynamicCache else {}  # else the model takes no class but its own
    with torch.no_grad(), untouched(model):
        result = model(**prompts.inputs(names), **given, use_cache=True, return_dict=True)
    return cells.calibrated(result.get(argument))


def measured(model: Model, cells: Cells, module: torch.nn.Module, sample: Inputs, prompts: Prompts) -> str:
    """A sentence on the logits of ``prompts``, which ``module`` takes with such a cache and ``model`` without.

    Raises:   UserError E601 where the error is so large that the model must read its cache in a way of its own.
    """
    if any(weight.is_meta for weight in model.parameters()):
        return ""
    plain, rows = prompts.inputs(sample), len(prompts.ids)
    states = {
        name: torch.zeros(rows, *value.shape[1:]).to(value.dtype)
        for name, value in sample.items()
        if name.startswith(PAST)
    }
    ends = tuple(f".{name}" for name in ("key", "value", *FIELDS.values()))
    empty = {name: value[:, :, :0] if name.endswith(ends) else value for name, value in states.items()}
    with torch.no_grad():
        found = module.forward(**plain, **empty)["logits"].float()
        wanted = model(**plain, use_cache=False).logits.float()
    seen = prompts.mask.bool()
    count, difference = int(seen.sum()), (found - wanted)[seen].abs().max()
    error = float(difference / wanted[seen].abs().max())
    if not error < LARGEST_ERROR:
        raise unfit(model, cells, f"with it, logits change by {error:.0%} of the largest one")
    same = int((found.argmax(-1) == wanted.argmax(-1))[seen].sum())
    said = (
        f"with {cells.kind} keys and values, logits of {prompts.where} change by at most {error:.2g} of the largest one, "
        f"and {same} of {count} likeliest tokens are those without"
    )
    if prompts.is_given and prompts.ids.shape[1] > 1:
        said += f"; the loss of the prompts is {prompts.loss(found):.4g}, without {prompts.loss(wanted):.4g}"
    return said
