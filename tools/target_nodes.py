"""Test cases of the onnx package as models of one node, in every opset from 11 on."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper, numpy_helper
from onnx.backend.test.case.node import collect_testcases

from fx2onnx.base.errors import Fx2OnnxError
from fx2onnx.runner import InferenceSession
from fx2onnx.steps.opset import convert_opset
from fx2onnx.targets.match import features_of

OPSETS = range(11, 27)
DTYPES: dict[str, Any] = {
    "float": np.float32,
    "double": np.float64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    **{f"{sign}int{bits}": np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": np.bool_,
}
"""Other dtypes are not tried: nothing is known of them."""
_NAMES = frozenset(np.dtype(dtype).name for word, dtype in DTYPES.items() if word != "bfloat16")
CONSTANTS = frozenset({
    "shape", "axes", "axis", "starts", "ends", "steps", "pads", "split", "repeats", "k", "sizes", "scales", "roi",
    "depth",
})  # fmt: skip
"""Inputs that exporters write as constants, and that many runtimes want so."""
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators whose numbers are not compared."""


@dataclass
class Case:
    """One model, and what it gives."""

    name: str
    op_type: str
    version: int
    """The version of the operator."""
    opset: int
    types: dict[str, str]
    """The dtype of each type parameter."""
    model: bytes
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[np.ndarray] | None = None
    """None where numbers are not to be compared."""
    features: frozenset[str] = frozenset()
    """``features_of`` the node, ``rank N`` of its first input, and whether its sizes are dynamic."""


def cases_of_versions() -> dict[tuple[str, int], list[Case]]:
    """The cases of the onnx package, and of operators without one, by operator and its version."""
    found: dict[tuple[str, int], list[Case]] = defaultdict(list)
    every = [(each.name, each.model, *each.data_sets[0]) for each in collect_testcases(None) if each.data_sets]
    for name, proto, *given in (*every, *_more()):
        inputs, outputs = ([_array(value) for value in values] for values in given)
        nodes = proto.graph.node
        is_plain = len(nodes) == 1 and not nodes[0].domain and not proto.functions
        if not is_plain or any(array is None for array in (*inputs, *outputs)):
            continue
        seen: set[int] = set()
        for opset in OPSETS:
            schema = _schema(nodes[0].op_type, opset)
            if schema is None or schema.since_version in seen:
                continue
            case = _in_opset(name, proto, opset, schema, inputs, outputs)
            if case is not None:
                seen.add(schema.since_version)
                found[case.op_type, case.version].append(case)
    return found


def _array(value: Any) -> np.ndarray | None:
    """The tensor as an array; None where it is a sequence, an optional or of a dtype that is not tried in this way."""
    if isinstance(value, list) or value is None:
        return None
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array if array.dtype.name in _NAMES else None


def _more() -> Iterator[tuple[str, onnx.ModelProto, list[np.ndarray], list[np.ndarray]]]:
    """Models of operators that have no case of one node."""
    x = np.linspace(-1, 1, 2 * 3 * 4 * 4, dtype=np.float32).reshape(2, 3, 4, 4)
    pooled = (np.abs(x) ** 2).sum((2, 3), keepdims=True) ** 0.5
    like = np.zeros((2, 3), np.float32)
    yield _model("GlobalLpPool", [x], [pooled], 22)
    yield _model("GlobalLpPool", [x], [pooled], 2)
    for kind in ("Normal", "Uniform"):
        yield _model(f"Random{kind}Like", [like], [like], 22)
        yield _model(f"Random{kind}", [], [like], 22, shape=[2, 3])
    yield _model("Multinomial", [np.abs(like) + 1], [np.zeros((2, 1), np.int32)], 22)
    yield _model("MaxRoiPool", [x, np.float32([[0, 0, 0, 1, 1]])], [x[:1, :, :1, :1]], 22, pooled_shape=[1, 1])


