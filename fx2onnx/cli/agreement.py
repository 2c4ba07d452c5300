"""The tokens of an exported folder beside those of the model that it was made from: ``fx2onnx.verify_generation`` and
``fx2onnx generate --verify``.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping, Sequence
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
from fx2onnx.decoding.reference_generate import FIRST_STEPS, KeptScores, reference_model, tokens_of
from fx2onnx.generation.prompt import prompt_length
from fx2onnx.judge.constants import FEWER_STAGES, STAGES
from fx2onnx.judge.movements import Movements
from fx2onnx.judge.tolerance import Grain, Judged, judged
from fx2onnx.judge.verdict import Verdict
from fx2onnx.manifest.names import DECODER_IDS
from fx2onnx.precision.options import METADATA_KEY as PRECISION
from fx2onnx.quantize.stored import METADATA_KEY as QUANTIZED
from fx2onnx.quantize.stored import Stated, read
from fx2onnx.torchcompat.reference import without_mkldnn
from fx2onnx.verify.module_state import NothingToCompare, in_float32
from fx2onnx.verify.rounded_weights import as_quantized
from fx2onnx.verify.rounding import Moved
from fx2onnx.verify.wide import InFloat64, assignable

if TYPE_CHECKING:
    from fx2onnx.generation import LoadedModel


EIGHT_BITS = ("int8", "float8_e4m3fn")
"""The dtypes of caches that are rounded."""

_OF_STEPS = (
    "forced_bos_token_id", "forced_eos_token_id", "begin_suppress_tokens", "min_new_tokens",
    "exponential_decay_length_penalty", "encoder_repetition_penalty", "encoder_no_repeat_ngram_size",
)  # fmt: skip
"""Rules of generation_config.json for the prompt, the first or the last new tokens, which would hold for each of single tokens."""


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
    logits: Judged | None = None
    """The error of the logits by which the first tokens are chosen, and what the tolerance model allows. None where nothing is compared."""
    is_exact: bool = True
    """False where the folder rounds what no model of the source rounds alike, so that no token has to be equal."""
    not_followed: Sequence[str] = ()
    """Rules of generation_config.json that transformers follows and ``generate`` does not."""

    @property
    def is_equal(self) -> bool | None:
        """True if the tokens are equal, None where they need not be and no score says that one is wrong."""
        if not self.is_exact:
            return False if self.agreement is not None and self.agreement.is_beyond_rounding else None
        return self.expected.shape == self.tokens.shape and bool((self.expected == self.tokens).all())

    @property
    def ok(self) -> bool:
        """False if a token or a logit is wrong."""
        return self.is_equal is not False and (self.logits is None or self.logits.ok)

    def raise_if_failed(self) -> None:
        """Raise VerificationError E501 if a token or a logit is wrong."""
        if self.ok:
            return
        if self.is_equal is not False:
            raise self._other_logits()
        raise self._difference() if self.is_exact else self._beyond_rounding()

    def _shown(self) -> dict[str, Any]:
        rows, new = len(self.tokens), self.tokens.shape[-1] - self.start
        return {"source": self.source, "ok": self.ok, "tokens": f"{rows} x {new}", "agreement": self.agreement}

    @property
    def _rules(self) -> list[str]:
        """The first thing to try, where a rule explains other scores."""
        named = ", ".join(self.not_followed)
        return [f"set {named} to null in generation_config.json: transformers follows it, generate does not"] * bool(
            named
        )

    def _beyond_rounding(self) -> VerificationError:
        gap = 0.0 if self.agreement is None else self.agreement.gap or 0.0
        return VerificationError(
            "E501",
            "a token differs from model.generate by more than rounding explains",
            why=f"the source scores it {gap:.0%} of its largest score below its own token",
            next=(*self._rules, "fx2onnx export-folder says how far logits move as it writes: export the folder again"),
        )

    def _other_logits(self) -> VerificationError:
        found = self.logits
        assert found is not None
        return VerificationError(
            "E501",
            "the tokens are those of model.generate, and the logits by which they are chosen are not",
            why=found.problem or f"the error is {found.error:.3g}, rounding explains {found.allowed:.3g}",
            next=(
                *self._rules,
                "the weights may be others: compare with the checkpoint that the folder was made from",
                "fx2onnx export-folder verifies each graph as it is written: export the folder again",
            ),
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
                *self._rules,
                "two tokens may score nearly the same: try another prompt, or the engine runner",
                "fx2onnx export-folder verifies each graph as it is written: export the folder again",
            ),
        )


@public
def verify_generation(
    folder: Any, source: str, *, max_new_tokens: int = 20, engine: str | None = None, **inputs: Any
) -> TokenVerdict:
    """Compare the tokens that an exported folder generates, and the logits of the first 8, with those of ``model.generate(do_sample=False)``
    in PyTorch.

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
    kept = KeptScores()
    tokens = model.generate(**arrays, max_new_tokens=max_new_tokens, logits_processor=[kept])
    return verdict_of(source, model, arrays, tokens, max_new_tokens, kept)


