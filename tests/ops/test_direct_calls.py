"""Overloads that are called directly, and operators with ``out=``, at several sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fx2onnx
import fx2onnx.runner
from tests.support import check

aten, prims = torch.ops.aten, torch.ops.prims
Program = Callable[..., Any]
torch.manual_seed(0)
X, LONGER = torch.randn(4, 3), torch.randn(6, 3)


def both_ways(program: Program, args: tuple[Any, ...], shapes: list[Any], *others: tuple[Any, ...]) -> None:
    """Export with static sizes, and with those of ``shapes`` dynamic, where each of ``others`` runs, too."""
    check(program, args)
    check(program, args, others=others, dynamic_shapes=tuple(shapes))


def into(program: Program, *size: int, dtype: torch.dtype = torch.float32) -> Program:
    """``program`` with a tensor of that size to write into, and what it holds then."""

    def run(x: torch.Tensor) -> Any:
        out = torch.zeros(size, dtype=dtype)
        result = program(x, out)
        return out * 2, result

    return run


@pytest.mark.parametrize(
    "program",
    [
        into(lambda x, out: torch.add(x, 1, out=out), 0),
        into(lambda x, out: torch.cat([x, x], out=out), 4, 3),
        into(lambda x, out: torch.mul(x, x, out=out), 4, 3),
        into(lambda x, out: torch.sum(x, 1, out=out)),
        into(lambda x, out: torch.nonzero(x > 0, out=out), 0, dtype=torch.int64),
        into(lambda x, out: torch.add(x, 1, out=torch.add(x[:2], 1, out=out)), 0),
        into(lambda x, out: torch.arange(x.shape[0], out=out), 0, dtype=torch.int32),
        into(lambda x, out: torch.arange(0.5, x.shape[0], 0.5, out=out), 2),
        into(lambda x, out: torch.range(0, x.shape[0], out=out), 0),
        into(lambda x, out: torch.linspace(0, 1, x.shape[0], out=out), 4),
        into(lambda x, out: torch.logspace(0, 1, x.shape[0], out=out), 0),
        into(lambda x, out: torch.eye(x.shape[0], out=out), 0),
        into(lambda x, out: torch.full((x.shape[0], 2), 2.5, out=out), 0),
        into(lambda x, out: aten.zeros.out([x.shape[0]], out=out), 0),
    ],
)
def test_out_has_the_size_of_the_result(program: Program) -> None:
    both_ways(program, (X,), [{0: "b"}], (LONGER,))


def test_two_results_into_two_tensors() -> None:
    def largest(x: torch.Tensor) -> Any:
        values, places = torch.empty(0), torch.empty(0, dtype=torch.int64)
        torch.topk(x, 2, out=(values, places))
        return values * 2, places

    both_ways(largest, (X,), [{0: "b"}], (LONGER,))


MADE = {"dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False}


@pytest.mark.parametrize(
    "program",
    [
        lambda x: prims.iota(x.shape[0], start=1, step=2, **MADE),
        lambda x: prims.collapse(x[None], 0, 1),
        lambda x: prims.collapse_view(x[None], 0, 2) * 2,
        lambda x: prims.split_dim(x, 0, 2),
        lambda x: prims.view_of(x) + 1,
        lambda x: (lambda y: (prims.view_of(y).add_(1), y)[1])(x.clone()),
        lambda x: prims.prod(x, [0, 1]),
        lambda x: prims.squeeze(x[None, :, :, None], [0, 3]),
        lambda x: prims.broadcast_in_dim(x, [2, x.shape[0], 3], [1, 2]),
        lambda x: prims.as_strided(x, [2, 3], [3, 1], 1),
        lambda x: prims.copy_to(x.clone(), x + 1),
        lambda x: prims.fft_r2c(x, dim=[1], onesided=True),
    ],
)
def test_prims_are_the_calls_that_they_stand_for(program: Program) -> None:
    both_ways(program, (X,), [{0: "b"}], (LONGER,))


LAST = {"memory_format": torch.channels_last}
IMAGES, MORE = (torch.randn(count, 3, 4, 5).to(**LAST) for count in (2, 3))


@pytest.mark.parametrize("is_contiguous", [False, True])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: x.as_strided((2, 3), (3, 1)),
        lambda x: x.as_strided(x.shape, x.stride()) * 2,
        lambda x: x[:, 1:].as_strided((2, 5), (7, 2)),
        lambda x: x.contiguous().to(**LAST).relu().as_strided((2, 5), (7, 2), 3),
        lambda x: x.transpose(1, 3).as_strided((2, 5), (7, 2)),
        lambda x: (lambda y: (y.as_strided((2, 3), (3, 1)).zero_(), y)[1])(x.clone()),
        lambda x: (x * 1)[:, 1:].as_strided_((2, 3), (3, 1)),
        lambda x: torch.as_strided_copy(x[1:], (2, 3), (3, 1)),
        lambda x: torch.as_strided_scatter(x, torch.ones(2, 3), (2, 3), (3, 1)),
        lambda x: torch.as_strided_scatter(x[:, 1:], torch.ones(2, 3), (2, 3), (3, 1), 1),
    ],
)
def test_strides_count_in_the_storage(program: Program, is_contiguous: bool) -> None:
    images, more = (given.contiguous() if is_contiguous else given for given in (IMAGES, MORE))
    both_ways(program, (images,), [{0: "b"}], (more,))


INT8 = torch.tensor([[1, -3, 100], [7, 0, -128]], dtype=torch.int8)
SCALES, ZEROS = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2], dtype=torch.int32)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 3, 0, 15),
        lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[0], ZEROS[1], 0, 255),
        lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 1, 0, 255),
        lambda x: aten.fake_quantize_per_tensor_affine_cachemask.default(x, 0.1, 3, 0, 10),
        lambda x: aten._fake_quantize_learnable_per_tensor_affine.default(x, SCALES[:1], SCALES[1:2] + 2.3, 0, 255),
        lambda x: aten._fake_quantize_learnable_per_channel_affine.default(x, SCALES, SCALES * 5, 1, 0, 255),
        lambda x: aten._make_per_tensor_quantized_tensor((x * 9).to(torch.int8), 0.25, 1).relu().dequantize(),
        lambda x: aten._make_per_channel_quantized_tensor((x * 9).to(torch.int8), SCALES, ZEROS.long(), 1).dequantize(),
        lambda x: aten._make_per_tensor_quantized_tensor((x * 9).to(torch.uint8), 0.1, 3).int_repr(),
    ],
)
def test_fake_quantisation_of_any_size(program: Program) -> None:
    both_ways(program, (X.abs(),), [{0: "b"}], (LONGER.abs(),))


class Observed(torch.nn.Module):
    """What an observer of quantisation-aware training sees, and what it makes of it."""

    def __init__(self, observes: int, rounds: int, is_by_row: bool, is_symmetric: bool) -> None:
        super().__init__()
        ones = torch.ones(4 if is_by_row else 1)
        self.register_buffer("least", -ones)
        self.register_buffer("most", 2 * ones)
        self.register_buffer("scale", ones.clone())
        self.register_buffer("zero", torch.zeros_like(ones, dtype=torch.int32))
        self.register_buffer("flags", torch.tensor([observes, rounds]))
        self.ways = 0.1, *((-128, 127) if is_symmetric else (0, 255)), 0, is_by_row, is_symmetric

    def forward(self, x: torch.Tensor) -> Any:
        state = self.least, self.most, self.scale, self.zero
        return torch.fused_moving_avg_obs_fake_quant(x, *self.flags.unbind(), *state, *self.ways), *state


@pytest.mark.parametrize("ways", [(1, 1, False, False), (1, 1, True, True), (0, 1, False, True), (1, 0, True, False)])
def test_an_observer_sees_the_range_and_rounds_by_it(ways: tuple[int, int, bool, bool]) -> None:
    check(Observed(*ways), (X,), others=[(torch.randn(4, 7),)], dynamic_shapes=({1: "n"},))
    if not ways[2]:
        check(Observed(*ways), (X * 0,))


TIMES, KERNEL, BIAS = torch.randn(6, 2, 4), torch.randn(3, 4, 5), torch.randn(5)


@pytest.mark.parametrize("pad", [0, 2])
def test_convolutions_of_time_first(pad: int) -> None:
    def convolved(x: torch.Tensor) -> torch.Tensor:
        return torch.conv_tbc(x, KERNEL, BIAS, pad)

    both_ways(convolved, (TIMES,), [{0: "t", 1: "b"}], (torch.randn(9, 3, 4),), (torch.randn(3, 1, 4),))


FLOAT8, HALF = torch.float8_e4m3fn, torch.tensor(0.5)
ROWS, COLUMNS = torch.randn(16, 32), torch.randn(16, 32)


@pytest.mark.parametrize(
    ("arguments", "shapes"),
    [
        ((HALF, HALF, None, None, torch.float32), {0: "m"}),
        ((HALF, HALF, torch.ones(16, dtype=torch.bfloat16), None, torch.bfloat16), None),
        ((ROWS.abs().amax(1, keepdim=True), COLUMNS.abs().amax(1)[None], None, None, torch.bfloat16), None),
        ((HALF, HALF), None),
    ],
)
def test_products_of_float8(arguments: tuple[Any, ...], shapes: Any) -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return aten._scaled_mm.default(x.to(FLOAT8), COLUMNS.to(FLOAT8).t(), *arguments).float()

    check(product, (ROWS,), others=[(ROWS.repeat(2, 1),)] if shapes else [], dynamic_shapes=(shapes,), rtol=1e-2)


@pytest.mark.parametrize("draw", [torch.randn_like, torch.rand_like, lambda x: x.clone().normal_()])
def test_complex_draws_have_the_spread_of_pytorchs(draw: Program) -> None:
    x = torch.zeros(40, 500, dtype=torch.complex64)
    result = fx2onnx.export(lambda x: torch.view_as_real(draw(x)), (x,))
    (drawn,) = fx2onnx.runner.InferenceSession(result.model_proto.SerializeToString()).run(
        None, {"x": np.zeros((40, 500, 2), np.float32)}
    )
    expected = torch.view_as_real(draw(x))
    np.testing.assert_allclose(drawn.std((0, 1)), expected.std((0, 1)), rtol=0.05)
    np.testing.assert_allclose(drawn.mean((0, 1)), expected.mean((0, 1)), atol=0.02)


EDGES = torch.tensor([[0.0, -0.0, 1.5, -3.25e7, 1e-40, -1e-45, float("inf"), -float("inf")]]).repeat(2, 1)
WHOLE = torch.tensor([[0, -1, 127, -128, 5, 77, 100, -3]]).repeat(2, 1)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@pytest.mark.parametrize("target", [*DTYPES, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("source", [torch.float64, torch.float32, torch.float16, torch.int64, torch.int16, torch.uint8])
def test_views_of_the_same_bits(source: torch.dtype, target: torch.dtype) -> None:
    given = (EDGES if source.is_floating_point else WHOLE).to(source)

    def viewed(x: torch.Tensor) -> torch.Tensor:
        seen = x.view(target)
        return torch.view_as_real(seen) if target.is_complex else seen.float() if target == torch.bfloat16 else seen

    if source != target:
        check(viewed, (given,), others=[(given[:1, [2, 3] * 8],)], dynamic_shapes=({0: "b", 1: "n"},), rtol=0, atol=0)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (lambda y: (y.view(torch.int32).bitwise_and_(0x7FFFFFFF), y)[1])(x.clone()),
        lambda x: (lambda y: (y.view(torch.int16)[..., 1].bitwise_and_(0x7FFF), y)[1])(x.clone()),
        lambda x: (x.view(torch.int32) >> 23) - 127,
        lambda x: torch.complex(x, x * 2).view(torch.float32).view(torch.int16),
        lambda x: x.sum().view(torch.int32),
        lambda x: x.to(torch.bfloat16).view(torch.int16),
    ],
)
def test_bits_are_read_and_written(program: Program) -> None:
    both_ways(program, (X,), [{0: "b"}], (LONGER,))
