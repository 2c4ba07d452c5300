"""Quantised layers of eager PyTorch whose own kernels may overflow: the file is compared with what their codes come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import fx2onnx
from fx2onnx import verify
from fx2onnx.verify.eager import ExactCodes
from fx2onnx.verify.module_state import has_codes, with_own_zero_points

ops = torch.ops.quantized
pytestmark = pytest.mark.filterwarnings("ignore")
GENERATOR = torch.Generator().manual_seed(2)


@pytest.fixture(autouse=True)
def engine() -> Iterator[None]:
    GENERATOR.manual_seed(2)  # the same numbers in any order of tests
    before = torch.backends.quantized.engine
    torch.backends.quantized.engine = "fbgemm" if "fbgemm" in torch.backends.quantized.supported_engines else before
    yield
    torch.backends.quantized.engine = before


def codes(*shape: int, most: int = 40) -> torch.Tensor:
    whole = torch.randint(0, most, shape, generator=GENERATOR).float()
    return torch.quantize_per_tensor(whole * 0.1, 0.1, 3, torch.quint8)


def weight(*shape: int, most: float = 20.0) -> torch.Tensor:
    whole = (torch.rand(shape, generator=GENERATOR) * 2 - 1) * most
    return torch.quantize_per_channel(whole, torch.full(shape[:1], 0.5), torch.zeros(shape[0]).long(), 0, torch.qint8)


BIAS = torch.tensor([1.5, -2.0, 0.5, 3.0])


def product(name: str, rank: int = 0) -> Callable[[], torch.Tensor]:
    """A call of a layer with small codes."""
    if not rank:
        rows, packed = codes(5, 6), ops.linear_prepack(weight(4, 6), BIAS)
        return lambda: getattr(ops, name)(rows, packed, 0.4, 60)
    space, line = [7] * rank, [2] * rank
    numbers = ([2] * rank, [1] * rank, [1] * rank)
    packed = getattr(ops, f"conv{rank}d_prepack")(weight(4, 6, *line), BIAS, *numbers, 1)
    x = codes(2, 6, *space)
    if "add" in name:
        accumulated = codes(2, 4, 4, 4)
        return lambda: getattr(ops, name)(x, accumulated, packed, 0.4, 60)
    return lambda: getattr(ops, name)(x, packed, 0.4, 60)


PRODUCTS = [("linear", 0), ("linear_relu", 0), *((f"conv{rank}d{end}", rank) for rank in (1, 2, 3) for end in ("", "_relu"))]  # fmt: skip


@pytest.mark.parametrize(("name", "rank"), PRODUCTS)
def test_codes_that_do_not_overflow_stay_as_they_are(name: str, rank: int) -> None:
    call = product(name, rank)
    own = call()
    with ExactCodes() as mode:
        kept = call()
    assert mode.overflowed == {}
    assert torch.equal(own.int_repr(), kept.int_repr())
    assert own.int_repr().float().std() > 10


def full(count: int) -> tuple[torch.Tensor, Any]:
    x = torch.quantize_per_tensor(torch.full((1, count), 255.0), 1.0, 0, torch.quint8)
    held = torch.quantize_per_tensor(torch.full((1, count), 127.0), 1.0, 0, torch.qint8)
    return x, ops.linear_prepack(held, None)


def test_codes_that_overflow_are_those_that_the_sum_comes_to() -> None:
    x, packed = full(64)
    own = ops.linear(x, packed, 2.0**16, 0)
    with ExactCodes() as mode:
        found = ops.linear(x, packed, 2.0**16, 0)
    assert int(found.int_repr()) == 32
    assert list(mode.overflowed) == (["quantized::linear"] if int(own.int_repr()) != 32 else [])


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.packed = ops.linear_prepack(weight(4, 16, most=63.0), BIAS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = torch.quantize_per_tensor(x, 0.02, 0, torch.quint8)
        return ops.linear_relu(whole, self.packed, 16.0, 0).dequantize()  # type: ignore[no-any-return]


@pytest.mark.long
def test_a_verdict_names_who_overflows() -> None:
    module, x = Quantised().eval(), torch.rand(3, 16, generator=GENERATOR)
    result = fx2onnx.export(module, (x,))
    verdict = verify(result, module, (x,))
    assert verdict.ok, verdict.describe()
    assert {"large", "far"} <= {each.values for each in verdict.tried}
    own, packed = full(64)
    overflows = int(ops.linear(own, packed, 2.0**16, 0).int_repr()) != 32
    assert any("overflow on this CPU" in note for note in verdict.notes) == overflows
    other = Quantised().eval()
    assert not verify(result, other, (x,)).ok


def test_zero_points_that_nodes_share() -> None:
    zero, weight = (helper.make_tensor(name, TensorProto.INT8, [4], [0] * 4) for name in ("zero", "weight"))
    nodes = [helper.make_node("DequantizeLinear", ["weight", "scale", "zero"], [name], axis=0) for name in ("a", "b")]
    model = helper.make_model(helper.make_graph(nodes, "g", [], [], [zero, weight]))
    assert has_codes(model)
    own = onnx.ModelProto.FromString(with_own_zero_points(model) or b"")
    assert own.graph.node[0].input[2] != own.graph.node[1].input[2]
    assert {value.name for value in own.graph.initializer} >= set(own.graph.node[1].input[2:])
    assert with_own_zero_points(own) is None


@pytest.mark.parametrize("seed", [16, 24, 47])
def test_a_number_in_the_middle_between_two_codes_may_become_either(seed: int) -> None:
    """PyTorch multiplies by 1 / scale, ONNX divides by it; at these seeds they differ, or the sums are off by a last place."""
    torch.manual_seed(seed)
    module = nn.Sequential(nn.Linear(16, 8), nn.ReLU()).eval()
    quantized = torch.ao.quantization.quantize_dynamic(module, {nn.Linear})
    x = torch.randn(2, 16)
    assert fx2onnx.verify(fx2onnx.export(quantized, (x,)), quantized, (x,)).ok


class Joined(nn.Module):
    """Three layers of one input, whose weights an export puts beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(32, size) for size in (32, 32, 48))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part(x) for part in self.parts], -1).tanh()