def verdict_of(
    spec: str, model: LoadedModel, inputs: Mapping[str, Any], tokens: Any, new: int, kept: KeptScores
) -> TokenVerdict:
    """The verdict on ``tokens`` that the folder generated, by the scores ``kept``. The tokens of ``spec`` are made with weights rounded
    as the folder has them, where it rounds some.
    """
    found = np.asarray(tokens)
    expected, agreement, is_exact, logits = _expected(spec, model, inputs, new, found, kept)
    if model.delays:  # a row for each codebook, of which given tokens are cut off at both ends
        found, expected = (each.reshape(-1, each.shape[-1]) for each in (found, expected))
    start = 0 if model.delays else prompt_length(model, dict(inputs))
    return TokenVerdict(spec, found, expected, start, agreement, logits, is_exact, model.not_followed)


def _expected(
    spec: str, model: LoadedModel, inputs: Mapping[str, Any], new: int, tokens: NDArray[np.int64], kept: KeptScores
) -> tuple[NDArray[np.int64], Agreement | None, bool, Judged | None]:
    """The tokens of ``spec``, the agreement of a folder that rounds with it, whether the tokens have to be equal, and what the scores
    ``kept`` of the folder's ``tokens`` are then.
    """
    reference: Any = reference_model(spec, model.manifest.task, model.manifest.seed)
    graphs = [onnx.load(model.folder / form.file, load_external_data=False) for form in model.manifest.graphs]
    stated = [{entry.key: entry.value for entry in graph.metadata_props} for graph in graphs]
    rounds_cache = any(state.dtype in EIGHT_BITS for form in model.manifest.graphs for state in form.cache)
    rounds_more = rounds_cache or any(PRECISION in each for each in stated)
    has_low_bits = any(QUANTIZED in each for each in stated)
    is_alike = not rounds_more and not has_low_bits
    scores = None if model.delays or has_low_bits else KeptScores(FIRST_STEPS if is_alike else None)
    own = tokens_of(reference, inputs, new, scores)
    start = prompt_length(model, dict(inputs)) if not model.delays else 0
    if is_alike:
        return own, None, True, _judged(reference, inputs, (kept, scores), (tokens, own), start)
    agreement = _agreement(spec, model, inputs, own, reference, np.array(scores) if scores else None)
    if rounds_more or any(in_float32(graph, str) is not None for graph in graphs):
        return own, agreement, False, None
    held, seen, verdict = torch.nn.Module(), dict[str, Stated](), Verdict()
    held.model = reference  # under the name that it has in the modules that folders are made of
    try:
        with contextlib.ExitStack() as stack:
            for graph, each in zip(graphs, stated, strict=True):
                said = read(each.get(QUANTIZED, ""))
                if any(said[name] != seen[name] for name in said.keys() & seen.keys()):
                    return own, agreement, False, None
                more = said.keys() - seen.keys()
                seen |= said
                if more:  # what another graph rounds as well is rounded once
                    stack.enter_context(as_quantized(verdict, graph, str(model.folder), held, ((), None), only=more))
            if verdict.rows:
                return own, agreement, False, None
            scores = None if model.delays else KeptScores()
            rounded = tokens_of(reference, inputs, new, scores)
            logits = _judged(reference, inputs, (kept, scores), (tokens, rounded), start)
            return rounded, agreement, True, logits
    except NothingToCompare:
        return own, agreement, False, None


def _judged(
    reference: Any,
    inputs: Mapping[str, Any],
    scores: tuple[KeptScores, KeptScores | None],
    tokens: tuple[NDArray[np.int64], NDArray[np.int64]],
    start: int,
) -> Judged | None:
    """The folder's scores beside the source's, of all steps at which both had the same tokens and no row has ended; None where there are
    none. The source runs again in float64, and rounding otherwise, where its numbers alone do not settle it.
    """
    ours, theirs = scores
    if not ours or not theirs or ours[0].shape != theirs[0].shape:
        return None
    steps, width = min(len(ours), len(theirs)), min(each.shape[1] for each in tokens)
    ends = reference.generation_config.eos_token_id
    goes_on = ~np.isin(tokens[1][:, start:width], [] if ends is None else ends)
    goes_on &= tokens[0][:, start:width] == tokens[1][:, start:width]
    is_open = np.concatenate([np.ones_like(goes_on[:, :1]), np.logical_and.accumulate(goes_on, axis=1)], axis=1)

    def rows(kept: KeptScores) -> Any:
        """Shapes: scores [steps][batch, vocabulary] -> [steps at which rows are open, vocabulary]."""
        return np.concatenate([each[is_open[:, step]] for step, each in zip(range(steps), kept, strict=False)])

    def again(mode: contextlib.AbstractContextManager[Any]) -> Any:
        kept = KeptScores(steps, tokens[1])
        try:
            with without_mkldnn(), assignable(), mode:
                tokens_of(reference, inputs, steps, kept)
        except Exception:  # models are code of others, which may not run so
            return None
        return rows(kept)

    finite = torch.finfo(reference.dtype)
    grain = Grain(finite.eps, finite.smallest_normal)
    got, want = rows(ours), rows(theirs)
    found = judged(got, want, exact=lambda: again(InFloat64()), grain=grain, reference="model.generate")
    seeds, movements = itertools.count(1), Movements(want, grain)
    for count, units in STAGES[:FEWER_STAGES] if not found.ok and not found.problem else ():
        runs = [again(Moved(next(seeds), units, least_epsilon=grain.epsilon)) for _ in range(count)]
        for run in runs:
            movements.add(want if run is None else run)
        settled = movements.judge(got)
        if settled.ok:
            return settled
    return found


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
