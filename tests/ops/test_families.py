"""Every family of operators through the whole export: one line a call, in both engines, against eager PyTorch.

The corners are in the samples: no elements, rank 0, negative dims, ties, NaN, infinities and -0.0, integer overflow,
broadcasting, views; a line with other samples marks its sizes dynamic and is right at those, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.support import check

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
INF, NAN = float("inf"), float("nan")
X, Y = R(4, 6), R(3, 4, 5)
INTS, B = torch.randint(-9, 9, (4, 6)), X > 0
N = T([[1.0, NAN, 3.0, -0.0], [INF, -INF, 0.0, 2.5], [-1.5, 0.5, -2.5, 3.5]])
POINT, NONE = T(2.5), torch.zeros(3, 0)
S = R(2, 4, 4) + 5 * torch.eye(4)
P = S @ S.mT
IMAGE, VOLUME = R(1, 2, 8, 7), R(1, 2, 5, 6, 7)
Q, K = R(2, 4, 3, 8), R(2, 4, 5, 8)
TARGETS = T([[1, 2], [0, 4], [2, 3]])
BYTES = T([0, 1, 127, 128, 255], dtype=torch.uint8)
CHARS = T([-128, -1, 0, 1, 127], dtype=torch.int8)
SIDES = T([[0.0, -0.0, 3.0, -3.0, 7.0, INF], [1.0, -1.0, -2.0, 2.0, NAN, 1.0]])
TIES = T([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 0.0]])
Line = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


def each(names: str, *arguments: torch.Tensor, **keywords: Any) -> list[Line]:
    """A line for each named function of torch."""

    def line(name: str) -> Callable[..., Any]:
        function = functools.reduce(getattr, name.split("."), torch)
        return lambda *given: function(*given, **keywords)

    return [(line(name), arguments) for name in names.split()]


FAMILIES: dict[str, list[Line]] = {
    "pointwise": [
        *each("abs ceil exp expm1 floor frac log1p neg reciprocal relu round sigmoid sign sqrt square tanh trunc erf", N),
        *each("asinh atan cos cosh deg2rad erfc exp2 isfinite isnan logit nan_to_num rsqrt sgn signbit sin sinc tan", N),
        *each("add mul sub maximum minimum fmax fmin atan2 copysign hypot div fmod remainder heaviside", *SIDES),
        *each("gcd lcm bitwise_and bitwise_or bitwise_xor floor_divide maximum", INTS, INTS.flip(0).abs() + 1),
        *each("add mul sub bitwise_and", BYTES, BYTES.flip(0)),
        *each("add mul abs neg", CHARS)[2:],
        (lambda x: (x << 2, x >> 1, x // 3, x % 3, x**2, -x, x * 1.5, x / 2, ~x), (INTS,)),
        (lambda x, y: (x + y, x * y, x - y, x > y), (T([2**62, -(2**63), 7]), T([2**62, -1, 7]))),
        (lambda x, y: (x + y, x * y, x | y, x ^ y, torch.where(x, y, x), x == y, ~x), (B, ~B.flip(0))),
        (lambda x: torch.round(x, decimals=1), (N,)),
        (lambda x: (x.clamp(-1, 1), x.clamp(min=0.5), x.clamp(2, 1), torch.clip(x, max=T(0.3))), (N,)),
        (lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, x, y, value=2) + torch.addcdiv(x, x, y), (X, X.exp())),
        (lambda x, y: (torch.xlogy(x, y), torch.logaddexp(x, y), torch.logaddexp2(x, y)), (N.abs(), N.flip(0).abs())),
    ],
    "special": [
        *each("lgamma digamma i0 special.i0e special.i1 special.bessel_j0 special.erfcx", T([0.01, 0.3, 1.0, 7.0, 40.0])),
        *each("erfinv special.ndtri special.log_ndtr special.entr", T([0.001, 0.3, 0.5, 0.999])),
        (lambda x: (torch.polygamma(2, x), torch.special.zeta(x + 1.5, x), torch.mvlgamma(x + 2, 2)), (T([0.3, 1.0, 9.0]),)),
        *each("special.gammainc special.gammaincc", T([0.3, 1.0, 9.0]), T([0.5, 2.0, 8.0])),
    ],
    "reductions": [
        *each("sum mean prod amax amin std var nansum argmax argmin count_nonzero median", X),
        *each("sum mean prod amax std logsumexp argmax nanmean any", X, dim=-2, keepdim=True),
        *each("sum prod any all argmax amax", INTS, dim=0),
        *each("sum any all cumsum", B, dim=1),
        *each("sum mean prod nansum all any logsumexp", NONE, dim=1),
        *each("sum mean prod amax argmax std cumsum softmax", POINT, dim=0),
        (lambda x: torch.argmax(x, keepdim=True), (X,)),
        (lambda x: [torch.var(x, 1, correction=c) for c in (0, 2, 0.5)] + list(torch.std_mean(x, (0, 1))), (X,)),
        (lambda x: [torch.linalg.vector_norm(x, p, 1) for p in (0, 1, 2, 3, INF, -INF)], (X,)),
        (lambda x: [torch.linalg.matrix_norm(x, p) for p in ("fro", "nuc", 1, -1, 2, INF)], (Y,)),
        (lambda x: (torch.aminmax(x), torch.median(x, 1), torch.nanmedian(x), torch.mode(x.round(), 1)[0]), (X,)),
        (lambda x: (torch.kthvalue(x, 3, 1), torch.quantile(x, T([0.1, 0.7]), 1), torch.nanquantile(x, 0.3)), (X,)),
        (lambda x: (torch.renorm(x, 2, 0, 1.5), F.normalize(x), torch.cov(x), torch.corrcoef(x)), (X,)),
    ],
    "scans": [
        *each("cumsum cumprod cummax cummin logcumsumexp", X, dim=1),
        *each("cumsum cumprod cummax cummin", N, dim=-1),
        *each("cumsum cumprod cummax", INTS, dim=0),
        (lambda x: (torch.diff(x), torch.diff(x, 2, 0), torch.trapezoid(x), torch.cumulative_trapezoid(x)), (X,)),
        (lambda x: torch.gradient(x, spacing=0.5, dim=1), (X,)),
    ],
    "sorting and searching": [
        (lambda x: torch.sort(x, dim=1, stable=True, descending=True), (TIES,)),
        (lambda x: torch.sort(x, stable=True), (TIES > 1,)),
        (lambda x: (torch.topk(x, 2, -1, False)[0], torch.topk(x, 0), torch.argsort(x, stable=True), torch.msort(x)), (INTS,)),
        (lambda s, v: (torch.searchsorted(s, v), torch.searchsorted(s, v, right=True)), (X.sort(1)[0], R(4, 3))),
        (lambda x: torch.bucketize(x, T([-1.0, 0.0, 0.0, 2.0]), right=True), (N,)),
        (lambda x: torch.unique(x, return_inverse=True, return_counts=True), (INTS,)),
        (lambda x: torch.unique(x, dim=1, return_counts=True), (TIES,)),
        (lambda x: torch.unique_consecutive(x, return_inverse=True, return_counts=True), (T([1, 1, 2, 2, 3, 1]),)),
        (lambda x: (torch.histc(x, 5, -1, 1), torch.histogram(x, 4)), (X,)),
        (lambda x, y: (torch.isin(x, y), torch.isin(x, y, invert=True), torch.isin(x, 3)), (INTS, T([1, 3]))),
        (lambda x: (torch.bincount(x, minlength=7), x.nonzero(), torch.argwhere(x > 1)), (T([1, 3, 3, 0]),)),
    ],
    "linear algebra": [
        *[
            (torch.matmul, (R(*left), R(*right)))
            for left, right in (((4,), (4,)), ((4,), (2, 4, 5)), ((1, 2, 3, 4), (3, 1, 4, 2)), ((3, 0), (0, 4)), ((0, 4), (4, 3)))
        ],
        *[
            (lambda *given, equation=equation: torch.einsum(equation, *given), tuple(R(*shape) for shape in shapes))
            for equation, shapes in (
                ("ij,jk->ik", ((2, 3), (3, 4))),
                ("ii->i", ((3, 3),)),
                ("b...d,d...->b...", ((2, 3, 4), (4, 3))),
                ("bn,anm,bm->ba", ((2, 5), (3, 5, 4), (2, 4))),
            )
        ],
        (lambda x, y: (torch.tensordot(x, y, 2), torch.kron(x[0], y[0])), (R(2, 3, 4), R(3, 4, 5))),
        (lambda x, y: (torch.outer(x, y), torch.inner(x, y), torch.vdot(x, y), torch.cross(x, y, 0)), (R(3), R(3))),
        (lambda x: (torch.det(x), torch.slogdet(x), torch.logdet(x @ x.mT), torch.inverse(x)), (S,)),
        (lambda x: [torch.linalg.matrix_power(x / 5, k) for k in (0, 1, 3, -2)] + [torch.matrix_exp(x / 5)], (S,)),
        (lambda x, y: (torch.linalg.solve(x, y), torch.linalg.solve(x, y.mT, left=False)), (S, R(2, 4, 3))),
        (lambda x, y: torch.linalg.solve_triangular(x, y, upper=True, unitriangular=True), (S, R(2, 4, 3))),
        (lambda x, y: (torch.linalg.cholesky(x), torch.cholesky_solve(y, torch.linalg.cholesky(x))), (P, R(2, 4, 3))),
        (lambda x: (torch.linalg.lu(x), torch.linalg.qr(x)[0].abs(), torch.linalg.eigvalsh(x @ x.mT)), (S,)),
        (lambda x: (torch.tril(x), torch.triu(x, 1), torch.diagonal(x, 1), torch.diag_embed(x), torch.trace(x)), (X,)),
        (lambda x, y: [torch.cdist(x, y, p) for p in (0.0, 1.0, 2.0, 3.5, INF)] + [F.pdist(x)], (X, R(3, 6))),
        (lambda i, x, y: (torch.addmm(i, x, y, beta=0), torch.addmm(i, x, y, alpha=2)), (N[:, 3], R(2, 4), R(4, 3))),
    ],
    "convolution": [
        (lambda x, w: F.conv1d(x, w, None, 2, 1, 2, 2), (R(2, 4, 9), R(6, 2, 3))),
        (lambda x, w: F.conv2d(x, w, padding="same", dilation=2), (R(2, 8, 7), R(3, 2, 2, 3))),
        (lambda x, w: F.conv3d(x, w, padding=1), (VOLUME, R(3, 2, 2, 2, 2))),
        (lambda x, w: F.conv_transpose1d(x, w, None, 2, 1, 1, 2), (R(2, 4, 5), R(4, 3, 3))),
        (lambda x, w, b: F.conv_transpose2d(x, w, b, 2, (1, 0), (1, 0), dilation=2), (IMAGE, R(2, 3, 3, 2), R(3))),
        (lambda x, w: F.conv_transpose3d(x, w), (VOLUME, R(2, 1, 2, 2, 2))),
        (lambda x: (F.unfold(x, 3, 1, 1, 2), F.fold(F.unfold(x, 2), (8, 7), 2)), (IMAGE,)),
    ],
    "pooling": [
        (lambda x: F.max_pool2d(x, 3, 2, 1, 2, True, return_indices=True), (IMAGE,)),
        (lambda x: F.avg_pool2d(x, 3, 2, 1, True, False, 5), (IMAGE,)),
        (lambda x: (F.avg_pool3d(x, 2, 2, 1, True), F.max_pool3d(x, 2, 2, 1)), (VOLUME,)),
        (lambda x: (F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_max_pool2d(x, (5, 3), return_indices=True)), (IMAGE,)),
        (lambda x: (F.adaptive_avg_pool3d(x, (3, 4, None)), F.adaptive_max_pool1d(x[0, 0, 0], 4)), (VOLUME,)),
        (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, 2, return_indices=True), 2, 2, 0, x.shape), (IMAGE,)),
        (lambda x: (F.lp_pool2d(x, 2, 3), F.avg_pool1d(x[0], 2, ceil_mode=True)), (IMAGE,)),
    ],
    "normalisation": [
        (lambda x, w, b: F.batch_norm(x, w, w.exp(), w, b), (IMAGE, R(2), R(2))),
        (lambda x: F.batch_norm(x, None, None, training=True, eps=1e-3), (IMAGE,)),
        (lambda x, w: (F.group_norm(x, 2, w), F.instance_norm(x, weight=w)), (IMAGE, R(2))),
        (lambda x, w: (F.layer_norm(x, (6,), w), F.layer_norm(x, (4, 6)), F.rms_norm(x, (6,), w)), (X, R(6))),
        (lambda x: F.local_response_norm(x, 2, k=1.25), (IMAGE,)),
    ],
    "activations": [
        *each(
            "nn.functional.elu nn.functional.selu nn.functional.celu nn.functional.silu "
            "nn.functional.mish nn.functional.softplus nn.functional.softsign nn.functional.hardswish "
            "nn.functional.hardsigmoid nn.functional.hardtanh nn.functional.relu6 nn.functional.leaky_relu "
            "nn.functional.logsigmoid nn.functional.tanhshrink nn.functional.hardshrink nn.functional.softshrink",
            N,
        ),
        (lambda x, w: (F.prelu(x, w), F.glu(x, 1), F.threshold(x, 0.2, -3), F.gelu(x, approximate="tanh")), (X, R(6))),
        (lambda x: (F.softmax(x, 1), F.log_softmax(x, 0), F.softmin(x, -1), F.softmax(x, 0, torch.float64)), (X,)),
    ],
    "losses": [
        *[
            (lambda x, y, w, how=how, smooth=smooth: F.cross_entropy(x, y, w, None, 2, reduction=how, label_smoothing=smooth),
             (R(3, 5, 2), TARGETS, torch.rand(5)))
            for how in ("none", "mean", "sum") for smooth in (0.0, 0.1)
        ],
        (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), (R(3, 5), torch.softmax(R(3, 5), 1))),
        (lambda x, y: (F.mse_loss(x, y), F.l1_loss(x, y), F.smooth_l1_loss(x, y), F.huber_loss(x, y)), (X, R(4, 6))),
        (lambda x, y: (F.kl_div(x, y), F.poisson_nll_loss(x, y), F.gaussian_nll_loss(x, y, y)), (X, torch.rand(4, 6))),
        (lambda x, y: (F.binary_cross_entropy_with_logits(x, y), F.binary_cross_entropy(x.sigmoid(), y)), (X, B.float())),
        (lambda x, y, z: (F.triplet_margin_loss(x, y, z), F.cosine_embedding_loss(x, y, z[:, 0].sign())), (X, R(4, 6), R(4, 6))),
        (lambda x, y: (F.multi_margin_loss(x, y), F.nll_loss(x, y), F.multilabel_margin_loss(x[0], y[:1].expand(6)), F.multilabel_margin_loss(x[0], y[:1].expand(6), reduction="none")), (X, T([1, 0, 2, 5]))),
    ],
    "embedding": [
        (lambda i, w: F.embedding(i, w, padding_idx=1), (TARGETS, R(5, 3))),
        *[
            (lambda i, w, mode=mode: F.embedding_bag(i, w, T([0, 2, 2]), mode=mode, include_last_offset=False),
             (T([1, 2, 0, 4]), R(5, 3)))
            for mode in ("sum", "mean", "max")
        ],
        (lambda i: F.one_hot(i, 6), (TARGETS,)),
    ],
    "padding and sampling": [
        *[(lambda x, mode=mode: F.pad(x, (1, 2, 3, 0), mode), (IMAGE,)) for mode in ("constant", "reflect", "replicate", "circular")],
        (lambda x: (F.pad(x, (-1, 2), value=NAN), F.pad(x, (1, 1, -2, 0))), (X,)),
        *[
            (lambda x, mode=mode, align=align: F.interpolate(x, None, (1.7, 0.6), mode, align), (IMAGE,))
            for mode in ("bilinear", "bicubic") for align in (False, True)
        ],
        *[(lambda x, mode=mode: F.interpolate(x, (5, 11), mode=mode), (IMAGE,)) for mode in ("nearest", "nearest-exact", "area")],
        (lambda x: F.interpolate(x, (5, 4), mode="bilinear", antialias=True), (IMAGE,)),
        (lambda x: F.interpolate(x, scale_factor=1.5, mode="trilinear", recompute_scale_factor=True), (VOLUME,)),
        *[
            (lambda x, g, mode=mode, pad=pad: F.grid_sample(x, g, mode, pad, align_corners=True), (IMAGE, torch.rand(1, 3, 4, 2) * 2.6 - 1.3))
            for mode in ("bilinear", "nearest", "bicubic") for pad in ("zeros", "border", "reflection")
        ],
        (lambda x, g: F.grid_sample(x, g, align_corners=False), (VOLUME, torch.rand(1, 2, 3, 4, 3) * 2 - 1)),
        (lambda t: F.affine_grid(t, (2, 3, 4, 5), False), (R(2, 2, 3),)),
        (lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x[..., :4], 2), F.channel_shuffle(x, 2)), (R(1, 4, 6, 8),)),
    ],
    "indexing": [
        (lambda x, i: (x[i], x[:, i], x[..., None, 1], x[1:, ::2], x[i, i], x[[0, -1]], x[-1]), (X, T([0, -1, 3]))),
        (lambda x, m: (x[m], x[:, m[0]], x.masked_fill(m, -1), torch.masked_select(x, m), x.masked_scatter(m, x)), (X, B)),
        (lambda x, i: (x.gather(1, i), x.scatter(1, i, 2.0), x.take(i), torch.take_along_dim(x, i, 1)), (X, T([[0, 5], [1, 1], [2, 0], [5, 5]]))),
        (lambda x, i, s: (x.index_add(0, i, s, alpha=2), x.index_copy(0, i[1:], s[1:]), x.index_fill(0, i, 3)), (X, T([1, 0, 3]), R(3, 6))),
        (lambda x, i, s: [x.index_reduce(0, i, s, how, include_self=False) for how in ("prod", "mean", "amax", "amin")], (X, T([1, 1, 3]), R(3, 6))),
        (lambda x, i, s: (x.index_put((i, i), s), x.index_put((i,), s[0], accumulate=True), x.put(i, s)), (X, T([1, 0, 1]), R(3))),
        (lambda x: (x.roll(2, 1), x.flip(0), x.rot90(), x.diagonal(1), x.tril(-1), x.unfold(1, 3, 2), x.as_strided((3, 3), (1, 2), 1)), (X,)),
        (lambda x, s: (x.select_scatter(s, 1, -2), x.diagonal_scatter(s, 1), x.slice_scatter(x[:, :3], 1, 0, 6, 2)), (X, R(4))),
        (lambda x: (x.t(), x.mT[:, 1:], x.reshape(-1), x.unsqueeze(-1).expand(4, 6, 2), x.repeat(2, 1), x.repeat_interleave(2, 1), x.tile(2)), (X.T.contiguous().T,)),
        (lambda x: (*x.split([1, 2, 3], 1), *x.chunk(3), *x.unbind(0), *torch.tensor_split(x, 4, 1), *torch.meshgrid(x[0], x[:, 0], indexing="ij")), (X,)),
        (lambda x: (torch.arange(0, 1, 0.1), torch.linspace(0, 1, 4), torch.logspace(0, 1, 3), torch.eye(3), torch.full_like(x, 2), x.new_ones(2)), (X,)),
        (lambda a, b: (torch.linspace(a, b, 5), torch.linspace(a, 3, 1), torch.linspace(0, b, 4, dtype=torch.int64)), (T(1.0), T(5.0))),
    ],
    "attention": [
        (lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m), (Q, K, T([[True] * 5, [False] * 5, [True, False, True, True, False]]))),
        (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True, scale=0.3), (Q, K)),
        (lambda q, k: F.scaled_dot_product_attention(q, k[:, :2], k[:, :2], enable_gqa=True), (Q, K)),
        (lambda q, k, m: F.scaled_dot_product_attention(q[0], k[0], k[0, ..., :3], m), (Q, K, R(3, 5))),
    ],
    "casts": [
        (lambda x: [x.to(dtype) for dtype in (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.float16, torch.float64)],
         (T([1.9, -1.9, 2.5, -0.5, 127.0, 100.2, 65504.0])[:6],)),
        (lambda x: [x.to(dtype) for dtype in (torch.int8, torch.uint8, torch.int16, torch.float32, torch.bool)], (T([-1, 300, 2**40 + 5, 0]),)),
        (lambda x: (x.bfloat16().float(), x.half().float(), x.double()), (R(50) * 100,)),
    ],
}  # fmt: skip
LINES = [pytest.param(*line, id=f"{family}-{place}") for family, lines in FAMILIES.items() for place, line in enumerate(lines)]  # fmt: skip


@pytest.mark.long_cases("padding and sampling-20", "padding and sampling-21", "padding and sampling-22")
@pytest.mark.parametrize(("function", "arguments"), LINES)
def test_family(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> None:
    check(function, arguments, opset_version=20, rtol=1e-3, atol=2e-4)


OLD = ("pointwise", "reductions", "scans", "sorting and searching", "linear algebra", "convolution", "pooling")
OLD += ("normalisation", "activations", "losses", "attention", "indexing", "casts")
OLDER = [pytest.param(*line, id=f"{family}-{place}") for family in OLD for place, line in enumerate(FAMILIES[family])]


@pytest.mark.parametrize(("function", "arguments"), OLDER)
def test_family_in_old_opsets(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> None:
    check(function, arguments, opset_version=13, rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize("order", [0.0, 1.0, 2.0, 3.5, INF])
def test_rows_of_no_numbers_are_at_distance_0(order: float) -> None:
    sizes = {"x": {0: "rows", 1: "features"}, "y": {0: "others", 1: "features"}}
    check(lambda x, y: torch.cdist(x, y, order), (R(3, 4), R(2, 4)), others=[(R(3, 0), R(2, 0))], dynamic_shapes=sizes)
