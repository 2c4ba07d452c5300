"""Engines that a verification may be asked for by name."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx import locate, verify
from fx2onnx.base.errors import UserError
from fx2onnx.judge.engines import DEFAULT, ENGINES, chosen_engines
from tests.cli.support import invoke


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(6, 4)

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden = torch.tanh(self.linear(x))
        return hidden, hidden.argmax(-1) + ids, hidden > 0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net, Any]:
    path, module = tmp_path_factory.mktemp("engines") / "net.onnx", Net().eval()
    args = (torch.randn(3, 6), torch.arange(3))
    shapes = {"x": {0: "batch"}, "ids": {0: "batch"}}
    fx2onnx.export(module, args, path, dynamic_shapes=shapes)
    return path, module, args


def needs(name: str) -> Any:
    missing = name == "openvino" and importlib.util.find_spec(name) is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason="pip install openvino"))


@pytest.mark.parametrize("name", ["runner", "onnxruntime", "reference", needs("openvino")])
def test_each_engine_judges(file: tuple[Path, Net, Any], name: str) -> None:
    path, module, args = file
    verdict = verify(str(path), module, args, engines=[name])
    assert verdict.ok, verdict.describe()
    assert {row.engine for row in verdict.rows} == {name}
    inputs = {row.inputs for row in verdict.rows}
    assert inputs >= {"sample", "seed 1"}
    assert any(name.startswith("sizes ") for name in inputs)
    bias = module.linear.bias.detach().clone()
    with torch.no_grad():
        module.linear.bias += 1.0
    try:
        assert not verify(str(path), module, args, engines=[name]).ok
    finally:
        with torch.no_grad():
            module.linear.bias.copy_(bias)


@pytest.mark.parametrize("name", ["reference", needs("openvino")])
def test_results_are_arrays_of_their_own(file: tuple[Path, Net, Any], name: str) -> None:
    run = ENGINES[name](str(file[0]))
    feeds = {"x": np.ones((2, 6), np.float32), "ids": np.arange(2)}
    kept = run(feeds)
    first = [result.copy() for result in kept]
    run({"x": np.zeros((2, 6), np.float32), "ids": np.arange(2)})
    for array, copy in zip(kept, first, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.long
def test_engines_that_disagree_are_told_from_a_wrong_file(
    file: tuple[Path, Net, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, module, args = file
    opened = ENGINES["onnxruntime"]

    def wrong(model: Any) -> Any:
        run = opened(model)
        return lambda feeds: [run(feeds)[0] * 2, *run(feeds)[1:]]

    monkeypatch.setitem(ENGINES, "onnxruntime", wrong)
    verdict = verify(str(path), module, args)
    assert not verdict.ok
    (note,) = [note for note in verdict.notes if "engine's fault" in note]
    assert note.startswith("sample: runner agrees with eager PyTorch, onnxruntime does not")
    found = locate(str(path), module, args, verdict=verdict)
    assert found is not None
    assert found.stage == "engine"
    monkeypatch.setitem(ENGINES, "runner", wrong)
    assert not any("engine's fault" in note for note in verify(str(path), module, args).notes)


def test_the_default_stays_two() -> None:
    assert DEFAULT == ("runner", "onnxruntime")
    assert set(chosen_engines(None)) <= set(DEFAULT) < set(ENGINES)


@pytest.mark.parametrize(
    ("names", "words"), [(["runner", "tvm"], "unknown engine 'tvm'"), ([], "no engine is named"), ([""], "unknown")]
)
def test_unknown_engines(file: tuple[Path, Net, Any], names: list[str], words: str) -> None:
    path, module, args = file
    with pytest.raises(UserError, match=words) as caught:
        verify(str(path), module, args, engines=names)
    assert caught.value.code == "E001"
    assert "reference" in str(caught.value.next)


def test_engines_that_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert chosen_engines(["runner", "reference", "runner"]) == ["runner", "reference"]
    with pytest.raises(UserError, match="openvino is not installed") as caught:
        chosen_engines(["openvino"])
    assert (caught.value.code, caught.value.next[0]) == ("E602", "pip install openvino")


def test_the_command_takes_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "engine_models.py").write_text(
        "import torch\ndef relu():\n    return torch.nn.ReLU(), (torch.randn(2, 3),)\n"
    )
    fx2onnx.export(torch.nn.ReLU(), (torch.randn(2, 3),), "m.onnx")
    arguments = ["verify", "m.onnx", "engine_models:relu"]
    done = invoke(*arguments, "--engine", "reference", "--engine", "runner")
    assert done.exit_code == 0, done.output
    assert "reference" in done.stdout
    assert "onnxruntime" not in done.stdout
    refused = invoke("verify", "m.onnx", "engine_models:missing", "--engine", "tvm")
    assert refused.exit_code == 2
    assert "[E001] unknown engine 'tvm'" in refused.stderr, "before the model is built"
