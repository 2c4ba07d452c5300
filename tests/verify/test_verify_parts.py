"""The parts of a verification: other samples, movements by rounding, verdicts, engines."""

from __future__ import annotations

import inspect

import ml_dtypes
import numpy as np
import pytest
import torch

from fx2onnx.base.errors import VerificationError
from fx2onnx.capture.python.inputs import bind
from fx2onnx.verify.engines import ENGINES, available_engines, to_numpy
from fx2onnx.verify.rounding import RUNS, nudged
from fx2onnx.verify.samples import samples
from fx2onnx.verify.verdict import Row, Verdict

IDS = torch.tensor([[3, 1, 2]])
X = torch.linspace(1, 4, 6).reshape(2, 3)


def forward(x: torch.Tensor, ids: torch.Tensor) -> None: ...


def made(axes: list[dict[int, str] | None], seeds: tuple[int, ...] = (1,)) -> dict[str, list[torch.Tensor]]:
    arguments = bind(forward, (X, IDS), {}, None)
    assert list(inspect.signature(forward).parameters) == [leaf.name for leaf in arguments.leaves]
    return {sample.name: sample.tensors for sample in samples(arguments, axes, seeds)}


def test_samples_of_fixed_sizes() -> None:
    found = made([{}, {}], (1, 2))
    assert list(found) == ["sample", "seed 1", "seed 2"]
    x, ids = found["seed 1"]
    assert sorted(ids.flatten().tolist()) == [1, 2, 3]
    assert x.shape == X.shape
    assert not torch.equal(x, X)
    assert not torch.equal(x, found["seed 2"][0])


def test_a_size_grows_by_one_wherever_it_is_named() -> None:
    x, ids = made([{0: "n", 1: "2*n - 1"}, {1: "n + 1"}], ())["sizes +1"]
    assert (tuple(x.shape), tuple(ids.shape)) == ((3, 5), (1, 4))
    assert torch.equal(ids, torch.tensor([[3, 1, 2, 3]]))


def test_an_argument_that_is_no_input_keeps_its_values() -> None:
    found = made([{0: "n"}, None])
    assert all(tensors[1] is IDS or torch.equal(tensors[1], IDS) for tensors in found.values())


def test_movements_stay_within_the_units_and_leave_the_module_alone() -> None:
    module = torch.nn.Linear(3, 3)
    before = module.weight.detach().clone()
    moved = list(nudged(module, [X, IDS], 8.0))
    assert len(moved) == RUNS
    for copied, (x, ids) in moved:
        for own, other in ((before, copied.weight), (X, x)):
            assert not torch.equal(own, other)
            assert ((own - other).abs() <= 9 * torch.finfo(torch.float32).eps * own.abs()).all()
        assert torch.equal(ids, IDS)
    assert torch.equal(module.weight, before)


def row(error: float, *, ok: bool = True, problem: str = "", engine: str = "runner") -> Row:
    return Row(engine, "y", error, 1.0, ok, "sample", problem, scale=2.0)


def test_a_verdict_needs_a_comparison() -> None:
    verdict = Verdict()
    verdict.note("no engine")
    verdict.note("no engine")
    assert (verdict.ok, verdict.notes) == (False, ["no engine"])
    assert verdict.describe() == "nothing was compared\nno engine"
    assert verdict.worst() is None


def test_one_failing_row_fails_the_verdict() -> None:
    verdict = Verdict([row(0.5), row(3.0, ok=False), row(0.0, ok=False, problem="dtype", engine="onnxruntime")])
    assert not verdict.ok
    assert verdict.describe() == "runner: y (sample): error 3, allowed 1\nonnxruntime: y (sample): dtype"
    worst, of_runner = verdict.worst(), verdict.worst("runner")
    assert worst is not None
    assert of_runner is not None
    assert (worst.problem, of_runner.max_abs_error, of_runner.relative_error) == ("dtype", 3.0, 1.5)
    with pytest.raises(VerificationError, match="E501"):
        verdict.raise_if_failed()
    Verdict([row(0.5)]).raise_if_failed()


def test_tensors_as_numpy_has_them() -> None:
    half = torch.tensor([1.5, -2.0], dtype=torch.bfloat16, requires_grad=True)
    assert to_numpy(half).dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(to_numpy(half).astype(np.float32), [1.5, -2.0])
    turned = torch.tensor([1 + 2j]).conj()
    np.testing.assert_array_equal(to_numpy(turned), [[1, -2]])


def test_the_runner_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(available_engines()) <= set(ENGINES)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert available_engines() == ["runner"]
