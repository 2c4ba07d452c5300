"""Arithmetic, comparison, reduction, sorting and special functions at special values, over opsets; random numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.ops import harness
from tests.ops.judge import case, judge

aten = torch.ops.aten
INF, NAN = math.inf, math.nan
SPECIAL = torch.tensor(
    [NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, 1e-8, -1e-8, 3e38, -3e38, 88.0, 100.0]
)
LEFT, RIGHT = SPECIAL.repeat_interleave(len(SPECIAL)), SPECIAL.repeat(len(SPECIAL))
MIXED = torch.tensor([1.9, -1.9, 2.5, -0.5, 300.7, -300.2, 127.0, 255.9])
BYTES = torch.tensor([0, 1, 127, 128, 255], dtype=torch.uint8)
LONGS = torch.tensor([-(2**62), -7, -1, 0, 1, 7, 2**62 + 1])

UNARY = (
    "abs neg sign exp log sqrt reciprocal sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh erf sigmoid ceil "
)
UNARY += "floor round trunc frac rsqrt square exp2 log2 log10 log1p expm1 erfc sinc special_entr isnan isinf isfinite "
UNARY += (
    "isposinf isneginf signbit nan_to_num logit angle logical_not lgamma digamma erfinv special_ndtri special_log_ndtr "
)
UNARY += "special_erfcx i0 special_i0e special_i1 special_bessel_j0 special_bessel_y0 special_modified_bessel_k1"
BINARY = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor floor_divide maximum minimum fmax fmin pow.Tensor_Tensor atan2 hypot "
)
BINARY += "copysign.Tensor xlogy.Tensor eq.Tensor ne.Tensor lt.Tensor le.Tensor gt.Tensor ge.Tensor isclose logaddexp "
BINARY += "heaviside logical_and logical_xor clamp_min.Tensor clamp_max.Tensor"


def overload(name: str) -> torch._ops.OpOverload:
    packet, _, variant = name.partition(".")
    return getattr(getattr(aten, packet), variant or "default")


@pytest.mark.parametrize("name", UNARY.split())
def test_unary_at_special_values(name):
    judge(case(overload(name), SPECIAL), opsets=(11, 20))


@pytest.mark.parametrize("name", BINARY.split())
def test_binary_at_special_values(name):
    judge(case(overload(name), LEFT, RIGHT), opsets=(11, 20))


INT8_PAIRS = torch.cartesian_prod(torch.arange(-127, 128), torch.arange(-128, 128)).to(torch.int8).T
INT8_PAIRS = INT8_PAIRS[:, INT8_PAIRS[1] != 0].unbind()


def extreme_pairs(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Dividends near both ends of the dtype, and divisors of both signs."""
    info = torch.iinfo(dtype)
    dividends = [info.min, info.min + 1, info.min + 2, -7, 0, 7, info.max - 1, info.max]
    pairs = [(a, b) for a in dividends for b in (2, 3, -3, 100, info.max, -info.max)]
    return torch.tensor([a for a, _ in pairs], dtype=dtype), torch.tensor([b for _, b in pairs], dtype=dtype)


