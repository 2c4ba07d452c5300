"""A verification ends: loops that values let turn without end are no part of it, and it says what it left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from fx2onnx.base.errors import VerificationError
from fx2onnx.judge.engines import ENGINES, within
from fx2onnx.verify import compare, verify
from fx2onnx.verify.work import WorkBudget
from tests.verify.given import Given

LOOP = """<ir_version: 10, opset_import: ["" : 20]>
endless (int64 n) => (int64 last) {
    go = Constant <value: tensor = bool {1}> ()
    first = Constant <value: tensor = int64 {0}> ()
    last = Loop (n, go, first) <body = body (int64 turn, bool go_in, int64 held) => (bool go_on, int64 next) {
        go_on = Identity (go_in)
        next = Add (held, turn)
    }>
}"""
X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))


@pytest.mark.long_cases("runner")
@pytest.mark.parametrize("engine", ["runner", "onnxruntime"])
def test_an_engine_is_ended(engine: str) -> None:
    pytest.importorskip(engine if engine != "runner" else "numpy")
    run = ENGINES[engine](onnx.parser.parse_model(LOOP).SerializeToString())
    with within(0.2), pytest.raises(TimeoutError):
        run({"n": np.array(2**40)})
    with within(20.0):
        assert run({"n": np.array(4)}) == [6]


def slow_on(monkeypatch: pytest.MonkeyPatch, name: str, engines: tuple[str, ...]) -> list[str]:
    """These engines take too long on one set of inputs. Gives what they are asked for."""
    asked: list[str] = []
    plain = compare._run_engine

    def run_engine(verdict: Any, case: Any, engine: str, run: Any, feeds: Any, sample: Any) -> Any:
        def endless(feeds: Any) -> Any:
            raise TimeoutError("it still runs")

        asked.append(f"{sample.name}: {engine}")
        is_slow = engine in engines and sample.name == name
        return plain(verdict, case, engine, endless if is_slow else run, feeds, sample)

    monkeypatch.setattr(compare, "_run_engine", run_engine)
    return asked


@pytest.mark.long
def test_an_engine_that_does_not_end_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = slow_on(monkeypatch, "seed 1", ("runner",))
    module = Given(torch.tanh)
    verdict = verify(fx2onnx.export(module, (X,)), module, (X,), engines=("runner", "onnxruntime"))
    assert verdict.ok
    assert "seed 1: runner did not end within 20 s, and is left out of what follows" in verdict.left_out
    assert "ties: runner" not in asked
    assert "ties: onnxruntime" in asked


def test_where_no_engine_ends_on_the_sample_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_on(monkeypatch, "sample", ("runner", "onnxruntime"))
    module = Given(torch.tanh)
    verdict = verify(fx2onnx.export(module, (X,)), module, (X,))
    assert not verdict.ok
    assert "did not end within 600 s" in verdict.unverified
    with pytest.raises(VerificationError, match="E502"):
        verdict.raise_if_failed()


class Waits(torch.nn.Module):
    """A loop whose turns grow with the numbers, and more so in eager PyTorch than its inputs let expect."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        counts = torch.round(x.abs().sum(-1) * 4).long()
        return torch.repeat_interleave(x, counts, dim=0).cumsum(0)[:8]


def test_numbers_that_make_eager_run_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WorkBudget, "most_of_run", lambda budget, engines, share: 0.0 if share == 1.0 else 1.0)
    module = Waits()
    verdict = verify(fx2onnx.export(module, (X + 3,)), module, (X + 3,), seeds=(1,))
    assert any("far longer than its sizes do" in text for text in verdict.left_out)
    assert [each.values for each in verdict.tried] == ["sample"]


@pytest.mark.long
def test_a_judge_that_takes_too_long_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from fx2onnx.verify.case import Trial

    module = Given(lambda x: (x.softmax(-1) - 0.33).sinh())
    exported = fx2onnx.export(Given(lambda x: module(x) * torch.where(x.abs().amax() > 8, 1.01, 1.0)), (X,))
    assert not verify(exported, module, (X,)).ok
    monkeypatch.setattr(Trial, "longest", lambda case, name, on_sample: 60.0 if on_sample or name != "eager" else -1.0)
    monkeypatch.setattr(compare, "_eager", _without_end(compare._eager))
    verdict = verify(exported, module, (X,))
    assert any("takes too long" in text for text in verdict.left_out)


def _without_end(plain: Any) -> Any:
    """Eager PyTorch's own run has no limit, the runs that judge have."""

    def eager(case: Any, tensors: Any, *, timed: bool = False, most_work: float = 0.0) -> Any:
        return plain(case, tensors, timed=True)

    return eager
