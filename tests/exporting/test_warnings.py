"""What was asked for and the file does not have is an ``ExportWarning``, at the line that called fx2onnx, before a file is there."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fx2onnx
from fx2onnx import ExportWarning
from fx2onnx.cli import workers
from fx2onnx.cli.job import Job
from fx2onnx.cli.progress import Stages
from tests.cli.support import invoke
from tests.support import Engines

ROWS = torch.randn(4, 3)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * 2


def silent(*args: Any, **kwargs: Any) -> fx2onnx.ExportResult:
    """An export without any warning."""
    with warnings.catch_warnings(action="error", category=ExportWarning):
        result = fx2onnx.export(*args, **kwargs)
    assert result.report.warnings == []
    return result


def warned(*args: Any, **kwargs: Any) -> tuple[fx2onnx.ExportResult, list[str]]:
    """An export, and the texts of its warnings, which are those of the report."""
    with pytest.warns(ExportWarning) as caught:
        result = fx2onnx.export(*args, **kwargs)
    texts = [str(each.message) for each in caught]
    assert texts == list(dict.fromkeys(result.report.warnings))
    return result, texts


class TestPythonsWarnings:
    def test_at_the_users_line_and_of_a_public_class(self) -> None:
        assert issubclass(ExportWarning, UserWarning)
        with pytest.warns(ExportWarning, match="forward changes the buffer seen") as caught:
            fx2onnx.export(Counting(), (ROWS,))
        (warning,) = caught
        assert warning.filename == __file__
        assert "fx2onnx.export(Counting(), (ROWS,))" in Path(__file__).read_text().splitlines()[warning.lineno - 1]

    def test_an_error_leaves_nothing_written_and_the_module_as_it_was(self, tmp_path: Path) -> None:
        module, path, report = Counting().train(), tmp_path / "m.onnx", tmp_path / "r.json"
        path.write_bytes(b"before")
        for verify in (False, True):
            with warnings.catch_warnings(action="error", category=ExportWarning), pytest.raises(ExportWarning):
                fx2onnx.export(module, (ROWS,), path, verify=verify, report=report, profile=tmp_path / "p.json")
        assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
        assert path.read_bytes() == b"before"
        assert module.training
        assert module.seen == 0

    def test_ignored_ones_are_in_the_report_alone(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", ExportWarning)
            result = fx2onnx.export(Counting(), (ROWS,))
        assert caught == []
        assert len(result.report.warnings) == 1

    def test_folders_of_training(self, tmp_path: Path) -> None:
        asked: dict[str, Any] = {"loss": lambda out: out.square().mean(), "dynamic_shapes": {"x": {0: "n"}}}
        with pytest.warns(ExportWarning, match="n % 2 == 0") as caught:
            fx2onnx.export_training(Pairs(), (ROWS,), tmp_path / "a", **asked)
        assert [each.filename for each in caught] == [__file__]
        with warnings.catch_warnings(action="error", category=ExportWarning), pytest.raises(ExportWarning):
            fx2onnx.export_training(Pairs(), (ROWS,), tmp_path / "b", **asked)
        assert not (tmp_path / "b").exists()

    def test_folders_of_generation(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fx2onnx.exporting.steps.limited_sizes", lambda captured: ["this is a warning"])
        spec = "hf:gpt2?n_layer=1&n_embd=8&n_head=2&vocab_size=16&n_positions=8"
        with (
            warnings.catch_warnings(action="error", category=ExportWarning),
            pytest.raises(ExportWarning, match="this"),
        ):
            fx2onnx.export_folder(spec, tmp_path / "a")
        assert not (tmp_path / "a").exists()
        with pytest.warns(ExportWarning, match="this is a warning") as caught:
            fx2onnx.export_folder(spec, tmp_path / "a")
        assert [each.filename for each in caught if each.category is ExportWarning] == [__file__]


class Pairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).view(-1, 2, 3)


class TestCommand:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "from tests.exporting.test_warnings import *\ndef make(): return Counting(), (ROWS,)\ndef twin(): return make()\n"
        (tmp_path / "warned_nets.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "warned_nets", raising=False)

    def test_it_shows_them_once(self) -> None:
        with warnings.catch_warnings(record=True) as caught:
            done = invoke("export", "warned_nets:make", "-o", "m.onnx", "--no-verify")
        assert done.exit_code == 0, done.output
        assert (done.output.count("forward changes"), caught) == (1, [])

    def test_a_filter_makes_an_error_of_them(self) -> None:
        with warnings.catch_warnings(action="error", category=ExportWarning):
            done = invoke("export", "warned_nets:make", "-o", "m.onnx", "--no-verify")
            row = workers.attempt(Job("warned_nets:twin", "n.onnx"), Stages(quiet=True))
        assert (done.exit_code, "forward changes the buffer seen" in done.stderr) == (2, True)
        assert (row["ok"], row["exit_code"], row["error"]["code"]) == (False, 2, "E001")
        assert list(Path().glob("*.onnx")) == []

    @pytest.mark.long
    def test_in_a_process_of_its_own(self) -> None:
        call = [sys.executable, "-m", "fx2onnx", "export", "warned_nets:make", "-o", "m.onnx", "--no-verify"]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        assert (done.stdout + done.stderr).count("forward changes") == 1


def found_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    kept = x.sum(1) > 0
    return x[kept], x[:, 0][kept], x.nonzero(), x.reshape(-1)


def shapes_of(result: fx2onnx.ExportResult) -> dict[str, str]:
    return {value.name: str(value.shape) for value in result.model.graph.outputs}


class TestNamesOfOutputSizes:
    def test_a_data_dependent_size_has_the_name(self) -> None:
        axes = {"x": {0: "rows"}, "a": {0: "n"}, "b": {0: "n"}, "c": {0: "m"}, "d": [0]}
        result = silent(found_rows, (ROWS,), dynamic_axes=axes, output_names=["a", "b", "c", "d"], verify=True)
        assert shapes_of(result) == {"a": "[n,3]", "b": "[n]", "c": "[m,2]", "d": "[3*rows]"}
        engines = Engines(result.model_proto)
        for rows in (1, 4, 9):
            x = torch.randn(rows, 3)
            for outputs in engines.run([x]).values():
                for got, want in zip(outputs, found_rows(x), strict=True):
                    np.testing.assert_allclose(got, want.numpy(), rtol=1e-6)

    def test_of_an_output_that_has_a_name_of_its_own(self) -> None:
        result = silent(lambda x: {"kept": x[x > 0]}, (ROWS,), dynamic_axes={"kept": {-1: "found"}})
        assert shapes_of(result) == {"kept": "[found]"}

    def test_one_name_for_sizes_that_are_equal(self) -> None:
        def masked(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x[x > 0], (x > 0).nonzero(), x[x > 0] * 2

        axes = {"x": {0: "rows"}, "a": {0: "n"}, "b": {0: "n"}, "c": {0: "n"}}
        result = silent(masked, (ROWS,), dynamic_axes=axes, output_names=["a", "b", "c"], verify=True)
        assert shapes_of(result) == {"a": "[n]", "b": "[n,2]", "c": "[n]"}

    def test_the_size_of_an_input(self) -> None:
        axes = {"x": {0: "rows"}, "output": {0: "rows"}}
        assert shapes_of(silent(lambda x: x + 1, (ROWS,), dynamic_axes=axes)) == {"output": "[rows,3]"}

    @pytest.mark.parametrize(
        ("axes", "said"),
        [
            ({"a": {1: "width"}}, "axis 1 of the output a is 3 at all sizes, not a size width"),
            ({"a": [1]}, "axis 1 of the output a is 3 at all sizes, not dynamic"),
            ({"a": {0: "n"}, "c": {0: "n"}}, "axis 0 of the output c is called u1, not n: another size has that name"),
            ({"a": {0: "rows"}}, "axis 0 of the output a is called u0, not rows: another size has that name"),
            ({"d": {0: "flat"}}, "axis 0 of the output d is called 3*rows, not flat: the file says what it is"),
            ({"a": {0: "2n"}}, "axis 0 of the output a is called u0, not 2n: the file says what it is"),
        ],
    )
    def test_a_name_that_cannot_be_had(self, axes: dict[str, Any], said: str) -> None:
        asked = {"x": {0: "rows"}} | axes
        result, texts = warned(found_rows, (ROWS,), dynamic_axes=asked, output_names=["a", "b", "c", "d"])
        (text,) = texts
        assert text.startswith(said)
        assert shapes_of(result)["d"] == "[3*rows]"

    def test_an_axis_that_is_not_there(self) -> None:
        with pytest.raises(fx2onnx.UserError, match="axis 2 of the output output") as caught:
            fx2onnx.export(lambda x: x + 1, (ROWS,), dynamic_axes={"x": {0: "rows"}, "output": {2: "n"}})
        assert caught.value.code == "E105"

    def test_conditions_have_the_name_too(self) -> None:
        rows = torch.tensor([[1.0, -1.0], [2.0, -3.0]])  # two above 0

        def kept_twice(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            kept = x[x > 0]
            return kept, kept.reshape(2, -1)

        asked = {"x": {0: "rows"}, "kept": {0: "n"}, "twice": {1: "half"}}
        with pytest.warns(ExportWarning, match="not half: the file says what it is"):
            result = fx2onnx.export(kept_twice, (rows,), dynamic_axes=asked, output_names=["kept", "twice"])
        assert shapes_of(result) == {"kept": "[n]", "twice": "[2,(n // 2)]"}
        said = " ".join([*map(str, result.report.assumptions), *result.model.metadata_props.values()])
        assert "u0" not in said


def test_renamed_outputs() -> None:
    result, texts = warned(lambda a: a + 1, (ROWS,), input_names=["a"], output_names=["a"])
    assert result.report.output_names == ["a_1"]
    assert texts == ["the output a is called a_1: names in a file differ, and a is taken"]
    result, texts = warned(lambda lengths: {"lengths": lengths + 1}, (ROWS,))
    assert result.report.output_names == ["lengths_1"]
    result, texts = warned(lambda x: {"q": {"a": x + 1}, "q_a": x * 2}, (ROWS,))
    assert result.report.output_names == ["q_a", "q_a_"]
    assert len(texts) == 1
    assert silent(lambda a: a, (ROWS,), output_names=["a"]).report.output_names == ["a"]


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3))


class TestPreserve:
    def _is_training(self, result: fx2onnx.ExportResult) -> tuple[bool, bool]:
        proto = result.model_proto
        folded = {value.name: float(torch.tensor(list(value.raw_data))[0]) for value in proto.graph.initializer}
        dropout = any(node.op_type == "Dropout" for node in proto.graph.node)
        return dropout, any(node.op_type.startswith("Reduce") for node in proto.graph.node) or bool(folded) * False

    @pytest.mark.parametrize("mode", [torch.onnx.TrainingMode.PRESERVE, "PRESERVE"])
    def test_each_part_is_exported_as_it_is(self, mode: Any) -> None:
        mixed = _net().train()
        mixed[1].eval()
        for net, expected in ((_net().train(), (True, True)), (_net().eval(), (False, False)), (mixed, (True, False))):
            flags = [part.training for part in net.modules()]
            result = fx2onnx.export(net, (ROWS,), training=mode, state="drop")
            assert self._is_training(result) == expected
            assert [part.training for part in net.modules()] == flags

    def test_it_is_verified_in_that_mode(self) -> None:
        norm = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3)).train()
        norm[1].eval()
        before = {name: value.clone() for name, value in norm.state_dict().items()}
        fx2onnx.export(norm, (ROWS,), training=torch.onnx.TrainingMode.PRESERVE, state="drop", verify=True)
        assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())

    @pytest.mark.parametrize("mode", ["train", 2, object()])
    def test_no_mode(self, mode: Any) -> None:
        with pytest.raises(fx2onnx.UserError, match="training is") as caught:
            fx2onnx.export(_net(), (ROWS,), training=mode)
        assert caught.value.code == "E001"


class TestReport:
    def test_a_path_is_written(self, tmp_path: Path) -> None:
        path = tmp_path / "report.json"
        result = silent(nn.Linear(3, 2), (ROWS,), tmp_path / "m.onnx", report=path, verify=True)
        written = json.loads(path.read_text())
        assert written.keys() == result.report.as_dict().keys()
        assert written["input_names"] == ["input"]
        assert written["verdict"]["ok"] is True

    def test_of_a_training_graph(self, tmp_path: Path) -> None:
        training = fx2onnx.Training(loss=nn.MSELoss(), targets=torch.randn(4, 2))
        fx2onnx.export(nn.Linear(3, 2), (ROWS,), tmp_path / "m.onnx", training=training, report=tmp_path / "r.json")
        assert "loss" in json.loads((tmp_path / "r.json").read_text())["output_names"]

    @pytest.mark.parametrize("path", ["m.onnx", "no/such/folder/r.json"])
    def test_a_path_that_cannot_be_written(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
        monkeypatch.chdir(tmp_path)
        with pytest.raises(fx2onnx.UserError) as caught:
            fx2onnx.export(nn.Linear(3, 2), (ROWS,), "m.onnx", report=path)
        assert caught.value.code == "E301"
        assert list(tmp_path.iterdir()) == []


class _Doubled(torch.autograd.Function):
    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("Add", x, x)

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class _Plain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_symbolic_of_an_autograd_function() -> None:
    result, texts = warned(lambda x: _Plain.apply(_Doubled.apply(_Doubled.apply(x))), (ROWS,))
    (text,) = texts
    assert text.startswith("the symbolic of _Doubled has no effect")
    assert "test_warnings.py:" in text
    silent(lambda x: _Plain.apply(x), (ROWS,))
    assert torch.equal(_Doubled.apply(ROWS), ROWS * 2)
    assert [node.op_type for node in result.model.graph] != []


def first_part(x: torch.Tensor) -> torch.Tensor:
    return x.chunk(x.shape[1] // 5, 1)[0]


def pairs(x: torch.Tensor) -> torch.Tensor:
    return x.view(x.shape[0], -1, 3)


def table(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(1, 32)[:, : x.shape[1]]


def short_table(x: torch.Tensor) -> torch.Tensor:
    return x + torch.ones(1, 32)[:, : x.shape[1]] * x.unfold(1, 20, 1).sum()


def most(x: torch.Tensor) -> torch.Tensor:
    return x.unfold(1, 5, 1)


def first_of_pairs(x: torch.Tensor) -> torch.Tensor:
    return x.split(2)[0]


class TestLimitedSizes:
    @pytest.mark.parametrize(
        ("function", "limits"),
        [
            (first_part, "n >= 20 and n <= 24"),
            (pairs, "n % 3 == 0"),
            (short_table, "n >= 20 and n <= 32"),
        ],
    )
    def test_each_is_a_warning_with_its_line(self, function: Callable[..., Any], limits: str) -> None:
        _, texts = warned(function, (torch.randn(2, 21),), dynamic_shapes=({1: "n"},))
        (text,) = texts
        assert text.startswith(f"the file is right only where {limits}   (")
        assert f"test_warnings.py:{function.__code__.co_firstlineno + 1}, in" in text
        low, high = limits.split()[2], limits.split()[-1]
        dim = (
            '"3*n", or 3 * torch.export.Dim("n")' if "%" in limits else f'torch.export.Dim("n", min={low}, max={high})'
        )
        assert text.endswith(f"; if that is meant, declare {dim}")

    def test_fewer_than_eight_sizes_are_a_short_interval(self) -> None:
        _, (text,) = warned(first_of_pairs, (torch.randn(2, 3),), dynamic_shapes=({0: "n"},))
        assert text.startswith("the file is right only where n >= 1 and n <= 2   (")

    def test_a_least_size_is_none(self) -> None:
        result = silent(most, (torch.randn(2, 21),), dynamic_shapes=({1: "n"},))
        assert any("n >= 5" in str(each) for each in result.report.assumptions)

    def test_the_end_of_a_table_is_none(self) -> None:
        result = silent(table, (torch.randn(2, 21),), dynamic_shapes=({1: "n"},))
        assert any("n <= 32" in str(each) for each in result.report.assumptions)

    def test_what_is_declared_is_none(self) -> None:
        n = torch.export.Dim("n", min=20, max=24)
        silent(first_part, (torch.randn(2, 21),), dynamic_shapes=({1: n},))
        silent(table, (torch.randn(2, 21),), dynamic_shapes=({1: torch.export.Dim("n", max=32)},))
        wider = torch.export.Dim("n", min=16, max=64)
        warned(first_part, (torch.randn(2, 21),), dynamic_shapes=({1: wider},))


@pytest.mark.parametrize("result", [None, (), {}, (None,), {"a": None, "b": []}, "text", (None, "text")])
@pytest.mark.parametrize("verify", [False, True])
def test_a_module_that_returns_nothing(result: object, verify: bool, tmp_path: Path) -> None:
    with pytest.raises(fx2onnx.UserError, match="returns nothing") as caught:
        fx2onnx.export(lambda x: result, (ROWS,), tmp_path / "m.onnx", verify=verify)
    assert caught.value.code == "E107"
    assert list(tmp_path.iterdir()) == []


def test_one_that_only_changes_its_state() -> None:
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> None:
            self.total += x.sum(0)

    with pytest.raises(fx2onnx.UserError, match="returns nothing") as caught:
        fx2onnx.export(Sums(), (ROWS,))
    assert 'state="io"' in caught.value.next[1]
    assert silent(Sums(), (ROWS,), state="io").report.output_names == ["total.next"]
