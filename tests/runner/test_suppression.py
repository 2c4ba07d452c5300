"""NonMaxSuppression of the runner, beside the same written plainly."""

from __future__ import annotations

import time

import numpy as np
import pytest

from fx2onnx.semantics.kernels.vision import non_max_suppression

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def plainly(boxes: Array, scores: Array, limit: int, overlap: float) -> list[int]:
    """One batch and class: each box against all that are left."""
    low, high = np.minimum(boxes[:, :2], boxes[:, 2:]), np.maximum(boxes[:, :2], boxes[:, 2:])
    area = (high - low).prod(-1)
    order, chosen = np.argsort(-scores, kind="stable"), list[int]()
    while order.size and len(chosen) < limit:
        best, rest = order[0], order[1:]
        chosen.append(int(best))
        common = np.maximum(np.minimum(high[best], high[rest]) - np.maximum(low[best], low[rest]), 0).prod(-1)
        union = area[best] + area[rest] - common
        order = rest[np.divide(common, union, out=np.zeros_like(common), where=union > 0) <= overlap]
    return chosen


@pytest.mark.parametrize("overlap", [-0.1, 0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("kind", ["plain", "whole", "wide", "nan", "infinite"])
def test_the_same_boxes_are_chosen(kind: str, overlap: float) -> None:
    random = np.random.default_rng(0)
    for count in (0, 1, 2, 17, 60):
        boxes = random.normal(size=(count, 4)).astype(np.float32)
        boxes[:, 2:] += boxes[:, :2]
        if kind == "whole":
            boxes = boxes.round()
        elif kind == "wide":
            boxes[::5, 0] -= 50
        elif kind != "plain" and count:
            boxes[count // 2, random.integers(4)] = np.nan if kind == "nan" else -np.inf
        scores = (random.normal(size=count).astype(np.float32) * 3).round()
        limit, threshold = np.array([40]), np.array([overlap], np.float32)
        with np.errstate(invalid="ignore"):
            found = non_max_suppression(boxes[None], scores[None, None], limit, threshold)
            expected = plainly(boxes, scores, 40, overlap)
        assert found[:, 2].tolist() == expected


def test_boxes_of_many_classes_side_by_side_take_little_time() -> None:
    random, count = np.random.default_rng(0), 8000
    boxes = random.random((count, 4), np.float32) * 30 + 1000 * random.integers(0, 80, (count, 1)).astype(np.float32)
    scores, start = random.random((1, 1, count), np.float32), time.process_time()
    found = non_max_suppression(boxes[None], scores, np.array([count]), np.array([0.5], np.float32))
    assert time.process_time() - start < 1.5  # each against all takes more than 3 s
    assert len(found) > 4000
