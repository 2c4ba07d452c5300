"""fx2onnx as a backend of transformers' exporters: importing this module registers the export format ``fx2onnx``."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import torch

from fx2onnx.base.errors import UserError
from fx2onnx.base.packages import importing
from fx2onnx.exporting import pipeline
from fx2onnx.exporting.options import ExportOptions
from fx2onnx.torchcompat.pytrees import pytree, registered_meanwhile

with importing():
    from transformers.exporters import OnnxConfig, OnnxExporter, exporter_dynamo, register_backend, utils
    from transformers.exporters.metadata import build_export_metadata, record_output_structure
    from transformers.exporters.runners.runner_onnx import OnnxModelRunner

FORMAT = "fx2onnx"
"""``export_format`` of transformers' configs."""


@dataclass
class Fx2OnnxConfig(OnnxConfig):  # type: ignore[misc]
    """transformers' ``OnnxConfig`` for this backend; ``ort_fusions="cpu"`` asks for onnxruntime's own operators."""

    export_format: str = FORMAT


class Fx2OnnxExporter(OnnxExporter):  # type: ignore[misc]
    """transformers' ``OnnxExporter`` with fx2onnx in the place of torch.export and torch.onnx.export."""

    export_format = FORMAT
    config_class = Fx2OnnxConfig
    required_packages: ClassVar[list[str]] = ["torch", "onnx"]
    tested_versions: ClassVar[dict[str, str]] = {}

    def export_program(self, model: Any, sample_inputs: MutableMapping[str, Any], config: Any) -> tuple[Any, Any]:
        """One graph as an ``onnx_ir.Model``, and what transformers records of it. Raises: UserError."""
        with registered_meanwhile():
            return self._export(model, sample_inputs, config)

    def _export(self, model: Any, sample_inputs: MutableMapping[str, Any], config: Any) -> tuple[Any, Any]:
        _check(config)
        model, inputs, flags = utils.prepare_for_export(model, sample_inputs)
        exporter_dynamo.register_cache_pytrees_for_model(model)
        shapes = config.dynamic_shapes
        if config.dynamic and shapes is None:
            shapes = exporter_dynamo.get_auto_dynamic_shapes(inputs)
        with (
            torch.no_grad(),
            exporter_dynamo.reset_model_state(model),
            exporter_dynamo.patch_model_config(model, flags),
        ):
            with utils.patch_model_outputs(model) as (*found, outputs):
                model(**copy.deepcopy(dict(inputs)))  # which says what the tensors in caches and results are called
            names = utils.disambiguate_io_names(*map(list, found))
            options = ExportOptions.of(
                input_names=names[0],
                output_names=names[1],
                dynamic_shapes=shapes,
                opset_version=config.opset_version,
                optimize=config.optimize,
                fused=True if config.ort_fusions else None,
            )
            with _flat_results(model):
                result = pipeline.run(model, (), copy.deepcopy(dict(inputs)), None, options)
            spec = pytree.tree_structure(((), dict(inputs)))
        call = SimpleNamespace(in_spec=spec, out_spec=spec)  # the results' is recorded below
        metadata = build_export_metadata(model, inputs, SimpleNamespace(call_spec=call), self.required_packages)
        record_output_structure(metadata, outputs[0])
        return utils.quantize_converted_model(result.model, inputs, config), metadata


@contextlib.contextmanager
def _flat_results(model: Any) -> Iterator[None]:
    """A block in which the model returns its tensors by name, as transformers does for a graph."""
    forward = model.forward

    @functools.wraps(forward)
    def flat(*args: Any, **kwargs: Any) -> Any:
        return utils.get_leaf_tensors(utils.duplicate_leaf_tensors(forward(*args, **kwargs)))

    model.forward = flat
    try:
        yield
    finally:
        del model.forward


def _check(config: Any) -> None:
    """Raises: UserError E001 for what this backend does not do."""
    if config.ort_fusions not in (None, "cpu"):
        raise UserError(
            "E001",
            f"ort_fusions={config.ort_fusions!r} is not for the export format {FORMAT}",
            why="its operators are those of onnxruntime's CPU provider",
            next='ort_fusions="cpu", or none',
        )
    if config.quantizer is not None and config.quantizer.quantizes_fx_graph:
        raise UserError(
            "E001",
            f"{type(config.quantizer).__name__} is not for the export format {FORMAT}",
            why="it changes the graph of torch.export, which is not made",
            next="OnnxRuntimeQuantizer, or fx2onnx.quantize on the saved file",
        )


register_backend(Fx2OnnxExporter, OnnxModelRunner)
