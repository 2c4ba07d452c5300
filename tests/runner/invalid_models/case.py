"""A model that breaks ONNX's specification in one place, or nearly does, with what is done about it.

A model is written in the language of ``onnx.parser``; ``edit`` then does what that language cannot say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, ModelProto, TensorProto, TypeProto, helper

AT_LOAD, AT_RUN, RUNS, ABORTS = "refuses it when it is loaded", "fails when it runs", "runs it", "ends the process"
"""What onnxruntime 1.31 does with a model."""

HEADER = '<ir_version: 10, opset_import: ["": 21]>'
CALLING = '<ir_version: 10, opset_import: ["": 21, "f": 1]>'
FUNCTION = '<domain: "f", opset_import: ["": 21]>'
NEG = "g (float[2] x) => (float[2] y) { y = Neg(x) }"
WEIGHT = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Add(x, w) }"
UNUSED = "g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> { y = Neg(x) }"
IF = (
    "g (bool c, float[2] x) => (float[2] y) { y = If (c) <then_branch = a () => (float[2] u) { u = Neg(x) }, "
    "else_branch = b () => (float[2] v) { v = Abs(x) }> }"
)
LOOP = (
    "g (int64 n, bool c, float[2] x) => (float[2] y) { y = Loop (n, c, x) "
    "<body = b (int64 i, bool a, float[2] s) => (bool d, float[2] v) { d = Identity(a) v = Neg(s) }> }"
)


@dataclass(frozen=True)
class Case:
    """``refused`` is a part of the runner's error when the model is loaded, "" where it runs.

    ``because`` is the reason where onnxruntime does otherwise: it runs what is refused with a reason, and refuses when it is
    loaded what is refused without one, if ``onnxruntime`` does not say more. ``elsewhere`` is what other versions of it do.
    """

    text: str
    refused: str = ""
    onnxruntime: str = ""
    because: str = ""
    edit: Callable[[ModelProto], object] = lambda model: None
    elsewhere: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.onnxruntime:
            object.__setattr__(self, "onnxruntime", AT_LOAD if self.refused and not self.because else RUNS)

    def make(self) -> ModelProto:
        model = onnx.parser.parse_model(self.text if self.text.startswith("<") else HEADER + self.text)
        self.edit(model)
        return model


def weight(model: ModelProto) -> TensorProto:
    return model.graph.initializer[0]


def attribute(model: ModelProto) -> AttributeProto:
    return model.graph.node[0].attribute[0]


def tensor_type(model: ModelProto) -> TypeProto.Tensor:
    return model.graph.input[0].type.tensor_type


def versions(*pairs: tuple[str, int]) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        del model.opset_import[:]
        model.opset_import.extend(helper.make_opsetid(*pair) for pair in pairs)

    return edit


def filled(**fields: object) -> Callable[[ModelProto], None]:
    """The first initializer with other fields; None clears one."""

    def edit(model: ModelProto) -> None:
        for name, value in fields.items():
            weight(model).ClearField(name)
            if isinstance(value, list):
                getattr(weight(model), name).extend(value)
            elif value is not None:
                setattr(weight(model), name, value)

    return edit


def external(**entries: str) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        weight(model).ClearField("float_data")
        weight(model).data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            weight(model).external_data.add(key=key, value=value)

    return edit


def sparse(values: TensorProto, indices: TensorProto, dims: list[int]) -> Callable[[ModelProto], None]:
    def edit(model: ModelProto) -> None:
        del model.graph.initializer[:]
        model.graph.sparse_initializer.add(values=values, indices=indices, dims=dims)

    return edit


ONE = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
FIRST = helper.make_tensor("i", TensorProto.INT64, [1], [0])


def in_branch(node: str) -> str:
    """The node in a branch of If; x is a float[2] from outside."""
    return IF.replace("u = Neg(x)", node)
