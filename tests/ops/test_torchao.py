"""torchao's affine quantisation. The operators are torchao 0.18's; where it is not installed, they are defined here with
its schemas and its formula."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.ops import harness
from tests.ops.judge import case, judge

QUANTIZE = (
    "quantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType output_dtype, "
    "Scalar? quant_min=None, Scalar? quant_max=None) -> Tensor"
)
DEQUANTIZE = (
    "dequantize_affine(Tensor input, SymInt[] block_size, Tensor scale, Tensor? zero_point, ScalarType input_dtype, "
    "Scalar? quant_min=None, Scalar? quant_max=None, ScalarType output_dtype=6) -> Tensor"
)
LIBRARY: list[torch.library.Library] = []


def spread(values: torch.Tensor | None, shape: Sequence[int], block_size: Sequence[int]) -> Any:
    """One number a block as one an element."""
    if values is None:
        return 0
    values = values.reshape([size // inside for size, inside in zip(shape, block_size, strict=True)])
    for axis, inside in enumerate(block_size):
        values = values.repeat_interleave(inside, axis)
    return values


def quantize(x: Any, block_size: Any, scale: Any, zero: Any, dtype: Any, low: Any = None, high: Any = None) -> Any:
    limits = torch.iinfo(dtype)
    steps = torch.round(x * (1 / spread(scale, x.shape, block_size))) + spread(zero, x.shape, block_size)
    return steps.clamp(limits.min if low is None else low, limits.max if high is None else high).to(dtype)


def dequantize(
    x: Any,
    block_size: Any,
    scale: Any,
    zero: Any,
    kind: Any,
    low: Any = None,
    high: Any = None,
    dtype: Any = torch.float32,
) -> Any:
    return ((x.float() - spread(zero, x.shape, block_size)) * spread(scale, x.shape, block_size)).to(dtype)


if importlib.util.find_spec("torchao") is not None:
    import torchao.quantization.quant_primitives
else:
    LIBRARY.append(torch.library.Library("torchao", "FRAGMENT"))
    for schema, function in ((QUANTIZE, quantize), (DEQUANTIZE, dequantize)):
        LIBRARY[0].define(schema)
        LIBRARY[0].impl(schema.partition("(")[0], function, "CompositeImplicitAutograd")

torchao = torch.ops.torchao
torch.manual_seed(0)
X = torch.randn(4, 8)
CODES = torch.randint(-8, 8, (4, 8), dtype=torch.int8)
GRANULARITIES = {"tensor": ([4, 8], ()), "row": ([1, 8], (4, 1)), "column": ([4, 1], (8,)), "group": ([1, 4], (4, 2)), "tile": ([2, 4], (2, 2))}  # fmt: skip
QDQ = {"tensor": 11, "row": 13, "column": 13, "group": 21}
"""From which opset on dequantising is one DequantizeLinear."""


@pytest.mark.parametrize("zero", [False, True])
@pytest.mark.parametrize("granularity", GRANULARITIES)
def test_quantised_in_blocks(granularity: str, zero: bool) -> None:
    block_size, shape = GRANULARITIES[granularity]
    scale = torch.rand(shape) * 0.2 + 0.05
    zeros = torch.randint(-3, 3, shape)
    opsets = (11, 13, 17, 20, 21, 23)
    judge(case(torchao.quantize_affine.default, X, block_size, scale, zeros, torch.int8), opsets)
    judge(case(torchao.quantize_affine.default, X, block_size, scale, zeros, torch.int8, -8, 7), opsets)
    judge(
        case(torchao.dequantize_affine.default, CODES, block_size, scale, zeros if zero else None, torch.int8), opsets
    )


@pytest.mark.parametrize("granularity", QDQ)
def test_one_dequantize_linear(granularity: str) -> None:
    block_size, shape = GRANULARITIES[granularity]
    call = harness.call_of(
        torchao.dequantize_affine.default, CODES, block_size, torch.rand(shape) + 0.1, None, torch.int8
    )
    for opset in (11, 13, 20, 21, 23):
        assert ("DequantizeLinear" in harness.build(call, opset).op_types) == (opset >= QDQ[granularity])


def test_a_module_with_torchao_operators_exports_as_q_and_dq() -> None:
    import fx2onnx

    def forward(x: torch.Tensor) -> torch.Tensor:
        codes = torchao.quantize_affine(x, [1, 8], torch.full((4,), 0.1), torch.zeros(4, dtype=torch.int8), torch.int8)
        return torchao.dequantize_affine(codes, [1, 8], torch.full((4,), 0.1), None, torch.int8)

    result = fx2onnx.export(forward, (X,))
    assert [node.op_type for node in result.model.graph] == ["QuantizeLinear", "DequantizeLinear"]
    assert result.report.resorts == {}


def test_the_largest_number_of_a_row_rounds_as_in_eager_pytorch() -> None:
    """It is 127.5 steps where the scale is of the row itself."""
    import fx2onnx
    from fx2onnx import verify
    from tests.verify.given import Given

    def forward(x: torch.Tensor) -> torch.Tensor:
        scale = x.abs().amax(-1) / 127.5
        return torchao.quantize_affine(x, [1, 32], scale, None, torch.int8).to(torch.int32)

    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))
    result = fx2onnx.export(Given(forward), (x,))
    verdict = verify(result, Given(forward), (x,), seeds=(1,))
    assert verdict.ok, verdict.describe()
    assert {row.by for row in verdict.rows if row.inputs in ("sample", "seed 1")} == {"equality"}
