"""The formulas for result types say what torch's own fake run says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fx2onnx.capture.recording.meta_cache import MetaCache
from fx2onnx.capture.registry import Kind, traits_of
from fx2onnx.capture.shapes.shape_env import ShapeEnv
from fx2onnx.torchcompat.fake_tensors import FakeMode
from tests.capture.recorded import entries
from tests.support import check

aten = torch.ops.aten


def agree(func: Any, *args: Any) -> bool:
    """Return whether the rule answers; if it does, it must answer as the fake run does."""
    mode = FakeMode()
    with mode, torch.no_grad():
        fakes = tuple(mode.from_real(arg) if isinstance(arg, torch.Tensor) else arg for arg in args)
        cache = MetaCache(mode, ShapeEnv(), lambda: lambda tensor: tensor)
        key = cache.key(func, fakes, {})
        rule = traits_of(func).result_type
        assert rule is not None
        kind = rule(*key[4:])
        if kind is None:
            return False
        assert kind == cache.type_of(func(*fakes))
        return True


@pytest.mark.long
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    rank=st.integers(1, 3),
    batch=st.integers(1, 3),
    groups=st.integers(1, 2),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    side=st.integers(5, 9),
)
def test_convolution(
    rank: int, batch: int, groups: int, kernel: int, stride: int, padding: int, dilation: int, side: int
) -> None:
    x = torch.empty(batch, 2 * groups, *[side + axis for axis in range(rank)])
    weight = torch.empty(3 * groups, 2, *[kernel] * rank)
    func = {1: aten.conv1d, 2: aten.conv2d, 3: aten.conv3d}[rank].default
    assert agree(func, x, weight, None, [stride] * rank, [padding] * rank, [dilation] * rank, groups)
    assert agree(func, x, weight, None, [stride], [padding], [dilation], groups)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    rank=st.integers(1, 3),
    kernel=st.integers(2, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    side=st.integers(5, 9),
    maximum=st.booleans(),
)
def test_pool(rank: int, kernel: int, stride: int, padding: int, side: int, maximum: bool) -> None:
    x = torch.empty(2, 3, *[side + axis for axis in range(rank)])
    func = getattr(aten, f"{'max' if maximum else 'avg'}_pool{rank}d").default
    assert agree(func, x, [kernel] * rank)
    assert agree(func, x, [kernel], [stride], [padding])
    assert not agree(func, x, [kernel], [stride], [padding], *([1] * maximum), True)


ELEMENTWISE = [
    entry.overload
    for entry in entries(Kind.RESULT_TYPE)
    if not any(
        word in str(entry.overload)
        for word in (
            "conv",
            "linear",
            "pool",
            "istft",
            "upsample",
            "grid",
            "attention",
            "softmax",
            "embedding",
            "cdist",
        )
    )
]


@pytest.mark.parametrize("func", ELEMENTWISE, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_elementwise(func: Any, dtype: torch.dtype) -> None:
    x = torch.empty(2, 3, 4, dtype=dtype)
    name = func._schema.name
    if name == "aten::batch_norm":
        rest = (None, None, torch.empty(3), torch.empty(3), False, 0.1, 1e-5, False)
        assert agree(func, x, *rest)
    elif name == "aten::layer_norm":
        assert agree(func, x, [4])
    elif name == "aten::group_norm":
        weight = torch.empty(3, dtype=dtype)
        assert agree(func, x, 3, weight, weight)
        assert agree(func, x, 1)
        assert not agree(func, x.transpose(1, 2), 1)
    elif len(func._schema.arguments) > 1 and str(func._schema.arguments[1].type) == "Tensor":
        assert agree(func, x, torch.empty(2, 3, 4, dtype=dtype))
        assert not agree(func, x, torch.empty(3, 4, dtype=dtype))
        assert not agree(func, x, torch.empty(2, 3, 4, dtype=torch.float64))
    else:
        assert agree(func, x)


@pytest.mark.parametrize("rows", [1, 5, 30])
def test_distances(rows: int) -> None:
    x = torch.empty(2, rows, 4)
    assert agree(aten.cdist.default, x, torch.empty(2, 26, 4))
    assert agree(aten.cdist.default, x[0], torch.empty(3, 4), 1.0)
    assert agree(aten.cdist.default, x, torch.empty(3, 4))
    assert agree(aten.cdist.default, x[:, None], torch.empty(1, 5, 3, 4))
    assert not agree(aten.cdist.default, x, torch.empty(3, 3, 4))
    assert not agree(aten.cdist.default, x, torch.empty(2, 3, 4), 2.0, 1)


def test_distances_of_any_number_of_rows() -> None:
    """PyTorch computes them another way where there are more than 25."""
    result = check(
        torch.cdist,
        (torch.randn(2, 6, 3), torch.randn(2, 4, 3)),
        others=[(torch.randn(2, 40, 3), torch.randn(2, 9, 3)), (torch.randn(2, 7, 3), torch.randn(2, 30, 3))],
        dynamic_shapes=({1: "n"}, {1: "m"}),
    )
    assert result.report.assumptions == []


@pytest.mark.parametrize("lead", [(2,), (2, 3), (2, 1, 3)])
def test_attention(lead: tuple[int, ...]) -> None:
    func = torch.ops.aten.scaled_dot_product_attention.default
    query, key, value = torch.empty(*lead, 5, 4), torch.empty(*lead, 7, 4), torch.empty(*lead, 7, 6)
    assert agree(func, query, key, value)
    assert agree(func, query, key, value, torch.empty(5, 7))
    assert agree(func, query, key, value, torch.ones(*lead, 1, 7, dtype=torch.bool), 0.0, False)
    assert not agree(func, query, key, value, torch.empty(5, 6))
    assert not agree(func, query, key.mT, value)
    assert not agree(func, query, key, value.double())
    turned = torch.empty(*lead[:-1], 5, lead[-1], 4).transpose(-2, -3)
    assert agree(func, turned, turned, turned) == (len(lead) != 2)


@pytest.mark.long_cases("1-aten.upsample_bicubic2d.vec", "3-aten.upsample_bicubic2d.vec")
@pytest.mark.parametrize(
    "func", [entry.overload for entry in entries(Kind.RESULT_TYPE) if "upsample" in str(entry.overload)], ids=str
)
@pytest.mark.parametrize("channels", [1, 3])
def test_upsample(func: Any, channels: int) -> None:
    rank = next(rank for rank in (1, 2, 3) if f"{rank}d" in str(func))
    align = [] if "nearest" in str(func) else [False]
    x = torch.empty(2, channels, *[4 + axis for axis in range(rank)])
    for factor in (2.0, 1.5, 0.4):
        assert agree(func, x, None, *align, [factor] * rank)
    assert agree(func, x, [7] * rank, *align, None)
    assert not agree(func, x.transpose(-1, 1), [7] * rank, *align, None)


@pytest.mark.long_cases("2")
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_grid_sampler(mode: int) -> None:
    x, grid = torch.empty(2, 3, 4, 5), torch.empty(2, 6, 7, 2)
    assert agree(aten.grid_sampler.default, x, grid, mode, 0, False)
    assert agree(aten.grid_sampler.default, x, grid.transpose(1, 2), mode, 0, False)
    assert not agree(aten.grid_sampler.default, x.transpose(2, 3), grid, mode, 0, False)
    if mode < 2:
        volume = torch.empty(1, 3, 4, 5, 6)
        assert agree(aten.grid_sampler.default, volume, torch.empty(1, 2, 3, 4, 3), mode, 0, False)


@pytest.mark.parametrize("shape", [(5, 4), (2, 3, 4), (4,)])
def test_linear(shape: tuple[int, ...]) -> None:
    assert agree(aten.linear.default, torch.empty(shape), torch.empty(6, 4), torch.empty(6))


@pytest.mark.parametrize("other", [2, 0.5, torch.empty(2, 3)])
def test_arithmetic_with_a_number_or_a_like_tensor(other: Any) -> None:
    assert agree(aten.add.Tensor, torch.empty(2, 3), other)
    assert agree(aten.div.Tensor, torch.empty(2, 3, dtype=torch.float16), other) is not isinstance(other, torch.Tensor)
    assert not agree(aten.mul.Tensor, torch.empty(2, 3, dtype=torch.int64), 0.5)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_softmax(axis: int) -> None:
    for func in (aten.softmax.int, aten.log_softmax.int):
        assert agree(func, torch.empty(2, 3), axis)
        assert not agree(func, torch.empty(2, 3).t(), axis)


@pytest.mark.parametrize("places", [(4,), (2, 3), ()])
def test_embedding(places: tuple[int, ...]) -> None:
    assert agree(aten.embedding.default, torch.empty(5, 3), torch.zeros(places, dtype=torch.int64))
    assert agree(aten.embedding.default, torch.empty(5, 3), torch.zeros(places, dtype=torch.int32))


def rule_of(func: Any) -> Callable[..., object]:
    rule = traits_of(func).result_type
    assert rule is not None

    def answer(*args: Any) -> object:
        key = MetaCache(FakeMode(), ShapeEnv(), lambda: lambda tensor: tensor).key(func, args, {})
        assert key is not None
        return rule(*key[4:])

    return answer


def test_operands_that_do_not_fit_are_left_to_torch() -> None:
    x, weight = torch.empty(2, 6, 8, 8), torch.empty(4, 3, 3, 3)
    conv, pool = rule_of(aten.conv2d.default), rule_of(aten.max_pool2d.default)
    assert conv(x, weight, torch.empty(4), [1, 1], [0, 0], [1, 1], 2) is not None
    assert conv(x, torch.empty(5, 3, 3, 3), None, [1, 1], [0, 0], [1, 1], 2) is None
    assert conv(x, weight, torch.empty(5), [1, 1], [0, 0], [1, 1], 2) is None
    assert conv(x, weight[0], torch.empty(4), [1, 1], [0, 0], [1, 1], 2) is None
    assert conv(x, weight, None, [0, 1], [0, 0], [1, 1], 2) is None
    assert pool(x, [3, 3], [2, 2], [1, 1], [1, 1]) is not None
    assert pool(x, [2, 2], [2, 2], [2, 0], [1, 1]) is None
    assert pool(x, [0, 2], [2, 2], [0, 0], [1, 1]) is None
    assert pool(x, [2, 2], [2, 2], [-1, 0], [1, 1]) is None
    assert pool(x, [2, 2], [2, 2], [0, 0], [1, 0]) is None
    channels = torch.empty(6)
    norm, layer = rule_of(aten.batch_norm.default), rule_of(aten.layer_norm.default)
    assert norm(x, channels, channels, channels, channels, False, 0.1, 1e-5, True) is not None
    assert norm(x, torch.empty(7), channels, channels, channels, False, 0.1, 1e-5, True) is None
    assert norm(x, channels, channels, channels, torch.empty(7), False, 0.1, 1e-5, True) is None
    assert layer(x, [8], torch.empty(8), torch.empty(8)) is not None
    assert layer(x, [8], torch.empty(8), torch.empty(7)) is None
    assert rule_of(aten.linear.default)(x, torch.empty(5, 8), torch.empty(6)) is None
    assert rule_of(aten.group_norm.default)(x, 2, channels, torch.empty(5)) is None


@pytest.mark.parametrize(("padding", "dilation"), [(-1, 1), (0, 0), (0, -1)])
def test_a_convolution_refuses_what_eager_pytorch_refuses(padding: int, dilation: int) -> None:
    x, weight = torch.empty(2, 3, 8, 8), torch.empty(4, 3, 3, 3)
    args = x, weight, None, [1, 1], [padding] * 2, [dilation] * 2, 1
    with pytest.raises(RuntimeError):
        aten.conv2d.default(*args)
    with pytest.raises(RuntimeError, match="should be at least"):
        rule_of(aten.conv2d.default)(*args)


def test_group_norm_leaves_what_does_not_fit_to_torch() -> None:
    rule = traits_of(aten.group_norm.default).result_type
    kind = MetaCache(FakeMode(), ShapeEnv(), lambda: lambda tensor: tensor).type_of(torch.empty(2, 4, 5))
    weight = kind._replace(sizes=(3,), strides=(1,))
    assert rule is not None
    assert [rule(kind, (int, groups)) is None for groups in (1, 2, 3, 4, 0)] == [False, False, True, False, True]
    assert rule(kind, (int, 2), weight) is None


def test_other_layouts_are_left_to_torch() -> None:
    x = torch.empty(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert not agree(aten.relu.default, x)
    assert not agree(aten.conv2d.default, x, torch.empty(3, 3, 1, 1), None, [1, 1], [0, 0], [1, 1], 1)
    assert not agree(aten.relu.default, torch.empty(2, 3, dtype=torch.int64))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("length", [None, 20, 45])
@pytest.mark.parametrize("shape", [(9, 5), (2, 9, 4)])
def test_istft(center: bool, length: int | None, shape: tuple[int, ...]) -> None:
    """Beside eager PyTorch: on fake tensors it goes through the frames."""
    z, window = torch.zeros(shape, dtype=torch.complex64), torch.ones(16)
    cache = MetaCache(FakeMode(), ShapeEnv(), lambda: lambda tensor: tensor)
    rule = traits_of(aten.istft.default).result_type
    assert rule is not None
    results: list[torch.Tensor] = []
    for options in (
        (8, None, window, center, False, None, length),
        (None, None, window),
        (8, 16, window, center, True),
    ):
        key = cache.key(aten.istft.default, (z, 16, *options), {})
        assert key is not None
        results.append(aten.istft.default(z, 16, *options))  # which the cache knows by their ids
        assert rule(*key[4:]) == cache.type_of(results[-1])
    refused = cache.key(aten.istft.default, (z, 16, 8, None, window, center, False, None, length, True), {})
    assert refused is not None
    assert rule(*refused[4:]) is None
