"""A folder that trains: what it holds, digits from scratch in both engines, saving and going on, without torch."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import fx2onnx
from fx2onnx.runner import InferenceSession, Trainer
from models_zoo.digits import BATCH, DigitsCnn, digits
from tests.support import run_engines
from tests.training.stepping import ENGINES

FILES = {
    "apply_gradients.onnx", "eval.onnx", "fx2onnx.json", "gradients.onnx", "model.onnx", "train_step.onnx",
    "weights.safetensors",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    torch.manual_seed(0)
    module, target = DigitsCnn(), tmp_path_factory.mktemp("digits")
    images, labels = digits(test=False)
    fx2onnx.export_training(
        module,
        (images[:BATCH],),
        target,
        loss=F.cross_entropy,
        targets={"labels": labels[:BATCH]},
        optimizer=torch.optim.Adam(module.parameters(), lr=3e-3),
        metrics={"accuracy": lambda outputs, labels: (outputs.argmax(1) == labels).float().mean()},
        dynamic_shapes={"image": {0: "batch"}, "labels": {0: "batch"}},
    )
    return target


def _batches(epochs: int) -> Iterator[dict[str, Any]]:
    images, labels = digits(test=False)
    generator = np.random.default_rng(0)
    for _ in range(epochs):
        order = generator.permutation(len(images))
        for rows in np.split(order, range(BATCH, len(order), BATCH)):
            yield {"image": images.numpy()[rows], "labels": labels.numpy()[rows]}


def _held_out() -> dict[str, Any]:
    images, labels = digits(test=True)
    return {"image": images.numpy(), "labels": labels.numpy()}


@pytest.mark.long
def test_files(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == FILES
    for path in folder.glob("*.onnx"):
        onnx.checker.check_model(path, full_check=True)
        assert {node.domain for node in onnx.load(path, load_external_data=False).graph.node} == {""}
    read = [value.name for value in InferenceSession(str(folder / "eval.onnx")).get_inputs()]
    assert "norm1.running_mean" in read
    assert "norm1.num_batches_tracked" not in read, "eval mode does not look at it"
    manifest = json.loads((folder / "fx2onnx.json").read_text())["training"]
    first = manifest["parameters"][0]
    assert (first["name"], first["gradient"], first["next"]) == (
        "conv1.weight",
        "grad.conv1.weight",
        "conv1.weight.next",
    )
    assert [slot["name"] for slot in first["state"]] == ["conv1.weight.exp_avg", "conv1.weight.exp_avg_sq"]
    assert "norm1.running_mean" in [slot["name"] for slot in manifest["buffers"]]


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_digits_from_scratch(folder: Path, engine: str, tmp_path: Path) -> None:
    trainer = Trainer(folder, ENGINES[engine])
    assert trainer.evaluate(_held_out())["accuracy"] < 0.3
    for batch in _batches(3):
        trainer.step(batch)
    reached = trainer.evaluate(_held_out())["accuracy"]
    assert reached > 0.95
    path = trainer.save_model(tmp_path / "out")
    logits = ENGINES[engine](str(path)).run(None, {"image": _held_out()["image"]})[0]
    assert abs((logits.argmax(1) == _held_out()["labels"]).mean() - reached) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize("engine", ENGINES)
def test_going_on_is_bit_for_bit(folder: Path, engine: str, tmp_path: Path) -> None:
    trainer = Trainer(folder, ENGINES[engine])
    batches = list(_batches(1))[:6]
    for batch in batches[:3]:
        trainer.step(batch)
    trainer.save(tmp_path / "state.safetensors")
    first = [trainer.step(batch)["loss"] for batch in batches[3:]]
    again = Trainer(folder, ENGINES[engine])
    again.load(tmp_path / "state.safetensors")
    assert again.steps == 3
    assert [again.step(batch)["loss"] for batch in batches[3:]] == first
    assert all(np.array_equal(again.state[name], value) for name, value in trainer.state.items())


def test_the_state_is_read_by_safetensors(folder: Path, tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    trainer = Trainer(folder)
    trainer.save(tmp_path / "state.safetensors")
    found = load_file(tmp_path / "state.safetensors")
    assert set(found) == set(trainer.state)
    np.testing.assert_array_equal(found["fc2.weight"], trainer.state["fc2.weight"])


@pytest.mark.long
def test_torch_is_not_needed(folder: Path) -> None:
    code = f"""