FAR = torch.tensor([-1000.3, -100.7, -30.5, -25.0, -24.9, -1.0, -0.5, 0.0, -0.0, 0.2, 3.0, 1e5, INF, -INF, NAN, 1e-20])
DISTANCES = torch.tensor([3e-16, -2e-14, 1e-12, -1e-12, 7e-9], dtype=torch.float64)
BESIDE_POLES = torch.cat([pole + DISTANCES for pole in (0, -1, -2, -9)])
CASES = [
    *(case(aten.polygamma.default, n, FAR) for n in (0, 1, 2, 3, 6)),
    *(case(aten.polygamma.default, n, BESIDE_POLES) for n in (0, 1, 2, 3)),
    case(aten.polygamma.default, 1, torch.tensor([-8, -1, 0, 3], dtype=torch.int8)),
    *(case(aten.special_zeta.default, torch.full_like(FAR, s), FAR) for s in (0.5, 1.0, 2.0, 2.5, 7.0)),
    case(aten.unique_dim.default, torch.tensor([[2.5, 2.25, 2.5], [1.0, 1.0, 1.0]]).bfloat16(), -1, True, True, True),
    case(aten.sum.default, torch.full((400,), 1.5).bfloat16()),
    case(aten.margin_ranking_loss.default, BYTES, BYTES.flip(0), BYTES, 0.5, 2),
    case(aten.triplet_margin_loss.default, BYTES[None], BYTES.flip(0)[None], BYTES[None] + 9, 1.0, swap=True),
    case(aten.pow.Tensor_Scalar, SPECIAL, 2.0, nodes=1),
    case(aten.pow.Tensor_Scalar, SPECIAL, 0.5, nodes=1),
    case(aten.pow.Tensor_Scalar, SPECIAL, -1.7, nodes=1),
    case(aten.clamp.default, SPECIAL, -1, 1, nodes=1),
    case(aten.clamp.default, SPECIAL, 0.5, None, nodes=1),
    case(aten.clamp.default, SPECIAL, 2, 1),
    case(aten.add.Tensor, BYTES, BYTES),
    case(aten.sub.Tensor, BYTES, BYTES.flip(0)),
    case(aten.add.Tensor, BYTES > 1, BYTES > 100, nodes=1),
    case(aten.bitwise_and.Tensor, LONGS, LONGS.flip(0)),
    case(aten.bitwise_xor.Tensor, BYTES, BYTES.flip(0)),
    case(aten.bitwise_right_shift.Tensor, LONGS, torch.tensor([1, 2, 3, 4, 5, 6, 63])),
    case(aten.bitwise_left_shift.Tensor, BYTES, torch.tensor([1, 2, 3, 4, 8], dtype=torch.uint8)),
    case(aten.remainder.Scalar, torch.tensor([-7, 7, 0]), -3),
    case(aten.div.Tensor_mode, torch.tensor([-7, 7, 0]), torch.tensor([2, -2, 5]), rounding_mode="floor"),
    case(aten.div.Tensor_mode, torch.tensor([-7.5, 7.5, 1.0]), torch.tensor([2.0, -2.0, 0.1]), rounding_mode="floor"),
    *(case(aten.div.Tensor_mode, *INT8_PAIRS, rounding_mode=mode) for mode in ("floor", "trunc")),
    *(case(overload, *INT8_PAIRS) for overload in (aten.floor_divide.default, aten.remainder.Tensor, aten.fmod.Tensor)),
    *(
        case(overload, *extreme_pairs(dtype))
        for overload in (aten.floor_divide.default, aten.fmod.Tensor, aten.remainder.Tensor)
        for dtype in (torch.int16, torch.int32, torch.int64)
    ),
    case(aten.where.self, BYTES > 1, BYTES > 100, BYTES > 0),
    case(aten.where.ScalarOther, BYTES > 1, torch.ones(5), 0.0, nodes=1),
    case(aten.masked_fill.Scalar, torch.ones(5), BYTES > 1, -1e9, nodes=1),
    case(aten.argmax.default, torch.tensor([[1.0, NAN, 3.0], [5.0, 2.0, 5.0]]), 1),
    case(aten.argmax.default, torch.randn(2, 3), None, True),
    case(aten.sum.dim_IntList, torch.ones(2, 3, dtype=torch.int32), [], nodes=2),
    case(aten.mean.dim, torch.randn(2, 3, 4), [-1, 0], nodes=1),
    case(aten.mean.default, torch.zeros(0)),
    case(aten.var.correction, torch.randn(3, 1), [1], correction=1),
    case(aten.std.correction, torch.randn(3, 5), [1], correction=2.5),
    case(aten.all.default, torch.zeros(0, dtype=torch.bool)),
    case(aten.median.default, torch.tensor([1.0, NAN, 3.0])),
    case(aten.nanmedian.default, torch.tensor([1.0, NAN, 3.0, 2.0])),
    case(aten.sort.stable, torch.tensor([3, 1, 3, 1, 2]), stable=True, dim=0, descending=True),
    case(aten.cumsum.default, BYTES, 0),
    case(aten.cummax.default, torch.tensor([1.0, NAN, 3.0, 3.0]), 0),
    case(aten.searchsorted.Tensor, torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([2.0, NAN, INF, 0.0]), right=True),
    case(aten.arange.start_step, 0, 1, 0.1),
    case(aten.quantile.scalar, torch.tensor([[-INF, 0.0, INF, 2.5], [1.0, 2.0, INF, -INF]]), 0.3, 1),
    case(aten.quantile.scalar, torch.tensor([[-INF, 0.0, INF, 2.5], [1.0, 2.0, INF, -INF]]), 0.1, 1),
    case(aten.quantile.scalar, torch.tensor([[-INF, -INF, 1.0, 2.0], [1.0, INF, INF, -INF]]), 0.1, 1),
    case(aten.quantile.scalar, torch.tensor([[-INF, -INF, 1.0, 2.0], [1.0, 2.0, INF, INF]]), 0.9, 1, interpolation="midpoint"),
    case(aten.nanquantile.scalar, torch.tensor([[-INF, -INF, 1.0, math.nan], [math.nan, 2.0, INF, INF]]), 1.0, 1),
    case(aten.sum.dim_IntList, torch.zeros(3, 0), [1]),
    case(aten.var.correction, torch.zeros(3, 0), [1]),
    case(aten.linspace.default, 0, 10, 4, dtype=torch.int64),
    case(aten.cross.default, torch.randn(3, 4), torch.randn(3, 4)),
    case(aten.einsum.default, "ij,jk", [torch.randn(2, 3), torch.randn(3, 4)], nodes=1, since=11),
    case(aten.complex.default, torch.randn(3), torch.randn(3)),
    case(aten.fft_rfft.default, torch.randn(2, 8)),
    case(aten.fft_irfft.default, torch.randn(2, 5, dtype=torch.complex64), 7),
    *(case(aten.to.dtype, MIXED, dtype) for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool)),
]  # fmt: skip


