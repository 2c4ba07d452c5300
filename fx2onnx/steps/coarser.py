"""A file whose numbers were made coarser: what it is measured on, and what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.judge.constants import UNSEEN_RATIO
from fx2onnx.judge.engines import Run
from fx2onnx.judge.feeds import conditions_of, inputs_of
from fx2onnx.judge.tolerance import Judged
from fx2onnx.judge.verdict import Verdict
from fx2onnx.optimize.weights import DerivedTensor
from fx2onnx.precision.model import Lowered
from fx2onnx.precision.options import Precision
from fx2onnx.precision.search import in_dtype
from fx2onnx.precision.values import Feeds, difference, is_float
from fx2onnx.quantize.accuracy import rounded_as_in_graph
from fx2onnx.quantize.places import WeightPlace
from fx2onnx.steps.compare import ComparedSample, Original, random_outputs

MOST_SAMPLES = 3
"""Sets of random inputs, of several sizes where sizes are dynamic, that the keep-list of 16 bits is measured on."""


@dataclass(frozen=True)
class Drawn:
    """The random inputs that the file before was run on: what the model can be run on (``list.Measurable``)."""

    original: Original | None
    known: None = None

    def feeds(self, model: ir.Model) -> tuple[Feeds | None, str]:
        """The first inputs."""
        if self.original is None or not self.original.samples:
            return None, "no inputs were drawn"
        return self.original.samples[0].feeds, ""

    def samples(self, model: ir.Model, more: Sequence[Any]) -> tuple[list[Feeds], str]:
        """The user's ``more``, and drawn ones of one engine. Raises UserError E001 for one of other inputs."""
        inputs = {value.name for value in model.graph.inputs}
        found: list[Feeds] = []
        for each in more:
            if not isinstance(each, Mapping) or set(each) != inputs:
                wanted = ", ".join(sorted(map(str, inputs)))
                raise UserError("E001", "a sample is a dict of arrays, one for each input", why=f"they are {wanted}")
            found.append({name: np.asarray(array) for name, array in each.items()})
        drawn = [] if self.original is None else self.original.samples
        engines = {sample.engine for sample in drawn}
        engine = "runner" if "runner" in engines else next(iter(engines), "")
        found += [sample.feeds for sample in drawn if sample.engine == engine][:MOST_SAMPLES]
        return found, "" if found else "no inputs were drawn"

    def calibration(self, given: Any, model: ir.Model) -> None:
        """The user's data are runs of the file as they are."""


def same_as(model: ir.Model, path: str, engines: Sequence[str], seed: int) -> Original:
    """The original for files that compute the same as the file of ``model`` at ``path``."""
    outputs = [value.name or "" for value in model.graph.outputs]
    return Original(path, inputs_of(model), outputs, random_outputs(model), engines, seed, conditions_of(model))


# few bits: the same file on the numbers that the codes stand for
def with_numbers(model: ir.Model, places: Sequence[WeightPlace]) -> ir.Model:
    """The model with the numbers of the codes in the place of its weights, in place."""
    for place in places:
        model.graph.initializers[place.value.name or ""].const_value = _numbers_of(place)
    return model


def _numbers_of(place: WeightPlace) -> DerivedTensor:
    tensor = place.value.const_value
    assert tensor is not None
    return DerivedTensor(
        lambda: rounded_as_in_graph(place, tensor), (), tensor.dtype, tensor.shape.numpy(), place.value.name or ""
    )


def against_numbers(numbers: Original, path: str) -> Verdict:
    """The quantized file against ``numbers``. Raises VerificationError E501 where it differs."""
    with record("compare with the codes' numbers"):
        verdict = numbers.compare(path)
    if verdict.is_wrong:
        verdict.raise_if_failed(
            "the quantized file differs from the same file on the numbers of its codes",
            "another --format, or --no-verify; report it with the file",
        )
    return verdict


# 16 bits: as far off as rounding explains, and no farther
def in_16_bits(exact: Original, path: str, model: ir.Model, done: Lowered, precision: Precision) -> Verdict:
    """The file in 16 bits against ``exact``. Raises VerificationError E501 where it is off by more than rounding explains."""
    allowed = UNSEEN_RATIO * max(done.allowed, *done.outputs.values(), 0.0)

    def run_on(run: Run, sample: ComparedSample) -> Sequence[Any]:
        return run(dict(in_dtype(sample.feeds, model)))

    def judge(name: str, index: int, got: Any, want: Any, sample: ComparedSample) -> Judged:
        if name in exact.loose or not is_float(want):
            # integers may be others where what decides them is rounded: the report says how far outputs are off
            return Judged(0.0, 0.0, True, precision.dtype)
        if np.shape(got) != want.shape:
            return Judged.wrong(f"shape {list(np.shape(got))} instead of {list(want.shape)}")
        error = difference(np.asarray(got), want, precision.largest)
        return Judged(error, allowed, error <= allowed, precision.dtype)

    with record("compare in 16 bits"):
        verdict = exact.compare(path, run_on, judge)
    if verdict.is_wrong:
        verdict.raise_if_failed(
            f"the file in {precision.dtype} differs from its input by more than rounding explains",
            "--dtype mixed, --keep for what it must not round, or --no-verify",
        )
    return verdict
