"""An export in 16 bits: what its keep-list is measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.sample import Sample
from fx2onnx.precision.model import Lowered, lower
from fx2onnx.targets.find import DEFAULT, find


def lowered(model: ir.Model, sample: Sample, options: ExportOptions) -> tuple[Lowered, list[str]]:
    """Have the model in 16 bits, in place. Returns what was done, and notes. Raises UserError E001, E202, E204."""
    precision = options.precision
    assert precision is not None
    first, problem = sample.feeds(model)
    samples = [] if first is None else [first]
    for more in precision.samples if first is not None else ():
        args, kwargs = ((), more) if isinstance(more, Mapping) else (more, sample.kwargs)
        feeds, why = replace(sample, args=args, kwargs=kwargs).feeds(model)
        if feeds is None:
            raise UserError("E001", "one of the samples does not fit the model", why=why)
        samples.append(feeds)
    done = lower(model, precision, find(options.target or DEFAULT), samples)
    notes = done.notes()
    return done, notes if first is not None else [*notes, f"nothing was measured: {problem}"]
