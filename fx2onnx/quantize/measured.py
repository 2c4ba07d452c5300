"""Plan, measure, quantise, measure: what exports and files have in common."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir

from fx2onnx.base.events import record
from fx2onnx.quantize.accuracy import Feeds, errors_of, operands_of, relative, run
from fx2onnx.quantize.calibrated import fitted
from fx2onnx.quantize.calibration import Data, data_of
from fx2onnx.quantize.model import Quantized, plan_for, quantize, without
from fx2onnx.quantize.options import Quantize
from fx2onnx.quantize.places import QuantizationPlan, WeightPlace
from fx2onnx.targets.form import Target


def quantize_measured(
    model: ir.Model,
    options: Quantize,
    target: Target,
    feeds: Feeds | None,
    known: Collection[str] | None = None,
    data: Data | None = None,
) -> tuple[Quantized, list[WeightPlace]]:
    """Quantise the weights of ``model`` in place. With ``feeds``, what the layers and the outputs do on them is measured. Returns
    what was done, and the places as they were. data: the calibration's, where it is not as the options have it.

    Raises: UserError E001, E202 (``plan_for``), E302, E401 (``fitted``).
    """
    plan = plan_for(model, options, target, known)
    worth: dict[str, dict[str, Any]] = {}
    if options.fitting is not None:
        with record("calibrate"):
            found = fitted(model, plan, options, data or data_of(options.calibration, model))
        plan, worth = found.plan, found.layers
    if feeds is None:
        with record("quantise"):
            return _with(quantize(model, plan, options), worth), plan.places
    opset = model.graph.opset_imports.get("", 0)
    with record("measure layers"):
        operands = [operand for place in plan.places for _, operand in operands_of(place)]
        values = run(model, feeds, operands)
        errors = errors_of(plan.places, values, opset)
        usual = [_nearest(place) for place in plan.places if place.weight.given is not None]
        for name, error in errors_of(usual, values, opset).items():
            worth[name] |= {"error_nearest": error}
    plan = _without_worst(plan, errors, options.keep_worst)
    with record("quantise"):
        done = _with(quantize(model, plan, options), worth)
    for name, layer in done.layers.items():
        if name in errors:
            layer["error"] = errors[name]
    with record("measure outputs"):
        after = run(model, feeds)
    names = [value.name or "" for value in model.graph.outputs]
    done.outputs = {name: relative(after[name], values[name]) for name in names if _is_float(name, values)}
    return done, plan.places


def _with(done: Quantized, worth: Mapping[str, dict[str, Any]]) -> Quantized:
    for name, layer in done.layers.items():
        layer.update(worth.get(name, {}))
    return done


def _nearest(place: WeightPlace) -> WeightPlace:
    return replace(place, weight=replace(place.weight, given=None))


def _is_float(name: str, values: Feeds) -> bool:
    return name in values and values[name].dtype.kind in "fV"


def _without_worst(plan: QuantizationPlan, errors: Mapping[str, float], count: int) -> QuantizationPlan:
    worst = sorted(errors, key=lambda name: -errors[name])[:count]
    return without(plan, {name: f"its outputs would change by {errors[name]:.2%}" for name in worst})
