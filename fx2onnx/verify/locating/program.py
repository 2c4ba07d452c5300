"""The module exported again (its ATen graph, and the models that it becomes at each level and after each edit), and an ONNX file cut into small models that run by themselves."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import onnx
import onnx_ir as ir
import torch.fx

from fx2onnx.base.errors import UserError
from fx2onnx.base.metadata import PRODUCER, STATE
from fx2onnx.capture.captured import Captured, carried
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions
from fx2onnx.irx.io import placed
from fx2onnx.irx.schema import RANDOM
from fx2onnx.judge.engines import Array
from fx2onnx.judge.tolerance import Grain
from fx2onnx.lower.loop import lower
from fx2onnx.lower.translations import Translations
from fx2onnx.model_patches.library import LibraryPatches
from fx2onnx.optimize import pipelines
from fx2onnx.optimize.driver import Outcome
from fx2onnx.verify.interface import grain_of

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


class ModuleProgram:
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
    def of(cls, module: Any, args: Any, kwargs: Mapping[str, Any] | None, settings: Settings) -> ModuleProgram:
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


COMPUTED = "{}//computed"
"""The name under which a cut gives a value that its nodes read as an input."""

FED_BYTES = 1024
"""Weights from this size on are inputs of a cut: they are shared, not copied into it."""

_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

_FED_DTYPES = {"float32", "float64", "float16", "bfloat16", "int8", "uint8"}


def nested_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs among the attributes of a node, those inside them as well."""
    for attribute in node.attribute:
        for graph in (*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs):
            yield graph
            for inner in graph.node:
                yield from nested_graphs(inner)


def reads_of(node: onnx.NodeProto) -> list[str]:
    """The names that a node reads, from inside its graphs as well."""
    names = [name for name in node.input if name]
    for graph in nested_graphs(node):
        inside = {value.name for value in graph.input} | {each.name for each in graph.initializer}
        inside |= {name for inner in graph.node for name in inner.output}
        names += [name for inner in graph.node for name in inner.input if name and name not in inside]
        names += [value.name for value in graph.output if value.name not in inside]
    return names


@dataclass(slots=True)
class Cut:
    """A part of a file as a model of its own. ``feeds`` are names of its inputs; weights among them are in the file."""

    proto: onnx.ModelProto
    feeds: list[str]
    weights: list[str]
    outputs: list[str]


