"""Calls drawn from schemas (``make overload-sweep``): a fixed sample of them, and what the sweep takes for wrong or undefined."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks import overload_sweep
from benchmarks.overload_call import (
    BOTH_REFUSE,
    CPU_ALONE,
    CRASHED,
    EDGE,
    FAULTS,
    MISFIT,
    NUMBERS_ALONE,
    RIGHT,
    WRITTEN,
    WRONG,
    drawn_call,
    edge_call,
    examine,
    faults_of,
    judge,
    judge_misfit,
)
from benchmarks.overload_moved import moved_calls
from benchmarks.overload_undefined import depends_on_memory, reasons
from fx2onnx.aten_map import TABLE
from fx2onnx.capture.recording import tracer
from tests.ops import harness
from tests.ops.comparing import in_float64

aten = torch.ops.aten


def call(overload, *args, **kwargs):
    return harness.call_of(overload, *args, **kwargs)


def test_calls_are_drawn_of_every_overload_of_the_table():
    drawn = overload_sweep.overloads()
    assert {"aten.add.Tensor", "aten.linalg_svd.default", "aten.lstm.data"} <= drawn.keys()
    assert len(drawn) > 1300


def test_the_same_seed_draws_the_same_call():
    first, again = (drawn_call(aten.add.Tensor, 3, 5) for _ in range(2))
    assert first.describe() == again.describe()
    assert all(torch.equal(one, two) for one, two in zip(first.outputs, again.outputs, strict=True))
    assert drawn_call(aten.add.Tensor, 4, 5).describe() != first.describe()


def test_a_backward_overload_gets_what_autograd_gives_it():
    drawn = drawn_call(aten.avg_pool2d_backward.default, 1, 0)
    grad, source = drawn.args[:2]
    pooled = aten.avg_pool2d.default(source, *drawn.args[2:])
    assert grad.shape == pooled.shape


@pytest.mark.parametrize("change", ["value", "dtype", "failure"])
def test_a_translation_that_is_wrong_is_found(monkeypatch, change):
    def relu(op, self):
        """relu(Tensor self) -> Tensor"""
        if change == "failure":
            raise ZeroDivisionError("no")
        return op.cast(self, 11) if change == "dtype" else op.Neg(self)

    entry = TABLE.find(aten.relu.default, 20, False)
    monkeypatch.setitem(TABLE.entries, aten.relu.default, [replace(entry, function=relu)])
    found = judge(call(aten.relu.default, torch.randn(3)))
    assert found.kind == (WRONG if change == "value" else CRASHED), found


PACKED = (torch.ones(4, 3), torch.tensor([3]), torch.ones(1, 3, 3), [torch.ones(3, 3)] * 2 + [torch.ones(3)] * 2)
EDGES = torch.tensor([1.0, 0.0, 2.0])
UNDEFINED_CALLS = [
    (aten.bucketize.Tensor, (torch.tensor([0.5, 1.5]), EDGES), "boundaries are not sorted"),
    (aten.index_copy.default, (torch.zeros(3), 0, torch.tensor([1, 1]), torch.ones(2)), "two values for one place"),
    (aten.scatter.src, (torch.zeros(3), 0, torch.tensor([1, 1]), torch.ones(2)), "two values for one place"),
    (aten.index_put.default, (torch.zeros(3), [torch.tensor([1, 1])], torch.ones(2)), "two values for one place"),
    (aten._to_copy.default, (torch.tensor([1e30]),), "a float that the integer dtype cannot hold"),
    (aten.rnn_tanh.data, (*PACKED, True, 1, 0.0, False, False), "sizes of batches that do not add up"),
    (aten.addmv.default, (torch.ones(2), torch.ones(2, 2), torch.ones(2)), "an infinite scale"),
    (aten.norm.Scalar, (torch.ones(2), float("nan")), "a norm whose power is NaN"),
    (aten.conv1d.default, (torch.ones(1, 1, 3), torch.tensor([[[float("inf")]]]), None, [1], [1]), "zeros around"),
    (aten.prelu.default, (torch.zeros(2), torch.tensor([float("inf")])), "a slope of infinity"),
    (aten.max_pool2d_with_indices.default, (torch.ones(1, 2, 2), [2], [1], [1], [3]), "a window beyond the tensor"),
    (aten._fft_c2r.default, (torch.ones(3, 1, dtype=torch.complex64), [1, 0], 2, 2), "half a spectrum"),
    (aten._fft_c2c.default, (torch.ones(3, 2, dtype=torch.complex64), [-1], 0, True), "half a spectrum"),
    (aten.bitwise_left_shift.Tensor_Scalar, (torch.tensor([1]), 70), "a shift beyond the number of bits"),
    (aten.linalg_inv.default, (torch.ones(2, 2) + torch.eye(2) * 1e-7,), "singular up to rounding"),
    (aten.copysign.Tensor, (torch.ones(1), torch.tensor([float("nan")])), "the sign of NaN"),
    (aten.bilinear.default, (torch.ones(1, 2) / 0, torch.ones(1, 2), torch.ones(1, 2, 2)), "whose order is open"),
    (aten.linalg_matrix_rank.default, (torch.ones(2, 3), 0.0), "as near to the cutoff as its rounding"),
    (aten._pack_padded_sequence.default, (torch.ones(2, 1), torch.tensor([3]), False), "longer than what they lie in"),
]


@pytest.mark.parametrize(("overload", "args", "reason"), UNDEFINED_CALLS, ids=lambda value: str(value)[:40])
def test_rules_name_what_is_undefined(overload, args, reason):
    kwargs = {aten._to_copy.default: {"dtype": torch.int32}, aten.addmv.default: {"alpha": -float("inf")}}.get(
        overload, {}
    )
    assert any(reason in found for found in reasons(call(overload, *args, **kwargs)))


def test_kernels_that_differ_by_memory_are_told_apart():
    numbers, endless = torch.tensor([float("nan"), *range(16)]), torch.full((9,), complex(float("inf"), 1))
    assert depends_on_memory(call(aten._add_relu.Tensor, numbers, numbers))
    assert not depends_on_memory(call(aten._add_relu.Tensor, torch.randn(9), torch.randn(9)))
    assert any("by parts" in reason for reason in reasons(call(aten.mul.Tensor, endless, endless)))


def test_the_loss_of_ctc_is_compared_and_its_working_memory_is_not():
    probabilities = torch.randn(3, 2, 4).log_softmax(2)
    drawn = call(aten._ctc_loss.default, probabilities, torch.tensor([[1, 2], [3, 3]]), [3, 3], [2, 1])
    loss = drawn.outputs[0].numpy()
    assert not faults_of(drawn, [loss, np.zeros((2, 3, 7))], False)
    assert faults_of(drawn, [loss + 1, drawn.outputs[1].numpy()], False)


def test_integers_that_become_floats_are_compared_with_float64_too():
    drawn = call(aten.true_divide.Tensor, torch.tensor([1]), torch.tensor([3]))
    assert drawn.outputs[0].dtype == torch.float32
    assert in_float64(drawn)[0].item() == 1 / 3
    assert torch.get_default_dtype() == torch.float32


def test_defined_calls_have_no_reason():
    assert not list(reasons(call(aten.special_shifted_chebyshev_polynomial_u.x_scalar, 0.25, torch.tensor([5]))))
    assert not list(reasons(call(aten.bucketize.Tensor, torch.tensor([0.5]), EDGES.sort().values)))
    assert not list(reasons(call(aten.scatter.src, torch.zeros(3), 0, torch.tensor([1, 2]), torch.ones(2))))
    assert not list(reasons(call(aten._to_copy.default, torch.tensor([1.5]), dtype=torch.int32)))


NAMED = [
    "_weight_norm", "norm_except_dim", "_neg_view_copy", "_reshape_alias", "unique_dim", "unique_consecutive",
    "slice_inverse", "linalg_lstsq", "isclose", "mode", "_addmm_activation", "multilabel_margin_loss_forward",
    "multi_margin_loss", "inner", "_prelu_kernel", "_fused_rms_norm", "_embedding_bag_forward_only", "_pdist_forward",
    "_safe_softmax", "linalg_tensorsolve", "upsample_bilinear2d", "upsample_nearest3d",
]  # fmt: skip
"""Operators of which drawn calls were wrong once."""


@pytest.mark.parametrize("name", NAMED)
def test_named_operators_are_right_or_refused(name):
    found = [examine(getattr(aten, name).default, 1, index, lambda stage: None) for index in range(2)]
    assert not [outcome for outcome in found if outcome.kind in FAULTS], found


def _misfit(overload, *args):
    return harness.Call(overload, args, {}, [])


def test_a_misfit_is_refused_as_eager_pytorch_does(monkeypatch):
    misfit = _misfit(aten.bincount.default, torch.tensor([1]), None, -2)
    assert judge_misfit(misfit).kind == BOTH_REFUSE
    monkeypatch.setattr(tracer, "check_sizes", lambda *given: None)
    assert judge_misfit(misfit).kind == WRITTEN
    assert WRITTEN in FAULTS


LARGE = torch.zeros(40, 30, 20)
"""More elements than are tried at their own sizes."""
T = torch.tensor
X, MASK = torch.randn(4, 3), torch.ones(2, dtype=torch.bool)
MISFITS = [
    (aten._pack_padded_sequence.default, torch.ones(0, 1), torch.zeros(0).long(), True),
    (aten.as_strided_scatter.default, torch.ones(1), torch.ones(1), [1], []),
    (aten.one_hot.default, torch.zeros(200, 100, dtype=torch.int32)),
    (aten.multilabel_margin_loss_forward.default, torch.ones(200, 100), torch.zeros(200, 100, dtype=torch.int32), 1),
    (aten.multilabel_margin_loss.default, torch.ones(200, 100), torch.zeros(200, 100)),
    (aten._ctc_loss.Tensor, torch.ones(100, 20, 5), torch.ones(20, 3), *[torch.full((20,), 3)] * 2),
    *(
        (of, torch.ones(1, count, 2, 2), torch.ones(1, count, 4, 4), *args, torch.zeros(1, count, 2, 2, dtype=dtype))
        for count, dtype in ((1, torch.bool), (1, torch.uint8), (1200, torch.int32), (1200, torch.float32))
        for of, *args in (
            (aten.adaptive_max_pool2d_backward.default,),
            (aten.max_pool2d_with_indices_backward.default, [2, 2], [2, 2], [0, 0], [1, 1], False),
        )
    ),
    *(
        (of, torch.zeros(0, 3, 4), [T([[0, 1]]), torch.ones(3) > 0, T([0, 1])], torch.ones(()), True)
        for of in (aten._unsafe_index_put.default, aten.index_put.default)
    ),
    (aten.cudnn_batch_norm_backward.default, *[torch.ones(2, 3)] * 2, *[torch.ones(2)] * 5, 0.1, torch.ones(0)),
    (aten.ctc_loss.Tensor, torch.ones(1), T([1]), T([True]), T([True])),
    (aten.ctc_loss.Tensor, torch.zeros(3, 2, 4), T([[1], [1]]), T([3, 3]), torch.ones(2)),
    (aten.index.Tensor, torch.zeros(3, 0, 4), [torch.ones(3) > 0, T([0, 1, 0])]),
    (aten._unsafe_index_put.hacked_twin, X[:, 0], [torch.ones(4, dtype=torch.bool)] * 2, torch.ones(()), False),
    (aten.index_put.default, X, [torch.ones(4, dtype=torch.bool), MASK, MASK], torch.ones(())),
    (aten.index_put.hacked_twin, X, [MASK, torch.tensor([1])], torch.ones(()), False),
    (aten.index.Tensor, X, [None, MASK]),
    (aten._unsafe_index.Tensor, X[:2], [MASK]),
    (aten._index_put_impl.default, X, [MASK], torch.ones(())),
    (aten.squeeze.dims, X, [1, 1]),
    (aten.squeeze.dims, torch.ones(()), [0, -1]),
    (aten.repeat_interleave.Tensor, torch.ones(3)),
    (aten.repeat_interleave.self_Tensor, X, torch.tensor([1, 2, 1]), 0),
    (aten.repeat_interleave.self_Tensor, X, torch.tensor([1, 2, 1])),
    (aten.repeat_interleave.self_Tensor, X[None], torch.tensor([[1]]), 0),
    (aten.tanh_backward.default, *[torch.tensor([1, 2])] * 2),
    (aten.sigmoid_backward.default, *[torch.tensor([1, 2])] * 2),
    (aten.sub.Scalar, X, False),
    *((overload, LARGE, *of) for overload, *of in ((aten.sort.default, -5), (aten.softmax.int, 3), (aten.log_softmax.int, 5))),
    (aten.select.int, LARGE, -5, 1),
    (aten.narrow.Tensor, torch.zeros(2, 1, 5), -3, torch.tensor(-5, dtype=torch.int32), 4),
    *((aten.narrow.Tensor, X, -1, start, 0) for start in (torch.tensor([1]), torch.tensor([[0]]), torch.tensor(True))),
    (aten.add.Scalar, X, 1, True),
    (aten.randint_like.Tensor, X, torch.ones(2)),
    (aten.tensor_split.tensor_indices_or_sections, X[0], torch.tensor([1, 1]), -5),
    (aten.tensor_split.tensor_indices_or_sections, X, torch.tensor([1, 2], dtype=torch.uint8)),
    (aten.tensor_split.tensor_indices_or_sections, X, torch.tensor([[1, 2]])),
    (aten.embedding_renorm.default, X, torch.tensor([1, 2], dtype=torch.uint8), 1.0, 2.0),
    (aten._pack_padded_sequence.default, X[..., None], torch.tensor([3, 2, 1], dtype=torch.int32), False),
    (aten._pad_packed_sequence.default, X, torch.zeros(0).long(), False, 0.0, 3),
    (aten.rnn_tanh.data, X[:, 0], torch.tensor([1, 1]), torch.zeros(1, 1, 2), [torch.ones(2, 2)] * 2, False, 1, 0.0, False, False),
    (aten.rnn_relu.data, X, torch.tensor([4]), torch.zeros(2, 4, 3), [torch.ones(3, 3)] * 4, False, 1, 0.0, False, False),
    (aten.rnn_tanh.data, X, torch.tensor([2, 2]), torch.zeros(1, 2, 3), [torch.ones(3, 3)] * 2, False, 1, 2.0, True, False),
    (aten.lstm.input, LARGE, [torch.zeros(1, 30, 1)] * 2, [torch.ones(4, 20), torch.ones(4, 1)], False, 1, 1.5, False, False, False),
    *(
        (aten.scaled_dot_product_attention.default, *[torch.zeros(sizes)] * 3, None, share)
        for sizes in ([2, 3, 4], [1, 4, 80, 80])
        for share in (2.0, -0.1, float("inf"), float("nan"))
    ),
    *((aten.embedding.default, torch.zeros(0, 3, dtype=dtype), torch.tensor([0, 1])) for dtype in (torch.float32, torch.float16)),
    (aten.avg_pool3d.default, torch.zeros(2, 1, 7, 3, 2), [3], [], [1]),
    (aten._grouped_mm.default, *[torch.ones(4, 3, 4, dtype=torch.int64)] * 2),
    (aten._grouped_mm.default, torch.zeros(4, 4), torch.zeros(2, 4, 4), torch.tensor([2, 4])),
    (aten._grouped_mm.default, torch.zeros(4, 4), torch.zeros(2, 4, 4)),
    (aten._pack_padded_sequence.default, torch.zeros(3, 1, 3), torch.tensor([1]), True),
    (aten._pack_padded_sequence.default, torch.zeros(2, 3, 3), torch.tensor([2, 1]), False),
    *((aten.cdist.default, torch.zeros(2, 3, dtype=dtype), torch.zeros(4, 3), 2.0) for dtype in (torch.float16, torch.bfloat16)),
    (aten._pad_packed_sequence.default, X, torch.tensor([2, 2]), False, 0.0, 1),
    (aten.gru.data, X, torch.tensor([4]), torch.zeros(1, 4, 1), [torch.ones(3, 3), torch.ones(6, 1)], False, 1, 0.0, False, False),
]  # fmt: skip


@pytest.mark.parametrize("misfit", MISFITS, ids=lambda misfit: str(misfit[0]))
def test_what_fake_kernels_take_is_refused_as_eager_pytorch_does(misfit):
    assert judge_misfit(_misfit(*misfit)).kind == BOTH_REFUSE


@pytest.mark.parametrize(("rows", "repeats", "axis", "rest"), [(4, T(2), 0, 1), (4, T([2]), None, 1), (0, T(3), 0, 5)])
def test_rows_that_are_all_repeated_as_often_fill_an_output_size_that_is_their_multiple(rows, repeats, axis, rest):
    repeated = functools.partial(aten.repeat_interleave.self_Tensor, X[:rows], repeats, axis)
    total = len(repeated())
    assert judge(call(aten.repeat_interleave.self_Tensor, X[:rows], repeats, axis, output_size=total)).kind == RIGHT
    misfit = harness.Call(
        aten.repeat_interleave.self_Tensor, (X[:rows], repeats, axis), {"output_size": total + rest}, []
    )
    assert judge_misfit(misfit).kind == BOTH_REFUSE


def test_a_translation_that_fails_for_what_eager_pytorch_refuses_tells_its_sentence():
    indices, places, none = torch.zeros(6).long(), torch.tensor([0, 1]), torch.zeros(2).long()
    numbers = (2, False, 0, False, None, 0)
    misfit = _misfit(aten._embedding_bag_backward.default, torch.randn(2, 3), indices, places, torch.zeros(3).long(), none, none, *numbers)  # fmt: skip
    assert judge_misfit(misfit).kind == BOTH_REFUSE


def test_what_a_file_cannot_tell_is_no_fault():
    index = _misfit(aten.index_select.default, torch.randn(3, 2), 0, torch.tensor([5]))
    assert judge_misfit(index).kind == NUMBERS_ALONE
    weights = [torch.ones(2, 2)] * 2
    rows = _misfit(aten.rnn_tanh.data, X[:2, :2], torch.tensor([2, 2]), torch.zeros(1, 2, 2), weights, False, 1, 0.0, False, False)  # fmt: skip
    assert judge_misfit(rows).kind == NUMBERS_ALONE
    assert judge_misfit(_misfit(aten.linalg_tensorinv.default, torch.zeros(2, 3, 6), 2)).kind == NUMBERS_ALONE
    repeats = harness.Call(aten.repeat_interleave.Tensor, (torch.tensor([1]),), {"output_size": 7}, [])
    assert judge_misfit(repeats).kind == NUMBERS_ALONE
    without_pivots = harness.Call(aten.linalg_lu_factor.default, (torch.randn(3, 3),), {"pivot": False}, [])
    assert judge_misfit(without_pivots).kind == CPU_ALONE


@pytest.mark.parametrize("overload", [aten.argsort.default, aten.gather.default, aten.native_layer_norm.default])
def test_moved_calls_are_those_that_eager_pytorch_takes_or_refuses(overload):
    assert edge_call(overload, 3, 0, True).outputs
    misfit = edge_call(overload, 3, 0, False)
    with pytest.raises((RuntimeError, IndexError)):
        overload(*misfit.args, **misfit.kwargs)
    for drawing in (EDGE, MISFIT):
        assert examine(overload, 3, 0, lambda stage: None, drawing).kind not in FAULTS


def test_calls_at_the_edge_go_through_the_kinds_of_moves():
    start = call(aten.sum.dim_IntList, torch.randn(2, 3), [0])
    seen = [next(moved_calls(start, 1, index, 9, lambda argument: torch.float64)) for index in range(40)]
    moved = [(args[0].dtype, args[0].shape, args[1], kwargs["dtype"]) for args, kwargs in seen]
    dtypes, shapes, dims, wanted = (set(map(str, column)) for column in zip(*moved, strict=True))
    assert [len(column) > 2 for column in (dtypes, shapes, dims, wanted)] == [True, True, True, False]
    assert len(wanted) == 2
    again = [next(moved_calls(start, 1, index, 9, lambda argument: torch.float64)) for index in range(40)]
    assert [str(args) for args, _ in seen] == [str(args) for args, _ in again]


def test_the_forward_call_of_a_backward_overload_is_moved():
    drawn = [edge_call(aten.avg_pool2d_backward.default, 1, index, True) for index in range(4)]
    assert len({each.describe() for each in drawn}) > 1
    for each in drawn:
        grad, source = each.args[:2]
        assert grad.shape == aten.avg_pool2d.default(source, *each.args[2:]).shape


@pytest.mark.slow
def test_every_twentieth_overload_is_right_or_refused(tmp_path):
    names = list(overload_sweep.overloads())[::20]
    assert overload_sweep.main([*names, "--each", "1", "--seed", "5", "--file", str(tmp_path / "rows.jsonl")]) == 0


@pytest.mark.slow
def test_a_sweep_goes_on_where_it_stopped(tmp_path):
    file = tmp_path / "rows.jsonl"
    arguments = ["aten.relu.default", "aten.tril.default", "--each", "2", "--jobs", "1", "--file", str(file)]
    assert overload_sweep.main(arguments) == 0
    rows = overload_sweep.read_rows(file)
    assert {row["class"] for row in rows} <= {RIGHT, BOTH_REFUSE, "not drawn"}
    assert len(rows) == 12
    before = file.read_text()
    assert overload_sweep.main(arguments) == 0
    assert file.read_text() == before
