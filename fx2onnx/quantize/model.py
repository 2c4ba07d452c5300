"""Quantize the weights of a graph, and say so in the file."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np
import onnx_ir as ir

from fx2onnx.base.errors import UserError
from fx2onnx.base.escape import human_size
from fx2onnx.base.events import record
from fx2onnx.irx.private_names import drop_initializer
from fx2onnx.irx.values import dims_of
from fx2onnx.optimize.weights import ArrangedTensor, DerivedTensor, JoinedTensor
from fx2onnx.quantize.accuracy import Feeds, errors_of, operands_of, relative, run
from fx2onnx.quantize.calibrated import fitted
from fx2onnx.quantize.calibration import Data, data_of
from fx2onnx.quantize.forms import Dequantized, QuantizedForm, TurnsWriter, Writer
from fx2onnx.quantize.options import Quantize
from fx2onnx.quantize.places import (
    COMPUTED,
    DOMAIN,
    LEAST_NUMBERS,
    MAKE_PLAIN,
    TURNS,
    QuantizationPlan,
    WeightPlace,
    has_product,
    planned,
    readers_in_turns,
)
from fx2onnx.quantize.products import BitsProduct, Experts
from fx2onnx.quantize.schemes import Array
from fx2onnx.quantize.stored import METADATA_KEY, stored
from fx2onnx.quantize.weights import StackedWeight, parts_of, unfolded
from fx2onnx.targets.form import Target


def quantize_measured(
    model: ir.Model,
    options: Quantize,
    target: Target,
    feeds: Feeds | None,
    known: Collection[str] | None = None,
    data: Data | None = None,
) -> tuple[Quantized, list[WeightPlace]]:
    """Quantize the weights of ``model`` in place. With ``feeds``, what the layers and the outputs do on them is measured. Returns
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
        with record("quantize"):
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
    with record("quantize"):
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
    if len(worst) == len(plan.places):
        what = f"keep_worst {count} keeps every weight that could be quantized"
        raise UserError("E001", what, next=f"keep fewer than the {len(worst)} layers")
    return without(plan, {name: f"its outputs would change by {errors[name]:.2%}" for name in worst})


NORMS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "LayerNormalization"): (1, 2),
    ("", "RMSNormalization"): (1,),
    ("", "SimplifiedLayerNormalization"): (1,),
    (DOMAIN, "SkipLayerNormalization"): (2, 3),
    (DOMAIN, "SkipSimplifiedLayerNormalization"): (2,),
    ("", "Mul"): (0, 1),
}
"""Inputs that the first output is linear in, one number a column: dividing all of them divides it. Of Mul, the one that is a weight."""


@dataclass(eq=False)
class _Group:
    operand: ir.Value
    channels: Array
    readers: list[ir.Node] = field(default_factory=list)


def spread(writer: Writer, places: Sequence[WeightPlace]) -> None:
    """Divide the operands of weights that have ``channels``, in place."""
    groups: dict[tuple[int, int], _Group] = {}
    for place in places:
        channels = None if place.weight.given is None else place.weight.given.channels
        if channels is None:
            continue
        for node, operand in operands_of(place):
            group = groups.setdefault((id(operand), id(channels)), _Group(operand, channels))
            group.readers.append(node)
    for group in groups.values():
        if not _fold(writer, group):
            _insert(writer, group)


def _fold(writer: Writer, group: _Group) -> bool:
    """Divide the weights of the norm that makes the operand, where nothing else reads them or it."""
    made, readers = group.operand.producer(), set(group.readers)
    if made is None or group.operand.index() != 0 or group.operand.is_graph_output():
        return False
    if any(node not in readers for node, _ in group.operand.uses()):
        return False
    places = NORMS.get((made.domain, made.op_type))
    if places is None:
        return False
    given = [made.inputs[place] for place in places if place < len(made.inputs)]
    weights = [value for value in given if value is not None and value.const_value is not None]
    if not weights or len(weights) != (1 if made.op_type == "Mul" else sum(value is not None for value in given)):
        return False
    if any(_cannot_change(value, len(group.channels)) for value in weights):
        return False
    for value in weights:
        made.replace_input_with(made.inputs.index(value), writer.weight(_divided(value, group.channels)))
        drop_initializer(value)
    return True


def _cannot_change(value: ir.Value, columns: int) -> bool:
    assert value.const_value is not None
    sizes = value.const_value.shape.numpy()
    is_read_once = len(value.uses()) == 1 and not value.is_graph_output() and not value.is_graph_input()
    return (
        not is_read_once or value.const_value.size != columns or sizes[-1:] != (columns,) or not value.is_initializer()
    )


