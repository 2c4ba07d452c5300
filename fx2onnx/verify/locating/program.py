"""The module exported again: its ATen graph, and the models that it becomes at each level and after each edit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import onnx
import onnx_ir as ir
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import PRODUCER, STATE
from fx2onnx.capture.captured import Captured, carried
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.lower.loop import lower
from fx2onnx.lower.translations import Translations
from fx2onnx.model_patches.library import LibraryPatches
from fx2onnx.optimize import pipelines
from fx2onnx.optimize.driver import Outcome

Mapped = dict[str, tuple[torch.fx.Node, int]]
"""Names of values, and the ATen node (and which of its results) that each stands for."""


class Asked(Protocol):
    """The part of ``ExportOptions``, which lie above this file, that is read here."""

    capture: CaptureOptions
    state: str
    custom_translations: Mapping[Any, Callable[..., Any]] | None
    optimize: bool
    export_params: bool
    weight_files: Any

    @property
    def opset(self) -> int: ...


@dataclass(frozen=True)
class Settings:
    """The options with which a file was exported."""

    capture: CaptureOptions = field(default_factory=CaptureOptions)
    opset: int = 20
    level: int = pipelines.DEFAULT_LEVEL
    lifts_state: bool = False
    keeps_weights: bool = False
    custom_translations: Mapping[Any, Callable[..., Any]] | None = None

    @classmethod
    def of(
        cls, model: Any, proto: onnx.ModelProto, training: bool | None, input_names: Sequence[str] | None
    ) -> Settings:
        """The settings of ``model``, an export's result or anything else, whose file is ``proto``."""
        options = getattr(model, "options", None)
        settings = cls.of_file(proto, training) if options is None else cls.of_options(options)
        if input_names is None:
            return settings
        return replace(settings, capture=replace(settings.capture, input_names=input_names))

    @classmethod
    def of_options(cls, options: Asked) -> Settings:
        """The settings of an export whose options are known."""
        return cls(
            options.capture,
            options.opset,
            pipelines.DEFAULT_LEVEL if options.optimize else 0,
            options.state == "io",
            not options.export_params or bool(options.weight_files),
            options.custom_translations,
        )

    @classmethod
    def of_file(cls, proto: onnx.ModelProto, training: bool | None = False) -> Settings:
        """The settings that a file shows: its opset, its named sizes, whether it takes the module's state."""
        weights = {initializer.name for initializer in proto.graph.initializer}
        axes = {
            value.name: {
                axis: dim.dim_param
                for axis, dim in enumerate(value.type.tensor_type.shape.dim)
                if dim.dim_param.isidentifier()
            }
            for value in proto.graph.input
            if value.name not in weights
        }
        opset = next((each.version for each in proto.opset_import if each.domain in ("", "ai.onnx")), 20)
        asked = CaptureOptions(
            dynamic_axes={name: dims for name, dims in axes.items() if dims} or None, training=training
        )
        lifts_state = any(each.key == STATE for each in proto.metadata_props)
        return cls(asked, min(max(opset, 11), 26), lifts_state=lifts_state)

    def static(self) -> Settings:
        """Every size as in the example inputs."""
        return replace(self, capture=replace(self.capture, dynamic_axes=None, dynamic_shapes=None, samples=()))


class Program:
    """A captured module, lowered as often as it is asked for."""

    def __init__(self, module: Any, args: Any, kwargs: Mapping[str, Any] | None, settings: Settings) -> None:
        self.settings = settings
        self.translations = Translations(settings.custom_translations)
        single_calls = self.translations.single_calls(module)
        asked = settings.capture
        if single_calls is not None and asked.strategy == "auto":
            asked = replace(asked, strategy="fake")
        self.captured: Captured = capture(
            module,
            args,
            kwargs,
            asked,
            keep=self.translations.keep,
            single_calls=single_calls,
            patches=LibraryPatches(),
        )

    @classmethod
    def of(cls, module: Any, args: Any, kwargs: Mapping[str, Any] | None, settings: Settings) -> Program:
        """The module captured as ``settings`` say, or with every size static where a file's sizes cannot be had again."""
        try:
            return cls(module, args, kwargs, settings)
        except UserError:
            asked = settings.capture
            if asked.dynamic_axes is None and asked.dynamic_shapes is None and not asked.samples:
                raise
            return cls(module, args, kwargs, settings.static())

    def lowered(self) -> tuple[ir.Model, Mapped]:
        """The model before any edit, and the ATen node of each of its values."""
        values: dict[torch.fx.Node, Any] = {}
        settings = self.settings
        model = lower(
            self.captured,
            self.translations.table,
            settings.opset,
            "full",
            lift_state=settings.lifts_state,
            values=values,
        )
        mapped: Mapped = {}
        ours = {id(value) for node in model.graph for value in node.outputs}
        for node, value in values.items():
            if node.op == "call_function":
                for index, one in enumerate(value if isinstance(value, tuple) else (value,)):
                    if isinstance(one, ir.Value) and id(one) in ours and one.name:
                        mapped.setdefault(one.name, (node, index))
        results = [output.value for output in self.captured.outputs]
        results += [mutation.node for mutation in carried(self.captured, settings.lifts_state)]
        for result, output in zip(results, model.graph.outputs, strict=True):
            if isinstance(result, torch.fx.Node) and output.name:
                mapped.setdefault(output.name, (result, 0))
        return model, mapped

    @functools.cached_property
    def exported(self) -> ir.Model:
        """The model as an export leaves it."""
        model, _ = self.at(self.settings.level)
        return model

    def at(self, level: int | list[pipelines.Stage], stop_after: int | None = None) -> tuple[ir.Model, Outcome]:
        """A new model with the edits of a level, or of stages, up to the edit ``stop_after``."""
        model, _ = self.lowered()
        outcome = pipelines.run(model, level, keep_weights=self.settings.keeps_weights, stop_after=stop_after)
        return model, outcome

    def entry_place(self, node: torch.fx.Node) -> str:
        """``file:line`` of the function that translates a node."""
        entry = self.translations.table.find(node.target, self.settings.opset)
        return "" if entry is None else entry.place


def is_ours(proto: onnx.ModelProto) -> bool:
    """Return whether the file says that this exporter wrote it."""
    return proto.producer_name == PRODUCER
