"""Models of one node with inputs and outputs, from the test cases of the onnx package: as they are, in older opsets, and in other
dtypes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases

from fx2onnx.runner import InferenceSession

OPSETS = (13, 17, 18, 20, 21, 22, 23, 24, 25, 26)
OTHER_DTYPES: dict[str, Any] = {
    "float16": np.float16,
    "double": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "int8": np.int8,
    "uint8": np.uint8,
    "bool": np.bool_,
    "bfloat16": ml_dtypes.bfloat16,
}
CONSTANTS = frozenset(
    {
        "shape",
        "axes",
        "axis",
        "starts",
        "ends",
        "steps",
        "pads",
        "split",
        "repeats",
        "k",
        "sizes",
        "scales",
        "roi",
        "depth",
    }
)
"""Inputs that exporters write as constants, and that many runtimes want so."""
RETYPED_CASES = 2
"""Cases of an operator version that are tried with other dtypes."""


@dataclass
class Case:
    """One model, and what it gives."""

    name: str
    op_type: str
    version: int
    parameter: str
    """The first type parameter of the operator."""
    dtype: str
    model: bytes
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[np.ndarray] = field(default_factory=list)


def cases() -> Iterator[Case]:
    """All of them. The runner says what the changed ones give."""
    seen: dict[tuple[str, int, str], int] = {}
    for case in collect_testcases(None):
        node = case.model.graph.node[0] if len(case.model.graph.node) == 1 else None
        if node is None or node.domain or not case.data_sets or case.model.functions:
            continue
        inputs, outputs = case.data_sets[0]
        if not all(isinstance(array, np.ndarray) and array.dtype.kind != "O" for array in (*inputs, *outputs)):
            continue  # sequences, optionals, strings
        for opset in OPSETS:
            schema = _schema(node.op_type, opset)
            if schema is None:
                continue
            parameter = (schema.inputs or schema.outputs)[0].type_str
            own = _dtype_of(case.model, schema, parameter)
            key = (node.op_type, schema.since_version, case.name)
            if own is None or key in seen:
                continue
            seen[key] = 1
            model = _in_opset(case.model, opset)
            if model is None:
                continue
            feeds = _with_constants(model, schema, dict(zip(_names(model), inputs, strict=False)))
            yield Case(case.name, *key[:2], parameter, own, model.SerializeToString(), feeds, list(outputs))
            count = seen[(*key[:2], "")] = seen.get((*key[:2], ""), 0) + 1
            if count <= RETYPED_CASES:
                yield from _retyped(case.name, model, schema, parameter, feeds)


def _names(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.input]


def _with_constants(model: onnx.ModelProto, schema: Any, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Writes such inputs into the model; gives the others."""
    node = model.graph.node[0]
    for index, name in enumerate(node.input):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)].name
        if index and name in feeds and formal in CONSTANTS:
            model.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop(name), name))
    kept = [value for value in model.graph.input if value.name in feeds]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return feeds


def with_constants(case: Case) -> Case:
    """The same with all inputs but the first as constants, or with the only one: weights, scales and shapes stand so in files."""
    model = onnx.load_from_string(case.model)
    first = list(case.inputs)[:1] if len(case.inputs) > 1 else []
    kept = [value for value in model.graph.input if value.name in first]
    for name, array in case.inputs.items():
        if name not in first:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    del model.graph.input[:]
    model.graph.input.extend(kept)
    inputs = {name: case.inputs[name] for name in first}
    return replace(case, model=model.SerializeToString(), inputs=inputs)


def with_first_output(case: Case) -> Case:
    """The same without the outputs that the operator need not give, which files seldom ask for."""
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    formals = onnx.defs.get_schema(case.op_type, case.version, "").outputs
    needed = sum(formal.option != onnx.defs.OpSchema.FormalParameterOption.Optional for formal in formals) or 1
    if any(not name for name in node.output[:needed]):
        return case
    del node.output[needed:]
    del model.graph.output[needed:]
    return replace(case, model=model.SerializeToString(), outputs=case.outputs[:needed])


def _schema(op_type: str, opset: int) -> Any:
    try:
        schema = onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def _dtype_of(model: onnx.ModelProto, schema: Any, parameter: str) -> str | None:
    """What the first type parameter is; None where it is a fixed type or no tensor."""
    node = model.graph.node[0]
    types = {value.name: value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output)}
    for formal, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for index, name in enumerate(names):
            if name and formal and formal[min(index, len(formal) - 1)].type_str == parameter and types.get(name):
                return onnx.TensorProto.DataType.Name(types[name]).lower()
    return None


def _in_opset(model: onnx.ModelProto, opset: int) -> onnx.ModelProto | None:
    """The same node in another opset, if that admits it."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.opset_import[:]
    changed.opset_import.append(onnx.helper.make_opsetid("", opset))
    changed.ir_version = {13: 7, 17: 8, 18: 8, 20: 9, 21: 10, 22: 10}.get(opset, 11)
    try:
        onnx.checker.check_model(changed, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return None
    return changed


def _retyped(
    name: str, model: onnx.ModelProto, schema: Any, parameter: str, feeds: dict[str, np.ndarray]
) -> Iterator[Case]:
    """The same in the other dtypes that the operator admits."""
    node = model.graph.node[0]
    allowed = next((each.allowed_type_strs for each in schema.type_constraints if each.type_param_str == parameter), [])
    bound = {
        value
        for formal, values in ((schema.inputs, node.input), (schema.outputs, node.output))
        for index, value in enumerate(values)
        if value and formal and formal[min(index, len(formal) - 1)].type_str == parameter
    }
    for word, dtype in OTHER_DTYPES.items():
        if f"tensor({word})" not in allowed or word == _dtype_of(model, schema, parameter):
            continue
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        for value in (*changed.graph.input, *changed.graph.output):
            if value.name in bound:
                value.type.tensor_type.elem_type = getattr(onnx.TensorProto, word.upper())
        with np.errstate(all="ignore"):
            given = {key: array.astype(dtype) if key in bound else array for key, array in feeds.items()}
        try:
            onnx.checker.check_model(changed, full_check=True)
            outputs = InferenceSession(changed.SerializeToString()).run(None, given)
        except Exception:  # the attributes do not fit the dtype
            continue
        yield Case(
            name, node.op_type, schema.since_version, parameter, word, changed.SerializeToString(), given, outputs
        )
