"""The inputs, outputs and conditions of a file."""

from __future__ import annotations

from dataclasses import dataclass

from fx2onnx.base import size_conditions
from fx2onnx.base.size_conditions import SizeCondition


@dataclass(frozen=True, slots=True)
class Interface:
    """What a file says of itself."""

    inputs: list[str]
    axes: dict[str, dict[int, str]]
    """The named dims of each input."""
    outputs: list[str]
    conditions: list[SizeCondition]

    @staticmethod
    def of(path: str) -> Interface:
        import onnx

        proto = onnx.load(path, load_external_data=False)
        graph = proto.graph
        conditions = next(
            (each.value for each in proto.metadata_props if each.key == size_conditions.METADATA_KEY), "[]"
        )
        weights = {initializer.name for initializer in graph.initializer}
        inputs = [value for value in graph.input if value.name not in weights]
        axes = {
            value.name: {
                axis: dim.dim_param for axis, dim in enumerate(value.type.tensor_type.shape.dim) if dim.dim_param
            }
            for value in inputs
        }
        outputs = [value.name for value in graph.output]
        return Interface([value.name for value in inputs], axes, outputs, size_conditions.read(conditions))
