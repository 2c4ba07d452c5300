"""Complex numbers as pairs of reals: at the ends of the range, of rank 0, with nothing to do."""

from __future__ import annotations

import pytest
import torch

from tests.ops.judge import Case, aten, case, judge

torch.manual_seed(0)
Z = torch.randn(3, 4, dtype=torch.complex64)
POINT = torch.tensor(1.5 - 2j)
ENDS = torch.tensor([1e30 + 1e30j, 1e-30 - 1e-30j, complex(float("inf"), 1), 0j, 3 + 4j])
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
    case(aten.sum.dim_IntList, Z, [-1]),
    case(aten.angle.default, Z),
    case(aten.exp.default, Z),
    case(aten.permute.default, Z, [-1, 0]),
    case(aten.view_as_real.default, Z),
]


@pytest.mark.parametrize("given", CASES, ids=str)
def test_complex(given: Case) -> None:
    judge(given, opsets=(11, 13, 20, 23))
