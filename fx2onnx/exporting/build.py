"""From a module to a model in memory: capture, lower, optimize. Imports torch and all that an export needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import onnx_ir as ir
import torch

from fx2onnx.aten_map.fused_attention import FUSED
from fx2onnx.aten_map.grouped import experts
from fx2onnx.base.errors import UserError
from fx2onnx.base.events import record
from fx2onnx.capture.captured import Captured
from fx2onnx.capture.driver import capture
from fx2onnx.capture.recording.control_flow import decides_by_sizes
from fx2onnx.exporting.mutations import check_state, initial_state
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.exporting.result import ExportResult, OwnedModel
from fx2onnx.exporting.sample import check_weights_may_change
from fx2onnx.exporting.steps import EXPORT_STEPS, Context, filled
from fx2onnx.irx.schema import require_opset
from fx2onnx.lower.loop import lower
from fx2onnx.lower.translations import Translations, translations_of
from fx2onnx.model_patches.library import LibraryPatches
from fx2onnx.targets.form import chosen_opset
from fx2onnx.torchcompat.modules import ModuleTree


def build(module: Any, args: Any, kwargs: Mapping[str, Any] | None, options: ExportOptions) -> ExportResult:
    """The model in memory, and what its making has to report."""
    options = _for_packed(module, options)
    require_opset(options.opset)
    for keyword, is_asked in (("quantize=", options.quantize is not None), ("dtype=", options.precision is not None)):
        if is_asked:
            check_weights_may_change(options, keyword)
    fused = _fused_translations() if options.is_fused else {}
    given, ineffective = translations_of(options.custom_translation_table)
    translations = Translations({**_own_translations(), **fused, **given, **(options.custom_translations or {})})
    captured = _capture(module, args, kwargs, options, translations)
    check_state(captured, options.state)
    try:
        model = _lowered(captured, options, translations)
    except UserError as error:
        if not decides_by_sizes(captured.graph):
            raise
        captured = _capture(module, args, kwargs, options, translations, untranslated=error)
        model = _lowered(captured, options, translations)
    owned = OwnedModel(model)
    context = Context(module, args, kwargs, options, captured, translations, tuple(ineffective))
    report = filled(context, [step(model, context) for step in EXPORT_STEPS])
    result = ExportResult(owned, report, captured.restore, options)
    if isinstance(module, torch.export.ExportedProgram):
        result.exported_program = module
    if options.state == "io":
        result.initial_state = initial_state(captured, model, options)
    return result


def _own_translations() -> dict[Any, Callable[..., Any]]:
    """Translations of the operators that sources put into modules."""
    suppression = sys.modules.get("fx2onnx.sources.suppression")
    if suppression is None:
        return {}
    from fx2onnx.aten_map.namespaces.torchvision import suppressed

    return {suppression.SUPPRESSED: suppressed}


def _fused_translations() -> dict[Any, Callable[..., Any]]:
    """Translations into onnxruntime's own operators."""
    if "transformers" not in sys.modules:
        return FUSED
    from fx2onnx.model_patches.transformers.experts import EXPERTS

    return FUSED | {EXPERTS: experts}


def _for_packed(module: Any, options: ExportOptions) -> ExportOptions:
    """The options with the translations and the opset for layers of a quantized checkpoint, if the module has some."""
    packed = sys.modules.get("fx2onnx.sources.hf.packed_linear")  # without which there are none
    if packed is None or not isinstance(module, torch.nn.Module):
        return options
    if not any(isinstance(part, packed.PackedModule) for part in ModuleTree(module).modules):
        return options
    from fx2onnx.exporting import packed_blocks
    from fx2onnx.exporting.packed import LEAST_OPSET, translation

    custom: dict[Any, Any] = {
        packed.PackedLinear: translation(options.target, by_reference=bool(options.weight_files)),
        **packed_blocks.translations(options.target),
        **(options.custom_translations or {}),
    }
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
        if single_calls is not None and asked.strategy == "auto":
            asked = replace(asked, strategy="fake")
        captured = capture(
            module,
            args,
            kwargs,
            asked,
            keep=translations.keep,
            single_calls=single_calls,
            patches=LibraryPatches(options.is_fused),
            untranslated=untranslated,
        )
    if capturing is not None:
        capturing.args["strategy"] = captured.strategy
    return captured
