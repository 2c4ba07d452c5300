"""The tokens of an exported folder beside those of the model that it was made from: ``fx2onnx generate --verify``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from fx2onnx.decoding.cache.cells import LARGEST_ERROR
from fx2onnx.decoding.reference_generate import reference_model, scores_of, tokens_of
from fx2onnx.generation.prompt import prompt_length
from fx2onnx.judge.verdict import Verdict
from fx2onnx.manifest.names import DECODER_IDS
from fx2onnx.precision.options import METADATA_KEY as PRECISION
from fx2onnx.quantize.stored import METADATA_KEY as QUANTIZED
from fx2onnx.quantize.stored import Stated, read
from fx2onnx.verify.module_state import NothingToCompare, in_float32
from fx2onnx.verify.rounded_weights import as_quantized

if TYPE_CHECKING:
    from fx2onnx.generation import LoadedModel


EIGHT_BITS = ("int8", "float8_e4m3fn")
"""The dtypes of caches that are rounded."""

_OF_STEPS = ("forced_bos_token_id", "forced_eos_token_id", "begin_suppress_tokens")
"""Rules of generation_config.json for the first or the last new token, which would hold for each of single tokens."""


@dataclass(frozen=True)
class Agreement:
    """The tokens that a folder chooses as its source does, each after the source's own text."""

    source: str
    equal: int
    count: int
    gap: float | None = None
    """The most by which the source scores a token of the folder below its own, as a share of the largest score. None where the
    folder has low-bit weights, other than the source's."""

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types, and the share."""
        return {"source": self.source, "equal": self.equal, "count": self.count, "share": self.share, "gap": self.gap}

    @property
    def share(self) -> float:
        return self.equal / max(self.count, 1)

    @property
    def is_beyond_rounding(self) -> bool:
        """True where the folder's and the source's tokens differ for another reason than rounding: errors of both scores do not explain it."""
        return self.gap is not None and self.gap > 2 * LARGEST_ERROR

    def __str__(self) -> str:
        return f"{self.equal} of {self.count} tokens ({self.share:.1%}) are those of {self.source}, each after its own text"


@dataclass(frozen=True)
class Expected:
    """The tokens that a folder has to generate. ``agreement``: of a folder that rounds, with the source as it is."""

    tokens: NDArray[np.int64]
    agreement: Agreement | None = None
    is_exact: bool = True
    """False where the folder rounds what no model of the source rounds alike, so that no token has to be equal."""

    def is_met_by(self, tokens: Any) -> bool | None:
        """Return whether the tokens are equal; None where they need not be, and no score says that one is wrong."""
        if not self.is_exact:
            return False if self.agreement is not None and self.agreement.is_beyond_rounding else None
        return self.tokens.shape == tokens.shape and bool((self.tokens == tokens).all())


def expected_of(spec: str, model: LoadedModel, inputs: Mapping[str, Any], new: int) -> Expected:
    """The tokens of ``spec`` for ``inputs``: with weights rounded as the folder has them, where it rounds some."""
    reference: Any = reference_model(spec, model.manifest.task, model.manifest.seed)
    own = tokens_of(reference, inputs, new)
    graphs = [onnx.load(model.folder / form.file, load_external_data=False) for form in model.manifest.graphs]
    stated = [{entry.key: entry.value for entry in graph.metadata_props} for graph in graphs]
    rounds_cache = any(state.dtype in EIGHT_BITS for form in model.manifest.graphs for state in form.cache)
    rounds_more = rounds_cache or any(PRECISION in each for each in stated)
    has_low_bits = any(QUANTIZED in each for each in stated)
    if not rounds_more and not has_low_bits:
        return Expected(own)
    scores = None if has_low_bits else scores_of(reference, inputs, new)
    agreement = _agreement(spec, model, inputs, own, reference, scores)
    if rounds_more or any(in_float32(graph, str) is not None for graph in graphs):
        return Expected(own, agreement, is_exact=False)
    held, seen, verdict = torch.nn.Module(), dict[str, Stated](), Verdict()
    held.model = reference  # under the name that it has in the modules that folders are made of
    try:
        with contextlib.ExitStack() as stack:
            for graph, each in zip(graphs, stated, strict=True):
                said = read(each.get(QUANTIZED, ""))
                if any(said[name] != seen[name] for name in said.keys() & seen.keys()):
                    return Expected(own, agreement, is_exact=False)
                more = said.keys() - seen.keys()
                seen |= said
                if more:  # what another graph rounds as well is rounded once
                    stack.enter_context(as_quantized(verdict, graph, str(model.folder), held, ((), None), only=more))
            if verdict.rows:
                return Expected(own, agreement, is_exact=False)
            return Expected(tokens_of(reference, inputs, new), agreement)
    except NothingToCompare:
        return Expected(own, agreement, is_exact=False)


def _agreement(
    spec: str,
    model: LoadedModel,
    inputs: Mapping[str, Any],
    own: NDArray[np.int64],
    reference: Any,
    scores: NDArray[np.float32] | None,
) -> Agreement | None:
    """The next token of the folder after each beginning of the source's text; None for models that do not go on from tokens.

    Shapes:  own [batch, length]; scores [steps, batch, vocabulary] of the source, or None
    """
    name = "input_ids" if model.encoder is None else DECODER_IDS
    has_turns = any(model.generation_config.get(rule) for rule in _OF_STEPS)
    if model.delays or has_turns or (model.encoder is None and name not in inputs):
        return None
    ends = reference.generation_config.eos_token_id
    start, equal, count = prompt_length(model, dict(inputs)), 0, 0
    mask = np.asarray(inputs.get("attention_mask", np.ones_like(own[:, :start])))
    goes_on, gap = np.ones(len(own), bool), None if scores is None else 0.0
    largest = 1.0 if scores is None else np.abs(scores[np.isfinite(scores)]).max()
    for place in range(start, own.shape[1]):
        given = {**inputs, name: own[:, :place]}
        if model.encoder is None:
            more = np.ones((len(own), place - start), mask.dtype)
            given["attention_mask"] = np.concatenate([mask, more], 1)
        found = np.asarray(model.generate(**given, max_new_tokens=1))[:, -1]
        equal, count = equal + int((found == own[:, place])[goes_on].sum()), count + int(goes_on.sum())
        if gap is not None and scores is not None:
            step, rows = scores[place - start], np.flatnonzero(goes_on)
            less = step[rows, own[rows, place]] - step[rows, found[rows]]
            gap = max(gap, float(less.max(initial=0)) / largest)
        goes_on &= ~np.isin(own[:, place], [] if ends is None else ends)
    return Agreement(spec, equal, count, gap)