@dataclass
class OnnxFile:
    """A file's nodes and weights by name; weights are mapped, not read."""

    proto: onnx.ModelProto
    folder: str
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    producer: dict[str, int] = field(default_factory=dict)
    """The index of the node that makes each value."""
    initializers: dict[str, onnx.TensorProto] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    held: Mapping[str, ir.TensorProtocol] = field(default_factory=dict)
    """Weights that are in memory, where ``proto`` says that they are in another file."""

    @classmethod
    def read(cls, path: str) -> OnnxFile:
        """Raises UserError E302 for what is no ONNX model."""
        try:
            proto = onnx.load(path, load_external_data=False)
        except Exception as cause:  # protobuf and onnx have classes of their own for what is no model
            raise UserError("E302", f"cannot read '{path}'", why=str(cause).splitlines()[0][:300]) from cause
        return cls.of(proto, os.path.dirname(os.path.abspath(path)))

    @classmethod
    def of(cls, proto: onnx.ModelProto, folder: str = "") -> OnnxFile:
        graph = proto.graph
        nodes = list(graph.node)
        weights = {each.name: each for each in graph.initializer}
        return cls(
            proto,
            folder,
            nodes,
            {name: index for index, node in enumerate(nodes) for name in node.output if name},
            weights,
            [value.name for value in graph.input if value.name not in weights],
            [value.name for value in graph.output],
        )

    @classmethod
    def of_model(cls, model: ir.Model) -> OnnxFile:
        """A model in memory, without a copy of its weights except for small ones."""
        large = {
            name: value
            for name, value in model.graph.initializers.items()
            if value.const_value is not None and value.const_value.nbytes >= FED_BYTES
        }
        held = {name: value.const_value for name, value in large.items() if value.const_value is not None}
        with placed(list(large.values()), "in memory", [(0, tensor.nbytes) for tensor in held.values()]):
            file = cls.of(ir.to_proto(model))
        file.held = held
        return file

    def weight(self, name: str) -> Array:
        """The numbers of an initializer."""
        tensor = self.held.get(name)
        if tensor is None:
            tensor = ir.serde.deserialize_tensor(self.initializers[name], base_path=self.folder)
        return np.asarray(tensor.numpy())

    @functools.cached_property
    def float_dtypes(self) -> dict[str, Any]:
        """The floating dtypes that the file declares for its values, as NumPy has them."""
        graph = self.proto.graph
        declared = {
            value.name: value.type.tensor_type.elem_type for value in (*graph.value_info, *graph.input, *graph.output)
        }
        return {name: onnx.helper.tensor_dtype_to_np_dtype(kind) for name, kind in declared.items() if kind in _FLOATS}

    @functools.cached_property
    def grain(self) -> Grain:
        """The distance between numbers in a file that computes in 16 bits where the module does not."""
        return grain_of({each.key: each.value for each in self.proto.metadata_props})

    def is_weight(self, name: str) -> bool:
        return name in self.initializers

    def segment(self, names: Iterable[str], given: Collection[str]) -> list[int]:
        """The nodes between the values ``given`` and those of ``names``, in the order of the file."""
        pending, found = [self.producer[name] for name in names if name in self.producer], set[int]()
        while pending:
            index = pending.pop()
            if index in found:
                continue
            found.add(index)
            for name in reads_of(self.nodes[index]):
                if name not in given and name in self.producer:
                    pending.append(self.producer[name])
        return sorted(found)

    def cut(self, nodes: Sequence[int], given: Mapping[str, Array], outputs: Sequence[str]) -> Cut:
        """The nodes as a model: ``given`` values are inputs, also where a node of the cut makes them; ``outputs`` are those
        that the nodes make, in the end.
        """
        made = {name for index in nodes for name in self.nodes[index].output if name}
        read = {name for index in nodes for name in reads_of(self.nodes[index])}
        feeds = sorted(name for name in read if name in given)
        weights: list[str] = []
        inside: list[str] = []
        for name in sorted(read - made - set(given)):
            if self.is_weight(name):
                (weights if self._is_fed(name) else inside).append(name)
        graph = onnx.GraphProto(name="cut")
        for index in nodes:
            node = graph.node.add()
            node.CopyFrom(self.nodes[index])
            for place, name in enumerate(node.output):
                if name in given:
                    node.output[place] = COMPUTED.format(name)
        for name in feeds:
            graph.input.append(_declared(name, given[name]))
        for name in weights:
            graph.input.append(_declared(name, self.weight(name)))
        graph.initializer.extend(self._inside(name) for name in inside)
        for name in outputs:
            graph.output.add().name = COMPUTED.format(name) if name in given else name
        proto = onnx.ModelProto(ir_version=self.proto.ir_version, graph=graph, functions=self.proto.functions)
        proto.opset_import.extend(self.proto.opset_import)
        return Cut(proto, feeds, weights, list(outputs))

    def _is_fed(self, name: str) -> bool:
        tensor = self.initializers[name]
        size_bytes = len(tensor.raw_data) or 8 * int(np.prod(tensor.dims, dtype=np.int64))
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
        return size_bytes >= FED_BYTES and str(dtype) in _FED_DTYPES

    def _inside(self, name: str) -> onnx.TensorProto:
        tensor = self.initializers[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            return tensor
        loaded = self.held.get(name) or ir.serde.deserialize_tensor(tensor, base_path=self.folder)
        return ir.serde.serialize_tensor(ir.Tensor(loaded.numpy(), dtype=loaded.dtype, name=name))

    @functools.cached_property
    def random(self) -> set[str]:
        """The values that depend on random numbers that the file draws."""
        found = set[str]()
        for index, node in enumerate(self.nodes):
            if self.draws(index) or not found.isdisjoint(reads_of(node)):
                found.update(node.output)
        return found

    def draws(self, index: int) -> bool:
        """Return whether a node, or one inside it, draws random numbers."""
        node = self.nodes[index]
        return node.op_type in RANDOM or any(each.op_type in RANDOM for g in nested_graphs(node) for each in g.node)

    def may_draw(self, index: int) -> bool:
        """The same operators, and a ``Dropout`` with its mode as an input: some engines draw there, others never do."""
        node = self.nodes[index]
        return self.draws(index) or (node.op_type == "Dropout" and len(node.input) > 2)


def _declared(name: str, array: Array) -> onnx.ValueInfoProto:
    dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    return onnx.helper.make_tensor_value_info(name, dtype, list(array.shape))
