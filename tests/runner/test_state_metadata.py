"""The metadata by which ``StatefulSession`` knows state inputs: whatever else it holds is one clear error."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest

from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.runner.stateful import METADATA_KEY, StatefulSession


def session(text: str) -> InferenceSession:
    """y = x + s, of which ``s.next`` is to be the next ``s``."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Add", ["x", "s"], ["y"]), onnx.helper.make_node("Neg", ["y"], ["s.next"])],
        "g",
        [value("x", 1, [2]), value("s", 1, [2])],
        [value("y", 1, [2]), value("s.next", 1, [2])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 20)], ir_version=10)
    onnx.helper.set_model_props(model, {METADATA_KEY: text})
    return InferenceSession(model.SerializeToString())


START = {"s": np.zeros(2, np.float32)}


def test_state_goes_from_call_to_call() -> None:
    stateful = StatefulSession(session(json.dumps({"s": "s.next"})), START)
    x = np.ones(2, np.float32)
    assert [float(stateful.run(None, {"x": x})[0][0]) for _ in range(3)] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "3",
        "[" * 100_000,
        '{"s": 3}',
        '{"s": null}',
        '{"s": ["s.next"]}',
        '{"s": {}}',
        '{"s": "other"}',
        '{"s": "x"}',
        '{"s": ' + "9" * 5000 + "}",
    ],
)
def test_malformed_metadata_is_one_error(text: str) -> None:
    with pytest.raises(UserError) as caught:
        StatefulSession(session(text), START)
    assert (caught.value.code, METADATA_KEY in caught.value.what) == ("E303", True)


@pytest.mark.parametrize("text", ["", "{}", '{"other": "s.next"}'])
def test_metadata_of_other_states(text: str) -> None:
    with pytest.raises(UserError, match="does not have this state"):
        StatefulSession(session(text), START)