@pytest.mark.parametrize("given", CASES, ids=str)
def test_corner(given):
    judge(given)


MOMENTS = [
    (aten.rand.default, ([20000],), 0.5, 1 / math.sqrt(12)),
    (aten.randn.default, ([20000],), 0.0, 1.0),
    (aten.randint.low, (3, 10, [20000]), 6.0, 2.0),
    (aten.normal.float_float, (2.0, 3.0, [20000]), 2.0, 3.0),
    (aten.bernoulli.p, (torch.zeros(20000), 0.3), 0.3, math.sqrt(0.21)),
    (aten.uniform.default, (torch.zeros(20000), 2.0, 5.0), 3.5, 3 / math.sqrt(12)),
    (aten.exponential.default, (torch.zeros(20000), 2.0), 0.5, 0.5),
    (aten.multinomial.default, (torch.tensor([1.0, 2.0, 3.0, 4.0]), 20000, True), 2.0, 1.0),
]


@pytest.mark.parametrize(("function", "args", "mean", "deviation"), MOMENTS, ids=lambda item: str(item)[:20])
def test_random_numbers_have_their_distribution(function, args, mean, deviation):
    """20000 numbers: mean and deviation within 6 standard errors (the runtime's seed is its own)."""
    model = harness.build(harness.call_of(function, *args))
    (numbers,) = harness.run_onnxruntime(model)
    error = 6 * deviation / math.sqrt(20000)
    assert abs(numbers.astype(float).mean() - mean) < error
    assert abs(numbers.astype(float).std() - deviation) < 2 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_lgamma_is_exactly_nothing_at_one_and_two(dtype):
    x = torch.tensor([1.0, 2.0, 1.0 - 2.0**-20], dtype=dtype)
    got = InferenceSession(fx2onnx.export(Lgamma(), (x,)).model_proto.SerializeToString()).run(None, {"x": x.numpy()})[
        0
    ]
    assert got[0] == got[1] == 0
    np.testing.assert_allclose(got[2], torch.lgamma(x.double())[2], rtol=1e-6)


class Lgamma(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.lgamma(x)
