"""Scales and zero points of a file beside those of a module that PT2E quantised.

Codes that are a step off move what follows as far as a scale that is somewhat off: outputs say little about a scale. So
each that the file rounds with has to be one of the module's, and of those between the same weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.base.events import record
from fx2onnx.base.metadata import PRODUCER
from fx2onnx.judge.verdict import Row, Verdict
from fx2onnx.verify.step_places import Place, hides_reads, of_file, of_module, weights_that_tell

Steps = tuple[float, int]
"""A scale in float32, and a zero point."""

_PER_TENSOR = frozenset(["quantize_per_tensor", "dequantize_per_tensor"])
_NAMESPACE = "quantized_decomposed"


def compare_steps(verdict: Verdict, model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> None:
    """A row for each scale that is none of the module's, or of another place. Of files that others wrote a note."""
    with record("compare scales"):
        for name, problem in _differences(model, folder, root):
            if model.producer_name == PRODUCER:
                verdict.rows.append(Row.failed("scales", name, "weights", problem))
            else:
                verdict.note(f"{name}: {problem}")


def _differences(model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> Iterator[tuple[str, str]]:
    modules = {
        f"{path}." if path else "": module
        for path, module in root.named_modules()
        if isinstance(module, torch.fx.GraphModule) and any(_steps_of(fx_node) for fx_node in module.graph.nodes)
    }
    if not modules:
        return
    own = {steps for module in modules.values() for steps in map(_steps_of, module.graph.nodes) if steps}
    among, by_place = _by_place(modules, model)
    for (name, steps), place in zip(_of_file(model, folder), of_file(model.graph, among), strict=True):
        if steps is None:
            continue
        said = f"the scale {steps[0]:.6g} with the zero point {steps[1]}"
        if steps not in own:
            yield name, f"no operator of the module has {said}"
        elif steps not in by_place.get(place, own):
            yield name, f"{said} is of another place: here the module has {_described(by_place[place])}"


def _by_place(
    modules: Mapping[str, torch.fx.GraphModule], model: onnx.ModelProto
) -> tuple[list[str], dict[Place, set[Steps]]]:
    """The weights that tell places, and what the module has at each. Nothing where not all reads are seen."""
    (prefix, module), *others = modules.items()
    calls = [fx_node for fx_node in module.graph.nodes if fx_node.op not in ("get_attr", "placeholder", "output")]
    is_hidden = any(each.type == onnx.AttributeProto.GRAPH for node in model.graph.node for each in node.attribute)
    if others or model.functions or is_hidden or hides_reads(module):
        return [], {}
    among = weights_that_tell(module, prefix, model.graph)
    found: dict[Place, set[Steps]] = {}
    for fx_node, place in zip(calls, of_module(module, prefix, among), strict=True):
        steps = _steps_of(fx_node)
        if steps:
            found.setdefault(place, set()).add(steps)
    return among, found


def _described(steps: Iterable[Steps]) -> str:
    return " and ".join(f"{scale:.6g} with {zero}" for scale, zero in sorted(steps))


def _steps_of(fx_node: torch.fx.Node) -> Steps | None:
    schema = getattr(fx_node.target, "_schema", None)
    if schema is None or schema.name.split("::")[0] != _NAMESPACE or schema.name.split("::")[1] not in _PER_TENSOR:
        return None
    scale, zero = fx_node.args[1:3]
    if not isinstance(scale, (int, float)) or not isinstance(zero, (int, float)):
        return None
    return float(np.float32(scale)), int(zero)


def _of_file(model: onnx.ModelProto, folder: str) -> Iterator[tuple[str, Steps | None]]:
    """Of each node the name of the result, and of those that round to codes, or back, by constants, the steps."""
    held = {value.name: value for value in model.graph.initializer}

    def number(name: str) -> float | None:
        array = ir.serde.deserialize_tensor(held[name], folder).numpy() if name in held else None
        return float(array) if array is not None and not array.ndim else None

    for node in model.graph.node:
        steps = None
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and not node.domain:
            scale = number(node.input[1])
            zero = number(node.input[2]) if len(node.input) > 2 and node.input[2] else 0.0
            steps = (scale, int(zero)) if scale is not None and zero is not None else None
        yield node.output[0], steps
