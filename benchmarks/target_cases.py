"""Models of one node with inputs and outputs: the test cases of the onnx package, in every opset from 11 on, with fewer optional
inputs and outputs, in the other dtypes of the operator, and with dynamic sizes.
"""

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
from fx2onnx.file_optimizer.opset import convert_opset
from fx2onnx.irx.facts import GRAPH_BEARING
from fx2onnx.runner import InferenceSession
from fx2onnx.targets.features import DYNAMIC, features_of

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
RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators whose numbers are not compared."""
CASTS = frozenset({"Cast", "CastLike"})
MOST_RETYPED = 3
"""Cases of an operator version that are tried in other dtypes: those that ask for least."""
SMALL = 256
"""Elements of a case at most, where there are smaller ones to be tried in other dtypes."""


@dataclass
class Case:
    """One model, and what it gives."""

    name: str
    op_type: str
    version: int
    """Of the operator."""
    opset: int
    types: dict[str, str]
    """The dtype of each type parameter."""
    model: bytes
    inputs: dict[str, np.ndarray] = field(default_factory=dict)
    outputs: list[np.ndarray] | None = None
    """None where numbers are not to be compared."""
    features: frozenset[str] = frozenset()
    """``features_of`` the node, ``rank N`` of its first input, and whether its sizes are dynamic."""


def cases() -> Iterator[Case]:
    """All of them."""
    for found in _cases_of_versions().values():
        known: set[frozenset[str]] = set()
        for case in found:
            yield case
            known.add(without_rank(case.features))
        fewer = [variant for case in found for variant in _with_fewer(case)]
        for case in fewer:
            if without_rank(case.features) not in known:
                known.add(without_rank(case.features))
                found.append(case)
                yield case
        plainest = sorted(found, key=lambda case: (_elements(case) > SMALL, len(without_rank(case.features))))
        plain = _of_other_features(plainest)[:MOST_RETYPED]
        for case in plain:
            yield from _retyped(case)
        for case in plain:
            yield from _dynamic(case)


def without_rank(features: frozenset[str]) -> frozenset[str]:
    """All but ``rank N``."""
    return frozenset(feature for feature in features if not feature.startswith("rank"))


def _elements(case: Case) -> int:
    return sum(array.size for array in case.inputs.values())


def _of_other_features(every: list[Case]) -> list[Case]:
    """The first of each set of features, then the others."""
    first: dict[frozenset[str], Case] = {}
    for case in every:
        first.setdefault(without_rank(case.features), case)
    return [*first.values(), *(case for case in every if all(case is not each for each in first.values()))]


def _cases_of_versions() -> dict[tuple[str, int], list[Case]]:
    """The cases of the onnx package and those of ``_more``, by operator and its version."""
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
    """Of operators that have no case of one node."""
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
    case = Case(name, schema.name, schema.since_version, opset, {}, b"", _of(kept, feeds), list(outputs))
    return _filled(case, changed)


def _of(names: set[str], feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
    """Whether that version of the operator knows the words of its attributes, which the checker does not ask."""
    node = node_of(model)
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


def node_of(model: onnx.ModelProto) -> onnx.NodeProto:
    """The node that a case is about: there may be a Cast before it and one behind."""
    nodes = model.graph.node
    return nodes[len(nodes) // 2 if len(nodes) > 1 else 0]


def _write_constants(model: onnx.ModelProto, schema: Any, feeds: dict[str, np.ndarray]) -> None:
    """Such inputs become initializers."""
    node = model.graph.node[0]
    for index, name in enumerate(node.input):
        formal = schema.inputs[min(index, len(schema.inputs) - 1)].name
        if index and name in feeds and formal in CONSTANTS:
            model.graph.initializer.append(numpy_helper.from_array(feeds.pop(name), name))
    _keep_inputs(model, feeds)


def _keep_inputs(model: onnx.ModelProto, names: Any) -> None:
    kept = [value for value in model.graph.input if value.name in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _filled(case: Case, model: onnx.ModelProto) -> Case:
    """The case with that model, its dtypes and features."""
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    node = node_of(model)
    rank = len(model.graph.input[0].type.tensor_type.shape.dim) if model.graph.input else 0
    read = ir.from_proto(model)
    found = next(each for each in read.graph if each.op_type == node.op_type)
    features = features_of(found, case.opset) | {f"rank {rank}"}
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
        for parameter, name in _bound(schema, node)
        if codes.get(name)
    }


def _bound(schema: Any, node: onnx.NodeProto) -> Iterator[tuple[str, str]]:
    """Each type parameter with the name of a value of that type."""
    parameters = {each.type_param_str for each in schema.type_constraints}
    for formals, names in ((schema.inputs, node.input), (schema.outputs, node.output)):
        for index, name in enumerate(names):
            if name and formals:
                parameter = formals[min(index, len(formals) - 1)].type_str
                if parameter in parameters:
                    yield parameter, name


def _checked(case: Case, model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> Case | None:
    """The case with that model, with what the runner says that it gives; None where the model is invalid."""
    try:
        onnx.checker.check_model(model, full_check=True)
        with np.errstate(all="ignore"):
            outputs = InferenceSession(model.SerializeToString()).run(None, feeds)
    except Exception:  # the attributes do not fit the dtype or the inputs
        return None
    return _filled(replace(case, inputs=feeds, outputs=outputs), model)


def _with_fewer(case: Case) -> Iterator[Case]:
    """The same without each optional input or output, and without all of them; a loop without its end is none."""
    if case.op_type in GRAPH_BEARING:
        return
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    node = onnx.load_from_string(case.model).graph.node[0]
    places = [
        (side, place)
        for side, names, formals in (("input", node.input, schema.inputs), ("output", node.output, schema.outputs))
        for place, name in enumerate(names)
        if name and place < len(formals) and formals[place].option == optional
    ]
    choices = [places, *([place] for place in places)] if len(places) > 1 else [places] if places else []
    for left_out in choices:
        variant = _without(case, left_out)
        if variant is not None:
            yield variant


def _without(case: Case, places: list[tuple[str, int]]) -> Case | None:
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    for side, place in places:
        getattr(node, side)[place] = ""
    for names in (node.input, node.output):
        while names and not names[-1]:
            del names[-1]
    kept = [value for value in model.graph.initializer if value.name in node.input]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    given = [value for value in model.graph.output if value.name in node.output]
    del model.graph.output[:]
    model.graph.output.extend(given)
    _keep_inputs(model, node.input)
    return _checked(case, model, _of(set(node.input), case.inputs)) if given else None


def _retyped(case: Case) -> Iterator[Case]:
    """The same with each type parameter in the other dtypes that the operator admits."""
    schema = onnx.defs.get_schema(case.op_type, case.opset, "")
    for constraint in schema.type_constraints:
        parameter = constraint.type_param_str
        for word in DTYPES:
            if f"tensor({word})" in constraint.allowed_type_strs and case.types.get(parameter, word) != word:
                changed = _in_dtype(case, schema, parameter, word)
                if changed is not None:
                    yield changed


def _in_dtype(case: Case, schema: Any, parameter: str, word: str) -> Case | None:
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    bound = {name for each, name in _bound(schema, node) if each == parameter}
    code = getattr(onnx.TensorProto, word.upper())
    for value in (*model.graph.input, *model.graph.output):
        if value.name in bound:
            value.type.tensor_type.elem_type = code
    for tensor in model.graph.initializer:
        if tensor.name in bound:
            tensor.CopyFrom(numpy_helper.from_array(_cast(numpy_helper.to_array(tensor), word), tensor.name))
    for attribute in node.attribute:
        if attribute.name in ("to", "dtype", "output_dtype") and node.output[0] in bound:
            attribute.i = code
    given = (
        {name: _of_all_dtypes(array) for name, array in case.inputs.items()} if case.op_type in CASTS else case.inputs
    )
    feeds = {name: _cast(array, word) if name in bound else array for name, array in given.items()}
    changed = _checked(case, model, feeds)
    return _between_casts(changed, bound) if changed is not None and word == "bfloat16" else changed


def _of_all_dtypes(array: np.ndarray) -> np.ndarray:
    """The same with numbers that every dtype holds: what a cast of others gives is up to the runtime."""
    return (
        np.asarray(np.clip(np.nan_to_num(np.abs(array)), 0, 100), array.dtype) if array.dtype.kind in "fiu" else array
    )


def _cast(array: np.ndarray, word: str) -> np.ndarray:
    """In that dtype: magnitudes where it has no sign."""
    with np.errstate(all="ignore"):
        return (np.abs(array) if word.startswith("u") and array.dtype != np.bool_ else array).astype(DTYPES[word])


def _between_casts(case: Case, bound: set[str]) -> Case | None:
    """The same with float32 outside, since few runtimes are handed bfloat16."""
    model = onnx.load_from_string(case.model)
    (node,) = model.graph.node
    before, behind = [], []
    for values, casts, names in ((model.graph.input, before, node.input), (model.graph.output, behind, node.output)):
        for value in values:
            if value.name not in bound:
                continue
            inner = f"{value.name}/bfloat16"
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            ends = ([value.name], [inner]) if casts is before else ([inner], [value.name])
            to = onnx.TensorProto.BFLOAT16 if casts is before else onnx.TensorProto.FLOAT
            casts.append(helper.make_node("Cast", *ends, to=to))
            for place, name in enumerate(names):
                if name == value.name:
                    names[place] = inner
    del model.graph.node[:]
    model.graph.node.extend([*before, node, *behind])
    feeds = {name: array.astype(np.float32) if name in bound else array for name, array in case.inputs.items()}
    outputs = case.outputs and [
        array.astype(np.float32) if array.dtype == DTYPES["bfloat16"] else array for array in case.outputs
    ]
    return replace(case, model=model.SerializeToString(), inputs=feeds, outputs=outputs)


def _dynamic(case: Case) -> Iterator[Case]:
    """The same with sizes of its inputs and outputs that are known when it runs."""
    model = onnx.load_from_string(case.model)
    if not model.graph.input:
        return
    for value in (*model.graph.input, *model.graph.output):
        for axis, size in enumerate(value.type.tensor_type.shape.dim):
            size.dim_param = f"{value.name}_{axis}"
    del model.graph.value_info[:]
    yield replace(case, model=model.SerializeToString(), features=case.features | {DYNAMIC})


def with_constants(case: Case) -> Case:
    """The same with all inputs but the first as constants, or with the only one: weights, scales and shapes stand so in files."""
    model = onnx.load_from_string(case.model)
    first = list(case.inputs)[:1] if len(case.inputs) > 1 else []
    for name, array in case.inputs.items():
        if name not in first:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    _keep_inputs(model, first)
    return replace(case, model=model.SerializeToString(), inputs=_of(set(first), case.inputs))
