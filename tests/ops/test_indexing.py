"""Indexing, gathering and scattering in all forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.judge import Case, aten, case, judge, judge_at_other_sizes
from tests.support import check

R, T = torch.randn, torch.tensor
torch.manual_seed(0)
X = R(3, 4, 5)
POSITIVE = X > 0
SOURCE = R(3, 4, 5)
PLACES = torch.randint(0, 3, (2, 3, 4))

INDICES = [
    [T([0, 2])], [T([0, 2]).int()], [None, T([[0, 2], [1, -1]])], [T([0, 2]), T([1, -1])],
    [None, T([0, 2]), T([1, -1])], [T([[0], [2]]), T([1, -1])], [T([0, 2]), None, T([1, -1])],
    [T(1), None, T([1, -1])], [None, T([[0], [2]]), T([1, -2, 3])], [T([0, 1, 2]), T([0, 1, 2]), T([0, 1, 2])],
    [T([True, False, True])], [None, T([True, False, True, True])], [POSITIVE], [POSITIVE[:, :, 0]],
    [None, POSITIVE[0]], [T([True, False, True]), T([1, 3])], [T([True, False, True]), None, T([1, 3])],
    [POSITIVE[:, :, 0], T([2])],
]  # fmt: skip
WRITES = [
    ([T([0, 2])], R(4, 5)),
    ([T([0, 0])], R(5)),
    ([None, T([0, 2])], R(3, 2, 5)),
    ([None, T([0, 2])], R(1)),
    ([T([0, 2]), T([1, -1])], R(2, 5)),
    ([None, T([0, 2]), T([1, -1])], R(3, 2)),
    ([T([0, 2]), None, T([1, -1])], R(2, 4)),
    ([POSITIVE], R(())),
    ([POSITIVE], R(int(POSITIVE.sum()))),
    ([POSITIVE[:, :, 0]], R(5)),
    ([POSITIVE[:, :, 0]], R(int(POSITIVE[:, :, 0].sum()), 5)),
    ([None, T([True, False, True, True])], R(3, 1, 1)),
    ([T([True, False, True]), T([1, 3])], R(5)),
]

CASES = [case(aten.index.Tensor, X, indices) for indices in INDICES]
CASES += [case(aten.index_put.default, X, indices, values) for indices, values in WRITES]
CASES += [case(aten.index_put.default, X, indices, values, True) for place, (indices, values) in enumerate(WRITES)]
CASES += [
    case(aten.index.Tensor, X, [T([0, 2])], nodes=1),
    case(aten.index.Tensor, X, [None, T([True, False, True, True])], nodes=1),
    case(aten.gather.default, X, 0, torch.randint(0, 3, (2, 2, 5)), nodes=1),
    case(aten.gather.default, R(()), 0, T([0])),
    case(aten.index_select.default, X, -1, T([1, 1, 4]), nodes=1),
    case(aten.index_select.default, R(()), 0, T([0])),
    case(aten.take.default, X, T([[0, -1], [7, 8]]), nodes=2),
    case(aten.take_along_dim.default, X, torch.randint(0, 4, (1, 2, 5)), 1, nodes=2),
    case(aten.masked_select.default, X, torch.rand(4, 1) > 0.5),
    case(aten.nonzero.default, POSITIVE * X, nodes=2),
    case(aten.nonzero.default, T(3.0)),
    case(aten.nonzero.default, T(0.0)),
    case(aten.nonzero_numpy.default, POSITIVE),
    case(aten.nonzero_static.default, POSITIVE, size=5),
    case(aten.nonzero_static.default, POSITIVE, size=90, fill_value=7),
    case(aten.one_hot.default, T([[0, 2], [1, 4]]), 5, nodes=1),
    case(aten.one_hot.default, T([0, 2, 1])),
    case(aten.put.default, X, T([1, -2, 3]), R(3)),
    case(aten.put.default, X, T([1, -2, 1]), R(3), True),
    case(aten.scatter.src, X, 0, PLACES, SOURCE, nodes=2),
    case(aten.scatter.value, X, 1, PLACES, 2.0),
    case(aten.scatter.src, R(()), 0, T(0), R(())),
    case(aten.scatter.reduce, X, 0, PLACES, SOURCE, reduce="multiply"),
    case(aten.scatter.value_reduce, X, 0, PLACES, 2, reduce="add"),
    case(aten.scatter_add.default, X, -1, PLACES, SOURCE),
    case(aten.masked_scatter.default, X, torch.rand(3, 4, 5) > 0.5, R(60)),
    case(aten.masked_scatter.default, X, torch.rand(4, 1) > 0.5, R(60)),
    case(aten.slice_scatter.default, X, R(3, 2, 5), 1, 1, 3, nodes=3),
    case(aten.slice_scatter.default, X, R(3, 2, 5), 1, 0, 4, 2, nodes=2),
    case(aten.slice_scatter.default, X, R(3, 2, 5), 1, -2, nodes=2),
    case(aten.slice_scatter.default, X, R(3, 4, 5), 1, nodes=0),
    case(aten.slice_scatter.default, X, R(3, 1, 5), 1, 3, 100),
    case(aten.select_scatter.default, X, R(3, 5), 1, -2, nodes=2),
    case(aten.slice_backward.default, R(3, 2, 5), [3, 4, 5], 1, 1, 3, 1, nodes=1),
    case(aten.select_backward.default, R(3, 5), [3, 4, 5], 1, 2),
]
for axis in (0, 1, -1):
    shape = list(X.shape)
    shape[axis] = 3
    CASES += [
        case(aten.index_add.default, X, axis, T([0, 2, 2]), R(shape), alpha=2),
        case(aten.index_copy.default, X, axis, T([0, 2, 1]), R(shape)),
        case(aten.index_fill.int_Scalar, X, axis, T([0, 2]), 3.0),
        case(aten.index_fill.int_Tensor, X, axis, T([0, 2]), T(3.0)),
    ]
for reduce in ("sum", "prod", "mean", "amax", "amin"):
    for include in (True, False):
        whole = torch.randint(-9, 9, (3, 4, 5))
        CASES += [
            case(aten.scatter_reduce.two, X, 0, PLACES, SOURCE, reduce, include_self=include),
            case(aten.scatter_reduce.two, whole, 1, PLACES, whole.flip(0), reduce, include_self=include),
        ]
        if reduce != "sum":
            arguments = (X, 1, T([0, 2, 2]), R(3, 3, 5), reduce)
            CASES.append(case(aten.index_reduce.default, *arguments, include_self=include))


@pytest.mark.parametrize("given_case", CASES, ids=str)
def test_case(given_case: Case):
    judge(given_case, opsets=(11, 17, 20))


DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.int8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes(dtype):
    value = (X * 3).to(dtype)
    judge(Case(aten.index_put.default, (value, [T([0, 0])], value[0], True)), opsets=(20,))
    judge(Case(aten.scatter_reduce.two, (value, 0, PLACES, value, "amax")), opsets=(20,))
    judge(Case(aten.masked_select.default, (value, POSITIVE)), opsets=(20,))
    judge(Case(aten.index.Tensor, (value, [None, T([0, 2]), T([1, -1])])), opsets=(20,))


DYNAMIC = [
    (aten.index.Tensor, (R(6, 7, 8), [None, T([0, 2, 1]), T([1, -1, 0])]), [(R(2, 5, 4), [None, T([0, 2, 1]), T([1, -1, 0])])]),
    (aten.index.Tensor, (R(6, 7, 8), [T([0, 1, 1]), None, T([1, -1, 0])]), [(R(2, 5, 4), [T([0, 1, 1]), None, T([1, -1, 0])])]),
    (aten.slice_scatter.default, (R(6, 7, 8), R(6, 1, 8), 1, -1), [(R(2, 5, 4), R(2, 1, 4), 1, -1)]),
    (aten.select_scatter.default, (R(6, 7, 8), R(6, 8), 1, -2), [(R(2, 5, 4), R(2, 4), 1, -2)]),
    (aten.index_select.default, (R(6, 7, 8), 1, T([0, 1])), [(R(2, 5, 4), 1, T([0, 1]))]),
]  # fmt: skip


@pytest.mark.parametrize(("overload", "args", "others"), DYNAMIC, ids=lambda item: str(item)[:24])
def test_other_sizes(overload, args, others):
    judge_at_other_sizes(overload, args, others, {6: "a", 7: "b", 8: "c"})


@pytest.mark.parametrize(
    "places",
    [
        lambda n: torch.arange(n - 1, -1, -1),
        lambda n: torch.arange(n - 1, 0, -2),
        lambda n: torch.arange(-2, n),
        lambda n: torch.arange(n - 3, n),
        lambda n: torch.arange(-n, 0),
        lambda n: torch.arange(2 - n, n - 3),
        lambda n: torch.arange(1, n),
    ],
    ids=[
        "backwards",
        "every second backwards",
        "from the end",
        "the last",
        "negative",
        "through 0",
        "all but the first",
    ],
)
def test_rows_by_a_range(places: Any) -> None:
    """onnxruntime makes a Slice of a Gather by a Range, whose negative numbers mean something else."""
    others = [(torch.randn(count),) for count in (4, 9, 13)]
    check(lambda x: x[places(x.shape[0])], (torch.randn(5),), others=others, dynamic_shapes=({0: "n"},))
