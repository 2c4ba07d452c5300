"""The rewritten file in 16 bits, compared with what the input file gives: as far off as rounding explains, and no farther."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.file_optimizer.compare import Original, Sample
from fx2onnx.file_optimizer.result import ComparedFile
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.io import Written
from fx2onnx.judge.constants import UNSEEN_RATIO
from fx2onnx.judge.engines import Run
from fx2onnx.judge.tolerance import Judged
from fx2onnx.judge.verdict import Verdict
from fx2onnx.precision.model import Lowered, lower
from fx2onnx.precision.options import Precision
from fx2onnx.precision.search import in_dtype
from fx2onnx.precision.values import Feeds, difference, is_float
from fx2onnx.targets import faults
from fx2onnx.targets.fit import fit
from fx2onnx.targets.form import Target

MOST_SAMPLES = 3
"""Sets of random inputs, of several sizes where sizes are dynamic, that the keep-list is measured on."""


@dataclass
class Lowerer:
    """Has models that ``fresh`` makes in 16 bits: the rewritten graph."""

    options: Precision
    target: Target
    fresh: Callable[[], ir.Model]
    write: Callable[[ir.Model, str], Written]

    def run(self, folder: str, name: str, original: Original | None) -> ComparedFile[Lowered]:
        """Write the file into ``folder``, compared where ``original`` was.

        Raises: UserError E001, E202, E204 (``lower``), E401 for samples that do not fit; VerificationError E501 where it is off.
        """
        model = self.fresh()
        infer_types(model)
        done = lower(model, self.options, self.target, self._samples(original, model))
        fit(model, self.target)
        faults.avoid(model, self.target)
        path = os.path.join(folder, self.options.word)
        os.mkdir(path)
        written = self.write(model, os.path.join(path, name))
        comparison = None
        if original is not None:
            with record("compare in 16 bits"):
                comparison = self._compared(original, written.path, model, done)
        return ComparedFile(model, written, done, comparison)

    def _samples(self, original: Original | None, model: ir.Model) -> list[Feeds]:
        inputs = {value.name for value in model.graph.inputs}
        found: list[Feeds] = []
        for each in self.options.samples:
            if not isinstance(each, Mapping) or set(each) != inputs:
                wanted = ", ".join(sorted(map(str, inputs)))
                raise UserError("E001", "a sample is a dict of arrays, one for each input", why=f"they are {wanted}")
            found.append({name: np.asarray(array) for name, array in each.items()})
        drawn = [] if original is None else original.samples
        engines = {sample.engine for sample in drawn}
        engine = "runner" if "runner" in engines else next(iter(engines), "")
        return found + [sample.feeds for sample in drawn if sample.engine == engine][:MOST_SAMPLES]

    def _compared(self, original: Original, path: str, model: ir.Model, done: Lowered) -> Verdict:
        allowed = UNSEEN_RATIO * max(done.allowed, *done.outputs.values(), 0.0)

        def run_on(run: Run, sample: Sample) -> Sequence[Any]:
            return run(dict(in_dtype(sample.feeds, model)))

        def judge(name: str, index: int, got: Any, want: Any, sample: Sample) -> Judged:
            if name in original.loose or not is_float(want):
                # integers may be others where what decides them is rounded: the report says how far outputs are off
                return Judged(0.0, 0.0, True, self.options.dtype)
            if np.shape(got) != want.shape:
                return Judged.wrong(f"shape {list(np.shape(got))} instead of {list(want.shape)}")
            error = difference(np.asarray(got), want, self.options.largest)
            return Judged(error, allowed, error <= allowed, self.options.dtype)

        result = original.compare(path, run_on, judge)
        if result.is_wrong:
            result.raise_if_failed(
                f"the file in {self.options.dtype} differs from its input by more than rounding explains",
                "--dtype mixed, --keep for what it must not round, or --no-verify",
            )
        return result
