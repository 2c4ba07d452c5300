"""Networks of each kind: gradients are autograd's, and steps of an optimizer follow PyTorch's losses."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

import fx2onnx
from tests.support import run_engines
from tests.training.models import TASKS, Task, task
from tests.training.stepping import as_arrays, eager_losses, exported_losses

STEPS = 20


def exact_gradients(found: Task) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of the task in float64."""

    def wide(value: Any) -> Any:
        is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if is_float else value

    module = copy.deepcopy(found.module).double().train()
    outputs = module(*map(wide, found.args), **{name: wide(value) for name, value in found.kwargs.items()})
    loss = found.loss(outputs, *map(wide, found.targets))
    loss.backward()
    return float(loss.detach()), {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


@pytest.mark.long_cases("gpt2", "llama", "t5")
@pytest.mark.parametrize("name", TASKS)
def test_gradients_are_autograds(name: str) -> None:
    found = task(name)
    training = fx2onnx.Training(found.loss, found.targets)
    result = fx2onnx.export(
        found.module, found.args, kwargs=found.kwargs, training=training, dynamic_shapes=found.dynamic
    )
    proto = result.model_proto
    onnx.checker.check_model(proto, full_check=True)
    assert {node.domain for node in proto.graph.node} == {""}
    loss, gradients = exact_gradients(found)
    given = {**dict(found.module.named_parameters()), **dict(found.module.named_buffers())}
    fed = [*found.args, *found.kwargs.values(), *found.targets]
    feeds = [*fed, *(given[value.name].detach() for value in list(proto.graph.input)[len(fed) :])]
    names = [value.name for value in proto.graph.output]
    assert {f"grad.{name}" for name in gradients} <= set(names)
    for engine, outputs in run_engines(proto, feeds).items():
        found_values = dict(zip(names, outputs, strict=True))
        assert abs(found_values["loss"] - loss) < 1e-5 * max(1.0, abs(loss)), engine
        for parameter, gradient in gradients.items():
            scale = max(float(gradient.abs().max()), 1e-3)
            got = found_values[f"grad.{parameter}"]
            np.testing.assert_allclose(
                got, gradient.numpy(), rtol=0, atol=3e-4 * scale, err_msg=f"{engine} {parameter}"
            )


SLOW = pytest.mark.slow


@pytest.mark.long_cases(but=["cnn-adamw-0.001", "lstm-sgd-0.0001", "gpt2-adamw-0.001"])
@pytest.mark.parametrize(
    ("name", "kind", "tolerance"),
    [
        ("cnn", "sgd", 1e-4),
        ("cnn", "adamw", 1e-3),
        ("resnet", "sgd", 1e-4),
        ("resnet", "adamw", 1e-3),
        pytest.param("lstm", "sgd", 1e-4, marks=SLOW),  # 6 s
        ("lstm", "adamw", 1e-3),
        ("gpt2", "sgd", 1e-4),
        pytest.param("gpt2", "adamw", 1e-3, marks=SLOW),
    ],
)
def test_losses_follow_pytorchs(name: str, kind: str, tolerance: float, tmp_path: Path) -> None:
    found = task(name)

    def make(module: torch.nn.Module) -> torch.optim.Optimizer:
        if kind == "sgd":
            return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
        return torch.optim.AdamW(module.parameters(), lr=1e-3)

    fx2onnx.export_training(
        found.module,
        found.args,
        tmp_path,
        loss=found.loss,
        targets=found.targets,
        optimizer=make(found.module),
        kwargs=found.kwargs,
        dynamic_shapes=found.dynamic,
    )
    want = eager_losses(
        found.module,
        make,
        lambda module: found.loss(module(*found.args, **found.kwargs), *found.targets),
        STEPS,
    )
    from fx2onnx.manifest.training import read_training

    manifest = read_training(tmp_path)
    fed = dict(
        zip([*manifest.batch, *manifest.targets], [*found.args, *found.kwargs.values(), *found.targets], strict=True)
    )
    assert want[-1] < 0.99 * want[0], "it learns"
    for engine in ("onnxruntime", "runner"):
        got = exported_losses(tmp_path, engine, as_arrays(fed), STEPS)
        np.testing.assert_allclose(got, want, rtol=tolerance, err_msg=engine)


@pytest.mark.long
def test_any_batch_and_sequence() -> None:
    found = task("gpt2")
    sizes = {"input_ids": {0: "batch", 1: "sequence"}, "labels": {0: "batch", 1: "sequence"}}
    training = fx2onnx.Training(found.loss, found.targets)
    result = fx2onnx.export(found.module, (), kwargs=found.kwargs, training=training, dynamic_shapes=sizes)
    ids, labels = torch.randint(0, 30, (3, 9)), torch.randint(0, 30, (3, 9))
    found.module.train()
    found.loss(found.module(input_ids=ids), labels).backward()
    parameters = dict(found.module.named_parameters())
    names = result.report.output_names
    feeds = [ids, labels, *(parameters[name].detach() for name in result.report.input_names[2:])]
    for engine, outputs in run_engines(result.model_proto, feeds).items():
        values = dict(zip(names, outputs, strict=True))
        for name, parameter in parameters.items():
            assert parameter.grad is not None
            got = values[f"grad.{name}"]
            np.testing.assert_allclose(got, parameter.grad.numpy(), rtol=1e-4, atol=1e-6, err_msg=f"{engine} {name}")


class Tables(torch.nn.Module):
    """Rows of a table, alone and in bags, whose gradients are sparse in eager PyTorch."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = torch.nn.Embedding(9, 4, sparse=True)
        self.bags = torch.nn.EmbeddingBag(9, 4, mode="sum", sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rows(x).sum(1) * self.bags(x)  # type: ignore[no-any-return]


def test_sparse_gradients_are_dense(tmp_path: Path) -> None:
    def make(module: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    module, x = Tables(), torch.randint(0, 9, (5, 3))
    want = eager_losses(module, make, lambda own: own(x).square().mean(), 4)
    options: dict[str, Any] = {"loss": lambda rows: rows.square().mean(), "optimizer": make(module)}
    fx2onnx.export_training(module, (x,), tmp_path, **options)
    assert module.rows.sparse
    assert module.bags.sparse
    for engine in ("onnxruntime", "runner"):
        got = exported_losses(tmp_path, engine, {"x": x.numpy()}, 4)
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=engine)
