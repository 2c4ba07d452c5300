"""Modules on a GPU, where there is one: the file is the one of the same module on the CPU, and is right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fx2onnx
from fx2onnx.irx.data_file import BUFFER_BYTES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
GPU = torch.device("cuda")


class Convolutions(nn.Module):
    """What cuDNN computes: convolutions, batch norm, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.MaxPool2d(2))
        self.last = nn.Sequential(nn.ConvTranspose2d(16, 8, 2, 2), nn.GroupNorm(2, 8), nn.Hardswish())
        self.turned = nn.Parameter(torch.randn(40, 8).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.first(x))
        return F.interpolate(y, scale_factor=2.0, mode="bilinear").mean((2, 3)) @ self.turned


class Recurrent(nn.Module):
    """What cuDNN computes from one flat weight."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 10, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(20, 6, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, last = self.gru(self.lstm(x)[0])
        return y, last


class Attention(nn.Module):
    """What has kernels of its own on a GPU, and constants made there."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 32)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2, enable_nested_tensor=False
        )
        self.register_buffer("turns", torch.polar(torch.ones(64, 4), torch.randn(64, 4)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        length = ids.shape[1]
        places = torch.arange(length, device=ids.device)
        x = self.table(ids) + torch.sin(places)[:, None] / 10
        mask = torch.full((length, length), float("-inf"), device=ids.device).triu(1)
        x = self.encoder(x, mask=mask, is_causal=True)
        q = x.view(*x.shape[:2], 4, 8).transpose(1, 2)
        pairs = torch.view_as_complex(q.reshape(*q.shape[:-1], 4, 2)) * self.turns[:length]
        q = torch.view_as_real(pairs).flatten(-2)
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)


class Narrow(nn.Module):
    """Products in float16 by autocast, as models run on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.layers(x).softmax(-1)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], dict[int, str]]] = {
    "convolutions": (Convolutions, lambda: torch.randn(2, 3, 32, 32), {0: "batch", 2: "height", 3: "width"}),
    "recurrent": (Recurrent, lambda: torch.randn(2, 7, 12), {0: "batch", 1: "time"}),
    "attention": (Attention, lambda: torch.randint(0, 30, (2, 9)), {0: "batch", 1: "length"}),
    "autocast": (Narrow, lambda: torch.randn(3, 24), {0: "batch"}),
}


def fresh(name: str) -> tuple[nn.Module, torch.Tensor, tuple[dict[int, str]]]:
    made, sample, dynamic = MODULES[name]
    torch.manual_seed(0)
    return made().eval(), sample(), (dynamic,)


@pytest.mark.parametrize("name", sorted(MODULES.keys() - {"autocast"}))  # which casts other operators on a GPU
@pytest.mark.parametrize("sample", ["cpu", "cuda"])
def test_the_file_is_the_one_of_the_cpu(name: str, sample: str, tmp_path: Path) -> None:
    module, x, dynamic = fresh(name)
    fx2onnx.export(module, (x,), tmp_path / "here.onnx", dynamic_shapes=dynamic, metadata="none")
    module.to(GPU)
    fx2onnx.export(module, (x.to(sample),), tmp_path / "there.onnx", dynamic_shapes=dynamic, metadata="none")
    assert {parameter.device.type for parameter in module.parameters()} == {"cuda"}
    assert (tmp_path / "there.onnx").read_bytes() == (tmp_path / "here.onnx").read_bytes()


@pytest.mark.parametrize("name", MODULES)
def test_it_is_verified_there(name: str, tmp_path: Path) -> None:
    module, x, dynamic = fresh(name)
    module.to(GPU)
    fx2onnx.export(module, (x.to(GPU),), tmp_path / "m.onnx", dynamic_shapes=dynamic, verify=True)


@pytest.mark.parametrize("name", MODULES)
def test_weights_alone_are_read_there_and_piece_by_piece(name: str, tmp_path: Path) -> None:
    module, x, dynamic = fresh(name)
    module.to(GPU)
    x = x.to(GPU)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    fx2onnx.export(module, (x,), tmp_path / "m.onnx", dynamic_shapes=dynamic)
    assert torch.cuda.max_memory_allocated() - before <= BUFFER_BYTES


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_modules_are_right(dtype: torch.dtype, tmp_path: Path) -> None:
    module, x, dynamic = fresh("convolutions")
    module.to(GPU, dtype)
    result = fx2onnx.export(module, (x.to(GPU, dtype),), tmp_path / "m.onnx", dynamic_shapes=dynamic, verify=True)
    assert result.report.verdict["ok"] is True


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_weights_there_are_quantised_as_here(quantize: str, tmp_path: Path) -> None:
    module, x, dynamic = fresh("attention")
    fx2onnx.export(module, (x,), tmp_path / "here.onnx", dynamic_shapes=dynamic, metadata="none", quantize=quantize)
    there = tmp_path / "there.onnx"
    fx2onnx.export(module.to(GPU), (x.to(GPU),), there, dynamic_shapes=dynamic, metadata="none", quantize=quantize)
    assert there.read_bytes() == (tmp_path / "here.onnx").read_bytes()


def test_training_goes_on_from_there(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)).to(GPU)
    fx2onnx.export_training(
        module,
        (torch.randn(5, 8, device=GPU),),
        tmp_path / "training",
        loss=lambda scores: scores.square().mean(),
        optimizer=torch.optim.AdamW(module.parameters(), 1e-3),
        verify=True,
    )


def test_a_wrong_node_is_found_with_the_module_there(tmp_path: Path) -> None:
    import onnx

    from fx2onnx import locate

    module, x, dynamic = fresh("convolutions")
    module.to(GPU)
    fx2onnx.export(module, (x.to(GPU),), tmp_path / "m.onnx", dynamic_shapes=dynamic)
    model = onnx.load(tmp_path / "m.onnx")
    wrong = next(node for node in model.graph.node if node.op_type == "Sigmoid")
    wrong.op_type = "Tanh"
    onnx.save(model, tmp_path / "m.onnx")
    first = locate(tmp_path / "m.onnx", module, (x.to(GPU),))
    assert first is not None
    assert wrong.name in first.nodes
