"""The inputs that a verification tries hang on the arguments alone, whatever the clock says."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import fx2onnx
from fx2onnx import Verdict, verify
from fx2onnx.base.errors import UserError
from fx2onnx.verify.work import EFFORTS, work_of
from tests.verify.given import Given

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


class Scores(torch.nn.Module):
    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head, self.slope = torch.nn.Linear(8, 64), torch.nn.Linear(64, 3), slope

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.head(torch.nn.functional.leaky_relu(self.inner(x), self.slope)).softmax(-1)
        return scores, scores.argmax(-1)


def verdict_of(module: torch.nn.Module, **options: Any) -> Verdict:
    exported = fx2onnx.export(module, (X,), dynamic_shapes=({0: "batch"},))
    return verify(exported, Scores(), (X,), **options)


@pytest.mark.parametrize("slope", [0.01, 0.02])
def test_a_fast_and_a_slow_machine_give_equal_verdicts(monkeypatch: pytest.MonkeyPatch, slope: float) -> None:
    clock = time.process_time
    found = []
    for factor in (1.0, 20.0, 0.05):
        monkeypatch.setattr("time.process_time", lambda factor=factor: factor * clock())
        found.append(verdict_of(Scores(slope)))
    assert found[0].ok == (slope == 0.01)
    assert found[0].as_dict() == found[1].as_dict() == found[2].as_dict()


def test_more_effort_tries_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EFFORTS, "quick", (3.5, 0.0))
    monkeypatch.setitem(EFFORTS, "normal", (9.0, 0.0))
    quick, normal, full = (verdict_of(Scores(), effort=effort) for effort in ("quick", "normal", "full"))
    assert len(quick.tried) < len(normal.tried) < len(full.tried)
    assert any(text.endswith("effort=quick leaves it out") for text in quick.left_out)
    assert not any("effort" in text for text in full.left_out)
    assert (quick.as_dict()["effort"], quick.incomplete) == ("quick", "")
    assert any(each.sizes for each in quick.tried), "a dynamic size is tried at another at any effort"


def test_time_is_a_last_stop_that_the_verdict_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = time.process_time
    monkeypatch.setattr("fx2onnx.verify.compare.LAST_STOP", 0.0)
    monkeypatch.setattr("fx2onnx.verify.compare.LATEST_FORWARDS", 0.0)
    verdict = verdict_of(Scores())
    assert verdict.ok
    assert verdict.incomplete == verdict.left_out[0] == "seed 1: the verification takes too long"
    assert "incomplete: seed 1" in verdict.describe()
    assert [each.name for each in verdict.tried] == ["sample"]
    assert clock() > 0


@pytest.mark.parametrize("call", [verify, fx2onnx.verify.locate])
def test_a_word_that_is_no_effort(call: Any) -> None:
    module = Given(torch.tanh)
    with pytest.raises(UserError, match="effort='much'"):
        call(fx2onnx.export(module, (X,)), module, (X,), effort="much")
    with pytest.raises(UserError, match="effort='much'"):
        fx2onnx.optimize_model("no.onnx", effort="much")  # type: ignore[arg-type]


def test_work_is_that_of_what_is_summed() -> None:
    aten = torch.ops.aten
    one, other = torch.zeros(64, 512), torch.zeros(512, 1024)
    wide = work_of(aten.mm.default, (one, other), torch.zeros(64, 1024))
    narrow = work_of(aten.mm.default, (one[:32], other), torch.zeros(32, 1024))
    assert wide > narrow > work_of(aten.add.Tensor, (one, one), one)
    matrix = torch.zeros(256, 256)
    assert work_of(aten.linalg_inv_ex.default, (matrix,), (matrix, matrix[0])) > work_of(
        aten.mm.default, (matrix, matrix), matrix
    )
    image, kernel = torch.zeros(1, 8, 16, 16), torch.zeros(16, 8, 3, 3)
    args = (image, kernel, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)
    assert work_of(aten.convolution.default, args, torch.zeros(1, 16, 16, 16)) > work_of(
        aten.relu.default, (image,), image
    )
