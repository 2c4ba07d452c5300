"""Scales and zero points of a file beside those of a module that PT2E quantised.

Codes that are a step off move what follows as far as a scale that is somewhat off: outputs say little about a scale. So
each that the file rounds activations with has to be one of the module's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir
import torch

from fx2onnx.base.events import record
from fx2onnx.verify.verdict import Row, Verdict
from fx2onnx.verify.weights import PRODUCER

Steps = tuple[float, int]
"""A scale in float32, and a zero point."""

_PER_TENSOR = frozenset(["quantize_per_tensor", "dequantize_per_tensor"])
_NAMESPACE = "quantized_decomposed"


def compare_steps(verdict: Verdict, model: onnx.ModelProto, folder: str, root: torch.nn.Module) -> None:
    """A row for each scale that is none of the module's. Of files that others wrote a note."""
    with record("compare scales"):
        own = set(_of_module(root))
        if not own:
            return
        for name, steps in _of_file(model, folder):
            if steps in own:
                continue
            problem = f"no operator of the module has the scale {steps[0]:.6g} with the zero point {steps[1]}"
            if model.producer_name == PRODUCER:
                verdict.rows.append(Row.failed("scales", name, "weights", problem))
            else:
                verdict.note(f"{name}: {problem}")


def _of_module(root: torch.nn.Module) -> Iterator[Steps]:
    for module in root.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for fx_node in module.graph.nodes:
            schema = getattr(fx_node.target, "_schema", None)
            if schema is None or schema.name.split("::")[0] != _NAMESPACE:
                continue
            if schema.name.split("::")[1] in _PER_TENSOR and all(
                isinstance(arg, (int, float)) for arg in fx_node.args[1:3]
            ):
                yield float(np.float32(fx_node.args[1])), int(fx_node.args[2])


def _of_file(model: onnx.ModelProto, folder: str) -> Iterator[tuple[str, Steps]]:
    """Of each node that rounds to codes, or back, by constants, the name of the result and its steps."""
    held = {value.name: value for value in model.graph.initializer}

    def number(name: str) -> float | None:
        array = ir.serde.deserialize_tensor(held[name], folder).numpy() if name in held else None
        return float(array) if array is not None and not array.ndim else None

    for node in model.graph.node:
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear") or node.domain:
            continue
        scale = number(node.input[1])
        zero = number(node.input[2]) if len(node.input) > 2 and node.input[2] else 0.0
        if scale is not None and zero is not None:
            yield node.output[0], (scale, int(zero))
