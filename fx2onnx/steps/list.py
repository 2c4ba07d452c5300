"""The steps that an export and an optimized file have in common, in order: each changes the model, and says what was done."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.targets import faults
from fx2onnx.targets.fit import fit, float64_refusal, named, refusal
from fx2onnx.targets.form import Target

if TYPE_CHECKING:
    from fx2onnx.precision.model import Lowered
    from fx2onnx.precision.options import Precision
    from fx2onnx.quantize.accuracy import Feeds
    from fx2onnx.quantize.calibration import Data
    from fx2onnx.quantize.model import Quantized
    from fx2onnx.quantize.options import Quantize
    from fx2onnx.quantize.places import WeightPlace

IR_OF_CODES = {ir.DataType.INT4: 10, ir.DataType.UINT4: 10, ir.DataType.FLOAT8E4M3FN: 9}
"""The first IR version with codes of these dtypes; all others are in each."""


class Measurable(Protocol):
    """The interface of inputs on which the model can be run while it is made."""

    @property
    def known(self) -> Collection[str] | None:
        """Names of the weights that may be quantized, the module's; None: all that products and convolutions read."""
        ...

    def feeds(self, model: ir.Model) -> tuple[Feeds | None, str]:
        """Inputs of the model, or why there are none."""
        ...

    def samples(self, model: ir.Model, more: Sequence[Any]) -> tuple[list[Feeds], str]:
        """Several inputs, with the user's ``more``; or none, and why."""
        ...

    def calibration(self, given: Any, model: ir.Model) -> Data | None:
        """The user's calibration data as runs of the model; None: as they are."""
        ...


@dataclass(frozen=True)
class Wanted:
    """The wanted properties of a model, from whatever it was made."""

    measurable: Measurable
    target: Target
    """The target for which codes and 16 bits are chosen."""
    fitted_to: Target | None
    """The target on which the model has to run; None: it stays as it is."""
    refuses_left: bool
    """True if a node that ``fitted_to`` cannot run is an error."""
    refuses_narrower: bool
    """True if a node in float64 that ``fitted_to`` runs in float32 alone is an error."""
    quantize: Quantize | None = None
    precision: Precision | None = None


@dataclass
class Notes:
    """The notes of a step on its edits."""

    notes: list[str] = field(default_factory=list)
    """Sentences on the requested steps that were done."""
    warnings: list[str] = field(default_factory=list)
    quantized: Quantized | None = None
    places: list[WeightPlace] = field(default_factory=list)
    """The places of quantized weights, with their numbers."""
    precision: Lowered | None = None
    casts: dict[str, int] = field(default_factory=dict)
    """``bfloat16 MatMul in float`` -> number of nodes between casts, since the target has no kernel."""
    forms: dict[str, int] = field(default_factory=dict)
    """The further changes for the target, and the number of each."""


Step: TypeAlias = Callable[[ir.Model, Wanted], Notes | None]


def quantize(model: ir.Model, wanted: Wanted) -> Notes | None:
    """Quantize the weights. Raises UserError E001, E202, E204 (``plan_for``), E302, E401 (calibration data)."""
    options, measurable = wanted.quantize, wanted.measurable
    if options is None:
        return None
    from fx2onnx.quantize.model import quantize_measured

    feeds, problem = measurable.feeds(model) if options.accuracy else (None, "")
    if options.keep_worst and feeds is None:
        raise UserError(
            "E001",
            "keep_worst needs to run the model",
            why=problem or "accuracy=False",
            next="leave out keep_worst, or what keeps the model from being run",
        )
    data = None if options.calibration is None else measurable.calibration(options.calibration, model)
    with record("quantize"):
        done, places = quantize_measured(model, options, wanted.target, feeds, measurable.known, data)
    dtypes = [value.dtype for value in model.graph.initializers.values() if value.dtype in IR_OF_CODES]
    model.ir_version = max([model.ir_version or 0, *(IR_OF_CODES[dtype] for dtype in dtypes)])
    notes = [*done.notes(), *([f"the layers were not measured: {problem}"] if problem else [])]
    return Notes(notes, quantized=done, places=places)


def to_half(model: ir.Model, wanted: Wanted) -> Notes | None:
    """Have weights and compute in 16 bits. Raises UserError E001, E202, E204 (``precision.model.lower``)."""
    precision = wanted.precision
    if precision is None:
        return None
    from fx2onnx.precision.model import lower

    samples, problem = wanted.measurable.samples(model, precision.samples)
    done = lower(model, precision, wanted.target, samples)
    notes = [*done.notes(), *([] if samples else [f"nothing was measured: {problem}"])]
    return Notes(notes, done.warnings, precision=done)


def fit_to_target(model: ir.Model, wanted: Wanted) -> Notes | None:
    """Casts and other forms where the target has no kernel for a dtype, and around its known faults.

    Raises: UserError E204 where nodes cannot be run, and where nodes in float64 could be in float32 alone, if that is refused;
    with all such nodes.
    """
    target = wanted.fitted_to
    if target is None:
        return None
    with record("fit to target"):
        fitted = fit(model, target)
        avoided = faults.avoid(model, target)
    if fitted.only_narrower and wanted.refuses_narrower:
        raise float64_refusal(fitted.only_narrower, target.name)
    if fitted.left and wanted.refuses_left:
        raise refusal(fitted.left, target.name)
    warnings = [f"{target.name} has no kernel for {named(fitted.left)}"] if fitted.left else []
    return Notes(warnings=warnings, casts=dict(fitted.casts), forms={**fitted.forms, **avoided})


STEPS: tuple[Step, ...] = (quantize, to_half, fit_to_target)
"""The steps behind the rewrites. Fitting is last: codes and 16 bits bring operators and dtypes that a target may
lack."""
