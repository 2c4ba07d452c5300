"""``f`` as an open binary file, as the older exporter of torch takes it."""

from __future__ import annotations

import gzip
import io
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import fx2onnx


def test_the_file_is_that_of_a_path(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    path, buffer = tmp_path / "m.onnx", io.BytesIO()
    buffer.write(b"before")
    _, result = (fx2onnx.export(module, torch.ones(1, 3), f) for f in (path, buffer))
    content = buffer.getvalue()[len(b"before") :]
    assert content == path.read_bytes()
    assert result.path is None
    assert result.report.file_bytes == len(content)


@pytest.mark.parametrize("open_", [partial(open, mode="wb", buffering=0), partial(gzip.open, mode="wb")])
def test_files_of_any_kind(tmp_path: Path, open_: Any) -> None:
    """Those without a buffer may take a part at a time."""
    with open_(tmp_path / "m") as file:
        fx2onnx.export(torch.nn.Linear(3, 2), torch.ones(1, 3), file, verify=True)
        written = file.tell()
    content = (tmp_path / "m").read_bytes()
    model = onnx.load_from_string(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
    onnx.checker.check_model(model, full_check=True)
    assert written == len(model.SerializeToString())


def test_large_weights_are_inside() -> None:
    buffer = io.BytesIO()
    fx2onnx.export(torch.nn.Linear(3000, 2000), torch.ones(1, 3000), buffer)
    session = onnxruntime.InferenceSession(buffer.getvalue())
    assert session.run(None, {"input": np.ones((1, 3000), np.float32)})[0].shape == (1, 2000)


def test_a_training_step() -> None:
    buffer = io.BytesIO()
    module, loss = torch.nn.Linear(3, 2), torch.nn.MSELoss()
    training = fx2onnx.Training(loss=loss, targets=(torch.ones(1, 2),))
    fx2onnx.export(module, torch.ones(1, 3), buffer, training=training)
    assert {value.name for value in onnx.load_from_string(buffer.getvalue()).graph.output} >= {"loss"}


@pytest.mark.parametrize(
    ("file", "said", "asked"),
    [
        (io.StringIO(), "file of text", {}),
        (io.BytesIO(), "weights beside an open BytesIO", {"external_data": True}),
    ],
)
def test_refused_at_once(file: Any, said: str, asked: dict[str, Any]) -> None:
    with pytest.raises(fx2onnx.UserError, match=said) as caught:
        fx2onnx.export(lambda x: x.item(), torch.ones(()), file, **asked)
    assert caught.value.code == "E301"
    assert not file.getvalue()


def test_a_file_that_takes_nothing(tmp_path: Path) -> None:
    closed = io.BytesIO()
    closed.close()
    (tmp_path / "m").touch()
    with open(tmp_path / "m", "rb") as readable:
        for file in (closed, readable):
            with pytest.raises(fx2onnx.UserError, match="cannot write into the open"):
                fx2onnx.export(torch.nn.Linear(3, 2), torch.ones(1, 3), file)
