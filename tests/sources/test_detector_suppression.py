"""``--nms``: detections of both engines are those of torchvision's own suppression, image by image, at any sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import fx2onnx
from fx2onnx import UserError
from fx2onnx.runner import InferenceSession
from fx2onnx.sources.source import Source
from fx2onnx.sources.suppression import rotated_overlap, with_suppression

ops = pytest.importorskip("torchvision.ops", reason="needs torchvision")


class _Detector(nn.Module):
    """Boxes [batch, N, numbers], scores [batch, N, classes], landmarks [batch, N, 2] and a mean [batch]."""

    def __init__(self, numbers: int, classes: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.numbers, self.score = numbers, nn.Linear(8, classes)

    def forward(self, features: Tensor) -> tuple[Tensor, ...]:
        places, extents = features[..., :2] * 2, features[..., 2:4].exp()
        parts = [places, extents * 2, features[..., 4:5]] if self.numbers == 5 else [places, places + extents * 2]
        return torch.cat(parts, dim=2), self.score(features).sigmoid(), features[..., 5:7], features.mean((1, 2))


def _expected(found: tuple[Tensor, ...], score: float, iou: float, most: int) -> np.ndarray:
    rows = torch.zeros(len(found[0]), most, 8 + found[0].shape[2] - 4)
    for image, (boxes, scores, marks) in enumerate(zip(*found[:3], strict=True)):
        best, label = scores.max(1)
        good = (best > score).nonzero()[:, 0]
        if boxes.shape[1] == 4:
            kept = good[ops.batched_nms(boxes[good], best[good], label[good], iou)]
        else:
            good = good[best[good].argsort(descending=True)]
            overlap = rotated_overlap(boxes[None, good])[0] > iou
            overlap &= label[good][:, None] == label[good][None, :]
            kept = good[~overlap.triu(1).any(0)]
        kept = kept[:most]
        parts = boxes[kept, :4], best[kept, None], label[kept, None], marks[kept], boxes[kept, 4:]
        rows[image, : len(kept)] = torch.cat(parts, 1)
    return rows.numpy()


@pytest.mark.parametrize(
    ("numbers", "classes", "text"),
    [(4, 3, "score=0.3,iou=0.4,max=12"), (4, 1, "score=0.6,max=3"), (5, 3, "score=0.3,iou=0.4,max=12")],
)
def test_detections_are_those_of_suppression_by_image(numbers: int, classes: int, text: str, tmp_path: Path) -> None:
    axes = {"features": {0: "batch", 1: "boxes"}}
    plain = Source("net", _Detector(numbers, classes).eval(), (torch.randn(2, 40, 8),), dynamic_shapes=axes)
    source = with_suppression(plain, text)
    path = tmp_path / "net.onnx"
    result = fx2onnx.export(source.module, (), path, kwargs=source.kwargs, dynamic_shapes=axes)
    assert not result.report.warnings
    asked = {"score": 0.25, "iou": 0.7, "max": 300} | {k: float(v) for k, v in (p.split("=") for p in text.split(","))}
    sessions = InferenceSession(path), onnxruntime.InferenceSession(path)
    for sizes in ((2, 40), (1, 9), (3, 130), (2, 1)):
        torch.manual_seed(sum(sizes))
        features = torch.randn(*sizes, 8)
        with torch.no_grad():
            found = plain.module(features)
        for session in sessions:
            rows, mean = session.run(None, {"features": features.numpy()})
            want = _expected(found, asked["score"], asked["iou"], int(asked["max"]))
            np.testing.assert_allclose(rows, want, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(mean, found[3].numpy(), atol=1e-6)


def test_the_overlap_of_rotated_boxes() -> None:
    box = torch.tensor([3.0, 4.0, 6.0, 2.0, 0.3])
    boxes = torch.stack(
        [box, box + torch.tensor([0, 0, 0, 0, torch.pi]), box + 100, box + torch.tensor([1.0, 0, 0, 0, 0])]
    )
    found = rotated_overlap(boxes[None])[0]
    assert found[0, :2] == pytest.approx([1, 1], abs=1e-3)
    assert found[0, 2] == pytest.approx(0, abs=1e-3)
    assert 0.5 < float(found[0, 3]) < 0.9
    assert torch.equal(found, found.T)


@pytest.mark.parametrize("text", ["score=2", "iou=-1", "max=0", "best=1", "score", "max=two", ""])
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"E001.*--nms does not take"):
        with_suppression(Source("net", _Detector(4, 2), (torch.randn(1, 5, 8),)), text)


@pytest.mark.parametrize("module", [nn.Identity(), nn.Unflatten(2, (2, 4))])
def test_other_modules_are_refused(module: nn.Module) -> None:
    with pytest.raises(UserError, match=r"E001.*--nms does not fit net"):
        with_suppression(Source("net", module, (torch.randn(1, 5, 8),)), "default")
