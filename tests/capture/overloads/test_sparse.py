"""Sparse tensors that a module holds."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from tests.support import check

DENSE = torch.tensor([[1.0, 0.0, 0.0, 2.0], [0.0, 0.0, -3.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
TWICE = torch.sparse_coo_tensor(torch.tensor([[0, 0, 2], [1, 1, 3]]), torch.tensor([1.0, 2.0, 3.0]), (3, 4))
with warnings.catch_warnings(action="ignore"):
    KINDS = {
        "coo": DENSE.to_sparse(),
        "csr": DENSE.to_sparse_csr(),
        "csc": DENSE.to_sparse_csc(),
        "not coalesced": TWICE,
    }


class Held(torch.nn.Module):
    def __init__(self, program: Callable[..., torch.Tensor], tensor: torch.Tensor, is_buffer: bool) -> None:
        super().__init__()
        self.program = program
        if is_buffer:
            self.register_buffer("adjacency", tensor)
        else:
            self.adjacency = tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.program(self.adjacency, x)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "program",
    [
        lambda s, x: torch.sparse.mm(s, x),
        lambda s, x: s @ x * 2,
        lambda s, x: torch.addmm(torch.ones(3, 1), s, x, beta=0.5),
        lambda s, x: torch.ops.aten._sparse_addmm.default(torch.ones(3, x.shape[1]), s, x),
        lambda s, x: torch.sparse.mm(s.t(), torch.ones(3, 2)) + x.sum(),
        lambda s, x: s.to_dense() @ x,
    ],
)
def test_products_with_sparse_buffers(program: Callable[..., torch.Tensor], kind: str) -> None:
    x, other = torch.randn(4, 3), torch.randn(4, 5)
    result = check(Held(program, KINDS[kind], True), (x,), others=[(other,)], dynamic_shapes=({1: "n"},))
    assert all("prints" not in line for line in result.report.warnings)


@pytest.mark.parametrize("kind", KINDS)
def test_products_with_sparse_attributes(kind: str) -> None:
    check(Held(lambda s, x: torch.sparse.mm(s, x), KINDS[kind], False), (torch.randn(4, 3),), verify=True)


def test_what_only_sparse_tensors_lead_to_is_computed() -> None:
    check(Held(lambda s, x: s.coalesce().values() * 2 + x.sum(), TWICE, True), (torch.randn(4, 3),))
    check(Held(lambda s, x: s.indices() + x.sum().long(), KINDS["coo"], True), (torch.randn(4, 3),))
    check(Held(lambda s, x: torch.sparse.softmax(s, 1).to_dense() @ x, KINDS["coo"], True), (torch.randn(4, 3),))
