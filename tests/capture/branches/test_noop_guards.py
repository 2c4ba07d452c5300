"""Statements that do nothing where their test is false: one program for all sizes; of all others, both branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import fx2onnx
from fx2onnx.runner import InferenceSession
from tests.support import agree

SIZES = [(1, 1), (2, 3), (3, 6), (2, 7), (5, 12), (4, 4), (6, 8), (7, 2), (3, 15)]


def crop_if_longer(x: torch.Tensor) -> Any:
    if x.shape[1] > 6:
        x = x[:, :6]
    return x * 2


def crop_in_an_expression(x: torch.Tensor) -> Any:
    x = x[:, :6] if x.shape[1] > 6 else x
    return x.cumsum(1)


def crop_unless_short(x: torch.Tensor) -> Any:
    if not x.size(1) <= 6:
        x = x[..., :6].contiguous()
    return x + 1


def crop_to_the_last(x: torch.Tensor) -> Any:
    if x.shape[1] > 6:
        x = x[:, -6:]
    return x.cumsum(1)


def crop_what_was_padded(x: torch.Tensor) -> Any:
    a, b = x.shape
    more, beside = (3 - a % 3) % 3, (4 - b % 4) % 4
    y = F.pad(x, (0, beside, 0, more)).flip(0).flip(1)
    if more or beside:
        y = y[:a, :b].contiguous()
    return y.cumsum(1)


def crop_and_write_through_it(x: torch.Tensor) -> Any:
    y = x * 1
    whole = y
    if y.shape[1] > 6:
        y = y[:, :6]
    y += 1
    return whole.clone(), y


def pad_to_a_multiple(x: torch.Tensor) -> Any:
    a, b = x.shape
    beside = -b % 4
    if beside > 0:
        x = F.pad(x, (0, beside))
        b = b + beside
    return x.view(a, b // 4, 4).flip(1)


def pad_two_axes(x: torch.Tensor) -> Any:
    height, width = x.shape
    below, beside = (3 - height % 3) % 3, (4 - width % 4) % 4
    if below > 0 or beside > 0:
        x = F.pad(x, (0, beside, 0, below))
        height, width = x.shape
    windows = x.view(height // 3, 3, width // 4, 4).permute(0, 2, 1, 3).reshape(-1, 12)
    return windows, height * 100 + width


def pad_as_for_same(x: torch.Tensor) -> Any:
    height, width = x.shape
    below = max((-(-height // 2) - 1) * 2 + 3 - height, 0)
    beside = max((-(-width // 2) - 1) * 2 + 3 - width, 0)
    if below > 0 or beside > 0:
        x = F.pad(x, [beside // 2, beside - beside // 2, below // 2, below - below // 2])
    return F.avg_pool2d(x[None], 3, 2)


def pad_to_the_next_multiple(x: torch.Tensor) -> Any:
    """Four columns would be added to four, were they added."""
    width = x.shape[1]
    if width % 4 != 0:
        x = F.pad(x, (0, 4 - (width % 4)))
    x = F.avg_pool1d(x, 4)
    x = F.pad(x, (0, 3 - x.shape[1] % 3)) if x.shape[1] % 3 else x
    return x.view(x.shape[0], -1, 3).flip(1), F.pad(x, (0, 5 - width % 4))


def up_to_sizes_of_a_skip(x: torch.Tensor) -> Any:
    x = F.pad(x, (0, 2, 0, 2))[None, None]
    one = two = three = F.avg_pool2d(x, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    if one.shape[2:] != x.shape[2:]:
        one = F.pad(one, [0, x.shape[3] - one.shape[3], 0, x.shape[2] - one.shape[2]])
    if two.shape != x.shape:
        two = F.interpolate(two, size=x.shape[2:], mode="bilinear", align_corners=False)
    if three.size(2) != x.size(2) or three.size(3) != x.size(3):
        three = F.interpolate(three, (x.size(2), x.size(3)))
    return torch.cat([x, one, two, three], 1)


def crop_by_less_than_nothing(x: torch.Tensor) -> Any:
    beside = (4 - x.shape[1] % 4) % 4
    y = F.pad(x, (0, beside)).view(x.shape[0], -1, 4).flip(2).reshape(x.shape[0], -1)
    if beside > 0:
        y = y[:, :-beside]
    return y


def a_flag_that_is_used_again(x: torch.Tensor) -> Any:
    is_long = x.shape[1] > 6
    if is_long:
        x = x[:, :6]
    return x * (2 if is_long else 3)


def both_have_to_be_long(x: torch.Tensor) -> Any:
    if x.shape[0] > 3 and x.shape[1] > 6:
        x = x[:3, :6]
    return x.cumsum(1)


def crop_more_than_asked(x: torch.Tensor) -> Any:
    if x.shape[1] > 6:
        x = x[:, :5]
    return x.cumsum(1)


def crop_or_add(x: torch.Tensor) -> Any:
    if x.shape[1] > 6:
        x = x[:, :6]
    else:
        x = x + 1
    return x


def crop_and_note(x: torch.Tensor) -> Any:
    factor = 2
    if x.shape[1] > 6:
        x = x[:, :6]
        factor = 3
    return x * factor


def pad_by_one_more(x: torch.Tensor) -> Any:
    beside = -x.shape[1] % 4
    if beside > 0:
        x = F.pad(x, (1, beside))
    return x


def pad_by_four_if_tall(x: torch.Tensor) -> Any:
    if x.shape[0] > 3 or x.shape[1] % 4 != 0:
        x = F.pad(x, (0, 4 - x.shape[1] % 4))
    return x.cumsum(1)


def pad_by_four_to_multiples(x: torch.Tensor) -> Any:
    if x.shape[1] % 4 == 0:
        x = F.pad(x, (0, 4 - x.shape[1] % 4))
    return x.cumsum(1)


def pad_and_write(x: torch.Tensor) -> Any:
    x = x * 1
    unpadded = x
    beside = -x.shape[1] % 4
    if beside > 0:
        x = F.pad(x, (0, beside))
    x += 1
    return unpadded.cumsum(1), x


def pad_and_write_what_was_padded(x: torch.Tensor) -> Any:
    x = x * 1
    unpadded = x
    beside = -x.shape[1] % 4
    if beside > 0:
        x = F.pad(x, (0, beside))
    unpadded.relu_()
    return x.cumsum(1)


IDLE: list[Callable[[torch.Tensor], Any]] = [
    crop_if_longer, crop_in_an_expression, crop_unless_short, crop_to_the_last, crop_what_was_padded,
    crop_and_write_through_it, pad_to_a_multiple, pad_two_axes, pad_as_for_same, pad_to_the_next_multiple,
    up_to_sizes_of_a_skip,
]  # fmt: skip
DECISIONS: list[Callable[[torch.Tensor], Any]] = [
    crop_by_less_than_nothing, a_flag_that_is_used_again, both_have_to_be_long, crop_more_than_asked, crop_and_note,
    crop_or_add, pad_by_one_more, pad_by_four_if_tall, pad_by_four_to_multiples, pad_and_write,
    pad_and_write_what_was_padded,
]  # fmt: skip


def exported(function: Callable[[torch.Tensor], Any], sample: tuple[int, int]) -> Any:
    return fx2onnx.export(function, (torch.randn(sample),), dynamic_shapes=({0: "a", 1: "b"},))


def check(function: Callable[[torch.Tensor], Any], result: Any) -> None:
    agree(function, result.model_proto, *((torch.randn(size),) for size in SIZES), rtol=1e-5, atol=1e-6)


def ifs(result: Any) -> int:
    return sum(node.op_type == "If" for node in result.model_proto.graph.node)


@pytest.mark.parametrize("sample", [(2, 4), (4, 9)], ids=str)
@pytest.mark.parametrize("function", IDLE, ids=lambda function: function.__name__)
def test_one_program_for_all_sizes(function: Callable[[torch.Tensor], Any], sample: tuple[int, int]) -> None:
    result = exported(function, sample)
    assert ifs(result) == 0
    assert result.report.assumptions == []
    check(function, result)


@pytest.mark.parametrize("sample", [(2, 4), (4, 9)], ids=str)
@pytest.mark.parametrize("function", DECISIONS, ids=lambda function: function.__name__)
def test_both_programs_where_something_is_done(
    function: Callable[[torch.Tensor], Any], sample: tuple[int, int]
) -> None:
    result = exported(function, sample)
    assert ifs(result) > 0
    check(function, result)


def padded(x: torch.Tensor, is_wanted: bool) -> torch.Tensor:
    if is_wanted or x.shape[1] % 4 != 0:
        x = F.pad(x, (0, 4 - x.shape[1] % 4))
    return x


def test_a_statement_that_also_runs_at_multiples() -> None:
    def function(x: torch.Tensor) -> Any:
        return padded(x, False).cumsum(1), padded(x, True).cumsum(1)

    check(function, exported(function, (2, 5)))


class Stages(torch.nn.Module):
    """Window attention's padding, in stages that halve the image: 3 ** 4 paths, if each test were a decision."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            height, width = x.shape
            below, beside = (7 - height % 7) % 7, (7 - width % 7) % 7
            y = F.pad(x, (0, beside, 0, below))
            y = y.view(y.shape[0] // 7, 7, y.shape[1] // 7, 7).softmax(1).reshape(y.shape)
            if beside > 0 or below > 0:
                y = y[:height, :width].contiguous()
            x = F.max_pool2d((x + y)[None], 2)[0]
        return x


def test_stages_of_windows() -> None:
    module = Stages()
    result = fx2onnx.export(module, (torch.randn(112, 112),), dynamic_shapes=({0: "height", 1: "width"},))
    assert ifs(result) == 0
    assert sorted(str(each.expression) for each in result.report.assumptions) == ["height >= 16", "width >= 16"]
    session = InferenceSession(result.model_proto.SerializeToString())
    for size in [(112, 112), (16, 40), (100, 33), (57, 224), (28, 56)]:
        x = torch.randn(size)
        np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], module(x).numpy(), rtol=1e-4, atol=1e-5)
