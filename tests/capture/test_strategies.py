"""The strategy that ``capture="auto"`` takes, and what it says of the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx.capture import run as run_module
from tests.support import check

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class ThroughNumpy(nn.Module):
    """NumPy cannot read a fake tensor; torch.export's strict mode traces its functions wherever they are imported."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        import numpy as functions

        return torch.from_numpy(functions.multiply(x.numpy(), 2)) + 1


class PlainNumber(nn.Module):
    """``int(x)`` is a size in a further run of the module itself."""

    def forward(self, x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        return x[: int(count)] * 2


class Branches(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_the_modules_own_run_comes_first() -> None:
    report = check(nn.Linear(4, 2), (X,)).report
    assert report.strategy == "fake"
    assert "its own Python" in report.strategy_reason


@pytest.mark.parametrize(
    ("kind", "args", "other", "code"),
    [
        (ThroughNumpy, (X,), (X * 3,), "E104"),
    ],
)
def test_export_where_the_own_run_fails(kind: type[nn.Module], args: Any, other: Any, code: str) -> None:
    report = check(kind(), args, others=[other]).report
    assert report.strategy == "export"
    assert f"[{code}]" in report.strategy_reason
    assert "test_strategies.py" in report.strategy_reason
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(kind(), args, capture="fake")
    assert caught.value.code == code


def test_int_of_a_number_takes_another_run_of_the_module() -> None:
    others = [(X, torch.tensor(count)) for count in (1, 0, -1)]
    report = check(PlainNumber(), (X, torch.tensor(2)), others=others).report
    assert report.strategy == "fake"
    assert [attempt.partition(":")[0] for attempt in report.attempts] == ["fake", "fake"]


@pytest.mark.parametrize(
    ("module", "options", "starts"),
    [
        (nn.Linear(4, 2), {}, ["fake"]),
        (lambda x: x.reshape(3, 4) + 1, {"dynamic_shapes": "auto"}, ["fake", "fake: x_dim_1 == 4   ("]),
        (lambda x: torch.vmap(lambda row: row * 2)(x), {}, ["fake", "fake: composite operators"]),
        (
            ThroughNumpy(),
            {},
            ["fake", "fake: NumPy's arrays are tensors", "export: the module's own run on fake tensors failed: [E104]"],
        ),
        (nn.Linear(4, 2), {"capture": "symbolic"}, ["symbolic", "fake: compared with the traced copy"]),
    ],
)
def test_every_attempt_is_in_the_report(module: Any, options: dict[str, Any], starts: list[str]) -> None:
    report = fx2onnx.export(module, (X,), **options).report
    assert len(report.attempts) == len(starts), report.attempts
    for attempt, start in zip(report.attempts, starts, strict=True):
        assert attempt.startswith(start)
    assert report.as_dict()["attempts"] == report.attempts


def test_a_fault_of_ours_does_not_stop_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    original, runs = run_module.graph_outputs, []

    def faulty(*args: Any) -> Any:
        runs.append(args)
        if len(runs) == 1:
            raise AssertionError("a fault")
        return original(*args)

    monkeypatch.setattr(run_module, "graph_outputs", faulty)
    report = check(nn.Linear(4, 2), (X,)).report
    assert report.strategy == "export"
    assert "AssertionError: a fault" in report.strategy_reason


def test_the_first_failure_is_the_one_raised(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(Branches(), (X,), data_branches="error")
    assert caught.value.code == "E104"
    assert caught.value.where is not None
    assert caught.value.where.function == "forward"
    printed = capsys.readouterr()
    assert not printed.out
    assert not printed.err


def _raises(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no")


@pytest.mark.parametrize(
    ("function", "arguments", "code"),
    [
        (lambda x: x.reshape(3, 4), {"dynamic_shapes": ({0: "n"},)}, "E105"),
        (lambda x: x if x.sum() > 0 else -x, {"data_branches": "error"}, "E104"),
        (lambda x: x * len(set(x.sum(0).tolist())), {}, "E104"),
        (lambda x: x.clone().resize_(2, 2), {}, "E103"),
        (lambda x: x @ x, {}, "E101"),
        (lambda x: torch.cat([x, x.sum(0)]), {}, "E101"),
        (_raises, {}, "E101"),
        (lambda x: {"rows": x}["columns"], {}, "E101"),
    ],
)
def test_what_export_cannot_help_is_not_tried_twice(
    function: Any, arguments: Any, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exported(*args: Any) -> Any:
        raise AssertionError("tried")

    monkeypatch.setattr("fx2onnx.capture.strategies.exported.made", exported)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(function, (X,), **arguments)
    assert caught.value.code == code
    assert not isinstance(caught.value.__context__, AssertionError)


def test_the_export_strategy_runs_in_the_same_mode() -> None:
    made = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.9)).train()
    result = check(made, (X,), capture="export")
    assert "Dropout" not in {node.op_type for node in result.model.graph}
    assert made.training


def test_sizes_are_dynamic_through_the_export_strategy_too() -> None:
    result = check(ThroughNumpy(), (X,), others=[(torch.randn(7, 4),)], dynamic_shapes=({0: "n"},))
    assert result.report.strategy == "export"


class WithoutTruth(nn.Linear):
    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")

    def __len__(self) -> int:
        raise RuntimeError("of no length")


@pytest.mark.parametrize("strategy", ["auto", "fake", "symbolic", "export"])
def test_a_module_without_truth(strategy: str) -> None:
    check(WithoutTruth(4, 2), (X,), capture=strategy)


def test_former_names_of_the_strategy_are_deprecated() -> None:
    report = fx2onnx.export(torch.nn.Identity(), (torch.ones(2),), None).report
    with pytest.warns(DeprecationWarning, match="use Report.strategy"):
        assert report.rung == report.strategy == "fake"
    with pytest.warns(DeprecationWarning, match="use Report.strategy_reason"):
        assert report.rung_reason == report.strategy_reason
    assert report.as_dict()["rung"] == report.as_dict()["strategy"]
