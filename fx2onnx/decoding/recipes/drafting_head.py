"""A head that drafts (a model's own MTP head, or EAGLE-3's), as a graph: of each token and the hidden state before it, the token
behind.

Source: transformers 5.23, ``MtpModel`` and ``MTPCandidateGenerator``. The first head drafts all tokens, from its own hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Protocol

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.decoding.cache.layout import CacheLayout, unmistakable_sizes
from fx2onnx.decoding.decoder import HiddenOf, add_states
from fx2onnx.decoding.recipes.eagle_head import EagleHead, JoinedStates, eagle_head
from fx2onnx.decoding.recipes.recipe import FolderPart, FolderRequest
from fx2onnx.manifest.names import (
    BATCH,
    DRAFT_FILE,
    HIDDEN,
    HIDDEN_BEFORE,
    IDS,
    LOGITS,
    PAST,
    POSITIONS,
    PRESENT,
    SEQUENCE,
)
from fx2onnx.sources.foreign_errors import reported
from fx2onnx.sources.hf.transformers_types import Config, Model, Shapes
from fx2onnx.sources.light_run import run_lightly
from fx2onnx.sources.source import Options, Source

MTP = "mtp"
_LEFT_OUT = "_keys_to_ignore_on_load_unexpected"


class Heads(Protocol):
    """The parts of transformers' ``MtpModel`` that are read, which ``EagleHead`` has too."""

    config: Config

    def forward_layer(
        self,
        layer_idx: int,
        last_hidden_states: torch.Tensor,
        position_ids: torch.Tensor,
        mtp_cache: object,
        input_ids: torch.Tensor,
    ) -> torch.Tensor:
        """The hidden states behind one head."""

    def _project_to_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """The logits of hidden states."""


class DraftingHead(torch.nn.Module):
    """The head ``mtp`` of ``model`` with its cache as flat tensors."""

    mtp: Heads

    def __init__(self, model: Model, mtp: Heads, layout: CacheLayout) -> None:
        super().__init__()
        self.model, self.mtp = model, mtp
        self._layout = layout

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        states = {name.removeprefix(PAST): value for name, value in inputs.items() if name.startswith(PAST)}
        past = next(iter(states.values())).shape[-2]
        cache = self._layout.rebuilt(states, past)
        logits, hidden = _step(self.mtp, cache, **{name: inputs[name] for name in (IDS, HIDDEN_BEFORE, POSITIONS)})
        behind = self._layout.taken_from(cache)
        return {LOGITS: logits, HIDDEN: hidden} | {PRESENT + name: value for name, value in behind.items()}


def _step(
    mtp: Heads, cache: object, input_ids: torch.Tensor, previous_hidden_states: torch.Tensor, position_ids: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = mtp.forward_layer(0, previous_hidden_states, position_ids, cache, input_ids)
    return mtp._project_to_logits(hidden), hidden


def drafting(request: FolderRequest) -> tuple[HiddenOf | None, list[FolderPart]]:
    """The function from the hidden states of all layers to those that the drafter takes, and its file: of the model's own MTP head
    (``mtp``), or of EAGLE-3 in a folder. Nothing where none is asked for.

    Raises:   UserError E601 where transformers runs no head of the model, or the checkpoint has none; as ``eagle_head``.
    """
    model, drafter = request.model, request.drafter
    if drafter is None:
        return None, []
    heads = _mtp_of(model) if drafter == MTP else eagle_head(model, Path(drafter).expanduser())
    hidden_of = JoinedStates(heads) if isinstance(heads, EagleHead) else itemgetter(-1)
    return hidden_of, [request.part(DRAFT_FILE, _drafting_head(model, heads, request.name, request.options))]


def _drafting_head(model: Model, mtp: Heads, name: str, options: Options) -> Source:
    """The first head as a graph that takes tokens [1, length], the hidden states before them, and its own cache."""
    sizes = unmistakable_sizes(model.config)
    width = int(mtp.config.hidden_size)
    found: list[object] = []

    def call(input_ids: torch.Tensor, **others: torch.Tensor) -> Mapping[str, object]:
        from transformers.cache_utils import MtpCache

        found[:] = [mtp.new_cache() if isinstance(mtp, EagleHead) else MtpCache(config=mtp.config)]
        return dict(zip((LOGITS, HIDDEN), _step(mtp, found[0], input_ids, **others), strict=True))

    run_lightly(model, call, _sample(sizes.batch, sizes.past, width))
    if not isinstance(mtp, EagleHead):
        del vars(found[0])["layers"][1:]
    layout = CacheLayout(found[0], sizes)
    batch, new = options.batch_or(), options.seq_or(4)
    kwargs = _sample(batch, new, width)
    shapes: Shapes = {key: {0: BATCH, 1: SEQUENCE} for key in kwargs}
    add_states(kwargs, shapes, layout, batch)
    return Source.of_part(name, DraftingHead(model, mtp, layout).eval(), kwargs, shapes)


def _sample(batch: int, length: int, width: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 3, (batch, length))
    return {
        IDS: ids,
        HIDDEN_BEFORE: torch.randn(batch, length, width),
        POSITIONS: torch.arange(1, length + 1).expand(batch, -1),
    }


def _mtp_of(model: Model) -> Heads:
    """``MtpModel`` of transformers with the weights of the checkpoint, or random ones where the model has such."""
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError:
        why, step = "transformers has no class for MTP heads before 5.23", "pip install --upgrade transformers"
        raise UserError("E601", f"{type(model).__name__} has no drafting head", why=why, next=step) from None
    config = model.config.get_text_config(decoder=True)
    count = getattr(config, "num_mtp_layers", None)
    if not count:
        why = "its config has no num_mtp_layers"
        step = "--drafter FOLDER of EAGLE-3, or give generate a smaller model: --assistant FOLDER"
        raise UserError("E601", f"{type(model).__name__} has no drafting head", why=why, next=step)
    with reported(f"cannot load the drafting head of {type(model).__name__}", next="leave out --drafter"):
        folder = getattr(model.config, "name_or_path", "")
        if folder and any(Path(folder).glob("*.safetensors")):
            # transformers knows the numbers of the layers that released checkpoints have behind those of the model
            known = vars(model).get(_LEFT_OUT)
            first = config.num_hidden_layers
            patterns = [rf"layers\.{number}\." for number in range(first, first + count)]
            vars(model)[_LEFT_OUT] = [*(getattr(model, _LEFT_OUT) or ()), *patterns]
            try:
                loaded: Heads = MtpModel.from_pretrained(model).eval()
                return loaded
            finally:
                vars(model).pop(_LEFT_OUT)
                vars(model).update({} if known is None else {_LEFT_OUT: known})
        mtp = MtpModel(model, count).eval()
        mtp.layers.apply(model._init_weights)
        random: Heads = mtp
        return random
