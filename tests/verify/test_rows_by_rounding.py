"""Selections whose number of rows hangs on rounding: the file is right with either number, and with no other."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import Verdict, verify
from fx2onnx.judge.movements import Movements
from fx2onnx.verify.eager import Eager

ROWS = 40


class Select(nn.Module):
    """Boxes, scores and places of the rows whose score is above a threshold."""

    def __init__(self, threshold: float, box_scale: float = 1.0, places: torch.dtype = torch.int64) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.score = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 1), nn.Sigmoid())
        self.box = nn.Linear(16, 4)
        self.threshold, self.box_scale, self.places = threshold, box_scale, places

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        scores = self.score(x)[:, 0]
        kept = scores > self.threshold
        return self.box(x)[kept] * self.box_scale, scores[kept], kept.nonzero()[:, 0].to(self.places)


X = torch.randn(ROWS, 16, generator=torch.Generator().manual_seed(3))


def score(rank: int) -> float:
    """One that some row has, which is not above itself."""
    with torch.no_grad():
        return float(Select(0.0).score(X)[:, 0].sort().values[rank])


def verdict_of(of_file: Select, module: Select) -> Verdict:
    return verify(fx2onnx.export(of_file.eval(), (X,)), module.eval(), (X,), seeds=())


def below(number: float, units: int) -> float:
    for _ in range(units):
        number = float(np.nextafter(np.float32(number), np.float32(0)))
    return number


@pytest.mark.parametrize("rank", [0, 20, ROWS - 1])
@pytest.mark.parametrize("order", ["one more", "one less"])
def test_either_number_of_rows_is_right_where_a_score_meets_the_threshold(rank: int, order: str) -> None:
    modules = [Select(below(score(rank), 2)), Select(score(rank))]
    of_file, module = modules if order == "one more" else modules[::-1]
    with torch.no_grad():
        assert abs(len(module(X)[1]) - len(of_file(X)[1])) == 1
    found = verdict_of(of_file, module)
    assert found.ok, found.describe()
    assert sum("by how float32's numbers are rounded" in note for note in found.notes) == 3
    assert {row.by for row in found.rows} == {"rounding"}


def test_another_number_of_rows_is_wrong_where_no_score_is_near() -> None:
    threshold = score(20)
    with mock.patch.object(Eager, "moved", autospec=True, side_effect=Eager.moved) as moved:
        found = verdict_of(Select(threshold - 1e-3), Select(threshold + 1e-4))
    assert not found.ok
    assert {row.problem.partition(" ")[0] for row in found.rows} == {"shape"}
    assert moved.call_count <= 5  # and no more are spent on it


def test_other_contents_are_wrong_with_either_number_of_rows() -> None:
    threshold = score(20)
    found = verdict_of(Select(below(threshold, 2), box_scale=1.01), Select(threshold))
    wrong = {row.output for row in found.rows if not row.ok}
    assert wrong == {found.rows[0].output}, found.describe()


def test_another_dtype_is_wrong_with_either_number_of_rows() -> None:
    threshold = score(20)
    found = verdict_of(Select(below(threshold, 2), places=torch.int32), Select(threshold))
    assert {row.output for row in found.rows if not row.ok} == {max(row.output for row in found.rows)}, found.describe()


def test_more_rows_than_rounding_adds_are_wrong() -> None:
    found = verdict_of(Select(below(score(15), 2)), Select(score(20)))
    assert not any(row.ok for row in found.rows)


class TestMovements:
    WANT = np.linspace(0.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
    MORE = np.concatenate([WANT, WANT[:1] + np.float32(0.5)])

    def moved(self, *runs: np.ndarray) -> Movements:  # type: ignore[type-arg]
        movements = Movements(self.WANT)
        for run in runs:
            movements.add(run)
        return movements

    def test_of_a_shape_that_no_run_has(self) -> None:
        assert not self.moved(self.MORE).judge(self.MORE[:2]).ok
        assert not self.moved(self.WANT).judge(self.MORE).ok

    def test_by_the_runs_of_its_shape(self) -> None:
        assert self.moved(self.MORE).judge(self.MORE).ok
        assert not self.moved(self.MORE).judge(self.MORE * np.float32(1.001)).ok
        assert self.moved(self.MORE, self.MORE * np.float32(1.001)).judge(self.MORE * np.float32(1.0005)).ok

    def test_by_what_moves_in_eager_pytorchs_own_shape(self) -> None:
        wide = self.moved(self.MORE, *(self.MORE * np.float32(scale) for scale in (1.001, 0.999)))
        assert not wide.judge(self.MORE * np.float32(1.004)).ok
        with_own = self.moved(
            *(self.WANT * np.float32(scale) for scale in (1.003, 0.997)), self.MORE, self.MORE * np.float32(1.001)
        )
        assert with_own.judge(self.MORE * np.float32(1.004)).ok

    def test_nan_in_other_places_than_any_run(self) -> None:
        spoilt = self.MORE.copy()
        spoilt[0, 0] = np.nan
        assert not self.moved(self.MORE).judge(spoilt).ok
        assert self.moved(self.MORE, spoilt).judge(spoilt).ok


@pytest.mark.parametrize("form", [(40, 1, 24, 24), (40, 24, 24)])
@pytest.mark.parametrize("noise", [0.001, 0.003, 0.01])
def test_masks_of_objects_whose_order_rounding_decides_are_others_as_a_whole(
    form: tuple[int, ...], noise: float
) -> None:
    """An object's mask covers other lines of pixels than the one that stood at its place, so lines explain nothing."""
    drawn = np.random.default_rng(0)
    masks, scores = np.zeros((40, 24, 24), np.float32), drawn.uniform(0.4, 0.5, 40)
    for mask in masks:
        top, left, high, wide = drawn.integers(0, 16, 2).tolist() + drawn.integers(2, 9, 2).tolist()
        mask[top : top + high, left : left + wide] = drawn.uniform(0.3, 1.0, (high, wide))[: 24 - top, : 24 - left]

    def run(of: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(of[np.argsort(-(scores + drawn.normal(0, noise, 40)), kind="stable")].reshape(form))

    movements = Movements(masks[np.argsort(-scores)].reshape(form))
    for _ in range(13):
        movements.add(run(masks))
    assert all(movements.judge(run(masks)).ok for _ in range(5))
    shifted = np.roll(masks, 1, 2)
    flipped = masks[:, ::-1]
    for wrong in (shifted, flipped, masks * 0.9, np.clip(masks, 0, 0.6)) if noise < 0.01 else ():
        assert not any(movements.judge(run(wrong)).ok for _ in range(5))
