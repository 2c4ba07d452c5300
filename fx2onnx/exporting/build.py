"""From a module to a model in memory: capture, lower, optimize. Imports torch and all that an export needs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.fused_attention import FUSED
from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.capture.captured import OF_CALLER, Captured, Mutation
from fx2onnx.capture.driver import capture
from fx2onnx.capture.recording.control_flow import decides_by_sizes
from fx2onnx.exporting.eager_functions import EAGER_FUNCTIONS
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.output_sizes import name_output_sizes
from fx2onnx.exporting.report import Report
from fx2onnx.exporting.result import ExportResult, OwnedModel
from fx2onnx.exporting.sample import Sample, check_weights_may_change
from fx2onnx.exporting.shortfalls import import_versions, limited_sizes, renamed_outputs, require_outputs
from fx2onnx.exporting.target import fit_to_target
from fx2onnx.irx import reference
from fx2onnx.irx.schema import require_opset
from fx2onnx.lower.loop import lower
from fx2onnx.lower.translation_table import translations_of
from fx2onnx.lower.translations import Translations
from fx2onnx.model_patches.library import LibraryPatches
from fx2onnx.optimize.dead_nodes import remove_dead_nodes
from fx2onnx.optimize.pipelines import PICKED, run, run_default
from fx2onnx.targets.find import chosen_opset

if TYPE_CHECKING:
    from fx2onnx.precision.model import Lowered
    from fx2onnx.quantize.model import Quantized


def build(module: Any, args: Any, kwargs: Mapping[str, Any] | None, options: ExportOptions) -> ExportResult:
    """The model in memory, and what its making has to report."""
    options = _for_packed(module, options)
    require_opset(options.opset)
    for keyword, is_asked in (("quantize=", options.quantize is not None), ("dtype=", options.precision is not None)):
        if is_asked:
            check_weights_may_change(options, keyword)
    fused = FUSED if options.is_fused else {}
    given, ineffective = translations_of(options.custom_translation_table)
    translations = Translations({**fused, **given, **(options.custom_translations or {})})
    captured = _capture(module, args, kwargs, options, translations)
    _check_state(captured, options.state)
    try:
        model = _lowered(captured, options, translations)
    except UserError as error:
        if not decides_by_sizes(captured.graph):
            raise
        captured = _capture(module, args, kwargs, options, translations, untranslated=error)
        model = _lowered(captured, options, translations)
    owned = OwnedModel(model)
    if options.optimize:
        with record("optimize"):
            are_inputs = not options.export_params or options.keep_initializers_as_inputs
            keep_weights = options.keep_weights or are_inputs or bool(options.weight_files)
            run_default(model, keep_weights=keep_weights, functions=EAGER_FUNCTIONS, fused=options.is_fused)
            may_pick = options.quantize is None and not (options.keep_weights or are_inputs)
            if may_pick and run(model, PICKED).total:
                remove_dead_nodes(model)
    sample = Sample(captured, module, args, kwargs, options.capture.input_names)
    rounded, halved, notes = _in_fewer_bits(model, sample, options)
    fitted = fit_to_target(model, options)
    attached = reference.attach(model, options.weight_files) if options.weight_files else None
    called = _with_functions(model, module, options) if options.functions else {}
    missing = [*name_output_sizes(captured, model, options.capture.dynamic_axes), *renamed_outputs(captured, model)]
    missing += [*limited_sizes(captured), *import_versions(model, options.custom_opsets)]
    report = _report(captured, model, options, translations.resorts)
    report.casts = dict(fitted.casts)
    report.warnings += [*missing, *ineffective, *translations.problems, *fitted.warnings, *options.ignored]
    if rounded is not None:
        report.quantized = rounded.as_dict()
    if halved is not None:
        report.precision = halved.as_dict()
        report.warnings += halved.warnings
    report.functions = called
    report.notes += notes
    report.warnings += attached.notes() if attached is not None else []
    report.warnings += _left_out(captured, options.state)
    if not options.export_params:
        for value in _weights_of(model, captured):
            del model.graph.initializers[value.name or ""]
            value.const_value = None
            model.graph.inputs.append(value)
    elif options.keep_initializers_as_inputs:
        model.graph.inputs.extend(_weights_of(model, captured))
    result = ExportResult(owned, report, captured.restore, options)
    if options.state == "io":
        result.initial_state = _initial_state(captured, model, options)
    return result


def _in_fewer_bits(
    model: ir.Model, sample: Sample, options: ExportOptions
) -> tuple[Quantized | None, Lowered | None, list[str]]:
    """Quantise the model, then have it in 16 bits, in place, where that is asked for. Returns what was done, and notes."""
    rounded: Quantized | None = None
    halved: Lowered | None = None
    notes: list[str] = []
    if options.quantize:
        from fx2onnx.exporting.quantized import quantized

        rounded, notes = quantized(model, sample, options)
    if options.precision:
        from fx2onnx.exporting.precise import lowered

        halved, more = lowered(model, sample, options)
        notes = notes + more
    return rounded, halved, notes


def _with_functions(model: ir.Model, module: Any, options: ExportOptions) -> dict[str, int]:
    """Have functions in the place of submodules. Returns how often each is called."""
    from fx2onnx.exporting.functions import outlined

    return dict(outlined(model, module, options.functions).calls)


def _check_listed(module: Any) -> None:
    """Raises UserError E107 where ``parameters()`` of the module itself fails."""
    if not isinstance(module, torch.nn.Module):
        return
    try:
        list(module.modules())
    except TypeError as cause:
        raise UserError(
            "E107",
            f"the parameters of {type(module).__name__} cannot be listed",
            why=f"torch.nn.Module.parameters() raises TypeError: {cause}",
            next="give the class of the module a __hash__, such as torch.nn.Module.__hash__",
        ) from cause


def _for_packed(module: Any, options: ExportOptions) -> ExportOptions:
    """Where the module has layers of a quantised checkpoint, the options with what translates them and with their opset."""
    _check_listed(module)
    packed = sys.modules.get("fx2onnx.sources.hf.packed_linear")  # without which there are none
    if packed is None or not isinstance(module, torch.nn.Module):
        return options
    if not any(isinstance(part, packed.PackedLinear) for part in module.modules()):
        return options
    from fx2onnx.exporting.packed import LEAST_OPSET, translation

    custom = {packed.PackedLinear: translation(options.target, by_reference=bool(options.weight_files))} | dict(
        options.custom_translations or {}
    )
    opset = options.opset_version or chosen_opset(options.target, None, max(options.opset, LEAST_OPSET))
    return replace(options, custom_translations=custom, opset_version=opset)


def _lowered(captured: Captured, options: ExportOptions, translations: Translations) -> ir.Model:
    with record("lower"):
        return lower(
            captured,
            translations.table,
            options.opset,
            options.metadata,
            lift_state=options.state == "io",
            resorts=translations.resorts,
            has_checks=options.checks,
        )


def _capture(
    module: Any,
    args: Any,
    kwargs: Mapping[str, Any] | None,
    options: ExportOptions,
    translations: Translations,
    untranslated: UserError | None = None,
) -> Captured:
    with record("capture") as capturing:
        asked, single_calls = options.capture, translations.single_calls(module)
        if single_calls is not None and asked.rung == "auto":
            asked = replace(asked, rung="fake")
        captured = capture(
            module,
            args,
            kwargs,
            asked,
            keep=translations.keep,
            single_calls=single_calls,
            patches=LibraryPatches(),
            untranslated=untranslated,
        )
    if capturing is not None:
        capturing.args["rung"] = captured.rung
    return captured


def _mutations(captured: Captured) -> list[str]:
    return _texts(captured.mutations)


def _texts(mutations: Iterable[Mutation]) -> list[str]:
    return [f"{m.kind} {m.name}" + (f"   ({m.where})" if m.where else "") for m in mutations]


def _refuse_shared(captured: Captured) -> None:
    """Raise UserError E106 where two places that forward gives tensors of their own hold one tensor before."""
    seen: dict[int, str] = {}
    for mutation in captured.mutations:
        if mutation.before is None or mutation.kind == "input":
            continue
        if id(mutation.before) in seen:
            raise UserError(
                "E106",
                f"{seen[id(mutation.before)]} and {mutation.name} are one tensor before the call",
                where=mutation.where,
                why="forward gives each a value of its own, which the file has an input for",
                next=f"give each a tensor of its own before the export, such as {mutation.name} = {mutation.name}.clone()",
            )
        seen[id(mutation.before)] = mutation.name


def _left_out(captured: Captured, state: str) -> list[str]:
    """What forward changes and the file does not; with state as inputs and outputs that is what cannot be a tensor there."""
    found: list[str] = []
    if state == "warn":
        lost = [each for each in captured.mutations if each.kind != "argument" or each.node is None]
        return [f"forward changes the {text}; the file does not" for text in _texts(lost)]
    if state != "io":
        return found
    for mutation, text in zip(captured.mutations, _mutations(captured), strict=True):
        if mutation.node is None and mutation.kind == "argument":
            why = "return it, or pass a plain object that holds it, for the file to have it as an output"
            found.append(f"forward changes the {text}; the file does not: {why}")
        elif mutation.node is None:
            why = "it holds no tensor afterwards; make it a tensor, such as a buffer, for the file to carry it"
            found.append(f"forward changes the {text}; the file does not: {why}")
        elif mutation.before is None and mutation.kind not in OF_CALLER:
            why = (
                "it holds no tensor before; call the module once before the export, or set it, for the file to carry it"
            )
            found.append(
                f"forward changes the {text}; the file has its new value, and does what the first call does: {why}"
            )
    return found


def _check_state(captured: Captured, state: str) -> None:
    require_outputs(captured, has_state=state == "io")
    if state == "error":
        _refuse_mutations(captured)
    elif state == "io":
        _refuse_shared(captured)


def _initial_state(captured: Captured, model: ir.Model, options: ExportOptions) -> dict[str, Any]:
    """What state inputs hold before the first run. With gradients also buffers that are only written: evaluation may read them."""
    inputs = {value.name for value in model.graph.inputs}
    if options.capture.gradients:
        inputs |= {mutation.name for mutation in captured.mutations}
    return {
        mutation.name: mutation.before.detach()
        for mutation in captured.mutations
        if mutation.before is not None and mutation.name in inputs and mutation.kind != "input"
    }


def _refuse_mutations(captured: Captured) -> None:
    """Raise UserError E106 where forward changes something that stays."""
    lost = [each for each in captured.mutations if each.kind != "argument" or each.node is None]
    if not lost:
        return
    first, others = lost[0], _texts(lost)[1:]
    raise UserError(
        "E106",
        f"forward changes the {first.kind} {first.name}",
        where=first.where,
        why="an ONNX model keeps nothing between runs" + (f"; also: {', '.join(others)}" if others else ""),
        next='export with state="warn" to leave the change out of the file',
    )


def _report(captured: Captured, model: ir.Model, options: ExportOptions, resorts: dict[str, str]) -> Report:
    return Report(
        rung=captured.rung,
        rung_reason=captured.rung_reason,
        attempts=captured.attempts,
        opset=options.opset,
        nodes_captured=sum(node.op == "call_function" for node in captured.graph.nodes),
        nodes_onnx=len(model.graph),
        baked=captured.baked,
        input_names=[value.name or "" for value in model.graph.inputs],
        output_names=[value.name or "" for value in model.graph.outputs],
        assumptions=captured.assumptions,
        mutations=_mutations(captured),
        warnings=list(captured.warnings),
        resorts=resorts,
    )


def _weights_of(model: ir.Model, captured: Captured) -> list[ir.Value]:
    """The module's parameters and buffers among the initializers."""
    own = {weight.name for weight in captured.weights.values() if weight.kind != "constant"}
    return [value for name, value in model.graph.initializers.items() if name in own]
