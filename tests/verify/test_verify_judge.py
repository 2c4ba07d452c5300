"""What a verdict is made from: judges without numbers, baked inputs, engines that lack a kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx import verify
from fx2onnx.judge.tolerance import Scale


class Masked(torch.nn.Module):
    """Overflows to minus infinity in float64 alone, as some masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        lowest = y.new_full((1, 4), torch.finfo(y.dtype).min)
        return torch.softmax(lowest.float() * 0.5 + y.float(), -1)


def test_a_judge_without_numbers_is_not_believed() -> None:
    module, x = Masked().eval(), torch.randn(3, 4)
    assert torch.isfinite(module(x)).all()
    assert not torch.isfinite(module.double()(x.double())).all()
    module = module.float()
    verdict = verify(fx2onnx.export(module, (x,)), module, (x,))
    assert verdict.ok, verdict.describe()


def test_wrong_numbers_are_still_found_out() -> None:
    module, x = Masked().eval(), torch.randn(3, 4)
    result = fx2onnx.export(module, (x,))
    other = Masked().eval()
    other.forward = lambda x: torch.softmax(other.linear(x), -1) * 1.5  # type: ignore[method-assign]
    assert not verify(result, other, (x,)).ok


class Repeats(torch.nn.Module):
    """Reads a number from its first input, so that a file of it has the second alone."""

    def forward(self, count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x] * int(count[0]), 0) * count[1]


@pytest.mark.long_cases("None")
@pytest.mark.parametrize("names", [None, ["how_often", "numbers"]])
def test_a_baked_input_keeps_its_values(names: list[str] | None) -> None:
    module, args = Repeats(), (torch.tensor([2, 5]), torch.randn(3, 4))
    result = fx2onnx.export(
        module,
        args,
        input_names=names,
        bake=[names[0] if names else "count"],
        dynamic_axes={(names or ["", "x"])[1]: {0: "n"}},
    )
    verdict = verify(result, module, args, input_names=names)
    assert verdict.ok, verdict.describe()
    assert {"sample", "seed 1", "sizes n 4"} <= {row.inputs for row in verdict.rows}
    assert verdict.baked == [names[0] if names else "count"]
    args[0][1] = 6
    assert not verify(result, module, args, input_names=names).ok


def test_an_engine_without_kernels_for_a_dtype_is_noted() -> None:
    module, x = torch.nn.BatchNorm2d(3).eval().bfloat16(), torch.randn(2, 3, 4, 4, dtype=torch.bfloat16)
    result = fx2onnx.export(module, (x,), target="onnx")
    verdict = verify(result, module, (x,))
    assert verdict.ok, verdict.describe()
    assert {row.engine for row in verdict.rows} == {"runner"}
    assert "NotImplemented" in verdict.notes[0]
    asked = verify(result, module, (x,), engines=["onnxruntime"])
    assert not asked.ok
    assert "NotImplemented" in asked.describe()


def test_bfloat16_goes_in_and_out_of_onnxruntime() -> None:
    module, x = torch.nn.Flatten(), torch.randn(2, 3, 4, dtype=torch.bfloat16)
    verdict = verify(fx2onnx.export(module, (x,)), module, (x,), engines=["onnxruntime"])
    assert verdict.ok, verdict.describe()


def test_errors_as_shares_of_the_output() -> None:
    module = torch.nn.Linear(4, 3).requires_grad_(False)
    module.weight.mul_(1e6)
    verdict = verify(fx2onnx.export(module, (torch.ones(2, 4),)), module, (torch.ones(2, 4),))
    (row,) = [row for row in verdict.rows if row.engine == "runner" and row.inputs == "sample"]
    assert row.scale == pytest.approx(float(module(torch.ones(2, 4)).abs().max()))
    assert row.relative_error * row.scale == pytest.approx(row.max_abs_error)
    assert row.relative_error < 1e-6
    assert verdict.as_dict()["rows"][0]["scale"] > 1e5


class Best(torch.nn.Module):
    """Picks among equal scores, of which PyTorch takes any, and ONNX the first; rounding decides how many are kept."""

    def forward(self, x: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        scores, order = torch.sigmoid(x).topk(20, largest=False)
        return boxes[order[scores >= 1.0]]


def test_which_of_equal_scores_is_chosen_is_no_fault() -> None:
    generator = torch.Generator().manual_seed(0)
    module, args = Best(), (torch.full((400,), 40.0), torch.randn(400, 4, generator=generator))
    assert not torch.equal(module(*args), args[1][:20]), "PyTorch takes the first, too: this shows nothing"
    verdict = verify(fx2onnx.export(module, args), module, args, seeds=())
    assert verdict.ok, verdict.describe()


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_a_small_number_is_judged_alike_however_often_its_row_is_there(rows: int) -> None:
    """As of inputs that are all zeros: what is drawn once is by chance as small as that in one of many outputs."""
    numbers = np.linspace(-1, 1, 1_000)[None].repeat(rows, axis=0)
    numbers += np.random.default_rng(0).normal(scale=1e-7, size=numbers.shape)
    numbers[:, 500] = 1e-4
    assert np.broadcast_to(Scale.of(numbers).each, numbers.shape).min() == pytest.approx(1.0, rel=0.01)
