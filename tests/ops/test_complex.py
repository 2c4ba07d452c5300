"""Complex numbers as pairs of reals: at the ends of the range, of rank 0, with nothing to do."""

from __future__ import annotations

import pytest
import torch

from fx2onnx.base.errors import UserError
from tests.ops import harness
from tests.ops.judge import Case, aten, case, judge
from tests.support import check

torch.manual_seed(0)
Z = torch.randn(3, 4, dtype=torch.complex64)
POINT = torch.tensor(1.5 - 2j)
ENDS = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, complex(float("inf"), 1), 0j, 3 + 4j])
DIVIDED = torch.tensor([0j, 1 + 2j, 1e30 + 1e30j, 1e-30 - 1e-30j, 3 - 4j, 1e-30 + 1j, -2 + 0j])
CASES = [
    case(aten.abs.default, ENDS),
    case(aten.abs.default, Z.to(torch.complex128)),
    case(aten.cumsum.default, POINT, 0),
    case(aten.index_select.default, POINT, 0, torch.tensor([0])),
    case(aten.flip.default, POINT, []),
    case(aten.roll.default, Z, [3]),
    case(aten.roll.default, Z, [1, -1], [0, 1]),
    case(aten.squeeze.dims, Z[None], []),
    case(aten.squeeze.dims, Z[None, :, None], [0, 2]),
    case(aten.squeeze.default, Z[None]),
    case(aten.mul.Tensor, Z, POINT),
    case(aten.div.Tensor, Z, POINT),
    *(case(overload, DIVIDED) for overload in (aten.reciprocal.default, aten.sgn.default)),
    case(aten.div.Tensor, DIVIDED[:, None], DIVIDED),
    case(aten.div.Tensor, torch.tensor([0.0, 2, -3])[:, None], DIVIDED.to(torch.complex128)),
    case(aten.div.Tensor, DIVIDED[:, None], torch.tensor([0.0, -0.0, 2, -3])),
    *(case(aten.addcdiv.default, DIVIDED, torch.ones(1), DIVIDED, value=value) for value in (1, 2.5)),
    case(aten.sum.dim_IntList, Z, [-1]),
    case(aten.angle.default, Z),
    case(aten.exp.default, Z),
    case(aten.permute.default, Z, [-1, 0]),
    case(aten.view_as_real.default, Z),
    *(case(getattr(aten, name).default, value, dtype=torch.float32) for name in ("sum", "mean") for value in (POINT, Z)),
    case(aten.cumsum.default, POINT, 0, dtype=torch.float64),
    case(aten.cumsum.default, Z, 1, dtype=torch.float32),
    case(aten.sum.dim_IntList, POINT, [0]),
    case(aten.mean.dim, POINT, [-1], True),
    case(aten.mean.dim, Z, [1], dtype=torch.float32),
    *(case(aten.view.dtype, POINT, dtype) for dtype in (torch.complex64, torch.int64, torch.float64)),
    case(aten.view.dtype, torch.tensor(1.5, dtype=torch.float64), torch.complex64),
    case(aten.slice_scatter.default, Z, Z.real[:1], 0, 1, 2),
    case(aten.slice_scatter.default, Z.real, Z[:2], 0, 0, 9, 2),
    case(aten.select_scatter.default, Z.real.to(torch.int64), Z[0], 0, 1),
    case(aten.diagonal_scatter.default, Z.real, Z[0, :3]),
    case(aten.select_backward.default, POINT, [2, 3], 1, 2),
    case(aten.slice_backward.default, Z[:, :2], [3, 4], -1, 1, 3, 1),
    case(aten.slice_backward.default, POINT, [4], 0, 0, 9, 2),
]  # fmt: skip


@pytest.mark.parametrize("given", CASES, ids=str)
def test_complex(given: Case) -> None:
    judge(given, opsets=(11, 13, 20, 23))


