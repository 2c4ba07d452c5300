"""Gradients of operators: what autograd takes through each, exported and run, beside autograd in float64."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import fx2onnx
from tests.support import check, run_engines

Function = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]


def _r(*sizes: int) -> torch.Tensor:
    count = int(np.prod(sizes))
    return torch.from_numpy(np.random.default_rng(count).standard_normal(sizes).astype(np.float32))


def _convolutions() -> dict[str, tuple[Function, Tensors]]:
    found: dict[str, tuple[Function, Tensors]] = {}
    for stride, pad, gap, groups in [(1, 0, 1, 1), (2, 1, 1, 1), (3, 2, 2, 1), (1, 1, 1, 2), (2, 1, 1, 4)]:
        name = f"stride {stride}, padding {pad}, dilation {gap}, groups {groups}"
        found[name] = (
            lambda x, w, b, s=stride, p=pad, d=gap, g=groups: F.conv2d(x, w, b, s, p, d, g),
            (_r(2, 4, 11, 10), _r(8, 4 // groups, 3, 3), _r(8)),
        )
        found[f"transposed, {name}"] = (
            lambda x, w, b, s=stride, p=pad, d=gap, g=groups: F.conv_transpose2d(x, w, b, s, p, s - 1, g, d),
            (_r(2, 4, 6, 5), _r(4, 8 // groups, 3, 3), _r(8)),
        )
    found["depthwise"] = (lambda x, w: F.conv2d(x, w, None, 2, 1, 1, 4), (_r(2, 4, 7, 7), _r(4, 1, 3, 3)))
    found["pointwise"] = (F.conv2d, (_r(2, 3, 4, 4), _r(4, 3, 1, 1)))
    found["many channels"] = (lambda x, w: F.conv2d(x, w, padding=1), (_r(1, 40, 5, 5), _r(2, 40, 3, 3)))
    turned: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
        "turned, all channels apart": ((2, 4, 7, 8), (4, 1, 3, 3), {"padding": 1, "groups": 4}),
        "turned, two rows a channel": ((2, 4, 7, 8), (8, 1, 5, 3), {"padding": (2, 0), "groups": 4}),
        "turned, groups and gaps": ((2, 6, 9, 8), (4, 3, 3, 2), {"padding": (2, 1), "dilation": (2, 3), "groups": 2}),
        "turned, one axis": ((2, 3, 9), (5, 3, 4), {"padding": 3}),
        "turned, three axes": ((1, 2, 4, 5, 4), (3, 2, 2, 3, 1), {"padding": (1, 1, 0)}),
        "padded beyond the kernel": ((2, 3, 6, 5), (4, 3, 3, 2), {"padding": (3, 1)}),
    }
    for name, (image, weight, options) in turned.items():
        convolve = (F.conv1d, F.conv2d, F.conv3d)[len(image) - 3]
        found[name] = (functools.partial(convolve, **options), (_r(*image), _r(*weight)))
    found["one axis"] = (lambda x, w: F.conv1d(x, w, stride=2, padding=2), (_r(2, 3, 9), _r(4, 3, 4)))
    found["three axes"] = (
        lambda x, w: F.conv3d(x, w, stride=(1, 2, 1), padding=1),
        (_r(1, 2, 4, 5, 4), _r(3, 2, 2, 3, 1)),
    )
    return found


def _poolings() -> dict[str, tuple[Function, Tensors]]:
    found: dict[str, tuple[Function, Tensors]] = {}
    image = (_r(2, 3, 9, 8),)
    for kernel, stride, pad, ceil, counts in [
        (2, 2, 0, False, True), (3, 2, 1, False, True), (3, 2, 1, True, True), (3, 2, 1, True, False),
        (3, 1, 1, False, False), (2, 3, 0, False, True),
    ]:  # fmt: skip
        name = f"{kernel}, stride {stride}, padding {pad}" + ", ceil" * ceil + ", padding not counted" * (not counts)
        arguments = (kernel, stride, pad, ceil, counts)
        found[f"average {name}"] = (lambda x, a=arguments: F.avg_pool2d(x, *a), image)
        found[f"max {name}"] = (lambda x, a=arguments: F.max_pool2d(x, *a[:3], 1, a[3]), image)
    found |= {
        "average with a divisor": (lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=5), image),
        "average, one axis": (lambda x: F.avg_pool1d(x, 3, 2, 1), (_r(2, 3, 9),)),
        "average, three axes": (lambda x: F.avg_pool3d(x, 2), (_r(2, 3, 4, 5, 6),)),
        "max, one axis": (lambda x: F.max_pool1d(x, 3, 2), (_r(2, 3, 9),)),
        "max, three axes": (lambda x: F.max_pool3d(x, 2), (_r(1, 2, 4, 4, 4),)),
        "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, 5)), image),
        "adaptive average, three axes": (lambda x: F.adaptive_avg_pool3d(x, (2, 1, 3)), (_r(2, 3, 5, 4, 7),)),
        "global average, three axes": (lambda x: F.adaptive_avg_pool3d(x, 1), (_r(2, 3, 5, 4, 7),)),
        "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), image),
    }
    return found


def _resamplings() -> dict[str, tuple[Function, Tensors]]:
    image = (_r(1, 2, 4, 5),)
    found: dict[str, tuple[Function, Tensors]] = {}
    for mode in ("nearest", "nearest-exact", "bilinear", "bicubic"):
        for sizes in ({"size": (7, 9)}, {"scale_factor": 2}, {"scale_factor": 1.6}, {"size": (3, 2)}):
            found[f"{mode} {sizes}"] = (lambda x, m=mode, s=sizes: F.interpolate(x, mode=m, **s), image)
    for mode in ("bilinear", "bicubic"):
        found[f"{mode} aligned"] = (lambda x, m=mode: F.interpolate(x, (7, 9), mode=m, align_corners=True), image)
        found[f"{mode} antialias"] = (lambda x, m=mode: F.interpolate(x, (3, 2), mode=m, antialias=True), image)
    found["linear"] = (lambda x: F.interpolate(x, scale_factor=2, mode="linear"), (_r(1, 2, 4),))
    found["trilinear"] = (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), (_r(1, 2, 3, 4, 2),))
    for mode in ("reflect", "replicate", "circular", "constant"):
        found[f"padding {mode}"] = (lambda x, m=mode: F.pad(x, (1, 2, 0, 3), mode=m), (_r(1, 2, 5, 6),))
    return found


def _recurrent(packet: Any, gates: int) -> tuple[Function, Tensors]:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        first = x.new_zeros(1, 2, 3)
        state = (first, first) if packet is torch.lstm else first
        return packet(x, state, list(weights), True, 1, 0.0, True, False, True)[0]  # type: ignore[no-any-return]

    return run, (_r(2, 5, 4), _r(gates, 4), _r(gates, 3), _r(gates), _r(gates))


OTHERS: dict[str, tuple[Function, Tensors]] = {
    "hardshrink": (F.hardshrink, (_r(3, 8) * 2,)),
    "softshrink": (F.softshrink, (_r(3, 8) * 2,)),
    "lstm": _recurrent(torch.lstm, 12),
    "gru": _recurrent(torch.gru, 9),
    "rnn": _recurrent(torch.rnn_tanh, 3),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (8,), w, b), (_r(2, 3, 8), _r(8), _r(8))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), (_r(2, 4, 5, 5), _r(4), _r(4))),
    "batch norm": (lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (_r(4, 3, 5, 5), _r(3), _r(3))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), (_r(1, 2, 5, 4), _r(1, 2, 5, 4) + 1, _r(1, 2, 5, 4) * 2)),
    "embedding": (lambda w: F.embedding(torch.tensor([[1, 2], [2, 0]]), w, padding_idx=0), (_r(5, 3),)),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 2, -100])), (_r(3, 5),)),
    "scatter add": (lambda x, y: x.scatter_add(1, torch.tensor([[0, 0], [1, 2]]), y), (_r(2, 3), _r(2, 2))),
    "vector through a transposed matrix": (torch.mv, (_r(5, 10), _r(10))),
    "distances": (torch.cdist, (_r(3, 4), _r(5, 4))),
    "distances of 0": (torch.cdist, (_r(3, 4), _r(3, 4) * torch.tensor([[1.0], [1.0], [2.0]]))),
    "distances of power 3": (lambda x, y: torch.cdist(x, y, p=3.0), (_r(3, 4), _r(5, 4))),
    "weight norm": (lambda v, g: torch._weight_norm(v, g, 0), (_r(3, 4), _r(3, 1))),
    "classes that end with -1": (lambda x: F.multilabel_margin_loss(x, torch.tensor([[1, 0, -1, 2, -1], [3, -1, 0, 0, 0]])), (_r(2, 5),)),
    "determinant": (torch.linalg.det, (_r(3, 3) + 3 * torch.eye(3),)),
    "linear equations": (torch.linalg.solve, (_r(3, 3) + 3 * torch.eye(3), _r(3, 2))),
    "linear equations of a vector": (torch.linalg.solve, (_r(3, 3) + 3 * torch.eye(3), _r(3))),
    "logarithm of a determinant": (torch.logdet, (_r(3, 3) + 3 * torch.eye(3),)),
    "fourier": (lambda x: torch.fft.irfft2(torch.fft.fft2(x)[:, :3]), (_r(4, 5),)),
    "a write in place": (lambda x: (x * 1).zero_() + x * x, (_r(4),)),
    "index": (lambda x: x[torch.tensor([0, 2, 2])], (_r(4, 3),)),
}  # fmt: skip


def _samplings() -> dict[str, tuple[Function, Tensors]]:
    points = (torch.sigmoid(_r(1, 3, 4, 2)) - 0.5) * 7
    found: dict[str, tuple[Function, Tensors]] = {}
    for padding in ("zeros", "border", "reflection"):
        for aligned in (False, True):
            found[f"grid {padding}" + ", aligned" * aligned] = (
                lambda x, g, p=padding, a=aligned: F.grid_sample(x, g, padding_mode=p, align_corners=a),
                (_r(1, 2, 5, 6), points),
            )
            found[f"grid bicubic {padding}" + ", aligned" * aligned] = (
                lambda x, g, p=padding, a=aligned: F.grid_sample(x, g, "bicubic", p, a),
                (_r(1, 2, 5, 6), points),
            )
    found["grid nearest"] = (lambda x, g: F.grid_sample(x, g, "nearest", align_corners=False), (_r(1, 2, 5, 6), points))
    volume = (_r(1, 2, 3, 4, 5), torch.sigmoid(_r(1, 2, 3, 4, 3)) * 2 - 1)
    found["grid of a volume"] = (lambda x, g: F.grid_sample(x, g, align_corners=False), volume)
    return found


def _bags() -> dict[str, tuple[Function, Tensors]]:
    """Three bags, one of them empty, in which an embedding comes twice."""
    ids, starts, ends = torch.tensor([1, 3, 1, 4, 0, 2]), torch.tensor([0, 4, 4]), torch.tensor([0, 4, 4, 6])
    found: dict[str, tuple[Function, Tensors]] = {}
    for mode in ("sum", "mean", "max"):
        options = {
            "": {"offsets": starts}, ", last offset": {"offsets": ends, "include_last_offset": True},
            ", padding": {"offsets": starts, "padding_idx": 3},
        }  # fmt: skip
        for name, more in options.items():
            found[f"bags, {mode}{name}"] = (
                lambda w, mode=mode, more=more: F.embedding_bag(ids, w, mode=mode, **more), (_r(5, 3),)
            )  # fmt: skip
    for name, more in (("weighted", {}), ("weighted, padding", {"padding_idx": 3})):
        found[f"bags, {name}"] = (
            lambda w, v, more=more: F.embedding_bag(ids, w, starts, mode="sum", per_sample_weights=v, **more),
            (_r(5, 3), _r(6)),
        )
    return found


def _pairs() -> dict[str, tuple[Function, Tensors]]:
    found: dict[str, tuple[Function, Tensors]] = {
        f"pdist {p}": (lambda x, p=p: F.pdist(x, p), (_r(5, 3),)) for p in (0.0, 1.0, 1.5, 2.0, 3.0, float("inf"))
    }
    found["bilinear"] = (F.bilinear, (_r(2, 3, 4), _r(2, 3, 5), _r(6, 4, 5), _r(6)))
    return found


CASES = _bags() | _pairs() | _samplings() | _convolutions() | _poolings() | _resamplings() | OTHERS


class Gradients(torch.nn.Module):
    """The gradients of a weighted sum of what the function gives, for each of its arguments."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            own = [arg.detach().requires_grad_() for arg in args]
            result = self.function(*own)
            weights = torch.arange(result.numel(), dtype=result.dtype).reshape(result.shape).cos()
            return torch.autograd.grad((result * weights).sum(), own)


