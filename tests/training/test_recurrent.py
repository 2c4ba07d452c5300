"""Recurrent layers: loops over time of any length, with dropout between layers that follows from the seed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import fx2onnx
from fx2onnx.runner import Trainer
from tests.support import run_engines
from tests.training.stepping import ENGINES, run_by_name

LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "lstm": lambda: nn.LSTM(4, 5),
    "lstm, both ways": lambda: nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True),
    "lstm, no biases": lambda: nn.LSTM(4, 5, bias=False),
    "lstm, projected": lambda: nn.LSTM(4, 5, proj_size=3),
    "gru": lambda: nn.GRU(4, 5, batch_first=True),
    "gru, both ways": lambda: nn.GRU(4, 5, 2, bidirectional=True),
    "gru, no biases": lambda: nn.GRU(4, 5, bias=False, batch_first=True),
    "rnn": lambda: nn.RNN(4, 5, 2, batch_first=True),
    "rnn, relu": lambda: nn.RNN(4, 5, nonlinearity="relu", bidirectional=True),
}


class Whole(nn.Module):
    """Everything that a layer returns is used, and its first state is an input."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        states: Any = start
        if isinstance(self.layer, nn.LSTM):
            states = (start[..., : self.layer.proj_size or 5], start.cos())
        out, last = self.layer(x, states)
        ends = torch.cat([part.flatten() for part in last]) if isinstance(last, tuple) else last.flatten()
        weights = torch.arange(float(out.shape[-1])).cos()
        return (out * weights).square().mean() + ends.sin().mean()


def given(layer: nn.RNNBase, time: int = 6, batch: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, time, 4) if layer.batch_first else (time, batch, 4)
    sides = layer.num_layers * (2 if layer.bidirectional else 1)
    return torch.randn(shape, generator=generator), torch.randn(sides, batch, 5, generator=generator)


