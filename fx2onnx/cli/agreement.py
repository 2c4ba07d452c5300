"""The tokens of an exported folder beside those of the model that it was made from: ``fx2onnx.verify_generation`` and
``fx2onnx generate --verify``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from fx2onnx.base.errors import UserError, VerificationError
from fx2onnx.base.escape import Shown
from fx2onnx.base.stack_frames import public, public_methods
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


@public_methods
@dataclass(repr=False)
class TokenVerdict(Shown):
    """The tokens of an exported folder beside those of its source, as ``fx2onnx.verify_generation`` returns them.

    ``tokens`` and ``expected`` are integer arrays [batch, length] with the prompt, of which the first ``start`` are given. ``agreement``
    counts equal tokens where the folder rounds weights or its cache, and is None elsewhere.
    """

    MOST_SHOWN = 300
    source: str
    tokens: NDArray[np.int64]
    expected: NDArray[np.int64]
    start: int
    agreement: Agreement | None = None
    is_exact: bool = True
    """False where the folder rounds what no model of the source rounds alike, so that no token has to be equal."""

    @property
    def is_equal(self) -> bool | None:
        """True if the tokens are equal, None where they need not be and no score says that one is wrong."""
        if not self.is_exact:
            return False if self.agreement is not None and self.agreement.is_beyond_rounding else None
        return self.expected.shape == self.tokens.shape and bool((self.expected == self.tokens).all())

    @property
    def ok(self) -> bool:
        """False if a token is wrong."""
        return self.is_equal is not False

    def raise_if_failed(self) -> None:
        """Raise VerificationError E501 if a token is wrong."""
        if not self.ok:
            raise self._difference() if self.is_exact else self._beyond_rounding()

    def _shown(self) -> dict[str, Any]:
        rows, new = len(self.tokens), self.tokens.shape[-1] - self.start
        return {"source": self.source, "ok": self.ok, "tokens": f"{rows} x {new}", "agreement": self.agreement}

    def _beyond_rounding(self) -> VerificationError:
        gap = 0.0 if self.agreement is None else self.agreement.gap or 0.0
        return VerificationError(
            "E501",
            "a token differs from model.generate by more than rounding explains",
            why=f"the source scores it {gap:.0%} of its largest score below its own token",
            next="fx2onnx export-folder says how far logits move as it writes: export the folder again",
        )

    def _difference(self) -> VerificationError:
        width = min(self.tokens.shape[1], self.expected.shape[1])
        differs = (self.tokens[:, :width] != self.expected[:, :width]).any(axis=0)
        at = int(differs.argmax()) if differs.any() else width
        row = int((self.tokens[:, at] != self.expected[:, at]).argmax()) if at < width else 0
        got, want = ((int(a[row, at]) if at < a.shape[1] else "the end") for a in (self.tokens, self.expected))
        return VerificationError(
            "E501",
            f"token {at - self.start + 1} of row {row} differs from model.generate",
            why=f"got {got}, expected {want}",
            next=(
                "two tokens may score nearly the same: try another prompt, or the engine runner",
                "fx2onnx export-folder verifies each graph as it is written: export the folder again",
            ),
        )


@public
def verify_generation(
    folder: Any, source: str, *, max_new_tokens: int = 20, engine: str | None = None, **inputs: Any
) -> TokenVerdict:
    """Compare the tokens that an exported folder generates with those of ``model.generate(do_sample=False)`` in PyTorch.

    folder: a folder that ``export_folder`` wrote, its result, or what ``fx2onnx.load`` gives.
    source: the checkpoint that it was made from, such as ``"hf:./my-llama"``.
    max_new_tokens: the number of tokens to generate.
    engine: ``"onnxruntime"`` or ``"runner"``; default: the one that is installed.
    inputs: the prompt by name, such as ``input_ids`` and ``attention_mask``: arrays or tensors of integers.

    A folder with low-bit weights is compared with the source's weights rounded alike, where that is possible. Else
    ``TokenVerdict.agreement`` says how many tokens are equal.
    Raises:   UserError E302 where the folder holds no model, E601 where the source cannot be built.
    """
    from fx2onnx.generation import load

    if not isinstance(source, str):
        what = f"source is an object of {type(source).__name__}, not the name of a checkpoint"
        raise UserError("E001", what, next="save_pretrained(FOLDER), and source='hf:FOLDER'")
    model = load(folder, engine) if isinstance(folder, str | PathLike) else folder
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    tokens = model.generate(**arrays, max_new_tokens=max_new_tokens)
    return verdict_of(source, model, arrays, tokens, max_new_tokens)


def verdict_of(spec: str, model: LoadedModel, inputs: Mapping[str, Any], tokens: Any, new: int) -> TokenVerdict:
    """The verdict on ``tokens`` that the folder generated. The tokens of ``spec`` are made with weights rounded as the folder has
    them, where it rounds some.
    """
    expected, agreement, is_exact = _expected(spec, model, inputs, new)
    found = np.asarray(tokens)
    if model.delays:  # a row for each codebook, of which given tokens are cut off at both ends
        found, expected = (each.reshape(-1, each.shape[-1]) for each in (found, expected))
    start = 0 if model.delays else prompt_length(model, dict(inputs))
    return TokenVerdict(spec, found, expected, start, agreement, is_exact)


def _expected(
    spec: str, model: LoadedModel, inputs: Mapping[str, Any], new: int
) -> tuple[NDArray[np.int64], Agreement | None, bool]:
    """The tokens of ``spec``, the agreement of a folder that rounds with it, and whether the tokens have to be equal."""
    reference: Any = reference_model(spec, model.manifest.task, model.manifest.seed)
    own = tokens_of(reference, inputs, new)
    graphs = [onnx.load(model.folder / form.file, load_external_data=False) for form in model.manifest.graphs]
    stated = [{entry.key: entry.value for entry in graph.metadata_props} for graph in graphs]
    rounds_cache = any(state.dtype in EIGHT_BITS for form in model.manifest.graphs for state in form.cache)
    rounds_more = rounds_cache or any(PRECISION in each for each in stated)
    has_low_bits = any(QUANTIZED in each for each in stated)
    if not rounds_more and not has_low_bits:
        return own, None, True
    scores = None if has_low_bits else scores_of(reference, inputs, new)
    agreement = _agreement(spec, model, inputs, own, reference, scores)
    if rounds_more or any(in_float32(graph, str) is not None for graph in graphs):
        return own, agreement, False
    held, seen, verdict = torch.nn.Module(), dict[str, Stated](), Verdict()
    held.model = reference  # under the name that it has in the modules that folders are made of
    try:
        with contextlib.ExitStack() as stack:
            for graph, each in zip(graphs, stated, strict=True):
                said = read(each.get(QUANTIZED, ""))
                if any(said[name] != seen[name] for name in said.keys() & seen.keys()):
                    return own, agreement, False
                more = said.keys() - seen.keys()
                seen |= said
                if more:  # what another graph rounds as well is rounded once
                    stack.enter_context(as_quantized(verdict, graph, str(model.folder), held, ((), None), only=more))
            if verdict.rows:
                return own, agreement, False
            return tokens_of(reference, inputs, new), agreement, True
    except NothingToCompare:
        return own, agreement, False


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
