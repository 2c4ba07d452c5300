"""An export in 16 bits: what its keep-list is measured on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.capture.captured import Captured
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.sample import sample_feeds
from fx2onnx.precision.model import Lowered, lower
from fx2onnx.targets.find import DEFAULT, find


def lowered(
    model: ir.Model,
    captured: Captured,
    module: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    options: ExportOptions,
) -> tuple[Lowered, list[str]]:
    """Have the model in 16 bits, in place. Returns what was done, and notes. Raises UserError E001, E202, E204."""
    precision = options.precision
    assert precision is not None
    first, problem = sample_feeds(model, captured, module, args, kwargs, options)
    samples = [] if first is None else [first]
    for more in precision.samples if first is not None else ():
        as_args, as_kwargs = ((), more) if isinstance(more, Mapping) else (more, kwargs)
        feeds, why = sample_feeds(model, captured, module, as_args, as_kwargs, options)
        if feeds is None:
            raise UserError("E001", "one of the samples does not fit the model", why=why)
        samples.append(feeds)
    done = lower(model, precision, find(options.target or DEFAULT), samples)
    notes = done.notes()
    return done, notes if first is not None else [*notes, f"nothing was measured: {problem}"]
