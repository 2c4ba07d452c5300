"""Operands that eager PyTorch refuses and torch's fake kernels take: E101 with eager's sentence and the user's line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fx2onnx
from fx2onnx.capture.driver import capture
from fx2onnx.capture.options import CaptureOptions

FLOAT, DOUBLE, HALF, LONG, BOOL = torch.float32, torch.float64, torch.float16, torch.int64, torch.bool


class Called(nn.Module):
    """A layer that is called in forward, so that the error has a line."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: torch.Tensor) -> Any:
        return self.layer(*args)


class Of(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def _sentence(module: nn.Module, args: tuple[torch.Tensor, ...]) -> str:
    with torch.no_grad(), pytest.raises((RuntimeError, ValueError)) as caught:
        module.eval()(*args)
    return str(caught.value).splitlines()[0]


def _check_refused(module: nn.Module, *args: torch.Tensor) -> None:
    sentence = _sentence(module, args)
    for dynamic in (None, {"args": ({0: "n"},)}) if len(args) == 1 else (None,):
        with pytest.raises(fx2onnx.UserError) as caught:
            capture(module, args, options=CaptureOptions(dynamic_shapes=dynamic))
        assert caught.value.code == "E101"
        is_of_fake_kernel = "dtype" in caught.value.why or "scalar type" in caught.value.why
        assert sentence[:60] in caught.value.why or is_of_fake_kernel
        assert caught.value.where is not None
        assert caught.value.where.function in ("forward", "<lambda>")


def _sample(dtype: torch.dtype, *sizes: int) -> torch.Tensor:
    return torch.ones(sizes, dtype=dtype)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(4, 2), (3, 4)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (3, 4)),
    "BatchNorm": (lambda: nn.BatchNorm1d(4), (3, 4)),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (3, 4)),
    "InstanceNorm": (lambda: nn.InstanceNorm1d(4, affine=True, track_running_stats=True), (3, 4, 5)),
    "PReLU": (nn.PReLU, (3, 4)),
    "Conv": (lambda: nn.Conv1d(4, 2, 1), (3, 4, 5)),
    "ConvTranspose": (lambda: nn.ConvTranspose1d(4, 2, 1), (3, 4, 5)),
    "LSTM": (lambda: nn.LSTM(4, 2), (3, 2, 4)),
    "GRUCell": (lambda: nn.GRUCell(4, 2), (3, 4)),
    "Encoder": (lambda: nn.TransformerEncoderLayer(4, 2, 8), (3, 2, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("weights", "operand"), [(HALF, FLOAT), (DOUBLE, FLOAT), (FLOAT, DOUBLE), (FLOAT, LONG)])
def test_weights_of_another_dtype(name: str, weights: torch.dtype, operand: torch.dtype) -> None:
    make, sizes = LAYERS[name]
    _check_refused(Called(make().to(weights)), _sample(operand, *sizes))


X, S = (3, 3), (2, 3, 3)
PAIRS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "matmul": (torch.matmul, X),
    "mm": (torch.mm, X),
    "mv": (lambda x, y: torch.mv(x, y[0]), X),
    "dot": (lambda x, y: torch.dot(x[0], y[0]), X),
    "bmm": (torch.bmm, S),
    "addmm": (lambda x, y: torch.addmm(y, x, x), X),
    "addmv": (lambda x, y: torch.addmv(y[0], x, x[0]), X),
    "baddbmm": (lambda x, y: torch.baddbmm(y, x, x), S),
    "addbmm": (lambda x, y: torch.addbmm(x[0], x, y), S),
    "einsum": (lambda x, y: torch.einsum("ij,kj->ik", x, y), X),
    "linear": (F.linear, X),
    "bilinear": (lambda x, y: F.bilinear(x, y, x[None]), X),
    "tensordot": (lambda x, y: torch.tensordot(x, y, 1), X),
    "cdist": (torch.cdist, X),
    "cross": (torch.linalg.cross, X),
    "solve": (torch.linalg.solve, X),
    "attention": (lambda x, y: F.scaled_dot_product_attention(x, y, x), S),
    "grid_sample": (lambda x, y: F.grid_sample(x[None], y[None, :, :, :2]), S),
    "scatter": (lambda x, y: x.scatter(0, torch.zeros(3, 3, dtype=LONG), y), X),
    "index_add": (lambda x, y: x.index_add(0, torch.tensor([0, 1, 2]), y), X),
    "index_put": (lambda x, y: x.index_put((torch.tensor([0, 1, 2]),), y), X),
    "masked_scatter": (lambda x, y: x.masked_scatter(x > 0, y), X),
    "complex": (torch.complex, X),
    "lerp": (lambda x, y: torch.lerp(x, y, 0.5), X),
    "multi_dot": (lambda x, y: torch.linalg.multi_dot([x, y, x]), X),
}


