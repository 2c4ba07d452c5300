"""What exporters are known to get wrong, or to leave out though plain nodes say it: one line each, in both engines."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests.ops.judge import Case, aten, case, judge

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
X, Y = R(4, 6), R(3, 6)
INTS = torch.randint(-9, 9, (4, 6))
BOOLS = X > 0
Q, K, V = R(2, 3, 4, 8), R(2, 3, 5, 8), R(2, 3, 5, 8)
SOLID = R(2, 4, 4) + 6 * torch.eye(4)
DEFINITE = SOLID @ SOLID.mT
POSITIVE = T([0.01, 0.3, 1.0, 2.5, 7.0, 40.0])
SMOOTH = (1e-4, 1e-4)

WRONG = [
    case(aten.batch_norm.default, R(4, 3, 5), R(3), R(3), R(3), R(3).abs(), True, 0.1, 1e-5, False),
    case(aten.native_batch_norm.default, R(4, 3, 5), R(3), R(3), R(3), R(3).abs(), True, 0.1, 1e-5),
    case(aten.avg_pool2d.default, R(1, 2, 7, 7), [3, 3], [2, 2], [1, 1], True, False, 5),
    case(aten.avg_pool3d.default, R(1, 2, 5, 5, 5), [2, 2, 2], [2, 2, 2], [1, 1, 1], False, True, 3),
    case(aten.cross.default, R(3, 5), R(3, 5)),
    case(aten.cross.default, R(2, 3), R(2, 3)),
    case(aten.argmin.default, X, None, True),
    case(aten.argmax.default, X, None, True),
    case(aten.linspace.Tensor_Tensor, T(0.0), T(5.0), 7),
    case(aten.linspace.Tensor_Scalar, T(1.0), 5.0, 7),
    case(aten.linspace.Scalar_Tensor, 1.0, T(-5.0), 7),
    case(aten.scaled_dot_product_attention.default, Q, K, V, torch.rand(4, 5) > 0.4),
    case(aten.scaled_dot_product_attention.default, Q, K, V, torch.zeros(4, 5, dtype=torch.bool)),
    *(case(aten.scatter_reduce.two, X, 0, torch.randint(0, 4, (4, 6)), R(4, 6), "mean", include_self=own) for own in (True, False)),
    *(
        case(aten._upsample_bilinear2d_aa.vec, R(1, 2, 9, 11), size, align, scales, tolerance=SMOOTH)
        for align, (size, scales) in itertools.product((False, True), (([5, 6], None), (None, [0.7, 1.3])))
    ),
    case(aten.special_log_ndtr.default, T([-100.0, -20.0, -5.0, -1.0, 0.0, 1.0, 5.0, 20.0])),
]  # fmt: skip
LEFT_OUT = [
    *(case(aten.cdist.default, X, Y, p) for p in (0.0, 1.0, 2.0, 3.5, float("inf"))),
    *(case(aten.pdist.default, X, p) for p in (1.0, 2.0, float("inf"))),
    *(case(overload, X, 1) for overload in (aten.cummax.default, aten.cummin.default, aten.cumprod.default)),
    *(case(overload, X, 1) for overload in (aten.median.dim, aten.nanmedian.dim, aten.mode.default)),
    case(aten.kthvalue.default, X, 3, 1),
    case(aten.sort.stable, INTS, stable=True, dim=1, descending=True),
    case(aten.masked_select.default, X, BOOLS),
    case(aten.searchsorted.Tensor, X.sort(1)[0], R(4, 3)),
    case(aten.isin.Tensor_Tensor, INTS, T([1, 2, 3])),
    case(aten.histogram.bin_ct, X, 5),
    case(aten.histc.default, X, 5, -2, 2),
    *(case(aten.index_reduce.default, X, 0, T([0, 2, 2]), Y, reduce) for reduce in ("amax", "amin")),
    *(case(aten.index_reduce.default, X, 0, T([0, 2, 2]), Y, reduce) for reduce in ("mean", "prod")),
    case(aten.put.default, X, T([[1, 2], [-1, 5]]), R(2, 2)),
    *(case(overload, X, R(4, 6)) for overload in (aten.copysign.Tensor, aten.fmax.default, aten.fmin.default, aten.hypot.default)),
    case(aten.gcd.default, INTS, INTS.flip(0)),
    case(aten.lcm.default, INTS, INTS.flip(0)),
    case(aten.cov.default, X),
    case(aten.corrcoef.default, X),
    case(aten.unique_consecutive.default, T([1, 1, 2, 2, 3, 1, 1]), True, True),
    *(case(aten.adaptive_avg_pool2d.default, R(1, 2, 7, 9), size) for size in ([3, 4], [9, 2])),
    *(case(aten.adaptive_max_pool2d.default, R(1, 2, 7, 9), size) for size in ([3, 4], [5, 5])),
    case(aten.grid_sampler_3d.default, R(1, 2, 3, 4, 5), torch.rand(1, 2, 3, 2, 3) * 2 - 1, 0, 0, False, since=20),
    case(aten.cross_entropy_loss.default, X, torch.softmax(R(4, 6), 1), None, 1, -100, 0.1),
    case(aten.slogdet.default, SOLID),
    case(aten.linalg_matrix_exp.default, SOLID / 6, tolerance=SMOOTH),
    case(aten.as_strided.default, X, [3, 3], [1, 2], 1),
    case(aten.diagonal_scatter.default, X, R(4), 0, 0, 1),
    case(aten.add.Tensor, BOOLS, ~BOOLS),
    case(aten.where.self, BOOLS, BOOLS, ~BOOLS),
    case(aten.sort.default, BOOLS, 1),
    case(aten._unique2.default, BOOLS),
    *(case(overload, POSITIVE) for overload in (aten.lgamma.default, aten.digamma.default, aten.special_bessel_j0.default, aten.i0.default)),
    case(aten.polygamma.default, 3, POSITIVE),
    case(aten.erfinv.default, T([-0.99, -0.3, 0.0, 0.5, 0.999])),
    case(aten.special_ndtri.default, T([0.001, 0.3, 0.5, 0.9])),
    case(aten.igamma.default, POSITIVE, POSITIVE.flip(0)),
    case(aten.igammac.default, POSITIVE, POSITIVE.flip(0)),
    case(aten.special_chebyshev_polynomial_t.default, X, T([0, 1, 2, 3, 4, 5])),
    case(aten.special_legendre_polynomial_p.default, X.tanh(), T([0, 1, 2, 3, 4, 5])),
    case(aten.linalg_cholesky.default, DEFINITE),
    case(aten.linalg_inv.default, SOLID),
    case(aten.linalg_solve.default, SOLID, R(2, 4, 3)),
    case(aten.linalg_lu.default, SOLID),
    case(aten.linalg_qr.default, SOLID),
    case(aten.linalg_solve_triangular.default, SOLID.triu(), R(2, 4, 3), upper=True),
]  # fmt: skip


@pytest.mark.parametrize("given", WRONG, ids=str)
def test_known_wrong_elsewhere(given: Case) -> None:
    judge(given)


@pytest.mark.long_cases("igammac.default(float32[6],float32[6])")
@pytest.mark.parametrize("given", LEFT_OUT, ids=str)
def test_left_out_elsewhere(given: Case) -> None:
    judge(given, opsets=(11, 18, 20, 23))