INF = float("inf")
W = torch.randn(3, 4, dtype=torch.complex64)
WIDE = torch.randn(4, 5, dtype=torch.complex64)
CUBE, KERNEL = torch.randn(2, 4, 7, dtype=torch.complex64), torch.randn(6, 2, 3, dtype=torch.complex64)
SPECIAL = torch.tensor([0j, 1j, -1j, -1 + 0j, 1 + 0j, -4 - 1e-3j, 1e-4 + 1e-4j, 30 + 2j, -30 + 1.5j, 3 - 4j])
BROKEN = torch.tensor(
    [1 + 1j, complex(float("nan"), 1), complex(0, float("inf")), complex(float("-inf"), 0), 2 + 0j, 0j]
)
ROWS = torch.tensor([0, 2, 2])
FUNCTIONS = "sqrt sin cos tan sinh cosh tanh sigmoid silu log1p expm1 exp2"
POLES_AT_ZERO = "rsqrt log2 log10"
OF_MATRICES = (
    "tril triu diagonal t mT mH adjoint matrix_H numpy_T fliplr flipud trace any all count_nonzero nonzero logical_not"
)
SOME_COMPLEX = [
    *(case(getattr(aten, name).default, SPECIAL, tolerance=(1e-4, 1e-5)) for name in FUNCTIONS.split()),
    *(case(getattr(aten, name).default, SPECIAL[1:]) for name in POLES_AT_ZERO.split()),
    *(case(getattr(aten, name).default, Z) for name in OF_MATRICES.split()),
    *(case(getattr(aten, name).default, BROKEN) for name in ("isnan", "isinf", "isfinite", "isreal")),
    case(aten.pow.Tensor_Scalar, SPECIAL[:7], 2),
    case(aten.pow.Tensor_Scalar, SPECIAL[:7], 2.5),
    case(aten.pow.Tensor_Scalar, SPECIAL[:7], 0),
    case(aten.pow.Scalar, 2.0, SPECIAL[:7]),
    case(aten.pow.Tensor_Tensor, Z, W),
    case(aten.any.dim, BROKEN[None], 1),
    case(aten.logical_and.default, Z, W),
    case(aten.masked_fill.Scalar, Z, Z.real > 0, 1.5),
    case(aten.gather.default, Z, 1, torch.tensor([[0, 3], [1, 1], [2, 0]])),
    case(aten.index_add.default, Z, 0, ROWS, W),
    case(aten.index_copy.default, Z, 0, torch.tensor([2, 0, 1]), W),
    case(aten.index_put.default, Z, [ROWS[:2]], W[:2]),
    case(aten.scatter_add.default, Z, 0, torch.zeros(3, 4, dtype=torch.int64), W),
    case(aten.take.default, Z, torch.tensor([3, -1])),
    case(aten.tile.default, Z, [2, 1]),
    case(aten.rot90.default, Z),
    case(aten.constant_pad_nd.default, Z, [1, 2]),
    case(aten.linear.default, Z, W),
    case(aten.linear.default, Z.to(torch.complex128), W.to(torch.complex128), W[:, 0].to(torch.complex128)),
    case(aten.conv1d.default, CUBE, KERNEL, CUBE[0, 0, :6], [2], [1], [1], 2),
    case(aten.linalg_vector_norm.default, Z, 2, [1]),
    case(aten.linalg_cross.default, Z[:, :3], W[:, :3]),
    case(aten.addmm.default, Z[0, :3], Z, WIDE[:, :3], beta=0.5 + 1j, alpha=2),
    case(aten.baddbmm.default, Z[:, None], Z[None].repeat(3, 1, 1), W.mT[None, :, :1].repeat(3, 1, 4)),
    case(aten.addmv.default, Z[:, 0], Z, W[0], beta=0),
    case(aten.addcmul.default, Z, W, W.real, value=0.5),
    case(aten.addcdiv.default, Z, W, Z),
    case(aten.full.default, [2, 3], 1 - 2j, dtype=torch.complex64),
    case(aten.full_like.default, Z, 2.5),
    case(aten.zeros_like.default, Z),
    case(aten.new_ones.default, Z, [2]),
    case(aten.ones.default, [2], dtype=torch.complex128),
    case(aten.expand_as.default, Z[:1], Z),
    case(aten.hstack.default, [Z, W]),
    case(aten.block_diag.default, [Z, POINT]),
    case(aten.tensor_split.sections, Z, 2, 1),
    case(aten.broadcast_tensors.default, [Z, W[:1], POINT]),
    case(aten.broadcast_tensors.default, [Z[0], Z.real > 0, torch.tensor(2), POINT.to(torch.complex128)]),
    case(aten.broadcast_tensors.default, [Z.real[:, :1], POINT]),
    case(aten.dot.default, Z[0], W[0]),
    case(aten.vdot.default, Z[0], W[0]),
    case(aten.mv.default, Z, W[0]),
    case(aten.outer.default, Z[0], W[1]),
    case(aten.kron.default, Z, W),
    case(aten.tensordot.default, Z, WIDE, [1], [0]),
    case(aten.einsum.default, "ij,jk->ki", [Z, WIDE]),
    case(aten.einsum.default, "ij->ji", [Z]),
    *(
        case(getattr(aten, name).default, [Z, W.real.to(dtype)])
        for name in ("cat", "stack", "hstack", "vstack", "dstack", "column_stack", "block_diag")
        for dtype in (torch.float64, torch.int64)
    ),
    *(case(getattr(aten, name).default, [Z, W.to(torch.complex128)]) for name in ("hstack", "vstack", "dstack")),
    case(aten.expand_as.default, W.real[:1], Z),
    *(case(getattr(aten.lerp, kind), Z, W, weight) for kind, weight in (("Scalar", 0.3), ("Tensor", Z))),
    *(case(aten.linalg_matrix_norm.default, Z, order) for order in (1, -1, INF, -INF)),
    case(aten.linalg_matrix_norm.str_ord, Z[None], "fro", [0, 2], True),
    *(case(aten.linalg_norm.default, Z, order, [1]) for order in (None, 2, 0, 3)),
    case(aten.linalg_norm.default, Z),
    case(aten.frobenius_norm.dim, Z, [0, 1]),
    case(aten.norm.ScalarOpt_dim, Z, 0.5, [0], True),
    case(aten.dist.default, Z, W, 1.5),
    case(aten.dist.default, Z, W.real),
    case(aten.renorm.default, torch.cat([Z, torch.zeros(1, 4)]), 2, 0, 1.0),
    case(aten.var.correction, Z, [1], correction=0),
    case(aten.std.dim, Z, [0]),
    case(aten.std.default, Z),
    case(aten.var_mean.correction, Z, [0], keepdim=True),
    case(aten.std_mean.dim, Z, [1]),
]  # fmt: skip


@pytest.mark.parametrize("given", SOME_COMPLEX, ids=str)
def test_complex_functions_and_products(given: Case) -> None:
    judge(given, opsets=(13, 20))


def test_an_einsum_of_three_complex_tensors_says_what_to_do() -> None:
    with pytest.raises(UserError, match="einsum of 3 complex tensors") as caught:
        harness.build(harness.call_of(aten.einsum.default, "ij,jk,kl->il", [Z, WIDE, WIDE.T]))
    assert caught.value.code == "E203"


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.matrix_norm(x, 2),
        lambda x: torch.linalg.norm(x[:, None], "nuc", dim=(0, 2), keepdim=True),
        lambda x: torch.nuclear_norm(x),
    ],
)
def test_norms_of_complex_singular_values(function) -> None:
    check(function, (Z[:2, :2],))


@pytest.mark.parametrize("chosen", [Z[0], POINT])
def test_a_mask_is_wider_than_the_complex_numbers(chosen: torch.Tensor) -> None:
    check(torch.masked_select, (chosen, Z.real > 0))
