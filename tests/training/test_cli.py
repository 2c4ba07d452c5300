"""``fx2onnx export-training`` and ``fx2onnx train``."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession, Trainer
from tests.cli.support import factories, invoke


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("cli") / "demo"
    report = target.with_name("report.json")
    given = ("--optimizer", "sgd", "--learning-rate", 0.05, "--verify", "--json", "--report", report)
    done = invoke("export", "zoo:mnist_cnn", "--training", *given, "-o", target)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert json.loads(report.read_text()) == summary
    assert "train_step.onnx" in summary["files"]
    assert len(summary["verdicts"]) == 5
    assert all(verdict["ok"] for verdict in summary["verdicts"].values())
    return target


@pytest.fixture(scope="module")
def fixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that trains batches of four rows."""
    module, folder = torch.nn.Linear(3, 1), tmp_path_factory.mktemp("cli") / "fixed"
    fx2onnx.export_training(
        module,
        (torch.ones(4, 3),),
        folder,
        loss=torch.nn.functional.mse_loss,
        targets={"y": torch.ones(4, 1)},
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    )
    return folder


@pytest.mark.long
@pytest.mark.parametrize("factory", ["plain", "source"])
def test_parts_keep_the_mode_that_the_factory_gave_them(factory: str, tmp_path: Path) -> None:
    text = """
        import torch
        from fx2onnx.sources import Source
        def plain():
            module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)).train()
            module[1].eval()
            return module, (torch.ones(3, 4),)
        def source(): return Source("net", *plain())
    """
    with factories(tmp_path, own_modes=textwrap.dedent(text)):
        given = ("--loss", "mse", "--optimizer", "sgd", "--no-verify", "-o", tmp_path / "out", "--frozen", "1.")
        done = invoke("export-training", f"own_modes:{factory}", *given)
        assert done.exit_code == 0, done.output
        changed = [output.name for output in InferenceSession(str(tmp_path / "out/train_step.onnx")).get_outputs()]
    assert [name for name in changed if "running_mean" in name] == ["2.running_mean.next"]
    assert [name for name in changed if name.endswith("weight.next")] == ["0.weight.next", "2.weight.next"]


@pytest.mark.long
@pytest.mark.parametrize("engine", ["onnxruntime", "runner"])
def test_train_on_arrays(folder: Path, engine: str, tmp_path: Path) -> None:
    manifest = json.loads((folder / "fx2onnx.json").read_text())["training"]
    (image,), (target,) = manifest["batch"], manifest["targets"]
    rows = np.random.default_rng(0).random((20, 1, 28, 28), np.float32)
    data = tmp_path / "data.npz"
    np.savez(data, **{image: rows, target: np.arange(20) % 10})
    arguments = ["train", folder, "--data", data, "--steps", "6", "--batch", "16", "--engine", engine]
    more = ["--resume", tmp_path / "state.safetensors", "-o", tmp_path / "out", "--json"]
    done = invoke(*arguments, *more)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert len(summary["losses"]) == 6
    assert summary["losses"][-1] < summary["losses"][0]
    assert set(summary["test"]) == {"loss", "accuracy"}
    assert [Path(path).name for path in summary["plots"]] == ["training.html", "training.svg"]
    assert all(Path(path).exists() for path in summary["plots"])
    assert InferenceSession(summary["model"]).run(None, {image: rows[:2]})[0].shape == (2, 10)
    again = json.loads(invoke(*arguments, *more).stdout)
    assert again["steps"] == 12


@pytest.mark.long
def test_losses_are_shown(folder: Path, tmp_path: Path) -> None:
    manifest = json.loads((folder / "fx2onnx.json").read_text())["training"]
    data = tmp_path / "data.npz"
    rows = {manifest["batch"][0]: np.zeros((8, 1, 28, 28), np.float32), manifest["targets"][0]: np.zeros(8, np.int64)}
    np.savez(data, **rows)
    done = invoke("train", folder, "--data", data, "--steps", "2", "--quiet")
    assert (done.exit_code, done.stdout) == (0, "")
    done = invoke("train", folder, "--data", data, "--steps", "2")
    assert "test accuracy" in done.stdout


