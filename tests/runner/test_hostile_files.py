"""External data stays inside the model's folder and inside its file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from test_hostile import model, options, value

import fx2onnx.runner as ort
from fx2onnx.base.errors import UserError

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