@pytest.mark.parametrize("name", PAIRS)
def test_operands_of_two_dtypes(name: str) -> None:
    function, sizes = PAIRS[name]
    _check_refused(Of(function), _sample(FLOAT, *sizes), _sample(DOUBLE, *sizes))


ALONE: dict[str, tuple[Callable[[torch.Tensor], Any], torch.dtype]] = {
    "softmax": (lambda x: x.softmax(-1), LONG),
    "gelu": (F.gelu, LONG),
    "mean": (torch.mean, LONG),
    "relu of bools": (torch.relu, BOOL),
    "difference of bools": (lambda x: x - x, BOOL),
    "negative bools": (torch.neg, BOOL),
    "bits of floats": (lambda x: x & x, FLOAT),
    "bits of half floats": (lambda x: x & x, HALF),
    "floor of bools": (torch.floor, BOOL),
    "product of bools": (lambda x: x @ x, BOOL),
    "bilinear": (lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"), LONG),
    "cholesky": (torch.linalg.cholesky, LONG),
    **{
        f"{function.__name__} of {dtype}, which no device has": (function, dtype)
        for function in (
            torch.linalg.eigh,
            torch.linalg.inv,
            torch.linalg.qr,
            torch.det,
            torch.linalg.svdvals,
            torch.pdist,
            torch.special.bessel_j0,
            torch.special.ndtri,
            torch.special.log_ndtr,
        )
        for dtype in (HALF, torch.bfloat16)
    },
    **{
        f"{function.__name__} of two in half precision": (lambda x, function=function: function(x, x), HALF)
        for function in (
            torch.cdist,
            torch.special.zeta,
            torch.special.hermite_polynomial_h,
            torch.linalg.solve,
            torch.cholesky_solve,
        )
    },
    "ctc": (lambda x: F.ctc_loss(x[:, None], torch.ones(1, 1).long(), (3,), (1,)), HALF),
    "embedding": (lambda x: F.embedding(x, x), FLOAT),
    "gather": (lambda x: x.gather(0, x), FLOAT),
}


@pytest.mark.parametrize("name", ALONE)
def test_dtypes_that_a_kernel_does_not_have(name: str) -> None:
    function, dtype = ALONE[name]
    _check_refused(Of(function), _sample(dtype, 3, 3))


TAKEN: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "promoted": (lambda x, y: x + y, (_sample(FLOAT, 3, 3), _sample(DOUBLE, 3, 3))),
    "chosen": (torch.where, (_sample(BOOL, 3), _sample(FLOAT, 3), _sample(LONG, 3))),
    "joined": (lambda x, y: torch.cat([x, y]), (_sample(FLOAT, 3), _sample(LONG, 3))),
    "integers": (lambda x: x @ x, (_sample(LONG, 3, 3),)),
    "half in a kernel that the CPU lacks": (
        lambda x: F.interpolate(x[None, None], (2, 2), mode="bilinear", antialias=True),
        (_sample(HALF, 3, 3),),
    ),
    "half in distances that a product gives": (torch.cdist, (_sample(HALF, 30, 3), _sample(HALF, 30, 3))),
    "grouped": (lambda x: F.group_norm(x, 40), (_sample(FLOAT, 1, 320, 9),)),
    "divided integers": (lambda x, y: x // y, (_sample(LONG, 3), _sample(LONG, 3))),
    "norm of half": (lambda x, w: F.layer_norm(x, (4,), w, w), (_sample(HALF, 3, 4), _sample(FLOAT, 4))),
    "large": (lambda x, y: F.linear(x, y[:, :700]), (_sample(FLOAT, 9, 700), _sample(FLOAT, 3000, 701))),
}


@pytest.mark.parametrize("name", TAKEN)
def test_what_eager_takes_is_captured(name: str) -> None:
    function, args = TAKEN[name]
    assert capture(Of(function), args).outputs


def test_dtypes_that_a_kernel_has_for_some_sizes() -> None:
    """Distances of many rows are a product, which exists in half precision; those of few rows are not."""
    name = "half in distances that a product gives"
    test_what_eager_takes_is_captured(name)
    test_dtypes_that_a_kernel_does_not_have("cdist of two in half precision")
    test_what_eager_takes_is_captured(name)


def test_a_mistake_that_forward_catches_goes_on_as_in_eager() -> None:
    class Falling(nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            try:
                return x @ y
            except RuntimeError:
                return x @ y.to(x.dtype)

    args = (torch.randn(3, 3), torch.randn(3, 3).double())
    result = fx2onnx.export(Falling(), args, verify=True)
    assert [node.op_type for node in result.model.graph] == ["Cast", "MatMul"]


def test_autocast_makes_them_fit() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.layer(x)

    assert capture(Mixed(), (torch.randn(3, 4).bfloat16(),)).outputs


def test_random_numbers_are_as_before() -> None:
    before = torch.get_rng_state()
    capture(nn.Sequential(nn.Linear(4, 2, device="meta"), nn.RReLU()), (torch.zeros(3, 4),))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_of_the_caller_is_as_before() -> None:
    generator = torch.Generator()
    before = generator.get_state()
    capture(Of(lambda x: x + torch.bernoulli(x, generator=generator)), (torch.zeros(3),))
    assert torch.equal(generator.get_state(), before)


R = torch.randn
SIZES: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "addmm of three axes": (torch.addmm, (R(1, 2, 3), R(2, 4), R(4, 3))),
    "addmv of two": (torch.addmv, (R(2, 2), R(2, 4), R(4))),
    "large addmv of two": (torch.addmv, (R(200, 200), R(200, 400), R(400))),
    "large slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 0, 2), (R(300, 300), R(2, 400))),
    "large diagonal_scatter": (torch.diagonal_scatter, (R(300, 300), R(400))),
    "large select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), (R(200, 300), R(400))),
    "diagonal_scatter": (torch.diagonal_scatter, (R(3, 3), R(4))),
    "select_scatter": (lambda x, y: torch.select_scatter(x, y, 0, 1), (R(3, 3), R(4))),
    "slice_scatter": (lambda x, y: torch.slice_scatter(x, y, 0, 0, 2), (R(3, 3), R(2, 4))),
    "batch_norm of other channels": (
        lambda x, y: torch.ops.aten._native_batch_norm_legit_no_training(x, None, None, y, y, 0.1, 0.1),
        (R(1, 2, 3), R(2, 1)),
    ),
    "argsort along no axis": (lambda x: torch.argsort(x, 4), (R(1, 5, 2),)),
    "max of nothing": (torch.max, (R(0),)),
    "bincount with less than no bins": (lambda x: torch.bincount(x, minlength=-2), (torch.tensor([1, 2]),)),
    "repeats of two axes": (torch.repeat_interleave, (torch.ones(1, 1, dtype=LONG),)),
    "histogram without bins": (lambda x: torch.histogram(x, 0)[0], (R(4),)),
    "a window of integers": (lambda x: x + torch.hann_window(4, dtype=LONG), (R(4),)),
    "boundaries of two axes": (torch.bucketize, (R(3), R(2, 2))),
    "a place in nothing": (lambda x: x.gather(0, torch.zeros(1, dtype=LONG)), (R(0),)),
    "ctc_loss of probabilities of one axis": (lambda x: F.ctc_loss(x, torch.ones(1, 2, dtype=LONG), [2], [2]), (R(3),)),
    "lengths of another batch": (lambda x, n: F.ctc_loss(x, torch.ones(2, 2, dtype=LONG), n, torch.tensor([1, 1])), (R(5, 2, 3), torch.tensor([5]))),
    "celu with alpha 0": (lambda x: F.celu(x, 0.0), (R(3),)),
    "dropout by less than nothing": (lambda x: torch.ops.aten.dropout(x, -1.0, False), (R(3),)),
    "fill_ of one axis": (lambda x, y: x.clone().fill_(y), (R(3), R(1))),
    "float_power_ of float32": (lambda x: x.clone().float_power_(2.0), (R(3),)),
    "upsampling to another number of axes": (lambda x: torch.ops.aten._upsample_nearest_exact2d.vec(x, [3], None), (R(1, 1, 1),)),
    "gelu of another name": (lambda x: torch.ops.aten.gelu_backward(x, x, approximate="other"), (R(3),)),
    "state of another batch": (lambda x, h: torch.rnn_tanh(x, h, [R(3, 3), R(3, 3)], False, 1, 0.0, False, False, True), (R(4, 2, 3), R(1, 3, 3))),
    "weights of a class loss of two axes": (lambda x, y: torch.ops.aten.multi_margin_loss(x, torch.tensor([0, 1]), 1, 1, y), (R(2, 2), R(1, 2))),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_fake_kernels_take_are_refused_as_eager_pytorch_does(name: str) -> None:
    function, args = SIZES[name]
    with pytest.raises((RuntimeError, IndexError)) as eager:
        function(*args)
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(function, args)
    assert caught.value.code == "E101"
    assert str(eager.value).splitlines()[0][:40] in caught.value.why


def test_large_operands_are_taken() -> None:
    fx2onnx.export(torch.addmm, (R(5), R(300, 40), R(40, 5)), dynamic_shapes=({}, {0: "n"}, {}))
    fx2onnx.export(
        lambda x, y: torch.select_scatter(x, y, 0, 200), (R(300, 9), R(9)), dynamic_shapes=({1: "n"}, {0: "n"})
    )


NUMBERS: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "an index among the rows": (lambda x, i: x.index_select(0, i), (R(3, 2), torch.tensor([1, 2]))),
    "a matrix with an inverse": (torch.linalg.inv, (R(3, 3),)),
    "equations with a solution": (torch.linalg.tensorsolve, (torch.eye(4).reshape(2, 2, 4), R(2, 2))),
    "a probability": (torch.bernoulli, (torch.rand(3),)),
    "lengths of packed sequences": (
        lambda x, n: F.ctc_loss(x.log_softmax(-1), torch.ones(2, 2, dtype=LONG), n, torch.tensor([2, 1])),
        (R(5, 2, 3), torch.tensor([5, 4])),
    ),
    "targets one behind another": (
        lambda x, n: F.ctc_loss(x.log_softmax(-1), torch.ones(3, dtype=LONG), n, torch.tensor([2, 1])),
        (R(5, 2, 3), torch.tensor([5, 4])),
    ),
    "pivots, which are never 0": (torch.lu_unpack, (R(3, 3), torch.tensor([2, 3, 3], dtype=torch.int32))),
    "memory beyond the operand": (lambda x: torch.as_strided_copy(x[:, :2], [3, 4], [4, 1]), (R(3, 4),)),
    "a half that the CPU's kernels lack": (torch.linalg.vector_norm, (R(3).half(),)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_tensors_refuse_nothing(name: str) -> None:
    function, args = NUMBERS[name]
    assert capture(Of(function), args).outputs


@pytest.mark.parametrize(
    "function", [lambda x: torch.geqrf(x)[0], lambda x: torch.histogram(x, x[None].expand(2, -1))[0]]
)
def test_what_has_no_translation_because_eager_pytorch_refuses_it_is_e101(function: Callable[..., Any]) -> None:
    """Operands with many elements are not tried while they are captured."""
    with pytest.raises(RuntimeError) as eager:
        function(R(20_000))
    with pytest.raises(fx2onnx.UserError) as caught:
        fx2onnx.export(function, (R(20_000),))
    assert caught.value.code == "E101"
    assert str(eager.value).splitlines()[0][:40] in caught.value.why
    assert caught.value.where is not None
