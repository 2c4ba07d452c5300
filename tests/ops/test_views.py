"""Views, joins, repeats and diagonals."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.base.errors import UserError
from tests.ops import harness
from tests.ops.judge import Case, aten, case, judge, judge_at_other_sizes

R = torch.randn
torch.manual_seed(0)
X = R(3, 4, 5)
FAST = settings(max_examples=25, deadline=None, derandomize=True)

CASES = [
    case(aten.view.default, R(2, 3, 4), (2, -1), nodes=1),
    case(aten.view.default, R(0, 4), (2, 0)),
    case(aten.view.default, R(1), ()),
    case(aten.flatten.using_ints, R(2, 3, 4, 5), 1, -1, nodes=1),
    case(aten.flatten.using_ints, R(()), 0, -1),
    case(aten.unflatten.int, R(2, 12), 1, [3, 4], nodes=1),
    case(aten.squeeze.default, R(1, 3, 1), nodes=1),
    case(aten.squeeze.dim, R(1, 3, 1), 1, nodes=0),
    case(aten.squeeze.dim, R(()), 0, nodes=0),
    case(aten.squeeze.dims, R(1, 3, 1), [0, 1, -1], nodes=1),
    case(aten.unsqueeze.default, R(2, 3), -1, nodes=1),
    case(aten.transpose.int, X, 0, -1, nodes=1),
    case(aten.permute.default, X, [0, 1, 2], nodes=0),
    case(aten.permute.default, X, [-1, 0, 1], nodes=1),
    case(aten.movedim.intlist, X, [0, 1], [-1, 0], nodes=1),
    case(aten.expand.default, R(1, 3), [2, 4, -1], nodes=1),
    case(aten.broadcast_tensors.default, [R(1, 3), R(2, 1)], nodes=2),
    case(aten.slice.Tensor, X, 1, 0, 9223372036854775807, 1, nodes=0),
    case(aten.select.int, X, 1, -1, nodes=1),
    case(aten.narrow.Tensor, X, 1, torch.tensor(-3), 2, nodes=2),
    case(aten.unbind.int, R(3, 2), -1, nodes=2),
    case(aten.split.Tensor, R(7, 2), 3, 0, nodes=1),
    case(aten.split_with_sizes.default, R(7, 2), [3, 0, 4], 0, nodes=1),
    case(aten.chunk.default, R(7, 2), 3, 0, nodes=1),
    case(aten.chunk.default, R(2, 2), 5, 0, nodes=1),
    case(aten.tensor_split.indices, R(7, 2), [-3, 2, 9], 0),
    case(aten.tensor_split.tensor_indices_or_sections, R(7, 2), torch.tensor(3), 0),
    case(aten.hsplit.int, R(4), 2),
    case(aten.vsplit.array, R(4, 4), [1]),
    case(aten.cat.default, [R(2, 3), R(0), R(2, 1)], 1, nodes=1),
    case(aten.cat.default, [R(2, 3), torch.ones(1, 3, dtype=torch.int64)], 0, nodes=2),
    case(aten.stack.default, [R(2, 3), R(2, 3), R(2, 3)], 1, nodes=2),
    case(aten.stack.default, [R(2, 3), R(2, 3)], -1, nodes=3),
    case(aten.stack.default, [R(()), R(())], 0),
    case(aten.hstack.default, [R(()), R(3)]),
    case(aten.column_stack.default, [R(3), R(3, 2)]),
    case(aten.dstack.default, [R(2, 3), R(2, 3)]),
    case(aten.block_diag.default, [R(2, 3), R(2), R(())]),
    case(aten.cartesian_prod.default, [R(2), R(3)]),
    case(aten._chunk_cat.default, [R(3, 4), R(5, 2)], 0, 2),
    case(aten.repeat.default, R(1, 3), [2, 1], nodes=1),
    case(aten.repeat.default, X, [0, 1, 1]),
    case(aten.tile.default, R(3), [2, 2], nodes=2),
    case(aten.repeat_interleave.self_int, X, 3, 1, nodes=3),
    case(aten.repeat_interleave.self_int, X, 2),
    case(aten.repeat_interleave.self_Tensor, X, torch.tensor([1, 0, 2, 3]), 1),
    case(aten.repeat_interleave.Tensor, torch.tensor([1, 0, 2])),
    case(aten.roll.default, X, [4]),
    case(aten.flip.default, X, [0, -1], nodes=1),
    case(aten.flip.default, R(()), [], nodes=0),
    case(aten.as_strided.default, X, [3, 3], [1, 2], 1, nodes=2),
    case(aten.as_strided_scatter.default, X, R(3, 3), [3, 3], [5, 1], 1),
    case(aten.unfold.default, R(()), 0, 1, 1),
    case(aten.diagflat.default, R(2, 2), 1),
]
CASES += [case(aten.rot90.default, X, k, [0, 2]) for k in range(-1, 5)]
for offset in (-3, -1, 0, 1, 4):
    CASES += [
        case(aten.diagonal.default, R(6, 4, 5), offset, 0, -1),
        case(aten.diag.default, R(4), offset),
        case(aten.diag_embed.default, X, offset, 0, 2),
        case(
            aten.diagonal_scatter.default, R(6, 5, 7), torch.randn_like(R(6, 5, 7).diagonal(offset, 0, 2)), offset, 0, 2
        ),
        case(aten.tril.default, X, offset),
        case(aten.triu.default, (X * 9).int(), offset),
        case(aten.triu.default, X > 0, offset),
    ]


@pytest.mark.parametrize("given_case", CASES, ids=str)
def test_case(given_case: Case):
    judge(given_case)


@FAST
@given(
    start=st.none() | st.integers(-8, 8),
    end=st.none() | st.integers(-8, 8),
    step=st.integers(1, 3),
    axis=st.integers(-3, 2),
)
def test_slices(start, end, step, axis):
    judge(Case(aten.slice.Tensor, (X, axis, start, end, step)), opsets=(11, 20))


@FAST
@given(shift=st.integers(-9, 9), axis=st.integers(-3, 2))
def test_rolls(shift, axis):
    judge(Case(aten.roll.default, (X, [shift, 1], [axis, 0])), opsets=(20,))


@FAST
@given(size=st.integers(1, 5), step=st.integers(1, 4))
def test_windows(size, step):
    judge(Case(aten.unfold.default, (X, -1, size, step)), opsets=(11, 20))


DYNAMIC = [
    (aten.view.default, (R(7, 3, 4), [7, 12]), [(R(2, 3, 4), [2, 12])], {7: "n"}),
    (aten.expand.default, (R(1, 7, 1), [-1, -1, 4]), [(R(1, 9, 1), [-1, -1, 4])], {7: "n"}),
    (aten.slice.Tensor, (R(4, 7), 1, 1, 2**63 - 1), [(R(4, 9), 1, 1, 2**63 - 1)], {7: "n"}),
    (aten.stack.default, ([R(7, 3), R(7, 3)], 0), [([R(2, 3), R(2, 3)], 0)], {7: "n"}),
    (aten.roll.default, (R(3, 7, 5), [1, -1], [0, 1]), [(R(3, 6, 5), [1, -1], [0, 1])], {7: "n"}),
    (aten.tril.default, (R(3, 7, 5), 1), [(R(3, 9, 5), 1)], {7: "n"}),
    (aten.tril.default, (R(3, 7, 5).int(), 1), [(R(3, 9, 5).int(), 1)], {7: "n"}),
    (aten.repeat.default, (R(3, 7, 5), [2, 1, 3]), [(R(3, 2, 5), [2, 1, 3])], {7: "n"}),
]


@pytest.mark.parametrize(("overload", "args", "others", "symbols"), DYNAMIC, ids=lambda item: str(item)[:24])
def test_other_sizes(overload, args, others, symbols):
    judge_at_other_sizes(overload, args, others, symbols)


@pytest.mark.parametrize(("size", "stride", "offset"), [([2, 3], [3, 1], 5), ([2, 3], [1, 2], 5)])
def test_as_strided_beyond_the_tensor_is_refused(size, stride, offset):
    """A contiguous part and another one, both of a storage that holds more than the tensor."""
    storage = R(20)
    call = Case(aten.as_strided.default, (storage[:10], size, stride, offset))
    with pytest.raises(UserError, match="beyond the tensor"):
        harness.build(harness.call_of(call.overload, *call.args))