def compare(function: Function, args: Tensors, *, others: list[Tensors] | None = None, **options: Any) -> None:
    module = Gradients(function)
    proto = fx2onnx.export(module, args, **options).model_proto
    for inputs in (args, *(others or [])):
        exact = module(*(arg.double() for arg in inputs))
        for engine, outputs in run_engines(proto, inputs).items():
            for got, want in zip(outputs, exact, strict=True):
                scale = max(1.0, float(want.abs().max()))
                assert got.shape == tuple(want.shape), engine
                np.testing.assert_allclose(got, want.numpy(), rtol=0, atol=2e-5 * scale, err_msg=engine)


@pytest.mark.long_cases(
    "grid bicubic zeros",
    "grid bicubic zeros, aligned",
    "grid bicubic border",
    "grid border, aligned",
    "grid bicubic border, aligned",
    "grid bicubic reflection",
    "grid bicubic reflection, aligned",
    "bicubic {'size': (7, 9)}",
    "bicubic {'scale_factor': 2}",
    "bicubic {'scale_factor': 1.6}",
    "bicubic {'size': (3, 2)}",
    "bicubic aligned",
)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name: str) -> None:
    compare(*CASES[name])


@pytest.mark.parametrize("opset", [13, 16, 22])
@pytest.mark.parametrize("name", ["stride 2, padding 1, dilation 1, groups 1", "max 3, stride 2, padding 1", "lstm"])
def test_in_other_opsets(name: str, opset: int) -> None:
    compare(*CASES[name], opset_version=opset)