def _divided(value: ir.Value, channels: Array) -> DerivedTensor:
    tensor = value.const_value
    assert tensor is not None
    by = functools.partial(_quotient, channels)
    return DerivedTensor(by, (tensor,), tensor.dtype, tensor.shape.numpy(), f"{value.name}.divided")


def _quotient(channels: Array, array: Array) -> Array:
    return np.asarray((array.astype(np.float32) / channels).astype(array.dtype))


def _insert(writer: Writer, group: _Group) -> None:
    operand = group.operand
    dtype = operand.dtype
    assert dtype is not None
    by = writer.const(f"{operand.name}.channels", (1 / group.channels).astype(dtype.numpy()))
    readers = set(group.readers)
    graph = group.readers[0].graph
    assert graph is not None
    first = next(node for node in graph if node in readers)
    found = writer.node(first, "Mul", [operand, by], (dtype, dims_of(operand)))
    for node, place in list(operand.uses()):
        if node in readers:
            node.replace_input_with(place, found)


WORST_NAMED = 5


@dataclass
class Quantized:
    """The result of a quantization."""

    options: Quantize
    layers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The kind, block, form and bytes before and after of each quantized weight."""
    kept: dict[str, str] = field(default_factory=dict)
    """The reason why each other weight stays."""
    outputs: dict[str, float] = field(default_factory=dict)
    """The relative distance of each output from the unquantized model's on the example inputs."""

    @property
    def bytes_before(self) -> int:
        return sum(int(layer["bytes_before"]) for layer in self.layers.values())

    @property
    def bytes_after(self) -> int:
        return sum(int(layer["bytes"]) for layer in self.layers.values())

    def as_dict(self) -> dict[str, Any]:
        """The fields as JSON types."""
        return {
            "kind": self.options.kind,
            "layers": self.layers,
            "kept": self.kept,
            "bytes_before": self.bytes_before,
            "bytes": self.bytes_after,
            "outputs": self.outputs,
        }

    def notes(self) -> list[str]:
        """The lines for a user: sizes, the worst layers, and how far the outputs moved."""
        count = len(self.layers)
        said = [
            f"{count} weights as {self.options.kind}: {human_size(self.bytes_before)} became {human_size(self.bytes_after)}"
        ]
        errors = {name: float(layer["error"]) for name, layer in self.layers.items() if "error" in layer}
        if errors:
            worst = sorted(errors, key=lambda name: -errors[name])[:WORST_NAMED]
            said.append("layers that change most: " + ", ".join(f"{name} {errors[name]:.2%}" for name in worst))
        fitted = [layer for layer in self.layers.values() if "calibration" in layer]
        if fitted:
            said += list(_worth(fitted, str(self.options.fitting)))
        if self.outputs:
            moved = ", ".join(f"{name} {error:.2%}" for name, error in list(self.outputs.items())[:WORST_NAMED])
            said.append(f"outputs beside the model's without quantization: {moved}")
        return said


def _worth(fitted: list[dict[str, Any]], method: str) -> Iterator[str]:
    """The median change of the layers with what a calibration chose, and with the nearest codes."""
    moved = [layer for layer in fitted if layer["method"] == method]
    yield (
        f"{len(moved)} of {len(fitted)} layers by {method}; the others are no better than the nearest codes"
        if len(moved) < len(fitted)
        else f"{len(moved)} layers by {method}"
    )
    for key, what in (("calibration", "on the calibration data"), ("held_out", "on rows held out of it")):
        pairs = [(layer[key], layer[f"{key}_nearest"]) for layer in moved if f"{key}_nearest" in layer]
        if pairs:
            got, usual = (median(column) for column in zip(*pairs, strict=True))
            yield f"outputs of a layer {what}: {got:.2%} off (nearest codes {usual:.2%}), in the middle"


def plan_for(
    model: ir.Model, options: Quantize, target: Target, known: Collection[str] | None = None
) -> QuantizationPlan:
    """The plan of the weights to quantize.

    Raises UserError E202 for an opset without the operators, E204 for a target without them, E001 where nothing is there to quantize.
    """
    needed = "--format matmulnbits" if options.format == "matmulnbits" else "--activations int8"
    if (options.format == "matmulnbits" or options.activations == "int8") and not has_product(target):
        raise UserError(
            "E204",
            f"{target.name} has no MatMulNBits",
            why=f"{needed} asks for it",
            next="--format qdq, without --activations",
        )
    plan = planned(model, options, target, known)
    opset, least = model.graph.opset_imports.get("", 0), options.least_opset
    if opset < least and not (plan.places and all(place.is_product for place in plan.places)):
        raise UserError(
            "E202",
            f"opset {opset} cannot express {options.kind} weights in blocks of {options.columns_of_block or 'a row'}",
            why=f"DequantizeLinear takes them from opset {least} on",
            next=f"opset {least}, or int8 weights with --block 0",
        )
    if not plan.places:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(plan.kept.items())[:5])
        if not reasons:
            steps = ["leave the file as it is: fewer numbers gain nothing"]
        else:
            steps = [MAKE_PLAIN] if COMPUTED in plan.kept.values() else []
        raise UserError(
            "E001",
            "there is no weight to quantize",
            why=reasons or f"no weight of a product or convolution has {LEAST_NUMBERS:,} numbers or more",
            next=steps,
        )
    return plan


