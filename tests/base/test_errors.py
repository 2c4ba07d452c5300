"""Errors have one shape, survive pickling, and are documented."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path

import pytest

import fx2onnx
from fx2onnx.base.errors import CODES, STEPS, Fx2OnnxError, InternalError, UserError, VerificationError
from fx2onnx.base.source import SourceLocation

DOCS = Path(__file__).parents[2] / "docs" / "errors.md"


def sample() -> UserError:
    return UserError(
        "E201",
        "cannot translate aten.erfinv.default to ONNX (opset 17)",
        where=SourceLocation(__file__, 12, "forward"),
        module_path="head",
        node="%erfinv = aten.erfinv.default(x)  -> float32[8, 32]",
        why="no entry",
        next=("write it", "let PyTorch split it"),
    )


def test_every_code_is_documented_and_nothing_else() -> None:
    assert set(re.findall(r"^## (E\d{3})$", DOCS.read_text(), re.MULTILINE)) == set(CODES)


def test_the_text_has_every_field_in_order() -> None:
    text = str(sample())
    places = [
        text.index(part)
        for part in ("[E201]", "in forward", "(module: head)", ">    12 |", "node ", "why ", "1. write")
    ]
    assert places == sorted(places)
    assert "2. let PyTorch" in text


def test_further_lines_of_a_field_stand_below_its_first() -> None:
    for field in ("why", "node"):
        text = UserError("E501", "differs", next="look", **{field: "runner: y\nonnxruntime: y"}).render()
        assert f"  {field:<5} runner: y\n        onnxruntime: y\n" in text


def test_fields_as_json_and_through_pickle() -> None:
    error = sample()
    fields = json.loads(json.dumps(error.as_dict()))
    assert fields["code"] == "E201"
    assert fields["where"]["line"] == 12
    assert not fields["where"]["file"].startswith("/")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.as_dict() == error.as_dict()


@pytest.mark.parametrize("code", STEPS)
def test_an_error_says_what_to_do_whoever_raises_it(code: str) -> None:
    error = UserError(code, "it fails")
    assert error.next == STEPS[code]
    assert STEPS[code][0] in str(error)
    error.add_next(["a step that knows more"])
    assert error.next == ("a step that knows more",)
    assert UserError(code, "it fails", next="its own step").next == ("its own step",)


@pytest.mark.parametrize(("kind", "exit_code"), [(UserError, 2), (InternalError, 1), (VerificationError, 1)])
def test_exit_codes(kind: type[Fx2OnnxError], exit_code: int) -> None:
    assert kind("E001", "x").exit_code == exit_code
    assert issubclass(kind, fx2onnx.Fx2OnnxError)


def test_unknown_codes_are_a_programming_error() -> None:
    with pytest.raises(KeyError):
        UserError("E999", "x")


def test_a_place_is_named_from_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "inner" / "model.py"
    where = SourceLocation(str(file), 3, "forward")
    (tmp_path / "inner").mkdir()
    for folder, expected in ((tmp_path, "inner/model.py"), (file.parent, "model.py"), (tmp_path.parent, None)):
        monkeypatch.chdir(folder)
        assert where.relative_file() == (expected or f"{tmp_path.name}/inner/model.py")
    installed = SourceLocation("/opt/lib/site-packages/timm/models/vit.py", 3, "forward")
    with monkeypatch.context() as elsewhere:
        elsewhere.delattr("os.getcwd")  # as where the folder is gone
        found = installed.relative_file()
    assert found == "timm/models/vit.py"