@pytest.mark.parametrize("stride", [1, 2])
def test_of_images_of_any_size(stride: int) -> None:
    """The rows that no window reaches differ from size to size."""

    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(F.conv2d(x, w, stride=stride, padding=1), 2)

    weight = _r(4, 3, 3, 3)
    others = [(_r(3, 3, height, width), weight) for height, width in ((8, 9), (7, 12))]
    sizes = ({0: "n", 2: "h", 3: "w"}, {})
    compare(run, (_r(2, 3, 10, 11), weight), others=others, dynamic_shapes={"args": sizes})


@pytest.mark.parametrize(
    ("options", "expected"), [({"padding": 1}, {"Conv"}), ({"stride": 2}, {"Conv", "ConvTranspose"})]
)
def test_single_steps_need_no_scattering(options: dict[str, Any], expected: set[str]) -> None:
    """onnxruntime and the runner spread Conv over threads."""
    module = Gradients(lambda x, w: F.conv2d(x, w, **options).square())
    graph = fx2onnx.export(module, (_r(2, 3, 8, 9), _r(4, 3, 3, 3))).model.graph
    assert {node.op_type for node in graph if node.op_type.startswith("Conv")} == expected


OF_PLAIN_SIZES: dict[str, Function] = {
    "sgn": lambda x: x.sgn() * x,
    "block_diag": lambda x: torch.block_diag(x, x[0], x[0, 0], x.t()),
    "block_diag of ours and of constants": lambda x: torch.block_diag(torch.ones(2, 2), x),
}
"""PyTorch takes the gradients of these by sizes as plain numbers."""


