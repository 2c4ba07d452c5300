"""The steps from a lowered graph to the model that is written, in order: each changes the model and says what the report has of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
import torch

from fx2onnx.base.events import record
from fx2onnx.capture.captured import Captured
from fx2onnx.exporting.interface import (
    import_versions,
    limited_sizes,
    name_output_sizes,
    renamed_outputs,
    unsigned_vectors,
)
from fx2onnx.exporting.mutations import left_out, texts
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.report import Report
from fx2onnx.exporting.sample import Sample
from fx2onnx.irx import reference
from fx2onnx.lower.translations import Translations
from fx2onnx.optimize.pipelines import PICKED, run, run_default
from fx2onnx.optimize.redundant_nodes import remove_dead_nodes
from fx2onnx.semantics.folding import Function
from fx2onnx.semantics.types import Array
from fx2onnx.steps.list import STEPS, Wanted
from fx2onnx.steps.list import Step as ModelStep
from fx2onnx.targets.form import DEFAULT, find


@dataclass(frozen=True)
class Context:
    """The context of the steps of one export, beside its model."""

    module: Any
    args: Any
    kwargs: Mapping[str, Any] | None
    options: ExportOptions
    captured: Captured
    translations: Translations
    ineffective: tuple[str, ...]
    """A line for each translation that was asked for and has no effect."""

    @cached_property
    def wanted(self) -> Wanted:
        """The wanted properties of the model, for the steps that files have, too."""
        options = self.options
        sample = Sample(self.captured, self.module, self.args, self.kwargs, options.capture.input_names)
        target = find(options.target or DEFAULT)
        beyond = options.target is None and target.opset is not None and options.opset > target.opset
        fitted_to = find("onnx") if beyond else target
        return Wanted(sample, target, fitted_to, options.target is not None, True, options.quantize, options.precision)


@dataclass
class Said:
    """The lines of a step for the report."""

    notes: list[str] = field(default_factory=list)
    """Sentences on the requested steps that were done."""
    warnings: list[str] = field(default_factory=list)
    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of ``Report``."""


Step: TypeAlias = Callable[[ir.Model, Context], Said | None]


def _eager(function: Callable[..., torch.Tensor]) -> Function:
    def compute(*arrays: Array) -> Array:
        array: Array = function(*(torch.tensor(array, device="cpu") for array in arrays)).numpy()
        return np.asarray(array, dtype=arrays[0].dtype)

    return compute


EAGER_FUNCTIONS: dict[str, Function] = {
    "Cos": _eager(torch.cos),
    "Exp": _eager(torch.exp),
    "Log": _eager(torch.log),
    "Pow": _eager(torch.pow),
    "Sin": _eager(torch.sin),
}
"""ONNX operator -> function of arrays of float32 or float16, as eager PyTorch rounds its last bit; for ``fold_constants``."""


def optimize(model: ir.Model, context: Context) -> Said | None:
    """Rewrite the graph."""
    options = context.options
    if not options.optimize:
        return None
    with record("optimize"):
        are_inputs = not options.export_params or options.keep_initializers_as_inputs
        keep_weights = options.keep_weights or are_inputs or bool(options.weight_files)
        edits = Counter(
            run_default(model, keep_weights=keep_weights, functions=EAGER_FUNCTIONS, fused=options.is_fused)
        )
        may_pick = options.quantize is None and not (options.keep_weights or are_inputs)
        if may_pick and (picked := run(model, PICKED)).total:
            edits += picked.edits
            remove_dead_nodes(model)
    return Said(fields={"rewrites": {name: count for name, count in sorted(edits.items()) if count}})


def _of_all(step: ModelStep, model: ir.Model, context: Context) -> Said | None:
    """A step that files have, too."""
    done = step(model, context.wanted)
    if done is None:
        return None
    made = {"quantized": done.quantized, "precision": done.precision}
    fields = {name: each.as_dict() for name, each in made.items() if each is not None}
    return Said(done.notes, done.warnings, {**fields, **({"casts": done.casts} if done.casts else {})})


def attach_weights(model: ir.Model, context: Context) -> Said | None:
    """Have weights refer to the checkpoint's files."""
    files = context.options.weight_files
    return Said(warnings=reference.attach(model, files).notes()) if files else None


def outline_functions(model: ir.Model, context: Context) -> Said | None:
    """Have functions in the place of submodules."""
    if not context.options.functions:
        return None
    from fx2onnx.exporting.functions import outlined

    calls = outlined(model, context.module, context.options.functions).calls
    return Said(fields={"functions": dict(calls)})


def name_interface(model: ir.Model, context: Context) -> Said:
    """Give sizes of outputs and operator sets what was asked for; the names of inputs and outputs."""
    captured, options = context.captured, context.options
    missing = [*name_output_sizes(captured, model, options.capture.dynamic_axes), *renamed_outputs(captured, model)]
    missing += [
        *limited_sizes(captured),
        *dict.fromkeys(unsigned_vectors(captured)),
        *import_versions(model, options.custom_opsets),
    ]
    names = {
        "nodes_onnx": len(model.graph),
        "input_names": [value.name or "" for value in model.graph.inputs],
        "output_names": [value.name or "" for value in model.graph.outputs],
    }
    return Said(warnings=missing, fields=names)


def say_what_has_no_effect(model: ir.Model, context: Context) -> Said:
    """Report options that change nothing, extensions of other packages that could not be added, and changes of forward that are
    lost.
    """
    options, translations = context.options, context.translations
    warnings = [*context.ineffective, *translations.problems, *options.ignored]
    return Said(warnings=warnings + left_out(context.captured, options.state))


def add_own_metadata(model: ir.Model, context: Context) -> None:
    """Write the user's own entries."""
    model.metadata_props.update(context.options.properties or {})


def weights_as_inputs(model: ir.Model, context: Context) -> None:
    """Have the module's weights as inputs, in the place of initializers or beside them, where that is asked for."""
    options = context.options
    if options.export_params and not options.keep_initializers_as_inputs:
        return
    own = {weight.name for weight in context.captured.weights.values() if weight.kind != "constant"}
    for value in [value for name, value in model.graph.initializers.items() if name in own]:
        if not options.export_params:
            del model.graph.initializers[value.name or ""]
            value.const_value = None
        model.graph.inputs.append(value)


EXPORT_STEPS: tuple[Step, ...] = (
    optimize, *(partial(_of_all, step) for step in STEPS), attach_weights, outline_functions, name_interface,
    say_what_has_no_effect, add_own_metadata, weights_as_inputs,
)  # fmt: skip


def filled(context: Context, noted: Iterable[Said | None]) -> Report:
    """The report of an export: what was captured, and what its steps noted."""
    captured, of_steps = context.captured, [each for each in noted if each is not None]
    return Report(
        strategy=captured.strategy,
        strategy_reason=captured.strategy_reason,
        attempts=captured.attempts,
        opset=context.options.opset,
        nodes_captured=sum(node.op == "call_function" for node in captured.graph.nodes),
        baked=captured.baked,
        assumptions=captured.assumptions,
        mutations=texts(captured.mutations),
        warnings=[*captured.warnings, *(line for each in of_steps for line in each.warnings)],
        notes=[line for each in of_steps for line in each.notes],
        resorts=context.translations.resorts,
        **{name: value for each in of_steps for name, value in each.fields.items()},
    )