def put(writer: Writer, place: WeightPlace) -> tuple[list[ir.Value], QuantizedForm]:
    """Let the readers of the weight read its codes. Returns the new weights, and which of them are its codes."""
    before = set(writer.graph.initializers)
    if place.readers[0][0] in TURNS:
        form = _put_in_turns(writer, place)
    else:
        form = _put_before(writer, place)
    drop_initializer(place.value)
    return [value for name, value in writer.graph.initializers.items() if name not in before], form


def _put_in_turns(writer: Writer, place: WeightPlace) -> QuantizedForm:
    """Let the body of the Scan read the codes of its turn."""
    ((_, scan),) = place.readers
    index, weight = scan.inputs.index(place.value), place.weight
    fields = {each.name: getattr(weight, each.name) for each in dataclasses.fields(weight)}
    stacked = StackedWeight(**fields | {"sizes": weight.sizes[1:]}, turns=weight.sizes[0])
    inner = scan.attributes["body"].as_graph().inputs[index]
    turns = TurnsWriter(writer, scan)
    readers = readers_in_turns(scan, index)
    form = _put_before(turns, replace(place, value=inner, weight=stacked, readers=tuple(readers)))
    turns.drop(inner)
    if isinstance(form, Dequantized) and len(readers) == 1 and readers[0][0] != "turned":
        turns.skip_without_rows(readers[0][1])
    return form


def _put_before(writer: Writer, place: WeightPlace) -> QuantizedForm:
    of_product = Experts if place.readers[0][0] == "experts" else BitsProduct
    form = (of_product if place.is_product else Dequantized)(writer, place)
    for way, node in sorted(place.readers, key=lambda reader: reader[0] == "gather"):  # which takes its reader away
        if way == "gather":
            form.gather(node)
        elif isinstance(form, Dequantized):
            form.before(way, node)
        else:
            form.product(way, node)
    return form


def quantize(model: ir.Model, plan: QuantizationPlan, options: Quantize) -> Quantized:
    """Put codes in the place of the planned weights, in place."""
    writer = Writer(model)
    spread(writer, plan.places)
    done = Quantized(options, kept=dict(plan.kept))
    stated: dict[str, Any] = {}
    for place in plan.places:
        before = place.value.const_value
        assert before is not None
        made, form = put(writer, place)
        done.layers[place.name] = {
            "form": form.operator,
            "block": place.weight.block,
            "numbers": before.size,
            "bytes_before": before.nbytes,
            "bytes": sum(value.const_value.nbytes for value in made if value.const_value is not None),
        }
        of_all = [place.weight.scheme.kind, place.weight.block]
        for part in _parts(place):
            stated[part.name] = [of_all[0], part.axis, of_all[1]]
            if place.weight.given is not None:
                stated[part.name].append(stored(place.weight, form, part.start, part.stop))
    model.metadata_props[METADATA_KEY] = json.dumps(stated)
    return done


@dataclass(frozen=True)
class _Part:
    """A weight of the module's in a place: its name, the axis along which blocks run (None: all but the first are one), its rows."""

    name: str
    axis: int | None
    start: int
    stop: int


def _parts(place: WeightPlace) -> Iterator[_Part]:
    source, perm, last = place.weight.source, place.weight.perm, len(place.weight.sizes) - 1
    if isinstance(source, ArrangedTensor):
        yield from (_Part(part.name or "", len(part.shape) - 1, 0, 0) for part in parts_of(source))
        return
    axis = None if place.readers[0][0] == "conv" else last if perm is None else perm[last]
    start = 0
    for part in source.sources if isinstance(source, JoinedTensor) else [source]:
        weight, order, _ = unfolded(part)
        stop = start + part.shape.numpy()[-1] if isinstance(source, JoinedTensor) else place.weight.rows
        yield _Part(weight.name or "", axis if axis is None or order is None else order[axis], start, stop)
        start = stop


def without(plan: QuantizationPlan, names: Mapping[str, str]) -> QuantizationPlan:
    """The plan without some weights, each with its reason."""
    return QuantizationPlan([place for place in plan.places if place.name not in names], {**plan.kept, **names})