def _model(
    op_type: str, inputs: list[np.ndarray], outputs: list[np.ndarray], opset: int, **attributes: Any
) -> tuple[str, onnx.ModelProto, list[np.ndarray], list[np.ndarray]]:
    infos = [
        [helper.make_tensor_value_info(f"{side}{place}", helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
         for place, array in enumerate(arrays)]
        for side, arrays in (("x", inputs), ("y", outputs))
    ]  # fmt: skip
    node = helper.make_node(op_type, *[[info.name for info in each] for each in infos], **attributes)
    model = helper.make_model(helper.make_graph([node], "g", *infos), opset_imports=[helper.make_opsetid("", opset)])
    return op_type.lower(), model, inputs, outputs


def _schema(op_type: str, opset: int) -> Any:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _in_opset(
    name: str, proto: onnx.ModelProto, opset: int, schema: Any, inputs: list[np.ndarray], outputs: list[np.ndarray]
) -> Case | None:
    """The same node in another opset, if there is a form of it."""
    feeds = dict(zip([value.name for value in proto.graph.input], inputs, strict=False))
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    own = max(entry.version for entry in proto.opset_import if not entry.domain)
    _write_constants(model, onnx.defs.get_schema(schema.name, own, ""), feeds)
    changed = _of_opset(model, opset)
    if changed is None:
        try:
            converted = ir.from_proto(model)
            convert_opset(converted, opset)
        except (Fx2OnnxError, ir.serde.SerdeError):
            return None
        changed = _of_one_node(ir.to_proto(converted))
        changed = None if changed is None else _of_opset(changed, opset)
    if changed is None or changed.graph.node[0].op_type != schema.name:
        return None
    kept = {value.name for value in changed.graph.input}
    case = Case(name, schema.name, schema.since_version, opset, {}, b"", chosen(kept, feeds), list(outputs))
    return _filled(case, changed)


def chosen(names: set[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of those names."""
    return {name: array for name, array in feeds.items() if name in names}


def _of_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """The model with that opset's number; None where that makes it invalid."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.opset_import[:]
    changed.opset_import.append(helper.make_opsetid("", opset))
    changed.ir_version = min(helper.find_min_ir_version_for(changed.opset_import), 11)
    changed.producer_name = "onnx"
    try:
        onnx.checker.check_model(changed, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return changed if _has_words_of_its_version(changed, opset) else None


def _has_words_of_its_version(model: onnx.ModelProto, opset: int) -> bool:
    """True if that version of the operator knows the words of its attributes, which the checker does not ask."""
    (node,) = model.graph.node
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    return all(
        re.search(rf"\b{re.escape(attribute.s.decode())}\b", schema.attributes[attribute.name].description)
        for attribute in node.attribute
        if attribute.type == onnx.AttributeProto.STRING and not schema.attributes[attribute.name].required
    )


def _of_one_node(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """With Constant nodes as initializers; None where more than one other node is left."""
    constants = [node for node in model.graph.node if node.op_type == "Constant"]
    others = [node for node in model.graph.node if node.op_type != "Constant"]
    if len(others) != 1 or model.functions:
        return None
    for node in constants:
        value = helper.get_attribute_value(node.attribute[0])
        if not isinstance(value, onnx.TensorProto):
            value = numpy_helper.from_array(np.asarray(value))
        value.name = node.output[0]
        model.graph.initializer.append(value)
    del model.graph.node[:]
    model.graph.node.extend(others)
    del model.graph.value_info[:]
    return model


def _write_constants(model: onnx.ModelProto, schema: Any, feeds: dict[str, np.ndarray]) -> None:
    """Turn the inputs that are constants in such models into initializers."""
    node = model.graph.node[0]
    for index, name in enumerate(node.input):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)].name
        if index and name in feeds and formal in CONSTANTS:
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
    keep_inputs(model, feeds)


def keep_inputs(model: onnx.ModelProto, names: Any) -> None:
    """Leave the graph those inputs alone, in place."""
    kept = [value for value in model.graph.input if value.name in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _filled(case: Case, model: onnx.ModelProto) -> Case:
    """The case with that model, its dtypes and features."""
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    (node,) = model.graph.node
    rank = len(model.graph.input[0].type.tensor_type.shape.dim) if model.graph.input else 0
    features = features_of(ir.from_proto(model).graph[0], case.opset) | {f"rank {rank}"}
    outputs = None if case.op_type in RANDOM else case.outputs
    return replace(
        case, model=model.SerializeToString(), types=_types(model, schema, node), features=features, outputs=outputs
    )


def _types(model: onnx.ModelProto, schema: Any, node: onnx.NodeProto) -> dict[str, str]:
    """The dtype of each type parameter."""
    codes = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    codes |= {value.name: value.data_type for value in model.graph.initializer}
    return {
        parameter: onnx.TensorProto.DataType.Name(codes[name]).lower()
        for parameter, name in bound_values(schema, node)
        if codes.get(name)
    }


def bound_values(schema: Any, node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Each type parameter with the name of a value of that type."""
    parameters = {each.type_param_str for each in schema.type_constraints}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for index, name in enumerate(names):
            if name and formals:
                parameter = formals[min(index, len(formals) - 1)].type_str
                if parameter in parameters:
                    yield parameter, name


def checked(case: Case, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Case | None:
    """The case with that model, with what the runner says that it gives; None where the model is invalid."""
    try:
        onnx.checker.check_model(model, full_check=True)
        with np.errstate(all="ignore"):
            outputs = InferenceSession(model.SerializeToString()).run(None, feeds)
    except Exception:  # the attributes do not fit the dtype or the inputs
        return None
    return _filled(replace(case, inputs=feeds, outputs=outputs), model)
