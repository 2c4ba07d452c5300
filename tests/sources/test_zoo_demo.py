"""``python -m models_zoo.demo`` on a small model, and when it must fail."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from models_zoo import demo

ROW = demo.Row("m", 0.1, 10, 1000, 2.0, 1e-5, 0.1, 1e-5, 0.1)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    def call(*models: str) -> int:
        monkeypatch.setattr(sys, "argv", ["demo", *models, "--out", str(tmp_path / "new" / "out")])
        return demo.main()

    return call


@pytest.mark.long
def test_it_exports_runs_and_prints_a_table(run: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("mnist_cnn", "vit_tiny") == 0  # type: ignore[operator]
    captured = capsys.readouterr()
    assert all(word in captured.out for word in ("mnist_cnn", "vit_tiny", "onnxruntime", "runner", "error"))
    assert "vit_tiny: export" in captured.err
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == ["mnist_cnn.onnx", "vit_tiny.onnx"]


def test_an_unknown_model_is_a_users_error(run: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("mnist_cmm") == 2  # type: ignore[operator]
    assert "[E601]" in capsys.readouterr().err


def test_a_row_is_good_only_if_both_engines_agree_with_eager() -> None:
    assert ROW.is_good
    for field in ("runner_error", "ort_error"):
        for error in (1e-2, float("nan"), float("inf")):
            assert not dataclasses.replace(ROW, **{field: error}).is_good


class OneOutput:
    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def run(self, names: object, feeds: object) -> list[np.ndarray]:
        return [self.value]


@pytest.mark.parametrize(
    ("got", "error"),
    [
        (np.ones(3, np.float32), 0.0),
        (np.full(3, 1.5, np.float32), 0.5),
        (np.ones(3), float("inf")),
        (np.ones((1, 3), np.float32), float("inf")),
        (np.array([1, np.nan, 1], np.float32), float("nan")),
    ],
)
def test_errors_of_values_dtypes_and_shapes(got: np.ndarray, error: float) -> None:
    found, _ = demo._compare(OneOutput(got), {}, [np.ones(3, np.float32)])
    assert found == error or (np.isnan(found) and np.isnan(error))