@pytest.mark.long
def test_the_documented_example_learns(tmp_path: Path) -> None:
    """From random weights: the loss falls, the accuracy of rows that it was not trained on rises."""
    pytest.importorskip("sklearn")
    folder, out = tmp_path / "digits", tmp_path / "trained"
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    make, train = (line.split()[1:] for line in text.splitlines() if line.startswith("fx2onnx ") and "digits" in line)
    assert make[-1] == train[1] == "digits"
    done = invoke(*make[:-1], folder, "--no-verify", "--quiet")
    assert done.exit_code == 0, done.output
    done = invoke("train", folder, "--data", "digits", "--steps", "60", "-o", out, "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert np.mean(summary["losses"][:5]) > 1.5
    assert np.mean(summary["losses"][-5:]) < 0.3
    assert summary["test"]["accuracy"] > 0.9


@pytest.mark.long_cases("arguments0---loss 'none' is not known", "arguments1---optimizer 'none' is not known")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["export-training", "zoo:mnist_cnn", "--loss", "none", "-o", "OUT"], "--loss 'none' is not known"),
        (["export-training", "zoo:mnist_cnn", "--optimizer", "none", "-o", "OUT"], "--optimizer 'none' is not known"),
        (["export", "zoo:mnist_cnn", "--optimizer", "sgd", "-o", "OUT"], "fx2onnx export-training has it"),
        (["export", "zoo:mnist_cnn", "--loss", "mse", "-o", "OUT"], "fx2onnx export-training has it"),
        (["export-training", "zoo:mnist_cnn", "--learning-rate", "1", "-o", "OUT"], "is the optimizer's"),
        (
            ["export-training", "zoo:mnist_cnn", "--optimizer", "sgd", "--learning-rate", "-1", "-o", "OUT"],
            "--learning-rate -1.0 is no rate",
        ),
        (["export", "zoo:mnist_cnn", "zoo:resnet18", "--training", "-o", "OUT"], "one model at a time"),
        (["train", "FOLDER", "--data", "digits", "--plot", "loss.png"], "--plot loss.png has no known ending"),
        (["train", "FOLDER", "--data", "missing.npz"], "cannot read 'missing.npz'"),
        (["train", "OUT", "--data", "digits"], "is no folder that trains"),
    ],
)
def test_mistakes(fixed: Path, arguments: list[str], message: str, tmp_path: Path) -> None:
    places = {"OUT": tmp_path / "out", "FOLDER": fixed}
    done = invoke(*(places.get(argument, argument) for argument in arguments))
    assert done.exit_code == 2
    assert message in done.output


@pytest.mark.parametrize(
    ("rows", "message", "step"),
    [
        ({"input": 8, "labels": 8}, "the folder takes input, y", "input=..., y=...)"),
        ({"input": 8}, "has the arrays input", "input=..., y=...)"),
        ({"input": 8, "y": 5}, "input has 8, y has 5", "one row for each example"),
    ],
)
def test_arrays_that_do_not_fit(fixed: Path, rows: dict[str, int], message: str, step: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **{name: np.zeros((count, 3), np.float32) for name, count in rows.items()})
    done = invoke("train", fixed, "--data", tmp_path / "data.npz")
    assert done.exit_code == 2
    assert message in done.output
    assert step in done.output


@pytest.mark.long
def test_a_folder_of_a_fixed_batch(fixed: Path, tmp_path: Path) -> None:
    """Steps and the test are of as many rows as it takes."""
    folder, data = fixed, tmp_path / "data.npz"
    draw = np.random.default_rng(0)
    x = draw.random((45, 3), np.float32)
    np.savez(data, input=x, y=x.sum(1, keepdims=True))
    command = ["train", folder, "--data", data, "--steps", "30", "--json"]
    done = invoke(*command)
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    trainer = Trainer(folder)
    assert (trainer.rows(), trainer.rows("eval")) == (4, 4)
    assert 0 < summary["test"]["loss"] < 0.2 < summary["losses"][0]
    refused = invoke(*command, "--batch", "5")
    assert (refused.exit_code, "takes 4 rows" in refused.output) == (2, True)
    np.savez(data, input=x[:4], y=x[:4, :1])
    few = invoke(*command)
    assert (few.exit_code, json.loads(few.stdout)["test"]) == (0, {})
    np.savez(data, input=x[:3], y=x[:3, :1])
    assert "the data has 3" in invoke(*command).output


@pytest.mark.parametrize(
    ("dynamic", "loss", "sizes"),
    [
        ("images:0=rows", "cross_entropy", ["rows"]),
        ("images:0=rows;target:0=rows", "cross_entropy", ["rows"]),
        ("images:0=rows", "mse", ["rows", 3]),
    ],
)
def test_the_target_of_a_factory_is_dynamic_with_its_inputs(
    dynamic: str, loss: str, sizes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also without an optimizer, where no parameter of the module is trained."""
    code = "import torch\n\nclass Net(torch.nn.Linear):\n    def forward(self, images):\n        return super().forward(images)\n\n"
    (tmp_path / f"{tmp_path.name}.py").write_text(
        code + "def make():\n    return Net(4, 3).requires_grad_(False), (torch.ones(2, 4),)\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = ["export-training", f"{tmp_path.name}.py:make", "--loss", loss, "--dynamic", dynamic, "-o", "folder"]
    done = invoke(*arguments, "--no-verify", "-q")
    assert done.exit_code == 0, done.output
    inputs = {each["name"]: each["shape"] for each in fx2onnx.inspect("folder/gradients.onnx")["inputs"]}
    assert (inputs["images"], inputs["target"]) == (["rows", 4], sizes)
