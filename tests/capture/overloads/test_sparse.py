"""Sparse tensors that a module holds, and those that its forward makes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

import fx2onnx
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


PLACES = torch.tensor([[0, 1, 2, 0, 0], [1, 2, 0, 1, 3]])


def made(x: torch.Tensor) -> torch.Tensor:
    """A sparse tensor of the numbers of a row, two of them at one place."""
    return torch.sparse_coo_tensor(PLACES, x[0], (3, 5))


def ring(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    places = torch.stack([torch.arange(n), (torch.arange(n) + 1) % n])
    return torch.sparse.mm(torch.sparse_coo_tensor(places, torch.ones(n), (n, n)), x)


def by_data(x: torch.Tensor) -> torch.Tensor:
    places = (x[:, :2].abs() * 2).long().clamp(max=5).t()
    return torch.sparse_coo_tensor(places, x[:, 2], (6, 6)).to_dense()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: made(x) @ x.t(),
        lambda x: torch.sparse.mm(made(x), x.t()) * 2,
        lambda x: torch.sparse.addmm(torch.ones(3, 1), made(x), x.t()),
        lambda x: torch.mv(made(x), x[0]) + (made(x) + made(x)).to_dense().t()[0, 0],
        lambda x: (made(x).coalesce().values(), made(x).coalesce().indices(), made(x).t().to_dense()),
        lambda x: (torch.sparse.softmax(made(x), 1).to_dense(), torch.sparse.log_softmax(made(x), 0).to_dense()),
        lambda x: (x.relu().to_sparse() @ x.t(), x.relu().to_sparse().to_dense(), x.relu().to_sparse().values()),
        lambda x: x.to_sparse_csr() @ x.t(),
        ring,
        by_data,
    ],
)
def test_sparse_tensors_that_forward_makes(program: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(0)
    samples = [(torch.randn(count, 5),) for count in (3, 1, 8)]
    check(program, samples[0], others=samples[1:], dynamic_shapes={"x": {0: "n"}})


def test_the_order_of_entries_is_refused() -> None:
    with pytest.raises(fx2onnx.UserError, match="asks for the entries of a sparse tensor") as caught:
        fx2onnx.export(lambda x: made(x)._values(), (torch.ones(2, 5),))
    assert caught.value.code == "E203"


def test_what_only_sparse_tensors_lead_to_is_computed() -> None:
    check(Held(lambda s, x: s.coalesce().values() * 2 + x.sum(), TWICE, True), (torch.randn(4, 3),))
    check(Held(lambda s, x: s.indices() + x.sum().long(), KINDS["coo"], True), (torch.randn(4, 3),))
    check(Held(lambda s, x: torch.sparse.softmax(s, 1).to_dense() @ x, KINDS["coo"], True), (torch.randn(4, 3),))
