"""What ONNX's specification calls invalid is refused when the model is loaded; what onnxruntime runs beside it, runs.

onnxruntime is asked the same, so that the table cannot say of it what is not so.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from invalid_models import CASES, GROUPS
from invalid_models.case import ABORTS, AT_LOAD, AT_RUN, RUNS, Case
from onnx import AttributeProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.semantics.schemas import FLAGS, VALUES, types_of

onnxruntime = pytest.importorskip("onnxruntime")

CPU = ["CPUExecutionProvider"]
DTYPES = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32,
    "int8": np.int8, "uint8": np.uint8, "bool": np.bool_,
}  # fmt: skip


def feeds(session: Any) -> dict[str, Any]:
    """Ones for tensors of the declared shapes, 2 for sizes that are not fixed; a sequence of one [2] for a sequence."""
    return {arg.name: ones(arg.type, arg.shape) for arg in session.get_inputs()}


def ones(type_: str, shape: Any) -> Any:
    if type_.startswith("seq("):
        return [ones(type_[4:-1], [2])]
    dims = [dim if isinstance(dim, int) and dim >= 0 else 2 for dim in shape or ()]
    name = type_[len("tensor(") : -1]
    return np.full(dims, "a", dtype=object) if name == "string" else np.ones(dims, DTYPES[name])


def done_by_onnxruntime(model: onnx.ModelProto) -> tuple[str, list[Any]]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=CPU)
    except Exception:  # of any kind: what matters is that it is refused
        return AT_LOAD, []
    try:
        return RUNS, session.run(None, feeds(session))
    except Exception:  # as above
        return AT_RUN, []


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    case = CASES[name]
    if not case.refused:
        session = ort.InferenceSession(case.make())
        ours = session.run(None, feeds(session))
        if case.onnxruntime == RUNS:
            for mine, theirs in zip(ours, done_by_onnxruntime(case.make())[1], strict=True):
                np.testing.assert_array_equal(mine, theirs)
        return
    with pytest.raises(UserError) as caught:
        ort.InferenceSession(case.make())
    assert caught.value.code in ("E302", "E303", "E402")
    assert case.refused in str(caught.value)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.onnxruntime != ABORTS])
def test_what_onnxruntime_does(name: str) -> None:
    case = CASES[name]
    assert done_by_onnxruntime(case.make())[0] in (case.onnxruntime, *case.elsewhere)


def test_where_onnxruntime_does_otherwise_there_is_a_reason() -> None:
    def differs(case: Case) -> bool:
        return (case.refused == "") != (case.onnxruntime == RUNS) or case.onnxruntime == ABORTS

    assert sum(map(len, GROUPS)) == len(CASES), "a name stands in two tables"
    assert {name for name, case in CASES.items() if differs(case)} == {n for n, case in CASES.items() if case.because}


TEXT = {
    ("Constant", "value_string"), ("Einsum", "equation"), ("RegexFullMatch", "pattern"), ("StringNormalizer", "locale"),
    ("StringSplit", "delimiter"), ("Cast", "to"),
}  # fmt: skip
"""Attributes that are free text; ``to`` of Cast is the name of an element type in opsets 1 to 5."""


def descriptions() -> dict[tuple[str, str], str]:
    """What all versions of an operator say of an attribute of one text."""
    found: dict[tuple[str, str], str] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        for name, attribute in schema.attributes.items():
            if not schema.domain and int(attribute.type.value) == AttributeProto.STRING:
                found[schema.name, name] = found.get((schema.name, name), "") + attribute.description
    return found


def test_every_attribute_of_text_is_in_a_table() -> None:
    assert set(descriptions()) == set(VALUES) | TEXT


@pytest.mark.parametrize(("op_type", "name"), VALUES)
def test_values_are_those_of_the_description(op_type: str, name: str) -> None:
    text = descriptions()[op_type, name]
    assert [value for value in VALUES[op_type, name] if not re.search(rf"\b{value}\b", text)] == []


def of_one_node(op_type: str, name: str, value: Any) -> onnx.ModelProto:
    """A node of the newest version that has the attribute, with as few operands as it may have."""
    schemas = [s for s in onnx.defs.get_all_schemas_with_history() if (s.name, s.domain) == (op_type, "")]
    schema = max((s for s in schemas if not s.deprecated and name in s.attributes), key=lambda s: s.since_version)
    names = [f"x{place}" for place in range(schema.min_input)]
    made = [value] if int(schema.attributes[name].type.value) == AttributeProto.INTS else value
    node = helper.make_node(op_type, names, [f"y{place}" for place in range(schema.min_output)], **{name: made})
    inputs = [helper.make_tensor_value_info(each, 1, [1]) for each in names]
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y0")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", schema.since_version)], ir_version=10)


@pytest.mark.parametrize(("op_type", "name"), VALUES)
def test_another_value_is_refused(op_type: str, name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' of {op_type} is 'zz', which ONNX does not know"):
        ort.InferenceSession(of_one_node(op_type, name, "zz"))


@pytest.mark.parametrize(("op_type", "name"), sorted(FLAGS))
def test_a_flag_is_0_or_1(op_type: str, name: str) -> None:
    with pytest.raises(UserError, match=f"'{name}' of {op_type} is 2, which ONNX does not know"):
        ort.InferenceSession(of_one_node(op_type, name, 2))


def test_types_of_parameters_are_those_that_onnx_names() -> None:
    """onnx 1.20 names none."""
    if onnx.__version__.startswith("1.20."):
        pytest.skip("onnx 1.20 cannot give the types of parameters, which the runner's own are compared with")
    for schema in onnx.defs.get_all_schemas_with_history():
        for parameter in (*schema.inputs, *schema.outputs):
            assert types_of(parameter, schema) == frozenset(parameter.types), f"{schema.name} {parameter.name}"