import sys
import numpy as np
from fx2onnx.runner import Trainer
trainer = Trainer({str(folder)!r})
trainer.step({{"image": np.zeros((2, 1, 8, 8), np.float32), "labels": np.zeros(2, np.int64)}})
print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_model_is_the_module(folder: Path) -> None:
    torch.manual_seed(0)
    images = _held_out()["image"][:5]
    want = DigitsCnn().eval()(torch.from_numpy(images)).detach().numpy()
    got = InferenceSession(str(folder / "model.onnx")).run(None, {"image": images})[0]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_the_state_of_another_model_is_refused(folder: Path, tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    other = tmp_path / "other"
    sample = torch.ones(2, 3)
    fx2onnx.export_training(
        module,
        (sample,),
        other,
        loss=F.mse_loss,
        targets=(torch.ones(2, 2),),
        optimizer=torch.optim.SGD(module.parameters()),
    )
    Trainer(other).save(tmp_path / "state.safetensors")
    with pytest.raises(fx2onnx.UserError, match="another model or optimizer") as caught:
        Trainer(folder).load(tmp_path / "state.safetensors")
    assert caught.value.code == "E302"


def test_a_batch_that_does_not_fit_is_refused(folder: Path) -> None:
    with pytest.raises(fx2onnx.UserError, match="does not fit the step graph") as caught:
        Trainer(folder).step({"image": np.zeros((1, 1, 8, 8), np.float32)})
    assert caught.value.code == "E401"
    assert "labels" in caught.value.why


@pytest.mark.parametrize("engine", ENGINES)
def test_arrays_that_do_not_fit_are_one_error(folder: Path, engine: str) -> None:
    trainer = Trainer(folder, ENGINES[engine])
    image, labels = np.zeros((6, 1, 8, 8), np.float32), np.zeros(6, np.int64)
    for batch, code, text in (
        ((image, labels.astype(np.int32)), "E401", "'labels' is tensor\\(int32\\)"),
        ((image.astype(np.float64), labels), "E401", "'image' is tensor\\(double\\)"),
        ((image, labels[1:]), "E401", "'labels' is 5, but 'batch' is 6"),
        ((image[:, :, 1:], labels), "E401", "is 7; the model needs 8"),
        ((image, labels + 10), "E403", ""),
    ):
        with pytest.raises(fx2onnx.UserError, match=rf"{code}[^$]*{text}"):
            trainer.step({"image": batch[0], "labels": batch[1]})


def test_a_folder_that_does_not_train_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fx2onnx.UserError):
        Trainer(tmp_path)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.drop = nn.Linear(200, 200), nn.Dropout(0.25)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.drop(self.fc(x)), 0.5, self.training)


def _noisy(folder: Path, dropout: str) -> Noisy:
    torch.manual_seed(0)
    module = Noisy()
    fx2onnx.export_training(
        module,
        (torch.ones(50, 200),),
        folder,
        loss=lambda outputs: outputs.square().mean(),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        dropout=dropout,
        returns_outputs=True,
    )
    return module


def test_dropout_that_is_off(tmp_path: Path) -> None:
    module = _noisy(tmp_path, "off")
    want = module.fc(torch.ones(50, 200)).detach().numpy()
    trainer = Trainer(tmp_path)
    results = trainer.step({"x": np.ones((50, 200), np.float32)})
    np.testing.assert_allclose(results["output"], want, rtol=1e-4, atol=1e-5)
    module.fc(torch.ones(50, 200)).square().mean().backward()
    assert module.fc.bias.grad is not None
    stepped = module.fc.bias.detach() - 0.1 * module.fc.bias.grad
    np.testing.assert_allclose(trainer.state["fc.bias"], stepped.numpy(), rtol=1e-5, atol=1e-6)


def test_every_kind_of_dropout_is_off() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Dropout2d(0.9), nn.Flatten(), nn.AlphaDropout(0.9), nn.Dropout(0.9))
    training = fx2onnx.Training(lambda outputs: outputs.sum(), returns_outputs=True)
    x = torch.ones(2, 1, 3, 3)
    proto = fx2onnx.export(module, (x,), training=training).model_proto
    want = module[0](x).flatten(1).detach().numpy()
    weights = [parameter.detach() for parameter in module.parameters()]
    for engine, outputs in run_engines(proto, [x, *weights]).items():
        np.testing.assert_allclose(outputs[1], want, rtol=1e-5, err_msg=engine)


@pytest.mark.long
def test_dropout_from_a_seed(tmp_path: Path) -> None:
    module = _noisy(tmp_path, "seeded")
    want = module.fc(torch.ones(50, 200)).detach().numpy() / (0.75 * 0.5)
    drawn = {}
    for engine, open_session in ENGINES.items():
        for seed in (0, 1):
            trainer = Trainer(tmp_path, open_session, seed=seed)
            outputs = trainer.step({"x": np.ones((50, 200), np.float32)})["output"]
            kept = outputs != 0
            np.testing.assert_allclose(outputs[kept], want[kept], rtol=1e-4, atol=1e-4)
            assert abs(kept.mean() - 0.75 * 0.5) < 0.02
            assert np.abs(np.corrcoef(kept.T.astype(float)) - np.eye(200)).mean() < 0.15, "columns are independent"
            drawn[engine, seed] = kept
    assert np.array_equal(drawn["onnxruntime", 0], drawn["runner", 0])
    assert not np.array_equal(drawn["runner", 0], drawn["runner", 1])


