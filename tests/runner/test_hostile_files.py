"""Files whose external data or metadata is wrong: clear errors, and nothing is read outside the model's folder."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from test_hostile import model, options, value

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.runner.trainer import METADATA_KEY, StatefulSession

EXTERNAL = {
    "../secret.bin": "inside the model's folder",
    "/etc/passwd": "inside the model's folder",
    "a/../../secret.bin": "inside the model's folder",
    "link.bin": "link out",
    "missing.bin": "does not exist",
    "sub": "not a regular file",
}


@pytest.mark.parametrize("location", EXTERNAL)
def test_external_data_stays_inside(location: str, tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with pytest.raises(UserError) as caught:
        ort.InferenceSession(external_model(folder, location, 0, 16), options())
    assert caught.value.code == "E302"
    assert EXTERNAL[location] in str(caught.value)


@pytest.mark.parametrize(("offset", "length"), [(60, 16), (0, 8), (0, 32), (1 << 60, 16), (-4, 16)])
def test_external_data_out_of_bounds(offset: int, length: int, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 64)
    with pytest.raises(UserError) as caught:
        ort.InferenceSession(external_model(tmp_path, "w.bin", offset, length), options())
    assert caught.value.code in ("E302", "E303")


def test_external_data_is_mapped(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(b"\0" * 4 + np.arange(4, dtype=np.float32).tobytes())
    session = ort.InferenceSession(external_model(tmp_path, "w.bin", 4, 16), options())
    assert session.run(None, {})[0].tolist() == [0, -1, -2, -3]


def external_model(folder: Path, location: str, offset: int, length: int) -> str:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, text in (("location", location), ("offset", offset), ("length", length)):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(text)
    path = os.fspath(folder / "m.onnx")
    proto = model([helper.make_node("Neg", ["w"], ["y"])], [], [value("y", [4])], [tensor])
    Path(path).write_bytes(proto.SerializeToString())
    return path


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
