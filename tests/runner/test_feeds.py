"""Sequences, maps and optionals are checked as tensors are: before anything runs, with what was given and what is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

ROW = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 2])
NUMBER = helper.make_tensor_type_proto(TensorProto.FLOAT, [])
TEXT_TO_FLOAT = helper.make_map_type_proto(TensorProto.STRING, NUMBER)
TYPES = {
    "rows": helper.make_sequence_type_proto(ROW),
    "maybe": helper.make_optional_type_proto(helper.make_sequence_type_proto(ROW)),
    "counts": TEXT_TO_FLOAT,
    "numbers": helper.make_map_type_proto(TensorProto.INT64, NUMBER),
    "several": helper.make_sequence_type_proto(TEXT_TO_FLOAT),
}


def taking(name: str) -> ort.InferenceSession:
    """A model that takes a value of that type and does not read it, so that only the check sees the feed."""
    info = onnx.ValueInfoProto(name=name, type=TYPES[name])
    nodes = [helper.make_node("Constant", [], ["y"], value_int=1)]
    graph = helper.make_graph(nodes, "g", [info], [helper.make_tensor_value_info("y", TensorProto.INT64, [])])
    return ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


def row(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.zeros(shape, dtype)


GOOD: list[tuple[str, Any]] = [
    ("rows", []), ("rows", [row(3, 2), row(1, 2)]), ("rows", (row(3, 2),)), ("maybe", None), ("maybe", [row(1, 2)]),
    ("counts", {"a": 1.0, "b": np.float32(2)}), ("counts", {}), ("numbers", {1: 1.0, np.int64(2): 2.0}),
    ("several", [{"a": 1.0}, {}]),
]  # fmt: skip
BAD: list[tuple[str, Any, str]] = [
    ("rows", row(3, 2), "the feed 'rows' is float[3, 2], not a list"),
    ("rows", {"a": 1}, "not a list"),
    ("rows", [row(3, 2), row(3, 2, dtype=np.float64)], "item 1 of the feed 'rows' is tensor(double)"),
    ("rows", [row(3)], "item 0 of the feed 'rows' has 1 axes; the model needs 2"),
    ("rows", [row(3, 4)], "dim 1 of item 0 of the feed 'rows' is 4; the model needs 2"),
    ("rows", [None], "item 0 of the feed 'rows' is a NoneType"),
    ("rows", None, "not a list"),
    ("maybe", [row(3, 4)], "is 4; the model needs 2"),
    ("counts", [1.0], "not a dict"),
    ("counts", {1: 1.0}, "the key 1 of the feed 'counts' is a int"),
    ("counts", {"a": "text"}, "'a' of the feed 'counts' is not tensor(float)"),
    ("counts", {"a": None}, "'a' of the feed 'counts' is a NoneType"),
    ("numbers", {"a": 1.0}, "its keys are integers"),
    ("numbers", {True: 1.0}, "is a bool"),
    ("several", [{"a": 1.0}, 3], "item 1 of the feed 'several' is int, not a dict"),
]


@pytest.mark.parametrize(("name", "value"), GOOD, ids=lambda item: str(item)[:30])
def test_taken(name: str, value: Any) -> None:
    assert taking(name).run(None, {name: value})[0] == 1


@pytest.mark.parametrize(
    ("given", "wanted", "step"),
    [
        ((8,), (8, 1), '["x"][:, None]'),
        ((8,), (1, 8), '["x"][None]'),
        ((8,), ("n", 1), '["x"][:, None]'),
        ((8, 3), ("n", "m", 3), '["x"][None]'),
        ((2, 3), (2, "n", 3), '["x"][:, None]'),
        ((8,), (4, 4), "the same number of axes"),
        ((8, 1), (8,), "the same number of axes"),
    ],
)
def test_the_axis_that_is_lacking_is_named(given: Any, wanted: Any, step: str) -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, wanted)
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, wanted)
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", [info], [result])
    with pytest.raises(UserError) as caught:
        ort.InferenceSession(helper.make_model(graph, ir_version=10)).run(None, {"x": row(*given)})
    assert step in caught.value.next[0]


@pytest.mark.parametrize(("name", "value", "text"), BAD, ids=lambda item: str(item)[:30])
def test_refused(name: str, value: Any, text: str) -> None:
    with pytest.raises(UserError) as caught:
        taking(name).run(None, {name: value})
    assert caught.value.code == "E401"
    assert text in str(caught.value)


def test_types_as_onnxruntime_spells_them() -> None:
    spelled = {name: taking(name).get_inputs()[0].type for name in TYPES}
    assert spelled == {
        "rows": "seq(tensor(float))",
        "maybe": "optional(seq(tensor(float)))",
        "counts": "map(string,tensor(float))",
        "numbers": "map(int64,tensor(float))",
        "several": "seq(map(string,tensor(float)))",
    }


@pytest.mark.parametrize("keys", ["string", "int64"])
def test_maps_against_onnxruntime(keys: str) -> None:
    """DictVectorizer and CastMap take dictionaries."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if keys == "string":
        vocabulary: dict[str, Any] = {"string_vocabulary": ["a", "b", "c"]}
        code, feed = TensorProto.STRING, {"c": 3.0, "a": 1.5, "other": 9.0}
    else:
        vocabulary, code, feed = {"int64_vocabulary": [5, 1, 3]}, TensorProto.INT64, {3: 3.0, 5: 1.5, 9: 9.0}
    info = onnx.ValueInfoProto(name="x", type=helper.make_map_type_proto(code, NUMBER))
    nodes = [helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **vocabulary)]
    outputs = ["y"]
    if keys == "int64":
        nodes.append(helper.make_node("CastMap", ["x"], ["z"], domain="ai.onnx.ml", cast_to="TO_FLOAT"))
        nodes.append(helper.make_node("CastMap", ["x"], ["s"], domain="ai.onnx.ml", map_form="SPARSE", max_map=12))
        outputs += ["z", "s"]
    graph = helper.make_graph(nodes, "g", [info], [helper.make_empty_tensor_value_info(name) for name in outputs])
    imports = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 21)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    theirs = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    for ours, wanted in zip(
        ort.InferenceSession(proto).run(None, {"x": feed}), theirs.run(None, {"x": feed}), strict=True
    ):
        assert ours.dtype == wanted.dtype
        np.testing.assert_array_equal(ours, wanted)


