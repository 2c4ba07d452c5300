"""What capture records of a call has the type that PyTorch's kernels give, also where the fake kernels give another."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

import fx2onnx
from fx2onnx.judge.engines import open_onnxruntime, open_runner
from fx2onnx.verify.arrays import to_numpy
from tests.support import Call, check

aten = torch.ops.aten


ROWS = torch.tensor([[1.0, 2.0], [1.0, 2.0], [3.0, 4.0]])
HALF, WIDE = torch.randn(2, 4, 3).half(), torch.rand(4) + 0.5
BAGS = (torch.randn(4, 2), torch.tensor([1, 0, 2, 1, 3]), torch.tensor([0, 2, 5]))
CALLS = [
    *((Call(aten.unique_dim.default, 0, True, *asked), (ROWS,)) for asked in ((False, False), (False, True), (True, False))),
    *((Call(aten.unique_dim_consecutive.default, -2, *asked), (ROWS,)) for asked in ((False, False), (True, False))),
    (Call(aten.unique_consecutive.default, False, False, 0), (ROWS,)),
    (Call(aten.unique_consecutive.default, False, True), (ROWS,)),
    (Call(aten.nansum.default, []), (torch.tensor([[1.0, float("nan")]]),)),
    (Call(aten.nanmean.default, [], True), (torch.tensor([[1.0, float("nan")]]),)),
    *((Call(aten._embedding_bag_forward_only.default, False, mode, False, None, True), BAGS) for mode in (0, 1, 2)),
    (Call(aten._embedding_bag.default, False, 1), (BAGS[0], BAGS[1].int(), BAGS[2].int())),
    (Call(aten.native_batch_norm.default, True, 0.1, 1e-5), (HALF, WIDE, WIDE, WIDE, WIDE)),
    (Call(aten.native_batch_norm.default, True, 0.1, 1e-5), (HALF, *([WIDE.half()] * 4))),
    (Call(aten._native_batch_norm_legit.no_stats, True, 0.1, 1e-5), (HALF, WIDE, WIDE)),
    *((Call(aten.pow.Tensor_Scalar, power), (torch.tensor([True, False]),)) for power in (True, False, 1)),
    *((Call(aten.huber_loss.default, reduction), (WIDE, WIDE.double().flip(0))) for reduction in (0, 1)),
    (Call(aten.soft_margin_loss.default, 0), (WIDE, WIDE.double())),
    (Call(aten.mse_loss_backward.default, 1), (WIDE.double(), WIDE, WIDE.flip(0).int())),
    (Call(aten.smooth_l1_loss_backward.default, 0, 1.0), (WIDE, WIDE, WIDE.flip(0).double())),
    (Call(aten.soft_margin_loss_backward.default, 0), (WIDE.double(), WIDE, WIDE)),
    (Call(aten.mish_backward.default), (WIDE.double(), WIDE)),
    *((Call(of, 0.5), (WIDE, WIDE.double())) for of in (aten.hardshrink_backward.default, aten.threshold_backward.default)),
    *((Call(aten.rrelu_with_noise_backward.default, 0.1, 0.3, of, False), (WIDE, WIDE - 1, WIDE.double())) for of in (True, False)),
    *((Call(aten.ldexp.Tensor), of) for of in ((WIDE.half(), torch.tensor([3, 1, -2, 0])), (WIDE[0] > 0, WIDE[0].half()), (WIDE.half(), WIDE))),
    (Call(aten.fill.Tensor), (WIDE, torch.tensor(2 + 3j))),
    (Call(aten.native_group_norm.default, None, None, 2, 3, 2, 1, 1e-3), (torch.randn(2, 1, 3, 2),)),
    (Call(aten._weight_norm_interface.default, 0), (WIDE.reshape(2, 2).half(), WIDE[:2].half())),
    *((Call(aten._batch_norm_no_update.default, 0.1, 1e-5), (HALF, *of)) for of in ([WIDE] * 4, [WIDE.half()] * 4)),
]  # fmt: skip


@pytest.mark.parametrize(("module", "args"), CALLS, ids=lambda value: str(getattr(value, "overload", "")))
def test_recorded_types_are_those_of_kernels(module, args):
    check(module, tuple(tensor.clone() for tensor in args), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_batch_norm_trains_in_half_precision(dtype, own):
    module = torch.nn.BatchNorm1d(4).to(dtype if own else torch.float32)
    x = torch.randn(3, 4).to(dtype)
    with torch.no_grad():
        wanted = to_numpy(copy.deepcopy(module).train()(x))
    model = fx2onnx.export(module, x, training=True).model_proto
    for engine in (open_runner, open_onnxruntime):
        got = engine(model.SerializeToString())({model.graph.input[0].name: to_numpy(x)})[0]
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.astype(np.float32), wanted.astype(np.float32), rtol=2e-2, atol=2e-2)


def test_no_drawn_numbers_have_the_dtype_of_what_is_given():
    args = (torch.zeros(0, 2, dtype=torch.int64),)
    check(lambda x: (aten.normal.float_Tensor(0.5, x), aten.normal.Tensor_float(x, 0.5)), args)


@pytest.mark.parametrize(("mean", "std"), [(torch.float32, torch.float64), (torch.float16, torch.float32)])
def test_drawn_numbers_have_the_dtype_of_the_mean(mean, std):
    module, args = Call(aten.normal.Tensor_Tensor), (torch.ones(2, 1, dtype=mean), torch.ones(2, dtype=std))
    model = fx2onnx.export(module, args).model_proto
    for engine in (open_runner, open_onnxruntime):
        feeds = {value.name: to_numpy(tensor) for value, tensor in zip(model.graph.input, args, strict=True)}
        got = engine(model.SerializeToString())(feeds)[0]
        assert (got.dtype, got.shape) == (to_numpy(args[0]).dtype, (2, 2))


def test_randperm_without_a_dtype_is_of_integers():
    class Permuted(torch.nn.Module):
        def forward(self, x):
            return x, aten.randperm.default(3, dtype=None)

    model = fx2onnx.export(Permuted(), torch.ones(1)).model_proto
    assert model.graph.output[1].type.tensor_type.elem_type == 7
