"""The rewritten file in 16 bits, compared with what the input file gives: as far off as rounding explains, and no farther."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.file_optimizer.compare import Comparison, Original, Row, Sample, failure_text
from fx2onnx.file_optimizer.result import ComparedFile
from fx2onnx.irx.inference import infer_types
from fx2onnx.irx.io import Written
from fx2onnx.judge.engines import ENGINES, Run
from fx2onnx.precision.model import Lowered, lower
from fx2onnx.precision.options import Precision
from fx2onnx.precision.search import in_dtype
from fx2onnx.precision.values import Feeds, difference, is_float
from fx2onnx.targets import faults
from fx2onnx.targets.fit import fit
from fx2onnx.targets.form import Target

MOST_SAMPLES = 3
"""Sets of random inputs, of several sizes where sizes are dynamic, that the keep-list is measured on."""
ALLOWED_RATIO = 4.0
"""Other inputs may be so many times as far off as those that were measured, and what is allowed of these."""


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

    def _compared(self, original: Original, path: str, model: ir.Model, done: Lowered) -> Comparison:
        result = Comparison(notes=list(original.notes))
        runs: dict[str, Run] = {}
        allowed = ALLOWED_RATIO * max(done.allowed, *done.outputs.values(), 0.0)
        for sample in original.samples:
            if sample.wanted is None:
                continue
            row = Row(sample.engine, "", sample.sizes, sample.seed)
            try:
                run = runs.get(sample.engine) or runs.setdefault(sample.engine, ENGINES[sample.engine](path))
                got = run(dict(in_dtype(sample.feeds, model)))
            except Exception as error:  # engines have classes of their own
                row.problem = f"does not run: {failure_text(error)}"
                result.rows.append(row)
                continue
            result.rows += self._judged(original, sample, got, allowed)
        result.raise_if_failed(
            f"the file in {self.options.dtype} differs from its input by more than rounding explains",
            "--dtype mixed, --keep for what it must not round, or --no-verify",
        )
        return result

    def _judged(self, original: Original, sample: Sample, got: object, allowed: float) -> list[Row]:
        assert sample.wanted is not None
        assert isinstance(got, list | tuple)
        rows = []
        for index, (name, want) in enumerate(zip(original.outputs, sample.wanted, strict=True)):
            row = Row(sample.engine, name, sample.sizes, sample.seed, by=self.options.dtype)
            rows.append(row)
            if name in original.loose or not is_float(want):
                continue  # integers may be others where what decides them is rounded: the report says how far outputs are off
            found = np.asarray(got[index])
            if found.shape != want.shape:
                row.problem = f"shape {list(found.shape)} instead of {list(want.shape)}"
                continue
            row.error, row.allowed = difference(found, want, self.options.largest), allowed
            row.problem = "differs" if row.error > allowed else ""
        return rows
