"""Dynamic sizes: the model made at one size is right at another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.ops import harness

aten = torch.ops.aten
SIZES = (("batch", 7, 5), ("length", 11, 13))


def tensors(batch: int, length: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(batch * 100 + length)
    x = torch.randn(batch, length, 3, generator=generator)
    square = torch.randn(batch, length, length, generator=generator)
    return {
        "x": x,
        "i": torch.randint(0, 9, (batch, length), generator=generator),
        "b": x > 0,
        "q": x[:, :, 0].contiguous(),
        "p": x.abs() + 0.1,
        "square": square,
        "lower": torch.tril(square) + 6 * torch.eye(length),
        "definite": square @ square.mT + torch.eye(length),
    }


Case = Callable[..., tuple[Any, ...]]
CASES: list[Case] = [
    lambda n, m, x, q, **_: (aten.add.Tensor, x, q[:, :, None]),
    lambda n, m, x, **_: (aten.rsub.Scalar, x, 1.0),
    lambda n, m, x, **_: (aten.pow.Tensor_Scalar, x, 0),
    lambda n, m, x, **_: (aten.floor_divide.default, x, 0.3),
    lambda n, m, x, **_: (aten.clamp.default, x, 0.0, 1.0),
    lambda n, m, x, b, **_: (aten.where.ScalarOther, b, x, 0.0),
    lambda n, m, x, b, **_: (aten.masked_fill.Scalar, x, b, -1e9),
    lambda n, m, i, **_: (aten.isnan.default, i),
    lambda n, m, **_: (aten.zeros.default, [n, m]),
    lambda n, m, x, **_: (aten.new_ones.default, x, [n, 4, m]),
    lambda n, m, **_: (aten.full.default, [n, 1, m], 3.5),
    lambda n, m, i, **_: (aten.full_like.default, i, 2),
    lambda n, m, **_: (aten.arange.default, m),
    lambda n, m, **_: (aten.linspace.default, 0.0, 1.0, m),
    lambda n, m, **_: (aten.eye.default, m),
    lambda n, m, **_: (aten.scalar_tensor.default, m),
    lambda n, m, x, **_: (aten.sum.dim_IntList, x, [1]),
    lambda n, m, x, **_: (aten.mean.dim, x, [1], True),
    lambda n, m, x, **_: (aten.std.dim, x, [0, 1]),
    lambda n, m, x, **_: (aten.var_mean.correction, x, [1]),
    lambda n, m, x, **_: (aten.max.dim, x, 1),
    lambda n, m, x, **_: (aten.argmax.default, x),
    lambda n, m, b, **_: (aten.any.dim, b, 1),
    lambda n, m, x, **_: (aten.logsumexp.default, x, [1]),
    lambda n, m, x, **_: (aten.linalg_vector_norm.default, x, 3, [1]),
    lambda n, m, x, **_: (aten.cumsum.default, x, 1),
    lambda n, m, x, **_: (aten.cumprod.default, x, 1),
    lambda n, m, x, **_: (aten.cummax.default, x, 1),
    lambda n, m, x, **_: (aten.logcumsumexp.default, x, 1),
    lambda n, m, x, **_: (aten.diff.default, x, 1, 1),
    lambda n, m, x, **_: (aten.sort.default, x, 1),
    lambda n, m, x, **_: (aten.topk.default, x, 3, 1),
    lambda n, m, x, **_: (aten.median.dim, x, 1),
    lambda n, m, q, **_: (aten.quantile.scalar, q, 0.3, 1),
    lambda n, m, q, **_: (aten.searchsorted.Tensor, torch.sort(q)[0], q),
    lambda n, m, q, **_: (aten.histc.default, q, 4, -1, 1),
    lambda n, m, **_: (aten.rand.default, [n, m]),
    lambda n, m, x, **_: (aten.bernoulli.p, x, 0.3),
    lambda n, m, x, i, **_: (aten.cross_entropy_loss.default, x[:, :, 0], i[:, 0]),
    lambda n, m, x, b, **_: (aten.binary_cross_entropy_with_logits.default, x, b.float()),
    lambda n, m, x, **_: (aten.cosine_similarity.default, x, x * 2, 1),
    lambda n, m, x, **_: (aten.einsum.default, "bld,bmd->blm", [x, x]),
    lambda n, m, q, **_: (aten.outer.default, q[0], q[1]),
    lambda n, m, q, **_: (aten.kron.default, q, torch.ones(2, 2)),
    lambda n, m, q, **_: (aten.trace.default, q),
    lambda n, m, x, **_: (aten.cdist.default, x, x, 2.0),
    lambda n, m, q, **_: (aten.cov.default, q),
    lambda n, m, definite, x, **_: (aten.linalg_solve.default, definite, x),
    lambda n, m, definite, **_: (aten.linalg_cholesky.default, definite),
    lambda n, m, definite, **_: (aten.linalg_slogdet.default, definite),
    lambda n, m, p, **_: (aten.lgamma.default, p),
    lambda n, m, p, **_: (aten.igamma.default, p, p),
    lambda n, m, i, **_: (aten.gcd.default, i, i + 2),
    lambda n, m, i, **_: (aten.isin.Tensor_Tensor, i, torch.tensor([1, 2])),
    lambda n, m, x, q, **_: (aten.copy.default, x, q[:, :, None]),
]


def call_at(case: Case, batch: int, length: int) -> harness.Call:
    overload, *args = case(batch, length, **tensors(batch, length))
    return harness.call_of(overload, *args)


@pytest.mark.parametrize("opset", [11, 20])
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case(7, 11, **tensors(7, 11))[0]))
def test_right_at_another_size(case, opset):
    """Nothing of the sample's sizes is baked in."""
    sample = call_at(case, SIZES[0][1], SIZES[1][1])
    other = call_at(case, SIZES[0][2], SIZES[1][2])
    verdict = harness.check_resized(sample, other, SIZES, opset)
    assert verdict.status == "ok", f"{verdict.status} {verdict.call}: {verdict.note}\n{verdict.op_types}"