@pytest.mark.long_cases(but=["gru, no biases"])
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_at_any_length(kind: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[kind]()
    module = Whole(layer)
    time, batch = (1, 0) if layer.batch_first else (0, 1)
    sizes = {"x": {time: "time", batch: "batch"}, "start": {1: "batch"}}
    if "projected" in kind:  # the loop is unrolled
        sizes = {"x": {batch: "batch"}, "start": {1: "batch"}}
    training = fx2onnx.Training(lambda loss: loss, inputs=["x", "start"])
    result = fx2onnx.export(module, given(layer), training=training, dynamic_shapes=sizes)
    named = dict(module.named_parameters())
    for length, rows in ((6, 3), (1 if "projected" not in kind else 6, 2), (9 if "projected" not in kind else 6, 1)):
        tensors = given(layer, length, rows)
        own = copy.deepcopy(module).double()
        wide = [tensor.double().requires_grad_() for tensor in tensors]
        own(*wide).backward()
        feeds = [*tensors, *(named[name].detach() for name in result.report.input_names[2:])]
        for engine, outputs in run_engines(result.model_proto, feeds).items():
            got = dict(zip(result.report.output_names, outputs, strict=True))
            wanted = {f"grad.{name}": value.grad for name, value in own.named_parameters()}
            wanted |= {"grad.x": wide[0].grad, "grad.start": wide[1].grad}
            for name, value in wanted.items():
                assert value is not None
                np.testing.assert_allclose(
                    got[name], value.numpy(), rtol=2e-4, atol=2e-6, err_msg=f"{engine} {name} {length}"
                )


def test_the_graph_does_not_grow_with_time() -> None:
    counts = []
    for time in (4, 40):
        layer = nn.LSTM(4, 5)
        result = fx2onnx.export(Whole(layer), given(layer, time), training=fx2onnx.Training(lambda loss: loss))
        counts.append(len(result.model_proto.graph.node))
    assert counts[0] == counts[1]


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.GRU(4, 64, 2, dropout=0.5, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]  # type: ignore[no-any-return]


@pytest.mark.long
def test_dropout_between_layers(tmp_path: Path) -> None:
    """The seed decides; the verification compares with eager PyTorch, layer by layer, under the same masks."""
    torch.manual_seed(0)
    module, x = Dropping().train(), torch.randn(3, 7, 4)
    fx2onnx.export_training(
        module,
        (x,),
        tmp_path,
        loss=lambda outputs: outputs.square().mean(),
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        dropout="seeded",
        dynamic_shapes={"x": {0: "batch", 1: "time"}},
        verify=True,
    )
    losses = {
        (engine, seed): float(Trainer(tmp_path, opened, seed=seed).step({"x": x.numpy()})["loss"])
        for engine, opened in ENGINES.items()
        for seed in (0, 1)
    }
    assert losses["onnxruntime", 0] == pytest.approx(losses["runner", 0], rel=1e-5)
    assert abs(losses["runner", 0] - losses["runner", 1]) > 1e-5
    off = module.eval()(x).square().mean().item()
    assert all(abs(loss - off) > 1e-5 for loss in losses.values())


class Packed(nn.Module):
    """A layer over packed sequences: its padded output, its last states and its rows are used."""

    def __init__(self, layer: nn.RNNBase, is_sorted: bool, total: int | None = None) -> None:
        super().__init__()
        self.layer, self.is_sorted, self.total = layer, is_sorted, total

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        is_first = self.layer.batch_first
        packed = pack_padded_sequence(x.tanh(), lengths, batch_first=is_first, enforce_sorted=self.is_sorted)
        out, last = self.layer(packed)
        padded, _ = pad_packed_sequence(out, batch_first=is_first, padding_value=0.5, total_length=self.total)
        ends = torch.cat([part.flatten() for part in last]) if isinstance(last, tuple) else last.flatten()
        weights = torch.arange(float(padded.shape[-1])).cos().to(padded.dtype)
        return (padded * weights).square().mean() + ends.sin().mean() + out.data.sin().sum()


@pytest.mark.long_cases(but=["lengths0-others0-None-gru"])
@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "projected" not in kind])
@pytest.mark.parametrize(
    ("lengths", "others", "total"), [([6, 4, 1], [[6, 6, 2], [5, 3, 3]], None), ([2, 5, 3], [[1, 6, 6]], 8)]
)
def test_gradients_of_packed_sequences(
    kind: str, lengths: list[int], others: list[list[int]], total: int | None, tmp_path: Path
) -> None:
    """At lengths that are data, in any order, equal to autograd's in float64."""
    torch.manual_seed(0)
    module = Packed(LAYERS[kind](), is_sorted=total is None, total=total).double()
    x, path = given(module.layer)[0].double(), tmp_path / "gradients.onnx"
    wanted = fx2onnx.Training(lambda loss: loss, inputs=("x",))
    fx2onnx.export(module, (x, torch.tensor(lengths)), path, training=wanted)
    parameters = dict(module.named_parameters())
    for one in [lengths, *others]:
        leaf = x.clone().requires_grad_()
        found = torch.autograd.grad(module(leaf, torch.tensor(one)), [leaf, *parameters.values()])
        feeds = {"x": x, "lengths": torch.tensor(one), **parameters}
        for results in run_by_name(path, {name: value.detach().numpy() for name, value in feeds.items()}).values():
            for name, gradient in zip(["x", *parameters], found, strict=True):
                np.testing.assert_allclose(results[f"grad.{name}"], gradient.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("layer", "options", "reason"),
    [
        (nn.LSTM(4, 5, proj_size=3), {}, "projections"),
        (nn.GRU(4, 5, 2, dropout=0.5), {"dropout": "seeded"}, "dropout between its layers"),
    ],
)
def test_packed_sequences_that_are_refused(layer: nn.RNNBase, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(
            Packed(layer, is_sorted=True),
            (given(layer)[0], torch.tensor([6, 4, 1])),
            training=fx2onnx.Training(lambda loss: loss, **options),
        )
    error = caught.value
    assert (error.code, error.module_path) == ("E107", "layer")
    assert reason in str(error)
    assert error.where is not None
    assert "self.layer(packed)" in Path(error.where.file).read_text().splitlines()[error.where.line - 1]


def test_modules_are_as_before() -> None:
    before = torch._VF.lstm, torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence
    layer = nn.LSTM(4, 5)
    fx2onnx.export(Whole(layer), given(layer), training=fx2onnx.Training(lambda loss: loss))
    assert (torch._VF.lstm, torch._VF._pack_padded_sequence, torch._VF._pad_packed_sequence) == before
