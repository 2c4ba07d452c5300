"""Operators through the whole export: calls whose result types PyTorch's fake tensors do not tell, and dynamic sizes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.base.errors import UserError
from tests.support import Engines, check

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
X, SAMPLES = R(4, 6), torch.rand(7, 2)
EDGES = [T([0.0, 0.3, 1.0]), T([0.0, 0.5, 0.9])]
EDGE = torch.cat([torch.linspace(0, 1, n) for n in (8, 14, 18, 24)])
EDGE = torch.cat([EDGE, EDGE.nextafter(T(9.0)), EDGE.nextafter(T(-9.0))])

TYPED_BY_ARGUMENTS: list[tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = [
    (torch.cov, (X,)),
    (torch.corrcoef, (X,)),
    (torch.cov, (X[:1],)),
    (torch.corrcoef, (X[0],)),
    (lambda x, f, a: torch.cov(x, fweights=f, aweights=a), (X, T([1, 2, 1, 3, 1, 1]), torch.rand(6))),
    (lambda x: torch.cov(x, correction=0), (torch.arange(6).view(2, 3),)),
    (lambda x, y: torch.linalg.lstsq(x, y, driver="gelsd"), (R(5, 3), R(5, 2))),
    (lambda x, y: torch.linalg.lstsq(x, y, driver="gels").solution, (R(2, 5, 3), R(2, 5))),
    (lambda x, y: torch.linalg.lstsq(x, y)[::2], (R(3, 5), R(3, 1))),
    (torch.combinations, (R(5),)),
    (lambda x: torch.combinations(x, 3, with_replacement=True), (R(4),)),
    (lambda x: torch.combinations(x, 3), (R(2),)),
    (lambda p, t: F.ctc_loss(p.log_softmax(-1), t, (9, 7), (3, 2), reduction="none"), (R(9, 2, 5), T([[1, 2, 3], [2, 4, 0]]))),
    (lambda p, t, n, m: F.ctc_loss(p.log_softmax(-1), t, n, m), (R(9, 2, 5), T([1, 2, 3, 2, 4]), T([9, 7]), T([3, 2]))),
    (lambda x: torch.histogramdd(x, 3), (SAMPLES,)),
    (lambda x, w: torch.histogramdd(x, [2, 3], range=[0.0, 1.0, 0.0, 0.5], weight=w, density=True), (SAMPLES, torch.rand(7))),
    (lambda x: torch.histogramdd(x, EDGES), (SAMPLES,)),
    (lambda m, t, v: F.gaussian_nll_loss(m, t, v, full=True), (R(5), R(5), torch.rand(5))),
    (lambda x: [(torch.linspace(0, 1, n) * (n - 1)).long() + x for n in (4, 7, 13, 40, 2001)], (T(0),)),
    (lambda x: [(torch.arange(0, 3, 3 / n) * n / 3).long() + x for n in (19, 25, 40)], (T(0),)),
    (lambda x: [torch.linspace(a, b, 7, dtype=torch.int64) + x for a, b in ((-20, 30), (5, -9))], (T(0),)),
    (lambda x: [torch.histc(x, 17, -0.7, 1.3), torch.histc(x, 5)], (EDGE * 2 - 0.7,)),
    (torch.mm, (T([[1.0], [math.inf], [math.nan]]), T([[0.0]]))),
    (lambda x: [torch.histogram(x, n, range=(0, 1))[0] for n in (7, 13, 23)], (EDGE,)),
]  # fmt: skip


@pytest.mark.parametrize(("function", "arguments"), TYPED_BY_ARGUMENTS)
def test_types_that_only_the_arguments_tell(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> None:
    for opset in (13, 20):
        check(function, arguments, opset_version=opset)


OF_DYNAMIC_SIZES: list[tuple[Callable[..., Any], int]] = [
    (torch.cov, 6),
    (torch.corrcoef, 6),
    (lambda x: torch.histogram(x, 4), 2),
    (lambda x: torch.histogram(x, torch.tensor([-1.0, 0.0, 0.5])), 2),
    (lambda x: torch.histogramdd(x, [2, 3]), 2),
    (lambda x: torch.masked_select(x, x > 0), 3),
    (lambda x: torch.bincount((x * 3).abs().long().flatten()), 3),
]


@pytest.mark.parametrize(("function", "columns"), OF_DYNAMIC_SIZES)
def test_types_of_dynamic_sizes(function: Callable[..., Any], columns: int) -> None:
    check(function, (R(5, columns),), others=[(R(3, columns),), (R(9, columns),)], dynamic_shapes=({0: "rows"},))


OF_NO_ROWS: list[Callable[..., Any]] = [
    lambda x: (x.logcumsumexp(1), x.cummin(1).indices),
    lambda x: torch.gcd(x.long(), T(12)),
    lambda x: torch.special.gammainc(x.abs() + 1, x.abs()),
    lambda x: torch.special.chebyshev_polynomial_t(x / 9, 3),
]


@pytest.mark.parametrize("function", OF_NO_ROWS)
def test_loops_and_scans_end_on_no_rows(function: Callable[..., Any]) -> None:
    check(function, (R(5, 4),), others=[(R(0, 4),), (R(1, 4),)], dynamic_shapes=({0: "rows"},))


@pytest.mark.parametrize("function", [torch.floor_divide, torch.fmod, lambda x, y: x % y])
def test_integers_divided_by_zero_are_an_error_in_every_engine(function: Callable[..., Any]) -> None:
    engines = Engines(fx2onnx.export(lambda x, y: function(x, y), (T([7, -7]), T([2, 3]))).model_proto)
    for session in engines.sessions.values():
        with pytest.raises(Exception, match=r"(?i)zero"):
            session.run(None, {"x": np.int64([7, -7]), "y": np.int64([2, 0])})


def test_least_squares_of_two_dynamic_sizes_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="singular values of a matrix of size m") as caught:
        fx2onnx.export(
            lambda x, y: torch.linalg.lstsq(x, y)[0], (R(5, 3), R(5, 2)), dynamic_shapes=({0: "n", 1: "m"}, {0: "n"})
        )
    assert caught.value.code == "E203"


@pytest.mark.parametrize("data_branches", ["if", "error"])
def test_what_torch_itself_refuses_is_taken_for_right(data_branches: str) -> None:
    """``gaussian_nll_loss`` raises where a variance is negative: the file does not, and says so."""
    result = check(F.gaussian_nll_loss, (R(5), R(5), torch.rand(5)), data_branches=data_branches)
    assert any("%any_default is false" in str(text) for text in result.report.assumptions), result.report


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


@pytest.mark.parametrize("opset", [11, 16, 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32])
def test_scatter_reduces_in_every_opset(dtype: torch.dtype, opset: int) -> None:
    """Several writes to one place, an index smaller than the source, another number of writes than the sample's."""

    def forward(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> list[torch.Tensor]:
        kinds = [(reduce, own) for reduce in REDUCTIONS for own in (True, False)]
        scattered = [torch.scatter_reduce(x, 1, index, source, reduce, include_self=own) for reduce, own in kinds]
        rows = index[:, 0]
        added = [x.index_add(0, rows, source[:, :5]), x.index_put((rows, rows), source[:, 0], accumulate=True)]
        return scattered + added

    def given(writes: int) -> tuple[torch.Tensor, ...]:
        return (
            (R(5, 5) * 4).to(dtype),
            torch.randint(0, 5, (writes, 3)),
            (R(writes, 6) * 3).to(dtype),
        )

    dims = {0: torch.export.Dim("writes", max=5)}
    others = [given(5), given(1)]
    check(
        forward, given(4), others=others, opset_version=opset, dynamic_shapes=(None, dims, dims), rtol=2e-3, atol=1e-2
    )


POOLS: list[Callable[[torch.Tensor], Any]] = [
    *(
        lambda x, given=given, own=own: F.avg_pool2d(x, *given, True, *own)
        for given in ((3, 2, 1), (2, 3, 0), (3, 3, 1), (4, 3, 2))
        for own in ((True,), (False,), (False, 5))
    ),
    *(
        lambda x, given=given: F.max_pool2d(x, *given, ceil_mode=True, return_indices=True)
        for given in ((3, 2, 1), (2, 3, 0), (3, 3, 1), (2, 2, 1, 2))
    ),
    *(
        lambda x, count=count: F.adaptive_max_pool2d(x, count, return_indices=True)
        for count in (1, 3, (1, 4), (2, None), [None, 3])
    ),
    *(lambda x, count=count: F.adaptive_avg_pool2d(x, count) for count in (1, 3, (1, 4))),
]


@pytest.mark.parametrize("pool", POOLS)
def test_pools_of_dynamic_sizes(pool: Callable[[torch.Tensor], Any]) -> None:
    """ceil_mode decides by the size whether there is one window more; adaptive windows are of any size."""
    others = [(R(1, 2, rows, columns),) for rows, columns in ((9, 10), (6, 11), (12, 13))]

    def with_sizes(x: torch.Tensor) -> list[torch.Tensor]:
        """What was pooled, and ones of its sizes, which the file computes."""
        pooled = torch.utils._pytree.tree_leaves(pool(x))
        return [*pooled, torch.ones(pooled[0].shape)]

    check(with_sizes, (R(1, 2, 8, 7),), others=others, dynamic_shapes=({2: "rows", 3: "columns"},), opset_version=13)


SCALED = [
    *({"scale_factor": factor, "mode": mode} for factor in ((1.7, 0.6), (2.3, 0.45), 3.1, 2) for mode in ("nearest", "nearest-exact")),
    *({"size": (82, 41), "mode": mode} for mode in ("nearest", "nearest-exact")),
    {"scale_factor": (0.7, 1.3), "mode": "nearest", "recompute_scale_factor": True},
    {"scale_factor": 1.7, "mode": "bilinear"},
    {"scale_factor": 0.6, "mode": "bicubic", "align_corners": True},
]  # fmt: skip


@pytest.mark.parametrize("given", SCALED, ids=str)
def test_images_of_dynamic_sizes_are_scaled(given: dict[str, Any]) -> None:
    """Which element is nearest depends on float32's rounding, which ONNX's formula does elsewhere than PyTorch's."""
    others = [(R(1, 2, rows, columns),) for rows, columns in ((10, 7), (31, 17), (2, 3))]
    sizes = {2: "rows", 3: "columns"}
    check(lambda x: F.interpolate(x, **given), (R(1, 2, 8, 6),), others=others, dynamic_shapes=(sizes,), atol=1e-4)


def test_bytes_are_interpolated_in_opset_11() -> None:
    image = torch.randint(0, 255, (1, 2, 8, 6)).byte()
    check(lambda x: F.interpolate(x, (5, 5), mode="bilinear"), (image,), opset_version=11)


@pytest.mark.parametrize("shapes", [None, ({0: "batch"},)])
@pytest.mark.parametrize("between", [lambda x: x, F.relu])
@pytest.mark.parametrize("given", [{"size": (2, 5)}, {"scale_factor": 4}])
def test_images_with_channels_last_are_resized(given: Any, between: Any, shapes: Any) -> None:
    """onnxruntime moves transposes through a Resize, and takes sizes of some axes for sizes of all."""
    check(
        lambda x: F.interpolate(between(x.permute(0, 3, 1, 2)), mode="bilinear", **given).permute(0, 2, 3, 1),
        (R(2, 4, 4, 8),),
        dynamic_shapes=shapes,
    )


@pytest.mark.parametrize("keepdim", [False, True])
def test_sums_of_a_hash_keep_64_bits(keepdim: bool) -> None:
    """onnxruntime adds int64 as float64."""
    powers = torch.tensor([1_000_000_007**i for i in range(2)] + [2**61 - 1])
    hashes = lambda x: torch.sum(x.unfold(-1, 3, 1) * powers, dim=-1, keepdim=keepdim) % 997  # noqa: E731
    check(
        hashes,
        (torch.randint(1, 2**40, (2, 9)),),
        others=[(torch.randint(1, 2**40, (3, 5)),)],
        dynamic_shapes=({0: "b", 1: "t"},),
    )