def with_statistics(module: nn.Module) -> nn.Module:
    for norm in module.modules():
        if isinstance(norm, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(norm.weight, -1.5, 1.5)
            nn.init.normal_(norm.running_mean)  # type: ignore[arg-type]
            nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return module.eval()


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv with a norm": (lambda: nn.Sequential(nn.Conv2d(16, 32, 3, bias=False), nn.BatchNorm2d(32)), (2, 16, 6, 5)),
    "groups with a norm": (lambda: nn.Sequential(nn.Conv2d(32, 32, 3, groups=2), nn.BatchNorm2d(32)), (2, 32, 4, 5)),
    "linear with a norm": (lambda: nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)), (4, 32)),
    "transposed": (lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32, bias=False)), (2, 3, 32)),
    "arranged": (lambda: nn.LSTM(32, 16, batch_first=True), (2, 3, 32)),
    "joined": (Joined, (2, 3, 32)),
}


@pytest.mark.parametrize("kind", ["int8", pytest.param("int4", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", LAYERS)
def test_a_file_that_was_quantized_after_its_export_is_compared_with_rounded_weights(
    name: str, kind: str, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    module, args, path = with_statistics(make()), (torch.randn(shape),), tmp_path / "m.onnx"
    state = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    fx2onnx.export(module, args, path, dynamic_shapes=({0: "n"},))
    fx2onnx.optimize(path, path, quantize=fx2onnx.Quantize(kind, accuracy=False), verify=False)
    verdict = verify(path, module, args, effort="quick")
    assert verdict.ok, verdict.describe()
    assert any("rounded as the file has them" in note for note in verdict.notes)
    assert all(torch.equal(tensor, state[key]) for key, tensor in module.state_dict().items())
    if kind == "int8":
        return
    model = onnx.load(path)
    scale = next(value for value in model.graph.initializer if value.name.endswith("scale"))
    scale.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(scale) * 1.01, scale.name))
    assert not verify(model, module, args, effort="quick").ok


@pytest.mark.parametrize("way", ["export", pytest.param("optimize", marks=pytest.mark.long)])
def test_locate_finds_nothing_in_a_quantized_file(way: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, path = with_statistics(LAYERS["conv with a norm"][0]()), tmp_path / "m.onnx"
    args, quantize = (torch.randn(2, 16, 6, 5),), fx2onnx.Quantize("int8", accuracy=False)
    fx2onnx.export(module, args, path, quantize=quantize if way == "export" else None)
    if way == "optimize":
        fx2onnx.optimize(path, path, quantize=quantize, verify=False)
    assert fx2onnx.locate(path, module, args, effort="quick") is None


def test_rounded_weights_that_the_module_computes_cannot_be_compared(tmp_path: Path) -> None:
    module, args = nn.utils.parametrizations.weight_norm(nn.Linear(32, 32)), (torch.randn(2, 3, 32),)
    fx2onnx.export(module, args, tmp_path / "m.onnx")
    quantize = fx2onnx.Quantize("int8", accuracy=False)
    fx2onnx.optimize(tmp_path / "m.onnx", tmp_path / "q.onnx", quantize=quantize, verify=False)
    with pytest.raises(fx2onnx.VerificationError, match="the module computes it") as raised:
        verify(tmp_path / "q.onnx", module, args, effort="quick").raise_if_failed()
    assert raised.value.code == "E502"
