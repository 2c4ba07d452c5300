"""Quantised layers of eager PyTorch whose own kernels may overflow: the file is compared with what their codes come to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
