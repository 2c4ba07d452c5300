"""The change of each layer by the quantization of its weight: of its outputs on the inputs that it has in the
unquantized model."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from fx2onnx.irx import io
from fx2onnx.optimize.fold_constants import computed
from fx2onnx.quantize.places import TURNS, WeightPlace
from fx2onnx.quantize.schemes import Array
from fx2onnx.quantize.weights import unfolded

Feeds = Mapping[str, Array]


def run(model: ir.Model, feeds: Feeds, more: Sequence[ir.Value] = ()) -> dict[str, Array]:
    """The outputs of the model by name, and the values ``more``, in the runner."""
    from fx2onnx.runner import InferenceSession

    outputs = list(model.graph.outputs)
    added = [value for value in dict.fromkeys(more) if value not in outputs and not value.is_graph_input()]
    model.graph.outputs.extend(added)
    try:
        with tempfile.TemporaryDirectory(prefix="fx2onnx-quantize-", ignore_cleanup_errors=True) as folder:
            path = os.path.join(folder, "measured.onnx")
            io.save(model, path)
            names = [value.name or "" for value in (*outputs, *added)]
            found = InferenceSession(path).run(names, dict(feeds))
    finally:
        for value in added:
            model.graph.outputs.remove(value)
    return dict(feeds) | {
        name: array for name, array in zip(names, found, strict=True) if isinstance(array, np.ndarray)
    }


def operands_of(place: WeightPlace) -> Iterator[tuple[ir.Node, ir.Value]]:
    """The nodes that compute with the weight, and what else each of them takes; none in branches and turns, and none of recurrent layers and experts."""
    for way, node in place.readers:
        if way in ("recurrent", "experts", *TURNS) or node.graph is not place.value.graph:
            continue
        for each in [reader for reader, _ in node.outputs[0].uses()] if way == "turned" else [node]:
            operand = each.inputs[1 if way == "gather" else 0]
            assert operand is not None
            yield each, operand


def errors_of(places: Sequence[WeightPlace], values: Feeds, opset: int) -> dict[str, float]:
    """The relative change of the results of each weight's nodes (the largest where there are several nodes)."""
    found: dict[str, float] = {}
    for place in places:
        tensor = place.value.const_value
        assert tensor is not None
        before, after = np.asarray(tensor.numpy()), rounded_as_in_graph(place, tensor)
        errors = []
        for node, operand in operands_of(place):
            x = values.get(operand.name or "")
            if x is None:
                continue
            is_turned = node.inputs[0 if node.op_type == "Gather" else 1] is not place.value
            weights = [each.T if is_turned else each for each in (before, after)]
            want, got = (_computed(node, x, np.ascontiguousarray(weight), opset) for weight in weights)
            errors.append(relative(got, want))
        if errors:
            found[place.name] = max(errors)
    return found


def relative(got: Array, want: Array) -> float:
    """The size of the difference, of that of ``want``."""
    if got.shape != want.shape or not want.size:
        return 0.0
    wide = want.astype(np.float64)
    size = float(np.linalg.norm(wide))
    gap = float(np.linalg.norm(got.astype(np.float64) - wide))
    return gap / size if size else float(gap > 0)


def rounded_as_in_graph(place: WeightPlace, tensor: ir.TensorProtocol) -> Array:
    """The numbers that the quantized values stand for, as the graph had the weight, ``tensor``."""
    values = place.weight.values()
    _, perm, scaled = unfolded(tensor)
    if scaled is not None:
        factor = scaled.factor(*(source.numpy() for source in scaled.sources[1:]))
        return (values * factor).astype(values.dtype)
    return values if perm is None else values.transpose(perm)


def _computed(node: ir.Node, x: Array, weight: Array, opset: int) -> Array:
    found = computed(node, [weight, x] if node.op_type == "Gather" else [x, weight], opset)
    assert found is not None, node.op_type
    return found