def squares(dims: list[Any], names: tuple[str, ...] = ("x",)) -> ort.InferenceSession:
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name in names]
    nodes = [helper.make_node("Mul", ["x", "x"], ["y"])]
    graph = helper.make_graph(nodes, "g", infos, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    return ort.InferenceSession(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))


class Surprising(np.ndarray):
    """An array whose operators do something else."""

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        return 42


@pytest.mark.parametrize("kind", [np.matrix, np.recarray, np.ma.MaskedArray, Surprising])
def test_other_kinds_of_arrays_are_taken_for_their_elements(kind: type[np.ndarray]) -> None:
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    session = squares(["n", "m"])
    for _ in range(3):
        (y,) = session.run(None, {"x": x.view(kind)})
        assert type(y) is np.ndarray
        assert y.tolist() == [[0, 1], [4, 9]]


def test_a_tensor_that_gives_no_array() -> None:
    class Tracked:
        def numpy(self) -> Any:
            raise RuntimeError("it requires grad")

    with pytest.raises(UserError, match=r"detach\(\)") as caught:
        squares([2]).run(None, {"x": Tracked()})
    assert caught.value.code == "E401"
    assert caught.value.why == "it requires grad"


def test_a_negative_dim_is_not_known() -> None:
    """Some exporters write -1 for a dynamic dim; onnxruntime reads it so."""
    session = squares([-1, 2])
    assert session.get_inputs()[0].shape == [None, 2]
    assert session.run(None, {"x": row(3, 2)})[0].shape == (3, 2)


def test_errors_list_some_names_only() -> None:
    session = squares([2], ("x", *(f"x{number}" for number in range(1000))))
    for feeds in ({}, {"unknown": row(2)}):
        with pytest.raises(UserError, match=r"\.\.\. and 989 more") as caught:
            session.run(None, feeds)
        assert len(str(caught.value)) < 1500
