"""The weights of an export in few bits: which may change, and the sample that they are measured on."""

from __future__ import annotations

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.exporting.calibration import data_for
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.sample import Sample
from fx2onnx.quantize.measured import quantize_measured
from fx2onnx.quantize.model import Quantized
from fx2onnx.targets.find import DEFAULT, find


def quantized(model: ir.Model, sample: Sample, options: ExportOptions) -> tuple[Quantized, list[str]]:
    """Quantise the model in place. Returns what was done, and notes. Raises UserError E001, E202, E302, E401."""
    asked = options.quantize
    assert asked is not None
    known = {weight.name for weight in sample.captured.weights.values() if weight.kind != "constant"}
    feeds, problem = None, ""
    if asked.accuracy:
        feeds, problem = sample.feeds(model)
    if asked.keep_worst and feeds is None:
        raise UserError("E001", "keep_worst needs to run the model", why=problem or "accuracy=False")
    data = None if asked.calibration is None else data_for(asked.calibration, model)
    with record("quantise"):
        done, _ = quantize_measured(model, asked, find(options.target or DEFAULT), feeds, known, data)
    notes = done.notes()
    return done, notes if not problem else [*notes, f"the layers were not measured: {problem}"]