def test_tied_weights_have_one_gradient_and_adapters_move_alone(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.low, self.high = (
                nn.Embedding(7, 4),
                nn.Linear(4, 2, bias=False),
                nn.Linear(2, 4, bias=False),
            )
            self.head = nn.Linear(4, 7, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            hidden = self.words(ids)
            return self.head(hidden + self.high(self.low(hidden)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    module, ids = Tied(), torch.tensor([1, 2, 3])
    training = fx2onnx.Training(F.cross_entropy, (ids,))
    whole = fx2onnx.export(module, (ids,), training=training).report
    assert [name for name in whole.output_names if "words" in name or "head" in name] == ["grad.words.weight"]
    adapters = [module.low.weight, module.high.weight]
    fx2onnx.export_training(
        module,
        (ids,),
        tmp_path,
        loss=F.cross_entropy,
        targets=(ids,),
        frozen=["words."],
        optimizer=torch.optim.SGD(adapters, lr=0.5),
    )
    own = copy.deepcopy(module)
    optimizer = torch.optim.SGD([own.low.weight, own.high.weight], lr=0.5)
    trainer = Trainer(tmp_path)
    assert set(trainer.state) == {"low.weight", "high.weight"}
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(own(ids), ids).backward()
        optimizer.step()
        trainer.step({"ids": ids.numpy(), "target": ids.numpy()})
    np.testing.assert_allclose(trainer.state["low.weight"], own.low.weight.detach().numpy(), rtol=1e-5, atol=1e-6)
    content = onnx.load(tmp_path / "train_step.onnx", load_external_data=False)
    frozen = next(found for found in content.graph.initializer if found.name == "words.weight")
    assert [entry.value for entry in frozen.external_data if entry.key == "location"] == ["weights.safetensors"]


def test_gradients_of_inputs() -> None:
    torch.manual_seed(0)
    module, x, y = nn.Linear(3, 2), torch.randn(4, 3), torch.randn(4, 2)
    training = fx2onnx.Training(
        F.mse_loss, (y,), inputs=["input"], optimizer=torch.optim.SGD(module.parameters(), lr=0.5)
    )
    result = fx2onnx.export(module, (x,), training=training)
    own = x.clone().requires_grad_()
    F.mse_loss(module(own), y).backward()
    names = result.report.output_names
    feeds = [x, y, torch.tensor(0.5), *module.parameters()]
    assert result.report.input_names == ["input", "target", "learning_rate", "weight", "bias"]
    for engine, outputs in run_engines(result.model_proto, [value.detach() for value in feeds]).items():
        got = dict(zip(names, outputs, strict=True))
        assert own.grad is not None
        assert module.weight.grad is not None
        np.testing.assert_allclose(got["grad.input"], own.grad.numpy(), rtol=1e-5, atol=1e-6, err_msg=engine)
        want = module.weight.detach() - 0.5 * module.weight.grad
        np.testing.assert_allclose(got["weight.next"], want.numpy(), rtol=1e-5, atol=1e-6, err_msg=engine)


def test_checkpoints_and_second_derivatives_and_autocast() -> None:
    """What users do with autograd inside forward and loss is part of the step."""

    class Potential(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 8), nn.Linear(8, 1)

        def energy(self, x: torch.Tensor) -> torch.Tensor:
            hidden = checkpoint(torch.tanh, self.first(x), use_reentrant=False)
            return self.last(hidden).sum()  # type: ignore[no-any-return]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                place = x.detach().requires_grad_()
                return -torch.autograd.grad(self.energy(place), place, create_graph=True)[0]

    torch.manual_seed(0)
    module, x, force = Potential(), torch.randn(4, 3), torch.randn(4, 3)
    training = fx2onnx.Training(F.mse_loss, (force,), frozen=["last.bias"])
    result = fx2onnx.export(module, (x,), training=training)
    F.mse_loss(module(x), force).backward()
    parameters = [module.first.weight, module.first.bias, module.last.weight]
    for engine, outputs in run_engines(result.model_proto, [x, force, *(p.detach() for p in parameters)]).items():
        for parameter, got in zip(parameters, outputs[1:], strict=True):
            assert parameter.grad is not None
            np.testing.assert_allclose(got, parameter.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=engine)


def test_parts_in_eval_mode_stay_so() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).train()
    module[1].eval()
    training = fx2onnx.Training(F.mse_loss, (torch.ones(4, 2),))
    assert not any(
        "running_mean" in name
        for name in fx2onnx.export(module, (torch.ones(4, 3),), training=training).report.output_names
    )
    module[1].train()
    outputs = fx2onnx.export(module, (torch.ones(4, 3),), training=training).report.output_names
    assert "1.running_mean.next" in outputs
    assert module[1].training
