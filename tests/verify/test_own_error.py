"""Choices among numbers that eager PyTorch has with larger errors of its own than those that a first run puts on its operators."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.judge.movements import larger_units
from fx2onnx.verify import outputs, verify

WANT = np.linspace(1, 2, 400, dtype=np.float32).reshape(100, 4)
UNIT = np.float32(np.finfo(np.float32).eps) * 2  # of the largest number


def off(units: float, *, chosen: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """``WANT``, each number off by so many units, some rows others as a whole."""
    moved = WANT + np.float32(units) * UNIT * np.where(np.arange(400).reshape(100, 4) % 2, 1, -1).astype(np.float32)
    moved[:chosen] = 5.0
    return moved


@pytest.mark.parametrize(
    ("own", "moved", "larger"),
    [(40, 4, 10.0), (40, 41, 1.0), (4, 1, 1.0), (400, 2, 16.0), (2000, 200, 1.0), (40, 0, 1.0)],
)
def test_units_are_as_many_as_move_an_output_as_far_as_it_is_off_from_float64(
    own: float, moved: float, larger: float
) -> None:
    assert larger_units(WANT, off(own), off(moved)) == pytest.approx(larger, rel=0.01)


def test_rows_that_are_others_say_nothing_of_units() -> None:
    assert larger_units(WANT, off(0, chosen=30), off(2)) == 1.0
    assert larger_units(WANT, off(40, chosen=30), off(4, chosen=10)) == pytest.approx(10, rel=0.01)


def test_whole_numbers_and_other_shapes_say_nothing_of_units() -> None:
    assert larger_units(WANT.astype(np.int64), off(40), off(2)) == 1.0
    assert larger_units(WANT, off(40)[:50], off(2)) == larger_units(WANT, off(40), off(2)[:50]) == 1.0


class Ordered(torch.nn.Module):
    """Rows in the order of scores, of which each two are equal but for rounding."""

    def __init__(self, *, turned: bool = False, factor: float = 1.0) -> None:
        super().__init__()
        self.turned, self.factor = turned, factor
        self.rows = torch.nn.Buffer(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.turned:  # sums in another order
            x, w = x.flip(1), w.flip(0)
        score, order = torch.sort((x @ w).reshape(-1), descending=True)
        return self.rows[order] * self.factor, score


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    half, w = torch.randn(20, 512, generator=generator), torch.randn(256, 1, generator=generator)
    swapped = torch.cat([half[:, 256:], half[:, :256]], 1)
    return torch.stack([half, swapped], 1).reshape(40, 512), torch.cat([w, w])


@pytest.mark.parametrize(("factor", "larger", "is_ok"), [(1.0, 1.0, False), (1.0, 16.0, True), (1.01, 16.0, False)])
def test_rows_are_moved_as_far_as_eager_pytorch_itself_is_off(factor: float, larger: float, is_ok: bool) -> None:
    args, module = inputs(), Ordered().eval()
    result = fx2onnx.export(Ordered(turned=True, factor=factor).eval(), args)
    small = ((1, 0.0), (4, 1 / 8), (4, 1 / 4), (4, 1 / 2))
    with mock.patch.object(outputs, "STAGES", small), mock.patch.object(outputs, "larger_units", return_value=larger):
        verdict = verify(result, module, args, seeds=())
    assert verdict.ok == is_ok, verdict.describe()