@pytest.mark.parametrize("name", OF_PLAIN_SIZES)
def test_of_any_size_where_pytorch_asks_for_plain_ones(name: str) -> None:
    others = [(_r(rows, 3),) for rows in (2, 6)]
    compare(OF_PLAIN_SIZES[name], (_r(4, 3),), others=others, dynamic_shapes={"args": ({0: "n"},)})


aten = torch.ops.aten
DIRECT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nearest": lambda g: aten.upsample_nearest2d_backward(g, [8, 10], [1, 2, 4, 5], 2.0, 2.0),
    "nearest of other sizes": lambda g: aten.upsample_nearest2d_backward(g, [8, 10], [1, 2, 3, 7]),
    "nearest exact": lambda g: aten._upsample_nearest_exact2d_backward(g, [8, 10], [1, 2, 3, 7]),
    "bilinear": lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [1, 2, 3, 7], False),
    "bilinear aligned": lambda g: aten.upsample_bilinear2d_backward(g, [8, 10], [1, 2, 3, 7], True),
    "bicubic aligned": lambda g: aten.upsample_bicubic2d_backward(g, [8, 10], [1, 2, 3, 7], True),
    "bicubic by a factor": lambda g: aten.upsample_bicubic2d_backward(g, [8, 10], [1, 2, 5, 6], False, 1.6, 1.7),
    "bicubic of the same size": lambda g: aten.upsample_bicubic2d_backward(g, [8, 10], [1, 2, 8, 10], False, None, 2.0),
}
"""Gradients that torch takes in another way while a module is captured."""


@pytest.mark.parametrize("name", DIRECT)
def test_gradients_of_interpolation_as_operators(name: str) -> None:
    check(DIRECT[name], (_r(1, 2, 8, 10),))


def test_bags_scaled_by_frequency_are_refused() -> None:
    """Eager PyTorch divides the gradient of a row that is looked up once by the count of another."""
    ids, starts = torch.tensor([1, 3, 1, 4, 0, 2]), torch.tensor([0, 4])
    with pytest.raises(fx2onnx.UserError, match="scale_grad_by_freq"):
        compare(lambda w: F.embedding_bag(ids, w, starts, mode="sum", scale_grad_by_freq=True), (_r(5, 3),))
