"""``ultralytics:``: the package predicts the same with its own model and with the file, suppression inside it or outside."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fx2onnx import UserError
from fx2onnx.cli.job import Job, run
from fx2onnx.cli.progress import Stages
from fx2onnx.sources import resolve

pytestmark = pytest.mark.long
_PARTS = {"detect": "boxes", "segment": "masks", "pose": "keypoints", "obb": "obb", "classify": "probs"}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    if importlib.util.find_spec("ultralytics") is None:
        pytest.skip("ultralytics is not installed: it is no dependency, and brings another torch")
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which the package sets itself
    from fx2onnx.sources import ultralytics

    return ultralytics._package()


@pytest.mark.parametrize(
    ("name", "nms"),
    [
        ("yolo11n.yaml", None), ("yolov8n.yaml", "default"), ("yolo11n-seg.yaml", "default"), ("yolo11n-obb.yaml", "default"),
        ("yolo11n-pose.yaml", "iou=0.7"), ("yolo11n-cls.yaml", None),
    ],
)  # fmt: skip
def test_the_file_predicts_what_the_package_predicts(package: Any, name: str, nms: str | None, tmp_path: Path) -> None:
    model = resolve(f"ultralytics:{name}", image_size=96).module.model
    for head in getattr(model.model[-1], "cv3", ()):  # few boxes pass, so that hardly two overlap by just the threshold
        head[-1].weight.data *= 0.3
        head[-1].bias.data -= 2
    model.args = dict(package.utils.DEFAULT_CFG_DICT)
    weights, file = tmp_path / "net.pt", tmp_path / "net.onnx"
    torch.save({"model": model, "train_args": {}, "version": package.__version__}, weights)
    options = {"image_size": 96, "nms": nms}
    done = run(Job(f"ultralytics:{weights}", str(file), source_options=options), Stages(quiet=True))
    assert done.verdict is not None
    assert done.verdict.ok
    assert done.summary["report"]["warnings"] == []
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (96, 160, 3), dtype=np.uint8) for _ in range(2)]
    asked = {"imgsz": (96, 160), "verbose": False, "device": "cpu", "save": False}
    expected, found = (package.YOLO(str(path), task=model.task).predict(images, **asked) for path in (weights, file))
    for one, other in zip(expected, found, strict=True):
        for part in {"boxes" if model.task in ("segment", "pose") else _PARTS[model.task], _PARTS[model.task]}:
            want, got = (np.asarray(getattr(each, part).data, dtype=np.float64) for each in (one, other))
            assert len(want) > 0
            if part == "masks":  # a pixel on the edge may be on either side
                assert want.shape == got.shape
                assert (want != got).mean() < 1e-3
            else:  # equal scores are in any order; boxes that overlap by the threshold may be on either side of it
                apart = np.abs(want[:, None] - got[None]).reshape(len(want), len(got), -1).max(2)
                for least in (apart.min(0), apart.min(1)):
                    assert (least < (1e-6 if part == "probs" else 0.2)).mean() > 0.97


@pytest.mark.parametrize(
    ("spec", "nms", "says"),
    [
        ("yolo11x2.yaml", None, "unknown ultralytics model"),
        ("yolo11n.pt", None, "neither NAME.yaml nor a file"),
        ("yolo11n-cls.yaml", "default", "--nms has no meaning"),
        ("yolo11n.yaml?imgsz=3", None, "does not take imgsz"),
    ],
)
def test_other_names_are_refused(package: Any, spec: str, nms: str | None, says: str) -> None:
    with pytest.raises(UserError, match=says):
        resolve(f"ultralytics:{spec}", nms=nms)


class _Evil:
    def __reduce__(self) -> Any:
        return print, ("code of the file ran",)


def test_code_in_weights_is_not_run(package: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"model": _Evil()}, tmp_path / "bad.pt")
    with pytest.raises(UserError, match="E302"):
        resolve(f"ultralytics:{tmp_path / 'bad.pt'}")
    assert "code of the file ran" not in capsys.readouterr().out
